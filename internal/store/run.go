package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Names in a run's directory.
const (
	metaFile    = "meta.json"
	lockFile    = "lock"
	ReceiptFile = "receipt.json"
	upperDir    = "upper"    // the workspace's changes
	EvidenceDir = "evidence" // what receipts and verdicts refer to by digest
	LogsDir     = "logs"
	TraceFile   = "trace" // what the kernel inside saw
	newPrefix   = ".new-"
)

// Spec describes a new run.
type Spec struct {
	Kind      RunKind
	Name      string
	Workspace Workspace
	Mode      Mode
	Command   []string
	Build     string
}

// Run is a run that this process supervises. Until it is closed or the process ends, no other process can mark the run
// lost or remove it. Methods may be called concurrently.
type Run struct {
	s  *Store
	id ID

	mu      sync.Mutex
	lock    int // the run's lock, -1 when released
	started time.Duration
}

// Create creates the record and the directory of a new run, in state Created and supervised by this process. It is atomic
// and durable.
func (s *Store) Create(ctx context.Context, spec Spec) (*Run, error) {
	var run *Run
	err := s.locked(ctx, func() error {
		last, err := s.lastID()
		if err != nil {
			return err
		}
		id, err := nextID(last, s.now())
		if err != nil {
			return err
		}
		m := Meta{
			Schema: Schema(metaKind), ID: id, Kind: spec.Kind, Name: spec.Name, State: Created, Workspace: spec.Workspace, Mode: spec.Mode,
			Command: Raws(spec.Command), Build: spec.Build, Supervisor: s.self, Created: s.now(),
		}
		if spec.Mode == None || spec.Mode == Bind {
			m.Changes = NoChanges
		}
		if err := m.check(id); err != nil {
			return err
		}
		lock, err := s.build(ctx, &m)
		if err != nil {
			return err
		}
		run = &Run{s: s, id: id, lock: lock}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("create run: %w", err)
	}
	return run, nil
}

// build creates the directory under a temporary name, and renames it when it is complete on disk. After a crash before
// that, Recover removes it.
func (s *Store) build(ctx context.Context, m *Meta) (lock int, err error) {
	tmp := newPrefix + string(m.ID)
	if err := s.sys.Mkdirat(s.runs, tmp, 0o700); err != nil {
		return -1, err
	}
	lock = -1
	defer func() {
		if err != nil {
			if lock >= 0 {
				unix.Close(lock)
			}
			s.toTrash(s.runs, tmp) // where even that fails, Recover finds it
		}
	}()
	dir, err := s.sys.Openat(s.runs, tmp, dirFlags, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	for _, sub := range []string{upperDir, EvidenceDir, LogsDir} {
		if err := s.sys.Mkdirat(dir, sub, 0o700); err != nil {
			return -1, err
		}
	}
	if lock, err = s.flockFile(ctx, dir, lockFile); err != nil {
		return -1, err
	}
	if err := s.writeMeta(dir, m); err != nil {
		return lock, err
	}
	if err := s.sys.Renameat(s.runs, tmp, s.runs, string(m.ID)); err != nil {
		return lock, err
	}
	if err := s.sys.Fsync(s.runs); err != nil {
		tmp = string(m.ID)
		return lock, err
	}
	return lock, nil
}

func (s *Store) writeMeta(dir int, m *Meta) error {
	data, err := Encode(metaKind, m)
	if err != nil {
		return err
	}
	return replaceFile(s.sys, dir, metaFile, "."+metaFile+".tmp", data, 0o600)
}

func (s *Store) lastID() (last ID, err error) {
	err = s.readNames(s.runs, ".", func(name string) error {
		if id, err := ParseID(name); err == nil && id > last {
			last = id
		}
		return nil
	})
	return last, err
}

// Get returns the record of a run. The error is ErrNotFound if there is none, a *CorruptError if it cannot be read.
func (s *Store) Get(id ID) (Meta, error) {
	if _, err := ParseID(string(id)); err != nil {
		return Meta{}, err
	}
	data, err := readAt(s.sys, s.runs, string(id)+"/"+metaFile)
	if errors.Is(err, unix.ENOENT) {
		var st unix.Stat_t
		if unix.Fstatat(s.runs, string(id), &st, unix.AT_SYMLINK_NOFOLLOW) == unix.ENOENT {
			return Meta{}, fmt.Errorf("run %s: %w", id, ErrNotFound)
		}
	}
	var m Meta
	file := filepath.Join(s.RunDir(id), metaFile)
	if err == nil {
		err = Decode(metaFile, metaKind, data, &m)
	}
	if err == nil {
		err = m.check(id)
	}
	if err != nil {
		return Meta{}, &CorruptError{ID: string(id), File: file, Err: err}
	}
	return m, nil
}

// Update changes the record of a run: f gets the present record and modifies it. If f returns an error, makes an invalid
// transition or changes the run's identity, nothing is written. Update returns the record as it is on disk afterwards.
func (s *Store) Update(ctx context.Context, id ID, f func(*Meta) error) (m Meta, err error) {
	err = s.locked(ctx, func() error {
		m, err = s.update(id, f)
		return err
	})
	if err != nil {
		return Meta{}, fmt.Errorf("update run %s: %w", id, err)
	}
	return m, nil
}

// update is Update with the state's lock held.
func (s *Store) update(id ID, f func(*Meta) error) (Meta, error) {
	old, err := s.Get(id)
	if err != nil {
		return Meta{}, err
	}
	m := old
	if err := f(&m); err != nil {
		return Meta{}, err
	}
	m.Schema = Schema(metaKind)
	if err := old.follows(&m); err != nil {
		return Meta{}, err
	}
	if err := m.check(id); err != nil {
		return Meta{}, err
	}
	dir, err := s.sys.Openat(s.runs, string(id), dirFlags, 0)
	if err != nil {
		return Meta{}, err
	}
	defer unix.Close(dir)
	return m, s.writeMeta(dir, &m)
}

// writeDocument writes the JSON document name (such as ReceiptFile) into the run's directory, as WriteJSON does.
func (s *Store) writeDocument(ctx context.Context, id ID, name, kind string, v any) error {
	if name == metaFile || name == lockFile || strings.ContainsRune(name, '/') || strings.HasPrefix(name, ".") {
		return fmt.Errorf("write document of run %s: %s is no name for one", id, strconv.Quote(name))
	}
	data, err := Encode(kind, v)
	if err != nil {
		return err
	}
	err = s.locked(ctx, func() error {
		dir, err := s.sys.Openat(s.runs, string(id), dirFlags, 0)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		return replaceFile(s.sys, dir, name, "."+name+".tmp", data, 0o600)
	})
	if errors.Is(err, unix.ENOENT) {
		err = ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("write %s of run %s: %w", name, id, err)
	}
	return nil
}

// readDocument reads a document that WriteDocument wrote. The error is fs.ErrNotExist if there is none.
func (s *Store) readDocument(id ID, name, kind string, v any) error {
	if _, err := ParseID(string(id)); err != nil {
		return err
	}
	return ReadJSON(filepath.Join(s.RunDir(id), name), kind, v)
}

// adopt makes this process the supervisor of a run in state Created that its creator has closed. The creator must be alive
// until then, else the run is lost.
func (s *Store) adopt(ctx context.Context, id ID) (*Run, error) {
	var run *Run
	err := s.locked(ctx, func() error {
		lock, free, err := s.tryRunLock(id)
		if err != nil {
			return err
		}
		if !free {
			return fmt.Errorf("%w: another process holds it", ErrLive)
		}
		_, err = s.update(id, func(m *Meta) error {
			if m.State != Created {
				return fmt.Errorf("it is %s, not %s", m.State, Created)
			}
			m.Supervisor = s.self
			return nil
		})
		if err != nil {
			unix.Close(lock)
			return err
		}
		run = &Run{s: s, id: id, lock: lock}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("adopt run %s: %w", id, err)
	}
	return run, nil
}

// tryRunLock takes the lock of a run if it is free. The caller then must close the descriptor.
func (s *Store) tryRunLock(id ID) (fd int, free bool, err error) {
	fd, err = s.sys.Openat(s.runs, string(id)+"/"+lockFile, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return -1, false, ErrNotFound
	}
	if err != nil {
		return -1, false, err
	}
	err = s.sys.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return fd, true, nil
	}
	unix.Close(fd)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return -1, false, nil
	}
	return -1, false, err
}

// Await blocks until the run's supervisor has closed it or is dead.
func (s *Store) Await(ctx context.Context, id ID) error {
	for wait := 200 * time.Microsecond; ; wait = min(2*wait, 20*time.Millisecond) {
		lock, free, err := s.tryRunLock(id)
		if err != nil {
			return fmt.Errorf("await run %s: %w", id, err)
		}
		if free {
			return unix.Close(lock)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("await run %s: %w", id, ctx.Err())
		}
	}
}

// ID returns the run's id.
func (r *Run) ID() ID { return r.id }

// Dir returns the path of the run's directory.
func (r *Run) Dir() string { return r.s.RunDir(r.id) }

// Path joins Dir and elem.
func (r *Run) Path(elem ...string) string {
	return filepath.Join(append([]string{r.Dir()}, elem...)...)
}

// Meta returns the run's record.
func (r *Run) Meta() (Meta, error) { return r.s.Get(r.id) }

// update changes the record, see Store.Update.
func (r *Run) update(ctx context.Context, f func(*Meta) error) (Meta, error) {
	return r.s.Update(ctx, r.id, f)
}

// WriteReceipt writes the run's receipt; v's schema is of kind "receipt".
func (r *Run) WriteReceipt(ctx context.Context, v any) error {
	return r.s.writeDocument(ctx, r.id, ReceiptFile, "receipt", v)
}

// ServiceLog returns the name of the log of a service beside a run.
func ServiceLog(service string) string { return "service-" + service }

// OpenLog opens a file in the run's log directory for appending. name is one path element.
func (r *Run) OpenLog(name string) (*os.File, error) {
	if name == "" || name[0] == '.' || strings.ContainsRune(name, '/') {
		return nil, fmt.Errorf("open log: %s is no name for one", strconv.Quote(name))
	}
	return os.OpenFile(r.Path(LogsDir, name), os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
}

// Start records that the command runs, and the path of its supervisor's control socket ("" if it has none). The run's
// duration counts from now.
func (r *Run) Start(ctx context.Context, socket string) error {
	r.mu.Lock()
	r.started = r.s.mono()
	r.mu.Unlock()
	_, err := r.update(ctx, func(m *Meta) error {
		if m.State != Created {
			return fmt.Errorf("it is %s already", m.State)
		}
		now := r.s.now()
		m.State, m.Started, m.Socket = Running, &now, Raw(socket)
		return nil
	})
	return err
}

// Finish records that the command ended, with the exit code of carboy run, and the state of its changes. It returns the
// record.
func (r *Run) Finish(ctx context.Context, exit int, changes Changes) (Meta, error) {
	return r.end(ctx, func(m *Meta) { m.State, m.Exit, m.Changes = Finished, &exit, changes })
}

// Fail records that carboy refused or failed with an exit code, and why. reason must not contain secrets or untrusted
// text.
func (r *Run) Fail(ctx context.Context, exit int, reason string, changes Changes) (Meta, error) {
	return r.end(ctx, func(m *Meta) { m.State, m.Exit, m.Reason, m.Changes = Failed, &exit, reason, changes })
}

func (r *Run) end(ctx context.Context, f func(*Meta)) (Meta, error) {
	r.mu.Lock()
	d := r.s.mono() - r.started
	r.mu.Unlock()
	return r.update(ctx, func(m *Meta) error {
		if m.State.Over() {
			return fmt.Errorf("it is %s already", m.State)
		}
		if m.State == Running {
			m.DurationNS = int64(max(d, 0))
		}
		now := r.s.now()
		m.Ended = &now
		f(m)
		return nil
	})
}

// Elapsed returns the monotonic time since Start.
func (r *Run) Elapsed() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.s.mono() - r.started
}

// Close releases the run: other processes may adopt it, or remove it if it is over. Close does not change the record, so
// a run that is not over is lost once this process ends. Closing twice is allowed.
func (r *Run) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lock >= 0 {
		unix.Close(r.lock)
		r.lock = -1
	}
	return nil
}
