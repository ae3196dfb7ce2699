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

// Workspace is the path of the tree in every phase's bottle.
const Workspace = "/workspace"

// maxObserved bounds each set of observations; beyond it the account is incomplete.
const maxObserved = 200_000

// Exec is a program that the kernel inside executed.
type Exec struct {
	Path   string `json:"path"`
	Digest string `json:"digest,omitempty"` // SHA-256 of the file, in hexadecimal digits
	// Asked is the name that was asked for, if it differs: of a link or a script.
	Asked string `json:"asked,omitempty"`
	// Mutable: the workload could write to the file. Nameless: the file was deleted, or
	// never had a name, as with memfd_create.
	Mutable  bool   `json:"mutable,omitempty"`
	Nameless bool   `json:"nameless,omitempty"`
	Shell    bool   `json:"shell,omitempty"`
	Count    uint64 `json:"count"`
}

// Endpoint is an address that a program used.
type Endpoint struct {
	What    string `json:"what"` // connect, send, bind, listen, accept
	Address string `json:"address"`
	Errno   string `json:"errno,omitempty"` // empty: it succeeded
	Count   uint64 `json:"count"`
}

// Right is a privileged operation that was asked for.
type Right struct {
	What   string  `json:"what"`
	Detail string  `json:"detail,omitempty"`
	Errno  string  `json:"errno,omitempty"` // empty: it was granted
	EUID   *uint32 `json:"euid,omitempty"`  // after it, where the kernel says so
	Count  uint64  `json:"count"`
}

// Socket is a kind of socket that was created, or asked for.
type Socket struct {
	Family string `json:"family"`
	Type   string `json:"type"`
	Errno  string `json:"errno,omitempty"`
	Count  uint64 `json:"count"`
}

// Observed holds the facts of the kernel inside about a phase. Paths in the tree are
// relative to it, others absolute.
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
	// Handled lists files whose content may count though nobody opened them by these
	// names: they were renamed, linked, or failed to execute. For directories, everything
	// below counts.
	Handled []string `json:"handled,omitempty"`
	// Libraries lists files that were mapped to be executed, with absolute paths, also in
	// the tree.
	Libraries []string `json:"libraries,omitempty"`
	Certs     []string `json:"certificates,omitempty"`
	// Readers records which programs looked at which files of the tree, for phases with a
	// cache; nil: not recorded, or too much.
	Readers   *Readers `json:"readers,omitempty"`
	Processes uint64   `json:"processes"`
	Facts     uint64   `json:"facts"`
	Claimed   uint64   `json:"claimed"` // facts of which the workload could have changed the bytes
	// Lost counts facts that were dropped, not stored or damaged. Gaps says why the
	// account is incomplete; empty: it is complete.
	Lost uint64   `json:"lost"`
	Gaps []string `json:"gaps,omitempty"`
}

// whole reports whether the account is complete.
func (o *Observed) whole() bool { return o != nil && o.Lost == 0 && len(o.Gaps) == 0 }

// FactReader reads the facts of a trace; *trace.Reader implements it.
type FactReader interface {
	Next(*trace.Fact) error
	Tail() trace.Tail
}

// Observe reads all facts of a phase. Damage is recorded in the result.
func Observe(r FactReader) (*Observed, error) { return observe(r, nil) }

// ObserveReaders is Observe that also records Readers.
func ObserveReaders(r FactReader) (*Observed, error) {
	return observe(r, &readTracker{current: map[uint32]*processReads{}, paths: map[string]int{}})
}

func observe(r FactReader, by *readTracker) (*Observed, error) {
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
	by                                                     *readTracker // nil: not asked for
}

func (b *observer) gap(why string) {
	if len(b.o.Gaps) < 10 {
		b.o.Gaps = append(b.o.Gaps, truncate(why, 300))
	}
}

func (b *observer) addTo(m map[string]bool, p string) {
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

// inTree returns p relative to the tree, and whether it lies in it.
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
		b.addRead(f)
	case trace.Write, trace.Truncate, trace.Unlink, trace.Rmdir, trace.Mkdir, trace.Mknod, trace.Symlink, trace.Chmod:
		b.write(f, f.Path)
	case trace.Rename, trace.Link:
		b.write(f, f.Path)
		b.write(f, f.Path2)
		if f.Errno == 0 {
			b.addHandled(f.Path)
			b.addHandled(f.Path2)
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
		count(b, b.rights, Right{What: f.Op.String(), Detail: truncate(f.Path, 300), Errno: errno})
	}
}

func (b *observer) exec(f *trace.Fact) {
	if f.Errno != 0 {
		b.addTo(b.failed, f.Path)
		b.addHandled(f.Path)
		if f.Flags&trace.Miss != 0 || trace.ErrnoName(f.Errno) == "ENOENT" {
			b.addRead(f)
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
			b.addTo(b.tree, rel)
		} else if strings.HasPrefix(p, "/") {
			b.addTo(b.opened, p)
		}
	}
}

// load records a file that was mapped to be executed: a library, by whatever name.
func (b *observer) load(f *trace.Fact) {
	if f.Errno != 0 {
		return
	}
	b.addRead(f)
	p := f.Path
	if f.Flags&trace.Deleted != 0 {
		p = namelessPrefix + p
	}
	b.addTo(b.libs, p)
}

func (b *observer) addHandled(p string) {
	if rel, ok := inTree(p); ok {
		b.addTo(b.handled, rel)
	} else if strings.HasPrefix(p, "/") {
		b.addTo(b.handled, p)
	}
}

// namelessPrefix marks the path of a file without a name.
const namelessPrefix = "(nameless) "

// addRead records a path that was read, or looked for. A missing name is an input, too.
func (b *observer) addRead(f *trace.Fact) {
	rel, tree := inTree(f.Path)
	switch {
	case !strings.HasPrefix(f.Path, "/"), f.Flags&trace.Deleted != 0:
	case tree && f.Errno == 0 && (f.Op == trace.Open || f.Op == trace.Exec || f.Op == trace.Load):
		b.addTo(b.tree, rel)
	case tree: // its name, size or mode: the tree's listing holds these
	case f.Errno != 0:
		b.addTo(b.missed, f.Path)
	case f.Op == trace.List:
		b.addTo(b.listed, f.Path)
	default:
		b.addTo(b.opened, f.Path)
	}
}

func (b *observer) write(f *trace.Fact, p string) {
	if f.Errno != 0 || !strings.HasPrefix(p, "/") || f.Flags&trace.Special != 0 {
		return
	}
	if rel, ok := inTree(p); ok {
		b.addTo(b.treeWrote, rel)
	} else {
		b.addTo(b.wrote, p)
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
	// A shell under another name has the digest of one that ran under its own.
	known := map[string]bool{}
	for _, x := range o.Execs {
		if x.Shell && x.Digest != "" {
			known[x.Digest] = true
		}
	}
	for i := range o.Execs {
		o.Execs[i].Shell = o.Execs[i].Shell || known[o.Execs[i].Digest]
	}
	slices.SortStableFunc(o.Execs, func(a, c Exec) int {
		return strings.Compare(a.Path+"\x00"+a.Digest+a.Asked, c.Path+"\x00"+c.Digest+c.Asked)
	})
	for x, n := range b.ends {
		x.Count = n
		o.Endpoints = append(o.Endpoints, x)
	}
	slices.SortStableFunc(o.Endpoints, func(a, c Endpoint) int { return strings.Compare(a.What+a.Address+a.Errno, c.What+c.Address+c.Errno) })
	for x, n := range b.socks {
		x.Count = n
		o.Sockets = append(o.Sockets, x)
	}
	slices.SortStableFunc(o.Sockets, func(a, c Socket) int { return strings.Compare(a.Family+a.Type+a.Errno, c.Family+c.Type+c.Errno) })
	for x, n := range b.rights {
		x.Count = n
		o.Rights = append(o.Rights, x)
	}
	slices.SortStableFunc(o.Rights, func(a, c Right) int { return strings.Compare(a.What+a.Detail+a.Errno, c.What+c.Detail+c.Errno) })
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
