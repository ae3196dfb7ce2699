package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/safetext"
)

// Outcome is the outcome of a scenario. The zero Outcome is not valid.
type Outcome string

// The outcomes.
const (
	Completed Outcome = "completed" // it ended by itself, with the expected code, within its limits
	failed    Outcome = "failed"    // Reason says how
	timedOut  Outcome = "timed_out" // its own time ran out
	Skipped   Outcome = "skipped"   // it was not run; Reason says why
)

// Reason names the reason why a scenario did not complete. Within version 1 words are only
// added.
type Reason string

// The reasons.
const (
	exitCode   Reason = "exit_code"   // another one than was expected
	signal     Reason = "signal"      // one ended it
	pidLimit   Reason = "pids"        // it met its limit of processes
	memLimit   Reason = "memory"      // of memory
	diskLimit  Reason = "disk"        // of what it may write
	outLimit   Reason = "output"      // of what it may print
	notStarted Reason = "not_started" // there is no such program, or it is none
	broken     Reason = "sandbox"     // the sandbox failed, or was not made
	declared   Reason = "declared"    // the file says that it is to be skipped
	offline    Reason = "offline"     // it needs a network, and none is given
	tooLarge   Reason = "too_large"   // it needs more than all together may have
	canceled   Reason = "canceled"    // the caller gave up before it began or ended
)

// limitReasons maps the limits, by the names that receipts use, to reasons. The first
// wins: a fork bomb that met its limit of processes has that reason, even if the clock
// ran out at the same moment.
var limitReasons = []Reason{pidLimit, memLimit, outLimit, diskLimit}

// Ended describes the end of a sandbox's run.
type Ended struct {
	Run string // its id
	// How is the reason of the receipt's exit: exited, signalled, timeout, …
	How    string
	Code   int
	Signal string
	Error  string // carboy's own
	// NotStarted says that the program could not be executed at all.
	NotStarted bool
	// Hits lists the limits that it met, also those that only refused something.
	Hits     []string
	Duration time.Duration

	Facts, Dropped, Unkept uint64
	// Incomplete says what else is missing from the trace; NoTrace: all of it.
	Incomplete string
	NoTrace    bool
	Trace      string // SHA-256 of the trace's file
	Image      string // digest of the image that was its root
	Isolation  string
}

// Runner makes sandboxes. Run is called from several goroutines.
type Runner interface {
	// Run runs s in a fresh sandbox and adds the facts of its kernel and its gateway to
	// seen. An error means that no sandbox was made.
	Run(ctx context.Context, s *Scenario, seen *Slices) (*Ended, error)
}

// Result holds one scenario and its outcome.
type Result struct {
	Name     string   `json:"name"`
	Command  []string `json:"command"`
	Outcome  Outcome  `json:"outcome"`
	Reason   Reason   `json:"reason,omitempty"`
	Detail   string   `json:"detail,omitempty"`
	Expected int      `json:"expected_exit_code"`
	// Code is nil if it did not exit by itself.
	Code   *int   `json:"exit_code,omitempty"`
	Signal string `json:"signal,omitempty"`
	// Elapsed is the time from its start to its end.
	Elapsed time.Duration `json:"elapsed_ns"`
	// Order numbers the scenarios from 1 in the order in which they ended; 0: it was not
	// run.
	Order int    `json:"ended_as"`
	Run   string `json:"run,omitempty"`

	Facts       uint64 `json:"facts"`
	Dropped     uint64 `json:"dropped"`
	Unkept      uint64 `json:"unkept"`
	Incomplete  string `json:"incomplete,omitempty"`
	TraceDigest string `json:"trace_sha256,omitempty"`
	ImageDigest string `json:"image_digest,omitempty"`

	traced    bool
	isolation string
}

// whole reports whether nothing of the trace is missing.
func (r *Result) whole() bool {
	return r.traced && r.Dropped == 0 && r.Unkept == 0 && r.Incomplete == ""
}

// Together bounds the resources of scenarios that run in parallel.
type Together struct {
	Memory, Pids int64 // both above zero
	Runs         int   // at a time; 0: as many as fit
	// EachMemory and EachPids bound scenarios that set no bounds of their own.
	EachMemory, EachPids int64
	// NoNetwork skips the scenarios that need a network.
	NoNetwork bool
}

// Event reports that a scenario begins or has ended.
type Event struct {
	Name string
	// Result is nil if the scenario begins.
	Result *Result
}

// Run runs all scenarios of s, in parallel as far as they fit. It returns a result for
// each, in the set's order, and the observations of all. It returns when all have ended.
// When ctx ends, it ends the running ones and skips the others. progress gets one event at
// a time; it may be nil.
func Run(ctx context.Context, s *Set, t Together, r Runner, shells Shells, progress func(Event)) ([]Result, *Slices) {
	all := newSlices(shells)
	results := make([]Result, len(s.Scenarios))
	if s.Memory > 0 {
		t.Memory = s.Memory
	}
	if s.Pids > 0 {
		t.Pids = s.Pids
	}
	room := &room{Together: t, runs: t.Runs}
	var mu sync.Mutex
	order := 0
	tell := func(e Event) {
		if progress != nil {
			progress(e)
		}
	}
	var wg sync.WaitGroup
	for i := range s.Scenarios {
		x := s.Scenarios[i]
		x.fill(&t)
		if reason, detail := x.unfit(&t); reason != "" {
			results[i] = x.skipped(reason, detail)
			mu.Lock()
			tell(Event{x.Name, &results[i]})
			mu.Unlock()
			continue
		}
		if err := room.take(ctx, &x); err != nil {
			results[i] = x.skipped(canceled, "the tracing was given up before it began")
			mu.Lock()
			tell(Event{x.Name, &results[i]})
			mu.Unlock()
			continue
		}
		wg.Add(1)
		go func() { // ends with the scenario, whose time is bounded
			defer wg.Done()
			defer room.give(&x)
			mu.Lock()
			tell(Event{Name: x.Name})
			mu.Unlock()
			seen := newSlices(shells)
			res := x.run(ctx, r, seen)
			mu.Lock()
			defer mu.Unlock()
			order++
			res.Order = order
			results[i] = res
			all.merge(seen, i)
			tell(Event{x.Name, &results[i]})
		}()
	}
	wg.Wait()
	all.names = nil
	for i := range s.Scenarios {
		all.names = append(all.names, s.Scenarios[i].Name)
	}
	return results, all
}

// fill completes s with the defaults.
func (s *Scenario) fill(t *Together) {
	if s.Timeout == 0 {
		s.Timeout = defaultTimeout
	}
	if s.Memory == 0 {
		s.Memory = min(t.EachMemory, t.Memory)
	}
	if s.Pids == 0 {
		s.Pids = min(t.EachPids, t.Pids)
	}
}

func (s *Scenario) unfit(t *Together) (Reason, string) {
	switch {
	case s.Skip != "":
		return declared, s.Skip
	case t.NoNetwork && len(s.Network) > 0:
		return offline, "it needs " + strings.Join(s.Network, ", ") + ", and no network is given"
	case s.Memory > t.Memory:
		return tooLarge, fmt.Sprintf("it needs %d bytes of memory, and all together may have %d", s.Memory, t.Memory)
	case s.Pids > t.Pids:
		return tooLarge, fmt.Sprintf("it needs %d processes, and all together may have %d", s.Pids, t.Pids)
	}
	return "", ""
}

func (s *Scenario) result() Result {
	return Result{Name: s.Name, Command: s.Command, Expected: s.Expected}
}

func (s *Scenario) skipped(why Reason, detail string) Result {
	r := s.result()
	r.Outcome, r.Reason, r.Detail = Skipped, why, safetext.String(detail, maxDetail)
	return r
}

const maxDetail = 500

// run runs one scenario. An error affects only its own result.
func (s *Scenario) run(ctx context.Context, r Runner, seen *Slices) (res Result) {
	res = s.result()
	began := time.Now()
	defer func() {
		if p := recover(); p != nil {
			res.Outcome, res.Reason, res.Detail = failed, broken, safetext.String(fmt.Sprintf("carboy failed: %v", p), maxDetail)
		}
	}()
	e, err := r.Run(ctx, s, seen)
	if err != nil || e == nil {
		res.Outcome, res.Reason, res.Elapsed = failed, broken, time.Since(began)
		if err == nil {
			err = errors.New("no sandbox was made")
		}
		if ctx.Err() != nil {
			res.Reason = canceled
		}
		res.Detail = safetext.String(err.Error(), maxDetail)
		return res
	}
	res.judge(s, e, ctx.Err() != nil)
	return res
}

// judge sets the outcome of a scenario whose sandbox was made.
func (r *Result) judge(s *Scenario, e *Ended, given bool) {
	r.Run, r.Elapsed, r.Signal = e.Run, e.Duration, e.Signal
	r.Facts, r.Dropped, r.Unkept, r.Incomplete = e.Facts, e.Dropped, e.Unkept, safetext.String(e.Incomplete, maxDetail)
	r.TraceDigest, r.ImageDigest, r.traced, r.isolation = e.Trace, e.Image, !e.NoTrace, e.Isolation
	if e.How == "exited" {
		r.Code = &e.Code
	}
	r.Outcome = failed
	for _, l := range limitReasons {
		if e.How == string(l) || slices.Contains(e.Hits, string(l)) {
			r.Reason, r.Detail = l, limitDetail[l]
			return
		}
	}
	switch e.How {
	case "exited":
		if e.Code == s.Expected {
			r.Outcome = Completed
			return
		}
		r.Reason, r.Detail = exitCode, fmt.Sprintf("it ended with code %d, not %d", e.Code, s.Expected)
	case "signalled":
		r.Reason, r.Detail = signal, "it was ended by "+safetext.String(e.Signal, 20)
	case "timeout":
		r.Outcome, r.Detail = timedOut, fmt.Sprintf("after %v, of %v", e.Duration.Round(time.Millisecond), s.Timeout)
	default:
		r.Reason, r.Detail = broken, safetext.String(strings.TrimSpace(e.How+" "+e.Error), maxDetail)
		switch {
		case e.NotStarted:
			r.Reason, r.Detail = notStarted, safetext.String(e.Error, maxDetail)
		case given:
			r.Reason = canceled
		}
	}
}

var limitDetail = map[Reason]string{
	pidLimit:  "it met its limit of processes and was stopped",
	memLimit:  "it used more memory than its limit and was stopped",
	outLimit:  "it printed more than its limit and was stopped",
	diskLimit: "it filled the disk that it may write to",
}

// room holds the resources left for parallel scenarios. They start in order, so that
// small ones do not keep a large one waiting.
type room struct {
	Together
	mu   sync.Mutex
	used int
	runs int
	wake chan struct{} // closed when something was given back
}

func (m *room) take(ctx context.Context, s *Scenario) error {
	for {
		m.mu.Lock()
		if ctx.Err() == nil && m.Memory >= s.Memory && m.Pids >= s.Pids && (m.runs == 0 || m.used < m.runs) {
			m.Memory, m.Pids, m.used = m.Memory-s.Memory, m.Pids-s.Pids, m.used+1
			m.mu.Unlock()
			return nil
		}
		if m.wake == nil {
			m.wake = make(chan struct{})
		}
		wake := m.wake
		m.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *room) give(s *Scenario) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Memory, m.Pids, m.used = m.Memory+s.Memory, m.Pids+s.Pids, m.used-1
	if m.wake != nil {
		close(m.wake)
		m.wake = nil
	}
}
