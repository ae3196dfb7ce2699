//go:build linux

package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// carboy alone offers what waits, and runs what is chosen; without anything it helps.
func TestAlone(t *testing.T) {
	s := terminal(t)
	if code := s.end(); code != 0 || !strings.Contains(s.text(), "Run and review:") {
		t.Fatalf("nothing waits: %d\n%s", code, s.text())
	}
	home := filepath.Dir(s.cmd.Dir)
	if s = terminalIn(t, home, "run", "--", "sh", "-c", "echo news >made"); s.end() != 0 {
		t.Fatal(s.text())
	}
	s = terminalIn(t, home)
	s.await("What next? 1 to land.")
	s.await("carboy diff ")
	s.await("sh -c echo news >made in ~/ws")
	s.typed("\r")
	if code := s.end(); code != 0 || !strings.Contains(s.text(), "+news") {
		t.Errorf("chosen: %d\n%s", code, s.text())
	}
	s = terminalIn(t, home)
	s.await("What next?")
	s.typed("\x1b")
	if code := s.end(); code != 0 || strings.Contains(s.text(), "+news") {
		t.Errorf("given up: %d\n%s", code, s.text())
	}
}
