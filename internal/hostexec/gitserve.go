package hostexec

import (
	"path/filepath"
	"slices"
	"strings"
)

// What the git gate has git do, each form whole: there is nothing to add to one.
// Unlike those of [Git], these work on directories that the gate made, which hold no
// configuration, no hooks and no references of anybody else's, and on upstream
// repositories that the user declared by their path. The settings of gitEnv are
// forced on all of them, so no hook runs and no transport is open.
//
//	index-pack MAX [BASE]   a pack from standard input is stored and its objects checked,
//	                        BASE being a directory of objects that it may refer to
//	recheck PACK [BASE]     the same check again, of a pack that lies there
//	cat-file                all objects there are, in the order of their packs
//	list-objects            their ids alone, in the same order
//	read-objects            those named on standard input
//	upload-pack V FORM      a fetch is answered, in version V of the protocol
//	receive-pack V FORM     a push is taken
//
// FORM is advertise or answer, MAX in bytes, V 0 or 2. The working directory is the
// repository.
func prepareGitServe(c *call) error {
	bad := func() error {
		return refuse(c.program, ReasonArgument, "arguments are not one of the git gate's forms")
	}
	if len(c.args) == 0 {
		return bad()
	}
	settings := serveSettings()
	name, args := c.args[0], c.args[1:]
	if name == "index-pack" || name == "recheck" {
		// Nobody takes up what a crash leaves there.
		settings = append(settings, [2]string{"core.fsync", "none"})
	}
	env := gitEnvWith(settings)
	switch name {
	case "index-pack", "recheck":
		if len(args) < 1 || len(args) > 2 || len(args) == 2 && !isObjectDirectory(args[1]) {
			return bad()
		}
		if len(args) == 2 {
			env = append(env, "GIT_ALTERNATE_OBJECT_DIRECTORIES="+args[1])
		}
		switch {
		case name == "index-pack" && isSize(args[0]):
			c.argv = []string{"index-pack", "--stdin", "--fsck-objects", "--max-input-size=" + args[0]}
		case name == "recheck" && isPackName(args[0]):
			c.argv = []string{"index-pack", "--fsck-objects", "-o", "recheck.idx", "objects/pack/" + args[0]}
		default:
			return bad()
		}
		env = append(env, "GIT_DIR="+c.dir)
	case "cat-file", "list-objects", "read-objects":
		if len(args) != 0 {
			return bad()
		}
		c.argv = []string{"cat-file", "--batch", "--buffer"}
		if name == "list-objects" {
			c.argv[1] = "--batch-check=%(objectname)"
		}
		if name != "read-objects" {
			c.argv = append(c.argv, "--batch-all-objects", "--unordered")
		}
		env = append(env, "GIT_DIR="+c.dir)
	case "upload-pack", "receive-pack":
		if len(args) != 2 || args[0] != "0" && args[0] != "2" {
			return bad()
		}
		c.argv = []string{name, "--stateless-rpc"}
		switch args[1] {
		case "advertise":
			c.argv = append(c.argv, "--http-backend-info-refs")
		case "answer":
		default:
			return bad()
		}
		c.argv = append(c.argv, ".")
		if args[0] == "2" {
			env = append(env, "GIT_PROTOCOL=version=2")
		}
	default:
		return bad()
	}
	c.argv = slices.Insert(c.argv, 0, "--no-pager")
	c.env = env
	return nil
}

// isObjectDirectory: a list of alternates is cut at colons, and begins a quoted name
// with a quote.
func isObjectDirectory(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && !strings.ContainsAny(path, ":\"\n")
}

var (
	isPackName = matcher(`pack-(?:[0-9a-f]{40}|[0-9a-f]{64})\.pack`)
	isSize     = matcher(`[1-9][0-9]{0,14}`)
)
