package change

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/progress"
)

// contentReader reads the content of one node.
type contentReader struct {
	io.Reader
	io.Closer
}

// stage creates an op's new files under its private name, with content, mode
// and owner.
func (x *txn) stage(o *op, syncFiles bool) ([]fileID, error) {
	if len(o.New) == 0 {
		return nil, nil
	}
	dir, _, err := x.place(o)
	if err != nil {
		return nil, err
	}
	defer closeFd(dir)
	owner, err := x.ownerFor(dir, o)
	if err != nil {
		return nil, err
	}
	ids := make([]fileID, len(o.New))
	root := tree{-1}
	defer func() {
		if root.fd >= 0 {
			closeFd(root.fd)
		}
	}()
	for i := range o.New {
		n := &o.New[i]
		full := path.Join(string(o.Path), string(n.Rel))
		if err := x.step("stage", full); err != nil {
			return nil, err
		}
		at, name := dir, o.Tmp
		if i > 0 {
			if at, name, err = root.parent(string(n.Rel)); err != nil {
				return nil, wrapPath("stage", full, err)
			}
		}
		err = x.make(at, name, n, owner, syncFiles)
		if i > 0 {
			closeFd(at)
		}
		if err != nil {
			return nil, wrapPath("stage", full, err)
		}
		if i == 0 && n.Type == Dir {
			if root.fd, err = openBeneath(dir, o.Tmp, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0); err != nil {
				return nil, wrapPath("stage", full, err)
			}
		}
	}
	return ids, x.seal(dir, root, o, ids, syncFiles)
}

// seal sets the modes and times of directories, deepest first, after their
// contents exist, and fills in the ids of all new files.
func (x *txn) seal(dir int, root tree, o *op, ids []fileID, syncDirs bool) error {
	for i := len(o.New) - 1; i >= 0; i-- {
		n := &o.New[i]
		var fd int
		var err error
		if n.Rel == "" {
			fd, err = openBeneath(dir, o.Tmp, unix.O_PATH|unix.O_NOFOLLOW, 0)
		} else {
			fd, err = openBeneath(root.fd, string(n.Rel), unix.O_PATH|unix.O_NOFOLLOW, 0)
		}
		if err == nil && n.Type == Dir {
			err = sealDir(fd, n, syncDirs)
		}
		var st unix.Stat_t
		if err == nil {
			err = unix.Fstat(fd, &st)
		}
		if fd >= 0 {
			closeFd(fd)
		}
		if err != nil {
			return wrapPath("stage", path.Join(string(o.Path), string(n.Rel)), err)
		}
		ids[i] = fileID{st.Ino, st.Mtim.Nano()}
	}
	return nil
}

func sealDir(fd int, n *node, sync bool) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if sync {
		r, err := openBeneath(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		err = unix.Fsync(r)
		closeFd(r)
		if err != nil && err != unix.EINVAL {
			return err
		}
	}
	if n.Own != nil {
		setTimes(fd, n.Own.Mtime)
	}
	mode := n.Mode
	if n.Own == nil {
		mode |= st.Mode & 0o2000 // inherited from the parent directory
	}
	return chmodFd(fd, mode)
}

func setTimes(fd int, mtime int64) {
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(mtime)}
	_ = unix.UtimesNanoAt(unix.AT_FDCWD, procFd(fd), ts, 0) // cosmetic
}

// ownerFor returns the owner of an op's new files, nil to leave it. A replaced
// file keeps its owner. When root lands, a new file gets the owner of its
// directory.
func (x *txn) ownerFor(dir int, o *op) (*unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return nil, err
	}
	if len(o.Old) > 0 {
		st.Uid, st.Gid = o.Old[0].FP.UID, o.Old[0].FP.GID
		return &st, nil
	}
	if os.Geteuid() != 0 {
		return nil, nil
	}
	return &st, nil
}

func (x *txn) make(dir int, name string, n *node, own *unix.Stat_t, syncFile bool) error {
	switch n.Type {
	case Dir:
		if err := unix.Mkdirat(dir, name, 0o700); err != nil {
			return err
		}
	case Symlink:
		if err := unix.Symlinkat(string(n.Target), dir, name); err != nil {
			return err
		}
	case File:
		return x.makeFile(dir, name, n, own, syncFile)
	default:
		return fmt.Errorf("a %s is never made", n.Type)
	}
	fd, err := openBeneath(dir, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer closeFd(fd)
	return chown(fd, n, own)
}

// chown sets owner and group. An ordinary user's failure to set the group is
// ignored.
func chown(fd int, n *node, own *unix.Stat_t) error {
	uid, gid := -1, -1
	switch {
	case n.Own != nil:
		uid, gid = int(n.Own.UID), int(n.Own.GID)
	case own != nil:
		uid, gid = int(own.Uid), int(own.Gid)
	default:
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if int(st.Uid) == uid && int(st.Gid) == gid {
		return nil
	}
	err := unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil && os.Geteuid() != 0 && int(st.Uid) == uid {
		return nil
	}
	return err
}

func (x *txn) makeFile(dir int, name string, n *node, own *unix.Stat_t, syncFile bool) error {
	src, err := x.src(n)
	if err != nil {
		return err
	}
	defer src.Close()
	fd, err := openBeneath(dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	sum, err := copySparse(f, progress.Reader(x.ctx, src), n.Size)
	if err != nil {
		return err
	}
	if n.SHA256 != "" && sum != n.SHA256 {
		return fmt.Errorf("%w: content is not what was collected", ErrCorrupt)
	}
	if err := chown(fd, n, own); err != nil {
		return err
	}
	for k, v := range n.Xattrs {
		// Attributes that cannot be set are lost, as with any editor that
		// saves by renaming.
		_ = unix.Fsetxattr(fd, k, v, 0)
	}
	if err := unix.Fchmod(fd, n.Mode); err != nil {
		return err
	}
	if n.Own != nil {
		setTimes(fd, n.Own.Mtime)
	}
	if syncFile {
		return f.Sync()
	}
	return nil
}

// copySparse fills an empty file with size bytes of r, with zeros as holes,
// and returns their SHA-256.
func copySparse(f *os.File, r io.Reader, size int64) (string, error) {
	h := sha256.New()
	buf := make([]byte, min(int64(64*blockSize), max(size, 1)))
	for off := int64(0); off < size; {
		n := int(min(int64(len(buf)), size-off))
		if _, err := io.ReadFull(r, buf[:n]); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return "", err
		}
		h.Write(buf[:n])
		if _, err := writeSparse(f, buf[:n], off, int64(n)); err != nil {
			return "", err
		}
		off += int64(n)
	}
	return hex.EncodeToString(h.Sum(nil)), f.Truncate(size)
}

// preImages copies the old files of ops to the run directory.
type preImages struct {
	x *txn
	n int
}

func newPreImages(x *txn) *preImages { return &preImages{x: x} }

func (p *preImages) save(o *op) error {
	for i := range o.Old {
		old := &o.Old[i]
		if old.FP.Type != File {
			continue
		}
		full := path.Join(string(o.Path), string(old.Rel))
		p.n++
		if err := p.x.step("pre-image", full); err != nil {
			return err
		}
		old.Pre = p.n
		if err := p.copy(full, old); err != nil {
			return wrapPath("save", full, err)
		}
	}
	if len(o.New) > 0 && len(o.Old) > 0 && o.New[0].Type == File && o.Old[0].FP.Type == File {
		o.New[0].Xattrs = keptXattrs(o.Old[0].Xattrs)
	}
	return nil
}

func (p *preImages) copy(full string, old *oldNode) error {
	src, st, err := p.x.t.openFile(full)
	if err != nil {
		return err
	}
	defer src.Close()
	if st.Ino != old.FP.Ino || st.Size != old.FP.Size || st.Ctim.Nano() != old.FP.Ctime {
		return p.x.changed(full, "changed on the host this moment")
	}
	dst, err := os.OpenFile(p.x.prePath(p.x.j.id, old.Pre), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer dst.Close()
	if unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) == nil {
		old.FP.SHA256 = "" // not read; the clone cannot differ
	} else if old.FP.SHA256, err = copySparse(dst, src, st.Size); err != nil {
		return err
	}
	var after unix.Stat_t
	if err := unix.Fstat(int(src.Fd()), &after); err != nil {
		return err
	}
	if after.Ctim != st.Ctim {
		return p.x.changed(full, "changed on the host this moment")
	}
	old.Xattrs = readXattrs(int(src.Fd()))
	return nil
}

// sync makes the pre-images durable, before the first write to the workspace.
func (p *preImages) sync() error {
	if p.n == 0 {
		return nil
	}
	d, err := os.Open(filepath.Join(p.x.runDir, landDir, p.x.j.id))
	if err != nil {
		return err
	}
	defer d.Close()
	return wrapPath("sync", d.Name(), unix.Syncfs(int(d.Fd())))
}

const maxXattrs = 64 << 10

func readXattrs(fd int) map[string][]byte {
	if n, err := unix.Flistxattr(fd, nil); err != nil || n == 0 {
		return nil
	}
	buf, v := make([]byte, maxXattrs), make([]byte, maxXattrs)
	n, err := unix.Flistxattr(fd, buf)
	if err != nil {
		return nil
	}
	out := map[string][]byte{}
	total := 0
	for _, k := range splitNul(buf[:n]) {
		m, err := unix.Fgetxattr(fd, k, v)
		if err != nil {
			continue
		}
		if total += m + len(k); total > maxXattrs {
			break
		}
		out[k] = bytes.Clone(v[:m])
	}
	return out
}

func splitNul(b []byte) []string {
	var out []string
	for start, i := 0, 0; i < len(b); i++ {
		if b[i] == 0 {
			out = append(out, string(b[start:i]))
			start = i + 1
		}
	}
	return out
}

// keptXattrs returns the attributes without those that grant rights to the old
// content or vouch for it.
func keptXattrs(all map[string][]byte) map[string][]byte {
	out := map[string][]byte{}
	for k, v := range all {
		if k != "security.capability" && k != "security.ima" && k != "security.evm" {
			out[k] = v
		}
	}
	return out
}
