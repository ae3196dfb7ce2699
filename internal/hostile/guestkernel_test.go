package hostile

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fileProbes look for what is the host's: args are the secret text, a file
// that holds it, the host's home and workspace.
func fileProbes(args []string) []probe {
	secret, file, ws := reverse(args[0]), args[1], args[2]
	ps := []probe{
		{"allowed-workspace", read(ws + "/a.txt")},
		{"allowed-passwd", read("/etc/passwd")},
		{"allowed-tools", list("/usr/bin")},
		{"allowed-home", func() error { return os.WriteFile(os.Getenv("HOME")+"/f", []byte("x"), 0o600) }},
		{"secret-file", read(file)},
		{"secret-by-proc-root", read("/proc/self/root" + file)},
		{"secret-by-init-root", read("/proc/1/root" + file)},
		{"secret-by-dotdot", read("../../../../../../../../.." + file)},
		{"secret-by-cwd", read("/proc/self/cwd/../../../../../../.." + file)},
		{"secret-by-link", read(ws + "/link-to-secret")},
		{"secret-by-relative-link", read(ws + "/relative-link")},
		{"secret-by-dir-link", read(ws + "/link-to-dir/" + filepath.Base(file))},
		{"secret-by-own-link", func() error {
			if err := os.Symlink(file, "own-link"); err != nil {
				return err
			}
			return read("own-link")()
		}},
		{"secret-by-hard-link", func() error { return os.Link(file, ws+"/hard") }},
		{"secret-by-loader", func() error {
			out, err := exec.Command("/lib64/ld-linux-x86-64.so.2", "/bin/cat", file).Output()
			if err == nil && len(out) == 0 {
				err = errors.New("empty")
			}
			return err
		}},
		{"allowed-loader", func() error {
			if _, err := os.Stat("/lib64/ld-linux-x86-64.so.2"); err != nil {
				return nil // another libc
			}
			return exec.Command("/lib64/ld-linux-x86-64.so.2", "/bin/cat", "/etc/passwd").Run()
		}},
		{"secret-in-environment", func() error {
			if strings.Contains(strings.Join(os.Environ(), "\n"), secret) {
				return nil
			}
			return errors.New("not there")
		}},
	}
	for _, p := range []string{
		"/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssh/ssh_host_ed25519_key", "/root/.ssh/id_ed25519", "/root/.bash_history",
		"/root/.aws/credentials", "/var/log/dpkg.log", "/var/lib/dpkg/status", "/etc/machine-id.host", "/boot/grub/grub.cfg",
	} {
		ps = append(ps, probe{"file" + p, read(p)})
	}
	for _, p := range []string{"/root", "/boot", "/srv", "/opt", "/media", "/mnt", "/var/spool", "/var/lib", "/run/systemd", "/lost+found", "/sys/firmware/efi"} {
		ps = append(ps, probe{"list" + p, list(p)})
	}
	for _, p := range []string{"/home", "/root", "/tmp", "/var", "/run", "/mnt", "/dev", "/proc", "/etc", "/.carboy"} {
		ps = append(ps, probe{"find" + p, func() error { return find(p, secret) }})
	}
	return ps
}

// procProbes look for the host's processes; args are pids of the host.
func procProbes(args []string) []probe {
	ps := []probe{
		{"allowed-signal-self", func() error { return unix.Kill(os.Getpid(), 0) }},
		{"allowed-own-child", func() error {
			c := exec.Command("/bin/sleep", "100")
			if err := c.Start(); err != nil {
				return err
			}
			if err := c.Process.Kill(); err != nil {
				return err
			}
			c.Wait()
			return nil
		}},
		{"foreign-process", func() error {
			ents, err := os.ReadDir("/proc")
			if err != nil {
				return err
			}
			for _, e := range ents {
				if _, err := strconv.Atoi(e.Name()); err != nil {
					continue
				}
				b, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
				line := strings.ReplaceAll(string(b), "\x00", " ")
				if !strings.HasPrefix(line, guestPath) && !strings.HasPrefix(line, "/.carboy/init") && line != "" && !strings.HasPrefix(line, "/bin/sleep") {
					fmt.Println("saw", line)
					return nil
				}
			}
			return errors.New("only our own")
		}},
		{"init-environment", read("/proc/1/environ")},
		{"kill-init", func() error {
			err := unix.Kill(1, unix.SIGKILL)
			if err == nil {
				_, err = os.Stat("/proc/1") // the init of Linux is immune
				if err == nil {
					err = errors.New("survived")
				}
			}
			return err
		}},
		{"init-memory", func() error {
			f, err := os.OpenFile("/proc/1/mem", os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt([]byte{0}, 0x400078)
			return err
		}},
		{"signal-all", func() error {
			// To every process that we may signal, ourselves excepted: what
			// it reaches must not be the host's, which the host looks at.
			unix.Kill(-1, unix.SIGCONT)
			return errors.New("sent")
		}},
	}
	for _, a := range args {
		pid, err := strconv.Atoi(a)
		if err != nil {
			continue
		}
		if _, err := os.Stat("/proc/" + a + "/stat"); err == nil {
			continue // the same number means one of ours here
		}
		ps = append(ps,
			probe{"kill-host-" + a, func() error { return unix.Kill(pid, 0) }},
			probe{"ptrace-host-" + a, func() error {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				return unix.PtraceAttach(pid)
			}},
			probe{"read-host-memory-" + a, func() error {
				var b [8]byte
				local := []unix.Iovec{{Base: &b[0], Len: 8}}
				_, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
				return err
			}},
			probe{"pidfd-host-" + a, func() error {
				fd, err := unix.PidfdOpen(pid, 0)
				if err == nil {
					unix.Close(fd)
				}
				return err
			}},
		)
	}
	return ps
}

func syscall6(nr uintptr, a ...uintptr) func() error {
	return func() error {
		var x [6]uintptr
		copy(x[:], a)
		r, _, e := unix.RawSyscall6(nr, x[0], x[1], x[2], x[3], x[4], x[5])
		if e != 0 {
			return e
		}
		return errIfHarmless(nr, r)
	}
}

// errIfHarmless: a call that succeeded is a success of the attack.
func errIfHarmless(uintptr, uintptr) error { return nil }

// kernelProbes call what no workload needs.
func kernelProbes([]string) []probe {
	var zero [256]byte
	p := uintptr(unsafe.Pointer(&zero[0]))
	name := uintptr(unsafe.Pointer(unsafe.StringData("/tmp\x00")))
	now := unix.Timespec{Sec: 1}
	return []probe{
		{"allowed-futex-and-epoll", func() error {
			fd, err := unix.EpollCreate1(0)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}},
		{"allowed-memfd", func() error {
			fd, err := unix.MemfdCreate("x", 0)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}},
		{"io_uring_setup", syscall6(unix.SYS_IO_URING_SETUP, 8, p)},
		{"userfaultfd", syscall6(unix.SYS_USERFAULTFD, 0)},
		{"bpf-map", syscall6(unix.SYS_BPF, 0, p, 72)},
		{"bpf-prog", syscall6(unix.SYS_BPF, 5, p, 72)},
		{"perf_event_open", syscall6(unix.SYS_PERF_EVENT_OPEN, p, 0, ^uintptr(0), ^uintptr(0), 0)},
		{"add_key", syscall6(unix.SYS_ADD_KEY, uintptr(unsafe.Pointer(unsafe.StringData("user\x00"))), name, p, 4, ^uintptr(2))},
		{"request_key", syscall6(unix.SYS_REQUEST_KEY, uintptr(unsafe.Pointer(unsafe.StringData("user\x00"))), name, 0, ^uintptr(2))},
		{"keyctl-read-session", func() error {
			_, err := unix.KeyctlString(unix.KEYCTL_DESCRIBE, unix.KEY_SPEC_USER_KEYRING)
			return err
		}},
		{"init_module", syscall6(unix.SYS_INIT_MODULE, p, 64, name)},
		{"finit_module", syscall6(unix.SYS_FINIT_MODULE, 0, name, 0)},
		{"delete_module", syscall6(unix.SYS_DELETE_MODULE, name, 0)},
		{"kexec_load", syscall6(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0)},
		{"iopl", syscall6(unix.SYS_IOPL, 3)},
		{"ioperm", syscall6(unix.SYS_IOPERM, 0, 1024, 1)},
		{"reboot", syscall6(unix.SYS_REBOOT, unix.LINUX_REBOOT_MAGIC1, unix.LINUX_REBOOT_MAGIC2, unix.LINUX_REBOOT_CMD_CAD_OFF)},
		{"swapon", syscall6(unix.SYS_SWAPON, name, 0)},
		{"acct", syscall6(unix.SYS_ACCT, name)},
		{"quotactl", syscall6(unix.SYS_QUOTACTL, 0x80000100, name, 0, p)},
		{"fanotify", syscall6(unix.SYS_FANOTIFY_INIT, 0, 0)},
		{"open_by_handle_at", syscall6(unix.SYS_OPEN_BY_HANDLE_AT, ^uintptr(99), p, 0)},
		{"clock_settime", func() error { return unix.ClockSettime(unix.CLOCK_REALTIME, &now) }},
		{"sethostname", func() error { return unix.Sethostname([]byte("owned")) }},
		{"chroot", func() error { return unix.Chroot("/tmp") }},
		{"mount-tmpfs", func() error { return unix.Mount("x", "/tmp", "tmpfs", 0, "") }},
		{"mount-host-disk", func() error { return unix.Mount("/dev/vda", "/tmp", "ext4", 0, "") }},
		{"umount-proc", func() error { return unix.Unmount("/proc", unix.MNT_DETACH) }},
		{"pivot_root", func() error { return unix.PivotRoot("/tmp", "/tmp") }},
		{"open_tree", func() error {
			_, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE)
			return err
		}},
		{"setns-init", func() error {
			fd, err := unix.Open("/proc/1/ns/net", unix.O_RDONLY, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Setns(fd, 0)
		}},
		{"unshare-net", func() error { return unix.Unshare(unix.CLONE_NEWNET) }},
		{"setuid-root", func() error { return unix.Setuid(0) }},
		{"setgid-root", func() error { return unix.Setgid(0) }},
		{"setgroups", func() error { return unix.Setgroups([]int{0}) }},
		{"raise-limit", func() error {
			var r unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
				return err
			}
			r.Max++
			return unix.Setrlimit(unix.RLIMIT_NOFILE, &r)
		}},
		{"get-capability", func() error {
			hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			data := [2]unix.CapUserData{{Effective: 1 << unix.CAP_SYS_ADMIN, Permitted: 1 << unix.CAP_SYS_ADMIN}}
			return unix.Capset(&hdr, &data[0])
		}},
		{"set-user-id-program", func() error {
			for _, su := range []string{"/usr/bin/su", "/bin/su", "/usr/bin/sudo", "/usr/bin/mount", "/usr/bin/passwd"} {
				c := exec.Command(su, "--version")
				c.Run()
				// What it can do as root shows with one that tells its ids.
			}
			dir, err := os.MkdirTemp("", "suid")
			if err != nil {
				return err
			}
			if out, err := exec.Command("/bin/cp", "/usr/bin/id", dir+"/id").CombinedOutput(); err != nil {
				return errors.New(string(out))
			}
			if err := os.Chmod(dir+"/id", 0o4755|os.ModeSetuid); err != nil {
				return err
			}
			out, err := exec.Command(dir+"/id", "-u").Output()
			if err != nil {
				return err
			}
			if strings.TrimSpace(string(out)) == "0" {
				return nil
			}
			return fmt.Errorf("uid %s", out)
		}},
		{"write-core-pattern", write("/proc/sys/kernel/core_pattern")},
		{"write-sysrq", write("/proc/sysrq-trigger")},
		{"write-sysctl-hostname", write("/proc/sys/kernel/hostname")},
		{"write-ip-forward", write("/proc/sys/net/ipv4/ip_forward")},
		{"write-uevent-helper", write("/sys/kernel/uevent_helper")},
		{"write-cgroup", write("/sys/fs/cgroup/cgroup.procs")},
		{"write-pids-max", write("/sys/fs/cgroup/pids.max")},
		{"make-cgroup", func() error { return os.Mkdir("/sys/fs/cgroup/escape", 0o755) }},
		{"read-kallsyms", read("/proc/kallsyms")},
		{"read-kcore", read("/proc/kcore")},
		{"read-kmsg", read("/proc/kmsg")},
		{"list-host-modules", read("/proc/modules")},
		{"list-host-disks", list("/sys/block")},
		{"list-host-firmware", list("/sys/firmware")},
	}
}

// escapeProbes use the namespaces that anybody may make inside: whatever they
// show, it is not the host. args: secret, file, a read-only mount's directory.
func escapeProbes(args []string) []probe {
	secret, file, ro := reverse(args[0]), args[1], args[2]
	inside := func(script string) func() error {
		return func() error {
			out, err := exec.Command("/usr/bin/unshare", "-Urm", "/bin/sh", "-c", script).CombinedOutput()
			if strings.Contains(string(out), secret) {
				return nil
			}
			return fmt.Errorf("%v %.300s", err, out)
		}
	}
	return []probe{
		{"allowed-read-mount", read(ro + "/given")},
		{"allowed-shell", func() error { return exec.Command("/bin/sh", "-c", "exit 0").Run() }},
		{"umount-everything", inside("for m in /proc /sys /dev /tmp /usr " + ro + " /; do umount -l $m; done; cat " + file)},
		{"bind-root", inside("mkdir -p /tmp/r; mount --rbind / /tmp/r; cat /tmp/r" + file)},
		{"mount-proc-again", inside("mkdir -p /tmp/p; mount -t proc proc /tmp/p; cat /tmp/p/1/root" + file + " /tmp/p/*/environ")},
		{"mount-9p", inside("mkdir -p /tmp/n; mount -t 9p -o trans=fd,rfdno=3,wfdno=3 none /tmp/n; cat /tmp/n" + file)},
		{"mount-overlay", inside("mkdir -p /tmp/u /tmp/w /tmp/o; mount -t overlay -o lowerdir=/,upperdir=/tmp/u,workdir=/tmp/w none /tmp/o; cat /tmp/o" + file)},
		{"chroot-escape", inside("mkdir -p /tmp/c; cd /; chroot /tmp/c /bin/cat ../../../../.." + file)},
		{"pivot-escape", inside("mkdir -p /tmp/v/old; mount -t tmpfs x /tmp/v; mkdir /tmp/v/old; pivot_root /tmp/v /tmp/v/old; cd /; read line < /old" + file + "; echo $line")},
		{"kill-init-as-root-of-a-namespace", func() error {
			return exec.Command("/usr/bin/unshare", "-Ur", "/bin/sh", "-c", "kill -9 1").Run()
		}},
		{"nsenter-init", inside("nsenter -t 1 -a cat " + file)},
		{"remount-writable", func() error {
			out, err := exec.Command("/usr/bin/unshare", "-Urm", "/bin/sh", "-c", "mount -o remount,rw,bind "+ro+"; mount -o remount,rw "+ro+"; echo owned > "+ro+"/planted; echo owned > "+ro+"/given").CombinedOutput()
			if err == nil {
				return nil
			}
			return fmt.Errorf("%v %.300s", err, out)
		}},
		{"descriptors-of-the-kernel", func() error {
			// Descriptors that the sandbox's own processes hold must not be
			// ours: beyond 0, 1 and 2 and what this program opened.
			ents, err := os.ReadDir("/proc/1/fd")
			if err != nil {
				return err
			}
			for _, e := range ents {
				to, err := os.Readlink("/proc/1/fd/" + e.Name())
				if err == nil && to != "/dev/null" && !strings.HasPrefix(to, "host:") && !strings.HasPrefix(to, "pipe:") {
					fmt.Println("init holds", to)
					return nil
				}
			}
			return errors.New("nothing of interest")
		}},
	}
}

func deviceProbes([]string) []probe {
	ps := []probe{
		{"allowed-null", write("/dev/null")},
		{"allowed-zero", func() error {
			f, err := os.Open("/dev/zero")
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.Read(make([]byte, 8))
			return err
		}},
		{"allowed-random", func() error {
			f, err := os.Open("/dev/urandom")
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.Read(make([]byte, 8))
			return err
		}},
		{"allowed-shm", func() error { return os.WriteFile("/dev/shm/f", []byte("x"), 0o600) }},
		{"make-block-device", func() error { return unix.Mknod("/tmp/vda", unix.S_IFBLK|0o666, int(unix.Mkdev(254, 0))) }},
		{"make-and-read-memory-device", func() error {
			if err := unix.Mknod("/tmp/mem", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 1))); err != nil {
				return err
			}
			return read("/tmp/mem")()
		}},
		{"steal-terminal-input", func() error {
			f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			c := byte('x')
			_, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.TIOCSTI, uintptr(unsafe.Pointer(&c)))
			if e != 0 {
				return e
			}
			return nil
		}},
	}
	for _, d := range []string{"mem", "kmem", "port", "kmsg", "kvm", "loop0", "loop-control", "vda", "vda1", "sda", "nvme0n1", "mapper/control", "vhost-net", "vhost-vsock", "vsock", "vfio/vfio", "input/event0", "dri/card0", "nvidia0", "nvidiactl", "uinput", "userfaultfd", "cuse", "btrfs-control", "snapshot", "tty0", "tty1", "console", "hpet", "mcelog", "watchdog", "bus/usb/001/001"} {
		ps = append(ps, probe{"open-" + d, func() error {
			fd, err := unix.Open("/dev/"+d, unix.O_RDONLY|unix.O_NONBLOCK, 0)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}})
	}
	return ps
}
