package gvisor

import (
	"time"

	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// A program reads the clock without a system call once gVisor has compared the processor's
// counter with the host's clock twice. It does so once a second, and in a bottle's first
// second each reading would take some hundred times as long. Most commands last no longer.

// sampleClock makes the next comparisons at once and a little later: they get more exact as
// they get further apart. It sets the timer that wakes up gVisor's own, which sets it again
// each time.
func sampleClock(k *kernel.Timekeeper) {
	timer, err := reach[*time.Timer](k, "timer")
	if err != nil {
		return // gVisor changed: the clock is as slow as it is; the test says so
	}
	go func(timer *time.Timer) { // ends by itself
		for _, ms := range []time.Duration{0, 3, 20, 100} {
			time.Sleep(ms * time.Millisecond)
			timer.Reset(0)
		}
	}(*timer)
}
