package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/tokens"
)

// exchange is one request and its answer, watched for the record.
type exchange struct {
	http.ResponseWriter
	c        *webConn
	e        Request
	up, down atomic.Int64
	body     hash.Hash      // of the answer; nil: nobody asks for it
	tokens   *tokens.Reader // of the answer; nil: it is none that says how many it took
	status   atomic.Int64
	keyed    bool                   // its route has a credential
	signed   atomic.Pointer[string] // that one, when it was sent with it
	watch    *watch                 // nil until it is sent
	// halt is why it was ended by us, when it was; ended is closed then.
	halt  atomic.Pointer[refusedError]
	ended chan struct{}
	// words are those of who was asked about it and refused it; nil: nobody.
	words atomic.Pointer[string]
	ctx   context.Context // the request's
	// rulings are Answers by the digests of what was asked about.
	rulings sync.Map

	// Of one that was admitted, see underWay.
	asked  *policy.Request
	end    func()
	now    atomic.Pointer[admitted]  // by the routes of this moment
	socket atomic.Pointer[webSocket] // nil: it is none, or not yet
}

// stop ends the exchange: whoever reads or writes its bodies gets err, which is
// returned, or what stopped it before.
func (x *exchange) stop(err error) error {
	var r *refusedError
	if !errors.As(err, &r) {
		r = &refusedError{ReasonScan, err}
	}
	if x.halt.CompareAndSwap(nil, r) {
		close(x.ended)
	}
	return x.halt.Load()
}

// withhold keeps what stood in the path or the method out of the record.
func (x *exchange) withhold(place string) {
	if place == "method" {
		x.e.Method = withheld
	} else {
		x.e.Path = withheld
	}
}

// withheld stands for a text with a secret in it.
const withheld = "(withheld: a secret)"

func newExchange(rw http.ResponseWriter, r *http.Request, c *webConn) *exchange {
	x := &exchange{ResponseWriter: rw, c: c, ended: make(chan struct{}), ctx: r.Context(), e: Request{
		Time: time.Now(), Name: c.flow.name, Port: c.flow.addr.Port(), Version: "h1", Secure: c.secure,
		Method: bound(r.Method), Path: bound(r.URL.EscapedPath()), Rule: c.flow.verdict.Rule,
	}}
	if r.ProtoMajor == 2 {
		x.e.Version = "h2"
	}
	if c.flow.g.digests {
		x.body = sha256.New()
	}
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &countedBody{r.Body, &x.up}
	}
	return x
}

// Unwrap is how http.ResponseController reaches the server's own.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (x *exchange) WriteHeader(code int) {
	if code >= 200 || code == http.StatusSwitchingProtocols {
		if x.status.CompareAndSwap(0, int64(code)) && x.keyed {
			x.tokens = tokens.New(x.Header().Get("Content-Type"))
		}
	}
	x.ResponseWriter.WriteHeader(code)
}

func (x *exchange) Write(b []byte) (int, error) {
	x.status.CompareAndSwap(0, http.StatusOK)
	n, err := x.ResponseWriter.Write(b)
	x.down.Add(int64(n))
	if x.body != nil {
		x.body.Write(b[:n])
	}
	x.tokens.Write(b[:n])
	return n, err
}

func (x *exchange) admitted(a *admitted) {
	x.e.Allowed, x.e.Rule = true, a.route.Rule()
	x.keyed = a.credential != nil
}

// hide is for a request that was not looked at, since it is refused.
func (x *exchange) hide() {
	d := x.c.flow.g.rules.Load().detectors
	if _, found := d.saying(x.e.Method+" "+x.e.Path, false); found {
		x.e.Method, x.e.Path = withheld, withheld
	}
}

// refused also says so of a request that was admitted and could not be made.
func (x *exchange) refused(why *refusal) {
	x.e.Reason, x.e.Detail = why.Reason, bound(x.c.flow.g.hidden(why.Detail))
	if why.Error == "refused" {
		x.e.Allowed = false
	}
	if why.Rule != "" {
		x.e.Rule = why.Rule
	}
}

// done records it.
func (x *exchange) done() {
	x.c.flow.g.web.live.Delete(x)
	x.e.Up, x.e.Down, x.e.Status = x.up.Load(), x.down.Load(), int(x.status.Load())
	x.e.Duration = time.Since(x.e.Time)
	if x.body != nil && x.e.Status != 0 && x.e.Status != http.StatusSwitchingProtocols {
		x.e.Digest = hex.EncodeToString(x.body.Sum(nil))
	}
	if name := x.signed.Load(); name != nil {
		x.e.Credential = *name
		if u, ok := x.tokens.Usage(); ok {
			x.e.Tokens = &u
		}
	}
	if r := x.halt.Load(); r != nil && x.e.Reason == ReasonOK {
		// Too late for an answer: what was under way was cut.
		x.e.Reason, x.e.Detail = r.reason, bound(x.c.flow.g.hidden(r.Error()))
		x.c.flow.note(r.reason, r.Error())
	}
	x.c.flow.g.ledger.request(x.e)
}

type countedBody struct {
	io.ReadCloser
	n *atomic.Int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	return n, err
}
