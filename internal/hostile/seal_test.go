package hostile

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/pool"
)

// TestS1HostFiles: what the plan does not name is not there, whichever way one
// goes to it.
func TestS1HostFiles(t *testing.T) { contained(t, "host-files") }

// TestS1HostProcesses: no process of the host is seen, signalled or read.
func TestS1HostProcesses(t *testing.T) { contained(t, "host-processes") }

// TestS1KernelInterfaces: system calls that reach into a kernel reach none.
func TestS1KernelInterfaces(t *testing.T) { contained(t, "kernel-interfaces") }

// TestS1Devices: only emulated devices are there.
func TestS1Devices(t *testing.T) { contained(t, "devices") }

// TestS1NamespaceTricks: namespaces that a process makes inside show it no
// more of the host.
func TestS1NamespaceTricks(t *testing.T) { contained(t, "namespaces") }

// TestS1KillInit: a command that signals all that it may ends neither the
// bottle nor its changes.
func TestS1KillInit(t *testing.T) {
	h := newHost(t)
	x := h.run(nil, "/bin/sh", "-c", `trap '' TERM HUP INT
		sleep 600 & kill -9 1; kill -TERM 1; kill -SEGV 1; kill -CHLD 1; kill -CONT 1; kill -STOP 1
		kill -TERM -1; sleep 0.2; (sleep 0.1 &); sleep 0.3; echo alive > survived; echo alive`)
	x.exited(0)
	if !strings.HasSuffix(x.out, "alive\n") || x.rec.Changes == nil || x.rec.Changes.Added != 1 {
		t.Errorf("output %q, changes %+v", x.out, x.rec.Changes)
	}
	// kill -9 -1 spares nobody but init and, as Linux does, the caller.
	x = h.run(nil, "/bin/sh", "-c", "echo x > first; sleep 600 & sleep 601 & kill -9 -1; echo second > second")
	if x.rec == nil || x.rec.Changes == nil || x.rec.Changes.Added < 1 || len(x.rec.Changes.Incomplete) > 0 {
		t.Errorf("after kill -9 -1: %+v, %v", x.rec, x.err)
	}
}

// TestS2UnixSockets: sockets of the host are out of reach, those inside work.
func TestS2UnixSockets(t *testing.T) { contained(t, "sockets") }

// TestS2PoolSockets: where bottles wait for a run, no bottle gets, not even when
// it is shown the directory.
func TestS2PoolSockets(t *testing.T) {
	h := newHost(t)
	mounted, err := os.MkdirTemp("", "pl")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(mounted)
	sock, err := pool.Publish(mounted, strings.Repeat("a", 64))
	if err != nil {
		t.Fatal(err)
	}
	var heard atomic.Int64
	go func() { // ends when sock is closed
		for {
			c, err := sock.Accept()
			if err != nil {
				return
			}
			heard.Add(1)
			c.Close()
		}
	}()
	defer sock.Close()
	all, err := pool.All(mounted)
	if err != nil || len(all) != 1 {
		t.Fatalf("%q, %v", all, err)
	}
	name := filepath.Base(all[0])
	if err := errors.Join(os.Chmod(mounted, 0o777), os.Chmod(all[0], 0o777)); err != nil {
		t.Fatal(err)
	}
	for _, access := range []string{":ro", ":rw"} {
		x := h.run(func(o *carboy.RunOptions) { o.Mounts = append(o.Mounts, mounted+":/given"+access) },
			guestPath, "reach-unix", "/given/"+name, mounted+"/"+name, "@carboy-pool", "/run/"+name)
		x.exited(0)
		// Refused where it connects: a bottle hangs up on a stranger, which from
		// inside looks like a failure too.
		if strings.Count(x.out, "\n") != 4 || strings.Count(x.out, ": connect: ") != 4 {
			t.Errorf("a waiting bottle was reached, shown %s: %q", access, x.out)
		}
	}
	if n := heard.Load(); n != 0 {
		t.Errorf("a waiting bottle was reached %d times", n)
	}
	// Its user's own process does get there.
	c, err := pool.Dial(all[0])
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// TestS2NetworkChanges: nothing inside changes the network card or adds one.
func TestS2NetworkChanges(t *testing.T) { contained(t, "network-card") }

// TestS2HostPorts: a server on this machine is out of reach under each of the
// machine's addresses and in each spelling of its loopback; with a route it is
// reached, through the gateway.
func TestS2HostPorts(t *testing.T) {
	contained(t, "host-ports")
	h := newHost(t)
	web := newWeb(t)
	addr := "host.carboy.internal:" + web.port
	x := h.run(func(o *carboy.RunOptions) { o.AllowPrivate = []string{addr} }, guestPath, "reach", addr)
	if x.out != addr+"\tdone\n" || web.requests() != 1 {
		t.Errorf("with a route: %q, %d requests", x.out, web.requests())
	}
	x = h.run(nil, guestPath, "reach", addr)
	if x.out == "" || strings.Contains(x.out, "\tdone") || web.requests() != 1 {
		t.Errorf("without a route: %q, %d requests", x.out, web.requests())
	}
}

// hostAddresses are this machine's own addresses.
func hostAddresses(t *testing.T) (out []string) {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
			out = append(out, n.IP.String())
		}
	}
	return out
}
