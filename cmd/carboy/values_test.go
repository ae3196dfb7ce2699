package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/ship"
	"github.com/carboy/carboy/internal/store"
)

func TestParseTimes(t *testing.T) {
	for s, want := range map[string]time.Duration{"30m": 30 * time.Minute, "1h30m": 90 * time.Minute, "250ms": 250 * time.Millisecond} {
		var v span
		if err := v.Set(s); err != nil || time.Duration(v) != want {
			t.Errorf("span %q = %v, %v, want %v", s, time.Duration(v), err, want)
		}
	}
	for _, s := range []string{"", "30", "0s", "-1s", "1d", "x", "1h-2h", "9999999h"} {
		var v span
		if err := v.Set(s); err == nil {
			t.Errorf("span %q = %v, want an error", s, time.Duration(v))
		}
	}
	for s, want := range map[string]time.Duration{"30d": 720 * time.Hour, "1d": 24 * time.Hour, "12h": 12 * time.Hour} {
		var v age
		if err := v.Set(s); err != nil || time.Duration(v) != want {
			t.Errorf("age %q = %v, %v, want %v", s, time.Duration(v), err, want)
		}
	}
	for _, s := range []string{"d", "0d", "-1d", "1.5d", "40000d", "30"} {
		var v age
		if err := v.Set(s); err == nil {
			t.Errorf("age %q = %v, want an error", s, time.Duration(v))
		}
	}
}

func TestNearestFlag(t *testing.T) {
	a := newApp(nil, nil, nil, func(string) string { return "" })
	for typed, want := range map[string]string{"memroy": "memory", "alow": "allow", "time": "timeout", "workspce": "workspace", "zzzzzz": "", "x": ""} {
		if got := nearestFlag(a.runCmd(), typed); got != want {
			t.Errorf("--%s: did you mean %q, want %q", typed, got, want)
		}
	}
}

func TestRunRef(t *testing.T) {
	for s, want := range map[string]bool{
		"01k9x3m7q8r5t2v6w4y0z1a2b3": true, "01K9X3M7": true, "01k9x3": true,
		"01k9x": false, "README.md": false, "01-intro": false, "./01k9x3": false, "01k9x3/a": false, "src": false, "01k9il": false, "": false,
	} {
		if runRef().MatchString(s) != want {
			t.Errorf("%q taken for a run: %t, want %t", s, !want, want)
		}
	}
}

// Every sentinel that people meet comes with advice.
func TestAdvice(t *testing.T) {
	for _, err := range []error{
		bottle.ErrNotFound, bottle.ErrNotExecutable, store.ErrNotFound, store.ErrLive, store.ErrUnlanded, change.ErrProtected,
		change.ErrNoSuchChange, change.ErrIncomplete, change.ErrNothingToUndo, change.ErrBusy,
		&change.ConflictError{Op: "land"}, &change.ConflictError{Op: "undo"}, &store.BusyError{}, &store.AmbiguousError{}, &bottle.UnavailableError{},
	} {
		if advice(errors.Join(errors.New("first"), err)) == "" {
			t.Errorf("no advice on %v", err)
		}
	}
	late := &carboy.ShipError{Outcome: ship.Failed, Err: ship.ErrDeadline, Advice: "look"}
	if tip := advice(late); !strings.Contains(tip, "--up-timeout") {
		t.Errorf("advice on a command that took too long: %q", tip)
	}
	if late.Outcome = ship.RollbackFailed; advice(late) != "look" {
		t.Errorf("advice on what could not be taken back: %q", advice(late))
	}
	if tip := advice(errors.New("something else")); tip != "" {
		t.Errorf("advice on an unknown error: %q", tip)
	}
}
