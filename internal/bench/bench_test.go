package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{{[]float64{3}, 3}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 2, 9}, 3}} {
		if got := median(c.in); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.in, got, c.want)
		}
	}
	if m := median(nil); m == m {
		t.Errorf("median of nothing is %v", m)
	}
}

// A ratio is made within a round: a machine that halves its speed between
// rounds changes nothing.
func TestSpreadIsPerRound(t *testing.T) {
	s := spread([]time.Duration{20, 40, 90}, []time.Duration{10, 20, 30})
	if s == nil || s.Median != 2 || s.Min != 2 || s.Max != 3 || len(s.Rounds) != 3 {
		t.Errorf("spread = %+v", s)
	}
	if s := spread([]time.Duration{1}, nil); s != nil {
		t.Errorf("spread without the other half = %+v", s)
	}
	if s := spread([]time.Duration{1, 6}, []time.Duration{0, 3}); s == nil || len(s.Rounds) != 1 || s.Median != 2 {
		t.Errorf("spread with an empty round = %+v", s)
	}
}

func TestFigure(t *testing.T) {
	for in, want := range map[float64]string{123.4: "123", 10: "10", 9.96: "10", 1.25: "1.2", 0.7: "0.7", 0.04: "0.04"} {
		if got := figure(in); got != want {
			t.Errorf("figure(%v) = %s, want %s", in, got, want)
		}
	}
}

func TestInsideTime(t *testing.T) {
	for in, want := range map[string]time.Duration{
		insideMark + "1500\n":                1500,
		"noise\n" + insideMark + "7\nmore\n": 7,
		"":                                   0,
		insideMark + "x\n":                   0,
		insideMark + "-5\n":                  0,
	} {
		if got := insideTime(in); got != want {
			t.Errorf("insideTime(%q) = %v, want %v", in, got, want)
		}
	}
}

// Everybody clones and unpacks the same bytes.
func TestTreeIsTheSameEverywhere(t *testing.T) {
	h, n := sha256.New(), 0
	if err := eachFile(func(path string, content []byte) error {
		n++
		fmt.Fprintf(h, "%s %d\n", path, len(content))
		h.Write(content)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	const want = "d8edbc30b42f19c566083e4d10e13b1b22932d8761793c25dffb6eaa7b32a444"
	if got := fmt.Sprintf("%x", h.Sum(nil)); n != treeDirs*filesPerDir || got != want {
		t.Errorf("%d files, sum %s", n, got)
	}
}

func TestRewriteMarked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "doc.md")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("above\n" + tables.begin + "\nold\n" + tables.end + "\nbelow\n")
	for range 2 { // again, over its own output
		if err := rewriteMarked(file, tables, "new\n"); err != nil {
			t.Fatal(err)
		}
		b, _ := os.ReadFile(file)
		if got, want := string(b), "above\n"+tables.begin+"\nnew\n"+tables.end+"\nbelow\n"; got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	for _, s := range []string{"", tables.begin, tables.end + tables.begin, "text " + tables.end} {
		write(s)
		if err := rewriteMarked(file, tables, "new\n"); err == nil {
			t.Errorf("rewrote %q", s)
		}
		if b, _ := os.ReadFile(file); string(b) != s {
			t.Errorf("%q became %q", s, b)
		}
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "0"}, {"-download", "4"}, {"extra"}, {"-nope"}, {"-idle", "-1"}, {"-idle", "1001"}} {
		if code := run(t.Context(), args, &bytes.Buffer{}, &bytes.Buffer{}); code != 2 {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
	o, err := parse([]string{"-only", "nope", "-dir", t.TempDir()}, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	if err := benchmark(t.Context(), o, &bytes.Buffer{}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "nope") {
		t.Errorf("unknown load: %v", err)
	}
	if ents, _ := os.ReadDir(o.dir); len(ents) > 0 {
		t.Errorf("left behind: %v", ents)
	}
}

// A round in which a peer failed is left out; the next ones are not shifted.
func TestGapsStayInTheirRound(t *testing.T) {
	b := &bench{o: &options{rounds: 2}, loads: []load{{name: "x", what: "x"}}, peers: []*peer{{name: "native"}, {name: "carboy"}}}
	b.samples = map[key][]sample{
		{"x", "native"}: {{whole: 10, inside: 10}, {whole: 100, inside: 100}},
		{"x", "carboy"}: {{}, {whole: 200, inside: 300}},
	}
	p := b.report().Loads[0].Peers[1]
	if p.Whole.Median != 2 || p.Inside.Median != 3 || len(p.Whole.Rounds) != 1 {
		t.Errorf("whole %+v, inside %+v", p.Whole, p.Inside)
	}
}

// TestNativeAlone runs a whole benchmark that needs nothing installed.
func TestNativeAlone(t *testing.T) {
	o := &options{rounds: 2, only: "start,upload,download", peers: "native", dir: openDir(t), megabytes: 5}
	b := newTestBench(t, o)
	if err := b.measure(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := b.report()
	j, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Loads) != 3 || len(r.Loads[0].Peers[0].WholeNS) != 2 || !strings.Contains(string(j), Schema) {
		t.Errorf("report: %s", j)
	}
	if len(r.Loads[1].Peers[0].InsideNS) != 2 {
		t.Errorf("no time inside: %s", j)
	}
	// A load that fails is a gap that is said, not a fast one, and the rounds
	// of the others stay.
	bad := load{name: "bad", argv: fixed("false"), bare: true, reps: 1}
	b.loads = append(b.loads, bad)
	b.turn(t.Context(), bad, 0)
	r = b.report()
	if len(r.Failed) != 1 || len(r.Loads[3].Peers) != 0 || len(r.Loads[0].Peers) != 1 || !strings.Contains(r.markdown(), "**Failed:** 1") {
		t.Errorf("a load that failed: %+v", r)
	}
	t.Run("manifests", func(t *testing.T) { manifestsOf(t, b) })
}

// openDir returns a directory that the loads' user may enter: if root runs the tests, only
// root may enter t.TempDir.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			break
		}
	}
	return dir
}

func newTestBench(t *testing.T, o *options) *bench {
	t.Helper()
	b, err := newBench(context.Background(), o, &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// The test binary stands in for the program: loads run it again, inside.
func TestMain(m *testing.M) {
	carboy.Main()
	part()
	os.Exit(m.Run())
}
