package hostile

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/testenv"
)

// plantSecret puts a file with a token beside the workspace, readable by all,
// so that nothing but the bottle's walls protects it.
func plantSecret(t *testing.T, h *host) (token, file string) {
	t.Helper()
	token = fmt.Sprintf("canary-%d-%s", os.Getpid(), strings.ReplaceAll(filepath.Base(h.ws), "0", "x")+strconv.Itoa(len(h.ws)))
	dir, err := os.MkdirTemp("", "elsewhere")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(dir, "secret")
	if err := os.WriteFile(file, []byte(token), 0o644); err != nil {
		t.Fatal(err)
	}
	return token, file
}

// TestS1HostFiles: what the plan does not name is not there, whichever way one
// goes to it.
func TestS1HostFiles(t *testing.T) {
	h := newHost(t)
	token, file := plantSecret(t, h)
	t.Setenv("HOSTILE_SECRET_TOKEN", token)
	rel, err := filepath.Rel(h.ws, file)
	if err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link-to-secret": file, "relative-link": rel, "link-to-dir": filepath.Dir(file), "root-link": "/"} {
		if err := os.Symlink(to, filepath.Join(h.ws, link)); err != nil {
			t.Fatal(err)
		}
	}
	h.attack(nil, "files", reverse(token), file, h.ws)
	if b, err := os.ReadFile(file); err != nil || string(b) != token {
		t.Errorf("the secret is now %q, %v", b, err)
	}
	x := h.sh(nil, "cat a.txt; cat "+file+" root-link"+file+" 2>/dev/null; true")
	if x.out != "hello\n" {
		t.Errorf("output %q", x.out)
	}
}

// TestS1HostProcesses: no process of the host is seen, signalled or read.
func TestS1HostProcesses(t *testing.T) {
	h := newHost(t)
	victim := exec.Command("/bin/sleep", "600")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { victim.Process.Kill(); victim.Wait() }()
	h.attack(nil, "procs", strconv.Itoa(victim.Process.Pid), strconv.Itoa(os.Getpid()), strconv.Itoa(os.Getppid()))
	if err := victim.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the host's process is gone: %v", err)
	}
}

// TestS1KernelInterfaces: system calls that reach into a kernel reach none.
func TestS1KernelInterfaces(t *testing.T) {
	newHost(t).attack(nil, "kernel")
}

// TestS1Devices: only emulated devices are there.
func TestS1Devices(t *testing.T) {
	newHost(t).attack(nil, "devices")
}

// TestS1NamespaceTricks: namespaces that a process makes inside show it no
// more of the host.
func TestS1NamespaceTricks(t *testing.T) {
	testenv.Need(t, "unshare", "apt-get install util-linux")
	h := newHost(t)
	token, file := plantSecret(t, h)
	ro, err := os.MkdirTemp("", "given")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(ro)
	if err := os.Chmod(ro, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ro+"/given", []byte("given"), 0o666); err != nil {
		t.Fatal(err)
	}
	before := tree(t, ro)
	h.attack(func(o *carboy.RunOptions) { o.Mounts = append(o.Mounts, ro+":/given-ro:ro") }, "escape", reverse(token), file, "/given-ro")
	if after := tree(t, ro); after != before {
		t.Errorf("a read-only mount was changed:\n%s\nbefore:\n%s", after, before)
	}
}

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
func TestS2UnixSockets(t *testing.T) {
	h := newHost(t)
	mounted, err := os.MkdirTemp("", "given")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(mounted)
	if err := os.Chmod(mounted, 0o755); err != nil {
		t.Fatal(err)
	}
	abstract := fmt.Sprintf("hostile-%d-%s", os.Getpid(), filepath.Base(mounted))
	var listeners []*canary
	for _, addr := range []string{h.ws + "/host.sock", mounted + "/host.sock", "@" + abstract} {
		listeners = append(listeners, newCanary(t, "unix", addr))
	}
	for _, f := range []string{h.ws + "/host.sock", mounted + "/host.sock"} {
		if err := os.Chmod(f, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	pc, err := net.ListenPacket("unixgram", "@"+abstract+"-dgram")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	h.attack(func(o *carboy.RunOptions) { o.Mounts = append(o.Mounts, mounted+":/given:ro") },
		"sockets", h.ws+"/host.sock", "/given/host.sock", abstract, mounted+"/host.sock")
	for _, l := range listeners {
		l.untouched(t)
	}
	// The same sockets, from the host: they do answer.
	c, err := net.Dial("unix", h.ws+"/host.sock")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// TestS2NetworkChanges: nothing inside changes the network card or adds one.
func TestS2NetworkChanges(t *testing.T) {
	testenv.Need(t, "ip", "apt-get install iproute2")
	testenv.Need(t, "unshare", "apt-get install util-linux")
	newHost(t).attack(nil, "netlink")
}

// TestS2HostPorts: a server on this machine is out of reach under each of the
// machine's addresses and in each spelling of its loopback; with a route it is
// reached, through the gateway.
func TestS2HostPorts(t *testing.T) {
	h := newHost(t)
	web := newWeb(t)
	args := []string{"allowed-by-route=tcp/host.carboy.internal:" + web.port}
	for i, a := range hostAddresses(t) {
		args = append(args, fmt.Sprintf("host-address-%d=tcp/%s", i, net.JoinHostPort(a, web.port)))
	}
	for _, a := range []string{
		"127.0.0.1", "127.1.2.3", "0.0.0.0", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1", "::", "64:ff9b::7f00:1", "2002:7f00:1::1", "::127.0.0.1",
		"localhost", "localhost.", "LOCALHOST", "ip6-localhost", "foo.localhost", "198.18.0.1", "198.18.0.2", "fd63:6172:626f:7900::1", "fe80::1%eth0",
		"172.17.0.1", "10.0.2.2", "192.168.65.2", "host.docker.internal", "gateway.docker.internal", "host.containers.internal", "kubernetes.default.svc",
		"127.0.0.1.nip.io", "localtest.me", "host.carboy.internal.", "HOST.carboy.internal",
	} {
		if strings.HasPrefix(strings.ToLower(a), "host.carboy") {
			continue // the route itself in other spellings
		}
		args = append(args, "loopback-"+a+"=tcp/"+net.JoinHostPort(a, web.port))
	}
	h.attack(func(o *carboy.RunOptions) { o.AllowPrivate = []string{"host.carboy.internal:" + web.port} }, "reach", args...)
	if n := web.requests(); n != 1 {
		t.Errorf("the server saw %d requests, want the allowed one", n)
	}
	// Without the route not even that.
	x := h.run(nil, guestPath, "reach", "x=tcp/host.carboy.internal:"+web.port)
	if strings.Contains(x.out, "\tdone") || web.requests() != 1 {
		t.Errorf("the host's loopback was reached without a route: %s", x.out)
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
