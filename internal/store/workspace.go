package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Workspace identifies a directory by its path without links and by its inode. Another name of the same directory (a
// link, a bind mount) is the same workspace, and so is a new directory at the same path.
type Workspace struct {
	Path Raw    `json:"path"`
	Dev  uint64 `json:"dev"`
	Ino  uint64 `json:"ino"`
}

// ResolveWorkspace returns the workspace of the directory at path. The caller must check whether the directory is allowed,
// such as / or a home directory.
func ResolveWorkspace(path string) (Workspace, error) {
	abs, err := filepath.Abs(path)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return Workspace{}, fmt.Errorf("resolve workspace %s: %w", strconv.Quote(path), err)
	}
	var st unix.Stat_t
	if err = unix.Stat(abs, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		err = unix.ENOTDIR
	}
	if err != nil {
		return Workspace{}, fmt.Errorf("resolve workspace %s: %w", strconv.Quote(path), err)
	}
	return Workspace{Path: Raw(abs), Dev: st.Dev, Ino: st.Ino}, nil
}

// same reports whether w and o are the same workspace. A zero Workspace (of a run without one) is the same as none.
func (w Workspace) same(o Workspace) bool {
	if w.Path == "" || o.Path == "" {
		return false
	}
	return w.Path == o.Path || w.Dev == o.Dev && w.Ino == o.Ino
}

// overlaps reports whether a write in one workspace can be visible in the other.
func (w Workspace) overlaps(o Workspace) bool {
	return w.same(o) || w.within(o) || o.within(w)
}

func (w Workspace) within(o Workspace) bool {
	return o.Path != "" && strings.HasPrefix(string(w.Path), strings.TrimSuffix(string(o.Path), "/")+"/")
}

// Access says which other claims may exist at the same time. The zero value is invalid.
type Access string

const (
	// Shared: the workspace is read, as by overlay and copy runs. Any number at a time.
	Shared Access = "shared"
	// Exclusive: the workspace is written, as by bind runs. No other claim on it, above it or below it.
	Exclusive Access = "exclusive"
)

// Purpose separates claims that never conflict. The zero value is invalid.
type Purpose string

const (
	ForRun  Purpose = "run"  // a run uses the workspace
	ForLand Purpose = "land" // land or undo write to it; runs on an overlay may continue
)

// Owner identifies the holder of a claim.
type Owner struct {
	Run     ID      `json:"run,omitempty"`
	Process Process `json:"process"`
	Access  Access  `json:"access"`
	Path    Raw     `json:"path"` // of the workspace that it claimed
}

// BusyError says that other claims conflict with a claim.
type BusyError struct {
	Workspace Workspace
	Owners    []Owner // at least one; without a process when its claim can't be read
}

func (e *BusyError) Error() string {
	s := fmt.Sprintf("workspace %s is locked by ", strconv.Quote(string(e.Workspace.Path)))
	for i, o := range e.Owners {
		if i > 0 {
			s += ", "
		}
		if o.Run != "" {
			s += "run " + string(o.Run)
		} else {
			s += "a carboy command"
		}
		s += fmt.Sprintf(" (pid %d)", o.Process.PID)
		if o.Path != e.Workspace.Path {
			s += " on " + strconv.Quote(string(o.Path))
		}
	}
	return s
}

const claimKind = "claim"

type claimFile struct {
	Schema    string    `json:"schema"`
	Purpose   Purpose   `json:"purpose"`
	Workspace Workspace `json:"workspace"`
	Owner     Owner     `json:"owner"`
}

// Claim is a lock on a workspace. It ends with Release or with the process.
type Claim struct {
	s    *Store
	name string
	fd   int
}

// Claim locks a workspace for this process, on behalf of run ("" for none), or returns a *BusyError at once. Each holder
// has a file in locks/ that describes its claim. It holds an flock on the file, which the kernel releases when it dies.
func (s *Store) Claim(ctx context.Context, p Purpose, ws Workspace, a Access, run ID) (*Claim, error) {
	if p != ForRun && p != ForLand || a != Shared && a != Exclusive || ws.Path == "" {
		return nil, fmt.Errorf("claim workspace %s: purpose %q, access %q", strconv.Quote(string(ws.Path)), p, a)
	}
	me := claimFile{Schema(claimKind), p, ws, Owner{Run: run, Process: s.self, Access: a, Path: ws.Path}}
	guard, err := s.flockFile(ctx, s.locks, ".guard")
	if err != nil {
		return nil, fmt.Errorf("claim workspace %s: %w", strconv.Quote(string(ws.Path)), err)
	}
	defer unix.Close(guard)
	last, err := s.conflicts(&me)
	if err != nil {
		return nil, err
	}
	c, err := s.putClaim(last, &me)
	if err != nil {
		return nil, fmt.Errorf("claim workspace %s: %w", strconv.Quote(string(ws.Path)), err)
	}
	return c, nil
}

// conflicts removes the claims of dead holders, and returns a *BusyError if a claim conflicts with me.
func (s *Store) conflicts(me *claimFile) (last ID, err error) {
	busy := &BusyError{Workspace: me.Workspace}
	err = s.readNames(s.locks, ".", func(name string) error {
		id, err := ParseID(name)
		if err != nil {
			return nil
		}
		last = max(last, id)
		held, err := s.claimHeld(name)
		if err != nil || !held {
			return err
		}
		data, err := readAt(s.sys, s.locks, name)
		var other claimFile
		if err == nil {
			err = Decode(name, claimKind, data, &other)
		}
		switch {
		case errors.Is(err, unix.ENOENT): // released since
		case err != nil: // held by somebody whose claim can't be read: of a later carboy, perhaps. It counts as in the way.
			busy.Owners = append(busy.Owners, Owner{})
		case other.Purpose == me.Purpose && other.Workspace.overlaps(me.Workspace) &&
			(other.Owner.Access != Shared || me.Owner.Access != Shared):
			busy.Owners = append(busy.Owners, other.Owner)
		}
		return nil
	})
	if err == nil && len(busy.Owners) > 0 {
		err = busy
	}
	return last, err
}

// claimHeld reports whether a living process holds the claim, and removes the claim if none does. The caller must hold the
// guard, because only its holder makes claims.
func (s *Store) claimHeld(name string) (bool, error) {
	fd, err := s.sys.Openat(s.locks, name, readFlags, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	switch err := s.sys.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return true, nil
	case err != nil:
		return false, err
	}
	if err := s.sys.Unlinkat(s.locks, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return false, err
	}
	return false, nil
}

func (s *Store) putClaim(last ID, me *claimFile) (_ *Claim, err error) {
	id, err := nextID(last, s.now())
	if err != nil {
		return nil, err
	}
	data, err := Encode(claimKind, me)
	if err != nil {
		return nil, err
	}
	c := &Claim{s: s, name: string(id)}
	c.fd, err = s.sys.Openat(s.locks, c.name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err = s.sys.Flock(c.fd, unix.LOCK_EX|unix.LOCK_NB); err == nil {
		// No sync: a claim means nothing after the machine has stopped.
		err = writeAll(s.sys, c.fd, data)
	}
	if err != nil {
		c.Release()
		return nil, err
	}
	return c, nil
}

// Release ends the claim. Releasing twice is allowed.
func (c *Claim) Release() error {
	if c.fd < 0 {
		return nil
	}
	err := c.s.sys.Unlinkat(c.s.locks, c.name, 0)
	unix.Close(c.fd)
	c.fd = -1
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return err
}
