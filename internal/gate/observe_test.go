package gate

import (
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
