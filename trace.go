package carboy

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/trace"
	"github.com/carboy/carboy/internal/visible"
)

// tracePair makes the socket by which a bottle's kernel says what it saw.
func tracePair() (ours, bottles *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make the trace's socket: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "trace"), os.NewFile(uintptr(fds[1]), "trace"), nil
}

// startTrace takes the facts of v for this run. Every run is traced: there is
// nothing to switch it off with.
func (s *session) startTrace(v *vessel) error {
	conn := v.trace
	v.trace = nil
	c, err := trace.Collect(conn, trace.Options{
		Path: s.run.Path(store.TraceFile), Run: string(s.run.ID()), Max: s.conf.traceMax(), View: s.view(), Redact: s.redactor,
	})
	s.facts = c
	return err
}

func (s *session) view() trace.View {
	areas := []string{s.id.user.Home}
	for _, m := range s.mounts {
		areas = append(areas, m.Target)
	}
	return trace.View{Workspace: s.target, Mounted: s.mode == store.Bind, Areas: areas}
}

// lastFacts bounds the wait for facts of a bottle that is gone: they are in a
// socket's buffer or on their way to the disk.
const lastFacts = 10 * time.Second

// endTrace takes what is left of the facts into the receipt. Nothing can be
// added to them: the bottle stands still and its end was read, or it is over.
func (s *session) endTrace() {
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
		s.rec.Trace = &receipt.Trace{Incomplete: sentence(err.Error())}
		return
	}
	why := a.Incomplete
	if !s.paused && !a.Told {
		why = append(why, "the bottle ended by itself, so facts of its last moments may be missing")
	}
	s.rec.Trace = &receipt.Trace{
		Facts: signed(a.Facts), Dropped: signed(a.Dropped), Unkept: signed(a.Unkept.Total()), Bytes: a.Bytes, Incomplete: sentence(why...),
	}
	if a.Bytes > 0 {
		s.rec.Trace.Digest = hex.EncodeToString(a.Digest[:])
		s.traceSum = &a.Digest
	}
	account(&s.rec, a.Summary, s.began)
}

// signed bounds a number that the kernel inside says: it may have been taken
// over, and say anything.
func signed(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// sentence joins reasons for people.
func sentence(why ...string) string { return visible.String(strings.Join(why, "; "), 1000) }

// account fills the receipt from what the kernel inside saw.
func account(r *receipt.Receipt, s *trace.Summary, began time.Time) {
	r.Processes = processes(s, began)
	r.Files = &receipt.Files{
		Read: areasOf(s.Read()), ReadTotal: int64(s.Counts.ReadOutside), ReadInside: int64(s.Counts.ReadInside),
		WrittenTotal: int64(s.Counts.Written), Missed: int64(s.Counts.Missed),
		Denied: areasOf(s.Denied()), DeniedTotal: int64(s.Counts.Denied), More: s.More,
	}
	for _, w := range s.Written(receipt.MaxWritten) {
		r.Files.Written = append(r.Files.Written, receipt.Written{Path: store.Raw(w.Path), How: w.How, Inside: w.Inside})
	}
	r.Privileges = &receipt.Privileges{Total: int64(len(s.Attempts))}
	for _, a := range s.Attempts {
		r.Privileges.Attempts = append(r.Privileges.Attempts, receipt.Attempt{
			What: visible.String(a.What, 200), Detail: visible.String(a.Detail, 300), Errno: trace.ErrnoName(a.Errno), Count: int64(a.Count),
		})
	}
	r.Sockets = &receipt.Sockets{Total: int64(len(s.Sockets))}
	for _, x := range s.Sockets {
		r.Sockets.List = append(r.Sockets.List, receipt.Socket{
			Family: trace.FamilyName(x.Family), Type: trace.SocketTypeName(x.Type), Errno: trace.ErrnoName(x.Errno), Count: int64(x.Count),
		})
	}
}

func processes(s *trace.Summary, began time.Time) *receipt.Processes {
	p := &receipt.Processes{Total: int64(s.Procs), Execs: int64(s.Execs), Failed: int64(s.Failed)}
	since := func(t int64) int64 { return max(0, t-began.UnixNano()) }
	for i, x := range s.Processes() {
		r := receipt.Process{
			ID: int64(i + 1), Parent: int64(x.Parent), PID: int64(x.PID), Path: store.Raw(x.Path), Args: store.Raws(x.Args),
			UID: x.UID, EUID: x.EUID, Execs: int64(x.Execs), Start: since(x.Start), Code: x.Code, Signal: trace.SignalName(uint64(x.Signal)),
		}
		if x.Digest != "" {
			r.Digest = hex.EncodeToString([]byte(x.Digest))
		}
		if x.End != 0 {
			end := since(x.End)
			r.End = &end
		}
		p.List = append(p.List, r)
	}
	return p
}

func areasOf(l []trace.Area) []receipt.Area {
	var out []receipt.Area
	for _, a := range l {
		out = append(out, receipt.Area{Path: store.Raw(a.Path), Files: int64(a.Files)})
	}
	slices.SortFunc(out, func(a, b receipt.Area) int {
		return cmp.Or(cmp.Compare(b.Files, a.Files), cmp.Compare(a.Path, b.Path))
	})
	return out
}

// ErrNoTrace means that nothing was recorded of what happened in a run.
var ErrNoTrace = errors.New("no trace is kept")

// Trace opens what the kernel inside saw of a run, also while it goes on.
func (c *Client) Trace(id store.ID) (*trace.Reader, error) {
	r, err := trace.OpenFile(c.store.RunDir(id)+"/"+store.TraceFile, string(id))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := c.store.Get(id); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("run %s: %w: it failed before its bottle was made, or an older carboy made it", id, ErrNoTrace)
	}
	return r, err
}

// Over reports whether a run is over. One whose carboy has died is, and is
// marked as lost.
func (c *Client) Over(ctx context.Context, id store.ID) (bool, error) {
	m, err := c.store.Get(id)
	if err != nil || m.State.Over() {
		return err == nil, err
	}
	rerr := c.recover(ctx)
	if m, err = c.store.Get(id); err != nil {
		return false, err
	}
	if m.State.Over() {
		return true, nil
	}
	return false, rerr
}

// maxReplay bounds the facts from which the account of a lost run is made.
const maxReplay = 2_000_000

// replay gives a run whose carboy died the account that its trace allows: up to
// the last block that was written.
func (c *Client) replay(r *receipt.Receipt, m store.Meta) {
	f, err := c.Trace(m.ID)
	if errors.Is(err, ErrNoTrace) {
		return
	}
	r.Trace = &receipt.Trace{}
	if err != nil {
		r.Trace.Incomplete = sentence(err.Error())
		return
	}
	defer f.Close()
	sum := trace.NewSummary(trace.View{Workspace: string(m.Workspace.Path), Mounted: m.Mode == store.Bind})
	var why []string
	for sum.Facts < maxReplay {
		var x trace.Fact
		var damage *trace.DamageError
		err := f.Next(&x)
		if errors.As(err, &damage) {
			if len(why) < 3 {
				why = append(why, damage.Error())
			}
			continue
		}
		if err != nil {
			if err != io.EOF {
				why = append(why, err.Error())
			}
			break
		}
		sum.Add(&x)
	}
	t := f.Tail()
	switch {
	case sum.Facts == maxReplay:
		why = append(why, fmt.Sprintf("this account is of the first %d facts; carboy trace has all", sum.Facts))
	case t.Reason != "":
		why = append(why, "the trace ended early: "+t.Reason)
	case !t.Ended:
		why = append(why, fmt.Sprintf("carboy died before the trace ended; it reaches to fact %d", t.Last))
	}
	r.Trace.Facts = signed(sum.Facts + t.Unkept.Total())
	r.Trace.Dropped, r.Trace.Unkept = signed(t.Dropped), signed(t.Unkept.Total())
	r.Trace.Incomplete = sentence(why...)
	if fi, err := os.Stat(c.store.RunDir(m.ID) + "/" + store.TraceFile); err == nil {
		r.Trace.Bytes = fi.Size()
	}
	began := f.Begun()
	if m.Started != nil {
		began = *m.Started
	}
	account(r, sum, began)
}
