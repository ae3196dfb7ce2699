package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// den is a home with manifests, and a workspace.
type den struct {
	t    *testing.T
	home string
}

func newDen(t *testing.T, files map[string]string) *den {
	t.Helper()
	home := newHome(t)
	for name, text := range files {
		path := filepath.Join(home, ".config/carboy", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return &den{t, home}
}

func (d *den) command(args ...string) *exec.Cmd {
	cmd := exec.Command("carboy", args...)
	cmd.Dir = filepath.Join(d.home, "ws")
	cmd.Env = append(os.Environ(), "HOME="+d.home, "XDG_CONFIG_HOME=", "XDG_STATE_HOME="+d.home+"/state", "XDG_RUNTIME_DIR="+d.home+"/run")
	return cmd
}

// private has a command run with the umask of a service that keeps its files to itself, as
// the unit that orchestrate init writes has.
func private(cmd *exec.Cmd) *exec.Cmd {
	cmd.Args = append([]string{"sh", "-c", `umask 077; exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	return cmd
}

func (d *den) carboy(args ...string) (out, msg string, code int) {
	d.t.Helper()
	cmd := d.command(args...)
	var o, m bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &m
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		d.t.Fatal(err)
	}
	return o.String(), m.String(), cmd.ProcessState.ExitCode()
}

// begun starts an agent that writes "up", and waits for that.
func (d *den) begun(args ...string) (cmd *exec.Cmd, over <-chan error) {
	d.t.Helper()
	cmd = d.command(args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	up, done := make(chan bool, 1), make(chan error, 1)
	go func() { // ends with the command's output
		buf := make([]byte, 4096)
		var seen []byte
		for {
			n, err := out.Read(buf)
			if seen = append(seen, buf[:n]...); bytes.Contains(seen, []byte("up\n")) {
				select {
				case up <- true:
				default:
				}
			}
			if err != nil {
				done <- cmd.Wait()
				return
			}
		}
	}()
	d.t.Cleanup(func() { cmd.Process.Kill() })
	select {
	case <-up:
	case <-time.After(patience):
		d.t.Fatal("the agent does not begin")
	}
	return cmd, done
}

func (d *den) await(cmd *exec.Cmd, over <-chan error) int {
	d.t.Helper()
	select {
	case <-over:
	case <-time.After(patience):
		d.t.Fatal("carboy does not end")
	}
	return cmd.ProcessState.ExitCode()
}

func shellAgent(script string) map[string]string {
	quoted, _ := json.Marshal(script)
	return map[string]string{
		"bottles/sh.md":   "---\nagent_provider: {template: command, settings: {command: [sh, -c, " + string(quoted) + ", x, '{prompt}']}}\n---\n",
		"agents/waits.md": "---\nbottle: sh\n---\n",
	}
}

// A name is not taken by the dead: a new bottle gets that of one that is over and has left
// nothing to take. Where there is something, commands find the one that lives under the
// next name, and say so when there are several.
func TestNames(t *testing.T) {
	d := newDen(t, shellAgent(`echo "$1" >"$1"; echo up; case "$1" in one | last) exit ;; fails) exit 5 ;; esac; sleep 1000`))
	start := func(prompt string) []string {
		return []string{"start", "waits", "--cwd", "--headless", "--prompt", prompt, "--label", "tty"}
	}
	check := func(wantCode int, want string, args ...string) {
		t.Helper()
		out, msg, code := d.carboy(args...)
		if code != wantCode || !strings.Contains(out+msg, want) {
			t.Errorf("%q: %d %s%s; want %d and %q", args, code, out, msg, wantCode, want)
		}
	}
	forget := func() {
		t.Helper()
		if err := os.Remove(d.home + "/state/carboy/bottles/tty/kept.json"); err != nil {
			t.Fatal(err)
		}
		check(0, "over", "list", "--bottles")
	}
	check(5, "bottle tty is kept", "start", "waits", "--headless", "--prompt", "fails", "--label", "tty")
	forget() // and there is nothing to land
	check(0, "bottle tty is kept", start("one")...)
	forget()
	two, over2 := d.begun(start("two")...)
	check(0, "no bottle tty is running; this is tty-2", "exec", "tty", "--", "cat", "two")
	check(125, "nothing of it is kept", "resume", "tty") // what runs is not resumed
	three, over3 := d.begun(start("three")...)
	check(125, "could be tty-2, tty-3", "exec", "tty", "--", "true")
	check(1, "could be tty-2, tty-3", "attach", "tty")
	check(0, "three\n", "exec", "tty-3", "--", "cat", "three") // the control
	check(0, "one", "diff", "tty")                             // its own changes wait
	check(0, "", "land", "tty", "--yes")
	check(1, "could be tty-2, tty-3", "land", "tty", "--yes")
	check(0, "is gone", "destroy", "--unlanded", "tty-3")
	d.await(three, over3)
	check(0, "this is tty-2", "freeze", "tty")
	d.await(two, over2)
	check(0, "this is tty-2", "resume", "tty", "--headless", "--prompt", "last")
	check(0, "this is tty-2", "land", "tty", "--yes")
	for _, name := range []string{"one", "two", "last"} {
		if b, err := os.ReadFile(d.home + "/ws/" + name); err != nil || string(b) != name+"\n" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	check(0, "bottle tty is kept", append(start("one"), "--keep")...) // the old one has landed all
	check(0, "this is bottle tty; there is tty-2 too", "resume", "tty", "--headless", "--prompt", "last")
	check(0, "there is no bottle", "destroy", "tt") // no other is ever destroyed
	check(0, "bottle tty-2 is gone", "destroy", "tty-2")
}

// Ctrl-C is 130, whatever the agent makes of it; without it the code is the agent's.
func TestStartInterrupted(t *testing.T) {
	for script, what := range map[string]string{
		`trap 'exit 5' INT; echo up; while :; do sleep 0.1; done`: "an agent that ends with a code of its own",
		// Not as dash's child: an interrupt while dash forks is lost, outside too.
		`echo up; exec sleep 100`:                      "one that the signal ends",
		`trap 'exit 0' INT; echo up; sleep 100 & wait`: "one that says that all is well",
	} {
		t.Log(what)
		d := newDen(t, shellAgent(script))
		cmd, over := d.begun("start", "waits", "--headless", "--prompt", "x")
		cmd.Process.Signal(unix.SIGINT)
		if code := d.await(cmd, over); code != 130 {
			t.Errorf("%s: exit code %d", what, code)
		}
	}
	// A word without a terminal is a script's, too.
	d := newDen(t, nil)
	cmd, over := d.begun("agent", "--yes", "--", "sh", "-c", `trap 'exit 0' INT; echo up; sleep 100 & wait`)
	cmd.Process.Signal(unix.SIGINT)
	if code := d.await(cmd, over); code != 130 {
		t.Errorf("carboy agent: exit code %d", code)
	}
	d = newDen(t, shellAgent("echo up; exit 5"))
	if _, _, code := d.carboy("start", "waits", "--headless", "--prompt", "x"); code != 5 {
		t.Errorf("exit code %d", code)
	}
}

// A bottle that runs is ended by destroy; one whose carboy was killed stays on
// record, and goes when it is destroyed.
func TestDestroy(t *testing.T) {
	d := newDen(t, shellAgent("echo up; sleep 1000"))
	one, over := d.begun("start", "waits", "--headless", "--prompt", "x")
	two, over2 := d.begun("start", "waits", "--headless", "--prompt", "x")
	if out, _, _ := d.carboy("list"); !strings.Contains(out, "waits-2") {
		t.Errorf("list:\n%s", out)
	}
	if _, msg, code := d.carboy("destroy", "waits"); code != 0 || !strings.Contains(msg, "bottle waits is gone") {
		t.Errorf("destroy: %d\n%s", code, msg)
	}
	if code := d.await(one, over); code != 125 {
		t.Errorf("the destroyed one: exit code %d", code)
	}
	two.Process.Kill()
	d.await(two, over2)
	out, _, _ := d.carboy("list", "--json")
	var runs []struct{ Name, State, Kind string }
	if err := json.Unmarshal([]byte(out), &runs); err != nil || len(runs) != 1 || runs[0].Name != "waits-2" || runs[0].State != "lost" || runs[0].Kind != "bottle" {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Stat(d.home + "/state/carboy/bottles/waits-2/meta.json"); err != nil {
		t.Error("the record of the killed one is gone")
	}
	for _, want := range []string{"bottle waits-2 is gone", "there is no bottle waits-2"} {
		if _, msg, code := d.carboy("destroy", "waits-2"); code != 0 || !strings.Contains(msg, want) {
			t.Errorf("destroy: %d\n%s", code, msg)
		}
	}
	for _, name := range []string{"../../etc", "", "x\x00"[:1], "Waits", strings.Repeat("a", 300)} {
		if _, msg, code := d.carboy("destroy", name); code != 0 || !strings.Contains(msg, "there is no bottle") {
			t.Errorf("destroy %q: %d\n%s", name, code, msg)
		}
	}
	left, _ := filepath.Glob(d.home + "/state/carboy/bottles/*")
	kept, _ := filepath.Glob(d.home + "/state/carboy/runs/*")
	if len(left)+len(kept) > 0 {
		t.Errorf("left: %v %v", left, kept)
	}
}

// Two that begin at once have names of their own.
func TestStartAtOnce(t *testing.T) {
	d := newDen(t, shellAgent("exit 3"))
	const n = 4
	codes := make(chan int, n)
	for range n {
		go func() {
			_, _, code := d.carboy("start", "waits", "--headless", "--prompt", "x")
			codes <- code
		}()
	}
	for range n {
		if code := <-codes; code != 3 {
			t.Errorf("exit code %d", code)
		}
	}
	names, _ := filepath.Glob(d.home + "/state/carboy/bottles/*/meta.json")
	if len(names) != n {
		t.Errorf("%q", names)
	}
}

// A person is shown what would be started, asked, and then has the terminal.
func TestStartInteractive(t *testing.T) {
	files := shellAgent(`stty size; echo "hello $WHO"; read x; echo "got $x"; exit 4`)
	files["bottles/sh.md"] = strings.Replace(files["bottles/sh.md"], "---\n", "---\nenv: {WHO: ?Who are you}\n", 1)
	d := newDen(t, files)
	s := terminalIn(t, d.home, "start", "--cwd", "--label", "l", "--color", "red", "--bottle", "sh")
	s.await("Which agent?")
	s.typed("\r")
	s.await("Who are you (WHO):")
	s.typed("me\n")
	s.await("workspace  ~/ws (overlay)")
	s.await("start it? [y/N]")
	s.typed("y\n")
	s.await("40 100")
	s.await("hello me")
	s.typed("there\n")
	s.await("got there")
	if code := s.end(); code != 4 {
		t.Errorf("exit code %d:\n%s", code, s.text())
	}
	s = terminalIn(t, d.home, "start", "waits")
	s.await("Who are you")
	s.typed("me\n")
	s.await("start it? [y/N]")
	s.typed("n\n") // a cancel, and no failure
	if code := s.end(); code != 0 || strings.Contains(s.text(), "hello me") || !strings.Contains(s.text(), "not confirmed; nothing was changed") {
		t.Errorf("exit code %d:\n%s", code, s.text())
	}
	// Who presses ^C at a question is not held.
	for _, question := range []string{"Who are you", "start it? [y/N]"} {
		s = terminalIn(t, d.home, "start", "waits")
		s.await("Who are you")
		if strings.HasPrefix(question, "start") {
			s.typed("me\n")
		}
		s.await(question)
		s.typed("\x03")
		if code := s.end(); code == 0 || strings.Contains(s.text(), "hello me") {
			t.Errorf("^C at %q: exit code %d:\n%s", question, code, s.text())
		}
	}
	left, _ := filepath.Glob(d.home + "/state/carboy/bottles/*")
	if len(left) != 1 { // of the first
		t.Errorf("%q", left)
	}
}

// Who names no agent is asked for it, for its bottles in their order, for a label and a
// colour; what a repository's agent says of itself draws nothing.
func TestStartAsks(t *testing.T) {
	files := map[string]string{
		"agents/first.md":  "---\nbottle: [one, two]\ndescription: the first one\n---\n",
		"agents/second.md": "---\nbottle: one\n---\n",
	}
	for _, name := range []string{"one", "two", "three"} {
		files["bottles/"+name+".md"] = "---\nagent_provider: {template: command, settings: {command: [sh, -c, 'echo in " + name + "; exit 3', '{prompt}']}}\n---\n"
	}
	files["bottles/zz.md"] = "---\nextends: nowhere\n---\n"
	d := newDen(t, files)
	dir := d.home + "/ws/.carboy/agents"
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/zither.md", []byte("---\nbottle: one\ndescription: \"\\e]0;owned\\a\\e[2Jnice\"\n---\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	s := terminalOf(t, d.home, 100, []string{"TERM=xterm", "LC_ALL=C.UTF-8", "NO_COLOR="}, "start")
	s.await("first")
	s.await("the first one")
	s.await(`\x1b]0;owned\x07\x1b[2Jnice`)
	s.typed("first\r")
	s.await("In which bottles?")
	s.await("can't be used: ") // zz
	s.await("[1]")
	s.typed("+") // one after two
	s.await("[2]")
	s.typed("\r")
	s.await("A label")
	s.typed("Night shift\r")
	s.await("A colour")
	s.typed("bright-bl\x1b[B\r") // below bright-black
	s.await("first in two, one, as ")
	s.await("\x1b[94mNight shift\x1b[0m")
	s.await("start it? [y/N]")
	s.typed("y\n")
	s.await("in one")
	if code := s.end(); code != 3 {
		t.Errorf("exit code %d:\n%s", code, s.text())
	}
	if strings.Contains(s.text(), "\x1b]0;owned") || strings.Contains(s.text(), "\x1b[2Jnice") {
		t.Errorf("a manifest drew on the terminal: %q", s.text())
	}
	s = terminalOf(t, d.home, 200, []string{"TERM=xterm", "NO_COLOR="}, "list")
	s.await("\x1b[94mnight-shift\x1b[0m")
	s.end()
	s = terminalOf(t, d.home, 200, []string{"TERM=xterm", "NO_COLOR=1"}, "list")
	if s.end(); strings.Contains(s.text(), "\x1b[94m") || !strings.Contains(s.text(), "night-shift") {
		t.Errorf("%q", s.text())
	}
	// Given up at any of the questions, nothing is started.
	for i, key := range []string{"\x03", "\x1b", "\x03"} {
		s := terminalIn(t, d.home, "start", "--bottle", "one")
		s.await("Which agent?")
		if i == 2 {
			s.typed("\r")
			s.await("A label")
		}
		s.typed(key)
		if code := s.end(); code != 130 || !strings.Contains(s.text(), "nothing was started") {
			t.Errorf("given up with %q: exit code %d:\n%s", key, code, s.text())
		}
		if on := stty(t, s.pty); strings.Contains(on, "-echo ") || strings.Contains(on, "-icanon") {
			t.Errorf("the terminal is not as before: %s", on)
		}
	}
	// Without a terminal nobody is asked, and is told how to say it.
	for _, args := range [][]string{{"start"}, {"start", "--dry-run"}, {"start", "--headless", "--prompt", "x"}} {
		if _, msg, code := d.carboy(args...); code != 125 || !strings.Contains(msg, "start: name an agent") || !strings.Contains(msg, "there are first, second, zither") {
			t.Errorf("%v: exit code %d\n%s", args, code, msg)
		}
	}
	if names, _ := filepath.Glob(d.home + "/state/carboy/bottles/*"); len(names) != 1 {
		t.Errorf("%q", names)
	}
}

// An image is the bottle's root when the bottle says so.
func TestStartImage(t *testing.T) {
	box := toolImage(t)
	d := newDen(t, map[string]string{
		"bottles/box.md":  "---\nagent_provider: {template: command, image: '" + box + "', settings: {command: [carboy, version, '{prompt}']}}\n---\n",
		"bottles/host.md": "---\nextends: box\nagent_provider: {settings: {command: [sh, -c, 'exit 0', '{prompt}']}}\n---\n",
		"agents/boxed.md": "---\nbottle: box\n---\n",
	})
	out, msg, code := d.carboy("start", "boxed", "--headless", "--prompt", "--help")
	if code != 0 || !strings.Contains(out, "carboy version") || !strings.Contains(msg, "image      "+box) {
		t.Errorf("exit code %d\n%s%s", code, out, msg)
	}
	if _, msg, code := d.carboy("start", "boxed", "--bottle", "host", "--headless", "--prompt", "x"); code != 127 {
		t.Errorf("the host's shell: exit code %d\n%s", code, msg)
	}
}
