package scan

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
)

// maxCodings bounds the nesting of content codings.
const maxCodings = 3

var (
	errUnknownCoding = errors.New("it is not known")
	errTrailing      = errors.New("bytes follow its end")
	errTooMany       = fmt.Errorf("more than %d inside one another", maxCodings)
)

// Decodes reports whether a content coding can be scanned, for callers that
// negotiate it.
func Decodes(coding string) bool { return opener(coding) != nil }

func opener(coding string) func(io.Reader) (io.Reader, error) {
	switch strings.ToLower(strings.TrimSpace(coding)) {
	case "gzip", "x-gzip":
		return func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) }
	case "deflate":
		return openDeflate
	case "br":
		return func(r io.Reader) (io.Reader, error) { return brotli.NewReader(r), nil }
	case "zstd":
		return zstdReader
	}
	return nil
}

// openDeflate reads the zlib format, as RFC 9110 has it, or raw deflate, as some
// senders write it.
func openDeflate(r io.Reader) (io.Reader, error) {
	var h [2]byte
	n, err := io.ReadFull(r, h[:])
	b := &begun{head: h[:n], Reader: r}
	if err == nil && h[0]&15 == 8 && (uint(h[0])<<8|uint(h[1]))%31 == 0 {
		return zlib.NewReader(b)
	}
	return flate.NewReader(b), nil
}

// begun puts back the bytes that were read from the beginning of a reader. It can
// read single bytes, so that a decoder takes no more than it needs and trailing
// bytes are noticed.
type begun struct {
	head []byte
	io.Reader
}

func (b *begun) Read(p []byte) (int, error) {
	if len(b.head) > 0 {
		n := copy(p, b.head)
		b.head = b.head[n:]
		return n, nil
	}
	return b.Reader.Read(p)
}

func (b *begun) ReadByte() (byte, error) {
	var one [1]byte
	n, err := io.ReadFull(b, one[:])
	if n == 1 {
		err = nil
	}
	return one[0], err
}

// addCodings makes l a stream that is only decoded. The last of the nested streams
// it decodes to is the one that is searched.
func (l *stream) addCodings(codings []string) error {
	var real []string
	for _, c := range codings {
		if c = strings.ToLower(strings.TrimSpace(c)); c != "" && c != "identity" {
			real = append(real, c)
		}
	}
	if len(real) > maxCodings {
		return &DecodeError{Coding: strings.Join(real, ", "), Place: l.s.opt.Place, Err: errTooMany}
	}
	for i := len(real) - 1; i >= 0; i-- {
		open := opener(real[i])
		if open == nil {
			return &DecodeError{Coding: real[i], Place: l.s.opt.Place, Err: errUnknownCoding}
		}
		l.coding = true
		d := newDecode(l, real[i], 0, func(_ *decode, r *asking) (io.Reader, error) { return open(r) })
		d.stream.depth = l.depth // what is declared is not hidden
		l.decodes = []*decode{d}
		l.codingName = real[i]
		l.told = false
		l = d.stream
		l.told = true
	}
	return nil
}

func (l *stream) feedCoding(end bool) error {
	d := l.decodes[0]
	in := l.bytes(d.fed, l.fed())
	d.fed = l.fed()
	if len(in) == 0 && !end {
		return nil
	}
	fail := func(err error) error {
		return &DecodeError{Coding: l.codingName, Place: l.s.opt.Place, Err: err}
	}
	if d.over {
		if len(in) > 0 {
			return fail(errTrailing)
		}
		return nil
	}
	if end && l.fed() == 0 {
		return nil // no body at all, which some send with the header
	}
	if err := d.push(in, end); err != nil {
		return err
	}
	switch {
	case d.err != nil:
		return fail(d.err)
	case d.over && d.unread > 0:
		return fail(errTrailing)
	case end && !d.over:
		return fail(io.ErrUnexpectedEOF)
	}
	return nil
}
