package tui

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/supervise/supervisetest"
	"github.com/carboy/carboy/internal/testenv"
)

// nowhere is an audit log that keeps nothing.
type nowhere struct{}

func (nowhere) Append(context.Context, ...audit.Event) (audit.Position, error) {
	return audit.Position{}, nil
}

// crashing is a queue that panics on an answer.
type crashing struct{ Queue }

func (crashing) Answer(context.Context, supervise.Reply) (supervise.Answer, error) {
	panic("crash on purpose")
}

const tuiArg = "tui-in-a-terminal"

// TestMain runs the terminal on the queue in a directory if the arguments say so.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != tuiArg {
		os.Exit(m.Run())
	}
	if len(os.Args) != 4 {
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	real, err := supervise.Open(os.Args[2], supervise.Options{Audit: nowhere{}})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	o := Options{In: os.Stdin, Out: os.Stdout, ASCII: true, Queue: real}
	if os.Args[3] == "crash" {
		o.Queue = crashing{real}
	}
	if err := Run(ctx, o); err != nil {
		fmt.Println("ended:", err)
		os.Exit(3)
	}
}

// terminal is a tmux in which a shell has started the program.
type terminal struct {
	t      *testing.T
	socket string
	dir    string
}

func newTerminal(t *testing.T, queue, how string, width, height int) *terminal {
	t.Helper()
	testenv.Need(t, "tmux", "apt-get install tmux")
	dir, err := os.MkdirTemp("", "carboy-tui-")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &terminal{t: t, socket: filepath.Join(dir, "s"), dir: dir}
	t.Cleanup(func() {
		p.tmux("kill-server")
		os.RemoveAll(dir)
	})
	// The shell stays after the program, and records the state of the terminal before and
	// after it.
	script := fmt.Sprintf(`stty -g >%[1]s/before; echo shell-before; %[2]s %[3]s %[4]s %[5]q & echo $! >%[1]s/pid; fg >/dev/null; code=$?; stty -g >%[1]s/after; echo "code=$code"; touch %[1]s/over; exec sleep 1000`,
		dir, self, tuiArg, queue, how)
	p.tmux("-f", "/dev/null", "new-session", "-d", "-x", fmt.Sprint(width), "-y", fmt.Sprint(height), "bash", "-mc", script)
	return p
}

func (p *terminal) tmux(args ...string) string {
	p.t.Helper()
	cmd := exec.Command("tmux", append([]string{"-S", p.socket}, args...)...)
	cmd.Env = append(os.Environ(), "TERM=xterm", "LC_ALL=C.UTF-8", "TMUX=")
	out, err := cmd.CombinedOutput()
	if err != nil && args[0] != "kill-server" {
		p.t.Fatalf("tmux %v: %v: %s", args, err, out)
	}
	return string(out)
}

func (p *terminal) screen() string { return p.tmux("capture-pane", "-p") }

var patience = testenv.Patience(time.Minute)

func (p *terminal) await(what string) {
	p.t.Helper()
	if !p.eventually(func() bool { return strings.Contains(p.screen(), what) }) {
		p.t.Fatalf("%q did not appear:\n%s", what, p.screen())
	}
}

// eventually polls a condition, since tmux tells nobody what a program draws. It reports
// whether the condition became true in time.
func (p *terminal) eventually(condition func() bool) bool {
	timeout, tick := time.After(patience), time.NewTicker(30*time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-timeout:
			return false
		}
	}
	return true
}

func (p *terminal) keys(keys ...string) { p.tmux(append([]string{"send-keys"}, keys...)...) }

// ended blocks until the program has ended. It fails the test unless the terminal is as
// before.
func (p *terminal) ended(code string) {
	p.t.Helper()
	over := func() bool {
		_, err := os.Stat(filepath.Join(p.dir, "over"))
		return err == nil
	}
	if !p.eventually(over) {
		p.t.Fatalf("it did not end:\n%s", p.screen())
	}
	p.await("code=" + code)
	before, _ := os.ReadFile(filepath.Join(p.dir, "before"))
	after, _ := os.ReadFile(filepath.Join(p.dir, "after"))
	if len(before) == 0 || string(before) != string(after) {
		p.t.Errorf("the terminal was\n%s\nand is\n%s", before, after)
	}
	if got := strings.TrimSpace(p.tmux("display-message", "-p", "#{alternate_on} #{cursor_flag} #{bracketed_paste_flag}")); !strings.HasPrefix(got, "0 1") {
		p.t.Errorf("another screen is shown, or no cursor: %s", got)
	}
	// The text of a crash may have scrolled it off the screen.
	if all := p.tmux("capture-pane", "-p", "-S", "-"); !strings.Contains(all, "shell-before") {
		p.t.Errorf("what was there before is gone:\n%s", all)
	}
}

func (p *terminal) pid() int {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.dir, "pid"))
	if err != nil {
		p.t.Fatal(err)
	}
	var pid int
	fmt.Sscan(string(b), &pid)
	return pid
}

// waiting makes a queue in a new directory, with routes that wait.
func waiting(t *testing.T, hosts ...string) (dir string, asker *supervise.Asker, tickets []*supervise.Ticket) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "supervise")
	q, err := supervise.Open(dir, supervise.Options{Audit: nowhere{}})
	if err != nil {
		t.Fatal(err)
	}
	asker, err = q.Asker(supervise.AskerOptions{Bottle: "fix-login"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { asker.Close() })
	for _, h := range hosts {
		ticket, err := asker.Propose(t.Context(), supervisetest.Route(h), supervise.Draft{Why: "the tests need it", Tool: "egress-allow"})
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	return dir, asker, tickets
}

// TestTerminal answers in a real terminal, and the asker goes on.
func TestTerminal(t *testing.T) {
	dir, asker, tickets := waiting(t, "one.example", "two.example")
	p := newTerminal(t, dir, "plain", 80, 24)
	p.await("2 waiting")
	p.keys("j", "Enter")
	p.await("host: two.example")
	p.await("a approve")
	p.keys("a")
	p.await("Note")
	p.keys("-l", "go on, then")
	p.await("go on, then")
	time.Sleep(settle)
	p.keys("Enter")
	<-tickets[1].Done()
	o, err := tickets[1].Wait(t.Context())
	if err != nil || !o.Allowed() || o.Answer.Note != "go on, then" || o.Answer.By.Channel != supervise.ChannelTUI || o.Answer.By.UID != os.Getuid() {
		t.Fatalf("%+v %v", o.Answer, err)
	}
	p.await("1 waiting")

	// A new proposal appears at once, also in a narrow terminal.
	if _, err := asker.Propose(t.Context(), supervisetest.Route("three.example"), supervise.Draft{}); err != nil {
		t.Fatal(err)
	}
	p.await("2 waiting")
	p.tmux("resize-window", "-x", "40", "-y", "12")
	p.await("allow one.example")
	tickets[0].Close()
	p.await("gone")
	p.keys("q")
	p.ended("0")
}

// TestTerminalIsRestored checks that every end of the program restores the terminal.
func TestTerminalIsRestored(t *testing.T) {
	for how, end := range map[string]func(*terminal){
		"key":   func(p *terminal) { p.keys("C-c") },
		"TERM":  func(p *terminal) { syscall.Kill(p.pid(), syscall.SIGTERM) },
		"HUP":   func(p *terminal) { syscall.Kill(p.pid(), syscall.SIGHUP) },
		"INT":   func(p *terminal) { syscall.Kill(p.pid(), syscall.SIGINT) },
		"crash": func(p *terminal) { p.keys("a"); p.await("Note"); time.Sleep(settle); p.keys("Enter") },
	} {
		t.Run(how, func(t *testing.T) {
			dir, _, _ := waiting(t, "one.example")
			p := newTerminal(t, dir, how, 110, 30)
			p.await("a approve")
			end(p)
			p.ended(map[string]string{"key": "0"}[how])
		})
	}
}
