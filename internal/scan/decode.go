package scan

import (
	"encoding/binary"
	"errors"
	"io"
	"iter"
	"sync"
	"sync/atomic"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

// Decoders pull, scanners push: a decoder runs as a coroutine that yields when it
// needs more bytes. It has no goroutine of its own and runs only inside push.
type decodeKind uint8

const (
	isGzip decodeKind = iota + 1
	isZlib
	isZstd
	isZip
)

// magics lists the first bytes of compressed formats. A git pack is many zlib
// streams, each of which is found by itself.
var magics = []struct {
	kind  decodeKind
	name  string
	magic []string
	open  func(io.Reader) (io.Reader, error)
}{
	{isGzip, "gzip", []string{"\x1f\x8b\x08"}, openGzip},
	{isZlib, "zlib", []string{"\x78\x01", "\x78\x5e", "\x78\x9c", "\x78\xda"}, openZlib},
	{isZstd, "zstd", []string{"\x28\xb5\x2f\xfd"}, openZstd},
	{isZip, "zip", []string{"PK\x03\x04"}, openZip},
}

const (
	maxDecodes = 8
	decodeCost = 2 << 10 // steps, for beginning one
)

func openGzip(r io.Reader) (io.Reader, error) {
	z, err := gzip.NewReader(r)
	if err == nil {
		z.Multistream(false)
	}
	return z, err
}

// A git pack is thousands of zlib streams, so their readers are reused.
var zlibs sync.Pool

type zlibReader struct {
	io.ReadCloser
	zlib.Resetter
}

func openZlib(r io.Reader) (io.Reader, error) {
	if z, ok := zlibs.Get().(*zlibReader); ok {
		if err := z.Reset(r, nil); err != nil {
			zlibs.Put(z)
			return nil, err
		}
		return z, nil
	}
	z, err := zlib.NewReader(r)
	if err != nil {
		return nil, err
	}
	return &zlibReader{z, z.(zlib.Resetter)}, nil
}

// bufferLen divides no size in which decoders return output: so a read that does
// not fill the buffer means that the decoder holds no more.
const bufferLen = 10_000

var buffers = sync.Pool{New: func() any { return new([bufferLen]byte) }}

func openZstd(r io.Reader) (io.Reader, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		return nil, err
	}
	return z, nil
}

var (
	errNotPacked = errors.New("nothing that is compressed")
	errOpaque    = errors.New("it can't be read: encrypted, or compressed in an unknown way")
)

// openZip reads the header of one file in a zip; what follows the file is found
// by its own magic.
func openZip(r io.Reader) (io.Reader, error) {
	var h [30]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, err
	}
	skip := int64(binary.LittleEndian.Uint16(h[26:])) + int64(binary.LittleEndian.Uint16(h[28:]))
	if _, err := io.CopyN(io.Discard, r, skip); err != nil {
		return nil, err
	}
	switch method := binary.LittleEndian.Uint16(h[8:]); {
	case h[6]&1 != 0:
		return nil, errOpaque // encrypted
	case method == 8:
		return flate.NewReader(r), nil
	case method == 93:
		return openZstd(r)
	case method != 0:
		return nil, errOpaque
	}
	return nil, errNotPacked
}

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
}

var errStopped = errors.New("scan: the stream was given up")

func newDecode(l *stream, name string, start int64, open func(io.Reader) (io.Reader, error)) *decode {
	d := &decode{parent: l, stream: newStream(l.s, l, name, false), start: start, fed: start}
	d.stream.marks, d.stream.origin = append(d.stream.marks, mark{0, start, start}), start
	d.next, d.end = iter.Pull(func(yield func(struct{}) bool) {
		src := &asking{d: d, yield: yield}
		r, err := open(src)
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
				if err != io.EOF {
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
	for i := range magics {
		m := &magics[i]
		if m.kind != kind {
			continue
		}
		if l.depth >= l.s.opt.Depth {
			if kind == isZlib {
				return nil // two bytes, which stand everywhere
			}
			return &LimitError{"depth", l.s.opt.Place, l.s.root.fed()}
		}
		if len(l.decodes) >= maxDecodes {
			return &LimitError{"decoders", l.s.opt.Place, l.s.root.fed()}
		}
		if err := l.s.spend(decodeCost); err != nil {
			return err
		}
		l.decodes = append(l.decodes, newDecode(l, m.name, at, m.open))
		// Run it at once, so that a false start does not count.
		return l.pushDecodes(false)
	}
	return nil
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
		if d.err == errOpaque {
			if err := l.s.found(l, Finding{Rule: "unreadable", Transform: "zip", Warning: true}, d.start, d.start+4); err != nil {
				l.decodes = append(live, l.decodes[i+1:]...)
				return err
			}
		}
	}
	l.decodes = live
	return nil
}
