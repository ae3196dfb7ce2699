package review

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"time"

	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/trace"
)

// Signed converts n, at most to the largest int64. The kernel inside reports n, and if it
// was taken over, n may be anything.
func Signed(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// Account fills the receipt with what the kernel inside traced. Times are relative to
// began.
func Account(r *receipt.Receipt, s *trace.Summary, began time.Time) {
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
			What: safetext.String(a.What, 200), Detail: safetext.String(a.Detail, 300), Errno: trace.ErrnoName(a.Errno), Count: int64(a.Count),
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
	slices.SortStableFunc(out, func(a, b receipt.Area) int {
		return cmp.Or(cmp.Compare(b.Files, a.Files), cmp.Compare(a.Path, b.Path))
	})
	return out
}

// ErrNoTrace means that a run has no trace.
var ErrNoTrace = errors.New("no trace is kept")

// Trace opens the trace of a run, which may still be running.
func (c *Reviewer) Trace(id store.ID) (*trace.Reader, error) {
	r, err := trace.OpenFile(c.Store.RunDir(id)+"/"+store.TraceFile, string(id))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := c.Store.Get(id); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("run %s: %w: it failed before its bottle was made, its backend sends no facts, or an older carboy made it", id, ErrNoTrace)
	}
	return r, err
}

// maxReplay bounds the facts that replay reads.
const maxReplay = 2_000_000

// replay fills the receipt of a lost run from its trace, up to the last block that was
// written.
func (c *Reviewer) replay(r *receipt.Receipt, m store.Meta) {
	f, err := c.Trace(m.ID)
	if errors.Is(err, ErrNoTrace) {
		return
	}
	r.Trace = &receipt.Trace{}
	if err != nil {
		r.Trace.Incomplete = fault.Sentence(err.Error())
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
	r.Trace.Facts = Signed(sum.Facts + t.Unkept.Total())
	r.Trace.Dropped, r.Trace.Unkept = Signed(t.Dropped), Signed(t.Unkept.Total())
	r.Trace.Incomplete = fault.Sentence(why...)
	if fi, err := os.Stat(c.Store.RunDir(m.ID) + "/" + store.TraceFile); err == nil {
		r.Trace.Bytes = fi.Size()
	}
	began := f.Begun()
	if m.Started != nil {
		began = *m.Started
	}
	Account(r, sum, began)
}
