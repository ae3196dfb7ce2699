package carboy

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/review"
	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/testenv"
)

func TestCanPrepare(t *testing.T) {
	for _, c := range []struct {
		o  plan.Options
		ok bool
	}{
		{plan.Options{}, true}, {plan.Options{RootFS: "host"}, true}, {plan.Options{Mode: store.Bind}, true},
		{plan.Options{RootFS: "/srv/image"}, false}, {plan.Options{RootFS: "."}, false}, {plan.Options{Mode: store.Copy}, false},
	} {
		if err := run.CanPrepare(&c.o); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
}

// A bottle that a run has taken can still be asked about, and is gone when its
// run fails before it came to it.
func TestPreparedOfAReplacedWorkspace(t *testing.T) {
	w := newWorld(t)
	w.write("f", "old\n")
	ctx := context.Background()
	o := plan.Options{Workspace: w.ws}
	r, err := w.c.Prepare(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Fits(&o); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(w.ws, w.ws+".old"), os.Mkdir(w.ws, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := r.Fits(&o); !errors.Is(err, run.ErrUnfit) {
		t.Errorf("another workspace: %v", err)
	}
	w.ready = r
	rec, out, err := w.sh("cat f")
	if !errors.Is(err, run.ErrReplaced) || rec == nil || rec.Exit.Reason != receipt.Failed || out != "" {
		t.Errorf("%v, %+v, %q", err, rec, out)
	}
	select {
	case <-r.Done():
	case <-time.After(time.Minute):
		t.Error("the bottle goes on")
	}
	r.Usage()
	r.Posture()
	if r.Workspace() != w.ws || r.Stale() == nil {
		t.Errorf("%s, %v", r.Workspace(), r.Stale())
	}
	if _, _, err := w.sh("true"); !errors.Is(err, run.ErrUnfit) {
		t.Errorf("used again: %v", err)
	}
	w.ready = nil
	w.ok("true")
}

// So it is with what is shown beside the workspace: not the path counts, but what
// lies there.
func TestPreparedOfAReplacedMount(t *testing.T) {
	w := newWorld(t)
	data := t.TempDir() + "/data"
	if err := errors.Join(os.Mkdir(data, 0o755), os.WriteFile(data+"/f", []byte("old\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	o := plan.Options{Workspace: w.ws, Mounts: []string{data + ":/data:ro"}}
	r, err := w.c.Prepare(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := os.WriteFile(data+"/f", []byte("edited\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.Fits(&o); err != nil {
		t.Errorf("a file in it was edited: %v", err)
	}
	if err := errors.Join(os.Rename(data, data+".old"), os.Mkdir(data, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := r.Fits(&o); !errors.Is(err, run.ErrUnfit) {
		t.Errorf("another directory was put in its place: %v", err)
	}
	// The root's own directories too, which only the machine's owner replaces.
	if err := errors.Join(os.Remove(data), os.Rename(data+".old", data), r.Fits(&o)); err != nil {
		t.Errorf("the directory is back: %v", err)
	}
	for i := range r.Plan.Root.Binds {
		if b := &r.Plan.Root.Binds[i]; b.Source != "" {
			if b.Ino == 0 {
				t.Errorf("%s is known by its path only", b.Source)
			}
			b.Ino++
			if err := r.Fits(&o); !errors.Is(err, run.ErrUnfit) {
				t.Errorf("another %s: %v", b.Source, err)
			}
			b.Ino--
		}
	}
}

// State that was put in the place of other state is other state.
func TestPreparedOfReplacedState(t *testing.T) {
	w := newWorld(t)
	o := plan.Options{Workspace: w.ws}
	r, err := w.c.Prepare(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	dir := w.c.StateDir()
	if err := errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := r.Fits(&o); !errors.Is(err, run.ErrUnfit) || !strings.Contains(err.Error(), "state") {
		t.Errorf("%v", err)
	}
	if err := errors.Join(os.Remove(dir), os.Rename(dir+".old", dir), r.Fits(&o)); err != nil {
		t.Error(err)
	}
}

// Who was answered can use the ports again.
func TestPortsAreFreeWithTheAnswer(t *testing.T) {
	w := newWorld(t)
	var heard error
	answered := false
	r, _ := w.ok("true", func(o *plan.Options) {
		o.Publish = []uint16{39881}
		o.Answer = func(*receipt.Receipt, error) {
			answered = true
			l, err := net.Listen("tcp", "127.0.0.1:39881")
			if heard = err; err == nil {
				l.Close()
			}
		}
	})
	if !answered || heard != nil || len(r.Published) != 1 {
		t.Errorf("answered %v, %v, %+v", answered, heard, r.Published)
	}
}

// The changes of a run that died after they were taken are there, and its
// receipt says so.
func TestReceiptOfARunThatDiedLate(t *testing.T) {
	w := newWorld(t)
	r, _ := w.ok("echo x > made")
	set, err := change.OpenSet(w.c.host.Store.RunDir(r.ID))
	if err != nil {
		t.Fatal(err)
	}
	m, err := w.c.host.Store.Get(r.ID)
	if err != nil {
		t.Fatal(err)
	}
	m.State = store.Lost
	late, early := review.ReceiptOf(m, set), review.ReceiptOf(m, nil)
	if !late.Landable() || late.Changes.Total != 1 || !strings.Contains(late.Notes[0], "are kept") || late.Exit.Reason != receipt.Lost {
		t.Errorf("%+v", late)
	}
	if early.Landable() || !strings.Contains(early.Notes[0], "are lost") {
		t.Errorf("%+v", early)
	}
}

// The command's caller is answered while the bottle stands still; when the run
// is over, nothing of it is left.
func TestAnswerBeforeTheTearDown(t *testing.T) {
	w := newWorld(t)
	for _, mode := range []store.Mode{store.Overlay, store.None, store.Bind} {
		o := plan.Options{Workspace: w.ws, Mode: mode}
		ready, err := w.c.Prepare(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		gone := func() bool {
			select {
			case <-ready.Done():
				return true
			default:
				return false
			}
		}
		var early bool
		w.ready = ready
		r, _ := w.ok("echo x > made", func(o *plan.Options) {
			o.Mode = mode
			if mode == store.None {
				o.Command = []string{"true"}
			}
			o.Answer = func(*receipt.Receipt, error) { early = !gone() }
		})
		// With bind, what still runs inside could write to the workspace.
		if want := mode != store.Bind; early != want {
			t.Errorf("%s: answered before the bottle was gone: %v, want %v", mode, early, want)
		}
		if !gone() {
			t.Errorf("%s: the run is over and its bottle is there", mode)
		}
		if r.Trace == nil || r.Trace.Incomplete != "" || r.Processes.Execs == 0 || r.Audit == nil {
			t.Errorf("%s: records %+v %+v %+v", mode, r.Trace, r.Processes, r.Audit)
		}
	}
}

// What began ahead of a run serves it, whoever it turns out to be for, and is
// gone with the client when there is none.
func TestAhead(t *testing.T) {
	w := newWorld(t)
	open := func(o plan.Options) *Client {
		c, err := Open(context.Background(), Options{Env: w.c.host.Env, Config: w.c.host.Opened.Config, Ahead: &o})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	shims := func() (out []testenv.Process) {
		for _, p := range testenv.Living(t, os.Getpid()) {
			if p.Argv0() == "carboy-shim" {
				out = append(out, p)
			}
		}
		return out
	}
	c := open(plan.Options{Workspace: w.ws})
	if !testenv.Poll(testenv.Patience(10*time.Second), func() bool { return len(shims()) > 0 }) {
		t.Fatal("nothing has begun")
	}
	c.Close()
	if left := shims(); len(left) > 0 {
		t.Errorf("a client was closed that no run was asked of, and there is %+v", left)
	}

	// Used once; and one for somebody else is given up for the right one.
	for _, asked := range []plan.Options{{Workspace: w.ws}, {Mode: store.None}, {Workspace: "/no such directory"}} {
		c := open(asked)
		ran := &world{t: t, c: c, ws: w.ws}
		for range 2 {
			if _, out := ran.ok("echo in"); out != "in\n" {
				t.Errorf("%+v: %q", asked, out)
			}
		}
		if c.runs.Waiting() {
			t.Errorf("%+v: it still waits", asked)
		}
		c.Close()
	}
	if _, err := Open(context.Background(), Options{Env: func(string) string { return "relative" }, Ahead: &plan.Options{Mode: store.None}}); err == nil {
		t.Error("opened")
	}
	if left := shims(); len(left) > 0 {
		t.Errorf("all is closed, and there is %+v", left)
	}
}
