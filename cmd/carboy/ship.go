//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/ship"
	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/plan"
	"github.com/carboy/carboy/internal/store"
)

// shipCode returns the exit code of an error, or of none.
func shipCode(err error) int { return exitcode.OfError(exitcode.Ships, err) }

// shipFlags holds the flags that all ship commands have.
type shipFlags struct {
	json, quiet     bool
	up, other, life time.Duration
	review          int
	hosts           []string
}

// addHosts adds the flag that selects hosts.
func (f *shipFlags) addHosts(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.hosts, "host", nil, "only this host, by its `NAME` in hosts.yaml; may be repeated")
}

func (f *shipFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.BoolVar(&f.json, "json", false, "print JSON")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "do not say what happens meanwhile")
	fl.DurationVar(&f.other, "command-timeout", ship.DefaultOther, "how long a command may take on a host, a `TIME`")
	fl.DurationVar(&f.up, "up-timeout", ship.DefaultUp, "how long docker compose up may take, a `TIME`")
}

// shipping calls f with a shipper for this directory's repository. It sets the exit code
// if f returns a carboy.ShipError.
func (a *app) shipping(cmd *cobra.Command, fl *shipFlags, f func(context.Context, *carboy.Shipper) error) error {
	return a.shippingWith(cmd, fl, func(ctx context.Context, _ *carboy.Client, s *carboy.Shipper) error { return f(ctx, s) })
}

func (a *app) shippingWith(cmd *cobra.Command, fl *shipFlags, f func(context.Context, *carboy.Client, *carboy.Shipper) error) error {
	err := a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
		o := carboy.ShipOptions{Dir: ".", Up: fl.up, Other: fl.other, Life: fl.life, Review: fl.review}
		if !fl.quiet {
			o.Progress = func(p carboy.ShipProgress) {
				a.say(dimText, "%s", strings.TrimSpace(p.Host+": "+strings.TrimSpace(p.Step+" "+p.Text)))
			}
		}
		s, err := c.Ship(o)
		if err != nil {
			return err
		}
		return errors.Join(f(ctx, c, s), s.Close())
	})
	var x *carboy.ShipError
	if errors.As(err, &x) {
		a.code = exitcode.OfShip(x.Outcome)
	}
	return err
}

func moduleArg(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef(cmd.CommandPath()+" web", "%s: wanted one module, got %d", cmd.Name(), len(args))
	}
	return nil
}

func planArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usagef("carboy plan MODULE -o plans writes plans", "%s: no plan was named", cmd.Name())
	}
	return nil
}

const planLong = `Read the state of a module's hosts and say what applying this commit would change there.
It changes nothing. -o writes the plan that people approve and that carboy apply carries
out exactly: it names the commit, the host and its key, and the state that was seen.

The module is modules/MODULE/module.yaml in this repository. Its hosts are in your own
hosts.yaml. carboy ship init writes examples of both; docs/ship.md explains all of it.

With --remove the plan removes the service, also if this commit does not have the module
any more. It destroys, so its approval must say --destructive.

The exit code is 0 if there is nothing to do, and 20 if there is.`

func (a *app) planCmd() *cobra.Command {
	f, out, remove := &shipFlags{}, "", false
	cmd := &cobra.Command{
		Use: "plan MODULE", Short: "say what shipping a module would change", Long: planLong, GroupID: "ship", Args: moduleArg,
		Example: "  carboy plan web\n  carboy plan web -o plans --host prod1\n  carboy plan web --remove -o plans\n  carboy plan web --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.makePlans(cmd, f, out, ship.PlanOptions{Module: args[0], Hosts: f.hosts, Remove: remove})
		},
	}
	f.add(cmd)
	f.addHosts(cmd)
	cmd.Flags().BoolVar(&remove, "remove", false, "plan to remove the service")
	cmd.Flags().StringVarP(&out, "out", "o", "", "write the plans into `DIR`, as MODULE.HOST.plan.json")
	cmd.Flags().DurationVar(&f.life, "life", plan.DefaultLife, "how long the plan can be applied, a `TIME`")
	return cmd
}

const rollbackLong = `Plan a return to what the last apply replaced, or to the commit that --to names. Of
several hosts, those return that took part in the last rollout and applied it. Where
something else runs than what was applied last, the plan returns to what was applied. The
plan is approved and applied like any other. If the host's entry in hosts.yaml says
undo_without_approval, a plan that only undoes the last apply needs no approval.`

func (a *app) rollbackCmd() *cobra.Command {
	f, out, to := &shipFlags{}, "", ""
	cmd := &cobra.Command{
		Use: "rollback MODULE", Short: "plan a return to what ran before", Long: rollbackLong, GroupID: "ship", Args: moduleArg,
		Example: "  carboy rollback web -o plans\n  carboy rollback web --to 3f786850e387550fdab836ed7e6dc881de23001b -o plans",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.makePlans(cmd, f, out, ship.PlanOptions{Module: args[0], Hosts: f.hosts, Rollback: true, To: to})
		},
	}
	f.add(cmd)
	f.addHosts(cmd)
	cmd.Flags().StringVarP(&out, "out", "o", "", "write the plans into `DIR`, as MODULE.HOST.plan.json")
	cmd.Flags().StringVar(&to, "to", "", "go back to this `COMMIT`, its whole name")
	cmd.Flags().DurationVar(&f.life, "life", plan.DefaultLife, "how long the plan can be applied, a `TIME`")
	return cmd
}

// planned is the JSON output of one plan.
type planned struct {
	Digest string     `json:"digest"`
	File   string     `json:"file,omitempty"`
	Plan   *plan.Plan `json:"plan"`
}

func (a *app) makePlans(cmd *cobra.Command, f *shipFlags, out string, o ship.PlanOptions) error {
	if f.life <= 0 {
		return usagef("for example --life 24h", "--life %s: a plan must live for some time", f.life)
	}
	return a.shipping(cmd, f, func(ctx context.Context, s *carboy.Shipper) error {
		var timing ship.Timing
		o.Timing = &timing
		made, err := s.Plan(ctx, o)
		if err != nil {
			return err
		}
		list, changes := []planned{}, false
		for _, m := range made {
			changes = changes || len(m.Changes) > 0
			p := planned{m.Digest, "", m.Plan}
			if out != "" {
				if p.File, err = writePlan(out, m); err != nil {
					return err
				}
			}
			list = append(list, p)
		}
		a.code = exitcode.OfPlan(changes)
		if f.json {
			return a.printJSON(struct {
				Schema string      `json:"schema"`
				Code   int         `json:"code"`
				Timing ship.Timing `json:"timing"`
				Plans  []planned   `json:"plans"`
			}{"carboy.dev/ship-plans/v1", a.code, timing, list})
		}
		w := a.shown()
		for i, p := range list {
			a.showPlan(w, p.Plan, p.Digest)
			a.showDiff(ctx, w, s, made[i].Bytes)
		}
		switch {
		case a.code == exitcode.OK:
			a.say(plainText, "nothing to do")
		case out != "":
			for _, files := range together(list) {
				a.say(plainText, "next: carboy ship approve %s --as YOU --key FILE --purpose TEXT, then carboy apply with the same plans", safetext.String(strings.Join(files, " "), maxMessage))
			}
		default:
			a.say(plainText, "next: the same with -o DIR writes the plan, which is then approved")
		}
		return nil
	})
}

// together returns the files of the plans that can be approved and applied together, which
// are those of one commit. It leaves out commits for which there is nothing to do.
func together(list []planned) (out [][]string) {
	changed := map[string]bool{}
	for _, p := range list {
		changed[p.Plan.Commit] = changed[p.Plan.Commit] || len(p.Plan.Changes) > 0
	}
	var commits []string
	for _, p := range list {
		if !changed[p.Plan.Commit] {
			continue
		}
		i := slices.Index(commits, p.Plan.Commit)
		if i < 0 {
			i, commits, out = len(commits), append(commits, p.Plan.Commit), append(out, nil)
		}
		out[i] = append(out[i], p.File)
	}
	return out
}

// writePlan writes a plan atomically and replaces an earlier one.
func writePlan(dir string, m carboy.ShipPlan) (string, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	name := filepath.Join(dir, m.Module+"."+m.Host.Name+".plan.json")
	return name, store.WriteFile(name, m.Bytes, 0o644) // a link there is replaced, not followed
}

// showPlan prints a plan for people. Everything in it was checked or made safe to print.
func (a *app) showPlan(w io.Writer, p *plan.Plan, digest string) {
	fmt.Fprintf(w, "%s %s on %s (%s@%s), commit %.12s, wave %d\n", p.Kind, p.Module, p.Host.Name, safetext.String(p.Host.User, 64), safetext.String(p.Host.Address, 256), p.Commit, p.Wave)
	mounts := "nothing"
	if m := p.Mounts(); len(m) > 0 {
		mounts = strings.Join(m, ", ")
	}
	fmt.Fprintf(w, "  project %s in %s, mounts %s\n", p.Target.Project, safetext.String(p.Target.Root, maxMessage), safetext.String(mounts, maxMessage))
	signs := map[string]struct {
		sign  string
		color tone
	}{plan.Create: {"+", greenText}, plan.Remove: {"-", redText}, plan.Update: {"~", boldText}, plan.Recreate: {"~", boldText}, plan.Adopt: {"=", boldText}}
	for _, c := range p.Changes {
		s := signs[c.Action]
		line := fmt.Sprintf("  %s %s %s: %s -> %s", s.sign, c.What, c.Action, shortDigest(c.From), shortDigest(c.To))
		if c.Why != "" {
			line += "; " + c.Why
		}
		if c.Destructive {
			line += " [destructive]"
		}
		fmt.Fprintln(w, a.paint(a.stdout, s.color, safetext.String(line, maxMessage)))
	}
	if len(p.Changes) == 0 {
		fmt.Fprintln(w, "  = nothing to do")
		if why := p.Ailing(); why != "" {
			fmt.Fprintln(w, a.paint(a.stdout, redText, "  ! "+why))
		}
	}
	if len(p.Changes) > 0 {
		fmt.Fprintf(w, "  when it goes wrong, back to %s\n", safetext.String(shortDigest(p.Back()), maxMessage))
	}
	fmt.Fprintf(w, "  plan %s, good until %s\n", digest, p.Expires.Format(time.RFC3339))
}

// maxDiff bounds the lines of a diff that are shown.
const maxDiff = 300

// showDiff prints the diff from the running compose file to a plan's.
func (a *app) showDiff(ctx context.Context, w io.Writer, s *carboy.Shipper, made []byte) {
	text, err := s.Diff(ctx, made)
	if err != nil {
		fmt.Fprintln(w, a.paint(a.stdout, redText, "  ! its difference cannot be shown: "+safetext.String(err.Error(), maxMessage)))
		return
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if text == "" {
		return
	}
	for i, l := range lines {
		if i == maxDiff {
			fmt.Fprintf(w, "    ... %d lines more\n", len(lines)-i)
			break
		}
		color := plainText
		switch l[:min(1, len(l))] {
		case "+":
			color = greenText
		case "-":
			color = redText
		}
		fmt.Fprintln(w, a.paint(a.stdout, color, "    "+safetext.String(l, maxMessage)))
	}
}

// shortDigest returns enough of a digest to compare by eye.
func shortDigest(s string) string {
	before, rest, ok := strings.Cut(s, "sha256:")
	if !ok || len(rest) < 12 {
		if len(s) == 64 {
			return s[:12]
		}
		return s
	}
	after := ""
	if len(rest) > 64 {
		after = rest[64:]
	}
	return before + "sha256:" + rest[:12] + after
}

const applyLong = `Carry out approved plans: one plan for each host, all of one module and commit. It goes
wave after wave and stops after a wave that is not healthy.

Approvals are the files that carboy ship approve wrote. Those beside the first plan
are found; name others with --approval. Everything is checked before the first
connection. With --wait it waits until enough people have signed. carboy supervise
shows and can refuse what waits, but only signatures approve.

With --review N, approving reviews of pull request N count too, for hosts whose entry in
hosts.yaml names a forge. carboy posts each plan there first. It says why the forge or the
reviews are not enough yet, and asks again right before the first change. For a plan that
destroys something, a signature is needed besides (docs/ship.md).

On the host the work continues when this command or the connection ends; carboy ship
status then tells how it ended.

A service that is not healthy in time is rolled back. Each outcome has its own exit code:
9 applied, 0 nothing to do, 7 failed, 8 rolled back, 10 rolling back failed, 14
locked, 6 stale, 3 to 5 refused (docs/exit-codes.md).`

func (a *app) applyCmd() *cobra.Command {
	f, wait := &shipFlags{}, &askFlags{}
	var files []string
	cmd := &cobra.Command{
		Use: "apply PLAN...", Short: "carry out plans that were approved", Long: applyLong, GroupID: "ship", Args: planArgs,
		Example: "  carboy apply plans/web.prod1.plan.json\n  carboy apply plans/web.*.plan.json --approval alice.json\n  carboy apply plans/web.prod1.plan.json --wait 1h\n  carboy apply plans/web.prod1.plan.json --review 7 --wait 1h",
		RunE:    func(cmd *cobra.Command, args []string) error { return a.apply(cmd, f, wait, args, files) },
	}
	f.add(cmd)
	wait.add(cmd, false)
	cmd.Flags().StringArrayVar(&files, "approval", nil, "an approval's `FILE`; its signature is FILE.sig")
	cmd.Flags().IntVar(&f.review, "review", 0, "also count approving reviews of pull request `N`")
	return cmd
}

// readApprovals reads the named approvals or, without names, those next to a plan.
func readApprovals(plan string, files []string) ([]carboy.ShipApproval, error) {
	out := []carboy.ShipApproval{}
	if len(files) == 0 {
		var err error
		if files, err = filepath.Glob(escapeGlob(plan) + ".approval.*.json"); err != nil {
			return nil, err
		}
	}
	for _, name := range files {
		st, err := readBounded(name, approval.MaxSize)
		if err != nil {
			return nil, err
		}
		sig, err := readBounded(name+".sig", approval.MaxSignature)
		if err != nil {
			return nil, err
		}
		out = append(out, carboy.ShipApproval{Statement: st, Signature: sig})
	}
	return out, nil
}

func (a *app) apply(cmd *cobra.Command, f *shipFlags, wait *askFlags, args, files []string) error {
	if cmd.Flags().Changed("review") && f.review < 1 {
		return usagef("carboy apply plans/web.prod1.plan.json --review 7", "apply: --review %d is no number of a pull request", f.review)
	}
	plans, err := readPlans(args)
	if err != nil {
		return err
	}
	signed, err := readApprovals(args[0], files)
	if err != nil && wait.wait == 0 {
		return err
	}
	people, err := a.asking(wait)
	if err != nil {
		return err
	}
	return a.shippingWith(cmd, f, func(ctx context.Context, c *carboy.Client, s *carboy.Shipper) error {
		if f.review > 0 {
			if err := s.PostPlans(ctx, plans, signed); err != nil {
				return err
			}
		}
		if wait.wait > 0 {
			now := func() ([]carboy.ShipApproval, error) { return readApprovals(args[0], files) }
			if signed, err = c.AwaitApprovals(ctx, s, plans, args, now, people); err != nil {
				return err
			}
		}
		results, err := s.Apply(ctx, plans, signed)
		var outcomes []carboy.ShipOutcome
		for _, r := range results {
			outcomes = append(outcomes, r.Outcome)
		}
		code := exitcode.OfApply(err, outcomes...)
		a.code = code
		if !f.json {
			for _, r := range results {
				for _, l := range r.Evidence {
					a.say(dimText, "%s: %s", r.Host, l)
				}
				if r.Outcome == ship.Applied || r.Outcome == ship.Nothing {
					a.say(greenText, "%s: %s", r.Host, r.Outcome)
					if r.Why != "" && r.Outcome == ship.Nothing {
						a.say(redText, "%s: %s", r.Host, r.Why)
					}
				}
			}
			return err
		}
		doc := struct {
			Schema  string              `json:"schema"`
			Code    int                 `json:"code"`
			Error   string              `json:"error,omitempty"`
			Advice  string              `json:"advice,omitempty"`
			Results []carboy.ShipResult `json:"results"`
		}{Schema: "carboy.dev/ship-results/v1", Code: code, Results: results}
		if results == nil {
			doc.Results = []carboy.ShipResult{}
		}
		if err == nil {
			return a.printJSON(doc)
		}
		doc.Error, doc.Advice = err.Error(), advice(err)
		a.say(plainText, "%s", errorLine(err))
		return errors.Join(a.printJSON(doc), &reportedAs{err})
	})
}

// reportedAs is an error that was already printed. It still decides the exit code.
type reportedAs struct{ err error }

func (e *reportedAs) Error() string   { return e.err.Error() }
func (e *reportedAs) Unwrap() []error { return []error{e.err, errReported} }

func readPlans(names []string) ([][]byte, error) {
	var out [][]byte
	for _, n := range names {
		b, err := readBounded(n, plan.MaxSize)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

func readBounded(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s: more than %d bytes", name, limit)
	}
	return b, err
}

// escapeGlob escapes a path so that a glob matches only that path.
func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(s)
}

func (a *app) shipCmd() *cobra.Command {
	cmd := &cobra.Command{Use: "ship", Short: "approve plans, show hosts and history, write examples", GroupID: "ship", Args: a.unknownCommand,
		Long: "The commands for shipping besides carboy plan and carboy apply. docs/ship.md explains it.",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(a.shipApproveCmd(), a.shipStatusCmd(), a.shipHistoryCmd(), a.shipInitCmd())
	return cmd
}

const approveLong = `Approve plans by signing them with an SSH key. The plans are shown first; read them. The
operator's allowed_signers must list the key under the name that --as gives, or carboy
apply ignores the approval.

The approval is a JSON file with its signature beside it, which ssh-keygen checks too:

  ssh-keygen -Y verify -f allowed_signers -I alice@example.org \
    -n carboy-ship@carboy.dev -s APPROVAL.sig < APPROVAL

--key names a private key without a passphrase, or a public key whose private key the
SSH agent holds. A plan that destroys something needs --destructive. Without a terminal
for the question, nothing is signed unless you say --yes.`

func (a *app) shipApproveCmd() *cobra.Command {
	f, o, out := &shipFlags{}, ship.ApproveOptions{}, ""
	yes := false
	cmd := &cobra.Command{
		Use: "approve PLAN...", Short: "sign plans", Long: approveLong, Args: planArgs,
		Example: "  carboy ship approve plans/web.prod1.plan.json --as alice@example.org --key ~/.ssh/id_ed25519.pub --purpose 'release 4'",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.approve(cmd, f, o, args, out, yes)
		},
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVar(&o.Approver, "as", "", "your `NAME` in allowed_signers")
	fl.StringVar(&o.Key, "key", "", "the key's `FILE`")
	fl.StringVar(&o.Purpose, "purpose", "", "the purpose, a line of `TEXT`")
	fl.BoolVar(&o.Destructive, "destructive", false, "also approve destructive changes")
	fl.BoolVar(&yes, "yes", false, "do not ask")
	fl.StringVarP(&out, "out", "o", "", "write the approval to `FILE` (default: beside the first plan)")
	fl.BoolVar(&f.json, "json", false, "print JSON")
	return cmd
}

func (a *app) approve(cmd *cobra.Command, f *shipFlags, o ship.ApproveOptions, args []string, out string, yes bool) error {
	for flag, v := range map[string]string{"as": o.Approver, "key": o.Key, "purpose": o.Purpose} {
		if v == "" {
			return usagef("carboy ship approve --help has an example", "approve: --%s is missing", flag)
		}
	}
	var err error
	if o.Plans, err = readPlans(args); err != nil {
		return err
	}
	for _, b := range o.Plans {
		if _, _, err := plan.Decode(b); err != nil {
			return exitcode.With(exitcode.Unapprovable, err)
		}
	}
	if out == "" {
		out = args[0] + ".approval." + url.PathEscape(o.Approver) + ".json" // no two people have one
	}
	return a.shipping(cmd, f, func(ctx context.Context, s *carboy.Shipper) error {
		for _, b := range o.Plans {
			p, digest, err := plan.Decode(b)
			if err != nil {
				return err
			}
			w := a.shownTo(a.stderr)
			a.showPlan(w, p, digest)
			a.showDiff(ctx, w, s, b)
		}
		if !yes {
			if !isTerminal(a.stdin) || !isTerminal(a.stderr) {
				return usagef("look at the plan; --yes signs it without asking", "approve: there is no terminal to ask on")
			}
			fmt.Fprint(a.stderr, "carboy: sign this? [y/N] ")
			answer, err := a.line()
			if err != nil {
				return err
			}
			if !slices.Contains([]string{"y", "yes"}, strings.ToLower(strings.TrimSpace(answer))) {
				return errors.New("nothing was signed")
			}
		}
		signed, err := s.Approve(ctx, o)
		if err != nil {
			return err
		}
		if err := errors.Join(store.WriteFile(out+".sig", signed.Signature, 0o644), store.WriteFile(out, signed.Statement, 0o644)); err != nil {
			return err
		}
		counts := s.Counts(ctx, signed)
		if counts != nil {
			a.say(redText, "on this machine it does not count: %s", errorLine(counts))
		}
		if f.json {
			return a.printJSON(struct {
				Schema    string          `json:"schema"`
				Code      int             `json:"code"`
				Digest    string          `json:"digest"`
				File      string          `json:"file"`
				Counts    bool            `json:"counts"` // on this machine
				Statement json.RawMessage `json:"statement"`
			}{"carboy.dev/ship-approved/v1", exitcode.OK, signed.Digest(), out, counts == nil, signed.Statement})
		}
		a.say(greenText, "wrote %s and its signature %s.sig", safetext.Path([]byte(out)), safetext.Path([]byte(out)))
		return nil
	})
}

const shipStatusLong = `Show the state of modules on their hosts: what runs is compared with what was applied
last, and then with this commit. The exit code is 0 only if all is current:

  current          as applied, and as this commit says
  behind           as applied; this commit differs
  absent           no container is there
  exited           as applied, and does not run
  unhealthy        as applied; its healthcheck fails
  drifted          a file was changed, or what runs is not what was applied last
  unapproved       something runs that no record has
  orphaned         as applied; this commit does not have the module there any more
  rollback-failed  an apply failed, and so did going back
  unreachable      the host does not answer

The others have codes of their own (docs/exit-codes.md).

An apply that was interrupted, because the host or its shell died, is first finished or
rolled back, and recorded.`

func (a *app) shipStatusCmd() *cobra.Command {
	f := &shipFlags{}
	cmd := &cobra.Command{
		Use: "status [MODULE]", Short: "show the state of modules on their hosts", Long: shipStatusLong,
		Example: "  carboy ship status\n  carboy ship status --host prod1\n  carboy ship status web --json",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("carboy ship status web", "status: wanted one module, got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.shipStatus(cmd, f, args) },
	}
	f.add(cmd)
	f.addHosts(cmd)
	return cmd
}

func (a *app) shipStatus(cmd *cobra.Command, f *shipFlags, modules []string) error {
	return a.shipping(cmd, f, func(ctx context.Context, s *carboy.Shipper) error {
		all, err := func() ([]carboy.ShipStatus, error) {
			if len(modules) == 0 {
				return s.StatusAll(ctx, f.hosts...)
			}
			return s.Status(ctx, modules[0], f.hosts...)
		}()
		if err != nil {
			return err
		}
		a.code = statusCode(all)
		if f.json {
			return a.printJSON(struct {
				Schema string              `json:"schema"`
				Code   int                 `json:"code"`
				Status []carboy.ShipStatus `json:"status"`
			}{"carboy.dev/ship-status/v1", a.code, all})
		}
		w := a.shown()
		for _, st := range all {
			showStatus(w, st)
		}
		return nil
	})
}

// showStatus prints the state of a module on a host, and the next step.
func showStatus(w io.Writer, st carboy.ShipStatus) {
	fmt.Fprintf(w, "%s on %s: %s", st.Module, st.Host, st.State)
	if st.Health != "" {
		fmt.Fprintf(w, " (%s)", safetext.String(st.Health, 80))
	}
	if st.Restarts > 0 {
		fmt.Fprintf(w, ", restarted %d times since", st.Restarts)
	}
	if st.Applied != "" {
		fmt.Fprintf(w, ", applied %.12s at %s by %s", st.Applied, st.At.Format(time.RFC3339), first(st.By, "somebody"))
	}
	if st.Imported != nil && st.Applied == "" {
		fmt.Fprintf(w, ", an earlier tool says it applied %.12s", st.Imported.Commit)
	}
	fmt.Fprintln(w)
	if st.Settled != nil {
		fmt.Fprintf(w, "  an apply of %.12s was interrupted: %s, %s\n", st.Settled.Commit, st.Settled.Outcome, st.Settled.Why)
	}
	for _, l := range []string{st.Why, st.Error} {
		if l != "" {
			fmt.Fprintf(w, "  %s\n", l)
		}
	}
	for _, c := range st.Changes {
		fmt.Fprintf(w, "  %s %s\n", c.What, safetext.String(c.Action+": "+c.Why, 300))
	}
	if st.Next != "" {
		fmt.Fprintf(w, "  next: %s\n", st.Next)
	}
}

// statusCode returns the exit code of hosts' statuses.
func statusCode(all []carboy.ShipStatus) int {
	var codes []int
	for _, st := range all {
		if st.Err != nil {
			codes = append(codes, shipCode(st.Err))
		} else {
			codes = append(codes, exitcode.OfStatus(st.State))
		}
		if st.Settled != nil {
			codes = append(codes, exitcode.OfSettled(st.Settled.Outcome))
		}
	}
	return exitcode.WorstShip(codes...)
}

func (a *app) shipHistoryCmd() *cobra.Command {
	f, show := &shipFlags{}, ""
	cmd := &cobra.Command{
		Use: "history MODULE", Short: "show what was applied, and who approved it", Args: moduleArg,
		Long:    "Show what was applied of a module on all its hosts, newest first, from the records here\nand on the hosts. --show also prints the steps of one plan, and why it was not healthy: the\nlast that the service, its healthcheck or Docker wrote.",
		Example: "  carboy ship history web\n  carboy ship history web --show 9c8829275beb\n  carboy ship history web --json",
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("show") && len(show) < minPlanPrefix {
				return usagef("carboy ship history web --show 9c8829275beb", "history: --show takes at least %d characters of a plan's digest", minPlanPrefix)
			}
			return a.shipHistory(cmd, f, args[0], show)
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&show, "show", "", "show all of one `PLAN`, by the beginning of its digest")
	return cmd
}

// minPlanPrefix is the least part of a plan's digest that names it.
const minPlanPrefix = 6

// shipProblem is the JSON output of a host that could not be asked.
type shipProblem struct {
	Code   int    `json:"code"`
	Error  string `json:"error"`
	Advice string `json:"advice,omitempty"`
}

func (a *app) shipHistory(cmd *cobra.Command, f *shipFlags, id, show string) error {
	return a.shipping(cmd, f, func(ctx context.Context, s *carboy.Shipper) error {
		entries, problems, err := s.History(ctx, id)
		if err != nil {
			return err
		}
		hosts := []shipProblem{}
		for _, p := range problems {
			a.say(plainText, "%s", errorLine(p))
			hosts = append(hosts, shipProblem{shipCode(p), p.Error(), advice(p)})
			a.code = exitcode.WorstShip(a.code, shipCode(p))
		}
		if show != "" {
			entries = slices.DeleteFunc(entries, func(x carboy.ShipEntry) bool { return !strings.HasPrefix(x.Plan, show) })
			if len(entries) == 0 {
				return fmt.Errorf("no record of %s is of a plan that begins with %.64q", id, show)
			}
		}
		if f.json {
			if entries == nil {
				entries = []carboy.ShipEntry{}
			}
			return a.printJSON(struct {
				Schema   string             `json:"schema"`
				Code     int                `json:"code"`
				Entries  []carboy.ShipEntry `json:"entries"`
				Problems []shipProblem      `json:"problems"`
			}{"carboy.dev/ship-history/v1", a.code, entries, hosts})
		}
		w := a.shown()
		for _, x := range entries {
			showEntry(w, x)
			if show != "" {
				for _, l := range slices.Concat(x.Steps, x.Evidence) {
					fmt.Fprintf(w, "    %s\n", l)
				}
			}
		}
		return nil
	})
}

// showEntry prints one entry of a history.
func showEntry(w io.Writer, x carboy.ShipEntry) {
	var by []string
	for _, p := range x.Approvals {
		word := ""
		if !p.Verified {
			word = ", NOT VERIFIED"
		}
		if p.Review != "" {
			by = append(by, fmt.Sprintf("%s (%s, as was told)", p.Approver, p.Review))
			continue
		}
		by = append(by, fmt.Sprintf("%s (%s%s)", p.Approver, p.Purpose, word))
	}
	if x.Outcome == ship.TookOver {
		fmt.Fprintf(w, "%s  %-15s %.12s on %s: %s\n", x.Began.Format(time.RFC3339), x.Outcome, x.Commit, x.Host, x.Why)
		return
	}
	fmt.Fprintf(w, "%s  %-15s %s %.12s on %s, plan %.12s, approved by %s\n", x.Began.Format(time.RFC3339), x.Outcome, x.Kind, x.Commit, x.Host, x.Plan, first(strings.Join(by, ", "), "nobody"))
	if x.Why != "" {
		fmt.Fprintf(w, "    %s\n", x.Why)
	}
}

const shipInitLong = `Write example files with comments: hosts.yaml and allowed_signers into your
configuration directory, and, if you name a module, modules/MODULE/module.yaml and
compose.yaml into this repository. It never overwrites a file.`

func (a *app) shipInitCmd() *cobra.Command {
	f := &shipFlags{}
	cmd := &cobra.Command{
		Use: "init [MODULE]", Short: "write example files", Long: shipInitLong, Example: "  carboy ship init\n  carboy ship init web",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("carboy ship init web", "init: wanted one module, got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.shipping(cmd, f, func(_ context.Context, s *carboy.Shipper) error {
				wrote, err := s.Example(first(args...))
				for _, name := range wrote {
					a.say(greenText, "wrote %s", safetext.Path([]byte(name)))
				}
				if err == nil && len(wrote) == 0 {
					a.say(plainText, "everything is there already")
				}
				return err
			})
		},
	}
	return cmd
}
