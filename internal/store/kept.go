package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// What is kept of a bottle, beside its record in bottles/<slug>:
//
//	lock           held by the carboy that starts, runs, resumes or destroys it
//	identity.json  what it has again when it is resumed; see package carboy
//	kept.json      what it can be resumed from, and in which directory that is
//	kept/<run>     files of that, complete before kept.json names it

const (
	identityFile = "identity.json"
	decidedFile  = "decided.json"
	keptFile     = "kept.json"
	keptDir      = "kept"
	keptKind     = "kept"
)

// ErrBottleBusy means that a carboy works with the bottle at this moment.
var ErrBottleBusy = errors.New("bottle is in use")

// BottleLock says that nobody else starts, resumes or destroys a bottle.
type BottleLock struct {
	s      *Store
	slug   string
	lock   int
	dir    int
	closed bool
}

// lockBottleIn bounds the wait for somebody who only looks whether a bottle is in use.
const lockBottleIn = 500 * time.Millisecond

// LockBottle takes the lock of a bottle: ErrBottleBusy when somebody has it, ErrNoBottle when there is no such bottle.
// Death unlocks.
func (s *Store) LockBottle(slug string) (*BottleLock, error) {
	for end := time.Now().Add(lockBottleIn); ; time.Sleep(10 * time.Millisecond) {
		l, err := s.tryBottle(slug, unix.LOCK_EX)
		if !errors.Is(err, ErrBottleBusy) || time.Now().After(end) {
			return l, err
		}
	}
}

// BottleBusy reports whether somebody has the lock of a bottle.
func (s *Store) BottleBusy(slug string) (bool, error) {
	l, err := s.tryBottle(slug, unix.LOCK_SH)
	if err != nil {
		if errors.Is(err, ErrBottleBusy) {
			return true, nil
		}
		return false, err
	}
	l.Unlock()
	return false, nil
}

func (s *Store) tryBottle(slug string, how int) (*BottleLock, error) {
	fail := func(err error) (*BottleLock, error) {
		return nil, fmt.Errorf("bottle %s: %w", strconv.Quote(slug), err)
	}
	if !ValidSlug(slug) {
		return fail(ErrNoBottle)
	}
	dir, err := s.sys.Openat(s.bottles, slug, dirFlags, 0)
	if errors.Is(err, unix.ENOENT) {
		return fail(ErrNoBottle)
	}
	if err != nil {
		return fail(err)
	}
	fd, err := s.sys.Openat(dir, lockFile, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		if err = s.sys.Flock(fd, how|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrBottleBusy
		}
		if err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		unix.Close(dir)
		return fail(err)
	}
	l := &BottleLock{s: s, slug: slug, lock: fd, dir: dir}
	// It may have been removed, and another one made, since its directory was opened.
	var ours, now unix.Stat_t
	if unix.Fstat(dir, &ours) != nil || unix.Fstatat(s.bottles, slug, &now, unix.AT_SYMLINK_NOFOLLOW) != nil || ours.Ino != now.Ino || ours.Dev != now.Dev {
		l.Unlock()
		return fail(ErrNoBottle)
	}
	return l, nil
}

// Unlock gives it back. Idempotent.
func (l *BottleLock) Unlock() {
	if !l.closed {
		l.closed = true
		unix.Close(l.lock)
		unix.Close(l.dir)
	}
}

// Identity reads what WriteIdentity wrote; nil: nothing yet.
func (l *BottleLock) Identity() ([]byte, error) {
	b, err := readAt(l.s.sys, l.dir, identityFile)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return b, err
}

// WriteIdentity keeps it, for this user's eyes.
func (l *BottleLock) WriteIdentity(b []byte) error {
	return replaceFile(l.s.sys, l.dir, identityFile, "."+identityFile+".tmp", b, 0o600)
}

// Decided reads what WriteDecided wrote; nil: nothing yet.
func (l *BottleLock) Decided() ([]byte, error) {
	b, err := readAt(l.s.sys, l.dir, decidedFile)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return b, err
}

// WriteDecided keeps what people decided for the bottle's life, for this user's eyes.
func (l *BottleLock) WriteDecided(b []byte) error {
	return replaceFile(l.s.sys, l.dir, decidedFile, "."+decidedFile+".tmp", b, 0o600)
}

// Kept is kept.json: what a bottle can be resumed from.
type Kept struct {
	Schema string    `json:"schema"`
	Run    ID        `json:"run"` // of which it is
	At     time.Time `json:"at"`
	Build  string    `json:"build"`
	Arch   string    `json:"arch"` // of processors, as Go calls them
	// Frozen says that somebody froze it; else its agent had ended.
	Frozen bool `json:"frozen"`
	// Manifests is the digest of the manifests that it had, in hexadecimal digits.
	Manifests string `json:"manifests"`
	// Files is the file with all that the bottle wrote. Live are those of the image
	// of its processes, in the backend's order; none: WhyNot says why.
	Files  KeptPart        `json:"files"`
	Live   []KeptPart      `json:"live,omitempty"`
	Thaw   json.RawMessage `json:"thaw,omitempty"` // the backend's word on Live
	WhyNot string          `json:"why_not_live,omitempty"`
}

// KeptPart is one file of it.
type KeptPart struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Parts are all files of it.
func (k *Kept) Parts() []KeptPart { return append([]KeptPart{k.Files}, k.Live...) }

// Dir is the bottle's directory.
func (l *BottleLock) Dir() string { return filepath.Join(l.s.dir, bottlesDir, l.slug) }

// Private is a directory in it for this user alone, made when there is none. It goes with the bottle.
func (l *BottleLock) Private(name string) (string, error) {
	dir := filepath.Join(l.Dir(), name)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	fi, err := os.Lstat(dir)
	if err == nil && !fi.IsDir() {
		err = &fs.PathError{Op: "open", Path: dir, Err: unix.ENOTDIR}
	}
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o700)
}

// KeptDir makes an empty directory for what is kept of a run, in place of any before of that run.
func (l *BottleLock) KeptDir(run ID) (string, error) {
	top := filepath.Join(l.s.dir, bottlesDir, l.slug, keptDir)
	dir := filepath.Join(top, string(run))
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o700)
}

// Keep makes k what the bottle is resumed from, and removes what was kept before. The files are in KeptDir, each of them
// on disk.
func (l *BottleLock) Keep(k *Kept) error {
	dir, err := l.s.sys.Openat(l.dir, keptDir+"/"+string(k.Run), dirFlags, 0)
	if err != nil {
		return err
	}
	err = l.s.sys.Fsync(dir)
	unix.Close(dir)
	if err != nil {
		return err
	}
	k.Schema = Schema(keptKind)
	data, err := Encode(keptKind, k)
	if err != nil {
		return err
	}
	if err := replaceFile(l.s.sys, l.dir, keptFile, "."+keptFile+".tmp", data, 0o600); err != nil {
		return err
	}
	return l.sweepKept(string(k.Run))
}

// sweepKept removes all that is kept but one run's.
func (l *BottleLock) sweepKept(but string) error {
	top := filepath.Join(l.s.dir, bottlesDir, l.slug, keptDir)
	entries, err := os.ReadDir(top)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if e.Name() != but {
			errs = append(errs, os.RemoveAll(filepath.Join(top, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// DropKept removes all that is kept.
func (l *BottleLock) DropKept() error {
	if err := l.s.sys.Unlinkat(l.dir, keptFile, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return l.sweepKept("")
}

// Kept reads what a bottle can be resumed from, and where its files are; nil: nothing is kept.
func (s *Store) Kept(slug string) (*Kept, string, error) {
	if !ValidSlug(slug) {
		return nil, "", fmt.Errorf("bottle %s: %w", strconv.Quote(slug), ErrNoBottle)
	}
	data, err := readAt(s.sys, s.bottles, slug+"/"+keptFile)
	if errors.Is(err, unix.ENOENT) {
		return nil, "", nil
	}
	file := filepath.Join(s.dir, bottlesDir, slug, keptFile)
	k := &Kept{}
	if err == nil {
		err = Decode(keptFile, keptKind, data, k)
	}
	if err == nil {
		err = k.check()
	}
	if err != nil {
		return nil, "", &CorruptError{ID: slug, File: file, Err: err}
	}
	return k, filepath.Join(s.dir, bottlesDir, slug, keptDir, string(k.Run)), nil
}

func (k *Kept) check() error {
	if _, err := ParseID(string(k.Run)); err != nil {
		return fmt.Errorf("field \"run\": %w", err)
	}
	var names []string
	for _, p := range k.Parts() {
		if p.Name == "" || p.Name == "." || p.Name == ".." || strings.ContainsAny(p.Name, "/\x00") || slices.Contains(names, p.Name) {
			return fmt.Errorf("a file is called %q", p.Name)
		}
		names = append(names, p.Name)
	}
	return nil
}

// EncodeKept is k as kept.json has it.
func EncodeKept(k *Kept) ([]byte, error) { return Encode(keptKind, k) }

// DecodeKept reads what EncodeKept gave, of a file that came from elsewhere.
func DecodeKept(data []byte) (k Kept, err error) {
	if err = Decode(keptFile, keptKind, data, &k); err == nil {
		err = k.check()
	}
	return k, err
}

// EncodeBottle is b as its record has it.
func EncodeBottle(b *Bottle) ([]byte, error) { return Encode(bottleKind, b) }

// DecodeBottle reads what EncodeBottle gave, of a file that came from elsewhere.
func DecodeBottle(data []byte) (b Bottle, err error) {
	err = Decode(metaFile, bottleKind, data, &b)
	return b, err
}

// AwaitBottle takes the lock of a bottle as soon as nobody else has it.
func (s *Store) AwaitBottle(ctx context.Context, slug string) (*BottleLock, error) {
	for {
		l, err := s.LockBottle(slug)
		if !errors.Is(err, ErrBottleBusy) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(50 * time.Millisecond):
		}
	}
}
