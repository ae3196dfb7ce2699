package agenttest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/propose"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/testenv"
)

// person says how people use an agent in a terminal.
type person struct {
	agent, api string
	ready      string // is on the screen when the agent takes a prompt
	drawn      string // the same when a conversation goes on
	quit       string // ends it, with Enter once offer is shown
	offer      string
}

var persons = []person{
	{"claude-code", "anthropic messages", "bypass permissions on", "bypass permissions on", "/exit", "/exit"},
	{"codex", "openai responses", "shortcuts", "shortcuts", "/quit", "/quit"},
	{"gemini-cli", "gemini", "Type your message", "Type your message", "/quit", "Exit the cli"},
	{"opencode-ai", "anthropic messages", "Ask anything", first, "/exit", "/exit"},
	{"pi-coding-agent", "anthropic messages", "pi v", "pi v", "/quit", "/quit"},
}

// ways lists the ways in which an agent is used, and the agent with which -short plays one.
var ways = []struct {
	name, short string
	play        func(*desk)
}{
	{"headless", "claude", (*desk).headless},
	{"interactive", "", (*desk).interactive},
	{"frozen and resumed", "", (*desk).frozen},
	{"killed and resumed", "pi", (*desk).killed}, // which begins as the interactive way
	{"Ctrl-C", "", (*desk).interrupted},
}

// TestMatrix uses each agent in each way, with carboy's program, by the agent's name alone:
// the manifests are those that carboy proposes, and the arguments are the user's.
func TestMatrix(t *testing.T) {
	if n := len(propose.Templates()); n != len(persons) {
		t.Errorf("carboy knows %d agents by name, and %d are here", n, len(persons))
	}
	for _, p := range persons {
		a := agents[slices.IndexFunc(agents, func(a agent) bool { return a.name == p.agent && a.api == p.api })]
		for _, w := range ways {
			a.with(t, a.bin+"/"+w.name, func(t *testing.T, dir string) {
				if testing.Short() && w.short != a.bin {
					t.Skip("-short: one agent is killed, and another is headless")
				}
				testenv.Need(t, "node", "apt-get install nodejs")
				d := newDesk(t, a, dir)
				d.person = p
				began := time.Now()
				w.play(d)
				d.keyStayedOutside()
				t.Logf("%s %s: %d requests, %.1f s", a.bin, a.version(t, dir), len(d.server.Requests()), time.Since(began).Seconds())
			})
		}
	}
}

// TestFirstUse takes a new user from carboy's name to a commit on the host. The model takes
// no time here. docs/agents.md has how long it took.
func TestFirstUse(t *testing.T) {
	a := agents[slices.IndexFunc(agents, func(a agent) bool { return a.bin == "claude" })]
	a.with(t, a.bin, func(t *testing.T, dir string) {
		if testing.Short() {
			t.Skip("-short: TestMatrix and TestWord have the parts")
		}
		testenv.Need(t, "node", "apt-get install nodejs")
		d := newDesk(t, a, dir)
		_ = d.command() // carboy is in place
		began := time.Now()
		s := openTerminal(t, d.command(append([]string{a.bin}, d.alone(one)...)...), 100)
		s.await("the next time in this directory without asking? [y/N]")
		s.typed("y\n")
		s.await(first)
		s.await("Enter leaves them")
		s.typed("\n")
		if code := s.end(); code != 0 {
			t.Errorf("exit code %d:\n%s", code, s.last())
		}
		d.must("", "land", "--yes")
		t.Logf("%s %s: from the first command to the landed commit: 2 commands, %.1f s, the model's own time is 0", a.bin, a.version(t, dir), time.Since(began).Seconds())
		d.landed()
		d.keyStayedOutside()
	})
}

// What a person asks, and what the model says to it, in so few letters that they come in one
// piece.
const (
	one, two     = "Mend calc.js and commit it", "Say it once more"
	first, again = "MENDED-4711", "AGAIN-4712"
	slow         = "touch waiting; while [ ! -e go ]; do sleep 0.1; done"
)

// desk is a person's machine, on which carboy is installed, an agent, and nothing else. Its
// vendor plays a script.
type desk struct {
	*host
	t      *testing.T
	agent  agent
	person person
	key    string
	server *Server
	waits  bool                 // the model's first command does not end by itself
	looked map[string]time.Time // copies without the first answer
}

func newDesk(t *testing.T, a agent, dir string) *desk {
	t.Helper()
	d := &desk{host: newHost(t), t: t, agent: a, key: newKey(t), looked: map[string]time.Time{}}
	d.vars[a.env] = d.key
	d.install(dir)
	steps := append(repair(d.ws+"/calc.js"), Step{Run: "git commit -qam 'calc: add adds'"})
	d.server = New(t, d.key, Script{
		Decide: func(request string, results []string) *Step {
			switch {
			case strings.Contains(request, two) || len(results) >= len(steps):
				return nil
			case d.waits:
				return &Step{Run: slow}
			}
			return &steps[len(results)]
		},
		Say: func(request string) string {
			if strings.Contains(request, two) {
				return again
			}
			return first
		},
	})
	write(t, d.base+"/vendor.pem", string(d.server.CA))
	d.vars["SSL_CERT_FILE"], d.vars["TERM"], d.vars["LANG"] = d.base+"/vendor.pem", "xterm-256color", "C.UTF-8"
	d.vars["GIT_CONFIG_NOSYSTEM"] = "1"

	// The proposal as carboy makes it, but for the vendor's address.
	ws, err := store.ResolveWorkspace(d.ws)
	if err != nil {
		t.Fatal(err)
	}
	p, err := propose.For(a.bin, ws, d.base+"/config/carboy", d.env)
	if err == nil {
		err = p.Write()
	}
	if err != nil {
		t.Fatal(err)
	}
	d.upstream(t, p.Dir+"/bottles/"+a.bin+".md", a.host, d.server.Addr)
	return d
}

// programDir holds carboy's program; empty: it was not built. TestMain removes it.
var programDir string

// program returns the path of carboy, which is built once.
var program = sync.OnceValues(func() (path string, err error) {
	if programDir, err = os.MkdirTemp("", "ca-program-"); err != nil {
		return "", err
	}
	path = programDir + "/carboy"
	cmd := exec.Command("go", "build", "-o", path, "github.com/carboy/carboy/cmd/carboy")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = errors.Join(err, errors.New(string(out)))
	}
	return path, errors.Join(err, os.Chmod(programDir, 0o755))
})

func (d *desk) command(args ...string) *exec.Cmd {
	d.t.Helper()
	path, err := program()
	if err != nil {
		d.t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = d.ws
	for name, v := range d.vars {
		cmd.Env = append(cmd.Env, name+"="+v)
	}
	return cmd
}

// carboy runs a command without a terminal.
func (d *desk) carboy(args ...string) (out string, code int) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	var b bytes.Buffer
	cmd := d.command(args...)
	cmd.Stdout, cmd.Stderr, cmd.Cancel = &b, &b, nil
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	_ = cmd.Wait()
	return b.String(), cmd.ProcessState.ExitCode()
}

// must runs a command that must end well and say what is wanted.
func (d *desk) must(want string, args ...string) {
	d.t.Helper()
	if out, code := d.carboy(args...); code != 0 || !strings.Contains(out, want) {
		d.t.Fatalf("carboy %q: %d\n%s", args, code, out)
	}
}

// alone returns the arguments with which a script starts the agent, without those that
// carboy adds.
func (d *desk) alone(prompt string) []string {
	own := []string{"--dangerously-skip-permissions", "--dangerously-bypass-approvals-and-sandbox", "--yolo", "--skip-trust", "--auto"}
	args := slices.DeleteFunc(slices.Clone(d.agent.command), func(s string) bool { return slices.Contains(own, s) })
	return append(args[:len(args)-1], prompt)
}

// begin starts the agent in a terminal, and gives it the first prompt.
func (d *desk) begin() *terminal {
	d.t.Helper()
	script := []string{"-p", "exec", "run", one}
	args := slices.DeleteFunc(d.alone(one), func(s string) bool { return slices.Contains(script, s) })
	s := openTerminal(d.t, d.command(append([]string{d.agent.bin, "--yes"}, args...)...), 100)
	s.await(d.person.ready)
	s.ask(one)
	s.await(first)
	return s
}

func (d *desk) quit(s *terminal) {
	d.t.Helper()
	s.typed(d.person.quit)
	s.await(d.person.offer)
	s.typed("\r")
}

// landed checks that the agent's work is on the host.
func (d *desk) landed() {
	d.t.Helper()
	if got := read(d.t, d.ws+"/calc.js"); got != right+"\n" {
		d.t.Errorf("calc.js after landing: %q", got)
	}
	if log := read(d.t, d.ws+"/.git/logs/HEAD"); !strings.Contains(log, "carboy: landing") {
		d.t.Errorf("no commit landed: %s", log)
	}
}

// goneOn checks that the model was told of both prompts in one conversation.
func (d *desk) goneOn() {
	d.t.Helper()
	for _, r := range d.server.Requests() {
		if i, j := strings.Index(string(r.Body), one), strings.Index(string(r.Body), two); i >= 0 && j > i {
			return
		}
	}
	d.t.Error("the model was not told of both prompts")
}

func (d *desk) keyStayedOutside() {
	d.t.Helper()
	asked := d.server.Requests()
	for _, r := range asked {
		if !r.Key || r.Host != d.agent.host || strings.Contains(string(r.Body), d.key) {
			d.t.Errorf("%s %s%s: the key was there: %v, or came inside", r.Method, r.Host, r.Path, r.Key)
		}
	}
	if len(asked) == 0 {
		d.t.Error("the model was asked nothing")
	}
}

func (d *desk) headless() {
	d.must(first, append([]string{d.agent.bin, "--yes"}, d.alone(one)...)...)
	d.must("", "land", "--yes")
	d.landed()
}

func (d *desk) interactive() {
	s := d.begin()
	d.must("", "exec", d.agent.bin, "--", "grep", "-q", "a + b", "calc.js")
	d.quit(s)
	s.await("d shows the changes, l lands them")
	s.typed("l\n")
	s.await("[y/N]")
	s.typed("y\n")
	if code := s.end(); code != 0 {
		d.t.Errorf("exit code %d:\n%s", code, s.last())
	}
	d.landed()
}

// frozen freezes the agent between two prompts. In the next terminal, which is another, it
// draws its screen, and gets keys as it did.
func (d *desk) frozen() {
	s := d.begin()
	d.must("is frozen", "freeze", d.agent.bin)
	if code := s.end(); code != 125 {
		d.t.Errorf("frozen: exit code %d:\n%s", code, s.last())
	}
	s = openTerminal(d.t, d.command("resume", d.agent.bin), 90)
	d.secondPrompt(s)
	if strings.Contains(s.last(), "beginswithitsfiles") {
		d.t.Errorf("its processes did not go on:\n%s", s.last())
	}
}

// secondPrompt goes on with a resumed conversation to its end, and lands.
func (d *desk) secondPrompt(s *terminal) {
	d.t.Helper()
	s.await(d.person.drawn)
	s.ask(two)
	s.await(again)
	d.goneOn()
	d.quit(s)
	if code := s.end(); code != 0 {
		d.t.Errorf("exit code %d:\n%s", code, s.last())
	}
	d.must("", "land", d.agent.bin, "--yes")
	d.landed()
}

// killed kills carboy after the first answer was copied.
func (d *desk) killed() {
	s := d.begin()
	if !testenv.Poll(patience, d.copied) {
		d.t.Fatal("the conversation was not copied")
	}
	_ = s.cmd.Process.Kill()
	s.end()
	d.settled()
	s = openTerminal(d.t, d.command("resume", d.agent.bin), 100)
	s.await("begins with its files: its carboy died")
	d.secondPrompt(s)
}

// copied reports whether the copies of the bottle's files have the first answer, which the
// agent writes to its conversation.
func (d *desk) copied() bool {
	l, _ := filepath.Glob(d.base + "/state/carboy/runs/*/checkpoint/*.tar")
	return slices.ContainsFunc(l, func(name string) bool {
		fi, err := os.Stat(name)
		if err != nil || d.looked[name] == fi.ModTime() {
			return false
		}
		b, err := os.ReadFile(name)
		d.looked[name] = fi.ModTime()
		return err == nil && bytes.Contains(b, []byte(first))
	})
}

// settled waits until no bottle is called running: the inner processes of a carboy that was
// killed may hold its locks for a moment.
func (d *desk) settled() {
	d.t.Helper()
	if !testenv.Poll(patience, func() bool { out, _ := d.carboy("list", "--bottles"); return !strings.Contains(out, "running") }) {
		d.t.Fatal("the killed bottle runs")
	}
}

// interrupted presses Ctrl-C while a script's agent waits for a command, and goes on later.
func (d *desk) interrupted() {
	d.waits = true
	cmd := d.command(append([]string{d.agent.bin, "--yes"}, d.alone(one)...)...)
	var said testenv.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	defer cmd.Process.Kill()
	if !testenv.Poll(patience, func() bool {
		_, code := d.carboy("exec", "-q", d.agent.bin, "--", "test", "-e", "waiting")
		return code == 0
	}) {
		d.t.Fatalf("the command did not come:\n%s", said.String())
	}
	if err := cmd.Process.Signal(unix.SIGINT); err != nil {
		d.t.Fatal(err)
	}
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(said.String(), "is kept") {
		d.t.Errorf("exit code %d:\n%s", code, said.String())
	}
	d.must(again, "resume", d.agent.bin, "--headless", "--prompt", two)
	d.goneOn()
}

// upstream sends a proposed bottle's requests for a host to another address.
func (h *host) upstream(t *testing.T, file, host, addr string) {
	t.Helper()
	text := read(t, file)
	to := "host: " + host + ", upstream: \"" + addr + "\""
	switch {
	case strings.Contains(text, "{host: "+host+","):
		text = strings.Replace(text, "host: "+host, to, 1)
	case strings.Contains(text, "  routes:\n"):
		text = strings.Replace(text, "  routes:\n", "  routes:\n    - {"+to+"}\n", 1)
		text = strings.Replace(text, "    []\n", "", 1)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
