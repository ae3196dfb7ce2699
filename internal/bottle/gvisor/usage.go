package gvisor

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/carboy/carboy/internal/bottle"
)

// meter measures a bottle's cost to the host through the host kernel alone; it
// does not ask the sandbox. Memory is the sum of
//
//   - the memory files, which back everything that the workload maps;
//   - the private memory of the sandbox and the gofer. The sandbox holds pipes, socket buffers, attributes, names and inodes: a
//     workload can fill it without a page of its own;
//   - the shim's own memory, because it reads the sandbox's answers, however long;
//   - page tables: one page, mapped often enough, costs gigabytes of them.
//
// Disk is the file behind the overlay. The files are opened before the workload
// runs, so that it cannot exhaust the resources that opening them takes.
type meter struct {
	memory []*os.File
	disk   *os.File // nil: the overlay is in memory
	pids   []int    // sandbox, gofer, shim

	mu     sync.Mutex
	tables int64 // of the workload's address spaces, as last read
	next   time.Time
}

// Page tables are summed over all of the workload's address spaces, which may
// be thousands: at most this often, and in at most a twentieth of the time.
const (
	tablesEvery = 200 * time.Millisecond
	tablesShare = 20
)

func openMeter(sandbox, gofer int, scratch bool) (*meter, error) {
	m := &meter{pids: []int{sandbox, gofer, os.Getpid()}}
	dir := fmt.Sprintf("/proc/%d/fd", sandbox)
	ents, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range ents {
		path := dir + "/" + e.Name()
		to, err := os.Readlink(path)
		if os.IsNotExist(err) {
			continue // closed meanwhile
		}
		if err != nil {
			return nil, err
		}
		switch {
		case strings.HasPrefix(to, "/memfd:"):
			f, err := os.Open(path)
			if os.IsNotExist(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			m.memory = append(m.memory, f)
		case m.disk == nil && strings.Contains(to, "/runsc-filestore-"):
			if m.disk, err = os.Open(path); err != nil {
				return nil, err
			}
		}
	}
	if len(m.memory) == 0 || scratch && m.disk == nil {
		return nil, errors.New("the sandbox's memory or disk file is not where it was")
	}
	return m, nil
}

func (s *shim) usage([]byte, []*os.File) (any, error) {
	u, err := s.meter.read(time.Now())
	return u, err
}

func (m *meter) read(now time.Time) (bottle.Usage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var u bottle.Usage
	for _, f := range m.memory {
		n, err := blocks(f)
		if err != nil {
			return u, err
		}
		u.Memory += n
	}
	for _, pid := range m.pids {
		st, err := readMemory(pid)
		if err != nil {
			return u, err
		}
		u.Memory += st.anon + st.tables
	}
	if now.After(m.next) {
		m.tables = workloadTables(m.pids[0])
		m.next = now.Add(max(tablesEvery, tablesShare*time.Since(now)))
	}
	u.Memory += m.tables
	if m.disk == nil {
		return u, nil
	}
	var err error
	u.Disk, err = blocks(m.disk)
	return u, err
}

func blocks(f *os.File) (int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	return st.Blocks * 512, nil
}

// procMemory holds a part of proc_pid_status(5), in bytes.
type procMemory struct {
	ppid   int
	anon   int64 // private, in memory or in swap
	tables int64
}

func readMemory(pid int) (procMemory, error) {
	var p procMemory
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return p, err
	}
	for line := range strings.Lines(string(b)) {
		key, val, _ := strings.Cut(line, ":")
		f := strings.Fields(val)
		if len(f) == 0 {
			continue
		}
		n, _ := strconv.ParseInt(f[0], 10, 64)
		switch key {
		case "PPid":
			p.ppid = int(n)
		case "RssAnon", "VmSwap":
			p.anon += n << 10
		case "VmPTE":
			p.tables = n << 10
		}
	}
	return p, nil
}

// workloadTables sums the page tables of the processes that hold the workload's
// address spaces. They are the sandbox's children; what they start in turn are
// threads that share their memory.
func workloadTables(sandbox int) int64 {
	ents, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	var sum int64
	for _, e := range ents {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, err := readMemory(pid); err == nil && p.ppid == sandbox {
			sum += p.anon + p.tables
		}
	}
	return sum
}

func (s *shim) refusals([]byte, []*os.File) (any, error) {
	n, err := s.pidsRefused()
	return bottle.Refusals{Pids: n}, err
}

// pidsRefused reads the sentry's own count.
func (s *shim) pidsRefused() (int64, error) {
	f := control.CgroupControlFile{Controller: "pids", Path: "/" + s.c.ID, Name: "pids.events"}
	var got control.CgroupsResults
	err := s.ctl.Call(boot.CgroupsReadControlFiles, &control.CgroupsReadArgs{Args: []control.CgroupsReadArg{{File: f}}}, &got)
	if err != nil {
		return 0, err
	}
	if len(got.Results) != 1 {
		return 0, fmt.Errorf("pids.events: %d answers", len(got.Results))
	}
	out, err := got.Results[0].Unpack()
	if err != nil {
		return 0, err
	}
	for _, line := range strings.Split(out, "\n") {
		if v, ok := strings.CutPrefix(line, "max "); ok {
			return strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		}
	}
	return 0, fmt.Errorf("pids.events holds no count: %q", out)
}
