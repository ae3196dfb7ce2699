// Command diffcover says which new lines no test reaches.
//
//	go test -coverprofile=cover.out ./internal/policy ./internal/scan/...
//	go run ./internal/tools/diffcover -profile cover.out internal/policy,internal/scan/...
//
// It compares the working tree with a base: -base, or the merge base with
// origin/main, or the commit before HEAD. It names the new lines that the
// profile has as not covered, and fails with exit code 1 when in the packages
// named
//
//   - less than -new percent of the new statements are covered, or
//   - less than -floor percent of all statements of one package are covered, or
//     the profile does not have that package.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
)

func main() { os.Exit(run(os.Args[1:], ".", os.Stdout, os.Stderr)) }

func run(args []string, dir string, out, msg io.Writer) int {
	fs := flag.NewFlagSet("diffcover", flag.ContinueOnError)
	fs.SetOutput(msg)
	profile := fs.String("profile", "", "the `FILE` that go test -coverprofile wrote")
	base := fs.String("base", "", "the `COMMIT` to compare with")
	fresh := fs.Float64("new", 90, "the `PERCENT` of new statements to be covered")
	floor := fs.Float64("floor", 90, "the `PERCENT` of all statements to be covered, of each package")
	if err := fs.Parse(args); err != nil || *profile == "" || fs.NArg() != 1 {
		fmt.Fprintln(msg, "usage: diffcover -profile FILE [-base COMMIT] [-new PERCENT] [-floor PERCENT] PACKAGE[,PACKAGE...]")
		return 2
	}
	ok, err := judge(dir, *profile, *base, *fresh, *floor, strings.Split(fs.Arg(0), ","), out)
	switch {
	case err != nil:
		fmt.Fprintln(msg, "diffcover:", err)
		return 2
	case !ok:
		return 1
	}
	return 0
}

// judge prints what it finds and reports whether it is enough.
func judge(dir, profile, base string, fresh, floor float64, packages []string, out io.Writer) (bool, error) {
	module, err := moduleOf(dir)
	if err != nil {
		return false, err
	}
	blocks, err := readProfile(profile, module)
	if err != nil {
		return false, err
	}
	commit, how, err := baseOf(dir, base)
	if err != nil {
		return false, err
	}
	ok := true
	if commit == "" {
		fmt.Fprintln(out, "base: none,", how+": new lines are not looked at")
	} else {
		fmt.Fprintf(out, "base: %.12s, %s\n", commit, how)
		added, err := addedLines(dir, commit)
		if err != nil {
			return false, err
		}
		ok = judgeNew(blocks, added, packages, fresh, out)
	}
	return judgeFloor(blocks, packages, floor, out) && ok, nil
}

// judgeNew names the new lines that are not covered, in any package, and
// reports whether enough statements of the packages named are.
func judgeNew(blocks []block, added map[string]lines, packages []string, least float64, out io.Writer) bool {
	uncovered := map[string]lines{}
	var covered, all int
	for _, b := range blocks {
		within := added[b.file].within(b.from, b.to)
		if len(within) == 0 {
			continue
		}
		if b.count == 0 {
			uncovered[b.file] = append(uncovered[b.file], within...)
		}
		if named(packages, path.Dir(b.file)) {
			// Of a block that is new in part, as many statements as it has new lines.
			n := min(b.statements, len(within))
			all += n
			if b.count > 0 {
				covered += n
			}
		}
	}
	for _, file := range sortedKeys(uncovered) {
		for _, r := range uncovered[file].ranges() {
			fmt.Fprintf(out, "not covered: %s:%s\n", file, r)
		}
	}
	share := percent(covered, all)
	fmt.Fprintf(out, "new statements: %d of %d covered, %.1f%% (at least %g%%)\n", covered, all, share, least)
	return share >= least
}

// judgeFloor prints each package's share and reports whether all are high
// enough.
func judgeFloor(blocks []block, packages []string, least float64, out io.Writer) bool {
	covered, all := map[string]int{}, map[string]int{}
	for _, b := range blocks {
		if p := path.Dir(b.file); named(packages, p) {
			all[p] += b.statements
			if b.count > 0 {
				covered[p] += b.statements
			}
		}
	}
	ok := true
	for _, p := range sortedKeys(all) {
		share, verdict := percent(covered[p], all[p]), ""
		if share < least {
			ok, verdict = false, "  TOO LITTLE"
		}
		fmt.Fprintf(out, "%-32s %5.1f%% (at least %g%%)%s\n", p, share, least, verdict)
	}
	for _, pattern := range packages {
		if !slices.ContainsFunc(sortedKeys(all), func(p string) bool { return named([]string{pattern}, p) }) {
			ok = false
			fmt.Fprintf(out, "%-32s is not in the profile\n", pattern)
		}
	}
	return ok
}

// named reports whether a package is one of packages: "internal/scan" is that
// package alone, "internal/scan/..." those below it too.
func named(packages []string, p string) bool {
	return slices.ContainsFunc(packages, func(pattern string) bool {
		below, all := strings.CutSuffix(pattern, "/...")
		return p == below || all && strings.HasPrefix(p, below+"/")
	})
}

// percent of nothing is 100.
func percent(part, whole int) float64 {
	if whole == 0 {
		return 100
	}
	return 100 * float64(part) / float64(whole)
}

// baseOf chooses the commit to compare with, and says how. It returns none
// where there is only one commit, as in a shallow clone, or no repository.
func baseOf(dir, given string) (commit, how string, err error) {
	if given != "" {
		commit, err = git(dir, "merge-base", given, "HEAD")
		return commit, "the merge base with " + given, err
	}
	head, err := git(dir, "rev-parse", "HEAD")
	if err != nil {
		return "", "since git knows no commit here", nil
	}
	main, err := git(dir, "merge-base", "origin/main", "HEAD")
	if err == nil && main != head {
		return main, "the merge base with origin/main", nil
	}
	why := "there is no merge base with origin/main"
	if err == nil {
		why = "HEAD is in origin/main"
	}
	if commit, err = git(dir, "rev-parse", "--verify", "--quiet", "HEAD~1"); err != nil {
		return "", "since " + why + ", and no commit is before HEAD", nil
	}
	return commit, "the commit before HEAD, since " + why, nil
}

// git runs git in dir, whoever owns it.
func git(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-c", "safe.directory=*", "-c", "core.quotePath=false"}, args...)...)
	cmd.Dir = dir
	text, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(string(exit.Stderr)))
	}
	return strings.TrimSpace(string(text)), err
}
