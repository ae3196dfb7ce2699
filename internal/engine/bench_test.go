package engine

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/testenv"
)

// Runs that wait cost memory and a little of a processor. In one iteration they are
// started, wait, are taken up by another engine, hear a signal and end.
func BenchmarkWaiting(b *testing.B) {
	for _, runs := range []int{200, 2000} {
		b.Run(fmt.Sprint(runs), func(b *testing.B) { waiting(b, runs) })
	}
}

func waiting(b *testing.B, runs int) {
	for b.Loop() {
		path := storeIn(b)
		e, err := Open(ctx, options(path, waits("waits")))
		if err != nil {
			b.Fatal(err)
		}
		before := heap()
		from := time.Now()
		for i := range runs {
			start(b, e, fmt.Sprint(i), "waits", time.Hour, Once)
		}
		b.ReportMetric(time.Since(from).Seconds(), "s/start")
		allWait(b, e, runs)
		b.ReportMetric((heap()-before)/float64(runs)/1024, "KiB/run")
		shut(b, e)

		from = time.Now()
		if e, err = Open(ctx, options(path, waits("waits"))); err != nil {
			b.Fatal(err)
		}
		allWait(b, e, runs)
		b.ReportMetric(time.Since(from).Seconds(), "s/again")
		from, used := time.Now(), processor()
		<-time.After(10 * time.Second)
		b.ReportMetric(100*(processor()-used).Seconds()/time.Since(from).Seconds(), "%cpu/rest")

		from = time.Now()
		for i := range runs {
			if err := e.Signal(ctx, fmt.Sprint(i), "go", "1", "x"); err != nil {
				b.Fatal(err)
			}
		}
		if !testenv.Poll(10*time.Minute, func() bool { return len(e.runs()) == 0 }) {
			b.Fatalf("%d still run", len(e.runs()))
		}
		b.ReportMetric(time.Since(from).Seconds(), "s/signal")
		shut(b, e)
	}
}

// allWait waits until every run has recorded what it waits for, and until when.
func allWait(b *testing.B, e *Engine, runs int) {
	b.Helper()
	var n int
	if !testenv.Poll(10*time.Minute, func() bool {
		if err := e.db.QueryRow("SELECT COALESCE(max(rowid), 0) FROM operation_outputs").Scan(&n); err != nil {
			b.Fatal(err)
		}
		return n == 2*runs && len(e.runs()) == runs
	}) {
		b.Fatalf("%d records, %d runs", n, len(e.runs()))
	}
}

// heap returns the bytes of heap and stacks in use.
func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapInuse + m.StackInuse)
}

// processor returns the processor time of this process.
func processor() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
