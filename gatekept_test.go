package carboy

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gate/judge"
)

// TestT4GrantedAttempts: a verdict that was given when attempts had been granted says so,
// and is not given to a gate for which nobody granted any, nor the other way round.
func TestT4GrantedAttempts(t *testing.T) {
	p := newProject(t, map[string]string{"a": "x", gate.CatalogPath: "version: 1\nsignals:\n  - {name: policy, kind: policy}\n"})
	some := []gate.Attempts{{Work: "01k", More: 2, By: "me", At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Proposal: "01p"}}
	more := append(slices.Clone(some), gate.Attempts{Work: "01k", More: 1, By: "me", Proposal: "01q"})
	// What is granted shapes no cache: each would be made anew.
	shape := func(granted []gate.Attempts) map[string]string {
		w, err := p.c.judge.GateWork(t.Context(), &judge.GateOptions{Dir: p.ws, Base: "HEAD", Granted: granted})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		return w.G.Shape
	}
	if a, b := shape(nil), shape(some); !maps.Equal(a, b) || a["carboy"] == "" {
		t.Errorf("caches are others when attempts were granted: %v, %v", a, b)
	}
	first := map[int]string{}
	for round := range 2 {
		for _, granted := range [][]gate.Attempts{some, nil, more} {
			j := p.judge(judge.GateOptions{Base: "HEAD", Granted: granted})
			if j.Cached != (round == 1) || len(j.Granted) != len(granted) {
				t.Errorf("%d granted: given again %t (%s), with %+v", len(granted), j.Cached, j.Miss, j.Granted)
			}
			if round == 0 && first[len(granted)] == "" {
				first[len(granted)] = j.ID
			} else if j.ID != first[len(granted)] {
				t.Errorf("%d granted: verdict %s, not %s", len(granted), j.ID, first[len(granted)])
			}
		}
	}
}

// TestH2OverrideOfAnotherTree: what a person let go on is the change that they looked at.
// Another one, that differs where nothing was looked at, has the verdict and not their
// word.
func TestH2OverrideOfAnotherTree(t *testing.T) {
	lock := `{"lockfileVersion":3,"packages":{"":{"name":"m"},"node_modules/x":{"version":"1.0.0","license":"GPL-3.0-only"}}}`
	p := newProject(t, map[string]string{"package-lock.json": lock, "unused": "one", gate.CatalogPath: "version: 1\nsignals:\n  - {name: l, kind: licences, allow: [MIT]}\n"})
	o := judge.GateOptions{Base: "HEAD", Change: "."}
	first := p.judge(o)
	if first.Outcome != gate.Failed {
		t.Fatalf("%+v", first.Signals[0])
	}
	if _, err := p.c.OverrideVerdict(t.Context(), first.ID, whyNot, saysYes); err != nil {
		t.Fatal(err)
	}
	if again := p.judge(o); !again.Cached || again.ID != first.ID || !again.Allowed() {
		t.Errorf("the same change is not let go on: %q", again.Miss)
	}
	p.put("unused", "two")
	if other := p.judge(o); !other.Cached || other.ID != first.ID || other.Allowed() {
		t.Errorf("another change: given again %t (%s), let go on %t", other.Cached, other.Miss, other.Allowed())
	}
	p.put("unused", "one")
	if again := p.judge(o); !again.Allowed() {
		t.Error("the same change once more is not let go on")
	}
}

// keptIsChecked: whatever lies beside a verdict that has evidence is compared with it, by
// whoever shows it, by audit verify, and by somebody who has a bundle and a key alone.
func (p *project) keptIsChecked(id string) {
	t := p.t
	ctx := t.Context()
	v, dir, err := p.c.Verdict(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	bundle := filepath.Join(t.TempDir(), "b")
	key, err := p.c.BundleVerdict(ctx, id, bundle)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.c.BundleVerdict(ctx, id, bundle); !errors.Is(err, os.ErrExist) {
		t.Errorf("a bundle is written over another one: %v", err)
	}
	verify := func() (found []string) {
		t.Helper()
		r, err := p.c.AuditVerify(ctx, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range r.Findings {
			found = append(found, f.Text)
		}
		if (r.Status == audit.Tampered) != (len(found) > 0) {
			t.Errorf("%s with %q", r.Status, found)
		}
		return found
	}
	offline := func(key string) []string {
		t.Helper()
		r, err := judge.VerifyBundle(ctx, bundle, judge.BundleOptions{Key: key, Tree: v.Change.Digest})
		if err != nil {
			t.Fatal(err)
		}
		if r.Intact != (len(r.Findings) == 0) || r.Intact && r.Verdict.ID != id {
			t.Errorf("%+v", r)
		}
		return r.Findings
	}
	show := func() []string {
		if err := p.c.CheckVerdict(ctx, v, dir); err != nil {
			if !errors.Is(err, judge.ErrLedger) {
				t.Error(err)
			}
			return []string{err.Error()}
		}
		return nil
	}
	all := func(what, name string, bad bool) {
		t.Helper()
		for who, found := range map[string][]string{"audit verify": verify(), "explain": show(), "a bundle": offline(key)} {
			if bad != (len(found) > 0) || bad && !strings.Contains(strings.Join(found, "\n"), name) {
				t.Errorf("%s: %s found %q", what, who, found)
			}
		}
	}
	all("as it was", "", false)
	files := slices.Sorted(maps.Keys(v.Files()))
	if len(files) < 10 {
		t.Fatalf("the verdict names %q", files)
	}
	write := func(name string, b []byte) {
		t.Helper()
		for _, d := range []string{dir, bundle} {
			if err := os.WriteFile(filepath.Join(d, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	text := map[string][]byte{}
	for _, name := range files {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if text[name] = b; len(b) == 0 {
			continue
		}
		flipped := bytes.Clone(b)
		flipped[len(b)/2] ^= 1
		write(name, flipped)
		all(name+" with a flipped bit", name, true)
		write(name, b)
	}
	a, b := "evidence/tests-base/observed.json", "evidence/tests-change/receipt.json"
	write(a, text[b])
	write(b, text[a])
	all("two were exchanged", a, true)
	write(a, text[a])
	write(b, text[b])
	for _, d := range []string{dir, bundle} {
		if err := os.Remove(filepath.Join(d, a)); err != nil {
			t.Fatal(err)
		}
	}
	all("one is gone", a+" is gone", true)
	write(a, text[a])
	all("put back", "", false)

	// Of a bundle alone: another verdict, other signatures, another key.
	for what, x := range map[string]struct {
		file string
		edit func([]byte) []byte
	}{
		"another outcome":    {gate.VerdictFile, func(b []byte) []byte { return bytes.Replace(b, []byte(`"passed"`), []byte(`"failed"`), 1) }},
		"text behind it":     {gate.VerdictFile, func(b []byte) []byte { return append(b, "{}"...) }},
		"no signature":       {judge.AttestationFile, func([]byte) []byte { return nil }},
		"the verdict alone":  {judge.AttestationFile, func(b []byte) []byte { l, _, _ := bytes.Cut(b, []byte("\n")); return l }},
		"a verdict twice":    {judge.AttestationFile, func(b []byte) []byte { l, _, _ := bytes.Cut(b, []byte("\n")); return slices.Concat(l, []byte("\n"), l) }},
		"another payload":    {judge.AttestationFile, func(b []byte) []byte { return bytes.Replace(b, []byte(`"payload":"ey`), []byte(`"payload":"fy`), 1) }},
		"no envelope at all": {judge.AttestationFile, func([]byte) []byte { return []byte("x\n") }},
	} {
		file := filepath.Join(bundle, x.file)
		was, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, x.edit(bytes.Clone(was)), 0o600); err != nil {
			t.Fatal(err)
		}
		if found := offline(key); len(found) == 0 {
			t.Errorf("a bundle with %s is intact", what)
		}
		if err := os.WriteFile(file, was, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	other, err := gate.OpenSigner(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{other.PublicKey(), "", "AAAA"} {
		if found := offline(k); len(found) == 0 {
			t.Errorf("a bundle is intact by the key %q", k)
		}
	}
	all("at the end", "", false)
	// What it is given again by lies elsewhere, too.
	kept := filepath.Join(p.c.judge.GateDir("cache", judge.ShortSum(p.ws)), id+".json")
	was, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(kept, append(was, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	if found := verify(); !slices.Contains(found, "inputs of verdict "+id+" are not what was recorded") {
		t.Errorf("inputs that were changed: %q", found)
	}
	if err := os.WriteFile(kept, was, 0o600); err != nil {
		t.Fatal(err)
	}
}
