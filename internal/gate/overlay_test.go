package gate

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/change"
)

// written returns a stored set of changes: files with their contents, and others.
func written(t testing.TB, files map[string]string, others ...change.Change) *change.Set {
	t.Helper()
	dir := t.TempDir()
	set := change.Set{Schema: change.Schema, Changes: others}
	var pack []byte
	for name, text := range files {
		set.Changes = append(set.Changes, change.Change{Path: change.Bytes(name), Kind: change.Add, Type: change.File, Mode: 0o644, Size: int64(len(text)), Offset: int64(len(pack))})
		pack = append(pack, text...)
	}
	b, err := json.Marshal(&set)
	if err != nil {
		t.Fatal(err)
	}
	upper := filepath.Join(dir, "upper")
	if err := errors.Join(os.Mkdir(upper, 0o700), os.WriteFile(filepath.Join(upper, "changes.json"), b, 0o600), os.WriteFile(filepath.Join(upper, "pack"), pack, 0o600)); err != nil {
		t.Fatal(err)
	}
	out, err := change.OpenSet(dir)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Every kind of change that a run can make is in the tree, and nothing else.
func TestWithChanges(t *testing.T) {
	base := tree(t, map[string]string{"a/b": "1", "a/c": "2", "d/e": "3", "run": "4", "old": "5", "f": "6"})
	next, err := WithChanges("run r", "r", base, written(t, map[string]string{"d": "a file now", "new/x": "7", ".git/config": "evil"},
		change.Change{Path: "a", Kind: change.Delete, Type: change.Dir},
		change.Change{Path: "run", Kind: change.Mode, Type: change.File, Mode: 0o755},
		change.Change{Path: "missing", Kind: change.Mode, Type: change.File, Mode: 0o755},
		change.Change{Path: "old", Kind: change.Retype, Type: change.Symlink, Target: "f"},
		change.Change{Path: "f", Kind: change.Retype, Type: change.Dir},
		change.Change{Path: "empty", Kind: change.Add, Type: change.Dir},
	))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	err = next.Each(t.Context(), func(File) bool { return true }, func(f File, b []byte) error {
		got = append(got, fmt.Sprintf("%s %o %s", f.Path, f.Mode, b))
		return nil
	})
	slices.Sort(got)
	if want := []string{"d 100644 a file now", "new/x 100644 7", "old 120000 f", "run 100755 4"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	for why, c := range map[string]change.Change{
		"not kept":           {Path: "x", Kind: change.Add, Type: change.File, Omitted: "too large"},
		"a tree cannot hold": {Path: "x", Kind: change.Add, Type: change.Socket},
		"git's own files":    {Path: "x/.git/config", Kind: change.Add, Type: change.File},
	} {
		var bad *ChangeError
		if _, err := WithChanges("run r", "r", base, &change.Set{Changes: []change.Change{c}}); !errors.As(err, &bad) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
	}
}

// A report that a phase writes to a file is read from its changes; a phase that wrote none
// has no facts.
func TestReportsInFiles(t *testing.T) {
	const catalog = `version: 1
signals:
  - {name: cover, kind: coverage, command: [go, test], profile: c.out, min: 80}
  - {name: unit, kind: tests, format: junit, command: [sh], results: out/r.xml}
`
	base, next := tree(t, map[string]string{"x": "1"}), tree(t, map[string]string{"x": "2"})
	profile := func(hit int) string {
		return fmt.Sprintf("mode: set\na.go:1.1,2.2 %d 1\na.go:3.1,4.2 %d 0\n", hit, 10-hit)
	}
	const report = `<testsuite><testcase name="t"/></testsuite>`
	for _, x := range []struct {
		files       map[string]string
		code        int
		cover, unit Outcome
		says        string
	}{
		{map[string]string{"c.out": profile(8), "out/r.xml": report}, 0, Passed, Passed, ""},
		{map[string]string{"c.out": profile(7), "out/r.xml": report}, 0, Failed, Passed, "7 of 10 statements"},
		{map[string]string{"c.out": profile(8), "out/r.xml": report}, 1, Failed, Escalated, "ended with 1"},
		{map[string]string{"c.out": "no profile", "out/r.xml": "<x/>"}, 0, Unavailable, Unavailable, "not a cover profile"},
		{map[string]string{"other": ""}, 0, Unavailable, Unavailable, "it wrote no file c.out"},
		{nil, 0, Unavailable, Unavailable, "what it wrote was not kept"},
	} {
		g := newGate(t, catalog, base, next, func(Job) *Ended {
			e := ok(saw("/usr/bin/sh"))
			e.Code = x.code
			if x.files != nil {
				e.Changes = written(t, x.files)
			}
			return e
		})
		v := verdict(t, g)
		said := v.Failing()
		for _, r := range v.Signals {
			said += " " + r.Why
			for _, f := range r.Findings {
				said += " " + f.Text
			}
		}
		if v.Signals[0].Outcome != x.cover || v.Signals[1].Outcome != x.unit || !strings.Contains(said, x.says) {
			t.Errorf("%v, exit %d: %s, %s: %s", x.files, x.code, v.Signals[0].Outcome, v.Signals[1].Outcome, said)
		}
	}
}

// A change that exceeds a bound is rejected with the number; one that has too many files
// is not examined further.
func TestPolicyBounds(t *testing.T) {
	base := tree(t, map[string]string{"x": "1"})
	next := tree(t, map[string]string{"x": "1\n2\n3\n", "y": "123456789", "z": "\x00"})
	for bounds, want := range map[string]string{
		"max_files: 3":                     "binary",
		"max_files: 2":                     "too-many-files",
		"max_bytes: 10, binaries: allowed": "too-many-bytes",
		"max_lines: 2, binaries: allowed":  "too-many-lines",
		"binaries: allowed":                "",
	} {
		v := verdict(t, newGate(t, "version: 1\nsignals:\n  - {name: p, kind: policy, "+bounds+"}\n", base, next, nil))
		var ids []string
		for _, f := range v.Signals[0].Findings {
			ids = append(ids, f.ID)
		}
		if got := strings.Join(ids, " "); got != want || (want == "") != (v.Outcome == Passed) || want != "" && v.Outcome != Final {
			t.Errorf("%s: %s %q", bounds, v.Outcome, got)
		}
	}
}
