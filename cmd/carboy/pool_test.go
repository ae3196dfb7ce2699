package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/testenv"
)

// site is a user's machine: state, runtime directory, workspace.
type site struct {
	t        *testing.T
	home, ws string
	vars     []string
}

func newSite(t *testing.T) *site {
	t.Helper()
	home, err := os.MkdirTemp("", "cp-")
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, home: home, ws: filepath.Join(home, "ws")}
	if err := errors.Join(os.Chmod(home, 0o755), os.Mkdir(s.ws, 0o755), os.Mkdir(filepath.Join(home, "run"), 0o700), own(s.ws)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.carboy("pool", "stop")
		os.RemoveAll(home)
	})
	return s
}

func (s *site) command(args ...string) *exec.Cmd {
	cmd := exec.Command("carboy", args...)
	cmd.Dir = s.ws
	cmd.Env = append(append(os.Environ(), "HOME="+s.home, "XDG_STATE_HOME="+s.home+"/state", "XDG_RUNTIME_DIR="+s.home+"/run",
		"XDG_CONFIG_HOME="+s.home+"/config", "TERM=xterm", "NO_COLOR=1"), s.vars...)
	return cmd
}

// said holds the output and exit code of a carboy.
type said struct {
	out, msg string
	code     int
}

func (s *site) carboy(args ...string) said { return s.feed("", args...) }

func (s *site) feed(stdin string, args ...string) said {
	s.t.Helper()
	cmd := s.command(args...)
	if stdin != "" {
		cmd.Stdin = strings.NewReader(stdin)
	}
	return s.finish(cmd)
}

func (s *site) finish(cmd *exec.Cmd) said {
	s.t.Helper()
	var out, msg bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &msg
	cmd.WaitDelay = patience
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatalf("%q: %v", cmd.Args, err)
	}
	return said{out.String(), msg.String(), cmd.ProcessState.ExitCode()}
}

// waiting lists the ready bottles.
func (s *site) waiting() []poolStatus {
	s.t.Helper()
	var l []poolStatus
	x := s.carboy("pool", "list", "--json")
	if err := json.Unmarshal([]byte(x.out), &l); err != nil {
		s.t.Fatalf("pool list: %v: %s%s", err, x.out, x.msg)
	}
	return l
}

// warm waits until n bottles are ready, and returns their processes.
func (s *site) warm(n int) (pids []int) {
	s.t.Helper()
	var l []poolStatus
	if !testenv.Poll(patience, func() bool { l = s.waiting(); return len(l) == n }) {
		s.t.Fatalf("%d bottles are not ready: %+v; %s", n, l, s.carboy("pool", "list").msg)
	}
	for _, x := range l {
		pids = append(pids, x.PID)
	}
	return pids
}

// prime makes one bottle ready for runs with these flags.
func (s *site) prime(flags ...string) int {
	s.t.Helper()
	s.carboy("pool", "stop")
	s.carboy(slices.Concat([]string{"run", "-q", "--pool", "1"}, flags, []string{"--", "true"})...)
	return s.warm(1)[0]
}

// newest is the record of the newest run.
func (s *site) newest() (m struct {
	ID         string
	State      string
	Supervisor struct{ PID int }
}) {
	s.t.Helper()
	dirs, _ := filepath.Glob(s.home + "/state/carboy/runs/0*")
	if len(dirs) == 0 {
		s.t.Fatal("no run")
	}
	slices.Sort(dirs)
	b, err := os.ReadFile(dirs[len(dirs)-1] + "/meta.json")
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

func (s *site) wipe() {
	s.t.Helper()
	ents, err := os.ReadDir(s.ws)
	for _, e := range ents {
		err = errors.Join(err, os.RemoveAll(filepath.Join(s.ws, e.Name())))
	}
	err = errors.Join(err, os.WriteFile(s.ws+"/a.txt", []byte("hello\n"), 0o644), own(s.ws))
	if err != nil {
		s.t.Fatal(err)
	}
}

type replacement struct {
	form *regexp.Regexp
	as   string
}

// unstable is made when it is needed: a test counts what this package does
// before main.
var unstable = sync.OnceValue(func() []replacement {
	return []replacement{
		{regexp.MustCompile(`"digest": "[0-9a-f]{64}"`), `"digest": "X"`},
		{regexp.MustCompile(`01[0-9a-hjkmnp-tv-z]{24}`), "RUN"},
		{regexp.MustCompile(`after [0-9.]+ (ms|s)`), "after TIME"},
		{regexp.MustCompile(`"(duration_ns|start_ns|end_ns|facts|seq|memory_bytes|disk_bytes|file_size_bytes|bytes|peak_[a-z_]+|pid|uid|gid)": *-?[0-9]+`), `"$1": N`},
		{regexp.MustCompile(`(?s)"fds": \{.*?\}`), `"fds": {}`},
		{regexp.MustCompile(`"(started|ended|root)": *"[^"]*"`), `"$1": "X"`},
		{regexp.MustCompile(`20[0-9]{2}-[0-9-]+[T ][0-9:.]+Z?`), "DATE"},
	}
})

func steady(s string) string {
	for _, u := range unstable() {
		s = u.form.ReplaceAllString(s, u.as)
	}
	return s
}

// A run from the pool is to its user what a run without is: output, messages,
// exit code, receipt and changes.
func TestPoolParity(t *testing.T) {
	s := newSite(t)
	host := filepath.Join(s.home, "data")
	if err := errors.Join(os.Mkdir(host, 0o755), os.WriteFile(host+"/x", []byte("shown\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	// Only where a later case differs in its plan is another bottle made.
	for _, c := range []struct {
		name  string
		flags []string
		stdin string
		cmd   []string
		cold  bool // never from the pool
	}{
		{name: "true", cmd: []string{"true"}},
		{name: "streams", cmd: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}},
		{name: "stdin", stdin: "line\nlast", cmd: []string{"cat"}},
		{name: "missing", cmd: []string{"no-such-program"}},
		{name: "not executable", cmd: []string{"/etc/passwd"}},
		{name: "signal", cmd: []string{"sh", "-c", "kill -TERM $$"}},
		{name: "changes", cmd: []string{"sh", "-c", "echo x >made; rm a.txt; mkdir -p .github; echo y >.envrc"}},
		{name: "environment", flags: []string{"--env", "API_TOKEN=tok-0123456789", "--env", "CI=1"}, cmd: []string{"sh", "-c", "echo $CI $API_TOKEN $CARBOY $HOME $PWD; id"}},
		{name: "secret argument", flags: []string{"--env", "API_TOKEN=tok-0123456789"}, cmd: []string{"echo", "tok-0123456789"}},
		{name: "refused name", cmd: []string{"sh", "-c", "getent hosts refused.example.org; exit 0"}},
		{name: "quiet", flags: []string{"-q"}, cmd: []string{"sh", "-c", "echo x >made; exit 4"}},
		{name: "json", flags: []string{"--json"}, cmd: []string{"sh", "-c", "echo x >made"}},
		{name: "json missing", flags: []string{"--json"}, cmd: []string{"no-such-program"}},
		{name: "published", flags: []string{"--publish", "39877"}, cmd: []string{"true"}},
		{name: "timeout", flags: []string{"--timeout", "1s"}, cmd: []string{"sleep", "1000"}},
		{name: "output", flags: []string{"--output", "1KiB"}, cmd: []string{"sh", "-c", "while :; do echo 0123456789; done"}},
		{name: "none", flags: []string{"--workspace", "none"}, cmd: []string{"pwd"}},
		{name: "bind", flags: []string{"--workspace", "bind"}, cmd: []string{"sh", "-c", "echo x >made; cat a.txt"}},
		{name: "copy", flags: []string{"--workspace", "copy"}, cmd: []string{"sh", "-c", "echo x >made"}, cold: true},
		{name: "mount", flags: []string{"--mount", host + ":/data:ro"}, cmd: []string{"cat", "/data/x"}},
		{name: "mount inside", flags: []string{"--mount", host + ":" + s.ws + "/data:ro"}, cmd: []string{"cat", "data/x"}, cold: true},
		{name: "routes", flags: []string{"--allow", "example.invalid"}, cmd: []string{"sh", "-c", "getent hosts other.invalid; exit 0"}},
	} {
		if testing.Short() && slices.Contains([]string{"true", "not executable", "secret argument", "refused name", "quiet", "json", "json missing", "published", "output", "none", "bind", "routes"}, c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			s.t = t
			line := slices.Concat(c.flags, []string{"--"}, c.cmd)
			pid := 0
			if !c.cold {
				pid = s.prime(c.flags...)
			}
			s.wipe()
			cold := s.feed(c.stdin, append([]string{"run"}, line...)...)
			coldReceipt := s.carboy("receipt", "--json", s.newest().ID)
			coldFiles := s.files()
			s.wipe()
			warm := s.feed(c.stdin, append([]string{"run", "--pool", "1"}, line...)...)
			m := s.newest()
			warmReceipt := s.carboy("receipt", "--json", m.ID)
			if !c.cold {
				s.warm(1) // the next one: else it would turn up in the next case
			}
			if (m.Supervisor.PID == pid) == c.cold {
				t.Errorf("the run was held by process %d; the ready one was %d", m.Supervisor.PID, pid)
			}
			for _, x := range []struct{ what, cold, warm string }{
				{"exit code", strconv.Itoa(cold.code), strconv.Itoa(warm.code)},
				{"output", steady(cold.out), steady(warm.out)},
				{"messages", steady(cold.msg), steady(warm.msg)},
				{"receipt", steady(coldReceipt.out), steady(warmReceipt.out)},
				{"workspace", coldFiles, s.files()},
			} {
				if x.cold != x.warm {
					t.Errorf("%s differs:\n--- cold\n%s\n--- from the pool\n%s", x.what, x.cold, x.warm)
				}
			}
		})
	}
	s.t = t
}

// files lists the workspace.
func (s *site) files() string {
	var b strings.Builder
	filepath.Walk(s.ws, func(path string, fi os.FileInfo, err error) error {
		if err == nil && path != s.ws {
			text, _ := os.ReadFile(path)
			fmt.Fprintf(&b, "%s %v %s\n", path, fi.Mode(), text)
		}
		return err
	})
	return b.String()
}

// What the user does to the workspace between warming and use is what the
// command finds, and is nobody's change but the user's.
func TestPoolSeesTheHost(t *testing.T) {
	s := newSite(t)
	s.wipe()
	for _, d := range []string{"gone", "stays"} {
		if err := errors.Join(os.Mkdir(s.ws+"/"+d, 0o755), os.WriteFile(s.ws+"/"+d+"/f", []byte("old\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := own(s.ws); err != nil {
		t.Fatal(err)
	}
	pid := s.prime()
	err := errors.Join(
		os.RemoveAll(s.ws+"/gone"), os.Mkdir(s.ws+"/new", 0o755), os.WriteFile(s.ws+"/new/f", []byte("fresh\n"), 0o644),
		os.WriteFile(s.ws+"/a.txt", []byte("edited and longer\n"), 0o644), os.WriteFile(s.ws+"/stays/f", []byte("changed\n"), 0o644),
		os.Rename(s.ws+"/stays", s.ws+"/moved"), os.Symlink("moved", s.ws+"/stays"), own(s.ws), os.Chmod(s.ws, 0o775),
	)
	if err != nil {
		t.Fatal(err)
	}
	x := s.carboy("run", "--pool", "1", "--", "sh", "-c", "cat a.txt new/f stays/f; ls; ls -ld . | cut -c1-10; echo more >>a.txt; rm -r new")
	want := "edited and longer\nfresh\nchanged\na.txt\nmoved\nnew\nstays\ndrwxrwxr-x\n"
	if x.code != 0 || x.out != want {
		t.Errorf("exit %d, the command saw %q, want %q; %s", x.code, x.out, want, x.msg)
	}
	if got := s.newest().Supervisor.PID; got != pid {
		t.Fatalf("not from the pool: %d, want %d", got, pid)
	}
	if strings.Contains(x.msg, "meanwhile") {
		t.Errorf("edits from before the run count as made during it: %s", x.msg)
	}
	if x := s.carboy("land", "--yes"); x.code != 0 {
		t.Errorf("land: %s", x.msg)
	}
	b, _ := os.ReadFile(s.ws + "/a.txt")
	if _, err := os.Stat(s.ws + "/new"); string(b) != "edited and longer\nmore\n" || err == nil {
		t.Errorf("landed: %q, %v", b, err)
	}

	// Another directory in its place is another workspace.
	s.warm(1)
	if err := errors.Join(os.Rename(s.ws, s.home+"/old"), os.Mkdir(s.ws, 0o755), os.WriteFile(s.ws+"/b.txt", nil, 0o644), own(s.ws)); err != nil {
		t.Fatal(err)
	}
	if x := s.carboy("run", "-q", "--pool", "1", "--", "ls"); x.out != "b.txt\n" {
		t.Errorf("in the new directory: %q %s", x.out, x.msg)
	}
}

// Two uses share nothing.
func TestPoolSharesNothing(t *testing.T) {
	s := newSite(t)
	s.wipe()
	s.prime()
	seen := map[int]bool{}
	for i := range 3 {
		s.vars = []string{fmt.Sprintf("LC_TIME=user-%d", i)}
		x := s.carboy("run", "--pool", "1", "--env", fmt.Sprintf("SECRET_TOKEN=value-of-%d-only", i), "--", "sh", "-c", `
			ls -A /tmp /dev/shm /var/tmp $HOME . | grep left
			ls /proc | grep -c '^[0-9]'
			env | grep -v -e value-of-`+strconv.Itoa(i)+` | grep value-of
			grep -la value-of-[0-9]-only /proc/[0-9]*/environ | wc -l
			echo $LC_TIME
			cat /proc/net/tcp | wc -l
			for d in /tmp /dev/shm $HOME .; do echo x >$d/left-`+strconv.Itoa(i)+`; done
			(sleep 1000 >/dev/null 2>&1 </dev/null &)
			ipcs -q | grep -c 0x
			ipcmk -Q >/dev/null 2>&1; exit 0`)
		m := s.newest().Supervisor.PID
		if i > 0 && seen[m] {
			t.Errorf("process %d held two runs", m)
		}
		seen[m] = true
		lines := strings.Fields(x.out)
		if x.code != 0 || len(lines) != 5 || lines[2] != fmt.Sprintf("user-%d", i) || lines[4] != "0" {
			t.Errorf("use %d: exit %d: %q %s", i, x.code, x.out, x.msg)
		}
		s.warm(1)
	}
	// Nor does the process that waits know anything of its makers.
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.warm(1)[0]))
	if err != nil || bytes.Contains(env, []byte("user-")) || bytes.Contains(env, []byte("value-of")) || bytes.Contains(env, []byte("PATH=")) {
		t.Errorf("the environment of a waiting process: %q, %v", env, err)
	}
	ents, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.warm(1)[0]))
	for _, e := range ents {
		to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", s.warm(1)[0], e.Name()))
		if strings.HasPrefix(to, s.ws) || strings.Contains(to, "pts/") || strings.HasPrefix(to, "/tmp/go-") {
			t.Errorf("a waiting process holds %s", to)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// A bottle that differs in anything is not taken.
func TestPoolKey(t *testing.T) {
	s := newSite(t)
	s.wipe()
	host := filepath.Join(s.home, "data")
	other := filepath.Join(s.home, "other")
	if err := errors.Join(os.Mkdir(host, 0o755), os.Mkdir(other, 0o755), own(other)); err != nil {
		t.Fatal(err)
	}
	pid := s.prime()
	for _, flags := range [][]string{
		{"--workspace", "none"}, {"--workspace", "bind"}, {"--dir", other}, {"--allow", "example.org"}, {"--allow-private", "10.0.0.1:80"},
		{"--mount", host + ":/data:ro"}, {"--timeout", "1h"}, {"--memory", "1GiB"}, {"--pids", "100"}, {"--disk", "1GiB"}, {"--cpus", "1"}, {"--output", "1MiB"},
	} {
		x := s.carboy(slices.Concat([]string{"run", "-q", "--pool", "1", "--pool-idle", "1s"}, flags, []string{"--", "true"})...)
		if m := s.newest(); x.code != 0 || m.Supervisor.PID == pid {
			t.Errorf("%q: exit %d, held by %d: %s", flags, x.code, m.Supervisor.PID, x.msg)
		}
	}
	for name, tune := range map[string]func(*exec.Cmd){
		"directory": func(c *exec.Cmd) { c.Dir = other },
		"state":     func(c *exec.Cmd) { c.Env = append(c.Env, "XDG_STATE_HOME="+s.home+"/state2") },
		"priority": func(c *exec.Cmd) {
			carboy := c.Path
			c.Path = testenv.Need(t, "nice", "apt-get install coreutils")
			c.Args = append([]string{"nice", "-n", "5", carboy}, c.Args[1:]...)
		},
		"groups": func(c *exec.Cmd) {
			if os.Geteuid() != 0 {
				c.Env = append(c.Env, "XDG_STATE_HOME="+s.home+"/state3")
				return
			}
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Groups: []uint32{12345}}}
		},
	} {
		cmd := s.command("run", "-q", "--pool", "1", "--pool-idle", "1s", "--", "true")
		tune(cmd)
		if x := s.finish(cmd); x.code != 0 {
			t.Errorf("%s: %+v", name, x)
		}
	}
	// None of them has taken the first, and the nearest neighbour does: what is
	// no part of the plan does not matter.
	x := s.carboy("run", "-q", "--pool", "1", "--env", "A=1", "--json", "--", "true")
	if m := s.newest(); x.code != 0 || m.Supervisor.PID != pid {
		t.Errorf("the same plan: exit %d, held by %d, want %d: %s", x.code, m.Supervisor.PID, pid, x.msg)
	}
}

// Another user cannot take a bottle, nor talk to its process, even where file
// permissions let them.
func TestPoolStrangers(t *testing.T) {
	testenv.Root(t)
	s := newSite(t)
	s.wipe()
	pid := s.prime()
	dir := s.home + "/run/carboy"
	socks, _ := filepath.Glob(dir + "/p-*.sock")
	if len(socks) != 1 {
		t.Fatalf("%q", socks)
	}
	ask := func(uid uint32) (string, error) {
		cmd := exec.Command("/proc/self/exe", socks[0])
		cmd.Args[0] = "carboy-stranger"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		b, err := cmd.CombinedOutput()
		return string(b), err
	}
	if out, err := ask(1001); err == nil || !strings.Contains(out, "permission denied") {
		t.Errorf("another user: %q, %v", out, err)
	}
	if err := errors.Join(os.Chmod(s.home+"/run", 0o755), os.Chmod(dir, 0o755), os.Chmod(socks[0], 0o777)); err != nil {
		t.Fatal(err)
	}
	if out, err := ask(1001); err == nil || !strings.Contains(out, "no answer") {
		t.Errorf("another user who may connect: %q, %v", out, err)
	}
	// The nearest neighbour: the same words of the same user.
	if out, err := ask(0); err != nil || !strings.Contains(out, `"OK":true`) {
		t.Errorf("the user: %q, %v", out, err)
	}
	if err := errors.Join(os.Chmod(dir, 0o700), os.Chmod(s.home+"/run", 0o700)); err != nil {
		t.Fatal(err)
	}
	if x := s.carboy("run", "-q", "--pool", "1", "--", "true"); x.code != 0 || s.newest().Supervisor.PID != pid {
		t.Errorf("after that: %+v", x)
	}
}

// strangerMain speaks to a waiting bottle by hand, whoever it is.
func strangerMain() {
	if os.Args[0] != "carboy-stranger" {
		return
	}
	c, err := net.Dial("unix", os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	doc := fmt.Sprintf(`{"Version":%d,"Op":"status"}`, poolVersion)
	c.Write(append([]byte{byte(len(doc)), 0, 0, 0, 0, 0, 0, 0}, doc...))
	b, _ := io.ReadAll(c)
	if len(b) == 0 {
		fmt.Println("no answer")
		os.Exit(1)
	}
	os.Stdout.Write(b)
	os.Exit(0)
}

// Whoever dies, at whatever moment: the client says so, and nothing is left.
func TestPoolKilled(t *testing.T) {
	s := newSite(t)
	s.wipe()

	// The one that waits.
	pid := s.prime()
	syscall.Kill(pid, syscall.SIGKILL)
	s.gone(pid)
	if l := s.waiting(); len(l) != 0 {
		t.Errorf("a dead one is listed: %+v", l)
	}
	if x := s.carboy("run", "-q", "--", "true"); x.code != 0 {
		t.Errorf("after it: %+v", x)
	}

	// The supervisor, while the command runs.
	pid = s.prime()
	cmd := s.command("run", "--pool", "1", "--", "sh", "-c", "echo up; sleep 1000")
	var msg bytes.Buffer
	cmd.Stderr = &msg
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	io.ReadFull(out, make([]byte, 3))
	syscall.Kill(pid, syscall.SIGKILL)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 125 || !strings.Contains(msg.String(), "died") {
		t.Errorf("exit %d: %s", code, &msg)
	}
	s.gone(pid)
	if x := s.carboy("list"); !strings.Contains(x.out, "lost") {
		t.Errorf("not found: %s%s", x.out, x.msg)
	}

	// The client: the bottle ends, and what it had changed is kept.
	pid = s.prime()
	cmd = s.command("run", "--pool", "1", "--", "sh", "-c", "echo x >made; echo up; sleep 1000")
	if out, err = cmd.StdoutPipe(); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	io.ReadFull(out, make([]byte, 3))
	cmd.Process.Kill()
	cmd.Wait()
	s.gone(pid)
	if x := s.carboy("diff", "--stat"); !strings.Contains(x.out, "made") {
		t.Errorf("the changes of a run whose user's process was killed: %+v", x)
	}

	// At random moments of the hand-over.
	for i := range 12 {
		pid = s.prime()
		cmd := s.command("run", "-q", "--pool", "1", "--", "sh", "-c", "echo x >made")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 3 * time.Millisecond)
		if i%2 == 0 {
			cmd.Process.Kill()
		} else {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		cmd.Wait()
		if i%2 == 1 {
			if code := cmd.ProcessState.ExitCode(); code != 0 && code != 125 {
				t.Errorf("exit %d", code)
			}
		} else {
			syscall.Kill(pid, 0)
		}
	}
	s.carboy("pool", "stop")
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		x := s.carboy("list")
		left, _ := filepath.Glob(s.home + "/run/carboy/*.sock")
		dirs, _ := filepath.Glob(s.home + "/state/carboy/pool/r*")
		if !strings.Contains(x.out, " running ") && !strings.Contains(x.out, " created ") && len(left) == 0 && len(dirs) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("left: %q %q\n%s", left, dirs, x.out)
		}
		s.carboy("pool", "stop")
	}
}

// gone waits until a process and all of its children are.
func (s *site) gone(pid int) {
	s.t.Helper()
	if !testenv.Poll(patience, func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(b), ") Z ")
	}) {
		s.t.Fatalf("process %d goes on", pid)
	}
}

// A ready bottle ends by itself.
func TestPoolEnds(t *testing.T) {
	s := newSite(t)
	s.wipe()
	pid := s.prime("--pool-idle", "5s")
	s.gone(pid)
	if l := s.waiting(); len(l) != 0 {
		t.Errorf("still listed: %+v", l)
	}
	pid = s.prime()
	if x := s.carboy("pool", "stop"); x.code != 0 || !strings.Contains(x.msg, "1 waiting bottle") {
		t.Errorf("%+v", x)
	}
	s.gone(pid)
	s.carboy("run", "-q", "--pool", "3", "--", "true")
	s.warm(3)
	s.carboy("run", "-q", "--pool", "2", "--", "true")
	s.warm(2)
}

// Interrupts mean what they mean without a pool.
func TestPoolInterrupts(t *testing.T) {
	s := newSite(t)
	s.wipe()
	for _, c := range []struct {
		name, script string
		times, code  int
	}{
		{"handled", "trap 'echo got it; exit 7' INT; echo up; while :; do sleep 0.1; done", 1, 7},
		{"ignored twice", "trap '' INT; echo up; while :; do sleep 0.1; done", 2, 125},
	} {
		pid := s.prime()
		cmd := s.command("run", "--pool", "1", "--", "sh", "-c", c.script)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		io.ReadFull(out, make([]byte, 3))
		for range c.times {
			cmd.Process.Signal(syscall.SIGINT)
			time.Sleep(200 * time.Millisecond)
		}
		rest, _ := io.ReadAll(out)
		cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != c.code || s.newest().Supervisor.PID != pid {
			t.Errorf("%s: exit %d, want %d, held by %d of %d: %s", c.name, code, c.code, s.newest().Supervisor.PID, pid, rest)
		}
	}
}

// The exit code and the end of the output come while the records can't be
// written yet; what reports on them stays open until they are.
func TestPoolAnswersBeforeTheRecords(t *testing.T) {
	s := newSite(t)
	s.wipe()
	s.prime()
	cmd := s.command("run", "-q", "--pool", "1", "--", "sh", "-c", "echo up; read x; echo $x")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var ours, theirs [2]*os.File
	for i := range ours {
		if ours[i], theirs[i], err = os.Pipe(); err != nil {
			t.Fatal(err)
		}
		defer ours[i].Close()
		ours[i].SetReadDeadline(time.Now().Add(patience))
	}
	cmd.Stdout, cmd.Stderr = theirs[0], theirs[1]
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	closeAll(theirs[:])
	if _, err := io.ReadFull(ours[0], make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Open(s.home + "/state/carboy/audit/lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	io.WriteString(in, "on\n")
	out, err := io.ReadAll(ours[0])
	if string(out) != "on\n" || err != nil {
		t.Errorf("output %q, %v", out, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	ours[1].SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := io.ReadAll(ours[1]); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("nothing could report on the records any more: %v", err)
	}
	lock.Close()
	ours[1].SetReadDeadline(time.Now().Add(patience))
	if msg, err := io.ReadAll(ours[1]); len(msg) > 0 || err != nil {
		t.Errorf("%q, %v", msg, err)
	}
	if r := s.carboy("receipt", "--json"); r.code != 0 || !strings.Contains(r.out, `"code": 0`) {
		t.Errorf("receipt: %+v", r)
	}
}

func TestPoolTerminal(t *testing.T) {
	s := newSite(t)
	s.wipe()
	pid := s.prime("-q")
	x := terminalIn(t, s.home, "run", "-it", "--pool", "1", "--", "bash", "--norc", "-i")
	x.shell()
	x.typed("exit 9\n")
	if code := x.end(); code != 9 || !strings.Contains(x.text(), "carboy: exit 9") {
		t.Errorf("exit %d:\n%s", code, x.text())
	}
	if got := s.newest().Supervisor.PID; got != pid {
		t.Errorf("held by %d, want %d", got, pid)
	}

	s.warm(1)
	x = terminalIn(t, s.home, "run", "-it", "--pool", "1", "--", "sh", "-c", "trap '' INT; echo up-$((1+1)); while :; do sleep 1; done")
	x.await("up-2")
	x.typed("\r~.")
	if code := x.end(); code != 125 {
		t.Errorf("~.: exit %d:\n%s", code, x.text())
	}

	// The terminal is as before, also when its supervisor died.
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer ptmx.Close()
	defer tty.Close()
	before := stty(t, tty)
	pid = s.warm(1)[0]
	cmd := s.command("run", "-t", "--pool", "1", "--", "sh", "-c", "echo up; exec sleep 1000")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	seen := make([]byte, 0, 1000)
	for !bytes.Contains(seen, []byte("up")) {
		b := make([]byte, 100)
		n, err := ptmx.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, b[:n]...)
	}
	go io.Copy(io.Discard, ptmx) // ends when ptmx is closed
	syscall.Kill(pid, syscall.SIGKILL)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 125 {
		t.Errorf("exit %d", code)
	}
	if after := stty(t, tty); after != before {
		t.Errorf("terminal was\n%s\nand is\n%s", before, after)
	}
}

// A bottle that does not answer costs a bounded wait, in which an interrupt is
// heard: the command is not run elsewhere then.
func TestPoolThatHangs(t *testing.T) {
	s := newSite(t)
	s.wipe()
	pid := s.prime()
	syscall.Kill(pid, syscall.SIGSTOP)
	defer syscall.Kill(pid, syscall.SIGKILL)
	before := s.newest().ID
	// Not through a pipe: the one that hangs has been sent its end.
	try := func(interrupt bool) (int, string) {
		msg, err := os.CreateTemp(s.home, "msg")
		if err != nil {
			t.Fatal(err)
		}
		defer msg.Close()
		cmd := s.command("run", "-q", "--pool", "1", "--", "touch", "ran")
		cmd.Stdout, cmd.Stderr = msg, msg
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// SIGTERM, since SIGINT may be ignored from the start (by what runs in the
		// background), and more than once, since it may be looking elsewhere yet.
		done := make(chan struct{})
		if interrupt {
			go func() {
				for {
					select {
					case <-done:
						return
					case <-time.After(time.Second):
						cmd.Process.Signal(syscall.SIGTERM)
					}
				}
			}()
		}
		cmd.Wait()
		close(done)
		b, _ := os.ReadFile(msg.Name())
		return cmd.ProcessState.ExitCode(), string(b)
	}
	code, msg := try(true)
	for range 5 {
		if code != -1 { // not ended by the signal, before it listened
			break
		}
		code, msg = try(true)
	}
	if code != 125 || !strings.Contains(msg, "interrupted") || s.newest().ID != before {
		t.Errorf("interrupted: exit %d, run %s after %s: %s", code, s.newest().ID, before, msg)
	}
	if code, msg := try(false); code != 0 || s.newest().ID == before || s.newest().Supervisor.PID == pid {
		t.Errorf("not interrupted: exit %d, %s", code, msg)
	}
	cold := s.newest().ID
	// Nor does it run when it wakes up: nobody has said go.
	syscall.Kill(pid, syscall.SIGCONT)
	s.gone(pid)
	if s.newest().ID != cold {
		t.Error("the command that was given up was run")
	}
}

// The key holds where the directory is, not how the shell calls it, and what the
// latest run asks for holds for the bottles that it leaves.
func TestPoolOfALink(t *testing.T) {
	s := newSite(t)
	s.wipe()
	link := s.home + "/link"
	if err := os.Symlink(s.ws, link); err != nil {
		t.Fatal(err)
	}
	run := func(flags ...string) {
		cmd := s.command(append(append([]string{"run", "-q", "--pool", "1"}, flags...), "--", "true")...)
		cmd.Dir, cmd.Env = link, append(cmd.Env, "PWD="+link)
		if x := s.finish(cmd); x.code != 0 {
			t.Fatalf("%+v", x)
		}
	}
	run()
	pid := s.warm(1)[0]
	run("--pool-idle", "1h")
	if got := s.newest().Supervisor.PID; got != pid {
		t.Errorf("held by %d, want %d", got, pid)
	}
	s.warm(1)
	if l := s.waiting(); len(l) != 1 || l[0].Idle != time.Hour {
		t.Errorf("the next waits for %+v", l)
	}
}

func TestOnlyRunIsHandedOver(t *testing.T) {
	a := newApp(nil, io.Discard, io.Discard, os.Getenv)
	for line, want := range map[string]bool{
		"run -- true": true, "run --pool 1 -- gc": true, "--config /x run -- true": true,
		"gc": false, "land --yes": false, "": false, "help run": false, "completion run": false, "pool list": false, "__complete run": false, "exec x -- run": false, "nothing": false,
	} {
		if got := isRun(a.root(), strings.Fields(line)); got != want {
			t.Errorf("%q: %v", line, got)
		}
	}
}
