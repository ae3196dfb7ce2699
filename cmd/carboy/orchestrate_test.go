package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/forge/forgetest"
	"github.com/carboy/carboy/internal/orchestrate"
	"github.com/carboy/carboy/internal/testenv"
)

// orchestrated is an operator's home with a configuration for a forge.
type orchestrated struct {
	t    *testing.T
	env  map[string]string
	addr string
}

func newOrchestrated(t *testing.T, api string) *orchestrated {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	dir := t.TempDir()
	runtime, err := os.MkdirTemp("", "cb-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(runtime) })
	o := &orchestrated{t, map[string]string{
		"HOME": dir, "XDG_CONFIG_HOME": filepath.Join(dir, "config"), "XDG_STATE_HOME": filepath.Join(dir, "state"), "XDG_RUNTIME_DIR": runtime, "PATH": os.Getenv("PATH"),
		"A": forgetest.Token, "B": forgetest.Token, "C": forgetest.Token, "HOOK": "a-secret-for-deliveries",
	}, addr}
	conf := filepath.Join(dir, "config", "carboy")
	if err := os.MkdirAll(conf, 0o700); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("forge: {provider: gitea, api: '%s', login: %s}\norganisation: bots\nrepositories: {org/app: {}}\ntokens: {service: {env: A}, shipper: {env: B}, orchestrator: {env: C}}\npoll: 10s\nwebhooks: {listen: '%s', secret: {env: HOOK}}\n", api, forgetest.Robot, addr)
	if err := os.WriteFile(filepath.Join(conf, "orchestrate.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return o
}

// run runs a command, and returns its code and output.
func (o *orchestrated) run(ctx context.Context, stderr *testenv.Buffer, args ...string) (int, string) {
	var out testenv.Buffer
	a := newApp(nil, &out, stderr, func(name string) string { return o.env[name] })
	code := a.run(ctx, args)
	return code, out.String()
}

// TestOrchestrateServe: serve tells when it is ready, status and describe tell beside it what
// an issue waits for, and the end ends well.
func TestOrchestrateServe(t *testing.T) {
	f := forgetest.New(t)
	f.Member("ada", true)
	repo := f.Repo("org/app")
	repo.Issue("ada", "Mend\x1b[2J it", "It is broken.", []string{"carboy:coder"}, nil) // nobody is assigned
	o := newOrchestrated(t, f.API)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var stderr testenv.Buffer
	ended := make(chan int, 1)
	go func() {
		code, _ := o.run(ctx, &stderr, "orchestrate", "serve")
		ended <- code
	}()
	var status orchestrate.StatusReport
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for over := time.After(time.Minute); len(status.Issues) == 0; {
		select {
		case code := <-ended:
			t.Fatalf("serve ended with %d: %s", code, stderr.String())
		case <-over:
			t.Fatalf("no issue: %s", stderr.String())
		case <-tick.C:
		}
		var quiet testenv.Buffer
		code, text := o.run(t.Context(), &quiet, "orchestrate", "status", "--json")
		if code != 0 {
			t.Fatalf("status: %d %s", code, quiet.String())
		}
		if err := json.Unmarshal([]byte(text), &status); err != nil {
			t.Fatal(err)
		}
	}
	if i := status.Issues[0]; i.Issue != "org/app#1" || i.State != "waiting" || i.Waits != "nobody is assigned" {
		t.Errorf("%+v", i)
	}
	var quiet testenv.Buffer
	if code, text := o.run(t.Context(), &quiet, "orchestrate", "status"); code != 0 || !strings.Contains(text, "org/app#1") || !strings.Contains(text, "nobody is assigned") || strings.Contains(text, "\x1b") {
		t.Errorf("%d %q", code, text)
	}
	res, err := http.Get("http://" + o.addr + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("readyz: %d", res.StatusCode)
	}
	if code, _ := o.run(t.Context(), &quiet, "orchestrate", "cancel", "org/app#1"); code != 1 || !strings.Contains(quiet.String(), "there is no record of this issue") {
		t.Errorf("cancel: %d %s", code, quiet.String())
	}
	var second testenv.Buffer
	if code, _ := o.run(t.Context(), &second, "orchestrate", "serve"); code != 1 || !strings.Contains(second.String(), "address already in use") || strings.Contains(second.String(), "stopping") {
		t.Errorf("a second serve: %d %s", code, second.String())
	}
	cancel() // as SIGTERM does
	if code := <-ended; code != 0 {
		t.Errorf("the end: %d", code)
	}
	for _, want := range []string{"serving: webhooks are taken at http://" + o.addr, "stopping: bottles freeze", "org=bots"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("no %q in\n%s", want, stderr.String())
		}
	}
	if strings.Contains(stderr.String(), forgetest.Token) {
		t.Error("a token was printed")
	}
}

// TestOrchestrateWatch: --watch prints the list when it changes only, and ends with its context.
func TestOrchestrateWatch(t *testing.T) {
	o := newOrchestrated(t, "http://127.0.0.1:1/api/v1")
	ctx, cancel := context.WithCancel(t.Context())
	var out, stderr testenv.Buffer
	ended := make(chan int, 1)
	a := newApp(nil, &out, &stderr, func(name string) string { return o.env[name] })
	go func() { ended <- a.run(ctx, []string{"orchestrate", "status", "--watch", "--json"}) }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for over := time.After(time.Minute); !strings.Contains(out.String(), "\n"); {
		select {
		case <-over:
			t.Fatal(stderr.String())
		case <-tick.C:
		}
	}
	cancel()
	if code := <-ended; code != 0 || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("%d %q", code, out.String())
	}
}
