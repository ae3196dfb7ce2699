package change

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/gitobject"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/safetext"
)

// A landing moves commits between repositories as a fetch does. No file below a git
// directory is copied: the objects that a reference needs are read from the bottle's files
// by package gitobject, which computes their names, and git checks and stores a pack of
// them. References change by git update-ref, the index by git read-tree. git never sees the
// bottle's git directory.

// RefChange is a reference that the bottle made, moved or removed.
type RefChange struct {
	// Repository is the directory of the work tree, relative to the workspace.
	Repository Bytes  `json:"repository"`
	Name       string `json:"name"`
	// Old is the host's commit or object and New the bottle's; "" is none.
	Old string `json:"old,omitempty"`
	New string `json:"new,omitempty"`
	// Fresh says that the host has no such repository.
	Fresh bool `json:"fresh,omitempty"`
	// CheckedOut says that the host's work tree is of this branch, Forward that New
	// descends from Old.
	CheckedOut bool `json:"checked_out,omitempty"`
	Forward    bool `json:"forward,omitempty"`
	// Commits lists commits that come with it, newest first, Count all of them.
	Commits []CommitLine `json:"commits,omitempty"`
	Count   int          `json:"count,omitempty"`
	// Files is the difference between the trees of Old and New, FileCount the number of
	// files in it. If not all are listed, those that the work tree does not show come first.
	Files     []RefFile `json:"files,omitempty"`
	FileCount int       `json:"file_count,omitempty"`
	// Patch shows the files whose new content no work tree of the bottle shows as text.
	Patch Bytes `json:"patch,omitempty"`
	// Protected says why it lands only with IncludeProtected.
	Protected []Reason `json:"protected,omitempty"`
	// Never says why it does not land at all.
	Never string `json:"never,omitempty"`

	pack string // the name of the pack with objects that git finds fault with
}

// CommitLine describes a commit for people.
type CommitLine struct {
	ID      string `json:"id"`
	Author  Bytes  `json:"author"`
	Subject Bytes  `json:"subject"`
}

// RefFile is a file that differs between two commits.
type RefFile struct {
	Path Bytes `json:"path"`
	// Status is git's letter: A, D, M or T.
	Status string `json:"status"`
	// Unseen says that the bottle's work tree has other content than the commit.
	Unseen bool `json:"unseen,omitempty"`

	mode string // the new one
	id   string
	// recoded says that the work tree has the text in another encoding, which a diff of
	// files does not show.
	recoded bool
}

// ID returns the name by which LandOptions.Refs selects the reference.
func (r *RefChange) ID() string {
	if r.Repository == "" {
		return r.Name
	}
	return string(r.Repository) + "/.git/" + r.Name
}

// byItself reports whether a person who lands the files consents to it: the branch that is
// checked out goes forward.
func (r *RefChange) byItself() bool { return r.CheckedOut && r.Forward && !r.Fresh && r.New != "" }

// Held returns why the reference stays behind, "" if it lands.
func (r *RefChange) Held(opts *LandOptions) (string, []Reason) {
	named := slices.Contains(opts.Refs, r.ID())
	switch {
	case r.Never != "":
		return r.Never, nil
	case !named && len(opts.Paths) > 0:
		return "only paths were named", nil
	case !named && !r.byItself():
		return r.asked(), nil
	case len(r.Protected) > 0 && !opts.IncludeProtected:
		return "", r.Protected
	}
	return "", nil
}

// asked returns why a person must name the reference.
func (r *RefChange) asked() string {
	switch {
	case r.Fresh:
		return "the host has no such repository"
	case r.New == "":
		return "the bottle removed it"
	case r.Old == "":
		return "the host has no such reference"
	case !r.Forward:
		return "it is no fast-forward: the host's commits would be lost from it"
	}
	return "it is not the branch that is checked out"
}

const (
	maxRefFile  = 16 << 20 // bytes of packed-refs
	maxRefs     = 200      // changed references that are looked at, beside the one checked out
	maxRepos    = 100      // repositories
	maxShown    = 50       // commits and
	maxRefFiles = 20_000   // files of a reference that are listed
	maxPatched  = 200      // files of a reference whose content is shown
	maxPatch    = 1 << 20  // bytes of that
	gitPatience = 10 * time.Minute
)

// refName reports whether name can stand in a command to git, and is one that neither git
// nor a person takes for an option, HEAD, a commit or another name.
func refName(name string) bool {
	if len(name) > 1000 || !safetext.Clean(name) || strings.Contains(name, "..") || strings.Contains(name, "//") || strings.Contains(name, "@{") || strings.HasSuffix(name, "/") {
		return false
	}
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c == 0x7f || strings.IndexByte(`~^:?*[\"'`, c) >= 0 {
			return false
		}
	}
	for part := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(part, ".") || strings.HasPrefix(part, "-") || strings.HasSuffix(part, ".") || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	_, last, _ := strings.Cut(strings.TrimPrefix(name, "refs/"), "/")
	_, commit := gitobject.ParseID(last)
	return strings.HasPrefix(name, "refs/") && last != "HEAD" && !commit
}

// neverRef returns why a reference of that name never lands, "" if it can.
func neverRef(name string) string {
	for _, p := range []string{"refs/heads/", "refs/tags/", "refs/remotes/"} {
		if strings.HasPrefix(name, p) && refName(name) {
			return ""
		}
	}
	if strings.HasPrefix(name, "refs/replace/") {
		return "it would show other objects in the place of real ones"
	}
	if strings.HasPrefix(name, "refs/heads/") || strings.HasPrefix(name, "refs/tags/") || strings.HasPrefix(name, "refs/remotes/") {
		return "git or a person would take its name for something else: rename it in the bottle"
	}
	return "only branches, tags and remote-tracking branches land"
}

// repository is a repository of the workspace whose files the bottle changed.
type repository struct {
	s     *Set
	t     tree
	run   *hostexec.Runner
	dir   string // relative to the workspace
	top   string // absolute path of the work tree on the host
	fresh bool
	over  bool // more than maxRepos
	// store is a repository of ours, in the run's directory, that receives the bottle's
	// objects; its .git holds no reference until a fresh repository is made of it.
	store   string
	objects *gitobject.Objects
	known   map[gitobject.ID]bool
	got     map[gitobject.ID]bool // in the sound packs
	sound   []string              // names of packs
	notes   []string              // of damaged files
	digits  int
	head    string // the host's HEAD, or for a fresh repository the bottle's: a reference or a commit
	refs    map[string]string
}

// gitDirs returns the work trees whose git directories the bottle changed.
func (s *Set) gitDirs() []string {
	var dirs []string
	seen := map[string]bool{}
	for i := range s.Changes {
		rel := string(s.Changes[i].Path)
		dir, rest, ok := cutGit(rel)
		if !ok || seen[dir] || !strings.HasPrefix(rel, join(dir, ".git/")) {
			continue
		}
		if strings.HasPrefix(rest, "refs") || strings.HasPrefix(rest, "objects") || rest == "packed-refs" || rest == "HEAD" {
			seen[dir] = true
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// cutGit splits a path at its first component that some file system takes for .git.
func cutGit(rel string) (dir, rest string, ok bool) {
	at := 0
	for comp := range strings.SplitSeq(rel, "/") {
		end := at + len(comp)
		if folded := fold(comp); folded == ".git" {
			return strings.TrimSuffix(rel[:at], "/"), strings.TrimPrefix(rel[end:], "/"), true
		}
		at = end + 1
	}
	return "", "", false
}

// git asks git a question about the repository.
func (r *repository) git(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	res, err := r.run.Run(ctx, hostexec.Command{Program: hostexec.GitLand, Args: r.queryArgs(args...), Dir: r.where(), Timeout: gitPatience, Stdin: stdin,
		Stdout: hostexec.Keep{Head: hostexec.MaxKeep}})
	if err != nil {
		return nil, err
	}
	return res.Stdout.Complete()
}

func (r *repository) where() string {
	if r.fresh {
		return r.store
	}
	return r.top
}

func (r *repository) storeObjects() string { return r.store + "/.git/objects" }
func (r *repository) hostObjects() string  { return r.top + "/.git/objects" }
func (r *repository) path(rest string) string {
	return path.Join(r.dir, ".git", rest)
}

// failed reports whether git ran and said no.
func failed(err error) bool {
	var f *hostexec.FailedError
	return errors.As(err, &f) && f.Outcome == hostexec.Exited
}

// open finds the repository on the host. The error says why its references can't land.
func (r *repository) open(ctx context.Context) error {
	typ, _ := hostAt(r.t, join(r.dir, ".git"))
	if r.over {
		return fmt.Errorf("more than %d repositories changed: land it from a run of its own", maxRepos)
	}
	switch typ {
	case "":
		r.fresh = true
		head, _ := r.bottleFile("HEAD", 4096)
		r.head = headOf(head)
		return nil
	case Dir:
	default:
		return errors.New("the host's .git is no directory: commits of linked work trees and submodules don't land")
	}
	head, err := r.hostFile("HEAD", 4096)
	if err != nil {
		return err
	}
	if r.head = headOf(head); r.head == "" {
		return errors.New("the host's HEAD can't be read, or its references are in another storage than files (reftable)")
	}
	out, err := r.git(ctx, nil, "for-each-ref", "--format=%(objectname) %(symref) %(refname)")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
		if len(f) == 3 && f[1] == "" {
			r.refs[f[2]] = f[0]
			r.digits = len(f[0])
		}
	}
	if r.digits != 0 {
		return nil
	}
	out, err = r.git(ctx, nil, "rev-parse", "--show-object-format")
	if r.digits = gitobject.SHA1; strings.TrimSpace(string(out)) == "sha256" {
		r.digits = gitobject.SHA256
	}
	return err
}

// headOf returns the reference or the commit in a HEAD file.
func headOf(b []byte) string {
	s := strings.TrimSuffix(string(b), "\n")
	if ref, ok := strings.CutPrefix(s, "ref: "); ok && refName(ref) {
		return ref
	}
	if _, ok := gitobject.ParseID(s); ok {
		return s
	}
	return ""
}

func (r *repository) hostFile(rest string, limit int64) ([]byte, error) {
	f, st, err := r.t.openFile(r.path(rest))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st.Size > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", show(r.path(rest)), limit)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// bottleFile reads a file of the git directory as the bottle left it.
func (r *repository) bottleFile(rest string, limit int64) ([]byte, error) {
	c, ok := r.s.Lookup(r.path(rest))
	if !ok || c.Kind == Mode {
		return r.hostFile(rest, limit)
	}
	if c.Kind == Delete || c.Type != File || c.Size > limit {
		return nil, fmt.Errorf("%s is not there", show(r.path(rest)))
	}
	f, err := r.s.Content(c)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// bottleRefs returns the bottle's references, those that lead to others excepted.
func (r *repository) bottleRefs() map[string]string {
	refs := map[string]string{}
	packed, _ := r.bottleFile("packed-refs", maxRefFile)
	for line := range bytes.Lines(packed) {
		id, name, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
		if _, is := gitobject.ParseID(id); ok && is {
			refs[name] = id
		}
	}
	loose := map[string]bool{}
	for name := range r.refs {
		loose[name] = true
	}
	prefix := r.path("") + "/"
	for i := range r.s.Changes {
		if name, ok := strings.CutPrefix(string(r.s.Changes[i].Path), prefix); ok && strings.HasPrefix(name, "refs/") && r.s.Changes[i].Type == File {
			loose[name] = true
		}
	}
	for name := range loose {
		b, err := r.bottleFile(name, 4096)
		if err != nil {
			continue
		}
		if id := headOf(b); strings.HasPrefix(id, "refs/") {
			delete(refs, name)
		} else if id != "" {
			refs[name] = id
		}
	}
	return refs
}

// changes compares the bottle's references with the host's.
func (r *repository) changes() []RefChange {
	theirs := r.bottleRefs()
	names := map[string]bool{}
	for name := range theirs {
		names[name] = true
	}
	for name := range r.refs {
		names[name] = true
	}
	var out []RefChange
	for name := range names {
		c := RefChange{Repository: Bytes(r.dir), Name: name, Old: r.refs[name], New: theirs[name], Fresh: r.fresh, CheckedOut: name == r.head, Never: neverRef(name)}
		if c.Old != c.New {
			out = append(out, c)
		}
	}
	if head, err := r.bottleFile("HEAD", 4096); err == nil && !r.fresh {
		if now := headOf(head); now != r.head && now != "" {
			never := "it says what is checked out on the host: use git switch"
			if !strings.HasPrefix(now, "refs/") {
				never = "no branch has its commits: land them with git branch NAME in the bottle, and name the branch"
			}
			out = append(out, RefChange{Repository: Bytes(r.dir), Name: "HEAD", Old: r.head, New: now, Never: never})
		}
	}
	slices.SortStableFunc(out, func(a, b RefChange) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// openRepository prepares a repository of the set for its references to be looked at, or
// only listed if it is one over what is looked at. Its close removes what it made.
func openRepository(ctx context.Context, s *Set, t tree, run *hostexec.Runner, dir string, over bool) (*repository, error) {
	r := &repository{s: s, t: t, run: run, dir: dir, over: over, top: path.Join(s.Workspace.Path, dir), refs: map[string]string{},
		got: map[gitobject.ID]bool{}, known: map[gitobject.ID]bool{}}
	var err error
	if r.store, err = makeStore(s.dir); err != nil {
		return nil, err
	}
	if r.store, err = filepath.EvalSymlinks(r.store); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}
