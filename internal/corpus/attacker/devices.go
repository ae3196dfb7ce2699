package attacker

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

func openDevice(name string) error {
	return makeFD(unix.Open("/dev/"+name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0))
}

const onlyEmulated = "only null, zero, random, shm and terminals exist, and the kernel inside makes them"

func nodes(id, how string, names ...string) Attack {
	return Attack{ID: id, How: how, Defence: onlyEmulated, Judge: ByWord,
		Control: func(e *Env) error {
			return e.any(each([]string{"null"}, openDevice)...)
		},
		Try: func(e *Env) error { return e.any(each(names, openDevice)...) }}
}

func devices() []Attack {
	return family("devices", "S1",
		nodes("memory", "Open the machine's memory and ports.", "mem", "kmem", "port", "kmsg", "mcelog", "hpet"),
		nodes("disks", "Open disks, loop devices and volume managers.", "vda", "vda1", "sda", "sda1", "nvme0n1", "mmcblk0", "xvda", "loop0", "loop-control", "mapper/control", "btrfs-control", "ram0", "nbd0"),
		nodes("virtual-machines", "Open devices that reach into a hypervisor, or make one.", "kvm", "vhost-net", "vhost-vsock", "vsock", "vfio/vfio", "vboxdrv", "sgx_enclave"),
		nodes("hardware", "Open input, graphics, accelerators, USB.", "input/event0", "input/mice", "uinput", "dri/card0", "dri/renderD128", "nvidia0", "nvidiactl", "bus/usb/001/001", "video0", "snd/controlC0", "watchdog"),
		nodes("file-systems-in-user-space", "Open what serves file systems or memory from programs.", "cuse", "userfaultfd", "snapshot", "autofs"),
		nodes("terminals", "Open the terminals of the host.", "tty0", "tty1", "console", "pts/0", "ttyS0", "vcs1"),
		Attack{ID: "made-by-hand", How: "Make device nodes, as oneself and as root of a namespace of one's own, and open them.", Defence: "no right to make them, and nothing behind them", Judge: ByWord,
			Control: func(e *Env) error { return unix.Mkfifo(e.Workspace+"/made-fifo", 0o600) },
			Try: func(e *Env) error {
				return e.any(
					try{"disk", func() error { return makeAndOpen("/tmp/disk", unix.S_IFBLK, 254, 0) }},
					try{"memory", func() error { return makeAndOpen("/tmp/mem", unix.S_IFCHR, 1, 1) }},
					try{"namespace", func() error { return e.tool(asRoot(), "make-devices") }},
				)
			}},
		Attack{ID: "type-into-the-terminal", How: "Push characters into the terminal that carboy was started from (TIOCSTI, TIOCLINUX).", Defence: "no terminal of the host is given; pushing characters does not exist", Source: "CVE-2017-5226 (bubblewrap)", Judge: ByWord,
			Control: func(*Env) error { return makeFD(unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0)) },
			Try: func(e *Env) error {
				push := func(fd int) error {
					c := byte(' ')
					_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCSTI, uintptr(unsafe.Pointer(&c)))
					if errno != 0 {
						return errno
					}
					return nil
				}
				tries := each([]int{0, 1, 2}, push)
				tries = append(tries, try{"tty", func() error {
					f, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
					if err != nil {
						return err
					}
					defer f.Close()
					return push(int(f.Fd()))
				}}, try{"console", func() error {
					c := byte(2)
					_, _, errno := unix.Syscall(unix.SYS_IOCTL, 1, 0x541C, uintptr(unsafe.Pointer(&c)))
					if errno != 0 {
						return errno
					}
					return nil
				}})
				return e.any(tries...)
			}},
	)
}

func makeAndOpen(path string, kind uint32, major, minor uint32) error {
	os.Remove(path)
	if err := unix.Mknod(path, kind|0o666, int(unix.Mkdev(major, minor))); err != nil {
		return err
	}
	return makeFD(unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK, 0))
}
