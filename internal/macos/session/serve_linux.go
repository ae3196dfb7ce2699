package session

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/macos/frames"
	"github.com/carboy/carboy/internal/macos/mirror"
	"github.com/carboy/carboy/internal/store"
)

// Places are the directories of the machine that Serve uses.
type Places struct {
	State  string // what copies of workspaces were when both sides were equal, and carboy's own state
	Memory string // a directory in memory, for settings
}

// Machine returns the places of the machine that carboy made. The state is elsewhere where
// XDG_STATE_HOME says so.
func Machine(env func(string) string) Places {
	p := Places{State: "/var/lib/carboy", Memory: "/dev/shm/carboy-settings"}
	if v := env("XDG_STATE_HOME"); filepath.IsAbs(v) {
		p.State = v
	}
	return p
}

// Serve is the machine's side of [Run]: it runs one command line of this binary, and
// returns when it has ended and everything is sent, or when the other side is gone.
func Serve(r io.Reader, w io.Writer, p Places) error {
	// The command gets a signal when the thread that started it ends.
	runtime.LockOSThread()
	// Otherwise a write that nobody reads would end this process before it ends the command.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	s := &server{Conn: frames.New(r, w), places: p, frames: make(chan frame), gone: make(chan struct{}), over: make(chan struct{})}
	if err := s.SendJSON(frames.Hello, hello{helloSchema, version}); err != nil {
		return err
	}
	b, err := frames.Expect(s.Conn, frames.Open)
	if err != nil {
		return err
	}
	var o order
	if err := json.Unmarshal(b, &o); err != nil || o.Version != version {
		return s.fail(fmt.Errorf("the order is of version %d, this carboy's of %d", o.Version, version))
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	s.cancel = cancel
	go s.read() // ends with the connection
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	go func() { // ends with this process
		for n := range signals {
			if c := s.running(frames.Signal, []byte{byte(n.(syscall.Signal))}); c != nil {
				c.signal(n.(syscall.Signal))
			}
		}
	}()
	code, err := s.run(ctx, &o)
	close(s.over)
	if err != nil {
		return s.fail(err)
	}
	if err := s.Send(frames.Exit, binary.BigEndian.AppendUint32(nil, uint32(code))); err != nil {
		return err
	}
	<-s.gone // so that nothing that was sent is lost
	return nil
}

type frame struct {
	kind frames.Kind
	b    []byte
}

type server struct {
	*frames.Conn
	places Places
	frames chan frame    // what is about directories
	gone   chan struct{} // closed when the other side is
	over   chan struct{} // closed when nothing about directories is expected any more
	cancel context.CancelCauseFunc
	err    error // why gone is closed

	mu      sync.Mutex
	child   *child
	pending syscall.Signal // arrived before there was a child
}

func (s *server) fail(err error) error {
	return errors.Join(err, s.Send(frames.Fail, []byte(err.Error())))
}

// Recv returns the next frame about directories.
func (s *server) Recv() (frames.Kind, []byte, error) {
	select {
	case f := <-s.frames:
		return f.kind, f.b, nil
	case <-s.gone:
		return 0, nil, s.err
	}
}

// errSignalled ends a command before it begins.
var errSignalled = errors.New("a signal ended it before it began")

// begin makes c the receiver of signals and input.
func (s *server) begin(c *child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.child = c
	if s.pending != 0 {
		c.signal(s.pending)
	}
}

// running returns the command, nil before it runs. Then a signal ends what comes before.
func (s *server) running(k frames.Kind, b []byte) *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.child == nil && k == frames.Signal && len(b) == 1 {
		s.pending = syscall.Signal(b[0])
		s.cancel(errSignalled)
	}
	return s.child
}

// read sorts what arrives until the connection ends.
func (s *server) read() {
	defer close(s.gone)
	for {
		k, b, err := s.Conn.Recv()
		if err != nil {
			s.err = err
			s.cancel(err)
			return
		}
		c := s.running(k, b)
		switch {
		case k == frames.Done:
			s.err = io.EOF
			return
		case k == frames.Stdin, k == frames.EOF, k == frames.Size, k == frames.Signal, k == frames.Shut:
			if c != nil {
				c.receive(k, b)
			}
		default:
			select {
			case s.frames <- frame{k, b}:
			case <-s.over:
			}
		}
	}
}

// run brings directories in, runs the command line, and brings changes back.
func (s *server) run(ctx context.Context, o *order) (int, error) {
	for i := range o.Trees {
		if err := s.bring(ctx, o, i); err != nil {
			return 0, err
		}
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return 0, err
	}
	c, err := start(s, o)
	if err != nil {
		return 0, err
	}
	s.begin(c)
	if c.in != nil {
		c.room(window)
	}
	code := c.wait(s.gone)
	for i, t := range o.Trees {
		if t.Copy != Workspace {
			continue
		}
		if err := s.back(context.Background(), i, t.Path); err != nil {
			return 0, err
		}
	}
	return code, nil
}

// bring makes the machine's copy of a directory equal to the other side's. Changes that an
// earlier command left, because its connection broke, are sent first.
func (s *server) bring(ctx context.Context, o *order, i int) error {
	t := o.Trees[i]
	at := t.Path
	if t.Copy == Settings {
		at = filepath.Join(s.places.Memory, nameOf(t.Path))
		if err := os.MkdirAll(s.places.Memory, 0o700); err != nil {
			return err
		}
		if err := s.link(t.Path, at); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	unlock, err := s.lock(ctx, t.Path)
	if err != nil {
		return err
	}
	defer unlock()
	who := mirror.Owner{UID: o.UID, GID: o.GID}
	if t.Copy == Settings {
		who = mirror.Owner{UID: os.Geteuid(), GID: os.Getegid()} // carboy reads no one else's
	} else if err := s.offer(ctx, step{Tree: i, Back: true}, at); err != nil {
		return err
	} else if os.Geteuid() == 0 {
		if err := os.Lchown(at, o.UID, o.GID); err != nil {
			return err
		}
	}
	if err := s.SendJSON(frames.Tree, step{Tree: i}); err != nil {
		return err
	}
	now, err := mirror.Receive(ctx, s, at, who)
	if err != nil || t.Copy == Settings {
		return err
	}
	return s.note(t.Path, now)
}

// link makes path lead to the copy in memory.
func (s *server) link(path, at string) error {
	if to, err := os.Readlink(path); err == nil && to == at {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Symlink(at, path); err != nil {
		return fmt.Errorf("the machine has something of its own at %s: %w", path, err)
	}
	return nil
}

// back sends what a command changed in a directory.
func (s *server) back(ctx context.Context, i int, path string) error {
	unlock, err := s.lock(ctx, path)
	if err != nil {
		return err
	}
	defer unlock()
	return s.offer(ctx, step{Tree: i, Back: true, Over: true}, path)
}

// offer sends what changed since the note. Without a note, the directory was never copied.
func (s *server) offer(ctx context.Context, what step, path string) error {
	base, err := s.noted(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := s.SendJSON(frames.Tree, what); err != nil {
		return err
	}
	now, err := mirror.Offer(ctx, s, path, base)
	if err != nil {
		return err
	}
	return s.note(path, now)
}

func nameOf(path string) string {
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:12])
}

// copies returns the directory with notes and locks of workspaces.
func (s *server) copies() (string, error) {
	dir := filepath.Join(s.places.State, "copies")
	return dir, os.MkdirAll(dir, 0o700)
}

// lockWait is the pause between two tries for a lock.
const lockWait = 20 * time.Millisecond

// lock blocks until no other command brings this directory in or back, or ctx ends.
func (s *server) lock(ctx context.Context, path string) (func(), error) {
	dir, err := s.copies()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, nameOf(path)+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), f.Close())
		case <-time.After(lockWait):
		}
	}
}

func (s *server) noted(path string) (base []mirror.Entry, err error) {
	dir, err := s.copies()
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(dir, nameOf(path)+".json"))
	if err != nil {
		return nil, err
	}
	return base, json.Unmarshal(b, &base)
}

func (s *server) note(path string, now []mirror.Entry) error {
	dir, err := s.copies()
	if err != nil {
		return err
	}
	b, err := json.Marshal(now)
	if err != nil {
		return err
	}
	return store.WriteFile(filepath.Join(dir, nameOf(path)+".json"), b, 0o600)
}
