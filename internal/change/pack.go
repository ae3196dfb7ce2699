package change

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// blockSize is the smallest run of zeros that becomes a hole.
const blockSize = 4096

var zeroBlock [blockSize]byte

// pack is an append-only file that holds the contents of many files. A run may
// change 100,000 small files; separate files would cost an inode and a sync
// each. Runs of zeros become holes, so sparse files stay small.
type pack struct {
	f      *os.File
	off    int64 // where the next content begins
	stored int64 // bytes that are not holes
	buf    []byte
	bySum  map[string]int64
	dedup  bool
}

func newPack(f *os.File, dedup bool) *pack {
	return &pack{f: f, buf: make([]byte, 64*blockSize), bySum: map[string]int64{}, dedup: dedup}
}

var errBudget = errors.New("over the byte limit")

// append stores size bytes of r and returns their offset and SHA-256. budget
// bounds the bytes stored, not counting holes. If the content does not fit
// (errBudget, ENOSPC), the pack is unchanged, but r is partly read.
func (p *pack) append(ctx context.Context, r io.Reader, size, budget int64) (off int64, sum string, err error) {
	start := p.off
	if size >= blockSize {
		start = (start + blockSize - 1) &^ (blockSize - 1)
	}
	h := sha256.New()
	stored, err := p.copyIn(ctx, io.TeeReader(r, h), start, size, budget)
	sum = hex.EncodeToString(h.Sum(nil))
	if old, ok := p.bySum[sum]; err == nil && p.dedup && ok {
		// Truncate: writeSparse relies on zeros past the end.
		return old, sum, p.f.Truncate(p.off)
	}
	if err != nil {
		return 0, "", errors.Join(err, p.f.Truncate(p.off))
	}
	p.off, p.stored = start+size, p.stored+stored
	if p.dedup {
		p.bySum[sum] = start
	}
	return start, sum, nil
}

func (p *pack) copyIn(ctx context.Context, r io.Reader, at, size, budget int64) (stored int64, err error) {
	for size > 0 {
		if err := ctx.Err(); err != nil {
			return stored, err
		}
		n := int(min(int64(len(p.buf)), size))
		if _, err := io.ReadFull(r, p.buf[:n]); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return stored, err
		}
		w, err := writeSparse(p.f, p.buf[:n], at, budget-stored)
		stored += w
		if err != nil {
			return stored, err
		}
		at, size = at+int64(n), size-int64(n)
	}
	return stored, nil
}

// writeSparse writes b at off without blocks of zeros; the file must have no
// data there. It returns the number of bytes written, errBudget before it
// would exceed budget.
func writeSparse(f io.WriterAt, b []byte, off, budget int64) (int64, error) {
	var written int64
	for len(b) > 0 {
		zeros := 0
		for zeros < len(b) && isZero(b[zeros:min(zeros+blockSize, len(b))]) {
			zeros = min(zeros+blockSize, len(b))
		}
		b, off = b[zeros:], off+int64(zeros)
		n := 0
		for n < len(b) && !isZero(b[n:min(n+blockSize, len(b))]) {
			n = min(n+blockSize, len(b))
		}
		if n == 0 {
			continue
		}
		if written+int64(n) > budget {
			return written, errBudget
		}
		if _, err := f.WriteAt(b[:n], off); err != nil {
			return written, err
		}
		written += int64(n)
		b, off = b[n:], off+int64(n)
	}
	return written, nil
}

func isZero(b []byte) bool { return bytes.Equal(b, zeroBlock[:len(b)]) }

// finish extends the pack over a hole at its end and syncs it.
func (p *pack) finish() error {
	if err := p.f.Truncate(p.off); err != nil {
		return err
	}
	return p.f.Sync()
}

// reset empties the pack and frees its disk space.
func (p *pack) reset() error {
	p.off, p.stored, p.bySum = 0, 0, map[string]int64{}
	return p.f.Truncate(0)
}

// hashFile returns the SHA-256 of a host file of size bytes. It reads at most
// one byte more, in case the file grows.
func hashFile(ctx context.Context, f *os.File, size int64) (string, error) {
	h := sha256.New()
	buf := make([]byte, min(max(size, 0)+1, 256<<10))
	r := io.LimitReader(f, size+1)
	for {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		n, err := r.Read(buf)
		h.Write(buf[:n])
		if err == io.EOF {
			return hex.EncodeToString(h.Sum(nil)), nil
		}
		if err != nil {
			return "", err
		}
	}
}

func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
}
