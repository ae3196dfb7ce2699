package carboy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/ask"
	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottles"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/work"
)

// stepsOf are the steps of work, by their states.
func (p *project) stepsOf(id string) (out []work.AttemptState) {
	p.t.Helper()
	w := &work.Work{C: p.c.worker}
	if _, err := w.Read(p.c.judge.GateDir("work", id)); err != nil {
		p.t.Fatal(err)
	}
	for _, s := range w.Steps {
		out = append(out, s.State)
	}
	return out
}

// says calls f once what is written holds a text.
type says struct {
	mu   sync.Mutex
	b    bytes.Buffer
	text string
	f    func()
}

func (s *says) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b.Write(b)
	if s.f != nil && strings.Contains(s.b.String(), s.text) {
		s.f()
		s.f = nil
	}
	return len(b), nil
}

// TestWorkStops: a signal is the agent's while one runs, and stops the work after it; at
// any other time it stops what is waited for. Nothing of it is left for what comes later,
// and no attempt is lost or made twice.
func TestWorkStops(t *testing.T) {
	ctx := t.Context()
	p := worker(t, `trap 'touch caught; exit 3' INT; echo up; sleep 100 & wait`, licensed("GPL-3.0-only"))
	signals := make(chan os.Signal, 4)
	var stopped *work.StoppedError
	// To the agent.
	out := &says{text: "up\n", f: func() { signals <- syscall.SIGINT }}
	_, err := p.c.Work(ctx, work.WorkOptions{Agent: "a", Prompt: "x", Dir: p.ws, Attempts: 1, Stdout: out, Interrupt: signals, OnStop: func(s os.Signal) { t.Errorf("%s was not the agent's", s) }})
	if !errors.As(err, &stopped) || stopped.Work == "" || stopped.Signal != syscall.SIGINT {
		t.Fatalf("%v\n%s", err, out.b.String())
	}
	id := stopped.Work
	if s := p.stepsOf(id); !slices.Equal(s, []work.AttemptState{work.AttemptPending, work.AttemptRunning, work.AttemptJudging}) {
		t.Fatalf("after the agent: %v", s)
	}
	// Another process goes on with it.
	other, err := judge.LockFile(filepath.Join(p.c.judge.GateDir("work", id), work.WorkLock))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.c.Work(ctx, work.WorkOptions{Continue: id}); !errors.Is(err, work.ErrWorkLocked) || errors.Is(err, judge.ErrGateLocked) {
		t.Errorf("in another process: %v", err)
	}
	other.Close()
	// While another gate works on the directory, which is waited for.
	unlock, err := p.c.judge.GateLock(p.ws)
	if err != nil {
		t.Fatal(err)
	}
	var told []os.Signal
	waits := 0
	o := work.WorkOptions{
		Continue: id, Interrupt: signals, OnStop: func(s os.Signal) { told = append(told, s) },
		OnEvent: func(e plan.Event) {
			if strings.Contains(e.Text, "another gate") {
				waits++
				signals <- syscall.SIGTERM
			}
		},
	}
	if _, err = p.c.Work(ctx, o); !errors.As(err, &stopped) || stopped.Signal != syscall.SIGTERM || len(told) != 1 || waits != 1 {
		t.Fatalf("while another gate works: %v, told %v, %d waits", err, told, waits)
	}
	if s := p.stepsOf(id); len(s) != 3 {
		t.Errorf("while another gate works: %v", s)
	}
	// While a person is waited for, once that gate is over.
	o.OnEvent = func(e plan.Event) {
		if strings.Contains(e.Text, "another gate") {
			unlock()
		}
	}
	o.MaxAttempts, o.People = 3, ask.Options{Timeout: time.Hour, Waiting: func(ProposalEntry) { signals <- syscall.SIGHUP }}
	if _, err = p.c.Work(ctx, o); !errors.As(err, &stopped) || stopped.Signal != syscall.SIGHUP || len(told) != 2 {
		t.Fatalf("while a person is waited for: %v, told %v", err, told)
	}
	w := p.work(work.WorkOptions{Continue: id, Interrupt: signals})
	if w.Outcome != gate.Escalated || len(w.Attempts) != 1 || *w.Attempts[0].Exit != 3 || !strings.Contains(w.Why, "all 1 attempts") {
		t.Errorf("%+v", w)
	}
	if set, err := p.c.Changes(w.Run); err != nil {
		t.Error(err)
	} else if _, ok := set.Lookup("caught"); !ok {
		t.Error("the agent never got its signal")
	}
	if r, err := p.c.AuditVerify(ctx, ""); err != nil || r.Status != audit.Intact {
		t.Errorf("%+v %v", r, err)
	}
	// One that came before an agent could run is no agent's.
	o = work.WorkOptions{Agent: "a", Prompt: "x", Dir: p.ws, Attempts: 1, Interrupt: signals, OnAttempt: func(a work.Attempt) {
		if a.State == work.AttemptRunning {
			signals <- syscall.SIGINT
		}
	}}
	if _, err = p.c.Work(ctx, o); !errors.As(err, &stopped) {
		t.Fatal(err)
	}
	if s := p.stepsOf(stopped.Work); s[len(s)-1] != work.AttemptPending && s[len(s)-1] != work.AttemptJudging || len(signals) != 0 {
		t.Errorf("as the agent begins: %v, %d signals are left", s, len(signals))
	}
}

// TestStoppedError: what went wrong besides is told, wherever in an error it stands.
func TestStoppedError(t *testing.T) {
	full := errors.New("the disk is full")
	for _, x := range []struct {
		err  error
		want string
	}{
		{nil, ""}, {run.ErrInterrupted, ""}, {fmt.Errorf("a gate: %w", context.Canceled), ""},
		{errors.Join(fmt.Errorf("it never began: %w", run.ErrInterrupted), context.Canceled), ""},
		{full, ": the disk is full"},
		{errors.Join(run.ErrInterrupted, full), ": interrupted\nthe disk is full"},
		{fmt.Errorf("%w, %w", full, context.Canceled), ": the disk is full, context canceled"},
		{&bottles.AgentError{Agent: "a", Slug: "s"}, ": " + (&bottles.AgentError{Agent: "a", Slug: "s"}).Error()},
	} {
		if got := (&work.StoppedError{Work: "01x", Signal: syscall.SIGINT, Err: x.err}).Error(); got != "work 01x was stopped by a signal (interrupt)"+x.want {
			t.Errorf("%v: %q", x.err, got)
		}
	}
}

// TestStoppedBefore: work that is continued has its name before its steps are read.
func TestStoppedBefore(t *testing.T) {
	for _, x := range []struct {
		ref  string
		err  error
		want string
	}{
		{"01", work.ErrWorkLocked, "01x"}, {"01", work.ErrNoWork, ""}, {"", run.ErrInterrupted, ""},
	} {
		w := &work.Work{O: &work.WorkOptions{Continue: x.ref}, Id: "01x"}
		if got := w.Stopped(syscall.SIGINT, x.err).Work; got != x.want {
			t.Errorf("--continue %q, %v: %q, want %q", x.ref, x.err, got, x.want)
		}
	}
}

// TestRelay: a signal is for whoever listens at that moment, and for nobody after.
func TestRelay(t *testing.T) {
	signals := make(chan os.Signal)
	told := make(chan os.Signal, 4)
	r := &work.Relay{}
	ctx, end := r.Listen(t.Context(), signals, func(s os.Signal) { told <- s })
	agent, over := r.Begins()
	signals <- syscall.SIGINT
	if s := <-agent; s != syscall.SIGINT || r.Heard() != syscall.SIGINT || ctx.Err() != nil {
		t.Errorf("%v %v %v", s, r.Heard(), ctx.Err())
	}
	// It does not listen any more: whoever waits for it to end gets out.
	signals <- syscall.SIGTERM
	if s := <-told; s != syscall.SIGTERM || len(agent) != 0 {
		t.Error(s)
	}
	<-ctx.Done()
	over()
	signals <- syscall.SIGTERM // told again: a second one does not wait
	if s := <-told; s != syscall.SIGTERM || !errors.Is(context.Cause(ctx), run.ErrInterrupted) || r.Heard() != syscall.SIGINT {
		t.Error(s, context.Cause(ctx))
	}
	end()
}

// TestWorkUnjudgeable: what no tree can hold is an attempt that failed, of which the agent
// is told, and after which a person decides.
func TestWorkUnjudgeable(t *testing.T) {
	p := worker(t, `case "$1" in *stay*) mkdir -p sub/.git; echo x >sub/.git/HEAD;; *pipe:*) rm pipe;; *) mkfifo pipe;; esac`, licensed("MIT"))
	w := p.work(work.WorkOptions{})
	if w.Outcome != gate.Passed || len(w.Attempts) != 2 || w.Attempts[0].Failing != "tree(pipe)" || w.Attempts[0].Outcome != gate.Failed || !strings.Contains(w.Attempts[0].Feedback, "pipe: is a") {
		t.Fatalf("%+v", w)
	}
	w, err := p.c.Work(t.Context(), work.WorkOptions{Agent: "a", Prompt: "stay", Dir: p.ws, Attempts: 1})
	if err != nil || w.Outcome != gate.Escalated || w.Verdict != nil || w.Attempts[0].Failing != "tree(sub/.git/HEAD)" && w.Attempts[0].Failing != "tree(sub/.git)" {
		t.Fatalf("%+v %v", w, err)
	}
	a, err := p.c.WorkAccount(t.Context(), w.ID)
	if err != nil || a.State != work.WorkOver || a.Outcome != gate.Escalated || a.Verdict != "" {
		t.Errorf("%+v %v", a, err)
	}
	// Nor does it end when nothing could be taken out of its bottle.
	w = p.work(work.WorkOptions{Attempts: 1, OnAttempt: func(a work.Attempt) {
		if a.State == work.AttemptJudging {
			if err := os.RemoveAll(filepath.Join(p.c.host.Store.RunDir(a.Run), "upper")); err != nil {
				t.Error(err)
			}
		}
	}})
	if w.Outcome != gate.Escalated || len(w.Attempts) != 1 || w.Attempts[0].Failing != work.FailingLost || w.Attempts[0].Outcome != gate.Unavailable {
		t.Errorf("%+v", w)
	}
}

// TestWorkSpoiltBottle: an agent that leaves a bottle in which nothing begins has had its
// attempt, and the next one is made in a fresh bottle: no agent wedges its work so.
func TestWorkSpoiltBottle(t *testing.T) {
	p := worker(t, "true", map[string]string{
		"run":            "#!/bin/sh\ncase \"$1\" in *missing*) touch done;; *) rm run;; esac\n",
		"check.sh":       "[ -e done ] || { echo missing >&2; exit 1; }\n",
		gate.CatalogPath: "version: 1\nsignals:\n  - {name: one, kind: build, command: [sh, ./check.sh]}\n",
	})
	if err := os.Chmod(filepath.Join(p.ws, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.commit()
	file := filepath.Join(filepath.Dir(p.ws), ".config/carboy/bottles/default.md")
	if err := os.WriteFile(file, []byte("---\nagent_provider: {template: command, settings: {command: [./run, '{prompt}']}}\n---\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var told []string
	w := p.work(work.WorkOptions{OnEvent: func(e plan.Event) {
		if strings.Contains(e.Text, "is lost") {
			told = append(told, e.Text)
		}
	}})
	var failing []string
	for _, a := range w.Attempts {
		failing = append(failing, a.Failing)
	}
	if w.Outcome != gate.Passed || !slices.Equal(failing, []string{"one(exit)", work.FailingLost, ""}) || len(told) != 1 {
		t.Errorf("%s %q %s; told %q", w.Outcome, failing, w.Why, told)
	}
	if w.Attempts[0].Bottle == "" || w.Attempts[0].Bottle == w.Bottle {
		t.Errorf("the agent went on in bottle %q, where none can begin", w.Bottle)
	}
	if s := p.stepsOf(w.ID); slices.Index(s[1:], work.AttemptPending) < 0 || len(s) != 11 {
		t.Errorf("%v", s)
	}
}

// TestWorkNeverBegan: a start that fails is no attempt; nor is what nobody knows a failure
// that is the same as another.
func TestWorkNeverBegan(t *testing.T) {
	ctx := t.Context()
	p := worker(t, `touch done`, licensed("MIT"))
	file := filepath.Join(filepath.Dir(p.ws), ".config/carboy/bottles/default.md")
	was, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	say := func(mode string) {
		t.Helper()
		if err := os.WriteFile(file, bytes.Replace(was, []byte("---\n"), []byte("---\nworkspace: "+mode+"\n"), 1), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// What leaves no change to judge is refused before anything begins.
	var bad *fault.OptionError
	for _, mode := range []string{"bind", "none"} {
		say(mode)
		if _, err := p.c.Work(ctx, work.WorkOptions{Agent: "a", Prompt: "x", Dir: p.ws, NoPush: true}); !errors.As(err, &bad) || bad.Option != "workspace" {
			t.Errorf("%s: %v", mode, err)
		}
	}
	if dirs, err := store.Glob(p.c.judge.GateDir("work"), "*"); err != nil || len(dirs) != 0 {
		t.Errorf("work began: %v %v", dirs, err)
	}
	// So it is when the bottle's file is another, once the work has begun.
	say("copy")
	id := ""
	_, err = p.c.Work(ctx, work.WorkOptions{Agent: "a", Prompt: "x", Dir: p.ws, OnAttempt: func(a work.Attempt) {
		if id = a.Work; a.State == work.AttemptRunning {
			say("bind")
		}
	}})
	if !errors.As(err, &bad) || bad.Option != "workspace" {
		t.Fatal(err)
	}
	no := errors.New("a start that fails")
	say("overlay")
	for range 2 {
		if _, err := p.c.Work(ctx, work.WorkOptions{Continue: id, Confirm: func(*bottles.Preflight) error { return no }}); !errors.Is(err, no) {
			t.Fatal(err)
		}
	}
	w := p.work(work.WorkOptions{Continue: id})
	if w.Outcome != gate.Passed || len(w.Attempts) != 1 || w.Attempts[0].Number != 1 {
		t.Errorf("%+v", w)
	}
	if _, err := os.Stat(filepath.Join(p.ws, "done")); err == nil {
		t.Error("the agent wrote to the directory")
	}
	for _, x := range []struct {
		s    *bottles.Started
		want bool
	}{
		{nil, true}, {&bottles.Started{}, true},
		{&bottles.Started{Receipt: &receipt.Receipt{Exit: receipt.Exit{Reason: receipt.Failed}}}, true},
		{&bottles.Started{Receipt: &receipt.Receipt{Exit: receipt.Exit{Reason: receipt.Failed}, Started: new(time.Time)}}, false},
		{&bottles.Started{Receipt: &receipt.Receipt{Exit: receipt.Exit{Reason: receipt.Killed}, Started: new(time.Time)}}, false},
	} {
		if got := work.NeverBegan(x.s, no); got != x.want {
			t.Errorf("%+v: %t", x.s, got)
		}
	}
	for _, x := range []struct {
		s       *bottles.Started
		err     error
		stopped bool
		want    bool
	}{
		{nil, no, false, false}, {&bottles.Started{}, no, false, false},
		{&bottles.Started{Receipt: &receipt.Receipt{}}, no, false, true},
		{&bottles.Started{Receipt: &receipt.Receipt{}}, no, true, false},
		{&bottles.Started{Receipt: &receipt.Receipt{}}, fmt.Errorf("x: %w", bottle.ErrNotFound), true, true},
		{&bottles.Started{Receipt: &receipt.Receipt{}}, fmt.Errorf("x: %w", bottle.ErrNotExecutable), true, true},
	} {
		if got := work.Spoiled(x.s, x.err, x.stopped); got != x.want {
			t.Errorf("%+v, %v, %t: %t", x.s, x.err, x.stopped, got)
		}
	}
	lost := work.Attempt{Number: 3, State: work.AttemptRecorded, Outcome: gate.Unavailable, Failing: work.FailingLost}
	k := &work.Work{C: p.c.worker, O: &work.WorkOptions{}, Task: work.Task{Attempts: 3}, Steps: []work.Attempt{lost, lost, lost}}
	if r, err := k.Ended(ctx, lost); err != nil || r.Why != "all 3 attempts are spent" {
		t.Errorf("%+v %v", r, err)
	}
}
