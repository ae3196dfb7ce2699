package hostexec

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// trustedDirs are searched in this order; PATH is not used.
var trustedDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// maxLinks bounds symbolic links on the way to a program, as the kernel does.
const maxLinks = 40

// location is a program found on the trusted list. parents holds every
// directory passed on the way, also those that links led through, so that a
// workspace among them is noticed.
type location struct {
	path    string
	parents []fs.FileInfo
}

// beneath reports whether the way to the program passes through dir. It
// compares directories, not names, so links and bind mounts cannot hide one.
func (l *location) beneath(dir fs.FileInfo) bool {
	for _, p := range l.parents {
		if os.SameFile(p, dir) {
			return true
		}
	}
	return false
}

// resolve finds a bare name in dirs. It refuses a name with a slash before it
// asks the file system. A candidate that fails the trust check is an error and
// ends the search: someone put it there.
func resolve(name string, dirs []string) (*location, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return nil, refuse(name, reasonProgram, "not a bare name")
	}
	if isNever(name) {
		return nil, refuse(name, reasonProgram, "never allowed")
	}
	for _, dir := range dirs {
		candidate := filepath.Join(dir, name)
		if _, err := os.Lstat(candidate); errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			continue
		}
		loc, err := walk(candidate)
		if err != nil {
			return nil, &refusal{Program: name, Reason: reasonUntrusted, Detail: candidate, Err: err}
		}
		return loc, nil
	}
	return nil, refuse(name, reasonInstalled, "not installed in %s", strings.Join(dirs, ":"))
}

// walk follows path one component at a time and checks every directory and link
// it passes. filepath.EvalSymlinks gives the same end but not the directories
// on the way.
func walk(path string) (*location, error) {
	loc := &location{}
	cur, rest, links := "/", split(path), 0
	if err := loc.enter(cur); err != nil {
		return nil, err
	}
	for len(rest) > 0 {
		c := rest[0]
		rest = rest[1:]
		if c == ".." {
			cur = filepath.Dir(cur)
			continue
		}
		next := filepath.Join(cur, c)
		fi, err := os.Lstat(next)
		if err != nil {
			return nil, err
		}
		switch {
		case fi.Mode()&fs.ModeSymlink != 0:
			if links++; links > maxLinks {
				return nil, fmt.Errorf("%s: too many links", next)
			}
			if err := ownedByTrusted(next, fi); err != nil {
				return nil, err
			}
			target, err := os.Readlink(next)
			if err != nil {
				return nil, err
			}
			if filepath.IsAbs(target) {
				cur = "/"
			}
			rest = append(split(target), rest...)
		case fi.IsDir():
			if err := loc.enter(next); err != nil {
				return nil, err
			}
			cur = next
		case len(rest) == 0:
			loc.path = next
			return loc, checkProgram(next, fi, loc.parents[len(loc.parents)-1])
		default:
			return nil, fmt.Errorf("%s: not a directory", next)
		}
	}
	return nil, fmt.Errorf("%s: is a directory", cur)
}

func split(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// enter checks a directory and records it. A sticky directory is accepted:
// others can add names there but not replace ours.
func (l *location) enter(dir string) error {
	fi, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if err := ownedByTrusted(dir, fi); err != nil {
		return err
	}
	if writableByOthers(fi) && fi.Mode()&fs.ModeSticky == 0 {
		return fmt.Errorf("%s: directory can be written by others", dir)
	}
	l.parents = append(l.parents, fi)
	return nil
}

func checkProgram(path string, fi, parent fs.FileInfo) error {
	if err := ownedByTrusted(path, fi); err != nil {
		return err
	}
	switch {
	case !fi.Mode().IsRegular():
		return fmt.Errorf("%s: not a regular file", path)
	case writableByOthers(fi) || writableByOthers(parent):
		return fmt.Errorf("%s: can be written by others", path)
	case fi.Mode().Perm()&0o111 == 0:
		return fmt.Errorf("%s: not executable", path)
	case fi.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0:
		return fmt.Errorf("%s: set-uid or set-gid", path)
	case isNever(filepath.Base(path)):
		return fmt.Errorf("%s: a program that is never allowed", path)
	}
	return checkELF(path)
}

// checkELF refuses scripts: their first line would start an interpreter that
// the closed set leaves out.
func checkELF(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var magic [4]byte
	if _, err := io.ReadFull(f, magic[:]); err != nil || string(magic[:]) != "\x7fELF" {
		return fmt.Errorf("%s: not an ELF program", path)
	}
	return nil
}

func ownedByTrusted(path string, fi fs.FileInfo) error {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: owner unknown", path)
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s: owned by uid %d", path, st.Uid)
	}
	return nil
}

// writableByOthers reports whether the world, or a group other than root's, may
// write.
func writableByOthers(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	perm := fi.Mode().Perm()
	return !ok || perm&0o002 != 0 || perm&0o020 != 0 && st.Gid != 0
}
