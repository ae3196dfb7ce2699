package hostexec

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// This file runs in the namespaces of a sealed program, before the program. It uses its
// rights there to build the root and then gives all of them up.

func init() {
	if len(os.Args) == 1 && os.Args[0] == sealedArg0 {
		err := becomeSealed()
		fmt.Fprintln(os.Stderr, "carboy-sealed:", err)
		syscall.Exit(1)
	}
}

// becomeSealed returns only if it fails.
func becomeSealed() error {
	runtime.LockOSThread() // capabilities and Pdeathsig belong to this thread
	text, err := io.ReadAll(io.LimitReader(os.Stdin, maxOrder))
	if err != nil {
		return err
	}
	var o sealedOrder
	if err := json.Unmarshal(text, &o); err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	if err := sealRoot(o.Binds); err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := unix.Dup3(int(null.Fd()), 0, 0); err != nil {
		return err
	}
	if err := giveUpRights(); err != nil {
		return err
	}
	return fmt.Errorf("execute %s: %w", o.Path, unix.Exec(o.Path, o.Argv, o.Env))
}

// stages are directories on which the new root can be mounted before it is one.
var stages = []string{"/tmp", "/run", "/mnt", "/var/tmp", "/srv"}

// sealRoot makes the root of the binds. Trees are opened before the new root covers a
// part of the old one.
func sealRoot(binds []sealedBind) error {
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make / a slave: %w", err)
	}
	trees := make([]*os.File, len(binds))
	for i, b := range binds {
		var err error
		switch {
		case b.Link != "":
			continue
		case b.FD > 0:
			unix.CloseOnExec(b.FD)
			trees[i] = os.NewFile(uintptr(b.FD), b.Source)
		default:
			if trees[i], err = cloneTree(b.Source); err != nil {
				return err
			}
		}
		if err := restrictTree(trees[i], b.Device); err != nil {
			return fmt.Errorf("restrict %s: %w", b.Source, err)
		}
	}
	stage, err := mountSealedStage()
	if err != nil {
		return err
	}
	for i, b := range binds {
		if err := placeBind(stage, b, trees[i]); err != nil {
			return err
		}
	}
	if err := unix.Mount("", stage, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("make the root read-only: %w", err)
	}
	if err := unix.Chdir(stage); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the old root: %w", err)
	}
	return unix.Chdir("/")
}

func mountSealedStage() (string, error) {
	var last error = os.ErrNotExist
	for _, dir := range stages {
		if fi, err := os.Lstat(dir); err != nil || !fi.IsDir() {
			continue
		}
		if last = unix.Mount("carboy", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=1m"); last == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("mount a root on any of %q: %w", stages, last)
}

// restrictTree makes a tree read-only, without set-id programs and devices. A device
// that the program may use stays one.
func restrictTree(t *os.File, device bool) error {
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if device {
		attr.Attr_set = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC
	}
	return unix.MountSetattr(int(t.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr)
}

func placeBind(stage string, b sealedBind, tree *os.File) error {
	target := filepath.Join(stage, b.Target)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	if b.Link != "" {
		return os.Symlink(b.Link, target)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(tree.Fd()), &st); err != nil {
		return err
	}
	var err error
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = os.MkdirAll(target, 0o755)
	} else {
		var f *os.File
		if f, err = os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); err == nil {
			err = f.Close()
		}
	}
	if err != nil {
		return err
	}
	if err := unix.MoveMount(int(tree.Fd()), "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("attach %s: %w", b.Source, err)
	}
	return tree.Close()
}

// giveUpRights drops every capability for good, and makes sure that the program dies
// with carboy.
func giveUpRights() error {
	for c := range unix.CAP_LAST_CAP + 1 {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && err != unix.EINVAL {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	for _, p := range [][2]uintptr{
		{unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL}, {unix.PR_SET_NO_NEW_PRIVS, 1}, {unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL)},
	} {
		if err := unix.Prctl(int(p[0]), p[1], 0, 0, 0); err != nil {
			return fmt.Errorf("prctl %d: %w", p[0], err)
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return err
	}
	var none [2]unix.CapUserData
	if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	return nil
}
