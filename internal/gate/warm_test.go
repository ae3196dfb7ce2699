package gate

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/trace"
)

// warmWorld is a runner whose phases compile the files that are not in their cache. Like
// compilers, they recognize a file by its time, size and name.
type warmWorld struct {
	mu           sync.Mutex // phases run side by side
	t            *testing.T
	base, change map[string]string
	catalog      string
	shape        map[string]string
	store        warmShelf
	compiled     map[string][]string // by signal and side
	upper        func(*tar.Writer)   // beside what is compiled
	ended        func(Job, *Ended)
	asked        map[string]int // phases, by signal and side
	reads        []Reader       // beside what compilers read: what the change's phases do
	left         func(Job)      // when the phase's cache was taken
	moves        string         // what phases on the base give another name
}

// warmShelf stores caches as package carboy does, without an audit log.
type warmShelf struct {
	dir  string
	docs map[string][]byte
}

func (s *warmShelf) Find(ctx context.Context, key string) (*Warm, error) {
	b := s.docs[key]
	if b == nil {
		return nil, nil
	}
	w, err := ParseWarm(b)
	if err == nil {
		err = w.Open(ctx, filepath.Join(s.dir, key))
	}
	if err != nil {
		return nil, err
	}
	if w.Miss() != "" {
		return nil, nil
	}
	return w, nil
}

const warmCatalog = `version: 1
signals:
  - {name: b, kind: build, command: [cc], warm: [.cache/cc]}
  - {name: t, kind: tests, format: junit, command: [cc, test], warm: [.cache/cc]}
`

const warmHome = "/home/u"

func (w *warmWorld) run(j Job) *Ended {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := ok(saw("/usr/bin/cc"))
	w.ended(j, e)
	var up bytes.Buffer
	tw := tar.NewWriter(&up)
	var did []string
	rec := &readTracker{current: map[uint32]*processReads{}, paths: map[string]int{}}
	pid := uint32(2)
	rec.add(&trace.Fact{Op: trace.Fork, PPID: 1, PID: 2})
	rec.process(1).program = "/usr/bin/make"
	look := func(pid uint32, name string, errno uint32) {
		rec.add(&trace.Fact{Op: trace.Open, PID: pid, Path: Workspace + "/" + name, Errno: errno})
	}
	w.asked[j.Signal+" "+j.On]++
	err := filepath.WalkDir(j.Tree, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(j.Tree, p)
		if look(1, rel, 0); !strings.HasSuffix(rel, ".c") {
			return nil
		}
		name := fmt.Sprintf("%s-%d-%d", d.Name(), fi.Size(), fi.ModTime().Unix())
		b, err := os.ReadFile(filepath.Join(j.Warm[".cache/cc"], name))
		if err != nil {
			if b, err = os.ReadFile(p); err != nil {
				return err
			}
			did = append(did, d.Name())
			pid++
			rec.add(&trace.Fact{Op: trace.Fork, PPID: 1, PID: pid})
			rec.add(&trace.Fact{Op: trace.Exec, PID: pid, Path: "/usr/bin/cc1"})
			look(pid, rel, 0)
			if _, header, ok := strings.Cut(string(b), "include "); ok {
				text := []byte("broken: there is no " + header)
				for _, dir := range []string{"own/", "inc/"} {
					if t, err := os.ReadFile(filepath.Join(j.Tree, dir+header)); err == nil {
						look(pid, dir+header, 0)
						text = t
						break
					}
					look(pid, dir+header, 2)
				}
				b = append(b, text...)
			}
			at := "." + warmHome + "/.cache/cc/" + name
			if err := tw.WriteHeader(&tar.Header{Name: at, Typeflag: tar.TypeReg, Size: int64(len(b)), Mode: 0o644}); err != nil {
				return err
			}
			tw.Write(b)
		}
		e.Stdout.Bytes = fmt.Appendf(e.Stdout.Bytes, "<testcase name=\"%s\">", d.Name())
		if strings.Contains(string(b), "broken") {
			e.Stdout.Bytes = append(e.Stdout.Bytes, "<failure/>"...)
			e.Code = 1
		}
		e.Stdout.Bytes = append(e.Stdout.Bytes, "</testcase>"...)
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	e.Stdout.Bytes = slices.Concat([]byte("<testsuite>"), e.Stdout.Bytes, []byte("</testsuite>"))
	e.Stdout.Total = int64(len(e.Stdout.Bytes))
	w.compiled[j.Signal+" "+j.On] = did
	if j.On == "change" {
		for _, r := range w.reads {
			pid++
			rec.current[pid] = &processReads{program: r.Program, made: r.Made}
			look(pid, "inc/x.h", 0)
		}
	}
	if e.Observed != nil {
		e.Observed.Readers = rec.end()
		if j.On == "base" && w.moves != "" {
			e.Observed.Handled = []string{w.moves}
		}
	}
	if w.upper != nil {
		w.upper(tw)
	}
	if err := tw.Close(); err != nil {
		w.t.Fatal(err)
	}
	if j.Take != nil {
		_ = j.Take(warmHome, &up)
	}
	if w.left != nil {
		w.left(j)
	}
	return e
}

// judge runs a gate, and stores the caches that it filled.
func (w *warmWorld) judge() (*Verdict, *Gate) {
	w.t.Helper()
	w.compiled, w.asked = map[string][]string{}, map[string]int{}
	g := newGate(w.t, w.catalog, tree(w.t, w.base), tree(w.t, w.change), nil)
	g.Runner, g.Warm, g.Shape = fakeRunner{w.run}, &w.store, w.shape
	v := verdict(w.t, g)
	k, err := g.FilledCaches(v)
	if err != nil || k == nil {
		return v, g
	}
	dir := filepath.Join(w.store.dir, k.Key)
	os.RemoveAll(dir)
	if err := os.Rename(k.Dir(), dir); err != nil {
		w.t.Fatal(err)
	}
	for _, p := range k.Phases {
		at := filepath.Join(dir, WarmPhases, p.Signal)
		if err := os.MkdirAll(at, 0o700); err != nil {
			w.t.Fatal(err)
		}
		obs, err := json.Marshal(p.Observed)
		if err != nil {
			w.t.Fatal(err)
		}
		for name, b := range map[string][]byte{"stdout": p.Phase.Stdout.Bytes, "stderr": nil, "observed.json": obs} {
			if err := os.WriteFile(filepath.Join(at, name), b, 0o600); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	b, err := k.Encode(w.t.Context(), dir)
	if err != nil {
		w.t.Fatal(err)
	}
	w.store.docs[k.Key] = b
	return v, g
}

func newWarmWorld(t *testing.T) *warmWorld {
	return &warmWorld{
		t: t, base: map[string]string{"a.c": "one", "b.c": "two"}, change: map[string]string{"a.c": "one", "b.c": "two"},
		catalog: warmCatalog, shape: map[string]string{"carboy": "1", "image": "", "variable TZ": "UTC"},
		store: warmShelf{t.TempDir(), map[string][]byte{}}, ended: func(Job, *Ended) {},
	}
}

func (w *warmWorld) did(key string) string { return strings.Join(w.compiled[key], " ") }

// Caches of the base's phases serve the change's, in this gate and later ones. Writes of
// a change reach no other phase.
func TestT4WarmCache(t *testing.T) {
	w := newWarmWorld(t)
	w.change["b.c"] = "2wo" // the same name and size
	v, _ := w.judge()
	if v.Outcome != Passed || v.Warm == nil || v.Warm.Verdict != v.ID || v.Warm.Files != 2 {
		t.Fatalf("%+v, %+v", v.Signals, v.Warm)
	}
	for key, want := range map[string]string{"b base": "a.c b.c", "t base": "", "b change": "b.c", "t change": "b.c"} {
		if got := w.did(key); got != want {
			t.Errorf("the first gate: %s compiled %q, want %q", key, got, want)
		}
	}
	if len(v.Phases) != 4 {
		t.Errorf("%d phases are in the verdict, want all 4 that shaped it", len(v.Phases))
	}
	// The second: nothing runs on the base.
	second, _ := w.judge()
	if _, ran := w.compiled["t base"]; ran || second.Outcome != Passed || second.Warm == nil || second.Warm.Digest != v.Warm.Digest || second.Warm.Verdict != v.ID {
		t.Errorf("the second gate: %v, %+v", w.compiled, second.Warm)
	}
	if got := w.did("t change"); got != "b.c" {
		t.Errorf("the second gate compiled %q: what the change's phases wrote was kept, or what the base's wrote was not", got)
	}
	for _, p := range second.Phases {
		if (p.Of == v.ID) != (p.On == "base") {
			t.Errorf("%s on the %s is of verdict %q", p.Signal, p.On, p.Of)
		}
	}
	// A change that breaks what it had compiled well before: by the same name and size.
	w.change["b.c"] = "broken"
	w.base["b.c"] = "twoooo"
	if v, _ := w.judge(); v.Outcome == Passed {
		t.Error("a broken file of the size of the base's passes")
	}
	if v, _ := w.judge(); v.Outcome == Passed || w.did("t change") != "b.c" {
		t.Errorf("so the second time: %v", w.compiled)
	}
}

// With the base's tests, the change's phase starts with the base's cache, too, and makes
// anew what is not the base's.
func TestT4WarmBaseTests(t *testing.T) {
	w := newWarmWorld(t)
	w.catalog = strings.Replace(w.catalog, "format: junit,", "format: junit, test_files: [b.c],", 1)
	w.change["a.c"], w.change["b.c"] = "1ne", "2wo"
	v, _ := w.judge()
	if v.Outcome != Passed || w.did("t base") != "" || w.did("t change") != "a.c b.c" || w.did("t old-tests") != "a.c" || len(v.Phases) != 5 {
		t.Errorf("%s, compiled %v, %d phases", v.Outcome, w.compiled, len(v.Phases))
	}
	w.change["a.c"] = "broken"
	w.base["a.c"] = "oneone"
	if v, _ := w.judge(); v.Outcome == Passed {
		t.Error("a broken file of the size of the base's passes")
	}
}

// A cache for another base, catalog or shape is not used.
func TestT4WarmKey(t *testing.T) {
	for what, other := range map[string]func(*warmWorld){
		"the very same":        func(*warmWorld) {},
		"another base":         func(w *warmWorld) { w.base["a.c"] = "0ne" },
		"another catalog":      func(w *warmWorld) { w.catalog += "# x\n" },
		"another build":        func(w *warmWorld) { w.shape["carboy"] = "2" },
		"another image":        func(w *warmWorld) { w.shape["image"] = "x" },
		"another variable":     func(w *warmWorld) { w.shape["variable LANG"] = "C" },
		"a tool that changed":  func(w *warmWorld) { w.host("/tmp/carboy-no-such-tool", "1:2") },
		"another change, only": func(w *warmWorld) { w.change["c.c"] = "x" },
	} {
		w := newWarmWorld(t)
		first, _ := w.judge()
		other(w)
		v, _ := w.judge()
		_, ran := w.compiled["b base"]
		if fits := what == "the very same" || what == "another change, only"; ran == fits || v.Warm == nil || fits != (v.Warm.Verdict == first.ID) {
			t.Errorf("%s: the base ran: %t; %+v", what, ran, v.Warm)
		}
	}
}

// host alters the stored fingerprint of a file of this machine.
func (w *warmWorld) host(file, print string) {
	for key, b := range w.store.docs {
		k, err := ParseWarm(b)
		if err != nil {
			w.t.Fatal(err)
		}
		k.Host = map[string]string{file: print}
		if w.store.docs[key], err = k.Encode(w.t.Context(), filepath.Join(w.store.dir, key)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// After any change to stored caches no phase starts with them.
func TestT4WarmTampered(t *testing.T) {
	for what, tamper := range map[string]func(dir, file string) error{
		"nothing":            func(string, string) error { return nil },
		"a byte":             func(_, f string) error { return os.WriteFile(f, []byte("0ne"), 0o644) },
		"a file is gone":     func(_, f string) error { return os.Remove(f) },
		"one more":           func(d, _ string) error { return os.WriteFile(d+"/files/0/x", nil, 0o644) },
		"one more directory": func(d, _ string) error { return os.Mkdir(d+"/files/0/.git", 0o755) },
		"a right":            func(_, f string) error { return os.Chmod(f, 0o755) },
		"a link in its place": func(_, f string) error {
			return errors.Join(os.Rename(f, f+"2"), os.Symlink(filepath.Base(f)+"2", f))
		},
		"what tests printed":   func(d, _ string) error { return os.WriteFile(d+"/phases/t/stdout", []byte("<testsuite/>"), 0o600) },
		"what the kernel saw":  func(d, _ string) error { return os.WriteFile(d+"/phases/t/observed.json", []byte("{}"), 0o600) },
		"another name for all": func(d, _ string) error { return os.Rename(d+"/files/0", d+"/files/1") },
		"a link out of the way": func(d, _ string) error {
			return errors.Join(os.Rename(d+"/files", d+"/f"), os.Symlink("f", d+"/files"))
		},
	} {
		w := newWarmWorld(t)
		w.judge()
		for key := range w.store.docs {
			dir := filepath.Join(w.store.dir, key)
			all, err := filepath.Glob(dir + "/files/0/a.c-*")
			if err != nil || len(all) != 1 {
				t.Fatal(all, err)
			}
			if err := tamper(dir, all[0]); err != nil {
				t.Fatal(err)
			}
		}
		w.compiled, w.asked = map[string][]string{}, map[string]int{}
		g := newGate(t, w.catalog, tree(t, w.base), tree(t, w.change), nil)
		g.Runner, g.Warm, g.Shape = fakeRunner{w.run}, &w.store, w.shape
		_, err := g.Run(t.Context())
		switch {
		case what == "nothing":
			if err != nil {
				t.Errorf("what nobody touched is refused: %v", err)
			}
		case !errors.Is(err, ErrWarmChanged) || len(w.compiled) != 0:
			t.Errorf("%s: %v, and phases ran: %v", what, err, w.compiled)
		}
	}
}

// Only a phase's writes below its cache directories are stored. Invalid names and types
// leave the change without a cache.
func TestT4WarmUpper(t *testing.T) {
	at := "." + warmHome + "/.cache/cc/"
	file := func(name, text string) func(*tar.Writer) {
		return func(tw *tar.Writer) {
			tw.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(text)), Mode: 0o4755})
			io.WriteString(tw, text)
		}
	}
	entry := func(h *tar.Header) func(*tar.Writer) { return func(tw *tar.Writer) { tw.WriteHeader(h) } }
	for what, x := range map[string]struct {
		upper func(*tar.Writer)
		files int // that are kept; -1: there is no cache
	}{
		"a file": {func(tw *tar.Writer) {
			entry(&tar.Header{Name: at + "d/", Typeflag: tar.TypeDir})(tw)
			file(at+"d/x", "x")(tw)
		}, 3},
		"one of its neighbour's":   {file("."+warmHome+"/.cache/other/x", "x"), 2},
		"one whose name begins so": {file("."+warmHome+"/.cache/cc2/x", "x"), 2},
		"one in the tree":          {file("./workspace/x", "x"), 2},
		"a way out":                {file(at+"../../../x", "x"), -1},
		"git's files":              {entry(&tar.Header{Name: at + ".git/", Typeflag: tar.TypeDir}), -1},
		"a pipe":                   {entry(&tar.Header{Name: at + "p", Typeflag: tar.TypeFifo}), 2},
		"a device":                 {entry(&tar.Header{Name: at + "p", Typeflag: tar.TypeBlock, Devmajor: 8}), 2},
		"a link in place of all":   {entry(&tar.Header{Name: strings.TrimSuffix(at, "/"), Typeflag: tar.TypeSymlink, Linkname: "/etc"}), -1},
		"a link, written through": {func(tw *tar.Writer) {
			tw.WriteHeader(&tar.Header{Name: at + "l", Typeflag: tar.TypeSymlink, Linkname: "/tmp"})
			file(at+"l/carboy-x", "x")(tw)
		}, -1},
		"a link within": {func(tw *tar.Writer) {
			entry(&tar.Header{Name: at + "d/", Typeflag: tar.TypeDir})(tw)
			entry(&tar.Header{Name: at + "d/l", Typeflag: tar.TypeSymlink, Linkname: "../x"})(tw)
		}, 2},
		"a link elsewhere": {entry(&tar.Header{Name: at + "l", Typeflag: tar.TypeSymlink, Linkname: "/etc"}), -1},
		"one that climbs":  {entry(&tar.Header{Name: at + "d/l", Typeflag: tar.TypeSymlink, Linkname: "../../x"}), -1},
		"a file by two names": {func(tw *tar.Writer) {
			file(at+"x", "x")(tw)
			tw.WriteHeader(&tar.Header{Name: at + "y", Typeflag: tar.TypeLink, Linkname: at + "x"})
		}, 4},
		"another's file by its name": {entry(&tar.Header{Name: at + "h", Typeflag: tar.TypeLink, Linkname: "./etc/passwd"}), -1},
	} {
		w := newWarmWorld(t)
		w.upper = x.upper
		v, g := w.judge()
		files := -1
		if v.Warm != nil {
			files = v.Warm.Files
		}
		if files != x.files || v.Outcome != Passed {
			t.Errorf("%s: %d files are kept, want %d; %s", what, files, x.files, v.Outcome)
		}
		if k, _ := g.FilledCaches(v); (x.files < 0) != (v.WarmWhy != "") || k != nil != (x.files >= 0) {
			t.Errorf("%s: %q", what, v.WarmWhy)
		}
		if _, err := os.Lstat("/tmp/carboy-x"); err == nil {
			t.Errorf("%s: it was written to the host", what)
		}
	}
	// What is deleted is gone, and no file has a right that it should not.
	w := newWarmWorld(t)
	w.upper = func(tw *tar.Writer) {
		file(at+"gone", "x")(tw)
		tw.WriteHeader(&tar.Header{Name: at + "gone", Typeflag: tar.TypeChar})
		file(at+"kept", "x")(tw)
	}
	w.judge()
	root := filepath.Join(w.store.dir, slices.Collect(maps.Keys(w.store.docs))[0], "files/0")
	if _, err := os.Lstat(root + "/gone"); err == nil {
		t.Error("what was deleted is kept")
	}
	if fi, err := os.Lstat(root + "/kept"); err != nil || fi.Mode() != 0o755 || !fi.ModTime().Equal(warmTime) {
		t.Errorf("%v, %v", fi, err)
	}
}

// A phase of the base that was lost, or whose trace has gaps, fills no cache. One that
// fails by itself does.
func TestT4WarmOnlyOfWhole(t *testing.T) {
	for what, x := range map[string]struct {
		ended func(*Ended)
		kept  bool
	}{
		"it ends":     {func(*Ended) {}, true},
		"it fails":    {func(e *Ended) { e.Code = 2 }, true},
		"out of time": {func(e *Ended) { e.Reason = "timeout" }, false},
		"a gap":       {func(e *Ended) { e.Observed.Gaps = []string{"x"} }, false},
	} {
		w := newWarmWorld(t)
		w.ended = func(j Job, e *Ended) {
			if j.Signal == "b" && j.On == "base" {
				x.ended(e)
			}
		}
		v, _ := w.judge()
		if (v.WarmWhy == "") != x.kept {
			t.Errorf("%s: it says %q", what, v.WarmWhy)
		}
		if (v.Warm != nil) != x.kept || (len(w.store.docs) > 0) != x.kept || v.Outcome != Passed {
			t.Errorf("%s: %+v, %d kept, %s", what, v.Warm, len(w.store.docs), v.Outcome)
		}
	}
}

// Downloads, kept files and test results cannot be cached.
func TestWarmCatalog(t *testing.T) {
	for what, x := range map[string]struct{ line, says string }{
		"a cache":            {"{name: b, kind: build, command: [cc], warm: [.cache/cc]}", ""},
		"Go's tests":         {"{name: b, kind: tests, format: go, command: [go, test, -json, -count=1, ./...], warm: [.cache/go-build]}", ""},
		"results of tests":   {"{name: b, kind: tests, format: go, command: [go, test, -json, ./...], warm: [.cache/go-build]}", "-count=1"},
		"what is fetched":    {"{name: b, kind: install, command: [npm, ci], network: [registry.npmjs.org], warm: [.npm]}", "combined with network or keep"},
		"what is kept":       {"{name: b, kind: build, command: [cc], keep: [out], warm: [.cache/cc]}", "combined with network or keep"},
		"a way out":          {"{name: b, kind: build, command: [cc], warm: [../x]}", "not a path"},
		"the home":           {"{name: b, kind: build, command: [cc], warm: [.]}", "not a path"},
		"one in another one": {"{name: b, kind: build, command: [cc], warm: [.cache, .cache/cc]}", "lies in"},
	} {
		_, err := ParseCatalog("gate.yaml", []byte("version: 1\nsignals:\n  - "+x.line+"\n"))
		if (err == nil) != (x.says == "") || err != nil && !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// With a cache of the base, a file that differs from the base has another time, even if
// it has the same size.
func TestT4WarmTimes(t *testing.T) {
	base := tree(t, map[string]string{"same": "x", "other": "y", "moved": "z"})
	change := tree(t, map[string]string{"same": "x", "other": "Y", "away": "z"})
	to := filepath.Join(t.TempDir(), "out")
	if err := change.LayOut(t.Context(), to, base); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]time.Time{"same": baseFileTime, "other": changedFileTime, "away": changedFileTime} {
		if fi, err := os.Stat(filepath.Join(to, name)); err != nil || !fi.ModTime().Equal(want) {
			t.Errorf("%s: %v, %v", name, fi.ModTime(), err)
		}
	}
	// So whether a file is the base's is an input, also of one that nobody opened.
	w := newWarmWorld(t)
	v, g := w.judge()
	in, err := g.Inputs(t.Context(), v, map[string]string{"x": "1"})
	if err != nil {
		t.Fatal(err)
	}
	if why, err := in.Miss(t.Context(), g.Base, tree(t, w.change), map[string]string{"x": "1"}); why != "" || err != nil {
		t.Errorf("the same again: %q, %v", why, err)
	}
	w.change["a.c"] = "0ne"
	if why, err := in.Miss(t.Context(), g.Base, tree(t, w.change), map[string]string{"x": "1"}); !strings.Contains(why, "the base's") || err != nil {
		t.Errorf("a file that nobody opened is not the base's any more: %q, %v", why, err)
	}
}

// Compilers name cache entries after what they hash, which is less than what they read.
// If a file that was read differs, the cache is not used, whoever looks at the file. If
// everything that read it ran again, nothing runs twice.
func TestT4WarmStale(t *testing.T) {
	for what, x := range map[string]struct {
		change map[string]string // "": gone
		reads  []Reader
		stale  string
		passes bool
		moves  string
	}{
		"nothing":                          {passes: true},
		"a file that nobody compiles":      {change: map[string]string{"new": "x"}, passes: true},
		"a source":                         {change: map[string]string{"c.c": "Three"}, passes: true},
		"a source is gone":                 {change: map[string]string{"c.c": ""}, stale: "c.c"},
		"a source is new":                  {change: map[string]string{"d.c": "include x.h"}, passes: true},
		"a header and all that use it":     {change: map[string]string{"inc/x.h": "other!", "a.c": "One include x.h", "b.c": "Two include x.h"}, passes: true},
		"a header":                         {change: map[string]string{"inc/x.h": "broken"}, stale: "inc/x.h"},
		"a header that is good":            {change: map[string]string{"inc/x.h": "other!"}, stale: "inc/x.h", passes: true},
		"a header is gone":                 {change: map[string]string{"inc/x.h": ""}, stale: "inc/x.h"},
		"a header before it":               {change: map[string]string{"own/x.h": "broken"}, stale: "own/x.h"},
		"a header, one that uses it":       {change: map[string]string{"inc/x.h": "broken", "a.c": "One include x.h"}, stale: "inc/x.h"},
		"a header, and another uses it":    {change: map[string]string{"inc/x.h": "broken", "d.c": "include x.h"}, stale: "inc/x.h"},
		"a header that a test looks at":    {change: map[string]string{"inc/x.h": "broken"}, reads: []Reader{{Program: "/usr/bin/cat"}}, stale: "inc/x.h"},
		"a header that a test compiles":    {change: map[string]string{"inc/x.h": "broken"}, reads: []Reader{{Program: "/usr/bin/cc1"}}, stale: "inc/x.h"},
		"in a directory that is moved":     {change: map[string]string{"inc/y.h": "1"}, moves: "inc", stale: "inc/y.h", passes: true},
		"beside a directory that is moved": {change: map[string]string{"d/y.h": "1"}, moves: "inc", passes: true},
		"a compiler that the change made":  {change: map[string]string{"inc/x.h": "broken"}, reads: []Reader{{Program: "/usr/bin/cc1", Made: true}}, stale: "inc/x.h"},
	} {
		w := newWarmWorld(t)
		w.base = map[string]string{"a.c": "one include x.h", "b.c": "two include x.h", "c.c": "three", "inc/x.h": "header"}
		w.change, w.reads, w.moves = maps.Clone(w.base), x.reads, x.moves
		for name, text := range x.change {
			if w.change[name] = text; text == "" {
				delete(w.change, name)
			}
		}
		for i := range 2 { // the second time with what was kept
			v, _ := w.judge()
			if (v.Outcome == Passed) != x.passes || v.Warm == nil {
				t.Errorf("%s, %d: %s, %+v", what, i, v.Outcome, v.Warm)
			}
			for _, p := range v.Phases {
				switch {
				case p.On == "base" && p.Stale == nil:
				case p.On == "base", (p.Stale != nil) != (x.stale != ""), p.Stale != nil && p.Stale.Path != x.stale:
					t.Errorf("%s, %d: %s on the %s: %+v, want %q", what, i, p.Signal, p.On, p.Stale, x.stale)
				}
			}
			want := 1
			if x.stale != "" {
				want++
			}
			if !x.passes && what != "a source is gone" { // no test fails
				want += timesAgain
			}
			if n := w.asked["t change"]; n != want {
				t.Errorf("%s, %d: the change's tests ran %d times", what, i, n)
			}
			var text strings.Builder
			if v.Text(&text, false); strings.Contains(text.String(), "not used by t: "+x.stale) != (x.stale != "") {
				t.Errorf("%s: the verdict says\n%s", what, text.String())
			}
		}
	}
}

// The bounds hold for all phases and names together. A gate that exceeds them goes on
// without caches, and says so.
func TestT4WarmBounds(t *testing.T) {
	at := "." + warmHome + "/.cache/cc/"
	upper := func(links int) func(*tar.Writer) {
		return func(tw *tar.Writer) {
			tw.WriteHeader(&tar.Header{Name: at + "x", Typeflag: tar.TypeReg, Size: 1000, Mode: 0o644})
			tw.Write(make([]byte, 1000))
			for i := range links {
				tw.WriteHeader(&tar.Header{Name: fmt.Sprint(at, i), Typeflag: tar.TypeLink, Linkname: at + "x"})
			}
		}
	}
	files, bytes := maxWarmFiles, maxWarmBytes
	defer func() { maxWarmFiles, maxWarmBytes = files, bytes }()
	// Both of the base's phases write the file, and the first compiles two of some bytes.
	for what, x := range map[string]struct {
		files, bytes int64
		links        int
		kept         bool
	}{
		"what fits":           {4, 2006, 0, true},
		"files of two":        {3, 2006, 0, false},
		"bytes of two":        {4, 2005, 0, false},
		"links that fit":      {100, 4006, 1, true},
		"links are in full":   {100, 4005, 1, false},
		"links as one by one": {7, 8006, 2, false},
	} {
		maxWarmFiles, maxWarmBytes = x.files, x.bytes
		w := newWarmWorld(t)
		w.upper = upper(x.links)
		if v, g := w.judge(); (v.Warm != nil) != x.kept || (v.WarmWhy == "") != x.kept || v.Outcome != Passed || (g.WarmDir() != "") != x.kept {
			t.Errorf("%s: %+v, %q, %s", what, v.Warm, v.WarmWhy, v.Outcome)
		}
	}
}

const warmAfter = `version: 1
signals:
  - {name: gen, kind: tests, format: junit, command: [cc], keep: [out]}
  - {name: n, kind: build, command: [cc], after: [gen]}
  - {name: b, kind: build, command: [cc], warm: [.cache/cc]}
  - {name: t, kind: tests, format: junit, command: [cc, test], after: [gen], warm: [.cache/cc]}
`

// A signal that keeps files runs on the base once. If it fails there, the change has no
// cache, but a verdict. Files have another time only with a cache.
func TestWarmAfter(t *testing.T) {
	for what, code := range map[string]int{"what is kept": 0, "the base keeps nothing": 1} {
		w := newWarmWorld(t)
		w.catalog = warmAfter
		w.change["b.c"] = "2wo"
		times := map[string]time.Time{}
		w.ended = func(j Job, e *Ended) {
			e.Changes = &change.Set{}
			if fi, err := os.Stat(filepath.Join(j.Tree, "b.c")); err == nil && j.On == "change" {
				times[j.Signal] = fi.ModTime()
			}
		}
		base := w.base
		if code != 0 {
			w.base = maps.Clone(base)
			w.base["b.c"] = "broken"
		}
		v, _ := w.judge()
		if (v.Outcome == Passed) != (code == 0) || (v.Warm != nil) != (code == 0) || (v.WarmWhy == "") != (code == 0) {
			t.Errorf("%s: %s, %+v, %q", what, v.Outcome, v.Warm, v.WarmWhy)
		}
		for _, r := range v.Signals {
			if r.Name == "b" && r.Outcome != Passed {
				t.Errorf("%s: what needs nothing of the base: %s, %s", what, r.Outcome, r.Why)
			}
		}
		dirs := map[string]bool{}
		for _, p := range v.Phases {
			if dirs[p.EvidenceOf()] {
				t.Errorf("%s: %s ran twice on the %s", what, p.Signal, p.On)
			}
			dirs[p.EvidenceOf()] = true
		}
		if w.asked["gen base"] != 1 || !times["n"].Equal(baseFileTime) || !times["gen"].Equal(baseFileTime) || code == 0 && !times["t"].Equal(changedFileTime) {
			t.Errorf("%s: %v ran, with files of %v", what, w.asked, times)
		}
	}
}

// Caches that can't be hashed leave the change without one.
func TestWarmUnsealed(t *testing.T) {
	w := newWarmWorld(t)
	w.left = func(j Job) {
		if j.Signal == "t" && j.On == "base" {
			if err := os.RemoveAll(filepath.Dir(j.Warm[".cache/cc"])); err != nil {
				t.Fatal(err)
			}
		}
	}
	if v, _ := w.judge(); v.Outcome != Passed || v.Warm != nil || v.WarmWhy == "" {
		t.Errorf("%s, %+v, %q", v.Outcome, v.Warm, v.WarmWhy)
	}
}

// A cancelled check of a cache does not report that it was altered.
func TestWarmCancelled(t *testing.T) {
	w := newWarmWorld(t)
	w.judge()
	for key, b := range w.store.docs {
		k, err := ParseWarm(b)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(w.store.dir, key)
		if err := k.Open(t.Context(), dir); err != nil {
			t.Errorf("what nobody touched: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := k.Open(ctx, dir); !errors.Is(err, context.Canceled) || errors.Is(err, ErrWarmChanged) {
			t.Errorf("stopped: %v", err)
		}
		if _, err := ParseWarm(append(b, "{}"...)); err == nil {
			t.Error("something stands behind the document")
		}
	}
}

// Phases that Again ran are in the verdict that follows.
func TestWarmAskedAgain(t *testing.T) {
	w := newWarmWorld(t)
	w.catalog = `version: 1
signals:
  - {name: i, kind: build, command: [get], network: [example.com], keep: [out]}
  - {name: b, kind: build, command: [cc], after: [i], warm: [.cache/cc]}
`
	answer := "1"
	w.ended = func(j Job, e *Ended) {
		e.Changes = &change.Set{}
		if j.Signal == "i" {
			e.Networked, e.Fetched = true, []Fetch{{"GET", "https://example.com/", 200, answer}}
		}
	}
	given := map[string]string{"x": "1"}
	v, g := w.judge()
	in, err := g.Inputs(t.Context(), v, given)
	if err != nil || len(in.Network) != 2 {
		t.Fatal(in, err)
	}
	for _, answer = range []string{"1", "2"} {
		w.asked = map[string]int{}
		g := newGate(t, w.catalog, tree(t, w.base), tree(t, w.change), nil)
		g.Runner, g.Warm, g.Shape = fakeRunner{w.run}, &w.store, w.shape
		why, err := g.Rerun(t.Context(), in)
		if err != nil || (why == "") != (answer == "1") {
			t.Fatal(why, err)
		}
		if why, err = g.Rerun(t.Context(), in); err != nil || (why == "") != (answer == "1") {
			t.Fatal(why, err)
		}
		next, err := g.Inputs(t.Context(), verdict(t, g), given)
		if err != nil || len(next.Network) != 2 || w.asked["i base"] != 1 || w.asked["i change"] != 1 {
			t.Errorf("answer %s: %+v, %v; %v ran", answer, next, err, w.asked)
		}
	}
}
