package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/visible"
)

func (a *app) gateTraceCmd() *cobra.Command {
	var o carboy.GateTraceOptions
	var scenarios string
	format := choice{"text", "FORMAT", []string{"text", "json", "codegenie"}}
	var asJSON bool
	timeout := span(gate.DefaultScenario)
	cmd := &cobra.Command{
		Use: "trace [flags] [-- COMMAND [ARG...]]", Short: "say what a command or an image does, scenario by scenario",
		Long: `Runs scenarios, each in a bottle of its own, and says what the kernel inside saw:
programs with the digests of what was loaded, libraries, certificates, files,
shells, addresses that were tried and names that were asked for, and rights. One
scenario's fate does not stop the others.

The file of scenarios has version: 1 and a list of name, command,
expected_exit_code, timeout, network and skip.`,
		Example:               "  carboy gate trace -- ./server --version\n  carboy gate trace --image oci:layout --scenarios scenarios.yaml --format json",
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if (len(args) == 0) == (scenarios == "") {
				return usagef("carboy gate trace -- COMMAND, or carboy gate trace --scenarios FILE", "trace: a command or a file of scenarios, and not both")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Scenarios = []carboy.Scenario{{Name: "command", Command: args, Timeout: time.Duration(timeout)}}
			if scenarios != "" {
				b, err := os.ReadFile(scenarios)
				if err != nil {
					return err
				}
				if o.Scenarios, err = gate.ParseScenarios(filepath.Base(scenarios), b); err != nil {
					return err
				}
			}
			if asJSON {
				format.value = "json"
			}
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				if o.Image != "" {
					img, err := a.pull(ctx, c, o.Image, "")
					if err != nil {
						return err
					}
					o.ImageDigest = img.Digest
				}
				r, err := c.GateTrace(ctx, o)
				if err != nil {
					return err
				}
				for _, s := range r.Scenarios {
					if s.Outcome != "completed" && s.Outcome != "skipped" {
						a.code = exitcode.Rejected
					}
				}
				switch format.value {
				case "json":
					return a.printJSON(r)
				case "codegenie":
					return a.printJSON(r.Codegenie())
				}
				r.Text(a.shown())
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVar(&scenarios, "scenarios", "", "a `FILE` of scenarios instead of a command")
	f.StringVar(&o.Image, "image", "", "trace in an image: oci:DIR, tar:FILE, or a registry's `REF`")
	f.StringVar(&o.Dir, "dir", "", "a `DIR` to show at /workspace; it is not written to")
	f.Var(&timeout, "timeout", "how long the command may take (default 2m)")
	f.Var(&format, "format", "text, json or codegenie")
	f.BoolVar(&asJSON, "json", false, "the same as --format json")
	cmd.MarkFlagFilename("scenarios", "yaml", "yml")
	cmd.MarkFlagDirname("dir")
	return cmd
}

func (a *app) sandboxCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "sandbox", GroupID: "keep", Short: "look after what gates run in", Args: a.unknownCommand,
		Long:    "A gate's phases run in bottles like every other command. These commands say\nwhether that works here, how a verdict's phases were held, and clean up.",
		Example: "  carboy sandbox health\n  carboy sandbox inspect",
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.sandboxHealthCmd(), a.sandboxInspectCmd(), a.sandboxGCCmd())
	return cmd
}

func (a *app) sandboxHealthCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "health", Short: "make a bottle, look how it is confined, and destroy it", Example: "  carboy sandbox health --json", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				d := c.Doctor(ctx)
				if !d.OK {
					a.code = exitcode.Failed
				}
				if asJSON {
					return a.printJSON(d)
				}
				w := a.shown()
				for _, f := range d.Findings {
					mark := "ok"
					if !f.OK {
						mark = "no"
					}
					fmt.Fprintf(w, "%-3s %-8s %s\n", mark, f.Check, visible.String(f.Detail, 300))
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print it as JSON")
	return cmd
}

func (a *app) sandboxInspectCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "inspect [VERDICT]", Short: "show how a verdict's phases were held", Example: "  carboy sandbox inspect", Args: oneArg("verdict"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				v, dir, err := c.Verdict(ctx, onlyArg(args))
				if err != nil {
					return a.gateFailed(err)
				}
				if asJSON {
					return a.printJSON(v.Phases)
				}
				w := a.shown()
				for _, p := range v.Phases {
					fmt.Fprintf(w, "%s on the %s: %s, %s, exit %d (%s) after %s\n", visible.String(p.Signal, 60), p.On, visible.String(p.Isolation, 60), visible.String(p.Engine, 200), p.Code, visible.String(p.Reason, 40), p.Duration)
				}
				fmt.Fprintf(w, "evidence in %s\n", visible.Path([]byte(filepath.Join(dir, "evidence"))))
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the phases as JSON")
	return cmd
}

func (a *app) sandboxGCCmd() *cobra.Command {
	return &cobra.Command{
		Use: "gc", Short: "remove what gates left that died", Example: "  carboy sandbox gc", Args: noArgs,
		Long: "Removes trees of gates whose carboy died, and what is remembered of verdicts that\nare gone. Verdicts and their evidence stay.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				n, m, err := c.SandboxGC(ctx)
				a.say(plainText, "removed %d trees of dead gates and %d remembered inputs", n, m)
				return err
			})
		},
	}
}
