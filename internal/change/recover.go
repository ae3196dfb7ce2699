package change

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// RecoverReport lists what Recover did.
type RecoverReport struct {
	RolledBack []string // ids of landings and undos that were rolled back
	Finished   []string // ids of landings and undos that were completed
	// Left lists paths of old files that could not be put back because the
	// host made something new in their place.
	Left []string
}

// Recover completes or rolls back every interrupted landing and undo of the
// run. It is cheap if there is none.
func Recover(ctx context.Context, runDir string) (*RecoverReport, error) {
	ids, err := journalIDs(runDir)
	if err != nil {
		return nil, fmt.Errorf("recover: %w", err)
	}
	for i := len(ids) - 1; i >= 0; i-- {
		if marked(runDir, ids[i], doneMarker) {
			continue
		}
		j, err := openJournal(runDir, ids[i])
		if err != nil {
			return nil, fmt.Errorf("recover: %w", err)
		}
		j.close()
		if j.closed || j.plan == nil {
			continue
		}
		root, err := lockWorkspace(ctx, j.plan.Workspace)
		if err != nil {
			return nil, fmt.Errorf("recover: %w", err)
		}
		defer closeFd(root)
		return recoverAll(ctx, runDir, j.plan.Workspace, root)
	}
	return &RecoverReport{}, nil
}

// recoverAll is Recover with the workspace's lock held.
func recoverAll(ctx context.Context, runDir string, ws Identity, root int) (*RecoverReport, error) {
	rep := &RecoverReport{}
	ids, err := journalIDs(runDir)
	if err != nil {
		return nil, err
	}
	for i := len(ids) - 1; i >= 0; i-- {
		if marked(runDir, ids[i], doneMarker) {
			continue
		}
		j, err := openJournal(runDir, ids[i])
		if err != nil {
			return rep, err
		}
		err = recoverOne(ctx, runDir, root, j, rep)
		j.close()
		if err != nil {
			return rep, fmt.Errorf("recover %s: %w", j.id, err)
		}
	}
	return rep, nil
}

func recoverOne(ctx context.Context, runDir string, root int, j *journal, rep *RecoverReport) error {
	if j.closed {
		return recoverClosed(runDir, j)
	}
	if j.plan == nil {
		return os.RemoveAll(j.dir)
	}
	x := &txn{ctx: ctx, t: tree{root}, runDir: runDir, j: j}
	if j.commit {
		x.cleanup(j.plan.Ops)
		if !j.closed {
			return errors.New("old files set aside could not be removed")
		}
		rep.Finished = append(rep.Finished, j.id)
		return nil
	}
	if err := x.rollback(); err != nil {
		return err
	}
	rep.RolledBack = append(rep.RolledBack, j.id)
	for _, l := range x.left {
		rep.Left = append(rep.Left, string(l))
	}
	return nil
}

// recoverClosed completes the steps that follow the last record of a journal.
func recoverClosed(runDir string, j *journal) error {
	switch {
	case j.f == nil:
		return os.RemoveAll(j.dir)
	case j.rolled && !j.left:
		return os.RemoveAll(j.dir)
	case j.plan != nil && j.plan.Kind == "undo" && j.commit && !j.rolled:
		x := &txn{runDir: runDir, j: j}
		x.forget(j.plan.Of)
	}
	j.mark(doneMarker)
	return nil
}
