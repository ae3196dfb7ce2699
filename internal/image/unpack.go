package image

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// unpacker applies layers on top of each other in one directory. The kernel
// resolves every path with that directory as its root (openat2,
// RESOLVE_IN_ROOT), as it will be inside: absolute links and ".." of an image
// lead to its own files. The last component is never followed.
type unpacker struct {
	root    int
	limits  Bounds
	entries int64
	bytes   int64
	left    []string

	// made holds the names of this layer, which its own whiteouts do not hide.
	made map[spot]bool
}

// spot is a name in a directory.
type spot struct {
	dir  uint64
	name string
}

func newUnpacker(dir string, limits Bounds) (*unpacker, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return &unpacker{root: fd, limits: limits}, nil
}

func (u *unpacker) close() { unix.Close(u.root) }

// errLimit means that an image exceeds its limits.
var errLimit = errors.New("it is larger than is taken")

// layer applies one uncompressed layer. It reads all of r, whose digest must be
// diff.
func (u *unpacker) layer(r io.Reader, diff string) error {
	u.made = map[spot]bool{}
	sum := sha256.New()
	// Padding and data after the end count as well.
	all := &io.LimitedReader{R: io.TeeReader(r, sum), N: u.limits.Bytes - u.bytes + (u.limits.Entries-u.entries)*1024 + 1<<20}
	in := tar.NewReader(all)
	for {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			if all.N <= 0 {
				return errLimit
			}
			return err
		}
		if u.entries++; u.entries > u.limits.Entries {
			return errLimit
		}
		if err := u.entry(h, in); err != nil {
			var e *Error
			if errors.As(err, &e) {
				return err
			}
			return &Error{Entry: h.Name, Reason: "it can't be unpacked", Err: err}
		}
	}
	if _, err := io.Copy(io.Discard, all); err != nil {
		return err
	}
	if all.N <= 0 {
		return errLimit
	}
	if hex.EncodeToString(sum.Sum(nil)) != diff {
		return errors.New("it is not what the configuration's digest says")
	}
	return nil
}

// Names with this prefix are whiteouts: they hide what is in the layers below.
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

func refuse(h *tar.Header, reason string) error { return &Error{Entry: h.Name, Reason: reason} }

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if strings.Contains(h.Name, "\x00") || len(h.Name) >= unix.PathMax {
		return refuse(h, "its name is none")
	}
	for part := range strings.SplitSeq(h.Name, "/") {
		if part == ".." {
			return refuse(h, "its name leads out of the image")
		}
	}
	name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
	if name == "" {
		if h.Typeflag != tar.TypeDir {
			return refuse(h, "it stands in the place of the root")
		}
		return nil
	}
	dir, base := path.Split(name)
	if strings.HasPrefix(base, whiteout) {
		return u.hide(h, dir, base)
	}
	at, err := u.parent(dir)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	switch h.Typeflag {
	case tar.TypeDir:
		err = u.directory(at, base, h)
	case tar.TypeReg:
		err = u.file(at, base, h, content)
	case tar.TypeSymlink:
		err = u.symlink(at, base, h)
	case tar.TypeLink:
		err = u.link(at, base, h)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		// A bottle has devices of its own, and a pipe on the host could block
		// who opens it.
		if len(u.left) < 100 {
			u.left = append(u.left, fmt.Sprintf("%q: a device or a named pipe", name))
		}
		return u.clear(at, base)
	default:
		return refuse(h, fmt.Sprintf("it is of a kind that images do not have (%q)", h.Typeflag))
	}
	if err != nil {
		return err
	}
	return u.mark(at, base)
}

func (u *unpacker) mark(at int, base string) error {
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return err
	}
	u.made[spot{st.Ino, base}] = true
	return nil
}

// open opens the directory that a path means inside.
func (u *unpacker) open(dir string) (int, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	for tries := 0; ; tries++ {
		fd, err := unix.Openat2(u.root, "./"+dir, &how)
		if err == unix.EINTR || err == unix.EAGAIN && tries < 1000 {
			continue
		}
		return fd, err
	}
}

// parent opens a directory. It makes the directory if a layer left it out.
func (u *unpacker) parent(dir string) (int, error) {
	fd, err := u.open(dir)
	if err == unix.ENOENT {
		fd, err = u.makeAll(dir)
	}
	if err != nil {
		return -1, fmt.Errorf("its directory: %w", err)
	}
	// Links may lead to links. A tree deeper than a path can name could not be
	// removed again.
	if _, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err != nil {
		unix.Close(fd)
		return -1, errors.New("its directory is too deep")
	}
	return fd, nil
}

func (u *unpacker) makeAll(dir string) (int, error) {
	at, err := u.open("")
	if err != nil {
		return -1, err
	}
	done := ""
	for part := range strings.SplitSeq(strings.Trim(dir, "/"), "/") {
		done += part + "/"
		next, err := u.open(done)
		if err == unix.ENOENT {
			if u.entries++; u.entries > u.limits.Entries {
				unix.Close(at)
				return -1, errLimit
			}
			// EEXIST: the name is a dangling link.
			if err = unix.Mkdirat(at, part, 0o755); err == nil {
				if err = u.mark(at, part); err == nil {
					next, err = u.open(done)
				}
			}
		}
		unix.Close(at)
		if err != nil {
			return -1, err
		}
		at = next
	}
	return at, nil
}

// perm returns the permitted part of a mode: without set-user-id, which on the
// host would mean the store's owner, and with at least the rights that the
// owner needs to read and remove it.
func perm(h *tar.Header, least uint32) uint32 {
	m := uint32(h.Mode) & 0o777
	if h.Typeflag == tar.TypeDir {
		m |= uint32(h.Mode) & unix.S_ISVTX
	}
	return m | least
}

func (u *unpacker) directory(at int, base string, h *tar.Header) error {
	var st unix.Stat_t
	err := unix.Fstatat(at, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if err := u.clear(at, base); err != nil {
			return err
		}
		if err := unix.Mkdirat(at, base, 0o700); err != nil {
			return err
		}
	}
	return fchmodat(at, base, perm(h, 0o700))
}

// fchmodat changes the mode of a name that is known to be no link: nobody else
// writes here.
func fchmodat(at int, base string, mode uint32) error {
	fd, err := unix.Openat(at, base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fchmod(fd, mode)
}

func (u *unpacker) file(at int, base string, h *tar.Header, content io.Reader) error {
	if u.bytes += h.Size; u.bytes > u.limits.Bytes {
		return errLimit
	}
	if err := u.clear(at, base); err != nil {
		return err
	}
	fd, err := unix.Openat(at, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	if n, err := io.Copy(f, content); err != nil || n != h.Size {
		return errors.Join(err, unix.Fchmod(fd, perm(h, 0o400)))
	}
	if err := unix.Fchmod(fd, perm(h, 0o400)); err != nil {
		return err
	}
	return times(at, base, h)
}

func (u *unpacker) symlink(at int, base string, h *tar.Header) error {
	if h.Linkname == "" || len(h.Linkname) >= unix.PathMax || strings.Contains(h.Linkname, "\x00") {
		return refuse(h, "it is a link to nothing that has a name")
	}
	if err := u.clear(at, base); err != nil {
		return err
	}
	if err := unix.Symlinkat(h.Linkname, at, base); err != nil {
		return err
	}
	return times(at, base, h)
}

func (u *unpacker) link(at int, base string, h *tar.Header) error {
	target := strings.TrimPrefix(path.Clean("/"+h.Linkname), "/")
	dir, last := path.Split(target)
	if last == "" {
		return refuse(h, "it is a link to nothing that has a name")
	}
	from, err := u.open(dir)
	if err != nil {
		return fmt.Errorf("what it links to: %w", err)
	}
	defer unix.Close(from)
	var old, there unix.Stat_t
	if err := unix.Fstatat(from, last, &old, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("what it links to: %w", err)
	}
	if t := old.Mode & unix.S_IFMT; t != unix.S_IFREG && t != unix.S_IFLNK {
		return refuse(h, "it is a second name of what is no file")
	}
	if unix.Fstatat(at, base, &there, unix.AT_SYMLINK_NOFOLLOW) == nil && there.Ino == old.Ino {
		return nil
	}
	if err := u.clear(at, base); err != nil {
		return err
	}
	return unix.Linkat(from, last, at, base, 0)
}

// times sets an entry's own modification time, where it is valid.
func times(at int, base string, h *tar.Header) error {
	t := h.ModTime.Unix()
	if t < 0 || t >= 1<<33 {
		return nil
	}
	ts := []unix.Timespec{{Sec: t}, {Sec: t}}
	return unix.UtimesNanoAt(at, base, ts, unix.AT_SYMLINK_NOFOLLOW)
}

// hide applies a whiteout: it removes only what lower layers have.
func (u *unpacker) hide(h *tar.Header, dir, base string) error {
	at, err := u.open(dir)
	if err == unix.ENOENT || err == unix.ENOTDIR {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(at)
	if base == opaque {
		_, err := u.clearLower(at)
		return err
	}
	name := strings.TrimPrefix(base, whiteout)
	switch {
	case strings.HasPrefix(name, whiteout): // aufs's own bookkeeping
		return nil
	case name == "" || name == "." || name == "..":
		return refuse(h, "it hides what is not its own")
	}
	_, err = u.removeLower(at, name)
	return err
}

// clear removes whatever occupies the name of an entry.
func (u *unpacker) clear(at int, base string) error {
	err := unix.Unlinkat(at, base, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err != unix.EISDIR {
		return err
	}
	return u.within(at, base, func(dir int) error {
		names, err := readDir(dir)
		if err != nil {
			return err
		}
		for _, n := range names {
			if err := u.clear(dir, n); err != nil {
				return err
			}
		}
		return unix.Unlinkat(at, base, unix.AT_REMOVEDIR)
	})
}

// removeLower removes what lower layers have under a name. kept means that
// something of this layer remains there.
func (u *unpacker) removeLower(at int, base string) (kept bool, err error) {
	var st, dir unix.Stat_t
	if err := unix.Fstatat(at, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if err == unix.ENOENT {
			return false, nil
		}
		return false, err
	}
	if err := unix.Fstat(at, &dir); err != nil {
		return false, err
	}
	ours := u.made[spot{dir.Ino, base}]
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if ours {
			return true, nil
		}
		return false, unix.Unlinkat(at, base, 0)
	}
	err = u.within(at, base, func(fd int) error {
		below, err := u.clearLower(fd)
		if kept = ours || below; err != nil || kept {
			return err
		}
		return unix.Unlinkat(at, base, unix.AT_REMOVEDIR)
	})
	return kept, err
}

func (u *unpacker) clearLower(at int) (kept bool, err error) {
	names, err := readDir(at)
	if err != nil {
		return false, err
	}
	for _, n := range names {
		k, err := u.removeLower(at, n)
		if err != nil {
			return false, err
		}
		kept = kept || k
	}
	return kept, nil
}

// within opens a directory by its name, without following a link, and calls f.
func (u *unpacker) within(at int, base string, f func(fd int) error) error {
	fd, err := unix.Openat(at, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}

// readDir lists a directory through a new descriptor.
func readDir(at int) ([]string, error) {
	fd, err := unix.Openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "directory")
	defer f.Close()
	return f.Readdirnames(-1)
}
