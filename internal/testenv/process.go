package testenv

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Process identifies a process of the host by its number and its start
// (proc_pid_stat(5)), so that a later process with the same number is not
// mistaken for it.
type Process struct {
	PID, Parent int
	Start, Name string
	Zombie      bool // it has ended, and nobody has waited for it
}

// ReadProcess returns the process with this number. ok is false if there is
// none.
func ReadProcess(pid int) (p Process, ok bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return p, false
	}
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	f := strings.Fields(string(b[end+1:]))
	if open < 0 || end < open || len(f) < 20 {
		return p, false
	}
	parent, err := strconv.Atoi(f[1])
	return Process{PID: pid, Parent: parent, Start: f[19], Name: string(b[open+1 : end]), Zombie: f[0] == "Z"}, err == nil
}

// Exists reports whether p is still there, if only as a zombie.
func (p Process) Exists() bool {
	now, ok := ReadProcess(p.PID)
	return ok && now.Start == p.Start
}

// Alive reports whether p still runs.
func (p Process) Alive() bool {
	now, ok := ReadProcess(p.PID)
	return ok && now.Start == p.Start && !now.Zombie
}

// EndsWithin blocks until p has ended, for at most d. It reports whether p has ended.
func (p Process) EndsWithin(d time.Duration) bool {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return !p.Alive()
	}
	defer unix.Close(fd)
	end := time.Now().Add(d)
	for p.Alive() { // otherwise fd may be of a later process
		left := time.Until(end)
		if left <= 0 {
			return false
		}
		unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
	}
	return true
}

// Argv0 returns p's first argument, or "" for a process that is gone.
func (p Process) Argv0() string {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/cmdline")
	a, _, _ := strings.Cut(string(b), "\x00")
	return a
}

// UID returns p's user, or -1 for a process that is gone.
func (p Process) UID() int {
	fi, err := os.Stat("/proc/" + strconv.Itoa(p.PID))
	if err != nil {
		return -1
	}
	return int(fi.Sys().(*syscall.Stat_t).Uid)
}

// Descendants lists the processes below root, zombies too. Any goroutine of the
// test may call it.
func Descendants(t testing.TB, root int) (out []Process) {
	t.Helper()
	ents, err := os.ReadDir("/proc")
	if err != nil {
		t.Error(err)
		return nil
	}
	all := map[int]Process{}
	for _, e := range ents {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			if p, ok := ReadProcess(pid); ok {
				all[pid] = p
			}
		}
	}
	for _, p := range all {
		for up := p.Parent; up != 0; up = all[up].Parent {
			if up == root {
				out = append(out, p)
				break
			}
		}
	}
	return out
}

// Living lists the descendants of root that run.
func Living(t testing.TB, root int) (out []Process) {
	t.Helper()
	for _, p := range Descendants(t, root) {
		if !p.Zombie {
			out = append(out, p)
		}
	}
	return out
}

// AllGone fails the test if one of ps, processes of owner, still runs after the
// time that a loaded machine may take.
func AllGone(t testing.TB, owner string, ps []Process, within time.Duration) {
	t.Helper()
	deadline := time.Now().Add(within)
	for _, p := range ps {
		if !p.EndsWithin(time.Until(deadline)) {
			t.Fatalf("process %+v (%s) outlived %s", p, p.Argv0(), owner)
		}
	}
}
