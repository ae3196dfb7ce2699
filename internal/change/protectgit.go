package change

import (
	"path"
	"strings"
)

// gitFiles lists files directly in a git directory that cannot make git run
// anything: names of commits, messages, the list of tracked files.
var gitFiles = map[string]bool{
	"head": true, "index": true, "packed-refs": true, "orig_head": true, "fetch_head": true,
	"merge_head": true, "merge_msg": true, "merge_mode": true, "merge_rr": true, "auto_merge": true,
	"squash_msg": true, "tag_editmsg": true, "commit_editmsg": true, "cherry_pick_head": true,
	"revert_head": true, "rebase_head": true, "description": true, "shallow": true, "gc.log": true,
	"gitk.cache": true,
}

// gitPath returns why a path below a git directory is protected, "" if it is
// not. It allows what is known to be harmless and protects the rest: hooks,
// config, config.worktree, commondir, info/attributes, objects/info/alternates
// (another repository's objects), rebase and sequencer to-do lists (they hold
// commands), modules and worktrees (complete git directories), lock files (a
// stale one stops git).
func gitPath(folded, comps []string, typ Type) string {
	if len(folded) == 0 {
		if typ == Dir || typ == "" {
			return ""
		}
		return "a .git that is no directory sends git to another repository"
	}
	if typ != File && typ != Dir && typ != "" {
		return "git follows it out of the repository"
	}
	for i := range comps {
		// Inside a git directory only plain names are harmless.
		if strings.ToLower(comps[i]) != folded[i] {
			return "a name in a git directory that can be taken for another"
		}
	}
	last := folded[len(folded)-1]
	if strings.HasSuffix(last, ".lock") {
		return "a lock file that stops git"
	}
	ok := false
	switch folded[0] {
	case "refs", "logs":
		ok = true
	case "objects":
		ok = gitObject(folded[1:], typ)
	case "info":
		ok = len(folded) == 1 || len(folded) == 2 && last == "refs"
	default:
		shared, split := strings.CutPrefix(folded[0], "sharedindex.")
		ok = len(folded) == 1 && typ != Dir && (gitFiles[folded[0]] || split && (isHex(shared, 40) || isHex(shared, 64)))
	}
	if ok {
		return ""
	}
	return "git runs, reads or follows what it configures"
}

func gitObject(p []string, typ Type) bool {
	switch {
	case len(p) == 0:
		return true
	case p[0] == "pack":
		return len(p) == 1 || len(p) == 2
	case p[0] == "info":
		if len(p) == 1 {
			return true
		}
		return p[1] == "packs" || p[1] == "commit-graph" || p[1] == "commit-graphs"
	case isHex(p[0], 2):
		return len(p) == 1 || len(p) == 2 && (isHex(p[1], 38) || isHex(p[1], 62))
	}
	return false
}

func isHex(s string, n int) bool {
	if len(s) != n {
		return false
	}
	for i := range n {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// apply fills in Protected for every change of the set: by path, by mode and
// by the target of symbolic links.
func (p Policy) apply(t tree, s *Set) error {
	v := newView(t, s)
	fresh := "\x00"
	for i := range s.Changes {
		c := &s.Changes[i]
		if path.Base(string(c.Path)) == ".git" && c.Kind == Add && c.Type == Dir {
			fresh = string(c.Path) + "/"
		}
		if strings.HasPrefix(string(c.Path), fresh) {
			// Only its commits land, and the host makes a new one for them.
			c.Unlandable = neverCopied
			continue
		}
		c.Protected = p.Path(string(c.Path), c.Type)
		if _, _, ok := cutGit(string(c.Path)); ok && c.Unlandable == "" {
			c.Unlandable = neverCopied
		}
		if c.Kind == Delete {
			continue
		}
		if c.Kind == Modify && isStoredObject(string(c.Path)) {
			c.Protected = append(c.Protected, Reason{"git", "git's objects never change; another content under the same name is forged or damaged"})
		}
		if c.Type == File && c.Mode&0o6000 != 0 {
			c.Protected = append(c.Protected, Reason{"setid", "it would run with another user's or group's rights"})
		}
		if c.opened() {
			c.Protected = append(c.Protected, Reason{"writable", "others on this machine could write to it"})
		}
		if c.Type == Symlink {
			c.Protected = append(c.Protected, v.link(p, string(c.Path), string(c.Target))...)
		}
	}
	v.repositories()
	return nil
}

// opened reports whether the change lets the group or others write to a file or
// directory, or all the world to a new one. For new ones, groups are often the user's own.
func (c *Change) opened() bool {
	if c.Type != File && c.Type != Dir {
		return false
	}
	if c.Base == nil || c.Base.Type != c.Type {
		return c.Mode&0o002 != 0
	}
	return c.Mode&0o022&^c.Base.Mode != 0
}

// isStoredObject reports whether rel is a loose object, a pack of git or its
// index. All are named by a hash of their content.
func isStoredObject(rel string) bool {
	comps := strings.Split(rel, "/")
	n := len(comps)
	if n < 4 || fold(comps[n-3]) != "objects" || fold(comps[n-4]) != ".git" {
		return false
	}
	dir, name := comps[n-2], comps[n-1]
	return isHex(dir, 2) || dir == "pack" && (strings.HasSuffix(name, ".pack") || strings.HasSuffix(name, ".idx"))
}
