package gvisor

import (
	"bytes"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
)

// What is sent to the shim arrives as it was, contents and descriptors too.
func TestPlanTravels(t *testing.T) {
	spec := &bottle.Spec{ID: "b1", Hostname: "h", User: bottle.User{UID: 7, GID: 8, Name: "n", Home: "/home/n"}}
	contents := []string{"", "a\x00b", strings.Repeat("x", 300_000), "\x00"}
	for _, c := range contents {
		spec.Root.Entries = append(spec.Root.Entries, bottle.Entry{Path: "/e", Mode: 0o644, Content: []byte(c)})
	}
	spec.Root.Entries = append(spec.Root.Entries, bottle.Entry{Path: "/l", Mode: os.ModeSymlink, Link: "to"})
	in, _ := newPlan(spec, rootFiles{})

	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*conn
	for i := range ends {
		if ends[i], err = newConn(os.NewFile(uintptr(fds[i]), "end")); err != nil {
			t.Fatal(err)
		}
		defer ends[i].c.Close()
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	sent := make(chan error, 1)
	go func() {
		body, err := encode(in)
		if err == nil {
			err = ends[0].send(request{ID: 5, Method: callCreate}, body, []*os.File{w})
		}
		w.Close()
		sent <- err
	}()
	var req request
	body, files, err := ends[1].recv(&req)
	if err != nil || req.ID != 5 || req.Method != callCreate || len(files) != 1 {
		t.Fatalf("%+v, %d descriptors, %v", req, len(files), err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	io.WriteString(files[0], "through")
	files[0].Close()
	if b, err := io.ReadAll(r); string(b) != "through" {
		t.Errorf("the descriptor leads elsewhere: %q, %v", b, err)
	}
	got, err := decodePlan(body)
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != in.ID || got.User != in.User || len(got.Entries) != len(in.Entries) {
		t.Fatalf("got %+v", got)
	}
	for i, e := range got.Entries {
		if !bytes.Equal(e.Content, in.Entries[i].Content) || !reflect.DeepEqual(e.Entry, in.Entries[i].Entry) {
			t.Errorf("entry %d: %+v", i, e.Entry)
		}
	}
	if _, err := decodePlan(body[:len(body)-1]); err == nil {
		t.Error("a plan whose last content is cut off was taken")
	}
}
