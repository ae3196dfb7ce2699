package carboy

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/carboy/carboy/internal/agent"
	"github.com/carboy/carboy/internal/bottles"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/testenv"
)

// toolServer is a server of one tool, by streamable HTTP (MCP).
func toolServer(t *testing.T, tool string) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params struct {
				Version string `json:"protocolVersion"`
			} `json:"params"`
		}
		if r.Method != http.MethodPost || json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&q) != nil {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		type object = map[string]any
		var result object
		switch q.Method {
		case "initialize":
			result = object{"protocolVersion": q.Params.Version, "capabilities": object{"tools": object{}}, "serverInfo": object{"name": "t", "version": "1"}}
		case "tools/list":
			result = object{"tools": []any{object{"name": tool, "description": "says that the work is done", "inputSchema": object{"type": "object", "properties": object{}}}}}
		}
		if result == nil {
			if len(q.ID) > 0 {
				result = object{}
			} else {
				w.WriteHeader(http.StatusAccepted)
				return
			}
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(object{"jsonrpc": "2.0", "id": q.ID, "result": result})
	}))
	t.Cleanup(srv.Close)
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// TestToolsAreFound: each real agent that is installed finds the server of tools that
// it is told of, and offers its tool to the model.
func TestToolsAreFound(t *testing.T) {
	const tool = "signal_done_4711"
	for _, x := range []struct{ template, dir, model, bottle, route string }{
		{"claude", "claude-code", "claude-sonnet-4-5", ", auth_token: MINE", "host: api.anthropic.com"},
		{"codex", "codex", "gpt-5-codex", "", "host: api.openai.com, token_env: MINE, auth_scheme: bearer"},
		{"gemini", "gemini-cli", "gemini-2.5-pro", "", "host: generativelanguage.googleapis.com, token_env: MINE, auth_scheme: header, auth_field: x-goog-api-key"},
		{"opencode", "opencode-ai", "anthropic/claude-sonnet-4-5", "", "host: api.anthropic.com, token_env: MINE, auth_scheme: x-api-key"},
	} {
		bin := filepath.Join(os.Getenv("CARBOY_TEST_AGENTS"), x.dir, "node_modules/.bin")
		_, err := os.Stat(bin)
		missing := os.Getenv("CARBOY_TEST_AGENTS") == "" || err != nil
		if missing && testenv.CI() { // .ci/run has said so
			t.Logf("NOT RUN here: %s", x.dir)
			continue
		}
		t.Run(x.template, func(t *testing.T) {
			if missing {
				testenv.Missing(t, x.dir, "internal/agenttest/install.sh DIRECTORY "+x.dir+", then run the test with CARBOY_TEST_AGENTS=DIRECTORY")
			}
			testenv.Need(t, "node", "apt-get install nodejs")
			var mu sync.Mutex
			offered, asked := false, 0
			vendor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(io.LimitReader(r.Body, 8<<20))
				mu.Lock()
				asked++
				offered = offered || strings.Contains(string(b), tool)
				mu.Unlock()
				w.Header().Set("Content-Type", "application/json")
				if r.Method == http.MethodGet { // codex asks for a WebSocket first
					w.WriteHeader(http.StatusUpgradeRequired)
					return
				}
				w.WriteHeader(http.StatusBadRequest)
				io.WriteString(w, `{"type":"error","error":{"type":"invalid_request_error","code":400,"status":"INVALID_ARGUMENT","message":"this is all"}}`)
			}))
			defer vendor.Close()
			port := toolServer(t, tool)
			w := agents(t, map[string]string{"MINE": "sk-0123456789abcdef0123", "PATH": bin + ":" + os.Getenv("PATH")}, map[string]string{
				".config/carboy/bottles/b.md": "---\nagent_provider: {template: " + x.template + x.bottle + "}\negress:\n  routes:\n    - {" + x.route + ", upstream: '" + vendor.URL + "'}\n    - {host: '" + policy.HostGateway + ":" + port + "', private: true}\n---\n",
				".config/carboy/agents/a.md":  "---\nbottle: b\nmodel: " + x.model + "\n---\n",
			})
			var out strings.Builder
			_, err := w.c.Start(t.Context(), bottles.StartOptions{
				Agent: "a", Dir: w.ws, Headless: true, Prompt: "go", Stdout: &out, Stderr: &out,
				Mcp: []agent.MCPServer{{Name: "supervise", URL: "http://" + policy.HostGateway + ":" + port + "/mcp"}},
			})
			mu.Lock()
			defer mu.Unlock()
			if !offered {
				t.Errorf("not offered in %d requests: %v\n%.3000s", asked, err, out.String())
			}
		})
	}
}
