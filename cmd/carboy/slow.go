//go:build linux

package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
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
	var n atomic.Int64
	over := make(chan struct{})
	var said sync.WaitGroup
	said.Go(func() {
		begin := time.Now()
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				size := ""
				if n.Load() > 0 {
					size = receipt.Bytes(n.Load()) + " in "
				}
				fmt.Fprintf(a.stderr, clearLine+"carboy: %s: %s%d s", what, size, int(time.Since(begin).Seconds()))
			case <-over:
				if time.Since(begin) > time.Second {
					fmt.Fprint(a.stderr, clearLine)
				}
				return
			}
		}
	})
	defer said.Wait()
	defer close(over)
	return do(progress.With(ctx, &n))
}
