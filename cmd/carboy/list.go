//go:build linux

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

func (a *app) listCmd() *cobra.Command {
	var asJSON, here, bottles bool
	limit := whole{top: 1 << 30, eg: "20"}
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "list bottles that have a name, and runs, newest first", GroupID: "look", Args: noArgs,
		Example: "  carboy list\n  carboy list --here\n  carboy list --json | jq -r '.[].id'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				if bottles {
					named, err := a.bottles(ctx, c)
					if err != nil {
						return err
					}
					if asJSON {
						return a.printJSON(named)
					}
					if len(named) == 0 {
						a.say(plainText, "no bottle is on record; carboy start makes one")
					}
					return a.printBottles(named)
				}
				q := store.Query{Limit: int(limit.n)}
				if here {
					wd, err := os.Getwd()
					if err != nil {
						return fmt.Errorf("find the current directory: %w", err)
					}
					ws, err := store.ResolveWorkspace(wd)
					if err != nil {
						return err
					}
					q.Workspace = &ws
				}
				l, err := c.List(ctx, q)
				if err != nil {
					return err
				}
				if here || asJSON {
					return a.printList(l, a.colorsOf(ctx, c), asJSON)
				}
				named, err := a.bottles(ctx, c)
				if err != nil {
					return err
				}
				if err := a.printBottles(named); err != nil || len(l.Runs) == 0 && len(named) > 0 {
					return err
				}
				if len(named) > 0 {
					fmt.Fprintln(a.stdout)
				}
				return a.printList(l, a.colorsOf(ctx, c), false)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print an array of id, kind, state, name, workspace, started, exit")
	cmd.Flags().BoolVar(&bottles, "bottles", false, "only bottles that have a name: running, frozen, kept")
	cmd.Flags().BoolVar(&here, "here", false, "only runs of this directory")
	cmd.Flags().Var(&limit, "limit", "at most so many")
	return cmd
}

// colorsOf returns the colours of bottles by name. It is empty if stdout shows no colour.
func (a *app) colorsOf(ctx context.Context, c *carboy.Client) map[string]tone {
	out := map[string]tone{}
	if !a.color(a.stdout) {
		return out
	}
	l, _, _ := c.Bottles(ctx) // the list is good without colours
	for _, b := range l {
		out[b.Slug] = toneOf(b.Color)
	}
	return out
}

// printList prints runs. colors maps names of bottles to their colours.
func (a *app) printList(l store.Listing, colors map[string]tone, asJSON bool) error {
	for _, e := range l.Corrupt {
		a.say(plainText, "%s", errorLine(e))
	}
	if asJSON {
		out := make([]store.Summary, len(l.Runs))
		for i, m := range l.Runs {
			out[i] = m.Summary()
		}
		return a.printJSON(out)
	}
	if len(l.Runs) == 0 {
		a.say(plainText, "no runs yet; begin with carboy run -- COMMAND")
		return nil
	}
	head := []string{"RUN", "STARTED", "STATE", "EXIT", "CHANGES", "WORKSPACE", "COMMAND"}
	rows := make([][]string, len(l.Runs))
	for i, m := range l.Runs {
		rows[i] = []string{string(m.ID), started(m), string(m.State), exitOf(m), orDash(string(m.Changes)), workspaceOf(m), commandOf(m)}
	}
	split := 4
	if slices.ContainsFunc(l.Runs, func(m store.Meta) bool { return m.Name != "" }) {
		split++
		head = slices.Insert(head, 1, "BOTTLE")
		for i, m := range l.Runs {
			rows[i] = slices.Insert(rows[i], 1, orDash(safetext.String(m.Name, 60)))
		}
	}
	return printTable(a.stdout, columns(a.stdout), !a.utf8(), head, rows, split, func(row, col int) tone {
		if row == 0 || col != 1 || head[1] != "BOTTLE" {
			return plainText
		}
		return colors[l.Runs[row-1].Name]
	})
}

// printTable prints a table. The cells must be safe to print. If the columns do not fit
// into the width, the cells from split on get a line of their own. If that does not fit
// either, each cell does. A width of 0 is no bound, so that awk sees columns. paint
// returns the colour of a cell in a column; row 0 is head.
func printTable(w io.Writer, width int, ascii bool, head []string, rows [][]string, split int, paint func(row, col int) tone) error {
	const gap = 2
	all := append([][]string{head}, rows...)
	widths := make([]int, len(head))
	for i := range head {
		for _, row := range all {
			if ascii {
				row[i] = safetext.ASCII(row[i])
			}
			widths[i] = max(widths[i], safetext.Width(row[i]))
		}
	}
	room := func(widths []int) int {
		n := -gap
		for _, w := range widths {
			n += w + gap
		}
		return n
	}
	columns := func(n int, row []string, widths []int) string {
		line := ""
		for i, cell := range row {
			line += paint(n, i).paint(cell) + strings.Repeat(" ", widths[i]-safetext.Width(cell)+gap)
		}
		return strings.TrimRight(line, " ")
	}
	out := bufio.NewWriter(w)
	switch {
	case width == 0 || room(widths) <= width:
		for n, row := range all {
			fmt.Fprintln(out, columns(n, row, widths))
		}
	case room(widths[:split]) <= width:
		for n, row := range all {
			fmt.Fprintln(out, columns(n, row[:split], widths))
			for i, line := range safetext.Wrap(strings.Join(row[split:], "  "), width-2*gap) {
				fmt.Fprintln(out, strings.Repeat(" ", gap*min(i+1, 2))+line)
			}
		}
	default:
		stack(out, max(width, 20), head, rows)
	}
	return out.Flush()
}

// stack prints each row as a block of lines, one for each cell.
func stack(out io.Writer, width int, head []string, rows [][]string) {
	for n, row := range rows {
		if n > 0 {
			fmt.Fprintln(out)
		}
		for i, cell := range row {
			at := 0
			if i > 0 {
				at = 2
				cell = strings.ToLower(head[i]) + " " + cell
			}
			for j, line := range safetext.Wrap(cell, width-2*at) {
				if j == 1 {
					at *= 2
				}
				fmt.Fprintln(out, strings.Repeat(" ", at)+line)
			}
		}
	}
}

func started(m store.Meta) string {
	t := m.Created
	if m.Started != nil {
		t = *m.Started
	}
	return t.UTC().Format(time.DateTime)
}

func exitOf(m store.Meta) string {
	if m.Exit == nil {
		return "-"
	}
	return fmt.Sprint(*m.Exit)
}

func workspaceOf(m store.Meta) string {
	if m.Mode == store.None {
		return "-"
	}
	return safetext.String(string(m.Workspace.Path), 60)
}

// commandOf returns a run's command on one line: what is between its words becomes a space.
func commandOf(m store.Meta) string {
	words := make([]string, 0, len(m.Command))
	for _, w := range m.Command {
		words = append(words, string(w))
	}
	return safetext.String(strings.Join(strings.Fields(strings.Join(words, " ")), " "), 60)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// completeRuns returns the newest runs for completion in the shell, or nothing on an error.
func (a *app) completeRuns(cmd *cobra.Command, args []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	const offered = 50
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	c, err := carboy.Open(ctx, carboy.Options{Env: a.env})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	var out []cobra.Completion
	bottles, _, _ := c.Bottles(ctx)
	for _, b := range bottles {
		if strings.HasPrefix(b.Slug, prefix) {
			out = append(out, cobra.CompletionWithDesc(b.Slug, "the newest run of this bottle"))
		}
	}
	l, err := c.List(ctx, store.Query{Limit: offered})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for _, m := range l.Runs {
		if strings.HasPrefix(string(m.ID), strings.ToLower(prefix)) {
			out = append(out, cobra.CompletionWithDesc(string(m.ID), started(m)+" "+commandOf(m)))
		}
	}
	directive := cobra.ShellCompDirectiveKeepOrder
	if !slices.Contains([]string{"diff", "land"}, cmd.Name()) {
		directive |= cobra.ShellCompDirectiveNoFileComp
	}
	return out, directive
}
