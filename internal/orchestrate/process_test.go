package orchestrate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/forge/forgetest"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/testenv"
)

// The test binary is also the process that serves, and is killed.
const (
	childEnv = "CARBOY_ORCHESTRATE_TEST" // the API of the forge
	dirEnv   = "CARBOY_ORCHESTRATE_TEST_DIR"
	killsEnv = "CARBOY_TEST_KILLS"
	seed     = 20261127
)

func TestMain(m *testing.M) {
	if api := os.Getenv(childEnv); api != "" {
		if err := serve(api, os.Getenv(dirEnv)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serve serves until it is killed, or gets SIGTERM.
func serve(api, dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	client, err := forge.Open(forge.Options{Provider: "gitea", API: api, Token: secret.NewString(forgetest.Token), Login: forgetest.Robot, Timeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer client.Close()
	b := newBottles(filepath.Join(dir, "bottles"))
	b.plan = b.passes
	b.push = func(branch, commit string) error {
		body, err := json.Marshal(map[string]string{"branch": branch, "commit": commit})
		if err != nil {
			return err
		}
		req, err := http.NewRequest(http.MethodPost, api+"/repos/org/app/pushes", bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "token "+forgetest.Token)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		_, err = io.Copy(io.Discard, res.Body)
		return err
	}
	o := optionsFor(client, api, filepath.Join(dir, "state"), b)
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	o.Slots = 4
	s, err := open(ctx, o, quick)
	if err != nil {
		return err
	}
	fmt.Println("serving")
	err = s.Run(ctx)
	if cerr := s.Close(time.Minute); err == nil {
		err = cerr
	}
	return err
}

func kills() int {
	if n, err := strconv.Atoi(os.Getenv(killsEnv)); err == nil {
		return n
	}
	if testing.Short() {
		return 3
	}
	return 8
}

// A process that is killed at random moments goes on: no comment, push or pull request is
// there twice, and none is lost. CARBOY_TEST_KILLS sets how often.
func TestF2Killed(t *testing.T) {
	f := forgetest.New(t)
	repo := f.Repo("org/app")
	dir := t.TempDir()
	total := int64(kills())
	t.Logf("%d kills, seed %d", total, seed)
	random := rand.New(rand.NewPCG(seed, 1))
	over := make(chan struct{})
	var killer, people sync.WaitGroup
	var done, lives atomic.Int64
	killer.Go(func() {
		for !serveOnce(t, f.API, dir, done.Load() < total, time.Duration(random.Int64N(int64(1500*time.Millisecond))), over) {
			done.Add(1)
		}
	})
	for range 3 {
		people.Go(func() {
			for first := true; first || done.Load() < total && !t.Failed(); first = false {
				lives.Add(1)
				oneLife(t, repo, filepath.Join(dir, "state"))
			}
		})
	}
	people.Wait()
	close(over)
	killer.Wait()
	t.Logf("%d issues", lives.Load())
	pulls := repo.Pulls()
	if int64(len(pulls)) != lives.Load() || int64(len(repo.Pushes())) != 2*lives.Load() {
		t.Errorf("%d pull requests and %d pushes of %d issues", len(pulls), len(repo.Pushes()), lives.Load())
	}
}

// serveOnce runs a process that serves until over, or until it is killed after a while. It
// reports whether over ended it.
func serveOnce(t *testing.T, api, dir string, kill bool, after time.Duration, over chan struct{}) bool {
	self, err := os.Executable()
	if err != nil {
		t.Error(err)
		return true
	}
	c := exec.Command(self)
	c.Env = append(os.Environ(), childEnv+"="+api, dirEnv+"="+dir)
	var errs bytes.Buffer
	c.Stderr = &errs
	c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := c.Start(); err != nil {
		t.Error(err)
		return true
	}
	var timer <-chan time.Time
	if kill {
		timer = time.After(after)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	select {
	case err := <-ended:
		t.Errorf("it ended by itself: %v\n%s", err, errs.String())
		return true
	case <-timer:
		_ = c.Process.Kill()
		<-ended
		return false
	case <-over:
		_ = c.Process.Signal(unix.SIGTERM)
		if err := <-ended; err != nil {
			t.Errorf("%v\n%s", err, errs.String())
		}
		return true
	}
}

// oneLife does what people do, from an issue to the end.
func oneLife(t *testing.T, repo *forgetest.Repo, state string) {
	n := repo.Issue("ada", "Mend it", "Please.", []string{"carboy:coder"}, []string{"ada"})
	branch := fmt.Sprintf("carboy/%d-mend-it", n)
	wait := func(what string, ok func() bool) bool {
		if !testenv.Poll(testenv.Patience(5*time.Minute), ok) {
			all, err := Status(ctx, state)
			text, _ := json.Marshal(all)
			t.Errorf("issue %d: %s: it does not happen: %v %s", n, what, err, text)
			return false
		}
		return true
	}
	var pull forgetest.Pull
	described := func(turn int) func() bool {
		return func() bool {
			for _, p := range repo.Pulls() {
				if p.Head == branch {
					pull = p
				}
			}
			return strings.Contains(pull.Body, fmt.Sprintf("-turn-%d`", turn))
		}
	}
	if !wait("a pull request", described(1)) {
		return
	}
	repo.Comment(n, "eve", "Me too.")
	repo.Comment(pull.Number, "bob", "Change it.")
	if !wait("a second turn", described(2)) {
		return
	}
	repo.Merge(pull.Number, strings.Repeat("d", 40))
	var s IssueStatus
	if !wait("the end", func() bool {
		all, err := Status(ctx, state)
		if err != nil {
			return false
		}
		for _, x := range all.Issues {
			if x.Number == int64(n) {
				s = x
			}
		}
		return s.State == "destroyed"
	}) {
		return
	}
	if s.Turn != 2 || s.Digest == "" || s.Strangers > 1 || s.Failure != nil {
		t.Errorf("%+v", s)
	}
	var robot, others int
	for _, c := range append(repo.Comments(n), repo.Comments(pull.Number)...) {
		if c.By == forgetest.Robot {
			robot++
		} else {
			others++
		}
	}
	if robot != 2 || others != 2 {
		t.Errorf("issue %d: %d comments of the robot, %d of others", n, robot, others)
	}
}
