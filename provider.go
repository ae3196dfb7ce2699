package carboy

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/rootfs"
	"github.com/carboy/carboy/internal/supervise/tools"
	"github.com/carboy/carboy/internal/visible"
)

// launch is how an agent's program is started: the command, and what it needs
// beside what the bottle's manifests say themselves.
//
// Everything that a program finds of its own (settings, a sign-in, skills, the
// agent's text) is a file of the bottle's home and holds no secret: where a
// program wants a key, there is a placeholder, and a route that puts the real one on.
type launch struct {
	command []string
	env     map[string]string
	mounts  []string
	routes  []policy.Route
	files   []rootfs.File // of the home inside
	notes   []string
	// sessions are where in the home inside the program keeps its conversations.
	sessions []string
	// read are the files beside the manifests of which something came inside.
	read []manifest.File

	mcp       []mcpServer
	workspace string // inside; empty: none
	skills    []manifest.SkillFile
}

// mcpServer is a server of tools that the agent is told of: streamable HTTP.
type mcpServer struct{ name, url string }

// toolsName is what an agent calls the server of carboy's own tools.
const toolsName = "carboy"

// toolsWait is how long agents are told to wait for a tool, in seconds: longer than
// people are waited for.
const toolsWait = 900

// launchers start the templates that there are. Another one is a line here.
var launchers = map[string]func(*Client, *manifest.Effective, *StartOptions, *launch) error{
	"claude":   launchClaude,
	"codex":    launchCodex,
	"pi":       launchPi,
	"gemini":   launchGemini,
	"opencode": launchOpencode,
	"command":  launchCommand,
}

// launch works out how the agent of e is started. With o.resume it continues the
// conversation that the home inside has, and differs in the command alone.
func (c *Client) launch(e *manifest.Effective, o *StartOptions) (*launch, error) {
	l := &launch{env: map[string]string{}, mcp: o.mcp}
	if e.Supervise.V {
		l.mcp = append(slices.Clip(l.mcp), mcpServer{toolsName, "http://" + gateway.SuperviseName + tools.Path})
	}
	for _, r := range e.Egress.Routes {
		l.routes = append(l.routes, r.Route)
	}
	if o.Cwd {
		dir, err := filepath.Abs(o.Dir)
		if err == nil {
			dir, err = filepath.EvalSymlinks(dir)
		}
		if err != nil {
			return nil, err
		}
		l.workspace = dir
	}
	start, ok := launchers[e.Provider.Template.V]
	if !ok {
		return nil, &OptionError{
			Option: e.Provider.Template.From.String(), Value: e.Provider.Template.V, Reason: "can't be started by this carboy yet",
			Advice: "template: command starts any program: settings: {command: [" + e.Provider.Template.V + ", …, '{prompt}']}",
		}
	}
	if m := e.Agent.Vendor["model"]; m.IsSet() && strings.HasPrefix(m.V[0], "-") {
		// Of a repository's agent, perhaps: it would be an option of the program.
		return nil, &OptionError{Option: m.From.String(), Value: visible.String(m.V[0], 80), Reason: "is no name of a model", Advice: "names of models begin with a letter"}
	}
	if u := e.User; u.Name.IsSet() || u.Email.IsSet() {
		for _, who := range []string{"AUTHOR", "COMMITTER"} {
			if u.Name.IsSet() {
				l.env["GIT_"+who+"_NAME"] = u.Name.V
			}
			if u.Email.IsSet() {
				l.env["GIT_"+who+"_EMAIL"] = u.Email.V
			}
		}
	}
	if len(e.Agent.Skills) > 0 {
		where, err := c.where(o.Dir)
		if err == nil {
			l.skills, l.read, err = manifest.ReadSkills(where, e.Agent.Skills)
		}
		if err != nil {
			return nil, err
		}
	}
	return l, start(c, e, o, l)
}

// placeholder stands inside where a program wants a key: it only has to be there,
// for whatever stands in a request is replaced.
const placeholder = "put-on-outside"

// program is what is started: the host's, which is shown inside, or the image's.
func (l *launch) program(c *Client, e *manifest.Effective, o *StartOptions, name, pkg string) ([]string, error) {
	if e.Provider.Image.IsSet() || e.Provider.Dockerfile.IsSet() {
		return []string{name}, nil
	}
	path, err := c.programOf(name, o.Dir)
	var command []string
	if err == nil {
		command, err = l.show(c, path, o.Dir)
	}
	if err != nil {
		return nil, &OptionError{Option: e.Provider.Template.From.String(), Value: name, Reason: "can't be started: " + err.Error(), Advice: "npm install -g " + pkg + ", or an image that has it, or template: command with the program of your choice"}
	}
	return command, nil
}

// systemDirs are what every bottle shows of this machine.
var systemDirs = []string{"/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/", "/nix/store/", "/gnu/store/"}

func isSystems(path string) bool {
	return slices.ContainsFunc(systemDirs, func(d string) bool { return strings.HasPrefix(path, d) })
}

// show makes a program of the host visible inside, read-only, where it is not
// anyway, and returns how to start it: with it all of the packages beside it when
// npm has installed it, else the file alone. A script of node's is started with the
// host's node, which may lie in a home as well.
func (l *launch) show(c *Client, program, work string) ([]string, error) {
	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		return nil, err
	}
	if !isSystems(real) {
		src := real
		const modules = "/node_modules/"
		if i := strings.Index(real, modules); i >= 0 {
			src = real[:i+len(modules)-1]
		}
		if err := l.mount(src); err != nil {
			return nil, err
		}
	}
	if !wantsNode(real) {
		return []string{real}, nil
	}
	node, err := c.programOf("node", work)
	if err == nil {
		node, err = filepath.EvalSymlinks(node)
	}
	if err != nil || isSystems(node) {
		return []string{real}, err
	}
	return []string{node, real}, l.mount(node)
}

func (l *launch) mount(path string) error {
	if strings.Contains(path, ":") {
		return &OptionError{Option: "PATH", Value: path, Reason: "has a colon, so that it can't be shown inside", Advice: "install the program elsewhere"}
	}
	l.mounts = append(l.mounts, path+":"+path+":ro")
	return nil
}

// wantsNode reports whether a file says of itself that node runs it.
func wantsNode(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	b := make([]byte, 64)
	n, _ := f.Read(b)
	line, _, _ := strings.Cut(string(b[:n]), "\n")
	words := strings.Fields(strings.TrimPrefix(line, "#!"))
	return len(words) > 1 && words[0] == "/usr/bin/env" && (words[1] == "node" || words[1] == "-S" && len(words) > 2 && words[2] == "node")
}

// file adds one to the home inside.
func (l *launch) file(name string, content []byte) {
	l.files = append(l.files, rootfs.File{Path: name, Content: content})
}

func (l *launch) json(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("make ~/%s: %w", name, err)
	}
	l.file(name, append(b, '\n'))
	return nil
}

func (l *launch) toml(name string, v any) error {
	b, err := toml.Marshal(v)
	if err != nil {
		return fmt.Errorf("make ~/%s: %w", name, err)
	}
	l.file(name, b)
	return nil
}

// text adds the agent's text, where there is one.
func (l *launch) text(name string, e *manifest.Effective) {
	if p := e.Agent.Prompt; p.IsSet() {
		l.file(name, []byte(p.V+"\n"))
	}
}

// addSkills puts the agent's skills where its program looks for them.
func (l *launch) addSkills(dir string) {
	for _, f := range l.skills {
		l.files = append(l.files, rootfs.File{Path: path.Join(dir, f.Path), Content: f.Content, Exec: f.Exec})
	}
}

// claudesWords are models by words that Claude Code alone knows; agents of its
// vendor's form say them.
var claudesWords = []string{"inherit", "default", "sonnet", "opus", "haiku", "sonnet[1m]", "opusplan"}

// model is what the agent's manifest asks for, for programs of other vendors.
func (l *launch) model(e *manifest.Effective) string {
	m := e.Agent.Vendor["model"]
	switch {
	case !m.IsSet() || m.V[0] == "inherit":
		return ""
	case slices.Contains(claudesWords, m.V[0]):
		l.notes = append(l.notes, fmt.Sprintf("%s: model: %s is a word of Claude Code's, so %s takes its own", m.From, m.V[0], e.Provider.Template.V))
		return ""
	}
	return m.V[0]
}

// reaches reports whether r judges TLS connections to host.
func reaches(r policy.Route, host string) bool {
	return r.Host() == host && slices.Contains(r.Ports(), 443)
}

// keyed reports whether something is put on requests to host.
func (l *launch) keyed(host string) bool {
	return slices.ContainsFunc(l.routes, func(r policy.Route) bool { return reaches(r, host) && !r.Options().Credential.IsZero() })
}

// noteKey says that nothing is put on for a vendor, so that its program will not get
// far.
func (l *launch) noteKey(host, variable, scheme string) {
	l.notes = append(l.notes, "nothing is put on for "+host+" (egress.routes: {host: "+host+", token_env: "+variable+", "+scheme+"})")
}

// put has cred put on requests by r.
func put(r policy.Route, cred policy.Credential, from manifest.Origin) (policy.Route, error) {
	opts := r.Options()
	opts.Credential = cred
	out, err := r.WithOptions(opts)
	if err != nil {
		return r, &OptionError{Option: from.String(), Value: from.Field, Reason: "can't be put on by the route at " + r.Rule() + ": " + err.Error(), Advice: "leave inspect: false out there, or " + from.Field + " here"}
	}
	return out, nil
}

// putOn has cred put on what the bottle's own routes of which own is true allow, and
// without such on what by allows. A route that puts something on already is left.
func (l *launch) putOn(own func(policy.Route) bool, cred policy.Credential, from manifest.Origin, by func() (policy.Route, error)) error {
	found := false
	for i, r := range l.routes {
		if !own(r) {
			continue
		}
		found = true
		if !r.Options().Credential.IsZero() {
			continue
		}
		var err error
		if l.routes[i], err = put(r, cred, from); err != nil {
			return err
		}
	}
	if found {
		return nil
	}
	r, err := by()
	if err == nil {
		r, err = put(r.WithRule(from.String()), cred, from)
	}
	if err == nil {
		l.routes = append([]policy.Route{r}, l.routes...)
	}
	return err
}

// keys are where vendors of models look for an API key, and the variables in which
// programs that know many vendors do.
var keys = []struct {
	host, env string
	scheme    policy.Scheme
	field     string
}{
	{"api.anthropic.com", "ANTHROPIC_API_KEY", credential.APIKey, ""},
	{"api.openai.com", "OPENAI_API_KEY", credential.Bearer, ""},
	{"generativelanguage.googleapis.com", "GEMINI_API_KEY", credential.Header, "x-goog-api-key"},
	{"api.groq.com", "GROQ_API_KEY", credential.Bearer, ""},
	{"openrouter.ai", "OPENROUTER_API_KEY", credential.Bearer, ""},
	{"api.mistral.ai", "MISTRAL_API_KEY", credential.Bearer, ""},
	{"api.deepseek.com", "DEEPSEEK_API_KEY", credential.Bearer, ""},
	{"api.x.ai", "XAI_API_KEY", credential.Bearer, ""},
}

// keyVariables sets, for each vendor on whose requests something is put on, the
// variable that a program looks at to see that it may ask that vendor. The variable
// that the route itself names has a placeholder anyway.
func (l *launch) keyVariables() (any bool) {
	for _, k := range keys {
		for _, r := range l.routes {
			if c := r.Options().Credential; reaches(r, k.host) && !c.IsZero() {
				any = true
				if c.Env != k.env {
					l.env[k.env] = placeholder
				}
			}
		}
	}
	return any
}

// afterDashes is the prompt as an argument that no program takes for an option.
func afterDashes(text string) []string {
	if strings.HasPrefix(text, "-") {
		return []string{"--", text}
	}
	return []string{text}
}
