package gateway

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/gobwas/ws"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/scan"
)

// A WebSocket is not a tunnel: each frame is read, checked and made anew, in both
// directions, so that what is looked for in the bodies of requests is looked for in
// messages as well. No extension is ever agreed on: compressed messages could not
// be looked at. What is read of a frame is passed on as a frame of its own, so that
// neither a message nor a frame is ever held whole, and so that a goodbye fits
// between any two.

const (
	// wsPiece is how much of a message is read before it is passed on. A frame up
	// to this size stays one frame: some programs can't do with fragments.
	wsPiece = 32 << 10
	// wsCloseWait is how long the other side has for its own close frame.
	wsCloseWait = 3 * time.Second
	// wsGoodbye is how long a refused side has to read why.
	wsGoodbye = time.Second
)

var wsPieces = sync.Pool{New: func() any { return new([wsPiece]byte) }}

// messageScan judges the data frames of one direction. It lives as long as the
// direction, so that what it knows goes over the borders of frames and messages.
//
// Push appends to dst what of the message, with p its next bytes, may pass now. End
// is called where a message ends and appends what was held back of it: a receiver
// needs messages whole, and the next one may never come, or come only as an answer
// to this one. So a scan that wants to find what is spread over messages must
// remember what it let go, and stop the part that completes it. An error of either
// ends the WebSocket; nothing of the piece that caused it has passed.
type messageScan interface {
	Push(dst, p []byte) ([]byte, error)
	End(dst []byte) ([]byte, error)
}

// frameScan is all that judges one direction. The zero value lets everything pass.
type frameScan struct {
	data messageScan
	// control judges the payload of a ping or pong and the reason of a close, each
	// whole. It may change it in place.
	control func(p []byte) error
}

// frameScans are what judges the frames of a WebSocket that was admitted: on their
// way out what a request's body is scanned for; on their way in, credentials are
// taken out and then injections looked for.
func frameScans(a *admitted, w *watch) (toServer, toClient frameScan, err error) {
	var out, in *scanned
	if out, err = newScanned(w, false); err != nil {
		return toServer, toClient, err
	}
	if in, err = newScanned(w, true); err != nil {
		return toServer, toClient, err
	}
	if out != nil {
		toServer = frameScan{data: out, control: out.whole}
	}
	if in != nil {
		toClient = frameScan{data: in, control: in.whole}
	}
	if s := a.scrubber(); s != nil {
		toClient = scrubbing(s, toClient)
	}
	return toServer, toClient, nil
}

// scanned looks at each message as a stream of its own. Parts of a secret that lie
// in several messages are put together by the bottle's coverage, as those in several
// requests are.
type scanned struct {
	w       *watch
	inbound bool
	codings []string      // of the next message
	s       *scan.Scanner // nil between messages
}

// newScanned returns nil where nothing is looked for.
func newScanned(w *watch, inbound bool) (*scanned, error) {
	m := &scanned{w: w, inbound: inbound}
	if err := m.begin(); err != nil || m.s == nil {
		return nil, err
	}
	m.Close() // a message begins one, with codings of its own
	return m, nil
}

func (m *scanned) begin() (err error) {
	if m.s != nil {
		return nil
	}
	if m.w, err = m.w.current(); err == nil {
		m.s, err = m.w.scanner(m.inbound, "message", m.codings)
	}
	return err
}

func (m *scanned) failed(err error) error {
	if err == nil {
		return nil
	}
	if m.inbound {
		return m.w.replied(err)
	}
	return m.w.stopped(err)
}

func (m *scanned) Push(dst, p []byte) ([]byte, error) {
	if err := m.begin(); err != nil {
		return dst, err
	}
	dst, err := m.s.Push(dst, p)
	return dst, m.failed(err)
}

func (m *scanned) End(dst []byte) ([]byte, error) {
	if err := m.begin(); err != nil {
		return dst, err
	}
	dst, err := m.s.End(dst)
	m.Close()
	return dst, m.failed(err)
}

// Close frees what is held of a message that did not end.
func (m *scanned) Close() {
	if m.s != nil {
		m.s.Close()
		m.s = nil
	}
}

// whole is for a control frame, which comes amid messages.
func (m *scanned) whole(p []byte) error {
	c, err := newScanned(m.w, m.inbound)
	if err != nil {
		return err
	}
	defer c.Close()
	out, err := c.Push(nil, p)
	if err == nil {
		out, err = c.End(out)
	}
	copy(p, out) // masking keeps the length
	return err
}

// scrubbing takes credentials out before next looks.
func scrubbing(s *credential.Scrubber, next frameScan) frameScan {
	return frameScan{
		data: &scrubbedMessages{s.Messages(), next.data},
		control: func(p []byte) error {
			s.Bytes(p)
			if next.control == nil {
				return nil
			}
			return next.control(p)
		},
	}
}

type scrubbedMessages struct {
	*credential.Messages
	next messageScan // nil: none
}

func (s *scrubbedMessages) Push(dst, p []byte) ([]byte, error) {
	if s.next == nil {
		return s.Messages.Push(dst, p)
	}
	clean, err := s.Messages.Push(nil, p)
	if err != nil {
		return dst, err
	}
	return s.next.Push(dst, clean)
}

func (s *scrubbedMessages) End(dst []byte) ([]byte, error) {
	if s.next == nil {
		return s.Messages.End(dst)
	}
	clean, err := s.Messages.End(nil)
	if err == nil {
		dst, err = s.next.Push(dst, clean)
	}
	if err != nil {
		return dst, err
	}
	return s.next.End(dst)
}

func (s *scrubbedMessages) Close() { closeScan(s.next) }

// closeScan frees what a scan holds, where it holds something.
func closeScan(m messageScan) {
	if c, ok := m.(interface{ Close() }); ok {
		c.Close()
	}
}

// webSocketError refuses an upgrade, or ends a WebSocket with a close frame.
type webSocketError struct {
	reason Reason
	code   ws.StatusCode
	status int // of an answer to the request
	detail string
	limit  bool
}

func (e *webSocketError) Error() string { return e.detail }

func upgradeError(status int, format string, args ...any) *webSocketError {
	return &webSocketError{reason: ReasonWebSocket, status: status, detail: fmt.Sprintf(format, args...)}
}

func frameError(code ws.StatusCode, detail string) *webSocketError {
	return &webSocketError{reason: ReasonWebSocket, code: code, detail: detail}
}

// isWebSocket reports whether a request offers to become a WebSocket. Inside HTTP/2
// there are none (RFC 8441 is not spoken).
func isWebSocket(r *http.Request) bool {
	return r.Method == http.MethodGet && r.ProtoMajor == 1 && r.ProtoMinor >= 1 &&
		strings.EqualFold(strings.Join(r.Header.Values("Upgrade"), ","), "websocket") && hasToken(r.Header["Connection"], "upgrade")
}

func hasToken(values []string, token string) bool {
	for _, v := range values {
		for t := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}

// checkUpgrade refuses an offer that RFC 6455 section 4.2.1 does not allow, and
// takes off what is never agreed on.
func checkUpgrade(r *http.Request) *webSocketError {
	key, err := base64.StdEncoding.Strict().DecodeString(r.Header.Get("Sec-Websocket-Key"))
	switch {
	case len(r.Header["Sec-Websocket-Version"]) != 1 || r.Header.Get("Sec-Websocket-Version") != "13":
		return upgradeError(http.StatusUpgradeRequired, "the version of the WebSocket protocol must be 13")
	case len(r.Header["Sec-Websocket-Key"]) != 1 || err != nil || len(key) != 16:
		return upgradeError(http.StatusBadRequest, "the key of a WebSocket must be 16 bytes in base64, once")
	case r.ContentLength != 0:
		return upgradeError(http.StatusBadRequest, "a request for a WebSocket has no body")
	}
	r.Header.Del("Sec-Websocket-Extensions")
	return nil
}

// upgrade refuses a wrong offer of an upgrade, and takes off one to anything else: a
// server may ignore it (RFC 9110 section 7.8).
func (w *webServer) upgrade(c *webConn, r *http.Request, a *admitted) *refusal {
	if !isWebSocket(r) {
		r.Header.Del("Upgrade")
		return nil
	}
	if err := checkUpgrade(r); err != nil {
		return &refusal{Status: err.status, Error: "refused", Reason: err.reason, Detail: err.detail, Host: c.flow.name, Rule: a.route.Rule()}
	}
	return nil
}

// checkSwitch refuses an answer that does not prove that it is one to this request,
// or that agrees to what was not offered.
func checkSwitch(res *http.Response) *webSocketError {
	sum := sha1.Sum([]byte(res.Request.Header.Get("Sec-Websocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	want := base64.StdEncoding.EncodeToString(sum[:])
	chosen := res.Header["Sec-Websocket-Protocol"]
	switch {
	case !strings.EqualFold(strings.Join(res.Header.Values("Upgrade"), ","), "websocket"):
		return upgradeError(http.StatusBadGateway, "upstream switched to another protocol than websocket")
	case len(res.Header["Sec-Websocket-Accept"]) != 1 || res.Header.Get("Sec-Websocket-Accept") != want:
		return upgradeError(http.StatusBadGateway, "upstream's Sec-WebSocket-Accept does not fit the key")
	case len(res.Header["Sec-Websocket-Extensions"]) > 0:
		return upgradeError(http.StatusBadGateway, "upstream agreed to extensions, of which none was offered")
	case len(chosen) > 1 || len(chosen) == 1 && !hasToken(res.Request.Header["Sec-Websocket-Protocol"], chosen[0]):
		return upgradeError(http.StatusBadGateway, "upstream chose a subprotocol that was not offered")
	}
	return nil
}

// webSocket takes the upstream connection's place in a response, after the switch:
// what the HTTP proxy copies between the two sides is copied here, frame by frame.
type webSocket struct {
	upstream           io.ReadWriteCloser
	c                  *webConn
	seen               *exchange
	toServer, toClient *frameWay

	goodbye          sync.Mutex // held while both are told
	over             bool       // nobody is told any more
	refused          atomic.Bool
	upDone, downDone chan struct{}
}

// newWebSocket is for a response that was found good.
func newWebSocket(c *webConn, seen *exchange, a *admitted, upstream io.ReadWriteCloser) (*webSocket, error) {
	up, down, err := frameScans(a, seen.watch)
	if err != nil {
		return nil, err
	}
	return &webSocket{
		upstream: upstream, c: c, seen: seen,
		toServer: newFrameWay(upstream, ws.StateServerSide, up, c.flow.g.caps.outgoing(a.account)),
		toClient: newFrameWay(c, ws.StateClientSide, down, a.account.incoming()),
		upDone:   make(chan struct{}), downDone: make(chan struct{}),
	}, nil
}

// Read and Write are for an io.ReadWriteCloser's sake; io.Copy takes the two below.
func (s *webSocket) Read([]byte) (int, error)  { return 0, errors.ErrUnsupported }
func (s *webSocket) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }
func (s *webSocket) Close() error              { return s.upstream.Close() }

// ReadFrom passes on what the bottle sends. It returns after both directions ended.
func (s *webSocket) ReadFrom(io.Reader) (int64, error) {
	err := s.toServer.pass(s.c)
	closeScan(s.toServer.scan.data)
	s.seen.up.Add(s.toServer.passed)
	switch {
	case s.refuses(err) || s.refused.Load():
	case err == nil:
		late := time.AfterFunc(wsCloseWait, func() { _ = s.upstream.Close() })
		defer late.Stop()
	default:
		_ = s.upstream.Close()
	}
	if s.refused.Load() {
		_, _ = io.Copy(io.Discard, s.c)
	}
	close(s.upDone)
	<-s.downDone
	s.end()
	return 0, err
}

// WriteTo passes on what upstream sends. It returns after both directions ended.
func (s *webSocket) WriteTo(io.Writer) (int64, error) {
	err := s.toClient.pass(s.upstream)
	closeScan(s.toClient.scan.data)
	s.seen.down.Add(s.toClient.passed)
	if s.refuses(err) || s.refused.Load() {
		_, _ = io.Copy(io.Discard, s.upstream)
	}
	// Upstream has nothing more to say, and what the bottle still says nobody hears.
	s.goodbye.Lock()
	_ = s.c.CloseWrite()
	s.goodbye.Unlock()
	_ = s.c.SetReadDeadline(time.Now().Add(wsGoodbye))
	s.seen.end() // nobody need be asked any more about what the bottle says
	close(s.downDone)
	<-s.upDone
	s.end()
	return 0, err
}

// end is the last that is done with the exchange.
func (s *webSocket) end() {
	s.goodbye.Lock()
	s.over = true
	s.goodbye.Unlock()
}

// refuses tells both sides, when err is about what one of them sent, and gives them
// a moment to read it: closing over unread bytes is a reset, which may overtake the
// goodbye.
func (s *webSocket) refuses(err error) bool {
	var e *webSocketError
	if !errors.As(err, &e) {
		return false
	}
	s.goodbye.Lock()
	defer s.goodbye.Unlock()
	if s.over || s.refused.Swap(true) {
		return true
	}
	if e.limit {
		s.c.flow.g.ledger.limit(e.reason, s.c.flow.name)
	}
	s.c.flow.note(e.reason, e.detail)
	s.seen.refused(&refusal{Error: "refused", Reason: e.reason, Detail: e.detail})
	// A side that does not read stops the other from being told.
	stuck := time.AfterFunc(wsGoodbye, func() {
		_ = s.upstream.Close()
		s.c.flow.abort(e.reason, e.detail)
	})
	why := "carboy: " + string(e.reason)
	if e.detail != "" {
		why += ": " + e.detail
	}
	why = strings.ToValidUTF8(why[:min(len(why), ws.MaxControlFramePayloadSize-2)], "")
	body := ws.NewCloseFrameBody(e.code, why)
	s.toServer.bye(body)
	s.toClient.bye(body)
	_ = s.c.CloseWrite()
	stuck.Stop()
	_ = s.c.SetReadDeadline(time.Now().Add(wsGoodbye))
	time.AfterFunc(wsGoodbye, func() { _ = s.upstream.Close() })
	return true
}

// frameWay is one direction.
type frameWay struct {
	w      io.Writer
	reader ws.State // which side we are to the one that sends
	scan   frameScan
	caps   meters
	passed int64 // bytes of payload

	mu     sync.Mutex // of writing a frame
	out    bytes.Buffer
	closed bool // a close frame was written: the last

	// Of the message that is under way.
	text    bool
	begun   bool // some of it was written
	partial [utf8.UTFMax]byte
	pending int // bytes of a character that the last piece began
}

func newFrameWay(w io.Writer, reader ws.State, scan frameScan, caps meters) *frameWay {
	return &frameWay{w: w, reader: reader, scan: scan, caps: caps}
}

// pass copies frames until the sender has closed, with nil, or something fails.
func (d *frameWay) pass(src io.Reader) error {
	in := bufio.NewReaderSize(src, 4<<10)
	buf := wsPieces.Get().(*[wsPiece]byte)
	defer wsPieces.Put(buf)
	var released []byte
	state := d.reader
	for {
		h, err := ws.ReadHeader(in)
		switch {
		case errors.Is(err, ws.ErrHeaderLengthMSB) || errors.Is(err, ws.ErrHeaderLengthUnexpected):
			return frameError(ws.StatusProtocolError, err.Error())
		case err != nil:
			return err
		}
		if err := ws.CheckHeader(h, state); err != nil {
			return frameError(ws.StatusProtocolError, err.Error())
		}
		if h.OpCode.IsControl() {
			if err := d.control(in, h, buf[:h.Length]); err != nil {
				return err
			}
			if h.OpCode == ws.OpClose {
				// What follows has no meaning (RFC 6455 section 5.5.1).
				_, err := io.Copy(io.Discard, in)
				return err
			}
			continue
		}
		if h.OpCode != ws.OpContinuation {
			d.text, d.begun, d.pending = h.OpCode == ws.OpText, false, 0
		}
		if released, err = d.data(in, h, buf[:], released); err != nil {
			return err
		}
		if state = d.reader; !h.Fin {
			state = state.Set(ws.StateFragmented)
		}
	}
}

// data passes a data frame on in pieces. released is kept for its memory.
func (d *frameWay) data(in io.Reader, h ws.Header, buf, released []byte) ([]byte, error) {
	for at := int64(0); ; {
		p := buf[:min(int64(len(buf)), h.Length-at)]
		var err error
		if h.Length <= wsPiece {
			_, err = io.ReadFull(in, p)
		} else {
			var n int
			n, err = io.ReadAtLeast(in, p, 1)
			p = p[:n]
		}
		if err != nil {
			return released, noEOF(err)
		}
		if h.Masked {
			ws.Cipher(p, h.Mask, int(at%4))
		}
		at += int64(len(p))
		last := at == h.Length
		if d.text && !d.validText(p, h.Fin && last) {
			return released, frameError(ws.StatusInvalidFramePayloadData, "text that is not UTF-8")
		}
		if s := d.scan.data; s != nil {
			if released, err = s.Push(released[:0], p); err == nil && h.Fin && last {
				released, err = s.End(released)
			}
			if err != nil {
				return released, scanError(err)
			}
			p = released
		}
		d.passed += int64(len(p))
		if err := d.write(p, h.Fin && last); err != nil || last {
			return released, err
		}
	}
}

// scanError says it to both sides.
func scanError(err error) error {
	var w *webSocketError
	if errors.As(err, &w) {
		return err
	}
	e := &webSocketError{reason: ReasonWebSocket, code: ws.StatusPolicyViolation, detail: bound(err.Error())}
	var r *refusedError
	if errors.As(err, &r) {
		e.reason = r.reason
	}
	return e
}

// control passes a control frame on, whole.
func (d *frameWay) control(in io.Reader, h ws.Header, p []byte) error {
	if _, err := io.ReadFull(in, p); err != nil {
		return noEOF(err)
	}
	if h.Masked {
		ws.Cipher(p, h.Mask, 0)
	}
	text := p
	if h.OpCode == ws.OpClose && len(p) > 0 {
		if len(p) < 2 {
			return frameError(ws.StatusProtocolError, "close frame with half a code")
		}
		if err := ws.CheckCloseFrameData(ws.ParseCloseFrameData(p)); err != nil {
			return frameError(ws.StatusProtocolError, err.Error())
		}
		text = p[2:]
	}
	if d.scan.control != nil {
		if err := d.scan.control(text); err != nil {
			return scanError(err)
		}
	}
	d.passed += int64(len(p))
	return d.frame(h.OpCode, true, p)
}

// noEOF is for what ends amid a frame.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// write passes on a part of the message that is under way. Nothing, unless it is
// the last, is no part.
func (d *frameWay) write(p []byte, fin bool) error {
	for len(p) > 0 || fin {
		n := min(len(p), wsPiece)
		op := ws.OpContinuation
		switch {
		case d.begun:
		case d.text:
			op = ws.OpText
		default:
			op = ws.OpBinary
		}
		last := fin && n == len(p)
		if err := d.frame(op, last, p[:n]); err != nil {
			return err
		}
		d.begun, p = true, p[n:]
		if last {
			return nil
		}
	}
	return nil
}

// frame writes one, in one piece, so that those of the two directions' goodbyes
// can't come amid it. A cap cuts it.
func (d *frameWay) frame(op ws.OpCode, fin bool, p []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return io.ErrClosedPipe
	}
	h := ws.Header{Fin: fin, OpCode: op, Length: int64(len(p)), Masked: d.reader.ServerSide()}
	want := int64(ws.HeaderSize(h) + len(p))
	got, short := d.caps.take(want)
	if short == nil {
		return d.put(h, p)
	}
	// A shorter payload's header is not longer.
	if room := got - int64(ws.HeaderSize(h)); room > 0 && !op.IsControl() {
		h.Fin, h.Length = false, room
		if err := d.put(h, p[:room]); err != nil {
			return err
		}
	}
	return &webSocketError{reason: short.why, code: ws.StatusPolicyViolation, detail: short.explain(), limit: true}
}

func (d *frameWay) put(h ws.Header, p []byte) error {
	if h.Masked {
		// Not to be guessed by whoever chose the payload (RFC 6455 section 10.3).
		_, _ = rand.Read(h.Mask[:])
	}
	d.out.Reset()
	if err := ws.WriteHeader(&d.out, h); err != nil {
		return err
	}
	at := d.out.Len()
	d.out.Write(p)
	if b := d.out.Bytes(); h.Masked {
		ws.Cipher(b[at:], h.Mask, 0)
	}
	d.closed = h.OpCode == ws.OpClose
	_, err := d.w.Write(d.out.Bytes())
	return err
}

// bye writes a close frame, if none was. It is ours and no cap's.
func (d *frameWay) bye(body []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		_ = d.put(ws.Header{Fin: true, OpCode: ws.OpClose, Length: int64(len(body)), Masked: d.reader.ServerSide()}, body)
	}
}

// validText checks the next bytes of a text message; a character may lie over
// their border.
func (d *frameWay) validText(p []byte, last bool) bool {
	for d.pending > 0 && len(p) > 0 {
		d.partial[d.pending] = p[0]
		d.pending++
		p = p[1:]
		if utf8.FullRune(d.partial[:d.pending]) {
			if r, n := utf8.DecodeRune(d.partial[:d.pending]); r == utf8.RuneError && n <= 1 {
				return false
			}
			d.pending = 0
		}
	}
	// The last character may be cut: at most three bytes of it are here.
	cut := len(p)
	for i := 1; i < utf8.UTFMax && i <= len(p); i++ {
		if b := p[len(p)-i]; utf8.RuneStart(b) {
			if !utf8.FullRune(p[len(p)-i:]) {
				cut = len(p) - i
			}
			break
		}
	}
	if !utf8.Valid(p[:cut]) {
		return false
	}
	if cut < len(p) {
		d.pending = copy(d.partial[:], p[cut:])
	}
	return !last || d.pending == 0
}
