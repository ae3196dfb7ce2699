package loopback

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/testenv"
)

// holder is set in the environment of a process that holds a lease until it is killed.
const holder = "CARBOY_TEST_LOOPBACK_HOLDER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holder); dir != "" {
		l, err := quiet(dir, nil).Take(context.Background(), fmt.Sprint("holder ", os.Getpid()))
		fmt.Println(l, err)
		io.Copy(io.Discard, os.Stdin) // until killed, or the test is gone
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// String returns the address, for the output of holders.
func (l *Lease) String() string { return l.Addr.String() }

// quiet returns the pool on a machine where nothing listens.
func quiet(dir string, clear func(context.Context, string) error) *Pool {
	return Open(dir, func() ([]Listener, error) { return nil, nil }, clear)
}

func take(t *testing.T, p *Pool, owner string) *Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience(time.Minute))
	defer cancel()
	l, err := p.Take(ctx, owner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func want(t *testing.T, l *Lease, addr string) {
	t.Helper()
	if l.Addr.String() != addr {
		t.Errorf("got %v, want %s", l.Addr, addr)
	}
}

// Two bottles never have one address, the lowest free one is taken, and a lease that
// ended is lent again.
func TestLowestFree(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	p := quiet(dir, nil)
	a, b, c := take(t, p, "a"), take(t, p, "b"), take(t, quiet(dir, nil), "c")
	want(t, a, "127.0.0.16")
	want(t, b, "127.0.0.17")
	want(t, c, "127.0.0.18")
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	want(t, take(t, p, "d"), "127.0.0.17")
	want(t, take(t, p, "e"), "127.0.0.19")
	entries, err := p.read()
	if err != nil || len(entries) != 4 {
		t.Fatalf("register: %v, %v", entries, err)
	}
	for _, path := range []string{dir, p.register(), filepath.Join(dir, "127.0.0.16")} {
		fi, err := os.Stat(path)
		if err != nil || fi.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", path, fi.Mode(), err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".leases*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// An address that was left is lent again when what is there was cleared.
func TestLeave(t *testing.T) {
	var cleared []string
	p := quiet(t.TempDir(), func(_ context.Context, o string) error {
		cleared = append(cleared, o)
		return nil
	})
	l := take(t, p, "first")
	for range 2 {
		if err := l.Leave(); err != nil {
			t.Error(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	want(t, take(t, p, "second"), "127.0.0.16")
	if !slices.Equal(cleared, []string{"first"}) {
		t.Errorf("cleared %q", cleared)
	}
}

func TestExhausted(t *testing.T) {
	p := quiet(t.TempDir(), nil)
	var all []*Lease
	for i := range 16 {
		all = append(all, take(t, p, fmt.Sprint("bottle ", i)))
	}
	want(t, all[15], "127.0.0.31")
	_, err := p.Take(t.Context(), "one more")
	if !errors.Is(err, ErrExhausted) || !strings.Contains(err.Error(), "carboy list") {
		t.Errorf("got %v", err)
	}
	all[3].Close()
	want(t, take(t, p, "one more"), "127.0.0.19")
}

// An address at which another program listens is not lent; one that listens everywhere
// does not use the address up.
func TestInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.16:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	u, err := net.ListenPacket("udp", "127.0.0.17:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	any, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer any.Close()
	found, err := Listeners()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"tcp " + l.Addr().String(), "udp " + u.LocalAddr().String(), "tcp " + any.Addr().String()} {
		if !slices.ContainsFunc(found, func(l Listener) bool { return l.Network+" "+l.Addr.String() == want }) {
			t.Errorf("no %s in %v", want, found)
		}
	}
	got := take(t, Open(t.TempDir(), Listeners, nil), "bottle")
	if slices.ContainsFunc(found, func(l Listener) bool { return l.Addr.Addr() == got.Addr }) || got.Addr.Compare(netip.MustParseAddr("127.0.0.18")) < 0 {
		t.Errorf("lent %v, where something listens", got.Addr)
	}
	p := Open(t.TempDir(), func() ([]Listener, error) { return nil, errors.New("no table") }, nil)
	if _, err := p.Take(t.Context(), "bottle"); err == nil || !strings.Contains(err.Error(), "no table") {
		t.Errorf("lent without knowing what listens: %v", err)
	}
}

// A process that is killed gives its address back, once what it left is cleared.
func TestCrashFrees(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holder+"="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "127.0.0.16 <nil>") {
		t.Fatalf("holder says %q, %v", line, err)
	}
	owner := fmt.Sprint("holder ", cmd.Process.Pid)
	var cleared []string
	fails := errors.New("still runs")
	p := quiet(dir, func(_ context.Context, o string) error {
		cleared = append(cleared, o)
		return fails
	})
	want(t, take(t, p, "while it lives"), "127.0.0.17")
	if len(cleared) > 0 {
		t.Errorf("cleared %q, which lives", cleared)
	}
	cmd.Process.Kill()
	cmd.Wait()
	want(t, take(t, p, "while its machine lives"), "127.0.0.18")
	fails = nil
	want(t, take(t, p, "after it"), "127.0.0.16")
	if !slices.Equal(cleared, []string{owner, owner}) {
		t.Errorf("cleared %q", cleared)
	}
}

// If nothing but uncleared addresses is free, the error says what is in the way.
func TestStuckIsNamed(t *testing.T) {
	dir := t.TempDir()
	p := quiet(dir, func(context.Context, string) error { return errors.New("won't stop") })
	var entries []entry
	for a := first; a.Compare(last) <= 0; a = a.Next() {
		entries = append(entries, entry{Addr: a, Owner: "old-" + a.String()})
	}
	if err := p.write(entries); err != nil {
		t.Fatal(err)
	}
	_, err := p.Take(t.Context(), "bottle")
	if !errors.Is(err, ErrExhausted) || !strings.Contains(err.Error(), `"old-127.0.0.20" left there can't be ended: won't stop`) {
		t.Errorf("got %v", err)
	}
}

// Many at once: all get different addresses.
func TestManyAtOnce(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	got := map[netip.Addr]bool{}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			l := take(t, quiet(dir, nil), fmt.Sprint("bottle ", i))
			mu.Lock()
			defer mu.Unlock()
			if got[l.Addr] {
				t.Errorf("%v is lent twice", l.Addr)
			}
			got[l.Addr] = true
		})
	}
	wg.Wait()
	if len(got) != 16 {
		t.Errorf("%d addresses", len(got))
	}
}

func TestWaitsForTheLock(t *testing.T) {
	p := quiet(t.TempDir(), nil)
	unlock, err := p.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Take(ctx, "bottle"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	unlock()
	take(t, p, "bottle")
}

// A register that can't be trusted lends nothing, and the error names the file.
func TestBadRegister(t *testing.T) {
	for name, content := range map[string]string{
		"not json":      "{",
		"other address": `[{"address":"127.0.0.1","owner":"x"}]`,
		"other kind":    `[{"address":"::1","owner":"x"}]`,
		"twice":         `[{"address":"127.0.0.16","owner":"x"},{"address":"127.0.0.16","owner":"y"}]`,
		"no owner":      `[{"address":"127.0.0.16"}]`,
		"long owner":    `[{"address":"127.0.0.16","owner":"` + strings.Repeat("x", maxOwner+1) + `"}]`,
		"huge":          "[" + strings.Repeat(" ", maxRegister) + "]",
	} {
		p := quiet(t.TempDir(), nil)
		if err := os.WriteFile(p.register(), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Take(t.Context(), "bottle"); err == nil || !strings.Contains(err.Error(), p.register()) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// Links, foreign directories and files of other kinds are refused.
func TestPrivateFiles(t *testing.T) {
	for name, arrange := range map[string]func(dir string) error{
		"register is a link": func(dir string) error { return os.Symlink("/dev/null", filepath.Join(dir, "leases.json")) },
		"lock is a link":     func(dir string) error { return os.Symlink("/dev/null", filepath.Join(dir, "lock")) },
		"lease is a link":    func(dir string) error { return os.Symlink("/dev/null", filepath.Join(dir, "127.0.0.16")) },
		"lease is a directory": func(dir string) error {
			return os.Mkdir(filepath.Join(dir, "127.0.0.16"), 0o700)
		},
		"others may write": func(dir string) error { return os.Chmod(dir, 0o777) },
	} {
		dir := t.TempDir()
		if err := arrange(dir); err != nil {
			t.Fatal(err)
		}
		if l, err := quiet(dir, nil).Take(t.Context(), "bottle"); err == nil {
			t.Errorf("%s: lent %v", name, l)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if l, err := quiet(link, nil).Take(t.Context(), "bottle"); err == nil {
		t.Errorf("the directory is a link: lent %v", l)
	}
	for _, owner := range []string{"", strings.Repeat("x", maxOwner+1)} {
		if _, err := quiet(t.TempDir(), nil).Take(t.Context(), owner); err == nil {
			t.Errorf("owner of %d bytes", len(owner))
		}
	}
}

// The owner of the other end of a connection is found.
func TestOwnerOf(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	local, remote := c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
	if uid, ok, err := OwnerOf(local, remote); err != nil || !ok || uid != os.Geteuid() {
		t.Errorf("got %d, %t, %v", uid, ok, err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if uid, ok, err := OwnerOf(local, remote); err != nil || !ok || uid != os.Geteuid() {
		t.Errorf("half-closed: %d, %t, %v", uid, ok, err)
	}
	c.Close()
	if uid, ok, err := OwnerOf(local, remote); err != nil || ok {
		t.Errorf("closed: %d, %t, %v", uid, ok, err)
	}
	if _, ok, err := OwnerOf(local, netip.MustParseAddrPort("127.0.0.1:1")); err != nil || ok {
		t.Errorf("a connection that is not there: %t, %v", ok, err)
	}
}

func TestTables(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	got, err := sockets(strings.NewReader(head+
		"   0: 1000007F:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1\n"+
		"   1: 0000000000000000FFFF00001100007F:0051 00000000000000000000000000000000:0000 0A 0:0 00:0 0  0        0 1 1\n"+
		"   2: 1000007F:0052 0100007F:1234 01 00000000:00000000 00:00000000 00000000  1000        0 1 1\n"), stateListen)
	if err != nil || len(got) != 2 || got[0].local.String() != "127.0.0.16:80" || got[0].uid != 1000 || unmapped(got[1].local).String() != "127.0.0.17:81" {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"1000007F 0:0", "1000007:0050 00000000:0000", "1000007F:fffff 00000000:0000", "zz00007F:0050 00000000:0000"} {
		if got, err := sockets(strings.NewReader("0: "+bad+" 0A 0:0 00:0 0 1000 0 1 1\n"), stateListen); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}
