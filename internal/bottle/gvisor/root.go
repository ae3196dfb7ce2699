package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
)

// The shim builds the bottle's root in a tmpfs of its own mount namespace. It
// clones host trees with open_tree before it mounts over anything, and attaches
// them by descriptor, so no path is resolved twice.

// stageCandidates are directories for the tmpfs. Any directory of the host will
// do; nobody else sees the mount.
var stageCandidates = []string{"/tmp", "/run", "/mnt", "/var/tmp", "/srv"}

type layout struct {
	base    string // the tmpfs
	root    string // base/root: the bottle's "/"
	bundle  string
	state   string // gVisor's own state and control socket
	scratch string // bind of Spec.Scratch, or empty
	mounts  []specs.Mount
}

type fileID struct{ Dev, Ino uint64 }

// treeSpec is one mount to attach below the root.
type treeSpec struct {
	target string // inside the bottle
	source string // for error messages
	tree   *os.File
	access bottle.Access
	id     fileID // the expected file; zero: any
	// direct trees are part of the root's lower layer. The others are kept
	// beside the root and become mounts of the sandbox, with their own rules
	// for writes.
	direct bool
}

func buildRoot(p *plan, trees []*os.File) (*layout, error) {
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return nil, fmt.Errorf("make / a slave: %w", err)
	}
	all, err := collectTrees(p, trees)
	if err != nil {
		return nil, err
	}
	var scratch *os.File
	if p.Scratch != "" {
		if scratch, err = treeOf(p.Scratch, p.ScratchTree, trees); err != nil {
			return nil, err
		}
		defer scratch.Close()
	}
	var dir *os.File
	if p.RootDir != "" {
		if dir, err = treeOf(p.RootDir, p.RootTree, trees); err != nil {
			return nil, err
		}
		defer dir.Close()
	}
	// From here on the tmpfs hides a part of the host.
	l, err := mountStage()
	if err != nil {
		return nil, err
	}
	if err := attachRoot(p, l, dir); err != nil {
		return nil, err
	}
	for i, s := range all {
		if err := attach(l, s, i); err != nil {
			return nil, err
		}
	}
	if scratch != nil {
		l.scratch = l.base + "/scratch"
		if err := os.Mkdir(l.scratch, 0o700); err != nil {
			return nil, err
		}
		if err := moveTree(scratch, l.scratch); err != nil {
			return nil, fmt.Errorf("attach %s: %w", p.Scratch, err)
		}
	}
	return l, nil
}

func collectTrees(p *plan, trees []*os.File) ([]treeSpec, error) {
	var out []treeSpec
	add := func(m planMount, direct bool) error {
		s := treeSpec{target: m.Target, source: m.Source, access: m.Access, id: fileID{m.Dev, m.Ino}, direct: direct || m.Access == bottle.AccessOverlay}
		var err error
		if s.tree, err = treeOf(m.Source, m.Tree, trees); err != nil {
			return err
		}
		out = append(out, s)
		return nil
	}
	for _, m := range p.Binds {
		if err := add(m, true); err != nil {
			return nil, err
		}
	}
	for _, m := range p.Mounts {
		if err := add(m, false); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// treeOf returns the donated tree number n, or opens path when n is 0.
func treeOf(path string, n int, trees []*os.File) (*os.File, error) {
	if n == 0 && path == "" {
		return emptyTree()
	}
	if n == 0 {
		return openTree(path)
	}
	if n > len(trees) {
		return nil, fmt.Errorf("%s: its descriptor is missing", path)
	}
	return trees[n-1], nil
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

func openTree(path string) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_NO_AUTOMOUNT)
	if err != nil {
		return nil, &os.PathError{Op: "open_tree", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func mountStage() (*layout, error) {
	var last error = errors.New("no directory to mount on")
	for _, dir := range stageCandidates {
		if fi, err := os.Lstat(dir); err != nil || !fi.IsDir() {
			continue
		}
		if err := unix.Mount("carboy", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=256m"); err != nil {
			last = &os.PathError{Op: "mount tmpfs", Path: dir, Err: err}
			continue
		}
		l := &layout{base: dir, root: dir + "/root", bundle: dir + "/bundle", state: dir + "/state"}
		for _, d := range []string{l.root, l.bundle, l.state} {
			if err := os.Mkdir(d, 0o755); err != nil {
				return nil, err
			}
		}
		return l, nil
	}
	return nil, last
}

// attachRoot makes the directory that is the bottle's "/" and its own entries.
func attachRoot(p *plan, l *layout, dir *os.File) error {
	if dir != nil {
		return attachRootDir(p, l, dir)
	}
	for _, e := range p.Entries {
		if err := makeEntry(l.root, e, p.User); err != nil {
			return err
		}
	}
	return nil
}

// attachRootDir uses a directory of the user's as the lower layer and never
// writes to it. Mount points must exist in it, except those that a tmpfs can
// provide.
func attachRootDir(p *plan, l *layout, t *os.File) error {
	if err := restrict(t, true); err != nil {
		return fmt.Errorf("root %s: %w", p.RootDir, err)
	}
	low := l.base + "/lower"
	if err := os.Mkdir(low, 0o755); err != nil {
		return err
	}
	if err := moveTree(t, low); err != nil {
		return fmt.Errorf("attach %s: %w", p.RootDir, err)
	}
	// Its top-level entries are bound one by one into our tmpfs root, so that
	// mount points and rebuilt files fit beside them.
	return mirror(low, l.root, p)
}

// mirror binds each child of low at the same name below root. A directory in
// which the plan makes an entry or a mount point is a real directory of the
// tmpfs, and its children are mirrored in turn.
func mirror(low, root string, p *plan) error {
	need := map[string]bool{}
	mark := func(path string) {
		for d := filepath.Dir(path); d != "/" && d != "."; d = filepath.Dir(d) {
			need[d] = true
		}
	}
	own := map[string]bool{}
	for _, e := range p.Entries {
		if !e.Mode.IsDir() {
			own[e.Path] = true
		}
		mark(e.Path)
	}
	for _, m := range p.Mounts {
		mark(m.Target)
	}
	if err := mirrorDir(low, root, "/", need, own, 0); err != nil {
		return err
	}
	for _, e := range p.Entries {
		if e.Mode.IsDir() {
			if fi, err := os.Lstat(filepath.Join(root, e.Path)); err == nil && fi.IsDir() {
				continue
			}
		}
		if err := makeEntry(root, e, p.User); err != nil {
			return err
		}
	}
	return nil
}

func mirrorDir(low, root, rel string, need, own map[string]bool, depth int) error {
	if depth > 64 {
		return fmt.Errorf("root: %s is nested too deeply", rel)
	}
	ents, err := os.ReadDir(filepath.Join(low, rel))
	if err != nil {
		return err
	}
	for _, ent := range ents {
		path := filepath.Join(rel, ent.Name())
		src, dst := filepath.Join(low, path), filepath.Join(root, path)
		switch {
		case own[path]:
			continue
		case ent.Type()&os.ModeSymlink != 0:
			to, err := os.Readlink(src)
			if err != nil {
				return err
			}
			if err := os.Symlink(to, dst); err != nil {
				return err
			}
		case ent.IsDir() && need[path]:
			if err := os.Mkdir(dst, 0o755); err != nil {
				return err
			}
			if err := mirrorDir(low, root, path, need, own, depth+1); err != nil {
				return err
			}
			if err := copyMode(src, dst); err != nil {
				return err
			}
		case ent.IsDir(), ent.Type().IsRegular():
			if err := bindOne(src, dst, ent.IsDir()); err != nil {
				return err
			}
		}
		// Devices, sockets and pipes of an image are not copied.
	}
	return nil
}

// copyMode gives a directory of ours the mode of the one that it stands for.
func copyMode(src, dst string) error {
	fi, err := os.Lstat(src)
	if err != nil {
		return err
	}
	return os.Chmod(dst, fi.Mode()&(os.ModePerm|os.ModeSticky))
}

func bindOne(src, dst string, dir bool) error {
	if err := makePoint(dst, dir); err != nil {
		return err
	}
	t, err := openTree(src)
	if err != nil {
		return err
	}
	defer t.Close()
	return moveTree(t, dst)
}

func makePoint(path string, dir bool) error {
	if dir {
		return os.MkdirAll(path, 0o755)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

func makeEntry(root string, e planEntry, u bottle.User) error {
	path := filepath.Join(root, e.Path)
	if e.Path == "/" {
		return nil
	}
	var err error
	switch {
	case e.Mode.IsDir():
		err = os.Mkdir(path, 0o700)
		if errors.Is(err, os.ErrExist) {
			err = nil
		}
	case e.Mode&os.ModeSymlink != 0:
		return os.Symlink(e.Link, path)
	case e.Mode.IsRegular():
		err = os.WriteFile(path, e.Content, 0o600)
	default:
		return fmt.Errorf("root entry %s: unsupported type %v", e.Path, e.Mode.Type())
	}
	if err != nil {
		return err
	}
	mode := uint32(e.Mode.Perm())
	if e.Mode&os.ModeSticky != 0 {
		mode |= unix.S_ISVTX
	}
	return unix.Chmod(path, mode)
}

func attach(l *layout, s treeSpec, i int) error {
	defer s.tree.Close()
	if err := restrict(s.tree, s.access != bottle.AccessReadWrite); err != nil {
		return fmt.Errorf("mount %s: %w", s.source, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(s.tree.Fd()), &st); err != nil {
		return err
	}
	if s.id.Ino != 0 && s.id != (fileID{uint64(st.Dev), st.Ino}) {
		return fmt.Errorf("mount %s: another directory was put in its place", s.source)
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && kind != unix.S_IFREG {
		return fmt.Errorf("mount %s: not a directory or regular file", s.source)
	}
	target, err := mountPoint(l.root, s.target, kind == unix.S_IFDIR)
	if err != nil {
		return fmt.Errorf("mount point %s: %w", s.target, err)
	}
	defer target.Close()
	to := fmt.Sprintf("/proc/self/fd/%d", target.Fd())
	if !s.direct {
		to = fmt.Sprintf("%s/m%d", l.base, i)
		if err := makePoint(to, kind == unix.S_IFDIR); err != nil {
			return err
		}
		l.mounts = append(l.mounts, specs.Mount{
			Type: "bind", Source: to, Destination: s.target, Options: mountOptions(s.access),
		})
	}
	if err := moveTree(s.tree, to); err != nil {
		return fmt.Errorf("attach %s at %s: %w", s.source, s.target, err)
	}
	return nil
}

func mountOptions(a bottle.Access) []string {
	o := []string{"rbind", "nosuid", "nodev"}
	if a == bottle.AccessReadWrite {
		return append(o, "rw")
	}
	return append(o, "ro")
}

// mountPoint makes (if needed) and opens target below root without following
// any link, so that an image cannot redirect a mount.
func mountPoint(root, target string, dir bool) (*os.File, error) {
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	parts := strings.Split(strings.Trim(target, "/"), "/")
	for i, name := range parts {
		last := i == len(parts)-1
		how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
		if !last || dir {
			how.Flags |= unix.O_DIRECTORY
			if err := unix.Mkdirat(fd, name, 0o755); err != nil && err != unix.EEXIST && err != unix.EROFS && err != unix.EACCES {
				unix.Close(fd)
				return nil, err
			}
		} else if f, err := unix.Openat(fd, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644); err == nil {
			unix.Close(f)
		}
		next, err := unix.Openat2(fd, name, how)
		unix.Close(fd)
		if err != nil {
			return nil, err
		}
		fd = next
	}
	return os.NewFile(uintptr(fd), target), nil
}

func moveTree(t *os.File, to string) error {
	return unix.MoveMount(int(t.Fd()), "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_SYMLINKS)
}

// restrict removes set-user-id and devices, and with ro the right to write,
// from a tree and all mounts in it. A mount that an outer user namespace locks
// keeps its stricter flags.
func restrict(t *os.File, ro bool) error {
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if ro {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(int(t.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	return nil
}
