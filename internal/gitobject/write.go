package gitobject

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/klauspost/compress/zlib"
)

// WritePack writes a pack of the objects ids, each of the set and named once. It copies
// compressed bytes where it can: those of whole objects, and of differences whose base is in
// the pack as well.
func (o *Objects) WritePack(ctx context.Context, to io.Writer, ids []ID) error {
	in := make(map[ID]bool, len(ids))
	for _, id := range ids {
		in[id] = true
	}
	sum := NewHash(o.digits)
	buffered := bufio.NewWriterSize(to, 256<<10)
	w := io.MultiWriter(buffered, sum)
	head := append([]byte("PACK\x00\x00\x00\x02"), 0, 0, 0, 0)
	binary.BigEndian.PutUint32(head[8:], uint32(len(ids)))
	if _, err := w.Write(head); err != nil {
		return err
	}
	z, err := zlib.NewWriterLevel(w, zlib.BestSpeed)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return err
		}
		x := o.at[id]
		if x == nil {
			return fmt.Errorf("object %s is not here", id.Hex(o.digits))
		}
		if err := o.write(w, z, x, in); err != nil {
			return err
		}
	}
	if _, err := buffered.Write(sum.Sum(nil)); err != nil {
		return err
	}
	return buffered.Flush()
}

func (o *Objects) write(w io.Writer, z *zlib.Writer, x *object, in map[ID]bool) error {
	whole := func(size int64, body io.Reader) error {
		if _, err := w.Write(entryHead(x.kind, size)); err != nil {
			return err
		}
		z.Reset(w)
		if n, err := io.CopyBuffer(z, struct{ io.Reader }{io.LimitReader(body, size)}, o.buf); err != nil || n != size {
			return ErrPack
		}
		return z.Close()
	}
	switch {
	case x.loose:
		b, err := o.openLoose(x)
		if err != nil {
			return err
		}
		return whole(x.size, b)
	case x.base != nil && !in[x.base.id]:
		b, err := o.body(x)
		if err != nil {
			return err
		}
		return whole(int64(len(b)), bytes.NewReader(b))
	}
	head := entryHead(x.kind, x.size)
	if x.base != nil {
		head = append(entryHead(nameDelta, x.size), x.base.id[:o.digits/2]...)
	}
	if _, err := w.Write(head); err != nil {
		return err
	}
	_, err := io.CopyBuffer(w, struct{ io.Reader }{io.NewSectionReader(x.src, x.off, x.clen)}, o.buf)
	return err
}

// entryHead returns the header of an object in a pack.
func entryHead(k Kind, size int64) []byte {
	b := []byte{byte(k)<<4 | byte(size&15)}
	for size >>= 4; size > 0; size >>= 7 {
		b[len(b)-1] |= 0x80
		b = append(b, byte(size&0x7f))
	}
	return b
}
