// Package supervise is the queue where people decide what no rule can: a route, a
// value that was held back, a finding in a commit.
//
// A process that needs an answer (the one that has the bottle) puts a [Proposal] in
// the queue and waits; a person answers it from another process, in a terminal, on a
// page or on the command line. Both work on files in one directory of the user's,
// and on nothing else.
//
// What it promises:
//
//   - An answer is bound to what was shown: it names the digest of the payload, and
//     an answer to another digest, another proposal or another bottle is none.
//     Only an answer that approves makes an [Approval], which is what effects take.
//   - One answer counts. Of several at the same moment one wins, and the others are
//     told which ([AnsweredError]).
//   - No answer is a refusal: when the time is up, when whoever asked is gone
//     (killed, even), when the queue can't be written or the answer can't be read.
//   - An approval is in the audit log before it is in force.
//   - Text from inside a bottle is shown as package visible shows it, and what of it
//     did not show by itself is pointed out; only [Text] reaches a face.
//   - What one bottle can put in the queue is bounded, in number, size and rate.
//
// Not promised: protection from other processes of the same user, who owns these
// files, and from a person who approves what is shown.
//
// A kind of proposal is one file, kind_*.go. Start reading at [Queue], then [Asker].
package supervise

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
)

// Bounds of what stands in the queue. Sizes are in bytes.
const (
	// MaxPayload bounds a payload as JSON.
	MaxPayload = 128 << 10
	// MaxWhy bounds an agent's words, and MaxNote a person's.
	MaxWhy  = 4 << 10
	MaxNote = 2 << 10
	// MaxWaiting is how many proposals of one Asker wait at a time, and
	// MaxPerHour how many it makes in an hour: a bottle has one.
	MaxWaiting = 32
	MaxPerHour = 240
	// DefaultTimeout and MaxTimeout bound how long a proposal waits.
	DefaultTimeout = 5 * time.Minute
	MaxTimeout     = 24 * time.Hour
)

var (
	// ErrNotFound is returned for a proposal that is not there, or not there any more.
	ErrNotFound = errors.New("no such proposal")
	// ErrDigest is returned for an answer to something else than what waits.
	ErrDigest = errors.New("what waits is not what was shown")
	// ErrExpired and ErrGone are returned for an answer that nobody waits for: the
	// time is up, or whoever asked is gone.
	ErrExpired = errors.New("the proposal's time is up")
	ErrGone    = errors.New("nobody waits for the answer any more")
	// ErrFull is returned for a proposal of a bottle that has too many.
	ErrFull = errors.New("too many proposals")
	// ErrNotModifiable is returned for a kind that is approved or rejected as it is.
	ErrNotModifiable = errors.New("can only be approved or rejected as it is")
	// ErrSigned is returned for an approval of a kind that is [Signed].
	ErrSigned = errors.New("a signature approves this, and nothing here does")
	// ErrClosed is returned by an Asker that was closed.
	ErrClosed = errors.New("asks no more")
)

// AnsweredError means that a proposal was answered already.
type AnsweredError struct {
	ID     ID
	Answer Answer
}

func (e *AnsweredError) Error() string {
	return fmt.Sprintf("proposal %s: already %s by %s", e.ID, e.Answer.Verdict, e.Answer.By)
}

// ID names a proposal: a ULID of 26 characters in lower case.
type ID string

// Digest says what exactly is proposed: SHA-256 over the bottle, the kind and the
// payload, without what is only shown beside it.
type Digest [sha256.Size]byte

func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText implements encoding.TextMarshaler.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Digest) UnmarshalText(b []byte) error {
	if len(b) != hex.EncodedLen(len(d)) {
		return errors.New("not a SHA-256 in hexadecimal")
	}
	_, err := hex.Decode(d[:], b)
	return err
}

// Verdict is how a proposal ended. The zero Verdict refuses.
type Verdict string

// The verdicts.
const (
	Approved  Verdict = "approved"
	Modified  Verdict = "modified" // approved, with another payload than the proposal's
	Rejected  Verdict = "rejected"
	Expired   Verdict = "expired"   // nobody answered in time
	Withdrawn Verdict = "withdrawn" // whoever asked wants no answer any more, or is gone
)

// Allows reports whether what was asked for may be done, with whichever payload.
func (v Verdict) Allows() bool { return v == Approved || v == Modified }

// Channel is where an answer came from.
type Channel string

// The channels.
const (
	ChannelTUI    Channel = "tui"
	ChannelWeb    Channel = "web"
	ChannelCLI    Channel = "cli"
	ChannelPolicy Channel = "policy" // a rule of the user's, without a person
	ChannelQueue  Channel = "queue"  // nobody: the time was up, or the asker gone
)

// By is who answered.
type By struct {
	UID     int        `json:"uid"`
	User    string     `json:"user,omitempty"` // the name of UID; empty when it has none
	Channel Channel    `json:"channel"`
	Policy  *PolicyRef `json:"policy,omitempty"` // of ChannelPolicy
}

// PolicyRef is the rule that answered.
type PolicyRef struct {
	File   string `json:"file"`
	Digest Digest `json:"digest"` // SHA-256 of the file
	Rule   int    `json:"rule"`   // counted from 1
	Line   int    `json:"line"`
}

// Answer is what was decided about a proposal.
type Answer struct {
	ID      ID      `json:"id"`
	Digest  Digest  `json:"digest"` // of the proposal that was shown
	Verdict Verdict `json:"verdict"`
	By      By      `json:"by"`
	// Note is a person's, for the agent and the record. At most MaxNote.
	Note string    `json:"note,omitempty"`
	At   time.Time `json:"at"`
	// Payload and its digest are of Modified: what is in force instead.
	Payload       Payload `json:"-"`
	PayloadDigest Digest  `json:"payload_digest,omitzero"`
}

// Proposal is what waits for an answer. It is read-only.
type Proposal struct {
	ID     ID
	Bottle string   // name, or the run's id where it has none
	Run    store.ID // the run it comes from; may be empty
	Kind   Kind
	// Payload is what exactly is proposed, and Digest names it.
	Payload Payload
	Digest  Digest
	// Why is the agent's words, and Tool how it asked. Both are untrusted: show them
	// through Detail.
	Why, Tool string
	Created   time.Time
	Expires   time.Time // by the wall clock, for people; what counts is a clock that nobody sets

	asker    ID
	deadline deadline
}

// State is where a proposal stands.
type State string

// The states.
const (
	StateWaiting  State = "waiting"
	StateAnswered State = "answered" // with any Verdict
)

// Entry is a proposal with its answer, if there is one.
type Entry struct {
	Proposal Proposal
	Answer   *Answer // nil: it waits
	// Effect is what became of an approval: empty, "done", or what failed. Untrusted.
	Effect string
}

// State says where it stands.
func (e Entry) State() State {
	if e.Answer == nil {
		return StateWaiting
	}
	return StateAnswered
}

// Recorder is the audit log.
type Recorder interface {
	Append(context.Context, ...audit.Event) (audit.Position, error)
}

// Options are a Queue's.
type Options struct {
	// Audit gets a record of each proposal and of each answer. Needed.
	Audit Recorder
	// Redactor takes known secrets out of what is written. nil: none is known.
	Redactor *secret.Redactor
}

// Query says which proposals List gives.
type Query struct {
	Bottle   string // "": of all
	Archived bool   // those that were answered too
	Limit    int    // 0: all
}

// Listing is what List found.
type Listing struct {
	// Entries are newest last while they wait, newest first when archived ones are among them.
	Entries []Entry
	// Problems are files that are no proposals, and why.
	Problems []Problem
}

// Problem is a file of the queue that was skipped.
type Problem struct {
	File string
	Err  error
}

func (p Problem) Error() string { return p.File + ": " + p.Err.Error() }
