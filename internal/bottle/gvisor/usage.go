package gvisor

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"gvisor.dev/gvisor/pkg/sentry/control"

	"github.com/carboy/carboy/internal/bottle"
)

// meter reads what a bottle uses. Memory is the sentry's memory file, which
// backs all that the workload maps; disk is the file behind the overlay. Both
// are opened once, so that a reading is two fstats.
type meter struct {
	mu     sync.Mutex
	memory *control.MemoryUsageRecord
	disk   *os.File
	looked bool
}

func (s *shim) usage(json.RawMessage, []*os.File) (any, error) {
	m := &s.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.memory == nil {
		rec, err := s.c.Sandbox.UsageFD()
		if err != nil {
			return nil, err
		}
		m.memory = rec
	}
	if !m.looked {
		m.looked = true
		m.disk = openFilestore(s.c.Sandbox.Getpid())
	}
	var u bottle.Usage
	_, _, total, err := m.memory.Fetch()
	if err != nil {
		return nil, err
	}
	u.Memory = int64(total)
	if m.disk != nil {
		var st unix.Stat_t
		if err := unix.Fstat(int(m.disk.Fd()), &st); err != nil {
			return nil, err
		}
		u.Disk = st.Blocks * 512
	}
	return u, nil
}

func (s *shim) refusals(json.RawMessage, []*os.File) (any, error) {
	n, err := s.pidsRefused()
	return bottle.Refusals{Pids: n}, err
}

// openFilestore finds the nameless file that backs the overlay among the
// sandbox's descriptors; nil when the overlay is in memory.
func openFilestore(pid int) *os.File {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	ents, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range ents {
		to, err := os.Readlink(dir + "/" + e.Name())
		if err == nil && strings.Contains(to, "/runsc-filestore-") {
			f, err := os.Open(dir + "/" + e.Name())
			if err != nil {
				return nil
			}
			return f
		}
	}
	return nil
}

// pidsRefused reads the sentry's own count.
func (s *shim) pidsRefused() (int64, error) {
	f := control.CgroupControlFile{Controller: "pids", Path: "/" + s.c.ID, Name: "pids.events"}
	out, err := s.c.Sandbox.CgroupsReadControlFile(f)
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
