package receipt

import "strings"

// telemetry holds names to which programs report their own use and crashes, with the source
// of each. A name stands for all below it. The agents' were seen in the programs themselves,
// or in their sources.
var telemetry = map[string]string{
	"statsig.anthropic.com":              "Claude Code: code.claude.com/docs/en/data-usage",
	"http-intake.logs.us5.datadoghq.com": "Claude Code 2.1: in its program",
	"browser-intake-us5-datadoghq.com":   "Claude Code 2.1: in its program",
	"sentry.io":                          "Claude Code, Codex, opencode: crash reports; docs.sentry.io",
	"ab.chatgpt.com":                     "Codex: codex-rs/config/src/types.rs, the metrics exporter's default",
	"play.googleapis.com":                "Gemini CLI: packages/core/src/telemetry, Clearcut",
	"telemetry.go.dev":                   "Go: go.dev/doc/telemetry",
	"telemetry.nextjs.org":               "Next.js: nextjs.org/telemetry",
	"dc.services.visualstudio.com":       "the .NET SDK: learn.microsoft.com/dotnet/core/tools/telemetry",
}

// IsTelemetry reports whether programs send telemetry to the name, which they do without.
func IsTelemetry(name string) bool {
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	for {
		if _, ok := telemetry[name]; ok {
			return true
		}
		_, above, more := strings.Cut(name, ".")
		if !more {
			return false
		}
		name = above
	}
}
