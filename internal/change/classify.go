package change

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxBaseHash is the largest host file that is hashed although its size
// already differs from the bottle's. With the hash, Land accepts the file even
// if only its ctime or inode changes.
const maxBaseHash = 64 << 20

// classifier turns the upper layer into changes, by comparing it with the
// host's directory now and with the names there when the run began.
type classifier struct {
	ctx       context.Context
	t         tree
	was       *names
	threshold int64
	opts      CollectOptions
	partial   bool // the stream is incomplete: missing entries prove nothing
	set       *Set
	buf       []byte
}

func classify(ctx context.Context, u *upperReader, opts CollectOptions) (*Set, error) {
	b := opts.Baseline
	s := &Set{Schema: Schema, Workspace: b.ID, Protection: opts.Policy, Changes: []Change{}, Notes: opts.Notes, dir: opts.RunDir,
		Outside: u.outCount, Stored: u.pack.stored, Logical: u.logical}
	c := &classifier{ctx: ctx, t: tree{b.root}, opts: opts, set: s, partial: u.torn != nil, buf: make([]byte, 64<<10)}
	if err := c.loadNames(u); err != nil {
		return nil, err
	}
	var note string
	if c.threshold, note = b.marker.threshold(clockOffset()); note != "" {
		s.Notes = append(s.Notes, note)
	}
	if b.marker.Foreign {
		s.Notes = append(s.Notes, "the workspace's file system could not be written to for its clock; the state directory's was used")
	}
	root := u.root
	if u.rootGone && !c.partial {
		s.Notes = append(s.Notes, "the workspace directory itself was removed or replaced in the bottle")
		root, u.rootHidden = &upNode{typ: Dir, kids: map[string]*upNode{}}, true
	}
	if u.rootHidden && root == nil && !c.partial {
		root = &upNode{typ: Dir, kids: map[string]*upNode{}}
	}
	if root != nil {
		err := c.dir("", root, u.rootHidden || root.opaque)
		var limit *limitError
		switch {
		case errors.As(err, &limit):
			u.reach(limit.Limit, limit.Max, limit.Path)
			s.Incomplete = append(s.Incomplete, limit.Error())
		case err != nil:
			return nil, err
		}
	}
	c.finish(u)
	s.reindex()
	markIgnored(ctx, c.t, s)
	return s, opts.Policy.apply(c.t, s)
}

// loadNames reads the parts of the snapshot that the comparison needs: the
// directories of the upper layer, and everything below hidden ones.
func (c *classifier) loadNames(u *upperReader) error {
	if err := c.opts.Baseline.Wait(c.ctx); err != nil {
		if c.ctx.Err() != nil {
			return c.ctx.Err()
		}
		c.set.Notes = append(c.set.Notes, "the names that existed when the run began were not all recorded: "+err.Error())
	}
	want := func(dir string) bool {
		if u.root == nil {
			return u.rootGone || u.rootHidden
		}
		if dir == "." {
			return true
		}
		n := u.root
		for comp := range strings.SplitSeq(dir, "/") {
			if n.typ != Dir || n.opaque {
				return true
			}
			k, ok := n.kids[comp]
			if !ok {
				return u.rootHidden
			}
			n = k
		}
		return true
	}
	var err error
	c.was, err = readSnapshot(filepath.Join(c.opts.Baseline.runDir, upperDir, snapshotFile), want)
	if err != nil {
		c.set.Notes = append(c.set.Notes, "the names that existed when the run began could not be read: "+err.Error())
	}
	return nil
}

func (c *classifier) finish(u *upperReader) {
	s := c.set
	if u.torn != nil {
		s.Incomplete = append(s.Incomplete, "the stream of changes is not whole: "+u.torn.Error())
	}
	omitted := 0
	for i := range s.Changes {
		if s.Changes[i].Omitted != "" {
			omitted++
		}
	}
	if omitted > 0 {
		s.Incomplete = append(s.Incomplete, fmt.Sprintf("the content of %d files was not kept", omitted))
	}
	if u.nSkipped > 0 {
		s.Incomplete = append(s.Incomplete, fmt.Sprintf("%d entries could not be taken", u.nSkipped))
		s.Incomplete = append(s.Incomplete, u.skipped...)
	}
}

func (c *classifier) emit(ch Change) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if int64(len(c.set.Changes)) >= c.opts.MaxEntries {
		return &limitError{Limit: "entries", Max: c.opts.MaxEntries, Path: string(ch.Path)}
	}
	c.set.Changes = append(c.set.Changes, ch)
	return nil
}

// dir compares the children of a directory of the upper layer with the host's
// directory at rel, if there is one. If hidden is set, host names that the
// upper layer lacks were deleted.
func (c *classifier) dir(rel string, up *upNode, hidden bool) error {
	host := map[string]dirent{}
	err := c.t.list(dot(rel), c.buf, func(e dirent) error { host[e.name] = e; return nil })
	if err != nil && !isAbsent(err) && err != unix.ELOOP && err != unix.EXDEV {
		c.set.Incomplete = append(c.set.Incomplete, fmt.Sprintf("host directory %s could not be read: %v", show(dot(rel)), err))
		hidden = false // never delete unseen files
	}
	all := make([]string, 0, len(up.kids))
	for name := range up.kids {
		all = append(all, name)
	}
	if hidden && !c.partial {
		for name := range host {
			if _, ok := up.kids[name]; !ok {
				all = append(all, name)
			}
		}
	}
	slices.Sort(all)
	for _, name := range all {
		ent, present := host[name]
		if err := c.child(rel, name, up.kids[name], ent, present, hidden); err != nil {
			return err
		}
	}
	return nil
}

func dot(rel string) string {
	if rel == "" {
		return "."
	}
	return rel
}

// child compares one name. up is nil if only the host has it.
func (c *classifier) child(dir, name string, up *upNode, ent dirent, present, hidden bool) error {
	rel := join(dir, name)
	_, existed, known := c.was.was(dot(dir), name)
	if up == nil || up.typ == whiteout {
		// The bottle never saw a name that the host made during the run, so
		// it stays. (Whiteouts of names that never existed are common: a
		// renamed temporary file leaves one.)
		if !present || known && !existed {
			c.set.Dropped++
			return nil
		}
		return c.deletion(dir, name, ent)
	}
	base, moved, err := c.base(dir, name, ent, present)
	ch := Change{Path: Bytes(rel), Type: up.typ, Mode: up.mode, Size: up.size, SHA256: up.sum, Offset: up.off,
		Target: Bytes(up.target), Omitted: up.omitted, Base: base, BaseMoved: moved}
	if up.link != "" && up.link[0] != '/' {
		ch.HardLink = Bytes(up.link)
	}
	if err != nil {
		ch.Unlandable = unreachable(err)
	}
	if !up.typ.landable() {
		ch.Unlandable = fmt.Sprintf("a %s is never landed", up.typ)
	}
	return c.compare(ch, up, dir, name, ent, hidden)
}

func unreachable(err error) string {
	switch {
	case errors.Is(err, unix.EXDEV):
		return "it is a mount point or inside another mount on the host"
	case errors.Is(err, unix.ELOOP):
		return "its directory is a symbolic link on the host now"
	}
	return "the host's file cannot be read: " + err.Error()
}

func (c *classifier) compare(ch Change, up *upNode, dir, name string, ent dirent, hidden bool) error {
	rel, base := string(ch.Path), ch.Base
	switch {
	case base == nil:
		ch.Kind = Add
	case base.Type != up.typ:
		ch.Kind = Retype
		if !base.Type.landable() {
			ch.Unlandable = fmt.Sprintf("a %s of the host is never replaced", base.Type)
		}
	default:
		same, err := c.sameContent(up, base, rel)
		if err != nil {
			return err
		}
		switch {
		case same && (base.Mode == up.mode || up.typ == Symlink):
			c.set.Dropped++
			ch.Kind = ""
		case same:
			ch.Kind = Mode
			if up.typ == Dir && base.Ctime >= c.threshold && ch.BaseMoved == "" {
				// Changed children also move a directory's ctime; treat it
				// as a conflict to be safe.
				ch.BaseMoved = "changed on the host during the run"
			}
		default:
			ch.Kind = Modify
		}
	}
	if ch.Kind != "" {
		at := len(c.set.Changes)
		if err := c.emit(ch); err != nil {
			return err
		}
		if ch.Kind == Retype && base.Type == Dir {
			if err := c.deletions(rel, at); err != nil {
				return err
			}
		}
	}
	if up.typ == Dir {
		return c.dir(rel, up, hidden || up.opaque)
	}
	return nil
}

func (c *classifier) sameContent(up *upNode, base *Fingerprint, rel string) (bool, error) {
	switch up.typ {
	case File:
		if up.omitted != "" || base.Size != up.size && base.Size > maxBaseHash || base.Size > c.opts.MaxLogical {
			return false, nil
		}
		f, st, err := c.t.openFile(rel)
		if err != nil {
			return false, nil // leave the fingerprint without a hash
		}
		defer f.Close()
		sum, err := hashFile(c.ctx, f, st.Size)
		if err != nil {
			return false, c.ctx.Err()
		}
		if st.Ino == base.Ino && st.Size == base.Size && st.Ctim.Nano() == base.Ctime {
			base.SHA256 = sum
		}
		return sum == up.sum && st.Size == up.size, nil
	case Symlink:
		return string(base.Target) == up.target, nil
	}
	return true, nil
}

// base returns the fingerprint of the host's file at dir/name, nil if absent,
// and how the host changed it since the run began, "" if it did not.
func (c *classifier) base(dir, name string, ent dirent, present bool) (*Fingerprint, string, error) {
	was, existed, known := c.was.was(dot(dir), name)
	if !present {
		if known && existed {
			return nil, "deleted on the host during the run", nil
		}
		return nil, "", nil
	}
	rel := join(dir, name)
	st, err := c.t.lstat(rel)
	if err != nil {
		if isAbsent(err) {
			return nil, "deleted on the host during the run", nil
		}
		return nil, "", err
	}
	fp := fingerprintOf(&st)
	if fp.Type == Symlink {
		target, err := c.t.readlink(rel)
		if err != nil {
			return nil, "", err
		}
		fp.Target = Bytes(target)
	}
	return fp, c.moved(fp, ent, was, existed, known), nil
}

func (c *classifier) moved(fp *Fingerprint, ent, was dirent, existed, known bool) string {
	switch {
	case known && !existed:
		return "created on the host during the run"
	case known && was.typ != "" && was.typ != fp.Type:
		return "replaced on the host during the run"
	case known && was.ino != ent.ino && usualIno(was.ino) && usualIno(ent.ino):
		return "replaced on the host during the run"
	case fp.Type != Dir && fp.Ctime >= c.threshold:
		return "changed on the host during the run"
	}
	return ""
}

// usualIno reports whether i is a real inode number and not one of those that
// some file systems return for an unknown one.
func usualIno(i uint64) bool { return i != 0 && i != 0xffffffff && i != ^uint64(0) }

// deletion emits the deletion of a host file, or of a directory with its
// contents.
func (c *classifier) deletion(dir, name string, ent dirent) error {
	base, moved, err := c.base(dir, name, ent, true)
	rel := join(dir, name)
	ch := Change{Path: Bytes(rel), Kind: Delete, Base: base, BaseMoved: moved}
	switch {
	case err != nil:
		ch.Type, ch.Unlandable = ent.typ, unreachable(err)
		return c.emit(ch)
	case base == nil:
		c.set.Dropped++ // just deleted on the host too
		return nil
	}
	ch.Type = base.Type
	if !base.Type.landable() {
		ch.Unlandable = fmt.Sprintf("a %s of the host is never removed", base.Type)
	}
	at := len(c.set.Changes)
	if err := c.emit(ch); err != nil {
		return err
	}
	if base.Type == Dir {
		return c.deletions(rel, at)
	}
	return nil
}

// deletions emits the deletion of everything in the host's directory rel. at
// is the index of the change that removes the directory: it becomes a conflict
// if the host added files there.
func (c *classifier) deletions(rel string, at int) error {
	var ents []dirent
	err := c.t.list(rel, c.buf, func(e dirent) error { ents = append(ents, e); return nil })
	if err != nil {
		c.set.Changes[at].Unlandable = unreachable(err)
		return nil
	}
	slices.SortFunc(ents, func(a, b dirent) int { return strings.Compare(a.name, b.name) })
	for _, e := range ents {
		if strings.Count(rel, "/")+2 > maxDepth || len(rel)+1+len(e.name) > maxPath {
			c.set.Changes[at].Unlandable = "it holds paths that are too long or deep"
			continue
		}
		if _, existed, known := c.was.was(rel, e.name); known && !existed {
			c.set.Changes[at].BaseMoved = "the host added " + show(path.Join(rel, e.name)) + " during the run"
			continue
		}
		if err := c.deletion(rel, e.name, e); err != nil {
			return err
		}
	}
	return nil
}
