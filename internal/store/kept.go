package store

import (
	"cmp"
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

// Files in bottles/<slug>, beside the bottle's record:
//
//	lock           locked by the process that starts, runs, resumes or destroys the bottle
//	identity.json  settings that stay the same when it is resumed; see package carboy
//	kept.json      describes the files from which it can be resumed
//	kept/<run>     these files; complete before kept.json names the directory

const (
	identityFile = "identity.json"
	decidedFile  = "decided.json"
	keptFile     = "kept.json"
	keptDir      = "kept"
	keptKind     = "kept"

	// firstBackend held each bottle whose record names no backend.
	firstBackend = "gvisor"
)

// ErrBottleBusy means that another process holds the bottle's lock.
var ErrBottleBusy = errors.New("bottle is in use")

// BottleLock is the exclusive lock of a bottle, for starting, resuming and destroying it.
type BottleLock struct {
	s      *Store
	slug   string
	lock   int
	dir    int
	closed bool
}

// lockBottleIn bounds the wait for a process that only checks whether the bottle is in use.
const lockBottleIn = 500 * time.Millisecond

// LockBottle takes the lock of a bottle, which ends with the process at the latest. The error is ErrBottleBusy if another
// process holds it, and ErrNoBottle if there is no such bottle.
func (s *Store) LockBottle(slug string) (*BottleLock, error) {
	for end := time.Now().Add(lockBottleIn); ; time.Sleep(10 * time.Millisecond) {
		l, err := s.tryBottle(slug, unix.LOCK_EX)
		if !errors.Is(err, ErrBottleBusy) || time.Now().After(end) {
			return l, err
		}
	}
}

// BottleBusy reports whether a process holds the lock of a bottle.
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
	// The bottle may have been removed, and another one created, since its directory was opened.
	var ours, now unix.Stat_t
	if unix.Fstat(dir, &ours) != nil || unix.Fstatat(s.bottles, slug, &now, unix.AT_SYMLINK_NOFOLLOW) != nil || ours.Ino != now.Ino || ours.Dev != now.Dev {
		l.Unlock()
		return fail(ErrNoBottle)
	}
	return l, nil
}

// Unlock releases the lock. Unlocking twice is allowed.
func (l *BottleLock) Unlock() {
	if !l.closed {
		l.closed = true
		unix.Close(l.lock)
		unix.Close(l.dir)
	}
}

// Identity returns the data of WriteIdentity, nil if there is none yet.
func (l *BottleLock) Identity() ([]byte, error) {
	b, err := readAt(l.s.sys, l.dir, identityFile)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return b, err
}

// WriteIdentity stores the bottle's identity, readable by this user only.
func (l *BottleLock) WriteIdentity(b []byte) error {
	return replaceFile(l.s.sys, l.dir, identityFile, "."+identityFile+".tmp", b, 0o600)
}

// Decided returns the data of WriteDecided, nil if there is none yet.
func (l *BottleLock) Decided() ([]byte, error) {
	b, err := readAt(l.s.sys, l.dir, decidedFile)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return b, err
}

// WriteDecided stores people's decisions for the bottle's lifetime, readable by this user only.
func (l *BottleLock) WriteDecided(b []byte) error {
	return replaceFile(l.s.sys, l.dir, decidedFile, "."+decidedFile+".tmp", b, 0o600)
}

// Kept is the content of kept.json: the files from which a bottle can be resumed.
type Kept struct {
	Schema string    `json:"schema"`
	Run    ID        `json:"run"` // the run that was kept
	At     time.Time `json:"at"`
	Build  string    `json:"build"`
	Arch   string    `json:"arch"` // as in GOARCH
	// Backend names the backend that held the bottle, and BackendBuild its version.
	Backend      string `json:"backend,omitempty"`
	BackendBuild string `json:"backend_build,omitempty"`
	// Frozen is true if the bottle was frozen, false if its agent had ended.
	Frozen bool `json:"frozen"`
	// Manifests is the digest of its manifests, in hexadecimal digits.
	Manifests string `json:"manifests"`
	// Files is the file with everything that the bottle wrote. Live lists the files with
	// the state of its processes, in the backend's order; if empty, WhyNot says why.
	Files  KeptPart        `json:"files"`
	Live   []KeptPart      `json:"live,omitempty"`
	Thaw   json.RawMessage `json:"thaw,omitempty"` // the backend's description of Live
	WhyNot string          `json:"why_not_live,omitempty"`
	// Terminal is the state of the terminal that its program had. nil: it had none.
	Terminal *KeptTerminal `json:"terminal,omitempty"`
}

// KeptTerminal describes a program's terminal.
type KeptTerminal struct {
	Settings unix.Termios `json:"settings"`
	Screen   string       `json:"screen"` // what puts a terminal into the same modes
}

// KeptPart is one file of a Kept.
type KeptPart struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Parts returns all files.
func (k *Kept) Parts() []KeptPart { return append([]KeptPart{k.Files}, k.Live...) }

// Dir returns the bottle's directory.
func (l *BottleLock) Dir() string { return filepath.Join(l.s.dir, bottlesDir, l.slug) }

// Private returns a directory below Dir that only this user can access, and creates it if needed. It is removed with the
// bottle.
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

// KeptDir creates an empty directory for the kept files of a run. It replaces an earlier one of that run.
func (l *BottleLock) KeptDir(run ID) (string, error) {
	top := filepath.Join(l.s.dir, bottlesDir, l.slug, keptDir)
	dir := filepath.Join(top, string(run))
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o700)
}

// Keep stores k, from which the bottle will be resumed, and removes earlier kept files. The caller has written and synced
// the files in KeptDir.
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

// Forget removes the kept files: the bottle can't be resumed then.
func (l *BottleLock) Forget() error {
	err := l.s.sys.Unlinkat(l.dir, keptFile, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		err = l.s.sys.Fsync(l.dir)
	}
	return errors.Join(err, l.sweepKept(""))
}

// sweepKept removes the kept files of all runs but one.
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

// Kept returns the record of a kept bottle, and the directory of its files. It returns
// nil if nothing is kept.
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
		*k, err = DecodeKept(data)
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

// EncodeKept encodes k as in kept.json.
func EncodeKept(k *Kept) ([]byte, error) { return Encode(keptKind, k) }

// DecodeKept decodes and checks a file that EncodeKept wrote and that may come from elsewhere.
func DecodeKept(data []byte) (k Kept, err error) {
	if err = Decode(keptFile, keptKind, data, &k); err == nil {
		err = k.check()
	}
	k.Backend = cmp.Or(k.Backend, firstBackend)
	return k, err
}

// EncodeBottle encodes b as in its record.
func EncodeBottle(b *Bottle) ([]byte, error) { return Encode(bottleKind, b) }

// DecodeBottle decodes and checks a file that EncodeBottle wrote and that may come from elsewhere.
func DecodeBottle(data []byte) (b Bottle, err error) {
	err = Decode(metaFile, bottleKind, data, &b)
	return b, err
}

// AwaitBottle takes the lock of a bottle. It blocks while another process holds it.
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
