package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/gitgate/gittest"
	"github.com/carboy/carboy/internal/testenv"
)

// workDen is a user whose agent passes in its second attempt, by what it was told of the
// first, and whose work is pushed then.
type workDen struct {
	*den
	up, base string
}

func newWorkDen(t *testing.T) *workDen {
	t.Helper()
	return newWorkDenOf(t, `n=$(printf '%s' "$1" | grep -o 'want=[0-9]*' | head -n 1 | cut -d= -f2); printf '%s' "$n" >answer; sleep 0.1`,
		"want=$(printf %s carboy | cksum | cut -c1-8); [ \"$(cat answer 2>/dev/null)\" = \"$want\" ] || { echo \"want=$want\" >&2; exit 1; }\n")
}

// newWorkDenOf has an agent that is a script, and a check that judges it.
func newWorkDenOf(t *testing.T, script, check string) *workDen {
	t.Helper()
	testenv.Need(t, "git", "apt-get install git")
	quoted, _ := json.Marshal(script)
	w := &workDen{den: newDen(t, nil)}
	w.up = filepath.Join(w.home, "up.git")
	gittest.Bare(t, w.up)
	for name, text := range map[string]string{
		".config/carboy/bottles/default.md": "---\nagent_provider: {template: command, settings: {command: [sh, -c, " + string(quoted) + ", x, '{prompt}']}}\ngit-gate: {user: {name: W, email: w@x.example}, repos: {app: {url: \"file://" + w.up + "\"}}}\n---\n",
		".config/carboy/agents/a.md":        "---\n---\n",
		"ws/check.sh":                       check,
		"ws/.carboy/gate.yaml":              "version: 1\nsignals:\n  - {name: build, kind: build, command: [sh, ./check.sh]}\n",
	} {
		path := filepath.Join(w.home, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(name, "ws/") {
			if err := os.Chmod(path, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	ws := filepath.Join(w.home, "ws")
	if err := os.Lchown(ws, os.Geteuid(), os.Getegid()); err != nil {
		t.Fatal(err)
	}
	gittest.Git(t, ws, "init", "-q", "-b", "main")
	gittest.Git(t, ws, "add", "-A")
	gittest.Git(t, ws, "-c", "user.name=u", "-c", "user.email=u@x.example", "commit", "-q", "-m", "base")
	gittest.Git(t, ws, "remote", "add", "origin", w.up)
	w.base = strings.TrimSpace(gittest.Git(t, ws, "rev-parse", "HEAD"))
	if err := own(ws); err != nil {
		t.Fatal(err)
	}
	return w
}

// step is a step of work as its file has it.
type step struct {
	Number          int
	State, Outcome  string
	Failing, Bottle string
}

func (s step) String() string { return fmt.Sprintf("%d %s", s.Number, s.State) }

func (w *workDen) files() []string {
	files, _ := filepath.Glob(w.home + "/state/carboy/gates/work/*/attempt-*.json")
	slices.Sort(files)
	return files
}

func (w *workDen) steps() (out []step) {
	w.t.Helper()
	for _, f := range w.files() {
		var s step
		b, err := os.ReadFile(f)
		if err == nil {
			err = json.Unmarshal(b, &s)
		}
		if err != nil {
			w.t.Fatal(err)
		}
		out = append(out, s)
	}
	return out
}

// record holds one record of the audit log.
type record struct{ Kind, Subject, Text, Rule string }

func (w *workDen) records(kinds ...string) (out []record) {
	w.t.Helper()
	b, err := os.ReadFile(w.home + "/state/carboy/audit/log")
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // killed before it was made
		w.t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var r record
		if json.Unmarshal(line, &r) == nil && slices.Contains(kinds, r.Kind) {
			out = append(out, r)
		}
	}
	return out
}

// id is the only work's; empty: there is none yet.
func (w *workDen) id() string {
	files := w.files()
	if len(files) == 0 {
		return ""
	}
	return filepath.Base(filepath.Dir(files[0]))
}

// killed runs the work, or goes on with it, and kills carboy with all its might when
// when says so, which is asked again and again. over: it ended before, with that code.
// between: the newest step's file was there, and not its record.
func (w *workDen) killed(when func() bool) (over bool, code int, between bool) {
	w.t.Helper()
	args := []string{"work", "--agent", "a", "--prompt", "make it pass"}
	if id := w.id(); id != "" {
		args = []string{"work", "--continue", id}
	}
	cmd := w.command(args...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }() // ends with the command, which is killed at the latest below
	late := time.After(killPatience)
	for !when() {
		select {
		case err := <-done:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				w.t.Fatal(err)
			}
			if cmd.ProcessState.ExitCode() != 0 {
				w.t.Logf("carboy %q: %s", args, said.String())
			}
			return true, cmd.ProcessState.ExitCode(), false
		case <-late:
			cmd.Process.Kill()
			<-done
			w.t.Fatalf("carboy %q does not end: %s", args, said.String())
		case <-time.After(50 * time.Microsecond):
		}
	}
	// Stopped, it starts nothing more: what is below it now is all.
	cmd.Process.Signal(syscall.SIGSTOP)
	below := testenv.Living(w.t, cmd.Process.Pid)
	cmd.Process.Signal(syscall.SIGKILL)
	<-done
	testenv.AllGone(w.t, fmt.Sprintf("carboy %q", args), below, killPatience)
	for _, bad := range []string{"panic", "corrupt", "tamper", "damaged"} {
		if strings.Contains(said.String(), bad) {
			w.t.Errorf("carboy %q: %s", args, said.String())
		}
	}
	return false, 0, len(w.records("gate.attempt")) < len(w.files())
}

// at is true once the newest step is another than before, and the wanted one.
func (w *workDen) at(number int, state string) func() bool {
	before := len(w.files())
	return func() bool {
		files := w.files()
		if len(files) <= before {
			return false
		}
		before = len(files)
		b, err := os.ReadFile(files[len(files)-1])
		var s step
		return err == nil && json.Unmarshal(b, &s) == nil && s.Number == number && s.State == state
	}
}

var attemptText = regexp.MustCompile(`^attempt (\d+): (\w+)`)

// whole checks what is on record of work that is over: each attempt is there once, in
// its order, each agent ran after it was on record that it would, once, and the log is
// whole.
func (w *workDen) whole(attempts int) {
	t := w.t
	t.Helper()
	steps := w.steps()
	n, next := 0, map[string][]string{"": {"pending"}, "pending": {"running"}, "running": {"judging", "recorded"}, "judging": {"recorded"}, "recorded": {"pending", "pushing"}, "pushing": {"pushed"}}
	last := ""
	for _, s := range steps {
		if s.State == "pending" {
			n++
		}
		if !slices.Contains(next[last], s.State) || s.Number != n {
			t.Errorf("step %s after %q: %v", s, last, steps)
		}
		last = s.State
	}
	if n != attempts || last != "pushed" {
		t.Errorf("%d attempts, not %d: %v", n, attempts, steps)
	}
	// The log is what nothing was taken out of: there a step that never came to be on
	// record is missing, and every run is told of.
	allowed, ran := 0, 0
	var told []string
	for _, r := range w.records("gate.attempt", "run.started") {
		if r.Kind == "run.started" {
			if strings.HasPrefix(r.Rule, "bottle a-") && !strings.Contains(r.Rule, "-push,") {
				if ran++; ran > allowed {
					t.Errorf("an agent ran that nothing on record had said: %+v", r)
				}
			}
			continue
		}
		m := attemptText.FindStringSubmatch(r.Text)
		if m == nil {
			t.Fatalf("%+v", r)
		}
		told = append(told, m[1]+" "+m[2])
		if m[2] == "running" {
			ran, allowed = allowed, allowed+1 // one that never began does not begin now
		}
	}
	var have []string
	for _, s := range steps {
		have = append(have, strconv.Itoa(s.Number)+" "+s.State)
	}
	if !slices.Equal(told, have) {
		t.Errorf("on record is %q, and there is %q", told, have)
	}
	if out, msg, code := w.carboy("audit", "verify"); code != 0 {
		t.Errorf("audit verify: %d\n%s%s", code, out, msg)
	}
	git := func(args ...string) string { return strings.TrimSpace(gittest.Git(t, w.up, args...)) }
	if heads := git("for-each-ref", "--format=%(refname)", "refs/heads/carboy"); strings.Count(heads, "\n") != 0 || heads == "" {
		t.Fatalf("branches: %q", heads)
	} else if n := git("rev-list", "--count", heads, "^main", "^"+w.base); n != "1" {
		t.Errorf("%s commits were pushed", n)
	}
	var shown struct{ State, Outcome string }
	out, msg, code := w.carboy("work", "show", "--json", w.id())
	if err := json.Unmarshal([]byte(out), &shown); err != nil || code != 0 || shown.State != "over" || shown.Outcome != "passed" {
		t.Errorf("work show: %v %d %s\n%s", err, code, msg, out)
	}
}

// TestKilledWork kills carboy at every step of work, as soon as the step's file is
// there, which mostly is before its record, and at random moments. Whoever goes on loses
// no attempt, doubles none and runs none that is not on record.
func TestKilledWork(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("CARBOY_TEST_SEED"), 10, 64); err == nil {
		seed = s
	}
	random := rand.New(rand.NewPCG(seed, 1))
	t.Logf("CARBOY_TEST_SEED=%d", seed)
	betweens := 0
	finish := func(w *workDen, attempts int) {
		w.t.Helper()
		if over, code, _ := w.killed(func() bool { return false }); !over || code != 0 {
			w.t.Fatalf("exit code %d: %v", code, w.steps())
		}
		w.whole(attempts)
	}
	t.Run("steps", func(t *testing.T) {
		todo := []step{
			{1, "pending", "", "", ""}, {1, "judging", "", "", ""}, {1, "recorded", "", "", ""}, {2, "pending", "", "", ""},
			{2, "judging", "", "", ""}, {2, "recorded", "", "", ""}, {2, "pushing", "", "", ""}, {2, "pushed", "", "", ""},
		}
		// A step may be over before it is seen, and an agent may begin before its step is
		// stopped, which loses the attempt: what a work missed, the next one is killed at.
		for n := 0; len(todo) > 0; n++ {
			if n == 20 {
				t.Fatalf("no work was killed at %v", todo)
			}
			w := newWorkDen(t)
			var missed []step
			over, code := false, 0
			for _, s := range todo {
				var between bool
				if !over {
					over, code, between = w.killed(w.at(s.Number, s.State))
				}
				if over && s.State != "pushed" {
					missed = append(missed, s)
					continue
				}
				if between {
					betweens++
				}
				if id := w.id(); s.Number == 1 && s.State == "pending" && between && len(w.files()) == 1 {
					// It never began, and says so; the next begins anew.
					if _, msg, code := w.carboy("work", "--continue", id); code != 1 || !strings.Contains(msg, "never began") {
						t.Errorf("%d %s", code, msg)
					}
				}
				t.Logf("killed at %s; before its record: %v", s, between)
			}
			todo = missed
			lost := 0
			for _, s := range w.steps() {
				if s.Failing == "lost" {
					lost++
				}
			}
			switch {
			case over && code == 11 && lost > 1: // three attempts, and the one that was left could not pass
			case over && code != 0:
				t.Fatalf("it ended with %d: %v", code, w.steps())
			case over:
				w.whole(2 + lost)
			default:
				finish(w, 2+lost) // what an agent has done is not lost
			}
		}
	})
	t.Run("running", func(t *testing.T) {
		w := newWorkDen(t)
		over, _, between := w.killed(w.at(1, "running"))
		if between { // it did not happen; now it does
			betweens++
			over, _, _ = w.killed(func() bool { return len(w.records("run.started")) > 0 })
		}
		if over {
			t.Fatal(w.steps())
		}
		finish(w, 3)
		if s := w.steps(); s[2].State != "recorded" || s[2].Failing != "lost" || s[2].Outcome != "unavailable" {
			t.Errorf("the first attempt: %+v", s[2])
		}
	})
	t.Run("random", func(t *testing.T) {
		w := newWorkDen(t)
		kills := 0
		for range 2 {
			after := time.Now().Add(time.Duration(random.Int64N(int64(1500 * time.Millisecond))))
			over, code, between := w.killed(func() bool { return time.Now().After(after) })
			if over {
				if code != 0 && code != 11 {
					t.Fatalf("exit code %d: %v", code, w.steps())
				}
				break
			}
			if kills++; between {
				betweens++
			}
		}
		over, code, _ := w.killed(func() bool { return false })
		t.Logf("%d kills, exit code %d, %v", kills, code, w.steps())
		switch steps := w.steps(); {
		case !over:
			t.Fatal(steps)
		case code == 0:
			w.whole(steps[len(steps)-1].Number)
		case code != 11 || steps[len(steps)-1].Number != 3:
			t.Errorf("exit code %d: %v", code, steps)
		}
	})
	t.Run("between", func(t *testing.T) {
		for n := 0; betweens == 0; n++ {
			if n == 60 {
				t.Fatal("none was killed between a step's file and its record: this shows less than it should")
			}
			w := newWorkDen(t)
			if _, _, between := w.killed(w.at(1, "pending")); between {
				betweens++
			}
		}
	})
}
