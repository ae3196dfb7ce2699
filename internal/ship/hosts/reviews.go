package hosts

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/ship/module"
)

// Reviews is an entry of reviews in hosts.yaml: a branch of a repository at a forge, and
// the people whose approving reviews there can approve plans.
type Reviews struct {
	Name     string
	Forge    string // gitea, also for Forgejo
	API      string // address of the forge's API
	Repo     string // OWNER/NAME
	Branch   string // into which the pull request must merge
	TokenEnv string // the environment variable with the forge's token

	// People maps logins at the forge, in lower case, to names of people. The names are
	// those of allowed_signers, so that nobody counts twice.
	People map[string]string
	// AtLeast is the number of people who must have reviewed before any review counts, at
	// least 1.
	AtLeast int

	// Protection of the branch that the forge must have. A weaker one makes every review
	// worthless.
	Approvals    int      // the protection requires so many approvals, at least 1
	DismissStale bool     // it dismisses approvals after a push
	Mergers      []string // only these may merge, in lower case; at least one
}

var (
	personName = module.NewPattern(`^[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}$`)
	login      = module.NewPattern(`^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$`)
	forgeRepo  = module.NewPattern(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}/[A-Za-z0-9_.-]{1,100}$`)
	branchName = module.NewPattern(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,199}$`)
	variable   = module.NewPattern(`^[A-Z][A-Z0-9_]{0,99}$`)
)

// unfit says why the reviews of a forge cannot approve.
var unfit = map[string]string{
	"github": "its API does not say which reviews the branch's protection counts, nor whether a review was edited",
	"gitlab": "its approvals name no commit and have no text",
}

// parseAllReviews parses the mapping reviews.
func parseAllReviews(v document.Value) map[string]*Reviews {
	out := map[string]*Reviews{}
	names, values := v.Entries()
	for i, name := range names {
		if !module.ValidHost(name) {
			values[i].Bad("has a name that is none", "letters, digits, ._- only")
			continue
		}
		out[name] = parseReviews(name, values[i])
	}
	return out
}

func parseReviews(name string, v document.Value) *Reviews {
	m := v.Mapping("forge", "api", "repo", "branch", "token_env", "people", "at_least", "protection")
	r := &Reviews{Name: name, AtLeast: int(m.Get("at_least").Int(1, 1, 16)), People: map[string]string{}}
	f := m.Need("forge")
	switch r.Forge = f.Text(); {
	case !f.Present():
	case unfit[r.Forge] != "":
		f.Bad("is "+r.Forge+": "+unfit[r.Forge], "approve with carboy ship approve; reviews count on gitea only")
	case r.Forge != "gitea":
		f.Bad(fmt.Sprintf("%.40q is no forge whose reviews can approve", r.Forge), "gitea, which stands for Forgejo too")
	}
	match := func(key string, p module.Pattern, what string) string {
		x := m.Need(key)
		s := x.Text()
		if x.Present() && (!p.MatchString(s) || strings.Contains(s, "..") || strings.Contains(s, "//")) {
			x.Bad("is not "+what, "")
		}
		return s
	}
	r.Repo = match("repo", forgeRepo, "OWNER/NAME")
	r.Branch = match("branch", branchName, "the name of a branch")
	r.TokenEnv = match("token_env", variable, "the name of an environment variable, such as CARBOY_REVIEW_TOKEN")
	api := m.Need("api")
	r.API = strings.TrimRight(api.Text(), "/")
	if u, err := url.Parse(r.API); api.Present() && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "") {
		api.Bad("is not the address of an API", "such as https://gitea.example.org/api/v1")
	}
	r.parsePeople(m.Need("people"))
	if n := m.Get("at_least"); n.Present() && r.AtLeast > len(r.People) && len(r.People) > 0 {
		n.Bad(fmt.Sprintf("is more than the %d people", len(r.People)), "")
	}
	r.parseProtection(m.Need("protection"))
	return r
}

func (r *Reviews) parsePeople(v document.Value) {
	logins, names := v.Entries()
	var seen []string
	for i, l := range logins {
		name, key := names[i].Text(), strings.ToLower(l)
		switch {
		case !login.MatchString(l):
			names[i].Bad("is the value of what is not a login", "")
		case r.People[key] != "":
			names[i].Bad("is of a login that is there twice", "")
		case !personName.MatchString(name):
			names[i].Bad("is not a name such as alice@example.org", "as in allowed_signers")
		case slices.Contains(seen, name):
			names[i].Bad("is a person with two logins", "one would count for two")
		default:
			r.People[key] = name
			seen = append(seen, name)
		}
	}
	if v.Present() && len(logins) == 0 {
		v.Bad("is empty", "nobody could approve; write LOGIN: NAME")
	}
}

func (r *Reviews) parseProtection(v document.Value) {
	m := v.Mapping("approvals", "dismiss_stale", "mergers")
	r.Approvals = int(m.Get("approvals").Int(1, 1, 16))
	r.DismissStale = m.Get("dismiss_stale").Bool(true)
	mergers := m.Need("mergers")
	for _, l := range mergers.Strings() {
		if !login.MatchString(l) {
			mergers.Bad(fmt.Sprintf("has %.80q, which is not a login", l), "")
		}
		r.Mergers = append(r.Mergers, strings.ToLower(l))
	}
	if mergers.Present() && len(r.Mergers) == 0 {
		mergers.Bad("is empty", "name the people who may merge into the branch")
	}
}
