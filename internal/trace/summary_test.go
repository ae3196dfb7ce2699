package trace

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// feed adds facts, numbered.
func feed(s *Summary, facts ...Fact) *Summary {
	for i := range facts {
		if facts[i].Seq == 0 {
			facts[i].Seq = s.Last + 1
		}
		if facts[i].Time == 0 {
			facts[i].Time = int64(facts[i].Seq) * 100
		}
		s.Add(&facts[i])
	}
	return s
}

func TestProcesses(t *testing.T) {
	s := feed(NewSummary(View{}),
		Fact{Op: Exec, PID: 2, PPID: 1, Path: "/bin/sh", Args: []string{"sh"}, UID: 5, EUID: 5},
		Fact{Op: Fork, PID: 3, PPID: 2},
		Fact{Op: Exec, PID: 3, PPID: 2, Path: "/bin/a"},
		Fact{Op: Exec, PID: 3, PPID: 2, Path: "/bin/b", Args: []string{"b", strings.Repeat("x", 10_000)}, Digest: strings.Repeat("\x01", 32)},
		Fact{Op: Exec, PID: 3, PPID: 2, Path: "/bin/none", Errno: uint32(unix.ENOENT)},
		Fact{Op: Exit, PID: 3, A: 7},
		Fact{Op: Fork, PID: 3, PPID: 2}, // the same number again
		Fact{Op: Exit, PID: 3, B: uint64(unix.SIGKILL)},
		Fact{Op: Exit, PID: 9, A: 1},                        // nobody saw it begin
		Fact{Op: Fork, PID: 4, PPID: 2},                     // its exit is lost …
		Fact{Op: Fork, PID: 4, PPID: 77},                    // … and so is this one's parent
		Fact{Op: Exec, PID: 5, PPID: 4, Path: "/bin/early"}, // its fork comes late
		Fact{Op: Fork, PID: 5, PPID: 4},
		Fact{Op: Exit, PID: 3, A: 1}, // once more
	)
	var got []string
	for i, p := range s.Processes() {
		got = append(got, fmt.Sprintf("%d:%d pid %d uid %d %s x%d end %d code %d sig %d", i+1, p.Parent, p.PID, p.UID, p.Path, p.Execs, p.End, p.Code, p.Signal))
	}
	want := []string{
		"1:0 pid 2 uid 5 /bin/sh x1 end 0 code 0 sig 0",
		"2:1 pid 3 uid 0 /bin/b x2 end 600 code 7 sig 0",
		"3:1 pid 3 uid 5  x0 end 800 code 0 sig 9",
		"4:0 pid 9 uid 0  x0 end 900 code 1 sig 0",
		"5:1 pid 4 uid 5  x0 end 0 code 0 sig 0",
		"6:0 pid 4 uid 0  x0 end 0 code 0 sig 0",
		"7:6 pid 5 uid 0 /bin/early x1 end 0 code 0 sig 0",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
	if s.Procs != 7 || s.Execs != 4 || s.Failed != 1 || s.lost() != 0 {
		t.Errorf("%d processes, %d execs, %d failed", s.Procs, s.Execs, s.Failed)
	}
	if a := s.Processes()[1].Args; len(a) != 2 || len(a[0])+len(a[1]) > maxArgBytes || !strings.HasSuffix(a[1], "…") {
		t.Errorf("arguments of %d bytes", len(strings.Join(a, "")))
	}
}

// What an open that makes or cuts has changed is decided by what was opened, not
// by its name.
func TestDevices(t *testing.T) {
	for _, c := range []struct {
		op    Op
		path  string
		flags Flags
		a     uint64
		want  uint64
	}{
		{Open, "/dev/null", Foreign | Special, unix.O_CREAT | unix.O_TRUNC | unix.O_WRONLY, 0},
		{Open, "/w/pipe", Special, unix.O_CREAT | unix.O_WRONLY, 0},
		{Open, "/dev/null", Foreign, unix.O_CREAT | unix.O_TRUNC | unix.O_WRONLY, 1},
		{Open, "/dev/null", Foreign, unix.O_RDWR, 0},
		{Write, "/dev/null", Foreign, 0, 1},
		{Chmod, "/dev/null", Foreign, 0, 1},
		{Unlink, "/dev/null", Foreign, 0, 1},
		{Mknod, "/dev/zero", Foreign, 0, 1},
		{Rename, "/dev/null", Foreign, 0, 2},
	} {
		f := Fact{Op: c.op, Path: c.path, Flags: c.flags, A: c.a}
		if c.op == Rename {
			f.Path2 = "/dev/x"
		}
		if s := feed(NewSummary(View{Workspace: "/w"}), f); s.Counts.Written != c.want || uint64(len(s.Written(10))) != c.want {
			t.Errorf("%v: counted %d times, listed %v", c, s.Counts.Written, s.Written(10))
		}
	}
}

func TestFiles(t *testing.T) {
	const ws = "/home/ada/work"
	open := func(flags uint64, path string) Fact { return Fact{Op: Open, A: flags, Path: path} }
	denied := func(errno unix.Errno, path string) Fact { return Fact{Op: Open, Path: path, Errno: uint32(errno)} }
	s := feed(NewSummary(View{Workspace: ws, Areas: []string{"/home/ada", "/data/set"}}),
		open(0, "/usr/lib/x86_64-linux-gnu/libc.so.6"), open(0, "/usr/lib/x86_64-linux-gnu/libc.so.6"), open(0, "/usr/lib/libm.so"),
		open(0, "/etc/passwd"), open(0, "/etc/ssl/certs/x"), open(0, "/usr/local/bin/tool"), open(0, "/vmlinuz"),
		open(0, "/home/ada/.ssh/config"), open(0, "/home/ada/notes"), open(0, "/home/ada/worker/x"), open(0, "/data/set/a/b/c"), open(0, "/data/other"),
		open(unix.O_DIRECTORY, "/usr/share"), open(unix.O_PATH, "/usr/bin/env"), open(unix.O_WRONLY, "/tmp/log"),
		open(0, ws+"/main.go"), open(unix.O_RDWR, ws+"/main.go"), open(0, ws),
		Fact{Op: Open, Path: ws + "/proc/1/environ", Flags: Foreign}, // a mount made there is not the workspace
		Fact{Op: Write, Path: ws + "/main.go"}, Fact{Op: Write, Path: ws + "/main.go"}, Fact{Op: Unlink, Path: ws + "/main.go"},
		Fact{Op: Rename, Path: "/tmp/a", Path2: "/tmp/b"}, Fact{Op: Mkdir, Path: "/tmp/d"}, open(unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, "/tmp/lock"),
		open(unix.O_WRONLY|unix.O_CREAT, "/tmp/touched"), open(unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, "/tmp/out"),
		Fact{Op: Open, A: unix.O_WRONLY | unix.O_CREAT, Path: "/dev/null", Flags: Foreign | Special},
		denied(unix.ENOENT, "/etc/none"), denied(unix.ENOENT, "/etc/none"), denied(unix.ENOTDIR, "/etc/passwd/x"),
		denied(unix.EACCES, "/etc/shadow"), denied(unix.EPERM, "/etc/shadow"), denied(unix.EROFS, "/usr/bin/x"),
	)
	areas := func(l []Area) string {
		var out []string
		for _, a := range l {
			out = append(out, fmt.Sprint(a.Path, ":", a.Files))
		}
		return strings.Join(out, " ")
	}
	if got, want := areas(s.Read()), "/usr/lib:2 /etc:2 /usr/local/bin:1 /:1 /home/ada/.ssh:1 /home/ada:1 /home/ada/worker:1 /data/set/a:1 /data:1 /home/ada/work:1"; got != want {
		t.Errorf("read\n got %s\nwant %s", got, want)
	}
	if got, want := areas(s.Denied()), "/etc:1 /usr/bin:1"; got != want {
		t.Errorf("denied %s, want %s", got, want)
	}
	if want := (FileCounts{ReadOutside: 12, ReadInside: 2, Written: 7, Missed: 2, Denied: 2}); s.Counts != want {
		t.Errorf("counts %+v, want %+v", s.Counts, want)
	}
	var written []string
	for _, w := range s.Written(100) {
		written = append(written, fmt.Sprintf("%s %v %v", w.Path, w.How, w.Inside))
	}
	want := []string{
		"/tmp/a [rename] false", "/tmp/b [rename] false", "/tmp/d [make] false", "/tmp/lock [make] false", "/tmp/touched [create] false",
		"/tmp/out [truncate] false", ws + "/main.go [write remove] true",
	}
	if !reflect.DeepEqual(written, want) {
		t.Errorf("written\n%s", strings.Join(written, "\n"))
	}
	if l := s.Written(2); len(l) != 2 || l[0].Inside || !l[1].Inside {
		t.Errorf("the first two of both: %+v", l)
	}
}

func TestRights(t *testing.T) {
	s := feed(NewSummary(View{}),
		Fact{Op: SetID, UID: 0, EUID: 0, Errno: uint32(unix.EPERM)}, Fact{Op: SetID, UID: 0, EUID: 0, Errno: uint32(unix.EPERM)},
		Fact{Op: Mount, Path: "/mnt", Args: []string{"tmpfs"}, Errno: uint32(unix.EPERM)},
		Fact{Op: Refused, Path: "bpf", Errno: uint32(unix.EPERM)}, Fact{Op: Ptrace, A: unix.PTRACE_ATTACH, B: 1},
		Fact{Op: Mknod, A: unix.S_IFIFO, Path: "/tmp/p"}, Fact{Op: Mknod, A: unix.S_IFBLK, B: unix.Mkdev(8, 0), Path: "/tmp/sda", Errno: uint32(unix.EPERM)},
		Fact{Op: Kill, A: 9, B: 3},
		Fact{Op: Socket, A: unix.AF_INET, B: unix.SOCK_STREAM | unix.SOCK_CLOEXEC}, Fact{Op: Socket, A: unix.AF_INET, B: unix.SOCK_STREAM},
		Fact{Op: Socket, A: unix.AF_PACKET, B: unix.SOCK_RAW, Errno: uint32(unix.EPERM)}, Fact{Op: Connect, Path: "10.0.0.1:80"},
	)
	var got []string
	for _, a := range s.Attempts {
		got = append(got, fmt.Sprintf("%s|%s|%s|%d", a.What, a.Detail, ErrnoName(a.Errno), a.Count))
	}
	want := []string{
		"setid|uid 0, euid 0, gid 0, egid 0|EPERM|2", "mount|tmpfs on /mnt|EPERM|1", "refused|", "ptrace|ATTACH||1", "mknod|block device 8:0|EPERM|1",
	}
	want[2] = "bpf||EPERM|1"
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q", got)
	}
	if len(s.Sockets) != 2 || s.Sockets[0].Count != 2 || FamilyName(s.Sockets[1].Family) != "packet" {
		t.Errorf("sockets %+v", s.Sockets)
	}
}

func TestGaps(t *testing.T) {
	s := feed(NewSummary(View{}), Fact{Seq: 1, Op: Stat}, Fact{Seq: 4, Op: Stat}, Fact{Seq: 3, Op: Stat}, Fact{Seq: 10, Op: Stat})
	if s.lost() != 6 || s.Facts != 4 {
		t.Errorf("%d lost of %d", s.lost(), s.Facts)
	}
}

// Whoever is inside chooses every name and number: memory and lists stay
// bounded, totals go on.
func TestSummaryOfAFlood(t *testing.T) {
	s := NewSummary(View{Workspace: "/w"})
	pad := strings.Repeat("p", 1000)
	const n = 300_000
	for i := range uint64(n) {
		feed(s, Fact{Op: Open, Path: fmt.Sprintf("/d%d/%s", i, pad)})
		if i%4 == 0 {
			feed(s,
				Fact{Op: Fork, PID: uint32(i), PPID: uint32(i - 4)}, Fact{Op: Exec, PID: uint32(i), Path: pad, Args: []string{pad, pad, pad, pad, pad}},
				Fact{Op: Mount, Path: fmt.Sprint(pad[:100], i), Errno: uint32(i % 200)}, Fact{Op: Refused, Path: fmt.Sprint("call", i)},
				Fact{Op: Socket, A: i, B: i}, Fact{Op: Write, Path: fmt.Sprintf("/w/%d", i)}, Fact{Op: Mkdir, Path: fmt.Sprintf("/x%s%d", pad, i)},
				Fact{Op: Stat, Path: fmt.Sprint("/none", i), Errno: uint32(unix.ENOENT)}, Fact{Op: Exec, PID: uint32(i), Path: pad, Errno: 2})
		}
	}
	if n := len(s.Written(1 << 30)); n == 0 || uint64(n) > s.Counts.Written {
		t.Errorf("%d are listed as written, %d counted", n, s.Counts.Written)
	}
	if len(s.Processes()) > maxProcesses || len(s.Attempts) > maxAttempts || len(s.Sockets) > maxSockets || len(s.Read()) > maxAreas || len(s.Written(1<<30)) > 2*maxWritten {
		t.Error("a list is longer than its bound")
	}
	var attempts, sockets uint64
	for _, a := range s.Attempts {
		attempts += a.Count
	}
	for _, x := range s.Sockets {
		sockets += x.Count
	}
	if s.Procs != n/4 || attempts != n/2 || sockets != n/4 || s.Failed != n/4 || !s.More || s.Facts != s.Last {
		t.Errorf("%d processes, %d attempts, %d sockets, more %v", s.Procs, attempts, sockets, s.More)
	}
	feed(s, Fact{Op: Open, Path: "/etc/passwd", A: unix.O_RDWR | unix.O_CREAT | unix.O_EXCL})
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > 64<<20 {
		t.Errorf("%d MiB are held", m.HeapAlloc>>20)
	}
	runtime.KeepAlive(s)
	t.Logf("%d MiB held after %d facts", m.HeapAlloc>>20, s.Facts)
}

func BenchmarkSummary(b *testing.B) {
	facts := some(10_000)
	s := NewSummary(View{Workspace: "/w"})
	b.ReportAllocs()
	for i := range b.N {
		f := facts[i%len(facts)]
		f.Seq = uint64(i + 1)
		s.Add(&f)
	}
}
