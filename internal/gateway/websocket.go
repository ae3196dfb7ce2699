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

// A WebSocket is not a tunnel: each frame is parsed, checked and written anew, in both
// directions, so that messages are scanned like bodies. No extension is ever agreed
// on: compressed messages could not be scanned. Each piece that is read is passed on
// as a frame of its own. So neither a message nor a frame is ever buffered whole, and
// a close frame fits between any two.

const (
	// wsPiece bounds the part of a message that is read before it is passed on. A
	// frame up to this size stays one frame, because some programs can't handle
	// fragments.
	wsPiece = 32 << 10
	// wsCloseWait gives the other side time to send its own close frame.
	wsCloseWait = 3 * time.Second
	// wsCloseReadTime gives a refused side time to read the reason.
	wsCloseReadTime = time.Second
)

var wsPieces = sync.Pool{New: func() any { return new([wsPiece]byte) }}

// messageScan checks the data frames of one direction. It lives as long as the
// direction, so that it can keep state across frames and messages.
//
// Push appends to dst what may pass now of the message, whose next bytes are p. End is
// called at the end of a message and appends what was held back of it: a receiver
// needs complete messages, and the next one may never come, or only as an answer to
// this one. So a scan for values that are spread over messages must remember what it
// passed, and stop the part that completes a value. An error ends the WebSocket;
// nothing of the piece that caused it has passed.
type messageScan interface {
	Push(dst, p []byte) ([]byte, error)
	End(dst []byte) ([]byte, error)
}

// frameScan is all checks of one direction. The zero value passes everything.
type frameScan struct {
	data messageScan
	// control checks the payload of a ping or pong or the reason of a close, each
	// complete. It may change it in place.
	control func(p []byte) error
}

// newFrameScans returns the checks for an admitted WebSocket. Outgoing frames are
// scanned like request bodies. In incoming ones, credentials are removed, then
// injections are looked for.
func newFrameScans(a *admission, w *inspector) (toServer, toClient frameScan, err error) {
	var out, in *messageScanner
	if out, err = newMessageScanner(w, false); err != nil {
		return toServer, toClient, err
	}
	if in, err = newMessageScanner(w, true); err != nil {
		return toServer, toClient, err
	}
	if out != nil {
		toServer = frameScan{data: out, control: out.scanControl}
	}
	if in != nil {
		toClient = frameScan{data: in, control: in.scanControl}
	}
	if s := a.scrubber(); s != nil {
		toClient = scrubFrames(w, s, toClient)
	}
	return toServer, toClient, nil
}

// messageScanner scans each message as a stream of its own. The bottle's coverage
// joins parts of a secret from several messages, as it does for requests.
type messageScanner struct {
	w       *inspector
	inbound bool
	codings []string      // of the next message
	s       *scan.Scanner // nil between messages
}

// newMessageScanner returns nil if nothing is scanned for.
func newMessageScanner(w *inspector, inbound bool) (*messageScanner, error) {
	m := &messageScanner{w: w, inbound: inbound}
	if err := m.begin(); err != nil || m.s == nil {
		return nil, err
	}
	m.Close() // each message begins a scanner with its own codings
	return m, nil
}

func (m *messageScanner) begin() (err error) {
	if m.s != nil {
		return nil
	}
	if m.w, err = m.w.current(); err == nil {
		m.s, err = m.w.scanner(m.inbound, "message", m.codings)
	}
	return err
}

// Coded says how the next message is encoded.
func (m *messageScanner) Coded(codings []string) { m.codings = codings }

func (m *messageScanner) exchangeError(err error) error {
	if err == nil {
		return nil
	}
	if m.inbound {
		return m.w.inboundError(err)
	}
	return m.w.outboundError(err)
}

func (m *messageScanner) Push(dst, p []byte) ([]byte, error) {
	if err := m.begin(); err != nil {
		return dst, err
	}
	dst, err := m.s.Push(dst, p)
	return dst, m.exchangeError(err)
}

func (m *messageScanner) End(dst []byte) ([]byte, error) {
	if err := m.begin(); err != nil {
		return dst, err
	}
	dst, err := m.s.End(dst)
	m.Close()
	return dst, m.exchangeError(err)
}

// Close frees the state of an unfinished message.
func (m *messageScanner) Close() {
	if m.s != nil {
		m.s.Close()
		m.s = nil
	}
}

// scanControl scans a control frame, which may come between the frames of a message.
func (m *messageScanner) scanControl(p []byte) error {
	c, err := newMessageScanner(m.w, m.inbound)
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

// scrubFrames removes credentials before next sees a frame.
func scrubFrames(w *inspector, s *credential.Scrubber, next frameScan) frameScan {
	m := s.Messages(w.look())
	return frameScan{
		data: &scrubbedMessages{m, w, next.data},
		control: func(p []byte) error {
			if err := m.Control(p); err != nil {
				return w.reflectedError(err)
			}
			if next.control == nil {
				return nil
			}
			return next.control(p)
		},
	}
}

type scrubbedMessages struct {
	*credential.Messages
	w    *inspector
	next messageScan // nil: none
}

func (s *scrubbedMessages) Push(dst, p []byte) ([]byte, error) {
	if s.next == nil {
		dst, err := s.Messages.Push(dst, p)
		return dst, s.w.reflectedError(err)
	}
	clean, err := s.Messages.Push(nil, p)
	if err != nil {
		return dst, s.w.reflectedError(err)
	}
	return s.next.Push(dst, clean)
}

func (s *scrubbedMessages) End(dst []byte) ([]byte, error) {
	if s.next == nil {
		dst, err := s.Messages.End(dst)
		return dst, s.w.reflectedError(err)
	}
	clean, err := s.Messages.End(nil)
	if err != nil {
		return dst, s.w.reflectedError(err)
	}
	if dst, err = s.next.Push(dst, clean); err != nil {
		return dst, err
	}
	return s.next.End(dst)
}

func (s *scrubbedMessages) Close() {
	s.Messages.Close()
	closeScan(s.next)
}

// closeScan closes a scan that has a Close method.
func closeScan(m messageScan) {
	if c, ok := m.(interface{ Close() }); ok {
		c.Close()
	}
}

// webSocketError refuses an upgrade, or ends a WebSocket with a close frame.
type webSocketError struct {
	reason Reason
	code   ws.StatusCode
	status int // of the HTTP answer
	detail string
	limit  bool
}

func (e *webSocketError) Error() string { return e.detail }

func upgradeError(status int, format string, args ...any) *webSocketError {
	return &webSocketError{reason: reasonWebSocket, status: status, detail: fmt.Sprintf(format, args...)}
}

func frameError(code ws.StatusCode, detail string) *webSocketError {
	return &webSocketError{reason: reasonWebSocket, code: code, detail: detail}
}

// isWebSocket reports whether a request asks for a WebSocket. HTTP/2 requests never do
// (RFC 8441 is not supported).
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

// checkUpgrade refuses an offer that violates RFC 6455 section 4.2.1, and removes the
// extensions, which are never agreed on.
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

// upgrade refuses an invalid WebSocket offer. It removes an offer of any other
// protocol: a server may ignore it (RFC 9110 section 7.8).
func (w *webServer) upgrade(c *webConn, r *http.Request, a *admission) *refusal {
	if !isWebSocket(r) {
		r.Header.Del("Upgrade")
		return nil
	}
	if err := checkUpgrade(r); err != nil {
		return &refusal{Status: err.status, Error: "refused", Reason: err.reason, Detail: err.detail, Host: c.flow.name, Rule: a.route.Rule()}
	}
	return nil
}

// checkSwitch refuses an answer that does not prove that it belongs to this request,
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

// webSocket replaces the upstream connection in a response after the switch. What the
// HTTP proxy copies between both sides is copied here, frame by frame.
type webSocket struct {
	upstream           io.ReadWriteCloser
	c                  *webConn
	seen               *exchange
	toServer, toClient *frameCopier

	closeMu          sync.Mutex // held while both sides are told
	over             bool       // nobody is told any more
	refused          atomic.Bool
	upDone, downDone chan struct{}
}

// newWebSocket is for a response that was found good.
func newWebSocket(c *webConn, seen *exchange, a *admission, upstream io.ReadWriteCloser) (*webSocket, error) {
	up, down, err := newFrameScans(a, seen.inspector)
	if err != nil {
		return nil, err
	}
	return &webSocket{
		upstream: upstream, c: c, seen: seen,
		toServer: newFrameCopier(upstream, ws.StateServerSide, up, c.flow.g.caps.outgoing(a.account)),
		toClient: newFrameCopier(c, ws.StateClientSide, down, a.account.incoming()),
		upDone:   make(chan struct{}), downDone: make(chan struct{}),
	}, nil
}

// Read and Write complete io.ReadWriteCloser; io.Copy uses ReadFrom and WriteTo.
func (s *webSocket) Read([]byte) (int, error)  { return 0, errors.ErrUnsupported }
func (s *webSocket) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }
func (s *webSocket) Close() error              { return s.upstream.Close() }

// ReadFrom copies what the bottle sends. It returns after both directions have ended.
func (s *webSocket) ReadFrom(io.Reader) (int64, error) {
	err := s.toServer.copyFrames(s.c)
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

// WriteTo copies what upstream sends. It returns after both directions have ended.
func (s *webSocket) WriteTo(io.Writer) (int64, error) {
	err := s.toClient.copyFrames(s.upstream)
	closeScan(s.toClient.scan.data)
	s.seen.down.Add(s.toClient.passed)
	if s.refuses(err) || s.refused.Load() {
		_, _ = io.Copy(io.Discard, s.upstream)
	}
	// Upstream has nothing more to say and no longer reads the bottle.
	s.closeMu.Lock()
	_ = s.c.CloseWrite()
	s.closeMu.Unlock()
	_ = s.c.SetReadDeadline(time.Now().Add(wsCloseReadTime))
	s.seen.end() // nobody need be asked about what the bottle still says
	close(s.downDone)
	<-s.upDone
	s.end()
	return 0, err
}

// end marks the exchange as done: nobody is told anything after it.
func (s *webSocket) end() {
	s.closeMu.Lock()
	s.over = true
	s.closeMu.Unlock()
}

// refuses reports whether err is about the frames of one side. If so, it closes both
// sides with the reason, and gives them a moment to read it: closing with unread bytes
// causes a reset, which may overtake the close frame.
func (s *webSocket) refuses(err error) bool {
	var e *webSocketError
	if !errors.As(err, &e) {
		return false
	}
	s.closeMu.Lock()
	defer s.closeMu.Unlock()
	if s.over || s.refused.Swap(true) {
		return true
	}
	if e.limit {
		s.c.flow.g.ledger.limit(e.reason, s.c.flow.name)
	}
	s.c.flow.note(e.reason, e.detail)
	s.seen.recordRefusal(&refusal{Error: "refused", Reason: e.reason, Detail: e.detail})
	// A side that does not read must not block the other.
	stuck := time.AfterFunc(wsCloseReadTime, func() {
		_ = s.upstream.Close()
		s.c.flow.abort(e.reason, e.detail)
	})
	why := "carboy: " + string(e.reason)
	if e.detail != "" {
		why += ": " + e.detail
	}
	why = strings.ToValidUTF8(why[:min(len(why), ws.MaxControlFramePayloadSize-2)], "")
	body := ws.NewCloseFrameBody(e.code, why)
	s.toServer.writeClose(body)
	s.toClient.writeClose(body)
	_ = s.c.CloseWrite()
	stuck.Stop()
	_ = s.c.SetReadDeadline(time.Now().Add(wsCloseReadTime))
	time.AfterFunc(wsCloseReadTime, func() { _ = s.upstream.Close() })
	return true
}

// frameCopier copies one direction.
type frameCopier struct {
	w      io.Writer
	reader ws.State // our role towards the sender
	scan   frameScan
	caps   meters
	passed int64 // bytes of payload

	mu     sync.Mutex // held while a frame is written
	out    bytes.Buffer
	closed bool // a close frame was written: the last one

	// State of the current message.
	text    bool
	begun   bool // some of it was written
	partial [utf8.UTFMax]byte
	pending int // bytes of a character that the last piece ended in
}

func newFrameCopier(w io.Writer, reader ws.State, scan frameScan, caps meters) *frameCopier {
	return &frameCopier{w: w, reader: reader, scan: scan, caps: caps}
}

// copyFrames copies frames until the sender has closed, or something fails. It returns
// nil after a close.
func (d *frameCopier) copyFrames(src io.Reader) error {
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
			if err := d.copyControl(in, h, buf[:h.Length]); err != nil {
				return err
			}
			if h.OpCode == ws.OpClose {
				// Data after a close frame has no meaning (RFC 6455 section 5.5.1).
				_, err := io.Copy(io.Discard, in)
				return err
			}
			continue
		}
		if h.OpCode != ws.OpContinuation {
			d.text, d.begun, d.pending = h.OpCode == ws.OpText, false, 0
		}
		if released, err = d.copyData(in, h, buf[:], released); err != nil {
			return err
		}
		if state = d.reader; !h.Fin {
			state = state.Set(ws.StateFragmented)
		}
	}
}

// copyData copies a data frame in pieces. released is reused as a buffer.
func (d *frameCopier) copyData(in io.Reader, h ws.Header, buf, released []byte) ([]byte, error) {
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

// scanError turns a scanner's error into one that both sides are told.
func scanError(err error) error {
	var w *webSocketError
	if errors.As(err, &w) {
		return err
	}
	e := &webSocketError{reason: reasonWebSocket, code: ws.StatusPolicyViolation, detail: bound(err.Error())}
	var r *refusedError
	if errors.As(err, &r) {
		e.reason = r.reason
	}
	return e
}

// copyControl copies a control frame.
func (d *frameCopier) copyControl(in io.Reader, h ws.Header, p []byte) error {
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

// noEOF replaces io.EOF: the stream ended amid a frame.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// write writes a part of the current message. An empty part is written only if it is
// the last.
func (d *frameCopier) write(p []byte, fin bool) error {
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

// frame writes one frame in one piece, so that the other direction's close frame can't
// come between. At a cap it writes what fits and fails.
func (d *frameCopier) frame(op ws.OpCode, fin bool, p []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return io.ErrClosedPipe
	}
	h := ws.Header{Fin: fin, OpCode: op, Length: int64(len(p)), Masked: d.reader.ServerSide()}
	want := int64(ws.HeaderSize(h) + len(p))
	got, short := d.caps.take(want)
	if short == nil {
		return d.writeFrame(h, p)
	}
	// The header of a shorter payload is not longer.
	if room := got - int64(ws.HeaderSize(h)); room > 0 && !op.IsControl() {
		h.Fin, h.Length = false, room
		if err := d.writeFrame(h, p[:room]); err != nil {
			return err
		}
	}
	return &webSocketError{reason: short.why, code: ws.StatusPolicyViolation, detail: short.explain(), limit: true}
}

func (d *frameCopier) writeFrame(h ws.Header, p []byte) error {
	if h.Masked {
		// Random, so that the sender of the payload can't predict it (RFC 6455 section
		// 10.3).
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

// writeClose writes a close frame unless one was written. It comes from the gateway,
// so it counts against no cap.
func (d *frameCopier) writeClose(body []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		_ = d.writeFrame(ws.Header{Fin: true, OpCode: ws.OpClose, Length: int64(len(body)), Masked: d.reader.ServerSide()}, body)
	}
}

// validText checks the next bytes of a text message. A character may be split between
// pieces.
func (d *frameCopier) validText(p []byte, last bool) bool {
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
	// The last character may be cut: p has at most three bytes of it.
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
