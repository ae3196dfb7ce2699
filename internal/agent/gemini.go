package agent

import (
	"strings"

	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/manifest"
)

const geminiHost = "generativelanguage.googleapis.com"

func init() {
	register(manifest.Template{
		Name: "gemini", StartupArgs: true,
		Settings: "  # settings: {startup_args: []}\n",
		Route:    "    - {host: generativelanguage.googleapis.com, auth_scheme: header, auth_field: x-goog-api-key, token_env: GEMINI_API_KEY}\n",
	}, launchGemini)
}

// launchGemini starts Gemini CLI with an API key.
func launchGemini(c *host.Host, e *manifest.Effective, o *Options, l *Launch) error {
	l.models = []string{geminiHost}
	program, err := l.program(c, e, o, "gemini", "@google/gemini-cli")
	if err != nil {
		return err
	}
	l.Command = append(append(program, "--yolo", "--skip-trust"), e.Provider.Settings.StartupArgs.V...)
	if m := l.model(e); m != "" {
		l.Command = append(l.Command, "-m", m)
	}
	if o.Resume {
		l.Command = append(l.Command, "--resume", "latest")
	}
	switch {
	case o.Headless && strings.HasPrefix(o.Prompt, "-"):
		l.Command = append(l.Command, "--prompt="+o.Prompt)
	case o.Headless:
		l.Command = append(l.Command, "-p", o.Prompt)
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
			servers[m.Name] = object{"httpUrl": m.URL, "trust": true, "timeout": l.toolsWait * 1000}
		}
		settings["mcpServers"] = servers
	}
	if err := l.json(".gemini/settings.json", settings); err != nil {
		return err
	}
	l.text(".gemini/GEMINI.md", e)
	l.addSkills(".gemini/skills")
	l.Sessions = []string{".gemini/tmp", ".gemini/projects.json"}
	l.Env["GEMINI_SANDBOX"] = "false"
	l.keyVariables()
	if !l.keyed(geminiHost) {
		l.noteKey(geminiHost, "GEMINI_API_KEY", "auth_scheme: header, auth_field: x-goog-api-key")
	}
	return nil
}
