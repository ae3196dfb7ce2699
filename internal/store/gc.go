package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Policy selects runs for removal. The zero value selects none. Runs that are not over, that are lost and not cleaned up,
// or whose record cannot be read are never selected.
type Policy struct {
	Keep      int           // always keep this many of the newest runs; as the only rule, remove all others
	OlderThan time.Duration // remove runs that ended longer ago; 0: no such rule
	MaxBytes  int64         // remove the oldest runs until the others use no more space; 0: no such rule
	All       bool          // remove all runs
	Unlanded  bool          // remove runs with unlanded changes too
}

// Candidate is one run in a Plan.
type Candidate struct {
	Meta  Meta
	Bytes int64  // on disk
	Why   string // why the run is removed, or why it is kept in spite of a rule
}

// Plan lists the runs that ApplyGC will remove.
type Plan struct {
	Remove  []Candidate // oldest first
	Stay    []Candidate // selected by a rule, but kept
	Corrupt []*CorruptError
	Freed   int64 // bytes
	Total   int64 // bytes of all runs before
	opts    RemoveOptions
}

// PlanGC returns the runs that p selects. It changes nothing.
func (s *Store) PlanGC(ctx context.Context, p Policy) (Plan, error) {
	if p.Keep < 0 || p.OlderThan < 0 || p.MaxBytes < 0 {
		return Plan{}, errors.New("plan garbage collection: a negative bound")
	}
	plan := Plan{opts: RemoveOptions{Unlanded: p.Unlanded}}
	l, err := s.List(ctx, Query{})
	if err != nil {
		return plan, err
	}
	plan.Corrupt = l.Corrupt
	sizes := make([]int64, len(l.Runs))
	for i, m := range l.Runs {
		u, err := s.usage(ctx, m.ID)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return plan, fmt.Errorf("plan garbage collection: %w", err)
		}
		sizes[i] = u.Bytes
		plan.Total += u.Bytes
	}
	for i := len(l.Runs) - 1; i >= 0; i-- { // oldest first
		c := Candidate{Meta: l.Runs[i], Bytes: sizes[i]}
		if c.Why = p.rule(c.Meta, s.now(), plan.Total-plan.Freed); c.Why == "" {
			continue
		}
		if stay := p.stays(c.Meta, i); stay != "" {
			c.Why = stay
			plan.Stay = append(plan.Stay, c)
			continue
		}
		plan.Remove = append(plan.Remove, c)
		plan.Freed += c.Bytes
	}
	return plan, nil
}

// rule returns why a run should be removed, "" if no rule selects it. total is the size of the remaining runs.
func (p Policy) rule(m Meta, now time.Time, total int64) string {
	switch {
	case p.All:
		return "all were asked for"
	case p.OlderThan > 0 && m.Ended != nil && now.Sub(*m.Ended) > p.OlderThan:
		return "ended more than " + p.OlderThan.String() + " ago"
	case p.MaxBytes > 0 && total > p.MaxBytes:
		return fmt.Sprintf("runs hold more than %d bytes", p.MaxBytes)
	case p.Keep > 0 && p.OlderThan == 0 && p.MaxBytes == 0:
		return fmt.Sprintf("is not among the newest %d", p.Keep)
	}
	return ""
}

// stays returns why a run must be kept, "" if it may be removed. newer is the number of newer runs.
func (p Policy) stays(m Meta, newer int) string {
	switch {
	case newer < p.Keep:
		return fmt.Sprintf("is among the newest %d", p.Keep)
	case !m.State.Over():
		return "is " + string(m.State)
	case m.State == Lost && !m.Cleaned:
		return "was lost and is not cleaned up"
	case !m.Changes.Settled() && !p.Unlanded:
		return ErrUnlanded.Error()
	}
	return ""
}

// ApplyGC removes the planned runs, after checking each again. It continues after an error, and returns the removed runs
// and all errors.
func (s *Store) ApplyGC(ctx context.Context, plan Plan) (removed []ID, err error) {
	var errs []error
	for _, c := range plan.Remove {
		if ctx.Err() != nil {
			errs = append(errs, ctx.Err())
			break
		}
		switch err := s.Remove(ctx, c.Meta.ID, plan.opts); {
		case err == nil:
			removed = append(removed, c.Meta.ID)
		case !errors.Is(err, ErrNotFound):
			errs = append(errs, err)
		}
	}
	return removed, errors.Join(errs...)
}

// Usage is the disk space of a run.
type Usage struct {
	Bytes   int64 // allocated bytes, without holes
	Files   int64
	Partial bool // some directories could not be read or are too deep: Bytes is a lower bound
}

// maxDepth bounds the depth of Usage, which opens one directory per level.
const maxDepth = 128

// usage returns the disk space of a run's directory. It does not follow links and mounts.
func (s *Store) usage(ctx context.Context, id ID) (Usage, error) {
	var u Usage
	if _, err := ParseID(string(id)); err != nil {
		return u, err
	}
	err := usage(ctx, s.runs, string(id), maxDepth, &u)
	if errors.Is(err, unix.ENOENT) {
		err = ErrNotFound
	}
	if err != nil {
		return u, fmt.Errorf("size of run %s: %w", id, err)
	}
	return u, nil
}

func usage(ctx context.Context, at int, name string, depth int, u *Usage) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	fd, err := openBeneath(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	dir, err := dup(fd)
	if err != nil {
		unix.Close(fd)
		return err
	}
	defer unix.Close(dir)
	return eachName(fd, func(child string) error {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, child, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			u.Partial = u.Partial || !errors.Is(err, unix.ENOENT)
			return nil
		}
		u.Files++
		u.Bytes += st.Blocks * 512
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return nil
		}
		if depth == 0 {
			u.Partial = true
			return nil
		}
		if err := usage(ctx, dir, child, depth-1, u); err != nil {
			if ctx.Err() != nil {
				return err
			}
			u.Partial = true
		}
		return nil
	})
}
