package supervise

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// recordProposal writes a proposal to the audit log. It need not be on disk at once:
// nothing depends on it.
func (q *Queue) recordProposal(ctx context.Context, p Proposal) error {
	actor := audit.ByBottle
	if p.Run == "" {
		actor = audit.ByUser(q.by.UID)
	}
	_, err := q.o.Audit.Append(ctx, audit.Event{
		Kind: audit.Proposal, Run: string(p.Run), Actor: actor, Decision: audit.Noted,
		Subject: q.redact(p.Title().s), Rule: q.redact(string(p.Kind)), Text: q.redact("proposal " + string(p.ID) + " of bottle " + p.Bottle),
		Digests: []audit.Digest{{Of: "proposal", Sum: p.Digest}},
	})
	return err
}

// recordAnswer writes an answer to the audit log. When it returns, the record is signed and
// on disk.
func (q *Queue) recordAnswer(ctx context.Context, p Proposal, a Answer) error {
	e := audit.Event{
		Kind: audit.Approval, Run: string(p.Run), Actor: audit.ByUser(a.By.UID), Decision: audit.Refused,
		Subject: q.redact(p.Title().s), Rule: q.redact(string(a.By.Channel)),
		Digests: []audit.Digest{{Of: "proposal", Sum: a.Digest}},
		Text:    q.redact(join("proposal", string(p.ID), string(a.Verdict), safetext.String(a.Note, audit.MaxText))),
	}
	if a.Verdict.Allows() {
		e.Decision = audit.Allowed
	}
	switch a.By.Channel {
	case channelQueue:
		e.Actor = audit.ByCarboy
	case ChannelPolicy:
		e.Actor = audit.ByCarboy
		e.Rule = q.redact(a.By.Policy.String())
		e.Digests = append(e.Digests, audit.Digest{Of: "policy", Sum: a.By.Policy.Digest})
	}
	if a.Verdict == Modified {
		e.Digests = append(e.Digests, audit.Digest{Of: "modified proposal", Sum: a.PayloadDigest})
	}
	_, err := q.o.Audit.Append(ctx, e)
	return err
}

func (q *Queue) redact(s string) audit.Text { return audit.Redact(q.o.Redactor, s) }

// String returns who answered, in one visible line.
func (b By) String() string {
	who := b.User
	if who == "" {
		who = fmt.Sprintf("user %d", b.UID)
	}
	switch b.Channel {
	case channelQueue:
		return "nobody"
	case ChannelPolicy:
		return b.Policy.String()
	}
	return safetext.String(fmt.Sprintf("%s (%s)", who, b.Channel), 300)
}

// String returns the rule in one visible line.
func (r *PolicyRef) String() string {
	if r == nil {
		return "policy"
	}
	return fmt.Sprintf("policy %s:%d (sha256 %.12s)", safetext.String(r.File, 500), r.Line, r.Digest)
}

// Record is a proposal in a run's receipt. Its texts are made visible.
type Record struct {
	ID      ID        `json:"id"`
	Kind    Kind      `json:"kind"`
	Title   string    `json:"title"`
	Digest  Digest    `json:"digest"`
	Created time.Time `json:"created"`
	Verdict Verdict   `json:"verdict,omitempty"` // empty: it still waited
	By      *By       `json:"by,omitempty"`
	Note    string    `json:"note,omitempty"`
	At      time.Time `json:"at,omitzero"`
	// Modified is the digest of the payload that was approved instead.
	Modified Digest `json:"payload_digest,omitzero"`
	Effect   string `json:"effect,omitempty"`
}

// Record returns e for a run's receipt.
func (e Entry) Record() Record {
	p := e.Proposal
	r := Record{ID: p.ID, Kind: p.Kind, Title: p.Title().s, Digest: p.Digest, Created: p.Created, Effect: safetext.String(e.Effect, maxEffect)}
	if a := e.Answer; a != nil {
		by := a.By
		r.Verdict, r.By, r.Note, r.At, r.Modified = a.Verdict, &by, safetext.String(a.Note, MaxNote), a.At, a.PayloadDigest
	}
	return r
}

// View is a proposal as JSON for programs. Why, Payload and Note are the original texts,
// not made visible.
type View struct {
	Schema  string    `json:"schema"`
	ID      ID        `json:"id"`
	State   State     `json:"state"`
	Bottle  string    `json:"bottle"`
	Run     store.ID  `json:"run,omitempty"`
	Who     string    `json:"who,omitempty"`
	Kind    Kind      `json:"kind"`
	Title   string    `json:"title"`
	Warning string    `json:"warning,omitempty"`
	Digest  Digest    `json:"digest"`
	Payload Payload   `json:"payload"`
	Why     string    `json:"why,omitempty"`
	Tool    string    `json:"tool,omitempty"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	Answer  *Answer   `json:"answer,omitempty"`
	// Approved is the payload in force after a Modified answer.
	Approved Payload `json:"approved,omitempty"`
	Effect   string  `json:"effect,omitempty"`
}

// View returns e for programs.
func (e Entry) View() View {
	p := e.Proposal
	v := View{
		Schema: proposalSchema, ID: p.ID, State: e.state(), Bottle: p.Bottle, Run: p.Run, Who: p.Who, Kind: p.Kind, Title: p.Title().s,
		Warning: safetext.String(p.Payload.Warn(), maxTitle), Digest: p.Digest, Payload: p.Payload, Why: p.Why, Tool: p.Tool,
		Created: p.Created, Expires: p.Expires, Answer: e.Answer, Effect: e.Effect,
	}
	if e.Answer != nil {
		v.Approved = e.Answer.Payload
	}
	return v
}

// From returns who asks, in words that a person knows.
func (p Proposal) From() string {
	name, who := safetext.String(p.Bottle, 64), safetext.String(p.Who, maxWho)
	switch {
	case who == "":
		return name
	case p.Bottle == strings.ToLower(string(p.Run)):
		return who
	}
	return name + ": " + who
}

// maxWho bounds Proposal.Who, in bytes.
const maxWho = 300

// Title returns the proposal's line in a list.
func (p Proposal) Title() Text {
	if p.Payload == nil {
		return Text{}
	}
	return Text{safetext.String(p.Payload.Title(), maxTitle)}
}

// Detail returns all that is shown of the proposal. It cuts the middle out of long texts
// from inside and counts the bytes left out, unless full is set.
func (p Proposal) Detail(full bool) Detail {
	d := Detail{Title: p.Title(), full: full}
	if p.Payload == nil {
		return d
	}
	if safetext.String(p.Payload.Title(), 1<<20) != p.Payload.Title() {
		d.hidden("the title")
	}
	d.Warning = Text{safetext.String(p.Payload.Warn(), 2*maxTitle)}
	p.Payload.Describe(&d)
	if p.Why != "" {
		d.section("why, in the words of whoever asks (nothing checks them)")
		d.quote(p.Why)
	}
	d.section("proposal")
	d.field("kind", string(p.Kind))
	d.field("bottle", p.Bottle)
	d.field("run", string(p.Run))
	d.field("asked by", p.Tool)
	d.field("since", p.Created.Format(time.RFC3339))
	d.field("until", p.Expires.Format(time.RFC3339))
	d.field("digest", p.Digest.String())
	d.field("id", string(p.ID))
	return d
}

// Short returns the end of an id, for people to type. The beginnings of ids made in the
// same hour are alike.
func (id ID) Short() string { return string(id[max(0, len(id)-6):]) }
