package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// toTrash moves name out of directory at, for good once it returns.
func (s *Store) toTrash(at int, name string) error {
	if err := s.sys.Renameat(at, name, s.trash, rand.Text()); err != nil {
		return err
	}
	if err := s.sys.Fsync(s.trash); err != nil {
		return err
	}
	return s.sys.Fsync(at)
}

// emptyTrash deletes all that lies in the trash. Several processes may do so at once, and any may die in between.
//
// The trees there were made inside bottles: they may be deeper than the limit on open files or on a path, hold
// directories that their owner can't read, links, and, after a crash, mounts of host directories. So no path is followed
// further than one step, no link and no mount point is entered, and a directory that is not empty is moved up into the
// trash itself instead of being descended into.
func (s *Store) emptyTrash(ctx context.Context) error {
	for {
		var first error
		progress, left := false, false
		err := s.readNames(s.trash, ".", func(name string) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			left = true
			if err := s.shred(name); err == nil {
				progress = true
			} else if first == nil {
				first = fmt.Errorf("delete %s in the trash: %w", strconv.Quote(name), err)
			}
			return nil
		})
		switch {
		case err != nil:
			return err
		case !left:
			return nil
		case !progress:
			return first
		}
	}
}

// shred deletes one entry of the trash; what its directories hold may become entries of the trash.
func (s *Store) shred(name string) error {
	if gone(s.sys.Unlinkat(s.trash, name, 0)) || gone(s.sys.Unlinkat(s.trash, name, unix.AT_REMOVEDIR)) {
		return nil
	}
	for {
		fd, err := s.openOwn(s.trash, name)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		dir, err := dup(fd)
		if err != nil {
			unix.Close(fd)
			return err
		}
		left := false
		err = eachName(dir, func(child string) error {
			left = true
			return s.shredIn(fd, child)
		})
		unix.Close(fd)
		if err != nil {
			return err
		}
		if err := s.sys.Unlinkat(s.trash, name, unix.AT_REMOVEDIR); gone(err) {
			return nil
		} else if !left {
			return err
		}
	}
}

func (s *Store) shredIn(dir int, name string) error {
	err := s.sys.Unlinkat(dir, name, 0)
	if gone(err) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	if err := s.sys.Unlinkat(dir, name, unix.AT_REMOVEDIR); gone(err) {
		return nil
	} else if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	// A directory's owner can move it to another parent only with write permission on it.
	fd, err := s.openOwn(dir, name)
	if err != nil {
		return err
	}
	unix.Close(fd)
	if err := s.sys.Renameat(dir, name, s.trash, rand.Text()); !gone(err) {
		return err
	}
	return nil
}

func dup(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }

func gone(err error) bool { return err == nil || errors.Is(err, unix.ENOENT) }

// openOwn opens a directory for reading and changing, whatever its mode, if it is neither a link nor a mount point.
func (s *Store) openOwn(at int, name string) (int, error) {
	path, err := openBeneath(at, name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	defer unix.Close(path)
	var st unix.Stat_t
	if err := unix.Fstat(path, &st); err != nil {
		return -1, err
	}
	self := "/proc/self/fd/" + strconv.Itoa(path)
	if st.Mode&0o700 != 0o700 {
		if err := os.Chmod(self, 0o700); err != nil {
			return -1, err
		}
	}
	return s.sys.Openat(unix.AT_FDCWD, self, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

// openBeneath opens one entry of directory at without following a link or crossing onto another mount. Bind mounts of the
// same file system are only told apart by openat2 (Linux 5.6); where that is refused, devices are compared.
func openBeneath(at int, name string, flags int) (int, error) {
	fd, err := unix.Openat2(at, name, &unix.OpenHow{
		Flags:   uint64(flags | unix.O_NOFOLLOW | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return fd, err
	}
	var parent, child unix.Stat_t
	if err := unix.Fstat(at, &parent); err != nil {
		return -1, err
	}
	fd, err = unix.Openat(at, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err = unix.Fstat(fd, &child); err == nil && child.Dev != parent.Dev {
		err = unix.EXDEV
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
