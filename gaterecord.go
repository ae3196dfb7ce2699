package carboy

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
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
)

// A verdict's text is on disk, then its digest is on record, then the text has the name
// by which it is read. So death at any point leaves what was there before, or what is on
// record: settleVerdict tells which.

// nextFile is a verdict's text until it is on record.
const nextFile = gate.VerdictFile + ".new"

// What is removed: removingFile has a verdict's id until its removal is on record and its
// directory has another name, which gonePrefix begins.
const (
	removingFile = ".removing"
	gonePrefix   = ".gone-"
)

// removedOf is what a removed verdict's digest is called in the audit log.
const removedOf = "removed-verdict"

// verdictOf is what a verdict's digest is called in the audit log.
const verdictOf = "verdict"

// holdVerdict keeps others from writing to a verdict's directory until what it gives is
// closed, or carboy dies. One that others hold is unix.EWOULDBLOCK.
func holdVerdict(dir string) (*os.File, error) { return holdDir(dir, unix.LOCK_EX) }

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

// waitDir is holdDir that waits for others.
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

// waitVerdict is holdVerdict that waits for others: they write a document, no more, or
// remove the verdict, which is ErrNoVerdict then.
func waitVerdict(ctx context.Context, dir string) (*os.File, error) {
	f, err := waitDir(ctx, dir, unix.LOCK_EX)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("verdict %s: %w", filepath.Base(dir), ErrNoVerdict)
	}
	return f, err
}

// keepVerdicts has no verdict removed until release is called: what is on record is there
// until then, whole, and what is there was not removed. Many may do so at a time. It may
// be called with a verdict held, and nobody waits for a verdict before release.
func (c *Client) keepVerdicts(ctx context.Context) (release func(), err error) {
	for {
		f, err := waitDir(ctx, c.gateDir("verdicts"), unix.LOCK_SH)
		if errors.Is(err, fs.ErrNotExist) {
			return func() {}, nil // there is none to remove
		}
		if err != nil {
			return nil, err
		}
		if _, err := os.Lstat(c.gateDir("verdicts", removingFile)); err != nil {
			return func() { f.Close() }, nil
		}
		f.Close()
		if f, err = c.removing(ctx); err != nil {
			return nil, err
		}
		f.Close()
	}
}

// removing waits until nobody keeps verdicts, and holds them all, in which no removal is
// half done.
func (c *Client) removing(ctx context.Context) (*os.File, error) {
	f, err := waitDir(ctx, c.gateDir("verdicts"), unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	if err := c.settleRemoval(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// settleRemoval ends a removal that somebody died in: one that is on record is done, and
// another one never was.
func (c *Client) settleRemoval() error {
	mark := c.gateDir("verdicts", removingFile)
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
			if err := c.dropVerdict(string(id)); err != nil {
				return err
			}
		}
	}
	return os.Remove(mark)
}

// dropVerdict takes the directory of a verdict away whose removal is on record. What is in
// it may go later.
func (c *Client) dropVerdict(id string) error {
	gone := c.gateDir("verdicts", gonePrefix+id)
	err := os.Rename(c.gateDir("verdicts", id), gone)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if errors.Is(err, fs.ErrExist) { // somebody put it back
		err = errors.Join(removeTree(gone), os.Rename(c.gateDir("verdicts", id), gone))
	}
	if err != nil {
		return err
	}
	return syncDir(c.gateDir("verdicts"))
}

// recordVerdict puts a new verdict on record. Its caller holds its directory.
func (c *Client) recordVerdict(ctx context.Context, v *gate.Verdict, more ...audit.Digest) error {
	b, err := v.Encode()
	if err != nil {
		return err
	}
	d := audit.Allowed
	if v.Outcome != gate.Passed {
		d = audit.Refused
	}
	none := new(secret.Redactor)
	return c.putVerdict(ctx, v.ID, b, audit.Event{
		Kind: audit.GateVerdict, Actor: audit.ByCarboy, Decision: d, Subject: audit.Redact(none, v.ID),
		Digests: append([]audit.Digest{{Of: verdictOf, Sum: sha256.Sum256(b)}}, more...), Text: audit.Redact(none, string(v.Outcome)),
	})
}

// putVerdict puts b, which record is about, in the place of what there is of a verdict.
// Its caller holds the directory.
func (c *Client) putVerdict(ctx context.Context, id string, b []byte, record audit.Event) error {
	dir := c.gateDir("verdicts", id)
	if err := c.settleHeld(id); err != nil {
		return err
	}
	if err := store.WriteFile(filepath.Join(dir, nextFile), b, 0o600); err != nil {
		return err
	}
	record.Sync = true
	if _, err := c.audit.Append(ctx, record); err != nil {
		return err
	}
	return nameVerdict(dir)
}

// nameVerdict gives a text that is on record its name.
func nameVerdict(dir string) error {
	if err := os.Rename(filepath.Join(dir, nextFile), filepath.Join(dir, verdictFile)); err != nil {
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

// settleVerdict ends what somebody died in the midst of: a text that is on record gets
// its name, and one that is not goes. What others are writing is left to them.
func (c *Client) settleVerdict(id string) error {
	f, err := holdVerdict(c.gateDir("verdicts", id))
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return c.settleHeld(id)
}

func (c *Client) settleHeld(id string) error {
	dir := c.gateDir("verdicts", id)
	b, err := os.ReadFile(filepath.Join(dir, nextFile))
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
	if hexSum(b) == sum {
		return nameVerdict(dir)
	}
	return os.Remove(filepath.Join(dir, nextFile))
}

// verdictDirs are the ids that verdicts have, or gates that have not given one, the oldest
// first.
func (c *Client) verdictDirs() (ids []string, err error) {
	all, err := os.ReadDir(c.gateDir("verdicts"))
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

// verdictThere says whether the verdict with an id is there, after it ended what somebody died
// in the midst of.
func (c *Client) verdictThere(id string) (there bool, err error) {
	if _, none := os.Lstat(c.gateDir("verdicts", id, nextFile)); none == nil {
		err = c.settleVerdict(id)
	}
	_, none := os.Lstat(c.gateDir("verdicts", id, verdictFile))
	return none == nil, err
}

// eachVerdict calls f with each directory of a verdict, by ids, and whether its verdict
// is there.
func (c *Client) eachVerdict(f func(id string, there bool) error) error {
	ids, err := c.verdictDirs()
	if err != nil {
		return err
	}
	for _, id := range ids {
		there, err := c.verdictThere(id)
		if err != nil {
			return err
		}
		if err := f(id, there); err != nil {
			return err
		}
	}
	return nil
}

// verdicts are the ids of those that there are, the oldest first.
func (c *Client) verdicts() (ids []string, err error) {
	err = c.eachVerdict(func(id string, there bool) error {
		if there {
			ids = append(ids, id)
		}
		return nil
	})
	return ids, err
}

// newestVerdict is the id of the newest; empty: there is none.
func (c *Client) newestVerdict() (string, error) {
	ids, err := c.verdictDirs()
	if err != nil {
		return "", err
	}
	for _, id := range slices.Backward(ids) {
		if there, err := c.verdictThere(id); err != nil || there {
			return id, err
		}
	}
	return "", nil
}

// givenFile says which verdict was given again last, and which was the newest then.
const givenFile = "given"

// gaveAgain keeps that a verdict was given again, so that who asks for no other one is
// shown it. Nothing is decided by that.
func (c *Client) gaveAgain(id string) {
	newest, err := c.newestVerdict()
	if err != nil || newest == "" || c.givenLast(newest) == id {
		return
	}
	if err := store.WriteFile(c.gateDir(givenFile), []byte(id+" "+newest+"\n"), 0o600); err != nil {
		c.log.Info("who asks for the last verdict is shown another one", "given", id, "why", err)
	}
}

// givenLast is the verdict that was given last: the newest, or one that was given again
// since, and is there.
func (c *Client) givenLast(newest string) string {
	b, err := os.ReadFile(c.gateDir(givenFile))
	if f := strings.Fields(string(b)); err == nil && len(f) == 2 && f[1] == newest {
		if id, err := store.ParseID(f[0]); err == nil {
			if there, err := c.verdictThere(string(id)); err == nil && there {
				return string(id)
			}
		}
	}
	return newest
}

// findVerdict is the id that Verdict reads.
func (c *Client) findVerdict(ref string) (string, error) {
	none := fmt.Errorf("verdict %q: %w", NameOrHidden(ref), ErrNoVerdict)
	if ref == "" {
		newest, err := c.newestVerdict()
		if err != nil {
			return "", err
		}
		if newest == "" {
			return "", none
		}
		return c.givenLast(newest), nil
	}
	ref = strings.ToLower(ref)
	if _, err := store.ParseID(ref); err == nil { // all of it: nobody looks at the others
		there, err := c.verdictThere(ref)
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

// readVerdict reads the verdict in a directory: what is on record of its name, and of no
// other that its text may say.
func (c *Client) readVerdict(id string) (*gate.Verdict, error) {
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
		return nil, fmt.Errorf("%s: %w: %w", c.gateDir("verdicts", id), ErrLedger, err)
	}
	return v, nil
}

// verdictText is the text of a verdict, which is on record by its digest. While somebody
// writes another one, that may not have its name yet.
func (c *Client) verdictText(id, sum string) ([]byte, error) {
	var none error
	for _, name := range []string{verdictFile, nextFile, verdictFile} {
		switch b, err := os.ReadFile(c.gateDir("verdicts", id, name)); {
		case err == nil && hexSum(b) == sum:
			return b, nil
		case name == verdictFile:
			none = err
		}
	}
	if none != nil {
		return nil, none
	}
	return nil, otherText(id, verdictOf, sum)
}

// otherText is of a document that is not the one on record by that digest.
func otherText(id, of, sum string) error {
	if sum == "" {
		return fmt.Errorf("%s %s: %w", of, id, errUnrecorded)
	}
	return fmt.Errorf("%s %s: %w: its text was changed", of, id, ErrLedger)
}

// onRecord compares a document with what the audit log says of it.
func (c *Client) onRecord(id, of string, b []byte) error {
	sum, err := c.recorded(id, of)
	if err != nil || sum == hexSum(b) {
		return err
	}
	return otherText(id, of, sum)
}

// recorded is the digest of the newest record with an id and that kind of digest, in
// hexadecimal digits; empty: there is none, or the verdict was removed since.
func (c *Client) recorded(id, of string) (sum string, err error) {
	err = c.auditRecords(func(r *audit.Record) {
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

// RemoveVerdict removes a verdict with its evidence, by its id or a prefix of one id only,
// and says so in the audit log. One that work refers to stays, and so does one that is not
// what was recorded, which is ErrLedger: what is left shows what was done to it. It waits
// for whoever reads verdicts at that moment, AuditVerify too. It gives the id.
func (c *Client) RemoveVerdict(ctx context.Context, ref string) (id string, err error) {
	if ref == "" {
		return "", &OptionError{Option: "verdict", Reason: "is not named", Advice: "carboy gate list shows those that there are"}
	}
	_, dir, err := c.Verdict(ctx, ref)
	if err != nil {
		return "", err
	}
	id = filepath.Base(dir)
	hold, err := waitVerdict(ctx, dir)
	if err != nil {
		return "", err
	}
	defer hold.Close()
	if err := c.settleHeld(id); err != nil {
		return "", err
	}
	v, err := c.readVerdict(id)
	if err != nil {
		return "", err
	}
	if err := c.CheckVerdict(ctx, v, dir); err != nil {
		return "", err
	}
	steps, err := store.Glob(c.gateDir("work"), "*/"+attemptPrefix+"*.json")
	if err != nil {
		return "", err
	}
	for _, f := range steps {
		if b, err := os.ReadFile(f); err != nil {
			return "", err
		} else if bytes.Contains(b, []byte(id)) {
			work := filepath.Base(filepath.Dir(f))
			return "", &OptionError{Option: "verdict", Value: id, Reason: "is of work " + work + ", which says by it how its attempt ended", Advice: "carboy work show " + work}
		}
	}
	was, err := c.recorded(id, verdictOf)
	if err != nil {
		return "", err
	}
	d := audit.Digest{Of: removedOf}
	if b, err := hex.DecodeString(was); err != nil || len(b) != copy(d.Sum[:], b) {
		return "", otherText(id, verdictOf, was)
	}
	// It is given again no more.
	kept, err := store.Glob(c.gateDir("cache"), "*/"+id+".json")
	if err != nil {
		return "", err
	}
	for _, f := range kept {
		if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	all, err := c.removing(ctx)
	if err != nil {
		return "", err
	}
	defer all.Close()
	mark := c.gateDir("verdicts", removingFile)
	if err := store.WriteFile(mark, []byte(id), 0o600); err != nil {
		return "", err
	}
	none := new(secret.Redactor)
	_, err = c.audit.Append(ctx, audit.Event{
		Kind: audit.GateRemoved, Actor: audit.ByUser(os.Getuid()), Decision: audit.Allowed, Subject: audit.Redact(none, id),
		Digests: []audit.Digest{d}, Text: audit.Redact(none, string(v.Outcome)), Sync: true,
	})
	if err != nil {
		return "", err
	}
	if err := c.dropVerdict(id); err != nil {
		return "", err
	}
	if err := errors.Join(os.Remove(mark), all.Close()); err != nil {
		return "", err
	}
	return id, removeTree(c.gateDir("verdicts", gonePrefix+id))
}

// sweepVerdicts removes what gates that died had kept for a verdict that never was, and
// gives the directories.
func (c *Client) sweepVerdicts(ctx context.Context) (removed []string, err error) {
	release, err := c.keepVerdicts(ctx)
	if err != nil {
		return nil, err
	}
	release() // a removal that somebody died in is done
	var errs []error
	err = c.eachVerdict(func(id string, there bool) error {
		dir := c.gateDir("verdicts", id)
		fi, err := os.Lstat(dir)
		if there || err != nil || time.Since(fi.ModTime()) < time.Minute {
			return nil // one that is being made is not held yet
		}
		f, err := holdVerdict(dir)
		if err != nil {
			return nil // a gate that lives
		}
		defer f.Close()
		_, missing := os.Lstat(filepath.Join(dir, verdictFile))
		sum, err := c.recorded(id, verdictOf)
		if err != nil || sum != "" || !errors.Is(missing, fs.ErrNotExist) {
			return err // somebody took a verdict away: what is left shows it
		}
		if err := removeTree(dir); err != nil {
			errs = append(errs, err)
			return nil
		}
		removed = append(removed, dir)
		return nil
	})
	gone, gerr := store.Glob(c.gateDir("verdicts"), gonePrefix+"*")
	errs = append(errs, gerr)
	for _, dir := range gone { // somebody died while they removed it
		if err := removeTree(dir); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, dir)
	}
	return removed, errors.Join(append(errs, err)...)
}
