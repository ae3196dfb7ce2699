package carboy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/pool"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
)

// Find resolves what a person typed: an id, a unique prefix of one, or "" for
// the newest run of the workspace (empty: the current directory).
func (c *Client) Find(ctx context.Context, ref, workspace string) (store.Meta, error) {
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
	m, err := c.store.Find(ctx, ref, ws)
	if err != nil {
		return m, err
	}
	return c.settled(ctx, m)
}

// List returns the runs that are on record, newest first.
func (c *Client) List(ctx context.Context, q store.Query) (store.Listing, error) {
	l, err := c.store.List(ctx, q)
	for i := range l.Runs {
		if err == nil {
			l.Runs[i], err = c.settled(ctx, l.Runs[i])
		}
	}
	return l, err
}

// Receipt returns the receipt of a run that is over.
func (c *Client) Receipt(ctx context.Context, id store.ID) (*receipt.Receipt, error) {
	b, err := os.ReadFile(c.store.RunDir(id) + "/" + store.ReceiptFile)
	if err == nil {
		return receipt.Parse(b)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	m, merr := c.store.Get(id)
	if merr != nil {
		return nil, merr
	}
	set, err := change.OpenSet(c.store.RunDir(id))
	if err != nil {
		set = nil // there is none, or it says nothing that can be relied on
	}
	r := receiptOf(m, set)
	if m.State == store.Lost {
		c.replay(r, m)
	}
	return r, nil
}

// receiptOf is what can be said of a run without a receipt: one that goes on,
// or whose carboy died. set is what it left of the changes, or nil.
func receiptOf(m store.Meta, set *change.Set) *receipt.Receipt {
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
	r.Exit = receipt.Exit{Code: exitcode.Refused, Reason: receipt.Lost, Error: m.Reason}
	lost := "carboy died during the run; its changes were in the bottle and are lost. Nothing of it reached the workspace."
	switch {
	case set != nil:
		// It died between the end of the command and the end of its records.
		r.Changes = summarize(set)
		lost = "carboy died when the command had ended, before the records were complete; its changes had been taken and are kept (carboy diff). Nothing of it reached the workspace by itself."
	case m.Mode == store.Bind:
		lost = "carboy died during the run; what the command had written to the workspace until then is there."
	}
	r.Notes = append(r.Notes, lost)
	return r
}

// Changes opens what a run did to its workspace.
func (c *Client) Changes(id store.ID) (*change.Set, error) {
	s, err := change.OpenSet(c.store.RunDir(id))
	if errors.Is(err, fs.ErrNotExist) {
		m, merr := c.store.Get(id)
		if merr != nil {
			return nil, merr
		}
		return nil, noChanges(m)
	}
	return s, err
}

// ErrNoChanges means that a run keeps no changes apart.
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

// Diff shows a run's changes.
func (c *Client) Diff(ctx context.Context, id store.ID, w io.Writer, o change.DiffOptions) (change.DiffStat, error) {
	s, err := c.Changes(id)
	if err != nil {
		return change.DiffStat{}, err
	}
	return s.Diff(w, o)
}

// Land takes changes of a run home. One landing or undo at a time per
// workspace; a run that writes to it directly is in the way too.
func (c *Client) Land(ctx context.Context, id store.ID, o change.LandOptions) (*change.LandReport, error) {
	s, m, release, err := c.forLanding(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	// What was not protected when the run ended may be so now.
	p := c.config.policy()
	o.Policy.CI = o.Policy.CI || p.CI
	o.Policy.Extra = append(o.Policy.Extra, p.Extra...)
	rep, err := change.Land(ctx, s, o)
	if err != nil {
		return rep, errors.Join(err, c.noteReview(ctx, audit.Land, audit.Refused, m, err.Error()))
	}
	text := fmt.Sprintf("%d paths landed, %d withheld", len(rep.Landed), len(rep.Withheld))
	if err := c.noteReview(ctx, audit.Land, audit.Allowed, m, text); err != nil {
		return rep, err
	}
	_, err = c.store.Update(ctx, id, func(m *store.Meta) error {
		m.Changes = store.Partly
		if done := len(rep.Landed) + len(rep.Already); done >= landable(s) {
			m.Changes = store.Landed
		}
		return nil
	})
	return rep, err
}

func landable(s *change.Set) int {
	n := 0
	for i := range s.Changes {
		if s.Changes[i].Unlandable == "" {
			n++
		}
	}
	return n
}

// Undo takes landings of a run back.
func (c *Client) Undo(ctx context.Context, id store.ID, o change.UndoOptions) (*change.UndoReport, error) {
	s, m, release, err := c.forLanding(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	// First: a run whose changes are called landed may be removed with them,
	// and from here on they may be nowhere else.
	if err := c.setChanges(ctx, id, store.Pending); err != nil {
		return nil, err
	}
	rep, err := change.Undo(ctx, s, o)
	if err != nil {
		if rep == nil || len(rep.Undone) == 0 {
			err = errors.Join(err, c.setChanges(ctx, id, m.Changes))
		}
		return rep, errors.Join(err, c.noteReview(ctx, audit.Undo, audit.Refused, m, err.Error()))
	}
	return rep, c.noteReview(ctx, audit.Undo, audit.Allowed, m, fmt.Sprintf("%d paths restored", len(rep.Restored)))
}

func (c *Client) setChanges(ctx context.Context, id store.ID, to store.Changes) error {
	_, err := c.store.Update(ctx, id, func(m *store.Meta) error { m.Changes = to; return nil })
	return err
}

func (c *Client) forLanding(ctx context.Context, id store.ID) (*change.Set, store.Meta, func(), error) {
	m, err := c.store.Get(id)
	if err != nil {
		return nil, m, nil, err
	}
	s, err := c.Changes(id)
	if err != nil {
		return nil, m, nil, err
	}
	land, err := c.store.Claim(ctx, store.ForLand, m.Workspace, store.Exclusive, id)
	if err != nil {
		return nil, m, nil, err
	}
	// A run with --workspace bind holds the workspace exclusively.
	run, err := c.store.Claim(ctx, store.ForRun, m.Workspace, store.Shared, id)
	if err != nil {
		land.Release()
		return nil, m, nil, err
	}
	return s, m, func() { run.Release(); land.Release() }, nil
}

func (c *Client) noteReview(ctx context.Context, kind audit.Kind, d audit.Decision, m store.Meta, text string) error {
	none, err := secret.NewRedactor(nil)
	if err != nil {
		return err
	}
	_, err = c.audit.Append(ctx, audit.Event{
		Kind: kind, Run: string(m.ID), Actor: audit.ByUser(os.Getuid()), Decision: d,
		Subject: audit.Redact(none, string(m.Workspace.Path)), Text: audit.Redact(none, text),
	})
	return err
}

// noteDestroyed records that a run went with its bottle.
func (c *Client) noteDestroyed(ctx context.Context, m store.Meta, slug string) error {
	return c.noteReview(ctx, audit.RunRemoved, audit.Allowed, m, "with bottle "+slug)
}

// Log opens one of a run's logs: stdout, stderr or terminal. The bytes are the
// command's own: show them through package visible.
func (c *Client) Log(id store.ID, name string) (*os.File, error) {
	if strings.ContainsRune(name, '/') {
		return nil, fmt.Errorf("open log: %q is no name for one", name)
	}
	return os.Open(c.store.RunDir(id) + "/" + store.LogsDir + "/" + name)
}

// PlanGC works out what collecting would remove; GC removes it.
func (c *Client) PlanGC(ctx context.Context, p store.Policy) (store.Plan, error) {
	return c.store.PlanGC(ctx, p)
}

// GC removes what a plan says and records each.
func (c *Client) GC(ctx context.Context, p store.Plan) ([]store.ID, error) {
	removed, err := c.store.ApplyGC(ctx, p)
	errs := []error{err}
	for _, x := range p.Remove {
		for _, id := range removed {
			if id == x.Meta.ID {
				errs = append(errs, c.noteReview(ctx, audit.RunRemoved, audit.Allowed, x.Meta, x.Why))
			}
		}
	}
	errs = append(errs, c.forgetBottles(ctx))
	// And what processes left that waited for a run and were killed.
	if dir, err := store.RuntimeDir(c.env); err == nil {
		_, err = pool.Sweep(dir)
		errs = append(errs, err)
	}
	return removed, errors.Join(errs...)
}

// AuditVerify checks the audit log offline, against itself and against the
// checkpoints that the runs keep.
func (c *Client) AuditVerify(ctx context.Context, key string) (audit.Report, error) {
	l, err := c.store.List(ctx, store.Query{})
	if err != nil {
		return audit.Report{}, err
	}
	o := audit.VerifyOptions{Key: key}
	for _, m := range l.Runs {
		cp, err := os.ReadFile(c.store.RunDir(m.ID) + "/" + store.EvidenceDir + "/" + checkpointFile)
		if err == nil {
			o.Anchors = append(o.Anchors, cp)
		}
	}
	r, err := audit.Verify(ctx, c.AuditDir(), o)
	if err != nil {
		return r, err
	}
	// What gates keep apart from the log is there by its digest.
	found, err := c.verifyGates(ctx)
	if len(found) > 0 {
		r.Status = audit.Tampered
		r.Findings = append(r.Findings, found...)
	}
	return r, err
}

// AuditDir is where the audit log lies.
func (c *Client) AuditDir() string { return c.StateDir() + "/audit" }

// cleanLost finishes what a dead carboy left of a run: half-taken changes are
// no changes, landings that were cut short are finished or taken back.
func (c *Client) cleanLost(ctx context.Context, m store.Meta) error {
	dir := c.store.RunDir(m.ID)
	errs := []error{removeTree(dir + "/scratch"), removeTree(dir + "/base")}
	return errors.Join(append(errs, c.noteReview(ctx, audit.RunLost, audit.Noted, m, "found by a later command"))...)
}
