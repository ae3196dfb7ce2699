package receipt

import "testing"

func TestIsTelemetry(t *testing.T) {
	for name, want := range map[string]bool{
		"statsig.anthropic.com": true, "o1.ingest.us.sentry.io": true, "Sentry.IO.": true,
		"api.anthropic.com": false, "anthropic.com": false, "notsentry.io": false, "io": false, "": false,
	} {
		if IsTelemetry(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}
