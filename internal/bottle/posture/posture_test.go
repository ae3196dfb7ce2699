package posture

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const status = "Name:\tx\nUid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\nGroups:\t8 9 \nCapInh:\t0\nCapPrm:\t1\nCapEff:\t2\nCapBnd:\tff\nCapAmb:\t4\nNoNewPrivs:\t1\nSeccomp:\t2\n"

// TestStatus: each line counts, and none may be missing.
func TestStatus(t *testing.T) {
	p, err := parseStatus(status)
	if err != nil || p.UIDs != [4]int{7, 7, 7, 7} || p.GIDs != [4]int{8, 8, 8, 8} || !slices.Equal(p.Groups, []int{8, 9}) ||
		p.CapPrm != 1 || p.CapEff != 2 || p.CapBnd != 255 || p.CapAmb != 4 || p.NoNewPrivs != 1 || p.Seccomp != 2 {
		t.Errorf("%+v, %v", p, err)
	}
	lines := strings.SplitAfter(strings.TrimSuffix(status, "\n"), "\n")
	for i, line := range lines[1:] {
		if _, err := parseStatus(strings.Join(slices.Delete(slices.Clone(lines), i+1, i+2), "")); err == nil {
			t.Errorf("without %q it is a status", line)
		}
	}
	for _, text := range []string{"", "Uid: x", "Uid:\t1\t1\t1\t1\nSeccomp:\t2\n", "CapEff:\tzz", strings.Replace(status, "8 9", "8 x", 1)} {
		if _, err := parseStatus(text); err == nil {
			t.Errorf("%q is a status", text)
		}
	}
}

// TestWorst: what one thread may do, the process may do.
func TestWorst(t *testing.T) {
	good, err := parseStatus(status)
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		thread Process
		is     func(p *Process) bool
	}{
		"no filter":    {Process{UIDs: good.UIDs, GIDs: good.GIDs, NoNewPrivs: 1}, func(p *Process) bool { return p.Seccomp == 0 && p.NoNewPrivs == 1 }},
		"privileges":   {Process{UIDs: good.UIDs, GIDs: good.GIDs, Seccomp: 2}, func(p *Process) bool { return p.Seccomp == 2 && p.NoNewPrivs == 0 }},
		"another user": {Process{GIDs: good.GIDs}, func(p *Process) bool { return p.UIDs == [4]int{-1, -1, -1, -1} && p.GIDs == good.GIDs }},
		"a group":      {Process{UIDs: good.UIDs, Groups: []int{0}}, func(p *Process) bool { return slices.Contains(p.Groups, 0) && p.GIDs[0] == -1 }},
		"capabilities": {Process{CapInh: 16, CapPrm: 16, CapEff: 16, CapBnd: 256, CapAmb: 16}, func(p *Process) bool {
			return p.CapInh == 16 && p.CapPrm == 17 && p.CapEff == 18 && p.CapBnd == 511 && p.CapAmb == 20
		}},
	} {
		p := good
		p.Groups = slices.Clone(good.Groups)
		if p.worsen(&x.thread); !x.is(&p) {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// TestThisProcess reads the process of the test, of which one thread gives up its rights.
func TestThisProcess(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	kinds := []string{"net", "user"}
	here, err := Here(kinds)
	if err != nil {
		t.Fatal(err)
	}
	before, err := Read(os.Getpid(), kinds)
	if err != nil {
		t.Fatal(err)
	}
	rec := before.Record("test", here)
	if rec.UID != os.Getuid() || rec.Chrooted || len(rec.Namespaces) != 0 || rec.Mounts == 0 || rec.FDs["null"] < 1 || rec.FDs["pipe"] < 2 || rec.PID != os.Getpid() || rec.Role != "test" {
		t.Errorf("%+v", rec)
	}
	if k := before.Shares(here, kinds); k != "net" {
		t.Errorf("of its own namespaces it shares %q first", k)
	}
	apart := Place{Namespaces: map[string]string{"net": "net:[1]"}}
	if k := apart.Shares(here, kinds[:1]); k != "" {
		t.Errorf("a place apart shares %q", k)
	}
	if k := apart.Shares(here, kinds); k != "user" {
		t.Errorf("of a namespace that is not known: %q", k)
	}
	// no_new_privs of one thread is not that of the process.
	set, end := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		set <- unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		<-end
	}()
	defer close(end)
	if err := <-set; err != nil {
		t.Fatal(err)
	}
	after, err := Read(os.Getpid(), kinds)
	if err != nil || after.NoNewPrivs != before.NoNewPrivs {
		t.Errorf("no_new_privs is %d after one thread of many set it, was %d; %v", after.NoNewPrivs, before.NoNewPrivs, err)
	}
	if _, err := Read(1<<30, kinds); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a process that is not there: %v", err)
	}
}

func TestKind(t *testing.T) {
	for want, f := range map[string]FD{
		"socket": {Link: "socket:[1]"}, "pipe": {Link: "pipe:[1]"}, "memfd": {Link: "/memfd:x (deleted)"}, "eventfd": {Link: "anon_inode:[eventfd]"},
		"directory": {Link: "/dev/null", Mode: unix.S_IFDIR}, "device": {Link: "/dev/null", Mode: unix.S_IFCHR, Rdev: unix.Mkdev(1, 1)},
		"null": {Link: "/x", Mode: unix.S_IFCHR, Rdev: unix.Mkdev(1, 3)}, "terminal": {Link: "/dev/pts/0", Mode: unix.S_IFCHR, Rdev: unix.Mkdev(136, 0)},
		"file": {Link: "/socket", Mode: unix.S_IFREG}, "unknown": {Link: "/dev/null"},
	} {
		if got := f.Kind(); got != want {
			t.Errorf("%+v is a %s, not a %s", f, got, want)
		}
	}
	for _, k := range []uint32{unix.S_IFBLK, unix.S_IFIFO} {
		if got := (FD{Link: "/x", Mode: k}).Kind(); got != map[uint32]string{unix.S_IFBLK: "device", unix.S_IFIFO: "pipe"}[k] {
			t.Errorf("%o is a %s", k, got)
		}
	}
}

func TestMounts(t *testing.T) {
	path := t.TempDir() + "/mountinfo"
	const line = "2 1 0:1 /usr /with\\040space ro,nosuid master:1 - ext4 /dev/x rw\n"
	for text, want := range map[string][]Mount{line: {{"/with space", "ro,nosuid"}}, "": nil, line + "x\n": nil, line + "2 1 0:1 / /\n": nil} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var p Process
		if err := p.readMounts(path); (err == nil) != (want != nil || text == "") || err == nil && !slices.Equal(p.Mounts, want) {
			t.Errorf("%q: %+v, %v", text, p.Mounts, err)
		}
	}
}

func TestUnescape(t *testing.T) {
	for in, want := range map[string]string{`/with\040space`: "/with space", `/a\134b`: `/a\b`, `/end\04`: `/end\04`, `/no\999`: `/no\999`, "/": "/"} {
		if got := UnescapeMount(in); got != want {
			t.Errorf("%q is %q, not %q", in, got, want)
		}
	}
}
