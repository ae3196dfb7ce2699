package start

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// program puts a script in the place of container, and returns an environment that finds
// it.
func program(t *testing.T, script string) []string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "container"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=/h", "API_KEY=secret", "SSH_AUTH_SOCK=/s", "LIMA_HOME=/l", "DYLD_INSERT_LIBRARIES=/x", "HTTPS_PROXY=p", "HOMEX=1"}
}

// The set is closed.
func TestLook(t *testing.T) {
	program(t, "")
	if p, err := Look(Container); err != nil || !filepath.IsAbs(p) {
		t.Errorf("%q, %v", p, err)
	}
	for _, p := range []Program{"sh", "", "/bin/sh", "container/../sh"} {
		if found, err := Look(p); err == nil {
			t.Errorf("%q is started from %s", p, found)
		}
		if _, err := Run(t.Context(), Call{Program: p}); err == nil {
			t.Errorf("%q was started", p)
		}
	}
}

// A program gets few of the user's variables, and no key.
func TestEnvironment(t *testing.T) {
	env := program(t, "env")
	out, err := Run(t.Context(), Call{Program: Container, Env: env})
	if err != nil {
		t.Fatal(err)
	}
	have := strings.Split(string(out), "\n")
	for _, v := range []string{"HOME=/h", "LIMA_HOME=/l", "HTTPS_PROXY=p"} {
		if !slices.Contains(have, v) {
			t.Errorf("it lacks %s: %q", v, have)
		}
	}
	for _, n := range []string{"API_KEY", "SSH_AUTH_SOCK", "DYLD", "HOMEX"} {
		if strings.Contains(string(out), n) {
			t.Errorf("it has %s: %q", n, have)
		}
	}
}

func TestRun(t *testing.T) {
	env := program(t, `case $1 in
fail) echo first >&2; echo "last words" >&2; exit 9;;
huge) head -c 9000000 /dev/zero;;
noisy) head -c 100000 /dev/zero >&2; exit 1;;
cat) cat;;
esac`)
	var exit *ExitError
	if _, err := Run(t.Context(), Call{Program: Container, Args: []string{"fail"}, Env: env}); !errors.As(err, &exit) || exit.Code != 9 || err.Error() != "container ended with 9: last words" {
		t.Errorf("%v", err)
	}
	if _, err := Run(t.Context(), Call{Program: Container, Args: []string{"huge"}, Env: env}); err == nil {
		t.Error("any amount of output is kept")
	}
	if _, err := Run(t.Context(), Call{Program: Container, Args: []string{"noisy"}, Env: env}); !errors.As(err, &exit) || len(exit.Stderr) != maxErrors {
		t.Errorf("%d bytes of messages are kept", len(exit.Stderr))
	}
	var shown bytes.Buffer
	out, err := Run(t.Context(), Call{Program: Container, Args: []string{"cat"}, Env: env, Stdin: strings.NewReader("in"), Show: &shown})
	if err != nil || len(out) != 0 || shown.String() != "in" {
		t.Errorf("%q, %q, %v", out, shown.String(), err)
	}
}

// A program that is begun ends with its standard input, or when it is no longer wanted.
func TestBegin(t *testing.T) {
	env := program(t, "echo ready; cat; exit 3")
	for _, cancelled := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		p, err := Begin(ctx, Call{Program: Container, Env: env})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(p.Stdout, make([]byte, len("ready\n"))); err != nil {
			t.Fatal(err)
		}
		if cancelled {
			cancel()
		}
		var exit *ExitError
		if err := p.Wait(); !cancelled && (!errors.As(err, &exit) || exit.Code != 3) || err == nil {
			t.Errorf("cancelled %t: %v", cancelled, err)
		}
		cancel()
	}
}
