package microvm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
)

// cache is a directory of files that are made once and named by what they hold. Any of
// them may be removed while no bottle starts.
type cache struct{ dir string }

// keepUnused bounds the time that a file stays unused.
const keepUnused = 30 * 24 * time.Hour

// openCache returns this user's cache. What is in it becomes part of machines, so nobody else
// may change it.
func openCache() (*cache, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(base, "carboy", name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	for d := dir; ; d = filepath.Dir(d) {
		var st unix.Stat_t
		if err := unix.Lstat(d, &st); err != nil {
			return nil, &os.PathError{Op: "stat", Path: d, Err: err}
		}
		if int(st.Gid) == os.Getegid() {
			st.Mode &^= 0o020 // a user's first group is mostly the user's alone
		}
		if st.Mode&unix.S_ISVTX != 0 && d != dir {
			st.Mode &^= 0o022 // where only its owner and a file's may rename the file
		}
		if why := othersChange(&st); why != "" {
			return nil, &bottle.UnavailableError{
				Backend: name, Reason: "the directory " + d + ", in which images are kept, " + why,
				Advice: "set XDG_CACHE_HOME to a directory that only you can write to (with sudo: sudo -H)",
			}
		}
		if d == "/" {
			return &cache{dir}, nil
		}
	}
}

// othersChange says why users other than root and this one can change a file.
func othersChange(st *unix.Stat_t) string {
	switch {
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Sprintf("belongs to user %d", st.Uid)
	case st.Mode&0o002 != 0 || st.Mode&0o020 != 0 && st.Gid != 0:
		return "can be written by others"
	}
	return ""
}

// file returns the path of the file of that name. If it is missing, write makes it.
func (c *cache) file(ctx context.Context, name string, write func(*os.File) error) (string, error) {
	path := filepath.Join(c.dir, name)
	if c.use(path) {
		return path, nil
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	if c.use(path) { // another process made it meanwhile
		return path, nil
	}
	c.sweep()
	f, err := os.CreateTemp(c.dir, ".new-")
	if err != nil {
		return "", err
	}
	err = write(f)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return "", err
	}
	return path, nil
}

// use reports whether the file is there, and marks it as used.
func (c *cache) use(path string) bool {
	now := time.Now()
	return os.Chtimes(path, now, now) == nil
}

// lockInterval separates two tries to get the lock, which nothing else tells of.
const lockInterval = 50 * time.Millisecond

// lock waits until no other process makes a file, since two would need twice the room, or
// until ctx ends.
func (c *cache) lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(c.dir, ".lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		switch err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err {
		case nil:
			return func() { f.Close() }, nil
		case unix.EINTR:
			continue
		case unix.EWOULDBLOCK:
		default:
			f.Close()
			return nil, err
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("another carboy makes an image: %w", ctx.Err())
		case <-time.After(lockInterval):
		}
	}
}

// sweep removes what nobody has used for long, and what a dead process left half written.
// The caller holds the lock.
func (c *cache) sweep() {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil || e.Name() == ".lock" || fi.Mode().Type() != fs.FileMode(0) {
			continue
		}
		if strings.HasPrefix(e.Name(), ".new-") || time.Since(fi.ModTime()) > keepUnused {
			os.Remove(filepath.Join(c.dir, e.Name()))
		}
	}
}
