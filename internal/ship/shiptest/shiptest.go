// Package shiptest starts hosts for tests of package ship: an OpenSSH server and a Docker
// Engine on this machine, with separate directories and configuration. It is for tests and
// benchmarks only.
//
// Start reading at [NewHost] and [NewRepo].
package shiptest

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/testenv"
)

// Host is an SSH server, and the directories of a host's user.
type Host struct {
	Name string
	Dir  string // contains all files of the host
	Home string // of its user
	Root string // its allowed root
	// Address is the host's address, on loopback or in its own network namespace.
	Address string
	Port    int
	User    string
	Key     ssh.Signer // of the server
	KeyPub  string     // its public key, as in authorized_keys
	Docker  string     // DOCKER_HOST, or ""

	sshd  *process
	serve []string // command that starts the server
	link  string   // network interface on this side
}

// process is a program that is killed when the test process ends.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// start runs a program until stop, or until the calling process ends. The thread that
// starts it must live as long as the program, because the parent-death signal is per thread.
func start(log string, args ...string) (*process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(args[0], args[1:]...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.cmd.Wait()
		}
		out.Close()
		close(p.done)
	}()
	return p, <-started
}

func (p *process) stop() {
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		p.cmd.Process.Kill()
		<-p.done
	}
}

// Engine is a separate Docker Engine.
type Engine struct {
	Socket string // DOCKER_HOST
	dir    string
	start  []string // command that starts it
	p      *process
}

// engineVariable holds the DOCKER_HOST of a running engine, for tests that are not run as
// root.
const engineVariable = "CARBOY_TEST_ENGINE"

// StartEngine starts an engine, which needs root. Without Docker it skips or fails the test.
// The caller must stop the engine.
func StartEngine(t testing.TB) *Engine {
	t.Helper()
	if s := os.Getenv(engineVariable); s != "" {
		e := &Engine{Socket: s, dir: t.TempDir()}
		e.images(t)
		return e
	}
	return StartOwnEngine(t)
}

// StartOwnEngine starts an engine that no other test uses, whatever the environment names.
// The caller must stop it.
func StartOwnEngine(t testing.TB) *Engine {
	t.Helper()
	testenv.Root(t)
	dockerd := testenv.Need(t, "dockerd", "apt-get install docker.io")
	unshare := testenv.Need(t, "unshare", "apt-get install util-linux")
	plugin(t)
	dir, err := os.MkdirTemp("", "dk") // short, because the paths of sockets are bounded
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{dir: dir, Socket: "unix://" + dir + "/s"}
	e.start = []string{unshare, "-m", dockerd, "--bridge=none", "--iptables=false", "--ip-forward=false", "--data-root", dir + "/data", "--exec-root", dir + "/x", "-H", e.Socket, "-p", dir + "/pid"}
	e.up(t)
	e.images(t)
	return e
}

// up starts the engine and waits until it answers.
func (e *Engine) up(t testing.TB) {
	t.Helper()
	var err error
	if e.p, err = start(e.dir+"/log", e.start...); err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(testenv.Patience(time.Minute))
	for {
		if _, err := e.docker("version", "--format", "{{.Server.Version}}"); err == nil {
			break
		}
		select {
		case <-e.p.done:
			b, _ := os.ReadFile(e.dir + "/log")
			testenv.Missing(t, "a Docker Engine that starts here ("+lastLine(b)+")", "cgroups and mounts as root")
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			t.Fatal("dockerd does not answer")
		}
	}
}

// Restart stops the engine, and starts it again with its containers.
func (e *Engine) Restart(t testing.TB) {
	t.Helper()
	e.p.stop()
	e.up(t)
}

func lastLine(b []byte) string {
	l := strings.Split(strings.TrimSpace(string(b)), "\n")
	return l[len(l)-1]
}

// Stop removes the engine's containers and stops it.
func (e *Engine) Stop() {
	if e.p != nil {
		if ids, err := e.docker("ps", "-aq"); err == nil && ids != "" {
			e.docker(append([]string{"rm", "-f"}, strings.Fields(ids)...)...)
		}
		e.p.stop()
	}
	os.RemoveAll(e.dir)
}

// Clear removes the containers of projects below a directory.
func (e *Engine) Clear(root string) {
	out, err := e.docker("ps", "-a", "--format", `{{.ID}} {{.Label "com.docker.compose.project.working_dir"}}`)
	if err != nil {
		return
	}
	for _, l := range strings.Split(out, "\n") {
		if id, dir, _ := strings.Cut(l, " "); strings.HasPrefix(dir, root+"/") {
			e.docker("rm", "-f", id)
		}
	}
}

func (e *Engine) docker(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience(time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Env = []string{"DOCKER_HOST=" + e.Socket, "PATH=" + os.Getenv("PATH"), "HOME=" + e.dir}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// Event returns a channel that is closed after a container's next event of that kind, or at
// the end of the test.
func (e *Engine) Event(t testing.TB, id, kind string) <-chan struct{} {
	t.Helper()
	cmd := exec.Command("docker", "events", "--since", strconv.FormatInt(time.Now().Unix(), 10), "--filter", "container="+id, "--filter", "event="+kind, "--format", "{{.Action}}")
	cmd.Env = []string{"DOCKER_HOST=" + e.Socket, "PATH=" + os.Getenv("PATH"), "HOME=" + e.dir}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	happened := make(chan struct{})
	go func() {
		defer close(happened)
		out.Read(make([]byte, 1))
		cmd.Process.Kill()
		cmd.Wait()
	}()
	t.Cleanup(func() { cmd.Process.Kill(); <-happened })
	return happened
}

// Run runs docker and returns its output. The test fails if docker fails.
func (e *Engine) Run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := e.docker(args...)
	if err != nil {
		t.Fatalf("docker %q: %v: %s", args, err, out)
	}
	return out
}

var server = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "server")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir+"/srv", "github.com/carboy/carboy/internal/ship/shiptest/server")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return os.ReadFile(dir + "/srv")
})

// images imports app:v1, app:v2 and app:v3: the same program, three images.
func (e *Engine) images(t testing.TB) {
	t.Helper()
	bin, err := server()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"v1", "v2", "v3"} {
		e.Import(t, "app:"+v, v, bin)
	}
}

// Import creates an image of the test server. Images with different marks have different
// ids. If bin is nil, Import builds the server.
func (e *Engine) Import(t testing.TB, name, mark string, bin []byte) {
	t.Helper()
	e.load(t, name, bin, []string{"srv"}, "-c", `ENTRYPOINT ["/srv"]`, "-c", "LABEL mark="+mark)
}

// Busybox creates an image with the two commands of busybox that docs/ship.md uses: tail,
// which runs until it is stopped, and test.
func (e *Engine) Busybox(t testing.TB, name string) {
	t.Helper()
	e.load(t, name, nil, []string{"bin/tail", "bin/test"})
}

// load creates an image of the test server under some names.
func (e *Engine) load(t testing.TB, name string, bin []byte, names []string, options ...string) {
	t.Helper()
	if bin == nil {
		var err error
		if bin, err = server(); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, n := range names {
		w.WriteHeader(&tar.Header{Name: n, Mode: 0o755, Size: int64(len(bin))})
		w.Write(bin)
	}
	w.Close()
	file := filepath.Join(e.dir, "image.tar")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	e.Run(t, append(append([]string{"import"}, options...), file, name)...)
}

// plugin returns the path of the compose plugin. Without one it skips or fails the test.
func plugin(t testing.TB) string {
	t.Helper()
	for _, p := range []string{os.Getenv("CARBOY_TEST_COMPOSE"), "/opt/compose/docker-compose", "/usr/libexec/docker/cli-plugins/docker-compose", "/usr/lib/docker/cli-plugins/docker-compose"} {
		if fi, err := os.Stat(p); p != "" && err == nil && fi.Mode().IsRegular() {
			return p
		}
	}
	testenv.Missing(t, "the compose plugin of Docker", "go -C .ci/compose build -ldflags=\"-X github.com/docker/compose/v5/internal.Version=$(go -C .ci/compose list -m -f {{.Version}} github.com/docker/compose/v5)\" -o /opt/compose/docker-compose github.com/docker/compose/v5/cmd")
	return ""
}

// NewHost starts an SSH server on loopback; engine may be nil.
func NewHost(t testing.TB, name string, engine *Engine) *Host {
	t.Helper()
	return newHost(t, &Host{Name: name, Address: "127.0.0.1", Port: freePort(t)}, engine, "")
}

// NewFarHost starts an SSH server in a separate network namespace, connected by a virtual
// link. It needs root.
func NewFarHost(t testing.TB, name string, engine *Engine) *Host {
	t.Helper()
	testenv.Root(t)
	ip := testenv.Need(t, "ip", "apt-get install iproute2")
	testenv.Need(t, "nsenter", "apt-get install util-linux")
	ns := "carboy-" + strings.ToLower(rand.Text()[:8])
	base, n := fmt.Sprintf("10.%d.%d", 200+mathrand.IntN(50), mathrand.IntN(256)), 4*mathrand.IntN(64)
	h := &Host{Name: name, Address: fmt.Sprintf("%s.%d", base, n+2), Port: 22, link: "cb" + ns[7:]}
	t.Cleanup(func() { exec.Command(ip, "netns", "del", ns).Run() })
	for _, args := range [][]string{
		{"netns", "add", ns},
		{"link", "add", h.link, "type", "veth", "peer", "name", "eth0", "netns", ns},
		{"addr", "add", fmt.Sprintf("%s.%d/30", base, n+1), "dev", h.link},
		{"link", "set", h.link, "up"},
		{"-n", ns, "addr", "add", h.Address + "/30", "dev", "eth0"},
		{"-n", ns, "link", "set", "eth0", "up"},
		{"-n", ns, "link", "set", "lo", "up"},
	} {
		if out, err := exec.Command(ip, args...).CombinedOutput(); err != nil {
			testenv.Missing(t, fmt.Sprintf("a network namespace: ip %q: %s", args, out), "CAP_NET_ADMIN")
		}
	}
	return newHost(t, h, engine, "/run/netns/"+ns)
}

// Compose runs docker compose on the host, as somebody does there by hand.
func (h *Host) Compose(t testing.TB, args ...string) {
	t.Helper()
	cmd := exec.Command(plugin(t), append([]string{"compose"}, args...)...)
	cmd.Env = []string{"DOCKER_CLI_PLUGIN_ORIGINAL_CLI_COMMAND=docker", "DOCKER_HOST=" + h.Docker, "PATH=" + os.Getenv("PATH"), "HOME=" + h.Home}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("docker compose %q: %v: %s", args, err, out)
	}
}

// Link sets the host's network link up or down.
func (h *Host) Link(t testing.TB, up bool) {
	t.Helper()
	state := map[bool]string{true: "up", false: "down"}[up]
	if out, err := exec.Command("ip", "link", "set", h.link, state).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func newHost(t testing.TB, h *Host, engine *Engine, ns string) *Host {
	t.Helper()
	sshd := testenv.Look("sshd")
	for _, p := range []string{"/usr/sbin/sshd"} {
		if _, err := os.Stat(p); sshd == "" && err == nil {
			sshd = p
		}
	}
	if sshd == "" {
		testenv.Missing(t, "sshd", "apt-get install openssh-server")
	}
	dir, err := os.MkdirTemp("", "sh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h.Dir, h.Home, h.Root, h.User = dir, dir+"/home", dir+"/srv", user(t)
	for _, d := range []string{h.Home + "/.docker/cli-plugins", h.Root} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if engine != nil {
		h.Docker = engine.Socket
		if err := os.Symlink(plugin(t), h.Home+"/.docker/cli-plugins/docker-compose"); err != nil {
			t.Fatal(err)
		}
	}
	if os.Getuid() == 0 {
		os.MkdirAll("/run/sshd", 0o755) // sshd requires its chroot directory
	}
	pub, key := NewKey(t, dir+"/host_key")
	h.Key, h.KeyPub = key, pub
	conf := fmt.Sprintf(`ListenAddress %s
Port %d
HostKey %s/host_key
AuthorizedKeysFile %s/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
MaxStartups 200
PrintMotd no
SetEnv HOME=%s PATH=%s
`, h.Address, h.Port, dir, dir, h.Home, dir+"/bin:"+os.Getenv("PATH"))
	if err := os.WriteFile(dir+"/sshd_config", []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	if h.serve = []string{sshd, "-D", "-e", "-f", dir + "/sshd_config"}; ns != "" {
		h.serve = append([]string{"nsenter", "--net=" + ns}, h.serve...)
	}
	h.up(t, "sshd.log")
	t.Cleanup(func() {
		h.sshd.stop()
		h.sweep()
	})
	return h
}

// sweep kills the programs that were started on the host. They survive the end of the
// server, as they survive a cut connection.
func (h *Host) sweep() {
	for range 20 { // they may start more meanwhile
		var killed []testenv.Process
		all, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, f := range all {
			// Processes of other users are unreadable.
			env, err := os.ReadFile(f)
			pid, perr := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			if err == nil && perr == nil && pid != os.Getpid() && slices.Contains(strings.Split(string(env), "\x00"), "HOME="+h.Home) {
				if p, ok := testenv.ReadProcess(pid); ok && syscall.Kill(pid, syscall.SIGKILL) == nil {
					killed = append(killed, p)
				}
			}
		}
		if len(killed) == 0 {
			return
		}
		for _, p := range killed {
			p.EndsWithin(testenv.Patience(10 * time.Second))
		}
	}
}

// Impostor replaces the server by one with another key that accepts everybody. It returns
// the path of the new server's log.
func (h *Host) Impostor(t testing.TB) string {
	t.Helper()
	h.Cut(t)
	h.sshd.stop()
	NewKey(t, h.Dir+"/host_key")
	h.up(t, "impostor.log")
	return h.Dir + "/impostor.log"
}

// up starts the server and waits until it listens.
func (h *Host) up(t testing.TB, log string) {
	t.Helper()
	var err error
	if h.sshd, err = start(h.Dir+"/"+log, h.serve...); err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(testenv.Patience(20 * time.Second))
	for {
		c, err := net.Dial("tcp", net.JoinHostPort(h.Address, strconv.Itoa(h.Port)))
		if err == nil {
			c.Close()
			return
		}
		if time.Now().After(end) {
			b, _ := os.ReadFile(h.Dir + "/" + log)
			t.Fatalf("sshd does not listen: %s", b)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// sessions returns the processes that serve connections now.
func (h *Host) sessions(t testing.TB) []testenv.Process {
	return testenv.Living(t, h.sshd.cmd.Process.Pid)
}

// Program puts a script named name into the host's PATH before the real program. A script
// named docker also receives calls of the compose plugin, even if that is started directly.
func (h *Host) Program(t testing.TB, name, text string) {
	t.Helper()
	if name == "docker" {
		h.Divert(t)
	}
	if err := os.MkdirAll(h.Dir+"/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.Dir+"/bin/"+name, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// Divert makes a directly started compose plugin call the script docker, while there is one.
func (h *Host) Divert(t testing.TB) {
	t.Helper()
	text := "#!/bin/sh\nif [ -z \"${DIVERTED:-}\" ] && [ -x " + h.Dir + "/bin/docker ]; then\n\tunset DOCKER_CLI_PLUGIN_ORIGINAL_CLI_COMMAND\n\texport DIVERTED=1\n\texec " + h.Dir + "/bin/docker \"$@\"\nfi\n"
	if h.Docker != "" {
		text += "exec " + plugin(t) + " \"$@\"\n"
	}
	name := h.Home + "/.docker/cli-plugins/docker-compose"
	if err := os.WriteFile(name+".new", []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}

// Kill kills only the script that runs on the host, and reports whether there was one.
func (h *Host) Kill(t testing.TB) bool { return h.Signal(t, syscall.SIGKILL) }

// Signal sends a signal only to the script that runs on the host, to the oldest if there
// are several. It reports whether there was one.
func (h *Host) Signal(t testing.TB, s syscall.Signal) bool {
	all := h.sessions(t)
	servers := map[int]bool{}
	for _, p := range all {
		servers[p.PID] = strings.HasPrefix(p.Name, "sshd")
	}
	for _, p := range all {
		if servers[p.Parent] && !servers[p.PID] { // not one of its subshells
			syscall.Kill(p.PID, s)
			return true
		}
	}
	return false
}

// KillAll kills all programs that ship started on the host. Docker continues its work.
func (h *Host) KillAll(t testing.TB) {
	for _, p := range h.sessions(t) {
		if !strings.HasPrefix(p.Name, "sshd") {
			syscall.Kill(p.PID, syscall.SIGKILL)
		}
	}
}

// Cut kills the processes that serve connections, but not the programs that they started.
func (h *Host) Cut(t testing.TB) int {
	n := 0
	for _, p := range h.sessions(t) {
		if strings.HasPrefix(p.Name, "sshd") {
			syscall.Kill(p.PID, syscall.SIGKILL)
			n++
		}
	}
	return n
}

func user(t testing.TB) string {
	b, err := exec.Command("id", "-un").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func freePort(t testing.TB) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// NewKey writes a private key to file, and returns its public key as a line and a signer.
func NewKey(t testing.TB, file string) (string, ssh.Signer) {
	t.Helper()
	_, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(priv, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.PublicKey()))), s
}

// Operator is a configuration directory, with the keys of people who may approve.
type Operator struct {
	Config string
	State  string
	Key    string // file of the private key for signing in to hosts
	pub    string
	People map[string]ssh.Signer
	hosts  []string
}

// NewOperator returns an operator with alice, bob and carol as approvers.
func NewOperator(t testing.TB) *Operator {
	t.Helper()
	o := &Operator{Config: t.TempDir(), State: t.TempDir(), People: map[string]ssh.Signer{}}
	os.Chmod(o.Config, 0o700)
	o.Key = filepath.Join(o.Config, "id")
	o.pub, _ = NewKey(t, o.Key)
	var lines strings.Builder
	for _, name := range []string{"alice", "bob", "carol"} {
		pub, s := NewKey(t, filepath.Join(o.Config, name))
		o.People[name] = s
		fmt.Fprintf(&lines, "%s@example.org namespaces=\"carboy-ship@carboy.dev\" %s\n", name, pub)
	}
	o.Write(t, "allowed_signers", lines.String())
	return o
}

// Write writes a file of the configuration.
func (o *Operator) Write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(o.Config, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Add adds a host to hosts.yaml; more are further lines of its entry.
func (o *Operator) Add(t testing.TB, h *Host, more ...string) {
	t.Helper()
	if err := os.WriteFile(h.Dir+"/authorized_keys", []byte(o.pub+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := []string{"  " + h.Name + ":", "    address: " + h.Address, fmt.Sprintf("    port: %d", h.Port), "    user: " + h.User,
		`    host_keys: ["` + h.KeyPub + `"]`, "    key: " + o.Key, "    allowed_roots: [" + h.Root + "]", "    allow_root: true"}
	if h.Docker != "" {
		l = append(l, "    docker_host: "+h.Docker)
	}
	applies := true
	for _, m := range more {
		applies = applies && !strings.HasPrefix(m, "apply:")
		l = append(l, "    "+m)
	}
	if applies {
		l = append(l, "    apply: true")
	}
	o.hosts = append(o.hosts, strings.Join(l, "\n"))
	o.Write(t, "hosts.yaml", "hosts:\n"+strings.Join(o.hosts, "\n")+"\n")
}

// Repo is a repository with a work tree.
type Repo struct{ Dir string }

// NewRepo creates an empty repository.
func NewRepo(t testing.TB) *Repo {
	t.Helper()
	testenv.Need(t, "git", "apt-get install git")
	r := &Repo{t.TempDir()}
	r.Git(t, "init", "-q", "-b", "main")
	return r
}

// Git runs git in the repository and returns its output.
func (r *Repo) Git(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"}, args...)...)
	cmd.Dir = r.Dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.Dir, "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// Write writes a file of the work tree.
func (r *Repo) Write(t testing.TB, name, text string) {
	t.Helper()
	p := filepath.Join(r.Dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Commit commits all changes and returns the commit's id.
func (r *Repo) Commit(t testing.TB) string {
	t.Helper()
	r.Git(t, "add", "-A")
	r.Git(t, "commit", "-q", "--allow-empty", "-m", "change")
	return r.Git(t, "rev-parse", "HEAD")
}

// Module returns a module.yaml for hosts, with one wave for each if there are several.
func Module(id, root string, hosts ...string) string {
	where := "host: " + hosts[0]
	if len(hosts) > 1 {
		where = "waves: [[" + strings.Join(hosts, "], [") + "]]"
	}
	return fmt.Sprintf(`apiVersion: carboy.dev/v1
kind: Module
metadata: {id: %s}
spec:
  %s
  runtime:
    orchestrator: docker-compose
    compose_file: compose.yaml
    remote_root: %s
    sync: files
    stable_for: 1s
    health_timeout: 60s
`, id, where, root)
}

// Compose returns a compose file for service id, with image app:v and a mode of the test
// server. Only modes "checked" and "unhealthy" have a healthcheck, because healthchecks are
// slow.
func Compose(id, v, mode string) string {
	check := ""
	if mode == "checked" || mode == "unhealthy" {
		check = `    healthcheck: {test: ["CMD", "/srv", "check"], interval: 500ms, timeout: 50s, retries: 2}
`
	}
	return fmt.Sprintf(`services:
  %s:
    image: app:%s
    network_mode: none
    stop_grace_period: 1s
    environment: {MODE: %s}
`, id, v, mode) + check
}
