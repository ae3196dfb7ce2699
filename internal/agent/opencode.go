package agent

import (
	"strings"

	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/manifest"
)

func init() {
	register(manifest.Template{
		Name: "opencode", StartupArgs: true,
		Settings: "  # settings: {startup_args: []}\n",
		Route:    "    - {host: api.anthropic.com, auth_scheme: x-api-key, token_env: ANTHROPIC_API_KEY}\n",
	}, launchOpencode)
}

// launchOpencode starts opencode with the API key of any vendor.
func launchOpencode(c *host.Host, e *manifest.Effective, o *Options, l *Launch) error {
	l.models = vendorHosts()
	program, err := l.program(c, e, o, "opencode", "opencode-ai")
	if err != nil {
		return err
	}
	l.Command = program
	if o.Headless {
		l.Command = append(l.Command, "run", "--auto")
	}
	l.Command = append(l.Command, e.Provider.Settings.StartupArgs.V...)
	if m := l.model(e); m != "" {
		if strings.Contains(m, "/") {
			l.Command = append(l.Command, "-m", m)
		} else {
			l.Notes = append(l.Notes, e.Agent.Vendor["model"].From.String()+": model: "+m+" has no provider before it (PROVIDER/MODEL), so opencode takes its own")
		}
	}
	if o.Resume {
		l.Command = append(l.Command, "--continue")
	}
	if o.Headless {
		l.Command = append(l.Command, afterDashes(o.Prompt)...)
	}
	type object = map[string]any
	config := object{"$schema": "https://opencode.ai/config.json", "autoupdate": false, "share": "disabled", "permission": object{"*": "allow"}}
	if len(l.mcp) > 0 {
		servers := object{}
		for _, m := range l.mcp {
			servers[m.Name] = object{"type": "remote", "url": m.URL, "enabled": true, "oauth": false, "timeout": l.toolsWait * 1000}
		}
		config["mcp"] = servers
	}
	if err := l.json(".config/opencode/opencode.json", config); err != nil {
		return err
	}
	l.text(".config/opencode/AGENTS.md", e)
	l.addSkills(".config/opencode/skills")
	l.Sessions = []string{".local/share/opencode"}
	l.Env["OPENCODE_DISABLE_AUTOUPDATE"], l.Env["OPENCODE_DISABLE_SHARE"] = "1", "1"
	if !l.keyVariables() {
		l.noteKey(claudeHost, "ANTHROPIC_API_KEY", "auth_scheme: x-api-key")
	}
	return nil
}
