package scan

import (
	"errors"
	"io"
	"iter"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

// Decoders pull, scanners push: a decoder runs as a coroutine that yields when it
// needs more bytes. It has no goroutine of its own and runs only inside push. The
// formats are in formats.go.

const (
	maxDecodes = 8
	decodeCost = 2 << 10 // steps, for beginning one
	fewBytes   = 64      // may come of what only looks compressed
)

// bufferLen divides no size in which decoders return output: so a read that does
// not fill the buffer means that the decoder holds no more.
const bufferLen = 10_000

var buffers = sync.Pool{New: func() any { return new([bufferLen]byte) }}

// The windows of decoders are most of a scanner's memory, and a few bytes make a
// decoder allocate one: all decoders of the process share a bound.
const (
	maxRemembered  = 512 << 20
	zstdRemembers  = 9 << 20  // whatever the frame says, because a later one may say more
	brotliAtMost   = 16 << 20 // its window, which grows as it is filled
	brotliRounding = 2
)

var remembered atomic.Int64

// remember counts that d holds n bytes.
func (d *decode) remember(n int64) error {
	more := n - d.kept
	if more <= 0 {
		return nil
	}
	if remembered.Add(more) > maxRemembered {
		remembered.Add(-more)
		return &LimitError{"decoders' memory", d.stream.s.opt.Place, d.stream.s.root.fed()}
	}
	d.kept = n
	return nil
}

func (d *decode) forget() {
	remembered.Add(-d.kept)
	d.kept = 0
}

// A decode is a running decoder.
type decode struct {
	kept   int64 // of remembered
	total  int64 // bytes made, up to where the window is full
	window int64 // its memory grows up to this; 0: it is small, or counted already

	name   string
	stream *stream // its output
	parent *stream
	fed    int64 // position in the parent up to which it was given the bytes
	next   func() (struct{}, bool)
	end    func()

	in        []byte
	last      bool  // nothing follows in
	given     int64 // bytes that the decoder took
	processed int64 // bytes that it had used when it asked for more
	start     int64 // of the parent
	err       error
	over      bool
	unread    int // bytes of in left when it ended

	// sure reports that the bytes are of the format, so that a failure means that the
	// rest of them can't be read.
	sure   bool
	likely func() bool // says the same of a decoder that failed; may be nil
	entry  *zipEntry   // if it is one
}

var errStopped = errors.New("scan: the stream was given up")

func newDecode(l *stream, name string, start int64, open func(*decode, *asking) (io.Reader, error)) *decode {
	d := &decode{name: name, parent: l, stream: newStream(l.s, l, name, false), start: start, fed: start}
	d.stream.marks, d.stream.origin = append(d.stream.marks, mark{0, start, start}), start
	d.next, d.end = iter.Pull(func(yield func(struct{}) bool) {
		src := &asking{d: d, yield: yield}
		r, err := open(d, src)
		if err != nil {
			d.err = err
			return
		}
		defer d.forget()
		switch r := r.(type) {
		case *zstd.Decoder:
			defer r.Close()
			if d.err = d.remember(zstdRemembers); d.err != nil {
				return
			}
		case *brotli.Reader:
			d.window = brotliAtMost
		case *zlibReader:
			defer zlibs.Put(r)
		}
		buf := buffers.Get().(*[bufferLen]byte)
		defer buffers.Put(buf)
		for {
			n, err := r.Read(buf[:])
			if n > 0 {
				if d.err = d.made(buf[:n], n < len(buf)); d.err != nil {
					return
				}
			}
			if err != nil {
				if err != io.EOF && !d.endsWell(err) {
					d.err = err
				}
				return
			}
		}
	})
	return d
}

// made takes decoded bytes. drained reports that the decoder holds no more output:
// then all that its input decodes to is in the stream.
func (d *decode) made(p []byte, drained bool) error {
	if err := d.stream.s.decoded(len(p)); err != nil {
		return err
	}
	if d.kept < d.window {
		d.total += int64(len(p))
		if err := d.remember(min(brotliRounding*d.total, d.window)); err != nil {
			return err
		}
	}
	if err := d.stream.feed(p, false); err != nil {
		return err
	}
	if drained {
		d.mark()
	}
	return nil
}

func (d *decode) mark() {
	m := mark{own: d.stream.fed(), parent: d.start + d.processed}
	if n := len(d.stream.marks); d.stream.marks[n-1].own == m.own {
		d.stream.marks[n-1] = m
	} else {
		d.stream.marks = append(d.stream.marks, m)
	}
}

// push gives the decoder p; last reports that nothing follows. An error of the
// format goes to d.err and ends the decoder; an error of the scan is returned.
func (d *decode) push(p []byte, last bool) error {
	if d.over {
		return nil
	}
	d.in, d.last = p, last
	if _, more := d.next(); more {
		return nil
	}
	d.over, d.unread = true, len(d.in)
	d.processed = d.given
	if isOurs(d.err) {
		return d.err
	}
	err := d.stream.feed(nil, true)
	d.mark()
	d.stream.stop()
	return err
}

// isOurs reports whether err is of the scan, rather than of the format.
func isOurs(err error) bool {
	switch err.(type) {
	case *FoundError, *LimitError, *DecodeError:
		return true
	}
	return false
}

func (d *decode) stop() {
	d.over = true
	d.end()
	d.stream.stop()
}

// clear returns the position in the parent up to which the output is clear.
func (d *decode) clear() int64 {
	return d.stream.toParent(d.stream.clear())
}

// asking is the decoder's source. It yields to push when it has no bytes.
type asking struct {
	d     *decode
	yield func(struct{}) bool
}

func (a *asking) fill() error {
	for len(a.d.in) == 0 {
		if a.d.processed = a.d.given; a.d.last {
			return io.ErrUnexpectedEOF
		}
		if !a.yield(struct{}{}) {
			return errStopped
		}
	}
	return nil
}

func (a *asking) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := a.fill(); err != nil {
		if err == io.ErrUnexpectedEOF {
			err = io.EOF // the decoder decides whether that is too early
		}
		return 0, err
	}
	n := copy(p, a.d.in)
	a.d.in = a.d.in[n:]
	a.d.given += int64(n)
	return n, nil
}

// putBack gives p, which was read last, once more.
func (a *asking) putBack(p []byte) {
	a.d.in = slices.Concat(p, a.d.in)
	a.d.given -= int64(len(p))
}

func (a *asking) ReadByte() (byte, error) {
	if err := a.fill(); err != nil {
		if err == io.ErrUnexpectedEOF {
			err = io.EOF
		}
		return 0, err
	}
	c := a.d.in[0]
	a.d.in = a.d.in[1:]
	a.d.given++
	return c, nil
}

// beginDecode starts a decoder for the magic at position at. If the bytes only
// look like the format, the decoder fails and ends.
func (l *stream) beginDecode(kind decodeKind, at int64) error {
	f := &formats[kind]
	if kind == isZlib {
		rest := l.bytes(at+2, min(l.fed(), at+2+zlibLook))
		if !mayInflate(rest) {
			return nil
		}
		if len(rest) < zlibLook && !l.ending {
			l.undecided = append(l.undecided, at)
			return nil
		}
	}
	if l.depth >= l.s.opt.Depth {
		if kind != isZlib {
			return &LimitError{"depth", l.s.opt.Place, l.s.root.fed()}
		}
		if l.depth > l.s.opt.Depth {
			return nil // pushDecodes refuses what it is in, if that is zlib itself
		}
	}
	if len(l.decodes) >= maxDecodes {
		return &LimitError{"decoders", l.s.opt.Place, l.s.root.fed()}
	}
	if err := l.s.spend(decodeCost); err != nil {
		return err
	}
	l.decodes = append(l.decodes, newDecode(l, f.name, at, f.open))
	// Run it at once, so that a false start does not count.
	return l.pushDecodes(false)
}

func (l *stream) runDecodes(end bool) error {
	if err := l.runPacked(end); err != nil {
		return err
	}
	return l.pushDecodes(end)
}

func (l *stream) pushDecodes(end bool) error {
	live := l.decodes[:0]
	for i, d := range l.decodes {
		if err := d.push(l.bytes(d.fed, l.fed()), end); err != nil {
			l.decodes = append(live, l.decodes[i:]...)
			return err
		}
		d.fed = l.fed()
		if !d.over {
			live = append(live, d)
			continue
		}
		d.stop()
		if err := l.ended(d); err != nil {
			l.decodes = append(live, l.decodes[i+1:]...)
			return err
		}
	}
	l.decodes = live
	return nil
}

// ended judges how a decoder ended. In escapes, which are mostly those of programs, a
// failure says nothing.
func (l *stream) ended(d *decode) error {
	d.sure = d.sure || d.likely != nil && d.likely()
	switch {
	case d.err == nil && d.stream.depth > l.s.opt.Depth:
		return &LimitError{"depth", l.s.opt.Place, l.s.root.fed()}
	case d.err == nil && d.entry != nil:
		d.entry.read = true
	case d.err == errOpaque || d.sure && !isRead(d.err) && (l.parent == nil || !l.linear):
		return l.s.found(l, Finding{Rule: unreadable, Transform: d.name, Warning: true}, d.start, d.start+2)
	}
	return nil
}
