package gate

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
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

	known  map[string]string // commits by revision, and by their own full names; empty: none
	listed map[string][]byte // what ls-tree said, by commit

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
	if commit, ok := r.known[rev]; ok && commit != "" {
		return commit, nil
	} else if ok {
		return "", fmt.Errorf("revision %q: %w", rev, ErrNoRevision)
	}
	out, err := r.git(ctx, nil, "rev-parse", "--verify", "-q", rev+"^{commit}")
	var failed *hostexec.FailedError
	if errors.As(err, &failed) {
		return "", fmt.Errorf("revision %q: %w", rev, ErrNoRevision)
	}
	commit := strings.TrimSpace(string(out))
	if err == nil {
		r.know(rev, commit)
	}
	return commit, err
}

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
// there.
func (r *Repository) Resolve(ctx context.Context, revs ...string) error {
	revs = slices.DeleteFunc(slices.Clone(revs), func(rev string) bool {
		_, ok := r.known[rev]
		return ok || rev == "" || strings.HasPrefix(rev, "-") || strings.ContainsAny(rev, " \x00\n")
	})
	var ask strings.Builder
	for _, rev := range revs {
		ask.WriteString(rev + "^{commit}\n")
	}
	out, err := r.git(ctx, []byte(ask.String()), "cat-file", "--batch-check", "--buffer")
	if err != nil {
		return fmt.Errorf("look revisions up: %w", err)
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(revs) {
		return nil // each is asked for alone
	}
	for i, rev := range revs {
		switch f := strings.Fields(lines[i]); {
		case len(f) == 3 && f[1] == "commit":
			r.know(rev, f[0])
		case lines[i] == rev+"^{commit} missing":
			r.know(rev, "")
		}
	}
	return nil
}

// Load reads the trees of commits at once, and their contents as far as they can be
// held, so that what follows need not ask git again.
func (r *Repository) Load(ctx context.Context, commits ...string) error {
	slices.Sort(commits)
	commits = slices.Compact(commits)
	out := make([][]byte, len(commits))
	eg, gctx := errgroup.WithContext(ctx)
	for i, c := range commits {
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
		if r.listed == nil {
			r.listed = map[string][]byte{}
		}
		r.listed[c] = out[i]
		t, err := r.Tree(ctx, c)
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

func (r *Repository) list(ctx context.Context, commit string) ([]byte, error) {
	return r.git(ctx, nil, "ls-tree", "-r", "-l", "-z", "--full-tree", commit)
}

// MergeBase is the commit that two have in common.
func (r *Repository) MergeBase(ctx context.Context, a, b string) (string, error) {
	out, err := r.git(ctx, nil, "merge-base", a, b)
	return strings.TrimSpace(string(out)), err
}

// Tree is that of a revision.
func (r *Repository) Tree(ctx context.Context, rev string) (*Tree, error) {
	commit, err := r.Commit(ctx, rev)
	if err != nil {
		return nil, err
	}
	out := r.listed[commit]
	if out == nil {
		if out, err = r.list(ctx, commit); err != nil {
			return nil, fmt.Errorf("list %s: %w", rev, err)
		}
	}
	t := &Tree{Name: rev, Commit: commit, src: gitSource{r}}
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
	return t.finish()
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
		want := fmt.Sprintf("%s blob %d", x.id, x.Size)
		if !ok || string(head) != want || int64(len(rest)) < x.Size+1 {
			return fmt.Errorf("read %s: git said %q, not %q", x.Path, cut(string(head), 200), want)
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
