package web

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/safetext"
)

// This file serves the pages of issues. They only read. A receipt has a script and a style
// of its own, which its policy names by their hashes. It is therefore shown in a sandbox: its
// origin is none, and it can neither read the other pages nor send a form.

// Issues reads the issues that carboy works on, for the page. Several goroutines call it.
// Texts and addresses may be anybody's: the page bounds and escapes them.
type Issues interface {
	// List returns all issues, those that live first.
	List(context.Context) (IssueList, error)
	// Issue returns an issue with its turns. The error wraps [fs.ErrNotExist] if there is
	// none of this name.
	Issue(ctx context.Context, name string) (Issue, error)
	// Receipt returns the receipt of a run. The error wraps [fs.ErrNotExist] if it is gone.
	Receipt(ctx context.Context, run string) (Receipt, error)
}

// An IssueList is what is known of all issues.
type IssueList struct {
	Issues  []Issue
	Failing []string // calls that fail, and are of no single issue
}

// An Issue is an issue on the forge, as far as carboy is with it.
type Issue struct {
	Name    string // such as owner/repo#7
	Title   string
	URL     string
	Agent   string
	State   string
	Ended   bool // its bottle is gone
	Turn    int  // 0 before the first
	Pull    int64
	PullURL string
	Waits   string // what it waits for, in words
	Failing string // what fails again and again
	Outcome string // of the newest turn that ended
	Verdict string
	Tokens  int64
	// The rest is for the page of the issue alone. Turns has the oldest first.
	Bottle, Branch, Provenance string
	Warnings                   []string
	Turns                      []Turn
}

// A Turn is one piece of work on an issue.
type Turn struct {
	Number                                       int
	For                                          []string // whose prompts it carries out
	Began, Ended                                 time.Time
	Outcome, Why, Summary, Commit, Verdict, Work string
	Tokens                                       int64
	Operations, Refused                          int
	Runs                                         []string // ids; each has a receipt
}

// A Receipt is a page of HTML that loads nothing.
type Receipt struct {
	HTML []byte
	// Policy is its content security policy, which begins with default-src 'none'.
	Policy string
}

const (
	// issuesFor is the time for which a list of issues is used again, and the interval at
	// which an open page asks for a newer one.
	issuesFor = 2 * time.Second
	// readIssues bounds a read of the issues. Proposals are shown without them then.
	readIssues = 3 * time.Second
	// maxName bounds the name of an issue in an address, in bytes.
	maxName = 1000
	// maxTurns and maxRuns bound what is listed of an issue: the newest turns, the first runs.
	maxTurns, maxRuns = 100, 50
	// maxWarnings bounds the warnings, the prompts of a turn and the failing calls.
	maxWarnings = 20
	// maxReceipt bounds a receipt's page, in bytes.
	maxReceipt = 64 << 20
)

// issueReader keeps the list of issues for a short time.
type issueReader struct {
	from  Issues        // may be nil
	every time.Duration // for how long a list is used

	mu      sync.Mutex
	at      time.Time
	list    IssueList
	failed  string // visible; why the newest read failed
	version string
}

// read returns the list, its version, and why it may be old.
func (i *issueReader) read(ctx context.Context) (list IssueList, version, failed string) {
	if i.from == nil {
		return IssueList{}, "", ""
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if time.Since(i.at) < i.every {
		return i.list, i.version, i.failed
	}
	// Other requests use the result, too, so the end of this one must not spoil it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readIssues)
	defer cancel()
	l, err := i.from.List(ctx)
	i.failed = ""
	if err != nil {
		i.failed = safetext.String(err.Error(), 300)
	} else {
		i.list = l
	}
	i.at, i.version = time.Now(), versionOf(i.list, i.failed)
	return i.list, i.version, i.failed
}

// versionOf returns a text that differs when what is shown of a list differs.
func versionOf(l IssueList, failed string) string {
	h := sha256.New()
	for _, i := range l.Issues {
		fmt.Fprintf(h, "%q\n", showIssue(&session{}, i).texts())
	}
	for _, f := range failing(l) {
		fmt.Fprintf(h, "%q\n", f)
	}
	fmt.Fprintf(h, "%q", failed)
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// failing returns the calls that fail, as the page shows them.
func failing(l IssueList) (out []string) {
	for _, f := range l.Failing[:min(len(l.Failing), maxWarnings)] {
		out = append(out, safetext.String(f, 600))
	}
	return out
}

// link returns the words of the link to the issues, or "" while there is none.
func (i *issueReader) link(ctx context.Context) string {
	l, _, failed := i.read(ctx)
	switch {
	case failed != "":
		return "Issues (can't be read)"
	case len(l.Issues)+len(l.Failing) == 0:
		return ""
	}
	n := 0
	for _, x := range l.Issues {
		if !x.Ended {
			n++
		}
	}
	return "Issues (" + strconv.Itoa(n) + ")"
}

// issuePages serves what is below issues.
func (s *Server) issuePages(w http.ResponseWriter, r *http.Request, in *session, rest string) {
	name, run := r.URL.Query().Get("name"), r.URL.Query().Get("run")
	if len(name) > maxName || len(run) > maxName {
		s.refuse(w, r, http.StatusNotFound, "there is nothing here")
		return
	}
	switch rest {
	case "":
		s.issueList(w, r, in)
	case "/one":
		s.oneIssue(w, r, in, name)
	case "/receipt":
		s.receipt(w, r, name, run)
	case "/events":
		s.stream(w, r, in, max(s.issues.every, time.Millisecond), func() (string, <-chan struct{}) {
			_, version, _ := s.issues.read(r.Context())
			return version, nil
		})
	default:
		s.refuse(w, r, http.StatusNotFound, "there is nothing here")
	}
}

// shownIssues is the data of the template. Its texts are visible.
type shownIssues struct {
	Base, Version, Wrong, Back string
	Failing                    []string
	Count, All, Earlier, Later string
	Rows                       []shownIssue
	One                        *shownIssue
	Turns                      []shownTurn
	Left                       int // turns that are not listed
	Warnings                   []string
	Branch, Bottle, Provenance string
	Verdict, Outcome           string
}

// shownIssue is an issue as the template gets it.
type shownIssue struct {
	Name, Href, Title, Agent, State, Tone, Turn, Waits, Tokens string
	Failing                                                    bool
	Issue, Pull                                                *forgeLink // nil: there is none that can be opened
	IssueText, PullText                                        string     // an address that can't be opened
}

// texts returns what changes with the state of an issue.
func (i shownIssue) texts() []string {
	out := []string{i.Name, i.Title, i.Agent, i.State, i.Tone, i.Turn, i.Waits, i.Tokens, i.IssueText, i.PullText}
	for _, l := range []*forgeLink{i.Issue, i.Pull} {
		if l != nil {
			out = append(out, l.Href, l.Text)
		}
	}
	return out
}

// forgeLink is a link that leaves the page.
type forgeLink struct{ Href, Text, Host string }

type shownTurn struct {
	Number             int
	For                []string
	Began, Ended, Tone string
	Fields             []shownField
	Said, Why          string
	Runs               []shownRun
	Left               int // runs that are not listed
}

type shownField struct{ Name, Value string }

type shownRun struct{ ID, Href string }

// issueList writes the list of the issues.
func (s *Server) issueList(w http.ResponseWriter, r *http.Request, in *session) {
	l, version, failed := s.issues.read(r.Context())
	q := r.URL.Query()
	all := q.Get("all") != ""
	out := shownIssues{Base: in.path, Version: version}
	if failed != "" {
		out.Wrong = "The issues can't be read, so this may be old: " + failed
	}
	out.Failing = failing(l)
	rows := slices.Clone(l.Issues)
	if !all {
		rows = slices.DeleteFunc(rows, func(i Issue) bool { return i.Ended })
		if n := len(l.Issues) - len(rows); n > 0 {
			out.All = strconv.Itoa(n) + " whose bottle is gone"
		}
	}
	address := func(name string) string {
		v := url.Values{}
		if all {
			v.Set("all", "1")
		}
		if name != "" {
			v.Set("from", name)
		}
		return in.path + "issues?" + v.Encode()
	}
	begin := 0
	if from := q.Get("from"); from != "" {
		begin = max(0, slices.IndexFunc(rows, func(i Issue) bool { return i.Name == from }))
	}
	end := min(begin+windowRows, len(rows))
	if begin > 0 {
		out.Earlier = address(rows[max(0, begin-windowRows)].Name)
	}
	if end < len(rows) {
		out.Later = address(rows[end].Name)
	}
	switch {
	case len(rows) == 0:
		out.Count = "none"
	case end-begin < len(rows):
		out.Count = fmt.Sprintf("%d–%d of %d", begin+1, end, len(rows))
	default:
		out.Count = strconv.Itoa(len(rows))
	}
	for _, i := range rows[begin:end] {
		out.Rows = append(out.Rows, showIssue(in, i))
	}
	s.render(w, http.StatusOK, issuesTemplate(), "issues.html", out)
}

// issue returns an issue within the bound of time.
func (s *Server) issue(ctx context.Context, name string) (Issue, error) {
	ctx, cancel := context.WithTimeout(ctx, readIssues)
	defer cancel()
	return s.issues.from.Issue(ctx, name)
}

// oneIssue writes the page of an issue.
func (s *Server) oneIssue(w http.ResponseWriter, r *http.Request, in *session, name string) {
	_, version, _ := s.issues.read(r.Context())
	out := shownIssues{Base: in.path, Version: version, Back: in.path + "issues"}
	i, err := s.issue(r.Context(), name)
	if err != nil {
		status, says := failedRead(err, "There is no such issue, or not any more.")
		out.Wrong = says
		s.render(w, status, issuesTemplate(), "issues.html", out)
		return
	}
	one := showIssue(in, i)
	out.One = &one
	out.Branch, out.Bottle, out.Provenance = safetext.String(i.Branch, 300), safetext.String(i.Bottle, 100), safetext.String(i.Provenance, 100)
	out.Verdict, out.Outcome = safetext.String(i.Verdict, 100), safetext.String(i.Outcome, 100)
	for _, text := range i.Warnings[:min(len(i.Warnings), maxWarnings)] {
		out.Warnings = append(out.Warnings, safetext.String(text, 600))
	}
	for _, t := range slices.Backward(i.Turns) {
		if len(out.Turns) == maxTurns {
			out.Left = len(i.Turns) - maxTurns
			break
		}
		out.Turns = append(out.Turns, showTurn(in, i.Name, t))
	}
	s.render(w, http.StatusOK, issuesTemplate(), "issues.html", out)
}

// failedRead returns the status of a failed read, and what the page says.
func failedRead(err error, missing string) (int, string) {
	if errors.Is(err, fs.ErrNotExist) {
		return http.StatusNotFound, missing
	}
	return http.StatusInternalServerError, safetext.String(err.Error(), 600)
}

func showIssue(in *session, i Issue) shownIssue {
	o := shownIssue{
		Name: safetext.String(i.Name, 200), Href: in.path + "issues/one?" + url.Values{"name": {i.Name}}.Encode(), Title: safetext.String(i.Title, 300), Agent: safetext.String(i.Agent, 60),
		State: safetext.String(i.State, 40), Turn: "–", Waits: safetext.String(i.Waits, 300), Tokens: grouped(i.Tokens),
		Tone: map[string]string{"running": "ok", "waiting": "warn"}[i.State],
	}
	if i.Turn > 0 {
		o.Turn = strconv.Itoa(i.Turn)
	}
	if i.Failing != "" {
		o.Failing, o.Tone, o.Waits = true, "bad", safetext.String(i.Failing, 300)
	}
	o.Issue, o.IssueText = linked(i.URL, "issue")
	o.Pull, o.PullText = linked(i.PullURL, "#"+strconv.FormatInt(i.Pull, 10))
	if i.Pull < 1 && o.Pull != nil {
		o.Pull.Text = "pull request"
	}
	return o
}

func showTurn(in *session, name string, t Turn) shownTurn {
	o := shownTurn{Number: t.Number, Began: stamp(t.Began), Ended: stamp(t.Ended), Said: safetext.Lines(t.Summary, 4000), Why: safetext.String(t.Why, 600)}
	for _, p := range t.For[:min(len(t.For), maxWarnings)] {
		o.For = append(o.For, safetext.String(p, 200))
	}
	if n := len(t.For) - len(o.For); n > 0 {
		o.For = append(o.For, "and "+strconv.Itoa(n)+" more")
	}
	operations := ""
	if t.Operations > 0 {
		operations = strconv.Itoa(t.Operations) + " at the forge, " + strconv.Itoa(t.Refused) + " refused"
	}
	for _, f := range []shownField{{"outcome", t.Outcome}, {"commit", t.Commit}, {"verdict", t.Verdict}, {"work", t.Work}, {"tokens", grouped(t.Tokens)}, {"operations", operations}} {
		if f.Value != "" {
			o.Fields = append(o.Fields, shownField{f.Name, safetext.String(f.Value, 300)})
		}
	}
	for n, run := range t.Runs {
		if n == maxRuns {
			o.Left = len(t.Runs) - n
			break
		}
		o.Runs = append(o.Runs, shownRun{safetext.String(run, 60), in.path + "issues/receipt?" + url.Values{"name": {name}, "run": {run}}.Encode()})
	}
	return o
}

// receipt writes the receipt of a run of an issue. Runs of other work have no address here.
func (s *Server) receipt(w http.ResponseWriter, r *http.Request, name, run string) {
	i, err := s.issue(r.Context(), name)
	if err == nil && !slices.ContainsFunc(i.Turns, func(t Turn) bool { return slices.Contains(t.Runs, run) }) {
		err = fs.ErrNotExist
	}
	var p Receipt
	if err == nil {
		p, err = s.issues.from.Receipt(r.Context(), run)
	}
	switch {
	case err != nil:
		status, says := failedRead(err, "There is no receipt of this run, or not any more.")
		s.lone(w, status, says, "")
		return
	case !strings.HasPrefix(p.Policy, "default-src 'none'; "):
		s.lone(w, http.StatusInternalServerError, "This receipt has no policy that keeps it apart, so it is not shown.", "")
		return
	case len(p.HTML) > maxReceipt:
		s.lone(w, http.StatusInternalServerError, "This receipt is too large for the page: carboy receipt --html "+safetext.String(run, 60)+" writes it.", "")
		return
	}
	h := w.Header()
	h.Set("Content-Security-Policy", p.Policy+"; frame-ancestors 'none'; sandbox allow-scripts")
	// A browser refuses a page in a sandbox that has a group of windows of its own.
	h.Del("Cross-Origin-Opener-Policy")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Content-Type", "text/html; charset=utf-8")
	w.Write(p.HTML)
}

// linked returns a link to an address of the forge, or the address as a text if it is not
// one that a browser may open: http or https, a host in plain ASCII, and nobody's name in
// front of it.
func linked(address, text string) (*forgeLink, string) {
	if address == "" {
		return nil, ""
	}
	u, err := url.Parse(address)
	if err != nil || len(address) > 2000 || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Hostname() == "" || strings.ContainsFunc(u.Host, oddInHost) {
		return nil, safetext.String(address, 200)
	}
	return &forgeLink{Href: u.String(), Text: text, Host: safetext.String(u.Host, 100)}, ""
}

func oddInHost(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(".-_:[]", r))
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// grouped returns n with a comma between its thousands.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
