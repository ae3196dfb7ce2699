package audit

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
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

// Records calls f with each whole record of a kind in the log in dir, in their order. It checks no signature: Verify does.
// A log that is missing has no records.
func Records(ctx context.Context, dir string, kind Kind, f func(*Record)) error {
	if unlock := readLock(ctx, dir); unlock != nil {
		defer unlock()
	}
	file, err := os.OpenFile(filepath.Join(dir, "log"), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	of := []byte(`"` + string(kind) + `"`)
	for seq, lines := int64(0), newLines(file); ; seq++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		line, whole, err := lines.next()
		if err != nil || !whole {
			return err
		}
		if !bytes.Contains(line, of) {
			continue
		}
		r, err := parseRecord(line, seq)
		if err != nil {
			return fmt.Errorf("audit log %s: record %d: %w", dir, seq, err)
		}
		if r.Kind == kind {
			f(&r)
		}
	}
}
