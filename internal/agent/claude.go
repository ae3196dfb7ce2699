package agent

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/run/plan"
)

const (
	claudeHost = "api.anthropic.com"
	claudeKey  = "ANTHROPIC_API_KEY"
)

func init() {
	register(manifest.Template{
		Name: "claude", StartupArgs: true,
		Settings: `  auth_token: ANTHROPIC_API_KEY  # a variable of the host; inside is a placeholder
  # settings: {startup_args: [--verbose]}
`,
	}, launchClaude)
}

// launchClaude starts Claude Code. It switches the program's own questions off: the
// bottle is the sandbox, and a person reviews the changes.
func launchClaude(c *host.Host, e *manifest.Effective, o *Options, l *Launch) error {
	l.models = []string{claudeHost}
	program, err := l.program(c, e, o, "claude", "@anthropic-ai/claude-code")
	if err != nil {
		return err
	}
	l.Command = append(append(program, "--dangerously-skip-permissions"), e.Provider.Settings.StartupArgs.V...)
	if m := e.Agent.Vendor["model"]; m.IsSet() && m.V[0] != "inherit" {
		l.Command = append(l.Command, "--model", m.V[0])
	}
	if p := e.Agent.Prompt; p.IsSet() {
		l.Command = append(l.Command, "--append-system-prompt", p.V)
	}
	if len(l.mcp) > 0 {
		type server struct {
			Type string `json:"type"`
			URL  string `json:"url"`
		}
		servers := map[string]server{}
		for _, m := range l.mcp {
			servers[m.Name] = server{"http", m.URL}
		}
		b, err := json.Marshal(map[string]any{"mcpServers": servers})
		if err != nil {
			return err
		}
		l.Command = append(l.Command, "--mcp-config="+string(b))
		l.Env["MCP_TOOL_TIMEOUT"] = strconv.Itoa(l.toolsWait * 1000)
	}
	if o.Resume && (o.Kept == nil || o.Kept(claudeSessions)) { // without a conversation it refuses
		l.Command = append(l.Command, "--continue")
	}
	if o.Headless {
		l.Command = append(append(l.Command, "-p"), afterDashes(o.Prompt)...)
	}
	l.Env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] = "1" // the routes refuse its hosts anyway
	l.Env["DISABLE_AUTOUPDATER"] = "1"
	// Without these answers it asks a person on its first start.
	state := map[string]any{"hasCompletedOnboarding": true, "bypassPermissionsModeAccepted": true}
	approved := []string{plan.Placeholder}
	if v := e.Provider.AuthToken.V; v == claudeKey {
		approved = append(approved, plan.TailMark(v))
	}
	for _, r := range l.Routes {
		if c := r.Options().Credential; c.Env == claudeKey {
			approved = append(approved, plan.TailMark(c.Env))
		}
	}
	state["customApiKeyResponses"] = map[string]any{"approved": approved, "rejected": []string{}}
	if l.workspace != "" {
		state["projects"] = map[string]any{l.workspace: map[string]any{"hasTrustDialogAccepted": true}}
	}
	if err := l.json(".claude.json", state); err != nil {
		return err
	}
	l.addSkills(".claude/skills")
	l.Sessions = []string{claudeSessions}
	token := e.Provider.AuthToken
	if !token.IsSet() {
		if !l.keyed(claudeHost) {
			l.Notes = append(l.Notes, "no token is put on for "+claudeHost+" (agent_provider.auth_token names its variable)")
		}
		return nil
	}
	return l.claudeToken(token, strings.HasPrefix(c.Env(token.V), oauthToken))
}

// claudeSessions holds Claude Code's conversations, below the home.
const claudeSessions = ".claude/projects"

// oauthToken is the prefix of a token that claude setup-token prints. Any other token is
// an API key.
const oauthToken = "sk-ant-oat"

// claudeToken makes the gateway add the token to requests to Claude's host: to those that
// the bottle's own routes to it allow or, without such routes, to all.
func (l *Launch) claudeToken(token manifest.Value[string], oauth bool) error {
	cred, inside := policy.Credential{Scheme: credential.APIKey, Env: token.V}, claudeKey
	if oauth {
		cred.Scheme, inside = credential.Bearer, "CLAUDE_CODE_OAUTH_TOKEN"
	}
	own := func(r policy.Route) bool { return reaches(r, claudeHost) }
	if err := l.putOn(own, cred, token.From, func() (policy.Route, error) { return policy.ParseAllow(claudeHost + ":443") }); err != nil {
		return err
	}
	if token.V != inside {
		l.Env[inside] = plan.Placeholder
	}
	return nil
}
