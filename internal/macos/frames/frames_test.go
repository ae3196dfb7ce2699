package frames

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestFrames(t *testing.T) {
	var wire bytes.Buffer
	c := New(&wire, &wire)
	long := bytes.Repeat([]byte("x"), MaxPayload)
	for _, b := range [][]byte{nil, []byte("a"), long} {
		if err := c.Send(Stdin, b); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Send(Stdin, append(long, 'x')); err == nil {
		t.Error("a payload over the bound was sent")
	}
	for _, want := range [][]byte{nil, []byte("a"), long} {
		k, b, err := c.Recv()
		if err != nil || k != Stdin || !bytes.Equal(b, want) {
			t.Fatalf("got %q with %d bytes, %v", byte(k), len(b), err)
		}
	}
	if _, _, err := c.Recv(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

// What is no frame of ours is refused before memory is taken for it.
func TestFramesHostile(t *testing.T) {
	for _, c := range []struct{ name, wire string }{
		{"a text", "Welcome to Debian\n"},
		{"a huge length", "h\xff\xff\xff\xff"},
		{"one byte over", "h\x00\x40\x00\x01"},
		{"cut in the head", "h\x00\x00"},
		{"cut in the payload", "h\x00\x00\x00\x05abc"},
	} {
		k, b, err := New(strings.NewReader(c.wire), io.Discard).Recv()
		if err == nil || err == io.EOF {
			t.Errorf("%s: %q, %q, %v", c.name, byte(k), b, err)
		}
	}
}

func TestExpect(t *testing.T) {
	var wire bytes.Buffer
	c := New(&wire, &wire)
	c.Send(Fail, []byte("no room"))
	c.Send(Data, []byte("x"))
	var fail *FailError
	if _, err := Expect(c, Data); !errors.As(err, &fail) || fail.Text != "no room" {
		t.Errorf("a failure became %v", err)
	}
	if _, err := Expect(c, Result); err == nil {
		t.Error("another kind was accepted")
	}
}
