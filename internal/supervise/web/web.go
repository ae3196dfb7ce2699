// Package web is the page on which a person answers what waits in the queue. It is
// served on this machine's loopback only, to one browser that was given an address
// which works once.
//
// What it promises, beside what package supervise does:
//
//   - Another site can't answer, look or frame it: a request has to come from the page
//     itself (Sec-Fetch-Site, Origin), with a cookie that is SameSite=Strict, by the
//     name that was printed (Host, against names that turn to this address), with a
//     token that is bound to the proposal and its digest.
//   - Another user of this machine gets no byte: whose a connection is, the kernel says.
//   - A proposal is text. Nothing that is in it becomes an element, an attribute or a
//     script, and there is no script but page.js.
//   - What one client sends, and how slowly, is bounded.
//
// Not promised: protection from other programs of the same user, and of root.
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

	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/visible"
)

// Queue is what the page needs of the user's queue. It is called from several
// goroutines.
type Queue interface {
	List(context.Context, supervise.Query) (supervise.Listing, error)
	Find(ctx context.Context, prefix string) (supervise.Entry, error)
	Answer(context.Context, supervise.Reply) (supervise.Answer, error)
	Watch(context.Context) <-chan struct{}
}

// Options are a Server's.
type Options struct {
	Queue Queue
	// Port is the one on 127.0.0.1 to listen at; 0: any that is free.
	Port int
	// Log gets what was refused, visibly. nil: nobody.
	Log *slog.Logger
}

const (
	// maxConns bounds the connections that are open at once.
	maxConns = 64
	// maxForm bounds a form, in bytes: a payload as YAML, percent-encoded.
	maxForm = 4 * supervise.MaxPayload
	// windowRows is how many lines of the list a page has.
	windowRows = 50
	// calm is the least time between two looks at a queue that changes all the time.
	calm = 50 * time.Millisecond
	// beat is how often an idle stream shows that it lives, and how long a client may
	// take for a message.
	beat = 20 * time.Second
)

// Server is the page. Make one with Listen.
type Server struct {
	queue  Queue
	log    *slog.Logger
	ln     net.Listener
	host   string // 127.0.0.1:port, as Host has to be
	origin string
	doors  doors
	stop   chan struct{} // closed when Serve ends

	mu      sync.Mutex
	now     state
	changed chan struct{} // closed when now is replaced
}

// state is what the queue was when it was looked at last.
type state struct {
	version int
	rows    []*row
	skipped []string // visible
	failed  string   // visible; why the queue can't be read
}

// Listen takes the port. A port that is taken is an error that says so.
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
		doors:   doors{now: time.Now, sessions: map[string]*session{}},
		changed: make(chan struct{}),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.origin = "http://" + s.host
	return s, nil
}

// Link is an address that lets one browser in, once, within [tokenLife]. One that was
// made before and not used works no more.
func (s *Server) Link() string { return s.origin + "/in/" + s.doors.newToken() }

// Serve serves until ctx ends, which is no error. It closes the port.
func (s *Server) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := s.queue.Watch(ctx)
	s.look(ctx)
	var wait sync.WaitGroup
	wait.Go(func() { s.follow(ctx, changes) })
	server := &http.Server{
		Handler: s,
		// A client that says nothing, or little at a time, is cut off.
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
	// The bound is on those that are ours: others hold no place.
	err := server.Serve(netutil.LimitListener(own, maxConns))
	cancel()
	wait.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// follow looks at the queue whenever it changes.
func (s *Server) follow(ctx context.Context, changes <-chan struct{}) {
	for range changes {
		s.look(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(calm):
		}
	}
}

// look reads the queue. There is a new state only when something is different.
func (s *Server) look(ctx context.Context) {
	l, err := s.queue.List(ctx, supervise.Query{})
	s.mu.Lock()
	defer s.mu.Unlock()
	next := state{version: s.now.version + 1}
	if err != nil {
		next.rows, next.failed = s.now.rows, visible.String(err.Error(), 300)
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
		next.skipped = append(next.skipped, visible.String(p.Error(), 300))
	}
	if s.now.version > 0 && next.failed == s.now.failed && slices.Equal(next.rows, s.now.rows) && slices.Equal(next.skipped, s.now.skipped) {
		return
	}
	s.now = next
	close(s.changed)
	s.changed = make(chan struct{})
}

// state is the present one, and a channel that is closed when there is another.
func (s *Server) state() (state, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now, s.changed
}

//go:embed page
var files embed.FS

var (
	pageTemplate = sync.OnceValue(func() *template.Template { return template.Must(template.ParseFS(files, "page/page.html")) })
	loneTemplate = sync.OnceValue(func() *template.Template { return template.Must(template.ParseFS(files, "page/lone.html")) })
)

// policy is what a page may do: its own style, script and picture, its own forms, and
// nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// ServeHTTP is the page. Everything that is refused is refused before the queue is
// looked at.
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
	in, rest, ok := s.doors.whose(r)
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
	case rest == "page.css", rest == "page.js", rest == "icon.svg":
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

// refuse says why not. It names the refusal in the log, not the path, which may be
// a session's.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, status int, why string) {
	s.log.Warn("supervise page: a request was refused", "from", r.RemoteAddr, "status", status, "why", why,
		"host", visible.String(r.Host, 100), "origin", visible.String(r.Header.Get("Origin"), 100), "site", visible.String(r.Header.Get("Sec-Fetch-Site"), 20))
	// Whoever is refused holds no connection.
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

// enter exchanges an address that works once for a session. The page that it gives
// goes on by itself, because a browser sends no SameSite=Strict cookie after a
// redirection from elsewhere, such as a terminal that is a web page.
func (s *Server) enter(w http.ResponseWriter, r *http.Request, token string) {
	if r.Method != http.MethodGet {
		s.refuse(w, r, http.StatusMethodNotAllowed, "open this address in a browser")
		return
	}
	// What a browser fetches in advance, or for another page, does not use it up.
	if r.Header.Get("Sec-Purpose") != "" || r.Header.Get("Purpose") != "" {
		s.refuse(w, r, http.StatusForbidden, "this address is not fetched in advance")
		return
	}
	if d := r.Header.Get("Sec-Fetch-Dest"); d != "" && d != "document" {
		s.refuse(w, r, http.StatusForbidden, "this page is not shown within another")
		return
	}
	in, cookie, ok := s.doors.enter(token)
	if !ok {
		s.refuse(w, r, http.StatusForbidden, "this address was used, or is too old: press Enter where carboy runs for another")
		return
	}
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: cookie, Path: in.path, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	s.lone(w, http.StatusOK, "Welcome.", in.path)
}

var types = map[string]string{"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"}

func (s *Server) file(w http.ResponseWriter, name string) {
	b, err := files.ReadFile("page/" + name)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", types[name])
	// The session's path changes with every start.
	w.Header().Set("Cache-Control", "private, max-age=3600")
	w.Write(b)
}

// events is a stream of versions: a line whenever the queue changed.
func (s *Server) events(w http.ResponseWriter, r *http.Request, in *session) {
	if !s.doors.stream(in) {
		s.refuse(w, r, http.StatusTooManyRequests, "too many pages of this browser are open")
		return
	}
	defer s.doors.streamed(in)
	c := http.NewResponseController(w)
	c.SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", "text/event-stream")
	tick := time.NewTicker(beat)
	defer tick.Stop()
	last := -1
	for s.doors.alive(in) {
		now, changed := s.state()
		c.SetWriteDeadline(time.Now().Add(beat))
		line := ": still here\n\n"
		if now.version != last {
			line, last = fmt.Sprintf("data: %d\n\n", now.version), now.version
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

// rows is the list as JSON, for page.js.
func (s *Server) rows(w http.ResponseWriter, r *http.Request, in *session) {
	now, _ := s.state()
	q := r.URL.Query()
	p := s.listed(now, in, ask{query: cut(q.Get("q")), from: cut(q.Get("from")), id: cut(q.Get("id"))})
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
			out.Gone, out.Tone = goneWords(*e.Answer)
		} else if err != nil {
			out.Gone, out.Tone = "It is not in the queue any more.", "warn"
		}
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	json.NewEncoder(w).Encode(out)
}

// find is a proposal by its whole id.
func (s *Server) find(ctx context.Context, id string) (supervise.Entry, error) {
	e, err := s.queue.Find(ctx, id)
	if err == nil && string(e.Proposal.ID) != id {
		err = supervise.ErrNotFound
	}
	return e, err
}

// cut bounds a parameter.
func cut(s string) string { return s[:min(len(s), 200)] }

// answer takes a form.
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
			s.page(w, r, in, v.wrong(http.StatusUnprocessableEntity, "Nothing was answered. "+visible.String(err.Error(), 600)))
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

// edited is a payload in another form, and its digest.
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
