package gate

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"
	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
)

// Package is one that a lockfile pins.
type Package struct {
	Ecosystem string `json:"ecosystem"` // as OSV calls it: Go, npm, PyPI, crates.io
	Name      string `json:"name"`
	Version   string `json:"version"`
	Licence   string `json:"licence,omitempty"` // as the lockfile says
	File      string `json:"file"`
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
	"requirements.txt": pipPackages,
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

func npmPackages(b []byte) (out []Package, err error) {
	var l struct {
		LockfileVersion int
		Packages        map[string]struct {
			Version, Name string
			License       any
			Link          bool
		}
	}
	if err := json.Unmarshal(b, &l); err != nil {
		return nil, err
	}
	if l.LockfileVersion < 2 {
		return nil, fmt.Errorf("lockfileVersion is %d; npm 7 and later write 2 or 3", l.LockfileVersion)
	}
	for at, p := range l.Packages {
		i := strings.LastIndex(at, "node_modules/")
		if i < 0 || p.Link {
			continue // the project itself
		}
		name := at[i+len("node_modules/"):]
		if p.Name != "" {
			name = p.Name
		}
		licence, _ := p.License.(string)
		out = append(out, Package{Ecosystem: "npm", Name: name, Version: p.Version, Licence: licence})
	}
	return out, nil
}

func tomlPackages(eco string, b []byte) (out []Package, err error) {
	var l struct {
		Package []struct {
			Name, Version string
			Source        any
		}
	}
	if err := toml.Unmarshal(b, &l); err != nil {
		return nil, err
	}
	for _, p := range l.Package {
		if eco == "crates.io" && p.Source == nil {
			continue // the project itself
		}
		out = append(out, Package{Ecosystem: eco, Name: p.Name, Version: p.Version})
	}
	return out, nil
}

func cargoPackages(b []byte) ([]Package, error)  { return tomlPackages("crates.io", b) }
func poetryPackages(b []byte) ([]Package, error) { return tomlPackages("PyPI", b) }

var pinned = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*==\s*([A-Za-z0-9.!+_-]+)\s*(?:[;#\\].*)?$`)
})

func pipPackages(b []byte) (out []Package, err error) {
	s := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; s.Scan(); n++ {
		line := strings.TrimSpace(s.Text())
		if line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "--hash=") {
			continue
		}
		m := pinned().FindStringSubmatch(line)
		if m == nil {
			return nil, fmt.Errorf("line %d pins no version: write NAME==VERSION", n)
		}
		out = append(out, Package{Ecosystem: "PyPI", Name: strings.ToLower(strings.ReplaceAll(m[1], "_", "-")), Version: m[2]})
	}
	return out, s.Err()
}
