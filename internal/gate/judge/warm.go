package judge

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/store"
)

// Bounds of the warm caches, which are kept between gates.
const (
	maxWarmBases = 3                   // of a repository
	maxWarmBytes = 10 << 30            // of all; the last used stay
	maxWarmIdle  = 14 * 24 * time.Hour // since it was used
)

// MaxWarmFile bounds the document of a warm cache, in bytes. Tests change it.
var MaxWarmFile int64 = 64 << 20

// warmOf names the digest of a warm cache's document in the audit log, in the record of
// the verdict whose gate filled the cache.
const warmOf = "warm"

// WarmDir returns a path below the directory of warm caches.
func (c *Judge) WarmDir(elem ...string) string {
	return c.GateDir(append([]string{"warm"}, elem...)...)
}

// Find returns the base's warm cache, checked against the audit log, and locks it until
// the gate ends. It returns nil if there is none, or if it does not fit any more.
func (w *GateWork) Find(ctx context.Context, key string) (*gate.Warm, error) {
	if w.O.Again || w.O.own != nil {
		return nil, nil
	}
	dir := w.C.WarmDir(key)
	lock, err := lockShared(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	k, err := w.C.openWarm(ctx, dir)
	if err == nil && k.Key != key {
		err = fmt.Errorf("%s is of another key: %w: %w", dir, ErrLedger, gate.ErrWarmChanged)
	}
	var why string
	if err == nil {
		if why = k.Miss(); why == "" {
			now := time.Now()
			os.Chtimes(dir, now, now) // it was used
			unlock := w.unlock
			w.unlock = func() { lock.Close(); unlock() }
			return k, nil
		}
		w.C.Log.Info("what is kept of the base does not fit any more", "why", why)
	}
	lock.Close()
	if errors.Is(err, ErrUnrecorded) {
		err = RemoveWarm(dir) // carboy died before its verdict was on record
	}
	if errors.Is(err, ErrLedger) {
		err = fmt.Errorf("%w; carboy sandbox gc removes it", err)
	}
	return nil, err
}

// openWarm reads and checks the warm cache in dir.
func (c *Judge) openWarm(ctx context.Context, dir string) (*gate.Warm, error) {
	k, err := c.recordedWarm(ctx, dir)
	if err != nil {
		return nil, err
	}
	if err := k.Open(ctx, dir); errors.Is(err, gate.ErrWarmChanged) {
		return nil, fmt.Errorf("%w: %w", ErrLedger, err)
	} else if err != nil {
		return nil, fmt.Errorf("check what is kept of the base: %w", err)
	}
	return k, nil
}

// recordedWarm reads the document in dir and checks that its digest is on record.
func (c *Judge) recordedWarm(ctx context.Context, dir string) (*gate.Warm, error) {
	f, err := os.Open(filepath.Join(dir, gate.WarmFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", dir, ErrUnrecorded)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MaxWarmFile))
	if err != nil {
		return nil, err
	}
	k, err := gate.ParseWarm(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", dir, ErrLedger, err)
	}
	if err := c.onRecord(k.Verdict, warmOf, b); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return k, nil
}

// lockShared takes a shared lock on the warm cache in dir. One that is being created or
// removed counts as missing.
func lockShared(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir+"/lock", os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := ShareLock(f, dir); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ShareLock takes a shared lock on f, the lock file of dir. It returns fs.ErrNotExist if
// dir was removed or replaced after f was opened.
func ShareLock(f *os.File, dir string) error {
	err := lockStill(f, dir+"/lock", unix.LOCK_SH)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fs.ErrNotExist
	}
	return err
}

// lockStill locks f. It returns unix.EWOULDBLOCK if others hold the lock, and
// fs.ErrNotExist if name does not refer to f any more.
func lockStill(f *os.File, name string, how int) error {
	if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
		return err
	}
	var held, now unix.Stat_t
	err := errors.Join(unix.Fstat(int(f.Fd()), &held), unix.Lstat(name, &now))
	if err == nil && (held.Dev != now.Dev || held.Ino != now.Ino) {
		err = fs.ErrNotExist // it was removed, and made again
	}
	return err
}

// RemoveWarm removes the warm cache in dir, unless a gate uses it.
func RemoveWarm(dir string) error {
	f, err := LockFile(dir + "/lock")
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	}
	if err == nil {
		defer f.Close()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return fault.RemoveTree(dir)
}

// copyEvidence copies the evidence of a phase that ran in an earlier gate.
func (w *GateWork) copyEvidence(p *gate.Phase, to string) error {
	from, err := os.OpenRoot(filepath.Join(w.G.WarmDir(), gate.WarmPhases, p.Signal))
	if err != nil {
		return err
	}
	defer from.Close()
	for name, want := range p.Evidence {
		b, err := from.ReadFile(name)
		if err != nil {
			return err
		}
		if HexSum(b) != want {
			return fmt.Errorf("evidence %s of %s on the base: %w", name, p.Signal, ErrLedger)
		}
		if err := os.WriteFile(filepath.Join(to, name), b, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// keepWarm moves the caches that the base's phases filled to where later gates find them.
// It returns their digest for the verdict's record, and a function to call when that is
// written. A failure is only logged: the next gate then starts without the caches.
func (w *GateWork) keepWarm(ctx context.Context, v *gate.Verdict) ([]audit.Digest, func()) {
	none := func() {}
	k, err := w.G.FilledCaches(v, w.homes...)
	if k == nil && err == nil {
		return nil, none
	}
	var b []byte
	var lock *os.File
	if err == nil {
		b, lock, err = w.MoveWarm(ctx, k, v)
	}
	if err != nil {
		w.C.Log.Info("the base's caches are not kept for later", "verdict", v.ID, "why", err)
		v.SetWarmWhy(w.G.Redact, err)
		return nil, none
	}
	return []audit.Digest{{Of: warmOf, Sum: sha256.Sum256(b)}}, func() {
		lock.Close()
		_, _ = w.C.SweepWarm(ctx, false)
	}
}

// MoveWarm moves the caches to their directory. It returns their document, and a lock that
// keeps others away until the document is on record.
func (w *GateWork) MoveWarm(ctx context.Context, k *gate.Warm, v *gate.Verdict) (b []byte, lock *os.File, err error) {
	if err := os.MkdirAll(w.C.WarmDir(), 0o700); err != nil {
		return nil, nil, err
	}
	tmp, err := os.MkdirTemp(w.C.WarmDir(), ".new-")
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			fault.RemoveTree(tmp)
			if lock != nil {
				lock.Close()
			}
		}
	}()
	if lock, err = LockFile(tmp + "/lock"); err != nil {
		return nil, nil, err
	}
	if b, err = w.fillWarm(ctx, k, v, tmp); err != nil {
		return nil, lock, err
	}
	dir := w.C.WarmDir(k.Key)
	if err = RemoveWarm(dir); err == nil {
		err = os.Rename(tmp, dir)
	}
	return b, lock, err
}

// fillWarm moves the files of a warm cache to tmp and writes its document.
func (w *GateWork) fillWarm(ctx context.Context, k *gate.Warm, v *gate.Verdict, tmp string) ([]byte, error) {
	if err := os.Rename(filepath.Join(k.Dir(), "files"), tmp+"/files"); err != nil {
		return nil, err
	}
	for _, p := range k.Phases {
		to := filepath.Join(tmp, gate.WarmPhases, p.Signal)
		if err := os.MkdirAll(to, 0o700); err != nil {
			return nil, err
		}
		for name := range p.Evidence {
			b, err := os.ReadFile(w.C.GateDir("verdicts", v.ID, "evidence", p.Signal+"-"+p.On, name))
			if err != nil {
				return nil, err
			}
			if err := os.WriteFile(filepath.Join(to, name), b, 0o600); err != nil {
				return nil, err
			}
		}
		err := os.Rename(filepath.Join(w.C.Store.RunDir(store.ID(p.Run)), "upper"), to+"/upper")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	b, err := k.Encode(ctx, tmp)
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > MaxWarmFile {
		return nil, fmt.Errorf("their description has %d bytes; at most %d are allowed", len(b), MaxWarmFile)
	}
	return b, os.WriteFile(filepath.Join(tmp, gate.WarmFile), b, 0o600)
}

// SweepWarm removes the warm caches beyond the bounds; with all, also those that differ
// from their record. It returns their directories.
func (c *Judge) SweepWarm(ctx context.Context, all bool) (removed []string, err error) {
	dirs, err := os.ReadDir(c.WarmDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	type one struct {
		dir  string
		used time.Time
		k    *gate.Warm
	}
	var list []one
	remove := func(dir string) {
		rerr := RemoveWarm(dir)
		if _, serr := os.Lstat(dir); rerr == nil && errors.Is(serr, fs.ErrNotExist) {
			removed = append(removed, dir)
		}
		err = errors.Join(err, rerr)
	}
	for _, d := range dirs {
		x := one{dir: c.WarmDir(d.Name())}
		fi, serr := d.Info()
		if serr != nil {
			continue
		}
		x.used = fi.ModTime()
		idle := time.Since(x.used)
		var kerr error
		if x.k, kerr = c.recordedWarm(ctx, x.dir); kerr == nil && all {
			kerr = x.k.Open(ctx, x.dir)
		}
		if cerr := ctx.Err(); cerr != nil {
			return removed, cerr
		}
		switch {
		case idle > maxWarmIdle, all && errors.Is(kerr, ErrUnrecorded) && idle > time.Minute, all && errors.Is(kerr, ErrLedger) && !errors.Is(kerr, ErrUnrecorded), errors.Is(kerr, gate.ErrWarmChanged):
			remove(x.dir)
		case kerr == nil:
			list = append(list, x)
		}
	}
	slices.SortStableFunc(list, func(a, b one) int { return b.used.Compare(a.used) })
	var bytes int64
	bases := map[string]int{}
	for _, x := range list {
		bytes += x.k.Bytes
		bases[x.k.Repository]++
		if bytes > maxWarmBytes || bases[x.k.Repository] > maxWarmBases {
			remove(x.dir)
		}
	}
	return removed, err
}
