package gvisor

import (
	"context"
	"slices"
	"testing"
	"time"
)

// BenchmarkCreate is a bottle made; on a busy machine the fastest says most.
func BenchmarkCreate(b *testing.B) {
	var took []time.Duration
	for b.Loop() {
		s := testSpec(b)
		t0 := time.Now()
		x, err := Backend{}.Create(context.Background(), s)
		if err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(t0))
		x.Close()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[0].Microseconds())/1000, "min-ms")
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "median-ms")
}
