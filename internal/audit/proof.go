package audit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sys/unix"
)

const proofSchema = "carboy.dev/audit-proof/v1"

// Proof proves that a log contains a record, without the log. It can be verified with golang.org/x/mod alone: note.Open on
// Checkpoint with Key, then tlog.CheckRecord of Hashes, the checkpoint's size and root, Index, and tlog.RecordHash(Record).
type Proof struct {
	Schema     string           `json:"schema"`
	Key        string           `json:"key"`
	Index      int64            `json:"index"`
	Record     string           `json:"record"` // the line, without its break
	Checkpoint string           `json:"checkpoint"`
	Hashes     tlog.RecordProof `json:"hashes"`
}

// Prove returns the proof for record index of the log in dir, under its last checkpoint. It reads the log once.
func Prove(ctx context.Context, dir string, index int64) (Proof, error) {
	p, err := prove(ctx, dir, index)
	if err != nil {
		return Proof{}, fmt.Errorf("prove record %d of %s: %w", index, dir, err)
	}
	return p, nil
}

func prove(ctx context.Context, dir string, index int64) (Proof, error) {
	if unlock := readLock(ctx, dir); unlock != nil {
		defer unlock()
	}
	key, err := readSmall(filepath.Join(dir, pubFile), false)
	if err != nil {
		return Proof{}, err
	}
	signed, err := lastSigned(dir)
	if err != nil {
		return Proof{}, err
	}
	c, err := ParseCheckpoint(signed, key)
	if err != nil {
		return Proof{}, err
	}
	if index < 0 || index >= c.Size {
		return Proof{}, fmt.Errorf("signed are records 0 to %d", c.Size-1)
	}
	line, hashes, err := readTree(ctx, dir, c.Size, index)
	if err != nil {
		return Proof{}, err
	}
	proof, err := tlog.ProveRecord(c.Size, index, hashes)
	p := Proof{proofSchema, key, index, line, string(signed), proof}
	return p, errors.Join(err, p.check(key))
}

// check verifies the proof against a key that the caller trusts, not the one in it.
func (p Proof) check(key string) error {
	if p.Schema != proofSchema {
		return fmt.Errorf("check proof: field \"schema\" is %q, want %q", p.Schema, proofSchema)
	}
	c, err := ParseCheckpoint([]byte(p.Checkpoint), key)
	if err != nil {
		return fmt.Errorf("check proof: %w", err)
	}
	if err := tlog.CheckRecord(p.Hashes, c.Size, c.Root, p.Index, tlog.RecordHash([]byte(p.Record))); err != nil {
		return fmt.Errorf("check proof: %w", err)
	}
	if _, err := parseRecord([]byte(p.Record), p.Index); err != nil {
		return fmt.Errorf("check proof: %w", err)
	}
	return nil
}

const consistencySchema = "carboy.dev/audit-consistency/v1"

// Consistency proves that the log of a later checkpoint extends that of an earlier one, without the log. It can be verified
// with golang.org/x/mod alone: note.Open on both, then tlog.CheckTree.
type Consistency struct {
	Schema string         `json:"schema"`
	Key    string         `json:"key"`
	Old    string         `json:"old"` // signed checkpoints
	New    string         `json:"new"`
	Hashes tlog.TreeProof `json:"hashes"`
}

// ProveConsistency returns the proof from the signed checkpoint old, which was kept elsewhere, to the last one of the log
// in dir. It fails if the log does not extend that of old.
func ProveConsistency(ctx context.Context, dir string, old []byte) (Consistency, error) {
	c, err := proveConsistency(ctx, dir, old)
	if err != nil {
		return Consistency{}, fmt.Errorf("prove consistency of %s: %w", dir, err)
	}
	return c, nil
}

func proveConsistency(ctx context.Context, dir string, old []byte) (Consistency, error) {
	if unlock := readLock(ctx, dir); unlock != nil {
		defer unlock()
	}
	key, err := readSmall(filepath.Join(dir, pubFile), false)
	if err != nil {
		return Consistency{}, err
	}
	signed, err := lastSigned(dir)
	if err != nil {
		return Consistency{}, err
	}
	from, err := ParseCheckpoint(old, key)
	if err != nil {
		return Consistency{}, err
	}
	to, err := ParseCheckpoint(signed, key)
	if err != nil {
		return Consistency{}, err
	}
	if from.Size < 1 || from.Size > to.Size {
		return Consistency{}, fmt.Errorf("the last checkpoint is of %d records, the older one of %d", to.Size, from.Size)
	}
	_, hashes, err := readTree(ctx, dir, to.Size, -1)
	if err != nil {
		return Consistency{}, err
	}
	proof, err := tlog.ProveTree(to.Size, from.Size, hashes)
	c := Consistency{consistencySchema, key, string(old), string(signed), proof}
	return c, errors.Join(err, c.check(key))
}

// check verifies the proof against a key that the caller trusts, not the one in it.
func (c Consistency) check(key string) error {
	if c.Schema != consistencySchema {
		return fmt.Errorf("check consistency: field \"schema\" is %q, want %q", c.Schema, consistencySchema)
	}
	from, err := ParseCheckpoint([]byte(c.Old), key)
	if err != nil {
		return fmt.Errorf("check consistency: %w", err)
	}
	to, err := ParseCheckpoint([]byte(c.New), key)
	if err != nil {
		return fmt.Errorf("check consistency: %w", err)
	}
	if err := tlog.CheckTree(c.Hashes, to.Size, to.Root, from.Size, from.Root); err != nil {
		return fmt.Errorf("check consistency: %w", err)
	}
	return nil
}

func lastSigned(dir string) ([]byte, error) {
	f, err := os.OpenFile(filepath.Join(dir, "checkpoints"), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	buf := make([]byte, min(st.Size(), 4*maxCheckpoint))
	if len(buf) == 0 {
		return nil, errors.New("no checkpoint")
	}
	if _, err := f.ReadAt(buf, st.Size()-int64(len(buf))); err != nil {
		return nil, err
	}
	signed, _ := lastEntry(buf)
	if signed == nil {
		return nil, errors.New("no checkpoint")
	}
	return signed, nil
}

// readTree reads the first size records and returns the one at index and the hashes of their tree. It computes the hashes
// from the records and does not trust the stored ones.
func readTree(ctx context.Context, dir string, size, index int64) (string, tlog.HashReader, error) {
	f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	var found string
	var tree compact
	var hashes []tlog.Hash
	for lines := newLines(f); tree.n < size; {
		if err := ctx.Err(); err != nil {
			return "", nil, err
		}
		line, whole, err := lines.next()
		if err != nil {
			return "", nil, err
		}
		if !whole {
			return "", nil, fmt.Errorf("the log ends after %d records, signed are %d", tree.n, size)
		}
		if tree.n == index {
			found = string(line)
		}
		hashes = append(hashes, tree.add(tlog.RecordHash(line))...)
	}
	return found, tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(indexes))
		for i, at := range indexes {
			out[i] = hashes[at]
		}
		return out, nil
	}), nil
}
