package audit

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// lines reads a log line by line, in bounded memory.
type lines struct{ r *bufio.Reader }

func newLines(r io.Reader) *lines { return &lines{bufio.NewReaderSize(r, 4*maxRecord)} }

// next returns a line without its line break, valid until the next call. whole is false at the end, for an incomplete
// last line, and for a line that is longer than a record.
func (l *lines) next() (line []byte, whole bool, err error) {
	line, err = l.r.ReadSlice('\n')
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, bufio.ErrBufferFull):
		return line, false, nil
	case err != nil:
		return nil, false, err
	}
	return bytes.TrimSuffix(line, []byte("\n")), true, nil
}
