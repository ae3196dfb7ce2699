package bottle

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
)

// Whatever goes wrong with a copy, the commands go on; what is as it was is not new.
func TestWholeCopies(t *testing.T) {
	var c WholeCopies
	boom := errors.New("boom")
	for _, x := range []struct {
		name                 string
		text                 string
		whole                bool
		pause, goOn, export  error
		changed, goes, fails bool
	}{
		{name: "the first", text: "a", changed: true, goes: true},
		{name: "the same", text: "a", goes: true},
		{name: "the same, asked for whole", text: "a", whole: true, changed: true, goes: true},
		{name: "another", text: "b", changed: true, goes: true},
		{name: "no pause", text: "c", pause: boom, fails: true},
		{name: "no export", text: "c", export: boom, goes: true, fails: true},
		{name: "no end of the pause", text: "c", goOn: boom, goes: true, fails: true},
		{name: "what failed was not noted", text: "c", changed: true, goes: true},
	} {
		var b bytes.Buffer
		went := false
		ctx, cancel := context.WithCancel(t.Context())
		r, err := c.Checkpoint(ctx, func(context.Context) error { return x.pause },
			func(ctx context.Context) error {
				went = true
				return errors.Join(ctx.Err(), x.goOn)
			},
			func(_ context.Context, w io.Writer) error {
				_, err := io.WriteString(w, x.text)
				cancel() // who asked is gone
				return errors.Join(err, x.export)
			}, CheckpointOptions{Whole: x.whole}, &b)
		cancel()
		if r.Changed != x.changed || went != x.goes || (err != nil) != x.fails || !x.fails && b.String() != x.text {
			t.Errorf("%s: changed %v, the commands go on %v, %v, %q", x.name, r.Changed, went, err, b.String())
		}
	}
}
