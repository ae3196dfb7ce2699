package bottletest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/bottle"
)

func (s *suite) exitCodes(t *testing.T) {
	b := s.create(t)
	for _, code := range []int{0, 1, 3, 125, 126, 127, 128, 200, 255} {
		st := b.start("/bin/sh", "-c", fmt.Sprintf("exit %d", code)).end()
		want(t, "status", st, bottle.Status{Exited: true, Code: code})
		want(t, "exit code", st.ExitCode(), code)
	}
	if st := b.start("true").end(); st.ExitCode() != 0 {
		t.Errorf("a program that is looked up on PATH: %+v", st)
	}
}

func (s *suite) signals(t *testing.T) {
	b := s.create(t)
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSEGV, syscall.SIGINT} {
		st := b.start("/bin/sh", "-c", fmt.Sprintf("kill -%d $$; sleep 60", int(sig))).end()
		want(t, "signal", st.Signal, sig)
		want(t, "exit code", st.ExitCode(), 128+int(sig))
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		p := b.start("/bin/sh", "-c", "echo up; exec sleep 600")
		p.waitFor("up")
		if err := p.Signal(sig, false); err != nil {
			t.Errorf("signal %v: %v", sig, err)
		}
		want(t, "signal from outside", p.end().Signal, sig)
	}
	p := b.start("/bin/sh", "-c", `trap 'echo caught; exit 7' TERM; echo up; while :; do sleep 0.1; done`)
	p.waitFor("up")
	if err := p.Signal(syscall.SIGTERM, false); err != nil {
		t.Error(err)
	}
	want(t, "a handled signal", p.end(), bottle.Status{Exited: true, Code: 7})
	if err := p.Signal(syscall.SIGTERM, false); err == nil {
		t.Error("a process that has ended was signalled")
	}
}

func (s *suite) signalGroup(t *testing.T) {
	b := s.create(t)
	p := b.start("/bin/sh", "-c", "sleep 611 & sleep 612 & echo up; wait")
	p.waitFor("up")
	other := b.start("/bin/sh", "-c", "echo up; exec sleep 613")
	other.waitFor("up")
	if err := p.Signal(syscall.SIGTERM, true); err != nil {
		t.Fatal(err)
	}
	want(t, "leader", p.end().Signal, syscall.SIGTERM)
	left := b.sh(`for p in /proc/[0-9]*; do tr '\0' ' ' < $p/cmdline; echo; done`)
	for _, gone := range []string{"sleep 611", "sleep 612"} {
		if strings.Contains(left, gone) {
			t.Errorf("%q outlived the signal to its group", gone)
		}
	}
	if !strings.Contains(left, "sleep 613") {
		t.Error("a command of another group got the signal too")
	}
	if err := other.Signal(syscall.SIGKILL, false); err != nil {
		t.Error(err)
	}
	other.end()
}

func (s *suite) notFound(t *testing.T) {
	b := s.create(t)
	for _, name := range []string{"no-such-program", "/no/such/file", "./missing"} {
		if _, err := b.command(nil, name); !errors.Is(err, bottle.ErrNotFound) {
			t.Errorf("%s: got %v, want ErrNotFound", name, err)
		}
	}
	if _, err := b.command(func(c *bottle.Command) { c.Env = []string{"PATH=/nowhere"} }, "sh"); !errors.Is(err, bottle.ErrNotFound) {
		t.Errorf("sh without a PATH to it: got %v, want ErrNotFound", err)
	}
	want(t, "the bottle afterwards", b.sh("echo alive"), "alive\n")
}

func (s *suite) notExecutable(t *testing.T) {
	b := s.create(t)
	b.sh(`printf '#!/bin/sh\necho ran\n' > script; printf 'junk' > junk; chmod +x junk; mkdir -p dir; printf '#!/no/such\n' > lost; chmod +x lost`)
	for _, name := range []string{"./script", "./a.txt", "./junk", "./dir", "a.txt/x"} {
		if _, err := b.command(nil, name); !errors.Is(err, bottle.ErrNotExecutable) {
			t.Errorf("%s: got %v, want ErrNotExecutable", name, err)
		}
	}
	// execve(2) says ENOENT when the interpreter is missing; so do shells.
	if _, err := b.command(nil, "./lost"); !errors.Is(err, bottle.ErrNotFound) {
		t.Errorf("./lost: got %v, want ErrNotFound", err)
	}
	want(t, "the same script, executable", b.sh("chmod +x script; ./script"), "ran\n")
}

func (s *suite) workingDir(t *testing.T) {
	b := s.create(t)
	want(t, "workspace", b.sh("pwd; cat a.txt"), b.spec.Workspace.Target+"\nhello\n")
	p, err := b.command(func(c *bottle.Command) { c.Dir = "/usr/bin" }, "/bin/pwd")
	if err != nil {
		t.Fatal(err)
	}
	p.end()
	want(t, "another directory", p.out.String(), "/usr/bin\n")
	if p, err := b.command(func(c *bottle.Command) { c.Dir = "/no/such/dir" }, "/bin/pwd"); err == nil {
		p.end()
		t.Errorf("started in a directory that is not there: %s", p.out.String())
	}
}

func (s *suite) stdio(t *testing.T) {
	b := s.create(t)
	p := b.start("/bin/sh", "-c", "cat; echo done >&2")
	text := strings.Repeat("0123456789abcdef", 1<<16)
	if _, err := p.stdin.WriteString(text); err != nil {
		t.Error(err)
	}
	p.end()
	want(t, "stdout", sha256.Sum256([]byte(p.out.String())), sha256.Sum256([]byte(text)))
	want(t, "stderr", p.err.String(), "done\n")

	p = b.start("/bin/sh", "-c", "head -c 20000000 /dev/zero | tr '\\0' x; echo; echo end")
	p.end()
	if out := p.out.String(); len(out) != 20000000+5 || !strings.HasSuffix(out, "x\nend\n") {
		t.Errorf("20 MB of output: got %d bytes", len(out))
	}

	// Nobody reads any more: the writer gets an error and does not hang.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var q *proc
	q, err = b.command(func(c *bottle.Command) { c.Stdout.Close(); c.Stdout = w }, "/bin/sh", "-c", "yes; echo status $? >&2")
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	q.end()
	if !strings.Contains(q.err.String(), "status 141") && !strings.Contains(q.err.String(), "status 1") {
		t.Errorf("a writer without a reader: %q", q.err.String())
	}
}

func (s *suite) largeArguments(t *testing.T) {
	b := s.create(t)
	// Linux accepts 128 KiB for one string and a quarter of the stack for all.
	// A part of that must work on every backend.
	var args []string
	env := []string{"HOME=/home/carboy"}
	for i := range 40 {
		args = append(args, fmt.Sprintf("%d-%s", i, strings.Repeat("a", 40_000)))
	}
	for i := range 10 {
		env = append(env, fmt.Sprintf("V%d=%s", i, strings.Repeat("e", 40_000)))
	}
	args = append(args, "", "a b", "\n", "ü", "$HOME", "-x", "'")
	p, err := b.command(func(c *bottle.Command) { c.Env = env }, append([]string{guestPath, "digest"}, args...)...)
	if err != nil {
		t.Fatalf("2 MB of arguments and environment: %v", err)
	}
	p.end()
	want(t, "arguments", strings.TrimSpace(p.out.String()), fmt.Sprintln(len(args), digest(args), len(env), digest(env)))

	// Arguments that cannot be passed on exactly are refused, never altered.
	p, err = b.command(nil, guestPath, "digest", "\xff\xfe")
	if err == nil {
		p.end()
		want(t, "bytes that are not UTF-8", strings.Fields(p.out.String())[1], digest([]string{"\xff\xfe"}))
	}

	// Beyond that the result is a readable error, and the bottle lives on.
	if p, err := b.command(nil, "/bin/true", strings.Repeat("z", 8<<20)); err == nil {
		p.end()
		t.Log("one argument of 8 MiB was taken")
	}
	want(t, "the bottle afterwards", b.sh("echo alive"), "alive\n")
}

func (s *suite) environment(t *testing.T) {
	t.Setenv("BOTTLETEST_CANARY", "leaked")
	b := s.create(t)
	p, err := b.command(func(c *bottle.Command) { c.Env = []string{"ONLY=this", "EMPTY=", "HOME=/"} }, "/usr/bin/env")
	if err != nil {
		t.Fatal(err)
	}
	p.end()
	got := strings.Fields(p.out.String())
	slices.Sort(got) // the order of variables means nothing
	want(t, "environment", strings.Join(got, " "), "EMPTY= HOME=/ ONLY=this")
	if all := b.sh("cat /proc/[0-9]*/environ | tr '\\0' '\\n'"); strings.Contains(all, "leaked") {
		t.Error("the host's environment can be read inside")
	}
}

func (s *suite) identity(t *testing.T) {
	b := s.create(t)
	want(t, "ids", b.sh("id -u; id -g; id -G"), fmt.Sprintf("%d\n%d\n%d\n", b.spec.User.UID, b.spec.User.GID, b.spec.User.GID))
	want(t, "host name", b.sh("uname -n"), b.spec.Hostname+"\n")
	status := b.sh("cat /proc/self/status")
	for _, line := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(status, line) {
			t.Errorf("no %q in /proc/self/status:\n%s", line, status)
		}
	}
	b.sh("touch mine; test $(stat -c %u mine) = $(id -u)")
}

func (s *suite) concurrent(t *testing.T) {
	b := s.create(t)
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			p, err := b.command(nil, "/bin/sh", "-c", fmt.Sprintf("echo out-%d; exit %d", i, i))
			if err != nil {
				t.Error(err)
				return
			}
			p.stdin.Close()
			st, err := p.Wait(b.ctx)
			p.copied.Wait()
			if err != nil || st.Code != i || p.out.String() != fmt.Sprintf("out-%d\n", i) {
				t.Errorf("command %d: %+v %v %q", i, st, err, p.out.String())
			}
		}()
	}
	wg.Wait()
}

// orphans checks that the bottle outlives its commands and reaps what they
// leave behind, so that ended processes do not accumulate against the limit.
func (s *suite) orphans(t *testing.T) {
	b := s.create(t, func(sp *bottle.Spec) { sp.Limits.Pids = 40 })
	for range 5 {
		b.sh("for i in 1 2 3 4 5 6 7 8 9 10; do (sleep 0.01 & ) ; done")
	}
	b.sh("sleep 0.2")
	if z := b.sh("grep -l '^State:.Z' /proc/[0-9]*/status || true"); z != "" {
		t.Errorf("zombies: %s", z)
	}
}

func (s *suite) waitContext(t *testing.T) {
	b := s.create(t)
	p := b.start("/bin/sh", "-c", "echo up; read x; exit 4")
	p.waitFor("up")
	ctx, cancel := context.WithTimeout(b.ctx, 20*time.Millisecond)
	defer cancel()
	if st, err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait with an ended context: %+v %v", st, err)
	}
	for range 3 {
		want(t, "waiting again", p.end().Code, 4)
	}
}
