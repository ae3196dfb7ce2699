package docker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/docker/dockertest"
	"github.com/carboy/carboy/internal/bottle/rootfs"
	"github.com/carboy/carboy/internal/guest/program"
	"github.com/carboy/carboy/internal/testenv"
)

// victimName is argv[0] of a process that makes a bottle and is killed.
const victimName = "docker-victim"

// victim makes a bottle, runs a command in it, and says what it has done.
func victim() {
	fmt.Println("begun")
	x, err := Backend{}.Create(context.Background(), emptySpec())
	if err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	fmt.Print("made ", len(x.Posture().Processes))
	for _, p := range x.Posture().Processes {
		fmt.Print(" ", p.PID)
	}
	fmt.Println()
	select {}
}

// emptySpec is a bottle with nothing in it.
func emptySpec() *bottle.Spec {
	return &bottle.Spec{
		ID: "crash", Hostname: "crash", User: bottle.User{UID: 1000, GID: 1000, Name: "carboy", Home: "/home/carboy"},
		Limits: bottle.Limits{Memory: 1 << 28, Pids: 50, Disk: 1 << 24, CPUs: 1, Output: 1 << 20, FileSize: 1 << 20, OpenFiles: 100},
	}
}

// containers returns how many containers the Engine has of carboy's.
func containers(t *testing.T) int {
	t.Helper()
	e, err := connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var list []struct{}
	q := url.Values{"all": {"1"}, "filters": {`{"label":["` + labelOwner + `"]}`}}
	if err := e.call(t.Context(), http.MethodGet, "/containers/json", q, nil, &list); err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestKilledAtAnyMoment kills carboy at moments of the making of a bottle. What is left is
// swept by the next bottle, and the host has no more mounts than before.
func TestKilledAtAnyMoment(t *testing.T) {
	t.Run("runc", func(t *testing.T) { withEngine(t); killedAtAnyMoment(t, 1) })
	t.Run("a kernel", func(t *testing.T) { withKernel(t); killedAtAnyMoment(t, 2) })
}

// killedAtAnyMoment does so with bottles of so many containers.
func killedAtAnyMoment(t *testing.T, each int) {
	mounts := testenv.Mounts(t)
	rounds := 10
	if testenv.Exhaustive() {
		rounds = 100
	}
	var took time.Duration
	for i := range rounds {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{victimName}, Env: os.Environ(), Stdout: w, Stderr: os.Stderr}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w.Close()
		begin := time.Now()
		var word string
		var pids []int
		fmt.Fscan(r, &word)
		if i == 0 {
			// The first one is let live until its bottle is there.
			var n int
			if _, err := fmt.Fscan(r, &word, &n); err != nil || word != "made" {
				t.Fatalf("%v %q", err, word)
			}
			pids = make([]int, n)
			for j := range pids {
				fmt.Fscan(r, &pids[j])
			}
			took = time.Since(begin)
		} else {
			// A share of that time: each round kills it a little later.
			unixPoll(r, took*time.Duration(i)/time.Duration(rounds))
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		r.Close()
		for _, pid := range pids {
			if !testenv.Poll(testenv.Patience(time.Minute), func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH }) {
				t.Errorf("process %d of the bottle outlived carboy", pid)
			}
		}
	}
	x, err := Backend{}.Create(t.Context(), emptySpec())
	if err != nil {
		t.Fatal(err)
	}
	// The Engine may finish a container that a carboy asked for before it was killed.
	e, err := connect(t.Context())
	if err == nil {
		err = e.sweep(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if n := containers(t); n != each {
		t.Errorf("beside a new bottle there are %d containers of carboys that were killed", n-each)
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	if n := containers(t) + volumes(t); n != 0 {
		t.Errorf("%d containers and volumes are left", n)
	}
	if now := testenv.Mounts(t); now != mounts {
		t.Errorf("mounts are\n%s\nand were\n%s", now, mounts)
	}
}

// unixPoll waits until r has something or that time is over: the time at which the victim
// is to be killed.
func unixPoll(r *os.File, d time.Duration) {
	p := []unix.PollFd{{Fd: int32(r.Fd()), Events: unix.POLLIN}}
	_, _ = unix.Poll(p, int(d.Milliseconds()))
}

// TestEngineKilled kills the Engine beside a living bottle, which must end all the same,
// and beside a paused one, which cannot take a signal by itself.
func TestEngineKilled(t *testing.T) {
	for name, paused := range map[string]bool{"running": false, "paused": true, "paused with a kernel": true} {
		t.Run(name, func(t *testing.T) {
			start := withKernel
			if !strings.HasSuffix(name, "kernel") {
				start = func(t *testing.T) *dockertest.Engine { return withEngine(t) }
			}
			e := start(t)
			x, err := Backend{}.Create(t.Context(), emptySpec())
			if err != nil {
				t.Fatal(err)
			}
			if paused {
				if err := x.Pause(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			var inside []testenv.Process
			for _, p := range x.Posture().Processes {
				proc, there := testenv.ReadProcess(p.PID)
				if !there {
					t.Fatalf("there is no process %s of the bottle", p.Role)
				}
				inside = append(inside, proc)
			}
			pid, err := strconv.Atoi(e.PID())
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if err := x.Close(); err != nil {
				t.Error(err)
			}
			// Who reaps it may do so later: the Engine is gone.
			for _, p := range inside {
				if p.Alive() {
					t.Errorf("process %d of the bottle lives", p.PID)
				}
			}
			if err := (Backend{}).Check(t.Context()); err == nil {
				t.Error("without an Engine bottles can be made")
			}
		})
	}
}

// TestEngineSettings: what an Engine does to all its containers is not done to bottles.
func TestEngineSettings(t *testing.T) {
	withEngine(t, "--init", "--default-ulimit", "core=1000:1000", "--default-ipc-mode", "shareable")
	x, err := Backend{}.Create(t.Context(), emptySpec())
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}

// TestS1ForeignImage: an image with the name of carboy's, which anybody's archive of
// images can bring along, is not started as the guest program.
func TestS1ForeignImage(t *testing.T) {
	withEngine(t)
	e, err := connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	bin, err := program.Binary()
	if err != nil {
		t.Fatal(err)
	}
	text, err := tarOf(append(slices.Clone(bin), "changed"...))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.makeImage(t.Context(), text); err != nil {
		t.Fatal(err)
	}
	x, err := Backend{}.Create(t.Context(), emptySpec())
	var refused *bottle.PostureError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), "docker rmi") {
		t.Errorf("%v", err)
	}
	if x != nil {
		x.Close()
	}
	if n := containers(t); n != 0 {
		t.Errorf("%d containers are left", n)
	}
}

// TestProbe makes and removes an empty bottle, as carboy doctor does.
func TestProbe(t *testing.T) {
	withEngine(t)
	p, err := Backend{}.Probe(t.Context(), emptySpec())
	if err != nil || p.Isolation != bottle.IsolationContainer {
		t.Errorf("%+v, %v", p, err)
	}
	if n := containers(t); n != 0 {
		t.Errorf("%d containers are left", n)
	}
	spec := emptySpec()
	spec.User.UID = 0
	if x, err := (Backend{}).Create(t.Context(), spec); err == nil {
		x.Close()
		t.Error("a bottle whose user is root was made")
	}
}

// run runs a script in a bottle with this machine's tools, and returns its output.
func run(t *testing.T, x bottle.Bottle, script string) (string, bottle.Status) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p, err := x.Start(t.Context(), &bottle.Command{Args: []string{"/bin/bash", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/", Stdin: null, Stdout: w, Stderr: w})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	st, err := p.Wait(t.Context())
	if err != nil {
		t.Fatalf("%v, after %q", err, out)
	}
	return string(out), st
}

// hostsBottle makes a bottle with this machine's tools, in an Engine of its own.
func hostsBottle(t *testing.T) bottle.Bottle {
	t.Helper()
	withEngine(t)
	spec := emptySpec()
	var err error
	if spec.Root, err = rootfs.Host(rootfs.Options{User: spec.User, Hostname: spec.Hostname}); err != nil {
		t.Fatal(err)
	}
	x, err := Backend{}.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return x
}

// TestS1FirstProcess attacks the guest program, which has the commands' user id: by every
// signal, and by what /proc has of it. Beside it, a command can do the same to its own.
func TestS1FirstProcess(t *testing.T) {
	x := hostsBottle(t)
	out, _ := run(t, x, `for s in $(seq 1 64); do kill -$s 1 2>/dev/null; done; sleep 30 & kill -9 $!; wait $!; echo own $?`)
	if !strings.Contains(out, "own 137") {
		t.Errorf("its own process: %q", out)
	}
	for _, name := range []string{"environ", "mem", "maps", "fd/0", "fd/3", "root/etc/passwd", "cwd/etc/passwd"} {
		out, st := run(t, x, "head -c 1 /proc/1/"+name+" && echo read; head -c 1 /proc/self/environ >/dev/null && echo own")
		if strings.Contains(out, "read\n") || !strings.Contains(out, "own\n") {
			t.Errorf("/proc/1/%s: %q, %+v", name, out, st)
		}
	}
	if out, st := run(t, x, "echo lives"); out != "lives\n" || st.ExitCode() != 0 {
		t.Errorf("the bottle afterwards: %q %+v", out, st)
	}
}

// tracer looks for processes that are about to become commands, and says when it has seen
// some, or that one let it into its memory. One that has become a command meanwhile may.
const tracer = `
import os
seen = set()
def comm(p):
    with open("/proc/%s/comm" % p) as f: return f.read().strip()
print("ready", flush=True)
while len(seen) < 5:
    for p in os.listdir("/proc"):
        try:
            if not p.isdigit() or p in seen or comm(p) != "exe": continue
            seen.add(p)
            with open("/proc/%s/mem" % p, "rb"):
                if comm(p) == "exe": print("read", flush=True)
        except OSError: pass
print("seen", flush=True)
`

// TestS1OnTheWayToACommand attacks what the guest program starts, before that is confined
// as commands are.
func TestS1OnTheWayToACommand(t *testing.T) {
	testenv.Need(t, "python3", "apt-get install python3")
	x := hostsBottle(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	_, err = x.Start(t.Context(), &bottle.Command{Args: []string{"/usr/bin/python3", "-c", tracer}, Env: []string{}, Dir: "/", Stdin: null, Stdout: w, Stderr: w})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 10)
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(r); in.Scan(); {
			lines <- in.Text()
		}
	}()
	if got := <-lines; got != "ready" {
		t.Fatalf("%q", got)
	}
	for end := time.Now().Add(testenv.Patience(2 * time.Minute)); time.Now().Before(end); {
		run(t, x, "true")
		select {
		case got := <-lines:
			if got != "seen" {
				t.Errorf("the tracer says %q", got)
			}
			return
		default:
		}
	}
	t.Error("the tracer saw nothing")
}

// TestS2SocketsInMounts connects to a socket of the host that lies in a mount which is
// shown read-only, and in a directory of the root. Beside it lies a file that can be read.
func TestS2SocketsInMounts(t *testing.T) {
	withEngine(t)
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(dir+"/file", []byte("shown"), 0o644)); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", dir+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(dir+"/s", 0o777); err != nil {
		t.Fatal(err)
	}
	testenv.Need(t, "python3", "apt-get install python3")
	spec := emptySpec()
	if spec.Root, err = rootfs.Host(rootfs.Options{User: spec.User, Hostname: spec.Hostname}); err != nil {
		t.Fatal(err)
	}
	spec.Mounts = []bottle.Mount{{Source: dir, Target: "/given", Access: bottle.AccessReadOnly}}
	spec.Root.Binds = append(spec.Root.Binds, bottle.Mount{Source: dir, Target: "/opt/bound", Access: bottle.AccessReadOnly})
	x, err := Backend{}.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for _, at := range []string{"/given", "/opt/bound"} {
		out, _ := run(t, x, "cat "+at+`/file; echo; python3 -c 'import socket; s=socket.socket(socket.AF_UNIX); s.connect("`+at+`/s"); print("reached")' 2>&1 | tail -1`)
		if !strings.HasPrefix(out, "shown\n") || !strings.Contains(out, "refused") {
			t.Errorf("%s: %q", at, out)
		}
	}
}
