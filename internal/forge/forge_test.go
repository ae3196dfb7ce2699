package forge

import (
	"context"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// each runs a test with a fake of each vendor.
func each(t *testing.T, run func(t *testing.T, f *fake, c *Client)) {
	for _, p := range Providers() {
		t.Run(p, func(t *testing.T) {
			t.Parallel()
			f, c := newFake(t, p)
			run(t, f, c)
		})
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// commentsOf returns all comments since a time.
func commentsOf(t *testing.T, c *Client, at Thread, since time.Time) []Comment {
	t.Helper()
	list, more, err := c.Comments(t.Context(), repo, at, since)
	if err != nil || more {
		t.Fatalf("%d comments, more: %v, %v", len(list), more, err)
	}
	return list
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

var (
	issue7 = Thread{7, false}
	pull8  = Thread{8, true}
	ada    = User{Login: "ada"}
)

func TestReads(t *testing.T) {
	each(t, func(t *testing.T, f *fake, c *Client) {
		ctx := t.Context()
		f.size = 1 // many pages
		i := must[*Issue](t)(c.Issue(ctx, repo, issue7))
		if i.URL == "" {
			t.Error("no address")
		}
		i.URL = ""
		want7 := Issue{Number: 7, Title: "Broken", Body: "It is **broken**.", Open: true, Author: ada, Assignees: []string{"ada"}, Labels: []string{"carboy:coder", "bug"}, Updated: fakeTime.Add(2 * time.Hour)}
		same(t, "issue", *i, want7)
		if i := must[*Issue](t)(c.Issue(ctx, repo, pull8)); !i.Pull || i.Body != "Closes #7" {
			t.Errorf("a pull request as an issue: %+v", i)
		}

		p := must[*PullRequest](t)(c.PullRequest(ctx, repo, 8))
		p.URL = ""
		yes := true
		same(t, "pull request", *p, PullRequest{
			Number: 8, Title: "Mend it", Body: "Closes #7", Open: true, Author: ada, Labels: p.Labels, Base: "main", Head: "carboy/7-x", HeadCommit: headSHA, Updated: fakeTime.Add(time.Hour),
			Mergeable: &yes,
		})
		if p := must[*PullRequest](t)(c.PullRequest(ctx, repo, 9)); p.Open || !p.Merged || p.MergeCommit != oldSHA || p.Body != "" || p.Mergeable != nil {
			t.Errorf("a merged one: %+v", p)
		}

		var numbers []int
		for _, x := range must[[]Issue](t)(c.Changed(ctx, repo, fakeTime)) {
			numbers = append(numbers, x.Number)
			if x.Pull != (x.Number >= 8) {
				t.Errorf("%+v", x)
			}
		}
		same(t, "changed", numbers, []int{7, 8, 9})
		same(t, "changed later", len(must[[]Issue](t)(c.Changed(ctx, repo, fakeTime.Add(90*time.Minute)))), 1)

		var said []string
		for _, m := range commentsOf(t, c, issue7, time.Time{}) {
			said = append(said, m.Author.Login+": "+m.Body)
		}
		same(t, "comments", said, []string{"ada: Please mend it.", "eve: Me too.", ": From one who is gone."})
		same(t, "comments since", len(commentsOf(t, c, issue7, fakeTime.Add(time.Hour))), 2)
		same(t, "comments of a pull request", len(commentsOf(t, c, pull8, time.Time{})), 0)

		for _, v := range []struct {
			login string
			is    bool
		}{{"ada", true}, {"eve", false}, {"nobody", false}, {"", false}} {
			if got, err := c.Member(ctx, "bots", v.login); err != nil || got != v.is {
				t.Errorf("%q is a member: %v %v", v.login, got, err)
			}
		}
		a := must[Account](t)(c.Account(ctx))
		if a.Login != me || a.Admin || (a.Scopes == nil) != (f.provider == "gitea") {
			t.Errorf("%+v", a)
		}
	})
}

// TestMergeable reads what forges say about conflicts, and when they say nothing.
func TestMergeable(t *testing.T) {
	for _, v := range []struct {
		provider string
		fields   map[string]any
		want     string
	}{
		{"gitea", map[string]any{"mergeable": true}, "true"},
		{"gitea", map[string]any{"mergeable": false}, "false"},
		{"github", map[string]any{"mergeable": true}, "true"},
		{"github", map[string]any{"mergeable": false}, "false"},
		{"github", map[string]any{"mergeable": nil}, "unknown"},
		{"gitlab", map[string]any{"detailed_merge_status": "mergeable", "merge_status": "can_be_merged", "has_conflicts": false}, "true"},
		{"gitlab", map[string]any{"detailed_merge_status": "not_approved", "merge_status": "can_be_merged", "has_conflicts": false}, "true"},
		{"gitlab", map[string]any{"detailed_merge_status": "not_approved", "merge_status": "unchecked", "has_conflicts": false}, "unknown"},
		{"gitlab", map[string]any{"detailed_merge_status": "checking", "merge_status": "checking", "has_conflicts": false}, "unknown"},
		{"gitlab", map[string]any{"detailed_merge_status": "draft_status", "merge_status": "cannot_be_merged", "has_conflicts": true}, "false"},
		{"gitlab", map[string]any{"detailed_merge_status": "conflict", "merge_status": "cannot_be_merged", "has_conflicts": true}, "false"},
		{"gitlab", map[string]any{"detailed_merge_status": "need_rebase", "merge_status": "can_be_merged", "has_conflicts": false}, "false"},
		{"gitlab", map[string]any{"detailed_merge_status": nil, "merge_status": nil, "has_conflicts": nil}, "unknown"},
	} {
		f, c := newFake(t, v.provider)
		f.pulls[0].mergeable = v.fields
		got := "unknown"
		if m := must[*PullRequest](t)(c.PullRequest(t.Context(), repo, 8)).Mergeable; m != nil {
			got = strconv.FormatBool(*m)
		}
		if got != v.want {
			t.Errorf("%s, %v: %s, want %s", v.provider, v.fields, got, v.want)
		}
		f.pulls[0].state = "closed"
		if must[*PullRequest](t)(c.PullRequest(t.Context(), repo, 8)).Mergeable != nil {
			t.Errorf("%s: one that is closed is mergeable or not", v.provider)
		}
	}
}

func TestRepository(t *testing.T) {
	each(t, func(t *testing.T, f *fake, c *Client) {
		got := must[Repository](t)(c.Repository(t.Context(), repo))
		same(t, "repository", got, Repository{ID: 1, FullName: "Org/App", DefaultBranch: "main", Private: true, URL: "https://forge.example/org/app"})
		for what, fields := range map[string]map[string]any{
			"another name":  {"full_name": "org/new", "path_with_namespace": "org/new"},
			"no number":     {"id": nil},
			"a bad number":  {"id": -1},
			"a null answer": nil,
		} {
			f.change = func(_ *req, v any) any {
				if fields == nil {
					return nil
				}
				for k, x := range fields {
					v.(map[string]any)[k] = x
				}
				return v
			}
			if _, err := c.Repository(t.Context(), repo); err == nil || !strings.Contains(err.Error(), "asked for the repository org/app") {
				t.Errorf("%s: %v", what, err)
			}
		}
		for _, v := range []struct {
			fields map[string]any
			want   bool
		}{
			{map[string]any{"private": false, "visibility": "public"}, false},
			{map[string]any{"private": false, "internal": f.provider == "gitea", "visibility": "internal"}, f.provider != "github"},
			{map[string]any{"private": true, "visibility": "private"}, true},
		} {
			f.change = func(_ *req, x any) any {
				for k, y := range v.fields {
					x.(map[string]any)[k] = y
				}
				x.(map[string]any)["archived"] = true
				return x
			}
			if got := must[Repository](t)(c.Repository(t.Context(), repo)); got.Private != v.want || !got.Archived {
				t.Errorf("%v: %+v", v.fields, got)
			}
		}
	})
}

func TestCommit(t *testing.T) {
	each(t, func(t *testing.T, f *fake, c *Client) {
		ctx := t.Context()
		want := Commit{headSHA, treeSHA, []string{oldSHA}}
		if f.provider == "gitlab" {
			want.Tree = ""
		}
		same(t, "commit", must[Commit](t)(c.Commit(ctx, repo, headSHA)), want)
		if first := must[Commit](t)(c.Commit(ctx, repo, oldSHA)); len(first.Parents) != 0 {
			t.Errorf("a first commit: %+v", first)
		}
		if q := f.seen("")[0].query; f.provider == "gitea" && q.Get("files") != "false" {
			t.Errorf("the list of files is asked for: %v", q)
		}
		sent := len(f.seen(""))
		for _, bad := range []string{"", "HEAD", "main", headSHA[:12], headSHA + "0", strings.Repeat("A", 40), "../" + headSHA} {
			if _, err := c.Commit(ctx, repo, bad); err == nil {
				t.Errorf("%q is a commit", bad)
			}
		}
		if len(f.seen("")) != sent {
			t.Error("something was asked for")
		}
		if _, err := c.Commit(ctx, repo, strings.Repeat("9", 40)); !is(err, 404) {
			t.Errorf("one that there is not: %v", err)
		}
		for what, fields := range map[string]map[string]any{
			"another":      {"sha": oldSHA, "id": oldSHA},
			"no name":      {"sha": nil, "id": nil},
			"a bad parent": {"parents": []any{map[string]any{"sha": "x"}}, "parent_ids": []any{"x"}},
			"no tree":      {"tree": nil, "commit": nil, "parent_ids": []any{""}},
		} {
			f.change = func(_ *req, v any) any {
				for k, x := range fields {
					v.(map[string]any)[k] = x
				}
				return v
			}
			if got, err := c.Commit(ctx, repo, headSHA); err == nil || got.SHA != "" {
				t.Errorf("%s: %+v %v", what, got, err)
			}
		}
	})
}

func TestReviews(t *testing.T) {
	each(t, func(t *testing.T, f *fake, c *Client) {
		f.size = 1
		f.pulls[0].reviews = append(f.pulls[0].reviews,
			fakeReview{id: 23, by: "eve", state: "pending"}, fakeReview{id: 24, by: "eve", state: "asked"},
			fakeReview{id: 25, by: "eve", state: "dismissed"}, fakeReview{id: 26, by: "eve", state: "approved", unofficial: true},
			fakeReview{id: 27, by: "eve", state: "comment", lines: []fakeLine{{33, "eve", "Hm.", "a.go", 1, false}}})
		got := must[[]Review](t)(c.Reviews(t.Context(), repo, 8))
		var lines, states []string
		for _, v := range got {
			void := ""
			if v.Void {
				void = " (void)"
			}
			states = append(states, v.Author.Login+" "+string(v.State)+void)
			if f.provider == "gitlab" != (v.Commit == "") || v.Submitted != fakeTime {
				t.Errorf("%+v", v)
			}
			for _, l := range v.Comments {
				side := "new"
				if l.Old {
					side = "old"
				}
				lines = append(lines, strings.Join([]string{l.Author.Login, l.Body, l.Path, side, string(rune('0' + l.Line%10)), l.Commit[:4]}, " "))
			}
		}
		same(t, "lines", lines, []string{"ada Why? main.go new 2 1111", "ada Keep it. old.go old 4 1111", "eve Hm. a.go new 1 1111"})
		same(t, "states", states, map[string][]string{
			"gitea":  {"ada changes requested", "bob approved", "eve approved (void)", "eve commented"},
			"github": {"ada changes requested", "bob approved", "eve commented (void)", "eve approved", "eve commented"},
			"gitlab": {"ada changes requested", "bob approved", "eve approved"},
		}[f.provider])
	})
}

// TestReviewTexts: Gitea tells what a review's page shows, which other forges are not asked.
func TestReviewTexts(t *testing.T) {
	each(t, func(t *testing.T, f *fake, c *Client) {
		entry := func(kind string, review int64, edited bool) any {
			at := fakeTime
			if edited {
				at = at.Add(time.Hour)
			}
			return map[string]any{"id": 900 + review, "type": kind, "review_id": review, "user": f.hubUser("bob"), "body": "Fine.", "created_at": when(fakeTime), "updated_at": when(at)}
		}
		f.timeline = []any{entry("comment", 0, false), entry("review", 22, false), entry("review", 23, true), entry("review", 0, false), entry("dismiss_review", 22, false)}
		got, err := c.ReviewTexts(t.Context(), repo, 8, fakeTime)
		if f.provider != "gitea" {
			if err == nil || !strings.Contains(err.Error(), "edited") {
				t.Errorf("%+v %v", got, err)
			}
			return
		}
		bob := User{Login: "bob"}
		same(t, "texts", got, []ReviewText{{22, bob, "Fine.", fakeTime, fakeTime}, {23, bob, "Fine.", fakeTime, fakeTime.Add(time.Hour)}})
		if err != nil {
			t.Error(err)
		}
		q := f.seen("GET")[0].query
		if q.Get("since") != fakeTime.Format(time.RFC3339) || q.Has("page") || q.Has("limit") {
			t.Errorf("asked for %v", q)
		}
		if _, err := c.ReviewTexts(t.Context(), "x/../y", 8, fakeTime); err == nil {
			t.Error("another path")
		}
		f.timeline = []any{"nonsense"}
		if got, err := c.ReviewTexts(t.Context(), repo, 8, fakeTime); err == nil {
			t.Errorf("%+v", got)
		}
	})
}

func TestAccess(t *testing.T) {
	each(t, func(t *testing.T, f *fake, c *Client) {
		ctx := t.Context()
		f.admin = true
		for login, want := range map[string]Access{me: WriteAccess, "ada": AdminAccess, "bob": WriteAccess, "eve": ReadAccess, "": NoAccess} {
			if got, err := c.Access(ctx, repo, login); err != nil || got != want {
				t.Errorf("%q: %v %v, want %v", login, got, err, want)
			}
		}
		if got, err := c.Access(ctx, repo, "nobody"); got != NoAccess {
			t.Errorf("nobody: %v %v", got, err)
		}
		if got, err := c.Access(ctx, "org/other", "ada"); got != NoAccess || err == nil {
			t.Errorf("another repository: %v %v", got, err)
		}
	})
}

// Gitea tells what others may do to administrators only.
func TestGiteaAccess(t *testing.T) {
	f, c := newFake(t, "gitea")
	writers := map[string]any{"name": "writers", "permission": "none", "units_map": map[string]any{"repo.code": "write", "repo.issues": "write"}}
	owners := map[string]any{"name": "Owners", "permission": "owner", "units_map": map[string]any{}}
	readers := map[string]any{"name": "readers", "permission": "read", "units_map": map[string]any{"repo.code": "read", "repo.pulls": "read"}}
	for _, v := range []struct {
		name  string
		teams []map[string]any
		login string
		want  Access
		says  string
	}{
		{"of a user", nil, "bob", WriteAccess, ""},
		{"of a user", nil, "eve", NoAccess, ""},
		{"of an organisation", []map[string]any{owners}, "bob", WriteAccess, ""},
		{"with a team of readers", []map[string]any{owners, writers, readers}, "eve", NoAccess, `team "readers"`},
		{"with a team of readers", []map[string]any{owners, writers, readers}, "nobody", NoAccess, ""},
		{"with a team of writers", []map[string]any{owners, writers}, "BOB", WriteAccess, ""},
	} {
		f.teams = v.teams
		got, err := c.Access(t.Context(), repo, v.login)
		if got != v.want || (err == nil) != (v.says == "") || err != nil && !strings.Contains(err.Error(), v.says) {
			t.Errorf("%s, %s: %v %v", v.name, v.login, got, err)
		}
	}
}

func TestMemberIsNotTold(t *testing.T) {
	for _, p := range []string{"gitea", "github"} {
		_, c := newFake(t, p)
		if ok, err := c.Member(t.Context(), "secret", "ada"); ok || err == nil || !strings.Contains(err.Error(), "no member of the organisation") {
			t.Errorf("%s: %v %v", p, ok, err)
		}
	}
}

func TestProtection(t *testing.T) {
	yes, no := true, false
	for _, v := range []struct {
		provider, name string
		admin          bool
		branch         map[string]any
		rules          any
		want           Protection
	}{
		{"gitea", "none", false, map[string]any{"protected": false, "user_can_push": true, "user_can_merge": true, "status_check_contexts": nil}, nil, Protection{MayPush: &yes, MayMerge: &yes}},
		{"gitea", "to a writer", false, map[string]any{"protected": true, "required_approvals": 1, "enable_status_check": true, "status_check_contexts": []any{"carboy/gate"}, "user_can_push": false, "user_can_merge": false}, nil,
			Protection{Protected: true, MayPush: &no, MayMerge: &no, Approvals: 1, Checks: []string{"carboy/gate"}}},
		{"gitea", "to an administrator", true, map[string]any{"protected": true, "required_approvals": 1, "enable_status_check": false, "status_check_contexts": []any{"x"}, "user_can_push": true, "user_can_merge": true, "effective_branch_protection_name": "main"},
			map[string]any{"enable_merge_whitelist": true, "merge_whitelist_usernames": []any{"ada"}, "merge_whitelist_teams": nil, "dismiss_stale_approvals": true},
			Protection{Protected: true, MayPush: &yes, MayMerge: &yes, Approvals: 1, Mergers: []string{"ada"}, DismissStale: &yes}},
		{"github", "none", false, map[string]any{"name": "main", "protected": false}, []any{}, Protection{DismissStale: &no}},
		{"github", "rules", false, map[string]any{"name": "main", "protected": true}, []any{
			map[string]any{"type": "deletion"},
			map[string]any{"type": "pull_request", "parameters": map[string]any{"required_approving_review_count": 1, "dismiss_stale_reviews_on_push": true}},
			map[string]any{"type": "required_status_checks", "parameters": map[string]any{"required_status_checks": []any{map[string]any{"context": "carboy/gate"}}}},
		}, Protection{Protected: true, Approvals: 1, DismissStale: &yes, Checks: []string{"carboy/gate"}}},
		{"github", "hidden", false, map[string]any{"name": "main", "protected": true}, []any{}, Protection{Protected: true}},
		{"github", "classic", true, map[string]any{"name": "main", "protected": true}, []any{},
			Protection{Protected: true, Approvals: 2, DismissStale: &yes, Checks: []string{"carboy/gate"}, Mergers: []string{"ada"}}},
		{"gitlab", "none", false, map[string]any{"protected": false, "can_push": true}, nil, Protection{MayPush: &yes, MayMerge: &yes, Checks: []string{"*"}}},
		{"gitlab", "protected", true, map[string]any{"protected": true, "can_push": false, "developers_can_merge": false}, nil,
			Protection{Protected: true, MayPush: &no, MayMerge: &no, Checks: []string{"*"}, Approvals: 2, DismissStale: &yes}},
	} {
		t.Run(v.provider+" "+v.name, func(t *testing.T) {
			f, c := newFake(t, v.provider)
			f.admin, f.branch, f.rules = v.admin, v.branch, v.rules
			same(t, "protection", *must[*Protection](t)(c.Protection(t.Context(), repo, "main")), v.want)
		})
	}
}

func TestLacks(t *testing.T) {
	all := []Need{ReadIssues, WriteIssues, ReadRepository, WriteRepository, ReadMembers, ReadAccount}
	ask := func(t *testing.T, c *Client) ([]string, []Need) {
		t.Helper()
		lacks, unknown, err := c.Lacks(t.Context(), repo, "bots", all...)
		if err != nil {
			t.Fatal(err)
		}
		return lacks, unknown
	}
	t.Run("gitea", func(t *testing.T) {
		f, c := newFake(t, "gitea")
		if lacks, unknown := ask(t, c); lacks != nil || unknown != nil {
			t.Errorf("%q %q", lacks, unknown)
		}
		if len(f.issues) != 2 || len(f.pulls) != 2 || f.issues[0].version != 0 {
			t.Error("something was changed")
		}
		f.spoil(func(w rw, r *req) bool {
			if r.Method == "GET" {
				return false
			}
			say(w, 403, map[string]any{"message": "token does not have at least one of required scope(s), required=[write:issue], token scope=read:issue,read:repository"})
			return true
		}, nil)
		if lacks, _ := ask(t, c); !slices.Equal(lacks, []string{"write:issue"}) {
			t.Errorf("%q", lacks)
		}
		f.spoil(answer(500, "{}"), nil)
		if _, _, err := c.Lacks(t.Context(), repo, "bots", ReadIssues); err == nil {
			t.Error("a forge that is broken lacks nothing")
		}
	})
	t.Run("github", func(t *testing.T) {
		f, c := newFake(t, "github")
		if lacks, unknown := ask(t, c); lacks != nil || unknown != nil {
			t.Errorf("classic: %q %q", lacks, unknown)
		}
		f.scopes = "read:org"
		if lacks, _ := ask(t, c); !slices.Equal(lacks, []string{"repo"}) {
			t.Errorf("classic with less: %q", lacks)
		}
		f.scopes = ""
		if lacks, unknown := ask(t, c); lacks != nil || !slices.Equal(unknown, []Need{WriteIssues, WriteRepository}) {
			t.Errorf("fine-grained: %q %q", lacks, unknown)
		}
		f.spoil(func(w rw, r *req) bool {
			return strings.Contains(r.URL.Path, "/pulls") && answer(403, `{"message":"Resource not accessible by personal access token"}`)(w, r)
		}, nil)
		if lacks, _ := ask(t, c); !slices.Equal(lacks, []string{"pull_requests:read"}) {
			t.Errorf("fine-grained with less: %q", lacks)
		}
	})
	t.Run("gitlab", func(t *testing.T) {
		f, c := newFake(t, "gitlab")
		for scopes, want := range map[string][]string{"api": nil, "read_api": {"api"}, "read_user": {"read_api", "api"}} {
			f.scopes = scopes
			if lacks, _ := ask(t, c); !slices.Equal(lacks, want) {
				t.Errorf("%s: %q", scopes, lacks)
			}
		}
		f.spoil(func(w rw, r *req) bool {
			return strings.HasSuffix(r.URL.Path, "/self") && answer(401, `{"message":"401 Unauthorized"}`)(w, r)
		}, nil)
		if lacks, unknown := ask(t, c); lacks != nil || len(unknown) != len(all) {
			t.Errorf("another kind of token: %q %q", lacks, unknown)
		}
		f.spoil(answer(403, `{"error":"insufficient_scope","error_description":"The request requires higher privileges than provided by the access token.","scope":"api read_api"}`), nil)
		if lacks, _ := ask(t, c); !slices.Equal(lacks, []string{"api or read_api"}) {
			t.Errorf("%q", lacks)
		}
	})
}

// TestNames checks that a name from elsewhere stays one part of an address.
func TestNames(t *testing.T) {
	each(t, func(t *testing.T, f *fake, c *Client) {
		ctx := t.Context()
		for _, bad := range []string{"", "app", "../app", "org/..", "org/", "/app", "org/app\n", "org/./app", strings.Repeat("a", 300) + "/b"} {
			for name, call := range calls {
				if call.org || call.none {
					continue
				}
				if err := call.do(ctx, c, bad); err == nil {
					t.Errorf("%s of %q", name, bad)
				}
			}
		}
		for _, bad := range []string{"..", ".", "a\x00b"} {
			_, err := c.Member(ctx, "bots", bad)
			_, err2 := c.Member(ctx, bad, "ada")
			_, err3 := c.Access(ctx, repo, bad)
			_, err4 := c.Protection(ctx, repo, bad)
			_, err5 := c.PostOnce(ctx, repo, issue7, bad+"--", "x")
			err6 := c.SetStatus(ctx, repo, bad, Status{})
			for i, err := range []error{err, err2, err3, err4, err5, err6} {
				if err == nil {
					t.Errorf("%q is taken by call %d", bad, i)
				}
			}
		}
		if n := len(f.seen("")); n > 0 {
			t.Errorf("%d requests were sent", n)
		}
		// Names may have slashes and other characters where the forge has them in one.
		f.branch = map[string]any{}
		f.rules = []any{}
		if _, err := c.Protection(ctx, repo, "feature/a?b#c%2e"); err != nil {
			t.Error(err)
		}
		if p := f.seen("")[0].path; !strings.Contains(p, "feature%2Fa%3Fb%23c%252e") {
			t.Errorf("asked for %s", p)
		}
	})
}

// calls are all calls of a forge with a repository.
var calls = map[string]struct {
	do    func(ctx context.Context, c *Client, repo string) error
	write bool
	org   bool // asks for no repository
	none  bool // asks for no repository, and takes no name
}{
	"Account": {do: func(ctx context.Context, c *Client, _ string) error { _, err := c.Account(ctx); return err }, none: true},
	"Member": {do: func(ctx context.Context, c *Client, _ string) error {
		_, err := c.Member(ctx, "bots", "ada")
		return err
	}, org: true},
	"Access":      {do: func(ctx context.Context, c *Client, r string) error { _, err := c.Access(ctx, r, me); return err }},
	"Issue":       {do: func(ctx context.Context, c *Client, r string) error { _, err := c.Issue(ctx, r, issue7); return err }},
	"PullRequest": {do: func(ctx context.Context, c *Client, r string) error { _, err := c.PullRequest(ctx, r, 8); return err }},
	"Changed": {do: func(ctx context.Context, c *Client, r string) error {
		_, err := c.Changed(ctx, r, fakeTime)
		return err
	}},
	"Comments": {do: func(ctx context.Context, c *Client, r string) error {
		_, _, err := c.Comments(ctx, r, issue7, time.Time{})
		return err
	}},
	"Repository": {do: func(ctx context.Context, c *Client, r string) error { _, err := c.Repository(ctx, r); return err }},
	"Commit":     {do: func(ctx context.Context, c *Client, r string) error { _, err := c.Commit(ctx, r, headSHA); return err }},
	"Reviews":    {do: func(ctx context.Context, c *Client, r string) error { _, err := c.Reviews(ctx, r, 8); return err }},
	"Protection": {do: func(ctx context.Context, c *Client, r string) error {
		_, err := c.Protection(ctx, r, "main")
		return err
	}},
	"Lacks": {do: func(ctx context.Context, c *Client, r string) error {
		_, _, err := c.Lacks(ctx, r, "bots", ReadAccount)
		return err
	}},
	"PostOnce": {do: func(ctx context.Context, c *Client, r string) error {
		_, err := c.PostOnce(ctx, r, issue7, "key-1", "Hello.")
		return err
	}, write: true},
	"OpenPullRequest": {do: func(ctx context.Context, c *Client, r string) error {
		_, err := c.OpenPullRequest(ctx, r, NewPullRequest{"main", "carboy/7-new", "Mend it", "Closes #7"})
		return err
	}, write: true},
	"UpdateDescription": {do: func(ctx context.Context, c *Client, r string) error {
		return c.UpdateDescription(ctx, r, pull8, "New text.", "Closes #7")
	}, write: true},
	"DeployKeys": {do: func(ctx context.Context, c *Client, r string) error { _, err := c.DeployKeys(ctx, r); return err }},
	"AddDeployKey": {do: func(ctx context.Context, c *Client, r string) error {
		_, err := c.AddDeployKey(ctx, r, "carboy:x:app", "ssh-ed25519 AAAA")
		return err
	}, write: true},
	"RemoveDeployKey": {do: func(ctx context.Context, c *Client, r string) error { return c.RemoveDeployKey(ctx, r, "5") }, write: true},
	"SetStatus": {do: func(ctx context.Context, c *Client, r string) error {
		return c.SetStatus(ctx, r, headSHA, Status{"failure", "carboy/gate", "two tests fail", "https://carboy.example/1"})
	}, write: true},
}
