package carboy

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/testenv"
)

var updateTable = flag.Bool("update", false, "rewrite the table of docs/gates.md, and testdata/api.txt")

// gateChange is one of testdata/gate/changes.yaml.
type gateChange struct {
	what, says string
	do         []gateStep
	caught     []string
	bottle     bool // also in a short run
}

type gateStep struct {
	op, arg string
	more    map[string]string
	number  int
}

var gateSteps = []string{"write", "append", "replace", "remove", "rename", "link", "executable", "token", "binary", "fill", "many", "submodule", "commit"}

func loadGateChanges(t *testing.T) (out []gateChange) {
	t.Helper()
	const name = "testdata/gate/changes.yaml"
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	doc, top, err := document.Parse(name, b)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range top.Mapping("changes").Need("changes").List() {
		m := v.Mapping("what", "do", "caught", "says", "bottle")
		c := gateChange{what: m.Need("what").Text(), says: m.Get("says").Text(), caught: m.Get("caught").Strings(), bottle: m.Get("bottle").Text() == "always"}
		for _, s := range m.Need("do").List() {
			sm := s.Mapping(append([]string{"text", "old", "new", "to", "size", "count"}, gateSteps...)...)
			step := gateStep{more: map[string]string{"text": sm.Get("text").Text(), "old": sm.Get("old").Text(), "new": sm.Get("new").Text(), "to": sm.Get("to").Text()}}
			step.number = int(sm.Get("size").Int(0, 1, 1<<20) + sm.Get("count").Int(0, 1, 1000))
			for _, op := range gateSteps {
				if sm.Get(op).Present() {
					step.op, step.arg = op, sm.Get(op).Text()
				}
			}
			if step.op == "" {
				s.Bad("does nothing", "")
			}
			c.do = append(c.do, step)
		}
		out = append(out, c)
	}
	if err := doc.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// madeToken looks like a token; it stands in no file, so that no scanner takes it for a
// leak.
var madeToken = "ghp_" + "9876543210abcdefghijABCDEFGHIJ654321"

func (p *project) step(s gateStep) {
	p.t.Helper()
	at := filepath.Join(p.ws, s.arg)
	read := func() string {
		b, err := os.ReadFile(at)
		if err != nil {
			p.t.Fatal(err)
		}
		return string(b)
	}
	var err error
	switch s.op {
	case "write":
		p.put(s.arg, s.more["text"])
	case "append":
		p.put(s.arg, read()+s.more["text"])
	case "replace":
		was := read()
		if !strings.Contains(was, s.more["old"]) {
			p.t.Fatalf("%s does not have %q", s.arg, s.more["old"])
		}
		p.put(s.arg, strings.ReplaceAll(was, s.more["old"], s.more["new"]))
	case "remove":
		err = os.Remove(at)
	case "rename":
		err = os.Rename(at, filepath.Join(p.ws, s.more["to"]))
	case "link":
		err = os.Symlink(s.more["to"], at)
	case "executable":
		err = os.Chmod(at, 0o755)
	case "token":
		p.put(s.arg, "KEY = \""+madeToken+"\"\n")
	case "binary":
		p.put(s.arg, strings.Repeat("text\n", 3000)+"\x7fELF\x00\x01\x02")
	case "fill":
		p.put(s.arg, strings.Repeat("A line of text that is not short.\n", s.number/34))
	case "many":
		for i := range s.number {
			p.put(fmt.Sprintf("%s/m%02d.py", s.arg, i), "x = 1\n")
		}
	case "submodule":
		p.git("update-index", "--add", "--cacheinfo", "160000,"+p.git("rev-parse", "HEAD")+","+s.arg)
		err = os.MkdirAll(at, 0o755)
	case "commit":
		p.git("add", "-A")
		p.git("commit", "-q", "--allow-empty", "-m", strings.ReplaceAll(s.arg, "{token}", madeToken))
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// staticSignals run nothing.
var staticSignals = []string{"policy", "secrets", "advisories", "licences", unjudged}

// unjudged is said of a change that is not judged at all.
const unjudged = "refused"

// TestT2Detection makes each change of testdata/gate to a small project, and judges it:
// what must be caught is, by the signals that are said, and what must pass does. All
// are judged by the signals that run nothing, some of them with bottles; with
// CARBOY_TEST_EVERY_CHANGE=1 all are.
func TestT2Detection(t *testing.T) {
	changes := loadGateChanges(t)
	checkGateTable(t, changes)
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		testenv.Missing(t, "/usr/bin/python3", "apt-get install python3")
	}
	every := os.Getenv("CARBOY_TEST_EVERY_CHANGE") == "1"
	files := map[string]string{}
	for from, to := range map[string]string{"testdata/gate/project": "", "testdata/gate/gate.yaml": gate.CatalogPath} {
		err := filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			b, err := os.ReadFile(name)
			rel, _ := filepath.Rel(from, name)
			if to != "" {
				rel = to
			}
			files[rel] = string(b)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	p := newProject(t, files)
	advisories(t, p)
	j := p.judge(judge.GateOptions{Base: "HEAD"})
	if got := notPassed(j.Verdict); strings.Join(got, " ") != "trace" {
		var text bytes.Buffer
		j.Text(&text, true)
		t.Fatalf("without a baseline: %v\n%s", got, text.String())
	}
	if _, err := p.c.AcceptBaseline(t.Context(), p.ws, j.ID, unsigned); err != nil {
		t.Fatal(err)
	}
	base := p.commit()
	// The signals that run nothing, from the user's own catalog.
	static := filepath.Join(filepath.Dir(p.ws), "static.yaml")
	head, _, _ := strings.Cut(files[gate.CatalogPath], "  - {name: build,")
	for _, runner := range []string{"build.py", "check.py"} {
		head = strings.Replace(head, "frozen: [", "frozen: ["+runner+", ", 1)
	}
	if err := os.WriteFile(static, []byte(head), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range changes {
		t.Run(c.what, func(t *testing.T) {
			p := &project{p.world, t}
			p.git("reset", "-q", "--hard", base)
			p.git("clean", "-fdq")
			for _, s := range c.do {
				p.step(s)
			}
			if c.do[len(c.do)-1].op == "submodule" {
				p.git("commit", "-q", "-m", "x")
			} else {
				p.commit()
			}
			want := slices.DeleteFunc(slices.Clone(c.caught), func(s string) bool { return !slices.Contains(staticSignals, s) })
			p.detect(c, want, judge.GateOptions{Base: base, Again: true, Catalog: static})
			if c.bottle && !testing.Short() || every {
				p.detect(c, c.caught, judge.GateOptions{Base: base, Again: true})
			}
		})
	}
}

// detect judges, and compares who caught it. What is said is said where all of them look.
func (p *project) detect(c gateChange, want []string, o judge.GateOptions) {
	p.t.Helper()
	o.Dir = p.ws
	j, err := p.c.Gate(context.Background(), o)
	var bad *gate.TreeError
	if errors.As(err, &bad) && slices.Equal(want, []string{unjudged}) && strings.Contains(err.Error(), c.says) {
		return
	}
	if err != nil {
		p.t.Fatal(err)
	}
	var text bytes.Buffer
	j.Text(&text, true)
	got := notPassed(j.Verdict)
	slices.Sort(got)
	if !slices.Equal(got, want) || (len(got) == 0) != (j.Outcome == gate.Passed) {
		p.t.Errorf("%s, caught by %v, want %v\n%s", j.Outcome, got, want, text.String())
	}
	if len(want) == len(c.caught) && !strings.Contains(text.String(), c.says) {
		p.t.Errorf("the verdict does not say %q\n%s", c.says, text.String())
	}
}

// advisories puts the data's own where carboy looks for some.
func advisories(t *testing.T, p *project) {
	t.Helper()
	at, err := p.c.judge.Advisories()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(at, os.DirFS("testdata/gate/osv")); err != nil {
		t.Fatal(err)
	}
}

const (
	tableBegin = "<!-- made from testdata/gate/changes.yaml by go test . -run TestT2Detection -update -->\n"
	tableEnd   = "<!-- end -->\n"
)

// checkGateTable compares the page with the data.
func checkGateTable(t *testing.T, changes []gateChange) {
	t.Helper()
	var table strings.Builder
	var by []string // what catches, in the order of the data
	caught, n, pass := map[string][]string{}, 0, 0
	for _, c := range changes {
		if len(c.caught) == 0 {
			pass++
			continue
		}
		n++
		k := strings.Join(c.caught, ", ")
		if caught[k] == nil {
			by = append(by, k)
		}
		caught[k] = append(caught[k], c.what)
	}
	table.WriteString("\n| Caught by | a change |\n|---|---|\n")
	for _, k := range by {
		fmt.Fprintf(&table, "| %s | %s |\n", k, strings.Join(caught[k], "; "))
	}
	fmt.Fprintf(&table, "\n%d harmless changes of [the data](../testdata/gate/changes.yaml) must pass, and do.\n\n", pass)
	if n < 25 || pass < 25 {
		t.Errorf("%d changes must be caught, %d pass: 25 of each, at least", n, pass)
	}
	const name = "docs/gates.md"
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), tableBegin)
	_, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", name)
	}
	if now := before + tableBegin + table.String() + tableEnd + after; now != string(page) {
		if !*updateTable {
			t.Errorf("%s does not show testdata/gate/changes.yaml: go test . -run TestT2Detection -update", name)
		} else if err := os.WriteFile(name, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
