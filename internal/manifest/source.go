package manifest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/document"
)

// Where selects the directories of manifests.
type Where struct {
	// Config is carboy's own configuration directory.
	Config string
	// Home is the user's: .bot-bottle in it is searched next.
	Home string
	// Repo is the directory to work on, whose agents come before the user's own;
	// empty: none.
	Repo string
}

// The kinds of directories, by how much they are trusted.
type kind uint8

const (
	own    kind = iota // carboy's configuration
	legacy             // bot-bottle's: trusted as much, with leave for what was valid there
	repo               // of the repository: whoever wrote that wrote it
)

// botBottle is the directory of bot-bottle, in homes and repositories.
const botBottle = ".bot-bottle"

// repoDirs lists the directories of agents in a repository.
var repoDirs = []string{".carboy", botBottle}

type source struct {
	kind kind
	base string // as people know it; of repo: what is looked up below the repository
}

// Set finds and reads manifests. It caches what it has read, and is for one
// goroutine at a time.
type Set struct {
	where    Where
	users    []source
	repos    []source
	repoReal string // without links; empty: no repository
	bottles  map[string]*loaded
	warned   []document.Problem
	hidden   map[Origin]bool // what looks like a secret, and was taken
	files    []File
	old      string // a manifest of the old form in the current directory; empty: none
}

// File is a file that was read.
type File struct {
	Path string
	Sum  [sha256.Size]byte
}

type loaded struct {
	bottle *Bottle // as its file says
	whole  *Bottle // with what it extends; nil: not made yet
	err    error
}

// maxEntries bounds the entries of a directory that are examined.
const maxEntries = 10_000

// Open checks the directories. A missing one counts as empty. It is an error if
// another user can write to one of the user's, because manifests grant access.
func Open(w Where) (*Set, error) {
	s := &Set{where: w, bottles: map[string]*loaded{}, hidden: map[Origin]bool{}}
	for _, u := range []source{{own, w.Config}, {legacy, filepath.Join(w.Home, botBottle)}} {
		if u.base == "" || u.kind == legacy && w.Home == "" {
			continue
		}
		there := false
		for _, dir := range []string{u.base, filepath.Join(u.base, "bottles"), filepath.Join(u.base, "agents")} {
			ok, err := trusted(dir)
			if err != nil {
				return nil, err
			}
			there = there || ok && dir != u.base || ok && u.kind == legacy
		}
		if there {
			s.users = append(s.users, u)
		}
	}
	if w.Repo != "" {
		var err error
		if s.where.Repo, err = filepath.Abs(w.Repo); err == nil {
			s.repoReal, err = filepath.EvalSymlinks(s.where.Repo)
		}
		if err != nil {
			return nil, fmt.Errorf("look for agents: %w", err)
		}
		for _, dir := range repoDirs {
			if !s.isUsers(filepath.Join(s.repoReal, dir)) {
				s.repos = append(s.repos, source{repo, dir})
			}
		}
		s.warnOfRepo()
	}
	return s, s.stale()
}

// trusted reports whether dir is there, and refuses one that others can write to.
func trusted(dir string) (bool, error) {
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	bad := func(what, advice string) (bool, error) {
		return false, document.Error{{File: dir, What: what, Advice: advice}}
	}
	switch {
	case err != nil:
		return bad("can't be looked at: "+err.Error(), "")
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return bad("is not a directory", "manifests are files name.md in it")
	}
	if what, advice := others(&st); what != "" {
		return bad(what, advice)
	}
	return true, nil
}

// others names the other users that could have written the file of st.
func others(st *unix.Stat_t) (what, advice string) {
	switch {
	case st.Uid != uint32(os.Geteuid()) && st.Uid != 0:
		return fmt.Sprintf("belongs to user %d, not to user %d: what grants must be your own", st.Uid, os.Geteuid()), "use one of your own"
	case st.Mode&0o022 != 0:
		return fmt.Sprintf("can be written by others (mode %#o): what grants must be your own", st.Mode&0o777), "chmod go-w it"
	}
	return "", ""
}

// isUsers reports whether dir is one of the user's directories under another name:
// somebody works in the home directory.
func (s *Set) isUsers(dir string) bool {
	a, err := os.Stat(dir)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(s.users, func(u source) bool {
		b, err := os.Stat(u.base)
		return err == nil && os.SameFile(a, b)
	})
}

// stale returns the error about a manifest in the format before directories.
func (s *Set) stale() error {
	const name = "bot-bottle.json"
	has := func(dir, name string) bool {
		_, err := os.Lstat(filepath.Join(dir, name))
		return dir != "" && err == nil
	}
	if home := s.where.Home; has(home, name) && !has(home, botBottle) {
		f := filepath.Join(home, name)
		return document.Error{{File: f, What: "is a manifest of the old form, which is not read", Advice: "make a file of each bottle, ~/.bot-bottle/bottles/NAME.md, and of each agent, ~/.bot-bottle/agents/NAME.md (carboy init writes examples), and remove this one"}}
	}
	if has(s.repoReal, name) {
		s.old = filepath.Join(s.repoReal, name)
		s.warn(s.old, "is a manifest of the old form, which is not read", "agents of a repository are .bot-bottle/agents/NAME.md; bottles are the user's own")
	}
	return nil
}

func (s *Set) warn(file, what, advice string) {
	s.warnAt(document.Problem{File: file, What: what, Advice: advice})
}

// maxWarned bounds warnings: a repository can cause as many as it likes.
const maxWarned = 50

func (s *Set) warnAt(p document.Problem) {
	if len(s.warned) < maxWarned && !slices.Contains(s.warned, p) {
		s.warned = append(s.warned, p)
	}
}

// maxIgnored bounds the bottles of a repository that a warning names.
const maxIgnored = 10

// warnOfRepo warns of bottles in a repository, which are ignored.
func (s *Set) warnOfRepo() {
	n := 0
	for _, r := range s.repos {
		for _, name := range repoNames(s.repoReal, filepath.Join(r.base, "bottles")) {
			if n++; n > maxIgnored {
				s.warn(filepath.Join(s.repoReal, r.base, "bottles"), "holds more bottles, which are ignored", "")
				return
			}
			s.warn(filepath.Join(s.repoReal, r.base, "bottles", name), "a bottle in a repository is ignored: a repository grants itself nothing", "copy it to "+filepath.Join(s.where.Config, "bottles")+" if you want what it says")
		}
	}
}

// repoNames returns the files NAME.md of a directory below root, without following
// links.
func repoNames(root, dir string) []string {
	fd, err := openBeneath(root, dir, unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	defer fd.Close()
	return mdFiles(fd)
}

func mdFiles(d *os.File) []string {
	names, _ := d.Readdirnames(maxEntries)
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, ".md") })
	slices.Sort(names)
	return names
}

// openBeneath opens a file below root without following links: a link could lead to
// a private key, and prompts go inside.
func openBeneath(root, path string, flags uint64) (*os.File, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(root, path)), nil
}

// found holds a file's content.
type found struct {
	kind kind
	path string
	text []byte
}

// find reads the first file of that name. what is "bottles" or "agents". Without
// one, found is nil.
func (s *Set) find(what, name string) (*found, error) {
	if what == "agents" {
		for _, r := range s.repos {
			f, err := s.readRepo(filepath.Join(r.base, what, name+".md"))
			if f != nil || err != nil {
				return f, err
			}
		}
	}
	for _, u := range s.users {
		f, err := s.readUsers(u, filepath.Join(u.base, what, name+".md"))
		if f != nil || err != nil {
			return f, err
		}
	}
	return nil, nil
}

func (s *Set) readRepo(path string) (*found, error) {
	full := filepath.Join(s.repoReal, path)
	f, err := openBeneath(s.repoReal, path, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil, nil
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return nil, document.Error{{File: full, What: "is a symbolic link or lies behind one, which is not followed in a repository", Advice: "put the file itself there"}}
	case err != nil:
		return nil, document.Error{{File: full, What: "can't be read: " + err.Error()}}
	}
	defer f.Close()
	return s.take(repo, full, f)
}

// readUsers follows links, because people keep such files elsewhere, but not to
// places that the repository or other users can write.
func (s *Set) readUsers(u source, path string) (*found, error) {
	bad := func(what, advice string) (*found, error) {
		return nil, document.Error{{File: path, What: what, Advice: advice}}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, lerr := os.Lstat(path); lerr == nil {
			return bad("is a link that leads nowhere", "")
		}
		return nil, nil
	case err != nil:
		return bad("can't be read: "+errors.Unwrap(err).Error(), "")
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return bad(err.Error(), "")
	}
	if what, advice := others(&st); what != "" {
		return bad(what, advice)
	}
	if s.repoReal != "" {
		// Check the descriptor, because the name may lead elsewhere by now.
		real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
		base, berr := filepath.Abs(u.base)
		if err != nil || berr != nil {
			return bad("can't be found: "+errors.Join(err, berr).Error(), "")
		}
		if within(real, s.repoReal) && !within(base, s.repoReal) && !within(base, s.where.Repo) {
			return bad("leads into "+s.repoReal+", where an agent may have written it", "copy the file instead")
		}
	}
	return s.take(u.kind, path, f)
}

func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func (s *Set) take(k kind, path string, f *os.File) (*found, error) {
	bad := func(what string) (*found, error) { return nil, document.Error{{File: path, What: what}} }
	if fi, err := f.Stat(); err != nil {
		return bad(err.Error())
	} else if !fi.Mode().IsRegular() {
		return bad("is not a regular file")
	}
	text, err := io.ReadAll(io.LimitReader(f, document.MaxSize+1))
	if err != nil {
		return bad("can't be read: " + err.Error())
	}
	if len(text) <= document.MaxSize {
		s.files = append(s.files, File{Path: path, Sum: sha256.Sum256(text)})
	}
	return &found{k, path, text}, nil
}

// Names returns the names of all bottles or agents, sorted, without reading the
// files. what is "bottles" or "agents".
func (s *Set) Names(what string) []string {
	seen := map[string]bool{}
	add := func(dir string, files []string, users bool) {
		for _, f := range files {
			name := strings.TrimSuffix(f, ".md")
			switch {
			case validName(name):
				seen[name] = true
			case users && f != "README.md":
				s.warn(filepath.Join(dir, f), "its name is none for a manifest, so it is not used", "names are [a-z][a-z0-9-]*, and have at most "+fmt.Sprint(maxName)+" characters")
			}
		}
	}
	for _, u := range s.users {
		dir := filepath.Join(u.base, what)
		if d, err := os.Open(dir); err == nil {
			add(dir, mdFiles(d), true)
			d.Close()
		}
	}
	if what == "agents" {
		for _, r := range s.repos {
			add("", repoNames(s.repoReal, filepath.Join(r.base, what)), false)
		}
	}
	out := make([]string, 0, len(seen))
	for n := range seen {
		out = append(out, n)
	}
	slices.Sort(out)
	return out
}

// split separates the YAML front matter from the text. The lines of front have the
// same numbers as in the file.
func split(file string, text []byte) (front, body []byte, bodyLine int, err error) {
	if err := document.CheckText(file, text); err != nil {
		return nil, nil, 0, err
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	bad := func(line int, what string) error {
		return document.Error{{File: file, Line: line, Column: 1, What: what, Advice: "begin with a line ---, YAML, and another line ---; the text follows"}}
	}
	rule := func(l []byte) bool { return string(bytes.TrimRight(l, " \t\r\n")) == "---" }
	at := 0
	for n := 1; at < len(text) || n == 1; n++ {
		end := len(text)
		if i := bytes.IndexByte(text[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		line := text[at:end]
		switch {
		case n == 1 && !rule(line):
			return nil, nil, 0, bad(1, "has no front matter")
		case n > 1 && rule(line):
			first := bytes.IndexByte(text, '\n')
			return append([]byte("\n"), text[first+1:at]...), text[end:], n + 1, nil
		}
		at = end
	}
	return nil, nil, 0, bad(1, "the front matter that begins here does not end")
}
