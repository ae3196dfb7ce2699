package gate

import (
	"context"
	"path"
	"slices"
	"strings"
)

// removedCandidate is the id of a passed test, and the test of the base that has it.
type removedCandidate struct {
	id   string
	test testKey
}

// findRemovedTests returns ids of passed Python and JavaScript tests that checked
// something on the base and whose text is gone. Such tests can still pass if the text
// makes them from parts, from a table, or in a wrapper around the runner's function: ids
// that this may explain are left out.
func findRemovedTests(ctx context.Context, was, is testTexts, change *Tree, format string, passed []string, unread map[string]bool) (map[string]testKey, error) {
	known := map[testKey]bool{}
	for t := range is {
		known[t.runnerKey()] = true
	}
	lost := func(t testKey) bool {
		s := was[t]
		return s != nil && s.best() == bodyChecks && is[t] == nil && !known[t.runnerKey()] && !unread[s.file[bodyChecks]]
	}
	names := jsNames(was, is, lost)
	modules := pythonModules(was, is, change, lost)
	var found []removedCandidate
	for _, id := range passed {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		t, ok := names.find(id, format)
		if !ok {
			t, ok = modules.find(id)
		}
		if ok {
			found = append(found, removedCandidate{id, t})
		}
	}
	out, had := map[string]testKey{}, map[string]bool{}
	for t := range was {
		had[t.file+"\x00"+t.full] = true
	}
	for _, p := range found {
		out[p.id] = p.test
	}
	if len(out) == 0 {
		return out, nil
	}
	// JUnit ids may belong to any file, also to one that has not changed.
	return out, change.Each(ctx, func(f File) bool {
		ext := path.Ext(f.Path)
		return bodyParser(f.Path) != nil && ext != ".go" && f.Mode != Link && f.Size <= maxTestText && slices.ContainsFunc(found, func(p removedCandidate) bool {
			if format == "junit" {
				return (ext == ".py") == (path.Ext(p.test.file) == ".py")
			}
			return p.test.file == f.Path
		})
	}, func(f File, b []byte) error {
		var js *jsExplainer
		var bodies map[string][]bodyKind
		for _, p := range found {
			if err := ctx.Err(); err != nil {
				return err
			}
			t := p.test
			if _, open := out[p.id]; !open || t.file != f.Path && format != "junit" {
				continue
			}
			yes := false
			switch {
			case path.Ext(f.Path) != ".py":
				if js == nil {
					js = newJSExplainer(b, func(full string) bool { return had[f.Path+"\x00"+full] })
				}
				yes = js.explains(t.leaf)
			case t.file == f.Path:
				if bodies == nil {
					bodies, _ = pythonBodies(b)
				}
				yes = pythonExplains(b, strings.TrimSuffix(strings.TrimSuffix(t.full, t.leaf), "."), t.leaf, bodies)
			}
			if yes {
				delete(out, p.id)
			}
		}
		return nil
	})
}

// jsNameState records the tests of one name, with or without the names of enclosing
// blocks.
type jsNameState struct {
	there bool
	best  bodyKind
	lost  *testKey
}

type jsNameIndex map[testKey]*jsNameState

func jsNames(was, is testTexts, lost func(testKey) bool) jsNameIndex {
	out := jsNameIndex{}
	at := func(t testKey, f func(*jsNameState)) {
		if ext := path.Ext(t.file); ext == "" || ext == ".py" {
			return
		}
		for _, name := range []string{t.full, t.leaf} {
			k := testKey{scope: t.scope, name: name}
			if out[k] == nil {
				out[k] = &jsNameState{}
			}
			f(out[k])
		}
	}
	for t, s := range is {
		at(t, func(k *jsNameState) { k.there, k.best = true, max(k.best, s.best()) })
	}
	for t := range was {
		gone := lost(t)
		at(t, func(k *jsNameState) {
			if gone && (k.lost == nil || t.file+"\x00"+t.full < k.lost.file+"\x00"+k.lost.full) {
				k.lost = &t
			}
		})
	}
	return out
}

// find returns the removed test that an id belongs to. The longest known name that the id
// ends in is the test's.
func (names jsNameIndex) find(id, format string) (testKey, bool) {
	in, rest, ok := strings.Cut(id, "::")
	if format == "junit" {
		in, rest, ok = ".js", id, true
	}
	for ok {
		if k := names[testKey{scope: in, name: rest}]; k != nil {
			if k.lost != nil && (!k.there || k.best < bodyCallsCheck) {
				return *k.lost, true
			}
			return testKey{}, false
		}
		i := strings.IndexByte(rest, ' ')
		if j := strings.Index(rest, "::"); j >= 0 && (i < 0 || j < i) {
			i = j + 1
		}
		if ok = i >= 0; ok {
			rest = rest[i+1:]
		}
	}
	return testKey{}, false
}

// pythonTestIndex finds Python tests by the parts of their ids.
type pythonTestIndex struct {
	files   map[string][]string // by module name
	place   map[string]bool     // by file and full name
	removed map[string]testKey  // by file and full name; by file and name; by class and name
	best    map[string]bodyKind // by file and name
}

func pythonModules(was, is testTexts, change *Tree, lost func(testKey) bool) pythonTestIndex {
	k := pythonTestIndex{map[string][]string{}, map[string]bool{}, map[string]testKey{}, map[string]bodyKind{}}
	for _, f := range change.Files {
		if stem, ok := strings.CutSuffix(path.Base(f.Path), ".py"); ok {
			k.files[stem] = append(k.files[stem], f.Path)
		}
	}
	for t, s := range is {
		if path.Ext(t.file) == ".py" {
			k.place[t.file+"\x00"+t.full] = true
			k.best[t.file+"\x00."+t.leaf] = max(k.best[t.file+"\x00."+t.leaf], s.best())
		}
	}
	for t := range was {
		if path.Ext(t.file) != ".py" {
			continue
		}
		k.place[t.file+"\x00"+t.full] = true
		if !lost(t) {
			continue
		}
		words := strings.Split(t.full, ".")
		for _, key := range []string{t.file + "\x00" + t.full, t.file + "\x00." + t.leaf, "\x00" + strings.Join(words[max(0, len(words)-2):], ".")} {
			if o, ok := k.removed[key]; !ok || t.file+t.full < o.file+o.full {
				k.removed[key] = t
			}
		}
	}
	return k
}

// find returns the removed test that an id belongs to, also if a class inherits the test
// from another.
func (k pythonTestIndex) find(id string) (testKey, bool) {
	id, _, _ = strings.Cut(id, "[") // its parameters
	left, name := "", id
	if i := strings.LastIndex(id, "::"); i >= 0 {
		left, name = id[:i], id[i+2:]
	}
	words := strings.FieldsFunc(left, func(r rune) bool { return strings.ContainsRune("./:", r) })
	for i := len(words) - 1; i >= 0; i-- {
		for _, f := range k.files[words[i]] {
			dirs := strings.Split(f, "/")
			for a, b := i-1, len(dirs)-2; ; a, b = a-1, b-1 {
				if a < 0 || b < 0 {
					break
				}
				if words[a] != dirs[b] {
					dirs = nil
					break
				}
			}
			if dirs == nil {
				continue
			}
			full := strings.Join(append(slices.Clone(words[i+1:]), name), ".")
			t, ok := k.removed[f+"\x00"+full]
			switch {
			case ok:
				return t, true
			case i == len(words)-1, k.place[f+"\x00"+full], k.best[f+"\x00."+name] >= bodyCallsCheck:
				return t, false
			}
			if t, ok = k.removed[f+"\x00."+name]; ok {
				// The class in the id may inherit the test.
				t.full = full
				return t, true
			}
			return t, false
		}
	}
	t, ok := k.removed["\x00"+strings.Join(append(slices.Clone(words[max(0, len(words)-1):]), name), ".")]
	return t, ok
}
