package session

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/term"

	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/macos/frames"
	"github.com/carboy/carboy/internal/macos/mirror"
)

const placesName = "CARBOY_TEST_PLACES"

// TestMain makes this binary the machine's side, and the carboy that it runs.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && os.Args[1] == Command:
		dir := os.Getenv(placesName)
		if err := Serve(os.Stdin, os.Stdout, Places{State: dir + "/state", Memory: dir + "/memory"}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(125)
		}
		os.Exit(0)
	case os.Getenv(variablesName) != "":
		if err := Inherit(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(125)
		}
		// os.Exit would have the runtime of go test -cover write a warning.
		syscall.Exit(act(os.Args[1], os.Args[2:]))
	}
	os.Exit(m.Run())
}

// act does what these tests need of carboy in the machine.
func act(what string, args []string) int {
	switch what {
	case "exit":
		n, _ := strconv.Atoi(args[0])
		return n
	case "die":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		syscall.Pause()
	case "variable":
		b, _ := os.ReadFile("/proc/self/environ")
		fmt.Printf("%s %t", os.Getenv(args[0]), bytes.Contains(b, []byte(os.Getenv(args[0]))))
	case "cat":
		io.Copy(os.Stdout, os.Stdin)
	case "both":
		n, _ := strconv.Atoi(args[0])
		var wait sync.WaitGroup
		wait.Go(func() { os.Stdout.Write(bytes.Repeat([]byte("o"), n)) })
		wait.Go(func() { os.Stderr.Write(bytes.Repeat([]byte("e"), n)) })
		wait.Wait()
	case "streams":
		for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
			fmt.Print(term.IsTerminal(int(f.Fd())), " ")
		}
		n, err := os.Stdin.Read(make([]byte, 1))
		fmt.Print(n, err)
	case "signals":
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGWINCH)
		fmt.Println("ready")
		for s := range c {
			if s == syscall.SIGWINCH {
				w, h, err := term.GetSize(0)
				fmt.Println("size", w, h, err)
				continue
			}
			if len(args) > 0 {
				os.WriteFile(args[0], []byte(s.String()), 0o600)
			}
			fmt.Println(s)
			return 128 + int(s.(syscall.Signal))
		}
	case "flood": // until a signal comes
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGHUP)
		fmt.Println("ready")
		go func() {
			for {
				os.Stdout.Write(make([]byte, 1<<16))
			}
		}()
		os.WriteFile(args[0], []byte((<-c).String()), 0o600)
	case "write": // until nobody reads it
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
		for {
			if _, err := os.Stdout.Write(make([]byte, 1<<16)); err != nil {
				fmt.Fprint(os.Stderr, errors.Is(err, syscall.EPIPE))
				return 9
			}
		}
	case "left":
		// A process that stays keeps the output open.
		cmd := exec.Command("/proc/self/exe", "machine-left")
		cmd.Env = append(os.Environ(), variablesName+"=3")
		r, w, _ := os.Pipe()
		cmd.ExtraFiles = []*os.File{r}
		cmd.Stdout = os.Stdout
		w.WriteString("{}")
		w.Close()
		if err := cmd.Start(); err != nil {
			return 1
		}
		fmt.Print(cmd.Process.Pid)
	case "machine-left":
		syscall.Pause()
	case "read":
		b, err := os.ReadFile(args[0])
		fmt.Printf("%s %v", b, err)
	}
	return 0
}

// machine is the program that runs something in a machine.
type machine struct {
	*exec.Cmd
	in  *os.File
	out *os.File
	dir string
}

func enter(t *testing.T) *machine {
	t.Helper()
	m := &machine{Cmd: exec.Command(os.Args[0], Command), dir: t.TempDir()}
	m.Env = append(os.Environ(), placesName+"="+m.dir)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	m.Stdin, m.Stdout, m.Stderr, m.in, m.out = r, theirs, os.Stderr, w, out
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	r.Close()
	theirs.Close()
	t.Cleanup(func() {
		w.Close()
		out.Close()
		m.Wait()
	})
	return m
}

// options returns those of a command without streams to read.
func options(t *testing.T, out, msg io.Writer, args ...string) Options {
	return Options{
		Args: args, Dir: t.TempDir(), Home: t.TempDir(), Out: Pipe, Err: Pipe, Stdout: out, Stderr: msg,
		UID: os.Getuid(), GID: os.Getgid(), Size: func() Size { return Size{40, 100} }, Say: func(s string) { t.Log(s) },
	}
}

func run(t *testing.T, o Options) (int, error) {
	t.Helper()
	m := enter(t)
	return Run(t.Context(), m.out, m.in, o)
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		args []string
		want int
	}{{[]string{"exit", "0"}, 0}, {[]string{"exit", "7"}, 7}, {[]string{"exit", "125"}, 125}, {[]string{"die"}, 137}} {
		if code, err := run(t, options(t, nil, nil, c.args...)); code != c.want || err != nil {
			t.Errorf("%q: %d, %v", c.args, code, err)
		}
	}
}

// Nothing of the output is lost, though the command ends at once.
func TestOutput(t *testing.T) {
	const n = 10 << 20
	var out, msg bytes.Buffer
	if code, err := run(t, options(t, &out, &msg, "both", strconv.Itoa(n))); code != 0 || err != nil {
		t.Fatal(code, err)
	}
	if strings.Count(out.String(), "o") != n || out.Len() != n || strings.Count(msg.String(), "e") != n || msg.Len() != n {
		t.Errorf("%d and %d bytes arrived", out.Len(), msg.Len())
	}
}

func TestInput(t *testing.T) {
	data := make([]byte, 5<<20+3)
	rand.Read(data)
	var out bytes.Buffer
	o := options(t, &out, nil, "cat")
	o.In, o.Stdin = Pipe, bytes.NewReader(data)
	if code, err := run(t, o); code != 0 || err != nil || !bytes.Equal(out.Bytes(), data) {
		t.Errorf("%d, %v, %d bytes", code, err, out.Len())
	}
	// One that does not read it ends all the same, and signals overtake it.
	for _, args := range [][]string{{"exit", "3"}, {"signals"}} {
		signals := make(chan os.Signal, 1)
		w := &watch{want: "ready", then: func() { signals <- syscall.SIGTERM }}
		o := options(t, w, nil, args...)
		o.In, o.Stdin, o.Signals = Pipe, bytes.NewReader(data), signals
		if code, err := run(t, o); err != nil || code != 3 && code != 128+15 {
			t.Errorf("%q: %d, %v", args, code, err)
		}
	}
}

// watch calls then once want was written.
type watch struct {
	mu   sync.Mutex
	text strings.Builder
	want string
	then func()
}

func (w *watch) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(p)
	if w.then != nil && strings.Contains(w.text.String(), w.want) {
		w.then()
		w.then = nil
	}
	return len(p), nil
}

func (w *watch) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// A variable reaches carboy in the machine, and no environment that others can read.
func TestVariables(t *testing.T) {
	var out bytes.Buffer
	o := options(t, &out, nil, "variable", "API_KEY")
	o.Env = map[string]string{"API_KEY": "sk-" + strings.Repeat("x", 200000)}
	if code, err := run(t, o); code != 0 || err != nil || out.String() != o.Env["API_KEY"]+" false" {
		t.Errorf("%d, %v: %.40q", code, err, out.String())
	}
}

func TestStreams(t *testing.T) {
	var out bytes.Buffer
	if _, err := run(t, options(t, &out, nil, "streams")); err != nil || out.String() != "false false false 0 EOF" {
		t.Errorf("%q, %v", out.String(), err)
	}
	out.Reset()
	o := options(t, &out, nil, "streams")
	o.Err, o.Screen = Terminal, &out
	if _, err := run(t, o); err != nil || out.String() != "false false true 0 EOF" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// A terminal has its size, changes it, and its keys are signals.
func TestTerminal(t *testing.T) {
	keys, press := io.Pipe()
	signals := make(chan os.Signal, 1)
	var mu sync.Mutex
	size := Size{40, 100}
	w := &watch{want: "ready"}
	w.then = func() {
		mu.Lock()
		size = Size{25, 77}
		mu.Unlock()
		w.want, w.then = "size 77 25 <nil>", func() { go press.Write([]byte{3}) }
		signals <- syscall.SIGWINCH
	}
	o := options(t, nil, nil, "signals")
	o.In, o.Out, o.Err, o.Stdin, o.Screen, o.Signals = Terminal, Terminal, Terminal, keys, &again{w}, signals
	o.Size = func() Size {
		mu.Lock()
		defer mu.Unlock()
		return size
	}
	started := false
	o.Started = func() { started = true }
	code, err := run(t, o)
	if code != 130 || err != nil || !started || !strings.Contains(w.String(), "interrupt") {
		t.Errorf("%d, %v, started %t: %q", code, err, started, w.String())
	}
}

// again lets a watch set what it waits for next.
type again struct{ *watch }

func (a *again) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.text.Write(p)
	if then := a.then; then != nil && strings.Contains(a.text.String(), a.want) {
		a.then = nil
		then()
	}
	return len(p), nil
}

func TestSignals(t *testing.T) {
	for s, want := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143, syscall.SIGHUP: 129} {
		signals := make(chan os.Signal, 1)
		o := options(t, &watch{want: "ready", then: func() { signals <- s }}, nil, "signals")
		o.Signals = signals
		if code, err := run(t, o); code != want || err != nil {
			t.Errorf("%v: %d, %v", s, code, err)
		}
	}
}

// Output that a process left behind still holds open does not hold up the command.
func TestLeftBehind(t *testing.T) {
	var out bytes.Buffer
	if code, err := run(t, options(t, &out, nil, "left")); code != 0 || err != nil {
		t.Fatal(code, err)
	}
	pid, err := strconv.Atoi(out.String())
	if err != nil {
		t.Fatal(err)
	}
	syscall.Kill(pid, syscall.SIGKILL)
}

// When carboy outside is gone, the command is told and ends.
func TestGone(t *testing.T) {
	m := enter(t)
	told := filepath.Join(t.TempDir(), "told")
	ready := make(chan struct{})
	o := options(t, &watch{want: "ready", then: func() { close(ready) }}, nil, "signals", told)
	go Run(context.Background(), m.out, m.in, o)
	<-ready
	m.in.Close()
	m.Wait()
	if b, err := os.ReadFile(told); string(b) != "hangup" {
		t.Errorf("it was told %q, %v", b, err)
	}
}

// The command finds out that nobody reads its output any more, as without a machine.
func TestShut(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r.Close()
	var msg bytes.Buffer
	if code, err := run(t, options(t, w, &msg, "write")); code != 9 || err != nil || msg.String() != "true" {
		t.Errorf("%d, %v, %q", code, err, msg.String())
	}
}

// When nobody reads what the machine sends, that does not end the session, which still ends
// the command.
func TestNobodyReads(t *testing.T) {
	m := enter(t)
	told := filepath.Join(t.TempDir(), "told")
	ready := make(chan struct{})
	o := options(t, &watch{want: "ready", then: func() { close(ready) }}, nil, "flood", told)
	go Run(context.Background(), m.out, m.in, o)
	<-ready
	m.out.Close()
	m.in.Close()
	m.Wait()
	if b, err := os.ReadFile(told); string(b) != "hangup" || m.ProcessState.ExitCode() != 125 {
		t.Errorf("it was told %q, %v; %v", b, err, m.ProcessState)
	}
}

// A signal ends what comes before the command.
func TestSignalBefore(t *testing.T) {
	m := enter(t)
	c := frames.New(m.out, m.in)
	if _, err := frames.Expect(c, frames.Hello); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	c.SendJSON(frames.Open, order{Version: version, Args: []string{"signals", ran}, Dir: dir, Home: dir, Trees: []Tree{{Path: filepath.Join(dir, "settings"), Copy: Settings}}})
	if _, err := frames.Expect(c, frames.Tree); err != nil {
		t.Fatal(err)
	}
	c.Send(frames.Signal, []byte{2})
	c.Send(frames.End, nil) // an empty list
	var fail *frames.FailError
	for {
		k, b, err := c.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if k == frames.Fail {
			fail = &frames.FailError{Text: string(b)}
			break
		}
		if k == frames.Stdout || k == frames.Exit {
			t.Fatalf("the command ran: %q %q", byte(k), b)
		}
	}
	if !strings.Contains(fail.Text, "signal") {
		t.Errorf("it failed with %q", fail.Text)
	}
}

// A signal ends a command that waits for another one's copy of the directory.
func TestSignalWhileItWaits(t *testing.T) {
	m := enter(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "settings")
	lock := filepath.Join(m.dir, "state/copies", nameOf(path)+".lock")
	if err := os.MkdirAll(filepath.Dir(lock), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(lock)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	c := frames.New(m.out, m.in)
	if _, err := frames.Expect(c, frames.Hello); err != nil {
		t.Fatal(err)
	}
	c.SendJSON(frames.Open, order{Version: version, Args: []string{"exit", "0"}, Dir: dir, Home: dir, Trees: []Tree{{Path: path, Copy: Settings}}})
	c.Send(frames.Signal, []byte{2})
	if k, b, err := c.Recv(); err != nil || k != frames.Fail || !strings.Contains(string(b), "signal") {
		t.Errorf("%q %q, %v", byte(k), b, err)
	}
}

// Settings come into memory, and follow what is outside; carboy finds them at their path.
func TestSettings(t *testing.T) {
	m := t.TempDir()
	home := filepath.Join(m, "Users", "me")
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "config.yaml"), []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	places := Places{Memory: filepath.Join(m, "memory"), State: filepath.Join(m, "state")}
	path := filepath.Join(home, ".config", "carboy")
	for _, text := range []string{"one", "two"} {
		os.WriteFile(filepath.Join(src, "config.yaml"), []byte(text), 0o600)
		r1, w1 := io.Pipe()
		r2, w2 := io.Pipe()
		here := frames.New(r1, w2)
		ctx, cancel := context.WithCancelCause(t.Context())
		s := &server{Conn: frames.New(r2, w1), places: places, frames: make(chan frame), gone: make(chan struct{}), over: make(chan struct{}), cancel: cancel}
		go s.read()
		end := make(chan error, 1)
		go func() { end <- s.bring(ctx, &order{Trees: []Tree{{Path: path, Copy: Settings}}}, 0) }()
		if _, err := frames.Expect(here, frames.Tree); err != nil {
			t.Fatal(err)
		}
		if err := mirror.Give(ctx, here, src, nil, nil); err != nil {
			t.Fatal(err)
		}
		if err := <-end; err != nil {
			t.Fatal(err)
		}
		w2.Close()
		if b, err := os.ReadFile(filepath.Join(path, "config.yaml")); string(b) != text {
			t.Errorf("%q, %v", b, err)
		}
	}
	if to, err := os.Readlink(path); err != nil || !strings.HasPrefix(to, places.Memory) {
		t.Errorf("it leads to %q, %v", to, err)
	}
}

// What answers in carboy's stead is shown as such.
func TestNoSession(t *testing.T) {
	for name, says := range map[string]string{
		"nothing":         "",
		"a text":          "sh: 1: /opt/carboy/carboy-0: not found\n",
		"another version": string(frameOf(frames.Hello, `{"schema":"carboy.dev/session/v1","version":99}`)),
		"another frame":   string(frameOf(frames.Exit, "\x00\x00\x00\x00")),
		"wrong type":      string(frameOf(frames.Hello, `[1]`)),
	} {
		_, err := Run(t.Context(), strings.NewReader(says), io.Discard, options(t, nil, nil))
		var no *NoSessionError
		if !errors.As(err, &no) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func frameOf(k frames.Kind, payload string) []byte {
	var b bytes.Buffer
	frames.New(nil, &b).Send(k, []byte(payload))
	return b.Bytes()
}

// A machine that was taken over can't do more than end the command.
func TestHostileMachine(t *testing.T) {
	greeting, _ := json.Marshal(hello{helloSchema, version})
	secret := t.TempDir()
	os.WriteFile(filepath.Join(secret, "key"), []byte("s"), 0o600)
	for name, says := range map[string][]byte{
		"a directory that was not named": frameOf(frames.Tree, `{"tree":1}`),
		"a negative one":                 frameOf(frames.Tree, `{"tree":-1,"back":true}`),
		"settings to change":             frameOf(frames.Tree, `{"tree":0,"back":true}`),
		"an unknown frame":               frameOf('?', ""),
		"short exit code":                frameOf(frames.Exit, "\x00"),
		"the end":                        nil,
		"control characters":             frameOf(frames.Fail, "\x1b]0;owned\x07"),
		"cut":                            frameOf(frames.Stdout, "abc")[:6],
	} {
		var out bytes.Buffer
		o := options(t, &out, &out, "x")
		o.Trees = []Tree{{Path: secret, Copy: Settings}}
		code, err := Run(t.Context(), bytes.NewReader(append(frameOf(frames.Hello, string(greeting)), says...)), io.Discard, o)
		if err == nil || code != 0 {
			t.Errorf("%s: %d, %v", name, code, err)
		} else if strings.ContainsAny(err.Error(), "\x1b\x07") {
			t.Errorf("%s: %q", name, err)
		}
	}
	// Much room for input is still little.
	many := bytes.Repeat(frameOf(frames.Credit, "\xff\xff\xff\xff"), 1000)
	o := options(t, nil, nil, "x")
	o.In, o.Stdin = Pipe, neverEnds{}
	var sent counter
	says := append(append(frameOf(frames.Hello, string(greeting)), many...), frameOf(frames.Exit, "\x00\x00\x00\x05")...)
	if code, err := Run(t.Context(), bytes.NewReader(says), &sent, o); code != 5 || err != nil {
		t.Errorf("%d, %v", code, err)
	}
}

type neverEnds struct{}

func (neverEnds) Read(p []byte) (int, error) { return len(p), nil }

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += len(p)
	return len(p), nil
}

// A signal of ours while something fails is the reason.
func TestInterrupted(t *testing.T) {
	greeting, _ := json.Marshal(hello{helloSchema, version})
	r, w := io.Pipe()
	signals := make(chan os.Signal)
	o := options(t, nil, nil, "x")
	o.Signals = signals
	go func() {
		w.Write(frameOf(frames.Hello, string(greeting)))
		signals <- syscall.SIGTERM
		signals <- syscall.SIGUSR1 // the first is noted by now
		w.Write(frameOf(frames.Fail, "ended"))
	}()
	_, err := Run(t.Context(), r, io.Discard, o)
	if code := exitcode.OfError(exitcode.Runs, err); code != 128+15 {
		t.Errorf("%d: %v", code, err)
	}
}
