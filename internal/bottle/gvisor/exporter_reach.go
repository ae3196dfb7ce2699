package gvisor

import (
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"gvisor.dev/gvisor/pkg/sentry/fsutil"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/sync"
)

// gVisor does not export two facts that the exporter needs: the upper layer of
// an overlay, and which parts of a tmpfs file hold data. They are reached by
// reflection. Every step checks the type that it finds, so a changed gVisor
// causes an error, never a wrong export.

var errShape = errors.New("the embedded kernel's structures are not the expected ones")

// field finds name below v, through pointers and interfaces.
func field(v reflect.Value, name string) (reflect.Value, error) {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return reflect.Value{}, fmt.Errorf("%w: %s of %s", errShape, name, v.Kind())
	}
	f := v.FieldByName(name)
	if !f.IsValid() {
		return reflect.Value{}, fmt.Errorf("%w: %s has no %s", errShape, v.Type(), name)
	}
	return f, nil
}

// reach returns a pointer to the T at the end of path.
func reach[T any](from any, path ...string) (*T, error) {
	v := reflect.ValueOf(from)
	for _, name := range path {
		var err error
		if v, err = field(v, name); err != nil {
			return nil, err
		}
	}
	if v.Type() != reflect.TypeFor[T]() || !v.CanAddr() {
		return nil, fmt.Errorf("%w: %v is of type %s", errShape, path, v.Type())
	}
	return (*T)(unsafe.Pointer(v.UnsafeAddr())), nil
}

// upperRoot returns the root of the layer that holds the bottle's writes. The
// references belong to the caller.
func upperRoot(k *kernel.Kernel) (vfs.VirtualDentry, error) {
	ctx := k.SupervisorContext()
	init := k.GlobalInit()
	if init == nil || init.Leader() == nil {
		return vfs.VirtualDentry{}, errors.New("init is gone")
	}
	ns := init.Leader().MountNamespace()
	if ns == nil || !ns.TryIncRef() {
		return vfs.VirtualDentry{}, errors.New("the mount namespace is gone")
	}
	defer ns.DecRef(ctx)
	root := ns.Root(ctx)
	defer root.DecRef(ctx)
	// Immutable after the overlay has been made.
	up, err := reach[vfs.VirtualDentry](root.Mount().Filesystem().Impl(), "opts", "UpperRoot")
	if err != nil {
		return vfs.VirtualDentry{}, err
	}
	if !up.Ok() {
		return vfs.VirtualDentry{}, errors.New("the root is not writable")
	}
	vd := *up
	vd.IncRef()
	return vd, nil
}

// extents lists where an open tmpfs file of size bytes holds data, at most max
// of them; small holes are counted as data until the list is short enough.
func extents(fd *vfs.FileDescription, size int64, max int) ([]extent, error) {
	mu, err := reach[sync.RWMutex](fd.Dentry().Impl(), "inode", "impl", "dataMu")
	if err != nil {
		return nil, err
	}
	data, err := reach[fsutil.FileRangeSet](fd.Dentry().Impl(), "inode", "impl", "data")
	if err != nil {
		return nil, err
	}
	mu.RLock()
	defer mu.RUnlock()
	for hole := int64(1); ; hole *= 4 {
		if out, ok := collectExtents(data, size, hole, max); ok {
			return out, nil
		}
	}
}

func collectExtents(data *fsutil.FileRangeSet, size, hole int64, max int) ([]extent, bool) {
	var out []extent
	for s := data.FirstSegment(); s.Ok(); s = s.NextSegment() {
		from, to := int64(s.Start()), min(int64(s.End()), size)
		if from >= to {
			break
		}
		if n := len(out); n > 0 && from-(out[n-1].off+out[n-1].len) < hole {
			out[n-1].len = to - out[n-1].off
			continue
		}
		if len(out) == max {
			return nil, false
		}
		out = append(out, extent{from, to - from})
	}
	return out, true
}
