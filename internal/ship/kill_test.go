package ship

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/ship/approval"
)

var kills = flag.Int("kills", 6, "how many applies TestP4Kill kills")

// childVariable has this binary carry out one plan, as carboy apply would.
const childVariable = "CARBOY_SHIP_CHILD"

func childMain() {
	dir := os.Getenv(childVariable)
	if dir == "" {
		return
	}
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		return b
	}
	f := strings.Split(string(read("engine")), "\n")
	e := &Engine{Config: f[0], State: f[1], Repo: f[2], By: "child"}
	err := e.Open()
	if err == nil {
		_, err = e.Apply(context.Background(), [][]byte{read("plan")}, []approval.Signed{{Statement: read("approval"), Signature: read("signature")}})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// TestP4Kill: at a random moment of an apply we are killed, or the connection, or the
// host's own shell, alone or with all that it started. Afterwards there is one record of it, or none and nothing was done,
// and what runs is what the last record says. -kills says how often.
func TestP4Kill(t *testing.T) {
	t.Parallel()
	dk := engine(t, 0)
	if testing.Short() {
		*kills = min(*kills, 3)
	}
	parallel := min(3, *kills)
	var left, done atomic.Int64
	left.Store(int64(*kills))
	var g sync.WaitGroup
	for range parallel {
		w := newWorld(t, dk)
		g.Go(func() { w.killing(&left, &done) })
	}
	g.Wait()
	t.Logf("%d killed", done.Load())
}

func (w *world) killing(left, done *atomic.Int64) {
	id := fmt.Sprintf("k%d", w.host.Port)
	dir := w.t.TempDir()
	put := func(name string, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			w.t.Error(err)
		}
	}
	put("engine", []byte(strings.Join([]string{w.op.Config, w.op.State, w.repo.Dir}, "\n")))
	usual := time.Second // of an apply, as it turns out
	outcomes := map[string]Outcome{}
	runs := ""
	for i := 0; left.Add(-1) >= 0 && !w.t.Failed(); i++ {
		v := "v" + string('1'+rune(i%3))
		w.commit(id, v, "checked")
		m, err := w.e.Plan(w.ctx(), PlanOptions{Module: id})
		if err != nil {
			w.t.Error(err)
			return
		}
		p := m[0]
		a := w.approve("alice", true, p)
		put("plan", p.Bytes)
		put("approval", a.Statement)
		put("signature", a.Signature)
		cmd := exec.Command("/proc/self/exe", "-test.run=^$")
		cmd.Env = append(os.Environ(), childVariable+"="+dir)
		began := time.Now()
		if err := cmd.Start(); err != nil {
			w.t.Error(err)
			return
		}
		over := make(chan error, 1)
		go func() { over <- cmd.Wait() }()
		select {
		case <-over:
			usual = time.Since(began)
			over <- nil
		case <-time.After(rand.N(usual * 5 / 4)):
		}
		switch i % 3 {
		case 0:
			cmd.Process.Kill()
		case 1:
			if rand.N(2) == 0 {
				w.host.KillAll(w.t)
			} else {
				w.host.Kill(w.t)
			}
			cmd.Process.Kill()
		case 2:
			w.host.Cut(w.t)
			if rand.N(2) == 0 {
				w.host.Kill(w.t)
			}
		}
		<-over
		if n := done.Add(1); n%50 == 0 {
			w.t.Logf("%d killed", n)
		}
		runs = w.settled(id, p, v, runs, outcomes)
	}
}

// settled waits until Status has settled the last job, and checks records, jobs and service.
func (w *world) settled(id string, p Made, v, runs string, outcomes map[string]Outcome) string {
	end := time.Now().Add(5 * time.Minute)
	for {
		st, err := w.e.Status(w.ctx(), id)
		if err == nil && st[0].Error == "" {
			break
		}
		if time.Now().After(end) {
			w.t.Errorf("status: %v %+v", err, st)
			return runs
		}
		time.Sleep(20 * time.Millisecond)
	}
	jobs, _ := filepath.Glob(w.host.Home + "/.local/state/carboy/ship/v1/" + id + "." + id + "/jobs/1*-" + p.Digest)
	h, problems, err := w.e.History(w.ctx(), id)
	if err != nil || len(problems) > 0 {
		w.t.Error(err, problems)
	}
	seen := map[string]Outcome{}
	for _, x := range h {
		if _, twice := seen[x.Plan]; twice {
			w.t.Errorf("two records of plan %s", x.Plan)
		}
		if seen[x.Plan] = x.Outcome; x.Outcome == Sent {
			delete(seen, x.Plan) // nothing came of it
		}
	}
	for digest, o := range outcomes {
		if seen[digest] != o {
			w.t.Errorf("the record of %s was %s and is %q", digest, o, seen[digest])
		}
	}
	o, recorded := seen[p.Digest]
	if recorded != (len(jobs) == 1) || len(jobs) > 1 || recorded && !o.settled() {
		w.t.Errorf("%d jobs, recorded %v as %q", len(jobs), recorded, o)
	}
	if recorded {
		outcomes[p.Digest] = o
	}
	if o == Applied {
		runs = v
	}
	want := "nothing"
	if runs != "" {
		want = runs + " running"
	}
	if got := w.runs(id); got != want {
		w.t.Errorf("after %q the host runs %q, want %q", o, got, want)
	}
	return runs
}
