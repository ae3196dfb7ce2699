// Package supervise keeps the queue in which people approve or reject what no rule decides:
// a route, a value that a detector held back, a finding in a commit.
//
// A process that needs an answer, such as one that has a bottle, puts a [Proposal] in the
// queue and waits. A person answers it from another process: in a terminal, on a web page
// or on the command line. The processes share only the files of one directory of the user.
//
// The package guarantees:
//
//   - An answer counts only for what the person saw. It names the digest of the
//     payload, and is void for another digest, proposal or bottle. Only an approving
//     answer makes an [Approval], and effects take nothing else.
//   - One answer counts. Of several concurrent ones one succeeds, and the others get an
//     [AnsweredError].
//   - No answer is a refusal: after the proposal's time, after the asker has ended or was
//     killed, if the queue cannot be written, or if the answer cannot be read.
//   - An approval is in the audit log before it takes effect.
//   - Text from inside a bottle passes through package safetext, and a notice points out
//     its invisible characters. Only [Text] reaches a user interface.
//   - The proposals of one bottle are bounded in number, size and rate.
//
// It does not protect from other processes of the same user, who owns these files, nor from
// a person who approves without reading.
//
// Each kind of proposal is one file, kind_*.go. Start reading at [Queue], then [Asker].
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

// Bounds of the queue. Sizes are in bytes.
const (
	// MaxPayload bounds a payload as JSON.
	MaxPayload = 128 << 10
	// maxWhy bounds an agent's reason, and MaxNote a person's note.
	maxWhy  = 4 << 10
	MaxNote = 2 << 10
	// MaxWaiting bounds the proposals of one Asker that wait at a time, and MaxPerHour
	// those that it makes in an hour. A bottle has one Asker.
	MaxWaiting = 32
	maxPerHour = 240
	// DefaultTimeout and MaxTimeout are the default and the maximal time that a proposal
	// waits.
	DefaultTimeout = 5 * time.Minute
	MaxTimeout     = 24 * time.Hour
)

var (
	// ErrNotFound means that there is no such proposal, or no longer.
	ErrNotFound = errors.New("no such proposal")
	// ErrDigest means that an answer names another digest than that of the waiting
	// proposal.
	ErrDigest = errors.New("the waiting proposal is not the one that was shown")
	// ErrExpired and ErrGone mean that nobody waits for the answer: the time is up, or the
	// asking process is gone.
	ErrExpired = errors.New("the proposal's time is up")
	ErrGone    = errors.New("nobody waits for the answer any more")
	// errFull means that a bottle has too many proposals.
	errFull = errors.New("too many proposals")
	// ErrNotModifiable means that proposals of this kind are approved or rejected as they
	// are.
	ErrNotModifiable = errors.New("can only be approved or rejected as it is")
	// ErrSigned means that only a signature approves this kind; see [Signed].
	ErrSigned = errors.New("only a signature approves this")
	// errClosed is returned by a closed Asker.
	errClosed = errors.New("the asker is closed")
)

// AnsweredError means that a proposal already has an answer.
type AnsweredError struct {
	ID     ID
	Answer Answer
}

func (e *AnsweredError) Error() string {
	return fmt.Sprintf("proposal %s: already %s by %s", e.ID, e.Answer.Verdict, e.Answer.By)
}

// ID names a proposal: a ULID of 26 characters in lower case.
type ID string

// Digest identifies the exact content of a proposal. It is the SHA-256 over the bottle, the
// kind and the payload, without the fields that are only shown.
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

// Verdict is the end of a proposal. The zero Verdict refuses.
type Verdict string

// The verdicts.
const (
	Approved  Verdict = "approved"
	Modified  Verdict = "modified" // approved, with another payload than the proposal's
	Rejected  Verdict = "rejected"
	Expired   Verdict = "expired"   // nobody answered in time
	Withdrawn Verdict = "withdrawn" // the asker wants no answer any more, or is gone
)

// Allows reports whether the verdict approves, with the proposed payload or a modified one.
func (v Verdict) Allows() bool { return v == Approved || v == Modified }

// Channel names the way by which an answer came.
type Channel string

// The channels.
const (
	ChannelTUI    Channel = "tui"
	ChannelWeb    Channel = "web"
	ChannelCLI    Channel = "cli"
	ChannelPolicy Channel = "policy" // a rule of the user, without a person
	channelQueue  Channel = "queue"  // nobody: the time was up, or the asker gone
)

// By says who answered.
type By struct {
	UID     int        `json:"uid"`
	User    string     `json:"user,omitempty"` // the name of UID, or empty
	Channel Channel    `json:"channel"`
	Policy  *PolicyRef `json:"policy,omitempty"` // for ChannelPolicy
}

// PolicyRef names the rule that answered.
type PolicyRef struct {
	File   string `json:"file"`
	Digest Digest `json:"digest"` // SHA-256 of the file
	Rule   int    `json:"rule"`   // counted from 1
	Line   int    `json:"line"`
}

// Answer is the decision about a proposal.
type Answer struct {
	ID      ID      `json:"id"`
	Digest  Digest  `json:"digest"` // of the proposal that the person saw
	Verdict Verdict `json:"verdict"`
	By      By      `json:"by"`
	// Note is a person's text for the agent and the record. At most MaxNote.
	Note string    `json:"note,omitempty"`
	At   time.Time `json:"at"`
	// Payload and its digest are set for Modified: the payload in force.
	Payload       Payload `json:"-"`
	PayloadDigest Digest  `json:"payload_digest,omitzero"`
}

// Proposal is a request that waits for an answer. It must not be changed.
type Proposal struct {
	ID     ID
	Bottle string   // name, or the run's id where it has none
	Run    store.ID // the run it comes from; may be empty
	// Who says in words who asks, such as "claude in ~/site, branch main". May be empty.
	Who  string
	Kind Kind
	// Payload is the exact content, and Digest identifies it.
	Payload Payload
	Digest  Digest
	// Why is the agent's reason, and Tool the tool that it asked with. Both are untrusted:
	// show them through Detail.
	Why, Tool string
	Created   time.Time
	Expires   time.Time // on the wall clock, for people; deadline decides

	asker    ID
	deadline deadline
}

// State is the state of a proposal.
type State string

// The states.
const (
	stateWaiting  State = "waiting"
	stateAnswered State = "answered" // with any Verdict
)

// Entry is a proposal and its answer, if there is one.
type Entry struct {
	Proposal Proposal
	Answer   *Answer // nil: it waits
	// Effect is the result of an approval: empty, "done", or an error. Untrusted.
	Effect string
}

// state returns the state of the proposal.
func (e Entry) state() State {
	if e.Answer == nil {
		return stateWaiting
	}
	return stateAnswered
}

// Recorder is the audit log.
type Recorder interface {
	Append(context.Context, ...audit.Event) (audit.Position, error)
}

// Options configure a [Queue].
type Options struct {
	// Audit gets a record of each proposal and of each answer. Required.
	Audit Recorder
	// Redactor removes known secrets from all that is written. nil means that none is
	// known.
	Redactor *secret.Redactor
}

// Query selects the proposals that List returns.
type Query struct {
	Bottle   string // "" means all
	Archived bool   // includes the answered ones
	Limit    int    // 0 means all
}

// Listing is the result of List.
type Listing struct {
	// Entries are oldest first if all of them wait, and newest first if the archive is
	// included.
	Entries []Entry
	// Problems lists the files that are no proposals, and why.
	Problems []Problem
}

// Problem is a skipped file of the queue.
type Problem struct {
	File string
	Err  error
}

func (p Problem) Error() string { return p.File + ": " + p.Err.Error() }
