//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/safetext"
)

const doctorLong = `Check whether bottles work on this machine: the kernel, the directories, the audit log,
and a real bottle that is made, checked and destroyed. It also prints the default
limits.

Some systems (Ubuntu since 24.04) reserve user namespaces for programs that
AppArmor names. doctor --fix prints the profile that allows it for this binary,
and, when run by root, installs it.`

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
	cmd.Flags().BoolVar(&fix, "fix", false, "print, or as root install, what allows bottles here")
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

// fix prints the AppArmor profile, or installs it as root.
func (a *app) fix(ctx context.Context) error {
	profile, err := carboy.AppArmorProfile()
	if err != nil {
		return fmt.Errorf("doctor: %w", err)
	}
	fmt.Fprint(a.stdout, profile)
	if os.Geteuid() != 0 {
		a.say(plainText, "this profile allows user namespaces for this binary where AppArmor reserves them")
		a.say(plainText, "hint: save it as %s and run: sudo apparmor_parser -r %s", carboy.AppArmorPath, carboy.AppArmorPath)
		a.say(plainText, "hint: or let root do it: sudo carboy doctor --fix")
		return nil
	}
	if _, err := os.Stat("/etc/apparmor.d"); err != nil {
		a.say(plainText, "AppArmor is not in use here, so nothing was installed")
		return nil
	}
	if err := carboy.InstallAppArmorProfile(ctx); err != nil {
		return fmt.Errorf("doctor: install the profile: %w", err)
	}
	a.say(greenText, "wrote and loaded %s", carboy.AppArmorPath)
	return nil
}
