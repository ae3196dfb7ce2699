package microvm

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/rootfs"
	"github.com/carboy/carboy/internal/testenv"
	"github.com/carboy/carboy/internal/wire"
)

// plan returns a spec of a bottle with a workspace that holds a.txt.
func plan(t testing.TB) *bottle.Spec {
	t.Helper()
	ws := t.TempDir()
	if err := os.WriteFile(filepath.Join(ws, "a.txt"), []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	u := bottle.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Name: "carboy", Home: "/home/carboy"}
	spec := &bottle.Spec{
		ID: "machine", Hostname: "machine", Workspace: &bottle.Mount{Source: ws, Target: ws, Access: bottle.AccessOverlay},
		Limits: bottle.Limits{Memory: 256 * mib, Pids: 100, Disk: 64 * mib, CPUs: 1, Output: mib, FileSize: 32 * mib, OpenFiles: 256},
	}
	if u.UID == 0 {
		u.UID, u.GID = 1000, 1000
		spec.HostUID, spec.HostGID = 1_907_000_001, 1_907_000_001
	}
	spec.User = u
	root, err := rootfs.Host(rootfs.Options{User: u, Hostname: spec.Hostname})
	if err != nil {
		t.Fatal(err)
	}
	spec.Root = root
	return spec
}

// patience bounds waits; it is reached only when something hangs.
var patience = testenv.Patience(10 * time.Minute)

func create(t testing.TB, spec *bottle.Spec) bottle.Bottle {
	t.Helper()
	b := smallBackend(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	x, err := b.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return x
}

// run runs a script and returns what it wrote.
func run(t testing.TB, x bottle.Bottle, script string) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	out := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(r)
		r.Close()
		out <- string(b)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p, err := x.Start(ctx, &bottle.Command{Args: []string{"/bin/bash", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/", Stdin: null, Stdout: w, Stderr: w})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	return <-out
}

// TestWire: a machine's connections travel over the wire as Ethernet frames, by IPv4 and
// IPv6, and nothing else leads out.
func TestWire(t *testing.T) {
	pair, err := wire.New()
	if err != nil {
		t.Fatal(err)
	}
	defer pair.Close()
	cfg := wire.DefaultConfig().Framed()
	link, err := wire.NewLink(pair.Host, cfg, func([]byte, int) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	defer link.Shutdown()
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	defer s.Destroy()
	if err := s.CreateNIC(1, link); err != nil {
		t.Fatal(err)
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}, {Destination: header.IPv6EmptySubnet, NIC: 1}})
	for _, a := range []struct {
		addr  netip.Addr
		proto tcpip.NetworkProtocolNumber
	}{{cfg.Gateway4, ipv4.ProtocolNumber}, {cfg.Gateway6, ipv6.ProtocolNumber}} {
		at := tcpip.AddrFromSlice(a.addr.AsSlice())
		if err := s.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: a.proto, AddressWithPrefix: at.WithPrefix()}, stack.AddressProperties{}); err != nil {
			t.Fatal(err)
		}
		ln, err := gonet.ListenTCP(s, tcpip.FullAddress{NIC: 1, Addr: at, Port: 7}, a.proto)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		go func() { // ends with the listener
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go func() { defer c.Close(); io.Copy(c, c) }()
			}
		}()
	}
	spec := plan(t)
	spec.Wire, spec.Net = pair.Bottle, cfg
	x := create(t, spec)
	for _, to := range []netip.Addr{cfg.Gateway4, cfg.Gateway6} {
		out := run(t, x, `exec 3<>/dev/tcp/`+to.String()+`/7 && echo over-the-wire >&3 && read -r line <&3 && echo "$line"`)
		if out != "over-the-wire\n" {
			t.Errorf("through %v: %q", to, out)
		}
	}
	out := run(t, x, `exec 3<>/dev/tcp/`+cfg.Gateway4.String()+`/7; head -c 3000000 /dev/zero | tr '\0' x >&3 & exec 3<>/dev/tcp/`+cfg.Gateway4.String()+`/7; (head -c 3000000 /dev/zero | tr '\0' x >&3) & head -c 3000000 <&3 | wc -c`)
	if strings.TrimSpace(out) != "3000000" {
		t.Errorf("3 MB there and back: %q", out)
	}
	if out := run(t, x, "ls /sys/class/net; cat /sys/class/net/*/mtu"); !strings.Contains(out, "lo\n") || len(strings.Fields(out)) != 4 || !strings.Contains(out, "65521") {
		t.Errorf("network cards: %q", out)
	}
	if out := run(t, x, `exec 3<>/dev/tcp/`+cfg.Gateway4.String()+`/9`); !strings.Contains(out, "refused") {
		t.Errorf("where nobody listens: %q", out)
	}
}

// TestMachineHolds: what an attacker inside, who is an ordinary user, can't do in a machine,
// and what it does not find there.
func TestMachineHolds(t *testing.T) {
	x := create(t, plan(t))
	out := run(t, x, `
for f in /dev/vda /dev/vdb /dev/vport0p1 /dev/mem /dev/port /dev/kmsg; do test -e $f && echo "device $f"; done
(echo x > /proc/sys/kernel/core_pattern) 2>/dev/null && echo "core pattern"
(echo b > /proc/sysrq-trigger) 2>/dev/null && echo sysrq
(echo x > /sys/power/state) 2>/dev/null && echo power
mount -t tmpfs x /mnt 2>/dev/null && echo mount
mount -o remount,rw,dev,suid / 2>/dev/null && echo remount
cat /proc/1/environ 2>/dev/null && echo environ
ls /lower /scratch /modules /init /newroot 2>/dev/null
test -u /bin/mount && echo set-id
kill -9 1 2>/dev/null && echo killed
cat /proc/kallsyms 2>/dev/null | head -1 | grep -v ^0000000000000000 && echo addresses
dd if=/dev/zero of=/etc/passwd count=1 2>/dev/null && echo passwd
grep -q '^Seccomp:.*2' /proc/self/status || echo unfiltered
id -u; echo end`)
	want := "1000"
	if os.Getuid() != 0 {
		want = strconv.Itoa(os.Getuid())
	}
	if out != want+"\nend\n" {
		t.Errorf("inside:\n%s", out)
	}
}

// TestWorkspaceReplaced: a workspace that the command has put a link in place of is exported
// as a link. Nothing of where it leads is.
func TestWorkspaceReplaced(t *testing.T) {
	spec := plan(t)
	spec.Workspace.Target = spec.User.Home + "/work"
	x := create(t, spec)
	if out := run(t, x, "cd "+spec.User.Home+"; rm -r work && ln -s / work && readlink work"); out != "/\n" {
		t.Fatalf("inside: %q", out)
	}
	if err := x.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	if err := x.Export(t.Context(), &stream); err != nil {
		t.Fatal(err)
	}
	var got []string
	for tr := tar.NewReader(&stream); ; {
		h, err := tr.Next()
		if err != nil {
			break
		}
		got = append(got, h.Name+h.Linkname)
	}
	if want := "./home/ ./home/carboy/ ./home/carboy/work/"; strings.Join(got, " ") != want {
		t.Errorf("exported: %q", got)
	}
}

// TestMonitorIsBounded: the host's kernel limits what QEMU can take, and filters its calls
// twice.
func TestMonitorIsBounded(t *testing.T) {
	spec := plan(t)
	x := create(t, spec)
	dir := fmt.Sprintf("/proc/%d/", x.Posture().Processes[0].PID)
	limits, err := os.ReadFile(dir + "limits")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(limits)) {
		for _, name := range []string{"Max address space", "Max file size", "Max open files", "Max core file size"} {
			if v, ok := strings.CutPrefix(line, name); ok && strings.Fields(v)[1] == "unlimited" {
				t.Error(line)
			}
		}
	}
	if want := fmt.Sprintf("Max file size             %d ", spec.Limits.Disk); !strings.Contains(string(limits), want) {
		t.Errorf("no %q in:\n%s", want, limits)
	}
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		name, v, _ := strings.Cut(line, ":")
		n, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(v), " kB"))
		switch name {
		case "Seccomp_filters":
			if n < 2 {
				t.Errorf("%d filters", n)
			}
		case "VmPeak", "Threads":
			t.Logf("%s", strings.TrimSpace(line))
		}
	}
}

// TestReadWriteRefused: a mount that would write to this machine is refused with what to
// do instead, before anything starts.
func TestReadWriteRefused(t *testing.T) {
	b := smallBackend(t)
	spec := plan(t)
	spec.Workspace.Access = bottle.AccessReadWrite
	_, err := b.Create(t.Context(), spec)
	var u *bottle.UnavailableError
	if !errors.As(err, &u) || !strings.Contains(err.Error(), spec.Workspace.Source) || !strings.Contains(u.Advice, "overlay") {
		t.Errorf("a writable workspace: %v", err)
	}
}

// TestKilled: when QEMU is killed the bottle is gone, and calls say so.
func TestKilled(t *testing.T) {
	x := create(t, plan(t))
	pid := x.Posture().Processes[0].PID
	p, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	<-x.Done()
	if err := x.Export(t.Context(), &bytes.Buffer{}); !errors.Is(err, bottle.ErrGone) {
		t.Errorf("export: %v", err)
	}
	if left := testenv.Descendants(t, os.Getpid()); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
