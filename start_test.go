package carboy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/carboy/carboy/internal/bottles"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/testenv"
)

// agents is a client whose user has manifests, and variables.
func agents(t *testing.T, env map[string]string, files map[string]string) *world {
	t.Helper()
	base := t.TempDir()
	w := &world{t: t, ws: filepath.Join(base, "ws")}
	vars := map[string]string{"XDG_STATE_HOME": filepath.Join(base, "state"), "XDG_RUNTIME_DIR": shortDir(t), "HOME": base, "TMPDIR": base, "PATH": filepath.Join(base, "bin") + ":" + os.Getenv("PATH")}
	for k, v := range env {
		vars[k] = v
	}
	if err := errors.Join(os.Mkdir(w.ws, 0o755), os.Chmod(base, 0o755), os.Chmod(filepath.Dir(base), 0o755)); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if strings.Contains(text, "curl ") { // an agent that asks for something
			testenv.Need(t, "curl", "apt-get install curl")
		}
		path := filepath.Join(base, name)
		mode := os.FileMode(0o600)
		if strings.HasPrefix(name, "bin/") {
			mode = 0o755
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	w.c = openClient(t, vars)
	return w
}

// vendor is a server that stands in for claude's, and what it was asked.
type vendor struct {
	mu    sync.Mutex
	asked []http.Header
	url   string
}

func newVendor(t *testing.T) *vendor {
	v := &vendor{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.asked = append(v.asked, r.Header.Clone())
		io.WriteString(w, "answer of "+r.URL.Path+" to "+r.Header.Get("X-Api-Key")+r.Header.Get("Authorization")+"\n")
	}))
	t.Cleanup(srv.Close)
	v.url = srv.URL
	return v
}

const fakeClaude = `#!/bin/sh
curl -sS -H "X-Api-Key: $ANTHROPIC_API_KEY" -H "Authorization: Bearer $CLAUDE_CODE_OAUTH_TOKEN" https://api.anthropic.com/v1/messages
curl -sS -o /dev/null -w 'files %{http_code}\n' https://api.anthropic.com/v1/files
`

// Claude's token is put on by the gateway, in the form that it has, on requests that
// the bottle's own route for its host allows, and is nowhere inside.
func TestStartClaude(t *testing.T) {
	for _, x := range []struct{ token, header, want string }{
		{"sk-ant-api03-0123456789abcdef", "X-Api-Key", "sk-ant-api03-0123456789abcdef"},
		{"sk-ant-oat01-0123456789abcdef", "Authorization", "Bearer sk-ant-oat01-0123456789abcdef"},
	} {
		v := newVendor(t)
		w := agents(t, map[string]string{"MINE": x.token}, map[string]string{
			"bin/claude": fakeClaude,
			".config/carboy/bottles/c.md": "---\nagent_provider: {auth_token: MINE}\negress:\n  routes:\n    - host: api.anthropic.com\n      upstream: " + v.url +
				"\n      matches: [{paths: [{value: /v1/messages}]}]\n---\n",
			".bot-bottle/agents/a.md": "---\nbottle: c\n---\nBe brief.\n",
		})
		var out, msg bytes.Buffer
		s, err := w.c.Start(context.Background(), bottles.StartOptions{Agent: "a", Dir: w.ws, Headless: true, Prompt: "hello", Stdout: &out, Stderr: &msg})
		if err != nil || s.Kept || s.Slug != "a" {
			t.Fatalf("%v %+v\n%s%s", err, s, out.String(), msg.String())
		}
		if !strings.Contains(strings.Replace(out.String(), "Bearer ", "", 1), "answer of /v1/messages to carboy-placeholder") || !strings.Contains(out.String(), "files 403") {
			t.Errorf("%s%s", out.String(), msg.String())
		}
		if strings.Contains(out.String()+msg.String(), "0123456789abcdef") {
			t.Error("the token came inside")
		}
		if len(v.asked) != 1 || v.asked[0].Get(x.header) != x.want || len(v.asked[0]["X-Api-Key"])+len(v.asked[0]["Authorization"]) != 1 {
			t.Errorf("asked: %v", v.asked)
		}
		if b, _, err := w.c.Bottles(context.Background()); err != nil || len(b) != 0 {
			t.Errorf("%v %v", b, err)
		}
		rec := s.Receipt
		if len(rec.Network.Requests) == 0 || !strings.Contains(rec.Network.Requests[0].Rule, "bottles/c.md:5") {
			t.Errorf("the receipt does not name the bottle's line: %+v", rec.Network.Requests)
		}
	}
}

// The Go API: what a start refuses, and errors that carry the agent's code.
func TestStartAPI(t *testing.T) {
	sh := func(script string) string {
		return "---\nagent_provider: {template: command, settings: {command: [sh, -c, '" + script + "', x, '{prompt}']}}\n---\n"
	}
	w := agents(t, nil, map[string]string{
		".config/carboy/bottles/default.md": sh("exit 7"), ".config/carboy/bottles/writes.md": sh("echo x >f; exit 8"), ".config/carboy/agents/a.md": "---\n---\n",
		".config/carboy/bottles/bind.md": "---\nextends: writes\nworkspace: bind\n---\n",
	})
	ctx := context.Background()
	o := bottles.StartOptions{Agent: "a", Dir: w.ws, Headless: true, Prompt: "x"}
	s, err := w.c.Start(ctx, o)
	var bad *bottles.AgentError
	if !errors.As(err, &bad) || bad.Code() != 7 || bad.Slug != "a" || !s.Kept || s.Receipt.Exit.Code != 7 {
		t.Fatalf("%v %+v", err, s)
	}
	if was, err := w.c.Destroy(ctx, "a", bottles.DestroyOptions{}); err != nil || !was {
		t.Errorf("%t %v", was, err)
	}
	if was, err := w.c.Destroy(ctx, "a", bottles.DestroyOptions{}); err != nil || was {
		t.Errorf("again: %t %v", was, err)
	}

	// Somebody's work is not destroyed unasked.
	wo := o
	wo.Bottles, wo.Cwd, wo.Label = []string{"writes"}, true, "My Work!"
	if s, err = w.c.Start(ctx, wo); !errors.As(err, &bad) || bad.Code() != 8 || s.Slug != "my-work" {
		t.Fatalf("%v %+v", err, s)
	}
	if _, err := w.c.Destroy(ctx, "my-work", bottles.DestroyOptions{}); !errors.Is(err, store.ErrUnlanded) {
		t.Errorf("%v", err)
	}
	if m, err := w.c.Find(ctx, "my-work", ""); err != nil || m.ID != s.Receipt.ID || m.Kind != store.KindBottle {
		t.Errorf("%+v %v", m, err)
	}
	if was, err := w.c.Destroy(ctx, "my-work", bottles.DestroyOptions{Unlanded: true}); err != nil || !was {
		t.Errorf("%t %v", was, err)
	}
	if _, err := os.Stat(filepath.Join(w.ws, "f")); err == nil {
		t.Error("an overlay wrote to the host")
	}
	if os.Geteuid() != 0 { // root's bottles can't write to root's directory
		wo.Bottles = []string{"bind"}
		if _, err = w.c.Start(ctx, wo); !errors.As(err, &bad) {
			t.Errorf("%v", err)
		}
		if _, err := os.Stat(filepath.Join(w.ws, "f")); err != nil {
			t.Error("the bottle says bind, and nothing was written")
		}
		if was, err := w.c.Destroy(ctx, "my-work", bottles.DestroyOptions{}); err != nil || !was {
			t.Errorf("%t %v", was, err)
		}
	}

	no := errors.New("no")
	o.Confirm = func(p *bottles.Preflight) error {
		if p.Agent != "a" || len(p.Bottles) != 1 || p.Bottles[0] != "default" || p.Mode != store.None {
			t.Errorf("%+v", p)
		}
		return no
	}
	if s, err := w.c.Start(ctx, o); s != nil || !errors.Is(err, no) {
		t.Errorf("%+v %v", s, err)
	}
	o.Confirm = nil
	for what, f := range map[string]func(*bottles.StartOptions){
		"no prompt":        func(o *bottles.StartOptions) { o.Prompt = "" },
		"not headless":     func(o *bottles.StartOptions) { o.Headless = false },
		"a colour":         func(o *bottles.StartOptions) { o.Color = "mauve" },
		"a label":          func(o *bottles.StartOptions) { o.Label = "x\x1b[2J" },
		"a long label":     func(o *bottles.StartOptions) { o.Label = strings.Repeat("x", 1000) },
		"a NUL":            func(o *bottles.StartOptions) { o.Prompt = "x\x00" },
		"another agent":    func(o *bottles.StartOptions) { o.Agent = "../a" },
		"another bottle":   func(o *bottles.StartOptions) { o.Bottles = []string{"nothing"} },
		"another variable": func(o *bottles.StartOptions) { o.Env = []string{"PATH=/x"} },
		"another place":    func(o *bottles.StartOptions) { o.Cwd, o.Dir = true, "/nowhere" },
	} {
		bad := o
		f(&bad)
		if s, err := w.c.Start(ctx, bad); err == nil || s != nil {
			t.Errorf("%s is taken", what)
		}
	}
	if b, _, err := w.c.Bottles(ctx); err != nil || len(b) != 0 {
		t.Errorf("left: %v %v", b, err)
	}
}
