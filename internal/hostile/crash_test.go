package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/testenv"
	"github.com/carboy/carboy/internal/trace"
)

// victimMain is a carboy that is going to be killed: a process of its own that
// makes one run, as the command line does.
func victimMain() {
	ws := os.Getenv("HOSTILE_VICTIM")
	if ws == "" {
		return
	}
	c, err := carboy.Open(context.Background(), carboy.Options{Backend: backend})
	if err != nil {
		fmt.Fprintln(os.Stderr, "open:", err)
		os.Exit(3)
	}
	rec, err := c.Run(context.Background(), carboy.RunOptions{
		Command:   []string{"/bin/sh", "-c", "echo inside > new; rm -f a.txt; mkdir d; echo x > d/f; (sleep 600 &); sleep 0.1; echo done"},
		Workspace: ws, Mode: store.Mode(os.Getenv("HOSTILE_MODE")), Limits: limits(), Stdout: os.Stdout, Stderr: os.Stderr,
	})
	if err != nil || rec.Exit.Code != 0 {
		fmt.Fprintln(os.Stderr, "run:", err)
		os.Exit(4)
	}
	c.Close()
	os.Exit(0)
}

func (h *host) victim(mode store.Mode) *exec.Cmd {
	c := exec.Command(guestFile)
	c.Env = []string{"HOSTILE_VICTIM=" + h.ws, "HOSTILE_MODE=" + string(mode), "CARBOY_TEST_BACKEND=" + backend}
	for k, v := range h.vars {
		c.Env = append(c.Env, k+"="+v)
	}
	return c
}

// orphanedShims are shims whose carboy is gone.
func orphanedShims(t testing.TB) (out []testenv.Process) {
	t.Helper()
	for _, p := range testenv.Living(t, 1) {
		if p.Parent == 1 && p.Argv0() == "carboy-shim" {
			out = append(out, p)
		}
	}
	return out
}

// TestS5KillCarboy kills carboy with all its might at 60 random moments of a
// run's life: before there is a bottle, while it is made, while the command
// runs, while changes are taken home and while the receipt is written.
func TestS5KillCarboy(t *testing.T) {
	h := newHost(t)
	h.client.Close()
	h.write("locked/f", "f")
	if err := os.Chmod(h.ws+"/locked", 0o555); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(h.ws+"/locked", 0o755) })
	before, mounts := tree(t, h.ws), testenv.Mounts(t)
	usual := time.Duration(0)
	for _, mode := range []store.Mode{store.Copy, store.Overlay} {
		start := time.Now()
		if out, err := h.victim(mode).CombinedOutput(); err != nil {
			t.Fatalf("a carboy that nobody kills: %v: %s", err, out)
		}
		usual = time.Since(start)
	}
	if got := tree(t, h.ws); got != before {
		t.Fatalf("a run alone changed the workspace:\n%s", got)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d, a run takes %v", seed, usual)
	random := rand.New(rand.NewPCG(seed, 1))
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	killed, reported := 0, 0
	lost := map[store.ID]bool{}
	for i := range rounds {
		v := h.victim([]store.Mode{store.Overlay, store.Copy}[i%2])
		if err := v.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(random.Int64N(int64(usual + usual/3))))
		// Stopped, it starts nothing more: what is below it now is all.
		v.Process.Signal(syscall.SIGSTOP)
		below := testenv.Living(t, v.Process.Pid)
		v.Process.Signal(syscall.SIGKILL)
		if v.Wait() != nil {
			killed++
		}
		testenv.AllGone(t, "carboy", below, patience)
		// A person looks, not the next run: until there was something to see, each time.
		if i%20 == 10 || i > rounds/2 && reported == 0 {
			c, err := carboy.Open(t.Context(), carboy.Options{Backend: backend, Env: h.env})
			if err != nil {
				t.Fatalf("open after a crash: %v", err)
			}
			reported += len(c.Lost())
			c.Close()
		}
		if i%20 == 19 || i == rounds-1 {
			for _, id := range h.inspect(before, mounts) {
				lost[id] = true
			}
		}
	}
	t.Logf("%d of %d were killed before their end, %d runs are lost", killed, rounds, len(lost))
	if killed < rounds/3 || len(lost) < killed/3 || !testing.Short() && reported == 0 {
		t.Error("too few were killed in time: this test proves nothing")
	}
	testenv.AllGone(t, "its carboy", orphanedShims(t), patience)
}

// noMountLeft waits until no mount is there that was not before: those of bottles that still
// end. Mounts that other programs' directories held go with these, in every namespace.
func (h *host) noMountLeft(before string) {
	h.t.Helper()
	had := slices.Collect(strings.Lines(before))
	var more []string
	if !testenv.Poll(testenv.Patience(time.Minute), func() bool {
		more = slices.DeleteFunc(slices.Collect(strings.Lines(testenv.Mounts(h.t))), func(m string) bool { return slices.Contains(had, m) })
		return len(more) == 0
	}) {
		h.t.Fatalf("mounts are left:\n%s", strings.Join(more, ""))
	}
}

// inspect is the next command after a crash: it must find everything in order,
// name what was lost, and work.
func (h *host) inspect(before, mounts string) (lost []store.ID) {
	t := h.t
	t.Helper()
	if got := tree(t, h.ws); got != before {
		t.Fatalf("the workspace changed:\n%s\nbefore:\n%s", got, before)
	}
	h.noMountLeft(mounts)
	c, err := carboy.Open(t.Context(), carboy.Options{Backend: backend, Env: h.env})
	if err != nil {
		t.Fatalf("open after a crash: %v", err)
	}
	defer c.Close()
	l, err := c.List(t.Context(), store.Query{})
	if err != nil || len(l.Corrupt) > 0 {
		t.Fatalf("records after a crash: %v, corrupt %v", err, l.Corrupt)
	}
	for _, m := range l.Runs {
		// The next carboy found it, which may have been another victim.
		if m.State == store.Lost {
			lost = append(lost, m.ID)
		}
		if !m.State.Over() {
			t.Errorf("run %s is %s, and nobody runs it", m.ID, m.State)
		}
		rec, err := c.Receipt(t.Context(), m.ID)
		if err != nil {
			t.Errorf("receipt of %s run %s: %v", m.State, m.ID, err)
		} else if m.State == store.Lost && rec.Exit.Reason != receipt.Lost {
			t.Errorf("the receipt of lost run %s says %+v", m.ID, rec.Exit)
		}
		if err := readTrace(c, m.ID, nil); err != nil && !errors.Is(err, carboy.ErrNoTrace) && !errors.Is(err, trace.ErrNoHead) {
			t.Errorf("the trace of %s run %s: %v", m.State, m.ID, err)
		}
		for _, dir := range []string{"scratch", "base"} {
			if _, err := os.Stat(filepath.Join(c.StateDir(), "runs", string(m.ID), dir)); err == nil {
				t.Errorf("run %s left %s behind", m.ID, dir)
			}
		}
		if m.State == store.Finished {
			if _, err := c.Changes(m.ID); err != nil {
				t.Errorf("changes of finished run %s: %v", m.ID, err)
			}
		}
	}
	if rep, err := c.AuditVerify(t.Context(), ""); err != nil || !rep.OK() {
		t.Errorf("the audit log: %v %+v", err, rep)
	}
	var out bytes.Buffer
	rec, err := c.Run(t.Context(), carboy.RunOptions{Command: []string{"/bin/cat", "a.txt"}, Workspace: h.ws, Limits: limits(), Stdout: &out})
	if err != nil || rec.Exit.Code != 0 || out.String() != "hello\n" {
		t.Errorf("the next run: %v %+v %q", err, exitOf(rec), out.String())
	}
	return lost
}

// readTrace reads the facts of a run. What is damaged is an error; an end that
// is missing is not.
func readTrace(c *carboy.Client, id store.ID, each func(*trace.Fact)) error {
	r, err := c.Trace(id)
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		var f trace.Fact
		if err := r.Next(&f); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if each != nil {
			each(&f)
		}
	}
}

// TestS5KillInnerProcesses: when a process that serves the bottle dies, the run
// ends, typed, and nothing hangs or stays.
func TestS5KillInnerProcesses(t *testing.T) {
	for _, name := range []string{"carboy-shim", "runsc-sandbox", "runsc-gofer"} {
		for _, sig := range []syscall.Signal{syscall.SIGKILL} {
			t.Run(name+"-"+sig.String(), func(t *testing.T) {
				h := newHost(t)
				before := h.use()
				started := make(chan struct{})
				var below []testenv.Process
				done := make(chan struct{})
				go func() { // ends with the kill below
					defer close(done)
					<-started
					below = testenv.Living(t, os.Getpid())
					hit := 0
					for _, p := range below {
						if p.Argv0() == name {
							syscall.Kill(p.PID, sig)
							hit++
						}
					}
					if hit == 0 {
						t.Errorf("no %s among %+v", name, below)
					}
				}()
				x := h.run(func(o *carboy.RunOptions) {
					o.Limits.Timeout = 20 * time.Second
					o.OnEvent = func(e carboy.Event) {
						if e.Kind == "started" {
							close(started)
						}
					}
				}, "/bin/sh", "-c", "while :; do cat /usr/share/doc/*/copyright /usr/bin/* > /dev/null 2>&1; echo x >> grow; sleep 0.05; done")
				<-done
				if x.rec == nil {
					t.Fatalf("no receipt: %v", x.err)
				}
				if x.rec.Exit.Reason == receipt.Exited || x.rec.Exit.Reason == receipt.Timeout || x.rec.Exit.Code == 0 || x.rec.Exit.Reason == "" {
					t.Errorf("the run ended with %+v, %v", x.rec.Exit, x.err)
				}
				t.Logf("%+v, incomplete %v, %v", x.rec.Exit, x.rec.Changes != nil && len(x.rec.Changes.Incomplete) > 0, x.err)
				if x.rec.Changes == nil || len(x.rec.Changes.Incomplete) == 0 {
					t.Error("changes are lost, and nothing says so")
				}
				if tr := x.rec.Trace; tr == nil || tr.Incomplete == "" {
					t.Errorf("the end of the trace is missing, and nothing says so: %+v", tr)
				}
				if err := readTrace(h.client, x.rec.ID, nil); err != nil {
					t.Errorf("the trace: %v", err)
				}
				testenv.AllGone(t, "carboy", below, patience)
				h.same(before, 2*mib)
				h.sh(nil, "true")
			})
		}
	}
}
