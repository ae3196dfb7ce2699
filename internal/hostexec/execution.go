package hostexec

import (
	"fmt"
	"time"
)

// Outcome says how a command ended. The zero value means that it never ran.
type Outcome uint8

// Outcomes of a command that was spawned.
const (
	Exited   Outcome = iota + 1 // by itself, with a code
	signaled                    // by a signal that hostexec did not send
	deadline                    // killed at Command.Timeout or the context's deadline
	canceled                    // killed because the context was canceled
	closed                      // killed by Runner.Close
	unkilled                    // killed, but not gone within the grace period
	lost                        // its supervisor ended without a report
)

var outcomeNames = [...]string{"not run", "exited", "signaled", "deadline", "canceled", "closed", "unkilled", "lost"}

// String returns the outcome's stable name.
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return fmt.Sprintf("outcome %d", uint8(o))
}

// MarshalText writes the stable name.
func (o Outcome) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// recordSchema is the schema name of Execution's JSON.
const recordSchema = "carboy.dev/exec/v1"

// Execution describes one execution, or one refusal, for the audit log. It holds
// names of environment variables, never values. It omits the arguments of a
// refused command: they were on no list, so they may hold anything.
type Execution struct {
	Schema      string        `json:"schema"`
	ID          uint64        `json:"id"`
	Program     string        `json:"program"`
	Path        string        `json:"path,omitempty"`
	Args        []string      `json:"args,omitempty"`
	Dir         string        `json:"dir,omitempty"`
	EnvNames    []string      `json:"env_names,omitempty"`
	EnvDropped  []string      `json:"env_dropped,omitempty"`
	Started     time.Time     `json:"started"`
	Duration    time.Duration `json:"duration_ns"`
	Refused     Reason        `json:"refused,omitempty"`
	Outcome     Outcome       `json:"outcome"`
	ExitCode    int           `json:"exit_code"` // -1 unless Exited
	Signal      int           `json:"signal,omitempty"`
	Strays      int           `json:"strays,omitempty"`
	StdoutBytes int64         `json:"stdout_bytes"`
	StderrBytes int64         `json:"stderr_bytes"`
	Truncated   bool          `json:"truncated,omitempty"`
}
