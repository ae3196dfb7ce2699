package audit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sys/unix"
)

// disk has the calls that write, so that tests can make each one fail.
type disk interface {
	WriteAt(f *os.File, p []byte, off int64) (int, error)
	Truncate(f *os.File, size int64) error
	Sync(f *os.File) error
}

type realDisk struct{}

func (realDisk) WriteAt(f *os.File, p []byte, off int64) (int, error) { return f.WriteAt(p, off) }
func (realDisk) Truncate(f *os.File, size int64) error                { return f.Truncate(size) }
func (realDisk) Sync(f *os.File) error                                { return f.Sync() }

// tamperError says that a log does not match its checkpoints. The files are evidence, so nothing is appended or repaired.
// To start a new log, the user must move the directory away.
type tamperError struct {
	Dir string
	Seq int64 // of the first record that is known to be wrong, -1 if unknown
	Why string
}

func (e *tamperError) Error() string {
	s := "audit log " + strconv.Quote(e.Dir) + " was tampered with or damaged: " + e.Why
	if e.Seq >= 0 {
		s += " (record " + strconv.FormatInt(e.Seq, 10) + ")"
	}
	return s
}

// lockPatience bounds the wait for the user's other processes that append.
const lockPatience = 30 * time.Second

// Log is an open log. It may be used by several goroutines and processes at once.
type Log struct {
	disk   disk
	dir    string
	now    func() time.Time
	signer note.Signer
	key    string

	turn   chan struct{} // held while the fields below are used
	lock   *os.File
	log    *os.File
	hashes *os.File
	cps    *os.File

	n      int64 // number of records that were read and whose hashes are stored
	size   int64 // bytes of log up to there
	cpSize int64 // bytes of checkpoints that were read
	last   Checkpoint
	signed []byte // last, as it was signed
	failed error  // after an error that leaves the files in an unknown state; ends this Log
}

// Position is the place of a record in the log.
type Position struct {
	Seq int64
	// Checkpoint, if the record is durable, is a signed checkpoint that covers it. It should be kept in another place than
	// the log, such as in a receipt.
	Checkpoint []byte
}

// Open opens the log in dir, which it creates with mode 0700 if missing. The error is a *TamperError if the log does not
// match its last checkpoint. After a crash, Open cuts off an incomplete last record, and records that.
func Open(ctx context.Context, dir string) (*Log, error) {
	return open(ctx, dir, realDisk{}, time.Now)
}

func open(ctx context.Context, dir string, d disk, now func() time.Time) (_ *Log, err error) {
	l := &Log{disk: d, dir: dir, now: now, turn: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			l.closeFiles()
			err = fmt.Errorf("open audit log: %w", err)
		}
	}()
	if err := ownDir(dir); err != nil {
		return nil, err
	}
	for name, f := range map[string]**os.File{"lock": &l.lock, "log": &l.log, "hashes": &l.hashes, "checkpoints": &l.cps} {
		if *f, err = os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600); err != nil {
			return nil, err
		}
	}
	err = l.locked(ctx, func() error {
		logSize, cpSize, err := l.sizes()
		if err != nil {
			return err
		}
		empty := logSize == 0 && cpSize == 0
		if l.signer, l.key, err = loadKey(d, dir, empty); err != nil {
			return err
		}
		if empty {
			if err := syncDir(d, dir); err != nil {
				return err
			}
		}
		return l.refresh()
	})
	if err != nil {
		return nil, err
	}
	return l, nil
}

func ownDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || st.Uid != uint32(os.Geteuid()) || st.Mode&0o077 != 0 {
		return fmt.Errorf("%s: must be a directory of user %d alone (mode 0700)", dir, os.Geteuid())
	}
	return nil
}

// Close closes the files. It does not sign; call Sync before.
func (l *Log) Close() error {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	if l.failed == nil {
		l.failed = os.ErrClosed
	}
	return l.closeFiles()
}

func (l *Log) closeFiles() error {
	var errs []error
	for _, f := range []*os.File{l.lock, l.log, l.hashes, l.cps} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// Dir returns the directory of the log.
func (l *Log) Dir() string { return l.dir }

// PublicKey returns the key that verifies this log's checkpoints.
func (l *Log) PublicKey() string { return l.key }

// Append adds events as consecutive records, in this order. If one of them is durable, all are synced and covered by a
// signed checkpoint when Append returns. Otherwise they survive the end of the process, but not a crash of the machine. On
// an error none was added, unless the error says that the log's state is unknown.
//
// Each refusal costs two syncs and a few hundred bytes of disk. A caller whose refusals a bottle can trigger should record
// a count instead of every repetition.
func (l *Log) Append(ctx context.Context, events ...Event) (Position, error) {
	var p Position
	err := l.locked(ctx, func() (err error) {
		if err := l.refresh(); err != nil {
			return err
		}
		p, err = l.append(events)
		return err
	})
	if err != nil {
		return Position{}, fmt.Errorf("append to audit log: %w", err)
	}
	return p, nil
}

// Sync syncs all records and returns a signed checkpoint that covers them.
func (l *Log) Sync(ctx context.Context) (signed []byte, err error) {
	err = l.locked(ctx, func() error {
		if err := l.refresh(); err != nil {
			return err
		}
		err := l.sign()
		signed = bytes.Clone(l.signed)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("sync audit log: %w", err)
	}
	return signed, nil
}

// locked calls f with exclusive use of the log, within this process and among processes.
func (l *Log) locked(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return fmt.Errorf("lock: %w", ctx.Err())
	}
	if l.failed != nil {
		return l.failed
	}
	if err := flock(ctx, l.lock, unix.LOCK_EX); err != nil {
		return err
	}
	defer unix.Flock(int(l.lock.Fd()), unix.LOCK_UN)
	return f()
}

func flock(ctx context.Context, f *os.File, how int) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock: %w", err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("lock: %w", ctx.Err())
		}
	}
}

func (l *Log) sizes() (log, cps int64, err error) {
	st, err := l.log.Stat()
	if err != nil {
		return 0, 0, err
	}
	ct, err := l.cps.Stat()
	if err != nil {
		return 0, 0, err
	}
	return st.Size(), ct.Size(), nil
}

// refresh reads the records that other processes have appended, and repairs a torn end that a dead one left.
func (l *Log) refresh() error {
	logSize, cpSize, err := l.sizes()
	if err != nil {
		return err
	}
	if here, err := os.Stat(l.log.Name()); err != nil || !sameFile(here, l.log) {
		return l.tampered(-1, "its file was replaced while it was in use")
	}
	if logSize < l.size || cpSize < l.cpSize {
		return l.tampered(-1, "it became shorter while it was in use")
	}
	if logSize == l.size && cpSize == l.cpSize && l.n > 0 {
		return nil
	}
	cutCPs, err := l.readCheckpoints(cpSize)
	if err != nil {
		return err
	}
	if l.n == 0 {
		l.resume()
	}
	cut, sum, err := l.readRecords(logSize)
	if err != nil {
		return err
	}
	if err := l.agree(logSize); err != nil {
		return err
	}
	return l.repair(cut, cutCPs, cpSize, sum)
}

func sameFile(here os.FileInfo, f *os.File) bool {
	st, err := f.Stat()
	return err == nil && os.SameFile(here, st)
}

func (l *Log) tampered(seq int64, why string) error { return &tamperError{l.dir, seq, why} }

// readCheckpoints reads the last checkpoint if there is a new one, and returns the number of bytes of an incomplete one
// after it.
func (l *Log) readCheckpoints(size int64) (torn int64, err error) {
	from := max(0, size-4*maxCheckpoint)
	if l.cpSize > 0 {
		from = max(from, l.cpSize)
	}
	buf := make([]byte, size-from)
	if _, err := l.cps.ReadAt(buf, from); err != nil && !(errors.Is(err, io.EOF) && len(buf) == 0) {
		return 0, err
	}
	signed, tail := lastEntry(buf)
	if signed == nil {
		if from > l.cpSize || len(buf) > maxCheckpoint {
			return 0, l.tampered(-1, "its checkpoints can't be read")
		}
		l.cpSize = from
		return int64(len(buf)), nil
	}
	c, err := ParseCheckpoint(signed, l.key)
	if err != nil {
		return 0, l.tampered(-1, err.Error())
	}
	if c.Size <= l.last.Size || c.Bytes < l.last.Bytes {
		return 0, l.tampered(-1, "its checkpoints go backwards")
	}
	l.last, l.signed, l.cpSize = c, bytes.Clone(signed), size-int64(tail)
	return int64(tail), nil
}

// resume starts reading at the last checkpoint, if the stored hashes match it. They are not synced, so after a crash of
// the machine they may be wrong; then all records are read and the hashes are rebuilt.
func (l *Log) resume() {
	l.n, l.size = 0, 0
	if l.last.Size == 0 {
		return
	}
	root, err := tlog.TreeHash(l.last.Size, l.hashReader())
	if err == nil && root == l.last.Root {
		l.n, l.size = l.last.Size, l.last.Bytes
	}
}

// readRecords reads the records from l.n on and stores their hashes, up to the first line that is incomplete or not the
// expected record. It returns the number and the SHA-256 of the remaining bytes.
func (l *Log) readRecords(size int64) (cut int64, sum [32]byte, err error) {
	if size < l.size {
		return 0, sum, nil // agree returns the error
	}
	lines := newLines(io.NewSectionReader(l.log, l.size, size-l.size))
	for {
		line, whole, err := lines.next()
		if err != nil {
			return 0, sum, err
		}
		if !whole {
			break
		}
		if _, err := parseRecord(line, l.n); err != nil {
			break
		}
		if err := l.store(line); err != nil {
			return 0, sum, err
		}
		l.size += int64(len(line)) + 1
	}
	if cut = size - l.size; cut > 0 {
		h := sha256.New()
		if _, err := io.Copy(h, io.NewSectionReader(l.log, l.size, cut)); err != nil {
			return 0, sum, err
		}
		h.Sum(sum[:0])
	}
	return cut, sum, nil
}

// store adds the hashes of the next record.
func (l *Log) store(line []byte) error {
	hashes, err := tlog.StoredHashes(l.n, line, l.hashReader())
	if err != nil {
		return fmt.Errorf("read stored hashes: %w", err)
	}
	buf := make([]byte, 0, len(hashes)*tlog.HashSize)
	for _, h := range hashes {
		buf = append(buf, h[:]...)
	}
	if _, err := l.disk.WriteAt(l.hashes, buf, tlog.StoredHashCount(l.n)*tlog.HashSize); err != nil {
		return err
	}
	l.n++
	return nil
}

func (l *Log) hashReader() tlog.HashReader {
	return tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(indexes))
		for i, at := range indexes {
			if _, err := l.hashes.ReadAt(out[i][:], at*tlog.HashSize); err != nil {
				return nil, err
			}
		}
		return out, nil
	})
}

// agree returns a *TamperError if the records do not match the last checkpoint.
func (l *Log) agree(logSize int64) error {
	switch {
	case logSize < l.size:
		return l.tampered(-1, fmt.Sprintf("it has %d bytes, signed are %d", logSize, l.size))
	case l.last.Size > l.n || l.last.Bytes > l.size:
		return l.tampered(l.n, fmt.Sprintf("the last checkpoint is of %d records, whole are %d", l.last.Size, l.n))
	case l.last.Size == 0 && l.n > 1:
		return l.tampered(-1, "it has records and no checkpoint")
	case l.last.Size == 0:
		return nil
	}
	root, err := tlog.TreeHash(l.last.Size, l.hashReader())
	if err != nil {
		return fmt.Errorf("read stored hashes: %w", err)
	}
	if root != l.last.Root {
		return l.tampered(-1, fmt.Sprintf("its first %d records are not those that were signed", l.last.Size))
	}
	return nil
}

// repair cuts off a torn end and records that. It also writes the first record of a new log.
func (l *Log) repair(cut, cutCPs, cpSize int64, sum [32]byte) error {
	if cutCPs > 0 {
		if err := l.disk.Truncate(l.cps, cpSize-cutCPs); err != nil {
			return err
		}
	}
	if cut > 0 {
		if err := l.disk.Truncate(l.log, l.size); err != nil {
			return err
		}
	}
	if err := l.disk.Truncate(l.hashes, tlog.StoredHashCount(l.n)*tlog.HashSize); err != nil {
		return err
	}
	var events []Event
	if l.n == 0 {
		events = append(events, Event{Kind: logCreated, Actor: ByCarboy, Decision: Noted})
	}
	if cut > 0 || cutCPs > 0 {
		e := Event{Kind: logRepaired, Actor: ByCarboy, Decision: Noted}
		e.Text = Text{fmt.Sprintf("cut %d bytes after the last whole record and %d after the last whole checkpoint", cut, cutCPs)}
		if cut > 0 {
			e.Digests = []Digest{{"cut", sum}}
		}
		events = append(events, e)
	}
	if len(events) == 0 {
		return nil
	}
	_, err := l.append(events)
	return err
}

func (l *Log) append(events []Event) (p Position, err error) {
	n, size := l.n, l.size
	var buf []byte
	var lines [][]byte
	sync := false
	now := l.now().Round(0)
	for i := range events {
		line, err := events[i].encode(n+int64(i), now)
		if err != nil {
			return p, fmt.Errorf("record %s: %w", events[i].Kind, err)
		}
		buf = append(buf, line...)
		lines = append(lines, line[:len(line)-1])
		sync = sync || events[i].durable()
	}
	_, err = l.disk.WriteAt(l.log, buf, size)
	for i := 0; i < len(lines) && err == nil; i++ {
		err = l.store(lines[i])
	}
	if err == nil {
		l.size += int64(len(buf))
		if sync {
			err = l.sign()
		}
	}
	if err != nil {
		return p, l.rollBack(n, size, err)
	}
	p.Seq = l.n - 1
	if sync {
		p.Checkpoint = bytes.Clone(l.signed)
	}
	return p, nil
}

// rollBack removes records that could not be stored completely. If a checkpoint may have reached the disk, or if removing
// fails, the Log cannot be used any more; the next Open reads the actual state.
func (l *Log) rollBack(n, size int64, cause error) error {
	l.n, l.size = n, size
	if l.failed == nil {
		if err := l.disk.Truncate(l.log, size); err != nil {
			l.failed = err
		}
	}
	if l.failed != nil {
		l.failed = fmt.Errorf("its state is unknown after: %w", cause)
		return l.failed
	}
	return cause
}

// sign syncs the records and then signs them: a checkpoint on disk has its records on disk.
func (l *Log) sign() error {
	if l.last.Size == l.n {
		return nil
	}
	if err := l.disk.Sync(l.log); err != nil {
		l.failed = err // a second sync would not report the data that this one lost
		return err
	}
	root, err := tlog.TreeHash(l.n, l.hashReader())
	if err != nil {
		return fmt.Errorf("read stored hashes: %w", err)
	}
	c := Checkpoint{Origin: l.signer.Name(), Size: l.n, Root: root, Bytes: l.size}
	signed, err := c.sign(l.signer)
	if err != nil {
		return err
	}
	if _, err := l.disk.WriteAt(l.cps, append(bytes.Clone(signed), '\n'), l.cpSize); err != nil {
		if l.disk.Truncate(l.cps, l.cpSize) != nil {
			l.failed = err
		}
		return err
	}
	if err := l.disk.Sync(l.cps); err != nil {
		l.failed = err
		return err
	}
	l.last, l.signed = c, signed
	l.cpSize += int64(len(signed)) + 1
	return nil
}
