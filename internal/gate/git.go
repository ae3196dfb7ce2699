package gate

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/carboy/carboy/internal/gitobject"
	"github.com/carboy/carboy/internal/hostexec"
)

// Repository reads commits and trees with git, without running anything that the
// repository configures. Its methods are for one goroutine, its trees' contents for any
// number. A revision keeps the meaning that it had when it was first resolved.
type Repository struct {
	// Dir is the top of the work tree.
	Dir    string
	Runner *hostexec.Runner

	known   map[string]string     // commits by revision and by full name; empty: no such commit
	commits map[string]commitHead // by full name, verified
	files   map[string][]File     // by commit, verified

	hints  Hints
	listed map[string][]byte // output of ls-tree by commit, not verified yet
	hinted map[string][]byte // output of ls-tree from Hints, not verified
	lists  map[string][]byte // output of ls-tree by commit, verified

	// A cache of blobs by name, up to maxHeld bytes: two trees share most blobs, and
	// asking git again is slow.
	mu        sync.Mutex
	blobs     map[string]cachedBlob
	heldBytes int64
}

const gitTimeout = 2 * time.Minute

func (r *Repository) git(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	res, err := r.Runner.Run(ctx, hostexec.Command{
		Program: hostexec.Git, Args: args, Dir: r.Dir, Timeout: gitTimeout, Stdin: stdin,
		Stdout: hostexec.Keep{Head: hostexec.MaxKeep - 4096, Tail: 4096},
	})
	if err != nil {
		return nil, err
	}
	return res.Stdout.Complete()
}

// ErrNoRevision means that the repository does not know a revision.
var ErrNoRevision = errors.New("no such revision")

// Commit returns the full name of the commit that rev stands for.
func (r *Repository) Commit(ctx context.Context, rev string) (string, error) {
	if rev == "" || strings.HasPrefix(rev, "-") || strings.ContainsAny(rev, "\x00\n") {
		return "", fmt.Errorf("revision %q: %w", rev, ErrNoRevision)
	}
	if commit, ok := r.known[rev]; ok && commit != "" {
		return commit, nil
	} else if ok {
		return "", fmt.Errorf("revision %q: %w", rev, ErrNoRevision)
	}
	if names, err := r.ambiguousRefs(ctx, rev); err != nil {
		return "", fmt.Errorf("revision %q: %w", rev, err)
	} else if have := names[rev]; have != nil {
		return "", fmt.Errorf("revision %q can be %s: write the whole name, or the commit: %w", rev, strings.Join(have, " or "), ErrAmbiguous)
	}
	out, err := r.git(ctx, nil, "rev-parse", "--verify", "-q", rev+"^{commit}")
	var failed *hostexec.FailedError
	if errors.As(err, &failed) {
		return "", fmt.Errorf("revision %q: %w", rev, ErrNoRevision)
	}
	if err != nil {
		return "", err
	}
	commit := strings.TrimSpace(string(out))
	if !wholeID().MatchString(commit) {
		return "", fmt.Errorf("revision %q: %w", rev, ErrNoRevision) // rev began with ^, which excludes
	}
	r.remember(rev, commit)
	return commit, nil
}

// ErrAmbiguous means that several references have a name. Whoever can push a tag could
// otherwise replace a branch: git prefers the tag.
var ErrAmbiguous = errors.New("several references have this name")

var (
	wholeID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A(?:[0-9a-f]{40}|[0-9a-f]{64})\z`) })
	partID  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A[0-9a-f]{4,63}\z`) })
)

// ambiguousRefs returns the references that each revision could stand for, for those that
// could stand for more than one object.
func (r *Repository) ambiguousRefs(ctx context.Context, revs ...string) (map[string][]string, error) {
	may := map[string][]string{}
	var ask []string
	for _, rev := range revs {
		name := rev
		if i := strings.IndexAny(rev, "^~@:"); i >= 0 {
			name = rev[:i]
		}
		if name == "" || name == "HEAD" || strings.HasPrefix(name, "refs/") || wholeID().MatchString(name) {
			continue
		}
		may[rev] = []string{"refs/" + name, "refs/tags/" + name, "refs/heads/" + name, "refs/remotes/" + name, "refs/remotes/" + name + "/HEAD"}
		ask = append(ask, may[rev]...)
	}
	if len(ask) == 0 {
		return nil, nil
	}
	out, err := r.git(ctx, nil, append([]string{"for-each-ref", "--format=%(objectname) %(refname)"}, ask...)...)
	if err != nil {
		return nil, err
	}
	there := map[string]string{}
	for line := range strings.Lines(string(out)) {
		id, ref, _ := strings.Cut(strings.TrimSpace(line), " ")
		there[ref] = id
	}
	several := map[string][]string{}
	for rev, refs := range may {
		var have []string
		ids := map[string]bool{}
		for _, ref := range refs {
			if id, ok := there[ref]; ok {
				have = append(have, ref)
				ids[id] = true
			}
		}
		name := strings.TrimPrefix(refs[0], "refs/")
		if len(ids) > 1 || len(ids) == 1 && partID().MatchString(name) {
			several[rev] = have
		}
	}
	return several, nil
}

// errUnrelated means that two commits have no common ancestor.
var errUnrelated = errors.New("they have no commit in common")

func (r *Repository) remember(rev, commit string) {
	if r.known == nil {
		r.known = map[string]string{}
	}
	r.known[rev] = commit
	if commit != "" {
		r.known[commit] = commit
	}
}

// Resolve looks up several revisions in one run of git, so that Commit need not run it
// for each. It is no error if some do not exist. Commit still refuses those that it would
// refuse by itself.
func (r *Repository) Resolve(ctx context.Context, revs ...string) error {
	revs = slices.DeleteFunc(slices.Clone(revs), func(rev string) bool {
		_, ok := r.known[rev]
		return ok || rev == "" || strings.HasPrefix(rev, "-") || strings.ContainsAny(rev, " \x00\n")
	})
	if len(revs) == 0 {
		return nil
	}
	var out []gitObject
	var several map[string][]string
	eg, gctx := errgroup.WithContext(ctx)
	eg.Go(func() (err error) {
		several, err = r.ambiguousRefs(gctx, revs...)
		return err
	})
	eg.Go(func() (err error) {
		ask := make([]string, len(revs))
		for i, rev := range revs {
			ask[i] = rev + "^{commit}"
		}
		out, err = r.resolveObjects(gctx, ask)
		return err
	})
	if err := eg.Wait(); err != nil {
		return fmt.Errorf("look revisions up: %w", err)
	}
	for i, rev := range revs {
		clear := several[rev] == nil
		switch x := out[i]; {
		case x.kind == "commit":
			if clear {
				r.remember(rev, x.id)
			}
			r.addCommit(x.id, x.body)
		case x.line != rev+"^{commit} missing":
			return nil // Commit asks for the others one by one
		case clear:
			r.remember(rev, "")
		}
	}
	return nil
}

// hintsSchema names the format of Hints.
const hintsSchema = "carboy.dev/gate-asked/v1"

// Hints lists objects that were needed in an earlier run and may be needed again, to read
// them ahead. They are not trusted: what git answers is verified as ever.
type Hints struct {
	Schema  string   `json:"schema"`
	Commits []string `json:"commits"`
	Blobs   []string `json:"blobs"`
	// Lists holds the output of ls-tree by commit. One is used only if it has the hash
	// that the commit names, and its sizes are those of the contents that git returned
	// this time.
	Lists map[string][]byte `json:"lists,omitempty"`
}

// maxHints bounds the blobs that are read ahead, in bytes.
const maxHints = 16 << 20

// Hints returns the hints for a later run with the same needs.
func (r *Repository) Hints() Hints {
	h := Hints{Schema: hintsSchema, Commits: slices.Sorted(maps.Keys(r.files))}
	seen, sum := map[string]bool{}, int64(0)
	for _, c := range h.Commits {
		for _, f := range r.files[c] {
			if !seen[f.id] {
				seen[f.id] = true
				sum += f.Size
			}
		}
	}
	if h.Blobs = slices.Sorted(maps.Keys(seen)); sum > maxHints || len(seen) > maxBatch {
		h.Blobs = nil
		return h // without the blobs, sizes in lists can't be verified
	}
	size := 0
	for _, c := range h.Commits {
		size += len(r.lists[c])
	}
	if size <= maxHints/4 {
		h.Lists = r.lists
	}
	return h
}

// SetHints sets what the next Resolve reads ahead. It ignores malformed names.
func (r *Repository) SetHints(h Hints) {
	no := func(id string) bool { return !wholeID().MatchString(id) }
	h.Commits, h.Blobs = slices.DeleteFunc(h.Commits, no), slices.DeleteFunc(h.Blobs, no)
	if len(h.Commits) <= 2 && len(h.Blobs) <= maxBatch {
		r.hints = h
	}
}

// resolveObjects returns the objects of names, in their order, and reads the hinted ones
// into the cache.
func (r *Repository) resolveObjects(ctx context.Context, names []string) ([]gitObject, error) {
	h := r.hints
	r.hints = Hints{}
	var wg sync.WaitGroup
	lists := make([][]byte, len(h.Commits))
	for i, c := range h.Commits {
		if len(h.Lists[c]) == 0 {
			wg.Go(func() { lists[i], _ = r.list(ctx, c) })
		}
	}
	var out []gitObject
	take := func(x gitObject) error {
		if len(out) < len(names) {
			out = append(out, x)
		} else if x.kind == "blob" && x.authentic() {
			r.addBlob(x.id, x.body)
		}
		return nil
	}
	err := r.objects(ctx, slices.Concat(names, h.Blobs), take)
	if err != nil && len(h.Blobs) > 0 && ctx.Err() == nil {
		out = nil
		err = r.objects(ctx, names, take)
	}
	wg.Wait()
	r.listed, r.hinted = map[string][]byte{}, h.Lists
	for i, c := range h.Commits {
		if len(lists[i]) > 0 {
			r.listed[c] = lists[i]
		}
	}
	return out, err
}

// gitObject is one answer of git cat-file --batch. For a missing object only line is set.
type gitObject struct {
	line, kind, id string
	body           []byte
}

// authentic reports whether the object hashes to its name.
func (x gitObject) authentic() bool { return gitobject.Name(x.kind, x.body, len(x.id)) == x.id }

// objects asks git for objects, and calls f with each answer in order while git goes on.
// The number of answers must be that of names.
func (r *Repository) objects(ctx context.Context, names []string, f func(gitObject) error) error {
	if len(names) == 0 {
		return nil
	}
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	ended := make(chan error, 1)
	go func() { // ends with git, which ends at the latest when the pipe is closed
		_, err := r.Runner.Run(ctx, hostexec.Command{
			Program: hostexec.Git, Args: []string{"cat-file", "--batch", "--buffer"}, Dir: r.Dir, Timeout: gitTimeout,
			Stdin: []byte(strings.Join(names, "\n") + "\n"), Output: out,
		})
		if errors.Is(err, hostexec.ErrUnkilled) { // git still holds the other end
			in.SetReadDeadline(time.Now())
		}
		ended <- err
	}()
	err = readObjects(in, len(names), f)
	in.Close()
	gerr := <-ended
	if err == nil || gerr != nil && (errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, os.ErrDeadlineExceeded)) {
		err = gerr
	}
	return err
}

// maxObjects bounds the output of one git cat-file, in bytes.
const maxObjects = 256 << 20

func readObjects(from io.Reader, n int, f func(gitObject) error) error {
	r := bufio.NewReaderSize(from, 64<<10)
	left := int64(maxObjects)
	for range n {
		line, err := r.ReadSlice('\n')
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return fmt.Errorf("what git says of an object: %w", err)
		}
		x := gitObject{line: string(line[:len(line)-1])}
		if w := strings.Fields(x.line); len(w) == 3 && wholeID().MatchString(w[0]) {
			size, err := strconv.ParseInt(w[2], 10, 64)
			if left -= size; err != nil || size < 0 || size > maxFileBytes || left < 0 {
				return fmt.Errorf("git said %q: that is more than a gate reads at once", truncate(x.line, 200))
			}
			x.id, x.kind, x.body = w[0], w[1], make([]byte, size)
			if _, err = io.ReadFull(r, x.body); err == nil {
				_, err = r.Discard(1) // the line feed
			}
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			if err != nil {
				return fmt.Errorf("what git says of %s: %w", x.id, err)
			}
		}
		if err := f(x); err != nil {
			return err
		}
	}
	if _, err := r.ReadByte(); err != io.EOF {
		return cmp.Or(err, errors.New("git answered more than it was asked"))
	}
	return nil
}

// commitHead holds the header fields of a commit that count here.
type commitHead struct {
	tree   string
	parent string // the first parent; empty: none
}

// addCommit caches a commit if it hashes to its name, and reports whether it does.
func (r *Repository) addCommit(id string, body []byte) bool {
	if gitobject.Name("commit", body, len(id)) != id {
		return false
	}
	head := gitobject.ParseCommit(body)
	c := commitHead{tree: head.Tree}
	if len(head.Parents) > 0 {
		c.parent = head.Parents[0]
	}
	if r.commits == nil {
		r.commits = map[string]commitHead{}
	}
	r.commits[id] = c
	return true
}

// readCommit reads and verifies a commit. Errors call it name.
func (r *Repository) readCommit(ctx context.Context, name, id string) (commitHead, error) {
	if c, ok := r.commits[id]; ok {
		return c, nil
	}
	var got gitObject
	if err := r.objects(ctx, []string{id}, func(x gitObject) error { got = x; return nil }); err != nil {
		return commitHead{}, fmt.Errorf("read %s: %w", name, err)
	}
	if got.kind != "commit" || got.id != id {
		return commitHead{}, fmt.Errorf("read %s: git said %q", name, truncate(got.line, 200))
	}
	if !r.addCommit(id, got.body) {
		return commitHead{}, &TreeError{name, "", "its commit does not have the hash of its name: git's objects were changed (git fsck)"}
	}
	return r.commits[id], nil
}

// Parent returns the first parent of a commit, ignoring git's grafts; empty: there is
// none. The parent's object may be missing.
func (r *Repository) Parent(ctx context.Context, id string) (string, error) {
	c, err := r.readCommit(ctx, id, id)
	return c.parent, err
}

// Load reads the trees of several commits, and as many contents as fit into the cache, in
// as few runs of git as possible.
func (r *Repository) Load(ctx context.Context, commits ...string) error {
	slices.Sort(commits)
	commits = slices.Compact(commits)
	out := make([][]byte, len(commits))
	eg, gctx := errgroup.WithContext(ctx)
	for i, c := range commits {
		if out[i] = r.listed[c]; out[i] != nil || r.useHintedList(ctx, c) {
			continue
		}
		eg.Go(func() (err error) {
			out[i], err = r.list(gctx, c)
			return err
		})
	}
	if err := eg.Wait(); err != nil {
		return err
	}
	var files []File
	sum, seen := int64(0), map[string]bool{}
	for i, c := range commits {
		t, err := r.tree(ctx, c, c, out[i])
		if err != nil {
			return err
		}
		for _, f := range t.Files {
			if !seen[f.id] {
				seen[f.id] = true
				files = append(files, f)
				sum += f.Size
			}
		}
	}
	if sum > maxHeld {
		return nil
	}
	return gitSource{r}.each(ctx, files, func(File, []byte) error { return nil })
}

// useHintedList verifies the hinted ls-tree output of a commit, and reports whether it
// can be used.
func (r *Repository) useHintedList(ctx context.Context, commit string) bool {
	list := r.hinted[commit]
	if len(list) == 0 {
		return false
	}
	t, err := r.tree(ctx, commit, commit, list)
	if err != nil {
		return false
	}
	for _, f := range t.Files {
		if b, ok := r.blob(f.id); !ok || int64(len(b.body)) != f.Size {
			delete(r.files, commit)
			delete(r.lists, commit)
			return false
		}
	}
	return true
}

func (r *Repository) list(ctx context.Context, commit string) ([]byte, error) {
	out, err := r.git(ctx, nil, "ls-tree", "-r", "-l", "-z", "--full-tree", commit)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", commit, err)
	}
	return out, nil
}

// MergeBase returns the common ancestor of two commits, or ErrUnrelated.
func (r *Repository) MergeBase(ctx context.Context, a, b string) (string, error) {
	out, err := r.git(ctx, nil, "merge-base", a, b)
	var failed *hostexec.FailedError
	if errors.As(err, &failed) {
		return "", errUnrelated
	}
	return strings.TrimSpace(string(out)), err
}

// Remotes returns all URLs of each remote, by its name.
func (r *Repository) Remotes(ctx context.Context) (map[string][]string, error) {
	repo, err := hostexec.FindRepository(r.Dir)
	if err != nil {
		return nil, err
	}
	out, err := r.git(ctx, []byte(repo.Config), "config")
	if err != nil {
		return nil, fmt.Errorf("read the repository's configuration: %w", err)
	}
	all := map[string][]string{}
	for line := range strings.SplitSeq(string(out), "\x00") {
		key, url, ok := strings.Cut(line, "\n")
		name, isRemote := strings.CutPrefix(key, "remote.")
		name, isURL := strings.CutSuffix(name, ".url")
		if ok && isRemote && isURL {
			all[name] = append(all[name], url)
		}
	}
	return all, nil
}

// Tree returns the tree of a revision.
func (r *Repository) Tree(ctx context.Context, rev string) (*Tree, error) {
	commit, err := r.Commit(ctx, rev)
	if err != nil {
		return nil, err
	}
	if _, ok := r.files[commit]; ok {
		return r.tree(ctx, rev, commit, nil)
	}
	out, err := r.list(ctx, commit)
	if err != nil {
		return nil, err
	}
	return r.tree(ctx, rev, commit, out)
}

// tree returns the verified tree of a commit, from the cache or from the output of
// ls-tree.
func (r *Repository) tree(ctx context.Context, rev, commit string, out []byte) (*Tree, error) {
	t := &Tree{Name: rev, Commit: commit, src: gitSource{r}, repo: r}
	if files, ok := r.files[commit]; ok {
		t.Files = slices.Clone(files)
		return t, nil
	}
	modes := map[string]string{}
	for _, line := range bytes.Split(out, []byte{0}) {
		if len(line) == 0 {
			continue
		}
		head, p, ok := strings.Cut(string(line), "\t")
		f := strings.Fields(head)
		if !ok || len(f) != 4 {
			return nil, fmt.Errorf("list %s: git said %q", rev, line)
		}
		mode, err := strconv.ParseUint(f[0], 8, 32)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", rev, err)
		}
		x := File{Path: p, Mode: FileMode(mode), id: f[2]}
		modes[p] = f[0]
		if f[1] != "blob" || x.Mode != regular && x.Mode != executable && x.Mode != Link && x.Mode != 0o100664 {
			return nil, &TreeError{rev, p, "is a submodule, or something else that is not a file"}
		}
		if x.Mode == 0o100664 {
			x.Mode = regular
		}
		if x.Size, err = strconv.ParseInt(f[3], 10, 64); err != nil {
			return nil, fmt.Errorf("list %s: %w", rev, err)
		}
		t.Files = append(t.Files, x)
	}
	if _, err := t.validate(); err != nil {
		return nil, err
	}
	// git trusts its object directory without hashing. A verdict names the commit, and
	// whoever reads it elsewhere has the true one.
	c, err := r.readCommit(ctx, rev, commit)
	if err != nil {
		return nil, err
	}
	if treeID(t.Files, modes, "", len(commit)) != c.tree {
		return nil, &TreeError{rev, "", "its files are not those that its commit names: git's objects were changed, or not written by git (git fsck)"}
	}
	if r.files == nil {
		r.files, r.lists = map[string][]File{}, map[string][]byte{}
	}
	r.files[commit], r.lists[commit] = slices.Clone(t.Files), out
	return t, nil
}

// treeID returns git's name of a directory with these files, which are sorted by path and
// all begin with prefix.
func treeID(files []File, modes map[string]string, prefix string, digits int) string {
	type entry struct{ sort, mode, name, id string }
	var all []entry
	for i := 0; i < len(files); {
		name, _, deep := strings.Cut(files[i].Path[len(prefix):], "/")
		if !deep {
			all = append(all, entry{name, modes[files[i].Path], name, files[i].id})
			i++
			continue
		}
		end, sub := i+1, name+"/"
		for end < len(files) && strings.HasPrefix(files[end].Path[len(prefix):], sub) {
			end++
		}
		all = append(all, entry{sub, "40000", name, treeID(files[i:end], modes, prefix+sub, digits)})
		i = end
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.sort, b.sort) })
	var b bytes.Buffer
	for _, e := range all {
		raw, err := hex.DecodeString(e.id)
		if err != nil {
			return ""
		}
		fmt.Fprintf(&b, "%s %s\x00%s", e.mode, e.name, raw)
	}
	return gitobject.Name("tree", b.Bytes(), digits)
}

// HistoryObject is an object that came with the commits between two trees and is in neither: a
// file's content that came and went, or a commit's text.
type HistoryObject struct {
	Commit bool
	ID     string // git's object name
	Path   string // of a file; empty: of a commit
}

// history calls f with the objects that the commits of t after base brought and that are
// in neither tree. It does nothing unless both are trees of commits.
func (t *Tree) history(ctx context.Context, base *Tree, f func(HistoryObject, []byte) error) error {
	if t.repo == nil || base.repo == nil || t.Commit == base.Commit {
		return nil
	}
	out, err := t.repo.git(ctx, nil, "rev-list", "--objects", "--parents", t.Commit, "^"+base.Commit)
	if err != nil {
		return fmt.Errorf("list what came between %s and %s: %w", base.Name, t.Name, err)
	}
	here := map[string]bool{}
	for _, x := range slices.Concat(t.Files, base.Files) {
		here[x.id] = true
	}
	at := map[string]string{}
	var ask bytes.Buffer
	for line := range strings.Lines(string(out)) {
		id, p, _ := strings.Cut(strings.TrimRight(line, "\n"), " ")
		if _, ok := at[id]; ok || here[id] {
			continue
		}
		at[id] = p
		ask.WriteString(id + "\n")
	}
	if out, err = t.repo.git(ctx, ask.Bytes(), "cat-file", "--batch-check", "--buffer"); err != nil {
		return fmt.Errorf("look at what came between %s and %s: %w", base.Name, t.Name, err)
	}
	var list []File
	sum := int64(0)
	for line := range strings.Lines(string(out)) {
		w := strings.Fields(line)
		if len(w) != 3 {
			return fmt.Errorf("look at what came between %s and %s: git said %q", base.Name, t.Name, truncate(line, 200))
		}
		n, err := strconv.ParseInt(w[2], 10, 64)
		if sum += n; err != nil || n > maxFileBytes || sum > maxTreeBytes || len(list) >= maxFiles {
			return fmt.Errorf("what came between %s and %s is more than a gate looks at", base.Name, t.Name)
		}
		x := File{Size: n, id: w[0], kind: w[1]}
		if w[1] != "commit" {
			x.Path = at[w[0]]
		}
		list = append(list, x)
	}
	// Directories are read only to verify them. Commits are also compared with the
	// parents that git reports: a forged parent, or a history that ends early (a shallow
	// clone), would hide objects.
	return t.src.each(ctx, list, func(x File, b []byte) error {
		switch x.kind {
		case "tree":
			return nil
		case "commit":
			if strings.Join(gitobject.ParseCommit(b).Parents, " ") != at[x.id] {
				return &TreeError{t.Name, x.id, "git shows other parents of it than it has, so what came and went can't be seen (in a shallow clone: git fetch --unshallow)"}
			}
			return f(HistoryObject{true, x.id, ""}, b)
		}
		return f(HistoryObject{x.kind != "blob", x.id, x.Path}, b)
	})
}

// WorkTree returns the files of the work tree, tracked or not, without those that git
// ignores.
func (r *Repository) WorkTree(ctx context.Context) (*Tree, error) {
	out, err := r.git(ctx, nil, "ls-files", "-z", "-c", "-o", "--exclude-standard", "--full-name")
	if err != nil {
		return nil, err
	}
	paths := slices.DeleteFunc(strings.Split(string(out), "\x00"), func(p string) bool { return p == "" })
	slices.Sort(paths)
	if paths = slices.Compact(paths); paths == nil {
		paths = []string{}
	}
	return DirTree("the work tree", r.Dir, paths)
}

// IsWorkTree reports whether git knows Dir as a work tree.
func (r *Repository) IsWorkTree(ctx context.Context) bool {
	_, err := r.git(ctx, nil, "rev-parse", "--is-inside-work-tree")
	return err == nil
}

// gitSource reads contents from a repository.
type gitSource struct{ r *Repository }

// batchBytes and maxBatch bound one request to git, in bytes and objects.
const (
	batchBytes = 64 << 20
	maxBatch   = 50_000
)

// maxHeld bounds the cache of blobs, in bytes.
const maxHeld = 64 << 20

// cachedBlob is a verified blob.
type cachedBlob struct {
	body []byte
	sum  [sha256.Size]byte
}

// addBlob caches a blob, if there is room.
func (r *Repository) addBlob(id string, b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.heldBytes+int64(len(b)) <= maxHeld {
		if r.blobs == nil {
			r.blobs = map[string]cachedBlob{}
		}
		r.blobs[id] = cachedBlob{b, sha256.Sum256(b)}
		r.heldBytes += int64(len(b))
	}
}

// blob returns a cached blob.
func (r *Repository) blob(id string) (cachedBlob, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, ok := r.blobs[id]
	return b, ok
}

// sum returns the SHA-256 of a cached file.
func (s gitSource) sum(f File) ([sha256.Size]byte, bool) {
	b, ok := s.r.blob(f.id)
	return b.sum, ok && int64(len(b.body)) == f.Size
}

func (s gitSource) each(ctx context.Context, all []File, f func(File, []byte) error) error {
	var files []File
	for _, x := range all {
		if b, ok := s.r.blob(x.id); !ok {
			files = append(files, x)
		} else if int64(len(b.body)) != x.Size {
			return &TreeError{x.id, x.Path, fmt.Sprintf("has %d bytes, and git said %d", len(b.body), x.Size)}
		} else if err := f(x, b.body); err != nil {
			return err
		}
	}
	for len(files) > 0 {
		n, size := 0, int64(0)
		for n < len(files) && (n == 0 || size+files[n].Size < batchBytes) && n < maxBatch {
			size += files[n].Size
			n++
		}
		if err := s.batch(ctx, files[:n], f); err != nil {
			return err
		}
		files = files[n:]
	}
	return nil
}

func (s gitSource) batch(ctx context.Context, files []File, f func(File, []byte) error) error {
	names := make([]string, len(files))
	for i, x := range files {
		names[i] = x.id
	}
	i := 0
	return s.r.objects(ctx, names, func(got gitObject) error {
		x := files[i]
		i++
		kind := cmp.Or(x.kind, "blob")
		if want := fmt.Sprintf("%s %s %d", x.id, kind, x.Size); got.line != want {
			return fmt.Errorf("read %s: git said %q, not %q", x.Path, truncate(got.line, 200), want)
		}
		if !got.authentic() {
			return &TreeError{x.id, x.Path, "its content does not have the hash of its name: git's objects were changed (git fsck)"}
		}
		if kind == "blob" {
			s.r.addBlob(x.id, got.body)
		}
		return f(x, got.body)
	})
}

// truncate returns at most the first n bytes of s.
func truncate(s string, n int) string { return s[:min(len(s), n)] }
