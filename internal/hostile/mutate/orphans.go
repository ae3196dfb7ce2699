package main

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// endOrphans kills and reaps our children that no run waits for: they are what
// a test left behind. Called with mu held, so that none is being started.
func (r *runner) endOrphans() {
	for {
		var orphans []int
		for pid, parent := range parents() {
			if parent == os.Getpid() && !r.ours[pid] {
				orphans = append(orphans, pid)
			}
		}
		if len(orphans) == 0 {
			return
		}
		for _, pid := range orphans { // what is below them comes to us next
			unix.Kill(pid, unix.SIGKILL)
			unix.Wait4(pid, nil, 0, nil)
		}
	}
}

// parents tells of each process of the machine whose child it is.
func parents() map[int]int {
	out := map[int]int{}
	ents, err := os.ReadDir("/proc")
	if err != nil {
		return out
	}
	for _, e := range ents {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// The name may hold anything; after its last bracket come state and parent.
		_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
		f := strings.Fields(rest)
		if len(f) < 2 {
			continue
		}
		if parent, err := strconv.Atoi(f[1]); err == nil {
			out[pid] = parent
		}
	}
	return out
}
