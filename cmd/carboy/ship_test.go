package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/ship"
	"github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/ship/shiptest"
)

// TestStatusCode: a status ends with the worst of what was found, and what was settled
// otherwise than as it was wanted is not passed over.
func TestStatusCode(t *testing.T) {
	settled := func(o ship.Outcome) carboy.ShipStatus {
		return carboy.ShipStatus{State: "current", Settled: &carboy.ShipEntry{Outcome: o}}
	}
	wrong := func(o ship.Outcome) carboy.ShipStatus {
		return carboy.ShipStatus{State: "unknown", Err: &carboy.ShipError{Outcome: o, Err: io.EOF}}
	}
	in := func(state string) carboy.ShipStatus { return carboy.ShipStatus{State: state} }
	current := in("current")
	for _, x := range []struct {
		want int
		all  []carboy.ShipStatus
	}{
		{exitcode.OK, []carboy.ShipStatus{current, settled(ship.Applied)}},
		{exitcode.Failed, []carboy.ShipStatus{{}, current}},
		{exitcode.OfStatus("drifted"), []carboy.ShipStatus{in("behind"), in("drifted"), in("absent"), current}},
		{exitcode.ShipRollbackFailed, []carboy.ShipStatus{in("unapproved"), in("rollback-failed")}},
		{exitcode.ShipFailed, []carboy.ShipStatus{in("behind"), wrong(ship.Failed)}},
		{exitcode.ShipUnhealthy, []carboy.ShipStatus{settled(ship.RolledBack), current}},
		{exitcode.ShipFailed, []carboy.ShipStatus{settled(ship.Failed)}},
		{exitcode.ShipRollbackFailed, []carboy.ShipStatus{wrong(ship.Locked), settled(ship.RollbackFailed), wrong(ship.Refused)}},
		{exitcode.ShipPolicy, []carboy.ShipStatus{current, wrong(ship.Refused)}},
		{exitcode.ShipFailed, []carboy.ShipStatus{wrong(ship.Locked), wrong(ship.Failed)}},
		{exitcode.Failed, []carboy.ShipStatus{{Err: io.EOF}, wrong(ship.Failed)}},
	} {
		if got := statusCode(x.all); got != x.want {
			t.Errorf("%+v: %d, want %d", x.all, got, x.want)
		}
	}
}

// TestShipSession is the walk-through of docs/ship.md with a real host: from nothing to a
// service that runs, is broken, rolled back, repaired and taken back. Beside it goes one
// that ends with each of the exit codes.
func TestShipSession(t *testing.T) {
	t.Parallel()
	dk := shiptest.StartEngine(t)
	defer dk.Stop()
	type place struct {
		h  *shiptest.Host
		op *shiptest.Operator
	}
	places := map[string]place{}
	for script, host := range map[string]string{"session": "here", "codes": "there"} {
		p := place{shiptest.NewHost(t, host, dk), shiptest.NewOperator(t)}
		p.op.Add(t, p.h)
		t.Cleanup(func() { dk.Clear(p.h.Root) })
		p.h.Divert(t)
		places[script] = p
	}
	var mu sync.Mutex
	ended := map[string]bool{}
	const script = "testdata/ship/session.txtar"
	page, text := readText(t, "../../docs/ship.md"), readText(t, script)
	for _, c := range []string{"carboy ship init web", "carboy plan web -o plans", "carboy ship approve plans/web.here.plan.json --as ", "carboy apply plans/web.here.plan.json", "carboy rollback web -o plans", "carboy ship history web"} {
		if !strings.Contains(page, c) || !strings.Contains(text, c) {
			t.Errorf("%q stands in one of docs/ship.md and %s only", c, script)
		}
	}
	t.Run("session", func(t *testing.T) {
		testscript.Run(t, testscript.Params{
			Files: []string{script, "testdata/ship/codes.txtar"}, RequireExplicitExec: true, RequireUniqueNames: true,
			Setup: func(e *testscript.Env) error {
				p := places[strings.TrimPrefix(filepath.Base(e.WorkDir), "script-")]
				e.Setenv("OPERATOR", p.op.Config)
				e.Setenv("ROOT", p.h.Root)
				e.Setenv("HOSTDIR", p.h.Dir)
				e.Setenv("ENGINE", p.h.Docker)
				return setup(e)
			},
			Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": func(ts *testscript.TestScript, neg bool, args []string) {
				cmdCode(ts, neg, args)
				mu.Lock()
				defer mu.Unlock()
				ended[args[0]] = true
			}, "runs": func(ts *testscript.TestScript, _ bool, args []string) {
				project := "web"
				if len(args) > 1 {
					project = args[1]
				}
				id := dk.Run(t, "ps", "-q", "--filter", "label=com.docker.compose.project="+project)
				if got := dk.Run(t, "inspect", "--format", `{{index .Config.Labels "mark"}}`, id); got != args[0] {
					ts.Fatalf("%s runs, want %s", got, args[0])
				}
			}},
		})
	})
	codes := []int{exitcode.Failed, exitcode.Usage, exitcode.ShipPlanned}
	for _, state := range []string{"behind", "orphaned", "absent", "exited", "unhealthy", "drifted", "unapproved"} {
		codes = append(codes, exitcode.OfStatus(state))
	}
	for _, o := range []ship.Outcome{ship.Nothing, ship.Applied, ship.Failed, ship.RolledBack, ship.RollbackFailed, ship.Locked, ship.Refused, ship.Mismatch, ship.Destructive, ship.Stale} {
		codes = append(codes, exitcode.OfShip(o))
	}
	for _, c := range codes {
		if !ended[strconv.Itoa(c)] {
			t.Errorf("no command of the sessions ends with %d", c)
		}
	}
}

func readText(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestShipWalk: the walk-through of docs/ship.md is pasted into a shell, as it stands there.
func TestShipWalk(t *testing.T) {
	t.Parallel()
	dk := shiptest.StartEngine(t)
	defer dk.Stop()
	dk.Busybox(t, "busybox:stable")
	h := shiptest.NewHost(t, "here", dk)
	t.Cleanup(func() { dk.Clear(h.Root) })
	_, walk, _ := strings.Cut(readText(t, "../../docs/ship.md"), "## From nothing")
	walk, _, _ = strings.Cut(walk, "\n## ")
	blocks := strings.Split(walk, "```sh\n")[1:]
	if len(blocks) != 3 {
		t.Fatalf("%d blocks of commands, want 3", len(blocks))
	}
	t.Run("walk", func(t *testing.T) { // it is over before the engine stops
		testscript.Run(t, testscript.Params{
			Files: []string{"testdata/ship/walk.txtar"}, RequireExplicitExec: true,
			Setup: func(e *testscript.Env) error {
				if err := setup(e); err != nil {
					return err
				}
				for name, value := range map[string]string{"ROOT": h.Root, "SSH_PORT": strconv.Itoa(h.Port), "HOST_KEY": h.Dir + "/host_key.pub", "DOCKER_HOST": h.Docker, "USER": h.User} {
					e.Setenv(name, value)
				}
				ssh := filepath.Join(e.Getenv("HOME"), ".ssh")
				err := errors.Join(os.MkdirAll(ssh, 0o700), os.WriteFile(h.Dir+"/host_key.pub", []byte(h.KeyPub+" comment\n"), 0o644),
					os.WriteFile(h.Dir+"/authorized_keys", nil, 0o600), os.Symlink(h.Dir+"/authorized_keys", ssh+"/authorized_keys"))
				for i, b := range blocks {
					text, _, _ := strings.Cut(b, "```")
					err = errors.Join(err, os.WriteFile(filepath.Join(e.WorkDir, "block"+strconv.Itoa(i+1)+".sh"), []byte(text), 0o600))
				}
				return err
			},
			Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": cmdCode},
		})
	})
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
