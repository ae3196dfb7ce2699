package gate

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/document"
)

func init() {
	Register(Kind{Name: "policy", Summary: "which files a change may touch, how large it may be, binaries, links out", Final: true, Keys: []string{"frozen", "max_files", "max_bytes", "max_lines", "binaries", "links_out", "executables", "protected", "runners", "look_alikes"}}, func(s *Signal, m document.Mapping) Judge[policyFacts] {
		p := policy{
			frozen: m.Get("frozen").Strings(), files: m.Get("max_files").Int(1000, 1, MaxFiles), bytes: or(m.Get("max_bytes").Size(), 8<<20),
			lines:    m.Get("max_lines").Int(20_000, 1, 1<<30),
			binaries: m.Get("binaries").OneOf("refused", "allowed") == "allowed", links: m.Get("links_out").OneOf("refused", "allowed") == "allowed",
			executables: m.Get("executables").OneOf("refused", "allowed") == "allowed",
			protected:   m.Get("protected").OneOf("refused", "allowed") == "allowed",
			runners:     m.Get("runners").OneOf("frozen", "may-change") == "may-change",
			alike:       m.Get("look_alikes").OneOf("refused", "allowed") == "allowed",
		}
		s.freezes = !p.runners
		for _, pat := range p.frozen {
			if _, err := path.Match(pat, "x"); err != nil || pat == "" {
				m.Get("frozen").Bad("has a pattern that is none: "+pat, "")
			}
		}
		return p.judge
	})
}

type policy struct {
	frozen                       []string
	files, bytes, lines          int64
	binaries, links, executables bool
	protected, runners, alike    bool
}

// alwaysFrozen judge every change, or run where it lands.
var alwaysFrozen = []string{".carboy/**", ".git/**"}

type policyFacts struct {
	Looked  bool     `json:"looked"`
	Files   int64    `json:"files"`
	Bytes   int64    `json:"bytes"`
	Lines   int64    `json:"lines"`
	Tests   []string `json:"test_files,omitempty"`
	Frozen  []string `json:"frozen_touched,omitempty"`
	Binary  []string `json:"binaries,omitempty"`
	Links   []string `json:"links_out,omitempty"`
	Exec    []string `json:"made_executable,omitempty"`
	TooMuch []string `json:"past_bounds,omitempty"`
	// Protected are run by a host or a server by themselves, Alike may be taken for
	// another file.
	Protected []string `json:"protected_touched,omitempty"`
	Alike     []string `json:"look_alikes,omitempty"`
}

func (f policyFacts) Positive() bool {
	return f.Looked && len(f.Frozen)+len(f.Binary)+len(f.Links)+len(f.Exec)+len(f.TooMuch)+len(f.Protected)+len(f.Alike) == 0
}

func (p policy) judge(ctx context.Context, c *Case) (policyFacts, []Finding, error) {
	diff, err := c.Change.Differences(ctx, c.Base)
	if err != nil {
		return policyFacts{}, nil, err
	}
	f := policyFacts{Looked: true, Files: int64(len(diff))}
	var found []Finding
	say := func(list *[]string, id, file, text string) {
		if len(*list) < 200 {
			*list = append(*list, file)
		}
		found = append(found, Finding{ID: id, File: file, Text: text})
	}
	changed := map[string]bool{}
	names, err := namesOf(ctx, c.Base)
	if err != nil {
		return policyFacts{}, nil, err
	}
	var judges *runners
	if !p.runners && c.g != nil {
		if judges, err = c.g.Catalog.runners(ctx, c.Base, names); err != nil {
			return policyFacts{}, nil, err
		}
	}
	alike := map[string]string{}
	for _, x := range c.Change.Files {
		if k := change.FoldName(x.Path); alike[k] == "" {
			alike[k] = x.Path
		} else {
			alike[k] += "\x00" + x.Path
		}
	}
	for _, d := range diff {
		known := names.of(d.Path)
		if slices.ContainsFunc(known, func(n string) bool { return matches(p.frozen, n) || matches(alwaysFrozen, n) }) {
			say(&f.Frozen, "frozen", d.Path, "no change may touch this file")
		} else if why, err := judges.why(ctx, d, c.Base, c.Change, known); err != nil {
			return f, found, err
		} else if why != "" {
			say(&f.Frozen, "runner", d.Path, why+", so it judges the change (runners: may-change)")
		}
		if !p.protected && !matches(alwaysFrozen, d.Path) {
			typ := change.File
			if d.Change != nil && d.Change.Mode == Link {
				typ = change.Symlink
			}
			for _, why := range (change.Policy{CI: true}).Path(d.Path, typ) {
				say(&f.Protected, "protected", d.Path, why.Why+" (protected: allowed)")
				break
			}
			if why := gitObeys[path.Base(d.Path)]; why != "" {
				say(&f.Protected, "protected", d.Path, why+" (protected: allowed)")
			}
		}
		if all := strings.Split(alike[change.FoldName(d.Path)], "\x00"); d.Change != nil && d.Base == nil && len(all) > 1 && !p.alike {
			other := all[0]
			if other == d.Path {
				other = all[1]
			}
			say(&f.Alike, "look-alike", d.Path, "on other file systems it is the same as "+other+" (look_alikes: allowed)")
		}
		if isTestFile(d.Path) {
			f.Tests = append(f.Tests, d.Path)
			found = append(found, Finding{ID: "test-file", File: d.Path, Noted: true, Text: "the change touches a file of tests"})
		}
		if d.Change == nil {
			continue
		}
		changed[d.Path] = true
		if d.Change.Mode == Executable && (d.Base == nil || d.Base.Mode != Executable) && !p.executables {
			say(&f.Exec, "executable", d.Path, "the change makes it executable (executables: allowed)")
		}
	}
	err = c.Change.Each(ctx, func(x File) bool { return changed[x.Path] }, func(x File, b []byte) error {
		f.Bytes += int64(len(b))
		if x.Mode == Link {
			if out, why := leadsOut(x.Path, string(b)); out && !p.links {
				say(&f.Links, "link-out", x.Path, why)
			}
			return nil
		}
		f.Lines += int64(bytes.Count(b, []byte("\n")))
		if bytes.IndexByte(b, 0) >= 0 && !p.binaries {
			say(&f.Binary, "binary", x.Path, "a binary file can't be reviewed (binaries: allowed)")
		}
		return nil
	})
	for _, x := range []struct {
		id       string
		is, most int64
	}{{"files", f.Files, p.files}, {"bytes", f.Bytes, p.bytes}, {"lines", f.Lines, p.lines}} {
		if x.is > x.most {
			f.TooMuch = append(f.TooMuch, x.id)
			found = append(found, Finding{ID: "too-many-" + x.id, Text: fmt.Sprintf("the change has %d %s, and may have %d", x.is, x.id, x.most)})
		}
	}
	return f, found, err
}

// gitObeys are files that say to git where else to fetch from, and what to keep from
// view.
var gitObeys = map[string]string{
	".gitmodules":    "git fetches other repositories by it",
	".gitattributes": "git hides differences and changes contents by it",
}

// aliases are the links of a tree that lead to something in it.
type aliases struct{ leads map[string]string }

func namesOf(ctx context.Context, t *Tree) (*aliases, error) {
	leads := map[string]string{}
	err := t.Each(ctx, func(x File) bool { return x.Mode == Link }, func(x File, b []byte) error {
		if out, _ := leadsOut(x.Path, string(b)); !out {
			leads[x.Path] = path.Join(path.Dir(x.Path), string(b))
		}
		return nil
	})
	return &aliases{leads}, err
}

// of says by which names a file can be reached: its own, and those by way of links, to it
// or to a directory that it lies in.
func (a *aliases) of(p string) []string {
	all := []string{p}
	for i := 0; i < len(all) && len(all) < 100; i++ {
		for link, to := range a.leads {
			if rest, ok := strings.CutPrefix(all[i], to); ok && (rest == "" || rest[0] == '/') && !slices.Contains(all, link+rest) {
				all = append(all, link+rest)
			}
		}
	}
	return all
}

// follow is where a name leads in the end.
func (a *aliases) follow(p string) string {
	if len(a.leads) == 0 {
		return p
	}
	for range 40 {
		was := p
		for d := p; d != "."; d = path.Dir(d) {
			if to, ok := a.leads[d]; ok {
				p = path.Join(to, strings.TrimPrefix(p, d))
				break
			}
		}
		if p == was {
			return p
		}
	}
	return p
}

// leadsOut reports whether a link leads out of the tree.
func leadsOut(p, to string) (bool, string) {
	if path.IsAbs(to) {
		return true, "the link leads to an absolute path"
	}
	if at := path.Join(path.Dir(p), to); at == ".." || strings.HasPrefix(at, "../") {
		return true, "the link leads out of the tree"
	}
	return false, ""
}

// isTestFile goes by the names that runners look for.
func isTestFile(p string) bool {
	if isTestName(p) {
		return true
	}
	for _, e := range strings.Split(path.Dir(p), "/") {
		if e == "test" || e == "tests" || e == "__tests__" || e == "testdata" {
			return true
		}
	}
	return false
}

// isTestName leaves the directory out.
func isTestName(p string) bool {
	for _, pat := range []string{"*_test.go", "test_*.py", "*_test.py", "conftest.py", "*.test.*", "*.spec.*", "*Test.java", "*_test.rs"} {
		if ok, _ := path.Match(pat, path.Base(p)); ok {
			return true
		}
	}
	return false
}
