package carboy

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
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/store"
)

// Bounds of what is kept of bases between gates.
const (
	maxWarmBases = 3                   // of a repository
	maxWarmBytes = 10 << 30            // of all; the last used stay
	maxWarmIdle  = 14 * 24 * time.Hour // since it was used
)

// maxWarmFile bounds the document of what is kept, in bytes; a variable for tests.
var maxWarmFile int64 = 64 << 20

// warmOf is what the document of a base's caches is called in the record of the verdict
// whose gate filled them.
const warmOf = "warm"

func (c *Client) warmDir(elem ...string) string {
	return c.gateDir(append([]string{"warm"}, elem...)...)
}

// Find gives what is kept of the base, checked against the audit log, and holds it until
// the gate ends. Where it does not fit any more, there is nothing.
func (w *gateWork) Find(ctx context.Context, key string) (*gate.Warm, error) {
	if w.o.Again || w.o.own != nil {
		return nil, nil
	}
	dir := w.c.warmDir(key)
	lock, err := lockShared(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	k, err := w.c.openWarm(ctx, dir)
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
		w.c.log.Info("what is kept of the base does not fit any more", "why", why)
	}
	lock.Close()
	if errors.Is(err, errUnrecorded) {
		err = removeWarm(dir) // carboy died before its verdict was on record
	}
	if errors.Is(err, ErrLedger) {
		err = fmt.Errorf("%w; carboy sandbox gc removes it", err)
	}
	return nil, err
}

// openWarm reads and checks what lies in dir.
func (c *Client) openWarm(ctx context.Context, dir string) (*gate.Warm, error) {
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

// recordedWarm reads the document in dir, when it is the one on record.
func (c *Client) recordedWarm(ctx context.Context, dir string) (*gate.Warm, error) {
	f, err := os.Open(filepath.Join(dir, gate.WarmFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", dir, errUnrecorded)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxWarmFile))
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

// lockShared holds what is kept in dir. What is being made or removed is not there.
func lockShared(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir+"/lock", os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := shareLock(f, dir); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// shareLock locks what was opened as the lock of dir, when it is that still: dir may have
// been removed, and another one made, before the lock was there.
func shareLock(f *os.File, dir string) error {
	err := lockStill(f, dir+"/lock", unix.LOCK_SH)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fs.ErrNotExist
	}
	return err
}

// lockStill locks a file or directory, when it is still what has that name: it is
// fs.ErrNotExist else, and unix.EWOULDBLOCK where others hold it.
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

// removeWarm removes what is kept in dir, unless a gate uses it.
func removeWarm(dir string) error {
	f, err := lockFile(dir + "/lock")
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	}
	if err == nil {
		defer f.Close()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return removeTree(dir)
}

// evidenceOf copies the evidence of a phase that ran in an earlier gate.
func (w *gateWork) evidenceOf(p *gate.Phase, to string) error {
	from, err := os.OpenRoot(filepath.Join(w.g.WarmDir(), gate.WarmPhases, p.Signal))
	if err != nil {
		return err
	}
	defer from.Close()
	for name, want := range p.Evidence {
		b, err := from.ReadFile(name)
		if err != nil {
			return err
		}
		if hexSum(b) != want {
			return fmt.Errorf("evidence %s of %s on the base: %w", name, p.Signal, ErrLedger)
		}
		if err := os.WriteFile(filepath.Join(to, name), b, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// keepWarm moves what the base's phases left to where later gates find it, and gives the
// digest of that for the verdict's record, with what is to be done when that is written.
// What can't be kept is only not there the next time.
func (w *gateWork) keepWarm(ctx context.Context, v *gate.Verdict) ([]audit.Digest, func()) {
	none := func() {}
	k, err := w.g.Filled(v, w.homes...)
	if k == nil && err == nil {
		return nil, none
	}
	var b []byte
	var lock *os.File
	if err == nil {
		b, lock, err = w.moveWarm(ctx, k, v)
	}
	if err != nil {
		w.c.log.Info("the base's caches are not kept for later", "verdict", v.ID, "why", err)
		v.NotWarm(w.g.Redact, err)
		return nil, none
	}
	return []audit.Digest{{Of: warmOf, Sum: sha256.Sum256(b)}}, func() {
		lock.Close()
		_, _ = w.c.sweepWarm(ctx, false)
	}
}

// moveWarm gives the document, and the lock that keeps others from what is not on record
// yet.
func (w *gateWork) moveWarm(ctx context.Context, k *gate.Warm, v *gate.Verdict) (b []byte, lock *os.File, err error) {
	if err := os.MkdirAll(w.c.warmDir(), 0o700); err != nil {
		return nil, nil, err
	}
	tmp, err := os.MkdirTemp(w.c.warmDir(), ".new-")
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			removeTree(tmp)
			if lock != nil {
				lock.Close()
			}
		}
	}()
	if lock, err = lockFile(tmp + "/lock"); err != nil {
		return nil, nil, err
	}
	if b, err = w.layWarm(ctx, k, v, tmp); err != nil {
		return nil, lock, err
	}
	dir := w.c.warmDir(k.Key)
	if err = removeWarm(dir); err == nil {
		err = os.Rename(tmp, dir)
	}
	return b, lock, err
}

// layWarm puts together in tmp what is kept.
func (w *gateWork) layWarm(ctx context.Context, k *gate.Warm, v *gate.Verdict, tmp string) ([]byte, error) {
	if err := os.Rename(filepath.Join(k.Dir(), "files"), tmp+"/files"); err != nil {
		return nil, err
	}
	for _, p := range k.Phases {
		to := filepath.Join(tmp, gate.WarmPhases, p.Signal)
		if err := os.MkdirAll(to, 0o700); err != nil {
			return nil, err
		}
		for name := range p.Evidence {
			b, err := os.ReadFile(w.c.gateDir("verdicts", v.ID, "evidence", p.Signal+"-"+p.On, name))
			if err != nil {
				return nil, err
			}
			if err := os.WriteFile(filepath.Join(to, name), b, 0o600); err != nil {
				return nil, err
			}
		}
		err := os.Rename(filepath.Join(w.c.store.RunDir(store.ID(p.Run)), "upper"), to+"/upper")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	b, err := k.Seal(ctx, tmp)
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > maxWarmFile {
		return nil, fmt.Errorf("what is to be said of them has %d bytes, and may have %d", len(b), maxWarmFile)
	}
	return b, os.WriteFile(filepath.Join(tmp, gate.WarmFile), b, 0o600)
}

// sweepWarm removes what is kept of bases beyond its bounds; with all, also what is not
// what was recorded.
func (c *Client) sweepWarm(ctx context.Context, all bool) (removed []string, err error) {
	dirs, err := os.ReadDir(c.warmDir())
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
		rerr := removeWarm(dir)
		if _, serr := os.Lstat(dir); rerr == nil && errors.Is(serr, fs.ErrNotExist) {
			removed = append(removed, dir)
		}
		err = errors.Join(err, rerr)
	}
	for _, d := range dirs {
		x := one{dir: c.warmDir(d.Name())}
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
		case idle > maxWarmIdle, all && errors.Is(kerr, errUnrecorded) && idle > time.Minute, all && errors.Is(kerr, ErrLedger) && !errors.Is(kerr, errUnrecorded), errors.Is(kerr, gate.ErrWarmChanged):
			remove(x.dir)
		case kerr == nil:
			list = append(list, x)
		}
	}
	slices.SortFunc(list, func(a, b one) int { return b.used.Compare(a.used) })
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
