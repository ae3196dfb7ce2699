//go:build linux

package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy/internal/orchestrate/config"
	"github.com/carboy/carboy/internal/orchestrate/serve"
	"github.com/carboy/carboy/internal/store"
)

const orchestrateLong = `Lead issues on a forge to pull requests. Somebody of your organisation is assigned to an
issue, and a label names an agent. The agent works on it in a bottle until the gate
passes, carboy pushes the change and opens the pull request, and people review and
merge it. carboy itself merges and approves nothing.

Begin with init, then doctor, then serve. start and resume carry out one prompt in a
bottle that stays, without a forge.`

func (a *app) orchestrateCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "orchestrate", Short: "lead issues on a forge to pull requests", Long: orchestrateLong, GroupID: "ship", Args: a.unknownCommand,
		Example: "  carboy orchestrate init --provider gitea --api https://git.example.org/api/v1 --repository acme/web\n  carboy orchestrate doctor\n  carboy orchestrate serve\n  carboy orchestrate status",
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(a.orchestrateInitCmd(), a.orchestrateDoctorCmd(), a.orchestrateServeCmd(), a.orchestrateStatusCmd(), a.orchestrateDescribeCmd(),
		a.orchestrateOrderCmd(serve.Cancel, "stop the turn of an issue", cancelLong), a.orchestrateOrderCmd(serve.Retry, "give an issue's agent another turn", retryLong),
		a.orchestrateStartCmd(), a.orchestrateResumeCmd())
	return cmd
}

// orchestrateConfig reads the operator's configuration.
func (a *app) orchestrateConfig() (*config.Config, error) {
	dir, err := store.ConfigDir(a.config, a.env)
	if err != nil {
		return nil, err
	}
	c, err := config.Load(dir, a.env)
	if errors.Is(err, config.ErrNone) {
		return nil, &advisedError{err, "carboy orchestrate init writes one"}
	}
	return c, err
}

const orchestrateStartLong = `Start an agent in a new bottle, as carboy start --headless does, and keep the bottle
for carboy orchestrate resume. No forge is part of it.

The exit code is the agent's own; 125 if carboy refused or failed.`

func (a *app) orchestrateStartCmd() *cobra.Command {
	f := &startFlags{bottles: list{name: "NAME", eg: "node"}, headless: true, keep: true, orchestrated: true}
	var agent string
	cmd := &cobra.Command{
		Use: "start --agent NAME --prompt TEXT", Short: "carry out a prompt in a new bottle that stays", Long: orchestrateStartLong, Args: noArgs,
		Example: "  carboy orchestrate start --agent coder --prompt 'fix the tests'\n  carboy orchestrate start --agent coder --bottle node --bottle offline --label night --cwd --prompt 'fix the tests'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			const eg = "carboy orchestrate start --agent coder --prompt 'fix the tests'"
			switch {
			case agent == "":
				return usagef(eg, "orchestrate start: which agent? --agent names it")
			case f.prompt == "":
				return usagef(eg, "orchestrate start: no --prompt")
			}
			return a.start(cmd.Context(), f, agent)
		},
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVar(&agent, "agent", "", "which agent, by its `NAME`")
	fl.Var(&f.bottles, "bottle", "take this bottle instead of the agent's own; repeatable, later ones win")
	fl.StringVar(&f.prompt, "prompt", "", "the agent's task, a `TEXT`")
	fl.StringVar(&f.label, "label", "", "call the bottle `NAME` (default: the agent's); if that is taken, NAME-2, NAME-3 and so on")
	fl.BoolVar(&f.cwd, "cwd", false, "give the agent this directory, as the bottle's workspace field says")
	fl.BoolVar(&f.json, "json", false, "print the receipt on stdout; the agent's own output goes to stderr")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "print only errors, and the bottle's name")
	cmd.RegisterFlagCompletionFunc("agent", a.complete("agents"))
	cmd.RegisterFlagCompletionFunc("bottle", a.complete("bottles"))
	return cmd
}

const orchestrateResumeLong = `Give the agent of a bottle its next prompt, as carboy resume --headless does, and keep
the bottle. The backend that kept the bottle holds it again, unless --backend names
another one. No forge is part of it.

The exit code is the agent's own; 125 if carboy refused or failed, as it does without
such a bottle.`

func (a *app) orchestrateResumeCmd() *cobra.Command {
	f := &resumeFlags{headless: true, keep: true, orchestrated: true}
	var slug string
	cmd := &cobra.Command{
		Use: "resume --slug NAME --prompt TEXT", Short: "give a kept bottle its next prompt", Long: orchestrateResumeLong, Args: noArgs,
		Example: "  carboy orchestrate resume --slug coder --prompt 'now the docs'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			const eg = "carboy orchestrate resume --slug coder --prompt 'now the docs'"
			switch {
			case slug == "":
				return usagef(eg+"; carboy list --bottles shows them", "orchestrate resume: which bottle? --slug names it")
			case f.prompt == "":
				return usagef(eg, "orchestrate resume: no --prompt")
			}
			return a.resume(cmd.Context(), f, slug)
		},
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVar(&slug, "slug", "", "the bottle's `NAME`")
	fl.StringVar(&f.prompt, "prompt", "", "the agent's next task, a `TEXT`")
	fl.BoolVar(&f.json, "json", false, "print the receipt on stdout; the agent's own output goes to stderr")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "print only errors, and the bottle's name")
	cmd.RegisterFlagCompletionFunc("slug", func(cmd *cobra.Command, _ []string, to string) ([]string, cobra.ShellCompDirective) {
		return a.completeBottles()(cmd, nil, to)
	})
	return cmd
}
