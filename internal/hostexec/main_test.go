package hostexec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/testenv"
)

// helperName is a program that exists in tests only: this test binary under
// another name, which becomes a shell. It goes through everything that a real
// program goes through, the trust and ELF checks included.
const (
	helperName = "carboy-test-helper"
	helper     = Program(200)
)

var helperDir string

// measured holds the name of a supervisor, or of a process that seals itself, whose coverage
// is collected. Counters can be sent from TestMain on, so it takes over there: variables come
// before init, which then finds another name.
var measured = func() string {
	name := os.Args[0]
	if len(os.Args) != 1 || name != supervisorArg0 && name != sealedArg0 || !testenv.CoverageWanted() {
		return ""
	}
	os.Args[0] = "measured"
	return name
}()

// The helper executes the shell from the first thread: only that one has the signal that
// ends a sealed program with carboy.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	send := testenv.ReportCoverage(m)
	switch measured {
	case supervisorArg0:
		code := supervise()
		send()
		syscall.Exit(code)
	case sealedArg0:
		o, err := sealSelf()
		send()
		o.become(err)
	}
	if filepath.Base(os.Args[0]) == helperName {
		if os.Args[1] == tryCalls {
			makeCalls()
		}
		args := append([]string{"sh", "-c"}, os.Args[1:]...)
		err := syscall.Exec("/bin/sh", args, os.Environ())
		fmt.Fprintln(os.Stderr, err)
		os.Exit(99)
	}
	if os.Args[0] == string(RolePrepared) {
		os.Exit(detached())
	}
	if len(os.Args) == 3 && os.Args[1] == "run-and-wait" {
		os.Exit(runAndWait(os.Args[2]))
	}
	if len(os.Args) == 3 && os.Args[1] == "seal-and-wait" {
		os.Exit(sealAndWait(os.Args[2]))
	}
	stop, err := testenv.CollectCoverage()
	if err != nil {
		fmt.Fprintln(os.Stderr, "collect coverage:", err)
		os.Exit(1)
	}
	code := withHelper(m.Run)
	stop()
	os.Exit(code)
}

func withHelper(f func() int) int {
	dir, err := os.MkdirTemp("", "hostexec-test-")
	if err == nil {
		defer os.RemoveAll(dir)
		helperDir = dir
		err = copyProgram("/proc/self/exe", filepath.Join(dir, helperName))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostexec tests:", err)
		return 1
	}
	return f()
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return errors.Join(err, out.Close())
	}
	return errors.Join(out.Close(), os.Chmod(to, 0o755))
}

// withTestHelper lets r run the helper, with every argument admitted.
func withTestHelper(r *Runner, dir string) *Runner {
	r.programs = map[Program]*spec{helper: {
		name: helperName,
		env:  map[string]func(string) bool{"TZ": isZoneName},
		prepare: func(c *call) error {
			c.argv = c.args
			return nil
		},
	}, Git: hostPrograms[Git]}
	r.dirs = append([]string{dir}, trustedDirs...)
	return r
}

func newTestRunner(t *testing.T, opt Options) *Runner {
	t.Helper()
	if opt.Scratch == "" {
		opt.Scratch = t.TempDir()
	}
	r, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := r.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return withTestHelper(r, helperDir)
}

// shell is a command that runs script in the helper.
func shell(t *testing.T, script string) Command {
	return Command{Program: helper, Args: []string{script}, Dir: t.TempDir(), Timeout: 5 * time.Minute}
}

// sleeper gives a sleep command line that is unique on this machine, so that
// its processes can be found, wherever they went.
func sleeper(t *testing.T) string {
	return fmt.Sprintf("sleep 100000.%d%d", os.Getpid(), time.Now().UnixNano()%1e9)
}

// alive counts the processes whose command line holds the sleeper's argument.
func alive(sleeper string) int {
	arg := strings.TrimPrefix(sleeper, "sleep ")
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	n := 0
	for _, f := range files {
		b, _ := os.ReadFile(f)
		for _, a := range strings.Split(string(b), "\x00") {
			if a == arg {
				n++
			}
		}
	}
	return n
}

// eventually fails the test if ok does not become true in time.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if !testenv.Poll(30*time.Second, ok) {
		t.Fatalf("never: %s", what)
	}
}

func reasonOf(err error) Reason {
	var no *refusal
	if errors.As(err, &no) {
		return no.Reason
	}
	return 0
}

func wantReason(t *testing.T, err error, want Reason) {
	t.Helper()
	if got := reasonOf(err); got != want {
		t.Fatalf("reason %q, want %q; error %v", got, want, err)
	}
	if !errors.Is(err, errRefused) {
		t.Fatalf("%v is not ErrRefused", err)
	}
}
