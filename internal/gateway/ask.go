package gateway

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"sync/atomic"
	"time"

	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/scan"
)

// A route may say that a person decides about a secret on its way out. The request
// then stops where the secret begins: nothing of the secret is sent, nor what came
// before it in the same piece. A body that is buffered whole has not caused a dial
// yet. The answer holds for this one value; anything else that is found in the same
// request is asked about separately.
//
// Nobody is asked about a DNS name, nor about text that can't be scanned as a whole:
// these are blocked.

// Asker asks a person about values that were held back.
type Asker interface {
	// Ask blocks until a person has decided or ctx ends. ctx ends when the client is
	// gone or when new routes forbid the request. Ask is called from many goroutines,
	// and again for values that were already decided.
	Ask(ctx context.Context, h Held) Answer
}

// Held describes the request and the value that a person is asked about. Its texts
// come from the bottle: they are bounded in length, hostile and not escaped.
type Held struct {
	Host   string
	Port   uint16
	Method string // withheld, like Path, if it contains the secret
	Path   string // without the query
	Rule   string // the route's rule

	What, Secret, Transform, Place string // as in Found
	Length                         int    // bytes
	// Digest identifies the value: HMAC-SHA256 with Config.AskKey, in hexadecimal. For
	// a known secret it covers the secret itself, however it was encoded; for
	// ownCredential the name of the field; otherwise the bytes that were found.
	Digest string
}

// Ruling is a person's decision. The zero Ruling refuses.
type Ruling uint8

// The rulings.
const (
	rulingBlock Ruling = iota
	RulingPass         // this value may leave in this request
	RulingMask         // the value is replaced by asterisks where that is possible
)

// Answer holds a person's decision. Message is shown to the client that made the
// request.
type Answer struct {
	Ruling  Ruling
	Message string
}

// maxAsking bounds the requests of one bottle that wait for an answer at once.
const maxAsking = 32

// asking holds the Asker and counts the requests that wait for it.
type asking struct {
	asker   Asker // nil: nobody can be asked
	key     []byte
	waiting atomic.Int64
}

func newAsking(cfg *Config) *asking {
	a := &asking{asker: cfg.Ask, key: cfg.AskKey}
	if len(a.key) == 0 {
		a.key = make([]byte, sha256.Size)
		_, _ = rand.Read(a.key) // never fails
	}
	return a
}

// digest returns an HMAC of a value, so that the value can be named without being
// shown. kind separates known secrets from other findings.
func (a *asking) digest(kind string, value []byte) string {
	m := hmac.New(sha256.New, a.key)
	m.Write([]byte(kind))
	m.Write([]byte{0})
	m.Write(value)
	return hex.EncodeToString(m.Sum(nil))
}

// asksPerson reports whether a person decides about findings of this route.
func (w *inspector) asksPerson() bool {
	return w.scan.OnMatch == policy.Ask && w.x.c.flow.g.asking.asker != nil
}

// ask blocks the exchange until a person has decided about f.
func (w *inspector) ask(f scan.Finding, value []byte) scan.Action {
	a := w.x.c.flow.g.asking
	switch {
	case f.Secret != "":
		digest := ""
		w.d.secrets[f.Secret].UnsafeReveal(func(b []byte) { digest = a.digest("known", b) })
		return w.askAbout(f, digest)
	case value != nil:
		return w.askAbout(f, a.digest("found", value))
	}
	return w.applyAnswer(f, Answer{Message: "it is not there as a whole, so nobody can be asked"})
}

// ownCredential is the What of a field of a body that names a credential of the agent's
// own. The question is about the name: any value of it may leave after a yes.
const ownCredential = "own-credential"

// askOwn blocks the exchange until a person has decided about the body's field name.
func (w *inspector) askOwn(name string) bool {
	digest := w.x.c.flow.g.asking.digest(ownCredential, []byte(name))
	place := "field " + w.d.hidden(name) + " of the body"
	return w.askAbout(scan.Finding{Rule: ownCredential, Place: place, Length: len(name), Sealed: true}, digest) == scan.Report
}

// askAbout blocks the exchange until a person has decided about f, which digest names.
func (w *inspector) askAbout(f scan.Finding, digest string) scan.Action {
	x := w.x
	g := x.c.flow.g
	if a, ok := x.rulings.Load(digest); ok {
		// The same value was already decided in this exchange.
		return w.applyAnswer(f, a.(Answer))
	}
	if g.asking.waiting.Add(1) > maxAsking {
		g.asking.waiting.Add(-1)
		return w.applyAnswer(f, Answer{Message: "too many requests wait for an answer"})
	}
	defer g.asking.waiting.Add(-1)
	h := Held{
		Host: x.e.Name, Port: x.e.Port, Method: w.d.hidden(x.e.Method), Path: w.d.hidden(x.e.Path), Rule: w.route,
		What: f.Rule, Secret: f.Secret, Transform: f.Transform, Place: bound(f.Place), Length: f.Length, Digest: digest,
	}
	ctx, done := x.askContext()
	defer done()
	a := g.asking.asker.Ask(ctx, h)
	if ctx.Err() != nil {
		return w.applyAnswer(f, Answer{Message: "the request was given up"})
	}
	// The routes may have changed during the wait.
	if x.now.Load() != nil {
		x.reconsider()
	}
	if x.halt.Load() != nil {
		return w.applyAnswer(f, Answer{})
	}
	x.rulings.Store(digest, a)
	return w.applyAnswer(f, a)
}

// applyAnswer records the answer to f and returns the action for the scanner.
func (w *inspector) applyAnswer(f scan.Finding, a Answer) scan.Action {
	act := scan.Block
	switch {
	case a.Ruling == RulingPass:
		act = scan.Report
	case a.Ruling == RulingMask && !f.Sealed:
		act = scan.Redact
	case a.Ruling == RulingMask:
		a.Message = "it was to be masked, and can't be: a part of it has left, or it is compressed"
	}
	if act == scan.Block && a.Message != "" {
		w.x.refusalText.Store(&a.Message)
	}
	w.found(f, act, false)
	return act
}

// clientPollInterval is the time between two checks whether a client that waits for a
// person is still connected.
const clientPollInterval = 200 * time.Millisecond

// askContext returns a context that ends when nobody needs the answer any more. Until
// done is called the connection does not count as idle.
func (x *exchange) askContext() (ctx context.Context, done func()) {
	f := x.c.flow
	ctx, cancel := context.WithCancel(f.ctx)
	f.waiting.Add(1)
	over := context.AfterFunc(x.ctx, cancel)
	ended := make(chan struct{})
	go func() { // ends when done is called
		defer close(ended)
		t := time.NewTicker(clientPollInterval)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-x.ended:
				cancel()
			case <-t.C:
				// With HTTP/1 a client that has shut down its sending side can't be
				// told from one that is gone. If unread data fills the receive window,
				// the end is not seen here, but only when the answer comes or its time
				// is up.
				if f.conn.Ended() {
					cancel()
				}
			}
		}
	}()
	return ctx, func() {
		over()
		cancel()
		<-ended
		f.touched.Store(f.g.flows.tick.Load())
		f.waiting.Add(-1)
	}
}
