package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const childEnv = "CARBOY_STORE_TEST_CHILD"

// TestMain lets the test binary be another process that uses the store.
func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := child(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child makes, finishes and removes runs until it is killed, and says what is done once the call has returned.
func child(dir string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	signal.Ignore(unix.SIGXFSZ)
	s, err := Open(dir)
	if err != nil {
		return err
	}
	ws, err := ResolveWorkspace(filepath.Dir(dir))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for i := 0; ; i++ {
		c, err := s.Claim(ctx, ForRun, ws, Shared, "")
		if err != nil {
			return err
		}
		if err := oneRun(ctx, s, ws, i%2 == 0, func(what string, id ID) { fmt.Println(what, id) }); err != nil {
			return err
		}
		c.Release()
	}
}

// oneRun leads one run through its life.
func oneRun(ctx context.Context, s *Store, ws Workspace, remove bool, say func(string, ID)) error {
	r, err := s.Create(ctx, Spec{Kind: KindRun, Workspace: ws, Mode: Overlay, Command: []string{"x"}})
	if err != nil {
		return err
	}
	defer r.Close()
	say("created", r.ID())
	if err := r.Start(ctx, ""); err != nil {
		return err
	}
	say("running", r.ID())
	if err := os.MkdirAll(r.Path(upperDir, "a", "b"), 0o700); err != nil {
		return err
	}
	if err := r.WriteReceipt(ctx, map[string]string{"schema": Schema("receipt"), "filler": strings.Repeat("x", 5000)}); err != nil {
		return err
	}
	if _, err := r.Finish(ctx, 0, NoChanges); err != nil {
		return err
	}
	say("finished", r.ID())
	r.Close()
	if !remove {
		return nil
	}
	say("removing", r.ID())
	if err := s.Remove(ctx, r.ID(), RemoveOptions{}); err != nil {
		return err
	}
	say("removed", r.ID())
	return nil
}

// whole holds the state directory to what must be true after any crash. said is the last word about each run.
func whole(t *testing.T, dir, when string, said map[ID]string) {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	defer s.Close()
	before, err := s.List(ctx, Query{})
	if err != nil || len(before.Corrupt) > 0 {
		t.Fatalf("%s: %v %v", when, err, before.Corrupt)
	}
	r, err := s.Recover(ctx)
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	for _, m := range r.Lost {
		if err := s.Cleaned(ctx, m.ID); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
	}
	l, err := s.List(ctx, Query{})
	if err != nil || len(l.Corrupt) > 0 {
		t.Fatalf("%s: %v %v", when, err, l.Corrupt)
	}
	state := map[ID]State{}
	for _, m := range l.Runs {
		state[m.ID] = m.State
		if !m.State.Over() {
			t.Errorf("%s: %s is %s after recovery", when, m.ID, m.State)
		}
		var receipt map[string]string
		if err := s.readDocument(m.ID, ReceiptFile, "receipt", &receipt); m.State == Finished && (err != nil || len(receipt["filler"]) != 5000) {
			t.Errorf("%s: %s is finished, its receipt: %v", when, m.ID, err)
		}
	}
	for id, word := range said {
		got, there := state[id]
		bad := false
		switch word {
		case "created", "running":
			bad = !there || got != Lost && got != Finished // the next step may have been taken and not said
		case "finished":
			bad = got != Finished
		case "removing":
			bad = there && got != Finished
		case "removed":
			bad = there
		}
		if bad {
			t.Errorf("%s: %s was said to be %s, and is %q", when, id, word, got)
		}
	}
	for _, sub := range []string{"runs", "trash"} {
		entries, _ := os.ReadDir(filepath.Join(dir, sub))
		for _, e := range entries {
			if _, err := ParseID(e.Name()); err != nil || sub == "trash" {
				t.Errorf("%s: %s/%s is left", when, sub, e.Name())
			}
		}
	}
	c, err := s.Claim(ctx, ForRun, Workspace{Path: "/", Dev: 1, Ino: 1}, Exclusive, "")
	if err != nil {
		t.Errorf("%s: a dead process holds a claim: %v", when, err)
	} else {
		c.Release()
	}
}

func TestKillAtRandomMoments(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "carboy")
	kills := 110
	if testing.Short() {
		kills = 25
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	all := map[ID]string{}
	for i := range kills {
		c := exec.Command(exe)
		c.Env = append(os.Environ(), childEnv+"="+dir)
		var stderr bytes.Buffer
		c.Stderr = &stderr
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		if !lines.Scan() {
			t.Fatalf("kill %d: %s", i, &stderr)
		}
		// After so many steps, whatever they take on a busy machine, and then at any moment of the next ones.
		for steps := rand.N(9); ; steps-- {
			if steps == 0 {
				time.AfterFunc(rand.N(3*time.Millisecond), func() { c.Process.Signal(unix.SIGKILL) })
			}
			if !lines.Scan() {
				break
			}
			if what, id, ok := strings.Cut(lines.Text(), " "); ok {
				all[ID(id)] = what
			}
		}
		c.Wait()
		if stderr.Len() > 0 {
			t.Fatalf("kill %d: %s", i, &stderr)
		}
		whole(t, dir, fmt.Sprint("kill ", i), all)
		for id, what := range all { // what it became is settled now; runs that are left must stay
			if what != "removed" && what != "finished" {
				delete(all, id)
			}
		}
	}
	if len(all) == 0 {
		t.Error("no child came far enough to test anything")
	}
}

// faults fails one call, or every call from one on as if the process had died there. A write then gets half-way.
type faults struct {
	kernel
	at    int
	crash bool
	err   error
	calls int
}

func (f *faults) fail() error {
	f.calls++
	if f.calls-1 == f.at || f.crash && f.calls-1 > f.at {
		return f.err
	}
	return nil
}

func (f *faults) Openat(dir int, name string, flags int, mode uint32) (int, error) {
	if err := f.fail(); err != nil {
		return -1, err
	}
	return f.kernel.Openat(dir, name, flags, mode)
}

func (f *faults) Mkdirat(dir int, name string, mode uint32) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.kernel.Mkdirat(dir, name, mode)
}

func (f *faults) Write(fd int, p []byte) (int, error) {
	if err := f.fail(); err != nil {
		f.kernel.Write(fd, p[:len(p)/2])
		return -1, err
	}
	return f.kernel.Write(fd, p[:min(len(p), 1000)]) // short writes are legal
}

func (f *faults) Fsync(fd int) error { return f.fail() }

func (f *faults) Renameat(oldDir int, oldName string, newDir int, newName string) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.kernel.Renameat(oldDir, oldName, newDir, newName)
}

func (f *faults) Unlinkat(dir int, name string, flags int) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.kernel.Unlinkat(dir, name, flags)
}

func (f *faults) Flock(fd int, how int) error {
	if err := f.fail(); err != nil {
		return err
	}
	return f.kernel.Flock(fd, how)
}

// TestEverySyscallFails breaks each system call of a run's life in turn, once or for good, and holds the state to the
// same as after a kill. A call that failed reports an error or its work was done all the same.
func TestEverySyscallFails(t *testing.T) {
	for _, crash := range []bool{false, true} {
		for at := 0; ; at++ {
			f := &faults{at: at, crash: crash, err: unix.ENOSPC}
			name := fmt.Sprintf("call %d, crash %v", at, crash)
			dir := filepath.Join(t.TempDir(), "carboy")
			said := map[ID]string{}
			err := faultyLife(dir, f, said)
			if err != nil && !errors.Is(err, unix.ENOSPC) {
				t.Errorf("%s: %v", name, err)
			}
			if f.calls <= at {
				if err != nil {
					t.Errorf("without a fault: %v", err)
				}
				break
			}
			whole(t, dir, name, said)
			if t.Failed() {
				return
			}
		}
	}
}

// recorder writes down the calls that make a replacement durable.
type recorder struct {
	kernel
	calls []string
}

func (r *recorder) note(call string, fd int) {
	var st unix.Stat_t
	unix.Fstat(fd, &st)
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		call += " dir"
	}
	r.calls = append(r.calls, call)
}

func (r *recorder) Write(fd int, p []byte) (int, error) {
	r.note("write", fd)
	return r.kernel.Write(fd, p)
}

func (r *recorder) Fsync(fd int) error {
	r.note("sync", fd)
	return r.kernel.Fsync(fd)
}

func (r *recorder) Renameat(oldDir int, oldName string, newDir int, newName string) error {
	r.calls = append(r.calls, "rename")
	return r.kernel.Renameat(oldDir, oldName, newDir, newName)
}

// TestSyncComesBeforeTheName holds the order that no test in memory of the kernel can see the want of.
func TestSyncComesBeforeTheName(t *testing.T) {
	k := &recorder{}
	s, err := open(filepath.Join(t.TempDir(), "carboy"), k)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const replaced = "write sync rename sync dir"
	check := func(what, want string) {
		t.Helper()
		if got := strings.Join(k.calls, " "); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
		k.calls = nil
	}
	k.calls = nil
	r, err := s.Create(ctx, Spec{Kind: KindRun, Mode: None})
	if err != nil {
		t.Fatal(err)
	}
	check("create", replaced+" rename sync dir")
	r.Start(ctx, "")
	check("start", replaced)
	r.WriteReceipt(ctx, map[string]string{"schema": Schema("receipt")})
	check("receipt", replaced)
	r.Finish(ctx, 0, NoChanges)
	check("finish", replaced)
	r.Close()
	s.Remove(ctx, r.ID(), RemoveOptions{})
	if got := strings.Join(k.calls, " "); !strings.HasPrefix(got, "rename sync dir sync dir") {
		t.Errorf("remove: %s", got)
	}
}

func faultyLife(dir string, f *faults, said map[ID]string) error {
	s, err := open(dir, f)
	if err != nil {
		return err
	}
	defer s.Close()
	s.self.Start-- // so that it counts as dead afterwards
	ws := Workspace{Path: "/ws", Dev: 1, Ino: 2}
	c, err := s.Claim(ctx, ForRun, ws, Exclusive, "")
	if err != nil {
		return err
	}
	defer unix.Close(c.fd) // what a dying process does
	for _, remove := range []bool{false, true} {
		err := oneRun(ctx, s, ws, remove, func(what string, id ID) { said[id] = what })
		if err != nil {
			return err
		}
	}
	return c.Release()
}

// TestFullDisk uses a real limit on the size of files: a record that does not fit is refused and the old one stays.
func TestFullDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "carboy")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe)
	c.Env = append(os.Environ(), childEnv+"="+dir)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Process.Kill()
	said := map[ID]string{}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if what, id, ok := strings.Cut(lines.Text(), " "); ok {
			said[ID(id)] = what
		}
		if len(said) == 2 { // the receipt of a run to come is larger than this
			unix.Prlimit(c.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 3000, Max: 3000}, nil)
		}
	}
	if c.Wait() == nil || !strings.Contains(stderr.String(), unix.EFBIG.Error()) {
		t.Fatalf("the limit did not hold: %s", &stderr)
	}
	whole(t, dir, "full disk", said)
}
