package engine

import (
	"context"
	"log/slog"
	"sync/atomic"
)

// handler passes on what the library logs. What it calls information is of its insides,
// so it is for debugging here, and its warnings are information: among them is each
// time-out of a wait. While the engine closes, nothing is an error: what is cut off says so.
type handler struct {
	next    slog.Handler
	closing *atomic.Bool
}

func (h handler) level(l slog.Level) slog.Level {
	if l >= slog.LevelError && !h.closing.Load() {
		return l
	}
	return min(l, slog.LevelWarn) - (slog.LevelInfo - slog.LevelDebug)
}

func (h handler) Enabled(ctx context.Context, l slog.Level) bool {
	return h.next.Enabled(ctx, h.level(l))
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = h.level(r.Level)
	return h.next.Handle(ctx, r)
}

func (h handler) WithAttrs(as []slog.Attr) slog.Handler {
	return handler{h.next.WithAttrs(as), h.closing}
}

func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.next.WithGroup(name), h.closing}
}
