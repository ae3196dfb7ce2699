package carboy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/gate/judge"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/testenv"
)

// warmCheck runs tests through a compiler of a line, which says what it compiled; what it
// has in its cache it has not to compile.
const warmCheck = `#!/bin/sh
mkdir -p ~/.cache/cc
echo '<testsuite name="s">'
code=0
for t in t_*.sh; do
  o=~/.cache/cc/$(cksum <$t | tr ' ' -)
  if [ ! -e $o ]; then cat $t >$o; echo "<!-- compiled $t -->"; fi
  if sh $o; then echo "<testcase name=\"$t\"/>"; else code=1; echo "<testcase name=\"$t\"><failure/></testcase>"; fi
done
echo '</testsuite>'
exit $code
`

const warmGateCatalog = `version: 1
signals:
  - name: tests
    kind: tests
    format: junit
    command: [sh, ./check.sh]
    warm: [.cache/cc]
    timeout: 20s
`

// TestT4WarmCacheInBottles: with real bottles, a change's phase begins with what the
// base's compiled, and nothing that it writes there is seen again; what was changed on
// disk is refused, until it is swept.
func TestT4WarmCacheInBottles(t *testing.T) {
	p := newCacheWorld(t, warmGateCatalog, map[string]string{"check.sh": warmCheck})
	printed := func(j *judge.Judged, phase string) string {
		t.Helper()
		b, err := p.c.VerdictEvidence(t.Context(), j.ID, phase, "stdout")
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	entries := func() []string {
		t.Helper()
		l, err := filepath.Glob(p.c.judge.WarmDir("*", gate.WarmFile))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	const poison = "for f in ~/.cache/cc/*; do echo 'echo poisoned; exit 0' >$f; done; echo x >~/.cache/cc/mine; rm -rf ~/.cache/cc/*-2*\n"
	var first *judge.Judged
	for i := range 5 {
		p.put("t_value.sh", poison+strings.Repeat("#\n", i))
		if first = p.run(); first.Outcome != gate.Passed || first.Warm == nil || len(entries()) > 0 {
			break
		}
		time.Sleep(3 * time.Second) // files of this machine changed a moment ago
	}
	if first.Outcome != gate.Passed || first.Warm == nil || first.Warm.Files != 2 || len(entries()) != 1 {
		t.Fatalf("%s, %+v, kept %v", first.Outcome, first.Warm, entries())
	}
	if base, change := printed(first, "tests-base"), printed(first, "tests-change"); strings.Count(base, "compiled") != 2 || strings.Count(change, "compiled") != 1 {
		t.Errorf("the first gate: on the base\n%s\non the change\n%s", base, change)
	}
	// The next change sees what the base left, and nothing of the one before it.
	p.put("t_value.sh", "! grep -rq 'p[o]isoned' ~/.cache && [ ! -e ~/.cache/cc/mine ]\n")
	second := p.run()
	if second.Outcome != gate.Passed || second.Warm == nil || second.Warm.Digest != first.Warm.Digest || second.Warm.Verdict != first.ID {
		t.Errorf("%s, %+v\n%s", second.Outcome, second.Warm, printed(second, "tests-change"))
	}
	if change := printed(second, "tests-change"); strings.Count(change, "compiled") != 1 || strings.Contains(change, "poisoned") {
		t.Errorf("the second gate, on the change:\n%s", change)
	}
	if base := printed(second, "tests-base"); base != printed(first, "tests-base") || second.Phases[0].Of+second.Phases[1].Of != first.ID {
		t.Errorf("the base's phase is not the first gate's:\n%s", base)
	}
	if problems, err := p.c.judge.VerifyGates(t.Context()); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	// Changed on disk: no gate goes on with it, nor runs without saying so.
	dir := filepath.Dir(entries()[0])
	files, err := filepath.Glob(dir + "/files/0/*")
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	for _, file := range []string{files[0], dir + "/phases/tests/stdout", dir + "/" + gate.WarmFile} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		edited := append([]byte(nil), b...)
		edited[len(edited)/2] ^= 1
		if err := os.WriteFile(file, edited, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := p.c.Gate(t.Context(), judge.GateOptions{Dir: p.ws, Base: p.base, Change: ".", Catalog: p.catalog}); err != nil {
			t.Errorf("a verdict that is given again needs no cache: %v", err)
		}
		p.put("other", file) // another change
		if _, err := p.c.Gate(t.Context(), judge.GateOptions{Dir: p.ws, Base: p.base, Change: ".", Catalog: p.catalog}); !errors.Is(err, judge.ErrLedger) || !strings.Contains(err.Error(), "sandbox gc") {
			t.Errorf("%s was edited: %v", file, err)
		}
		if err := errors.Join(os.WriteFile(file, b, 0o600), os.Remove(filepath.Join(p.ws, "other"))); err != nil {
			t.Fatal(err)
		}
	}
	if g, err := p.c.SweepSandboxes(t.Context()); err != nil || len(g.Removed) != 0 {
		t.Errorf("what is as recorded is swept: %v, %v", g.Removed, err)
	}
	if err := os.WriteFile(files[0], []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if g, err := p.c.SweepSandboxes(t.Context()); err != nil || len(g.Removed) != 1 || len(entries()) != 0 {
		t.Errorf("%v, %v; left %v", g.Removed, err, entries())
	}
}

// TestWarmHeldUntilRecorded: what a gate has laid down and not put on record yet nobody
// takes and nobody removes; who stops sweeping has removed nothing.
func TestWarmHeldUntilRecorded(t *testing.T) {
	dir := t.TempDir()
	c := openClient(t, map[string]string{"HOME": dir, "XDG_STATE_HOME": dir + "/state"})
	t.Chdir(t.TempDir()) // caches that were filled lie here
	if err := os.Mkdir("files", 0o755); err != nil {
		t.Fatal(err)
	}
	w := &judge.GateWork{C: c.judge, G: &gate.Gate{}, O: &judge.GateOptions{}}
	k := &gate.Warm{Key: "key", Phases: []gate.WarmPhase{{Phase: &gate.Phase{Signal: "t", On: "base", Ended: &gate.Ended{Run: "r"}}}}}
	_, lock, err := w.MoveWarm(t.Context(), k, &gate.Verdict{ID: "v"})
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(c.judge.WarmDir("key"), old, old); err != nil {
		t.Fatal(err)
	}
	there := func() bool {
		_, err := os.Stat(c.judge.WarmDir("key", gate.WarmFile))
		return err == nil
	}
	if removed, err := c.judge.SweepWarm(t.Context(), true); len(removed) > 0 || err != nil || !there() {
		t.Errorf("what is not on record yet is swept: %v, %v", removed, err)
	}
	if found, err := w.Find(t.Context(), "key"); found != nil || err != nil || !there() {
		t.Errorf("it is found: %v, %v", found, err)
	}
	lock.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if removed, err := c.judge.SweepWarm(ctx, true); len(removed) > 0 || !errors.Is(err, context.Canceled) || !there() {
		t.Errorf("stopped: %v, %v", removed, err)
	}
	if removed, err := c.judge.SweepWarm(t.Context(), true); len(removed) != 1 || err != nil || there() {
		t.Errorf("what was never put on record stays: %v, %v", removed, err)
	}
}

// TestWarmLockIsOfWhatIsThere: a lock that was opened before what it is of was removed
// holds nothing of what another gate put in its place.
func TestWarmLockIsOfWhatIsThere(t *testing.T) {
	dir := t.TempDir() + "/key"
	fill := func() {
		t.Helper()
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700), os.WriteFile(dir+"/lock", nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	open := func() *os.File {
		t.Helper()
		f, err := os.Open(dir + "/lock")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	fill()
	early := open()
	fill()
	if err := judge.ShareLock(early, dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the lock of what was removed holds: %v", err)
	}
	if err := judge.ShareLock(open(), dir); err != nil {
		t.Errorf("the lock of what is there: %v", err)
	}
	if err := judge.RemoveWarm(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("what is held was removed: %v", err)
	}
	gone := open()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := judge.ShareLock(gone, dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the lock of nothing holds: %v", err)
	}
}

// TestWarmDocumentIsBounded: what could not be read back is not kept, and leaves nothing.
func TestWarmDocumentIsBounded(t *testing.T) {
	dir := t.TempDir()
	c := openClient(t, map[string]string{"HOME": dir, "XDG_STATE_HOME": dir + "/state"})
	t.Chdir(t.TempDir())
	w := &judge.GateWork{C: c.judge, G: &gate.Gate{}, O: &judge.GateOptions{}}
	was := judge.MaxWarmFile
	t.Cleanup(func() { judge.MaxWarmFile = was })
	for _, most := range []int64{was, 100} {
		if err := os.Mkdir("files", 0o755); err != nil {
			t.Fatal(err)
		}
		judge.MaxWarmFile = most
		k := &gate.Warm{Key: fmt.Sprint("key", most), Host: map[string]string{"/usr/bin/cc": "1:2:3"}, Phases: []gate.WarmPhase{{Phase: &gate.Phase{Signal: "t", On: "base", Ended: &gate.Ended{Run: "r"}}}}}
		_, lock, err := w.MoveWarm(t.Context(), k, &gate.Verdict{ID: "v"})
		if (err == nil) != (most == was) {
			t.Errorf("at most %d bytes: %v", most, err)
		}
		if err == nil {
			lock.Close()
		}
	}
	if left, err := filepath.Glob(c.judge.WarmDir("*")); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
	if left, err := filepath.Glob(c.judge.WarmDir(".new-*")); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}

// TestGateCcache: with the real ccache, a change has what the base compiled, and never what
// was compiled of another header: a changed one, and one that stands before it now.
func TestGateCcache(t *testing.T) {
	if os.Getenv("CARBOY_TEST_LANGUAGES") != "1" || testenv.Look("ccache") == "" || testenv.Look("gcc") == "" || testenv.Look("make") == "" {
		t.Log("ccache is NOT tested: apt-get install ccache gcc make, then CARBOY_TEST_LANGUAGES=1")
		return
	}
	id, err := plan.Whoami(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p := newCacheWorld(t, "version: 1\nsignals:\n  - {name: t, kind: build, command: [make, test], env: {CCACHE_DIR: "+id.User.Home+"/.cache/ccache}, warm: [.cache/ccache]}\n", map[string]string{
		"Makefile": "test: main.o a.o\n\tccache -s\n\tgcc -o prog main.o a.o\n\t./prog\n%.o: %.c\n\tccache gcc -Ialt -Iinc -c -o $@ $<\n",
		"inc/x.h":  "#define WANT 1\n", "alt/y.h": "",
		"a.c":    "#include \"x.h\"\nint a(void) { return WANT; }\n",
		"main.c": "int a(void); int main(void) { return a() == 1 ? 0 : 1; }\n",
	})
	for _, x := range []struct {
		file, text string
		want       gate.Outcome
		hits       string // of two
		stale      string
	}{
		{"README", "words\n", gate.Passed, "2", ""},
		{"main.c", "int a(void); int main(void) { return a() != 1; }\n", gate.Passed, "1", ""},
		{"inc/x.h", "#define WANT 2\n", gate.Failed, "1", ""},
		{"alt/x.h", "#define WANT 2\n", gate.Failed, "0", "alt/x.h"},
		{"README", "others\n", gate.Passed, "2", ""},
	} {
		p.git("checkout", "-q", "-f", p.base)
		p.git("clean", "-fdq")
		p.put(x.file, x.text)
		j := p.run()
		b, err := p.c.VerdictEvidence(t.Context(), j.ID, "t-change", "stdout")
		if err != nil {
			t.Fatal(err)
		}
		stale := ""
		for _, ph := range j.Phases {
			if ph.Stale != nil {
				stale = ph.Stale.Path
			}
		}
		_, hits, _ := strings.Cut(string(b), "Hits:")
		if hits, _, _ = strings.Cut(hits, "/"); strings.TrimSpace(hits) != x.hits || j.Outcome != x.want || stale != x.stale || j.Warm == nil {
			t.Errorf("%s: %s, %s hits, stale %q, cache %+v\n%s", x.file, j.Outcome, hits, stale, j.Warm, b)
		}
	}
}
