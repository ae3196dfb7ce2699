package change

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/hostexec"
)

// txn carries out ops as one transaction. At every moment each name holds its
// old or its new file, and until the commit everything can be rolled back:
//
//  1. copy pre-images of the old files to the run directory;
//  2. journal the plan;
//  3. make each new file or tree under a private name beside its place;
//  4. sync, and journal the inode numbers;
//  5. rename once per op: the new file into place and the old one to the
//     private name (RENAME_EXCHANGE), never overwriting (RENAME_NOREPLACE),
//     then compare the old file with the expected one;
//  6. journal the commit, and remove the old files.
//
// A failure before 6, or Recover after a crash, reverses the renames. The
// inode numbers tell which of them were made.
type txn struct {
	ctx    context.Context
	t      tree
	runDir string
	j      *journal
	fault  func(step, path string) error // tests: called before each step
	src    func(n *node) (contentReader, error)
	left   []Bytes
	waited time.Duration // for renamed directories
	mv     mover
	exec   *hostexec.Runner // made when git is needed
}

// syncEach is the largest number of new files that are synced one by one; for
// more, one syncfs is faster.
const syncEach = 64

func (x *txn) step(name, p string) error {
	if err := x.ctx.Err(); err != nil {
		return err
	}
	if x.fault != nil {
		if err := x.fault(name, p); err != nil {
			return wrapPath(name, p, err)
		}
	}
	return nil
}

// run carries out all steps. On error the workspace is as before, except after
// a *RollbackError or *StrandedError.
func (x *txn) run(kind, of string, ws Identity, ops []op, repos []repoPlan, preImages bool) error {
	if err := x.prepare(ops, preImages); err != nil {
		return err
	}
	plan := &planRecord{Schema: journalSchema, Kind: kind, Of: of, Workspace: ws, Time: time.Now(), Ops: ops, Repos: repos}
	if err := x.step("journal", "plan"); err != nil {
		return err
	}
	if err := x.j.write(journalRecord{Plan: plan}); err != nil {
		return err
	}
	err := x.forward(ops)
	if err == nil {
		x.cleanup(ops)
		x.refresh()
		return nil
	}
	if x.j.commit {
		return nil // committed; Recover removes the rest
	}
	if rerr := x.rollback(); rerr != nil {
		return &rollbackError{Cause: err, Left: rerr}
	}
	if len(x.left) > 0 {
		return &strandedError{Cause: err, Left: x.left}
	}
	return err
}

// strandedError says that a landing failed and was rolled back, except for files
// whose directory was moved meanwhile or whose place was taken. Recover does not
// try again; a person must put them back.
type strandedError struct {
	Cause error
	// Left lists the paths of old or unfinished files, as far as known.
	Left []Bytes
}

func (e *strandedError) Error() string {
	s := fmt.Sprintf("%v; it was taken back, but the directory of %s was moved or its place taken", e.Cause, show(string(e.Left[0])))
	if n := len(e.Left) - 1; n > 0 {
		s += fmt.Sprintf(" (and of %d more)", n)
	}
	return s
}

// Unwrap returns the cause.
func (e *strandedError) Unwrap() error { return e.Cause }

// rollbackError says that a landing failed and could not be rolled back
// completely; Recover tries again.
type rollbackError struct {
	Cause, Left error
}

func (e *rollbackError) Error() string {
	return fmt.Sprintf("%v; taking it back failed too and is tried again by the next command: %v", e.Cause, e.Left)
}

// Unwrap returns both errors.
func (e *rollbackError) Unwrap() []error { return []error{e.Cause, e.Left} }

func (x *txn) forward(ops []op) error {
	ids := make([][]fileID, len(ops))
	count := 0
	for i := range ops {
		count += len(ops[i].New)
	}
	for i := range ops {
		s, err := x.stage(&ops[i], count <= syncEach)
		if err != nil {
			return err
		}
		ids[i] = s
	}
	if err := x.sync(ops, count > syncEach, true); err != nil {
		return err
	}
	if err := x.step("journal", "staged"); err != nil {
		return err
	}
	if err := x.j.write(journalRecord{Staged: &stagedRecord{ids}}); err != nil {
		return err
	}
	for i := range ops {
		if err := x.swap(&ops[i]); err != nil {
			return err
		}
	}
	if err := x.sync(ops, count > syncEach, true); err != nil {
		return err
	}
	if err := x.moveRefs(); err != nil {
		return err
	}
	if err := x.step("journal", "commit"); err != nil {
		return err
	}
	now := time.Now()
	return x.j.write(journalRecord{Commit: &now})
}

// prepare fills in each op's private name and directory inode, and saves
// pre-images of the old files.
func (x *txn) prepare(ops []op, preImages bool) error {
	var r [8]byte
	if _, err := rand.Read(r[:]); err != nil {
		return err
	}
	pre := newPreImages(x)
	for i := range ops {
		o := &ops[i]
		dir, _, err := x.t.parent(string(o.Path))
		if err != nil {
			return wrapPath("open directory of", string(o.Path), err)
		}
		var st unix.Stat_t
		err = unix.Fstat(dir, &st)
		closeFd(dir)
		if err != nil {
			return wrapPath("open directory of", string(o.Path), err)
		}
		o.Dir = st.Ino
		if o.Kind == opChmod {
			continue
		}
		if err := mayReplace(o); err != nil {
			return err
		}
		o.Tmp = fmt.Sprintf(tmpPrefix+"%s-%d", hex.EncodeToString(r[:]), i)
		if preImages {
			if err := pre.save(o); err != nil {
				return err
			}
		}
	}
	return pre.sync()
}

// mayReplace returns an error if an ordinary user would replace another user's
// file: the new file would belong to the caller, and undo could not restore
// the owner of the old one.
func mayReplace(o *op) error {
	euid := os.Geteuid()
	for i := range o.Old {
		if uid := o.Old[i].FP.UID; euid != 0 && int(uid) != euid {
			return wrapPath("replace", path.Join(string(o.Path), string(o.Old[i].Rel)),
				fmt.Errorf("it belongs to user %d: %w", uid, unix.EPERM))
		}
	}
	return nil
}

// place opens the directory of an op. It fails if the directory was replaced.
func (x *txn) place(o *op) (dir int, name string, err error) {
	dir, name, err = x.t.parent(string(o.Path))
	if err != nil {
		return -1, "", wrapPath("open directory of", string(o.Path), err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil || st.Ino != o.Dir {
		closeFd(dir)
		return -1, "", wrapPath("open directory of", string(o.Path), errDirMoved)
	}
	return dir, name, nil
}

var errDirMoved = errors.New("another directory is in its place")

// sync makes the directories of ops durable, or everything on their file system
// if all is set. Unless mustExist is set, it skips directories that are gone.
func (x *txn) sync(ops []op, all, mustExist bool) error {
	if err := x.step("sync", "."); err != nil {
		return err
	}
	if all {
		return wrapPath("sync", ".", unix.Syncfs(x.t.fd))
	}
	seen := map[uint64]bool{}
	for i := range ops {
		if seen[ops[i].Dir] {
			continue
		}
		seen[ops[i].Dir] = true
		dir := path.Dir(string(ops[i].Path))
		fd, err := openBeneath(x.t.fd, dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if isAbsent(err) && !mustExist {
			continue
		}
		if err != nil {
			return wrapPath("sync", dir, err)
		}
		err = unix.Fsync(fd)
		closeFd(fd)
		if err != nil && err != unix.EINVAL {
			return wrapPath("sync", dir, err)
		}
	}
	return nil
}

// swap carries out the rename of one op.
func (x *txn) swap(o *op) error {
	p := string(o.Path)
	if err := x.step("swap", p); err != nil {
		return err
	}
	dir, name, err := x.place(o)
	if err != nil {
		return err
	}
	defer closeFd(dir)
	if o.Kind == opPut {
		if err := x.step("rename", p); err != nil {
			return err
		}
		err := x.mv.place(dir, o.Tmp, name)
		if err == unix.EEXIST {
			return x.changed(p, "created on the host this moment")
		}
		return wrapPath("put in place", p, err)
	}
	if err := x.expect(dir, name, &o.Old[0].FP, true); err != nil {
		return x.changed(p, err.Error())
	}
	if err := x.step("rename", p); err != nil {
		return err
	}
	switch o.Kind {
	case opChmod:
		return x.chmod(dir, name, o)
	case opSwap:
		err = x.mv.exchange(dir, o.Tmp, name)
	case opRemove:
		err = x.mv.place(dir, name, o.Tmp)
	default:
		return fmt.Errorf("unknown op %q", o.Kind)
	}
	if err != nil {
		return wrapPath("put in place", p, err)
	}
	// A change made between the check above and the rename shows here; then
	// everything is rolled back.
	if err := x.expect(dir, o.Tmp, &o.Old[0].FP, false); err != nil {
		return x.changed(p, err.Error())
	}
	if o.Old[0].FP.Type == Dir {
		return x.expectTree(o)
	}
	return nil
}

func (x *txn) changed(p, why string) error {
	return &ConflictError{Op: x.kind(), Conflicts: []Conflict{{Path: p, Why: why}}}
}

func (x *txn) kind() string {
	if x.j.plan != nil {
		return x.j.plan.Kind
	}
	return "land"
}

// expect returns an error if name does not match a fingerprint. ctime says
// whether to compare the ctime too, which our own rename changes.
func (x *txn) expect(dir int, name string, fp *Fingerprint, ctime bool) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if err == unix.ENOENT {
			return errors.New("deleted on the host this moment")
		}
		return err
	}
	now := fingerprintOf(&st)
	same := now.Type == fp.Type && now.Ino == fp.Ino && now.Mode == fp.Mode
	if fp.Type != Dir {
		same = same && now.Size == fp.Size && now.Mtime == fp.Mtime && (!ctime || now.Ctime == fp.Ctime)
	}
	if !same {
		return errors.New("changed on the host this moment")
	}
	return nil
}

// expectTree compares a directory that was set aside with the expected files.
// Under its private name nobody else finds it, so the result stays valid.
func (x *txn) expectTree(o *op) error {
	want := make(map[string]*Fingerprint, len(o.Old))
	for i := range o.Old {
		want[string(o.Old[i].Rel)] = &o.Old[i].FP
	}
	aside := path.Join(path.Dir(string(o.Path)), o.Tmp)
	seen := 1
	err := walkTree(x.ctx, x.t, aside, "", func(rel string, now *Fingerprint) error {
		fp := want[rel]
		seen++
		if fp == nil || now.Type != fp.Type || now.Ino != fp.Ino || now.Mode != fp.Mode ||
			now.Type != Dir && (now.Size != fp.Size || now.Mtime != fp.Mtime || now.Ctime != fp.Ctime) {
			return x.changed(path.Join(string(o.Path), rel), "changed on the host this moment")
		}
		return nil
	})
	if err == nil && seen != len(o.Old) {
		return x.changed(string(o.Path), "something in it was deleted on the host this moment")
	}
	return err
}

func (x *txn) chmod(dir int, name string, o *op) error {
	fd, err := openBeneath(dir, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return wrapPath("change mode of", string(o.Path), err)
	}
	defer closeFd(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Ino != o.Old[0].FP.Ino {
		return x.changed(string(o.Path), "replaced on the host this moment")
	}
	return wrapPath("change mode of", string(o.Path), chmodFd(fd, o.Mode))
}

// cleanup removes the old files after the commit. Its errors are left to
// Recover.
func (x *txn) cleanup(ops []op) {
	whole := true
	for i := range ops {
		o := &ops[i]
		if o.Kind != opSwap && o.Kind != opRemove {
			continue
		}
		if err := x.discard(o); err != nil {
			whole = false
		}
	}
	if !whole || x.step("journal", "done") != nil {
		return // Recover tries again
	}
	now := time.Now()
	if x.j.write(journalRecord{Done: &now}) != nil {
		return
	}
	if x.j.plan.Kind == "undo" {
		x.forget(x.j.plan.Of)
	}
	x.j.mark(doneMarker)
}

// forget removes the pre-images of a landing that was undone.
func (x *txn) forget(id string) {
	of, err := openJournal(x.runDir, id)
	if err != nil {
		return
	}
	defer of.close()
	of.mark(undoneMarker)
	if of.plan == nil {
		return
	}
	for i := range of.plan.Ops {
		for _, old := range of.plan.Ops[i].Old {
			if old.Pre > 0 {
				_ = os.Remove(x.prePath(id, old.Pre))
			}
		}
	}
}

// discard removes the file or tree at an op's private name.
func (x *txn) discard(o *op) error {
	if err := x.step("discard", string(o.Path)); err != nil {
		return err
	}
	dir, _, err := x.placeAgain(o)
	if isAbsent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer closeFd(dir)
	return removeTree(dir, o.Tmp, 0)
}

func (x *txn) tmpPath(o *op) string { return path.Join(path.Dir(string(o.Path)), o.Tmp) }

func (x *txn) prePath(id string, n int) string {
	return filepath.Join(x.runDir, landDir, id, fmt.Sprintf("pre-%d", n))
}
