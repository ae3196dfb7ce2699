package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// mutant is one defence, turned off.
type mutant struct {
	Name    string `json:"name"`
	Promise string `json:"promise"` // of docs/promises.md
	Why     string `json:"why"`     // what is off, and what then happens

	// Package and Tests must go red, every one of them; a subtest is named
	// with its parent. They are the cheapest that notice.
	Package string   `json:"package"`
	Tests   []string `json:"tests"`
	// Says is in what they print: they fail because the attack got through,
	// not because nothing works any more.
	Says string `json:"says"`

	// wait is for tests that can only wait in vain: how long they do so.
	wait time.Duration
	// root: its tests play another user, which takes root. It is left out, and
	// said to be, where an ordinary user runs the others.
	root bool

	edits []edit
}

// edit replaces a text that stands exactly once in a file of the tree.
type edit struct{ file, old, new string }

type outcome string

const (
	killed   outcome = "killed"   // as it must be
	survived outcome = "SURVIVED" // tests are green with the defence off
	stale    outcome = "STALE"    // the text to replace isn't there once
	broken   outcome = "BROKEN"   // doesn't build
	hung     outcome = "HUNG"     // the tests did not end
	crashed  outcome = "CRASHED"  // the tests ended in a panic or a signal
	astray   outcome = "ASTRAY"   // red, but not for this reason, or not all
	failed   outcome = "NOT RUN"  // this program could not do its work
	passed   outcome = "passed"   // a baseline
)

type result struct {
	mutant
	Outcome outcome `json:"outcome"`
	Seconds float64 `json:"seconds"`
	Output  string  `json:"output,omitempty"`
}

// Bounds of one mutant. What the tests themselves wait for is cut short by
// patience, since with a defence off something may hang for ever.
const (
	buildIn   = 10 * time.Minute
	testIn    = 3 * time.Minute
	wardenIn  = 20 * time.Second // to end what is left
	maxOutput = 20_000
)

// patience is for testenv.Patience.
func patience(m mutant) string {
	wait := 3 * time.Second
	if strings.Contains(m.Package, "hostile") || strings.Contains(m.Package, "bottle") || strings.Contains(m.Package, "cmd") || m.root {
		wait = time.Minute // a bottle is made, or an engine started, and does something
	}
	if m.wait > 0 {
		wait = m.wait
	}
	return "CARBOY_TEST_PATIENCE=" + wait.String()
}

// runner builds and runs tests, each behind a warden.
type runner struct{ root, tmp string }

func newRunner() (*runner, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	gomod := strings.TrimSpace(string(out))
	if filepath.Base(gomod) != "go.mod" {
		return nil, errors.New("not in carboy's source tree: run it there with go run ./internal/hostile/mutate")
	}
	tmp, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return nil, err
	}
	// As root, bottles run as somebody else, who must get through.
	if err := os.Chmod(tmp, 0o755); err != nil {
		return nil, err
	}
	return &runner{root: filepath.Dir(gomod), tmp: tmp}, nil
}

func (r *runner) close() { removeAll(r.tmp) }

// mutant judges one.
func (r *runner) mutant(ctx context.Context, m mutant) result {
	res := r.judge(ctx, m)
	if ctx.Err() != nil && res.Outcome != killed {
		res.Outcome = failed
	}
	return res
}

func (r *runner) judge(ctx context.Context, m mutant) result {
	dir, err := os.MkdirTemp(r.tmp, "m")
	if err != nil {
		return result{mutant: m, Outcome: failed, Output: err.Error()}
	}
	defer removeAll(dir)
	overlay, err := r.overlay(dir, m.edits)
	if err != nil {
		return result{mutant: m, Outcome: stale, Output: err.Error()}
	}
	bin, res := r.build(ctx, m, dir, overlay)
	if res.Outcome != "" {
		return res
	}
	res = r.test(ctx, m, dir, bin)
	if res.Outcome == astray {
		// Of two things that go wrong at once, either can be noticed first.
		first := res.Output
		res = r.test(ctx, m, dir, bin)
		res.Output = first + "\nonce more:\n" + res.Output
	}
	return res
}

// overlay writes the altered files below dir and returns the list for go.
func (r *runner) overlay(dir string, edits []edit) (string, error) {
	replace := map[string]string{}
	for _, e := range edits {
		path := filepath.Join(r.root, e.file)
		from := path
		if again, ok := replace[path]; ok {
			from = again
		}
		src, err := os.ReadFile(from)
		if err != nil {
			return "", err
		}
		out, err := e.apply(string(src))
		if err != nil {
			return "", err
		}
		to := filepath.Join(dir, strings.ReplaceAll(e.file, "/", "_"))
		if err := os.WriteFile(to, []byte(out), 0o644); err != nil {
			return "", err
		}
		replace[path] = to
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, b, 0o644)
}

func (e edit) apply(src string) (string, error) {
	if n := strings.Count(src, e.old); n != 1 {
		return "", fmt.Errorf("%s: %q stands there %d times, not once: the code has changed, say anew where the defence is", e.file, e.old, n)
	}
	return strings.Replace(src, e.old, e.new, 1), nil
}

func (r *runner) build(ctx context.Context, m mutant, dir, overlay string) (string, result) {
	bin := filepath.Join(dir, "t.test")
	// Without symbol tables it links faster; that a mutant vets is nobody's wish.
	out, err := r.run(ctx, buildIn, r.root, nil, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", bin, m.Package)
	if err != nil {
		return "", result{mutant: m, Outcome: broken, Output: out + err.Error()}
	}
	return bin, result{}
}

func (r *runner) test(ctx context.Context, m mutant, dir, bin string) result {
	res := result{mutant: m}
	// A directory of its own, so that nothing of it stays; the name is short
	// because sockets are made there, and open as /tmp is.
	tmp, err := os.MkdirTemp("", "mu")
	if err == nil {
		err = os.Chmod(tmp, 0o1777|os.ModeSticky)
	}
	if err != nil {
		res.Outcome, res.Output = failed, err.Error()
		return res
	}
	defer removeAll(tmp)
	pkg := filepath.Join(r.root, m.Package)
	out, err := r.run(ctx, testIn, pkg, []string{"TMPDIR=" + tmp, patience(m)}, bin,
		"-test.run", runPattern(m.Tests), "-test.short", "-test.v", "-test.count=1", "-test.timeout", (testIn - 10*time.Second).String())
	res.Outcome, res.Output = verdict(m, out, err)
	return res
}

// runPattern selects tests; all of one parent, or none with a parent.
func runPattern(tests []string) string {
	var parents, subs []string
	for _, t := range tests {
		parent, sub, _ := strings.Cut(t, "/")
		parents = append(parents, parent)
		if sub != "" {
			subs = append(subs, sub)
		}
	}
	p := "^(" + strings.Join(parents, "|") + ")$"
	if len(subs) > 0 {
		p += "/^(" + strings.Join(subs, "|") + ")$"
	}
	return p
}

var failLine = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// verdict reads what the tests of a mutant said.
func verdict(m mutant, out string, err error) (outcome, string) {
	var exit *exec.ExitError
	switch {
	case err == nil && strings.Contains(out, "--- SKIP: "):
		return failed, out
	case err == nil && len(m.edits) == 0:
		return passed, ""
	case err == nil:
		return survived, out
	case strings.Contains(out, "panic: test timed out"):
		return hung, out
	case !errors.As(err, &exit) || exit.ExitCode() < 0 || exit.ExitCode() == crashCode:
		return crashed, out + err.Error()
	case strings.Contains(out, "\npanic: ") || strings.Contains(out, "\nfatal error: "):
		return crashed, out
	}
	red := map[string]bool{}
	for _, f := range failLine.FindAllStringSubmatch(out, -1) {
		red[f[1]] = true
	}
	for _, t := range m.Tests {
		if !red[t] {
			return astray, out + "\n" + t + " did not fail"
		}
	}
	if !strings.Contains(out, m.Says) {
		return astray, out + fmt.Sprintf("\nno word of %q", m.Says)
	}
	return killed, out
}

// run runs a program and returns what it said. Nothing that it started is left
// when run returns.
func (r *runner) run(ctx context.Context, within time.Duration, dir string, env []string, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	// A file, not a pipe: what a test leaves behind would keep that open.
	f, err := os.CreateTemp(r.tmp, "out")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = append([]string{wardenName, name}, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, f, f
	cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0"), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = wardenIn
	err = cmd.Run()
	b, rerr := os.ReadFile(f.Name())
	if len(b) > maxOutput {
		b = append(append(bytes.Clone(b[:maxOutput/2]), "\n...\n"...), b[len(b)-maxOutput/2:]...)
	}
	return string(b), errors.Join(err, rerr)
}

// removeAll removes a tree, also what tests have locked in it.
func removeAll(dir string) {
	if os.RemoveAll(dir) == nil {
		return
	}
	filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			os.Chmod(path, 0o700)
		}
		return nil
	})
	os.RemoveAll(dir)
}
