package gvisor

import (
	"os"
	"testing"

	"github.com/carboy/carboy/internal/bottle"
)

// A shim that waits is used by the bottle of its user alone, ends when nobody
// wants it, and is used once.
func TestWarm(t *testing.T) {
	begin := func(u bottle.User) *warm {
		w := Backend{}.Warm(u, 65534, 65534).(*warm)
		t.Cleanup(w.Close)
		return w
	}
	u := bottle.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Name: "n", Home: "/home/n"}
	spec := &bottle.Spec{User: u, HostUID: 65534, HostGID: 65534}

	w := begin(u)
	<-w.ready
	if w.err != nil {
		t.Fatal(w.err)
	}
	own := w.x
	spec.Warm = w
	x, err := shimFor(spec)
	if err != nil || x != own {
		t.Fatalf("the waiting shim was not taken: %v", err)
	}
	defer x.Close()
	w.Close()
	select {
	case <-x.Done():
		t.Error("closing what was taken ended the shim")
	default:
	}
	again, err := shimFor(spec)
	if err != nil || again == x {
		t.Fatalf("a shim was used twice: %v", err)
	}
	again.Close()

	other := begin(bottle.User{UID: u.UID, GID: u.GID, Name: "other", Home: "/home/other"})
	spec.Warm = other
	x2, err := shimFor(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer x2.Close()
	<-other.ready
	if x2 == other.x {
		t.Error("a shim was used for another user")
	}
	left := other.x
	other.Close()
	other.Close()
	select {
	case <-left.Done():
	default:
		t.Error("a shim that nobody took goes on")
	}
}
