// Package audit keeps a tamper-evident log of decisions, one per user.
//
// The log is a Merkle tree over records (RFC 6962 hashing, as in golang.org/x/mod/sumdb/tlog) with signed checkpoints in
// the format of C2SP's tlog-checkpoint. Its directory contains
//
//	log          one JSON record per line; the hash of a line, without its break, is a leaf
//	hashes       the tree's stored hashes, 32 bytes each, in tlog's order; can be rebuilt from log
//	checkpoints  signed notes, each followed by an empty line: origin, size, root hash, "bytes <length of log>"
//	key          the signing key, mode 0600, generated once
//	key.pub      the verification key
//	lock         locked with flock while a process appends
//
// Guarantees:
//
//   - Verify detects, offline and from these files alone, any deletion, reordering, edit or rewrite of records before the
//     last checkpoint, and any truncation of them.
//   - A crash loses at most records for which no durable Append had returned. If it leaves a torn end, that is cut off,
//     and the cut is recorded.
//   - Records contain no secrets: their text comes through a secret.Redactor or from constants of the program.
//
// Whoever has the key and can write all files can restore an older state of all of them, or sign another history. Verify
// detects that only against a checkpoint that was kept elsewhere (VerifyOptions.Anchors); each receipt contains one.
// Records after the last checkpoint are not signed yet.
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

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/secret"
)

const (
	recordSchema = "carboy.dev/audit-record/v1"

	// MaxText bounds each text of a record, in bytes; what is longer ends in "…".
	MaxText = 1024
	// maxRecord bounds a record, in bytes, with its line break.
	maxRecord  = 16 << 10
	maxDigests = 16
)

// Kind is the type of a record.
type Kind string

const (
	logCreated  Kind = "log.created"  // the first record of a log
	logRepaired Kind = "log.repaired" // a torn end was cut off

	runCreated  Kind = "run.created"
	RunStarted  Kind = "run.started"
	RunFinished Kind = "run.finished"
	RunFailed   Kind = "run.failed"
	RunLost     Kind = "run.lost"
	RunRemoved  Kind = "run.removed"
	RunAttached Kind = "run.attached" // a person attached to its command's terminal
	RunExec     Kind = "run.exec"     // another command was started in a running bottle

	Posture  Kind = "bottle.posture" // the sandbox was inspected before its first instruction
	LimitHit Kind = "bottle.limit"
	Kept     Kind = "bottle.kept"    // a bottle's state was kept, by digest
	Resumed  Kind = "bottle.resumed" // a run continues where another one ended
	hostExec Kind = "host.exec"

	Resolve Kind = "net.resolve"
	Connect Kind = "net.connect"
	Request Kind = "net.request"    // HTTP requests: each refused one, and a summary of those allowed
	Found   Kind = "net.found"      // a secret in outgoing data or an injected instruction in incoming data
	Routes  Kind = "net.routes"     // the routes changed
	Dropped Kind = "events.dropped" // how many records of which kinds were left out

	GitPush      Kind = "git.push"      // a push by the git gate, with its references
	GitFetch     Kind = "git.fetch"     // each refused or failed fetch, and a summary of the others
	GitKey       Kind = "git.key"       // a deploy key was created or revoked, or was left behind
	GateVerdict  Kind = "gate.verdict"  // a change was judged; the digest is the verdict's
	GateAttempt  Kind = "gate.attempt"  // an attempt began, or was recorded
	GateBaseline Kind = "gate.baseline" // a person accepted what phases may do
	GateOverride Kind = "gate.override" // a person accepted a change against its verdict
	GateRemoved  Kind = "gate.removed"  // a verdict was removed with its evidence; the digest is the verdict's

	Land    Kind = "workspace.land"
	Undo    Kind = "workspace.undo"
	Discard Kind = "workspace.discard"

	Sealed Kind = "provenance.sealed" // the record of a merged change was signed; the digest is its file's

	Signal      Kind = "agent.signal" // an agent reported its progress
	ShipPlan    Kind = "ship.plan"    // a plan was made for a host
	ShipImport  Kind = "ship.import"  // a host runs the commit that an earlier tool applied
	ShipApply   Kind = "ship.apply"   // a plan was sent to its host, or refused
	ShipStep    Kind = "ship.step"    // a step that a host reported, with its commands
	ShipOutcome Kind = "ship.outcome" // the outcome of a plan

	Proposal Kind = "proposal"
	Approval Kind = "approval"
)

// durable lists the kinds that are synced and signed when Append returns. Refusals of any kind are too.
var durable = map[Kind]bool{
	logCreated: true, logRepaired: true, RunFinished: true, RunFailed: true, RunLost: true, RunRemoved: true, Kept: true,
	Land: true, Undo: true, Discard: true, Approval: true,
	GateVerdict: true, GateAttempt: true, GateBaseline: true, GateOverride: true, GateRemoved: true, Sealed: true,
}

// Decision is the decision that a record reports. The zero value is Refused.
type Decision uint8

const (
	Refused Decision = iota
	Allowed
	Noted // there was nothing to decide
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

// Actor names who decided or acted.
type Actor string

const (
	ByCarboy Actor = "carboy" // a rule, without a person
	ByBottle Actor = "bottle" // something inside
)

// ByUser returns the actor for a person, by the uid of the person's process.
func ByUser(uid int) Actor { return Actor("user:" + strconv.Itoa(uid)) }

// literal accepts only untyped constants from other packages, because they cannot name the type.
type literal string

// Text is text for a record: one printable line of at most MaxText bytes, without known secrets. Redact and Plain make
// one. The zero Text is empty.
type Text struct{ s string }

// Redact returns s without the secrets that r knows. If r is nil, nothing of s is kept.
func Redact(r *secret.Redactor, s string) Text {
	if r == nil {
		return Text{secret.Redacted}
	}
	return Text{safetext.String(r.String(s), MaxText)}
}

// plain returns a constant of the program as Text. The argument must be an untyped constant.
func plain(s literal) Text { return Text{safetext.String(string(s), MaxText)} }

func (t Text) String() string { return t.s }

// Digest identifies the bytes that a record is about by their SHA-256.
type Digest struct {
	Of  literal // the meaning of the bytes: "plan", "change"
	Sum [32]byte
}

// Event is one entry for the log.
type Event struct {
	Kind     Kind
	Run      string // id of the run, or ""
	Actor    Actor
	Subject  Text // such as a host and port, or a path
	Decision Decision
	Rule     Text // the rule that decided
	Digests  []Digest
	Text     Text
	// Sync makes the record durable even if its kind is not.
	Sync bool
}

func (e *Event) durable() bool { return e.Sync || e.Decision == Refused || durable[e.Kind] }

// Record is an event in the log.
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

// encode returns the log line of an event, with its line break.
func (e *Event) encode(seq int64, now time.Time) ([]byte, error) {
	r := Record{
		Schema: recordSchema, Seq: seq, Time: now.UTC(), Kind: e.Kind, Run: e.Run, Actor: e.Actor, Decision: e.Decision,
		Subject: e.Subject.s, Rule: e.Rule.s, Text: e.Text.s,
	}
	for _, d := range e.Digests {
		r.Digests = append(r.Digests, RecordDigest{safetext.String(string(d.Of), 64), hex.EncodeToString(d.Sum[:])})
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
	if buf.Len() > maxRecord {
		return nil, fmt.Errorf("%d bytes are more than %d", buf.Len(), maxRecord)
	}
	return buf.Bytes(), nil
}

// parseRecord parses a line, without its line break, and checks that it is record seq.
func parseRecord(line []byte, seq int64) (Record, error) {
	var r Record
	if len(line)+1 > maxRecord {
		return r, fmt.Errorf("more than %d bytes", maxRecord)
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

// word reports whether s has at most max bytes and only characters that need no escaping.
func word(s string, max int) bool {
	return len(s) <= max && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789.:-_") == ""
}
