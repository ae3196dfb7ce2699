package gate

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/scenario"
	"github.com/carboy/carboy/internal/trace"
)

// Workspace is where the tree that is judged stands in every phase's bottle.
const Workspace = "/workspace"

// maxObserved bounds each set of what was observed; with more, it is not whole.
const maxObserved = 200_000

// Exec is a program that ran, as the kernel inside loaded it.
type Exec struct {
	Path   string `json:"path"`
	Digest string `json:"digest,omitempty"` // SHA-256 of the file, in hexadecimal digits
	// Asked is the name that was asked for, where it differs: of a link or a script.
	Asked string `json:"asked,omitempty"`
	// Mutable: the workload could write to the file. Nameless: it had no name any
	// more, or never had one, as of memfd_create.
	Mutable  bool   `json:"mutable,omitempty"`
	Nameless bool   `json:"nameless,omitempty"`
	Shell    bool   `json:"shell,omitempty"`
	Count    uint64 `json:"count"`
}

// Endpoint is an address that a program turned to.
type Endpoint struct {
	What    string `json:"what"` // connect, send, bind, listen, accept
	Address string `json:"address"`
	Errno   string `json:"errno,omitempty"` // empty: it succeeded
	Count   uint64 `json:"count"`
}

// Right is a right that was asked for.
type Right struct {
	What   string  `json:"what"`
	Detail string  `json:"detail,omitempty"`
	Errno  string  `json:"errno,omitempty"` // empty: it was granted
	EUID   *uint32 `json:"euid,omitempty"`  // after it, where the kernel says so
	Count  uint64  `json:"count"`
}

// Socket is a kind of socket that was made, or asked for.
type Socket struct {
	Family string `json:"family"`
	Type   string `json:"type"`
	Errno  string `json:"errno,omitempty"`
	Count  uint64 `json:"count"`
}

// Observed is what the kernel inside saw of a phase. Paths outside of the tree are
// absolute, those in it relative.
type Observed struct {
	Execs     []Exec     `json:"execs"`
	Failed    []string   `json:"failed_execs,omitempty"`
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	Sockets   []Socket   `json:"sockets,omitempty"`
	Rights    []Right    `json:"rights,omitempty"`
	Opened    []string   `json:"opened"`    // outside of the tree: opened, looked at or loaded
	Missed    []string   `json:"missed"`    // outside of the tree: looked for in vain
	Listed    []string   `json:"listed"`    // directories outside of the tree
	TreeRead  []string   `json:"tree_read"` // of the tree: opened or loaded
	Written   []string   `json:"written"`   // outside of the tree
	TreeWrote []string   `json:"tree_written"`
	// Handled are files whose content may have counted though nobody opened them by these
	// names: they were given another one, or could not be executed. Of directories, all
	// below counts.
	Handled []string `json:"handled,omitempty"`
	// Libraries are files that were mapped to be executed, as the kernel inside loaded
	// them; those in the tree have their whole path.
	Libraries []string `json:"libraries,omitempty"`
	Certs     []string `json:"certificates,omitempty"`
	// Readers are the programs that looked at the tree, and at what of it, for phases
	// with a cache; nil: it was not asked for, or is too much.
	Readers   *Readers `json:"readers,omitempty"`
	Processes uint64   `json:"processes"`
	Facts     uint64   `json:"facts"`
	Claimed   uint64   `json:"claimed"` // facts of which the workload could have changed the bytes
	// Lost facts are those that were dropped, not kept or damaged, and why the
	// account is not whole; empty when it is.
	Lost uint64   `json:"lost"`
	Gaps []string `json:"gaps,omitempty"`
}

// Whole reports whether nothing is missing.
func (o *Observed) Whole() bool { return o != nil && o.Lost == 0 && len(o.Gaps) == 0 }

// FactReader is where facts come from; *trace.Reader is one.
type FactReader interface {
	Next(*trace.Fact) error
	Tail() trace.Tail
}

// Observe reads all facts of a phase. What can't be read is said in the result.
func Observe(r FactReader) (*Observed, error) { return observe(r, nil) }

// ObserveReaders is Observe, with Readers.
func ObserveReaders(r FactReader) (*Observed, error) {
	return observe(r, &readers{now: map[uint32]*reading{}, paths: map[string]int{}})
}

func observe(r FactReader, by *readers) (*Observed, error) {
	b := &observer{by: by,
		execs: map[Exec]uint64{}, ends: map[Endpoint]uint64{}, socks: map[Socket]uint64{}, rights: map[Right]uint64{},
		opened: map[string]bool{}, missed: map[string]bool{}, listed: map[string]bool{}, tree: map[string]bool{},
		wrote: map[string]bool{}, treeWrote: map[string]bool{}, failed: map[string]bool{}, libs: map[string]bool{}, handled: map[string]bool{}, o: &Observed{},
	}
	for {
		var f trace.Fact
		err := r.Next(&f)
		var damage *trace.DamageError
		switch {
		case errors.As(err, &damage):
			b.o.Lost++
			b.gap(damage.Error())
			continue
		case err == io.EOF:
			return b.end(r.Tail()), nil
		case err != nil:
			return nil, fmt.Errorf("read the trace: %w", err)
		}
		b.add(&f)
	}
}

type observer struct {
	o                                                      *Observed
	execs                                                  map[Exec]uint64
	ends                                                   map[Endpoint]uint64
	socks                                                  map[Socket]uint64
	rights                                                 map[Right]uint64
	opened, missed, listed, tree, wrote, treeWrote, failed map[string]bool
	libs, handled                                          map[string]bool
	full                                                   bool
	by                                                     *readers // nil: not asked for
}

func (b *observer) gap(why string) {
	if len(b.o.Gaps) < 10 {
		b.o.Gaps = append(b.o.Gaps, cut(why, 300))
	}
}

func (b *observer) mark(m map[string]bool, p string) {
	if len(m) >= maxObserved && !m[p] {
		b.full = true
		return
	}
	m[p] = true
}

func count[K comparable](b *observer, m map[K]uint64, k K) {
	if _, ok := m[k]; !ok && len(m) >= maxObserved/10 {
		b.full = true
		return
	}
	m[k]++
}

// inTree is p relative to the tree.
func inTree(p string) (string, bool) {
	if p == Workspace {
		return ".", true
	}
	return strings.CutPrefix(p, Workspace+"/")
}

func (b *observer) add(f *trace.Fact) {
	b.o.Facts++
	b.by.add(f)
	if !f.Observed() {
		b.o.Claimed++
	}
	errno := trace.ErrnoName(f.Errno)
	switch f.Op {
	case trace.Exec:
		b.exec(f)
	case trace.Fork:
		b.o.Processes++
	case trace.Open, trace.Stat, trace.Access, trace.Readlink, trace.Chdir, trace.List:
		b.look(f)
	case trace.Write, trace.Truncate, trace.Unlink, trace.Rmdir, trace.Mkdir, trace.Mknod, trace.Symlink, trace.Chmod:
		b.write(f, f.Path)
	case trace.Rename, trace.Link:
		b.write(f, f.Path)
		b.write(f, f.Path2)
		if f.Errno == 0 {
			b.handle(f.Path)
			b.handle(f.Path2)
		}
	case trace.Load:
		b.load(f)
	case trace.Connect, trace.Bind, trace.Listen, trace.Accept, trace.Send:
		if f.Path == "none" {
			break // the end of an earlier connect
		}
		count(b, b.ends, Endpoint{What: f.Op.String(), Address: f.Path, Errno: errno})
	case trace.Socket:
		count(b, b.socks, Socket{Family: trace.FamilyName(f.A), Type: trace.SocketTypeName(f.B), Errno: errno})
	}
	switch {
	case f.Op == trace.SetID:
		// The ids after it: a set-user-id program that gained nothing says so here.
		count(b, b.rights, Right{What: "setid", Detail: fmt.Sprintf("uid %d, euid %d", f.UID, f.EUID), Errno: errno})
	case f.Op.Kind() == trace.KindPriv, f.Op == trace.Ptrace:
		count(b, b.rights, Right{What: f.Op.String(), Detail: cut(f.Path, 300), Errno: errno})
	}
}

func (b *observer) exec(f *trace.Fact) {
	if f.Errno != 0 {
		b.mark(b.failed, f.Path)
		b.handle(f.Path)
		if f.Flags&trace.Miss != 0 || trace.ErrnoName(f.Errno) == "ENOENT" {
			b.look(f)
		}
		return
	}
	x := Exec{Path: f.Path, Mutable: f.Flags&trace.Mutable != 0, Nameless: f.Flags&trace.Deleted != 0, Shell: scenario.IsShell(path.Base(f.Path))}
	if f.Digest != "" {
		x.Digest = hex.EncodeToString([]byte(f.Digest))
	}
	if f.Path2 != f.Path {
		x.Asked = f.Path2
	}
	count(b, b.execs, x)
	for _, p := range []string{f.Path, f.Path2} {
		if rel, ok := inTree(p); ok {
			b.mark(b.tree, rel)
		} else if strings.HasPrefix(p, "/") {
			b.mark(b.opened, p)
		}
	}
}

// load is of a file that was mapped to be executed: a library, whatever it is called
// and wherever it lies.
func (b *observer) load(f *trace.Fact) {
	if f.Errno != 0 {
		return
	}
	b.look(f)
	p := f.Path
	if f.Flags&trace.Deleted != 0 {
		p = nameless + p
	}
	b.mark(b.libs, p)
}

func (b *observer) handle(p string) {
	if rel, ok := inTree(p); ok {
		b.mark(b.handled, rel)
	} else if strings.HasPrefix(p, "/") {
		b.mark(b.handled, p)
	}
}

// nameless stands before what had no name any more, or never had one.
const nameless = "(nameless) "

// look is of what was read, or looked for. A name that is not there is an input too.
func (b *observer) look(f *trace.Fact) {
	rel, tree := inTree(f.Path)
	switch {
	case !strings.HasPrefix(f.Path, "/"), f.Flags&trace.Deleted != 0:
	case tree && f.Errno == 0 && (f.Op == trace.Open || f.Op == trace.Exec || f.Op == trace.Load):
		b.mark(b.tree, rel)
	case tree: // a name, its size or its mode: the listing has these
	case f.Errno != 0:
		b.mark(b.missed, f.Path)
	case f.Op == trace.List:
		b.mark(b.listed, f.Path)
	default:
		b.mark(b.opened, f.Path)
	}
}

func (b *observer) write(f *trace.Fact, p string) {
	if f.Errno != 0 || !strings.HasPrefix(p, "/") || f.Flags&trace.Special != 0 {
		return
	}
	if rel, ok := inTree(p); ok {
		b.mark(b.treeWrote, rel)
	} else {
		b.mark(b.wrote, p)
	}
}

func (b *observer) end(t trace.Tail) *Observed {
	o := b.o
	o.Readers = b.by.end()
	o.Lost += t.Dropped + t.Unkept.Total()
	if !t.Ended {
		b.gap("the trace has no end")
	} else if t.Reason != "" {
		b.gap("the trace ended early: " + t.Reason)
	}
	if b.full {
		b.gap(fmt.Sprintf("more than %d things of one sort were observed", maxObserved))
	}
	for x, n := range b.execs {
		x.Count = n
		o.Execs = append(o.Execs, x)
	}
	// A shell by another name has the digest of one that was seen by its own.
	known := map[string]bool{}
	for _, x := range o.Execs {
		if x.Shell && x.Digest != "" {
			known[x.Digest] = true
		}
	}
	for i := range o.Execs {
		o.Execs[i].Shell = o.Execs[i].Shell || known[o.Execs[i].Digest]
	}
	slices.SortFunc(o.Execs, func(a, c Exec) int {
		return strings.Compare(a.Path+"\x00"+a.Digest+a.Asked, c.Path+"\x00"+c.Digest+c.Asked)
	})
	for x, n := range b.ends {
		x.Count = n
		o.Endpoints = append(o.Endpoints, x)
	}
	slices.SortFunc(o.Endpoints, func(a, c Endpoint) int { return strings.Compare(a.What+a.Address+a.Errno, c.What+c.Address+c.Errno) })
	for x, n := range b.socks {
		x.Count = n
		o.Sockets = append(o.Sockets, x)
	}
	slices.SortFunc(o.Sockets, func(a, c Socket) int { return strings.Compare(a.Family+a.Type+a.Errno, c.Family+c.Type+c.Errno) })
	for x, n := range b.rights {
		x.Count = n
		o.Rights = append(o.Rights, x)
	}
	slices.SortFunc(o.Rights, func(a, c Right) int { return strings.Compare(a.What+a.Detail+a.Errno, c.What+c.Detail+c.Errno) })
	list := func(m map[string]bool) []string {
		return append([]string{}, slices.Sorted(maps.Keys(m))...)
	}
	o.Failed, o.Opened, o.Missed, o.Listed = list(b.failed), list(b.opened), list(b.missed), list(b.listed)
	o.Libraries, o.Handled = slices.Sorted(maps.Keys(b.libs)), slices.Sorted(maps.Keys(b.handled))
	o.TreeRead, o.Written, o.TreeWrote = list(b.tree), list(b.wrote), list(b.treeWrote)
	for _, p := range o.Opened {
		base := path.Base(p)
		switch {
		case strings.HasSuffix(base, ".pem"), strings.HasSuffix(base, ".crt"), strings.Contains(p, "/ssl/certs/"), strings.Contains(p, "/ca-certificates/"):
			o.Certs = append(o.Certs, p)
		}
	}
	return o
}
