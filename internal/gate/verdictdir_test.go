package gate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/change"
)

// A verdict or baseline is one document: text after it, which another reader may take for
// a second one, is refused.
func TestOneDocument(t *testing.T) {
	v := verdict(t, newGate(t, buildOnly, tree(t, nil), tree(t, nil), func(Job) *Ended { return ok(saw("/usr/bin/make")) }))
	vtext, err := v.Encode()
	if err != nil {
		t.Fatal(err)
	}
	btext, err := (&Baseline{Entries: []*Entry{{Signal: "b", Image: "host", Lockfiles: "l"}}}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	for what, x := range map[string]struct {
		text  string
		parse func(string) error
	}{
		"a verdict":  {string(vtext), func(s string) error { _, err := ParseVerdict([]byte(s)); return err }},
		"a baseline": {string(btext), func(s string) error { _, err := ParseBaseline([]byte(s)); return err }},
	} {
		for _, behind := range []string{"", "\n", " \t\r\n"} {
			if err := x.parse(x.text + behind); err != nil {
				t.Errorf("%s with %q behind it: %v", what, behind, err)
			}
		}
		for _, bad := range []string{
			x.text + "x", x.text + "{}", x.text + x.text, x.text + "]", x.text + "}", x.text + "\x00", x.text + "null", "\ufeff" + x.text, "", "null", "{}", "[]",
			strings.Replace(x.text, `"schema"`, `"more": 1, "schema"`, 1), strings.Replace(x.text, "/v1", "/v2", 1),
			strings.Replace(x.text, `"signals": [`, `"signals": [null,`, 1), strings.Replace(x.text, `"phases": [`, `"phases": [null,`, 1),
			strings.Replace(x.text, `"phases": [`, `"phases": [{"signal":"b","on":"base"},`, 1), strings.Replace(x.text, `"entries": [`, `"entries": [null,`, 1),
		} {
			if bad == x.text {
				continue // the other's field
			}
			if err := x.parse(bad); err == nil {
				t.Errorf("%s is read: %.60q", what, bad)
			}
		}
	}
}

// Each file beside a verdict that was altered, cut, swapped, removed, replaced by a link
// or added is reported.
func TestKeptIsChecked(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{
		ProposedFile: "{}", InputsFile: "[]", "evidence/t-base/stdout": "one", "evidence/t-base/stderr": "two", "evidence/t-change/stdout": "three", "evidence/t-change/trace": "",
	}
	v := &Verdict{Phases: []*Phase{{Signal: "t", On: "base", Ended: &Ended{Evidence: map[string]string{}}}, {Signal: "t", On: "change", Ended: &Ended{Evidence: map[string]string{}}}}}
	path := func(name string) string { return filepath.Join(dir, name) }
	put := func(name, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path(name)), 0o755), os.RemoveAll(path(name)), os.WriteFile(path(name), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range files {
		put(name, text)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	sum := func(name string) string {
		s, err := FileDigest(t.Context(), root, name, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	v.Proposed, v.Inputs = sum(ProposedFile), sum(InputsFile)
	for name := range files {
		for _, p := range v.Phases {
			if f, ok := strings.CutPrefix(name, p.EvidenceOf()+"/"); ok {
				p.Evidence[f] = sum(name)
			}
		}
	}
	check := func() []string {
		t.Helper()
		found, err := v.Check(t.Context(), root)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := check(); len(found) > 0 || len(v.Files()) != len(files) {
		t.Fatalf("as it was: %q, of %d files", found, len(v.Files()))
	}
	other := t.TempDir() + "/same"
	for name, text := range files {
		if err := os.WriteFile(other, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for what, do := range map[string]func() error{
			"longer":  func() error { put(name, text+"\n"); return nil },
			"flipped": func() error { put(name, strings.Map(func(r rune) rune { return r ^ 1 }, text)+text[:0]); return nil },
			"cut":     func() error { put(name, text[:max(0, len(text)-1)]); return nil },
			"removed": func() error { return os.Remove(path(name)) },
			"a link":  func() error { return errors.Join(os.Remove(path(name)), os.Symlink(other, path(name))) },
			"a dir":   func() error { return errors.Join(os.Remove(path(name)), os.Mkdir(path(name), 0o755)) },
		} {
			if text == "" && (what == "flipped" || what == "cut") {
				continue
			}
			if err := do(); err != nil {
				t.Fatal(err)
			}
			if found := check(); len(found) == 0 || !strings.HasPrefix(found[0], name+" is ") {
				t.Errorf("%s, %s: %q", name, what, found)
			}
			put(name, text)
		}
	}
	a, b := "evidence/t-base/stdout", "evidence/t-change/stdout"
	put(a, files[b])
	put(b, files[a])
	if found := check(); len(found) != 2 {
		t.Errorf("two were exchanged: %q", found)
	}
	put(a, files[a])
	put(b, files[b])
	for _, name := range []string{"evidence/t-base/more", "evidence/more", "evidence/u-base/stdout"} {
		put(name, "x")
		named := name
		if strings.Contains(name, "/u-base/") { // all of that directory
			named = filepath.Dir(name)
		}
		if found := check(); !slices.Equal(found, []string{named + " is not of the verdict"}) {
			t.Errorf("one was added: %q", found)
		}
		os.RemoveAll(path(named))
	}
	empty := "evidence/t-base/d"
	if err := os.Mkdir(path(empty), 0o755); err != nil {
		t.Fatal(err)
	}
	if found := check(); !slices.Equal(found, []string{empty + " is not of the verdict"}) {
		t.Errorf("an empty directory was added: %q", found)
	}
	os.Remove(path(empty))

	// Of what somebody handed over, nothing else may lie beside it.
	bundle := func() []string {
		t.Helper()
		found, err := v.CheckBundle(t.Context(), root, "signatures")
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	put(VerdictFile, "{}")
	put("signatures", "x")
	if found := bundle(); len(found) > 0 {
		t.Fatalf("a bundle as it was: %q", found)
	}
	for _, name := range []string{"report.html", "d/e", ".x", "verdict.json~"} {
		put(name, "x")
		name, _, _ = strings.Cut(name, "/")
		if found := bundle(); !slices.Equal(found, []string{name + " is not of the verdict"}) {
			t.Errorf("%s was added to a bundle: %q", name, found)
		}
		if found := check(); len(found) > 0 {
			t.Errorf("beside carboy's own: %q", found)
		}
		os.RemoveAll(path(name))
	}
	// One without end is not read to its end.
	if err := os.Truncate(path(a), MaxBundleFile+1); err != nil {
		t.Fatal(err)
	}
	if found := bundle(); len(found) != 1 || !strings.HasPrefix(found[0], a+" has more than") {
		t.Errorf("%q", found)
	}
	over, stop := context.WithCancel(t.Context())
	stop()
	if _, err := FileDigest(over, root, a, math.MaxInt64); !errors.Is(err, context.Canceled) {
		t.Errorf("it is read on when nobody waits: %v", err)
	}
	put(a, files[a])
	if found := bundle(); len(found) > 0 {
		t.Errorf("put back: %q", found)
	}
	if err := errors.Join(os.Rename(path(EvidenceDir), other+".d"), os.Symlink(other+".d", path(EvidenceDir))); err != nil {
		t.Fatal(err)
	}
	if found, err := v.Check(t.Context(), root); err == nil && len(found) == 0 {
		t.Error("evidence that lies behind a link out of the directory is taken for its own")
	}
	v.Proposed, v.Inputs, v.Phases = "", "", nil
	if err := os.Remove(path(EvidenceDir)); err != nil {
		t.Fatal(err)
	}
	if found := check(); len(found) != 2 {
		t.Errorf("a verdict that names nothing has an inputs file and a baseline: %q", found)
	}
}

// All forms of a verdict show the beginning and the end of a failing test's output, in
// whole lines and without terminal escapes.
func TestFailuresAreShown(t *testing.T) {
	long := strings.Repeat("so it goes on\n", 4000)
	events := func(lines ...string) string {
		var b strings.Builder
		b.WriteString(`{"Action":"run","Package":"m","Test":"TestA"}` + "\n" + `{"Action":"output","Package":"m","Test":"TestA","Output":"=== RUN   TestA\n"}` + "\n")
		for _, l := range lines {
			out, err := json.Marshal(l)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, `{"Action":"output","Package":"m","Test":"TestA","Output":%s}`+"\n", out)
		}
		b.WriteString(`{"Action":"fail","Package":"m","Test":"TestA"}` + "\n")
		return b.String()
	}
	whole := strings.SplitAfter(long, "\n")
	for _, x := range []struct{ format, report string }{
		{"go", events(append(append([]string{"a_test.go:1: begins\n"}, whole...), "got 41, \x07not 42\n")...)},
		{"pytest", "<testsuite><testcase classname=\"m\" name=\"TestA\"><failure message=\"begins\">" + long + "got 41, \u202enot 42\n</failure></testcase></testsuite>"},
		{"junit", "<testsuite><testcase classname=\"m\" name=\"TestA\"><error message=\"begins\n" + long + "got 41, not 42\"/></testcase></testsuite>"},
		{"jest", fmt.Sprintf(`{"testResults":[{"name":"/workspace/m","assertionResults":[{"fullName":"TestA","status":"failed","failureMessages":[%q,"got 41, not 42"]}]}]}`, "begins\n"+long)},
	} {
		inv, err := parsers[x.format]([]byte(x.report))
		if err != nil || len(inv.tests) != 1 {
			t.Fatalf("%s: %v %v", x.format, inv, err)
		}
		var id string
		for id = range inv.tests {
		}
		r := &Result{Name: "tests", Kind: "tests", Outcome: Failed, Findings: []Finding{{ID: id, Text: "the test fails", Detail: headAndTail(strings.Trim(inv.output[id], "\n"), maxDetail)}}}
		r.seal(nil)
		v := &Verdict{Outcome: Failed, Signals: []*Result{r}}
		var text, all, junit, html bytes.Buffer
		v.Text(&text, false)
		v.Text(&all, true)
		if err := errors.Join(v.JUnit(&junit), v.HTML(&html)); err != nil {
			t.Fatal(err)
		}
		told, err := v.Feedback(nil)
		if err != nil {
			t.Fatal(err)
		}
		for form, b := range map[string]*bytes.Buffer{"terminal": &text, "explain": &all, "JUnit": &junit, "HTML": &html, "agent": bytes.NewBufferString(told)} {
			s := b.String()
			if !strings.Contains(s, "got 41, ") || form != "terminal" && !strings.Contains(s, "begins") || strings.ContainsAny(s, "\x07\u202e") || strings.Contains(s, "=== RUN") {
				t.Errorf("%s in the %s: %q", x.format, form, truncate(s, 3000))
			}
			for line := range strings.Lines(s) {
				if i := strings.Index(line, "so it"); i >= 0 && !strings.Contains(line, "so it goes on") {
					t.Errorf("%s in the %s: half a line: %q", x.format, form, line)
				}
			}
		}
		if n := strings.Count(text.String(), "\n"); n > 16 || strings.Count(text.String(), "| ") > maxDetailLines {
			t.Errorf("%s: the terminal has %d lines", x.format, n)
		}
	}
	// Many tests: a terminal is not flooded, and neither is a forge.
	r := &Result{Name: "tests", Kind: "tests", Outcome: Failed}
	for i := range 900 {
		r.Findings = append(r.Findings, Finding{ID: fmt.Sprintf("T%d", i), Text: "the test fails", Detail: long[:1900]})
	}
	r.seal(nil)
	v := &Verdict{Outcome: Failed, Signals: []*Result{r, r, r, r, r, r, r, r}}
	var text, junit bytes.Buffer
	v.Text(&text, false)
	if err := v.JUnit(&junit); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(text.String(), "| "); n != maxDetailLinesAll {
		t.Errorf("%d lines of what was printed are shown, want %d", n, maxDetailLinesAll)
	}
	if n := junit.Len(); n > 8*(maxFailure+900*40+4000) || !strings.Contains(junit.String(), "T899") {
		t.Errorf("forges get %d bytes", n)
	}
}

// Several signals that need the same phase of the base share one run, also at the same
// time.
func TestBaseRunsOnce(t *testing.T) {
	const catalog = `version: 1
signals:
  - {name: deps, kind: build, command: [make], keep: [deps]}
  - {name: gen, kind: build, command: [make], keep: [gen]}
  - {name: a, kind: tests, format: junit, command: [sh], after: [deps]}
  - {name: b, kind: tests, format: junit, command: [sh], after: [deps, gen]}
`
	base, next := tree(t, map[string]string{"x": "1"}), tree(t, map[string]string{"x": "2"})
	var mu sync.Mutex
	ran := map[string]int{}
	g := newGate(t, catalog, base, next, func(j Job) *Ended {
		mu.Lock()
		ran[j.Signal+" "+j.On]++
		mu.Unlock()
		time.Sleep(50 * time.Millisecond) // so that the others come to wait for it
		e := ok(saw("/usr/bin/sh"))
		e.Changes = &change.Set{}
		e.Stdout = Output{Bytes: []byte(`<testsuite><testcase name="t"/></testsuite>`), Total: 43}
		return e
	})
	v := verdict(t, g)
	if v.Outcome != Passed {
		for _, r := range v.Signals {
			t.Errorf("%s %s %s", r.Name, r.Outcome, r.Why)
		}
	}
	if len(ran) != 8 || len(v.Phases) != 8 {
		t.Errorf("%d phases: %v", len(v.Phases), ran)
	}
	for what, n := range ran {
		if n != 1 {
			t.Errorf("%s ran %d times", what, n)
		}
	}
}

// Answers of git are accepted only if they are what was asked for.
func TestReadObjects(t *testing.T) {
	const id = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
	for said, want := range map[string]string{
		id + " blob 3\nabc\n":                    "blob:abc",
		"x missing\n":                            ":",
		id + " blob 0\n\n":                       "blob:",
		id + " blob 3\nabc":                      "unexpected EOF",
		id + " blob 3\nab":                       "unexpected EOF",
		id + " blob 3":                           "unexpected EOF",
		"":                                       "unexpected EOF",
		id + " blob -1\n\n":                      "more than a gate reads",
		id + " blob 999999999999999999999\n":     "more than a gate reads",
		id + " blob 300000000\n":                 "more than a gate reads",
		id + " blob 3\nabc\nmore\n":              "more than it was asked",
		strings.Repeat("x", 100<<10) + "\nabc\n": "buffer full",
	} {
		got := ""
		err := readObjects(strings.NewReader(said), 1, func(x gitObject) error {
			got = x.kind + ":" + string(x.body)
			return nil
		})
		if err != nil {
			got = err.Error()
		}
		if (err == nil) != (strings.Contains(want, ":")) || !strings.Contains(got, want) {
			t.Errorf("%.60q: %q, want %q", said, got, want)
		}
	}
}
