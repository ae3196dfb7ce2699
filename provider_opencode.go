package carboy

import (
	"strings"

	"github.com/carboy/carboy/internal/manifest"
)

// launchOpencode starts opencode, with the API key of whichever vendor.
func launchOpencode(c *Client, e *manifest.Effective, o *StartOptions, l *launch) error {
	program, err := l.program(c, e, o, "opencode", "opencode-ai")
	if err != nil {
		return err
	}
	l.command = program
	if o.Headless {
		l.command = append(l.command, "run", "--auto")
	}
	l.command = append(l.command, e.Provider.Settings.StartupArgs.V...)
	if m := l.model(e); m != "" {
		if strings.Contains(m, "/") {
			l.command = append(l.command, "-m", m)
		} else {
			l.notes = append(l.notes, e.Agent.Vendor["model"].From.String()+": model: "+m+" has no provider before it (PROVIDER/MODEL), so opencode takes its own")
		}
	}
	if o.resume {
		l.command = append(l.command, "--continue")
	}
	if o.Headless {
		l.command = append(l.command, afterDashes(o.Prompt)...)
	}
	type object = map[string]any
	config := object{"$schema": "https://opencode.ai/config.json", "autoupdate": false, "share": "disabled", "permission": object{"*": "allow"}}
	if len(l.mcp) > 0 {
		servers := object{}
		for _, m := range l.mcp {
			servers[m.name] = object{"type": "remote", "url": m.url, "enabled": true, "oauth": false, "timeout": toolsWait * 1000}
		}
		config["mcp"] = servers
	}
	if err := l.json(".config/opencode/opencode.json", config); err != nil {
		return err
	}
	l.text(".config/opencode/AGENTS.md", e)
	l.addSkills(".config/opencode/skills")
	l.sessions = []string{".local/share/opencode"}
	l.env["OPENCODE_DISABLE_AUTOUPDATE"], l.env["OPENCODE_DISABLE_SHARE"] = "1", "1"
	if !l.keyVariables() {
		l.noteKey(claudeHost, "ANTHROPIC_API_KEY", "auth_scheme: x-api-key")
	}
	return nil
}
