// Package erofs writes read-only file system images in the kernel's EROFS format,
// from trees of this machine and from files made in memory.
//
// Start reading at [Builder]: add what the image holds, then call [Builder.Write].
package erofs

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Attr are the attributes of one file.
type Attr struct {
	Mode     fs.FileMode // permissions, set-id bits and sticky; the kind is the method's
	UID, GID uint32
	Time     time.Time
	// Opaque marks a directory that hides those of the same name in the layers below
	// an overlay.
	Opaque bool
}

// Builder collects the contents of an image. Later additions replace earlier ones of
// the same path, and a directory that is added again keeps what is in it. Paths are
// absolute and clean. The zero Builder is an empty image whose root is 0755.
//
// It is not safe for concurrent use.
type Builder struct {
	root *node
}

// node is one file of the image.
type node struct {
	name     string
	mode     uint32 // kind and permissions, as stat(2) has them
	uid, gid uint32
	sec      int64
	nsec     uint32
	opaque   bool
	kids     []*node // of a directory, sorted by name
	text     []byte  // of a file or link made in memory
	size     int64   // of a file
	tree     *tree   // where a file's content is, or nil
	rel      string  // its path there
	shut     bool    // it may not be read
	same     *node   // the file of which this is another name, or nil

	links  uint32
	nid    uint64
	block  uint32 // where its data begins, unless they are inline
	inline bool
	length int64 // bytes of data
}

const maxName = 255

func (b *Builder) top() *node {
	if b.root == nil {
		b.root = &node{mode: unix.S_IFDIR | 0o755}
	}
	return b.root
}

func (n *node) dir() bool { return n.mode&unix.S_IFMT == unix.S_IFDIR }

func byName(n *node, name string) int { return strings.Compare(n.name, name) }

func (n *node) kid(name string) *node {
	if i, ok := slices.BinarySearchFunc(n.kids, name, byName); ok {
		return n.kids[i]
	}
	return nil
}

// put adds a child, in place of one of the same name.
func (n *node) put(kid *node) {
	i, ok := slices.BinarySearchFunc(n.kids, kid.name, byName)
	if ok {
		n.kids[i] = kid
		return
	}
	n.kids = slices.Insert(n.kids, i, kid)
}

// parent returns the directory that holds the path, and the last name. It makes what is
// missing, for the owner of the directory above.
func (b *Builder) parent(p string) (*node, string, error) {
	if !path.IsAbs(p) || path.Clean(p) != p || p == "/" || strings.ContainsRune(p, 0) {
		return nil, "", fmt.Errorf("erofs: %.200q is not an absolute clean path below the root", p)
	}
	at := b.top()
	names := strings.Split(p[1:], "/")
	for i, name := range names {
		if len(name) > maxName {
			return nil, "", fmt.Errorf("erofs: %.200q: a name is longer than %d bytes", p, maxName)
		}
		if i == len(names)-1 {
			return at, name, nil
		}
		next := at.kid(name)
		if next == nil {
			next = &node{name: name, mode: unix.S_IFDIR | 0o755, uid: at.uid, gid: at.gid}
			at.put(next)
		}
		if !next.dir() {
			return nil, "", fmt.Errorf("erofs: %.200q: /%s is not a directory", p, path.Join(names[:i+1]...))
		}
		at = next
	}
	return nil, "", errors.New("erofs: an empty path")
}

func (n *node) set(kind uint32, a Attr) {
	n.mode = kind | uint32(a.Mode.Perm())
	for _, bit := range []struct {
		has fs.FileMode
		set uint32
	}{{fs.ModeSetuid, unix.S_ISUID}, {fs.ModeSetgid, unix.S_ISGID}, {fs.ModeSticky, unix.S_ISVTX}} {
		if a.Mode&bit.has != 0 {
			n.mode |= bit.set
		}
	}
	n.uid, n.gid, n.opaque = a.UID, a.GID, a.Opaque
	if !a.Time.IsZero() {
		n.sec, n.nsec = a.Time.Unix(), uint32(a.Time.Nanosecond())
	}
}

// Dir adds a directory. "/" sets the attributes of the root.
func (b *Builder) Dir(p string, a Attr) error {
	if p == "/" {
		b.top().set(unix.S_IFDIR, a)
		return nil
	}
	at, name, err := b.parent(p)
	if err != nil {
		return err
	}
	n := at.kid(name)
	if n == nil || !n.dir() {
		n = &node{name: name}
		at.put(n)
	}
	n.set(unix.S_IFDIR, a)
	return nil
}

// File adds a regular file.
func (b *Builder) File(p string, content []byte, a Attr) error {
	return b.add(p, &node{text: content, size: int64(len(content))}, unix.S_IFREG, a)
}

// Symlink adds a symbolic link.
func (b *Builder) Symlink(p, to string, a Attr) error {
	if to == "" || len(to) >= unix.PathMax || strings.ContainsRune(to, 0) {
		return fmt.Errorf("erofs: %.200q: a link can't lead to %.200q", p, to)
	}
	a.Mode = 0o777
	return b.add(p, &node{text: []byte(to), size: int64(len(to))}, unix.S_IFLNK, a)
}

func (b *Builder) add(p string, n *node, kind uint32, a Attr) error {
	at, name, err := b.parent(p)
	if err != nil {
		return err
	}
	n.name = name
	n.set(kind, a)
	at.put(n)
	return nil
}
