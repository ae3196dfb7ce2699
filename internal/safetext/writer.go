package safetext

import (
	"io"
	"unicode/utf8"
)

// Options configures a Writer. The zero value writes every line completely and without a prefix.
type Options struct {
	// Prefix precedes each line, so that a line of a bottle cannot be mistaken for one of the host. It is not escaped.
	Prefix string
	// MaxLine bounds a line in bytes, without Prefix; the rest of a longer one is replaced by "…". 0: no bound.
	MaxLine int
	// Max bounds all output in bytes, without prefixes; then one "…" follows and nothing more. 0: no bound.
	Max int64
}

// Writer escapes a stream as Lines does a string. It holds back at most three bytes (an incomplete character or \r\n) until
// the next Write or Close. It is not safe for concurrent use.
type Writer struct {
	w    io.Writer
	o    Options
	e    encoder
	held []byte // an incomplete unit, < utf8.UTFMax bytes
	buf  []byte

	line   int   // bytes written of this line
	total  int64 // bytes written
	opened bool  // this line's prefix was written
	cut    bool  // this line's ellipsis was written
	full   bool  // Max is reached
	err    error
}

// NewWriter returns a Writer that writes to w.
func NewWriter(w io.Writer, o Options) *Writer {
	return &Writer{w: w, o: o, e: encoder{multi: true}}
}

// Write escapes p. It returns len(p) unless the underlying writer failed; all later calls then return the same error.
func (w *Writer) Write(p []byte) (int, error) {
	const chunk = 4096
	for off := 0; off < len(p); off += chunk {
		if err := w.feed(p[off:min(off+chunk, len(p))], false); err != nil {
			return 0, err
		}
	}
	return len(p), w.err
}

// Close writes the bytes that were held back. It does not close the underlying writer. Write may be called after Close.
func (w *Writer) Close() error { return w.feed(nil, true) }

func (w *Writer) feed(p []byte, final bool) error {
	if w.err != nil {
		return w.err
	}
	s := string(w.held) + string(p)
	w.held, w.buf = w.held[:0], w.buf[:0]
	var unit [4 * utf8.UTFMax]byte
	for len(s) > 0 && !w.full {
		out, n := w.e.next(unit[:0], s, final)
		if n == 0 {
			w.held = append(w.held, s...)
			break
		}
		w.put(out)
		s = s[n:]
	}
	if len(w.buf) == 0 {
		return nil
	}
	_, w.err = w.w.Write(w.buf)
	return w.err
}

func (w *Writer) put(out []byte) {
	if w.o.Max > 0 && w.total+int64(len(out)) > w.o.Max {
		w.full = true
		if !w.cut {
			w.open()
			w.buf = append(w.buf, ellipsis...)
		}
		w.buf = append(w.buf, '\n')
		return
	}
	newline := len(out) == 1 && out[0] == '\n'
	if !newline && w.o.MaxLine > 0 && w.line+len(out) > w.o.MaxLine {
		if !w.cut {
			w.open()
			w.buf = append(w.buf, ellipsis...)
			w.cut = true
		}
	}
	if !newline && w.cut {
		return
	}
	w.open()
	w.buf = append(w.buf, out...)
	w.total += int64(len(out))
	w.line += len(out)
	if newline {
		w.line, w.opened, w.cut = 0, false, false
	}
}

func (w *Writer) open() {
	if !w.opened {
		w.buf = append(w.buf, w.o.Prefix...)
		w.opened = true
	}
}
