package gate

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
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

const tooMany = "too-many-"

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
	past := func(id string, is, most int64) bool {
		if is > most {
			f.TooMuch = append(f.TooMuch, id)
			found = append(found, Finding{ID: tooMany + id, Text: fmt.Sprintf("the change has %d %s, and may have %d", is, id, most)})
		}
		return is > most
	}
	if past("files", f.Files, p.files) {
		return f, found, nil // whoever sends so much gets no more work for it
	}
	changed := map[string]bool{}
	names, err := namesOf(ctx, c.Base)
	if err != nil {
		return policyFacts{}, nil, err
	}
	lead, err := linksOf(ctx, c.Change)
	if err != nil {
		return policyFacts{}, nil, err
	}
	var judges *runners
	if !p.runners && c.g != nil {
		if judges, err = c.g.Catalog.runners(ctx, c.Base, names); err == nil {
			err = judges.read(ctx, diff, c.Base, c.Change, names)
		}
		if err != nil {
			return policyFacts{}, nil, err
		}
	}
	alike := alikeIn(c.Base, c.Change)
	for _, d := range diff {
		known := names.of(d.Path)
		if slices.ContainsFunc(known, func(n string) bool { return matches(p.frozen, n) || matches(alwaysFrozen, n) }) {
			say(&f.Frozen, "frozen", d.Path, "no change may touch this file")
		} else if why := judges.why(d, c.Base, c.Change, known); why != "" {
			say(&f.Frozen, "runner", d.Path, why+", so it judges the change (runners: may-change)")
		}
		if !p.protected && !matches(alwaysFrozen, d.Path) {
			typ := change.File
			if d.Change != nil && d.Change.Mode == Link {
				typ = change.Symlink
			}
			for _, n := range known {
				why := gitObeys[change.FoldName(path.Base(n))]
				if by := (change.Policy{CI: true}).Path(n, typ); why == "" && len(by) > 0 {
					why = by[0].Why
				}
				if why != "" {
					say(&f.Protected, "protected", d.Path, why+" (protected: allowed)")
					break
				}
			}
		}
		if other := alike.to(d); other != "" && !p.alike {
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
			return nil
		}
		f.Lines += int64(bytes.Count(b, []byte("\n")))
		if bytes.IndexByte(b, 0) >= 0 && !p.binaries {
			say(&f.Binary, "binary", x.Path, "a binary file can't be reviewed (binaries: allowed)")
		}
		return nil
	})
	if err != nil {
		return f, found, err
	}
	// Also a link that stays as it is may lead elsewhere, by way of one that does not.
	for _, l := range slices.Sorted(maps.Keys(lead)) {
		if p.links {
			break
		}
		if err := ctx.Err(); err != nil {
			return f, found, err
		}
		why := lead.leadsOut(l)
		if was, there := names.links[l]; why != "" && (!there || was != lead[l] || names.links.leadsOut(l) == "") {
			say(&f.Links, "link-out", l, why)
		}
	}
	past("bytes", f.Bytes, p.bytes)
	past("lines", f.Lines, p.lines)
	return f, found, nil
}

// alikes are the spellings of names of a change that some file system takes for one.
type alikes struct {
	base   map[string]bool // files and directories of the base
	change map[string][]string
}

func alikeIn(base, now *Tree) *alikes {
	a := &alikes{base.names(), map[string][]string{}}
	seen := map[string]bool{}
	for _, x := range now.Files {
		for p, folded := range alikeNames(x.Path) {
			if seen[p] {
				break
			}
			seen[p] = true
			a.change[folded] = append(a.change[folded], p)
		}
	}
	return a
}

// alikeNames are a path and the directories that it lies in, with how each may be read.
func alikeNames(p string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for folded := change.FoldName(p); yield(p, folded); {
			at := strings.LastIndexByte(p, '/')
			if at < 0 {
				return
			}
			p, folded = p[:at], folded[:strings.LastIndexByte(folded, '/')]
		}
	}
}

// to is what a new file, or a new directory that it lies in, can be taken for, or nothing.
func (a *alikes) to(d Difference) string {
	if d.Change == nil {
		return ""
	}
	for p, folded := range alikeNames(d.Path) {
		if a.base[p] {
			break
		}
		for _, other := range a.change[folded] {
			if other != p {
				return other
			}
		}
	}
	return ""
}

// gitObeys are files that say to git where else to fetch from, and what to keep from
// view.
var gitObeys = map[string]string{
	".gitmodules":    "git fetches other repositories by it",
	".gitattributes": "git hides differences and changes contents by it",
}

// links are where the links of a tree lead, as they say.
type links map[string]string

func linksOf(ctx context.Context, t *Tree) (links, error) {
	l := links{}
	err := t.Each(ctx, func(x File) bool { return x.Mode == Link }, func(x File, b []byte) error {
		l[x.Path] = string(b)
		return nil
	})
	return l, err
}

// resolve says where in the tree a name leads from where p lies, through the tree's links.
func (l links) resolve(p, to string) (string, bool) {
	return change.Resolve(func(rel string) (change.Type, string) {
		if to, ok := l[rel]; ok {
			return change.Symlink, to
		}
		return change.File, ""
	}, "\x00", p, to)
}

// leadsOut says why a link leads out of the tree, or nothing.
func (l links) leadsOut(p string) string {
	to := l[p]
	if path.IsAbs(to) {
		return "the link leads to an absolute path"
	}
	if _, ok := l.resolve(p, to); !ok {
		return "the link leads out of the tree"
	}
	return ""
}

// aliases are the links of a tree that lead to something in it.
type aliases struct {
	links links
	leads map[string]string // each to the next name: that of another link, or what it leads to
}

func namesOf(ctx context.Context, t *Tree) (*aliases, error) {
	l, err := linksOf(ctx, t)
	leads := map[string]string{}
	for p, to := range l {
		dir, last := path.Split(to)
		if last == "." || last == ".." {
			dir, last = to, ""
		}
		if at, ok := l.resolve(p, dir); ok && l.leadsOut(p) == "" {
			leads[p] = path.Join(at, last)
		}
	}
	return &aliases{l, leads}, err
}

// of says by which names a file can be reached: its own, and those by way of links, to it
// or to a directory that it lies in.
func (a *aliases) of(p string) []string {
	all := []string{p}
	for i := 0; i < len(all) && len(all) < 100; i++ {
		for link, to := range a.leads {
			rest, ok := strings.CutPrefix(all[i], to)
			if to == "" { // the tree itself, and what lies there by such a name need not be told twice
				rest, ok = "/"+all[i], !strings.HasPrefix(all[i], link+"/")
			}
			if ok && (rest == "" || rest[0] == '/') && !slices.Contains(all, link+rest) {
				all = append(all, link+rest)
			}
		}
	}
	return all
}

// follow is where a name leads in the end.
func (a *aliases) follow(p string) string {
	if end, ok := a.links.resolve("x", p); ok {
		return path.Clean(end)
	}
	return p
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
