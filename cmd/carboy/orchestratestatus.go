//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy/internal/issues"
	"github.com/carboy/carboy/internal/orchestrate"
	"github.com/carboy/carboy/internal/orchestrate/serve"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

const orchestrateStatusLong = `List the issues that carboy works on: the bottle's state, the turn, what it waits for,
tokens used, and the addresses of issue and pull request. It reads the state of this
machine, whether carboy orchestrate serve runs or not, and asks no forge.

--watch prints the list again whenever it changes, until it is interrupted.`

// statusEvery is the interval at which --watch reads the state.
const statusEvery = time.Second

type statusFlags struct{ json, all, watch bool }

func (a *app) orchestrateStatusCmd() *cobra.Command {
	f := &statusFlags{}
	cmd := &cobra.Command{
		Use: "status", Short: "list issues, their bottles and pull requests", Long: orchestrateStatusLong, Args: noArgs,
		Example: "  carboy orchestrate status\n  carboy orchestrate status --watch\n  carboy orchestrate status --json | jq '.issues[] | select(.failure)'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			return a.orchestrateStatus(ctx, f)
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&f.all, "all", false, "also issues whose bottle is gone")
	fl.BoolVar(&f.watch, "watch", false, "print it again when it changes")
	fl.BoolVar(&f.json, "json", false, "print it as JSON; with --watch, one document on a line")
	return cmd
}

// orchestrateDir returns the directory of the orchestrator's state.
func (a *app) orchestrateDir() (string, error) {
	dir, err := store.StateDir(a.env)
	return serve.StateDir(dir), err
}

func (a *app) orchestrateStatus(ctx context.Context, f *statusFlags) error {
	dir, err := a.orchestrateDir()
	if err != nil {
		return err
	}
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	for before := []byte(nil); ; {
		s, err := orchestrate.Status(ctx, dir)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		var b bytes.Buffer
		if err := a.showStatus(&b, s, f); err != nil {
			return err
		}
		if !bytes.Equal(b.Bytes(), before) {
			if f.watch && !f.json && isTerminal(a.stdout) {
				fmt.Fprint(a.stdout, "\x1b[H\x1b[2J")
			}
			if _, err := a.stdout.Write(b.Bytes()); err != nil {
				return err
			}
			before = b.Bytes()
		}
		if !f.watch {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// showStatus writes a report as the flags say.
func (a *app) showStatus(w io.Writer, s *orchestrate.StatusReport, f *statusFlags) error {
	if !f.all {
		kept := []orchestrate.IssueStatus{}
		for _, i := range s.Issues {
			if i.State != string(issues.Destroyed) {
				kept = append(kept, i)
			}
		}
		s.Issues = kept
	}
	if f.json {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		if !f.watch {
			enc.SetIndent("", "  ")
		} else {
			s.Polled = nil // changes with each look
		}
		return enc.Encode(s)
	}
	if len(s.Issues) == 0 {
		fmt.Fprintln(w, "no issues")
	} else if err := a.statusTable(w, s.Issues); err != nil {
		return err
	}
	for repo, x := range s.Errors {
		fmt.Fprintf(w, "\n%s: %s (since %s, %d tries)\n", safetext.String(repo, 100), safetext.String(x.Error, 500), x.Since.Local().Format(time.DateTime), x.Tries)
	}
	return nil
}

func (a *app) statusTable(w io.Writer, list []orchestrate.IssueStatus) error {
	rows := make([][]string, len(list))
	for i, s := range list {
		turn := "-"
		if s.Turn > 0 {
			turn = strconv.Itoa(s.Turn)
		}
		waits := s.Waits
		if s.Failure != nil {
			waits = "failing: " + s.Failure.Error
		}
		rows[i] = []string{safetext.String(s.Issue, 80), safetext.String(first(s.Agent, "-"), 40), s.State, turn, tokensText(s.Tokens), safetext.String(first(waits, "-"), 160), safetext.String(first(s.PullURL, "-"), 160), safetext.String(first(s.URL, "-"), 160)}
	}
	return printTable(w, columns(a.stdout), !a.utf8(), []string{"ISSUE", "AGENT", "STATE", "TURN", "TOKENS", "WAITS FOR", "PULL REQUEST", "URL"}, rows, 5, func(row, col int) tone {
		if row == 0 || col != 2 || !a.color(a.stdout) {
			return plainText
		}
		if list[row-1].Failure != nil {
			return redText
		}
		return map[string]tone{"running": greenText, "destroyed": dimText}[list[row-1].State]
	})
}

// tokensText returns a number of tokens in short.
func tokensText(n int64) string {
	switch {
	case n >= 1_000_000:
		return fmt.Sprintf("%.1fM", float64(n)/1e6)
	case n >= 10_000:
		return fmt.Sprintf("%.0fk", float64(n)/1e3)
	}
	return strconv.FormatInt(n, 10)
}

func (a *app) orchestrateDescribeCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "describe ISSUE", Short: "show an issue with its turns and steps",
		Long: `Show all that carboy knows of an issue: what it waits for, its pull request, and each
turn with what it was for, its outcome, its verdict and its runs. Then the steps of the
workflow. Texts of people and agents are escaped, so that they can't control the
terminal.`,
		Example: "  carboy orchestrate describe acme/web#7\n  carboy orchestrate describe acme/web#7 --json",
		Args:    oneIssue("describe"), ValidArgsFunction: a.completeIssues,
		RunE: func(cmd *cobra.Command, args []string) error {
			k, err := a.issueKey("describe", args[0])
			if err != nil {
				return err
			}
			dir, err := a.orchestrateDir()
			if err != nil {
				return err
			}
			d, err := orchestrate.Describe(cmd.Context(), dir, k)
			if err != nil {
				return &advisedError{err, "carboy orchestrate status --all lists the issues"}
			}
			if asJSON {
				return a.printJSON(d)
			}
			showIssue(a.shown(), d)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print it as JSON")
	return cmd
}

func oneIssue(verb string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usagef("carboy orchestrate "+verb+" owner/repo#7; carboy orchestrate status lists them", "orchestrate %s: wanted one issue, got %d", verb, len(args))
		}
		return nil
	}
}

// issueKey reads the name of an issue.
func (a *app) issueKey(verb, s string) (issues.Key, error) {
	k, err := orchestrate.ParseKey(s)
	if err != nil {
		return k, usagef("carboy orchestrate "+verb+" owner/repo#7", "orchestrate %s: %w", verb, err)
	}
	return k, nil
}

func (a *app) completeIssues(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	dir, err := a.orchestrateDir()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	s, err := orchestrate.Status(cmd.Context(), dir)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, i := range s.Issues {
		names = append(names, i.Issue)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// showIssue prints a description.
func showIssue(w io.Writer, d *orchestrate.Description) {
	line := func(what, text string) {
		if text != "" && text != "0" {
			fmt.Fprintf(w, "%-12s %s\n", what, safetext.String(text, 1000))
		}
	}
	line("issue", d.Issue+" "+d.Title)
	line("at", d.URL)
	line("state", d.State)
	line("agent", d.Agent)
	line("bottle", d.Slug)
	line("waits for", d.Waits)
	line("branch", d.Branch)
	line("pull", d.PullURL)
	line("verdict", d.Verdict)
	line("provenance", d.Digest)
	line("tokens", strconv.FormatInt(d.Tokens, 10))
	if d.LastCheckin != nil {
		line("last sign", d.LastCheckin.Local().Format(time.DateTime))
	}
	if d.Watchdog {
		line("watchdog", "the agent was silent for too long")
	}
	if d.Strangers > 0 {
		line("strangers", fmt.Sprintf("%d comments of people who may not prompt", d.Strangers))
	}
	for _, s := range d.Warnings {
		line("warning", s)
	}
	if f := d.Failure; f != nil {
		line("failing", fmt.Sprintf("%s (since %s, %d tries)", f.Error, f.Since.Local().Format(time.DateTime), f.Tries))
	}
	for _, t := range d.Turns {
		showTurn(w, t)
	}
	if d.Workflow != "" {
		fmt.Fprintf(w, "\nworkflow: %s, begun %s %s\n", d.Workflow, number(d.Attempts, "time", "times"), safetext.String(d.Stuck, 300))
	}
	for _, s := range d.Steps {
		took := "goes on"
		if s.Ended != nil {
			took = s.Ended.Sub(s.Began).Round(time.Millisecond).String()
		}
		fmt.Fprintf(w, "  %s  %-30s %s\n", s.Began.Local().Format(time.DateTime), safetext.String(s.Name, 80), took)
	}
}

func showTurn(w io.Writer, t orchestrate.TurnStatus) {
	fmt.Fprintf(w, "\nturn %d, for %s\n", t.Number, safetext.String(strings.Join(t.Prompts, ", "), 500))
	ended := "goes on"
	if t.Ended != nil {
		ended = t.Ended.Local().Format(time.DateTime)
	}
	fmt.Fprintf(w, "  %-10s %s to %s\n", "time", t.Began.Local().Format(time.DateTime), ended)
	for _, x := range [][2]string{{"outcome", t.Outcome}, {"why", t.Why}, {"said", t.Summary}, {"commit", t.Commit}, {"verdict", t.Verdict}, {"work", t.Work}, {"runs", strings.Join(t.Runs, " ")}} {
		if x[1] != "" {
			fmt.Fprintf(w, "  %-10s %s\n", x[0], safetext.String(x[1], 1000))
		}
	}
	fmt.Fprintf(w, "  %-10s %d\n", "tokens", t.Tokens)
	if t.Operations > 0 {
		fmt.Fprintf(w, "  %-10s %d, %d refused\n", "operations", t.Operations, t.Refused)
	}
	if t.Watchdog {
		fmt.Fprintf(w, "  %-10s the agent was silent for too long\n", "watchdog")
	}
}
