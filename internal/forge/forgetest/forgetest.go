// Package forgetest is a forge for tests, on loopback: the part of Gitea's API that leads an
// issue to a merged pull request, in memory. What it can't show, package giteatest does with
// a real one. Start reading at [New].
package forgetest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/secret"
)

// The robot's account, and its token.
const (
	Robot = "robot"
	Token = "forge-token-8Zq1xkLmP04wT"
)

// Server is a forge. Its methods and those of its repositories may be called concurrently.
type Server struct {
	API string

	t      testing.TB
	mu     sync.Mutex
	clock  time.Time
	next   int64
	repos  map[string]*Repo // by owner/name
	moved  map[string]string
	users  map[string]string // access, by login
	bots   map[string]bool
	member map[string]bool
	spoil  func(w http.ResponseWriter, r *http.Request) bool
	calls  []string
}

// Repo is a repository.
type Repo struct {
	s        *Server
	id       int64
	name     string
	threads  map[int]*thread
	statuses []Status
	branches map[string]string // heads, by name
	pushes   []Push
}

// Push is a commit that a branch was moved to.
type Push struct{ Branch, Commit string }

// Status is a commit's.
type Status struct{ Commit, State, Context, Description string }

// Comment is one on an issue or a pull request.
type Comment struct {
	ID       int64
	By, Body string
	At       time.Time
}

// Line is a comment on a line of a change.
type Line struct {
	Path, Body string
	Line       int
}

// Pull is a pull request.
type Pull struct {
	Number            int
	Title, Body, Head string
	Open, Merged      bool
}

type thread struct {
	number           int
	pull             bool
	title, body, by  string
	open, merged     bool
	labels, assigned []string
	base, head       string
	merge            string
	version          int
	updated          time.Time
	comments         []Comment
	reviews          []review
}

type review struct {
	id              int64
	by, state, body string
	at              time.Time
	lines           []Line
	first           int64 // the id of the first line
}

// New returns a forge that ends with the test. ada administers, bob may write, eve may read,
// and ada and the robot are members of every organisation.
func New(t testing.TB) *Server {
	s := &Server{
		t: t, clock: time.Now().UTC().Add(-time.Hour).Truncate(time.Second), next: 100, repos: map[string]*Repo{}, moved: map[string]string{},
		users: map[string]string{Robot: "write", "ada": "admin", "bob": "write", "eve": "read", "helper-bot": "write"}, bots: map[string]bool{}, member: map[string]bool{"ada": true, Robot: true},
	}
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	s.API = srv.URL + "/api/v1"
	return s
}

// Client returns a client with the robot's token.
func (s *Server) Client(timeout time.Duration) *forge.Client {
	c, err := forge.Open(forge.Options{Provider: "gitea", API: s.API, Token: secret.NewString(Token), Login: Robot, Timeout: timeout})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

// Spoil lets f answer in the forge's place; it returns true if it did. nil ends that.
func (s *Server) Spoil(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spoil = f
}

// Calls returns the requests so far, as method and path.
func (s *Server) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Access sets what a user may do: read, write, admin, or nothing.
func (s *Server) Access(login, access string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users[login] = access
}

// Member sets whether a user is a member.
func (s *Server) Member(login string, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.member[login] = is
}

// Repo makes a repository, such as org/app.
func (s *Server) Repo(name string) *Repo {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &Repo{s: s, id: s.id(), name: name, threads: map[int]*thread{}, branches: map[string]string{}}
	s.repos[name] = r
	return r
}

// Rename gives a repository another name. The old one redirects until another takes it.
func (s *Server) Rename(r *Repo, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.repos, r.name)
	s.moved[r.name] = name
	s.repos[name], r.name = r, name
}

func (s *Server) id() int64 { s.next++; return s.next }

func (s *Server) now() time.Time {
	s.clock = s.clock.Add(time.Second)
	return s.clock
}

func (r *Repo) do(n int, f func(t *thread)) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	t := r.threads[n]
	if t == nil {
		r.s.t.Errorf("forgetest: %s has no thread %d", r.name, n)
		return
	}
	f(t)
	t.updated = r.s.now()
}

// Issue opens an issue.
func (r *Repo) Issue(by, title, body string, labels, assigned []string) int {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	t := &thread{number: len(r.threads) + 1, title: title, body: body, by: by, open: true, labels: labels, assigned: assigned, updated: r.s.now()}
	r.threads[t.number] = t
	return t.number
}

// Comment writes a comment, and returns its id.
func (r *Repo) Comment(n int, by, body string) (id int64) {
	r.do(n, func(t *thread) {
		id = r.s.id()
		t.comments = append(t.comments, Comment{id, by, body, r.s.now()})
	})
	return id
}

// Edit changes a comment.
func (r *Repo) Edit(n int, id int64, body string) {
	r.do(n, func(t *thread) {
		for i := range t.comments {
			if t.comments[i].ID == id {
				t.comments[i].Body, t.comments[i].At = body, r.s.now()
			}
		}
	})
}

// Review submits a review: APPROVED, REQUEST_CHANGES or COMMENT.
func (r *Repo) Review(n int, by, state, body string, lines ...Line) {
	r.do(n, func(t *thread) {
		v := review{id: r.s.id(), by: by, state: state, body: body, at: r.s.now(), lines: lines, first: r.s.next + 1}
		r.s.next += int64(len(lines))
		t.reviews = append(t.reviews, v)
	})
}

// Labels sets the labels.
func (r *Repo) Labels(n int, labels ...string) { r.do(n, func(t *thread) { t.labels = labels }) }

// Assign sets the assignees.
func (r *Repo) Assign(n int, logins ...string) { r.do(n, func(t *thread) { t.assigned = logins }) }

// SetOpen closes or opens a thread.
func (r *Repo) SetOpen(n int, open bool) { r.do(n, func(t *thread) { t.open = open }) }

// Push moves a branch. The request POST /repos/OWNER/NAME/pushes does the same.
func (r *Repo) Push(branch, commit string) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	r.push(branch, commit)
}

func (r *Repo) push(branch, commit string) {
	if r.branches[branch] != commit {
		r.pushes = append(r.pushes, Push{branch, commit})
	}
	r.branches[branch] = commit
}

// Pushes returns what branches were moved to, the oldest first. Moving one to where it is
// already is none.
func (r *Repo) Pushes() []Push {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return slices.Clone(r.pushes)
}

// Head returns the head of a branch.
func (r *Repo) Head(branch string) string {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return r.branches[branch]
}

// Merge merges a pull request, and closes the issues that it says.
func (r *Repo) Merge(n int, sha string) {
	var body string
	r.do(n, func(t *thread) { t.open, t.merged, t.merge, body = false, true, sha, t.body })
	for f := range strings.FieldsSeq(body) {
		if m, err := strconv.Atoi(strings.TrimPrefix(f, "#")); err == nil && strings.HasPrefix(f, "#") {
			r.do(m, func(t *thread) { t.open = false })
		}
	}
}

// Comments returns the comments of a thread.
func (r *Repo) Comments(n int) (out []Comment) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return slices.Clone(r.threads[n].comments)
}

// Pulls returns the pull requests, the oldest first.
func (r *Repo) Pulls() (out []Pull) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	for n := 1; n <= len(r.threads); n++ {
		if t := r.threads[n]; t.pull {
			out = append(out, Pull{t.number, t.title, t.body, t.head, t.open, t.merged})
		}
	}
	return out
}

// Statuses returns the statuses of commits, the oldest first.
func (r *Repo) Statuses() []Status {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return slices.Clone(r.statuses)
}

// Hook returns the headers and body of a delivery about a thread of a repository.
func Hook(event, action, repo string, number int, pull bool, sender, delivery, key string) (http.Header, []byte) {
	issue := map[string]any{"number": number}
	if pull {
		issue["pull_request"] = map[string]any{}
	}
	v := map[string]any{"action": action, "repository": map[string]any{"full_name": repo}, "sender": map[string]any{"login": sender}}
	if event == "push" {
		v["after"] = strings.Repeat("a", 40)
	} else {
		v["issue"] = issue
	}
	body, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	m := hmac.New(sha256.New, []byte(key))
	m.Write(body)
	h := http.Header{}
	h.Set("Content-Type", "application/json")
	h.Set("X-Gitea-Event", event)
	h.Set("X-Gitea-Delivery", delivery)
	h.Set("X-Gitea-Signature", hex.EncodeToString(m.Sum(nil)))
	return h, body
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	s.mu.Lock()
	s.calls = append(s.calls, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/api/v1"))
	spoil := s.spoil
	s.mu.Unlock()
	if spoil != nil && spoil(w, r) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Header.Get("Authorization") != "token "+Token {
		say(w, 401, map[string]any{"message": "bad token"})
		return
	}
	s.route(w, r)
}

func say(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if v != nil {
		_ = json.NewEncoder(w).Encode(v) // the client has gone
	}
}

func lost(w http.ResponseWriter) { say(w, 404, map[string]any{"message": "not found"}) }

func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	p := strings.Split(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/")
	switch {
	case p[0] == "user" && len(p) == 1:
		say(w, 200, s.user(Robot))
	case p[0] == "orgs" && len(p) == 4 && p[2] == "members" && s.member[p[3]]:
		w.WriteHeader(204)
	case p[0] == "repos" && len(p) > 2:
		name := p[1] + "/" + p[2]
		repo := s.repos[name]
		if to := s.moved[name]; repo == nil && to != "" {
			http.Redirect(w, r, "/api/v1/repos/"+to+"/"+strings.Join(p[3:], "/"), http.StatusMovedPermanently)
			return
		}
		if repo != nil {
			repo.route(w, r, p[3:])
			return
		}
		lost(w)
	default:
		lost(w)
	}
}

func (r *Repo) route(w http.ResponseWriter, q *http.Request, p []string) {
	var in map[string]any
	if q.Method != http.MethodGet && json.NewDecoder(q.Body).Decode(&in) != nil {
		say(w, 400, map[string]any{"message": "no JSON"})
		return
	}
	text := func(key string) string { s, _ := in[key].(string); return s }
	var t *thread
	if len(p) > 1 {
		n, _ := strconv.Atoi(p[1])
		t = r.threads[n]
	}
	what := q.Method + " " + strings.Join(slices.Concat(p[:min(len(p), 1)], p[min(len(p), 2):]), "/")
	switch {
	case len(p) == 0:
		say(w, 200, map[string]any{"id": r.id, "full_name": r.name, "name": r.name[strings.Index(r.name, "/")+1:], "default_branch": "main"})
	case p[0] == "collaborators" && len(p) == 3:
		if a := r.s.users[p[1]]; a != "" {
			say(w, 200, map[string]any{"permission": a})
			return
		}
		lost(w)
	case what == "GET issues" && len(p) == 1:
		since, _ := time.Parse(time.RFC3339, q.URL.Query().Get("since"))
		out := []any{}
		for n := 1; n <= len(r.threads); n++ {
			if !r.threads[n].updated.Before(since) {
				out = append(out, r.issue(r.threads[n]))
			}
		}
		page(w, q, out)
	case what == "GET pulls" && len(p) == 1:
		out := []any{}
		for n := 1; n <= len(r.threads); n++ {
			if x := r.threads[n]; x.pull && x.open && x.base == q.URL.Query().Get("base_branch") {
				out = append(out, r.pullOf(x))
			}
		}
		page(w, q, out)
	case what == "POST pulls":
		r.open(w, text("base"), text("head"), text("title"), text("body"))
	case what == "POST pushes":
		r.push(text("branch"), text("commit"))
		w.WriteHeader(204)
	case what == "POST statuses":
		r.statuses = append(r.statuses, Status{p[1], text("state"), text("context"), text("description")})
		say(w, 201, map[string]any{"id": r.s.id(), "status": text("state"), "context": text("context")})
	case t == nil:
		lost(w)
	default:
		r.thread(w, q, what, t, in, text)
	}
}

// thread answers a request about a thread.
func (r *Repo) thread(w http.ResponseWriter, q *http.Request, what string, t *thread, in map[string]any, text func(string) string) {
	switch {
	case what == "GET issues":
		say(w, 200, r.issue(t))
	case what == "PATCH issues":
		if v, ok := in["content_version"].(float64); ok && int(v) != t.version {
			say(w, 409, map[string]any{"message": "changed meanwhile"})
			return
		}
		t.body, t.version, t.updated = text("body"), t.version+1, r.s.now()
		say(w, 201, r.issue(t))
	case what == "GET issues/comments":
		since, _ := time.Parse(time.RFC3339, q.URL.Query().Get("since"))
		out := []any{}
		for _, c := range t.comments {
			if !c.At.Before(since) {
				out = append(out, r.s.comment(c))
			}
		}
		w.Header().Set("X-Total-Count", strconv.Itoa(len(out)))
		say(w, 200, out)
	case what == "POST issues/comments":
		c := Comment{r.s.id(), Robot, text("body"), r.s.now()}
		t.comments, t.updated = append(t.comments, c), c.At
		say(w, 201, r.s.comment(c))
	case what == "GET pulls" && t.pull:
		say(w, 200, r.pullOf(t))
	case what == "GET pulls/reviews":
		out := []any{}
		for _, v := range t.reviews {
			out = append(out, map[string]any{
				"id": v.id, "user": r.s.user(v.by), "state": v.state, "body": v.body, "commit_id": r.branches[t.head], "stale": false, "official": true,
				"dismissed": false, "submitted_at": v.at.Format(time.RFC3339), "comments_count": len(v.lines),
			})
		}
		page(w, q, out)
	case strings.HasPrefix(what, "GET pulls/reviews/"):
		out := []any{}
		for _, v := range t.reviews {
			for i, l := range v.lines {
				if what == fmt.Sprintf("GET pulls/reviews/%d/comments", v.id) {
					out = append(out, map[string]any{"id": v.first + int64(i), "user": r.s.user(v.by), "body": l.Body, "path": l.Path, "position": l.Line, "original_position": 0, "commit_id": r.branches[t.head]})
				}
			}
		}
		say(w, 200, out)
	default:
		lost(w)
	}
}

func (r *Repo) open(w http.ResponseWriter, base, head, title, body string) {
	if r.branches[head] == "" {
		say(w, 404, map[string]any{"message": "there is no such branch"})
		return
	}
	for _, t := range r.threads {
		if t.pull && t.open && t.base == base && t.head == head {
			say(w, 409, map[string]any{"message": "it is there already"})
			return
		}
	}
	t := &thread{number: len(r.threads) + 1, pull: true, title: title, body: body, by: Robot, open: true, base: base, head: head, updated: r.s.now()}
	r.threads[t.number] = t
	say(w, 201, r.pullOf(t))
}

func page(w http.ResponseWriter, q *http.Request, all []any) {
	size, _ := strconv.Atoi(q.URL.Query().Get("limit"))
	n, _ := strconv.Atoi(q.URL.Query().Get("page"))
	size, n = max(size, 1), max(n, 1)
	w.Header().Set("X-Total-Count", strconv.Itoa(len(all)))
	say(w, 200, append([]any{}, all[min((n-1)*size, len(all)):min(n*size, len(all))]...))
}

func (s *Server) user(login string) any {
	if login == "" {
		return nil
	}
	kind := "User"
	if s.bots[login] || strings.HasSuffix(login, "-bot") {
		kind = "Bot"
	}
	return map[string]any{"id": 1, "login": login, "type": kind}
}

func (s *Server) comment(c Comment) any {
	return map[string]any{"id": c.ID, "user": s.user(c.By), "body": c.Body, "created_at": c.At.Format(time.RFC3339), "updated_at": c.At.Format(time.RFC3339)}
}

func (r *Repo) issue(t *thread) map[string]any {
	state, kind := "closed", "issues"
	if t.open {
		state = "open"
	}
	var users any
	labels := []any{}
	for _, a := range t.assigned {
		list, _ := users.([]any)
		users = append(list, r.s.user(a))
	}
	for i, l := range t.labels {
		labels = append(labels, map[string]any{"id": i + 1, "name": l})
	}
	m := map[string]any{
		"number": t.number, "title": t.title, "body": t.body, "state": state, "user": r.s.user(t.by), "assignees": users, "labels": labels,
		"updated_at": t.updated.Format(time.RFC3339), "content_version": t.version, "pull_request": nil,
	}
	if t.pull {
		kind = "pulls"
		m["pull_request"] = map[string]any{"merged": t.merged}
	}
	m["html_url"] = fmt.Sprintf("http://forge.example/%s/%s/%d", r.name, kind, t.number)
	return m
}

func (r *Repo) pullOf(t *thread) map[string]any {
	m := r.issue(t)
	delete(m, "pull_request")
	delete(m, "content_version")
	m["base"] = map[string]any{"ref": t.base, "sha": strings.Repeat("0", 40), "repo": map[string]any{"id": r.id}}
	m["head"] = map[string]any{"ref": t.head, "sha": r.branches[t.head], "repo": map[string]any{"id": r.id}}
	m["merged"], m["merged_at"], m["merge_commit_sha"] = t.merged, nil, strings.Repeat("9", 40)
	if t.merged {
		m["merged_at"], m["merge_commit_sha"] = t.updated.Format(time.RFC3339), t.merge
	}
	return m
}
