package ship

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/hosts"
	"github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/ship/reviews"
	"github.com/carboy/carboy/internal/ship/shiptest"
)

// fakeForge is a forge with pull request 7, that eve opened.
type fakeForge struct {
	mu       sync.Mutex
	commit   string
	reviews  []forge.Review
	comments []forge.Comment
	open     bool // into an unprotected branch
	fails    error
	asked    int            // how often its reviews were asked for
	during   map[int]func() // what happens just before they are asked for the nth time
}

const reviewKey = "reviews:\n  team:\n    forge: gitea\n    api: http://127.0.0.1:1/api/v1\n    repo: acme/web\n    branch: main\n    token_env: TOKEN\n" +
	"    people: {alice: alice@example.org, bob: bob@example.org}\n    protection: {mergers: [alice]}\n"

// reviewed makes reviews at a fake forge count for the world's hosts.
func (w *world) reviewed() *fakeForge {
	w.t.Helper()
	f := &fakeForge{commit: w.repo.Git(w.t, "rev-parse", "HEAD")}
	text := readFile(w.t, w.op.Config+"/hosts.yaml")
	w.op.Write(w.t, "hosts.yaml", reviewKey+strings.ReplaceAll(text, "apply: true", "apply: true\n    reviews: team"))
	w.e.Pull = 7
	w.e.Forge = func(r *hosts.Reviews) (reviews.Forge, error) {
		if r.Name != "team" || r.Repo != "acme/web" {
			return nil, fmt.Errorf("another forge: %+v", r)
		}
		return f, nil
	}
	return f
}

// post posts plans.
func (w *world) post(all ...Made) {
	w.t.Helper()
	for _, m := range all {
		if err := w.e.PostPlans(w.ctx(), [][]byte{m.Bytes}, nil); err != nil {
			w.t.Fatal(err)
		}
	}
}

// approves adds an approving review of plans.
func (f *fakeForge) approves(who string, all ...Made) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	for _, m := range all {
		b.WriteString(reviews.Line(wanted(m)) + "\n")
	}
	f.reviews = append(f.reviews, forge.Review{ID: int64(len(f.reviews)) + 1, Author: forge.User{Login: who}, State: forge.Approved, Body: b.String(), Commit: f.commit, Official: true, Submitted: time.Now()})
}

func (f *fakeForge) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeForge) Account(context.Context) (forge.Account, error) {
	return forge.Account{Login: "carboy"}, nil
}

func (f *fakeForge) PullRequest(_ context.Context, repo string, n int) (*forge.PullRequest, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if repo != "acme/web" || n != 7 {
		return nil, fmt.Errorf("no pull request #%d of %s", n, repo)
	}
	return &forge.PullRequest{Number: 7, Open: true, Author: forge.User{Login: "eve"}, Base: "main", HeadCommit: f.commit}, f.fails
}

func (f *fakeForge) Protection(context.Context, string, string) (*forge.Protection, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	yes := true
	return &forge.Protection{Protected: !f.open, Approvals: 1, DismissStale: &yes, Mergers: []string{"alice"}}, nil
}

func (f *fakeForge) Reviews(context.Context, string, int) ([]forge.Review, error) {
	f.mu.Lock()
	f.asked++
	do := f.during[f.asked]
	f.mu.Unlock()
	if do != nil {
		do()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]forge.Review(nil), f.reviews...), nil
}

func (f *fakeForge) ReviewTexts(context.Context, string, int, time.Time) (out []forge.ReviewText, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, v := range f.reviews {
		out = append(out, forge.ReviewText{Review: v.ID, Author: v.Author, Body: v.Body, Created: v.Submitted, Updated: v.Submitted})
	}
	return out, nil
}

func (f *fakeForge) Comments(context.Context, string, forge.Thread, time.Time) ([]forge.Comment, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]forge.Comment(nil), f.comments...), false, nil
}

func (f *fakeForge) PostOnce(_ context.Context, _ string, _ forge.Thread, key, body string) (*forge.Comment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	text := forge.Marked(key, body)
	for i, m := range f.comments {
		if m.Body == text {
			return &f.comments[i], nil
		}
	}
	now := time.Now()
	f.comments = append(f.comments, forge.Comment{ID: int64(len(f.comments)) + 1, Author: forge.User{Login: "carboy"}, Body: text, Created: now, Updated: now})
	return &f.comments[len(f.comments)-1], nil
}

func (f *fakeForge) Close() {}

// TestP5Apply: reviews approve only where the operator says so twice, in hosts.yaml and in
// the command, together with signatures for as many people as the host requires.
func TestP5Apply(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	f := p.reviewed()
	m := p.draw(nil)
	one := [][]byte{m.Bytes}
	p.refused("not posted", Mismatch, one)
	p.post(m)
	p.refused("no review", Mismatch, one)
	f.approves("alice", m)
	p.reaches("a review", m)

	p.e.Pull = 0
	f.asked = 0
	p.refused("not asked for", Mismatch, one)
	p.e.Pull = 7
	with := readFile(t, p.op.Config+"/hosts.yaml")
	p.op.Write(t, "hosts.yaml", strings.Replace(with, "    reviews: team\n", "", 1))
	p.refused("a host without reviews", Mismatch, one)
	p.op.Write(t, "hosts.yaml", with)
	p.reaches("a signature", m, p.approve("carol", false, m))
	if f.asked != 0 {
		t.Errorf("the forge was asked %d times where nothing of it counts", f.asked)
	}
	p.e.Pull = 8
	p.refused("another pull request", Mismatch, one)
	p.e.Pull = 7
	p.refused("another plan", Mismatch, [][]byte{p.draw(func(d *plan.Plan) { d.By = "somebody else" }).Bytes})
	for name, change := range map[string]func(on bool){
		"a forge that fails": func(on bool) { f.fails = map[bool]error{true: errors.New("500")}[on] },
		"no protection":      func(on bool) { f.open = on },
		"a dismissed review": func(on bool) { f.reviews[0].Dismissed = on },
	} {
		f.set(func() { change(true) })
		p.refused(name, Mismatch, one)
		f.set(func() { change(false) })
	}
	before := p.e.Forge
	p.e.Forge = func(*hosts.Reviews) (reviews.Forge, error) { return nil, errors.New("no token") }
	p.refused("no token", Mismatch, one)
	p.e.Forge = before
	p.reaches("a review beside signatures that do not count", m, approval.Signed{Statement: []byte("{}")}, p.approve("bob", false, p.draw(func(d *plan.Plan) { d.By = "x" })))

	p.op.Write(t, "hosts.yaml", strings.Replace(with, "apply: true", "apply: true\n    approvals: 2", 1))
	p.refused("one review of two approvals", Mismatch, one)
	p.refused("a review and a signature of one person", Mismatch, one, p.approve("alice", false, m))
	p.reaches("a review and another's signature", m, p.approve("bob", false, m))
	f.approves("alice", m)
	p.refused("two reviews of one person", Mismatch, one)
	f.approves("bob", m)
	p.reaches("two reviews", m)
	signers := readFile(t, p.op.Config+"/allowed_signers")
	p.op.Write(t, "allowed_signers", "nonsense")
	p.refused("two reviews, and it is not known who may sign", Mismatch, one, p.approve("carol", false, m))
	os.Remove(p.op.Config + "/allowed_signers")
	p.reaches("two reviews, where nobody may sign", m)
	p.op.Write(t, "allowed_signers", signers)
}

// TestP5Destructive: reviews alone never approve what destroys.
func TestP5Destructive(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	p.repo.Write(t, "modules/web/module.yaml", shiptest.Module("web", "/srv/web", "one")+"    destructive: [create]\n")
	p.repo.Commit(t)
	f := p.reviewed()
	m := p.draw(nil)
	one := [][]byte{m.Bytes}
	p.post(m)
	f.approves("alice", m)
	f.approves("bob", m)
	for _, n := range []string{"1", "2"} {
		text := readFile(t, p.op.Config+"/hosts.yaml")
		p.op.Write(t, "hosts.yaml", strings.Replace(text, "apply: true", "apply: true\n    approvals: "+n, 1))
		p.refused("two reviews of "+n, Mismatch, one)
		p.refused("and a signature without the word, of "+n, Destructive, one, p.approve("carol", false, m))
		p.reaches("and a signature with the word, of "+n, m, p.approve("carol", true, m))
		p.op.Write(t, "hosts.yaml", text)
	}
	if !strings.Contains(f.comments[0].Body, "destructive") {
		t.Errorf("posted without the word: %s", f.comments[0].Body)
	}
}

// TestP5AskedAgain: the forge is asked again right before the first change. What approves no
// longer is refused, and the host changes nothing.
func TestP5AskedAgain(t *testing.T) {
	t.Parallel()
	w := newLair(t, "")
	mark := w.host.Dir + "/ran"
	w.host.Program(t, "sh", "echo >>"+mark+"\necho '@step watch'; echo '@result applied healthy'")
	dir := w.audited()
	f := w.reviewed()
	text := readFile(t, w.op.Config+"/hosts.yaml")
	p := &paper{world: w}
	for name, x := range map[string]struct {
		change func()
		want   Outcome
	}{
		"nothing":                             {func() {}, Applied},
		"a dismissal":                         {func() { f.set(func() { f.reviews[0].Dismissed = true }) }, Mismatch},
		"a push":                              {func() { f.set(func() { f.commit = strings.Repeat("0", 40) }) }, Mismatch},
		"an edit of the comment":              {func() { f.set(func() { f.comments[0].Updated = time.Now().Add(time.Hour) }) }, Mismatch},
		"a weaker protection":                 {func() { f.set(func() { f.open = true }) }, Mismatch},
		"a forge that fails":                  {func() { f.set(func() { f.fails = errors.New("500") }) }, Mismatch},
		"of hosts.yaml, fewer people":         {func() { w.op.Write(t, "hosts.yaml", strings.Replace(text, "alice: alice@", "carol: carol@", 1)) }, Mismatch},
		"of hosts.yaml, a host not to change": {func() { w.op.Write(t, "hosts.yaml", strings.Replace(text, "apply: true", "apply: false", 1)) }, Refused},
	} {
		m := p.draw(func(d *plan.Plan) { d.By = name })
		commit := f.commit
		f.set(func() { f.reviews, f.comments = nil, nil })
		w.post(m)
		f.approves("alice", m)
		during := 2
		if strings.HasPrefix(name, "of hosts.yaml") {
			during = 1 // it is read before the forge is asked
		}
		f.set(func() { f.asked, f.during = 0, map[int]func(){during: x.change} })
		o, err := w.apply(m)
		_, ran := os.Stat(mark)
		if o != x.want || (ran == nil) != (x.want == Applied) || f.asked < 2 && x.want != Refused {
			t.Errorf("%s between: %s %v, asked %d times, ran: %v", name, o, err, f.asked, ran == nil)
		}
		if _, err := w.e.readRecord("one", "web", m.Digest); (err == nil) != (x.want == Applied) {
			t.Errorf("%s: a record: %v", name, err)
		}
		os.Remove(mark)
		f.set(func() { f.commit, f.open, f.fails, f.during = commit, false, nil, nil })
		w.op.Write(t, "hosts.yaml", text)
	}

	// Another review than before is asked for again, though it might do.
	m := p.draw(func(d *plan.Plan) { d.By = "two reviewers" })
	f.set(func() { f.reviews, f.comments = nil, nil })
	w.post(m)
	f.approves("alice", m)
	f.set(func() {
		f.asked, f.during = 0, map[int]func(){2: func() { f.set(func() { f.reviews = nil }); f.approves("bob", m) }}
	})
	if o, err := w.apply(m); o != Mismatch || !strings.Contains(err.Error(), "other reviews") {
		t.Errorf("another review: %s %v", o, err)
	}
	if o, err := w.apply(m); o != Applied {
		t.Errorf("once more: %s %v", o, err)
	}
	r, err := w.e.readRecord("one", "web", m.Digest)
	if err != nil || len(r.Reviews) != 1 || r.Reviews[0].Approver != "bob@example.org" || len(r.Approvals) != 0 {
		t.Errorf("%+v %v", r, err)
	}
	if x := w.e.entry("one", r); len(x.Approvals) != 1 || x.Approvals[0].Verified || !strings.Contains(x.Approvals[0].Review, "review 1 of pull request #7 of acme/web") {
		t.Errorf("%+v", x)
	}
	log := readFile(t, dir+"/log")
	for _, s := range []string{"bob@example.org by review", "no key signed it", "bob@example.org (by review)"} {
		if !strings.Contains(log, s) {
			t.Errorf("the audit log does not say %q", s)
		}
	}
}

// TestP5Post: a plan is posted once, for people who must approve it, without where its host
// is. It is not posted where no review could approve it.
func TestP5Post(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	f := p.reviewed()
	m := p.draw(nil)
	p.post(m, m)
	if len(f.comments) != 1 || !strings.Contains(f.comments[0].Body, m.Digest) || strings.Contains(f.comments[0].Body, "127.0.0.1") || strings.Contains(f.comments[0].Body, "deploy") {
		t.Fatalf("%+v", f.comments)
	}
	post := func(m Made, a ...approval.Signed) Outcome {
		return outcomeOf(nil, p.e.PostPlans(p.ctx(), [][]byte{m.Bytes}, a))
	}
	other := p.draw(func(d *plan.Plan) { d.By = "somebody else" })
	if got := post(other, p.approve("alice", false, other)); got != "" || len(f.comments) != 1 {
		t.Errorf("posted what is signed: %s, %d", got, len(f.comments))
	}
	if got := post(p.draw(func(d *plan.Plan) { d.Target.Root = "/srv/other" })); got != "" || len(f.comments) != 1 {
		t.Errorf("posted what can't be applied: %s, %d", got, len(f.comments))
	}
	f.open = true
	if got := post(other); got != Mismatch || len(f.comments) != 1 {
		t.Errorf("posted at an unprotected branch: %s, %d", got, len(f.comments))
	}
	text := readFile(t, p.op.Config+"/hosts.yaml")
	p.op.Write(t, "hosts.yaml", p.entry)
	if got := post(other); got != Mismatch {
		t.Errorf("posted for a host without reviews: %s", got)
	}
	p.op.Write(t, "hosts.yaml", text)
	many := p.draw(nil)
	for i := range maxPosted + 5 {
		many.Changes = append(many.Changes, plan.Change{What: "file.x", Action: plan.Update, From: "token=hunter2", To: fmt.Sprint(i), Why: "line\nbreak", Destructive: true})
	}
	if s := posted(many.Plan); strings.Contains(s, "hunter2") || !strings.Contains(s, "and 6 changes more") || strings.Count(s, "\n") != maxPosted+4 {
		t.Errorf("%s", s)
	}
	for name, e := range map[string]Engine{"no such pull request": {Pull: -1}, "no forge": {Pull: 1}} {
		e.Config, e.State, e.Repo = p.op.Config, p.op.State, p.repo.Dir
		if err := e.Open(); err == nil {
			e.Close()
			t.Errorf("%s: opened", name)
		}
	}
}

// TestReviewsOnHost: a host gets what the forge told, and a record that is lost here is made
// again with it, never as verified.
func TestReviewsOnHost(t *testing.T) {
	t.Parallel()
	p := newPaper(t)
	m := p.draw(nil)
	given := reviews.Approval{Approver: "alice@example.org", Login: "alice", Repo: "acme/web", Pull: 7, Review: 3, Commit: m.Commit, Submitted: m.Created, Asked: m.Created}
	o := &order{Made: m, reviews: []reviews.Approval{given}}
	sent := o.pieces()
	at := slices.Index(strings.Fields(sent.list), "reviews.json")
	if at < 0 {
		t.Fatalf("the host gets %s", sent.list)
	}
	b64 := base64.StdEncoding.EncodeToString
	a := &scriptOutput{files: [][2]string{{"@job", "100001-" + m.Digest}, {"@file", "plan.json " + b64(m.Bytes)}, {"@file", "reviews.json " + b64(sent.data[at/2])}}}
	jobs := a.jobs()
	if len(jobs) != 1 || len(jobs[0].reviews) != 1 || !jobs[0].reviews[0].Same(given) {
		t.Fatalf("%+v", jobs)
	}
	r := p.e.merge("one", jobs[0])
	if x := p.e.entry("one", r); !r.Learned || len(x.Approvals) != 1 || x.Approvals[0].Verified || x.Approvals[0].Approver != given.Approver {
		t.Errorf("%+v", x)
	}
	if list := (&order{Made: m}).pieces().list; strings.Contains(list, "reviews.json") {
		t.Errorf("without reviews the host gets %s", list)
	}
}
