package change

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// whiteout is the type of an upper-layer entry that deletes a lower one.
const whiteout Type = "whiteout"

// opaqueXattr marks a directory of the upper layer that hides the contents of
// the lower one. Only the sandbox's kernel can set it. user.overlay.opaque is
// ignored, because the bottle can set it.
const opaqueXattr = "SCHILY.xattr.trusted.overlay.opaque"

// upNode is one entry of the upper layer.
type upNode struct {
	typ     Type
	mode    uint32
	size    int64
	sum     string
	off     int64
	target  string
	link    string // path of the hard link's first name
	opaque  bool
	omitted string
	kids    map[string]*upNode
}

// upperReader reads the stream into a tree of the entries in the workspace.
type upperReader struct {
	opts       CollectOptions
	prefix     string // workspace path without leading slash
	root       *upNode
	rootHidden bool // an ancestor is opaque and hides all of the host's files
	rootGone   bool // the workspace or an ancestor was removed or replaced

	// outside holds the files and whiteouts outside the workspace: a later
	// hard link in the workspace may name them.
	outside   map[string]*upNode
	pack      *pack
	spool     *pack // contents of outside files, in an unlinked file
	spoolGone bool
	reserve   *os.File // unlinked; reserves disk space for the index

	entries   int64
	pathBytes int64
	logical   int64
	outCount  int64
	skipped   []string // rejected entries, for Incomplete
	nSkipped  int
	limit     *limitError
	torn      error // set if the stream ended early: the tree is partial
}

// The index takes about reserveEntry bytes per entry. Every reserveEvery
// entries, space for as many more is reserved.
const (
	reserveEvery = 4096
	reserveEntry = 512
)

// errStop ends reading at a bound on a number of items or bytes.
var errStop = errors.New("bound reached")

func (u *upperReader) read(ctx context.Context, r io.Reader) error {
	src := &sourceReader{r: r}
	tr := tar.NewReader(src)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		hdr, err := tr.Next()
		if err == nil {
			err = u.entry(ctx, hdr, tr)
		} else if err != io.EOF && src.err == nil {
			err = fmt.Errorf("%w: %w", errMalformed, err)
		}
		switch {
		case err == nil:
		case err == io.EOF && src.ended:
			// Cut between two entries, or empty: the tar reader returns EOF
			// for that and for a trailer, but stops reading at a trailer.
			u.torn = fmt.Errorf("%w: ends without a trailer after %d entries", errMalformed, u.entries)
			return nil
		case err == io.EOF:
			return nil
		case err == errStop:
			u.torn = u.limit
			return nil
		case src.err != nil:
			u.torn = fmt.Errorf("read change stream: %w", src.err)
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, errMalformed):
			u.torn = fmt.Errorf("%w: ends early or is damaged after %d entries", errMalformed, u.entries)
			return nil
		default:
			return err
		}
	}
}

// sourceReader records read errors, which tells a broken stream from a failure
// to write to disk.
type sourceReader struct {
	r     io.Reader
	err   error
	ended bool // a read met the end of the stream
}

func (s *sourceReader) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if err != nil && err != io.EOF {
		s.err = err
	}
	s.ended = s.ended || n == 0 && err == io.EOF
	return n, err
}

func (u *upperReader) reach(limit string, n int64, p string) {
	if u.limit == nil {
		u.limit = &limitError{Limit: limit, Max: n, Path: p}
	}
}

func (u *upperReader) skip(p, why string) {
	u.nSkipped++
	if len(u.skipped) < 100 {
		u.skipped = append(u.skipped, show(p)+": "+why)
	}
}

func (u *upperReader) entry(ctx context.Context, hdr *tar.Header, r io.Reader) error {
	u.entries++
	u.pathBytes += int64(len(hdr.Name) + len(hdr.Linkname))
	if u.entries%reserveEvery == 1 {
		// Without room for the index the stored contents would be useless.
		err := unix.Fallocate(int(u.reserve.Fd()), 0, 0, (u.entries/reserveEvery+1)*reserveEvery*reserveEntry)
		if isNoSpace(err) {
			u.reach("disk", 0, "")
			return errStop
		}
	}
	switch {
	case u.entries > u.opts.MaxEntries:
		u.reach("entries", u.opts.MaxEntries, "")
		return errStop
	case u.pathBytes > maxPathBytes:
		u.reach("path bytes", maxPathBytes, "")
		return errStop
	}
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, ok := strings.CutPrefix(hdr.Name, "./")
	if !ok {
		u.skip(hdr.Name, "not below the root")
		return nil
	}
	if hdr.Typeflag == tar.TypeDir {
		name = strings.TrimSuffix(name, "/")
	}
	rel, where := u.locate(name)
	switch where {
	case isAbove:
		u.ancestor(hdr, rel)
		return nil
	case isOutside:
		u.outCount++
		return u.outsideEntry(ctx, hdr, name, r)
	}
	if rel != "" {
		if err := checkRel(rel); err != nil {
			u.skip(rel, err.Error())
			return nil
		}
	}
	return u.inside(ctx, hdr, rel, r)
}

type place int

const (
	isInside place = iota // rel is relative to the workspace, "" for itself
	isAbove               // rel is an ancestor of the workspace
	isOutside
)

func (u *upperReader) locate(name string) (rel string, where place) {
	switch {
	case name == u.prefix:
		return "", isInside
	case strings.HasPrefix(name, u.prefix+"/"):
		return name[len(u.prefix)+1:], isInside
	case name == "" || strings.HasPrefix(u.prefix, name+"/"):
		return name, isAbove
	}
	return "", isOutside
}

func (u *upperReader) ancestor(hdr *tar.Header, rel string) {
	switch {
	case hdr.Typeflag != tar.TypeDir:
		u.rootGone = true
	case rel != "" && isOpaque(hdr):
		u.rootHidden = true
	}
}

func isOpaque(hdr *tar.Header) bool { return hdr.PAXRecords[opaqueXattr] == "y" }

func isWhiteout(hdr *tar.Header) bool {
	return hdr.Typeflag == tar.TypeChar && hdr.Devmajor == 0 && hdr.Devminor == 0
}

// newUpNode returns the entry's node without content, nil if its type is
// unknown.
func newUpNode(hdr *tar.Header) *upNode {
	n := &upNode{mode: uint32(hdr.Mode) & 0o7777}
	switch hdr.Typeflag {
	case tar.TypeReg:
		n.typ, n.size = File, hdr.Size
	case tar.TypeDir:
		n.typ, n.opaque, n.kids = Dir, isOpaque(hdr), map[string]*upNode{}
	case tar.TypeSymlink:
		n.typ, n.target = Symlink, hdr.Linkname
	case tar.TypeFifo:
		n.typ = Fifo
	case tar.TypeBlock:
		n.typ = blockDevice
	case tar.TypeChar:
		n.typ = charDevice
		if isWhiteout(hdr) {
			n.typ = whiteout
		}
	default:
		return nil
	}
	return n
}

func (u *upperReader) outsideEntry(ctx context.Context, hdr *tar.Header, name string, r io.Reader) error {
	if hdr.Typeflag == tar.TypeLink || hdr.Typeflag == tar.TypeDir {
		return nil // links name the first path, which is another entry
	}
	n := newUpNode(hdr)
	if n == nil {
		return nil
	}
	if n.typ == File {
		if err := u.content(ctx, n, name, r, false); err != nil {
			return err
		}
	}
	u.outside[name] = n
	return nil
}

func (u *upperReader) inside(ctx context.Context, hdr *tar.Header, rel string, r io.Reader) error {
	var n *upNode
	if hdr.Typeflag == tar.TypeLink {
		var err error
		if n, err = u.linked(ctx, hdr, rel); err != nil || n == nil {
			return err
		}
	} else if n = newUpNode(hdr); n == nil {
		u.skip(rel, "unknown type of entry")
		return nil
	}
	if n.typ == Symlink && (n.target == "" || len(n.target) > maxPath || strings.IndexByte(n.target, 0) >= 0) {
		u.skip(rel, "bad link target")
		return nil
	}
	if rel == "" {
		if n.typ != Dir {
			u.rootGone = true
			return nil
		}
		if u.root == nil {
			u.root = n
		}
		return nil
	}
	parent, base := u.parentOf(rel)
	if parent == nil {
		u.skip(rel, "its directory is not in the stream")
		return nil
	}
	if _, dup := parent.kids[base]; dup {
		u.skip(rel, "it occurs twice")
		return nil
	}
	if n.typ == File && n.link == "" {
		if err := u.content(ctx, n, rel, r, true); err != nil {
			return err
		}
	}
	parent.kids[base] = n
	return nil
}

func (u *upperReader) parentOf(rel string) (*upNode, string) {
	n := u.root
	for n != nil && n.typ == Dir {
		head, rest, more := strings.Cut(rel, "/")
		if !more {
			return n, head
		}
		n, rel = n.kids[head], rest
	}
	return nil, ""
}

func (u *upperReader) find(rel string) *upNode {
	parent, base := u.parentOf(rel)
	if parent == nil {
		return nil
	}
	return parent.kids[base]
}

// linked returns a node for a hard link, made from the node of its first name,
// which is earlier in the stream. A hard link to a whiteout is a whiteout.
func (u *upperReader) linked(ctx context.Context, hdr *tar.Header, rel string) (*upNode, error) {
	name, ok := strings.CutPrefix(hdr.Linkname, "./")
	if !ok {
		u.skip(rel, "hard link to a strange name")
		return nil, nil
	}
	var first *upNode
	target, where := u.locate(name)
	switch where {
	case isInside:
		first = u.find(target)
	case isOutside:
		first = u.outside[name]
		if first != nil && first.typ == File && first.omitted == "" && first.link == "" {
			if err := u.adopt(ctx, first, rel); err != nil {
				return nil, err
			}
		}
	}
	if first == nil || first.typ == Dir {
		u.skip(rel, "hard link to nothing")
		return nil, nil
	}
	n := *first
	if n.typ == File {
		n.link = target
		if where == isOutside {
			n.link = "/" + name // the slash marks a path outside the workspace
		}
	}
	return &n, nil
}

// adopt moves the content of a file outside the workspace into the pack, when
// a hard link in the workspace names the file.
func (u *upperReader) adopt(ctx context.Context, n *upNode, rel string) error {
	if u.spoolGone {
		n.omitted = "over the byte limit (a hard link to a file outside the workspace)"
		return nil
	}
	src := io.NewSectionReader(u.spool.f, n.off, n.size)
	if err := u.store(ctx, n, rel, src, u.pack); err != nil {
		return err
	}
	n.link = "/" // adopted: from now on its offset is in the pack
	return nil
}

// content stores the content of a regular file. If it does not fit, content
// records why and skips it, so that smaller files can still be stored.
func (u *upperReader) content(ctx context.Context, n *upNode, p string, r io.Reader, inside bool) error {
	if n.size > u.opts.MaxLogical-u.logical {
		u.reach("logical bytes", u.opts.MaxLogical, p)
		return errStop
	}
	u.logical += n.size
	if !inside {
		if u.spoolGone {
			return u.drain(ctx, r)
		}
		return u.store(ctx, n, p, r, u.spool)
	}
	if n.size > u.opts.MaxBytes-u.pack.stored-u.spool.stored {
		if err := u.dropSpool(); err != nil {
			return err
		}
	}
	return u.store(ctx, n, p, r, u.pack)
}

func (u *upperReader) store(ctx context.Context, n *upNode, p string, r io.Reader, to *pack) error {
	budget := u.opts.MaxBytes - u.pack.stored - u.spool.stored
	off, sum, err := to.append(ctx, r, n.size, budget)
	switch {
	case err == nil:
		n.off, n.sum = off, sum
		return nil
	case errors.Is(err, errBudget):
		n.omitted = "over the byte limit"
		u.reach("bytes", u.opts.MaxBytes, p)
	case isNoSpace(err):
		n.omitted = "no space left on the state directory's disk"
		u.reach("disk", 0, p)
	default:
		return err
	}
	// Contents of outside files only serve hard links: free their space for
	// files of the workspace.
	if err := u.dropSpool(); err != nil {
		return err
	}
	return u.drain(ctx, r)
}

func (u *upperReader) dropSpool() error {
	if u.spoolGone {
		return nil
	}
	u.spoolGone = true
	return u.spool.reset()
}

func (u *upperReader) drain(ctx context.Context, r io.Reader) error {
	buf := u.pack.buf
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, err := r.Read(buf)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
