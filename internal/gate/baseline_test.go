package gate

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A baseline lets tests be missing that a person accepted, in whatever order and however
// often, and says so to people.
func TestBaselineWithoutTests(t *testing.T) {
	var none *Baseline
	if none.Digest() != "" || none.Lines() != nil || none.removedTests("unit") != nil || none.entry("unit") != nil {
		t.Error("a missing baseline allows something")
	}
	b := none.WithRemovedTests("unit", []string{"b", "a", "b"})
	b.Entries = append(b.Entries, &Entry{Signal: "unit", Image: "host", Lockfiles: "0", Execs: []string{"/bin/sh"}, Reads: []string{}})
	b = b.WithRemovedTests("unit", []string{"c"}).WithRemovedTests("e2e", []string{"x\ny"})
	if got := b.removedTests("unit"); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("unit misses %q", got)
	}
	text, err := b.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseBaseline(text)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	if again.Digest() != hex.EncodeToString(sum[:]) || b.Digest() != "" {
		t.Errorf("digests are %q and %q", again.Digest(), b.Digest())
	}
	want := []string{
		`unit image "host"`, `unit lockfiles "0"`, `unit executes "/bin/sh"`,
		`e2e goes on without test "x\ny"`, `unit goes on without test "a"`, `unit goes on without test "b"`, `unit goes on without test "c"`,
	}
	if got := again.Lines(); !slices.Equal(got, want) {
		t.Errorf("lines are %q", got)
	}
}

// A malformed baseline is refused, with the place of the mistake.
func TestBaselineErrors(t *testing.T) {
	for text, want := range map[string]string{
		`{"schema":"x","entries":[]}`:                          "schema",
		`{"schema":"` + baselineSchema + `","entries":[null]}`: "entries[0]",
		`{"schema":"` + baselineSchema + `","entries":[{"signal":"a","image":"host","lockfiles":"0"},{"signal":"a","image":"host","lockfiles":"0"}]}`: "entries[1]",
		`{"schema":"` + baselineSchema + `","entries":[],"gone":[{"signal":"a","tests":[]}]}`:                                                         "gone[0]",
		`{"schema":"` + baselineSchema + `","entries":[],"gone":[{"signal":"a","tests":["x"]},{"signal":"a","tests":["y"]}]}`:                         "gone[1]",
		`{"schema":"` + baselineSchema + `","entries":[],"more":1}`:                                                                                   "more",
		strings.Repeat(" ", maxBaseline+1): "bytes",
	} {
		if _, err := ParseBaseline([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.100s: %v", text, err)
		}
	}
}

// Merging keeps what other signals may do, and adds up a signal's own entries only if they
// are for one image.
func TestMergeBaselines(t *testing.T) {
	entry := func(signal, image string, execs ...string) *Entry {
		return &Entry{Signal: signal, Image: image, Lockfiles: "0", Execs: execs}
	}
	was := &Baseline{Entries: []*Entry{entry("z", "host", "/z"), entry("unit", "host", "/b", "/a"), entry("build", "old", "/old")}, Removed: []RemovedTests{{Signal: "unit", Tests: []string{"t"}}}}
	next := &Baseline{Entries: []*Entry{entry("unit", "host", "/c", "/a"), entry("build", "new", "/new")}}
	got := MergeBaselines(was, next)
	execs := map[string][]string{}
	for _, e := range got.Entries {
		execs[e.Signal] = e.Execs
	}
	want := map[string][]string{"build": {"/new"}, "unit": {"/a", "/b", "/c"}, "z": {"/z"}}
	if !maps.EqualFunc(execs, want, slices.Equal[[]string]) || got.Entries[0].Signal != "build" || !slices.Equal(got.removedTests("unit"), []string{"t"}) {
		t.Errorf("merged: %v, tests %q", execs, got.removedTests("unit"))
	}
	if d := was.Drift(next); len(d) != 2 || !slices.Equal(d["unit"][0].New, []string{"/c"}) || !slices.Equal(d["build"][0].New, []string{"/new"}) {
		t.Errorf("drift: %v", d)
	}
	if d := (*Baseline)(nil).Drift(next); len(d) != 2 {
		t.Errorf("without a baseline, drift: %v", d)
	}
	if len(MergeBaselines(nil, next).Entries) != 2 {
		t.Error("merging with no baseline loses entries")
	}
}

// A test that the baseline lets be missing is noted; another one that is missing is lost.
func TestBaselineAcceptsRemovedTest(t *testing.T) {
	const catalog = "version: 1\nsignals:\n  - {name: unit, kind: tests, format: junit, command: [sh]}\n"
	base, next := tree(t, map[string]string{"x": "1"}), tree(t, map[string]string{"x": "2"})
	report := func(names ...string) Output {
		text := "<testsuite>"
		for _, n := range names {
			text += `<testcase name="` + n + `"/>`
		}
		text += "</testsuite>"
		return Output{Bytes: []byte(text), Total: int64(len(text))}
	}
	for removed, want := range map[string]Outcome{"gone": Passed, "other": Failed} {
		g := newGate(t, catalog, base, next, func(j Job) *Ended {
			e := ok(saw("/usr/bin/sh"))
			e.Stdout = report("stays")
			if j.On == "base" {
				e.Stdout = report("stays", "gone")
			}
			return e
		})
		g.Baseline = g.Baseline.WithRemovedTests("unit", []string{removed})
		v := verdict(t, g)
		lost := v.LostTests()
		if v.Outcome != want || (want == Passed) != (len(lost) == 0) || want == Failed && !slices.Equal(lost["unit"], []string{"gone"}) {
			t.Errorf("with %s removed: %s, lost %v", removed, v.Outcome, lost)
		}
	}
}

// A directory's fingerprint changes with its files, and only then.
func TestDirFingerprint(t *testing.T) {
	dir := laid(t, map[string]string{"a/x.json": "1", "b": "2"})
	look := func(p string) string {
		t.Helper()
		s, err := DirFingerprint(p)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if look(filepath.Join(dir, "missing")) != absent {
		t.Error("a missing directory has a fingerprint")
	}
	first := look(dir)
	if look(dir) != first {
		t.Error("the fingerprint changed by itself")
	}
	if err := os.Chtimes(filepath.Join(dir, "b"), time.Now(), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	second := look(dir)
	if err := os.WriteFile(filepath.Join(dir, "a", "y.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if third := look(dir); first == second || second == third {
		t.Error("the fingerprint does not show a change")
	}
}

// A check of the host's files that ran early counts for one Miss.
func TestInputsEarly(t *testing.T) {
	x := tree(t, map[string]string{"f": "1"})
	inputs, err := x.treeInputs(t.Context(), map[string]bool{"f": true, "missing": true})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(laid(t, map[string]string{"h": "1"}), "h")
	was, _ := fileFingerprint(file)
	in := &Inputs{Schema: inputsSchema, Given: map[string]string{"build": "1"}, Base: inputs, Change: inputs, Host: map[string]string{file: was}}
	miss := func() string {
		t.Helper()
		why, err := in.Miss(t.Context(), x, x, map[string]string{"build": "1"})
		if err != nil {
			t.Fatal(err)
		}
		return why
	}
	in.CheckHostEarly()
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if why := miss(); why != "" {
		t.Errorf("the early check missed: %s", why)
	}
	if why := miss(); !strings.Contains(why, "is gone") {
		t.Errorf("the second check says %q", why)
	}
	in.Schema = "older"
	if why := miss(); !strings.Contains(why, "another carboy") {
		t.Errorf("inputs of another schema: %q", why)
	}
}

// A change that no tree can hold tells which file is wrong.
func TestChangeErrorUnwraps(t *testing.T) {
	var bad *TreeError
	err := error(&ChangeError{&TreeError{"run", "a/b", "is a socket"}})
	if !errors.As(err, &bad) || bad.Path != "a/b" || !strings.Contains(err.Error(), `"a/b": is a socket`) {
		t.Errorf("%v", err)
	}
}

// All URLs of a remote are found, also those that only a fetch or a push would use.
func TestRemotes(t *testing.T) {
	c := newClone(t, map[string]string{"f": "1"})
	c.run("remote", "add", "origin", "https://one.example/x.git")
	c.run("remote", "set-url", "--add", "origin", "https://two.example/x.git")
	c.run("remote", "add", "up", "git@three.example:x.git")
	got, err := c.Remotes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{"origin": {"https://one.example/x.git", "https://two.example/x.git"}, "up": {"git@three.example:x.git"}}
	if !maps.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Errorf("remotes: %v", got)
	}
	if !c.IsWorkTree(t.Context()) {
		t.Error("a clone is no work tree")
	}
	none := &Repository{Dir: t.TempDir(), Runner: c.Runner}
	if _, err := none.Remotes(t.Context()); err == nil || none.IsWorkTree(t.Context()) {
		t.Error("an empty directory is a work tree")
	}
}
