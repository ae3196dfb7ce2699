//go:build linux

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/ship"
	"github.com/carboy/carboy/internal/ship/remote"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/supervise"
)

// usageError is the error of an invalid command line.
type usageError struct {
	err error
	tip string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// ExitClass lets package exitcode choose the exit code.
func (e *usageError) ExitClass() exitcode.Class { return exitcode.WrongUsage }

func usagef(tip, format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...), tip}
}

// advisedError is an error with advice that only one command can give.
type advisedError struct {
	err error
	tip string
}

func (e *advisedError) Error() string { return e.err.Error() }
func (e *advisedError) Unwrap() error { return e.err }

// advice says what a person can do about err, or returns "". It looks at types and
// sentinels, never at texts.
func advice(err error) string {
	var (
		usage       *usageError
		advised     *advisedError
		option      *carboy.OptionError
		unavailable *bottle.UnavailableError
		weak        *bottle.TooWeakError
		dir         *store.DirError
		busy        *store.BusyError
		ambiguous   *store.AmbiguousError
		corrupt     *store.CorruptError
		newer       *store.SchemaError
		workspace   *change.WorkspaceError
		conflict    *change.ConflictError
		missing     *manifest.MissingError
		tampered    *carboy.TamperedError
		keys        *carboy.KeysLeftError
		key         *carboy.DeployKeyError
		shipped     *carboy.ShipError
	)
	switch {
	case errors.As(err, &usage):
		return usage.tip
	case errors.As(err, &advised):
		return advised.tip
	case errors.As(err, &option) && option.Advice != "":
		return option.Advice
	case errors.As(err, &unavailable):
		return first(unavailable.Advice, "carboy doctor shows what is missing, carboy doctor --fix what to do")
	case errors.As(err, &weak):
		return weak.Advice()
	case errors.As(err, &shipped) && shipped.Outcome == ship.Failed && errors.Is(err, ship.ErrDeadline):
		return "find what hangs there (its registry, its disk, docker itself), or make a new plan and apply it with a longer --up-timeout"
	case errors.As(err, &shipped) && shipped.Advice != "":
		return shipped.Advice
	case errors.As(err, &dir) && dir.Advice != "":
		return dir.Advice
	case errors.As(err, &tampered):
		return "who changed it? carboy resume --files leaves the processes out; carboy destroy gives up all that is kept"
	case errors.As(err, &keys):
		return keys.Advice()
	case errors.As(err, &key):
		return key.Advice()
	case errors.As(err, &missing):
		return missing.Advice
	case errors.As(err, &busy):
		return "wait until that run is over (carboy list shows it), or run in another directory"
	case errors.As(err, &ambiguous):
		return "type more of the id"
	case errors.As(err, &corrupt):
		return "the record is kept as it is; look at the file, or move the directory away"
	case errors.As(err, &newer):
		return "it was written by another version of carboy; use that one"
	case errors.As(err, &workspace):
		return "" // its text has the advice
	case errors.As(err, &conflict) && conflict.Op == "undo" && ofGit(conflict):
		return "" // its text has the advice
	case errors.As(err, &conflict) && conflict.Op == "undo":
		return "undo never overwrites later edits; put those files back or edit them by hand"
	case errors.As(err, &conflict):
		return "nothing was landed; carboy diff shows both, and carboy land PATH… takes only what you name"
	}
	return adviceOn(err)
}

// ofGit reports whether all conflicts are of git's references, and so say what to do.
func ofGit(e *change.ConflictError) bool {
	return len(e.Conflicts) > 0 && !slices.ContainsFunc(e.Conflicts, func(c change.Conflict) bool { return !strings.Contains("/"+c.Path, "/.git/") })
}

// adviceOn returns the advice for sentinel errors.
func adviceOn(err error) string {
	for _, x := range []struct {
		err error
		tip string
	}{
		{bottle.ErrNotFound, "only the host's system directories are inside; --mount SRC:DST:ro adds another, --rootfs replaces them"},
		{bottle.ErrNotExecutable, "inside it needs execute permission, and an interpreter that is inside too"},
		{store.ErrNoRuns, "begin with carboy run -- COMMAND, or name a run of another directory, which carboy list shows"},
		{store.ErrNotFound, "carboy list shows the runs; without a name the newest run of this directory is taken"},
		{store.ErrLive, "wait for the run, or interrupt it twice"},
		{store.ErrUnlanded, "carboy land takes the changes; carboy gc --unlanded gives them up"},
		{store.ErrNoBottle, "carboy list --bottles shows those that there are"},
		{store.ErrBottleBusy, "it runs: carboy exec reaches into it, carboy freeze stops it and keeps it"},
		{supervise.ErrNotFound, "carboy supervise list --all shows those that there are"},
		{supervise.ErrDigest, "carboy supervise show shows what waits now"},
		{supervise.ErrExpired, "nothing was allowed; whoever asked may ask again"},
		{supervise.ErrGone, "nothing was allowed; the bottle is over"},
		{supervise.ErrSigned, "carboy supervise reject ends the waiting"},
		{supervise.ErrNotModifiable, "carboy supervise approve or reject"},
		{carboy.ErrNotKept, "carboy destroy removes its record, and carboy start begins anew"},
		{carboy.ErrNotLive, "carboy list shows which runs go on"},
		{carboy.ErrNoRepository, "carboy ships and judges commits: change into the repository, or git init"},
		{remote.ErrHostKey, "find out why before anything else: the machine was set up anew, or it is another one; hosts.yaml has the pinned keys"},
		{remote.ErrUnreachable, "can you reach it with ssh, as the user of hosts.yaml?"},
		{ship.ErrUnknown, "the host goes on by itself; carboy ship status tells how it ended"},
		{change.ErrWorkspaceReplaced, "the directory of that run is gone, so nothing can be landed there"},
		{change.ErrBusy, "try again when it is done"},
		{change.ErrNoSuchChange, "carboy diff --stat lists the paths; --include-refs names references of git"},
		{change.ErrProtected, "look at the diff; if you want it, say --include-protected and name the path"},
		{change.ErrIncomplete, "the receipt says what is missing; --allow-incomplete lands the rest"},
		{change.ErrNothingToUndo, "carboy list shows which runs were landed"},
		{change.ErrCorrupt, "the run's record was changed by something else than carboy; nothing was landed"},
	} {
		if errors.Is(err, x.err) {
			return x.tip
		}
	}
	return ""
}

func first(s ...string) string {
	for _, x := range s {
		if x != "" {
			return x
		}
	}
	return ""
}

// flagError turns pflag's errors into usage errors that name the flag that was meant.
func flagError(cmd *cobra.Command, err error) error {
	tip := cmd.CommandPath() + " --help lists the flags"
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		if near := nearestFlag(cmd, unknown.GetSpecifiedName()); near != "" {
			tip = "did you mean --" + near + "?"
		}
	}
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		err = fmt.Errorf("--%s %q: %w", invalid.GetFlag().Name, invalid.GetValue(), errors.Unwrap(err))
		tip = ""
		if v, ok := invalid.GetFlag().Value.(exampled); ok {
			tip = "for example --" + invalid.GetFlag().Name + " " + v.example()
		}
	}
	return &usageError{err, tip}
}

// exampled is a flag value that can give an example.
type exampled interface{ example() string }

// nearestFlag returns the flag whose name is most similar.
func nearestFlag(cmd *cobra.Command, name string) string {
	best, at := "", 3
	visit := func(f *pflag.Flag) {
		d := distance(name, f.Name)
		if strings.HasPrefix(f.Name, name) && len(name) > 1 {
			d = min(d, 1)
		}
		if d < at && !f.Hidden {
			best, at = f.Name, d
		}
	}
	cmd.Flags().VisitAll(visit)
	cmd.InheritedFlags().VisitAll(visit)
	return best
}

// distance returns the Levenshtein distance of two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diag, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diag+cost)
		}
	}
	return row[len(b)]
}
