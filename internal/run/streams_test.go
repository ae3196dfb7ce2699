package run

import (
	"context"
	"os"
	"testing"
)

func TestEscape(t *testing.T) {
	for _, x := range []struct {
		in, out string
		leave   bool
	}{
		{"ls ~\r", "ls ~\r", false},
		{"~.", "", true},
		{"a\r~.", "a\r", true},
		{"a~.", "a~.", false},
		{"~~.", "~.", false},
		{"~/x\r", "~/x\r", false},
		{"\r~a", "\r~a", false},
		{"\x03\x03~.", "\x03\x03~.", false},
		{"\n~.rest", "\nrest", true},
	} {
		whole := escape{line: true}
		got, leave := whole.filter([]byte(x.in))
		if string(got) != x.out || leave != x.leave {
			t.Errorf("%q: %q, %v; want %q, %v", x.in, got, leave, x.out, x.leave)
		}
		// Key by key the same.
		single, all, left := escape{line: true}, "", false
		for i := range len(x.in) {
			k, l := single.filter([]byte(x.in[i : i+1]))
			all, left = all+string(k), left || l
		}
		if all != x.out || left != x.leave {
			t.Errorf("%q key by key: %q, %v", x.in, all, left)
		}
	}
}

// Unhook returns in time even if input is stuck on its way to the command.
func TestUnhookIsBounded(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	x := &streams{}
	hangs, ended, let := make(chan struct{}), make(chan struct{}), make(chan struct{})
	take := func([]byte) error { close(hangs); <-let; return nil }
	if err := x.pump(r, take, func() { close(ended) }); err != nil {
		t.Fatal(err)
	}
	w.WriteString("x")
	<-hangs
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	x.unhook(ctx)
	select {
	case <-ended:
		t.Error("it did not hang")
	default:
	}
	close(let)
	<-ended
}
