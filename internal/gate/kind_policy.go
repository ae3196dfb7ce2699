package gate

import (
	"bytes"
	"cmp"
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
	register(SignalKind{Name: "policy", Summary: "which files a change may touch, how large it may be, binaries, links out", Final: true, Keys: []string{"frozen", "max_files", "max_bytes", "max_lines", "binaries", "links_out", "executables", "protected", "runners", "look_alikes"}}, func(s *Signal, m document.Mapping) Judge[policyFacts] {
		p := policy{
			frozen: m.Get("frozen").Strings(), files: m.Get("max_files").Int(1000, 1, maxFiles), bytes: cmp.Or(m.Get("max_bytes").Size(), 8<<20),
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
				m.Get("frozen").Bad("has an invalid pattern: "+pat, "")
			}
		}
		return p.evaluate
	})
}

type policy struct {
	frozen                       []string
	files, bytes, lines          int64
	binaries, links, executables bool
	protected, runners, alike    bool
}

const tooMany = "too-many-"

// alwaysFrozen are files that decide how changes are judged, or that run where a change
// lands.
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
	// Protected lists files that a host or a server obeys by itself, Alike names that
	// another file system takes for another file's.
	Protected []string `json:"protected_touched,omitempty"`
	Alike     []string `json:"look_alikes,omitempty"`
}

func (f policyFacts) Positive() bool {
	return f.Looked && len(f.Frozen)+len(f.Binary)+len(f.Links)+len(f.Exec)+len(f.TooMuch)+len(f.Protected)+len(f.Alike) == 0
}

func (p policy) evaluate(ctx context.Context, c *Case) (policyFacts, []Finding, error) {
	diff, err := c.Change.Differences(ctx, c.Base)
	if err != nil {
		return policyFacts{}, nil, err
	}
	k := policyCheck{policy: p, c: c, f: policyFacts{Looked: true, Files: int64(len(diff))}}
	if k.bound("files", k.f.Files, p.files) {
		return k.f, k.found, nil // so large a change gets no further work
	}
	if k.names, err = readAliases(ctx, c.Base); err != nil {
		return policyFacts{}, nil, err
	}
	lead, err := readLinks(ctx, c.Change)
	if err != nil {
		return policyFacts{}, nil, err
	}
	if !p.runners && c.g != nil {
		if k.control, err = c.g.Catalog.controlFiles(ctx, c.Base, k.names); err == nil {
			err = k.control.readSettings(ctx, diff, c.Base, c.Change, k.names)
		}
		if err != nil {
			return policyFacts{}, nil, err
		}
	}
	alike := newLookAlikes(c.Base, c.Change)
	for _, d := range diff {
		k.path(d, alike)
	}
	if err = k.contents(ctx, diff); err != nil {
		return k.f, k.found, err
	}
	if err = k.links(ctx, lead); err != nil {
		return k.f, k.found, err
	}
	k.bound("bytes", k.f.Bytes, p.bytes)
	k.bound("lines", k.f.Lines, p.lines)
	return k.f, k.found, nil
}

// policyCheck holds a policy to one change.
type policyCheck struct {
	policy
	c       *Case
	names   *linkAliases
	control *controlFiles // nil: the policy lets them change
	f       policyFacts
	found   []Finding
}

func (k *policyCheck) report(list *[]string, id, file, text string) {
	if len(*list) < 200 {
		*list = append(*list, file)
	}
	k.found = append(k.found, Finding{ID: id, File: file, Text: text})
}

// bound reports whether the change has more of something than it may.
func (k *policyCheck) bound(id string, is, most int64) bool {
	if is > most {
		k.f.TooMuch = append(k.f.TooMuch, id)
		k.found = append(k.found, Finding{ID: tooMany + id, Text: fmt.Sprintf("the change has %d %s, and may have %d", is, id, most)})
	}
	return is > most
}

// path checks the name and the mode of a file that differs.
func (k *policyCheck) path(d Difference, alike *lookAlikes) {
	names := k.names.names(d.Path)
	if slices.ContainsFunc(names, func(n string) bool { return matches(k.frozen, n) || matches(alwaysFrozen, n) }) {
		k.report(&k.f.Frozen, "frozen", d.Path, "no change may touch this file")
	} else if why := k.control.reason(d, k.c.Base, k.c.Change, names); why != "" {
		k.report(&k.f.Frozen, "runner", d.Path, why+", so it judges the change (runners: may-change)")
	}
	if !k.protected && !matches(alwaysFrozen, d.Path) {
		if why := protectedReason(d, names); why != "" {
			k.report(&k.f.Protected, "protected", d.Path, why+" (protected: allowed)")
		}
	}
	if other := alike.match(d); other != "" && !k.alike {
		k.report(&k.f.Alike, "look-alike", d.Path, "on other file systems it is the same as "+other+" (look_alikes: allowed)")
	}
	if isTestFile(d.Path) {
		k.f.Tests = append(k.f.Tests, d.Path)
		k.found = append(k.found, Finding{ID: "test-file", File: d.Path, Noted: true, Text: "the change touches a file of tests"})
	}
	if d.Change != nil && d.Change.Mode == executable && (d.Base == nil || d.Base.Mode != executable) && !k.executables {
		k.report(&k.f.Exec, "executable", d.Path, "the change makes it executable (executables: allowed)")
	}
}

// protectedReason says which program obeys a file by itself where the change lands, or
// returns nothing.
func protectedReason(d Difference, names []string) string {
	typ := change.File
	if d.Change != nil && d.Change.Mode == Link {
		typ = change.Symlink
	}
	for _, n := range names {
		if why := gitObeys[change.FoldName(path.Base(n))]; why != "" {
			return why
		}
		if by := (change.Policy{CI: true}).Path(n, typ); len(by) > 0 && by[0].Why != "" {
			return by[0].Why
		}
	}
	return ""
}

// contents counts bytes and lines, and finds binaries.
func (k *policyCheck) contents(ctx context.Context, diff []Difference) error {
	changed := map[string]bool{}
	for _, d := range diff {
		changed[d.Path] = d.Change != nil
	}
	return k.c.Change.Each(ctx, func(x File) bool { return changed[x.Path] }, func(x File, b []byte) error {
		k.f.Bytes += int64(len(b))
		if x.Mode == Link {
			return nil
		}
		k.f.Lines += int64(bytes.Count(b, []byte("\n")))
		if bytes.IndexByte(b, 0) >= 0 && !k.binaries {
			k.report(&k.f.Binary, "binary", x.Path, "a binary file can't be reviewed (binaries: allowed)")
		}
		return nil
	})
}

// links finds links that lead out of the tree. A link that is the same as on the base may
// lead elsewhere now, through another link that is not.
func (k *policyCheck) links(ctx context.Context, lead links) error {
	if k.policy.links {
		return nil
	}
	for _, l := range slices.Sorted(maps.Keys(lead)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		why := lead.leadsOut(l)
		if was, there := k.names.links[l]; why != "" && (!there || was != lead[l] || k.names.links.leadsOut(l) == "") {
			k.report(&k.f.Links, "link-out", l, why)
		}
	}
	return nil
}

// lookAlikes finds names of a change that some file system takes for the same.
type lookAlikes struct {
	base   map[string]bool // files and directories of the base
	change map[string][]string
}

func newLookAlikes(base, now *Tree) *lookAlikes {
	a := &lookAlikes{base.names(), map[string][]string{}}
	seen := map[string]bool{}
	for _, x := range now.Files {
		for p, folded := range foldedNames(x.Path) {
			if seen[p] {
				break
			}
			seen[p] = true
			a.change[folded] = append(a.change[folded], p)
		}
	}
	return a
}

// foldedNames yields a path and its parent directories, each with its folded form.
func foldedNames(p string) iter.Seq2[string, string] {
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

// match returns the name that a new file, or a new parent directory of it, can be taken
// for; empty: none.
func (a *lookAlikes) match(d Difference) string {
	if d.Change == nil {
		return ""
	}
	for p, folded := range foldedNames(d.Path) {
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

// gitObeys are files that configure git from within a tree.
var gitObeys = map[string]string{
	".gitmodules":    "git fetches other repositories by it",
	".gitattributes": "git hides differences and changes contents by it",
}

// links maps the links of a tree to their targets, as written.
type links map[string]string

func readLinks(ctx context.Context, t *Tree) (links, error) {
	l := links{}
	err := t.Each(ctx, func(x File) bool { return x.Mode == Link }, func(x File, b []byte) error {
		l[x.Path] = string(b)
		return nil
	})
	return l, err
}

// resolve resolves the name to, as seen from the directory of p, through the tree's
// links. It reports false if the name leads out of the tree.
func (l links) resolve(p, to string) (string, bool) {
	return change.Resolve(func(rel string) (change.Type, string) {
		if to, ok := l[rel]; ok {
			return change.Symlink, to
		}
		return change.File, ""
	}, "\x00", p, to)
}

// leadsOut says why a link leads out of the tree; empty: it does not.
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

// linkAliases knows by which names the files of a tree can be reached through its links.
type linkAliases struct {
	links   links
	targets map[string]string // the next name of each link: another link's, or its target's
}

func readAliases(ctx context.Context, t *Tree) (*linkAliases, error) {
	l, err := readLinks(ctx, t)
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
	return &linkAliases{l, leads}, err
}

// names returns the names of a file: its own, and those through links to it or to a
// parent directory. It stops at 100.
func (a *linkAliases) names(p string) []string {
	all := []string{p}
	for i := 0; i < len(all) && len(all) < 100; i++ {
		for link, to := range a.targets {
			rest, ok := strings.CutPrefix(all[i], to)
			if to == "" { // the root; a name through the link itself adds nothing
				rest, ok = "/"+all[i], !strings.HasPrefix(all[i], link+"/")
			}
			if ok && (rest == "" || rest[0] == '/') && !slices.Contains(all, link+rest) {
				all = append(all, link+rest)
			}
		}
	}
	return all
}

// follow returns the path that a name leads to in the end.
func (a *linkAliases) follow(p string) string {
	if end, ok := a.links.resolve("x", p); ok {
		return path.Clean(end)
	}
	return p
}

// isTestFile reports whether a path looks like a file of tests, by the names that test
// runners look for.
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

// testNames are patterns of names that test runners look for.
var testNames = []string{"*_test.go", "test_*.py", "*_test.py", "conftest.py", "*.test.*", "*.spec.*", "*Test.java", "*_test.rs"}

// isTestName is isTestFile without regard to directories.
func isTestName(p string) bool {
	for _, pat := range testNames {
		if ok, _ := path.Match(pat, path.Base(p)); ok {
			return true
		}
	}
	return false
}
