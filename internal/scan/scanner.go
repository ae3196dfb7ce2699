package scan

import (
	"io"
	"slices"
)

// An Action tells a Scanner how to handle a finding. The zero Action blocks.
type Action int

const (
	Block  Action = iota // the stream ends before it
	Redact               // each byte is replaced by an asterisk; a finding that can't be masked is blocked
	Report               // the bytes pass, the finding is reported
)

// Options of one Scanner.
type Options struct {
	Place    string // for findings
	Action   Action
	Coverage *Coverage // of the bottle; nil: pieces in several streams are not put together
	// Spare is the bottle's; nil: each stream has all that Output allows.
	Spare *Spare
	// Codings of the stream, in the order of the header Content-Encoding. The
	// decoded bytes are scanned; the encoded ones leave as far as those are clear.
	Codings []string
	// Decoded is called with each piece of the stream, decoded from its Codings, before
	// any of it leaves. Its error ends the stream. Nil: nobody is told.
	Decoded func(p []byte) error
	// OnFinding is called for each finding, blocked or not.
	OnFinding func(Finding)
	// Ask decides about a finding for which Action is Block. Until it returns,
	// neither the finding nor anything after it leaves. value holds the bytes found,
	// as the searched text has them, and is valid until Ask returns; it is nil if
	// they are not all there. Ask may be called again for the same finding, from
	// another view. Nil: Block.
	Ask func(f Finding, value []byte) Action

	// GoOn makes the scanner go on behind a limit of views and decoders, without them.
	// The rest is a finding, unreadable, and is searched as it stands.
	GoOn bool

	// Limits; zero: the defaults.
	Depth  int   // views and decoders inside one another; 4
	Work   int64 // steps of the slow path per byte of the stream; 64
	Output int64 // bytes decoded per byte of the stream; 200
}

const (
	freeWork   = 4 << 20  // steps before Work counts
	freeOutput = 16 << 20 // bytes before Output counts
	// decodedWork is the steps that each decoded byte adds to what Work allows.
	decodedWork = 8
	// chunk bytes go through all detectors at once.
	chunk = 16 << 10
	// A stream keeps history bytes of what it returned, because views begin
	// before their trigger.
	history = 512
	// maxHeld ends a stream that decodes to nothing for ever. Decoders hold at
	// most two of their blocks, which are 900 KB for bzip2.
	maxHeld = 2 << 20
)

// A Scanner scans one direction of one stream. It is used by one goroutine at a
// time and must be closed.
type Scanner struct {
	rules *Rules
	opt   Options
	root  *stream

	given    int64 // bytes of the stream that were returned
	masks    []span
	findings []Finding
	reach    int64   // where the last of them ends
	views    []*view // for reuse
	err      error

	plain        bool // without views and decoders: see goOn
	work, output int64
	spared       int64 // bytes of output that were taken from opt.Spare
}

type span struct{ from, to int64 }

// NewScanner returns a Scanner for one stream. With an unknown coding, the first
// call of Push or End fails.
func (r *Rules) NewScanner(o Options) *Scanner {
	if o.Depth == 0 {
		o.Depth = 4
	}
	if o.Work == 0 {
		o.Work = 64
	}
	if o.Output == 0 {
		o.Output = 200
	}
	s := &Scanner{rules: r, opt: o}
	s.root = newStream(s, nil, "", true)
	s.root.told = true
	s.err = s.root.addCodings(o.Codings)
	return s
}

// Push scans p, the next bytes of the stream, and appends to dst the bytes that
// may leave, in order and masked if Action is Redact. After an error every call
// returns that error.
func (s *Scanner) Push(dst, p []byte) (out []byte, err error) {
	if s.err != nil {
		return dst, s.err
	}
	defer s.recovered(&err)
	for len(p) > 0 {
		n := min(len(p), chunk)
		if err := s.root.feed(p[:n], false); err != nil {
			return s.failed(dst, err)
		}
		p = p[n:]
		dst = s.give(dst, s.root.clear())
		if s.held() > maxHeld {
			if err := s.goOn(&LimitError{"bytes held", s.opt.Place, s.root.fed()}); err != nil {
				return s.failed(dst, err)
			}
			dst = s.give(dst, s.root.clear())
		}
	}
	return dst, nil
}

// End ends the stream and appends the rest of it to dst.
func (s *Scanner) End(dst []byte) (out []byte, err error) {
	if s.err != nil {
		return dst, s.err
	}
	defer s.recovered(&err)
	if err := s.root.feed(nil, true); err != nil {
		return s.failed(dst, err)
	}
	dst = s.give(dst, s.root.fed())
	s.stop(ErrClosed)
	return dst, nil
}

// goOn ends all views and decoders if err is of a limit of theirs and the scanner may
// go on without them; otherwise it returns err.
func (s *Scanner) goOn(err error) error {
	if _, limit := err.(*LimitError); !limit || !s.opt.GoOn || s.plain {
		return err
	}
	s.plain, s.work = true, 0
	s.root.stop()
	s.root.undecided = s.root.undecided[:0]
	return s.found(s.root, Finding{Rule: unreadable, Warning: true}, s.root.fed()-1, s.root.fed())
}

// held returns how many bytes Push took and did not return yet.
func (s *Scanner) held() int { return int(s.root.fed() - s.given) }

// Findings returns the findings so far, at most the first maxFindings.
func (s *Scanner) Findings() []Finding { return s.findings }

// Close abandons the stream, if it did not end, and frees its memory.
func (s *Scanner) Close() { s.stop(ErrClosed) }

func (s *Scanner) failed(dst []byte, err error) ([]byte, error) {
	s.stop(err)
	return dst, err
}

func (s *Scanner) recovered(err *error) {
	if v := recover(); v != nil {
		*err = &PanicError{Place: s.opt.Place, Value: v}
		s.stop(*err)
	}
}

func (s *Scanner) stop(err error) {
	if s.err == nil {
		s.err = err
	}
	s.root.stop()
	s.views = nil
}

// give appends the stream up to position to.
func (s *Scanner) give(dst []byte, to int64) []byte {
	if to <= s.given {
		return dst
	}
	at := len(dst)
	dst = append(dst, s.root.bytes(s.given, to)...)
	for _, m := range s.masks {
		for i := max(m.from, s.given); i < min(m.to, to); i++ {
			dst[at+int(i-s.given)] = '*'
		}
	}
	s.masks = slices.DeleteFunc(s.masks, func(m span) bool { return m.to <= to })
	s.given = to
	s.root.trim(to)
	return dst
}

// found records a finding at [from, to) of stream l and acts on it.
func (s *Scanner) found(l *stream, f Finding, from, to int64) error {
	f.Place = s.opt.Place
	if s.rules.phrases != nil {
		f.Warning = !s.phrase(l, f.Rule, from, to)
	}
	if l.via != "" {
		if f.Transform == "plain" || f.Transform == "" {
			f.Transform = l.via
		} else {
			f.Transform = l.via + " > " + f.Transform
		}
	} else if f.Transform == "" {
		f.Transform = "plain"
	}
	var value []byte
	if from >= l.base && to <= l.fed() && !f.Cut {
		value = l.bytes(from, to)
	}
	for ; l.parent != nil; l = l.parent {
		switch {
		case !l.linear:
			// Where in something compressed is not told: it would depend on how
			// much of it came at once.
			f.Sealed = true
			from, to = l.origin, l.origin+1
		default:
			from, to = l.toParent(from), l.endInParent(to)
		}
	}
	f.Sealed = f.Sealed || from < s.given
	f.Offset, f.Length = from, int(to-from)
	for i, old := range s.findings {
		if from >= s.reach {
			break
		}
		if old.Rule == f.Rule && old.Secret == f.Secret && old.Offset < to && from < old.Offset+int64(old.Length) {
			if from >= old.Offset && to <= old.Offset+int64(old.Length) && !f.Sealed {
				return nil // all of it was told and decided already
			}
			// The same finding, by another view or a little further on.
			end := max(old.Offset+int64(old.Length), to)
			s.findings[i].Offset = min(old.Offset, from)
			s.findings[i].Length = int(end - s.findings[i].Offset)
			s.reach = max(s.reach, end)
			s.masks = append(s.masks, span{from, to})
			return s.act(f, value)
		}
	}
	switch {
	case len(s.findings) < maxFindings:
		s.findings = append(s.findings, f)
		s.reach = max(s.reach, to)
	case !f.Warning:
		return &LimitError{"findings", s.opt.Place, from}
	}
	if s.opt.OnFinding != nil {
		s.opt.OnFinding(f)
	}
	s.masks = append(s.masks, span{from, to})
	return s.act(f, value)
}

// maxFindings bounds the findings kept. Warnings beyond it are reported and not
// kept: many warnings are no reason to stop a stream either.
const maxFindings = 1000

// act blocks, masks or passes f, whose mask is the last of s.masks.
func (s *Scanner) act(f Finding, value []byte) error {
	act := s.opt.Action
	if act == Block && !f.Warning && s.opt.Ask != nil {
		act = s.opt.Ask(f, value)
	}
	switch {
	case f.Warning || act == Report:
		s.masks = s.masks[:max(0, len(s.masks)-1)]
		return nil
	case act == Redact && !f.Sealed:
		return nil
	}
	return &FoundError{f}
}

// spend counts steps of the slow path against the stream's limit.
func (s *Scanner) spend(steps int) error {
	s.work += int64(steps)
	if s.work > freeWork+s.opt.Work*s.root.fed()+decodedWork*s.output {
		return &LimitError{"work", s.opt.Place, s.root.fed()}
	}
	return nil
}

// decoded counts bytes of decoder output against the limits.
func (s *Scanner) decoded(n int) error {
	s.output += int64(n)
	if s.output > freeOutput+s.opt.Output*s.root.fed() {
		return &LimitError{"output", s.opt.Place, s.root.fed()}
	}
	if s.opt.Spare == nil {
		return nil
	}
	if over := s.output - freshOutput - s.opt.Output*s.root.fed() - s.spared; over > 0 {
		if over = max(over, spareStep); !s.opt.Spare.take(over) {
			return &LimitError{"output of all streams together", s.opt.Place, s.root.fed()}
		}
		s.spared += over
	}
	return nil
}

// Check scans a small text as a whole, such as a path or the value of a header.
func (r *Rules) Check(o Options, text []byte) ([]Finding, error) {
	s := r.NewScanner(o)
	defer s.Close()
	_, err := s.Push(nil, text)
	if err == nil {
		_, err = s.End(nil)
	}
	return s.Findings(), err
}

// NewReader returns a reader of the bytes of r that s lets pass. It buffers no
// more than s holds, and ends with s's error, if any. The caller closes s.
func NewReader(r io.Reader, s *Scanner) io.Reader {
	return &reader{src: r, scanner: s}
}

type reader struct {
	src     io.Reader
	scanner *Scanner
	in      []byte
	out     []byte
	at      int
	err     error
}

// firstRead is enough for most requests, of which there are more than large ones.
const firstRead = 2 << 10

func (r *reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for r.at == len(r.out) {
		if r.err != nil {
			return 0, r.err
		}
		if r.in == nil {
			r.in = make([]byte, firstRead)
		}
		n, err := r.src.Read(r.in)
		// No more comes out than was held and came in. If that fits into p, it
		// needs no buffer.
		direct := r.scanner.held()+n <= len(p)
		out := r.out[:0]
		if direct {
			out = p[:0:len(p)]
		}
		out, r.err = r.scanner.Push(out, r.in[:n])
		if n == firstRead {
			r.in = make([]byte, chunk)
		}
		if r.err == nil && err == io.EOF {
			if out, r.err = r.scanner.End(out); r.err == nil {
				r.err = io.EOF
			}
		} else if r.err == nil {
			r.err = err
		}
		if !direct {
			r.out, r.at = out, 0
		} else if len(out) > 0 {
			return len(out), nil
		}
	}
	n := copy(p, r.out[r.at:])
	r.at += n
	return n, nil
}
