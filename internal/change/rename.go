package change

import "golang.org/x/sys/unix"

// mover renames files within one directory. If the file system supports neither
// RENAME_EXCHANGE nor RENAME_NOREPLACE (network and pass-through file systems),
// it uses hard links: a name still always has its old or its new file, except
// while a directory is exchanged.
type mover struct {
	plain bool // the file system lacks the flags, or a test says so
}

// asideSuffix ends the name of the third file that an exchange by hard links
// needs.
const asideSuffix = "-a"

// place renames from to to. It returns EEXIST if to exists.
func (m *mover) place(dir int, from, to string) error {
	if !m.plain {
		err := unix.Renameat2(dir, from, dir, to, unix.RENAME_NOREPLACE)
		if !lacksFlags(err) {
			return err
		}
		m.plain = true
	}
	err := unix.Linkat(dir, from, dir, to, 0)
	switch err {
	case nil:
		return unix.Unlinkat(dir, from, 0)
	case unix.EPERM, unix.EOPNOTSUPP, unix.EMLINK, unix.ENOSYS:
		// A directory, or no hard links.
		if inodeAt(dir, to) != 0 {
			return unix.EEXIST
		}
		return unix.Renameat(dir, from, dir, to)
	}
	return err
}

// exchange swaps two names that exist.
func (m *mover) exchange(dir int, tmp, name string) error {
	if !m.plain {
		err := unix.Renameat2(dir, tmp, dir, name, unix.RENAME_EXCHANGE)
		if !lacksFlags(err) {
			return err
		}
		m.plain = true
	}
	aside := tmp + asideSuffix
	err := unix.Linkat(dir, name, dir, aside, 0)
	if err == unix.EPERM || err == unix.EOPNOTSUPP || err == unix.EMLINK || err == unix.ENOSYS || (err == nil && isDirAt(dir, tmp)) {
		if err == nil {
			if err := unix.Unlinkat(dir, name, 0); err != nil {
				return err
			}
		} else if err := unix.Renameat(dir, name, dir, aside); err != nil {
			return err
		}
		err = nil
	}
	if err != nil {
		return err
	}
	if err := unix.Renameat(dir, tmp, dir, name); err != nil {
		return err
	}
	return unix.Renameat(dir, aside, dir, tmp)
}

func lacksFlags(err error) bool {
	return err == unix.EINVAL || err == unix.ENOSYS || err == unix.EOPNOTSUPP
}

func isDirAt(dir int, name string) bool {
	var st unix.Stat_t
	return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// settle completes or reverses an interrupted exchange by hard links. ours is
// the inode of the new file. Any other file belongs to the host and is never
// removed.
func (m *mover) settle(dir int, tmp, name string, ours uint64) error {
	aside := tmp + asideSuffix
	a := inodeAt(dir, aside)
	if a == 0 {
		return nil
	}
	at := inodeAt(dir, name)
	if a == ours { // it was being reversed; the old file is at tmp or name
		if at == 0 {
			if err := unix.Renameat(dir, tmp, dir, name); err != nil {
				return err
			}
		}
		return removeTree(dir, aside, 0)
	}
	switch {
	case at == a: // linked, nothing renamed yet
		return unix.Unlinkat(dir, aside, 0)
	case at == 0:
		return unix.Renameat(dir, aside, dir, name)
	case at == ours && !isDirAt(dir, name) && !isDirAt(dir, aside):
		return unix.Renameat(dir, aside, dir, name)
	case at == ours:
		return unix.Renameat(dir, aside, dir, tmp) // the last step of the exchange
	}
	return unix.EEXIST // the host made a new file; keep both
}
