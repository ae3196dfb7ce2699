package main

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSuperviseTerminalAndWeb: the bare command is the terminal, --web the page; without a
// terminal it says what to use instead.
func TestSuperviseTerminalAndWeb(t *testing.T) {
	s := terminal(t, "supervise")
	s.await("Nothing waits for you")
	s.typed("q")
	if code := s.end(); code != 0 {
		t.Errorf("exit code %d:\n%s", code, s.text())
	}
	home := filepath.Dir(s.cmd.Dir)

	s = terminalIn(t, home, "supervise", "--web")
	s.await("Ctrl-C ends")
	link := regexp.MustCompile(`http://127\.0\.0\.1:\d+/in/[0-9a-f]+`)
	s.typed("\n")
	for len(link.FindAllString(s.text(), -1)) < 2 {
		s.await("http://")
	}
	links := link.FindAllString(s.text(), -1)
	for i, want := range []int{http.StatusForbidden, http.StatusOK} {
		resp, err := http.Get(links[i])
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("address %d: %s, want %d", i, resp.Status, want)
		}
	}
	s.typed("\x03")
	if code := s.end(); code != 0 {
		t.Errorf("exit code %d:\n%s", code, s.text())
	}

	for _, args := range [][]string{{"supervise"}, {"supervise", "--port", "8080"}, {"supervise", "--web", "--port", "70000"}, {"supervise", "nothing"}} {
		cmd := exec.Command("carboy", args...)
		cmd.Env = append(os.Environ(), "HOME="+home, "XDG_STATE_HOME="+home+"/state", "XDG_RUNTIME_DIR="+home+"/run")
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 2 || !strings.Contains(string(out), "hint: ") && len(args) == 1 {
			t.Errorf("%v: exit code %d: %s", args, code, out)
		}
	}
}
