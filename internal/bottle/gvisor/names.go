package gvisor

import (
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// names caches names of the root file system, as Linux's dentry cache does.
// gVisor's overlay has no cache: it forgets a file when nobody refers to it,
// and the next lookup asks every layer again, with five lookups and an
// exclusive lock. Holding a reference here avoids that. It is safe for
// concurrent use.
//
// A deleted file must not stay, or its blocks would not be freed. Code that
// removes a name calls removing; sweep finds what concurrent calls missed.
type names struct {
	inodes inodes

	mu   sync.Mutex
	at   map[*vfs.Dentry]int // index in kept
	kept []*vfs.Dentry
	max  int
	ctx  context.Context // for sweep; nil until something is kept

	removed bool // a name, since the last sweep
	swept   time.Time
}

const (
	maxNames   = 32 << 10
	sweepEvery = time.Second
)

// newNames reserves, for each of the three descriptors that a name may cost the
// sentry, three for the workload's own files (see limitDescriptors).
func newNames() names {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		r.Cur = 0
	}
	return names{at: map[*vfs.Dentry]int{}, max: int(min(r.Cur/12, maxNames))}
}

// seen caches vd if it is of the bottle's root. Call it before anything about
// the file is returned.
func (w *factWriter) seen(t *kernel.Task, vd vfs.VirtualDentry) {
	r, d := learnRoot(t), vd.Dentry()
	if r == nil || vd.Mount().Filesystem() != r.fs || w.names.has(d) {
		return
	}
	w.names.inodes.renumber(t.Kernel().VFS(), d)
	w.names.keep(t.Kernel().SupervisorContext(), d)
}

func (n *names) has(d *vfs.Dentry) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, ok := n.at[d]
	return ok
}

// keep takes a reference to d, on which the caller holds one. Later work on d
// uses ctx.
func (n *names) keep(ctx context.Context, d *vfs.Dentry) {
	n.mu.Lock()
	n.ctx = ctx
	if _, ok := n.at[d]; ok || n.max == 0 {
		n.mu.Unlock()
		return
	}
	var out *vfs.Dentry
	d.IncRef()
	i := len(n.kept)
	if i < n.max {
		n.kept = append(n.kept, d)
	} else {
		// A random one: the oldest would be the worst choice when a tree larger
		// than the cache is walked again and again.
		i = rand.IntN(i)
		out = n.kept[i]
		delete(n.at, out)
		n.kept[i] = d
	}
	n.at[d] = i
	n.mu.Unlock()
	if out != nil {
		out.DecRef(ctx)
	}
	// It may have been removed since the lookup.
	if d.IsDead() {
		n.drop(ctx, d)
	}
}

func (n *names) drop(ctx context.Context, ds ...*vfs.Dentry) {
	for _, d := range ds {
		n.mu.Lock()
		i, ok := n.at[d]
		if ok {
			last := len(n.kept) - 1
			n.kept[i] = n.kept[last]
			n.at[n.kept[i]] = i
			n.kept[last] = nil
			n.kept = n.kept[:last]
			delete(n.at, d)
		}
		n.mu.Unlock()
		if ok {
			d.DecRef(ctx)
		}
	}
}

// removing runs op, which removes the name q or puts another file there.
func (n *names) removing(q *place, op func() error) error {
	vd, miss := q.t.Kernel().VFS().GetDentryAt(q.t, q.creds, q.pop(false), &vfs.GetDentryOptions{})
	err := op()
	if err == nil {
		n.mu.Lock()
		n.removed = true
		n.mu.Unlock()
	}
	if miss == nil {
		if vd.Dentry().IsDead() {
			n.drop(q.t, vd.Dentry())
		}
		vd.DecRef(q.t)
	}
	return err
}

// sweep drops dead entries, unless there can be none or it has just run.
func (n *names) sweep(now time.Time) {
	var dead []*vfs.Dentry
	n.mu.Lock()
	ctx := n.ctx
	if ctx != nil && n.removed && now.Sub(n.swept) >= sweepEvery {
		n.removed, n.swept = false, now
		for _, d := range n.kept {
			if d.IsDead() {
				dead = append(dead, d)
			}
		}
	}
	n.mu.Unlock()
	n.drop(ctx, dead...)
}
