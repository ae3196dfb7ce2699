package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Env returns the value of an environment variable, as os.Getenv does.
type Env func(name string) string

// maxRuntimeDir bounds the path of a runtime directory. sun_path has 108 bytes with its final zero, and the name of a
// socket is "/", a run id of 26 characters and ".sock".
const maxRuntimeDir = 108 - 1 - 1 - 26 - len(".sock")

// DirError says why carboy does not use a directory, with advice.
type DirError struct {
	Use    string // "state", "runtime" or "configuration"
	Path   string
	Why    string // what is wrong
	Advice string // what the user can do; may be empty
}

func (e *DirError) Error() string {
	s := fmt.Sprintf("%s directory %s: %s", e.Use, strconv.Quote(e.Path), e.Why)
	if e.Advice != "" {
		s += ": " + e.Advice
	}
	return s
}

// StateDir returns the directory that carboy keeps its state in, made with mode 0700 when it is missing:
// $XDG_STATE_HOME/carboy when that variable holds an absolute path, else ~/.local/state/carboy (XDG Base Directory
// Specification 0.8). A directory that is not the user's own or that others can enter is a *DirError; so is a symbolic
// link that another user made. A link of the user's own to such a directory is followed.
func StateDir(env Env) (string, error) {
	base := env("XDG_STATE_HOME")
	if !filepath.IsAbs(base) {
		home, err := home(env)
		if err != nil {
			return "", fmt.Errorf("find state directory: %w", err)
		}
		base = filepath.Join(home, ".local", "state")
	}
	dir := filepath.Join(base, "carboy")
	if err := os.MkdirAll(base, 0o700); err != nil {
		return "", fmt.Errorf("make state directory: %w", err)
	}
	return dir, privateDir("state", dir)
}

// RuntimeDir returns a directory for sockets, made with mode 0700 when it is missing, whose path is short enough that
// "<dir>/<run id>.sock" fits in a socket address: $XDG_RUNTIME_DIR/carboy when that directory exists and is the user's
// own, else carboy-<uid> in the system's temporary directory. There any user may have made that name first: what is not a
// directory (never a link) of this user alone is a *DirError.
func RuntimeDir(env Env) (string, error) {
	uid := os.Geteuid()
	if base := env("XDG_RUNTIME_DIR"); filepath.IsAbs(base) && len(base)+len("/carboy") <= maxRuntimeDir {
		var st unix.Stat_t
		err := unix.Stat(base, &st)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Uid == uint32(uid) && st.Mode&0o022 == 0 {
			dir := filepath.Join(base, "carboy")
			return dir, privateDir("runtime", dir)
		}
	}
	name := "carboy-" + strconv.Itoa(uid)
	base := env("TMPDIR")
	if !filepath.IsAbs(base) || len(filepath.Join(base, name)) > maxRuntimeDir {
		base = "/tmp"
	}
	dir := filepath.Join(base, name)
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return "", &DirError{"runtime", dir, "is a symbolic link", "remove it, or set XDG_RUNTIME_DIR"}
	}
	return dir, privateDir("runtime", dir)
}

// ConfigDir returns the user's configuration directory: flag (the value of --config) when it is not empty, else
// $XDG_CONFIG_HOME/carboy, else ~/.config/carboy. It is not made: a missing default directory is an empty configuration,
// a missing one that was asked for is an error. What it holds grants capabilities, so one that another user owns (other
// than root) or can write to is a *DirError.
func ConfigDir(flag string, env Env) (string, error) {
	dir := flag
	if dir == "" {
		base := env("XDG_CONFIG_HOME")
		if !filepath.IsAbs(base) {
			home, err := home(env)
			if err != nil {
				return "", fmt.Errorf("find configuration directory: %w", err)
			}
			base = filepath.Join(home, ".config")
		}
		dir = filepath.Join(base, "carboy")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find configuration directory: %w", err)
	}
	var st unix.Stat_t
	switch err := unix.Stat(dir, &st); {
	case errors.Is(err, fs.ErrNotExist) && flag == "":
		return dir, nil
	case err != nil:
		return "", &DirError{"configuration", dir, err.Error(), ""}
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return "", &DirError{"configuration", dir, "is not a directory", ""}
	case st.Uid != uint32(os.Geteuid()) && st.Uid != 0:
		return "", &DirError{"configuration", dir, fmt.Sprintf("belongs to user %d, not to user %d", st.Uid, os.Geteuid()), "use one of your own"}
	case st.Mode&0o022 != 0:
		return "", &DirError{"configuration", dir, fmt.Sprintf("can be written by others (mode %#o)", st.Mode&0o777), "chmod go-w it"}
	}
	return dir, nil
}

func home(env Env) (string, error) {
	h := env("HOME")
	if !filepath.IsAbs(h) {
		return "", fmt.Errorf("HOME is %s: set it to an absolute path", strconv.Quote(h))
	}
	return h, nil
}

// privateDir makes dir, or checks that it is a directory of this user alone.
func privateDir(use, dir string) error {
	made := true
	if err := unix.Mkdir(dir, 0o700); errors.Is(err, fs.ErrExist) {
		made = false
	} else if err != nil {
		return &DirError{use, dir, "cannot be made: " + err.Error(), ""}
	}
	uid := uint32(os.Geteuid())
	var link unix.Stat_t
	if err := unix.Lstat(dir, &link); err != nil {
		return &DirError{use, dir, err.Error(), ""}
	}
	if link.Uid != uid {
		return &DirError{use, dir, fmt.Sprintf("belongs to user %d, not to user %d", link.Uid, uid), "run carboy as its owner, or name another one (XDG_STATE_HOME, XDG_RUNTIME_DIR)"}
	}
	// Judged through a descriptor: the name could be changed between a look and a use.
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENOENT) {
		return &DirError{use, dir, "is not a directory", "move it away"}
	} else if err != nil {
		return &DirError{use, dir, "cannot be opened: " + err.Error(), "chmod 700 it"}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &DirError{use, dir, err.Error(), ""}
	}
	switch {
	case st.Uid != uid:
		return &DirError{use, dir, fmt.Sprintf("leads to a directory of user %d", st.Uid), "remove the link"}
	case st.Mode&0o077 != 0 && !made:
		return &DirError{use, dir, fmt.Sprintf("is open to group or others (mode %#o)", st.Mode&0o777), "chmod 700 it, after checking what it holds"}
	case st.Mode&0o777 != 0o700:
		if err := unix.Fchmod(fd, 0o700); err != nil { // an odd umask, or an ACL by default
			return &DirError{use, dir, "mode cannot be set: " + err.Error(), ""}
		}
	}
	return parentGuards(use, dir)
}

// parentGuards refuses a directory in a place where any user may rename it away and put another in its stead.
func parentGuards(use, dir string) error {
	var st unix.Stat_t
	parent := filepath.Dir(dir)
	if err := unix.Stat(parent, &st); err != nil {
		return &DirError{use, dir, err.Error(), ""}
	}
	if st.Mode&0o002 != 0 && st.Mode&unix.S_ISVTX == 0 {
		return &DirError{use, dir, "lies in a directory that everyone can write to", "chmod o-w " + parent}
	}
	return nil
}

// Glob returns the paths in dir that match a pattern, sorted. It takes dir literally, because
// a user's directory may be called [x].
func Glob(dir, pattern string) ([]string, error) {
	found, err := fs.Glob(os.DirFS(dir), pattern)
	for i, f := range found {
		found[i] = filepath.Join(dir, f)
	}
	return found, err
}
