package erofs

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/sparse"
)

// The format is the kernel's: fs/erofs/erofs_fs.h. Each inode has 64 bytes; what is at
// most maxInline bytes long follows it, the rest has blocks of its own.
const (
	blockSize = 4096
	slotSize  = 32 // the unit of an inode's number

	superOffset = 1024
	superMagic  = 0xe0f5e1e2
	inodeSize   = 64
	firstInode  = blockSize

	layoutPlain  = 1 // extended inode, data in blocks
	layoutInline = 1 | 2<<1

	direntSize = 12
	maxInline  = 2048

	opaqueXattrs = 32 // bytes, see writeOpaque
)

// Write writes the image to f, from its beginning. Call it once. f must be empty: what the
// image leaves out, such as files' holes, is not overwritten. A file that becomes shorter
// while it is read is continued with zeros. Write returns ctx's error when that ends.
func (b *Builder) Write(ctx context.Context, f *os.File) error {
	l := &layout{pos: firstInode}
	if err := l.place(b.top(), nil); err != nil {
		return err
	}
	if err := l.blocks(); err != nil {
		return err
	}
	w := &writer{f: f, buf: bufio.NewWriterSize(io.NewOffsetWriter(f, firstInode), 1<<20), pos: firstInode}
	for i, n := range l.nodes {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.inode(n, l.parents[i], uint32(i+1)); err != nil {
			return err
		}
	}
	if err := w.buf.Flush(); err != nil {
		return err
	}
	for i, n := range l.nodes {
		if n.inline || n.length == 0 {
			continue
		}
		if err := w.data(ctx, n, l.parents[i]); err != nil {
			return err
		}
	}
	if err := f.Truncate(int64(l.next) * blockSize); err != nil {
		return err
	}
	_, err := f.WriteAt(super(b.root.nid, len(l.nodes), l.next), superOffset)
	return err
}

// layout decides where everything goes.
type layout struct {
	pos     int64
	nodes   []*node // with an inode of their own, in the order of their inodes
	parents []*node
	next    uint32 // first free block
}

// place gives n and what is in it their numbers.
func (l *layout) place(n, parent *node) error {
	if n.otherName() {
		return nil
	}
	if n.links++; n.dir() {
		n.links++
		if parent != nil {
			parent.links++
		}
		n.length = dirLength(n)
	} else {
		n.length = n.size
	}
	need := int64(inodeSize)
	if n.opaque {
		need += opaqueXattrs
	}
	if n.length <= maxInline && n.length > 0 {
		n.inline = true
		need += n.length
	}
	if room := blockSize - l.pos%blockSize; room < need {
		l.pos += room
	}
	n.nid = uint64(l.pos / slotSize)
	l.pos += (need + slotSize - 1) / slotSize * slotSize
	l.nodes, l.parents = append(l.nodes, n), append(l.parents, parent)
	for _, kid := range n.kids {
		if err := l.place(kid, n); err != nil {
			return err
		}
	}
	return nil
}

// otherName counts n as another name of a file that has its place already. If that file
// was replaced after it was found, n is the file itself.
func (n *node) otherName() bool {
	first := n.same
	if first == nil {
		return false
	}
	if first.same != nil {
		first = first.same
	}
	if first.nid == 0 {
		first.same, n.same = n, nil
		return false
	}
	n.same = first
	first.links++
	return true
}

// blocks gives data their blocks, after the inodes.
func (l *layout) blocks() error {
	next := (l.pos-1)/blockSize + 1
	for _, n := range l.nodes {
		if n.inline || n.length == 0 {
			continue
		}
		n.block = uint32(next)
		if next += (n.length-1)/blockSize + 1; n.length < 0 || next > math.MaxUint32 {
			return fmt.Errorf("erofs: with the %d bytes of %.200q the image has more than 16 TiB: leave that file out", n.length, n.name)
		}
	}
	l.next = uint32(next)
	return nil
}

// dirent is one entry of a directory.
type dirent struct {
	name string
	n    *node
}

// entries returns the entries of a directory in the order of their bytes, in which the
// kernel searches.
func entries(n, parent *node) []dirent {
	if parent == nil {
		parent = n
	}
	out := make([]dirent, 0, len(n.kids)+2)
	out = append(out, dirent{".", n}, dirent{"..", parent})
	for _, kid := range n.kids {
		to := kid
		if kid.same != nil {
			to = kid.same
		}
		out = append(out, dirent{kid.name, to})
	}
	slices.SortFunc(out, func(a, b dirent) int { return strings.Compare(a.name, b.name) })
	return out
}

// split returns how many of the entries fit into one block, and their bytes.
func split(list []dirent) (n, size int) {
	for n < len(list) && size+direntSize+len(list[n].name) <= blockSize {
		size += direntSize + len(list[n].name)
		n++
	}
	return n, size
}

func dirLength(n *node) int64 {
	list := entries(n, nil)
	var length int64
	for {
		k, size := split(list)
		if list = list[k:]; len(list) == 0 {
			return length + int64(size)
		}
		length += blockSize
	}
}

// dirData returns the data of a directory, without what fills its last block.
func dirData(n, parent *node) []byte {
	var out []byte
	for list := entries(n, parent); len(list) > 0; {
		k, size := split(list)
		at := len(out)
		out = append(out, make([]byte, size)...)
		names := k * direntSize
		for i, e := range list[:k] {
			b := out[at+i*direntSize:]
			binary.LittleEndian.PutUint64(b, e.n.nid)
			binary.LittleEndian.PutUint16(b[8:], uint16(names))
			b[10] = fileType(e.n.mode)
			names += copy(out[at+names:], e.name)
		}
		if list = list[k:]; len(list) > 0 {
			out = append(out, make([]byte, blockSize-size)...)
		}
	}
	return out
}

func fileType(mode uint32) byte {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return 1
	case unix.S_IFDIR:
		return 2
	case unix.S_IFIFO:
		return 5
	case unix.S_IFSOCK:
		return 6
	case unix.S_IFLNK:
		return 7
	}
	return 0
}

// writer writes inodes in order, and data where they belong.
type writer struct {
	f   *os.File
	buf *bufio.Writer
	pos int64 // of buf
}

func (w *writer) inode(n, parent *node, number uint32) error {
	at := int64(n.nid) * slotSize
	if _, err := w.buf.Write(make([]byte, at-w.pos)); err != nil {
		return err
	}
	text, err := w.inlineText(n, parent)
	if err != nil {
		return err
	}
	var b [inodeSize + opaqueXattrs]byte
	le := binary.LittleEndian
	size := inodeSize
	le.PutUint16(b[0:], layoutPlain)
	if n.inline {
		le.PutUint16(b[0:], layoutInline)
	}
	le.PutUint16(b[4:], uint16(n.mode))
	le.PutUint64(b[8:], uint64(n.length))
	le.PutUint32(b[16:], n.block)
	le.PutUint32(b[20:], number)
	le.PutUint32(b[24:], n.uid)
	le.PutUint32(b[28:], n.gid)
	le.PutUint64(b[32:], uint64(n.sec))
	le.PutUint32(b[40:], n.nsec)
	le.PutUint32(b[44:], n.links)
	if n.opaque {
		le.PutUint16(b[2:], 6) // 32 bytes: 12 + 4 * (6 - 1)
		writeOpaque(b[inodeSize:])
		size += opaqueXattrs
	}
	if _, err := w.buf.Write(b[:size]); err != nil {
		return err
	}
	_, err = w.buf.Write(text)
	w.pos = at + int64(size+len(text))
	return err
}

// writeOpaque writes the attribute trusted.overlay.opaque=y.
func writeOpaque(b []byte) {
	const name = "overlay.opaque"
	b = b[12:] // no shared attributes
	b[0], b[1] = byte(len(name)), 4
	binary.LittleEndian.PutUint16(b[2:], 1)
	copy(b[4:], name+"y")
}

// inlineText returns what follows the inode.
func (w *writer) inlineText(n, parent *node) ([]byte, error) {
	switch {
	case !n.inline:
		return nil, w.lockUnreadable(n)
	case n.dir():
		return dirData(n, parent), nil
	case n.tree == nil:
		return n.text, nil
	}
	text := make([]byte, n.length)
	f, err := n.open()
	if err != nil {
		return nil, err
	}
	if f == nil {
		n.mode &= unix.S_IFMT
		return text, nil
	}
	defer f.Close()
	if _, err := io.ReadFull(f, text); err != nil && err != io.EOF && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, &os.PathError{Op: "read", Path: n.rel, Err: err}
	}
	return text, nil
}

// lockUnreadable removes the permissions of a file that this process may not read,
// since the image holds zeros in place of its content.
func (w *writer) lockUnreadable(n *node) error {
	if n.tree == nil || n.length == 0 {
		return nil
	}
	f, err := n.open()
	if err != nil {
		return err
	}
	if f == nil {
		n.mode &= unix.S_IFMT
		return nil
	}
	return f.Close()
}

// data writes what has blocks of its own.
func (w *writer) data(ctx context.Context, n, parent *node) error {
	at := int64(n.block) * blockSize
	switch {
	case n.dir():
		_, err := w.f.WriteAt(dirData(n, parent), at)
		return err
	case n.tree == nil:
		_, err := w.f.WriteAt(n.text, at)
		return err
	}
	f, err := n.open()
	if err != nil || f == nil {
		return err
	}
	defer f.Close()
	if err := sparse.Copy(ctx, w.f, at, f, n.length); err != nil {
		return &os.PathError{Op: "copy", Path: n.rel, Err: err}
	}
	return nil
}

func super(root uint64, inodes int, blocks uint32) []byte {
	b := make([]byte, 128)
	le := binary.LittleEndian
	le.PutUint32(b[0:], superMagic)
	b[12] = 12 // a block has 1<<12 bytes
	le.PutUint16(b[14:], uint16(root))
	le.PutUint64(b[16:], uint64(inodes))
	le.PutUint32(b[36:], blocks)
	return b
}
