package config

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"github.com/carboy/carboy/internal/document"
)

// full has every key once.
const full = `forge:
  provider: gitea
  api: https://git.example.org/api/v1/
  login: carboy-bot
  ca_file: ~/ca.pem
organisation: acme
labels: ["carboy:", "bot-bottle:"]
bots: ["ci-bot", "dependabot[bot]"]
repositories:
  acme/web:
    base: trunk
    gate: ~/gate.yaml
    agents: [coder]
    bottles: [node]
  acme/api: {}
tokens:
  service: {env: T_SERVICE}
  shipper: {env: T_SHIPPER}
  orchestrator: {file: ~/token}
  keys: {file: /run/secrets/keys}
webhooks:
  listen: 127.0.0.1:8480
  url: https://carboy.example.org/hook
  secret: {file: ~/secret}
poll: 1m
watchdog: 45m
slots: 3
bundle_key: /etc/carboy/key.pem
attempts: 2
people:
  wait: 30m
  policy: ~/answers.yaml
  max_attempts: 5
`

// little leaves out all that a file may leave out.
const little = `forge: {provider: gitea, api: "http://127.0.0.1:3000/api/v1", login: robot}
repositories: {acme/web: {}}
tokens: {service: {env: A}, shipper: {env: B}, orchestrator: {env: C}}
`

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestParse(t *testing.T) {
	c, err := Parse("orchestrate.yaml", []byte(full), env("HOME", "/home/ada", "FORGE_ORG", "elsewhere", "FORGE_GITEA_API", "https://elsewhere/api/v1", "FORGE_WATCHDOG_TIMEOUT", "60"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Provider != "gitea" || c.API != "https://git.example.org/api/v1" || c.Login != "carboy-bot" || c.CAFile != "/home/ada/ca.pem" || c.Organisation != "acme" || len(c.From) != 0 {
		t.Errorf("%+v", c)
	}
	if c.Poll != time.Minute || c.Watchdog != 45*time.Minute || c.Attempts != 2 || c.People != (People{30 * time.Minute, "/home/ada/answers.yaml", 5}) {
		t.Errorf("%v %v %d", c.Poll, c.Watchdog, c.Attempts)
	}
	if w := c.Webhooks; w == nil || w.Listen != "127.0.0.1:8480" || w.URL != "https://carboy.example.org/hook" || w.Secret.File != "/home/ada/secret" {
		t.Errorf("%+v", w)
	}
	if len(c.Tokens) != 4 || c.Tokens[Service].Env != "T_SERVICE" || c.Tokens[Orchestrator].File != "/home/ada/token" || c.Tokens[Keys].String() != "/run/secrets/keys" {
		t.Errorf("%+v", c.Tokens)
	}
	r, ok := c.Find("ACME/Web")
	if !ok || r.Base != "trunk" || r.Gate != "/home/ada/gate.yaml" || c.Slots != 3 || c.BundleKey != "/etc/carboy/key.pem" || !slices.Equal(r.Agents, []string{"coder"}) || !slices.Equal(r.Bottles, []string{"node"}) {
		t.Errorf("%+v", r)
	}
	if r, ok := c.Find("acme/api"); !ok || r.Base != "main" || r.Agents != nil {
		t.Errorf("what a repository leaves out: %+v", r)
	}
	if _, ok := c.Find("acme/other"); ok {
		t.Error("a repository that the file does not name")
	}
}

// TestDefaults: what is left out grants nothing more.
func TestDefaults(t *testing.T) {
	c, err := Parse("orchestrate.yaml", []byte(little), env())
	if err != nil {
		t.Fatal(err)
	}
	if c.Organisation != "bot-bottle" || !slices.Equal(c.Labels, []string{"carboy:", "bot-bottle:"}) || c.Bots != nil || c.Webhooks != nil || c.App != nil ||
		c.Poll != DefaultPoll || c.Watchdog != 30*time.Minute || c.Attempts != 0 || c.Slots != 2 {
		t.Errorf("%+v", c)
	}
	if _, ok := c.Tokens[Keys]; ok {
		t.Error("a credential for keys that nobody gave")
	}
	if _, err := c.Client(Keys, ""); !errors.Is(err, ErrNoCredential) {
		t.Errorf("a client without a credential: %v", err)
	}
}

// TestVariablesOfBotBottle: each counts where the file is silent, and only there.
func TestVariablesOfBotBottle(t *testing.T) {
	silent := "forge: {login: robot}\ntokens: {service: {env: A}, shipper: {env: B}, orchestrator: {env: C}}\n"
	old := []string{"FORGE_ORG", "acme", "FORGE_GITEA_API", "https://git.example.org/api/v1/", "FORGE_OWNER", "acme", "FORGE_REPO", "web", "FORGE_WATCHDOG_TIMEOUT", "2400"}
	c, err := Parse("orchestrate.yaml", []byte(silent), env(old...))
	if err != nil {
		t.Fatal(err)
	}
	if c.Provider != "gitea" || c.API != "https://git.example.org/api/v1" || c.Organisation != "acme" || c.Watchdog != 40*time.Minute || len(c.Repositories) != 1 || c.Repositories[0].Path() != "acme/web" {
		t.Errorf("%+v", c)
	}
	for field, from := range map[string]string{"organisation": "FORGE_ORG", "forge.api": "FORGE_GITEA_API", "forge.provider": "FORGE_GITEA_API", "repositories": "FORGE_OWNER and FORGE_REPO", "watchdog": "FORGE_WATCHDOG_TIMEOUT"} {
		if c.From[field] != from {
			t.Errorf("%s is said to be from %q, want %q", field, c.From[field], from)
		}
	}
	if c, err = Parse("orchestrate.yaml", []byte(silent), env(append([]string{"FORGE_WATCHDOG_TIMEOUT", "90m"}, old...)...)); err != nil || c.Watchdog != 90*time.Minute {
		t.Errorf("a time with a unit: %v", err)
	}
	for _, x := range []struct{ name, value, says string }{
		{"FORGE_ORG", "a b", "no name of an organisation"},
		{"FORGE_GITEA_API", "git.example.org", "no address"},
		{"FORGE_GITEA_API", "http://8.8.8.8/api/v1", "plain HTTP"},
		{"FORGE_OWNER", "../x", "not both a name"},
		{"FORGE_REPO", "a/b", "not both a name"},
		{"FORGE_WATCHDOG_TIMEOUT", "5", "no time between"},
		{"FORGE_WATCHDOG_TIMEOUT", "soon", "no time between"},
	} {
		_, err := Parse("orchestrate.yaml", []byte(silent), env(append([]string{x.name, x.value}, old...)...))
		if err == nil || !strings.Contains(err.Error(), x.says) || !strings.Contains(err.Error(), x.name) {
			t.Errorf("%s=%s: %v, want an error that names it and says %q", x.name, x.value, err, x.says)
		}
	}
	_, err = Parse("orchestrate.yaml", []byte("forge: {provider: github, login: robot}\nrepositories: {a/b: {}}\n"+strings.SplitAfter(silent, "\n")[1]), env(old...))
	if err == nil || !strings.Contains(err.Error(), "is the address of a Gitea") {
		t.Errorf("GitHub at the address of a Gitea: %v", err)
	}
}

// TestErrors: each key refuses what is not fit for it, by its name and line.
func TestErrors(t *testing.T) {
	for _, x := range []struct{ old, new, field, says string }{
		{"forge:\n", "forges:\n", "forges", "unknown key"},
		{full, "", "", "holds nothing"},
		{"provider: gitea", "provider: gogs", "forge.provider", "none of gitea"},
		{"  provider: gitea\n", "", "forge", "needs provider"},
		{"https://git.example.org/api/v1/", "git.example.org", "forge.api", "no address"},
		{"https://git.example.org/api/v1/", "https://user:pw@git.example.org/", "forge.api", "no address"},
		{"https://git.example.org/api/v1/", "http://8.8.8.8/api/v1", "forge.api", "plain HTTP"},
		{"  api: https://git.example.org/api/v1/\n", "", "forge", "needs api"},
		{"login: carboy-bot", "login: 'a b'", "forge.login", "is no login"},
		{"login: carboy-bot", "login: ''", "forge.login", "is no login"},
		{"  login: carboy-bot\n", "", "forge", "needs login"},
		{"ca_file: ~/ca.pem", "ca_file: ca.pem", "forge.ca_file", "not an absolute path"},
		{"ca_file: ~/ca.pem", "ca_file: ''", "forge.ca_file", "is empty"},
		{"organisation: acme", "organisation: acme/web", "organisation", "no name of an organisation"},
		{"organisation: acme", "organisation: ''", "organisation", "no name of an organisation"},
		{`labels: ["carboy:", "bot-bottle:"]`, "labels: []", "labels", "is empty"},
		{`labels: ["carboy:", "bot-bottle:"]`, "labels: [carboy]", "labels", "no prefix"},
		{`labels: ["carboy:", "bot-bottle:"]`, `labels: ["a:", "A:"]`, "labels", "take for the same"},
		{`bots: ["ci-bot"`, `bots: ["ci bot"`, "bots", "not a login"},
		{"  acme/web:\n", "  web:\n", "repositories.web", "not the path of a repository"},
		{"  acme/web:\n", "  a/b/web:\n", "repositories.a/b/web", "not the path of a repository"},
		{"  acme/web:\n", "  acme/..:\n", "repositories.acme/..", "not the path of a repository"},
		{"  acme/api:", "  ACME/web:", "repositories.ACME/web", "there twice"},
		{"base: trunk", "base: 'a..b'", "repositories.acme/web.base", "no name of a branch"},
		{"base: trunk", "base: '-f'", "repositories.acme/web.base", "no name of a branch"},
		{"gate: ~/gate.yaml", "gate: gate.yaml", "repositories.acme/web.gate", "not an absolute path"},
		{"gate: ~/gate.yaml", "git: x", "repositories.acme/web.git", "unknown key"},
		{"slots: 3", "slots: 0", "slots", ""},
		{"bundle_key: /etc/carboy/key.pem", "bundle_key: key.pem", "bundle_key", "not an absolute path"},
		{"agents: [coder]", "agents: ['../x']", "repositories.acme/web.agents", "not the name of an agent"},
		{"bottles: [node]", "bottles: [a b]", "repositories.acme/web.bottles", "not the name of a bottle"},
		{"acme/api: {}", "acme/api: {branch: x}", "repositories.acme/api.branch", "unknown key"},
		{"service: {env: T_SERVICE}", "service: {env: ghp-1234}", "tokens.service.env", "no name of a variable"},
		{"service: {env: T_SERVICE}", "service: {}", "tokens.service", "neither a variable nor a file"},
		{"service: {env: T_SERVICE}", "service: {env: A, file: /b}", "tokens.service", "neither a variable nor a file"},
		{"service: {env: T_SERVICE}", "service: ghp_1234", "tokens.service", "mapping"},
		{"service: {env: T_SERVICE}", "service: {file: here}", "tokens.service.file", "not an absolute path"},
		{"shipper: {env: T_SHIPPER}", "shipper: {env: T_SERVICE}", "tokens.shipper", "token of service too"},
		{"  shipper: {env: T_SHIPPER}\n", "", "tokens", "needs shipper"},
		{"tokens:\n", "token:\n", "", "needs tokens"},
		{"poll: 1m", "app: {id: '1', installation: 2, key_file: /k}", "tokens.service", "so is app"},
		{"poll: 1m", "app: {id: '1', installation: 2, key_file: /k}", "app", "gitea has no apps"},
		{"poll: 1m", "app: {id: 'a b', installation: 2, key_file: /k}", "app.id", "no id of an app"},
		{"poll: 1m", "app: {id: '1', installation: 0, key_file: /k}", "app.installation", ""},
		{"poll: 1m", "app: {id: '1', installation: 1, key_file: k}", "app.key_file", "not an absolute path"},
		{"poll: 1m", "app: {}", "app", "needs id"},
		{"listen: 127.0.0.1:8480", "listen: '8480'", "webhooks.listen", "not an address and a port"},
		{"listen: 127.0.0.1:8480", "listen: 127.0.0.1:0", "webhooks.listen", "no port"},
		{"listen: 127.0.0.1:8480", "listen: 0.0.0.0:8480", "webhooks.listen", "from everywhere"},
		{"listen: 127.0.0.1:8480", "listen: ':8480'", "webhooks.listen", "not a numeric address"},
		{"listen: 127.0.0.1:8480", "listen: 8.8.8.8:8480", "webhooks.listen", "public address"},
		{"listen: 127.0.0.1:8480", "listen: example.org:80", "webhooks.listen", "not a numeric address"},
		{"url: https://carboy.example.org/hook", "url: 'here'", "webhooks.url", "no address"},
		{"url: https://carboy.example.org/hook", "url: http://8.8.8.8/", "webhooks.url", "plain HTTP"},
		{"  secret: {file: ~/secret}\n", "", "webhooks", "needs secret"},
		{"poll: 1m", "poll: 1s", "poll", "not between"},
		{"poll: 1m", "poll: 60", "poll", "text"},
		{"watchdog: 45m", "watchdog: 30h", "watchdog", "not between"},
		{"attempts: 2", "attempts: 4", "attempts", ""},
		{"wait: 30m", "wait: 48h", "people.wait", "not between"},
		{"policy: ~/answers.yaml", "policy: answers.yaml", "people.policy", "not an absolute path"},
		{"max_attempts: 5", "max_attempts: 0", "people.max_attempts", ""},
		{"poll: 1m", "poll: 1m\npoll: 2m", "poll", "given twice"},
	} {
		if !strings.Contains(full, x.old) {
			t.Errorf("the file has no %q", x.old)
			continue
		}
		_, err := Parse("orchestrate.yaml", []byte(strings.Replace(full, x.old, x.new, 1)), env("HOME", "/home/ada"))
		var all document.Error
		if !errors.As(err, &all) {
			t.Errorf("%q: %v, want an error with its place", x.new, err)
			continue
		}
		if !slices.ContainsFunc(all, func(p document.Problem) bool {
			return p.File == "orchestrate.yaml" && p.Line > 0 && p.Field == x.field && strings.Contains(p.What, x.says)
		}) {
			t.Errorf("%q: want line, field %q and %q in\n%v", x.new, x.field, x.says, err)
		}
	}
}

func TestGitLabAndGitHub(t *testing.T) {
	c, err := Parse("o", []byte(strings.NewReplacer("provider: gitea", "provider: gitlab", "http://127.0.0.1:3000/api/v1", "https://gitlab.example.org/api/v4", "acme/web", "acme/team/web").Replace(little)+"organisation: acme/team\n"), env())
	if err != nil {
		t.Fatal(err)
	}
	if r := c.Repositories[0]; r.Owner != "acme/team" || r.Name != "web" {
		t.Errorf("%+v", r)
	}
	key := filepath.Join(t.TempDir(), "app.pem")
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(rsaKey)})
	if err := os.WriteFile(key, text, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err = Parse("o", []byte("forge: {provider: github, api: 'https://api.github.com', login: 'carboy[bot]'}\nrepositories: {acme/web: {}}\napp: {id: Iv1.abc, installation: 7, key_file: "+key+"}\n"), env())
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range Roles {
		cl, err := c.Client(role, "acme/web")
		if err != nil {
			t.Fatal(err)
		}
		cl.Close()
		if len(role.permissions()) == 0 {
			t.Errorf("tokens of %s are not limited", role)
		}
	}
}

// TestS1Secrets: a secret that others can read, or that is none, is not used. No message
// repeats one.
func TestS1Secrets(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Parse("o.yaml", []byte(strings.Replace(little, "service: {env: A}", "service: {file: "+file+"}", 1)+"webhooks: {secret: {env: HOOK}}\n"), env("B", "of-b", "HOOK", "short"))
	if err != nil {
		t.Fatal(err)
	}
	read := func() error {
		cl, err := c.Client(Service, "")
		if err == nil {
			cl.Close()
		}
		return err
	}
	if err := read(); err == nil || !strings.HasPrefix(err.Error(), "o.yaml:3:") || !strings.Contains(err.Error(), "tokens.service") {
		t.Errorf("no file: %v", err)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620, 0o666} {
		write("tok-secret-1\n", mode)
		if err := read(); err == nil || !strings.Contains(err.Error(), "others can read") || strings.Contains(err.Error(), "tok-secret") {
			t.Errorf("mode %v: %v", mode, err)
		}
	}
	write("\n", 0o600)
	if err := read(); err == nil || !strings.Contains(err.Error(), "is empty") {
		t.Errorf("an empty file: %v", err)
	}
	write(strings.Repeat("x", maxSecret+1), 0o600)
	if err := read(); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a large file: %v", err)
	}
	write(" tok-secret-1\n", 0o400)
	if v, err := c.Tokens[Service].Read(env()); err != nil || v.UnsafeString() != "tok-secret-1" {
		t.Errorf("a good file: %v", err)
	}
	if err := read(); err != nil {
		t.Errorf("a good file: %v", err)
	}
	if cl, err := c.Client(Shipper, ""); err != nil {
		t.Errorf("a variable: %v", err)
	} else {
		cl.Close()
	}
	if _, err := c.Client(Orchestrator, ""); err == nil || !strings.Contains(err.Error(), "$C is not set") {
		t.Errorf("a variable that is not set: %v", err)
	}
	if _, err := c.Secret(); err == nil || !strings.Contains(err.Error(), "less than 16 bytes") {
		t.Errorf("a short secret: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := read(); err == nil || !strings.Contains(err.Error(), "not a file") {
		t.Errorf("a directory: %v", err)
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir, env()); !errors.Is(err, ErrNone) {
		t.Errorf("no file: %v", err)
	}
	name := filepath.Join(dir, FileName)
	if err := os.WriteFile(name, []byte(little), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := Load(dir, env()); err != nil || c.File != name {
		t.Errorf("%v", err)
	}
	if err := os.Chmod(name, 0o602); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir, env()); err == nil || !strings.Contains(err.Error(), "others can write") {
		t.Errorf("a file that others can write: %v", err)
	}
}

func TestRoots(t *testing.T) {
	c := &Config{File: "o.yaml"}
	if r, err := c.Roots(); r != nil || err != nil {
		t.Errorf("without ca_file: %v %v", r, err)
	}
	c.CAFile = filepath.Join(t.TempDir(), "ca.pem")
	if _, err := c.Roots(); err == nil || !strings.Contains(err.Error(), "forge.ca_file") {
		t.Errorf("no such file: %v", err)
	}
	if err := os.WriteFile(c.CAFile, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Roots(); err == nil || !strings.Contains(err.Error(), "no certificate") {
		t.Errorf("nonsense: %v", err)
	}
}

// TestExample: what init writes is taken by the reader and by the schema, whatever the flags
// say.
func TestExample(t *testing.T) {
	for _, x := range []Example{{}, {Provider: "github"}, {Provider: "gitlab", Repository: "a/b/c"}, {Provider: "gitea", API: "http://127.0.0.1:3000/api/v1", Login: "robot", Organisation: "acme", Repository: "acme/web"}} {
		x.Dir, x.Program = "/home/ada/.config/carboy", "/usr/bin/carboy"
		text, err := x.Text()
		if err != nil {
			t.Errorf("%+v: %v", x, err)
			continue
		}
		c, err := Parse(FileName, []byte(text), env())
		if err != nil || c.Webhooks.Secret.File != "/home/ada/.config/carboy/"+SecretFile {
			t.Errorf("%+v: %v", x, err)
		}
		if problems := bySchema(t, text); problems != nil {
			t.Errorf("%+v: the schema says %v", x, problems)
		}
	}
	for _, x := range []Example{{Provider: "gogs", API: "https://x/y"}, {API: "nonsense"}, {Login: "a\nb"}, {Repository: "web"}, {Organisation: "\" evil: x"}} {
		x.Dir = "/d"
		if _, err := x.Text(); err == nil {
			t.Errorf("%+v makes a file", x)
		}
	}
}

// TestExampleComments: each line that is commented out is good when it is not.
func TestExampleComments(t *testing.T) {
	text, err := Example{Dir: "/d"}.Text()
	if err != nil {
		t.Fatal(err)
	}
	lines, tried := strings.Split(text, "\n"), 0
	for i, l := range lines {
		bare := strings.TrimLeft(l, " ")
		rest, ok := strings.CutPrefix(bare, "# ")
		key, _, isKey := strings.Cut(rest, ":")
		if !ok || !isKey || strings.ContainsAny(key, " .") || key == "people" || strings.HasPrefix(rest, " ") {
			continue
		}
		tried++
		changed := slices.Clone(lines)
		changed[i] = l[:len(l)-len(bare)] + rest
		if _, err := Parse(FileName, []byte(strings.Join(changed, "\n")), env("HOME", "/h")); err != nil {
			t.Errorf("%s: %v", l, err)
		}
	}
	if tried < 8 {
		t.Errorf("tried %d lines", tried)
	}
}

func TestUnit(t *testing.T) {
	u, err := Example{Dir: "/home/a b/50%/carboy", Program: `/opt/my $tools/carboy`, Config: true}.Unit()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`ExecStart="/opt/my $$tools/carboy" --config "/home/a b/50%%/carboy" orchestrate serve`, "EnvironmentFile=-/home/a b/50%%/carboy/" + EnvFile, "NoNewPrivileges=yes", "RestrictNamespaces=no", "KillMode=mixed"} {
		if !strings.Contains(u, "\n"+want+"\n") {
			t.Errorf("no line %q in\n%s", want, u)
		}
	}
	if u, err := (Example{Dir: "/d", Program: "/bin/carboy"}).Unit(); err != nil || !strings.Contains(u, "\nExecStart=\"/bin/carboy\" orchestrate serve\n") {
		t.Errorf("%v\n%s", err, u)
	}
	for _, bad := range []string{"carboy", "/a\nExecStartPre=/evil"} {
		if _, err := (Example{Dir: "/d", Program: bad}).Unit(); err == nil {
			t.Errorf("%q stands in a unit", bad)
		}
	}
}

// bySchema returns what the schema says of a file.
func bySchema(t *testing.T, text string) error {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(Schema())))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("orchestrate.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("orchestrate.json")
	if err != nil {
		t.Fatal(err)
	}
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	inst, err := jsonschema.UnmarshalJSON(strings.NewReader(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(inst)
}

// TestSchema: the schema takes what the reader takes, and has the same keys everywhere.
func TestSchema(t *testing.T) {
	for _, text := range []string{full, little} {
		if err := bySchema(t, text); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{strings.Replace(full, "poll:", "pool:", 1), strings.Replace(full, "{env: T_SERVICE}", "{}", 1), strings.Replace(full, "    base:", "    branch:", 1)} {
		if bySchema(t, bad) == nil {
			t.Errorf("the schema takes\n%s", bad)
		}
	}
	var doc map[string]any
	if err := json.Unmarshal(Schema(), &doc); err != nil {
		t.Fatal(err)
	}
	at := func(keys ...string) []string {
		var v any = doc
		for _, k := range keys {
			v = v.(map[string]any)[k]
		}
		var names []string
		for k := range v.(map[string]any) {
			names = append(names, k)
		}
		slices.Sort(names)
		return names
	}
	for _, x := range []struct {
		old, new string
		schema   []string
	}{
		{"poll: 1m", "xxxx: 1m", at("properties")},
		{"  login: carboy-bot", "  login: carboy-bot\n  xxxx: 1", at("properties", "forge", "properties")},
		{"    base: trunk", "    xxxx: trunk", at("properties", "repositories", "additionalProperties", "properties")},
		{"service: {env: T_SERVICE}", "xxxx: {env: T_SERVICE}", at("properties", "tokens", "properties")},
		{"  max_attempts: 5", "  xxxx: 2", at("properties", "people", "properties")},
		{"  listen:", "  xxxx:", at("properties", "webhooks", "properties")},
		{"service: {env: T_SERVICE}", "service: {xxxx: T_SERVICE}", at("$defs", "secret", "properties")},
		{"poll: 1m", "app: {xxxx: 1}", at("properties", "app", "properties")},
	} {
		_, err := Parse("o", []byte(strings.Replace(full, x.old, x.new, 1)), env("HOME", "/h"))
		var all document.Error
		if !errors.As(err, &all) {
			t.Errorf("%s: %v", x.new, err)
			continue
		}
		for _, p := range all {
			if known, ok := strings.CutPrefix(p.Advice, "known: "); ok {
				words := strings.Split(known, ", ")
				slices.Sort(words)
				if !slices.Equal(words, x.schema) {
					t.Errorf("%s: the reader knows %v, the schema %v", x.new, words, x.schema)
				}
			}
		}
	}
}
