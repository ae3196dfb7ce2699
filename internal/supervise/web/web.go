// Package web serves a page on which a person answers the proposals of the queue. It
// listens on the loopback address only, and lets in browsers that have an address which
// works once.
//
// Beyond the guarantees of package supervise:
//
//   - Another site cannot answer, read or frame the page. A request must come from the page
//     itself (Sec-Fetch-Site, Origin), with a SameSite=Strict cookie, under the printed name
//     (Host, against names that are made to resolve to this address), and with a token that
//     is bound to the proposal and its digest.
//   - Another user of this machine gets no byte: the kernel tells who has the other
//     end of a connection.
//   - A proposal is text. No part of it becomes an element, an attribute or a script, and
//     page.js is the only script. The same holds for an issue, with issues.js; a link to the
//     forge names its host.
//   - A receipt has its own script, in a sandbox that can't reach the rest.
//   - The size and the slowness of one client's requests are bounded.
//
// It does not protect from other programs of the same user, nor from root.
//
// Start reading at [Server.ServeHTTP], then guard.go.
package web

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/netutil"

	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/supervise"
)

// Queue is the part of supervise.Queue that the page uses. Several goroutines call it.
type Queue interface {
	List(context.Context, supervise.Query) (supervise.Listing, error)
	Find(ctx context.Context, prefix string) (supervise.Entry, error)
	Answer(context.Context, supervise.Reply) (supervise.Answer, error)
	Watch(context.Context) <-chan struct{}
}

// Options configure a [Server].
type Options struct {
	Queue Queue
	// Issues are shown beside the queue. nil means that there are none.
	Issues Issues
	// Port is the port on 127.0.0.1. 0 means any free one.
	Port int
	// Log gets the refused requests, with visible text. nil logs nothing.
	Log *slog.Logger
}

const (
	// maxConns bounds the open connections.
	maxConns = 64
	// maxForm bounds a form, in bytes: a payload as YAML, percent-encoded.
	maxForm = 4 * supervise.MaxPayload
	// windowRows is the number of rows of the list on a page.
	windowRows = 50
	// calm is the least time between two reads of a queue that changes all the time.
	calm = 50 * time.Millisecond
	// beat is the interval of signs of life on an idle stream, and the time that a client
	// may take for a message.
	beat = 20 * time.Second
)

// Server serves the page. [Listen] makes one.
type Server struct {
	queue    Queue
	log      *slog.Logger
	ln       net.Listener
	host     string // 127.0.0.1:port, the only Host that is served
	origin   string
	sessions sessionStore
	issues   issueReader
	stop     chan struct{} // closed when Serve ends

	mu      sync.Mutex
	now     state
	changed chan struct{} // closed when now is replaced
}

// state is the queue as last read.
type state struct {
	version int
	rows    []*row
	skipped []string // visible
	failed  string   // visible; why the queue can't be read
}

// Listen returns a Server that listens on the port, or an error that says that the port is
// taken.
func Listen(o Options) (*Server, error) {
	ln, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(o.Port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("port %d is taken: choose another, or 0 for any", o.Port)
	}
	if err != nil {
		return nil, err
	}
	s := &Server{
		queue: o.Queue, log: o.Log, ln: ln, host: ln.Addr().String(), stop: make(chan struct{}),
		sessions: sessionStore{now: time.Now, sessions: map[string]*session{}},
		issues:   issueReader{from: o.Issues, every: issuesFor},
		changed:  make(chan struct{}),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.origin = "http://" + s.host
	return s, nil
}

// Link returns an address that lets one browser in, once, within [tokenLife]. An earlier
// unused address no longer works.
func (s *Server) Link() string { return s.origin + "/in/" + s.sessions.newToken() }

// Serve serves until ctx ends, and returns nil then. It closes the port.
func (s *Server) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := s.queue.Watch(ctx)
	s.look(ctx)
	var wait sync.WaitGroup
	wait.Go(func() { s.follow(ctx, changes) })
	server := &http.Server{
		Handler: s,
		// Cut off a client that sends nothing, or little at a time.
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, WriteTimeout: 15 * time.Second, IdleTimeout: 60 * time.Second,
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	wait.Go(func() {
		<-ctx.Done()
		close(s.stop) // ends the streams
		end, over := context.WithTimeout(context.Background(), 2*time.Second)
		defer over()
		if server.Shutdown(end) != nil {
			server.Close()
		}
	})
	own := &ownListener{Listener: s.ln, uid: os.Geteuid(), refuse: func(peer string, err error) {
		s.log.Warn("supervise page: a connection was refused", "from", peer, "why", err)
	}}
	// Only connections of this user count towards the bound.
	err := server.Serve(netutil.LimitListener(own, maxConns))
	cancel()
	wait.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// follow reads the queue at each change.
func (s *Server) follow(ctx context.Context, changes <-chan struct{}) {
	for range changes {
		s.look(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(calm):
		}
	}
}

// look reads the queue. It makes a new state only if something differs.
func (s *Server) look(ctx context.Context) {
	l, err := s.queue.List(ctx, supervise.Query{})
	s.mu.Lock()
	defer s.mu.Unlock()
	next := state{version: s.now.version + 1}
	if err != nil {
		next.rows, next.failed = s.now.rows, safetext.String(err.Error(), 300)
	}
	known := make(map[supervise.ID]*row, len(s.now.rows))
	for _, r := range s.now.rows {
		known[r.id] = r
	}
	for _, e := range l.Entries {
		r := known[e.Proposal.ID]
		if r == nil || r.digest != e.Proposal.Digest {
			r = newRow(e.Proposal)
		}
		next.rows = append(next.rows, r)
	}
	for i, p := range l.Problems {
		if i == 3 {
			break
		}
		next.skipped = append(next.skipped, safetext.String(p.Error(), 300))
	}
	if s.now.version > 0 && next.failed == s.now.failed && slices.Equal(next.rows, s.now.rows) && slices.Equal(next.skipped, s.now.skipped) {
		return
	}
	s.now = next
	close(s.changed)
	s.changed = make(chan struct{})
}

// state returns the present state, and a channel that is closed when there is another.
func (s *Server) state() (state, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now, s.changed
}

//go:embed page
var files embed.FS

var (
	pageTemplate   = sync.OnceValue(func() *template.Template { return template.Must(template.ParseFS(files, "page/page.html")) })
	issuesTemplate = sync.OnceValue(func() *template.Template { return template.Must(template.ParseFS(files, "page/issues.html")) })
	loneTemplate   = sync.OnceValue(func() *template.Template { return template.Must(template.ParseFS(files, "page/lone.html")) })
)

// policy lets a page use its own style, script, image and forms, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// ServeHTTP serves the page. It refuses requests before it looks at the queue.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	// With no-referrer, a form's Origin would be null.
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=(), clipboard-read=()")
	if r.Host != s.host {
		s.refuse(w, r, http.StatusMisdirectedRequest, "this page is at "+s.host+" and nowhere else")
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodPost {
		h.Set("Allow", "GET, POST")
		s.refuse(w, r, http.StatusMethodNotAllowed, "only GET and POST mean something here")
		return
	}
	if token, ok := strings.CutPrefix(r.URL.Path, "/in/"); ok {
		s.enter(w, r, token)
		return
	}
	if status, why := sentFrom(r, s.origin); status != 0 {
		s.refuse(w, r, status, why)
		return
	}
	if r.URL.Path == "/favicon.ico" {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	in, rest, ok := s.sessions.find(r)
	if !ok {
		s.refuse(w, r, http.StatusForbidden, "this address is not for you, or not any more: carboy printed one that works once; press Enter there for another")
		return
	}
	switch {
	case r.Method == http.MethodPost:
		if id, ok := strings.CutPrefix(rest, "p/"); ok {
			s.answer(w, r, in, id)
			return
		}
	case rest == "":
		s.page(w, r, in, view{})
		return
	case rest == "rows":
		s.rows(w, r, in)
		return
	case rest == "events":
		s.events(w, r, in)
		return
	case s.issues.from != nil && (rest == "issues" || strings.HasPrefix(rest, "issues/")):
		s.issuePages(w, r, in, strings.TrimPrefix(rest, "issues"))
		return
	case rest == "page.css", rest == "page.js", rest == "issues.js", rest == "icon.svg":
		s.file(w, rest)
		return
	default:
		if id, ok := strings.CutPrefix(rest, "p/"); ok && id != "" {
			s.page(w, r, in, view{id: id})
			return
		}
	}
	s.refuse(w, r, http.StatusNotFound, "there is nothing here")
}

// refuse answers with an error. The log gets the refusal and not the path, which may be a
// session's secret.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, status int, why string) {
	s.log.Warn("supervise page: a request was refused", "from", r.RemoteAddr, "status", status, "why", why,
		"host", safetext.String(r.Host, 100), "origin", safetext.String(r.Header.Get("Origin"), 100), "site", safetext.String(r.Header.Get("Sec-Fetch-Site"), 20))
	// A refused client must not hold a connection.
	w.Header().Set("Connection", "close")
	s.lone(w, status, why, "")
}

func (s *Server) lone(w http.ResponseWriter, status int, says, to string) {
	s.render(w, status, loneTemplate(), "lone.html", struct{ Says, To string }{says, to})
}

func (s *Server) render(w http.ResponseWriter, status int, t *template.Template, name string, data any) {
	var b bytes.Buffer
	if err := t.ExecuteTemplate(&b, name, data); err != nil {
		s.log.Error("supervise page", "error", err)
		status = http.StatusInternalServerError
		b.Reset()
		b.WriteString("the page can't be made; carboy supervise shows the queue without it\n")
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	} else {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
	}
	w.WriteHeader(status)
	w.Write(b.Bytes())
}

// enter exchanges a link for a session. The page then loads the next one by itself. A
// redirection would not do: after one that began elsewhere, such as in a terminal in a web
// page, a browser sends no SameSite=Strict cookie.
func (s *Server) enter(w http.ResponseWriter, r *http.Request, token string) {
	if r.Method != http.MethodGet {
		s.refuse(w, r, http.StatusMethodNotAllowed, "open this address in a browser")
		return
	}
	// A prefetch, or a request for another page, does not use up the link.
	if r.Header.Get("Sec-Purpose") != "" || r.Header.Get("Purpose") != "" {
		s.refuse(w, r, http.StatusForbidden, "this address is not fetched in advance")
		return
	}
	if d := r.Header.Get("Sec-Fetch-Dest"); d != "" && d != "document" {
		s.refuse(w, r, http.StatusForbidden, "this page is not shown within another")
		return
	}
	in, cookie, ok := s.sessions.enter(token)
	if !ok {
		s.refuse(w, r, http.StatusForbidden, "this address was used, or is too old: press Enter where carboy runs for another")
		return
	}
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: cookie, Path: in.path, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	s.lone(w, http.StatusOK, "Welcome.", in.path)
}

var types = map[string]string{"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8", "issues.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"}

func (s *Server) file(w http.ResponseWriter, name string) {
	b, err := files.ReadFile("page/" + name)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", types[name])
	// Caching is safe: the session's path changes with every start.
	w.Header().Set("Cache-Control", "private, max-age=3600")
	w.Write(b)
}

// events streams the versions of the list: one line for each change of the queue.
func (s *Server) events(w http.ResponseWriter, r *http.Request, in *session) {
	s.stream(w, r, in, beat, func() (string, <-chan struct{}) {
		now, changed := s.state()
		return strconv.Itoa(now.version), changed
	})
}

// stream writes a version whenever there is another, and a sign of life in each interval. It
// asks for the version when the channel is closed, and in each interval.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, in *session, every time.Duration, version func() (string, <-chan struct{})) {
	if !s.sessions.beginStream(in) {
		s.refuse(w, r, http.StatusTooManyRequests, "too many pages of this browser are open")
		return
	}
	defer s.sessions.endStream(in)
	c := http.NewResponseController(w)
	c.SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", "text/event-stream")
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := ""
	for s.sessions.alive(in) {
		now, changed := version()
		c.SetWriteDeadline(time.Now().Add(beat))
		line := ": still here\n\n"
		if now != last {
			line, last = "data: "+now+"\n\n", now
		}
		if _, err := w.Write([]byte(line)); err != nil || c.Flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-r.Context().Done():
			return
		case <-s.stop:
			return
		}
	}
}

// rows writes the list as JSON, for page.js.
func (s *Server) rows(w http.ResponseWriter, r *http.Request, in *session) {
	now, _ := s.state()
	q := r.URL.Query()
	p := s.listed(now, in, listQuery{query: cut(q.Get("q")), from: cut(q.Get("from")), id: cut(q.Get("id"))})
	out := struct {
		Version string   `json:"version"`
		Count   string   `json:"count"`
		Rows    []rowOut `json:"rows"`
		Earlier string   `json:"earlier"`
		Later   string   `json:"later"`
		Gone    string   `json:"gone"`
		Tone    string   `json:"tone"`
	}{Version: strconv.Itoa(now.version), Count: p.Count, Rows: p.Rows, Earlier: p.Earlier, Later: p.Later}
	if id := cut(q.Get("id")); id != "" && now.row(id) == nil {
		if e, err := s.find(r.Context(), id); err == nil && e.Answer != nil {
			out.Gone, out.Tone = howItEnded(*e.Answer)
		} else if err != nil {
			out.Gone, out.Tone = "It is not in the queue any more.", "warn"
		}
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	json.NewEncoder(w).Encode(out)
}

// find returns a proposal by its whole id.
func (s *Server) find(ctx context.Context, id string) (supervise.Entry, error) {
	e, err := s.queue.Find(ctx, id)
	if err == nil && string(e.Proposal.ID) != id {
		err = supervise.ErrNotFound
	}
	return e, err
}

// cut bounds a parameter.
func cut(s string) string { return s[:min(len(s), 200)] }

// answer handles the form that answers a proposal.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, in *session, id string) {
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/x-www-form-urlencoded" {
		s.refuse(w, r, http.StatusUnsupportedMediaType, "an answer is a form")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		status := http.StatusBadRequest
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			status = http.StatusRequestEntityTooLarge
		}
		s.refuse(w, r, status, "this form is too large, or not one")
		return
	}
	f := r.PostForm
	as := f.Get("as")
	if !in.formTokenIs(f.Get("token"), id, f.Get("digest")+as) {
		s.refuse(w, r, http.StatusForbidden, "this form is not one that this page made for this proposal")
		return
	}
	var digest supervise.Digest
	if err := digest.UnmarshalText([]byte(f.Get("digest"))); err != nil {
		s.refuse(w, r, http.StatusBadRequest, "this form is not one of this page's")
		return
	}
	v := view{id: id, note: f.Get("note"), text: strings.ReplaceAll(f.Get("text"), "\r\n", "\n")}
	e, err := s.find(r.Context(), id)
	if err != nil {
		s.page(w, r, in, v.failed(err))
		return
	}
	reply := supervise.Reply{ID: e.Proposal.ID, Digest: digest, Note: strings.TrimSpace(v.note), Channel: supervise.ChannelWeb}
	switch f.Get("verdict") {
	case "rejected":
		reply.Verdict = supervise.Rejected
	case "approved":
		if as != "" {
			s.refuse(w, r, http.StatusBadRequest, "this form approves something else than what was asked")
			return
		}
		reply.Verdict = supervise.Approved
		if e.Proposal.Payload.Warn() != "" && f.Get("sure") != "yes" {
			s.page(w, r, in, v.wrong(http.StatusUnprocessableEntity, "Nothing was answered: read the warning, then check the box beside it."))
			return
		}
	case "look", "modified":
		changed, now, err := edited(e.Proposal, v.text)
		if err != nil {
			v.editing = true
			s.page(w, r, in, v.wrong(http.StatusUnprocessableEntity, "Nothing was answered. "+safetext.String(err.Error(), 600)))
			return
		}
		v.changed, v.as = changed, now.String()
		if f.Get("verdict") == "look" {
			s.page(w, r, in, v)
			return
		}
		if as != v.as {
			s.page(w, r, in, v.wrong(http.StatusConflict, "Nothing was answered: this is not what was shown."))
			return
		}
		if changed.Warn() != "" && f.Get("sure") != "yes" {
			s.page(w, r, in, v.wrong(http.StatusUnprocessableEntity, "Nothing was answered: read the warning, then check the box beside it."))
			return
		}
		reply.Verdict, reply.Payload = supervise.Modified, changed
	default:
		s.refuse(w, r, http.StatusBadRequest, "this form says neither approve nor reject")
		return
	}
	if _, err := s.queue.Answer(r.Context(), reply); err != nil {
		s.page(w, r, in, v.failed(err))
		return
	}
	s.look(r.Context())
	http.Redirect(w, r, in.path+"p/"+id+"?done=1", http.StatusSeeOther)
}

// edited returns the payload that text edits p to, and its digest.
func edited(p supervise.Proposal, text string) (supervise.Payload, supervise.Digest, error) {
	ed, ok := p.Payload.(supervise.Editable)
	if !ok {
		return nil, supervise.Digest{}, supervise.ErrNotModifiable
	}
	changed, err := ed.Edit("the text", []byte(text))
	if err != nil {
		return nil, supervise.Digest{}, err
	}
	d, err := supervise.DigestOf(p.Bottle, changed)
	return changed, d, err
}
