package gate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/document"
)

func init() {
	register(SignalKind{Name: "vulnerabilities", Summary: "no package of the lockfiles has an advisory", Keys: []string{"fail", "accept"}}, func(_ *Signal, m document.Mapping) Judge[vulnerabilityFacts] {
		all := m.Get("fail").OneOf("new", "all") == "all"
		accept := m.Get("accept").Strings()
		return func(ctx context.Context, c *Case) (vulnerabilityFacts, []Finding, error) {
			return vulnerabilities(ctx, c, all, accept)
		}
	})
	register(SignalKind{Name: "licences", Summary: "packages of the lockfiles have licences that are allowed", Keys: []string{"allow", "packages"}}, func(_ *Signal, m document.Mapping) Judge[licenceFacts] {
		allow := m.Need("allow").Strings()
		names, values := m.Get("packages").Entries()
		said := make([]string, len(names))
		for i, v := range values {
			said[i] = v.Text()
		}
		known := func(p Package) (string, bool) {
			i := slices.IndexFunc(names, func(n string) bool { return osvName(p.Ecosystem, n) == p.Name })
			if i < 0 {
				return "", false
			}
			return said[i], true
		}
		return func(ctx context.Context, c *Case) (licenceFacts, []Finding, error) {
			return licences(ctx, c, allow, known)
		}
	})
}

type vulnerabilityFacts struct {
	Lockfiles  int      `json:"lockfiles"`
	Packages   int      `json:"packages"`
	Advisories int      `json:"advisories"`
	Database   string   `json:"database_sha256"`
	Found      []string `json:"found,omitempty"` // package@version: advisory
	// Old lists advisories that apply to the base already, Accepted those that the
	// catalog accepts.
	Old      []string `json:"of_the_base,omitempty"`
	Accepted []string `json:"accepted,omitempty"`
}

func (f vulnerabilityFacts) Positive() bool {
	return f.Database != "" && f.Advisories > 0 && f.Lockfiles > 0 && len(f.Found) == 0
}

func vulnerabilities(ctx context.Context, c *Case, all bool, accept []string) (f vulnerabilityFacts, found []Finding, err error) {
	if c.Database == "" {
		return f, nil, errors.New("there is no database of advisories: unpack OSV's export below the directory osv of the configuration")
	}
	now, files, err := packages(ctx, c.Change)
	if err != nil {
		return f, nil, err
	}
	if files == 0 {
		return f, nil, errors.New("the change has no lockfile, so nothing says what it depends on")
	}
	was, _, err := packages(ctx, c.Base)
	if err != nil {
		was = nil // then all packages of the change count as new
	}
	f.Lockfiles, f.Packages = files, len(now)
	wanted := map[string]bool{}
	for _, p := range now {
		wanted[p.Ecosystem+"\x00"+p.Name] = true
	}
	db, digest, n, err := readAdvisories(c.Database, func(eco, name string) bool { return wanted[eco+"\x00"+name] })
	if err != nil {
		return f, nil, err
	}
	f.Database, f.Advisories = digest, n
	for _, p := range now {
		say := func(id, text string) {
			what := fmt.Sprintf("%s@%s: %s", p.Name, p.Version, id)
			x := Finding{ID: id, File: p.File, Text: fmt.Sprintf("%s %s: %s", p.Name, p.Version, text)}
			old := slices.ContainsFunc(was, p.same)
			switch {
			case slices.Contains(accept, id):
				f.Accepted = append(f.Accepted, what)
				x.Noted = true
			case old && !all:
				f.Old = append(f.Old, what)
				x.Noted = true
			default:
				f.Found = append(f.Found, what)
			}
			found = append(found, x)
		}
		if p.from != "" {
			say(p.from, "what npm fetches for it is not where a registry has that name and version: npm install --package-lock-only writes what is, and accept: in the base's catalog lets this go")
		}
		for i := range db {
			if a := &db[i]; a.affects(p) {
				say(a.ID, a.Summary)
			}
		}
	}
	return f, found, nil
}

type licenceFacts struct {
	Lockfiles int      `json:"lockfiles"`
	Packages  int      `json:"packages"`
	Refused   []string `json:"refused,omitempty"`
	Unknown   []string `json:"unknown,omitempty"`
}

func (f licenceFacts) Positive() bool {
	return f.Lockfiles > 0 && len(f.Refused)+len(f.Unknown) == 0
}

// licences checks the licences in lockfiles. known returns the licence that the catalog
// gives a package.
func licences(ctx context.Context, c *Case, allow []string, known func(Package) (string, bool)) (f licenceFacts, found []Finding, err error) {
	list, files, err := packages(ctx, c.Change)
	if err != nil {
		return f, nil, err
	}
	if files == 0 {
		return f, nil, errors.New("the change has no lockfile, so nothing says what it depends on")
	}
	f.Lockfiles, f.Packages = files, len(list)
	for _, p := range list {
		l, ok := known(p)
		if !ok && p.from == "" {
			l = p.Licence
		}
		switch {
		case l == "":
			f.Unknown = append(f.Unknown, p.Name)
			found = append(found, Finding{ID: p.Name, File: p.File, Text: "nothing says which licence it has: name it in the catalog, packages: {" + p.Name + ": MIT}"})
		case !licenceAllowed(l, allow):
			f.Refused = append(f.Refused, p.Name+": "+l)
			found = append(found, Finding{ID: p.Name, File: p.File, Text: "has the licence " + l + ", which the catalog does not allow"})
		}
	}
	return f, found, nil
}

// licenceAllowed evaluates a simple SPDX expression: one name, names joined by OR (one
// must be allowed), or names joined by AND (all must be). It refuses others.
func licenceAllowed(l string, allow []string) bool {
	l = strings.TrimSpace(l)
	if strings.HasPrefix(l, "(") && strings.HasSuffix(l, ")") && strings.Count(l, "(") == 1 {
		l = l[1 : len(l)-1]
	}
	is := func(s string) bool { return slices.Contains(allow, strings.TrimSpace(s)) }
	not := func(s string) bool { return !is(s) }
	or, and := strings.Split(l, " OR "), strings.Split(l, " AND ")
	switch {
	case len(or) > 1 && len(and) > 1:
		return false
	case len(and) > 1:
		return !slices.ContainsFunc(and, not)
	}
	return slices.ContainsFunc(or, is)
}
