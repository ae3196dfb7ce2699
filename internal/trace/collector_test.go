package trace

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/secret"
)

// sender is the kernel's side.
type sender struct {
	t   *testing.T
	end *os.File
	seq uint64
}

func collect(t *testing.T, tune ...func(*Options)) (*sender, *Collector, string) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Path: filepath.Join(t.TempDir(), "trace"), Run: testRun}
	for _, f := range tune {
		f(&o)
	}
	c, err := Collect(os.NewFile(uintptr(fds[0]), "ours"), o)
	if err != nil {
		t.Fatal(err)
	}
	s := &sender{t: t, end: os.NewFile(uintptr(fds[1]), "theirs")}
	t.Cleanup(func() { s.end.Close() })
	return s, c, o.Path
}

// send sends one batch.
func (s *sender) send(dropped uint64, facts ...Fact) {
	s.t.Helper()
	b := NewBatch(nil)
	for i := range facts {
		s.seq++
		facts[i].Seq = s.seq
		b = facts[i].Append(b)
	}
	SetDropped(b, dropped)
	s.raw(b)
}

func (s *sender) raw(b []byte) {
	s.t.Helper()
	if _, err := s.end.Write(b); err != nil {
		s.t.Fatal(err)
	}
}

func (c *Collector) account(t *testing.T) *Account {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a, err := c.End(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestCollector(t *testing.T) {
	s, c, path := collect(t)
	for i := range 500 {
		s.send(0, Fact{Op: Open, Path: fmt.Sprint("/etc/", i)}, Fact{Op: Exec, PID: 2, Path: "/bin/sh"})
	}
	s.end.Close()
	a := c.account(t)
	if a.Facts != 1000 || a.Execs != 500 || a.Dropped != 0 || a.Incomplete != nil || a.Bytes == 0 {
		t.Errorf("%+v %v", a.Kept, a.Incomplete)
	}
	got, damage, tail, err := read(t, path)
	if err != nil || damage != nil || len(got) != 1000 || !tail.Ended {
		t.Errorf("%d facts, %v, %+v, %v", len(got), damage, tail, err)
	}
}

// What is lost on the way is said, whoever lost it.
func TestCollectorCountsLosses(t *testing.T) {
	s, c, path := collect(t)
	s.send(0, Fact{Op: Stat, Path: "/a"})
	s.seq += 3 // the kernel dropped a batch
	s.send(3, Fact{Op: Stat, Path: "/b"})
	s.raw([]byte("bad"))
	s.raw([]byte("nor this, although it is longer than the head of one"))
	s.raw(make([]byte, MaxBatch+1)) // too long to arrive whole
	s.seq++
	s.send(3, Fact{Op: Stat, Path: "/c"})
	s.end.Close()
	a := c.account(t)
	if a.Facts != 3 || a.Dropped != 4 || len(a.Incomplete) != 2 || !strings.Contains(a.Incomplete[0], "4 facts were lost") || !strings.Contains(a.Incomplete[1], "3 messages") {
		t.Errorf("%d facts, %d dropped, %q", a.Facts, a.Dropped, a.Incomplete)
	}
	if _, _, tail, err := read(t, path); err != nil || tail.Dropped != 3 || tail.Last != 7 {
		t.Errorf("%+v %v", tail, err)
	}
}

// What was sent before is read, whoever still holds the other end.
func TestCollectorAfterThePause(t *testing.T) {
	s, c, path := collect(t)
	for range 5 {
		s.send(0, Fact{Op: Stat, Path: "/a"})
	}
	c.Sent(0)
	if _, err := s.end.Write(NewBatch(nil)); err == nil {
		t.Error("more is taken afterwards")
	}
	a := c.account(t)
	if got, _, tail, err := read(t, path); a.Facts != 5 || a.Incomplete != nil || len(got) != 5 || err != nil || tail.Reason != "" {
		t.Errorf("%d facts, %q, %+v, %v", len(got), a.Incomplete, tail, err)
	}
}

// What the bottle says at its end that it lost is in the account and in the file.
func TestCollectorIsToldOfLosses(t *testing.T) {
	s, c, path := collect(t)
	s.send(3, Fact{Op: Stat, Path: "/a"})
	c.Sent(4)
	a := c.account(t)
	if a.Dropped != 7 || !a.Told || len(a.Incomplete) != 1 || !strings.Contains(a.Incomplete[0], "7 facts were lost") {
		t.Errorf("%d dropped, %q", a.Dropped, a.Incomplete)
	}
	if _, _, tail, err := read(t, path); err != nil || tail.Dropped != 7 {
		t.Errorf("%+v %v", tail, err)
	}
}

// A socket that nobody closes does not keep the run: what has come is kept.
func TestCollectorGivesUp(t *testing.T) {
	s, c, path := collect(t)
	s.send(0, Fact{Op: Stat, Path: "/a"})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	a, err := c.End(ctx)
	if err != nil || a.Facts != 1 || len(a.Incomplete) != 1 || !strings.Contains(a.Incomplete[0], "did not end its trace in time") {
		t.Fatalf("%+v %v", a, err)
	}
	if got, _, tail, err := read(t, path); err != nil || len(got) != 1 || tail.Reason == "" {
		t.Errorf("%d facts, %+v, %v", len(got), tail, err)
	}
}

// Where no file can be made, facts are counted all the same.
func TestCollectorWithoutAFile(t *testing.T) {
	s, c, _ := collect(t, func(o *Options) { o.Path = "/proc/none/trace" })
	s.send(0, Fact{Op: Open, Path: "/etc/passwd"}, Fact{Op: Exec, PID: 2, Path: "/bin/sh"})
	s.end.Close()
	a := c.account(t)
	if a.Facts != 2 || a.Execs != 1 || a.Unkept.Total() != 2 || a.Unkept.Of(kindExec) != 1 || len(a.Incomplete) != 1 || a.Bytes != 0 {
		t.Errorf("%+v %q", a.Kept, a.Incomplete)
	}
}

func TestCollectorRedacts(t *testing.T) {
	const val = "hunter2-hunter2"
	r, err := secret.NewRedactor(map[string]secret.Value{"token": secret.NewString(val)})
	if err != nil {
		t.Fatal(err)
	}
	s, c, path := collect(t, func(o *Options) { o.Redact = r })
	cut := strings.Repeat("x", MaxArgs-8) + val
	s.send(0,
		Fact{Op: Open, Path: "/tmp/" + val + "/x"},
		Fact{Op: Rename, Path: "/tmp/plain", Path2: "/tmp/a" + val},
		Fact{Op: Exec, Path: "/bin/sh", PID: 2, Args: []string{"curl", "-H", "Authorization: " + val, "plain"}},
		Fact{Op: Exec, Path: "/bin/sh", PID: 3, Args: []string{cut}},
		Fact{Op: Connect, Path: "unix:@" + val},
	)
	s.end.Close()
	a := c.account(t)
	got, _, _, err := read(t, path)
	if err != nil || len(got) != 5 {
		t.Fatalf("%d facts, %v", len(got), err)
	}
	text := fmt.Sprintf("%+v %+v %+v", got, a.Processes(), a.Written(100))
	if strings.Contains(text, val) || strings.Contains(text, val[:8]) {
		t.Error("a secret, or the beginning of one that was cut, is kept")
	}
	if got[0].Path != "/tmp/[redacted:token]/x" || got[1].Path != "/tmp/plain" || got[2].Args[3] != "plain" {
		t.Errorf("%+v", got[:3])
	}
}

// BenchmarkBatch measures carboy's work for one fact: parse, count, compress, write.
func BenchmarkBatch(b *testing.B) {
	facts := some(10_000)
	file, err := createFile(filepath.Join(b.TempDir(), "trace"), testRun, 1<<40)
	if err != nil {
		b.Fatal(err)
	}
	c := &Collector{sum: NewSummary(View{Workspace: "/w"}), file: file}
	var batches [][]byte
	for i := 0; i+250 <= len(facts); i += 250 {
		x := NewBatch(nil)
		for j := range facts[i : i+250] {
			x = facts[i+j].Append(x)
		}
		batches = append(batches, x)
	}
	b.ReportAllocs()
	for i := 0; i < b.N; i += 250 {
		c.batch(batches[i/250%len(batches)])
	}
	file.Close("")
}
