package plan

import (
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
)

const (
	miB = 1 << 20
	gib = 1 << 30
)

// DefaultLimits returns the limits of a run on this machine when none are
// set. state is a directory on the disk that keeps runs.
func DefaultLimits(state string) bottle.Limits {
	ram := totalRAM()
	l := bottle.Limits{
		Timeout:   24 * time.Hour,
		Memory:    clamp(ram/2, gib, 8*gib),
		Pids:      2048,
		Disk:      20 * gib,
		CPUs:      runtime.NumCPU(),
		Output:    gib,
		OpenFiles: 16384,
	}
	if free := FreeDisk(state); free > 0 {
		l.Disk = clamp(free/2, 64*miB, l.Disk)
	}
	l.FileSize = l.Disk
	return l
}

// FillLimits completes l with the machine's defaults.
func FillLimits(l bottle.Limits, state string) (bottle.Limits, error) {
	d := DefaultLimits(state)
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&l.Memory, d.Memory)
	def(&l.Pids, d.Pids)
	def(&l.Disk, d.Disk)
	def(&l.Output, d.Output)
	def(&l.OpenFiles, d.OpenFiles)
	def(&l.FileSize, l.Disk)
	if l.CPUs == 0 {
		l.CPUs = d.CPUs
	}
	if l.Timeout == 0 {
		l.Timeout = d.Timeout
	}
	if l.Memory < minMemory {
		return l, fmt.Errorf("limits: memory of %d bytes is below the minimum of 64MiB", l.Memory)
	}
	if l.CPUs > runtime.NumCPU() {
		l.CPUs = runtime.NumCPU()
	}
	return l, l.Validate()
}

// minMemory is enough for a shell and a compiler.
const minMemory = 64 * miB

func totalRAM() int64 {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) != nil {
		return 2 * gib
	}
	return int64(si.Totalram) * int64(si.Unit)
}

func FreeDisk(dir string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0
	}
	return int64(st.Bavail) * st.Bsize
}

func clamp(v, lo, hi int64) int64 { return max(lo, min(v, hi)) }
