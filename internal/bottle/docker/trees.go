package docker

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
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

// openTrees clones all that the spec names, and checks that it is what the caller looked
// at.
func openTrees(spec *bottle.Spec) (*trees, error) {
	t := &trees{}
	err := t.open(spec)
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *trees) open(spec *bottle.Spec) (err error) {
	ids := newIDs(spec)
	defer ids.close()
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
		x, err := openMount(m, nil)
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
		x, err := openMount(m, ids)
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

func openMount(m bottle.Mount, ids *ids) (x tree, err error) {
	x = tree{target: m.Target, access: m.Access}
	switch {
	case m.Access < bottle.AccessReadOnly || m.Access > bottle.AccessOverlay:
		return x, fmt.Errorf("mount %s: no access is named", m.Target)
	case m.Tree != nil:
		if x.file, err = duplicate(m.Tree); err != nil {
			return x, err
		}
	case m.Source == "":
		if x.file, err = emptyTree(); err != nil {
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
	if ids != nil && m.Tree == nil {
		return x, ids.own(x.file, m.Source, &st)
	}
	return x, nil
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

// emptyTree returns an empty directory, to cover one of the host's.
func emptyTree() (*os.File, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make an empty directory: %w", err)
	}
	defer unix.Close(fs)
	for _, kv := range [][2]string{{"mode", "0555"}, {"size", "4k"}} {
		if err := unix.FsconfigSetString(fs, kv[0], kv[1]); err != nil {
			return nil, fmt.Errorf("make an empty directory: %w", err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("make an empty directory: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOSUID)
	if err != nil {
		return nil, fmt.Errorf("make an empty directory: %w", err)
	}
	return os.NewFile(uintptr(fd), "empty"), nil
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

// ids shows the files of the user's host id, or root's, as those of the bottle's user.
// Docker gives the container no user namespace: an id inside is that id on the host.
type ids struct {
	uid, gid         uint32 // inside
	hostUID, hostGID uint32
	made             map[[2]uint32]*os.File // user namespaces, by the ids on disk
	release          []func()
}

func newIDs(spec *bottle.Spec) *ids {
	x := &ids{uid: spec.User.UID, gid: spec.User.GID, hostUID: spec.HostUID, hostGID: spec.HostGID, made: map[[2]uint32]*os.File{}}
	if x.hostUID == 0 {
		x.hostUID, x.hostGID = x.uid, x.gid
	}
	return x
}

func (x *ids) close() {
	for _, f := range x.release {
		f()
	}
}

func (x *ids) own(t *os.File, path string, st *unix.Stat_t) error {
	if st.Uid == x.uid || st.Uid != 0 && st.Uid != x.hostUID {
		return nil // the user's already, or another's, whose permissions then decide
	}
	key := [2]uint32{st.Uid, st.Gid}
	ns := x.made[key]
	if ns == nil {
		var release func()
		var err error
		if ns, release, err = userNamespace(key, x.uid, x.gid); err != nil {
			return fmt.Errorf("map the files of %s: %w", path, err)
		}
		x.made[key] = ns
		x.release = append(x.release, release)
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	err := unix.MountSetattr(int(t.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		return &bottle.UnavailableError{
			Backend: name, Err: err,
			Reason: "the file system of " + path + " has no ID-mapped mounts, so root's files can't be shown without root's rights",
			Advice: "run carboy on a directory that an ordinary user owns, or use --workspace copy",
		}
	}
	return err
}

// userNamespace makes a user namespace that maps the ids on disk to uid and gid. The guest
// program, which only sleeps, keeps it alive until release.
func userNamespace(disk [2]uint32, uid, gid uint32) (ns *os.File, release func(), err error) {
	bin, err := program.Binary()
	if err != nil {
		return nil, nil, err
	}
	exe, err := executable(bin)
	if err != nil {
		return nil, nil, err
	}
	defer exe.Close()
	cmd := &exec.Cmd{
		Path: fmt.Sprintf("/proc/self/fd/%d", exe.Fd()), Args: []string{"carboy-hold", "hold"}, Env: []string{}, Dir: "/",
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: int(disk[0]), HostID: int(uid), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: int(disk[1]), HostID: int(gid), Size: 1}},
			Pdeathsig:   unix.SIGKILL,
		},
	}
	if err := startLocked(cmd); err != nil {
		return nil, nil, err
	}
	done := func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	ns, err = os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	if err != nil {
		done()
		return nil, nil, err
	}
	return ns, func() { ns.Close(); done() }, nil
}

// executable returns a file in memory with that program. A file that is open for writing
// cannot be executed.
func executable(b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("carboy-hold", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "carboy-hold")
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		return nil, err
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
}

// spawner starts processes from one thread that never ends: PDEATHSIG follows the parent's
// thread, and Go's threads come and go.
var spawner = sync.OnceValue(func() chan<- func() {
	ch := make(chan func())
	go locked(func() {
		for f := range ch {
			f()
		}
	})
	return ch
})

func startLocked(cmd *exec.Cmd) error {
	errc := make(chan error, 1)
	spawner() <- func() { errc <- cmd.Start() }
	return <-errc
}
