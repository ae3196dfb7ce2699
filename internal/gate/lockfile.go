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

// Package is a package that a lockfile pins.
type Package struct {
	Ecosystem string `json:"ecosystem"` // OSV's name: Go, npm, PyPI, crates.io
	Name      string `json:"name"`
	Version   string `json:"version"`
	Licence   string `json:"licence,omitempty"` // as the lockfile says
	File      string `json:"file"`

	// from is the address that the package is fetched from, and sum its checksum, if
	// these do not follow from name and version.
	from, sum string
}

// same reports whether p and q are the same package, in whatever file.
func (p Package) same(q Package) bool {
	q.File, q.Licence = p.File, p.Licence
	return p == q
}

// packages returns what a tree's lockfiles pin, and the number of lockfiles. A lockfile
// that can't be read is an error, since nobody could judge its packages.
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
	// A replacement for one version takes precedence over one for all versions.
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
			continue // a directory, not a module version
		}
		out = append(out, Package{Ecosystem: "Go", Name: m.Path, Version: m.Version})
	}
	if len(out) > 0 && (f.Go == nil || version.Compare("go"+f.Go.Version, "go1.17") < 0) {
		return nil, errors.New("it does not say go 1.17 or later, so it does not list what its modules need in turn: go mod tidy -go=1.17")
	}
	return out, nil
}

// goWorkPackages returns the modules that a workspace's replace directives bring in,
// which override those of go.mod.
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

// unmarshalExact reads fields of a JSON object by their exact names, as npm does.
// encoding/json ignores case.
func unmarshalExact(b []byte, fields map[string]any) error {
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
	if err := unmarshalExact(b, map[string]any{"lockfileVersion": &format, "packages": &all}); err != nil {
		return nil, err
	}
	if format < 2 {
		return nil, fmt.Errorf("lockfileVersion is %d; npm 7 and later write 2 or 3", format)
	}
	// Without "packages" npm falls back to the format of version 1.
	list, err := object(all)
	if err != nil {
		return nil, fmt.Errorf("packages: %w", err)
	}
	for _, at := range slices.Sorted(maps.Keys(list)) {
		p := Package{Ecosystem: "npm"}
		var resolved, sum string
		var licence any
		var link bool
		if err := unmarshalExact(list[at], map[string]any{"name": &p.Name, "version": &p.Version, "license": &licence, "link": &link, "resolved": &resolved, "integrity": &sum}); err != nil {
			return nil, fmt.Errorf("packages: %q: %w", truncate(at, 100), err)
		}
		i := strings.LastIndex(at, "node_modules/")
		if i < 0 || link {
			continue // the project itself
		}
		if path.Clean(at) != at {
			return nil, fmt.Errorf("packages: %q is not a path that npm writes: npm install --package-lock-only writes it anew", truncate(at, 100))
		}
		if p.Name == "" {
			p.Name = at[i+len("node_modules/"):]
		}
		if !npmSourceMatches(p.Name, p.Version, resolved) {
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

// npmSourceMatches reports whether the address that npm fetches from serves the package
// of that name and version: at a registry, or npm's own registry if there is no address.
// A git address or a file serves whatever is there, so the package goes by its name.
func npmSourceMatches(name, version, resolved string) bool {
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

// tomlPackages reads keys by their exact names, as cargo, Poetry, PDM and uv do; decoding
// into a struct ignores case. Cargo also reads "root" as a package, and uv "distribution"
// as packages.
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
				return nil, fmt.Errorf("%s: one has no name, or a name or version that is not a string", key)
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

// Requirements returns the packages that a requirements.txt pins. A line that leaves pip
// a choice, or that pip may read differently, is an error that says what to do.
func Requirements(b []byte) (out []Package, err error) {
	forms := pipForms()
	goesOn := false
	for i, line := range strings.Split(string(b), "\n") {
		n := i + 1
		// pip decodes the file first, and splits lines at everything that Python takes
		// for a line end.
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
			return nil, fmt.Errorf("line %d belongs to the line before, which ends with \\, and is not a --hash: write each package in a line", n)
		}
		m := forms.pinned.FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("line %d pins no version: write NAME==VERSION", n)
		}
		// pip would install an archive of that name from the current directory.
		if _, ok := pep440(m[2]); !ok || forms.archive.MatchString(m[2]) {
			return nil, fmt.Errorf("line %d pins %s, which is not a version by PEP 440: write NAME==VERSION", n, m[2])
		}
		out = append(out, Package{Ecosystem: "PyPI", Name: osvName("PyPI", m[1]), Version: m[2]})
	}
	return out, nil
}
