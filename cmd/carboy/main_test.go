package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/corpus/attacker"
	"github.com/carboy/carboy/internal/receipt/receipttest"
	"github.com/carboy/carboy/internal/testenv"
)

// The test binary is the carboy of the scripts, inner processes included.
func TestMain(m *testing.M) {
	carboy.Main()
	preparedMain()
	attacker.Main()
	strangerMain()
	testenv.OwnMounts()
	testscript.Main(m, map[string]func(){"carboy": func() { stopAtStep(); os.Exit(mainCode()) }, "asker": askerMain})
}

// TestScript runs the sessions in testdata. They start real bottles.
func TestScript(t *testing.T) {
	testenv.Need(t, "git", "apt-get install git")
	testenv.Need(t, "bash", "apt-get install bash")
	if testenv.CI() { // scripts that need it skip themselves where it is missing
		testenv.Need(t, "curl", "apt-get install curl")
	}
	// Root runs bottles as the workspace's owner, who must get there.
	root, err := os.MkdirTemp("", "carboy-cli-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		WorkdirRoot:         root,
		Setup:               setup,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"code": cmdCode, "serve": cmdServe, "own": cmdOwn, "valid": cmdValid},
	})
}

const nobody = 65534

// setup gives each script a state of its own and, under root, a workspace that
// belongs to somebody else: as root nothing runs in a bottle.
func setup(e *testscript.Env) error {
	runtime, err := os.MkdirTemp("", "cb-") // short: Unix sockets live here
	if err != nil {
		return err
	}
	e.Defer(func() { os.RemoveAll(runtime) })
	e.Setenv("XDG_RUNTIME_DIR", runtime)
	e.Setenv("XDG_STATE_HOME", filepath.Join(e.WorkDir, ".state"))
	e.Setenv("XDG_CONFIG_HOME", filepath.Join(e.WorkDir, ".config"))
	e.Setenv("HOME", filepath.Join(e.WorkDir, ".home"))
	e.Setenv("GIT_CONFIG_NOSYSTEM", "1")
	if err := os.MkdirAll(filepath.Join(e.WorkDir, "ws"), 0o755); err != nil {
		return err
	}
	return own(filepath.Join(e.WorkDir, "ws"))
}

// own makes dir belong to whom a bottle started by root runs as.
func own(dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, nobody, nobody)
	})
}

// cmdOwn: own DIR...
func cmdOwn(ts *testscript.TestScript, neg bool, args []string) {
	for _, dir := range args {
		ts.Check(own(ts.MkAbs(dir)))
	}
}

// cmdValid: valid SCHEMA FILE holds a document to the schema that is published.
func cmdValid(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: valid schema file")
	}
	s, err := receipttest.Load(filepath.Join("..", "..", "docs", "schemas", args[0]))
	ts.Check(err)
	var v any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[1])), &v))
	problems := s.Check(v)
	if neg != (len(problems) > 0) {
		ts.Fatalf("%s: %d problems: %q", args[1], len(problems), problems)
	}
}

// cmdCode: code N PROGRAM [ARG...] runs a program that must end with N.
func cmdCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N program [arg...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	err = ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// cmdServe: serve NAME starts a web server on the loopback and sets $NAME to
// its port.
func cmdServe(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: serve NAME")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	name := args[0]
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/missing") {
			http.NotFound(w, r)
			return
		}
		io.WriteString(w, "this is "+name+"\n")
	})}
	done := make(chan struct{})
	go func() { srv.Serve(l); close(done) }()
	ts.Defer(func() { srv.Close(); <-done })
	ts.Setenv(name, fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
}
