package carboy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/carboy/carboy/internal/ask"
	"github.com/carboy/carboy/internal/attest"
	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/testenv"
)

// project is a small repository whose tests are shell scripts, reported in JUnit's form.
type project struct {
	*world
	t testing.TB
}

const projectCheck = `#!/bin/sh
echo '<testsuite name="s">'
code=0
for t in t_*.sh; do
  if out=$(sh ./$t 2>&1); then echo "<testcase name=\"$t\"/>"
  elif [ $? = 77 ]; then echo "<testcase name=\"$t\"><skipped/></testcase>"
  else code=1; echo "<testcase name=\"$t\"><failure message=\"$out\"/></testcase>"; fi
done
echo '</testsuite>'
exit $code
`

const projectCatalog = `version: 1
signals:
  - {name: policy, kind: policy, frozen: [check.sh], max_bytes: 1MiB}
  - {name: secrets, kind: secrets}
  - name: tests
    kind: tests
    format: junit
    command: [sh, ./check.sh]
    timeout: 20s
  - {name: trace, kind: trace, of: [tests]}
`

var projectFiles = map[string]string{
	"check.sh":       projectCheck,
	"value":          "41\n",
	"unused":         "nobody opens this\n",
	"t_value.sh":     "read v <value; [ \"$v\" -gt 0 ]\n",
	"t_other.sh":     "[ -e value ]\n",
	gate.CatalogPath: projectCatalog,
}

func (p *project) git(args ...string) string {
	p.t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"}, args...)...)
	cmd.Dir = p.ws
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (p *project) put(name, text string) {
	p.t.Helper()
	file := filepath.Join(p.ws, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
		p.t.Fatal(err)
	}
}

// commit is a commit of the work tree as it is.
func (p *project) commit() string {
	p.git("add", "-A")
	p.git("commit", "-q", "--allow-empty", "-m", "x")
	return p.git("rev-parse", "HEAD")
}

func newProject(t testing.TB, files map[string]string) *project {
	t.Helper()
	testenv.Need(t, "git", "apt-get install git")
	p := &project{newWorld(t), t}
	for name, text := range files {
		p.put(name, text)
	}
	p.git("init", "-q")
	p.commit()
	return p
}

func (p *project) judge(o judge.GateOptions) *judge.Judged {
	p.t.Helper()
	o.Dir = p.ws
	j, err := p.c.Gate(context.Background(), o)
	if err != nil {
		p.t.Fatal(err)
	}
	return j
}

// saysYes answers for whoever runs the test.
var saysYes = ask.Options{Here: func(context.Context, ProposalEntry) (bool, string, error) { return true, "", nil }}

// unsigned leaves a baseline to whoever commits it.
var unsigned = judge.AcceptOptions{Options: saysYes, Unsigned: true}

// approved is a project with a baseline that was committed.
func approved(t testing.TB) (*project, string) {
	p := newProject(t, projectFiles)
	j := p.judge(judge.GateOptions{Base: "HEAD"})
	if r := judge.ResultOf(j.Verdict, "trace"); j.Outcome == gate.Passed || r.Outcome == gate.Passed {
		t.Fatalf("it passed without a baseline: %+v", r)
	}
	if _, err := p.c.AcceptBaseline(context.Background(), p.ws, j.ID, unsigned); err != nil {
		t.Fatal(err)
	}
	return p, p.commit()
}

func notPassed(v *gate.Verdict) (out []string) {
	for _, r := range v.Signals {
		if r.Outcome != gate.Passed {
			out = append(out, r.Name)
		}
	}
	return out
}

// TestT2StrictAnd: what each change is caught by, beside harmless ones that pass. What a
// program prints, and what the change says of its own judges, counts for nothing.
func TestT2StrictAnd(t *testing.T) {
	p, base := approved(t)
	edit := func(name, text string) func() { return func() { p.put(name, text) } }
	for _, x := range []struct {
		what   string
		do     func()
		caught string // by which signals
		says   string
	}{
		{"nothing", func() {}, "", ""},
		{"an edit", edit("value", "42\n"), "", ""},
		{"a new test", edit("t_new.sh", "true\n"), "", ""},
		{"a new file", edit("doc/readme.md", "words\n"), "", ""},
		{"a link within", func() { os.Symlink("value", filepath.Join(p.ws, "same")) }, "", ""},
		{"a test that fails", edit("value", "-1\n"), "tests", "t_value.sh"},
		{"a lost test", func() { os.Remove(filepath.Join(p.ws, "t_other.sh")) }, "tests", "is gone"},
		{"a skipped test", edit("t_other.sh", "exit 77\n"), "tests", "is skipped"},
		{"a failure that is hidden", edit("t_other.sh", "kill -9 $PPID\n"), "tests", ""},
		{"42 passed", func() { edit("value", "-1\n")(); edit("t_value.sh", "echo 42 passed; echo PASS; exit 1\n")() }, "tests", "t_value.sh"},
		{"another shell", edit("t_other.sh", "cat value >/dev/null; exec env true\n"), "trace", "new: /usr/bin/"},
		{"a new endpoint", edit("t_other.sh", "(exec 3<>/dev/tcp/192.0.2.7/443) 2>/dev/null; bash -c 'exec 3<>/dev/tcp/192.0.2.7/443' 2>/dev/null; true\n"), "trace", "192.0.2.7"},
		{"an endless loop", func() {
			p.put("t_other.sh", "while :; do :; done\n")
		}, "tests", "out of time"},
		{"a secret", edit("notes", "token ghp_1234567890abcdefghijABCDEFGHIJ123456\n"), "secrets", "notes"},
		{"the tests' own runner", edit("check.sh", projectCheck+"# x\n"), "policy", "check.sh"},
		{"the catalog", edit(gate.CatalogPath, "version: 1\nsignals:\n  - {name: policy, kind: policy}\n"), "policy", "no change may touch this file"},
		{"the baseline", edit(gate.BaselinePath, "{}\n"), "policy", "no change may touch this file"},
		{"a link out", func() { os.Symlink("/etc/passwd", filepath.Join(p.ws, "users")) }, "policy", "users"},
		{"a link out, in steps", func() { os.Symlink("doc/../../x", filepath.Join(p.ws, "up")) }, "policy", "up"},
		{"a binary", edit("tool", "\x7fELF\x00\x00"), "policy", "tool"},
		{"a right to execute", func() { os.Chmod(filepath.Join(p.ws, "value"), 0o755) }, "policy", "value"},
		{"too much", edit("large", strings.Repeat("x", 1<<20+1)), "policy", "bytes"},
	} {
		if testing.Short() && x.caught != "" && slices.Contains([]string{"a binary", "a new file", "a right to execute", "too much", "a link out", "another shell"}, x.what) {
			continue
		}
		p.git("checkout", "-q", "-B", "main", base)
		p.git("clean", "-fdq")
		if x.what == "an endless loop" {
			// A catalog of the user's with a short budget, so that the test is short.
			side := filepath.Join(filepath.Dir(p.ws), "gate.yaml")
			if err := os.WriteFile(side, []byte(strings.Replace(projectCatalog, "20s", "1s", 1)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		x.do()
		p.commit()
		o := judge.GateOptions{Base: base, Again: true}
		if x.what == "an endless loop" {
			o.Catalog = filepath.Join(filepath.Dir(p.ws), "gate.yaml")
		}
		j := p.judge(o)
		var text bytes.Buffer
		j.Text(&text, true)
		got := notPassed(j.Verdict)
		for _, want := range strings.Fields(x.caught) {
			if !slices.Contains(got, want) {
				t.Errorf("%s: not caught by %s\n%s", x.what, want, text.String())
			}
		}
		if (x.caught == "") != (j.Outcome == gate.Passed) || (x.caught == "") != (len(got) == 0) {
			t.Errorf("%s: %s, by %v, want %q\n%s", x.what, j.Outcome, got, x.caught, text.String())
		}
		if !strings.Contains(text.String(), x.says) {
			t.Errorf("%s: the verdict does not say %q\n%s", x.what, x.says, text.String())
		}
		if _, err := gate.ParseVerdict(mustEncode(t, j.Verdict)); err != nil {
			t.Errorf("%s: %v", x.what, err)
		}
	}
}

func mustEncode(t testing.TB, v *gate.Verdict) []byte {
	t.Helper()
	b, err := v.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestT3JudgesAreTheBases: a change that weakens what judges it is judged by what was
// there before; a catalog of the user's must lie where no change can have written it.
func TestT3JudgesAreTheBases(t *testing.T) {
	p, base := approved(t)
	p.put(gate.CatalogPath, "version: 1\nsignals:\n  - {name: secrets, kind: secrets}\n")
	os.Remove(filepath.Join(p.ws, gate.BaselinePath))
	p.put("value", "-1\n")
	p.commit()
	j := p.judge(judge.GateOptions{Base: base, Again: true})
	if len(j.Signals) != 4 || j.CatalogFrom != "base" || j.Baseline == "" {
		t.Errorf("the change's own catalog judged it: %+v", j.Verdict)
	}
	if got := strings.Join(notPassed(j.Verdict), " "); got != "policy tests" {
		t.Errorf("not passed: %s", got)
	}
	var bad *fault.OptionError
	if _, err := p.c.Gate(context.Background(), judge.GateOptions{Dir: p.ws, Base: base, Catalog: filepath.Join(p.ws, gate.CatalogPath)}); !errors.As(err, &bad) {
		t.Errorf("a catalog of the work tree judges: %v", err)
	}
	link := filepath.Join(filepath.Dir(p.ws), "link.yaml")
	if err := os.Symlink(filepath.Join(p.ws, gate.CatalogPath), link); err != nil {
		t.Fatal(err)
	}
	if _, err := p.c.Gate(context.Background(), judge.GateOptions{Dir: p.ws, Base: base, Catalog: link}); !errors.As(err, &bad) {
		t.Errorf("so by a link: %v", err)
	}
	// The user's own, outside, judges instead.
	own := filepath.Join(filepath.Dir(p.ws), "own.yaml")
	if err := os.WriteFile(own, []byte("version: 1\nsignals:\n  - {name: secrets, kind: secrets}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if j := p.judge(judge.GateOptions{Base: base, Catalog: own}); j.Outcome != gate.Passed || j.CatalogFrom != "user" || len(j.Signals) != 1 {
		t.Errorf("%+v", j.Verdict)
	}
	if _, err := p.c.Gate(context.Background(), judge.GateOptions{Dir: p.ws, Base: base + "^"}); err == nil {
		// The first commit has a catalog and no baseline: the trace can't pass.
		if j := p.judge(judge.GateOptions{Base: base + "^", Again: true}); judge.ResultOf(j.Verdict, "trace").Outcome == gate.Passed {
			t.Error("the trace passed without a baseline in the base")
		}
	}
}

// TestT3StartedByAnother: with real bottles, the script that a command's wrapper starts
// judges, also where its name is that of a test's file; what lies beside it does not.
func TestT3StartedByAnother(t *testing.T) {
	p := newProject(t, map[string]string{"tests/run.sh": "#!/bin/sh\nread v <value && [ \"$v\" -gt 0 ]\n", "tests/more.sh": "", "value": "1\n",
		gate.CatalogPath: "version: 1\nsignals:\n  - {name: policy, kind: policy}\n  - {name: b, kind: build, command: [timeout, '20', tests/run.sh]}\n"})
	if err := os.Chmod(filepath.Join(p.ws, "tests/run.sh"), 0o755); err != nil {
		t.Fatal(err)
	}
	base := p.commit()
	p.put("tests/more.sh", "true\n")
	if j := p.judge(judge.GateOptions{Base: base, Change: "."}); j.Outcome != gate.Passed {
		t.Errorf("a harmless change: %v", notPassed(j.Verdict))
	}
	p.put("value", "0\n")
	p.put("tests/run.sh", "#!/bin/sh\nexit 0\n")
	j := p.judge(judge.GateOptions{Base: base, Change: "."})
	if r := judge.ResultOf(j.Verdict, "judges"); j.Outcome != gate.Final || len(r.Findings) != 1 || r.Findings[0].File != "tests/run.sh" || judge.ResultOf(j.Verdict, "b").Outcome != gate.Passed {
		t.Errorf("%s: %+v", j.Outcome, j.Signals)
	}
}

// cacheWorld is a project whose tests read, list and look for files, judged by a catalog
// of the user's.
type cacheWorld struct {
	*project
	base, catalog string
}

func (p *cacheWorld) run() *judge.Judged {
	return p.judge(judge.GateOptions{Base: p.base, Change: ".", Catalog: p.catalog})
}

// kept is a verdict that is kept for later: none is, while files of this machine change.
func (p *cacheWorld) kept() *judge.Judged {
	p.t.Helper()
	for range 5 {
		j := p.run()
		if _, err := os.Stat(filepath.Join(p.c.judge.GateDir("cache", judge.ShortSum(p.ws)), j.ID+".json")); err == nil || j.Outcome != gate.Passed {
			return j
		}
		p.t.Log("this verdict is not kept; once more")
		time.Sleep(3 * time.Second) // gate's files are settled after two
	}
	p.t.Fatal("no verdict is kept for later")
	return nil
}

// look asks whether a verdict would be given again, and runs nothing but what had
// answers from outside.
func (p *cacheWorld) look() (hit bool, miss string) {
	p.t.Helper()
	w, err := p.c.judge.GateWork(context.Background(), &judge.GateOptions{Dir: p.ws, Base: p.base, Change: ".", Catalog: p.catalog})
	if err != nil {
		p.t.Fatal(err)
	}
	defer w.Close()
	j, miss, err := w.Cached(context.Background())
	if err != nil {
		p.t.Fatal(err)
	}
	return j != nil, miss
}

// out writes a file beside the work tree.
func (p *cacheWorld) out(name, text string) string {
	p.t.Helper()
	file := filepath.Join(filepath.Dir(p.ws), name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		p.t.Fatal(err)
	}
	return file
}

func newCacheWorld(t testing.TB, catalog string, more map[string]string) *cacheWorld {
	t.Helper()
	files := maps.Clone(projectFiles)
	maps.Copy(files, more)
	p := &cacheWorld{project: newProject(t, files)}
	p.base = p.git("rev-parse", "HEAD")
	p.catalog = p.out("own.yaml", catalog)
	return p
}

// TestT4Cache: with real bottles, a verdict is given again exactly as long as all that
// it was seen to depend on is as it was: one byte of each sort of input, and put back.
func TestT4Cache(t *testing.T) {
	// No policy and no secrets: these look at all files.
	const catalog = "version: 1\ndefaults: {env: {MODE: a}}\nsignals:\n  - name: tests\n    kind: tests\n    format: junit\n    command: [sh, ./check.sh]\n"
	p := newCacheWorld(t, catalog, map[string]string{
		".npmrc": "a=1\n", "t_value.sh": "read v <value; read w <.npmrc; [ ! -e absent ] && [ \"$v\" -gt 0 ]\n",
	})
	p.out(".config/carboy/osv/npm/A.json", "{}")
	p.out("own-baseline.json", `{"schema":"carboy.dev/gate-baseline/v1","entries":[]}`)
	first := p.kept()
	if first.Cached || first.Outcome != gate.Passed {
		t.Fatalf("%+v", first)
	}
	second := p.run()
	if !second.Cached || second.ID != first.ID {
		t.Fatalf("it was run again: %s", second.Miss)
	}
	p.put("unused", "Nobody opens this\n") // the same size
	third := p.run()
	if !third.Cached || third.Change.Digest == first.Change.Digest {
		t.Errorf("a file that was never opened counts: %q, or the verdict names the old tree", third.Miss)
	}
	if _, err := os.Stat(filepath.Join(third.Dir, "evidence", "tests-change", "observed.json")); err != nil {
		t.Errorf("the verdict comes without its evidence: %v", err)
	}
	// Of what was judged before, not only the last.
	p.put("value", "411\n")
	other := p.kept()
	p.put("value", "41\n")
	if again := p.run(); other.Cached || !again.Cached || again.ID != first.ID {
		t.Errorf("what was judged before the last is judged again: %s", again.Miss)
	}
	os.Remove(filepath.Join(p.c.judge.GateDir("cache", judge.ShortSum(p.ws)), other.ID+".json"))
	set := func(name, text string) func() { return func() { p.put(name, text) } }
	kept := filepath.Join(p.c.judge.GateDir("cache", judge.ShortSum(p.ws)), first.ID+".json")
	asKept, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	// What the test can't flip of this machine was another when the verdict was given.
	was := func(edit func(*gate.Inputs)) func() {
		return func() {
			var in gate.Inputs
			if err := store.ReadJSON(kept, "gate-inputs", &in); err != nil {
				t.Fatal(err)
			}
			edit(&in)
			if err := store.WriteJSON(kept, "gate-inputs", &in); err != nil {
				t.Fatal(err)
			}
		}
	}
	back := func() {
		if err := os.WriteFile(kept, asKept, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := p.c.host.Env
	isThere := func(in *gate.Inputs) string {
		t.Helper()
		for f, print := range in.Host {
			if strings.HasPrefix(f, "/usr/") && print != "absent" {
				return f
			}
		}
		t.Fatal("the phases read nothing of this machine")
		return ""
	}
	for _, x := range []struct {
		what     string
		do, undo func()
		says     string
	}{
		{"a file that was read", set("value", "43\n"), set("value", "41\n"), "file value"},
		{"npm's settings", set(".npmrc", "a=2\n"), set(".npmrc", "a=1\n"), "file .npmrc"},
		{"a file that was looked for in vain", set("absent", ""), func() { os.Remove(filepath.Join(p.ws, "absent")) }, "list of files"},
		{"a mode", func() { os.Chmod(filepath.Join(p.ws, "value"), 0o755) }, func() { os.Chmod(filepath.Join(p.ws, "value"), 0o644) }, "list of files"},
		{"a variable", func() {
			p.c.host.Env = func(n string) string {
				if n == "TZ" {
					return "Asia/Tokyo"
				}
				return env(n)
			}
		}, func() { p.c.host.Env = env }, "variable TZ"},
		{"the catalog's variable", func() { p.out("own.yaml", strings.Replace(catalog, "MODE: a", "MODE: b", 1)) }, func() { p.out("own.yaml", catalog) }, "catalog"},
		{"the catalog", func() { p.out("own.yaml", catalog+"#") }, func() { p.out("own.yaml", catalog) }, "catalog"},
		{"the baseline", func() {
			p.out("own-baseline.json", `{"schema":"carboy.dev/gate-baseline/v1","entries":[{"signal":"x","image":"host","lockfiles":"-","execs":[],"reads":[]}]}`)
		}, func() {
			p.out("own-baseline.json", `{"schema":"carboy.dev/gate-baseline/v1","entries":[]}`)
		}, "baseline"},
		{"this machine's tools", was(func(in *gate.Inputs) { in.Host[isThere(in)] += "1" }), back, "of this machine changed"},
		{"a tool that was looked for in vain", was(func(in *gate.Inputs) { in.Host[isThere(in)] = "absent" }), back, "looked for in vain, is there now"},
		{"the engine", was(func(in *gate.Inputs) { in.Given["engine"] += "1" }), back, "engine"},
		{"the image", was(func(in *gate.Inputs) { in.Given["image"] += "1" }), back, "image"},
		{"the build", func() { p.c.host.Build += "x" }, func() { p.c.host.Build = strings.TrimSuffix(p.c.host.Build, "x") }, "carboy"},
		{"the policy for all runs", func() { p.c.host.Config.Protect.CI = true }, func() { p.c.host.Config.Protect.CI = false }, "configuration"},
		// Last: a file's time of change can't be put back.
		{"the database of advisories", func() { p.out(".config/carboy/osv/npm/A.json", "[]") }, nil, "advisories"},
	} {
		x.do()
		if hit, miss := p.look(); hit || !strings.Contains(miss, x.says) {
			t.Errorf("%s: hit %t, miss %q", x.what, hit, miss)
		}
		if x.undo == nil {
			continue
		}
		x.undo()
		if hit, miss := p.look(); !hit {
			t.Errorf("%s, undone: %q", x.what, miss)
		}
	}
	p.keptIsChecked(first.ID)
	// Evidence and what is proposed are those of the record, or not read.
	evidence := func() error {
		_, err := p.c.VerdictEvidence(t.Context(), first.ID, "tests-change", "stdout")
		return err
	}
	proposed := func() error { _, _, err := p.c.ProposedBaseline(t.Context(), first.ID); return err }
	for what, x := range map[string]struct {
		read func() error
		file string
	}{"evidence": {evidence, "evidence/tests-change/stdout"}, "a proposed baseline": {proposed, judge.ProposedFile}} {
		if err := x.read(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		file := filepath.Join(first.Dir, x.file)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, append(b, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := x.read(); !errors.Is(err, judge.ErrLedger) {
			t.Errorf("%s was exchanged, and is read: %v", what, err)
		}
	}
}

// TestGateDiedBeforeItsRecord: a verdict that never came on record is as none, and the
// next gate does not end with it.
func TestGateDiedBeforeItsRecord(t *testing.T) {
	p := newCacheWorld(t, "version: 1\nsignals:\n  - name: tests\n    kind: tests\n    format: junit\n    command: [sh, ./check.sh]\n", nil)
	first := p.kept()
	cache := p.c.judge.GateDir("cache", judge.ShortSum(p.ws))
	b, err := os.ReadFile(filepath.Join(cache, first.ID+".json"))
	v, err2 := os.ReadFile(filepath.Join(first.Dir, judge.VerdictFile))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	died := "7" + first.ID[1:]
	renamed := func(b []byte) []byte { return bytes.ReplaceAll(b, []byte(first.ID), []byte(died)) }
	dir := p.c.judge.GateDir("verdicts", died)
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, judge.VerdictFile), renamed(v), 0o600), os.WriteFile(filepath.Join(cache, died+".json"), renamed(b), 0o600)); err != nil {
		t.Fatal(err)
	}
	if again := p.run(); !again.Cached || again.ID != first.ID {
		t.Errorf("%s, cached %t: %s", again.ID, again.Cached, again.Miss)
	}
	if _, err := os.Stat(filepath.Join(cache, died+".json")); err == nil {
		t.Error("it is asked for again and again")
	}
}

// TestT4OtherNames: with real bottles, a file counts by its content also when what was
// opened had another name: it was moved or linked before, or its directory was, or it could
// not even be executed.
func TestT4OtherNames(t *testing.T) {
	const catalog = "version: 1\nsignals:\n  - name: tests\n    kind: tests\n    format: junit\n    command: [sh, ./check.sh]\n"
	p := newCacheWorld(t, catalog, map[string]string{
		"moved": "41\n", "linked": "41\n", "dir/deep": "41\n", "run": "#!/bin/xx\nexit 1\n", "unused2": "41\n",
		"t_moved.sh":  "mv moved m; read v <m; [ \"$v\" -gt 0 ]\n",
		"t_linked.sh": "ln linked l; read v <l; [ \"$v\" -gt 0 ]\n",
		"t_dir.sh":    "mv dir e; read v <e/deep; [ \"$v\" -gt 0 ]\n",
		"t_run.sh":    "./run; [ $? -gt 1 ]\n",
	})
	if err := os.Chmod(filepath.Join(p.ws, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	if first := p.kept(); first.Cached || first.Outcome != gate.Passed {
		t.Fatalf("%+v", first)
	}
	if hit, miss := p.look(); !hit {
		t.Fatalf("it would run again: %s", miss)
	}
	for _, x := range []struct{ name, was, text string }{
		{"moved", "41\n", "00\n"}, {"linked", "41\n", "00\n"}, {"dir/deep", "41\n", "00\n"}, {"run", "#!/bin/xx\nexit 1\n", "#!/bin/sh\nexit 1\n"},
	} {
		p.put(x.name, x.text)
		if hit, miss := p.look(); hit || !strings.Contains(miss, "file "+x.name) {
			t.Errorf("%s counts by another name: hit %t, miss %q", x.name, hit, miss)
		}
		p.put(x.name, x.was)
	}
	p.put("unused2", "00\n")
	if hit, miss := p.look(); !hit {
		t.Errorf("a file that had one name and was not opened counts: %s", miss)
	}
}

// TestT4InputsAreRecorded: a verdict is not given for another tree by exchanging what it
// is said to depend on.
func TestT4InputsAreRecorded(t *testing.T) {
	p := newProject(t, map[string]string{"a": "x", gate.CatalogPath: "version: 1\nsignals:\n  - {name: policy, kind: policy}\n"})
	base := p.git("rev-parse", "HEAD")
	p.put("b", "fine")
	p.commit()
	good := p.judge(judge.GateOptions{Base: base})
	if again := p.judge(judge.GateOptions{Base: base}); good.Outcome != gate.Passed || !again.Cached {
		t.Fatalf("%+v", again)
	}
	p.put("b", "\x00")
	p.commit()
	bad := p.judge(judge.GateOptions{Base: base})
	if bad.Outcome != gate.Final {
		t.Fatalf("%+v", bad)
	}
	if again := p.judge(judge.GateOptions{Base: base}); !again.Cached || again.ID != bad.ID {
		t.Fatalf("%+v", again)
	}
	dir := p.c.judge.GateDir("cache", judge.ShortSum(p.ws))
	from, to := filepath.Join(dir, bad.ID+".json"), filepath.Join(dir, good.ID+".json")
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(to, bytes.ReplaceAll(b, []byte(bad.ID), []byte(good.ID)), 0o600), os.Remove(from)); err != nil {
		t.Fatal(err)
	}
	if j, err := p.c.Gate(t.Context(), judge.GateOptions{Dir: p.ws, Base: base}); !errors.Is(err, judge.ErrLedger) {
		t.Errorf("the good tree's verdict is given to the bad one: %+v %v", j, err)
	}
}

// TestT3NamesOfRuns: a branch that is called like a run is not judged in its place.
func TestT3NamesOfRuns(t *testing.T) {
	p := newProject(t, map[string]string{"a": "x", gate.CatalogPath: "version: 1\nsignals:\n  - {name: policy, kind: policy}\n"})
	rec, err := p.c.Run(t.Context(), plan.Options{Command: []string{"sh", "-c", "printf '\\0' >b"}, Workspace: p.ws, Mode: store.Overlay})
	if err != nil {
		t.Fatal(err)
	}
	id := string(rec.ID)
	if j := p.judge(judge.GateOptions{Change: id}); j.Outcome != gate.Final || j.Change.Run != id {
		t.Fatalf("%+v", j.Verdict)
	}
	p.git("branch", id)
	for _, more := range []string{"branch", "tag"} { // with a tag, git knows two of the name
		if more == "tag" {
			p.git("tag", id, p.git("commit-tree", "-m", "x", "HEAD^{tree}"))
		}
		if j, err := p.c.Gate(t.Context(), judge.GateOptions{Dir: p.ws, Change: id, Base: "HEAD"}); err != nil || j.Outcome != gate.Final || j.Change.Run != id || j.Change.Commit != "" {
			t.Errorf("a %s by the run's name is judged: %+v %v", more, j, err)
		}
	}
	part := id[:len(id)-1]
	p.git("branch", part)
	if j, err := p.c.Gate(t.Context(), judge.GateOptions{Dir: p.ws, Change: part}); !errors.Is(err, gate.ErrAmbiguous) {
		t.Errorf("a branch by a part of the run's name is judged: %+v %v", j, err)
	}
	if j := p.judge(judge.GateOptions{Change: "refs/heads/" + id, Base: "HEAD"}); j.Change.Run != "" {
		t.Errorf("%+v", j.Verdict)
	}
}

// TestT4Network: a phase with a route is asked again, and it alone: the verdict is given
// again as long as it has the same answers and leaves the same.
func TestT4Network(t *testing.T) {
	testenv.Need(t, "curl", "apt-get install curl")
	p := newCacheWorld(t, `version: 1
signals:
  - {name: deps, kind: install, command: [sh, ./fetch.sh], network: [example.com], keep: [deps]}
  - {name: tests, kind: tests, format: junit, command: [sh, ./check.sh], after: [deps]}
`, map[string]string{"fetch.sh": "mkdir deps && curl -fsS -o deps/a https://example.com/a && curl -sS -o /dev/null https://example.com/b\n", "t_other.sh": "[ -s deps/a ]\n"})
	var mu sync.Mutex
	answers := map[string]string{"/a": "left-pad 1", "/b": "nobody keeps this"}
	asked, meanwhile := 0, func() {}
	p.outside(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked++
		meanwhile()
		w.Write([]byte(answers[r.URL.Path]))
	}))
	say := func(path, text string) {
		mu.Lock()
		defer mu.Unlock()
		answers[path] = text
	}
	first := p.kept()
	if first.Cached || first.Outcome != gate.Passed {
		t.Fatalf("%+v %s", first.Signals[0], first.Signals[0].Why)
	}
	for _, ph := range first.Phases {
		if ph.Signal == "deps" && (len(ph.Fetched) != 2 || ph.Unread != "" || ph.Fetched[0].Digest != judge.HexSum([]byte("left-pad 1"))) {
			t.Errorf("what it had from outside: %+v %q", ph.Fetched, ph.Unread)
		}
	}
	before := asked
	if hit, miss := p.look(); !hit {
		t.Fatalf("it was run again: %s", miss)
	}
	if asked == before {
		t.Error("nobody was asked again")
	}
	say("/b", "Nobody keeps this")
	if hit, miss := p.look(); hit || !strings.Contains(miss, "answer to GET example.com:443/b of deps") {
		t.Errorf("another answer: hit %t, miss %q", hit, miss)
	}
	say("/a", "left-pad 2")
	next := p.run()
	if next.Cached || next.Outcome != gate.Passed || !strings.Contains(next.Miss, "answer to GET example.com:443/a of deps") {
		t.Errorf("another answer: %+v", next)
	}
	if n := len(next.Phases); n != 4 {
		t.Errorf("%d phases, want 4: those that were asked again are part of the verdict", n)
	}
	mu.Lock()
	meanwhile = func() {
		meanwhile = func() {}
		if _, err := p.c.RemoveVerdict(t.Context(), next.ID); err != nil {
			t.Error(err)
		}
	}
	mu.Unlock()
	if hit, miss := p.look(); hit || miss != "its verdict was removed" {
		t.Errorf("a verdict that was removed while others were asked is given: hit %t, miss %q", hit, miss)
	}
}

// TestGateRecords: a verdict that was edited, removed or added is found, by whoever reads
// it and by audit verify; an override is a record of its own.
func TestGateRecords(t *testing.T) {
	ctx := context.Background()
	p := newProject(t, map[string]string{"a": "x", gate.CatalogPath: "version: 1\nsignals:\n  - {name: policy, kind: policy}\n"})
	p.put("b", "\x00")
	p.commit()
	j := p.judge(judge.GateOptions{Base: "HEAD^"})
	if j.Outcome != gate.Final || gate.Passed == j.Outcome {
		t.Fatalf("%+v", j.Verdict)
	}
	if list, err := p.c.Verdicts(ctx, 10); err != nil || len(list) != 1 || list[0].ID != j.ID {
		t.Errorf("%v %v", list, err)
	}
	verify := func() audit.Status {
		t.Helper()
		r, err := p.c.AuditVerify(ctx, "")
		if err != nil {
			t.Fatal(err)
		}
		return r.Status
	}
	if s := verify(); s != audit.Intact {
		t.Fatal(s)
	}
	if _, err := p.c.OverrideVerdict(ctx, j.ID, "short", saysYes); err == nil {
		t.Error("an override needs no reason")
	}
	o, err := p.c.OverrideVerdict(ctx, j.ID, "the binary is a test's fixture", saysYes)
	if err != nil || !o.Allowed() || o.Outcome != gate.Final {
		t.Fatalf("%+v %v", o, err)
	}
	if s := verify(); s != audit.Intact {
		t.Fatal(s)
	}
	// Attestations verify with the key, and with no other text.
	var out bytes.Buffer
	key, err := p.c.AttestVerdict(ctx, j.ID, &out)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 {
		t.Fatal(out.String())
	}
	var e dsse.Envelope
	if err := json.Unmarshal([]byte(lines[1]), &e); err != nil {
		t.Fatal(err)
	}
	st, err := gate.VerifyAttestation(ctx, &e, key)
	if err != nil || st.PredicateType != attest.ProvenanceV1 || !bytes.Contains(st.Predicate, []byte("fixture")) || st.Subject[0].Digest["sha256"] != j.Change.Digest {
		t.Errorf("%+v %v", st, err)
	}
	e.Payload = strings.Replace(e.Payload, "A", "B", 1)
	if _, err := gate.VerifyAttestation(ctx, &e, key); err == nil {
		t.Error("another text verifies")
	}
	file := filepath.Join(j.Dir, judge.VerdictFile)
	was, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, bytes.Replace(was, []byte(`"final"`), []byte(`"passed"`), -1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.c.Verdict(ctx, j.ID); !errors.Is(err, judge.ErrLedger) {
		t.Errorf("an edited verdict is read: %v", err)
	}
	if list, err := p.c.Verdicts(ctx, 10); err != nil || len(list) != 0 {
		t.Errorf("an edited verdict is listed: %v %v", list, err)
	}
	if err := os.WriteFile(file, bytes.Replace(was, []byte("fixture"), []byte("fixturE"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.c.Verdict(ctx, j.ID); !errors.Is(err, judge.ErrLedger) {
		t.Errorf("another reason is read: %v", err)
	}
	if s := verify(); s != audit.Tampered {
		t.Errorf("edited: %s", s)
	}
	if err := os.Rename(j.Dir, filepath.Join(filepath.Dir(j.Dir), "00000000000000000000000000")); err != nil {
		t.Fatal(err)
	}
	if s := verify(); s != audit.Tampered {
		t.Errorf("removed: %s", s)
	}
}

// TestGateLocked: one gate at a time works on a directory.
func TestGateLocked(t *testing.T) {
	p := newProject(t, map[string]string{"a": "x", gate.CatalogPath: "version: 1\nsignals:\n  - {name: secrets, kind: secrets}\n"})
	unlock, err := p.c.judge.GateLock(p.ws)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.c.Gate(context.Background(), judge.GateOptions{Dir: p.ws, Base: "HEAD"}); !errors.Is(err, judge.ErrGateLocked) {
		t.Errorf("%v", err)
	}
	unlock()
	if j := p.judge(judge.GateOptions{Base: "HEAD"}); j.Outcome != gate.Passed {
		t.Errorf("%+v", j.Verdict)
	}
}

// TestGateInit: the catalog that is written passes on the directory as it is, what does
// not pass is left out and said, and the two files judge the next change.
func TestGateInit(t *testing.T) {
	testenv.Need(t, "make", "apt-get install make")
	p := newProject(t, map[string]string{"Makefile": "test:\n\t@test -e value\n", "value": "1", "requirements.txt": "# none\n"})
	b, err := p.c.GateInit(t.Context(), judge.GateOptions{Dir: p.ws})
	if err != nil {
		t.Fatal(err)
	}
	if b.Untested || b.Outcome != gate.Passed || strings.Join(b.Found, " ") != "python make" || judge.ResultOf(b.Verdict, "make-test").Outcome != gate.Passed {
		t.Errorf("%+v", b)
	}
	base := p.commit()
	if j := p.judge(judge.GateOptions{Base: base, Change: base, Again: true}); j.Outcome != gate.Passed {
		t.Errorf("%v", notPassed(j.Verdict))
	}
	os.Remove(filepath.Join(p.ws, "value"))
	p.commit()
	// What make reads to say so is no drift, which would end the matter.
	if j := p.judge(judge.GateOptions{Base: base}); j.Outcome != gate.Failed || strings.Join(notPassed(j.Verdict), " ") != "make-test" {
		t.Errorf("%s: %v", j.Outcome, notPassed(j.Verdict))
	}
	if _, err := p.c.GateInit(t.Context(), judge.GateOptions{Dir: p.ws}); err == nil {
		t.Error("an earlier catalog is overwritten")
	}
	// One whose tests do not pass is left without any, and that is said.
	q := newProject(t, map[string]string{"Makefile": "test:\n\t@false\n"})
	if b, err := q.c.GateInit(t.Context(), judge.GateOptions{Dir: q.ws}); err != nil || !b.Untested || b.LeftOut["make-test"] == "" {
		t.Errorf("without tests: %+v %v", b, err)
	}
}

// TestGateLanguages: the catalogs that are written for real projects pass on them as they
// are, by what really builds and tests them, and tests that are lost, skipped or
// made to pass by what the runner obeys are named.
func TestGateLanguages(t *testing.T) {
	jest := `{"name":"m","version":"1.0.0","scripts":{"test":"jest"}}`
	for _, x := range []struct {
		name, program, install string
		files                  map[string]string
		signal                 string // what is proposed
		changes                []languageChange
	}{
		{"go", "go", "https://go.dev/dl", map[string]string{
			"go.mod":    "module example.com/m\n\ngo 1.24\n",
			"m.go":      "package m\n\nfunc Add(a, b int) int { return a + b }\n",
			"m_test.go": "package m\n\nimport \"testing\"\n\nfunc TestAdd(t *testing.T) {\n\tif Add(1, 2) != 3 {\n\t\tt.Fatal(1)\n\t}\n}\n",
		}, "go-test", []languageChange{
			{"lost", map[string]string{"m_test.go": "package m\n"}, "example.com/m.TestAdd: the test passed on the base, and is gone"},
			{"skipped", map[string]string{"m_test.go": "package m\n\nimport \"testing\"\n\nfunc TestAdd(t *testing.T) { t.Skip() }\n"}, "is skipped"},
		}},
		{"pytest", "py.test-3", "apt-get install python3-pytest", map[string]string{
			"pyproject.toml":     "[project]\nname = \"m\"\nversion = \"1\"\n\n[project.optional-dependencies]\ntest = [\"pytest\"]\n", // no settings
			"calc.py":            "def add(a, b):\n    return a + b\n",
			"tests/test_calc.py": "import colorsys\nimport pytest\nfrom calc import add\n\ndef test_black():\n    assert colorsys.rgb_to_hsv(0, 0, 0) == (0.0, 0.0, 0)\n\ndef test_add():\n    assert add(1, 2) == 3\n\n@pytest.mark.parametrize('a', [1, 2])\ndef test_zero(a):\n    assert add(a, 0) == a\n",
		}, "pytest", []languageChange{
			{"lost", map[string]string{"tests/test_calc.py": "from calc import add\n\ndef test_add():\n    assert add(1, 2) == 3\n"}, "tests.test_calc::test_zero[1]"},
			// The base's own runner says so, not the one that the change brings along.
			{"another runner", map[string]string{"calc.py": "def add(a, b):\n    return a * b\n", "pytest.py": "open('.gate-pytest.xml', 'w').write('<testsuites/>')\n"}, "tests.test_calc::test_add: the test fails"},
			{"a module that stands before Python's, and looks at it", map[string]string{"colorsys.py": "import os\n\nos.stat(os.__file__.replace('os.py', 'colorsys.py'))\n\ndef rgb_to_hsv(*_):\n    return (0.0, 0.0, 0)\n"}, "colorsys.py: stands-before: tests can be given it where those of the base were given /usr/"},
		}},
		{"node", "node", "apt-get install nodejs", map[string]string{
			"package.json": `{"name":"m","version":"1.0.0","scripts":{"test":"node --test"}}`,
			"m.test.js":    "const test = require('node:test');\nconst assert = require('node:assert');\ntest('adds', () => assert.equal(1 + 2, 3));\ntest('zero', () => assert.equal(1 + 0, 1));\n",
		}, "node-test", []languageChange{
			{"skipped", map[string]string{"m.test.js": "const test = require('node:test');\nconst assert = require('node:assert');\ntest('adds', () => assert.equal(1 + 2, 3));\ntest.skip('zero', () => assert.equal(1 + 0, 1));\n"}, "is skipped"},
		}},
		{"make", "make", "apt-get install make", map[string]string{"Makefile": "check:\n\t@test -s value\n", "value": "1"}, "make-check", []languageChange{{"broken", map[string]string{"value": ""}, "make ended with 2"}}},
		{"rust", "cargo", "apt-get install cargo", map[string]string{
			"Cargo.toml": "[package]\nname = \"m\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
			"Cargo.lock": "version = 3\n\n[[package]]\nname = \"m\"\nversion = \"0.1.0\"\n",
			"src/lib.rs": "pub fn add(a: u64, b: u64) -> u64 { a + b }\n\n#[test]\nfn adds() { assert_eq!(add(1, 2), 3); }\n",
		}, "cargo-test", []languageChange{{"broken", map[string]string{"src/lib.rs": "pub fn add(a: u64, b: u64) -> u64 { a * b }\n\n#[test]\nfn adds() { assert_eq!(add(1, 2), 3); }\n"}, "cargo ended with 101"}}},
		{"jest", "", "", map[string]string{
			"package.json": jest, "calc.js": "exports.add = (a, b) => a + b;\n",
			"calc.test.js": "const { add } = require('./calc');\n" + addsTest + zeroTest,
		}, "jest", javaScript("calc.test.js", "const { add } = require('./calc');\n", "calc.test.js::more zero",
			languageChange{"a reporter of its own", map[string]string{"calc.js": "exports.add = (a, b) => a * b;\n", "jest.config.js": "module.exports = { reporters: [] };\n"}, "what signal jest runs obeys it"})},
		{"vitest", "", "", map[string]string{
			"package.json": strings.Replace(jest, `"jest"`, `"vitest run"`, 1), "calc.mjs": "export const add = (a, b) => a + b;\n",
			"calc.test.mjs": "import { describe, expect, it, test } from 'vitest';\nimport { add } from './calc.mjs';\n" + addsTest + zeroTest,
		}, "vitest", javaScript("calc.test.mjs", "import { describe, expect, it, test } from 'vitest';\nimport { add } from './calc.mjs';\n", "calc.test.mjs::more zero",
			languageChange{"a configuration of its own", map[string]string{"calc.mjs": "export const add = (a, b) => a * b;\n", "vitest.config.mjs": "export default { test: { reporters: [] } };\n"}, "what signal vitest runs obeys it"})},
	} {
		modules := filepath.Join(os.Getenv("CARBOY_TEST_JS"), "node_modules")
		if x.name == "jest" || x.name == "vitest" {
			if _, err := os.Stat(filepath.Join(modules, ".bin", x.name)); os.Getenv("CARBOY_TEST_JS") == "" || err != nil {
				t.Logf("%s is NOT tested: npm install --prefix DIRECTORY jest vitest, then CARBOY_TEST_JS=DIRECTORY", x.name)
				continue
			}
		}
		// These compile what their tests need in a bottle that has no cache.
		if (x.name == "rust" || x.name == "go") && (os.Getenv("CARBOY_TEST_LANGUAGES") != "1" || testenv.Look(x.program) == "") {
			t.Logf("%s is NOT tested: install %s, then CARBOY_TEST_LANGUAGES=1", x.name, x.program)
			continue
		}
		t.Run(x.name, func(t *testing.T) {
			if x.program != "" {
				testenv.Need(t, x.program, x.install)
			}
			p := newProject(t, x.files)
			if x.program == "" {
				// As a repository that has its modules in it.
				if err := os.CopyFS(filepath.Join(p.ws, "node_modules"), os.DirFS(modules)); err != nil {
					t.Fatal(err)
				}
				p.commit()
			}
			b, err := p.c.GateInit(t.Context(), judge.GateOptions{Dir: p.ws})
			if err != nil {
				t.Fatal(err)
			}
			r := judge.ResultOf(b.Verdict, x.signal)
			if b.Outcome != gate.Passed || r.Outcome != gate.Passed || len(b.LeftOut) > 0 {
				t.Fatalf("%s: %+v, left out: %q", b.Outcome, r, b.LeftOut)
			}
			base := p.commit()
			for _, change := range x.changes {
				p.git("checkout", "-q", "-f", "-B", "main", base)
				p.git("clean", "-fdq")
				for name, text := range change.files {
					p.put(name, text)
				}
				p.commit()
				j := p.judge(judge.GateOptions{Base: base})
				var text bytes.Buffer
				j.Text(&text, true)
				if judge.ResultOf(j.Verdict, x.signal).Outcome != gate.Failed || !strings.Contains(text.String(), change.says) {
					t.Errorf("%s: %v, want %q\n%s", change.what, notPassed(j.Verdict), change.says, text.String())
				}
			}
		})
	}
}

// languageChange is a change that a language's signal must name.
type languageChange struct {
	what  string
	files map[string]string
	says  string
}

const (
	addsTest = "test('adds', () => { expect(add(1, 2)).toBe(3); });\n"
	zeroTest = "describe('more', () => { it('zero', () => { expect(add(1, 0)).toBe(1); }); });\n"
)

// javaScript are changes to addsTest and zeroTest in a file that begins with head.
func javaScript(file, head, lost string, more languageChange) []languageChange {
	one := func(what, text, says string) languageChange {
		return languageChange{what, map[string]string{file: head + text}, says}
	}
	return []languageChange{
		one("lost", addsTest, lost+": the test passed on the base, and is gone"),
		one("skipped", addsTest+strings.Replace(zeroTest, "it(", "it.skip(", 1), lost+": the test passed on the base, and is skipped"),
		one("failing", addsTest+strings.Replace(zeroTest, "toBe(1)", "toBe(2)", 1), lost+": the test fails"),
		more,
	}
}
