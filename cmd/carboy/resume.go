//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// completeBottles completes names of bottles in one of the states. No states means any.
func (a *app) completeBottles(states ...carboy.BottleState) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		var names []string
		a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
			l, _, err := c.Bottles(ctx)
			for _, b := range l {
				if len(states) == 0 || slices.Contains(states, b.State) {
					names = append(names, b.Slug)
				}
			}
			return err
		})
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func oneBottle(verb, eg string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usagef(eg+"; carboy list shows them", "%s: wanted one bottle, got %d", verb, len(args))
		}
		return nil
	}
}

const freezeLong = `Stop a running bottle and keep its processes with their memory, and its files. The
carboy start or resume that holds it ends. carboy resume continues it at the very
instruction where it stopped.

Connections are cut, and commands of carboy exec end. If the processes can't be kept,
carboy says why, beforehand where the backend never keeps them; the files are always kept, and resume then starts the agent again with
them. A bottle that is frozen or kept already stays as it is.

With --to, the bottle is also written to a file, for carboy resume --from on another
machine that has the same manifests and the workspace at the same path. Keep the
file secret: it holds everything that was in the bottle.`

func (a *app) freezeCmd() *cobra.Command {
	var asJSON bool
	var to string
	cmd := &cobra.Command{
		Use: "freeze BOTTLE", Short: "stop a bottle and keep its processes and files", Long: freezeLong, GroupID: "keep",
		Example: "  carboy freeze reviewer\n  carboy resume reviewer",
		Args:    oneBottle("freeze", "carboy freeze BOTTLE"), ValidArgsFunction: a.completeBottles(carboy.BottleRunning),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				slug, err := a.called(ctx, c, args[0], carboy.BottleRunning, carboy.BottleFrozen)
				if err != nil {
					return err
				}
				for _, s := range c.FreezeLoses(slug) {
					a.say(plainText, "%s", safetext.String(s, 400))
				}
				var k *store.Kept
				err = a.slowly(ctx, "freezing", func(ctx context.Context) (err error) {
					k, err = c.Freeze(ctx, slug)
					return err
				})
				before := errors.Is(err, carboy.ErrNotLive)
				if before {
					kept, kerr := c.Kept(slug)
					if kerr != nil || kept == nil {
						return errors.Join(kerr, err)
					}
					k, err = kept, nil
				}
				if err != nil {
					return err
				}
				if to != "" {
					return a.exportBottle(ctx, c, slug, to)
				}
				if asJSON {
					return a.printJSON(k)
				}
				var size int64
				for _, p := range k.Parts() {
					size += p.Size
				}
				if before {
					a.say(plainText, "bottle %s was %s already (%s): carboy resume %s", slug, map[bool]string{true: "frozen", false: "kept"}[k.Frozen], receipt.Bytes(size), slug)
					return nil
				}
				if k.WhyNot != "" {
					a.say(plainText, "its processes could not be kept: %s", safetext.String(k.WhyNot, 300))
				}
				a.say(greenText, "bottle %s is frozen (%s): carboy resume %s", slug, receipt.Bytes(size), slug)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print run, at, build, files and live of what is kept")
	cmd.Flags().StringVar(&to, "to", "", "write it to a new `FILE` too")
	return cmd
}

// exportBottle writes a bottle to a file that only the user can read.
func (a *app) exportBottle(ctx context.Context, c *carboy.Client, slug, to string) (err error) {
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(to)
		}
	}()
	digest, err := c.ExportBottle(ctx, slug, f)
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return err
	}
	a.say(greenText, "bottle %s is in %s: carboy resume --from FILE --digest %s", slug, safetext.String(to, 200), digest)
	fmt.Fprintln(a.stdout, digest)
	return nil
}

const resumeLong = `Continue a bottle that was frozen, or that was kept when its agent ended.

A frozen bottle continues where it stopped, with its processes, memory and files, and
with the terminal or the streams of this command. It can't if it was frozen by another
carboy or backend or on another kind of processor, or if its workspace has lost an open
file: then carboy says so and starts the agent again with the files, and with its old
conversation if it has one. A kept bottle starts in the same way. --headless goes on
without questions; with --prompt, the agent gets that as its next task.

The bottle keeps its name, placeholders and certificate authority. What it may do is
read from its manifests again; if those have changed, there is a summary and a question
first. Its changes replace those of the earlier run.`

type resumeFlags struct {
	prompt, from, digest, policy string
	headless, filesOnly          bool
	yes, quiet, json, keep       bool
	orchestrated                 bool // by carboy orchestrate
	environ                      list
	askFor                       span
}

func (a *app) resumeCmd() *cobra.Command {
	f := &resumeFlags{environ: list{name: "NAME=VALUE", eg: "WHO=me"}}
	cmd := &cobra.Command{
		Use: "resume BOTTLE", Short: "continue a bottle that was frozen or kept", Long: resumeLong, GroupID: "main",
		Example: "  carboy resume reviewer\n  carboy resume reviewer --headless --prompt 'now the docs'",
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case (f.from == "") != (f.digest == ""):
				return usagef("carboy freeze --to prints the digest", "resume: --from and --digest need each other")
			case f.from != "" && len(args) > 0:
				return usagef("carboy resume --from FILE --digest sha256:…", "resume: leave out BOTTLE: the file names it")
			case f.from != "":
				return nil
			}
			return oneBottle("resume", "carboy resume BOTTLE")(cmd, args)
		},
		ValidArgsFunction: a.completeBottles(carboy.BottleFrozen, carboy.BottleKept),
		RunE:              func(cmd *cobra.Command, args []string) error { return a.resume(cmd.Context(), f, arg(args)) },
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.BoolVar(&f.headless, "headless", false, "go on, or carry out --prompt, and end, without questions")
	fl.StringVar(&f.prompt, "prompt", "", "the agent's next task, a `TEXT`; with --headless")
	fl.BoolVar(&f.filesOnly, "files", false, "start again with the files, even if the processes were kept")
	fl.StringVar(&f.from, "from", "", "take the bottle from a `FILE` that carboy freeze --to wrote; with --digest")
	fl.StringVar(&f.digest, "digest", "", "the file's `DIGEST`, as carboy freeze printed it")
	fl.Var(&f.environ, "env", "the value of a variable that the bottle asks for; repeatable")
	fl.StringVar(&f.policy, "policy", "", "a `FILE` of your own with rules that answer some questions to people (carboy supervise)")
	a.askForFlag(fl, &f.askFor)
	fl.BoolVar(&f.keep, "keep", false, "keep the bottle even if the agent succeeds")
	fl.BoolVarP(&f.yes, "yes", "y", false, "don't ask when its manifests have changed")
	fl.BoolVar(&f.json, "json", false, "with --headless: print the receipt on stdout; the agent's own output goes to stderr")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "print only errors")
	return cmd
}

// goOn is the prompt of a headless resume without --prompt.
const goOn = "Go on where you stopped."

func (a *app) resume(ctx context.Context, f *resumeFlags, slug string) error {
	switch {
	case !f.headless && f.prompt != "":
		return usagef("add --headless, or leave the prompt out", "resume: --prompt needs --headless")
	case f.json && !f.headless:
		return usagef("add --headless", "resume: --json needs --headless")
	}
	if f.headless && f.prompt == "" {
		f.prompt = goOn
	}
	askFor, err := a.askFor(f.askFor)
	if err != nil {
		return err
	}
	c, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	switch {
	case f.from != "":
		slug, err = a.importBottle(ctx, c, f.from, f.digest)
	case !f.orchestrated: // which names the one that it means
		slug, err = a.called(ctx, c, slug, carboy.BottleFrozen, carboy.BottleKept)
	}
	if err != nil {
		return err
	}
	o := carboy.ResumeOptions{
		Slug: slug, Headless: f.headless, Prompt: f.prompt, FilesOnly: f.filesOnly, Keep: f.keep, KeepWork: !f.orchestrated, Policy: f.policy, AskFor: askFor, Env: f.environ.values, Stdout: a.stdout, Stderr: a.stderr,
		Terminal: !f.headless && isTerminal(a.stdin) && isTerminal(a.stdout),
	}
	if f.json {
		o.Stdout = a.stderr
	}
	if !f.headless {
		o.Stdin = a.stdin
	}
	if o.Terminal {
		o.Ask = a.askValue
	} else {
		o.Stdout, o.Stderr = tame(o.Stdout), tame(o.Stderr)
	}
	n := &narrator{app: a, bottle: true, quiet: f.quiet, busy: o.Terminal}
	o.OnEvent = n.event
	s, interrupted, err := a.withInterrupts(func(interrupts <-chan os.Signal, arm func()) (*carboy.Started, error) {
		o.Interrupt = interrupts
		o.Confirm = func(p *carboy.Preflight) error {
			if p.Resumption.Changed {
				if !f.quiet {
					a.say(plainText, "the manifests of bottle %s have changed since it was kept", slug)
					a.printPreflight(p, a.stderr)
				}
				if !f.headless && !f.yes {
					if err := a.confirm(ctx, "go on with it?"); err != nil {
						return err
					}
				}
			}
			if !f.quiet && !p.Resumption.Live {
				a.say(plainText, "bottle %s begins with its files: %s", slug, safetext.String(p.Resumption.Why, 300))
				for _, n := range p.Notes {
					a.say(plainText, "note: %s", safetext.String(n, 300))
				}
			}
			err := a.pullFor(ctx, c, p)
			arm()
			return err
		}
		return c.Resume(ctx, o)
	})
	n.end()
	return a.started(&startFlags{json: f.json, quiet: f.quiet, orchestrated: f.orchestrated}, s, err, interrupted && f.headless)
}

func (a *app) importBottle(ctx context.Context, c *carboy.Client, from, digest string) (string, error) {
	r, err := os.Open(from)
	if err != nil {
		return "", err
	}
	defer r.Close()
	slug, err := c.ImportBottle(ctx, r, digest)
	if err == nil {
		a.say(plainText, "bottle %s is here", slug)
	}
	return slug, err
}

// bottles returns the named bottles, and prints an error for each that cannot be read.
func (a *app) bottles(ctx context.Context, c *carboy.Client) ([]carboy.NamedBottle, error) {
	list, corrupt, err := c.Bottles(ctx)
	for _, e := range corrupt {
		a.say(plainText, "%s", errorLine(e))
	}
	return list, err
}

// printBottles prints a table of bottles.
func (a *app) printBottles(list []carboy.NamedBottle) error {
	if len(list) == 0 {
		return nil
	}
	rows := make([][]string, len(list))
	for i, b := range list {
		state := string(b.State)
		if b.State == carboy.BottleFrozen && !b.Live {
			state += " (files)"
		}
		since := b.Created
		if b.Since != nil {
			since = *b.Since
		}
		at := "-"
		if b.Mode != store.None {
			at = safetext.String(a.tilde(string(b.Workspace.Path)), 80)
		}
		rows[i] = []string{b.Slug, state, safetext.String(b.Agent, 40), since.Local().Format(time.DateTime), at}
	}
	return printTable(a.stdout, columns(a.stdout), !a.utf8(), []string{"BOTTLE", "STATE", "AGENT", "SINCE", "WORKSPACE"}, rows, 4, func(row, col int) tone {
		if row == 0 || col > 0 || !a.color(a.stdout) {
			return plainText
		}
		return toneOf(list[row-1].Color)
	})
}
