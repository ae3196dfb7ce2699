//go:build linux

package main

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/carboy/carboy"
)

// How far a run's end is stands in one line of a terminal, the agent's own among them, which
// is empty before anything else is said. Without a terminal it is said once.
func TestTakingIsSaid(t *testing.T) {
	taking := func(n *narrator) {
		for i := range int64(3) {
			n.event(carboy.Event{Kind: "taking", Text: "taking the changes out of the bottle", Bytes: i << 20, Took: time.Duration(i+1) * time.Second})
		}
	}
	for _, busy := range []bool{false, true} {
		ptmx, tty, err := pty.Open()
		if err != nil {
			t.Fatal(err)
		}
		a := &app{stdout: tty, stderr: tty, env: func(string) string { return "" }}
		n := &narrator{app: a, busy: busy}
		n.event(carboy.Event{Kind: "limit", Text: "a limit"})
		taking(n)
		n.end()
		taking(n)
		tty.Close()
		b, _ := io.ReadAll(ptmx) // a terminal whose other side is closed ends with an error
		ptmx.Close()
		want := clearLine + "carboy: taking the changes out of the bottle: 1 s" +
			clearLine + "carboy: taking the changes out of the bottle: 1 MiB in 2 s" +
			clearLine + "carboy: taking the changes out of the bottle: 2 MiB in 3 s" + clearLine
		if s := string(b); !strings.HasSuffix(s, want) || strings.Contains(s, "a limit") == busy {
			t.Errorf("busy %v: %q", busy, s)
		}
	}
	var out strings.Builder
	n := &narrator{app: &app{stdout: io.Discard, stderr: &out, env: func(string) string { return "" }}}
	taking(n)
	n.end()
	if out.String() != "carboy: taking the changes out of the bottle\n" {
		t.Errorf("%q", out.String())
	}
}
