package main

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/testenv"
)

const root = "../../.."

// TestTable: the table is about the code and the tests that there are. What
// the mutants do is seen by running this program.
func TestTable(t *testing.T) {
	seen, tests := map[string]bool{}, map[string]map[string]bool{}
	for _, m := range mutants() {
		if seen[m.Name] || m.Name == "" || m.Why == "" || m.Says == "" || len(m.Tests) == 0 || len(m.edits) == 0 {
			t.Errorf("%s: a name of its own, a reason, tests, what they say and edits are needed: %+v", m.Name, m)
		}
		seen[m.Name] = true
		changed := map[string]string{}
		for _, e := range m.edits {
			if strings.HasSuffix(e.file, "_test.go") || strings.Contains(e.file, "internal/hostile/") {
				t.Errorf("%s: %s is a test: a mutant turns a defence off, not the attack", m.Name, e.file)
			}
			src, ok := changed[e.file]
			if !ok {
				b, err := os.ReadFile(filepath.Join(root, e.file))
				if err != nil {
					t.Errorf("%s: %v", m.Name, err)
					continue
				}
				src = string(b)
			}
			out, err := e.apply(src)
			if err != nil {
				t.Errorf("%s: %v", m.Name, err)
				continue
			}
			if strings.HasSuffix(e.file, ".go") {
				if _, err := parser.ParseFile(token.NewFileSet(), e.file, out, parser.SkipObjectResolution); err != nil {
					t.Errorf("%s: after the edit: %v", m.Name, err)
				}
			}
			if out == src {
				t.Errorf("%s: an edit of %s changes nothing", m.Name, e.file)
			}
			changed[e.file] = out
		}
		if tests[m.Package] == nil {
			tests[m.Package] = testenv.TestsOf(t, filepath.Join(root, m.Package))
		}
		for _, name := range m.Tests {
			top, _, _ := strings.Cut(name, "/")
			if !tests[m.Package][top] {
				t.Errorf("%s: there is no %s in %s", m.Name, top, m.Package)
			}
		}
	}
}

var (
	promiseLine = regexp.MustCompile(`(?m)^\*\*([A-Z][0-9])\*\* `)
	namedTest   = regexp.MustCompile("`internal/hostile\\.(Test[A-Za-z0-9]+)")
)

// TestEveryPromiseHasMutants: each promise of docs/promises.md has a defence
// that was seen missing, and each hostile test was seen red.
func TestEveryPromiseHasMutants(t *testing.T) {
	b, err := os.ReadFile(root + "/docs/promises.md")
	if err != nil {
		t.Fatal(err)
	}
	promises, reddens := map[string]int{}, map[string]bool{}
	for _, m := range mutants() {
		promises[m.Promise]++
		for _, name := range m.Tests {
			if m.Package == "./internal/hostile" {
				top, _, _ := strings.Cut(name, "/") // a part that fails, fails its test
				reddens[top] = true
			}
		}
	}
	page := string(b)
	for _, p := range promiseLine.FindAllStringSubmatch(page, -1) {
		if why := unshown[p[1]]; (promises[p[1]] == 0) != (why != "") {
			t.Errorf("promise %s needs a mutant, to show that its tests can fail, or a reason in unshown (%q)", p[1], why)
		}
		delete(promises, p[1])
	}
	for p := range promises {
		t.Errorf("mutants are of promise %q, which the page does not have", p)
	}
	for _, n := range namedTest.FindAllStringSubmatch(page, -1) {
		if why := unseen[n[1]]; reddens[n[1]] == (why != "") {
			t.Errorf("%s: a mutant must make it fail, or unseen must say why none does (%q)", n[1], why)
		}
		delete(unseen, n[1])
	}
	for name := range unseen {
		t.Errorf("unseen names %s, which the page does not", name)
	}
}

// unshown are the promises without a mutant, each for its reason.
var unshown = map[string]string{}

// unseen are the hostile tests that no mutant makes fail, each for its reason.
var unseen = map[string]string{
	"TestW3TLS":               "where TLS is opened, a server name that passes leads nowhere else: the request inside is compared as well, and goes to the connection's name; TestServerName fails with the comparison off",
	"TestS1Devices":           "the devices are the embedded kernel's own: no line of carboy's shows those of the host",
	"TestA1Records":           "its flood takes half a minute; TestA1TamperedLog, TestA1EveryDecision and TestA2NoSecretInRecords fail with its defences off",
	"TestS4Floods":            "the limits that its floods meet are off for TestS4ForkBomb, TestS4Memory and TestS4KernelBuffers",
	"TestT1FixturesAreMapped": "it compares tables: it fails for a fixture or a defence that one of them lacks",
	"TestS4Inodes":            "its flood alone takes half a minute; TestS4KernelBuffers fails with the same meter off",
}

// TestVerdict: what counts as a test that failed for the attack, and what as an
// error of its own.
func TestVerdict(t *testing.T) {
	m := mutant{Tests: []string{"TestA", "TestB/sub"}, Says: "got through", edits: []edit{{}}}
	exit, crash := exitError(t, 1), exitError(t, crashCode)
	for _, x := range []struct {
		out  string
		err  error
		want outcome
	}{
		{"--- FAIL: TestA (0.1s)\n    x: got through\n    --- FAIL: TestB/sub (0s)\n", exit, killed},
		{"--- FAIL: TestA (0.1s)\n    x: got through\n    --- PASS: TestB/sub (0s)\n", exit, astray},
		{"--- FAIL: TestA (0.1s)\n    --- FAIL: TestB/sub (0s)\n the bottle can't be made", exit, astray},
		{"--- FAIL: TestAB (0.1s)\n    x: got through\n    --- FAIL: TestB/sub (0s)\n", exit, astray},
		{"--- PASS: TestA\n", nil, survived},
		{"--- SKIP: TestA\n", nil, failed},
		{"panic: test timed out after 1m\n--- FAIL: TestA (0.1s)\n", exit, hung},
		{"--- FAIL: TestA (0.1s)\ngot through\n--- FAIL: TestB/sub\npanic: oh\n", exit, crashed},
		{"--- FAIL: TestA (0.1s)\n", os.ErrClosed, crashed},
		{"--- FAIL: TestA (0.1s)\ngot through\n--- FAIL: TestB/sub\n", crash, crashed},
	} {
		if got, _ := verdict(m, x.out, x.err); got != x.want {
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

// TestWarden: what a program leaves behind is ended with its run, and nothing of
// another run's is; its exit code is what it was, and a signal is a crash.
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
