// Package ship deploys a module of a repository to hosts: it plans the changes, checks
// that people approved the plan, applies it, and rolls back if the service is unhealthy.
//
// Guarantees:
//
//   - Apply does only what a plan says, and applies a plan at most once. Before any
//     connection it refuses a plan unless it is unmodified, of the checked-out commit, for
//     a host of hosts.yaml with pinned keys, and has the approvals that the host requires.
//     Approvals by reviews at a forge are asked for again right before the first change.
//   - One script on the host does the work, under a lock there. It reads the host's state
//     again and stops if that differs from the plan's. It writes exactly one result, and
//     continues if the connection ends.
//   - The compose file that runs is byte for byte the one that was checked, from the
//     approved commit.
//   - If an apply fails, the files get their previous contents, and the service its
//     previous compose file and image.
//
// Start reading at [Engine.Plan], then [Engine.Apply]; the other side is script.sh.
package ship

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/hosts"
	"github.com/carboy/carboy/internal/ship/module"
	"github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/ship/remote"
	"github.com/carboy/carboy/internal/ship/reviews"
)

//go:embed script.sh
var scriptText string

// Outcome is the result of a plan on a host. The command line has an exit code for each.
// The zero Outcome means that the result is unknown.
type Outcome string

// The outcomes.
const (
	Nothing        Outcome = "nothing"         // there was nothing to do
	Applied        Outcome = "applied"         // the service runs and is healthy
	Failed         Outcome = "failed"          // the host could not apply it; the previous state is unchanged or restored
	RolledBack     Outcome = "rolled-back"     // the service was unhealthy; the previous state is restored
	RollbackFailed Outcome = "rollback-failed" // the rollback failed too: a person must act
	Locked         Outcome = "locked"          // another apply is running
	Refused        Outcome = "refused"         // a policy forbids it
	Mismatch       Outcome = "mismatch"        // the plan or its approval is missing, wrong or used
	Destructive    Outcome = "destructive"     // the approval does not allow destructive changes
	Stale          Outcome = "stale"           // the host changed since the plan was made
)

// Error says why a plan was not applied, or not completely.
type Error struct {
	Outcome Outcome
	Host    string // or ""
	Err     error
	Advice  string
}

// ExitOutcome lets package exitcode choose the exit code.
func (e *Error) ExitOutcome() string { return string(e.Outcome) }

func (e *Error) Error() string {
	if e.Host == "" {
		return e.Err.Error()
	}
	return e.Host + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ErrUnknown means that the outcome of a plan could not be read from the host, which may
// still be working on it. [Engine.Status] reads it later.
var ErrUnknown = errors.New("the outcome is not known yet")

// ErrDeadline matches an [Error] of a plan that failed because a command on the host
// exceeded its deadline. [Entry.Why] and [Result.Why] say which command.
var ErrDeadline = errors.New("a command on the host was ended at its deadline")

func fail(o Outcome, host, advice, format string, args ...any) error {
	return &Error{o, host, fmt.Errorf(format, args...), advice}
}

// Deadlines of commands on a host.
const (
	DefaultUp    = 5 * time.Minute // docker compose up
	DefaultOther = 2 * time.Minute // any other command of compose
	lookTime     = 30 * time.Second
	maxCommand   = time.Hour
)

// keptJobs is the number of jobs that a host keeps and lists, newest first. It keeps an
// older job until its plan has expired by the host's own clock.
const keptJobs = 50

// maxAuditedSteps bounds the audit records of one job's steps.
const maxAuditedSteps = 200

// maxProgressLines bounds the lines and the steps that are passed on as progress, because
// each is scanned for secrets.
const maxProgressLines = 2000

// Engine plans and applies modules from the operator's machine. Its methods may be called
// concurrently.
type Engine struct {
	Config string // directory of hosts.yaml and allowed_signers
	State  string // private directory of this package's records
	Repo   string // top of the work tree
	By     string // the user's name, for records
	Keys   remote.Keys
	Audit  *audit.Log // nil in tests: no audit records
	// Verifier verifies approvals; default: SSH signatures against allowed_signers.
	Verifier approval.Verifier
	// Up and Other bound commands on hosts; 0 means the defaults.
	Up, Other time.Duration
	// Life bounds the time until a plan must be applied; 0 means [plan.DefaultLife].
	Life time.Duration
	// Progress, if not nil, is called for each event, one call at a time.
	Progress func(Progress)
	// Pull is the number of a pull request whose reviews can approve, at the forge that
	// hosts.yaml names for a host. 0: no forge is asked.
	Pull int
	// Forge opens a forge of hosts.yaml. It is needed with Pull.
	Forge func(*hosts.Reviews) (reviews.Forge, error)

	exec *hostexec.Runner
}

// Progress is one event on a host. Text is printable, bounded and redacted.
type Progress struct {
	Host string    `json:"host"`
	At   time.Time `json:"at"`
	Step string    `json:"step"` // "" for a line of output of a program
	Text string    `json:"text"`
}

// Open checks the engine's fields and prepares it for use; the caller must close it. The
// error is an [Error] with [Refused] if Config, State or one of Config's files is inside
// the repository.
func (e *Engine) Open() error {
	for _, d := range []string{e.Config, e.State, e.Repo} {
		if !filepath.IsAbs(d) {
			return fmt.Errorf("ship: %q is not an absolute directory", d)
		}
	}
	if err := outside(e.Repo, e.Config, e.State, filepath.Join(e.Config, hosts.FileName), filepath.Join(e.Config, approval.SignersFile)); err != nil {
		return err
	}
	if e.Up < 0 || e.Other < 0 || e.Up > maxCommand || e.Other > maxCommand {
		return fmt.Errorf("ship: a deadline is at most %v", maxCommand)
	}
	if e.Pull < 0 || e.Pull > 0 && e.Forge == nil {
		return errors.New("ship: no such pull request, or no forge to ask")
	}
	if err := os.MkdirAll(e.State, 0o700); err != nil {
		return err
	}
	e.Progress = serial(e.Progress)
	var err error
	e.exec, err = hostexec.New(hostexec.Options{})
	return err
}

// outside returns an error if one of names is inside the repository, directly or through
// a link: a commit must not decide which commits may be shipped.
func outside(repo string, names ...string) error {
	top, err := filepath.EvalSymlinks(repo)
	if err != nil {
		return err
	}
	for _, name := range names {
		real, err := resolved(name)
		if err != nil {
			return err
		}
		if real == top || strings.HasPrefix(real, strings.TrimSuffix(top, "/")+"/") {
			return fail(Refused, "", "keep it with the operator, such as in ~/.config/carboy", "%s lies in the repository %s, which it decides about", name, repo)
		}
	}
	return nil
}

// resolved returns a path without symbolic links. The file need not exist.
func resolved(name string) (string, error) {
	real, err := filepath.EvalSymlinks(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return real, err
	}
	if _, err := os.Lstat(name); err == nil {
		return "", fmt.Errorf("%s: a link that leads nowhere", name)
	}
	up, err := resolved(filepath.Dir(name))
	return filepath.Join(up, filepath.Base(name)), err
}

// Close stops the engine's commands on this machine.
func (e *Engine) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return e.exec.Close(ctx)
}

// host returns a host of hosts.yaml, and the file.
func (e *Engine) host(name string) (*hosts.File, *hosts.Host, error) {
	all, err := hosts.Load(e.Config)
	if err != nil {
		return nil, nil, &Error{Refused, "", err, "carboy ship init writes one to begin with"}
	}
	h, ok := all.Find(name)
	if !ok {
		return nil, nil, fail(Refused, "", "only hosts of that file are allowed; add it there", "%s has no host %s", all.Path, name)
	}
	return all, h, nil
}

// scriptVars holds the values for one run of script.sh.
type scriptVars struct {
	mode                   string
	host                   *hosts.Host
	project, service, root string
	values                 map[string]string
}

// varNames lists the variables of script.sh.
var varNames = []string{"mode", "docker", "project", "service", "root", "files", "binds", "image", "job", "owner", "t_look", "t_other", "t_up",
	"size", "observed", "action", "pieces", "sums", "wanted", "programs", "prev", "prev_ref", "prev_image", "prev_ran", "want_image", "want_hash",
	"pull", "force", "stable", "stable_checked", "health_within", "tell", "most", "keep", "plan_life"}

// script returns script.sh with assignments of its variables before it.
func (e *Engine) script(s scriptVars) (string, error) {
	v := map[string]string{}
	for _, n := range varNames {
		v[n] = ""
	}
	seconds := func(d, absent time.Duration) string {
		if d == 0 {
			d = absent
		}
		return strconv.Itoa(max(1, int((d+time.Second-1)/time.Second)))
	}
	v["mode"], v["docker"], v["project"], v["service"], v["root"] = s.mode, s.host.Docker, s.project, s.service, s.root
	v["t_look"], v["t_other"], v["t_up"] = seconds(min(lookTime, e.other()), 0), seconds(e.Other, DefaultOther), seconds(e.Up, DefaultUp)
	v["image"], v["size"], v["job"], v["prev_ran"], v["stable"], v["stable_checked"], v["health_within"] = "-", "0", "-", "0", "1", "0", "2"
	v["most"], v["keep"], v["plan_life"] = strconv.Itoa(keptJobs), strconv.Itoa(keptJobs), seconds(plan.MaxLife+24*time.Hour, 0)
	v["owner"] = e.By
	for n, x := range s.values {
		if _, ok := v[n]; !ok {
			return "", fmt.Errorf("script: no variable %s", n)
		}
		v[n] = x
	}
	head, err := remote.Assign(varNames, v)
	if err != nil {
		return "", err
	}
	return head + scriptText, nil
}

// lines joins paths for the script, one per line. It returns an error for a path with
// characters that the shell would split or expand.
func lines(paths []string) (string, error) {
	for _, p := range paths {
		if why := module.Relative(strings.TrimPrefix(p, "/")); why != "" {
			return "", fmt.Errorf("path %.200q %s", p, why)
		}
	}
	return strings.Join(paths, "\n"), nil
}

// scriptOutput holds the output of script.sh without its progress lines.
type scriptOutput struct {
	words    map[string]string // by word: the rest of its line
	files    [][2]string       // name and base64
	refused  string            // the code of a refusal, "" for none
	why      string            // the reason of a refusal
	evidence evidence
	auditErr error // from auditing its steps
}

// runScript runs a script and returns its output. It passes lines of programs and steps to
// e.Progress as they come, and steps also to onStep unless that is nil.
func (e *Engine) runScript(ctx context.Context, c *remote.Conn, h *hosts.Host, s remote.Script, onStep func(step, text string)) (*scriptOutput, error) {
	a := &scriptOutput{words: map[string]string{}}
	red := newRedactor()
	count := map[string]int{} // separately: many lines must not hide a step
	s.Redact = func(text string) string { return shown(newRedactor().Line(text)) }
	err := c.Run(ctx, s, func(l remote.Line) {
		if l == (remote.Line{}) {
			return
		}
		if l.Word == "" || l.Word == "@step" {
			if count[l.Word]++; count[l.Word] > maxProgressLines {
				if count[l.Word] == maxProgressLines+1 {
					e.progress(h.Name, "", "... more than can be shown")
				}
				return
			}
		}
		switch l.Word {
		case "@step":
			step, text, _ := strings.Cut(l.Rest, " ")
			a.evidence.step(step)
			step, text = shown(step), shown(newRedactor().Line(text)) // not part of a program's output
			e.progress(h.Name, step, text)
			if onStep != nil {
				onStep(step, text)
			}
		case "":
			text := shown(red.Line(l.Rest))
			a.evidence.output(text)
			e.progress(h.Name, "", text)
		case "@evidence", "@health", "@log":
			a.evidence.add(l.Word, l.Rest)
		case "@refused":
			if a.refused == "" {
				a.refused, a.why, _ = strings.Cut(l.Rest, " ")
				a.why = shown(red.Line(a.why))
			}
		case "@file", "@job":
			a.files = append(a.files, [2]string{l.Word, l.Rest})
		default:
			if _, twice := a.words[l.Word]; !twice {
				a.words[l.Word] = l.Rest
			}
		}
	})
	return a, err
}

func (e *Engine) progress(host, step, text string) {
	if e.Progress != nil {
		e.Progress(Progress{host, time.Now().UTC(), step, text})
	}
}

// auditEvent appends an event to the audit log, if there is one.
func (e *Engine) auditEvent(ctx context.Context, kind audit.Kind, d audit.Decision, p *plan.Plan, digest, rule, text string) error {
	if e.Audit == nil {
		return nil
	}
	none, err := secret.NewRedactor(nil)
	if err != nil {
		return err
	}
	red := newRedactor()
	ev := audit.Event{Kind: kind, Actor: audit.ByUser(os.Getuid()), Decision: d, Rule: audit.Redact(none, rule), Text: audit.Redact(none, red.Line(text)), Sync: kind != audit.ShipStep, // the outcome that follows a step syncs it
		Subject: audit.Redact(none, p.Module+" on "+p.Host.Name+" at "+p.Commit)}
	if sum, ok := digestOf(digest); ok {
		ev.Digests = append(ev.Digests, audit.Digest{Of: "plan", Sum: sum})
	}
	// Write the event even if the caller has given up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	_, err = e.Audit.Append(ctx, ev)
	return err
}
