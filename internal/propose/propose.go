// Package propose writes the manifests with which an agent starts in a directory, so that
// its user need not: from the user's credentials, and from the languages that the files in
// the directory are written in. The user agrees to them once.
//
// Start reading at [For].
package propose

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/agent"
	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// Proposal holds the manifests for one agent in one directory: a bottle and an agent, both
// of the same name.
type Proposal struct {
	// Dir is the directory of the manifests, in place of a configuration directory. It
	// belongs to the workspace, as it is identified by its path and its inode.
	Dir string
	// Name names the agent: by its template, or by a word made from its program's name.
	Name string
	text string // of the bottle
	sum  string // of all that the proposal was made from
}

// Templates returns the names of the templates that For knows, sorted: all that name a
// program.
func Templates() []string {
	return slices.DeleteFunc(manifest.Templates(), func(name string) bool { return name == "command" })
}

// For returns the proposal for a template in a workspace. conf is the configuration
// directory, and env looks up the user's variables. It is an error if the user has no
// credential for the template's vendor.
func For(template string, ws store.Workspace, conf string, env func(string) string) (*Proposal, error) {
	provider, routes, err := credentials(template, env)
	if err != nil {
		return nil, err
	}
	return propose(template, template, provider, routes, ws, conf), nil
}

// A Command is a program of the user's choice, which no template knows.
type Command struct {
	Program string // a path, or a name that is looked up
	// Credentials lists what the gateway puts on requests, each as NAME=VARIABLE@HOST[:SCHEME].
	Credentials []string
}

// For returns the proposal for the program in a workspace: it reaches nothing but the
// registries, and the hosts of the credentials.
func (c *Command) For(ws store.Workspace, conf string, env func(string) string) (*Proposal, error) {
	path, err := filepath.Abs(c.Program)
	if !strings.Contains(c.Program, "/") {
		if path, err = agent.Find(env, c.Program, string(ws.Path)); err != nil {
			return nil, &fault.OptionError{Option: "the program", Value: safetext.String(c.Program, 80), Reason: "can't be started: " + err.Error(), Advice: "install it outside, or name its path"}
		}
	}
	if err != nil {
		return nil, err
	}
	if fi, err := os.Stat(path); err != nil || !fi.Mode().IsRegular() || fi.Mode()&0o111 == 0 {
		return nil, &fault.OptionError{Option: "the program", Value: safetext.String(path, 200), Reason: "is no program that is there", Advice: "name one that is installed"}
	}
	var routed []string
	for _, s := range c.Credentials {
		r, err := plan.ParseCredential(s)
		if err != nil {
			return nil, err
		}
		line, err := json.Marshal(routes.Describe(r))
		if err != nil {
			return nil, err
		}
		routed = append(routed, string(line))
	}
	command, err := json.Marshal([]string{path})
	if err != nil {
		return nil, err
	}
	name := store.SlugOf(filepath.Base(path))
	if slices.Contains(Templates(), name) {
		name += "-command" // the other manifests are those of carboy's own for the program
	}
	return propose(name, "command", "  settings: {command: "+string(command)+"}\n", routed, ws, conf), nil
}

// propose returns the proposal of a template with these lines of agent_provider and routes.
func propose(name, template, provider string, routes []string, ws store.Workspace, conf string) *Proposal {
	for _, l := range languages {
		if l.in(string(ws.Path)) {
			for _, host := range l.registries {
				routes = append(routes, fmt.Sprintf("{host: %s, matches: [{methods: [GET, HEAD]}]}  # %s", host, l.name))
			}
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "agent_provider:\n  template: %s\n%segress:\n  routes:\n", template, provider)
	if len(routes) == 0 {
		b.WriteString("    []\n")
	}
	slices.Sort(routes)
	for _, r := range slices.Compact(routes) {
		fmt.Fprintf(&b, "    - %s\n", r)
	}
	origin := origin(string(ws.Path))
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s", ws.Path, origin, b.String()))
	p := &Proposal{Dir: dirOf(ws, conf), Name: name, sum: hex.EncodeToString(sum[:])}
	of := string(ws.Path)
	if origin != "" {
		of += " (" + origin + ")"
	}
	p.text = fmt.Sprintf("---\n# carboy proposed this for %s.\n# It is yours to change; when another is proposed, carboy asks again.\n# proposal: %s\n%s---\n", safetext.String(of, 300), p.sum, b.String())
	return p
}

func dirOf(ws store.Workspace, conf string) string {
	id := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%d", ws.Path, ws.Dev, ws.Ino))
	return filepath.Join(conf, "directories", hex.EncodeToString(id[:8]))
}

// Last returns the manifests that were written last for a workspace, by their paths below a
// configuration directory, and the name of their agent; empty: there are none.
func Last(ws store.Workspace, conf string) (files map[string]string, name string, err error) {
	dir := dirOf(ws, conf)
	all, err := store.Glob(dir, "bottles/*.md")
	if err != nil {
		return nil, "", err
	}
	var newest fs.FileInfo
	for _, file := range all {
		fi, err := os.Stat(file)
		if err == nil && (newest == nil || fi.ModTime().After(newest.ModTime())) {
			newest, name = fi, strings.TrimSuffix(filepath.Base(file), ".md")
		}
	}
	if name == "" {
		return nil, "", nil
	}
	files = map[string]string{}
	for _, path := range []string{"bottles/" + name + ".md", "agents/" + name + ".md"} {
		b, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			return nil, "", err
		}
		files[path] = string(b)
	}
	return files, name, nil
}

// bottle and agreed return the paths of the bottle's manifest, and of the file that says
// which proposal the user has agreed to.
func (p *Proposal) bottle() string { return filepath.Join(p.Dir, "bottles", p.Name+".md") }
func (p *Proposal) agreed() string { return filepath.Join(p.Dir, "agreed", p.Name) }

// Write writes the manifests, unless what is there was proposed for the same reasons: then
// the user may have changed it.
func (p *Proposal) Write() error {
	if had, err := os.ReadFile(p.bottle()); err == nil && bytes.Contains(had, []byte("\n# proposal: "+p.sum+"\n")) {
		return nil
	}
	for _, dir := range []string{"bottles", "agents", "agreed"} {
		if err := os.MkdirAll(filepath.Join(p.Dir, dir), 0o700); err != nil {
			return err
		}
	}
	if err := os.Remove(p.agreed()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := store.WriteFile(filepath.Join(p.Dir, "agents", p.Name+".md"), []byte("---\nbottle: "+p.Name+"\n---\n"), 0o600); err != nil {
		return err
	}
	return store.WriteFile(p.bottle(), []byte(p.text), 0o600)
}

// Agreed reports whether the user has agreed to this proposal.
func (p *Proposal) Agreed() bool {
	had, err := os.ReadFile(p.agreed())
	return err == nil && string(had) == p.sum
}

// Agree notes that the user has agreed.
func (p *Proposal) Agree() error { return store.WriteFile(p.agreed(), []byte(p.sum), 0o600) }

// credentials returns the lines of agent_provider and the routes that give a template's
// program what the user has.
func credentials(template string, env func(string) string) (provider string, routes []string, err error) {
	none := func(variable, advice string) (string, []string, error) {
		return "", nil, &fault.OptionError{Option: template, Value: variable, Reason: "is not set: the key stays outside, and carboy adds it to what the agent sends", Advice: advice}
	}
	switch template {
	case "claude":
		for _, name := range []string{"CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_API_KEY"} {
			if env(name) != "" {
				return "  auth_token: " + name + "\n", nil, nil
			}
		}
		return none("ANTHROPIC_API_KEY", "set it; or, with a Claude account, CLAUDE_CODE_OAUTH_TOKEN to what claude setup-token prints")
	case "codex":
		if _, err := os.Stat(agent.CodexFile(env)); err == nil {
			return "  forward_host_credentials: true\n", nil, nil
		}
		for _, name := range []string{"OPENAI_API_KEY", "CODEX_API_KEY"} {
			if env(name) != "" {
				return "", []string{"{host: " + agent.OpenaiHost + ", token_env: " + name + "}"}, nil
			}
		}
		return none("OPENAI_API_KEY", "set it, or sign in outside: codex login")
	}
	for _, v := range agent.Vendors {
		if env(v.Env) == "" || template == "gemini" && v.Env != "GEMINI_API_KEY" {
			continue
		}
		r := "{host: " + v.Host + ", token_env: " + v.Env
		switch v.Scheme {
		case credential.APIKey:
			r += ", auth_scheme: x-api-key"
		case credential.Header:
			r += ", auth_scheme: header, auth_field: " + v.Field
		}
		routes = append(routes, r+"}")
	}
	if len(routes) == 0 {
		if template == "gemini" {
			return none("GEMINI_API_KEY", "set it")
		}
		return none("ANTHROPIC_API_KEY", "set it, or the variable of another vendor, such as OPENAI_API_KEY")
	}
	return "", routes, nil
}

// A language has public registries of packages. They are the languages' own, never what a
// file of the directory names.
type language struct {
	name       string
	files      []string // patterns of path.Match
	registries []string
}

var languages = []language{
	{"Node", []string{"package.json"}, []string{"registry.npmjs.org"}},
	{"Deno", []string{"deno.json", "deno.jsonc"}, []string{"jsr.io", "npm.jsr.io", "registry.npmjs.org"}},
	{"Go", []string{"go.mod", "go.work"}, []string{"proxy.golang.org", "sum.golang.org"}},
	{"Python", []string{"pyproject.toml", "setup.py", "setup.cfg", "requirements*.txt", "Pipfile"}, []string{"pypi.org", "files.pythonhosted.org"}},
	{"Rust", []string{"Cargo.toml"}, []string{"index.crates.io", "static.crates.io"}},
	{"Ruby", []string{"Gemfile", "*.gemspec"}, []string{"rubygems.org", "index.rubygems.org"}},
	{"PHP", []string{"composer.json"}, []string{"repo.packagist.org"}},
	{"Maven", []string{"pom.xml"}, []string{"repo.maven.apache.org"}},
	{"Gradle", []string{"build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts"}, []string{"repo.maven.apache.org", "plugins.gradle.org", "services.gradle.org"}},
	{".NET", []string{"*.csproj", "*.fsproj", "*.sln"}, []string{"api.nuget.org"}},
}

// in reports whether a directory has one of the files, in itself or in a directory in it.
func (l language) in(dir string) bool {
	for _, pattern := range l.files {
		for _, where := range []string{pattern, filepath.Join("*", pattern)} {
			// A name with a wildcard in the directory's own path would be one of the pattern.
			if found, err := fs.Glob(os.DirFS(dir), where); err == nil && len(found) > 0 {
				return true
			}
		}
	}
	return false
}

// origin returns the address of a repository's remote called origin, without what may be a
// password in it; empty: none. It is shown, and compared with an earlier one.
func origin(dir string) string {
	f, err := os.OpenFile(filepath.Join(dir, ".git", "config"), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	in := bufio.NewScanner(io.LimitReader(f, 64<<10))
	for section := ""; in.Scan(); {
		line := strings.TrimSpace(in.Text())
		if strings.HasPrefix(line, "[") {
			section = line
		}
		key, v, ok := strings.Cut(line, "=")
		if ok && section == `[remote "origin"]` && strings.TrimSpace(key) == "url" {
			v = strings.TrimSpace(v)
			if scheme, rest, ok := strings.Cut(v, "://"); ok {
				if _, host, ok := strings.Cut(rest, "@"); ok {
					v = scheme + "://" + host
				}
			}
			return v
		}
	}
	return ""
}
