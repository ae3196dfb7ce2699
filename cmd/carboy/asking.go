//go:build linux

package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/supervise"
)

// askFlags holds the flags of commands that need a person's approval.
type askFlags struct {
	wait   time.Duration
	policy string
	yes    bool
}

func (f *askFlags) add(cmd *cobra.Command, yes bool) {
	fl := cmd.Flags()
	fl.DurationVar(&f.wait, "wait", 0, "wait for somebody at carboy supervise, at most this `TIME` (default 5m)")
	fl.StringVar(&f.policy, "policy", "", "let rules in `FILE` answer where they may")
	if yes {
		fl.BoolVarP(&f.yes, "yes", "y", false, "approve it without a question")
	}
	cmd.MarkFlagFilename("policy", "yaml", "yml")
}

// asking returns how to ask people: on this terminal if there is one and nobody else must
// answer, else at the queue.
func (a *app) asking(f *askFlags) (carboy.AskOptions, error) {
	if f.wait < 0 || f.wait > supervise.MaxTimeout {
		return carboy.AskOptions{}, usagef("for example --wait 1h", "--wait %s: not between 0 and %s", f.wait, supervise.MaxTimeout)
	}
	o := carboy.AskOptions{Timeout: f.wait, Policy: f.policy, Waiting: func(e carboy.ProposalEntry) {
		if !f.yes {
			a.say(boldText, "waiting for a person: carboy supervise show %s", e.Proposal.ID.Short())
		}
	}}
	switch {
	case f.yes:
		o.Here = func(context.Context, carboy.ProposalEntry) (bool, string, error) { return true, "", nil }
	case f.wait == 0 && isTerminal(a.stdin) && isTerminal(a.stderr):
		o.Here = func(ctx context.Context, e carboy.ProposalEntry) (bool, string, error) {
			err := a.confirmProposal(ctx, e, nil)
			if ctx.Err() != nil {
				return false, "", ctx.Err()
			}
			return err == nil, "", nil
		}
	}
	return o, nil
}

// acceptFlags holds the flags of commands that change a baseline.
type acceptFlags struct {
	askFlags
	as, key  string
	unsigned bool
}

func (f *acceptFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.as, "as", "", "your `NAME` in the operator's allowed_signers")
	fl.StringVar(&f.key, "key", "", "the `FILE` of your SSH key; a public one if an agent holds the private one")
	fl.BoolVar(&f.unsigned, "unsigned", false, "do not sign: the person who commits it decides")
	f.askFlags.add(cmd, true)
}

func (a *app) accepting(f *acceptFlags) (carboy.AcceptOptions, error) {
	o, err := a.asking(&f.askFlags)
	return carboy.AcceptOptions{Options: o, As: f.as, Key: f.key, Unsigned: f.unsigned}, err
}

const signLong = `
You are asked, here or at carboy supervise, and sign with your SSH key. The signature
of the file is beside it, in .carboy/gate-baseline.json.sig. If your allowed_signers
names somebody for carboy-gate@carboy.dev, only a baseline that they signed counts.
ssh-keygen checks it too:

  ssh-keygen -Y verify -f ~/.config/carboy/allowed_signers -I NAME \
    -n carboy-gate@carboy.dev -s .carboy/gate-baseline.json.sig <.carboy/gate-baseline.json`

// wroteBaseline says which baseline was written and what to do next.
func (a *app) wroteBaseline(file string, err error) error {
	switch {
	case errors.Is(err, carboy.ErrBaseline):
		return &advisedError{err, "carboy gate baseline diff shows what a verdict's phases did beside it"}
	case err != nil:
		return gateAdvice(err)
	}
	a.say(greenText, "wrote %s", filepath.Clean(file))
	a.say(plainText, "next: git add .carboy && git commit; it counts once it is in the base")
	return nil
}

const baselineAcceptLong = `Add what the phases of a verdict did to the present baseline: HEAD's, or what you
accepted since. With --lost-tests, accept that tests are gone which the verdict
reports as lost, because the change renames or removes them on purpose. With
--changed-tests, accept that tests ask for something else, as the change edits them,
or have fewer assertions; another edit is asked about again. --test names some of them.
` + signLong

func (a *app) baselineAcceptCmd() *cobra.Command {
	f := &acceptFlags{}
	lost, changed, tests := false, false, []string{}
	cmd := &cobra.Command{
		Use: "accept [VERDICT]", Short: "accept what a verdict's phases did, or the loss or change of tests", Long: baselineAcceptLong,
		Example: "  carboy gate baseline accept --as me@example.org --key ~/.ssh/id_ed25519\n  carboy gate baseline accept --lost-tests --test pkg.TestOld --unsigned\n  carboy gate baseline accept --unsigned --wait 1h     # somebody at carboy supervise decides",
		Args:    oneArg("verdict"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := a.accepting(f)
			if err != nil {
				return err
			}
			switch o.Changed = changed; {
			case len(tests) > 0 && !lost && !changed:
				return usagef("carboy gate baseline accept --lost-tests --test ID", "accept: --test needs --lost-tests or --changed-tests")
			case lost && changed:
				return usagef("accept one after the other", "accept: --lost-tests and --changed-tests cannot be combined")
			}
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				if lost || changed {
					return a.wroteBaseline(c.AcceptLostTests(ctx, ".", onlyArg(args), tests, o))
				}
				return a.wroteBaseline(c.AcceptBaseline(ctx, ".", onlyArg(args), o))
			})
		},
	}
	cmd.Flags().BoolVar(&lost, "lost-tests", false, "accept that the tests are gone which the verdict reports as lost")
	cmd.Flags().BoolVar(&changed, "changed-tests", false, "accept the tests about which the verdict asks, as the change edits them")
	cmd.Flags().StringArrayVar(&tests, "test", nil, "only this test, by its `ID`; repeatable")
	f.add(cmd)
	return cmd
}

func (a *app) baselineSignCmd() *cobra.Command {
	f := &acceptFlags{}
	cmd := &cobra.Command{
		Use: "sign", Short: "sign the work tree's baseline", Args: noArgs,
		Long:    "Show the new entries of the work tree's baseline, and sign it: for example the first\none, which carboy gate init wrote.\n" + signLong,
		Example: "  carboy gate baseline sign --as me@example.org --key ~/.ssh/id_ed25519",
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := a.accepting(f)
			if err != nil {
				return err
			}
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				return a.wroteBaseline(c.SignBaseline(ctx, ".", o))
			})
		},
	}
	f.add(cmd)
	return cmd
}

func (a *app) baselineRecordCmd() *cobra.Command {
	f := &acceptFlags{}
	quiet := false
	cmd := &cobra.Command{
		Use: "record", Short: "run the gate on HEAD and add what its phases did to the baseline",
		Long:    "Run the catalog of HEAD on HEAD, which you approved, and add what its phases did to\nthe baseline.\n" + signLong,
		Example: "  carboy gate baseline record --unsigned && git diff .carboy", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := a.accepting(f)
			if err != nil {
				return err
			}
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				j, err := c.Gate(ctx, carboy.GateOptions{Base: "HEAD", Change: "HEAD", Again: true, OnEvent: a.gateEvents(quiet)})
				if err != nil {
					return gateAdvice(err)
				}
				return a.wroteBaseline(c.AcceptBaseline(ctx, ".", j.ID, o))
			})
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "say nothing while it runs")
	f.add(cmd)
	return cmd
}

const overrideLong = `Let a person set a verdict aside. Its findings stay. The verdict, its attestation and
the audit log record who did it, when and why.

It is a proposal like any other: you are asked here. Without a terminal, or with --wait,
it waits for carboy supervise. The approval holds for this verdict alone.`

func (a *app) gateOverrideCmd() *cobra.Command {
	f := &askFlags{}
	reason := ""
	cmd := &cobra.Command{
		Use: "override --reason TEXT VERDICT", Short: "let a change go on against its verdict", Long: overrideLong,
		Example: "  carboy gate override --reason 'the lost test moved to the integration suite' 01m8\n  carboy gate override --reason 'a false alarm: the token is a fixture' --wait 1h 01m8",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return usagef("carboy gate list shows the verdicts", "override: name one verdict")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := a.asking(f)
			if err != nil {
				return err
			}
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				v, err := c.OverrideVerdict(ctx, args[0], reason, o)
				if err != nil {
					return gateAdvice(err)
				}
				a.say(plainText, "verdict %s is overridden by %s, and that is on record", v.ID, safetext.String(v.Override.By, 300))
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why the change may go on, in a `SENTENCE`")
	f.add(cmd, true)
	return cmd
}
