// Package stamp says when a run reached which point, for whoever makes carboy
// faster: with CARBOY_PHASES set to a file, a line for each point is appended
// there when carboy ends, its name and the time on the monotonic clock in
// nanoseconds. Without it, marking costs a comparison.
//
// The clock is one for all processes, so points of the bottle's inner ones stand
// in the same file, and so does the process's own start. Names are ours alone:
// nothing from inside a bottle gets there.
package stamp

import (
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Variable names the file.
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

// On starts collecting.
func (l *Log) On() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.on = true
}

// Mark notes that name was reached.
func (l *Log) Mark(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.on {
		l.points = append(l.points, Point{name, now()})
	}
}

// Add takes points of another process over.
func (l *Log) Add(ps []Point) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.on {
		l.points = append(l.points, ps...)
	}
}

// Points are those so far.
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

// own is this process's log.
var own Log

// Wanted reports whether this process was asked for points.
func Wanted() bool { return os.Getenv(Variable) != "" }

// Begin starts this process's log, if it is wanted.
func Begin() {
	if Wanted() {
		own.On()
		own.Mark("main")
	}
}

// Mark notes a point of this process.
func Mark(name string) { own.Mark(name) }

// Add takes over points of a process that this one started.
func Add(ps []Point) { own.Add(ps) }

// End writes this process's log. The file must exist: a variable that somebody
// set by mistake makes none.
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
