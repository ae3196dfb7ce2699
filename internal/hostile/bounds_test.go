package hostile

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/testenv"
)

// hostUse counts the host's resources, which a flood inside must not change.
type hostUse struct {
	processes int
	disk      int64 // bytes below the state directory
	mounts    string
}

func (h *host) use() hostUse {
	h.t.Helper()
	var u hostUse
	u.processes = len(testenv.Living(h.t, os.Getpid()))
	filepath.Walk(h.vars["XDG_STATE_HOME"], func(_ string, fi os.FileInfo, err error) error {
		if err == nil && fi.Mode().IsRegular() {
			u.disk += fi.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return nil
	})
	u.mounts = testenv.Mounts(h.t)
	return u
}

// same fails the test when the host is not what it was; slack is for the run's
// own records, in bytes.
func (h *host) same(before hostUse, slack int64) {
	h.t.Helper()
	now := h.use()
	if now.processes != before.processes {
		h.t.Errorf("%d host processes, before %d", now.processes, before.processes)
	}
	if now.disk-before.disk > slack {
		h.t.Errorf("%d bytes of disk are used, before %d", now.disk, before.disk)
	}
	h.noMountLeft(before.mounts)
}

func limited(f func(o *carboy.RunOptions)) func(*carboy.RunOptions) { return f }

// peakProcesses watches how many host processes a run has.
func peakProcesses(t *testing.T) (stop func() int) {
	end, done := make(chan struct{}), make(chan int)
	go func() {
		peak := 0
		for {
			peak = max(peak, len(testenv.Living(t, os.Getpid())))
			select {
			case <-end:
				done <- peak
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return func() int { close(end); return <-done }
}

// TestS4ForkBomb: a fork bomb meets its limit, the run ends typed, and the host
// gets its processes back.
func TestS4ForkBomb(t *testing.T) {
	h := newHost(t)
	before := h.use()
	stop := peakProcesses(t)
	x := h.run(limited(func(o *carboy.RunOptions) { o.Limits.Pids = 60 }),
		"/bin/bash", "-c", "b() { b | b & }; b; for ((i = 0; i < 200; i++)); do (:); done")
	peak := stop()
	if x.rec == nil || !x.hit("pids") || x.rec.Exit.Reason == "" || x.rec.Exit.Reason == receipt.Failed {
		t.Errorf("a fork bomb ended with %+v %v, limits %+v", exitOf(x.rec), x.err, x.rec.Limits.Hit)
	}
	if peak > 60*4+20 {
		t.Errorf("%d host processes for 60 inside", peak)
	}
	h.same(before, mib)
	// As many as the limit allows do run.
	x = h.run(limited(func(o *carboy.RunOptions) { o.Limits.Pids = 60 }), guestPath, "spawn")
	x.exited(0)
	n, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(x.out, "started ")))
	if err != nil || n < 40 || n > 60 {
		t.Errorf("%q of 60 processes", x.out)
	}
	h.same(before, 2*mib)
}

// TestS4Memory: a memory bomb ends the run with its own reason, and changes
// made before are kept.
func TestS4Memory(t *testing.T) {
	h := newHost(t)
	before := h.use()
	x := h.run(limited(func(o *carboy.RunOptions) { o.Limits.Memory = 200 * mib }), "/bin/sh", "-c", "echo kept > kept; "+guestPath+" touch-memory")
	if x.rec == nil || x.rec.Exit.Reason != receipt.Memory || !x.hit("memory") {
		t.Errorf("a memory bomb ended with %+v %v", exitOf(x.rec), x.err)
	}
	if x.rec.Changes == nil || x.rec.Changes.Added != 1 {
		t.Errorf("changes made before the limit: %+v", x.rec.Changes)
	}
	h.same(before, mib)
	h.run(limited(func(o *carboy.RunOptions) { o.Limits.Memory = 200 * mib }), "/bin/sh", "-c", "head -c 50000000 /dev/zero | tail -c 1").exited(0)
}

// sandboxMemory returns the memory of all bottles' processes, in bytes.
func sandboxMemory(t testing.TB) (n int64) {
	for _, p := range testenv.Living(t, os.Getpid()) {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/status")
		if err != nil || !strings.Contains(string(b), "Threads:") {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "RssAnon:"); ok {
				kb, _ := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
				n += kb << 10
			}
		}
	}
	return n
}

// kernelFlood runs a flood that the kernel inside must hold in its own memory,
// and fails when the host's processes grew far beyond the bottle's limit.
func kernelFlood(t *testing.T, tool ...string) *outcome {
	t.Helper()
	h := newHost(t)
	before := h.use()
	end, peak := make(chan struct{}), make(chan int64)
	go func() {
		var top int64
		for {
			top = max(top, sandboxMemory(t))
			select {
			case <-end:
				peak <- top
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	const limit = 256 * mib
	x := h.run(limited(func(o *carboy.RunOptions) {
		o.Limits.Memory, o.Limits.OpenFiles, o.Limits.Timeout = limit, 4096, time.Minute
	}), append([]string{guestPath}, tool...)...)
	close(end)
	top := <-peak
	t.Logf("%v: %+v, %s, the bottle's processes held %d MiB", tool, exitOf(x.rec), strings.TrimSpace(x.out), top/mib)
	if x.rec == nil || x.rec.Exit.Reason == receipt.Failed || x.rec.Exit.Reason == "" {
		t.Errorf("the flood ended with %+v, %v", exitOf(x.rec), x.err)
	}
	// The kernel's own working set is beside the limit; what a process takes
	// within one look at the meter too.
	if top > limit+256*mib {
		t.Errorf("the bottle's processes held %d MiB with a limit of %d", top/mib, limit/mib)
	}
	h.same(before, 32*mib)
	return x
}

// TestS4Inodes: files without contents cost the kernel memory too.
func TestS4Inodes(t *testing.T) { kernelFlood(t, "make-inodes", "400000") }

// TestS4KernelBuffers: pipes and sockets that are full cost it as well.
func TestS4KernelBuffers(t *testing.T) { kernelFlood(t, "fill-pipes") }

// TestS4Disk: a disk filler is refused inside; the run goes on, the receipt
// says it, and the host's disk is given back.
func TestS4Disk(t *testing.T) {
	h := newHost(t)
	before := h.use()
	x := h.run(limited(func(o *carboy.RunOptions) { o.Limits.Disk = 32 * mib; o.Limits.FileSize = 32 * mib }), "/bin/sh", "-c",
		"i=0; while head -c 4000000 /dev/zero > /tmp/f$i 2>/dev/null; do i=$((i+1)); test $i -lt 100 || break; done; echo $i; sleep 0.5; rm -f /tmp/f*; echo after > after && cat after")
	x.exited(0)
	f := strings.Fields(x.out)
	if n, err := strconv.Atoi(f[0]); err != nil || n < 4 || n > 9 || len(f) != 2 || f[1] != "after" {
		t.Errorf("output %q: %d MB fit", x.out, 4*n)
	}
	if !x.hit("disk") {
		t.Errorf("limits hit: %+v", x.rec.Limits.Hit)
	}
	h.same(before, mib)
}

// TestS4Sparse: a file that is large in name only is bounded by its name, and
// one that fits costs nothing.
func TestS4Sparse(t *testing.T) {
	h := newHost(t)
	before := h.use()
	if x := h.run(nil, guestPath, "sparse", strconv.Itoa(1<<40)); x.rec == nil || x.rec.Exit.Code == 0 {
		t.Errorf("a file of a terabyte was made: %+v", exitOf(x.rec))
	}
	x := h.run(nil, guestPath, "sparse", strconv.Itoa(60*mib))
	x.exited(0)
	if x.rec.Changes == nil || x.rec.Changes.Added != 1 || len(x.rec.Changes.Incomplete) > 0 {
		t.Errorf("changes %+v", x.rec.Changes)
	}
	h.same(before, 2*mib)
}

// TestS4Output: output is bounded in what is kept and shown.
func TestS4Output(t *testing.T) {
	h := newHost(t)
	before := h.use()
	for _, stream := range []string{"", " >&2"} {
		x := h.run(limited(func(o *carboy.RunOptions) { o.Limits.Output = 2 * mib }), "/bin/sh", "-c", "yes"+stream)
		if x.rec == nil || x.rec.Exit.Reason != receipt.Output || !x.hit("output") {
			t.Errorf("a flood of output ended with %+v %v", exitOf(x.rec), x.err)
		}
		if n := len(x.out) + len(x.msg); n > 2*mib {
			t.Errorf("%d bytes were shown", n)
		}
	}
	h.same(before, 8*mib)
	x := h.run(limited(func(o *carboy.RunOptions) { o.Limits.Output = 2 * mib }), "/bin/sh", "-c", "yes | head -c 2000000")
	x.exited(0)
}

// TestS4Descriptors: a process runs out of descriptors alone.
func TestS4Descriptors(t *testing.T) {
	h := newHost(t)
	before := h.use()
	x := h.run(limited(func(o *carboy.RunOptions) { o.Limits.OpenFiles = 256 }), guestPath, "open-files")
	x.exited(0)
	if n, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(x.out, "opened "))); err != nil || n < 200 || n > 256 {
		t.Errorf("%q of 256", x.out)
	}
	h.same(before, mib)
}

// TestS4WallClock: time runs out also for what ignores every signal.
func TestS4WallClock(t *testing.T) {
	h := newHost(t)
	before := h.use()
	x := h.run(limited(func(o *carboy.RunOptions) { o.Limits.Timeout = 700 * time.Millisecond }), "/bin/sh", "-c",
		"echo kept > kept; trap '' TERM INT HUP QUIT ALRM; (setsid sh -c \"trap '' TERM HUP; sleep 600\" &) ; while :; do :; done")
	if x.rec == nil || x.rec.Exit.Reason != receipt.Timeout || x.rec.Exit.Code != 124 {
		t.Errorf("ended with %+v %v", exitOf(x.rec), x.err)
	}
	if x.rec.Changes == nil || x.rec.Changes.Added != 1 {
		t.Errorf("changes %+v", x.rec.Changes)
	}
	h.same(before, mib)
	h.sh(limited(func(o *carboy.RunOptions) { o.Limits.Timeout = time.Minute }), "sleep 0.1")
}
