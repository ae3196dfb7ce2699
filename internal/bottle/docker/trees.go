package docker

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/userns"
	"github.com/carboy/carboy/internal/guest/program"
)

// tree is a part of the host's files, cloned before the container exists, so that no path
// is resolved twice.
type tree struct {
	file   *os.File
	target string // inside
	access bottle.Access
	dir    bool
}

// trees holds what goes into the bottle, in the order in which it is mounted.
type trees struct {
	root    *os.File // Root.Dir, or nil
	binds   []tree   // parts of the root
	mounts  []tree   // the workspace first, if there is one
	scratch *os.File // a directory made in Spec.Scratch, or nil
	// scratchName names that directory on the host.
	scratchName string
}

func (t *trees) close() {
	for _, f := range []*os.File{t.root, t.scratch} {
		if f != nil {
			f.Close()
		}
	}
	for _, list := range [][]tree{t.binds, t.mounts} {
		for _, m := range list {
			m.file.Close()
		}
	}
}

// asked says for whom trees are opened.
type asked struct {
	kernel bool // gVisor's gofer will make the files of mounts
	member bool // a user who is not root, whose files are the bottle's user's
}

// openTrees clones all that the spec names, and checks that it is what the caller looked
// at.
func openTrees(spec *bottle.Spec, by asked) (*trees, error) {
	t := &trees{}
	err := t.open(spec, by)
	if err != nil {
		t.close()
		if t.scratchName != "" {
			err = errors.Join(err, os.Remove(t.scratchName))
		}
		return nil, err
	}
	return t, nil
}

func (t *trees) open(spec *bottle.Spec, by asked) (err error) {
	if spec.Root.Dir != "" {
		if t.root, err = clone(spec.Root.Dir); err != nil {
			return err
		}
		if err := restrict(t.root, true); err != nil {
			return fmt.Errorf("root %s: %w", spec.Root.Dir, err)
		}
	}
	for _, m := range spec.Root.Binds {
		m.Access = bottle.AccessReadOnly
		x, err := openMount(m, nil, by)
		if err != nil {
			return err
		}
		t.binds = append(t.binds, x)
	}
	all := spec.Mounts
	if spec.Workspace != nil {
		all = append([]bottle.Mount{*spec.Workspace}, all...)
	}
	for _, m := range all {
		x, err := openMount(m, spec, by)
		if err != nil {
			return err
		}
		t.mounts = append(t.mounts, x)
	}
	if spec.Scratch == "" {
		return nil
	}
	// Only root can enter it: it holds what the bottle's user made, set-id bits too.
	if t.scratchName, err = os.MkdirTemp(spec.Scratch, ".docker-"); err != nil {
		return fmt.Errorf("scratch directory: %w", err)
	}
	t.scratch, err = clone(t.scratchName)
	return err
}

// openMount clones a mount. Unless spec is nil, its files change hands as own says.
func openMount(m bottle.Mount, spec *bottle.Spec, by asked) (x tree, err error) {
	x = tree{target: m.Target, access: m.Access}
	switch {
	case m.Access < bottle.AccessReadOnly || m.Access > bottle.AccessOverlay:
		return x, fmt.Errorf("mount %s: no access is named", m.Target)
	case m.Tree != nil:
		if x.file, err = duplicate(m.Tree); err != nil {
			return x, err
		}
	case m.Source == "":
		// To cover a directory of the host's.
		if x.file, err = newMount("tmpfs", "mode", "0555", "size", "4k"); err != nil {
			return x, err
		}
	default:
		if x.file, err = clone(m.Source); err != nil {
			return x, err
		}
	}
	defer func() {
		if err != nil {
			x.file.Close()
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(int(x.file.Fd()), &st); err != nil {
		return x, err
	}
	if m.Ino != 0 && (uint64(st.Dev) != m.Dev || st.Ino != m.Ino) {
		return x, fmt.Errorf("mount %s: another directory was put in its place", m.Source)
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && (kind != unix.S_IFREG || m.Access == bottle.AccessOverlay) {
		return x, fmt.Errorf("mount %s: not a directory or regular file", m.Source)
	}
	x.dir = kind == unix.S_IFDIR
	if err := restrict(x.file, m.Access != bottle.AccessReadWrite); err != nil {
		return x, fmt.Errorf("mount %s: %w", m.Source, err)
	}
	if spec == nil || m.Tree != nil {
		return x, nil
	}
	if st.Uid == 0 && m.Access == bottle.AccessReadWrite {
		return x, &bottle.UnavailableError{
			Backend: name, Reason: m.Source + " is root's: with write access, a command could leave set-user-id programs of root's there",
			Advice: "use --workspace overlay, or a directory that an ordinary user owns",
		}
	}
	if by.member {
		return x, nil // root's files stay root's
	}
	return x, own(x.file, m.Source, &st, spec, by.kernel && m.Access == bottle.AccessReadWrite)
}

func duplicate(f *os.File) (*os.File, error) {
	n, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), f.Name()), nil
}

func clone(path string) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_NO_AUTOMOUNT)
	if err != nil {
		return nil, &os.PathError{Op: "open_tree", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// newMount makes a file system as a detached mount. Its options are pairs of name and
// value, which is empty for those that have none.
func newMount(kind string, options ...string) (*os.File, error) {
	bad := func(err error) (*os.File, error) {
		return nil, fmt.Errorf("make a file system (%s): %w", kind, err)
	}
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return bad(err)
	}
	defer unix.Close(fs)
	for o := range slices.Chunk(options, 2) {
		if o[1] == "" {
			err = unix.FsconfigSetFlag(fs, o[0])
		} else {
			err = unix.FsconfigSetString(fs, o[0], o[1])
		}
		if err != nil {
			return bad(fmt.Errorf("%s: %w", o[0], err))
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return bad(err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID)
	if err != nil {
		return bad(err)
	}
	return os.NewFile(uintptr(fd), kind), nil
}

// restrict removes set-user-id and devices, and with ro the right to write, from a tree
// and all mounts in it.
func restrict(t *os.File, ro bool) error {
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if ro {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(int(t.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	return nil
}

// own shows the files of the user's host id, or root's, as those of the bottle's user.
// Docker gives the container no user namespace: an id inside is that id on the host. So
// where the user's host id is another one, what belongs to the number inside is shown as
// nobody's. With root, files of root stay root's: a process of root's could otherwise make
// none there to give them to the user.
func own(t *os.File, path string, st *unix.Stat_t, spec *bottle.Spec, root bool) error {
	shown := [2]uint32{spec.User.UID, spec.User.GID}
	disk := [2]uint32{spec.HostUID, spec.HostGID}
	if disk[0] == 0 {
		disk = shown
	}
	if st.Uid == 0 || st.Uid == disk[0] {
		disk = [2]uint32{st.Uid, st.Gid}
	}
	if disk[0] == shown[0] {
		return nil
	}
	sleeper, err := program.Binary()
	if err != nil {
		return err
	}
	pairs := []userns.Pair{{Disk: disk, Shown: shown}}
	if root {
		pairs = append(pairs, userns.Pair{})
	}
	ns, release, err := userns.Mapping(sleeper, pairs...)
	if err != nil {
		return fmt.Errorf("map the files of %s: %w", path, err)
	}
	defer release()
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	err = unix.MountSetattr(int(t.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		return &bottle.UnavailableError{
			Backend: name, Err: err,
			Reason: "the file system of " + path + " has no ID-mapped mounts, so its files can't be shown without the rights of root or of another user",
			Advice: "run carboy on a directory that an ordinary user owns, or use --workspace copy",
		}
	}
	return err
}
