package gitobject

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"

	"github.com/klauspost/compress/zlib"
)

// ErrPack means that a pack, or an object in one, is malformed.
var ErrPack = errors.New("a pack is malformed")

// Entry describes an object in a pack before its content (gitformat-pack).
type Entry struct {
	Kind Kind
	Size int64 // of the content, or of the difference
	// For a difference, its base: the distance to it in the pack, or its name.
	back int64
	base ID
}

// PackReader reads the objects of a pack in their order. Its errors end the reading.
type PackReader struct {
	r      *bufio.Reader
	z      io.ReadCloser // the zlib reader; nil before the first object
	digits int
}

// NewPackReader returns a reader of the pack in r.
func NewPackReader(r *bufio.Reader, digits int) *PackReader {
	return &PackReader{r: r, digits: digits}
}

// PackHeader is the length of a pack's header, in bytes.
const PackHeader = 12

// Begin reads the pack's header and returns the number of objects that it claims.
func (p *PackReader) Begin() (uint32, error) {
	var head [PackHeader]byte
	if _, err := io.ReadFull(p.r, head[:]); err != nil || string(head[:8]) != "PACK\x00\x00\x00\x02" {
		return 0, ErrPack
	}
	return binary.BigEndian.Uint32(head[8:]), nil
}

// Next reads the header of an object. Open must follow.
func (p *PackReader) Next() (Entry, error) {
	b, err := p.r.ReadByte()
	if err != nil {
		return Entry{}, err
	}
	e := Entry{Kind: Kind(b >> 4 & 7), Size: int64(b & 15)}
	for shift := 4; b&0x80 != 0; shift += 7 {
		if b, err = p.r.ReadByte(); err != nil || shift > 50 {
			return e, ErrPack
		}
		e.Size |= int64(b&0x7f) << shift
	}
	switch {
	case e.Kind.Whole():
	case e.Kind == offsetDelta:
		if b, err = p.r.ReadByte(); err != nil {
			return e, ErrPack
		}
		e.back = int64(b & 0x7f)
		for n := 0; b&0x80 != 0; n++ {
			if b, err = p.r.ReadByte(); err != nil || n > 6 {
				return e, ErrPack
			}
			e.back = (e.back+1)<<7 | int64(b&0x7f)
		}
	case e.Kind == nameDelta:
		if _, err = io.ReadFull(p.r, e.base[:p.digits/2]); err != nil {
			return e, ErrPack
		}
	default:
		return e, ErrPack
	}
	return e, nil
}

// Open begins to read the object's content, which Read then returns.
func (p *PackReader) Open() (err error) {
	if p.z == nil {
		p.z, err = zlib.NewReader(p.r)
		return err
	}
	return p.z.(zlib.Resetter).Reset(p.r, nil)
}

// Read reads from the content of the current object.
func (p *PackReader) Read(b []byte) (int, error) { return p.z.Read(b) }

// End returns an error unless the content ends here.
func (p *PackReader) End() error {
	var one [1]byte
	if n, err := io.ReadFull(p.z, one[:]); n != 0 || !errors.Is(err, io.EOF) {
		return ErrPack
	}
	return nil
}

// patch applies a difference to its base (gitformat-pack, "Deltified representation").
func patch(base, delta []byte) ([]byte, error) {
	from, delta := varint(delta)
	size, delta := varint(delta)
	if from != int64(len(base)) || size < 0 || size > maxBody {
		return nil, ErrPack
	}
	out := make([]byte, 0, size)
	for len(delta) > 0 {
		op := delta[0]
		delta = delta[1:]
		if op&0x80 == 0 {
			if op == 0 || int(op) > len(delta) || int64(len(out))+int64(op) > size {
				return nil, ErrPack
			}
			out, delta = append(out, delta[:op]...), delta[op:]
			continue
		}
		var v [7]int64
		for i := range v {
			if op>>i&1 == 1 {
				if len(delta) == 0 {
					return nil, ErrPack
				}
				v[i], delta = int64(delta[0]), delta[1:]
			}
		}
		off, n := v[0]|v[1]<<8|v[2]<<16|v[3]<<24, v[4]|v[5]<<8|v[6]<<16
		if n == 0 {
			n = 1 << 16
		}
		if off+n > int64(len(base)) || int64(len(out))+n > size {
			return nil, ErrPack
		}
		out = append(out, base[off:off+n]...)
	}
	if int64(len(out)) != size {
		return nil, ErrPack
	}
	return out, nil
}

// varint reads a little-endian number of 7 bits a byte, and returns the rest; -1 if it is
// malformed.
func varint(b []byte) (int64, []byte) {
	v := int64(0)
	for i := 0; i < len(b) && i < 8; i++ {
		v |= int64(b[i]&0x7f) << (7 * i)
		if b[i]&0x80 == 0 {
			return v, b[i+1:]
		}
	}
	return -1, nil
}
