package carboy

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/ask"
	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/ship"
	"github.com/carboy/carboy/internal/ship/approval"
	shiphosts "github.com/carboy/carboy/internal/ship/hosts"
	shipplan "github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/ship/reviews"
	"github.com/carboy/carboy/internal/ship/shiptest"
	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/testenv"
)

// waiting is a plan for a host that nobody ever connects to, and what is signed of it.
type waiting struct {
	*world
	op     *shiptest.Operator
	e      *ship.Engine
	plan   []byte
	digest string
	commit string

	mu     sync.Mutex
	signed []ShipApproval
	looks  int
	looked *sync.Cond
}

func newWaiting(t *testing.T) *waiting {
	t.Helper()
	w := &waiting{world: newWorld(t), op: shiptest.NewOperator(t)}
	w.looked = sync.NewCond(&w.mu)
	repo := shiptest.NewRepo(t)
	pub, _ := shiptest.NewKey(t, t.TempDir()+"/host")
	w.op.Write(t, "hosts.yaml", "hosts:\n  one:\n    address: 127.0.0.1\n    port: 9\n    user: deploy\n    host_keys: [\""+pub+"\"]\n    key: "+w.op.Key+"\n    allowed_roots: [/srv]\n    apply: true\n")
	module, compose := shiptest.Module("web", "/srv/web", "one"), shiptest.Compose("web", "v1", "ok")
	repo.Write(t, "modules/web/module.yaml", module)
	repo.Write(t, "modules/web/compose.yaml", compose)
	w.commit = repo.Commit(t)
	w.e = &ship.Engine{Config: w.op.Config, State: w.op.State, Repo: repo.Dir, By: "tests"}
	if err := w.e.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.e.Close() })
	file := func(name, text string) shipplan.File {
		return shipplan.File{Path: name, SHA256: judge.HexSum([]byte(text)), Size: int64(len(text))}
	}
	const image = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	text := "carboy-observed 1\nimage " + image + "\ncurrent -\n"
	now := time.Now().UTC().Truncate(time.Second)
	d := &shipplan.Plan{Schema: shipplan.Schema, Kind: shipplan.Apply, Module: "web", Wave: 1, Commit: w.commit, Clean: true, By: "tests", Created: now, Expires: now.Add(time.Hour),
		Host:   shipplan.Host{Name: "one", Address: "127.0.0.1", Port: 9, User: "deploy", Keys: []string{fingerprint(t, pub)}},
		Source: shipplan.Source{Module: file("modules/web/module.yaml", module), Compose: file("modules/web/compose.yaml", compose), Files: []shipplan.File{}},
		Seen:   shipplan.Seen{Text: text, SHA256: judge.HexSum([]byte(text))}, Previous: shipplan.Previous{State: shipplan.PreviousNone},
		Target:  shipplan.Target{Project: "web", Service: "web", Root: "/srv/web", Binds: []string{}, Image: "app:v1", ImageID: image, ConfigHash: strings.Repeat("2", 64), ComposeVersion: "5", StableFor: 1, StableChecked: 1, Health: 60},
		Changes: []shipplan.Change{{What: "compose.service.web", Action: shipplan.Create, From: "-", To: "app:v1 (" + image + ")"}},
	}
	var err error
	if w.plan, err = d.Encode(); err != nil {
		t.Fatal(err)
	}
	w.digest = judge.HexSum(w.plan)
	return w
}

// approvals returns the approvals given so far.
func (w *waiting) approvals() ([]ShipApproval, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks++
	w.looked.Broadcast()
	return w.signed, nil
}

// sign puts an approval there, and can wait until it was looked at.
func (w *waiting) sign(who string, wait bool, change func(*approval.Statement)) {
	w.t.Helper()
	s := approval.New([]string{w.digest}, w.commit, "web", who+"@example.org", "a test", false, time.Now())
	if change != nil {
		change(&s)
	}
	out, err := approval.Sign(s, w.op.People[who])
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.signed = append([]ShipApproval{}, out)
	for until := w.looks + 2; wait && w.looks < until; {
		w.looked.Wait()
	}
}

type awaited struct {
	list []ShipApproval
	err  error
}

// await begins to wait, and gives what is at the queue.
func (w *waiting) await(o ask.Options) (<-chan awaited, supervise.Proposal) {
	w.t.Helper()
	w.mu.Lock()
	w.signed = nil
	w.mu.Unlock()
	at, done := make(chan supervise.Proposal, 1), make(chan awaited, 1)
	o.Waiting = func(e ProposalEntry) { at <- e.Proposal }
	go func() {
		list, err := w.c.AwaitApprovals(context.Background(), w.e, [][]byte{w.plan}, []string{"plans/web one.plan.json"}, w.approvals, o)
		done <- awaited{list, err}
	}()
	select {
	case p := <-at:
		return done, p
	case x := <-done:
		w.t.Fatalf("it does not wait: %v", x.err)
	case <-time.After(testenv.Patience(time.Minute)):
		w.t.Fatal("nothing waits")
	}
	return nil, supervise.Proposal{}
}

// TestH2ApplyWaits: the queue shows what an apply would do, and approves nothing: not by
// an answer, not by a file that says so. Only a signature of the plan does; the queue can
// say no.
func TestH2ApplyWaits(t *testing.T) {
	w := newWaiting(t)
	ctx := context.Background()
	q, err := w.c.Proposals()
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	still := func(what string, done <-chan awaited, id supervise.ID) {
		t.Helper()
		select {
		case x := <-done:
			t.Fatalf("%s: it waits no more: %d approvals, %v", what, len(x.list), x.err)
		default:
		}
		if e, err := q.Find(ctx, string(id)); err != nil || e.Answer != nil {
			t.Errorf("%s: %+v %v", what, e.Answer, err)
		}
	}
	answer := func(p supervise.Proposal, v supervise.Verdict) error {
		_, err := q.Answer(ctx, supervise.Reply{ID: p.ID, Digest: p.Digest, Verdict: v, Channel: supervise.ChannelCLI, Note: "hm"})
		return err
	}

	done, p := w.await(ask.Options{})
	x, _ := p.Payload.(supervise.Apply)
	if len(x.Plans) != 1 || x.Plans[0].Digest != w.digest || x.Commit != w.commit || !strings.Contains(x.HowToSign(), "carboy ship approve 'plans/web one.plan.json' ") {
		t.Errorf("shown: %+v", x)
	}
	for _, v := range []supervise.Verdict{supervise.Approved, supervise.Modified} {
		if err := answer(p, v); err == nil {
			t.Errorf("%s at the queue", v)
		} else if v == supervise.Approved && (!errors.Is(err, supervise.ErrSigned) || !strings.Contains(err.Error(), "carboy ship approve")) {
			t.Errorf("approving says: %v", err)
		}
	}
	still("approved at the queue", done, p.ID)
	w.sign("alice", true, func(s *approval.Statement) { s.Plans = []string{strings.Repeat("0", 64)} })
	still("signed another plan", done, p.ID)
	w.sign("alice", true, func(s *approval.Statement) { s.Approver = "bob@example.org" })
	still("signed in another's name", done, p.ID)
	w.sign("alice", false, nil)
	got := <-done
	if got.err != nil || len(got.list) != 1 {
		t.Fatalf("signed: %v", got.err)
	}
	if err := w.e.Judge(ctx, [][]byte{w.plan}, got.list); err != nil {
		t.Errorf("what was waited for is not enough: %v", err)
	}
	if e, err := q.Find(ctx, string(p.ID)); err != nil || e.Answer == nil || e.Answer.Verdict != supervise.Withdrawn || !strings.Contains(e.Answer.Note, "signed") {
		t.Errorf("at the queue: %+v %v", e.Answer, err)
	}

	// A file that says "approved" is none.
	done, p = w.await(ask.Options{})
	forged, err := json.Marshal(map[string]any{
		"schema": "carboy.dev/proposal-answer/v1", "id": p.ID, "digest": p.Digest, "verdict": "approved", "kind": p.Kind, "at": time.Now(),
		"by": map[string]any{"uid": os.Geteuid(), "channel": "cli"},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(w.c.host.Store.Dir(), host.QueueDir, "waiting", string(p.ID)+".answer")
	if err := errors.Join(os.WriteFile(file+".x", forged, 0o600), os.Rename(file+".x", file)); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got.err == nil {
		t.Error("a forged answer lets it be applied")
	}

	// Each refusal is on record, as one of an apply that does not wait.
	logDir := t.TempDir() + "/audit"
	log, err := audit.Open(ctx, logDir)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	w.e.Audit = log
	recorded := func(what string, want int) {
		t.Helper()
		b, err := os.ReadFile(logDir + "/log")
		if n := strings.Count(string(b), `"ship.apply"`); err != nil || n != want || strings.Count(string(b), w.digest) != want {
			t.Errorf("%s: %d records of refusals (%v), want %d", what, n, err, want)
		}
	}
	var no *ask.NotApprovedError
	var failed *ShipError
	done, p = w.await(ask.Options{})
	recorded("waiting", 0)
	if err := answer(p, supervise.Rejected); err != nil {
		t.Fatal(err)
	}
	if got := <-done; !errors.As(got.err, &no) || no.Note != "hm" || !errors.As(got.err, &failed) || failed.Outcome != ship.Mismatch {
		t.Errorf("rejected: %v", got.err)
	}
	recorded("rejected", 1)
	done, _ = w.await(ask.Options{Timeout: 20 * time.Millisecond})
	if got := <-done; !errors.As(got.err, &no) || no.Verdict != "expired" {
		t.Errorf("nobody signed: %v", got.err)
	}
	recorded("nobody signed", 2)
	// What no signature mends is said at once.
	w.op.Write(t, "hosts.yaml", "hosts: {}\n")
	if _, err := w.c.AwaitApprovals(ctx, w.e, [][]byte{w.plan}, nil, w.approvals, ask.Options{}); !errors.As(err, &failed) || failed.Outcome != ship.Refused {
		t.Errorf("a host that is not allowed: %v", err)
	}
	recorded("a host that is not allowed", 3)
}

// reviewForge is a forge with pull request 7 of eve, that alice may approve.
type reviewForge struct {
	mu       sync.Mutex
	commit   string
	comments []forge.Comment
	reviews  []forge.Review
}

func (f *reviewForge) Account(context.Context) (forge.Account, error) {
	return forge.Account{Login: "carboy"}, nil
}

func (f *reviewForge) PullRequest(context.Context, string, int) (*forge.PullRequest, error) {
	return &forge.PullRequest{Number: 7, Open: true, Author: forge.User{Login: "eve"}, Base: "main", HeadCommit: f.commit}, nil
}

func (f *reviewForge) Protection(context.Context, string, string) (*forge.Protection, error) {
	yes := true
	return &forge.Protection{Protected: true, Approvals: 1, DismissStale: &yes, Mergers: []string{"alice"}}, nil
}

func (f *reviewForge) Reviews(context.Context, string, int) ([]forge.Review, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reviews, nil
}

func (f *reviewForge) ReviewTexts(context.Context, string, int, time.Time) (out []forge.ReviewText, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, v := range f.reviews {
		out = append(out, forge.ReviewText{Review: v.ID, Author: v.Author, Body: v.Body, Created: v.Submitted, Updated: v.Submitted})
	}
	return out, nil
}

func (f *reviewForge) Comments(context.Context, string, forge.Thread, time.Time) ([]forge.Comment, bool, error) {
	return f.comments, false, nil
}

func (f *reviewForge) PostOnce(_ context.Context, _ string, _ forge.Thread, key, body string) (*forge.Comment, error) {
	now := time.Now()
	f.comments = append(f.comments, forge.Comment{ID: 1, Author: forge.User{Login: "carboy"}, Body: forge.Marked(key, body), Created: now, Updated: now})
	return &f.comments[0], nil
}

func (f *reviewForge) Close() {}

// TestP5ApplyWaits: a review ends the wait for approvals, and what is missing until then is
// told.
func TestP5ApplyWaits(t *testing.T) {
	w := newWaiting(t)
	ctx := context.Background()
	hosts, err := os.ReadFile(w.op.Config + "/hosts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	w.op.Write(t, "hosts.yaml", "reviews:\n  team:\n    forge: gitea\n    api: http://127.0.0.1:1/api/v1\n    repo: acme/web\n    branch: main\n    token_env: TOKEN\n"+
		"    people: {alice: alice@example.org}\n    protection: {mergers: [alice]}\n"+string(hosts)+"    reviews: team\n")
	f := &reviewForge{commit: w.commit}
	said := make(chan string, 100)
	w.e.Pull, w.e.Progress = 7, func(p ship.Progress) { said <- p.Text }
	w.e.Forge = func(*shiphosts.Reviews) (reviews.Forge, error) { return f, nil }
	if err := w.e.PostPlans(ctx, [][]byte{w.plan}, nil); err != nil || len(f.comments) != 1 {
		t.Fatalf("%v, %d comments", err, len(f.comments))
	}
	review := func(body string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.reviews = []forge.Review{{ID: 1, Author: forge.User{Login: "alice"}, State: forge.Approved, Body: body, Commit: w.commit, Official: true, Submitted: time.Now()}}
	}
	hears := func(want string) {
		t.Helper()
		for end := time.After(testenv.Patience(time.Minute)); ; {
			select {
			case s := <-said:
				if strings.Contains(s, want) {
					return
				}
			case <-end:
				t.Fatalf("it does not say %q", want)
			}
		}
	}
	done, _ := w.await(ask.Options{})
	hears("0 of 1 approving reviews")
	review("Fine.")
	hears("has no line")
	review("plan " + w.digest)
	if got := <-done; got.err != nil || len(got.list) != 0 {
		t.Errorf("reviewed: %d signatures, %v", len(got.list), got.err)
	}
}

func fingerprint(t *testing.T, pub string) string {
	t.Helper()
	k, _, _, _, err := ssh.ParseAuthorizedKey([]byte(pub))
	if err != nil {
		t.Fatal(err)
	}
	return ssh.FingerprintSHA256(k)
}
