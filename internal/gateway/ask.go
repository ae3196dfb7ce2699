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

// A route may say that a person is asked about a secret on its way out. The request
// then stands still where the secret begins: the scanner has given back nothing of
// it, and what came before it in the same piece is not given back either. A body
// that is held whole has not made anybody dial. What the answer says holds for this
// one value; whatever else is found in the same request is asked about by itself.
//
// Nobody is asked about a name that is resolved, nor about what can't be looked at
// as a whole: these are blocked.

// Asker decides about values that were held back.
type Asker interface {
	// Ask returns when somebody has decided, or when ctx ends, which it does when
	// the client is gone or the routes don't allow the request any more. It is
	// called by many goroutines, also again for what was decided before.
	Ask(ctx context.Context, h Held) Answer
}

// Held is what a request waits with. Texts are hostile, bounded and not escaped.
type Held struct {
	Host   string
	Port   uint16
	Method string // withheld, as Path is, where the secret is in it
	Path   string // without the query
	Rule   string // of the route

	What, Secret, Transform, Place string // as in Found
	Length                         int    // bytes
	// Digest names the value: HMAC-SHA256 with Config.AskKey, in hexadecimal. Of a
	// known secret it is the secret's own, however it is written; of another, that
	// of the bytes that were found.
	Digest string
}

// Ruling is what was decided. The zero Ruling refuses.
type Ruling uint8

// The rulings.
const (
	RulingBlock Ruling = iota
	RulingPass         // this value may leave here
	RulingMask         // it leaves as asterisks, where it can be masked
)

// Answer is an Asker's. Words are for whoever made the request.
type Answer struct {
	Ruling Ruling
	Words  string
}

// maxAsking bounds the requests of a bottle that wait for an answer at once.
const maxAsking = 32

// asking is the gateway's part of it.
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

// digest names a value of a kind without telling it.
func (a *asking) digest(kind string, value []byte) string {
	m := hmac.New(sha256.New, a.key)
	m.Write([]byte(kind))
	m.Write([]byte{0})
	m.Write(value)
	return hex.EncodeToString(m.Sum(nil))
}

// asks reports whether a person is asked about what is found.
func (w *watch) asks() bool {
	return w.scan.OnMatch == policy.Ask && w.x.c.flow.g.asking.asker != nil
}

// ask holds the exchange until somebody has decided about f.
func (w *watch) ask(f scan.Finding, value []byte) scan.Action {
	x := w.x
	g := x.c.flow.g
	digest := ""
	if f.Secret != "" {
		w.d.secrets[f.Secret].UnsafeReveal(func(b []byte) { digest = g.asking.digest("known", b) })
	} else if value != nil {
		digest = g.asking.digest("found", value)
	} else {
		return w.ruled(f, Answer{Words: "it is not there as a whole, so nobody can be asked"})
	}
	if a, ok := x.rulings.Load(digest); ok {
		// Another view of what was asked about in this exchange.
		return w.ruled(f, a.(Answer))
	}
	if g.asking.waiting.Add(1) > maxAsking {
		g.asking.waiting.Add(-1)
		return w.ruled(f, Answer{Words: "too many requests wait for an answer"})
	}
	defer g.asking.waiting.Add(-1)
	h := Held{
		Host: x.e.Name, Port: x.e.Port, Method: w.d.hidden(x.e.Method), Path: w.d.hidden(x.e.Path), Rule: w.route,
		What: f.Rule, Secret: f.Secret, Transform: f.Transform, Place: bound(f.Place), Length: f.Length, Digest: digest,
	}
	ctx, done := x.waits()
	defer done()
	a := g.asking.asker.Ask(ctx, h)
	if ctx.Err() != nil {
		return w.ruled(f, Answer{Words: "the request was given up"})
	}
	// The routes may have changed while it waited.
	if x.now.Load() != nil {
		x.reconsider()
	}
	if x.halt.Load() != nil {
		return w.ruled(f, Answer{})
	}
	x.rulings.Store(digest, a)
	return w.ruled(f, a)
}

// ruled notes what was decided, and is what the scanner does.
func (w *watch) ruled(f scan.Finding, a Answer) scan.Action {
	act := scan.Block
	switch {
	case a.Ruling == RulingPass:
		act = scan.Report
	case a.Ruling == RulingMask && !f.Sealed:
		act = scan.Redact
	case a.Ruling == RulingMask:
		a.Words = "it was to be masked, and can't be: a part of it has left, or it is compressed"
	}
	if act == scan.Block && a.Words != "" {
		w.x.words.Store(&a.Words)
	}
	w.found(f, act, false)
	return act
}

// stillThere is how often a client is looked at that waits for a person.
const stillThere = 200 * time.Millisecond

// waits returns a context that ends when nobody needs the answer any more. The
// connection is not idle meanwhile.
func (x *exchange) waits() (ctx context.Context, done func()) {
	f := x.c.flow
	ctx, cancel := context.WithCancel(f.ctx)
	f.waiting.Add(1)
	over := context.AfterFunc(x.ctx, cancel)
	ended := make(chan struct{})
	go func() { // ends with done
		defer close(ended)
		t := time.NewTicker(stillThere)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-x.ended:
				cancel()
			case <-t.C:
				// Whoever shuts down its side of HTTP/1 amid a request, or before
				// the answer, can't be told from one that is gone. The end of one
				// that goes with more under way than fits into the window is seen
				// when the answer comes, or its time is up.
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
