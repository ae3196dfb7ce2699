package scan

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"

	"github.com/ulikunitz/xz/lzma"
)

// xzReader reads the blocks of one xz stream. The index behind them has no content,
// and checksums are not compared: what is wrong by them was scanned all the same.
//
// The library has a reader for this. But that takes as much memory as the file asks
// for, and reads on behind the file.
type xzReader struct {
	d     *decode
	src   *chunks
	check int // bytes of a block's checksum
	block *lzma.Reader2
}

// maxXZWindow bounds the window of a stream, in bytes. xz -9 uses as much.
const maxXZWindow = 64 << 20

func openXZ(d *decode, r *asking) (io.Reader, error) {
	x, err := newXZReader(d, r)
	d.sure = err != errNotPacked
	return x, err
}

func newXZReader(d *decode, r io.Reader) (io.Reader, error) {
	var h [12]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, err
	}
	if string(h[:6]) != "\xfd7zXZ\x00" || crc32.ChecksumIEEE(h[6:8]) != binary.LittleEndian.Uint32(h[8:]) {
		return nil, errNotPacked
	}
	if h[6] != 0 || h[7] > 15 {
		return nil, errOpaque
	}
	check := 0
	if h[7] > 0 {
		check = 4 << ((h[7] - 1) / 3)
	}
	return &xzReader{d: d, src: &chunks{r: r}, check: check}, nil
}

// Read reads no further than the end of a chunk: then it does not fill p, and the
// decoder holds nothing.
func (x *xzReader) Read(p []byte) (n int, err error) {
	for x.block == nil {
		if err := x.begin(); err != nil {
			return 0, err
		}
	}
	// The first byte makes the library read the head of the next chunk.
	for n < len(p) {
		to := n + 1
		if x.src.made > 0 {
			to = int(min(int64(n)+x.src.made, int64(len(p))))
		}
		m, err := x.block.Read(p[n:to])
		n += m
		x.src.made -= int64(m)
		if err == io.EOF {
			return n, x.end()
		}
		if err != nil || x.src.made == 0 {
			return n, err
		}
	}
	return n, nil
}

// begin reads the head of a block: which filters, and the size of the window. It
// returns io.EOF at the end of the blocks.
func (x *xzReader) begin() error {
	x.src.n = 0
	var size [1]byte
	if _, err := io.ReadFull(x.src, size[:]); err != nil {
		return early(err)
	}
	if size[0] == 0 {
		return io.EOF // the index
	}
	h := make([]byte, 4*(int(size[0])+1))
	h[0] = size[0]
	if _, err := io.ReadFull(x.src, h[1:]); err != nil {
		return early(err)
	}
	body := h[:len(h)-4]
	if crc32.ChecksumIEEE(body) != binary.LittleEndian.Uint32(h[len(body):]) {
		return errOpaque
	}
	rest := bytes.NewReader(body[2:])
	for range int(body[1]>>6&1 + body[1]>>7) { // two sizes, which may be there
		if _, err := binary.ReadUvarint(rest); err != nil {
			return errOpaque
		}
	}
	var filter [3]byte
	if _, err := io.ReadFull(rest, filter[:]); err != nil || body[1]&0x3f != 0 || filter[0] != 0x21 || filter[1] != 1 {
		return errOpaque // more than LZMA2
	}
	window, err := lzma.DecodeDictCap(filter[2])
	if err != nil || window > maxXZWindow {
		return errOpaque
	}
	if err := x.d.remember(window); err != nil {
		return err
	}
	x.src.chunked(true)
	x.block, err = lzma.Reader2Config{DictCap: int(max(window, lzma.MinDictCap))}.NewReader2(x.src)
	return err
}

// end reads what follows the content of a block.
func (x *xzReader) end() error {
	x.src.chunked(false)
	x.block = nil
	pad := int(-x.src.n&3) + x.check
	_, err := io.CopyN(io.Discard, x.src, int64(pad))
	return early(err)
}

func early(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// chunks counts the bytes that are read of LZMA2, and the bytes that its current chunk
// decodes to.
type chunks struct {
	r    io.Reader
	n    int64
	on   bool
	head []byte // of a chunk, as far as it was read
	left int64  // bytes behind the head
	made int64
}

func (c *chunks) chunked(on bool) { c.on, c.head, c.left, c.made = on, c.head[:0], 0, 0 }

func (c *chunks) Read(p []byte) (int, error) {
	if c.on && c.left == 0 && len(p) > 1 {
		p = p[:1] // of a head
	} else if c.on && c.left > 0 {
		p = p[:min(int64(len(p)), c.left)]
	}
	n, err := c.r.Read(p)
	c.n += int64(n)
	if !c.on {
		return n, err
	}
	if c.left > 0 {
		c.left -= int64(n)
		return n, err
	}
	for _, b := range p[:n] {
		c.add(b)
	}
	return n, err
}

// add adds a byte of the head of a chunk.
func (c *chunks) add(b byte) {
	c.head = append(c.head, b)
	h := c.head
	u16 := func(at int) int64 { return int64(h[at])<<8 | int64(h[at+1]) }
	switch kind := h[0]; {
	case kind == 0: // the end
	case kind < 0x80 && len(h) == 3:
		c.made, c.left, c.head = u16(1)+1, u16(1)+1, h[:0]
	case kind >= 0xc0 && len(h) == 6 || kind >= 0x80 && kind < 0xc0 && len(h) == 5:
		c.made, c.left, c.head = int64(kind&31)<<16+u16(1)+1, u16(3)+1, h[:0]
	}
}
