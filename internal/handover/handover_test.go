package handover

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// ends are both ends of a connection over a socket in the file system.
func ends(t *testing.T) (a, b *Conn, raw *net.UnixConn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = Dial(path); err != nil {
		t.Fatal(err)
	}
	c, err := l.AcceptUnix()
	if err == nil {
		b, err = New(c)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b, a.c
}

func open(t *testing.T) int {
	t.Helper()
	l, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(l)
}

func TestFrames(t *testing.T) {
	a, b, _ := ends(t)
	for _, n := range []int{0, 1, maxFiles} {
		var files []*os.File
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			files = append(files, w)
		}
		long := strings.Repeat("x", n*100_000)
		go a.Send(long, files...)
		var got string
		in, err := b.Recv(&got)
		if err != nil || got != long || len(in) != n {
			t.Fatalf("%d files: %v, %d bytes, %d files", n, err, len(got), len(in))
		}
		w.Close()
		for _, f := range in {
			raw, err := f.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			raw.Control(func(fd uintptr) {
				if flags, err := unix.FcntlInt(fd, unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
					t.Errorf("a program started meanwhile would have it: %v", err)
				}
			})
			f.WriteString("x")
			f.Close()
		}
		b, err := io.ReadAll(r)
		if err != nil || len(b) != n {
			t.Errorf("through %d descriptors came %d bytes, %v", n, len(b), err)
		}
		r.Close()
	}
	if err := a.Send("x", make([]*os.File, maxFiles+1)...); err == nil {
		t.Error("too many descriptors")
	}
	if err := a.Send(strings.Repeat("x", maxFrame)); err == nil {
		t.Error("too many bytes")
	}
}

// What is refused leaves no descriptor behind.
func TestBadFrames(t *testing.T) {
	for name, frame := range map[string]string{
		"more descriptors than said": "\x02\x00\x00\x00\x00\x00\x00\x00{}",
		"fewer than said":            "\x02\x00\x00\x00\x02\x00\x00\x00{}",
		"too long":                   "\xff\xff\xff\x7f\x01\x00\x00\x00{}",
		"not JSON":                   "\x02\x00\x00\x00\x01\x00\x00\x00{]",
		"cut off":                    "\x08\x00\x00\x00\x01\x00\x00\x00{}",
		"half a head":                "\x02\x00",
	} {
		a, b, raw := ends(t)
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		before := open(t)
		if _, _, err := raw.WriteMsgUnix([]byte(frame), unix.UnixRights(int(null.Fd())), nil); err != nil {
			t.Fatal(err)
		}
		raw.CloseWrite()
		var v any
		if files, err := b.Recv(&v); err == nil || len(files) > 0 {
			t.Errorf("%s: accepted: %v", name, v)
		}
		if after := open(t); after != before {
			t.Errorf("%s: %d descriptors before, %d after", name, before, after)
		}
		null.Close()
		a.Close()
		if _, err := b.Recv(&v); !errors.Is(err, io.EOF) {
			t.Errorf("%s: at the end: %v", name, err)
		}
		b.Close()
	}
}
