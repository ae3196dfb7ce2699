package gate

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// warmWorld runs phases that compile what is not in their cache: a file of the tree by
// its time, its size and its name, as programs do.
type warmWorld struct {
	t            *testing.T
	base, change map[string]string
	catalog      string
	shape        map[string]string
	store        warmShelf
	compiled     map[string][]string // by signal and side
	upper        func(*tar.Writer)   // beside what is compiled
	ended        func(Job, *Ended)
}

// warmShelf keeps caches as package carboy does, without its records.
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
	e := ok(saw("/usr/bin/cc"))
	w.ended(j, e)
	var up bytes.Buffer
	tw := tar.NewWriter(&up)
	var did []string
	err := filepath.WalkDir(j.Tree, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%s-%d-%d", d.Name(), fi.Size(), fi.ModTime().Unix())
		b, err := os.ReadFile(filepath.Join(j.Warm[".cache/cc"], name))
		if err != nil {
			if b, err = os.ReadFile(p); err != nil {
				return err
			}
			did = append(did, d.Name())
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
	if w.upper != nil {
		w.upper(tw)
	}
	if err := tw.Close(); err != nil {
		w.t.Fatal(err)
	}
	if j.Take != nil {
		_ = j.Take(warmHome, &up)
	}
	return e
}

// judge runs a gate, and keeps what its base left.
func (w *warmWorld) judge() (*Verdict, *Gate) {
	w.t.Helper()
	w.compiled = map[string][]string{}
	g := newGate(w.t, w.catalog, tree(w.t, w.base), tree(w.t, w.change), nil)
	g.Runner, g.Warm, g.Shape = fakeRunner{w.run}, &w.store, w.shape
	v := verdict(w.t, g)
	k, err := g.Filled(v)
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
		for name, b := range map[string][]byte{"stdout": p.Phase.Stdout.Bytes, "stderr": nil, "observed.json": []byte(`{"facts":10,"execs":[{"path":"/usr/bin/cc","count":1}]}`)} {
			if err := os.WriteFile(filepath.Join(at, name), b, 0o600); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	b, err := k.Seal(w.t.Context(), dir)
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

// TestT4WarmCache: what the base's phases left speeds up the change's, in this gate and
// in later ones; what a change writes into it no other phase sees.
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

// TestT4WarmKey: a cache of another base, catalog or whatever shaped it is not used.
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

// host says of what is kept that a file of this machine was another one then.
func (w *warmWorld) host(file, print string) {
	for key, b := range w.store.docs {
		k, err := ParseWarm(b)
		if err != nil {
			w.t.Fatal(err)
		}
		k.Host = map[string]string{file: print}
		if w.store.docs[key], err = k.Seal(w.t.Context(), filepath.Join(w.store.dir, key)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// TestT4WarmTampered: whatever changes on disk of what is kept, no phase begins with it.
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
		w.compiled = map[string][]string{}
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

// TestT4WarmUpper: what a phase of the base writes is taken as far as it is a cache's;
// names and kinds that are none leave the change without one.
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
		if _, err := g.Filled(v); (x.files < 0) != (err != nil) {
			t.Errorf("%s: %v", what, err)
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

// TestT4WarmOnlyOfWhole: a phase of the base that was lost, or whose trace has gaps, fills
// nothing; one that fails by itself does.
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
		if (v.Warm != nil) != x.kept || (len(w.store.docs) > 0) != x.kept || v.Outcome != Passed {
			t.Errorf("%s: %+v, %d kept, %s", what, v.Warm, len(w.store.docs), v.Outcome)
		}
	}
}

// TestWarmCatalog: what is fetched, kept of a side or a result of tests is no cache.
func TestWarmCatalog(t *testing.T) {
	for what, x := range map[string]struct{ line, says string }{
		"a cache":            {"{name: b, kind: build, command: [cc], warm: [.cache/cc]}", ""},
		"Go's tests":         {"{name: b, kind: tests, format: go, command: [go, test, -json, -count=1, ./...], warm: [.cache/go-build]}", ""},
		"results of tests":   {"{name: b, kind: tests, format: go, command: [go, test, -json, ./...], warm: [.cache/go-build]}", "-count=1"},
		"what is fetched":    {"{name: b, kind: install, command: [npm, ci], network: [registry.npmjs.org], warm: [.npm]}", "beside network or keep"},
		"what is kept":       {"{name: b, kind: build, command: [cc], keep: [out], warm: [.cache/cc]}", "beside network or keep"},
		"a way out":          {"{name: b, kind: build, command: [cc], warm: [../x]}", "no path"},
		"the home":           {"{name: b, kind: build, command: [cc], warm: [.]}", "no path"},
		"one in another one": {"{name: b, kind: build, command: [cc], warm: [.cache, .cache/cc]}", "lies in"},
	} {
		_, err := ParseCatalog("gate.yaml", []byte("version: 1\nsignals:\n  - "+x.line+"\n"))
		if (err == nil) != (x.says == "") || err != nil && !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestT4WarmTimes: with a cache of the base's, what is not as there has another time: that
// it has the same size says nothing.
func TestT4WarmTimes(t *testing.T) {
	base := tree(t, map[string]string{"same": "x", "other": "y", "moved": "z"})
	change := tree(t, map[string]string{"same": "x", "other": "Y", "away": "z"})
	to := filepath.Join(t.TempDir(), "out")
	if err := change.LayOut(t.Context(), to, base); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]time.Time{"same": laidOut, "other": laidOutNew, "away": laidOutNew} {
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
