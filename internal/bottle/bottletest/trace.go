package bottletest

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/trace"
)

// trace checks that when Pause returns, all earlier facts have been sent, in
// order and without a gap. Without a socket there are none, and the posture
// says so.
func (s *suite) trace(t *testing.T) {
	if b := s.create(t); b.Posture().Trace {
		t.Error("nobody asked for facts, and the posture says that there are some")
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	b := s.create(t, func(sp *bottle.Spec) { sp.Trace = os.NewFile(uintptr(fds[1]), "trace") })
	b.sh("cat a.txt; cat missing 2>&1 || true; exit 0")
	if err := b.Pause(b.ctx); err != nil {
		t.Fatal(err)
	}
	var got []trace.Fact
	var dropped uint64
	for buf := make([]byte, trace.MaxBatch); ; {
		n, _, err := unix.Recvfrom(fds[0], buf, unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		if err == unix.EAGAIN || n == 0 {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if dropped, err = trace.ParseBatch(buf[:n], func(f *trace.Fact) { got = append(got, *f) }); err != nil {
			t.Fatal(err)
		}
	}
	s.judgeFacts(t, b, got, dropped)
}

// judgeFacts compares the facts that came with what the backend declares.
func (s *suite) judgeFacts(t *testing.T, b *box, got []trace.Fact, dropped uint64) {
	kind := b.Posture().FactsKind()
	declared := s.backend().Capabilities().Facts
	if declared == "" {
		declared = bottle.FactsNone
	}
	want(t, "kind of facts", kind, declared)
	if kind == bottle.FactsNone {
		s.lacking(t, bottle.CapFacts, func(t *testing.T) { want(t, "facts", len(got), 0) })
		return
	}
	if kind == bottle.FactsGuest {
		s.lacking(t, bottle.CapFacts, func(t *testing.T) {
			if n := countExecs(got); dropped == 0 && n < 2 {
				t.Errorf("cat was executed twice, and %d facts say so", n)
			}
		})
		return
	}
	var execs, exits, reads, misses int
	for i, f := range got {
		if f.Seq != uint64(i+1) {
			t.Fatalf("fact %d has number %d", i+1, f.Seq)
		}
		switch {
		case f.Op == trace.Exec && f.Errno == 0 && strings.HasSuffix(f.Path, "/cat"):
			execs++
		case f.Op == trace.Exit:
			exits++
		case f.Op == trace.Open && f.Errno == 0 && f.Path == b.spec.Workspace.Target+"/a.txt":
			reads++
		case f.Op == trace.Open && f.Errno == uint32(unix.ENOENT) && f.Path == b.spec.Workspace.Target+"/missing":
			misses++
		}
	}
	if dropped != 0 || execs != 2 || exits != 3 || reads != 1 || misses != 1 {
		t.Errorf("of %d facts, %d dropped: cat executed %d times, %d exits, a.txt opened %d times, missing missed %d times; want 2, 3, 1, 1",
			len(got), dropped, execs, exits, reads, misses)
	}
}

// countExecs counts the facts that say that cat was executed.
func countExecs(facts []trace.Fact) (n int) {
	for _, f := range facts {
		if f.Op == trace.Exec && f.Errno == 0 && strings.HasSuffix(f.Path, "/cat") {
			n++
		}
	}
	return n
}
