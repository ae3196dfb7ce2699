package gate

import (
	"context"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

func isMake(w string) bool {
	b := path.Base(w)
	return b == "make" || b == "gmake"
}

// makefile is what make reads in one file.
type makefile struct {
	names    []string // targets, and what they need
	phony    []string // those of them that are no files
	includes []string
}

// Variables and patterns stand for what only make knows: their words are left out.
var (
	makeVariable = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$\([^()]*\)|\$\{[^{}]*\}|\$[^({]`) })
	makeInclude  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^ *[-s]?include[ \t]+(.+)`) })
)

const unknownToUs = "\x00%$*?[]()~"

func parseMakefile(b []byte) (m makefile) {
	words := func(s string) []string {
		return slices.DeleteFunc(strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(" \t\r\n:|", r) }), func(w string) bool {
			return strings.ContainsAny(w, unknownToUs)
		})
	}
	text := strings.ReplaceAll(strings.ReplaceAll(string(b), "\r\n", "\n"), "\\\n", " ")
	for l := range strings.Lines(text) {
		if strings.HasPrefix(l, "\t") {
			continue // of a recipe
		}
		l, _, _ = strings.Cut(l, "#")
		for range 20 { // from the innermost
			was := l
			if l = makeVariable().ReplaceAllString(l, "\x00"); l == was {
				break
			}
		}
		if found := makeInclude().FindStringSubmatch(l); found != nil {
			// make takes patterns here.
			m.includes = append(m.includes, slices.DeleteFunc(strings.Fields(found[1]), func(w string) bool { return strings.ContainsAny(w, "\x00$") })...)
			continue
		}
		i := strings.IndexAny(l, ":=")
		if i < 0 || l[i] == '=' {
			continue
		}
		needs := strings.TrimLeft(l[i:], ":")
		if strings.HasPrefix(needs, "=") {
			continue // a variable
		}
		targets := strings.TrimSuffix(l[:i], "&")
		if needs, _, _ = strings.Cut(needs, ";"); strings.Contains(needs, "=") {
			needs = "" // a variable of the target's
		}
		if slices.Contains(strings.Fields(targets), ".PHONY") {
			m.phony = append(m.phony, words(needs)...)
			continue
		}
		m.names = append(append(m.names, words(targets)...), words(needs)...)
	}
	return m
}

// make finds what make obeys in a base, and where a file or directory would be taken for
// a target that is made.
func (r *runners) make(ctx context.Context, base *Tree, names *aliases, there map[string]bool, signal string, words []string) error {
	begins := func(f File) bool { return slices.Contains(makefiles, path.Base(f.Path)) }
	if r.parsed == nil { // all at once
		r.parsed = map[string]makefile{}
		if err := base.Each(ctx, func(f File) bool { return begins(f) && f.Mode != Link }, func(f File, b []byte) error {
			r.parsed[f.Path] = parseMakefile(b)
			return nil
		}); err != nil {
			return err
		}
	}
	read := func(p string) (makefile, bool, error) {
		p = names.follow(p)
		if f, ok := base.Lookup(p); !ok || f.Mode == Link {
			return makefile{}, false, nil
		}
		m, ok := r.parsed[p]
		if !ok {
			b, err := base.Read(ctx, p)
			if err != nil {
				return makefile{}, false, err
			}
			m = parseMakefile(b)
			r.parsed[p] = m
		}
		return m, true, nil
	}
	shadow := func(dir, name string) {
		if p := path.Join(dir, name); !path.IsAbs(name) && badPath(p) == "" && !there[p] {
			r.shadow[p] = signal
		}
	}
	// begin reads what a make in a directory begins with.
	begin := func(dir, file string) error {
		all := makefile{}
		seen := map[string]bool{}
		for todo := []string{file}; len(todo) > 0; todo = todo[1:] {
			p := todo[0]
			if seen[p] {
				continue
			}
			seen[p] = true
			m, ok, err := read(p)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			all.names, all.phony = append(all.names, m.names...), append(all.phony, m.phony...)
			for _, w := range m.includes {
				pattern := path.Join(dir, w)
				if path.IsAbs(w) || badPath(pattern) != "" {
					continue
				}
				r.included["/"+pattern] = signal
				if !strings.ContainsAny(pattern, "*?[") {
					todo = append(todo, pattern)
					continue
				}
				for _, f := range base.Files {
					if match("/"+pattern, f.Path) {
						todo = append(todo, f.Path)
					}
				}
			}
		}
		phony := map[string]bool{}
		for _, w := range all.phony {
			phony[path.Clean(w)] = true
		}
		for _, w := range all.names {
			if !phony[path.Clean(w)] {
				shadow(dir, w)
			}
		}
		return nil
	}
	dirs := map[string]bool{".": true} // that have one
	for _, f := range base.Files {
		if begins(f) {
			dirs[path.Dir(f.Path)] = true
			if err := begin(path.Dir(f.Path), f.Path); err != nil {
				return err
			}
		}
	}
	// Which words are targets, and in which of the directories that are named, is not
	// told apart.
	in := []string{"."}
	for _, w := range words {
		if d := path.Clean(strings.TrimPrefix(strings.TrimPrefix(w, "-C"), "--directory=")); d != "." && dirs[d] {
			in = append(in, d)
		}
	}
	made := false
	for i, w := range words {
		if !made {
			made = isMake(w)
			continue
		}
		file, named := strings.CutPrefix(w, "-f")
		for _, long := range []string{"--file=", "--makefile="} {
			if f, ok := strings.CutPrefix(w, long); ok {
				file, named = f, true
			}
		}
		if named && file == "" && i+1 < len(words) {
			file = words[i+1]
		}
		for _, dir := range in {
			if named {
				if err := begin(dir, path.Join(dir, file)); err != nil {
					return err
				}
			} else if !strings.Contains(w, "=") {
				shadow(dir, w)
			}
		}
	}
	return nil
}
