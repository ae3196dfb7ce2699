package change

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"
)

// Choose marks the changes that paths select; no paths select all. A path is
// literal (no patterns), relative to the workspace or absolute below it, and
// selects itself and everything below it. A path that selects no change is an
// error. Ignored changes are selected if ignored is set, or by a path that selects
// nothing else; left counts the others.
func (s *Set) Choose(paths []string, ignored bool) (sel []bool, left int, err error) {
	sel = make([]bool, len(s.Changes))
	if len(paths) == 0 {
		paths = []string{"."}
	}
	hidden := map[int]bool{}
	for _, p := range paths {
		rel, err := s.relative(p)
		if err != nil {
			return nil, 0, err
		}
		var plain, generated []int
		for i := range s.Changes {
			c := string(s.Changes[i].Path)
			switch {
			case rel != "." && c != rel && !strings.HasPrefix(c, rel+"/"):
			case s.Changes[i].Ignored && !ignored:
				generated = append(generated, i)
			default:
				plain = append(plain, i)
			}
		}
		switch {
		case len(plain)+len(generated) == 0 && rel != ".":
			return nil, 0, fmt.Errorf("select %s: %w", show(p), ErrNoSuchChange)
		case len(plain) == 0 && rel != ".":
			plain, generated = generated, nil
		}
		for _, i := range plain {
			sel[i] = true
		}
		for _, i := range generated {
			hidden[i] = true
		}
	}
	for i := range hidden {
		if !sel[i] {
			left++
		}
	}
	return sel, left, nil
}

func (s *Set) relative(p string) (string, error) {
	if p == "" {
		return "", fmt.Errorf("select an empty path: %w", ErrNoSuchChange)
	}
	rel := path.Clean(p)
	if filepath.IsAbs(rel) {
		if rel == s.Workspace.Path {
			return ".", nil
		}
		r, ok := strings.CutPrefix(rel, s.Workspace.Path+"/")
		if !ok {
			return "", fmt.Errorf("select %s: %w: it is outside the workspace", show(p), ErrNoSuchChange)
		}
		rel = r
	}
	return rel, nil
}

// Withheld is a selected change that does not land.
type Withheld struct {
	Path    string
	Reasons []Reason // protected
	Why     string   // anything else
	Ref     bool     // a reference that lands once LandOptions.Refs names it
}

// selection holds the changes of a set that are to land.
type selection struct {
	s        *Set
	take     []bool // for each change of s
	withheld []Withheld
	implied  []string // directories that were not selected but are needed
	ignored  int      // changes that stay because nobody asked for them
}

func (s *Set) selectFor(opts LandOptions) (*selection, error) {
	take, ignored, err := s.Choose(opts.Paths, opts.IncludeIgnored)
	if err != nil {
		return nil, err
	}
	exact := map[string]bool{}
	for _, p := range opts.Paths {
		if rel, err := s.relative(p); err == nil {
			exact[rel] = true
		}
	}
	sel := &selection{s: s, take: take, ignored: ignored}
	sel.imply()
	for i := range s.Changes {
		c := &s.Changes[i]
		if !take[i] {
			continue
		}
		if _, rest, ok := cutGit(string(c.Path)); ok {
			if exact[string(c.Path)] && rest != "" {
				return nil, fmt.Errorf("land %s: %w: git's own files are never copied; a branch lands with its commits", show(string(c.Path)), ErrProtected)
			}
			sel.holdGit(i)
			continue
		}
		reasons := merge(c.Protected, opts.Policy.Path(string(c.Path), c.Type))
		switch {
		case len(reasons) > 0 && !opts.IncludeProtected:
			if exact[string(c.Path)] {
				return nil, fmt.Errorf("land %s: %w: %s", show(string(c.Path)), ErrProtected, reasons[0].Why)
			}
			sel.hold(i, Withheld{Reasons: reasons})
		case c.Unlandable != "":
			sel.hold(i, Withheld{Why: c.Unlandable})
		case c.Omitted != "":
			sel.hold(i, Withheld{Why: "its content was not kept: " + c.Omitted})
		}
	}
	sel.settle()
	return sel, nil
}

func merge(a, b []Reason) []Reason {
	out := append([]Reason(nil), a...)
	for _, r := range b {
		dup := false
		for _, o := range out {
			dup = dup || o == r
		}
		if !dup {
			out = append(out, r)
		}
	}
	return out
}

func (sel *selection) hold(i int, w Withheld) {
	w.Path = string(sel.s.Changes[i].Path)
	sel.take[i] = false
	sel.withheld = append(sel.withheld, w)
}

// holdGit holds a path below a git directory back. It is listed only if it is more than
// git's bookkeeping.
func (sel *selection) holdGit(i int) {
	c := &sel.s.Changes[i]
	sel.take[i] = false
	if !c.Bookkeeping() {
		sel.withheld = append(sel.withheld, Withheld{Path: string(c.Path), Reasons: c.Protected, Why: neverCopied})
	}
}

const neverCopied = "git's own files are never copied"

// imply adds the new directories that selected changes need.
func (sel *selection) imply() {
	for i := range sel.s.Changes {
		c := &sel.s.Changes[i]
		if !sel.take[i] || c.Kind == Delete {
			continue
		}
		for d := path.Dir(string(c.Path)); d != "."; d = path.Dir(d) {
			j, ok := sel.s.index[d]
			if !ok || sel.take[j] || sel.s.Changes[j].Kind == Mode || sel.s.Changes[j].Kind == Modify {
				break
			}
			sel.take[j] = true
			sel.implied = append(sel.implied, d)
		}
	}
}

// settle withholds changes that depend on withheld ones: files in a directory
// that does not land, and the removal of a directory that keeps a file.
func (sel *selection) settle() {
	kept := map[string]string{}
	for i := len(sel.s.Changes) - 1; i >= 0; i-- {
		c := &sel.s.Changes[i]
		p := string(c.Path)
		gone := c.Kind == Delete || c.Kind == Retype && c.Base != nil && c.Base.Type == Dir
		if !gone {
			continue
		}
		if by, ok := kept[p]; ok && sel.take[i] {
			sel.hold(i, Withheld{Why: "it holds " + show(by) + ", which stays"})
		}
		if !sel.take[i] && c.Kind == Delete {
			for d := path.Dir(p); d != "."; d = path.Dir(d) {
				if _, ok := kept[d]; ok {
					break
				}
				kept[d] = p
			}
		}
	}
	for i := range sel.s.Changes {
		c := &sel.s.Changes[i]
		if !sel.take[i] || c.Kind == Delete {
			continue
		}
		j, ok := sel.s.index[path.Dir(string(c.Path))]
		if !ok || sel.take[j] {
			continue
		}
		if d := &sel.s.Changes[j]; d.Kind == Add || d.Kind == Retype {
			sel.hold(i, Withheld{Why: "its directory does not land"})
		}
	}
}
