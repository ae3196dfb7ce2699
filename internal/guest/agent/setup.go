package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/guest/proto"
	"github.com/carboy/carboy/internal/guest/rtnet"
)

const (
	cgroupRoot = "/sys/fs/cgroup"
	cgroupName = "carboy"
)

// prepare does what the host's Setup says. There may be several, until the first command
// starts; the last one decides about commands.
func (a *agent) prepare(s *proto.Setup) error {
	a.setupMu.Lock()
	defer a.setupMu.Unlock()
	if a.begun {
		return errors.New("commands run already")
	}
	if s.Hostname != "" {
		if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
			return fmt.Errorf("set the host name: %w", err)
		}
	}
	for i, st := range s.Steps {
		if err := perform(&st); err != nil {
			return fmt.Errorf("step %d, %s %s: %w", i, st.Op, st.Path, err)
		}
	}
	if s.Net != nil {
		if err := network(s.Net); err != nil {
			return fmt.Errorf("network: %w", err)
		}
	}
	a.cgroup = ""
	if s.Cgroup {
		dir, err := makeCgroup(s.Limits)
		if err != nil {
			return fmt.Errorf("cgroup: %w", err)
		}
		a.cgroup = dir
	}
	a.setup = s
	return nil
}

// perform does one step.
func perform(s *proto.Step) error {
	switch s.Op {
	case "mkdir":
		if err := os.MkdirAll(s.Path, 0o755); err != nil {
			return err
		}
		if err := noLinks(s.Path); err != nil {
			return err
		}
		return own(s)
	case "mount":
		if err := noLinks(s.Path); err != nil {
			return err
		}
		source := s.Source
		if serial, ok := strings.CutPrefix(source, virtioPrefix); ok {
			var err error
			if source, err = findDisk(serial); err != nil {
				return err
			}
		}
		return unix.Mount(source, s.Path, s.Type, uintptr(s.Flags), s.Data)
	case "symlink":
		if err := os.MkdirAll(filepath.Dir(s.Path), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(s.Source, s.Path); err != nil {
			return err
		}
		return os.Lchown(s.Path, int(s.UID), int(s.GID))
	case "node":
		if err := unix.Mknod(s.Path, s.Mode, int(s.Flags)); err != nil {
			return err
		}
		return unix.Chmod(s.Path, s.Mode&0o7777)
	}
	return errors.New("is not known")
}

// virtioPrefix begins the source of a mount that is a disk with a serial number: the order
// of disks is not fixed.
const virtioPrefix = "virtio:"

func findDisk(serial string) (string, error) {
	names, _ := filepath.Glob("/sys/block/vd*/serial")
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err == nil && strings.TrimRight(string(b), "\x00\n") == serial {
			return "/dev/" + filepath.Base(filepath.Dir(n)), nil
		}
	}
	return "", fmt.Errorf("there is no disk with the serial number %q", serial)
}

// noLinks returns an error if a path leads through a symbolic link. What a bottle left, which
// is brought in before, could lead out of the commands' root.
func noLinks(path string) error {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func own(s *proto.Step) error {
	if err := os.Chown(s.Path, int(s.UID), int(s.GID)); err != nil {
		return err
	}
	return unix.Chmod(s.Path, s.Mode&0o7777)
}

// network sets up the loopback and the card with the MAC of n.
func network(n *proto.Net) error {
	if err := rtnet.Up("lo", 0); err != nil {
		return err
	}
	ents, err := os.ReadDir("/sys/class/net")
	if err != nil {
		return err
	}
	for _, e := range ents {
		mac, _ := os.ReadFile("/sys/class/net/" + e.Name() + "/address")
		if strings.TrimSpace(string(mac)) == n.MAC {
			return rtnet.Configure(e.Name(), n.MTU, n.Addrs, n.Gateways)
		}
	}
	return fmt.Errorf("there is no card %s", n.MAC)
}

// makeCgroup makes the commands' cgroup, version 2.
func makeCgroup(l proto.Limits) (string, error) {
	// The root of the hierarchy gives its controllers to its children.
	err := os.WriteFile(cgroupRoot+"/cgroup.subtree_control", []byte("+pids +memory +cpu"), 0)
	if err != nil {
		return "", err
	}
	dir := cgroupRoot + "/" + cgroupName
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	for _, f := range []struct {
		name string
		v    int64
		text string
	}{
		{"pids.max", l.Pids, strconv.FormatInt(l.Pids, 10)},
		{"memory.max", l.Memory, strconv.FormatInt(l.Memory, 10)},
		{"cpu.max", int64(l.CPUs), strconv.Itoa(l.CPUs*100_000) + " 100000"},
	} {
		if f.v <= 0 {
			continue
		}
		if err := os.WriteFile(dir+"/"+f.name, []byte(f.text), 0); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// freeze stops the commands. When it returns nothing of them runs, and what they
// wrote is on its file system.
func (a *agent) freeze() error {
	a.setupMu.Lock()
	defer a.setupMu.Unlock()
	if a.cgroup == "" {
		return errors.New("commands have no cgroup here")
	}
	if err := os.WriteFile(a.cgroup+"/cgroup.freeze", []byte("1"), 0); err != nil {
		return err
	}
	events := a.cgroup + "/cgroup.events"
	for field(events, "frozen") == 0 {
		if _, err := os.Stat(events); err != nil {
			break // a kernel without control groups
		}
		time.Sleep(time.Millisecond)
	}
	unix.Sync()
	return nil
}

// thaw lets the commands go on.
func (a *agent) thaw() error {
	a.setupMu.Lock()
	defer a.setupMu.Unlock()
	if a.cgroup == "" {
		return errors.New("commands have no cgroup here")
	}
	return os.WriteFile(a.cgroup+"/cgroup.freeze", []byte("0"), 0)
}

func (a *agent) stats() (*proto.Stats, error) {
	a.setupMu.Lock()
	setup, dir := a.setup, a.cgroup
	a.setupMu.Unlock()
	if setup == nil {
		return nil, errors.New("the guest is not set up")
	}
	s := &proto.Stats{}
	if dir != "" {
		// Not the page cache, which the kernel takes back when it needs the memory.
		s.Memory = field(dir+"/memory.stat", "anon") + field(dir+"/memory.stat", "shmem")
		s.Refused = field(dir+"/pids.events", "max")
	}
	if setup.Upper != "" {
		var st unix.Statfs_t
		if err := unix.Statfs(setup.Upper, &st); err != nil {
			return nil, err
		}
		s.Disk = int64(st.Blocks-st.Bfree) * st.Bsize
	}
	return s, nil
}

// field returns the number after a name in a file of lines.
func field(path, name string) int64 {
	b, _ := os.ReadFile(path)
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n
		}
	}
	return 0
}
