package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Process identifies one process uniquely, also after its pid is reused.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot, field 22 of /proc/<pid>/stat
	Boot  string `json:"boot"`  // /proc/sys/kernel/random/boot_id
	PIDNS uint64 `json:"pidns"` // inode of its pid namespace: pids of another one say nothing here
}

// Self returns the calling process.
func Self() (Process, error) {
	p, err := identify(os.Getpid())
	if err != nil {
		return Process{}, fmt.Errorf("identify this process: %w", err)
	}
	return p, nil
}

// identify returns the living process pid of this pid namespace.
func identify(pid int) (Process, error) {
	start, state, err := procStat(pid)
	if err != nil {
		return Process{}, err
	}
	if state == 'Z' || state == 'X' {
		return Process{}, fmt.Errorf("process %d is dead", pid)
	}
	p := Process{PID: pid, Start: start}
	if p.Boot, err = bootID(); err != nil {
		return Process{}, err
	}
	p.PIDNS, err = pidNS()
	return p, err
}

type liveness int

const (
	unknown liveness = iota // another machine, another pid namespace, or no /proc to look at
	dead
	alive
)

// live returns whether p runs: alive, dead, or unknown.
func (p Process) live() liveness {
	boot, err := bootID()
	if err != nil || p.Boot == "" {
		return unknown
	}
	if boot != p.Boot {
		return dead // this machine has started again since, or it was another's
	}
	if ns, err := pidNS(); err != nil || ns != p.PIDNS {
		return unknown
	}
	start, state, err := procStat(p.PID)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
		return dead
	case err != nil:
		return unknown
	case start != p.Start, state == 'Z', state == 'X':
		return dead
	}
	return alive
}

func procStat(pid int) (start uint64, state byte, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	// The name of the process, in brackets, may hold anything, brackets and spaces too.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 20 || len(f[0]) != 1 {
		return 0, 0, fmt.Errorf("/proc/%d/stat: too few fields", pid)
	}
	start, err = strconv.ParseUint(f[19], 10, 64)
	return start, f[0][0], err
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

func pidNS() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return 0, fmt.Errorf("read pid namespace: %w", err)
	}
	return st.Ino, nil
}
