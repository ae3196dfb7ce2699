package gvisor

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/userns"
	"github.com/carboy/carboy/internal/seccomp"
)

// When root starts a bottle, root's rights must not reach it: the shim runs as
// the workspace's owner. If that is root too, the shim runs as an id that owns
// nothing on the host, and sees the workspace through an ID-mapped mount
// (mount_setattr(2), Linux 5.12) in which root's files belong to that id.

// rootFiles holds directories that root opened because the shim could not reach
// them by path; nil where the shim opens them itself.
type rootFiles struct {
	root, scratch *os.File
	writable      bool // some of the mounts are root's, and can be written to
}

// rootTrees opens, as root, the directories that the plan names.
func rootTrees(spec *bottle.Spec) (x rootFiles, err error) {
	if os.Geteuid() != 0 || spec.HostUID == 0 {
		return x, nil
	}
	defer func() {
		if err != nil {
			closeAll([]*os.File{x.root, x.scratch})
		}
	}()
	if spec.Root.Dir != "" {
		if x.root, err = openTree(spec.Root.Dir); err != nil {
			return x, err
		}
		if spec.Builds {
			if _, err = ownByUser(x.root, spec.Root.Dir, spec); err != nil {
				return x, err
			}
		}
	}
	if spec.Scratch != "" {
		if x.scratch, err = openTree(spec.Scratch); err != nil {
			return x, err
		}
	}
	mounts := make([]*bottle.Mount, 0, len(spec.Mounts)+1)
	if spec.Workspace != nil {
		mounts = append(mounts, spec.Workspace)
	}
	for i := range spec.Mounts {
		mounts = append(mounts, &spec.Mounts[i])
	}
	for _, m := range mounts {
		if m.Tree != nil {
			continue
		}
		if m.Tree, err = openTree(m.Source); err != nil {
			return x, err
		}
		roots, err := ownByUser(m.Tree, m.Source, spec)
		if err != nil {
			return x, err
		}
		x.writable = x.writable || roots && m.Access == bottle.AccessReadWrite
	}
	return x, nil
}

// ownByUser shows root's files as the user's, if the directory is root's, and reports whether
// it is.
func ownByUser(t *os.File, path string, spec *bottle.Spec) (roots bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(t.Fd()), &st); err != nil {
		return false, err
	}
	if st.Uid != 0 {
		return false, nil // owned by the user, or by another whose permissions then decide
	}
	sleeper, _ := initELF() // without it, carboy sleeps
	ns, release, err := userns.Mapping(sleeper, userns.Pair{Shown: [2]uint32{spec.HostUID, spec.HostGID}})
	if err != nil {
		return true, fmt.Errorf("map root's files of %s: %w", path, err)
	}
	defer release()
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())}
	err = unix.MountSetattr(int(t.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		return true, &bottle.UnavailableError{
			Backend: name, Err: err,
			Reason: "the file system of " + path + " has no ID-mapped mounts, so root's files can't be shown without root's rights",
			Advice: "run carboy as the ordinary user who owns the workspace, or use --workspace copy from a directory of that user",
		}
	}
	return true, err
}

// refuseSetID makes setting a set-user-id or set-group-id bit fail with EPERM, in this process
// and in those that it starts. A file that a command makes in a directory of root's is root's
// on the host, where such a bit would give everyone root's rights. Calls that gVisor's own
// filters refuse are not looked at.
func refuseSetID() error {
	p := []unix.SockFilter{{Code: seccomp.Load, K: seccomp.Number}}
	for _, c := range []struct {
		call uint32
		mode int // the argument
	}{{unix.SYS_FCHMOD, 1}, {unix.SYS_FCHMODAT, 2}, {unix.SYS_FCHMODAT2, 2}, {unix.SYS_OPENAT, 3}, {unix.SYS_MKNODAT, 2}} {
		p = append(p, unix.SockFilter{Code: seccomp.IfEq, Jf: 4, K: c.call},
			unix.SockFilter{Code: seccomp.Load, K: seccomp.Arg(c.mode)}, unix.SockFilter{Code: seccomp.IfAny, Jf: 1, K: unix.S_ISUID | unix.S_ISGID},
			seccomp.Refuse(unix.EPERM), seccomp.Allow)
	}
	return seccomp.Install(append(p, seccomp.Allow), unix.SECCOMP_FILTER_FLAG_TSYNC)
}
