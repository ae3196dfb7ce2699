package hostexec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/testenv"
)

func TestRunReportsExit(t *testing.T) {
	r := newTestRunner(t, Options{})
	res, err := r.Run(t.Context(), shell(t, `echo out; echo err >&2; pwd`))
	if err != nil || res.Outcome != Exited || res.ExitCode != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	if got := string(res.Stderr.Text()); got != "err\n" {
		t.Fatalf("stderr %q", got)
	}
	res, err = r.Run(t.Context(), shell(t, `echo why >&2; exit 7`))
	var fail *FailedError
	if !errors.As(err, &fail) || fail.Code != 7 || fail.Stderr != "why" || res.ExitCode != 7 {
		t.Fatalf("%+v, %v", res, err)
	}
	res, err = r.Run(t.Context(), shell(t, `kill -USR1 $$`))
	if !errors.As(err, &fail) || res.Outcome != signaled || res.Signal != int(syscall.SIGUSR1) {
		t.Fatalf("%+v, %v", res, err)
	}
	if n := len(r.Running()); n != 0 {
		t.Fatalf("%d commands registered", n)
	}
}

func TestRunStdin(t *testing.T) {
	r := newTestRunner(t, Options{})
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<14)
	c := shell(t, `cat`)
	c.Stdin = big
	res, err := r.Run(t.Context(), c)
	if got, _ := res.Stdout.Complete(); err != nil || !bytes.Equal(got, big) {
		t.Fatalf("%d bytes back, %v", len(got), err)
	}
	c = shell(t, `exec readlink /proc/self/fd/0`)
	res, err = r.Run(t.Context(), c)
	if got := string(res.Stdout.Text()); err != nil || got != "/dev/null\n" {
		t.Fatalf("standard input is %q, %v", got, err)
	}
	c = shell(t, `exit 0`) // never reads what it is given
	c.Stdin = bytes.Repeat(big, 8)
	if _, err = r.Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// Each way that a process leaves its session, group or parent, and each way
// that a run ends.
func TestNoDescendantSurvives(t *testing.T) {
	ways := map[string]string{
		"background":       `%[1]s & `,
		"own group":        `set -m; %[1]s & `,
		"setsid":           `setsid %[1]s & `,
		"double fork":      `setsid sh -c '%[1]s & setsid %[1]s & exit 0' & `,
		"ignores signals":  `trap '' TERM INT HUP QUIT PIPE; setsid nohup %[1]s >/dev/null 2>&1 & `,
		"closed streams":   `setsid %[1]s <&- >&- 2>&- & `,
		"holds the stream": `setsid sh -c '%[1]s & %[1]s & wait' & `,
		"sheds its mark":   `setsid env -i /bin/%[1]s & `,
		"deep":             `sh -c 'sh -c "sh -c \"setsid %[1]s & %[1]s & wait\" & wait" & wait' & `,
	}
	ends := map[string]struct {
		tail string
		end  Outcome
	}{
		"exit": {"exit 0", Exited}, "failure": {"exit 3", Exited}, "signal": {"kill -KILL $$", signaled},
		"deadline": {"wait; sleep 100000", deadline}, "cancel": {"wait; sleep 100000", canceled}, "close": {"wait; sleep 100000", closed},
	}
	for way, script := range ways {
		for end, e := range ends {
			t.Run(way+"/"+end, func(t *testing.T) {
				t.Parallel()
				r := newTestRunner(t, Options{})
				sleep := sleeper(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				c := shell(t, fmt.Sprintf(script, sleep)+"while ! [ -e go ]; do sleep 0.02; done; "+e.tail)
				dir := c.Dir
				if end == "deadline" {
					c.Timeout = 2 * time.Second
				}
				go func() {
					testenv.Poll(30*time.Second, func() bool { return alive(sleep) > 0 })
					switch end {
					case "cancel":
						cancel()
					case "close":
						_ = r.Close(context.Background())
					case "deadline":
					default:
						_ = os.WriteFile(filepath.Join(dir, "go"), nil, 0o644)
					}
				}()
				res, err := r.Run(ctx, c)
				if n := alive(sleep); n != 0 {
					t.Errorf("%d processes alive after Run", n)
				}
				if n := len(r.Running()); n != 0 {
					t.Errorf("%d commands registered after Run", n)
				}
				if res.Outcome != e.end {
					t.Fatalf("outcome %v, want %v (%v)", res.Outcome, e.end, err)
				}
				switch e.end {
				case deadline:
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%v is not DeadlineExceeded", err)
					}
				case canceled:
					if !errors.Is(err, context.Canceled) {
						t.Errorf("%v is not Canceled", err)
					}
				case Exited:
					if res.Strays == 0 {
						t.Error("no stray counted")
					}
				}
			})
		}
	}
}

// Processes that fork faster than they can be listed, each generation an orphan
// in a new session: the chase must end, with nothing left.
func TestForkChase(t *testing.T) {
	r := newTestRunner(t, Options{})
	sleep := sleeper(t)
	arg := strings.TrimPrefix(sleep, "sleep ")
	c := shell(t, `
cat >hop <<'E'
[ -e stop ] && exit
echo >>hops
setsid sh ./hop "$1" &
setsid true &
exit 0
E
for i in 1 2 3 4 5 6 7 8; do sh ./hop `+arg+` & done
while ! [ -e go ]; do sleep 0.02; done
exit 0`)
	stop := filepath.Join(c.Dir, "stop")
	defer os.WriteFile(stop, nil, 0o644) // whatever happens, no bomb stays
	go func() {
		testenv.Poll(30*time.Second, func() bool {
			hops, _ := os.ReadFile(filepath.Join(c.Dir, "hops"))
			return len(hops) >= 100
		})
		_ = os.WriteFile(filepath.Join(c.Dir, "go"), nil, 0o644)
	}()
	res, err := r.Run(t.Context(), c)
	if n := alive(sleep); err != nil || n != 0 {
		t.Fatalf("%d alive, %+v, %v", n, res, err)
	}
}

// A kill order races the command's exit: the outcome must name the winner, and
// nothing stays registered.
func TestCancelRacesExit(t *testing.T) {
	r := newTestRunner(t, Options{})
	sleep := sleeper(t)
	dir := t.TempDir()
	runs := 200
	if testing.Short() {
		runs = 60
	}
	// Cancels fall around the end, however slow this machine is.
	first, err := r.Run(t.Context(), Command{Program: helper, Dir: dir, Timeout: 5 * time.Minute, Args: []string{"exit 0"}})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4)
	var mu sync.Mutex
	seen := map[Outcome]int{}
	for i := range runs {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go func() {
				time.Sleep(first.Duration * time.Duration(i%60) / 15)
				cancel()
			}()
			c := Command{
				Program: helper, Dir: dir, Timeout: 5 * time.Minute,
				Args: []string{"setsid " + sleep + " & exit 0"},
			}
			res, err := r.Run(ctx, c)
			switch {
			case res.Outcome == Exited && err == nil:
			case res.Outcome == canceled && errors.Is(err, context.Canceled):
			case res.Outcome == 0 && errors.Is(err, context.Canceled): // before the spawn
			default:
				t.Errorf("%v, %v", res.Outcome, err)
			}
			mu.Lock()
			seen[res.Outcome]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if n := alive(sleep); n != 0 {
		t.Errorf("%d alive", n)
	}
	if n := len(r.Running()); n != 0 {
		t.Errorf("%d registered", n)
	}
	t.Logf("outcomes %v", seen)
}

func TestCloseRefusesAndWaits(t *testing.T) {
	r := newTestRunner(t, Options{})
	var wg sync.WaitGroup
	for range 4 {
		c := shell(t, "sleep 100000")
		wg.Go(func() {
			if res, _ := r.Run(context.Background(), c); res.Outcome != closed {
				t.Errorf("outcome %v", res.Outcome)
			}
		})
	}
	eventually(t, "four registered", func() bool { return len(r.Running()) == 4 })
	short, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.wait(short); !errors.Is(err, context.Canceled) {
		t.Errorf("wait with an ended context: %v", err)
	}
	if err := r.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(r.Running()); n != 0 {
		t.Errorf("%d registered after Close", n)
	}
	wg.Wait()
	_, err := r.Run(t.Context(), shell(t, "exit 0"))
	wantReason(t, err, reasonClosed)
}

// A supervisor that is stopped cannot kill: Run says so in bounded time, and
// the register still knows.
func TestUnkilledStaysRegistered(t *testing.T) {
	r := newTestRunner(t, Options{})
	r.grace = 300 * time.Millisecond
	sleep := sleeper(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	c := shell(t, sleep)
	go func() {
		_, err := r.Run(ctx, c)
		done <- err
	}()
	eventually(t, "running", func() bool { return alive(sleep) > 0 })
	sup := supervisors(t)
	if len(sup) != 1 {
		t.Fatalf("supervisors %v", sup)
	}
	_ = syscall.Kill(sup[0], syscall.SIGSTOP)
	cancel()
	if err := <-done; !errors.Is(err, ErrUnkilled) {
		t.Errorf("error %v", err)
	}
	if len(r.Running()) != 1 {
		t.Error("not registered any more")
	}
	_ = syscall.Kill(sup[0], syscall.SIGCONT)
	if err := r.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := alive(sleep); n != 0 {
		t.Errorf("%d alive after Wait", n)
	}
}

// supervisors lists our child processes that are supervisors.
func supervisors(t *testing.T) []int {
	t.Helper()
	var pids []int
	for pid, p := range processes() {
		if p.parent != os.Getpid() {
			continue
		}
		if b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline"); string(b) == supervisorArg0+"\x00" {
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestSupervisorEndsByHand(t *testing.T) {
	for _, tc := range []struct {
		sig  syscall.Signal
		want Outcome
	}{{syscall.SIGTERM, canceled}, {syscall.SIGHUP, canceled}, {syscall.SIGKILL, lost}} {
		t.Run(tc.sig.String(), func(t *testing.T) {
			r := newTestRunner(t, Options{})
			sleep := sleeper(t)
			done := make(chan Result, 1)
			c := shell(t, fmt.Sprintf("setsid %s & %s & setsid sh -c '%s & %s & wait' & wait", sleep, sleep, sleep, sleep))
			go func() {
				res, err := r.Run(context.Background(), c)
				if err == nil || tc.want == lost && !errors.Is(err, errLost) {
					t.Errorf("error %v", err)
				}
				done <- res
			}()
			eventually(t, "running", func() bool { return alive(sleep) >= 4 })
			sup := supervisors(t)
			if len(sup) != 1 {
				t.Fatalf("supervisors %v", sup)
			}
			_ = syscall.Kill(sup[0], tc.sig)
			if res := <-done; res.Outcome != tc.want {
				t.Errorf("outcome %v, want %v", res.Outcome, tc.want)
			}
			if n := alive(sleep); n != 0 {
				t.Errorf("%d alive", n)
			}
		})
	}
}

// runAndWait is the process that the tests below kill: it runs the script.
func runAndWait(script string) int {
	dir, err := os.Getwd()
	if err != nil {
		return 1
	}
	r, err := New(Options{Scratch: dir})
	if err != nil {
		return 1
	}
	withTestHelper(r, os.Getenv("HELPER_DIR"))
	// As a program that made a temporary directory would.
	temp := filepath.Join(dir, "temp")
	r.programs[helper].prepare = func(c *call) error {
		c.argv, c.temp = c.args, temp
		return os.Mkdir(temp, 0o700)
	}
	cmd := Command{Program: helper, Args: []string{script}, Dir: dir, Timeout: MaxTimeout}
	if kept, ok := strings.CutPrefix(script, keepScript); ok {
		cmd.Args, cmd.Keep = []string{kept}, true
		r.programs[helper].lasts = true
		s, err := r.Start(context.Background(), cmd)
		if err == nil {
			_, err = s.Wait(context.Background())
		}
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_, err = r.Run(context.Background(), cmd)
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// keepScript begins the script of a parent that keeps what the script leaves.
const keepScript = ": keep; "

func startParent(t *testing.T, script string) (*exec.Cmd, string) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "run-and-wait", script)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(os.Environ(), "HELPER_DIR="+helperDir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd, dir
}

func TestKilledParentLeavesNothing(t *testing.T) {
	sleep := sleeper(t)
	cmd, dir := startParent(t, fmt.Sprintf("setsid %s & %s & setsid sh -c 'setsid %s & exit' & wait; %s", sleep, sleep, sleep, sleep))
	eventually(t, "running", func() bool { return alive(sleep) >= 3 })
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	eventually(t, "nothing alive", func() bool { return alive(sleep) == 0 })
	eventually(t, "temporary directory removed", func() bool {
		_, err := os.Stat(filepath.Join(dir, "temp"))
		return os.IsNotExist(err)
	})
}

func TestKilledParentAtRandomMoments(t *testing.T) {
	sleep := sleeper(t)
	for i := range 12 {
		cmd, _ := startParent(t, fmt.Sprintf("setsid %s & setsid %s & %s", sleep, sleep, sleep))
		time.Sleep(time.Duration(i*i) * 2 * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	eventually(t, "nothing alive", func() bool { return alive(sleep) == 0 })
}

// When carboy and the supervisor are both killed, their leftovers are found by mark.
func TestSweep(t *testing.T) {
	sleep, keep := sleeper(t), sleeper(t)
	cmd, _ := startParent(t, fmt.Sprintf("setsid %s & setsid sh -c '%s & wait' & wait", sleep, sleep))
	eventually(t, "running", func() bool { return alive(sleep) >= 2 })
	r := newTestRunner(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan Result, 1)
	c := shell(t, keep)
	go func() {
		res, _ := r.Run(ctx, c)
		done <- res
	}()
	eventually(t, "neighbour running", func() bool { return alive(keep) > 0 })
	var sup int
	for pid, p := range processes() {
		if p.parent == cmd.Process.Pid {
			sup = pid
		}
	}
	// Stopped first, so that the supervisor does not act between the two.
	_ = syscall.Kill(sup, syscall.SIGSTOP)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	_ = syscall.Kill(sup, syscall.SIGKILL)
	eventually(t, "swept", func() bool { Sweep(); return alive(sleep) == 0 })
	if alive(keep) == 0 {
		t.Error("Sweep killed the command of a living process")
	}
	cancel()
	if res := <-done; res.Outcome != canceled {
		t.Errorf("neighbour ended %v", res.Outcome)
	}
}

func TestCommandPosture(t *testing.T) {
	// A descriptor that carboy inherited without close-on-exec.
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	leak, err := syscall.Dup(int(f.Fd())) // no close-on-exec
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(leak)
	r := newTestRunner(t, Options{})
	res, err := r.Run(t.Context(), shell(t, `ls /proc/self/fd; grep NoNewPrivs /proc/self/status; ulimit -c; umask; ps -o sid= -p $$ 2>/dev/null | tr -d ' ' >sid; echo pid $$; cut -d' ' -f6 /proc/$$/stat`))
	out := string(res.Stdout.Text())
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(out)
	// ls itself has 3 open: the directory.
	if got := strings.Join(lines[:4], " "); got != "0 1 2 3" || lines[4] != "NoNewPrivs:" {
		t.Errorf("descriptors of the command: %q", out)
	}
	if lines[5] != "1" || lines[6] != "0" || lines[7] != "0077" {
		t.Errorf("no_new_privs, core limit, umask: %q", out)
	}
	if lines[9] != lines[10] {
		t.Errorf("not its own session: %q", out)
	}
}

func TestAdmission(t *testing.T) {
	r := newTestRunner(t, Options{})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	good := shell(t, "exit 0")
	for name, tc := range map[string]struct {
		change func(*Command)
		want   Reason
	}{
		"no program":        {func(c *Command) { c.Program = 0 }, reasonProgram},
		"unknown program":   {func(c *Command) { c.Program = 77 }, reasonProgram},
		"no directory":      {func(c *Command) { c.Dir = "" }, reasonDirectory},
		"relative":          {func(c *Command) { c.Dir = "." }, reasonDirectory},
		"not clean":         {func(c *Command) { c.Dir += "/../x" }, reasonDirectory},
		"missing directory": {func(c *Command) { c.Dir += "/missing" }, reasonDirectory},
		"a file":            {func(c *Command) { c.Dir = file }, reasonDirectory},
		"no timeout":        {func(c *Command) { c.Timeout = 0 }, reasonTimeout},
		"negative timeout":  {func(c *Command) { c.Timeout = -1 }, reasonTimeout},
		"long timeout":      {func(c *Command) { c.Timeout = MaxTimeout + 1 }, reasonTimeout},
		"zero byte":         {func(c *Command) { c.Args = []string{"a\x00b"} }, reasonArgument},
		"negative bound":    {func(c *Command) { c.Stdout = Keep{Head: -1} }, reasonOutput},
		"large bound":       {func(c *Command) { c.Stderr = Keep{Head: MaxKeep, Tail: 1} }, reasonOutput},
	} {
		t.Run(name, func(t *testing.T) {
			c := good
			tc.change(&c)
			_, err := r.Run(t.Context(), c)
			wantReason(t, err, tc.want)
		})
	}
	if _, err := r.Run(t.Context(), good); err != nil {
		t.Fatalf("nearest neighbour: %v", err)
	}
	var zero Runner
	_, err := zero.Run(t.Context(), good)
	wantReason(t, err, reasonClosed)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Run(ended, good); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
}

func TestStartFailureIsTyped(t *testing.T) {
	r := newTestRunner(t, Options{})
	dir := t.TempDir()
	broken := filepath.Join(dir, helperName)
	if err := os.WriteFile(broken, []byte("\x7fELF, but no more"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r.dirs = []string{dir}
	res, err := r.Run(t.Context(), shell(t, "exit 0"))
	if !errors.Is(err, syscall.ENOEXEC) || res.Outcome != 0 {
		t.Fatalf("%v, %v", res.Outcome, err)
	}
	if len(r.Running()) != 0 {
		t.Error("registered after a failed start")
	}
}

func TestRecordsAndLog(t *testing.T) {
	var logged bytes.Buffer
	var records []Execution
	r := newTestRunner(t, Options{
		Log:     slog.New(slog.NewJSONHandler(&logged, nil)),
		Observe: func(rec Execution) { records = append(records, rec) },
	})
	const value = "hunter2-value"
	c := shell(t, "env; exit 4")
	c.Env = []string{"TZ=Europe/Berlin", "aws_secret=" + value, "Github_Token=" + value, value}
	res, _ := r.Run(t.Context(), c)
	if out := string(res.Stdout.Text()); strings.Contains(out, value) || !strings.Contains(out, "TZ=Europe/Berlin\n") {
		t.Errorf("environment inside:\n%s", out)
	}
	refused := c
	refused.Args, refused.Timeout = []string{value}, 0
	_, _ = r.Run(t.Context(), refused)
	b, err := json.Marshal(records)
	if err != nil || len(records) != 2 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	for _, text := range []string{string(b), logged.String()} {
		if strings.Contains(text, value) {
			t.Errorf("a value is in %s", text)
		}
	}
	for _, name := range []string{"aws_secret", "Github_Token", "(malformed)"} {
		if !strings.Contains(logged.String(), name) || !slices.Contains(records[0].EnvDropped, name) {
			t.Errorf("%s is not named in log and record", name)
		}
	}
	if r := records[0]; r.Schema != recordSchema || r.Outcome != Exited || r.ExitCode != 4 || r.StdoutBytes == 0 || r.Path == "" {
		t.Errorf("record %+v", r)
	}
	if r := records[1]; r.Refused != reasonTimeout || r.Args != nil || r.Outcome != 0 || r.ExitCode != -1 {
		t.Errorf("record of a refusal %+v", r)
	}
}
