package credential

import (
	"bufio"
	"bytes"
	"mime"
	"net/textproto"
	"strings"
)

// parts reads a multipart body for Fields: the names of its parts as those of a form, and
// parts of other types, but not of files, as bodies of their own.
type parts struct {
	f      *Fields
	border []byte // what begins a line between two parts, with the line end before it
	buf    []byte // a head, or what may be the beginning of a border
	inHead bool
	part   *Fields // nil: the part is not looked at
}

const (
	maxPartHead    = 8 << 10
	maxPartsInside = 4
)

func newParts(f *Fields, boundary string) *parts {
	return &parts{f: f, border: []byte("\n--" + boundary), buf: []byte("\n")}
}

func (m *parts) look(p []byte) error {
	m.buf = append(m.buf, p...)
	for {
		if m.inHead {
			n := headLength(m.buf)
			switch {
			case max(n, 0) > maxPartHead, n < 0 && len(m.buf) > maxPartHead:
				return &OwnError{why: "a part's head is too long"}
			case n < 0:
				return nil
			}
			if err := m.begin(m.buf[:n]); err != nil {
				return err
			}
			m.cut(n)
			m.inHead = false
		}
		n := bytes.Index(m.buf, m.border)
		end := n
		if n < 0 {
			end = len(m.buf) - m.begun()
		}
		if m.part != nil {
			if err := m.part.Look(bytes.TrimSuffix(m.buf[:end], []byte("\r"))); err != nil {
				return err
			}
		}
		if n < 0 {
			m.cut(end)
			return nil
		}
		m.cut(n + len(m.border))
		m.inHead = true
	}
}

// begun returns how many of the last bytes that wait may begin a border.
func (m *parts) begun() int {
	n := min(len(m.border)-1, len(m.buf))
	for n > 0 && !bytes.HasSuffix(m.buf, m.border[:n]) {
		n--
	}
	return n
}

// cut removes the first n bytes that wait.
func (m *parts) cut(n int) { m.buf = m.buf[:copy(m.buf, m.buf[n:])] }

// headLength returns the length of a part's head with the rest of the border's line and
// the empty line at its end; -1: it has not ended. The line may be all there is: what
// follows then begins with a line end.
func headLength(b []byte) int {
	for at := 0; ; {
		i := bytes.IndexByte(b[at:], '\n')
		if i < 0 {
			return -1
		}
		if at > 0 && len(bytes.TrimRight(b[at:at+i], "\r")) == 0 {
			return at + i + 1
		}
		at += i + 1
	}
}

// begin begins the part with this head.
func (m *parts) begin(head []byte) error {
	bad := &OwnError{why: "the head of one of its parts is ambiguous"}
	_, lines, _ := bytes.Cut(head, []byte("\n"))
	h, err := textproto.NewReader(bufio.NewReader(bytes.NewReader(lines))).ReadMIMEHeader()
	if err != nil || len(h["Content-Disposition"]) > 1 || len(h["Content-Type"]) > 1 || m.f.inside >= maxPartsInside {
		return bad
	}
	for name := range h {
		if strings.Contains(name, " ") {
			return bad // some servers take it for the name without
		}
	}
	m.part = nil
	_, of, err := mime.ParseMediaType(h.Get("Content-Disposition"))
	if err != nil && h.Get("Content-Disposition") != "" {
		return bad
	}
	name := of["name"]
	p := &Fields{own: m.f.own, placeholder: m.f.placeholder, ask: m.f.ask, deep: true, inside: m.f.inside + 1}
	switch _, file := of["filename"]; {
	case m.f.judgePair(name):
		p.form, p.begun, p.whole, p.state, p.named = true, true, true, inValue, name
	case file:
		return nil
	default:
		p.kind(h.Get("Content-Type"))
	}
	m.part = p
	return nil
}
