package gitgate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/safetext"
)

// version is a version of git's protocol. A push has only version 0.
type version uint8

// upstream is one repository over one transport. Each exchange sends a whole request and
// reads a whole answer. Several goroutines may call its methods, which end with ctx.
type upstream interface {
	// advertise requests the references and capabilities of a service.
	advertise(ctx context.Context, service string, v version) (io.ReadCloser, error)
	// call sends a request of size bytes (-1 if unknown) to a service. Closing the answer
	// ends the exchange. Read or Close returns upstream's error messages as an error.
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

// upstreamError is an error of the upstream or on the way to it. Its text is visible.
type upstreamError struct {
	Op  string // "connect", "list", "fetch" or "push"
	Err error
}

func (e *upstreamError) Error() string {
	return fmt.Sprintf("upstream: %s: %s", e.Op, safetext.String(e.Err.Error(), 500))
}

func (e *upstreamError) Unwrap() error { return e.Err }

var (
	// errSilent means that upstream sent nothing for too long.
	errSilent = errors.New("it sent nothing for too long")
	// errTooMuch means that upstream sent more than a limit allows.
	errTooMuch = errors.New("it sent too much")
	// errHostKey means that upstream's host has another key than the pinned ones.
	errHostKey = errors.New("the host key is not the one that is pinned")
)

// bounded reads at most max bytes from upstream. If no byte comes for longer than idle, it
// calls stop.
type bounded struct {
	r     io.ReadCloser
	left  int64
	idle  time.Duration
	timer *time.Timer

	mu     sync.Mutex
	silent bool
}

// bound returns a bounded reader of r. The idle time starts at once.
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
		return 0, errTooMuch
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	// Only reading counts. The consumer of the answer may be slower.
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
		return errSilent
	}
	return err
}

func (b *bounded) Close() error {
	b.timer.Stop()
	return b.r.Close()
}

// readAll reads r to its end, and returns an error beyond max bytes.
func readAll(r io.Reader, max int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, max+1))
	if err == nil && int64(len(b)) > max {
		err = errTooMuch
	}
	return b, err
}
