package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/testenv"
)

// cue holds a line that carboy prints and the signals that it is sent when it has said that: more than one
// signal at once.
type cue struct {
	says  string
	sent  []syscall.Signal
	stuck bool // in a run that can't end
}

func at(says string, sent ...syscall.Signal) cue    { return cue{says, sent, false} }
func stuck(says string, sent ...syscall.Signal) cue { return cue{says, sent, true} }

// prompter sends a process each signal at its cue.
type prompter struct {
	mu   sync.Mutex
	said bytes.Buffer
	at   int // the part of what was said in which the next cue is looked for
	cues []cue
	send func(cue)
}

func (p *prompter) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said.Write(b)
	for len(p.cues) > 0 {
		_, rest, ok := strings.Cut(p.said.String()[p.at:], p.cues[0].says)
		if !ok {
			break
		}
		p.at = p.said.Len() - len(rest)
		p.send(p.cues[0])
		p.cues = p.cues[1:]
	}
	return len(b), nil
}

// stuckFor bounds the time in which a run can't end. Who waits for it with the second signal, too, is
// found so; the rest never waits as long.
const stuckFor = 20 * time.Second

// holdRun waits until there are more runs than some, and takes the audit log for itself:
// the end of a run can't be put on record, so nothing that waits for one ends. It is given
// back by the returned function, or after stuckFor.
func (w *workDen) holdRun(some int) (free func()) {
	if !testenv.Poll(killPatience, func() bool { return len(w.records("run.started")) > some }) {
		w.t.Error("no run begins")
		return func() {}
	}
	f, err := os.Open(w.home + "/state/carboy/audit/lock")
	if err != nil {
		w.t.Error(err)
		return func() {}
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		w.t.Error(err)
	}
	free = sync.OnceFunc(func() { f.Close() })
	time.AfterFunc(stuckFor, free)
	return free
}

// either is a code of 130, and one of 143.
const either = -1

// goesOn is said of work that has stopped in good order.
const goesOn = "carboy work --continue ID goes on\n"

// stopped runs carboy, which the signals of cues stop, and checks that it ends with code,
// leaves no process, and has said something, and nothing else of how it goes on.
//
// Of two signals that wait for a process, either may come first.
func (w *workDen) stopped(code int, says string, cues []cue, args ...string) {
	w.t.Helper()
	cmd := w.command(args...)
	p := &prompter{cues: cues}
	runs, free := 0, func() {}
	if cues[0].stuck {
		runs = len(w.records("run.started"))
	}
	var below []testenv.Process
	p.send = func(c cue) {
		if c.stuck {
			free = w.holdRun(runs)
		}
		below = append(below, testenv.Living(w.t, cmd.Process.Pid)...)
		if len(c.sent) > 1 { // both are there before it takes the first
			cmd.Process.Signal(syscall.SIGSTOP)
			defer cmd.Process.Signal(syscall.SIGCONT)
		}
		for _, s := range c.sent {
			cmd.Process.Signal(s)
		}
	}
	cmd.Stdout, cmd.Stderr = p, p
	cmd.WaitDelay = 10 * time.Second
	p.mu.Lock() // until there is a process to send anything to
	err := cmd.Start()
	p.mu.Unlock()
	if err != nil {
		w.t.Fatal(err)
	}
	late := time.AfterFunc(killPatience, func() { cmd.Process.Kill() })
	cmd.Wait()
	free()
	if !late.Stop() {
		w.t.Fatalf("carboy %q does not end: %s", args, p.said.String())
	}
	ended := cmd.ProcessState.ExitCode()
	if code == either && (ended == 130 || ended == 143) {
		ended = either
	}
	if ended != code || len(p.cues) > 0 {
		w.t.Fatalf("carboy %q ended with %d, want %d, and %v are left: %s", args, cmd.ProcessState.ExitCode(), code, p.cues, p.said.String())
	}
	if says = strings.ReplaceAll(says, "ID", w.id()); !strings.Contains(p.said.String(), says) {
		w.t.Errorf("carboy %q does not say %q: %s", args, says, p.said.String())
	}
	if goesOn := strings.ReplaceAll(goesOn, "ID", w.id()); strings.Contains(p.said.String(), goesOn) != (says == goesOn) {
		w.t.Errorf("carboy %q waited for what it was to stop at once: %s", args, p.said.String())
	}
	testenv.AllGone(w.t, "carboy that was stopped", below, killPatience)
}

// TestStoppedWork interrupts work as people do, with an agent that will not hear of it: in
// the agent's run, in the gate, and while a person is waited for. Each time it ends at
// once, and goes on later where it was.
func TestStoppedWork(t *testing.T) {
	w := newWorkDenOf(t, `trap 'echo "not yet"' INT; echo up; sleep 300 & while :; do wait; done`, "[ -e quick ] || sleep 300; exit 1\n")
	newest := func(number int, state string) {
		t.Helper()
		if s := w.steps(); s[len(s)-1].Number != number || s[len(s)-1].State != state {
			t.Errorf("want %d %s: %v", number, state, s)
		}
	}
	w.stopped(130, goesOn, []cue{at("up\n", syscall.SIGINT), at("not yet\n", syscall.SIGINT)}, "work", "--agent", "a", "--prompt", "x", "--attempts", "1")
	newest(1, "judging")
	w.stopped(143, goesOn, []cue{at("build: running on the change", syscall.SIGTERM)}, "work", "--continue", w.id())
	newest(1, "judging")
	// The second one does not wait for what the first one is to end, and carboy ends by it.
	const once = "the next signal ends carboy at once\n"
	w.stopped(143, once, []cue{stuck("build: running on the change", syscall.SIGINT), at(once, syscall.SIGTERM)}, "work", "--continue", w.id())
	newest(1, "judging")
	w.stopped(either, once, []cue{stuck("build: running on the change", syscall.SIGINT, syscall.SIGTERM)}, "work", "--continue", w.id())
	newest(1, "judging")
	if err := os.WriteFile(filepath.Join(w.home, "ws/quick"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	w.stopped(129, goesOn, []cue{at("waiting for a person", syscall.SIGHUP)}, "work", "--continue", w.id(), "--max-attempts", "2", "--wait", "1h")
	newest(1, "recorded")
	var shown struct{ State, Outcome string }
	out, msg, code := w.carboy("work", "show", "--json", w.id())
	if err := json.Unmarshal([]byte(out), &shown); err != nil || code != 0 || shown.State != "over" || shown.Outcome != "escalated" {
		t.Errorf("work show: %v %d %s\n%s", err, code, msg, out)
	}
	if out, msg, code := w.carboy("audit", "verify"); code != 0 {
		t.Errorf("audit verify: %d\n%s%s", code, out, msg)
	}
}

// TestWorkAdvice: what people are told of work that can't go on by itself.
func TestWorkAdvice(t *testing.T) {
	for _, x := range []struct {
		err  error
		code int
		tip  string
	}{
		{fmt.Errorf("work x: %w", carboy.ErrNoWork), 1, "carboy work list"},
		{fmt.Errorf("work x: %w", carboy.ErrWorkLocked), 14, "wait until"},
		{fmt.Errorf("work x: %w", carboy.ErrLedger), 13, "begin anew"},
		{&carboy.StoppedError{Work: "01x", Signal: syscall.SIGTERM, Err: carboy.ErrGateLocked}, 143, "--continue 01x"},
		{&carboy.StoppedError{Signal: syscall.SIGINT, Err: carboy.ErrInterrupted}, 130, ""},
		{carboy.ErrNoCatalog, 1, "carboy gate init"},
	} {
		err := workAdvice(x.err)
		if code := exitcode.OfError(exitcode.Gates, err); code != x.code || !strings.Contains(advice(err), x.tip) || (advice(err) == "") != (x.tip == "") {
			t.Errorf("%v: code %d, %v: %q", x.err, code, err, advice(err))
		}
	}
	facts, _ := json.Marshal(map[string]any{"lost": []string{"pkg.Test"}})
	k := &carboy.WorkAccount{
		ID: "01x", State: carboy.WorkOver, Outcome: gate.Escalated, Spent: true, Number: 3, Limit: 3, Verdict: "01v", Run: "01r",
		Failing: []*gate.Result{{Kind: "trace", Findings: []gate.Finding{{ID: "x"}}}, {Name: "t", Kind: "tests", Facts: facts}},
	}
	all := strings.Join(nextSteps(k), "\n")
	for _, want := range []string{"--continue 01x --max-attempts 6 ", "accept --as NAME --key FILE 01v ", "accept --as NAME --key FILE --lost-tests 01v ", "override --reason TEXT 01v "} {
		if !strings.Contains(all, want) {
			t.Errorf("it lacks %q:\n%s", want, all)
		}
	}
	// Of an attempt of which nothing is known there is no verdict to override.
	k.Verdict, k.Failing, k.Number = "", nil, maxAttempts
	if all := strings.Join(nextSteps(k), "\n"); strings.Contains(all, "override") || strings.Contains(all, "--max-attempts") {
		t.Error(all)
	}
}
