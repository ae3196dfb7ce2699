package engine

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/sqlite"
	"github.com/carboy/carboy/internal/testenv"
)

// The test binary is also the processes that use a store, and are killed.
const (
	childEnv    = "CARBOY_ENGINE_TEST"
	childDirEnv = "CARBOY_ENGINE_TEST_DIR"
	killsEnv    = "CARBOY_TEST_KILLS" // at each point
	seed        = 20261126
)

var children map[string]func(dir string) error

func init() {
	children = map[string]func(string) error{
		"killed": killed, "holder": holder, "dies": dies, "silent": silent, "talks": talks, "full": full, "full at rest": fullAtRest,
	}
}

func process(t *testing.T, mode, dir string, env ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self)
	c.Env = append(os.Environ(), append(env, childEnv+"="+mode, childDirEnv+"="+dir)...)
	return c
}

func killedBy(err error) unix.Signal {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if ws := exit.Sys().(interface{ Signal() unix.Signal }); exit.ProcessState.ExitCode() == -1 {
			return ws.Signal()
		}
	}
	return 0
}

func childOptions(dir string, ws ...Workflow) Options {
	o := options(filepath.Join(dir, "engine.db"), ws...)
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return o
}

// ends waits until a run has ended.
func ends(e *Engine, id string) (s State, err error) {
	if !testenv.Poll(testenv.Patience(5*time.Minute), func() bool {
		s, err = e.State(ctx, id)
		return err != nil || !s.Ended.IsZero()
	}) {
		err = fmt.Errorf("%s does not end: %+v", id, s)
	}
	return s, err
}

// A step is killed at one of these points: before and after its effect, then while that is
// recorded, and after.
var (
	points     = []string{"before", "after", "soon", "recorded"}
	killedIn   = []string{"a", "b", "bottle", "d", "e"}
	duringOpen = "opening"
)

func kills() int {
	if n, err := strconv.Atoi(os.Getenv(killsEnv)); err == nil {
		return n
	}
	return 1
}

// counted is the number of kills at a point so far.
func counted(dir, point string) int {
	b, err := os.ReadFile(filepath.Join(dir, "kills", point))
	if err != nil {
		return 0
	}
	return len(b)
}

// die kills this process at a point, as often as the test asks for.
func die(dir, point string) {
	n := counted(dir, point)
	if n >= kills() {
		return
	}
	if err := os.WriteFile(filepath.Join(dir, "kills", point), []byte(strings.Repeat("x", n+1)), 0o600); err != nil {
		panic(err)
	}
	now := func() {
		unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	}
	within := 3 * time.Millisecond
	switch {
	case point == duringOpen:
		within = 300 * time.Millisecond
	case !strings.HasPrefix(point, "soon"):
		now()
	}
	random := rand.New(rand.NewPCG(seed, uint64(len(point)*1000+n)))
	time.AfterFunc(time.Duration(random.Int64N(int64(within))), now)
}

// killed leads one run through its life, and is killed at the points in the order in which it
// comes to them. What each step did stands in a file, a line each.
func killed(dir string) error {
	effect := func(r *Run, name, input string) (string, error) {
		v, err := Step(r, name, func(context.Context) (string, error) {
			die(dir, "before "+name)
			value := strconv.FormatUint(rand.Uint64(), 36)
			f, err := os.OpenFile(filepath.Join(dir, "effects"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				return "", err
			}
			defer f.Close()
			if _, err := fmt.Fprintf(f, "%s %s %s\n", name, input, value); err != nil {
				return "", err
			}
			die(dir, "after "+name)
			die(dir, "soon "+name)
			return value, nil
		})
		if err == nil {
			die(dir, "recorded "+name)
		}
		return v, err
	}
	issue := Workflow{Name: "issue", Body: Typed(func(r *Run, _ int) (string, error) {
		a, err := effect(r, "a", "-")
		if err != nil {
			return "", err
		}
		at, err := r.Now()
		if err != nil {
			return "", err
		}
		b, err := effect(r, "b", a+at.Format("/150405.000000000"))
		if err != nil {
			return "", err
		}
		c, err := Child[string](r, "bottle-1", "bottle", b)
		if err != nil {
			return "", err
		}
		first, _, err := Receive[int](r, "approve", time.Hour)
		if err != nil {
			return "", err
		}
		_, second, err := Receive[int](r, "approve", 300*time.Millisecond)
		if err != nil {
			return "", err
		}
		d, err := effect(r, "d", fmt.Sprintf("%s/%d/%v", c, first, second))
		if err != nil {
			return "", err
		}
		if err := r.Sleep(50 * time.Millisecond); err != nil {
			return "", err
		}
		e, err := effect(r, "e", d)
		return strings.Join([]string{a, b, c, d, e}, " "), err
	})}
	bottle := Workflow{Name: "bottle", Slots: 1, Body: Typed(func(r *Run, in string) (string, error) { return effect(r, "bottle", in) })}
	die(dir, duringOpen)
	e, err := Open(ctx, childOptions(dir, issue, bottle))
	if err != nil {
		return err
	}
	// Each process says it, as a program would that reads the forge again.
	if _, err := e.Start(ctx, "o/r#1", "issue", 0, Once); err != nil {
		return err
	}
	if err := e.Signal(ctx, "o/r#1", "approve", "comment 5", 7); err != nil && !errors.Is(err, ErrEnded) {
		return err
	}
	s, err := ends(e, "o/r#1")
	if err != nil {
		return err
	}
	var out string
	if err := json.Unmarshal(s.Output, &out); err != nil {
		return fmt.Errorf("%+v: %w", s, err)
	}
	fmt.Println(out)
	return e.Close(time.Minute)
}

// A process that is killed before and after what each step does and before and after its
// record goes on with the next: no step is left out, none happens again once it is
// recorded, and what is recorded stays what it is. CARBOY_TEST_KILLS sets the kills at each point.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "kills"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d kills at a point, seed %d", kills(), seed)
	var out string
	processes := 0
	for out == "" {
		processes++
		b, err := process(t, "killed", dir).Output()
		switch {
		case err == nil:
			out = strings.TrimSpace(string(b))
		case killedBy(err) != unix.SIGKILL:
			var exit *exec.ExitError
			errors.As(err, &exit)
			t.Fatalf("process %d: %v: %s", processes, err, exit.Stderr)
		}
	}
	want := 0
	for _, name := range killedIn {
		for _, p := range points {
			want++
			// A kill soon after can be too late, and then the step does not happen again.
			if n := counted(dir, p+" "+name); n != kills() && (p != "soon" || n < 1) {
				t.Errorf("%d kills %s %s", n, p, name)
			}
		}
	}
	if n := counted(dir, duringOpen); n != kills() {
		t.Errorf("%d kills %s", n, duringOpen)
	}
	t.Logf("%d processes, %d points", processes, want+1)

	b, err := os.ReadFile(filepath.Join(dir, "effects"))
	if err != nil {
		t.Fatal(err)
	}
	did := map[string][][]string{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		did[f[0]] = append(did[f[0]], f[1:])
	}
	values := strings.Fields(out)
	if len(values) != len(killedIn) {
		t.Fatalf("the run returned %q", out)
	}
	for i, name := range killedIn {
		lines := did[name]
		// A kill before the step does nothing leaves no line; one after its record, no second.
		if len(lines) < 1 || len(lines) > 1+2*kills() {
			t.Errorf("%s happened %d times with %d kills between it and its record", name, len(lines), 2*kills())
		}
		if !slices.ContainsFunc(lines, func(l []string) bool { return l[1] == values[i] }) {
			t.Errorf("%s: what is recorded, %s, never happened", name, values[i])
		}
		for _, l := range lines {
			if l[0] != lines[0][0] || i > 0 && name != "d" && !strings.HasPrefix(l[0], values[i-1]) {
				t.Errorf("%s was given %q, and %q was recorded before it", name, l[0], values[i-1])
			}
		}
		if name == "d" && lines[0][0] != values[2]+"/7/false" {
			t.Errorf("the signal was heard otherwise than once: %q", lines[0][0])
		}
	}
}

// holder opens a store, begins a run that waits for a file, and says so.
func holder(dir string) error {
	e, err := Open(ctx, childOptions(dir, held(dir)))
	if err != nil {
		return err
	}
	if _, err := e.Start(ctx, "x", "held", 0, Once); err != nil {
		return err
	}
	if _, err := ends(e, "x"); err != nil {
		return err
	}
	return e.Close(time.Minute)
}

func held(dir string) Workflow {
	return Workflow{Name: "held", Body: Typed(func(r *Run, _ int) (int, error) {
		return Step(r, "s", func(ctx context.Context) (int, error) {
			if _, err := fmt.Println("begun by", os.Getpid()); err != nil {
				return 0, err
			}
			testenv.Poll(testenv.Patience(5*time.Minute), func() bool {
				_, err := os.Stat(filepath.Join(dir, "go"))
				return err == nil || ctx.Err() != nil
			})
			return os.Getpid(), ctx.Err()
		})
	})}
}

// startHolder starts a process that holds the store in dir until the test ends, and returns
// what it prints.
func startHolder(t *testing.T, dir string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	c := process(t, "holder", dir)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c, bufio.NewReader(out)
}

// Of two processes with one store the second is refused and told who has it, also while the
// first is frozen, which then goes on; when it is killed, its work is taken up at once. Another store is another matter.
func TestTwoProcesses(t *testing.T) {
	dir := t.TempDir()
	c, lines := startHolder(t, dir)
	if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("begun by %d\n", c.Process.Pid) {
		t.Fatalf("%q, %v", line, err)
	}
	o := childOptions(dir, held(dir))
	refused := func(when string) {
		t.Helper()
		e, err := Open(ctx, o)
		var held *HeldError
		if !errors.As(err, &held) || held.Holder.PID != c.Process.Pid || !strings.Contains(err.Error(), o.Path) || time.Since(held.Holder.Since) > time.Hour {
			t.Errorf("%s: %v", when, err)
		}
		if e != nil {
			shut(t, e)
		}
	}
	refused("while it runs")
	other := attach(t, o.Path)
	signalled := func(s unix.Signal, states string) {
		t.Helper()
		if err := c.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		if !testenv.Poll(testenv.Patience(time.Minute), func() bool {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Process.Pid))
			return err == nil && strings.ContainsAny(string(b)[strings.LastIndex(string(b), ")")+2:][:1], states)
		}) {
			t.Fatalf("%v had no effect", s)
		}
	}
	// The lock for writing is held meanwhile: a process that is frozen with it locks out others.
	if err := sqlite.Update(ctx, other.db, func(*sql.Tx) error {
		signalled(unix.SIGSTOP, "T")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	refused("while it is frozen")
	if s, err := attach(t, o.Path).State(ctx, "x"); err != nil || s.Status != Running || s.Attempts != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	open(t, storeIn(t), held(dir))
	signalled(unix.SIGCONT, "RSD")
	refused("when it goes on")

	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("it began again: %q, %v", rest, err)
	}
	if err := c.Wait(); killedBy(err) != unix.SIGKILL {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, e)
	if s := await(t, e, "x", Done); string(s.Output) != fmt.Sprint(os.Getpid()) || s.Attempts != 2 {
		t.Errorf("%+v", s)
	}
}

// A frozen process that goes on ends its step, which nobody else has begun.
func TestFrozenGoesOn(t *testing.T) {
	dir := t.TempDir()
	c, lines := startHolder(t, dir)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if err := c.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if e, err := Open(ctx, childOptions(dir, held(dir))); err == nil {
		shut(t, e)
		t.Error("opened")
	}
	if err := c.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("it began again: %q, %v", rest, err)
	}
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	if s := await(t, attach(t, filepath.Join(dir, "engine.db")), "x", Done); string(s.Output) != fmt.Sprint(c.Process.Pid) || s.Attempts != 1 {
		t.Errorf("%+v", s)
	}
}

// dies is killed in a step of its bottle each time.
func dies(dir string) error {
	e, err := Open(ctx, childOptions(dir, deadly(true)...))
	if err != nil {
		return err
	}
	if _, err := e.Start(ctx, "x", "parent", 0, Once); err != nil {
		return err
	}
	s, err := ends(e, "x")
	if err != nil {
		return err
	}
	fmt.Printf("%s %s\n", s.Status, s.Output)
	return e.Close(time.Minute)
}

func deadly(kill bool) []Workflow {
	bottle := Workflow{Name: "bottle", Attempts: 3, Slots: 1, Body: Typed(func(r *Run, _ int) (string, error) {
		return Step(r, "s", func(context.Context) (string, error) {
			if kill {
				unix.Kill(os.Getpid(), unix.SIGKILL)
				select {}
			}
			return "lived", nil
		})
	})}
	parent := Workflow{Name: "parent", Attempts: maxAttempts, Body: Typed(func(r *Run, _ int) (string, error) {
		v, err := Child[string](r, "c", "bottle", 0)
		var child *ChildError
		if errors.As(err, &child) {
			return err.Error(), nil
		}
		return v, err
	})}
	return []Workflow{bottle, parent}
}

// A bottle that takes its process with it is begun three times, not more; its parent is told.
func TestAttempts(t *testing.T) {
	dir := t.TempDir()
	for n := 1; ; n++ {
		out, err := process(t, "dies", dir).Output()
		if killedBy(err) == unix.SIGKILL && n <= 3 {
			continue
		}
		if got := string(out); err != nil || n != 4 || got != "done \"c is exhausted\"\n" {
			t.Fatalf("process %d: %q, %v", n, got, err)
		}
		break
	}
	// Once it is mended, it begins again.
	e := open(t, filepath.Join(dir, "engine.db"), deadly(false)...)
	if s := await(t, e, "x"+childSign+"c", Exhausted); s.Ended.IsZero() {
		t.Errorf("%+v", s)
	}
	start(t, e, "x", "parent", 0, Again)
	if s := await(t, e, "x", Done); string(s.Output) != `"lived"` || s.Number != 2 {
		t.Errorf("%+v", s)
	}
}

// noSockets makes the kernel kill this process when it asks for a socket.
func noSockets() error {
	const kill = 0x80000000
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 3, K: unix.SYS_SOCKET},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 2, K: unix.SYS_SOCKETPAIR},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: unix.SYS_IO_URING_SETUP},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_RET | unix.BPF_K, K: kill},
	}
	return filter(program)
}

// silent runs a store's workflows without a socket, in an environment that asks for many.
func silent(dir string) error {
	if err := noSockets(); err != nil {
		return err
	}
	e, err := Open(ctx, childOptions(dir, deadly(false)...))
	if err != nil {
		return err
	}
	if _, err := e.Start(ctx, "x", "parent", 0, Once); err != nil {
		return err
	}
	s, err := ends(e, "x")
	if err != nil {
		return err
	}
	var by string
	if err := e.db.QueryRow("SELECT group_concat(DISTINCT executor_id || '/' || application_version || '/' || application_id) FROM workflow_status").Scan(&by); err != nil {
		return err
	}
	fmt.Println(string(s.Status), by)
	return e.Close(time.Minute)
}

func talks(string) error {
	if err := noSockets(); err != nil {
		return err
	}
	fmt.Println("not killed yet")
	_, err := net.Dial("tcp", "127.0.0.1:1")
	return err
}

// The engine opens no socket, whatever the environment says about its maker's services, and
// is nobody but itself. Nothing is written to standard output.
func TestNoSocket(t *testing.T) {
	out, err := process(t, "talks", t.TempDir()).Output()
	if killedBy(err) != unix.SIGSYS || string(out) != "not killed yet\n" {
		t.Fatalf("the filter lets sockets pass: %q, %v", out, err)
	}
	c := process(t, "silent", t.TempDir(), "DBOS__CLOUD=true", "DBOS__VMID=thief", "DBOS__APPVERSION=other", "DBOS__APPID=app",
		"DBOS__CONDUCTOR_APP_NAME=carboy", "DBOS__CONDUCTOR_KEY=key", "DBOS__CONDUCTOR_URL=ws://127.0.0.1:1/", "DBOS_DOMAIN=127.0.0.1:1")
	c.Stderr = os.Stderr
	if out, err := c.Output(); err != nil || string(out) != "done serve/schema-1/\n" {
		t.Fatalf("%q, %v", out, err)
	}
}

// limit lets no file of this process grow over its present size, as on a full disk.
func limit(path string) error {
	signal.Ignore(unix.SIGXFSZ)
	fi, err := os.Stat(path + "-wal")
	if err != nil {
		return err
	}
	return unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: uint64(fi.Size()), Max: unix.RLIM_INFINITY})
}

func writer(dir string, then func() error) Workflow {
	return Workflow{Name: "w", Body: Typed(func(r *Run, _ int) (int, error) {
		for i, name := range []string{"first", "second"} {
			n, err := Step(r, name, func(context.Context) (string, error) {
				f, err := os.OpenFile(filepath.Join(dir, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
				if err != nil {
					return "", err
				}
				defer f.Close()
				if _, err := f.WriteString("x"); err != nil {
					return "", err
				}
				if i == 0 {
					return strings.Repeat("y", 1<<16), then()
				}
				return "", nil
			})
			if err != nil && !errors.Is(err, ErrStopped) { // a body that ignores that its run stops
				return len(n), err
			}
		}
		_, _, err := Receive[int](r, "go", time.Hour)
		return 0, err
	})}
}

// full has a disk that is full when its first step is to be recorded.
func full(dir string) error {
	path := filepath.Join(dir, "engine.db")
	e, err := Open(ctx, childOptions(dir, writer(dir, func() error { return limit(path) })))
	if err != nil {
		return err
	}
	if _, err := e.Start(ctx, "x", "w", 0, Once); err != nil {
		return err
	}
	return failing(e)
}

// fullAtRest has one that is full when everything waits.
func fullAtRest(dir string) error {
	e, err := Open(ctx, childOptions(dir, writer(dir, func() error { return nil })))
	if err != nil {
		return err
	}
	if _, err := e.Start(ctx, "x", "w", 0, Once); err != nil {
		return err
	}
	if !testenv.Poll(testenv.Patience(time.Minute), func() bool {
		s, err := e.State(ctx, "x")
		return err == nil && s.Waits == "go"
	}) {
		return errors.New("it does not wait")
	}
	if err := limit(e.path); err != nil {
		return err
	}
	return failing(e)
}

func failing(e *Engine) error {
	select {
	case <-e.Failed():
	case <-time.After(testenv.Patience(2 * time.Minute)):
		return errors.New("it does not notice")
	}
	_, err := e.Start(ctx, "y", "w", 0, Once)
	fmt.Println(e.Err(), "|", err)
	return errors.Join(e.Close(time.Minute), unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}))
}

// A full disk stops the engine, which says which file it is. Nothing after it happens, and
// with space again the run goes on.
func TestFullDisk(t *testing.T) {
	for _, mode := range []string{"full", "full at rest"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			out, err := process(t, mode, dir).Output()
			if err != nil || strings.Count(string(out), filepath.Join(dir, "engine.db")) != 2 || strings.Contains(string(out), "<nil>") {
				t.Fatalf("%q, %v", out, err)
			}
			if _, err := os.Stat(filepath.Join(dir, "second")); (err == nil) != (mode == "full at rest") {
				t.Errorf("the second step: %v", err)
			}
			e := open(t, filepath.Join(dir, "engine.db"), writer(dir, func() error { return nil }))
			until(t, e, "x", "waiting", func(s State) bool { return s.Waits == "go" })
			signalled(t, e, "x")
			if b, err := os.ReadFile(filepath.Join(dir, "second")); err != nil || string(b) != "x" {
				t.Errorf("the second step happened %d times, %v", len(b), err)
			}
			if _, err := e.State(ctx, "y"); !errors.Is(err, ErrUnknown) {
				t.Errorf("what was not started is there: %v", err)
			}
		})
	}
}

// A store that can't be made is refused by its path, and leaves no lock.
func TestUnusableStore(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(file, "engine.db"), file, dir} {
		for range 2 {
			e, err := Open(ctx, options(path, waits("waits")))
			var held *HeldError
			if err == nil || errors.As(err, &held) || !strings.Contains(err.Error(), file) && !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %v", path, err)
			}
			if e != nil {
				shut(t, e)
			}
		}
	}
}
