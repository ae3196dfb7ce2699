//go:build linux

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/carboy/carboy"
)

const execLong = `Run another command in a running bottle, to look around or to work beside its command.
It has the same user, files and processes, and shares the run's limits and network. It
ends with the run.

The audit log and the run's receipt record it. The exit code is the command's own, as
with carboy run. A second interrupt kills the command; the bottle continues.`

func (a *app) execCmd() *cobra.Command {
	var tty, interactive, quiet bool
	environ := list{name: "NAME[=VALUE]", eg: "CI=1"}
	cmd := &cobra.Command{
		Use: "exec [flags] RUN -- COMMAND [ARG...]", Short: "run another command in a running bottle", Long: execLong, GroupID: "main",
		Example:               "  carboy exec 01k9x3m7 -- ps -ef\n  carboy exec -it 01k9x3m7 -- bash",
		DisableFlagsInUseLine: true, ValidArgsFunction: a.completeRuns,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usagef("write both: carboy exec RUN -- ps -ef", "exec: no run, or no command")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			command := args[1:]
			if command[0] == "--" {
				command = command[1:]
			}
			if len(command) == 0 {
				return usagef("write both: carboy exec RUN -- ps -ef", "exec: no command")
			}
			o := carboy.ExecOptions{Command: command, Env: environ.values, Terminal: tty}
			return a.exec(cmd.Context(), args[0], o, interactive, quiet)
		},
	}
	fl := cmd.Flags()
	fl.SetInterspersed(false)
	fl.SortFlags = false
	fl.Var(&environ, "env", "set a variable, or pass the host's; repeatable")
	fl.BoolVarP(&interactive, "interactive", "i", false, "give the command this standard input, even if it is a terminal")
	fl.BoolVarP(&quiet, "quiet", "q", false, "don't say how the command ended")
	fl.BoolVarP(&tty, "tty", "t", false, "give the command a terminal (implies -i); Enter ~ . kills it")
	return cmd
}

func (a *app) exec(ctx context.Context, ref string, o carboy.ExecOptions, interactive, quiet bool) error {
	if o.Terminal && !isTerminal(a.stdin) {
		return usagef("leave out -t, or start carboy in a terminal", "exec: --tty needs a terminal as standard input")
	}
	// In the background, the shell would stop this process, but not the run's
	// supervisor, which reads the terminal.
	if (o.Terminal || interactive) && isTerminal(a.stdin) {
		if fg, err := foreground(a.stdin); err == nil && !fg {
			return usagef("start it in the foreground, or leave out -i and -t", "exec: -i and -t need the terminal, but this process is in its background")
		}
	}
	files, drop, err := standardStreams(a)
	if err != nil {
		return err
	}
	defer drop()
	o.Stdin, o.Stdout, o.Stderr = files[0], files[1], files[2]
	if isTerminal(a.stdin) && !interactive && !o.Terminal {
		null, err := os.Open(os.DevNull)
		if err != nil {
			return err
		}
		defer null.Close()
		o.Stdin = null
	}
	c, err := carboy.Open(ctx, carboy.Options{Env: a.env, Config: a.config, Quick: true})
	if err != nil {
		return err
	}
	defer c.Close()
	m, err := a.findRunning(ctx, c, ref)
	if err != nil {
		return err
	}
	interrupts, resize := make(chan os.Signal, 4), make(chan os.Signal, 1)
	signal.Notify(interrupts, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(interrupts)
	signal.Notify(resize, syscall.SIGWINCH)
	defer signal.Stop(resize)
	o.Interrupt, o.Resize = interrupts, resize
	if o.Terminal {
		// A supervisor that dies does not restore the terminal.
		if state, err := term.GetState(int(a.stdin.Fd())); err == nil {
			defer term.Restore(int(a.stdin.Fd()), state)
		}
	}
	exit, err := c.Exec(ctx, m, o)
	if err != nil {
		return err
	}
	a.code = exit.Code
	if exit.Error != "" && !quiet {
		a.say(plainText, "%s", errorText(exit.Error))
	}
	if a.code != 0 {
		return errReported
	}
	return nil
}
