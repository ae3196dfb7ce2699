package hostexec

import (
	"context"
	"os"
)

// Session is a command that goes on when the call that started it has returned: until it
// ends, Close is called, its Runner is closed or carboy ends. Then all of its descendants
// are gone too. Its methods are safe for concurrent use.
type Session struct {
	r   *Runner
	p   *proc
	res Result // valid once over is closed
	err error

	over chan struct{}
}

// Start starts a command of a program that may last. Its errors are those of Run for a
// command that was not spawned. Like Run it closes Input and Output. The caller must call
// Close, or Wait until it returns.
func (r *Runner) Start(ctx context.Context, cmd Command) (*Session, error) {
	defer closeAll([]*os.File{cmd.Input, cmd.Output})
	rec := r.record(cmd)
	p, err := r.begin(ctx, cmd, &rec, true)
	if err != nil {
		r.observe(&rec, &Result{ExitCode: -1}, err)
		return nil, err
	}
	s := &Session{r: r, p: p, over: make(chan struct{})}
	go func() { // ends with the command
		defer close(s.over)
		s.res, s.err = r.await(context.Background(), p)
		r.observe(&rec, &s.res, s.err)
	}()
	return s, nil
}

// Kept blocks until a command with Keep has ended with 0 and its descendants go on, or
// until ctx ends. If the command fails, the error is Wait's.
func (s *Session) Kept(ctx context.Context) error {
	select {
	case <-s.p.kept:
		return nil
	case <-s.over:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Done returns a channel that is closed when nothing is left of the command.
func (s *Session) Done() <-chan struct{} { return s.over }

// Wait blocks until nothing is left of the command, and returns what Run would, or until
// ctx ends, whose error it returns.
func (s *Session) Wait(ctx context.Context) (Result, error) {
	select {
	case <-s.over:
		return s.res, s.err
	case <-ctx.Done():
		return Result{ExitCode: -1}, ctx.Err()
	}
}

// Close kills the command and its descendants, and returns when they are gone, or
// ErrUnkilled. It may be called again.
func (s *Session) Close() error {
	s.p.stop(closed)
	<-s.over
	if s.res.Outcome == unkilled {
		return s.err
	}
	return nil
}
