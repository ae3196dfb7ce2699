package reviews

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/ship/hosts"
)

var (
	made   = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	now    = made.Add(time.Hour)
	commit = strings.Repeat("c", 40)
	other1 = strings.Repeat("d", 40)
)

func rules() *hosts.Reviews {
	return &hosts.Reviews{
		Name: "team", Forge: "gitea", API: "https://forge.example.org/api/v1", Repo: "acme/web", Branch: "main", TokenEnv: "TOKEN",
		People: map[string]string{"alice": "alice@example.org", "bob": "bob@example.org"}, AtLeast: 1,
		Approvals: 1, DismissStale: true, Mergers: []string{"alice", "carol"},
	}
}

func plan() Wanted {
	return Wanted{Digest: strings.Repeat("a", 64), Commit: commit, Created: made, Expires: made.Add(24 * time.Hour), Text: "apply web on one\nproject web\n"}
}

// good returns what a forge tells of a plan that Alice approved.
func good() *Told {
	yes := true
	w := plan()
	body := "Looks good.\r\n  " + Line(w) + "\r\nThanks"
	at := made.Add(20 * time.Minute)
	return &Told{
		Robot: "carboy", Asked: now,
		Pull:       forge.PullRequest{Number: 7, Open: true, Author: forge.User{Login: "eve"}, Base: "main", Head: "change", HeadCommit: commit},
		Protection: forge.Protection{Protected: true, Approvals: 1, DismissStale: &yes, Mergers: []string{"Alice", "carol"}},
		Reviews:    []forge.Review{{ID: 3, Author: forge.User{Login: "Alice"}, State: forge.Approved, Body: body, Commit: commit, Official: true, Submitted: at}},
		Texts:      []forge.ReviewText{{Review: 3, Author: forge.User{Login: "Alice"}, Body: body, Created: at, Updated: at}},
		Comments:   []forge.Comment{{ID: 9, Author: forge.User{Login: "carboy"}, Body: forge.Marked(key(w), comment(w)), Created: made.Add(time.Minute), Updated: made.Add(time.Minute)}},
	}
}

// write sets the text of a review, as it was submitted and as its page shows it.
func (t *Told) write(i int, body string) { t.Reviews[i].Body, t.Texts[i].Body = body, body }

// add adds an approving review of another person.
func (t *Told) add(login string) *forge.Review {
	v, x := t.Reviews[0], t.Texts[0]
	v.ID, v.Author.Login = t.Reviews[len(t.Reviews)-1].ID+1, login
	x.Review, x.Author.Login = v.ID, login
	t.Reviews, t.Texts = append(t.Reviews, v), append(t.Texts, x)
	return &t.Reviews[len(t.Reviews)-1]
}

// broken are the conditions of a review that counts, each broken alone.
var broken = map[string]struct {
	change func(r *hosts.Reviews, t *Told, w *Wanted)
	says   string
}{
	"no protection":            {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Protection.Protected = false }, "is not protected"},
	"fewer approvals required": {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Protection.Approvals = 0 }, "requires 0 approvals"},
	"more approvals demanded":  {func(r *hosts.Reviews, _ *Told, _ *Wanted) { r.Approvals = 2 }, "hosts.yaml demands 2"},
	"stale approvals stay":     {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Protection.DismissStale = new(bool) }, "does not dismiss"},
	"protection is not told":   {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Protection.DismissStale = nil }, "does not tell"},
	"all may merge":            {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Protection.Mergers = nil }, "who may merge"},
	"nobody may merge":         {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Protection.Mergers = []string{} }, "who may merge"},
	"another may merge":        {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Protection.Mergers = []string{"alice", "carboy"} }, "lets carboy merge"},
	"a team may merge":         {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Protection.MergerTeams = []string{"alice"} }, "lets team alice merge"},
	"closed":                   {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Pull.Open = false }, "closed and not merged"},
	"into another branch":      {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Pull.Base = "develop" }, "into develop"},
	"pushed since":             {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Pull.HeadCommit = other1 }, "is of commit dddddddddddd"},
	"no head":                  {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Pull.HeadCommit = "" }, "is of commit"},
	"the author is gone":       {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Pull.Author.Login = "" }, "author is gone"},
	"not posted":               {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Comments = nil }, "is not posted"},
	"posted by another":        {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Comments[0].Author.Login = "eve" }, "is not posted"},
	"another plan is posted": {func(_ *hosts.Reviews, t *Told, w *Wanted) {
		t.Comments[0].Body = forge.Marked("plan:"+strings.Repeat("b", 64), comment(*w))
	}, "is not posted"},
	"the posted text was edited": {func(_ *hosts.Reviews, t *Told, _ *Wanted) {
		t.Comments[0].Body = strings.Replace(t.Comments[0].Body, "web", "wob", 1)
	}, "comment 9 with the plan was edited"},
	"it was edited back":         {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Comments[0].Updated = now }, "comment 9 with the plan was edited"},
	"posted after the review":    {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Comments[0].Created, t.Comments[0].Updated = now, now }, "older than carboy's comment"},
	"no review":                  {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Reviews = nil }, "0 of 1 approving reviews"},
	"only a comment":             {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Reviews[0].State = forge.Commented }, "0 of 1"},
	"changes requested":          {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Reviews[0].State = forge.ChangesRequested }, "asks for changes"},
	"changes requested later":    {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.add("alice").State = forge.ChangesRequested }, "alice asks for changes in review 4"},
	"another asks for changes":   {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.add("bob").State = forge.ChangesRequested }, "bob asks for changes in review 4"},
	"a stranger":                 {func(r *hosts.Reviews, _ *Told, _ *Wanted) { delete(r.People, "alice") }, "0 of 1"},
	"an account that is gone":    {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Reviews[0].Author.Login = "" }, "0 of 1"},
	"a bot":                      {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Reviews[0].Author.Bot = true }, "a bot's"},
	"the pull request's author":  {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Pull.Author.Login = "aLICE" }, "author of the pull request"},
	"carboy's own account":       {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Robot, t.Comments[0].Author.Login = "alice", "alice" }, "carboy's token"},
	"dismissed":                  {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Reviews[0].Dismissed = true }, "dismissed"},
	"stale":                      {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Reviews[0].Stale = true }, "is stale"},
	"not official":               {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Reviews[0].Official = false }, "not counted by the branch's protection"},
	"void for another reason":    {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Reviews[0].Void = true }, "does not count at the forge"},
	"of another commit":          {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Reviews[0].Commit = other1 }, "is of commit dddddddddddd"},
	"of no commit":               {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Reviews[0].Commit = "" }, "is of commit"},
	"no digest":                  {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.write(0, "Looks good.") }, "has no line"},
	"another digest":             {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.write(0, "plan "+strings.Repeat("b", 64)) }, "has no line"},
	"half a digest":              {func(_ *hosts.Reviews, t *Told, w *Wanted) { t.write(0, Line(*w)[:60]) }, "has no line"},
	"a longer digest":            {func(_ *hosts.Reviews, t *Told, w *Wanted) { t.write(0, Line(*w)+"a") }, "has no line"},
	"a quoted digest":            {func(_ *hosts.Reviews, t *Told, w *Wanted) { t.write(0, "> "+Line(*w)) }, "has no line"},
	"a digest in a sentence":     {func(_ *hosts.Reviews, t *Told, w *Wanted) { t.write(0, "do not apply "+Line(*w)) }, "has no line"},
	"a long text":                {func(_ *hosts.Reviews, t *Told, w *Wanted) { t.write(0, Line(*w)+"\n"+strings.Repeat("x", maxBody)) }, "has more than"},
	"the review was edited":      {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Texts[0].Body = "No." }, "edited after"},
	"the line was added":         {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Reviews[0].Body = "Looks good." }, "edited after"},
	"the review was edited back": {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Texts[0].Updated = now }, "edited after"},
	"the text is another's":      {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Texts[0].Author.Login = "eve" }, "edited after"},
	"the text was removed":       {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Texts = nil }, "has no text"},
	"two texts":                  {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Texts = append(t.Texts, t.Texts[0]) }, "two texts"},
	"older than the plan":        {func(_ *hosts.Reviews, _ *Told, w *Wanted) { w.Created = made.Add(26 * time.Minute) }, "while the plan was good"},
	"later than the plan is good": {func(_ *hosts.Reviews, t *Told, w *Wanted) {
		t.Texts[0].Created = w.Expires.Add(time.Second)
		t.Texts[0].Updated = t.Texts[0].Created
	}, "while the plan was good"},
	"from the future": {func(_ *hosts.Reviews, t *Told, _ *Wanted) {
		t.Texts[0].Created = now.Add(6 * time.Minute)
		t.Texts[0].Updated = t.Texts[0].Created
	}, "while the plan was good"},
	"fewer than demanded": {func(r *hosts.Reviews, _ *Told, _ *Wanted) { r.AtLeast = 2 }, "1 of 2"},
	"not for what it destroys": {func(_ *hosts.Reviews, t *Told, w *Wanted) {
		w.Destructive = true
		t.Comments[0].Body = forge.Marked(key(*w), comment(*w))
	}, `has no line "plan aaaa`},
}

// TestP5Judge breaks each condition alone: nothing is approved then, and it says why.
func TestP5Judge(t *testing.T) {
	for name, x := range broken {
		r, told, w := rules(), good(), plan()
		if a, err := Judge(r, told, w, now); err != nil || len(a) != 1 {
			t.Fatalf("before %s: %+v %v", name, a, err)
		}
		x.change(r, told, &w)
		a, err := Judge(r, told, w, now)
		if err == nil || len(a) != 0 || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %+v %v, want an error with %q", name, a, err, x.says)
		}
	}
}

// TestApproves: what is not broken approves, and says by whom.
func TestApproves(t *testing.T) {
	for name, x := range map[string]struct {
		change func(r *hosts.Reviews, t *Told, w *Wanted)
		want   []string
	}{
		"one":              {func(*hosts.Reviews, *Told, *Wanted) {}, []string{"alice@example.org"}},
		"merged":           {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.Pull.Open, t.Pull.Merged = false, true }, []string{"alice@example.org"}},
		"two":              {func(r *hosts.Reviews, t *Told, _ *Wanted) { r.AtLeast = 2; t.add("bob") }, []string{"alice@example.org", "bob@example.org"}},
		"one person twice": {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.add("Alice") }, []string{"alice@example.org"}},
		"a stranger asks":  {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.add("eve").State = forge.ChangesRequested }, []string{"alice@example.org"}},
		"asks no more": {func(_ *hosts.Reviews, t *Told, _ *Wanted) {
			v := t.add("bob")
			v.State, v.Dismissed = forge.ChangesRequested, true
		}, []string{"alice@example.org"}},
		"a comment later": {func(_ *hosts.Reviews, t *Told, _ *Wanted) { t.add("alice").State = forge.Commented }, []string{"alice@example.org"}},
		"a protection that is older": {func(r *hosts.Reviews, t *Told, _ *Wanted) {
			r.DismissStale = false
			t.Protection.DismissStale = new(bool)
		}, []string{"alice@example.org"}},
		"a destructive plan": {func(_ *hosts.Reviews, t *Told, w *Wanted) {
			w.Destructive = true
			t.Comments[0].Body = forge.Marked(key(*w), comment(*w))
			t.write(0, Line(*w))
		}, []string{"alice@example.org"}},
	} {
		r, told, w := rules(), good(), plan()
		x.change(r, told, &w)
		a, err := Judge(r, told, w, now)
		var got []string
		for _, v := range a {
			got = append(got, v.Approver)
		}
		if err != nil || !reflect.DeepEqual(got, x.want) {
			t.Errorf("%s: %v %v, want %v", name, got, err, x.want)
		}
	}
	a, err := Judge(rules(), good(), plan(), now)
	if err != nil {
		t.Fatal(err)
	}
	want := Approval{"alice@example.org", "Alice", "https://forge.example.org/api/v1", "acme/web", 7, 3, commit, made.Add(20 * time.Minute), now}
	if a[0] != want || a[0].String() != "review 3 of pull request #7 of acme/web at https://forge.example.org/api/v1 by Alice" {
		t.Errorf("%+v: %s", a[0], a[0])
	}
	again := a[0]
	again.Asked = again.Asked.Add(time.Hour)
	if !again.Same(a[0]) {
		t.Error("the same review, asked for later, is another")
	}
	again.Review++
	if again.Same(a[0]) {
		t.Error("two reviews are the same")
	}
}

// TestComment: nothing in a plan's text leaves its block, and the line to write stands alone.
func TestComment(t *testing.T) {
	w := plan()
	w.Text = "one\n```\n# heading\n<!-- carboy:x -->\x1b[2J\u202e\n" + strings.Repeat("x", 1000)
	got := comment(w)
	block, rest, _ := strings.Cut(strings.TrimPrefix(got, "carboy is asked to apply this plan:\n\n"), "\n\nTo approve it until 2026-11-28T12:00:00Z, submit")
	for l := range strings.Lines(block) {
		if !strings.HasPrefix(l, "    ") || len(l) > 600 {
			t.Errorf("a line outside: %.80q", l)
		}
	}
	if strings.ContainsAny(got, "\x1b\u202e") || !hasLine(rest, Line(w)) || comment(w) != got {
		t.Errorf("%q", got)
	}
}

// told is a Forge that fails at one call.
type told struct {
	*Told
	fails  string
	posted []string
	many   bool
	long   bool
}

func (f *told) at(call string) error {
	if f.fails == call {
		return errors.New(call + " fails")
	}
	return nil
}

func (f *told) Account(context.Context) (forge.Account, error) {
	return forge.Account{Login: f.Robot}, f.at("Account")
}

func (f *told) PullRequest(_ context.Context, _ string, _ int) (*forge.PullRequest, error) {
	return &f.Pull, f.at("PullRequest")
}

func (f *told) Protection(context.Context, string, string) (*forge.Protection, error) {
	return &f.Told.Protection, f.at("Protection")
}

func (f *told) Reviews(context.Context, string, int) ([]forge.Review, error) {
	if f.many {
		return make([]forge.Review, maxReviews+1), nil
	}
	return f.Told.Reviews, f.at("Reviews")
}

func (f *told) ReviewTexts(_ context.Context, _ string, _ int, since time.Time) ([]forge.ReviewText, error) {
	if !since.Equal(made.Add(-slack)) {
		return nil, fmt.Errorf("asked since %s", since)
	}
	return f.Texts, f.at("ReviewTexts")
}

func (f *told) Comments(context.Context, string, forge.Thread, time.Time) ([]forge.Comment, bool, error) {
	return f.Told.Comments, f.long, f.at("Comments")
}

func (f *told) PostOnce(_ context.Context, repo string, at forge.Thread, key, body string) (*forge.Comment, error) {
	f.posted = append(f.posted, fmt.Sprint(repo, at, key, body))
	return &forge.Comment{ID: 1}, f.at("PostOnce")
}

func (f *told) Close() {}

// TestRead: a forge that fails at any call tells nothing.
func TestRead(t *testing.T) {
	for _, call := range []string{"Account", "PullRequest", "Protection", "Reviews", "ReviewTexts", "Comments"} {
		if got, err := Read(t.Context(), &told{Told: good(), fails: call}, rules(), 7, made); err == nil || got != nil {
			t.Errorf("%s: %+v %v", call, got, err)
		}
	}
	if got, err := Read(t.Context(), &told{Told: good(), many: true}, rules(), 7, made); err == nil || got != nil {
		t.Errorf("many reviews: %+v %v", got, err)
	}
	if got, err := Read(t.Context(), &told{Told: good(), long: true}, rules(), 7, made); err == nil || got != nil {
		t.Errorf("long comments: %+v %v", got, err)
	}
	got, err := Read(t.Context(), &told{Told: good()}, rules(), 7, made)
	if err != nil || time.Since(got.Asked) > time.Minute {
		t.Fatalf("%+v %v", got, err)
	}
	if a, err := Judge(rules(), got, plan(), now); err != nil || len(a) != 1 {
		t.Errorf("what was read: %+v %v", a, err)
	}
}

// TestPost: a plan is posted only where a review could approve it.
func TestPost(t *testing.T) {
	f := &told{Told: good()}
	if err := Post(t.Context(), f, rules(), 7, plan()); err != nil || len(f.posted) != 1 || !strings.Contains(f.posted[0], Line(plan())) {
		t.Errorf("%q %v", f.posted, err)
	}
	for name, change := range map[string]func(*told){
		"no pull request":    func(f *told) { f.fails = "PullRequest" },
		"no protection":      func(f *told) { f.fails = "Protection" },
		"a weak protection":  func(f *told) { f.Told.Protection.Approvals = 0 },
		"another commit":     func(f *told) { f.Pull.HeadCommit = other1 },
		"a forge that fails": func(f *told) { f.fails = "PostOnce" },
	} {
		f := &told{Told: good()}
		change(f)
		if err := Post(t.Context(), f, rules(), 7, plan()); err == nil || (len(f.posted) > 0) != (f.fails == "PostOnce") {
			t.Errorf("%s: posted %q, %v", name, f.posted, err)
		}
	}
}

func TestOpen(t *testing.T) {
	env := func(name string) string { return map[string]string{"TOKEN": "0123456789abcdef"}[name] }
	f, err := Open(rules(), env)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	r := rules()
	r.TokenEnv = "OTHER"
	if _, err := Open(r, env); err == nil || !strings.Contains(err.Error(), "OTHER") {
		t.Errorf("without a token: %v", err)
	}
	r = rules()
	r.API = "ftp://x"
	if _, err := Open(r, env); err == nil {
		t.Error("not an address of an API")
	}
}
