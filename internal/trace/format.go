package trace

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/klauspost/compress/zstd"
)

// The file of a run's trace is a head and blocks. All numbers are little-endian.
//
//	head    8  "CBTRACE\n"
//	        4  version
//	        4  zero
//	        8  when it was begun, nanoseconds since 1970
//	       40  the run's id, filled up with zeros
//
//	block   8  magic
//	        1  'F' facts, 'E' the end
//	        3  zero
//	        4  bytes of the payload
//	        4  bytes of it when unpacked
//	        4  facts in it
//	        8  number of the first fact, 8 of the last; at the end: 0 and the last of all
//	        8  facts that the kernel inside had dropped by then
//	       48  facts not kept until then: exec, file, net, proc, priv, others
//	        8  blocks before this one
//	       32  sum of the block before, or SHA-256 of the head
//	       32  sum: SHA-256 of all of the above and the payload
//	           payload: facts as Fact.Append writes them, compressed with zstd;
//	           at the end: why it ends, as text
//
// The chain of sums shows what was cut out, moved or edited, but whoever edits
// can compute it anew: the digest of the whole file, which stands in the receipt
// and in the audit log, shows that too.
const (
	fileMagic = "CBTRACE\n"
	// version is the version of the file that is written and read.
	version  = 1
	headSize = 64
	runSize  = 40

	blockMagic = "\xcbblk\r\n\x1a\x00"
	blockSize  = 168
	sumAt      = blockSize - sha256.Size

	factsBlock = 'F'
	endBlock   = 'E'

	// blockRaw is the target size of a block before compression. With one more
	// fact it stays below maxRaw, the reader's bound.
	blockRaw   = 256 << 10
	maxRaw     = 512 << 10
	maxPayload = maxRaw + 4096
	maxReason  = 512
)

// kinds lists the kinds in the order of the format.
var kinds = [...]FactKind{kindExec, KindFile, kindNet, kindProc, KindPriv, ""}

const (
	kindFile  = 1
	kindOther = 5
	kindCount = len(kinds)
)

// Kinds returns all kinds, for people to choose from.
func Kinds() []FactKind { return append([]FactKind(nil), kinds[:kindOther]...) }

var kindIndex = func() (t [256]uint8) {
	for i := range t {
		t[i] = kindOther
		for j, k := range kinds[:kindOther] {
			if Op(i).Kind() == k {
				t[i] = uint8(j)
			}
		}
	}
	return t
}()

// Counts holds the number of facts of each kind.
type Counts [kindCount]uint64

// Of returns the number of kind k. The empty kind counts operations that this
// version does not know.
func (c *Counts) Of(k FactKind) uint64 {
	for i := range kinds {
		if kinds[i] == k {
			return c[i]
		}
	}
	return 0
}

// Total returns the number of all facts.
func (c *Counts) Total() (n uint64) {
	for _, x := range c {
		n += x
	}
	return n
}

// block is a block's header.
type block struct {
	kind              byte
	payload, raw, n   uint32
	first, last, lost uint64
	unkept            Counts
	index             uint64
	prev, sum         [sha256.Size]byte
}

// put writes b before its payload, which follows it in buf, and adds the sum.
func (b *block) put(buf []byte) {
	h := append(buf[:0], blockMagic...)
	h = append(h, b.kind, 0, 0, 0)
	for _, v := range [...]uint32{b.payload, b.raw, b.n} {
		h = binary.LittleEndian.AppendUint32(h, v)
	}
	for _, v := range [...]uint64{b.first, b.last, b.lost} {
		h = binary.LittleEndian.AppendUint64(h, v)
	}
	for _, v := range b.unkept {
		h = binary.LittleEndian.AppendUint64(h, v)
	}
	h = binary.LittleEndian.AppendUint64(h, b.index)
	copy(buf[len(h):], b.prev[:])
	b.sum = sumOf(buf)
	copy(buf[sumAt:], b.sum[:])
}

// sumOf computes the sum of a whole block.
func sumOf(buf []byte) (sum [sha256.Size]byte) {
	h := sha256.New()
	h.Write(buf[:sumAt])
	h.Write(buf[blockSize:])
	h.Sum(sum[:0])
	return sum
}

var (
	errMagic  = errors.New("no block begins here")
	errHeader = errors.New("the head of the block makes no sense")
	errSum    = errors.New("the checksum does not match")
)

// parse reads a block's header. It checks the bounds, not the truth.
func (b *block) parse(h []byte) error {
	if !bytes.HasPrefix(h, []byte(blockMagic)) {
		return errMagic
	}
	u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(h[at:]) }
	u64 := func(at int) uint64 { return binary.LittleEndian.Uint64(h[at:]) }
	*b = block{kind: h[8], payload: u32(12), raw: u32(16), n: u32(20), first: u64(24), last: u64(32), lost: u64(40)}
	for i := range b.unkept {
		b.unkept[i] = u64(48 + 8*i)
	}
	b.index = u64(96)
	copy(b.prev[:], h[104:])
	copy(b.sum[:], h[sumAt:])
	switch {
	case b.payload > maxPayload, b.raw > maxRaw, b.first > b.last,
		b.kind == factsBlock && (b.n == 0 || b.n > maxRaw/5),
		b.kind == endBlock && (b.payload > maxReason || b.n != 0),
		b.kind != factsBlock && b.kind != endBlock:
		return errHeader
	}
	return nil
}

func putHead(run string, begun time.Time) []byte {
	h := make([]byte, headSize)
	copy(h, fileMagic)
	binary.LittleEndian.PutUint32(h[8:], version)
	binary.LittleEndian.PutUint64(h[16:], uint64(begun.UnixNano()))
	copy(h[24:24+runSize], run)
	return h
}

// errForeign means that a file is not a trace.
var errForeign = errors.New("is not a trace")

// ErrNoHead means that a trace ends within its header.
var ErrNoHead = errors.New("ends within its head, so that no fact is in it")

// versionError means that this carboy must not interpret the trace.
type versionError struct {
	File string
	Got  uint32
}

func (e *versionError) Error() string {
	return fmt.Sprintf("%s: is a trace of version %d, this carboy reads version %d", e.File, e.Got, version)
}

// newEncoder compresses one block at a time in little memory.
func newEncoder() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), zstd.WithWindowSize(blockRaw), zstd.WithLowerEncoderMem(true))
}

// newDecoder never returns more than the block declares, whatever the payload
// unpacks to.
func newDecoder() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(maxRaw), zstd.WithDecoderMaxMemory(maxRaw), zstd.WithDecodeAllCapLimit(true))
}
