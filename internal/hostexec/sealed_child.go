package hostexec

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/carboy/carboy/internal/seccomp"
	"golang.org/x/sys/unix"
)

// This file runs in the namespaces of a sealed program, before the program. It uses its
// rights there to build the root and then gives all of them up.

func init() {
	if len(os.Args) == 1 && os.Args[0] == sealedArg0 {
		o, err := sealSelf()
		o.become(err)
	}
}

// become executes the program, unless sealing failed with err. It does not return.
func (o *sealedOrder) become(err error) {
	if err == nil {
		err = fmt.Errorf("execute %s: %w", o.Path, unix.Exec(o.Path, o.Argv, o.Env))
	}
	fmt.Fprintln(os.Stderr, "carboy-sealed:", err)
	syscall.Exit(1)
}

// sealSelf seals this process as the order on standard input says, and returns the order.
func sealSelf() (*sealedOrder, error) {
	runtime.LockOSThread() // capabilities and Pdeathsig belong to this thread
	o := &sealedOrder{}
	text, err := io.ReadAll(io.LimitReader(os.Stdin, maxOrder))
	if err != nil {
		return o, err
	}
	if err := json.Unmarshal(text, o); err != nil {
		return o, fmt.Errorf("read the order: %w", err)
	}
	if err := closeInherited(3 + o.Files); err != nil {
		return o, fmt.Errorf("mark descriptors close-on-exec: %w", err)
	}
	if err := sealRoot(o.Binds); err != nil {
		return o, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return o, err
	}
	if err := unix.Dup3(int(null.Fd()), 0, 0); err != nil {
		return o, err
	}
	if err := giveUpRights(); err != nil {
		return o, err
	}
	if err := setLimits(o.Limits); err != nil {
		return o, err
	}
	return o, seccomp.Install(callFilter(), 0)
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
	for _, dir := range hiddenDirs {
		if err := hide(filepath.Join(stage, dir)); err != nil {
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

// hiddenDirs lie in the system's directories and can hold credentials, such as npm's.
var hiddenDirs = []string{"/usr/local/etc"}

// hide puts an empty directory over one, if that is there.
func hide(dir string) error {
	if fi, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) || err == nil && !fi.IsDir() {
		return nil
	}
	if err := unix.Mount("carboy", dir, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0555,size=4k"); err != nil {
		return fmt.Errorf("hide %s: %w", dir, err)
	}
	return nil
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
	var none [2]unix.CapUserData
	if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	return nil
}

// SealedStack is the size of a sealed program's stack, and of each of its threads', bytes.
const SealedStack = 8 << 20

// setLimits bounds what the program can take of this machine.
func setLimits(l SealedLimits) error {
	type limit struct {
		which int
		max   uint64
	}
	limits := []limit{{unix.RLIMIT_CORE, 0}, {unix.RLIMIT_STACK, SealedStack}, {unix.RLIMIT_FSIZE, l.FileSize}, {unix.RLIMIT_NOFILE, l.Files}, {unix.RLIMIT_AS, l.Memory}}
	if countsByNamespace() {
		limits = append(limits, limit{unix.RLIMIT_NPROC, l.Threads})
	}
	for _, r := range limits {
		// A stricter one, of whoever started carboy, stays.
		var had syscall.Rlimit
		if err := syscall.Getrlimit(r.which, &had); err != nil {
			return err
		}
		to := min(r.max, had.Max)
		// The package syscall must know, or it sets its own limit again at execve.
		if err := syscall.Setrlimit(r.which, &syscall.Rlimit{Cur: to, Max: to}); err != nil {
			return fmt.Errorf("set limit %d to %d: %w", r.which, to, err)
		}
	}
	return nil
}

// countsByNamespace reports whether the kernel counts threads by user namespace, as Linux 5.14
// and newer do. Another would count all of the user's against the limit.
func countsByNamespace() bool {
	var u unix.Utsname
	var major, minor int
	if unix.Uname(&u) != nil {
		return false
	}
	n, _ := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return n == 2 && (major > 5 || major == 5 && minor >= 14)
}
