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
	"slices"
	"strings"

	"golang.org/x/mod/semver"
)

// advisory is one of a database in OSV's format (https://ossf.github.io/osv-schema).
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

// Bounds of a database.
const (
	maxAdvisories    = 500_000
	maxAdvisoryBytes = 4 << 20
)

// readAdvisories reads a directory of OSV documents, *.json at any depth, and gives
// those of the packages that are asked for, with the digest of all. An empty database
// knows nothing, and is an error.
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
			return errors.Join(err, fmt.Errorf("%s is no advisory", p))
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%x", sha256.Sum256(b))
		var a advisory
		if err := json.Unmarshal(b, &a); err != nil || a.ID == "" {
			return fmt.Errorf("%s is no advisory in OSV's form: %w", p, err)
		}
		for _, x := range a.Affected {
			if a.Withdrawn == "" && wanted(x.Package.Ecosystem, x.Package.Name) {
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

// affects reports whether a package is meant. A range that can't be compared means it:
// what is not known is no pass.
func (a *advisory) affects(p Package) bool {
	for _, x := range a.Affected {
		if x.Package.Ecosystem != p.Ecosystem || x.Package.Name != p.Name {
			continue
		}
		bare := strings.TrimPrefix(p.Version, "v")
		if slices.Contains(x.Versions, p.Version) || slices.Contains(x.Versions, bare) {
			return true
		}
		for _, r := range x.Ranges {
			if r.Type == "GIT" || r.Type == "ECOSYSTEM" && len(x.Versions) > 0 {
				continue // commits; or the versions are listed, and it is none of them
			}
			if inRange(bare, r.Events) {
				return true
			}
		}
	}
	return false
}

func inRange(version string, events []map[string]string) bool {
	v := "v" + version
	if !semver.IsValid(v) {
		return true
	}
	in := false
	for _, e := range events {
		for what, at := range e {
			if at != "0" && !semver.IsValid("v"+at) {
				return true
			}
			c := 1
			if at != "0" {
				c = semver.Compare(v, "v"+at)
			}
			switch {
			case what == "introduced" && c >= 0:
				in = true
			case what == "fixed" && c >= 0, what == "last_affected" && c > 0, what == "limit" && c >= 0:
				in = false
			}
		}
	}
	return in
}
