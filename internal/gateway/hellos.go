package gateway

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"sync"
)

// A server that dislikes the first ClientHello asks for a second one
// (HelloRetryRequest, RFC 8446 section 4.1.4). It is in the clear too, and some
// servers use its server name. So the first answer of the server is watched. If it is
// that request, the second hello is checked like the first.

const (
	recordHeader    = 5
	recordCCS       = 0x14
	recordAppData   = 0x17
	messageServer   = 2  // ServerHello
	serverHelloHead = 43 // record header, message header, version, random
	maxRecord       = 1<<14 + 2048
)

// retryRandom is the random value that makes a ServerHello a
// HelloRetryRequest.
var retryRandom = sha256.Sum256([]byte("HelloRetryRequest"))

var errSecondHello = errors.New("gateway: second client hello is refused")

// helloWatch reads from the server and detects whether it asks for a second hello. It
// holds nothing back.
type helloWatch struct {
	src  io.Reader
	head []byte
	once sync.Once

	decided chan struct{}
	retry   bool // valid after decided
}

func newHelloWatch(src io.Reader) *helloWatch {
	return &helloWatch{src: src, decided: make(chan struct{})}
}

func (w *helloWatch) Read(b []byte) (int, error) {
	n, err := w.src.Read(b)
	if len(w.head) < serverHelloHead {
		w.head = append(w.head, b[:min(n, serverHelloHead-len(w.head))]...)
		if len(w.head) == serverHelloHead || err != nil {
			w.decide()
		}
	}
	return n, err
}

func (w *helloWatch) decide() {
	w.once.Do(func() {
		h := w.head
		w.retry = len(h) == serverHelloHead && h[0] == recordHandshake && h[5] == messageServer && bytes.Equal(h[11:], retryRandom[:])
		close(w.decided)
	})
}

// helloGuard reads from the client, after its first hello. Until the server has
// answered, it passes only whole records that are no handshake (early data). A
// handshake record waits for the answer, since no honest client sends one before.
type helloGuard struct {
	src   io.Reader
	flow  *flow
	watch *helloWatch

	open bool   // nothing is checked any more
	out  []byte // checked, not yet delivered
	left int    // bytes of the current record to pass
}

func (g *helloGuard) Read(b []byte) (int, error) {
	switch {
	case len(g.out) > 0:
		n := copy(b, g.out)
		g.out = g.out[n:]
		return n, nil
	case g.open:
		return g.src.Read(b)
	case g.left > 0:
		n, err := g.src.Read(b[:min(len(b), g.left)])
		g.left -= n
		return n, err
	}
	if err := g.nextRecord(); err != nil {
		return 0, err
	}
	return g.Read(b)
}

func (g *helloGuard) nextRecord() error {
	var head [recordHeader]byte
	if _, err := io.ReadFull(g.src, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF
		}
		return err
	}
	size := int(head[3])<<8 | int(head[4])
	switch head[0] {
	case recordHandshake:
		return g.handshake(head[:])
	case recordCCS, recordAlert, recordAppData:
		if size > maxRecord {
			return g.refuse(reasonHelloInvalid, "record is too long")
		}
		g.out, g.left = head[:], size
		return nil
	default:
		return g.refuse(reasonHelloInvalid, "record of unknown type")
	}
}

// handshake passes a handshake record if it is a second hello with the same server
// name, or if the server asked for none.
func (g *helloGuard) handshake(head []byte) error {
	select {
	case <-g.watch.decided:
	case <-g.flow.ctx.Done():
		return g.flow.ctx.Err()
	}
	g.open = true
	if !g.watch.retry {
		g.out = head
		return nil
	}
	s := newSniffer(io.MultiReader(bytes.NewReader(head), g.src), g.flow.g.limits.HeadBytes)
	h, err := s.hello()
	if err != nil {
		return g.refuse(reasonHelloInvalid, "second hello: "+err.Error())
	}
	if reason, _ := checkHello(g.flow, h); reason != ReasonOK {
		return g.refuse(reason, "second hello: server name "+h.name)
	}
	g.out = s.seen()
	return nil
}

func (g *helloGuard) refuse(reason Reason, detail string) error {
	g.flow.note(reason, detail)
	return errSecondHello
}

// helloEnd returns where the records of the first handshake message end. It returns
// false if other data shares the last of them, which RFC 8446 section 5.1 forbids for
// a hello.
func helloEnd(b []byte) (int, bool) {
	var message []byte
	for at := 0; len(b)-at >= recordHeader; {
		size := int(b[at+3])<<8 | int(b[at+4])
		end := at + recordHeader + size
		if b[at] != recordHandshake || end > len(b) {
			return 0, false
		}
		message = append(message, b[at+recordHeader:end]...)
		at = end
		if len(message) < 4 {
			continue
		}
		want := 4 + (int(message[1])<<16 | int(message[2])<<8 | int(message[3]))
		if len(message) >= want {
			return at, len(message) == want
		}
	}
	return 0, false
}
