package carboy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/testenv"
	"github.com/carboy/carboy/internal/trace"
)

// world is a client with state of its own and a workspace.
type world struct {
	ready *run.Prepared // where sh runs; nil: in a new bottle
	t     testing.TB
	c     *Client
	ws    string
}

func newWorld(t testing.TB) *world {
	t.Helper()
	base := t.TempDir()
	w := &world{t: t, ws: filepath.Join(base, "ws")}
	env := map[string]string{"XDG_STATE_HOME": filepath.Join(base, "state"), "XDG_RUNTIME_DIR": shortDir(t), "HOME": base, "TMPDIR": base, "PATH": os.Getenv("PATH")}
	if err := os.Mkdir(w.ws, 0o755); err != nil {
		t.Fatal(err)
	}
	w.c = openClient(t, env)
	return w
}

// shortDir returns a directory with a short path, for sockets.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "cb-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func openClient(t testing.TB, env map[string]string) *Client {
	t.Helper()
	c, err := Open(context.Background(), Options{Env: func(n string) string { return env[n] }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func (w *world) write(name, content string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.ws, name), []byte(content), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) read(name string) string {
	b, err := os.ReadFile(filepath.Join(w.ws, name))
	if err != nil {
		return "(" + err.Error() + ")"
	}
	return string(b)
}

// sh runs a script; the receipt must be there, an error need not.
func (w *world) sh(script string, f ...func(*plan.Options)) (*receipt.Receipt, string, error) {
	w.t.Helper()
	var out bytes.Buffer
	o := plan.Options{Command: []string{"sh", "-c", script}, Workspace: w.ws, Stdout: &out, Stderr: &out}
	for _, g := range f {
		g(&o)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	run := w.c.Run
	if w.ready != nil {
		run = w.ready.Run
	}
	r, err := run(ctx, o)
	return r, out.String(), err
}

func (w *world) ok(script string, f ...func(*plan.Options)) (*receipt.Receipt, string) {
	w.t.Helper()
	r, out, err := w.sh(script, f...)
	if err != nil || r.Exit.Code != 0 {
		w.t.Fatalf("%q: %v, exit %+v\n%s", script, err, r.Exit, out)
	}
	return r, out
}

func TestOverlayLandUndo(t *testing.T) {
	w := newWorld(t)
	w.write("kept", "1\n")
	w.write("gone", "2\n")
	r, _ := w.ok("echo more >> kept; rm gone; mkdir d; echo new > d/n")
	if w.read("kept") != "1\n" || w.read("gone") != "2\n" {
		t.Fatal("the host's workspace changed before landing")
	}
	if c := r.Changes; c.Added != 2 || c.Modified != 1 || c.Deleted != 1 {
		t.Fatalf("changes: %+v", c)
	}
	ctx := context.Background()
	if _, err := w.c.Land(ctx, r.ID, change.LandOptions{}); err != nil {
		t.Fatal(err)
	}
	if w.read("kept") != "1\nmore\n" || w.read("d/n") != "new\n" || !strings.Contains(w.read("gone"), "no such file") {
		t.Fatal("landing is not what the bottle made")
	}
	if _, err := w.c.Undo(ctx, r.ID, change.UndoOptions{}); err != nil {
		t.Fatal(err)
	}
	if w.read("kept") != "1\n" || w.read("gone") != "2\n" {
		t.Fatal("undo did not restore")
	}
}

func TestModes(t *testing.T) {
	w := newWorld(t)
	w.write("f", "host\n")
	for _, m := range []store.Mode{store.Copy, store.Overlay} {
		r, out := w.ok("cat f; echo bottle > f", func(o *plan.Options) { o.Mode = m })
		if out != "host\n" || w.read("f") != "host\n" || r.Changes.Modified != 1 {
			t.Errorf("%s: output %q, host %q, changes %+v", m, out, w.read("f"), r.Changes)
		}
	}
	r, _ := w.ok("echo bound > f", func(o *plan.Options) { o.Mode = store.Bind })
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], " f") {
		t.Errorf("bind: notes %q", r.Notes)
	}
	if w.read("f") != "bound\n" || r.Changes != nil && r.Changes.Total > 0 && r.Landable() {
		t.Errorf("bind: host has %q, changes %+v", w.read("f"), r.Changes)
	}
	_, out := w.ok("ls; pwd; echo x > y", func(o *plan.Options) { o.Mode = store.None })
	if strings.Contains(out, w.ws) || w.read("y") == "x\n" {
		t.Errorf("none: %q", out)
	}
}

func TestRefusedWorkspaces(t *testing.T) {
	w := newWorld(t)
	file := filepath.Join(w.ws, "file")
	w.write("file", "")
	for dir, why := range map[string]error{
		"/":                            change.ErrWorkspaceRoot,
		filepath.Join(w.ws, "missing"): change.ErrWorkspaceMissing,
		file:                           nil,
		w.c.StateDir():                 nil,
		filepath.Dir(w.c.StateDir()):   nil,
	} {
		r, err := w.c.Run(context.Background(), plan.Options{Command: []string{"true"}, Workspace: dir})
		if err == nil || r != nil {
			t.Errorf("workspace %s: accepted", dir)
			continue
		}
		if why != nil && !errors.Is(err, why) {
			t.Errorf("workspace %s: %v, want %v", dir, err, why)
		}
	}
	l, err := w.c.List(context.Background(), store.Query{})
	if err != nil || len(l.Runs) != 0 {
		t.Errorf("refused runs left records: %v, %v", l.Runs, err)
	}
	w.ok("true")
}

func TestCommandErrors(t *testing.T) {
	w := newWorld(t)
	w.write("plain", "not a program\n")
	for _, x := range []struct {
		cmd  []string
		code int
		is   error
	}{
		{[]string{"no-such-command"}, exitcode.NotFound, bottle.ErrNotFound},
		{[]string{"/no/such/path"}, exitcode.NotFound, bottle.ErrNotFound},
		{[]string{"./plain"}, exitcode.NotExecutable, bottle.ErrNotExecutable},
		{[]string{"."}, exitcode.NotExecutable, bottle.ErrNotExecutable},
	} {
		r, err := w.c.Run(context.Background(), plan.Options{Command: x.cmd, Workspace: w.ws})
		if !errors.Is(err, x.is) || r == nil || r.Exit.Code != x.code {
			t.Errorf("%v: %v, receipt %+v; want code %d", x.cmd, err, r, x.code)
		}
	}
	root := t.TempDir()
	r, _, err := w.sh("true", func(o *plan.Options) { o.RootFS = root })
	if !errors.Is(err, bottle.ErrNotFound) || r.Exit.Code != exitcode.NotFound {
		t.Errorf("root without a shell: %v", err)
	}
}

// A root shows no more of the host than a mount may.
func TestRootsThatShowTooMuch(t *testing.T) {
	w := newWorld(t)
	state := w.c.StateDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/", link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/", "/usr/..", link, state, filepath.Dir(state), filepath.Join(state, "runs")} {
		var bad *fault.OptionError
		if _, err := plan.New(w.c.host, &plan.Options{Workspace: w.ws, RootFS: dir}); !errors.As(err, &bad) || bad.Option != "--rootfs" {
			t.Errorf("%s: %v", dir, err)
		}
	}
	for _, dir := range []string{"", "host", t.TempDir(), "/usr"} {
		if _, err := plan.New(w.c.host, &plan.Options{Workspace: w.ws, RootFS: dir}); err != nil {
			t.Errorf("%q: %v", dir, err)
		}
	}
	if _, err := plan.New(w.c.host, &plan.Options{Workspace: w.ws, RootFS: "/no/such"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a root that is not there: %v", err)
	}
}

func TestBindExcludesOthers(t *testing.T) {
	w := newWorld(t)
	started := make(chan struct{})
	stop := make(chan os.Signal, 2)
	done := make(chan error, 1)
	go func() {
		_, _, err := w.sh("sleep 60", func(o *plan.Options) {
			o.Mode, o.Interrupt = store.Bind, stop
			o.OnEvent = func(e plan.Event) {
				if e.Kind == "started" {
					close(started)
				}
			}
		})
		done <- err
	}()
	<-started
	var busy *store.BusyError
	for _, m := range []store.Mode{store.Bind, store.Overlay} {
		if _, _, err := w.sh("true", func(o *plan.Options) { o.Mode = m }); !errors.As(err, &busy) {
			t.Errorf("second run (%s): %v, want busy", m, err)
		}
	}
	stop <- syscall.SIGINT
	if err := <-done; err != nil {
		t.Error(err)
	}
	w.ok("true", func(o *plan.Options) { o.Mode = store.Bind })
}

func TestInterrupts(t *testing.T) {
	w := newWorld(t)
	run := func(script string, n int) *receipt.Receipt {
		stop := make(chan os.Signal, 2)
		r, _, err := w.sh(script, func(o *plan.Options) {
			o.Interrupt = stop
			o.OnEvent = func(e plan.Event) {
				if e.Kind == "started" || e.Kind == "interrupt" && n > 1 {
					time.Sleep(300 * time.Millisecond) // let the trap be set
					stop <- syscall.SIGINT
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := run(`trap "echo saved > s; exit 5" INT; sleep 30 & wait`, 1); r.Exit.Code != 5 || r.Changes.Total != 1 {
		t.Errorf("once: exit %+v, changes %+v", r.Exit, r.Changes)
	}
	if r := run(`trap "" INT; echo kept > k; sleep 30`, 2); r.Exit.Reason != receipt.Killed || r.Changes.Total != 1 {
		t.Errorf("twice: exit %+v, changes %+v", r.Exit, r.Changes)
	}
}

// TestOddFiles: what a workspace may hold besides plain files.
func TestOddFiles(t *testing.T) {
	w := newWorld(t)
	odd := "new\nline \xff\xfe \u202e"
	w.write(odd, "x")
	if err := unix.Mkfifo(filepath.Join(w.ws, "pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	sock := filepath.Join(w.ws, "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: sock}); err != nil {
		t.Skip("the temporary directory's path is too long for a socket: set TMPDIR to a shorter one")
	}
	if err := unix.Listen(fd, 1); err != nil {
		t.Fatal(err)
	}
	r, out := w.ok(`ls | wc -l; mv new* renamed; mkfifo inner; ln -s /etc/passwd out; truncate -s 100M sparse || exit; printf '\377' > "$(printf 'b\377d')"`)
	var names []string
	for _, c := range r.Changes.List {
		names = append(names, string(c.Path))
	}
	for _, want := range []string{odd, "renamed", "inner", "out", "sparse", "b\xffd"} {
		found := false
		for _, n := range names {
			found = found || n == want
		}
		if !found {
			t.Errorf("%q is missing in %q\n%s", want, names, out)
		}
	}
	rep, err := w.c.Land(context.Background(), r.ID, change.LandOptions{})
	if err != nil {
		t.Fatal(err)
	}
	withheld := map[string]bool{}
	for _, x := range rep.Withheld {
		withheld[x.Path] = true
	}
	if !withheld["inner"] || !withheld["out"] {
		t.Errorf("withheld: %v; want the pipe and the link out", rep.Withheld)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(w.ws, "sparse"), &st); err != nil || st.Size != 100<<20 || st.Blocks*512 > 1<<20 {
		t.Errorf("the sparse file landed as %d bytes on %d blocks: %v", st.Size, st.Blocks, err)
	}
	if _, err := os.Lstat(filepath.Join(w.ws, "out")); err == nil {
		t.Error("a link out of the workspace landed")
	}
}

func TestManyFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("100,000 files; run without -short")
	}
	w := newWorld(t)
	for i := range 100 {
		dir := filepath.Join(w.ws, fmt.Sprint("d", i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for j := range 1000 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("f", j)), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	r, _ := w.ok("echo x > d50/f500; rm -r d7")
	if r.Changes.Modified != 1 || r.Changes.Deleted < 1001 {
		t.Errorf("changes: %d modified, %d deleted", r.Changes.Modified, r.Changes.Deleted)
	}
}

// TestMountedWorlds runs again in user and mount namespaces of its own, where
// anybody may mount: disks that are full or read-only. It is also a run as the
// only id of a container.
func TestMountedWorlds(t *testing.T) {
	if os.Getenv("CARBOY_TEST_MOUNTS") == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestMountedWorlds$", "-test.v")
		cmd.Env = append(os.Environ(), "CARBOY_TEST_MOUNTS=1", "HOME="+t.TempDir())
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
		if os.Getuid() == 0 {
			// Root's own id would be real root outside; another is none.
			cmd.SysProcAttr.UidMappings[0].HostID = 65534
			cmd.SysProcAttr.GidMappings[0].HostID = 65534
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true}
			dir, err := os.MkdirTemp("/tmp", "carboy-mounts-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			if err := os.Chown(dir, 65534, 65534); err != nil {
				t.Fatal(err)
			}
			cmd.Env = append(cmd.Env, "HOME="+dir, "TMPDIR="+dir)
			cmd.Dir = dir
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	tmpfs := func(t *testing.T, opts string) string {
		dir := t.TempDir()
		if err := unix.Mount("t", dir, "tmpfs", 0, opts); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
		return dir
	}
	t.Run("read-only workspace", func(t *testing.T) {
		w := newWorld(t)
		dir := tmpfs(t, "size=1m")
		os.WriteFile(dir+"/f", []byte("1\n"), 0o644)
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		w.ws = dir
		r, _ := w.ok("echo 2 >> f")
		if r.Changes.Modified != 1 {
			t.Fatalf("changes: %+v", r.Changes)
		}
		if _, err := w.c.Land(context.Background(), r.ID, change.LandOptions{}); !errors.Is(err, unix.EROFS) {
			t.Errorf("landing on a read-only disk: %v", err)
		}
		if w.read("f") != "1\n" {
			t.Errorf("the file is %q", w.read("f"))
		}
	})
	t.Run("full state disk during a trace", func(t *testing.T) { traceFull(t, tmpfs(t, "size=8m,mode=0700")) })
	t.Run("full state disk during a refusal", func(t *testing.T) { refusalFull(t, tmpfs(t, "size=8m,mode=0700")) })
	t.Run("full state disk", func(t *testing.T) {
		base := t.TempDir()
		state := tmpfs(t, "size=8m,mode=0700")
		env := map[string]string{"XDG_STATE_HOME": state, "XDG_RUNTIME_DIR": shortDir(t), "HOME": base, "TMPDIR": base, "PATH": os.Getenv("PATH")}
		w := &world{t: t, c: openClient(t, env), ws: filepath.Join(base, "ws")}
		if err := os.Mkdir(w.ws, 0o755); err != nil {
			t.Fatal(err)
		}
		w.ok("true")
		r, _, err := w.sh("head -c 20000000 /dev/zero | tr '\\0' x > big; echo small > s", func(o *plan.Options) { o.Limits.Disk = 64 << 20 })
		if err == nil && r.Exit.Code == 0 && len(r.Changes.Incomplete) == 0 {
			t.Errorf("20 MB fit into 8: %+v", r.Changes)
		}
		// Fill it to the last byte: a run must refuse, and work again later.
		fill(t, filepath.Join(state, "filler"))
		if r, _, err := w.sh("true"); err == nil && r.Exit.Code == 0 {
			t.Error("a run on a full disk reported success")
		}
		os.Remove(filepath.Join(state, "filler"))
		p, err := w.c.PlanGC(context.Background(), store.Policy{All: true, Unlanded: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.c.GC(context.Background(), p); err != nil {
			t.Fatal(err)
		}
		w.ok("true")
	})
}

// traceFull fills the disk of the state while a run is traced: the run goes on,
// and what is not kept any more is counted.
func traceFull(t *testing.T, state string) {
	base := t.TempDir()
	env := map[string]string{"XDG_STATE_HOME": state, "XDG_RUNTIME_DIR": shortDir(t), "HOME": base, "TMPDIR": base, "PATH": os.Getenv("PATH")}
	w := &world{t: t, c: openClient(t, env), ws: filepath.Join(base, "ws")}
	if err := os.Mkdir(w.ws, 0o755); err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	done := make(chan struct{})
	go func() { // ends below, when "go" is there
		defer close(done)
		defer w.write("go", "")
		<-started
		filler := filepath.Join(state, "filler")
		fill(t, filler)
		defer os.Remove(filler)
		// A round makes 280 KB of facts. What comes after the disk was full must
		// reach the file: the socket and the queue hold 2 MB each, less than 20 rounds.
		rounds := func() int64 {
			fi, err := os.Stat(filepath.Join(w.ws, "rounds"))
			if err != nil {
				return 0
			}
			return fi.Size()
		}
		if n := rounds(); !testenv.Poll(testenv.Patience(2*time.Minute), func() bool { return rounds() > n+20 }) {
			t.Errorf("%d rounds, and %d when the disk was full", rounds(), n)
		}
	}()
	r, out := w.ok(`while [ ! -e go ]; do for x in $(base64 -w2800 /dev/urandom | head -n 50); do [ -e "/$x" ]; [ -e "/$x/2" ]; done; echo -n x >>rounds; done; /bin/true; exit 0`, func(o *plan.Options) {
		o.Mode = store.Bind
		o.OnEvent = func(e plan.Event) {
			if e.Kind == "started" {
				close(started)
			}
		}
	})
	<-done
	tr := r.Trace
	if tr == nil || tr.Unkept == 0 || tr.Dropped != 0 || !strings.Contains(tr.Incomplete, "no space left") || r.Processes.Execs < 3 {
		t.Fatalf("trace %+v\n%s", tr, out)
	}
	f, err := w.c.Trace(r.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := int64(0)
	for x := (trace.Fact{}); ; n++ {
		if err = f.Next(&x); err != nil {
			break
		}
	}
	if tail := f.Tail(); err != io.EOF || !tail.Ended || !strings.Contains(tail.Reason, "no space left") || n+tr.Unkept != tr.Facts {
		t.Errorf("%v, %d facts, tail %+v, receipt %+v", err, n, tail, tr)
	}
}

// refusalFull fills the disk of the state while something is refused. The audit log
// must have every refusal, so the run fails; the log of requests says what it lacks.
// With room neither is so.
func refusalFull(t *testing.T, state string) {
	base := t.TempDir()
	env := map[string]string{"XDG_STATE_HOME": state, "XDG_RUNTIME_DIR": shortDir(t), "HOME": base, "TMPDIR": base, "PATH": os.Getenv("PATH")}
	w := &world{t: t, c: openClient(t, env), ws: filepath.Join(base, "ws")}
	if err := os.Mkdir(w.ws, 0o777); err != nil {
		t.Fatal(err)
	}
	os.Chmod(w.ws, 0o777)
	waitFor := func(name string) {
		if !testenv.Poll(testenv.Patience(time.Minute), func() bool {
			_, err := os.Stat(filepath.Join(w.ws, name))
			return err == nil
		}) {
			t.Errorf("%s never came", name)
		}
	}
	for _, full := range []bool{false, true} {
		done := make(chan struct{})
		go func() { // ends below, when "asked" is there
			defer close(done)
			defer w.write("over", "")
			waitFor("begun")
			filler := filepath.Join(state, "filler")
			if full {
				fill(t, filler)
				defer os.Remove(filler)
			}
			w.write("go", "")
			waitFor("asked")
		}()
		r, out, err := w.sh(`touch begun; until [ -e go ]; do sleep 0.1; done; for i in $(seq 60); do getent hosts refused$i.example; done; sleep 1; touch asked; until [ -e over ]; do sleep 0.1; done; rm -f begun go asked over; exit 0`,
			func(o *plan.Options) { o.Mode = store.Bind })
		<-done
		if r == nil || r.Exit.Code != 0 || r.Network.Log == nil {
			t.Fatalf("%v, %+v\n%s", err, r, out)
		}
		var unrecorded *run.RecordError
		l := *r.Network.Log
		switch {
		case full && (!errors.As(err, &unrecorded) || !errors.Is(err, unix.ENOSPC)):
			t.Errorf("refusals could not be recorded, and the run ended with %v", err)
		case full && (l.LeftOut == 0 || !strings.Contains(l.Incomplete, "no space left")):
			t.Errorf("%+v", l)
		case !full && (err != nil || l.Records < 4 || l.LeftOut != 0 || l.Incomplete != ""):
			t.Errorf("%v, %+v", err, l)
		}
	}
}

func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, n := range []int{1 << 20, 4096, 1} {
		b := make([]byte, n)
		for {
			if _, err := f.Write(b); err != nil {
				break
			}
		}
	}
}

// TestForbiddenUserNamespaces: the refusal says what is wrong and what to do.
func TestForbiddenUserNamespaces(t *testing.T) {
	if os.Getenv("CARBOY_TEST_NONS") == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestForbiddenUserNamespaces$", "-test.v")
		cmd.Env = append(os.Environ(), "CARBOY_TEST_NONS=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	_, _, err := w.sh("true")
	var u *bottle.UnavailableError
	if !errors.As(err, &u) || u.Advice == "" {
		t.Fatalf("%v (%T), want a refusal with advice", err, err)
	}
}

func TestClockJump(t *testing.T) {
	w := newWorld(t)
	a, _ := w.ok("true")
	b, _ := w.ok("true")
	if a.ID >= b.ID {
		t.Errorf("ids are not in order: %s, %s", a.ID, b.ID)
	}
	if a.Duration <= 0 || a.Duration > time.Minute {
		t.Errorf("duration %v", a.Duration)
	}
}

func TestUnsetVariableLeavesNoRun(t *testing.T) {
	w := newWorld(t)
	var o *fault.OptionError
	if _, _, err := w.sh("true", func(o *plan.Options) { o.Env = []string{"SURELY_NOT_SET"} }); !errors.As(err, &o) {
		t.Fatalf("%v, want an option error", err)
	}
	l, err := w.c.List(context.Background(), store.Query{})
	if err != nil || len(l.Runs) != 0 {
		t.Errorf("records: %v, %v", l.Runs, err)
	}
}

// brokenPipe is a reader that went away.
type brokenPipe struct{}

func (brokenPipe) Write(b []byte) (int, error) { return 0, unix.EPIPE }

func TestReaderGoesAway(t *testing.T) {
	w := newWorld(t)
	r, err := w.c.Run(context.Background(), plan.Options{Command: []string{"yes"}, Workspace: w.ws, Stdout: brokenPipe{}})
	// The kernel inside sends no SIGPIPE for the host's pipes, but the write fails.
	if err != nil || r.Exit.Reason != receipt.Exited || r.Exit.Code == 0 {
		t.Errorf("%v, exit %+v; want a failed write, not the limit on output", err, r.Exit)
	}
}

func TestCopyLeavesOut(t *testing.T) {
	owner, other := &plan.User{HostUID: 1000, HostGID: 1000}, uint32(0)
	info := func(uid, mode uint32) os.FileInfo { return fakeInfo{uid, mode} }
	for _, x := range []struct {
		as    *plan.User
		roots bool
		fi    os.FileInfo
		want  bool
	}{
		{nil, false, info(other, 0o600), true},
		{owner, false, info(1000, 0o600), true},
		{owner, false, info(1000, 0o000), false},
		{owner, false, info(other, 0o600), false},
		{owner, false, info(other, 0o604), true},
		{owner, true, info(other, 0o600), true},
		{owner, true, info(1234, 0o600), false},
	} {
		if got := (plan.Copier{As: x.as, Roots: x.roots}).MayRead(x.fi); got != x.want {
			t.Errorf("as %v, roots %v, %+v: %v", x.as, x.roots, x.fi, got)
		}
	}
	ws, err := store.ResolveWorkspace(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dst := filepath.Join(t.TempDir(), "copy")
	if err := (plan.Copier{Id: ws}).Tree(context.Background(), t.TempDir(), dst); err == nil {
		t.Error("another directory was copied")
	}
	if err := (plan.Copier{Id: ws}).Tree(context.Background(), string(ws.Path), dst); err != nil {
		t.Error(err)
	}
}

type fakeInfo struct{ uid, mode uint32 }

func (f fakeInfo) Name() string { return "f" }

func (f fakeInfo) Size() int64 { return 0 }

func (f fakeInfo) Mode() os.FileMode { return os.FileMode(f.mode) }

func (f fakeInfo) ModTime() time.Time { return time.Time{} }

func (f fakeInfo) IsDir() bool { return false }

func (f fakeInfo) Sys() any { return &syscall.Stat_t{Uid: f.uid, Gid: f.uid, Mode: f.mode} }

// reopen returns options that open the state that o opened.
func reopen(o host.Options) Options {
	return Options{Env: o.Env, Config: o.Config, Log: o.Log, Resolver: o.Resolver, Roots: o.Roots, dial: o.Dial}
}
