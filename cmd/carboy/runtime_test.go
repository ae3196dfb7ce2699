package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/ociruntime"
	"github.com/carboy/carboy/internal/testenv"
)

// runtimeEngine is a real Docker Engine whose files lie below a directory.
type runtimeEngine struct {
	t      *testing.T
	dir    string
	socket string
}

const runtimeSettings = "{\n    \"labels\": [\"kept=yes\"]\n}\n"

func startRuntimeEngine(t *testing.T) *runtimeEngine {
	t.Helper()
	testenv.Need(t, "docker", "apt-get install docker.io")
	e := &runtimeEngine{t: t}
	e.socket, _ = startDaemon(t, "dockerd", "apt-get install docker.io", func(dir string) []string {
		e.dir = dir
		for _, d := range []string{"etc/docker", "run"} {
			if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(dir+"/etc/docker/daemon.json", []byte(runtimeSettings), 0o644); err != nil {
			t.Fatal(err)
		}
		return []string{"--bridge=none", "--iptables=false", "--ip-forward=false", "--config-file=" + dir + "/etc/docker/daemon.json",
			"--data-root=" + dir + "/data", "--exec-root=" + dir + "/exec", "--pidfile=" + dir + "/run/docker.pid", "--host=unix://" + dir + "/sock"}
	})
	return e
}

// docker runs the client, and returns what it wrote to both streams.
func (e *runtimeEngine) docker(stdin []byte, args ...string) (string, error) {
	cmd := exec.Command("docker", args...)
	cmd.Env = []string{"DOCKER_HOST=unix://" + e.socket, "PATH=" + os.Getenv("PATH"), "HOME=" + e.dir}
	cmd.Stdin = bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (e *runtimeEngine) ok(args ...string) string {
	e.t.Helper()
	out, err := e.docker(nil, args...)
	if err != nil {
		e.t.Fatalf("docker %q: %v: %s", args, err, out)
	}
	return out
}

// image imports one with nothing but links to the host's programs, which containers see
// through a mount of /usr.
func (e *runtimeEngine) image() {
	e.t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range []string{"bin", "lib", "lib64"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: "usr/" + name, Mode: 0o777}); err != nil {
			e.t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		e.t.Fatal(err)
	}
	if out, err := e.docker(b.Bytes(), "import", "-", "tools"); err != nil {
		e.t.Fatalf("import: %v: %s", err, out)
	}
}

// args returns the command line of a container.
func (e *runtimeEngine) args(runtime string, more ...string) []string {
	return append([]string{"run", "--network=none", "--runtime=" + runtime, "--volume=/usr:/usr:ro"}, more...)
}

// carboy runs the command line, and returns its output.
func (e *runtimeEngine) carboy(args ...string) string {
	e.t.Helper()
	var out, said bytes.Buffer
	args = append(args, "--under", e.dir)
	if code := newApp(nil, &out, &said, func(string) string { return "" }).run(e.t.Context(), args); code != 0 {
		e.t.Fatalf("carboy %q ended with %d: %s%s", args, code, out.String(), said.String())
	}
	return out.String()
}

// knows waits until the engine has the runtime.
func (e *runtimeEngine) knows() {
	e.t.Helper()
	if !testenv.Poll(patience, func() bool {
		return strings.Contains(e.ok("info", "--format={{json .Runtimes}}"), `"`+ociruntime.Name+`"`)
	}) {
		e.t.Fatal("the engine did not read its file again")
	}
}

// TestRuntime: carboy's kernel runs containers of a real Docker Engine, which is not
// restarted, and uninstall leaves nothing of it.
func TestRuntime(t *testing.T) {
	e := startRuntimeEngine(t)
	e.image()
	before := e.files()
	pid := e.read("run/docker.pid")
	if out := e.carboy("runtime", "install", "--dry-run"); strings.Count(out, "would") != 3 {
		t.Errorf("a dry run: %s", out)
	}
	if now := e.files(); !maps.Equal(now, before) {
		t.Errorf("a dry run changed the files: %q", now)
	}
	e.carboy("runtime", "install")
	e.knows()
	if out := e.ok("info", "--format={{.Labels}}"); !strings.Contains(out, "kept=yes") {
		t.Errorf("the engine's other settings are %s", out)
	}
	e.containers(t)
	e.carboy("runtime", "uninstall")
	if now := e.files(); !maps.Equal(now, before) {
		t.Errorf("uninstall left %q, before there was %q", now, before)
	}
	if out, err := e.docker(nil, e.args(ociruntime.Name, "--rm", "tools", "true")...); err == nil {
		t.Errorf("a runtime that is not registered ran a container: %s", out)
	}
	if now := e.read("run/docker.pid"); now != pid {
		t.Errorf("dockerd was restarted: it was process %s, and is %s", pid, now)
	}
	e.kernel(t, "runc", false)
}

// containers tries what people do with them.
func (e *runtimeEngine) containers(t *testing.T) {
	e.kernel(t, "runc", false)
	e.kernel(t, ociruntime.Name, true)
	_, err := e.docker(nil, e.args(ociruntime.Name, "--rm", "tools", "sh", "-c", "exit 7")...)
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.ExitCode() != 7 {
		t.Errorf("exit 7: %v", err)
	}
	if out, err := e.docker([]byte("hello\n"), e.args(ociruntime.Name, "--rm", "--interactive", "tools", "tr", "a-z", "A-Z")...); err != nil || out != "HELLO\n" {
		t.Errorf("standard input: %q, %v", out, err)
	}
	// A user of its own, without rights, and a root that can't be written to.
	out := e.ok(e.args(ociruntime.Name, "--rm", "--user=1234:1234", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only", "tools", "sh", "-c", "id -u; touch /x 2>/dev/null || echo refused")...)
	if out != "1234\nrefused\n" {
		t.Errorf("a confined container: %q", out)
	}
	e.memory(t)
	id := strings.TrimSpace(e.ok(e.args(ociruntime.Name, "--detach", "tools", "sh", "-c", "echo new > /made; exec sleep 1000")...))
	if !testenv.Poll(patience, func() bool {
		out, err := e.docker(nil, "exec", id, "cat", "/made", "/proc/version")
		return err == nil && strings.HasPrefix(out, "new\n") && strings.Contains(out, "gvisor")
	}) {
		out, err := e.docker(nil, "exec", id, "cat", "/made", "/proc/version")
		t.Errorf("docker exec: %q, %v", out, err)
	}
	if out := e.ok("diff", id); !strings.Contains(out, "A /made\n") {
		t.Errorf("docker diff: %q", out)
	}
	e.ok("pause", id)
	e.ok("unpause", id)
	if out := e.ok("exec", id, "echo", "goes on"); out != "goes on\n" {
		t.Errorf("after a pause: %q", out)
	}
	e.ok("rm", "--force", id)
	if left := e.ok("ps", "--all", "--quiet"); left != "" {
		t.Errorf("containers left: %s", left)
	}
}

// memory checks that the engine's limit holds for all that a container has in memory.
func (e *runtimeEngine) memory(t *testing.T) {
	if strings.TrimSpace(e.ok("info", "--format={{.MemoryLimit}}")) != "true" {
		testenv.Missing(t, "a memory controller for Docker", "cgroup_enable=memory on the kernel's command line")
	}
	// tail keeps a line that does not end.
	hold := []string{"tools", "sh", "-c", "head -c 150000000 /dev/zero | tail -n 1 | wc -c"}
	if out, err := e.docker(nil, append(e.args(ociruntime.Name, "--rm"), hold...)...); err != nil || out != "150000000\n" {
		t.Errorf("150 MB without a limit: %q, %v", out, err)
	}
	if out, _ := e.docker(nil, append(e.args(ociruntime.Name, "--rm", "--memory=100m"), hold...)...); strings.Contains(out, "150000000") {
		t.Errorf("150 MB with a limit of 100 MiB: %q", out)
	}
}

// kernel checks which kernel a container sees.
func (e *runtimeEngine) kernel(t *testing.T, runtime string, ours bool) {
	t.Helper()
	if out := e.ok(e.args(runtime, "--rm", "tools", "cat", "/proc/version")...); strings.Contains(out, "gvisor") != ours {
		t.Errorf("under %s the kernel is %s", runtime, out)
	}
}

func (e *runtimeEngine) read(name string) string {
	e.t.Helper()
	b, err := os.ReadFile(filepath.Join(e.dir, name))
	if err != nil {
		e.t.Fatal(err)
	}
	return string(b)
}

// files returns those below the directories that carboy changes.
func (e *runtimeEngine) files() map[string]string {
	e.t.Helper()
	out := map[string]string{}
	for _, top := range []string{"etc", "usr"} {
		err := filepath.Walk(filepath.Join(e.dir, top), func(p string, fi os.FileInfo, err error) error {
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			if err != nil || fi.IsDir() {
				return err
			}
			b, err := os.ReadFile(p)
			out[p] = string(b[:min(len(b), 1000)])
			return err
		})
		if err != nil {
			e.t.Fatal(err)
		}
	}
	return out
}

// TestRuntimeWords: carboy's own words are not passed to the runtime, and all others are.
func TestRuntimeWords(t *testing.T) {
	root := newApp(nil, nil, nil, func(string) string { return "" }).root()
	cmd, _, err := root.Find([]string{"runtime"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cmd.Commands() {
		if !slices.Contains(runtimeOwn, c.Name()) {
			t.Errorf("carboy runtime %s would be the runtime's", c.Name())
		}
	}
	for _, word := range []string{"--root=/x", "create", "state", "--version", "features"} {
		if !isRuntime([]string{"carboy", "runtime", word}) {
			t.Errorf("carboy runtime %s is not passed on", word)
		}
	}
	for _, args := range [][]string{{"carboy"}, {"carboy", "runtime"}, {"carboy", "run", "create"}, {"carboy", "runtime", "--help"}} {
		if isRuntime(args) {
			t.Errorf("%q is passed on", args)
		}
	}
}
