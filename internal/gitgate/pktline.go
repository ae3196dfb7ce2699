package gitgate

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// git's protocol consists of pkt-lines: a length and so many bytes (gitprotocol-common).
// The gate parses and writes every line, and never copies one through, so that its output
// is well formed whatever it reads.

// maxLine is the length of the longest line, in bytes, including its four digits.
const maxLine = 65520

// kind is the type of a line, which its length tells.
type kind uint8

const (
	data     kind = iota
	flush         // 0000
	delim         // 0001
	response      // 0002
)

var errFraming = errors.New("malformed line of the protocol")

// lineReader reads lines. The result of next is valid until the next call.
type lineReader struct {
	r   *bufio.Reader
	buf []byte
}

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, maxLine), buf: make([]byte, maxLine)}
}

// next returns the next line. It returns io.EOF at an end between two lines, and
// io.ErrUnexpectedEOF at one inside a line.
func (l *lineReader) next() (kind, []byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(l.r, head[:]); err != nil {
		return 0, nil, err
	}
	n, err := strconv.ParseUint(string(head[:]), 16, 16)
	if err != nil || head[0] == '+' || head[0] == '-' {
		return 0, nil, fmt.Errorf("%w: its length is %q", errFraming, head[:])
	}
	switch {
	case n <= 2:
		return []kind{flush, delim, response}[n], nil, nil
	case n < 4 || n > maxLine:
		return 0, nil, fmt.Errorf("%w: a length of %d", errFraming, n)
	}
	p := l.buf[:n-4]
	if _, err := io.ReadFull(l.r, p); err != nil {
		return 0, nil, noEOF(err)
	}
	return data, p, nil
}

// noEOF returns io.ErrUnexpectedEOF for io.EOF, and other errors as they are.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// appendLine appends a line with the parts p, of at most maxLine-4 bytes together.
func appendLine(b []byte, p ...string) []byte {
	n := 4
	for _, s := range p {
		n += len(s)
	}
	b = fmt.Appendf(b, "%04x", n)
	for _, s := range p {
		b = append(b, s...)
	}
	return b
}

// appendData is appendLine for bytes.
func appendData(b, p []byte) []byte {
	return append(fmt.Appendf(b, "%04x", len(p)+4), p...)
}

func appendFlush(b []byte) []byte { return append(b, "0000"...) }

// chomp removes the line feed that may end a line of text.
func chomp(p []byte) string {
	if n := len(p); n > 0 && p[n-1] == '\n' {
		p = p[:n-1]
	}
	return string(p)
}
