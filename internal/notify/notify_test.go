package notify

import (
	"bufio"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"

	"github.com/carboy/carboy/internal/testenv"
)

// desktop shows notifications to the test.
type desktop struct {
	can   []string
	shown chan [2]string // summary, body
	first chan uint32    // what it replaces
}

func (d desktop) GetCapabilities() ([]string, *dbus.Error) { return d.can, nil }

func (d desktop) Notify(app string, replaces uint32, icon, summary, body string, actions []string, hints map[string]dbus.Variant, expire int32) (uint32, *dbus.Error) {
	d.shown <- [2]string{summary, body}
	d.first <- replaces
	return 7, nil
}

// newBus starts a real D-Bus with nothing on it.
func newBus(t *testing.T) (address string) {
	t.Helper()
	cmd := exec.Command(testenv.Need(t, "dbus-daemon", "apt-get install dbus-daemon"), "--session", "--nofork", "--print-address", "--address=unix:path="+filepath.Join(t.TempDir(), "bus"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func TestShow(t *testing.T) {
	for _, can := range []string{"body", "body-markup"} {
		bus := newBus(t)
		conn, err := dbus.Connect(bus)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		d := desktop{[]string{can}, make(chan [2]string, 1), make(chan uint32, 1)}
		if err := conn.Export(d, object, service); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), bus); err == nil {
			t.Error("nobody shows notifications, and that is no error")
		}
		if _, err := conn.RequestName(service, dbus.NameFlagDoNotQueue); err != nil {
			t.Fatal(err)
		}
		n, err := Open(t.Context(), "unixexec:path=/bin/false;"+bus)
		if err != nil {
			t.Fatal(err)
		}
		want := "<b>&amp;"
		if can == "body-markup" {
			want = "&lt;b&gt;&amp;amp;"
		}
		for _, replaces := range []uint32{0, 7} {
			if err := n.Show(t.Context(), "one", "<b>&amp;"); err != nil {
				t.Fatal(err)
			}
			if got := <-d.shown; got != [2]string{"one", want} {
				t.Errorf("%s: %q, want %q", can, got, want)
			}
			if got := <-d.first; got != replaces {
				t.Errorf("replaces %d, want %d", got, replaces)
			}
		}
		if err := n.Show(t.Context(), strings.Repeat("ä", 9999), "\xff"); err != nil {
			t.Fatal(err)
		}
		if got := <-d.shown; len(got[0]) > maxText || !strings.HasSuffix(got[0], "ä…") || got[1] != "?" {
			t.Errorf("%q", got)
		}
		<-d.first
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if err := n.Show(t.Context(), "one", "two"); err == nil {
			t.Error("shown by a closed connection")
		}
	}
}

// TestOpenRefuses: no address of D-Bus starts a program or leaves the machine.
func TestOpenRefuses(t *testing.T) {
	if _, err := Open(t.Context(), ""); !errors.Is(err, errNoDesktop) {
		t.Error(err)
	}
	for _, address := range []string{"unixexec:path=/bin/touch,argv1=/tmp/x", "tcp:host=127.0.0.1,port=1", "autolaunch:", "nonce-tcp:host=127.0.0.1", "unix:", "launchd:env=X"} {
		if _, err := Open(t.Context(), address); err == nil || !strings.Contains(err.Error(), "not at a Unix socket") {
			t.Errorf("%s: %v", address, err)
		}
	}
	if _, err := Open(t.Context(), "unix:path="+filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "connect") {
		t.Error(err)
	}
}
