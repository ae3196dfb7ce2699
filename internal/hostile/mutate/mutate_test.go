package main

import (
	"errors"
	"fmt"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/testenv"
)

const root = "../../.."

// TestMutants checks that each change fits the source, alone and with all others.
// What the mutants do is seen by running this program.
func TestMutants(t *testing.T) {
	seen := map[string]bool{"baseline": true}
	b := builder{root: root, fset: token.NewFileSet(), dirs: map[string][]*source{}}
	for _, m := range mutants {
		if seen[m.Name] || m.Name == "" || m.Why == "" || len(m.Changes) == 0 {
			t.Errorf("%s: a name of its own, a reason and changes are needed: %+v", m.Name, m)
		}
		seen[m.Name] = true
		for _, c := range m.Changes {
			if err := b.add(m.Name, c); err != nil {
				t.Errorf("%s: %v", m.Name, err)
			}
		}
	}
	if t.Failed() {
		return
	}
	if _, err := overlay(root, t.TempDir(), mutants); err != nil {
		t.Error(err)
	}
}

var (
	promise   = regexp.MustCompile(`(?m)^\*\*([A-Z][0-9])\*\* `)
	namedTest = regexp.MustCompile("`([a-z0-9/]+\\.Test[A-Za-z0-9]+(?:/[A-Za-z0-9]+)?)`")
)

// TestEveryPromiseHasMutants: each promise of docs/promises.md has a mutant, and
// a mutant's test is one that the page names with the promise.
func TestEveryPromiseHasMutants(t *testing.T) {
	b, err := os.ReadFile(root + "/docs/promises.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	tests, at := map[string][]string{}, promise.FindAllStringSubmatchIndex(page, -1)
	for i, p := range at {
		end := len(page)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		id := page[p[2]:p[3]]
		for _, n := range namedTest.FindAllStringSubmatch(page[p[0]:end], -1) {
			tests[id] = append(tests[id], n[1])
		}
		if !slices.ContainsFunc(mutants, func(m mutant) bool { return m.Promise == id }) {
			t.Errorf("promise %s needs a mutant, to show that its tests can fail", id)
		}
	}
	for _, m := range mutants {
		if !slices.Contains(tests[m.Promise], m.Test) {
			t.Errorf("%s: docs/promises.md does not name %s with %q", m.Name, m.Test, m.Promise)
		}
	}
}

// TestChanges checks each kind of change, and the errors for text that fits
// nowhere or in several places.
func TestChanges(t *testing.T) {
	tree := t.TempDir()
	const text = `package p

func f(a, b int) int {
	if a > 0 &&
		b > 0 { // why
		a++
	}
	if err := g(a); err != nil {
		return 1
	}
	switch {
	case a == 3:
		b = 2
	}
	return max(a, b)
}

func g(int) error { return nil }
`
	if err := os.WriteFile(filepath.Join(tree, "p.go"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		change
		want string // in the mutated file, or in the error
	}{
		{change{kind: off, text: "a>0 && b"}, `!mutation.On("m") && (a > 0 &&`},
		{change{kind: on, text: "a == 3"}, `case mutation.On("m") || (a == 3):`},
		{change{kind: drop, text: "b = 2"}, `if !mutation.On("m") { b = 2 }`},
		{change{kind: drop, text: "a++"}, `if !mutation.On("m") { a++ }`},
		{change{kind: drop, text: "g(a)"}, `if !mutation.On("m") { if err := g(a)`},
		{change{kind: swap, text: "max(a, b)", new: "a"}, `mutation.Pick("m", a, max(a, b))`},
		{change{kind: off, text: "a"}, "is in 2 conditions"},
		{change{kind: drop, text: "nothing"}, "is in 0 statements"},
	} {
		x.dir = "."
		dir := t.TempDir()
		_, err := overlay(tree, dir, []mutant{{Name: "m", Changes: []change{x.change}}})
		got := fmt.Sprint(err)
		if err == nil {
			b, rerr := os.ReadFile(filepath.Join(dir, "1.go"))
			if rerr != nil {
				t.Fatal(rerr)
			}
			got = string(b)
		}
		if !strings.Contains(got, x.want) {
			t.Errorf("%s %q: want %s in\n%s", x.kind, x.text, x.want, got)
		}
	}
}

// TestVerdict checks what counts as a test that failed, and what as an error.
func TestVerdict(t *testing.T) {
	tests := []string{"TestA", "TestB/sub"}
	exit, crash := exitError(t, 1), exitError(t, crashCode)
	for _, x := range []struct {
		out  string
		err  error
		want outcome
	}{
		{"--- FAIL: TestA (0.1s)\n    x:\n    --- FAIL: TestB/sub (0s)\n", exit, killed},
		{"--- FAIL: TestA (0.1s)\n    x:\n    --- PASS: TestB/sub (0s)\n", exit, astray},
		{"--- FAIL: TestAB (0.1s)\n    x:\n    --- FAIL: TestB/sub (0s)\n", exit, astray},
		{"--- PASS: TestA\n", nil, survived},
		{"--- SKIP: TestA\n", nil, notRun},
		{"panic: test timed out after 1m\n--- FAIL: TestA (0.1s)\n", exit, hung},
		{"--- FAIL: TestA (0.1s)\n--- FAIL: TestB/sub\npanic: oh\n", exit, crashed},
		{"--- FAIL: TestA (0.1s)\n", os.ErrClosed, crashed},
		{"--- FAIL: TestA (0.1s)\n--- FAIL: TestB/sub\n", crash, crashed},
	} {
		if got := verdict(tests, x.out, x.err); got != x.want {
			t.Errorf("%q, %v is %s, want %s", x.out, x.err, got, x.want)
		}
	}
}

func exitError(t *testing.T, code int) error {
	t.Helper()
	err := exec.Command("/bin/sh", "-c", fmt.Sprint("exit ", code)).Run()
	if err == nil {
		t.Fatalf("exit %d is no error", code)
	}
	return err
}

func TestMain(m *testing.M) {
	wardenMain()
	os.Exit(m.Run())
}

// TestWarden checks that what a program leaves behind is ended with its run, that
// other runs are left alone, and which exit codes it returns.
func TestWarden(t *testing.T) {
	r := &runner{root: t.TempDir(), tmp: t.TempDir()}
	run := func(script string, within time.Duration) (string, int) {
		t.Helper()
		out, err := r.run(t.Context(), within, r.root, nil, "/bin/sh", "-c", script)
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			return out, crashCode
		}
		if exit == nil {
			return out, 0
		}
		return out, exit.ExitCode()
	}
	const leave = "setsid sh -c 'echo $$ >%s; exec sleep 600' </dev/null >/dev/null 2>&1 & until [ -s %[1]s ]; do sleep 0.01; done; "
	left := func(name string) testenv.Process {
		b, _ := os.ReadFile(filepath.Join(r.root, name))
		pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		p, _ := testenv.ReadProcess(pid)
		return p
	}
	other := make(chan int)
	go func() {
		_, code := run(fmt.Sprintf(leave, "other")+"until [ -e over ]; do sleep 0.01; done; exit 4", time.Minute)
		other <- code
	}()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if b, _ := os.ReadFile(filepath.Join(r.root, "other")); len(b) > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the other run does not begin")
		}
	}
	beside := left("other")
	if out, code := run(fmt.Sprintf(leave, "mine")+"echo said; exit 3", time.Minute); out != "said\n" || code != 3 {
		t.Errorf("%q, exit %d", out, code)
	}
	if p := left("mine"); p.PID != 0 {
		t.Errorf("left behind: %+v", p)
	}
	if !beside.Alive() {
		t.Error("what the run beside it had started was ended too")
	}
	if err := os.WriteFile(filepath.Join(r.root, "over"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if code := <-other; code != 4 || beside.Alive() {
		t.Errorf("exit %d, left: %v", code, beside.Alive())
	}
	if _, code := run("kill -9 $$", time.Minute); code != crashCode {
		t.Errorf("killed: exit %d", code)
	}
	if _, code := run(fmt.Sprintf(leave, "late")+"sleep 600", 500*time.Millisecond); code == 0 || left("late").PID != 0 {
		t.Errorf("out of time: exit %d, left %+v", code, left("late"))
	}
}
