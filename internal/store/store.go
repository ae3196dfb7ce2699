// Package store keeps carboy's state on disk: one directory per run, one per bottle, and locks on workspaces.
//
// Guarantees:
//
//   - After kill -9, a full disk or an I/O error at any moment, every record is complete, in its old or its new version.
//     A change survives once the call that made it has returned.
//   - A record that cannot be read is never deleted automatically.
//   - Recover finds every run whose supervisor is dead, and marks no run lost whose supervisor may be alive.
//   - Removing a run touches nothing outside its directory, whatever the bottle left there (links, mounts, directories
//     nested deeper than a path can be long, or without permissions).
//
// Changes of records take one lock per state directory, for a few file operations; reading takes no lock. A *Store may be
// used by several goroutines and several processes at once.
//
// The package does not protect the files from other processes of the same user, and its locks do not work across machines
// that share the directory through a file system without flock.
//
// Start reading at Store.Create, then Store.update.
package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

var (
	// ErrNotFound is returned for a run that does not exist.
	ErrNotFound = errors.New("no such run")
	// ErrNoRuns is returned for a workspace without runs. It matches ErrNotFound.
	ErrNoRuns error = noRuns{}
	// ErrLive is returned for operations that need the run to be over.
	ErrLive = errors.New("run is not over")
	// ErrUnlanded is returned by Remove for a run with changes that nobody has landed or discarded.
	ErrUnlanded = errors.New("run has changes that were not landed")
)

type noRuns struct{}

func (noRuns) Error() string        { return "no runs yet" }
func (noRuns) Is(target error) bool { return target == ErrNotFound }

// lockPatience bounds the wait for the state directory's lock. Its holders only do a few file operations.
const lockPatience = 30 * time.Second

// Store is an open state directory.
type Store struct {
	sys   sys
	self  Process
	now   func() time.Time     // wall clock, for display
	mono  func() time.Duration // monotonic clock, for durations
	dir   string
	root  int // descriptors stay open, so renaming the state directory does not lead to another one
	runs  int
	trash int
	locks int

	bottles int
}

// Open opens the state directory dir, as returned by StateDir, and creates its subdirectories. The caller must close the
// Store.
func Open(dir string) (*Store, error) { return open(dir, kernel{}) }

func open(dir string, k sys) (_ *Store, err error) {
	if err := privateDir("state", dir); err != nil {
		return nil, err
	}
	self, err := Self()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	s := &Store{
		sys: k, self: self, dir: dir, root: -1, runs: -1, trash: -1, locks: -1, bottles: -1,
		now:  func() time.Time { return time.Now().UTC().Round(0) },
		mono: func() time.Duration { return time.Since(began) },
	}
	defer func() {
		if err != nil {
			s.Close()
			err = fmt.Errorf("open state directory %s: %w", strconv.Quote(dir), err)
		}
	}()
	// The directory itself may be the user's own link to another disk.
	if s.root, err = k.Openat(unix.AT_FDCWD, dir, unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
		return nil, err
	}
	for name, fd := range map[string]*int{"runs": &s.runs, "trash": &s.trash, "locks": &s.locks, bottlesDir: &s.bottles} {
		if *fd, err = s.ensureDir(s.root, name); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return s, nil
}

func (s *Store) ensureDir(at int, name string) (int, error) {
	if err := s.sys.Mkdirat(at, name, 0o700); err == nil {
		if err := s.sys.Fsync(at); err != nil {
			return -1, err
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return -1, err
	}
	return s.sys.Openat(at, name, dirFlags, 0)
}

// Close releases the descriptors. Runs and claims of s stay locked until they are closed, but can no longer change
// records.
func (s *Store) Close() error {
	for _, fd := range []*int{&s.root, &s.runs, &s.trash, &s.locks, &s.bottles} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
	return nil
}

// Dir returns the path of the state directory.
func (s *Store) Dir() string { return s.dir }

// RunDir returns the path of run id's directory, which need not exist.
func (s *Store) RunDir(id ID) string { return filepath.Join(s.dir, "runs", string(id)) }

// locked calls f with the state directory's lock held, which serializes changes of records between processes.
func (s *Store) locked(ctx context.Context, f func() error) error {
	fd, err := s.flockFile(ctx, s.root, "lock")
	if err != nil {
		return fmt.Errorf("lock state directory %s: %w", strconv.Quote(s.dir), err)
	}
	defer unix.Close(fd)
	return f()
}

// flockFile takes the exclusive lock on file name in at, which it creates if missing, and returns its descriptor. The
// lock ends when the descriptor is closed or the process dies.
func (s *Store) flockFile(ctx context.Context, at int, name string) (int, error) {
	fd, err := s.sys.Openat(at, name, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return -1, err
	}
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := s.sys.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			// For the error of other waiters only, so errors are ignored.
			unix.Pwrite(fd, fmt.Appendf(nil, "%-20d", os.Getpid()), 0)
			return fd, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			unix.Close(fd)
			return -1, err
		}
		select {
		case <-time.After(wait/2 + rand.N(wait)):
		case <-ctx.Done():
			buf := make([]byte, 20)
			n, _ := unix.Pread(fd, buf, 0)
			unix.Close(fd)
			return -1, fmt.Errorf("held by process %s: %w", trimPID(buf[:max(n, 0)]), ctx.Err())
		}
	}
}

func trimPID(b []byte) string {
	n := 0
	for n < len(b) && b[n] >= '0' && b[n] <= '9' {
		n++
	}
	if n == 0 {
		return "unknown"
	}
	return string(b[:n])
}

// readNames calls f with each name in the directory at/name, in no order. It stops at f's error.
func (s *Store) readNames(at int, name string, f func(name string) error) error {
	fd, err := s.sys.Openat(at, name, dirFlags, 0)
	if err != nil {
		return err
	}
	return eachName(fd, f)
}

// eachName reads and closes the directory fd.
func eachName(fd int, f func(name string) error) error {
	d := os.NewFile(uintptr(fd), "dir")
	defer d.Close()
	for {
		names, err := d.Readdirnames(512)
		for _, n := range names {
			if err := f(n); err != nil {
				return err
			}
		}
		if len(names) == 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			return nil
		}
	}
}
