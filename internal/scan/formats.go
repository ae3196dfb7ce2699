package scan

import (
	"compress/bzip2"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

// decodeKind is an index in formats.
type decodeKind uint8

const (
	noFormat decodeKind = iota
	isGzip
	isZlib
	isZstd
	isBzip2
	isXZ
	isZipEntry
	isZipRecord
	isZipEnd
	isZip64End
	is7z
	isRar
	isLZ4
	isLzip
	isLzop
	isSnappy
	isCabinet
	isLZMA
	isCompress
)

// A packing is a way to compress or to collect files. A git pack is many zlib streams,
// each of which is found by itself.
type packing struct {
	name  string
	magic []string // its first bytes
	first bool     // too short a magic: only at the beginning of a stream
	// open returns a reader of the content. It sets d.sure once the bytes can't be
	// anything else, and returns errOpaque for what is surely of the format and can't
	// be read.
	open func(d *decode, r *asking) (io.Reader, error)
}

var formats [isCompress + 1]packing

// The openers use what depends on formats.
func init() {
	formats = [...]packing{
		isGzip:      {"gzip", []string{"\x1f\x8b\x08"}, false, openGzip},
		isZlib:      {"zlib", zlibHeads, false, openZlib},
		isZstd:      {"zstd", []string{"\x28\xb5\x2f\xfd"}, false, openZstd},
		isBzip2:     {"bzip2", bzip2Heads(), false, openBzip2},
		isXZ:        {"xz", []string{"\xfd7zXZ\x00"}, false, openXZ},
		isZipEntry:  {"zip", []string{"PK\x03\x04"}, false, openZipEntry},
		isZipRecord: {"zip", []string{"PK\x01\x02"}, false, openZipRecord},
		isZipEnd:    {"zip", []string{"PK\x05\x06"}, false, openZipEnd},
		isZip64End:  {"zip", []string{"PK\x06\x06"}, false, openZip64End},
		is7z:        {"7z", []string{"7z\xbc\xaf\x27\x1c"}, false, closed(32, is7zHead)},
		isRar:       {"rar", []string{"Rar!\x1a\x07\x00", "Rar!\x1a\x07\x01\x00"}, false, openRar},
		isLZ4:       {"lz4", []string{"\x04\x22\x4d\x18", "\x02\x21\x4c\x18"}, false, closed(19, isLZ4Head)},
		isLzip:      {"lzip", []string{"LZIP\x01"}, false, closed(6, func(h []byte) bool { return 12 <= h[5]&31 && h[5]&31 <= 29 })},
		isLzop:      {"lzop", []string{"\x89LZO\x00\r\n\x1a\n"}, false, closed(12, func(h []byte) bool { return 0 < h[9] && h[9] <= 0x10 && 0 < h[11] && h[11] <= 0x20 })},
		isSnappy:    {"snappy", []string{"\xff\x06\x00\x00sNaPpY"}, false, closed(14, func(h []byte) bool { return h[10] <= 1 && h[13] <= 1 })},
		isCabinet:   {"cab", []string{"MSCF\x00\x00\x00\x00"}, false, closed(26, func(h []byte) bool { return u32(h[12:]) == 0 && u32(h[20:]) == 0 && h[25] == 1 })},
		isLZMA:      {"lzma", []string{"\x5d\x00\x00"}, true, closed(13, isLZMAHead)},
		isCompress:  {"compress", []string{"\x1f\x9d"}, true, closed(3, func(h []byte) bool { return h[2]&0x60 == 0 && 9 <= h[2]&31 && h[2]&31 <= 16 })},
	}
}

const unreadable = "unreadable" // the rule of what can't be read to its end

var (
	errNotPacked = errors.New("nothing that is compressed")
	errOpaque    = errors.New("it can't be read: encrypted, or compressed in a way that is not read")
)

// isRead reports whether a decoder that ended with err had read all that there was:
// the data ends too early, or only its checksum is wrong.
func isRead(err error) bool {
	switch err {
	case nil, errNotPacked, errStopped, io.EOF, io.ErrUnexpectedEOF, gzip.ErrChecksum, zstd.ErrCRCMismatch:
		return true
	}
	return false
}

// endsWell reports whether err only says that other data follows.
func (d *decode) endsWell(err error) bool {
	return err == bzip2.StructuralError("bad magic value in continuation file") ||
		err == zstd.ErrMagicMismatch && d.stream.fed() > 0
}

// closed returns an opener for a format that is recognized and not read: is looks at
// the first n bytes.
func closed(n int, is func(head []byte) bool) func(*decode, *asking) (io.Reader, error) {
	return func(_ *decode, r *asking) (io.Reader, error) {
		head := make([]byte, n)
		if got, err := io.ReadFull(r, head); err != nil && got < n {
			return nil, err
		}
		if is == nil || is(head) {
			return nil, errOpaque
		}
		return nil, errNotPacked
	}
}

// openRar recognizes the first header behind the mark: by its type and size, or since
// version 5 by its checksum.
func openRar(_ *decode, r *asking) (io.Reader, error) {
	h := make([]byte, 14, 14+1<<7)
	if _, err := io.ReadFull(r, h); err != nil {
		return nil, err
	}
	if h[6] == 0 {
		if h[9] == 0x73 && u16(h[12:]) == 13 {
			return nil, errOpaque
		}
		return nil, errNotPacked
	}
	if h[12] == 0 || h[12] >= 1<<7 {
		return nil, errNotPacked
	}
	h = h[:13+h[12]]
	if _, err := io.ReadFull(r, h[14:]); err != nil {
		return nil, err
	}
	if crc32.ChecksumIEEE(h[12:]) != u32(h[8:]) {
		return nil, errNotPacked
	}
	return nil, errOpaque
}

func is7zHead(h []byte) bool {
	return h[6] == 0 && crc32.ChecksumIEEE(h[12:]) == binary.LittleEndian.Uint32(h[8:])
}

// isLZ4Head reports whether h begins a frame: its flags, and the size of its first
// block, which they bound. The old format has that size only.
func isLZ4Head(h []byte) bool {
	size := func(at int) uint32 { return binary.LittleEndian.Uint32(h[at:]) }
	if h[0] == 2 {
		return size(4) > 0 && size(4) <= 9<<20
	}
	at := 7
	if h[4]&8 != 0 {
		at += 8
	}
	if h[4]&1 != 0 {
		at += 4
	}
	return h[4]>>6 == 1 && h[4]&2 == 0 && h[5]&0x8f == 0 && h[5] >= 0x40 &&
		(at+4 > len(h) || size(at)&^(1<<31) <= 1<<(8+2*(h[5]>>4)))
}

// isLZMAHead reports whether h is a header as lzma writes it: usual properties, a
// dictionary of 2^n or 2^n+2^(n-1) bytes, and a length that is unknown or below 256 GiB.
func isLZMAHead(h []byte) bool {
	dict, size := binary.LittleEndian.Uint32(h[1:]), binary.LittleEndian.Uint64(h[5:])
	top := dict & (dict - 1)
	return dict >= 1<<12 && (top == 0 || top&(top-1) == 0 && top<<1 > dict-top || dict == 1<<32-1) && (size+1 == 0 || size < 1<<38)
}

func openGzip(d *decode, r *asking) (io.Reader, error) {
	var h [10]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return nil, err
	}
	// Flags, how hard it tried, the system. Programs hold this header, without content.
	if likely := h[3]&0xe0 == 0 && h[8]&^6 == 0 && (h[9] <= 13 || h[9] == 0xff); likely {
		d.likely = func() bool { return d.stream.fed() > fewBytes }
	} else if d.start > 0 {
		return nil, errNotPacked
	}
	d.sure = d.start == 0
	r.putBack(h[:])
	z, err := gzip.NewReader(r)
	if err == nil {
		z.Multistream(false)
	}
	return z, err
}

// A git pack is thousands of zlib streams, so their readers are reused.
var zlibs sync.Pool

type zlibReader struct {
	io.ReadCloser
	zlib.Resetter
}

func openZlib(_ *decode, r *asking) (io.Reader, error) {
	if z, ok := zlibs.Get().(*zlibReader); ok {
		if err := z.Reset(r, nil); err != nil {
			zlibs.Put(z)
			return nil, err
		}
		return z, nil
	}
	z, err := zlib.NewReader(r)
	if err != nil {
		return nil, err
	}
	return &zlibReader{z, z.(zlib.Resetter)}, nil
}

func openZstd(d *decode, r *asking) (io.Reader, error) {
	// The magic, the head, of a length that its first byte tells, and that of a block.
	h := make([]byte, 5, 4+zstd.HeaderMaxSize)
	if _, err := io.ReadFull(r, h); err != nil {
		return nil, err
	}
	flags, one := h[4], int(h[4]>>5&1)
	h = h[:5+1-one+[]int{0, 1, 2, 4}[flags&3]+[]int{one, 2, 4, 8}[flags>>6]+3]
	n, err := io.ReadFull(r, h[5:])
	if err != nil && err != io.ErrUnexpectedEOF {
		return nil, err
	}
	r.putBack(h[:5+n])
	var head zstd.Header
	d.sure = d.start == 0 || flags&0x10 == 0 && head.Decode(h[:5+n]) == nil && head.FirstBlock.OK
	return zstdReader(r)
}

func zstdReader(r io.Reader) (io.Reader, error) {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		return nil, err
	}
	return z, nil
}

// bzip2Heads lists the beginnings of bzip2 files: a size of blocks, and the first
// block or the end.
func bzip2Heads() (out []string) {
	for size := byte('1'); size <= '9'; size++ {
		out = append(out, "BZh"+string(size)+"1AY&SY", "BZh"+string(size)+"\x17\x72\x45\x38\x50\x90")
	}
	return out
}

func openBzip2(d *decode, r *asking) (io.Reader, error) {
	d.sure = true
	return bzip2Reader(d, r)
}

// bzip2Remembers is what its largest block takes.
const bzip2Remembers = 4 << 20

func bzip2Reader(d *decode, r io.Reader) (io.Reader, error) {
	return bzip2.NewReader(r), d.remember(bzip2Remembers)
}

// limited reads the first n bytes of r, also singly.
type limited struct {
	r *asking
	n int64
}

func (l *limited) Read(p []byte) (int, error) {
	if l.n <= 0 {
		return 0, io.EOF
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.n)])
	l.n -= int64(n)
	return n, err
}

func (l *limited) ReadByte() (byte, error) {
	if l.n <= 0 {
		return 0, io.EOF
	}
	c, err := l.r.ReadByte()
	if err == nil {
		l.n--
	}
	return c, err
}
