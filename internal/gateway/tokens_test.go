package gateway

import (
	"compress/gzip"
	"io"
	"net/http"
	"testing"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/tokens"
)

// TestTokensAreCounted: the token usage in answers to requests with a credential is
// counted, also if they are cut off, and no answer is changed. Answers to requests
// without one count for nothing.
func TestTokensAreCounted(t *testing.T) {
	want := policy.Credential{Scheme: credential.Bearer, Env: "KEY"}
	c, err := credential.Open("key", want, secret.NewString("the-real-key-4711"))
	if err != nil {
		t.Fatal(err)
	}
	const (
		one    = `{"content":[{"text":"\"usage\":{\"input_tokens\":1000}"}],"usage":{"input_tokens":3,"cache_read_input_tokens":40,"output_tokens":5}}`
		events = "data: {\"message\":{\"usage\":{\"input_tokens\":11,\"output_tokens\":1}}}\n\ndata: {\"delta\":{\"text\":\"x\"}}\n\ndata: {\"usage\":{\"output_tokens\":20}}\n\n"
	)
	passed := make(chan struct{}) // when the answer is cut off
	o := newTLSWorld(t, "routes:\n  - {host: api.example.com, token_env: KEY, matches: [{paths: [{value: /v1}]}]}\n  - {host: api.example.com}\n", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, out := one, io.Writer(rw)
		rw.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/v1/events", "/v1/cut":
			body = events
			rw.Header().Set("Content-Type", "text/event-stream")
		case "/v1/lies":
			body = `{"usage":{"input_tokens":-5,"output_tokens":9999999999999}}`
		case "/v1/page":
			rw.Header().Set("Content-Type", "text/html")
		case "/v1/gzip":
			rw.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(rw)
			defer z.Close()
			out = z
		}
		io.WriteString(out, body)
		if r.URL.Path == "/v1/cut" {
			http.NewResponseController(rw).Flush()
			select {
			case <-passed:
			case <-r.Context().Done():
			}
			panic(http.ErrAbortHandler)
		}
	}), func(cfg *Config) { cfg.Credentials = Credentials{want: c} })
	asked := 0
	for path, body := range map[string]string{"/v1/one": one, "/v1/events": events, "/v1/gzip": one, "/v1/page": one, "/v1/lies": "", "/v1/cut": "", "/other": one} {
		for _, h2 := range []bool{false, true} {
			res, err := o.client(h2).Get("https://api.example.com" + path)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if path == "/v1/cut" {
				if _, err := io.ReadFull(res.Body, make([]byte, len(events))); err != nil {
					t.Fatalf("%s: %v", path, err)
				}
				passed <- struct{}{}
			}
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if asked++; res.StatusCode != 200 || body != "" && string(b) != body {
				t.Errorf("%s: %d %q", path, res.StatusCode, b)
			}
		}
	}
	// A request is recorded shortly after its answer.
	var sum RequestSummary
	waitFor(t, "all records", func() bool {
		sum = RequestSummary{}
		for _, r := range o.gw.Summary().Requests {
			if r.Credential == "" && r.Told > 0 {
				t.Fatal("answers to requests without a credential are counted")
			}
			sum.Count, sum.Told = sum.Count+r.Count, sum.Told+r.Told
			sum.Tokens.Input, sum.Tokens.Cached, sum.Tokens.Output = sum.Tokens.Input+r.Tokens.Input, sum.Tokens.Cached+r.Tokens.Cached, sum.Tokens.Output+r.Tokens.Output
		}
		return sum.Count == uint64(asked)
	})
	// For each version of HTTP: two documents and two streams, of which one was cut
	// off.
	if want := (tokens.Usage{Input: 4*43 + 4*11, Cached: 4 * 40, Output: 4*5 + 4*20}); sum.Told != 8 || sum.Tokens != want {
		t.Errorf("%d of %d answers: %+v, want %+v", sum.Told, sum.Count, sum.Tokens, want)
	}
}
