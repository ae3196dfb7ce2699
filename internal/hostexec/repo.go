package hostexec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
)

// A repository's configuration is code: an alias, a filter, a diff driver, a
// credential helper, an fsmonitor or an sshCommand names a program, under keys
// that nobody can list in advance (filter.<any>.clean). So git never gets to
// see the file. It works with a directory that this package makes, with its own
// configuration, without hooks and modules, that leads only to the repository's
// objects, refs and index.
//
// A hostile repository can still hold malformed objects and a malformed index
// (git's parsers are trusted with those, under a timeout, an address space
// bound and without privileges), place them elsewhere on the host (alternates,
// links), and claim that a changed file is unchanged. So git here answers
// questions about history for people; it never decides what a bottle changed.

const (
	maxRepoFile    = 1 << 20  // bytes of HEAD, commondir, gitdir, config
	maxSharedIndex = 64 << 20 // bytes of a shared index
	maxShared      = 8        // shared indexes; git deletes old ones
)

var (
	validHead = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`\A(?:ref: refs/[^\x00-\x20\x7f~^:?*\[\\]+|[0-9a-f]{40}|[0-9a-f]{64})\n?\z`)
	})
	sharedIndex = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\Asharedindex\.(?:[0-9a-f]{40}|[0-9a-f]{64})\z`) })
)

// shadowRepository makes the git directory for the repository whose work tree
// is c.dir, and points git to it.
func shadowRepository(c *call) error {
	gitDir, common, err := findRepository(c.dir)
	if err != nil {
		return &refusal{Program: c.program, Reason: reasonRepository, Detail: "find repository", Err: err}
	}
	shadow, err := os.MkdirTemp(c.scratch, "carboy-git-")
	if err != nil {
		return fmt.Errorf("hostexec: make directory for git: %w", err)
	}
	c.temp = shadow
	set, err := settingsOf(gitDir, common)
	if err == nil {
		err = fillShadow(shadow, gitDir, common, set)
	}
	if err != nil {
		return &refusal{Program: c.program, Reason: reasonRepository, Detail: "read repository", Err: err}
	}
	c.sparse = set["core.sparsecheckout"] == "true"
	c.env = append(c.env,
		"GIT_DIR="+shadow, "GIT_WORK_TREE="+c.dir,
		"GIT_OBJECT_DIRECTORY="+filepath.Join(common, "objects"),
		"GIT_INDEX_FILE="+filepath.Join(gitDir, "index"))
	return nil
}

// Repository locates the repository of a work tree.
type Repository struct {
	Objects string // the directory of its objects
	// Config is the text of its configuration, which anybody may have written.
	// Parse it with this package's git config command.
	Config string
	// Head is the text of the work tree's HEAD, which anybody may have written; "" if it
	// can't be read.
	Head string
}

// FindRepository finds the repository of the work tree whose top is dir.
func FindRepository(dir string) (*Repository, error) {
	gitDir, common, err := findRepository(dir)
	if err != nil {
		return nil, err
	}
	r := &Repository{Objects: filepath.Join(common, "objects")}
	r.Head, _ = readPlain(gitDir, "HEAD")
	if r.Config, err = readPlain(common, "config"); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return r, err
}

// findRepository returns the git directory of a work tree and the directory
// that it shares with other work trees. They are the same for a plain clone.
func findRepository(dir string) (gitDir, common string, err error) {
	dot := filepath.Join(dir, ".git")
	fi, err := os.Lstat(dot)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", "", fmt.Errorf("%q is not the top of a work tree", dir)
	case err != nil:
		return "", "", err
	case fi.IsDir():
		return dot, dot, nil
	case !fi.Mode().IsRegular():
		return "", "", fmt.Errorf("%q is neither a directory nor a file", dot)
	}
	return linkedWorktree(dir)
}

// linkedWorktree follows a .git file. The workspace owns that file and could
// name any repository of the user, so the repository must name the work tree in
// return, as git worktree arranges.
func linkedWorktree(dir string) (gitDir, common string, err error) {
	text, err := readPlain(dir, ".git")
	if err != nil {
		return "", "", err
	}
	target, ok := strings.CutPrefix(strings.TrimRight(text, "\n"), "gitdir: ")
	if !ok || target == "" {
		return "", "", errors.New(".git file names no directory")
	}
	gitDir = absolute(dir, target)
	back, err := readPlain(gitDir, "gitdir")
	if err != nil {
		return "", "", fmt.Errorf("linked git directory names no work tree: %w", err)
	}
	if !sameFile(absolute(gitDir, strings.TrimRight(back, "\n")), filepath.Join(dir, ".git")) {
		return "", "", errors.New("linked git directory names another work tree")
	}
	rel, err := readPlain(gitDir, "commondir")
	if err != nil {
		return "", "", err
	}
	return gitDir, absolute(gitDir, strings.TrimRight(rel, "\n")), nil
}

func absolute(base, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(base, path)
}

func sameFile(a, b string) bool {
	fa, errA := os.Lstat(a)
	fb, errB := os.Lstat(b)
	return errA == nil && errB == nil && os.SameFile(fa, fb)
}

// readPlain reads a small regular file of a directory. It follows no link out
// of the directory and does not wait on a FIFO.
func readPlain(dir, name string) (string, error) {
	b, err := readBounded(dir, name, maxRepoFile)
	return string(b), err
}

func readBounded(dir, name string, limit int64) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() || fi.Size() > limit {
		return nil, fmt.Errorf("%s: not a regular file of at most %d bytes", name, limit)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

func fillShadow(shadow, gitDir, common string, set map[string]string) error {
	head, err := readPlain(gitDir, "HEAD")
	if err != nil {
		return err
	}
	if !validHead().MatchString(head) {
		return errors.New("HEAD: not a reference or an object name")
	}
	for name, text := range map[string]string{"HEAD": head, "config": writeConfig(set)} {
		if err := os.WriteFile(filepath.Join(shadow, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	if err := os.Mkdir(filepath.Join(shadow, "info"), 0o700); err != nil {
		return err
	}
	links := map[string]string{
		"refs": common, "packed-refs": common, "shallow": common, "info/exclude": common, "info/sparse-checkout": gitDir,
	}
	names, err := sharedIndexes(gitDir)
	if err != nil {
		return err
	}
	for _, name := range names {
		// Copied, not linked: git renews the file's time whenever it reads it,
		// and must not write to the workspace.
		text, err := readBounded(gitDir, name, maxSharedIndex)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(shadow, name), text, 0o600); err != nil {
			return err
		}
	}
	for name, from := range links {
		if err := os.Symlink(filepath.Join(from, name), filepath.Join(shadow, name)); err != nil {
			return err
		}
	}
	return nil
}

// sharedIndexes lists the files that a split index refers to.
func sharedIndexes(gitDir string) ([]string, error) {
	d, err := os.Open(gitDir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	all, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, name := range all {
		if sharedIndex().MatchString(name) {
			names = append(names, name)
		}
	}
	if len(names) > maxShared {
		return nil, fmt.Errorf("%d shared index files", len(names))
	}
	return names, nil
}

// inertKeys are the settings that are copied, each with its permitted values.
// They say how the work tree and the objects are stored, and cannot name a file
// or program.
var inertKeys = map[string][]string{
	"core.filemode":             {"true", "false"},
	"core.symlinks":             {"true", "false"},
	"core.ignorecase":           {"true", "false"},
	"core.precomposeunicode":    {"true", "false"},
	"core.autocrlf":             {"true", "false", "input"},
	"core.eol":                  {"lf", "crlf", "native"},
	"core.sparsecheckout":       {"true", "false"},
	"core.sparsecheckoutcone":   {"true", "false"},
	"extensions.objectformat":   {"sha1", "sha256"},
	"extensions.worktreeconfig": {"true", "false"},
}

var (
	sectionLine = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A\[\s*([A-Za-z]+)\s*\]`) })
	settingLine = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`\A([A-Za-z][A-Za-z0-9-]*)\s*=\s*"?([A-Za-z0-9]+)"?\s*(?:[#;].*)?\z`)
	})
)

// settingsOf returns the inert settings of a work tree's repository.
func settingsOf(gitDir, common string) (map[string]string, error) {
	set := map[string]string{}
	add := func(dir, name string) error {
		text, err := readPlain(dir, name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return inertSettings(text, set)
	}
	err := add(common, "config")
	if err == nil && set["extensions.worktreeconfig"] == "true" { // git sparse-checkout writes there
		err = add(gitDir, "config.worktree")
	}
	return set, err
}

// inertSettings adds the inert settings of a repository's configuration to set. It
// understands only the plain form of a line. A misread line can
// make git fail or show a file as changed, and nothing more, because names and
// values come from inertKeys.
func inertSettings(text string, set map[string]string) error {
	section := ""
	for raw := range bytes.Lines([]byte(text)) {
		l := strings.TrimSpace(string(raw))
		if strings.HasPrefix(l, "[") {
			section = ""
			if m := sectionLine().FindStringSubmatch(l); m != nil {
				section = strings.ToLower(m[1])
				l = strings.TrimSpace(l[len(m[0]):])
			}
		}
		m := settingLine().FindStringSubmatch(l)
		if m == nil {
			continue
		}
		key, value := section+"."+strings.ToLower(m[1]), strings.ToLower(m[2])
		if key == "extensions.refstorage" && value != "files" {
			return errors.New("reference storage other than files is not supported")
		}
		for _, v := range inertKeys[key] {
			if v == value {
				set[key] = v
			}
		}
	}
	return nil
}

func writeConfig(set map[string]string) string {
	var b strings.Builder
	version := "0"
	if f := set["extensions.objectformat"]; f != "" {
		version = "1"
		fmt.Fprintf(&b, "[extensions]\n\tobjectformat = %s\n", f)
	}
	fmt.Fprintf(&b, "[core]\n\trepositoryformatversion = %s\n\tbare = false\n", version)
	for key, value := range set {
		if name, ok := strings.CutPrefix(key, "core."); ok {
			fmt.Fprintf(&b, "\t%s = %s\n", name, value)
		}
	}
	return b.String()
}
