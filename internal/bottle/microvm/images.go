package microvm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/erofs"
)

// A bottle's files are read-only images, stacked: at the bottom one for each large tree of
// the system, which are made once and kept, and on top one for this bottle alone, with its
// workspace and its small files.

// smallTree is the size up to which a tree goes into the bottle's own image, bytes.
const smallTree = 8 << 20

// Directories of the bottle's own image.
const (
	layerDir  = "/layer" // a layer of the overlay
	mountsDir = "/ro"    // read-only mounts, which are no part of it
)

// images are the files of a bottle.
type images struct {
	cached []string // paths, the lowest layer first
	own    *os.File
	mounts []roMount
	// workspace describes the workspace's directory, as it is inside.
	workspace erofs.Attr
}

// roMount is a mount that stays read-only: a path in the own image, and where it appears.
type roMount struct{ from, target string }

// view says what a bottle sees of this machine's trees. An ordinary user's bottle sees what
// the user may read. Root's sees what the host's id may read that it runs as: a machine
// whose kernel is broken can read all of its images.
type view struct {
	user             bottle.User
	hostUID, hostGID uint32 // whose files are the user's
	root             bool   // carboy is root, and reads more than the bottle may
	rootOwns         bool   // root's files are the user's too
}

func viewOf(spec *bottle.Spec) view {
	v := view{user: spec.User, hostUID: uint32(os.Geteuid()), hostGID: uint32(os.Getegid())}
	if v.hostUID == 0 && spec.HostUID != 0 {
		v.hostUID, v.hostGID, v.root = spec.HostUID, spec.HostGID, true
	}
	return v
}

// system returns how a tree of the system appears: as it is.
func (v view) system() erofs.TreeOptions {
	if !v.root {
		return erofs.TreeOptions{}
	}
	return erofs.TreeOptions{Readable: v.mayRead}
}

// own returns how a tree of the plan's appears: what belongs to the host's id is the
// bottle's user's, and where root owns the tree, so are root's files. The rest is nobody's.
func (v view) own(f *os.File) (erofs.TreeOptions, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return erofs.TreeOptions{}, &os.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	if v.root && st.Uid == 0 {
		v.rootOwns = true
	}
	o := v.system()
	o.Owner = func(uid, gid uint32) (uint32, uint32) {
		const nobody = 65534
		u, g := uint32(nobody), uint32(nobody)
		if v.ownUID(uid) {
			u = v.user.UID
		}
		if v.ownGID(gid) {
			g = v.user.GID
		}
		return u, g
	}
	return o, nil
}

func (v view) ownUID(uid uint32) bool { return uid == v.hostUID || uid == 0 && v.rootOwns }
func (v view) ownGID(gid uint32) bool { return gid == v.hostGID || gid == 0 && v.rootOwns }

// mayRead reports whether the host's id may read a file, or read and enter a directory, by
// the permissions.
func (v view) mayRead(mode, uid, gid uint32) bool {
	need := uint32(0o4)
	if mode&unix.S_IFMT == unix.S_IFDIR {
		need = 0o5
	}
	switch {
	case v.ownUID(uid):
		need <<= 6
	case v.ownGID(gid):
		need <<= 3
	}
	return mode&need == need
}

// imageBuilder makes the images of one bottle.
type imageBuilder struct {
	view  view
	spec  *bottle.Spec
	cache *cache
	own   erofs.Builder
	open  []*os.File
	out   images
}

// makeImages makes the images of a bottle. A start that takes too long goes on with an image
// that is kept, so that the next one finds it; a start that is cancelled does not.
func makeImages(ctx context.Context, spec *bottle.Spec, c *cache, own *os.File) (*images, error) {
	keeping, cancel := untilCancelled(ctx)
	defer cancel()
	b := &imageBuilder{view: viewOf(spec), spec: spec, cache: c, out: images{own: own}}
	defer func() { closeAll(b.open) }()
	if err := b.root(keeping); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, tooLate(err, "this machine's programs", "the image is kept now, so run the command again")
	}
	if spec.Workspace != nil {
		if err := b.mount(spec.Workspace, true); err != nil {
			return nil, err
		}
	}
	for i := range spec.Mounts {
		if err := b.mount(&spec.Mounts[i], false); err != nil {
			return nil, err
		}
	}
	err := b.own.Write(ctx, own)
	switch {
	case ctx.Err() != nil:
		return nil, tooLate(ctx.Err(), "the workspace and mounts", "use a smaller workspace, or another backend")
	case err != nil:
		return nil, fmt.Errorf("write the bottle's image: %w", err)
	}
	return &b.out, nil
}

// tooLate explains a start whose time was over before its images were made.
func tooLate(err error, what, advice string) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return &bottle.UnavailableError{Backend: name, Reason: "it took too long to copy " + what + " into an image", Err: err, Advice: advice}
}

// untilCancelled returns a context that ends when ctx is cancelled, and not at its deadline.
func untilCancelled(ctx context.Context) (context.Context, func()) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			cancel()
		}
	})
	return out, func() { stop(); cancel() }
}

// root adds what the bottle finds at "/".
func (b *imageBuilder) root(ctx context.Context) error {
	for _, d := range []string{"/proc", "/sys", "/dev"} {
		if err := b.own.Dir(layerDir+d, erofs.Attr{Mode: 0o755}); err != nil {
			return err
		}
	}
	if dir := b.spec.Root.Dir; dir != "" {
		m := bottle.Mount{Source: dir, Target: "/", Access: bottle.AccessReadOnly}
		f, err := b.source(&m)
		if err != nil {
			return err
		}
		o, err := b.view.own(f)
		if err == nil {
			err = b.keep(ctx, f, "/", o)
		}
		if err != nil {
			return err
		}
	}
	for i := range b.spec.Root.Binds {
		if err := b.bind(ctx, &b.spec.Root.Binds[i], b.spec.Root.Binds[i+1:]); err != nil {
			return err
		}
	}
	for _, e := range b.spec.Root.Entries {
		if err := b.entry(e); err != nil {
			return err
		}
	}
	return nil
}

// bind adds a tree of the system to an image that is kept or, if it is small, to the
// bottle's own. The contents of directories that one of the later binds hides are in no
// image.
func (b *imageBuilder) bind(ctx context.Context, m *bottle.Mount, later []bottle.Mount) error {
	at := layerDir + m.Target
	if hides(m) {
		return b.own.Dir(at, erofs.Attr{Mode: 0o555})
	}
	f, err := b.source(m)
	if err != nil {
		return err
	}
	o := b.view.system()
	o.Opaque = true
	for i := range later {
		if rel, below := strings.CutPrefix(later[i].Target, strings.TrimSuffix(m.Target, "/")+"/"); below && hides(&later[i]) {
			o.Empty = append(o.Empty, rel)
		}
	}
	if size, err := erofs.TreeSize(f, smallTree); err != nil {
		return err
	} else if size > smallTree {
		return b.keep(ctx, f, m.Target, o)
	}
	_, err = b.own.Tree(at, f, o)
	return err
}

// hides reports whether m is an empty directory in place of one of this machine's.
func hides(m *bottle.Mount) bool { return m.Source == "" && m.Tree == nil }

// keep adds a layer that is made once for each state of the tree.
func (b *imageBuilder) keep(ctx context.Context, f *os.File, target string, o erofs.TreeOptions) error {
	var image erofs.Builder
	digest, err := image.Tree(target, f, o)
	if err != nil {
		return err
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%v\x00%x", format, target, o.Opaque, digest))
	path, err := b.cache.file(ctx, "root-"+hex.EncodeToString(key[:16]), func(f *os.File) error { return image.Write(ctx, f) })
	if err != nil {
		return fmt.Errorf("image of %s: %w", f.Name(), err)
	}
	b.out.cached = append(b.out.cached, path)
	return nil
}

func (b *imageBuilder) entry(e bottle.Entry) error {
	a := erofs.Attr{Mode: e.Mode}
	if e.Owned {
		a.UID, a.GID = b.spec.User.UID, b.spec.User.GID
	}
	at := layerDir + e.Path
	switch e.Mode.Type() {
	case fs.ModeDir:
		return b.own.Dir(at, a)
	case fs.ModeSymlink:
		return b.own.Symlink(at, e.Link, a)
	case 0:
		return b.own.File(at, e.Content, a)
	}
	return fmt.Errorf("make %s: it is neither a file, a directory nor a link", e.Path)
}

// mount adds the workspace or a mount, as a copy.
func (b *imageBuilder) mount(m *bottle.Mount, workspace bool) error {
	f, err := b.source(m)
	if err != nil {
		return err
	}
	o, err := b.view.own(f)
	if err != nil {
		return err
	}
	if m.Access == bottle.AccessOverlay {
		o.Opaque = true
		_, err := b.own.Tree(layerDir+m.Target, f, o)
		if err == nil && workspace {
			err = b.describe(f, o)
		}
		return err
	}
	from := fmt.Sprintf("%s/%d", mountsDir, len(b.out.mounts))
	if _, err := b.own.Tree(from, f, o); err != nil {
		return err
	}
	b.out.mounts = append(b.out.mounts, roMount{from, m.Target})
	// What the mount covers.
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return b.own.Dir(layerDir+m.Target, erofs.Attr{Mode: 0o755})
	}
	return b.own.File(layerDir+m.Target, nil, erofs.Attr{Mode: 0o644})
}

func (b *imageBuilder) describe(f *os.File, o erofs.TreeOptions) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	u, g := o.Owner(st.Uid, st.Gid)
	b.out.workspace = erofs.Attr{Mode: fs.FileMode(st.Mode & 0o777), UID: u, GID: g}
	return nil
}

// source opens what a mount shows. It is the very file that the caller looked at.
func (b *imageBuilder) source(m *bottle.Mount) (*os.File, error) {
	if m.Access == bottle.AccessReadWrite {
		return nil, &bottle.UnavailableError{
			Backend: name, Reason: "the bottle would write to " + m.Source + " on this machine, and a micro-VM has copies only",
			Advice: "use the workspace mode overlay or copy, or another backend",
		}
	}
	if m.Access != bottle.AccessReadOnly && m.Access != bottle.AccessOverlay {
		return nil, fmt.Errorf("mount %s: it has no access", m.Target)
	}
	f := m.Tree
	if f == nil {
		fd, err := unix.Open(m.Source, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: m.Source, Err: err}
		}
		f = os.NewFile(uintptr(fd), m.Source)
		b.open = append(b.open, f)
	}
	if m.Ino == 0 {
		return f, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: m.Source, Err: err}
	}
	if uint64(st.Dev) != m.Dev || st.Ino != m.Ino {
		return nil, fmt.Errorf("%s is not the directory that it was when the run was planned; try again", m.Source)
	}
	return f, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}
