package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/ship"
	"github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/ship/shiptest"
)

// TestShipCodes: no two outcomes end with the same code, and none with that of a tool's
// error or of wrong usage.
func TestShipCodes(t *testing.T) {
	all := []ship.Outcome{ship.Nothing, ship.Applied, ship.Failed, ship.RolledBack, ship.RollbackFailed, ship.Locked, ship.Refused, ship.Mismatch, ship.Destructive, ship.Stale}
	seen := map[int]string{exitcode.Failed: "an error", exitcode.Usage: "usage", exitcode.ShipPlanned: "planned"}
	for _, o := range all {
		code, ok := shipCodes[o]
		if !ok {
			t.Errorf("%s has no code", o)
		}
		if other, twice := seen[code]; twice {
			t.Errorf("%s and %s both end with %d", o, other, code)
		}
		seen[code] = string(o)
	}
	if len(shipCodes) != len(all) {
		t.Errorf("%d outcomes have codes, want %d", len(shipCodes), len(all))
	}
}

// TestShipSession is the walk-through of docs/ship.md with a real host: from nothing to a
// service that runs, is broken, rolled back, repaired and taken back.
func TestShipSession(t *testing.T) {
	t.Parallel()
	dk := shiptest.StartEngine(t)
	defer dk.Stop()
	h, op := shiptest.NewHost(t, "here", dk), shiptest.NewOperator(t)
	op.Add(t, h)
	const script = "testdata/ship/session.txtar"
	page, text := readText(t, "../../docs/ship.md"), readText(t, script)
	for _, c := range []string{"carboy ship init web", "carboy plan web -o plans", "carboy ship approve plans/web.here.plan.json --as ", "carboy apply plans/web.here.plan.json", "carboy rollback web -o plans", "carboy ship history web"} {
		if !strings.Contains(page, c) || !strings.Contains(text, c) {
			t.Errorf("%q stands in one of docs/ship.md and %s only", c, script)
		}
	}
	t.Run("session", func(t *testing.T) {
		testscript.Run(t, testscript.Params{
			Files: []string{script}, RequireExplicitExec: true, RequireUniqueNames: true,
			Setup: func(e *testscript.Env) error {
				e.Setenv("OPERATOR", op.Config)
				e.Setenv("ROOT", h.Root)
				return setup(e)
			},
			Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": cmdCode, "runs": func(ts *testscript.TestScript, _ bool, args []string) {
				id := dk.Run(t, "ps", "-q", "--filter", "label=com.docker.compose.project=web")
				if got := dk.Run(t, "inspect", "--format", `{{index .Config.Labels "mark"}}`, id); got != args[0] {
					ts.Fatalf("%s runs, want %s", got, args[0])
				}
			}},
		})
	})
}

func readText(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestPlanLinks: a link that a repository has where a plan is written is not followed.
func TestPlanLinks(t *testing.T) {
	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(dir, "web.one.plan.json")); err != nil {
		t.Fatal(err)
	}
	name, err := writePlan(dir, carboy.ShipPlan{Plan: &plan.Plan{Module: "web", Host: plan.Host{Name: "one"}}, Bytes: []byte("plan")})
	if err != nil || readText(t, name) != "plan" {
		t.Errorf("%s: %v", name, err)
	}
	if got := readText(t, victim); got != "mine" {
		t.Errorf("written through a link: %q", got)
	}
}
