package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/version"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/semver"
)

// Package is one that a lockfile pins.
type Package struct {
	Ecosystem string `json:"ecosystem"` // as OSV calls it: Go, npm, PyPI, crates.io
	Name      string `json:"name"`
	Version   string `json:"version"`
	Licence   string `json:"licence,omitempty"` // as the lockfile says
	File      string `json:"file"`

	// from is the address that a package is fetched from and sum what that is to be, where
	// its name and version do not say what is there.
	from, sum string
}

// same reports whether p and q are one package, wherever they are pinned.
func (p Package) same(q Package) bool {
	q.File, q.Licence = p.File, p.Licence
	return p == q
}

// packages are all that a tree's lockfiles pin. One that can't be read is an error: what
// is in it could not be judged.
func packages(ctx context.Context, t *Tree) (out []Package, files int, err error) {
	for _, f := range t.Files {
		if f.Mode == Link && isLockfile(f.Path) {
			return nil, 0, fmt.Errorf("%s is a link, so what it pins can't be judged", f.Path)
		}
	}
	err = t.Each(ctx, func(f File) bool { return f.Mode != Link && lockReaders[path.Base(f.Path)] != nil }, func(f File, b []byte) error {
		files++
		list, err := lockReaders[path.Base(f.Path)](b)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		for _, p := range list {
			p.File = f.Path
			out = append(out, p)
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	for _, f := range t.Files {
		if b := path.Base(f.Path); isLockfile(f.Path) && lockReaders[b] == nil && b != "go.sum" && b != "go.work.sum" {
			return nil, 0, fmt.Errorf("%s: this carboy does not read lockfiles of that name, so what it pins can't be judged", f.Path)
		}
	}
	return out, files, nil
}

var lockReaders = map[string]func([]byte) ([]Package, error){
	"go.mod": goPackages, "go.work": goWorkPackages, "package-lock.json": npmPackages, "npm-shrinkwrap.json": npmPackages,
	"Cargo.lock": cargoPackages, "poetry.lock": poetryPackages, "uv.lock": poetryPackages, "pdm.lock": poetryPackages,
	"requirements.txt": Requirements,
}

func goPackages(b []byte) (out []Package, err error) {
	f, err := modfile.Parse("go.mod", b, nil)
	if err != nil {
		return nil, err
	}
	// One that is for a version goes before one that is for all.
	replaced := map[module.Version]module.Version{}
	for _, r := range f.Replace {
		replaced[r.Old] = r.New
	}
	for _, r := range f.Require {
		m := r.Mod
		if x, ok := replaced[m]; ok {
			m = x
		} else if x, ok := replaced[module.Version{Path: m.Path}]; ok {
			m = x
		}
		if m.Version == "" {
			continue // a directory of the tree
		}
		out = append(out, Package{Ecosystem: "Go", Name: m.Path, Version: m.Version})
	}
	if len(out) > 0 && (f.Go == nil || version.Compare("go"+f.Go.Version, "go1.17") < 0) {
		return nil, errors.New("it does not say go 1.17 or later, so it does not list what its modules need in turn: go mod tidy -go=1.17")
	}
	return out, nil
}

// goWorkPackages are what a workspace puts in the place of modules, whatever go.mod says.
func goWorkPackages(b []byte) (out []Package, err error) {
	f, err := modfile.ParseWork("go.work", b, nil)
	if err != nil {
		return nil, err
	}
	for _, r := range f.Replace {
		if r.New.Version != "" {
			out = append(out, Package{Ecosystem: "Go", Name: r.New.Path, Version: r.New.Version})
		}
	}
	return out, nil
}

// exactly reads fields of a JSON object by their very names, which encoding/json does not,
// and npm does.
func exactly(b []byte, fields map[string]any) error {
	o, err := object(b)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if r, ok := o[name]; ok {
			if err := json.Unmarshal(r, fields[name]); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

func npmPackages(b []byte) (out []Package, err error) {
	var format int
	var all json.RawMessage
	if err := exactly(b, map[string]any{"lockfileVersion": &format, "packages": &all}); err != nil {
		return nil, err
	}
	if format < 2 {
		return nil, fmt.Errorf("lockfileVersion is %d; npm 7 and later write 2 or 3", format)
	}
	// Without packages npm reads what older ones wrote.
	list, err := object(all)
	if err != nil {
		return nil, fmt.Errorf("packages: %w", err)
	}
	for _, at := range slices.Sorted(maps.Keys(list)) {
		p := Package{Ecosystem: "npm"}
		var resolved, sum string
		var licence any
		var link bool
		if err := exactly(list[at], map[string]any{"name": &p.Name, "version": &p.Version, "license": &licence, "link": &link, "resolved": &resolved, "integrity": &sum}); err != nil {
			return nil, fmt.Errorf("packages: %q: %w", cut(at, 100), err)
		}
		i := strings.LastIndex(at, "node_modules/")
		if i < 0 || link {
			continue // the project itself
		}
		if path.Clean(at) != at {
			return nil, fmt.Errorf("packages: %q is no path that npm writes: npm install --package-lock-only writes it anew", cut(at, 100))
		}
		if p.Name == "" {
			p.Name = at[i+len("node_modules/"):]
		}
		if !npmHas(p.Name, p.Version, resolved) {
			if p.from, p.sum = resolved, sum; resolved == "" {
				p.from = p.Name + "@" + p.Version
			}
		}
		p.Licence, _ = licence.(string)
		out = append(out, p)
	}
	return out, nil
}

var npmForms = sync.OnceValue(func() (r struct{ name, registry, github *regexp.Regexp }) {
	const word = `[A-Za-z0-9~_-][A-Za-z0-9._~!*'()-]*`
	r.name = regexp.MustCompile(`^(@` + word + `/)?` + word + `$`)
	r.registry = regexp.MustCompile(`^https?://[A-Za-z0-9._~:@-]+(/[A-Za-z0-9_~@][A-Za-z0-9._~@-]*)*$`)
	r.github = regexp.MustCompile(`^[0-9a-f]+$`)
	return r
})

// npmHas reports whether what npm fetches is of a name and a version: from where a registry
// has it, or from its own registry if no address is there. What comes by git or as a file
// has neither there, and is taken for what it is called.
func npmHas(name, version, resolved string) bool {
	forms := npmForms()
	public, _, _ := strings.Cut(version, "+")
	switch {
	case !forms.name.MatchString(name):
		return false
	case strings.HasPrefix(resolved, "git+"), strings.HasPrefix(resolved, "git:"), strings.HasPrefix(resolved, "file:"):
		return true
	case semver.Canonical("v"+version) != "v"+public:
		return false // to npm it may be a tag, a range, an alias or an address
	case resolved == "":
		return true
	}
	for _, dir := range []string{name, strings.Replace(name, "/", "%2f", 1), strings.Replace(name, "/", "%2F", 1)} {
		for _, file := range []string{path.Base(name), name} {
			if at, ok := strings.CutSuffix(resolved, "/"+dir+"/-/"+file+"-"+version+".tgz"); ok {
				return forms.registry.MatchString(at)
			}
		}
	}
	sum, ok := strings.CutPrefix(resolved, "https://npm.pkg.github.com/download/"+name+"/"+version+"/")
	return ok && forms.github.MatchString(sum)
}

// tomlPackages reads keys by their very names, which decoding into fields does not, and
// cargo, Poetry, PDM and uv do. Cargo takes root for a package, and uv distribution for
// packages.
func tomlPackages(eco string, b []byte) (out []Package, err error) {
	var l map[string]any
	if err := toml.Unmarshal(b, &l); err != nil {
		return nil, err
	}
	for _, key := range []string{"root", "package", "distribution"} {
		list, ok := l[key].([]any)
		if v, is := l[key]; is && !ok {
			list = []any{v}
		}
		for _, x := range list {
			p := Package{Ecosystem: eco}
			m, ok := x.(map[string]any)
			for name, to := range map[string]*string{"name": &p.Name, "version": &p.Version} {
				if v, is := m[name]; is && ok {
					*to, ok = v.(string)
				}
			}
			if !ok || p.Name == "" {
				return nil, fmt.Errorf("%s: one has no name, or a name or a version that is no text", key)
			}
			if eco == "crates.io" && m["source"] == nil {
				continue // the project itself
			}
			p.Name = osvName(eco, p.Name)
			out = append(out, p)
		}
	}
	return out, nil
}

func cargoPackages(b []byte) ([]Package, error)  { return tomlPackages("crates.io", b) }
func poetryPackages(b []byte) ([]Package, error) { return tomlPackages("PyPI", b) }

var pipForms = sync.OnceValue(func() (r struct{ coding, comment, hashes, pinned, archive *regexp.Regexp }) {
	r.coding = regexp.MustCompile(`coding[:=]\s*([-\w.]+)`)
	r.comment = regexp.MustCompile(`(^|[ \t])#.*`)
	r.hashes = regexp.MustCompile(`^(--hash=[a-z0-9]+:[0-9a-fA-F]+\s*)+$`)
	r.pinned = regexp.MustCompile(`^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:\[[A-Za-z0-9._, -]*\])?\s*==\s*([A-Za-z0-9.!+_-]+)\s*(?:;[ -\[\]-~\t]*)?$`)
	r.archive = regexp.MustCompile(`(?i)\.(zip|whl|tar|t[bglx]z|tar\.[a-z0-9]+)$`)
	return r
})

// Requirements are what a requirements.txt asks pip for, if it leaves pip no choice: an
// error names a line that does, or that pip might read as another, and what to do.
func Requirements(b []byte) (out []Package, err error) {
	forms := pipForms()
	goesOn := false
	for i, line := range strings.Split(string(b), "\n") {
		n := i + 1
		// pip ends a line at whatever Python calls an end, and decodes the file first.
		line = strings.TrimSuffix(line, "\r")
		if !utf8.ValidString(line) {
			return nil, fmt.Errorf("line %d is not UTF-8: write it so", n)
		}
		if at := strings.IndexFunc(line, func(r rune) bool { return r != '\t' && !unicode.IsPrint(r) }); at >= 0 {
			r, _ := utf8.DecodeRuneInString(line[at:])
			return nil, fmt.Errorf("line %d has %U, which pip may take for an end of a line or a coding: remove it", n, r)
		}
		if m := forms.coding.FindStringSubmatch(line); m != nil && n <= 2 && m[1] != "utf-8" {
			return nil, fmt.Errorf("line %d names a coding, in which pip would read other lines: write it in UTF-8, and remove that", n)
		}
		line, more := strings.CutSuffix(strings.TrimSpace(forms.comment.ReplaceAllString(line, "")), " \\")
		on := goesOn
		if goesOn = more; line == "" || forms.hashes.MatchString(line) {
			continue
		}
		if on {
			return nil, fmt.Errorf("line %d belongs to the line before, which ends with \\, and is no --hash: write each package in a line", n)
		}
		m := forms.pinned.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("line %d pins no version: write NAME==VERSION", n)
		}
		// An archive in the directory would be taken that is called so.
		if _, ok := pep440(m[2]); !ok || forms.archive.MatchString(m[2]) {
			return nil, fmt.Errorf("line %d pins %s, which is no version as PEP 440 has them: write NAME==VERSION", n, m[2])
		}
		out = append(out, Package{Ecosystem: "PyPI", Name: osvName("PyPI", m[1]), Version: m[2]})
	}
	return out, nil
}
