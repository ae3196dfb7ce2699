package credential

import (
	"bytes"
	"encoding/json"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/carboy/carboy/internal/secret"
)

// minScrubbed is the length of the shortest value that is removed, in bytes. Shorter
// ones occur in ordinary text by chance.
const minScrubbed = 6

// Scrubber replaces credentials in upstream's answers, which may repeat them: as they
// are, or as URLs, JSON and HTML escape them. It replaces them by the placeholder, cut
// or repeated to the same length. A Scrubber is immutable.
type Scrubber struct {
	values [][]byte
	marks  [][]byte
}

// Scrubber returns a Scrubber for this credential.
func (c *Credential) Scrubber() *Scrubber { return NewScrubber(c) }

// NewScrubber returns a Scrubber for all of these credentials.
func NewScrubber(cs ...*Credential) *Scrubber {
	s := &Scrubber{}
	if len(cs) == 1 {
		return cs[0].ownScrubber()
	}
	for _, c := range cs {
		own := c.ownScrubber()
		s.values, s.marks = append(s.values, own.values...), append(s.marks, own.marks...)
	}
	return s
}

// ownScrubber returns a cached Scrubber, and a new one after the token has changed.
func (c *Credential) ownScrubber() *Scrubber {
	edition := 0
	if o, ok := c.signer.(*oauth); ok {
		edition = o.edition()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.scrubber == nil || c.scrubs != edition {
		s := &Scrubber{}
		for _, v := range c.signer.secrets() {
			s.add(v, c.placeholder)
		}
		c.scrubber, c.scrubs = s, edition
	}
	return c.scrubber
}

func (s *Scrubber) add(v secret.Value, placeholder string) {
	if v.Len() < minScrubbed {
		return
	}
	for _, form := range forms(v.UnsafeString()) {
		mark := make([]byte, len(form))
		for i := range mark {
			mark[i] = placeholder[i%len(placeholder)]
		}
		s.values = append(s.values, []byte(form))
		s.marks = append(s.marks, mark)
	}
}

// escaped matches the percent-encodings in a URL.
var escaped = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`%[0-9A-F]{2}`) })

// forms returns the value in the ways that servers write it when they repeat a
// request. Letters, digits and dashes alone have one form.
func forms(v string) []string {
	out := []string{v}
	for _, f := range []string{url.QueryEscape(v), url.PathEscape(v), strings.ReplaceAll(url.QueryEscape(v), "+", "%20"), (&url.URL{Path: v}).EscapedPath()} {
		out = append(out, f, escaped().ReplaceAllStringFunc(f, strings.ToLower))
	}
	for _, asHTML := range []bool{true, false} {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(asHTML)
		if e.Encode(v) == nil {
			f := strings.Trim(strings.TrimSpace(b.String()), `"`)
			out = append(out, f, strings.ReplaceAll(f, "/", `\/`))
		}
	}
	h := html.EscapeString(v)
	out = append(out, h, strings.NewReplacer("&#34;", "&quot;", "&#39;", "&#x27;").Replace(h), strings.NewReplacer("&#34;", "&quot;", "&#39;", "&apos;").Replace(h))
	slices.Sort(out)
	return slices.Compact(out)
}

// Text returns text with the values replaced.
func (s *Scrubber) Text(text string) string {
	b := []byte(text)
	if s.Bytes(b) == 0 {
		return text
	}
	return string(b)
}

// Bytes replaces values in place and returns their number.
func (s *Scrubber) Bytes(b []byte) (n int) {
	for i, v := range s.values {
		for from := 0; ; {
			at := bytes.Index(b[from:], v)
			if at < 0 {
				break
			}
			copy(b[from+at:], s.marks[i])
			from += at + len(v)
			n++
		}
	}
	return n
}

// tail returns how many of the last bytes of b may begin a value.
func (s *Scrubber) tail(b []byte) (n int) {
	for _, v := range s.values {
		for k := min(len(v)-1, len(b)); k > n; k-- {
			if bytes.Equal(b[len(b)-k:], v[:k]) {
				n = k
				break
			}
		}
	}
	return n
}

// Header replaces values in all fields and returns their number.
func (s *Scrubber) Header(h http.Header) (n int) {
	for _, vs := range h {
		for i := range vs {
			b := []byte(vs[i])
			if k := s.Bytes(b); k > 0 {
				vs[i] = string(b)
				n += k
			}
		}
	}
	return n
}

// Body returns body with the values replaced. It calls found with the number of values
// in each piece. Bytes that can't begin a value are passed on at once.
func (s *Scrubber) Body(body io.ReadCloser, found func(n int)) io.ReadCloser {
	if len(s.values) == 0 {
		return body
	}
	return &scrubbed{s: s, body: body, found: found}
}

type scrubbed struct {
	s     *Scrubber
	body  io.ReadCloser
	found func(int)
	buf   []byte // read; the first ready bytes may be returned
	ready int
	err   error
}

func (r *scrubbed) Read(p []byte) (int, error) {
	for r.ready == 0 {
		if r.err != nil {
			return 0, r.err
		}
		if len(p) == 0 {
			return 0, nil
		}
		// What is held back stays in front, so that a value is found whole.
		held := len(r.buf)
		if cap(r.buf) < held+len(p) {
			r.buf = append(make([]byte, 0, held+max(len(p), 4<<10)), r.buf...)
		}
		n, err := r.body.Read(r.buf[held : held+len(p)])
		r.buf = r.buf[:held+n]
		r.err = err
		if k := r.s.Bytes(r.buf); k > 0 {
			r.found(k)
		}
		r.ready = len(r.buf)
		if err == nil {
			r.ready -= r.s.tail(r.buf)
		}
	}
	n := copy(p, r.buf[:r.ready])
	r.ready -= n
	r.buf = r.buf[:copy(r.buf, r.buf[n:])]
	return n, nil
}

func (r *scrubbed) Close() error { return r.body.Close() }

// Messages returns a scrubber for consecutive messages, which come in pieces.
func (s *Scrubber) Messages() *Messages { return &Messages{s: s} }

// Messages scrubs one direction of a connection. Only one goroutine at a time may use
// it.
type Messages struct {
	s   *Scrubber
	buf []byte // may begin a value
	out int    // how many of them were already returned, at the end of a message
}

// Push appends the bytes of p, and of those held back, that can't begin a value.
func (m *Messages) Push(dst, p []byte) ([]byte, error) {
	m.buf = append(m.buf, p...)
	m.s.Bytes(m.buf)
	held := len(m.buf) - m.s.tail(m.buf)
	ready := max(m.out, held)
	dst = append(dst, m.buf[m.out:ready]...)
	m.out = ready - held
	m.buf = m.buf[:copy(m.buf, m.buf[held:])]
	return dst, nil
}

// End appends the rest of a message and remembers it: if a value is split over two
// messages, its second part is replaced.
func (m *Messages) End(dst []byte) ([]byte, error) {
	dst = append(dst, m.buf[m.out:]...)
	m.out = len(m.buf)
	return dst, nil
}
