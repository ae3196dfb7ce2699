package trace

import (
	"encoding/hex"
	"time"

	"github.com/carboy/carboy/internal/store"
)

// Schema names the JSON form of a trace. There is one value per line: a
// HeadLine first, then FactLines and, where something is damaged, DamageLines,
// and an EndLine. It is published in docs/schemas/trace.v1.json; version 1 may
// only gain fields.
const Schema = "carboy.dev/trace/v1"

// HeadLine is the first line.
type HeadLine struct {
	Type   string    `json:"type"` // "trace"
	Schema string    `json:"schema"`
	Run    string    `json:"run"`
	Begun  time.Time `json:"begun"`
}

// FactLine is one fact.
type FactLine struct {
	Type     string      `json:"type"` // "fact"
	Seq      uint64      `json:"seq"`
	Time     time.Time   `json:"time"`
	Op       string      `json:"op"`
	Kind     FactKind    `json:"kind,omitempty"` // empty for an operation of a later version
	PID      uint32      `json:"pid"`
	PPID     uint32      `json:"ppid,omitempty"`
	Errno    string      `json:"errno,omitempty"` // a name; empty: it succeeded
	UID      *uint32     `json:"uid,omitempty"`   // of exec and setid
	EUID     *uint32     `json:"euid,omitempty"`
	Path     store.Raw   `json:"path,omitempty"`
	Path2    store.Raw   `json:"path2,omitempty"`
	Args     []store.Raw `json:"args,omitempty"`
	Digest   string      `json:"digest,omitempty"`
	A        uint64      `json:"a,omitempty"`
	B        uint64      `json:"b,omitempty"`
	C        uint64      `json:"c,omitempty"`
	Detail   store.Raw   `json:"detail,omitempty"`
	Flags    []string    `json:"flags,omitempty"`
	Observed bool        `json:"observed"`
}

// DamageLine is an unreadable part of the file.
type DamageLine struct {
	Type string `json:"type"` // "damage"
	From int64  `json:"from_byte"`
	To   int64  `json:"to_byte"`
	// First and Last number the facts that may be missing. Without Last: all
	// from First on. Without both: none.
	First uint64 `json:"first,omitempty"`
	Last  uint64 `json:"last,omitempty"`
	Why   string `json:"why"`
}

// EndLine is the last line.
type EndLine struct {
	Type string `json:"type"` // "end"
	// Ended means that the trace itself says that it ends here, for Reason
	// unless the run has ended. Otherwise the run goes on, or its carboy died.
	Ended  bool   `json:"ended"`
	Reason string `json:"reason,omitempty"`
	Last   uint64 `json:"last"`  // number of the last fact
	Shown  uint64 `json:"shown"` // facts printed
	// Dropped facts never left the bottle's kernel; Unkept ones did not fit.
	Dropped uint64              `json:"dropped"`
	Unkept  map[FactKind]uint64 `json:"unkept"` // by kind; empty kind: of a later version
	Torn    int64               `json:"torn_bytes"`
	Damaged uint64              `json:"damaged"` // DamageLines printed
	Digest  string              `json:"digest,omitempty"`
}

var flagNames = []struct {
	flag Flags
	name string
}{{Claimed, "claimed"}, {Asked, "asked"}, {Miss, "miss"}, {Foreign, "foreign"}, {Cut, "cut"}, {Deleted, "deleted"}, {Mutable, "mutable"}, {Special, "special"}}

// Names returns the flags' names.
func (fl Flags) Names() []string {
	var out []string
	for _, x := range flagNames {
		if fl&x.flag != 0 {
			out = append(out, x.name)
		}
	}
	return out
}

// Line returns the printed form of f.
func (f *Fact) Line() FactLine {
	l := FactLine{
		Type: "fact", Seq: f.Seq, Time: f.When().UTC(), Op: f.Op.String(), Kind: f.Op.Kind(), PID: f.PID, PPID: f.PPID,
		Errno: ErrnoName(f.Errno), Path: store.Raw(f.Path), Path2: store.Raw(f.Path2), Digest: hex.EncodeToString([]byte(f.Digest)),
		A: f.A, B: f.B, C: f.C, Detail: store.Raw(f.Detail()), Flags: f.Flags.Names(), Observed: f.Observed(),
	}
	if len(f.Args) > 0 {
		l.Args = store.Raws(f.Args)
	}
	if f.Op == Exec || f.Op == SetID {
		l.UID, l.EUID = &f.UID, &f.EUID
	}
	return l
}

// Line returns the printed form of the end.
func (t *Tail) Line(shown, damaged uint64) EndLine {
	l := EndLine{
		Type: "end", Ended: t.Ended, Reason: t.Reason, Last: t.Last, Shown: shown, Dropped: t.Dropped,
		Unkept: map[FactKind]uint64{}, Torn: t.Torn, Damaged: damaged, Digest: hex.EncodeToString(t.Digest),
	}
	for i, n := range t.Unkept {
		if n > 0 {
			l.Unkept[kinds[i]] = n
		}
	}
	return l
}

// Line returns the printed form of the damage.
func (e *DamageError) Line() DamageLine {
	return DamageLine{Type: "damage", From: e.From, To: e.To, First: e.First, Last: e.Last, Why: e.Why.Error()}
}
