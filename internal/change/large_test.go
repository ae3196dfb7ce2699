package change

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"
)

// TestLarge takes a workspace of 100,000 files and 40,000 changes through
// everything. There is no assertion on
// time, but anything quadratic runs into the test's time limit.
func TestLarge(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 5_000
	}
	w := newWorldAt(t, fastTemp(t), fastTemp(t), nil)
	for i := range n {
		d := fmt.Sprintf("%s/old/%d", w.ws, i/500)
		if i%500 == 0 {
			must(t, os.MkdirAll(d, 0o755))
		}
		must(t, os.WriteFile(fmt.Sprintf("%s/%d", d, i), []byte("x"), 0o644))
	}
	w.base.Close()
	last := time.Now()
	lap := func(what string) {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		t.Logf("%-14s %v, heap %d MB", what, time.Since(last).Round(time.Millisecond), m.HeapSys>>20)
		last = time.Now()
	}
	w.begin()
	lap("begin+names")
	u := w.upper()
	for i := range n / 5 {
		u.file(fmt.Sprintf("new/%d/%d", i/500, i), fmt.Sprint(i), 0o644)
		if i%4 == 0 {
			u.file(fmt.Sprintf("old/%d/%d", i/500, i), fmt.Sprint(i), 0o644)
		} else if i%500 < 400 {
			u.gone(fmt.Sprintf("old/%d/%d", i/500, i))
		}
	}
	stream := u.bytes()
	lap("stream")
	w.collect(stream)
	lap("collect")
	s, err := OpenSet(w.run)
	must(t, err)
	lap("open")
	var out bytes.Buffer
	_, err = s.Diff(&out, DiffOptions{})
	must(t, err)
	lap("diff")
	r := w.land(s, LandOptions{})
	lap(fmt.Sprintf("land %d", len(r.Landed)))
	if len(r.Landed) != len(s.Changes) {
		t.Errorf("landed %d of %d", len(r.Landed), len(s.Changes))
	}
	_, err = Undo(context.Background(), s, UndoOptions{})
	must(t, err)
	lap("undo")
	changes, _, err := HostChanges(context.Background(), w.base, 0)
	must(t, err)
	lap(fmt.Sprintf("bind %d", len(changes)))
}
