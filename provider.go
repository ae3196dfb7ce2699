package carboy

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/policy"
)

// launch is how an agent's program is started: the command, and what it needs
// beside what the bottle's manifests say themselves.
type launch struct {
	command []string
	env     map[string]string
	mounts  []string
	routes  []policy.Route
	notes   []string
}

// launchers start the templates that there are. Another one is a line here.
var launchers = map[string]func(*Client, *manifest.Effective, *StartOptions, *launch) error{
	"claude":  launchClaude,
	"command": launchCommand,
}

func (c *Client) launch(e *manifest.Effective, o *StartOptions) (*launch, error) {
	l := &launch{env: map[string]string{}}
	for _, r := range e.Egress.Routes {
		l.routes = append(l.routes, r.Route)
	}
	start, ok := launchers[e.Provider.Template.V]
	if !ok {
		return nil, &OptionError{
			Option: e.Provider.Template.From.String(), Value: e.Provider.Template.V, Reason: "can't be started by this carboy yet",
			Advice: "template: command starts any program: settings: {command: [" + e.Provider.Template.V + ", …, '{prompt}']}",
		}
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
	return l, start(c, e, o, l)
}

// promptArg is the argument of a command that becomes the prompt.
const promptArg = "{prompt}"

func launchCommand(c *Client, e *manifest.Effective, o *StartOptions, l *launch) error {
	text := strings.TrimSpace(e.Agent.Prompt.V + "\n\n" + o.Prompt)
	command := e.Provider.Settings.Command
	found := false
	for _, a := range command.V {
		if a == promptArg {
			a, found = text, true
		}
		l.command = append(l.command, a)
	}
	if !found && text != "" {
		if o.Headless {
			return &OptionError{Option: command.From.String(), Value: command.From.Field, Reason: "has no argument {prompt}, so that the prompt would be lost", Advice: "add '{prompt}' where the program takes it"}
		}
		l.notes = append(l.notes, "the command has no argument {prompt}, so the agent's text is not passed on")
	}
	return nil
}

const claudeHost = "api.anthropic.com"

// launchClaude starts Claude Code. Its own questions are switched off: the bottle
// is the sandbox, and what it did is reviewed.
func launchClaude(c *Client, e *manifest.Effective, o *StartOptions, l *launch) error {
	program := "claude" // of the image
	var err error
	if !e.Provider.Image.IsSet() {
		if program, err = c.programOf("claude"); err == nil {
			program, err = l.show(program)
		}
	}
	if err != nil {
		return &OptionError{Option: e.Provider.Template.From.String(), Value: "claude", Reason: "can't be started: " + err.Error(), Advice: "npm install -g @anthropic-ai/claude-code, or an image that has it, or template: command with the program of your choice"}
	}
	l.command = append([]string{program, "--dangerously-skip-permissions"}, e.Provider.Settings.StartupArgs.V...)
	if m := e.Agent.Vendor["model"]; m.IsSet() && m.V[0] != "inherit" {
		l.command = append(l.command, "--model", m.V[0])
	}
	if p := e.Agent.Prompt; p.IsSet() {
		l.command = append(l.command, "--append-system-prompt", p.V)
	}
	if o.Headless {
		l.command = append(l.command, "-p", o.Prompt)
	}
	l.env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] = "1" // its hosts are refused anyway
	token := e.Provider.AuthToken
	if !token.IsSet() {
		if !slices.ContainsFunc(l.routes, func(r policy.Route) bool { return isClaudes(r) && !r.Options().Credential.IsZero() }) {
			l.notes = append(l.notes, "no token is put on for "+claudeHost+" (agent_provider.auth_token names its variable)")
		}
		return nil
	}
	return l.claudeToken(token, strings.HasPrefix(c.env(token.V), oauthToken))
}

// oauthToken begins what claude setup-token prints; another one is an API key.
const oauthToken = "sk-ant-oat"

// isClaudes reports whether claude's requests are judged by r.
func isClaudes(r policy.Route) bool {
	return r.Host() == claudeHost && slices.Contains(r.Ports(), 443)
}

// claudeToken has the gateway put the token on requests to claude's host: on those
// that the bottle's own routes for it allow, and without such on all.
func (l *launch) claudeToken(token manifest.Value[string], oauth bool) error {
	cred, inside := policy.Credential{Scheme: credential.APIKey, Env: token.V}, "ANTHROPIC_API_KEY"
	if oauth {
		cred.Scheme, inside = credential.Bearer, "CLAUDE_CODE_OAUTH_TOKEN"
	}
	put := func(r policy.Route) (policy.Route, error) {
		opts := r.Options()
		opts.Credential = cred
		out, err := r.WithOptions(opts)
		if err != nil {
			return r, &OptionError{Option: token.From.String(), Value: token.From.Field, Reason: "can't be put on by the route at " + r.Rule() + ": " + err.Error(), Advice: "leave inspect: false out there, or auth_token here"}
		}
		return out, nil
	}
	found := false
	for i, r := range l.routes {
		if !isClaudes(r) {
			continue
		}
		found = true
		if !r.Options().Credential.IsZero() {
			continue
		}
		var err error
		if l.routes[i], err = put(r); err != nil {
			return err
		}
	}
	if !found {
		r, err := policy.ParseAllow(claudeHost + ":443")
		if err == nil {
			r, err = put(r.WithRule(token.From.String()))
		}
		if err != nil {
			return err
		}
		l.routes = append([]policy.Route{r}, l.routes...)
	}
	if token.V != inside {
		// It only has to be there: whatever stands in the request is replaced.
		l.env[inside] = "put-on-outside"
	}
	return nil
}

// systemDirs are what every bottle shows of this machine.
var systemDirs = []string{"/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/", "/nix/store/", "/gnu/store/"}

// show makes a program of the host visible inside, read-only, where it is not
// anyway, and returns the path to start it by: with it all of the packages beside
// it when npm has installed it, else the file alone.
func (l *launch) show(program string) (string, error) {
	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		return "", err
	}
	if slices.ContainsFunc(systemDirs, func(d string) bool { return strings.HasPrefix(real, d) }) {
		return real, nil
	}
	src := real
	const modules = "/node_modules/"
	if i := strings.Index(real, modules); i >= 0 {
		src = real[:i+len(modules)-1]
	}
	if strings.Contains(src, ":") {
		return "", &OptionError{Option: "PATH", Value: real, Reason: "has a colon, so that it can't be shown inside", Advice: "install the program elsewhere"}
	}
	l.mounts = append(l.mounts, src+":"+src+":ro")
	return real, nil
}
