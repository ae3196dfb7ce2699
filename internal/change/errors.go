package change

import (
	"errors"
	"fmt"
	"strings"
)

// Reasons why a directory cannot be a workspace, wrapped in a *WorkspaceError.
var (
	ErrWorkspaceRoot       = errors.New("it is the root of the file system")
	errWorkspaceHome       = errors.New("it is or contains the home directory")
	ErrWorkspaceMissing    = errors.New("it does not exist")
	errWorkspaceNotDir     = errors.New("it is not a directory")
	errWorkspaceUnreadable = errors.New("it cannot be read")
)

// Errors for errors.Is.
var (
	// ErrWorkspaceReplaced: the directory at the workspace's path is not the
	// one that the run began with.
	ErrWorkspaceReplaced = errors.New("workspace was replaced since the run began")
	// errNoOpenat2: the kernel cannot resolve paths beneath a directory
	// (Linux before 5.6, or a filter blocks the call).
	errNoOpenat2 = errors.New("kernel lacks openat2, without which paths cannot be resolved safely")
	// ErrBusy: another process is landing or undoing in this workspace.
	ErrBusy = errors.New("another landing or undo is at work")
	// ErrNoSuchChange: a selected path matches no change.
	ErrNoSuchChange = errors.New("no such change")
	// ErrProtected: a protected path was selected without IncludeProtected.
	ErrProtected = errors.New("protected path")
	// ErrIncomplete: some of the bottle's changes are missing from the set.
	ErrIncomplete = errors.New("the collected changes are incomplete")
	// ErrNothingToUndo: the run has no landing that is not undone.
	ErrNothingToUndo = errors.New("nothing to undo")
	// errMalformed: the tar stream or a path in it is invalid.
	errMalformed = errors.New("malformed change stream")
	// ErrCorrupt: a file in the run directory is damaged.
	ErrCorrupt = errors.New("corrupt change record")
)

// WorkspaceError says why a directory cannot be a workspace, with advice.
type WorkspaceError struct {
	Path   string
	Reason error // one of the ErrWorkspace… values
	Advice string
	Cause  error // may be nil
}

func (e *WorkspaceError) Error() string {
	s := fmt.Sprintf("use %s as workspace: %v", show(e.Path), e.Reason)
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	if e.Advice != "" {
		s += "; " + e.Advice
	}
	return s
}

// Unwrap returns the reason and the cause.
func (e *WorkspaceError) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Reason}
	}
	return []error{e.Reason, e.Cause}
}

// limitError says that Collect reached a bound. The Set returned with it holds
// the changes up to there.
type limitError struct {
	Limit string // "bytes", "logical bytes", "entries", "path bytes", "disk"
	Max   int64
	Path  string // the first path that did not fit, "" if unknown
}

func (e *limitError) Error() string {
	s := fmt.Sprintf("collect changes: more than %d %s", e.Max, e.Limit)
	if e.Limit == "disk" {
		s = "collect changes: no space left on the state directory's disk"
	}
	if e.Path != "" {
		s += " at " + show(e.Path)
	}
	return s
}

// Conflict is one path that the host changed since the bottle started.
type Conflict struct {
	Path   string
	Why    string
	Host   *Fingerprint // the host's present file; nil if absent
	Bottle *Change      // the bottle's change; nil for a file that only the host has
}

// ConflictError lists the conflicts that stopped a landing or undo. Nothing
// was written.
type ConflictError struct {
	Op        string // "land" or "undo"
	Conflicts []Conflict
}

func (e *ConflictError) Error() string {
	var b strings.Builder
	if e.Op == "undo" {
		fmt.Fprintf(&b, "undo: %d changed since: ", len(e.Conflicts))
	} else {
		fmt.Fprintf(&b, "land: %d changed on the host meanwhile: ", len(e.Conflicts))
	}
	for i, c := range e.Conflicts {
		if i == 5 {
			fmt.Fprintf(&b, ", and %d more", len(e.Conflicts)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s (%s)", show(c.Path), c.Why)
	}
	return b.String()
}
