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

	"github.com/carboy/carboy"
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

// stopVariable names the step at which carboy stops itself, as stop.String has it.
const stopVariable = "CARBOY_TEST_STOP"

// stop is one of the two halves of a step: its file is there, or its record too.
type stop struct {
	step
	recorded bool
}

func (s stop) String() string { return fmt.Sprint(s.step, " ", s.recorded) }

// stopAtStep has this carboy stop, as by SIGSTOP, at the step that stopVariable names.
func stopAtStep() {
	if want := os.Getenv(stopVariable); want != "" {
		atStep = func(t carboy.Attempt, recorded bool) {
			if (stop{step{Number: t.Number, State: string(t.State)}, recorded}).String() == want {
				syscall.Kill(os.Getpid(), syscall.SIGSTOP)
				select {} // another thread may get the signal, and stop this one later
			}
		}
	}
}

// killedAt kills the work where at says. It fails if the work ends before.
func (w *workDen) killedAt(at stop) {
	w.t.Helper()
	over, code, between := w.killed(nil, stopVariable+"="+at.String())
	if over {
		w.t.Fatalf("it ended before %s with %d: %v", at, code, w.steps())
	}
	if between == at.recorded {
		w.t.Errorf("killed at %s, and the newest step has its record: %t", at, !between)
	}
}

// killed runs the work, or goes on with it, and kills carboy with all its might when
// when says so, which is asked again and again, or, without one, when carboy has stopped
// itself. over: it ended before, with that code. between: the newest step's file was
// there, and not its record.
func (w *workDen) killed(when func() bool, env ...string) (over bool, code int, between bool) {
	w.t.Helper()
	args := []string{"work", "--agent", "a", "--prompt", "make it pass"}
	if id := w.id(); id != "" {
		args = []string{"work", "--continue", id}
	}
	cmd := w.command(args...)
	cmd.Env = append(cmd.Env, env...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	if when == nil {
		when = func() bool {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
			_, after, _ := bytes.Cut(b, []byte(") "))
			return err == nil && bytes.HasPrefix(after, []byte("T"))
		}
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

// TestKilledWork kills carboy at both halves of every step of work, and at random moments.
// Whoever goes on loses no attempt, doubles none and runs none that is not on record.
func TestKilledWork(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("CARBOY_TEST_SEED"), 10, 64); err == nil {
		seed = s
	}
	random := rand.New(rand.NewPCG(seed, 1))
	t.Logf("CARBOY_TEST_SEED=%d", seed)
	finish := func(w *workDen, attempts int) {
		w.t.Helper()
		if over, code, _ := w.killed(func() bool { return false }); !over || code != 0 {
			w.t.Fatalf("exit code %d: %v", code, w.steps())
		}
		w.whole(attempts)
	}
	for _, recorded := range []bool{false, true} {
		if recorded && testing.Short() {
			continue
		}
		t.Run(fmt.Sprintf("recorded=%t", recorded), func(t *testing.T) {
			w := newWorkDen(t)
			for _, s := range []step{
				{Number: 1, State: "pending"}, {Number: 1, State: "running"}, {Number: 1, State: "judging"}, {Number: 1, State: "recorded"},
				{Number: 2, State: "pending"}, {Number: 2, State: "running"}, {Number: 2, State: "judging"}, {Number: 2, State: "recorded"},
				{Number: 2, State: "pushing"}, {Number: 2, State: "pushed"},
			} {
				if recorded && s.State == "running" {
					continue // its attempt is lost, below
				}
				w.killedAt(stop{s, recorded})
				if id := w.id(); !recorded && s.String() == "1 pending" {
					// It never began, and says so; the next begins anew.
					if _, msg, code := w.carboy("work", "--continue", id); code != 1 || !strings.Contains(msg, "never began") {
						t.Errorf("%d %s", code, msg)
					}
				}
			}
			finish(w, 2)
		})
	}
	t.Run("running", func(t *testing.T) {
		w := newWorkDen(t)
		w.killedAt(stop{step{Number: 1, State: "running"}, true})
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
			over, code, _ := w.killed(func() bool { return time.Now().After(after) })
			if over {
				if code != 0 && code != 11 {
					t.Fatalf("exit code %d: %v", code, w.steps())
				}
				break
			}
			kills++
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
}
