package erofs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/testenv"
)

// found is a file that was read from an image.
type found struct {
	mode     uint32
	uid, gid uint32
	links    uint32
	nid      uint64
	sec      int64
	data     string
	opaque   bool
}

// image reads images as the kernel does, and checks what the kernel relies on.
type image struct {
	t *testing.T
	b []byte
}

func (m image) inode(nid uint64) (found, []byte) {
	m.t.Helper()
	at := nid * slotSize
	b := m.b[at : at+inodeSize]
	le := binary.LittleEndian
	f := found{mode: uint32(le.Uint16(b[4:])), uid: le.Uint32(b[24:]), gid: le.Uint32(b[28:]), sec: int64(le.Uint64(b[32:])), links: le.Uint32(b[44:]), nid: nid}
	size, after := le.Uint64(b[8:]), at+inodeSize
	if n := le.Uint16(b[2:]); n > 0 {
		x := m.b[after:]
		f.opaque = x[12] == 14 && x[13] == 4 && string(x[16:16+15]) == "overlay.opaquey"
		after += 12 + 4*uint64(n-1)
	}
	var data []byte
	switch le.Uint16(b) {
	case layoutInline:
		if after/blockSize != (after+size-1)/blockSize || at/blockSize != after/blockSize {
			m.t.Errorf("inode %d and its %d bytes cross a block's end", nid, size)
		}
		data = m.b[after : after+size]
	case layoutPlain:
		from := uint64(le.Uint32(b[16:])) * blockSize
		data = m.b[from : from+size]
	default:
		m.t.Fatalf("inode %d has the layout %d", nid, le.Uint16(b))
	}
	return f, data
}

func (m image) read() map[string]found {
	m.t.Helper()
	s := m.b[superOffset:]
	if binary.LittleEndian.Uint32(s) != superMagic || len(m.b)%blockSize != 0 || int(binary.LittleEndian.Uint32(s[36:]))*blockSize != len(m.b) {
		m.t.Fatalf("the first block is wrong, or the length %d", len(m.b))
	}
	out := map[string]found{}
	root := uint64(binary.LittleEndian.Uint16(s[14:]))
	m.walk("/", root, root, out)
	return out
}

func (m image) walk(path string, nid, parent uint64, out map[string]found) {
	f, data := m.inode(nid)
	defer func() { out[path] = f }()
	if f.mode&unix.S_IFMT != unix.S_IFDIR {
		f.data = string(data)
		return
	}
	last := ""
	for len(data) > 0 {
		block := data[:min(len(data), blockSize)]
		data = data[len(block):]
		count := int(binary.LittleEndian.Uint16(block[8:])) / direntSize
		for i := range count {
			e := block[i*direntSize:]
			from, to := int(binary.LittleEndian.Uint16(e[8:])), len(block)
			if i+1 < count {
				to = int(binary.LittleEndian.Uint16(block[(i+1)*direntSize+8:]))
			}
			name := string(bytes.TrimRight(block[from:to], "\x00"))
			if name <= last {
				m.t.Fatalf("%s: %q follows %q", path, name, last)
			}
			last = name
			kid := binary.LittleEndian.Uint64(e)
			switch name {
			case ".":
				if kid != nid {
					m.t.Errorf("%s: . is %d", path, kid)
				}
			case "..":
				if kid != parent {
					m.t.Errorf("%s: .. is %d, want %d", path, kid, parent)
				}
			default:
				k, _ := m.inode(kid)
				if e[10] != fileType(k.mode) {
					m.t.Errorf("%s/%s: type %d", path, name, e[10])
				}
				m.walk(filepath.Join(path, name), kid, nid, out)
			}
		}
	}
}

// written returns what an image holds, by path.
func written(t *testing.T, b *Builder) map[string]found {
	t.Helper()
	return image{t, bytesOf(t, b)}.read()
}

func bytesOf(t *testing.T, b *Builder) []byte {
	t.Helper()
	f := create(t, b)
	all, err := os.ReadFile(f)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func create(t *testing.T, b *Builder) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := b.Write(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), path)
	t.Cleanup(func() { f.Close() })
	return f
}

// sizes are around the borders of what stays with its inode, and of blocks.
var sizes = []int{0, 1, maxInline - 1, maxInline, maxInline + 1, blockSize - 1, blockSize, blockSize + 1, 3*blockSize + 7, 1 << 20}

func text(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*31>>3) | 1
	}
	return string(b)
}

// sample makes a tree with files of every kind and size, and a large directory.
func sample(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	for _, n := range sizes {
		must(t, os.WriteFile(fmt.Sprintf("%s/size-%d", dir, n), []byte(text(n)), 0o644))
	}
	must(t, os.MkdirAll(dir+"/deep/er", 0o755), os.Mkdir(dir+"/many", 0o711), os.Mkdir(dir+"/empty", 0o700))
	for i := range 700 {
		must(t, os.WriteFile(fmt.Sprintf("%s/many/%03d-%s", dir, i, strings.Repeat("n", i%200)), []byte(fmt.Sprint(i)), 0o600))
	}
	must(t,
		os.Symlink("../size-1", dir+"/deep/link"), os.Symlink(strings.Repeat("long/", 800), dir+"/deep/longlink"),
		os.Symlink("/etc/shadow", dir+"/absolute"), os.Link(dir+"/size-1", dir+"/zz-again"), os.Link(dir+"/size-1", dir+"/deep/again"),
		unix.Mkfifo(dir+"/pipe", 0o640), os.WriteFile(dir+"/run", []byte("#!"), 0o755),
		os.WriteFile(dir+"/-rf", nil, 0o644), os.WriteFile(dir+"/!first", nil, 0o644), os.WriteFile(dir+"/\xff\n", []byte("odd"), 0o644),
		os.WriteFile(dir+"/deep/er/f", []byte("f"), 0o444), os.Chmod(dir+"/deep", 0o1777),
		os.WriteFile(dir+"/setuid", []byte("x"), 0o755), os.Chmod(dir+"/setuid", 0o755|os.ModeSetuid),
		os.Chtimes(dir+"/run", time.Unix(1700000000, 5), time.Unix(1700000000, 5)),
	)
	return dir
}

// TestTree: an image of a tree holds the same names, kinds, modes, owners and contents.
func TestTree(t *testing.T) {
	dir := sample(t)
	var b Builder
	_, err := b.Tree("/usr/tree", open(t, dir), TreeOptions{Opaque: true})
	must(t, err)
	got := written(t, &b)
	count := 0
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		must(t, err)
		rel, err := filepath.Rel(dir, path)
		must(t, err)
		f, ok := got[filepath.Join("/usr/tree", rel)]
		var st unix.Stat_t
		must(t, unix.Lstat(path, &st))
		count++
		want := found{mode: st.Mode &^ (unix.S_ISUID | unix.S_ISGID), uid: st.Uid, gid: st.Gid, links: uint32(st.Nlink), nid: f.nid, sec: st.Mtim.Sec, opaque: rel == "."}
		switch d.Type() {
		case 0:
			data, err := os.ReadFile(path)
			must(t, err)
			want.data = string(data)
		case fs.ModeSymlink:
			want.data, err = os.Readlink(path)
			must(t, err)
		case fs.ModeDir:
			want.links = f.links // file systems count differently
		}
		if !ok || f != want {
			t.Errorf("%q: %v, got %.200v, want %.200v", rel, ok, f, want)
		}
		return nil
	}))
	if count+2 != len(got) {
		t.Errorf("%d files became %d, with two directories above them", count, len(got))
	}
	if one := got["/usr/tree/size-1"].nid; one != got["/usr/tree/zz-again"].nid || one != got["/usr/tree/deep/again"].nid {
		t.Error("names of one file became several files")
	}
	if d := got["/usr/tree/deep"]; d.links != 3 || got["/usr"].mode != unix.S_IFDIR|0o755 {
		t.Errorf("directories: %v, %v", d, got["/usr"])
	}
}

// TestKernelReads: the kernel mounts an image and finds the same tree.
func TestKernelReads(t *testing.T) {
	testenv.Root(t)
	mount := testenv.Need(t, "mount", "apt-get install mount")
	dir := sample(t)
	must(t, os.Chmod(dir+"/setuid", 0o755))
	var b Builder
	_, err := b.Tree("/", open(t, dir), TreeOptions{})
	must(t, err)
	must(t, b.Dir("/hides", Attr{Mode: 0o750, Opaque: true}), b.File("/hides/made", []byte("made"), Attr{Mode: 0o640, UID: 70000, GID: 5}))
	at := t.TempDir()
	if out, err := exec.Command(mount, "-t", "erofs", "-o", "loop,ro", create(t, &b), at).CombinedOutput(); err != nil {
		if fsTypes, _ := os.ReadFile("/proc/filesystems"); !bytes.Contains(fsTypes, []byte("erofs")) {
			testenv.Missing(t, "a kernel with erofs", "modprobe erofs")
		}
		t.Fatalf("mount: %v, %s", err, out)
	}
	defer func() { must(t, unix.Unmount(at, 0)) }()
	if out, err := exec.Command("diff", "-r", "--no-dereference", "--exclude=hides", "--exclude=pipe", dir, at).CombinedOutput(); err != nil {
		t.Errorf("the trees differ: %v\n%s", err, out)
	}
	list := func(root string) string {
		out, err := exec.Command("find", root, "-not", "-path", "*/hides*", "-not", "-path", root, "-printf", `%P %y %m %U %G %n %T@ %l\n`).Output()
		must(t, err)
		var lines []string
		for _, l := range strings.Split(string(out), "\n") {
			if f := strings.Fields(l); len(f) > 6 && f[1] == "d" {
				l = strings.Join(append(f[:5], f[6:]...), " ")
			}
			lines = append(lines, l)
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	if a, b := list(dir), list(at); a != b {
		t.Errorf("the attributes differ:\n%s\n\n%s", a, b)
	}
	value := make([]byte, 8)
	if n, err := unix.Lgetxattr(at+"/hides", "trusted.overlay.opaque", value); err != nil || string(value[:n]) != "y" {
		t.Errorf("the attribute is %q, %v", value, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(at+"/hides/made", &st); err != nil || st.Uid != 70000 || st.Gid != 5 || st.Mode != unix.S_IFREG|0o640 {
		t.Errorf("the file made in memory: %+v, %v", st, err)
	}
}

// TestMade: files from memory, and how later additions change earlier ones.
func TestMade(t *testing.T) {
	dir := sample(t)
	var b Builder
	_, err := b.Tree("/t", open(t, dir), TreeOptions{Owner: func(uid, gid uint32) (uint32, uint32) { return uid + 7, gid + 9 }})
	must(t, err)
	_, err = b.Tree("/one", open(t, dir+"/size-4097"), TreeOptions{})
	must(t, err)
	when := time.Unix(1234567890, 0)
	must(t,
		b.Dir("/", Attr{Mode: 0o750, UID: 1, GID: 2}),
		b.Dir("/home/me", Attr{Mode: 0o700, UID: 1000, GID: 1000, Time: when}),
		b.File("/home/me/f", []byte("one"), Attr{Mode: 0o600}),
		b.File("/home/me/f", []byte("two"), Attr{Mode: 0o640 | fs.ModeSetgid}),
		b.Dir("/home/me", Attr{Mode: 0o711 | fs.ModeSticky, UID: 1000, GID: 1001}),
		b.File("/home/me/a/b/c", nil, Attr{}), // its directories belong to whom /home/me does
		b.Symlink("/home/me/l", "f", Attr{Mode: 0o1, UID: 3}),
		b.File("/large", []byte(text(20000)), Attr{Mode: 0o444 | fs.ModeSetuid}),
		b.File("/t/size-1", []byte("replaced"), Attr{Mode: 0o644}), // the first name of a file that has another
		b.Dir("/t/run", Attr{Mode: 0o755}),
		b.File("/t/new/below", []byte("n"), Attr{Mode: 0o644}),
	)
	got := written(t, &b)
	for path, want := range map[string]found{
		"/":            {mode: unix.S_IFDIR | 0o750, uid: 1, gid: 2},
		"/home":        {mode: unix.S_IFDIR | 0o755, uid: 1, gid: 2}, // the root's owner
		"/home/me":     {mode: unix.S_IFDIR | 0o1711, uid: 1000, gid: 1001},
		"/home/me/a/b": {mode: unix.S_IFDIR | 0o755, uid: 1000, gid: 1001},
		"/home/me/f":   {mode: unix.S_IFREG | 0o2640, data: "two"},
		"/home/me/l":   {mode: unix.S_IFLNK | 0o777, uid: 3, data: "f"},
		"/large":       {mode: unix.S_IFREG | 0o4444, data: text(20000)},
		"/t/size-1":    {mode: unix.S_IFREG | 0o644, data: "replaced"},
		"/t/zz-again":  {mode: unix.S_IFREG | 0o644, uid: 7, gid: 9, data: text(1)},
		"/t/run":       {mode: unix.S_IFDIR | 0o755},
		"/t/new/below": {mode: unix.S_IFREG | 0o644, data: "n"},
		"/one":         {mode: unix.S_IFREG | 0o644, data: text(4097)},
	} {
		f := got[path]
		if want.uid == 7 {
			want.uid, want.gid = uint32(os.Getuid())+7, uint32(os.Getgid())+9
		} else if path == "/one" {
			want.uid, want.gid = uint32(os.Getuid()), uint32(os.Getgid())
		}
		if f.mode != want.mode || f.uid != want.uid || f.gid != want.gid || f.data != want.data {
			t.Errorf("%s: %.200v, want %.200v", path, f, want)
		}
	}
	if got["/t/zz-again"].links != 2 { // and deep/again
		t.Errorf("%d names of the file whose first name was replaced", got["/t/zz-again"].links)
	}
}

func TestEmptyImage(t *testing.T) {
	var b Builder
	if got := written(t, &b); len(got) != 1 || got["/"].mode != unix.S_IFDIR|0o755 || got["/"].links != 2 {
		t.Errorf("an empty image holds %v", got)
	}
}

// TestRefused: paths and sources that can't be are errors.
func TestRefused(t *testing.T) {
	dir := sample(t)
	var b Builder
	must(t, b.File("/file", nil, Attr{}))
	null := open(t, os.DevNull)
	for name, err := range map[string]error{
		"relative":         b.File("a", nil, Attr{}),
		"the root":         b.File("/", nil, Attr{}),
		"not clean":        b.Dir("/a/../b", Attr{}),
		"below a file":     b.Dir("/file/x/y", Attr{}),
		"a zero byte":      b.Dir("/a\x00b", Attr{}),
		"a long name":      b.Dir("/"+strings.Repeat("n", 256), Attr{}),
		"a link nowhere":   b.Symlink("/l", "", Attr{}),
		"a very long link": b.Symlink("/l", strings.Repeat("l", unix.PathMax), Attr{}),
		"a device":         second(b.Tree("/dev", null, TreeOptions{})),
		"a pipe":           second(b.Tree("/pipe", open(t, dir+"/pipe"), TreeOptions{})),
		"a file as root":   second(b.Tree("/", open(t, dir+"/run"), TreeOptions{})),
		"a tree nowhere":   second(b.Tree("x", open(t, dir), TreeOptions{})),
		"a closed file": func() error {
			f := open(t, dir)
			f.Close()
			return second(b.Tree("/t", f, TreeOptions{}))
		}(),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestDigest: it is the same for the same tree, and another after any change.
func TestDigest(t *testing.T) {
	dir := sample(t)
	digest := func() [32]byte {
		var b Builder
		d, err := b.Tree("/", open(t, dir), TreeOptions{})
		must(t, err)
		return d
	}
	last := digest()
	if digest() != last {
		t.Error("the digest of the same tree differs")
	}
	for name, change := range map[string]func() error{
		"content": func() error { return os.WriteFile(dir+"/run", []byte("!#"), 0o755) },
		"content with the old time": func() error {
			err := os.WriteFile(dir+"/deep/er/g", []byte("1"), 0o644)
			last = digest()
			must(t, os.Chtimes(dir+"/deep/er/g", time.Unix(1, 0), time.Unix(1, 0)))
			last = digest()
			must(t, os.WriteFile(dir+"/deep/er/g", []byte("2"), 0o644))
			return first(err, os.Chtimes(dir+"/deep/er/g", time.Unix(1, 0), time.Unix(1, 0)))
		},
		"mode":    func() error { return os.Chmod(dir+"/run", 0o700) },
		"new":     func() error { return os.WriteFile(dir+"/deep/er/new", nil, 0o644) },
		"gone":    func() error { return os.Remove(dir + "/many/007-nnnnnnn") },
		"renamed": func() error { return os.Rename(dir+"/run", dir+"/ran") },
		"link": func() error {
			return first(os.Remove(dir+"/absolute"), os.Symlink("/etc/gshadow", dir+"/absolute"))
		},
	} {
		must(t, change())
		now := digest()
		if now == last {
			t.Errorf("%s: the digest is the same", name)
		}
		last = now
	}
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestChangesWhileReading: what changes between Tree and Write neither ends the image
// nor leads out of the tree.
func TestChangesWhileReading(t *testing.T) {
	dir := sample(t)
	outside := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(outside, []byte(strings.Repeat("secret", 2000)), 0o644))
	var b Builder
	_, err := b.Tree("/", open(t, dir), TreeOptions{})
	must(t, err)
	must(t,
		os.Truncate(dir+"/size-1048576", 10), os.Truncate(dir+"/size-2047", 3), os.WriteFile(dir+"/size-4096", []byte(text(9000)), 0o644),
		os.Remove(dir+"/size-4097"), os.Symlink(outside, dir+"/size-4097"),
		os.Remove(dir+"/run"), os.Symlink(outside, dir+"/run"),
		os.Remove(dir+"/size-2048"), os.Mkdir(dir+"/size-2048", 0o755),
		os.Remove(dir+"/size-4095"), unix.Mkfifo(dir+"/size-4095", 0o644),
		os.RemoveAll(dir+"/many"), os.Symlink(filepath.Dir(outside), dir+"/many"),
		os.RemoveAll(dir+"/deep"),
	)
	got := written(t, &b)
	if d := got["/size-1048576"].data; len(d) != 1<<20 || d[:10] != text(10) || strings.Trim(d[10:], "\x00") != "" {
		t.Errorf("a file that became shorter has %d bytes", len(d))
	}
	if d := got["/size-2047"].data; len(d) != 2047 || strings.TrimRight(d, "\x00") != text(3) {
		t.Errorf("a small one that became shorter has %d bytes", len(d))
	}
	if got["/size-4096"].data != text(4096) {
		t.Error("a file that became longer differs")
	}
	for _, gone := range []string{"/size-4097", "/run", "/size-2048", "/size-4095", "/deep/er/f"} {
		if f := got[gone]; f.mode != unix.S_IFREG || strings.Trim(f.data, "\x00") != "" {
			t.Errorf("%s, which is gone: %.200v", gone, f)
		}
	}
	for path, f := range got {
		if strings.Contains(f.data, "secret") {
			t.Errorf("%s holds what is outside", path)
		}
	}
}

// TestUnreadable: what this process may not read has no content and no permissions.
func TestUnreadable(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("SKIPPED: root may read everything; an ordinary user's run has this")
	}
	dir := t.TempDir()
	must(t,
		os.WriteFile(dir+"/small", []byte("secret"), 0), os.WriteFile(dir+"/large", []byte(text(9000)), 0),
		os.Mkdir(dir+"/d", 0o755), os.WriteFile(dir+"/d/in", nil, 0o644), os.Chmod(dir+"/d", 0),
	)
	defer os.Chmod(dir+"/d", 0o700)
	var b Builder
	_, err := b.Tree("/", open(t, dir), TreeOptions{})
	must(t, err)
	got := written(t, &b)
	for _, p := range []string{"/small", "/large", "/d"} {
		if f := got[p]; f.mode&0o7777 != 0 || strings.Trim(f.data, "\x00") != "" {
			t.Errorf("%s: %.200v", p, f)
		}
	}
	if len(got) != 4 {
		t.Errorf("the image holds %v", got)
	}
}
