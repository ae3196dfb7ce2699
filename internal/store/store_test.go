package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var ctx = context.Background()

func newStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "carboy"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func workspace(t *testing.T) Workspace {
	t.Helper()
	ws, err := ResolveWorkspace(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return ws
}

func create(t *testing.T, s *Store, ws Workspace) *Run {
	t.Helper()
	r, err := s.Create(ctx, Spec{Kind: KindRun, Workspace: ws, Mode: Overlay, Command: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func finished(t *testing.T, s *Store, ws Workspace, c Changes) ID {
	t.Helper()
	r := create(t, s, ws)
	defer r.Close()
	if err := r.Start(ctx, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Finish(ctx, 0, c); err != nil {
		t.Fatal(err)
	}
	return r.ID()
}

func TestLifeOfARun(t *testing.T) {
	s, ws := newStore(t), workspace(t)
	r, err := s.Create(ctx, Spec{Kind: KindRun, Workspace: ws, Mode: Overlay, Command: []string{"cc", "a\xff.c"}, Build: "b1"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, d := range []string{upperDir, EvidenceDir, LogsDir} {
		if st, err := os.Stat(r.Path(d)); err != nil || st.Mode().Perm() != 0o700 {
			t.Fatalf("%s: %v %v", d, st, err)
		}
	}
	if _, err := r.Finish(ctx, 0, NoChanges); err == nil {
		t.Error("finished before it was started")
	}
	if err := r.Start(ctx, ""); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(ctx, ""); err == nil {
		t.Error("started twice")
	}
	if err := r.WriteReceipt(ctx, map[string]string{"schema": Schema("receipt"), "x": "y"}); err != nil {
		t.Fatal(err)
	}
	m, err := r.Finish(ctx, 3, Pending)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Get(r.ID())
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got.Command) != fmt.Sprint(m.Command) || got.Command[1] != "a\xff.c" || *got.Exit != 3 || got.State != Finished || got.Changes != Pending {
		t.Errorf("read back %+v", got)
	}
	if _, err := r.Fail(ctx, 125, "no", NoChanges); err == nil {
		t.Error("failed after it was finished")
	}
	var rec map[string]string
	if err := s.readDocument(r.ID(), ReceiptFile, "receipt", &rec); err != nil || rec["x"] != "y" {
		t.Error(rec, err)
	}
	b, _ := json.Marshal(got.Summary())
	for _, k := range []string{"id", "kind", "state", "workspace", "started", "exit"} {
		if !strings.Contains(string(b), `"`+k+`"`) {
			t.Errorf("no %s in %s", k, b)
		}
	}
}

func TestCreateRefusesZeroValues(t *testing.T) {
	s := newStore(t)
	for name, spec := range map[string]Spec{
		"no kind": {Mode: None}, "no mode": {Kind: KindRun}, "other mode": {Kind: KindRun, Mode: "rw"},
	} {
		if _, err := s.Create(ctx, spec); err == nil {
			t.Errorf("%s: created", name)
		}
	}
	if l, _ := s.List(ctx, Query{}); len(l.Runs)+len(l.Corrupt) != 0 {
		t.Errorf("left %+v", l)
	}
	r, err := s.Create(ctx, Spec{Kind: KindRun, Mode: None})
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
}

func TestUpdateKeepsIdentity(t *testing.T) {
	s := newStore(t)
	id := finished(t, s, workspace(t), Pending)
	for name, f := range map[string]func(*Meta) error{
		"id":        func(m *Meta) error { m.ID = "01arz3ndektsv4rrffq69g5fav"; return nil },
		"workspace": func(m *Meta) error { m.Workspace.Ino++; return nil },
		"backwards": func(m *Meta) error { m.State = Running; return nil },
		"no state":  func(m *Meta) error { m.State = ""; return nil },
		"fails":     func(m *Meta) error { m.Reason = "x"; return errors.New("no") },
	} {
		before, _ := os.ReadFile(filepath.Join(s.RunDir(id), metaFile))
		if _, err := s.Update(ctx, id, f); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if after, _ := os.ReadFile(filepath.Join(s.RunDir(id), metaFile)); string(after) != string(before) {
			t.Errorf("%s: written", name)
		}
	}
	if m, err := s.Update(ctx, id, func(m *Meta) error { m.Changes = Landed; return nil }); err != nil || m.Changes != Landed {
		t.Error(m, err)
	}
}

func TestFind(t *testing.T) {
	s, a, b := newStore(t), workspace(t), workspace(t)
	var ids []ID
	for _, ws := range []Workspace{a, b, a, b} {
		ids = append(ids, finished(t, s, ws, NoChanges))
	}
	if !slices.IsSorted(ids) {
		t.Fatal("ids are not in order", ids)
	}
	for _, tc := range []struct {
		ref  string
		ws   Workspace
		want ID
	}{
		{"", a, ids[2]}, {"", b, ids[3]},
		{string(ids[1]), a, ids[1]}, {strings.ToUpper(string(ids[0])), b, ids[0]}, {string(ids[0][:25]), a, ids[0]},
	} {
		if m, err := s.Find(ctx, tc.ref, tc.ws); err != nil && m.ID == "" || m.ID != tc.want {
			var amb *AmbiguousError
			if !errors.As(err, &amb) { // ids of one millisecond can share 25 characters
				t.Errorf("Find(%q) = %s, %v, want %s", tc.ref, m.ID, err, tc.want)
			}
		}
	}
	var amb *AmbiguousError
	if _, err := s.Find(ctx, string(ids[0][:2]), a); !errors.As(err, &amb) || len(amb.Candidates) != 4 || amb.Candidates[0].ID != ids[3] {
		t.Errorf("ambiguous prefix: %v", err)
	}
	for _, ref := range []string{"zz", "../../etc", strings.Repeat("0", 27), "0\x00"} {
		if _, err := s.Find(ctx, ref, a); !errors.Is(err, ErrNotFound) {
			t.Errorf("Find(%q): %v", ref, err)
		}
	}
	if _, err := s.Find(ctx, "", workspace(t)); !errors.Is(err, ErrNotFound) || !errors.Is(err, ErrNoRuns) {
		t.Errorf("other workspace: %v", err)
	}
	// The same directory under another name is the same workspace.
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(string(a.Path), link); err != nil {
		t.Fatal(err)
	}
	ws, err := ResolveWorkspace(link)
	if m, ferr := s.Find(ctx, "", ws); err != nil || ferr != nil || m.ID != ids[2] {
		t.Error(m.ID, err, ferr)
	}
}

func TestListToleratesCorruptRecords(t *testing.T) {
	s, ws := newStore(t), workspace(t)
	good, bad, newest := finished(t, s, ws, Pending), finished(t, s, ws, Pending), finished(t, s, ws, Pending)
	file := filepath.Join(s.RunDir(bad), metaFile)
	for name, content := range map[string]string{
		"empty": "", "cut": `{"schema": "carboy.dev/run/v1", "id": "`, "other major": `{"schema":"carboy.dev/run/v2"}`,
		"other id": `{"schema":"carboy.dev/run/v1","id":"` + string(good) + `"}`, "zeros": "\x00\x00\x00",
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := s.List(ctx, Query{})
		if err != nil || len(l.Runs) != 2 || len(l.Corrupt) != 1 || l.Corrupt[0].ID != string(bad) {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
		if !strings.Contains(l.Corrupt[0].Error(), file) {
			t.Errorf("%s: %q does not name the file", name, l.Corrupt[0])
		}
		if _, err := s.Recover(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := s.Remove(ctx, bad, RemoveOptions{Unlanded: true}); err == nil {
			t.Errorf("%s: removed unasked", name)
		}
		if plan, err := s.PlanGC(ctx, Policy{All: true, Unlanded: true}); err != nil || len(plan.Remove) != 2 {
			t.Errorf("%s: plan %+v, %v", name, plan, err)
		}
	}
	var schema *SchemaError
	os.WriteFile(file, []byte(`{"schema":"carboy.dev/run/v2"}`), 0o600)
	if _, err := s.Get(bad); !errors.As(err, &schema) || schema.Got != "carboy.dev/run/v2" || schema.Field != "schema" {
		t.Errorf("unknown major: %v", err)
	}
	if l, _ := s.List(ctx, Query{Limit: 1}); len(l.Runs) != 1 || l.Runs[0].ID != newest || !l.More {
		t.Errorf("limit: %+v", l)
	}
	if err := s.Remove(ctx, bad, RemoveOptions{Unlanded: true, Corrupt: true}); err != nil {
		t.Error(err)
	}
}

func TestAdditionsAreIgnored(t *testing.T) {
	s := newStore(t)
	id := finished(t, s, workspace(t), NoChanges)
	file := filepath.Join(s.RunDir(id), metaFile)
	b, _ := os.ReadFile(file)
	os.WriteFile(file, []byte(strings.Replace(string(b), "{", `{"later": [1],`, 1)), 0o600)
	if _, err := s.Get(id); err != nil {
		t.Error(err)
	}
}

func TestIDsUnderClockJumps(t *testing.T) {
	s, ws := newStore(t), workspace(t)
	wall := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s.now = func() time.Time { return wall }
	var mono time.Duration
	s.mono = func() time.Duration { return mono }
	var last ID
	for _, jump := range []time.Duration{0, time.Hour, -48 * time.Hour, 0, time.Millisecond, -100 * 365 * 24 * time.Hour, 0} {
		wall = wall.Add(jump)
		r := create(t, s, ws)
		if r.ID() <= last {
			t.Fatalf("after a jump of %v: %s is not after %s", jump, r.ID(), last)
		}
		last = r.ID()
		if m, err := s.Find(ctx, "", ws); err != nil || m.ID != last {
			t.Fatalf("newest is %s, want %s (%v)", m.ID, last, err)
		}
		r.Start(ctx, "")
		wall = wall.Add(-time.Hour)
		mono += 5 * time.Second
		m, err := r.Finish(ctx, 0, NoChanges)
		if err != nil || m.DurationNS != int64(5*time.Second) {
			t.Fatalf("duration %v, %v", time.Duration(m.DurationNS), err)
		}
		r.Close()
	}
}

func TestNextIDCountsUpAndCarries(t *testing.T) {
	now := time.UnixMilli(1000)
	id, err := nextID("", now)
	for range 10000 {
		next, e := nextID(id, now)
		if e != nil || next <= id {
			t.Fatal(id, next, e)
		}
		id = next
	}
	if err != nil || id.Time().UnixMilli() != 1000 {
		t.Fatal(id.Time(), err)
	}
	next, err := nextID("0000000000zzzzzzzzzzzzzzzz", time.UnixMilli(0))
	if err != nil || next <= "0000000000zzzzzzzzzzzzzzzz" {
		t.Fatal(next, err)
	}
	if _, err := nextID("7zzzzzzzzzzzzzzzzzzzzzzzzz", now); err == nil {
		t.Error("an id after the last one")
	}
}

func TestClaims(t *testing.T) {
	s, ws := newStore(t), workspace(t)
	below := filepath.Join(string(ws.Path), "sub")
	os.Mkdir(below, 0o700)
	sub, _ := ResolveWorkspace(below)
	beside := Workspace{Path: ws.Path + "-2", Dev: 1, Ino: 1}
	alias := Workspace{Path: "/other/name", Dev: ws.Dev, Ino: ws.Ino}
	for _, tc := range []struct {
		name          string
		first, second Access
		ws            Workspace
		p             Purpose
		busy          bool
	}{
		{"two overlays", Shared, Shared, ws, ForRun, false},
		{"overlay then bind", Shared, Exclusive, ws, ForRun, true},
		{"bind then overlay", Exclusive, Shared, ws, ForRun, true},
		{"two binds", Exclusive, Exclusive, ws, ForRun, true},
		{"bind below", Exclusive, Exclusive, sub, ForRun, true},
		{"overlay below", Shared, Shared, sub, ForRun, false},
		{"bind beside, with a longer name", Exclusive, Exclusive, beside, ForRun, false},
		{"bind by another name", Exclusive, Exclusive, alias, ForRun, true},
		{"land beside a run", Exclusive, Exclusive, ws, ForLand, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, err := s.Claim(ctx, ForRun, ws, tc.first, "")
			if err != nil {
				t.Fatal(err)
			}
			b, err := s.Claim(ctx, tc.p, tc.ws, tc.second, "")
			var busy *BusyError
			if tc.busy != errors.As(err, &busy) || !tc.busy && err != nil {
				t.Fatalf("second claim: %v", err)
			}
			if tc.busy && (busy.Owners[0].Process.PID != os.Getpid() || !strings.Contains(err.Error(), fmt.Sprint("(pid ", os.Getpid()))) {
				t.Errorf("owner: %v", err)
			}
			a.Release()
			a.Release()
			if b == nil {
				if b, err = s.Claim(ctx, tc.p, tc.ws, tc.second, ""); err != nil {
					t.Fatalf("after release: %v", err)
				}
			}
			b.Release()
		})
	}
	a, err := s.Claim(ctx, ForRun, sub, Exclusive, "01arz3ndektsv4rrffq69g5fav")
	if err != nil {
		t.Fatal(err)
	}
	var busy *BusyError
	if _, err := s.Claim(ctx, ForRun, ws, Shared, ""); !errors.As(err, &busy) || !strings.Contains(err.Error(), "run 01arz3ndektsv4rrffq69g5fav (pid") || !strings.Contains(err.Error(), string(sub.Path)) {
		t.Errorf("a claim above one: %v", err)
	}
	a.Release()
	if _, err := s.Claim(ctx, "", ws, Shared, ""); err == nil {
		t.Error("claim without purpose")
	}
	if _, err := s.Claim(ctx, ForRun, ws, "", ""); err == nil {
		t.Error("claim without access")
	}
	names, _ := os.ReadDir(filepath.Join(s.Dir(), "locks"))
	if len(names) != 1 {
		t.Errorf("left %v", names)
	}
}

func TestClaimsOfTheDeadAreRemoved(t *testing.T) {
	s, ws := newStore(t), workspace(t)
	name := filepath.Join(s.Dir(), "locks", "01arz3ndektsv4rrffq69g5fav")
	data, _ := Encode(claimKind, claimFile{Schema(claimKind), ForRun, ws, Owner{Access: Exclusive}})
	os.WriteFile(name, data, 0o600)
	c, err := s.Claim(ctx, ForRun, ws, Exclusive, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a dead claim stays")
	}
	// A living one that can't be read is in the way of everybody.
	f, _ := os.Create(name)
	defer f.Close()
	unix.Flock(int(f.Fd()), unix.LOCK_EX)
	var busy *BusyError
	if _, err := s.Claim(ctx, ForRun, workspace(t), Shared, ""); !errors.As(err, &busy) {
		t.Errorf("unreadable claim: %v", err)
	}
}

func TestRecover(t *testing.T) {
	s, ws := newStore(t), workspace(t)
	dead := Process{PID: os.Getpid(), Start: s.self.Start - 1, Boot: s.self.Boot, PIDNS: s.self.PIDNS}
	set := func(id ID, p Process) {
		if _, err := s.Update(ctx, id, func(m *Meta) error { m.Supervisor = p; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	held := create(t, s, ws) // the process is called dead, but the lock is held
	set(held.ID(), dead)
	handover := create(t, s, ws) // the lock is free, but the process lives
	handover.Close()
	gone := create(t, s, ws)
	gone.Start(ctx, "")
	gone.Close()
	set(gone.ID(), dead)
	rebooted := create(t, s, ws)
	rebooted.Close()
	set(rebooted.ID(), Process{PID: os.Getpid(), Start: s.self.Start, Boot: "other", PIDNS: s.self.PIDNS})
	done := finished(t, s, ws, Pending)
	set(done, dead)
	os.Mkdir(filepath.Join(s.Dir(), "runs", newPrefix+"x"), 0o700)
	os.MkdirAll(filepath.Join(s.Dir(), "trash", "y", "z"), 0o700)

	for range 2 { // what is not cleaned is said again
		r, err := s.Recover(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Lost) != 2 || r.Lost[0].ID != gone.ID() || r.Lost[1].ID != rebooted.ID() {
			t.Fatalf("lost: %+v", r.Lost)
		}
	}
	for id, want := range map[ID]State{held.ID(): Created, handover.ID(): Created, gone.ID(): Lost, rebooted.ID(): Lost, done: Finished} {
		if m, err := s.Get(id); err != nil || m.State != want {
			t.Errorf("%s is %s, want %s (%v)", id, m.State, want, err)
		}
	}
	if err := s.Remove(ctx, gone.ID(), RemoveOptions{Unlanded: true}); !errors.Is(err, ErrLive) {
		t.Errorf("removed before it was cleaned up: %v", err)
	}
	for _, id := range []ID{gone.ID(), rebooted.ID()} {
		if err := s.Cleaned(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Cleaned(ctx, done); err == nil {
		t.Error("cleaned a run that was not lost")
	}
	if r, err := s.Recover(ctx); err != nil || len(r.Lost) != 0 {
		t.Errorf("again: %+v, %v", r, err)
	}
	if err := s.Remove(ctx, gone.ID(), RemoveOptions{}); !errors.Is(err, ErrUnlanded) {
		t.Errorf("removed unknown changes: %v", err)
	}
	if err := s.Remove(ctx, gone.ID(), RemoveOptions{Unlanded: true}); err != nil {
		t.Error(err)
	}
	for _, dir := range []string{"trash"} {
		if names, _ := os.ReadDir(filepath.Join(s.Dir(), dir)); len(names) != 0 {
			t.Errorf("%s holds %v", dir, names)
		}
	}
	if _, err := os.Stat(filepath.Join(s.Dir(), "runs", newPrefix+"x")); err == nil {
		t.Error("a half-made run stays")
	}
}

func TestAdopt(t *testing.T) {
	s := newStore(t)
	r := create(t, s, workspace(t))
	if _, err := s.adopt(ctx, r.ID()); !errors.Is(err, ErrLive) {
		t.Errorf("adopted a held run: %v", err)
	}
	r.Close()
	a, err := s.adopt(ctx, r.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := a.Start(ctx, ""); err != nil {
		t.Fatal(err)
	}
	a.Close()
	if _, err := s.adopt(ctx, r.ID()); err == nil {
		t.Error("adopted a running run")
	}
	if _, err := s.adopt(ctx, "01arz3ndektsv4rrffq69g5fav"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

func TestLockWaitsAndSaysForWhom(t *testing.T) {
	s := newStore(t)
	fd, err := s.flockFile(ctx, s.root, "lock")
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	_, err = s.Create(short, Spec{Kind: KindRun, Mode: None})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), fmt.Sprint("process ", os.Getpid())) {
		t.Error(err)
	}
	unix.Close(fd)
	r, err := s.Create(ctx, Spec{Kind: KindRun, Mode: None})
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
}

func TestProcess(t *testing.T) {
	self, err := Self()
	if err != nil || self.live() != alive {
		t.Fatal(self, err)
	}
	for name, tc := range map[string]struct {
		f    func(*Process)
		want liveness
	}{
		"pid came back":    {func(p *Process) { p.Start++ }, dead},
		"other boot":       {func(p *Process) { p.Boot = "x" }, dead},
		"no boot":          {func(p *Process) { p.Boot = "" }, unknown},
		"other namespace":  {func(p *Process) { p.PIDNS++ }, unknown},
		"no such process":  {func(p *Process) { p.PID = 1 << 30 }, dead},
		"zero says little": {func(p *Process) { *p = Process{} }, unknown},
	} {
		p := self
		tc.f(&p)
		if got := p.live(); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
