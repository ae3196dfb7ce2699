package carboy

import (
	"context"
	"errors"
	"testing"

	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
)

// TestControl: a live run answers its user, and ends with its changes when asked.
func TestControl(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	started := make(chan struct{})
	type result struct {
		r   *receipt.Receipt
		err error
	}
	done := make(chan result, 1)
	go func() {
		r, _, err := w.sh("echo kept > k; sleep 60", func(o *plan.Options) {
			o.OnEvent = func(e plan.Event) {
				if e.Kind == "started" {
					close(started)
				}
			}
		})
		done <- result{r, err}
	}()
	<-started
	m, err := w.c.Find(ctx, "", w.ws)
	if err != nil {
		t.Fatal(err)
	}
	st, err := w.c.Status(ctx, m)
	if err != nil || st.ID != m.ID || st.Schema != store.Schema("status") || st.Version != run.ControlVersion {
		t.Errorf("status: %+v, %v", st, err)
	}
	if err := w.c.Stop(ctx, m); err != nil {
		t.Fatal(err)
	}
	x := <-done
	if x.err != nil || x.r.Exit.Reason != receipt.Killed || x.r.Changes == nil {
		t.Errorf("stopped: %v, %+v", x.err, x.r.Exit)
	}
	if m, err = w.c.Find(ctx, "", w.ws); err != nil {
		t.Fatal(err)
	}
	if err := w.c.Stop(ctx, m); !errors.Is(err, run.ErrNotLive) {
		t.Errorf("stopping a run that is over: %v", err)
	}
}
