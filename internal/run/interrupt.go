package run

import (
	"context"
	"errors"
	"os"
	"sync/atomic"

	"github.com/carboy/carboy/internal/run/plan"
)

// ErrInterrupted matches the error of a run that a person gave up before its
// command ran, or while its changes were collected.
var ErrInterrupted = errors.New("interrupted")

// phase is the part of a run that an interrupt ends.
type phase int32

const (
	preparing phase = iota // there is no command yet: an interrupt gives up
	starting               // there may be one: an interrupt is its, the next gives up
	running                // the command's to handle, see session.wait
	ending                 // changes are taken home, output is passed on
)

// interrupts passes signals to the command or ends the run. Every wait of a run ends with
// its context, so that a person can leave even if a bottle, a disk or a reader of the
// output hangs.
type interrupts struct {
	phase   atomic.Int32
	command chan os.Signal
	stop    context.CancelCauseFunc
	events  *events
	early   int // interrupts while starting
	late    int // and while ending
}

// listen starts the relay and returns the context of the run. It ends with the
// returned function.
func (s *Session) listen(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.intr = &interrupts{command: make(chan os.Signal, 8), stop: cancel, events: s.events}
	done := make(chan struct{})
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			select {
			case sig := <-s.o.Interrupt:
				s.intr.take(sig)
			case <-done:
				return
			}
		}
	}()
	return ctx, func() { close(done); <-over; cancel(nil) }
}

func (i *interrupts) take(sig os.Signal) {
	switch phase(i.phase.Load()) {
	case preparing:
		i.stop(ErrInterrupted)
	case starting:
		if i.early++; i.early > 1 {
			i.stop(ErrInterrupted)
			return
		}
		i.command <- sig // there is room
	case running:
		select {
		case i.command <- sig:
		default:
		}
	case ending:
		// People press it more than once: the first says what it would cost.
		if i.late++; i.late == 1 {
			i.events.send(plan.Event{Kind: "interrupt", Text: "ending; interrupt once more to leave at once, without the changes"})
			return
		}
		i.stop(ErrInterrupted)
	}
}

// gaveUp reports whether run is over because of an interrupt.
func (i *interrupts) gaveUp(run context.Context) bool {
	return errors.Is(context.Cause(run), ErrInterrupted)
}

func (i *interrupts) enter(p phase) { i.phase.Store(int32(p)) }
