// Package progress counts the bytes of long work, so that people can be told how far it is.
package progress

import (
	"context"
	"io"
	"sync/atomic"
)

type key struct{}

// With returns a context whose work is counted in n.
func With(ctx context.Context, n *atomic.Int64) context.Context {
	return context.WithValue(ctx, key{}, n)
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
