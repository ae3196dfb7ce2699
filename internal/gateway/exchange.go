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

// exchange is one HTTP request and its answer. It collects what is recorded.
type exchange struct {
	http.ResponseWriter
	c         *webConn
	e         Request
	up, down  atomic.Int64
	body      hash.Hash      // of the answer; nil: Config.DigestAnswers is not set
	tokens    *tokens.Reader // of the answer; nil: it reports no usage
	status    atomic.Int64
	keyed     bool                   // its route has a credential
	signed    atomic.Pointer[string] // the credential's name, once the request was sent with it
	inspector *inspector             // nil until the request is sent
	// halt is why the gateway ended the exchange, if it did; ended is then closed.
	halt  atomic.Pointer[refusedError]
	ended chan struct{}
	// refusalText is the text of the person who refused; nil: none.
	refusalText atomic.Pointer[string]
	ctx         context.Context // the request's
	// rulings maps the digest of a value to the Answer about it.
	rulings sync.Map

	// The fields below are set by trackReloads.
	asked  *policy.Request
	end    func()
	now    atomic.Pointer[admission] // under the current routes
	socket atomic.Pointer[webSocket] // nil: not a WebSocket, or not yet
}

// stop ends the exchange: its bodies fail with err from now on. It returns err, or the
// error of an earlier stop.
func (x *exchange) stop(err error) error {
	var r *refusedError
	if !errors.As(err, &r) {
		r = &refusedError{reasonScan, err}
	}
	if x.halt.CompareAndSwap(nil, r) {
		close(x.ended)
	}
	return x.halt.Load()
}

// withhold keeps the path or the method out of the record.
func (x *exchange) withhold(place string) {
	if place == "method" {
		x.e.Method = withheld
	} else {
		x.e.Path = withheld
	}
}

// withheld replaces a text that contains a secret.
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

// Unwrap lets http.ResponseController find the server's own ResponseWriter.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (x *exchange) WriteHeader(code int) {
	if code >= 200 || code == http.StatusSwitchingProtocols {
		if x.status.CompareAndSwap(0, int64(code)) && x.keyed {
			x.tokens = tokens.New(x.Header().Get("Content-Type"))
		}
	}
	if code >= 200 && x.c.flow.single {
		x.Header().Set("Connection", "close") // also after an offer that upstream did not take
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

func (x *exchange) recordAdmission(a *admission) {
	x.e.Allowed, x.e.Rule = true, a.route.Rule()
	x.keyed = a.credential != nil
}

// hideRequestLine withholds method and path if they contain a secret. It is for
// refused requests, which are not scanned.
func (x *exchange) hideRequestLine() {
	d := x.c.flow.g.rules.Load().detectors
	if _, found := d.findInText(x.e.Method+" "+x.e.Path, false); found {
		x.e.Method, x.e.Path = withheld, withheld
	}
}

// recordRefusal records why, also for a request that was admitted and then failed.
func (x *exchange) recordRefusal(why *refusal) {
	x.e.Reason, x.e.Detail = why.Reason, bound(x.c.flow.g.hidden(why.Detail))
	if why.Error == "refused" {
		x.e.Allowed = false
	}
	if why.Rule != "" {
		x.e.Rule = why.Rule
	}
}

// record records the exchange.
func (x *exchange) record() {
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
		// No answer can say so any more: the exchange was cut while under way.
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
