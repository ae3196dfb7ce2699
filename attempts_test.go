package carboy

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/store"
)

// agentBottle has a command for an agent: a shell script that gets the prompt.
func agentBottle(script string) string {
	return "---\nagent_provider:\n  template: command\n  settings:\n    command:\n      - sh\n      - -c\n      - |\n        " + strings.ReplaceAll(script, "\n", "\n        ") + "\n      - agent\n      - '{prompt}'\n---\n"
}

// worker is a project with an agent.
func worker(t *testing.T, script string, files map[string]string) *project {
	t.Helper()
	w := agents(t, nil, map[string]string{".config/carboy/bottles/default.md": agentBottle(script), ".config/carboy/agents/a.md": "---\n---\n"})
	p := &project{w, t}
	for name, text := range files {
		p.put(name, text)
	}
	p.git("init", "-q")
	p.commit()
	return p
}

// needsFeedback can only pass with a value that stands in the failing output alone: it
// is no file's content, and the agent's bottle has no way to run the check.
var needsFeedback = map[string]string{
	"check.sh": "#!/bin/sh\nwant=$(printf %s 'carboy' | cksum | cut -c1-8)\necho '<testsuite name=\"s\">'\nif [ \"$(cat answer 2>/dev/null)\" = \"$want\" ]; then echo '<testcase name=\"answer\"/>'; code=0\n" +
		"else echo \"<testcase name=\\\"answer\\\"><failure message=\\\"want=$want &#x202e;ok\\\"/></testcase>\"; code=1; fi\necho '<testcase name=\"always\"/></testsuite>'\nexit $code\n",
	gate.CatalogPath: "version: 1\nsignals:\n  - {name: policy, kind: policy, frozen: [check.sh]}\n  - {name: tests, kind: tests, format: junit, command: [sh, ./check.sh]}\n",
}

const readsFeedback = `echo "42 passed, all good"
n=$(printf '%s' "$1" | grep -o 'want=[0-9]*' | head -n 1 | cut -d= -f2)
printf '%s' "$n" >answer
exit 0`

// TestWorkPassesByFeedback: the agent fails, is told what the failing output said, and
// passes. Its own words count for nothing, and nothing has reached the workspace.
func TestWorkPassesByFeedback(t *testing.T) {
	p := worker(t, readsFeedback, needsFeedback)
	var out bytes.Buffer
	ctx := context.Background()
	w, err := p.c.Work(ctx, WorkOptions{Agent: "a", Prompt: "make it pass", Dir: p.ws, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if w.Outcome != gate.Passed || len(w.Attempts) != 2 || w.Attempts[0].Outcome != gate.Failed {
		t.Fatalf("%+v\n%s", w, out.String())
	}
	if f := w.Attempts[0].Feedback; strings.Contains(f, "\u202e") || !strings.Contains(f, "want=") || len(f) > gate.MaxFeedback {
		t.Errorf("feedback: %q", f)
	}
	if _, err := os.Stat(filepath.Join(p.ws, "answer")); err == nil {
		t.Error("the work reached the workspace unasked")
	}
	if r, err := p.c.AuditVerify(ctx, ""); err != nil || r.Status != audit.Intact {
		t.Errorf("%+v %v", r, err)
	}
	// What passed lands.
	if _, err := p.c.Land(ctx, w.Run, LandOptions{}); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(filepath.Join(p.ws, "answer")); err != nil || len(b) == 0 {
		t.Errorf("%q %v", b, err)
	}
}

// TestWorkEnds: an agent that never passes is escalated, and one that changes its judges
// fails for good, at once.
func TestWorkEnds(t *testing.T) {
	ctx := context.Background()
	p := worker(t, `echo "42 passed" >answer`, needsFeedback)
	var out bytes.Buffer
	w, err := p.c.Work(ctx, WorkOptions{Agent: "a", Prompt: "x", Dir: p.ws, Stdout: &out, Stderr: &out})
	if err != nil || w.Outcome != gate.Escalated || len(w.Attempts) != MaxAttempts || !strings.Contains(w.Why, "three times") {
		t.Fatalf("%+v %v\n%s", w, err, out.String())
	}
	for _, s := range []string{`printf 'exit 0\n' >check.sh`, `printf 'version: 1\n' >.carboy/gate.yaml`} {
		p := worker(t, s, needsFeedback)
		w, err := p.c.Work(ctx, WorkOptions{Agent: "a", Prompt: "x", Dir: p.ws, Stdout: &out, Stderr: &out})
		if err != nil || w.Outcome != gate.Final || len(w.Attempts) != 1 {
			t.Errorf("%s: %+v %v\n%s", s, w, err, out.String())
		}
		if testing.Short() {
			break
		}
	}
	var bad *OptionError
	if _, err := p.c.Work(ctx, WorkOptions{Agent: "a", Prompt: "x", Dir: p.ws, Attempts: 4}); !errors.As(err, &bad) {
		t.Errorf("four attempts: %v", err)
	}
}

// TestWorkContinues: from every step on which carboy can have died, the work goes on and
// ends the same way; a step that was edited, moved or taken out is found.
func TestWorkContinues(t *testing.T) {
	ctx := context.Background()
	p := worker(t, readsFeedback, needsFeedback)
	var out bytes.Buffer
	o := WorkOptions{Agent: "a", Prompt: "x", Dir: p.ws, Stdout: &out, Stderr: &out}
	w, err := p.c.Work(ctx, o)
	if err != nil || w.Outcome != gate.Passed {
		t.Fatalf("%+v %v\n%s", w, err, out.String())
	}
	dir := p.c.gateDir("work", w.ID)
	files, err := filepath.Glob(dir + "/attempt-*.json")
	if err != nil || len(files) != 8 {
		t.Fatal(files, err)
	}
	// Died while the agent worked in its second attempt: that attempt is spent.
	for _, f := range files[6:] {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	o = WorkOptions{Continue: w.ID, Stdout: &out, Stderr: &out}
	again, err := p.c.Work(ctx, o)
	if err != nil || again.Outcome != gate.Passed || len(again.Attempts) != 3 || again.Attempts[1].Failing != "lost" {
		t.Fatalf("%+v %v\n%s", again, err, out.String())
	}
	// Continuing what is over says the same and does nothing.
	if done, err := p.c.Work(ctx, o); err != nil || done.Outcome != gate.Passed || len(done.Attempts) != 3 {
		t.Errorf("%+v %v", done, err)
	}
	// Died between a step's file and its record: it did not happen.
	files, _ = filepath.Glob(dir + "/attempt-*.json")
	last := files[len(files)-1]
	extra := filepath.Join(dir, "attempt-999.json")
	if err := os.WriteFile(extra, []byte(`{"state":"recorded","outcome":"passed"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := p.c.AuditVerify(ctx, ""); err != nil || r.Status != audit.Intact {
		t.Errorf("%+v %v", r, err)
	}
	if done, err := p.c.Work(ctx, o); err != nil || len(done.Attempts) != 3 {
		t.Errorf("%+v %v", done, err)
	}
	if _, err := os.Stat(extra); err == nil {
		t.Error("a step that is not on record stays")
	}
	// Edited, in the middle.
	mid := files[3]
	was, err := os.ReadFile(mid)
	if err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func() error{
		"edited": func() error {
			return os.WriteFile(mid, bytes.Replace(was, []byte("failed"), []byte("passed"), 1), 0o600)
		},
		"exchanged": func() error { b, _ := os.ReadFile(last); return os.WriteFile(mid, b, 0o600) },
		"taken out": func() error { return os.Remove(mid) },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
		if _, err := p.c.Work(ctx, o); !errors.Is(err, ErrLedger) {
			t.Errorf("%s: %v", what, err)
		}
		if r, err := p.c.AuditVerify(ctx, ""); err != nil || r.Status != audit.Tampered {
			t.Errorf("%s: %s %v", what, r.Status, err)
		}
		if err := store.WriteFile(mid, was, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if r, err := p.c.AuditVerify(ctx, ""); err != nil || r.Status != audit.Intact {
		t.Errorf("%+v %v", r, err)
	}
}
