// Package audit keeps one log of decisions per user, in which nothing can be changed afterwards without being found.
//
// The log is a Merkle tree over records (RFC 6962 hashing, as golang.org/x/mod/sumdb/tlog has it) with signed checkpoints
// in the form of C2SP's tlog-checkpoint. In its directory lie
//
//	log          one JSON record per line; the hash of a line, without its break, is a leaf
//	hashes       the tree's stored hashes, 32 bytes each, in tlog's order; can be rebuilt from log
//	checkpoints  signed notes, each followed by an empty line: origin, size, root hash, "bytes <length of log>"
//	key          the signing key, mode 0600, made once
//	key.pub      the key that verifies
//	lock         under flock while somebody appends
//
// It promises that Verify finds, offline and from these files alone, any deletion, reordering, edit or rewrite of records
// before the last checkpoint, and any truncation behind it; that a crash costs at most records for which no durable
// Append had returned, and that what was cut off then is itself recorded; and that records hold no secret: their text
// comes through a secret.Redactor or from constants of the program.
//
// Not promised: whoever holds the key and can write all files can put back an older state of all of them, or sign
// another history. That is found only against a checkpoint that was kept elsewhere (VerifyOptions.Anchors): receipts
// carry one each. Records after the last checkpoint are not signed yet.
//
// Start reading at Event, then Log.Append, then Verify.
package audit

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/visible"
)

const (
	recordSchema = "carboy.dev/audit-record/v1"

	// MaxText bounds each text of a record, in bytes; what is longer ends in "…".
	MaxText = 1024
	// MaxRecord bounds a record, in bytes, with its line break.
	MaxRecord  = 16 << 10
	maxDigests = 16
)

// Kind is what a record is about.
type Kind string

const (
	LogCreated  Kind = "log.created"  // the first record of a log
	LogRepaired Kind = "log.repaired" // a torn end was cut off

	RunCreated  Kind = "run.created"
	RunStarted  Kind = "run.started"
	RunFinished Kind = "run.finished"
	RunFailed   Kind = "run.failed"
	RunLost     Kind = "run.lost"
	RunRemoved  Kind = "run.removed"
	RunAttached Kind = "run.attached" // somebody looks at what its command writes, and types
	RunExec     Kind = "run.exec"     // another command was started in a bottle that goes on

	Posture  Kind = "bottle.posture" // the sandbox was looked at before its first instruction
	LimitHit Kind = "bottle.limit"
	Kept     Kind = "bottle.kept"    // what a bottle can be resumed from, by digest
	Resumed  Kind = "bottle.resumed" // a run goes on where another one ended
	HostExec Kind = "host.exec"

	Resolve Kind = "net.resolve"
	Connect Kind = "net.connect"
	Request Kind = "net.request"    // of HTTP: each that was refused, those that were allowed summed up
	Found   Kind = "net.found"      // a secret on its way out, an injected instruction on its way in
	Routes  Kind = "net.routes"     // other routes are in force from here on
	Dropped Kind = "events.dropped" // how many records were left out, and of what

	GitPush      Kind = "git.push"      // by the git gate, each with its references
	GitFetch     Kind = "git.fetch"     // each that was refused or failed, the others summed up
	GitKey       Kind = "git.key"       // a deploy key was made or revoked, or is left
	GateVerdict  Kind = "gate.verdict"  // a change was judged; the digest is the verdict's
	GateAttempt  Kind = "gate.attempt"  // an attempt began, or was recorded
	GateBaseline Kind = "gate.baseline" // a person accepted what phases may do
	GateOverride Kind = "gate.override" // a person let a change go on against a verdict
	GateRemoved  Kind = "gate.removed"  // a verdict was removed with its evidence; the digest is the verdict's

	Land    Kind = "workspace.land"
	Undo    Kind = "workspace.undo"
	Discard Kind = "workspace.discard"

	Signal      Kind = "agent.signal" // what an agent says of its work
	ShipPlan    Kind = "ship.plan"    // what would be done on a host
	ShipImport  Kind = "ship.import"  // a host runs what an earlier tool says it applied
	ShipApply   Kind = "ship.apply"   // a plan goes to its host
	ShipStep    Kind = "ship.step"    // what a host says that it does, with the commands it runs
	ShipOutcome Kind = "ship.outcome" // how it ended there

	Proposal Kind = "proposal"
	Approval Kind = "approval"
)

// durable kinds are on disk and signed when Append returns. Refusals are so too, whatever their kind.
var durable = map[Kind]bool{
	LogCreated: true, LogRepaired: true, RunFinished: true, RunFailed: true, RunLost: true, RunRemoved: true, Kept: true,
	Land: true, Undo: true, Discard: true, Approval: true,
	GateVerdict: true, GateAttempt: true, GateBaseline: true, GateOverride: true, GateRemoved: true,
}

// Decision is what was decided. The zero value says refused.
type Decision uint8

const (
	Refused Decision = iota
	Allowed
	Noted // nothing was to decide
)

var decisions = [...]string{"refused", "allowed", "noted"}

func (d Decision) String() string {
	if int(d) < len(decisions) {
		return decisions[d]
	}
	return "decision(" + strconv.Itoa(int(d)) + ")"
}

// MarshalText implements encoding.TextMarshaler.
func (d Decision) MarshalText() ([]byte, error) {
	if int(d) >= len(decisions) {
		return nil, fmt.Errorf("no such decision: %d", d)
	}
	return []byte(decisions[d]), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Decision) UnmarshalText(b []byte) error {
	for i, s := range decisions {
		if string(b) == s {
			*d = Decision(i)
			return nil
		}
	}
	return fmt.Errorf("no such decision: %q", b)
}

// Actor is who decided or did.
type Actor string

const (
	ByCarboy Actor = "carboy" // a rule, without a person
	ByBottle Actor = "bottle" // something inside
)

// ByUser is a person, by the uid of the process that spoke for them.
func ByUser(uid int) Actor { return Actor("user:" + strconv.Itoa(uid)) }

// literal is satisfied by constants of the program only: callers outside cannot name it.
type literal string

// Text is text that may stand in a record: one visible line of at most MaxText bytes, without known secrets. The zero
// Text is empty. There are two ways to one, Redact and Plain.
type Text struct{ s string }

// Redact takes the secrets that r knows out of s. Without a Redactor nothing of s is kept.
func Redact(r *secret.Redactor, s string) Text {
	if r == nil {
		return Text{secret.Redacted}
	}
	return Text{visible.String(r.String(s), MaxText)}
}

// Plain is for words of the program itself: only an untyped constant can be passed.
func Plain(s literal) Text { return Text{visible.String(string(s), MaxText)} }

func (t Text) String() string { return t.s }

// Digest says by its SHA-256 which bytes a record is about.
type Digest struct {
	Of  literal // what the bytes are: "plan", "change"
	Sum [32]byte
}

// Event is what a caller puts into the log.
type Event struct {
	Kind     Kind
	Run      string // id of the run, or ""
	Actor    Actor
	Subject  Text // what it is about: a host and port, a path
	Decision Decision
	Rule     Text // which rule decided
	Digests  []Digest
	Text     Text
	// Sync makes the record durable also when its kind is not.
	Sync bool
}

func (e *Event) durable() bool { return e.Sync || e.Decision == Refused || durable[e.Kind] }

// Record is an event as it stands in the log.
type Record struct {
	Schema   string         `json:"schema"`
	Seq      int64          `json:"seq"`  // from 0, without gaps
	Time     time.Time      `json:"time"` // wall clock, UTC; order is Seq's
	Kind     Kind           `json:"kind"`
	Run      string         `json:"run,omitempty"`
	Actor    Actor          `json:"actor"`
	Decision Decision       `json:"decision"`
	Subject  string         `json:"subject,omitempty"`
	Rule     string         `json:"rule,omitempty"`
	Digests  []RecordDigest `json:"digests,omitempty"`
	Text     string         `json:"text,omitempty"`
}

// RecordDigest is a Digest in a Record.
type RecordDigest struct {
	Of     string `json:"of"`
	SHA256 string `json:"sha256"` // hex
}

// encode returns the line of an event, with its break.
func (e *Event) encode(seq int64, now time.Time) ([]byte, error) {
	r := Record{
		Schema: recordSchema, Seq: seq, Time: now.UTC(), Kind: e.Kind, Run: e.Run, Actor: e.Actor, Decision: e.Decision,
		Subject: e.Subject.s, Rule: e.Rule.s, Text: e.Text.s,
	}
	for _, d := range e.Digests {
		r.Digests = append(r.Digests, RecordDigest{visible.String(string(d.Of), 64), hex.EncodeToString(d.Sum[:])})
	}
	if err := r.check(seq); err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return nil, err
	}
	if buf.Len() > MaxRecord {
		return nil, fmt.Errorf("%d bytes are more than %d", buf.Len(), MaxRecord)
	}
	return buf.Bytes(), nil
}

// parseRecord reads a line, without its break, that should be record seq.
func parseRecord(line []byte, seq int64) (Record, error) {
	var r Record
	if len(line)+1 > MaxRecord {
		return r, fmt.Errorf("more than %d bytes", MaxRecord)
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return r, err
	}
	return r, r.check(seq)
}

func (r *Record) check(seq int64) error {
	switch {
	case r.Schema != recordSchema:
		return fmt.Errorf("field \"schema\" is %q, want %q", r.Schema, recordSchema)
	case r.Seq != seq:
		return fmt.Errorf("field \"seq\" is %d, want %d", r.Seq, seq)
	case !word(string(r.Kind), 64) || r.Kind == "":
		return fmt.Errorf("field \"kind\" is %q", r.Kind)
	case !word(string(r.Actor), 64) || r.Actor == "":
		return fmt.Errorf("field \"actor\" is %q", r.Actor)
	case !word(r.Run, 64):
		return fmt.Errorf("field \"run\" is %q", r.Run)
	case len(r.Digests) > maxDigests:
		return errors.New("too many digests")
	}
	return nil
}

// word keeps to names that need no escape and can hide nothing.
func word(s string, max int) bool {
	return len(s) <= max && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789.:-_") == ""
}
