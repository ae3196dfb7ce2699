package gvisor

import (
	"reflect"
	"sync"
	"unsafe"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/atomicbitops"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	gvsync "gvisor.dev/gvisor/pkg/sync"
)

// A file of the host has its host inode number inside. gVisor would number
// files in the order in which it meets them, differently in each bottle. git
// compares the number with the one that it noted on the host: it would take
// every file for changed, and read and hash the whole workspace before its
// first status.
//
// Files on two host devices may have equal numbers, so each device gets a
// device number of its own inside, which reveals nothing about the host's.

// inodes gives dentries of the root overlay their files' host inode numbers. It
// is safe for concurrent use.
type inodes struct {
	mu     sync.Mutex
	minors map[[2]uint32]uint32 // by the host's device
	tried  bool
	known  *inodeLayout
}

// inodeLayout holds the offsets of unexported fields in gVisor's file systems.
type inodeLayout struct {
	overlay, gofer reflect.Type // pointers to their dentries

	// Offsets in the overlay's dentry.
	copyMu, copiedUp, lowerVDs, mode, ino, devMajor, devMinor uintptr
	// Offsets in the gofer's dentry, in its inode and in the inode's key.
	inode, keyIno, keyMajor, keyMinor uintptr
}

// learn checks the types of upper and lower against the expected layout, and
// records the offsets.
func (l *inodeLayout) learn(upper, lower vfs.DentryImpl) (ok bool) {
	ok = true
	field := func(t reflect.Type, name string, want reflect.Type) (at uintptr, is reflect.Type) {
		if t == nil || t.Kind() != reflect.Struct {
			ok = false
			return 0, nil
		}
		f, found := t.FieldByName(name)
		ok = ok && found && (want == nil || f.Type == want)
		return f.Offset, f.Type
	}
	dentry := func(d vfs.DentryImpl, pkg string) (pointer, to reflect.Type) {
		t := reflect.TypeOf(d)
		if t.Kind() != reflect.Pointer || t.Elem().PkgPath() != "gvisor.dev/gvisor/pkg/sentry/fsimpl/"+pkg {
			ok = false
			return nil, nil
		}
		return t, t.Elem()
	}
	var t reflect.Type
	u32, u64 := reflect.TypeFor[atomicbitops.Uint32](), reflect.TypeFor[atomicbitops.Uint64]()

	l.overlay, t = dentry(upper, "overlay")
	l.copyMu, _ = field(t, "copyMu", reflect.TypeFor[gvsync.RWMutex]())
	l.copiedUp, _ = field(t, "copiedUp", u32)
	l.lowerVDs, _ = field(t, "lowerVDs", reflect.TypeFor[[]vfs.VirtualDentry]())
	l.mode, _ = field(t, "mode", u32)
	l.ino, _ = field(t, "ino", u64)
	l.devMajor, _ = field(t, "devMajor", u32)
	l.devMinor, _ = field(t, "devMinor", u32)

	l.gofer, t = dentry(lower, "gofer")
	var inode, key reflect.Type
	l.inode, inode = field(t, "inode", nil)
	if inode == nil || inode.Kind() != reflect.Pointer {
		return false
	}
	begin, key := field(inode.Elem(), "inoKey", nil)
	l.keyIno, _ = field(key, "ino", reflect.TypeFor[uint64]())
	l.keyMajor, _ = field(key, "devMajor", reflect.TypeFor[uint32]())
	l.keyMinor, _ = field(key, "devMinor", reflect.TypeFor[uint32]())
	l.keyIno += begin
	l.keyMajor += begin
	l.keyMinor += begin
	return ok
}

func at[T any](p unsafe.Pointer, offset uintptr) *T { return (*T)(unsafe.Add(p, offset)) }

func dentryAt(d vfs.DentryImpl) unsafe.Pointer { return reflect.ValueOf(d).UnsafePointer() }

// renumber gives d, on which the caller holds a reference, the host's number,
// if d is a host file and no directory. Directories of layers are merged and
// have the overlay's number. If the layout is unexpected, renumber does
// nothing.
func (n *inodes) renumber(v *vfs.VirtualFilesystem, d *vfs.Dentry) {
	l := n.layout(d.Impl())
	if l == nil || reflect.TypeOf(d.Impl()) != l.overlay {
		return
	}
	over := dentryAt(d.Impl())
	// A copy in the upper layer gets its number there.
	mu := at[gvsync.RWMutex](over, l.copyMu)
	mu.RLock()
	defer mu.RUnlock()
	lowers := *at[[]vfs.VirtualDentry](over, l.lowerVDs)
	if at[atomicbitops.Uint32](over, l.copiedUp).Load() != 0 || len(lowers) == 0 ||
		at[atomicbitops.Uint32](over, l.mode).Load()&linux.S_IFMT == linux.S_IFDIR {
		return
	}
	lower := lowers[0].Dentry().Impl()
	if reflect.TypeOf(lower) != l.gofer {
		return
	}
	inode := *at[unsafe.Pointer](dentryAt(lower), l.inode)
	ino := *at[uint64](inode, l.keyIno)
	minor, ok := n.minor(v, *at[uint32](inode, l.keyMajor), *at[uint32](inode, l.keyMinor))
	if ino == 0 || !ok {
		return
	}
	at[atomicbitops.Uint32](over, l.devMajor).Store(linux.UNNAMED_MAJOR)
	at[atomicbitops.Uint32](over, l.devMinor).Store(minor)
	at[atomicbitops.Uint64](over, l.ino).Store(ino)
}

// minor returns the inside number of a host device.
func (n *inodes) minor(v *vfs.VirtualFilesystem, major, minor uint32) (inside uint32, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	host := [2]uint32{major, minor}
	if inside, ok = n.minors[host]; ok {
		return inside, true
	}
	inside, err := v.GetAnonBlockDevMinor()
	if err != nil {
		return 0, false
	}
	n.minors[host] = inside
	return inside, true
}

// layout returns the layout, found from the first dentry with a lower layer;
// nil: unknown.
func (n *inodes) layout(d vfs.DentryImpl) *inodeLayout {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tried {
		return n.known
	}
	t := reflect.TypeOf(d)
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		n.tried = true
		return nil
	}
	f, found := t.Elem().FieldByName("lowerVDs")
	if !found || f.Type != reflect.TypeFor[[]vfs.VirtualDentry]() {
		n.tried = true
		return nil
	}
	// Constant after the lookup.
	if lowers := *at[[]vfs.VirtualDentry](dentryAt(d), f.Offset); len(lowers) > 0 {
		n.tried, n.minors = true, map[[2]uint32]uint32{}
		var l inodeLayout
		if l.learn(d, lowers[0].Dentry().Impl()) {
			n.known = &l
		}
	}
	return n.known
}
