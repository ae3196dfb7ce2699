// Package bottletest is the test suite of the contract in package bottle. Every
// backend runs it, so that all of them give its words the same meaning.
//
// A backend's test calls [Main] in TestMain, after its own entry point, and
// then [Run]. Start reading at Run.
package bottletest

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/rootfs"
	"github.com/carboy/carboy/internal/testenv"
)

// patience bounds every wait. It is reached only when something hangs, so it
// suits a busy machine and a virtual machine that is emulated on it.
const patience = 5 * time.Minute

// Run runs the whole suite. backend returns a ready backend; it is called for
// each bottle, so it must be cheap. The host needs a shell and the usual small
// tools below /usr, which the suite shows read-only inside.
func Run(t *testing.T, backend func() bottle.Backend) { RunWithout(t, backend, nil) }

// RunWithout is Run for a place that stands in for a backend's own, or one of several that a
// backend has, and lacks something. without holds the names of the tests that can't run
// there, and why; or of parts of tests: "pipes", that named pipes are kept, and "holes", that
// copies of files keep them.
func RunWithout(t *testing.T, backend func() bottle.Backend, without map[string]string) {
	s := &suite{backend: backend, guest: guestBinary(t), without: without}
	for _, c := range []struct {
		name string
		test func(*suite, *testing.T)
	}{
		{"ExitCodes", (*suite).exitCodes},
		{"Signals", (*suite).signals},
		{"SignalGroup", (*suite).signalGroup},
		{"NotFound", (*suite).notFound},
		{"NotExecutable", (*suite).notExecutable},
		{"WorkingDir", (*suite).workingDir},
		{"Stdio", (*suite).stdio},
		{"LargeArguments", (*suite).largeArguments},
		{"Environment", (*suite).environment},
		{"Identity", (*suite).identity},
		{"Concurrent", (*suite).concurrent},
		{"Orphans", (*suite).orphans},
		{"WaitContext", (*suite).waitContext},

		{"OverlayLeavesHost", (*suite).overlayLeavesHost},
		{"ReadOnlyMount", (*suite).readOnlyMount},
		{"ReadWriteMount", (*suite).readWriteMount},
		{"FileMount", (*suite).fileMount},
		{"SwappedMount", (*suite).swappedMount},
		{"RootIsReadOnlyBelow", (*suite).rootLayer},
		{"NoWireNoNetwork", (*suite).noWire},
		{"ProxyOnly", (*suite).proxyOnly},

		{"PauseStops", (*suite).pauseStops},
		{"ExportChanges", (*suite).exportChanges},
		{"ExportDeletions", (*suite).exportDeletions},
		{"ExportLinks", (*suite).exportLinks},
		{"ExportNames", (*suite).exportNames},
		{"ExportLarge", (*suite).exportLarge},
		{"ExportScratch", (*suite).exportScratch},
		{"ExportBrokenReader", (*suite).exportBrokenReader},
		{"Checkpoints", (*suite).checkpoints},

		{"LimitsValidated", (*suite).limitsValidated},
		{"LimitPids", (*suite).limitPids},
		{"LimitDisk", (*suite).limitDisk},
		{"LimitFileSize", (*suite).limitFileSize},
		{"LimitOpenFiles", (*suite).limitOpenFiles},
		{"Memory", (*suite).memory},

		{"Terminal", (*suite).terminal},
		{"TerminalResize", (*suite).terminalResize},
		{"TerminalInterrupt", (*suite).terminalInterrupt},
		{"TerminalJobControl", (*suite).terminalJobs},

		{"FreezeThaw", (*suite).freezeThaw},
		{"FreezeTerminal", (*suite).freezeTerminal},
		{"Upper", (*suite).upper},

		{"Trace", (*suite).trace},
		{"Posture", (*suite).posture},
		{"CloseIdempotent", (*suite).closeIdempotent},
		{"CloseConcurrent", (*suite).closeConcurrent},
		{"CloseDuringStart", (*suite).closeDuringStart},
		{"CloseEndsCalls", (*suite).closeEndsCalls},
		{"CreateCancelled", (*suite).createCancelled},
		{"CreateFails", (*suite).createFails},
		{"NoLeaks", (*suite).noLeaks},
	} {
		t.Run(c.name, func(t *testing.T) {
			if why := without[c.name]; why != "" {
				t.Skip("SKIPPED: not given by what stands in here: " + why)
			}
			c.test(s, t)
		})
	}
}

// lacking runs what holds of a backend without the capability, under its name, and reports
// whether the backend is one. Nothing is skipped: what a backend declares is tested, too.
func (s *suite) lacking(t *testing.T, what bottle.Capability, holds func(t *testing.T)) bool {
	t.Helper()
	why, missing := s.backend().Capabilities().Lacks(what)
	if !missing {
		return false
	}
	t.Run("without="+string(what), func(t *testing.T) {
		t.Logf("%s has no %s: %s", s.backend().Name(), what, why)
		if why == "" {
			t.Error("it does not say why")
		}
		holds(t)
	})
	return true
}

type suite struct {
	backend func() bottle.Backend
	guest   string // a copy of the test binary that every user may read
	without map[string]string
}

// guestPath is the path of the test binary inside.
const guestPath = "/bottletest-guest"

// guestBinary copies the test binary to a place that the bottle's user can
// reach: go test builds it in a private directory.
func guestBinary(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "bottletest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	path := filepath.Join(dir, "guest")
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

const mib = 1 << 20

// strayID is the host id of root's bottles; it owns nothing on a host.
const strayID = 1_907_000_001

// spec returns a plan with an overlay workspace that holds a.txt, and no wire.
func (s *suite) spec(t testing.TB) *bottle.Spec {
	t.Helper()
	ws := t.TempDir()
	write(t, filepath.Join(ws, "a.txt"), "hello\n")
	u := bottle.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Name: "carboy", Home: "/home/carboy"}
	spec := &bottle.Spec{
		ID: "contract", Hostname: "contract",
		Limits:    bottle.Limits{Memory: 1 << 30, Pids: 200, Disk: 256 * mib, CPUs: 2, Output: mib, FileSize: 128 * mib, OpenFiles: 1024},
		Workspace: &bottle.Mount{Source: ws, Target: ws, Access: bottle.AccessOverlay},
	}
	if u.UID == 0 {
		u.UID, u.GID = 1000, 1000
		spec.HostUID, spec.HostGID = strayID, strayID
	}
	spec.User = u
	root, err := rootfs.Host(rootfs.Options{User: u, Hostname: spec.Hostname})
	if err != nil {
		t.Fatal(err)
	}
	root.Binds = append(root.Binds, bottle.Mount{Source: s.guest, Target: guestPath, Access: bottle.AccessReadOnly})
	spec.Root = root
	return spec
}

// shared makes a directory that the bottle's user owns, as for a writable
// mount.
func shared(t testing.TB, spec *bottle.Spec) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "bottletest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, int(spec.HostUID), int(spec.HostGID)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// box is a live bottle with helpers.
type box struct {
	bottle.Bottle
	t    testing.TB
	ctx  context.Context
	spec *bottle.Spec

	backend bottle.Backend
}

func (s *suite) create(t testing.TB, tune ...func(*bottle.Spec)) *box {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	spec := s.spec(t)
	for _, f := range tune {
		f(spec)
	}
	backend := s.backend()
	b, err := backend.Create(ctx, spec)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	t.Cleanup(func() { testenv.AwaitReports(); b.Close() })
	return &box{Bottle: b, t: t, ctx: ctx, spec: spec, backend: backend}
}

// environ is the default environment of commands.
var environ = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/home/carboy", "LC_ALL=C.UTF-8"}

// proc is a started command whose output is being read.
type proc struct {
	bottle.Process
	b        *box
	stdin    *os.File
	out, err testenv.Buffer
	copied   sync.WaitGroup
}

// command starts args. tune may change the Command first.
func (b *box) command(tune func(*bottle.Command), args ...string) (*proc, error) {
	b.t.Helper()
	p := &proc{b: b}
	var ends [6]*os.File
	for i := 0; i < 6; i += 2 {
		r, w, err := os.Pipe()
		if err != nil {
			b.t.Fatal(err)
		}
		ends[i], ends[i+1] = r, w
	}
	p.stdin = ends[1]
	cmd := &bottle.Command{Args: args, Env: environ, Dir: b.spec.Workspace.Target, Stdin: ends[0], Stdout: ends[3], Stderr: ends[5]}
	if tune != nil {
		tune(cmd)
	}
	for i, to := range []*testenv.Buffer{&p.out, &p.err} {
		r := ends[2+2*i]
		p.copied.Add(1)
		go func() { // ends when the last writer inside is gone
			defer p.copied.Done()
			io.Copy(to, r)
			r.Close()
		}()
	}
	var err error
	p.Process, err = b.Start(b.ctx, cmd)
	for _, f := range []*os.File{ends[0], ends[3], ends[5]} {
		f.Close()
	}
	if err != nil {
		p.stdin.Close()
		p.copied.Wait()
		return nil, err
	}
	return p, nil
}

// start starts args, or ends the test.
func (b *box) start(args ...string) *proc {
	b.t.Helper()
	p, err := b.command(nil, args...)
	if err != nil {
		b.t.Fatalf("start %.200q: %v", args, err)
	}
	return p
}

// end waits for the command and for its output.
func (p *proc) end() bottle.Status {
	p.b.t.Helper()
	p.stdin.Close()
	st, err := p.Wait(p.b.ctx)
	if err != nil {
		p.b.t.Fatalf("wait: %v", err)
	}
	p.copied.Wait()
	return st
}

// waitFor waits until the command has written text.
func (p *proc) waitFor(text string) {
	p.b.t.Helper()
	if !testenv.Poll(patience, func() bool { return strings.Contains(p.out.String(), text) }) {
		p.b.t.Fatalf("no %q in output %.500q", text, p.out.String())
	}
}

// sh runs a script that must succeed and returns what it wrote.
func (b *box) sh(script string) string {
	b.t.Helper()
	p := b.start("/bin/sh", "-c", "set -e\n"+script)
	if st := p.end(); st.ExitCode() != 0 {
		b.t.Fatalf("script %.300q ended with %+v: %s%s", script, st, p.out.String(), p.err.String())
	}
	return p.out.String()
}

// guestRun runs one of the guest's functions inside and returns its output.
func (b *box) guestRun(args ...string) string {
	b.t.Helper()
	p := b.start(append([]string{guestPath}, args...)...)
	if st := p.end(); st.ExitCode() != 0 {
		b.t.Fatalf("guest %.300q ended with %+v: %s%s", args, st, p.out.String(), p.err.String())
	}
	return strings.TrimSpace(p.out.String())
}

// soon fails the test when f does not return before patience is over.
func soon(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("%s hangs", what)
	}
}

func want(t testing.TB, what string, got, want any) {
	t.Helper()
	if strings.TrimSpace(fmt.Sprint(got)) != strings.TrimSpace(fmt.Sprint(want)) {
		t.Errorf("%s: got %.300q, want %.300q", what, fmt.Sprint(got), fmt.Sprint(want))
	}
}
