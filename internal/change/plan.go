package change

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// opKind is how an op changes its path.
type opKind string

const (
	opPut    opKind = "put"    // a new file, where none was
	opSwap   opKind = "swap"   // the old file is exchanged for a new one
	opRemove opKind = "remove" // the old file is removed
	opChmod  opKind = "chmod"
)

// node is one file that an op makes. The nodes of a tree follow their
// directory.
type node struct {
	Rel    Bytes             `json:"rel"` // below the op's path, "" is the path itself
	Type   Type              `json:"type"`
	Mode   uint32            `json:"mode"`
	Size   int64             `json:"size,omitempty"`
	SHA256 string            `json:"sha256,omitempty"`
	Target Bytes             `json:"target,omitempty"`
	Offset int64             `json:"offset,omitempty"` // in the pack
	Pre    int               `json:"pre,omitempty"`    // or number of the pre-image with the content
	PreOf  string            `json:"pre_of,omitempty"` // landing that saved the pre-image
	Own    *owner            `json:"own,omitempty"`    // owner and times to restore
	Xattrs map[string][]byte `json:"xattrs,omitempty"`

	file string // a file of carboy's own that holds the content; not needed after staging
}

type owner struct {
	UID   uint32 `json:"uid"`
	GID   uint32 `json:"gid"`
	Mtime int64  `json:"mtime"`
}

// oldNode is one file that an op replaces or removes.
type oldNode struct {
	Rel    Bytes             `json:"rel"`
	FP     Fingerprint       `json:"fp"`
	Pre    int               `json:"pre,omitempty"` // number of the pre-image, from 1
	Xattrs map[string][]byte `json:"xattrs,omitempty"`
}

// op changes one name of the workspace by one atomic rename, or a chmod.
type op struct {
	Kind opKind    `json:"kind"`
	Path Bytes     `json:"path"`
	Tmp  string    `json:"tmp,omitempty"` // private name beside Path
	Dir  uint64    `json:"dir,omitempty"` // inode of the directory that holds both
	Old  []oldNode `json:"old,omitempty"`
	New  []node    `json:"new,omitempty"`
	Mode uint32    `json:"mode,omitempty"` // for opChmod: the new mode
	// Git says that the files are git's and were made on the host: a pack, which stays
	// once it is in place; the index, which an undo makes anew; or a new repository.
	Git bool `json:"git,omitempty"`
}

// planner turns selected changes into ops and finds conflicts.
type planner struct {
	ctx       context.Context
	t         tree
	ops       []op
	cur       int // index of the op whose tree may contain the next change; -1 if none
	already   []string
	conflicts []Conflict
}

func (p *planner) conflict(c *Change, rel, why string, host *Fingerprint) {
	p.conflicts = append(p.conflicts, Conflict{Path: rel, Why: why, Host: host, Bottle: c})
}

func (p *planner) plan(sel *selection) error {
	p.cur = -1
	for i := range sel.s.Changes {
		if !sel.take[i] {
			continue
		}
		if err := p.ctx.Err(); err != nil {
			return err
		}
		if err := p.change(&sel.s.Changes[i]); err != nil {
			return err
		}
	}
	for i := range p.ops {
		if err := p.verifyOld(&p.ops[i]); err != nil {
			return err
		}
	}
	return nil
}

// inside adds the change to the current op if it belongs to the tree that the
// op makes or removes. It reports whether it does.
func (p *planner) inside(c *Change) bool {
	if p.cur < 0 {
		return false
	}
	o := &p.ops[p.cur]
	rel, ok := strings.CutPrefix(string(c.Path), string(o.Path)+"/")
	if !ok {
		return false
	}
	if c.BaseMoved != "" {
		st, err := p.t.lstat(string(c.Path))
		if err == nil {
			p.conflict(c, string(c.Path), c.BaseMoved, fingerprintOf(&st))
		} else if c.Kind != Delete {
			p.conflict(c, string(c.Path), c.BaseMoved, nil)
		}
	}
	if c.Kind == Delete {
		if o.Kind == opPut || c.Base == nil {
			return true // the host has no such file
		}
		o.Old = append(o.Old, oldNode{Rel: Bytes(rel), FP: *c.Base})
		return true
	}
	if o.Kind == opRemove {
		return false
	}
	o.New = append(o.New, nodeOf(c, rel))
	return true
}

func nodeOf(c *Change, rel string) node {
	return node{Rel: Bytes(rel), Type: c.Type, Mode: landMode(c), Size: c.Size, SHA256: c.SHA256, Target: c.Target, Offset: c.Offset}
}

// landMode returns the mode bits to set on the host. Directories inherit their
// set-id bits from their parent; the sticky bit of files has no meaning.
func landMode(c *Change) uint32 {
	switch c.Type {
	case Dir:
		return c.Mode & 0o1777
	case File:
		return c.Mode & 0o6777
	}
	return 0o777
}

func (p *planner) change(c *Change) error {
	if p.inside(c) {
		return nil
	}
	p.cur = -1
	rel := string(c.Path)
	st, err := p.t.lstat(rel)
	if err != nil && !isAbsent(err) {
		if errors.Is(err, unix.ELOOP) {
			p.conflict(c, rel, "its directory is a symbolic link now", nil)
			return nil
		}
		return wrapPath("look at", rel, err)
	}
	var now *Fingerprint
	if err == nil {
		now = fingerprintOf(&st)
		if now.Type == Symlink {
			target, err := p.t.readlink(rel)
			if err != nil {
				return wrapPath("look at", rel, err)
			}
			now.Target = Bytes(target)
		}
	}
	done, err := p.isDone(c, rel, now)
	if err != nil {
		return err
	}
	if done {
		p.already = append(p.already, rel)
		return nil
	}
	if why, err := p.differs(c, rel, now); err != nil || why != "" {
		p.conflict(c, rel, why, now)
		return err
	}
	p.add(c, rel, now)
	return nil
}

// isDone reports whether the host already has the change.
func (p *planner) isDone(c *Change, rel string, now *Fingerprint) (bool, error) {
	switch {
	case c.Kind == Delete:
		return now == nil, nil
	case now == nil || now.Type != c.Type:
		return false, nil
	case c.Type == Dir:
		// A directory that somebody made meanwhile will do; its children are
		// checked one by one.
		return c.Kind != Mode || now.Mode&0o1777 == landMode(c), nil
	case c.Type == Symlink:
		return now.Target == c.Target, nil
	}
	if now.Mode&0o6777 != landMode(c) || now.Size != c.Size {
		return false, nil
	}
	sum, err := p.hash(rel)
	return sum == c.SHA256, err
}

func (p *planner) hash(rel string) (string, error) {
	f, st, err := p.t.openFile(rel)
	if err != nil {
		return "", wrapPath("read", rel, err)
	}
	defer f.Close()
	sum, err := hashFile(p.ctx, f, st.Size)
	return sum, wrapPath("read", rel, err)
}

// differs returns how the host changed since the bottle started, "" if it did
// not.
func (p *planner) differs(c *Change, rel string, now *Fingerprint) (string, error) {
	switch {
	case c.BaseMoved != "":
		return c.BaseMoved, nil
	case c.Base == nil && now != nil:
		return "created on the host since", nil
	case c.Base != nil && now == nil:
		return "deleted on the host since", nil
	case c.Base == nil:
		return "", nil
	}
	same, err := p.sameAs(c.Base, rel, now)
	if err != nil || same {
		return "", err
	}
	return "changed on the host since", nil
}

func (p *planner) sameAs(base *Fingerprint, rel string, now *Fingerprint) (bool, error) {
	if base.Type != now.Type || base.Mode != now.Mode && base.Type != Symlink {
		return false, nil
	}
	switch base.Type {
	case Dir:
		return true, nil
	case Symlink:
		return base.Target == now.Target, nil
	}
	if base.Size != now.Size {
		return false, nil
	}
	if base.Ino == now.Ino && base.Mtime == now.Mtime && base.Ctime == now.Ctime {
		return true, nil
	}
	// A new hard link or a backup changes the ctime only. An undo changes the
	// inode but restores the mtime.
	if base.SHA256 == "" {
		return base.Mtime == now.Mtime, nil
	}
	return p.hashIs(rel, base.SHA256), nil
}

func (p *planner) hashIs(rel, want string) bool {
	sum, err := p.hash(rel)
	return err == nil && sum == want
}

func (p *planner) add(c *Change, rel string, now *Fingerprint) {
	o := op{Path: Bytes(rel)}
	if now != nil {
		o.Old = []oldNode{{FP: *now}}
	}
	switch {
	case c.Kind == Mode:
		o.Kind, o.Mode = opChmod, landMode(c)
		if c.Type == Dir {
			o.Mode |= now.Mode & 0o6000
		}
	case c.Kind == Delete:
		o.Kind = opRemove
	case now == nil:
		o.Kind, o.New = opPut, []node{nodeOf(c, "")}
	default:
		o.Kind, o.New = opSwap, []node{nodeOf(c, "")}
	}
	p.ops = append(p.ops, o)
	if o.Kind != opChmod && (c.Type == Dir || now != nil && now.Type == Dir) {
		p.cur = len(p.ops) - 1
	}
}

// verifyOld compares the tree that an op removes with the host's. An unexpected
// or changed file is a conflict; a missing file is dropped from the op.
func (p *planner) verifyOld(o *op) error {
	if len(o.Old) == 0 || o.Old[0].FP.Type != Dir || o.Kind == opChmod {
		return nil
	}
	want := make(map[string]int, len(o.Old))
	for i := range o.Old {
		want[string(o.Old[i].Rel)] = i
	}
	real := []oldNode{o.Old[0]}
	err := walkTree(p.ctx, p.t, string(o.Path), "", func(rel string, now *Fingerprint) error {
		full := path.Join(string(o.Path), rel)
		i, ok := want[rel]
		if !ok {
			p.conflict(nil, full, "created on the host since", now)
			return nil
		}
		same, err := p.sameAs(&o.Old[i].FP, full, now)
		if err != nil {
			return err
		}
		if !same {
			p.conflict(nil, full, "changed on the host since", now)
		}
		real = append(real, oldNode{Rel: Bytes(rel), FP: *now})
		return nil
	})
	o.Old = real
	return err
}

// walkTree calls fn for everything below the directory base/rel, sorted by
// name, directories before their contents.
func walkTree(ctx context.Context, t tree, base, rel string, fn func(rel string, fp *Fingerprint) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	names, err := t.sorted(path.Join(base, rel))
	if err != nil {
		return wrapPath("list", path.Join(base, rel), err)
	}
	for _, name := range names {
		sub := join(rel, name)
		full := path.Join(base, sub)
		st, err := t.lstat(full)
		if isAbsent(err) {
			continue
		}
		if err != nil {
			return wrapPath("look at", full, err)
		}
		fp := fingerprintOf(&st)
		if fp.Type == Symlink {
			target, err := t.readlink(full)
			if err != nil {
				return wrapPath("look at", full, err)
			}
			fp.Target = Bytes(target)
		}
		if err := fn(sub, fp); err != nil {
			return err
		}
		if fp.Type == Dir {
			if strings.Count(sub, "/") > maxDepth {
				return fmt.Errorf("list %s: deeper than %d", show(full), maxDepth)
			}
			if err := walkTree(ctx, t, base, sub, fn); err != nil {
				return err
			}
		}
	}
	return nil
}
