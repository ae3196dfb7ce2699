package trace

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

func full() Fact {
	return Fact{
		Seq: 7, Time: 1_700_000_000_123_456_789, Op: Exec, Flags: Miss, PID: 12, PPID: 3, Errno: 2, UID: 1000, EUID: 0,
		A: 1, B: 1<<64 - 1, C: 9, Path: "/bin/sh", Path2: "/work/x\xff\n", Args: []string{"sh", "", "-c"}, Digest: strings.Repeat("\x01", 32),
	}
}

func TestRoundTrip(t *testing.T) {
	want := []Fact{full(), {Op: Exit, A: 3}, {Op: Open, Path: strings.Repeat("a", MaxPath)}}
	b := NewBatch(nil)
	for i := range want {
		b = want[i].Append(b)
	}
	SetDropped(b, 5)
	var got []Fact
	dropped, err := ParseBatch(b, func(f *Fact) { got = append(got, *f) })
	if err != nil || dropped != 5 || !reflect.DeepEqual(got, want) {
		t.Fatalf("%d %v\n%+v\n%+v", dropped, err, got, want)
	}
}

func TestBounds(t *testing.T) {
	f := Fact{Op: Exec, Path: strings.Repeat("p", 1<<20), Path2: strings.Repeat("q", 1<<20)}
	for range 2000 {
		f.Args = append(f.Args, strings.Repeat("a", 1000))
	}
	b := f.Append(nil)
	if len(b) > MaxFact {
		t.Errorf("%d bytes, want at most %d", len(b), MaxFact)
	}
	var got Fact
	if _, err := got.parse(b); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, a := range got.Args {
		n += len(a)
	}
	if got.Flags&Cut == 0 || len(got.Path) != MaxPath || n != MaxArgs {
		t.Errorf("flags %b, path %d, args %d", got.Flags, len(got.Path), n)
	}
	many := Fact{Op: Exec, Args: make([]string, 100_000)}
	if got.parse(many.Append(nil)); len(got.Args) != MaxArgc || got.Flags&Cut == 0 {
		t.Errorf("%d arguments", len(got.Args))
	}
}

func TestEveryOpHasANameAndAKind(t *testing.T) {
	for o := Exec; o <= Send; o++ {
		if o.Kind() == "" {
			t.Errorf("op %d has no name and kind", o)
		}
	}
}

func FuzzFact(f *testing.F) {
	x := full()
	f.Add(x.Append(nil))
	f.Add([]byte{2, 0, 0, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var x, y Fact
		rest, err := x.parse(b)
		if err != nil {
			return
		}
		again := x.Append(nil)
		if _, err := y.parse(again); err != nil {
			t.Fatalf("%v after %d of %d bytes", err, len(b)-len(rest), len(b))
		}
		if !bytes.Equal(again, y.Append(nil)) {
			t.Fatal("not stable")
		}
	})
}
