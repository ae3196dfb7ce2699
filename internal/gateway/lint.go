package gateway

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"
)

// lintConn stands between the bottle and Go's HTTP server. It passes only requests
// whose framing can be read in one way. The server's own parser is lenient for
// historical reasons (bare LF, folded lines, a length beside chunks). What the gateway
// rebuilds from that is safe, but a client that sends it is probing, and is told so.
//
// A head is held back until it is complete and valid. An invalid head is replaced by a
// request that only this type can make, so that the refusal is sent in order, after
// the answers to earlier requests.
type lintConn struct {
	net.Conn
	headLimit int

	// raw is set once a WebSocket was agreed on: what follows is not HTTP.
	raw atomic.Bool

	flow *flow
	// asked counts the requests of this connection that are under way: from the delivery of
	// the head, since the server may look for the connection's end before it calls the
	// handler, to the handler's end.
	asked atomic.Int64
	// woken receives when a deadline is set. The server uses one to end a read.
	woken chan struct{}

	// The fields below belong to the reader; the server has one at a time.
	in       []byte // read, not yet checked
	out      []byte // checked, not yet delivered: it came before in
	space    []byte // the buffer that in starts in when it is empty
	state    lintState
	left     int64 // body bytes to come
	bodyErr  error
	readErr  error
	afterBad bool

	// bad says why the last head was refused.
	bad atomic.Pointer[string]
}

type lintState uint8

const (
	lintHead lintState = iota
	lintBody           // left bytes of known length
	lintChunkSize
	lintChunkData // left bytes, then CRLF
	lintChunkEnd
	lintTrailer
)

// refusedMethod marks the replacement of a refused head. A client that sends it itself
// is refused too.
const refusedMethod = "CARBOY-REFUSED"

const refusedHead = refusedMethod + " / HTTP/1.1\r\nHost: refused.invalid\r\nConnection: close\r\n\r\n"

func newLintConn(c net.Conn, first []byte, headLimit int) *lintConn {
	return &lintConn{Conn: c, in: slices.Clip(first), headLimit: headLimit, woken: make(chan struct{}, 1)}
}

// CloseWrite lets the server end its last answer before it closes.
func (c *lintConn) CloseWrite() error {
	if h, ok := c.Conn.(halfCloser); ok {
		return h.CloseWrite()
	}
	return nil
}

// Read delivers checked bytes.
func (c *lintConn) Read(b []byte) (int, error) {
	for {
		if len(c.out) > 0 {
			n := copy(b, c.out)
			c.out = c.out[n:]
			return n, nil
		}
		switch {
		case c.bodyErr != nil:
			return 0, c.bodyErr
		case c.afterBad:
			return 0, io.EOF
		case c.raw.Load():
			if len(c.in) > 0 {
				c.out, c.in = c.in, nil
				continue
			}
			return c.Conn.Read(b)
		}
		if c.step() {
			continue
		}
		// The content of a body needs no check and no copy.
		if len(c.in) == 0 && (c.state == lintBody || c.state == lintChunkData) && c.readErr == nil {
			n, err := c.Conn.Read(b[:min(int64(len(b)), c.left)])
			c.passed(int64(n))
			return n, err
		}
		// The check needs more input; nothing can be delivered.
		if err := c.fill(); err != nil {
			if err == io.EOF && c.state == lintHead && len(c.in) == 0 {
				err = c.halfClosed()
			}
			return 0, err
		}
	}
}

// halfCloseWait bounds the wait for a client that has ended its side while nothing is
// sent to it. It may have shut down its side only, or be gone.
const halfCloseWait = 30 * time.Second

// halfClosed delays the end of a read after the client's last byte. The end would cancel
// the pending request, although a half-closed client still waits for the answer. So
// halfClosed blocks until the answer is out or makes no progress for a while. A client
// that is gone resets the connection.
func (c *lintConn) halfClosed() error {
	if c.asked.Load() == 0 {
		return io.EOF
	}
	t := time.NewTicker(min(halfCloseWait, c.flow.g.limits.Idle))
	defer t.Stop()
	for moved := c.flow.down.Load(); c.asked.Load() > 0; {
		select {
		case <-c.woken:
			return os.ErrDeadlineExceeded
		case <-c.flow.ctx.Done():
			return io.EOF
		case <-t.C:
			now := c.flow.down.Load()
			if now == moved {
				return io.EOF
			}
			moved = now
		}
	}
	return io.EOF
}

// SetReadDeadline also ends a read that waits for an answer.
func (c *lintConn) SetReadDeadline(t time.Time) error {
	err := c.Conn.SetReadDeadline(t)
	if !t.IsZero() && !t.After(time.Now()) {
		select {
		case c.woken <- struct{}{}:
		default:
		}
	} else {
		select {
		case <-c.woken:
		default:
		}
	}
	return err
}

// lintSpace is the buffer, in bytes, of a connection that waits for a request. It fits
// most heads. It is kept, because the server starts and interrupts a read with every
// request.
const lintSpace = 2 << 10

// fill reads once, when out is empty. It returns time-outs, and a later call can try
// again: the server interrupts reads that way.
func (c *lintConn) fill() error {
	if c.readErr != nil {
		return c.readErr
	}
	if len(c.in) == 0 {
		if c.space == nil {
			c.space = make([]byte, 0, lintSpace)
		}
		c.in = c.space
	}
	if cap(c.in)-len(c.in) < lintSpace/4 {
		c.in = append(make([]byte, 0, 2*len(c.in)+lintSpace), c.in...)
	}
	n, err := c.Conn.Read(c.in[len(c.in):cap(c.in)])
	c.in = c.in[:len(c.in)+n]
	if n > 0 {
		if err != nil && !isTimeout(err) {
			c.readErr = err
		}
		return nil
	}
	return err
}

// step checks some input; false means that it needs more.
func (c *lintConn) step() bool {
	switch c.state {
	case lintHead:
		return c.stepHead()
	case lintBody, lintChunkData:
		return c.stepData()
	default:
		return c.stepLine()
	}
}

func (c *lintConn) stepHead() bool {
	if len(c.in) == 0 {
		return false
	}
	end := bytes.Index(c.in, []byte("\r\n\r\n"))
	scan := c.in
	if end >= 0 {
		scan = c.in[:end+4]
	}
	// Some readers end a line at a bare LF: reject it before waiting for CRLF.
	if err := strictBytes(scan, end < 0); err != nil {
		return c.refuseHead(err)
	}
	if end < 0 {
		if len(c.in) > c.headLimit {
			return c.refuseHead(limitError(ReasonLimitHead))
		}
		return false
	}
	if len(scan) > c.headLimit {
		return c.refuseHead(limitError(ReasonLimitHead))
	}
	h, err := parseHead(string(scan[:end]))
	if err != nil {
		return c.refuseHead(err)
	}
	switch {
	case h.chunked:
		c.state = lintChunkSize
	case h.length > 0:
		c.state, c.left = lintBody, h.length
	}
	c.asked.Add(1)
	c.deliver(len(scan))
	return true
}

func (c *lintConn) refuseHead(err error) bool {
	why := bound(err.Error())
	c.bad.Store(&why)
	c.asked.Add(1)
	c.out, c.in, c.afterBad = []byte(refusedHead), nil, true
	return true
}

func (c *lintConn) deliver(n int) {
	c.out, c.in = c.in[:n], c.in[n:]
}

func (c *lintConn) stepData() bool {
	n := min(int64(len(c.in)), c.left)
	if n == 0 {
		return false
	}
	c.deliver(int(n))
	c.passed(n)
	return true
}

// passed counts the body bytes that were delivered.
func (c *lintConn) passed(n int64) {
	c.left -= n
	if c.left > 0 {
		return
	}
	if c.state == lintChunkData {
		c.state = lintChunkEnd
	} else {
		c.state = lintHead
	}
}

// maxChunkLine bounds a chunk's size line and a trailer line.
const maxChunkLine = 4096

// stepLine checks one line of chunked framing.
func (c *lintConn) stepLine() bool {
	if c.state == lintChunkEnd {
		if len(c.in) < 2 {
			return false
		}
		if string(c.in[:2]) != "\r\n" {
			return c.refuseBody("chunk does not end where its size says")
		}
		c.deliver(2)
		c.state = lintChunkSize
		return true
	}
	end := bytes.Index(c.in, []byte("\r\n"))
	if end < 0 {
		if len(c.in) > maxChunkLine || strictBytes(c.in, true) != nil {
			return c.refuseBody("chunk line is too long or has a bare line end")
		}
		return false
	}
	line := string(c.in[:end])
	if end > maxChunkLine || strictBytes(c.in[:end], false) != nil {
		return c.refuseBody("chunk line is too long or has a bare line end")
	}
	if c.state == lintChunkSize {
		size, err := chunkSize(line)
		if err != nil {
			return c.refuseBody(err.Error())
		}
		c.state, c.left = lintChunkData, size
		if size == 0 {
			c.state = lintTrailer
		}
	} else if line == "" {
		c.state = lintHead
	} else if _, _, err := headerLine(line); err != nil {
		return c.refuseBody(err.Error())
	}
	c.deliver(end + 2)
	return true
}

// refuseBody breaks the connection. The request was already passed on, and must end as
// cut off, not as complete.
func (c *lintConn) refuseBody(why string) bool {
	c.bad.Store(&why)
	c.bodyErr = fmt.Errorf("gateway: request body: %s", why)
	return true
}

// chunkSize parses a chunk's size. It refuses extensions: nothing sends them, and
// readers differ about where they end.
func chunkSize(line string) (int64, error) {
	if line == "" || len(line) > 15 || strings.Trim(line, "0123456789abcdefABCDEF") != "" {
		return 0, fmt.Errorf("chunk size %.20q", line)
	}
	return strconv.ParseInt(line, 16, 64)
}

// strictBytes refuses what readers treat differently: control characters, and line
// ends other than CRLF. partial says that b may end between CR and LF.
func strictBytes(b []byte, partial bool) error {
	for i, ch := range b {
		switch {
		case ch == '\n':
			if i == 0 || b[i-1] != '\r' {
				return errBareLF
			}
		case ch == '\r':
			if i+1 == len(b) {
				if partial {
					continue
				}
				return errBareCR
			}
			if b[i+1] != '\n' {
				return errBareCR
			}
		case ch < ' ' && ch != '\t' || ch == 0x7f:
			return errControl
		}
	}
	return nil
}

type headError string

func (e headError) Error() string { return string(e) }

const (
	errBareLF  headError = "line ends with LF alone"
	errBareCR  headError = "CR without LF"
	errControl headError = "control character"
)

// head holds the fields of a request head that its framing depends on.
type head struct {
	length  int64
	chunked bool
}

// parseHead checks a request head, given without its last line end.
func parseHead(s string) (head, error) {
	lines := strings.Split(s, "\r\n")
	method, target, minor, err := requestLine(lines[0])
	if err != nil {
		return head{}, err
	}
	var h head
	var host, length, encoding []string
	for _, line := range lines[1:] {
		name, value, err := headerLine(line)
		if err != nil {
			return head{}, err
		}
		switch strings.ToLower(name) {
		case "host":
			host = append(host, value)
		case "content-length":
			length = append(length, value)
		case "transfer-encoding":
			encoding = append(encoding, value)
		}
	}
	if len(host) != 1 || host[0] == "" {
		return head{}, headError("exactly one host header is needed")
	}
	if err := absoluteForm(method, target, host[0]); err != nil {
		return head{}, err
	}
	switch {
	case len(length) > 1 || len(encoding) > 1 || len(length)+len(encoding) > 1:
		return head{}, headError("more than one statement of length")
	case len(encoding) == 1 && (minor == '0' || !strings.EqualFold(encoding[0], "chunked")):
		return head{}, headError("transfer-encoding other than chunked")
	case len(encoding) == 1:
		h.chunked = true
	case len(length) == 1:
		if length[0] == "" || len(length[0]) > 18 || strings.Trim(length[0], "0123456789") != "" {
			return head{}, headError("content-length is not a number")
		}
		h.length, err = strconv.ParseInt(length[0], 10, 64)
	}
	return h, err
}

func requestLine(line string) (method, target string, minor byte, err error) {
	parts := strings.Split(line, " ")
	// A method and a header name are both tokens (RFC 9110 section 5.6.2).
	if len(parts) != 3 || !httpguts.ValidHeaderFieldName(parts[0]) || parts[1] == "" {
		return "", "", 0, headError("request line is not METHOD TARGET VERSION")
	}
	for i := range len(parts[1]) {
		if c := parts[1][i]; c <= ' ' || c >= 0x7f {
			return "", "", 0, headError("request target has characters that must be encoded")
		}
	}
	if parts[2] != "HTTP/1.1" && parts[2] != "HTTP/1.0" {
		return "", "", 0, headError("version is not HTTP/1.0 or HTTP/1.1")
	}
	return parts[0], parts[1], parts[2][7], nil
}

// absoluteForm checks that the authority in a target equals Host. RFC 9112 section
// 3.2.2 lets a server take the target's, so if they differ, two readers see two
// requests.
func absoluteForm(method, target, host string) error {
	if method == "CONNECT" || strings.HasPrefix(target, "/") || target == "*" {
		return nil
	}
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "http" || u.Host == "" || u.User != nil {
		return headError("request target is neither a path nor an http URL")
	}
	if !strings.EqualFold(u.Host, host) {
		return headError("host header differs from the request target")
	}
	return nil
}

func headerLine(line string) (name, value string, err error) {
	name, value, ok := strings.Cut(line, ":")
	switch {
	case line == "" || line[0] == ' ' || line[0] == '\t':
		return "", "", headError("folded header line")
	case !ok || !httpguts.ValidHeaderFieldName(name):
		return "", "", headError("header line is not NAME: VALUE")
	}
	return name, strings.Trim(value, " \t"), nil
}
