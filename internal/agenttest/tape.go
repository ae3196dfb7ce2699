package agenttest

import (
	"bytes"
	"maps"
	"net/http"
	"sync"

	"github.com/carboy/carboy/internal/agenttest/sessiontest"
)

// Tape records exchanges as they were sent. All methods do nothing on nil.
type Tape struct {
	mu        sync.Mutex
	exchanges []*sessiontest.Exchange
}

// Exchanges returns what was recorded so far.
func (t *Tape) Exchanges() []*sessiontest.Exchange {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]*sessiontest.Exchange(nil), t.exchanges...)
}

// taped is an exchange that is being recorded. All methods do nothing on nil.
type taped struct {
	http.ResponseWriter
	tape *Tape
	x    *sessiontest.Exchange
}

// begin records a request with its body as it was sent.
func (t *Tape) begin(r *http.Request, body []byte) *taped {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	x := &sessiontest.Exchange{Method: r.Method, Host: r.Host, Path: r.URL.RequestURI(), Header: r.Header.Clone(), Body: bytes.Clone(body)}
	t.exchanges = append(t.exchanges, x)
	return &taped{tape: t, x: x}
}

// message records a message of a WebSocket.
func (w *taped) message(fromServer bool, text []byte) {
	if w == nil {
		return
	}
	w.tape.mu.Lock()
	defer w.tape.mu.Unlock()
	w.x.Status = http.StatusSwitchingProtocols
	w.x.Messages = append(w.x.Messages, sessiontest.Message{FromServer: fromServer, Text: bytes.Clone(text)})
}

// listen returns a writer of the answer to rw that records it.
func (w *taped) listen(rw http.ResponseWriter) http.ResponseWriter {
	if w == nil {
		return rw
	}
	w.ResponseWriter = rw
	return w
}

// WriteHeader implements http.ResponseWriter.
func (w *taped) WriteHeader(status int) {
	w.tape.mu.Lock()
	w.x.Status, w.x.AnswerHeader = status, maps.Clone(w.Header())
	w.tape.mu.Unlock()
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *taped) Write(p []byte) (int, error) {
	if w.x.Status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	w.tape.mu.Lock()
	w.x.Answer = append(w.x.Answer, p...)
	w.tape.mu.Unlock()
	return w.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (w *taped) Unwrap() http.ResponseWriter { return w.ResponseWriter }
