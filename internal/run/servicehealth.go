package run

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/receipt"
)

// Bounds of the wait for a service without a healthcheck.
const (
	readyIn   = 2 * time.Minute
	readyLook = 100 * time.Millisecond
	portIn    = 2 * time.Second
	// patience is the time after which people are told again what is waited for.
	patience = 10 * time.Second
)

// errEnded means that a service ended while it was waited for.
var errEnded = errors.New("it has ended")

// await blocks until the service is ready. An error says why it is not.
func (x *service) await(ctx context.Context) error {
	slow := time.NewTicker(patience)
	defer slow.Stop()
	began := time.Now()
	// pause waits until the next try.
	pause := func(d time.Duration) error {
		next := time.NewTimer(d)
		defer next.Stop()
		for {
			select {
			case <-next.C:
				return nil
			case <-x.over:
				return x.whyEnded()
			case <-ctx.Done():
				return ctx.Err()
			case <-slow.C:
				text := fmt.Sprintf("is not ready after %.0f s", time.Since(began).Seconds())
				if last := x.out.last(); len(last) > 0 {
					text += ": " + x.s.Redactor.String(last[len(last)-1])
				}
				x.tell(text)
			}
		}
	}
	switch {
	case x.Health != nil:
		x.tell("waiting until it is healthy")
		return x.awaitHealthy(ctx, began, pause)
	case len(x.Ports) > 0:
		x.tell(fmt.Sprintf("waiting for port %d", x.Ports[0]))
		return x.awaitPort(ctx, began, pause)
	}
	x.health(receipt.Started)
	return nil
}

// whyEnded says how a service ended that should have gone on.
func (x *service) whyEnded() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.rec.Exit == nil {
		return errEnded
	}
	return fmt.Errorf("%w: %s", errEnded, exitText(*x.rec.Exit))
}

func (x *service) awaitPort(ctx context.Context, began time.Time, pause func(time.Duration) error) error {
	for {
		dctx, cancel := context.WithTimeout(ctx, portIn)
		c, err := x.v.gw.DialBottle(dctx, x.Ports[0])
		cancel()
		if err == nil {
			c.Close()
			x.health(receipt.Listening)
			return nil
		}
		if time.Since(began) > readyIn {
			x.health(receipt.Unhealthy)
			return fmt.Errorf("nothing listens on its port %d after %s: a healthcheck with start_period waits for longer", x.Ports[0], readyIn)
		}
		if err := pause(readyLook); err != nil {
			return err
		}
	}
}

func (x *service) awaitHealthy(ctx context.Context, began time.Time, pause func(time.Duration) error) error {
	for failed := 0; ; {
		why := x.probe(ctx)
		if why == nil {
			x.health(receipt.Healthy)
			return nil
		}
		if time.Since(began) >= x.Health.StartPeriod {
			failed++
		}
		if failed >= x.Health.Retries {
			x.health(receipt.Unhealthy)
			return fmt.Errorf("it is not healthy after %.1f s: its healthcheck %w", time.Since(began).Seconds(), why)
		}
		if err := pause(x.Health.Interval); err != nil {
			return err
		}
	}
}

// probe runs the healthcheck once. nil means that the service is healthy.
func (x *service) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, x.Health.Timeout)
	defer cancel()
	out, w, err := newOutput(nil)
	if err != nil {
		return err
	}
	p, err := x.begin(ctx, "healthcheck of "+x.Name, x.Health.Test, w, true)
	w.Close()
	if err != nil {
		out.close()
		return fmt.Errorf("can't be started: %w", err)
	}
	st, err := p.Wait(ctx)
	if err != nil {
		p.Signal(unix.SIGKILL, true)
		p.Signal(unix.SIGKILL, false)
	}
	out.close()
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("took longer than %s", x.Health.Timeout)
	case err != nil:
		return err
	case st.ExitCode() == 0:
		return nil
	}
	text := fmt.Sprintf("ended with exit code %d", st.ExitCode())
	if last := out.last(); len(last) > 0 {
		text += ", saying " + x.s.Redactor.String(last[len(last)-1])
	}
	return errors.New(text)
}
