package change

import (
	_ "embed"
	"slices"
	"strings"
	"sync"
	"unicode"
)

//go:embed protected.tsv
var protectedText string

// A protectedName is a line of protected.tsv.
type protectedName struct {
	rule string   // "settings" or "ci"
	name []string // its components; one may begin or end in an asterisk
	why  string
}

// protectedNames returns the lines of protected.tsv by their first component, and those
// with an asterisk.
var protectedNames = sync.OnceValues(func() (map[string][]protectedName, []protectedName) {
	exact, wild := map[string][]protectedName{}, []protectedName(nil)
	for line := range strings.Lines(protectedText) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if line[0] == '#' || len(f) < 4 {
			continue
		}
		n := protectedName{f[0], strings.Split(f[1], "/"), f[3]}
		if strings.Contains(f[1], "*") {
			wild = append(wild, n)
			continue
		}
		exact[n.name[0]] = append(exact[n.name[0]], n)
	}
	return exact, wild
})

// begins reports whether the folded path of a file begins with the name, or leads to it
// as something other than a directory.
func (n protectedName) begins(path []string, typ Type) bool {
	if len(path) >= len(n.name) {
		return slices.Equal(path[:len(n.name)], n.name)
	}
	return slices.Equal(n.name[:len(path)], path) && (typ == Symlink || typ == File && path[0][0] == '.')
}

// fits reports whether a component fits the name, which has an asterisk.
func (n protectedName) fits(comp string) bool {
	before, after, _ := strings.Cut(n.name[0], "*")
	return strings.HasPrefix(comp, before) && strings.HasSuffix(comp, after)
}

// Reason says why a path is protected: the name of the rule and a sentence.
type Reason struct {
	Rule string `json:"rule"`
	Why  string `json:"why"`
}

// Policy decides which paths are protected: they land only if they are
// included explicitly. The zero Policy is the full default protection; options
// only add to it.
type Policy struct {
	// CI also protects files that run on a continuous-integration server.
	CI bool `json:"ci,omitempty"`
	// Extra lists further paths to protect, relative to the workspace; a
	// directory includes everything below it.
	Extra []string `json:"extra,omitempty"`
}

// fold maps a name to a canonical form, such that names that some file system
// or tool treats as equal have equal forms. It folds case, characters that
// HFS+ ignores, full-width forms, trailing dots and spaces, NTFS streams and
// short names. Folding more than any one system does only protects more.
func fold(name string) string {
	if i := strings.IndexByte(name, ':'); i > 0 {
		name = name[:i]
	}
	var b strings.Builder
	for _, r := range name {
		switch {
		case ignorable(r):
			continue
		case r >= 0xff01 && r <= 0xff5e: // full-width ASCII
			r -= 0xfee0
		case r == 0x2024 || r == 0x2025 || r == 0x2026 || r == 0xfe52: // leaders and small full stop
			r = '.'
		}
		b.WriteRune(unfancy(unicode.ToLower(unicode.SimpleFold(unicode.ToLower(r)))))
	}
	s := strings.TrimRight(b.String(), ". ")
	if s == "git~1" {
		return ".git"
	}
	return s
}

// SameName reports whether some file system or tool treats two file names as
// equal. No single system treats all these names as equal.
func SameName(a, b string) bool { return a == b || fold(a) == fold(b) }

// FoldName returns a canonical form of a path. Paths with equal forms may name
// the same file on some file system.
func FoldName(rel string) string {
	parts := strings.Split(rel, "/")
	for i, p := range parts {
		parts[i] = fold(p)
	}
	return strings.Join(parts, "/")
}

// unfancy maps letters outside ASCII that fold to ASCII ones to those.
func unfancy(r rune) rune {
	switch r {
	case 'ſ':
		return 's'
	case '\u212a': // Kelvin
		return 'k'
	case 'ı', 'İ':
		return 'i'
	}
	return unicode.ToLower(r)
}

// ignorable reports whether HFS+ ignores r when it compares names.
func ignorable(r rune) bool {
	return unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Variation_Selector, r) ||
		r >= 0x180b && r <= 0x180f || r == 0x034f || r >= 0x115f && r <= 0x1160 || r == 0x3164 || r == 0xffa0
}

// Path returns the reasons why a path is protected, judged by its name alone.
// typ is the type of the bottle's file, "" if unknown.
func (p Policy) Path(rel string, typ Type) []Reason {
	comps := strings.Split(rel, "/")
	folded := make([]string, len(comps))
	for i, c := range comps {
		folded[i] = fold(c)
	}
	exact, wild := protectedNames()
	var out []Reason
	for i, f := range folded {
		if f == ".git" {
			if why := gitPath(folded[i+1:], comps[i+1:], typ); why != "" {
				out = append(out, Reason{"git", why})
			}
			break
		}
		for _, n := range exact[f] {
			if (n.rule != "ci" || p.CI) && n.begins(folded[i:], typ) {
				out = append(out, Reason{n.rule, n.why})
			}
		}
		for _, n := range wild {
			if n.fits(f) {
				out = append(out, Reason{n.rule, n.why})
			}
		}
	}
	for _, e := range p.Extra {
		if e = strings.Trim(e, "/"); rel == e || strings.HasPrefix(rel, e+"/") {
			out = append(out, Reason{"configured", "the configuration protects " + show(e)})
		}
	}
	return out
}
