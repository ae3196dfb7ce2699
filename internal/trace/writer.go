package trace

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"os"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// defaultMax bounds the file of one run, in bytes.
const defaultMax = 256 << 20

// minMax is the smallest useful bound, in bytes.
const minMax = 1 << 20

// Writer writes the file of one run within bounded space. It counts facts that
// do not fit or that the disk refuses: tracing never ends a run.
//
// Each kind of facts except files has a sixteenth of the space reserved, so
// that a command that looks at a million files cannot displace what it
// executed; the rest is shared, first come first served. Once one fact of a
// kind is refused, all later ones are, so the kept facts of a kind are complete
// up to one number.
//
// It is not safe for concurrent use.
type Writer struct {
	f     *os.File
	enc   *zstd.Encoder
	whole hash.Hash // over the file
	size  int64     // of whole blocks
	alloc int64     // space allocated up to here; -1: the file system cannot

	next   block  // the block that is being filled
	raw    []byte // the block in its written form
	buf    []byte // the block as it is written
	inRaw  [kindCount]int64
	counts Counts // facts in raw

	max    int64
	used   [kindCount]int64
	full   [kindCount]bool
	unkept Counts
	last   uint64
	lost   uint64
	err    error // why writing has stopped
}

const (
	// endSpace is reserved for the last block.
	endSpace = 4096
	// allocStep is the amount of disk space allocated at a time.
	allocStep = 256 << 10
)

// createFile makes the file of a run, which must not exist. max bounds it in
// bytes; 0: DefaultMax.
func createFile(path, run string, max int64) (*Writer, error) {
	if max == 0 {
		max = defaultMax
	}
	if max < minMax {
		return nil, fmt.Errorf("create trace: a bound of %d bytes is below %d", max, minMax)
	}
	if len(run) > runSize {
		return nil, fmt.Errorf("create trace: run id of %d bytes", len(run))
	}
	enc, err := newEncoder()
	if err != nil {
		return nil, fmt.Errorf("create trace: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create trace: %w", err)
	}
	w := &Writer{f: f, enc: enc, whole: sha256.New(), max: max - endSpace, buf: make([]byte, blockSize)}
	h := putHead(run, time.Now())
	w.next.prev = sha256.Sum256(h)
	if err := w.write(h); err != nil {
		// The run goes on, and its facts are counted.
		w.err = err
	}
	return w, nil
}

// room reports whether n more bytes of kind k may be kept.
func (w *Writer) room(k uint8, n int64) bool {
	share := w.max / 16
	common := w.max - share*int64(kindCount-1) - headSize
	for i := range kinds {
		use := w.used[i] + w.inRaw[i]
		if uint8(i) == k {
			use += n
		}
		if i != kindFile {
			use -= share
		}
		if uint8(i) == k && use <= 0 {
			return true
		}
		common -= max(use, 0)
	}
	return common >= 0
}

// add stores f, or counts it.
func (w *Writer) add(f *Fact) {
	w.last = max(w.last, f.Seq)
	k := kindIndex[f.Op]
	if w.err != nil || w.full[k] {
		w.unkept[k]++
		return
	}
	at := len(w.raw)
	w.raw = f.Append(w.raw)
	n := int64(len(w.raw) - at)
	if !w.room(k, n) {
		// Facts that are not compressed yet count at their full length.
		w.raw = w.raw[:at]
		w.Flush()
		if w.err != nil || !w.room(k, n) {
			w.full[k] = true
			w.unkept[k]++
			return
		}
		w.raw = f.Append(w.raw)
	}
	if w.next.n == 0 || f.Seq < w.next.first {
		w.next.first = f.Seq
	}
	w.next.last = max(w.next.last, f.Seq)
	w.next.n++
	w.inRaw[k] += n
	w.counts[k]++
	if len(w.raw) >= blockRaw {
		w.Flush()
	}
}

// dropped records the number of facts that the bottle's kernel has lost so far.
func (w *Writer) dropped(n uint64) { w.lost = max(w.lost, n) }

// Flush writes the current block, so that others can read it. It does not wait
// for the disk.
func (w *Writer) Flush() {
	if len(w.raw) == 0 {
		return
	}
	w.buf = w.enc.EncodeAll(w.raw, w.buf[:blockSize])
	err := w.seal(factsBlock)
	if err != nil {
		w.err = err
		for i, n := range w.counts {
			w.unkept[i] += n
		}
	} else {
		w.charge(int64(len(w.buf)))
	}
	w.raw, w.inRaw, w.counts = w.raw[:0], [kindCount]int64{}, Counts{}
	w.next = block{index: w.next.index, prev: w.next.prev}
}

// charge divides a block's size among the kinds in it.
func (w *Writer) charge(n int64) {
	for i, in := range w.inRaw {
		w.used[i] += (n*in + int64(len(w.raw)) - 1) / int64(len(w.raw))
	}
}

// seal completes the block in buf and appends it.
func (w *Writer) seal(kind byte) error {
	b := &w.next
	b.kind, b.payload, b.raw, b.lost, b.unkept = kind, uint32(len(w.buf)-blockSize), uint32(len(w.raw)), w.lost, w.unkept
	b.put(w.buf)
	if err := w.write(w.buf); err != nil {
		return err
	}
	b.index, b.prev = b.index+1, b.sum
	return nil
}

// write appends b completely or not at all.
func (w *Writer) write(b []byte) error {
	if err := w.allocate(w.size + int64(len(b)) + endSpace); err != nil {
		return err
	}
	return w.append(b)
}

func (w *Writer) append(b []byte) error {
	if _, err := w.f.WriteAt(b, w.size); err != nil {
		w.f.Truncate(w.size)
		return err
	}
	w.size += int64(len(b))
	w.whole.Write(b)
	return nil
}

// allocate reserves the disk up to end before it is written, so that on a full
// disk there is still room to say where the trace stops.
func (w *Writer) allocate(end int64) error {
	if w.alloc < 0 || end <= w.alloc {
		return nil
	}
	var err error
	for _, to := range [...]int64{end + allocStep, end} {
		for {
			err = unix.Fallocate(int(w.f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, to)
			if err != unix.EINTR {
				break
			}
		}
		if err == nil {
			w.alloc = to
			return nil
		}
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG) {
		return &os.PathError{Op: "write", Path: w.f.Name(), Err: err}
	}
	w.alloc = -1 // this file system cannot allocate
	return nil
}

// Kept says what became of a trace.
type Kept struct {
	Bytes  int64
	Digest [sha256.Size]byte // of the file
	Unkept Counts
	// Err says why the file does not reach the end of the run; nil if it does.
	Err error
}

// Close writes the end, with a reason unless it is the run's end, and waits for
// the disk. Do not use the Writer after it.
func (w *Writer) Close(reason string) Kept {
	w.Flush()
	if reason == "" && w.err != nil {
		reason = "it could not be written on: " + w.err.Error()
	}
	w.next = block{index: w.next.index, prev: w.next.prev, last: w.last}
	w.buf = append(w.buf[:blockSize], reason[:min(len(reason), maxReason)]...)
	if w.err != nil {
		w.alloc = -1 // the end goes into space that is allocated already
	}
	if w.size > 0 {
		w.err = errors.Join(w.err, w.seal(endBlock))
	}
	w.err = errors.Join(w.err, w.f.Truncate(w.size), w.f.Sync(), w.f.Close(), w.enc.Close())
	k := Kept{Bytes: w.size, Unkept: w.unkept, Err: w.err}
	w.whole.Sum(k.Digest[:0])
	return k
}
