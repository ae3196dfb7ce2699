package change

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"

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
	for i, dir := range dirs {
		r, err := openRepository(ctx, s, tree{root}, run, dir, i >= maxRepos)
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
	chosen, claimed := 0, r.claimed()
	for i := range refs {
		c := &refs[i]
		switch {
		case never != "":
			c.Never = never
		case c.Never == "" && claimed[c.Name] != "":
			c.Never = claimed[c.Name]
		case c.Never != "" || !wanted(c):
		case chosen == maxRefs && !c.CheckedOut:
			c.Never = fmt.Sprintf("more than %d references changed: push the others, or fetch them", maxRefs)
		case !c.CheckedOut:
			chosen++
		}
	}
	if err := r.look(ctx, policy, refs, wanted); err != nil {
		return nil, err
	}
	// What the host has already is no change.
	return slices.DeleteFunc(refs, func(c RefChange) bool { return c.Name == "" }), nil
}

// look takes the objects of the picked references into the store, and describes them. What
// goes wrong with one reference has no effect on what is said of another: a landing looks at
// fewer of them than a diff.
func (r *repository) look(ctx context.Context, policy Policy, refs []RefChange, wanted func(*RefChange) bool) error {
	for i := range refs {
		c := &refs[i]
		if c.Never != "" || !wanted(c) {
			continue
		}
		err := r.lookAt(ctx, policy, c)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			c.Never = "its commits can't be looked at: " + err.Error()
		}
	}
	return nil
}

func (r *repository) lookAt(ctx context.Context, policy Policy, c *RefChange) error {
	if err := r.readObjects(ctx); err != nil {
		return err
	}
	if c.New != "" {
		need, why, err := r.need(ctx, c.New)
		if c.Never = why; err != nil || why != "" {
			return err
		}
		if err := r.receive(ctx, c, need); err != nil || c.Never != "" {
			return err
		}
	}
	if what := r.underWay(); c.CheckedOut && what != "" {
		c.Never = what + ": end it there, with the files that landed, or abort it and land again"
		return nil
	}
	return r.describe(ctx, policy, c)
}

// underWay returns what git has begun on the host's branch and not ended, "" if there is
// nothing.
func (r *repository) underWay() string {
	for _, begun := range [][2]string{
		{"MERGE_HEAD", "merge"}, {"CHERRY_PICK_HEAD", "cherry-pick"}, {"REVERT_HEAD", "revert"}, {"rebase-apply", "rebase or am"}, {"rebase-merge", "rebase"},
		{"sequencer", "cherry-pick or revert"},
	} {
		if typ, _ := hostAt(r.t, r.path(begun[0])); typ != "" && !r.fresh {
			return "a " + begun[1] + " is under way on the host"
		}
	}
	return ""
}

// claimed returns the branches that git itself would not move, each with the reason: linked
// work trees have them checked out, or a rebase moves them when it ends, unless they moved
// meanwhile.
func (r *repository) claimed() map[string]string {
	out := map[string]string{}
	if r.fresh {
		return out
	}
	add := func(file, why string) {
		b, _ := r.hostFile(file, maxRefFile)
		for line := range strings.Lines(string(b)) {
			if name := strings.TrimSpace(strings.TrimPrefix(line, "ref: ")); refName(name) {
				out[name] = why
			}
		}
	}
	in := func(dir, where string) {
		// update-refs names each branch that git rebase --update-refs moves too.
		for _, file := range []string{"rebase-merge/head-name", "rebase-merge/update-refs", "rebase-apply/head-name"} {
			add(dir+file, "a rebase of it is under way "+where)
		}
	}
	in("", "on the host: end or abort it first")
	names, _ := r.t.sorted(r.path("worktrees"))
	for _, name := range names {
		dir, where := "worktrees/"+name+"/", "the linked work tree "+show(name)
		in(dir, "in "+where)
		add(dir+"HEAD", where+" has it checked out: git switch there first")
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
	if err := r.protect(ctx, policy, c, commit, append(slices.Clone(files), between...)); err != nil {
		return err
	}
	c.Files, c.FileCount = files, len(files)
	if head, err := r.bottleFile("HEAD", 4096); c.CheckedOut || err == nil && headOf(head) == c.Name {
		r.compare(ctx, c)
		files = slices.DeleteFunc(slices.Clone(files), func(f RefFile) bool { return !f.Unseen && !f.recoded })
	}
	c.Files = listed(c.Files, maxRefFiles)
	return r.patch(ctx, c, files, base, commit)
}

// listed returns at most n of the files. If that is not all, those that the work tree does
// not show come first.
func listed(files []RefFile, n int) []RefFile {
	if len(files) <= n {
		return files
	}
	seen := slices.DeleteFunc(slices.Clone(files), func(f RefFile) bool { return f.Unseen })
	hidden := slices.DeleteFunc(files, func(f RefFile) bool { return !f.Unseen })
	return append(hidden, seen...)[:n]
}

// patch shows what changes in files. The attributes of no work tree have a say in how.
func (r *repository) patch(ctx context.Context, c *RefChange, files []RefFile, base, commit string) error {
	args := []string{"diff-tree", "-r", "-p", "--no-renames", base, commit, "--"}
	for _, f := range files[:min(len(files), maxPatched)] {
		args = append(args, string(f.Path))
	}
	if len(files) == 0 {
		return nil
	}
	objects := r.hostObjects()
	if r.fresh {
		objects = r.storeObjects()
	}
	res, err := r.run.Run(ctx, hostexec.Command{Program: hostexec.GitLand, Args: append([]string{"query", objects}, args...), Dir: r.store, Timeout: gitPatience,
		Stdout: hostexec.Keep{Head: maxPatch, Tail: 1}})
	c.Patch = Bytes(res.Stdout.Text())
	if n := len(files) - maxPatched; n > 0 {
		c.Patch += Bytes(fmt.Sprintf("… and %d more files, not shown\n", n))
	}
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
func (r *repository) protect(ctx context.Context, policy Policy, c *RefChange, commit string, files []RefFile) error {
	v := newView(r.t, r.s)
	said := map[string]bool{}
	bare, err := r.bareIn(ctx, v, commit, files)
	if err != nil {
		return err
	}
	for _, f := range files {
		rel := join(r.dir, string(f.Path))
		typ := File
		if f.mode == gitobject.ModeLink {
			typ = Symlink
		}
		reasons := policy.Path(rel, typ)
		if within(bare, string(f.Path)) {
			reasons = append(reasons, isBare)
		}
		if typ == Symlink {
			target, err := r.git(ctx, nil, "cat-file", "-p", f.id)
			if err != nil {
				return err
			}
			reasons = append(reasons, v.link(policy, rel, string(target))...)
			if climbs(string(target)) {
				// The commit may hold a link where the work tree has a directory.
				reasons = append(reasons, Reason{"link-out", "it is a symbolic link that leads up again after a name, and may lead out of the workspace"})
			}
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

// bareIn returns the directories that files of commits make bare repositories, with what
// the newest commit and the work tree have there.
func (r *repository) bareIn(ctx context.Context, v *view, commit string, files []RefFile) (map[string]bool, error) {
	names := []string{"head", "objects", "refs", "commondir"}
	parts := map[string]int{}
	add := func(rel string, fresh bool) {
		for dir := rel; dir != "."; dir = path.Dir(dir) {
			up := path.Dir(dir)
			if bit := slices.Index(names, fold(path.Base(dir))); bit >= 0 && (fresh || parts[up] != 0) {
				parts[up] |= 1 << bit
			}
		}
	}
	for _, f := range files {
		if f.Status != "D" {
			add(string(f.Path), true)
		}
	}
	if len(parts) == 0 {
		return nil, nil
	}
	all, err := r.git(ctx, nil, "ls-tree", "-r", "-z", "--name-only", "--full-tree", commit)
	if err != nil {
		return nil, err
	}
	for rel := range strings.SplitSeq(strings.TrimSuffix(string(all), "\x00"), "\x00") {
		add(rel, false)
	}
	bare := map[string]bool{}
	for dir, p := range parts {
		for bit, name := range []string{"HEAD", "objects", "refs", "commondir"} {
			if typ, _ := v.at(join(r.dir, join(strings.TrimPrefix(dir, "."), name))); typ != "" {
				p |= 1 << bit
			}
		}
		bare[dir] = p&0b111 == 0b111 || p&0b1001 == 0b1001
	}
	return bare, nil
}

// climbs reports whether ".." follows a name in a path.
func climbs(target string) bool {
	down := false
	for comp := range strings.SplitSeq(target, "/") {
		if comp == ".." && down {
			return true
		}
		down = down || comp != ".." && comp != "." && comp != ""
	}
	return false
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
			f.Unseen = f.mode == gitobject.ModeLink || !r.shows(rel, f)
		default:
			f.Unseen = true
		}
	}
}

// maxText bounds a file whose ends of lines are compared, in bytes.
const maxText = 16 << 20

// lfsPointer is the file that Git LFS commits in the place of another.
const lfsPointer = "version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n"

// shows reports whether a file of the bottle's work tree shows a commit's: it has its bytes,
// or its lines with CRLF ends (core.autocrlf, eol=crlf), or is its text in UTF-16
// (working-tree-encoding; others are not known), or the content that it points to.
func (r *repository) shows(rel string, f *RefFile) bool {
	blob := f.id
	h := gitobject.NewHash(r.digits)
	size, err := r.read(rel, h, func(size int64) { gitobject.Begin(h, "blob", size) })
	if err != nil || hex.EncodeToString(h.Sum(nil)) == blob {
		return err == nil
	}
	if size <= maxText {
		var text bytes.Buffer
		if _, err := r.read(rel, &text, func(int64) {}); err != nil {
			return false
		}
		is := func(text []byte) bool { return gitobject.Name("blob", text, r.digits) == blob }
		lines := func(text []byte) []byte { return bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")) }
		if is(lines(text.Bytes())) {
			return true
		}
		for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
			if narrow := fromUTF16(text.Bytes(), order); is(narrow) || is(lines(narrow)) {
				f.recoded = true
				return true
			}
		}
	}
	sum := sha256.New()
	_, err = r.read(rel, sum, func(int64) {})
	pointer := fmt.Sprintf(lfsPointer, hex.EncodeToString(sum.Sum(nil)), size)
	return err == nil && gitobject.Name("blob", []byte(pointer), r.digits) == blob
}

// fromUTF16 returns UTF-16 as UTF-8, without the mark of its byte order.
func fromUTF16(b []byte, order binary.ByteOrder) []byte {
	units := make([]uint16, len(b)/2)
	for i := range units {
		units[i] = order.Uint16(b[2*i:])
	}
	return bytes.TrimPrefix([]byte(string(utf16.Decode(units))), []byte("\ufeff"))
}

// read copies a file of the bottle's work tree to w, after begin, and returns its size.
func (r *repository) read(rel string, w io.Writer, begin func(size int64)) (int64, error) {
	var from io.ReadCloser
	var size int64
	if ch, ok := r.s.Lookup(rel); ok && ch.Kind != Mode {
		f, err := r.s.Content(ch)
		if err != nil {
			return 0, err
		}
		from, size = f, ch.Size
	} else {
		f, st, err := r.t.openFile(rel)
		if err != nil {
			return 0, err
		}
		from, size = f, st.Size
	}
	defer from.Close()
	begin(size)
	n, err := io.Copy(w, io.LimitReader(from, size))
	if err == nil && n != size {
		err = io.ErrUnexpectedEOF
	}
	return size, err
}
