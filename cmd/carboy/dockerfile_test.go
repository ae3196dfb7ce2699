package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/testenv"
)

// startEngine starts a Docker Engine of the test's own, and ends it. It needs no bridge
// and changes nothing of the host's network.
func startEngine(t *testing.T) (socket string, stop func()) {
	t.Helper()
	return startDaemon(t, "dockerd", "apt-get install docker.io", func(dir string) []string {
		return []string{"--bridge=none", "--iptables=false", "--ip-forward=false",
			"--data-root=" + dir + "/data", "--exec-root=" + dir + "/exec", "--pidfile=" + dir + "/pid", "--host=unix://" + dir + "/sock"}
	})
}

// startBuildkit starts a BuildKit daemon of the test's own.
func startBuildkit(t *testing.T) (socket string, stop func()) {
	t.Helper()
	testenv.Need(t, "buildctl", "cd .ci/buildkit && GOBIN=/usr/local/bin go install tool")
	return startDaemon(t, "buildkitd", "cd .ci/buildkit && GOBIN=/usr/local/bin go install tool", func(dir string) []string {
		return []string{"--root=" + dir + "/data", "--addr=unix://" + dir + "/sock", "--oci-worker-net=host", "--oci-worker-snapshotter=native", "--containerd-worker=false"}
	})
}

// startDaemon starts one that makes mounts, where nobody else sees them, and waits until
// it answers at dir/sock.
func startDaemon(t *testing.T, name, install string, args func(dir string) []string) (socket string, stop func()) {
	t.Helper()
	testenv.Root(t)
	program := testenv.Need(t, name, install)
	unshare := testenv.Need(t, "unshare", "apt-get install util-linux")
	dir, err := os.MkdirTemp("", name+"-")
	if err != nil {
		t.Fatal(err)
	}
	socket = dir + "/sock"
	cmd := exec.Command(unshare, append([]string{"--mount", "--kill-child=SIGTERM", "--fork", program}, args(dir)...)...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() { cmd.Wait(); close(over) }() // ends with the daemon
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		// unshare passes no signal on; its only child is the daemon.
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
		exec.Command("kill", strings.Fields(string(children))...).Run()
		select {
		case <-over:
		case <-time.After(patience):
			cmd.Process.Kill()
			<-over
		}
	}
	t.Cleanup(func() { stop(); os.RemoveAll(dir) })
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if c, err := net.Dial("unix", socket); err == nil {
			c.Close()
			return socket, stop
		}
		select {
		case <-over:
			t.Fatalf("%s does not run here:\n%s", name, log.String())
		default:
		}
		if time.Now().After(end) {
			stop()
			t.Fatalf("%s does not answer:\n%s", name, log.String())
		}
	}
}

// TestStartDockerfile: a bottle's Dockerfile is built by a real engine, once; what it
// made is the bottle's root, and is so without the engine from then on.
func TestStartDockerfile(t *testing.T) {
	socket, stop := startEngine(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	d := newDen(t, map[string]string{
		"bottles/box/Dockerfile":    "FROM scratch\nCOPY carboy /opt/tools/carboy\nCOPY note /etc/\nENV PATH=/opt/tools MADE=here\n",
		"bottles/box/note":          "made by an engine\n",
		"bottles/box/secret":        "not to be sent\n",
		"bottles/box/.dockerignore": "secret\n",
		"bottles/boxed.md":          "---\nagent_provider: {template: command, dockerfile: box/Dockerfile, settings: {command: [carboy, version, '{prompt}']}}\n---\n",
		"bottles/theirs.md":         "---\nagent_provider: {template: command, dockerfile: WS/Dockerfile, settings: {command: [carboy, version, '{prompt}']}}\n---\n",
		"bottles/bad.md":            "---\nextends: boxed\nagent_provider: {dockerfile: bad/Dockerfile}\n---\n",
		"bottles/bad/Dockerfile":    "FROM scratch\nCOPY nothing-\\x1b[2J /\n",
		"bottles/kit.md":            "---\nextends: boxed\nagent_provider: {dockerfile: kit/Dockerfile}\n---\n",
		"bottles/kit/Dockerfile":    "FROM scratch\nCOPY --chmod=600 Dockerfile /kept\n",
		"agents/boxer.md":           "---\nbottle: boxed\n---\n",
	})
	config := d.home + "/.config/carboy"
	theirs, _ := os.ReadFile(config + "/bottles/theirs.md")
	if err := errors.Join(
		os.WriteFile(config+"/bottles/box/carboy", program, 0o755),
		os.WriteFile(config+"/bottles/theirs.md", bytes.ReplaceAll(theirs, []byte("WS"), []byte(d.home+"/ws")), 0o600),
		os.WriteFile(d.home+"/ws/Dockerfile", []byte("FROM scratch\nCOPY . /\n"), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_HOST", "unix://"+socket)
	start := []string{"start", "boxer", "--headless", "--prompt", "--help"}
	images := filepath.Join(d.home, "state/carboy/images/images")
	if out, msg, code := d.carboy(append(start, "--dry-run")...); code != 0 || !strings.Contains(out, "/box/Dockerfile (built first, unless it was)") {
		t.Errorf("dry run: exit code %d\n%s%s", code, out, msg)
	}
	if made, _ := os.ReadDir(images); len(made) > 0 {
		t.Errorf("a dry run built %v", made)
	}
	out, msg, code := d.carboy(start...)
	if code != 0 || !strings.Contains(out, "carboy version") || !strings.Contains(msg, "build: Step 2/4") {
		t.Fatalf("exit code %d\n%s%s", code, out, msg)
	}
	out, msg, _ = d.carboy("receipt", "boxer", "--json")
	if !strings.Contains(out, `"ref": "dockerfile:`) || !strings.Contains(out, `"digest": "sha256:`) {
		t.Errorf("the receipt does not name the image:\n%s%s", out, msg)
	}
	roots, _ := filepath.Glob(d.home + "/state/carboy/images/roots/*/fs")
	if len(roots) != 1 {
		t.Fatalf("%v", roots)
	}
	if b, err := os.ReadFile(roots[0] + "/etc/note"); err != nil || string(b) != "made by an engine\n" {
		t.Errorf("%q %v", b, err)
	}
	// What a repository holds is not built, and nobody is asked.
	if _, msg, code := d.carboy(append(start, "--bottle", "theirs")...); code != 125 || !strings.Contains(msg, "theirs.md:2") || !strings.Contains(msg, "an agent may have written it") {
		t.Errorf("a repository's: exit code %d\n%s", code, msg)
	}
	if _, msg, code := d.carboy(append(start, "--bottle", "bad")...); code != 125 || !strings.Contains(msg, "it can't be built") || strings.Contains(msg, "\x1b[2J") {
		t.Errorf("one that can't be built: exit code %d\n%q", code, msg)
	}
	// What only BuildKit can read, it builds; the program is not in there.
	if _, msg, code := d.carboy(append(start, "--bottle", "kit")...); code != 127 || !strings.Contains(msg, "build: [1/1] COPY") {
		t.Errorf("for BuildKit: exit code %d\n%s", code, msg)
	}
	// A tracing of the same: what was built is what was traced.
	out, msg, code = d.carboy("gate", "trace", "-q", "--json", "--dockerfile", config+"/bottles/box/Dockerfile", "--", "carboy", "version")
	var traced struct {
		Target struct {
			Built, Traced string
			Match         bool
		}
	}
	text := strings.NewReplacer("image_digest_built", "built", "image_digest_traced", "traced", "image_digest_match", "match").Replace(out)
	if err := json.Unmarshal([]byte(text), &traced); err != nil || code != 0 || !traced.Target.Match || traced.Target.Built == "" || traced.Target.Built != traced.Target.Traced || !strings.Contains(out, "/opt/tools/carboy") {
		t.Errorf("a tracing: exit code %d, %v\n%s%s", code, err, out, msg)
	}
	if _, _, code := d.carboy("destroy", "boxer"); code != 0 {
		t.Errorf("destroy: exit code %d", code)
	}
	stop()
	out, msg, code = d.carboy(start...)
	if code != 0 || !strings.Contains(out, "carboy version") || strings.Contains(msg, "build: ") {
		t.Errorf("without a change, and without the engine: exit code %d\n%s%s", code, out, msg)
	}
	if err := os.WriteFile(config+"/bottles/box/secret", []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, msg, code = d.carboy(start...); code != 0 {
		t.Errorf("after a change of what is not sent: exit code %d\n%s", code, msg)
	}
	if err := os.WriteFile(config+"/bottles/box/note", []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, msg, code = d.carboy(start...); code != 125 || !strings.Contains(msg, "nothing is here to build it") || !strings.Contains(msg, "docker.io") {
		t.Errorf("after a change, without the engine: exit code %d\n%s", code, msg)
	}
	left, _ := filepath.Glob(d.home + "/state/carboy/bottles/*")
	if len(left) > 0 {
		t.Errorf("bottles were left: %v", left)
	}
}

// TestStartBuildkit: the same without an Engine, by a BuildKit daemon and its client.
func TestStartBuildkit(t *testing.T) {
	socket, stop := startBuildkit(t)
	d := newDen(t, map[string]string{
		"bottles/box/Dockerfile":    "FROM scratch\nCOPY note kept/* /etc/\nCOPY linked /\n",
		"bottles/box/note":          "made by a daemon\n",
		"bottles/box/kept/deep":     "deep\n",
		"bottles/box/left/secret":   "not to be sent\n",
		"bottles/box/linked/link":   "x",
		"bottles/box/.dockerignore": "left\nkept\n!kept/deep\n",
		"bottles/boxed.md":          "---\nagent_provider: {template: command, dockerfile: box/Dockerfile, settings: {command: [/none, '{prompt}']}}\n---\n",
		"bottles/bad.md":            "---\nextends: boxed\nagent_provider: {dockerfile: bad/Dockerfile}\n---\n",
		"bottles/bad/Dockerfile":    "FROM scratch\nCOPY nothing-there /\n",
		"bottles/bad/.dockerignore": "",
		"agents/boxer.md":           "---\nbottle: boxed\n---\n",
	})
	config := d.home + "/.config/carboy"
	if err := errors.Join(os.Remove(config+"/bottles/box/linked/link"), os.Symlink("/etc/note", config+"/bottles/box/linked/link")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BUILDKIT_HOST", "unix://"+socket)
	start := []string{"start", "boxer", "--headless", "--prompt", "x"}
	// There is no program in it.
	if _, msg, code := d.carboy(start...); code != 127 || !strings.Contains(msg, "build: [1/2] COPY") {
		t.Fatalf("exit code %d\n%s", code, msg)
	}
	roots, _ := filepath.Glob(d.home + "/state/carboy/images/roots/*/fs")
	if len(roots) != 1 {
		t.Fatalf("%v", roots)
	}
	for name, want := range map[string]string{"/etc/note": "made by a daemon\n", "/etc/deep": "deep\n"} {
		if b, err := os.ReadFile(roots[0] + name); err != nil || string(b) != want {
			t.Errorf("%s: %q %v", name, b, err)
		}
	}
	if to, err := os.Readlink(roots[0] + "/link"); err != nil || to != "/etc/note" {
		t.Errorf("a link: %q %v", to, err)
	}
	if _, msg, code := d.carboy(append(start, "--bottle", "bad")...); code != 125 || !strings.Contains(msg, "it can't be built") || !strings.Contains(msg, "nothing-there") {
		t.Errorf("one that can't be built: exit code %d\n%q", code, msg)
	}
	stop()
	if _, msg, code := d.carboy(start...); code != 127 || strings.Contains(msg, "build: ") {
		t.Errorf("without a change, and without the daemon: exit code %d\n%s", code, msg)
	}
}
