package uppertar

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Read unpacks a stream. where returns, for a path without leading slash, the directory
// below which it is and its path there; an empty path is that directory itself. A
// descriptor below zero leaves the entry out.
//
// The stream may be hostile: nothing is made outside of those directories, no link is
// followed, and no device is made other than the overlay's mark of a deletion. Unpack on
// a file system that honours neither set-user-id bits nor devices.
func Read(r io.Reader, where func(name string) (int, string)) error {
	u := &unpacker{where: where, buf: make([]byte, copyBuffer)}
	tr := tar.NewReader(bufio.NewReaderSize(r, copyBuffer))
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the files: %w", err)
		}
		if err := u.one(h, tr); err != nil {
			return fmt.Errorf("bring back %q: %w", h.Name, err)
		}
	}
	// Directories get their times and modes when they are full: a mode could forbid
	// adding files.
	for _, h := range slices.Backward(u.dirs) {
		if err := u.onDir(h, func(fd int) error { return attribute(fd, h) }); err != nil {
			return fmt.Errorf("bring back %q: %w", h.Name, err)
		}
	}
	return nil
}

type unpacker struct {
	where func(string) (int, string)
	buf   []byte
	dirs  []*tar.Header
}

func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// beneath opens a path below a directory, following nothing.
func beneath(root int, name string, flags int) (int, error) {
	if name == "" {
		name = "."
	}
	return unix.Openat2(root, name, &unix.OpenHow{
		Flags:   uint64(flags) | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// parent opens the directory of name, making what is missing. The caller closes it.
func parent(root int, name string) (int, error) {
	dir := path.Dir(name)
	fd, err := beneath(root, dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != unix.ENOENT {
		return fd, err
	}
	made := ""
	for _, part := range strings.Split(dir, "/") {
		up, err := beneath(root, made, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return -1, err
		}
		err = unix.Mkdirat(up, part, 0o755)
		unix.Close(up)
		if err != nil && err != unix.EEXIST {
			return -1, err
		}
		made = path.Join(made, part)
	}
	return beneath(root, dir, unix.O_PATH|unix.O_DIRECTORY)
}

// onDir calls do with a directory of the stream.
func (u *unpacker) onDir(h *tar.Header, do func(fd int) error) error {
	root, name := u.where(clean(h.Name))
	fd, err := beneath(root, name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return do(fd)
}

func (u *unpacker) one(h *tar.Header, r io.Reader) error {
	root, name := u.where(clean(h.Name))
	if root < 0 {
		return nil
	}
	if name == "" || name == "." {
		if h.Typeflag != tar.TypeDir {
			return errors.New("is not a directory")
		}
		u.dirs = append(u.dirs, h)
		return nil
	}
	at, err := parent(root, name)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	base := path.Base(name)
	if h.Typeflag == tar.TypeDir {
		err := unix.Mkdirat(at, base, 0o700)
		if err == unix.EEXIST {
			err = nil
		}
		u.dirs = append(u.dirs, h)
		return err
	}
	if err := unix.Unlinkat(at, base, 0); err != nil && err != unix.ENOENT {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return u.file(at, base, h, r)
	case tar.TypeSymlink:
		if err := unix.Symlinkat(h.Linkname, at, base); err != nil {
			return err
		}
		return attributeAt(at, base, h, false)
	case tar.TypeLink:
		return u.link(at, base, h)
	case tar.TypeFifo:
		if err := unix.Mknodat(at, base, unix.S_IFIFO|0o600, 0); err != nil {
			return err
		}
		return attributeAt(at, base, h, true)
	case tar.TypeChar:
		if h.Devmajor != 0 || h.Devminor != 0 {
			return errors.New("is a device")
		}
		return unix.Mknodat(at, base, unix.S_IFCHR, 0)
	}
	return fmt.Errorf("is of type %q", h.Typeflag)
}

func (u *unpacker) link(at int, base string, h *tar.Header) error {
	root, to := u.where(clean(h.Linkname))
	if root < 0 {
		return errors.New("is a link to what was left out")
	}
	from, err := beneath(root, path.Dir(to), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	return unix.Linkat(from, path.Base(to), at, base, 0)
}

// file writes one file; zeros become holes.
func (u *unpacker) file(at int, base string, h *tar.Header, r io.Reader) error {
	fd, err := unix.Openat(at, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	var off int64
	for {
		n, rerr := io.ReadFull(r, u.buf)
		if b := u.buf[:n]; n > 0 && !zeros(b) {
			if _, err := f.WriteAt(b, off); err != nil {
				return err
			}
		}
		off += int64(n)
		if errors.Is(rerr, io.EOF) || errors.Is(rerr, io.ErrUnexpectedEOF) && off == h.Size {
			break
		}
		if rerr != nil {
			return rerr
		}
	}
	if err := unix.Ftruncate(fd, h.Size); err != nil {
		return err
	}
	return attribute(fd, h)
}

func zeros(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// attribute sets owner, mode, extended attributes and time of an open file.
func attribute(fd int, h *tar.Header) error {
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, recXattr)
		if !ok || !strings.HasPrefix(name, "user.") && name != attrOpaque {
			continue
		}
		if err := unix.Fsetxattr(fd, name, []byte(value), 0); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("attribute %q: %w", name, err)
		}
	}
	// The owner first: changing it clears set-id bits.
	if err := unix.Fchown(fd, h.Uid, h.Gid); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, uint32(h.Mode)&0o7777); err != nil {
		return err
	}
	return unix.UtimesNanoAt(fd, "", times(h), unix.AT_EMPTY_PATH)
}

func attributeAt(at int, base string, h *tar.Header, mode bool) error {
	if err := unix.Fchownat(at, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if mode {
		// What was just made is no link: nobody else can be here.
		if err := unix.Fchmodat(at, base, uint32(h.Mode)&0o7777, 0); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(at, base, times(h), unix.AT_SYMLINK_NOFOLLOW)
}

func times(h *tar.Header) []unix.Timespec {
	t := unix.Timespec{Sec: max(h.ModTime.Unix(), 0)}
	return []unix.Timespec{t, t}
}
