package supervise

import (
	"context"
	"errors"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/store"
)

// Queue is the directory, from the side of those who look and answer. It may be used
// by several goroutines and processes at once.
type Queue struct {
	dir string
	o   Options
}

// Open opens the queue in dir, making what is missing. A directory that is not the
// user's alone is an error, and so is one that can't be written to.
func Open(dir string, o Options) (*Queue, error) { return nil, errors.New("unwritten") }

// List gives proposals. What died meanwhile is withdrawn on the way.
func (q *Queue) List(ctx context.Context, query Query) (Listing, error) { return Listing{}, nil }

// Find gives the proposal whose id begins with prefix: one that waits before one that
// is archived. ErrNotFound, or an *AmbiguousError.
func (q *Queue) Find(ctx context.Context, prefix string) (Entry, error) { return Entry{}, nil }

// Reply is an answer that somebody gives.
type Reply struct {
	ID ID
	// Digest is that of the proposal that was shown.
	Digest  Digest
	Verdict Verdict // Approved, Modified or Rejected
	Payload Payload // of Modified, made by Editable.Edit
	Note    string
	Channel Channel
}

// Answer answers a proposal, in the name of this process's user. It returns when the
// answer is recorded and in the queue: whoever waits goes on at once. Errors:
// *AnsweredError, ErrDigest, ErrExpired, ErrGone, ErrNotFound, ErrNotModifiable; and
// what of the note or payload is out of bounds.
func (q *Queue) Answer(ctx context.Context, r Reply) (Answer, error) { return Answer{}, nil }

// Watch sends whenever something in the queue may have changed, until ctx is done;
// then it closes the channel. Several changes can be one message.
func (q *Queue) Watch(ctx context.Context) (<-chan struct{}, error) { return nil, nil }

// Prune removes archived proposals that were answered before a time, and reports how
// many.
func (q *Queue) Prune(ctx context.Context, before time.Time) (int, error) { return 0, nil }

// AskerOptions are an Asker's.
type AskerOptions struct {
	Bottle string
	Run    store.ID
	// Timeout is how long proposals wait that do not say; 0: DefaultTimeout.
	Timeout time.Duration
	// Policy answers by rule what it has a rule for; may be nil.
	Policy *Policy
	// Waiting is called when a proposal begins to wait for a person, in the goroutine
	// that proposed; may be nil.
	Waiting func(Proposal)
}

// Asker is the side of those who need answers: one per process that has a bottle. Its
// proposals wait as long as it lives.
type Asker struct{ q *Queue }

// Asker makes one. Close it.
func (q *Queue) Asker(ctx context.Context, o AskerOptions) (*Asker, error) { return nil, nil }

// Close withdraws what still waits.
func (a *Asker) Close() error { return nil }

// Draft is what stands beside a payload.
type Draft struct {
	// Why is the agent's words, cut to MaxWhy; Tool how it asked.
	Why, Tool string
	Timeout   time.Duration // 0: the Asker's
}

// Propose puts a proposal in the queue. One that says the same as another of this
// Asker that waits is that one. Errors: ErrFull, ErrClosed, and what of the payload is
// out of bounds.
func (a *Asker) Propose(ctx context.Context, p Payload, d Draft) (*Ticket, error) { return nil, nil }

// Ticket is a claim on an answer.
type Ticket struct{}

// Proposal is what waits.
func (t *Ticket) Proposal() Proposal { return Proposal{} }

// Done is closed when there is an answer.
func (t *Ticket) Done() <-chan struct{} { return nil }

// Wait returns the outcome, which is a refusal when the time is up. It ends with ctx,
// and the ticket stays good.
func (t *Ticket) Wait(ctx context.Context) (Outcome, error) { return Outcome{}, nil }

// Close gives the claim up. A proposal without any claim is withdrawn.
func (t *Ticket) Close() {}

// Record says in the archive what became of an approval that the caller carried out
// itself; nil: done.
func (t *Ticket) Record(effect error) {}

func (t *Ticket) carry(f func() error) error { return f() }

// Policy answers some proposals by rule.
type Policy struct{}

// LoadPolicy reads a policy file of the user's. It refuses one that others can write
// to, and one inside any of the directories given, which are workspaces.
func LoadPolicy(path string, workspaces ...string) (*Policy, error) { return nil, nil }

// Receipt is a proposal as a run's receipt has it.
type Receipt struct {
	ID      ID        `json:"id"`
	Kind    Kind      `json:"kind"`
	Title   string    `json:"title"` // visible
	Digest  Digest    `json:"digest"`
	Created time.Time `json:"created"`
	Verdict Verdict   `json:"verdict,omitempty"` // empty: it still waited
	By      *By       `json:"by,omitempty"`
	Note    string    `json:"note,omitempty"` // visible
	At      time.Time `json:"at,omitzero"`
	Payload Digest    `json:"payload_digest,omitzero"` // of what was approved instead
	Effect  string    `json:"effect,omitempty"`        // visible
}

// Receipt is e for a run's receipt.
func (e Entry) Receipt() Receipt { return Receipt{} }

// Title is the proposal's line in a list.
func (p Proposal) Title() Text { return Text{} }

// Detail is all that is to be shown of it. Long words from inside are cut in the
// middle, and counted, unless full.
func (p Proposal) Detail(full bool) Detail { return Detail{} }

// Short is as much of an id as people type.
func (id ID) Short() string { return string(id) }

type deadline struct {
	Boot string
	NS   int64
}

// AmbiguousError is a prefix of several ids.
type AmbiguousError struct {
	Prefix string
	IDs    []ID
}

func (e *AmbiguousError) Error() string { return "ambiguous" }

func (b By) String() string { return b.User }

var _ = audit.ByCarboy
