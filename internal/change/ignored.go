package change

import (
	"context"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/hostexec"
)

// Programs fill directories with what they can make again: packages, caches, builds. Such
// paths are marked, so that a person need not look through them: they are those that the
// project's .gitignore names, as the bottle left it, and the directories of generatedDirs.
// What the host has already counts only if the host's git ignores it too, so that no pattern
// written in the bottle hides a change of a file of the project.

// generatedDirs are directories that programs make, without a word in .gitignore.
var generatedDirs = []string{"node_modules", "__pycache__", ".venv"}

// generatedMarks are files whose directory programs made: bford.info/cachedir, PEP 405.
var generatedMarks = []string{"CACHEDIR.TAG", "pyvenv.cfg"}

const (
	maxIgnoreFile = 64 << 10   // bytes of a .gitignore
	maxIgnoreWork = 20_000_000 // comparisons with patterns in one set; what is left is shown
	listIgnored   = 10 * time.Second
)

// ignorer finds the generated paths of a set.
type ignorer struct {
	s     *Set
	t     tree
	work  int
	rules map[string][]ignoreRule // of directories
	dirs  map[string]verdict      // of directories
	host  map[string]bool         // what the host's git ignores; nil: not asked yet
}

// verdict says why a path is generated.
type verdict struct {
	root   string // the topmost ignored path, "" if none is
	byName bool   // whatever .gitignore says
}

// markIgnored fills in Change.Ignored.
func markIgnored(ctx context.Context, t tree, s *Set) {
	g := &ignorer{s: s, t: t, rules: map[string][]ignoreRule{}, dirs: map[string]verdict{}}
	for i := range s.Changes {
		c := &s.Changes[i]
		rel := string(c.Path)
		if _, _, git := cutGit(rel); git {
			continue
		}
		v := g.verdict(rel, c.Type == Dir)
		if v.root == "" {
			continue
		}
		if c.Kind != Add || v.byName && g.onHost(v.root) {
			if !g.ignoredOnHost(ctx, rel, v.root, v.byName) {
				continue
			}
		}
		c.Ignored = true
	}
}

func (g *ignorer) verdict(rel string, isDir bool) verdict {
	if dir := path.Dir(rel); dir != "." {
		if v := g.dirVerdict(dir); v.root != "" {
			return v
		}
	}
	if isDir {
		return g.dirVerdict(rel)
	}
	if g.matches(rel, false) {
		return verdict{root: rel}
	}
	return verdict{}
}

func (g *ignorer) dirVerdict(dir string) verdict {
	if v, known := g.dirs[dir]; known {
		return v
	}
	var v verdict
	if up := path.Dir(dir); up != "." {
		v = g.dirVerdict(up)
	}
	switch {
	case g.has(join(dir, ".git")): // a repository has its own rules, and lands with its commits
		v = verdict{}
	case v.root != "":
	case slices.Contains(generatedDirs, path.Base(dir)) || slices.ContainsFunc(generatedMarks, func(m string) bool { return g.has(join(dir, m)) }):
		v = verdict{root: dir, byName: true}
	case g.matches(dir, true):
		v = verdict{root: dir}
	}
	g.dirs[dir] = v
	return v
}

// matches reports whether the .gitignore files name the path itself.
func (g *ignorer) matches(rel string, isDir bool) bool {
	names := strings.Split(rel, "/")
	for from := len(names) - 1; from >= 0; from-- {
		rules := g.rulesOf(strings.Join(names[:from], "/"))
		if g.work += len(rules); g.work > maxIgnoreWork {
			return false
		}
		for i := len(rules) - 1; i >= 0; i-- {
			if rules[i].matches(names[from:], isDir) {
				return !rules[i].negated
			}
		}
		if from > 0 && g.has(join(strings.Join(names[:from], "/"), ".git")) {
			return false
		}
	}
	return false
}

// rulesOf returns the rules of a directory's .gitignore as the bottle left it.
func (g *ignorer) rulesOf(dir string) []ignoreRule {
	rules, known := g.rules[dir]
	if !known {
		rules = parseIgnore(g.read(join(dir, ".gitignore")))
		g.rules[dir] = rules
	}
	return rules
}

// read returns the beginning of a file as the bottle left it, nothing if there is none.
func (g *ignorer) read(rel string) []byte {
	var r io.ReadCloser
	var err error
	if i, changed := g.s.index[rel]; changed && g.s.Changes[i].Kind != Mode {
		r, err = g.s.Content(&g.s.Changes[i])
	} else if !g.inNew(rel) {
		r, _, err = g.t.openFile(rel)
	} else {
		return nil
	}
	if err != nil {
		return nil
	}
	defer r.Close()
	b, _ := io.ReadAll(io.LimitReader(r, maxIgnoreFile))
	return b
}

// has reports whether the bottle left a file there.
func (g *ignorer) has(rel string) bool {
	if i, changed := g.s.index[rel]; changed {
		return g.s.Changes[i].Kind != Delete
	}
	return g.onHost(rel)
}

func (g *ignorer) onHost(rel string) bool {
	if g.inNew(rel) {
		return false
	}
	_, err := g.t.lstat(rel)
	return err == nil
}

// inNew reports whether the bottle made the path's directory, so that the host has nothing
// there.
func (g *ignorer) inNew(rel string) bool {
	i, changed := g.s.index[path.Dir(rel)]
	return changed && g.s.Changes[i].Kind == Add
}

// ignoredOnHost reports whether the host's git ignores the path: no commit and no index has
// it. Without a repository, only names that programs make count.
func (g *ignorer) ignoredOnHost(ctx context.Context, rel, root string, byName bool) bool {
	if !g.onHost(".git") {
		return byName
	}
	if g.host == nil {
		g.host = map[string]bool{}
		if run, err := g.s.runner(); err == nil {
			res, err := run.Run(ctx, hostexec.Command{Program: hostexec.Git, Args: []string{"ls-files", "-z", "-o", "-i", "--exclude-standard", "--directory"},
				Dir: g.s.Workspace.Path, Timeout: listIgnored, Stdout: hostexec.Keep{Head: hostexec.MaxKeep}})
			if err == nil {
				out, _ := res.Stdout.Complete() // what a cut list lacks is shown
				for p := range strings.SplitSeq(string(out), "\x00") {
					g.host[strings.TrimSuffix(p, "/")] = true
				}
			}
		}
	}
	for p := rel; p != "."; p = path.Dir(p) {
		if g.host[p] {
			return true
		}
	}
	return false
}
