package run

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/review"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/trace"
)

// tracePair makes the sockets through which a bottle's kernel sends its facts.
func tracePair() (ours, bottles *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make the trace's socket: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "trace"), os.NewFile(uintptr(fds[1]), "trace"), nil
}

// startTrace takes the facts of v for this run. Every run is traced: there is no switch.
func (s *Session) startTrace(v *sandbox) error {
	conn := v.trace
	v.trace = nil
	if s.Rec.Isolation.Posture.Facts == bottle.FactsNone {
		return conn.Close() // the receipt says that there are no facts
	}
	c, err := trace.Collect(conn, trace.Options{
		Path: s.run.Path(store.TraceFile), Run: string(s.run.ID()), Max: s.conf.TraceMax(), View: s.view(), Redact: s.Redactor,
	})
	s.facts = c
	return err
}

func (s *Session) view() trace.View {
	areas := []string{s.User.User.Home}
	for _, m := range s.Mounts {
		areas = append(areas, m.Target)
	}
	return trace.View{Workspace: s.Target, Mounted: s.Mode == store.Bind, Areas: areas}
}

// lastFacts bounds the wait for facts of a bottle that is gone: they are in a
// socket's buffer or on their way to the disk.
const lastFacts = 10 * time.Second

// endTrace adds the remaining facts to the receipt. No more can come: the bottle is
// paused and its end was read, or it is gone.
func (s *Session) endTrace() {
	if s.facts == nil {
		return
	}
	if !s.paused {
		s.bottle.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastFacts)
	defer cancel()
	a, err := s.facts.End(ctx)
	s.facts = nil
	if err != nil {
		s.Rec.Trace = &receipt.Trace{Incomplete: fault.Sentence(err.Error())}
		return
	}
	why := a.Incomplete
	if !s.paused && !a.Told {
		why = append(why, "the bottle ended by itself, so facts of its last moments may be missing")
	}
	s.Rec.Trace = &receipt.Trace{
		Facts: review.Signed(a.Facts), Dropped: review.Signed(a.Dropped), Unkept: review.Signed(a.Unkept.Total()), Bytes: a.Bytes, Incomplete: fault.Sentence(why...),
	}
	if a.Bytes > 0 {
		s.Rec.Trace.Digest = hex.EncodeToString(a.Digest[:])
		s.traceSum = &a.Digest
	}
	review.Account(&s.Rec, a.Summary, s.began)
}
