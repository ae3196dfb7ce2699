//go:build linux

package main

import (
	"errors"
	"os"
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

// In a repository, a start without --cwd asks once whether the agent gets this directory.
func TestStartAsksForDirectory(t *testing.T) {
	d := newDen(t, shellAgent(`pwd; ls`))
	ws := filepath.Join(d.home, "ws")
	if err := errors.Join(os.MkdirAll(filepath.Join(ws, ".git"), 0o755), os.Mkdir(filepath.Join(ws, "below"), 0o755), os.WriteFile(filepath.Join(ws, "mine"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	for answer, want := range map[string]string{"y\n": "mine", "n\n": "workspace  none"} {
		s := terminalIn(t, d.home, "start", "waits")
		s.await("is in the repository ~/ws. Give it to the agent, as with --cwd? [y/N]")
		s.typed(answer)
		s.await("start it? [y/N]")
		s.typed("y\n")
		if code := s.end(); code != 0 || !strings.Contains(s.text(), want) {
			t.Errorf("%q: %d %s", answer, code, s.text())
		}
	}
	s := terminalIn(t, d.home, "start", "waits", "--yes")
	if code := s.end(); code != 0 || strings.Contains(s.text(), "repository") {
		t.Errorf("--yes: %d %s", code, s.text())
	}
}
