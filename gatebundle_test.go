package carboy

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gate/judge"
)

// TestT2BundleOfAnotherChange: a verdict that the key signed lets its own change go on, and
// no other one beside which somebody puts it.
func TestT2BundleOfAnotherChange(t *testing.T) {
	p := newProject(t, map[string]string{"a": "x", gate.CatalogPath: "version: 1\nsignals:\n  - {name: policy, kind: policy}\n"})
	base := p.git("rev-parse", "HEAD")
	p.put("b", "fine")
	good := p.commit()
	j := p.judge(judge.GateOptions{Base: base})
	p.put("b", "\x00")
	evil := p.commit()
	bad := p.judge(judge.GateOptions{Base: base})
	if j.Outcome != gate.Passed || bad.Outcome == gate.Passed {
		t.Fatalf("%s, %s", j.Outcome, bad.Outcome)
	}
	dir := filepath.Join(t.TempDir(), "b")
	key, err := p.c.BundleVerdict(t.Context(), j.ID, dir)
	if err != nil {
		t.Fatal(err)
	}
	lets := func(dir string, o judge.BundleOptions) (bool, []string) {
		t.Helper()
		o.Key = key
		r, err := judge.VerifyBundle(t.Context(), dir, o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Intact != (len(r.Findings) == 0) {
			t.Errorf("%+v", r)
		}
		return r.Intact && r.Verdict.Allowed(), r.Findings
	}
	b := j.CatalogDigest
	for what, o := range map[string]judge.BundleOptions{
		"its commit": {Commit: good}, "its tree": {Tree: j.Change.Digest}, "all of it": {Commit: good, Tree: j.Change.Digest, Base: base, Catalog: b, NoOverride: true},
	} {
		if ok, found := lets(dir, o); !ok {
			t.Errorf("%s is not let go on: %q", what, found)
		}
	}
	for what, x := range map[string]struct {
		o    judge.BundleOptions
		says string
	}{
		"another commit":               {judge.BundleOptions{Commit: evil}, "the commit that was judged is " + good + ", not " + evil},
		"another tree":                 {judge.BundleOptions{Tree: bad.Change.Digest}, "the tree that was judged is"},
		"its commit with another tree": {judge.BundleOptions{Commit: good, Tree: bad.Change.Digest}, "the tree that was judged is"},
		"another base":                 {judge.BundleOptions{Commit: good, Base: good}, "the base is " + base},
		"another catalog":              {judge.BundleOptions{Commit: good, Catalog: j.Change.Digest}, "the catalog is"},
	} {
		if ok, found := lets(dir, x.o); ok || len(found) != 1 || !strings.Contains(found[0], x.says) {
			t.Errorf("%s: let go on %t, found %q", what, ok, found)
		}
	}
	for what, o := range map[string]judge.BundleOptions{
		"nothing": {}, "a base alone": {Base: base}, "a revision": {Commit: "HEAD"}, "half a commit": {Commit: good[:12]}, "half a tree": {Tree: j.Change.Digest[:40]},
		"half a catalog": {Commit: good, Catalog: b[:12]}, "a base's name": {Commit: good, Base: "main"}, "upper case": {Commit: strings.ToUpper(good)},
	} {
		o.Key = key
		var option *fault.OptionError
		if r, err := judge.VerifyBundle(t.Context(), dir, o); !errors.As(err, &option) || option.Advice == "" || r != nil {
			t.Errorf("%s names a change: %+v, %v", what, r, err)
		}
	}
	// A run's change has no commit, so that none is its.
	p.put("b", "fine again")
	run := p.judge(judge.GateOptions{Base: base, Change: "."})
	dir2 := filepath.Join(t.TempDir(), "b")
	if _, err := p.c.BundleVerdict(t.Context(), run.ID, dir2); err != nil {
		t.Fatal(err)
	}
	if ok, _ := lets(dir2, judge.BundleOptions{Tree: run.Change.Digest}); !ok {
		t.Error("a tree is not let go on by its digest")
	}
	if ok, found := lets(dir2, judge.BundleOptions{Commit: good}); ok || !slices.Equal(found, []string{"the commit that was judged is none, not " + good}) {
		t.Errorf("a tree without a commit: let go on %t, found %q", ok, found)
	}
	// A person's word, where none is wanted.
	if _, err := p.c.OverrideVerdict(t.Context(), bad.ID, whyNot, saysYes); err != nil {
		t.Fatal(err)
	}
	dir3 := filepath.Join(t.TempDir(), "b")
	if _, err := p.c.BundleVerdict(t.Context(), bad.ID, dir3); err != nil {
		t.Fatal(err)
	}
	if ok, found := lets(dir3, judge.BundleOptions{Commit: evil}); !ok {
		t.Errorf("an override is not let go on: %q", found)
	}
	if ok, found := lets(dir3, judge.BundleOptions{Commit: evil, NoOverride: true}); ok || len(found) != 1 {
		t.Errorf("an override where none is wanted: let go on %t, found %q", ok, found)
	}
}

// TestBundleIsWholeOrNot: a bundle that could not be written leaves nothing in the way of
// the next one.
func TestBundleIsWholeOrNot(t *testing.T) {
	p := newProject(t, map[string]string{"a": "x", gate.CatalogPath: "version: 1\nsignals:\n  - {name: policy, kind: policy}\n"})
	j := p.judge(judge.GateOptions{Base: "HEAD"})
	key := p.c.judge.GateDir("key")
	if err := os.WriteFile(key, nil, 0o600); err != nil { // where the key's directory is made
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "b")
	if _, err := p.c.BundleVerdict(t.Context(), j.ID, dir); err == nil {
		t.Fatal("there was no key to sign with")
	}
	if left, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(left) > 0 {
		t.Errorf("a half bundle is left: %v %v", left, err)
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	if _, err := p.c.BundleVerdict(t.Context(), j.ID, dir); err != nil {
		t.Error(err)
	}
}
