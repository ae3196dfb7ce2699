package docker

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/posture"
	"github.com/carboy/carboy/internal/dockerapi"
	"github.com/carboy/carboy/internal/testenv"
)

// TestEngineOfThisMachine checks which Engine is used, and that none of another machine is.
func TestEngineOfThisMachine(t *testing.T) {
	home := t.TempDir()
	contexts := func(current, host string) {
		t.Helper()
		sum := sha256.Sum256([]byte(current))
		dir := filepath.Join(home, ".docker/contexts/meta", hex.EncodeToString(sum[:]))
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "meta.json"), []byte(`{"Name":"`+current+`","Endpoints":{"docker":{"Host":"`+host+`"}}}`), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	contexts("far", "tcp://10.0.0.1:2376")
	contexts("ssh", "ssh://root@example.com")
	contexts("near", "unix:///run/near.sock")
	for name, c := range map[string]struct {
		env     map[string]string
		config  string
		want    string
		refused bool
	}{
		"nothing":             {want: defaultSocket},
		"a socket":            {env: map[string]string{"DOCKER_HOST": "unix:///run/x.sock"}, want: "/run/x.sock"},
		"TCP":                 {env: map[string]string{"DOCKER_HOST": "tcp://127.0.0.1:2375"}, refused: true},
		"SSH":                 {env: map[string]string{"DOCKER_HOST": "ssh://x"}, refused: true},
		"a relative socket":   {env: map[string]string{"DOCKER_HOST": "unix://x.sock"}, refused: true},
		"a remote context":    {env: map[string]string{"DOCKER_CONTEXT": "far"}, refused: true},
		"the default context": {env: map[string]string{"DOCKER_CONTEXT": "default"}, want: defaultSocket},
		"a near context":      {env: map[string]string{"DOCKER_CONTEXT": "near"}, want: "/run/near.sock"},
		"no such context":     {env: map[string]string{"DOCKER_CONTEXT": "none"}, refused: true},
		"a context in use":    {config: `{"currentContext":"ssh"}`, refused: true},
		"over a context":      {env: map[string]string{"DOCKER_HOST": "unix:///run/x.sock"}, config: `{"currentContext":"ssh"}`, want: "/run/x.sock"},
		"settings in pieces":  {config: `{`, refused: true},
		"other settings":      {config: `{"auths":{}}`, want: defaultSocket},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(home, ".docker/config.json")
			os.Remove(path)
			if c.config != "" {
				if err := os.WriteFile(path, []byte(c.config), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := socketOf(func(k string) string {
				if k == "HOME" {
					return home
				}
				return c.env[k]
			})
			if got != c.want || (err != nil) != c.refused {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// TestCheckSaysWhatIsMissing asks for an Engine that is not there.
func TestCheckSaysWhatIsMissing(t *testing.T) {
	t.Setenv("DOCKER_HOST", "unix://"+t.TempDir()+"/none")
	err := Backend{}.Check(t.Context())
	var u *bottle.UnavailableError
	if !errors.As(err, &u) || u.Advice == "" {
		t.Fatalf("%v", err)
	}
	if !strings.Contains(u.Reason, "there is no Docker Engine") {
		t.Errorf("%q", u.Reason)
	}
}

func TestOwner(t *testing.T) {
	own := map[string]string{labelOwner: owner(), labelPIDs: pidNamespace()}
	if !ownerLives(own) || !ownerLives(map[string]string{labelOwner: owner()}) {
		t.Error("this process does not live")
	}
	for _, label := range []string{"", "x", "1 2 3", "0 0 " + bootID(), "1 1 " + bootID(), "999999999 5 " + bootID()} {
		if ownerLives(map[string]string{labelOwner: label, labelPIDs: pidNamespace()}) {
			t.Errorf("the owner %q lives", label)
		}
		// There the number is another process's, of which nothing is known here.
		if !ownerLives(map[string]string{labelOwner: label, labelPIDs: "pid:[1]"}) {
			t.Errorf("the owner %q in another PID namespace is taken for dead", label)
		}
	}
	// One that was killed and that nobody waited for is dead.
	cmd := exec.Command("/bin/sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	label := fmt.Sprintf("%d %s %s", cmd.Process.Pid, startOf(cmd.Process.Pid), bootID())
	if !ownerLives(map[string]string{labelOwner: label}) {
		t.Error("a living process is dead")
	}
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd.Process.Pid, os.NewFile(uintptr(fd), "pidfd")}
	defer p.fd.Close()
	if err := p.await(0); err == nil {
		t.Error("a living process has ended")
	}
	cmd.Process.Kill()
	if err := p.await(testenv.Patience(time.Minute)); err != nil {
		t.Fatal(err)
	}
	// The wait for the Engine can have used up all patience.
	if err := p.await(0); err != nil {
		t.Errorf("of a process that has ended: %v", err)
	}
	if ownerLives(map[string]string{labelOwner: label}) {
		t.Error("a process that was killed lives")
	}
	cmd.Wait()
}

// TestProcessOfAnotherMachine: the number that an Engine in a virtual machine names is
// that of some process here, which must not be touched.
func TestProcessOfAnotherMachine(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for _, pid := range []int{os.Getpid(), os.Getppid(), 1 << 30} {
		var u *bottle.UnavailableError
		if p, err := openProcess(pid, id); !errors.As(err, &u) && pid > 1 || p != nil || u != nil && u.Advice == "" {
			t.Errorf("process %d: %v, %v", pid, p, err)
		}
	}
	for _, id := range []string{"", "0"} {
		if p, err := openProcess(os.Getpid(), id); err == nil {
			t.Errorf("of a container without an id: %v", p)
		}
	}
}

// TestJudge: a first process that is less confined is refused, for each part of it.
func TestJudge(t *testing.T) {
	spec := emptySpec()
	here := posture.Place{Namespaces: map[string]string{"user": "user:[1]"}, Root: posture.ID{Dev: 1, Ino: 2}}
	good := func() *posture.Process {
		p := &posture.Process{
			PID: 5, UIDs: [4]int{1000, 1000, 1000, 1000}, GIDs: [4]int{1000, 1000, 1000, 1000}, Groups: []int{1000}, Seccomp: 2, NoNewPrivs: 1,
			Place: posture.Place{Namespaces: map[string]string{"user": "user:[1]"}, Root: posture.ID{Dev: 9, Ino: 2}},
			FDs:   []posture.FD{{Link: "socket:[1]"}, {Link: "/dev/null", Mode: unix.S_IFCHR, Rdev: unix.Mkdev(1, 3)}, {Link: "pipe:[2]"}, {Link: "anon_inode:[eventpoll]"}},
		}
		for _, k := range apart {
			here.Namespaces[k], p.Namespaces[k] = k+":[1]", k+":[2]"
		}
		return p
	}
	if err := judge(good(), here, spec.User); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*posture.Process){
		"no filter":         func(p *posture.Process) { p.Seccomp = 0 },
		"new rights":        func(p *posture.Process) { p.NoNewPrivs = 0 },
		"saved root":        func(p *posture.Process) { p.UIDs[2] = 0 },
		"root's group":      func(p *posture.Process) { p.GIDs[1] = 0 },
		"one group more":    func(p *posture.Process) { p.Groups = append(p.Groups, 0) },
		"effective":         func(p *posture.Process) { p.CapEff = 1 },
		"permitted":         func(p *posture.Process) { p.CapPrm = 1 },
		"inheritable":       func(p *posture.Process) { p.CapInh = 1 },
		"ambient":           func(p *posture.Process) { p.CapAmb = 1 },
		"bounding":          func(p *posture.Process) { p.CapBnd = 1 },
		"carboy's network":  func(p *posture.Process) { p.Namespaces["net"] = here.Namespaces["net"] },
		"carboy's cgroups":  func(p *posture.Process) { p.Namespaces["cgroup"] = here.Namespaces["cgroup"] },
		"unknown namespace": func(p *posture.Process) { delete(p.Namespaces, "mnt") },
		"the host's root":   func(p *posture.Process) { p.Root = here.Root },
		"a directory":       func(p *posture.Process) { p.FDs = append(p.FDs, posture.FD{Link: "/", Mode: unix.S_IFDIR}) },
		"a device": func(p *posture.Process) {
			p.FDs = append(p.FDs, posture.FD{Link: "/dev/null", Mode: unix.S_IFCHR, Rdev: unix.Mkdev(1, 1)})
		},
		"a file that can't be looked at": func(p *posture.Process) { p.FDs = append(p.FDs, posture.FD{Link: "/x"}) },
	} {
		p := good()
		edit(p)
		var e *bottle.PostureError
		if err := judge(p, here, spec.User); !errors.As(err, &e) || e.Role != role {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhere(t *testing.T) {
	open := func() *os.File {
		f, err := os.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	layers := []layer{{dir: open(), at: "/"}, {dir: open(), at: "/work/space"}, {dir: open(), at: "/work/space/inner"}}
	for name, want := range map[string]struct {
		layer int
		rest  string
	}{
		"etc/x": {0, "etc/x"}, "work": {0, "work"}, "work/space": {1, ""}, "work/space/a": {1, "a"}, "work/spaces/a": {0, "work/spaces/a"}, "work/space/inner/b": {2, "b"},
	} {
		fd, rest := where(layers, name)
		if fd != int(layers[want.layer].dir.Fd()) || rest != want.rest {
			t.Errorf("%s is %q in descriptor %d", name, rest, fd)
		}
	}
}

// standIn returns an Engine of which the test says what it answers.
func standIn(t *testing.T, h http.HandlerFunc) *engine {
	t.Helper()
	dir, err := os.MkdirTemp("", "engine-") // short, because the paths of sockets are bounded
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", dir+"/s")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(l) }() // ends with the test
	t.Cleanup(func() { srv.Close(); <-done; os.RemoveAll(dir) })
	return &engine{socket: dir + "/s", client: dockerapi.New(dir + "/s")}
}

// TestSuitable checks which Engines are refused, and that each refusal says what to do.
func TestSuitable(t *testing.T) {
	var info string
	e := standIn(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, info) })
	for name, x := range map[string]struct{ info, reason string }{
		"Docker 20.10":        {`{"OSType":"linux","Runtimes":{"runc":{}},"SecurityOptions":["name=apparmor","name=seccomp,profile=default","name=cgroupns"]}`, ""},
		"Docker 23":           {`{"OSType":"linux","Runtimes":{"runc":{}},"SecurityOptions":["name=seccomp,profile=builtin"]}`, ""},
		"rootless":            {`{"OSType":"linux","Runtimes":{"runc":{}},"SecurityOptions":["name=seccomp,profile=builtin","name=rootless"]}`, "rootless"},
		"userns-remap":        {`{"OSType":"linux","Runtimes":{"runc":{}},"SecurityOptions":["name=seccomp,profile=builtin","name=userns"]}`, "userns-remap"},
		"no filter":           {`{"OSType":"linux","Runtimes":{"runc":{}},"SecurityOptions":["name=seccomp,profile=unconfined"]}`, "unconfined"},
		"a filter of its own": {`{"OSType":"linux","Runtimes":{"runc":{}},"SecurityOptions":["name=seccomp,profile=/etc/x\u001b.json"]}`, "/etc/x"},
		"no seccomp":          {`{"OSType":"linux","Runtimes":{"runc":{}},"SecurityOptions":[]}`, "seccomp"},
		"runsc alone":         {`{"OSType":"linux","Runtimes":{"runsc":{"path":"/usr/bin/runsc"}},"SecurityOptions":["name=seccomp,profile=builtin"]}`, "no runtime runc"},
		"no runc":             {`{"OSType":"linux","Runtimes":{"crun":{}},"SecurityOptions":["name=seccomp,profile=builtin"]}`, "no runtime runc"},
		"Windows":             {`{"OSType":"windows","Runtimes":{"runc":{}},"SecurityOptions":["name=seccomp,profile=builtin"]}`, "Linux"},
		"no answer":           {`{`, "no Engine answers"},
	} {
		info = x.info
		err := e.suitable(t.Context())
		var u *bottle.UnavailableError
		if x.reason == "" && err != nil || x.reason != "" && (!errors.As(err, &u) || !strings.Contains(u.Reason, x.reason) || u.Advice == "" || strings.Contains(u.Reason, "\x1b")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLostAnswer: a container whose id never came is removed by its name.
func TestLostAnswer(t *testing.T) {
	var made, removed string
	e := standIn(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/containers/create":
			made = r.URL.Query().Get("name")
			io.WriteString(w, `{"Id":"`)
		case r.Method == "DELETE":
			removed = strings.TrimPrefix(r.URL.Path, "/containers/")
			w.WriteHeader(http.StatusNoContent)
		}
	})
	x := &box{engine: e}
	var err error
	if x.id, err = e.create(t.Context(), configOf(emptySpec(), "image")); err == nil {
		t.Error("a container without an id was made")
	}
	if err := x.destroy(); err != nil || made == "" || removed != made {
		t.Errorf("%q was made, %q removed; %v", made, removed, err)
	}
}

// TestKernelOf: a runtime with a kernel of its own is found by its program, whatever its name.
func TestKernelOf(t *testing.T) {
	for name, x := range map[string]struct{ runtimes, want string }{
		"runc alone":        {`{"runc":{"path":"runc"},"io.containerd.runc.v2":{"path":"runc"}}`, ""},
		"runsc":             {`{"runc":{"path":"runc"},"runsc":{"path":"/usr/bin/runsc","runtimeArgs":["--network=host"]}}`, "runsc"},
		"another name":      {`{"runc":{"path":"runc"},"strong":{"path":"/opt/runsc"}}`, "strong"},
		"carboy's":          {`{"runc":{"path":"runc"},"carboy":{"path":"/usr/local/bin/carboy-runtime"}}`, "carboy"},
		"both":              {`{"a":{"path":"/usr/bin/runsc"},"runc":{"path":"runc"},"z":{"path":"/x/carboy-runtime"}}`, "z"},
		"by the name alone": {`{"runsc":{"path":"/usr/bin/runc"},"carboy":{"path":"crun"},"runc":{"path":"runc"}}`, ""},
		"a shim":            {`{"runsc":{"runtimeType":"io.containerd.runsc.v1"},"runc":{"path":"runc"}}`, ""},
	} {
		e := standIn(t, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, `{"OSType":"linux","Runtimes":%s,"SecurityOptions":["name=seccomp,profile=builtin"]}`, x.runtimes)
		})
		if err := e.suitable(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		class := bottle.IsolationContainer
		if x.want != "" {
			class = bottle.IsolationUserKernel
		}
		if e.kernel.name != x.want || e.isolation() != class || e.kernel.ours() != strings.Contains(x.runtimes, "carboy-runtime") {
			t.Errorf("%s: %+v, %s", name, e.kernel, e.isolation())
		}
	}
}

// TestCheck: a container that is not what was asked for is refused, for each part of it.
func TestCheck(t *testing.T) {
	shared, kernel := configOf(emptySpec(), "image"), kernelConfig(emptySpec(), "image", "carboy", "other")
	for name, want := range map[string]*containerConfig{"runc": shared, "a kernel": kernel, "its network": networkOf(emptySpec(), "image")} {
		good := func() *inspected {
			c := &inspected{HostConfig: want.HostConfig}
			c.Config.User, c.Config.Entrypoint = want.User, want.Entrypoint
			for v := range want.Volumes {
				c.Mounts = append(c.Mounts, struct{ Type, Destination string }{"volume", v})
			}
			return c
		}
		if err := good().check(want); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for part, edit := range map[string]func(*inspected){
			"a network":           func(c *inspected) { c.HostConfig.NetworkMode = "bridge" },
			"another's network":   func(c *inspected) { c.HostConfig.NetworkMode = "container:x" },
			"privileged":          func(c *inspected) { c.HostConfig.Privileged = true },
			"kept capabilities":   func(c *inspected) { c.HostConfig.CapDrop = nil },
			"one capability more": func(c *inspected) { c.HostConfig.CapAdd = append([]string{"NET_ADMIN"}, c.HostConfig.CapAdd...) },
			"a root to write to":  func(c *inspected) { c.HostConfig.ReadonlyRootfs = false },
			"a bind":              func(c *inspected) { c.HostConfig.Binds = []string{"/:/host"} },
			"a mount":             func(c *inspected) { c.Mounts = append(c.Mounts, struct{ Type, Destination string }{"volume", "/x"}) },
			"another kind of mount": func(c *inspected) {
				c.Mounts = []struct{ Type, Destination string }{{"bind", volumePath}}
			},
			"devices":         func(c *inspected) { c.HostConfig.Devices = []any{1} },
			"another runtime": func(c *inspected) { c.HostConfig.Runtime = "crun" },
			"host's PIDs":     func(c *inspected) { c.HostConfig.PidMode = "host" },
			"another user":    func(c *inspected) { c.Config.User = "5:5" },
			"another program": func(c *inspected) { c.Config.Entrypoint = []string{"/bin/sh"} },
			"no limit":        func(c *inspected) { c.HostConfig.PidsLimit = 0 },
		} {
			c := good()
			edit(c)
			var e *bottle.PostureError
			if err := c.check(want); !errors.As(err, &e) {
				t.Errorf("%s with %s: %v", name, part, err)
			}
		}
	}
	// Engines write the names of capabilities in two forms.
	c := &inspected{HostConfig: kernel.HostConfig, Mounts: []struct{ Type, Destination string }{{"volume", volumePath}}}
	c.Config.User, c.Config.Entrypoint, c.HostConfig.CapAdd = kernel.User, kernel.Entrypoint, nil
	for _, n := range slices.Backward(insideCaps) {
		c.HostConfig.CapAdd = append(c.HostConfig.CapAdd, "CAP_"+n)
	}
	if err := c.check(kernel); err != nil {
		t.Error(err)
	}
}

// TestJudgeKernel: a process of gVisor's that is less confined is refused, for each part of it.
func TestJudgeKernel(t *testing.T) {
	here := posture.Place{Namespaces: map[string]string{}, Root: posture.ID{Dev: 1, Ino: 2}}
	network := &posture.Process{Place: posture.Place{Namespaces: map[string]string{"net": "net:[2]"}}}
	good := func() *posture.Process {
		p := &posture.Process{
			Seccomp: 2, NoNewPrivs: 1, CapEff: 1 << unix.CAP_CHOWN, CapBnd: fileCaps,
			Place: posture.Place{Namespaces: map[string]string{}, Root: posture.ID{Dev: 9, Ino: 2}},
			FDs:   []posture.FD{{Link: "socket:[1]"}, {Link: "/dev/null", Mode: unix.S_IFCHR, Rdev: unix.Mkdev(1, 3)}, {Link: "/dev/kvm", Mode: unix.S_IFCHR, Rdev: unix.Mkdev(10, 232)}},
		}
		for _, k := range []string{"ipc", "mnt", "net", "pid", "uts"} {
			here.Namespaces[k], p.Namespaces[k] = k+":[1]", k+":[2]"
		}
		return p
	}
	for _, role := range []string{kernelRole, goferRole} {
		if err := judgeKernel(role, good(), network, here); err != nil {
			t.Fatal(err)
		}
		for name, edit := range map[string]func(*posture.Process){
			"no filter":         func(p *posture.Process) { p.Seccomp = 0 },
			"new rights":        func(p *posture.Process) { p.NoNewPrivs = 0 },
			"effective":         func(p *posture.Process) { p.CapEff |= 1 << unix.CAP_SYS_ADMIN },
			"permitted":         func(p *posture.Process) { p.CapPrm |= 1 << unix.CAP_NET_RAW },
			"inheritable":       func(p *posture.Process) { p.CapInh |= 1 << unix.CAP_MKNOD },
			"ambient":           func(p *posture.Process) { p.CapAmb |= 1 << unix.CAP_SETUID },
			"bounding":          func(p *posture.Process) { p.CapBnd |= 1 << unix.CAP_SYS_PTRACE },
			"the host's root":   func(p *posture.Process) { p.Root = here.Root },
			"carboy's files":    func(p *posture.Process) { p.Namespaces["mnt"] = here.Namespaces["mnt"] },
			"carboy's network":  func(p *posture.Process) { p.Namespaces["net"] = here.Namespaces["net"] },
			"unknown namespace": func(p *posture.Process) { delete(p.Namespaces, "pid") },
			"a disk":            func(p *posture.Process) { p.FDs = append(p.FDs, posture.FD{Link: "/dev/sda", Mode: unix.S_IFBLK}) },
		} {
			p := good()
			edit(p)
			var e *bottle.PostureError
			if err := judgeKernel(role, p, network, here); !errors.As(err, &e) || e.Role != role {
				t.Errorf("%s with %s: %v", role, name, err)
			}
		}
	}
	p := good()
	p.CapEff |= 1 << unix.CAP_SYS_CHROOT
	if judgeKernel(goferRole, p, network, here) != nil || judgeKernel(kernelRole, p, network, here) == nil {
		t.Error("the gofer may change its root, and the kernel may not")
	}
	if p := good(); judgeKernel(kernelRole, func() *posture.Process { p.Namespaces["net"] = "net:[3]"; return p }(), network, here) == nil {
		t.Error("a kernel in another network than the bottle's is taken")
	}
}

// TestAttached: what the Engine sends is read as standard output alone, in any pieces.
func TestAttached(t *testing.T) {
	frame := func(stream byte, text string) string {
		return string([]byte{stream, 0, 0, 0, 0, 0, byte(len(text) >> 8), byte(len(text))}) + text
	}
	read := func(s string) (string, error) {
		b, err := io.ReadAll(iotest.OneByteReader(&attached{from: bufio.NewReader(iotest.HalfReader(strings.NewReader(s)))}))
		return string(b), err
	}
	if got, err := read(frame(1, "hello ") + frame(1, "") + frame(1, strings.Repeat("x", 5000))); got != "hello "+strings.Repeat("x", 5000) || err != nil {
		t.Errorf("%q %v", got, err)
	}
	for name, s := range map[string]string{
		"standard error": frame(2, "x"), "no stream": frame(9, "x"), "too long": "\x01\x00\x00\x00\xff\xff\xff\xff", "half a head": "\x01\x00",
		"no frames": "HTTP/1.1 200 OK\r\n",
	} {
		if got, err := read(frame(1, "ok") + s); got != "ok" || err == nil {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
}

// TestSweep: the containers of carboys that have ended are removed, and nothing else.
func TestSweep(t *testing.T) {
	label := func(owner, ns string) string {
		b, _ := json.Marshal(map[string]string{labelOwner: owner, labelPIDs: ns})
		return string(b)
	}
	var removed []string
	e := standIn(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == "GET":
			fmt.Fprintf(w, `[{"Id":"living","Labels":%s},{"Id":"dead","Labels":%s},{"Id":"paused","State":"paused","Labels":%s},{"Id":"gone","Labels":%s},{"Id":"elsewhere","Labels":%s},{"Id":"stuck","Labels":%s}]`,
				label(owner(), pidNamespace()), label("1 1 x", pidNamespace()), label("1 1 x", pidNamespace()), label("1 1 x", ""), label("1 1 x", "pid:[1]"), label("1 1 x", pidNamespace()))
		case strings.HasSuffix(r.URL.Path, "/gone"), strings.HasSuffix(r.URL.Path, "/wait"):
			http.Error(w, `{"message":"no such container"}`, http.StatusNotFound)
		case strings.HasSuffix(r.URL.Path, "/stuck"):
			http.Error(w, `{"message":"device or resource busy"}`, http.StatusInternalServerError)
		default:
			removed = append(removed, r.Method+" "+r.URL.Path)
		}
	})
	err := e.sweep(t.Context())
	if !slices.Equal(removed, []string{"DELETE /containers/dead", "POST /containers/paused/unpause", "DELETE /containers/paused"}) {
		t.Errorf("%q", removed)
	}
	if err == nil || !strings.Contains(err.Error(), "docker rm -f stuck") || strings.Contains(err.Error(), "gone") {
		t.Errorf("%v", err)
	}
}

// TestReadUpper: bringing files back ends when nobody waits for it any more.
func TestReadUpper(t *testing.T) {
	var stream bytes.Buffer
	w := tar.NewWriter(&stream)
	for i := range 3 {
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("./f%d", i), Typeflag: tar.TypeReg, Mode: 0o644, Uid: os.Getuid(), Gid: os.Getgid()}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, ended := range []bool{false, true} {
		dir := t.TempDir()
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		want := 3
		if ended {
			cancel()
			want = 0
		}
		err = readUpper(ctx, bytes.NewReader(stream.Bytes()), []layer{{dir: f, at: "/"}})
		if got, _ := os.ReadDir(dir); len(got) != want || errors.Is(err, context.Canceled) != ended || !ended && err != nil {
			t.Errorf("ended %v: %d files, %v", ended, len(got), err)
		}
	}
}

// TestOwn: files of root and of the user's host id are the user's inside, and those of
// the number inside are not, if that is somebody else's on the host.
func TestOwn(t *testing.T) {
	testenv.Root(t)
	for name, x := range map[string]struct {
		owner, host uint32 // of the directory; of the bottle's user
		want        uint32 // who owns what is of the host's user 1000, inside
		dir         uint32 // who owns the directory
	}{
		"the user's":               {1000, 1000, 1000, 1000},
		"another's":                {1234, 1000, 1000, 1234},
		"root's":                   {0, 1000, 65534, 1000},
		"of a user without files":  {1_907_000_001, 1_907_000_001, 65534, 1000},
		"of the number inside":     {1000, 1_907_000_001, 65534, 65534},
		"another's, of root's run": {1234, 1_907_000_001, 65534, 65534},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := errors.Join(os.WriteFile(dir+"/f", nil, 0o600), os.Chown(dir+"/f", 1000, 1000), os.Chown(dir, int(x.owner), int(x.owner))); err != nil {
				t.Fatal(err)
			}
			spec := emptySpec()
			spec.HostUID, spec.HostGID = x.host, x.host
			m, err := openMount(bottle.Mount{Source: dir, Target: "/x", Access: bottle.AccessReadOnly}, spec, asked{})
			if err != nil {
				t.Fatal(err)
			}
			defer m.file.Close()
			var d, f unix.Stat_t
			if err := errors.Join(unix.Fstat(int(m.file.Fd()), &d), unix.Fstatat(int(m.file.Fd()), "f", &f, unix.AT_SYMLINK_NOFOLLOW)); err != nil {
				t.Fatal(err)
			}
			if d.Uid != x.dir || f.Uid != x.want {
				t.Errorf("the directory is %d's, the file %d's", d.Uid, f.Uid)
			}
			w, err := openMount(bottle.Mount{Source: dir, Target: "/x", Access: bottle.AccessReadWrite}, spec, asked{kernel: true})
			if (err != nil) != (x.owner == 0) {
				t.Errorf("with write access: %v", err)
			}
			if err != nil {
				return
			}
			defer w.file.Close()
			// A process of root's, as gVisor's gofer is, makes files and gives them away, where
			// the directory is the user's.
			fd, err := unix.Openat(int(w.file.Fd()), "made", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
			if err == nil {
				err = errors.Join(unix.Fchown(fd, 1000, 1000), unix.Close(fd), unix.Stat(dir+"/made", &f))
			}
			if x.dir == 1000 && (err != nil || f.Uid != x.owner) {
				t.Errorf("a file for the user is %d's on disk, %v", f.Uid, err)
			}
		})
	}
}

// TestBlocks checks that no depth of directories hides what is in them.
func TestBlocks(t *testing.T) {
	top := t.TempDir()
	if err := os.WriteFile(top+"/f", make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := blocks(fd, 0); n < 1<<20 || n > 2<<20 {
		t.Errorf("1 MiB is %d", n)
	}
	at, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	for range maxDepth + 10 {
		if err == nil {
			err = unix.Mkdirat(at, "d", 0o755)
		}
		if err == nil {
			next, oerr := unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
			unix.Close(at)
			at, err = next, oerr
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(at)
	if fd, err = unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
		t.Fatal(err)
	}
	if n := blocks(fd, 0); n != tooMuch {
		t.Errorf("what is nested too deeply is %d bytes", n)
	}
}
