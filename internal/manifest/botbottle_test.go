package manifest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/policy"
)

// resolved returns what a bottle in a directory of a kind comes to.
func resolved(t *testing.T, dir, front string) (*Effective, error) {
	t.Helper()
	w := newWorld(t, map[string]string{dir + "/bottles/dev.md": md(front), "config/agents/a.md": agentDev})
	return w.resolve("a")
}

const ours, theirs = "config", "home/.bot-bottle"

// TestBotBottleRoutes: routes of bot-bottle's files mean what they meant there. The same
// text in a file of carboy's own is an error, or means what docs/routes.md says.
func TestBotBottleRoutes(t *testing.T) {
	get, post := policy.Request{Method: "GET", Path: "/"}, policy.Request{Method: "POST", Path: "/x"}
	for _, x := range []struct {
		route     string
		get, post bool // allowed
		fetch     bool
		scan      policy.Scan
		own       string // what the error in carboy's own file says; empty: it is taken
		ownFetch  bool
	}{
		{route: "", get: true, post: true, ownFetch: true},
		{route: "git: {fetch: true}", get: true, post: true, fetch: true, ownFetch: true},
		{route: "git: {fetch: false}", get: true, post: true},
		{route: "matches: []", get: true, post: true, own: "an empty list"},
		{route: "matches: [{}]", get: true, post: true, own: "matches every request"},
		{route: "matches: [{methods: []}]", get: true, post: true, own: "an empty list"},
		{route: "matches: [{methods: [get], paths: [], headers: []}]", get: true, own: "an empty list"},
		{route: "matches: [{methods: [get]}]", get: true},
		{route: "matches: [{methods: [get]}, {}]", get: true, post: true, own: "matches every request"},
		{route: "dlp: {outbound_detectors: []}", get: true, post: true, scan: policy.Scan{NoTokens: true, NoSecrets: true}, own: "would look for nothing"},
		{route: "dlp: {inbound_detectors: []}", get: true, post: true, scan: policy.Scan{NoInjection: true}, own: "would look for nothing"},
		{route: "dlp: {outbound_detectors: false, outbound_on_match: block}", get: true, post: true, scan: policy.Scan{NoTokens: true, NoSecrets: true, OnMatch: policy.Block}, own: "nothing is looked for"},
		{route: "auth_scheme: Bearer, token_env: A_B", get: true, post: true},
	} {
		front := "egress: {routes: [{host: x.example, " + x.route + "}]}"
		for dir, fetch := range map[string]bool{ours: x.ownFetch, theirs: x.fetch} {
			e, err := resolved(t, dir, front)
			if dir == ours && x.own != "" {
				if err == nil || !strings.Contains(err.Error(), x.own) {
					t.Errorf("%s: %s: %v, want %q", dir, x.route, err, x.own)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %s: %v", dir, x.route, err)
				continue
			}
			r := e.Egress.Routes[0].Route
			table, err := policy.Compile(r)
			if err != nil {
				t.Fatal(err)
			}
			if got := table.DecideRequest("x.example", 443, &get).Allowed; got != x.get {
				t.Errorf("%s: %s: GET %t", dir, x.route, got)
			}
			if got := table.DecideRequest("x.example", 443, &post).Allowed; got != x.post {
				t.Errorf("%s: %s: POST %t", dir, x.route, got)
			}
			if r.Fetches() != fetch || r.Options().Scan != x.scan {
				t.Errorf("%s: %s: git fetches %t, scan %+v", dir, x.route, r.Fetches(), r.Options().Scan)
			}
		}
	}
	for _, bad := range []string{
		"matches: [{methods: [GTE]}]", "matches: [{methods: ['']}]", "matches: [{headers: [{name: '', value: x}]}]", "auth_scheme: Digest, token_env: A_B", "auth_scheme: Bearer",
		"matches: [{paths: [{value: ''}]}]", "matches: {}", "dlp: {outbound_detectors: [tokens]}",
	} {
		if e, err := resolved(t, theirs, "egress: {routes: [{host: x.example, "+bad+"}]}"); err == nil {
			t.Errorf("%s: taken as %+v", bad, e.Egress.Routes)
		}
	}
	// What nobody sees into has nothing to say about git.
	if e, err := resolved(t, theirs, "egress: {routes: [{host: 'x.example:22/tcp'}, {host: y.example, inspect: false}]}"); err != nil || len(e.Egress.Routes) != 2 {
		t.Errorf("%v", err)
	}
}

// TestBotBottleOrder: routes of what a bottle of bot-bottle extends come first, in the order
// of the list, and equal ones once. A bottle of carboy's own comes before them.
func TestBotBottleOrder(t *testing.T) {
	route := func(host, path string) string {
		return fmt.Sprintf("{host: %s, matches: [{paths: [{value: %s}]}]}", host, path)
	}
	files := map[string]string{
		theirs + "/bottles/a.md":     md("egress: {routes: [{host: a.example}, " + route("x.example", "/a") + "]}"),
		theirs + "/bottles/b.md":     md("extends: a\negress: {routes: [{host: b.example}, {host: a.example}]}"),
		theirs + "/bottles/c.md":     md("extends: [b, a]\negress: {routes: [" + route("x.example", "/c") + ", {host: a.example, dlp: {outbound_on_match: block}}]}"),
		theirs + "/bottles/plain.md": md("extends: c"),
		ours + "/bottles/mine.md":    md("extends: c\negress: {routes: [{host: mine.example}]}"),
		theirs + "/bottles/over.md":  md("extends: mine\negress: {routes: [{host: over.example}]}"),
		ours + "/agents/x.md":        md("bottle: c"),
	}
	w := newWorld(t, files)
	for _, x := range []struct {
		bottles []string
		want    string
	}{
		{[]string{"b"}, "a.example x.example/a b.example"},
		{[]string{"c"}, "a.example x.example/a b.example x.example/c a.example"},
		{[]string{"plain"}, "a.example x.example/a b.example x.example/c a.example"},
		{[]string{"a", "b"}, "a.example x.example/a b.example"},
		{[]string{"mine"}, "mine.example a.example x.example/a b.example x.example/c a.example"},
		{[]string{"over"}, "mine.example a.example x.example/a b.example x.example/c a.example over.example"},
	} {
		e, err := w.resolve("x", x.bottles...)
		if err != nil {
			t.Errorf("%v: %v", x.bottles, err)
			continue
		}
		var got []string
		for _, r := range e.Egress.Routes {
			s := r.Route.String()
			for _, m := range r.Options().Matches {
				s += m.Paths[0].Value()
			}
			got = append(got, s)
		}
		if strings.Join(got, " ") != x.want {
			t.Errorf("%v: %v, want %s", x.bottles, got, x.want)
		}
	}
	// The same texts as files of carboy's own: the later ones first.
	own := map[string]string{}
	for name, text := range files {
		own[strings.Replace(name, theirs, ours, 1)] = text
	}
	if e := newWorld(t, own).mustResolve("x", "b"); e.Egress.Routes[0].Host() != "b.example" {
		t.Errorf("%v", e.Egress.Routes)
	}
}

// TestBotBottleValues: a variable without a value is empty, and an empty argument is refused
// everywhere.
func TestBotBottleValues(t *testing.T) {
	e, err := resolved(t, theirs, "env: {X: , Y: '', Z: z}")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"X": "", "Y": "", "Z": "z"} {
		if v, ok := e.Env[name]; !ok || v.V != want || v.From.Line != 2 {
			t.Errorf("%s: %+v", name, v)
		}
	}
	if _, err := resolved(t, ours, "env: {X: }"); err == nil || !strings.Contains(err.Error(), "env.X: has no value") {
		t.Errorf("%v", err)
	}
	if _, err := resolved(t, theirs, "env: {X: [a]}"); err == nil {
		t.Error("a list is a variable's value")
	}
	for _, dir := range []string{ours, theirs} {
		if _, err := resolved(t, dir, "agent_provider: {settings: {startup_args: [--model, '']}}"); err == nil || !strings.Contains(err.Error(), "startup_args[1]: is empty") {
			t.Errorf("%s: %v", dir, err)
		}
		e, err := resolved(t, dir, "agent_provider: {settings: {startup_args: [--model, x]}}")
		if err != nil || !slices.Equal(e.Provider.Settings.StartupArgs.V, []string{"--model", "x"}) {
			t.Errorf("%s: %v", dir, err)
		}
		e, err = resolved(t, dir, "agent_provider: {template: pi, settings: {supports_developer_role: false, models: [m], provider: p}}")
		if err != nil || !e.Provider.Settings.Pi.SupportsDeveloperRole.IsSet() || find(t, e, "agent_provider.settings.supports_developer_role").Value != false {
			t.Errorf("%s: %v", dir, err)
		}
		if _, err := resolved(t, dir, "agent_provider: {template: claude, settings: {supports_developer_role: true}}"); err == nil || !strings.Contains(err.Error(), "belongs to the template pi") {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// TestStaleInDirectory: a bot-bottle.json of the current directory is said, also where that
// is why an agent is not found.
func TestStaleInDirectory(t *testing.T) {
	w := newWorld(t, map[string]string{"config/bottles/dev.md": md(""), "config/agents/a.md": agentDev})
	said := func() bool {
		return slices.ContainsFunc(w.mustResolve("a").Warnings, func(p document.Problem) bool {
			return p.File == w.path("repo/bot-bottle.json") && strings.Contains(p.What, "of the old form")
		})
	}
	const words = "bot-bottle.json is a manifest of the old form"
	if said() {
		t.Error("what is not there is said")
	}
	if _, err := w.resolve("none"); err == nil || strings.Contains(err.(*MissingError).Advice, words) {
		t.Errorf("%v", err)
	}
	w.write("repo/bot-bottle.json", "{}")
	if !said() {
		t.Error("it is not said")
	}
	w.refuse(words, "none")
	w.mkdir("repo/.bot-bottle/agents")
	if !said() {
		t.Error("it is not said beside its directory")
	}
}
