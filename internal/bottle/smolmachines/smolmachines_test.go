package smolmachines

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/rootfs"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/kvm"
	"github.com/carboy/carboy/internal/loopback"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/smolstate"
	"github.com/carboy/carboy/internal/testenv"
	"github.com/carboy/carboy/internal/wire"
)

// patience bounds every wait; it is reached only when something hangs.
var patience = testenv.Patience(4 * time.Minute)

// behave tells the stand-in how to be wrong.
func behave(t testing.TB, home string, b behaviour) {
	t.Helper()
	text, err := json.Marshal(b)
	if err == nil {
		err = os.WriteFile(filepath.Join(home, "smolvm.json"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// newSpec returns a plan with a workspace and no wire.
func newSpec(t testing.TB) *bottle.Spec {
	t.Helper()
	ws := t.TempDir()
	if err := os.WriteFile(filepath.Join(ws, "a.txt"), []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	spec := &bottle.Spec{
		ID: "R-1 test", Hostname: "test", User: bottle.User{UID: 1000, GID: 1000, Name: "carboy", Home: "/home/carboy"}, HostUID: 1_907_000_001, HostGID: 1_907_000_001,
		Limits:    bottle.Limits{Memory: 1 << 30, Pids: 200, Disk: 64 * mib, CPUs: 2, Output: mib, FileSize: 32 * mib, OpenFiles: 1024},
		Workspace: &bottle.Mount{Source: ws, Target: ws, Access: bottle.AccessOverlay},
	}
	var err error
	if spec.Root, err = rootfs.Host(rootfs.Options{User: spec.User, Hostname: spec.Hostname}); err != nil {
		t.Fatal(err)
	}
	return spec
}

// networked gives the plan a network that leads to a gateway with these routes. Every
// address leads to a server that says hello.
func networked(t testing.TB, spec *bottle.Spec, allow ...string) *gateway.Gateway {
	t.Helper()
	var rs []policy.Route
	for _, a := range allow {
		r, err := policy.ParseAllow(a)
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r.WithProtocol(policy.ProtocolTCP))
	}
	table, err := policy.Compile(rs...)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "hello from outside\n")
			c.Close()
		}
	}()
	pair, err := wire.New()
	if err != nil {
		t.Fatal(err)
	}
	gw, err := gateway.New(gateway.Config{
		Host: pair.Host, Table: table, Resolver: everywhere{},
		Dial: func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", l.Addr().String())
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- gw.Serve(context.Background()) }()
	t.Cleanup(func() { gw.Close(); <-served })
	spec.Wire, spec.Net, spec.Proxy = pair.Bottle, wire.DefaultConfig(), gw.ServeProxy
	return gw
}

// everywhere resolves each name to one address.
type everywhere struct{}

func (everywhere) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
}

func create(t testing.TB, b Backend, spec *bottle.Spec) *box {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	x, err := b.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return x.(*box)
}

// run runs a script in the bottle and returns what it wrote.
func run(t testing.TB, x *box, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p, err := x.Start(ctx, &bottle.Command{Args: []string{"/bin/bash", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: x.spec.Workspace.Target, Stdin: null, Stdout: w, Stderr: w})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	out, _ := io.ReadAll(r)
	r.Close()
	if _, err := p.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// left lists what a bottle must not leave: processes of the stand-in and rows.
func left(t testing.TB, home string) (out []string) {
	t.Helper()
	stats, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range stats {
		b, err := os.ReadFile(f)
		name, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "comm"))
		if err == nil && strings.Contains(string(b), "HOME="+home+"\x00") && strings.HasPrefix(string(name), standInName) {
			out = append(out, "process "+filepath.Dir(f))
		}
	}
	db, err := (&stand{home: home}).open()
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.Query(`SELECT name FROM vms`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		out = append(out, "machine "+name)
	}
	return out
}

func calls(t testing.TB, home string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(home, "calls"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

// Each thing that is missing has its own words, with what to do.
func TestPreflight(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	if _, err := os.Stat("/usr/lib/smolvm/" + standInName); err == nil {
		testenv.Missing(t, "a machine without smolvm", "apt-get remove smolvm: these tests use a stand-in")
	}
	h := &host{goos: "linux", asRoot: true, getenv: os.Getenv, kvm: func() error { return nil }, listeners: func() ([]loopback.Listener, error) { return nil, nil }}
	check := func() *bottle.UnavailableError {
		t.Helper()
		err := Backend{host: h}.Check(t.Context())
		var u *bottle.UnavailableError
		if err != nil && !errors.As(err, &u) {
			t.Fatalf("got %v", err)
		}
		return u
	}
	if u := check(); u == nil || !strings.Contains(u.Reason, "not installed") || !strings.Contains(u.Advice, "install.sh") || !strings.Contains(u.Advice, "--backend docker") {
		t.Errorf("without smolvm: %+v", u)
	}
	if err := os.Mkdir(filepath.Join(home, ".smolvm"), 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(home, ".smolvm", standInName)
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if u := check(); u == nil || strings.Contains(u.Reason, "not installed") || !strings.Contains(u.Error(), "not an ELF program") {
		t.Errorf("a script: %+v", u)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(program), copyFile(exe, program)); err != nil {
		t.Fatal(err)
	}
	if u := check(); u != nil {
		t.Errorf("with everything: %v", u)
	}
	h.kvm = func() error {
		return &kvm.Error{Reason: "no access", Advice: "join the group kvm"}
	}
	if u := check(); u == nil || u.Reason != "no access" || u.Advice != "join the group kvm" {
		t.Errorf("without KVM: %+v", u)
	}
	h.kvm = func() error { return errors.New("odd") }
	if u := check(); u == nil || !strings.Contains(u.Error(), "odd") {
		t.Errorf("odd KVM: %+v", u)
	}
	h.goos = "darwin"
	if u := check(); u != nil {
		t.Errorf("macOS has no KVM and needs none: %v", u)
	}
	h.goos, h.kvm = "linux", func() error { return nil }
	if os.Geteuid() == 0 {
		h.asRoot = false
		if u := check(); u == nil || !strings.Contains(u.Advice, "ordinary user") {
			t.Errorf("as root: %+v", u)
		}
		h.asRoot = true
	}
	any := func(network, addr string) loopback.Listener {
		return loopback.Listener{Network: network, Addr: netip.MustParseAddrPort(addr)}
	}
	h.listeners = func() ([]loopback.Listener, error) {
		return []loopback.Listener{any("tcp", "0.0.0.0:22"), any("tcp", "[::]:22"), any("udp", "0.0.0.0:53"), any("tcp", "127.0.0.1:5432")}, nil
	}
	if u := check(); u == nil || !strings.Contains(u.Reason, "tcp/22, udp/53") || strings.Contains(u.Reason, "5432") || !strings.Contains(u.Advice, ReachableEnv+"=tcp/22,udp/53") {
		t.Errorf("services everywhere: %+v", u)
	}
	t.Setenv(ReachableEnv, "tcp/22")
	if u := check(); u == nil || strings.Contains(u.Reason, "tcp/22") || !strings.Contains(u.Reason, "udp/53") {
		t.Errorf("one accepted: %+v", u)
	}
	t.Setenv(ReachableEnv, "tcp/22, udp/53")
	if u := check(); u != nil {
		t.Errorf("both accepted: %v", u)
	}
	h.listeners = func() ([]loopback.Listener, error) { return nil, errors.New("no table") }
	if u := check(); u == nil || !strings.Contains(u.Error(), "no table") {
		t.Errorf("unknown listeners: %+v", u)
	}
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}

// A machine whose row is not as asked for does not start, and nothing of it is left.
func TestS2RowRefusesStart(t *testing.T) {
	b, home := newBackend(t)
	for name, how := range map[string]behaviour{
		"no row":           {NoRow: true},
		"ports":            {Extra: map[string]any{"ports": []any{[]int{80, 80}}}},
		"another resolver": {Extra: map[string]any{"dns": "1.1.1.1"}},
		"no resolver":      {Extra: map[string]any{"dns": nil}},
		"host names":       {Extra: map[string]any{"dns_filter_hosts": []string{"example.com"}}},
		"another mount":    {Extra: map[string]any{"mounts": []any{[]any{"/etc", "/etc", true}}}},
		"a writable mount": {Extra: map[string]any{"mounts": []any{[]any{"/etc", "/etc", false}}}},
		"ssh agent":        {Extra: map[string]any{"ssh_agent": true}},
		"docker":           {Extra: map[string]any{"docker_socket": true}},
		"a socket":         {Extra: map[string]any{"published_sockets": []any{map[string]any{"guest_path": "/x"}}}},
		"init":             {Extra: map[string]any{"init": []string{"curl evil.com"}}},
		"network":          {Extra: map[string]any{"network_name": "shared"}},
		"secrets":          {Extra: map[string]any{"secret_refs": map[string]any{"KEY": map[string]any{"from_env": "KEY"}}}},
		"create fails":     {Fail: []string{"create"}},
	} {
		behave(t, home, how)
		if x, err := b.Create(t.Context(), newSpec(t)); err == nil {
			x.Close()
			t.Errorf("%s: created", name)
		} else if name != "create fails" && !strings.Contains(err.Error(), "the machine is not started") {
			t.Errorf("%s: %v", name, err)
		}
		if l := left(t, home); len(l) > 0 {
			t.Errorf("%s: left are %q", name, l)
		}
	}
	if c := calls(t, home); strings.Contains(c, "machine start") {
		t.Errorf("a machine was started:\n%s", c)
	}
}

func TestS2NoDatabaseRefusesStart(t *testing.T) {
	b, home := newBackend(t)
	behave(t, home, behaviour{NoDatabase: true})
	if _, err := b.Create(t.Context(), newSpec(t)); !errors.Is(err, smolstate.ErrNoDatabase) || strings.Contains(calls(t, home), "machine start") {
		t.Errorf("got %v", err)
	}
}

// Whatever create stores, the machine starts with its own address alone.
func TestS2RowIsCorrected(t *testing.T) {
	b, home := newBackend(t)
	behave(t, home, behaviour{Cidrs: json.RawMessage(`["0.0.0.0/0","1.1.1.1/32"]`), Extra: map[string]any{"unknown": "kept"}})
	x := create(t, b, newSpec(t))
	m, err := smolstate.Read(t.Context(), x.database, x.machine)
	if err != nil || !slices.Equal(m.Allowed, []string{"127.0.0.16/32"}) {
		t.Errorf("%+v, %v", m, err)
	}
	row, err := (&stand{home: home}).row(x.machine)
	if err != nil || row.PID == 0 {
		t.Errorf("%+v, %v", row, err)
	}
	p := x.Posture()
	if p.Isolation != bottle.IsolationContainer || len(p.Processes) != 1 || p.Processes[0].PID != m.PID || !p.Processes[0].NoNewPrivs || p.Trace {
		t.Errorf("posture %+v", p)
	}
	if got := run(t, x, "cat a.txt; stat -c %a /tmp /var/tmp; id -un; stat -c %U ."); got != "hello\n1777\n1777\ncarboy\ncarboy\n" {
		t.Errorf("inside: %q", got)
	}
	x.Close()
	if l := left(t, home); len(l) > 0 {
		t.Errorf("left are %q", l)
	}
	if c := calls(t, home); !strings.Contains(c, "machine stop --name "+x.machine) || !strings.Contains(c, "machine delete --name "+x.machine+" -f") {
		t.Errorf("calls:\n%s", c)
	}
}

// A machine that is not confined, or whose start changes what was agreed, runs no command.
func TestS2LiveMachineRefused(t *testing.T) {
	b, home := newBackend(t)
	for name, c := range map[string]struct {
		how  behaviour
		wire bool
		want string
	}{
		"reaches the host's loopback": {behaviour{Leaky: true}, false, "does not hold to allowed_cidrs"},
		"does not reach the proxy":    {behaviour{Cut: true}, true, "does not reach the bottle's proxy"},
		"changed by start":            {behaviour{StartChanges: map[string]any{"allowed_cidrs": []string{"127.0.0.16/32", "0.0.0.0/0"}}}, false, "changed when it started"},
		"has no process":              {behaviour{NoPID: true}, false, "can't be read"},
		"dies":                        {behaviour{BootDies: true}, false, "the machine"},
		"start fails":                 {behaviour{Fail: []string{"start"}}, false, "start fails here"},
	} {
		behave(t, home, c.how)
		spec := newSpec(t)
		if c.wire {
			networked(t, spec)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		x, err := b.Create(ctx, spec)
		cancel()
		if err == nil {
			x.Close()
			t.Errorf("%s: created", name)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if l := left(t, home); len(l) > 0 {
			t.Errorf("%s: left are %q", name, l)
		}
	}
}

// A bottle reaches what its routes name through the proxy at its own address, and nothing
// else: not the host, not another bottle. Another user's process can't use its proxy.
func TestS2OwnAddressOnly(t *testing.T) {
	b, home := newBackend(t)
	behave(t, home, behaviour{Slow: 2})
	host, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	one, two := newSpec(t), newSpec(t)
	gw := networked(t, one, "api.example.com:7000")
	networked(t, two, "other.example.com:7000")
	x, y := create(t, b, one), create(t, b, two)
	if x.lease.Addr.String() != "127.0.0.16" || y.lease.Addr.String() != "127.0.0.17" {
		t.Fatalf("addresses %v and %v", x.lease.Addr, y.lease.Addr)
	}
	ask := func(x *box, proxy, target string) string {
		return run(t, x, fmt.Sprintf(`exec 3<>/dev/tcp/%s/3128 && printf 'CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n' >&3 && cat <&3`, proxy, target, target))
	}
	if got := ask(x, "127.0.0.16", "api.example.com:7000"); !strings.Contains(got, "200 Connection established") || !strings.HasSuffix(got, "hello from outside\n") {
		t.Errorf("an allowed name: %q", got)
	}
	for _, no := range []string{"other.example.com:7000", "api.example.com:443", "127.0.0.1:22", "127.0.0.17:3128", "169.254.169.254:80"} {
		if got := ask(x, "127.0.0.16", no); !strings.Contains(got, "403 Forbidden") || strings.Contains(got, "hello") {
			t.Errorf("%s: %q", no, got)
		}
	}
	if got := ask(x, "127.0.0.17", "other.example.com:7000"); strings.Contains(got, "HTTP") {
		t.Errorf("another bottle's proxy: %q", got)
	}
	if got := run(t, x, fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%d && echo reached", host.Addr().(*net.TCPAddr).Port)); strings.Contains(got, "reached") {
		t.Errorf("the host's loopback: %q", got)
	}
	if got := run(t, x, `for a in 1.1.1.1/443 169.254.169.254/80 198.18.0.3/80; do timeout 5 bash -c "exec 3<>/dev/tcp/$a" 2>/dev/null && echo reached $a; done; timeout 5 bash -c 'echo x >/dev/udp/8.8.8.8/53' 2>/dev/null && echo udp; env | grep -i _proxy= | sort`); strings.Contains(got, "reached") || strings.Contains(got, "udp") ||
		!strings.Contains(got, "HTTPS_PROXY=http://127.0.0.16:3128\n") || !strings.Contains(got, "all_proxy=socks5h://127.0.0.16:3128\n") || !strings.Contains(got, "no_proxy=localhost,127.0.0.1,::1,127.0.0.16\n") {
		t.Errorf("directly: %q", got)
	}
	if s := gw.Summary(); len(s.Conns) == 0 {
		t.Error("the gateway recorded nothing")
	}
	for _, uid := range []uint32{0, 65534} {
		c := exec.CommandContext(t.Context(), "/bin/bash", "-c", `exec 3<>/dev/tcp/127.0.0.16/3128 && printf 'CONNECT api.example.com:7000 HTTP/1.1\r\n\r\n' >&3; cat <&3`)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, _ := c.CombinedOutput()
		if got := strings.Contains(string(out), "hello from outside"); got != (uid == 0) {
			t.Errorf("a process of user %d: %q", uid, out)
		}
	}
	x.Close()
	if _, err := net.Dial("tcp", "127.0.0.16:3128"); err == nil {
		t.Error("the proxy outlives its bottle")
	}
}

// What smolvm does not do at the end is a warning; the machine ends all the same, and the
// next bottle clears it.
func TestCloseOnlyWarns(t *testing.T) {
	b, home := newBackend(t)
	x := create(t, b, newSpec(t))
	behave(t, home, behaviour{Fail: []string{"stop", "delete"}})
	if err := x.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if l := left(t, home); len(l) != 1 || l[0] != "machine "+x.machine {
		t.Errorf("left are %q", l)
	}
	behave(t, home, behaviour{})
	y := create(t, b, newSpec(t))
	if l := left(t, home); y.lease.Addr != x.lease.Addr || slices.Contains(l, "machine "+x.machine) {
		t.Errorf("the next bottle is at %v, and left are %q", y.lease.Addr, l)
	}
	y.Close()
	if err := x.remove(t.Context(), x.machine); err != nil {
		t.Errorf("removed twice: %v", err)
	}
	if l := left(t, home); len(l) != 0 {
		t.Errorf("left are %q", l)
	}
}

// killed is set in the environment of a carboy that makes a bottle and waits to be killed.
const killed = "CARBOY_TEST_SMOLMACHINES_KILLED"

// TestS5Killed: when carboy is killed, its machine ends, and the next bottle finds and
// deletes it before it has the address.
func TestS5Killed(t *testing.T) {
	if os.Getenv(killed) != "" {
		b := Backend{host: &host{goos: "linux", asRoot: true, getenv: os.Getenv, kvm: func() error { return nil }, listeners: func() ([]loopback.Listener, error) { return nil, nil }}}
		x, err := b.Create(context.Background(), newSpec(t))
		fmt.Println("made", x != nil, err)
		io.Copy(io.Discard, os.Stdin)
		return
	}
	b, home := newBackend(t)
	c := exec.Command(os.Args[0], "-test.run=^TestS5Killed$")
	c.Env = append(os.Environ(), killed+"=1")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "made true <nil>\n" {
		t.Fatalf("it says %q, %v", line, err)
	}
	before := left(t, home)
	c.Process.Kill()
	if !testenv.Poll(patience, func() bool { return len(left(t, home)) == 1 }) {
		t.Fatalf("left are %q, before %q", left(t, home), before)
	}
	x := create(t, b, newSpec(t))
	if x.lease.Addr.String() != "127.0.0.16" {
		t.Errorf("address %v", x.lease.Addr)
	}
	if l := left(t, home); slices.Contains(l, before[len(before)-1]) {
		t.Errorf("left are %q, of before %q", l, before)
	}
}

func TestMachineNames(t *testing.T) {
	seen := map[string]bool{}
	for _, id := range []string{"", "r-1", "R 1/2", strings.Repeat("long", 30), "ü", "---", "20261127-180000-abcd"} {
		n, err := machineName(id)
		if err != nil || len(n) > 48 || strings.Trim(n, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || strings.Contains(n, "--") || seen[n] {
			t.Errorf("%q: %q, %v", id, n, err)
		}
		seen[n] = true
	}
	a, _ := machineName("x")
	if b, _ := machineName("x"); a == b {
		t.Error("two machines have one name")
	}
}

// The user's numbers are those that the root itself has for the name.
func TestOwnersByName(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte("root:x:0:0::/:/bin/sh\nnode:x:1234:1235::/home/node:/bin/sh\nbroken\nevil:x:0:0::/:/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	entry := bottle.Entry{Path: "/etc/passwd", Content: []byte("node:x:77:78::/:/bin/sh\n")}
	for _, c := range []struct {
		name     string
		entries  []bottle.Entry
		uid, gid uint32
	}{{"node", nil, 1234, 1235}, {"other", nil, 5, 6}, {"evil", nil, 5, 6}, {"node", []bottle.Entry{entry}, 77, 78}} {
		spec := &bottle.Spec{Root: bottle.Root{Dir: dir, Entries: c.entries}, User: bottle.User{UID: 5, GID: 6, Name: c.name}}
		if uid, gid := userOf(spec); uid != c.uid || gid != c.gid {
			t.Errorf("%s: %d, %d", c.name, uid, gid)
		}
	}
}

func TestAdmit(t *testing.T) {
	for name, change := range map[string]func(*bottle.Spec){
		"no limits": func(s *bottle.Spec) { s.Limits = bottle.Limits{} },
		"thaw":      func(s *bottle.Spec) { s.Thaw = &bottle.Thaw{} },
		"write": func(s *bottle.Spec) {
			s.Mounts = []bottle.Mount{{Source: "/x", Target: "/x", Access: bottle.AccessReadWrite}}
		},
		"no proxy": func(s *bottle.Spec) { s.Wire = os.Stdin },
	} {
		s := &bottle.Spec{Limits: bottle.Limits{Memory: 1, Pids: 1, Disk: 1, CPUs: 1, Output: 1, FileSize: 1, OpenFiles: 1}}
		if err := admit(s); err != nil {
			t.Fatal(err)
		}
		change(s)
		if err := admit(s); err == nil {
			t.Errorf("%s: admitted", name)
		}
	}
}

// What a machine answers is hostile.
func TestDialAnswers(t *testing.T) {
	const proxy = "127.0.0.16:3128"
	good := proxy + " open\n127.0.0.1:9 closed\n[::1]:9 closed\n100.96.0.1:9 closed\n"
	x := &box{spec: &bottle.Spec{Wire: os.Stdin}}
	if err := x.judgeDials(good, proxy, 0); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct {
		out  string
		hits int
	}{
		"it lies about the canary": {good, 1},
		"another is open":          {strings.Replace(good, "[::1]:9 closed", "[::1]:9 open", 1), 0},
		"the proxy is closed":      {strings.Replace(good, "open", "closed", 1), 0},
		"too few":                  {proxy + " open\n", 0},
		"too many":                 {good + proxy + " open\n", 0},
		"nothing":                  {"", 0},
		"noise":                    {"\x1b[2J\n" + good, 0},
	} {
		if err := x.judgeDials(c.out, proxy, c.hits); err == nil || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Names in a workspace are bytes: those that are not UTF-8 go in, directories too.
func TestNamesOfAnyBytes(t *testing.T) {
	spec := newSpec(t)
	ws := spec.Workspace.Source
	if err := errors.Join(os.MkdirAll(filepath.Join(ws, "d\xfe/e"), 0o755), os.WriteFile(filepath.Join(ws, "d\xfe/e/f\xff"), []byte("x"), 0o644)); err != nil {
		t.Fatal(err)
	}
	f, err := gather(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	for _, name := range []string{"d\xfe", "d\xfe/e", "d\xfe/e/f\xff", "a.txt"} {
		if _, ok := f.at[layerDir+ws+"/"+name]; !ok {
			t.Errorf("%q is missing", name)
		}
	}
	if err := f.stream(io.Discard); err != nil {
		t.Error(err)
	}
}

// The guest program is written once. One that is not as it was written is not run.
func TestGuestProgram(t *testing.T) {
	home := t.TempDir()
	h := &host{getenv: func(k string) string { return map[string]string{"XDG_STATE_HOME": home}[k] }}
	dir, err := h.guestProgram()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := h.guestProgram(); again != dir || err != nil {
		t.Errorf("%s, %v", again, err)
	}
	file := filepath.Join(dir, filepath.Base(hostexec.SmolvmGuest))
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(file, b, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := h.guestProgram(); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("changed: %v", err)
	}
}
