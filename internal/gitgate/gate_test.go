package gitgate

import (
	"context"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/gitgate/gittest"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/testenv"
)

// tryGit runs git in dir without the machine's configuration, and returns its output.
func tryGit(t testing.TB, dir string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "git", args...)
	c.Dir = dir
	c.Env = gittest.Env(nil)
	b, err := c.CombinedOutput()
	return string(b), err
}

func git(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := tryGit(t, dir, args...)
	if err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return out
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// newGate serves cfg's repositories, and returns the gate and its URL.
func newGate(t testing.TB, cfg Config) (*Gate, string) {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
		if err := os.Chmod(cfg.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if cfg.Git == nil {
		r, err := hostexec.New(hostexec.Options{})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Git = r
	}
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(g)
	t.Cleanup(func() {
		s.Close()
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g, s.URL
}

// newUpstreamRepo makes a bare repository with one commit.
func newUpstreamRepo(t testing.TB, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	up := filepath.Join(dir, "up.git")
	git(t, dir, append([]string{"init", "-q", "--bare", "-b", "trunk"}, append(args, up)...)...)
	w := filepath.Join(dir, "w")
	git(t, dir, append([]string{"init", "-q", "-b", "trunk"}, append(args, w)...)...)
	write(t, w+"/a.txt", "hello\n")
	git(t, w, "add", ".")
	git(t, w, "commit", "-qm", "one")
	git(t, w, "push", "-q", up, "trunk")
	return up
}

func TestClone(t *testing.T) {
	up := newUpstreamRepo(t)
	_, url := newGate(t, Config{Repos: []Repo{{Name: "app", URL: up}}})
	dir := t.TempDir()
	git(t, dir, "clone", "-q", url+"/app.git", "c")
	if got := git(t, dir+"/c", "symbolic-ref", "--short", "HEAD"); got != "trunk\n" {
		t.Errorf("HEAD is %q", got)
	}
	git(t, dir, "-c", "protocol.version=0", "clone", "-q", url+"/app.git", "c0")
}

// recorder stores the events of a gate.
type recorder struct {
	mu    sync.Mutex
	all   []Event
	added chan struct{} // closed and replaced with each event
}

func record(cfg *Config) *recorder {
	r := &recorder{added: make(chan struct{})}
	cfg.Observe = func(e Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = append(r.all, e)
		close(r.added)
		r.added = make(chan struct{})
	}
	return r
}

// last returns the newest event of an operation. It blocks until there is one: an event
// may come a moment after git's end.
func (r *recorder) last(op string) Event {
	timeout := time.After(testenv.Patience(5 * time.Second))
	for {
		r.mu.Lock()
		all, added := slices.Clone(r.all), r.added
		r.mu.Unlock()
		for _, e := range slices.Backward(all) {
			if e.Op == op {
				return e
			}
		}
		select {
		case <-added:
		case <-timeout:
			return Event{}
		}
	}
}

// refusedPush pushes from w, and fails the test unless the gate refuses with a text that
// holds each of want.
func refusedPush(t *testing.T, w string, want ...string) {
	t.Helper()
	out, err := tryGit(t, w, "push", "origin", "trunk")
	if err == nil {
		t.Fatalf("was pushed:\n%s", out)
	}
	for _, s := range append(want, "remote: git gate: ", "refused by the git gate") {
		if !strings.Contains(out, s) {
			t.Errorf("git does not say %q:\n%s", s, out)
		}
	}
}

// rawOutput runs git with a file as input, and returns its unchanged output.
func rawOutput(t testing.TB, dir, in string, args ...string) []byte {
	t.Helper()
	f, err := os.Open(in)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := exec.CommandContext(t.Context(), "git", args...)
	c.Dir, c.Stdin, c.Env = dir, f, gittest.Env(nil)
	b, err := c.Output()
	if err != nil {
		t.Fatalf("git %q: %v", args, err)
	}
	return b
}

func newRunner(t testing.TB) *hostexec.Runner {
	t.Helper()
	r, err := hostexec.New(hostexec.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func listed(t testing.TB, dir string) string {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range all {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}
