package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Recovered is the result of Recover.
type Recovered struct {
	// Lost lists the runs whose supervisor is dead, oldest first, until Cleaned is called for them, and those with
	// CopyWaits. The caller must remove
	// what they may have left outside the state directory: processes, mounts, sockets, cgroups.
	Lost []Meta
	// Corrupt lists records that cannot be read. They are unchanged.
	Corrupt []*CorruptError
}

// Recover repairs the state directory after a crash. It marks runs lost that are created or running but whose supervisor
// is dead, removes incomplete directories and completes removals. A run is lost only if its lock is free and its
// supervisor's process is not known to be alive. That is correct for reused pids, in other pid namespaces, and while a
// run is handed to another supervisor. Every command that changes state should call Recover first.
//
// Recover continues after an error and joins all errors. It empties the trash first, which helps on a full disk.
func (s *Store) Recover(ctx context.Context) (Recovered, error) {
	var r Recovered
	var errs []error
	if err := s.locked(ctx, s.dropHalfMade); err != nil {
		errs = append(errs, err)
	}
	if err := s.emptyTrash(ctx); err != nil {
		errs = append(errs, err)
	}
	err := s.locked(ctx, func() error {
		l, err := s.List(ctx, Query{})
		if err != nil {
			return err
		}
		r.Corrupt = l.Corrupt
		for i := len(l.Runs) - 1; i >= 0; i-- {
			m := l.Runs[i]
			if !m.State.Over() {
				if m, err = s.markLost(m); err != nil {
					errs = append(errs, fmt.Errorf("run %s: %w", m.ID, err))
				}
			}
			if m.State == Lost && (!m.Cleaned || m.CopyWaits) {
				r.Lost = append(r.Lost, m)
			}
		}
		return nil
	})
	if err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return r, fmt.Errorf("recover state: %w", err)
	}
	return r, nil
}

// dropHalfMade removes directories whose creator died. The caller holds the state's lock, so no creator is alive.
func (s *Store) dropHalfMade() error {
	for _, at := range []int{s.runs, s.bottles} {
		var half []string
		err := s.readNames(at, ".", func(name string) error {
			if strings.HasPrefix(name, newPrefix) {
				half = append(half, name)
			}
			return nil
		})
		for _, name := range half {
			if err == nil {
				err = s.toTrash(at, name)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) markLost(m Meta) (Meta, error) {
	lock, free, err := s.tryRunLock(m.ID)
	if err != nil || !free {
		return m, err
	}
	defer unix.Close(lock)
	if m.Supervisor.live() == alive {
		return m, nil // between two owners
	}
	lost, err := s.update(m.ID, func(m *Meta) error {
		now := s.now()
		m.Reason = fmt.Sprintf("its supervisor (pid %d) ended without a word in state %s", m.Supervisor.PID, m.State)
		m.State, m.Ended, m.Cleaned = Lost, &now, false
		return nil
	})
	if err != nil {
		return m, err
	}
	return lost, nil
}

// HoldLost takes the lock of a lost run, so that one process at a time works on what it left. It blocks while another one
// holds it. It returns the record as it is then; release is nil if another process was done with it, or removed it.
func (s *Store) HoldLost(ctx context.Context, id ID) (m Meta, release func(), err error) {
	for {
		lock, free, err := s.tryRunLock(id)
		switch {
		case errors.Is(err, unix.ENOENT):
			return m, nil, nil
		case err != nil:
			return m, nil, err
		case free:
			if m, err = s.Get(id); err != nil || m.State != Lost || m.Cleaned && !m.CopyWaits {
				unix.Close(lock)
				if errors.Is(err, ErrNotFound) {
					err = nil
				}
				return m, nil, err
			}
			return m, func() { unix.Close(lock) }, nil
		}
		select {
		case <-ctx.Done():
			return m, nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Cleaned records that everything a lost run left elsewhere is removed. Recover no longer lists the run.
func (s *Store) Cleaned(ctx context.Context, id ID) error {
	_, err := s.Update(ctx, id, func(m *Meta) error {
		if m.State != Lost {
			return fmt.Errorf("it is %s, not lost", m.State)
		}
		m.Cleaned = true
		return nil
	})
	return err
}

// RemoveOptions allows Remove to delete more. The zero value allows the least.
type RemoveOptions struct {
	Unlanded bool // delete changes that were not landed
	Corrupt  bool // together with Unlanded: delete a run whose record cannot be read
}

// Remove deletes a run that is over. It moves the run's directory to the trash in one step and then deletes its contents.
// If that is interrupted, Recover deletes the rest.
func (s *Store) Remove(ctx context.Context, id ID, o RemoveOptions) error {
	if _, err := ParseID(string(id)); err != nil {
		return err
	}
	err := s.locked(ctx, func() error { return s.retire(id, o) })
	if err == nil {
		err = s.emptyTrash(ctx)
	}
	if err != nil {
		return fmt.Errorf("remove run %s: %w", id, err)
	}
	return nil
}

func (s *Store) retire(id ID, o RemoveOptions) error {
	m, err := s.Get(id)
	var corrupt *CorruptError
	switch {
	case errors.As(err, &corrupt) && o.Corrupt && o.Unlanded:
	case err != nil:
		return err
	case !m.State.Over():
		return fmt.Errorf("%w: it is %s", ErrLive, m.State)
	case m.State == Lost && !m.Cleaned:
		return fmt.Errorf("%w: what it may have left running was not cleaned up", ErrLive)
	case !m.Changes.Settled() && !o.Unlanded:
		return ErrUnlanded
	}
	lock, free, err := s.tryRunLock(id)
	switch {
	case corrupt != nil && err != nil: // no directory at all, or one without a lock: nobody can hold it
	case err != nil:
		return err
	case !free:
		return fmt.Errorf("%w: a process holds it", ErrLive)
	default:
		defer unix.Close(lock)
	}
	return s.toTrash(s.runs, string(id))
}
