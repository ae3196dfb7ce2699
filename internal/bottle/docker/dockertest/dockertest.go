// Package dockertest starts a Docker Engine of its own for tests.
package dockertest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/testenv"
)

const patience = 2 * time.Minute

// keeper starts the Engine, and ends it when its standard input ends: with the test's
// process, however that ends. The Engine is no child of the test, which counts those.
const keeper = `"$@" >"$LOG" 2>&1 & p=$!; read x; kill $p; wait $p; echo over >"$DONE"`

// Engine is a Docker Engine beside the machine's own. It has no bridge and touches no
// firewall.
type Engine struct {
	Socket string
	dir    string
	stdin  *os.File
}

// Start starts an Engine, with more options of dockerd's, and names it in DOCKER_HOST. The
// caller stops it. Without root or Docker the test is skipped.
func Start(t testing.TB, options ...string) *Engine {
	t.Helper()
	testenv.Root(t)
	dockerd := testenv.Need(t, "dockerd", "apt-get install docker.io")
	setsid := testenv.Need(t, "setsid", "apt-get install util-linux")
	dir, err := os.MkdirTemp("", "dk") // short, because the paths of sockets are bounded
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{Socket: dir + "/s", dir: dir, stdin: w}
	cmd := exec.Command(setsid, append([]string{"--fork", "/bin/sh", "-c", keeper, "sh", dockerd,
		"--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false",
		"--data-root", dir + "/data", "--exec-root", dir + "/x", "-H", "unix://" + e.Socket, "-p", dir + "/pid"}, options...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LOG=" + dir + "/log", "DONE=" + dir + "/done"}
	cmd.Stdin = r
	err = cmd.Run()
	r.Close()
	if err != nil {
		t.Fatal(err)
	}
	up := testenv.Poll(testenv.Patience(patience), func() bool {
		c, err := net.Dial("unix", e.Socket)
		if err != nil {
			return false
		}
		defer c.Close()
		fmt.Fprint(c, "GET /_ping HTTP/1.0\r\n\r\n")
		answer := make([]byte, 12)
		_, err = c.Read(answer)
		return err == nil && strings.HasSuffix(string(answer), " 200")
	})
	if !up {
		log, _ := os.ReadFile(dir + "/log")
		e.Stop(t)
		lines := strings.Split(strings.TrimSpace(string(log)), "\n")
		testenv.Missing(t, "a Docker Engine that starts here ("+lines[len(lines)-1]+")", "cgroups and mounts as root")
	}
	os.Setenv("DOCKER_HOST", "unix://"+e.Socket)
	return e
}

// PID returns the number of the Engine's process.
func (e *Engine) PID() string {
	b, _ := os.ReadFile(e.dir + "/pid")
	return strings.TrimSpace(string(b))
}

// Stop ends the Engine and removes its files.
func (e *Engine) Stop(t testing.TB) {
	os.Unsetenv("DOCKER_HOST")
	e.stdin.Close()
	if !testenv.Poll(testenv.Patience(patience), func() bool { _, err := os.Stat(e.dir + "/done"); return err == nil }) {
		t.Error("the Engine does not end")
	}
	// An Engine that was killed leaves its mounts.
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], e.dir+"/") {
			_ = unix.Unmount(f[1], unix.MNT_DETACH)
		}
	}
	if err := os.RemoveAll(e.dir); err != nil {
		left, _ := filepath.Glob(e.dir + "/*/*")
		t.Errorf("the Engine left %q: %v", left, err)
	}
}
