// Package pool registers bottles that wait for a run. Each has one Unix socket
// in the user's runtime directory, named by the key of what it fits.
//
// There is no daemon and no stale file: if nobody listens on a socket, its
// process is gone, and the finder removes the socket. The same holds for the
// place that Reserve keeps for a bottle while it is made. The bottle's own
// process compares everything and decides whether it fits; the name only says
// which sockets are worth asking.
//
// Start reading at Publish and Fitting.
package pool

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/handover"
)

// Names have the length of a run's socket name: "p-", 14 digits of the key, "-", 9
// characters of the bottle's own.
const (
	keyLen = 14
	ownLen = 9
)

// fresh precedes a socket's name until somebody listens on it.
const fresh = ".n"

// isName reports whether a file's name is one that Publish makes.
func isName(s string) bool {
	return len(s) == len("p-")+keyLen+1+ownLen+len(".sock") && strings.HasPrefix(s, "p-") && strings.HasSuffix(s, ".sock") && s[2+keyLen] == '-'
}

// Socket receives requests for one waiting bottle.
type Socket struct {
	l    *net.UnixListener
	path string
}

// Publish makes a socket for a bottle with this key. It becomes visible to
// others once it accepts connections.
func Publish(dir, key string) (*Socket, error) {
	if len(key) < keyLen {
		return nil, errors.New("pool: the key is too short")
	}
	name := "p-" + key[:keyLen] + "-" + strings.ToLower(rand.Text()[:ownLen]) + ".sock"
	s := &Socket{path: filepath.Join(dir, name)}
	tmp := filepath.Join(dir, fresh+name[2:])
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	l.SetUnlinkOnClose(false)
	s.l = l
	if err = os.Chmod(tmp, 0o600); err == nil {
		err = os.Rename(tmp, s.path)
	}
	if err != nil {
		os.Remove(tmp)
		l.Close()
		return nil, fmt.Errorf("pool: %w", err)
	}
	return s, nil
}

// ID returns the bottle's own part of the name.
func (s *Socket) ID() string { return ID(s.path) }

// Accept waits for a connection from one of this user's processes. It fails
// when s is closed.
func (s *Socket) Accept() (*handover.Conn, error) {
	for {
		c, err := s.l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		if h, err := handover.New(c); err == nil {
			return h, nil
		}
	}
}

// Close withdraws the bottle: nobody finds it any more.
func (s *Socket) Close() error {
	os.Remove(s.path)
	return s.l.Close()
}

// ID returns the unique part of a socket's name.
func ID(path string) string {
	name := strings.TrimSuffix(filepath.Base(path), ".sock")
	return name[strings.LastIndexByte(name, '-')+1:]
}

// Fitting lists the sockets of the bottles with this key.
func Fitting(dir, key string) ([]string, error) {
	if len(key) < keyLen {
		return nil, errors.New("pool: the key is too short")
	}
	return list(dir, "p-"+key[:keyLen]+"-")
}

// All lists the sockets of all waiting bottles.
func All(dir string) ([]string, error) { return list(dir, "p-") }

func list(dir, prefix string) ([]string, error) {
	ents, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range ents {
		if strings.HasPrefix(e.Name(), prefix) && isName(e.Name()) {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out, nil
}

// errGone means that the process behind a socket has ended.
var errGone = errors.New("pool: the bottle is gone")

// Dial connects to a waiting bottle. It removes a socket without a process.
func Dial(path string) (*handover.Conn, error) {
	c, err := handover.Dial(path)
	if errors.Is(err, unix.ECONNREFUSED) {
		os.Remove(path)
	}
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return nil, errGone
	}
	return c, err
}

// unborn bounds the time in which a new socket must become visible.
const unborn = time.Minute

// Sweep removes sockets of ended processes, and returns the number of the
// others.
func Sweep(dir string) (living int, err error) {
	all, err := All(dir)
	if err != nil {
		return 0, err
	}
	for _, path := range all {
		c, err := Dial(path)
		if errors.Is(err, errGone) {
			continue
		}
		living++
		if err == nil {
			c.Close()
		}
	}
	if kept, _ := filepath.Glob(filepath.Join(dir, placed+"*")); len(kept) > 0 {
		if unlock, err := Lock(dir); err == nil {
			places(dir, "")
			unlock()
		}
	}
	left, _ := filepath.Glob(filepath.Join(dir, fresh+"*.sock"))
	for _, path := range left {
		if fi, err := os.Lstat(path); err == nil && time.Since(fi.ModTime()) > unborn {
			os.Remove(path)
		}
	}
	return living, nil
}

// Lock keeps other processes from counting and adding at the same time.
func Lock(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "pool.lock"), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	if err := flock(f, unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("pool: %w", err)
	}
	return func() { f.Close() }, nil
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// placed precedes the name of a place.
const placed = ".m"

// Reserve keeps a place for a bottle with this key that is about to be made. It
// returns "" if keep such bottles already wait or are being made.
func Reserve(dir, key string, keep int) (place string, err error) {
	unlock, err := Lock(dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	have, err := Fitting(dir, key)
	if err != nil || len(have)+places(dir, key[:keyLen]) >= keep {
		return "", err
	}
	place = placed + key[:keyLen] + "-" + strings.ToLower(rand.Text()[:ownLen])
	f, err := os.OpenFile(filepath.Join(dir, place), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return "", fmt.Errorf("pool: %w", err)
	}
	return place, f.Close()
}

// Release gives up a place that nobody has occupied.
func Release(dir, place string) { os.Remove(filepath.Join(dir, place)) }

// places counts the places of bottles whose key has this prefix, and removes
// those whose makers are gone. A place belongs to the process that locks it. An
// empty place is not occupied yet, and its maker has a while to come. The
// caller holds Lock.
func places(dir, key string) (n int) {
	all, _ := filepath.Glob(filepath.Join(dir, placed+key+"*"))
	for _, path := range all {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		fi, err := f.Stat()
		if flock(f, unix.LOCK_EX|unix.LOCK_NB) == nil && err == nil && (fi.Size() > 0 || time.Since(fi.ModTime()) > unborn) {
			os.Remove(path)
		} else {
			n++
		}
		f.Close()
	}
	return n
}

// Place is a reserved place that its maker has occupied.
type Place struct {
	f    *os.File
	once sync.Once
}

// Occupy takes a place for the process that makes the bottle. The place counts
// until Leave, or until the process ends.
func Occupy(dir, place string) (*Place, error) {
	if filepath.Base(place) != place || !strings.HasPrefix(place, placed) {
		return nil, fmt.Errorf("pool: %q is no place", place)
	}
	f, err := os.OpenFile(filepath.Join(dir, place), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	if err := flock(f, unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("pool: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Nlink == 0 {
		f.Close()
		return nil, errors.Join(errors.New("pool: the place was given up: its maker came too late"), err)
	}
	if _, err := f.WriteString("taken\n"); err != nil {
		f.Close()
		return nil, fmt.Errorf("pool: %w", err)
	}
	return &Place{f: f}, nil
}

// Leave gives the place up. It is idempotent.
func (p *Place) Leave() {
	p.once.Do(func() {
		os.Remove(p.f.Name())
		p.f.Close()
	})
}
