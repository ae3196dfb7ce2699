package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/guest/uppertar"
)

// Directories below stagePath while the root is put together.
const (
	stageRoot = stagePath + "/root"    // the bottle's root
	stageOwn  = stagePath + "/entries" // Root.Entries and mount points
	stageLow  = stagePath + "/image"   // Root.Dir
	stageUp   = stagePath + "/upper"   // what the bottle writes
)

// overlayOptions keep the upper directory in the form that Export reads.
const overlayOptions = ",index=off,metacopy=off,redirect_dir=off"

// buildRoot makes the bottle's root in this thread's mount namespace, at stageRoot. With
// whole, it brings the kernel's file systems over, too, and makes it the root of the processes
// there. It returns the directories that hold what the bottle writes.
func buildRoot(ctx context.Context, spec *bottle.Spec, t *trees, whole bool) (layers []layer, err error) {
	b := &rootBuilder{ctx: ctx, spec: spec, trees: t}
	defer func() {
		if err != nil {
			for _, l := range b.layers {
				l.dir.Close()
			}
		}
	}()
	steps := []func() error{b.stage, b.entries, b.upper, b.lowers, b.bringBack, b.rootOverlay, b.attachBinds, b.attachMounts}
	if whole {
		steps = slices.Concat(steps[:7], []func() error{b.kernelFiles}, steps[7:], []func() error{b.pivot})
	}
	for _, step := range steps {
		if err = ctx.Err(); err == nil {
			err = step()
		}
		if err != nil {
			return nil, fmt.Errorf("the container's root: %w", err)
		}
	}
	return b.layers, nil
}

type rootBuilder struct {
	ctx    context.Context
	spec   *bottle.Spec
	trees  *trees
	layers []layer
	lower  []string // the lower directories of each layer's overlay
	shown  int      // directories that are shown read-only, so far
}

// stage mounts the place where the root is put together.
func (b *rootBuilder) stage() error {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := unix.Mount("carboy", stagePath, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=256m"); err != nil {
		return fmt.Errorf("mount %s: %w", stagePath, err)
	}
	for _, d := range []string{stageRoot, stageOwn, stageLow, stageUp} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	if b.trees.root == nil {
		return nil
	}
	return moveTree(b.trees.root, stageLow)
}

// entries writes the files that are made for this bottle, and the mount points that the
// image lacks, as a layer over the image.
func (b *rootBuilder) entries() error {
	for _, e := range b.spec.Root.Entries {
		if err := b.entry(e); err != nil {
			return fmt.Errorf("entry %s: %w", e.Path, err)
		}
	}
	for _, d := range []string{"/proc", "/dev", "/sys"} {
		if err := b.point(d, true); err != nil {
			return err
		}
	}
	for _, list := range [][]tree{b.trees.binds, b.trees.mounts} {
		for _, m := range list {
			if err := b.point(m.target, m.dir); err != nil {
				return fmt.Errorf("mount point %s: %w", m.target, err)
			}
		}
	}
	return nil
}

func (b *rootBuilder) entry(e bottle.Entry) error {
	if e.Path == "/" {
		return nil
	}
	if err := b.parents(e.Path); err != nil {
		return err
	}
	path := stageOwn + e.Path
	var err error
	switch {
	case e.Mode.IsDir():
		if b.fromImage(e.Path) {
			return b.directory(e.Path)
		}
		if err = os.Mkdir(path, 0o700); errors.Is(err, os.ErrExist) {
			err = nil
		}
	case e.Mode&os.ModeSymlink != 0:
		return os.Symlink(e.Link, path)
	case e.Mode.IsRegular():
		err = os.WriteFile(path, e.Content, 0o600)
	default:
		return fmt.Errorf("unsupported type %v", e.Mode.Type())
	}
	if err != nil {
		return err
	}
	if e.Owned {
		if err := os.Lchown(path, int(b.spec.User.UID), int(b.spec.User.GID)); err != nil {
			return err
		}
	}
	mode := uint32(e.Mode.Perm())
	if e.Mode&os.ModeSticky != 0 {
		mode |= unix.S_ISVTX
	}
	return unix.Chmod(path, mode)
}

// parents makes the directories above path in the layer.
func (b *rootBuilder) parents(path string) error {
	at := ""
	for _, part := range strings.Split(strings.Trim(filepath.Dir(path), "/"), "/") {
		if part == "" {
			continue
		}
		at += "/" + part
		if err := b.directory(at); err != nil {
			return err
		}
	}
	return nil
}

// directory makes one directory in the layer, with mode and owner of the image's, if that
// has it, else with the owner of the directory above.
func (b *rootBuilder) directory(path string) error {
	err := os.Mkdir(stageOwn+path, 0o755)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	st, ok := b.image(path)
	if !ok {
		// What is made below a directory of the user's is the user's.
		if err := unix.Lstat(filepath.Dir(stageOwn+path), &st); err != nil {
			return err
		}
		st.Mode = 0o755
	}
	if err := os.Lchown(stageOwn+path, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	return unix.Chmod(stageOwn+path, st.Mode&0o1777)
}

// image looks path up in the image, where no link is followed.
func (b *rootBuilder) image(path string) (st unix.Stat_t, ok bool) {
	if b.trees.root == nil {
		return st, false
	}
	low, err := unix.Open(stageLow, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return st, false
	}
	defer unix.Close(low)
	fd, err := unix.Openat2(low, strings.TrimPrefix(path, "/"), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return st, false
	}
	defer unix.Close(fd)
	return st, unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT != unix.S_IFLNK
}

func (b *rootBuilder) fromImage(path string) bool {
	st, ok := b.image(path)
	return ok && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// point makes a mount point, unless the image or a bind mount has it.
func (b *rootBuilder) point(target string, dir bool) error {
	for _, m := range b.trees.binds {
		if strings.HasPrefix(target, m.target+"/") {
			return nil
		}
	}
	if st, ok := b.image(target); ok && (st.Mode&unix.S_IFMT == unix.S_IFDIR) == dir {
		return nil
	}
	if err := b.parents(target); err != nil {
		return err
	}
	if dir {
		return b.directory(target)
	}
	f, err := os.OpenFile(stageOwn+target, os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// upper mounts what holds the bottle's writes: the caller's directory, or memory of the
// disk limit's size.
func (b *rootBuilder) upper() error {
	if b.trees.scratch != nil {
		return moveTree(b.trees.scratch, stageUp)
	}
	return unix.Mount("carboy", stageUp, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("mode=0700,size=%d", b.spec.Limits.Disk))
}

// lowers attaches the lower directories of all overlays and makes their upper ones: first
// the root's, then those of mounts, in order.
func (b *rootBuilder) lowers() error {
	lower := stageOwn
	if b.trees.root != nil {
		lower += ":" + stageLow
	}
	if err := b.layer(lower, "/"); err != nil {
		return err
	}
	for i, m := range b.trees.mounts {
		if m.access != bottle.AccessOverlay {
			continue
		}
		lower := fmt.Sprintf("%s/lower%d", stagePath, len(b.layers))
		if err := os.Mkdir(lower, 0o755); err != nil {
			return err
		}
		if err := moveTree(m.file, lower); err != nil {
			return fmt.Errorf("attach %s: %w", m.target, err)
		}
		if err := b.layer(lower, m.target); err != nil {
			return err
		}
		b.layers[len(b.layers)-1].workspace = i == 0 && b.spec.Workspace != nil
	}
	return nil
}

// layer makes the upper directory of the next overlay, which stands at the path at of the
// bottle.
func (b *rootBuilder) layer(lower, at string) error {
	dir := b.layerDir(len(b.layers))
	for _, d := range []string{dir, dir + "/upper", dir + "/work"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	// The upper directory's attributes are those of the whole.
	var st unix.Stat_t
	if err := unix.Stat(strings.SplitN(lower, ":", 2)[0], &st); err != nil {
		return err
	}
	if err := os.Chown(dir+"/upper", int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if err := unix.Chmod(dir+"/upper", st.Mode&0o1777); err != nil {
		return err
	}
	f, err := os.Open(dir + "/upper")
	if err != nil {
		return err
	}
	b.layers = append(b.layers, layer{dir: f, at: at})
	b.lower = append(b.lower, lower)
	return nil
}

func (b *rootBuilder) layerDir(i int) string { return fmt.Sprintf("%s/%d", stageUp, i) }

// overlay mounts overlay number i at a directory of the stage.
func (b *rootBuilder) overlay(i int, target string) error {
	dir := b.layerDir(i)
	options := "lowerdir=" + b.lower[i] + ",upperdir=" + dir + "/upper,workdir=" + dir + "/work" + overlayOptions
	if err := unix.Mount("carboy", target, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("overlay for %s: %w", b.layers[i].at, err)
	}
	return nil
}

func (b *rootBuilder) rootOverlay() error { return b.overlay(0, stageRoot) }

func (b *rootBuilder) attachBinds() error {
	for _, m := range b.trees.binds {
		if err := b.show(m); err != nil {
			return err
		}
	}
	return nil
}

// kernelFiles brings over what the Engine mounted: /proc with its covers, and /dev. Of
// /sys there are the processors alone: the rest shows the machine.
func (b *rootBuilder) kernelFiles() error {
	sys := stagePath + "/sys"
	cpus := sys + cpuDir
	if err := os.MkdirAll(cpus, 0o755); err != nil {
		return err
	}
	if err := bring("/sys"+cpuDir, func(t *os.File) error { return moveTree(t, cpus) }); err != nil {
		return err
	}
	for from, to := range map[string]string{"/proc": "/proc", "/dev": "/dev", sys: "/sys"} {
		if err := bring(from, func(t *os.File) error { return attach(t, to) }); err != nil {
			return err
		}
	}
	return hide()
}

// hidden names what says something of the host's kernel and hardware, and what the Engine
// covers with something empty.
var hidden = []string{
	"/proc/kallsyms", "/proc/modules", "/proc/iomem", "/proc/ioports", "/proc/kcore", "/proc/timer_list", "/proc/sched_debug",
	"/proc/bus", "/proc/scsi", "/proc/acpi", "/proc/fs",
}

// hide covers them with a file or directory that the bottle's user may not open.
func hide() error {
	file, dir := stagePath+"/hidden-file", stagePath+"/hidden-dir"
	if err := errors.Join(os.WriteFile(file, nil, 0), os.Mkdir(dir, 0)); err != nil {
		return err
	}
	for _, path := range hidden {
		fi, err := os.Lstat(stageRoot + path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		cover := file
		if fi.IsDir() {
			cover = dir
		}
		if err := bring(cover, func(t *os.File) error { return attach(t, path) }); err != nil {
			return err
		}
	}
	return nil
}

// cpuDir holds, below /sys, what programs ask of the processors.
const cpuDir = "/devices/system/cpu"

// bring clones a tree and attaches it.
func bring(path string, attach func(*os.File) error) error {
	t, err := clone(path)
	if err != nil {
		return err
	}
	defer t.Close()
	return attach(t)
}

func (b *rootBuilder) attachMounts() error {
	number := 0 // of the overlay
	for _, m := range b.trees.mounts {
		if m.access != bottle.AccessOverlay {
			if err := b.show(m); err != nil {
				return err
			}
			continue
		}
		number++
		whole := fmt.Sprintf("%s/whole%d", stagePath, number)
		if err := os.Mkdir(whole, 0o755); err != nil {
			return err
		}
		if err := b.overlay(number, whole); err != nil {
			return err
		}
		if err := bring(whole, func(t *os.File) error { return attach(t, m.target) }); err != nil {
			return err
		}
	}
	return nil
}

// show attaches a part of the host's files. A read-only directory is shown through an
// overlay without an upper layer: a bind mount would show the host's own sockets, to which
// anybody can connect who may write to them, read-only or not; an overlay's sockets are
// nobody's. What is mounted below such a directory is not shown.
func (b *rootBuilder) show(m tree) error {
	if !m.dir || m.access != bottle.AccessReadOnly {
		return attach(m.file, m.target)
	}
	b.shown++
	stage := fmt.Sprintf("%s/shown%d", stagePath, b.shown)
	lower, empty, whole := stage+"/lower", stage+"/empty", stage+"/whole"
	for _, d := range []string{stage, lower, empty, whole} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	if err := moveTree(m.file, lower); err != nil {
		return fmt.Errorf("attach %s: %w", m.target, err)
	}
	// The top directory has the attributes of the first layer's.
	var st unix.Stat_t
	if err := unix.Stat(lower, &st); err != nil {
		return err
	}
	if err := errors.Join(os.Chown(empty, int(st.Uid), int(st.Gid)), unix.Chmod(empty, st.Mode&0o1777)); err != nil {
		return err
	}
	options := "lowerdir=" + empty + ":" + lower + overlayOptions
	if err := unix.Mount("carboy", whole, "overlay", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_RDONLY, options); err != nil {
		return fmt.Errorf("overlay for %s: %w", m.target, err)
	}
	return bring(whole, func(t *os.File) error { return attach(t, m.target) })
}

// bringBack fills the upper directories with Spec.Upper, before there is an overlay: one
// may not be changed from below.
func (b *rootBuilder) bringBack() error {
	if b.spec.Upper == nil {
		return nil
	}
	return readUpper(b.ctx, b.spec.Upper, b.layers)
}

// readUpper unpacks a bottle's files into the layers, until ctx ends: a few bytes of the
// stream can stand for files of any size.
func readUpper(ctx context.Context, r io.Reader, layers []layer) error {
	err := uppertar.Read(r, func(name string) (int, string) {
		if ctx.Err() != nil {
			return -1, "" // left out
		}
		return where(layers, name)
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// where returns the layer with the longest path above name, and the path below it.
func where(layers []layer, name string) (int, string) {
	best, rest := -1, name
	at := ""
	for _, l := range layers {
		p := strings.Trim(l.at, "/")
		switch {
		case p == "" && best < 0:
			best, rest = int(l.dir.Fd()), name
		case p != "" && len(p) > len(at) && (name == p || strings.HasPrefix(name, p+"/")):
			best, rest, at = int(l.dir.Fd()), strings.TrimPrefix(name[len(p):], "/"), p
		}
	}
	return best, rest
}

// pivot makes the new root that of every process in the namespace, and lets go of the old
// one with all that was mounted there.
func (b *rootBuilder) pivot() error {
	if err := unix.Chdir(stageRoot); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	// The old root lies over the new one now.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("let go of the old root: %w", err)
	}
	return nil
}

// attach moves a tree to a place in the new root.
func attach(t *os.File, target string) error {
	p, err := pointIn(target)
	if err != nil {
		return fmt.Errorf("mount point %s: %w", target, err)
	}
	defer p.Close()
	// By descriptor: /proc here is that of another PID namespace.
	if err := unix.MoveMount(int(t.Fd()), "", int(p.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach %s: %w", target, err)
	}
	return nil
}

// pointIn opens a mount point in the new root without following any link, so that an image
// cannot redirect it.
func pointIn(target string) (*os.File, error) {
	root, err := unix.Open(stageRoot, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, strings.TrimPrefix(target, "/"), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), target), nil
}

// moveTree attaches a tree at a directory of the stage.
func moveTree(t *os.File, to string) error {
	return unix.MoveMount(int(t.Fd()), "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH)
}
