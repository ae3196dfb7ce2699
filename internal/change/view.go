package change

import (
	"path"
	"slices"
	"strings"
)

// view looks paths up as they will be after the whole set has landed: in the
// set's changes first, then in the host's files.
type view struct {
	t tree
	s *Set
}

func newView(t tree, s *Set) *view {
	if s.index == nil {
		s.reindex()
	}
	return &view{t, s}
}

// at returns the type ("" if absent) and link target of a path whose parents
// are real directories.
func (v *view) at(rel string) (typ Type, target string) {
	if c, ok := v.s.Lookup(rel); ok {
		if c.Kind == Delete {
			return "", ""
		}
		return c.Type, string(c.Target)
	}
	return hostAt(v.t, rel)
}

func hostAt(t tree, rel string) (typ Type, target string) {
	st, err := t.lstat(rel)
	if err != nil {
		return "", ""
	}
	if typ = typeOfMode(st.Mode); typ == Symlink {
		target, _ = t.readlink(rel)
	}
	return typ, target
}

// Resolve follows a symbolic link at rel to target within a workspace at root and
// returns the path where it ends. ok is false if the link leaves the workspace or loops.
// at returns the type and link target of a path. Missing names count as directories.
func Resolve(at func(string) (Type, string), root, rel, target string) (end string, ok bool) {
	dir := path.Dir(rel)
	if dir == "." {
		dir = ""
	}
	todo := target
	for links := 0; todo != ""; {
		if todo[0] == '/' {
			rest, inside := strings.CutPrefix(path.Clean(todo), root)
			if !inside || rest != "" && rest[0] != '/' {
				return "", false
			}
			// Clean would have resolved ".." without following links.
			if strings.Contains("/"+todo+"/", "/../") {
				return "", false
			}
			dir, todo = "", strings.TrimLeft(rest, "/")
			continue
		}
		var comp string
		comp, todo, _ = strings.Cut(todo, "/")
		todo = strings.TrimLeft(todo, "/")
		switch comp {
		case "", ".":
			continue
		case "..":
			if dir == "" {
				return "", false
			}
			if dir = path.Dir(dir); dir == "." {
				dir = ""
			}
			continue
		}
		next := join(dir, comp)
		if len(next) > maxPath {
			return "", false
		}
		if typ, t := at(next); typ == Symlink {
			if links++; links > 40 {
				return "", false
			}
			if len(t)+len(todo) > 1<<16 {
				return "", false
			}
			if todo != "" {
				t += "/" + todo
			}
			todo = t
			continue
		}
		dir = next
	}
	return dir, true
}

// link returns why a symbolic link is protected. It is followed twice, as the
// host is now and as it will be, because a part of the set may land alone.
func (v *view) link(p Policy, rel, target string) []Reason {
	root := v.s.Workspace.Path
	var out []Reason
	for _, at := range []func(string) (Type, string){v.at, func(rel string) (Type, string) { return hostAt(v.t, rel) }} {
		end, ok := Resolve(at, root, rel, target)
		if !ok {
			return []Reason{{"link-out", "it is a symbolic link that leads out of the workspace"}}
		}
		if out == nil && end != "" && len(p.Path(end, "")) > 0 {
			out = []Reason{{"link-protected", "it is a symbolic link to " + show(end) + ", which is protected"}}
		}
	}
	return out
}

// bareNames are the names by which git knows a bare repository, folded.
var bareNames = []string{"head", "objects", "refs", "commondir", "config", "hooks"}

var isBare = Reason{"git-bare", "git takes its directory for a repository and obeys the configuration there"}

// repositories protects paths that make git treat a directory as a bare
// repository: a HEAD with objects and refs (or a commondir).
func (v *view) repositories() {
	bare := map[string]bool{}
	for i := range v.s.Changes {
		c := &v.s.Changes[i]
		rel := string(c.Path)
		if c.Kind == Delete || !slices.Contains(bareNames, fold(path.Base(rel))) {
			continue
		}
		dir := path.Dir(rel)
		if _, seen := bare[dir]; !seen {
			bare[dir] = v.looksBare(dir)
		}
	}
	for i := range v.s.Changes {
		if c := &v.s.Changes[i]; within(bare, string(c.Path)) {
			c.Protected = append(c.Protected, isBare)
		}
	}
}

// within reports whether a path makes one of the bare repositories, or is in such a part.
func within(bare map[string]bool, rel string) bool {
	for dir := rel; dir != "."; dir = path.Dir(dir) {
		if bare[path.Dir(dir)] {
			return slices.Contains(bareNames, fold(path.Base(dir)))
		}
	}
	return false
}

// looksBare reports whether git would accept dir as a bare repository.
func (v *view) looksBare(dir string) bool {
	if dir == "." {
		dir = ""
	}
	for comp := range strings.SplitSeq(dir, "/") {
		if fold(comp) == ".git" {
			return false // judged by its path
		}
	}
	has := func(names ...string) bool {
		for _, n := range names {
			if typ, _ := v.at(join(dir, n)); typ != "" {
				return true
			}
		}
		return false
	}
	return has("HEAD") && (has("commondir") || has("objects") && has("refs"))
}
