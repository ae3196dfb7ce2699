package hostexec

import (
	"path/filepath"
	"slices"
	"strings"
)

// prepareGitServe accepts the git gate's commands. Each form is complete:
// nothing can be added to it. Unlike the commands of [Git], these work on
// directories that the gate made, without configuration, hooks or references of
// anybody else's, and on upstream repositories that the user declared by their
// path. gitEnv's settings apply to all of them, so no hook runs and no
// transport is open.
//
//	index-pack MAX [BASE]   stores a pack from standard input and checks its
//	                        objects; BASE is a directory of objects that it may
//	                        refer to
//	store MAX               stores a pack whose objects are not checked
//	recheck PACK [BASE]     repeats the check on a stored pack
//	fsck [BASE]             checks all objects; [OldFault] ones are warnings
//	cat-file                prints all objects, in the order of their packs
//	list-objects            prints their ids alone, in the same order
//	read-objects            prints the objects named on standard input
//	upload-pack V FORM      answers a fetch in protocol version V
//	receive-pack V FORM     accepts a push
//
// FORM is advertise or answer, MAX is in bytes, V is 0 or 2. The working
// directory is the repository.
func prepareGitServe(c *call) error {
	bad := func() error {
		return refuse(c.program, reasonArgument, "arguments are not one of the git gate's forms")
	}
	if len(c.args) == 0 {
		return bad()
	}
	name, args := c.args[0], c.args[1:]
	env := gitEnvWith(serveSettings())
	switch name {
	case "index-pack", "store", "recheck", "fsck":
		if !preparePacks(c, name, args) {
			return bad()
		}
		c.argv = slices.Insert(c.argv, 0, "--no-pager")
		return nil
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

// preparePacks accepts the forms that store and check packs, and reports whether name and
// args are one.
func preparePacks(c *call, name string, args []string) bool {
	settings := serveSettings()
	if name == "fsck" {
		for _, id := range oldFaults {
			settings = append(settings, [2]string{"fsck." + id, "warn"})
		}
		// Another process would check one, and there is none.
		settings = append(settings, [2]string{"core.multiPackIndex", "false"})
	} else { // nobody resumes from what a crash leaves there
		settings = append(settings, [2]string{"core.fsync", "none"})
	}
	c.env = append(gitEnvWith(settings), "GIT_DIR="+c.dir)
	first := ""
	if name != "fsck" && len(args) > 0 {
		first, args = args[0], args[1:]
	}
	switch {
	case name == "index-pack" && isSize(first):
		c.argv = []string{"index-pack", "--stdin", "--fsck-objects", "--max-input-size=" + first}
	case name == "store" && isSize(first) && len(args) == 0:
		c.argv = []string{"index-pack", "--stdin", "--max-input-size=" + first}
	case name == "recheck" && isPackName(first):
		c.argv = []string{"index-pack", "--fsck-objects", "-o", "recheck.idx", "objects/pack/" + first}
	case name == "fsck":
		c.argv = []string{"fsck", "--strict", "--no-dangling", "--no-reflogs", "--no-progress"}
	default:
		return false
	}
	if len(args) == 1 && isObjectDirectory(args[0]) {
		c.env = append(c.env, alternate(args[0]))
		args = nil
	}
	return len(args) == 0
}

func isObjectDirectory(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && !strings.Contains(path, "\n")
}

// alternate returns the variable that lets git find objects in a directory. It is quoted,
// since git splits the value at colons.
func alternate(dir string) string {
	return `GIT_ALTERNATE_OBJECT_DIRECTORIES="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(dir) + `"`
}

var (
	isPackName = matcher(`pack-(?:[0-9a-f]{40}|[0-9a-f]{64})\.pack`)
	isSize     = matcher(`[1-9][0-9]{0,14}`)
)
