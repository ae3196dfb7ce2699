package credential

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/carboy/carboy/internal/scan"
	"github.com/carboy/carboy/internal/secret"
)

// minScrubbed is the length of the shortest value that is removed, in bytes. Shorter
// ones occur in ordinary text by chance.
const minScrubbed = 6

// Scrubber removes credentials from upstream's answers, which may repeat them. First it
// replaces them by the placeholder, cut or repeated to the same length, where they stand
// as they are or as URLs, JSON and HTML escape them. Then it searches for them as
// requests are searched for watched secrets: in every other way of writing, and in
// parts. What is found there is masked. A Scrubber is immutable.
type Scrubber struct {
	values [][]byte
	marks  [][]byte
	hidden map[string]secret.Value // what is searched for, by the names of the credentials
	rules  *scan.Rules             // nil: nothing is
	bad    error                   // why there can be no search, so that nothing may enter
	id     uint64                  // of one for a single credential
}

var lastScrubber atomic.Uint64

// Look holds the settings of one search.
type Look struct {
	Spare *scan.Spare        // the bottle's; nil: each answer has all that it may decode
	Found func(scan.Finding) // is told what the search found; nil: nobody is
}

// Scrubber returns a Scrubber for this credential.
func (c *Credential) Scrubber() *Scrubber { return NewScrubber(c) }

// maxJoint bounds the Scrubbers of several credentials that one of them keeps.
const maxJoint = 8

// NewScrubber returns a Scrubber for all of these credentials.
func NewScrubber(cs ...*Credential) *Scrubber {
	if len(cs) == 1 {
		return cs[0].ownScrubber()
	}
	cs = slices.Clone(cs)
	slices.SortFunc(cs, func(a, b *Credential) int { return cmp.Compare(a.placeholder, b.placeholder) })
	s, key := &Scrubber{hidden: map[string]secret.Value{}}, ""
	for i, c := range cs {
		own := c.ownScrubber()
		key += fmt.Sprint(own.id, " ")
		s.values, s.marks = append(s.values, own.values...), append(s.marks, own.marks...)
		for name, v := range own.hidden {
			if _, twice := s.hidden[name]; twice {
				name = fmt.Sprintf("%s of credential %d", name, i+1)
			}
			s.hidden[name] = v
		}
	}
	if len(cs) == 0 {
		return s
	}
	c := cs[0]
	c.mu.Lock()
	defer c.mu.Unlock()
	if kept := c.joint[key]; kept != nil {
		return kept
	}
	s.prepare()
	if c.joint == nil || len(c.joint) >= maxJoint {
		c.joint = map[string]*Scrubber{}
	}
	c.joint[key] = s
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
		s := &Scrubber{hidden: map[string]secret.Value{}, id: lastScrubber.Add(1)}
		for _, v := range c.signer.secrets() {
			s.add(v, c.placeholder)
		}
		for i, v := range c.parts() {
			name := c.name
			if i > 0 {
				name = fmt.Sprintf("%s, value %d", name, i+1)
			}
			s.hidden[name] = v
		}
		s.prepare()
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

// A value of longSecret bytes and more is searched for without its first publicHead: they
// say kind, issuer and place, and other values that an answer may hold begin alike.
const (
	longSecret = 128
	publicHead = 64
)

// parts returns the values of which not even a part may come in. It leaves out what
// answers may well hold: the name of a user, and the public beginning of a token.
func (c *Credential) parts() (out []secret.Value) {
	values := c.signer.secrets()
	if b, ok := c.signer.(basic); ok {
		values = []secret.Value{b.password}
	}
	for _, v := range values {
		if v = signature(v); v.Len() >= longSecret {
			v = secret.NewString(v.UnsafeString()[publicHead:])
		}
		if scan.Fit(v) == nil {
			out = append(out, v)
		}
	}
	return out
}

// ErrUnprepared says that an answer may not enter, since it can't be searched.
var ErrUnprepared = errors.New("the search for the credential can't be prepared")

// prepare makes the rules of the search. Its values are fit for them.
func (s *Scrubber) prepare() {
	if len(s.hidden) == 0 {
		return
	}
	watched, err := scan.NewWatchedSecrets(s.hidden)
	if err == nil {
		s.rules, err = scan.NewRules(scan.Config{Watched: watched})
	}
	if err != nil {
		s.bad = fmt.Errorf("%w: %w", ErrUnprepared, err)
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

// withheld replaces a text in which a credential is hidden.
const withheld = "(withheld: a credential)"

// Text returns text with the values replaced.
func (s *Scrubber) Text(text string) string {
	b := []byte(text)
	s.replace(b)
	if s.bad != nil {
		return withheld
	}
	if s.rules == nil {
		return string(b)
	}
	found, err := s.rules.Check(scan.Options{Action: scan.Report, Coverage: scan.NewCoverage()}, b)
	if err != nil || slices.ContainsFunc(found, func(f scan.Finding) bool { return !f.Warning }) {
		return withheld
	}
	return string(b)
}

// replace replaces values in place and returns their number.
func (s *Scrubber) replace(b []byte) (n int) {
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

// Header removes the values from all fields. A field whose name holds one is removed.
// After an error the fields must not enter.
func (s *Scrubber) Header(h http.Header, look Look) error {
	if len(h) == 0 || len(s.values) == 0 {
		return nil
	}
	type part struct {
		name  string
		value int // index; -1: the name
		from  int
	}
	var parts []part
	var text []byte
	for name, values := range h {
		parts = append(parts, part{name, -1, len(text)})
		text = append(append(text, strings.ToLower(name)...), ": "...)
		for i, v := range values {
			parts = append(parts, part{name, i, len(text)})
			text = append(append(text, v...), '\n')
		}
	}
	clean := slices.Clone(text)
	s.replace(clean)
	f := s.search(look, "header")
	defer f.Close()
	clean, err := f.push(make([]byte, 0, len(clean)), clean)
	if err == nil {
		clean, err = f.end(clean)
	}
	if err != nil || bytes.Equal(clean, text) {
		return err
	}
	for _, p := range parts {
		values, there := h[p.name]
		was := p.name
		if there && p.value >= 0 {
			was = values[p.value]
		}
		now := string(clean[p.from:min(p.from+len(was), len(clean))])
		switch {
		case !there:
		case p.value >= 0:
			values[p.value] = now
		case now != strings.ToLower(was):
			delete(h, p.name)
		}
	}
	return nil
}

// Body returns body with the values removed. Bytes that can't begin one are passed on at
// once. text says that body is a text, of which nothing is held back at the end of a
// line. If a value is found where it can't be masked, or the search fails, Read returns
// the scanner's error.
func (s *Scrubber) Body(body io.ReadCloser, look Look, text bool) io.ReadCloser {
	if len(s.values) == 0 {
		return body
	}
	clean := &scrubbed{s: s, body: body}
	if s.rules == nil && s.bad == nil {
		return clean
	}
	return &searched{src: clean, f: s.search(look, "body"), text: text}
}

// scrubbed replaces values.
type scrubbed struct {
	s     *Scrubber
	body  io.ReadCloser
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
		r.s.replace(r.buf)
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

// search looks for values in streams, one after the other.
type search struct {
	s       *Scrubber
	look    Look
	place   string
	codings []string      // of the stream that begins next
	scanner *scan.Scanner // nil: between streams, or nothing is looked for
	taken   int64         // bytes of the stream
	given   int64         // of them, back to the caller
	pieces  []scan.Finding
	masked  []scan.Finding
}

func (s *Scrubber) search(look Look, place string) *search {
	return &search{s: s, look: look, place: place}
}

func (f *search) push(dst, p []byte) ([]byte, error) {
	if f.s.bad != nil {
		return dst, f.s.bad
	}
	if f.s.rules == nil {
		return append(dst, p...), nil
	}
	if f.scanner == nil {
		f.taken, f.given, f.pieces, f.masked = 0, 0, f.pieces[:0], f.masked[:0]
		// Pieces count within one stream: over all answers, ordinary words would add up.
		f.scanner = f.s.rules.NewScanner(scan.Options{
			Place: f.place, Coverage: scan.NewCoverage(), Spare: f.look.Spare, Codings: f.codings, OnFinding: f.found, Ask: f.decide,
		})
	}
	before := len(dst)
	dst, err := f.scanner.Push(dst, p)
	f.taken, f.given = f.taken+int64(len(p)), f.given+int64(len(dst)-before)
	if err == nil {
		err = f.loose()
	}
	return dst, err
}

// inPieces is the rule of findings that are pieces.
const inPieces = "pieces-of-secret"

// found tells of a finding, but not of pieces, which loose judges.
func (f *search) found(x scan.Finding) {
	if f.look.Found != nil && x.Rule != inPieces {
		f.look.Found(x)
	}
}

// decide masks a finding. It keeps pieces for later, since they may be a part of a later
// finding.
func (f *search) decide(x scan.Finding, _ []byte) scan.Action {
	switch {
	case f.isMasked(x): // and it was found once more, by another way of reading
		return scan.Report
	case x.Rule == inPieces:
		f.pieces = append(f.pieces, x)
		return scan.Report
	case !x.Sealed:
		f.masked = append(f.masked, x)
		f.masked = f.masked[max(0, len(f.masked)-maxMasked):]
	}
	return scan.Redact
}

// maxMasked bounds the findings that are remembered: what is found again is near.
const maxMasked = 64

// isMasked reports whether x was masked, but for a few bytes.
func (f *search) isMasked(x scan.Finding) bool {
	const few = 4
	return slices.ContainsFunc(f.masked, func(y scan.Finding) bool {
		return y.Offset <= x.Offset+few && x.Offset+int64(x.Length) <= y.Offset+int64(y.Length)+few
	})
}

// loose returns an error for a piece that is given back without having been masked.
func (f *search) loose() error {
	f.pieces = slices.DeleteFunc(f.pieces, f.isMasked)
	for _, x := range f.pieces {
		if x.Offset < f.given {
			if f.look.Found != nil {
				f.look.Found(x)
			}
			return &scan.FoundError{Finding: x}
		}
	}
	return nil
}

// end ends the stream and appends what was held back of it.
func (f *search) end(dst []byte) ([]byte, error) {
	if f.scanner == nil {
		return dst, nil
	}
	dst, err := f.scanner.End(dst)
	if f.given = f.taken; err == nil {
		err = f.loose()
	}
	f.Close()
	return dst, err
}

func (f *search) Close() {
	if f.scanner != nil {
		f.scanner.Close()
		f.scanner = nil
	}
}

// searched reads a body through a search.
type searched struct {
	src  *scrubbed
	f    *search
	text bool // it was so far, as a whole
	cut  []byte
	in   []byte
	out  []byte
	at   int // bytes of out that were returned
	err  error
}

const (
	firstRead = 4 << 10 // is enough for most answers
	nextRead  = 32 << 10
)

func (r *searched) Read(p []byte) (int, error) {
	for r.at == len(r.out) {
		if r.err != nil {
			return 0, r.err
		}
		if len(p) == 0 {
			return 0, nil
		}
		switch {
		case r.in == nil:
			r.in = make([]byte, firstRead)
		case len(r.in) == firstRead && r.f.taken >= firstRead:
			r.in = make([]byte, nextRead)
		}
		n, err := r.src.Read(r.in)
		r.at = 0
		if r.out, r.err = r.f.push(r.out[:0], r.in[:n]); r.err != nil {
			r.out = r.out[:0] // what came before the finding in this piece does not enter either
			return 0, r.err
		}
		r.text = r.text && n < nextRead && r.isText(r.in[:n])
		if err == io.EOF || r.text && n > 0 && r.in[n-1] == '\n' && r.f.taken > r.f.given {
			if r.out, r.err = r.f.end(r.out); r.err != nil {
				r.out = r.out[:0]
				return 0, r.err
			}
		}
		r.err = err
	}
	n := copy(p, r.out[r.at:])
	r.at += n
	return n, nil
}

// isText reports whether p, the next piece, goes on as UTF-8 without control characters.
// Something compressed soon does not: it must not be ended amid it.
func (r *searched) isText(p []byte) bool {
	if len(r.cut) > 0 {
		p = append(r.cut, p...)
		r.cut = r.cut[:0]
	}
	for len(p) > 0 {
		c, n := utf8.DecodeRune(p)
		switch {
		case c == utf8.RuneError && n == 1 && !utf8.FullRune(p):
			r.cut = append(r.cut[:0], p...)
			return true
		case c == utf8.RuneError && n == 1, c < ' ' && !strings.ContainsRune("\t\n\r\f\x1b", c):
			return false
		}
		p = p[n:]
	}
	return true
}

func (r *searched) Close() error {
	r.f.Close()
	return r.src.Close()
}

// Messages returns a scrubber for consecutive messages, which come in pieces.
func (s *Scrubber) Messages(look Look) *Messages {
	return &Messages{s: s, f: s.search(look, "message")}
}

// Messages scrubs one direction of a connection. Only one goroutine at a time may use
// it. After an error nothing more may enter.
type Messages struct {
	s     *Scrubber
	f     *search
	buf   []byte // may begin a value
	out   int    // how many of them were already returned, at the end of a message
	clean []byte
}

// Coded says how the next message is encoded.
func (m *Messages) Coded(codings []string) { m.f.codings = codings }

// Push appends the bytes of p, and of those held back, that can't begin a value.
func (m *Messages) Push(dst, p []byte) ([]byte, error) {
	m.buf = append(m.buf, p...)
	m.s.replace(m.buf)
	held := len(m.buf) - m.s.tail(m.buf)
	ready := max(m.out, held)
	m.clean = append(m.clean[:0], m.buf[m.out:ready]...)
	m.out = ready - held
	m.buf = m.buf[:copy(m.buf, m.buf[held:])]
	return m.f.push(dst, m.clean)
}

// End appends the rest of a message and remembers it: if a value is split over two
// messages, its second part is replaced.
func (m *Messages) End(dst []byte) ([]byte, error) {
	m.clean = append(m.clean[:0], m.buf[m.out:]...)
	m.out = len(m.buf)
	dst, err := m.f.push(dst, m.clean)
	if err != nil {
		return dst, err
	}
	return m.f.end(dst)
}

// Control removes the values from p, a message of its own that comes between the pieces
// of another, in place.
func (m *Messages) Control(p []byte) error {
	m.s.replace(p)
	f := m.s.search(m.f.look, m.f.place)
	defer f.Close()
	out, err := f.push(nil, p)
	if err == nil {
		out, err = f.end(out)
	}
	copy(p, out)
	return err
}

// Close frees the state of an unfinished message.
func (m *Messages) Close() { m.f.Close() }
