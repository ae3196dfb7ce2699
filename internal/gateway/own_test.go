package gateway

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/klauspost/compress/zstd"
)

const ownRoutes = `routes:
  - host: api.example.com
    token_env: KEY
    own_credentials: [X-Hook-Secret, client_secret]
    matches: [{paths: [{value: /allowed}]}]
  - host: api.example.com
    token_env: KEY
    dlp: {outbound_detectors: false, inbound_detectors: false}
    matches: [{paths: [{value: /unseen}]}]
  - {host: api.example.com, token_env: KEY, matches: [{paths: [{value: /v1}]}]}
  - {host: api.example.com}
`

func coded(open func(io.Writer) io.WriteCloser, s string) string {
	var b bytes.Buffer
	w := open(&b)
	io.WriteString(w, s)
	w.Close()
	return b.String()
}

// TestOwnCredentials: on a route with a credential, upstream sees none of the agent's own
// by its name: in headers and parameters it is removed, and a body is refused, before
// anything of it is sent. A route may allow names, and one without a credential changes
// nothing.
func TestOwnCredentials(t *testing.T) {
	var mu sync.Mutex
	got := map[string]string{}
	_, c, with := keyed(t, reflectedKey)
	o := newTLSWorld(t, ownRoutes, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got[r.Header.Get("X-Case")] = fmt.Sprint(r.Header, r.URL.RawQuery, string(b))
	}), with)
	refused := []string{}
	const (
		form  = "application/x-www-form-urlencoded"
		j     = "application/json"
		multi = "multipart/form-data; boundary=next"
		own   = "agents-own"
	)
	large := `{"text":"` + strings.Repeat("some words, ", 20000) + `",`
	zip := func(s string) string {
		return coded(func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }, s)
	}
	for i, x := range []struct {
		path, header, kind, coding, body string
		// sees: the value reaches upstream. refused: the body does not.
		sees, refused bool
	}{
		{path: "/v1?xi-api-key=" + own, header: "Dd-Api-Key"},
		{path: "/v1?client_secret=" + own, header: "X-Hook-Secret"},
		{path: "/v1", kind: j, body: `{"client_secret":"` + own + `"}`, refused: true},
		{path: "/v1", kind: form, body: "grant_type=x&client_secret=" + own, refused: true},
		{path: "/v1", kind: j, coding: "gzip", body: zip(`{"api_key":"` + own + `"}`), refused: true},
		{path: "/v1", kind: j, body: large + `"api_key":"` + own + `"}`, refused: true},
		{path: "/v1", kind: j, coding: "gzip", body: zip(large + `"api_key":"` + own + `"}`), refused: true},
		{path: "/unseen", kind: j, body: `{"client_secret":"` + own + `"}`, header: "X-Token", refused: true},
		{path: "/v1", kind: j, body: large + `"a":{"b":[{"api_key":"` + own + `"}]}}`, refused: true},
		{path: "/v1", kind: form, body: "a%5Bb%5D%5Bapi_key%5D=" + own + "&b=}", refused: true},
		{path: "/v1", kind: multi, body: partOf("api_key", own) + "}", refused: true},
		{path: "/v1", kind: multi, coding: "gzip", body: zip(partOf("note", large) + partOf("api_key", own) + "}"), refused: true},
		{path: "/unseen", kind: multi, body: partOf("note", large) + partOf("api_key", own) + "}", refused: true},
		{path: "/unseen", kind: j, coding: "gzip", body: zip(large + `"api_key":"` + own + `"}`), refused: true},
		{path: "/v1", kind: "image/png", body: `{"api_key":"` + own + `"}`, refused: true},
		{path: "/v1", header: "Sec-Websocket-Protocol: realtime, openai-insecure-api-key." + own},
		{path: "/v1", header: "Authorization-Bin"},
		// Beside them.
		{path: "/v1", kind: j, body: `{"messages":[{"input":{"token":"` + own + `"}}],"a":{"page":{"token":"` + own + `"},"sort_key":"` + own + `"}}`, sees: true},
		{path: "/v1", kind: multi, body: partOf("page_token", own) + partOf(`x"; filename="x.json`, `{"api_key":"`+own+`"}`), sees: true},
		{path: "/unseen", kind: j, coding: "gzip", body: zip(large + `"sort_key":"x","max_tokens":1}`), header: "X-Max-Tokens", sees: true},
		{path: "/v1?page_token=" + own, header: "Idempotency-Key", kind: j, body: large + `"max_tokens":1,"page_token":"x","client_secret":"` + c.Placeholder() + `"}`, sees: true},
		{path: "/v1", kind: form, body: "page_token=" + own, sees: true},
		{path: "/allowed?client_secret=" + own, header: "x-hook-secret", kind: j, body: `{"client_secret":"` + own + `"}`, sees: true},
		{path: "/other?client_secret=" + own, header: "X-Token", kind: j, body: `{"client_secret":"` + own + `"}`, sees: true},
		{path: "/unseen?page_token=" + own, kind: j, body: `{"page_token":"x"}`, sees: true},
	} {
		for _, h2 := range []bool{false, true} {
			for _, known := range []bool{true, false} {
				body := io.Reader(strings.NewReader(x.body))
				if !known {
					body = struct{ io.Reader }{body} // of unknown length
				}
				req, _ := http.NewRequest("POST", "https://api.example.com"+x.path, body)
				id := fmt.Sprint(i, h2, known)
				req.Header.Set("X-Case", id)
				if name, value, ok := strings.Cut(x.header, ": "); ok {
					req.Header.Set(name, value)
				} else if x.header != "" {
					req.Header.Set(x.header, own)
				}
				if x.kind != "" {
					req.Header.Set("Content-Type", x.kind)
				}
				if x.coding != "" {
					req.Header.Set("Content-Encoding", x.coding)
				}
				if x.refused {
					refused = append(refused, id)
				}
				res, err := o.client(h2).Do(req)
				what := fmt.Sprintf("%s %s %.60q (HTTP/2 %v, length %v)", x.path, x.header, x.body, h2, known)
				if err != nil {
					if x.refused {
						continue // cut while it was sent
					}
					t.Fatalf("%s: %v", what, err)
				}
				text, _ := io.ReadAll(res.Body)
				res.Body.Close()
				if x.refused {
					if res.StatusCode != 403 || !strings.Contains(string(text), "own_credentials: [") || res.Header.Get("Carboy-Refused") != string(reasonCredential) {
						t.Errorf("%s: %d %s", what, res.StatusCode, text)
					}
					continue
				}
				mu.Lock()
				seen := got[id]
				mu.Unlock()
				if res.StatusCode != 200 || strings.Contains(seen, own) != x.sees || x.sees && !strings.Contains(seen, x.body) {
					t.Errorf("%s: %d %s; upstream saw %.300s", what, res.StatusCode, text, seen)
				}
			}
		}
	}
	o.server.Close() // all requests have ended
	for _, id := range refused {
		if seen := got[id]; strings.Contains(seen, own) || strings.Contains(seen, "}") {
			t.Errorf("of case %s, which was refused, upstream saw %.300s", id, seen)
		}
	}
}

// partOf returns a part of a multipart body.
func partOf(name, value string) string {
	return "\r\n--next\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value
}

// TestOwnCredentialAsked: a person is asked about the name of a field before anything has
// left, and the answer holds for it alone. Nobody is asked about honest fields.
func TestOwnCredentialAsked(t *testing.T) {
	up := &recordingUpstream{}
	var now atomic.Value // Ruling
	p := &person{}
	p.answer = func(_ context.Context, h Held) Answer {
		up.mu.Lock()
		defer up.mu.Unlock()
		if strings.Contains(up.got.String(), "agents-own") {
			t.Errorf("left before the answer: %.200q", up.got.String())
		}
		return Answer{Ruling: now.Load().(Ruling), Message: "said somebody"}
	}
	_, _, with := keyed(t, reflectedKey)
	o := newTLSWorld(t, `routes:
  - {host: api.example.com, token_env: KEY, matches: [{paths: [{value: /v1}]}]}
  - {host: api.example.com, token_env: KEY, dlp: {outbound_detectors: false}}
`, up, with, p.option)
	digests := map[string]string{}
	for _, path := range []string{"/v1", "/unseen"} {
		for _, x := range []struct{ kind, body, field string }{
			{"application/json", `{"api_key":"agents-own"}`, "api_key"},
			{"application/json", `{"a":[{"api_key":"agents-own"}]}`, "api_key"},
			{"application/x-www-form-urlencoded", "client_secret=agents-own", "client_secret"},
			{"multipart/form-data; boundary=next", partOf("token", "agents-own"), "token"},
			{"application/json", `{"page_token":"agents-own"}`, ""},
		} {
			for _, ruling := range []Ruling{RulingPass, rulingBlock, RulingMask} {
				now.Store(ruling)
				res, err := o.client(true).Post("https://api.example.com"+path, x.kind, strings.NewReader(x.body))
				status, text := 0, []byte(nil)
				if err == nil {
					status = res.StatusCode
					text, _ = io.ReadAll(res.Body)
					res.Body.Close()
				}
				asked, got, what := p.take(), up.take(), fmt.Sprintf("%s%s, ruling %d: %d %s", path, x.body, ruling, status, text)
				if x.field == "" {
					if len(asked) != 0 || status != 200 {
						t.Errorf("%s: asked %v", what, asked)
					}
					continue
				}
				if len(asked) != 1 || asked[0].What != ownCredential || !strings.Contains(asked[0].Place, x.field) {
					t.Fatalf("%s: asked %+v", what, asked)
				}
				if d := digests[x.field]; d != "" && d != asked[0].Digest {
					t.Errorf("%s: another digest", what)
				}
				digests[x.field] = asked[0].Digest
				if passed := status == 200 && strings.Contains(got, x.body); passed != (ruling == RulingPass) {
					t.Errorf("%s: upstream saw %.200q", what, got)
				}
				if ruling == rulingBlock && path == "/v1" && (status != 403 || !strings.Contains(string(text), "said somebody")) {
					t.Error(what)
				}
			}
		}
	}
	if digests["token"] == digests["api_key"] {
		t.Error("names are not told apart")
	}
}

// vendorRequests are requests as programs of the vendors send them: their headers, and
// the fields of their bodies.
var vendorRequests = []struct{ name, path, header, body string }{
	{"Claude Code", "/v1/messages?beta=true", `Accept: application/json
Anthropic-Beta: claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27
Anthropic-Dangerous-Direct-Browser-Access: true
Anthropic-Version: 2023-06-01
Content-Type: application/json
User-Agent: claude-cli/2.1.329 (external, sdk-cli)
X-App: cli
X-Claude-Code-Session-Id: 28844342-e286-4f10-9834-0657c3374d76
X-Stainless-Arch: x64
X-Stainless-Lang: js
X-Stainless-OS: Linux
X-Stainless-Package-Version: 0.128.0
X-Stainless-Retry-Count: 0
X-Stainless-Runtime: node
X-Stainless-Runtime-Version: v26.12.1
X-Stainless-Timeout: 600`, `{"model":"claude-sonnet-4-5","max_tokens":32000,"stream":true,"metadata":{"user_id":"{\"device_id\":\"0ddb\",\"session_id\":\"2884\"}"},"output_config":{"effort":"medium"},"system":[{"type":"text","text":"You are","cache_control":{"type":"ephemeral"}}],"thinking":{"type":"adaptive","display":"omitted"},"context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]},"tools":[{"name":"login","input_schema":{"type":"object","properties":{"token":{"type":"string"},"api_key":{"type":"string","default":"x"}},"required":["token"]}}],"messages":[{"role":"user","content":"my api_key is \"x\""},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"login","input":{"token":"a","password":"b","client_secret":"c"}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"{\"token\":\"x\"}"}]}]}`},
	{"count_tokens", "/v1/messages/count_tokens?beta=true", "Anthropic-Version: 2023-06-01\nContent-Type: application/json", `{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[]}`},
	{"Codex", "/v1/responses", `Accept: text/event-stream
Content-Type: application/json
Conversation_id: 0199
Openai-Beta: responses=experimental
Originator: codex_cli_rs
Session_id: 0199
X-Codex-Turn-Metadata: {"turn_id":"1"}
Version: 0.169.0`, `{"model":"gpt-5-codex","instructions":"You are","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"x"}]},{"type":"function_call","name":"login","arguments":"{\"token\":\"x\"}","call_id":"c"},{"type":"function_call_output","call_id":"c","output":"{\"secret\":\"x\"}"},{"type":"reasoning","encrypted_content":"gAAA"}],"tools":[{"type":"function","name":"login","parameters":{"type":"object","properties":{"token":{"type":"string"}}},"strict":false}],"tool_choice":"auto","parallel_tool_calls":false,"reasoning":{"effort":"medium"},"store":false,"stream":true,"include":["reasoning.encrypted_content"],"prompt_cache_key":"0199","client_metadata":{"x-codex-installation-id":"1"}}`},
	{"chat completions", "/v1/chat/completions", "Content-Type: application/json\nOpenai-Organization: org-1\nOpenai-Project: proj_1\nHttp-Referer: https://opencode.ai/\nX-Title: opencode\nX-Session-Affinity: s", `{"model":"gpt-5","max_tokens":1,"max_completion_tokens":2,"n":1,"stop":["x"],"logit_bias":{"50256":-100},"user":"u","safety_identifier":"s","prompt_cache_key":"k","response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"properties":{"auth":{"type":"string"}}}}},"messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"key\":\"x\",\"token\":\"y\"}"}}]},{"role":"tool","tool_call_id":"1","content":"z"}],"stream_options":{"include_usage":true}}`},
	{"Gemini", "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse", "Content-Type: application/json\nX-Goog-Api-Client: google-genai-sdk/1.16.0 gl-node/v22\nUser-Agent: GeminiCLI/0.61.0", `{"contents":[{"role":"user","parts":[{"text":"x"}]},{"role":"model","parts":[{"thoughtSignature":"CpQ","functionCall":{"name":"login","args":{"token":"x","api_key":"y"}}}]},{"role":"user","parts":[{"functionResponse":{"name":"login","response":{"token":"z"}}}]}],"systemInstruction":{"parts":[{"text":"You are"}]},"tools":[{"functionDeclarations":[{"name":"login","parametersJsonSchema":{"properties":{"token":{"type":"string"}}}}]}],"toolConfig":{"functionCallingConfig":{"mode":"AUTO"}},"generationConfig":{"maxOutputTokens":8192,"stopSequences":["x"],"thinkingConfig":{"includeThoughts":true}},"cachedContent":"c","session_id":"s"}`},
	{"countTokens", "/v1beta/models/gemini-2.5-pro:countTokens", "Content-Type: application/json", `{"contents":[{"parts":[{"text":"x"}]}],"generateContentRequest":{"model":"m"}}`},
}

// TestVendorRequests: what agents' programs send to their vendors arrives unchanged but
// for the credential.
func TestVendorRequests(t *testing.T) {
	type arrived struct {
		header http.Header
		uri    string
		sum    [32]byte
	}
	got := make(chan arrived, 1)
	_, c, with := keyed(t, reflectedKey)
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com, token_env: KEY}\n", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- arrived{r.Header, r.URL.RequestURI(), sha256.Sum256(b)}
	}), with)
	for _, x := range vendorRequests {
		for _, coding := range []string{"", "zstd", "gzip"} {
			body := x.body
			switch coding {
			case "zstd":
				body = coded(func(w io.Writer) io.WriteCloser { z, _ := zstd.NewWriter(w); return z }, body)
			case "gzip":
				body = zipped(body)
			}
			for _, known := range []bool{true, false} {
				in := io.Reader(strings.NewReader(body))
				if !known {
					in = struct{ io.Reader }{in}
				}
				req, _ := http.NewRequest("POST", "https://api.example.com"+x.path, in)
				want := http.Header{}
				for line := range strings.Lines(x.header) {
					name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
					req.Header.Set(name, value)
					want.Set(name, value)
				}
				if coding != "" {
					req.Header.Set("Content-Encoding", coding)
				}
				req.Header.Set("Authorization", "Bearer "+c.Placeholder())
				req.Header.Set("X-Api-Key", c.Placeholder())
				res, err := o.client(true).Do(req)
				if err != nil {
					t.Fatalf("%s: %v", x.name, err)
				}
				text, _ := io.ReadAll(res.Body)
				if res.Body.Close(); res.StatusCode != 200 {
					t.Fatalf("%s %s: %d %s", x.name, coding, res.StatusCode, text)
				}
				a := <-got
				if a.uri != x.path || a.sum != sha256.Sum256([]byte(body)) || a.header.Get("Authorization") != "Bearer "+reflectedKey || a.header.Get("X-Api-Key") != "" {
					t.Errorf("%s %s: %s %v", x.name, coding, a.uri, a.header)
				}
				for _, name := range slices.Sorted(maps.Keys(want)) {
					if a.header.Get(name) != want.Get(name) {
						t.Errorf("%s %s: %s is %q", x.name, coding, name, a.header.Get(name))
					}
				}
			}
		}
	}
}
