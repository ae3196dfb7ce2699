package hostexec

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// git gets nothing that could make it run code or reach another machine:
//
//   - Its first argument is a subcommand of the list below, each of them built in
//     and read-only. Options such as -c, --config-env, --exec-path, -C and
//     --git-dir come before the subcommand, so they cannot be given, and git never
//     looks up an alias.
//   - Every option is on the subcommand's list; an unknown one is refused.
//   - It sees a git directory that this package makes, see repo.go.

// gitCommand describes one permitted subcommand.
type gitCommand struct {
	// flags are options without a value, or with the value in the same word.
	// valued maps "--name=" prefixes to a check of the value.
	flags  []string
	valued map[string]func(string) bool
	// inject goes between the subcommand and the caller's arguments. The caller
	// cannot undo the options there, because their opposites are not listed.
	inject []string
	// bare subcommands take no revision or path.
	bare bool
	// repo is false for a subcommand that needs no repository.
	repo bool
}

var (
	// These options only choose how a difference is shown. Absent on purpose:
	// --ext-diff and --textconv (run programs), --output (writes a file),
	// --no-index (reads outside), --submodule (runs git in there, where the
	// injected configuration does not apply).
	diffFlags = []string{
		"--name-only", "--name-status", "--stat", "--numstat", "--shortstat", "--summary", "--raw", "-z",
		"-p", "-u", "--patch", "-s", "--no-patch", "--no-color", "--binary", "--full-index", "--no-renames",
		"-M", "--find-renames", "--exit-code", "--quiet", "-w", "-b", "-a", "--text", "--no-prefix",
		"--ignore-all-space", "--ignore-space-change", "--minimal", "--patience", "--histogram", "--check",
		"-r", "-t", "-m", "--cc", "--root", "--no-abbrev", "--abbrev", "-R",
	}
	diffValued = map[string]func(string) bool{
		"--unified=": isNumber, "--abbrev=": isNumber, "--find-renames=": isPercent,
		"--diff-filter=": isWord, "--diff-algorithm=": isWord, "--stat=": isNumbers,
	}
	logFlags = []string{
		"--oneline", "--graph", "--reverse", "--all", "--branches", "--tags", "--not", "--first-parent",
		"--no-merges", "--merges", "--decorate", "--no-decorate", "--parents", "--topo-order", "--date-order",
		"--follow", "--no-notes", "--abbrev-commit", "--no-abbrev-commit", "--boundary", "--left-right",
	}
	logValued = map[string]func(string) bool{
		"--max-count=": isNumber, "--skip=": isNumber, "--since=": isPlain, "--until=": isPlain,
		"--author=": isPlain, "--grep=": isPlain, "--format=": isLogFormat, "--pretty=": isLogFormat, "--date=": isDateFormat,
	}
	noHelpers = []string{"--no-ext-diff", "--no-textconv", "--ignore-submodules=all"}
)

// gitCommands is the closed list of subcommands; the decision record names the
// same ones. Among those left out are subcommands that run a program named by
// an argument or by the configuration (grep -O, archive, difftool, bisect,
// submodule, rebase), that write, or that reach another machine.
var gitCommands = map[string]gitCommand{
	"version": {flags: []string{"--build-options"}, bare: true},
	// Standard input is its only source. Reading a configuration runs nothing,
	// and includes are not followed.
	"config": {bare: true, inject: []string{"--file=-", "--no-includes", "--list", "-z"}},
	"rev-parse": {repo: true, flags: []string{
		"--verify", "-q", "--quiet", "--short", "--abbrev-ref", "--symbolic-full-name", "--show-object-format",
		"--is-inside-work-tree", "--show-toplevel", "--is-shallow-repository",
	}, valued: map[string]func(string) bool{"--short=": isNumber}},
	"rev-list": {repo: true,
		flags: []string{
			"--count", "--objects", "--parents", "--all", "--branches", "--tags", "--not", "--first-parent", "--no-merges", "--merges",
			"--reverse", "--topo-order", "--date-order", "--boundary", "--left-right",
		},
		valued: map[string]func(string) bool{"--max-count=": isNumber, "--skip=": isNumber, "--since=": isPlain, "--until=": isPlain},
	},
	// Without --filters and --textconv, which run what the configuration names.
	"cat-file": {repo: true,
		flags:  []string{"-t", "-s", "-e", "-p", "--batch", "--batch-check", "--buffer"},
		valued: map[string]func(string) bool{"--batch=": isObjectFormat, "--batch-check=": isObjectFormat},
	},
	"ls-files": {repo: true, flags: []string{
		"-z", "-s", "--stage", "-c", "--cached", "-m", "--modified", "-d", "--deleted", "-o", "--others", "-i", "--ignored",
		"-u", "--unmerged", "-t", "-v", "--exclude-standard", "--full-name", "--error-unmatch", "--directory",
	}},
	"ls-tree": {repo: true, flags: []string{"-r", "-t", "-d", "-l", "-z", "--long", "--name-only", "--object-only", "--full-tree", "--full-name"}},
	// Standard input is its only source: a path would let it read any file and
	// apply the path's filters.
	"hash-object": {repo: true, bare: true, flags: []string{"--stdin"}, inject: []string{"--no-filters"}},
	"merge-base":  {repo: true, flags: []string{"--all", "--is-ancestor", "--octopus", "--independent"}},
	"for-each-ref": {repo: true,
		flags:  []string{"--merged", "--no-merged", "--ignore-case"},
		valued: map[string]func(string) bool{"--format=": isRefFormat, "--count=": isNumber, "--sort=": isSortKey, "--points-at=": isPlain, "--contains=": isPlain},
	},
	"status": {repo: true,
		flags: []string{
			"--porcelain", "--porcelain=v1", "--porcelain=v2", "-z", "-s", "--short", "-b", "--branch", "--no-renames", "--long",
			"--untracked-files=all", "--untracked-files=normal", "--untracked-files=no", "--ignored",
		},
		inject: []string{"--ignore-submodules=all", "--no-ahead-behind"},
	},
	"diff":      {repo: true, flags: append([]string{"--cached", "--staged", "--merge-base"}, diffFlags...), valued: diffValued, inject: noHelpers},
	"diff-tree": {repo: true, flags: append([]string{"--no-commit-id", "--stdin", "-c"}, diffFlags...), valued: diffValued, inject: []string{"--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty"}},
	"log":       {repo: true, flags: slices.Concat(logFlags, diffFlags), valued: union(logValued, diffValued), inject: append([]string{"--no-show-signature"}, noHelpers...)},
	"show":      {repo: true, flags: slices.Concat(logFlags, diffFlags), valued: union(logValued, diffValued), inject: append([]string{"--no-show-signature"}, noHelpers...)},
}

func union(ms ...map[string]func(string) bool) map[string]func(string) bool {
	all := map[string]func(string) bool{}
	for _, m := range ms {
		for k, v := range m {
			all[k] = v
		}
	}
	return all
}

// shortNumber matches a count in the same word: -5, -n5 or -U3.
var shortNumber = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^-[nU]?[0-9]{1,9}$`) })

func prepareGit(c *call) error {
	if len(c.args) == 0 {
		return refuse(c.program, reasonArgument, "no subcommand")
	}
	sub, ok := gitCommands[c.args[0]]
	if !ok {
		return refuse(c.program, reasonArgument, "%s is not an admitted subcommand", show(c.args[0]))
	}
	if err := sub.check(c); err != nil {
		return err
	}
	c.argv = slices.Concat([]string{"--no-pager", c.args[0]}, sub.inject, c.args[1:])
	c.env = gitEnv()
	if !sub.repo {
		c.env = append(c.env, "GIT_DIR=/dev/null")
		return nil
	}
	return shadowRepository(c)
}

func (g *gitCommand) check(c *call) error {
	paths := false
	for _, arg := range c.args[1:] {
		var err error
		switch {
		case paths || !strings.HasPrefix(arg, "-"):
			err = g.operand(arg)
		case arg == "--":
			paths = true
		case g.knows(c.args[0], arg):
		default:
			err = fmt.Errorf("option %s is not admitted", show(arg))
		}
		if err != nil {
			return refuse(c.program, reasonArgument, "%s: %v", c.args[0], err)
		}
	}
	return nil
}

func (g *gitCommand) knows(sub, arg string) bool {
	if slices.Contains(g.flags, arg) {
		return true
	}
	if name, value, ok := strings.Cut(arg, "="); ok {
		check := g.valued[name+"="]
		return check != nil && check(value)
	}
	return (sub == "log" || sub == "show" || sub == "diff" || sub == "diff-tree" || sub == "rev-list") && shortNumber().MatchString(arg)
}

// operand accepts a revision or a path within the work tree. An absolute or
// upward path would let diff compare any two files of the host.
func (g *gitCommand) operand(arg string) error {
	switch {
	case g.bare:
		return fmt.Errorf("operand %s is not admitted", show(arg))
	case arg == "":
		return fmt.Errorf("empty operand")
	case strings.HasPrefix(arg, "/"), strings.HasPrefix(arg, "~"):
		return fmt.Errorf("operand %s is absolute", show(arg))
	case slices.Contains(strings.Split(arg, "/"), ".."):
		return fmt.Errorf("operand %s leads upward", show(arg))
	}
	return nil
}

func matcher(re string) func(string) bool {
	compiled := sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A(?:` + re + `)\z`) })
	return func(s string) bool { return compiled().MatchString(s) }
}

// The formats are lists of harmless placeholders, because others run programs:
// %G? (also as %+G?), %(signature) and %(describe) start gpg or git again.
var (
	isNumber     = matcher(`[0-9]{1,9}`)
	isNumbers    = matcher(`[0-9]{1,5}(,[0-9]{1,5}){0,2}`)
	isPercent    = matcher(`[0-9]{1,3}%?`)
	isWord       = matcher(`[A-Za-z*]{1,32}`)
	isPlain      = matcher(`[^\x00]+`)
	isDateFormat = matcher(`iso|iso-strict|iso8601|iso8601-strict|rfc|short|raw|unix|relative|default|local`)
	isLogFormat  = matcher(`oneline|short|medium|full|fuller|reference|raw|mboxrd|email|t?format:([^%\x00]|` + logPlaceholder + `)*|[^%\x00]*(` + logPlaceholder + `)([^%\x00]|` + logPlaceholder + `)*`)
	isRefFormat  = matcher(`([^%\x00]|%%|%[0-9a-fA-F]{2}|%\(\*?` + refAtom + `\))*`)
	isSortKey    = matcher(`-?` + refAtom)
	// isObjectFormat lists the atoms of cat-file.
	isObjectFormat = matcher(`([^%\x00]|%\((objectname|objecttype|objectsize|objectsize:disk|deltabase|rest)\))*`)
)

const (
	logPlaceholder = `%%|%n|%x[0-9a-fA-F]{2}|%[-+ ]?[HhTtPpdDSsfbBeNm]|%[-+ ]?[ac][nNeElLdDrtiIsh]`
	refAtom        = `(refname|objectname|objecttype|objectsize|upstream|symref|HEAD|subject|authorname|authordate|committerdate|creatordate|taggerdate)(:[a-z0-9=,-]{1,40})?`
)
