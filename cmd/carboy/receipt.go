//go:build linux

package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/receipt"
)

const receiptLong = `Show what happened in a run, as seen from outside the bottle: how it ended, what it
changed, which names it looked up, which connections it tried, which rule allowed or
refused them, which programs ran, which files they read and wrote, which rights they
requested, which limits they met, and what is not known.

--json prints the whole document; its schema is docs/schemas/receipt.v1.json. --html
prints a page for a browser, in one file that loads nothing: the processes over time,
and everything else in tables that can be filtered.`

func (a *app) receiptCmd() *cobra.Command {
	var asJSON, asHTML, all bool
	cmd := &cobra.Command{
		Use: "receipt [RUN]", Short: "show what happened in a run", Long: receiptLong, GroupID: "main",
		Example: "  carboy receipt\n  carboy receipt --html >receipt.html\n  carboy receipt 01k9x3m7 --json | jq .network.names",
		Args:    atMostRun, ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case asJSON && asHTML:
				return usagef("leave out one of them", "receipt: --json and --html cannot be combined")
			case asHTML && isTerminal(a.stdout):
				return usagef("carboy receipt --html >receipt.html", "receipt: --html is for a browser, not for a terminal")
			}
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				m, err := find(ctx, c, arg(args))
				if err != nil {
					return err
				}
				r, err := c.Receipt(ctx, m.ID)
				if err != nil {
					return err
				}
				if asHTML {
					return receipt.HTML(a.stdout, r)
				}
				if !asJSON {
					return receipt.Text(a.stdout, r, a.style(all))
				}
				b, err := r.Encode()
				if err != nil {
					return err
				}
				_, err = a.stdout.Write(b)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the receipt as JSON")
	cmd.Flags().BoolVar(&asHTML, "html", false, "print the receipt as a page for a browser")
	cmd.Flags().BoolVar(&all, "all", false, "list everything, not only the first of each kind")
	return cmd
}
