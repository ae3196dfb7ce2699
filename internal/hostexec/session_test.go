package hostexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/testenv"
)

// lasting returns a runner whose helper may outlast the call that starts it.
func lasting(t *testing.T) *Runner {
	r := newTestRunner(t, Options{})
	s := *r.programs[helper]
	s.lasts = true
	r.programs[helper] = &s
	return r
}

func patient(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience(time.Minute))
	t.Cleanup(cancel)
	return ctx
}

// What a command with Keep has left goes on, until Close.
func TestSessionKeeps(t *testing.T) {
	r, sleep := lasting(t), sleeper(t)
	cmd := shell(t, fmt.Sprintf("echo out; setsid sh -c 'setsid %s & exit' & exit 0", sleep))
	cmd.Keep = true
	s, err := r.Start(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Kept(patient(t)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it runs", func() bool { return alive(sleep) == 1 })
	if len(r.Running()) != 1 {
		t.Errorf("registered: %v", r.Running())
	}
	select {
	case <-s.Done():
		t.Error("done while something runs")
	default:
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("wait with an ended context: %v", err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := alive(sleep); n != 0 {
		t.Errorf("%d are left", n)
	}
	res, err := s.Wait(patient(t))
	if err != nil || res.Outcome != Exited || res.Strays == 0 || string(res.Stdout.Head) != "out\n" {
		t.Errorf("%+v, %v", res, err)
	}
	if len(r.Running()) != 0 {
		t.Errorf("registered: %v", r.Running())
	}
}

// A session ends by itself when nothing is left of it.
func TestSessionEnds(t *testing.T) {
	r := lasting(t)
	cmd := shell(t, "(read x; exit 7) & exit 0")
	cmd.Keep = true
	in, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Input = in
	s, err := r.Start(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Kept(patient(t)); err != nil {
		t.Fatal(err)
	}
	feed.Close()
	if res, err := s.Wait(patient(t)); err != nil || res.ExitCode != 0 {
		t.Errorf("%+v, %v", res, err)
	}
}

// A command that fails keeps nothing.
func TestSessionFails(t *testing.T) {
	r, sleep := lasting(t), sleeper(t)
	cmd := shell(t, fmt.Sprintf("setsid %s & echo why >&2; exit 3", sleep))
	cmd.Keep = true
	s, err := r.Start(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	var failed *FailedError
	if err := s.Kept(patient(t)); !errors.As(err, &failed) || failed.Code != 3 || failed.Stderr != "why" {
		t.Errorf("got %v", err)
	}
	if n := alive(sleep); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// Without Keep a session is a command without an end to its time, whose streams are its
// caller's.
func TestSessionStreams(t *testing.T) {
	r := lasting(t)
	cmd := shell(t, "cat")
	cmd.Timeout = 0
	var ours [2]*os.File
	var err error
	if cmd.Input, ours[0], err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	if ours[1], cmd.Output, err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	s, err := r.Start(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ours[0].WriteString("through it"); err != nil {
		t.Fatal(err)
	}
	ours[0].Close()
	if b, err := io.ReadAll(ours[1]); err != nil || string(b) != "through it" {
		t.Errorf("%q, %v", b, err)
	}
	if res, err := s.Wait(patient(t)); err != nil || res.ExitCode != 0 {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestSessionTimeout(t *testing.T) {
	r, sleep := lasting(t), sleeper(t)
	cmd := shell(t, sleep)
	cmd.Keep, cmd.Timeout = true, 50*time.Millisecond
	s, err := r.Start(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Kept(patient(t)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// Only programs that may last are started so, and Run keeps nothing.
func TestSessionRefused(t *testing.T) {
	r := newTestRunner(t, Options{})
	if _, err := r.Start(t.Context(), shell(t, "exit 0")); reasonOf(err) != reasonProgram {
		t.Errorf("got %v", err)
	}
	r = lasting(t)
	cmd := shell(t, "exit 0")
	cmd.Keep = true
	if _, err := r.Run(t.Context(), cmd); reasonOf(err) != reasonProgram {
		t.Errorf("got %v", err)
	}
	cmd = shell(t, "exit 0")
	cmd.Timeout = 0
	if _, err := r.Run(t.Context(), cmd); reasonOf(err) != reasonTimeout {
		t.Errorf("got %v", err)
	}
	cmd.Timeout = -1
	if _, err := r.Start(t.Context(), cmd); reasonOf(err) != reasonTimeout {
		t.Errorf("got %v", err)
	}
}

// What is kept does not outlive a carboy that is killed, nor a Runner that is closed.
func TestSessionEndsWithItsKeeper(t *testing.T) {
	sleep := sleeper(t)
	cmd, _ := startParent(t, keepScript+fmt.Sprintf("setsid sh -c 'setsid %s & exit' & exit 0", sleep))
	eventually(t, "it runs", func() bool { return alive(sleep) == 1 })
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	eventually(t, "nothing alive", func() bool { return alive(sleep) == 0 })

	r := lasting(t)
	c := shell(t, fmt.Sprintf("setsid %s & exit 0", sleep))
	c.Keep = true
	s, err := r.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Kept(patient(t)); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(patient(t)); err != nil {
		t.Error(err)
	}
	if n := alive(sleep); n != 0 {
		t.Errorf("%d are left", n)
	}
}

func TestSmolvmArguments(t *testing.T) {
	const name = "--name carboy-abc-1 "
	create := "machine create " + name + "--cpus 2 --mem 1024 --allow-cidr 127.0.0.16/32 --dns 127.0.0.16 "
	for _, ok := range []string{
		create, create + "-v /a:/b:ro -v /c/d:/e:ro",
		"machine start " + name, "machine stop " + name, "machine delete " + name + "-f",
		"machine exec " + name + "-- /carboy/bin/agent fd 3", "machine exec " + name + "-i -- /carboy/bin/agent stdio",
	} {
		c := &call{program: "smolvm-bin", path: "/usr/lib/smolvm/smolvm-bin", args: strings.Fields(ok)}
		if err := prepareSmolvm(c); err != nil || !slices.Equal(c.argv, c.args) {
			t.Errorf("%s: %v", ok, err)
		}
		if !slices.Contains(c.env, "LD_LIBRARY_PATH=/usr/lib/smolvm/lib") {
			t.Errorf("%s: environment %q", ok, c.env)
		}
	}
	for _, bad := range []string{
		"", "machine", "machine create", "serve start", "machine run --image alpine", "machine shell " + name, "machine update " + name,
		"machine create --name other --allow-cidr 127.0.0.16/32 --dns 127.0.0.16",
		"machine create " + name, "machine create " + name + "--allow-cidr 127.0.0.16/32",
		"machine create " + name + "--allow-cidr 127.0.0.16/32 --dns 127.0.0.17",
		"machine create " + name + "--allow-cidr 127.0.0.0/8 --dns 127.0.0.0",
		"machine create " + name + "--allow-cidr 10.0.0.1/32 --dns 10.0.0.1",
		"machine create " + name + "--allow-cidr ::1/128 --dns ::1",
		create + "--net", create + "--ssh-agent x", create + "--mem 5", create + "--allow-cidr 0.0.0.0/0", create + "--image x",
		create + "-v /a:/b", create + "-v /a:/b:rw", create + "-v a:/b:ro", create + "-v /a:b:ro", create + "-v /a/../b:/c:ro", create + "-v /:/b:ro",
		create + "-v s3://bucket:/b:ro", create + "-v /a:/b:ro:x", create + "-p 80:80", create + "-- sh", create + "--init x",
		"machine start " + name + "--forkable", "machine start --name carboy-", "machine start --name carboy-A", "machine stop", "machine stop --name other",
		"machine delete " + name, "machine delete other -f", "machine delete " + name + "--cascade", "machine delete --name default -f",
		"machine exec " + name + "-- sh", "machine exec " + name + "-t -- /carboy/bin/agent", "machine exec " + name + "-e A=B -- /carboy/bin/agent", "machine exec " + name + "/carboy/bin/agent --",
	} {
		c := &call{program: "smolvm-bin", path: "/usr/lib/smolvm/smolvm-bin", args: strings.Fields(bad)}
		if err := prepareSmolvm(c); reasonOf(err) != reasonArgument {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// smolvm has the user's directories, once each, and nothing else of the environment.
func TestSmolvmEnvironment(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "agent-rootfs"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", "/home/u")
	t.Setenv("XDG_DATA_HOME", "/data")
	t.Setenv("XDG_CACHE_HOME", "relative")
	t.Setenv("SMOLVM_EGRESS_FLOOR", "off")
	c := &call{program: "smolvm-bin", path: filepath.Join(dir, "smolvm-bin"), args: []string{"machine", "start", "--name", "carboy-x"}}
	if err := prepareSmolvm(c); err != nil {
		t.Fatal(err)
	}
	env, _ := chooseEnv(hostPrograms[Smolvm], []string{"SMOLVM_EGRESS_FLOOR=off", "HOME=/other"}, c.env)
	for _, want := range []string{"HOME=/home/u", "XDG_DATA_HOME=/data", "SMOLVM_AGENT_ROOTFS=" + dir + "/agent-rootfs", "LC_ALL=C"} {
		if !slices.Contains(env, want) {
			t.Errorf("no %s in %q", want, env)
		}
	}
	for _, e := range env {
		if e == "HOME=/nonexistent" || e == "HOME=/other" || strings.HasPrefix(e, "XDG_CACHE_HOME") || strings.HasPrefix(e, "SMOLVM_EGRESS") {
			t.Errorf("environment has %s", e)
		}
	}
}

func TestSmolvmIsFound(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	r, err := New(Options{Scratch: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Run(t.Context(), Command{Program: Smolvm, Args: []string{"machine", "stop", "--name", "carboy-x"}, Dir: "/", Timeout: time.Minute})
	if !NotInstalled(err) {
		t.Fatalf("got %v", err)
	}
	dir := filepath.Join(home, ".smolvm")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "smolvm-bin"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = r.Run(t.Context(), Command{Program: Smolvm, Args: []string{"machine", "stop", "--name", "carboy-x"}, Dir: "/", Timeout: time.Minute})
	if reasonOf(err) != reasonUntrusted || NotInstalled(err) {
		t.Errorf("a script: %v", err)
	}
}
