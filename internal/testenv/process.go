package testenv

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Process is a process of the host, told from a later one of the same number by
// its start (proc_pid_stat(5)).
type Process struct {
	PID, Parent int
	Start, Name string
	Zombie      bool // it has ended, and nobody has waited for it
}

// ReadProcess reports false for one that is not there.
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

// Argv0 is empty for a process that is gone.
func (p Process) Argv0() string {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/cmdline")
	a, _, _ := strings.Cut(string(b), "\x00")
	return a
}

// UID is -1 for a process that is gone.
func (p Process) UID() int {
	fi, err := os.Stat("/proc/" + strconv.Itoa(p.PID))
	if err != nil {
		return -1
	}
	return int(fi.Sys().(*syscall.Stat_t).Uid)
}

// Descendants are the processes below root, zombies too. It may be called from
// any goroutine of the test.
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

// Living are the Descendants that run.
func Living(t testing.TB, root int) (out []Process) {
	t.Helper()
	for _, p := range Descendants(t, root) {
		if !p.Zombie {
			out = append(out, p)
		}
	}
	return out
}

// AllGone fails the test when one of ps, which owner had, still runs after the
// time that a loaded machine may take.
func AllGone(t testing.TB, owner string, ps []Process, within time.Duration) {
	t.Helper()
	deadline := time.Now().Add(within)
	for _, p := range ps {
		for p.Alive() {
			if time.Now().After(deadline) {
				t.Fatalf("process %+v (%s) outlived %s", p, p.Argv0(), owner)
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
}
