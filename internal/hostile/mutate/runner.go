package main

import (
	"bytes"
	"context"
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

type outcome string

const (
	killed   outcome = "killed"   // the test fails, as it must
	survived outcome = "SURVIVED" // the test passes with the defence off
	hung     outcome = "HUNG"     // the test did not end
	crashed  outcome = "CRASHED"  // the test ended in a panic or by a signal
	astray   outcome = "ASTRAY"   // something failed, but not that test
	notRun   outcome = "NOT RUN"  // the test was skipped, or there was no time
)

// Bounds of one mutant. What the tests themselves wait for is cut short by
// patience, because with a defence off something may hang for ever.
const (
	buildIn   = 20 * time.Minute
	testIn    = 3 * time.Minute
	wardenIn  = 20 * time.Second // to end what is left
	maxOutput = 20_000
)

// patience returns the setting of testenv.Patience for a package's tests.
func patience(dir string) string {
	wait := 3 * time.Second
	if strings.Contains(dir, "hostile") || strings.Contains(dir, "bottle") {
		wait = time.Minute // a bottle starts and does something
	}
	return "CARBOY_TEST_PATIENCE=" + wait.String()
}

// runner runs the tests of a mutated build, each behind a warden.
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
	// As root, bottles run as another user, who must get through.
	if err := os.Chmod(tmp, 0o755); err != nil {
		return nil, err
	}
	return &runner{root: filepath.Dir(gomod), tmp: tmp}, nil
}

func (r *runner) close() { removeAll(r.tmp) }

// binary returns where the test binary of a package is.
func (r *runner) binary(dir string) string {
	return filepath.Join(r.tmp, "bin", strings.ReplaceAll(dir, "/", "_"), "baseline.test")
}

// build builds the tests of ms with all of ms in them, each behind its switch.
func (r *runner) build(ctx context.Context, ms []mutant) error {
	list, err := overlay(r.root, r.tmp, ms)
	if err != nil {
		return err
	}
	for _, dir := range packages(ms) {
		if err := os.MkdirAll(filepath.Dir(r.binary(dir)), 0o755); err != nil {
			return err
		}
		// Without symbol tables it links faster.
		out, err := r.run(ctx, buildIn, r.root, nil, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", list, "-o", r.binary(dir), "./"+dir)
		if err != nil {
			return fmt.Errorf("build the tests of %s: %w\n%s", dir, err, out)
		}
	}
	return nil
}

// test runs tests of a package as the mutant of that name.
func (r *runner) test(ctx context.Context, name, dir string, tests ...string) (outcome, string) {
	bin := r.binary(dir)
	if mutated := filepath.Join(filepath.Dir(bin), name+".test"); mutated != bin {
		if err := os.Link(bin, mutated); err != nil {
			return notRun, err.Error()
		}
		bin = mutated
	}
	// A directory of its own, so that nothing of it stays. The name is short
	// because sockets are made there.
	tmp, err := os.MkdirTemp("", "mu")
	if err == nil {
		err = os.Chmod(tmp, 0o1777|os.ModeSticky)
	}
	if err != nil {
		return notRun, err.Error()
	}
	defer removeAll(tmp)
	out, err := r.run(ctx, testIn, filepath.Join(r.root, dir), []string{"TMPDIR=" + tmp, patience(dir)}, bin,
		"-test.run", pattern(tests), "-test.short", "-test.v", "-test.count=1", "-test.timeout", (testIn - 10*time.Second).String())
	if ctx.Err() != nil {
		return notRun, out
	}
	return verdict(tests, out, err), out
}

// pattern selects tests: several without a part, or one with a part.
func pattern(tests []string) string {
	if parent, part, ok := strings.Cut(tests[0], "/"); ok && len(tests) == 1 {
		return "^" + parent + "$/^" + part + "$"
	}
	var parents []string
	for _, t := range tests {
		parent, _, _ := strings.Cut(t, "/")
		parents = append(parents, parent)
	}
	return "^(" + strings.Join(parents, "|") + ")$"
}

var failLine = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// verdict reads what tests said. Each of them must fail.
func verdict(tests []string, out string, err error) outcome {
	var exit *exec.ExitError
	switch {
	case err == nil && strings.Contains(out, "--- SKIP: "):
		return notRun
	case err == nil:
		return survived
	case strings.Contains(out, "panic: test timed out"):
		return hung
	case !errors.As(err, &exit) || exit.ExitCode() < 0 || exit.ExitCode() == crashCode:
		return crashed
	case strings.Contains(out, "\npanic: ") || strings.Contains(out, "\nfatal error: "):
		return crashed
	}
	red := map[string]bool{}
	for _, f := range failLine.FindAllStringSubmatch(out, -1) {
		red[f[1]] = true
	}
	for _, t := range tests {
		if !red[t] {
			return astray
		}
	}
	return killed
}

var errorLine = regexp.MustCompile(`(?m)^\s+(\w+\.go:\d+: .*)$`)

// reason returns the first thing that a test complained about.
func reason(out string) string {
	m := errorLine.FindStringSubmatch(out)
	if m == nil {
		return ""
	}
	return fmt.Sprintf("%.100s", m[1])
}

// run runs a program and returns its output. Nothing that it started is left when
// run returns.
func (r *runner) run(ctx context.Context, within time.Duration, dir string, env []string, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	// A file, not a pipe, which what a test leaves behind would keep open.
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

// removeAll removes a tree, also directories whose rights tests took away.
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
