package agenttest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/testenv"
)

// jwt returns a token in OpenAI's form, without a signature.
func jwt(t *testing.T, secret string, expires time.Time) string {
	t.Helper()
	part := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	return part(map[string]string{"alg": "RS256", "typ": "JWT"}) + "." + part(map[string]any{
		"exp": expires.Unix(), "email": "person@example.org", "jti": secret,
		"https://api.openai.com/auth": map[string]string{"chatgpt_plan_type": "pro", "chatgpt_account_id": "acct-4711"},
	}) + "." + base64.RawURLEncoding.EncodeToString([]byte(secret))
}

// TestStartCodexSignedIn runs the real Codex with the sign-in of the Codex on the host. The access
// token has expired, so the gateway must refresh it. The bottle has neither tokens nor
// account, and the refreshed token is stored on the host.
func TestStartCodexSignedIn(t *testing.T) {
	a := agents[5]
	dir, how := a.installed()
	if dir == "" {
		if testenv.CI() {
			t.Logf("NOT RUN here: %s: %s", a.name, how)
			return
		}
		testenv.Missing(t, a.name, how)
	}
	testenv.Need(t, "node", "apt-get install nodejs")
	h := newHost(t)
	h.install(dir)
	old, fresh, refresh, next := jwt(t, newKey(t), time.Now().Add(-time.Hour)), jwt(t, newKey(t), time.Now().Add(time.Hour)), newKey(t), newKey(t)
	calc := h.ws + "/calc.js"
	server := New(t, fresh, Script{
		Steps: []Step{
			{Read: calc, Expect: "a - b"},
			{Edit: &Edit{Path: calc, Old: wrong, New: right}},
			{Run: "node test.js; cat ~/.codex/auth.json; env; curl -sS https://auth.openai.com/oauth/token -d grant_type=refresh_token", Expect: "all tests pass"},
			{Run: "git commit -qam 'calc: add adds' && git log --oneline", Expect: "calc: add adds"},
		},
		Final: final,
	})
	var refreshed atomic.Int32
	server.Others = map[string]http.HandlerFunc{
		"/oauth/token": func(rw http.ResponseWriter, r *http.Request) {
			var q map[string]string
			if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q["refresh_token"] != refresh || q["grant_type"] != "refresh_token" || q["client_id"] == "" {
				t.Errorf("asked for a token with %v", err)
				rw.WriteHeader(http.StatusUnauthorized)
				return
			}
			refreshed.Add(1)
			rw.Header().Set("Content-Type", "application/json")
			json.NewEncoder(rw).Encode(map[string]string{"access_token": fresh, "refresh_token": next, "id_token": fresh, "token_type": "Bearer"})
		},
	}
	for path, v := range map[string]any{
		"/backend-api/wham/accounts/check": object{
			"accounts":         []any{object{"id": "acct-4711", "name": "mine", "structure": "personal", "plan_type": "pro", "workspace_backend_origin": "NO_CONSTRAINT", "account_routing_override": "NO_CONSTRAINT"}},
			"account_ordering": []string{"acct-4711"}, "default_account_id": "acct-4711",
		},
		"/backend-api/codex/models": object{"models": []any{}},
	} {
		server.Others[path] = func(rw http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer "+fresh {
				t.Errorf("%s without the token", r.URL.Path)
			}
			rw.Header().Set("Content-Type", "application/json")
			json.NewEncoder(rw).Encode(v)
		}
	}
	h.vars["CODEX_REFRESH_TOKEN_URL_OVERRIDE"] = "https://" + server.Addr + "/oauth/token"
	if err := os.Mkdir(h.base+"/.codex", 0o700); err != nil {
		t.Fatal(err)
	}
	auth := h.base + "/.codex/auth.json"
	text, err := json.Marshal(map[string]any{
		"OPENAI_API_KEY": nil, "auth_mode": "chatgpt", "of_the_future": 7, "last_refresh": "2026-01-01T00:00:00Z",
		"tokens": map[string]string{"id_token": old, "access_token": old, "refresh_token": refresh, "account_id": "acct-4711"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(auth, text, 0o600); err != nil {
		t.Fatal(err)
	}
	h.manifests(t, map[string]string{
		"bottles/js.md": fmt.Sprintf("---\nagent_provider: {template: codex, forward_host_credentials: true}\negress:\n  routes: [{host: chatgpt.com, upstream: %q}]\n---\n", server.Addr),
		"agents/fix.md": "---\nbottle: js\nmodel: gpt-5-codex\n---\nBe brief, says the agent's text.\n",
	})
	h.open(t, server)
	s, out, said := h.start(t, carboy.StartOptions{Agent: "fix", Headless: true, Prompt: prompt})
	for _, p := range server.Problems() {
		t.Error(p)
	}
	if !strings.Contains(out, final) {
		t.Error("the agent did not say what the model said last: ", said)
	}
	asked := 0
	for _, r := range server.Requests() {
		if !r.Key || r.Host != "chatgpt.com" {
			t.Errorf("%s %s%s: the token was there: %v", r.Method, r.Host, r.Path, r.Key)
		}
		if got := r.Header.Get("Chatgpt-Account-Id"); got != "acct-4711" {
			t.Errorf("%s: of account %q", r.Path, got)
		}
		for _, secret := range []string{old, fresh, refresh, next, "person@example.org"} {
			if strings.Contains(string(r.Body), secret) {
				t.Errorf("%.20s… came inside", secret)
			}
		}
		if strings.Contains(string(r.Body), "put-on-outside") {
			asked++
		}
	}
	if asked == 0 {
		t.Error("the file inside, which has a placeholder, was not shown")
	}
	if n := refreshed.Load(); n != 1 {
		t.Errorf("refreshed %d times", n)
	}
	var kept struct {
		Future int `json:"of_the_future"`
		Tokens map[string]string
	}
	if err := json.Unmarshal([]byte(read(t, auth)), &kept); err != nil || kept.Future != 7 || kept.Tokens["access_token"] != fresh || kept.Tokens["refresh_token"] != next || kept.Tokens["account_id"] != "acct-4711" {
		t.Errorf("the host's file is %v: %+v", err, kept)
	}
	if fi, err := os.Stat(auth); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", fi.Mode(), err)
	}
	search := newSearch(newNeedle(fresh), newNeedle(refresh), newNeedle(next), newNeedle(old))
	search.tree(h.base, h.base+"/.codex")
	search.stream("output", strings.NewReader(said))
	for i, found := range search.found {
		if len(found) > 0 {
			t.Errorf("token %d is in %v", i, found)
		}
	}
	if _, err := h.client.Land(t.Context(), s.Receipt.ID, change.LandOptions{IncludeProtected: true}); err != nil {
		t.Errorf("land: %v", err)
	}
	if got := read(t, calc); got != right+"\n" {
		t.Errorf("calc.js after landing: %q", got)
	}
	if t.Failed() {
		t.Log(said)
	}
}
