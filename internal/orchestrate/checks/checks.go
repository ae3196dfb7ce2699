// Package checks finds out whether a forge and this machine are set up for carboy
// orchestrate: the rights of each credential, neither less nor more, the protection of the
// branches, and the agents. It changes nothing.
//
// Start reading at [Run].
package checks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/orchestrate/config"
	"github.com/carboy/carboy/internal/safetext"
)

// Schema names the document that a Report is.
const Schema = "carboy.dev/orchestrate-doctor/v1"

// GateStatus is the context of the commit status that a merge should need.
const GateStatus = "carboy/gate"

// Results of a check. Unsure means that the forge does not tell.
const (
	OK     = "ok"
	Unsure = "unsure"
	Fail   = "fail"
)

// Finding is the result of one check.
type Finding struct {
	Check  string `json:"check"`
	Result string `json:"result"`
	Detail string `json:"detail"`
	Advice string `json:"advice,omitempty"`
}

// Report is the result of all checks. OK reports whether none failed.
type Report struct {
	Schema   string    `json:"schema"`
	OK       bool      `json:"ok"`
	Config   string    `json:"config"`
	Findings []Finding `json:"findings"`
}

// Add adds the result of a check. Texts of a forge are made safe to show.
func (r *Report) Add(check, result, detail, advice string) {
	r.OK = r.OK && result != Fail
	r.Findings = append(r.Findings, Finding{check, result, safetext.String(detail, 2000), safetext.String(advice, 1000)})
}

// Options say what is checked.
type Options struct {
	Config *config.Config
	// Agents lists the agents that this user has.
	Agents func() ([]string, error)
	// Repositories returns the addresses of the repositories that the bottle of an agent
	// declares, or what is wrong with its manifests. bottles are in place of its own, if
	// there are any.
	Repositories func(agent string, bottles []string) ([]string, error)
}

// checker does the checks of one report.
type checker struct {
	c       *config.Config
	r       *Report
	clients map[config.Role]*forge.Client
	down    bool // the forge cannot be reached
}

// Run asks the forge with each credential, and returns what it found.
func Run(ctx context.Context, o Options) *Report {
	k := &checker{c: o.Config, r: &Report{Schema: Schema, OK: true, Config: o.Config.File, Findings: []Finding{}}, clients: map[config.Role]*forge.Client{}}
	defer func() {
		for _, c := range k.clients {
			c.Close()
		}
	}()
	k.configuration()
	for _, role := range config.Roles {
		k.credential(ctx, role)
	}
	k.apart()
	for _, repo := range o.Config.Repositories {
		if !k.down {
			k.robot(ctx, repo)
			k.protection(ctx, repo)
			k.keys(ctx, repo)
		}
		k.agents(o, repo)
	}
	return k.r
}

func (k *checker) configuration() {
	k.r.Add("configuration", OK, fmt.Sprintf("%s: %s at %s, organisation %s, repositories: %d", k.c.File, k.c.Provider, k.c.API, k.c.Organisation, len(k.c.Repositories)), "")
	for _, field := range slices.Sorted(maps.Keys(k.c.From)) {
		k.r.Add("configuration", OK, field+" is from "+k.c.From[field], "")
	}
	if k.c.Webhooks == nil {
		k.r.Add("webhooks", OK, fmt.Sprintf("none: the forge is polled every %v", k.c.Poll), "")
		return
	}
	if _, err := k.c.Secret(); err != nil {
		k.r.Add("webhooks", Fail, err.Error(), "")
		return
	}
	k.r.Add("webhooks", OK, "taken at "+k.c.Webhooks.Listen+", signed with the secret of "+k.c.Webhooks.Secret.String(), "")
}

// excess lists what a role's credential should not be able to do.
var excess = map[config.Role][]forge.Need{
	config.Service:      {forge.WriteRepository},
	config.Shipper:      {forge.WriteIssues},
	config.Orchestrator: {forge.WriteIssues, forge.WriteRepository},
	config.Keys:         {forge.WriteIssues},
}

// soon bounds the rest of a token's life at which it is reported.
const soon = 14 * 24 * time.Hour

// credential checks what the credential of a role may do.
func (k *checker) credential(ctx context.Context, role config.Role) {
	check := "token " + string(role)
	first := k.c.Repositories[0].Path()
	client, err := k.c.Client(role, first)
	switch {
	case role == config.Keys && errors.Is(err, config.ErrNoCredential):
		k.r.Add(check, OK, "there is none: carboy makes no deploy keys", "")
		return
	case err != nil:
		k.r.Add(check, Fail, err.Error(), "")
		return
	}
	k.clients[role] = client
	if k.down {
		return // reported
	}
	good := true
	add := func(result, detail, advice string) {
		good = false
		k.r.Add(check, result, detail, advice)
	}
	lacks, unknown, err := client.Lacks(ctx, first, k.c.Organisation, role.Needs()...)
	var call *forge.Error
	switch {
	case errors.As(err, &call) && call.Code == 0:
		k.down = true
		k.r.Add("forge", Fail, err.Error(), "is forge.api right, and can this machine reach it?")
		return
	case err != nil:
		add(Fail, err.Error(), "")
	case len(lacks) > 0:
		add(Fail, "lacks "+strings.Join(lacks, " and "), "make a token that has it too")
	case len(unknown) > 0:
		add(Unsure, fmt.Sprintf("the forge does not tell whether it may %s", needs(unknown)), "")
	}
	if err == nil {
		k.tooMuch(ctx, role, client, first, add)
	}
	k.account(ctx, role, client, add)
	if good {
		k.r.Add(check, OK, "may "+map[bool]string{true: "manage deploy keys", false: needs(role.Needs())}[role == config.Keys]+", and no more of what was tried", "")
	}
}

func needs(all []forge.Need) string {
	var out []string
	for _, n := range all {
		out = append(out, string(n))
	}
	return strings.Join(out, ", ")
}

// tooMuch reports what a credential can do that its role does not need.
func (k *checker) tooMuch(ctx context.Context, role config.Role, client *forge.Client, repo string, add func(result, detail, advice string)) {
	if k.c.Provider == "gitlab" || k.c.App != nil {
		return // GitLab has one scope for all; an app's tokens are limited when they are made
	}
	var can []forge.Need
	for _, n := range excess[role] {
		lacks, unknown, err := client.Lacks(ctx, repo, k.c.Organisation, n)
		switch {
		case err != nil:
			add(Unsure, fmt.Sprintf("whether it may %s is not known: %v", n, err), "")
		case len(unknown) > 0:
			add(Unsure, fmt.Sprintf("the forge does not tell whether it may %s, which it should not", n), "look at its permissions at the forge")
		case len(lacks) == 0:
			can = append(can, n)
		}
	}
	if len(can) > 0 {
		add(Fail, "may "+needs(can)+", which is too much", "make a token without that")
	}
}

// account checks whose token it is, where the token may ask.
func (k *checker) account(ctx context.Context, role config.Role, client *forge.Client, add func(result, detail, advice string)) {
	if k.c.App != nil && !k.c.Tokens[role].IsSet() {
		return
	}
	a, err := client.Account(ctx)
	if err != nil {
		return // on Gitea, a token without read:user may not ask, and needs not
	}
	switch same := strings.EqualFold(a.Login, k.c.Login); {
	case a.Admin:
		add(Fail, a.Login+" is an administrator of the whole forge", "use an account that is none")
	case role != config.Keys && !same:
		add(Fail, fmt.Sprintf("is %s's, and forge.login is %s", a.Login, k.c.Login), "make it as the robot, or set forge.login")
	case role == config.Keys && same:
		add(Fail, "is the robot's, who then is an administrator of the repositories", "let another account make deploy keys")
	}
	if !a.Expires.IsZero() && time.Until(a.Expires) < soon {
		add(Fail, "ends at "+a.Expires.Format(time.DateOnly), "make a new one in time")
	}
}

// apart reports whether two roles have the same token.
func (k *checker) apart() {
	seen := map[config.Role]bool{}
	for _, role := range config.Roles {
		for _, other := range config.Roles {
			if seen[other] && k.c.SameSecret(role, other) {
				k.r.Add("token "+string(role), Fail, "is the same as that of "+string(other), "one token for both lets each do what the other may: make another one")
			}
		}
		seen[role] = true
	}
}

// robot checks what the robot may do in a repository.
func (k *checker) robot(ctx context.Context, repo config.Repository) {
	check := "robot " + repo.Path()
	client := k.clients[config.Shipper]
	switch {
	case client == nil:
		return // reported
	case k.c.App != nil:
		k.r.Add(check, OK, "is an app, whose tokens are limited to what each part needs", "")
		return
	}
	switch a, err := client.Access(ctx, repo.Path(), k.c.Login); {
	case err != nil:
		k.r.Add(check, Fail, err.Error(), "give the robot write access to the repository")
	case a == forge.AdminAccess:
		k.r.Add(check, Fail, k.c.Login+" is an administrator of the repository", "give it write access: an administrator could lift the protection of the branch")
	case a < forge.WriteAccess:
		k.r.Add(check, Fail, k.c.Login+" may not write to the repository", "give it write access: it sets statuses and opens pull requests")
	default:
		k.r.Add(check, OK, k.c.Login+" may write, and is no administrator", "")
	}
}

// protection checks that people alone can merge what the gate has passed.
func (k *checker) protection(ctx context.Context, repo config.Repository) {
	check := "protection " + repo.Path()
	client := k.clients[config.Shipper]
	if client == nil {
		return // reported
	}
	p, err := client.Protection(ctx, repo.Path(), repo.Base)
	if err != nil {
		k.r.Add(check, Fail, err.Error(), "")
		return
	}
	rule := *p
	if admin := k.clients[config.Keys]; admin != nil { // sees what the robot is not told
		if a, err := admin.Protection(ctx, repo.Path(), repo.Base); err == nil {
			rule.Mergers, rule.Approvals, rule.DismissStale, rule.Checks = a.Mergers, a.Approvals, a.DismissStale, a.Checks
		}
	}
	problems := Protection(k.c.Provider, k.c.Login, repo.Base, rule)
	for _, f := range problems {
		k.r.Add(check, f.Result, f.Detail, f.Advice)
	}
	if len(problems) == 0 {
		k.r.Add(check, OK, fmt.Sprintf("%s: people alone merge, after %s and approvals: %d; a push ends older approvals", repo.Base, GateStatus, rule.Approvals), "")
	}
}

// Protection returns what is wrong with the rules of a branch, and what a forge does not
// tell. MayPush and MayMerge of p are those of the robot.
func Protection(provider, robot, branch string, p forge.Protection) []Finding {
	var out []Finding
	add := func(result, detail, advice string) {
		out = append(out, Finding{Result: result, Detail: branch + ": " + detail, Advice: advice})
	}
	if !p.Protected {
		add(Fail, "is not protected: the robot could push to it and merge", "protect it: pushes by nobody, merges by people that you name, after an approval and the status "+GateStatus)
		return out
	}
	if p.MayPush != nil && *p.MayPush {
		add(Fail, "the robot may push to it", "let nobody push to it, or people alone")
	}
	named := slices.ContainsFunc(p.Mergers, func(s string) bool { return strings.EqualFold(s, robot) })
	switch {
	case named:
		add(Fail, "the robot is among those who may merge", "take it off that list")
	case p.MayMerge != nil && *p.MayMerge:
		add(Fail, "the robot may merge", map[bool]string{true: "allow merges to people that you name (the merge whitelist)", false: "let a role above the robot's merge"}[provider == "gitea"])
	case p.MayMerge == nil && p.Mergers == nil:
		add(Unsure, "the forge does not tell whether the robot may merge", "restrict who can push to the branch to people; approvals by the robot never count for its own pull requests")
	}
	if p.Approvals < 1 {
		add(Fail, "a merge needs no approval", "require one at least")
	}
	if !slices.ContainsFunc(p.Checks, func(s string) bool { ok, _ := path.Match(s, GateStatus); return ok || s == "*" }) {
		add(Fail, "a merge does not need the status "+GateStatus, "require that status")
	}
	switch {
	case p.DismissStale == nil:
		add(Unsure, "the forge does not tell this token whether a push ends older approvals", "see that it does; with tokens.keys, doctor can")
	case !*p.DismissStale:
		add(Fail, "an approval of older commits still counts after a push", "dismiss stale approvals")
	}
	return out
}

// keys checks that deploy keys can be made.
func (k *checker) keys(ctx context.Context, repo config.Repository) {
	client := k.clients[config.Keys]
	if client == nil {
		return
	}
	check := "keys " + repo.Path()
	if _, err := client.DeployKeys(ctx, repo.Path()); err != nil {
		k.r.Add(check, Fail, err.Error(), "the token must be of an administrator of the repository")
		return
	}
	k.r.Add(check, OK, "the repository's deploy keys can be listed", "")
}

// agents checks the manifests of the agents that a repository's labels may name.
func (k *checker) agents(o Options, repo config.Repository) {
	check := "agents " + repo.Path()
	agents := repo.Agents
	if len(agents) == 0 {
		var err error
		if agents, err = o.Agents(); err != nil {
			k.r.Add(check, Fail, err.Error(), "")
			return
		}
		if len(agents) == 0 {
			k.r.Add(check, Fail, "you have no agent that a label could name", "carboy init writes one")
			return
		}
	}
	bad, fit := false, []string{}
	add := func(agent, detail, advice string) {
		bad = true
		k.r.Add(check, Fail, "agent "+agent+" "+detail, advice)
	}
	for _, agent := range agents {
		urls, err := o.Repositories(agent, repo.Bottles)
		var missing *manifest.MissingError
		switch n := count(urls, repo.Path()); {
		case errors.As(err, &missing) && len(repo.Agents) > 0:
			bad = true
			k.r.Add(check, Unsure, "agent "+agent+": "+err.Error(), "if it is the repository's own, .carboy/agents there must have it")
			fit = append(fit, agent)
			continue
		case err != nil:
			add(agent, "has no good manifests: "+err.Error(), "carboy explain "+agent+" shows them")
		case n == 0 && len(repo.Agents) == 0: // of other repositories
			continue
		case n != 1:
			add(agent, fmt.Sprintf("has a bottle that declares the repository %d times", n), "git-gate.repos of its bottle must have it once, with a key that may push")
		}
		fit = append(fit, agent)
	}
	switch {
	case len(fit) == 0:
		k.r.Add(check, Fail, "no agent's bottle declares the repository", "give a bottle git-gate.repos with it, and a key that may push")
	case !bad:
		k.r.Add(check, OK, "labels may name "+strings.Join(fit, ", "), "")
	}
}

// count returns how many addresses are those of a repository's path.
func count(urls []string, repo string) (n int) {
	for _, u := range urls {
		u = strings.TrimSuffix(strings.TrimRight(u, "/"), ".git")
		if strings.HasSuffix(u, "/"+repo) || strings.HasSuffix(u, ":"+repo) {
			n++
		}
	}
	return n
}
