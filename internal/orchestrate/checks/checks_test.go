package checks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/forge/giteatest"
	"github.com/carboy/carboy/internal/orchestrate/config"
)

// fake answers as a Gitea does, for tokens that are a list of scopes.
type fake struct {
	access  string // of the robot
	branch  string // the answer for the branch
	rule    string // the answer for its rule, to a token of admin alone
	account string // the answer for the account; empty: the token may not ask
}

const goodBranch = `{"protected":true,"required_approvals":1,"enable_status_check":true,"status_check_contexts":["carboy/gate"],"user_can_push":false,"user_can_merge":false}`

func (f fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "token ")
	path := strings.TrimPrefix(r.URL.Path, "/api/v1")
	needs := func(scope string) bool {
		read := strings.Replace(scope, "write:", "read:", 1)
		for _, have := range strings.Split(token, ",") {
			if have == scope || read != scope && have == scope || strings.HasPrefix(scope, "read:") && have == "write:"+strings.TrimPrefix(scope, "read:") || have == "admin" {
				return true
			}
		}
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(w, `{"message":"token does not have at least one of required scope(s), required=[%s], token scope=x"}`, scope)
		return false
	}
	say := func(scope, text string) {
		if needs(scope) {
			io.WriteString(w, text)
		}
	}
	refuse := func(scope string, code int) {
		if needs(scope) {
			w.WriteHeader(code)
			io.WriteString(w, `{"message":"no"}`)
		}
	}
	switch {
	case path == "/user" && f.account != "":
		io.WriteString(w, f.account)
	case path == "/user":
		needs("read:user!")
	case strings.HasPrefix(path, "/orgs/"):
		say("read:organization", "[]")
	case strings.HasSuffix(path, "/issues/0"):
		refuse("write:issue", http.StatusNotFound)
	case strings.HasSuffix(path, "/issues"):
		say("read:issue", "[]")
	case strings.HasSuffix(path, "/pulls") && r.Method == http.MethodPost:
		refuse("write:repository", http.StatusUnprocessableEntity)
	case strings.HasSuffix(path, "/pulls"):
		say("read:repository", "[]")
	case strings.HasSuffix(path, "/permission"):
		say("read:repository", `{"permission":"`+f.access+`"}`)
	case strings.HasSuffix(path, "/branches/main"):
		text := f.branch
		if token == "admin" {
			text = strings.Replace(text, "}", `,"effective_branch_protection_name":"main"}`, 1)
		}
		say("read:repository", text)
	case strings.HasSuffix(path, "/branch_protections/main"):
		say("read:repository", f.rule)
	case strings.HasSuffix(path, "/keys"):
		refuseUnless := token == "admin"
		if !refuseUnless {
			w.WriteHeader(http.StatusForbidden)
		}
		io.WriteString(w, "[]")
	default:
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, `{"message":"%s %s"}`, r.Method, path)
	}
}

// scopes are the least that the roles need.
var scopes = map[config.Role]string{
	config.Service: "write:issue,read:repository", config.Shipper: "write:repository", config.Orchestrator: "read:issue,read:organization", config.Keys: "admin",
}

// configured returns a configuration of a forge with tokens.
func configured(t *testing.T, api string, tokens map[config.Role]string, more string) *config.Config {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "forge: {provider: gitea, api: '%s', login: robot}\norganisation: acme\nrepositories: {acme/web: {agents: [coder]}}\n%stokens:\n", api, more)
	for role, token := range tokens {
		if token != "" {
			fmt.Fprintf(&b, "  %s: {env: T_%s}\n", role, strings.ToUpper(string(role)))
		}
	}
	c, err := config.Parse("orchestrate.yaml", []byte(b.String()), func(name string) string {
		if name == "HOOK" {
			return "a-secret-of-some-length"
		}
		return tokens[config.Role(strings.ToLower(strings.TrimPrefix(name, "T_")))]
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func declares(string, []string) ([]string, error) {
	return []string{"ssh://git@git.example.org/acme/web.git", "https://git.example.org/other/web"}, nil
}

func run(t *testing.T, c *config.Config) *Report {
	t.Helper()
	r := Run(t.Context(), Options{Config: c, Agents: func() ([]string, error) { return []string{"coder"}, nil }, Repositories: declares})
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range scopes {
		if strings.Contains(token, ",") && strings.Contains(string(b), token) {
			t.Errorf("a token is in the report: %s", b)
		}
	}
	return r
}

// want fails unless the report has a finding of a check with a result and a text.
func want(t *testing.T, r *Report, check, result, text string) {
	t.Helper()
	for _, f := range r.Findings {
		if f.Check == check && f.Result == result && strings.Contains(f.Detail, text) {
			return
		}
	}
	t.Errorf("no finding %s, %s, %q in\n%s", check, result, text, shown(r))
}

func shown(r *Report) string {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%-20s %-6s %s; %s\n", f.Check, f.Result, f.Detail, f.Advice)
	}
	return b.String()
}

func TestGoodSetUp(t *testing.T) {
	s := httptest.NewServer(fake{access: "write", branch: goodBranch, rule: `{"enable_merge_whitelist":true,"merge_whitelist_usernames":["ada"],"dismiss_stale_approvals":true}`})
	defer s.Close()
	r := run(t, configured(t, s.URL+"/api/v1", map[config.Role]string{config.Service: scopes[config.Service], config.Shipper: scopes[config.Shipper], config.Orchestrator: scopes[config.Orchestrator]}, "webhooks: {secret: {env: HOOK}}\n"))
	if !r.OK {
		t.Errorf("%s", shown(r))
	}
	for _, role := range []string{"service", "shipper", "orchestrator"} {
		want(t, r, "token "+role, OK, "no more")
	}
	want(t, r, "token keys", OK, "there is none")
	want(t, r, "robot acme/web", OK, "is no administrator")
	want(t, r, "protection acme/web", Unsure, "does not tell this token whether a push ends older approvals")
	want(t, r, "agents acme/web", OK, "coder")
	want(t, r, "webhooks", OK, "127.0.0.1:8480")
}

// TestCredentials: what a token lacks, what it has too much, and whose it is, is said.
func TestCredentials(t *testing.T) {
	good := fake{access: "write", branch: goodBranch, rule: `{"enable_merge_whitelist":true,"merge_whitelist_usernames":["ada"],"dismiss_stale_approvals":true}`}
	for _, x := range []struct {
		name                string
		role                config.Role
		token               string
		fake                fake
		check, result, says string
	}{
		{"lacks", config.Service, "read:issue,read:repository", good, "token service", Fail, "lacks write:issue"},
		{"lacks both", config.Orchestrator, "read:user", good, "token orchestrator", Fail, "lacks read:issue and read:organization"},
		{"too much", config.Service, "write:issue,write:repository", good, "token service", Fail, "may write pull requests and statuses, which is too much"},
		{"too much", config.Orchestrator, "write:issue,read:organization,write:repository", good, "token orchestrator", Fail, "may write issues, write pull requests and statuses"},
		{"too much", config.Shipper, "write:repository,write:issue", good, "token shipper", Fail, "may write issues"},
		{"the same", config.Shipper, scopes[config.Service], good, "token shipper", Fail, "the same as that of service"},
		{"an administrator", config.Shipper, "write:repository", fake{access: "admin", branch: goodBranch}, "robot acme/web", Fail, "is an administrator of the repository"},
		{"a reader", config.Shipper, "write:repository", fake{access: "read", branch: goodBranch}, "robot acme/web", Fail, "may not write"},
		{"of the whole forge", config.Shipper, "write:repository", fake{access: "write", branch: goodBranch, account: `{"login":"robot","is_admin":true}`}, "token shipper", Fail, "administrator of the whole forge"},
		{"another's", config.Shipper, "write:repository", fake{access: "write", branch: goodBranch, account: `{"login":"ada"}`}, "token shipper", Fail, "is ada's"},
		{"the robot's", config.Keys, "admin", fake{access: "write", branch: goodBranch, account: `{"login":"Robot"}`}, "token keys", Fail, "is the robot's"},
		{"no keys", config.Keys, "write:repository,x", good, "keys acme/web", Fail, "403"},
		{"keys", config.Keys, "admin", good, "keys acme/web", OK, "can be listed"},
	} {
		t.Run(x.name+" "+string(x.role), func(t *testing.T) {
			s := httptest.NewServer(x.fake)
			defer s.Close()
			tokens := map[config.Role]string{config.Service: scopes[config.Service], config.Shipper: scopes[config.Shipper], config.Orchestrator: scopes[config.Orchestrator]}
			tokens[x.role] = x.token
			r := run(t, configured(t, s.URL+"/api/v1", tokens, ""))
			want(t, r, x.check, x.result, x.says)
			if r.OK && x.result == Fail {
				t.Error("the report says that all is well")
			}
		})
	}
}

func TestProtection(t *testing.T) {
	yes, no := true, false
	good := forge.Protection{Protected: true, MayPush: &no, MayMerge: &no, Mergers: []string{"ada"}, Approvals: 1, DismissStale: &yes, Checks: []string{"ci", "carboy/*"}}
	if p := Protection("gitea", "robot", "main", good); len(p) != 0 {
		t.Errorf("%+v", p)
	}
	for _, x := range []struct {
		change func(*forge.Protection)
		result string
		says   string
	}{
		{func(p *forge.Protection) { p.Protected = false }, Fail, "not protected"},
		{func(p *forge.Protection) { p.MayPush = &yes }, Fail, "may push"},
		{func(p *forge.Protection) { p.MayMerge = &yes }, Fail, "the robot may merge"},
		{func(p *forge.Protection) { p.Mergers = []string{"ada", "Robot"} }, Fail, "among those who may merge"},
		{func(p *forge.Protection) { p.MayMerge, p.Mergers = nil, nil }, Unsure, "whether the robot may merge"},
		{func(p *forge.Protection) { p.Approvals = 0 }, Fail, "no approval"},
		{func(p *forge.Protection) { p.Checks = []string{"ci"} }, Fail, "does not need the status"},
		{func(p *forge.Protection) { p.DismissStale = &no }, Fail, "still counts"},
		{func(p *forge.Protection) { p.DismissStale = nil }, Unsure, "older approvals"},
	} {
		p := good
		x.change(&p)
		got := Protection("gitea", "robot", "main", p)
		if len(got) != 1 || got[0].Result != x.result || !strings.Contains(got[0].Detail, x.says) || got[0].Advice == "" {
			t.Errorf("%s: %+v", x.says, got)
		}
	}
}

func TestAgents(t *testing.T) {
	s := httptest.NewServer(fake{access: "write", branch: goodBranch})
	defer s.Close()
	c := configured(t, s.URL+"/api/v1", scopes, "")
	one := map[string][]string{"coder": {"git@git.example.org:acme/web.git"}, "tester": {"https://git.example.org/acme/web/"}, "writer": {"https://git.example.org/acme/book", "https://git.example.org/xacme/web"}, "twice": {"https://a/acme/web", "https://b/acme/web"}}
	for _, x := range []struct {
		named, has   []string
		err          error
		result, says string
	}{
		{nil, []string{"coder", "tester", "writer"}, nil, OK, "labels may name coder, tester"},
		{nil, []string{"writer"}, nil, Fail, "no agent's bottle declares"},
		{nil, nil, nil, Fail, "you have no agent"},
		{nil, nil, errors.New("agents: broken"), Fail, "broken"},
		{nil, []string{"coder", "broken"}, nil, Fail, "agent broken has no good manifests: a.md:3: unknown key"},
		{nil, []string{"twice"}, nil, Fail, "declares the repository 2 times"},
		{[]string{"writer"}, []string{"coder"}, nil, Fail, "agent writer has a bottle that declares the repository 0 times"},
		{[]string{"coder"}, nil, nil, OK, "labels may name coder"},
	} {
		c.Repositories[0].Agents = x.named
		r := Run(t.Context(), Options{Config: c, Agents: func() ([]string, error) { return x.has, x.err }, Repositories: func(agent string, _ []string) ([]string, error) {
			if agent == "broken" {
				return nil, errors.New("a.md:3: unknown key")
			}
			return one[agent], nil
		}})
		want(t, r, "agents acme/web", x.result, x.says)
	}
}

// TestUnreachable: a forge that can't be asked is said once, and a secret that can't be
// read is named by its place.
func TestUnreachable(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	r := run(t, configured(t, s.URL+"/api/v1", map[config.Role]string{config.Service: "a", config.Shipper: "b", config.Orchestrator: "c"}, "webhooks: {secret: {env: NONE}}\n"))
	if r.OK {
		t.Error("all is well")
	}
	want(t, r, "forge", Fail, "refused")
	want(t, r, "webhooks", Fail, "$NONE is not set")
}

// TestRealGitea sets up a Gitea as docs/forge.md says, and breaks it in turn.
func TestRealGitea(t *testing.T) {
	g := giteatest.New(t)
	g.User("robot", "ada", "keeper", "chief")
	g.Org("acme", "ada")
	g.Repo("acme", "web", map[string]string{"robot": "write", "ada": "write", "keeper": "admin"})
	protect := func(method, path string, merge, dismiss bool, codes ...int) {
		g.Must(method, path, map[string]any{
			"rule_name": "main", "enable_push": false, "required_approvals": 1, "enable_merge_whitelist": merge, "merge_whitelist_usernames": []string{"ada"},
			"enable_status_check": true, "status_check_contexts": []string{GateStatus}, "dismiss_stale_approvals": dismiss, "block_admin_merge_override": true,
		}, nil, codes...)
	}
	token := func(login string, scopes ...string) string { return g.Token(login, scopes...) }
	tokens := map[config.Role]string{
		config.Service: token("robot", "write:issue", "read:repository"), config.Shipper: token("robot", "write:repository"),
		config.Orchestrator: token("robot", "read:issue", "read:organization"), config.Keys: token("keeper", "write:repository"),
	}
	file := filepath.Join(t.TempDir(), "hook")
	if err := os.WriteFile(file, []byte("a-secret-of-some-length"), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func() *Report { return run(t, configured(t, g.API, tokens, "webhooks: {secret: {file: "+file+"}}\n")) }

	r := check()
	want(t, r, "protection acme/web", Fail, "not protected")
	protect(http.MethodPost, "/repos/acme/web/branch_protections", true, true, http.StatusCreated)
	if r = check(); !r.OK {
		t.Fatalf("a good set-up:\n%s", shown(r))
	}
	for _, f := range r.Findings {
		if f.Result != OK {
			t.Errorf("a good set-up: %+v", f)
		}
	}
	protect(http.MethodPatch, "/repos/acme/web/branch_protections/main", false, false, http.StatusOK)
	r = check()
	want(t, r, "protection acme/web", Fail, "the robot may merge")
	want(t, r, "protection acme/web", Fail, "still counts")
	protect(http.MethodPatch, "/repos/acme/web/branch_protections/main", true, true, http.StatusOK)

	good := tokens[config.Service]
	tokens[config.Service] = token("robot", "write:issue", "write:repository")
	want(t, check(), "token service", Fail, "too much")
	tokens[config.Service] = token("robot", "read:issue", "read:repository")
	want(t, check(), "token service", Fail, "lacks write:issue")
	tokens[config.Service] = good

	g.Must(http.MethodPut, "/repos/acme/web/collaborators/robot", map[string]string{"permission": "admin"}, nil, http.StatusNoContent)
	want(t, check(), "robot acme/web", Fail, "is an administrator")
	g.Must(http.MethodPut, "/repos/acme/web/collaborators/robot", map[string]string{"permission": "write"}, nil, http.StatusNoContent)
	tokens[config.Keys] = token("ada", "write:repository")
	want(t, check(), "keys acme/web", Fail, "403")
}
