//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/safetext"
)

func (a *app) workShowCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show ID", Short: "show work, and how to continue it",
		Long: `Show the task; each attempt with its use of resources, its failures and its feedback to
the agent; all findings of the last attempt; where the change and the agent's bottle
are; and the commands that continue the work. Text of programs and agents is escaped,
so that it can't control the terminal.`,
		Example: "  carboy work show 01m8\n  carboy work show 01m8 --json",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return usagef("carboy work list shows what there is", "show: name one work")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				w, err := c.WorkAccount(ctx, args[0])
				if err != nil {
					return workAdvice(err)
				}
				if asJSON {
					return a.printJSON(struct {
						Schema string `json:"schema"`
						*carboy.WorkAccount
						Next []string `json:"next"`
					}{"carboy.dev/work-account/v1", w, nextSteps(w)})
				}
				showWork(a.shown(), w)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print it as JSON")
	return cmd
}

func (a *app) workListCmd() *cobra.Command {
	limit := whole{n: 20, top: 10_000, eg: "20"}
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "list work, newest first", Example: "  carboy work list --limit 5", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				list, broken, err := c.WorkAccounts(ctx, int(limit.n))
				if err != nil {
					return err
				}
				for _, id := range broken {
					a.say(redText, "work %s can't be read: carboy audit verify says what is wrong with it", safetext.String(id, 40))
				}
				if asJSON {
					return a.printJSON(append([]*carboy.WorkAccount{}, list...))
				}
				out := a.shown()
				for _, w := range list {
					fmt.Fprintf(out, "%s  %s  %-9s %d/%d  %s: %s\n", w.ID, w.Began.Format("2006-01-02 15:04"), standing(w), len(w.Attempts), w.Limit, safetext.String(w.Task.Agent, 30), safetext.String(w.Task.Prompt, 60))
				}
				return nil
			})
		},
	}
	cmd.Flags().Var(&limit, "limit", "at most so many")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the work as JSON")
	return cmd
}

// standing returns one word for the state of work.
func standing(w *carboy.WorkAccount) string {
	if w.State == carboy.WorkOver {
		return string(w.Outcome)
	}
	return string(w.State)
}

// maxPromptShown bounds the part of a prompt that is shown, in bytes.
const maxPromptShown = 4 << 10

// showWork prints work for people. Everything except ids may come from an agent.
func showWork(w io.Writer, k *carboy.WorkAccount) {
	fmt.Fprintf(w, "%s  work %s, by %s, since %s\n", strings.ToUpper(standing(k)), k.ID, safetext.String(k.Task.Agent, 60), k.Began.Local().Format("2006-01-02 15:04"))
	if k.Why != "" {
		fmt.Fprintf(w, "why        %s\n", safetext.String(k.Why, 600))
	}
	if k.State != carboy.WorkOver {
		fmt.Fprintf(w, "step       attempt %d of %d: %s\n", k.Number, k.Limit, k.Step)
	}
	fmt.Fprintf(w, "directory  %s\nbase       %.12s\n", safetext.String(k.Task.Dir, 300), k.Task.Base)
	switch p := k.Pushed; {
	case p != nil && p.Verdict == receipt.Pushed:
		fmt.Fprintf(w, "pushed     %.12s as %s to %s (receipt: run %s)\n", p.Commit, safetext.String(p.Branch, 200), safetext.String(string(p.URL), 200), p.Run)
	case p != nil:
		fmt.Fprintf(w, "push       %s: %s\n", p.Verdict, safetext.String(p.Reason, 600))
	case k.Task.Push != nil:
		fmt.Fprintf(w, "push       to %s of %s, once it passes\n", safetext.String(k.Task.Push.Branch, 200), safetext.String(string(k.Task.Push.URL), 200))
	default:
		fmt.Fprintf(w, "push       none: %s\n", safetext.String(k.Task.Stays, 300))
	}
	section(w, "prompt", k.Task.Prompt, maxPromptShown)
	for _, t := range k.Attempts {
		fmt.Fprintf(w, "\nattempt %d: %s", t.Number, t.Outcome)
		if t.Exit != nil {
			fmt.Fprintf(w, ", the agent ended with %d", *t.Exit)
		}
		fmt.Fprintln(w)
		if t.Usage != nil {
			fmt.Fprintf(w, "  used     %s\n", usedBy(t.Usage))
		}
		if t.Verdict != "" {
			fmt.Fprintf(w, "  verdict  %s (carboy gate explain %s)\n  run      %s (carboy receipt %s)\n", t.Verdict, t.Verdict, t.Run, t.Run)
		}
		if t.Failing != "" {
			fmt.Fprintf(w, "  failing  %s\n", safetext.String(t.Failing, 500))
		}
		if t.Outcome == gate.Failed && t.Feedback != "" {
			section(w, "  the agent was told", t.Feedback, gate.ShownToAgent)
		}
	}
	if len(k.Failing) > 0 {
		fmt.Fprintln(w, "\nwhat failed last")
		for _, r := range k.Failing {
			fmt.Fprintf(w, "  %s: %s %s\n", safetext.String(r.Name, 60), r.Outcome, safetext.String(r.Why, 300))
			for i, f := range r.Findings {
				if i == 20 {
					fmt.Fprintf(w, "    and %d more\n", r.Total-20)
					break
				}
				fmt.Fprintf(w, "    %s: %s\n", safetext.String(f.ID, 200), safetext.String(f.Text, 300))
			}
		}
	}
	fmt.Fprintln(w, "\nhow it can go on")
	for _, s := range nextSteps(k) {
		fmt.Fprintf(w, "  %s\n", s)
	}
}

func section(w io.Writer, title, text string, n int) {
	fmt.Fprintf(w, "%s\n", title)
	for line := range strings.Lines(safetext.Lines(text, n)) {
		fmt.Fprintf(w, "  | %s\n", strings.TrimRight(line, "\n"))
	}
}

// nextSteps returns the commands with which a person can continue.
func nextSteps(k *carboy.WorkAccount) []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	switch {
	case k.State == carboy.WorkRunning:
		say("it runs: wait for it")
		return out
	case k.State == carboy.WorkStopped:
		say("carboy work --continue %s  goes on where it stopped", k.ID)
	case k.Pushed != nil && k.Pushed.Verdict != receipt.Pushed:
		say("carboy work --continue %s  pushes again, once that is put right", k.ID)
	}
	if k.Run != "" {
		say("carboy diff %s  shows the change", k.Run)
	}
	if k.State == carboy.WorkOver && k.Outcome == gate.Passed || k.Pushed != nil {
		say("carboy land %s  takes it into the workspace", k.Run)
	}
	if k.Bottle != "" && k.Resumable {
		say("carboy resume %s --headless --prompt TEXT  has the agent go on in its bottle, which is kept", safetext.String(k.Bottle, 60))
	} else if k.Bottle != "" {
		say("the agent's bottle %s is gone: begin anew with carboy work --agent %s", safetext.String(k.Bottle, 60), safetext.String(k.Task.Agent, 60))
	}
	if most := min(k.Number+carboy.MaxAttempts, maxAttempts); k.Spent && most > k.Number {
		say("carboy work --continue %s --max-attempts %d  asks a person for more attempts", k.ID, most)
	}
	if k.State == carboy.WorkOver && k.Outcome != gate.Passed && k.Pushed == nil && k.Verdict != "" {
		accept := "carboy gate baseline accept --as NAME --key FILE"
		if slices.ContainsFunc(k.Failing, func(r *gate.Result) bool { return r.Kind == "trace" && len(r.Findings) > 0 }) {
			say("%s %s  allows what it did (carboy gate baseline diff %s); commit that, and begin anew", accept, k.Verdict, k.Verdict)
		}
		if len((&gate.Verdict{Signals: k.Failing}).LostTests()) > 0 {
			say("%s --lost-tests %s  accepts the loss of its tests; commit that, and start again", accept, k.Verdict)
		}
		if len((&gate.Verdict{Signals: k.Failing}).ChangedTests()) > 0 {
			say("%s --changed-tests %s  accepts that its tests ask for something else; commit that, and start again", accept, k.Verdict)
		}
		say("carboy gate override --reason TEXT %s  lets it go on as it is; then carboy work --continue %s", k.Verdict, k.ID)
	}
	return out
}
