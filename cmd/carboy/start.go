//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

const startLong = `Start an agent in a bottle that bears its name. Manifests say what it may do (carboy
explain AGENT shows the result). This command can choose a bottle, but adds nothing to
it.

Without AGENT, in a terminal, it asks for what no flag says: the agent, its bottles and
their order, a label, a colour.

With --headless and --prompt the agent carries out the prompt and ends, without
questions. Otherwise it gets this terminal, after a summary and a question. --cwd gives
it this directory, in the mode that the bottle says; in a repository, it is asked for.
Without --cwd the agent has no workspace, and nothing that it writes can land.

The exit code is the agent's own; 130 if it was interrupted, 125 if carboy refused or
failed. A bottle with changes, a conversation or an agent that failed is kept, and with
--keep any: carboy resume continues it. carboy freeze stops a running bottle and keeps
its processes too.`

const startExample = `  carboy start reviewer --cwd
  carboy start reviewer --cwd --headless --prompt 'fix the tests'
  carboy start reviewer --bottle node --bottle offline --label night --dry-run`

type startFlags struct {
	bottles, environ       list
	prompt, label          string
	policy                 string
	askFor                 span
	color                  choice
	cwd, headless, dry     bool
	yes, quiet, json, keep bool
	orchestrated           bool // by carboy orchestrate
}

func (a *app) startCmd() *cobra.Command {
	f := &startFlags{bottles: list{name: "NAME", eg: "node"}, environ: list{name: "NAME=VALUE", eg: "WHO=me"}, color: choice{name: "COLOR", of: carboy.Colors}}
	cmd := &cobra.Command{
		Use: "start [AGENT]", Short: "start an agent in its bottle", Long: startLong, Example: startExample, GroupID: "main",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("carboy start AGENT --headless --prompt 'fix the tests'", "start: wanted one agent, got %d", len(args))
			}
			return nil
		},
		ValidArgsFunction: a.complete("agents"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.start(cmd.Context(), f, arg(args))
		},
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.BoolVar(&f.cwd, "cwd", false, "give the agent this directory, as the bottle's workspace field says")
	fl.Var(&f.bottles, "bottle", "take this bottle instead of the agent's own; repeatable, later ones win")
	fl.BoolVar(&f.headless, "headless", false, "carry out --prompt and end, without questions")
	fl.StringVar(&f.prompt, "prompt", "", "the agent's task, a `TEXT`; with --headless")
	fl.Var(&f.environ, "env", "the value of a variable that the bottle asks for; repeatable")
	fl.StringVar(&f.label, "label", "", "call the bottle `NAME` (default: the agent's); if that is taken, NAME-2, NAME-3 and so on")
	fl.Var(&f.color, "color", "the bottle's color in lists and titles: one of a terminal's sixteen")
	fl.StringVar(&f.policy, "policy", "", "a `FILE` of your own with rules that answer some questions to people (carboy supervise)")
	a.askForFlag(fl, &f.askFor)
	fl.BoolVar(&f.keep, "keep", false, "keep the bottle even if the agent succeeds, so that it can be resumed")
	fl.BoolVar(&f.dry, "dry-run", false, "only say what would be started; also BOT_BOTTLE_DRY_RUN")
	fl.BoolVarP(&f.yes, "yes", "y", false, "don't ask whether to start")
	fl.BoolVar(&f.json, "json", false, "with --headless: print the receipt on stdout; the agent's own output goes to stderr")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "print only errors")
	cmd.RegisterFlagCompletionFunc("bottle", a.complete("bottles"))
	cmd.RegisterFlagCompletionFunc("color", cobra.FixedCompletions(carboy.Colors, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// startOptions turns the flags into options.
func (a *app) startOptions(f *startFlags, agent string) (carboy.StartOptions, error) {
	askFor, err := a.askFor(f.askFor)
	if err != nil {
		return carboy.StartOptions{}, err
	}
	o := carboy.StartOptions{
		Agent: agent, Bottles: f.bottles.values, Cwd: f.cwd, Headless: f.headless, Prompt: f.prompt, Label: f.label, Color: f.color.value,
		Env: f.environ.values, Keep: f.keep, KeepWork: !f.orchestrated, Policy: f.policy, AskFor: askFor, Stdout: a.stdout, Stderr: a.stderr,
	}
	// An agent that is not headless uses the terminal.
	o.Terminal = !f.headless
	switch dry := a.dryRun(f); {
	case f.headless != (f.prompt != ""):
		return o, usagef("carboy start AGENT --headless --prompt 'fix the tests'", "start: --headless and --prompt need each other")
	case f.json && !f.headless:
		return o, usagef("add --headless --prompt TEXT", "start: --json needs --headless")
	case agent != "" && o.Terminal && !dry && (!isTerminal(a.stdin) || !isTerminal(a.stdout)):
		return o, usagef("add --headless --prompt TEXT", "start: an agent that is not headless needs a terminal")
	case f.json:
		o.Stdout = a.stderr
	}
	if o.Terminal {
		o.Stdin = a.stdin
		o.Ask = a.askValue
	} else {
		o.Stdout, o.Stderr = tame(o.Stdout), tame(o.Stderr)
	}
	return o, nil
}

// dryRun reports whether to start nothing. It accepts the values of bot-bottle.
func (a *app) dryRun(f *startFlags) bool {
	v := strings.ToLower(a.env("BOT_BOTTLE_DRY_RUN"))
	return f.dry || v != "" && v != "0" && v != "false" && v != "no"
}

func (a *app) start(ctx context.Context, f *startFlags, agent string) error {
	o, err := a.startOptions(f, agent)
	if err != nil {
		return err
	}
	c, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if agent == "" {
		if err := a.choose(ctx, c, f, &o); err != nil {
			return err
		}
	}
	if !o.Cwd && !f.headless && !f.yes && !a.dryRun(f) && isTerminal(a.stdin) && isTerminal(a.stderr) {
		if dir, err := fault.WorkTree("."); err == nil {
			if o.Cwd, err = a.ask(ctx, "this directory is in the repository "+safetext.String(a.tilde(dir), 200)+". Give it to the agent, as with --cwd?"); err != nil {
				return err
			}
		}
	}
	if a.dryRun(f) {
		o.Ask = func(string, string) (string, error) { return "", nil } // not now
		p, err := c.Preflight(o)
		if err != nil {
			return err
		}
		a.printPreflight(p, a.stdout)
		return nil
	}
	_, err = a.startAgent(ctx, c, f, o, func(p *carboy.Preflight) error {
		if !f.quiet {
			a.printSummary(p, a.stderr)
		}
		if f.headless || f.yes {
			return nil
		}
		return a.confirm(ctx, "start it?")
	})
	return err
}

// startAgent starts an agent that the user agrees to, and says how it ended. The result is
// nil if it did not start.
func (a *app) startAgent(ctx context.Context, c *carboy.Client, f *startFlags, o carboy.StartOptions, agree func(*carboy.Preflight) error) (*carboy.Started, error) {
	n := &narrator{app: a, bottle: true, quiet: f.quiet, busy: o.Terminal}
	o.OnEvent = n.event
	started, interrupted, err := a.withInterrupts(func(interrupts <-chan os.Signal, arm func()) (*carboy.Started, error) {
		o.Interrupt = interrupts
		o.Confirm = func(p *carboy.Preflight) error {
			err := agree(p)
			if err == nil {
				err = a.pullFor(ctx, c, p)
			}
			arm()
			return err
		}
		return c.Start(ctx, o)
	})
	n.end()
	return started, a.started(f, started, err, interrupted && !o.Terminal)
}

// pullFor fetches or builds the image of a bottle before its agent starts.
func (a *app) pullFor(ctx context.Context, c *carboy.Client, p *carboy.Preflight) error {
	if p.Image == "" {
		return nil
	}
	img, err := a.imageFor(ctx, c, p)
	if err != nil {
		return err
	}
	p.ImageDigest = img.Digest
	return nil
}

// withInterrupts calls run and passes signals on once run has called arm. Before that, an
// interrupt ends carboy, because there is nothing to clean up. After that, the agent
// decides what one means.
func (a *app) withInterrupts(run func(interrupts <-chan os.Signal, arm func()) (*carboy.Started, error)) (s *carboy.Started, interrupted bool, err error) {
	signals, interrupts := make(chan os.Signal, 4), make(chan os.Signal, 4)
	defer signal.Stop(signals)
	over, passed := make(chan struct{}), make(chan bool, 1)
	go func() { // ends with run
		interrupted := false
		for {
			select {
			case s := <-signals:
				interrupted = interrupted || s == syscall.SIGINT
				select {
				case interrupts <- s:
				default: // four wait already
				}
			case <-over:
				passed <- interrupted
				return
			}
		}
	}()
	s, err = run(interrupts, func() { signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT) })
	close(over)
	return s, <-passed, err
}

// started says how a start ended and sets the exit code.
func (a *app) started(f *startFlags, s *carboy.Started, err error, interrupted bool) error {
	if s == nil {
		a.code = exitcode.OfInterrupted(interrupted, a.code)
		return err
	}
	a.code = exitcode.OfCommand(s.Receipt.Exit.Code, nil)
	var ended *carboy.AgentError
	if err != nil && !errors.As(err, &ended) {
		a.code = exitcode.OfCommand(s.Receipt.Exit.Code, err)
		a.say(plainText, "%s", errorLine(err))
		if tip := advice(err); tip != "" {
			a.say(plainText, "hint: %s", errorText(tip))
		}
	}
	var left *carboy.KeysLeftError
	if ended != nil && errors.As(err, &left) {
		a.say(redText, "%s", errorLine(left))
		a.say(plainText, "hint: %s", errorText(left.Advice()))
	}
	a.code = exitcode.OfInterrupted(interrupted, a.code)
	switch {
	case f.json:
		b, jerr := s.Receipt.Encode()
		if jerr != nil {
			return jerr
		}
		a.stdout.Write(b)
	case !f.quiet:
		a.summary(s.Receipt)
		if !s.Resumable {
			a.tellLeft(s.Receipt)
		}
	case s.Receipt.Exit.Reason != receipt.Exited && s.Receipt.Exit.Reason != receipt.Signalled:
		a.ended(s.Receipt)
	}
	switch {
	case f.orchestrated && s.Kept:
		a.say(plainText, "bottle %s ended with code %d: carboy orchestrate resume --slug %s --prompt TEXT, carboy destroy %s", s.Slug, a.code, s.Slug, s.Slug)
	case f.quiet || !s.Kept:
	case s.Frozen:
		a.say(greenText, "bottle %s is frozen%s: carboy resume %s", s.Slug, until(s.Until), s.Slug)
	case !s.Resumable:
		a.say(plainText, "the records of bottle %s are kept, and none of its files: carboy logs %s, carboy destroy %s", s.Slug, s.Slug, s.Slug)
	default:
		a.say(plainText, "bottle %s is kept%s: carboy resume %s, carboy logs %s, carboy destroy %s", s.Slug, until(s.Until), s.Slug, s.Slug, s.Slug)
	}
	for _, slug := range s.Forgotten {
		a.say(plainText, "bottle %s was kept for long enough, or is too large beside newer ones: it can't be resumed any more; its changes stay", slug)
	}
	if a.code != 0 {
		return errReported
	}
	return nil
}

// until says until when a bottle is kept.
func until(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return " until " + at.Local().Format(time.DateOnly)
}

// printSummary prints what would be started in some five lines. It prints all of it with -v, and
// of an agent that the repository itself describes.
func (a *app) printSummary(p *carboy.Preflight, w io.Writer) {
	if a.verbose || p.InRepo {
		a.printPreflight(p, w)
		return
	}
	for _, s := range p.Warnings {
		a.say(plainText, "warning: %s", errorText(s))
	}
	line := a.preflightLine(w)
	agent := fmt.Sprintf("%s in %s", safetext.String(p.Agent, 60), safetext.String(strings.Join(p.Bottles, ", "), 200))
	if p.Label != "" || p.Color != "" {
		agent += ", as " + a.paint(w, toneOf(p.Color), safetext.String(first(p.Label, p.Agent), 100))
	}
	line("agent", "%s", agent)
	line("program", "%s", programText(p))
	if p.Image != "" {
		line("image", "%s", imageText(p))
	}
	line("workspace", "%s", a.workspaceText(p))
	line("reaches", "%s", reachesText(p.Routes))
	if len(p.Services) > 0 {
		line("services", "%s", safetext.String(strings.Join(p.Services, "; "), 400))
	}
	var more []string
	for _, x := range []struct {
		n         int
		one, many string
	}{
		{len(p.Env), "variable", "variables"}, {len(p.Mounts), "directory of this machine", "directories of this machine"},
		{len(p.Repositories), "repository", "repositories"}, {len(p.Files), "file of the agent's own", "files of the agent's own"}, {len(p.Lacks), "limit of its backend", "limits of its backend"},
	} {
		if x.n > 0 {
			more = append(more, number(x.n, x.one, x.many))
		}
	}
	if len(more) > 0 {
		line("besides", "%s (-v shows all)", strings.Join(more, ", "))
	}
	for _, n := range p.Notes {
		line("note", "%s", safetext.String(n, 300))
	}
}

// reachesText names the first routes of a bottle.
func reachesText(l []routes.Description) string {
	const shown = 3
	if len(l) == 0 {
		return "nothing"
	}
	var first []string
	for _, r := range l[:min(len(l), shown)] {
		first = append(first, safetext.String(routeText(r), 120))
	}
	s := strings.Join(first, ", ")
	if n := len(l) - shown; n > 0 {
		s += fmt.Sprintf(" and %d more", n)
	}
	return s
}

func imageText(p *carboy.Preflight) string {
	s := safetext.String(p.Image, 300)
	if p.Builds() {
		s += " (built first, unless it was)"
	}
	return s
}

func programText(p *carboy.Preflight) string {
	return safetext.String(p.Template+": "+strings.Join(p.Command, " "), 300)
}

func (a *app) workspaceText(p *carboy.Preflight) string {
	if p.Mode == store.None {
		return "none"
	}
	return fmt.Sprintf("%s (%s)", safetext.String(a.tilde(p.Workspace), 300), p.Mode)
}

func (a *app) preflightLine(w io.Writer) func(what, format string, args ...any) {
	return func(what, format string, args ...any) {
		fmt.Fprintf(a.shownTo(w), "%-10s %s\n", what, fmt.Sprintf(format, args...))
	}
}

// printPreflight prints what would be started, for a person who may refuse.
func (a *app) printPreflight(p *carboy.Preflight, w io.Writer) {
	show := func(s string) string { return safetext.String(s, 300) }
	line := a.preflightLine(w)
	for _, s := range p.Warnings {
		a.say(plainText, "warning: %s", errorText(s))
	}
	whose := ""
	if p.InRepo {
		whose = ", the repository's"
	}
	line("agent", "%s (%s%s)", p.Agent, show(a.tilde(p.AgentFile)), whose)
	line("bottle", "%s", show(strings.Join(p.Bottles, ", ")))
	if p.Label != "" || p.Color != "" {
		line("label", "%s", a.paint(w, toneOf(p.Color), show(first(p.Label, p.Agent))))
	}
	line("program", "%s", programText(p))
	if p.Image != "" {
		line("image", "%s", imageText(p))
	}
	line("workspace", "%s", a.workspaceText(p))
	if p.Backend != carboy.Backends()[0] {
		line("held by", "%s", show(p.Backend))
	}
	for _, l := range p.Lacks {
		line("without", "%s: %s", l.What, show(l.Why))
	}
	if len(p.Routes) == 0 {
		line("reaches", "nothing")
	}
	for _, r := range p.Routes {
		line("reaches", "%s", show(routeText(r)))
	}
	for _, s := range p.Services {
		line("service", "%s; what it holds is gone at the end", show(s))
	}
	for _, r := range p.Repositories {
		line("repository", "%s", show(repositoryText(r)))
	}
	if len(p.Env) > 0 {
		line("variables", "%s", show(strings.Join(p.Env, " ")))
	}
	for _, m := range p.Mounts {
		line("shows", "%s", show(m))
	}
	const shown = 6
	for i, f := range p.Files {
		if i == shown && len(p.Files) > shown+1 {
			line("makes", "%d files more of the agent's own", len(p.Files)-i)
			break
		}
		line("makes", "%s", show(f))
	}
	for _, n := range p.Notes {
		line("note", "%s", show(n))
	}
}

func repositoryText(r carboy.Repository) string {
	s := r.Name + ": " + r.URL + ", opened by " + r.Access
	if r.HostKey != "" {
		s += ", host key " + r.HostKey
	}
	return s
}

// askValue asks for the value of a variable.
func (a *app) askValue(name, words string) (string, error) {
	fmt.Fprintf(a.stderr, "carboy: %s (%s): ", safetext.String(words, 200), safetext.String(name, 100))
	return a.line()
}

// line reads one line from the terminal, byte by byte, because the agent reads what
// follows.
func (a *app) line() (string, error) {
	var b []byte
	one := make([]byte, 1)
	for len(b) < 64<<10 {
		n, err := a.stdin.Read(one)
		if n == 1 && one[0] == '\n' {
			break
		}
		if n == 1 {
			b = append(b, one[0])
		}
		if err != nil {
			return "", fmt.Errorf("read the answer: %w", err)
		}
	}
	return strings.TrimRight(string(b), "\r"), nil
}

const destroyLong = `Destroy bottles: end what runs in them and remove their records, receipts and logs. A
bottle that does not exist is no error. A bottle with changes that were not landed
stays, unless you give the changes up with --unlanded. The bottle's deploy keys are
revoked. If one can't be revoked, the bottle stays until you have removed the key at
the forge and say --leave-keys.`

func (a *app) destroyCmd() *cobra.Command {
	var unlanded, leave bool
	cmd := &cobra.Command{
		Use: "destroy BOTTLE...", Short: "end bottles, and remove their records", Long: destroyLong, GroupID: "keep",
		Example: "  carboy destroy reviewer\n  carboy destroy --unlanded reviewer-2",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("carboy destroy BOTTLE; carboy list shows them", "destroy: no bottle")
			}
			return nil
		},
		ValidArgsFunction: a.completeBottles(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				var errs []error
				for _, slug := range args {
					was, err := c.Destroy(ctx, slug, carboy.DestroyOptions{Unlanded: unlanded, LeaveKeys: leave})
					switch {
					case errors.Is(err, store.ErrUnlanded):
						errs = append(errs, &advisedError{err, "carboy land " + slug + " takes the changes; carboy destroy --unlanded " + slug + " gives them up"})
					case err != nil:
						errs = append(errs, err)
					case was:
						a.say(greenText, "bottle %s is gone", slug)
					default:
						a.say(plainText, "there is no bottle %s", safetext.String(slug, 80))
					}
				}
				return errors.Join(errs...)
			})
		},
	}
	cmd.Flags().BoolVar(&leave, "leave-keys", false, "also bottles whose deploy keys can't be revoked: you have removed the keys at the forge")
	cmd.Flags().BoolVar(&unlanded, "unlanded", false, "also those with changes that were not landed: the changes are lost")
	return cmd
}
