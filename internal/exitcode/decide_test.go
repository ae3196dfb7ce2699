package exitcode_test

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/ship"
)

type shipped string

func (s shipped) Error() string       { return string(s) }
func (s shipped) ExitOutcome() string { return string(s) }

func TestOfError(t *testing.T) {
	locked := exitcode.New(exitcode.AlreadyLocked, "locked")
	for _, x := range []struct {
		command string
		err     error
		want    int
	}{
		{"run", nil, 0},
		{"gate", nil, 0},
		{"run", io.EOF, 125},
		{"start", exitcode.With(exitcode.WrongUsage, io.EOF), 125},
		{"start", exitcode.Interrupted(syscall.SIGINT, io.EOF), 130},
		{"resume", locked, 125},
		{"exec", io.EOF, 125},
		{"run", exitcode.New(exitcode.Missing, "not there"), 127},
		{"run", fmt.Errorf("start: %w", exitcode.New(exitcode.Unexecutable, "no program")), 126},
		{"orchestrate start", io.EOF, 125},
		{"orchestrate resume", exitcode.With(exitcode.WrongUsage, io.EOF), 125},
		{"orchestrate doctor", io.EOF, 1},
		{"orchestrate serve", exitcode.With(exitcode.WrongUsage, io.EOF), 2},
		{"gate baseline accept", exitcode.With(exitcode.Undecided, io.EOF), 11},
		{"gate", exitcode.New(exitcode.Missing, "not there"), 1},
		{"gate", io.EOF, 1},
		{"gate", exitcode.With(exitcode.WrongUsage, io.EOF), 2},
		{"gate", exitcode.With(exitcode.WrongOption, io.EOF), 2},
		{"gate", exitcode.With(exitcode.Undecided, io.EOF), 11},
		{"gate", exitcode.With(exitcode.TurnedDown, io.EOF), 12},
		{"gate", exitcode.New(exitcode.RecordChanged, "changed"), 13},
		{"gate", fmt.Errorf("gate: %w", locked), 14},
		{"work", errors.Join(io.EOF, locked), 14},
		{"work", fmt.Errorf("work: %w", exitcode.Interrupted(syscall.SIGTERM, locked)), 143},
		{"work", exitcode.Interrupted(0, locked), 14},
		{"work", exitcode.With(exitcode.Unapprovable, io.EOF), 1},
		{"plan", io.EOF, 1},
		{"ship", exitcode.With(exitcode.WrongUsage, io.EOF), 2},
		{"ship", exitcode.With(exitcode.Unapprovable, io.EOF), 4},
		{"apply", fmt.Errorf("apply: %w", shipped(ship.RollbackFailed)), 10},
		{"apply", shipped("a new one"), 1},
		{"rollback", locked, 1},
		{"gate", shipped(ship.Locked), 1},
		{"land", exitcode.With(exitcode.WrongUsage, io.EOF), 2},
		{"land", exitcode.With(exitcode.WrongOption, io.EOF), 1},
		{"land", locked, 1},
		{"", io.EOF, 1},
	} {
		if got := exitcode.OfError(exitcode.FamilyOf(x.command), x.err); got != x.want {
			t.Errorf("carboy %s: %v: code %d, want %d", x.command, x.err, got, x.want)
		}
	}
}

func TestWithKeepsTheError(t *testing.T) {
	if err := exitcode.With(exitcode.WrongUsage, nil); err != nil {
		t.Errorf("With(nil) = %v", err)
	}
	for _, err := range []error{exitcode.With(exitcode.WrongUsage, io.EOF), exitcode.Interrupted(syscall.SIGINT, io.EOF)} {
		if !errors.Is(err, io.EOF) || err.Error() != io.EOF.Error() {
			t.Errorf("%v does not keep the error", err)
		}
	}
}

func TestOutcomes(t *testing.T) {
	for _, x := range []struct {
		name      string
		got, want int
	}{
		{"run: timeout", exitcode.OfRun(receipt.Timeout), 124},
		{"run: memory", exitcode.OfRun(receipt.Memory), 125},
		{"run: frozen", exitcode.OfRun(receipt.Frozen), 125},
		{"run: killed", exitcode.OfRun(receipt.Killed), 125},
		{"run: lost", exitcode.OfRun(receipt.Lost), 125},
		{"gate: passed", exitcode.OfGate(gate.Passed, false), 0},
		{"gate: overridden", exitcode.OfGate(gate.Final, true), 0},
		{"gate: escalated", exitcode.OfGate(gate.Escalated, false), 11},
		{"gate: failed", exitcode.OfGate(gate.Failed, false), 12},
		{"gate: final", exitcode.OfGate(gate.Final, false), 12},
		{"gate: unavailable", exitcode.OfGate(gate.Unavailable, false), 12},
		{"bundle: passed", exitcode.OfBundle(true, gate.Passed, false), 0},
		{"bundle: final", exitcode.OfBundle(true, gate.Final, false), 12},
		{"bundle: not intact", exitcode.OfBundle(false, gate.Passed, true), 13},
		{"scenarios: passed", exitcode.OfScenarios(true), 0},
		{"scenarios: failed", exitcode.OfScenarios(false), 12},
		{"check: good", exitcode.OfCheck(true), 0},
		{"check: bad", exitcode.OfCheck(false), 1},
		{"escape-test: contained", exitcode.OfEscapeTest("contained"), 0},
		{"escape-test: escaped", exitcode.OfEscapeTest("escaped"), 1},
		{"escape-test: untried", exitcode.OfEscapeTest("untried"), 3},
		{"escape-test: unknown", exitcode.OfEscapeTest("a new one"), 1},
		{"plan: no changes", exitcode.OfPlan(false), 0},
		{"plan: changes", exitcode.OfPlan(true), 20},
	} {
		if x.got != x.want {
			t.Errorf("%s: code %d, want %d", x.name, x.got, x.want)
		}
	}
}

// Each outcome of a deployment has its own code, which is also different from the codes
// of an error, of wrong usage and of a plan.
func TestOfShip(t *testing.T) {
	seen := map[int]string{exitcode.Failed: "an error", exitcode.Usage: "usage", exitcode.ShipPlanned: "a plan"}
	for outcome, want := range map[ship.Outcome]int{
		ship.Nothing: 0, ship.Refused: 3, ship.Mismatch: 4, ship.Destructive: 5, ship.Stale: 6, ship.Failed: 7,
		ship.RolledBack: 8, ship.Applied: 9, ship.RollbackFailed: 10, ship.Locked: 14,
	} {
		got := exitcode.OfShip(outcome)
		if got != want {
			t.Errorf("%s: code %d, want %d", outcome, got, want)
		}
		if other, twice := seen[got]; twice {
			t.Errorf("%s and %s both end with %d", outcome, other, got)
		}
		seen[got] = string(outcome)
	}
	for state, want := range map[string]int{
		"current": 0, "behind": 21, "orphaned": 22, "absent": 23, "exited": 24, "unhealthy": 25, "drifted": 26, "unapproved": 27, "rollback-failed": 10, "unknown": 1, "": 1,
	} {
		if got := exitcode.OfStatus(state); got != want {
			t.Errorf("status %q: code %d, want %d", state, got, want)
		}
	}
	if got := exitcode.OfShip(ship.Sent); got != exitcode.Failed {
		t.Errorf("an outcome without a code: %d, want %d", got, exitcode.Failed)
	}
}

// TestWorstShip: of several hosts, the one that most needs a person decides the code.
func TestWorstShip(t *testing.T) {
	order := []int{exitcode.Signal(syscall.SIGINT), 10, 1, 27, 26, 25, 24, 23, 8, 7, 14, 6, 5, 4, 3, 22, 21, 9, 0}
	for i, bad := range order {
		for _, better := range order[i:] {
			if exitcode.WorstShip(bad, better) != bad || exitcode.WorstShip(better, bad) != bad {
				t.Errorf("of %d and %d: %d and %d, want %d", bad, better, exitcode.WorstShip(bad, better), exitcode.WorstShip(better, bad), bad)
			}
		}
	}
}

func TestCombined(t *testing.T) {
	for _, x := range []struct {
		name      string
		got, want int
	}{
		{"no hosts", exitcode.WorstShip(), 0},
		{"apply: an error counts alone", exitcode.OfApply(io.EOF, ship.RollbackFailed), 1},
		{"apply: the worst host", exitcode.OfApply(nil, ship.Applied, ship.RolledBack, ship.Nothing), 8},
		{"apply: nothing to do", exitcode.OfApply(nil, ship.Nothing), 0},
		{"settled as intended", exitcode.OfSettled(ship.Applied), 0},
		{"settled otherwise", exitcode.OfSettled(ship.RolledBack), 8},
		{"run: the command's", exitcode.OfCommand(3, io.EOF), 3},
		{"run: carboy's", exitcode.OfCommand(0, io.EOF), 125},
		{"run: good", exitcode.OfCommand(0, nil), 0},
		{"start: interrupted", exitcode.OfInterrupted(true, 4), 130},
		{"start: not interrupted", exitcode.OfInterrupted(false, 4), 4},
		{"rm: the first", exitcode.First(0, 13, 1), 13},
		{"rm: all good", exitcode.First(0, 0), 0},
	} {
		if x.got != x.want {
			t.Errorf("%s: code %d, want %d", x.name, x.got, x.want)
		}
	}
}

func TestNotStarted(t *testing.T) {
	for code, want := range map[int]bool{0: false, 1: false, 124: false, 125: false, 126: true, 127: true, 128: false} {
		if got := exitcode.NotStarted(code); got != want {
			t.Errorf("NotStarted(%d) = %t, want %t", code, got, want)
		}
	}
}
