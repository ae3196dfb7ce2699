// Package ship brings a module of a repository to the hosts that its operator
// allows, exactly as somebody approved it, and takes it back when it is not healthy.
//
// What it promises:
//
//   - Nothing is done that is not in a plan, and no plan is carried out twice. A plan is
//     refused before any connection unless it is whole, of this commit, for a host that
//     is allowed and pinned, and approved by as many people as the host asks for.
//   - The work is done by one script on the host, under a lock there. It reads the
//     state again and does nothing when that is not the plan's; it ends in exactly one
//     record, and goes on when we are gone.
//   - The compose file that runs is the bytes that were judged, from the commit that
//     was approved.
//   - What did not work is taken back: files by content, the service to its previous
//     file and image.
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
)

//go:embed script.sh
var script string

// Outcome is how a plan ended on a host. Each is a different record, and the command
// line gives each its own exit code. The zero Outcome is none: it is not known.
type Outcome string

// The outcomes.
const (
	Nothing        Outcome = "nothing"         // there was nothing to do
	Applied        Outcome = "applied"         // it runs and is healthy
	Failed         Outcome = "failed"          // the host could not do it; what was there before is there
	RolledBack     Outcome = "rolled-back"     // it was not healthy, and what was there before is there again
	RollbackFailed Outcome = "rollback-failed" // neither: somebody must act
	Locked         Outcome = "locked"          // somebody else applies at this moment
	Refused        Outcome = "refused"         // policy
	Mismatch       Outcome = "mismatch"        // no approval, or one of something else
	Destructive    Outcome = "destructive"     // the approval does not cover what destroys
	Stale          Outcome = "stale"           // the host is not as the plan saw it
)

// Error is a plan that was not applied, or not to the end.
type Error struct {
	Outcome Outcome
	Host    string // or ""
	Err     error
	Advice  string
}

func (e *Error) Error() string {
	if e.Host == "" {
		return e.Err.Error()
	}
	return e.Host + ": " + e.Err.Error()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// ErrUnknown means that it could not be found out how a plan ended: the host goes on
// by itself, and status tells.
var ErrUnknown = errors.New("the outcome is not known yet")

// ErrDeadline matches an [Error] of a plan that failed because a command on the host took
// longer than its deadline and was ended. The record's and the result's Why say which.
var ErrDeadline = errors.New("a command on the host was ended at its deadline")

func fail(o Outcome, host, advice, format string, args ...any) error {
	return &Error{o, host, fmt.Errorf(format, args...), advice}
}

// Deadlines of what runs on a host.
const (
	DefaultUp    = 5 * time.Minute // docker compose up
	DefaultOther = 2 * time.Minute // any other command of compose
	lookTime     = 30 * time.Second
	MaxCommand   = time.Hour
)

// keptJobs is how many of its newest jobs a host keeps, and tells. An older one stays as
// long as its plan could be good, by the host's own clock.
const keptJobs = 50

// maxNoted bounds the steps of one job that become audit records.
const maxNoted = 200

// maxTold bounds the lines of programs, and the steps, that are passed on; reading them
// for secrets costs.
const maxTold = 2000

// Engine is an operator's side. Its methods may be called concurrently.
type Engine struct {
	Config string // directory of hosts.yaml and allowed_signers
	State  string // directory of this package's own records, private
	Repo   string // top of the work tree
	By     string // who runs this, for records
	Keys   remote.Keys
	Audit  *audit.Log // nil: no records, for tests
	// Verifier judges approvals; nil: signatures against allowed_signers.
	Verifier approval.Verifier
	// Up and Other bound commands on hosts; 0: the defaults.
	Up, Other time.Duration
	// Life is how long a plan may be applied; 0: [plan.DefaultLife].
	Life time.Duration
	// Progress hears what happens, one call at a time; nil: nobody.
	Progress func(Progress)

	exec *hostexec.Runner
}

// Progress is one thing that happened on a host. Text is visible, bounded and
// redacted.
type Progress struct {
	Host string    `json:"host"`
	At   time.Time `json:"at"`
	Step string    `json:"step"` // "" for a line that a program there wrote
	Text string    `json:"text"`
}

// Open checks an engine's fields and readies it. Close it. The error is an [Error] with
// [Refused] where Config, State or what decides in Config lies in the repository.
func (e *Engine) Open() error {
	for _, d := range []string{e.Config, e.State, e.Repo} {
		if !filepath.IsAbs(d) {
			return fmt.Errorf("ship: %q is not an absolute directory", d)
		}
	}
	if err := outside(e.Repo, e.Config, e.State, filepath.Join(e.Config, hosts.FileName), filepath.Join(e.Config, approval.SignersFile)); err != nil {
		return err
	}
	if e.Up < 0 || e.Other < 0 || e.Up > MaxCommand || e.Other > MaxCommand {
		return fmt.Errorf("ship: a deadline is at most %v", MaxCommand)
	}
	if err := os.MkdirAll(e.State, 0o700); err != nil {
		return err
	}
	e.Progress = serial(e.Progress)
	var err error
	e.exec, err = hostexec.New(hostexec.Options{})
	return err
}

// outside refuses names that lie in a repository, or that a link leads there: a commit
// must not say which commits may be shipped.
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

// resolved is a path without links; its end need not be there.
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

// Close ends what runs on this machine.
func (e *Engine) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return e.exec.Close(ctx)
}

// host finds a host of hosts.yaml.
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

// settings are what a script needs to know of a target.
type settings struct {
	mode                   string
	host                   *hosts.Host
	project, service, root string
	values                 map[string]string
}

// names are the variables of script.sh.
var names = []string{"mode", "docker", "project", "service", "root", "files", "binds", "image", "job", "owner", "t_look", "t_other", "t_up",
	"size", "observed", "action", "pieces", "sums", "wanted", "programs", "prev", "prev_ref", "prev_image", "prev_ran", "want_image", "want_hash",
	"pull", "force", "stable", "health_within", "most", "keep", "plan_life"}

func (e *Engine) text(s settings) (string, error) {
	v := map[string]string{}
	for _, n := range names {
		v[n] = ""
	}
	seconds := func(d, absent time.Duration) string {
		if d == 0 {
			d = absent
		}
		return strconv.Itoa(max(1, int(d/time.Second)))
	}
	v["mode"], v["docker"], v["project"], v["service"], v["root"] = s.mode, s.host.Docker, s.project, s.service, s.root
	v["t_look"], v["t_other"], v["t_up"] = seconds(lookTime, 0), seconds(e.Other, DefaultOther), seconds(e.Up, DefaultUp)
	v["image"], v["size"], v["job"], v["prev_ran"], v["stable"], v["health_within"] = "-", "0", "-", "0", "1", "2"
	v["most"], v["keep"], v["plan_life"] = strconv.Itoa(keptJobs), strconv.Itoa(keptJobs), seconds(plan.MaxLife+24*time.Hour, 0)
	v["owner"] = e.By
	for n, x := range s.values {
		if _, ok := v[n]; !ok {
			return "", fmt.Errorf("script: no variable %s", n)
		}
		v[n] = x
	}
	head, err := remote.Assign(names, v)
	if err != nil {
		return "", err
	}
	return head + script, nil
}

// lines are paths for the script, which splits them: none has a character that does.
func lines(paths []string) (string, error) {
	for _, p := range paths {
		if why := module.Relative(strings.TrimPrefix(p, "/")); why != "" {
			return "", fmt.Errorf("path %.200q %s", p, why)
		}
	}
	return strings.Join(paths, "\n"), nil
}

// account is what a script said, but for progress.
type account struct {
	words   map[string]string
	files   [][2]string // name and base64
	refused string      // the word
	why     string
	noted   error // of the audit log, about its steps
}

// tell runs a script and gathers what it says. Lines of programs are passed on as they
// come, and so are steps, to stepped as well; nil: to nobody else.
func (e *Engine) tell(ctx context.Context, c *remote.Conn, h *hosts.Host, s remote.Script, stepped func(step, text string)) (*account, error) {
	a := &account{words: map[string]string{}}
	red := newRedactor()
	said := map[string]int{} // apart: a flood of lines hides no step
	s.Redact = func(text string) string { return shown(newRedactor().Line(text)) }
	err := c.Run(ctx, s, func(l remote.Line) {
		if l == (remote.Line{}) {
			return
		}
		if l.Word == "" || l.Word == "@step" {
			if said[l.Word]++; said[l.Word] > maxTold {
				if said[l.Word] == maxTold+1 {
					e.progress(h.Name, "", "… more than can be shown")
				}
				return
			}
		}
		switch l.Word {
		case "@step":
			step, text, _ := strings.Cut(l.Rest, " ")
			step, text = shown(step), shown(newRedactor().Line(text)) // no program's line
			e.progress(h.Name, step, text)
			if stepped != nil {
				stepped(step, text)
			}
		case "":
			e.progress(h.Name, "", shown(red.Line(l.Rest)))
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

// note puts a step into the audit log.
func (e *Engine) note(ctx context.Context, kind audit.Kind, d audit.Decision, p *plan.Plan, digest, rule, text string) error {
	if e.Audit == nil {
		return nil
	}
	none, err := secret.NewRedactor(nil)
	if err != nil {
		return err
	}
	red := newRedactor()
	ev := audit.Event{Kind: kind, Actor: audit.ByUser(os.Getuid()), Decision: d, Rule: audit.Redact(none, rule), Text: audit.Redact(none, red.Line(text)), Sync: kind != audit.ShipStep, // an outcome follows
		Subject: audit.Redact(none, p.Module+" on "+p.Host.Name+" at "+p.Commit)}
	if sum, ok := digestOf(digest); ok {
		ev.Digests = append(ev.Digests, audit.Digest{Of: "plan", Sum: sum})
	}
	// The record must not be lost because somebody gave up waiting.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	_, err = e.Audit.Append(ctx, ev)
	return err
}
