// Package exitcode is the one place where carboy's exit codes are decided.
//
// A script that starts carboy must be able to tell "the command failed" from
// "carboy refused", so the two never share a number by accident: what carboy
// itself has to say about a run is 124 to 127, as with timeout(1), env(1) and
// the shell. Start reading at [Table], which is also the table of the manual.
package exitcode

import (
	"fmt"
	"strings"
	"syscall"
)

// Codes of `carboy run`, `carboy start`, `carboy resume` and `carboy exec`, beside those of the command itself.
const (
	// Timeout: the wall clock ran out.
	Timeout = 124
	// Refused: carboy refused or failed; the command did not end by itself.
	Refused = 125
	// NotExecutable: the command was found inside and cannot be executed.
	NotExecutable = 126
	// NotFound: there is no such command inside.
	NotFound = 127
	// signalBase plus n: signal n ended the command.
	signalBase = 128
)

// Codes of every other command.
const (
	OK     = 0
	Failed = 1
	Usage  = 2
	// Escalated: a person must decide about the change.
	Escalated = 11
	// Broken: a verdict, an attempt or the audit log is not what was recorded.
	Broken = 13
	// Locked: another gate works on the directory.
	Locked = 14
	// Incomplete: escape-test found no escape, and could not try everything.
	Incomplete = 3
	// Rejected: a gate says no, for good.
	Rejected = 12
)

// Codes of `carboy plan`, `carboy apply`, `carboy rollback` and `carboy ship`: each
// outcome its own. None and a usage error are those of every command.
const (
	ShipPolicy         = 3
	ShipMismatch       = 4
	ShipDestructive    = 5
	ShipStale          = 6
	ShipFailed         = 7
	ShipUnhealthy      = 8
	ShipApplied        = 9
	ShipRollbackFailed = 10
	ShipLocked         = 14
	ShipPlanned        = 20
)

// Signal is the code of a command that signal s ended.
func Signal(s syscall.Signal) int { return signalBase + int(s) }

// Row is one line of the table.
type Row struct {
	Command string // which of carboy's commands
	Code    string // a number or a range
	Meaning string
}

const shipping = "plan, apply, rollback, ship"

// Table is every code that carboy ends with.
var Table = []Row{
	{"run, start, resume, exec", "0-123", "the command's own exit code"},
	{"run, start, resume", num(Timeout), "the wall clock (`--timeout`) ran out and the bottle was ended"},
	{"run, start, resume, exec", num(Refused), "carboy refused or failed: wrong usage, a missing kernel feature, a locked workspace, memory or output past its limit, a run that is over, interrupted twice; or the bottle was frozen"},
	{"run, start, resume, exec", num(NotExecutable), "the command is in the bottle but cannot be executed"},
	{"run, start, resume, exec", num(NotFound), "the command is not in the bottle"},
	{"run, start, resume, exec", "128+n", "signal n ended the command"},
	{"escape-test", num(OK), "everything was tried and contained"},
	{"escape-test", num(Failed), "something escaped, or bottles do not work here"},
	{"escape-test", num(Incomplete), "nothing escaped, but some attacks could not be tried"},
	{"gate trace", num(OK), "no scenario failed, and what was traced is what was built, where that is known"},
	{"gate trace", num(Rejected), "a scenario failed or ran out of time, there is no trace, or another image was traced than was built"},
	{"gate run, gate init, gate verify, work", num(OK), "every signal passed, or a person has overridden the verdict"},
	{"gate run, gate init, work", num(Failed), "carboy could not judge: no catalog, no such revision, no bottle"},
	{"gate, work", num(Usage), "wrong usage: an unknown command, flag or value"},
	{"gate, work", num(Escalated), "a person must decide: witnesses disagree, all attempts are spent, or nobody answered at the queue"},
	{"gate, work", num(Rejected), "a signal did not pass, or a person said no to an override or a baseline"},
	{"gate, work", num(Broken), "a verdict, an attempt or the audit log is not what was recorded, or a verdict is not of the change that was named"},
	{"gate, work", num(Locked), "another gate works on this directory, or another process on this work"},
	{"work", "128+n", "signal n stopped it: `carboy work --continue ID` goes on"},
	{shipping, num(OK), "nothing to do; `ship`: done"},
	{shipping, num(Failed), "a tool failed, or the outcome is not known yet: `carboy ship status` tells"},
	{shipping, num(Usage), "wrong usage: an unknown command, flag or value"},
	{shipping, num(ShipPolicy), "policy: the host, the module, its compose file or the work tree is not allowed; nothing was changed"},
	{shipping, num(ShipMismatch), "no approval, or one of another plan or commit, expired, used up or not signed by whom it names; nothing was changed"},
	{shipping, num(ShipDestructive), "the plan destroys something, and the approval does not say `destructive`; nothing was changed"},
	{shipping, num(ShipStale), "the host is not as the plan saw it, or the plan is too old; nothing was changed"},
	{shipping, num(ShipFailed), "the host could not be reached or could not do it; what ran before runs"},
	{shipping, num(ShipUnhealthy), "not healthy; rolled back"},
	{"apply", num(ShipApplied), "applied and healthy"},
	{shipping, num(ShipRollbackFailed), "rolling back failed: act now"},
	{shipping, num(ShipLocked), "somebody else applies at this moment"},
	{"plan, rollback", num(ShipPlanned), "there is something to do, and a plan for it"},
	{"others", num(OK), "done"},
	{"others", num(Failed), "failed or refused"},
	{"others", num(Usage), "wrong usage: an unknown command, flag or value"},
}

// Markdown is Table as the manual shows it. A command may itself end with a
// code from 124 upwards; the receipt's exit.reason tells which it was.
func Markdown() string {
	var b strings.Builder
	b.WriteString("| Command | Code | Meaning |\n| --- | --- | --- |\n")
	for _, r := range Table {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", r.Command, r.Code, r.Meaning)
	}
	return b.String()
}

func num(n int) string { return fmt.Sprint(n) }
