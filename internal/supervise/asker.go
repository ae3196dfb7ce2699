package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// AskerOptions configure an [Asker].
type AskerOptions struct {
	// Bottle is the bottle's name, or its run's id: small letters, digits and dashes.
	Bottle string
	Run    store.ID
	// Who says in words who asks; see Proposal.Who. It is cut.
	Who string
	// Timeout applies to proposals that state none. 0 means DefaultTimeout.
	Timeout time.Duration
	// Policy answers the proposals that it has a rule for. It may be nil.
	Policy *Policy
	// Waiting is called when a proposal begins to wait for a person, in the goroutine that
	// proposed it. It may be nil.
	Waiting func(Proposal)
}

// Asker puts proposals in the queue and waits for their answers. A process that has a
// bottle has one Asker. Its proposals wait as long as it lives. Several goroutines may use
// it at once.
type Asker struct {
	q    *Queue
	o    AskerOptions
	id   ID
	mark *os.File // locked; closing it tells others that nobody waits
	stop context.CancelFunc
	done <-chan struct{}

	mu     sync.Mutex
	closed bool
	byID   map[ID]*pending
	byWhat map[Digest]*pending
	made   []time.Time // in the last hour
	ending sync.WaitGroup
}

// pending is a proposal that waits. All fields but claims are set before it is shared, and
// outcome and err before done is closed.
type pending struct {
	p       Proposal
	claims  int // under Asker.mu
	timer   *time.Timer
	done    chan struct{}
	outcome Outcome
	once    sync.Once
	saved   chan struct{} // closed when it is in the archive
	effect  sync.Once
	failed  error // of effect
}

// askerFile is the content of an .asker file. No program reads it; it tells a person whose
// file it is.
type askerFile struct {
	Schema  string        `json:"schema"`
	ID      ID            `json:"id"`
	Bottle  string        `json:"bottle"`
	Run     store.ID      `json:"run,omitempty"`
	Process store.Process `json:"process"`
}

// Asker returns a new Asker of the queue. The caller must close it.
func (q *Queue) Asker(o AskerOptions) (*Asker, error) {
	if !validBottle(o.Bottle) {
		return nil, fmt.Errorf("ask people: %.80q is no name of a bottle", o.Bottle)
	}
	if o.Run != "" && !validID(string(o.Run)) {
		return nil, fmt.Errorf("ask people: %.80q is no run id", o.Run)
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Timeout < 0 || o.Timeout > MaxTimeout {
		return nil, fmt.Errorf("ask people: a timeout of %s, at most %s", o.Timeout, MaxTimeout)
	}
	a := &Asker{q: q, o: o, id: newID(), byID: map[ID]*pending{}, byWhat: map[Digest]*pending{}}
	if err := a.lock(); err != nil {
		return nil, fmt.Errorf("ask people: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	a.done = follow(ctx, q.waiting.path, a.changed)
	return a, nil
}

// lock makes the .asker file that shows that this process waits. The file gets its name
// only after it is locked: nobody may see it unlocked.
func (a *Asker) lock() error {
	self, err := store.Self()
	if err != nil {
		return err
	}
	data, err := json.Marshal(askerFile{"carboy.dev/asker/v1", a.id, a.o.Bottle, a.o.Run, self})
	if err != nil {
		return err
	}
	f, tmp, err := a.q.waiting.temporary()
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err == nil {
		err = retry(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	}
	if err == nil {
		err = a.q.waiting.rename(tmp, string(a.id)+askerEnd, false)
	}
	if err != nil {
		f.Close()
		a.q.waiting.remove(tmp)
		return err
	}
	a.mark = f
	return nil
}

// Close withdraws the proposals that still wait.
func (a *Asker) Close() error {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil
	}
	a.closed = true
	var left []*pending
	for _, w := range a.byID {
		left = append(left, w)
	}
	a.mu.Unlock()
	for _, w := range left {
		a.end(w, Withdrawn, "the bottle is gone")
	}
	a.ending.Wait()
	a.stop()
	<-a.done
	err := a.q.waiting.remove(string(a.id) + askerEnd)
	return errors.Join(err, a.mark.Close())
}

// Draft holds the parts of a proposal beside its payload.
type Draft struct {
	// Why is the agent's reason, cut to MaxWhy. Tool names the tool that it asked with.
	Why, Tool string
	Timeout   time.Duration // 0: the Asker's; at most MaxTimeout
}

// Propose puts a proposal in the queue. If this Asker has a waiting proposal with the same
// digest, the ticket is for that one. Errors are ErrFull, ErrClosed, and those of a payload
// out of bounds. After an error nothing waits and nothing is allowed.
func (a *Asker) Propose(ctx context.Context, payload Payload, d Draft) (*Ticket, error) {
	p, err := a.proposal(payload, d)
	if err != nil {
		return nil, fmt.Errorf("propose %s: %w", payload.Kind(), err)
	}
	w, isNew, err := a.claim(p)
	if err != nil {
		return nil, fmt.Errorf("propose %s: %w", p.Kind, err)
	}
	t := &Ticket{a: a, w: w}
	if !isNew {
		return t, nil
	}
	if err := a.publish(ctx, w); err != nil {
		if a.settle(w, Outcome{Proposal: w.p, Answer: a.answer(w.p, Withdrawn, "it could not be put in the queue")}) {
			_ = a.q.waiting.remove(string(w.p.ID) + proposalEnd)
			close(w.saved)
			a.ending.Done()
		}
		return nil, fmt.Errorf("propose %s: %w", p.Kind, err)
	}
	if a.o.Policy != nil {
		_, ok, err := a.q.AnswerByPolicy(ctx, w.p, a.o.Policy)
		if ok {
			a.look(w)
			return t, nil
		}
		var answered *AnsweredError
		if err != nil && !errors.As(err, &answered) {
			t.Close()
			return nil, fmt.Errorf("propose %s: %w", p.Kind, err)
		}
	}
	if a.o.Waiting != nil {
		a.o.Waiting(w.p)
	}
	return t, nil
}

// proposal returns a proposal of payload, after checking its bounds.
func (a *Asker) proposal(payload Payload, d Draft) (Proposal, error) {
	if kinds[payload.Kind()].decode == nil {
		return Proposal{}, errors.New("kind is not registered")
	}
	if err := payload.Check(); err != nil {
		return Proposal{}, err
	}
	timeout := d.Timeout
	if timeout == 0 {
		timeout = a.o.Timeout
	}
	if timeout < 0 || timeout > MaxTimeout {
		return Proposal{}, fmt.Errorf("a timeout of %s, at most %s", timeout, MaxTimeout)
	}
	data, err := encode(payload)
	if err != nil {
		return Proposal{}, err
	}
	if a.q.o.Redactor.In(string(data)) {
		return Proposal{}, errors.New("the payload holds a known secret")
	}
	// Use the payload as read back: a type whose JSON does not hold all of it would have
	// another digest in the reader.
	if payload, err = decode(payload.Kind(), data); err != nil {
		return Proposal{}, err
	}
	digest, err := DigestOf(a.o.Bottle, payload)
	if err != nil {
		return Proposal{}, err
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	return Proposal{
		ID: newID(), Bottle: a.o.Bottle, Run: a.o.Run, Who: cut(a.q.o.Redactor.String(a.o.Who), maxWho), Kind: payload.Kind(), Payload: payload, Digest: digest,
		Why: cut(a.q.o.Redactor.String(cut(d.Why, 2*maxWhy)), maxWhy), Tool: safetext.String(a.q.o.Redactor.String(d.Tool), maxTool),
		Created: now, Expires: now.Add(timeout), asker: a.id, deadline: deadlineIn(timeout),
	}, nil
}

// claim joins a waiting proposal with the same digest, or registers p as a new one.
func (a *Asker) claim(p Proposal) (w *pending, isNew bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, false, errClosed
	}
	if w := a.byWhat[p.Digest]; w != nil {
		w.claims++
		return w, false, nil
	}
	if len(a.byID) >= MaxWaiting {
		return nil, false, fmt.Errorf("%w: %d wait for an answer", errFull, len(a.byID))
	}
	now := time.Now()
	for len(a.made) > 0 && now.Sub(a.made[0]) >= time.Hour {
		a.made = a.made[1:]
	}
	if len(a.made) >= maxPerHour {
		return nil, false, fmt.Errorf("%w: %d in the last hour", errFull, len(a.made))
	}
	a.made = append(a.made, now)
	w = &pending{p: p, claims: 1, done: make(chan struct{}), saved: make(chan struct{})}
	a.byID[p.ID], a.byWhat[p.Digest] = w, w
	a.ending.Add(1)
	return w, true, nil
}

func (a *Asker) publish(ctx context.Context, w *pending) error {
	f, err := w.p.file()
	if err != nil {
		return err
	}
	data, err := marshal(f)
	if err != nil {
		return err
	}
	if err := a.q.recordProposal(ctx, w.p); err != nil {
		return fmt.Errorf("record it: %w", err)
	}
	if err := a.q.waiting.write(string(w.p.ID)+proposalEnd, data, false); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byID[w.p.ID] == w { // otherwise it is answered already
		a.ending.Add(1)
		w.timer = time.AfterFunc(w.p.deadline.left(), func() {
			defer a.ending.Done()
			a.end(w, Expired, "nobody answered in time")
		})
	}
	return nil
}

// forget removes w from the waiting proposals and stops its timer.
func (a *Asker) forget(w *pending) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.byID, w.p.ID)
	if a.byWhat[w.p.Digest] == w {
		delete(a.byWhat, w.p.Digest)
	}
	if w.timer != nil && w.timer.Stop() {
		a.ending.Done()
	}
}

func (a *Asker) answer(p Proposal, v Verdict, note string) Answer {
	by := a.q.by
	by.Channel = channelQueue
	return Answer{ID: p.ID, Digest: p.Digest, Verdict: v, By: by, Note: note, At: time.Now().UTC().Truncate(time.Millisecond)}
}

// settle publishes the outcome, and stops others from joining the proposal. It reports
// whether this call was the first; only the first one counts.
func (a *Asker) settle(w *pending, o Outcome) bool {
	first := false
	w.once.Do(func() {
		a.forget(w) // before the rest: a later request for the same must not get this answer
		w.outcome = o
		close(w.done)
		first = true
	})
	return first
}

// changed handles a file that came or went; name is "" if it may be any.
func (a *Asker) changed(name string) {
	id, ok := strings.CutSuffix(name, answerEnd)
	if name != "" && !ok {
		return
	}
	a.mu.Lock()
	var look []*pending
	if w := a.byID[ID(id)]; w != nil {
		look = append(look, w)
	} else if name == "" {
		for _, w := range a.byID {
			look = append(look, w)
		}
	}
	a.mu.Unlock()
	for _, w := range look {
		a.look(w)
	}
}

// look reads the answer of a proposal, if there is one, and settles it. An answer that
// cannot be read is a refusal.
func (a *Asker) look(w *pending) {
	answer, err := a.q.answerOf(w.p)
	switch {
	case err != nil:
		refused := a.answer(w.p, Rejected, cut(err.Error(), MaxNote))
		a.finish(w, refused)
	case answer != nil && answer.By.UID != a.q.by.UID:
		// The file belongs to this user, so the answer must name this user too.
		a.finish(w, a.answer(w.p, Rejected, fmt.Sprintf("the answer says that user %d gave it", answer.By.UID)))
	case answer != nil:
		a.finish(w, *answer)
	}
}

// finish settles a proposal and removes it from the queue.
func (a *Asker) finish(w *pending, answer Answer) {
	if !a.settle(w, Outcome{w.p, answer}) {
		return
	}
	go func() {
		defer a.ending.Done()
		defer close(w.saved)
		// A proposal that cannot be archived stays in place, and is withdrawn after this
		// process ends.
		_ = a.q.archiveEntry(Entry{w.p, &answer, ""})
	}()
}

// end answers a proposal in nobody's name, unless it is answered already.
func (a *Asker) end(w *pending, v Verdict, note string) {
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	_, answer, err := a.q.decide(ctx, w.p.ID, func(p Proposal) (Answer, error) { return a.answer(w.p, v, note), nil })
	var answered *AnsweredError
	switch {
	case errors.As(err, &answered):
		// Another process answered first. Its answer is in the queue, and counts.
		if answered.Answer.Digest == w.p.Digest && answered.Answer.ID == w.p.ID {
			answer = answered.Answer
			break
		}
		fallthrough
	case err != nil:
		answer = a.answer(w.p, v, note)
	}
	a.finish(w, answer)
}

// Ticket is one caller's claim on the answer to a proposal.
type Ticket struct {
	a    *Asker
	w    *pending
	once sync.Once
}

// Proposal returns the proposal.
func (t *Ticket) Proposal() Proposal { return t.w.p }

// Done returns a channel that is closed once there is an outcome.
func (t *Ticket) Done() <-chan struct{} { return t.w.done }

// Wait blocks until there is an outcome, and returns it. When the proposal's time is up,
// the outcome is a refusal. If ctx is done first, Wait returns its error, and the ticket
// stays valid.
func (t *Ticket) Wait(ctx context.Context) (Outcome, error) {
	select {
	case <-t.w.done:
		return t.w.outcome, nil
	case <-ctx.Done():
		return Outcome{}, ctx.Err()
	}
}

// Close gives up the claim. A proposal without claims is withdrawn.
func (t *Ticket) Close() {
	t.once.Do(func() {
		t.a.mu.Lock()
		t.w.claims--
		last := t.w.claims == 0
		if last && t.a.byWhat[t.w.p.Digest] == t.w {
			delete(t.a.byWhat, t.w.p.Digest) // nobody joins what is being withdrawn
		}
		t.a.mu.Unlock()
		select {
		case <-t.w.done:
			return
		default:
		}
		if last {
			t.a.end(t.w, Withdrawn, "whoever asked wants no answer any more")
		}
	})
}

// Withdraw ends the proposal for all its callers; note says why. An earlier answer still
// counts.
func (t *Ticket) Withdraw(note string) {
	t.a.end(t.w, Withdrawn, cut(note, MaxNote))
	t.Close()
}

// record archives the result of an approval: effect is nil if it was applied. Callers of
// Propose must call it; Ask does so itself.
func (t *Ticket) record(effect error) error {
	select {
	case <-t.w.done:
	default:
		return errors.New("record effect: there is no answer yet")
	}
	<-t.w.saved
	what := "done"
	if effect != nil {
		what = cut(t.a.q.o.Redactor.String(effect.Error()), maxEffect)
	}
	data, err := Entry{t.w.p, &t.w.outcome.Answer, what}.file()
	if err != nil {
		return fmt.Errorf("record effect: %w", err)
	}
	if err := t.a.q.archive.write(string(t.w.p.ID)+archiveEnd, data, true); err != nil {
		return fmt.Errorf("record effect: %w", err)
	}
	return nil
}
