//go:build linux

package main

import (
	"context"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/exitcode"
)

const attachLong = `Show the latest and further output of a running bottle's command. If the command has a
terminal and this is one, it also gets your keys: two people can work on one screen.
The screen keeps the size of the terminal in which the command was started.

Enter ~ . ends attach, and so does the end of the run. The command continues.`

func (a *app) attachCmd() *cobra.Command {
	var look bool
	cmd := &cobra.Command{
		Use: "attach [BOTTLE|RUN]", Short: "watch a running bottle, and type into it", Long: attachLong, GroupID: "main",
		Example: "  carboy attach reviewer\n  carboy attach reviewer --look",
		Args:    atMostRun, ValidArgsFunction: a.completeBottles(carboy.BottleRunning),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				m, err := a.findRunning(ctx, c, arg(args))
				if err != nil {
					return err
				}
				o := carboy.AttachOptions{Stdout: a.stdout}
				if !look && isTerminal(a.stdin) && isTerminal(a.stdout) {
					o.Stdin = a.stdin
				}
				ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
				defer stop()
				err = c.Attach(ctx, m, o)
				if ctx.Err() != nil {
					return exitcode.Interrupted(syscall.SIGINT, errReported)
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&look, "look", false, "only look")
	return cmd
}
