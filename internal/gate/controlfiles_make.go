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

// makefile is the part of a makefile that counts here.
type makefile struct {
	names    []string // targets and prerequisites
	phony    []string // targets that are not files
	includes []string
}

// Only make knows what variables and patterns expand to, so words with them are left out.
var (
	makeVariable = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$\([^()]*\)|\$\{[^{}]*\}|\$[^({]`) })
	makeInclude  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^ *[-s]?include[ \t]+(.+)`) })
)

const makeUnknown = "\x00%$*?[]()~"

func parseMakefile(b []byte) (m makefile) {
	words := func(s string) []string {
		return slices.DeleteFunc(strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(" \t\r\n:|", r) }), func(w string) bool {
			return strings.ContainsAny(w, makeUnknown)
		})
	}
	text := strings.ReplaceAll(strings.ReplaceAll(string(b), "\r\n", "\n"), "\\\n", " ")
	for l := range strings.Lines(text) {
		if strings.HasPrefix(l, "\t") {
			continue // a line of a recipe
		}
		l, _, _ = strings.Cut(l, "#")
		for range 20 { // innermost first
			was := l
			if l = makeVariable().ReplaceAllString(l, "\x00"); l == was {
				break
			}
		}
		if found := makeInclude().FindStringSubmatch(l); found != nil {
			// An include directive takes patterns, so these stay.
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
			needs = "" // a target-specific variable
		}
		if slices.Contains(strings.Fields(targets), ".PHONY") {
			m.phony = append(m.phony, words(needs)...)
			continue
		}
		m.names = append(append(m.names, words(targets)...), words(needs)...)
	}
	return m
}

// isMakefile reports whether make reads a file by itself.
func isMakefile(f File) bool { return slices.Contains(makefiles, path.Base(f.Path)) }

// addMake adds the files of base that a signal's make reads, and the paths where a new
// file or directory would be taken for a target.
func (r *controlFiles) addMake(ctx context.Context, base *Tree, names *linkAliases, there map[string]bool, signal string, words []string) error {
	if r.parsed == nil { // one pass over the tree for all signals
		r.parsed = map[string]makefile{}
		if err := base.Each(ctx, func(f File) bool { return isMakefile(f) && f.Mode != Link }, func(f File, b []byte) error {
			r.parsed[f.Path] = parseMakefile(b)
			return nil
		}); err != nil {
			return err
		}
	}
	m := makeReader{r, base, names, there, signal}
	dirs := map[string]bool{".": true} // directories with a makefile
	for _, f := range base.Files {
		if isMakefile(f) {
			dirs[path.Dir(f.Path)] = true
			if err := m.add(ctx, path.Dir(f.Path), f.Path); err != nil {
				return err
			}
		}
	}
	return m.addCommand(ctx, dirs, words)
}

// makeReader adds what one signal's make reads.
type makeReader struct {
	*controlFiles
	base   *Tree
	names  *linkAliases
	there  map[string]bool // paths of the base, with directories
	signal string
}

// parse reads a makefile of the base. It follows links, and reports false when there is
// no such file.
func (m makeReader) parse(ctx context.Context, p string) (makefile, bool, error) {
	p = m.names.follow(p)
	if f, ok := m.base.lookup(p); !ok || f.Mode == Link {
		return makefile{}, false, nil
	}
	if parsed, ok := m.parsed[p]; ok {
		return parsed, true, nil
	}
	b, err := m.base.Read(ctx, p)
	if err != nil {
		return makefile{}, false, err
	}
	m.parsed[p] = parseMakefile(b)
	return m.parsed[p], true, nil
}

// addTarget records that a new file at the name of a target would stop make from running
// its recipe.
func (m makeReader) addTarget(dir, name string) {
	if p := path.Join(dir, name); !path.IsAbs(name) && badPath(p) == "" && !m.there[p] {
		m.shadowing[p] = m.signal
	}
}

// add reads a makefile with all that it includes, for a make that runs in dir.
func (m makeReader) add(ctx context.Context, dir, file string) error {
	var targets []string
	phony, seen := map[string]bool{}, map[string]bool{}
	for todo := []string{file}; len(todo) > 0; todo = todo[1:] {
		p := todo[0]
		if seen[p] {
			continue
		}
		seen[p] = true
		parsed, ok, err := m.parse(ctx, p)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		targets = append(targets, parsed.names...)
		for _, w := range parsed.phony {
			phony[path.Clean(w)] = true
		}
		for _, w := range parsed.includes {
			todo = append(todo, m.include(dir, w)...)
		}
	}
	for _, w := range targets {
		if !phony[path.Clean(w)] {
			m.addTarget(dir, w)
		}
	}
	return nil
}

// include records the pattern of an include directive, and returns the files of the base
// that it stands for.
func (m makeReader) include(dir, word string) (files []string) {
	pattern := path.Join(dir, word)
	if path.IsAbs(word) || badPath(pattern) != "" {
		return nil
	}
	m.included["/"+pattern] = m.signal
	if !strings.ContainsAny(pattern, "*?[") {
		return []string{pattern}
	}
	for _, f := range m.base.Files {
		if match("/"+pattern, f.Path) {
			files = append(files, f.Path)
		}
	}
	return files
}

// addCommand reads the makefiles that a command names, and takes its other words for
// targets. It does not tell which of the command's directories a word belongs to.
func (m makeReader) addCommand(ctx context.Context, dirs map[string]bool, words []string) error {
	in := []string{"."}
	for _, w := range words {
		if d := path.Clean(strings.TrimPrefix(strings.TrimPrefix(w, "-C"), "--directory=")); d != "." && dirs[d] {
			in = append(in, d)
		}
	}
	first := slices.IndexFunc(words, isMake) + 1
	for i, w := range words[first:] {
		file, named := strings.CutPrefix(w, "-f")
		for _, long := range []string{"--file=", "--makefile="} {
			if f, ok := strings.CutPrefix(w, long); ok {
				file, named = f, true
			}
		}
		if next := first + i + 1; named && file == "" && next < len(words) {
			file = words[next]
		}
		for _, dir := range in {
			if named {
				if err := m.add(ctx, dir, path.Join(dir, file)); err != nil {
					return err
				}
			} else if !strings.Contains(w, "=") {
				m.addTarget(dir, w)
			}
		}
	}
	return nil
}
