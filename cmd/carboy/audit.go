//go:build linux

package main

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/safetext"
)

func (a *app) auditCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "audit", Short: "check the log of decisions", GroupID: "keep", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.auditVerifyCmd())
	return cmd
}

const verifyLong = `Check the audit log offline: every record must be as it was signed, in order and
complete, and the log must agree with the checkpoints that runs keep. Without --key
it uses the public key beside the log, which proves only that one key signed all of
it. Keep the key elsewhere to prove that it was yours.`

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

// rootHex converts a root hash from base64, as in checkpoints, to hexadecimal digits, as
// in receipts.
func rootHex(s string) string {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return safetext.String(s, 200)
	}
	return hex.EncodeToString(b)
}

func (a *app) printReport(r audit.Report) {
	fmt.Fprintf(a.stdout, "%s: %s, %d signed by %s, %s\n", r.Status, number(int(r.Records), "record", "records"), r.Signed,
		number(int(r.Checkpoints), "checkpoint", "checkpoints"), number(int(r.Anchors), "anchor agrees", "anchors agree"))
	if r.Root != "" {
		fmt.Fprintf(a.stdout, "root    %s\n", rootHex(r.Root))
	}
	fmt.Fprintf(a.stdout, "key     %s\nlog     %s\n", safetext.String(r.Key, 300), safetext.Path([]byte(r.Dir)))
	if !r.KeyGiven {
		fmt.Fprintln(a.stdout, "        (the key beside the log; give --key to check against one that you keep)")
	}
	for _, f := range r.Findings {
		where := "log"
		if f.Record >= 0 {
			where = fmt.Sprintf("record %d", f.Record)
		}
		fmt.Fprintf(a.stdout, "%s: %s\n", where, safetext.String(f.Text, 500))
	}
}
