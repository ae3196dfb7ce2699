package carboy

import (
	"strings"

	"github.com/carboy/carboy/internal/manifest"
)

const geminiHost = "generativelanguage.googleapis.com"

// launchGemini starts Gemini CLI, with an API key.
func launchGemini(c *Client, e *manifest.Effective, o *StartOptions, l *launch) error {
	program, err := l.program(c, e, o, "gemini", "@google/gemini-cli")
	if err != nil {
		return err
	}
	l.command = append(append(program, "--yolo", "--skip-trust"), e.Provider.Settings.StartupArgs.V...)
	if m := l.model(e); m != "" {
		l.command = append(l.command, "-m", m)
	}
	if o.resume {
		l.command = append(l.command, "--resume", "latest")
	}
	switch {
	case o.Headless && strings.HasPrefix(o.Prompt, "-"):
		l.command = append(l.command, "--prompt="+o.Prompt)
	case o.Headless:
		l.command = append(l.command, "-p", o.Prompt)
	}
	type object = map[string]any
	settings := object{
		"general":   object{"enableAutoUpdate": false, "enableAutoUpdateNotification": false},
		"privacy":   object{"usageStatisticsEnabled": false},
		"telemetry": object{"enabled": false},
		"security":  object{"auth": object{"selectedType": "gemini-api-key"}, "folderTrust": object{"enabled": false}},
	}
	if len(l.mcp) > 0 {
		servers := object{}
		for _, m := range l.mcp {
			servers[m.name] = object{"httpUrl": m.url, "trust": true, "timeout": toolsWait * 1000}
		}
		settings["mcpServers"] = servers
	}
	if err := l.json(".gemini/settings.json", settings); err != nil {
		return err
	}
	l.text(".gemini/GEMINI.md", e)
	l.addSkills(".gemini/skills")
	l.sessions = []string{".gemini/tmp", ".gemini/projects.json"}
	l.env["GEMINI_SANDBOX"] = "false"
	l.keyVariables()
	if !l.keyed(geminiHost) {
		l.noteKey(geminiHost, "GEMINI_API_KEY", "auth_scheme: header, auth_field: x-goog-api-key")
	}
	return nil
}
