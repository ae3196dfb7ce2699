package main

import (
	"strings"
	"testing"
	"time"
)

// manifestsOf: what is compared does what it says, with all of the files.
func manifestsOf(t *testing.T, b *bench) {
	l, err := b.stock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.client.Close()
	if len(l.files) != manyManifests+1 {
		t.Errorf("%d files", len(l.files))
	}
	for name, do := range map[string]func() error{"parse": l.parse, "explain": l.explain, "preflight": l.preflight} {
		if err := do(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.larder = l
	if b.manifestReport() != nil {
		t.Error("a report of what was not measured")
	}
	for i, d := range []time.Duration{1, 3, 4, 10, 12} {
		b.manifestTimes[i] = []time.Duration{d * time.Second, 2 * d * time.Second}
	}
	for i, d := range []time.Duration{2, 4, 1} {
		b.frozenTimes[i] = []time.Duration{d * time.Second, 2 * d * time.Second}
	}
	r := &Report{Manifests: b.manifestReport()}
	if got := r.markdown(); !strings.Contains(got, "| 3.00 (3.00–3.00) | 4.00 (4.00–4.00) | 1.20 (1.20–1.20) |") || !strings.Contains(got, "| 2.00 (2.00–2.00) | 0.50 (0.50–0.50) |") {
		t.Errorf("%s", got)
	}
}

func TestCrowd(t *testing.T) {
	x, err := sizes("00400000-7ffd [rollup]\nRss:  2000 kB\nPss:   1024 kB\nPss_Dirty: 1 kB\nPrivate_Clean:  12 kB\nTHPeligible: 0\n")
	if err != nil || x["Pss"] != 1<<20 || x["Private_Clean"] != 12<<10 || len(x) != 4 {
		t.Errorf("%v %v", x, err)
	}
	r := &Report{Many: &Crowd{Bottles: 8, Processes: 88, PSS: 8 * 40 << 20, USS: 300 << 20}}
	r.Goals = r.goals()
	for _, want := range []string{
		"**8 bottles that wait, at once**: 320 MiB (PSS of their 88 processes), 40.0 MiB each; 300 MiB that no two share.\n",
		"| memory of 90 bottles that wait (PSS) | ≤ 4 GiB | 3.52 GiB, as 8 take; -idle 90 measures it | yes |",
	} {
		if got := r.markdown(); !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
}
