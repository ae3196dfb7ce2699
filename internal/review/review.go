package review

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
)

// Find returns the run that ref names: by its id, by a unique prefix of that, or, if ref
// is empty, as the newest run of workspace (empty: the current directory).
func (c *Reviewer) Find(ctx context.Context, ref, workspace string) (store.Meta, error) {
	var ws store.Workspace
	if ref == "" {
		if workspace == "" {
			workspace = "."
		}
		var err error
		if ws, err = store.ResolveWorkspace(workspace); err != nil {
			return store.Meta{}, err
		}
	}
	m, err := c.Store.Find(ctx, ref, ws)
	if err != nil {
		return m, err
	}
	return c.Settled(ctx, m)
}

// List returns the runs on record, newest first.
func (c *Reviewer) List(ctx context.Context, q store.Query) (store.Listing, error) {
	l, err := c.Store.List(ctx, q)
	for i := range l.Runs {
		if err == nil {
			l.Runs[i], err = c.Settled(ctx, l.Runs[i])
		}
	}
	return l, err
}

// Receipt returns the receipt of a run, or the one that ReceiptOf makes if it wrote none.
func (c *Reviewer) Receipt(ctx context.Context, id store.ID) (*receipt.Receipt, error) {
	b, err := os.ReadFile(c.Store.RunDir(id) + "/" + store.ReceiptFile)
	if err == nil {
		return receipt.Parse(b)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	m, merr := c.Store.Get(id)
	if merr != nil {
		return nil, merr
	}
	set, err := change.OpenSet(c.Store.RunDir(id))
	if err != nil {
		set = nil // there is none, or it says nothing that can be relied on
	}
	r := ReceiptOf(m, set)
	if m.State == store.Lost {
		c.replay(r, m)
	}
	return r, nil
}

// ReceiptOf makes the receipt of a run that wrote none, since it is not over or its
// carboy died. set holds the changes that it left, or is nil.
func ReceiptOf(m store.Meta, set *change.Set) *receipt.Receipt {
	r := &receipt.Receipt{
		Schema: receipt.Schema, ID: m.ID, Build: m.Build, Command: m.Command,
		Workspace: receipt.Workspace{Path: m.Workspace.Path, Mode: m.Mode},
		Started:   m.Started, Ended: m.Ended,
		Exit: receipt.Exit{Reason: receipt.Running},
	}
	if !m.State.Over() {
		r.Notes = append(r.Notes, "The receipt is written when the run is over.")
		return r
	}
	if m.State != store.Lost {
		r.Exit = receipt.Exit{Reason: receipt.Exited, Error: m.Reason}
		if m.State == store.Failed {
			r.Exit.Reason = receipt.Failed
		}
		if m.Exit != nil {
			r.Exit.Code = *m.Exit
		}
		r.Notes = append(r.Notes, "carboy died before it had written the receipt. What the command changed is kept, its exit code is known, and the audit log holds the rest.")
		return r
	}
	r.Exit = receipt.Exit{Code: exitcode.OfRun(receipt.Lost), Reason: receipt.Lost, Error: m.Reason}
	lost := "carboy died during the run; its changes were in the bottle and are lost. Nothing of it reached the workspace."
	switch {
	case set != nil && m.Copied != nil:
		r.Changes = Summarize(set)
		lost = "carboy died during the run; its changes are kept as they were at " + m.Copied.Local().Format(time.DateTime) + " (carboy diff). Nothing of it reached the workspace by itself."
	case set != nil:
		// It died between the end of the command and the end of its records.
		r.Changes = Summarize(set)
		lost = "carboy died when the command had ended, before the records were complete; its changes had been taken and are kept (carboy diff). Nothing of it reached the workspace by itself."
	case m.Mode == store.Bind:
		lost = "carboy died during the run; what the command had written to the workspace until then is there."
	}
	r.Notes = append(r.Notes, lost)
	return r
}

// Changes opens the changes that a run made to its workspace.
func (c *Reviewer) Changes(id store.ID) (*change.Set, error) {
	s, err := change.OpenSet(c.Store.RunDir(id))
	if errors.Is(err, fs.ErrNotExist) {
		m, merr := c.Store.Get(id)
		if merr != nil {
			return nil, merr
		}
		return nil, noChanges(m)
	}
	return s, err
}

// ErrNoChanges means that a run has no set of changes.
var ErrNoChanges = errors.New("no changes are kept")

func noChanges(m store.Meta) error {
	why := "it failed before the command could change anything"
	switch {
	case m.Mode == store.Bind:
		why = "it wrote to the workspace directly (--workspace bind)"
	case m.Mode == store.None:
		why = "it had no workspace"
	case !m.State.Over():
		why = "it is not over"
	case m.State == store.Lost:
		why = "carboy died during it, and its changes with it"
	}
	return fmt.Errorf("run %s: %w: %s", m.ID, ErrNoChanges, why)
}

// Refs returns the references of git that a run changed.
func (c *Reviewer) Refs(ctx context.Context, id store.ID) ([]change.RefChange, error) {
	s, err := c.Changes(id)
	if err != nil {
		return nil, err
	}
	return s.Refs(ctx, c.Config.Policy())
}

// Diff writes the changes of a run to w.
func (c *Reviewer) Diff(ctx context.Context, id store.ID, w io.Writer, o change.DiffOptions) (change.DiffStat, error) {
	s, err := c.Changes(id)
	if err != nil {
		return change.DiffStat{}, err
	}
	if o.Refs == nil && len(o.Paths) == 0 {
		if o.Refs, err = s.Refs(ctx, c.Config.Policy()); err != nil {
			return change.DiffStat{}, err
		}
	}
	return s.Diff(w, o)
}

// Land applies changes of a run to its workspace. It takes the workspace's lock: only one
// landing or undo works there at a time, and none while a run writes to it directly.
func (c *Reviewer) Land(ctx context.Context, id store.ID, o change.LandOptions) (*change.LandReport, error) {
	s, m, release, err := c.forLanding(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	// The user may have protected more paths since the run ended.
	p := c.Config.Policy()
	o.Policy.CI = o.Policy.CI || p.CI
	o.Policy.Extra = append(o.Policy.Extra, p.Extra...)
	rep, err := change.Land(ctx, s, o)
	if err != nil {
		return rep, errors.Join(err, c.NoteReview(ctx, audit.Land, audit.Refused, m, err.Error()))
	}
	text := fmt.Sprintf("%d paths and %d references landed, %d withheld", len(rep.Landed), len(rep.Refs), len(rep.Withheld))
	if err := c.NoteReview(ctx, audit.Land, audit.Allowed, m, text); err != nil {
		return rep, err
	}
	_, err = c.Store.Update(ctx, id, func(m *store.Meta) error {
		m.Changes = store.Partly
		if !waits(s, rep) && !rep.RefsLeft {
			m.Changes = store.Landed
		}
		return nil
	})
	return rep, err
}

// waits reports whether a change could land and did not. Ignored ones wait for nobody.
func waits(s *change.Set, rep *change.LandReport) bool {
	taken := slices.Concat(rep.Landed, rep.Already)
	slices.Sort(taken)
	return slices.ContainsFunc(s.Changes, func(c change.Change) bool {
		_, there := slices.BinarySearch(taken, string(c.Path))
		return !there && c.Unlandable == "" && !c.Ignored
	})
}

// Undo reverts landings of a run.
func (c *Reviewer) Undo(ctx context.Context, id store.ID, o change.UndoOptions) (*change.UndoReport, error) {
	s, m, release, err := c.forLanding(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	// First: a run with the state "landed" may be removed together with its changes, and
	// from here on they may exist nowhere else.
	if err := c.SetChanges(ctx, id, store.Pending); err != nil {
		return nil, err
	}
	rep, err := change.Undo(ctx, s, o)
	if err != nil {
		if rep == nil || len(rep.Undone) == 0 {
			err = errors.Join(err, c.SetChanges(ctx, id, m.Changes))
		}
		return rep, errors.Join(err, c.NoteReview(ctx, audit.Undo, audit.Refused, m, err.Error()))
	}
	return rep, c.NoteReview(ctx, audit.Undo, audit.Allowed, m, fmt.Sprintf("%d paths and %d references restored", len(rep.Restored), len(rep.Refs)))
}

// SetChanges records the state of a run's changes.
func (c *Reviewer) SetChanges(ctx context.Context, id store.ID, to store.Changes) error {
	_, err := c.Store.Update(ctx, id, func(m *store.Meta) error { m.Changes = to; return nil })
	return err
}

func (c *Reviewer) forLanding(ctx context.Context, id store.ID) (*change.Set, store.Meta, func(), error) {
	m, err := c.Store.Get(id)
	if err != nil {
		return nil, m, nil, err
	}
	s, err := c.Changes(id)
	if err != nil {
		return nil, m, nil, err
	}
	land, err := c.Store.Claim(ctx, store.ForLand, m.Workspace, store.Exclusive, id)
	if err != nil {
		return nil, m, nil, err
	}
	// A run with --workspace bind holds the workspace exclusively.
	run, err := c.Store.Claim(ctx, store.ForRun, m.Workspace, store.Shared, id)
	if err != nil {
		land.Release()
		return nil, m, nil, err
	}
	return s, m, func() { run.Release(); land.Release() }, nil
}

// NoteReview appends an event about a run to the audit log.
func (c *Reviewer) NoteReview(ctx context.Context, kind audit.Kind, d audit.Decision, m store.Meta, text string) error {
	return c.note(ctx, audit.Event{Kind: kind, Run: string(m.ID), Decision: d}, string(m.Workspace.Path), text)
}

// NoteKept appends an event about what is kept of a bottle to the audit log. run is the run
// that was kept, or empty.
func (c *Reviewer) NoteKept(ctx context.Context, slug string, run store.ID, text string, digests ...audit.Digest) error {
	return c.note(ctx, audit.Event{Kind: audit.Kept, Run: string(run), Decision: audit.Noted, Digests: digests}, slug, text)
}

// note appends ev with this subject and text, which hold no secrets.
func (c *Reviewer) note(ctx context.Context, ev audit.Event, subject, text string) error {
	none, err := secret.NewRedactor(nil)
	if err != nil {
		return err
	}
	ev.Actor, ev.Subject, ev.Text = audit.ByUser(os.Getuid()), audit.Redact(none, subject), audit.Redact(none, text)
	_, err = c.Audit.Append(ctx, ev)
	return err
}

// NoteDestroyed records that a run was removed together with its bottle.
func (c *Reviewer) NoteDestroyed(ctx context.Context, m store.Meta, slug string) error {
	return c.NoteReview(ctx, audit.RunRemoved, audit.Allowed, m, "with bottle "+slug)
}

// OpenLog opens a log of a run: stdout, stderr or terminal. The bytes are untrusted: show
// them through package safetext.
func (c *Reviewer) OpenLog(id store.ID, name string) (*os.File, error) {
	if strings.ContainsRune(name, '/') {
		return nil, fmt.Errorf("open log: %q is no name for one", name)
	}
	return os.Open(c.Store.RunDir(id) + "/" + store.LogsDir + "/" + name)
}

// PlanGC returns what a garbage collection would remove.
func (c *Reviewer) PlanGC(ctx context.Context, p store.Policy) (store.Plan, error) {
	return c.Store.PlanGC(ctx, p)
}

// CleanLost removes the working files that a dead carboy left of a run, and records that
// the run is lost. Changes that were only partly taken do not count.
func (c *Reviewer) CleanLost(ctx context.Context, m store.Meta) error {
	dir := c.Store.RunDir(m.ID)
	errs := []error{fault.RemoveTree(dir + "/scratch"), fault.RemoveTree(dir + "/base"), fault.RemoveTree(dir + "/services")}
	text := "found by a later command"
	if m.Copied != nil {
		text += "; its files of " + m.Copied.UTC().Format(time.RFC3339) + " are kept"
	}
	return errors.Join(append(errs, c.NoteReview(ctx, audit.RunLost, audit.Noted, m, text))...)
}
