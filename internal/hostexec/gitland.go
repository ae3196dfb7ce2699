package hostexec

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// prepareGitLand accepts the commands of a landing. Each form is complete.
//
//	query OBJECTS COMMAND…     asks as [Git] does, and git finds objects in the
//	                           directory OBJECTS too
//	pack LIKE MAX [OBJECTS]    stores a pack of at most MAX bytes from standard
//	                           input in the repository that is the working
//	                           directory, which carboy made; LIKE is sound, or
//	                           old: then the faults of oldFaults are let pass
//	merge INDEX OLD NEW OBJECTS
//	                           changes the index file INDEX as a fast-forward
//	                           from OLD to NEW does; the work tree is neither
//	                           read nor written
//	refresh                    renews the times of files in the index
//	conflicts A B              merges two commits in memory and in a temporary
//	                           directory; git exits with 1 if it can't
//	update-refs                changes references as standard input says, all or
//	                           none
//
// As for [Git], the repository's configuration and hooks are not used. Only
// refresh and update-refs write to the repository of the work tree.
func prepareGitLand(c *call) error {
	bad := func() error {
		return refuse(c.program, reasonArgument, "arguments are not one of a landing's forms")
	}
	if len(c.args) == 0 {
		return bad()
	}
	name, args := c.args[0], c.args[1:]
	switch {
	case name == "query" && len(args) > 1 && isObjectDirectory(args[0]):
		c.args = args[1:]
		if err := prepareGit(c); err != nil {
			return err
		}
		c.env = append(c.env, alternate(args[0]))
		return nil
	case name == "pack" && (len(args) == 2 || len(args) == 3 && isObjectDirectory(args[2])) && isSize(args[1]):
		c.argv = []string{"--no-pager", "index-pack", "--stdin", "--max-input-size=" + args[1]}
		switch args[0] {
		case "sound":
			c.argv = append(c.argv, "--strict")
		case "old":
			c.argv = append(c.argv, "--strict="+strings.Join(oldFaults, "=warn,")+"=warn")
		default:
			return bad()
		}
		// The pack is copied to the repository, and that copy is synced.
		c.env = append(gitEnvWith(append(serveSettings(), [2]string{"core.fsync", "none"})), "GIT_DIR="+c.dir)
		if len(args) == 3 {
			c.env = append(c.env, alternate(args[2]))
		}
		return nil
	case name == "merge" && len(args) == 4 && isObjectDirectory(args[0]) && isCommits(args[1:3]) && isObjectDirectory(args[3]):
		c.argv = []string{"--no-pager", "read-tree", "-i", "-m", args[1], args[2]}
		c.env = append(landEnv(), alternate(args[3]))
		if err := shadowRepository(c); err != nil {
			return err
		}
		return mergeElsewhere(c, args[0])
	case name == "refresh" && len(args) == 0:
		c.argv = []string{"--no-pager", "update-index", "-q", "--refresh"}
		c.env = landEnv()
		return shadowRepository(c)
	case name == "conflicts" && isCommits(args):
		return prepareConflicts(c, args)
	case name == "update-refs" && len(args) == 0:
		c.argv = []string{"--no-pager", "update-ref", "--no-deref", "-m", "carboy: landing", "--stdin"}
		c.env = append(landEnv(), "GIT_COMMITTER_NAME=carboy", "GIT_COMMITTER_EMAIL=carboy@localhost")
		if err := shadowRepository(c); err != nil {
			return err
		}
		return shadowLogs(c)
	}
	return bad()
}

// oldFaults lists what git fsck finds in the commits and trees of old histories
// that people still use. None of it misleads a program.
var oldFaults = []string{
	"badDate", "badDateOverflow", "badEmail", "badName", "badTimezone", "missingEmail", "missingNameBeforeEmail",
	"missingSpaceBeforeDate", "missingSpaceBeforeEmail", "multipleAuthors", "nulInCommit", "zeroPaddedDate", "zeroPaddedFilemode",
}

// OldFault reports whether id names a fault, as git fsck does, that hurts nobody who clones
// it: people decide about it. All others are refused.
func OldFault(id string) bool { return slices.Contains(oldFaults, id) }

// mergeElsewhere lets git change another index file than the repository's. Of a sparse
// checkout git applies the patterns only when it writes files, so it writes those that
// change to an empty directory, which is removed.
func mergeElsewhere(c *call, index string) error {
	other := map[string]string{"GIT_INDEX_FILE": index}
	if c.sparse {
		files := filepath.Join(c.temp, "files")
		if err := os.Mkdir(files, 0o700); err != nil {
			return err
		}
		other["GIT_WORK_TREE"] = files
		c.argv[2] = "-u"
	}
	c.env = slices.DeleteFunc(c.env, func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return other[name] != ""
	})
	for name, value := range other {
		c.env = append(c.env, name+"="+value)
	}
	return nil
}

func isCommits(args []string) bool {
	return len(args) == 2 && isObjectName(args[0]) && isObjectName(args[1])
}

// prepareConflicts accepts the merge of two commits that is only tried.
func prepareConflicts(c *call, commits []string) error {
	c.argv = append([]string{"--no-pager", "merge-tree", "--write-tree", "--name-only", "--no-messages"}, commits...)
	c.env = gitEnv()
	if err := shadowRepository(c); err != nil {
		return err
	}
	return writeElsewhere(c)
}

// writeElsewhere lets git write objects to a temporary directory, and only read those of the
// repository.
func writeElsewhere(c *call) error {
	objects := filepath.Join(c.temp, "objects")
	if err := os.Mkdir(objects, 0o700); err != nil {
		return err
	}
	for i, kv := range c.env {
		if own, ok := strings.CutPrefix(kv, "GIT_OBJECT_DIRECTORY="); ok {
			c.env[i] = "GIT_OBJECT_DIRECTORY=" + objects
			c.env = append(c.env, alternate(own))
		}
	}
	return nil
}

// landEnv returns git's environment without a split index: only one file of it
// would be changed.
func landEnv() []string {
	return gitEnvWith(append(slices.Clone(gitSettings), [2]string{"core.splitIndex", "false"}))
}

// shadowLogs lets git write the logs of references, if the repository keeps any.
func shadowLogs(c *call) error {
	_, common, err := findRepository(c.dir)
	if err != nil {
		return &refusal{Program: c.program, Reason: reasonRepository, Detail: "find repository", Err: err}
	}
	logs := filepath.Join(common, "logs")
	if fi, err := os.Lstat(logs); err != nil || !fi.IsDir() {
		return nil
	}
	err = os.Symlink(logs, filepath.Join(c.temp, "logs"))
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

var isObjectName = matcher(`[0-9a-f]{40}|[0-9a-f]{64}`)
