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

// toTrash moves name from the directory at to the trash, durably.
func (s *Store) toTrash(at int, name string) error {
	if err := s.sys.Renameat(at, name, s.trash, rand.Text()); err != nil {
		return err
	}
	if err := s.sys.Fsync(s.trash); err != nil {
		return err
	}
	return s.sys.Fsync(at)
}

// emptyTrash deletes everything in the trash. Several processes may do so at once, and each may die meanwhile.
//
// Bottles made these trees. They may be deeper than the limits on open files and paths, and contain unreadable
// directories, links and, after a crash, mounts of host directories. So emptyTrash resolves only single names, enters no
// link and no mount point, and moves directories that are not empty up into the trash instead of descending into them.
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

// shred deletes one entry of the trash. The contents of its directories may become entries of the trash.
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
	// Moving a directory to another parent needs write permission on it.
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

// openOwn opens a directory and makes it writable, whatever its mode. It fails for a link or a mount point.
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

// openBeneath opens one entry of the directory at. It fails for a link or a mount point. Without openat2 (Linux 5.6) it
// compares devices, which does not detect bind mounts of the same file system.
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
