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
	reasonProgram    Reason = iota + 1 // not in the closed set
	reasonArgument                     // an argument is not on the program's list
	reasonDirectory                    // no usable working directory
	reasonTimeout                      // no timeout, or one above MaxTimeout
	reasonInstalled                    // not found in the trusted directories
	reasonUntrusted                    // found, but another user could have put it there
	reasonRepository                   // the repository's form is not supported
	reasonClosed                       // the runner is closed or was never made
	reasonOutput                       // an output bound is negative or too large
)

var reasonNames = map[Reason]string{
	reasonProgram: "program", reasonArgument: "argument", reasonDirectory: "directory",
	reasonTimeout: "timeout", reasonInstalled: "not-installed", reasonUntrusted: "untrusted-path",
	reasonRepository: "repository", reasonClosed: "closed",
	reasonOutput: "output-bound",
}

// String returns the reason's stable name.
func (r Reason) String() string { return reasonNames[r] }

// MarshalText writes the stable name.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// A Refusal is the error of a command that was not spawned. Its text never
// holds an environment value or what follows "=" in an argument.
type refusal struct {
	Program string
	Reason  Reason
	Detail  string
	Err     error // cause, or nil
}

// Error is one line.
func (r *refusal) Error() string {
	s := fmt.Sprintf("hostexec: %s refused (%s): %s", r.Program, r.Reason, r.Detail)
	if r.Err != nil {
		s += ": " + r.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (r *refusal) Unwrap() error { return r.Err }

// Is makes errors.Is(err, ErrRefused) true for every refusal.
func (r *refusal) Is(target error) bool { return target == errRefused }

var (
	// errRefused matches every *Refusal.
	errRefused = errors.New("hostexec: refused")
	// ErrTruncated means that a stream was longer than its bound.
	ErrTruncated = errors.New("hostexec: output truncated")
	// ErrUnkilled means that processes were still alive after the grace period
	// that follows a kill. They stay registered, and Close waits for them.
	ErrUnkilled = errors.New("hostexec: processes still alive after kill")
	// errLost means that the supervisor ended without a report. Its leftovers
	// were killed by their mark, which a process can remove, so some may still
	// run.
	errLost = errors.New("hostexec: supervisor lost")
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
	case signaled:
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
		return e.Outcome == deadline
	case context.Canceled:
		return e.Outcome == canceled
	}
	return false
}

func refuse(program string, why Reason, format string, a ...any) error {
	return &refusal{Program: program, Reason: why, Detail: fmt.Sprintf(format, a...)}
}

// show renders an argument for an error, quoted and bounded. It leaves out what
// follows "=", which may be a secret.
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

// line makes the end of a program's stderr safe for one line of an error
// message. It replaces control bytes and everything that is not plain ASCII by
// dots.
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
