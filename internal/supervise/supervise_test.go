package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/testenv"
)

// memory is an audit log for tests.
type memory struct {
	mu     sync.Mutex
	events []audit.Event
	fail   error
}

func (m *memory) Append(_ context.Context, e ...audit.Event) (audit.Position, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return audit.Position{}, m.fail
	}
	m.events = append(m.events, e...)
	return audit.Position{}, nil
}

// approvals returns the records of approvals.
func (m *memory) approvals() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, e := range m.events {
		if e.Kind == audit.Approval && e.Decision == audit.Allowed {
			n++
		}
	}
	return n
}

type world struct {
	t   testing.TB
	dir string
	q   *Queue
	log *memory
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, dir: filepath.Join(t.TempDir(), "supervise"), log: &memory{}}
	w.q = w.open()
	return w
}

func (w *world) open() *Queue {
	w.t.Helper()
	q, err := Open(w.dir, Options{Audit: w.log})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { q.Close() })
	return q
}

func (w *world) asker(bottle string, set ...func(*AskerOptions)) *Asker {
	w.t.Helper()
	o := AskerOptions{Bottle: bottle}
	for _, f := range set {
		f(&o)
	}
	a, err := w.q.Asker(o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { a.Close() })
	return a
}

// propose adds a proposal that waits.
func (w *world) propose(a *Asker, p Payload, set ...func(*Draft)) *Ticket {
	w.t.Helper()
	d := Draft{Why: "because", Tool: "test"}
	for _, f := range set {
		f(&d)
	}
	t, err := a.Propose(context.Background(), p, d)
	if err != nil {
		w.t.Fatal(err)
	}
	return t
}

func (w *world) answer(p Proposal, v Verdict) (Answer, error) {
	return w.q.Answer(context.Background(), Reply{ID: p.ID, Digest: p.Digest, Verdict: v, Channel: ChannelCLI})
}

func (w *world) must(p Proposal, v Verdict) {
	w.t.Helper()
	if _, err := w.answer(p, v); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) list(q Query) Listing {
	w.t.Helper()
	l, err := w.q.List(context.Background(), q)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// outcome blocks until there is an outcome.
func (w *world) outcome(t *Ticket) Outcome {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience(20*time.Second))
	defer cancel()
	o, err := t.Wait(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	return o
}

func (w *world) saved(t *Ticket) Entry {
	w.t.Helper()
	<-t.w.saved
	e, err := w.q.Find(context.Background(), string(t.Proposal().ID))
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

// allowHost returns a proposal to allow one host.
func allowHost(t testing.TB, hosts ...string) EgressAllow {
	t.Helper()
	var rs []policy.Route
	for _, h := range hosts {
		r, err := policy.ParseAllow(h)
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r)
	}
	p, err := NewEgressAllow(rs, []routes.Description{{Host: "example.com"}}, []PastRequest{{"GET https://" + hosts[0] + "/", 3}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func token(action TokenAction) EgressTokenAllow {
	return EgressTokenAllow{
		Value: Fingerprint([32]byte{1}, secret.NewString("not-a-real-value")), Length: 16, Shown: "not-…", Rule: "generic-api-key",
		Host: "api.example.com", Action: action, Method: "POST", Path: "/v1/things", Place: "body",
	}
}

func push() GitleaksAllow {
	return GitleaksAllow{Repository: "infra", Refs: []string{"refs/heads/main"}, Findings: []GitFinding{{
		Commit: strings.Repeat("a", 40), File: "a.go", Line: 3, Rule: "generic-api-key", Value: strings.Repeat("b", 64),
		Code: []CodeLine{{2, "x := 1"}, {3, "\tkey := \"[masked]\" // gitleaks:allow"}, {4, "}"}},
	}}}
}

// each returns one payload of each kind.
func each(t testing.TB) map[Kind]Payload {
	return map[Kind]Payload{
		kindEgressAllow:      allowHost(t, "api.example.com", "*.example.net:8443"),
		kindEgressBlock:      EgressBlock{Routes: []routes.Description{{Host: "example.com"}}, Before: []routes.Description{{Host: "example.com"}, {Host: "example.org"}}},
		kindEgressTokenAllow: token(TokenAllow),
		kindGitleaksAllow:    push(),
		kindGateOverride:     GateOverride{Gate: "tests", Repository: "/src/app", Commit: strings.Repeat("c", 40), Verdict: strings.Repeat("d", 64), Failures: []string{"TestX failed"}},
		kindGateAttempts:     GateAttempts{Gate: "tests", Repository: "/src/app", Work: "01k", Step: strings.Repeat("d", 64), Made: 3, More: 2, Failures: []string{"TestX failed"}},
		KindTestsGone: TestsGone{Gate: "tests", Repository: "/src/app", Signal: "go-test", Verdict: strings.Repeat("d", 64), File: ".carboy/gate-baseline.json",
			To: strings.Repeat("e", 64), Signer: "me@example.org", Tests: []string{"pkg.TestOld"}},
		kindBaselineUpdate: BaselineUpdate{Gate: "trace", Repository: "/src/app", File: "baseline.yaml", Before: "a: 1\nb: 2\n", After: "a: 1\nb: 3\n"},
		kindApply: Apply{Action: "apply", Module: "web", Commit: strings.Repeat("c", 40), Files: []string{"plans/web.h1.plan.json"}, Plans: []ApplyPlan{{Digest: strings.Repeat("e", 64), Host: "h1",
			Expires: time.Unix(1, 0).UTC(), Changes: []ApplyChange{{What: "compose.service.web", Action: "update", From: "a", To: "b"}}}}},
	}
}

// Every kind is proposed, listed, shown, answered and archived, and reads back unchanged.
func TestEveryKind(t *testing.T) {
	w := newWorld(t)
	a := w.asker("dev")
	payloads := each(t)
	if len(payloads) != len(Kinds()) {
		t.Fatalf("%d kinds are tested, %v are known", len(payloads), Kinds())
	}
	for kind, p := range payloads {
		t.Run(string(kind), func(t *testing.T) {
			ticket := w.propose(a, p)
			found, err := w.q.Find(context.Background(), string(ticket.Proposal().ID))
			if err != nil {
				t.Fatal(err)
			}
			if found.state() != stateWaiting || found.Proposal.Kind != kind || found.Proposal.Digest != ticket.Proposal().Digest {
				t.Errorf("found %+v", found)
			}
			d := found.Proposal.Detail(false)
			if d.Title.String() == "" || len(d.Sections) < 3 || len(d.Notices) != 0 {
				t.Errorf("detail %+v", d)
			}
			if _, ok := p.(Signed); ok {
				if _, err := w.answer(ticket.Proposal(), Approved); !errors.Is(err, ErrSigned) {
					t.Fatalf("approved here: %v", err)
				}
				w.must(ticket.Proposal(), Rejected)
				if o := w.outcome(ticket); o.Allowed() || w.saved(ticket).Answer.Verdict != Rejected {
					t.Errorf("outcome %+v", o)
				}
				return
			}
			w.must(ticket.Proposal(), Approved)
			o := w.outcome(ticket)
			if !o.Allowed() || o.Answer.By.Channel != ChannelCLI || o.Answer.By.UID != os.Geteuid() {
				t.Errorf("outcome %+v", o)
			}
			e := w.saved(ticket)
			if e.state() != stateAnswered || e.Answer.Verdict != Approved || e.Proposal.Digest != found.Proposal.Digest {
				t.Errorf("archived %+v", e)
			}
			if r := e.Record(); r.Verdict != Approved || r.Title != d.Title.String() || r.Digest != e.Proposal.Digest {
				t.Errorf("record %+v", r)
			}
		})
	}
	if l := w.list(Query{}); len(l.Entries) != 0 || len(l.Problems) != 0 {
		t.Errorf("left: %+v", l)
	}
	if l := w.list(Query{Archived: true}); len(l.Entries) != len(payloads) || len(l.Problems) != 0 {
		t.Errorf("archive: %d entries, %v", len(l.Entries), l.Problems)
	}
}

func TestEffect(t *testing.T) {
	w := newWorld(t)
	a := w.asker("dev")
	ask := func(answer Verdict, fail error) (EgressAllow, Outcome, Entry, error) {
		var got EgressAllow
		var id ID
		started, answered := make(chan Proposal, 1), make(chan struct{})
		a.o.Waiting = func(p Proposal) { started <- p }
		go func() {
			defer close(answered)
			p := <-started
			id = p.ID
			if _, err := w.answer(p, answer); err != nil {
				t.Error(err)
			}
		}()
		o, err := Ask(context.Background(), a, allowHost(t, "a.example.com"), Draft{}, EffectFunc[EgressAllow](func(_ context.Context, x Approval[EgressAllow]) error {
			got = x.Payload()
			return fail
		}))
		a.ending.Wait()
		<-answered
		e, ferr := w.q.Find(context.Background(), string(id))
		if ferr != nil {
			t.Fatal(ferr)
		}
		return got, o, e, err
	}
	got, o, e, err := ask(Approved, nil)
	if err != nil || !o.Allowed() || len(got.Routes) != 1 || got.Routes[0].Host != "a.example.com" || e.Effect != "done" {
		t.Errorf("approved: %+v, %+v, %v, %q", got, o, err, e.Effect)
	}
	if got.Before != nil || got.Past != nil {
		t.Errorf("the effect got what was only shown: %+v", got)
	}
	if got, o, _, err := ask(Rejected, nil); err != nil || o.Allowed() || len(got.Routes) != 0 {
		t.Errorf("rejected, and carried out: %+v, %+v, %v", got, o, err)
	}
	if _, o, e, err := ask(Approved, errors.New("route is not possible")); err == nil || o.Allowed() || e.Effect != "route is not possible" {
		t.Errorf("a failed effect: %+v, %v, %q", o, err, e.Effect)
	}
}

func TestModified(t *testing.T) {
	w := newWorld(t)
	a := w.asker("dev")
	ticket := w.propose(a, allowHost(t, "*.example.com"))
	p := ticket.Proposal()
	text := p.Payload.(Editable).EditText()
	if same, err := p.Payload.(Editable).Edit("edit", []byte(text)); err != nil || same.(EgressAllow).Routes[0].Host != "*.example.com" {
		t.Errorf("what is there to edit does not read back: %v in\n%s", err, text)
	}
	other, err := p.Payload.(Editable).Edit("edit", []byte("routes: [{host: a.example.com, matches: [{methods: [GET], paths: [{type: prefix, value: /v1}]}]}]"))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if _, err := w.q.Answer(context.Background(), Reply{ID: p.ID, Digest: p.Digest, Verdict: Modified, Payload: other, Channel: ChannelTUI, Note: "narrower"}); err != nil {
		t.Fatal(err)
	}
	o := w.outcome(ticket)
	got, ok := ApprovalOf[EgressAllow](o)
	if !ok || got.Payload().Routes[0].Host != "a.example.com" || got.Payload().Routes[0].Matches[0].Methods[0] != "GET" {
		t.Errorf("got %+v, %v", got.Payload(), ok)
	}
	if o.Answer.PayloadDigest == o.Proposal.Digest || o.Answer.PayloadDigest == (Digest{}) {
		t.Error("the other payload has no digest of its own")
	}
	if e := w.saved(ticket); e.Answer.Payload == nil || e.Answer.Note != "narrower" {
		t.Errorf("archived %+v", e.Answer)
	}
	if _, ok := ApprovalOf[EgressTokenAllow](o); ok {
		t.Error("an approval of one kind is one of another")
	}

	// Some kinds cannot be modified, and none into another kind.
	ticket = w.propose(a, push())
	p = ticket.Proposal()
	for name, r := range map[string]Reply{
		"a kind that can't":  {ID: p.ID, Digest: p.Digest, Verdict: Modified, Payload: push(), Channel: ChannelCLI},
		"another kind":       {ID: p.ID, Digest: p.Digest, Verdict: Modified, Payload: allowHost(t, "a.example.com"), Channel: ChannelCLI},
		"no payload":         {ID: p.ID, Digest: p.Digest, Verdict: Modified, Channel: ChannelCLI},
		"no verdict":         {ID: p.ID, Digest: p.Digest, Channel: ChannelCLI},
		"expired by hand":    {ID: p.ID, Digest: p.Digest, Verdict: Expired, Channel: ChannelCLI},
		"the queue's name":   {ID: p.ID, Digest: p.Digest, Verdict: Approved, Channel: channelQueue},
		"a policy's name":    {ID: p.ID, Digest: p.Digest, Verdict: Approved, Channel: ChannelPolicy},
		"a note beyond all":  {ID: p.ID, Digest: p.Digest, Verdict: Approved, Channel: ChannelCLI, Note: strings.Repeat("x", MaxNote+1)},
		"a path for an id":   {ID: "../../etc/passwd", Digest: p.Digest, Verdict: Approved, Channel: ChannelCLI},
		"a digest of others": {ID: p.ID, Digest: Digest{1}, Verdict: Approved, Channel: ChannelCLI},
	} {
		if _, err := w.q.Answer(context.Background(), r); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	w.must(p, Approved)
	if n := w.log.approvals(); n != 2 {
		t.Errorf("%d approvals are recorded, want 2", n)
	}
}

func TestTimeout(t *testing.T) {
	w := newWorld(t)
	a := w.asker("dev")
	ticket := w.propose(a, allowHost(t, "a.example.com"), func(d *Draft) { d.Timeout = 20 * time.Millisecond })
	o := w.outcome(ticket)
	if o.Allowed() || o.Answer.Verdict != Expired {
		t.Errorf("outcome %+v", o.Answer)
	}
	var answered *AnsweredError
	if _, err := w.answer(ticket.Proposal(), Approved); !errors.As(err, &answered) && !errors.Is(err, ErrExpired) {
		t.Errorf("approved afterwards: %v", err)
	}
	if e := w.saved(ticket); e.Answer.Verdict != Expired {
		t.Errorf("archived as %s", e.Answer.Verdict)
	}
}

func TestWithdraw(t *testing.T) {
	w := newWorld(t)
	a := w.asker("dev")
	one := w.propose(a, allowHost(t, "a.example.com"))
	two := w.propose(a, allowHost(t, "a.example.com"))
	if one.Proposal().ID != two.Proposal().ID {
		t.Fatal("the same twice is two proposals")
	}
	one.Close()
	one.Close()
	if len(w.list(Query{}).Entries) != 1 {
		t.Fatal("withdrawn while somebody waits")
	}
	two.Close()
	if e := w.saved(two); e.Answer.Verdict != Withdrawn {
		t.Errorf("it is %s", e.Answer.Verdict)
	}
	three := w.propose(a, allowHost(t, "a.example.com"))
	if three.Proposal().ID == one.Proposal().ID {
		t.Error("a proposal came back")
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if o := w.outcome(three); o.Answer.Verdict != Withdrawn {
		t.Errorf("after the end: %s", o.Answer.Verdict)
	}
	if _, err := a.Propose(context.Background(), allowHost(t, "b.example.com"), Draft{}); !errors.Is(err, errClosed) {
		t.Errorf("after the end: %v", err)
	}
	if names, _ := os.ReadDir(w.dir + "/waiting"); len(names) != 0 {
		t.Errorf("left: %v", names)
	}
}

func TestFind(t *testing.T) {
	w := newWorld(t)
	a := w.asker("dev")
	var ids []ID
	for i := range 3 {
		ids = append(ids, w.propose(a, allowHost(t, fmt.Sprintf("h%d.example.com", i))).Proposal().ID)
	}
	find := func(s string) (Entry, error) { return w.q.Find(context.Background(), s) }
	for _, id := range ids {
		for _, s := range []string{string(id), strings.ToUpper(string(id)), string(id[len(id)-8:])} {
			if e, err := find(s); err != nil || e.Proposal.ID != id {
				t.Errorf("%s: %v, %v", s, e.Proposal.ID, err)
			}
		}
	}
	var many *ambiguousError
	if _, err := find(string(ids[0][:4])); !errors.As(err, &many) || len(many.IDs) != 3 {
		t.Errorf("a common beginning: %v", err)
	}
	for _, s := range []string{"", "zzzz", "../x", strings.Repeat("0", 27), "*"} {
		if _, err := find(s); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v", s, err)
		}
	}
	if l := w.list(Query{Bottle: "other"}); len(l.Entries) != 0 {
		t.Error("another bottle's are listed")
	}
	if l := w.list(Query{Bottle: "dev", Limit: 2}); len(l.Entries) != 2 {
		t.Errorf("%d of 2", len(l.Entries))
	}
}

func TestPrune(t *testing.T) {
	w := newWorld(t)
	a := w.asker("dev")
	ticket := w.propose(a, allowHost(t, "a.example.com"))
	w.must(ticket.Proposal(), Rejected)
	w.outcome(ticket)
	w.saved(ticket)
	stays := w.propose(a, allowHost(t, "b.example.com"))
	prune := func(before time.Time) int {
		n, err := w.q.Prune(context.Background(), before)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := prune(time.Now().Add(-time.Hour)); n != 0 {
		t.Errorf("%d went that are new", n)
	}
	if n := prune(time.Now().Add(time.Hour)); n != 1 {
		t.Errorf("%d went, want 1", n)
	}
	if l := w.list(Query{Archived: true}); len(l.Entries) != 1 || l.Entries[0].Proposal.ID != stays.Proposal().ID {
		t.Errorf("left: %+v", l)
	}
}

func TestWatch(t *testing.T) {
	w := newWorld(t)
	for name, poll := range map[string]bool{"inotify": false, "polling": true} {
		t.Run(name, func(t *testing.T) {
			if poll {
				old := watchFile
				watchFile = func(string) *os.File { return nil }
				defer func() { watchFile = old }()
			}
			ctx, cancel := context.WithCancel(context.Background())
			changes := w.q.Watch(ctx)
			<-changes
			a := w.asker("dev")
			ticket := w.propose(a, allowHost(t, "a.example.com"))
			for len(w.list(Query{}).Entries) == 0 {
				<-changes
			}
			w.must(ticket.Proposal(), Approved)
			if o := w.outcome(ticket); !o.Allowed() {
				t.Errorf("outcome %+v", o)
			}
			for len(w.list(Query{}).Entries) > 0 {
				<-changes
			}
			cancel()
			for range changes {
			}
		})
	}
}

// A record in a receipt holds the result of the approval, in visible text.
func TestRecord(t *testing.T) {
	w := newWorld(t)
	ticket := w.propose(w.asker("dev"), allowHost(t, "a.example.com"))
	w.must(ticket.Proposal(), Rejected)
	w.outcome(ticket)
	if err := ticket.record(errors.New("no\x1b[2J")); err != nil {
		t.Fatal(err)
	}
	e, err := w.q.Find(context.Background(), string(ticket.Proposal().ID))
	if err != nil {
		t.Fatal(err)
	}
	if r := e.Record(); r.ID != ticket.Proposal().ID || r.Verdict != Rejected || r.Effect != `no\x1b[2J` || r.By == nil {
		t.Errorf("%+v", r)
	}
}

// A change of routes can be proposed however many routes are in force.
func TestManyRoutes(t *testing.T) {
	var before []routes.Description
	for i := range 5000 {
		before = append(before, routes.Description{Host: fmt.Sprintf("h%d.example.com", i)})
	}
	r, err := policy.ParseAllow("a.example.com")
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewEgressAllow([]policy.Route{r}, before, make([]PastRequest, 0))
	if err != nil {
		t.Fatal(err)
	}
	if p.Earlier+len(p.Before) != len(before) {
		t.Errorf("%d and %d routes of %d", p.Earlier, len(p.Before), len(before))
	}
	s := shown(Proposal{Payload: p}.Detail(false))
	if !strings.Contains(s, fmt.Sprintf("%d routes stand before these", p.Earlier)) || !strings.Contains(s, "+  - host: a.example.com") {
		t.Errorf("shown: %.500s", s)
	}
	if _, err := encode(p); err != nil {
		t.Error(err)
	}
}

// TestOwnCredential: the question about a field with a credential of the program's own says
// that it is about the field, and not about one value.
func TestOwnCredential(t *testing.T) {
	for rule, want := range map[string][2]string{
		ownCredential:     {"send the program's own credential, beside the route's, to api.example.com", "this field, with any value, may go to this host"},
		"generic-api-key": {"send a value (generic-api-key) to api.example.com", "this value may go to this host"},
	} {
		p := token(TokenAllow)
		p.Rule = rule
		var d Detail
		p.Describe(&d)
		if text := fmt.Sprint(d); p.Title() != want[0] || !strings.Contains(text, want[1]) || strings.Contains(text, "16 bytes") == (rule == ownCredential) {
			t.Errorf("%s: %s: %s", rule, p.Title(), text)
		}
	}
}
