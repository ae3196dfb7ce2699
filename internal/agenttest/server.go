package agenttest

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
	"github.com/klauspost/compress/zstd"

	"github.com/carboy/carboy/internal/ca"
)

// Server serves all vendors' APIs at one address, with TLS.
type Server struct {
	// Addr is HOST:PORT, for a route's upstream.
	Addr string
	// Roots holds the CA of the server's certificate, and CA that as a file for SSL_CERT_FILE.
	Roots *x509.CertPool
	CA    []byte
	// OnStep is called before each step, in the request's goroutine. It may be nil.
	OnStep func(n int)
	// Others handles paths that are of no vendor's API. They need no key.
	Others map[string]http.HandlerFunc
	// Tape records all exchanges. It may be nil.
	Tape *Tape

	key    string
	script Script

	mu       sync.Mutex
	requests []Request
	taken    int
	finished bool
	problems []string
}

// Request is a recorded request.
type Request struct {
	Host, Method, Path string
	Key                bool // it had the real key, at the place that the vendor documents
	Header             http.Header
	Body               []byte
}

// maxBody bounds a request, in bytes.
const maxBody = 32 << 20

// New starts a server that requires key on every request. It ends with the test.
func New(t testing.TB, key string, script Script) *Server {
	t.Helper()
	s := &Server{key: key, script: script}
	s.Addr, s.Roots, s.CA = serve(t, s)
	return s
}

// serve starts an HTTP/1 and HTTP/2 server with TLS. It returns its address and the CA of
// its certificate, also as a file.
func serve(t testing.TB, h http.Handler) (addr string, roots *x509.CertPool, file []byte) {
	t.Helper()
	authority, err := ca.New("the vendor", nil)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.Leaf("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewUnstartedServer(h)
	web.EnableHTTP2 = true
	web.Config.ErrorLog = log.New(io.Discard, "", 0)
	web.TLS = &tls.Config{Certificates: []tls.Certificate{*leaf}}
	web.StartTLS()
	t.Cleanup(web.Close)
	roots = x509.NewCertPool()
	roots.AddCert(authority.Certificate())
	return web.Listener.Addr().String(), roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate().Raw})
}

// Requests returns all requests so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Problems returns the differences from the script. It returns none if the script was
// played to its end.
func (s *Server) Problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := append([]string(nil), s.problems...)
	if !s.finished {
		out = append(out, fmt.Sprintf("the agent stopped asking after %d of %d steps", s.taken, len(s.script.Steps)))
	}
	return out
}

func (s *Server) problem(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

// keyOf returns the key of a request, from the place that the host's vendor documents.
func keyOf(r *http.Request) string {
	switch r.Host {
	case "api.anthropic.com":
		return r.Header.Get("X-Api-Key")
	case "generativelanguage.googleapis.com":
		return r.Header.Get("X-Goog-Api-Key")
	}
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return key
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if other := s.Others[r.URL.Path]; other != nil {
		other(rw, r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, maxBody))
	exchange := s.Tape.begin(r, body)
	if err == nil && r.Header.Get("Content-Encoding") == "zstd" {
		body, err = unzstd(body)
	}
	if err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	ok := keyOf(r) == s.key
	s.mu.Lock()
	s.requests = append(s.requests, Request{r.Host, r.Method, r.URL.RequestURI(), ok, r.Header.Clone(), body})
	n := len(s.requests)
	s.mu.Unlock()
	if dir := os.Getenv("CARBOY_TEST_AGENTS_LOG"); dir != "" {
		text := fmt.Sprintf("%s %s%s\n%v\n\n%s\n", r.Method, r.Host, r.URL, r.Header, body)
		_ = os.WriteFile(filepath.Join(dir, fmt.Sprintf("%03d", n)), []byte(text), 0o600)
	}
	if !ok {
		s.problem("%s %s%s came without the real key", r.Method, r.Host, r.URL.Path)
		refuse(rw, http.StatusUnauthorized, "invalid key")
		return
	}
	answerHeader(rw.Header(), r.Host, n)
	if isSocket(r) {
		c, _, _, err := ws.UpgradeHTTP(r, rw)
		if err != nil {
			s.problem("websocket: %v", err)
			return
		}
		defer c.Close()
		s.converse(c, r, exchange)
		return
	}
	rw = exchange.listen(rw)
	for _, v := range vendors {
		if v.serves(r) {
			s.answer(rw, r, body, v)
			return
		}
	}
	refuse(rw, http.StatusNotFound, "this stands in for the parts that agents need, and "+r.URL.Path+" is none")
}

func unzstd(b []byte) ([]byte, error) {
	d, err := zstd.NewReader(bytes.NewReader(b), zstd.WithDecoderMaxMemory(maxBody))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return io.ReadAll(io.LimitReader(d, maxBody))
}

// refuse writes an error in a form that the clients of all vendors understand.
func refuse(rw http.ResponseWriter, status int, message string) {
	rw.Header().Set("Content-Type", "application/json")
	rw.WriteHeader(status)
	_ = json.NewEncoder(rw).Encode(map[string]any{"type": "error", "error": map[string]any{"type": "invalid_request_error", "message": message, "code": status, "status": "INVALID_ARGUMENT"}})
}

// modelQuery is a request in a form common to all vendors.
type modelQuery struct {
	model  string
	stream bool
	tools  []tool
	// results are the results of tools, in order.
	results []string
	// body is the body of the request.
	body string
	// thinks means that the client wants thoughts, hidden that it wants no text of them.
	thinks, hidden bool
	// wantsJSON means that the answer must match a JSON schema in the request.
	wantsJSON bool
}

// reply is the model's answer: a call, or text.
type reply struct {
	model string
	id    int
	call  *call
	text  string
}

// vendor is the API of one vendor.
type vendor struct {
	serves func(*http.Request) bool
	read   func(*http.Request, []byte) (*modelQuery, error)
	write  func(e *events, a *modelQuery, r reply)
}

func (s *Server) answer(rw http.ResponseWriter, r *http.Request, body []byte, v vendor) {
	a, err := v.read(r, body)
	if err != nil {
		s.problem("%s: %v", r.URL.Path, err)
		refuse(rw, http.StatusBadRequest, err.Error())
		return
	}
	a.body = string(body)
	rep, err := s.next(a)
	if err != nil {
		s.problem("%v", err)
		refuse(rw, http.StatusBadRequest, err.Error())
		return
	}
	rep.model = a.model
	v.write(&events{rw: rw, c: http.NewResponseController(rw)}, a, rep)
}

// isSocket reports whether the request is for Responses over a WebSocket.
func isSocket(r *http.Request) bool {
	return r.Method == http.MethodGet && isResponsesPath(r) && strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// converse answers the requests on a WebSocket. Each request holds only the news since the
// response that it names.
func (s *Server) converse(c net.Conn, r *http.Request, x *taped) {
	results, tools := map[string][]string{}, map[string][]tool{} // by the id of the response
	for {
		body, err := wsutil.ReadClientText(c) // joins the frames of a message
		if err != nil {
			return
		}
		x.message(false, body)
		s.mu.Lock()
		s.requests = append(s.requests, Request{r.Host, "WEBSOCKET", r.URL.RequestURI(), true, r.Header, body})
		s.mu.Unlock()
		var more struct {
			Type     string `json:"type"`
			Previous string `json:"previous_response_id"`
			Generate *bool  `json:"generate"`
		}
		err = json.Unmarshal(body, &more)
		var a *modelQuery
		if err == nil {
			a, err = readResponses(r, body)
		}
		if err != nil {
			s.problem("websocket: %v", err)
			return
		}
		a.stream, a.body = true, string(body)
		a.results = append(slices.Clone(results[more.Previous]), a.results...)
		if len(a.tools) == 0 {
			a.tools = tools[more.Previous]
		}
		e := &events{socket: c, exchange: x}
		if more.Generate != nil && !*more.Generate {
			tools["resp_warm"] = a.tools
			o := object{"id": "resp_warm", "object": "response", "status": "completed", "model": a.model, "output": []any{}}
			e.send("", object{"type": "response.created", "sequence_number": 0, "response": o})
			e.send("", object{"type": "response.completed", "sequence_number": 1, "response": o})
			continue
		}
		rep, err := s.next(a)
		if err != nil {
			s.problem("websocket: %v", err)
			return
		}
		rep.model = a.model
		results[responseID(rep)], tools[responseID(rep)] = a.results, a.tools
		writeResponses(e, a, rep)
	}
}

// next returns the script's answer. It takes the agent's position from the request alone,
// so that a repeated request gets the same answer.
func (s *Server) next(a *modelQuery) (reply, error) {
	n := len(a.results)
	if !works(a.tools) {
		if a.wantsJSON {
			return reply{text: `{}`}, nil
		}
		return reply{text: "a task"}, nil
	}
	if s.script.Decide != nil {
		return s.decide(a)
	}
	if n > len(s.script.Steps) {
		return reply{}, fmt.Errorf("%d results of tools, and the script has %d steps", n, len(s.script.Steps))
	}
	if n > 0 {
		last := s.script.Steps[n-1]
		if got := a.results[n-1]; !strings.Contains(got, last.Expect) {
			return reply{}, fmt.Errorf("step %d (%s) came back as %.1000q, without %q", n, last, got, last.Expect)
		}
	}
	s.mu.Lock()
	s.taken = max(s.taken, n)
	s.finished = s.finished || n == len(s.script.Steps)
	s.mu.Unlock()
	if n == len(s.script.Steps) {
		return reply{id: n, text: s.script.final(a.body)}, nil
	}
	if s.OnStep != nil {
		s.OnStep(n)
	}
	c, err := translate(s.script.Steps[n], a.tools)
	if err != nil {
		return reply{}, err
	}
	return reply{id: n, call: &c}, nil
}

// decide returns the answer of the script's Decide.
func (s *Server) decide(a *modelQuery) (reply, error) {
	n := len(a.results)
	step := s.script.Decide(a.body, a.results)
	s.mu.Lock()
	s.taken, s.finished = max(s.taken, n), step == nil
	s.mu.Unlock()
	if step == nil {
		return reply{id: n, text: s.script.final(a.body)}, nil
	}
	c, err := translate(*step, a.tools)
	return reply{id: n, call: &c}, err
}

// events writes a stream of events and flushes each: server-sent events, or messages of a
// WebSocket.
type events struct {
	rw      http.ResponseWriter
	c       *http.ResponseController
	started bool
	socket  net.Conn
	// exchange records what goes to socket.
	exchange *taped
}

// send sends one event. name is empty for an event without a name.
func (e *events) send(name string, v any) {
	b, isText := v.(string)
	if !isText {
		b = compact(v)
	}
	if e.socket != nil {
		e.exchange.message(true, []byte(b))
		_ = wsutil.WriteServerText(e.socket, []byte(b))
		return
	}
	if !e.started {
		e.started = true
		e.rw.Header().Set("Content-Type", "text/event-stream")
		e.rw.Header().Set("Cache-Control", "no-store")
	}
	if name != "" {
		fmt.Fprintf(e.rw, "event: %s\n", name)
	}
	fmt.Fprintf(e.rw, "data: %s\n\n", b)
	_ = e.c.Flush()
}

// whole answers a request that did not ask for a stream.
func (e *events) whole(v any) {
	e.rw.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(e.rw, compact(v))
}

func compact(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// pieces cuts text into small pieces, like a model's stream.
func pieces(s string) []string {
	var out []string
	for len(s) > 24 {
		out = append(out, s[:24])
		s = s[24:]
	}
	return append(out, s)
}
