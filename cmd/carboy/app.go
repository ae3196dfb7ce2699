//go:build linux

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
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/propose"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// app is one invocation of the program.
type app struct {
	stdin          *os.File
	stdout, stderr io.Writer
	env            func(string) string // with tokens of sign-ins that the user lets carboy use
	outer          func(string) string // the variables themselves
	config         string
	backend        string // --backend
	verbose        bool
	args           []string // the whole command line
	warm           *warm    // for a run that was handed over to us
	// code is the exit code of a command that has one of its own to pass on, such as
	// that of a run.
	code int
}

func newApp(stdin *os.File, stdout, stderr io.Writer, env func(string) string) *app {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, outer: env}
	a.env = propose.WithLogins(env, func() (string, error) { return store.ConfigDir(a.config, env) })
	return a
}

const rootLong = `carboy runs a command in a sealed bottle. The bottle has its own kernel in user
space. All its traffic goes to a gateway, which refuses what you did not allow. Its
changes to the workspace wait for your review. It needs no root, Docker or set-up.
Alone in a terminal, carboy offers what waits for you.`

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
		RunE:          func(cmd *cobra.Command, _ []string) error { return a.alone(cmd) },
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
		a.runCmd(), a.startCmd(), a.agentCmd(), a.resumeCmd(), a.execCmd(), a.attachCmd(), a.cpCmd(), a.diffCmd(), a.landCmd(), a.undoCmd(),
		a.superviseCmd(), a.receiptCmd(), a.statusCmd(), a.listCmd(), a.logsCmd(), a.traceCmd(), a.provenanceCmd(), a.gateCmd(), a.workCmd(), a.planCmd(), a.applyCmd(), a.rollbackCmd(), a.shipCmd(), a.orchestrateCmd(),
		a.initCmd(), a.explainCmd(), a.freezeCmd(), a.destroyCmd(), a.gcCmd(), a.poolCmd(), a.imageCmd(), a.egressCmd(), a.sandboxCmd(), a.runtimeCmd(), a.doctorCmd(), a.escapeTestCmd(), a.auditCmd(),
		a.schemaCmd(), a.completionCmd(), a.manCmd(), a.versionCmd(), a.demoCmd(),
	)
	for _, template := range propose.Templates() {
		root.AddCommand(a.wordCmd(template))
	}
	a.addBackend(root)
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

// flagUsages changes cobra's template so that it wraps the lines of flags.
var flagUsages = strings.NewReplacer(".LocalFlags.FlagUsages", "flags .LocalFlags", ".InheritedFlags.FlagUsages", "flags .InheritedFlags")

// run executes one command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int { return a.execute(ctx, a.root(), args) }

func (a *app) execute(ctx context.Context, root *cobra.Command, args []string) int {
	a.args = args
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return a.code
	}
	if errors.Is(err, errNotConfirmed) {
		a.say(plainText, "%s", errNotConfirmed.Error())
		return 0
	}
	code := a.codeOf(cmd, err)
	a.report(cmd, args, err, code)
	return code
}

// codeOf returns the exit code of a command that failed.
func (a *app) codeOf(cmd *cobra.Command, err error) int {
	if a.code != exitcode.OK {
		return a.code // a run's, or a deployment's
	}
	path := strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
	if slices.Contains(propose.Templates(), path) {
		path = "start"
	}
	return exitcode.OfError(exitcode.FamilyOf(path), err)
}

// errReported is the error of a command that has already told the user what is wrong.
var errReported = errors.New("reported")

// report says what went wrong and what to do about it: on stderr for people and, if they
// asked for JSON, on stdout for programs.
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

// wantsJSON reports whether the arguments ask for JSON. It does not use the parsed flags,
// because parsing may have failed.
func wantsJSON(cmd *cobra.Command, args []string) bool {
	if cmd.Flags().Lookup("json") == nil {
		return false
	}
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return slices.Contains(args, "--json") || cmd.Flags().Changed("json")
}

// maxMessage bounds one message, in bytes: some contain names that a bottle chose.
const maxMessage = 4000

func errorLine(err error) string { return errorText(err.Error()) }

func errorText(s string) string { return safetext.String(s, maxMessage) }

// tone is the colour of a text on a terminal.
type tone string

const (
	plainText tone = ""
	boldText  tone = "1"
	dimText   tone = "2"
	redText   tone = "31"
	greenText tone = "32"
)

// say prints one line on stderr. The caller must make arguments that came from a bottle
// safe to print.
func (a *app) say(c tone, format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if !a.utf8() {
		line = safetext.ASCII(line)
	}
	fmt.Fprintf(a.stderr, "carboy: %s\n", a.paint(a.stderr, c, line))
}

// paint returns s in colour c if w is a terminal whose user wants colour.
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
	return a.env("NO_COLOR") == "" && a.redraws(w)
}

// redraws reports whether w is a terminal that can empty a line, or the screen.
func (a *app) redraws(w any) bool { return a.env("TERM") != "dumb" && isTerminal(w) }

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

// shown returns stdout for text that is safe to print. Without UTF-8 it prints ASCII.
func (a *app) shown() io.Writer { return a.shownTo(a.stdout) }

func (a *app) shownTo(w io.Writer) io.Writer {
	if a.utf8() {
		return w
	}
	return safetext.NewASCIIWriter(w)
}

// columns returns the width of the terminal w, or 0 if w is none.
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

// style returns the style of receipts on stdout.
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

// openFor is open, and prepares for the run that comes next, if ahead is not nil.
func (a *app) openFor(ctx context.Context, ahead *carboy.RunOptions) (*carboy.Client, error) {
	o := carboy.Options{Env: a.env, Config: a.config, Backend: a.backend, Ahead: ahead}
	if a.verbose {
		o.Log = slog.New(slog.NewTextHandler(safetext.NewWriter(a.stderr, safetext.Options{MaxLine: maxMessage}), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	c, err := carboy.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	for _, m := range c.Lost() {
		switch {
		case m.CopyWaits:
			a.say(plainText, "run %s died with its carboy, and its files can't be taken from their last copy: %s; later commands try again", m.ID, errorText(m.CopyError))
		case m.CopyError != "":
			a.say(plainText, "run %s died with its carboy, and its files can't be taken from their last copy, which stays with the run: %s", m.ID, errorText(m.CopyError))
		case m.Copied == nil:
			a.say(plainText, "run %s died with its carboy; nothing of it is running, and it is recorded as lost", m.ID)
		case m.Name != "":
			a.say(plainText, "bottle %s died with its carboy; its files of %s are kept: carboy resume %s, carboy diff %s", m.Name, m.Copied.Local().Format(time.DateTime), m.Name, m.ID)
		default:
			a.say(plainText, "run %s died with its carboy; its files of %s are kept: carboy diff %s", m.ID, m.Copied.Local().Format(time.DateTime), m.ID)
		}
	}
	return c, nil
}

// withClient calls f with the user's state open. A signal cancels the context.
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
	return &usageError{fmt.Errorf("unknown command %q", safetext.String(args[0], 80)), tip}
}
