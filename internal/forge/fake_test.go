package forge

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/secret"
)

const (
	fakeToken = "forge-token-8Zq1xkLmP04wT"
	repo      = "org/app"
	me        = "robot"
	headSHA   = "1111111111111111111111111111111111111111"
	oldSHA    = "2222222222222222222222222222222222222222"
	// treeSHA names the tree in the fake of Gitea, as git computes it.
	treeSHA = "889ebd97602c7892ef081864af0cadee4936a657"
)

var fakeTime = time.Date(2026, 11, 1, 10, 0, 0, 0, time.UTC)

// fake is a forge that speaks as one vendor documents, with one repository.
type fake struct {
	timeline []any // of every issue, in place of its comments
	provider string
	mux      *http.ServeMux
	api      string // below which the mux is

	mu       sync.Mutex
	requests []sent
	size     int // of a page; 0: as asked for
	issues   []*fakeThread
	pulls    []*fakeThread
	statuses []map[string]any
	next     int64
	users    map[string]string // access by login
	members  []string
	teams    []map[string]any // Gitea's, at the repository
	scopes   string           // GitHub's
	admin    bool             // whether the token's user may see what administrators may
	branch   map[string]any   // how the forge shows its branch
	rules    any              // GitHub's or Gitea's rules of the branch

	// before and after may answer in its place, before or after a request was carried out.
	// They return true if they did.
	before, after func(w http.ResponseWriter, r *http.Request) bool
	// change changes an answer.
	change func(r *http.Request, v any) any
}

type sent struct {
	method, path string // the path without the API's
	query        url.Values
	header       http.Header
	body         []byte
	code         int
	answer       []byte
}

type fakeThread struct {
	number           int
	pull             bool
	title, body      string
	state            string // open, closed, merged
	labels, assigned []string
	base, head       string
	fork             bool
	version          int
	mergeable        map[string]any // what an answer says about it; nil: that it is
	updated          time.Time
	comments         []fakeComment
	reviews          []fakeReview
}

// timeline returns a thread's comments after 30 events that nobody sees, each with an event
// that all see.
func (t *fakeThread) timeline(since time.Time) []*fakeComment {
	out := make([]*fakeComment, 30)
	for _, m := range t.comments {
		if !m.updated.Before(since) {
			out = append(out, &fakeComment{1_000_000 + m.id, m.by, "bug", m.updated}, &m)
		}
	}
	return out
}

type fakeComment struct {
	id      int64
	by      string
	body    string
	updated time.Time
}

type fakeReview struct {
	id                int64
	by, state, body   string
	stale, unofficial bool
	lines             []fakeLine
}

type fakeLine struct {
	id       int64
	by, body string
	path     string
	line     int
	old      bool
}

func newFake(t testing.TB, provider string) (*fake, *Client) {
	f := &fake{
		provider: provider, api: "/api", next: 100, users: map[string]string{me: "write", "ada": "admin", "bob": "write", "eve": "read"}, members: []string{me, "ada"},
		branch: map[string]any{}, scopes: "repo, read:org", rules: []any{},
	}
	f.issues = []*fakeThread{{number: 7, title: "Broken", body: "It is **broken**.", state: "open", labels: []string{"carboy:coder", "bug"}, assigned: []string{"ada"}, updated: fakeTime.Add(2 * time.Hour), comments: []fakeComment{
		{11, "ada", "Please mend it.", fakeTime}, {12, "eve", "Me too.", fakeTime.Add(time.Hour)}, {13, "", "From one who is gone.", fakeTime.Add(2 * time.Hour)},
	}}}
	if provider != "gitlab" {
		// Closed long ago.
		f.issues = append(f.issues, &fakeThread{number: 3, title: "Old", state: "closed", updated: fakeTime.Add(-24 * time.Hour)})
	}
	f.pulls = []*fakeThread{
		{number: 8, pull: true, title: "Mend it", body: "Closes #7", state: "open", base: "main", head: "carboy/7-x", updated: fakeTime.Add(time.Hour), reviews: []fakeReview{
			{id: 21, by: "ada", state: "changes", body: "Not yet.", lines: []fakeLine{{31, "ada", "Why?", "main.go", 12, false}, {32, "ada", "Keep it.", "old.go", 4, true}}},
			{id: 22, by: "bob", state: "approved", body: "Fine."},
		}},
		{number: 9, pull: true, title: "Done", state: "merged", base: "main", head: "carboy/3-y", updated: fakeTime},
	}
	f.mux = http.NewServeMux()
	if provider == "gitlab" {
		f.labRoutes()
	} else {
		f.hubRoutes()
	}
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	c, err := Open(Options{Provider: provider, API: srv.URL + f.api + "/", Token: secret.NewString(fakeToken), Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.pause = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	return f, c
}

func (f *fake) spoil(before, after func(http.ResponseWriter, *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after = before, after
}

// seen returns the requests of a method, or all.
func (f *fake) seen(method string) (out []sent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.requests {
		if method == "" || s.method == method {
			out = append(out, s)
		}
	}
	return out
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	s := sent{r.Method, strings.TrimPrefix(r.URL.EscapedPath(), f.api), r.URL.Query(), r.Header.Clone(), body, 0, nil}
	i := len(f.requests)
	f.requests = append(f.requests, s)
	if f.before != nil && f.before(w, r) {
		return
	}
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	rec := httptest.NewRecorder()
	signed := map[string]string{"gitea": "token " + fakeToken, "github": "Bearer " + fakeToken}[f.provider]
	switch {
	case r.Header.Get("Authorization") != signed, f.provider == "gitlab" && r.Header.Get("Private-Token") != fakeToken:
		say(rec, 401, map[string]any{"message": "Bad credentials"})
	default:
		f.mux.ServeHTTP(rec, r)
	}
	text := rec.Body.Bytes()
	var v any
	if f.change != nil && rec.Code < 300 && json.Unmarshal(text, &v) == nil {
		text, _ = json.Marshal(f.change(r, v))
	}
	f.requests[i].code, f.requests[i].answer = rec.Code, text
	if f.after != nil && f.after(w, r) {
		return
	}
	for k, v := range rec.Header() {
		w.Header()[k] = v
	}
	w.WriteHeader(rec.Code)
	w.Write(text)
}

func say(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if v != nil {
		json.NewEncoder(w).Encode(v)
	}
}

func (f *fake) id() int64 { f.next++; return f.next }

// page answers with a page of a list.
func (f *fake) page(w http.ResponseWriter, r *http.Request, all []any) {
	param, _ := vendors[f.provider].page()
	size, _ := strconv.Atoi(r.URL.Query().Get(param))
	page, _ := strconv.Atoi(r.URL.Query().Get("page"))
	if size == 0 {
		size = 20
	}
	if f.size > 0 {
		size = min(size, f.size)
	}
	lo, hi := min(max(page-1, 0)*size, len(all)), min(max(page, 1)*size, len(all))
	if hi < len(all) {
		w.Header().Set("Link", fmt.Sprintf(`<http://elsewhere.example/?page=%d>; rel="next", <http://elsewhere.example/?page=9>; rel="last"`, page+1))
	} else if page > 1 || f.provider == "gitlab" {
		w.Header().Set("Link", `<http://elsewhere.example/?page=1>; rel="first"`)
	}
	if f.provider == "gitea" {
		w.Header().Set("X-Total-Count", fmt.Sprint(len(all)))
	}
	say(w, 200, append([]any{}, all[lo:hi]...))
}

func (f *fake) find(threads []*fakeThread, n string) *fakeThread {
	for _, t := range threads {
		if strconv.Itoa(t.number) == n {
			return t
		}
	}
	return nil
}

func (f *fake) findPull(base, head string) *fakeThread {
	for _, t := range f.pulls {
		if t.base == base && t.head == head && t.state == "open" && !t.fork {
			return t
		}
	}
	return nil
}

func (f *fake) open(base, head, title, body string) *fakeThread {
	n := 0
	for _, t := range slices.Concat(f.issues, f.pulls) {
		n = max(n, t.number)
	}
	t := &fakeThread{number: n + 1, pull: true, title: title, body: body, state: "open", base: base, head: head, updated: fakeTime.Add(3 * time.Hour)}
	f.pulls = append(f.pulls, t)
	return t
}

func when(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// decode reads a request's body, strictly.
func decode(w http.ResponseWriter, r *http.Request) map[string]any {
	var in map[string]any
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		say(w, 400, map[string]any{"message": err.Error()})
		return nil
	}
	return in
}

func text(in map[string]any, key string) string {
	s, _ := in[key].(string)
	return s
}

// The dialect of Gitea and GitHub.

func (f *fake) hubUser(login string) any {
	if login == "" {
		return nil
	}
	u := map[string]any{"id": len(login), "login": login}
	if f.provider == "github" {
		u["type"] = "User"
		if strings.HasSuffix(login, "[bot]") {
			u["type"] = "Bot"
		}
	}
	return u
}

func (f *fake) hubIssue(t *fakeThread) map[string]any {
	state := t.state
	if state == "merged" {
		state = "closed"
	}
	var users, labels []any
	for _, a := range t.assigned {
		users = append(users, f.hubUser(a))
	}
	for i, l := range t.labels {
		labels = append(labels, map[string]any{"id": i + 1, "name": l})
	}
	if users == nil && f.provider == "github" {
		users = []any{} // null at Gitea
	}
	if labels == nil {
		labels = []any{}
	}
	path := "issues"
	if t.pull {
		path = "pull"
	}
	m := map[string]any{
		"number": t.number, "title": t.title, "body": t.body, "state": state, "user": f.hubUser("ada"), "assignees": users, "labels": labels,
		"updated_at": when(t.updated), "html_url": fmt.Sprintf("https://forge.example/%s/%s/%d", repo, path, t.number),
	}
	if t.body == "" {
		m["body"] = nil
	}
	if f.provider == "gitea" {
		m["content_version"] = t.version
		m["pull_request"] = nil
	}
	if t.pull {
		m["pull_request"] = map[string]any{"html_url": "https://forge.example/x", "diff_url": "https://forge.example/x", "patch_url": "https://forge.example/x", "url": "https://forge.example/x"}
	}
	return m
}

func (f *fake) hubPull(t *fakeThread, simple bool) map[string]any {
	m := f.hubIssue(t)
	delete(m, "pull_request")
	delete(m, "content_version")
	from := map[string]any{"id": 1}
	if t.fork {
		from["id"] = 2
	}
	m["base"] = map[string]any{"ref": t.base, "sha": oldSHA, "repo": map[string]any{"id": 1}}
	m["head"] = map[string]any{"ref": t.head, "sha": headSHA, "repo": from}
	m["merged_at"] = nil
	m["merge_commit_sha"] = oldSHA
	if t.state == "merged" {
		m["merged_at"] = when(t.updated)
	}
	if !simple || f.provider == "gitea" {
		m["merged"] = t.state == "merged"
		m["mergeable"] = true
		maps.Copy(m, t.mergeable)
	}
	return m
}

func (f *fake) hubComment(m fakeComment) map[string]any {
	return map[string]any{"id": m.id, "user": f.hubUser(m.by), "body": m.body, "created_at": when(m.updated), "updated_at": when(m.updated), "html_url": fmt.Sprintf("https://forge.example/x#%d", m.id)}
}

func (f *fake) hubRoutes() {
	lost := func(w http.ResponseWriter) { say(w, 404, map[string]any{"message": "Not Found"}) }
	h := func(pattern string, g func(w http.ResponseWriter, r *http.Request)) {
		method, path, _ := strings.Cut(pattern, " ")
		f.mux.HandleFunc(method+" "+f.api+path, func(w http.ResponseWriter, r *http.Request) {
			if o, n := r.PathValue("o"), r.PathValue("r"); strings.HasPrefix(path, "/repos/") && o+"/"+n != repo {
				lost(w)
				return
			}
			g(w, r)
		})
	}
	f.hubThreads(h, lost)
	f.hubPulls(h, lost)
	f.keyRoutes(h, "/repos/{o}/{r}/keys")
	h("GET /user", func(w http.ResponseWriter, _ *http.Request) {
		if f.provider == "github" && f.scopes != "" {
			w.Header().Set("X-OAuth-Scopes", f.scopes)
		}
		u := f.hubUser(me).(map[string]any)
		if f.provider == "gitea" {
			u["is_admin"] = false
		}
		say(w, 200, u)
	})
	h("GET /orgs/{org}/members/{u}", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.PathValue("org") == "secret":
			http.Redirect(w, r, f.api+"/orgs/secret/public_members/"+r.PathValue("u"), http.StatusSeeOther)
		case slices.Contains(f.members, r.PathValue("u")):
			w.WriteHeader(204)
		default:
			lost(w)
		}
	})
	h("GET /orgs/{org}/members", func(w http.ResponseWriter, _ *http.Request) { say(w, 200, []any{}) })
	h("GET /orgs/{org}/public_members", func(w http.ResponseWriter, _ *http.Request) { say(w, 200, []any{}) })
	h("GET /repos/{o}/{r}/collaborators/{u}/permission", func(w http.ResponseWriter, r *http.Request) {
		u := r.PathValue("u")
		switch {
		case f.provider == "gitea" && !f.admin && u != me:
			say(w, 403, map[string]any{"message": "Only admins can query all permissions, repo admins can query all repo permissions, collaborators can query only their own"})
		case f.users[u] == "":
			lost(w)
		default:
			say(w, 200, map[string]any{"permission": f.users[u], "role_name": f.users[u], "user": f.hubUser(u)})
		}
	})
	if f.provider == "gitea" {
		h("GET /repos/{o}/{r}/assignees", func(w http.ResponseWriter, _ *http.Request) {
			var out []any
			for u, a := range f.users {
				if a != "read" || len(f.teams) > 1 {
					out = append(out, f.hubUser(u))
				}
			}
			say(w, 200, out)
		})
		h("GET /repos/{o}/{r}/teams", func(w http.ResponseWriter, _ *http.Request) {
			if f.teams == nil {
				say(w, 405, map[string]any{"message": "repo is not owned by an organization"})
				return
			}
			say(w, 200, f.teams)
		})
		h("GET /repos/{o}/{r}/branch_protections/{b}", func(w http.ResponseWriter, _ *http.Request) { say(w, 200, f.rules) })
	}
	h("GET /repos/{o}/{r}", func(w http.ResponseWriter, _ *http.Request) {
		m := map[string]any{"id": 1, "full_name": "Org/App", "default_branch": "main", "private": true, "archived": false, "html_url": "https://forge.example/org/app"}
		if f.provider == "gitea" {
			m["internal"] = false
		}
		say(w, 200, m)
	})
	h("GET /repos/{o}/{r}/git/trees/{sha}", func(w http.ResponseWriter, r *http.Request) {
		// In another order than git's.
		all := []any{
			map[string]any{"path": "a", "mode": "040000", "type": "tree", "sha": oldSHA},
			map[string]any{"path": "a.b", "mode": "100644", "type": "blob", "sha": headSHA},
			map[string]any{"path": "a0", "mode": "100755", "type": "blob", "sha": headSHA},
		}
		page, _ := strconv.Atoi(r.URL.Query().Get("page"))
		say(w, 200, map[string]any{"sha": r.PathValue("sha"), "total_count": len(all), "truncated": page < len(all), "tree": all[page-1 : page]})
	})
	h("GET /repos/{o}/{r}/git/commits/{sha}", func(w http.ResponseWriter, r *http.Request) {
		sha, parents := r.PathValue("sha"), []any{}
		switch sha {
		case headSHA:
			parents = append(parents, map[string]any{"sha": oldSHA})
		case oldSHA:
		default:
			lost(w)
			return
		}
		tree := map[string]any{"sha": treeSHA}
		m := map[string]any{"sha": sha, "parents": parents}
		if f.provider == "gitea" {
			m["commit"] = map[string]any{"message": "x", "tree": map[string]any{"sha": sha}} // as the real one
		} else {
			m["message"], m["tree"] = "x", tree
		}
		say(w, 200, m)
	})
	h("GET /repos/{o}/{r}/branches/{b}", func(w http.ResponseWriter, _ *http.Request) { say(w, 200, f.branch) })
	h("GET /repos/{o}/{r}/branches/{b}/protection", func(w http.ResponseWriter, _ *http.Request) {
		if !f.admin {
			w.Header().Set("X-Accepted-GitHub-Permissions", "administration=read")
			say(w, 403, map[string]any{"message": "Resource not accessible by personal access token"})
			return
		}
		say(w, 200, map[string]any{
			"required_pull_request_reviews": map[string]any{"required_approving_review_count": 2, "dismiss_stale_reviews": true, "require_code_owner_reviews": false},
			"required_status_checks":        map[string]any{"contexts": []any{"carboy/gate"}, "checks": []any{map[string]any{"context": "carboy/gate", "app_id": nil}}},
			"restrictions":                  map[string]any{"users": []any{f.hubUser("ada")}, "teams": []any{}, "apps": []any{}},
		})
	})
	h("GET /repos/{o}/{r}/rules/branches/{b}", func(w http.ResponseWriter, _ *http.Request) { say(w, 200, f.rules) })
	h("POST /repos/{o}/{r}/statuses/{sha}", func(w http.ResponseWriter, r *http.Request) {
		in := decode(w, r)
		f.statuses = append(f.statuses, in)
		out := map[string]any{"id": f.id(), "context": in["context"], "description": in["description"], "target_url": in["target_url"]}
		out[map[bool]string{true: "status", false: "state"}[f.provider == "gitea"]] = in["state"]
		say(w, 201, out)
	})
}

// keyRoutes are the same at all forges.
func (f *fake) keyRoutes(h handle, path string) {
	key := map[string]any{"id": 5, "title": "carboy:x:app", "key": "ssh-ed25519 AAAA"}
	h("GET "+path, func(w http.ResponseWriter, r *http.Request) { f.page(w, r, []any{key}) })
	h("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		if decode(w, r) != nil {
			say(w, 201, key)
		}
	})
	h("DELETE "+path+"/{id}", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
}

type handle func(pattern string, g func(w http.ResponseWriter, r *http.Request))

func (f *fake) hubThreads(h handle, lost func(http.ResponseWriter)) {
	all := func() []*fakeThread { return slices.Concat(f.issues, f.pulls) }
	h("GET /repos/{o}/{r}/issues", func(w http.ResponseWriter, r *http.Request) {
		since, _ := time.Parse(time.RFC3339, r.URL.Query().Get("since"))
		var out []any
		for _, t := range all() {
			if !t.updated.Before(since) && (r.URL.Query().Get("state") == "all" || t.state == "open") {
				out = append(out, f.hubIssue(t))
			}
		}
		f.page(w, r, out)
	})
	h("GET /repos/{o}/{r}/issues/{n}", func(w http.ResponseWriter, r *http.Request) {
		if t := f.find(all(), r.PathValue("n")); t != nil {
			say(w, 200, f.hubIssue(t))
			return
		}
		lost(w)
	})
	h("PATCH /repos/{o}/{r}/issues/{n}", func(w http.ResponseWriter, r *http.Request) {
		t, in := f.find(all(), r.PathValue("n")), decode(w, r)
		switch v, ok := in["content_version"].(float64); {
		case t == nil:
			lost(w)
		case ok && int(v) != t.version:
			say(w, 409, map[string]any{"message": "changed meanwhile"})
		default:
			t.body = text(in, "body")
			t.version++
			say(w, map[string]int{"gitea": 201, "github": 200}[f.provider], f.hubIssue(t))
		}
	})
	h("GET /repos/{o}/{r}/issues/{n}/comments", func(w http.ResponseWriter, r *http.Request) {
		t := f.find(all(), r.PathValue("n"))
		if t == nil {
			lost(w)
			return
		}
		since, _ := time.Parse(time.RFC3339, r.URL.Query().Get("since"))
		out := []any{}
		for _, m := range t.comments {
			if !m.updated.Before(since) {
				out = append(out, f.hubComment(m))
			}
		}
		if f.provider == "gitea" { // which has no pages here
			w.Header().Set("X-Total-Count", fmt.Sprint(len(out)))
			say(w, 200, out)
			return
		}
		f.page(w, r, out)
	})
	// Gitea's timeline has all events, and pages whose entries some may not see.
	h("GET /repos/{o}/{r}/issues/{n}/timeline", func(w http.ResponseWriter, r *http.Request) {
		t := f.find(all(), r.PathValue("n"))
		if t == nil || f.provider != "gitea" {
			lost(w)
			return
		}
		if f.timeline != nil {
			say(w, 200, f.timeline)
			return
		}
		q := r.URL.Query()
		since, _ := time.Parse(time.RFC3339, q.Get("since"))
		page, _ := strconv.Atoi(q.Get("page"))
		limit, _ := strconv.Atoi(q.Get("limit"))
		out := []any{}
		for i, m := range t.timeline(since) {
			if i/limit == page-1 && m != nil {
				e := f.hubComment(*m)
				e["type"] = map[bool]string{true: "comment", false: "label"}[m.id < 1_000_000]
				out = append(out, e)
			}
		}
		w.Header().Set("X-Total-Count", fmt.Sprint(len(out)))
		say(w, 200, out)
	})
	h("POST /repos/{o}/{r}/issues/{n}/comments", func(w http.ResponseWriter, r *http.Request) {
		t, in := f.find(all(), r.PathValue("n")), decode(w, r)
		if t == nil {
			lost(w)
			return
		}
		m := fakeComment{f.id(), me, text(in, "body"), fakeTime.Add(3 * time.Hour)}
		t.comments = append(t.comments, m)
		say(w, 201, f.hubComment(m))
	})
}

func (f *fake) hubPulls(h handle, lost func(http.ResponseWriter)) {
	h("GET /repos/{o}/{r}/pulls", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		out := []any{}
		for _, t := range f.pulls {
			if q.Get("state") == "open" && t.state != "open" || f.provider == "github" && q.Has("head") && (q.Get("head") != "org:"+t.head || t.fork) || q.Has("base") && q.Get("base") != t.base {
				continue
			}
			out = append(out, f.hubPull(t, true))
		}
		f.page(w, r, out)
	})
	h("GET /repos/{o}/{r}/pulls/{n}", func(w http.ResponseWriter, r *http.Request) {
		if t := f.find(f.pulls, r.PathValue("n")); t != nil {
			say(w, 200, f.hubPull(t, false))
			return
		}
		lost(w)
	})
	h("POST /repos/{o}/{r}/pulls", func(w http.ResponseWriter, r *http.Request) {
		in := decode(w, r)
		base, head := text(in, "base"), text(in, "head")
		switch {
		case base == "" || head == "":
			say(w, 422, map[string]any{"message": "Validation Failed"})
		case f.findPull(base, head) != nil:
			say(w, map[string]int{"gitea": 409, "github": 422}[f.provider], map[string]any{"message": "Validation Failed", "errors": []any{map[string]any{"message": "A pull request already exists for org:" + head}}})
		default:
			say(w, 201, f.hubPull(f.open(base, head, text(in, "title"), text(in, "body")), false))
		}
	})
	words := map[string]map[string]string{
		"gitea":  {"approved": "APPROVED", "changes": "REQUEST_CHANGES", "comment": "COMMENT", "pending": "PENDING", "asked": "REQUEST_REVIEW"},
		"github": {"approved": "APPROVED", "changes": "CHANGES_REQUESTED", "comment": "COMMENTED", "pending": "PENDING", "dismissed": "DISMISSED"},
	}[f.provider]
	h("GET /repos/{o}/{r}/pulls/{n}/reviews", func(w http.ResponseWriter, r *http.Request) {
		t := f.find(f.pulls, r.PathValue("n"))
		if t == nil {
			lost(w)
			return
		}
		out := []any{}
		for _, v := range t.reviews {
			m := map[string]any{"id": v.id, "user": f.hubUser(v.by), "state": words[v.state], "body": v.body, "commit_id": headSHA, "submitted_at": when(fakeTime)}
			if f.provider == "gitea" {
				m["stale"], m["official"], m["dismissed"], m["comments_count"] = v.stale, !v.unofficial, false, len(v.lines)
			}
			out = append(out, m)
		}
		f.page(w, r, out)
	})
	line := func(v fakeReview, l fakeLine) map[string]any {
		m := map[string]any{"id": l.id, "pull_request_review_id": v.id, "user": f.hubUser(l.by), "body": l.body, "path": l.path, "commit_id": headSHA}
		if f.provider == "github" {
			m["line"], m["side"] = l.line, map[bool]string{true: "LEFT", false: "RIGHT"}[l.old]
		} else {
			m["position"], m["original_position"] = l.line, 0
			if l.old {
				m["position"], m["original_position"] = 0, l.line
			}
		}
		return m
	}
	h("GET /repos/{o}/{r}/pulls/{n}/reviews/{id}/comments", func(w http.ResponseWriter, r *http.Request) {
		out := []any{}
		for _, v := range f.find(f.pulls, r.PathValue("n")).reviews {
			for _, l := range v.lines {
				if fmt.Sprint(v.id) == r.PathValue("id") {
					out = append(out, line(v, l))
				}
			}
		}
		say(w, 200, out)
	})
	h("GET /repos/{o}/{r}/pulls/{n}/comments", func(w http.ResponseWriter, r *http.Request) {
		out := []any{}
		for _, v := range f.find(f.pulls, r.PathValue("n")).reviews {
			for _, l := range v.lines {
				out = append(out, line(v, l))
			}
		}
		f.page(w, r, out)
	})
}

// The dialect of GitLab.

func labUserOf(login string) any {
	if login == "" {
		return nil
	}
	return map[string]any{"id": 50 + len(login) + int(login[0]), "username": login}
}

func labOf(t *fakeThread) map[string]any {
	var users []any
	for _, a := range t.assigned {
		users = append(users, labUserOf(a))
	}
	state := t.state
	if state == "open" {
		state = "opened"
	}
	m := map[string]any{
		"iid": t.number, "title": t.title, "description": t.body, "state": state, "author": labUserOf("ada"), "assignees": users, "labels": t.labels,
		"updated_at": when(t.updated), "web_url": "https://forge.example/x",
	}
	if t.body == "" {
		m["description"] = nil
	}
	if t.pull {
		m["target_branch"], m["source_branch"], m["sha"], m["target_project_id"], m["source_project_id"] = t.base, t.head, headSHA, 1, 1
		m["merge_commit_sha"], m["squash_commit_sha"] = nil, nil
		if t.state == "merged" {
			m["merge_commit_sha"] = oldSHA
		}
		if t.fork {
			m["source_project_id"] = 2
		}
		m["has_conflicts"], m["detailed_merge_status"], m["merge_status"] = false, "mergeable", "can_be_merged"
		maps.Copy(m, t.mergeable)
	}
	return m
}

func labNoteOf(m fakeComment) map[string]any {
	return map[string]any{"id": m.id, "type": nil, "author": labUserOf(m.by), "body": m.body, "system": false, "created_at": when(m.updated), "updated_at": when(m.updated)}
}

func (f *fake) labRoutes() {
	lost := func(w http.ResponseWriter) { say(w, 404, map[string]any{"message": "404 Not Found"}) }
	h := func(pattern string, g func(w http.ResponseWriter, r *http.Request)) {
		method, path, _ := strings.Cut(pattern, " ")
		f.mux.HandleFunc(method+" "+f.api+path, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(path, "/projects/") && r.PathValue("p") != repo {
				lost(w)
				return
			}
			g(w, r)
		})
	}
	f.labThreads(h, lost, "issues", &f.issues)
	f.labThreads(h, lost, "merge_requests", &f.pulls)
	f.labPulls(h, lost)
	f.keyRoutes(h, "/projects/{p}/deploy_keys")
	h("GET /user", func(w http.ResponseWriter, _ *http.Request) { say(w, 200, labUserOf(me)) })
	h("GET /personal_access_tokens/self", func(w http.ResponseWriter, _ *http.Request) {
		say(w, 200, map[string]any{"scopes": strings.Split(f.scopes, ","), "expires_at": "2026-12-24"})
	})
	h("GET /users", func(w http.ResponseWriter, r *http.Request) {
		out := []any{}
		if u := r.URL.Query().Get("username"); f.users[u] != "" {
			out = append(out, labUserOf(u))
		}
		say(w, 200, out)
	})
	member := func(ok func(login string) int) func(w http.ResponseWriter, r *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			for u := range f.users {
				if fmt.Sprint(labUserOf(u).(map[string]any)["id"]) == r.PathValue("u") && ok(u) > 0 {
					say(w, 200, map[string]any{"id": 1, "username": u, "access_level": ok(u), "state": "active"})
					return
				}
			}
			lost(w)
		}
	}
	h("GET /groups/{g}", func(w http.ResponseWriter, _ *http.Request) { say(w, 200, map[string]any{"id": 1}) })
	h("GET /groups/{g}/members/all/{u}", member(func(u string) int {
		if slices.Contains(f.members, u) {
			return 10
		}
		return 0
	}))
	h("GET /projects/{p}/members/all/{u}", member(func(u string) int { return map[string]int{"read": 20, "write": 30, "admin": 40}[f.users[u]] }))
	h("GET /projects/{p}/repository/commits/{sha}", func(w http.ResponseWriter, r *http.Request) {
		sha, parents := r.PathValue("sha"), []any{}
		switch sha {
		case headSHA:
			parents = append(parents, oldSHA)
		case oldSHA:
		default:
			lost(w)
			return
		}
		say(w, 200, map[string]any{"id": sha, "parent_ids": parents})
	})
	h("GET /projects/{p}", func(w http.ResponseWriter, _ *http.Request) {
		say(w, 200, map[string]any{"id": 1, "path_with_namespace": "Org/App", "default_branch": "main", "visibility": "private", "archived": false, "web_url": "https://forge.example/org/app", "only_allow_merge_if_pipeline_succeeds": true, "permissions": map[string]any{"project_access": map[string]any{"access_level": 30}, "group_access": nil}})
	})
	h("GET /projects/{p}/approvals", func(w http.ResponseWriter, _ *http.Request) {
		if !f.admin {
			lost(w)
			return
		}
		say(w, 200, map[string]any{"approvals_before_merge": 2, "reset_approvals_on_push": true})
	})
	h("GET /projects/{p}/repository/branches/{b}", func(w http.ResponseWriter, _ *http.Request) { say(w, 200, f.branch) })
	h("GET /projects/{p}/repository/commits/{sha}/statuses", func(w http.ResponseWriter, _ *http.Request) {
		out := []any{}
		for _, s := range f.statuses {
			out = append(out, map[string]any{"id": 1, "name": s["name"], "status": s["state"], "description": s["description"], "target_url": s["target_url"]})
		}
		say(w, 200, out)
	})
	h("POST /projects/{p}/statuses/{sha}", func(w http.ResponseWriter, r *http.Request) {
		in := decode(w, r)
		for _, s := range f.statuses {
			if s["state"] == in["state"] && s["name"] == in["name"] {
				say(w, 400, map[string]any{"message": "Cannot transition status via :run from :running"})
				return
			}
		}
		f.statuses = append(f.statuses, in)
		say(w, 201, map[string]any{"id": f.id(), "status": in["state"], "name": in["name"]})
	})
}

func (f *fake) labThreads(h handle, lost func(http.ResponseWriter), kind string, threads *[]*fakeThread) {
	h("GET /projects/{p}/"+kind, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		since, _ := time.Parse(time.RFC3339, q.Get("updated_after"))
		out := []any{}
		for _, t := range *threads {
			if t.updated.Before(since) || q.Get("state") == "opened" && t.state != "open" || q.Has("source_branch") && q.Get("source_branch") != t.head || q.Has("target_branch") && q.Get("target_branch") != t.base {
				continue
			}
			out = append(out, labOf(t))
		}
		f.page(w, r, out)
	})
	h("GET /projects/{p}/"+kind+"/{n}", func(w http.ResponseWriter, r *http.Request) {
		if t := f.find(*threads, r.PathValue("n")); t != nil {
			say(w, 200, labOf(t))
			return
		}
		lost(w)
	})
	h("PUT /projects/{p}/"+kind+"/{n}", func(w http.ResponseWriter, r *http.Request) {
		t, in := f.find(*threads, r.PathValue("n")), decode(w, r)
		if t == nil {
			lost(w)
			return
		}
		t.body = text(in, "description")
		t.version++
		say(w, 200, labOf(t))
	})
	h("GET /projects/{p}/"+kind+"/{n}/notes", func(w http.ResponseWriter, r *http.Request) {
		t := f.find(*threads, r.PathValue("n"))
		if t == nil {
			lost(w)
			return
		}
		out := []any{map[string]any{"id": 5, "type": nil, "system": true, "body": "assigned to @ada", "author": labUserOf("ada"), "created_at": when(fakeTime), "updated_at": when(fakeTime)}}
		for _, m := range t.comments {
			out = append(out, labNoteOf(m))
		}
		for _, v := range t.reviews {
			for _, l := range v.lines {
				pos := map[string]any{"head_sha": headSHA, "old_path": l.path, "new_path": l.path, "old_line": nil, "new_line": l.line}
				if l.old {
					pos["old_line"], pos["new_line"] = l.line, nil
				}
				out = append(out, map[string]any{"id": l.id, "type": "DiffNote", "system": false, "body": l.body, "author": labUserOf(l.by), "created_at": when(fakeTime), "updated_at": when(fakeTime), "position": pos})
			}
		}
		f.page(w, r, out)
	})
	h("POST /projects/{p}/"+kind+"/{n}/notes", func(w http.ResponseWriter, r *http.Request) {
		t, in := f.find(*threads, r.PathValue("n")), decode(w, r)
		if t == nil {
			lost(w)
			return
		}
		m := fakeComment{f.id(), me, text(in, "body"), fakeTime.Add(3 * time.Hour)}
		t.comments = append(t.comments, m)
		say(w, 201, labNoteOf(m))
	})
}

func (f *fake) labPulls(h handle, lost func(http.ResponseWriter)) {
	h("POST /projects/{p}/merge_requests", func(w http.ResponseWriter, r *http.Request) {
		in := decode(w, r)
		base, head := text(in, "target_branch"), text(in, "source_branch")
		if t := f.findPull(base, head); t != nil {
			say(w, 409, map[string]any{"message": []any{fmt.Sprintf("Another open merge request already exists for this source branch: !%d", t.number)}})
			return
		}
		say(w, 201, labOf(f.open(base, head, text(in, "title"), text(in, "description"))))
	})
	h("GET /projects/{p}/merge_requests/{n}/reviewers", func(w http.ResponseWriter, r *http.Request) {
		t := f.find(f.pulls, r.PathValue("n"))
		if t == nil {
			lost(w)
			return
		}
		out := []any{map[string]any{"user": labUserOf("late"), "state": "unreviewed", "created_at": when(fakeTime)}}
		for _, v := range t.reviews {
			if v.state == "changes" {
				out = append(out, map[string]any{"user": labUserOf(v.by), "state": "requested_changes", "created_at": when(fakeTime)})
			}
		}
		say(w, 200, out)
	})
	h("GET /projects/{p}/merge_requests/{n}/approvals", func(w http.ResponseWriter, r *http.Request) {
		out := []any{}
		for _, v := range f.find(f.pulls, r.PathValue("n")).reviews {
			if v.state == "approved" {
				out = append(out, map[string]any{"user": labUserOf(v.by), "approved_at": when(fakeTime)})
			}
		}
		say(w, 200, map[string]any{"approved_by": out})
	})
}
