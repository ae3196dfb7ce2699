package gate

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
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

// A file that is mapped to be executed is an input and a library, by whatever name. A
// message with an address is an endpoint.
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
	e := newEntry("s", "host", "", o)
	if !slices.Contains(e.Execs, "(nameless) /memfd:y") || !slices.Contains(e.Endpoints, "send 192.0.2.7:53") {
		t.Errorf("the baseline has %+v", e)
	}
}

// brokenTrace is a trace with damage, losses and an early end.
type brokenTrace struct {
	errs []error
	tail trace.Tail
}

func (b *brokenTrace) Next(f *trace.Fact) error {
	if len(b.errs) == 0 {
		return io.EOF
	}
	err := b.errs[0]
	b.errs = b.errs[1:]
	*f = trace.Fact{Op: trace.Open, Path: "/etc/passwd"}
	return err
}

func (b *brokenTrace) Tail() trace.Tail { return b.tail }

// Whatever is missing from a trace makes the account incomplete; a trace that can't be
// read has none.
func TestObserveBrokenTrace(t *testing.T) {
	damage := &trace.DamageError{File: "trace", From: 1, To: 2}
	for _, x := range []struct {
		r    *brokenTrace
		lost uint64
		gap  string
	}{
		{&brokenTrace{errs: []error{nil}, tail: trace.Tail{Ended: true}}, 0, ""},
		{&brokenTrace{errs: []error{nil, damage, nil}, tail: trace.Tail{Ended: true}}, 1, damage.Error()},
		{&brokenTrace{tail: trace.Tail{Ended: true, Dropped: 3}}, 3, ""},
		{&brokenTrace{}, 0, "the trace has no end"},
		{&brokenTrace{tail: trace.Tail{Ended: true, Reason: "disk full"}}, 0, "the trace ended early: disk full"},
	} {
		o, err := Observe(x.r)
		if err != nil {
			t.Fatal(err)
		}
		if o.Lost != x.lost || strings.Join(o.Gaps, "") != x.gap || o.whole() != (x.lost == 0 && x.gap == "") {
			t.Errorf("lost %d, gaps %q", o.Lost, o.Gaps)
		}
	}
	if _, err := Observe(&brokenTrace{errs: []error{io.ErrClosedPipe}}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a trace that can't be read: %v", err)
	}
}

// Each operation is recorded by its effect: what was executed, read, looked for in vain,
// written, renamed, and which rights and sockets were asked for.
func TestObserveOperations(t *testing.T) {
	o, err := Observe(&factList{
		{Op: trace.Exec, Path: "/bin/dash", Path2: "/bin/sh", Digest: "\x01"},
		{Op: trace.Exec, Path: "/workspace/sh", Path2: "/workspace/sh", Digest: "\x01", Flags: trace.Mutable},
		{Op: trace.Exec, Path: "/bin/none", Errno: 2},
		{Op: trace.Fork, PID: 2, PPID: 1},
		{Op: trace.Open, Path: "/etc/ssl/certs/ca.pem"},
		{Op: trace.Stat, Path: "/etc/missing", Errno: 2},
		{Op: trace.List, Path: "/etc"},
		{Op: trace.Stat, Path: "/workspace/f"},
		{Op: trace.Write, Path: "/workspace/out"},
		{Op: trace.Mkdir, Path: "/var/x"},
		{Op: trace.Unlink, Path: "/var/refused", Errno: 13},
		{Op: trace.Rename, Path: "/workspace/a", Path2: "/var/b"},
		{Op: trace.Socket, A: 2, B: 1},
		{Op: trace.SetID, UID: 5, EUID: 6},
		{Op: trace.Ptrace, Path: "12", Errno: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	for what, x := range map[string]struct{ got, want []string }{
		"failed":       {o.Failed, []string{"/bin/none"}},
		"missed":       {o.Missed, []string{"/bin/none", "/etc/missing"}},
		"listed":       {o.Listed, []string{"/etc"}},
		"opened":       {o.Opened, []string{"/bin/dash", "/bin/sh", "/etc/ssl/certs/ca.pem"}},
		"certificates": {o.Certs, []string{"/etc/ssl/certs/ca.pem"}},
		"read":         {o.TreeRead, []string{"sh"}},
		"written":      {o.Written, []string{"/var/b", "/var/x"}},
		"tree written": {o.TreeWrote, []string{"a", "out"}},
		"handled":      {o.Handled, []string{"/bin/none", "/var/b", "a"}},
	} {
		if !slices.Equal(x.got, x.want) {
			t.Errorf("%s: %q, want %q", what, x.got, x.want)
		}
	}
	if len(o.Execs) != 2 || !o.Execs[0].Shell || o.Execs[0].Asked != "/bin/sh" || !o.Execs[1].Shell || !o.Execs[1].Mutable || o.Processes != 1 || o.Facts != 15 {
		t.Errorf("%+v, %d processes, %d facts", o.Execs, o.Processes, o.Facts)
	}
	var rights []string
	for _, r := range o.Rights {
		rights = append(rights, strings.TrimSpace(r.What+" "+r.Detail+" "+r.Errno))
	}
	if want := []string{"ptrace 12 EPERM", "setid uid 5, euid 6"}; !slices.Equal(rights, want) || len(o.Sockets) != 1 || o.Sockets[0].Count != 1 {
		t.Errorf("rights %q, sockets %+v", rights, o.Sockets)
	}
}

// Reads are recorded for each process between two execs, with the process's descent, and
// only if asked for.
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
