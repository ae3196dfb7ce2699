package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/rootfs"
	"github.com/carboy/carboy/internal/testenv"
	"github.com/carboy/carboy/internal/wire"
)

// hostsSpec is a bottle with this machine's tools.
func hostsSpec(t *testing.T) *bottle.Spec {
	t.Helper()
	spec := emptySpec()
	var err error
	if spec.Root, err = rootfs.Host(rootfs.Options{User: spec.User, Hostname: spec.Hostname}); err != nil {
		t.Fatal(err)
	}
	return spec
}

// echo answers each UDP packet that comes on the gateway's end with the same bytes, until the
// bottle's end is closed.
func echo(host *os.File) {
	buf := make([]byte, wire.MTU)
	for {
		n, err := host.Read(buf)
		if err != nil || n == 0 {
			return
		}
		p := buf[:n]
		if n < 28 || p[0] != 0x45 || p[9] != unix.IPPROTO_UDP {
			continue
		}
		// Exchanging addresses and ports changes no checksum.
		for _, at := range [][3]int{{12, 16, 4}, {20, 22, 2}} {
			for i := range at[2] {
				p[at[0]+i], p[at[1]+i] = p[at[1]+i], p[at[0]+i]
			}
		}
		_, _ = host.Write(p)
	}
}

// volumes returns how many volumes the Engine has.
func volumes(t *testing.T) int {
	t.Helper()
	e, err := connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Volumes []struct{} }
	if err := e.call(t.Context(), "GET", "/volumes", nil, nil, &list); err != nil {
		t.Fatal(err)
	}
	return len(list.Volumes)
}

const (
	// echoes sends packets of several sizes, and compares what comes back.
	echoes = `
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(120)
s.connect(("198.18.0.3", 7))
for n in (1, 1400, 20000, 60000):
    m = bytes(i % 251 for i in range(n))
    s.send(m)
    if s.recv(65535) != m: raise SystemExit("another answer to %d" % n)
print("echoed")
`
	// forks starts processes until one is refused.
	forks = `
import os, time
n = 0
try:
    while n < 200:
        if os.fork() == 0:
            for fd in range(3): os.close(fd)
            time.sleep(600)
        n += 1
except OSError as e: print("refused", e.errno, n, flush=True)
os._exit(0)
`
)

// TestKernelBottle: where the Engine has carboy's runtime, a bottle is made under it without
// being asked for: with a kernel of its own, its wire, its limit on processes, its files and
// a posture that says so; and nothing is left.
func TestKernelBottle(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	withKernel(t)
	pair, err := wire.New()
	if err != nil {
		t.Fatal(err)
	}
	spec := hostsSpec(t)
	spec.Limits.Pids, spec.Limits.Memory = 30, 1<<30
	spec.Wire, spec.Net = pair.Bottle, wire.DefaultConfig()
	x, err := Backend{}.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	echoed := make(chan struct{})
	go func() { defer close(echoed); echo(pair.Host) }()
	defer func() { x.Close(); <-echoed; pair.Host.Close() }()

	p := x.Posture()
	if p.Isolation != bottle.IsolationUserKernel || p.Isolation != (Backend{}).Isolation() {
		t.Errorf("the class is %s, and the backend's %s", p.Isolation, Backend{}.Isolation())
	}
	var roles []string
	for _, proc := range p.Processes {
		roles = append(roles, proc.Role)
		if proc.Seccomp != 2 || !proc.NoNewPrivs || !proc.Chrooted || (proc.UID == 0) != (proc.Role == goferRole) || proc.Role == kernelRole && proc.CapEff != 0 {
			t.Errorf("%+v", proc)
		}
	}
	if !slices.Equal(roles, []string{networkRole, kernelRole, goferRole}) {
		t.Errorf("%q", roles)
	}
	var host unix.Utsname
	if err := unix.Uname(&host); err != nil {
		t.Fatal(err)
	}
	own := unix.ByteSliceToString(host.Release[:])
	if out, _ := run(t, x, "uname -r; uname -n; id -u"); !strings.HasSuffix(strings.SplitN(out, "\n", 2)[0], "-gvisor") || strings.Contains(out, own) || !strings.HasSuffix(out, "\ncrash\n1000\n") {
		t.Errorf("the kernel inside is %q, and the host's %q", out, own)
	}
	if out, _ := run(t, x, "python3 -c '"+echoes+"' 2>&1"); out != "echoed\n" {
		t.Errorf("by the wire: %q", out)
	}
	if out, _ := run(t, x, "echo kept >/tmp/kept; cat /tmp/kept"); out != "kept\n" {
		t.Errorf("a file: %q", out)
	}
	var n int
	if out, _ := run(t, x, "python3 -c '"+forks+"' 2>&1"); !ofRefused(out, &n) || n < 10 || n > 30 {
		t.Errorf("processes with a limit of 30: %q", out)
	}
	exported(t, x)
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	for _, proc := range p.Processes {
		if now, ok := testenv.ReadProcess(proc.PID); ok && now.Alive() {
			t.Errorf("%s outlives its bottle: %+v", proc.Role, now)
		}
	}
	if n := containers(t) + volumes(t); n != 0 {
		t.Errorf("%d containers and volumes are left", n)
	}
}

// ofRefused reports whether forks was refused a process for the limit, after n.
func ofRefused(out string, n *int) bool {
	var errno int
	_, err := fmt.Sscanf(out, "refused %d %d", &errno, n)
	return err == nil && unix.Errno(errno) == unix.EAGAIN
}

// exported pauses the bottle, and looks for what it wrote.
func exported(t *testing.T, x bottle.Bottle) {
	t.Helper()
	if err := x.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := x.ExportAll(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			t.Error("the file is not among the changes")
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Name != "./tmp/kept" {
			continue
		}
		if text, err := io.ReadAll(r); err != nil || string(text) != "kept\n" || h.Uid != 1000 {
			t.Errorf("%q of %d, %v", text, h.Uid, err)
		}
		return
	}
}

// TestS1KernelInside attacks what is around a command in a kernel of the container's own: the
// guest program, which is root there, and the container's root beside the bottle's.
func TestS1KernelInside(t *testing.T) {
	withKernel(t)
	x, err := Backend{}.Create(t.Context(), hostsSpec(t))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	out, _ := run(t, x, `for s in $(seq 1 64); do kill -$s 1 2>/dev/null; done; sleep 30 & kill -9 $!; wait $!; echo own $?`)
	if !strings.Contains(out, "own 137") {
		t.Errorf("its own process: %q", out)
	}
	for _, name := range []string{"environ", "mem", "fd/0", "fd/3", "root/carboy-guest", "cwd/carboy-guest"} {
		out, _ := run(t, x, "head -c 1 /proc/1/"+name+" >/dev/null && echo read; head -c 1 /proc/self/environ >/dev/null && echo own")
		if strings.Contains(out, "read\n") || !strings.Contains(out, "own\n") {
			t.Errorf("/proc/1/%s: %q", name, out)
		}
	}
	for _, try := range []string{"test -e /../../carboy-guest", "test -e /.carboy/stage", "mount -t tmpfs x /mnt", "chroot /tmp /bin/true", "mknod /tmp/n c 1 1", "chown 0 /tmp"} {
		if out, st := run(t, x, "PATH=$PATH:/usr/sbin; "+try+" 2>/dev/null && echo done; true"); out != "" || st.ExitCode() != 0 {
			t.Errorf("%s: %q %+v", try, out, st)
		}
	}
	if out, st := run(t, x, "test -e /bin/true && touch /tmp/own && echo lives"); out != "lives\n" || st.ExitCode() != 0 {
		t.Errorf("the bottle afterwards: %q %+v", out, st)
	}
}

// TestS1KernelByName: a runtime that has the name of one with a kernel, and is runc, makes no
// bottle: what the class promises is looked at, and not the name.
func TestS1KernelByName(t *testing.T) {
	runc := testenv.Need(t, "runc", "apt-get install runc")
	testenv.Root(t)
	link := t.TempDir() + "/runsc"
	if err := os.Symlink(runc, link); err != nil {
		t.Fatal(err)
	}
	withEngine(t, "--add-runtime", "runsc="+link)
	x, err := Backend{}.Create(context.Background(), emptySpec())
	if err == nil {
		x.Close()
		t.Error("a bottle was made that claims a kernel of its own")
	}
	if n := containers(t) + volumes(t); n != 0 {
		t.Errorf("%d containers and volumes are left", n)
	}
}
