//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/supervise"
)

const workLong = `Let an agent carry out a prompt in a bottle, judge its changes by the gate, tell it what
failed, and let it try again. After three attempts you decide; with --max-attempts a
person is asked for more, here or at carboy supervise. Only observed signals count,
never what the agent says.

A change that passes is pushed to a new branch through the git gate, if the bottle
declares the repository of origin or of the only remote that fits. A receipt says what
left. Otherwise, and with --no-push, the change waits for carboy land. The workspace
stays as it is.

An interrupt stops the work: while the agent runs, it gets the signal, and the work
stops when it has ended; at any other time it stops at once. carboy work --continue ID
continues stopped or killed work. It also repeats a failed push, respects an override,
and with --max-attempts asks for more attempts. carboy work show ID shows everything
about it.`

// maxAttempts bounds the attempts including those that people grant.
const maxAttempts = carboy.MaxAttempts + supervise.MaxMoreAttempts

// atStep is called when a step of work is written, and again once it is recorded. Tests
// stop carboy there.
var atStep = func(t carboy.Attempt, recorded bool) {}

// ofWork lists the flags that --continue excludes, because its work has them on record.
var ofWork = []string{"agent", "prompt", "bottle", "dir", "base", "gate", "attempts", "push", "branch", "no-push"}

func (a *app) workCmd() *cobra.Command {
	var o carboy.WorkOptions
	bottles := list{name: "NAME", eg: "dev"}
	environ := list{name: "NAME=VALUE", eg: "CI=1"}
	attempts := whole{top: carboy.MaxAttempts, eg: "3"}
	most := whole{top: maxAttempts, eg: "6"}
	people := &askFlags{}
	var asJSON, quiet bool
	cmd := &cobra.Command{
		Use: "work --agent NAME --prompt TEXT", GroupID: "main", Short: "have an agent work until the gate passes, or a person must decide", Long: workLong,
		Example: "  carboy work --agent coder --prompt 'fix issue 12'\n  carboy work --agent coder --prompt - --push app --branch fix/12 <task.md\n  carboy work --continue 01m8\n  carboy work --continue 01m8 --max-attempts 6\n  carboy work show 01m8",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case o.Continue == "" && o.Agent == "":
				return usagef("carboy work --agent NAME --prompt TEXT", "work: which agent?")
			case o.Continue != "" && slices.ContainsFunc(ofWork, cmd.Flags().Changed):
				return usagef("continued work keeps its agent, prompt, catalog and destination", "work: --continue and --%s cannot be combined", ofWork[slices.IndexFunc(ofWork, cmd.Flags().Changed)])
			case o.NoPush && (o.Push != "" || o.Branch != ""):
				return usagef("leave out one of them", "work: --no-push cannot be combined with --push or --branch")
			}
			if o.Prompt == "-" {
				text, err := readPrompt(a.stdin)
				if err != nil {
					return err
				}
				o.Prompt = text
			}
			o.Bottles, o.Env, o.Attempts, o.MaxAttempts = bottles.values, environ.values, int(attempts.n), int(most.n)
			var err error
			if o.People, err = a.asking(people); err != nil {
				return err
			}
			o.Stdout, o.Stderr = tame(a.stdout), tame(a.stderr)
			if asJSON {
				o.Stdout = o.Stderr
			}
			n := &narrator{app: a, bottle: true, quiet: quiet || asJSON}
			o.OnEvent, o.OnGate = n.event, a.gateEvents(quiet || asJSON)
			o.Dies = func(t carboy.Attempt) bool { atStep(t, false); return false }
			o.OnAttempt = func(t carboy.Attempt) {
				atStep(t, true)
				if quiet || asJSON || t.State == carboy.AttemptPending {
					return
				}
				a.say(boldText, "attempt %d: %s %s (carboy work --continue %s goes on after a crash)", t.Number, t.State, t.Outcome, t.Work)
				if t.State == carboy.AttemptRecorded && t.Usage != nil {
					a.say(dimText, "attempt %d used %s", t.Number, usedBy(t.Usage))
				}
			}
			ctx := context.WithoutCancel(cmd.Context())
			c, err := a.open(ctx)
			if err != nil {
				return err
			}
			defer c.Close()
			interrupts := make(chan os.Signal, 4)
			o.Interrupt, o.OnStop = interrupts, a.stopping()
			signal.Notify(interrupts, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
			w, err := c.Work(ctx, o)
			signal.Stop(interrupts)
			if err != nil {
				return workAdvice(err)
			}
			return a.worked(w, asJSON)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Agent, "agent", "", "which agent, by its `NAME`")
	f.StringVar(&o.Prompt, "prompt", "", "the task, in `WORDS`; - reads them from standard input")
	f.Var(&bottles, "bottle", "a bottle instead of the agent's own; repeatable")
	f.Var(&environ, "env", "the value of a variable that the bottle asks for; repeatable")
	f.StringVar(&o.Dir, "dir", ".", "the repository's `DIR`")
	f.StringVar(&o.Base, "base", "", "the approved `REV` (default HEAD)")
	f.StringVar(&o.Catalog, "gate", "", "a catalog `FILE` of your own instead of the base's "+gate.CatalogPath)
	f.Var(&attempts, "attempts", "the number of attempts, up to 3 (default: the catalog's)")
	f.Var(&most, "max-attempts", "then ask a person for more, up to this number in all")
	people.add(cmd, false)
	f.StringVar(&o.Continue, "continue", "", "continue the work of this `ID`, which was stopped, killed or escalated, or could not be pushed")
	f.StringVar(&o.Push, "push", "", "push to this `REMOTE`, or a repository by its name in the bottle (default: origin)")
	f.StringVar(&o.Branch, "branch", "", "the new branch's `NAME` (default: carboy/AGENT-ID)")
	f.BoolVar(&o.NoPush, "no-push", false, "push nothing")
	f.BoolVar(&asJSON, "json", false, "print the outcome as JSON; the agent's output goes to stderr")
	f.BoolVarP(&quiet, "quiet", "q", false, "say nothing while it runs")
	cmd.MarkFlagDirname("dir")
	cmd.AddCommand(a.workShowCmd(), a.workListCmd())
	return cmd
}

// stopping returns the function that handles the signals that stop work. A second signal
// exits at once, which is safe because everything that happened is on record.
func (a *app) stopping() func(os.Signal) {
	asked := false
	return func(s os.Signal) {
		if asked {
			os.Exit(exitcode.Signal(s))
		}
		asked = true
		a.say(boldText, "stopping (%s); the next signal ends carboy at once", s)
	}
}

// workAdvice adds to an error of work what to do about it.
func workAdvice(err error) error {
	var stopped *carboy.StoppedError
	switch {
	case errors.As(err, &stopped):
		if stopped.Work == "" {
			return err
		}
		return &advisedError{err, "carboy work --continue " + stopped.Work + " goes on"}
	case errors.Is(err, carboy.ErrWorkLocked):
		return &advisedError{err, "wait until it is over, or stop it there: Ctrl-C"}
	case errors.Is(err, carboy.ErrNoWork):
		return &advisedError{err, "carboy work list shows what there is"}
	case errors.Is(err, carboy.ErrLedger):
		return &advisedError{err, "carboy audit verify shows what else was changed; nothing goes on from such records: begin anew with carboy work --agent NAME --prompt TEXT"}
	}
	return gateAdvice(err)
}

// usedBy describes what an attempt used.
func usedBy(u *carboy.AttemptUsage) string {
	s := fmt.Sprintf("%d model calls (%d failed), %s up, %s down, %s",
		u.ModelCalls, u.ModelFailed, receipt.Bytes(u.BytesUp), receipt.Bytes(u.BytesDown), u.Duration.Round(100*time.Millisecond))
	if u.Tokens != nil {
		s += ", " + u.Tokens.String()
	}
	return s
}

// maxPrompt bounds what is read from standard input, in bytes.
const maxPrompt = 1 << 20

func readPrompt(f *os.File) (string, error) {
	b := make([]byte, 0, 4096)
	for len(b) <= maxPrompt {
		buf := make([]byte, 4096)
		n, err := f.Read(buf)
		b = append(b, buf[:n]...)
		if err != nil {
			return strings.TrimSpace(string(b)), nil
		}
	}
	return "", errors.New("the prompt has more than 1 MiB")
}

func (a *app) worked(w *carboy.Worked, asJSON bool) error {
	a.code = exitcode.OfGate(w.Outcome, false)
	if asJSON {
		return a.printJSON(struct {
			Schema   string           `json:"schema"`
			ID       string           `json:"id"`
			Outcome  gate.Outcome     `json:"outcome"`
			Why      string           `json:"why,omitempty"`
			Run      string           `json:"run,omitempty"`
			Bottle   string           `json:"bottle,omitempty"`
			Verdict  *gate.Verdict    `json:"verdict,omitempty"`
			Attempts []carboy.Attempt `json:"attempts"`
			Pushed   *carboy.Pushed   `json:"pushed,omitempty"`
			Stays    string           `json:"stays,omitempty"`
		}{"carboy.dev/work/v1", w.ID, w.Outcome, w.Why, string(w.Run), w.Bottle, w.Verdict, w.Attempts, w.Pushed, w.Stays})
	}
	if w.Verdict != nil {
		w.Verdict.Text(a.shown(), w.Outcome != gate.Passed)
	}
	switch w.Outcome {
	case gate.Passed:
		a.say(greenText, "passed after %d attempts", len(w.Attempts))
		if p := w.Pushed; p != nil {
			a.say(plainText, "pushed commit %.12s as branch %s to %s; what left: carboy receipt %s", p.Commit, safetext.String(p.Branch, 200), safetext.String(string(p.URL), 200), p.Run)
		} else {
			a.say(plainText, "nothing was pushed: %s", safetext.String(w.Stays, 300))
		}
		a.say(plainText, "%s", byHand(w.Run))
	case gate.Escalated:
		a.say(redText, "escalated: %s", safetext.String(w.Why, 600))
		for _, t := range w.Attempts {
			a.say(plainText, "  attempt %d: %s %s", t.Number, t.Outcome, safetext.String(t.Failing, 300))
		}
		a.say(plainText, "you decide: carboy work show %s shows everything, and how to continue", w.ID)
	default:
		a.say(redText, "failed for good: %s; carboy work show %s shows all of it", safetext.String(w.Why, 300), w.ID)
	}
	return nil
}

// byHand returns the advice to land a change by hand.
func byHand(run carboy.RunID) string {
	return fmt.Sprintf("by hand: carboy diff %s, then carboy land %s, and git commit and push as ever", run, run)
}
