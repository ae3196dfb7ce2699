// Package tui is the terminal where a person answers what waits in the queue.
//
// What it promises:
//
//   - An answer is for what stands on the screen: it names the digest of what was
//     drawn, and keys do nothing until that has stood there for a moment, so that a
//     key typed just as the list changes meets no other proposal.
//   - What comes and goes moves nothing: the line that is pointed at stays pointed at,
//     and stays on the screen when it is answered elsewhere, until one leaves it.
//   - Nothing is approved by one key, nor what [supervise.Detail] warns of by two.
//   - Only text that is visible is drawn. The terminal is as before afterwards, also
//     after a signal and a crash.
//
// Start reading at [Run], then at model.press.
package tui

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"

	"github.com/carboy/carboy/internal/supervise"
)

// Queue is what the terminal needs of the user's queue. It is called from several
// goroutines.
type Queue interface {
	List(context.Context, supervise.Query) (supervise.Listing, error)
	Find(ctx context.Context, prefix string) (supervise.Entry, error)
	Answer(context.Context, supervise.Reply) (supervise.Answer, error)
	Watch(context.Context) <-chan struct{}
}

// Options are how a person sits before the queue. In and Out must be terminals.
type Options struct {
	In, Out *os.File
	// ASCII: the terminal shows nothing else. Color: its user wants colours.
	ASCII, Color bool
	Queue        Queue
}

// Run shows the queue until the person leaves (nil), the context ends (its error), or
// the terminal fails. Signals are the caller's: one that is to end it ends the context.
func Run(ctx context.Context, o Options) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	m := newModel(ctx, o.Queue, time.Now)
	m.style = style{ascii: o.ASCII, color: o.Color}
	m.changes = o.Queue.Watch(ctx)
	profile := colorprofile.Ascii
	if o.Color {
		profile = colorprofile.ANSI
	}
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithInput(o.In), tea.WithOutput(o.Out),
		// The caller ends ctx on a signal. Its own handler would then send to a loop that
		// is over, and wait for good.
		tea.WithoutSignalHandler(),
		// As in package pick: it neither starts tmux nor asks the terminal for what it
		// would answer too late.
		tea.WithColorProfile(profile), tea.WithEnvironment([]string{"TERM=xterm", "SSH_TTY=/dev/tty"})).Run()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, tea.ErrInterrupted):
		return context.Canceled
	}
	return fmt.Errorf("show the queue: %w", err)
}
