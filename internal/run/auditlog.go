package run

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/review"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
)

// maxDenials bounds the refusals that one run may put into the audit log; the
// receipt counts all of them, and the log says how many were left out.
const maxDenials = 1000

// maxLeft bounds the records of pushes that were not refused, apart from those of
// refusals: else a command could cause refusals until no push is recorded any more.
const maxLeft = 10_000

// denials is the queue between the packet path, which must not wait for a
// disk, and the audit log, in which every refusal is on disk and signed.
type denials struct {
	mu      sync.Mutex
	queue   []audit.Event
	taken   int
	left    int // pushes that were not refused
	dropped int64
	wake    chan struct{}
	done    chan struct{}
	err     error
}

func (s *Session) openLedger() {
	d := &denials{wake: make(chan struct{}, 1), done: make(chan struct{})}
	s.denials = d
	go d.write(s.c.Audit) // ends with flush
}

// denied notes a refusal, from any goroutine and without waiting.
func (s *Session) denied(kind audit.Kind, subject, rule, reason string) {
	s.note(kind, audit.Refused, subject, rule, reason)
}

func (s *Session) note(kind audit.Kind, decision audit.Decision, subject, rule, reason string) {
	ev := s.event(kind, decision)
	ev.Sync = true
	ev.Actor, ev.Subject, ev.Rule, ev.Text = audit.ByBottle, s.text(subject), s.text(rule), s.text(reason)
	d := s.denials
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.room(&ev) {
		d.dropped++
		return
	}
	d.queue = append(d.queue, ev)
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// room takes a place for a record, if there is one. d.mu is held.
func (d *denials) room(ev *audit.Event) bool {
	used, most := &d.taken, maxDenials
	if ev.Kind == audit.GitPush && ev.Decision != audit.Refused {
		used, most = &d.left, maxLeft
	}
	if *used >= most {
		return false
	}
	*used++
	return true
}

// missed counts refusals that were not recorded.
func (d *denials) missed(n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropped += n
}

func (d *denials) write(log *audit.Log) {
	defer close(d.done)
	for range d.wake {
		d.mu.Lock()
		batch := d.queue
		d.queue = nil
		d.mu.Unlock()
		if len(batch) == 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), host.AppendIn)
		_, err := log.Append(ctx, batch...)
		cancel()
		if err != nil {
			d.mu.Lock()
			d.err = errors.Join(d.err, err)
			d.mu.Unlock()
		}
	}
}

// flush writes what is queued and ends the writer. No refusal may come after.
func (d *denials) flush() (dropped int64, err error) {
	d.mu.Lock()
	d.taken, d.left = maxDenials, maxLeft
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
	close(d.wake)
	<-d.done
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.dropped, d.err
}

func (s *Session) event(kind audit.Kind, decision audit.Decision) audit.Event {
	return audit.Event{Kind: kind, Run: string(s.run.ID()), Actor: audit.ByUser(os.Getuid()), Decision: decision}
}

func (s *Session) text(t string) audit.Text { return audit.Redact(s.Redactor, t) }

// RedactorFor returns a redactor of the credentials and of the values that the user put
// into the bottle under names that say "secret", so that no record repeats them.
func (c *Runner) RedactorFor(p *plan.Plan, o *plan.Options) (*secret.Redactor, error) {
	known := marks(p.Credentials)
	for name, v := range p.Secrets.Values {
		name = plan.RedactionName(name)
		for known[name].Len() > 0 {
			name += "-"
		}
		known[name] = v
		// Host names lose their case on the way through a resolver.
		v.UnsafeReveal(func(b []byte) {
			if low := bytes.ToLower(b); !bytes.Equal(low, b) {
				known[name+".lower"] = secret.New(low)
			}
		})
	}
	for _, e := range o.Env {
		name, val, given := strings.Cut(e, "=")
		if !given {
			val = c.Env(name)
		}
		if plan.SecretName(name) && len(val) >= secret.MinRedacted {
			known[strings.ToLower(name)] = secret.NewString(val)
			// Host names lose their case on the way through a resolver.
			if low := strings.ToLower(val); low != val {
				known[strings.ToLower(name)+".lower"] = secret.NewString(low)
			}
		}
	}
	return secret.NewRedactor(known)
}

// marks returns the credentials by the names that replace them.
func marks(c *plan.Credentials) map[string]secret.Value {
	out := map[string]secret.Value{}
	for name, v := range c.Values {
		if v.Len() >= secret.MinRedacted {
			out[name] = v
		}
	}
	return out
}

// noteStart records, before the command's first instruction, that it may run
// and in which sandbox. If the log can't be written, the command does not run.
func (s *Session) noteStart(ctx context.Context) error {
	run := s.event(audit.RunStarted, audit.Allowed)
	run.Subject = s.text(strings.Join(s.o.Command, " "))
	run.Text = s.text(fmt.Sprintf("workspace %s (%s)", s.Workspace.Path, s.o.Mode))
	if s.RouteFile != nil {
		run.Digests = append(run.Digests, audit.Digest{Of: "routes", Sum: s.RouteFile.Sum})
	}
	if g := s.o.Grant; g != nil {
		run.Rule = s.text("bottle " + g.Slug + ", agent " + g.Agent)
		run.Digests = append(run.Digests, audit.Digest{Of: "manifests", Sum: g.Sum})
	}
	if len(s.services) > 0 {
		h := sha256.New()
		for _, x := range s.services {
			fmt.Fprintf(h, "%s %s\n", x.Name, x.rec.Digest)
		}
		run.Digests = append(run.Digests, audit.Digest{Of: "images of services", Sum: [sha256.Size]byte(h.Sum(nil))})
	}
	pos := s.event(audit.Posture, audit.Allowed)
	pos.Actor = audit.ByCarboy
	pos.Subject = s.text(string(s.Rec.Isolation.Class))
	pos.Rule = s.text(s.Rec.Isolation.Backend + " " + s.Rec.Isolation.Build)
	pos.Sync = true
	_, err := s.c.Audit.Append(ctx, run, pos)
	return err
}

// noteEnd records how the run ended and what its receipt says. It keeps the signed
// checkpoint with the run, which shows later whether the log was replaced by an older
// or another one.
func (s *Session) noteEnd(ctx context.Context) (*receipt.Audit, error) {
	dropped, err := s.denials.flush()
	var events []audit.Event
	if dropped > 0 {
		ev := s.event(audit.Dropped, audit.Noted)
		ev.Actor, ev.Text = audit.ByCarboy, s.text(fmt.Sprintf("%d refusals, or pushes, are only counted in the receipt", dropped))
		events = append(events, ev)
	}
	for _, h := range s.Rec.Limits.Hit {
		ev := s.event(audit.LimitHit, audit.Noted)
		ev.Actor, ev.Subject = audit.ByCarboy, s.text(h.Limit)
		events = append(events, ev)
	}
	events = append(events, s.served()...)
	events = append(events, s.fetched()...)
	kind := audit.RunFinished
	if s.Rec.Exit.Reason == receipt.Failed {
		kind = audit.RunFailed
	}
	end := s.event(kind, audit.Noted)
	end.Actor = audit.ByCarboy
	end.Subject, end.Text = s.text(string(s.Rec.Exit.Reason)), s.text(fmt.Sprintf("code %d %s", s.Rec.Exit.Code, s.Rec.Exit.Error))
	if doc, derr := s.Rec.Encode(); derr == nil {
		end.Digests = append(end.Digests, audit.Digest{Of: "receipt before this record", Sum: sha256.Sum256(doc)})
	}
	if s.traceSum != nil {
		end.Digests = append(end.Digests, audit.Digest{Of: "trace", Sum: *s.traceSum})
	}
	pos, aerr := s.c.Audit.Append(ctx, append(events, end)...)
	if aerr != nil {
		return nil, errors.Join(err, aerr)
	}
	cp, perr := audit.ParseCheckpoint(pos.Checkpoint, s.c.Audit.PublicKey())
	if perr != nil {
		return nil, errors.Join(err, perr)
	}
	// Whole or not at all: half a checkpoint looks like a forged one.
	werr := store.WriteFile(s.run.Path(store.EvidenceDir, review.CheckpointFile), pos.Checkpoint, 0o600)
	return &receipt.Audit{Seq: pos.Seq, Root: hex.EncodeToString(cp.Root[:])}, errors.Join(err, werr)
}

// maxServed bounds the records of what was allowed; a run has one for each route,
// host and credential.
const maxServed = 200

// served records the allowed requests as sums: one record each would hide the refusals.
func (s *Session) served() []audit.Event {
	var out []audit.Event
	left := int64(0)
	for _, r := range s.Rec.Network.Requests {
		if r.Verdict != receipt.Allowed {
			continue
		}
		if len(out) >= maxServed {
			left++
			continue
		}
		ev := s.event(audit.Request, audit.Allowed)
		ev.Actor = audit.ByBottle
		ev.Subject, ev.Rule = s.text(fmt.Sprintf("%s:%d", r.Name, r.Port)), s.text(r.Rule)
		text := fmt.Sprintf("%d requests, %d failed, %d bytes up, %d down", r.Count, r.Failed, r.BytesUp, r.BytesDown)
		if r.Credential != "" {
			text += ", with " + r.Credential
		}
		ev.Text = s.text(text)
		out = append(out, ev)
	}
	if left > 0 {
		ev := s.event(audit.Dropped, audit.Noted)
		ev.Actor, ev.Text = audit.ByCarboy, s.text(fmt.Sprintf("%d groups of allowed requests are only counted in the receipt", left))
		out = append(out, ev)
	}
	return out
}
