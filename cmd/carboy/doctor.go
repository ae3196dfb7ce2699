//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/platform"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/safetext"
)

const doctorLong = `Check whether bottles work on this machine: the kernel, the directories, the audit log,
and a real bottle that is made, checked and destroyed. It also prints the default
limits.

Some systems forbid user namespaces: Ubuntu since 24.04 by AppArmor, hardened RHEL and
older Debian by a kernel setting, ChromeOS by its container. doctor --fix prints the
commands that allow them here. Run by root, it installs the AppArmor profile itself;
it runs nothing else.`

func (a *app) doctorCmd() *cobra.Command {
	var fix, asJSON bool
	cmd := &cobra.Command{
		Use: "doctor", Short: "check whether bottles work here", Long: doctorLong, GroupID: "keep", Args: noArgs,
		Example: "  carboy doctor\n  sudo carboy doctor --fix",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				if fix {
					return a.fix(ctx)
				}
				d := c.Doctor(ctx)
				if asJSON {
					if err := a.printJSON(d); err != nil {
						return err
					}
				} else {
					a.printDiagnosis(d)
				}
				if !d.OK {
					return errReported
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&fix, "fix", false, "print the commands that allow bottles here")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the findings as JSON")
	return cmd
}

func (a *app) printDiagnosis(d carboy.Diagnosis) {
	fmt.Fprintf(a.stdout, "carboy %s, %s %s\n\n", d.Build, d.Backend, d.Kernel)
	for _, f := range d.Findings {
		mark, c := "ok  ", greenText
		if !f.OK {
			mark, c = "FAIL", redText
		}
		fmt.Fprintf(a.stdout, "  %s  %-9s %s\n", a.paint(a.stdout, c, mark), f.Check, safetext.String(f.Detail, 1000))
		if f.Advice != "" {
			fmt.Fprintf(a.stdout, "                  %s\n", safetext.String(f.Advice, 1000))
		}
	}
	if p := d.Posture; p != nil {
		fmt.Fprintf(a.stdout, "\nPosture of a bottle, read from its live processes (%s)\n\n", p.Isolation)
		for _, x := range p.Processes {
			fmt.Fprintf(a.stdout, "  %-8s uid %d, seccomp %d, no-new-privs %t, chrooted %t, own namespaces: %s\n",
				x.Role, x.UID, x.Seccomp, x.NoNewPrivs, x.Chrooted, strings.Join(x.Namespaces, " "))
		}
	}
	l := d.Limits
	fmt.Fprint(a.stdout, "\nDefault limits of a run here\n\n")
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "  --timeout\t%s\n  --memory\t%s\n  --pids\t%d\n  --disk\t%s\n  --cpus\t%d\n  --output\t%s\n",
		receipt.Duration(l.Timeout), receipt.Bytes(l.Memory), l.Pids, receipt.Bytes(l.Disk), l.CPUs, receipt.Bytes(l.Output))
	w.Flush()
}

// fix prints the commands that allow bottles on this system. As root it installs the
// AppArmor profile, where one is needed.
func (a *app) fix(ctx context.Context) error {
	exe, err := os.Executable()
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	if err != nil {
		return fmt.Errorf("doctor: %w", err)
	}
	system := platform.Read("/")
	fixes := system.Fixes(exe)
	if len(fixes) == 0 {
		a.say(plainText, "no setting that carboy knows forbids bottles here: carboy doctor tries one")
		return nil
	}
	for n, f := range fixes {
		if n > 0 {
			fmt.Fprintln(a.shown())
		}
		fmt.Fprint(a.shown(), safetext.Lines(f.String(), 100_000))
	}
	if !system.AppArmor || os.Geteuid() != 0 {
		a.say(plainText, "nothing was run: read the commands, and run them")
		return nil
	}
	if err := carboy.InstallAppArmorProfile(ctx); err != nil {
		return fmt.Errorf("doctor: install the profile: %w", err)
	}
	a.say(greenText, "wrote and loaded %s; nothing else was run", carboy.AppArmorPath)
	return nil
}
