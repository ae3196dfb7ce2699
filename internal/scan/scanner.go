package scan

import (
	"io"
	"slices"
)

// An Action is what a Scanner does about a finding. The zero Action blocks.
type Action int

const (
	Block  Action = iota // the stream ends before it
	Redact               // it is masked by as many asterisks; what can't be masked is blocked
	Report               // it passes and is reported
)

// Options of one Scanner.
type Options struct {
	Place    string // for findings
	Action   Action
	Coverage *Coverage // of the bottle; nil: pieces in several streams are not put together
	// Spare is the bottle's; nil: each stream has all that Output allows.
	Spare *Spare
	// Codings of the stream, in the order of the header Content-Encoding. What
	// they decode to is scanned; the stream itself leaves as far as that is clear.
	Codings []string
	// OnFinding is called for each finding, blocked or not.
	OnFinding func(Finding)
	// Ask says what is done about a finding for which Action is Block. Meanwhile
	// nothing of it leaves, nor of what came after it. value is what was found, as it
	// stands in the text that it was found in, and valid until Ask returns; nil: it is
	// not there as a whole. What was asked may come again, by another view. Nil: Block.
	Ask func(f Finding, value []byte) Action

	// Limits; zero: the defaults.
	Depth  int   // views and decoders inside one another; 4
	Work   int64 // steps of the slow path per byte of the stream; 64
	Output int64 // bytes decoded per byte of the stream; 200
}

const (
	freeWork   = 4 << 20  // steps before Work counts
	freeOutput = 16 << 20 // bytes before Output counts
	// chunk is how much goes through all detectors in one go.
	chunk = 16 << 10
	// history is what a lane keeps of what it gave back: views begin a little
	// before what they were called for.
	history = 512
	// maxHeld is for what decodes to nothing, for ever. Decoders hold two of their
	// blocks at most, which is 256 KiB for zstd.
	maxHeld = 512 << 10
)

// A Scanner scans one direction of one stream. It is used by one goroutine at a
// time and must be closed.
type Scanner struct {
	rules *Rules
	opt   Options
	root  *lane

	given    int64 // bytes of the stream that were given back
	masks    []span
	findings []Finding
	reach    int64   // where the last of them ends
	views    []*view // to be used again
	err      error

	work, output int64
	spared       int64 // bytes of output that were taken from opt.Spare
}

type span struct{ from, to int64 }

// NewScanner begins a stream. A coding that it does not know fails with the
// first bytes.
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
	s.root = newLane(s, nil, "", true)
	s.err = s.root.addCodings(o.Codings)
	return s
}

// Push scans p, the next bytes of the stream, and appends to dst what may leave:
// bytes of the stream in order, masked where that was asked for. After an error
// everything fails with it.
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
		if s.Held() > maxHeld {
			return s.failed(dst, &LimitError{"bytes held", s.opt.Place, s.root.fed()})
		}
	}
	return dst, nil
}

// End says that the stream is over, and appends the rest of it to dst.
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

// Held is how many bytes were taken and not given back.
func (s *Scanner) Held() int { return int(s.root.fed() - s.given) }

// Findings are those so far, the first of them if they are many.
func (s *Scanner) Findings() []Finding { return s.findings }

// Close gives up the stream, if it did not end, and frees what it holds.
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

// found is told each finding by the lane it is in.
func (s *Scanner) found(l *lane, f Finding, from, to int64) error {
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
			// The same seen twice, by another view or a little further on.
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

// maxFindings bounds what is kept of them. Warnings beyond it are told and not kept:
// what is no reason to stop a stream is none for being there often.
const maxFindings = 1000

// act does what is to be done about f, whose mask is the last.
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

// spend takes steps of the slow path from what the stream may cost.
func (s *Scanner) spend(steps int) error {
	s.work += int64(steps)
	if s.work > freeWork+s.opt.Work*s.root.fed() {
		return &LimitError{"work", s.opt.Place, s.root.fed()}
	}
	return nil
}

// decoded counts bytes that a decoder made.
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

// Check scans all of a small text, such as a path or the value of a header.
func (r *Rules) Check(o Options, text []byte) ([]Finding, error) {
	s := r.NewScanner(o)
	defer s.Close()
	_, err := s.Push(nil, text)
	if err == nil {
		_, err = s.End(nil)
	}
	return s.Findings(), err
}

// NewReader returns what of r may be read, as s judges. It holds nothing that s
// does not, and ends with s's error, if any. Closing s is the caller's.
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
		// No more comes out than was held and came in: where that fits into p, it
		// needs no place of its own.
		direct := r.scanner.Held()+n <= len(p)
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
