package agenttest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/testenv"
)

// TestFreeze freezes each agent while it waits for a command that the model requested, with
// its connections open. After the thaw it ends its task as usual. Then it gets another
// prompt in the same conversation.
func TestFreeze(t *testing.T) {
	for _, x := range starts {
		i := slices.IndexFunc(agents, func(a agent) bool { return a.name == x.agent && a.api == x.api })
		a := agents[i]
		if x.host != "" {
			continue // the same program
		}
		if testenv.CI() && x.template == "claude" {
			t.Logf("NOT RUN here: %s: it takes a minute; pi is", a.name)
			continue
		}
		a.with(t, x.template+"/"+x.api, func(t *testing.T, dir string) {
			testenv.Need(t, "node", "apt-get install nodejs")
			const one, two = "Wait for the command, asks the first.", "And once more, asks the second."
			h := newHost(t)
			key := newKey(t)
			h.vars["MY_KEY"] = key
			h.install(dir)
			server := New(t, key, Script{
				// The command ends once the file exists, which this test makes after the
				// thaw.
				Steps: []Step{{Run: "touch waiting; while [ ! -e go ]; do sleep 0.1; done; echo it went on", Expect: "it went on"}, {Run: "cat calc.js", Expect: "a - b"}},
				Final: final,
			})
			h.manifests(t, map[string]string{
				"bottles/js.md": fmt.Sprintf("---\nagent_provider: {template: %s, %s}\negress:\n  routes: [{host: %s, upstream: %q, %s}]\n---\n", x.template, x.provider, a.host, server.Addr, x.route),
				"agents/fix.md": "---\nbottle: js\nmodel: " + x.model + "\n---\nBe brief.\n",
			})
			h.open(t, server)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var out, msg testenv.Buffer
			said := func() string { return fmt.Sprintf("it said:\n%.4000s\n%.4000s", out.String(), msg.String()) }
			begin := func(run func() (*carboy.Started, error)) <-chan error {
				done := make(chan error, 1)
				go func() {
					s, err := run()
					if err == nil && !s.Kept {
						err = fmt.Errorf("it was not kept: %+v", s.Receipt.Exit)
					}
					done <- err
				}()
				return done
			}
			event := func(e carboy.Event) { fmt.Fprintln(&msg, "event:", e.Kind, e.Text) }
			started := begin(func() (*carboy.Started, error) {
				return h.client.Start(ctx, carboy.StartOptions{Agent: "fix", Cwd: true, Dir: h.ws, Headless: true, Prompt: one, Keep: true, Stdout: &out, Stderr: &msg, OnEvent: event})
			})
			run := h.live(t, ctx, started, said)
			if !h.succeeds(ctx, run, "test -e waiting") {
				t.Fatalf("the command did not come; %s", said())
			}
			k, err := h.client.Freeze(ctx, "fix")
			if err != nil || len(k.Live) == 0 {
				t.Fatalf("%v %+v; %s", err, k, said())
			}
			if err := <-started; err != nil {
				t.Fatalf("%v; %s", err, said())
			}
			asked := len(server.Requests())
			resumed := begin(func() (*carboy.Started, error) {
				return h.client.Resume(ctx, carboy.ResumeOptions{Slug: "fix", Keep: true, Stdout: &out, Stderr: &msg, OnEvent: event})
			})
			run = h.live(t, ctx, resumed, said)
			if !h.succeeds(ctx, run, "touch go") {
				t.Fatalf("nothing can be run in it; %s", said())
			}
			if err := <-resumed; err != nil {
				t.Fatalf("%v; %s", err, said())
			}
			if !strings.Contains(out.String(), final) || strings.Contains(msg.String(), "begins with its files") {
				t.Errorf("it did not go on; %s", said())
			}
			if len(server.Requests()) <= asked {
				t.Error("nothing was asked after the freeze")
			}
			if x.template == "gemini" {
				return // it sends the results twice in a resumed conversation
			}
			s, err := h.client.Resume(ctx, carboy.ResumeOptions{Slug: "fix", Headless: true, Prompt: two, Stdout: &out, Stderr: &msg, OnEvent: event})
			if err != nil || s.Kept {
				t.Fatalf("%v; %s", err, said())
			}
			both := false
			for _, r := range server.Requests() {
				if strings.Contains(string(r.Body), key) {
					t.Error("the key came inside")
				}
				i, j := strings.Index(string(r.Body), one), strings.Index(string(r.Body), two)
				both = both || i >= 0 && j > i
			}
			if !both {
				t.Errorf("the model was not told of both prompts; %s", said())
			}
			if l, _, err := h.client.Bottles(ctx); err != nil || len(l) > 0 {
				t.Errorf("%v %v", l, err)
			}
			if t.Failed() {
				t.Log(said())
			}
		})
	}
}

// live returns the resumed run.
func (h *host) live(t *testing.T, ctx context.Context, done <-chan error, said func() string) store.Meta {
	t.Helper()
	for {
		l, err := h.client.List(ctx, store.Query{})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range l.Runs {
			if m.State == store.Running && m.Socket != "" {
				return m
			}
		}
		select {
		case err := <-done:
			t.Fatalf("it ended: %v; %s", err, said())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// succeeds runs a script in the bottle until it succeeds: the bottle, or what the script
// waits for, may not be there yet. It reports false when ctx is done.
func (h *host) succeeds(ctx context.Context, m store.Meta, script string) bool {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for h.inside(ctx, m, script) != 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// inside runs a script in the bottle and returns its exit code.
func (h *host) inside(ctx context.Context, m store.Meta, script string) int {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return -1
	}
	defer null.Close()
	e, err := h.client.Exec(ctx, m, carboy.ExecOptions{Command: []string{"sh", "-c", script}, Stdin: null, Stdout: null, Stderr: null})
	if err != nil {
		return -1 // the bottle is not up yet, or not any more
	}
	return e.Code
}
