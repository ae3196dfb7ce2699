package bottletest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/testenv"
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
	before := len(testenv.Descendants(t, os.Getpid()))
	p := b.start(guestPath, "spawn", "60")
	p.waitFor("spawned")
	var n int
	if _, err := fmt.Sscanf(p.out.String(), "spawned %d", &n); err != nil || n > 30 || n < 10 {
		t.Errorf("%q with a limit of 30", p.out.String())
	}
	if r, err := b.Refusals(b.ctx); err != nil || r.Pids == 0 {
		t.Errorf("refusals after a flood of processes: %+v, %v", r, err)
	}
	after := len(testenv.Descendants(t, os.Getpid()))
	if after-before > 30*4 {
		t.Errorf("30 processes inside are %d on the host", after-before)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	p.stdin.Close()
	p.copied.Wait()
	want(t, "host processes after the end", len(testenv.Descendants(t, os.Getpid())), 0)
}

func (s *suite) limitDisk(t *testing.T) {
	if s.lacking(t, bottle.CapDiskLimit, s.diskUsage) {
		return
	}
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
		// Freed space can be used again.
		b.sh("head -c 8000000 /dev/zero > again; rm again fits")
	}
}

// diskUsage checks that what a bottle writes is seen, so that carboy can end the run.
func (s *suite) diskUsage(t *testing.T) {
	b := s.create(t, func(sp *bottle.Spec) { sp.Scratch = shared(t, sp) })
	for _, dir := range []string{".", "/tmp", "/var/tmp", "$HOME"} {
		before, err := b.Usage()
		if err != nil {
			t.Fatal(err)
		}
		b.sh("head -c 32000000 /dev/zero | tr '\\0' x > " + dir + "/big")
		after, err := b.Usage()
		if err != nil || after.Disk+after.Memory-before.Disk-before.Memory < 30_000_000 {
			t.Errorf("32 MB were written to %s; usage went from %+v to %+v, %v", dir, before, after, err)
		}
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
