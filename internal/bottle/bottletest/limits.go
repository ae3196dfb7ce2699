package bottletest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/carboy/carboy/internal/bottle"
)

func (s *suite) limitsValidated(t *testing.T) {
	for name, tune := range map[string]func(*bottle.Limits){
		"memory": func(l *bottle.Limits) { l.Memory = 0 }, "pids": func(l *bottle.Limits) { l.Pids = 0 },
		"disk": func(l *bottle.Limits) { l.Disk = 0 }, "cpus": func(l *bottle.Limits) { l.CPUs = 0 },
		"output": func(l *bottle.Limits) { l.Output = -1 }, "file size": func(l *bottle.Limits) { l.FileSize = 0 },
		"open files": func(l *bottle.Limits) { l.OpenFiles = 0 }, "timeout": func(l *bottle.Limits) { l.Timeout = -1 },
	} {
		spec := s.spec(t)
		tune(&spec.Limits)
		if b, err := s.backend().Create(t.Context(), spec); err == nil {
			b.Close()
			t.Errorf("a bottle without a limit on %s was made", name)
		}
	}
}

func (s *suite) limitPids(t *testing.T) {
	b := s.create(t, func(sp *bottle.Spec) { sp.Limits.Pids = 30 })
	if r, err := b.Refusals(b.ctx); err != nil || r.Pids != 0 {
		t.Errorf("refusals before: %+v, %v", r, err)
	}
	before := len(descendants(t))
	p := b.start(guestPath, "spawn", "60")
	p.waitFor("spawned")
	var n int
	if _, err := fmt.Sscanf(p.out.String(), "spawned %d", &n); err != nil || n > 30 || n < 10 {
		t.Errorf("%q with a limit of 30", p.out.String())
	}
	if r, err := b.Refusals(b.ctx); err != nil || r.Pids == 0 {
		t.Errorf("refusals after a flood of processes: %+v, %v", r, err)
	}
	after := len(descendants(t))
	if after-before > 30*4 {
		t.Errorf("30 processes inside are %d on the host", after-before)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	p.stdin.Close()
	p.copied.Wait()
	want(t, "host processes after the end", len(descendants(t)), 0)
}

func (s *suite) limitDisk(t *testing.T) {
	for _, scratch := range []bool{false, true} {
		b := s.create(t, func(sp *bottle.Spec) {
			sp.Limits.Disk = 16 * mib
			if scratch {
				sp.Scratch = shared(t, sp)
			}
		})
		b.sh("head -c 8000000 /dev/zero > fits")
		for _, dir := range []string{".", "/tmp", "/var/tmp", "$HOME"} {
			out := b.sh("head -c 32000000 /dev/zero > " + dir + "/big 2>/dev/shm/err && echo fits; grep -o 'No space left' /dev/shm/err || true; rm -f " + dir + "/big")
			want(t, "32 MB into "+dir+" with a limit of 16", strings.TrimSpace(out), "No space left")
		}
		// Space that is given back can be used again.
		b.sh("head -c 8000000 /dev/zero > again; rm again fits")
	}
}

func (s *suite) limitFileSize(t *testing.T) {
	b := s.create(t, func(sp *bottle.Spec) { sp.Limits.FileSize = 4 * mib })
	b.sh("head -c 4000000 /dev/zero > fits")
	st := b.start("/bin/sh", "-c", "exec head -c 8000000 /dev/zero > big").end()
	if st.Signal != syscall.SIGXFSZ && st.Code == 0 {
		t.Errorf("8 MB into one file with a limit of 4 MiB: %+v", st)
	}
	b.sh("test $(stat -c %s big) -le 4194304; ulimit -f unlimited 2>/dev/null && exit 1; exit 0")
}

func (s *suite) limitOpenFiles(t *testing.T) {
	b := s.create(t, func(sp *bottle.Spec) { sp.Limits.OpenFiles = 64 })
	want(t, "limit", b.sh("ulimit -n; ulimit -Hn"), "64\n64\n")
	b.sh("if (ulimit -n 1000) 2>/dev/null; then exit 1; fi")
}

func (s *suite) memory(t *testing.T) {
	b := s.create(t)
	idle, err := b.Usage()
	if err != nil || idle.Memory <= 0 {
		t.Fatalf("usage of an idle bottle: %+v, %v", idle, err)
	}
	p := b.start(guestPath, "touch", strconv.Itoa(200*mib))
	p.waitFor("touched")
	used, err := b.Usage()
	if n := used.Memory - idle.Memory; err != nil || n < 190*mib || n > 400*mib {
		t.Errorf("200 MiB were touched; usage went from %+v to %+v, %v", idle, used, err)
	}
	p.end()
}

// process is a host process, told from a later one with the same number.
type process struct {
	pid   int
	start string
	name  string
}

// descendants are the processes of the host that descend from this one.
func descendants(t testing.TB) []process {
	t.Helper()
	ents, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	parent := map[int]int{}
	all := map[int]process{}
	for _, e := range ents {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p, ppid, ok := readStat(pid)
		if ok {
			parent[pid], all[pid] = ppid, p
		}
	}
	var out []process
	for pid, p := range all {
		for up := parent[pid]; up != 0; up = parent[up] {
			if up == os.Getpid() {
				out = append(out, p)
				break
			}
		}
	}
	return out
}

// readStat reads proc_pid_stat(5).
func readStat(pid int) (p process, ppid int, ok bool) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return p, 0, false
	}
	s := string(b)
	open, end := strings.IndexByte(s, '('), strings.LastIndexByte(s, ')')
	if open < 0 || end < 0 {
		return p, 0, false
	}
	f := strings.Fields(s[end+1:])
	if len(f) < 20 {
		return p, 0, false
	}
	ppid, err = strconv.Atoi(f[1])
	return process{pid, f[19], s[open+1 : end]}, ppid, err == nil
}

// alive reports whether p is still there.
func (p process) alive() bool {
	now, _, ok := readStat(p.pid)
	return ok && now.start == p.start
}
