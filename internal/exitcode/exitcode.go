// Package exitcode decides the exit code of every carboy command.
//
// A script that starts carboy must be able to tell "the command failed" from
// "carboy refused". So carboy's own codes for a run are 124 to 127, as in
// timeout(1), env(1) and the shell.
//
// Callers say what happened: an error ([OfError]), or the outcome of a run, a
// gate, a deployment or an escape test ([OfRun], [OfGate], [OfShip],
// [OfEscapeTest]). This package turns that into a number. [Markdown] lists
// the numbers for the manual.
package exitcode

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// Codes of `carboy run`, `carboy start`, `carboy resume` and `carboy exec`. Any other code is the command's own.
const (
	// timeout means that the wall clock ran out.
	timeout = 124
	// refused means that carboy refused or failed: the command did not end by itself.
	refused = 125
	// NotExecutable means that the bottle has the command and cannot execute it.
	NotExecutable = 126
	// NotFound means that the bottle does not have the command.
	NotFound = 127
	// signalBase plus n means that signal n ended the command.
	signalBase = 128
)

// Codes of every other command.
const (
	OK     = 0
	Failed = 1
	Usage  = 2
	// incomplete means that escape-test found no escape, and could not try everything.
	incomplete = 3
	// escalated means that a person must decide about the change.
	escalated = 11
	// rejected means that a gate refused the change for good.
	rejected = 12
	// broken means that a verdict, an attempt or the audit log differs from the record of it.
	broken = 13
	// locked means that another gate works on the directory.
	locked = 14
)

// Codes of `carboy plan`, `carboy apply`, `carboy rollback` and `carboy ship`, one for
// each outcome. These commands also use OK, Failed and Usage.
const (
	ShipPolicy         = 3
	shipMismatch       = 4
	shipDestructive    = 5
	shipStale          = 6
	ShipFailed         = 7
	ShipUnhealthy      = 8
	shipApplied        = 9
	ShipRollbackFailed = 10
	shipLocked         = 14
	ShipPlanned        = 20
)

// Codes of `carboy ship status`, one for each state that needs attention. More severe
// states have higher codes.
const (
	shipBehind     = 21
	shipOrphaned   = 22
	shipAbsent     = 23
	shipExited     = 24
	shipIll        = 25
	shipDrifted    = 26
	shipUnapproved = 27
)

// Signal returns the code of a command that signal s ended.
func Signal(s os.Signal) int {
	n, _ := s.(syscall.Signal)
	return signalBase + int(n)
}

// Row is one line of the table in the manual.
type Row struct {
	Command string // the carboy commands that end with Code
	Code    string // a number or a range
	Meaning string
}

const (
	running       = "runs"     // run, start, resume, exec
	shipping      = "shipping" // plan, apply, rollback, ship
	statusCommand = "ship status"
)

// table lists every code, for the manual.
var table = []Row{
	{running, "0-123", "the command's own exit code"},
	{"run, start, resume", num(timeout), "the wall clock (`--timeout`) ran out and the bottle was ended"},
	{running, num(refused), "carboy refused or failed: wrong usage, a missing kernel feature, a locked workspace, memory or output past its limit, a run that is over, interrupted twice; or the bottle was frozen"},
	{running, num(NotExecutable), "the command is in the bottle but cannot be executed"},
	{running, num(NotFound), "the command is not in the bottle"},
	{running, "128+n", "signal n ended the command"},
	{"an agent's name, orchestrate start, orchestrate resume", "0-127, 128+n", "as start and resume: the agent's own code; 125 if carboy refused or failed, wrong usage included"},
	{"orchestrate doctor", num(OK), "nothing fails; what a forge does not tell is no failure"},
	{"orchestrate doctor", num(Failed), "something fails, or the configuration is wrong"},
	{"orchestrate serve", num(OK), "it was stopped by a signal, and what ran goes on at the next start"},
	{"orchestrate serve", num(Failed), "it could not start, or its state can't be written"},
	{"escape-test", num(OK), "everything was tried and contained"},
	{"escape-test", num(Failed), "something escaped, or bottles do not work here"},
	{"escape-test", num(incomplete), "nothing escaped, but some attacks could not be tried"},
	{"gate trace", num(OK), "no scenario failed, and what was traced is what was built, where that is known"},
	{"gate trace", num(rejected), "a scenario failed or ran out of time, there is no trace, or another image was traced than was built"},
	{"gate run, gate init, gate verify, work", num(OK), "every signal passed, or a person has overridden the verdict"},
	{"gate run, gate init, work", num(Failed), "carboy could not judge: no catalog, no such revision, no bottle, no tests for `gate init`"},
	{"gate, work", num(Usage), "wrong usage"},
	{"gate, work", num(escalated), "a person must decide: tests were edited, exit code and report disagree, all attempts are spent, or nobody answered at the queue"},
	{"gate, work", num(rejected), "a signal did not pass, or a person said no to an override or a baseline"},
	{"gate, work", num(broken), "a verdict, an attempt or the audit log is not what was recorded, or a verdict is not of the change that was named"},
	{"gate, work", num(locked), "another gate works on this directory, or another process on this work"},
	{"work", "128+n", "signal n stopped it: `carboy work --continue ID` goes on"},
	{shipping, num(OK), "nothing to do; `ship`: done; `ship status`: all is current"},
	{shipping, num(Failed), "a tool failed, or the outcome is not known yet: `carboy ship status` tells"},
	{shipping, num(Usage), "wrong usage"},
	{shipping, num(ShipPolicy), "policy: the host, the module, its compose file or the work tree is not allowed"},
	{shipping, num(shipMismatch), "no approval, or one of another plan or commit, expired, used up or not signed by whom it names"},
	{shipping, num(shipDestructive), "the plan destroys something, and the approval does not say `destructive`"},
	{shipping, num(shipStale), "the host is not as the plan saw it, or the plan is too old"},
	{shipping, num(ShipFailed), "the host could not be reached (`ship status`: unreachable) or could not do it; what ran before runs"},
	{shipping, num(ShipUnhealthy), "not healthy; rolled back"},
	{"apply", num(shipApplied), "applied and healthy"},
	{shipping, num(ShipRollbackFailed), "rolling back failed: act now"},
	{shipping, num(shipLocked), "somebody else applies at this moment"},
	{"plan, rollback", num(ShipPlanned), "something to do, and a plan for it"},
	{statusCommand, num(shipBehind), "behind: as applied; the commit differs"},
	{statusCommand, num(shipOrphaned), "orphaned: as applied; the commit lacks its module"},
	{statusCommand, num(shipAbsent), "absent: no container"},
	{statusCommand, num(shipExited), "exited: as applied, and not running"},
	{statusCommand, num(shipIll), "unhealthy: as applied; its healthcheck fails"},
	{statusCommand, num(shipDrifted), "drifted: a file was changed, or an older version runs"},
	{statusCommand, num(shipUnapproved), "unapproved: no record has what runs"},
	{"others", num(OK), "done"},
	{"others", num(Failed), "failed or refused"},
	{"others", num(Usage), "wrong usage: an unknown command, flag or value"},
}

// Markdown returns the table as the manual shows it. A command inside may itself end with
// a code of 124 or more. The receipt's exit.reason tells the two apart.
func Markdown() string {
	var b strings.Builder
	b.WriteString("| Command | Code | Meaning |\n| --- | --- | --- |\n")
	for _, r := range table {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", r.Command, r.Code, r.Meaning)
	}
	return b.String()
}

func num(n int) string { return fmt.Sprint(n) }
