package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// initName is argv[0] of the first process of a virtual machine.
const initName = "/init"

const (
	portName    = "carboy" // of the virtio port
	portTimeout = 10 * time.Minute
)

// boot makes a machine of an initramfs: kernel file systems, modules, and the port to the
// host. notes say what did not work and may not matter.
func boot() (stream io.ReadWriteCloser, notes []string, err error) {
	for _, m := range []struct {
		source, target, kind, data string
		flags                      uintptr
	}{
		{"proc", "/proc", "proc", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"sysfs", "/sys", "sysfs", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"devtmpfs", "/dev", "devtmpfs", "mode=0755", unix.MS_NOSUID},
		{"devpts", "/dev/pts", "devpts", "mode=0620,ptmxmode=0666", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"shm", "/dev/shm", "tmpfs", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
		{"cgroup2", cgroupRoot, "cgroup2", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	} {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return nil, nil, err
		}
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil && err != unix.EBUSY {
			notes = append(notes, fmt.Sprintf("mount %s: %v", m.target, err))
		}
	}
	notes = append(notes, loadModules("/modules")...)
	port, err := findPort()
	if err != nil {
		return nil, nil, errors.Join(err, errors.New(strings.Join(notes, "; ")))
	}
	fd, err := unix.Open(port, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open %s: %w", port, err)
	}
	return os.NewFile(uintptr(fd), port), notes, nil
}

// loadModules loads what the host put into the initramfs, in the order of the names.
func loadModules(dir string) (notes []string) {
	names, _ := filepath.Glob(dir + "/*.ko")
	sort.Strings(names)
	for _, name := range names {
		f, err := os.Open(name)
		if err == nil {
			err = unix.FinitModule(int(f.Fd()), "", 0)
			f.Close()
		}
		if err != nil && err != unix.EEXIST {
			notes = append(notes, fmt.Sprintf("module %s: %v", filepath.Base(name), err))
		}
	}
	return notes
}

// findPort waits for the virtio port of that name: its number differs from machine to
// machine.
func findPort() (string, error) {
	for end := time.Now().Add(portTimeout); ; time.Sleep(2 * time.Millisecond) {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			b, _ := os.ReadFile(n)
			dev := "/dev/" + filepath.Base(filepath.Dir(n))
			if _, err := os.Stat(dev); strings.TrimSpace(string(b)) == portName && err == nil {
				return dev, nil
			}
		}
		if time.Now().After(end) {
			return "", fmt.Errorf("there is no virtio port %q", portName)
		}
	}
}

// powerOff ends the virtual machine.
func powerOff(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "carboy guest:", err)
	}
	// With -no-reboot a restart ends QEMU; not every machine can be switched off.
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	os.Exit(1)
}
