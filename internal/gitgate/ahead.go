package gitgate

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1" // git's ids
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
	// aheadFrom is the size in bytes from which a pack is read ahead: what is smaller is
	// read sooner when it is here.
	aheadFrom = 1 << 20
	// aheadChunks is by how many pieces of a pack, of 32 KiB at most, git may be before
	// the reading.
	aheadChunks = 64
)

// ahead reads objects for secrets while git takes their pack in: those that are in it
// whole. It has no say in what a pack is. When git has taken it, git lists the objects,
// and reads out each that was not read here with that id. So whatever this makes of a
// pack, nothing of it stays unread; and a pack of which this has read an object that git
// does not see is refused.
type ahead struct {
	in   *inspection
	h    *history
	ctx  context.Context
	c    chan *[]byte // pieces of the pack
	pool sync.Pool
	done chan struct{} // closed when it reads no more; what follows is then valid
	err  error         // some may not have been read to their ends
	took time.Duration // from the first of them to the last
	read map[objectID]struct{}
}

// objectID is an id of either format; the shorter is followed by zeros.
type objectID [sha256.Size]byte

// errAhead ends the reading: git will say what is wrong, if anything is.
var errAhead = errors.New("not a pack as it is understood here")

// ahead begins to read what is written to the result, until its end or that of ctx.
func (in *inspection) ahead(ctx context.Context, h *history) *ahead {
	a := &ahead{
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

// Write never fails: where nobody reads, it only goes on.
func (a *ahead) Write(p []byte) (int, error) {
	b := a.pool.Get().(*[]byte)
	*b = append((*b)[:0], p...)
	select {
	case a.c <- b:
	case <-a.done:
	}
	return len(p), nil
}

// end is the end of the pack. It waits until what came was read.
func (a *ahead) end() {
	close(a.c)
	<-a.done
}

// has reports whether the object was read.
func (a *ahead) has(id string) bool {
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

// pieces reads what was written.
type pieces struct {
	a    *ahead
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
func (a *ahead) pack(w *readers) {
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
	p := packed{r: r, left: a.in.g.cfg.Limits.Unpacked, sum: sha1.New(), refLen: idLen(a.h.format) / 2}
	if a.h.format == "sha256" {
		p.sum = sha256.New()
	}
	for range count {
		if a.object(&p, w) != nil {
			return
		}
	}
}

// packed is a pack that is read from its first object on.
type packed struct {
	r      *bufio.Reader
	z      io.ReadCloser // of zlib; nil before the first object
	left   int64         // bytes that may be unpacked
	sum    hash.Hash
	refLen int
}

// kinds of objects, by their numbers in a pack.
var kinds = [8]string{1: "commit", 2: "tree", 3: "blob", 4: "tag", 6: "delta at an offset", 7: "delta of an id"}

// next reads what stands before an object's content, which can be read from p.z then.
func (p *packed) next() (kind byte, size int64, err error) {
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

// over wants the content to end here.
func (p *packed) over() error {
	var one [1]byte
	if n, err := io.ReadFull(p.z, one[:]); n != 0 || !errors.Is(err, io.EOF) {
		return errAhead
	}
	return nil
}

// object reads one. Deltas are git's to put together, and what is large is better read
// as git gives it.
func (a *ahead) object(p *packed, w *readers) error {
	kind, size, err := p.next()
	if err != nil {
		return err
	}
	o := object{kind: kinds[kind], size: size}
	if kind > 4 || !o.small() {
		if n, err := io.Copy(io.Discard, io.LimitReader(p.z, size)); err != nil || n != size {
			return errAhead
		}
		return p.over()
	}
	b, err := w.hold(size)
	if err != nil {
		return err
	}
	if _, err := io.ReadFull(p.z, *b); err != nil {
		return err
	}
	if err := p.over(); err != nil {
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
