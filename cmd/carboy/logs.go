//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

const logsLong = `Print the standard output and error of a run, as far as they were kept. Control
characters are escaped. --raw prints the bytes as they were: then the bottle controls
your terminal.`

// logNames lists the logs that a run may have. With a terminal, standard output and error
// are one log. Commands of carboy exec have their own logs.
var logNames = []string{"stdout", "stderr", "terminal", "exec-stdout", "exec-stderr", "exec-terminal"}

func (a *app) logsCmd() *cobra.Command {
	var raw bool
	var service string
	only := append(append([]string{}, logNames...), "git")
	which := choice{name: "LOG", of: only}
	cmd := &cobra.Command{
		Use: "logs [RUN]", Short: "print the output of a run", Long: logsLong, GroupID: "look",
		Example: "  carboy logs\n  carboy logs --only stderr 01k9x3m7\n  carboy logs --only git reviewer\n  carboy logs --service db reviewer",
		Args:    atMostRun, ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				m, err := find(ctx, c, arg(args))
				if err != nil {
					return err
				}
				names := logNames
				switch {
				case which.value != "":
					names = []string{which.value}
				case service != "" && !policy.ServiceName(service):
					return usagef("carboy receipt names them", "logs: %.40q is no name of a service", service)
				case service != "":
					names = []string{store.ServiceLog(service)}
				}
				return a.printLogs(c, m, names, raw)
			})
		},
	}
	cmd.Flags().Var(&which, "only", "only this one: stdout, stderr or terminal, or the same of carboy exec: exec-stdout and so on; or git, what went through the git gate")
	cmd.Flags().StringVar(&service, "service", "", "only the output of a bottle's service `NAME`")
	cmd.MarkFlagsMutuallyExclusive("only", "service")
	cmd.Flags().BoolVar(&raw, "raw", false, "print the bytes as they were")
	cmd.RegisterFlagCompletionFunc("only", cobra.FixedCompletions(only, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) printLogs(c *carboy.Client, m store.Meta, names []string, raw bool) error {
	found := false
	for _, name := range names {
		f, err := c.Log(m.ID, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("logs of run %s: %w", m.ID, err)
		}
		found = true
		err = a.copyOut(f, raw)
		f.Close()
		if err != nil {
			return fmt.Errorf("logs of run %s: %w", m.ID, err)
		}
	}
	if !found {
		a.say(plainText, "run %s has no logs", m.ID)
	}
	return nil
}

func (a *app) copyOut(r io.Reader, raw bool) error {
	if raw {
		_, err := io.Copy(a.stdout, r)
		return err
	}
	v := safetext.NewWriter(a.shown(), safetext.Options{})
	if _, err := io.Copy(v, r); err != nil {
		return err
	}
	return v.Close()
}
