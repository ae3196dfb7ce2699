package change

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A journal is a file of lines: a CRC-32C in hex, a blank and a JSON record.
// It is a write-ahead log: a step begins only after its record is on disk. An
// incomplete last line is ignored.
//
//	plan      the ops, with every old and new file
//	staged    the new files exist beside their places; their inodes
//	commit    every name holds its new file
//	done      the old files are removed
//	rolled    everything is as before
const journalFile = "journal"

// tmpPrefix begins the private name of every file that an op has not yet put
// in place or has set aside.
const tmpPrefix = ".carboy-"

const journalSchema = "carboy.dev/landing/v1"

type journalRecord struct {
	Plan   *planRecord   `json:"plan,omitempty"`
	Staged *stagedRecord `json:"staged,omitempty"`
	Commit *time.Time    `json:"commit,omitempty"`
	Done   *time.Time    `json:"done,omitempty"`
	Rolled *time.Time    `json:"rolled,omitempty"`
	Left   []Bytes       `json:"left,omitempty"` // with Rolled: files that were left behind
}

type planRecord struct {
	Schema    string    `json:"schema"`
	Kind      string    `json:"kind"`         // "land" or "undo"
	Of        string    `json:"of,omitempty"` // undo: the landing
	Workspace Identity  `json:"workspace"`
	Time      time.Time `json:"time"`
	Ops       []op      `json:"ops"`
	// Repos lists the references that move when all files are in place.
	Repos []repoPlan `json:"repos,omitempty"`
}

// stagedRecord holds, for each op, the fileID of each new node.
type stagedRecord struct {
	Files [][]fileID `json:"stamps"`
}

// fileID identifies a file that an op made, and shows whether it was edited since.
type fileID struct {
	Ino   uint64 `json:"ino"`
	Mtime int64  `json:"mtime"`
}

// journal is one landing or undo on disk.
type journal struct {
	dir    string
	id     string
	f      *os.File
	size   int64 // of the complete records
	plan   *planRecord
	ids    [][]fileID
	commit bool
	closed bool // done or rolled
	rolled bool
	left   bool // rolled back, but an old file is stranded
}

var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

func (j *journal) write(r journalRecord) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	line := fmt.Appendf(nil, "%08x ", crc32.Checksum(b, castagnoli()))
	line = append(append(line, b...), '\n')
	_, err = j.f.Write(line)
	if err == nil {
		err = j.f.Sync()
	}
	if err != nil {
		// Cut the record, which may not be durable: after the rollback that
		// follows, Recover must not find, say, a commit.
		return fmt.Errorf("write journal: %w", errors.Join(err, j.f.Truncate(j.size)))
	}
	j.size += int64(len(line))
	j.take(r)
	return nil
}

// take updates the journal's state with a record.
func (j *journal) take(r journalRecord) {
	switch {
	case r.Plan != nil:
		j.plan = r.Plan
	case r.Staged != nil:
		j.ids = r.Staged.Files
	case r.Commit != nil:
		j.commit = true
	case r.Done != nil:
		j.closed = true
	case r.Rolled != nil:
		j.closed, j.rolled, j.left = true, true, len(r.Left) > 0
	}
}

// Markers are empty files in a journal's directory. They repeat what the
// journals say, so that later commands need not read a long journal.
const (
	doneMarker   = "done"   // the journal is closed
	undoneMarker = "undone" // a landing that was undone
	undoSuffix   = "-undo"  // ends the name of an undo's directory
)

func (j *journal) mark(name string) {
	if f, err := os.OpenFile(filepath.Join(j.dir, name), os.O_CREATE|os.O_WRONLY, 0o600); err == nil {
		f.Close()
	}
}

func marked(runDir, id, name string) bool {
	_, err := os.Lstat(filepath.Join(runDir, landDir, id, name))
	return err == nil
}

func journalNumber(id string) (int, bool) {
	n, err := strconv.Atoi(strings.TrimSuffix(id, undoSuffix))
	return n, err == nil
}

// newJournal creates the next numbered directory below runDir/land.
func newJournal(runDir, kind string) (*journal, error) {
	base := filepath.Join(runDir, landDir)
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, err
	}
	ids, err := journalIDs(runDir)
	if err != nil {
		return nil, err
	}
	n := 1
	if len(ids) > 0 {
		last, _ := journalNumber(ids[len(ids)-1])
		n = last + 1
	}
	j := &journal{id: fmt.Sprintf("%06d", n)}
	if kind == "undo" {
		j.id += undoSuffix
	}
	j.dir = filepath.Join(base, j.id)
	if err := os.Mkdir(j.dir, 0o700); err != nil {
		return nil, err
	}
	j.f, err = os.OpenFile(filepath.Join(j.dir, journalFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return j, errors.Join(syncDir(j.dir), syncDir(base))
}

func journalIDs(runDir string) ([]string, error) {
	ents, err := os.ReadDir(filepath.Join(runDir, landDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range ents {
		if _, ok := journalNumber(e.Name()); ok && e.IsDir() {
			ids = append(ids, e.Name())
		}
	}
	slices.SortFunc(ids, func(a, b string) int {
		x, _ := journalNumber(a)
		y, _ := journalNumber(b)
		return x - y
	})
	return ids, nil
}

// openJournal reads a journal and cuts an incomplete last line, so that
// records can be appended.
func openJournal(runDir, id string) (*journal, error) {
	j := &journal{id: id, dir: filepath.Join(runDir, landDir, id)}
	f, err := os.OpenFile(filepath.Join(j.dir, journalFile), os.O_RDWR|os.O_APPEND, 0)
	if errors.Is(err, os.ErrNotExist) {
		j.closed, j.rolled = true, true // died before its first record
		return j, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	j.f = f
	good, err := j.read(f)
	if err == nil {
		err = f.Truncate(good)
	}
	if err == nil {
		_, err = f.Seek(good, io.SeekStart)
	}
	j.size = good
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open journal %s: %w", show(j.dir), err)
	}
	return j, nil
}

func (j *journal) read(f *os.File) (good int64, err error) {
	r := bufio.NewReaderSize(f, 64<<10)
	for {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			return good, nil
		}
		if err != nil {
			return good, err
		}
		var rec journalRecord
		if len(line) < 10 || fmt.Sprintf("%08x", crc32.Checksum(line[9:len(line)-1], castagnoli())) != string(line[:8]) ||
			json.Unmarshal(line[9:], &rec) != nil {
			if _, err := r.Peek(1); err == nil {
				// Not the last line, so it was complete once.
				return good, ErrCorrupt
			}
			return good, nil
		}
		if rec.Plan != nil {
			if err := rec.Plan.check(); err != nil {
				return good, err
			}
		}
		j.take(rec)
		good += int64(len(line))
	}
}

// check returns ErrCorrupt for a plan that could touch other files than a
// landing does.
func (p *planRecord) check() error {
	if p.Schema != journalSchema {
		return fmt.Errorf("%w: schema %s", ErrCorrupt, show(p.Schema))
	}
	for i := range p.Repos {
		r := &p.Repos[i]
		if r.Dir != "" && checkRel(string(r.Dir)) != nil {
			return fmt.Errorf("%w: repository %s", ErrCorrupt, show(string(r.Dir)))
		}
		for _, u := range r.Refs {
			if neverRef(u.Name) != "" {
				return fmt.Errorf("%w: reference %s", ErrCorrupt, show(u.Name))
			}
		}
	}
	for i := range p.Ops {
		o := &p.Ops[i]
		if o.Kind != opChmod && (!strings.HasPrefix(o.Tmp, tmpPrefix) || strings.Contains(o.Tmp, "/")) {
			return fmt.Errorf("%w: private name %s", ErrCorrupt, show(o.Tmp))
		}
		if o.Kind != opPut && len(o.Old) == 0 || (o.Kind == opPut || o.Kind == opSwap) && len(o.New) == 0 {
			return fmt.Errorf("%w: %s without files", ErrCorrupt, show(string(o.Kind)))
		}
		if err := checkRel(string(o.Path)); err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		for k := range o.Old {
			if rel := string(o.Old[k].Rel); rel != "" && checkRel(rel) != nil {
				return fmt.Errorf("%w: path %s", ErrCorrupt, show(rel))
			}
		}
		for k := range o.New {
			if rel := string(o.New[k].Rel); rel != "" && checkRel(rel) != nil {
				return fmt.Errorf("%w: path %s", ErrCorrupt, show(rel))
			}
		}
	}
	return nil
}

func (j *journal) close() {
	if j.f != nil {
		j.f.Close()
	}
}
