package microvm

import (
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"

	"crypto/sha256"

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

// owner gives the host's files to the users inside: what belongs to this user, or to the
// one whom root's bottles run as, is the bottle's user's; the rest is nobody's.
func owner(spec *bottle.Spec) func(uid, gid uint32) (uint32, uint32) {
	const nobody = 65534
	us, group := uint32(os.Geteuid()), uint32(os.Getegid())
	return func(uid, gid uint32) (uint32, uint32) {
		u, g := uint32(nobody), uint32(nobody)
		if uid == us || uid == spec.HostUID && us == 0 {
			u = spec.User.UID
		}
		if gid == group || gid == spec.HostGID && us == 0 {
			g = spec.User.GID
		}
		return u, g
	}
}

// imageBuilder makes the images of one bottle.
type imageBuilder struct {
	spec  *bottle.Spec
	cache *cache
	own   erofs.Builder
	open  []*os.File
	out   images
}

func makeImages(spec *bottle.Spec, c *cache, own *os.File) (*images, error) {
	b := &imageBuilder{spec: spec, cache: c, out: images{own: own}}
	defer func() { closeAll(b.open) }()
	if err := b.root(); err != nil {
		return nil, err
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
	if err := b.own.Write(own); err != nil {
		return nil, fmt.Errorf("write the bottle's image: %w", err)
	}
	return &b.out, nil
}

// root adds what the bottle finds at "/".
func (b *imageBuilder) root() error {
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
		if err := b.keep(f, "/", erofs.TreeOptions{Owner: owner(b.spec)}); err != nil {
			return err
		}
	}
	for i := range b.spec.Root.Binds {
		if err := b.bind(&b.spec.Root.Binds[i]); err != nil {
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
// bottle's own.
func (b *imageBuilder) bind(m *bottle.Mount) error {
	at := layerDir + m.Target
	if m.Source == "" && m.Tree == nil {
		if err := b.own.Dir(at, erofs.Attr{Mode: 0o555, Opaque: true}); err != nil {
			return err
		}
		return b.own.Empty(at)
	}
	f, err := b.source(m)
	if err != nil {
		return err
	}
	if size, err := erofs.TreeSize(f, smallTree); err != nil {
		return err
	} else if size > smallTree {
		return b.keep(f, m.Target, erofs.TreeOptions{Opaque: true})
	}
	_, err = b.own.Tree(at, f, erofs.TreeOptions{Opaque: true})
	return err
}

// keep adds a layer that is made once for each state of the tree.
func (b *imageBuilder) keep(f *os.File, target string, o erofs.TreeOptions) error {
	var image erofs.Builder
	digest, err := image.Tree(target, f, o)
	if err != nil {
		return err
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%v\x00%x", format, target, o.Opaque, digest))
	path, err := b.cache.file("root-"+hex.EncodeToString(key[:16]), image.Write)
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
	o := erofs.TreeOptions{Owner: owner(b.spec), Opaque: true}
	if m.Access == bottle.AccessOverlay {
		_, err := b.own.Tree(layerDir+m.Target, f, o)
		if err == nil && workspace {
			err = b.describe(f)
		}
		return err
	}
	from := fmt.Sprintf("%s/%d", mountsDir, len(b.out.mounts))
	if _, err := b.own.Tree(from, f, erofs.TreeOptions{Owner: owner(b.spec)}); err != nil {
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

func (b *imageBuilder) describe(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	u, g := owner(b.spec)(st.Uid, st.Gid)
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
