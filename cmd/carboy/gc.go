//go:build linux

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

const gcLong = `Remove the records of old runs: changes, logs, receipts. Without other rules, these are
runs that ended more than 30 days ago. Running ones stay, and so do those with changes
that were not landed; --unlanded gives such changes up.`

const gcExample = `  carboy gc --dry-run
  carboy gc --keep 20 --yes
  carboy gc --older-than 7d --unlanded --yes`

type gcFlags struct {
	keep      whole
	olderThan age
	maxBytes  size

	all, unlanded, dry, yes, json bool
}

const defaultAge = 30 * 24 * time.Hour

func (a *app) gcCmd() *cobra.Command {
	f := &gcFlags{keep: whole{top: 1 << 30, eg: "20"}}
	cmd := &cobra.Command{
		Use: "gc", Short: "remove old runs", Long: gcLong, Example: gcExample, GroupID: "keep", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error { return a.gc(ctx, c, f) })
		},
	}
	cmd.Flags().Var(&f.keep, "keep", "keep the `N` newest")
	cmd.Flags().Var(&f.olderThan, "older-than", "remove runs that ended longer ago, such as 30d or 12h")
	cmd.Flags().Var(&f.maxBytes, "max-size", "remove the oldest until the rest takes no more, such as 10GiB")
	cmd.Flags().BoolVar(&f.all, "all", false, "remove all runs that have ended")
	cmd.Flags().BoolVar(&f.unlanded, "unlanded", false, "also those with changes that were not landed: the changes are lost")
	cmd.Flags().BoolVar(&f.dry, "dry-run", false, "only say what would be removed")
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "don't ask")
	cmd.Flags().BoolVar(&f.json, "json", false, "print what was removed as JSON")
	return cmd
}

func (f *gcFlags) policy() store.Policy {
	p := store.Policy{Keep: int(f.keep.n), OlderThan: time.Duration(f.olderThan), MaxBytes: int64(f.maxBytes), All: f.all, Unlanded: f.unlanded}
	if p.Keep == 0 && p.OlderThan == 0 && p.MaxBytes == 0 && !p.All {
		p.OlderThan = defaultAge
	}
	return p
}

type gcJSON struct {
	Schema  string     `json:"schema"`
	DryRun  bool       `json:"dry_run"`
	Planned []store.ID `json:"planned"`
	Removed []store.ID `json:"removed"`
	Freed   int64      `json:"freed_bytes"`
	Total   int64      `json:"total_bytes"`
}

func (a *app) gc(ctx context.Context, c *carboy.Client, f *gcFlags) error {
	plan, err := c.PlanGC(ctx, f.policy())
	if err != nil {
		return err
	}
	out := gcJSON{Schema: "carboy.dev/gc/v1", DryRun: f.dry, Planned: []store.ID{}, Removed: []store.ID{}, Freed: plan.Freed, Total: plan.Total}
	for _, x := range plan.Remove {
		out.Planned = append(out.Planned, x.Meta.ID)
	}
	a.printPlan(plan)
	if len(plan.Remove) > 0 && !f.dry {
		if !f.yes {
			if err := a.confirm(ctx, fmt.Sprintf("remove %s?", number(len(plan.Remove), "run", "runs"))); err != nil {
				return err
			}
		}
		removed, err := c.GC(ctx, plan)
		if err != nil {
			return err
		}
		out.Removed = append(out.Removed, removed...)
		a.say(greenText, "removed %s", number(len(removed), "run", "runs"))
	}
	if !f.dry {
		// The audit log keeps the answers.
		if n, err := c.PruneProposals(ctx, defaultAge); err != nil {
			a.say(plainText, "proposals stay: %s", errorLine(err))
		} else if n > 0 {
			a.say(greenText, "removed %s of more than 30 days ago", number(n, "answered proposal", "answered proposals"))
		}
	}
	if f.json {
		return a.printJSON(out)
	}
	return nil
}

// printPlan prints on stderr what a plan removes, and what stays in spite of a rule.
func (a *app) printPlan(p store.Plan) {
	const shown = 20
	for _, e := range p.Corrupt {
		a.say(plainText, "stays: %s", errorLine(e))
	}
	if len(p.Remove) == 0 {
		a.say(plainText, "nothing to remove; runs take %s", receipt.Bytes(p.Total))
	}
	list := func(what string, runs []store.Candidate) {
		for i, x := range runs {
			if i == shown {
				a.say(plainText, "%s: %d more", what, len(runs)-shown)
				return
			}
			a.say(plainText, "%s: %s (%s, %s): %s", what, x.Meta.ID, receipt.Bytes(x.Bytes), commandOf(x.Meta), safetext.String(x.Why, 200))
		}
	}
	list("stays", p.Stay)
	list("goes", p.Remove)
	if len(p.Remove) > 0 {
		a.say(plainText, "that frees %s of %s", receipt.Bytes(p.Freed), receipt.Bytes(p.Total))
	}
}

// age is a flag that holds a time, which may be in days.
type age time.Duration

func (v *age) Set(s string) error {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n := whole{top: 36500}
		if err := n.Set(days); err != nil {
			return err
		}
		*v = age(n.n * int64(24*time.Hour))
		return nil
	}
	var d span
	err := d.Set(s)
	*v = age(d)
	return err
}

func (v *age) String() string  { return (*span)(v).String() }
func (v *age) Type() string    { return "TIME" }
func (v *age) example() string { return "30d" }
