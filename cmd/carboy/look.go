package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/visible"
)

const receiptLong = `Show what happened in a run, as seen from outside the bottle: how it ended, what
it changed, every name it asked for and every connection it tried, allowed or
refused and by which rule, which programs ran, which files they read and wrote,
which rights they asked for, which limits it met, and what is not known.

With --json the whole document; its schema is docs/schemas/receipt.v1.json. With
--html a page for a browser, in one file that loads nothing: the processes over
time, everything else in tables, to read, filter, print and sign.`

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

// colorsOf are the colours of bottles, by name, for who can see them.
func (a *app) colorsOf(ctx context.Context, c *carboy.Client) map[string]tone {
	out := map[string]tone{}
	if !a.color(a.stdout) {
		return out
	}
	l, _, _ := c.Bottles(ctx) // without, the list is as good
	for _, b := range l {
		out[b.Slug] = toneOf(b.Color)
	}
	return out
}

// printList prints runs; colors are those of bottles.
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
			rows[i] = slices.Insert(rows[i], 1, orDash(visible.String(m.Name, 60)))
		}
	}
	return printTable(a.stdout, columns(a.stdout), !a.utf8(), head, rows, split, func(row, col int) tone {
		if row == 0 || col != 1 || head[1] != "BOTTLE" {
			return plainText
		}
		return colors[l.Runs[row-1].Name]
	})
}

// printTable prints visible cells in columns. Where those do not fit into the
// width, the cells from split on have a line of their own; where that does not
// fit either, each cell has. No width (0) is no bound: what is piped into awk has
// its columns. paint is the colour of a cell where there are columns; row 0 is head.
func printTable(w io.Writer, width int, ascii bool, head []string, rows [][]string, split int, paint func(row, col int) tone) error {
	const gap = 2
	all := append([][]string{head}, rows...)
	widths := make([]int, len(head))
	for i := range head {
		for _, row := range all {
			if ascii {
				row[i] = visible.ASCII(row[i])
			}
			widths[i] = max(widths[i], visible.Width(row[i]))
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
			line += paint(n, i).paint(cell) + strings.Repeat(" ", widths[i]-visible.Width(cell)+gap)
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
			for i, line := range visible.Wrap(strings.Join(row[split:], "  "), width-2*gap) {
				fmt.Fprintln(out, strings.Repeat(" ", gap*min(i+1, 2))+line)
			}
		}
	default:
		stack(out, max(width, 20), head, rows)
	}
	return out.Flush()
}

// stack prints each row as a block with a line for each cell.
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
			for j, line := range visible.Wrap(cell, width-2*at) {
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
	return visible.String(string(m.Workspace.Path), 60)
}

func commandOf(m store.Meta) string {
	words := make([]string, 0, len(m.Command))
	for _, w := range m.Command {
		words = append(words, string(w))
	}
	return visible.String(strings.Join(words, " "), 60)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

const logsLong = `Print what a run wrote to its standard output and error, as far as it was kept.
Control characters are shown, not obeyed; --raw prints the bytes as they were,
and then your terminal does what the bottle says.`

// logNames are the logs that a run may have: a terminal mixes the others, and
// commands of carboy exec have their own.
var logNames = []string{"stdout", "stderr", "terminal", "exec-stdout", "exec-stderr", "exec-terminal"}

func (a *app) logsCmd() *cobra.Command {
	var raw bool
	only := append(append([]string{}, logNames...), "git")
	which := choice{name: "LOG", of: only}
	cmd := &cobra.Command{
		Use: "logs [RUN]", Short: "print what a run wrote", Long: logsLong, GroupID: "look",
		Example: "  carboy logs\n  carboy logs --only stderr 01k9x3m7\n  carboy logs --only git reviewer",
		Args:    atMostRun, ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				m, err := find(ctx, c, arg(args))
				if err != nil {
					return err
				}
				names := logNames
				if which.value != "" {
					names = []string{which.value}
				}
				return a.printLogs(c, m, names, raw)
			})
		},
	}
	cmd.Flags().Var(&which, "only", "only this one: stdout, stderr or terminal, or the same of carboy exec: exec-stdout and so on; or git, what went through the git gate")
	cmd.Flags().BoolVar(&raw, "raw", false, "print the bytes as they were")
	cmd.RegisterFlagCompletionFunc("only", cobra.FixedCompletions(only, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) printLogs(c *carboy.Client, m store.Meta, names []string, raw bool) error {
	found := false
	for _, name := range names {
		f, err := c.Log(m.ID, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("logs of run %s: %w", m.ID, err)
		}
		found = true
		err = a.copyOut(f, raw)
		f.Close()
		if err != nil {
			return fmt.Errorf("logs of run %s: %w", m.ID, err)
		}
	}
	if !found {
		a.say(plainText, "run %s has no logs", m.ID)
	}
	return nil
}

func (a *app) copyOut(r io.Reader, raw bool) error {
	if raw {
		_, err := io.Copy(a.stdout, r)
		return err
	}
	v := visible.NewWriter(a.shown(), visible.Options{})
	if _, err := io.Copy(v, r); err != nil {
		return err
	}
	return v.Close()
}

// completeRuns offers the newest runs to the shell. It says nothing when it
// cannot.
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
