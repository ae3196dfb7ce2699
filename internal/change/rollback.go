package change

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

// rollback undoes the steps of an uncommitted journal. It decides by the files
// that it finds, so it works after a failure and after a crash, and can itself
// be interrupted and repeated.
func (x *txn) rollback() error {
	// The rollback must not be stopped by the cancellation that caused it.
	x.ctx = context.WithoutCancel(x.ctx)
	if err := x.refsBack(); err != nil {
		return err
	}
	var errs []error
	ops := x.j.plan.Ops
	for i := len(ops) - 1; i >= 0; i-- {
		if err := x.back(i, &ops[i]); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	// A directory that is gone has been reported as stranded above; failing here
	// would make every later landing fail as well.
	if err := x.sync(ops, len(ops) > syncEach, false); err != nil {
		return err
	}
	if err := x.step("journal", "rolled"); err != nil {
		return err
	}
	now := time.Now()
	if err := x.j.write(journalRecord{Rolled: &now, Left: x.left}); err != nil {
		return err
	}
	// A rolled-back landing leaves nothing, unless an old file is stranded:
	// then its pre-image stays too.
	if len(x.left) == 0 {
		_ = os.RemoveAll(x.j.dir)
	}
	return nil
}

// back undoes op i, as far as it was carried out.
func (x *txn) back(i int, o *op) error {
	p := string(o.Path)
	if err := x.step("back", p); err != nil {
		return err
	}
	dir, name, err := x.placeAgain(o)
	if isAbsent(err) {
		// The directory was deleted or moved, with the files we made in it.
		return x.stranded(o)
	}
	if err != nil {
		return err
	}
	defer closeFd(dir)
	if o.Kind == opChmod {
		return x.unchmod(dir, name, o)
	}
	switch o.Kind {
	case opPut, opSwap:
		ours := x.staged(i)
		if o.Git && isStoredObject(p) && ours != 0 && inodeAt(dir, name) == ours {
			return nil // somebody may use it already; git removes what nobody does
		}
		if ours != 0 && inodeAt(dir, name) == ours && !x.untouched(i, o, dir, name) {
			return x.stranded(o)
		}
		if o.Kind == opPut {
			err = x.backPut(dir, name, o.Tmp, ours)
		} else {
			err = x.backSwap(dir, name, o.Tmp, ours)
		}
	case opRemove:
		err = x.backRemove(dir, name, o.Tmp)
	}
	if err == errStranded {
		return x.stranded(o)
	}
	return wrapPath("put back", p, err)
}

// untouched reports whether the files that op i put in place are unchanged
// since. After a crash the user may have edited them; rollback must not remove
// that work.
func (x *txn) untouched(i int, o *op, dir int, name string) bool {
	want := make(map[string]fileID, len(o.New))
	for k := range o.New {
		want[string(o.New[k].Rel)] = x.j.ids[i][k]
	}
	same := func(rel string, fp *Fingerprint) bool {
		id, ok := want[rel]
		return ok && fp.Ino == id.Ino && (fp.Type == Dir || fp.Mtime == id.Mtime)
	}
	// Resolve below the open directory: its path may lead elsewhere by now.
	t := tree{dir}
	st, err := t.lstat(name)
	if err != nil || !same("", fingerprintOf(&st)) {
		return false
	}
	if o.New[0].Type != Dir {
		return true
	}
	err = walkTree(x.ctx, t, name, "", func(rel string, fp *Fingerprint) error {
		if !same(rel, fp) {
			return errStranded
		}
		return nil
	})
	// A tree whose own modes make it unreadable cannot have been edited.
	return err == nil || errors.Is(err, unix.EACCES)
}

var errStranded = errors.New("another file is in its place")

// backPut removes a new file again. ours is its inode, 0 before anything was
// put in place; then tmp holds our file, complete or not.
func (x *txn) backPut(dir int, name, tmp string, ours uint64) error {
	if ours != 0 && inodeAt(dir, name) == ours {
		if inodeAt(dir, tmp) == ours { // linked, not yet unlinked
			if err := unix.Unlinkat(dir, name, 0); err != nil {
				return err
			}
		} else if err := x.mv.place(dir, name, tmp); err != nil {
			return err
		}
	}
	return removeTree(dir, tmp, 0)
}

// backSwap reverses an exchange. While our file is in place, tmp holds the
// file that was there before, even if the host had replaced it just before the
// exchange.
func (x *txn) backSwap(dir int, name, tmp string, ours uint64) error {
	if ours == 0 {
		return removeTree(dir, tmp, 0)
	}
	if err := x.mv.settle(dir, tmp, name, ours); err != nil {
		if err == unix.EEXIST {
			return errStranded
		}
		return err
	}
	at, beside := inodeAt(dir, name), inodeAt(dir, tmp)
	switch {
	case beside == 0, beside == ours:
	case at == 0:
		return x.mv.place(dir, tmp, name)
	case at == ours:
		if err := x.mv.exchange(dir, tmp, name); err != nil {
			return err
		}
		if inodeAt(dir, tmp) != ours {
			return errStranded // the host had replaced our file
		}
	default:
		return errStranded
	}
	return removeTree(dir, tmp, 0)
}

// backRemove puts a removed file back in place.
func (x *txn) backRemove(dir int, name, tmp string) error {
	beside := inodeAt(dir, tmp)
	switch at := inodeAt(dir, name); {
	case beside == 0:
		return nil
	case at == beside: // linked, not yet unlinked
		return unix.Unlinkat(dir, tmp, 0)
	case at != 0:
		return errStranded
	}
	return x.mv.place(dir, tmp, name)
}

// maxDirWait bounds how long one transaction waits, in total, for directories
// that somebody has renamed.
const maxDirWait = 2 * time.Second

// placeAgain is place with retries, for rollback and cleanup, where giving up
// leaves files behind: a directory that is being renamed may come back.
func (x *txn) placeAgain(o *op) (dir int, name string, err error) {
	for {
		if dir, name, err = x.place(o); err == nil || x.waited >= maxDirWait {
			return dir, name, err
		}
		began := time.Now()
		time.Sleep(time.Millisecond)
		x.waited += time.Since(began)
	}
}

// stranded records an old file whose place the host has taken with a newer
// one. The old file keeps its private name, and a person decides.
func (x *txn) stranded(o *op) error {
	if o.Kind == opChmod {
		return nil
	}
	x.left = append(x.left, Bytes(x.tmpPath(o)))
	return nil
}

func (x *txn) unchmod(dir int, name string, o *op) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Ino != o.Old[0].FP.Ino {
		return nil // no longer the file that was changed
	}
	if st.Mode&0o7777 != o.Mode {
		return nil
	}
	fd, err := openBeneath(dir, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return wrapPath("put back", string(o.Path), err)
	}
	defer closeFd(fd)
	return wrapPath("put back", string(o.Path), chmodFd(fd, o.Old[0].FP.Mode))
}

// staged returns the inode of the file that op i made, 0 before it was
// journaled.
func (x *txn) staged(i int) uint64 {
	if i < len(x.j.ids) && len(x.j.ids[i]) > 0 {
		return x.j.ids[i][0].Ino
	}
	return 0
}

func inodeAt(dir int, name string) uint64 {
	var st unix.Stat_t
	if unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return 0
	}
	return st.Ino
}

// removeTree removes name and everything below it, without following links.
func removeTree(dir int, name string, depth int) error {
	err := unix.Unlinkat(dir, name, 0)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err == unix.EROFS && inodeAt(dir, name) == 0 {
		return nil // unlink fails with EROFS even if the name does not exist
	}
	if err != unix.EISDIR && err != unix.EPERM {
		return wrapPath("remove", name, err)
	}
	if depth > 2*maxDepth {
		return fmt.Errorf("remove %s: too deep", show(name))
	}
	fd, err := openBeneath(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err == unix.EACCES {
		fd, err = openLocked(dir, name)
	}
	if err != nil {
		return wrapPath("remove", name, err)
	}
	defer closeFd(fd)
	names, err := tree{fd}.sorted(".")
	if err != nil {
		return wrapPath("remove", name, err)
	}
	for i, n := range names {
		err := removeTree(fd, n, depth+1)
		if i == 0 && errors.Is(err, unix.EACCES) {
			// The directory's own mode forbids writing; it is ours to change.
			if unix.Fchmod(fd, 0o700) == nil {
				err = removeTree(fd, n, depth+1)
			}
		}
		if err != nil {
			return fmt.Errorf("%s/%w", path.Base(name), err)
		}
	}
	return wrapPath("remove", name, unix.Unlinkat(dir, name, unix.AT_REMOVEDIR))
}

// openLocked opens a directory whose mode denies access to its owner.
func openLocked(dir int, name string) (int, error) {
	fd, err := openBeneath(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1, err
	}
	defer closeFd(fd)
	if err := chmodFd(fd, 0o700); err != nil {
		return -1, err
	}
	return openBeneath(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}
