package main

import (
	"strings"
	"testing"
	"time"
)

func TestUIReport(t *testing.T) {
	b := &bench{}
	if b.uiReport() != nil {
		t.Error("a report of what was not measured")
	}
	for i, d := range []time.Duration{2, 3, 4, 4} {
		b.uiTimes[i] = []time.Duration{d * time.Second, 2 * d * time.Second}
	}
	r := &Report{UI: b.uiReport()}
	if got := r.markdown(); !strings.Contains(got, "| 1.50 (1.50–1.50) | 1.00 (1.00–1.00) |") {
		t.Errorf("%s", got)
	}
}
