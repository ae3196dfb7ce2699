// Package tui shows the queue in a terminal, where a person answers its proposals.
//
// The package guarantees:
//
//   - An answer is for the proposal on the screen. It names the digest of what was drawn,
//     and keys have no effect until that was on the screen for a moment. So a key typed
//     while the list changes never answers another proposal.
//   - New and ended proposals move nothing. The selected line stays selected, and stays on
//     the screen after an answer elsewhere, until the person leaves it.
//   - One key approves nothing. Two keys approve nothing that [supervise.Detail] warns of.
//   - Only visible text is drawn. The terminal is as before afterwards, even after a signal
//     or a crash.
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

	"github.com/carboy/carboy/internal/prompt"
	"github.com/carboy/carboy/internal/supervise"
)

// Queue is the part of supervise.Queue that the terminal uses. Several goroutines call it.
type Queue interface {
	List(context.Context, supervise.Query) (supervise.Listing, error)
	Find(ctx context.Context, prefix string) (supervise.Entry, error)
	Answer(context.Context, supervise.Reply) (supervise.Answer, error)
	Watch(context.Context) <-chan struct{}
}

// Options configure [Run]. In and Out must be terminals.
type Options struct {
	In, Out *os.File
	// ASCII restricts the output to ASCII. Color turns colours on.
	ASCII, Color bool
	Queue        Queue
}

// Run shows the queue. It returns nil when the person leaves, the context's error when that
// ends, or an error of the terminal. The caller handles signals, by ending the context.
func Run(ctx context.Context, o Options) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	m := newModel(ctx, o.Queue, time.Now)
	m.style = style{ascii: o.ASCII, color: o.Color}
	m.changes = o.Queue.Watch(ctx)
	err := prompt.Start(ctx, m, o.In, o.Out, o.Color)
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
