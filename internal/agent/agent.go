// Package agent builds the command, files and routes with which a coding agent's program
// starts in a bottle. Each program has one file, which registers its template. Start
// reading at [New].
package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/carboy/carboy/internal/bottle/rootfs"
	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/supervise/tools"
)

// Launch says how to start an agent's program: the command, and what the program needs
// in addition to the bottle's manifests.
//
// The program's own files (settings, a sign-in, skills, the agent's text) are in the
// bottle's home and hold no secret. Where the program wants a key, it finds a
// placeholder, and a route adds the real key outside.
type Launch struct {
	Command []string
	Env     map[string]string
	Mounts  []string
	Routes  []policy.Route
	Files   []rootfs.File // of the home inside
	Notes   []string
	// Sessions lists the paths in the bottle's home that hold the program's conversations.
	Sessions []string
	// Read lists the files other than manifests whose content went into the bottle.
	Read []manifest.File

	mcp       []MCPServer
	toolsWait int      // the timeout of a tool call, in seconds: longer than people are waited for
	workspace string   // its path in the bottle; empty: none
	models    []string // hosts of the models that the program uses
	skills    []manifest.SkillFile
}

// Options say how to start the agent of a bottle.
type Options struct {
	Dir      string // the directory whose agents and skills are used
	Cwd      bool   // Dir is the agent's workspace
	Headless bool   // it carries out Prompt and exits
	Prompt   string
	Resume   bool // it continues the conversation in the bottle's home
	// Kept reports whether the home that is resumed has a file below a path; nil: not known.
	Kept     func(path string) bool
	MCP      []MCPServer
	AskFor   time.Duration // the wait for a person's answer; 0: the default
	Args     []string      // for the program, after those that the bottle says
	Proposed bool          // carboy has proposed the bottle: its user has not written it
}

// MCPServer is a tool server to configure for the agent. It speaks streamable HTTP.
type MCPServer struct{ Name, URL string }

// toolsName names the server of carboy's own tools in an agent's configuration.
const toolsName = "carboy"

// toolsWait is the least timeout of a tool call in agents' configurations.
const toolsWait = 15 * time.Minute

// launchers maps the name of each template to its launch function.
var launchers = map[string]launcher{}

type launcher func(*host.Host, *manifest.Effective, *Options, *Launch) error

// register adds a template that start starts.
func register(t manifest.Template, start launcher) {
	manifest.Register(t)
	launchers[t.Name] = start
}

// New returns the Launch of e's agent. With o.Resume, only the command differs: it
// continues the conversation in the bottle's home.
func New(c *host.Host, e *manifest.Effective, o *Options) (*Launch, error) {
	l := &Launch{Env: map[string]string{}, mcp: o.MCP, toolsWait: int(max(toolsWait, o.AskFor+time.Minute).Seconds())}
	if e.Supervise.V {
		l.mcp = append(slices.Clip(l.mcp), MCPServer{toolsName, "http://" + gateway.SuperviseName + tools.Path})
	}
	for _, r := range e.Egress.Routes {
		l.Routes = append(l.Routes, r.Route)
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
	if m := e.Agent.Vendor["model"]; m.IsSet() && strings.HasPrefix(m.V[0], "-") {
		// The manifest may be a repository's, and the program would read this as an option.
		return nil, &fault.OptionError{Option: m.From.String(), Value: safetext.String(m.V[0], 80), Reason: "is no name of a model", Advice: "names of models begin with a letter"}
	}
	if u := e.User; u.Name.IsSet() || u.Email.IsSet() {
		for _, who := range []string{"AUTHOR", "COMMITTER"} {
			if u.Name.IsSet() {
				l.Env["GIT_"+who+"_NAME"] = u.Name.V
			}
			if u.Email.IsSet() {
				l.Env["GIT_"+who+"_EMAIL"] = u.Email.V
			}
		}
	}
	if len(e.Agent.Skills) > 0 {
		where, err := c.Where(o.Dir)
		if err == nil {
			l.skills, l.Read, err = manifest.ReadSkills(where, e.Agent.Skills)
		}
		if err != nil {
			return nil, err
		}
	}
	err := launchers[e.Provider.Template.V](c, e, o, l)
	l.Command = append(l.Command, o.Args...)
	if err == nil {
		err = l.letModelsSpeak()
	}
	return l, err
}

// letModelsSpeak has instructions in a model's own answers reported, and not blocked: a
// model that quotes an attack would end its own conversation. It changes routes to l.models,
// unless they say what happens to an answer.
func (l *Launch) letModelsSpeak() error {
	for i, r := range l.Routes {
		o := r.Options()
		if o.Scan.NoInjection || o.Scan.OnInjection != policy.ByDefault || o.Opaque || !slices.ContainsFunc(l.models, func(h string) bool { return reaches(r, h) }) {
			continue
		}
		o.Scan.OnInjection = policy.ReportIncoming
		var err error
		if l.Routes[i], err = r.WithOptions(o); err != nil {
			return err
		}
	}
	return nil
}

// vendorHosts returns the hosts of all Vendors, for programs that use any of them.
func vendorHosts() (hosts []string) {
	for _, v := range Vendors {
		hosts = append(hosts, v.Host)
	}
	return hosts
}

// program returns the beginning of the command: the image's program, or the host's, which
// it mounts.
func (l *Launch) program(c *host.Host, e *manifest.Effective, o *Options, name, pkg string) ([]string, error) {
	if e.Provider.Image.IsSet() || e.Provider.Dockerfile.IsSet() {
		return []string{name}, nil
	}
	path, err := Find(c.Env, name, o.Dir)
	var command []string
	if err == nil {
		command, err = l.show(c, path, o.Dir)
	}
	if err != nil {
		from, advice := e.Provider.Template.From.String(), "npm install -g "+pkg
		if o.Proposed {
			from = "the program"
		} else {
			advice += ", or an image that has it, or template: command with the program of your choice"
		}
		return nil, &fault.OptionError{Option: from, Value: name, Reason: "can't be started: " + err.Error(), Advice: advice}
	}
	return command, nil
}

// systemDirs lists the directories of this machine that every bottle can read.
var systemDirs = []string{"/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/", "/nix/store/", "/gnu/store/"}

func isSystems(path string) bool {
	return slices.ContainsFunc(systemDirs, func(d string) bool { return strings.HasPrefix(path, d) })
}

// show mounts a program of the host read-only, unless every bottle can read it, and
// returns the command that starts it. If npm installed the program, show mounts the whole
// node_modules directory, and of one in a virtual environment of Python that and its
// Python. A script for node is started with the host's node, which show
// mounts too if it needs to.
func (l *Launch) show(c *host.Host, program, work string) ([]string, error) {
	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		return nil, err
	}
	if !isSystems(real) {
		srcs := []string{real}
		const modules = "/node_modules/"
		if i := strings.Index(real, modules); i >= 0 {
			srcs = []string{real[:i+len(modules)-1]}
		} else if venv := venvOf(real); venv != "" && !fault.Within(fault.RealPath(c.Env("HOME")), venv) && !fault.Within(fault.RealPath(work), venv) {
			srcs = append(pythonOf(venv), venv)
		}
		for _, src := range srcs {
			if err := l.mount(src); err != nil {
				return nil, err
			}
		}
	}
	if !wantsNode(real) {
		return []string{real}, nil
	}
	node, err := Find(c.Env, "node", work)
	if err == nil {
		node, err = filepath.EvalSymlinks(node)
	}
	if err != nil || isSystems(node) {
		return []string{real}, err
	}
	return []string{node, real}, l.mount(node)
}

// venvOf returns the virtual environment of Python that has a program, or "".
func venvOf(program string) string {
	dir := filepath.Dir(filepath.Dir(program))
	if _, err := os.Stat(filepath.Join(dir, "pyvenv.cfg")); err != nil {
		return ""
	}
	return dir
}

// pythonOf returns what a virtual environment needs of its Python, unless that is the
// system's: the program, and its libraries.
func pythonOf(venv string) []string {
	python, err := filepath.EvalSymlinks(filepath.Join(venv, "bin/python"))
	if err != nil || isSystems(python) || fault.Within(python, venv) {
		return nil
	}
	libs, _ := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(python)), "lib/*python3*"))
	return append(libs, python)
}

func (l *Launch) mount(path string) error {
	if strings.Contains(path, ":") {
		return &fault.OptionError{Option: "PATH", Value: path, Reason: "has a colon, so that it can't be shown inside", Advice: "install the program elsewhere"}
	}
	l.Mounts = append(l.Mounts, path+":"+path+":ro")
	return nil
}

// wantsNode reports whether the first line of a file says that node runs it.
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

// file adds a file to the bottle's home.
func (l *Launch) file(name string, content []byte) {
	l.Files = append(l.Files, rootfs.File{Path: name, Content: content})
}

func (l *Launch) json(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("make ~/%s: %w", name, err)
	}
	l.file(name, append(b, '\n'))
	return nil
}

func (l *Launch) toml(name string, v any) error {
	b, err := toml.Marshal(v)
	if err != nil {
		return fmt.Errorf("make ~/%s: %w", name, err)
	}
	l.file(name, b)
	return nil
}

// text adds the agent's text, if it has one.
func (l *Launch) text(name string, e *manifest.Effective) {
	if p := e.Agent.Prompt; p.IsSet() {
		l.file(name, []byte(p.V+"\n"))
	}
}

// addSkills adds the agent's skills in dir, where its program looks for them.
func (l *Launch) addSkills(dir string) {
	for _, f := range l.skills {
		l.Files = append(l.Files, rootfs.File{Path: path.Join(dir, f.Path), Content: f.Content, Exec: f.Exec})
	}
}

// claudeModels lists names of models that only Claude Code knows. Agent files in its
// format use them.
var claudeModels = []string{"inherit", "default", "sonnet", "opus", "haiku", "sonnet[1m]", "opusplan"}

// model returns the model of the agent's manifest for a program of another vendor. It
// returns "" if the program must choose.
func (l *Launch) model(e *manifest.Effective) string {
	m := e.Agent.Vendor["model"]
	switch {
	case !m.IsSet() || m.V[0] == "inherit":
		return ""
	case slices.Contains(claudeModels, m.V[0]):
		l.Notes = append(l.Notes, fmt.Sprintf("%s: model: %s is a name of Claude Code, so %s takes its own", m.From, m.V[0], e.Provider.Template.V))
		return ""
	}
	return m.V[0]
}

// reaches reports whether r is about port 443 of host.
func reaches(r policy.Route, host string) bool {
	return r.Host() == host && slices.Contains(r.Ports(), 443)
}

// keyed reports whether a route adds a credential to requests to host.
func (l *Launch) keyed(host string) bool {
	return slices.ContainsFunc(l.Routes, func(r policy.Route) bool { return reaches(r, host) && !r.Options().Credential.IsZero() })
}

// noteKey notes that no route adds a credential for a vendor, so that its API will
// refuse the program.
func (l *Launch) noteKey(host, variable, scheme string) {
	l.Notes = append(l.Notes, "nothing is put on for "+host+" (egress.routes: {host: "+host+", token_env: "+variable+", "+scheme+"})")
}

// put returns r with cred added to its requests.
func put(r policy.Route, cred policy.Credential, from manifest.Origin) (policy.Route, error) {
	opts := r.Options()
	opts.Credential = cred
	out, err := r.WithOptions(opts)
	if err != nil {
		return r, &fault.OptionError{Option: from.String(), Value: from.Field, Reason: "can't be put on by the route at " + r.Rule() + ": " + err.Error(), Advice: "leave inspect: false out there, or " + from.Field + " here"}
	}
	return out, nil
}

// putOn adds cred to the requests of all routes of the bottle for which own is true. If
// there is none, it adds the route that by returns. It does not change a route that
// already adds a credential.
func (l *Launch) putOn(own func(policy.Route) bool, cred policy.Credential, from manifest.Origin, by func() (policy.Route, error)) error {
	found := false
	for i, r := range l.Routes {
		if !own(r) {
			continue
		}
		found = true
		if !r.Options().Credential.IsZero() {
			continue
		}
		var err error
		if l.Routes[i], err = put(r, cred, from); err != nil {
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
		l.Routes = append([]policy.Route{r}, l.Routes...)
	}
	return err
}

// Vendor says how the API of a vendor of models expects a key, and the variable in which
// programs for many vendors look for it.
type Vendor struct {
	Host, Env string
	Scheme    policy.Scheme
	Field     string // of credential.Header
}

// Vendors lists the vendors whose keys programs for many vendors take.
var Vendors = []Vendor{
	{"api.anthropic.com", "ANTHROPIC_API_KEY", credential.APIKey, ""},
	{"api.openai.com", "OPENAI_API_KEY", credential.Bearer, ""},
	{"generativelanguage.googleapis.com", "GEMINI_API_KEY", credential.Header, "x-goog-api-key"},
	{"api.groq.com", "GROQ_API_KEY", credential.Bearer, ""},
	{"openrouter.ai", "OPENROUTER_API_KEY", credential.Bearer, ""},
	{"api.mistral.ai", "MISTRAL_API_KEY", credential.Bearer, ""},
	{"api.deepseek.com", "DEEPSEEK_API_KEY", credential.Bearer, ""},
	{"api.x.ai", "XAI_API_KEY", credential.Bearer, ""},
}

// keyVariables sets a placeholder for each vendor to whose requests a route adds a key:
// programs use a vendor only if its variable is set. It reports whether there is any. The
// variable that the route itself names has a placeholder anyway.
func (l *Launch) keyVariables() (any bool) {
	for _, k := range Vendors {
		for _, r := range l.Routes {
			if c := r.Options().Credential; reaches(r, k.Host) && !c.IsZero() {
				any = true
				if c.Env != k.Env {
					l.Env[k.Env] = plan.Placeholder
				}
			}
		}
	}
	return any
}

// afterDashes returns the arguments for a prompt that no program reads as an option.
func afterDashes(text string) []string {
	if strings.HasPrefix(text, "-") {
		return []string{"--", text}
	}
	return []string{text}
}

// homeBins lists patterns of directories, below a home, into which package managers install
// programs, and which only a login shell may have in PATH.
var homeBins = []string{
	".local/bin", ".npm-global/bin", ".claude/local", ".opencode/bin", ".bun/bin", ".volta/bin",
	".nvm/versions/node/*/bin", ".local/share/fnm/node-versions/*/installation/bin", ".local/share/mise/installs/node/*/bin", ".asdf/installs/nodejs/*/bin",
}

// Find looks up a program in PATH, and then where package managers install programs.
// It skips relative directories and those in the workspace, which tools put on PATH: the
// repository decides what is there, a link may lead anywhere, and carboy mounts what
// Find finds.
func Find(env func(string) string, name, work string) (string, error) {
	work = fault.RealPath(work)
	dirs := filepath.SplitList(env("PATH"))
	for _, p := range homeBins {
		found, _ := filepath.Glob(filepath.Join(env("HOME"), p))
		slices.Reverse(found) // of versions the newest, mostly
		dirs = append(dirs, found...)
	}
	for _, dir := range append(dirs, "/home/linuxbrew/.linuxbrew/bin") {
		if !filepath.IsAbs(dir) || fault.Within(filepath.Clean(dir), work) || fault.Within(fault.RealPath(dir), work) {
			continue
		}
		path := filepath.Join(dir, name)
		if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not installed here: neither PATH nor a package manager's directory has it", name)
}
