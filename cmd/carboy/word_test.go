//go:build linux

package main

import (
	"os"
	"strings"
	"testing"
)

// TestWord: one word in a terminal; what is proposed is asked once, and at the end the
// changes are a key away.
func TestWord(t *testing.T) {
	d := newDen(t, nil)
	bin := d.home + "/.local/bin" // of a login shell's PATH only
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	const program = "#!/bin/sh\nread x; echo \"got $x\"; echo \"$x\" >>said; [ \"$x\" != third ] || sleep 1000\n"
	if err := os.WriteFile(bin+"/claude", []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	env := []string{"TERM=xterm", "NO_COLOR=1", "ANTHROPIC_API_KEY=sk-ant-api03-a-key-of-the-host"}
	s := terminalOf(t, d.home, 100, env, "claude")
	s.await("reaches    api.anthropic.com:443")
	s.await("start it, and the next time in this directory without asking? [y/N]")
	s.typed("n\n")
	if code := s.end(); code != 0 {
		t.Errorf("exit code %d:\n%s", code, s.text())
	}
	for i, words := range []string{"first", "second"} {
		s = terminalOf(t, d.home, 100, env, "claude")
		if i == 0 {
			s.await("without asking? [y/N]")
			s.typed("y\n")
		}
		s.typed(words + "\n")
		s.await("got " + words)
		s.await("d shows the changes, l lands them, Enter leaves them:")
		s.typed("d\n")
		s.await("+" + words)
		s.await("l lands them")
		s.typed("l\n")
		s.await("land ")
		s.typed("y\n")
		if code := s.end(); code != 0 {
			t.Errorf("exit code %d:\n%s", code, s.text())
		}
		if i == 1 && strings.Contains(s.text(), "reaches") {
			t.Errorf("it asks again:\n%s", s.text())
		}
	}
	// Frozen, it has not ended: nothing is asked.
	s = terminalOf(t, d.home, 100, env, "claude")
	s.typed("third\n")
	s.await("got third")
	if _, msg, code := d.carboy("freeze", "claude"); code != 0 {
		t.Errorf("freeze: %d %s", code, msg)
	}
	if code := s.end(); code != 125 || strings.Contains(s.text(), "d shows the changes") {
		t.Errorf("frozen: exit code %d:\n%s", code, s.text())
	}
	if said, err := os.ReadFile(d.home + "/ws/said"); err != nil || string(said) != "first\nsecond\n" {
		t.Errorf("%q, %v", said, err)
	}
}
