package hostexec

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Reason says why a command was refused before anything was spawned.
type Reason uint8

// The zero Reason is never used.
const (
	ReasonProgram    Reason = iota + 1 // not in the closed set
	ReasonArgument                     // an argument is not on the program's list
	ReasonDirectory                    // no usable working directory
	ReasonTimeout                      // no timeout, or one above MaxTimeout
	ReasonInstalled                    // not found in the trusted directories
	ReasonUntrusted                    // found, but others could have put it there
	ReasonRepository                   // the repository's form is not supported
	ReasonClosed                       // the runner is closed or was never made
	ReasonOutput                       // an output bound is negative or too large
)

var reasonNames = map[Reason]string{
	ReasonProgram: "program", ReasonArgument: "argument", ReasonDirectory: "directory",
	ReasonTimeout: "timeout", ReasonInstalled: "not-installed", ReasonUntrusted: "untrusted-path",
	ReasonRepository: "repository", ReasonClosed: "closed",
	ReasonOutput: "output-bound",
}

// String gives the reason's stable name.
func (r Reason) String() string { return reasonNames[r] }

// MarshalText writes the stable name.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// A Refusal is the error of a command that was not spawned. Its text never
// holds an environment value or what follows "=" in an argument.
type Refusal struct {
	Program string
	Reason  Reason
	Detail  string
	Err     error // cause, or nil
}

// Error is one line.
func (r *Refusal) Error() string {
	s := fmt.Sprintf("hostexec: %s refused (%s): %s", r.Program, r.Reason, r.Detail)
	if r.Err != nil {
		s += ": " + r.Err.Error()
	}
	return s
}

// Unwrap gives the cause.
func (r *Refusal) Unwrap() error { return r.Err }

// Is makes errors.Is(err, ErrRefused) true for every refusal.
func (r *Refusal) Is(target error) bool { return target == ErrRefused }

var (
	// ErrRefused matches every *Refusal.
	ErrRefused = errors.New("hostexec: refused")
	// ErrTruncated says that a stream was longer than its bound.
	ErrTruncated = errors.New("hostexec: output truncated")
	// ErrUnkilled says that processes still lived after the grace period that
	// follows a kill; they stay registered, and Close waits for them.
	ErrUnkilled = errors.New("hostexec: processes still alive after kill")
	// ErrLost says that the supervisor ended without a report. What it left was
	// swept by its mark, which a process can shed, so this is not a proof.
	ErrLost = errors.New("hostexec: supervisor lost")
)

// A FailedError is the error of a command that was spawned and did not exit
// with 0. It matches context.DeadlineExceeded or context.Canceled by outcome.
type FailedError struct {
	Program string
	Outcome Outcome
	Code    int
	Signal  string
	Stderr  string // the last bytes, printable, bounded
}

// Error is one line.
func (e *FailedError) Error() string {
	var s string
	switch e.Outcome {
	case Exited:
		s = fmt.Sprintf("hostexec: %s exited with %d", e.Program, e.Code)
	case Signaled:
		s = fmt.Sprintf("hostexec: %s killed by %s", e.Program, e.Signal)
	default:
		s = fmt.Sprintf("hostexec: %s ended: %s", e.Program, e.Outcome)
	}
	if e.Stderr != "" {
		s += ": " + e.Stderr
	}
	return s
}

// Is maps the outcome to the context package's errors.
func (e *FailedError) Is(target error) bool {
	switch target {
	case context.DeadlineExceeded:
		return e.Outcome == Deadline
	case context.Canceled:
		return e.Outcome == Canceled
	}
	return false
}

func refuse(program string, why Reason, format string, a ...any) error {
	return &Refusal{Program: program, Reason: why, Detail: fmt.Sprintf(format, a...)}
}

// show renders an argument for an error: the part before "=", because what
// follows may be a secret, quoted and bounded.
func show(arg string) string {
	head, _, cut := strings.Cut(arg, "=")
	if len(head) > 64 {
		head, cut = head[:64], true
	}
	if cut {
		return fmt.Sprintf("%q…", head)
	}
	return fmt.Sprintf("%q", head)
}

// line makes the end of a program's stderr fit for one line of ours: control
// bytes, and everything that is not plain ASCII, become dots.
func line(b []byte) string {
	b = b[max(0, len(b)-300):]
	out := make([]byte, 0, len(b))
	for _, c := range b {
		switch {
		case c == '\n' || c == '\t':
			out = append(out, ' ')
		case c < 0x20 || c > 0x7e:
			out = append(out, '.')
		default:
			out = append(out, c)
		}
	}
	return strings.TrimSpace(string(out))
}
