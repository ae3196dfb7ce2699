package change

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/carboy/carboy/internal/hostexec"
)

// UndoOptions configures Undo.
type UndoOptions struct {
	// Last undoes the newest landing only; the default is all landings of
	// the run, newest first.
	Last bool
	// Confirm, unless nil, is called with what will be undone once nothing stands against
	// it. If it returns an error, Undo changes nothing and returns that error.
	Confirm func(UndoReport) error

	fault func(step, path string) error // tests
	plain bool                          // tests: as if renames knew no flags
}

// UndoReport lists what Undo did.
type UndoReport struct {
	Undone   []string // ids of landings
	Restored []string // paths
	Refs     []string // references of git that were put back, see RefChange.ID
}

// Undo restores the files that landings of the run replaced or removed, and
// removes the files they made. Each landing is undone completely or not at
// all. Undo first checks all of them; if files were edited since, it returns a
// *ConflictError that names them and changes nothing. It returns
// ErrNothingToUndo if no landing is left. To reverse an undo, land again.
func Undo(ctx context.Context, s *Set, opts UndoOptions) (*UndoReport, error) {
	root, err := lockWorkspace(ctx, s.Workspace)
	if err != nil {
		return nil, fmt.Errorf("undo: %w", err)
	}
	defer closeFd(root)
	if _, err := recoverAll(ctx, s.dir, s.Workspace, root); err != nil {
		return nil, fmt.Errorf("undo: %w", err)
	}
	todo, err := landings(s.dir)
	if err != nil {
		return nil, fmt.Errorf("undo: %w", err)
	}
	if len(todo) == 0 {
		return nil, fmt.Errorf("undo: %w", ErrNothingToUndo)
	}
	if opts.Last {
		todo = todo[:1]
	}
	u := &undoer{ctx: ctx, t: tree{root}, gone: map[string]bool{}, at: map[string]string{}}
	plans := make([][]op, len(todo))
	for i, j := range todo {
		if plans[i], err = u.plan(j); err == nil {
			err = u.refs(j)
		}
		if err != nil {
			return nil, fmt.Errorf("undo: %w", err)
		}
	}
	if len(u.conflicts) > 0 {
		return nil, &ConflictError{Op: "undo", Conflicts: u.conflicts}
	}
	if opts.Confirm != nil {
		whole := UndoReport{}
		for i, j := range todo {
			whole.add(j, plans[i])
		}
		if err := opts.Confirm(whole); err != nil {
			return nil, err
		}
	}
	rep := &UndoReport{}
	for i, j := range todo {
		if err := undoOne(ctx, s, root, j, plans[i], opts); err != nil {
			return rep, fmt.Errorf("undo landing %s: %w", j.id, err)
		}
		rep.add(j, plans[i])
	}
	return rep, nil
}

// add notes that a landing is undone.
func (r *UndoReport) add(j *journal, done []op) {
	r.Undone = append(r.Undone, j.id)
	for _, o := range done {
		r.Restored = append(r.Restored, string(o.Path))
	}
	for _, p := range j.plan.Repos {
		for _, ref := range p.Refs {
			r.Refs = append(r.Refs, (&RefChange{Repository: p.Dir, Name: ref.Name}).ID())
		}
	}
}

// landings returns the landings that are not undone, newest first.
func landings(runDir string) ([]*journal, error) {
	ids, err := journalIDs(runDir)
	if err != nil {
		return nil, err
	}
	undone := map[string]bool{}
	var out []*journal
	for i := len(ids) - 1; i >= 0; i-- {
		if marked(runDir, ids[i], undoneMarker) ||
			strings.HasSuffix(ids[i], undoSuffix) && marked(runDir, ids[i], doneMarker) {
			continue
		}
		j, err := openJournal(runDir, ids[i])
		if err != nil {
			return nil, err
		}
		j.close()
		switch {
		case j.plan == nil || !j.commit || j.rolled:
		case j.plan.Kind == "undo":
			undone[j.plan.Of] = true
		case !undone[j.id]:
			out = append(out, j)
		}
	}
	return out, nil
}

func undoOne(ctx context.Context, s *Set, root int, of *journal, ops []op, opts UndoOptions) error {
	j, err := newJournal(s.dir, "undo")
	if err != nil {
		return err
	}
	defer j.close()
	x := &txn{ctx: ctx, t: tree{root}, runDir: s.dir, j: j, fault: opts.fault, mv: mover{plain: opts.plain}}
	var repos []repoPlan
	for _, p := range of.plan.Repos {
		store, err := makeStore(s.dir)
		if err != nil {
			return err
		}
		defer os.RemoveAll(store)
		back := p.reverse()
		run, err := s.runner()
		if err != nil {
			return err
		}
		o, err := indexOp(ctx, run, x.t, "undo", path.Join(s.Workspace.Path, string(p.Dir)), string(p.Dir), &back, store)
		if err != nil {
			return err
		}
		if o != nil {
			ops = append(ops, *o)
		}
		repos = append(repos, back)
	}
	closePack, err := x.readFrom()
	if err != nil {
		return err
	}
	defer closePack()
	if err := x.run("undo", of.id, s.Workspace, ops, repos, false); err != nil {
		j.abandon()
		return err
	}
	return nil
}

// undoer plans the reversal of landings and finds files edited since.
type undoer struct {
	ctx       context.Context
	t         tree
	conflicts []Conflict
	// gone holds the paths that the undo of a newer landing removes; the undo
	// of an older one ignores them.
	gone map[string]bool
	// at holds the references as the undo of newer landings leaves them.
	at map[string]string
}

// refs compares the references that a landing moved with what they are now.
func (u *undoer) refs(j *journal) error {
	for _, p := range j.plan.Repos {
		run, err := hostexec.New(hostexec.Options{Untrusted: []string{j.plan.Workspace.Path}})
		if err != nil {
			return err
		}
		top := path.Join(j.plan.Workspace.Path, string(p.Dir))
		now, err := readRefs(u.ctx, run, top, p.Refs)
		if err != nil {
			return err
		}
		u.checkedOut(&p)
		for _, r := range p.Refs {
			rel := join(join(string(p.Dir), ".git"), r.Name)
			is, undone := u.at[rel]
			if !undone {
				is = now[r.Name]
			}
			if is != r.New {
				why, err := movedOn(u.ctx, run, top, r, is)
				if err != nil {
					return err
				}
				u.edited(rel, why, nil)
			}
			u.at[rel] = r.Old
		}
	}
	return nil
}

// movedOn says how the host moved a reference on after a landing, and what to do.
func movedOn(ctx context.Context, run *hostexec.Runner, top string, r refUpdate, is string) (string, error) {
	short := func(id string) string { return id[:min(len(id), 10)] }
	switch {
	case is == "":
		return "the host removed it since: git update-ref " + show(r.Name) + " " + short(r.New) + " brings it back first", nil
	case r.New == "":
		return "the host made it again since: it is as good as undone", nil
	}
	_, err := run.Run(ctx, hostexec.Command{Program: hostexec.Git, Args: []string{"merge-base", "--is-ancestor", r.New, is}, Dir: top, Timeout: gitPatience})
	switch {
	case err != nil && !failed(err):
		return "", err
	case err == nil && r.Old != "":
		return "the host has commits on top of it: git revert " + short(r.Old) + ".." + short(r.New) + " takes back what landed and keeps them", nil
	case err == nil:
		return "the host has commits on top of it: git branch -D removes them too", nil
	}
	return "the host has moved it since: before the landing it was at " + cmp.Or(short(r.Old), "nothing"), nil
}

// checkedOut finds the references whose way back would leave work trees behind: files and
// index go back with the branch that the landing moved under them, and with no other.
func (u *undoer) checkedOut(p *repoPlan) {
	r := &repository{t: u.t, dir: string(p.Dir), digits: len(p.IndexNew)}
	file, _ := r.hostFile("HEAD", 4096)
	head, claimed := headOf(file), r.claimed()
	branch, under := "", false
	for _, ref := range p.Refs {
		with := p.IndexNew != "" && ref.New == p.IndexNew && cmp.Or(ref.Old, r.emptyTree()) == p.IndexOld
		if with {
			branch = ref.Name
		}
		switch why := claimed[ref.Name]; {
		case why != "":
			u.edited(r.path(ref.Name), why, nil)
		case ref.Name == head && !with:
			u.edited(r.path("HEAD"), "it is "+show(ref.Name)+" now: git switch to another branch first", nil)
		}
		under = under || with && ref.Name == head
	}
	what := r.underWay()
	switch {
	case p.IndexNew == "" || claimed[branch] != "":
	case what != "":
		u.edited(r.path("HEAD"), what+": end or abort it first", nil)
	case !under:
		u.edited(r.path("HEAD"), "it is "+show(head)+" now: first git switch "+show(strings.TrimPrefix(branch, "refs/heads/")), nil)
	}
}

// reverse returns the plan that takes this one back.
func (p repoPlan) reverse() repoPlan {
	back := repoPlan{Dir: p.Dir, IndexOld: p.IndexNew, IndexNew: p.IndexOld}
	for _, r := range p.Refs {
		back.Refs = append(back.Refs, refUpdate{r.Name, r.New, r.Old})
	}
	return back
}

func (u *undoer) plan(j *journal) ([]op, error) {
	ops := make([]op, 0, len(j.plan.Ops))
	for i := len(j.plan.Ops) - 1; i >= 0; i-- {
		if o := &j.plan.Ops[i]; o.Git && (isStoredObject(string(o.Path)) || path.Base(string(o.Path)) == "index") {
			continue // objects stay, and the index is made anew
		}
		o, err := u.reverse(j, i)
		if err != nil {
			return nil, err
		}
		ops = append(ops, o)
	}
	return ops, nil
}

func (u *undoer) reverse(j *journal, i int) (op, error) {
	o := &j.plan.Ops[i]
	r := op{Path: o.Path}
	if o.Kind == opChmod {
		r.Kind, r.Mode = opChmod, o.Old[0].FP.Mode
		now, err := u.look(string(o.Path))
		if err != nil {
			return r, err
		}
		if now == nil || now.Mode != o.Mode || now.Type != o.Old[0].FP.Type {
			u.edited(string(o.Path), "its mode was changed or it is gone", now)
			return r, nil
		}
		r.Old = []oldNode{{FP: *now}}
		return r, nil
	}
	for k := range o.Old {
		r.New = append(r.New, restore(j.id, &o.Old[k]))
	}
	var err error
	switch o.Kind {
	case opPut:
		r.Kind = opRemove
		r.Old, err = u.landedTree(o, j.ids[i])
	case opSwap:
		r.Kind = opSwap
		r.Old, err = u.landedTree(o, j.ids[i])
	case opRemove:
		r.Kind = opPut
		var now *Fingerprint
		if now, err = u.look(string(o.Path)); now != nil && !u.gone[string(o.Path)] {
			u.edited(string(o.Path), "something new is there", now)
		}
	}
	for k := range o.New {
		u.gone[path.Join(string(o.Path), string(o.New[k].Rel))] = true
	}
	return r, err
}

func restore(id string, old *oldNode) node {
	return node{Rel: old.Rel, Type: old.FP.Type, Mode: old.FP.Mode, Size: old.FP.Size, SHA256: old.FP.SHA256,
		Target: old.FP.Target, Pre: old.Pre, PreOf: id, Xattrs: old.Xattrs,
		Own: &owner{UID: old.FP.UID, GID: old.FP.GID, Mtime: old.FP.Mtime}}
}

func (u *undoer) edited(p, why string, now *Fingerprint) {
	u.conflicts = append(u.conflicts, Conflict{Path: p, Why: why, Host: now})
}

func (u *undoer) look(rel string) (*Fingerprint, error) {
	st, err := u.t.lstat(rel)
	if isAbsent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, wrapPath("look at", rel, err)
	}
	fp := fingerprintOf(&st)
	if fp.Type == Symlink {
		target, err := u.t.readlink(rel)
		if err != nil {
			return nil, wrapPath("look at", rel, err)
		}
		fp.Target = Bytes(target)
	}
	return fp, nil
}

// landedTree describes the present state of the files that an op made, and
// records those edited since as conflicts.
func (u *undoer) landedTree(o *op, ids []fileID) ([]oldNode, error) {
	var out []oldNode
	made := make(map[string]bool, len(o.New))
	for k := range o.New {
		n := &o.New[k]
		full := path.Join(string(o.Path), string(n.Rel))
		made[string(n.Rel)] = true
		now, err := u.look(full)
		if err != nil {
			return nil, err
		}
		if now == nil {
			u.edited(full, "deleted since", nil)
			continue
		}
		same, err := u.unedited(full, n, ids[k], now)
		if err != nil {
			return nil, err
		}
		if !same {
			u.edited(full, "edited since", now)
		}
		out = append(out, oldNode{Rel: n.Rel, FP: *now})
	}
	if len(o.New) == 0 || o.New[0].Type != Dir || len(out) == 0 || out[0].FP.Type != Dir {
		return out, nil
	}
	err := walkTree(u.ctx, u.t, string(o.Path), "", func(rel string, fp *Fingerprint) error {
		full := path.Join(string(o.Path), rel)
		if !made[rel] && !u.gone[full] {
			u.edited(full, "created since", fp)
		}
		return nil
	})
	return out, err
}

func (u *undoer) unedited(full string, n *node, id fileID, now *Fingerprint) (bool, error) {
	if now.Type != n.Type {
		return false, nil
	}
	switch n.Type {
	case Symlink:
		return now.Target == n.Target, nil
	case Dir:
		return now.Mode&0o1777 == n.Mode&0o1777, nil
	}
	if _, rest, ok := cutGit(full); ok && rest == "index" {
		return true, nil // of a new repository: git status rewrites it
	}
	if now.Mode != n.Mode || now.Size != n.Size {
		return false, nil
	}
	if now.Ino == id.Ino && now.Mtime == id.Mtime {
		return true, nil
	}
	f, fst, err := u.t.openFile(full)
	if err != nil {
		return false, wrapPath("read", full, err)
	}
	defer f.Close()
	sum, err := hashFile(u.ctx, f, fst.Size)
	return sum == n.SHA256, err
}
