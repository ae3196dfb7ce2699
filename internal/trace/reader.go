package trace

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// Reader reads the file of a run, even while it is being written. It trusts
// nothing: memory is bounded whatever the file says, and damaged or missing
// parts are reported with the numbers of their facts.
type Reader struct {
	f     *os.File
	name  string
	run   string
	begun time.Time
	dec   *zstd.Decoder
	whole hash.Hash

	off    int64
	prev   [sha256.Size]byte
	index  uint64
	last   uint64 // number of the last fact that was read or accounted for
	jumped bool   // the block at off was found by searching
	broken bool   // whole does not cover the whole file
	buf    []byte
	raw    []byte
	facts  []Fact // of the block before off
	at     int    // index in facts of the next one to return
	tail   Tail
}

// Tail describes the end of a trace, as far as it was read.
type Tail struct {
	// Ended means that the last block says that nothing follows, for Reason. An
	// empty Reason is the end of the run.
	Ended  bool
	Reason string
	// Torn is the number of bytes of an incomplete last block.
	Torn int64
	// Last is the number of the last fact that the file mentions.
	Last uint64
	// Dropped and Unkept count the facts up to Last that are not in the file.
	Dropped uint64
	Unkept  Counts
	// Digest is the file's digest, if all of it was read and none damaged.
	Digest []byte
}

// DamageError reports an unreadable part of a trace. Reading goes on after it.
type DamageError struct {
	File     string
	From, To int64 // bytes
	// First and Last number the facts that may have been there. Last 0: all
	// from First on. First 0: none.
	First, Last uint64
	Why         error
}

func (e *DamageError) Error() string {
	what := ""
	switch {
	case e.First == 0:
		what = "no fact is missing"
	case e.Last == 0:
		what = fmt.Sprintf("the facts from number %d on are missing", e.First)
	case e.First == e.Last:
		what = fmt.Sprintf("fact %d is missing", e.First)
	default:
		what = fmt.Sprintf("the facts %d to %d are missing", e.First, e.Last)
	}
	return fmt.Sprintf("%s: bytes %d to %d are damaged (%v): %s", e.File, e.From, e.To, e.Why, what)
}

func (e *DamageError) Unwrap() error { return e.Why }

// OpenFile opens the trace of run; an empty run accepts any.
func OpenFile(path, run string) (*Reader, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	r := &Reader{f: f, name: path, whole: sha256.New()}
	if r.dec, err = newDecoder(); err == nil {
		err = r.head(run)
	}
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("open trace: %w", err)
	}
	return r, nil
}

func (r *Reader) head(run string) error {
	if fi, err := r.f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("%s: %w: not a regular file", r.name, errForeign))
	}
	h := make([]byte, headSize)
	n, err := r.f.ReadAt(h, 0)
	switch {
	case !bytes.HasPrefix(h, []byte(fileMagic)[:min(n, len(fileMagic))]):
		return fmt.Errorf("%s: %w: it begins otherwise", r.name, errForeign)
	case err == io.EOF:
		return fmt.Errorf("%s: %w, at byte %d", r.name, ErrNoHead, n)
	case err != nil:
		return err
	}
	if v := binary.LittleEndian.Uint32(h[8:]); v != version {
		return &versionError{r.name, v}
	}
	r.begun = time.Unix(0, int64(binary.LittleEndian.Uint64(h[16:])))
	id, _, _ := bytes.Cut(h[24:24+runSize], []byte{0})
	if r.run = string(id); run != "" && r.run != run {
		return fmt.Errorf("%s: is the trace of another run, %q", r.name, r.run)
	}
	r.prev = sha256.Sum256(h)
	r.whole.Write(h)
	r.off = headSize
	return nil
}

// Run returns the id of the traced run.
func (r *Reader) Run() string { return r.run }

// Begun returns the time at which the trace began, by the host's clock.
func (r *Reader) Begun() time.Time { return r.begun }

// Close releases the file.
func (r *Reader) Close() error {
	if r.dec != nil {
		r.dec.Close()
	}
	return r.f.Close()
}

// Next reads the next fact into f. io.EOF means that there is none now; Tail
// says whether more may come. A *DamageError means that facts are missing here;
// the next call goes on after them. Any other error comes from the disk.
func (r *Reader) Next(f *Fact) error {
	for r.at == len(r.facts) {
		r.facts, r.at = r.facts[:0], 0
		if err := r.block(); err != nil {
			return err
		}
	}
	*f = r.facts[r.at]
	r.at++
	return nil
}

// Tail describes the end of the trace, once Next has returned io.EOF.
func (r *Reader) Tail() Tail {
	t := r.tail
	t.Last = max(t.Last, r.last)
	if t.Torn == 0 && !r.broken {
		t.Digest = r.whole.Sum(nil)
	}
	return t
}

// block reads the block at off.
func (r *Reader) block() error {
	fi, err := r.f.Stat()
	if err != nil {
		return err
	}
	size := fi.Size()
	r.tail.Torn = 0
	if r.off >= size {
		return io.EOF
	}
	if r.tail.Ended {
		return r.damaged(size, errBehind)
	}
	b, err := r.load(r.off, size)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		// The writer's last block, unless another follows it.
		if _, _, serr := r.search(r.off+1, size); errors.Is(serr, io.EOF) {
			r.tail.Torn = size - r.off
			return io.EOF
		}
		err = errHeader
	}
	if err == nil {
		err = r.unpack(b)
	}
	if err != nil {
		return r.damaged(size, err)
	}
	first := r.last + 1
	chained := r.jumped || b.prev == r.prev && b.index == r.index
	at := r.off
	r.accept(b)
	if chained {
		return nil
	}
	// The block is whole, but it does not belong here.
	r.broken = true
	d := &DamageError{File: r.name, From: at, To: at, Why: errors.New("blocks before this one were taken out, moved or replaced")}
	d.missing(first, b)
	return d
}

// accept records b as the last block that was read.
func (r *Reader) accept(b *block) {
	r.off += int64(blockSize) + int64(b.payload)
	r.prev, r.index, r.jumped = b.sum, b.index+1, false
	r.last = max(r.last, b.last)
	r.tail.Dropped, r.tail.Unkept = b.lost, b.unkept
	r.whole.Write(r.buf)
	if b.kind == endBlock {
		r.tail.Ended, r.tail.Reason = true, string(r.buf[blockSize:])
	}
}

// load reads the whole block at off into buf and checks its sum.
// io.ErrUnexpectedEOF means that the file ends before the block does.
func (r *Reader) load(off, size int64) (*block, error) {
	if cap(r.buf) == 0 {
		r.buf = make([]byte, blockSize+maxPayload)
	}
	h := r.buf[:min(blockSize, size-off)]
	if _, err := r.f.ReadAt(h, off); err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(h, []byte(blockMagic)[:min(len(h), len(blockMagic))]) {
		return nil, errMagic
	}
	if len(h) < blockSize {
		return nil, io.ErrUnexpectedEOF
	}
	b := &block{}
	if err := b.parse(h); err != nil {
		return nil, err
	}
	r.buf = r.buf[:blockSize+int(b.payload)]
	if off+int64(len(r.buf)) > size {
		return nil, io.ErrUnexpectedEOF
	}
	if _, err := r.f.ReadAt(r.buf[blockSize:], off+blockSize); err != nil {
		return nil, err
	}
	if sumOf(r.buf) != b.sum {
		return nil, errSum
	}
	return b, nil
}

// unpack decodes b's facts, all of them or none.
func (r *Reader) unpack(b *block) error {
	if b.kind == endBlock {
		return nil
	}
	if cap(r.raw) < maxRaw {
		r.raw = make([]byte, 0, maxRaw)
	}
	// The capacity is the bound, so a decompression bomb stops there.
	raw, err := r.dec.DecodeAll(r.buf[blockSize:], r.raw[:0:b.raw])
	if err != nil || len(raw) != int(b.raw) {
		return errors.Join(errors.New("its content does not unpack"), err)
	}
	for rest := raw; len(rest) > 0; {
		var f Fact
		if rest, err = f.parse(rest); err != nil || f.Seq < b.first || f.Seq > b.last {
			r.facts = r.facts[:0]
			return errFact
		}
		r.facts = append(r.facts, f)
	}
	if len(r.facts) != int(b.n) {
		r.facts = r.facts[:0]
		return errFact
	}
	return nil
}

var errBehind = errors.New("they stand behind the end")

// damaged skips the bytes at off and reports them.
func (r *Reader) damaged(size int64, why error) error {
	var disk *os.PathError
	if errors.As(why, &disk) {
		return why
	}
	r.broken = true
	d := &DamageError{File: r.name, From: r.off, To: size, First: r.last + 1, Why: why}
	from := r.off + 1
	if why == errBehind {
		from = r.off
	}
	at, b, err := r.search(from, size)
	switch {
	case err == io.EOF:
		r.off = size
		if why == errBehind {
			d.First = 0
		}
		return d
	case err != nil:
		return err
	}
	d.To, r.off, r.jumped, r.tail.Ended = at, at, true, false
	d.missing(d.First, b)
	return d
}

// missing computes which facts may have stood between fact first and block b.
func (e *DamageError) missing(first uint64, b *block) {
	e.First, e.Last = first, b.last
	if b.kind == factsBlock {
		e.Last = b.first - 1
	}
	if e.Last < e.First {
		e.First, e.Last = 0, 0
	}
}

// maxTries bounds the positions that search tries as the beginning of a block.
const maxTries = 1000

// search finds the next whole block at or after from. io.EOF means that there
// is none.
func (r *Reader) search(from, size int64) (int64, *block, error) {
	const step = 64 << 10
	magic := []byte(blockMagic)
	win := make([]byte, step+len(magic)-1)
	tries := 0
	for at := from; at < size; at += step {
		n, err := r.f.ReadAt(win[:min(int64(len(win)), size-at)], at)
		if err != nil && err != io.EOF {
			return 0, nil, err
		}
		for w, begin := win[:n], at; ; {
			i := bytes.Index(w, magic)
			if i < 0 {
				break
			}
			begin += int64(i)
			if b, err := r.load(begin, size); err == nil {
				return begin, b, nil
			}
			if tries++; tries > maxTries {
				return 0, nil, io.EOF
			}
			w = w[i+1:]
			begin++
		}
	}
	return 0, nil, io.EOF
}
