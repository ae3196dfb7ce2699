//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy/internal/corpus"
	"github.com/carboy/carboy/internal/corpus/attacker"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/safetext"
)

const escapeLong = `Try to break out of real bottles on this machine, in every way that the hostile
corpus knows, and report the result of each attack. First it plants targets: a secret
beside the workspace, sockets, servers on the loopback, a name server. Where possible
the targets decide whether an attack succeeded, and not the attacker. Each attack has
a control: a similar action that must work. An attack that could not be made is never
reported as contained.

Everything happens in a temporary directory with its own state, which is removed; no
run appears in carboy list. The attacks also try public addresses, which must be
refused: no other machine is contacted unless a seal breaks.

The exit code is 0 if everything was contained, 1 if something escaped or bottles do
not work here, and 3 if nothing escaped but some attacks could not be tried.
docs/escape-test.md has the families; docs/schemas/escape-test.v1.json is the
schema of --json.`

// escapeMain runs the attacking program if the process was started as that, and then does
// not return. A bottle of carboy escape-test sees this binary as [attacker.Path], so that
// escape-test needs no other download.
func escapeMain() { attacker.Main() }

func (a *app) escapeTestCmd() *cobra.Command {
	var asJSON, list bool
	var families []string
	cmd := &cobra.Command{
		Use: "escape-test", Short: "attack bottles on this machine, and check that they hold", Long: escapeLong, GroupID: "keep", Args: noArgs,
		Example: "  carboy escape-test\n  carboy escape-test --family sockets --family names\n  carboy escape-test --list\n  carboy escape-test --json | jq '.results[] | select(.outcome != \"contained\")'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			known := familyNames()
			for _, f := range families {
				if !slices.Contains(known, f) {
					return usagef("they are "+strings.Join(known, ", "), "escape-test: no family is called %q", safetext.String(f, 80))
				}
			}
			if list {
				if asJSON {
					return usagef("leave out one of them", "escape-test: --list and --json cannot be combined")
				}
				return listAttacks(a.stdout, families)
			}
			return a.escapeTest(cmd, families, asJSON)
		},
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringArrayVar(&families, "family", nil, "make the attacks of one `FAMILY` only; repeatable")
	fl.BoolVar(&list, "list", false, "list the attacks and make none")
	fl.BoolVar(&asJSON, "json", false, "print the results as JSON")
	cmd.RegisterFlagCompletionFunc("family", cobra.FixedCompletions(familyNames(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func familyNames() (out []string) {
	for _, f := range corpus.Families {
		out = append(out, f.Name)
	}
	return out
}

func (a *app) escapeTest(cmd *cobra.Command, families []string, asJSON bool) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	progress, clear := a.escapeProgress()
	rep, err := corpus.Run(ctx, corpus.Options{Backend: a.backend, Families: families, Progress: progress})
	clear()
	switch {
	case ctx.Err() != nil:
		return errors.New("escape-test: interrupted; nothing is left of it")
	case err != nil:
		return fmt.Errorf("escape-test: %w", err)
	}
	a.code = exitcode.OfEscapeTest(rep.Verdict)
	if asJSON {
		return a.printJSON(rep)
	}
	return a.printEscapeReport(rep)
}

// escapeProgress returns a function that prints the progress on stderr: on a terminal in
// one line, which clear removes, else in a line for each part.
func (a *app) escapeProgress() (progress func(done, total int, next string), clear func()) {
	if isTerminal(a.stderr) {
		return func(done, total int, next string) {
				fmt.Fprintf(a.stderr, clearLine+"%d of %d attacks made; now: %s", done, total, next)
			}, func() {
				fmt.Fprint(a.stderr, clearLine)
			}
	}
	last := ""
	return func(done, total int, next string) {
		if next != last {
			a.say(plainText, "%d of %d attacks made; now: %s", done, total, next)
			last = next
		}
	}, func() {}
}

func listAttacks(w io.Writer, families []string) error {
	for _, f := range corpus.Families {
		if len(families) > 0 && !slices.Contains(families, f.Name) {
			continue
		}
		fmt.Fprintf(w, "%s: %s\n\n", f.Name, f.Title)
		for _, x := range corpus.Catalogue() {
			if x.Family == f.Name {
				fmt.Fprintf(w, "  %s (%s)\n%s", x.ID, x.Promise, wrap(x.How, 6))
			}
		}
		fmt.Fprintln(w)
	}
	return nil
}

// wrap breaks a text into indented lines of a terminal's width.
func wrap(text string, indent int) string {
	var b strings.Builder
	line := indent
	for i, w := range strings.Fields(text) {
		switch {
		case i == 0:
			b.WriteString(strings.Repeat(" ", indent))
		case line+1+len(w) > helpWidth-1:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			line = indent
		default:
			b.WriteByte(' ')
			line++
		}
		b.WriteString(w)
		line += len(w)
	}
	b.WriteByte('\n')
	return b.String()
}

func (a *app) printEscapeReport(r *corpus.Report) error {
	paint := func(c tone, s string) string { return a.paint(a.stdout, c, s) }
	fmt.Fprintf(a.stdout, "carboy %s, %s, as %s\n\n", safetext.String(r.Build, 80), safetext.String(r.Kernel, 80), map[string]string{"root": "root", "ordinary": "an ordinary user"}[r.User])
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "attacks\tways\tcontained\tescaped\tuntried\t\n")
	for _, f := range r.Families {
		ways := 0
		for _, x := range r.Results {
			if x.Family == f.Name {
				ways += x.Ways
			}
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%s\t%s\t\n", f.Attacks, ways, f.Contained, dash(f.Escaped), dash(f.Untried))
	}
	w.Flush()
	lines := strings.Split(strings.TrimSuffix(table.String(), "\n"), "\n")
	fmt.Fprintf(a.stdout, "%-34s%s\n", "", strings.TrimRight(lines[0], " "))
	for i, f := range r.Families {
		line := fmt.Sprintf("%-34s%s", f.Title, strings.TrimRight(lines[i+1], " "))
		if f.Escaped > 0 {
			line = paint(redText, line)
		}
		fmt.Fprintln(a.stdout, line)
	}
	fmt.Fprintln(a.stdout)
	for _, x := range r.Results {
		if x.Outcome == corpus.Contained {
			continue
		}
		head := "ESCAPED  "
		c := redText
		if x.Outcome == corpus.Untried {
			head, c = "not tried", plainText
		}
		fmt.Fprintf(a.stdout, "%s  %s (promise %s)\n%s%s", paint(c, head), x.ID, x.Promise, wrap(x.Technique, 11), wrap("-> "+safetext.String(x.Detail, 400), 11))
	}
	return a.escapeVerdict(r, paint)
}

func dash(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func (a *app) escapeVerdict(r *corpus.Report, paint func(tone, string) string) error {
	made := fmt.Sprintf("%s in %s, %s", number(r.Attacks, "attack", "attacks"), number(r.Bottles, "bottle", "bottles"), receipt.Duration(r.Took.Round(100*time.Millisecond)))
	var s string
	switch r.Verdict {
	case corpus.Contained:
		s = paint(greenText, "Everything was contained") + ": " + made + "."
	case corpus.Escaped:
		s = paint(redText, fmt.Sprintf("%d escaped", r.Escaped)) + ": " + made + ".\nDon't run what you don't trust in bottles on this machine, and report it with\ncarboy escape-test --json."
	default:
		s = fmt.Sprintf("Nothing escaped, but %d could not be tried here: %s.", r.Untried, made)
	}
	_, err := fmt.Fprintln(a.stdout, s)
	return err
}
