package hostile

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/scenario"
	"github.com/carboy/carboy/internal/testenv"
	"github.com/carboy/carboy/internal/trace"
)

// fixture is a program that means harm, as data: testdata/hostile/NAME.
type fixture struct {
	name, dir string
	scenario  scenario.Scenario
	promise   string
	defence   string
	outcome   scenario.Outcome
	reason    scenario.Reason
	sees      []expected
	never     string // text that no slice has
	// What the builder makes; empty: nothing.
	bomb, forged, setuid, secret string
	repository, afterControl     bool
}

// expected is an entry of a slice: text that its fields contain.
type expected struct {
	slice  string
	fields map[string]string
}

// defences says, for each defence, why the attacks on it fail.
var defences = map[string]string{
	"process-limit":              "the kernel inside counts processes, and a scenario that meets the limit is ended by it",
	"wall-clock":                 "the clock is outside of the sandbox",
	"output-limit":               "output is counted on its way out",
	"disk-limit":                 "writes go to one bounded file",
	"memory-limit":               "the sandbox's memory is metered from outside",
	"every-family-is-seen":       "sockets, addresses and what the gateway was asked are facts, whatever came of them",
	"no-capabilities":            "no process inside has a capability",
	"no-new-privileges":          "no_new_privs, and mounts without set-user-id",
	"nameless-programs":          "a program is described by the file that was loaded, when it was",
	"content-digests":            "shells are known by their content",
	"trace-outside-the-workload": "facts come from the kernel's own objects",
	"init-is-another-user":       "process 1 belongs to a user of its own",
	"calls-not-served":           "the kernel inside does not have them, and says that they were tried",
	"siblings-apart":             "each scenario has a sandbox of its own, and they run side by side",
	"protected-paths":            "what a host runs by itself lands only when a person says so",
	"descendants-only":           "who is no ancestor may not trace",
	"no-terminal":                "no terminal of the host is given, and pushing characters does not exist",
	"resolved-inside":            "paths are resolved by one kernel, in its own file system",
}

func loadFixtures(t *testing.T) []*fixture {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(sourceRoot(t), "testdata/hostile"))
	if err != nil {
		t.Fatal(err)
	}
	var out []*fixture
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, loadFixture(t, filepath.Join(sourceRoot(t), "testdata/hostile", e.Name())))
		}
	}
	return out
}

func loadFixture(t *testing.T, dir string) *fixture {
	t.Helper()
	name := filepath.Join(dir, "fixture.yaml")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	doc, v, err := document.Parse(name, b)
	if err != nil {
		t.Fatal(err)
	}
	m := v.Mapping("promise", "defence", "command", "timeout", "memory", "pids", "disk", "output", "exit_code",
		"outcome", "reason", "sees", "never", "bomb", "forged", "setuid", "secret", "repository", "after_control")
	f := &fixture{
		name: filepath.Base(dir), dir: dir, promise: m.Need("promise").Text(), defence: m.Need("defence").Text(),
		outcome: scenario.Outcome(m.Need("outcome").OneOf("completed", "failed", "timed_out", "skipped")), reason: scenario.Reason(m.Get("reason").Text()),
		never: m.Get("never").Text(), bomb: m.Get("bomb").Text(), forged: m.Get("forged").Text(), setuid: m.Get("setuid").Text(), secret: m.Get("secret").Text(),
		repository: m.Get("repository").Text() == "true", afterControl: m.Get("after_control").Text() == "true",
	}
	f.scenario = scenario.Scenario{
		Name: f.name, Timeout: m.Need("timeout").Duration(), Memory: m.Get("memory").Size(), Pids: m.Get("pids").Int(0, 1, 1000),
		Disk: m.Get("disk").Size(), Output: m.Get("output").Size(), Expected: int(m.Get("exit_code").Int(0, 0, 255)),
	}
	for _, w := range m.Need("command").List() {
		f.scenario.Command = append(f.scenario.Command, w.Text())
	}
	for _, s := range m.Get("sees").List() {
		x := expected{fields: map[string]string{}}
		keys, values := s.Entries()
		for i, k := range keys {
			if k == "slice" {
				x.slice = values[i].Text()
			} else {
				x.fields[k] = values[i].Text()
			}
		}
		f.sees = append(f.sees, x)
	}
	if err := doc.Err(); err != nil {
		t.Fatal(err)
	}
	return f
}

// build makes the fixture's directory: its files, and what must not be committed.
func (f *fixture) build(t *testing.T, ws, outside string) {
	t.Helper()
	err := filepath.WalkDir(f.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(f.dir, path)
		if err != nil || rel == "." || rel == "README.md" || rel == "fixture.yaml" {
			return err
		}
		to := filepath.Join(ws, strings.Replace(rel, "dot-git", ".git", 1))
		if d.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, b, 0o755)
	})
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string, b []byte, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(ws, name), b, mode.Perm()); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(ws, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	file("a.txt", []byte("hello\n"), 0o644) // what controls read
	if f.bomb != "" {
		var z bytes.Buffer
		w := gzip.NewWriter(&z)
		if _, err := io.CopyN(w, zeros{}, 100<<20); err != nil {
			t.Fatal(err)
		}
		w.Close()
		file(f.bomb, z.Bytes(), 0o644)
	}
	if f.forged != "" {
		b := trace.NewBatch(nil)
		b = (&trace.Fact{Seq: 1, Time: time.Now().UnixNano(), Op: trace.Exec, PID: 7, Path: "/usr/bin/" + f.never, Args: []string{f.never}}).Append(b)
		file(f.forged, b, 0o644)
	}
	if f.setuid != "" {
		b, err := os.ReadFile("/usr/bin/id")
		if err != nil {
			testenv.Missing(t, "/usr/bin/id", "apt-get install coreutils")
		}
		file(f.setuid, b, 0o755)
		if os.Geteuid() == 0 {
			// Another's than the scenario's, or its rights are those that one has.
			if err := os.Chown(filepath.Join(ws, f.setuid), otherUser, otherUser); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(filepath.Join(ws, f.setuid), 0o755|os.ModeSetuid); err != nil {
			t.Fatal(err)
		}
	}
	if f.secret != "" {
		if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("CARBOY-CANARY-of-the-host"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if f.repository {
		f.buildRepository(t, ws)
	}
}

const otherUser = 54321

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// buildRepository commits scenarios, then arms the repository.
func (f *fixture) buildRepository(t *testing.T, ws string) {
	t.Helper()
	git := testenv.Need(t, "git", "apt-get install git")
	os.WriteFile(filepath.Join(ws, scenario.FileName), []byte("scenarios: [{name: approved, command: ['true']}]\n"), 0o644)
	hooks := filepath.Join(ws, ".git")
	armed := filepath.Join(t.TempDir(), "armed")
	if err := os.Rename(hooks, armed); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "base"}} {
		c := exec.Command(git, args...)
		c.Dir, c.Env = ws, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + armed}
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	more, err := os.ReadFile(filepath.Join(armed, "more-config"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.OpenFile(filepath.Join(ws, ".git/config"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	config.Write(more)
	config.Close()
	for _, h := range []string{"post-checkout", "pre-commit"} {
		b, err := os.ReadFile(filepath.Join(armed, "hooks", h))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(ws, ".git/hooks", h), b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// What is in the work tree is the change's, and says something else.
	os.WriteFile(filepath.Join(ws, scenario.FileName), []byte("scenarios: [{name: of-the-change, command: ['true']}]\n"), 0o644)
}

// TestT1Fixtures runs each program that means harm as a scenario, with an honest one
// beside it. The outcome is the one that the fixture says, the kernel saw what it
// tried, and the honest one completes whatever becomes of the other.
func TestT1Fixtures(t *testing.T) {
	h := newHost(t)
	turns := make(chan struct{}, 2)
	for _, f := range loadFixtures(t) {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			turns <- struct{}{}
			defer func() { <-turns }()
			f.try(t, h)
		})
	}
}

func (f *fixture) try(t *testing.T, h *host) {
	ws, outside := t.TempDir(), t.TempDir()
	f.build(t, ws, outside)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	set := &carboy.ScenarioSet{Scenarios: []scenario.Scenario{f.scenario, {Name: "control", Command: []string{"sh", "-c", "cat /etc/hostname && true"}, Timeout: patience}}}
	o := carboy.TraceOptions{
		Scenarios: set, Workspace: ws, Each: limits(), Memory: 2 << 30, Pids: 2000, Mounts: []string{guestFile + ":" + guestPath + ":ro"},
		Env: []string{"FIXTURE_SECRET_FILE=" + outside + "/secret"},
	}
	rep, err := h.client.TraceScenarios(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	got, control := &rep.Scenarios[0], &rep.Scenarios[1]
	if control.Outcome != scenario.Completed {
		t.Errorf("an honest program beside %s ended with %+v", f.name, *control)
	}
	if got.Outcome != f.outcome || got.Reason != f.reason {
		t.Errorf("%s got through: it ended as %s %s (%s), not as %s %s; it said %.500s", f.name, got.Outcome, got.Reason, got.Detail, f.outcome, f.reason, said(h, got.Run))
	}
	if f.afterControl && (control.Order != 1 || got.Order != 2) {
		t.Errorf("%s got through: the light one ended as number %d, after it", f.name, control.Order)
	}
	b, err := json.Marshal(rep.Slices)
	if err != nil {
		t.Fatal(err)
	}
	var slicesOf map[string][]map[string]any
	if err := json.Unmarshal(b, &slicesOf); err != nil {
		t.Fatal(err)
	}
	for _, x := range f.sees {
		list, ok := slicesOf[x.slice]
		if !ok {
			t.Errorf("%s: there is no slice %q", f.name, x.slice)
		}
		if !slices.ContainsFunc(list, func(e map[string]any) bool { return x.is(t, e) }) {
			t.Errorf("%s got through: no entry of %s is %v; there are %.3000v; it said %.500s", f.name, x.slice, x.fields, list, said(h, got.Run))
		}
	}
	if f.never != "" {
		// What a shell was asked to do, it was asked: a text is no program.
		for name, list := range slicesOf {
			if text := fmt.Sprint(list); strings.Contains(text, f.never) {
				t.Errorf("%s got through: %s has %q: %.500s", f.name, name, f.never, text)
			}
		}
	}
	if f.secret != "" && strings.Contains(said(h, got.Run), "of-the-host") {
		t.Errorf("%s got through: it read the host's file", f.name)
	}
	if f.repository {
		f.tryRepository(t, h, ws)
	}
}

// is reports whether an entry is the one that is expected.
func (x expected) is(t *testing.T, e map[string]any) bool {
	for k, want := range x.fields {
		have := fmt.Sprint(e[k])
		switch k {
		case "digest_of":
			b, err := os.ReadFile(want)
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.Sum256(b)
			if e["sha256"] != hex.EncodeToString(sum[:]) {
				return false
			}
		case "same_ids":
			if e["uid"] != e["euid"] {
				return false
			}
		default:
			if e[k] == nil || !strings.Contains(have, want) {
				return false
			}
		}
	}
	return true
}

// tryRepository has carboy work with a repository that is armed.
func (f *fixture) tryRepository(t *testing.T, h *host, ws string) {
	set, err := h.client.ScenariosAt(t.Context(), ws, "HEAD", "")
	if err != nil {
		t.Fatal(err)
	}
	if set.Scenarios[0].Name != "approved" {
		t.Errorf("%s got through: the scenarios are the change's: %+v", f.name, set.Scenarios)
	}
	if _, err := carboy.LoadScenarios(filepath.Join(ws, scenario.FileName), ws); err == nil {
		t.Errorf("%s got through: scenarios of the work tree are taken", f.name)
	}
	x := h.run(func(o *carboy.RunOptions) { o.Workspace = ws }, f.scenario.Command...)
	x.exited(0)
	rep, err := h.client.Land(t.Context(), x.rec.ID, carboy.LandOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(ws, "fine.txt")); err != nil {
		t.Errorf("what is harmless did not land: %v, %+v", err, rep)
	}
	for _, p := range []string{".git/ran", ".git/hooks/pre-commit-new", ".git/hooks/pre-commit-new.ran"} {
		if _, err := os.Lstat(filepath.Join(ws, p)); err == nil {
			t.Errorf("%s got through: %s landed unasked, or was run", f.name, p)
		}
	}
}

// said is a run's output.
func said(h *host, run string) string {
	var out strings.Builder
	for _, name := range []string{"stdout", "stderr"} {
		if b, err := os.ReadFile(filepath.Join(h.client.StateDir(), "runs", run, "logs", name)); err == nil {
			out.Write(b[:min(len(b), 4000)])
		}
	}
	return out.String()
}

// TestT1FixturesAreMapped: no fixture without a defence, no defence without a fixture,
// none that nothing can switch off, and the table shows all.
func TestT1FixturesAreMapped(t *testing.T) {
	used := map[string]bool{}
	var table strings.Builder
	table.WriteString("| Fixture | Promise | Outcome | Defence |\n| --- | --- | --- | --- |\n")
	for _, f := range loadFixtures(t) {
		what, ok := defences[f.defence]
		if !ok {
			t.Errorf("%s is mapped to %q, which is no defence", f.name, f.defence)
		}
		used[f.defence] = true
		if !slices.Contains(promised, f.promise) {
			t.Errorf("%s is of promise %q, which there is not", f.name, f.promise)
		}
		if b, err := os.ReadFile(filepath.Join(f.dir, "README.md")); err != nil || len(b) < 40 {
			t.Errorf("%s does not say what it is: %v", f.name, err)
		}
		outcome := string(f.outcome)
		if f.reason != "" {
			outcome += ": " + string(f.reason)
		}
		fmt.Fprintf(&table, "| [%s](%s/README.md) | %s | %s | `%s`: %s |\n", f.name, f.name, f.promise, strings.ReplaceAll(outcome, "_", " "), f.defence, what)
		filepath.WalkDir(f.dir, func(path string, e os.DirEntry, err error) error {
			if fi, ierr := os.Lstat(path); err == nil && ierr == nil && fi.Mode()&(os.ModeSetuid|os.ModeSetgid|os.ModeSymlink) != 0 {
				t.Errorf("%s is committed with rights, or is a link", path)
			}
			return err
		})
	}
	for name := range defences {
		if !used[name] {
			t.Errorf("no fixture is mapped to %s", name)
		}
	}
	page, err := os.ReadFile(filepath.Join(sourceRoot(t), "testdata/hostile/README.md"))
	if err != nil || !strings.Contains(string(page), table.String()) {
		t.Errorf("testdata/hostile/README.md does not show this table: %v\n%s", err, table.String())
	}
}
