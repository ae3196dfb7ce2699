package bottletest

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/testenv"
	"github.com/carboy/carboy/internal/wire"
)

func (s *suite) overlayLeavesHost(t *testing.T) {
	var ws string
	b := s.create(t, func(sp *bottle.Spec) {
		ws = sp.Workspace.Source
		write(t, ws+"/gone", "x")
		if err := os.MkdirAll(ws+"/dir/sub", 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, ws+"/dir/sub/f", "x")
	})
	before := tree(t, ws)
	b.sh(`echo more >> a.txt; rm gone; mv dir moved; echo new > new; chmod 600 a.txt; ln -s /etc/passwd link; mkdir d2
	test "$(cat a.txt)" = "hello
more"; test ! -e gone; test -f moved/sub/f`)
	want(t, "the host's directory", tree(t, ws), before)
}

// tree describes a directory: paths, modes and contents.
func tree(t testing.TB, root string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.Walk(root, func(path string, fi os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		out.WriteString(path + " " + fi.Mode().String())
		switch {
		case fi.Mode().IsRegular():
			c, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			out.Write(c)
		case fi.Mode()&os.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			out.WriteString(" -> " + to)
		}
		out.WriteString("\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func (s *suite) readOnlyMount(t *testing.T) {
	var dir string
	b := s.create(t, func(sp *bottle.Spec) {
		dir = shared(t, sp)
		write(t, dir+"/f", "host")
		sp.Mounts = append(sp.Mounts, bottle.Mount{Source: dir, Target: "/data/ro", Access: bottle.AccessReadOnly})
	})
	before := tree(t, dir)
	want(t, "reading", b.sh("cat /data/ro/f"), "host")
	for _, try := range []string{"echo x > f", "echo x > new", "rm f", "mkdir d", "mv f g", "chmod 777 f", "ln f h", "ln -s f s", "touch f", "truncate -s 0 f"} {
		if out := b.sh("cd /data/ro; if (" + try + ") 2>/dev/null; then echo done; fi"); out != "" {
			t.Errorf("%s succeeded in a read-only mount", try)
		}
	}
	want(t, "the host's directory", tree(t, dir), before)
	write(t, dir+"/later", "later")
	if s.lacking(t, bottle.CapLiveMounts, func(t *testing.T) {
		want(t, "a later file of the host", b.sh("test -e /data/ro/later || echo absent"), "absent")
	}) {
		return
	}
	// The host's writes are visible inside: the mount is the directory, not a
	// copy.
	want(t, "a later file of the host", b.sh("cat /data/ro/later"), "later")
}

func (s *suite) readWriteMount(t *testing.T) {
	if s.lacking(t, bottle.CapReadWrite, s.readWriteRefused) {
		return
	}
	var dir string
	b := s.create(t, func(sp *bottle.Spec) {
		dir = shared(t, sp)
		sp.Mounts = append(sp.Mounts, bottle.Mount{Source: dir, Target: "/data/rw", Access: bottle.AccessReadWrite})
	})
	b.sh("cd /data/rw; echo inside > f; mkdir d; mv f d/g; ln -s /etc/passwd link; chmod 640 d/g")
	got, err := os.ReadFile(dir + "/d/g")
	if err != nil || string(got) != "inside\n" {
		t.Errorf("what was written inside is %q on the host, %v", got, err)
	}
	fi, err := os.Lstat(dir + "/d/g")
	if err != nil {
		t.Fatal(err)
	}
	want(t, "mode", fi.Mode(), os.FileMode(0o640))
	// A set-user-id bit made inside must not appear on the host on a file of
	// anybody but the bottle's own user.
	b.sh("cd /data/rw; cp /bin/true s; chmod 6755 s || true")
	var st unix.Stat_t
	if err := unix.Stat(dir+"/s", &st); err != nil {
		t.Fatal(err)
	}
	owner := uint32(os.Getuid())
	if owner == 0 {
		owner = b.spec.HostUID
	}
	want(t, "owner on the host", st.Uid, owner)
}

// readWriteRefused checks that no bottle is made whose writes would not reach the host.
func (s *suite) readWriteRefused(t *testing.T) {
	spec := s.spec(t)
	spec.Mounts = append(spec.Mounts, bottle.Mount{Source: shared(t, spec), Target: "/data/rw", Access: bottle.AccessReadWrite})
	if b, err := s.backend().Create(t.Context(), spec); err == nil {
		b.Close()
		t.Error("a bottle with a mount that can't be written through was made")
	}
	spec = s.spec(t)
	spec.Workspace.Access = bottle.AccessReadWrite
	if b, err := s.backend().Create(t.Context(), spec); err == nil {
		b.Close()
		t.Error("a bottle with a workspace that can't be written through was made")
	}
	want(t, "processes left", testenv.Descendants(t, os.Getpid()), []testenv.Process{})
}

func (s *suite) fileMount(t *testing.T) {
	var dir string
	b := s.create(t, func(sp *bottle.Spec) {
		dir = shared(t, sp)
		write(t, dir+"/one", "one")
		write(t, dir+"/two", "two")
		sp.Mounts = append(sp.Mounts, bottle.Mount{Source: dir + "/one", Target: "/data/one", Access: bottle.AccessReadOnly})
	})
	want(t, "the file", b.sh("cat /data/one; ls /data"), "oneone\n")
	want(t, "beside it", b.sh("test ! -e /data/two; test ! -e /data/one/../two; echo absent"), "absent\n")
}

// swappedMount checks that the backend mounts the directory that the caller
// looked at.
func (s *suite) swappedMount(t *testing.T) {
	spec := s.spec(t)
	var st unix.Stat_t
	if err := unix.Stat(spec.Workspace.Source, &st); err != nil {
		t.Fatal(err)
	}
	spec.Workspace.Dev, spec.Workspace.Ino = st.Dev, st.Ino+1
	if b, err := s.backend().Create(t.Context(), spec); err == nil {
		b.Close()
		t.Error("another directory than the one that was looked at was mounted")
	}
	spec = s.spec(t)
	if err := unix.Stat(spec.Workspace.Source, &st); err != nil {
		t.Fatal(err)
	}
	spec.Workspace.Dev, spec.Workspace.Ino = st.Dev, st.Ino
	b, err := s.backend().Create(t.Context(), spec)
	if err != nil {
		t.Fatalf("the directory itself: %v", err)
	}
	b.Close()
}

// rootLayer checks that the root may be written to inside, as far as
// permissions go, and that the host's tools never change.
func (s *suite) rootLayer(t *testing.T) {
	b := s.create(t)
	before, err := os.Stat(s.guest)
	if err != nil {
		t.Fatal(err)
	}
	b.sh("echo x > /tmp/f; mkdir -p $HOME/.cache/x; test -w /tmp; (echo x >> " + guestPath + "; rm -f " + guestPath + ") 2>/dev/null || true")
	after, err := os.Stat(s.guest)
	if err != nil || after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("a file of the root was changed on the host: %v", err)
	}
	for _, path := range []string{"/usr/bin/true", "/bin/sh"} {
		// A backend's test may show copies, which are the user's own if a user made them.
		if out := b.sh("if [ ! -O " + path + " ] && (echo x >> " + path + ") 2>/dev/null; then echo written; fi"); out != "" {
			t.Errorf("%s, another user's, can be written to inside: %q", path, out)
		}
	}
}

func (s *suite) noWire(t *testing.T) {
	b := s.create(t)
	out := b.guestRun("connect", "tcp/198.18.0.3:80", "tcp/1.1.1.1:443", "udp/8.8.8.8:53", "tcp/[2606:4700:4700::1111]:443", "tcp/169.254.169.254:80", "udp/[ff02::1]:9")
	want(t, "without a wire", out, "")
	// /proc is there.
	b.sh("test -d /proc/self")
}

// proxyOnly checks that a backend without packets gives a bottle its proxy and no other
// way to this machine or beyond, and that others leave Spec.Proxy alone.
func (s *suite) proxyOnly(t *testing.T) {
	pair, err := wire.New()
	if err != nil {
		t.Fatal(err)
	}
	defer pair.Host.Close()
	var asked atomic.Int64
	tune := func(sp *bottle.Spec) {
		sp.Wire, sp.Net = pair.Bottle, wire.DefaultConfig()
		if s.backend().Capabilities().Frames {
			sp.Net = sp.Net.Framed()
		}
		sp.Proxy = func(l net.Listener) error {
			for {
				c, err := l.Accept()
				if err != nil {
					return nil
				}
				asked.Add(1)
				_, _ = io.WriteString(c, "from the proxy\n")
				_ = c.Close()
			}
		}
	}
	reaches := func(t *testing.T) {
		host, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer host.Close()
		b := s.create(t, tune)
		want(t, "beside the proxy", b.guestRun("connect", "tcp/"+host.Addr().String(), "tcp/127.0.0.31:3128", "tcp/1.1.1.1:443",
			"tcp/169.254.169.254:80", "tcp/198.18.0.3:80", "udp/8.8.8.8:53", "tcp/[2606:4700:4700::1111]:443", "udp/[ff02::1]:9"), "")
		addr, ok := strings.CutPrefix(strings.TrimSpace(b.sh("echo $http_proxy")), "http://")
		if !ok {
			t.Fatalf("http_proxy is %q", addr)
		}
		p := b.start("/bin/bash", "-c", "exec 3<>/dev/tcp/"+strings.Replace(addr, ":", "/", 1)+"; cat <&3")
		p.end()
		want(t, "the proxy", p.out.String()+p.err.String(), "from the proxy")
		b.Close()
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			t.Error("the proxy outlives its bottle")
		}
	}
	if s.lacking(t, bottle.CapPackets, reaches) {
		return
	}
	b := s.create(t, tune)
	want(t, "http_proxy", b.sh("echo $http_proxy"), "")
	if asked.Load() > 0 {
		t.Error("a backend with packets asks the proxy")
	}
}
