//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/testenv"
)

// steps does a step of work again and again, and says its number when it is done: a file
// that is replaced, one that grows, one that moves, a new one, and one that is written
// through memory would each tell of a copy that is torn.
const steps = `echo up; i=0; while :; do i=$((i+1))
printf %0100000d $i >new; mv new count
echo $i >>log
mkdir -p d/$((i/10)) && echo $i >d/$((i/10))/$i
mv name$((i-1)) name$i 2>/dev/null || echo x >name$i
echo $i >~/next; mv ~/next ~/conversation
echo $i; done`

// steps run in a bottle until they are killed.
type worker struct {
	cmd *exec.Cmd
	out *bufio.Scanner
	mu  sync.Mutex
	at  []time.Time // at which step i+1 was heard of
}

func (w *worker) listen() {
	for w.out.Scan() {
		w.mu.Lock()
		w.at = append(w.at, time.Now())
		w.mu.Unlock()
	}
}

// heardBy returns how many steps were heard of before at.
func (w *worker) heardBy(at time.Time) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n < len(w.at) && w.at[n].Before(at) {
		n++
	}
	return n
}

// work starts steps in a bottle, and returns when its first copy is on disk.
func (d *den) work(args ...string) *worker {
	d.t.Helper()
	w := &worker{cmd: d.command(args...)}
	pipe, err := w.cmd.StdoutPipe()
	if err == nil {
		err = w.cmd.Start()
	}
	if err != nil {
		d.t.Fatal(err)
	}
	w.out = bufio.NewScanner(pipe)
	w.out.Scan() // "up"
	go w.listen()
	d.awaitCopy()
	return w
}

func (d *den) awaitCopy() {
	d.t.Helper()
	copied := func() bool {
		l, _ := filepath.Glob(d.home + "/state/carboy/runs/*/checkpoint/*.tar")
		return len(l) > 0
	}
	if !testenv.Poll(patience, copied) {
		d.t.Fatal("no copy of the files was made")
	}
}

// newest returns the record of the newest run.
func (d *den) newest() store.Meta {
	d.t.Helper()
	l, err := filepath.Glob(d.home + "/state/carboy/runs/*/meta.json")
	if err != nil || len(l) == 0 {
		d.t.Fatal("no run", err)
	}
	var m store.Meta
	b, err := os.ReadFile(l[len(l)-1])
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return m
}

// ofOneMoment checks that dir holds the work of one moment, and returns its step.
func ofOneMoment(t *testing.T, dir string) int {
	t.Helper()
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	if _, err := os.Stat(filepath.Join(dir, "count")); errors.Is(err, os.ErrNotExist) {
		return 0 // the first step was not done
	}
	count := read("count")
	n, err := strconv.Atoi(count)
	if err != nil || len(count) != 100000 {
		t.Fatalf("count is torn: %d bytes, %v", len(count), err)
	}
	// One step may have been half done; of the first, the other files may be missing.
	if n == 1 {
		return n
	}
	lines := strings.Fields(read("log"))
	if len(lines) < n-1 || len(lines) > n || lines[len(lines)-1] != fmt.Sprint(len(lines)) {
		t.Errorf("step %d, and the log has %d lines, the last %q", n, len(lines), lines[len(lines)-1])
	}
	for i := 1; i < n; i++ {
		if got := read(fmt.Sprintf("d/%d/%d", i/10, i)); got != fmt.Sprint(i, "\n") {
			t.Errorf("step %d: file %d holds %q", n, i, got)
		}
	}
	if l, _ := filepath.Glob(dir + "/name*"); len(l) != 1 {
		t.Errorf("step %d: the file that moves is %q", n, l)
	}
	return n
}

// Work outlives a carboy that is killed at any moment: everything that was done before the
// last copy lands, as it was at one moment, and a bottle with a name goes on with it.
func TestS5CheckpointKilled(t *testing.T) {
	kills := 10
	if testing.Short() {
		kills = 3
	} else if testenv.Exhaustive() {
		kills = 100
	}
	for i := range kills {
		d := newDen(t, shellAgent(`[ -e ~/conversation ] && { echo "went on after $(cat ~/conversation)"; exit 0; }; `+steps))
		args := []string{"run", "--quiet", "--", "sh", "-c", steps}
		if i%2 == 0 {
			args = []string{"start", "waits", "--cwd", "--headless", "--prompt", "x"}
		}
		w := d.work(args...)
		time.Sleep(rand.N(5 * time.Second)) // the copies that follow, and what merges them
		if err := w.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = w.cmd.Wait()
		d.settled()
		_, msg, code := d.carboy("land", "--yes")
		m := d.newest()
		if code != 0 || m.State != store.Lost || m.Copied == nil {
			t.Fatalf("land: %d %s; %s, copied %v", code, msg, m.State, m.Copied)
		}
		if !strings.Contains(msg, "what it wrote later is lost") {
			t.Errorf("land did not say of when the files are: %s", msg)
		}
		done, least := ofOneMoment(t, d.home+"/ws"), w.heardBy(*m.Copied)
		if done < least {
			t.Errorf("%d steps were done before the last copy, and %d are kept", least, done)
		}
		t.Logf("killed after %d steps: %d were done before the last copy, %d are kept", len(w.at), least, done)
		if _, err := os.Stat(d.home + "/state/carboy/runs/" + string(m.ID) + "/checkpoint"); !os.IsNotExist(err) {
			t.Errorf("the copies are still there: %v", err)
		}
		if i%2 == 1 || done < 2 { // the conversation begins with the first step
			continue
		}
		out, msg, code := d.carboy("resume", m.Name, "--headless", "--prompt", "go on")
		if want := fmt.Sprint("went on after ", done); code != 0 || !strings.Contains(out, want) && !strings.Contains(out, fmt.Sprint("went on after ", done-1)) {
			t.Errorf("resume: %d %q %s; want %q", code, out, msg, want)
		}
	}
}

// When the power fails, what was not synced is gone: the copies were. The state's file
// system is shut down at a random moment without writing what it holds, as a failing power
// supply would do it.
func TestS5CheckpointPowerLoss(t *testing.T) {
	testenv.Root(t)
	times := 3
	if testenv.Exhaustive() {
		times = 30
	}
	for range times {
		d := newDen(t, nil)
		state := filepath.Join(d.home, "state")
		fail := disk(t, state)
		w := d.work("run", "--quiet", "--", "sh", "-c", steps)
		time.Sleep(rand.N(5 * time.Second))
		fail()
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
		// While an inner process of the killed carboy has a file of it open, or a mount of it
		// of its own, the same file system is mounted again, which is shut down.
		again := func() bool {
			_ = exec.Command("umount", state).Run()
			if exec.Command("mount", "-o", "loop", state+".img", state).Run() != nil {
				return false
			}
			return os.WriteFile(state+"/.works", nil, 0o600) == nil && os.Remove(state+"/.works") == nil
		}
		if !testenv.Poll(patience, again) {
			t.Fatalf("%s is in use", state)
		}
		_, msg, code := d.carboy("land", "--yes")
		m := d.newest()
		if code != 0 || m.Copied == nil {
			t.Fatalf("land: %d %s; %s, copied %v", code, msg, m.State, m.Copied)
		}
		done, least := ofOneMoment(t, d.home+"/ws"), w.heardBy(*m.Copied)
		if done < least {
			t.Errorf("%d steps were done before the last copy, and %d are kept", least, done)
		}
		if out, msg, code := d.carboy("audit", "verify"); code != 0 {
			t.Errorf("audit verify: %d %s%s", code, out, msg)
		}
	}
}

// disk mounts a file system of its own at dir, and returns what makes its power fail.
func disk(t *testing.T, dir string) (fail func()) {
	t.Helper()
	img := dir + ".img"
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(img, nil, 0o600), os.Truncate(img, 1<<30)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", img}, {"mount", "-o", "loop", img, dir}} {
		if out, err := exec.Command(testenv.Need(t, args[0], "apt-get install e2fsprogs mount"), args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() { _ = exec.Command("umount", "--lazy", dir).Run() })
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		defer f.Close()
		// EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH, linux/fs/ext4/ext4.h.
		if err := unix.IoctlSetPointerInt(int(f.Fd()), 0x8004587d, 2); err != nil {
			t.Fatal(err)
		}
	}
}

// A bottle whose kernel was killed, as by a machine that runs out of memory, has no changes
// to give: they come from its last copy.
func TestCheckpointOfDeadBottle(t *testing.T) {
	d := newDen(t, nil)
	cmd := d.command("run", "--", "sh", "-c", `echo work >file; read -r x`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var msg strings.Builder
	cmd.Stderr = &msg
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.awaitCopy()
	for _, p := range testenv.Descendants(t, cmd.Process.Pid) {
		_ = syscall.Kill(p.PID, syscall.SIGKILL)
	}
	err = cmd.Wait()
	in.Close()
	if cmd.ProcessState.ExitCode() != 125 {
		t.Errorf("%v: %s", err, msg.String())
	}
	out, more, code := d.carboy("diff")
	if code != 0 || !strings.Contains(out, "+work") || !strings.Contains(out, "what it wrote later is lost") {
		t.Errorf("diff: %d %s%s\nthe run said: %s", code, out, more, msg.String())
	}
}

// Where the workspace is gone, the copy waits until it is back.
func TestCheckpointWithoutWorkspace(t *testing.T) {
	d := newDen(t, nil)
	w := d.work("run", "--quiet", "--", "sh", "-c", steps)
	if err := errors.Join(os.Rename(d.home+"/ws", d.home+"/elsewhere"), os.Mkdir(d.home+"/ws", 0o755), w.cmd.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = w.cmd.Wait()
	d.settled()
	if m := d.newest(); m.CopyError == "" || m.Copied != nil {
		t.Errorf("copied %v, error %q", m.Copied, m.CopyError)
	}
	if _, msg, code := d.carboy("list"); code != 0 || msg != "" {
		t.Errorf("the second command: %d %s", code, msg)
	}
	if err := errors.Join(os.Remove(d.home+"/ws"), os.Rename(d.home+"/elsewhere", d.home+"/ws")); err != nil {
		t.Fatal(err)
	}
	_, msg, code := d.carboy("land", "--yes")
	if m := d.newest(); code != 0 || m.CopyError != "" || m.Copied == nil || !strings.Contains(msg, "are kept: carboy diff") {
		t.Fatalf("land: %d %s; copied %v, error %q", code, msg, m.Copied, m.CopyError)
	}
	ofOneMoment(t, d.home+"/ws")
}

// The copies are for the case that something dies: of a run that ended nothing is left.
func TestCheckpointOfWhatEnded(t *testing.T) {
	d := newDen(t, nil)
	cmd := d.command("run", "--", "sh", "-c", `echo work >file; read -r x; echo more >>file`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.awaitCopy()
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if l, _ := filepath.Glob(d.home + "/state/carboy/runs/*/checkpoint"); len(l) > 0 {
		t.Errorf("left: %q", l)
	}
	if out, msg, code := d.carboy("diff"); code != 0 || !strings.Contains(out, "+more") || strings.Contains(out, "later is lost") {
		t.Errorf("diff: %d %s%s", code, out, msg)
	}
}
