package attacker

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func call(nr uintptr, a ...uintptr) func() error {
	return func() error {
		var x [6]uintptr
		copy(x[:], a)
		r, _, e := unix.RawSyscall6(nr, x[0], x[1], x[2], x[3], x[4], x[5])
		if e != 0 {
			return e
		}
		_ = r
		return nil
	}
}

// zeros is memory for arguments that stays for the life of the program.
var zeros [512]byte

func zero() uintptr { return uintptr(unsafe.Pointer(&zeros[0])) }

func text(s string) uintptr { return uintptr(unsafe.Pointer(unsafe.StringData(s + "\x00"))) }

// calls returns an attack by system calls that must all be refused.
func calls(id, how, defence string, tries ...try) Attack {
	return Attack{ID: id, How: how, Defence: defence, Judge: ByWord,
		Control: func(*Env) error { return errors.Join(makeFD(unix.EpollCreate1(0)), makeFD(unix.MemfdCreate("x", 0))) },
		Try:     func(e *Env) error { return e.any(tries...) }}
}

func makeFD(fd int, err error) error {
	if err == nil {
		unix.Close(fd)
	}
	return err
}

const noSuch = "the kernel inside does not have it"

func kernelInterfaces() []Attack {
	return family("kernel-interfaces", "S1", slices.Concat(kernelCalls(), kernelRights(), kernelFiles())...)
}

// kernelCalls returns the attacks by system calls that the kernel inside does not have.
func kernelCalls() []Attack {
	return []Attack{
		calls("io-uring", "Set up io_uring, which passes by filters of system calls.", noSuch, try{"io_uring_setup", call(unix.SYS_IO_URING_SETUP, 8, zero())},
			try{"io_uring_register", call(unix.SYS_IO_URING_REGISTER, 0, 0, zero(), 1)}),
		calls("userfaultfd", "Stop the kernel in the middle of a copy with userfaultfd.", noSuch, try{"call", call(unix.SYS_USERFAULTFD, 0)}, try{"user mode only", call(unix.SYS_USERFAULTFD, 1)}),
		calls("bpf", "Load programs and maps into the kernel.", noSuch, try{"map", call(unix.SYS_BPF, 0, zero(), 72)}, try{"program", call(unix.SYS_BPF, 5, zero(), 72)}, try{"object", call(unix.SYS_BPF, 7, zero(), 72)}),
		calls("perf", "Count and sample with perf_event_open.", noSuch, try{"self", call(unix.SYS_PERF_EVENT_OPEN, zero(), 0, ^uintptr(0), ^uintptr(0), 0)}, try{"system", call(unix.SYS_PERF_EVENT_OPEN, zero(), ^uintptr(0), 0, ^uintptr(0), 0)}),
		calls("keyrings", "Read and make keys in the rings of the kernel, which have no namespace.", noSuch,
			try{"add", call(unix.SYS_ADD_KEY, text("user"), text("k"), zero(), 4, ^uintptr(2))},
			try{"request", call(unix.SYS_REQUEST_KEY, text("user"), text("k"), 0, ^uintptr(2))},
			try{"describe", func() error {
				_, err := unix.KeyctlString(unix.KEYCTL_DESCRIBE, unix.KEY_SPEC_USER_KEYRING)
				return err
			}}),
		calls("modules", "Load code into the kernel: modules and kexec.", noSuch, try{"init_module", call(unix.SYS_INIT_MODULE, zero(), 64, text(""))}, try{"finit_module", call(unix.SYS_FINIT_MODULE, 0, text(""), 0)},
			try{"delete_module", call(unix.SYS_DELETE_MODULE, text("no-such-module"), 0)}, try{"kexec_load", call(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0)}),
		calls("ports", "Take the processor's I/O ports.", noSuch, try{"iopl", call(sysIopl, 3)}, try{"ioperm", call(sysIoperm, 0, 1024, 1)}),
	}
}

// kernelRights returns the attacks that need or gain rights over the machine, its files or
// its namespaces.
func kernelRights() []Attack {
	return []Attack{
		calls("machine", "Act on the machine: reboot flags, swap, accounting, quotas, clocks, its name.", "no rights over a machine, inside or out",
			try{"reboot", call(unix.SYS_REBOOT, unix.LINUX_REBOOT_MAGIC1, unix.LINUX_REBOOT_MAGIC2, unix.LINUX_REBOOT_CMD_CAD_OFF)},
			try{"swapon", call(unix.SYS_SWAPON, text("/tmp/no-such-swap"), 0)}, try{"acct", call(unix.SYS_ACCT, text("/tmp"))}, try{"quotactl", call(unix.SYS_QUOTACTL, 0x80000100, text("/tmp"), 0, zero())},
			try{"clock", func() error {
				now := unix.NsecToTimespec(time.Now().UnixNano())
				return unix.ClockSettime(unix.CLOCK_REALTIME, &now)
			}},
			try{"name", func() error {
				n, err := os.Hostname()
				if err != nil {
					return cannot("%v", err)
				}
				return unix.Sethostname([]byte(n))
			}}),
		calls("watch-files", "Watch all files of the system with fanotify, and open them by handles.", noSuch, try{"fanotify", call(unix.SYS_FANOTIFY_INIT, 0, 0)}, try{"handle", call(unix.SYS_OPEN_BY_HANDLE_AT, ^uintptr(99), zero(), 0)}),
		calls("mount", "Mount, unmount, change the root, without rights.", "no capability, and the mounts are the bottle's own",
			try{"mount", func() error { return unix.Mount("x", "/tmp", "tmpfs", 0, "") }}, try{"disk", func() error { return unix.Mount("/dev/vda", "/tmp", "ext4", 0, "") }},
			try{"umount", func() error { return unix.Unmount("/proc", unix.MNT_DETACH) }}, try{"pivot_root", func() error { return unix.PivotRoot("/tmp", "/tmp") }}, try{"chroot", func() error { return unix.Chroot("/tmp") }},
			try{"open_tree", func() error { return makeFD(unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE)) }}, try{"fsopen", func() error { return makeFD(unix.Fsopen("tmpfs", 0)) }}),
		calls("join-namespaces", "Enter the namespaces of process 1, and leave one's own without rights.", "no capability over them",
			append(each([]string{"net", "mnt", "pid", "ipc", "uts", "user"}, func(ns string) error {
				fd, err := unix.Open("/proc/1/ns/"+ns, unix.O_RDONLY, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				return unix.Setns(fd, 0)
			}), try{"unshare", func() error { return unix.Unshare(unix.CLONE_NEWNET) }})...),
		calls("become-root", "Set ids, groups, capabilities and limits that one has no right to.", "no capability, and no_new_privs",
			try{"setuid", func() error { return unix.Setuid(0) }}, try{"setgid", func() error { return unix.Setgid(0) }}, try{"setgroups", func() error { return unix.Setgroups([]int{0}) }},
			try{"capset", func() error {
				hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
				data := [2]unix.CapUserData{{Effective: 1 << unix.CAP_SYS_ADMIN, Permitted: 1 << unix.CAP_SYS_ADMIN}}
				return unix.Capset(&hdr, &data[0])
			}},
			try{"limit", func() error {
				var r unix.Rlimit
				if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
					return cannot("%v", err)
				}
				r.Max++
				return unix.Setrlimit(unix.RLIMIT_NOFILE, &r)
			}}),
		{ID: "set-user-id", How: "Run programs with a set-user-id bit: a copy of one's own, and those of the host, which must not give rights.", Defence: "no_new_privs; mounts are nosuid", Judge: ByWord,
			Control: func(*Env) error { return exec.Command("/usr/bin/id", "-u").Run() },
			Try: func(e *Env) error {
				id, err := copyProgram(e, "/usr/bin/id", "id")
				if err != nil {
					return err
				}
				if err := os.Chmod(id, 0o755|os.ModeSetuid); err != nil {
					return fmt.Errorf("chmod: %w", err)
				}
				rootID := func(c *exec.Cmd) error {
					out, err := c.Output()
					switch {
					case err != nil:
						return err
					case strings.TrimSpace(string(out)) == "0":
						return nil
					}
					return fmt.Errorf("uid %s", out)
				}
				return e.any(
					try{"own", func() error { return rootID(exec.Command(id, "-u")) }},
					try{"su", func() error { return rootID(exec.Command("/bin/su", "-c", "id -u")) }},
					try{"sudo", func() error { return rootID(exec.Command("/usr/bin/sudo", "-n", "id", "-u")) }},
				)
			}},
	}
}

// kernelFiles returns the attacks by files of /proc and /sys.
func kernelFiles() []Attack {
	return []Attack{
		{ID: "proc-sys", How: "Write to /proc/sys and /proc/sysrq-trigger: core patterns, forwarding, the machine's name.", Defence: "these files are not the host's, and read-only", Judge: ByWord,
			Control: func(e *Env) error { return e.read("/proc/sys/kernel/hostname") },
			Try: func(e *Env) error {
				return e.any(each([]string{"/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/kernel/hostname", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory", "/proc/sys/fs/binfmt_misc/register", "/proc/1/oom_score_adj"}, rewrite)...)
			}},
		{ID: "sys", How: "Write to /sys: helpers that the kernel starts, control groups, power.", Defence: "no such files", Judge: ByWord, Control: func(*Env) error { return list("/sys") },
			Try: func(e *Env) error {
				return e.any(append(each([]string{"/sys/kernel/uevent_helper", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/release_agent", "/sys/power/state"}, rewrite),
					try{"make a group", func() error { return os.Mkdir("/sys/fs/cgroup/escape", 0o755) }})...)
			}},
		{ID: "kernel-memory", How: "Read the kernel's memory, symbols and log.", Defence: "no such files", Judge: ByWord, Control: func(e *Env) error { return e.read("/proc/version") },
			Try: func(e *Env) error {
				return e.any(each([]string{"/proc/kallsyms", "/proc/kcore", "/proc/kmsg", "/proc/modules", "/proc/iomem", "/proc/timer_list", "/proc/sched_debug", "/sys/kernel/debug/tracing/trace"}, e.read)...)
			}},
		{ID: "hardware", How: "See the host's disks and firmware in /sys and /proc.", Defence: "no such files", Judge: ByWord, Control: func(*Env) error { return list("/proc") },
			Try: func(e *Env) error {
				return e.any(each([]string{"/sys/block", "/sys/firmware", "/sys/class/net/eth0/device", "/sys/bus/pci/devices", "/proc/bus/pci", "/proc/scsi"}, list)...)
			}},
	}
}
