//go:build linux

package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/safetext"
)

const cpLong = `Copy a file or directory out of a running bottle, or into it. BOTTLE is a run or a
bottle's name. A path of this machine that contains a colon must begin with ./ or /.

A copy out of the bottle is treated as hostile. It gets a new name in the directory that
you name, or the name that you give, and overwrites nothing. Links that lead out of the
copy, devices, pipes, invisible names and set-user-id bits are left out and listed. The
copy arrives whole or not at all. A copy into the bottle belongs to the bottle's user.

The bottle must have tar. The audit log and the run's receipt record the copy, as they
record carboy exec.`

func (a *app) cpCmd() *cobra.Command {
	var most size
	var quiet bool
	cmd := &cobra.Command{
		Use: "cp BOTTLE:PATH DEST | cp SRC BOTTLE:PATH", GroupID: "main",
		Short: "copy files out of a running bottle, or into it", Long: cpLong,
		Example:               "  carboy cp reviewer:report.html .\n  carboy cp 01k9x3m7:/tmp/core ./core\n  carboy cp fixtures/ reviewer:/tmp/",
		DisableFlagsInUseLine: true, ValidArgsFunction: a.completeRuns,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("carboy cp BOTTLE:PATH DEST, or carboy cp SRC BOTTLE:PATH", "cp: wanted two paths, got %d", len(args))
			}
			from, _, out := inBottle(args[0])
			to, _, in := inBottle(args[1])
			switch {
			case out && in:
				return usagef("copy it here first", "cp: %s and %s are both bottles", safetext.String(from, 80), safetext.String(to, 80))
			case !out && !in:
				return usagef("carboy cp BOTTLE:PATH DEST, or carboy cp SRC BOTTLE:PATH", "cp: neither path is in a bottle")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd, func(ctx context.Context, c *carboy.Client) error {
				return a.copy(ctx, c, args[0], args[1], carboy.CopyLimits{Bytes: int64(most)}, quiet)
			})
		},
	}
	cmd.Flags().Var(&most, "max-bytes", "the most that is copied, such as 1GiB (default 10GiB)")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only errors and what was left out")
	return cmd
}

// inBottle splits BOTTLE:PATH.
func inBottle(s string) (ref, path string, ok bool) {
	ref, path, ok = strings.Cut(s, ":")
	return ref, path, ok && ref != "" && ref != "." && !strings.Contains(ref, "/")
}

func (a *app) copy(ctx context.Context, c *carboy.Client, src, dest string, l carboy.CopyLimits, quiet bool) error {
	ref, path, out := inBottle(src)
	if !out {
		ref, path, _ = inBottle(dest)
	}
	if path == "" {
		return usagef("name a path after the colon", "cp: %s: has no path", safetext.String(ref, 80))
	}
	m, err := a.findRunning(ctx, c, ref)
	if err != nil {
		return err
	}
	var r carboy.Copied
	err = a.slowly(ctx, "copying", func(ctx context.Context) (err error) {
		if out {
			r, err = c.CopyOut(ctx, m, path, dest, l)
		} else {
			r, err = c.CopyIn(ctx, m, src, path, l)
		}
		return err
	})
	if ctx.Err() != nil {
		return carboy.ErrInterrupted
	}
	if err != nil {
		return err
	}
	for _, s := range r.Left {
		a.say(plainText, "left out: %s", s)
	}
	if r.More > 0 {
		a.say(plainText, "left out: %d more", r.More)
	}
	if !quiet {
		a.say(greenText, "copied %s, %s", number(int(r.Entries)-len(r.Left)-int(r.More), "entry", "entries"), receipt.Bytes(r.Bytes))
	}
	return nil
}
