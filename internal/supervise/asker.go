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

	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/visible"
)

// AskerOptions are an Asker's.
type AskerOptions struct {
	// Bottle is the bottle's name, or its run's id: small letters, digits and dashes.
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
// proposals wait as long as it lives. It may be used by several goroutines at once.
type Asker struct {
	q    *Queue
	o    AskerOptions
	id   ID
	mark *os.File // under lock; closing it says that nobody waits
	stop context.CancelFunc
	done <-chan struct{}

	mu     sync.Mutex
	closed bool
	byID   map[ID]*pending
	byWhat map[Digest]*pending
	made   []time.Time // in the last hour
	ending sync.WaitGroup
}

// pending is a proposal that waits. Its fields but claims are set before it is shared;
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

// askerFile is for people who wonder.
type askerFile struct {
	Schema  string        `json:"schema"`
	ID      ID            `json:"id"`
	Bottle  string        `json:"bottle"`
	Run     store.ID      `json:"run,omitempty"`
	Process store.Process `json:"process"`
}

// Asker makes one. Close it.
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
		return nil, fmt.Errorf("ask people: a time-out of %s, at most %s", o.Timeout, MaxTimeout)
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

// lock makes the mark that says that somebody waits. It has its name only once the
// lock is held.
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

// Close withdraws what still waits.
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

// Draft is what stands beside a payload.
type Draft struct {
	// Why is the agent's words, cut to MaxWhy; Tool how it asked.
	Why, Tool string
	Timeout   time.Duration // 0: the Asker's; at most MaxTimeout
}

// Propose puts a proposal in the queue. One that says the same as another of this
// Asker that waits is that one. Errors: ErrFull, ErrClosed, and what of the payload is
// out of bounds; then nothing waits and nothing is allowed.
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

// proposal makes one of a payload, within bounds.
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
		return Proposal{}, fmt.Errorf("a time-out of %s, at most %s", timeout, MaxTimeout)
	}
	data, err := encode(payload)
	if err != nil {
		return Proposal{}, err
	}
	if a.q.o.Redactor.In(string(data)) {
		return Proposal{}, errors.New("the payload holds a known secret")
	}
	// What is read back is what counts: a type whose JSON does not hold all of it would
	// have another digest there.
	if payload, err = decode(payload.Kind(), data); err != nil {
		return Proposal{}, err
	}
	digest, err := DigestOf(a.o.Bottle, payload)
	if err != nil {
		return Proposal{}, err
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	return Proposal{
		ID: newID(), Bottle: a.o.Bottle, Run: a.o.Run, Kind: payload.Kind(), Payload: payload, Digest: digest,
		Why: cut(a.q.o.Redactor.String(cut(d.Why, 2*MaxWhy)), MaxWhy), Tool: visible.String(a.q.o.Redactor.String(d.Tool), maxTool),
		Created: now, Expires: now.Add(timeout), asker: a.id, deadline: deadlineIn(timeout),
	}, nil
}

// claim joins a proposal that says the same, or makes room for a new one.
func (a *Asker) claim(p Proposal) (w *pending, isNew bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, false, ErrClosed
	}
	if w := a.byWhat[p.Digest]; w != nil {
		w.claims++
		return w, false, nil
	}
	if len(a.byID) >= MaxWaiting {
		return nil, false, fmt.Errorf("%w: %d wait for an answer", ErrFull, len(a.byID))
	}
	now := time.Now()
	for len(a.made) > 0 && now.Sub(a.made[0]) >= time.Hour {
		a.made = a.made[1:]
	}
	if len(a.made) >= MaxPerHour {
		return nil, false, fmt.Errorf("%w: %d in the last hour", ErrFull, len(a.made))
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
	if a.byID[w.p.ID] == w { // else somebody has answered already
		a.ending.Add(1)
		w.timer = time.AfterFunc(w.p.deadline.left(), func() {
			defer a.ending.Done()
			a.end(w, Expired, "nobody answered in time")
		})
	}
	return nil
}

// forget has a proposal wait no more.
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
	by.Channel = ChannelQueue
	return Answer{ID: p.ID, Digest: p.Digest, Verdict: v, By: by, Note: note, At: time.Now().UTC().Truncate(time.Millisecond)}
}

// settle has the outcome be known, and nobody join the proposal any more. The first one
// counts.
func (a *Asker) settle(w *pending, o Outcome) bool {
	first := false
	w.once.Do(func() {
		a.forget(w) // first: who asks for the same once more must not get this answer
		w.outcome = o
		close(w.done)
		first = true
	})
	return first
}

// changed is called when files come and go.
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

// look takes the answer of a proposal, if there is one. One that can't be read is a
// refusal.
func (a *Asker) look(w *pending) {
	answer, err := a.q.answerOf(w.p)
	switch {
	case err != nil:
		refused := a.answer(w.p, Rejected, cut(err.Error(), MaxNote))
		a.finish(w, refused)
	case answer != nil && answer.By.UID != a.q.by.UID:
		// Its file is this user's, so it says so too.
		a.finish(w, a.answer(w.p, Rejected, fmt.Sprintf("the answer says that user %d gave it", answer.By.UID)))
	case answer != nil:
		a.finish(w, *answer)
	}
}

// finish settles a proposal and takes it out of the queue.
func (a *Asker) finish(w *pending, answer Answer) {
	if !a.settle(w, Outcome{w.p, answer}) {
		return
	}
	go func() {
		defer a.ending.Done()
		defer close(w.saved)
		// What can't be archived stays where it is, and is buried when we are gone.
		_ = a.q.archiveEntry(Entry{w.p, &answer, ""})
	}()
}

// end answers a proposal for nobody, unless somebody was faster.
func (a *Asker) end(w *pending, v Verdict, note string) {
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	_, answer, err := a.q.decide(ctx, w.p.ID, func(p Proposal) (Answer, error) { return a.answer(w.p, v, note), nil })
	var answered *AnsweredError
	switch {
	case errors.As(err, &answered):
		// Somebody was faster: what they said is in the queue, and counts.
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

// Ticket is a claim on an answer.
type Ticket struct {
	a    *Asker
	w    *pending
	once sync.Once
}

// Proposal is what waits.
func (t *Ticket) Proposal() Proposal { return t.w.p }

// Done is closed when there is an outcome.
func (t *Ticket) Done() <-chan struct{} { return t.w.done }

// Wait returns the outcome, which is a refusal when the time is up. When ctx is done
// first, its error is returned, and the ticket stays good.
func (t *Ticket) Wait(ctx context.Context) (Outcome, error) {
	select {
	case <-t.w.done:
		return t.w.outcome, nil
	case <-ctx.Done():
		return Outcome{}, ctx.Err()
	}
}

// Close gives the claim up. A proposal without any claim is withdrawn.
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

// Withdraw ends the waiting of all who ask for it; note says why. Whoever answered
// before was faster.
func (t *Ticket) Withdraw(note string) {
	t.a.end(t.w, Withdrawn, cut(note, MaxNote))
	t.Close()
}

// Record says in the archive what became of an approval: effect is nil when it was
// carried out. It is for callers of Propose; Ask does it.
func (t *Ticket) Record(effect error) error {
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
