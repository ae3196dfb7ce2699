package main

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/visible"
)

const gcLong = `Remove the records of old runs: changes, logs, receipts. Without rules, those that
ended more than 30 days ago. Runs that go on, and runs with changes that were
not landed, stay; --unlanded gives such changes up.`

const gcExample = `  carboy gc --dry-run
  carboy gc --keep 20 --yes
  carboy gc --older-than 7d --unlanded --yes`

type gcFlags struct {
	keep      whole
	olderThan age
	maxBytes  size

	all, unlanded, dry, yes, json bool
}

const defaultAge = 30 * 24 * time.Hour

func (a *app) gcCmd() *cobra.Command {
	f := &gcFlags{keep: whole{top: 1 << 30, eg: "20"}}
	cmd := &cobra.Command{
		Use: "gc", Short: "remove old runs", Long: gcLong, Example: gcExample, GroupID: "keep", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error { return a.gc(ctx, c, f) })
		},
	}
	cmd.Flags().Var(&f.keep, "keep", "keep the newest so many")
	cmd.Flags().Var(&f.olderThan, "older-than", "remove what ended longer ago, such as 30d or 12h")
	cmd.Flags().Var(&f.maxBytes, "max-size", "remove the oldest until all together take no more, such as 10GiB")
	cmd.Flags().BoolVar(&f.all, "all", false, "remove all runs that are over")
	cmd.Flags().BoolVar(&f.unlanded, "unlanded", false, "also those whose changes were not landed: the changes are lost")
	cmd.Flags().BoolVar(&f.dry, "dry-run", false, "only say what would go")
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "don't ask")
	cmd.Flags().BoolVar(&f.json, "json", false, "print what was removed as JSON")
	return cmd
}

func (f *gcFlags) policy() store.Policy {
	p := store.Policy{Keep: int(f.keep.n), OlderThan: time.Duration(f.olderThan), MaxBytes: int64(f.maxBytes), All: f.all, Unlanded: f.unlanded}
	if p.Keep == 0 && p.OlderThan == 0 && p.MaxBytes == 0 && !p.All {
		p.OlderThan = defaultAge
	}
	return p
}

type gcJSON struct {
	Schema  string     `json:"schema"`
	DryRun  bool       `json:"dry_run"`
	Planned []store.ID `json:"planned"`
	Removed []store.ID `json:"removed"`
	Freed   int64      `json:"freed_bytes"`
	Total   int64      `json:"total_bytes"`
}

func (a *app) gc(ctx context.Context, c *carboy.Client, f *gcFlags) error {
	plan, err := c.PlanGC(ctx, f.policy())
	if err != nil {
		return err
	}
	out := gcJSON{Schema: "carboy.dev/gc/v1", DryRun: f.dry, Planned: []store.ID{}, Removed: []store.ID{}, Freed: plan.Freed, Total: plan.Total}
	for _, x := range plan.Remove {
		out.Planned = append(out.Planned, x.Meta.ID)
	}
	a.printPlan(plan)
	if len(plan.Remove) > 0 && !f.dry {
		if !f.yes {
			if err := a.confirm(ctx, fmt.Sprintf("remove %s?", number(len(plan.Remove), "run", "runs"))); err != nil {
				return err
			}
		}
		removed, err := c.GC(ctx, plan)
		if err != nil {
			return err
		}
		out.Removed = append(out.Removed, removed...)
		a.say(greenText, "removed %s", number(len(removed), "run", "runs"))
	}
	if !f.dry {
		// The audit log has the answers for good.
		if n, err := c.PruneProposals(ctx, defaultAge); err != nil {
			a.say(plainText, "proposals stay: %s", errorLine(err))
		} else if n > 0 {
			a.say(greenText, "removed %s of more than 30 days ago", number(n, "answered proposal", "answered proposals"))
		}
	}
	if f.json {
		return a.printJSON(out)
	}
	return nil
}

// printPlan says on stderr what would go and what stays in spite of a rule.
func (a *app) printPlan(p store.Plan) {
	const shown = 20
	for _, e := range p.Corrupt {
		a.say(plainText, "stays: %s", errorLine(e))
	}
	if len(p.Remove) == 0 {
		a.say(plainText, "nothing to remove; runs take %s", receipt.Bytes(p.Total))
	}
	list := func(what string, runs []store.Candidate) {
		for i, x := range runs {
			if i == shown {
				a.say(plainText, "%s: %d more", what, len(runs)-shown)
				return
			}
			a.say(plainText, "%s: %s (%s, %s): %s", what, x.Meta.ID, receipt.Bytes(x.Bytes), commandOf(x.Meta), visible.String(x.Why, 200))
		}
	}
	list("stays", p.Stay)
	list("goes", p.Remove)
	if len(p.Remove) > 0 {
		a.say(plainText, "that frees %s of %s", receipt.Bytes(p.Freed), receipt.Bytes(p.Total))
	}
}

// age is a time that may be given in days.
type age time.Duration

func (v *age) Set(s string) error {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n := whole{top: 36500}
		if err := n.Set(days); err != nil {
			return err
		}
		*v = age(n.n * int64(24*time.Hour))
		return nil
	}
	var d span
	err := d.Set(s)
	*v = age(d)
	return err
}

func (v *age) String() string  { return (*span)(v).String() }
func (v *age) Type() string    { return "TIME" }
func (v *age) example() string { return "30d" }

const doctorLong = `Look whether bottles work on this machine: what is needed of the kernel, the
directories, the audit log, and then a real bottle that is made, judged and
destroyed. It prints the default limits too.

Some systems (Ubuntu since 24.04) reserve user namespaces for programs that
AppArmor names. doctor --fix prints the profile that allows it for this binary,
and, when run by root, installs it.`

func (a *app) doctorCmd() *cobra.Command {
	var fix, asJSON bool
	cmd := &cobra.Command{
		Use: "doctor", Short: "look whether bottles work here", Long: doctorLong, GroupID: "keep", Args: noArgs,
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
	fmt.Fprintf(a.stdout, "carboy %s, embedded kernel %s\n\n", d.Build, d.Kernel)
	for _, f := range d.Findings {
		mark, c := "ok  ", greenText
		if !f.OK {
			mark, c = "FAIL", redText
		}
		fmt.Fprintf(a.stdout, "  %s  %-9s %s\n", a.paint(a.stdout, c, mark), f.Check, visible.String(f.Detail, 1000))
		if f.Advice != "" {
			fmt.Fprintf(a.stdout, "                  %s\n", visible.String(f.Advice, 1000))
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

func (a *app) auditCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", Short: "check the log of decisions", GroupID: "keep", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.auditVerifyCmd())
	return cmd
}

const verifyLong = `Check the audit log offline: that every record is what was signed, in order and
complete, and that it agrees with the checkpoints that runs keep. Without --key
the public key beside the log is used, which proves only that one key signed all
of it; keep the key elsewhere to prove that it was yours.`

func (a *app) auditVerifyCmd() *cobra.Command {
	var key string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "verify", Short: "check that the audit log is whole and unchanged", Long: verifyLong, Args: noArgs,
		Example: "  carboy audit verify\n  carboy audit verify --key \"$(cat ~/carboy-audit.pub)\"",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				rep, err := c.AuditVerify(ctx, key)
				if err != nil {
					return err
				}
				if asJSON {
					if err := a.printJSON(rep); err != nil {
						return err
					}
				} else {
					a.printReport(rep)
				}
				if rep.Status == audit.Tampered || rep.Status == "" {
					return fmt.Errorf("audit log %s was tampered with", rep.Dir)
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "the public `KEY` that must have signed")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	return cmd
}

// rootHex writes a root hash as receipts do. Checkpoints have it in base64.
func rootHex(s string) string {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return visible.String(s, 200)
	}
	return hex.EncodeToString(b)
}

func (a *app) printReport(r audit.Report) {
	fmt.Fprintf(a.stdout, "%s: %s, %d signed by %s, %s\n", r.Status, number(int(r.Records), "record", "records"), r.Signed,
		number(int(r.Checkpoints), "checkpoint", "checkpoints"), number(int(r.Anchors), "anchor agrees", "anchors agree"))
	if r.Root != "" {
		fmt.Fprintf(a.stdout, "root    %s\n", rootHex(r.Root))
	}
	fmt.Fprintf(a.stdout, "key     %s\nlog     %s\n", visible.String(r.Key, 300), visible.Path([]byte(r.Dir)))
	if !r.KeyGiven {
		fmt.Fprintln(a.stdout, "        (the key beside the log; give --key to check against one that you keep)")
	}
	for _, f := range r.Findings {
		where := "log"
		if f.Record >= 0 {
			where = fmt.Sprintf("record %d", f.Record)
		}
		fmt.Fprintf(a.stdout, "%s: %s\n", where, visible.String(f.Text, 500))
	}
}
