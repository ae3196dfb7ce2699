package ociruntime

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain is dockerd, too: a process of that name that says when it is asked to read its
// file again.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "dockerd" {
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGHUP)
		fmt.Println("up")
		<-c
		fmt.Println("reloaded")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// host is a directory with the files of a machine.
type host struct {
	t *testing.T
	o Options
}

func newHost(t *testing.T, files map[string]string) *host {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t, Options{Under: dir, Exe: filepath.Join(dir, "opt/carboy")}}
	h.write("opt/carboy", "program")
	for name, text := range files {
		h.write(name, text)
	}
	return h
}

func (h *host) write(name, text string) {
	h.t.Helper()
	name = h.o.path(name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// all returns every file with its text, links with where they lead to.
func (h *host) all() map[string]string {
	h.t.Helper()
	out := map[string]string{}
	err := filepath.Walk(h.o.Under, func(p string, fi os.FileInfo, err error) error {
		if err != nil || fi.IsDir() {
			return err
		}
		name, _ := filepath.Rel(h.o.Under, p)
		if fi.Mode()&os.ModeSymlink != 0 {
			to, err := os.Readlink(p)
			out[name] = "-> " + to
			return err
		}
		b, err := os.ReadFile(p)
		out[name] = string(b)
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return out
}

func (h *host) same(what string, want map[string]string) {
	h.t.Helper()
	if got := h.all(); fmt.Sprint(got) != fmt.Sprint(want) {
		h.t.Errorf("%s: the files are\n%q\nwant\n%q", what, got, want)
	}
}

func (h *host) install() []Step {
	h.t.Helper()
	s, err := Install(h.o)
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

func (h *host) uninstall() []Step {
	h.t.Helper()
	s, err := Uninstall(h.o)
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

// done counts the steps that changed something.
func done(steps []Step) (n int) {
	for _, s := range steps {
		if s.Done {
			n++
		}
	}
	return n
}

const (
	odd       = "{ \"log-level\": \"warn\",\n\t\"runtimes\": {\"kata\": {\"path\": \"/opt/kata\", \"runtimeArgs\": [\"--x\"]}}, \"big\": 12345678901234567890,\n \"z\": null}"
	cri2      = "version = 2\n# a comment\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  snapshotter = \"overlayfs\"\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n  runtime_type = \"io.containerd.runc.v2\"\n"
	cri3      = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n  x = 1" // no line end
	dockerOld = "disabled_plugins = [\"cri\"]\n"
)

// TestUndone: what install wrote is what uninstall takes away, to the last byte, and each of
// them done twice is done once.
func TestUndone(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"nothing but the directory": {"etc/docker/key.json": "{}"},
		"an empty file":             {dockerFile: ""},
		"an empty object":           {dockerFile: "{}"},
		"other settings":            {dockerFile: odd},
		"containerd 2":              {containerdFile: cri2},
		"containerd 3":              {containerdFile: cri3},
		"podman":                    {"usr/bin/podman": "x"},
		"all":                       {dockerFile: odd, containerdFile: cri2, "usr/bin/podman": "x"},
		"containerd without CRI":    {containerdFile: dockerOld, dockerFile: "{}"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, files)
			before := h.all()
			h.o.DryRun = true
			if n := done(h.install()); n == 0 {
				t.Error("a dry run has nothing to do")
			}
			h.same("after a dry run", before)
			h.o.DryRun = false
			h.install()
			after := h.all()
			if len(after) == len(before) || after["usr/local/bin/"+Program] != "-> "+h.o.Exe {
				t.Fatalf("installed: %q", after)
			}
			if n := done(h.install()); n != 0 {
				t.Errorf("installed again: %d steps", n)
			}
			h.same("installed again", after)
			h.uninstall()
			h.same("uninstalled", before)
			if n := done(h.uninstall()); n != 0 {
				t.Errorf("uninstalled again: %d steps", n)
			}
		})
	}
}

// TestKeepsTheRest: what else the files say stays, in its order, as it was.
func TestKeepsTheRest(t *testing.T) {
	h := newHost(t, map[string]string{dockerFile: odd, containerdFile: cri2, "usr/bin/podman": "x"})
	h.install()
	got := h.all()
	link := h.o.link()
	d, err := members([]byte(got[dockerFile]))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range d {
		names = append(names, m.name)
	}
	if strings.Join(names, " ") != "log-level runtimes big z" || string(valueOf(d, "big")) != "12345678901234567890" {
		t.Errorf("daemon.json: %s", got[dockerFile])
	}
	r, err := members(valueOf(d, "runtimes"))
	if err != nil || len(r) != 2 || !strings.Contains(string(valueOf(r, "kata")), "--x") || !strings.Contains(string(valueOf(r, Name)), link) {
		t.Errorf("runtimes: %s, %v", valueOf(d, "runtimes"), err)
	}
	if got[dockerFile+backupSuffix] != odd || got[containerdFile+backupSuffix] != cri2 {
		t.Error("a backup is not what was there")
	}
	if !strings.HasPrefix(got[containerdFile], cri2) {
		t.Errorf("config.toml: %s", got[containerdFile])
	}
	m, err := parseTOML("x", []byte(got[podmanFile]))
	if list, _ := below(m, "engine", "runtimes")[Name].([]any); err != nil || len(list) != 1 || list[0] != link {
		t.Errorf("podman: %s, %v", got[podmanFile], err)
	}
}

// TestChangedSince: what somebody changed after install stays when it is undone.
func TestChangedSince(t *testing.T) {
	h := newHost(t, map[string]string{dockerFile: `{"debug": true}`, containerdFile: cri2})
	h.install()
	got := h.all()
	h.write(dockerFile, strings.Replace(got[dockerFile], "true", "false", 1))
	h.write(containerdFile, got[containerdFile]+"oom_score = -1\n")
	h.uninstall()
	got = h.all()
	if got[dockerFile] != "{\n  \"debug\": false\n}\n" || got[containerdFile] != cri2+"oom_score = -1\n" || len(got) != 3 {
		t.Errorf("%q", got)
	}
}

// TestRefuses: a file that can't be read, or replaced faithfully, is not touched, nor is any
// other. The message names it.
func TestRefuses(t *testing.T) {
	for name, x := range map[string]struct {
		files map[string]string
		want  string
	}{
		"half a file":           {map[string]string{dockerFile: "{\n\"a\": 1,"}, "daemon.json"},
		"a syntax error":        {map[string]string{dockerFile: "{\n\"a\": 1,\n\"b\": x}"}, "daemon.json:3"},
		"a comment":             {map[string]string{dockerFile: "{\n// no\n}"}, "daemon.json:2"},
		"no object":             {map[string]string{dockerFile: "[]"}, "no JSON object"},
		"two documents":         {map[string]string{dockerFile: "{} {}"}, "something follows"},
		"a name twice":          {map[string]string{dockerFile: `{"a": 1, "a": 2}`}, `says "a" twice`},
		"runtimes are a list":   {map[string]string{dockerFile: `{"runtimes": []}`}, "runtimes: it is no JSON object"},
		"another's runtime":     {map[string]string{dockerFile: `{"runtimes": {"carboy": {"path": "/bin/sh"}}}`}, `another program, "/bin/sh"`},
		"bad TOML":              {map[string]string{containerdFile: "version = 2\nx = [\n"}, "config.toml:"},
		"another's in TOML":     {map[string]string{containerdFile: cri2 + "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.carboy]\n"}, "carboy did not write"},
		"an inline table":       {map[string]string{containerdFile: "version = 2\nplugins = {\"io.containerd.grpc.v1.cri\" = {containerd = {runtimes = {}}}}\n"}, "config.toml"},
		"our lines without end": {map[string]string{containerdFile: cri2 + blockBegin}, "have no end"},
		"podman's is another's": {map[string]string{podmanFile: "[engine]\n"}, "did not write this file"},
		"too long":              {map[string]string{dockerFile: `{"a": "` + strings.Repeat("x", maxConfig) + `"}`}, "more than"},
		"no engine":             {map[string]string{"etc/passwd": ""}, ErrNoEngine.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, x.files)
			if name != "no engine" { // each of the others could be changed
				for f, text := range map[string]string{dockerFile: "{}", containerdFile: cri2} {
					if _, there := x.files[f]; !there {
						h.write(f, text)
					}
				}
			}
			before := h.all()
			if _, err := Install(h.o); err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("%.300v; want %q", err, x.want)
			}
			h.same("refused", before)
		})
	}
}

func TestRefusesLinks(t *testing.T) {
	h := newHost(t, map[string]string{"store/daemon.json": "{}"})
	if err := os.MkdirAll(h.o.path("etc/docker"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../store/daemon.json", h.o.path(dockerFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := Install(h.o); err == nil || !strings.Contains(err.Error(), "is a link") {
		t.Errorf("a link as daemon.json: %v", err)
	}
	h = newHost(t, map[string]string{dockerFile: "{}"})
	h.write("usr/local/bin/"+Program, "somebody's program")
	if _, err := Install(h.o); err == nil || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("a program in the link's place: %v", err)
	}
	h = newHost(t, map[string]string{dockerFile: "{}"})
	h.install()
	h.o.Exe = h.o.path("opt/newer/carboy")
	h.write("opt/newer/carboy", "program")
	if n := done(h.install()); n != 1 || h.all()["usr/local/bin/"+Program] != "-> "+h.o.Exe {
		t.Errorf("another place of carboy: %d steps, %q", n, h.all())
	}
}

// TestDefaultRuntime: Docker does not start without its default runtime.
func TestDefaultRuntime(t *testing.T) {
	h := newHost(t, map[string]string{dockerFile: `{"default-runtime": "carboy"}`})
	h.install()
	before := h.all()
	if _, err := Uninstall(h.o); err == nil || !strings.Contains(err.Error(), "default-runtime") {
		t.Errorf("%v", err)
	}
	h.same("refused", before)
}

// TestTrusted: engines start the program as root, so nobody else may replace it.
func TestTrusted(t *testing.T) {
	h := newHost(t, map[string]string{dockerFile: "{}"})
	for _, name := range []string{"opt/carboy", "opt"} {
		fi, err := os.Stat(h.o.path(name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(h.o.path(name), fi.Mode().Perm()|0o022); err != nil {
			t.Fatal(err)
		}
		if _, err := Install(h.o); err == nil || !strings.Contains(err.Error(), "can be written by other users") {
			t.Errorf("%s can be written by all: %v", name, err)
		}
		if err := os.Chmod(h.o.path(name), fi.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(h.o.Exe, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if _, err := Install(h.o); err == nil || !strings.Contains(err.Error(), "belongs to another user") {
			t.Errorf("another user's program: %v", err)
		}
	}
	h.install0(t)
}

// install0 checks that what was refused above is taken once nobody else can change it.
func (h *host) install0(t *testing.T) {
	if os.Geteuid() == 0 {
		if err := os.Chown(h.o.Exe, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	h.install()
}

// TestReload: a dockerd that runs reads its file again, and goes on. A process of another
// name that has the number is not signalled.
func TestReload(t *testing.T) {
	h := newHost(t, map[string]string{dockerFile: "{}"})
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	h.write("dockerd", string(exe))
	if err := os.Chmod(h.o.path("dockerd"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(h.o.path("dockerd"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	hung := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer hung.Stop()
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "up" {
		t.Fatalf("%q", lines.Text())
	}
	h.write(dockerPID, strconv.Itoa(os.Getpid())+"\n")
	h.install() // this process is not dockerd, and goes on
	h.uninstall()
	h.write(dockerPID, strconv.Itoa(cmd.Process.Pid)+"\n")
	if n := done(h.install()); n != 3 {
		t.Errorf("%d steps, want link, file and signal", n)
	}
	if !lines.Scan() || lines.Text() != "reloaded" {
		t.Errorf("dockerd said %q", lines.Text())
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if err := hangUp(cmd.Process.Pid); err == nil {
		t.Error("a process that is gone was signalled")
	}
	if err := hangUp(os.Getpid()); err == nil || errors.Is(err, syscall.EPERM) {
		t.Errorf("this process: %v", err)
	}
}
