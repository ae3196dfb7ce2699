package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/creack/pty"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/supervise/supervisetest"
)

// What the terminal and the page cost where people decide, with a long queue beside a
// short one: both are carboy itself, on a queue on disk. What a browser adds is measured
// by BenchmarkPage in internal/supervise/web.

// uiMeasure is the name of this measure for -only.
const uiMeasure = "ui"

// The proposals of a long queue, and of a short one. A bottle has few.
const (
	longQueue  = 1000
	shortQueue = 10
	uiReps     = 15
)

// UI holds ratios, one per round: a long queue's time to a short one's.
type UI struct {
	Proposals int `json:"proposals"`
	// Key is from a key in the terminal to the first byte that it draws; Page is a
	// proposal beside its list, from the request to the page's last byte.
	Key  *Spread `json:"key_1000_to_10"`
	Page *Spread `json:"page_1000_to_10"`
}

// uiTimes holds, for each round: key short, key long, page short, page long.
type uiTimes [4][]time.Duration

// ui measures a round.
func (b *bench) ui(ctx context.Context) error {
	if b.carboy == "" || !b.asked(uiMeasure) {
		return nil
	}
	fmt.Fprintln(b.log, "ui")
	for i, n := range []int{shortQueue, longQueue} {
		key, page, err := b.withProposals(ctx, n)
		if err != nil {
			return fmt.Errorf("ui: %d proposals: %w", n, err)
		}
		b.uiTimes[i] = append(b.uiTimes[i], key)
		b.uiTimes[2+i] = append(b.uiTimes[2+i], page)
	}
	return nil
}

// withProposals returns the times of a key and of a page with n proposals.
func (b *bench) withProposals(ctx context.Context, n int) (key, page time.Duration, err error) {
	home, err := os.MkdirTemp("/tmp", "carboy-ui-") // sockets need a short name
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(home)) }()
	env := map[string]string{"HOME": home, "PATH": os.Getenv("PATH"), "XDG_STATE_HOME": filepath.Join(home, "state"), "XDG_RUNTIME_DIR": filepath.Join(home, "run"), "TERM": "xterm", "LC_ALL": "C.UTF-8"}
	if err := os.MkdirAll(env["XDG_RUNTIME_DIR"], 0o700); err != nil {
		return 0, 0, err
	}
	c, err := carboy.Open(ctx, carboy.Options{Env: func(name string) string { return env[name] }})
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	q, err := c.Proposals()
	if err != nil {
		return 0, 0, err
	}
	defer q.Close()
	var first supervise.ID
	for i := 0; i < n; i += supervise.MaxWaiting {
		asker, err := q.Asker(supervise.AskerOptions{Bottle: fmt.Sprint("bottle-", i)})
		if err != nil {
			return 0, 0, err
		}
		defer asker.Close()
		for k := i; k < min(n, i+supervise.MaxWaiting); k++ {
			t, err := asker.Propose(ctx, supervisetest.Route(fmt.Sprintf("host-%d.example.com", k)), supervise.Draft{Timeout: time.Hour})
			if err != nil {
				return 0, 0, err
			}
			if first == "" {
				first = t.Proposal().ID
			}
		}
	}
	var vars []string
	for k, v := range env {
		vars = append(vars, k+"="+v)
	}
	if key, err = b.keyed(ctx, vars, n); err != nil {
		return 0, 0, err
	}
	page, err = b.paged(ctx, vars, string(first))
	return key, page, err
}

// keyed returns the median time from a key to its first output.
func (b *bench) keyed(ctx context.Context, env []string, n int) (time.Duration, error) {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, b.carboy, "supervise")
	cmd.Env, cmd.Dir = env, os.TempDir()
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: 120})
	if err != nil {
		return 0, err
	}
	defer cmd.Wait()
	defer tty.Close()
	drawn := make(chan string, 1000)
	go func() { // until the terminal is closed
		defer close(drawn)
		buf := make([]byte, 64<<10)
		for {
			k, err := tty.Read(buf)
			if err != nil {
				return
			}
			drawn <- string(buf[:k])
		}
	}()
	seen := ""
	for !strings.Contains(seen, fmt.Sprintf("%d waiting", n)) || !strings.Contains(seen, "approve") {
		s, ok := <-drawn
		if !ok {
			return 0, errors.New("carboy supervise ended: " + seen[max(0, len(seen)-300):])
		}
		seen += s
	}
	var took []time.Duration
	for i := range uiReps {
		for quiet := false; !quiet; {
			select {
			case <-drawn:
			case <-time.After(40 * time.Millisecond):
				quiet = true
			}
		}
		begun := time.Now()
		if _, err := io.WriteString(tty, []string{"j", "j", "k"}[i%3]); err != nil {
			return 0, err
		}
		if _, ok := <-drawn; !ok {
			return 0, errors.New("carboy supervise ended")
		}
		took = append(took, time.Since(begun))
	}
	_, err = io.WriteString(tty, "q")
	return medianTime(took), err
}

var sessionPath = regexp.MustCompile(`url=(/s/[0-9a-f]+/)`)

// paged returns the median time of a page with a proposal beside its list.
func (b *bench) paged(ctx context.Context, env []string, id string) (time.Duration, error) {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, b.carboy, "supervise", "--web")
	cmd.Env, cmd.Dir = env, os.TempDir()
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer cmd.Wait()
	defer stop()
	var link string
	if _, err := fmt.Fscanln(out, &link); err != nil {
		return 0, err
	}
	get := func(url, cookie string) (string, []*http.Cookie, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return "", nil, err
		}
		r.Header.Set("Cookie", cookie)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return "", nil, err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", resp.Status, text)
		}
		return string(text), resp.Cookies(), err
	}
	text, cookies, err := get(link, "")
	path := sessionPath.FindStringSubmatch(text)
	if err != nil || path == nil || len(cookies) != 1 {
		return 0, fmt.Errorf("the page lets nobody in: %w", err)
	}
	url := link[:strings.Index(link, "/in/")] + path[1] + "p/" + id
	var took []time.Duration
	for range uiReps {
		begun := time.Now()
		text, _, err := get(url, cookies[0].Name+"="+cookies[0].Value)
		if err != nil || !strings.Contains(text, `name="token"`) {
			return 0, fmt.Errorf("no proposal on the page: %w", err)
		}
		took = append(took, time.Since(begun))
	}
	return medianTime(took), nil
}

func (b *bench) uiReport() *UI {
	t := b.uiTimes
	if len(t[0]) == 0 {
		return nil
	}
	return &UI{Proposals: longQueue, Key: spread(t[1], t[0]), Page: spread(t[3], t[2])}
}

func (f *UI) String() string {
	return fmt.Sprintf("**Deciding**: %d proposals that wait, as a multiple of %d.\n\n| a key in the terminal, until it draws | a page with a proposal |\n| --- | --- |\n| %s | %s |\n", f.Proposals, shortQueue, f.Key.fine(), f.Page.fine())
}
