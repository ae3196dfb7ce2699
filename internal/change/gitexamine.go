package change

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/carboy/carboy/internal/gitobject"
	"github.com/carboy/carboy/internal/hostexec"
)

// Refs returns the references of git that the bottle changed, with what would come with
// each. The policy adds to the protection that the set was collected with.
func (s *Set) Refs(ctx context.Context, policy Policy) ([]RefChange, error) {
	dirs := s.gitDirs()
	if len(dirs) == 0 {
		return nil, nil
	}
	root, err := reopenRoot(s.Workspace)
	if err != nil {
		return nil, err
	}
	defer closeFd(root)
	run, err := s.runner()
	if err != nil {
		return nil, err
	}
	var all []RefChange
	for _, dir := range dirs {
		r, err := openRepository(ctx, s, tree{root}, run, dir)
		if err != nil {
			return nil, fmt.Errorf("look at the commits of %s: %w", show(dot(dir)), err)
		}
		refs, err := r.examine(ctx, s.Protection.with(policy), func(*RefChange) bool { return true })
		r.close()
		if err != nil {
			return nil, fmt.Errorf("look at the commits of %s: %w", show(dot(dir)), err)
		}
		all = append(all, refs...)
	}
	return all, nil
}

func (s *Set) runner() (*hostexec.Runner, error) {
	return hostexec.New(hostexec.Options{Untrusted: []string{s.Workspace.Path}})
}

// with returns a policy that protects what either does.
func (p Policy) with(q Policy) Policy {
	return Policy{CI: p.CI || q.CI, Extra: slices.Concat(p.Extra, q.Extra)}
}

// examine returns the changed references. The objects of those that wanted chooses are taken
// into the store, and the references described.
func (r *repository) examine(ctx context.Context, policy Policy, wanted func(*RefChange) bool) ([]RefChange, error) {
	never := ""
	if err := r.open(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		never = err.Error()
	}
	refs := r.changes()
	if r.fresh {
		r.digits = gitobject.SHA1
		if len(refs) > 0 {
			r.digits = len(refs[0].New)
		}
	}
	chosen := 0
	for i := range refs {
		c := &refs[i]
		if never != "" {
			c.Never = never
		} else if c.Never == "" && chosen == maxRefs {
			c.Never = fmt.Sprintf("more than %d references changed: push the others, or fetch them", maxRefs)
		} else if c.Never == "" && wanted(c) {
			chosen++
		}
	}
	if chosen == 0 {
		return refs, nil
	}
	if err := r.look(ctx, policy, refs, wanted); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for i := range refs {
			refs[i].Never = "its commits can't be looked at: " + err.Error()
		}
	}
	// What the host has already is no change.
	return slices.DeleteFunc(refs, func(c RefChange) bool { return c.Name == "" }), nil
}

// look takes the objects of the picked references into the store, and describes them.
func (r *repository) look(ctx context.Context, policy Policy, refs []RefChange, wanted func(*RefChange) bool) error {
	if err := r.readObjects(ctx); err != nil {
		return err
	}
	var need []gitobject.ID
	for i := range refs {
		c := &refs[i]
		if c.Never != "" || c.New == "" || !wanted(c) {
			continue
		}
		ids, why, err := r.need(ctx, c.New)
		if err != nil {
			return err
		}
		c.Never = why
		need = append(need, ids...)
	}
	faults, err := r.receive(ctx, need)
	if err != nil {
		return err
	}
	others := r.otherWorktrees()
	for i := range refs {
		c := &refs[i]
		if c.Never != "" || !wanted(c) {
			continue
		}
		c.Protected = faults
		if where, ok := others[c.Name]; ok {
			c.Never = "the linked work tree " + show(where) + " has it checked out"
			continue
		}
		if err := r.describe(ctx, policy, c); err != nil {
			return err
		}
	}
	return nil
}

// otherWorktrees returns the branches that linked work trees have checked out.
func (r *repository) otherWorktrees() map[string]string {
	out := map[string]string{}
	if r.fresh {
		return out
	}
	names, _ := r.t.sorted(r.path("worktrees"))
	for _, name := range names {
		if b, err := r.hostFile("worktrees/"+name+"/HEAD", 4096); err == nil {
			out[headOf(b)] = name
		}
	}
	return out
}

// emptyTree returns the name of the tree without files, which git knows without being told.
func (r *repository) emptyTree() string { return gitobject.Name("tree", nil, r.digits) }

// describe fills in what a person must know of a reference whose objects are in the store.
func (r *repository) describe(ctx context.Context, policy Policy, c *RefChange) error {
	if c.New == "" {
		if c.CheckedOut {
			c.Never = "the host has it checked out"
		}
		return nil
	}
	commit := c.New
	kind, err := r.git(ctx, nil, "cat-file", "-t", c.New)
	if err == nil && string(kind) != "commit\n" {
		if strings.HasPrefix(c.Name, "refs/heads/") {
			c.Never = "a branch names a commit, and this is a " + strings.TrimSpace(string(kind))
			return nil
		}
		out, perr := r.git(ctx, nil, "rev-parse", "--verify", "-q", c.New+"^{commit}")
		if failed(perr) {
			c.Never = "it leads to no commit"
			return nil
		}
		commit, err = strings.TrimSpace(string(out)), perr
	}
	if err == nil {
		_, err = r.run.Run(ctx, hostexec.Command{Program: hostexec.GitLand, Args: r.queryArgs("rev-list", "--objects", c.New, "--not", "--all"),
			Dir: r.where(), Timeout: gitPatience})
	}
	if failed(err) {
		c.Never = "its history is not whole: " + err.Error()
		return nil
	}
	if err != nil {
		return err
	}
	base := r.emptyTree()
	if c.Old != "" {
		if out, err := r.git(ctx, nil, "rev-parse", "--verify", "-q", c.Old+"^{commit}"); err == nil {
			base = strings.TrimSpace(string(out))
		}
	} else if head := r.refs[r.head]; head != "" {
		base = head
	}
	if c.Old != "" && base != r.emptyTree() {
		if _, err := r.git(ctx, nil, "merge-base", "--is-ancestor", base, commit); err == nil {
			c.Forward = true
		} else if _, err := r.git(ctx, nil, "merge-base", "--is-ancestor", commit, base); err == nil && !strings.HasPrefix(c.Name, "refs/tags/") {
			c.Name = "" // the host went on, the bottle did not
			return nil
		}
	}
	return r.contents(ctx, policy, c, base, commit)
}

// queryArgs returns the arguments of a question to git, which finds the store's objects
// too.
func (r *repository) queryArgs(args ...string) []string {
	objects := "/nonexistent"
	if !r.fresh {
		objects = r.storeObjects()
	}
	return append([]string{"query", objects}, args...)
}

// contents lists the commits and files that come with a reference, and what is protected.
func (r *repository) contents(ctx context.Context, policy Policy, c *RefChange, base, commit string) error {
	out, err := r.git(ctx, nil, "rev-list", commit, "--not", "--all")
	if err != nil {
		return err
	}
	c.Count = bytes.Count(out, []byte("\n"))
	lines, err := r.git(ctx, nil, "log", "--max-count="+strconv.Itoa(maxShown), "--format=tformat:%H%x00%an%x00%s", commit, "--not", "--all")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(lines)) {
		if f := strings.SplitN(strings.TrimSuffix(line, "\n"), "\x00", 3); len(f) == 3 {
			c.Commits = append(c.Commits, CommitLine{f[0], Bytes(f[1]), Bytes(f[2])})
		}
	}
	diff, err := r.git(ctx, nil, "diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", base, commit)
	if err != nil {
		return err
	}
	files, err := rawDiff(diff)
	if err != nil {
		return err
	}
	// Each commit is compared with its parents as well: what one adds and the next one
	// removes is written when somebody checks the first one out.
	diff, err = r.git(ctx, out, "diff-tree", "--stdin", "--no-commit-id", "-r", "-c", "--root", "-z", "--raw", "--no-renames", "--no-abbrev")
	if err != nil {
		return err
	}
	between, err := rawDiff(diff)
	if err != nil {
		return err
	}
	if err := r.protect(ctx, policy, c, append(slices.Clone(files), between...)); err != nil {
		return err
	}
	if len(files) > maxRefFiles {
		files = files[:maxRefFiles]
	}
	c.Files = files
	if head, err := r.bottleFile("HEAD", 4096); err == nil && headOf(head) == c.Name {
		r.compare(ctx, c)
		files = c.Unseen()
	}
	return r.patch(ctx, c, files, base, commit)
}

// patch shows what changes in files.
func (r *repository) patch(ctx context.Context, c *RefChange, files []RefFile, base, commit string) error {
	args := []string{"diff-tree", "-r", "-p", "--no-renames", base, commit, "--"}
	for _, f := range files[:min(len(files), maxPatched)] {
		args = append(args, string(f.Path))
	}
	if len(files) == 0 {
		return nil
	}
	res, err := r.run.Run(ctx, hostexec.Command{Program: hostexec.GitLand, Args: r.queryArgs(args...), Dir: r.where(), Timeout: gitPatience,
		Stdout: hostexec.Keep{Head: maxPatch, Tail: 1}})
	c.Patch = Bytes(res.Stdout.Text())
	return err
}

// rawDiff reads the output of diff-tree --raw -z, also of merges: a colon for each parent,
// modes, object names, letters; a zero byte; the path; a zero byte.
func rawDiff(b []byte) ([]RefFile, error) {
	var out []RefFile
	for len(b) > 0 {
		head, rest, ok1 := bytes.Cut(b, []byte{0})
		name, rest, ok2 := bytes.Cut(rest, []byte{0})
		n := 0
		for n < len(head) && head[n] == ':' {
			n++
		}
		f := strings.Fields(string(head[n:]))
		if !ok1 || !ok2 || n == 0 || len(f) != 2*(n+1)+1 {
			return nil, fmt.Errorf("read a difference: git said %q", head[:min(len(head), 200)])
		}
		out = append(out, RefFile{Path: Bytes(name), mode: f[n], id: f[2*n+1], Status: f[len(f)-1][:1]})
		b = rest
	}
	return out, nil
}

// protect adds why the files that come with a reference are protected, as in the work tree.
func (r *repository) protect(ctx context.Context, policy Policy, c *RefChange, files []RefFile) error {
	v := newView(r.t, r.s)
	said := map[string]bool{}
	for _, f := range files {
		rel := join(r.dir, string(f.Path))
		typ := File
		if f.mode == gitobject.ModeLink {
			typ = Symlink
		}
		reasons := policy.Path(rel, typ)
		if typ == Symlink {
			target, err := r.git(ctx, nil, "cat-file", "-p", f.id)
			if err != nil {
				return err
			}
			reasons = append(reasons, v.link(policy, rel, string(target))...)
		}
		for _, why := range reasons {
			text := show(rel) + " in its commits: " + why.Why
			if said[text] || len(said) == maxShown {
				continue
			}
			said[text] = true
			c.Protected = append(c.Protected, Reason{why.Rule, text})
		}
	}
	return nil
}

// compare marks the files of a reference that the bottle's work tree shows otherwise: git
// hides them on request (skip-worktree, assume-unchanged).
func (r *repository) compare(ctx context.Context, c *RefChange) {
	v := newView(r.t, r.s)
	for i := range c.Files {
		f := &c.Files[i]
		if ctx.Err() != nil {
			return
		}
		rel := join(r.dir, string(f.Path))
		typ, target := v.at(rel)
		switch {
		case f.mode == gitobject.ModeSubmodule:
		case f.Status == "D":
			f.Unseen = typ == File || typ == Symlink
		case typ == Symlink:
			f.Unseen = f.mode != gitobject.ModeLink || gitobject.Name("blob", []byte(target), r.digits) != f.id
		case typ == File:
			f.Unseen = f.mode == gitobject.ModeLink || r.fileName(rel) != f.id
		default:
			f.Unseen = true
		}
	}
}

// fileName returns the object name of a file of the bottle's work tree.
func (r *repository) fileName(rel string) string {
	var from io.ReadCloser
	var size int64
	if ch, ok := r.s.Lookup(rel); ok && ch.Kind != Mode {
		f, err := r.s.Content(ch)
		if err != nil {
			return ""
		}
		from, size = f, ch.Size
	} else {
		f, st, err := r.t.openFile(rel)
		if err != nil {
			return ""
		}
		from, size = f, st.Size
	}
	defer from.Close()
	h := gitobject.NewHash(r.digits)
	gitobject.Begin(h, "blob", size)
	if n, err := io.Copy(h, io.LimitReader(from, size)); err != nil || n != size {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil))
}
