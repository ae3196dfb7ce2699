//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/forgeservice"
	"github.com/carboy/carboy/internal/provenance"
	"github.com/carboy/carboy/internal/safetext"
)

func (a *app) provenanceCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "provenance", Short: "show and verify how merged changes came to be", GroupID: "look", Args: noArgs,
		Long: `When people merge a pull request of an agent, carboy seals a record: runs and their
receipts, verdicts, what the agent asked of the forge and was refused, and reviews as
the forge told them. The record is signed with the key of the audit log.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.provenanceVerifyCmd(), a.provenanceShowCmd(), a.provenanceListCmd())
	return cmd
}

const provenanceCommits = `COMMIT is the merge commit's name or its beginning, of at least 4 digits. If several
repositories have it, write OWNER/REPO@COMMIT.`

const provenanceVerifyLong = `Check the record of a merge commit, without a network: that the key signed it, that its
form is exactly carboy's, that the audit log has its digest, and, in a git work tree
that has the commit, that commit and tree are those of the record. Then print what
carboy observed, what the forge told, what was claimed, and what nobody observed.

` + provenanceCommits + `

--file checks a file from elsewhere. Give the key of whoever sealed it with --key: the
line in audit/key.pub of their state directory. Their audit log is not here, so that a
record which they sealed and withdrew is not noticed. For a file in Sigstore's bundle
format, give the public key in PEM form.

The exit code is 0 if the record verifies, and 1 if it does not or there is none.`

// provenanceFlags holds the flags of verify and show.
type provenanceFlags struct {
	file, key string
	json      bool
}

func (f *provenanceFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.file, "file", "", "the record in this `FILE`, not the one that is kept")
	cmd.MarkFlagFilename("file", "json")
	cmd.Flags().StringVar(&f.key, "key", "", "the public `KEY` that must have signed; default: of your audit log")
}

// args checks the arguments of verify and show.
func (f *provenanceFlags) args(cmd *cobra.Command, args []string) error {
	for _, name := range []string{"file", "key"} {
		// A failed $(cat key.pub) gives "", which must not become another key.
		if x := cmd.Flags().Lookup(name); x.Changed && x.Value.String() == "" {
			return usagef("leave it out, or name one", "--%s is empty", name)
		}
	}
	switch {
	case len(args) > 1 || len(args) == 0 && f.file == "":
		return usagef("carboy provenance list shows what there is", "name one commit, or a file with --file")
	case len(args) == 1 && !provenance.ValidCommit(args[0]):
		return usagef(`write its hexadecimal digits: "$(git rev-parse HEAD)"`, "%q is no name of a commit", safetext.String(args[0], 80))
	}
	return nil
}

// verify verifies the record that the arguments name.
func (f *provenanceFlags) verify(ctx context.Context, c *carboy.Client, args []string) (*carboy.ProvenanceReport, error) {
	o := carboy.ProvenanceOptions{File: f.file, Key: f.key, WorkTree: "."}
	if len(args) == 1 {
		o.Commit = args[0]
	}
	r, err := c.VerifyProvenance(ctx, o)
	if errors.Is(err, carboy.ErrNoProvenance) {
		err = &advisedError{err, "carboy provenance list shows what there is"}
	}
	return r, err
}

var errUnverified = errors.New("the record does not verify")

func (a *app) provenanceVerifyCmd() *cobra.Command {
	f := &provenanceFlags{}
	cmd := &cobra.Command{
		Use: "verify [COMMIT]", Short: "check the record of a merge commit", Long: provenanceVerifyLong,
		Example: `  carboy provenance verify "$(git rev-parse HEAD)"
  carboy provenance verify acme/app@4bcf5b0d
  carboy provenance verify --file 4bcf5b0d.json --key "$(cat ada.pub)" "$(git rev-parse HEAD)"`,
		Args: f.args,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				r, err := f.verify(ctx, c, args)
				if err != nil {
					return err
				}
				if f.json {
					a.code = exitcode.OfCheck(r.Verified)
					return a.printJSON(r)
				}
				a.provenanceReport(a.shown(), r)
				if !r.Verified {
					return errUnverified
				}
				return nil
			})
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&f.json, "json", false, "print what was found as JSON")
	return cmd
}

func (a *app) provenanceShowCmd() *cobra.Command {
	f := &provenanceFlags{}
	cmd := &cobra.Command{
		Use: "show [COMMIT]", Short: "show the record of a merge commit",
		Long: `Show all of a record that verifies, as with carboy provenance verify. One that does not
is not shown. --json prints the facts of it; docs/schemas/provenance.v1.json describes the
statement that they stand in.

` + provenanceCommits,
		Example: "  carboy provenance show 4bcf5b0d\n  carboy provenance show 4bcf5b0d --json | jq '.operations[] | select(.outcome == \"refused\")'",
		Args:    f.args,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				r, err := f.verify(ctx, c, args)
				if err != nil {
					return err
				}
				if !r.Verified {
					for _, c := range r.Checks {
						if c.Result == provenance.Fails {
							a.say(redText, "%s: %s", c.Name, c.Text)
						}
					}
					return errUnverified
				}
				if f.json {
					return a.printJSON(struct {
						Schema string `json:"schema"`
						*carboy.ProvenanceFacts
						Sources *provenance.Sources `json:"sources"`
					}{"carboy.dev/provenance-record/v1", r.Record, r.Sources})
				}
				provenanceFacts(a.shown(), r.Record)
				provenanceSources(a.shown(), r.Sources)
				return nil
			})
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&f.json, "json", false, "print the facts as JSON")
	return cmd
}

func (a *app) provenanceListCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "list the records of merge commits, newest first", Args: noArgs,
		Long: `List the records that are kept, and those that were sealed and are gone. One that does
not verify comes first, with the reason; the exit code is then 1.`,
		Example: "  carboy provenance list\n  carboy provenance list --json | jq -r '.[].commit'",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				list, err := c.Provenances(ctx)
				if err != nil {
					return err
				}
				wrong := 0
				for _, e := range list {
					if e.Wrong != "" {
						wrong++
					}
				}
				if asJSON {
					a.code = exitcode.OfCheck(wrong == 0)
					return a.printJSON(list)
				}
				for _, e := range list {
					a.provenanceLine(a.shown(), &e)
				}
				if wrong == 0 {
					return nil
				}
				return fmt.Errorf("%s not verify", number(wrong, "record does", "records do"))
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the records as JSON")
	return cmd
}

func (a *app) provenanceLine(w io.Writer, e *carboy.ProvenanceEntry) {
	what := a.paint(a.stdout, redText, safetext.String(e.Wrong, 500))
	if e.Wrong == "" {
		what = fmt.Sprintf("%s  #%d  %s", e.Record.Merged.Format("2006-01-02 15:04"), e.Record.Pull, safetext.String(e.Record.Agent, 60))
	}
	fmt.Fprintf(w, "%.12s  %s  %s\n", e.Commit, safetext.String(e.Owner+"/"+e.Repo, 200), what)
}

// provenanceReport prints what was verified.
func (a *app) provenanceReport(w io.Writer, r *carboy.ProvenanceReport) {
	word, tone := "does not verify", redText
	if r.Verified {
		word, tone = "verified", greenText
	}
	fmt.Fprintf(w, "%s  %s\n", a.paint(a.stdout, tone, word), r.File)
	for _, c := range r.Checks {
		fmt.Fprintf(w, "  %-10s %-12s %s\n", c.Name, c.Result, safetext.String(c.Text, 2000))
	}
	fmt.Fprintf(w, "  %-10s %s\n", "key", safetext.String(strings.TrimSpace(r.Key), 1000))
	if r.SHA256 != "" {
		fmt.Fprintf(w, "  %-10s %s\n", "sha256", r.SHA256)
	}
	if r.Verified {
		fmt.Fprintf(w, "\nPull request #%d of %s/%s, merged %s.\n", r.Record.Pull, r.Record.Owner, r.Record.Repo, r.Record.Merged.Format(time.RFC3339))
		provenanceSources(w, r.Sources)
	}
}

func provenanceSources(w io.Writer, s *provenance.Sources) {
	for _, x := range []struct {
		title string
		list  []string
	}{{"carboy observed", s.Observed}, {"the forge told", s.Told}, {"the agent or a model claimed", s.Claimed}, {"not observed", s.Not}} {
		fmt.Fprintf(w, "\n%s\n", x.title)
		for _, line := range x.list {
			fmt.Fprintf(w, "  - %s\n", safetext.String(line, 1000))
		}
	}
}

// provenanceFacts prints all of a record.
func provenanceFacts(w io.Writer, f *carboy.ProvenanceFacts) {
	show := func(name, format string, x ...any) {
		fmt.Fprintf(w, "%-12s %s\n", name, safetext.String(fmt.Sprintf(format, x...), 2000))
	}
	show("repository", "%s  %s/%s", f.Forge, f.Owner, f.Repo)
	show("commit", "%s", f.Commit)
	if f.Tree != "" {
		show("tree", "%s", f.Tree)
	}
	show("pull request", "#%d, of issue #%d: %s into %s, merged %s", f.Pull, f.Issue, f.Branch, f.Base, f.Merged.Format(time.RFC3339))
	show("agent", "%s, bottles %s, slug %s, backend %s", f.Agent, strings.Join(f.Bottles, ", "), f.Slug, first(f.Backend, "unknown"))
	show("watchdog", "%s", map[bool]string{true: "stopped a silent agent", false: "had nothing to stop"}[f.Watchdog])
	for i, t := range f.Turns {
		show(fmt.Sprintf("turn %d", i+1), "%s to %s, exit %d, %s %s", t.Began.Format(time.RFC3339), t.Ended.Format(time.RFC3339), t.Exit, first(t.Outcome, "not judged"), t.Why)
		if t.Verdict != "" {
			show("  verdict", "%s, sha256 %s", t.Verdict, t.VerdictSHA256)
		}
		if t.Commit != "" {
			show("  pushed", "%s", t.Commit)
		}
		if t.Moved {
			show("  not pushed", "somebody else had pushed")
		}
		show("  tokens", "%d, claimed", t.Tokens)
		for _, r := range t.Runs {
			show("  run", "%s, exit %d %s, receipt %s", r.ID, r.Exit, r.Reason, first(r.ReceiptSHA256, "missing"))
			if r.Isolation != "" {
				show("    held by", "%s, %s", r.Backend, r.Isolation)
			}
			show("    scan", "%d out, %d in, %d blocked", r.Scan.Out, r.Scan.In, r.Scan.Blocked)
			show("    egress", "requests %d allowed, %d refused; %d bytes up, %d down; %d names: %s", r.Egress.RequestsAllowed, r.Egress.RequestsRefused, r.Egress.BytesUp, r.Egress.BytesDown, r.Egress.HostsTotal, strings.Join(r.Egress.Hosts, " "))
		}
	}
	for _, o := range f.Operations {
		if o.Outcome != forgeservice.Begun {
			show("operation", "%s %s %s: %s %s", o.At.Format(time.RFC3339), o.Operation, o.Target, o.Outcome, o.Reason)
		}
	}
	for _, r := range f.Reviews {
		show("review", "%s by %s, %s, commit %s", r.At.Format(time.RFC3339), r.By, r.State, first(r.Commit, "unknown"))
	}
}
