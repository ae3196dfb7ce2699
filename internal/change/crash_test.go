package change

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain lets the test binary act as a process that lands or undoes and is
// killed.
func TestMain(m *testing.M) {
	if what := os.Getenv("CHANGE_TEST_CHILD"); what != "" {
		child(what)
		return
	}
	os.Exit(m.Run())
}

func child(what string) {
	at, _ := strconv.Atoi(os.Getenv("CHANGE_TEST_STEP"))
	n := 0
	fault := func(step, p string) error {
		if n++; n == at || step+" "+p == os.Getenv("CHANGE_TEST_AT") {
			unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
		return nil
	}
	if room, _ := strconv.ParseUint(os.Getenv("CHANGE_TEST_FSIZE"), 10, 64); room > 0 {
		signal.Ignore(unix.SIGXFSZ) // so that writes fail, git's too
		_ = unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: room, Max: room})
	}
	plain := os.Getenv("CHANGE_TEST_PLAIN") != ""
	opts := LandOptions{IncludeProtected: true}
	if text := os.Getenv("CHANGE_TEST_LAND"); text != "" {
		if err := json.Unmarshal([]byte(text), &opts); err != nil {
			panic(err)
		}
	}
	opts.fault, opts.plain = fault, plain
	s, err := OpenSet(os.Getenv("CHANGE_TEST_RUN"))
	if err == nil && what == "land" {
		var rep *LandReport
		if rep, err = Land(context.Background(), s, opts); err == nil {
			fmt.Println(rep.Withheld)
		}
	} else if err == nil {
		_, err = Undo(context.Background(), s, UndoOptions{fault: fault, plain: plain})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// killAt lets a process land or undo a run, and die of kill -9 before a step.
func killAt(t *testing.T, run, what, at string, opts LandOptions) {
	t.Helper()
	text, err := json.Marshal(opts)
	must(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CHANGE_TEST_CHILD="+what, "CHANGE_TEST_RUN="+run, "CHANGE_TEST_AT="+at, "CHANGE_TEST_LAND="+string(text))
	out, err := cmd.CombinedOutput()
	var ee *exec.ExitError
	if !errors.As(err, &ee) || ee.ExitCode() != -1 {
		t.Fatalf("%s was not killed before %q: %v %s", what, at, err, out)
	}
}

// busy is a workspace and a stream with every kind of op, and the trees
// before and after landing.
func busy(t testing.TB) (w *world, s *Set, before, after map[string]string) {
	t.Helper()
	w = newWorldAt(t, fastTemp(t), fastTemp(t), map[string]string{
		"edit": "one\ntwo\n", "chmod": "x\n", "gone": "bye\n", "big": strings.Repeat("big", 50000),
		"tree/a": "a", "tree/sub/b": "b", "tree/l": "-> a", "link": "-> edit", "swap": "file",
		"todir/x": "x", "todir/y/z": "z", "dir/x": "x", "dir/y": "y",
	})
	before = treeOf(t, w.ws)
	u := w.upper()
	u.file("edit", "one\nTWO\n", 0o644).file("chmod", "x\n", 0o755).gone("gone").gone("tree")
	u.file("big", strings.Repeat("BIG", 60000), 0o600).link("link", "dir/x")
	u.opaque("swap", 0o755).file("swap/in", "in", 0o600).file("todir", "now a file", 0o644)
	u.file("dir/x", "changed", 0o644).gone("dir/y").opaque("fresh", 0o555).file("fresh/deep/f", "f", 0o400)
	u.link("fresh/l", "deep/f").dir("fresh/empty", 0o700).file("plain", "new", 0o644)
	s = w.collect(u.bytes())
	w.land(s, LandOptions{IncludeProtected: true})
	after = treeOf(t, w.ws)
	if _, err := Undo(context.Background(), s, UndoOptions{}); err != nil {
		t.Fatal(err)
	}
	if d := diffTrees(before, treeOf(t, w.ws)); d != "" {
		t.Fatal(d)
	}
	return w, s, before, after
}

// TestKill kills landings and undos at every step and at random moments, by
// turns; each time every file is its old or its new self, and after Recover
// all are the one or all the other.
func TestKill(t *testing.T) {
	for _, plain := range []string{"", "1"} {
		t.Run("plain="+plain, func(t *testing.T) { testKill(t, plain) })
	}
}

func testKill(t *testing.T, plain string) {
	w, _, before, after := busy(t)
	rng := rand.New(rand.NewSource(1))
	rounds := 200
	if testing.Short() {
		rounds = 20
	}
	landed := false
	killed, full := 0, 0
	for round := range rounds {
		what := "land"
		if landed {
			what = "undo"
		}
		step := 0
		if round%3 != 0 {
			step = 1 + rng.Intn(60)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "CHANGE_TEST_CHILD="+what, "CHANGE_TEST_RUN="+w.run,
			"CHANGE_TEST_STEP="+strconv.Itoa(step), "CHANGE_TEST_PLAIN="+plain)
		var out strings.Builder
		cmd.Stderr = &out
		must(t, cmd.Start())
		done := make(chan struct{})
		if step == 0 {
			wait := time.Duration(rng.Intn(40)) * time.Millisecond
			go func() {
				select {
				case <-time.After(wait):
					cmd.Process.Kill()
				case <-done:
				}
			}()
		}
		err := cmd.Wait()
		close(done)
		var ee *exec.ExitError
		switch {
		case err == nil:
			full++
		case errors.As(err, &ee) && ee.ExitCode() == -1:
			killed++
		default:
			t.Fatalf("round %d: %s: %v: %s", round, what, err, out.String())
		}
		eachOldOrNew(t, treeOf(t, w.ws), before, after)
		if _, err := Recover(context.Background(), w.run); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		now := treeOf(t, w.ws)
		db, da := diffTrees(before, now), diffTrees(after, now)
		if db != "" && da != "" {
			t.Fatalf("round %d: step %d of %s: neither old:\n%s\nnor new:\n%s", round, step, what, db, da)
		}
		landed = da == ""
	}
	t.Logf("%d killed, %d ran through", killed, full)
	if want := rounds / 2; killed < want {
		t.Errorf("only %d of %d were killed, want %d", killed, rounds, want)
	}
}

func eachOldOrNew(t *testing.T, now, before, after map[string]string) {
	t.Helper()
	for p, v := range now {
		if strings.Contains(p, ".carboy-") || p == "." {
			continue
		}
		if v != before[p] && v != after[p] {
			t.Errorf("%s is %q, neither %q nor %q", p, v, before[p], after[p])
		}
	}
	// A name that exists before and after never goes missing, outside of
	// directories that are replaced whole.
	for p := range before {
		if _, ok := after[p]; ok && now[p] == "" {
			t.Errorf("%s is missing", p)
		}
	}
}

// TestFaults breaks every step in turn, once or from then on.
func TestFaults(t *testing.T) {
	for _, plain := range []bool{false, true} {
		for _, lasting := range []bool{false, true} {
			for what, errno := range map[string]error{"land": unix.ENOSPC, "undo": unix.EIO} {
				t.Run(fmt.Sprintf("%s plain=%v lasting=%v", what, plain, lasting), func(t *testing.T) {
					testFaults(t, what, plain, lasting, errno)
				})
			}
		}
	}
}

func testFaults(t *testing.T, what string, plain, lasting bool, errno error) {
	w, s, old, new := busy(t)
	land := func(fault func(string, string) error) error {
		_, err := Land(context.Background(), s, LandOptions{IncludeProtected: true, fault: fault, plain: plain})
		return err
	}
	undo := func(fault func(string, string) error) error {
		_, err := Undo(context.Background(), s, UndoOptions{fault: fault, plain: plain})
		return err
	}
	if what == "undo" {
		must(t, land(nil))
		old, new, land, undo = new, old, undo, land
	}
	steps := 0
	for n := 1; ; n++ {
		count, hit := 0, ""
		err := land(func(step, p string) error {
			if count++; count == n || lasting && count > n {
				hit = step + " " + p
				return errno
			}
			return nil
		})
		if hit == "" {
			must(t, err)
			break
		}
		steps++
		var rb *rollbackError
		switch {
		case err == nil: // failed while tidying
		case !errors.Is(err, errno):
			t.Fatalf("%s: got %v", hit, err)
		case errors.As(err, &rb):
			if !lasting {
				t.Fatalf("%s: %v", hit, err)
			}
		default:
			if d := diffTrees(old, treeOf(t, w.ws)); d != "" {
				t.Fatalf("%s: not as before:\n%s", hit, d)
			}
		}
		_, rerr := Recover(context.Background(), w.run)
		must(t, rerr)
		want := old
		if err == nil {
			want = new
		}
		if d := diffTrees(want, treeOf(t, w.ws)); d != "" {
			t.Fatalf("%s: after recovery:\n%s", hit, d)
		}
		if err == nil {
			must(t, undo(nil))
		}
	}
	if steps < 20 {
		t.Errorf("only %d steps were broken", steps)
	}
}
