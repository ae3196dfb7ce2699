package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sys/unix"
)

// Status is the result of Verify. The zero value is invalid.
type Status string

const (
	// Intact: every record is as it was signed, or follows the last checkpoint and is well-formed.
	Intact Status = "intact"
	// torn: like Intact, but with an incomplete end after a crash. The next Append repairs and records it.
	torn Status = "torn"
	// Tampered: the files differ from what was signed.
	Tampered Status = "tampered"
)

const (
	reportSchema = "carboy.dev/audit-report/v1"
	maxFindings  = 100
)

// Finding describes one problem.
type Finding struct {
	Record int64  `json:"record"` // -1: no record in particular
	Text   string `json:"text"`
}

// Report is the full result of Verify.
type Report struct {
	Schema      string    `json:"schema"`
	Dir         string    `json:"dir"`
	Origin      string    `json:"origin"`
	Key         string    `json:"key"`
	KeyGiven    bool      `json:"key_given"` // else it was the one beside the log, which a forger could have replaced
	Status      Status    `json:"status"`
	Records     int64     `json:"records"`
	Signed      int64     `json:"signed"` // how many of them the last checkpoint covers
	Checkpoints int64     `json:"checkpoints"`
	Anchors     int       `json:"anchors"` // checkpoints from elsewhere that agree
	Repairs     int64     `json:"repairs"` // records that say that a torn end was cut off
	Root        string    `json:"root"`    // of all records
	First       time.Time `json:"first,omitzero"`
	Last        time.Time `json:"last,omitzero"`
	TornBytes   int64     `json:"torn_bytes"`
	Findings    []Finding `json:"findings"`
}

// OK reports whether the log is intact.
func (r Report) OK() bool { return r.Status == Intact }

// VerifyOptions holds information that comes from another place than the log's directory.
type VerifyOptions struct {
	// Key verifies the checkpoints. Default: key.pub in the directory, which proves only that one key signed all of it.
	Key string
	// Anchors are signed checkpoints that were kept elsewhere. They reveal a log that was completely restored to an older
	// state or signed again.
	Anchors [][]byte
}

// Verify checks the log in dir. It changes no files, needs neither the signing key nor a network, and its memory does not
// grow with the number of records. Problems of the log are in the report; an error means that it could not be checked.
func Verify(ctx context.Context, dir string, o VerifyOptions) (Report, error) {
	v := verifier{report: Report{Schema: reportSchema, Dir: dir, Key: o.Key, KeyGiven: o.Key != "", Findings: []Finding{}}}
	if unlock := readLock(ctx, dir); unlock != nil {
		defer unlock()
	}
	if err := v.run(ctx, dir, o); err != nil {
		return Report{}, fmt.Errorf("verify audit log %s: %w", dir, err)
	}
	return v.report, nil
}

// readLock locks out appenders while the files are read. A copy of a log has no lock file and needs none.
func readLock(ctx context.Context, dir string) (unlock func()) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	if flock(ctx, f, unix.LOCK_SH) != nil {
		f.Close()
		return nil
	}
	return func() { f.Close() }
}

type verifier struct {
	report  Report
	torn    bool
	tree    compact
	bytes   int64
	cps     *checkpoints
	next    *Checkpoint // the next of the file that has not been compared
	anchors []Checkpoint
	hashes  *bufio.Reader
	short   bool // hashes has ended
}

func (v *verifier) finding(record int64, format string, args ...any) {
	v.report.Status = Tampered
	if len(v.report.Findings) < maxFindings {
		v.report.Findings = append(v.report.Findings, Finding{record, fmt.Sprintf(format, args...)})
	}
}

func (v *verifier) run(ctx context.Context, dir string, o VerifyOptions) error {
	if o.Key == "" {
		key, err := readSmall(filepath.Join(dir, pubFile), false)
		if err != nil {
			return err
		}
		v.report.Key = key
	}
	pub, err := parsePublic(v.report.Key)
	if err != nil {
		return err
	}
	v.report.Origin = pub.Name()
	var files [3]*os.File
	for i, name := range []string{"log", "checkpoints", "hashes"} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if errors.Is(err, os.ErrNotExist) {
			if i == 0 {
				return err
			}
			v.finding(-1, "the file %s is missing", name)
			f, err = os.Open(os.DevNull)
		}
		if err != nil {
			return err
		}
		defer f.Close()
		files[i] = f
	}
	v.cps = &checkpoints{r: bufio.NewReaderSize(files[1], 64<<10), v: pub}
	v.hashes = bufio.NewReaderSize(files[2], 64<<10)
	v.readAnchors(o.Anchors, pub)
	v.advance()
	if err := v.records(ctx, files[0]); err != nil {
		return err
	}
	v.finish()
	return nil
}

func (v *verifier) readAnchors(signed [][]byte, pub note.Verifier) {
	for _, s := range signed {
		c, err := openCheckpoint(s, pub)
		if err != nil {
			v.finding(-1, "a checkpoint that was kept elsewhere is not of this log and key: %v", err)
			continue
		}
		v.anchors = append(v.anchors, c)
	}
	slices.SortStableFunc(v.anchors, func(a, b Checkpoint) int { return int(min(max(a.Size-b.Size, -1), 1)) })
}

// advance reads the next checkpoint from the file.
func (v *verifier) advance() {
	last := v.report.Signed
	v.next = nil
	c, torn, err := v.cps.next()
	switch {
	case err != nil:
		v.finding(-1, "checkpoint %d: %v", v.report.Checkpoints, err)
	case torn > 0:
		v.torn = true
		v.report.TornBytes += torn
	case c != nil && c.Size <= last:
		v.finding(-1, "checkpoint %d is of %d records, the one before of %d", v.report.Checkpoints, c.Size, last)
	case c != nil:
		v.next = c
		v.report.Checkpoints++
		v.report.Signed = c.Size
	}
}

func (v *verifier) records(ctx context.Context, f io.Reader) error {
	lines := newLines(f)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		line, whole, err := lines.next()
		if err != nil {
			return err
		}
		if !whole {
			rest, err := io.Copy(io.Discard, lines.r)
			if n := rest + int64(len(line)); n > 0 {
				v.torn = true
				v.report.TornBytes += n
			}
			return err
		}
		v.record(line)
	}
}

func (v *verifier) record(line []byte) {
	seq := v.tree.n
	r, err := parseRecord(line, seq)
	if err != nil {
		v.finding(seq, "not the record that must stand here: %v", err)
	} else {
		if seq == 0 {
			v.report.First = r.Time
		}
		v.report.Last = r.Time
		if r.Kind == logRepaired {
			v.report.Repairs++
		}
	}
	v.bytes += int64(len(line)) + 1
	for _, h := range v.tree.add(tlog.RecordHash(line)) {
		v.stored(seq, h)
	}
	if v.next != nil && v.next.Size == v.tree.n {
		if v.next.Root != v.tree.root() || v.next.Bytes != v.bytes {
			v.finding(-1, "the first %d records are not those that were signed", v.tree.n)
		}
		v.advance()
	}
	for len(v.anchors) > 0 && v.anchors[0].Size <= v.tree.n {
		if a := v.anchors[0]; a.Size == v.tree.n && a.Root != v.tree.root() {
			v.finding(-1, "the first %d records are not those of a checkpoint that was kept elsewhere: the history was written anew", a.Size)
		} else {
			v.report.Anchors++
		}
		v.anchors = v.anchors[1:]
	}
}

// stored compares a hash with the stored one, to find out which record was changed.
func (v *verifier) stored(seq int64, want tlog.Hash) {
	if v.short {
		return
	}
	var got tlog.Hash
	if n, err := io.ReadFull(v.hashes, got[:]); err != nil {
		v.short, v.torn = true, true
		v.report.TornBytes += int64(n)
		return
	}
	if got != want {
		v.finding(seq, "is not what its stored hash says")
	}
}

func (v *verifier) finish() {
	r := &v.report
	r.Records = v.tree.n
	r.Root = v.tree.root().String()
	if v.next != nil {
		v.finding(r.Records, "the log ends after %d records, signed are %d", r.Records, v.next.Size)
	}
	for _, a := range v.anchors {
		v.finding(r.Records, "the log ends after %d records, a checkpoint that was kept elsewhere is of %d", r.Records, a.Size)
	}
	if r.Checkpoints == 0 {
		if r.Records > 1 {
			v.finding(-1, "there are %d records and no checkpoint", r.Records)
		}
		v.torn = true // not even the first record is signed
	}
	if extra, _ := io.Copy(io.Discard, v.hashes); extra > 0 {
		v.torn = true
		r.TornBytes += extra
	}
	switch {
	case r.Status == Tampered:
	case v.torn:
		r.Status = torn
	default:
		r.Status = Intact
	}
}

// checkpoints reads the file checkpoints, entry by entry.
type checkpoints struct {
	r *bufio.Reader
	v note.Verifier
}

// next returns the next checkpoint. At the end it returns nil and the number of bytes of an incomplete entry there.
func (c *checkpoints) next() (_ *Checkpoint, torn int64, err error) {
	buf, err := c.r.Peek(maxCheckpoint + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, err
	}
	signed, rest := nextEntry(buf)
	if signed == nil {
		if len(buf) > maxCheckpoint {
			return nil, 0, errors.New("malformed")
		}
		return nil, int64(len(buf)), nil
	}
	cp, err := openCheckpoint(signed, c.v)
	if err != nil {
		return nil, 0, err
	}
	_, err = c.r.Discard(len(buf) - len(rest))
	return &cp, 0, err
}

// compact is a Merkle tree that keeps only the roots of its complete subtrees, largest first.
type compact struct {
	n    int64
	edge []tlog.Hash
}

// add appends a leaf and returns the hashes that tlog stores for it.
func (c *compact) add(h tlog.Hash) []tlog.Hash {
	out := []tlog.Hash{h}
	for range bits.TrailingZeros64(uint64(c.n + 1)) {
		h = tlog.NodeHash(c.edge[len(c.edge)-1], h)
		c.edge = c.edge[:len(c.edge)-1]
		out = append(out, h)
	}
	c.edge = append(c.edge, h)
	c.n++
	return out
}

func (c *compact) root() tlog.Hash {
	if c.n == 0 {
		h, _ := tlog.TreeHash(0, nil)
		return h
	}
	h := c.edge[len(c.edge)-1]
	for i := len(c.edge) - 2; i >= 0; i-- {
		h = tlog.NodeHash(c.edge[i], h)
	}
	return h
}

// JSON encodes the report.
func (r Report) JSON() []byte {
	b, _ := json.MarshalIndent(r, "", "  ")
	return append(bytes.TrimSpace(b), '\n')
}
