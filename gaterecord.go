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

// Names of what is being removed: a verdict's mark until that is on record, and its
// directory after.
const (
	removeFile = ".remove"
	gonePrefix = ".gone-"
)

// removedOf is what a removed verdict's digest is called in the audit log.
const removedOf = "removed-verdict"

// verdictOf is what a verdict's digest is called in the audit log.
const verdictOf = "verdict"

// holdVerdict keeps others from writing to a verdict's directory until what it gives is
// closed, or carboy dies. One that others hold is unix.EWOULDBLOCK.
func holdVerdict(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	var held, now unix.Stat_t
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = errors.Join(unix.Fstat(int(f.Fd()), &held), unix.Lstat(dir, &now))
	}
	if err == nil && (held.Dev != now.Dev || held.Ino != now.Ino) {
		err = fs.ErrNotExist // it was removed, and made again
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("hold %s: %w", dir, err)
	}
	return f, nil
}

// waitVerdict is holdVerdict that waits for others: they write a document, no more.
func waitVerdict(ctx context.Context, dir string) (*os.File, error) {
	for {
		f, err := holdVerdict(dir)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
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
	if _, err := os.Lstat(filepath.Join(dir, removeFile)); err == nil {
		sum, err := c.recorded(id, verdictOf)
		if err != nil {
			return err
		}
		if sum == "" {
			return c.dropVerdict(id)
		}
		if err := os.Remove(filepath.Join(dir, removeFile)); err != nil {
			return err
		}
	}
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

// eachVerdict calls f with each directory of a verdict, by ids, and whether its verdict
// is there.
func (c *Client) eachVerdict(f func(id string, there bool) error) error {
	all, err := os.ReadDir(c.gateDir("verdicts"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, d := range all {
		if !d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			continue
		}
		for _, name := range []string{nextFile, removeFile} {
			if _, err := os.Lstat(c.gateDir("verdicts", d.Name(), name)); err == nil {
				if err := c.settleVerdict(d.Name()); err != nil {
					return err
				}
			}
		}
		_, err := os.Lstat(c.gateDir("verdicts", d.Name(), verdictFile))
		if err := f(d.Name(), err == nil); err != nil {
			return err
		}
	}
	return nil
}

// givenFile says which verdict was given again last, and which was the newest then.
const givenFile = "given"

// gaveAgain keeps that a verdict was given again, so that who asks for no other one is
// shown it. Nothing is decided by that.
func (c *Client) gaveAgain(id string) {
	ids, err := c.verdicts()
	if err != nil || len(ids) == 0 || c.givenLast(ids) == id {
		return
	}
	if err := store.WriteFile(c.gateDir(givenFile), []byte(id+" "+ids[len(ids)-1]+"\n"), 0o600); err != nil {
		c.log.Info("who asks for the last verdict is shown another one", "given", id, "why", err)
	}
}

// givenLast is the verdict of ids that was given last: the newest, or one that was given
// again since.
func (c *Client) givenLast(ids []string) string {
	newest := ids[len(ids)-1]
	b, err := os.ReadFile(c.gateDir(givenFile))
	if f := strings.Fields(string(b)); err == nil && len(f) == 2 && f[1] == newest && slices.Contains(ids, f[0]) {
		return f[0]
	}
	return newest
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
// what was recorded, which is ErrLedger: what is left shows what was done to it. It gives
// the id.
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
	for _, f := range kept {
		err = errors.Join(err, os.Remove(f))
	}
	if err == nil {
		err = store.WriteFile(filepath.Join(dir, removeFile), nil, 0o600)
	}
	if err != nil {
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
	return id, c.dropVerdict(id)
}

// dropVerdict takes the directory of a verdict away whose removal is on record: at once,
// and then what is in it.
func (c *Client) dropVerdict(id string) error {
	gone := c.gateDir("verdicts", gonePrefix+id)
	if err := os.Rename(c.gateDir("verdicts", id), gone); err != nil {
		return err
	}
	return removeTree(gone)
}

// sweepVerdicts removes what gates that died had kept for a verdict that never was, and
// gives the directories.
func (c *Client) sweepVerdicts() (removed []string, err error) {
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
