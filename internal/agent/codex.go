package agent

import (
	"path/filepath"
	"slices"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/run/plan"
)

const (
	OpenaiHost  = "api.openai.com"
	ChatgptHost = "chatgpt.com"
	// CodexTokens is the endpoint that refreshes codex's access token, and codexClient
	// its OAuth client ID.
	CodexTokens = "https://auth.openai.com/oauth/token"
	codexAuth   = "auth.openai.com"
	codexClient = "app_EMoamEEZ73f0CkXaXp7hrann"
	// codexOther is the variable that replaces CodexTokens.
	codexOther = "CODEX_REFRESH_TOKEN_URL_OVERRIDE"
)

func init() {
	register(manifest.Template{
		Name: "codex", StartupArgs: true,
		Settings: "  # settings: {startup_args: []}\n",
		Route:    "    - {host: api.openai.com, token_env: OPENAI_API_KEY}\n",
	}, launchCodex)
}

// launchCodex starts Codex with an API key, or with the sign-in of the host's Codex.
func launchCodex(c *host.Host, e *manifest.Effective, o *Options, l *Launch) error {
	l.models = []string{OpenaiHost, ChatgptHost}
	program, err := l.program(c, e, o, "codex", "@openai/codex")
	if err != nil {
		return err
	}
	l.Command = program
	if own := []string{"exec", "e", "resume", "review"}; len(o.Args) > 0 && slices.Contains(own, o.Args[0]) {
		// A command's options come after its name.
		l.Command, o.Args = append(l.Command, o.Args[0]), o.Args[1:]
	}
	switch {
	case o.Headless && o.Resume:
		l.Command = append(l.Command, "exec", "resume", "--last", "--skip-git-repo-check")
	case o.Headless:
		l.Command = append(l.Command, "exec", "--skip-git-repo-check")
	case o.Resume:
		l.Command = append(l.Command, "resume", "--last")
	}
	l.Command = append(append(l.Command, "--dangerously-bypass-approvals-and-sandbox"), e.Provider.Settings.StartupArgs.V...)
	if m := l.model(e); m != "" {
		l.Command = append(l.Command, "-m", m)
	}
	if o.Headless {
		l.Command = append(l.Command, afterDashes(o.Prompt)...)
	}
	type object = map[string]any
	config := object{
		"check_for_update_on_startup": false, "cli_auth_credentials_store": "file",
		"analytics": object{"enabled": false}, "feedback": object{"enabled": false},
	}
	if l.workspace != "" {
		config["projects"] = object{l.workspace: object{"trust_level": "trusted"}}
	}
	if len(l.mcp) > 0 {
		servers := object{}
		for _, m := range l.mcp {
			servers[m.Name] = object{"url": m.URL, "tool_timeout_sec": l.toolsWait}
		}
		config["mcp_servers"] = servers
	}
	if err := l.toml(".codex/config.toml", config); err != nil {
		return err
	}
	l.text(".codex/AGENTS.md", e)
	l.addSkills(".codex/skills")
	l.Sessions = []string{".codex/sessions"}
	if e.Provider.ForwardHostCredentials.V {
		return l.forwardCodex(c, e.Provider.ForwardHostCredentials.From)
	}
	if !l.keyed(OpenaiHost) {
		l.noteKey(OpenaiHost, "OPENAI_API_KEY", "auth_scheme: bearer")
	}
	return l.json(".codex/auth.json", object{"auth_mode": "apikey", "OPENAI_API_KEY": plan.Placeholder})
}

// forwardCodex makes the gateway add the credentials with which the host's Codex has
// signed in. The file in the bottle has the same format and no token.
func (l *Launch) forwardCodex(c *host.Host, from manifest.Origin) error {
	file := CodexFile(c.Env)
	login, err := plan.ReadCodex(file)
	if err != nil {
		return &fault.OptionError{Option: from.String(), Value: file, Reason: err.Error(), Advice: "codex login, with cli_auth_credentials_store = \"file\" in its config.toml"}
	}
	defer login.Destroy()
	tokens := c.Env(codexOther)
	if tokens == "" {
		tokens = CodexTokens
	} else {
		l.Notes = append(l.Notes, "codex's sign-in is refreshed at "+tokens+" ("+codexOther+")")
	}
	cred := policy.Credential{Scheme: credential.Codex, OAuth: policy.OAuth{TokenURL: tokens, ClientID: codexClient, File: file, InBody: true}}
	if login.Key {
		own := func(r policy.Route) bool { return reaches(r, OpenaiHost) }
		if err := l.putOn(own, cred, from, func() (policy.Route, error) { return policy.ParseAllow(OpenaiHost + ":443") }); err != nil {
			return err
		}
		return l.json(".codex/auth.json", map[string]any{"auth_mode": "apikey", "OPENAI_API_KEY": plan.Placeholder})
	}
	// Only carboy may sign in and refresh tokens.
	if table, err := policy.Compile(l.Routes...); err != nil {
		return err
	} else if v := table.Decide(codexAuth, 443); v.Allowed {
		return &fault.OptionError{Option: from.String(), Value: v.Rule, Reason: "lets the bottle ask " + codexAuth + ", where sign-ins are refreshed", Advice: "leave that host out: carboy asks it itself"}
	}
	own := func(r policy.Route) bool { return reaches(r, ChatgptHost) }
	if err := l.putOn(own, cred, from, func() (policy.Route, error) { return policy.ParseAllow(ChatgptHost + ":443/backend-api") }); err != nil {
		return err
	}
	inside, err := login.Stand()
	if err != nil {
		return err
	}
	l.file(".codex/auth.json", inside)
	return nil
}

// CodexFile returns the path of the host's file with Codex's credentials.
func CodexFile(lookup func(string) string) string {
	dir := lookup("CODEX_HOME")
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(lookup("HOME"), ".codex")
	}
	return filepath.Join(dir, "auth.json")
}
