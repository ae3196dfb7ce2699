package gitgate

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1" // for git's object ids
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"
	"time"

	"github.com/klauspost/compress/zlib"
)

const (
	// aheadFrom is the least size, in bytes, of a pack that is read ahead. A smaller one is
	// read faster after git has stored it.
	aheadFrom = 1 << 20
	// aheadChunks is the number of pieces of a pack, of at most 32 KiB, that git may be
	// ahead of the reading.
	aheadChunks = 64
)

// readAhead scans the whole (undeltified) objects of a pack for secrets while git stores
// the pack. It does not decide what is in the pack. Afterwards git lists the objects, and
// each one whose id was not read here is read from git. So no object stays unread, even if
// readAhead misreads a pack. A pack is refused if readAhead found an object that git does
// not see.
type readAhead struct {
	in   *inspection
	h    *history
	ctx  context.Context
	c    chan *[]byte // pieces of the pack
	pool sync.Pool
	done chan struct{} // closed when reading has ended; the fields below are valid from then on
	err  error         // not nil: some objects may not have been read to the end
	took time.Duration // from the first object to the last
	read map[objectID]struct{}
}

// objectID is an object id of either format. Zeros follow the shorter one.
type objectID [sha256.Size]byte

// errAhead ends the reading. git reports what is wrong, if anything is.
var errAhead = errors.New("the rest of the pack is left to git")

// readAhead starts to read what is written to the result. It ends with the pack or with
// ctx.
func (in *inspection) readAhead(ctx context.Context, h *history) *readAhead {
	a := &readAhead{
		in: in, h: h, ctx: ctx, c: make(chan *[]byte, aheadChunks), done: make(chan struct{}),
		pool: sync.Pool{New: func() any { return new([]byte) }},
	}
	go func() { // ends with the pack, or with ctx
		defer close(a.done)
		w := in.begin(ctx)
		a.pack(w)
		a.err = w.end()
	}()
	return a
}

// Write passes on a piece of the pack. It never fails; after the reading has ended it drops
// the piece.
func (a *readAhead) Write(p []byte) (int, error) {
	b := a.pool.Get().(*[]byte)
	*b = append((*b)[:0], p...)
	select {
	case a.c <- b:
	case <-a.done:
	}
	return len(p), nil
}

// end marks the end of the pack, and blocks until the reading has ended.
func (a *readAhead) end() {
	close(a.c)
	<-a.done
}

// has reports whether the object was read.
func (a *readAhead) has(id string) bool {
	var raw objectID
	if len(id) > hex.EncodedLen(len(raw)) {
		return false
	}
	if _, err := hex.Decode(raw[:], []byte(id)); err != nil {
		return false
	}
	_, ok := a.read[raw]
	return ok
}

// pieces is a Reader of the written pieces.
type pieces struct {
	a    *readAhead
	now  *[]byte
	rest []byte
}

func (p *pieces) Read(b []byte) (int, error) {
	for len(p.rest) == 0 {
		if p.now != nil {
			p.a.pool.Put(p.now)
			p.now = nil
		}
		select {
		case next, ok := <-p.a.c:
			if !ok {
				return 0, io.EOF
			}
			p.now, p.rest = next, *next
		case <-p.a.ctx.Done():
			return 0, p.a.ctx.Err()
		}
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// pack reads objects up to the first that it does not understand (gitformat-pack).
func (a *readAhead) pack(w *readers) {
	r := bufio.NewReaderSize(&pieces{a: a}, aheadFrom)
	head, err := r.Peek(a.in.g.aheadFrom)
	if err != nil || string(head[:8]) != "PACK\x00\x00\x00\x02" {
		return
	}
	begun := time.Now()
	defer func() { a.took = time.Since(begun) }()
	count := binary.BigEndian.Uint32(head[8:])
	_, _ = r.Discard(12)
	a.read = map[objectID]struct{}{}
	p := packReader{r: r, left: a.in.g.cfg.Limits.Unpacked, sum: sha1.New(), refLen: idLen(a.h.format) / 2}
	if a.h.format == "sha256" {
		p.sum = sha256.New()
	}
	for range count {
		if a.object(&p, w) != nil {
			return
		}
	}
}

// packReader reads the objects of a pack, from the first on.
type packReader struct {
	r      *bufio.Reader
	z      io.ReadCloser // the zlib reader; nil before the first object
	left   int64         // bytes that may be unpacked
	sum    hash.Hash
	refLen int
}

// kinds names the types of objects, by their numbers in a pack.
var kinds = [8]string{1: "commit", 2: "tree", 3: "blob", 4: "tag", 6: "delta at an offset", 7: "delta of an id"}

// next reads the header of an object. The content can then be read from p.z.
func (p *packReader) next() (kind byte, size int64, err error) {
	b, err := p.r.ReadByte()
	if err != nil {
		return 0, 0, err
	}
	kind, size = b>>4&7, int64(b&15)
	for shift := 4; b&0x80 != 0; shift += 7 {
		if b, err = p.r.ReadByte(); err != nil || shift > 50 {
			return 0, 0, errAhead
		}
		size |= int64(b&0x7f) << shift
	}
	switch kind {
	case 1, 2, 3, 4:
	case 6:
		for n := 0; ; n++ {
			if b, err = p.r.ReadByte(); err != nil || n > 9 {
				return 0, 0, errAhead
			}
			if b&0x80 == 0 {
				break
			}
		}
	case 7:
		if _, err = p.r.Discard(p.refLen); err != nil {
			return 0, 0, err
		}
	default:
		return 0, 0, errAhead
	}
	if p.left -= size; p.left < 0 {
		return 0, 0, errAhead
	}
	if p.z == nil {
		p.z, err = zlib.NewReader(p.r)
	} else {
		err = p.z.(zlib.Resetter).Reset(p.r, nil)
	}
	return kind, size, err
}

// atEnd returns an error unless the content ends here.
func (p *packReader) atEnd() error {
	var one [1]byte
	if n, err := io.ReadFull(p.z, one[:]); n != 0 || !errors.Is(err, io.EOF) {
		return errAhead
	}
	return nil
}

// object reads one object. It skips deltas, which git resolves, and large objects, which
// are better read from git.
func (a *readAhead) object(p *packReader, w *readers) error {
	kind, size, err := p.next()
	if err != nil {
		return err
	}
	o := object{kind: kinds[kind], size: size}
	if kind > 4 || !o.small() {
		if n, err := io.Copy(io.Discard, io.LimitReader(p.z, size)); err != nil || n != size {
			return errAhead
		}
		return p.atEnd()
	}
	b, err := w.hold(size)
	if err != nil {
		return err
	}
	if _, err := io.ReadFull(p.z, *b); err != nil {
		return err
	}
	if err := p.atEnd(); err != nil {
		return err
	}
	var id objectID
	p.sum.Reset()
	fmt.Fprintf(p.sum, "%s %d\x00", o.kind, size)
	_, _ = p.sum.Write(*b)
	p.sum.Sum(id[:0])
	o.id = hex.EncodeToString(id[:p.refLen])
	if kind == 2 {
		err = a.in.tree(o, a.h, bytes.Clone(*b))
		w.drop(b)
	} else {
		err = w.give(o, b, a.h)
	}
	if err == nil {
		a.read[id] = struct{}{}
		a.in.count(o)
	}
	return err
}
