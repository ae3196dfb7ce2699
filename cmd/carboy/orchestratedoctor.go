//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/orchestrate/checks"
	"github.com/carboy/carboy/internal/safetext"
)

const orchestrateDoctorLong = `Check orchestrate.yaml, and ask the forge: whether each token may do what it is for and
nothing else, whether the robot is no administrator, whether the branch is protected so
that people alone merge what the gate has passed, and whether agents' bottles declare
the repositories. Then it checks, as carboy doctor does, whether bottles work here.

It changes nothing. The exit code is 1 if something fails. What a forge does not tell
is unsure, and no failure.`

func (a *app) orchestrateDoctorCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "doctor", Short: "check the configuration, the tokens and the forge", Long: orchestrateDoctorLong, Args: noArgs,
		Example: "  carboy orchestrate doctor\n  carboy orchestrate doctor --json | jq '.findings[] | select(.result != \"ok\")'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			conf, err := a.orchestrateConfig()
			if err != nil {
				return err
			}
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				r := checks.Run(ctx, checks.Options{Config: conf, Agents: a.ownAgents, Repositories: a.declaredRepositories})
				for _, f := range c.Doctor(ctx).Findings {
					result := checks.OK
					if !f.OK {
						result = checks.Fail
					}
					r.Add("machine "+f.Check, result, f.Detail, f.Advice)
				}
				if asJSON {
					if err := a.printJSON(r); err != nil {
						return err
					}
				} else {
					a.printChecks(r)
				}
				if !r.OK {
					return errReported
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the findings as JSON")
	return cmd
}

// ownAgents returns the names of the agents that this user has, not those of a repository.
func (a *app) ownAgents() ([]string, error) {
	set, err := a.manifests("")
	if err != nil {
		return nil, err
	}
	return set.Names("agents"), nil
}

// declaredRepositories returns the addresses of the repositories of an agent's bottle.
func (a *app) declaredRepositories(agent string, bottles []string) ([]string, error) {
	set, err := a.manifests("")
	if err != nil {
		return nil, err
	}
	e, err := set.Resolve(agent, bottles)
	if err != nil {
		return nil, err
	}
	if !e.Supervise.V {
		return nil, fmt.Errorf("%s: supervise is false, and the tools of the forge need it", e.Supervise.From)
	}
	var urls []string
	for _, name := range slices.Sorted(maps.Keys(e.Git.Repos)) {
		urls = append(urls, e.Git.Repos[name].URL.V)
	}
	return urls, nil
}

func (a *app) printChecks(r *checks.Report) {
	w := a.shown()
	for _, f := range r.Findings {
		mark, c := "ok    ", greenText
		switch f.Result {
		case checks.Fail:
			mark, c = "FAIL  ", redText
		case checks.Unsure:
			mark, c = "unsure", boldText
		}
		fmt.Fprintf(w, "  %s  %s: %s\n", a.paint(a.stdout, c, mark), safetext.String(f.Check, 120), f.Detail)
		if f.Advice != "" {
			fmt.Fprintf(w, "          %s\n", f.Advice)
		}
	}
}
