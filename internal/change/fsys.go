package change

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"

	"github.com/carboy/carboy/internal/safetext"
	"golang.org/x/sys/unix"
)

// beneath holds the flags for resolving every path below the workspace: no
// symbolic or magic link in any component, no "..", no mount point. If a
// directory is replaced by a link meanwhile, opening fails.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS |
	unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// openBeneath opens rel ("." for the directory itself) below dirfd.
func openBeneath(dirfd int, rel string, flags int, mode uint32) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Mode: uint64(mode), Resolve: beneath}
	// EAGAIN: a rename raced with the resolution. Give up if somebody keeps
	// renaming on purpose.
	for tries := 0; ; tries++ {
		fd, err := unix.Openat2(dirfd, rel, &how)
		switch {
		case err == unix.EINTR, err == unix.EAGAIN && tries < 1000:
			continue
		case err == unix.ENOSYS, err == unix.E2BIG:
			return -1, errNoOpenat2
		case err != nil:
			return -1, err
		}
		return fd, nil
	}
}

// tree resolves paths below an open directory.
type tree struct{ fd int }

// lstat returns the metadata of rel without following links. It returns
// ENOENT if rel is absent or its parent is no directory.
func (t tree) lstat(rel string) (unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := openBeneath(t.fd, rel, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		if err == unix.ENOTDIR {
			err = unix.ENOENT
		}
		return st, err
	}
	defer unix.Close(fd)
	err = unix.Fstat(fd, &st)
	return st, err
}

// parent opens the directory of rel and returns it with rel's last component.
func (t tree) parent(rel string) (int, string, error) {
	dir, name := path.Split(rel)
	if dir == "" {
		dir = "."
	}
	fd, err := openBeneath(t.fd, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	return fd, name, err
}

func (t tree) readlink(rel string) (string, error) {
	fd, err := openBeneath(t.fd, rel, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return readlinkFd(fd, "")
}

// readlinkFd returns the target of the link name in the directory fd, or of
// the link fd itself if name is "".
func readlinkFd(fd int, name string) (string, error) {
	buf := make([]byte, 4097)
	n, err := unix.Readlinkat(fd, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// openFile opens the regular file rel for reading. It fails for other types:
// opening a fifo would hang, and opening a device may have effects.
func (t tree) openFile(rel string) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := openBeneath(t.fd, rel, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, st, err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, st, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, st, errors.New("not a regular file")
	}
	return os.NewFile(uintptr(fd), rel), st, nil
}

// dirent is one entry of a directory.
type dirent struct {
	name string
	ino  uint64
	typ  Type // "" if the file system does not report it
}

// list calls fn for each entry of the directory rel, unsorted, until fn
// returns an error.
func (t tree) list(rel string, buf []byte, fn func(dirent) error) error {
	fd, err := openBeneath(t.fd, rel, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return listFd(fd, buf, fn)
}

func listFd(fd int, buf []byte, fn func(dirent) error) error {
	if buf == nil {
		buf = make([]byte, 64<<10)
	}
	for {
		n, err := unix.Getdents(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		if err := eachDirent(buf[:n], fn); err != nil {
			return err
		}
	}
}

// eachDirent calls fn for each linux_dirent64 in b: ino u64, off i64, reclen
// u16, type u8, name NUL-terminated.
func eachDirent(b []byte, fn func(dirent) error) error {
	for len(b) >= 19 {
		reclen := int(b[16]) | int(b[17])<<8
		if reclen < 19 || reclen > len(b) {
			return errors.New("bad directory record")
		}
		name := b[19:reclen]
		for i, c := range name {
			if c == 0 {
				name = name[:i]
				break
			}
		}
		if s := string(name); s != "." && s != ".." {
			var ino uint64
			for i := 7; i >= 0; i-- {
				ino = ino<<8 | uint64(b[i])
			}
			if err := fn(dirent{s, ino, typeOfDT(b[18])}); err != nil {
				return err
			}
		}
		b = b[reclen:]
	}
	return nil
}

func typeOfDT(t byte) Type {
	switch t {
	case unix.DT_REG:
		return File
	case unix.DT_DIR:
		return Dir
	case unix.DT_LNK:
		return Symlink
	case unix.DT_FIFO:
		return Fifo
	case unix.DT_CHR:
		return charDevice
	case unix.DT_BLK:
		return blockDevice
	case unix.DT_SOCK:
		return Socket
	}
	return ""
}

func typeOfMode(m uint32) Type {
	switch m & unix.S_IFMT {
	case unix.S_IFREG:
		return File
	case unix.S_IFDIR:
		return Dir
	case unix.S_IFLNK:
		return Symlink
	case unix.S_IFIFO:
		return Fifo
	case unix.S_IFCHR:
		return charDevice
	case unix.S_IFBLK:
		return blockDevice
	}
	return Socket
}

// chmodFd sets the mode of an O_PATH descriptor's file. It works without the
// file's path, which somebody could replace.
func chmodFd(fd int, mode uint32) error {
	return unix.Fchmodat(unix.AT_FDCWD, procFd(fd), mode, 0)
}

func procFd(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func fingerprintOf(st *unix.Stat_t) *Fingerprint {
	return &Fingerprint{
		Type:  typeOfMode(st.Mode),
		Mode:  st.Mode & 0o7777,
		Size:  st.Size,
		Mtime: st.Mtim.Nano(),
		Ctime: st.Ctim.Nano(),
		Ino:   st.Ino,
		UID:   st.Uid,
		GID:   st.Gid,
	}
}

func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// show escapes a path for printing on one line.
func show(s string) string { return safetext.Path([]byte(s)) }

func wrapPath(op, p string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", op, show(p), err)
}

// sorted returns the names in the directory rel, sorted.
func (t tree) sorted(rel string) ([]string, error) {
	var names []string
	err := t.list(rel, nil, func(e dirent) error { names = append(names, e.name); return nil })
	slices.Sort(names)
	return names, err
}

func closeFd(fd int) { unix.Close(fd) }
