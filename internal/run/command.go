package run

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/phases"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run/plan"
)

// memoryPoll is the interval between readings of the bottle's memory. The kernel inside
// enforces no limit of its own.
const memoryPoll = 20 * time.Millisecond

// runCommand starts the command and waits for its end or for a limit. The
// result has no reason when the command was never started.
func (s *Session) runCommand(ctx context.Context) (receipt.Exit, error) {
	if err := s.openOwnStreams(); err != nil {
		return receipt.Exit{}, err
	}
	std := s.std
	if err := s.run.Start(ctx, s.socket); err != nil {
		return receipt.Exit{}, err
	}
	s.began = time.Now()
	s.intr.enter(starting)
	p, err := s.beginCommand(ctx)
	std.started()
	phases.Mark("command started")
	switch {
	case errors.Is(err, bottle.ErrNotFound), errors.Is(err, bottle.ErrNotExecutable):
		return failure(err), err
	case err != nil && ctx.Err() != nil:
		// It may have begun before its user went away.
		return s.stop(receipt.Killed, "", ctx.Err()), nil
	case err != nil:
		return receipt.Exit{}, err
	}
	s.commandMu.Lock()
	s.commandRuns = p
	s.commandMu.Unlock()
	if s.thawed && s.o.Terminal {
		s.redraw() // its screen is a new one
	}
	s.intr.enter(running)
	s.events.send(plan.Event{Kind: "started", Text: "run " + string(s.run.ID())})
	s.openExecs()
	exit, err := s.wait(ctx, p)
	s.closeExecs()
	s.Rec.Duration = s.run.Elapsed()
	return exit, err
}

// openOwnStreams opens the command's streams, once.
func (s *Session) openOwnStreams() (err error) {
	if s.std == nil {
		s.std, err = s.openStreams(ends{stdin: s.o.Stdin, stdout: s.o.Stdout, stderr: s.o.Stderr, terminal: s.o.Terminal, files: s.o.Build != nil && s.o.Build.Data, leave: s.destroy})
		if err == nil {
			s.audience.keys = s.std.ptmx
			if s.std.ptmx != nil {
				s.audience.screen = &s.std.screen
			}
			s.std.audience = &s.audience
		}
	}
	return err
}

func (s *Session) beginCommand(ctx context.Context) (bottle.Process, error) {
	if s.thawed {
		return s.bottle.(bottle.Freezer).Thawed(ctx)
	}
	return s.bottle.Start(ctx, &bottle.Command{
		Args: s.o.Command, Env: s.env, Dir: s.Dir(), Terminal: s.o.Terminal,
		Stdin: s.std.in, Stdout: s.std.out, Stderr: s.std.err,
	})
}

// ended is the result of waiting for the command.
type ended struct {
	status bottle.Status
	err    error
}

// endOf returns a channel that gets p's end, once.
func endOf(p bottle.Process) <-chan ended {
	over := make(chan ended, 1)
	go func() { // ends with the command or the bottle
		st, err := p.Wait(context.Background())
		over <- ended{st, err}
	}()
	return over
}

func (s *Session) wait(ctx context.Context, p bottle.Process) (receipt.Exit, error) {
	over := endOf(p)
	clock := time.NewTimer(s.Limits.Timeout)
	defer clock.Stop()
	mctx, cancel := context.WithCancel(ctx)
	defer cancel()
	meter := s.watchMemory(mctx)
	crowd := s.watchPids(mctx)
	_, softDisk := s.c.Backend.Capabilities().Lacks(bottle.CapDiskLimit)
	interrupts := 0
	for {
		select {
		case e := <-over:
			return s.exitOf(e)
		case <-ctx.Done():
			return s.stop(receipt.Killed, "", ctx.Err()), nil
		case <-s.stopping:
			return s.stop(receipt.Killed, "", nil), nil
		case <-s.freezing:
			return s.stop(receipt.Frozen, "", nil), nil
		case <-clock.C:
			return s.stop(receipt.Timeout, "timeout", nil), nil
		case <-crowd:
			return s.stop(receipt.Pids, "pids", nil), nil
		case <-s.budget.full:
			return s.stop(receipt.Output, "output", nil), nil
		case m := <-meter:
			if m.err != nil {
				return s.stop(receipt.Killed, "", fmt.Errorf("the bottle's memory can't be read: %w", m.err)), nil
			}
			s.notePeak(m.use)
			if m.use.Memory > s.Limits.Memory {
				return s.stop(receipt.Memory, "memory", nil), nil
			}
			if softDisk && m.use.Disk > s.Limits.Disk {
				return s.stop(receipt.Killed, "disk", errors.New("what the bottle wrote passed its limit")), nil
			}
		case sig := <-s.intr.command:
			if interrupts++; interrupts > 1 {
				return s.stop(receipt.Killed, "", nil), nil
			}
			s.events.send(plan.Event{Kind: "interrupt", Text: "interrupted; once more destroys the bottle"})
			if n, ok := sig.(syscall.Signal); ok {
				// A bottle that hangs does not answer; what comes next must
				// still be heard. Ends with the bottle.
				go p.Signal(n, true)
			}
		}
	}
}

// reading is a bottle's usage, or the error of reading it.
type reading struct {
	use bottle.Usage
	err error
}

// unreadFor bounds how long a bottle may run while its memory can't be read. A
// bottle that is ending can't be read either, but that is over sooner.
const unreadFor = 10 * time.Second

// watchMemory reads the usage of the session's bottle until ctx ends.
func (s *Session) watchMemory(ctx context.Context) <-chan reading { return watchUsage(ctx, s.bottle) }

// watchUsage reads a bottle's usage until ctx ends. When reading has failed for too long, it
// sends the error as its last reading.
func watchUsage(ctx context.Context, b bottle.Bottle) <-chan reading {
	raw := make(chan reading)
	go func() { // ends with ctx or, when a reading hangs, with the bottle
		for ctx.Err() == nil {
			u, err := b.Usage()
			select {
			case raw <- reading{u, err}:
			case <-ctx.Done():
				return
			}
			time.Sleep(memoryPoll)
		}
	}()
	out := make(chan reading)
	go func() { // ends with ctx or the last reading
		late := time.NewTimer(unreadFor)
		defer late.Stop()
		var r reading
		why := context.DeadlineExceeded
		for {
			select {
			case <-ctx.Done():
				return
			case <-late.C:
				r = reading{err: why}
			case r = <-raw:
				if r.err != nil {
					why = r.err
					continue
				}
				late.Reset(unreadFor)
			}
			select {
			case out <- r:
			case <-ctx.Done():
			}
			if r.err != nil {
				return
			}
		}
	}()
	return out
}

// watchPids reports that the limit of processes was met, where that ends the run.
func (s *Session) watchPids(ctx context.Context) <-chan struct{} {
	if !s.o.EndAtPids {
		return nil
	}
	met := make(chan struct{})
	go func() { // ends with ctx or, when a question hangs, with the bottle
		for ctx.Err() == nil {
			if r, err := s.bottle.Refusals(ctx); err == nil && r.Pids != 0 {
				close(met)
				return
			}
			select {
			case <-time.After(memoryPoll):
			case <-ctx.Done():
			}
		}
	}()
	return met
}

func (s *Session) notePeak(u bottle.Usage) {
	s.peak.Memory = max(s.peak.Memory, u.Memory)
	s.peak.Disk = max(s.peak.Disk, u.Disk)
}

// askIn bounds a question to a bottle that is about to end.
const askIn = 2 * time.Second

// quietHits notes the limits that refused something inside without ending the run. It
// must be called while the bottle lives.
func (s *Session) quietHits(run context.Context) {
	ctx, cancel := s.ending(run, askIn)
	defer cancel()
	select {
	case m := <-s.watchMemory(ctx):
		s.notePeak(m.use)
	case <-s.bottle.Done():
	case <-ctx.Done():
	}
	hit := func(h receipt.Hit) {
		for i := range s.Rec.Limits.Hit {
			if s.Rec.Limits.Hit[i].Limit == h.Limit {
				s.Rec.Limits.Hit[i].Count = max(s.Rec.Limits.Hit[i].Count, h.Count)
				return
			}
		}
		s.Rec.Limits.Hit = append(s.Rec.Limits.Hit, h)
	}
	if r, err := s.bottle.Refusals(ctx); err == nil && r.Pids > 0 {
		hit(receipt.Hit{Limit: "pids", Count: r.Pids, Detail: "processes could not be started: the limit was reached"})
	}
	// The file grows in steps; this near to the end a write has failed.
	if s.peak.Disk >= s.Limits.Disk-s.Limits.Disk/50 {
		hit(receipt.Hit{Limit: "disk", Detail: "the disk inside was full"})
	}
}

// bottleDied reports whether the bottle's kernel is gone, by asking it: so a command that
// was killed is told from one that died with its bottle.
func (s *Session) bottleDied() bool {
	ctx, cancel := context.WithTimeout(context.Background(), askIn)
	defer cancel()
	_, err := s.bottle.Refusals(ctx)
	return err != nil
}

func (s *Session) exitOf(e ended) (receipt.Exit, error) {
	if e.err != nil {
		err := fmt.Errorf("wait for the command: %w", e.err)
		return endedBy(receipt.Failed, err.Error()), err
	}
	if e.status.Signal == unix.SIGKILL && s.bottleDied() {
		err := errors.New("the bottle died")
		return endedBy(receipt.Failed, err.Error()), err
	}
	if sig := e.status.Signal; sig != 0 {
		return receipt.Exit{Code: exitcode.Signal(sig), Reason: receipt.Signalled, Signal: unix.SignalName(sig)}, nil
	}
	return receipt.Exit{Code: e.status.Code & 0xff, Reason: receipt.Exited}, nil
}

// stop returns the exit of a run that did not end by itself. The bottle still holds
// the changes; takeChanges pauses it at once.
func (s *Session) stop(why receipt.Reason, limit string, cause error) receipt.Exit {
	x := endedBy(why, "")
	if cause != nil {
		x.Error = cause.Error()
	}
	if limit != "" {
		s.Rec.Limits.Hit = append(s.Rec.Limits.Hit, receipt.Hit{Limit: limit, Count: 1, Detail: limitDetail[limit]})
		s.events.send(plan.Event{Kind: "limit", Text: limitDetail[limit]})
	}
	return x
}

var limitDetail = map[string]string{
	"timeout": "the wall clock ran out; the command was stopped",
	"memory":  "the bottle used more memory than its limit; the command was stopped",
	"pids":    "the command met its limit of processes; it was stopped",
	"disk":    "the bottle wrote more than its limit; the command was stopped",
	"output":  "the command wrote more output than its limit; it was stopped",
}
