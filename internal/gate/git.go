package gate

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/hostexec"
)

// Repository reads commits and trees with git, which runs nothing that a repository
// carries. It is for one goroutine, its trees' contents for any number.
type Repository struct {
	// Dir is the top of the work tree.
	Dir    string
	Runner *hostexec.Runner

	known map[string]bool // full names of commits that are there

	// Blobs that were read, by name, up to maxHeld bytes: two trees share most of theirs,
	// and asking git costs more than they do.
	mu    sync.Mutex
	blobs map[string][]byte
	held  int64
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

// ErrNoRevision is a revision that the repository does not know.
var ErrNoRevision = errors.New("no such revision")

// Commit is the full name of the commit that rev is.
func (r *Repository) Commit(ctx context.Context, rev string) (string, error) {
	if rev == "" || strings.HasPrefix(rev, "-") || strings.ContainsAny(rev, "\x00\n") {
		return "", fmt.Errorf("revision %q: %w", rev, ErrNoRevision)
	}
	if r.known[rev] {
		return rev, nil
	}
	if err := r.oneMeaning(ctx, rev); err != nil {
		return "", err
	}
	out, err := r.git(ctx, nil, "rev-parse", "--verify", "-q", rev+"^{commit}")
	var failed *hostexec.FailedError
	if errors.As(err, &failed) {
		return "", fmt.Errorf("revision %q: %w", rev, ErrNoRevision)
	}
	commit := strings.TrimSpace(string(out))
	if err == nil {
		if r.known == nil {
			r.known = map[string]bool{}
		}
		r.known[commit] = true
	}
	return commit, err
}

// ErrAmbiguous is a name that several references have. A tag comes with a fetch from
// whoever may push one, and git prefers it to a branch of that name.
var ErrAmbiguous = errors.New("several references have this name")

var (
	wholeID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A(?:[0-9a-f]{40}|[0-9a-f]{64})\z`) })
	partID  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A[0-9a-f]{4,63}\z`) })
)

// oneMeaning refuses a name that could be another reference's than is meant.
func (r *Repository) oneMeaning(ctx context.Context, rev string) error {
	name := rev
	if i := strings.IndexAny(rev, "^~@:"); i >= 0 {
		name = rev[:i]
	}
	if name == "" || name == "HEAD" || strings.HasPrefix(name, "refs/") || wholeID().MatchString(name) {
		return nil
	}
	may := []string{"refs/" + name, "refs/tags/" + name, "refs/heads/" + name, "refs/remotes/" + name, "refs/remotes/" + name + "/HEAD"}
	out, err := r.git(ctx, nil, append([]string{"for-each-ref", "--format=%(objectname) %(refname)"}, may...)...)
	if err != nil {
		return fmt.Errorf("revision %q: %w", rev, err)
	}
	var have []string
	ids := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		id, ref, _ := strings.Cut(strings.TrimSpace(line), " ")
		if slices.Contains(may, ref) {
			have = append(have, ref)
			ids[id] = true
		}
	}
	if len(ids) > 1 || len(ids) == 1 && partID().MatchString(name) {
		return fmt.Errorf("revision %q can be %s: write the whole name, or the commit: %w", rev, strings.Join(have, " or "), ErrAmbiguous)
	}
	return nil
}

// ErrUnrelated are two commits that have none in common.
var ErrUnrelated = errors.New("they have no commit in common")

// MergeBase is the commit that two have in common.
func (r *Repository) MergeBase(ctx context.Context, a, b string) (string, error) {
	out, err := r.git(ctx, nil, "merge-base", a, b)
	var failed *hostexec.FailedError
	if errors.As(err, &failed) {
		return "", ErrUnrelated
	}
	return strings.TrimSpace(string(out)), err
}

// Remotes are the addresses of the repository's remotes, by name: all of each.
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

// Tree is that of a revision.
func (r *Repository) Tree(ctx context.Context, rev string) (*Tree, error) {
	commit, err := r.Commit(ctx, rev)
	if err != nil {
		return nil, err
	}
	out, err := r.git(ctx, nil, "ls-tree", "-r", "-l", "-z", "--full-tree", commit)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", rev, err)
	}
	t := &Tree{Name: rev, Commit: commit, src: gitSource{r}, repo: r}
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
		if f[1] != "blob" || x.Mode != Regular && x.Mode != Executable && x.Mode != Link && x.Mode != 0o100664 {
			return nil, &TreeError{rev, p, "is a submodule, or something else that is no file"}
		}
		if x.Mode == 0o100664 {
			x.Mode = Regular
		}
		if x.Size, err = strconv.ParseInt(f[3], 10, 64); err != nil {
			return nil, fmt.Errorf("list %s: %w", rev, err)
		}
		t.Files = append(t.Files, x)
	}
	if _, err := t.finish(); err != nil {
		return nil, err
	}
	return t, r.isCommits(ctx, t, modes)
}

// isCommits reports whether the tree is the one that its commit's name stands for. git
// believes what lies in its object directory under a name; a verdict names the commit,
// and who reads it elsewhere has the true one.
func (r *Repository) isCommits(ctx context.Context, t *Tree, modes map[string]string) error {
	out, err := r.git(ctx, []byte(t.Commit+"\n"), "cat-file", "--batch", "--buffer")
	if err != nil {
		return fmt.Errorf("read %s: %w", t.Name, err)
	}
	head, rest, _ := bytes.Cut(out, []byte("\n"))
	var size int
	if _, err := fmt.Sscanf(string(head), t.Commit+" commit %d", &size); err != nil || len(rest) != size+1 {
		return fmt.Errorf("read %s: git said %q", t.Name, cut(string(head), 200))
	}
	body := rest[:size]
	id, _, _ := strings.Cut(strings.TrimPrefix(string(body), "tree "), "\n")
	if objectID("commit", body, len(t.Commit)) != t.Commit {
		return &TreeError{t.Name, "", "its commit is not what its name stands for: git's objects were changed (git fsck)"}
	}
	if got := treeID(t.Files, modes, "", len(t.Commit)); got != id {
		return &TreeError{t.Name, "", "its files are not those that its commit names: git's objects were changed, or not written by git (git fsck)"}
	}
	return nil
}

// objectID is git's name of an object, of digits hexadecimal digits.
func objectID(kind string, b []byte, digits int) string {
	h := sha1.New()
	if digits == 64 {
		h = sha256.New()
	}
	fmt.Fprintf(h, "%s %d\x00", kind, len(b))
	h.Write(b)
	return hex.EncodeToString(h.Sum(nil))
}

// treeID is git's name of the directory whose files these are, sorted by path, where
// prefix is what all of them begin with.
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
		end := i + 1
		for end < len(files) && strings.HasPrefix(files[end].Path, prefix+name+"/") {
			end++
		}
		all = append(all, entry{name + "/", "40000", name, treeID(files[i:end], modes, prefix+name+"/", digits)})
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
	return objectID("tree", b.Bytes(), digits)
}

// Passing is what commits between two had, and the second has not: a file's content
// that came and went, or a commit's own text.
type Passing struct {
	Commit bool
	ID     string // git's name
	Path   string // of a file; empty: of a commit
}

// Passed gives what came with the commits that t has and base has not, and is not in t
// itself. Nothing, where either is no commit.
func (t *Tree) Passed(ctx context.Context, base *Tree, f func(Passing, []byte) error) error {
	if t.repo == nil || base.repo == nil || t.Commit == base.Commit {
		return nil
	}
	out, err := t.repo.git(ctx, nil, "rev-list", "--objects", t.Commit, "^"+base.Commit)
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
	commits := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		w := strings.Fields(line)
		if len(w) != 3 {
			return fmt.Errorf("look at what came between %s and %s: git said %q", base.Name, t.Name, cut(line, 200))
		}
		if w[1] == "tree" {
			continue
		}
		n, err := strconv.ParseInt(w[2], 10, 64)
		if sum += n; err != nil || n > MaxFileBytes || sum > MaxTreeBytes || len(list) >= MaxFiles {
			return fmt.Errorf("what came between %s and %s is more than a gate looks at", base.Name, t.Name)
		}
		commits[w[0]] = w[1] != "blob"
		list = append(list, File{Path: at[w[0]], Size: n, id: w[0], kind: w[1]})
	}
	return t.src.each(ctx, list, func(x File, b []byte) error {
		return f(Passing{commits[x.id], x.id, x.Path}, b)
	})
}

// WorkTree is what lies in the work tree: what git tracks or would, ignored files
// left out.
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

// Top is the work tree that dir is the top of; false where git knows none there.
func (r *Repository) Top(ctx context.Context) bool {
	_, err := r.git(ctx, nil, "rev-parse", "--is-inside-work-tree")
	return err == nil
}

// gitSource has the blobs of a repository.
type gitSource struct{ r *Repository }

// batchBytes bounds what is asked of git at once.
const batchBytes = 64 << 20

// maxHeld bounds the blobs that a Repository keeps, in bytes.
const maxHeld = 64 << 20

// hold gives a blob that was read before, or keeps one.
func (r *Repository) hold(id string, b []byte) ([]byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b == nil {
		b, ok := r.blobs[id]
		return b, ok
	}
	if r.held+int64(len(b)) <= maxHeld {
		if r.blobs == nil {
			r.blobs = map[string][]byte{}
		}
		r.blobs[id] = bytes.Clone(b)
		r.held += int64(len(b))
	}
	return b, true
}

func (s gitSource) each(ctx context.Context, all []File, f func(File, []byte) error) error {
	var files []File
	for _, x := range all {
		if b, ok := s.r.hold(x.id, nil); !ok {
			files = append(files, x)
		} else if err := f(x, b); err != nil {
			return err
		}
	}
	for len(files) > 0 {
		n, size := 0, int64(0)
		for n < len(files) && (n == 0 || size+files[n].Size < batchBytes) && n < 50_000 {
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
	var ask bytes.Buffer
	for _, x := range files {
		ask.WriteString(x.id + "\n")
	}
	out, err := s.r.git(ctx, ask.Bytes(), "cat-file", "--batch", "--buffer")
	if err != nil {
		return fmt.Errorf("read blobs: %w", err)
	}
	for _, x := range files {
		head, rest, ok := bytes.Cut(out, []byte("\n"))
		kind := cmp.Or(x.kind, "blob")
		want := fmt.Sprintf("%s %s %d", x.id, kind, x.Size)
		if !ok || string(head) != want || int64(len(rest)) < x.Size+1 {
			return fmt.Errorf("read %s: git said %q, not %q", x.Path, cut(string(head), 200), want)
		}
		if objectID(kind, rest[:x.Size], len(x.id)) != x.id {
			return &TreeError{x.id, x.Path, "its content is not what its name stands for: git's objects were changed (git fsck)"}
		}
		b, _ := s.r.hold(x.id, rest[:x.Size:x.Size])
		if err := f(x, b); err != nil {
			return err
		}
		out = rest[x.Size+1:]
	}
	return nil
}

func cut(s string, n int) string { return s[:min(len(s), cmp.Or(n, len(s)))] }
