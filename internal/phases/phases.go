// Package phases records when a run reached named points: with CARBOY_PHASES set to
// a file, it appends a line for each point there when carboy ends, with the name and
// the time on the monotonic clock in nanoseconds. Without it, marking costs a
// comparison.
//
// runtime/trace can't replace it: a trace has the clock and the file of one process,
// and a start goes through several. The monotonic clock is one for all of them, so
// that the points of a bottle's inner processes, and the process's own start, are in
// the same file. Names are carboy's own: nothing from inside a bottle gets there.
package phases

import (
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Variable is the environment variable that names the file.
const Variable = "CARBOY_PHASES"

// Point is one line.
type Point struct {
	Name string
	NS   int64
}

// Log collects points. The zero Log drops them.
type Log struct {
	mu     sync.Mutex
	on     bool
	points []Point
}

// On starts the collection.
func (l *Log) On() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.on = true
}

// Mark records that name was reached now.
func (l *Log) Mark(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.on {
		l.points = append(l.points, Point{name, now()})
	}
}

// Add appends points of another process.
func (l *Log) add(ps []Point) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.on {
		l.points = append(l.points, ps...)
	}
}

// Points returns a copy of the points so far.
func (l *Log) Points() []Point {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Point(nil), l.points...)
}

func now() int64 {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}

var own Log

// Wanted reports whether this process was asked for points.
func Wanted() bool { return os.Getenv(Variable) != "" }

// Begin starts this process's log if CARBOY_PHASES is set.
func Begin() {
	if Wanted() {
		own.On()
		own.Mark("main")
	}
}

// Mark records a point of this process.
func Mark(name string) { own.Mark(name) }

// Add appends points of another process to this process's log.
func Add(ps []Point) { own.add(ps) }

// End appends this process's log to the file, which must exist: a variable that was
// set by mistake creates none.
func End() error {
	ps := own.Points()
	if len(ps) == 0 {
		return nil
	}
	own.Mark("end")
	var b strings.Builder
	for _, p := range own.Points() {
		fmt.Fprintf(&b, "%s %d\n", p.Name, p.NS)
	}
	f, err := os.OpenFile(os.Getenv(Variable), os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("write phases: %w", err)
	}
	_, err = f.WriteString(b.String())
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
