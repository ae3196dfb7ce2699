package change

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// marker splits time on the workspace's own file system: a change of an inode
// that ended before Begin began has a ctime below At, one made after Begin
// returned has a ctime of At or more. No content is read for it. It never
// outlives its process, so it need not outlive a boot.
type marker struct {
	At      int64 // ctime, ns
	Offset  int64 // wall clock minus boot clock, ns
	Foreign bool
}

// takeMarker makes a nameless file in dir and touches it until the file
// system's clock has moved on: kernels stamp inodes with a clock that ticks
// every few milliseconds, so "same as now" would mean both before and after.
// Where the file system cannot make nameless files (or is read-only) stateDir
// is used, and the marker is Foreign: right when both share the host's clock,
// that is, unless dir is a network file system.
func takeMarker(ctx context.Context, dir int, stateDir string) (marker, error) {
	var m marker
	fd, err := unix.Openat(dir, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		f, ferr := os.CreateTemp(stateDir, ".marker-")
		if ferr != nil {
			return m, fmt.Errorf("mark the time: %w", ferr)
		}
		defer f.Close()
		if err := os.Remove(f.Name()); err != nil {
			return m, fmt.Errorf("mark the time: %w", err)
		}
		fd, m.Foreign = int(f.Fd()), true
	} else {
		defer unix.Close(fd)
	}
	first, err := touch(fd)
	if err != nil {
		return m, fmt.Errorf("mark the time: %w", err)
	}
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 5*time.Millisecond) {
		if m.At, err = touch(fd); err != nil {
			return m, fmt.Errorf("mark the time: %w", err)
		}
		if m.At > first {
			break
		}
		if m.At < first {
			first = m.At // the clock was set back this moment
		}
		select {
		case <-ctx.Done():
			return m, fmt.Errorf("mark the time: %w", ctx.Err())
		case <-time.After(wait):
		}
	}
	m.Offset = clockOffset()
	return m, nil
}

func touch(fd int) (int64, error) {
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return 0, err
	}
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return st.Ctim.Nano(), err
}

// clockOffset is how far the wall clock is from the time since boot. It is
// constant unless somebody sets the clock; slewing moves both.
func clockOffset() int64 {
	best, offset := int64(-1), int64(0)
	for range 5 {
		var b1, wall, b2 unix.Timespec
		if unix.ClockGettime(unix.CLOCK_BOOTTIME, &b1) != nil || unix.ClockGettime(unix.CLOCK_REALTIME, &wall) != nil ||
			unix.ClockGettime(unix.CLOCK_BOOTTIME, &b2) != nil {
			return 0
		}
		// A reading that was not interrupted is the truest.
		if width := b2.Nano() - b1.Nano(); best < 0 || width < best {
			best, offset = width, wall.Nano()-b1.Nano()-width/2
		}
	}
	return offset
}

// jumpTolerance is more than two readings of the offset differ by.
const jumpTolerance = int64(50 * time.Millisecond)

// threshold is the ctime from which on a host file counts as changed since
// the marker, given the clock's offset now. When the clock was set back by d,
// a change made since may carry a ctime up to d before the marker; the note
// says so. A jump forward moves no ctime below the marker.
func (m marker) threshold(offsetNow int64) (at int64, note string) {
	back := m.Offset - offsetNow
	switch {
	case back > jumpTolerance:
		return m.At - back - jumpTolerance, fmt.Sprintf("the clock was set back by %v during the run; files changed on the host shortly before the run count as changed meanwhile", time.Duration(back).Round(time.Millisecond))
	case back < -jumpTolerance:
		return m.At, fmt.Sprintf("the clock was set forward by %v during the run", time.Duration(-back).Round(time.Millisecond))
	}
	return m.At, ""
}
