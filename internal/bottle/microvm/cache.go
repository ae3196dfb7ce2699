package microvm

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cache is a directory of files that are made once and named by what they hold. Any of
// them may be removed while no bottle starts.
type cache struct{ dir string }

// keepUnused bounds the time that a file stays unused.
const keepUnused = 30 * 24 * time.Hour

// openCache returns this user's cache.
func openCache() (*cache, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	c := &cache{filepath.Join(base, "carboy", name)}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return nil, err
	}
	return c, nil
}

// file returns the path of the file of that name. If it is missing, write makes it.
func (c *cache) file(name string, write func(*os.File) error) (string, error) {
	path := filepath.Join(c.dir, name)
	if c.use(path) {
		return path, nil
	}
	unlock, err := c.lock()
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

// lock waits until no other process makes a file: two would need twice the room.
func (c *cache) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(c.dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
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
