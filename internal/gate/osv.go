package gate

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/mod/semver"
)

// advisory is an advisory in OSV's format (https://ossf.github.io/osv-schema).
type advisory struct {
	ID        string
	Summary   string
	Withdrawn string
	Affected  []struct {
		Package struct{ Ecosystem, Name string }
		Ranges  []struct {
			Type   string
			Events []map[string]string
		}
		Versions []string
	}
}

// Bounds of a database: its advisories, and the bytes of one.
const (
	maxAdvisories    = 500_000
	maxAdvisoryBytes = 4 << 20
)

// readAdvisories reads a directory of OSV documents, *.json at any depth. It returns
// those of the wanted packages, a digest over all, and their number. An empty database is
// an error.
func readAdvisories(dir string, wanted func(ecosystem, name string) bool) (out []advisory, digest string, n int, err error) {
	h := sha256.New()
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(p, ".json") {
			return err
		}
		if n++; n > maxAdvisories {
			return fmt.Errorf("more than %d advisories", maxAdvisories)
		}
		if fi, err := d.Info(); err != nil || !fi.Mode().IsRegular() || fi.Size() > maxAdvisoryBytes {
			return errors.Join(err, fmt.Errorf("%s is not an advisory", p))
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%x", sha256.Sum256(b))
		var a advisory
		if err := json.Unmarshal(b, &a); err != nil || a.ID == "" {
			return fmt.Errorf("%s is not an advisory in OSV's format: %w", p, err)
		}
		for _, x := range a.Affected {
			if a.Withdrawn == "" && wanted(x.Package.Ecosystem, osvName(x.Package.Ecosystem, x.Package.Name)) {
				out = append(out, a)
				break
			}
		}
		return nil
	})
	if err == nil && n == 0 {
		err = fmt.Errorf("%s has no advisories", dir)
	}
	return out, hex.EncodeToString(h.Sum(nil)), n, err
}

// osvName returns OSV's name of a package.
func osvName(ecosystem, name string) string {
	if ecosystem != "PyPI" {
		return name
	}
	return separators().ReplaceAllString(strings.ToLower(name), "-")
}

var separators = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[-_.]+`) })

// affects reports whether an advisory applies to a package. A version that can't be
// compared counts as affected.
func (a *advisory) affects(p Package) bool {
	compare := compareSemver
	if p.Ecosystem == "PyPI" {
		compare = comparePEP440
	}
	for _, x := range a.Affected {
		if x.Package.Ecosystem != p.Ecosystem || osvName(p.Ecosystem, x.Package.Name) != p.Name {
			continue
		}
		if _, ok := compare(p.Version, "0"); !ok {
			return true
		}
		for _, v := range x.Versions {
			v, _, _ = strings.Cut(v, "+")
			if c, ok := compare(p.Version, v); ok && c == 0 {
				return true
			}
		}
		for _, r := range x.Ranges {
			if r.Type != "GIT" && inRange(p.Version, r.Events, compare) {
				return true
			}
		}
	}
	return false
}

// inRange reports whether a version is affected. It sorts the events by version, since
// documents need not.
func inRange(version string, events []map[string]string, compare func(a, b string) (int, bool)) bool {
	type event struct{ what, at string }
	var list []event
	for _, e := range events {
		for what, at := range e {
			if _, ok := compare(version, at); !ok && at != "0" {
				return true
			}
			list = append(list, event{what, at})
		}
	}
	order := func(a, b string) int {
		if a == "0" || b == "0" { // "0" comes before all others
			return btoi(b == "0") - btoi(a == "0")
		}
		c, _ := compare(a, b)
		return c
	}
	slices.SortStableFunc(list, func(a, b event) int { return order(a.at, b.at) })
	in := false
	for _, e := range list {
		c := 1
		if e.at != "0" {
			c, _ = compare(version, e.at)
		}
		switch {
		case e.what == "introduced" && c >= 0:
			in = true
		case e.what == "fixed" && c >= 0, e.what == "last_affected" && c > 0, e.what == "limit" && c >= 0:
			in = false
		}
	}
	return in
}

// compareSemver reports false if either is no version.
func compareSemver(a, b string) (int, bool) {
	a, b = "v"+strings.TrimPrefix(a, "v"), "v"+strings.TrimPrefix(b, "v")
	return semver.Compare(a, b), len(a) <= maxVersion && semver.IsValid(a) && semver.IsValid(b)
}

// comparePEP440 reports false if either is no version, or b is a local one. A local
// version a counts as the public one.
func comparePEP440(a, b string) (int, bool) {
	x, ok := pep440(a)
	y, is := pep440(b)
	return slices.Compare(x, y), ok && is && !strings.Contains(b, "+")
}

// pep440Form is the pattern of Python's "packaging" library, in small letters.
var pep440Form = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^v?(?:([0-9]+)!)?([0-9]+(?:\.[0-9]+)*)` +
		`(?:[-_.]?(a|b|c|rc|alpha|beta|pre|preview)[-_.]?([0-9]*))?` +
		`(?:(-)([0-9]+)|[-_.]?(post|rev|r)[-_.]?([0-9]*))?` +
		`(?:[-_.]?(dev)[-_.]?([0-9]*))?` +
		`(?:\+[a-z0-9]+(?:[-_.][a-z0-9]+)*)?$`)
})

// maxVersion bounds versions that are compared, in bytes.
const maxVersion = 256

// pep440 returns the sort key of a version as PEP 440 defines it, without the local part.
func pep440(version string) (key []string, ok bool) {
	if len(version) > maxVersion {
		return nil, false
	}
	m := pep440Form().FindStringSubmatch(strings.ToLower(version))
	if m == nil {
		return nil, false
	}
	// Numbers can be of any size, so they are compared as text.
	number := func(s string) string {
		s = strings.TrimLeft(s, "0")
		return fmt.Sprintf("%09d%s", len(s), s)
	}
	for _, s := range strings.Split(m[2], ".") {
		key = append(key, number(s))
	}
	for len(key) > 0 && key[len(key)-1] == number("0") {
		key = key[:len(key)-1]
	}
	const last = "~" // after all letters and digits
	pre, post, dev := last, "", last
	switch {
	case m[3] == "c" || strings.HasPrefix(m[3], "p"):
		pre = "r" + number(m[4])
	case m[3] != "":
		pre = m[3][:1] + number(m[4])
	case m[5]+m[7] == "" && m[9] != "":
		pre = ""
	}
	if m[5]+m[7] != "" {
		post = number(m[6] + m[8])
	}
	if m[9] != "" {
		dev = number(m[10])
	}
	return append(append([]string{number(m[1])}, key...), "", pre, post, dev), true
}
