package judge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
)

// A verdict is written in three steps: its text goes to NextFile, its digest goes to the
// audit log, and NextFile is renamed to VerdictFile. If the process dies in between,
// finishWrite completes the write if the digest is on record, and rolls it back if not.

// NextFile holds the text of a verdict until its digest is on record.
const NextFile = gate.VerdictFile + ".new"

// RemovingFile holds the id of a verdict during its removal: until the removal is on
// record and the verdict's directory has been renamed to a name with GonePrefix.
const (
	RemovingFile = ".removing"
	GonePrefix   = ".gone-"
)

// removedOf names the digest of a removed verdict in the audit log.
const removedOf = "removed-verdict"

// verdictOf names the digest of a verdict in the audit log.
const verdictOf = "verdict"

// HoldVerdict locks a verdict's directory for writing, until the returned file is closed
// or the process ends. It returns unix.EWOULDBLOCK if another process holds the lock.
func HoldVerdict(dir string) (*os.File, error) { return holdDir(dir, unix.LOCK_EX) }

func holdDir(dir string, how int) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := lockStill(f, dir, how); err != nil {
		f.Close()
		return nil, fmt.Errorf("hold %s: %w", dir, err)
	}
	return f, nil
}

// waitDir locks a directory as holdDir does, but blocks until the lock is free.
func waitDir(ctx context.Context, dir string, how int) (*os.File, error) {
	for {
		f, err := holdDir(dir, how)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// WaitVerdict locks a verdict as HoldVerdict does, but blocks until the lock is free.
// Others hold it only to write a document, or to remove the verdict: then WaitVerdict
// returns ErrNoVerdict.
func WaitVerdict(ctx context.Context, dir string) (*os.File, error) {
	f, err := waitDir(ctx, dir, unix.LOCK_EX)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("verdict %s: %w", filepath.Base(dir), ErrNoVerdict)
	}
	return f, err
}

// KeepVerdicts prevents the removal of verdicts until release is called. Until then, each
// verdict on record is complete on disk, and none on disk is half removed. Any number of
// callers may hold it at a time. To avoid a deadlock, a caller may hold a verdict before,
// but must not wait for one until release.
func (c *Judge) KeepVerdicts(ctx context.Context) (release func(), err error) {
	for {
		f, err := waitDir(ctx, c.GateDir("verdicts"), unix.LOCK_SH)
		if errors.Is(err, fs.ErrNotExist) {
			return func() {}, nil // there is no verdict
		}
		if err != nil {
			return nil, err
		}
		if _, err := os.Lstat(c.GateDir("verdicts", RemovingFile)); err != nil {
			return func() { f.Close() }, nil
		}
		f.Close()
		if f, err = c.lockForRemoval(ctx); err != nil {
			return nil, err
		}
		f.Close()
	}
}

// lockForRemoval waits until nobody keeps verdicts, locks all of them, and completes a
// removal that was interrupted.
func (c *Judge) lockForRemoval(ctx context.Context) (*os.File, error) {
	f, err := waitDir(ctx, c.GateDir("verdicts"), unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	if err := c.finishRemoval(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// finishRemoval completes an interrupted removal if it is on record, and rolls it back if
// not.
func (c *Judge) finishRemoval() error {
	mark := c.GateDir("verdicts", RemovingFile)
	b, err := os.ReadFile(mark)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if id, err := store.ParseID(string(b)); err == nil {
		sum, err := c.recorded(string(id), verdictOf)
		if err != nil {
			return err
		}
		if sum == "" {
			if err := c.DropVerdict(string(id)); err != nil {
				return err
			}
		}
	}
	return os.Remove(mark)
}

// DropVerdict renames the directory of a verdict whose removal is on record, so that it no
// longer counts. Its contents may be removed later.
func (c *Judge) DropVerdict(id string) error {
	gone := c.GateDir("verdicts", GonePrefix+id)
	err := os.Rename(c.GateDir("verdicts", id), gone)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if errors.Is(err, fs.ErrExist) { // somebody put it back
		err = errors.Join(fault.RemoveTree(gone), os.Rename(c.GateDir("verdicts", id), gone))
	}
	if err != nil {
		return err
	}
	return syncDir(c.GateDir("verdicts"))
}

// RecordVerdict writes and records a new verdict. The caller holds its directory.
func (c *Judge) RecordVerdict(ctx context.Context, v *gate.Verdict, more ...audit.Digest) error {
	b, err := v.Encode()
	if err != nil {
		return err
	}
	d := audit.Allowed
	if v.Outcome != gate.Passed {
		d = audit.Refused
	}
	none := new(secret.Redactor)
	return c.PutVerdict(ctx, v.ID, b, audit.Event{
		Kind: audit.GateVerdict, Actor: audit.ByCarboy, Decision: d, Subject: audit.Redact(none, v.ID),
		Digests: append([]audit.Digest{{Of: verdictOf, Sum: sha256.Sum256(b)}}, more...), Text: audit.Redact(none, string(v.Outcome)),
	})
}

// PutVerdict replaces the text of a verdict by b and appends record, which has the digest
// of b, to the audit log. The caller holds the verdict's directory.
func (c *Judge) PutVerdict(ctx context.Context, id string, b []byte, record audit.Event) error {
	dir := c.GateDir("verdicts", id)
	if err := c.finishHeldWrite(id); err != nil {
		return err
	}
	if err := store.WriteFile(filepath.Join(dir, NextFile), b, 0o600); err != nil {
		return err
	}
	record.Sync = true
	if _, err := c.Audit.Append(ctx, record); err != nil {
		return err
	}
	return publishVerdict(dir)
}

// publishVerdict renames NextFile, whose digest is on record, to VerdictFile.
func publishVerdict(dir string) error {
	if err := os.Rename(filepath.Join(dir, NextFile), filepath.Join(dir, VerdictFile)); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// finishWrite completes or rolls back an interrupted write of a verdict. It does nothing
// while another process holds the verdict.
func (c *Judge) finishWrite(id string) error {
	f, err := HoldVerdict(c.GateDir("verdicts", id))
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return c.finishHeldWrite(id)
}

func (c *Judge) finishHeldWrite(id string) error {
	dir := c.GateDir("verdicts", id)
	b, err := os.ReadFile(filepath.Join(dir, NextFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	sum, err := c.recorded(id, verdictOf)
	if err != nil {
		return err
	}
	if HexSum(b) == sum {
		return publishVerdict(dir)
	}
	return os.Remove(filepath.Join(dir, NextFile))
}

// verdictDirs returns the ids of all verdicts, the oldest first, also of those that their
// gates have not written yet.
func (c *Judge) verdictDirs() (ids []string, err error) {
	all, err := os.ReadDir(c.GateDir("verdicts"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, d := range all {
		if d.IsDir() && !strings.HasPrefix(d.Name(), ".") {
			ids = append(ids, d.Name())
		}
	}
	return ids, nil
}

// hasVerdict reports whether a verdict exists, after it finished an interrupted write.
func (c *Judge) hasVerdict(id string) (there bool, err error) {
	if _, none := os.Lstat(c.GateDir("verdicts", id, NextFile)); none == nil {
		err = c.finishWrite(id)
	}
	_, none := os.Lstat(c.GateDir("verdicts", id, VerdictFile))
	return none == nil, err
}

// eachVerdict calls f with each id that verdictDirs returns and with what hasVerdict
// reports of it.
func (c *Judge) eachVerdict(f func(id string, there bool) error) error {
	ids, err := c.verdictDirs()
	if err != nil {
		return err
	}
	for _, id := range ids {
		there, err := c.hasVerdict(id)
		if err != nil {
			return err
		}
		if err := f(id, there); err != nil {
			return err
		}
	}
	return nil
}

// verdicts returns the ids of the verdicts that exist, the oldest first.
func (c *Judge) verdicts() (ids []string, err error) {
	err = c.eachVerdict(func(id string, there bool) error {
		if there {
			ids = append(ids, id)
		}
		return nil
	})
	return ids, err
}

// newestVerdict returns the id of the newest verdict; empty: there is none.
func (c *Judge) newestVerdict() (string, error) {
	ids, err := c.verdictDirs()
	if err != nil {
		return "", err
	}
	for _, id := range slices.Backward(ids) {
		if there, err := c.hasVerdict(id); err != nil || there {
			return id, err
		}
	}
	return "", nil
}

// GivenFile holds the id of the earlier verdict that Gate returned last, and the id of the
// newest verdict at that time.
const GivenFile = "given"

// noteGiven writes GivenFile, so that the commands that show "the last verdict" show this
// one. No decision depends on it.
func (c *Judge) noteGiven(id string) {
	newest, err := c.newestVerdict()
	if err != nil || newest == "" || c.lastGiven(newest) == id {
		return
	}
	if err := store.WriteFile(c.GateDir(GivenFile), []byte(id+" "+newest+"\n"), 0o600); err != nil {
		c.Log.Info("who asks for the last verdict is shown another one", "given", id, "why", err)
	}
}

// lastGiven returns the id of the verdict that Gate returned last: newest, or the one in
// GivenFile if that was written since and the verdict still exists.
func (c *Judge) lastGiven(newest string) string {
	b, err := os.ReadFile(c.GateDir(GivenFile))
	if f := strings.Fields(string(b)); err == nil && len(f) == 2 && f[1] == newest {
		if id, err := store.ParseID(f[0]); err == nil {
			if there, err := c.hasVerdict(string(id)); err == nil && there {
				return string(id)
			}
		}
	}
	return newest
}

// findVerdict returns the id of the verdict that ref names, as Verdict takes it.
func (c *Judge) findVerdict(ref string) (string, error) {
	none := fmt.Errorf("verdict %q: %w", plan.NameOrHidden(ref), ErrNoVerdict)
	if ref == "" {
		newest, err := c.newestVerdict()
		if err != nil {
			return "", err
		}
		if newest == "" {
			return "", none
		}
		return c.lastGiven(newest), nil
	}
	ref = strings.ToLower(ref)
	if _, err := store.ParseID(ref); err == nil { // all of it: nobody looks at the others
		there, err := c.hasVerdict(ref)
		if err == nil && !there {
			err = fmt.Errorf("verdict %s: %w", ref, ErrNoVerdict)
		}
		return ref, err
	}
	ids, err := c.verdicts()
	if err != nil {
		return "", err
	}
	ids = slices.DeleteFunc(ids, func(id string) bool { return !strings.HasPrefix(id, ref) })
	switch len(ids) {
	case 0:
		return "", none
	case 1:
		return ids[0], nil
	}
	return "", fmt.Errorf("verdict %q: %d have this prefix: %w", ref, len(ids), ErrNoVerdict)
}

// readVerdict reads the verdict in the directory id. Its text must have the digest on
// record for id; an id inside the text does not count.
func (c *Judge) readVerdict(id string) (*gate.Verdict, error) {
	sum, err := c.recorded(id, verdictOf)
	if err != nil {
		return nil, err
	}
	b, err := c.verdictText(id, sum)
	if err != nil {
		return nil, err
	}
	v, err := gate.ParseVerdict(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", c.GateDir("verdicts", id), ErrLedger, err)
	}
	return v, nil
}

// verdictText returns the text of a verdict whose digest is sum. During a write, this text
// may still be in NextFile.
func (c *Judge) verdictText(id, sum string) ([]byte, error) {
	var none error
	for _, name := range []string{VerdictFile, NextFile, VerdictFile} {
		switch b, err := os.ReadFile(c.GateDir("verdicts", id, name)); {
		case err == nil && HexSum(b) == sum:
			return b, nil
		case name == VerdictFile:
			none = err
		}
	}
	if none != nil {
		return nil, none
	}
	return nil, changedError(id, verdictOf, sum)
}

// changedError returns the error for a document whose digest is not sum, the one on record.
func changedError(id, of, sum string) error {
	if sum == "" {
		return fmt.Errorf("%s %s: %w", of, id, ErrUnrecorded)
	}
	return fmt.Errorf("%s %s: %w: its text was changed", of, id, ErrLedger)
}

// onRecord returns an error unless b is the document whose digest is on record.
func (c *Judge) onRecord(id, of string, b []byte) error {
	sum, err := c.recorded(id, of)
	if err != nil || sum == HexSum(b) {
		return err
	}
	return changedError(id, of, sum)
}

// recorded returns the digest of kind of in the newest record about id, in hexadecimal
// digits. It returns "" if there is none, or if the verdict was removed since.
func (c *Judge) recorded(id, of string) (sum string, err error) {
	err = c.AuditRecords(func(r *audit.Record) {
		if r.Subject != id {
			return
		}
		if of == verdictOf && r.Kind == audit.GateRemoved {
			sum = ""
		}
		for _, d := range r.Digests {
			if d.Of == of {
				sum = d.SHA256
			}
		}
	})
	return sum, err
}

// RemoveVerdict removes a verdict with its evidence, records that in the audit log, and
// returns its id. ref is the id or a unique prefix of it. A verdict that a work refers to
// stays. So does one that differs from its record (ErrLedger): it is evidence of the
// tampering. RemoveVerdict blocks while verdicts are read, as by AuditVerify.
func (c *Judge) RemoveVerdict(ctx context.Context, ref string) (id string, err error) {
	if ref == "" {
		return "", &fault.OptionError{Option: "verdict", Reason: "is not named", Advice: "carboy gate list shows those that there are"}
	}
	_, dir, err := c.Verdict(ctx, ref)
	if err != nil {
		return "", err
	}
	id = filepath.Base(dir)
	hold, err := WaitVerdict(ctx, dir)
	if err != nil {
		return "", err
	}
	defer hold.Close()
	if err := c.finishHeldWrite(id); err != nil {
		return "", err
	}
	v, err := c.readVerdict(id)
	if err != nil {
		return "", err
	}
	if err := c.CheckVerdict(ctx, v, dir); err != nil {
		return "", err
	}
	steps, err := store.Glob(c.GateDir("work"), "*/"+AttemptPrefix+"*.json")
	if err != nil {
		return "", err
	}
	for _, f := range steps {
		if b, err := os.ReadFile(f); err != nil {
			return "", err
		} else if bytes.Contains(b, []byte(id)) {
			work := filepath.Base(filepath.Dir(f))
			return "", &fault.OptionError{Option: "verdict", Value: id, Reason: "is of work " + work + ", which says by it how its attempt ended", Advice: "carboy work show " + work}
		}
	}
	was, err := c.recorded(id, verdictOf)
	if err != nil {
		return "", err
	}
	d := audit.Digest{Of: removedOf}
	if b, err := hex.DecodeString(was); err != nil || len(b) != copy(d.Sum[:], b) {
		return "", changedError(id, verdictOf, was)
	}
	// Without these, Cached does not return it any more.
	kept, err := store.Glob(c.GateDir("cache"), "*/"+id+".json")
	if err != nil {
		return "", err
	}
	for _, f := range kept {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	all, err := c.lockForRemoval(ctx)
	if err != nil {
		return "", err
	}
	defer all.Close()
	mark := c.GateDir("verdicts", RemovingFile)
	if err := store.WriteFile(mark, []byte(id), 0o600); err != nil {
		return "", err
	}
	none := new(secret.Redactor)
	_, err = c.Audit.Append(ctx, audit.Event{
		Kind: audit.GateRemoved, Actor: audit.ByUser(os.Getuid()), Decision: audit.Allowed, Subject: audit.Redact(none, id),
		Digests: []audit.Digest{d}, Text: audit.Redact(none, string(v.Outcome)), Sync: true,
	})
	if err != nil {
		return "", err
	}
	if err := c.DropVerdict(id); err != nil {
		return "", err
	}
	if err := errors.Join(os.Remove(mark), all.Close()); err != nil {
		return "", err
	}
	return id, fault.RemoveTree(c.GateDir("verdicts", GonePrefix+id))
}

// SweepVerdicts removes the directories of verdicts that gates began and never recorded,
// since they died. It returns their paths.
func (c *Judge) SweepVerdicts(ctx context.Context) (removed []string, err error) {
	release, err := c.KeepVerdicts(ctx)
	if err != nil {
		return nil, err
	}
	release() // KeepVerdicts has completed an interrupted removal
	var errs []error
	err = c.eachVerdict(func(id string, there bool) error {
		dir := c.GateDir("verdicts", id)
		fi, err := os.Lstat(dir)
		if there || err != nil || time.Since(fi.ModTime()) < time.Minute {
			return nil // a gate that has just created it has not locked it yet
		}
		f, err := HoldVerdict(dir)
		if err != nil {
			return nil // its gate still runs
		}
		defer f.Close()
		_, missing := os.Lstat(filepath.Join(dir, VerdictFile))
		sum, err := c.recorded(id, verdictOf)
		if err != nil || sum != "" || !errors.Is(missing, fs.ErrNotExist) {
			return err // somebody deleted a recorded verdict: keep the rest as evidence
		}
		if err := fault.RemoveTree(dir); err != nil {
			errs = append(errs, err)
			return nil
		}
		removed = append(removed, dir)
		return nil
	})
	gone, gerr := store.Glob(c.GateDir("verdicts"), GonePrefix+"*")
	errs = append(errs, gerr)
	for _, dir := range gone { // removals that were interrupted
		if err := fault.RemoveTree(dir); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, dir)
	}
	return removed, errors.Join(append(errs, err)...)
}
