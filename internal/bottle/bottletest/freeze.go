package bottletest

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/testenv"
)

// imageFiles opens the files of an image in dir.
func (b *box) imageFiles(dir string, flag int) (out []*os.File) {
	t := b.t.(*testing.T)
	t.Helper()
	for _, name := range b.backend.(bottle.Freezes).ImageNames() {
		f, err := os.OpenFile(filepath.Join(dir, name), flag, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, f)
	}
	return out
}

// noFreezer checks that a bottle whose processes can't be kept does not claim it.
func (s *suite) noFreezer(t *testing.T) {
	b := s.create(t)
	if _, ok := b.Bottle.(bottle.Freezer); ok {
		t.Error("its bottles are Freezers")
	}
	if _, ok := b.backend.(bottle.Freezes); ok {
		t.Error("it has names for an image")
	}
}

// sameWorkspace returns the box's workspace for the bottle that follows it.
func (b *box) sameWorkspace() *bottle.Mount {
	ws := *b.spec.Workspace
	ws.Tree = nil
	return &ws
}

// freeze freezes b and returns the Thaw for it, without streams.
func (b *box) freeze(dir string) *bottle.Thaw {
	t := b.t.(*testing.T)
	t.Helper()
	if err := b.Pause(b.ctx); err != nil {
		t.Fatal(err)
	}
	image := b.imageFiles(dir, os.O_CREATE|os.O_EXCL|os.O_WRONLY)
	frozen, err := b.Bottle.(bottle.Freezer).Freeze(b.ctx, image)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range image {
		f.Close()
	}
	b.Close()
	return &bottle.Thaw{Frozen: frozen, Image: b.imageFiles(dir, os.O_RDONLY)}
}

// thaw restores a bottle on the same spec; p's streams are the command's.
func (s *suite) thaw(t *testing.T, old *box, th *bottle.Thaw) (*box, *proc) {
	t.Helper()
	p := &proc{}
	var ends [6]*os.File
	for i := 0; i < 6; i += 2 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		ends[i], ends[i+1] = r, w
	}
	p.stdin = ends[1]
	th.Stdin, th.Stdout, th.Stderr = ends[0], ends[3], ends[5]
	for i, to := range []*testenv.Buffer{&p.out, &p.err} {
		r := ends[2+2*i]
		p.copied.Add(1)
		go func() { // ends when the last writer inside is gone
			defer p.copied.Done()
			io.Copy(to, r)
			r.Close()
		}()
	}
	b := s.create(t, func(spec *bottle.Spec) {
		spec.Workspace, spec.Thaw = old.sameWorkspace(), th
	})
	p.b = b
	var err error
	if p.Process, err = b.Bottle.(bottle.Freezer).Thawed(b.ctx); err != nil {
		t.Fatal(err)
	}
	return b, p
}

func (s *suite) freezer(t *testing.T) {
	if _, ok := s.create(t).Bottle.(bottle.Freezer); !ok {
		t.Skip("this backend keeps no processes")
	}
}

const frozenScript = `
	n=41; echo kept >kept.txt; exec 5>open.txt; echo early >&5
	sleep 1000 & job=$!
	trap 'echo caught' USR1
	echo ready
	while :; do
		read -r line || continue # a signal ends it
		case $line in
		count) n=$((n+1)); echo "count $n" ;;
		file) cat kept.txt; echo late >&5; cat open.txt ;;
		job) kill -0 $job && echo "job lives" ;;
		name) hostname ;;
		end) kill $job; exit 7 ;;
		esac
	done`

// freezeThaw checks, twice, that a shell goes on where it was, with its memory,
// its files, its job, and new streams.
func (s *suite) freezeThaw(t *testing.T) {
	if s.lacking(t, bottle.CapLiveFreeze, s.noFreezer) {
		return
	}
	s.freezer(t)
	b := s.create(t)
	p := b.start("/bin/sh", "-c", frozenScript)
	p.waitFor("ready")
	for round := range 2 {
		th := b.freeze(t.TempDir())
		b, p = s.thaw(t, b, th)
		for _, x := range [][2]string{{"count", "count " + strconv.Itoa(42+round)}, {"file", "late"}, {"job", "job lives"}, {"name", b.spec.Hostname}} {
			if _, err := p.stdin.WriteString(x[0] + "\n"); err != nil {
				t.Fatal(err)
			}
			p.waitFor(x[1])
		}
		g, err := b.command(func(c *bottle.Command) { c.Guest = true }, "/bin/sh", "-c", "cat kept.txt open.txt; echo $$")
		if err != nil {
			t.Fatal(err)
		}
		if g.end(); !strings.HasPrefix(g.out.String(), "kept\nearly\nlate\n") {
			t.Errorf("another command finds %q", g.out.String())
		}
		if err := p.Signal(syscall.SIGUSR1, false); err != nil {
			t.Error(err)
		}
		p.waitFor("caught")
	}
	if _, err := p.stdin.WriteString("end\n"); err != nil {
		t.Fatal(err)
	}
	want(t, "status", p.end(), bottle.Status{Exited: true, Code: 7})
}

// freezeTerminal checks the same on a terminal; its keys keep their effect.
func (s *suite) freezeTerminal(t *testing.T) {
	if s.lacking(t, bottle.CapLiveFreeze, s.noFreezer) {
		return
	}
	s.freezer(t)
	b := s.create(t)
	x := b.terminal(24, 80, "/bin/bash", "--norc", "-i")
	x.expect("ready> ")
	x.keys("n=41; echo n is $n\n")
	x.expect("n is 41")
	x.expect("ready> ")
	for round := range 2 {
		th := b.freeze(t.TempDir())
		old := b
		var tty *os.File
		x, tty = openTerminal(t, 30, 100)
		th.Stdin, th.Stdout, th.Stderr = tty, dup(t, tty), dup(t, tty)
		b = s.create(t, func(spec *bottle.Spec) {
			spec.Workspace, spec.Thaw = old.sameWorkspace(), th
		})
		p, err := b.Bottle.(bottle.Freezer).Thawed(b.ctx)
		if err != nil {
			t.Fatal(err)
		}
		x.on(b, p)
		x.keys("n=$((n+1)); echo n is $n\n")
		x.expect("n is " + strconv.Itoa(42+round))
		x.expect("ready> ")
		x.keys("stty size\n")
		x.expect("30 100")
		x.keys("sleep 1000\n")
		b.waitCmdline("sleep 1000")
		x.keys("\x03")
		x.expect("ready> ")
		x.keys("echo status $?\n")
		x.expect("status 130")
		x.keys("cat\n")
		b.waitCmdline("cat") // a ^Z during an execve is lost
		x.keys("\x1a")
		x.expect("Stopped")
		// A frozen terminal loses keys that nobody has read.
		x.keys("kill %1; wait %1; echo killed $n\n")
		x.expect("killed " + strconv.Itoa(42+round))
		x.expect("ready> ")
	}
	x.keys("exit 5\n")
	st, err := x.Wait(b.ctx)
	if err != nil || st.Code != 5 {
		t.Errorf("%+v, %v", st, err)
	}
}

func dup(t *testing.T, f *os.File) *os.File {
	t.Helper()
	n, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(n), f.Name())
}

// upper checks that a bottle made from another's export has its files, without
// the removed ones, and that a command can change and remove them.
func (s *suite) upper(t *testing.T) {
	// The bottle knows the directories above a mount point before it has its
	// files.
	shown := t.TempDir()
	below := bottle.Mount{Source: shown, Target: "/home/carboy/deep/mounted/here", Access: bottle.AccessReadOnly}
	tune := func(sp *bottle.Spec) {
		write(t, filepath.Join(sp.Workspace.Source, "gone.txt"), "x")
		sp.Mounts = append(sp.Mounts, below)
	}
	b := s.create(t, tune)
	b.sh(`cd; mkdir -p deep/er; echo one >deep/er/f; ln deep/er/f hard; ln -s deep/er/f soft; chmod 640 deep/er/f
		mkfifo pipe; truncate -s 100M sparse; printf x | dd of=sparse bs=1 seek=50000000 conv=notrunc 2>/dev/null
		mkdir -m 500 locked; touch -d @1000000000 deep/er/f; touch -d @1000000001 deep; echo tmp >/tmp/t; chmod 4755 hard`)
	b.sh(`rm gone.txt; echo more >>a.txt; mkdir d; echo "new" >d/n; rm -r /etc/passwd 2>/dev/null || true; umask 077; echo p >private`)
	if err := b.Pause(b.ctx); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "upper"))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.ExportAll(b.ctx, f); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	b.Close()
	n := s.create(t, func(sp *bottle.Spec) {
		sp.Workspace, sp.Upper, sp.Mounts = b.sameWorkspace(), f, append(sp.Mounts, below)
	})
	pipe := "fifo 644\n"
	if s.without["pipes"] != "" {
		pipe = "none\n"
	}
	got := n.sh(`cd; cat deep/er/f soft; stat -c '%a %s %h %Y' deep/er/f; stat -c '%Y' deep; stat -c '%F %a' pipe 2>/dev/null || echo none; stat -c '%F %a' locked
		stat -c '%s' sparse; dd if=sparse bs=1 skip=50000000 count=1 2>/dev/null; echo; cat /tmp/t`)
	want(t, "home", got, "one\none\n4755 4 2 1000000000\n1000000001\n"+pipe+"directory 500\n104857600\nx\ntmp\n")
	want(t, "workspace", n.sh(`cat a.txt d/n; ls; stat -c %a private; rm -r d; rm a.txt; echo fresh >gone.txt; ls`),
		"hello\nmore\nnew\na.txt\nd\nprivate\n600\ngone.txt\nprivate\n")
	x := n.exported()
	var again counter
	if err := n.ExportAll(n.ctx, &again); err != nil || again > 8*mib {
		t.Errorf("what was a hole is not: %d bytes, %v", again, err)
	}
	for _, name := range []string{"a.txt", "gone.txt", "private"} {
		if _, ok := x[name]; !ok {
			t.Errorf("%s is not among the changes", name)
		}
	}
	if _, ok := x["d"]; ok {
		t.Error("what was made before and removed is a change")
	}
}

type counter int64

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}
