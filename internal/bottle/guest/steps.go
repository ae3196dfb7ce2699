package guest

import (
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/guest/proto"
)

// NoSet are the flags of mounts without devices and set-user-id programs.
const NoSet = unix.MS_NOSUID | unix.MS_NODEV

// Mkdir makes a directory with those above it.
func Mkdir(path string) proto.Step { return proto.Step{Op: "mkdir", Path: path, Mode: 0o755} }

// Mount is mount(2).
func Mount(source, path, kind, data string, flags uint64) proto.Step {
	return proto.Step{Op: "mount", Source: source, Path: path, Type: kind, Data: data, Flags: flags}
}

// KernelFiles mounts proc, sysfs and the few device files that programs expect in the root
// of a machine's bottle.
func KernelFiles(root string) []proto.Step {
	dev := root + "/dev"
	out := []proto.Step{
		Mount("proc", root+"/proc", "proc", "hidepid=2", NoSet|unix.MS_NOEXEC),
		Mount("sysfs", root+"/sys", "sysfs", "", NoSet|unix.MS_NOEXEC|unix.MS_RDONLY),
		Mount("dev", dev, "tmpfs", "mode=0755,size=64k", unix.MS_NOSUID|unix.MS_NOEXEC),
	}
	for _, d := range []struct {
		name         string
		major, minor uint32
	}{{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}} {
		out = append(out, proto.Step{Op: "node", Path: dev + "/" + d.name, Mode: unix.S_IFCHR | 0o666, Flags: unix.Mkdev(d.major, d.minor)})
	}
	for _, l := range [][2]string{{"fd", "/proc/self/fd"}, {"stdin", "/proc/self/fd/0"}, {"stdout", "/proc/self/fd/1"}, {"stderr", "/proc/self/fd/2"}, {"ptmx", "pts/ptmx"}} {
		out = append(out, proto.Step{Op: "symlink", Path: dev + "/" + l[0], Source: l[1]})
	}
	return append(out,
		Mkdir(dev+"/pts"), Mount("/dev/pts", dev+"/pts", "", "", unix.MS_BIND),
		Mkdir(dev+"/shm"), Mount("shm", dev+"/shm", "tmpfs", "mode=1777", NoSet))
}
