package gitgate

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/gitobject"
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
	read map[gitobject.ID]struct{}
}

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
	raw, ok := gitobject.ParseID(id)
	if !ok {
		return false
	}
	_, ok = a.read[raw]
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
	_, _ = r.Discard(gitobject.PackHeader)
	a.read = map[gitobject.ID]struct{}{}
	p := packReader{PackReader: gitobject.NewPackReader(r, idLen(a.h.format)), left: a.in.g.cfg.Limits.Unpacked, sum: gitobject.NewHash(idLen(a.h.format)), refLen: idLen(a.h.format) / 2}
	for range count {
		if a.object(&p, w) != nil {
			return
		}
	}
}

// packReader reads the objects of a pack, from the first on.
type packReader struct {
	*gitobject.PackReader
	left   int64 // bytes that may be unpacked
	sum    hash.Hash
	refLen int
}

// object reads one object. It skips deltas, which git resolves, and large objects, which
// are better read from git.
func (a *readAhead) object(p *packReader, w *readers) error {
	e, err := p.Next()
	if err != nil {
		return err
	}
	if p.left -= e.Size; p.left < 0 {
		return errAhead
	}
	if err := p.Open(); err != nil {
		return err
	}
	o := object{kind: e.Kind.String(), size: e.Size}
	if !e.Kind.Whole() || !o.small() {
		if n, err := io.Copy(io.Discard, io.LimitReader(p, e.Size)); err != nil || n != e.Size {
			return errAhead
		}
		return p.End()
	}
	b, err := w.hold(e.Size)
	if err != nil {
		return err
	}
	if _, err := io.ReadFull(p, *b); err != nil {
		return err
	}
	if err := p.End(); err != nil {
		return err
	}
	var id gitobject.ID
	gitobject.Begin(p.sum, o.kind, e.Size)
	_, _ = p.sum.Write(*b)
	p.sum.Sum(id[:0])
	o.id = id.Hex(2 * p.refLen)
	if e.Kind == gitobject.Tree {
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
