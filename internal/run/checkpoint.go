package run

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/checkpoint"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// While a bottle runs, its files are copied again and again to the run's directory. The
// copies are removed when the run's changes were taken. If carboy, the bottle or the
// machine dies first, the next command takes the changes from the last copy.

const (
	checkpointDir = "checkpoint"
	aboutKind     = "checkpoint"

	// Between two copies are at least leastBetween, at most mostBetween while something
	// changes, and else so long that the bottle stands still for 1/standsStill of the time.
	leastBetween = 2 * time.Second
	mostBetween  = 30 * time.Second
	standsStill  = 50

	// lockIn bounds the wait for the lock of a lost run's bottle. Processes inside may hold
	// it for a moment after their carboy has died.
	lockIn = 5 * time.Second
)

// about describes the run whose files the copies hold. With it they become the run's
// changes, and a kept bottle.
type about struct {
	Schema string      `json:"schema"`
	Target string      `json:"target,omitempty"` // of the workspace inside; empty: no changes to take
	Disk   int64       `json:"disk_bytes"`       // the bottle's limit
	Kept   *store.Kept `json:"kept,omitempty"`   // of a bottle with a name, without its files
}

// startCheckpoints copies the bottle's files until stop is called. stop blocks until the
// bottle goes on after the copy under way.
func (s *Session) startCheckpoints(ctx context.Context) (stop func()) {
	// A tree that carboy itself has made can be made again.
	if s.o.Throwaway || s.o.Repeats || s.o.At != "" || s.copiedTarget() == "" && (s.o.Grant == nil || s.o.Grant.Lock == nil) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	note := make(chan string, 1)
	go func() { note <- s.checkpoints(ctx) }() // ends with stop
	return func() {
		cancel()
		if n := <-note; n != "" {
			s.Rec.Notes = append(s.Rec.Notes, n)
		}
	}
}

// copies returns the directory of the run's copies.
func (s *Session) copies() *checkpoint.Dir {
	return checkpoint.Open(s.run.Path(checkpointDir), s.Limits.Disk)
}

// copiedTarget returns where inside the workspace is whose changes a copy holds, or "".
func (s *Session) copiedTarget() string {
	if s.Mode == store.Bind || s.Mode == store.None {
		return ""
	}
	return s.Target
}

// checkpoints copies the bottle's files until ctx ends or they do not fit. It returns a
// note for the receipt if a copy failed.
func (s *Session) checkpoints(ctx context.Context) (note string) {
	dir := s.copies()
	o := bottle.CheckpointOptions{Skip: renewable(s.User.User.Home, s.Target)}
	for wait, described := leastBetween, false; ; {
		select {
		case <-ctx.Done():
			return note
		case <-time.After(wait):
		}
		var r bottle.Checkpointed
		var err error
		if !described {
			err = s.describeCheckpoints(ctx, dir)
			described = err == nil
		}
		if err == nil {
			err = dir.Add(ctx, func(w io.Writer) (_ bool, err error) {
				r, err = s.bottle.Checkpoint(ctx, o, w)
				return r.Changed, err
			})
		}
		if ctx.Err() != nil || errors.Is(err, bottle.ErrGone) {
			return note
		}
		if err != nil && note == "" {
			text := safetext.String(err.Error(), 300)
			note = fault.Sentence("Its files could not always be copied while it ran: " + text)
			s.events.send(plan.Event{Kind: "progress", Text: "the bottle's files can't be copied (" + text + "), so a kill of carboy would lose its latest changes"})
		}
		if errors.Is(err, checkpoint.ErrFull) {
			return note
		}
		o.Whole = err != nil
		wait = nextCopy(wait, r, err)
	}
}

// nextCopy returns how long to wait for the next copy, after one that was waited for and
// ended so.
func nextCopy(waited time.Duration, r bottle.Checkpointed, err error) time.Duration {
	switch {
	case err != nil:
		return mostBetween
	case !r.Changed:
		return min(2*waited, mostBetween)
	}
	return min(max(standsStill*r.Paused, leastBetween), mostBetween)
}

// renewable returns the directories inside that are not copied, since programs make their
// contents anew. None holds target, which is the workspace.
func renewable(home, target string) []string {
	var out []string
	for _, dir := range []string{"/tmp", "/var/tmp", home + "/.cache", home + "/.npm/_cacache"} {
		if target != dir && !strings.HasPrefix(target, dir+"/") && home != dir && !strings.HasPrefix(home, dir+"/") {
			out = append(out, dir)
		}
	}
	return out
}

// describeCheckpoints writes to disk what the copies need beside them.
func (s *Session) describeCheckpoints(ctx context.Context, dir *checkpoint.Dir) error {
	a := &about{Schema: store.Schema(aboutKind), Target: s.copiedTarget(), Disk: s.Limits.Disk}
	if a.Target != "" {
		if err := s.baseline.Save(ctx); err != nil {
			return err
		}
	}
	if g := s.o.Grant; g != nil && g.Lock != nil {
		a.Kept = s.newKept()
		a.Kept.Schema, a.Kept.WhyNot = store.Schema("kept"), "its carboy died"
		if err := g.Identity.Write(g.Lock); err != nil {
			return err
		}
	}
	data, err := store.Encode(aboutKind, a)
	if err != nil {
		return err
	}
	return dir.Describe(data)
}

// takeCopied takes the changes from the last copy, when the bottle, for the reason err,
// could not give them. It returns err if there is none.
func (s *Session) takeCopied(ctx context.Context, err error) error {
	dir := s.copies()
	at, cerr := dir.Latest()
	if cerr != nil {
		return err
	}
	note := asOf(at)
	set, cerr := s.collect(ctx, dir.Write, note)
	if cerr != nil {
		return errors.Join(err, cerr)
	}
	s.set = set
	s.Rec.Notes = append(s.Rec.Notes, fault.Sentence("The bottle ended before its changes could be taken ("+safetext.String(err.Error(), 300)+"): "+note))
	return nil
}

// asOf says of which time the files of a copy are.
func asOf(at time.Time) string {
	return "these are its files of " + at.Local().Format(time.DateTime) + "; what it wrote later is lost"
}

// restore takes the changes of a lost run from the last copy of its bottle's files, keeps
// the bottle if it has a name, and returns the run's new record. What can't be taken stays
// where it is, and the record says why.
func (c *Runner) restore(ctx context.Context, m store.Meta) (store.Meta, error) {
	dir := checkpoint.Open(filepath.Join(c.Store.RunDir(m.ID), checkpointDir), 0) // nothing is added
	at, err := dir.Latest()
	var data []byte
	if err == nil {
		data, err = dir.Description()
	}
	if errors.Is(err, checkpoint.ErrNone) {
		return m, nil
	}
	var changes store.Changes
	if err == nil {
		changes, err = c.restoreFrom(ctx, m, dir, at, data)
	}
	if ctx.Err() != nil {
		return m, ctx.Err() // the next command tries again
	}
	now, uerr := c.Store.Update(ctx, m.ID, func(m *store.Meta) error {
		m.Changes, m.Copied, m.CopyError, m.CopyWaits = changes, &at, "", false
		if err != nil {
			m.Changes, m.Copied, m.CopyError = "", nil, err.Error()
			// A workspace may come back; a copy that can't be read is not read again by each
			// command.
			var missing *change.WorkspaceError
			m.CopyWaits = errors.As(err, &missing) || errors.Is(err, change.ErrWorkspaceReplaced)
		}
		return nil
	})
	if uerr != nil || err != nil {
		return now, uerr
	}
	return now, fault.RemoveTree(filepath.Join(c.Store.RunDir(m.ID), checkpointDir))
}

// restoreFrom restores a run from the copy of the time at. data is what describes it.
func (c *Runner) restoreFrom(ctx context.Context, m store.Meta, dir *checkpoint.Dir, at time.Time, data []byte) (changes store.Changes, err error) {
	var a about
	if err := store.Decode("the description of the copies", aboutKind, data, &a); err != nil {
		return "", err
	}
	changes = store.NoChanges
	if a.Target != "" {
		if changes, err = c.restoreChanges(ctx, c.Store.RunDir(m.ID), &a, dir, at); err != nil {
			return "", err
		}
	}
	if a.Kept != nil {
		a.Kept.At = at
		err = c.restoreBottle(ctx, m, a.Kept, dir)
	}
	return changes, err
}

// restoreChanges takes the changes to the workspace, unless they were taken before carboy
// died.
func (c *Runner) restoreChanges(ctx context.Context, runDir string, a *about, dir *checkpoint.Dir, at time.Time) (store.Changes, error) {
	set, err := change.OpenSet(runDir)
	if errors.Is(err, fs.ErrNotExist) {
		var b *change.Baseline
		if b, err = change.Reopen(runDir); err != nil {
			return "", err
		}
		defer b.Close()
		set, err = collect(ctx, dir.Write, change.CollectOptions{
			Prefix: a.Target, RunDir: runDir, Baseline: b, MaxBytes: a.Disk, Policy: c.Config.Policy(), Notes: []string{"carboy died during the run; " + asOf(at)},
		})
	}
	if err != nil {
		return "", err
	}
	if len(set.Changes) == 0 && len(set.Incomplete) == 0 {
		return store.NoChanges, nil
	}
	return store.Pending, nil
}

// restoreBottle keeps the bottle of a lost run, unless a later run's is kept.
func (c *Runner) restoreBottle(ctx context.Context, m store.Meta, k *store.Kept, dir *checkpoint.Dir) error {
	within, cancel := context.WithTimeout(ctx, lockIn)
	defer cancel()
	lock, err := c.Store.AwaitBottle(within, m.Name)
	if errors.Is(err, store.ErrNoBottle) || errors.Is(err, store.ErrBottleBusy) {
		return nil // it was destroyed, or is being
	}
	if err != nil {
		return err
	}
	defer lock.Unlock()
	old, _, err := c.Store.Kept(m.Name)
	if err != nil || old != nil && (old.Run == m.ID || old.At.After(m.Created)) {
		return err
	}
	place, err := lock.KeptDir(m.ID)
	if err != nil {
		return err
	}
	if k.Files, err = writePart(place, keptFiles, func(w io.Writer) error { return dir.Write(ctx, w) }); err != nil {
		return err
	}
	if err := lock.Keep(k); err != nil {
		return err
	}
	return c.review.NoteKept(ctx, m.Name, m.ID, "from the last copy of its files, since carboy died: "+k.At.Format(time.RFC3339), audit.Digest{Of: "kept", Sum: digestOf(k)})
}
