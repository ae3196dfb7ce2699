package supervise

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/testenv"
)

func rules(t testing.TB, text string) *Policy {
	t.Helper()
	p, err := parsePolicy("policy.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func routesOf(t testing.TB, text string) EgressAllow {
	t.Helper()
	p, err := EgressAllow{}.Edit("routes", []byte("routes: "+text))
	if err != nil {
		t.Fatal(err)
	}
	return p.(EgressAllow)
}

// A rule that approves must cover all of the proposal, and nothing close to it.
func TestPolicyCovers(t *testing.T) {
	p := rules(t, `rules:
  - {kind: egress-allow, bottle: dev, host: [proxy.golang.org, "*.pypi.org"], methods: [GET, HEAD], answer: approve}
  - {kind: egress-allow, host: api.example.com, paths: [/v1], answer: approve}
  - {kind: egress-allow, host: git.example.com, git: true, answer: approve}
  - {kind: egress-allow, host: "*.evil.example", answer: reject, note: "no"}
  - {kind: egress-allow, host: a.part.example.net, answer: reject}
  - {kind: egress-token-allow, host: api.example.com, rule: generic-api-key, answer: approve}
  - {kind: gitleaks-allow, repository: infra, rule: [generic-api-key], answer: approve}
  - {kind: gitleaks-allow, answer: reject}
  - {kind: apply, answer: reject}
`)
	twoFindings := push()
	twoFindings.Findings = append(twoFindings.Findings, twoFindings.Findings[0])
	twoFindings.Findings[1].Rule = "private-key"
	other := push()
	other.Repository = "other"
	otherHost, otherRule := token(TokenAllow), token(TokenAllow)
	otherHost.Host, otherRule.Rule = "api.example.com.evil.example", "aws-access-token"
	for name, c := range map[string]struct {
		p    Payload
		want Verdict // "" means a person
	}{
		"covered":                      {routesOf(t, "[{host: proxy.golang.org, matches: [{methods: [GET]}]}]"), Approved},
		"below":                        {routesOf(t, "[{host: files.pypi.org, matches: [{methods: [GET, HEAD]}]}]"), Approved},
		"all below":                    {routesOf(t, "[{host: '*.pypi.org', matches: [{methods: [GET]}]}]"), Approved},
		"the name itself":              {routesOf(t, "[{host: pypi.org, matches: [{methods: [GET]}]}]"), ""},
		"a name that ends so":          {routesOf(t, "[{host: evilpypi.org, matches: [{methods: [GET]}]}]"), ""},
		"a match that is more":         {routesOf(t, "[{host: '*.pypi.org', matches: [{methods: [GET]}, {methods: [GET, PUT]}]}]"), ""},
		"every method":                 {routesOf(t, "[{host: proxy.golang.org}]"), ""},
		"one method more":              {routesOf(t, "[{host: proxy.golang.org, matches: [{methods: [GET, POST]}]}]"), ""},
		"another port":                 {routesOf(t, "[{host: 'proxy.golang.org:8443', matches: [{methods: [GET]}]}]"), ""},
		"a match beside":               {routesOf(t, "[{host: proxy.golang.org, matches: [{methods: [GET]}, {paths: [{value: /x}]}]}]"), ""},
		"a route beside":               {routesOf(t, "[{host: proxy.golang.org, matches: [{methods: [GET]}]}, {host: other.example}]"), ""},
		"git beside":                   {routesOf(t, "[{host: proxy.golang.org, matches: [{methods: [GET]}], git: {fetch: true}}]"), ""},
		"a path":                       {routesOf(t, "[{host: api.example.com, matches: [{paths: [{value: /v1/models}]}]}]"), Approved},
		"a path exactly":               {routesOf(t, "[{host: api.example.com, matches: [{paths: [{type: exact, value: /v1}]}]}]"), Approved},
		"a path that begins so":        {routesOf(t, "[{host: api.example.com, matches: [{paths: [{value: /v10}]}]}]"), ""},
		"a path above":                 {routesOf(t, "[{host: api.example.com, matches: [{paths: [{value: /}]}]}]"), ""},
		"an expression":                {routesOf(t, "[{host: api.example.com, matches: [{paths: [{type: regex, value: /v1/.*}]}]}]"), ""},
		"every path":                   {routesOf(t, "[{host: api.example.com}]"), ""},
		"git":                          {routesOf(t, "[{host: git.example.com, git: {fetch: true}}]"), Approved},
		"rejected":                     {routesOf(t, "[{host: a.evil.example}]"), Rejected},
		"rejected among others":        {routesOf(t, "[{host: proxy.golang.org, matches: [{methods: [GET]}]}, {host: a.evil.example}]"), Rejected},
		"rejected, all below":          {routesOf(t, "[{host: '*.b.evil.example'}]"), Rejected},
		"rejected as part of more":     {routesOf(t, "[{host: '*.part.example.net'}]"), Rejected},
		"a value":                      {token(TokenAllow), Approved},
		"a value to a host like it":    {otherHost, ""},
		"a value of another rule":      {otherRule, ""},
		"a push":                       {push(), Approved},
		"a push with a worse finding":  {twoFindings, Rejected},
		"a push elsewhere":             {other, Rejected},
		"what people approve":          {each(t)[kindApply], Rejected},
		"what no rule is about":        {each(t)[kindGateOverride], ""},
		"what no rule is about either": {EgressBlock{Routes: []routes.Description{{Host: "api.example.com"}}}, ""},
	} {
		digest, err := DigestOf("dev", c.p)
		if err != nil {
			t.Fatal(err)
		}
		got := Verdict("")
		if r := p.match(Proposal{Bottle: "dev", Kind: c.p.Kind(), Payload: c.p, Digest: digest}); r != nil {
			got = r.verdict
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if r := p.match(Proposal{Bottle: "prod", Kind: kindEgressAllow, Payload: routesOf(t, "[{host: proxy.golang.org, matches: [{methods: [GET]}]}]")}); r != nil {
		t.Error("a rule of one bottle answers another")
	}
}

// The answer of a rule is recorded with the rule and the digest of its file.
func TestPolicyAnswers(t *testing.T) {
	w := newWorld(t)
	p := rules(t, "rules:\n  - {kind: egress-allow, host: a.example.com, answer: approve, note: mirrors}\n")
	waits := 0
	a := w.asker("dev", func(o *AskerOptions) { o.Policy, o.Waiting = p, func(Proposal) { waits++ } })
	o, err := Ask[EgressAllow](context.Background(), a, allowHost(t, "a.example.com"), Draft{}, nil)
	if err != nil || !o.Allowed() || o.Answer.By.Channel != ChannelPolicy || o.Answer.By.Policy.Digest != p.Digest() || o.Answer.By.Policy.Line != 2 || o.Answer.Note != "mirrors" {
		t.Errorf("%+v, %v", o.Answer, err)
	}
	ticket := w.propose(a, allowHost(t, "b.example.com"))
	if waits != 1 || len(w.list(Query{}).Entries) != 1 {
		t.Errorf("%d wait for a person", waits)
	}
	w.must(ticket.Proposal(), Rejected)
	found := false
	for _, e := range w.log.events {
		for _, d := range e.Digests {
			found = found || d.Of == "policy" && d.Sum == p.Digest() && strings.Contains(e.Rule.String(), "policy.yaml:2")
		}
	}
	if !found {
		t.Error("no record has the policy's digest and line")
	}
}

func TestPolicyErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":        "p.yaml:1:1: holds nothing, and needs rules",
		"rules: ": "rules",
		"rules:\n  - {kind: egress-alow, host: a.com, answer: approve}":                    "p.yaml:2:12: rules[0].kind: unknown kind \"egress-alow\"; did you mean egress-allow?",
		"rules:\n  - {kind: egress-allow, answer: approve}":                                "approves every egress-allow, whatever its host",
		"rules:\n  - {kind: [egress-allow], host: [], answer: approve}":                    "is empty",
		"rules:\n  - {kind: egress-token-allow, host: a.com, answer: approve}":             "whatever its rule",
		"rules:\n  - {kind: gitleaks-allow, repository: x, answer: approve}":               "whatever its rule",
		"rules:\n  - {kind: apply, answer: approve}":                                       "is approved by people only",
		"rules:\n  - {kind: gate-override, answer: approve}":                               "is approved by people only",
		"rules:\n  - {kind: baseline-update, answer: approve}":                             "is approved by people only",
		"rules:\n  - {kind: egress-allow, host: a.com}":                                    "rules[0]",
		"rules:\n  - {kind: egress-allow, host: a.com, answer: yes}":                       "rules[0]",
		"rules:\n  - {kind: egress-allow, host: 'a com', answer: approve}":                 "is no host",
		"rules:\n  - {kind: egress-allow, host: a.com, paths: [/a/../b], answer: approve}": "is no path",
		"rules:\n  - {kind: egress-allow, host: a.com, methods: [get], answer: approve}":   "in capitals",
		"rules:\n  - {kind: egress-allow, hots: a.com, answer: approve}":                   "did you mean host?",
		"rules: [{kind: &a egress-allow, host: a.com, answer: approve}]":                   "anchor",
	} {
		if _, err := parsePolicy("p.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q:\n got %v\nwant %s", text, err, want)
		}
	}
}

// A policy must belong to the user. A bottle, a repository or another user must not be able
// to write it.
func TestPolicyOfOthers(t *testing.T) {
	base := t.TempDir()
	const text = "rules:\n  - {kind: egress-allow, host: a.example.com, answer: approve}\n"
	write := func(name string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(base, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	config := filepath.Join(base, "config")
	load := func(path string) error {
		_, err := LoadPolicy(path, config, filepath.Join(base, "work"), filepath.Join(base, "gone"))
		return err
	}
	good := write("config/supervise.yaml", 0o600)
	if err := load(good); err != nil {
		t.Fatal(err)
	}
	refuse := func(name, path, want string) {
		t.Helper()
		if err := load(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	refuse("in a workspace", write("work/deep/p.yaml", 0o600), "lies in the workspace")
	refuse("that the group can write", write("a/p.yaml", 0o620), "can be written by others")
	refuse("that all can write", write("b/p.yaml", 0o602), "can be written by others")
	write("repo/.git/config", 0o600)
	refuse("in a repository", write("repo/x/p.yaml", 0o600), "lies in the repository")
	open := write("open/p.yaml", 0o600)
	if err := os.Chmod(filepath.Dir(open), 0o777); err != nil {
		t.Fatal(err)
	}
	refuse("in a directory that all can write", open, "can be written by others")
	for name, target := range map[string]string{"work-link": "work/deep/p.yaml", "repo-link": "repo/x/p.yaml"} {
		link := filepath.Join(config, name)
		if err := os.Symlink(filepath.Join(base, target), link); err != nil {
			t.Fatal(err)
		}
		refuse("a link from the configuration: "+name, link, "lies in the")
	}
	if err := os.Symlink(config, filepath.Join(base, "work", "config")); err != nil {
		t.Fatal(err)
	}
	if err := load(filepath.Join(base, "work", "config", "supervise.yaml")); err != nil {
		t.Errorf("a link from a workspace to the user's own file: %v", err)
	}
	refuse("a directory", config, "not a regular file")
	write("config/.git/config", 0o600)
	if err := load(good); err != nil {
		t.Errorf("the user's configuration is a repository of theirs: %v", err)
	}
}

func TestPolicyOfAnotherUser(t *testing.T) {
	testenv.Root(t) // changes the owner of a file
	path := filepath.Join(t.TempDir(), "p.yaml")
	if err := errors.Join(os.WriteFile(path, []byte("rules: [{kind: apply, answer: reject}]\n"), 0o600), os.Chown(path, 12345, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadPolicy(path, ""); err == nil || !strings.Contains(err.Error(), "belongs to user") {
		t.Errorf("another user's policy was read: %v", err)
	}
	if err := os.Chown(path, 0, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadPolicy(path, ""); err != nil {
		t.Error(err)
	}
}
