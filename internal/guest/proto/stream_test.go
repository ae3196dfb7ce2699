package proto

import (
	"io"
	"runtime"
	"testing"
)

// TestTinyFrames: a stream's bytes take about as much memory as they are, however they were
// cut into frames.
func TestTinyFrames(t *testing.T) {
	r := newChannel(NewConn(nil, true), 1, Out).Reader(Out)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range Window {
		if err := r.push([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if n := int64(after.HeapAlloc) - int64(before.HeapAlloc); n > 4*Window {
		t.Errorf("%d bytes take %d", Window, n)
	}
	if err := r.push([]byte{1}); err == nil {
		t.Error("a byte beyond the window was taken")
	}
	if err := r.finish(); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil || len(b) != Window {
		t.Fatalf("%d bytes were read, %v", len(b), err)
	}
	for i, c := range b {
		if c != byte(i) {
			t.Fatalf("byte %d is %d", i, c)
		}
	}
}
