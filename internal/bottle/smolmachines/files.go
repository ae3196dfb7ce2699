package smolmachines

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
)

// Large trees of the system are volumes of the machine; what is this bottle's own is sent
// into it as a tar stream: the entries of its root, its workspace, single files, and
// mounts.

// Directories of the tar stream.
const (
	layerDir = "layer" // goes over the root, as a layer of the overlay
	roDir    = "ro"    // read-only mounts
)

// nobody owns inside what belongs to neither the user nor root outside.
const nobody = 65534

// maxPasswd bounds the file of users that is read from an image, in bytes.
const maxPasswd = 1 << 20

// files lists the files of a machine.
type files struct {
	spec     *bottle.Spec
	uid, gid uint32 // of the bottle's user inside
	volumes  []volume
	root     string // where the machine has Root.Dir; empty: it has none
	binds    []bind
	items    []item
	at       map[string]int // index of items by path
	size     int64          // of the items' content, with some for each
	roots    []*os.Root     // that items open files through
}

// close closes what the items are read from.
func (f *files) close() {
	for _, r := range f.roots {
		_ = r.Close()
	}
	f.roots = nil
}

// bind is a mount in the bottle's root. Without a source it is an empty directory.
type bind struct{ source, target string }

// item is an entry of the stream.
type item struct {
	path     string
	mode     fs.FileMode
	uid, gid uint32
	link     string
	content  []byte
	open     func() (*os.File, error) // in place of content
	size     int64
	opaque   bool
}

// gather plans what the machine is given. Nothing is read yet but names. The caller closes
// it.
func gather(spec *bottle.Spec) (*files, error) {
	f := &files{spec: spec, at: map[string]int{}}
	if err := f.gather(); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func (f *files) gather() error {
	spec := f.spec
	if spec.Root.Dir != "" {
		f.root = volumesDir + "/root"
		f.volumes = append(f.volumes, volume{spec.Root.Dir, f.root})
	}
	f.uid, f.gid = userOf(spec)
	for _, d := range []string{"/proc", "/sys", "/dev"} {
		if err := f.dir(layerDir+d, 0o755); err != nil {
			return err
		}
	}
	for i := range spec.Root.Binds {
		if err := f.systemTree(&spec.Root.Binds[i]); err != nil {
			return err
		}
	}
	for _, e := range spec.Root.Entries {
		if err := f.entry(e); err != nil {
			return fmt.Errorf("entry %s: %w", e.Path, err)
		}
	}
	for _, d := range []string{"/tmp", "/var/tmp"} { // whatever the image says
		if err := f.dir(layerDir+d, 0o777|fs.ModeSticky); err != nil {
			return err
		}
	}
	for i := range spec.Mounts {
		if err := f.mount(&spec.Mounts[i]); err != nil {
			return err
		}
	}
	if spec.Workspace != nil {
		if err := f.mount(spec.Workspace); err != nil {
			return err
		}
	}
	return nil
}

// userOf returns the ids of the bottle's user inside: those that the root's own list of
// users has for the name, since an image may give it other numbers than this machine.
func userOf(spec *bottle.Spec) (uid, gid uint32) {
	uid, gid = spec.User.UID, spec.User.GID
	var passwd []byte
	i := slices.IndexFunc(spec.Root.Entries, func(e bottle.Entry) bool { return e.Path == "/etc/passwd" && e.Mode.IsRegular() })
	if i >= 0 {
		passwd = spec.Root.Entries[i].Content
	} else if root, err := os.OpenRoot(spec.Root.Dir); err == nil {
		defer root.Close()
		if f, err := root.Open("etc/passwd"); err == nil {
			defer f.Close()
			passwd, _ = io.ReadAll(io.LimitReader(f, maxPasswd))
		}
	}
	for line := range strings.Lines(string(passwd)) {
		field := strings.Split(strings.TrimSpace(line), ":")
		if len(field) < 4 || field[0] != spec.User.Name {
			continue
		}
		u, err1 := strconv.ParseUint(field[2], 10, 32)
		g, err2 := strconv.ParseUint(field[3], 10, 32)
		if err1 == nil && err2 == nil && u != 0 {
			return uint32(u), uint32(g)
		}
	}
	return uid, gid
}

// owner gives the host's files to users inside: what belongs to this user, or to the one
// whom root's bottles run as, is the bottle's user's; the rest is nobody's.
func (f *files) owner(st *unix.Stat_t) (uid, gid uint32) {
	us, group := uint32(os.Geteuid()), uint32(os.Getegid())
	uid, gid = nobody, nobody
	if st.Uid == us || us == 0 && st.Uid == f.spec.HostUID {
		uid = f.uid
	}
	if st.Gid == group || us == 0 && st.Gid == f.spec.HostGID {
		gid = f.gid
	}
	return uid, gid
}

// perItem bounds the memory of an entry beside its content, in bytes.
const perItem = 4096

func (f *files) add(it item) {
	if i, ok := f.at[it.path]; ok {
		f.size -= f.items[i].size
		f.items[i] = it
		f.size += it.size
		return
	}
	f.at[it.path] = len(f.items)
	f.items = append(f.items, it)
	f.size += it.size + perItem
}

// dir adds a directory of root's, with those above it as they are in the image.
func (f *files) dir(p string, mode fs.FileMode) error {
	if err := f.parents(p); err != nil {
		return err
	}
	f.add(item{path: p, mode: fs.ModeDir | mode})
	return nil
}

// parents adds the directories above p that are not there yet, as the image has them.
func (f *files) parents(p string) error {
	var missing []string
	for d := path.Dir(p); d != "."; d = path.Dir(d) {
		i, ok := f.at[d]
		if ok {
			if !f.items[i].mode.IsDir() {
				return fmt.Errorf("%s is not a directory", strings.TrimPrefix(d, layerDir))
			}
			break
		}
		missing = append(missing, d)
	}
	for _, d := range slices.Backward(missing) {
		it := item{path: d, mode: fs.ModeDir | 0o755}
		if i, ok := f.at[path.Dir(d)]; ok { // below the user's home it is the user's
			it.uid, it.gid = f.items[i].uid, f.items[i].gid
		}
		if inside, ok := strings.CutPrefix(d, layerDir+"/"); ok && f.spec.Root.Dir != "" {
			var st unix.Stat_t
			err := unix.Lstat(filepath.Join(f.spec.Root.Dir, inside), &st)
			switch {
			case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
				it.mode = fs.ModeDir | modeOf(st.Mode)
				it.uid, it.gid = st.Uid, st.Gid
			case err == nil:
				return fmt.Errorf("/%s is not a directory in the image", inside)
			}
		}
		f.add(it)
	}
	return nil
}

// modeOf returns the permissions of a mode of stat(2), with the sticky bit.
func modeOf(m uint32) fs.FileMode {
	mode := fs.FileMode(m & 0o777)
	if m&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}

func (f *files) entry(e bottle.Entry) error {
	if e.Path == "/" {
		return nil
	}
	p := layerDir + e.Path
	if err := f.parents(p); err != nil {
		return err
	}
	it := item{path: p, mode: e.Mode, link: e.Link, content: e.Content, size: int64(len(e.Content))}
	if e.Owned {
		it.uid, it.gid = f.uid, f.gid
	}
	if t := e.Mode.Type(); t != 0 && t != fs.ModeDir && t != fs.ModeSymlink {
		return fmt.Errorf("type %v is not supported", t)
	}
	f.add(it)
	return nil
}

// source opens what a mount shows. It is the very file that the caller looked at.
func source(m *bottle.Mount) (f *os.File, st unix.Stat_t, err error) {
	from := m.Source
	if m.Tree != nil {
		from = fmt.Sprintf("/proc/self/fd/%d", m.Tree.Fd())
	}
	fd, err := unix.Open(from, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, st, &os.PathError{Op: "open", Path: m.Source, Err: err}
	}
	f = os.NewFile(uintptr(fd), m.Source)
	err = unix.Fstat(fd, &st)
	switch kind := st.Mode & unix.S_IFMT; {
	case err != nil:
	case m.Ino != 0 && (uint64(st.Dev) != m.Dev || st.Ino != m.Ino):
		err = fmt.Errorf("%s is not the directory that it was when the run was planned; try again", m.Source)
	case kind != unix.S_IFDIR && kind != unix.S_IFREG:
		err = fmt.Errorf("%s is neither a directory nor a file", m.Source)
	}
	if err != nil {
		_ = f.Close()
		return nil, st, err
	}
	return f, st, nil
}

// systemTree adds a tree of the system: a volume, or a copy of a single file.
func (f *files) systemTree(m *bottle.Mount) error {
	if m.Source == "" && m.Tree == nil {
		f.binds = append(f.binds, bind{"", m.Target})
		return f.point(m.Target, true)
	}
	src, st, err := source(m)
	if err != nil {
		return err
	}
	defer src.Close()
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		return f.copyReadOnly(m, src, &st, func(st *unix.Stat_t) (uint32, uint32) { return st.Uid, st.Gid })
	}
	if m.Source == "" {
		return fmt.Errorf("mount %s: its source has no name", m.Target)
	}
	at := fmt.Sprintf("%s/%d", volumesDir, len(f.volumes))
	f.volumes = append(f.volumes, volume{m.Source, at})
	f.binds = append(f.binds, bind{at, m.Target})
	return f.point(m.Target, true)
}

// point adds a mount point to the layer, unless a mount over it has one.
func (f *files) point(target string, dir bool) error {
	for _, b := range f.binds {
		if strings.HasPrefix(target, b.target+"/") {
			return nil
		}
	}
	if dir {
		return f.dir(layerDir+target, 0o755)
	}
	if err := f.parents(layerDir + target); err != nil {
		return err
	}
	f.add(item{path: layerDir + target, mode: 0o644})
	return nil
}

// mount adds the workspace or a mount, as a copy.
func (f *files) mount(m *bottle.Mount) error {
	src, st, err := source(m)
	if err != nil {
		return err
	}
	defer src.Close()
	switch m.Access {
	case bottle.AccessReadOnly:
		return f.copyReadOnly(m, src, &st, f.owner)
	case bottle.AccessOverlay:
		return f.copyTree(layerDir+m.Target, m, src, &st, f.owner)
	}
	return fmt.Errorf("mount %s: its access is not supported", m.Target)
}

// copyReadOnly adds a copy beside the root, and mounts it at the target.
func (f *files) copyReadOnly(m *bottle.Mount, src *os.File, st *unix.Stat_t, owner func(*unix.Stat_t) (uint32, uint32)) error {
	at := fmt.Sprintf("%s/%d", roDir, len(f.binds))
	if err := f.copyTree(at, m, src, st, owner); err != nil {
		return err
	}
	if err := f.point(m.Target, st.Mode&unix.S_IFMT == unix.S_IFDIR); err != nil {
		return err
	}
	f.binds = append(f.binds, bind{ownDir + "/" + at, m.Target})
	return nil
}

// copyTree adds a copy of a directory or file.
func (f *files) copyTree(at string, m *bottle.Mount, src *os.File, st *unix.Stat_t, owner func(*unix.Stat_t) (uint32, uint32)) error {
	if err := f.parents(at); err != nil {
		return err
	}
	uid, gid := owner(st)
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		f.add(item{path: at, mode: modeOf(st.Mode), uid: uid, gid: gid, size: st.Size, open: func() (*os.File, error) {
			again, _, err := source(m)
			return again, err
		}})
		return nil
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", src.Fd()))
	if err != nil {
		return err
	}
	f.roots = append(f.roots, root)
	f.add(item{path: at, mode: fs.ModeDir | modeOf(st.Mode), uid: uid, gid: gid, opaque: true})
	return f.copyBelow(root, at, ".", owner)
}

// copyBelow adds what is in a directory. fs.WalkDir would refuse names that are not UTF-8.
func (f *files) copyBelow(root *os.Root, at, dir string, owner func(*unix.Stat_t) (uint32, uint32)) error {
	d, err := root.Open(dir)
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return err
	}
	slices.Sort(names)
	for _, n := range names {
		name := path.Join(dir, n)
		info, err := root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err == nil {
			err = f.copyOne(root, at, name, info, owner)
		}
		if err == nil && info.IsDir() {
			err = f.copyBelow(root, at, name, owner)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *files) copyOne(root *os.Root, at, name string, info fs.FileInfo, owner func(*unix.Stat_t) (uint32, uint32)) error {
	st, err := statOf(info)
	if err != nil {
		return err
	}
	it := item{path: at + "/" + name, mode: info.Mode().Type() | modeOf(st.Mode)}
	it.uid, it.gid = owner(&st)
	switch info.Mode().Type() {
	case 0:
		it.size = info.Size()
		it.open = func() (*os.File, error) {
			return root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		}
	case fs.ModeDir:
	case fs.ModeSymlink:
		if it.link, err = root.Readlink(name); err != nil {
			return err
		}
	default:
		return nil // a socket or device is of no use as a copy
	}
	f.add(it)
	return nil
}

// stream writes the tar stream.
func (f *files) stream(w io.Writer) error {
	t := tar.NewWriter(w)
	for _, it := range f.items {
		if err := it.write(t); err != nil {
			return fmt.Errorf("send %s: %w", strings.TrimPrefix(it.path, layerDir), err)
		}
	}
	return t.Close()
}

func (it *item) write(t *tar.Writer) error {
	h := &tar.Header{Name: "./" + it.path, Mode: int64(it.mode.Perm()), Uid: int(it.uid), Gid: int(it.gid), Format: tar.FormatPAX}
	if it.mode&fs.ModeSticky != 0 {
		h.Mode |= unix.S_ISVTX
	}
	switch it.mode.Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		if it.opaque {
			h.PAXRecords = map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}
		}
	case fs.ModeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, it.link
	default:
		h.Typeflag, h.Size = tar.TypeReg, it.size
	}
	if err := t.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
		return err
	}
	if it.open == nil {
		_, err := t.Write(it.content)
		return err
	}
	src, err := it.open()
	if err != nil {
		return err
	}
	defer src.Close()
	n, err := io.Copy(t, io.LimitReader(src, it.size))
	if err == nil && n < it.size {
		err = errors.New("the file became shorter while it was read; try again")
	}
	return err
}
