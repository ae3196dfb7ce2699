package docker

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/guest/uppertar"
)

// export packs layers from their directories, which carboy has open: the container takes
// no part in it.
func (x *box) export(ctx context.Context, w io.Writer, layers []layer) error {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.closed || x.over() {
		return bottle.ErrGone
	}
	if x.engine.helps {
		return x.tarByHelper(ctx, &endingWriter{ctx, x, w}, layers)
	}
	t := uppertar.NewWriter(&endingWriter{ctx, x, w})
	for _, l := range layers {
		if err := t.Layer(int(l.dir.Fd()), strings.Trim(l.at, "/")); err != nil {
			return err
		}
	}
	return t.Close()
}

// endingWriter fails once the bottle is being closed, so that a long export does not hold
// that up.
type endingWriter struct {
	ctx context.Context
	x   *box
	w   io.Writer
}

func (e *endingWriter) Write(p []byte) (int, error) {
	if err := e.ctx.Err(); err != nil {
		return 0, err
	}
	if e.x.over() {
		return 0, bottle.ErrGone
	}
	n, err := e.w.Write(p)
	if err == nil && n < len(p) {
		err = errors.New("short write")
	}
	return n, err
}
