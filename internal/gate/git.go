package gate

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha1"
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

	"github.com/carboy/carboy/internal/hostexec"
)

// Repository reads commits and trees with git, which runs nothing that a repository
// carries. It is for one goroutine, its trees' contents for any number. What a revision
// is counts as it was when it was asked for first.
type Repository struct {
	// Dir is the top of the work tree.
	Dir    string
	Runner *hostexec.Runner

	known   map[string]string     // commits by revision, and by their own full names; empty: none
	commits map[string]commitHead // by their full names, which they were hashed for
	files   map[string][]File     // by commits, whose trees' names they were hashed for

	hints  Hints
	listed map[string][]byte // what ls-tree said, by commit, and nobody has hashed
	hinted map[string][]byte // what it said another time
	lists  map[string][]byte // what it said, by commits whose trees' names it was hashed for

	// Blobs that were read, by name, up to maxHeld bytes: two trees share most of theirs,
	// and asking git costs more than they do.
	mu    sync.Mutex
	blobs map[string]held
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
	if commit, ok := r.known[rev]; ok && commit != "" {
		return commit, nil
	} else if ok {
		return "", fmt.Errorf("revision %q: %w", rev, ErrNoRevision)
	}
	if names, err := r.severalMeanings(ctx, rev); err != nil {
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
		return "", fmt.Errorf("revision %q: %w", rev, ErrNoRevision) // ^x is all but x
	}
	r.know(rev, commit)
	return commit, nil
}

// ErrAmbiguous is a name that several references have. A tag comes with a fetch from
// whoever may push one, and git prefers it to a branch of that name.
var ErrAmbiguous = errors.New("several references have this name")

var (
	wholeID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A(?:[0-9a-f]{40}|[0-9a-f]{64})\z`) })
	partID  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A[0-9a-f]{4,63}\z`) })
)

// severalMeanings are the references that each of the names could stand for, where that
// is more than one thing.
func (r *Repository) severalMeanings(ctx context.Context, revs ...string) (map[string][]string, error) {
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

// ErrUnrelated are two commits that have none in common.
var ErrUnrelated = errors.New("they have no commit in common")

func (r *Repository) know(rev, commit string) {
	if r.known == nil {
		r.known = map[string]string{}
	}
	r.known[rev] = commit
	if commit != "" {
		r.known[commit] = commit
	}
}

// Resolve asks for revisions at once, so that Commit need not for each. Some may not be
// there, and one that Commit refuses it refuses afterwards, too.
func (r *Repository) Resolve(ctx context.Context, revs ...string) error {
	revs = slices.DeleteFunc(slices.Clone(revs), func(rev string) bool {
		_, ok := r.known[rev]
		return ok || rev == "" || strings.HasPrefix(rev, "-") || strings.ContainsAny(rev, " \x00\n")
	})
	if len(revs) == 0 {
		return nil
	}
	var out []answer
	var several map[string][]string
	eg, gctx := errgroup.WithContext(ctx)
	eg.Go(func() (err error) {
		several, err = r.severalMeanings(gctx, revs...)
		return err
	})
	eg.Go(func() (err error) {
		ask := make([]string, len(revs))
		for i, rev := range revs {
			ask[i] = rev + "^{commit}"
		}
		out, err = r.ask(gctx, ask)
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
				r.know(rev, x.id)
			}
			r.keep(x.id, x.body)
		case x.line != rev+"^{commit} missing":
			return nil // the others are asked for alone
		case clear:
			r.know(rev, "")
		}
	}
	return nil
}

// HintsSchema names the format of Hints.
const HintsSchema = "carboy.dev/gate-asked/v1"

// Hints are what was asked of git before, and may be needed again. They say nothing of
// what there is: what git answers is hashed, as ever.
type Hints struct {
	Schema  string   `json:"schema"`
	Commits []string `json:"commits"`
	Blobs   []string `json:"blobs"`
	// Lists are what git listed of the commits. One counts where it is what the commit
	// names, and the sizes in it are those of contents that git gave this time.
	Lists map[string][]byte `json:"lists,omitempty"`
}

// maxHints bounds the blobs that are asked for before it is known that they are needed,
// in bytes.
const maxHints = 16 << 20

// Hints are those that would have helped so far.
func (r *Repository) Hints() Hints {
	h := Hints{Schema: HintsSchema, Commits: slices.Sorted(maps.Keys(r.files))}
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
		return h // sizes could not be compared
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

// Expect has the next Resolve ask for more than it is told to. What is no name of an
// object is left out.
func (r *Repository) Expect(h Hints) {
	no := func(id string) bool { return !wholeID().MatchString(id) }
	h.Commits, h.Blobs = slices.DeleteFunc(h.Commits, no), slices.DeleteFunc(h.Blobs, no)
	if len(h.Commits) <= 2 && len(h.Blobs) <= maxBatch {
		r.hints = h
	}
}

// ask asks for objects, and for what is expected; it gives an answer for each of the
// first.
func (r *Repository) ask(ctx context.Context, names []string) ([]answer, error) {
	h := r.hints
	r.hints = Hints{}
	var wg sync.WaitGroup
	lists := make([][]byte, len(h.Commits))
	for i, c := range h.Commits {
		if len(h.Lists[c]) == 0 {
			wg.Go(func() { lists[i], _ = r.list(ctx, c) })
		}
	}
	var out []answer
	take := func(x answer) error {
		if len(out) < len(names) {
			out = append(out, x)
		} else if x.kind == "blob" && x.true() {
			r.hold(x.id, x.body)
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

// answer is what git cat-file --batch says of one object: a line alone, of one that is
// not there, has no kind.
type answer struct {
	line, kind, id string
	body           []byte
}

// true reports whether an object is what its name stands for.
func (x answer) true() bool { return objectID(x.kind, x.body, len(x.id)) == x.id }

// objects asks git for objects and gives each answer as it comes, in their order: who
// takes one works while git does. There is one for each, else it is an error.
func (r *Repository) objects(ctx context.Context, names []string, f func(answer) error) error {
	if len(names) == 0 {
		return nil
	}
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	ended := make(chan error, 1)
	go func() { // ends with git, which ends at the latest when nobody reads any more
		_, err := r.Runner.Run(ctx, hostexec.Command{
			Program: hostexec.Git, Args: []string{"cat-file", "--batch", "--buffer"}, Dir: r.Dir, Timeout: gitTimeout,
			Stdin: []byte(strings.Join(names, "\n") + "\n"), Output: out,
		})
		if errors.Is(err, hostexec.ErrUnkilled) { // it still has the other end
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

// maxObjects bounds what git may say at once, in bytes.
const maxObjects = 256 << 20

func readObjects(from io.Reader, n int, f func(answer) error) error {
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
		x := answer{line: string(line[:len(line)-1])}
		if w := strings.Fields(x.line); len(w) == 3 && wholeID().MatchString(w[0]) {
			size, err := strconv.ParseInt(w[2], 10, 64)
			if left -= size; err != nil || size < 0 || size > MaxFileBytes || left < 0 {
				return fmt.Errorf("git said %q: that is more than is taken at once", cut(x.line, 200))
			}
			x.id, x.kind, x.body = w[0], w[1], make([]byte, size)
			if _, err = io.ReadFull(r, x.body); err == nil {
				_, err = r.Discard(1) // a line's end
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
		return cmp.Or(err, errors.New("git said more than it was asked for"))
	}
	return nil
}

// commitHead is what of a commit counts here.
type commitHead struct {
	tree   string
	parent string // the first; empty: there is none
}

// keep keeps a commit that is what its name stands for, and reports whether it is.
func (r *Repository) keep(id string, body []byte) bool {
	if objectID("commit", body, len(id)) != id {
		return false
	}
	var c commitHead
	c.tree, _, _ = strings.Cut(strings.TrimPrefix(string(body), "tree "), "\n")
	if p := parentsOf(body); len(p) > 0 {
		c.parent = p[0]
	}
	if r.commits == nil {
		r.commits = map[string]commitHead{}
	}
	r.commits[id] = c
	return true
}

// parentsOf are those that a commit says it has.
func parentsOf(body []byte) (all []string) {
	_, rest, _ := strings.Cut(string(body), "\n") // its tree
	for {
		line, after, _ := strings.Cut(rest, "\n")
		p, ok := strings.CutPrefix(line, "parent ")
		if !ok {
			return all
		}
		all, rest = append(all, p), after
	}
}

// head reads a commit, which is called name where it can't be.
func (r *Repository) head(ctx context.Context, name, id string) (commitHead, error) {
	if c, ok := r.commits[id]; ok {
		return c, nil
	}
	var got answer
	if err := r.objects(ctx, []string{id}, func(x answer) error { got = x; return nil }); err != nil {
		return commitHead{}, fmt.Errorf("read %s: %w", name, err)
	}
	if got.kind != "commit" || got.id != id {
		return commitHead{}, fmt.Errorf("read %s: git said %q", name, cut(got.line, 200))
	}
	if !r.keep(id, got.body) {
		return commitHead{}, &TreeError{name, "", "its commit is not what its name stands for: git's objects were changed (git fsck)"}
	}
	return r.commits[id], nil
}

// Parent is the commit before one, whatever git's grafts say; empty: there is none. It
// may be one that is not there.
func (r *Repository) Parent(ctx context.Context, id string) (string, error) {
	c, err := r.head(ctx, id, id)
	return c.parent, err
}

// Load reads the trees of commits at once, and their contents as far as they can be
// held, so that what follows need not ask git again.
func (r *Repository) Load(ctx context.Context, commits ...string) error {
	slices.Sort(commits)
	commits = slices.Compact(commits)
	out := make([][]byte, len(commits))
	eg, gctx := errgroup.WithContext(ctx)
	for i, c := range commits {
		if out[i] = r.listed[c]; out[i] != nil || r.asHinted(ctx, c) {
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

// asHinted takes the list of a commit from what git said another time, if that is true.
func (r *Repository) asHinted(ctx context.Context, commit string) bool {
	list := r.hinted[commit]
	if len(list) == 0 {
		return false
	}
	t, err := r.tree(ctx, commit, commit, list)
	if err != nil {
		return false
	}
	for _, f := range t.Files {
		if b, ok := r.has(f.id); !ok || int64(len(b.body)) != f.Size {
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
	if _, ok := r.files[commit]; ok {
		return r.tree(ctx, rev, commit, nil)
	}
	out, err := r.list(ctx, commit)
	if err != nil {
		return nil, err
	}
	return r.tree(ctx, rev, commit, out)
}

// tree is that of a commit, of what ls-tree said, or of what it said before.
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
	// git believes what lies in its object directory under a name; a verdict names the
	// commit, and who reads it elsewhere has the true one.
	c, err := r.head(ctx, rev, commit)
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
			return fmt.Errorf("look at what came between %s and %s: git said %q", base.Name, t.Name, cut(line, 200))
		}
		n, err := strconv.ParseInt(w[2], 10, 64)
		if sum += n; err != nil || n > MaxFileBytes || sum > MaxTreeBytes || len(list) >= MaxFiles {
			return fmt.Errorf("what came between %s and %s is more than a gate looks at", base.Name, t.Name)
		}
		x := File{Size: n, id: w[0], kind: w[1]}
		if w[1] != "commit" {
			x.Path = at[w[0]]
		}
		list = append(list, x)
	}
	// The trees are read to be compared with their names, and the commits also with the
	// parents that git says they have: one that is forged, or a history that ends before
	// its time (a shallow clone's), would hide what came and went.
	return t.src.each(ctx, list, func(x File, b []byte) error {
		switch x.kind {
		case "tree":
			return nil
		case "commit":
			if strings.Join(parentsOf(b), " ") != at[x.id] {
				return &TreeError{t.Name, x.id, "git shows other parents of it than it has, so what came and went can't be seen (in a shallow clone: git fetch --unshallow)"}
			}
			return f(Passing{true, x.id, ""}, b)
		}
		return f(Passing{x.kind != "blob", x.id, x.Path}, b)
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

// maxBatch is so too, in objects.
const maxBatch = 50_000

// maxHeld bounds the blobs that a Repository keeps, in bytes.
const maxHeld = 64 << 20

// held is a blob that is what its name stands for.
type held struct {
	body []byte
	sum  [sha256.Size]byte
}

// hold keeps a blob.
func (r *Repository) hold(id string, b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held+int64(len(b)) <= maxHeld {
		if r.blobs == nil {
			r.blobs = map[string]held{}
		}
		r.blobs[id] = held{b, sha256.Sum256(b)}
		r.held += int64(len(b))
	}
}

// has gives a blob that was read before.
func (r *Repository) has(id string) (held, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, ok := r.blobs[id]
	return b, ok
}

// sum is the SHA-256 of a file that was read before.
func (s gitSource) sum(f File) ([sha256.Size]byte, bool) {
	b, ok := s.r.has(f.id)
	return b.sum, ok && int64(len(b.body)) == f.Size
}

func (s gitSource) each(ctx context.Context, all []File, f func(File, []byte) error) error {
	var files []File
	for _, x := range all {
		if b, ok := s.r.has(x.id); !ok {
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
	return s.r.objects(ctx, names, func(got answer) error {
		x := files[i]
		i++
		kind := cmp.Or(x.kind, "blob")
		if want := fmt.Sprintf("%s %s %d", x.id, kind, x.Size); got.line != want {
			return fmt.Errorf("read %s: git said %q, not %q", x.Path, cut(got.line, 200), want)
		}
		if !got.true() {
			return &TreeError{x.id, x.Path, "its content is not what its name stands for: git's objects were changed (git fsck)"}
		}
		if kind == "blob" {
			s.r.hold(x.id, got.body)
		}
		return f(x, got.body)
	})
}

func cut(s string, n int) string { return s[:min(len(s), cmp.Or(n, len(s)))] }
