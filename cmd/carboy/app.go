package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/visible"
)

// app is one invocation.
type app struct {
	stdin          *os.File
	stdout, stderr io.Writer
	env            func(string) string
	config         string
	verbose        bool
	args           []string // the whole command line
	warm           *warm    // for a run that was handed over to us
	// code is the exit code of a command that did what it was asked to and
	// has a code of its own to pass on.
	code int
}

func newApp(stdin *os.File, stdout, stderr io.Writer, env func(string) string) *app {
	return &app{stdin: stdin, stdout: stdout, stderr: stderr, env: env}
}

const rootLong = `carboy runs a command in a sealed bottle: its own kernel in user space, one way
out that ends in a gateway which refuses what was not allowed, and a workspace
whose changes come to you for review. No root, no Docker, no set-up.`

const rootExample = `  carboy run -- make test                    nothing leaves, nothing is changed
  carboy run --allow proxy.golang.org -- go build ./...
  carboy run -it -- bash                     look around inside
  carboy diff                                what the last run here changed
  carboy land                                take it
  carboy receipt                             what happened, and what was refused`

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "carboy",
		Short:         "run commands in sealed bottles and review what they changed",
		Long:          rootLong,
		Example:       rootExample,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          a.unknownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().StringVar(&a.config, "config", "", "configuration `DIR` instead of ~/.config/carboy")
	root.MarkPersistentFlagDirname("config")
	root.PersistentFlags().BoolVarP(&a.verbose, "verbose", "v", false, "say on stderr what carboy itself does")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddGroup(&cobra.Group{ID: "main", Title: "Run and review:"}, &cobra.Group{ID: "ship", Title: "Ship:"}, &cobra.Group{ID: "look", Title: "Look back:"}, &cobra.Group{ID: "keep", Title: "Keep in order:"})
	root.AddCommand(
		a.runCmd(), a.startCmd(), a.resumeCmd(), a.execCmd(), a.attachCmd(), a.cpCmd(), a.diffCmd(), a.landCmd(), a.undoCmd(),
		a.superviseCmd(), a.receiptCmd(), a.listCmd(), a.logsCmd(), a.traceCmd(), a.gateCmd(), a.workCmd(), a.planCmd(), a.applyCmd(), a.rollbackCmd(), a.shipCmd(),
		a.initCmd(), a.explainCmd(), a.freezeCmd(), a.destroyCmd(), a.gcCmd(), a.poolCmd(), a.imageCmd(), a.egressCmd(), a.sandboxCmd(), a.doctorCmd(), a.escapeTestCmd(), a.auditCmd(),
		a.schemaCmd(), a.completionCmd(), a.manCmd(), a.versionCmd(), a.demoCmd(),
	)
	cobra.AddTemplateFunc("flags", func(f *pflag.FlagSet) string { return f.FlagUsagesWrapped(helpWidth) })
	root.SetUsageTemplate(flagUsages.Replace(root.UsageTemplate()) + "\n")
	root.SetHelpCommand(&cobra.Command{Use: "help [command]", Short: "show help for a command", RunE: func(_ *cobra.Command, args []string) error {
		c, rest, err := root.Find(args)
		if err != nil || len(rest) > 0 {
			return a.unknownCommand(root, args)
		}
		return c.Help()
	}})
	return root
}

const helpWidth = 80

// flagUsages has cobra's template print flags no wider than we want.
var flagUsages = strings.NewReplacer(".LocalFlags.FlagUsages", "flags .LocalFlags", ".InheritedFlags.FlagUsages", "flags .InheritedFlags")

// run carries out one command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int { return a.execute(ctx, a.root(), args) }

func (a *app) execute(ctx context.Context, root *cobra.Command, args []string) int {
	a.args = args
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return a.code
	}
	code := a.codeOf(cmd, err)
	a.report(cmd, args, err, code)
	return code
}

// codeOf is the exit code of a command that failed.
func (a *app) codeOf(cmd *cobra.Command, err error) int {
	var usage *usageError
	switch {
	case a.code != 0:
		return a.code
	case slices.Contains([]string{"run", "start", "resume", "exec"}, cmd.Name()) && cmd.HasParent() && !cmd.Parent().HasParent():
		return exitcode.Refused
	case errors.As(err, &usage):
		return exitcode.Usage
	}
	return exitcode.Failed
}

// errReported is an error about which everything has been said.
var errReported = errors.New("reported")

// report tells people on stderr what went wrong and what they can do, and
// programs, when they asked for JSON, on stdout.
func (a *app) report(cmd *cobra.Command, args []string, err error, code int) {
	if errors.Is(err, errReported) {
		return
	}
	tip := advice(err)
	var wrong document.Error
	if errors.As(err, &wrong) {
		for _, p := range wrong {
			a.say(plainText, "%s", errorLine(p))
		}
	} else {
		a.say(plainText, "%s", errorLine(err))
	}
	if tip != "" {
		a.say(plainText, "hint: %s", errorText(tip))
	}
	if !wantsJSON(cmd, args) {
		return
	}
	a.printJSON(struct {
		Schema string `json:"schema"`
		Code   int    `json:"code"`
		Error  string `json:"error"`
		Advice string `json:"advice"`
	}{"carboy.dev/error/v1", code, err.Error(), tip})
}

// wantsJSON looks at the arguments themselves, because reading the flags may be
// what failed.
func wantsJSON(cmd *cobra.Command, args []string) bool {
	if cmd.Flags().Lookup("json") == nil {
		return false
	}
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return slices.Contains(args, "--json") || cmd.Flags().Changed("json")
}

// maxMessage bounds one message, in bytes; some name files of the bottle's.
const maxMessage = 4000

func errorLine(err error) string { return errorText(err.Error()) }

func errorText(s string) string { return visible.String(s, maxMessage) }

// tone is a colour for people.
type tone string

const (
	plainText tone = ""
	boldText  tone = "1"
	dimText   tone = "2"
	redText   tone = "31"
	greenText tone = "32"
)

// say prints one line for people on stderr. Arguments that came from inside
// must have been made visible.
func (a *app) say(c tone, format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if !a.utf8() {
		line = visible.ASCII(line)
	}
	fmt.Fprintf(a.stderr, "carboy: %s\n", a.paint(a.stderr, c, line))
}

// paint is s in a colour, if w is for somebody who wants it.
func (a *app) paint(w io.Writer, c tone, s string) string {
	if !a.color(w) {
		return s
	}
	return c.paint(s)
}

func (c tone) paint(s string) string {
	if c == plainText {
		return s
	}
	return "\x1b[" + string(c) + "m" + s + "\x1b[0m"
}

// color reports whether w is a terminal whose user wants colour
// (https://no-color.org).
func (a *app) color(w io.Writer) bool {
	return a.env("NO_COLOR") == "" && a.env("TERM") != "dumb" && isTerminal(w)
}

// utf8 reports whether the user's locale has UTF-8, by the rules of POSIX.
func (a *app) utf8() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := a.env(name); v != "" {
			v = strings.ToLower(v)
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}

// shown is stdout for text that is visible already: without UTF-8 as ASCII.
func (a *app) shown() io.Writer { return a.shownTo(a.stdout) }

func (a *app) shownTo(w io.Writer) io.Writer {
	if a.utf8() {
		return w
	}
	return visible.NewASCIIWriter(w)
}

// columns is how wide the terminal is that w leads to; 0 when it leads to none.
func columns(w any) int {
	if !isTerminal(w) {
		return 0
	}
	n, _, err := term.GetSize(int(w.(*os.File).Fd()))
	if err != nil {
		return 0
	}
	return n
}

// style is how receipts are shown on stdout.
func (a *app) style(all bool) receipt.Style {
	return receipt.Style{Color: a.color(a.stdout), All: all, Width: columns(a.stdout), ASCII: !a.utf8()}
}

func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && f != nil && term.IsTerminal(int(f.Fd()))
}

func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write json: %w", err)
	}
	return nil
}

// open opens the user's state. Close the result.
func (a *app) open(ctx context.Context) (*carboy.Client, error) { return a.openFor(ctx, nil) }

// openFor is open for a run that will be asked for next.
func (a *app) openFor(ctx context.Context, ahead *carboy.RunOptions) (*carboy.Client, error) {
	o := carboy.Options{Env: a.env, Config: a.config, Ahead: ahead}
	if a.verbose {
		o.Log = slog.New(slog.NewTextHandler(visible.NewWriter(a.stderr, visible.Options{MaxLine: maxMessage}), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	c, err := carboy.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	for _, m := range c.Lost() {
		a.say(plainText, "run %s died with its carboy; nothing of it is running, and it is recorded as lost", m.ID)
	}
	return c, nil
}

// withClient runs f with the user's state open, until a signal.
func (a *app) withClient(cmd *cobra.Command, f func(context.Context, *carboy.Client) error) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	c, err := a.open(ctx)
	if err != nil {
		return err
	}
	return errors.Join(f(ctx, c), c.Close())
}

func (a *app) unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	tip := "carboy --help lists the commands"
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		tip = "did you mean carboy " + strings.Join(s, " or carboy ") + "?"
	}
	return &usageError{fmt.Errorf("unknown command %q", visible.String(args[0], 80)), tip}
}
