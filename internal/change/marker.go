package change

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// marker is a point in time on the clock of the workspace's file system. An
// inode last changed before Begin was called has a ctime below At; an inode
// changed after Begin returned has a ctime of At or more.
type marker struct {
	At      int64 `json:"at"`     // ctime, ns
	Offset  int64 `json:"offset"` // wall clock minus boot clock, ns; of one boot only
	Foreign bool  `json:"foreign,omitempty"`
}

// takeMarker creates an unnamed file in dir and touches it until its ctime
// moves: the clock of inodes ticks every few milliseconds, so changes before
// and after Begin could otherwise have the same ctime. If the file system does
// not support unnamed files (or is read-only), takeMarker uses stateDir and
// sets Foreign: the marker is then correct only if both file systems use the
// host's clock, that is, unless dir is on a network file system.
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
			first = m.At // the clock was just set back
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

// clockOffset returns the wall clock minus the time since boot, in ns. It
// changes only if somebody sets the clock; slewing changes both clocks.
func clockOffset() int64 {
	best, offset := int64(-1), int64(0)
	for range 5 {
		var b1, wall, b2 unix.Timespec
		if unix.ClockGettime(unix.CLOCK_BOOTTIME, &b1) != nil || unix.ClockGettime(unix.CLOCK_REALTIME, &wall) != nil ||
			unix.ClockGettime(unix.CLOCK_BOOTTIME, &b2) != nil {
			return 0
		}
		// The shortest reading is the most exact: nothing interrupted it.
		if width := b2.Nano() - b1.Nano(); best < 0 || width < best {
			best, offset = width, wall.Nano()-b1.Nano()-width/2
		}
	}
	return offset
}

// jumpTolerance is larger than the error of two readings of the offset.
const jumpTolerance = int64(50 * time.Millisecond)

// threshold returns the lowest ctime at which a host file counts as changed
// since the marker, given the present clock offset. If the clock was set back
// by d, a change may have a ctime up to d before the marker; the note says so.
// A jump forward needs no allowance.
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
