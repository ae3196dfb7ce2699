package change

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/safetext"
)

// refUpdate moves one reference. "" is no object.
type refUpdate struct {
	Name string `json:"name"`
	Old  string `json:"old"`
	New  string `json:"new"`
}

// repoPlan lists the references that a landing or undo moves in one repository of the host.
type repoPlan struct {
	Dir  Bytes       `json:"dir"` // of the work tree, relative to the workspace
	Refs []refUpdate `json:"refs"`
	// The index goes from one commit to the other; "" leaves it.
	IndexOld string `json:"index_old,omitempty"`
	IndexNew string `json:"index_new,omitempty"`
}

// gitLanding holds the references of a set that land together with its files.
type gitLanding struct {
	repos    []*repository
	plans    []repoPlan
	landed   []RefChange
	withheld []Withheld
	left     bool // some could land and do not
}

func (g *gitLanding) close() {
	for _, r := range g.repos {
		r.close()
	}
}

// takeRefs decides which references land, and takes their objects into stores. The caller
// closes the result.
func takeRefs(ctx context.Context, s *Set, t tree, opts *LandOptions, ops *[]op) (*gitLanding, error) {
	g := &gitLanding{}
	unknown := slices.Clone(opts.Refs)
	for i, dir := range s.gitDirs() {
		run, err := s.runner()
		if err != nil {
			return g, err
		}
		r, err := openRepository(ctx, s, t, run, dir, i >= maxRepos)
		if err != nil {
			return g, err
		}
		g.repos = append(g.repos, r)
		refs, err := r.examine(ctx, s.Protection.with(opts.Policy), func(c *RefChange) bool {
			return slices.Contains(opts.Refs, c.ID()) || len(opts.Paths) == 0 && c.CheckedOut && !c.Fresh
		})
		if err != nil {
			return g, err
		}
		var take []RefChange
		for _, c := range refs {
			unknown = slices.DeleteFunc(unknown, func(id string) bool { return id == c.ID() })
			if why, reasons := c.Held(opts); why != "" || len(reasons) > 0 {
				g.left = g.left || c.Never == ""
				if c.Never == "" || len(opts.Paths) == 0 || slices.Contains(opts.Refs, c.ID()) {
					g.withheld = append(g.withheld, Withheld{Path: c.ID(), Reasons: reasons, Why: why, Ref: c.Never == "" && len(reasons) == 0})
				}
				continue
			}
			take = append(take, c)
		}
		if len(take) == 0 {
			continue
		}
		if err := g.plan(ctx, r, take, ops); err != nil {
			return g, err
		}
	}
	if len(unknown) > 0 {
		return g, fmt.Errorf("land %s: %w: carboy diff lists the references", show(unknown[0]), ErrNoSuchChange)
	}
	return g, nil
}

// plan adds what brings the references take into the host's repository.
func (g *gitLanding) plan(ctx context.Context, r *repository, take []RefChange, ops *[]op) error {
	p := repoPlan{Dir: Bytes(r.dir)}
	for _, c := range take {
		p.Refs = append(p.Refs, refUpdate{c.Name, c.Old, c.New})
		if c.CheckedOut && c.New != "" {
			p.IndexOld, p.IndexNew = c.Old, c.New
			if c.Old == "" {
				p.IndexOld = r.emptyTree()
			}
		}
	}
	if r.fresh {
		return g.planFresh(ctx, r, take, p, ops)
	}
	g.landed = append(g.landed, take...)
	for _, name := range r.packs(take) {
		rel := r.path("objects/pack/" + filepath.Base(name))
		if typ, _ := hostAt(r.t, rel); typ != "" {
			continue // landed before
		}
		fi, err := os.Stat(name)
		if err != nil {
			return err
		}
		*ops = append(*ops, op{Kind: opPut, Path: Bytes(rel), Git: true, New: []node{{Type: File, Mode: 0o444, Size: fi.Size(), file: name}}})
	}
	o, err := indexOp(ctx, r.run, r.t, "land", r.top, r.dir, &p, r.store)
	if err != nil {
		return err
	}
	if o != nil {
		*ops = append(*ops, *o)
	}
	g.plans = append(g.plans, p)
	return nil
}

// indexOp returns the op that puts an index into place which git made of the host's, as a
// fast-forward would; nil if the index stays. The new one is made in the directory store,
// whose .git holds further objects.
func indexOp(ctx context.Context, run *hostexec.Runner, t tree, what, top, dir string, p *repoPlan, store string) (*op, error) {
	rel := join(join(dir, ".git"), "index")
	if p.IndexNew == "" {
		return nil, nil
	}
	if typ, _ := hostAt(t, rel+".lock"); typ != "" {
		return nil, &ConflictError{Op: what, Conflicts: []Conflict{{Path: rel, Why: "git is at work there: index.lock exists"}}}
	}
	o := &op{Kind: opPut, Path: Bytes(rel), Git: true}
	made := store + "/index"
	f, st, err := t.openFile(rel)
	switch {
	case isAbsent(err):
	case err != nil:
		return nil, wrapPath("read", rel, err)
	default:
		defer f.Close()
		to, err := os.OpenFile(made, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return nil, err
		}
		_, err = copySparse(to, f, st.Size)
		if err = errors.Join(err, to.Close()); err != nil {
			return nil, err
		}
		o.Kind, o.Old = opSwap, []oldNode{{FP: *fingerprintOf(&st)}}
	}
	_, err = run.Run(ctx, hostexec.Command{Program: hostexec.GitLand, Args: []string{"merge", made, p.IndexOld, p.IndexNew, store + "/.git/objects"}, Dir: top, Timeout: gitPatience})
	var no *hostexec.FailedError
	if failed(err) && errors.As(err, &no) {
		return nil, &ConflictError{Op: what, Conflicts: []Conflict{{Path: rel, Why: "what is staged on the host is in the way: " + safetext.String(no.Stderr, 300)}}}
	}
	if err != nil {
		return nil, err
	}
	fi, err := os.Stat(made)
	if err != nil {
		return nil, err
	}
	mode := uint32(0o644)
	if len(o.Old) > 0 {
		mode = o.Old[0].FP.Mode
	}
	o.New = []node{{Type: File, Mode: mode, Size: fi.Size(), file: made}}
	return o, nil
}

// planFresh turns the store into a repository with the references take, and adds an op that
// puts it into place.
func (g *gitLanding) planFresh(ctx context.Context, r *repository, take []RefChange, p repoPlan, ops *[]op) error {
	hold := func(why string) error {
		for _, c := range take {
			g.withheld = append(g.withheld, Withheld{Path: c.ID(), Why: why})
		}
		return nil
	}
	in := -1 // the op that makes the directory of the work tree
	for i := range *ops {
		o := &(*ops)[i]
		if (o.Kind == opPut || o.Kind == opSwap) && o.New[0].Type == Dir && (string(o.Path) == r.dir || strings.HasPrefix(r.dir, string(o.Path)+"/")) {
			in = i
		}
	}
	if typ, _ := hostAt(r.t, dot(r.dir)); typ != Dir && in < 0 {
		return hold("its directory does not land")
	}
	if err := updateRefs(ctx, r.run, r.store, p.Refs); err != nil {
		return err
	}
	if p.IndexNew != "" {
		_, err := r.run.Run(ctx, hostexec.Command{Program: hostexec.GitLand, Dir: r.store, Timeout: gitPatience,
			Args: []string{"merge", r.store + "/.git/index", p.IndexOld, p.IndexNew, r.storeObjects()}})
		if err != nil {
			return err
		}
	}
	packs := r.packs(take)
	nodes, err := madeNodes(r.store+"/.git", func(p string) bool { return path.Base(path.Dir(p)) != "pack" || slices.Contains(packs, p) })
	if err != nil {
		return err
	}
	g.landed = append(g.landed, take...)
	if in < 0 {
		*ops = append(*ops, op{Kind: opPut, Path: Bytes(r.path("")), Git: true, New: nodes})
		return nil
	}
	o := &(*ops)[in]
	base := strings.TrimPrefix(strings.TrimPrefix(r.path(""), string(o.Path)), "/")
	for _, n := range nodes {
		n.Rel = Bytes(path.Join(base, string(n.Rel)))
		o.New = append(o.New, n)
	}
	return nil
}

// madeNodes lists what take accepts of a directory that carboy and git made.
func madeNodes(dir string, take func(string) bool) ([]node, error) {
	var nodes []node
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		n := node{Rel: Bytes(strings.TrimPrefix(strings.TrimPrefix(p, dir), "/"))}
		switch {
		case d.IsDir():
			n.Type, n.Mode = Dir, 0o755
		case !take(p):
			return nil
		case fi.Mode().IsRegular():
			n.Type, n.Mode, n.Size, n.file = File, 0o644, fi.Size(), p
			if strings.HasPrefix(string(n.Rel), "objects/") {
				n.Mode = 0o444
			}
		default:
			return fmt.Errorf("%s is no file", show(p))
		}
		nodes = append(nodes, n)
		return nil
	})
	return nodes, err
}

// updateRefs moves references of the repository whose work tree is top, all or none. It
// fails if one of them is not at its old object.
func updateRefs(ctx context.Context, run *hostexec.Runner, top string, refs []refUpdate) error {
	var in bytes.Buffer
	for _, u := range refs {
		switch {
		case u.Old == "":
			fmt.Fprintf(&in, "create %s %s\n", u.Name, u.New)
		case u.New == "":
			fmt.Fprintf(&in, "delete %s %s\n", u.Name, u.Old)
		default:
			fmt.Fprintf(&in, "update %s %s %s\n", u.Name, u.New, u.Old)
		}
	}
	_, err := run.Run(ctx, hostexec.Command{Program: hostexec.GitLand, Args: []string{"update-refs"}, Dir: top, Timeout: gitPatience, Stdin: in.Bytes()})
	return err
}

// readRefs returns the objects of the named references, without those that are absent.
func readRefs(ctx context.Context, run *hostexec.Runner, top string, refs []refUpdate) (map[string]string, error) {
	args := []string{"for-each-ref", "--format=%(objectname) %(refname)"}
	for _, u := range refs {
		args = append(args, u.Name)
	}
	res, err := run.Run(ctx, hostexec.Command{Program: hostexec.Git, Args: args, Dir: top, Timeout: gitPatience})
	if err != nil {
		return nil, err
	}
	now := map[string]string{}
	for line := range strings.Lines(string(res.Stdout.Text())) {
		id, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		now[name] = id
	}
	return now, nil
}

// runner returns what starts git for the transaction.
func (x *txn) runner() (*hostexec.Runner, error) {
	if x.exec != nil {
		return x.exec, nil
	}
	var err error
	x.exec, err = hostexec.New(hostexec.Options{Untrusted: []string{x.j.plan.Workspace.Path}})
	return x.exec, err
}

// moveRefs moves the references of the plan, the last step before the commit.
func (x *txn) moveRefs() error {
	for i := range x.j.plan.Repos {
		p := &x.j.plan.Repos[i]
		if err := x.step("refs", string(p.Dir)); err != nil {
			return err
		}
		run, err := x.runner()
		if err != nil {
			return err
		}
		top := path.Join(x.j.plan.Workspace.Path, string(p.Dir))
		if err := updateRefs(x.ctx, run, top, p.Refs); failed(err) {
			if lock := lockOf(x.t, p); lock != "" {
				return x.changed(lock, "git is at work there, or died: if no git runs, remove the file")
			}
			return x.changed(join(join(string(p.Dir), ".git"), p.Refs[0].Name), "the reference could not be moved: "+err.Error())
		} else if err != nil {
			return err
		}
		x.ownRefs(p)
	}
	return nil
}

// lockOf returns a lock file that keeps git from moving the references, "" if there is none.
// git's own message names a directory that hostexec made.
func lockOf(t tree, p *repoPlan) string {
	for _, u := range append([]refUpdate{{Name: "packed-refs"}}, p.Refs...) {
		lock := join(string(p.Dir), ".git/"+u.Name+".lock")
		if typ, _ := hostAt(t, lock); typ != "" {
			return lock
		}
	}
	return ""
}

// refsBack puts the references back that were moved. One that the host has moved since stays.
func (x *txn) refsBack() error {
	for i := len(x.j.plan.Repos) - 1; i >= 0; i-- {
		p := &x.j.plan.Repos[i]
		run, err := x.runner()
		if err != nil {
			return err
		}
		top := path.Join(x.j.plan.Workspace.Path, string(p.Dir))
		now, err := readRefs(x.ctx, run, top, p.Refs)
		if err != nil {
			return fmt.Errorf("put references back: %w", err)
		}
		var back []refUpdate
		for _, u := range p.Refs {
			if now[u.Name] == u.New && u.Old != u.New {
				back = append(back, refUpdate{u.Name, u.New, u.Old})
			}
		}
		if len(back) == 0 {
			continue
		}
		if err := x.step("refs back", string(p.Dir)); err != nil {
			return err
		}
		if err := updateRefs(x.ctx, run, top, back); err != nil {
			if lock := lockOf(x.t, p); lock != "" {
				err = fmt.Errorf("%w (%s exists: if no git runs, remove it)", err, show(lock))
			}
			return fmt.Errorf("put references back: %w", err)
		}
		x.ownRefs(p)
	}
	return nil
}

// ownRefs gives what git wrote the mode of the files beside it, and as root the owner of
// the git directory: hostexec's programs write for their own user only.
func (x *txn) ownRefs(p *repoPlan) {
	gitDir := join(string(p.Dir), ".git")
	st, err := x.t.lstat(gitDir)
	head, herr := x.t.lstat(join(gitDir, "HEAD"))
	if err != nil || herr != nil {
		return
	}
	names := []string{"packed-refs", "index", "logs/HEAD"}
	for _, u := range p.Refs {
		for name := u.Name; strings.Count(name, "/") > 1; name = path.Dir(name) {
			names = append(names, name, "logs/"+name)
		}
	}
	for _, name := range names {
		fd, err := openBeneath(x.t.fd, join(gitDir, name), unix.O_PATH|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		if os.Geteuid() == 0 {
			_ = unix.Fchownat(fd, "", int(st.Uid), int(st.Gid), unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW)
		}
		var own unix.Stat_t
		switch err := unix.Fstat(fd, &own); {
		case err != nil:
		case typeOfMode(own.Mode) == Dir:
			_ = chmodFd(fd, st.Mode&0o7777)
		case typeOfMode(own.Mode) == File:
			_ = chmodFd(fd, head.Mode&0o666)
		}
		closeFd(fd)
	}
}

// refresh lets git note the times of the landed files in the indexes. A failure costs the
// user's next git status some time.
func (x *txn) refresh() {
	for i := range x.j.plan.Repos {
		p := &x.j.plan.Repos[i]
		run, err := x.runner()
		if p.IndexNew == "" || err != nil {
			continue
		}
		_, _ = run.Run(x.ctx, hostexec.Command{Program: hostexec.GitLand, Args: []string{"refresh"}, Dir: path.Join(x.j.plan.Workspace.Path, string(p.Dir)), Timeout: gitPatience})
		x.ownRefs(p)
	}
}
