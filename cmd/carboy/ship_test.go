package main

import (
	"testing"

	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/ship"
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
