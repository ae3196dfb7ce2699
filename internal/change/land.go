package change

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// LandOptions configures Land.
type LandOptions struct {
	// Paths selects files or directories, literally; none selects all.
	Paths []string
	// IncludeProtected lands protected paths too.
	IncludeProtected bool
	// IncludeIgnored lands ignored paths too; see Change.Ignored.
	IncludeIgnored bool
	// AllowIncomplete lands an incomplete set as far as it goes.
	AllowIncomplete bool
	// Refs names references of git that land beside the branch that is checked out; see
	// RefChange.ID.
	Refs []string
	// Policy adds to the protection that the set was collected with.
	Policy Policy

	fault func(step, path string) error // tests
	plain bool                          // tests: as if renames knew no flags
}

// LandReport lists what Land did.
type LandReport struct {
	ID       string   // of the landing in the run directory; "" if nothing was done
	Landed   []string // paths of changes, in order
	Already  []string // paths where the host already had the bottle's version
	Implied  []string // directories that were not selected but needed
	Withheld []Withheld
	Refs     []RefChange // references that were moved
	RefsLeft bool        // some references could land and did not
	Ignored  int         // changes that stay because nobody asked for them
}

// Land applies the selected changes to the host's workspace, all or none. A
// *ConflictError names every path that the host changed meanwhile. After an
// error the workspace is as before, except after a *RollbackError or a
// *StrandedError. Landing again skips the changes that are already there. Land
// first completes or rolls back an interrupted landing or undo (see Recover).
//
// New files get the mode that Diff shows and the present time: build tools
// compare times, and the bottle's clock cannot be trusted.
func Land(ctx context.Context, s *Set, opts LandOptions) (*LandReport, error) {
	if len(s.Incomplete) > 0 && !opts.AllowIncomplete {
		return nil, fmt.Errorf("land: %w: %s", ErrIncomplete, s.Incomplete[0])
	}
	root, err := lockWorkspace(ctx, s.Workspace)
	if err != nil {
		return nil, fmt.Errorf("land: %w", err)
	}
	defer closeFd(root)
	if _, err := recoverAll(ctx, s.dir, s.Workspace, root); err != nil {
		return nil, fmt.Errorf("land: %w", err)
	}
	sel, err := s.selectFor(opts)
	if err != nil {
		return nil, err
	}
	p := &planner{ctx: ctx, t: tree{root}}
	if err := p.plan(sel); err != nil {
		return nil, fmt.Errorf("land: %w", err)
	}
	if len(p.conflicts) > 0 {
		return nil, &ConflictError{Op: "land", Conflicts: p.conflicts}
	}
	g, err := takeRefs(ctx, s, p.t, &opts, &p.ops)
	defer g.close()
	if err != nil {
		return nil, landError(err)
	}
	rep := &LandReport{Already: p.already, Implied: sel.implied, Withheld: append(sel.withheld, g.withheld...), Ignored: sel.ignored}
	rep.RefsLeft = g.left
	if len(p.ops) == 0 && len(g.plans) == 0 {
		return rep, nil
	}
	j, err := newJournal(s.dir, "land")
	if err != nil {
		return nil, fmt.Errorf("land: %w", err)
	}
	defer j.close()
	x := &txn{ctx: ctx, t: tree{root}, runDir: s.dir, j: j, fault: opts.fault, mv: mover{plain: opts.plain}}
	closePack, err := x.readFrom()
	if err != nil {
		return nil, fmt.Errorf("land: %w", err)
	}
	defer closePack()
	if err := x.run("land", "", s.Workspace, p.ops, g.plans, true); err != nil {
		j.abandon()
		return nil, fmt.Errorf("land: %w", err)
	}
	rep.ID = j.id
	rep.Refs = g.landed
	rep.Landed = landed(sel, p.already)
	return rep, nil
}

// landError says what failed, unless the error does so itself.
func landError(err error) error {
	var conflict *ConflictError
	if errors.As(err, &conflict) || errors.Is(err, ErrNoSuchChange) {
		return err
	}
	return fmt.Errorf("land: %w", err)
}

func landed(sel *selection, already []string) []string {
	skip := make(map[string]bool, len(already))
	for _, p := range already {
		skip[p] = true
	}
	var out []string
	for i, take := range sel.take {
		if p := string(sel.s.Changes[i].Path); take && !skip[p] {
			out = append(out, p)
		}
	}
	return out
}

// readFrom sets x.src, which opens new contents from the pack or from
// pre-images. The returned function closes the pack.
func (x *txn) readFrom() (func(), error) {
	f, err := os.Open(filepath.Join(x.runDir, upperDir, packFile))
	if errors.Is(err, os.ErrNotExist) {
		f, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	x.src = func(n *node) (contentReader, error) {
		if n.file != "" {
			made, err := os.Open(n.file)
			return contentReader{made, made}, err
		}
		if n.PreOf != "" {
			pre, err := os.Open(x.prePath(n.PreOf, n.Pre))
			return contentReader{pre, pre}, err
		}
		if f == nil {
			return contentReader{}, errors.New("the run's contents are gone")
		}
		return contentReader{io.NewSectionReader(f, n.Offset, n.Size), io.NopCloser(nil)}, nil
	}
	return func() {
		if f != nil {
			f.Close()
		}
	}, nil
}

// abandon removes the journal's directory if no plan was written.
func (j *journal) abandon() {
	if j.plan == nil {
		os.RemoveAll(j.dir)
	}
}

// lockWorkspace opens the workspace and takes an flock on it, so that one run lands at a
// time. The lock ends with the descriptor.
func lockWorkspace(ctx context.Context, id Identity) (int, error) {
	fd, err := reopenRoot(id)
	if err != nil {
		return -1, err
	}
	for deadline := time.Now().Add(lockWait); ; {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil, err == unix.EBADF, err == unix.EOPNOTSUPP, err == unix.ENOLCK:
			return fd, nil // some network file systems lock no directories
		case err != unix.EWOULDBLOCK && err != unix.EINTR:
			closeFd(fd)
			return -1, wrapPath("lock workspace", id.Path, err)
		case time.Now().After(deadline):
			closeFd(fd)
			return -1, wrapPath("lock workspace", id.Path, ErrBusy)
		}
		select {
		case <-ctx.Done():
			closeFd(fd)
			return -1, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

const lockWait = 2 * time.Second
