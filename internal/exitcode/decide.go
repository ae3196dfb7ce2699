package exitcode

import (
	"cmp"
	"errors"
	"strings"
	"syscall"
)

// Family groups the commands whose errors have the same codes.
type Family uint8

const (
	Others Family = iota // Failed, or Usage
	Runs                 // run, start, agent, resume, exec; orchestrate start, orchestrate resume
	Gates                // gate, work
	Ships                // plan, apply, rollback, ship
)

var families = map[string]Family{
	"run": Runs, "start": Runs, "agent": Runs, "resume": Runs, "exec": Runs,
	"gate": Gates, "work": Gates,
	"orchestrate start": Runs, "orchestrate resume": Runs,
	"plan": Ships, "apply": Ships, "rollback": Ships, "ship": Ships,
}

// FamilyOf returns the family of a command by its words, such as "gate run". The first word
// decides, unless the table has more of them.
func FamilyOf(command string) Family {
	if f, ok := families[command]; ok {
		return f
	}
	word, _, _ := strings.Cut(command, " ")
	return families[word]
}

// Class is the reason of an error, if some family has a code for that reason.
type Class uint8

const (
	unclassified  Class = iota
	WrongUsage          // an unknown command, flag or argument
	WrongOption         // a value that an operation cannot be done with
	AlreadyLocked       // another process holds the directory or the work
	RecordChanged       // a record differs from what the audit log says
	Undecided           // nobody decided in time
	TurnedDown          // a person decided against it
	Unapprovable        // a plan that cannot be read, and so not be approved
	Missing             // the bottle does not have the command
	Unexecutable        // the bottle has the command and cannot execute it
)

// classCodes lists the codes of classes. For a class that is not listed, the code is
// refused in [Runs] and [Failed] in the other families.
var classCodes = map[Family]map[Class]int{
	Others: {WrongUsage: Usage},
	Runs:   {Missing: NotFound, Unexecutable: NotExecutable},
	Gates: {
		WrongUsage: Usage, WrongOption: Usage, AlreadyLocked: locked, RecordChanged: broken, Undecided: escalated, TurnedDown: rejected,
	},
	Ships: {WrongUsage: Usage, Unapprovable: shipMismatch},
}

// New returns an error of a class, with a text.
func New(c Class, text string) error { return &classified{errors.New(text), c} }

// With returns err with a class. The text stays the same, and err can be unwrapped.
// It returns nil if err is nil.
func With(c Class, err error) error {
	if err == nil {
		return nil
	}
	return &classified{err, c}
}

type classified struct {
	err   error
	class Class
}

func (e *classified) Error() string    { return e.err.Error() }
func (e *classified) Unwrap() error    { return e.err }
func (e *classified) ExitClass() Class { return e.class }

// Interrupted returns err as one that signal s caused: its code is that of the signal.
func Interrupted(s syscall.Signal, err error) error { return &interrupted{err, s} }

type interrupted struct {
	err    error
	signal syscall.Signal
}

func (e *interrupted) Error() string              { return e.err.Error() }
func (e *interrupted) Unwrap() error              { return e.err }
func (e *interrupted) ExitSignal() syscall.Signal { return e.signal }

// OfError returns the code of a command that ended with err; nil is [OK].
//
// An error states its reason by one of these methods, the first that is found in err
// and in what it wraps:
//
//	ExitSignal() syscall.Signal // 0: no signal
//	ExitOutcome() string        // of Ships; see [OfShip]
//	ExitClass() Class           // the zero Class: none
func OfError(f Family, err error) int {
	var (
		signal  interface{ ExitSignal() syscall.Signal }
		shipped interface{ ExitOutcome() string }
		class   interface{ ExitClass() Class }
	)
	switch {
	case err == nil:
		return OK
	case errors.As(err, &signal) && signal.ExitSignal() != 0:
		return Signal(signal.ExitSignal())
	case f == Ships && errors.As(err, &shipped):
		return OfShip(shipped.ExitOutcome())
	case errors.As(err, &class):
		if code, ok := classCodes[f][class.ExitClass()]; ok {
			return code
		}
	}
	if f == Runs {
		return refused
	}
	return Failed
}

// NotStarted reports whether code says that the command never started: the bottle does
// not have it, or cannot execute it.
func NotStarted(code int) bool { return code == NotFound || code == NotExecutable }

// OfRun returns the code of a run that did not end by itself, by the reason in its
// receipt.
func OfRun[S ~string](reason S) int {
	if reason == "timeout" {
		return timeout
	}
	return refused
}

// OfGate returns the code of a gate's outcome. A person may have overridden it.
func OfGate[S ~string](outcome S, overridden bool) int {
	switch {
	case overridden || outcome == "passed":
		return OK
	case outcome == "escalated":
		return escalated
	}
	return rejected
}

// OfBundle returns the code of `carboy gate verify`: that of the gate's outcome, or
// broken if the bundle is not intact.
func OfBundle[S ~string](intact bool, outcome S, overridden bool) int {
	if !intact {
		return broken
	}
	return OfGate(outcome, overridden)
}

// OfScenarios returns the code of `carboy gate trace`.
func OfScenarios(passed bool) int {
	if passed {
		return OK
	}
	return rejected
}

// OfCheck returns the code of a command that only checks, such as `carboy sandbox health`.
func OfCheck(good bool) int {
	if good {
		return OK
	}
	return Failed
}

// OfEscapeTest returns the code of the verdict of an escape test.
func OfEscapeTest[S ~string](verdict S) int {
	switch verdict {
	case "contained":
		return OK
	case "untried":
		return incomplete
	}
	return Failed
}

// shipOutcomes lists the outcomes of deployments, and the states of services, with their
// codes, the most urgent first.
var shipOutcomes = []struct {
	name string
	code int
}{
	{"rollback-failed", ShipRollbackFailed},
	{"", Failed}, // any other
	{"unapproved", shipUnapproved},
	{"drifted", shipDrifted},
	{"unhealthy", shipIll},
	{"exited", shipExited},
	{"absent", shipAbsent},
	{"rolled-back", ShipUnhealthy},
	{"failed", ShipFailed},
	{"locked", shipLocked},
	{"stale", shipStale},
	{"destructive", shipDestructive},
	{"mismatch", shipMismatch},
	{"refused", ShipPolicy},
	{"orphaned", shipOrphaned},
	{"behind", shipBehind},
	{"applied", shipApplied},
	{"nothing", OK},
}

// OfShip returns the code of the outcome of a deployment on one host. It returns
// [Failed] for an unknown outcome, so that a new one never looks like success.
func OfShip[S ~string](outcome S) int {
	for _, x := range shipOutcomes {
		if x.name == string(outcome) {
			return x.code
		}
	}
	return Failed
}

// OfStatus returns the code of the state of a service on one host.
func OfStatus(state string) int {
	if state == "current" {
		return OK
	}
	return OfShip(state)
}

// OfSettled returns the code of an interrupted deployment that was found to have had an
// outcome. One that was finished as intended needs no attention.
func OfSettled[S ~string](outcome S) int {
	if code := OfShip(outcome); code != shipApplied {
		return code
	}
	return OK
}

// OfApply returns the code of `carboy apply`: that of the error, or else that of the host
// that is the most urgent.
func OfApply[S ~string](err error, outcomes ...S) int {
	code := OfError(Ships, err)
	for _, o := range outcomes {
		if err == nil {
			code = WorstShip(code, OfShip(o))
		}
	}
	return code
}

// OfPlan returns the code of `carboy plan`.
func OfPlan(changes bool) int {
	if changes {
		return ShipPlanned
	}
	return OK
}

// shipRank returns how urgent a code is, 0 before 1. A code that no deployment has, such as
// that of a signal, is more urgent than any that one has.
func shipRank(code int) int {
	for i, x := range shipOutcomes {
		if x.code == code {
			return i
		}
	}
	return -1
}

// WorstShip returns the most urgent of several hosts' codes, [OK] if there are none.
func WorstShip(codes ...int) int {
	worst := OK
	for _, code := range codes {
		if shipRank(code) < shipRank(worst) {
			worst = code
		}
	}
	return worst
}

// OfCommand returns the code of a run whose command ended with code: the command's, unless
// that is [OK] and carboy itself failed with err.
func OfCommand(code int, err error) int {
	if code == OK {
		return OfError(Runs, err)
	}
	return code
}

// OfInterrupted returns the code of a command that would end with code: that of SIGINT if
// its user interrupted it.
func OfInterrupted(interrupted bool, code int) int {
	if interrupted {
		return Signal(syscall.SIGINT)
	}
	return code
}

// First returns the code of a command that does several things: that of the first that
// failed.
func First(codes ...int) int { return cmp.Or(codes...) }
