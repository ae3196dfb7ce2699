package hostexec

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/testenv"
)

// sealedRunner is a runner whose helper is a sealed program.
func sealedRunner(t *testing.T) *Runner {
	r := newTestRunner(t, Options{})
	r.programs[helper].sealed = true
	return r
}

// sealed is a script that runs as a sealed program. Root's runs as ids that own nothing.
func sealed(script string) Sealed {
	return Sealed{
		Program: helper, Args: []string{script}, UID: 1_907_000_002, GID: 1_907_000_002,
		// The race detector's runtime takes terabytes of addresses.
		Limits: SealedLimits{Memory: 1 << 46, Files: 200, Threads: 200},
	}
}

// seal runs a script to its end and returns what it wrote.
func seal(t *testing.T, s Sealed) string {
	t.Helper()
	p, err := sealedRunner(t).StartSealed(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-time.After(testenv.Patience(time.Minute)):
		p.Kill()
		t.Fatalf("a sealed script does not end: %q", p.Output())
	}
	return blind.ReplaceAllString(p.Output(), "")
}

// blind matches what the runtimes of the race detector and of coverage write where there is
// no /proc and no directory for them.
var blind = regexp.MustCompile(`(?m)^(==\d+==WARNING: reading executable name failed|warning: GOCOVERDIR not set).*\n`)

func TestSealedRoot(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/f", []byte("bound"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s := sealed(`
cat /vm/file /vm/dir/f; echo
for p in /etc/passwd /home /root /proc /sys /dev/zero /var/lib ` + dir + `; do test ! -e $p || echo "is there: $p"; done
for p in / /usr /vm/dir /vm/file /vm; do (echo x > $p/new) 2>/dev/null && echo "written: $p"; (echo x > $p) 2>/dev/null && echo "written to: $p"; done
test -w /vm/null && echo ok > /vm/null && echo device
ls -d /*`)
	s.Binds = []Bind{{Source: dir + "/f", Target: "/vm/file"}, {Source: dir, Target: "/vm/dir"}, {Source: os.DevNull, Target: "/vm/null", Device: true}}
	out := seal(t, s)
	if !strings.HasPrefix(out, "boundbound\ndevice\n") || strings.Contains(out, "there") || strings.Contains(out, "written") || !strings.Contains(out, "/usr") {
		t.Errorf("inside:\n%s", out)
	}
}

// TestSealedRights reads what the host's kernel says of a sealed process.
func TestSealedRights(t *testing.T) {
	r := sealedRunner(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	s := sealed(`(setsid sleep 1000 &) ; echo $$ >&3; read x <&3; echo "$x" >&3; sleep 1000`)
	s.Files = []*os.File{theirs}
	p, err := r.StartSealed(t.Context(), s)
	theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	n, err := ours.Read(buf)
	if err != nil || string(buf[:n]) != "1\n" {
		t.Fatalf("it is process %q of its namespace, %v; it wrote %q", buf[:n], err, p.Output())
	}
	dir := fmt.Sprintf("/proc/%d", p.PID())
	status, err := os.ReadFile(dir + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapInh:\t0000000000000000", "CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000", "NoNewPrivs:\t1"} {
		if !strings.Contains(string(status), line) {
			t.Errorf("no %q in its status", line)
		}
	}
	uid := os.Geteuid()
	if uid == 0 {
		uid = s.UID
		if !strings.Contains(string(status), "Groups:\t \n") {
			t.Errorf("it has groups of root's:\n%s", status)
		}
	}
	if want := fmt.Sprintf("Uid:\t%d\t%d\t%d\t%d\n", uid, uid, uid, uid); !strings.Contains(string(status), want) {
		t.Errorf("no %q in:\n%s", want, status)
	}
	for _, kind := range []string{"user", "mnt", "pid", "ipc", "uts", "net", "cgroup"} {
		link := "/ns/" + kind
		theirs, err1 := os.Readlink(dir + link)
		own, err2 := os.Readlink("/proc/self" + link)
		if err1 != nil || err2 != nil || theirs == own {
			t.Errorf("%s namespace: %q and %q; %v, %v", kind, theirs, own, err1, err2)
		}
	}
	fds, err := os.ReadDir(dir + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, _ := os.Readlink(dir + "/fd/" + fd.Name())
		if to != os.DevNull && !strings.HasPrefix(to, "pipe:") && !strings.HasPrefix(to, "socket:") {
			t.Errorf("it holds %s", to)
		}
	}
	ours.Write([]byte("back\n"))
	if n, err = ours.Read(buf); err != nil || string(buf[:n]) != "back\n" {
		t.Errorf("its descriptor answers %q, %v", buf[:n], err)
	}
	if len(r.Running()) != 1 {
		t.Errorf("registered: %v", r.Running())
	}
	p.Kill()
	<-p.Done()
	// The child that left its session held the socket too.
	if n, err := ours.Read(buf); n != 0 {
		t.Errorf("after the end: %d bytes, %v", n, err)
	}
	if len(r.Running()) != 0 {
		t.Errorf("registered after the end: %v", r.Running())
	}
	p.Kill() // nothing happens
}

func TestSealedNetwork(t *testing.T) {
	l, err := net.Listen("unix", "@carboy-sealed-test-"+fmt.Sprint(os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out := seal(t, sealed(`cat /sys/class/net/*/address 2>/dev/null; (exec 9<>/dev/tcp/127.0.0.1/1) 2>/dev/null; id -u; id -G; ulimit -c`))
	if out != "65534\n65534\n0\n" && os.Geteuid() == 0 {
		t.Errorf("inside: %q", out)
	}
	if !strings.HasPrefix(out, "65534\n") {
		t.Errorf("inside: %q", out)
	}
}

// TestSealedRefused: what is not in the closed set does not start.
func TestSealedRefused(t *testing.T) {
	r := sealedRunner(t)
	git := sealed("")
	git.Program = Git
	_, err := r.StartSealed(t.Context(), git)
	wantReason(t, err, reasonProgram)
	_, err = r.StartSealed(t.Context(), Sealed{Program: 77})
	wantReason(t, err, reasonProgram)
	_, err = r.StartSealed(t.Context(), sealed("a\x00b"))
	wantReason(t, err, reasonArgument)
	for _, b := range []Bind{{Source: "x", Target: "/x"}, {Source: "/x", Target: "/x/../y"}, {Source: "/usr", Target: "/"}} {
		s := sealed("")
		s.Binds = []Bind{b}
		_, err = r.StartSealed(t.Context(), s)
		wantReason(t, err, reasonDirectory)
	}
	if os.Geteuid() == 0 {
		s := sealed("exit 0")
		s.UID = 0
		_, err = r.StartSealed(t.Context(), s)
		wantReason(t, err, reasonArgument)
	}
	for _, l := range []SealedLimits{{}, {Memory: 1, Files: 1}, {Memory: 1, Threads: 1}, {Files: 1, Threads: 1}} {
		s := sealed("exit 0")
		s.Limits = l
		_, err = r.StartSealed(t.Context(), s)
		wantReason(t, err, reasonArgument)
	}
	_, err = (*Runner)(nil).StartSealed(t.Context(), sealed(""))
	wantReason(t, err, reasonClosed)
	// Run takes no sealed program.
	_, err = r.Run(t.Context(), shell(t, "exit 0"))
	wantReason(t, err, reasonProgram)
	s := sealed("exit 0")
	s.Binds = []Bind{{Source: "/no/such/file", Target: "/x"}}
	p, err := r.StartSealed(t.Context(), s)
	if err == nil {
		<-p.Done()
		if !strings.Contains(p.Output(), "/no/such/file") {
			t.Errorf("a missing source: %q", p.Output())
		}
	}
	if _, err := r.Find(Program(99)); err == nil {
		t.Error("an unknown program is found")
	}
	if path, err := r.Find(helper); err != nil || filepath.Base(path) != helperName {
		t.Errorf("found %q, %v", path, err)
	}
}

// live starts a script that says when it runs, and returns its directory in /proc.
func live(t *testing.T, s Sealed) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s.Args = []string{"echo up >&3; exec 3>&-; " + s.Args[0] + "; sleep 1000"}
	s.Files = append([]*os.File{w}, s.Files...)
	p, err := sealedRunner(t).StartSealed(t.Context(), s)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill(); <-p.Done() })
	if n, err := r.Read(make([]byte, 10)); n != 3 {
		t.Fatalf("it does not run: %v; it wrote %q", err, p.Output())
	}
	return fmt.Sprintf("/proc/%d", p.PID())
}

// TestSealedLimits: the kernel holds a sealed program to its limits.
func TestSealedLimits(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "disk")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := sealed("head -c 10000 /usr/bin/env >&4")
	s.Files = []*os.File{f}
	s.Limits.FileSize = 5000
	dir := live(t, s)
	text, err := os.ReadFile(dir + "/limits")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"Max core file size": "0", "Max stack size": "8388608", "Max file size": "5000", "Max open files": "200", "Max address space": "70368744177664"}
	if countsByNamespace() {
		want["Max processes"] = "200"
	}
	for line := range strings.Lines(string(text)) {
		name := strings.TrimSpace(line[:26])
		if f := strings.Fields(line[26:]); want[name] != "" && (f[0] != want[name] || f[1] != want[name]) {
			t.Errorf("%s is %s, up to %s, not %s", name, f[0], f[1], want[name])
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("not there: %v", want)
	}
	eventually(t, "the file has as many bytes as it may", func() bool {
		fi, err := f.Stat()
		return err == nil && fi.Size() == 5000
	})
}

// TestSealedInherits: a descriptor that carboy got from whoever started it is none of a
// sealed program's.
func TestSealedInherits(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	leaky, err := unix.FcntlInt(w.Fd(), unix.F_DUPFD, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leaky)
	own, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", leaky))
	if err != nil {
		t.Fatal(err)
	}
	dir := live(t, sealed("true"))
	fds, err := os.ReadDir(dir + "/fd")
	if err != nil || len(fds) < 3 {
		t.Fatal(fds, err)
	}
	for _, fd := range fds {
		if to, _ := os.Readlink(dir + "/fd/" + fd.Name()); to == own {
			t.Errorf("it holds %s as %s", to, fd.Name())
		}
	}
}

// TestSealedCalls: what a sealed program can't ask a kernel for. Beside it, what it can.
func TestSealedCalls(t *testing.T) {
	out := seal(t, sealed(tryCalls))
	want := `unshare: function not implemented
clone into a namespace: operation not permitted
mount: function not implemented
io_uring: function not implemented
keys: function not implemented
bpf: function not implemented
ptrace: function not implemented
netlink: address family not supported by protocol
vsock: address family not supported by protocol
IPv4: address family not supported by protocol
outlive carboy: operation not permitted
die with carboy: errno 0
Unix: errno 0
pipe: errno 0
`
	if out != want {
		t.Errorf("inside:\n%s", out)
	}
}

// tryCalls has the helper make system calls in place of a script.
const tryCalls = "try-calls"

func makeCalls() {
	for _, c := range []struct {
		name string
		call uintptr
		args [3]uintptr
	}{
		{"unshare", unix.SYS_UNSHARE, [3]uintptr{unix.CLONE_NEWUSER}},
		{"clone into a namespace", unix.SYS_CLONE, [3]uintptr{unix.CLONE_NEWUSER | uintptr(unix.SIGCHLD)}},
		{"mount", unix.SYS_MOUNT, [3]uintptr{}},
		{"io_uring", unix.SYS_IO_URING_SETUP, [3]uintptr{}},
		{"keys", unix.SYS_KEYCTL, [3]uintptr{}},
		{"bpf", unix.SYS_BPF, [3]uintptr{}},
		{"ptrace", unix.SYS_PTRACE, [3]uintptr{unix.PTRACE_TRACEME}},
		{"netlink", unix.SYS_SOCKET, [3]uintptr{unix.AF_NETLINK, unix.SOCK_RAW}},
		{"vsock", unix.SYS_SOCKET, [3]uintptr{unix.AF_VSOCK, unix.SOCK_STREAM}},
		{"IPv4", unix.SYS_SOCKET, [3]uintptr{unix.AF_INET, unix.SOCK_STREAM}},
		{"outlive carboy", unix.SYS_PRCTL, [3]uintptr{unix.PR_SET_PDEATHSIG, 0}},
		{"die with carboy", unix.SYS_PRCTL, [3]uintptr{unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL)}},
		{"Unix", unix.SYS_SOCKET, [3]uintptr{unix.AF_UNIX, unix.SOCK_STREAM}},
		{"pipe", unix.SYS_PIPE2, [3]uintptr{uintptr(unsafe.Pointer(new([2]int32)))}},
	} {
		pid, _, e := unix.RawSyscall(c.call, c.args[0], c.args[1], c.args[2])
		if c.call == unix.SYS_CLONE && e == 0 && pid == 0 {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		fmt.Printf("%s: %v\n", c.name, e)
	}
	os.Exit(0)
}

// TestSealedHides: settings of this machine with credentials are not in a sealed root.
func TestSealedHides(t *testing.T) {
	mounts, err := os.ReadFile(live(t, sealed("true")) + "/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range hiddenDirs {
		if fi, err := os.Lstat(dir); err != nil || !fi.IsDir() {
			continue
		}
		if !regexp.MustCompile(` / ` + dir + ` ro,nosuid,nodev,noexec,\S* - tmpfs `).Match(mounts) {
			t.Errorf("%s is not hidden:\n%s", dir, mounts)
		}
	}
}

// TestKillBeforeStart: the runner's end can come while a program starts.
func TestKillBeforeStart(t *testing.T) {
	(&SealedProcess{}).Kill()
}

// TestSealedCloses: the runner's end is the program's.
func TestSealedCloses(t *testing.T) {
	r := sealedRunner(t)
	p, err := r.StartSealed(t.Context(), sealed("sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Error(err)
	}
	<-p.Done()
	_, err = r.StartSealed(t.Context(), sealed("exit 0"))
	wantReason(t, err, reasonClosed)
}

// TestSealedDiesWithCarboy: kill -9 of carboy leaves nothing of the program.
func TestSealedDiesWithCarboy(t *testing.T) {
	line := sleeper(t)
	c := exec.Command("/proc/self/exe", "seal-and-wait", line)
	c.Env = append(os.Environ(), "HELPER="+filepath.Join(helperDir, helperName))
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the sealed program runs", func() bool { return alive(line) == 2 })
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	eventually(t, "nothing of it is left", func() bool { return alive(line) == 0 })
}

// sealAndWait is the process that TestSealedDiesWithCarboy kills.
func sealAndWait(line string) int {
	r, err := New(Options{})
	if err != nil {
		return 1
	}
	withTestHelper(r, filepath.Dir(os.Getenv("HELPER")))
	r.programs[helper].sealed = true
	p, err := r.StartSealed(context.Background(), sealed("(setsid "+line+" &) ; "+line))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	<-p.Done()
	fmt.Fprintln(os.Stderr, "the sealed program ended:", p.Output())
	return 1
}

// goodQemu is a command line of a micro-VM.
func goodQemu() []string {
	return []string{
		"-M", "microvm", "-accel", "tcg,thread=multi", "-cpu", "max,-vmx,-svm,pmu=off", "-m", "256", "-smp", "2", "-no-reboot", "-nodefaults", "-no-user-config",
		"-display", "none", "-global", "virtio-mmio.force-legacy=false", "-kernel", SealedKernel, "-initrd", SealedInitrd, "-append", "console=ttyS0 quiet panic=-1",
		"-add-fd", "fd=6,set=1", "-blockdev", "driver=file,node-name=f1,filename=/dev/fdset/1,read-only=on,locking=off", "-blockdev", "driver=raw,node-name=r1,file=f1,read-only=on",
		"-device", "virtio-blk-device,drive=r1,serial=root0", "-netdev", "dgram,id=n,local.type=fd,local.str=3",
		"-device", "virtio-net-device,netdev=n,mac=02:00:00:00:00:02,host_mtu=65521", "-device", "virtio-serial-device", "-chardev", "socket,id=c,fd=4",
		"-device", "virtserialport,chardev=c,name=carboy",
		"-chardev", "stdio,id=s,signal=off", "-serial", "chardev:s",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
	}
}

func TestQemuArguments(t *testing.T) {
	c := &call{program: "qemu", args: goodQemu()}
	if err := prepareQemu(c); err != nil || len(c.argv) != len(c.args) {
		t.Fatalf("a good command line: %v", err)
	}
	for _, add := range [][]string{
		{"-netdev", "user,id=x"}, {"-netdev", "tap,id=x"}, {"-nic", "user"}, {"-drive", "file=/etc/shadow"}, {"-hda", "/dev/sda"},
		{"-blockdev", "driver=file,node-name=x,filename=/etc/shadow"}, {"-blockdev", "driver=host_device,node-name=x,filename=/dev/fdset/1"},
		{"-kernel", "/boot/vmlinuz"}, {"-initrd", "/etc/shadow"}, {"-append", "a;b"}, {"-append", "console=\"x\""},
		{"-chardev", "socket,id=x,path=/tmp/x"}, {"-chardev", "file,id=x,path=/tmp/x"}, {"-chardev", "pipe,id=x,path=/tmp/x"},
		{"-monitor", "stdio"}, {"-mon", "chardev=q,mode=control"}, {"-S"}, {"-cpu", "host"}, {"-incoming", "defer"}, {"-incoming", "exec:sh"}, {"-incoming", "tcp:0:1"},
		{"-sandbox", "off"}, {"-sandbox", "on"}, {"-device", "vfio-pci,host=0"}, {"-device", "virtio-9p-device,fsdev=x"},
		{"-fsdev", "local,id=x,path=/"}, {"-object", "memory-backend-file,id=m,mem-path=/tmp/x"}, {"-run-with", "user=root"},
		{"-readconfig", "/tmp/x"}, {"-plugin", "/tmp/x.so"}, {"-gdb", "tcp::1"}, {"-s"}, {"-daemonize"}, {"-pidfile", "/tmp/x"}, {"-D", "/tmp/x"}, {"-vnc", ":0"},
		{"-accel", "hvf"}, {"-cpu", "host,+x"}, {"-m"}, {"-m", "0"}, {"-smp", "1,cores=2"}, {"kernel"}, {"-serial", "tcp::1"}, {"-M", "pc"}, {"-append"},
	} {
		c := &call{program: "qemu", args: append(goodQemu(), add...)}
		if err := prepareQemu(c); reasonOf(err) != reasonArgument {
			t.Errorf("%q: %v", add, err)
		}
	}
	args := goodQemu()
	c = &call{program: "qemu", args: args[:len(args)-2]}
	if err := prepareQemu(c); reasonOf(err) != reasonArgument {
		t.Errorf("without a filter of system calls: %v", err)
	}
}

func TestMke2fsArguments(t *testing.T) {
	if err := prepareMke2fs(&call{args: Mke2fsArgs("/tmp/x", 16384)}); err != nil {
		t.Error(err)
	}
	for name, args := range map[string][]string{
		"nothing": nil, "no size": Mke2fsArgs("/tmp/x", 1)[:len(mke2fsForm)+1], "relative": Mke2fsArgs("x", 1), "an option": Mke2fsArgs("-n", 1),
		"no room": Mke2fsArgs("/tmp/x", 0), "below": Mke2fsArgs("/tmp/x", -5), "more": append(Mke2fsArgs("/tmp/x", 1), "-d", "/etc"),
		"other": append([]string{"-c"}, Mke2fsArgs("/tmp/x", 1)[1:]...),
	} {
		if err := prepareMke2fs(&call{args: args}); reasonOf(err) != reasonArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTailBuffer(t *testing.T) {
	b := &tailBuffer{}
	for i := range 5000 {
		fmt.Fprintf(b, "line %d\n", i)
	}
	if s := b.String(); len(s) != tailSize || !strings.HasSuffix(s, "line 4999\n") {
		t.Errorf("%d bytes, ending %q", len(s), s[len(s)-20:])
	}
}
