// Package progress counts the bytes of long work, so that people can be told how far it is.
package progress

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

type key struct{}

// With returns a context whose work is counted in n.
func With(ctx context.Context, n *atomic.Int64) context.Context {
	return context.WithValue(ctx, key{}, n)
}

// Tell calls do with a context that counts its work. Each second until do returns it calls
// said with the bytes so far and the time since the begin. Both have ended when it returns.
func Tell(ctx context.Context, said func(bytes int64, took time.Duration), do func(context.Context) error) error {
	var n atomic.Int64
	over := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		begin := time.Now()
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				said(n.Load(), time.Since(begin))
			case <-over:
				return
			}
		}
	})
	defer telling.Wait()
	defer close(over)
	return do(With(ctx, &n))
}

// Reader returns a reader that counts what is read from r as work of ctx.
func Reader(ctx context.Context, r io.Reader) io.Reader {
	if n, ok := ctx.Value(key{}).(*atomic.Int64); ok {
		return &reader{r, n}
	}
	return r
}

type reader struct {
	r io.Reader
	n *atomic.Int64
}

func (r *reader) Read(b []byte) (int, error) {
	n, err := r.r.Read(b)
	r.n.Add(int64(n))
	return n, err
}

// Writer returns a writer that counts what is written to w as work of ctx.
func Writer(ctx context.Context, w io.Writer) io.Writer {
	if n, ok := ctx.Value(key{}).(*atomic.Int64); ok {
		return &writer{w, n}
	}
	return w
}

type writer struct {
	w io.Writer
	n *atomic.Int64
}

func (w *writer) Write(b []byte) (int, error) {
	n, err := w.w.Write(b)
	w.n.Add(int64(n))
	return n, err
}
