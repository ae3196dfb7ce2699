package docker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
)

// meter measures a container by its cgroups, of either version, and by the directory that
// holds what it writes.
type meter struct {
	memory, pids string // directories of the cgroups
	freezer      string // likewise; empty in version 2
	scratch      string // the directory; empty: in memory

	mu   sync.Mutex
	disk int64 // as last measured
	next time.Time
}

// walkShare bounds the part of the time in which the directory's size is being summed.
const walkShare = 20

const cgroupMount = "/sys/fs/cgroup"

func openMeter(p *process, scratch string) (*meter, error) {
	text, err := p.read("cgroup")
	if err != nil {
		return nil, err
	}
	m := &meter{scratch: scratch}
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		if f[1] == "" && m.memory == "" && m.pids == "" {
			dir := filepath.Join(cgroupMount, f[2])
			if _, err := os.Stat(dir + "/memory.current"); err == nil {
				m.memory, m.pids = dir, dir
			}
		}
		for _, c := range strings.Split(f[1], ",") {
			if where := map[string]*string{"memory": &m.memory, "pids": &m.pids, "freezer": &m.freezer}[c]; where != nil {
				*where = filepath.Join(cgroupMount, c, f[2])
			}
		}
	}
	if m.memory == "" || m.pids == "" {
		return nil, fmt.Errorf("the container's cgroup is not below %s: its use of memory and processes would be unknown", cgroupMount)
	}
	_, err = m.used()
	return m, err
}

// used returns the memory that the kernel cannot take back, in bytes: what processes have,
// and files in memory.
func (m *meter) used() (int64, error) {
	text, err := read(m.memory + "/memory.stat")
	if err != nil {
		return 0, err
	}
	names := []string{"total_rss", "total_shmem"}
	if m.memory == m.pids { // version 2
		names = []string{"anon", "shmem", "kernel_stack", "pagetables", "sock"}
	}
	var sum int64
	for _, n := range names {
		sum += field(text, n)
	}
	if m.memory == m.pids {
		return sum, nil
	}
	if kernel, err := read(m.memory + "/memory.kmem.usage_in_bytes"); err == nil {
		n, _ := strconv.ParseInt(strings.TrimSpace(kernel), 10, 64)
		sum += n
	}
	return sum, nil
}

func (m *meter) refusals() (bottle.Refusals, error) {
	text, err := read(m.pids + "/pids.events")
	return bottle.Refusals{Pids: field(text, "max")}, err
}

// thaw lets a paused container take the signal that ends it, which in cgroups of version 1
// it does not while it is paused. It is for when the Engine does not do it.
func (m *meter) thaw() {
	if m != nil && m.freezer != "" {
		_ = os.WriteFile(m.freezer+"/freezer.state", []byte("THAWED"), 0)
	}
}

// read reads a file of a cgroup, which ends with the container.
func read(path string) (string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		err = bottle.ErrGone
	}
	return string(b), err
}

// field returns the number after a name in lines of names and numbers.
func field(text, name string) int64 {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return n
		}
	}
	return 0
}

// diskUsage sums the blocks of what the bottle wrote.
func (m *meter) diskUsage() (int64, error) {
	if m.scratch == "" {
		return 0, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	begin := time.Now()
	if begin.Before(m.next) {
		return m.disk, nil
	}
	fd, err := unix.Open(m.scratch, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("scratch directory: %w", err)
	}
	m.disk = blocks(fd, 0)
	m.next = time.Now().Add(walkShare * time.Since(begin))
	return m.disk, nil
}

// maxDepth bounds the directories that are open at a time while sizes are summed. A path
// of more parts is longer than any that the kernel takes.
const maxDepth = 2048

// tooMuch is the size of what is nested too deeply to be summed: more than any limit.
const tooMuch = 1 << 60

// blocks returns the bytes that a directory and all below it take on disk, and closes fd.
// Files that vanish meanwhile are none.
func blocks(fd, depth int) int64 {
	f := os.NewFile(uintptr(fd), "scratch")
	defer f.Close()
	if depth > maxDepth {
		return tooMuch
	}
	var total int64
	for {
		names, err := f.Readdirnames(1024)
		for _, n := range names {
			var st unix.Stat_t
			if unix.Fstatat(fd, n, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue
			}
			total += st.Blocks * 512
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				continue
			}
			sub, err := unix.Openat(fd, n, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			if err != nil {
				continue
			}
			if total += blocks(sub, depth+1); total >= tooMuch {
				return tooMuch
			}
		}
		if len(names) == 0 || err != nil {
			return total
		}
	}
}
