package main

import "github.com/spf13/cobra"

// gateCmd is the parent of what proves changes.
func (a *app) gateCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "gate", Short: "prove what a program does before it is trusted", GroupID: "main", Args: a.unknownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.gateTraceCmd())
	return cmd
}
