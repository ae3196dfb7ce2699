package store

import (
	"fmt"
	"time"
)

// RunKind distinguishes the records of runs.
type RunKind string

const (
	KindRun    RunKind = "run"    // one command, then over
	KindBottle RunKind = "bottle" // started, attached to, stopped
)

// State is the state of a run. The transitions are created → running → finished, and created or running → failed or
// lost. The zero value is invalid.
type State string

const (
	Created  State = "created"  // the directory exists; nothing runs inside yet
	Running  State = "running"  // the command has been started
	Finished State = "finished" // the command has ended, Exit says how
	Failed   State = "failed"   // carboy refused or failed, Reason says why
	Lost     State = "lost"     // the supervisor died; Recover noticed
)

// Over reports whether the run has ended. A run in an unknown state has not.
func (s State) Over() bool { return s == Finished || s == Failed || s == Lost }

var steps = map[State][]State{
	Created: {Running, Failed, Lost},
	Running: {Finished, Failed, Lost},
}

// Mode names the way in which a run accesses its workspace. The zero value is invalid.
type Mode string

const (
	Overlay Mode = "overlay"
	Copy    Mode = "copy"
	Bind    Mode = "bind"
	None    Mode = "none"
)

// Changes is the state of a run's changes to its workspace. The zero value means unknown; like Pending, it protects the
// run from being deleted automatically.
type Changes string

const (
	NoChanges Changes = "none"      // there were none, or they went to the host directly (bind)
	Pending   Changes = "pending"   // waiting for review
	Partly    Changes = "partly"    // some landed, others wait
	Landed    Changes = "landed"    // all landed
	Discarded Changes = "discarded" // a person discarded them
)

// Settled reports whether deleting the run loses no changes.
func (c Changes) Settled() bool { return c == NoChanges || c == Landed || c == Discarded }

const metaKind = "run"

// Meta is the record of a run, meta.json. Times are wall-clock times in UTC, for display; DurationNS is monotonic. It
// contains no environment. The caller must redact secrets in Command.
type Meta struct {
	Schema    string    `json:"schema"`
	ID        ID        `json:"id"`
	Kind      RunKind   `json:"kind"`
	State     State     `json:"state"`
	Name      string    `json:"name,omitempty"` // a bottle's slug
	Workspace Workspace `json:"workspace"`
	Mode      Mode      `json:"mode"`
	Command   []Raw     `json:"command"`
	Build     string    `json:"build,omitempty"` // version of carboy that created the run
	// Supervisor is the process that manages the run. While it is alive, the run is not lost.
	Supervisor Process `json:"supervisor"`
	Socket     Raw     `json:"socket,omitempty"` // its control socket; TMPDIR may differ between shells

	Created    time.Time  `json:"created"`
	Started    *time.Time `json:"started,omitempty"`
	Ended      *time.Time `json:"ended,omitempty"`
	DurationNS int64      `json:"duration_ns,omitempty"`
	Exit       *int       `json:"exit,omitempty"` // the exit code of carboy run, once over
	Reason     string     `json:"reason,omitempty"`
	Changes    Changes    `json:"changes,omitempty"`
	// Copied is the time of the last copy of a lost run's files: they are kept as they were then.
	Copied *time.Time `json:"copied,omitempty"`
	// CopyError says why a lost run's files could not be taken from their last copy. CopyWaits means that Recover lists the
	// run until they are.
	CopyError string `json:"copy_error,omitempty"`
	CopyWaits bool   `json:"copy_waits,omitempty"`
	// Cleaned is true once everything that a lost run left outside its directory is removed.
	Cleaned bool `json:"cleaned,omitempty"`
}

// Summary is one element of `carboy list --json`.
type Summary struct {
	ID        ID         `json:"id"`
	Kind      RunKind    `json:"kind"`
	State     State      `json:"state"`
	Name      string     `json:"name,omitempty"` // a bottle's
	Workspace Raw        `json:"workspace"`
	Started   *time.Time `json:"started"`
	Exit      *int       `json:"exit"`
}

// Summary returns the short form of m.
func (m Meta) Summary() Summary {
	return Summary{m.ID, m.Kind, m.State, m.Name, m.Workspace.Path, m.Started, m.Exit}
}

// check returns an error for a record that this package would not write.
func (m *Meta) check(id ID) error {
	switch {
	case m.ID != id:
		return fmt.Errorf("field \"id\" is %q", m.ID)
	case m.Kind != KindRun && m.Kind != KindBottle:
		return fmt.Errorf("field \"kind\" is %q", m.Kind)
	case m.Mode != Overlay && m.Mode != Copy && m.Mode != Bind && m.Mode != None:
		return fmt.Errorf("field \"mode\" is %q", m.Mode)
	case m.State != Created && m.State != Running && !m.State.Over():
		return fmt.Errorf("field \"state\" is %q", m.State)
	}
	return nil
}

// follows returns an error if n is not a valid successor of m: a transition that does not exist, or other identity.
func (m *Meta) follows(n *Meta) error {
	if n.ID != m.ID || n.Kind != m.Kind || n.Mode != m.Mode || n.Workspace != m.Workspace || !n.Created.Equal(m.Created) {
		return fmt.Errorf("the identity of a run can't change")
	}
	if n.State == m.State {
		return nil
	}
	for _, to := range steps[m.State] {
		if n.State == to {
			return nil
		}
	}
	return fmt.Errorf("no step from state %s to %s", m.State, n.State)
}
