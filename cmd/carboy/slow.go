//go:build linux

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/carboy/carboy/internal/progress"
	"github.com/carboy/carboy/internal/receipt"
)

// clearLine empties the terminal's current line.
const clearLine = "\r\x1b[K"

// slowly calls do. If that takes longer than a second, it says on the terminal what is done,
// for how long, and how many bytes of it, each second in the same line, which is gone when do
// returns. do must clear the line before it prints.
func (a *app) slowly(ctx context.Context, what string, do func(context.Context) error) error {
	if !a.redraws(a.stderr) {
		return do(ctx)
	}
	shown := false
	err := progress.Tell(ctx, func(n int64, took time.Duration) {
		shown = true
		a.redraw(what, n, took)
	}, do)
	if shown {
		fmt.Fprint(a.stderr, clearLine)
	}
	return err
}

// redraw says in the terminal's current line how far something is.
func (a *app) redraw(what string, n int64, took time.Duration) {
	size := ""
	if n > 0 {
		size = receipt.Bytes(n) + " in "
	}
	fmt.Fprintf(a.stderr, clearLine+"carboy: %s: %s%d s", what, size, int(took.Seconds()))
}
