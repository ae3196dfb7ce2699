package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/carboy/carboy/internal/testenv"
)

// live starts a run that says "up" and then does as the script says.
func (s *site) live(script string, flags ...string) (id string, cmd *exec.Cmd, rest io.Reader) {
	s.t.Helper()
	cmd = s.command(append(append([]string{"run"}, flags...), "--", "sh", "-c", "echo up; "+script)...)
	var msg bytes.Buffer
	cmd.Stderr = &msg
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		cmd.Wait()
		s.t.Fatalf("%v: %s", err, &msg)
	}
	return s.newest().ID, cmd, out
}

func TestExec(t *testing.T) {
	s := newSite(t)
	s.wipe()
	id, cmd, _ := s.live("echo mine >made; while [ ! -e stop ]; do sleep 0.05; done; exit 6")

	for _, c := range []struct {
		stdin    string
		args     []string
		out, msg string
		code     int
	}{
		{args: []string{id, "--", "true"}},
		{args: []string{id, "--", "cat", "made"}, out: "mine\n"},
		{args: []string{id, "cat", "a.txt"}, out: "hello\n"},
		{args: []string{id, "--", "sh", "-c", "echo out; echo err >&2; exit 3"}, out: "out\n", msg: "err\n", code: 3},
		{args: []string{id, "--", "sh", "-c", "kill -TERM $$"}, code: 143},
		{stdin: "line\nlast", args: []string{id, "--", "cat"}, out: "line\nlast"},
		{args: []string{"--env", "A=b c", id, "--", "sh", "-c", "echo $A $CARBOY $PWD"}, out: "b c 1 " + s.ws + "\n"},
		{args: []string{id, "--", "no-such-program"}, msg: "not found in the bottle", code: 127},
		{args: []string{id, "--", "/etc/passwd"}, msg: "cannot be executed", code: 126},
		{args: []string{"--env", "API_TOKEN=x", id, "--", "true"}, msg: "looks like a secret", code: 125},
		{args: []string{"--env", "NOT_SET_HERE", id, "--", "true"}, msg: "is not set here", code: 125},
		{args: []string{"-t", id, "--", "true"}, msg: "needs a terminal", code: 125},
		{args: []string{"zzzz", "--", "true"}, msg: "no such run", code: 125},
		{args: []string{id}, msg: "no run, or no command", code: 125},
	} {
		x := s.feed(c.stdin, append([]string{"exec"}, c.args...)...)
		if x.code != c.code || x.out != c.out || !strings.Contains(x.msg, c.msg) || c.msg == "" && x.msg != "" {
			t.Errorf("exec %q: exit %d, %q, %q", c.args, x.code, x.out, x.msg)
		}
	}

	// The same user and the same processes as the run's own.
	uid := s.carboy("exec", id, "--", "sh", "-c", "id -u; cat /proc/*/comm | grep -c '^sleep$' >&2; grep -c NoNewPrivs.*1 /proc/self/status").out
	if !strings.HasSuffix(uid, "\n1\n") || strings.HasPrefix(uid, "0\n") {
		t.Errorf("user and rights: %q", uid)
	}

	// Killed with its carboy, and only it.
	x := s.command("exec", id, "--", "sleep", "987")
	if err := x.Start(); err != nil {
		t.Fatal(err)
	}
	runs := func() bool { return s.runsInside(id, "sleep", "987") }
	if !testenv.Poll(patience, runs) {
		t.Fatal("it does not run")
	}
	x.Process.Kill()
	x.Wait()
	if !testenv.Poll(patience, func() bool { return !runs() }) {
		t.Fatal("its caller was killed, and it goes on")
	}

	// Interrupted once and twice.
	for _, c := range []struct {
		script string
		times  int
		code   int
	}{{"trap 'exit 7' INT; echo up; while :; do sleep 0.05; done", 1, 7}, {"trap '' INT; echo up; while :; do sleep 0.05; done", 2, 125}} {
		x := s.command("exec", id, "--", "sh", "-c", c.script)
		out, err := x.StdoutPipe()
		if err == nil {
			err = x.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		io.ReadFull(out, make([]byte, 3))
		for range c.times {
			x.Process.Signal(syscall.SIGINT)
			time.Sleep(100 * time.Millisecond)
		}
		x.Wait()
		if code := x.ProcessState.ExitCode(); code != c.code {
			t.Errorf("%d interrupts: exit %d, want %d", c.times, code, c.code)
		}
	}

	// One that goes on when the run ends is over with it.
	late := s.command("exec", id, "--", "sleep", "1000")
	if err := late.Start(); err != nil {
		t.Fatal(err)
	}
	s.carboy("exec", id, "--", "touch", "stop")
	cmd.Wait()
	late.Wait()
	if a, b := cmd.ProcessState.ExitCode(), late.ProcessState.ExitCode(); a != 6 || b != 125 {
		t.Errorf("the run ended with %d, the command beside it with %d", a, b)
	}
	if x := s.carboy("exec", id, "--", "true"); x.code != 125 || !strings.Contains(x.msg, "not live") {
		t.Errorf("a run that is over: %+v", x)
	}

	var r struct {
		Execs struct {
			Total int
			List  []struct {
				Command []string
				By      int
				Exit    struct{ Code int }
			}
		}
		Changes struct{ Total int }
	}
	if err := json.Unmarshal([]byte(s.carboy("receipt", "--json", id).out), &r); err != nil {
		t.Fatal(err)
	}
	codes := map[string]int{}
	for _, e := range r.Execs.List {
		codes[strings.Join(e.Command, " ")] = e.Exit.Code
		if e.By != os.Getuid() {
			t.Errorf("run by %d", e.By)
		}
	}
	if r.Execs.Total < 12 || len(r.Execs.List) != r.Execs.Total || codes["no-such-program"] != 127 || codes["sh -c kill -TERM $$"] != 143 || codes["sleep 987"] != 125 {
		t.Errorf("the receipt has %+v", r.Execs)
	}
	if r.Changes.Total != 2 {
		t.Errorf("%d changes, want made and stop", r.Changes.Total)
	}
	if x := s.carboy("logs", "--only", "exec-stdout", id); !strings.Contains(x.out, "mine\n") {
		t.Errorf("logs: %+v", x)
	}
	log, err := os.ReadFile(s.home + "/state/carboy/audit/log")
	if n := bytes.Count(log, []byte(`"run.exec"`)); err != nil || n < 12 {
		t.Errorf("%d records in the audit log, %v", n, err)
	}
	if x := s.carboy("audit", "verify"); x.code != 0 {
		t.Errorf("%+v", x)
	}
}

// What a run is limited to, its guests are too.
func TestExecCountsAgainstTheRun(t *testing.T) {
	s := newSite(t)
	s.wipe()
	id, cmd, _ := s.live("exec sleep 1000", "--output", "64KiB", "--pids", "20")
	if x := s.carboy("exec", id, "--", "sh", "-c", "for i in $(seq 40); do sleep 5 & done 2>&1 | grep -c -i fork; exit 0"); x.out == "0\n" {
		t.Errorf("40 processes in a bottle of 20: %+v", x)
	}
	x := s.carboy("exec", id, "--", "sh", "-c", "while :; do echo 0123456789; done")
	cmd.Wait()
	if n := len(x.out); n == 0 || n > 64<<10 || x.code == 0 || cmd.ProcessState.ExitCode() != 125 {
		t.Errorf("%d bytes of output, exit %d, the run ended with %d", n, x.code, cmd.ProcessState.ExitCode())
	}
	if x := s.carboy("receipt", id); !strings.Contains(x.out, "output") {
		t.Errorf("%s", x.out)
	}
}

func TestExecTerminal(t *testing.T) {
	s := newSite(t)
	s.wipe()
	id, _, _ := s.live("exec sleep 1000")
	x := terminalIn(t, s.home, "exec", "-it", id, "--", "bash", "--norc", "-i")
	x.shell()
	x.typed("sh -c 'echo up-$((20+2)); exec sleep 1000'\n")
	x.await("up-22")
	x.stop()
	// bash asks once more when the job it has just killed counts as stopped yet.
	x.typed("kill -9 %1; exit 9\nexit 9\n")
	if code := x.end(); code != 9 {
		t.Errorf("exit %d:\n%s", code, x.text())
	}
	x = terminalIn(t, s.home, "exec", "-t", id, "--", "sh", "-c", "trap '' INT HUP; echo up-$((1+1)); while :; do sleep 1; done")
	x.await("up-2")
	x.typed("\r~.")
	if code := x.end(); code != 125 {
		t.Errorf("~.: exit %d:\n%s", code, x.text())
	}
	// Without a terminal of its own it does not drive the user's.
	x = terminalIn(t, s.home, "exec", id, "--", "printf", `\033]0;owned\007text\n`)
	x.end()
	if text := x.text(); strings.Contains(text, "\x1b") || !strings.Contains(text, "text") {
		t.Errorf("the terminal got %q", text)
	}
	if x := s.carboy("exec", id, "--", "true"); x.code != 0 {
		t.Errorf("the run is over: %+v", x)
	}
}

// runsInside reports whether a process of the run has this command line. It asks
// /proc, since not every machine has ps.
func (s *site) runsInside(id string, command ...string) bool {
	s.t.Helper()
	all := s.carboy("exec", id, "--", "sh", "-c", "cat /proc/*/cmdline").out
	return strings.Contains(all, strings.Join(command, "\x00")+"\x00")
}

// A reader may be slow: what the command wrote arrives, and its code after that.
func TestExecSlowReader(t *testing.T) {
	s := newSite(t)
	s.wipe()
	id, _, _ := s.live("exec sleep 1000")
	const size = 400_000
	x := s.command("exec", id, "--", "sh", "-c", "head -c 400000 /dev/zero; exit 4")
	out, err := x.StdoutPipe()
	if err == nil {
		err = x.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	n, _ := io.CopyN(io.Discard, out, size-100_000)
	time.Sleep(2 * time.Second) // the command has ended meanwhile
	rest, _ := io.Copy(io.Discard, out)
	x.Wait()
	if n+rest != size || x.ProcessState.ExitCode() != 4 {
		t.Errorf("%d bytes of %d, exit %d", n+rest, size, x.ProcessState.ExitCode())
	}
	// A process that it leaves behind, and that holds its output, is not waited for.
	if x := s.carboy("exec", id, "--", "sh", "-c", "sleep 987 & echo x"); x.code != 0 || x.out != "x\n" {
		t.Errorf("%+v", x)
	}
	// Nor is a reader that never reads, once there was a second interrupt.
	x = s.command("exec", id, "--", "sh", "-c", "head -c 100000 /dev/zero")
	if _, err = x.StdoutPipe(); err == nil {
		err = x.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	for range 2 {
		x.Process.Signal(syscall.SIGINT)
		time.Sleep(100 * time.Millisecond)
	}
	x.Process.Wait()
	if x := s.carboy("exec", id, "--", "true"); x.code != 0 {
		t.Errorf("the run is over: %+v", x)
	}
}

// The supervisor as a background job of the terminal that exec is typed in: it
// is not stopped, which would lift the run's limits.
func TestExecInTheSupervisorsTerminal(t *testing.T) {
	s := newSite(t)
	s.wipe()
	cmd := s.command()
	cmd.Path, cmd.Args = testenv.Need(t, "bash", "apt-get install bash"), []string{"bash", "-c", `
		set -m
		carboy run -- sh -c 'echo up; exec sleep 1000' </dev/null >../out 2>&1 &
		p=$!
		until grep -q up ../out; do sleep 0.1; done
		id=$(basename $XDG_STATE_HOME/carboy/runs/0*)
		carboy exec -t $id -- true; echo terminal-$?
		carboy exec -i $id -- true; echo input-$?
		carboy exec $id -- echo plain-$((1+1))
		carboy exec -i $id -- true & wait $!; echo background-$?
		stty tostop
		carboy exec $id -- echo tostop-$((1+1))
		echo state-$(cut -d' ' -f3 /proc/$p/stat)
		kill $p; kill $p; wait $p; echo over-$((1+1))`}
	f, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: 100})
	if err != nil {
		t.Fatal(err)
	}
	x := &session{t: t, pty: f, cmd: cmd, done: make(chan struct{})}
	go x.read()
	t.Cleanup(func() { cmd.Process.Kill(); f.Close(); <-x.done })
	x.await("over-2")
	text := x.text()
	for _, want := range []string{"terminal-125", "input-125", "plain-2", "background-125", "tostop-2", "in the background of this terminal"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q:\n%s", want, text)
		}
	}
	if !strings.Contains(text, "state-S") && !strings.Contains(text, "state-R") {
		t.Errorf("the supervisor:\n%s", text)
	}
}
