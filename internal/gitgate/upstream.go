package gitgate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/visible"
)

// version of git's protocol; a push knows no second.
type version uint8

// An upstream answers for one repository, over one transport. Each exchange is whole
// in itself: a request is sent to its end, and the answer read to its end. Its methods
// may be called concurrently, and end with ctx.
type upstream interface {
	// advertise asks for the references and capabilities of a service.
	advertise(ctx context.Context, service string, v version) (io.ReadCloser, error)
	// call sends a request of size bytes (-1: not known) to a service. Closing the
	// answer ends it. What upstream says besides comes as the error of Read or Close.
	call(ctx context.Context, service string, v version, body io.Reader, size int64) (io.ReadCloser, error)
	io.Closer
}

func newUpstream(r Repo, cfg *Config) (upstream, error) {
	a, err := parseURL(r.URL)
	if err != nil {
		return nil, err
	}
	switch a.scheme {
	case local:
		return &localUpstream{path: a.path, git: cfg.Git, limit: cfg.Limits.Time}, nil
	case overSSH:
		return newSSH(a, r.SSH, cfg.Limits)
	default:
		return newHTTPS(a, r, cfg)
	}
}

// An UpstreamError is what went wrong beyond the gate. Its text is visible.
type UpstreamError struct {
	Op  string // "connect", "list", "fetch", "push"
	Err error
}

func (e *UpstreamError) Error() string {
	return fmt.Sprintf("upstream: %s: %s", e.Op, visible.String(e.Err.Error(), 500))
}

func (e *UpstreamError) Unwrap() error { return e.Err }

var (
	// ErrSilent says that upstream sent nothing for too long.
	ErrSilent = errors.New("it is silent")
	// ErrTooMuch says that upstream sent more than a limit.
	ErrTooMuch = errors.New("it sends too much")
	// ErrHostKey says that upstream's host shows another key than those pinned.
	ErrHostKey = errors.New("the host key is not the one that is pinned")
)

// bounded reads from upstream: at most max bytes, and never in silence for longer than
// idle. Silence ends the exchange through stop.
type bounded struct {
	r     io.ReadCloser
	left  int64
	idle  time.Duration
	timer *time.Timer

	mu     sync.Mutex
	silent bool
}

// bound begins to wait for r at once.
func bound(r io.ReadCloser, max int64, idle time.Duration, stop func()) *bounded {
	b := &bounded{r: r, left: max, idle: idle}
	b.timer = time.AfterFunc(idle, func() {
		b.mu.Lock()
		b.silent = true
		b.mu.Unlock()
		stop()
		_ = r.Close()
	})
	return b
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		var one [1]byte
		if n, err := b.r.Read(one[:]); n == 0 {
			return 0, b.why(err)
		}
		return 0, ErrTooMuch
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	// Only the reading counts: whoever takes the answer may be slower than that.
	b.timer.Reset(b.idle)
	n, err := b.r.Read(p)
	b.timer.Stop()
	b.left -= int64(n)
	return n, b.why(err)
}

func (b *bounded) why(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil && b.silent {
		return ErrSilent
	}
	return err
}

func (b *bounded) Close() error {
	b.timer.Stop()
	return b.r.Close()
}

// readAll reads what must be short.
func readAll(r io.Reader, max int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, max+1))
	if err == nil && int64(len(b)) > max {
		err = ErrTooMuch
	}
	return b, err
}
