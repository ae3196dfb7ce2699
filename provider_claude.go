package carboy

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/policy"
)

const (
	claudeHost = "api.anthropic.com"
	claudeKey  = "ANTHROPIC_API_KEY"
)

// launchClaude starts Claude Code. Its own questions are switched off: the bottle
// is the sandbox, and what it did is reviewed.
func launchClaude(c *Client, e *manifest.Effective, o *StartOptions, l *launch) error {
	program, err := l.program(c, e, o, "claude", "@anthropic-ai/claude-code")
	if err != nil {
		return err
	}
	l.command = append(append(program, "--dangerously-skip-permissions"), e.Provider.Settings.StartupArgs.V...)
	if m := e.Agent.Vendor["model"]; m.IsSet() && m.V[0] != "inherit" {
		l.command = append(l.command, "--model", m.V[0])
	}
	if p := e.Agent.Prompt; p.IsSet() {
		l.command = append(l.command, "--append-system-prompt", p.V)
	}
	if len(l.mcp) > 0 {
		type server struct {
			Type string `json:"type"`
			URL  string `json:"url"`
		}
		servers := map[string]server{}
		for _, m := range l.mcp {
			servers[m.name] = server{"http", m.url}
		}
		b, err := json.Marshal(map[string]any{"mcpServers": servers})
		if err != nil {
			return err
		}
		l.command = append(l.command, "--mcp-config="+string(b))
		l.env["MCP_TOOL_TIMEOUT"] = strconv.Itoa(toolsWait * 1000)
	}
	if o.resume {
		l.command = append(l.command, "--continue")
	}
	if o.Headless {
		l.command = append(append(l.command, "-p"), afterDashes(o.Prompt)...)
	}
	l.env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] = "1" // its hosts are refused anyway
	l.env["DISABLE_AUTOUPDATER"] = "1"
	// What it asks a person the first time.
	state := map[string]any{"hasCompletedOnboarding": true, "bypassPermissionsModeAccepted": true}
	approved := []string{placeholder}
	if v := e.Provider.AuthToken.V; v == claudeKey {
		approved = append(approved, tailMark(v))
	}
	for _, r := range l.routes {
		if c := r.Options().Credential; c.Env == claudeKey {
			approved = append(approved, tailMark(c.Env))
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
	l.sessions = []string{".claude/projects"}
	token := e.Provider.AuthToken
	if !token.IsSet() {
		if !l.keyed(claudeHost) {
			l.notes = append(l.notes, "no token is put on for "+claudeHost+" (agent_provider.auth_token names its variable)")
		}
		return nil
	}
	return l.claudeToken(token, strings.HasPrefix(c.env(token.V), oauthToken))
}

// oauthToken begins what claude setup-token prints; another one is an API key.
const oauthToken = "sk-ant-oat"

// claudeToken has the gateway put the token on requests to claude's host: on those
// that the bottle's own routes for it allow, and without such on all.
func (l *launch) claudeToken(token manifest.Value[string], oauth bool) error {
	cred, inside := policy.Credential{Scheme: credential.APIKey, Env: token.V}, claudeKey
	if oauth {
		cred.Scheme, inside = credential.Bearer, "CLAUDE_CODE_OAUTH_TOKEN"
	}
	own := func(r policy.Route) bool { return reaches(r, claudeHost) }
	if err := l.putOn(own, cred, token.From, func() (policy.Route, error) { return policy.ParseAllow(claudeHost + ":443") }); err != nil {
		return err
	}
	if token.V != inside {
		l.env[inside] = placeholder
	}
	return nil
}
