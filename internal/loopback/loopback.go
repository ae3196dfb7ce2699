// Package loopback lends addresses of the host's loopback to bottles: 127.0.0.16 to
// 127.0.0.31, each to one bottle at a time. Start reading at [Pool.Take].
//
// A lease is a lock on a file, which the kernel gives up when its holder ends, however it
// ends. The register beside the locks says whose leases they were, so that what a dead
// carboy left at an address is cleared before another bottle has it.
package loopback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/store"
)

// first and last bound the addresses that are lent.
var (
	first = netip.AddrFrom4([4]byte{127, 0, 0, 16})
	last  = netip.AddrFrom4([4]byte{127, 0, 0, 31})
)

const (
	// maxRegister bounds the register in bytes.
	maxRegister = 64 << 10
	// maxOwner bounds the name of an owner in bytes.
	maxOwner = 200
	// lockWait is the pause between two tries for the lock.
	lockWait = 10 * time.Millisecond
)

// ErrExhausted is returned by Take when every address is lent or in use.
var ErrExhausted = errors.New("no loopback address from 127.0.0.16 to 127.0.0.31 is free: end a bottle (carboy list), or the program that listens there")

// Pool is the set of addresses of one user. It is safe for concurrent use, by processes
// too.
type Pool struct {
	dir       string
	listeners func() ([]Listener, error)
	clear     func(ctx context.Context, owner string) error
}

// Open returns the pool whose files are in dir, which the first Take makes. clear is
// called with the owner of a lease whose holder is gone, and ends what the owner has left;
// until it succeeds, nobody else gets the address. Leases of the same pool must not be
// taken in it. listeners is [Listeners], but in tests.
func Open(dir string, listeners func() ([]Listener, error), clear func(ctx context.Context, owner string) error) *Pool {
	return &Pool{dir, listeners, clear}
}

// Lease is the right to one address. It ends with Close, or with this process.
type Lease struct {
	Addr netip.Addr
	pool *Pool
	file *os.File
}

// entry is a line of the register.
type entry struct {
	Addr  netip.Addr `json:"address"`
	Owner string     `json:"owner"`
	PID   int        `json:"pid"`
	Since time.Time  `json:"since"`
}

// Take lends the lowest free address to owner: one that is lent to nobody and at which no
// program listens. Programs that listen at all addresses do not count. It blocks while
// another Take is under way, until ctx ends.
func (p *Pool) Take(ctx context.Context, owner string) (*Lease, error) {
	if owner == "" || len(owner) > maxOwner {
		return nil, fmt.Errorf("loopback: owner of %d bytes: want 1 to %d", len(owner), maxOwner)
	}
	unlock, err := p.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	entries, err := p.read()
	if err != nil {
		return nil, err
	}
	used, err := p.listeners()
	if err != nil {
		return nil, fmt.Errorf("loopback: what listens on this machine can't be listed: %w", err)
	}
	var stuck []error
	for a := first; a.Compare(last) <= 0; a = a.Next() {
		if slices.ContainsFunc(used, func(l Listener) bool { return l.Addr.Addr().Unmap() == a }) {
			continue
		}
		f, err := p.lease(a)
		if err != nil {
			return nil, err
		}
		if f == nil {
			continue // lent
		}
		if err := p.clearDead(ctx, entries, a); err != nil {
			stuck = append(stuck, err)
			_ = f.Close()
			continue
		}
		entries = without(entries, a)
		entries = append(entries, entry{Addr: a, Owner: owner, PID: os.Getpid(), Since: time.Now().UTC()})
		if err := p.write(entries); err != nil {
			_ = f.Close()
			return nil, err
		}
		return &Lease{Addr: a, pool: p, file: f}, nil
	}
	return nil, errors.Join(append([]error{ErrExhausted}, stuck...)...)
}

// clearDead ends what the last owner of a free address has left there.
func (p *Pool) clearDead(ctx context.Context, entries []entry, a netip.Addr) error {
	for _, e := range entries {
		if e.Addr != a || p.clear == nil {
			continue
		}
		if err := p.clear(ctx, e.Owner); err != nil {
			return fmt.Errorf("%v: what %q left there can't be ended: %w", a, e.Owner, err)
		}
	}
	return nil
}

func without(entries []entry, a netip.Addr) []entry {
	return slices.DeleteFunc(slices.Clone(entries), func(e entry) bool { return e.Addr == a })
}

// Close gives the address back. Call it when nothing can use the address any more. It may
// be called more than once.
func (l *Lease) Close() error {
	if l.file == nil {
		return nil
	}
	unlock, err := l.pool.lock(context.Background())
	if err == nil {
		var entries []entry
		if entries, err = l.pool.read(); err == nil {
			err = l.pool.write(without(entries, l.Addr))
		}
		unlock()
	}
	// Without the entry removed the next Take clears it: the lock is what counts.
	err = errors.Join(err, l.file.Close())
	l.file = nil
	return err
}

// Leave gives the address back with what is left of the owner: the next Take clears that
// first.
func (l *Lease) Leave() error {
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}

// lease locks the file of an address. It returns nil if another holder has it.
func (p *Pool) lease(a netip.Addr) (*os.File, error) {
	f, err := openPrivate(filepath.Join(p.dir, a.String()))
	if err != nil {
		return nil, err
	}
	err = flock(f, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, fmt.Errorf("loopback: lock %v: %w", a, err)
}

// lock takes the lock of the register.
func (p *Pool) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, fmt.Errorf("loopback: %w", err)
	}
	if err := checkDir(p.dir); err != nil {
		return nil, err
	}
	f, err := openPrivate(filepath.Join(p.dir, "lock"))
	if err != nil {
		return nil, err
	}
	for {
		err := flock(f, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			_ = f.Close()
			return nil, fmt.Errorf("loopback: lock %s: %w", f.Name(), err)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("loopback: wait for %s: %w", f.Name(), ctx.Err())
		case <-time.After(lockWait):
		}
	}
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// checkDir refuses a directory that others can write to.
func checkDir(dir string) error {
	fi, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !fi.IsDir() || !ok || int(st.Uid) != os.Geteuid() || fi.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("loopback: %s is not a directory that only you can write to: remove it, or chmod 700 it", dir)
	}
	return nil
}

// openPrivate opens a file for locking, which it makes if it is missing. It follows no
// link.
func openPrivate(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("loopback: %w", err)
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("loopback: %s: %w", path, err)
	}
	return f, nil
}

func (p *Pool) register() string { return filepath.Join(p.dir, "leases.json") }

// read returns the register; one that is missing is empty.
func (p *Pool) read() ([]entry, error) {
	f, err := os.OpenFile(p.register(), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("loopback: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRegister+1))
	if err == nil && len(b) > maxRegister {
		err = fmt.Errorf("longer than %d bytes", maxRegister)
	}
	var entries []entry
	if err == nil {
		err = json.Unmarshal(b, &entries)
	}
	if err == nil {
		err = checkEntries(entries)
	}
	if err != nil {
		return nil, fmt.Errorf("loopback: register %s: %w: when no bottle runs, remove the file", p.register(), err)
	}
	return entries, nil
}

func checkEntries(entries []entry) error {
	var seen []netip.Addr
	for _, e := range entries {
		switch {
		case e.Addr.Compare(first) < 0 || e.Addr.Compare(last) > 0 || !e.Addr.Is4():
			return fmt.Errorf("address %v is not one that is lent", e.Addr)
		case slices.Contains(seen, e.Addr):
			return fmt.Errorf("address %v is there twice", e.Addr)
		case e.Owner == "" || len(e.Owner) > maxOwner || strings.ContainsAny(e.Owner, "\x00\n"):
			return fmt.Errorf("address %v has no usable owner", e.Addr)
		}
		seen = append(seen, e.Addr)
	}
	return nil
}

// write replaces the register.
func (p *Pool) write(entries []entry) error {
	b, err := json.MarshalIndent(entries, "", "  ")
	if err == nil {
		err = store.WriteFile(p.register(), append(b, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	return nil
}
