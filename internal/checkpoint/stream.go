package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// A stream is a tar archive with two additions. A regular file has its inode number, which
// no other file of the bottle ever has, in the fields for a device's numbers: the higher
// bits in the major one, 21 bits in the minor one. A regular file that is as it was in the
// stream before has the type 'U' and no content; its size is that of the content.
//
// Format: POSIX.1-2001 pax, in which 'A' to 'Z' are types of one's own.

const (
	block      = 512
	maxHead    = 4 << 20 // bytes of the headers of one entry
	maxEntries = 1_000_000

	regular  = '0'
	same     = 'U'
	extended = 'x'
)

var errMalformed = errors.New("is not a stream of files")

// entry is one of a stream's: its headers, followed by size bytes of content unless it is
// unchanged.
type entry struct {
	head []byte // whole blocks; the last one is the entry's own header
	typ  byte
	ino  uint64 // of regular files
	size int64  // bytes of content
}

// follows returns how many bytes of content follow the headers.
func (e *entry) follows() int64 {
	if e.typ == same {
		return 0
	}
	return e.size
}

// whole makes an unchanged file's entry that of a file with its content.
func (e *entry) whole() {
	e.head[len(e.head)-block+156], e.typ = regular, regular
	e.sum()
}

// sum sets the checksum of the entry's own header.
func (e *entry) sum() {
	own := e.head[len(e.head)-block:]
	copy(own[148:156], "        ")
	sum := 0
	for _, c := range own {
		sum += int(c)
	}
	copy(own[148:156], fmt.Sprintf("%06o\x00 ", sum))
}

// next reads the headers of the next entry, and returns nil at the archive's end.
func next(r io.Reader) (*entry, error) {
	e := &entry{}
	var override int64 = -1
	for {
		var b [block]byte
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return nil, fmt.Errorf("%w: %w", errMalformed, noEOF(err))
		}
		if b == [block]byte{} {
			if len(e.head) > 0 {
				return nil, fmt.Errorf("%w: it ends after an extended header", errMalformed)
			}
			return nil, nil
		}
		size, err := octal(b[124:136])
		if err != nil {
			return nil, err
		}
		e.head = append(e.head, b[:]...)
		if b[156] != extended {
			return e, e.finish(&b, size, override)
		}
		if size > maxHead || len(e.head) > maxHead {
			return nil, fmt.Errorf("%w: an extended header of %d bytes", errMalformed, size)
		}
		body := make([]byte, padded(size))
		if _, err := io.ReadFull(r, body); err != nil {
			return nil, fmt.Errorf("%w: %w", errMalformed, noEOF(err))
		}
		e.head = append(e.head, body...)
		if override, err = sizeIn(body[:size]); err != nil {
			return nil, err
		}
	}
}

// finish fills in what the entry's own header says. size is the header's, override that of
// the extended header or negative.
func (e *entry) finish(b *[block]byte, size, override int64) error {
	e.typ, e.size = b[156], size
	if override >= 0 {
		e.size = override
	}
	if e.typ != regular && e.typ != same {
		return nil
	}
	major, err := octal(b[329:337])
	if err != nil {
		return err
	}
	minor, err := octal(b[337:345])
	e.ino = uint64(major)<<21 | uint64(minor)
	return err
}

// noEOF returns io.ErrUnexpectedEOF in place of io.EOF.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func padded(n int64) int64 { return (n + block - 1) / block * block }

// octal reads a number of a header: digits, then spaces or NUL.
func octal(b []byte) (int64, error) {
	s := string(bytes.TrimRight(b, " \x00"))
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 8, 62)
	if err != nil {
		return 0, fmt.Errorf("%w: the number %q", errMalformed, s)
	}
	return int64(n), nil
}

// sizeIn returns the size that an extended header's records have, or -1.
func sizeIn(records []byte) (int64, error) {
	size := int64(-1)
	for len(records) > 0 {
		length, _, ok := bytes.Cut(records, []byte(" "))
		n, err := strconv.Atoi(string(length))
		if !ok || err != nil || n <= len(length)+1 || n > len(records) {
			return 0, fmt.Errorf("%w: an extended header's record", errMalformed)
		}
		key, value, _ := bytes.Cut(records[len(length)+1:n-1], []byte("="))
		if string(key) == "size" {
			v, err := strconv.ParseUint(string(value), 10, 62)
			if err != nil {
				return 0, fmt.Errorf("%w: the size %q", errMalformed, value)
			}
			size = int64(v)
		}
		records = records[n:]
	}
	return size, nil
}
