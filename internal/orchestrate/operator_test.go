package orchestrate

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/issues"
)

// TestCancel: the operator ends a turn that is under way; the pull request stays, and what
// people say afterwards begins anew.
func TestCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.issue()
	w.settled(n, 1)
	begun := make(chan struct{})
	w.bottles.plan = func(ctx context.Context, turn Turn, _ *TurnResult) error {
		if strings.Contains(turn.Prompt, "More.") {
			close(begun)
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	w.repo.Comment(2, "ada", "More.")
	w.hook("issue_comment", 2, true)
	<-begun
	for range 2 { // the second changes nothing
		if err := w.o.Cancel(ctx, w.key(n)); err != nil {
			t.Fatal(err)
		}
	}
	w.waits(n, "the end", destroyed)
	if len(w.bottles.destroyed) != 1 || len(w.bottles.merges) != 0 {
		t.Errorf("%v, %v", w.bottles.destroyed, w.bottles.merges)
	}
	if p := w.repo.Pulls(); len(p) != 1 || !p[0].Open {
		t.Errorf("the pull request: %+v", p)
	}
	if err := w.o.Cancel(ctx, w.key(99)); !errors.Is(err, issues.ErrMissing) {
		t.Errorf("an issue that is not known: %v", err)
	}
}

// TestRetry: the operator gives an agent another turn, once, and begins anew after a cancel.
func TestRetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.issue()
	w.settled(n, 1)
	if err := w.o.Retry(ctx, w.key(n)); err != nil {
		t.Fatal(err)
	}
	w.settled(n, 2)
	if turns := w.bottles.turns(); len(turns) != 2 || !strings.Contains(turns[1].Prompt, "The operator asks you to go on") {
		t.Errorf("%+v", turns)
	}
	if err := w.o.Cancel(ctx, w.key(n)); err != nil {
		t.Fatal(err)
	}
	w.waits(n, "the end", destroyed)
	if err := w.o.Retry(ctx, w.key(n)); err != nil {
		t.Fatal(err)
	}
	w.settled(n, 3)
	if err := w.o.Retry(ctx, w.key(99)); !errors.Is(err, issues.ErrMissing) {
		t.Errorf("an issue that is not known: %v", err)
	}
}
