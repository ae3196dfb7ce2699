package gate

import (
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/carboy/carboy/internal/trace"
)

type factList []trace.Fact

func (l *factList) Next(f *trace.Fact) error {
	if len(*l) == 0 {
		return io.EOF
	}
	*f, *l = (*l)[0], (*l)[1:]
	return nil
}

func (l *factList) Tail() trace.Tail { return trace.Tail{Ended: true} }

// TestObserveLoadsAndMessages: what is mapped to be executed is an input and a library,
// whatever it is called; a message that names its address is an endpoint.
func TestObserveLoadsAndMessages(t *testing.T) {
	o, err := Observe(&factList{
		{Op: trace.Open, Path: "/usr/lib/looks.so"},
		{Op: trace.Load, Path: "/usr/lib/plain"},
		{Op: trace.Load, Path: "/workspace/lib/x"},
		{Op: trace.Load, Path: "/memfd:y", Flags: trace.Deleted},
		{Op: trace.Load, Path: "/usr/lib/refused", Errno: 13},
		{Op: trace.Send, Path: "192.0.2.7:53"},
		{Op: trace.Send, Path: "192.0.2.8:53", Errno: 111},
		{Op: trace.Connect, Path: "none"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"(nameless) /memfd:y", "/usr/lib/plain", "/workspace/lib/x"}; !slices.Equal(o.Libraries, want) {
		t.Errorf("libraries: %q", o.Libraries)
	}
	if !slices.Contains(o.Opened, "/usr/lib/plain") || !slices.Equal(o.TreeRead, []string{"lib/x"}) || slices.Contains(o.Opened, "/memfd:y") {
		t.Errorf("inputs: %q %q", o.Opened, o.TreeRead)
	}
	var ends []string
	for _, e := range o.Endpoints {
		ends = append(ends, e.What+" "+e.Address+" "+e.Errno)
	}
	if want := []string{"send 192.0.2.7:53 ", "send 192.0.2.8:53 ECONNREFUSED"}; !slices.Equal(ends, want) {
		t.Errorf("endpoints: %q", ends)
	}
	e := entryOf("s", "host", "", o)
	if !slices.Contains(e.Execs, "(nameless) /memfd:y") || !slices.Contains(e.Endpoints, "send 192.0.2.7:53") {
		t.Errorf("the baseline has %+v", e)
	}
}

// TestObserveReaders: what each process looked at between two execs is told apart, what
// it was made of is not lost, and it is left out where nobody asks.
func TestObserveReaders(t *testing.T) {
	facts := factList{
		{Op: trace.Exec, PID: 1, Path: "/bin/go", Path2: "/bin/go"},
		{Op: trace.Open, PID: 1, Path: "/workspace/a.go"},
		{Op: trace.Fork, PID: 2, PPID: 1},
		{Op: trace.Exec, PID: 2, Path: "/bin/asm", Path2: "/bin/asm"},
		{Op: trace.Stat, PID: 2, Path: "/workspace/x.h", Errno: 2},
		{Op: trace.Open, PID: 2, Path: "/usr/include/x.h"},
		{Op: trace.Open, PID: 2, Path: "/workspace/a.go"},
		{Op: trace.Fork, PID: 3, PPID: 1},
		{Op: trace.Exec, PID: 3, Path: "/tmp/t.test", Path2: "/tmp/t.test", Flags: trace.Mutable},
		{Op: trace.Exec, PID: 3, Path: "/bin/none", Errno: 2},
		{Op: trace.Fork, PID: 4, PPID: 3},
		{Op: trace.Exec, PID: 4, Path: "/bin/asm", Path2: "/workspace/script"},
		{Op: trace.Fork, PID: 2, PPID: 1}, // the number again
		{Op: trace.Exec, PID: 2, Path: "/bin/asm", Path2: "/bin/asm"},
		{Op: trace.Open, PID: 2, Path: "/workspace/b.go"},
	}
	plain, again := facts, facts
	if o, err := Observe(&plain); err != nil || o.Readers != nil {
		t.Errorf("nobody asked: %+v, %v", o.Readers, err)
	}
	o, err := ObserveReaders(&again)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range o.Readers.By {
		s := fmt.Sprint(r.Program, " ", r.Made, " ", r.Forked)
		for _, i := range r.Looked {
			s += " " + o.Readers.Paths[i]
		}
		got = append(got, s)
	}
	slices.Sort(got)
	if want := []string{"/bin/asm false false a.go x.h", "/bin/asm false false b.go", "/bin/asm true false script", "/bin/go false true a.go"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
