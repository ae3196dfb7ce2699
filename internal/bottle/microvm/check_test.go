package microvm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/posture"
	"github.com/carboy/carboy/internal/bottle/userns"
	"github.com/carboy/carboy/internal/guest/proto"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/kvm"
	"github.com/carboy/carboy/internal/wire"
)

// fine are answers of a machine that has everything.
func fine() checks {
	return checks{
		arch: "amd64", kvm: func() error { return nil }, find: func(hostexec.Program) error { return nil },
		kernel: func() error { return nil }, namespaces: func() error { return nil },
	}
}

// TestCheck: each thing that is missing has a message and an advice of its own.
func TestCheck(t *testing.T) {
	if err := fine().run(); err != nil {
		t.Fatalf("a machine that has everything: %v", err)
	}
	cause := errors.New("cause")
	lacks := func(p hostexec.Program) func(hostexec.Program) error {
		return func(q hostexec.Program) error {
			if p == q {
				return cause
			}
			return nil
		}
	}
	broken := func(reason, advice string) func(*checks) {
		return func(c *checks) {
			c.kvm = func() error { return &kvm.Error{Reason: reason, Advice: advice, Err: cause} }
		}
	}
	seen := map[string]string{}
	for name, c := range map[string]struct {
		edit           func(*checks)
		reason, advice string
	}{
		"processor":     {func(c *checks) { c.arch = "riscv64" }, "no support for riscv64", "another backend"},
		"KVM absent":    {broken("no /dev/kvm", "modprobe"), "no /dev/kvm", "modprobe"},
		"KVM forbidden": {broken("may not open", "usermod"), "may not open", "usermod"},
		"KVM busy":      {broken("another hypervisor", "end it"), "another hypervisor", "end it"},
		"KVM emulated":  {broken("emulates guest kernels", "use another"), "emulates", "use another"},
		"KVM odd":       {func(c *checks) { c.kvm = func() error { return cause } }, "can't be judged", ""},
		"QEMU":          {func(c *checks) { c.find = lacks(hostexec.Qemu) }, "QEMU is missing", "qemu-system-x86"},
		"mke2fs":        {func(c *checks) { c.find = lacks(hostexec.Mke2fs) }, "mke2fs is missing", "e2fsprogs"},
		"kernel": {func(c *checks) {
			c.kernel = func() error {
				return &bottle.UnavailableError{Backend: "microvm", Reason: "no kernel", Advice: "install one", Err: cause}
			}
		}, "no kernel", "install one"},
		"namespaces": {func(c *checks) {
			c.namespaces = func() error { return &userns.ForbiddenError{Reason: "are reserved", Advice: "sysctl"} }
		}, "are reserved", "sysctl"},
		"odd namespaces": {func(c *checks) { c.namespaces = func() error { return cause } }, "cause", ""},
	} {
		k := fine()
		c.edit(&k)
		err := k.run()
		var u *bottle.UnavailableError
		if !errors.As(err, &u) || u.Backend != "microvm" || !strings.Contains(err.Error(), c.reason) || !strings.Contains(u.Advice, c.advice) {
			t.Errorf("%s: %v, %+v", name, err, u)
			continue
		}
		if other := seen[u.Reason]; other != "" {
			t.Errorf("%s and %s say the same: %s", name, other, u.Reason)
		}
		seen[u.Reason] = name
		// An emulated processor needs no KVM, and everything else.
		k.emulated = true
		if err := k.run(); (err == nil) != strings.HasPrefix(name, "KVM") {
			t.Errorf("%s, emulated: %v", name, err)
		}
	}
}

// TestNeverEmulatesSilently: without the switch no bottle is made on a machine without
// KVM, and with it the class is not that of hardware.
func TestNeverEmulatesSilently(t *testing.T) {
	t.Setenv(EmulateEnv, "")
	b := Backend{}
	if kvm.Check() != nil {
		if got := b.Isolation(); got != "" {
			t.Errorf("without KVM the class is %q", got)
		}
		_, err := b.Create(t.Context(), &bottle.Spec{Limits: bottle.Limits{Memory: 1, Pids: 1, Disk: 1, CPUs: 1, Output: 1, FileSize: 1, OpenFiles: 1}})
		var u *bottle.UnavailableError
		if !errors.As(err, &u) || u.Advice == "" {
			t.Errorf("without KVM Create says %v", err)
		}
		if _, err := b.Probe(t.Context(), &bottle.Spec{}); !errors.As(err, &u) {
			t.Errorf("without KVM Probe says %v", err)
		}
	} else if got := b.Isolation(); got != bottle.IsolationHardwareVM {
		t.Errorf("with KVM the class is %q", got)
	}
	t.Setenv(EmulateEnv, "1")
	if got := b.Isolation(); got != bottle.IsolationEmulatedVM || got.AtLeast(bottle.IsolationUserKernel) {
		t.Errorf("emulated, the class is %q", got)
	}
	t.Setenv(EmulateEnv, "yes")
	if emulated() {
		t.Error("another value than 1 emulates")
	}
}

func TestAdmit(t *testing.T) {
	good := bottle.Limits{Memory: 1, Pids: 1, Disk: 1, CPUs: 1, Output: 1, FileSize: 1, OpenFiles: 1}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for name, c := range map[string]struct {
		spec bottle.Spec
		ok   bool
	}{
		"plain":       {bottle.Spec{Limits: good}, true},
		"frames":      {bottle.Spec{Limits: good, Wire: null, Net: wire.DefaultConfig().Framed()}, true},
		"no limits":   {bottle.Spec{}, false},
		"packets":     {bottle.Spec{Limits: good, Wire: null, Net: wire.DefaultConfig()}, false},
		"no network":  {bottle.Spec{Limits: good, Wire: null}, false},
		"frozen once": {bottle.Spec{Limits: good, Thaw: &bottle.Thaw{}}, false},
	} {
		if err := admit(&c.spec); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhyForEachLack(t *testing.T) {
	for _, l := range (Backend{}).Capabilities().Missing() {
		if l.Why == "" {
			t.Errorf("%s is missing without a reason", l.What)
		}
	}
	if b := (Backend{}).Build(); len(b) < 10 || strings.Contains(b, "unreadable") {
		t.Errorf("the build is %q", b)
	}
}

func TestCheckHello(t *testing.T) {
	spec := &bottle.Spec{Net: wire.DefaultConfig().Framed()}
	wired := *spec
	wired.Wire = os.Stdin
	card := proto.NIC{Name: "eth0", MAC: "02:00:00:00:00:02"}
	for name, c := range map[string]struct {
		spec  *bottle.Spec
		hello proto.Hello
		ok    bool
	}{
		"no wire":      {spec, proto.Hello{PID: 1}, true},
		"the wire":     {&wired, proto.Hello{PID: 1, NICs: []proto.NIC{card}}, true},
		"no card":      {&wired, proto.Hello{PID: 1, Notes: []string{"module x: \x1b[2J"}}, false},
		"a card":       {spec, proto.Hello{PID: 1, NICs: []proto.NIC{card}}, false},
		"two cards":    {&wired, proto.Hello{PID: 1, NICs: []proto.NIC{card, card}}, false},
		"another card": {&wired, proto.Hello{PID: 1, NICs: []proto.NIC{{MAC: "02:00:00:00:00:09"}}}, false},
		"not init":     {spec, proto.Hello{PID: 7}, false},
		"not root":     {spec, proto.Hello{PID: 1, UID: 5}, false},
	} {
		err := checkHello(c.hello, c.spec)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		var p *bottle.PostureError
		if err != nil && (!errors.As(err, &p) || strings.Contains(err.Error(), "\x1b")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// confined is a process as QEMU must be.
func confined() posture.Process {
	r := posture.Process{PID: 5, UIDs: [4]int{7, 7, 7, 7}, Seccomp: 2, NoNewPrivs: 1, Place: posture.Place{Namespaces: map[string]string{}, Root: posture.ID{Dev: 1, Ino: 1}}}
	for _, k := range ownNamespaces {
		r.Namespaces[k] = k + ":[2]"
	}
	r.Mounts = []posture.Mount{{Point: "/", Options: "ro,nosuid,nodev,relatime"}, {Point: "/usr", Options: "ro,nosuid,nodev"}, {Point: "/dev/null", Options: "rw,nosuid,noexec"}}
	for _, link := range []string{"socket:[1]", "pipe:[1]", "/dev/null", "anon_inode:[eventfd]", "anon_inode:[signalfd]", "/memfd:x (deleted)"} {
		r.FDs = append(r.FDs, posture.FD{Link: link})
	}
	return r
}

// TestJudge: a monitor that is less confined is refused, for each part of it.
func TestJudge(t *testing.T) {
	own := posture.Place{Namespaces: map[string]string{}, Root: posture.ID{Dev: 1, Ino: 2}}
	for _, k := range ownNamespaces {
		own.Namespaces[k] = k + ":[1]"
	}
	disks := &machine{emulated: true}
	r := confined()
	rec, err := judge(&r, own, 7, disks)
	if err != nil || rec.Seccomp != 2 || !rec.NoNewPrivs || !rec.Chrooted || rec.UID != 7 || len(rec.Namespaces) != 7 || rec.FDs["socket"] != 1 || rec.Role == "" {
		t.Fatalf("a confined one: %+v, %v", rec, err)
	}
	for name, edit := range map[string]func(*posture.Process){
		"no filter":         func(r *posture.Process) { r.Seccomp = 0 },
		"new rights":        func(r *posture.Process) { r.NoNewPrivs = 0 },
		"root":              func(r *posture.Process) { r.UIDs[1] = 0 },
		"saved root":        func(r *posture.Process) { r.UIDs[2] = 0 },
		"effective":         func(r *posture.Process) { r.CapEff = 1 },
		"permitted":         func(r *posture.Process) { r.CapPrm = 1 << 21 },
		"bounding":          func(r *posture.Process) { r.CapBnd = 1 },
		"carboy's network":  func(r *posture.Process) { r.Namespaces["net"] = own.Namespaces["net"] },
		"unknown namespace": func(r *posture.Process) { delete(r.Namespaces, "user") },
		"the host's root":   func(r *posture.Process) { r.Root = own.Root },
		"a writable mount":  func(r *posture.Process) { r.Mounts[1].Options = "rw,nosuid,nodev" },
		"devices":           func(r *posture.Process) { r.Mounts[1].Options = "ro,nosuid" },
		"set-id programs":   func(r *posture.Process) { r.Mounts[1].Options = "ro,nodev" },
		"/dev/kvm, emulated": func(r *posture.Process) {
			r.Mounts = append(r.Mounts, posture.Mount{Point: "/dev/kvm", Options: "rw,nosuid"})
		},
		"a file":        func(r *posture.Process) { r.FDs = append(r.FDs, posture.FD{Link: "/etc/shadow"}) },
		"a device":      func(r *posture.Process) { r.FDs = append(r.FDs, posture.FD{Link: "/dev/sda"}) },
		"a tap device":  func(r *posture.Process) { r.FDs = append(r.FDs, posture.FD{Link: "/dev/net/tun"}) },
		"KVM, emulated": func(r *posture.Process) { r.FDs = append(r.FDs, posture.FD{Link: "anon_inode:kvm-vm"}) },
		"KVM's device":  func(r *posture.Process) { r.FDs = append(r.FDs, posture.FD{Link: "/dev/kvm"}) },
		"an odd inode":  func(r *posture.Process) { r.FDs = append(r.FDs, posture.FD{Link: "anon_inode:[userfaultfd]"}) },
		"/proc":         func(r *posture.Process) { r.FDs = append(r.FDs, posture.FD{Link: "/proc/1/mem"}) },
	} {
		r := confined()
		edit(&r)
		var p *bottle.PostureError
		if _, err := judge(&r, own, 7, disks); !errors.As(err, &p) || p.Role != role {
			t.Errorf("%s: %v", name, err)
		}
	}
	hard := &machine{}
	r = confined()
	r.FDs = append(r.FDs, posture.FD{Link: "/dev/kvm"}, posture.FD{Link: "anon_inode:kvm-vm"}, posture.FD{Link: "anon_inode:kvm-vcpu:0"})
	r.Mounts = append(r.Mounts, posture.Mount{Point: "/dev/kvm", Options: "rw,nosuid"})
	if rec, err := judge(&r, own, 7, hard); err != nil || rec.FDs["kvm"] != 3 {
		t.Errorf("with KVM: %+v, %v", rec, err)
	}
	f, err := os.CreateTemp(t.TempDir(), "disk")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	r = confined()
	r.FDs = append(r.FDs, posture.FD{Link: f.Name(), ID: posture.ID{Dev: uint64(st.Dev), Ino: st.Ino}})
	if rec, err := judge(&r, own, 7, &machine{emulated: true, disks: []disk{{"x", f, false}}}); err != nil || rec.FDs["disk"] != 1 {
		t.Errorf("with its disk: %+v, %v", rec, err)
	}
	// This process is not confined.
	self, err := posture.Read(os.Getpid(), ownNamespaces)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := judge(&self, own, os.Getuid(), disks); err == nil {
		t.Error("a process without a filter passes")
	}
}

// TestCommand: QEMU's arguments are on hostexec's list, and nothing but descriptors is
// named.
func TestCommand(t *testing.T) {
	files := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	m := &machine{
		kernel: "/boot/k", initrd: "/x/i", memory: 512, cpus: 2, wire: files[0], mac: "02:00:00:00:00:02", mtu: 65521, control: files[1],
		disks: []disk{{"own", files[2], false}, {"scratch", files[2], true}},
	}
	for _, emulate := range []bool{true, false} {
		m.emulated = emulate
		args, given := m.command()
		if err := hostexec.CheckArgs(hostexec.Qemu, args); err != nil {
			t.Errorf("emulated %v: %v", emulate, err)
		}
		if len(given) != 4 || given[0] != files[1] || given[1] != files[0] {
			t.Errorf("emulated %v: %d descriptors", emulate, len(given))
		}
		line := strings.Join(args, " ")
		for _, want := range []string{"socket,id=control,fd=3", "local.str=4", "fd=5,set=1", "fd=6,set=2", "host_mtu=65521"} {
			if !strings.Contains(line, want) {
				t.Errorf("emulated %v: no %s in %s", emulate, want, line)
			}
		}
		if !strings.Contains(line, ",-vmx,-svm,") {
			t.Errorf("emulated %v: machines inside the machine: %s", emulate, line)
		}
		if strings.Contains(line, "accel kvm") == emulate || strings.Contains(line, "mitigations=off") != emulate {
			t.Errorf("emulated %v: %s", emulate, line)
		}
	}
	m.wire = nil
	if args, _ := m.command(); strings.Contains(strings.Join(args, " "), "net") {
		t.Errorf("without a wire: %q", args)
	}
	if k := clockKHz(); k < 100_000 || k > 20_000_000 {
		t.Errorf("the clock has %d kHz", k)
	}
}

func TestCache(t *testing.T) {
	c := &cache{t.TempDir()}
	ctx := t.Context()
	made := 0
	write := func(f *os.File) error {
		made++
		_, err := f.WriteString("text")
		return err
	}
	for range 2 {
		path, err := c.file(ctx, "a", write)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != "text" {
			t.Errorf("%q, %v", b, err)
		}
	}
	if made != 1 {
		t.Errorf("it was made %d times", made)
	}
	broken := errors.New("broken")
	if _, err := c.file(ctx, "b", func(f *os.File) error { f.WriteString("half"); return broken }); !errors.Is(err, broken) {
		t.Errorf("a file that can't be made: %v", err)
	}
	// What is old, and what was half written, goes; what is in use stays.
	for _, n := range []string{"old", ".new-dead"} {
		if err := os.WriteFile(filepath.Join(c.dir, n), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var ts unix.Timespec
	ts.Sec = 1000
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, c.dir+"/old", []unix.Timespec{ts, ts}, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := c.file(ctx, "c", write); err != nil {
		t.Fatal(err)
	}
	left, _ := filepath.Glob(c.dir + "/*")
	hidden, _ := filepath.Glob(c.dir + "/.new-*")
	if len(left) != 3 || len(hidden) != 0 { // a, c and the lock
		t.Errorf("left are %q and %q", left, hidden)
	}
}
