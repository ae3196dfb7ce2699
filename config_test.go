package carboy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
)

func TestConfigErrors(t *testing.T) {
	for text, want := range map[string]string{
		"protect:\n  ci: true\n  paht: [x]\n":     "line 3",
		"protect:\n  ci: maybe\n":                 "line 2",
		"protect: [\n":                            "line",
		"protect:\n  paths: [\"ok\", \"/abs\"]\n": "protect.paths[1]",
		"protect:\n  paths: [../up]\n":            "protect.paths[0]",
		"trace:\n  max_mib: -1\n":                 "trace.max_mib",
		"trace:\n  max_mib: 1048577\n":            "trace.max_mib",
		"trace:\n  off: true\n":                   "line 2",
		"\nisolation: strong\n":                   "line 2: isolation",
		"isolation: [container]\n":                "line 1: isolation",
		"isolation: \"\"\n":                       "line 1: isolation",
	} {
		dir := t.TempDir()
		name := filepath.Join(dir, host.ConfigFile)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := host.LoadConfig(dir)
		var c *host.ConfigError
		if !errors.As(err, &c) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %v; want the file and %q", text, err, want)
		}
	}
	for _, text := range []string{"", "# nothing\n", "protect:\n  ci: true\n  paths: [deploy, Makefile]\n", "trace:\n  max_mib: 1\n", "isolation: user-kernel\n"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, host.ConfigFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := host.LoadConfig(dir); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := host.LoadConfig(t.TempDir()); err != nil {
		t.Errorf("no file: %v", err)
	}
}

func TestConfiguredProtection(t *testing.T) {
	w := newWorld(t)
	r, _ := w.ok("mkdir -p .github/workflows deploy; echo x > .github/workflows/ci.yml; echo y > deploy/run.sh; echo z > plain")
	if r.Changes.Protected != 0 {
		t.Fatalf("%d are protected though nothing is configured", r.Changes.Protected)
	}
	// What is configured after the run holds at landing.
	w.c.host.Config.Protect.CI, w.c.host.Config.Protect.Paths = true, []string{"deploy"}
	rep, err := w.c.Land(context.Background(), r.ID, change.LandOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if w.read("plain") != "z\n" || strings.Contains(w.read(".github/workflows/ci.yml"), "x\n") || strings.Contains(w.read("deploy/run.sh"), "y\n") {
		t.Errorf("landed %v, withheld %v", rep.Landed, rep.Withheld)
	}
	r, _ = w.ok("mkdir -p .github/workflows; echo x > .github/workflows/ci.yml")
	if r.Changes.Protected == 0 {
		t.Error("a CI file is not protected though it is configured")
	}
}

// TestIsolationFloor: a boundary that is weaker than the user accepts is refused before
// anything is made, with the place of the setting. One that is strong enough is taken.
func TestIsolationFloor(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	file := filepath.Join(dir, host.ConfigFile)
	set := func(text string) {
		t.Helper()
		err := os.WriteFile(file, []byte(text), 0o600)
		if err == nil {
			w.c.host.Config, err = host.LoadConfig(dir)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := context.Background()
	set("protect:\n  ci: true\nisolation: hardware-vm\n")
	_, err := w.c.Run(ctx, plan.Options{Command: []string{"true"}, Workspace: w.ws})
	_, perr := w.c.Prepare(ctx, plan.Options{Workspace: w.ws})
	for what, err := range map[string]error{"a run": err, "a prepared bottle": perr} {
		var weak *bottle.TooWeakError
		if !errors.As(err, &weak) || !strings.Contains(err.Error(), file+":3: isolation: hardware-vm") || !strings.Contains(err.Error(), "user-kernel") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if l, err := w.c.List(ctx, store.Query{}); err != nil || len(l.Runs) != 0 {
		t.Errorf("runs that were refused are on record: %v, %v", l.Runs, err)
	}
	set("isolation: user-kernel\n")
	r, _ := w.ok("true")
	if p := r.Isolation.Posture; r.Isolation.Class != bottle.IsolationUserKernel || p == nil || p.Facts != bottle.FactsKernel || len(r.Isolation.Lacks) != 0 || r.Isolation.WeakFacts() != "" {
		t.Errorf("%+v", r.Isolation)
	}
}
