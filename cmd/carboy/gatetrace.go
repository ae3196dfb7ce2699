//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/scenario"
)

const gateTraceLong = `Run a command or an image in each scenario of a file, each in a fresh sandbox, and
report how each scenario ended and what all of them touched: binaries executed, shared
libraries loaded, certificates and files read, shells started, network endpoints
touched, rights requested. The sandbox's kernel and gateway saw all of it; output of
the command counts for nothing.

A scenario ends as completed, failed, timed out or skipped, and stops no other one.
Scenarios run side by side as far as their limits allow. The coverage says how far you
can rely on the report: unavailable, low (only a start), medium (one to four scenarios
completed), high (five or more); lost facts lower it.

The scenarios judge, so they must be yours. --scenarios names a file outside of the
traced directory; --base reads it from a commit that you approve, never from the work
tree. Without either, the command after -- runs, or the image's own.

The exit code is 0 if no scenario failed. It is 12 if one failed, if there is no trace,
or if the traced image is not the one that --digest names or that was built. docs/gate-trace.md has the file and the report.`

const gateTraceExample = `  carboy gate trace -- ./server --check
  carboy gate trace --scenarios ~/scenarios.yaml
  carboy gate trace --base main --dir .
  carboy gate trace --image tar:server.tar --digest sha256:4b0f… --scenarios ~/server.yaml
  carboy gate trace --dockerfile ~/server/Dockerfile --format codegenie > trace.json
  carboy gate trace --json -- make test | jq '.slices.network_endpoints_touched'`

// gateTraceFlags holds the flags of carboy gate trace.
type gateTraceFlags struct {
	scenarios, base, path string
	dir                   string
	none                  bool
	image, dockerfile     string
	digest                string
	format                choice
	json, all, quiet      bool
	offline               bool
	environ               list
	timeout               span
	memory, each          size
	pids, eachPids        whole
	parallel              whole
}

func (a *app) gateTraceCmd() *cobra.Command {
	f := &gateTraceFlags{
		format:  choice{"text", "FORMAT", []string{"text", "json", "codegenie"}},
		environ: list{name: "NAME[=VALUE]", eg: "CI=1"},
		pids:    whole{top: 1 << 22, eg: "2048"}, eachPids: whole{top: 1 << 22, eg: "512"}, parallel: whole{top: 256, eg: "2"},
	}
	cmd := &cobra.Command{
		Use: "trace [flags] [-- COMMAND [ARG...]]", Short: "report what a command or an image touches in scenarios", Long: gateTraceLong, Example: gateTraceExample,
		DisableFlagsInUseLine: true, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return a.gateTrace(cmd, f, args) },
	}
	fl := cmd.Flags()
	fl.SetInterspersed(false)
	fl.SortFlags = false
	fl.StringVar(&f.scenarios, "scenarios", "", "the `FILE` of scenarios, of your own")
	fl.StringVar(&f.base, "base", "", "read the scenarios from this `REV`, which you approve")
	fl.StringVar(&f.path, "scenarios-path", "", "where the file is in that commit, a `PATH` (default "+scenario.FileName+")")
	fl.StringVar(&f.dir, "dir", "", "the `DIR` that scenarios see, each in its own view (default: the current directory; none with an image)")
	fl.BoolVar(&f.none, "no-dir", false, "show no directory")
	fl.StringVar(&f.image, "image", "", "an image as the root file system: oci:DIR, tar:FILE, a path to either, a directory, or a registry's `REF`")
	fl.StringVar(&f.dockerfile, "dockerfile", "", "build the image from this `FILE`, with an engine of this machine, else in bottles")
	fl.StringVar(&f.digest, "digest", "", "what the image was built as, a `DIGEST` (sha256:…)")
	fl.Var(&f.format, "format", "text, json, or codegenie: json with the slices at the top")
	fl.BoolVar(&f.json, "json", false, "print JSON: --format json")
	fl.BoolVar(&f.all, "all", false, "show every entry of every slice")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "say nothing while scenarios run")
	fl.BoolVar(&f.offline, "offline", false, "skip scenarios that need a network")
	fl.Var(&f.environ, "env", "set a variable, or pass the host's; repeatable")
	fl.Var(&f.timeout, "timeout", "for a command without a file: its time (default 2m)")
	fl.Var(&f.memory, "memory", "memory of all that run side by side, such as 4GiB")
	fl.Var(&f.pids, "pids", "processes of all that run side by side, such as 2048")
	fl.Var(&f.each, "scenario-memory", "memory of a scenario that says nothing (default 1GiB)")
	fl.Var(&f.eachPids, "scenario-pids", "processes of a scenario that says nothing (default 512)")
	fl.Var(&f.parallel, "parallel", "how many run at a time (default: as many as fit)")
	cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(f.format.of, cobra.ShellCompDirectiveNoFileComp))
	cmd.MarkFlagFilename("scenarios", "yaml", "yml")
	cmd.MarkFlagDirname("dir")
	return cmd
}

// traceOptions turns the flags into options, except for the scenarios.
func (f *gateTraceFlags) traceOptions(args []string) (carboy.TraceOptions, error) {
	o := carboy.TraceOptions{
		Command: args, Workspace: f.dir, Image: f.image, Dockerfile: f.dockerfile, Digest: f.digest, Env: f.environ.values,
		Each: bottle.Limits{Timeout: time.Duration(f.timeout), Memory: int64(f.each), Pids: f.eachPids.n}, Memory: int64(f.memory), Pids: f.pids.n,
		Parallel: int(f.parallel.n), NoNetwork: f.offline,
	}
	switch {
	case f.none && f.dir != "":
		return o, usagef("leave one of them out", "gate trace: --dir and --no-dir cannot be combined")
	case f.scenarios != "" && f.base != "":
		return o, usagef("leave one of them out", "gate trace: --scenarios and --base cannot be combined")
	case f.path != "" && f.base == "":
		return o, usagef("add --base REV", "gate trace: --scenarios-path needs --base")
	case len(args) > 0 && (f.scenarios != "" || f.base != ""):
		return o, usagef("write the command into the file, or leave the file out", "gate trace: scenarios and a command cannot be combined")
	case len(args) == 0 && f.scenarios == "" && f.base == "" && f.image == "" && f.dockerfile == "":
		return o, usagef("carboy gate trace -- ./server --check, or name --scenarios FILE", "gate trace: nothing to trace")
	case f.format.value != "text" && f.json && f.format.value != "json":
		return o, usagef("leave one of them out", "gate trace: --json and --format %s cannot be combined", f.format.value)
	}
	if o.Workspace == "" && !f.none && f.image == "" && f.dockerfile == "" {
		var err error
		if o.Workspace, err = os.Getwd(); err != nil {
			return o, err
		}
	}
	return o, nil
}

func (a *app) gateTrace(cmd *cobra.Command, f *gateTraceFlags, args []string) error {
	o, err := f.traceOptions(args)
	if err != nil {
		return err
	}
	return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
		switch {
		case f.scenarios != "":
			o.Scenarios, err = carboy.LoadScenarios(f.scenarios, o.Workspace)
		case f.base != "":
			dir := first(f.dir, ".")
			o.Scenarios, err = c.ScenariosAt(ctx, dir, f.base, f.path)
		}
		if errors.Is(err, carboy.ErrNoScenarios) {
			return &advisedError{err, "add one to the base (docs/gate-trace.md), or name a file of your own with --scenarios"}
		}
		if err != nil {
			return err
		}
		if !f.quiet {
			o.Progress = a.scenarioProgress()
			o.Say = func(s string) { a.say(dimText, "build: %s", safetext.String(s, 200)) }
		}
		rep, err := c.TraceScenarios(ctx, o)
		if err != nil {
			return err
		}
		a.code = exitcode.OfScenarios(rep.OK())
		switch {
		case f.format.value == "codegenie":
			return a.printJSON(rep.Codegenie())
		case f.json || f.format.value == "json":
			return a.printJSON(rep)
		}
		return rep.Text(a.shown(), f.all)
	})
}

// scenarioProgress returns a function that prints on stderr which scenarios begin and end.
func (a *app) scenarioProgress() func(carboy.ScenarioEvent) {
	return func(e carboy.ScenarioEvent) {
		r := e.Result
		if r == nil {
			a.say(dimText, "%s …", e.Name)
			return
		}
		tone := redText
		switch r.Outcome {
		case scenario.Completed:
			tone = greenText
		case scenario.Skipped:
			tone = plainText
		}
		text := fmt.Sprintf("%s: %s", e.Name, strings.ReplaceAll(string(r.Outcome), "_", " "))
		if r.Detail != "" {
			text += ", " + r.Detail
		}
		if r.Run != "" && r.Outcome != scenario.Completed {
			text += " (carboy logs " + r.Run + ")"
		}
		a.say(tone, "%s", text)
	}
}

const sandboxLong = `A bottle runs in a sandbox, which the backend makes.
health checks whether this machine can run sandboxes and shows how it confines them,
inspect describes one, and gc removes what dead ones left.`

func (a *app) sandboxCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "sandbox", Short: "check and inspect sandboxes, and clean up after dead ones", Long: sandboxLong, GroupID: "keep", Args: a.unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.sandboxHealthCmd(), a.sandboxInspectCmd(), a.sandboxGCCmd())
	return cmd
}

func (a *app) sandboxHealthCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "health", Short: "check whether this machine can run sandboxes, and what is missing", Args: noArgs,
		Long: `Make, check and destroy a real sandbox. Report whether that worked, its class of
isolation, what was checked and what is missing. The exit code is 1 if something is
missing; carboy doctor --fix says what to do.`,
		Example: "  carboy sandbox health\n  carboy sandbox health --json | jq .isolation",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				h := c.SandboxHealth(ctx)
				a.code = exitcode.OfCheck(h.OK)
				if asJSON {
					return a.printJSON(h)
				}
				return a.showHealth(h)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) showHealth(h carboy.SandboxHealth) error {
	w := a.shown()
	state := a.paint(a.stdout, greenText, "sandboxes work here")
	if !h.OK {
		state = a.paint(a.stdout, redText, "sandboxes do not work here")
	}
	fmt.Fprintf(w, "%s\n", state)
	fmt.Fprintf(w, "isolation  %s, by %s\n", first(h.Isolation, "none"), safetext.String(h.Kernel, 200))
	for _, f := range h.Findings {
		mark := "ok"
		if !f.OK {
			mark = "MISSING"
		}
		fmt.Fprintf(w, "%-9s  %-8s %s\n", f.Check, mark, safetext.String(f.Detail, 500))
		if f.Advice != "" && !f.OK {
			fmt.Fprintf(w, "%20s%s\n", "", safetext.String(f.Advice, 500))
		}
	}
	_, err := fmt.Fprintf(w, "left       %d runs of dead carboys, %d bottles that wait\n", h.Lost, h.Waiting)
	return err
}

func (a *app) sandboxInspectCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "inspect RUN|IMAGE", Short: "describe the sandbox of a run, or of an image",
		Long: `Describe the sandbox of a run: isolation, limits, root file system, mounts and host
processes, as read before its first instruction. For a pulled image, say as what it
would run.`,
		Example:           "  carboy sandbox inspect 01k9x3\n  carboy sandbox inspect sha256:4b0f…\n  carboy sandbox inspect --json 01k9x3 | jq .posture",
		ValidArgsFunction: a.completeRuns,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("carboy list shows runs, carboy image list images", "sandbox inspect: name one run or image")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				x, err := c.InspectSandbox(ctx, args[0])
				if err != nil {
					return err
				}
				if asJSON {
					return a.printJSON(x)
				}
				return a.showSandbox(x)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) showSandbox(x *carboy.Sandbox) error {
	w := a.shown()
	row := func(name, text string) {
		if text != "" {
			fmt.Fprintf(w, "%-10s %s\n", name, text)
		}
	}
	row(x.Kind, safetext.String(x.Name, 300))
	row("command", safetext.String(strings.Join(x.Command, " "), 300))
	row("isolation", strings.TrimSpace(x.Isolation+" "+safetext.String(x.Kernel, 200)))
	row("root", safetext.String(x.Root, 300))
	row("image", safetext.String(x.ImageDigest, 100))
	l := x.Limits
	row("limits", fmt.Sprintf("%d MiB of memory, %d processes, %d MiB of disk, %d processors", l.Memory>>20, l.Pids, l.Disk>>20, l.CPUs))
	row("met", strings.Join(x.Hit, ", "))
	for _, m := range x.Mounts {
		row("mount", safetext.String(m, 500))
	}
	if p := x.Posture; p != nil {
		row("processes", fmt.Sprintf("%d of the host, judged before the first instruction", len(p.Processes)))
	}
	for _, n := range x.Left {
		row("left out", safetext.String(n, 300))
	}
	return nil
}

func (a *app) sandboxGCCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "gc", Short: "remove what dead sandboxes left", Args: noArgs,
		Long: `Remove what dead sandboxes left: scratch files, control sockets, and bottles that waited
or pushed. Remove what killed gates left: the trees that they judged, their phases, and
evidence without a verdict. Also remove build caches of gates that are old, over the
limit, or differ from their record. Verdicts, records of other runs, and changes that
nobody has landed stay: carboy gc removes runs.`,
		Example: "  carboy sandbox gc\n  carboy sandbox gc --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				g, err := c.SweepSandboxes(ctx)
				if err != nil {
					return err
				}
				if asJSON {
					return a.printJSON(g)
				}
				for _, p := range slices.Concat(g.Runs, g.Removed) {
					fmt.Fprintln(a.shown(), safetext.String(p, 500))
				}
				a.say(plainText, "%d runs marked as lost, %d leftovers removed", len(g.Runs), len(g.Removed))
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
