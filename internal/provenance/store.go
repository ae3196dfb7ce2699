package provenance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/audit"
)

// Store is the directory of one user's records: OWNER/REPO/COMMIT.json. Its methods may be
// called concurrently, also by several processes.
type Store struct {
	dir string
	log *audit.Log
}

// Open returns the Store below a state directory. It makes nothing. The caller closes the
// log after the last call.
func Open(state string, log *audit.Log) *Store {
	return &Store{filepath.Join(state, "provenance"), log}
}

// Names of files.
const (
	suffix       = ".json"
	bundleSuffix = ".sigstore.json"
)

// A name holds the place of a record and its subject in the audit log.
type name struct{ owner, repo, commit string }

func (n name) String() string { return n.owner + "/" + n.repo + "@" + n.commit }

// parseName reads what String returns.
func parseName(s string) (n name, ok bool) {
	path, commit, ok := strings.Cut(s, "@")
	i := strings.LastIndexByte(path, '/')
	if !ok || i < 0 {
		return n, false
	}
	n = name{path[:i], path[i+1:], commit}
	return n, isCommit(commit) && checkRepo(n.owner, n.repo) == nil
}

// file returns the path for messages.
func (s *Store) file(n name, suffix string) string {
	return filepath.Join(s.dir, n.owner, n.repo, n.commit+suffix)
}

// open opens the directory of a repository. It follows no symbolic link below the state
// directory. If make is set, it makes what is missing, for this user alone.
func (s *Store) open(n name, make bool) (fd int, err error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	path := filepath.Dir(s.dir)
	if fd, err = unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	for _, part := range append([]string{filepath.Base(s.dir)}, strings.Split(n.owner+"/"+n.repo, "/")...) {
		path = filepath.Join(path, part)
		if make {
			if err = unix.Mkdirat(fd, part, 0o700); err == nil {
				err = unix.Fsync(fd)
			} else if errors.Is(err, unix.EEXIST) {
				err = nil
			}
		}
		next := -1
		if err == nil {
			next, err = unix.Openat(fd, part, flags, 0)
		}
		unix.Close(fd)
		if err != nil {
			return -1, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		fd = next
	}
	return fd, nil
}

// read returns a file of a repository's directory.
func (s *Store) read(n name, suffix string) ([]byte, error) {
	dir, err := s.open(n, false)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	return readAt(dir, n.commit+suffix, s.file(n, suffix))
}

// readAt reads a regular file of at most maxFile bytes. It follows no symbolic link.
func readAt(dir int, base, path string) ([]byte, error) {
	fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%s is a symbolic link, not a file", path)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return b, err
}

// write makes a file with mode 0600, synced, that either is whole or is not there. It never
// replaces one. The caller holds the Store's lock.
func (s *Store) write(n name, suffix string, b []byte) (err error) {
	dir, err := s.open(n, true)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	defer func() {
		if err != nil {
			err = &fs.PathError{Op: "write", Path: s.file(n, suffix), Err: err}
		}
	}()
	base := n.commit + suffix
	tmp := "." + base + ".tmp"
	if err := unix.Unlinkat(dir, tmp, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	fd, err := unix.Openat(dir, tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	defer unix.Unlinkat(dir, tmp, 0)
	f := os.NewFile(uintptr(fd), tmp)
	_, err = io.Copy(f, bytes.NewReader(b))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := unix.Linkat(dir, tmp, dir, base, 0); err != nil {
		return err
	}
	return unix.Fsync(dir)
}

// lock blocks until this process may write to the Store (unix.LOCK_EX), or until nobody does
// (unix.LOCK_SH): a record is on disk before it is in the audit log. It ends with ctx.
func (s *Store) lock(ctx context.Context, how int) (unlock func(), err error) {
	if how == unix.LOCK_EX {
		if err := os.Mkdir(s.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	fd, err := unix.Open(s.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) && how == unix.LOCK_SH {
		return func() {}, nil // nothing was sealed
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: s.dir, Err: err}
	}
	for {
		err := unix.Flock(fd, how|unix.LOCK_NB)
		if err == nil {
			return func() { unix.Close(fd) }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			unix.Close(fd)
			return nil, &fs.PathError{Op: "lock", Path: s.dir, Err: err}
		}
		select {
		case <-ctx.Done():
			unix.Close(fd)
			return nil, fmt.Errorf("lock %s: %w", s.dir, ctx.Err())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// files returns the names of all records, as the directories have them. What stands in a
// record's place without being a file is among them.
func (s *Store) files(ctx context.Context) (names []name, err error) {
	err = filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		commit, ok := strings.CutSuffix(d.Name(), suffix)
		if !ok || d.IsDir() || !isCommit(commit) {
			return nil
		}
		rel, err := filepath.Rel(s.dir, filepath.Dir(path))
		if err != nil {
			return err
		}
		if n, ok := parseName(rel + "@" + commit); ok {
			names = append(names, n)
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return names, err
}

// digestOf names the digest of a record's file in the audit log.
const digestOf = "provenance"

// recorded holds what the audit log says of a record.
type recorded struct {
	seq int64 // of the first
	sum []string
}

// records returns what the audit log has, by name.
func (s *Store) records(ctx context.Context) (map[name]*recorded, error) {
	all := map[name]*recorded{}
	err := audit.Records(ctx, s.log.Dir(), audit.Sealed, func(r *audit.Record) {
		n, ok := parseName(r.Subject)
		if !ok {
			return
		}
		if all[n] == nil {
			all[n] = &recorded{seq: r.Seq}
		}
		for _, d := range r.Digests {
			if d.Of == digestOf {
				all[n].sum = append(all[n].sum, d.SHA256)
			}
		}
	})
	return all, err
}
