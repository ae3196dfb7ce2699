package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	macsession "github.com/carboy/carboy/internal/macos/session"
)

// On macOS this directory is another program, so each file says that it is Linux's.
func TestFilesAreForLinux(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(name, "_test.go") && !strings.HasSuffix(name, "_darwin.go") && !strings.HasPrefix(string(b), "//go:build linux\n") {
			t.Errorf("%s does not begin with //go:build linux", name)
		}
	}
}

// carboy in a machine runs a bottle for carboy outside: its streams, its exit code, and a
// credential's variable that no process of the machine can read.
func TestMachineSession(t *testing.T) {
	home := newHome(t)
	ws := filepath.Join(home, "ws")
	run := func(in string, env map[string]string, args ...string) (string, string, int) {
		t.Helper()
		m := exec.Command("carboy", macsession.Command)
		m.Env = append(os.Environ(), "XDG_STATE_HOME="+home+"/state")
		stdin, err := m.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := m.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
		var out, msg bytes.Buffer
		code, err := macsession.Run(t.Context(), stdout, stdin, macsession.Options{
			Args: args, Dir: ws, Home: home, Env: env, In: macsession.Pipe, Out: macsession.Pipe, Err: macsession.Pipe,
			Stdin: strings.NewReader(in), Stdout: &out, Stderr: &msg, UID: os.Getuid(), GID: os.Getgid(),
			Size: func() macsession.Size { return macsession.Size{} }, Say: func(s string) { t.Log(s) },
		})
		if err != nil {
			t.Fatalf("%q: %v: %s", args, err, msg.String())
		}
		stdin.Close()
		if err := m.Wait(); err != nil {
			t.Error(err)
		}
		return out.String(), msg.String(), code
	}
	const key = "sk-only-in-memory"
	env := map[string]string{"MY_KEY": key, "XDG_RUNTIME_DIR": home + "/run"}
	out, msg, code := run("typed", env, "run", "--quiet", "--credential", "my=MY_KEY@api.example.com", "--", "sh", "-c", `cat; echo made >made.txt; env; cat /proc/*/environ; exit 7`)
	if code != 7 || !strings.HasPrefix(out, "typed") || strings.Contains(out, key) {
		t.Errorf("%d, %q, %q", code, out, msg)
	}
	if out, msg, code := run("", env, "diff"); code != 0 || !strings.Contains(out, "made.txt") {
		t.Errorf("diff: %d, %q, %q", code, out, msg)
	}
	if _, msg, code := run("", env, "run", "--credential", "my=ABSENT@api.example.com", "--", "true"); code != 125 || !strings.Contains(msg, "ABSENT") {
		t.Errorf("without the variable: %d, %q", code, msg)
	}
}
