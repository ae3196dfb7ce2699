package change

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Identity identifies a directory, even after another one is put at its path.
type Identity struct {
	Path  string `json:"path"`
	Dev   uint64 `json:"dev"`
	Ino   uint64 `json:"ino"`
	FSID  uint64 `json:"fsid,omitempty"`  // from statfs; survives a reboot, unlike Dev
	Birth int64  `json:"birth,omitempty"` // ns since 1970; 0 if the file system has none
}

func (a Identity) same(b Identity) bool {
	if a.Ino != b.Ino || a.Birth != b.Birth {
		return false
	}
	return a.Dev == b.Dev || a.FSID != 0 && a.FSID == b.FSID
}

// CheckWorkspace returns dir as an absolute path without symbolic links. It
// fails for a directory that must not be a workspace: the root of the file
// system, the home directory or a parent of it; and for a path that is
// missing, no directory or unreadable. The error is a *WorkspaceError with
// advice.
func CheckWorkspace(dir string) (string, error) {
	if strings.IndexByte(dir, 0) >= 0 || dir == "" {
		return "", &WorkspaceError{Path: dir, Reason: ErrWorkspaceMissing, Advice: "name a directory"}
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", &WorkspaceError{Path: dir, Reason: ErrWorkspaceMissing, Advice: "change to a directory that exists", Cause: err}
	}
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return "", workspaceOpenError(abs, err)
	}
	if real == "/" {
		return "", &WorkspaceError{Path: real, Reason: ErrWorkspaceRoot, Advice: "change to a project directory, or run without a workspace"}
	}
	for _, home := range homes() {
		if home == real || strings.HasPrefix(home, real+"/") {
			return "", &WorkspaceError{Path: real, Reason: errWorkspaceHome, Advice: "change to a project directory below it, or run without a workspace"}
		}
	}
	fd, err := unix.Open(real, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", workspaceOpenError(real, err)
	}
	defer unix.Close(fd)
	if _, err := unix.Getdents(fd, make([]byte, 4096)); err != nil {
		return "", workspaceOpenError(real, err)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, real, unix.X_OK, unix.AT_EACCESS); err != nil {
		return "", workspaceOpenError(real, err)
	}
	return real, nil
}

func workspaceOpenError(p string, err error) error {
	e := &WorkspaceError{Path: p, Cause: err}
	switch {
	case errors.Is(err, unix.ENOENT):
		e.Reason, e.Cause, e.Advice = ErrWorkspaceMissing, nil, "create it or change to a directory that exists"
	case errors.Is(err, unix.ENOTDIR):
		e.Reason, e.Cause, e.Advice = errWorkspaceNotDir, nil, "name the directory that holds it"
	default:
		e.Reason, e.Advice = errWorkspaceUnreadable, "check its permissions"
	}
	return e
}

// homes returns the user's home directories: $HOME and, because that may be
// unset or wrong, the account's.
func homes() []string {
	var out []string
	add := func(h string) {
		if !filepath.IsAbs(h) || filepath.Clean(h) == "/" {
			return
		}
		if r, err := filepath.EvalSymlinks(h); err == nil {
			h = r
		}
		out = append(out, filepath.Clean(h))
	}
	add(os.Getenv("HOME"))
	if h := passwdHome(os.Getuid()); h != "" {
		add(h)
	}
	return out
}

// passwdHome returns the account's home from /etc/passwd, "" if not found.
func passwdHome(uid int) string {
	b, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return ""
	}
	want := fmt.Sprint(uid)
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) >= 6 && f[2] == want {
			return f[5]
		}
	}
	return ""
}

// openRoot opens dir, which must not be a symbolic link, and identifies it.
func openRoot(dir string) (int, Identity, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, Identity{}, workspaceOpenError(dir, err)
	}
	id, err := identify(fd, dir)
	if err != nil {
		unix.Close(fd)
		return -1, Identity{}, wrapPath("identify", dir, err)
	}
	// Check for openat2 now: without it no later step is safe.
	probe, err := openBeneath(fd, ".", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		unix.Close(fd)
		return -1, Identity{}, wrapPath("open beneath", dir, err)
	}
	unix.Close(probe)
	return fd, id, nil
}

func identify(fd int, dir string) (Identity, error) {
	id := Identity{Path: dir}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return id, err
	}
	id.Dev, id.Ino = uint64(st.Dev), st.Ino
	var sfs unix.Statfs_t
	if unix.Fstatfs(fd, &sfs) == nil {
		id.FSID = uint64(uint32(sfs.Fsid.Val[0])) | uint64(uint32(sfs.Fsid.Val[1]))<<32
	}
	var sx unix.Statx_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &sx) == nil && sx.Mask&unix.STATX_BTIME != 0 {
		id.Birth = sx.Btime.Sec*1e9 + int64(sx.Btime.Nsec)
	}
	return id, nil
}

// reopenRoot opens the workspace again. It returns ErrWorkspaceReplaced if
// another directory is in its place.
func reopenRoot(want Identity) (int, error) {
	fd, got, err := openRoot(want.Path)
	if err != nil {
		return -1, err
	}
	if !got.same(want) {
		unix.Close(fd)
		return -1, fmt.Errorf("open workspace %s: %w", show(want.Path), ErrWorkspaceReplaced)
	}
	return fd, nil
}
