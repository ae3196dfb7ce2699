package gate

import (
	"context"
	"path"
	"slices"
	"strings"
)

// passedID is an id that passes, and the base's test that it is of.
type passedID struct {
	id   string
	test inText
}

// leftText finds ids that pass of tests of Python and JavaScript that checked something,
// and are in the text no more. What the text may make of parts, from a table or by a
// function around the runner's, with something that checks, is in it.
func leftText(ctx context.Context, was, is texts, change *Tree, format string, passed []string, unread map[string]bool) (map[string]inText, error) {
	known := map[inText]bool{}
	for t := range is {
		known[t.asKnown()] = true
	}
	lost := func(t inText) bool {
		s := was[t]
		return s != nil && s.best() == checks && is[t] == nil && !known[t.asKnown()] && !unread[s.file[checks]]
	}
	names := jsNames(was, is, lost)
	modules := pythonModules(was, is, change, lost)
	var found []passedID
	for _, id := range passed {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		t, ok := names.of(id, format)
		if !ok {
			t, ok = modules.of(id)
		}
		if ok {
			found = append(found, passedID{id, t})
		}
	}
	out, had := map[string]inText{}, map[string]bool{}
	for t := range was {
		had[t.file+"\x00"+t.full] = true
	}
	for _, p := range found {
		out[p.id] = p.test
	}
	if len(out) == 0 {
		return out, nil
	}
	// What JUnit's ids are of can be in any file, also in one that is as it was.
	return out, change.Each(ctx, func(f File) bool {
		ext := path.Ext(f.Path)
		return bodiesOf(f.Path) != nil && ext != ".go" && f.Mode != Link && f.Size <= maxTestText && slices.ContainsFunc(found, func(p passedID) bool {
			if format == "junit" {
				return (ext == ".py") == (path.Ext(p.test.file) == ".py")
			}
			return p.test.file == f.Path
		})
	}, func(f File, b []byte) error {
		var js *jsExplainer
		var bodies map[string][]body
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

// jsKnown is what the texts have by one name, with those of what it is in or without.
type jsKnown struct {
	there bool
	best  body
	lost  *inText
}

type jsKnownNames map[inText]*jsKnown

func jsNames(was, is texts, lost func(inText) bool) jsKnownNames {
	out := jsKnownNames{}
	at := func(t inText, f func(*jsKnown)) {
		if ext := path.Ext(t.file); ext == "" || ext == ".py" {
			return
		}
		for _, name := range []string{t.full, t.leaf} {
			k := inText{in: t.in, name: name}
			if out[k] == nil {
				out[k] = &jsKnown{}
			}
			f(out[k])
		}
	}
	for t, s := range is {
		at(t, func(k *jsKnown) { k.there, k.best = true, max(k.best, s.best()) })
	}
	for t := range was {
		gone := lost(t)
		at(t, func(k *jsKnown) {
			if gone && (k.lost == nil || t.file+"\x00"+t.full < k.lost.file+"\x00"+k.lost.full) {
				k.lost = &t
			}
		})
	}
	return out
}

// of finds the test that an id is of, if the text has it no more. The longest name that
// an id ends in is its own.
func (names jsKnownNames) of(id, format string) (inText, bool) {
	in, rest, ok := strings.Cut(id, "::")
	if format == "junit" {
		in, rest, ok = ".js", id, true
	}
	for ok {
		if k := names[inText{in: in, name: rest}]; k != nil {
			if k.lost != nil && (!k.there || k.best < helped) {
				return *k.lost, true
			}
			return inText{}, false
		}
		i := strings.IndexByte(rest, ' ')
		if j := strings.Index(rest, "::"); j >= 0 && (i < 0 || j < i) {
			i = j + 1
		}
		if ok = i >= 0; ok {
			rest = rest[i+1:]
		}
	}
	return inText{}, false
}

// pythonKnown are tests of Python by what ids say of where they are.
type pythonKnown struct {
	files map[string][]string // by what their modules are called
	place map[string]bool     // by file and full name
	gone  map[string]inText   // by file and full name; by file and name; by class and name
	best  map[string]body     // by file and name
}

func pythonModules(was, is texts, change *Tree, lost func(inText) bool) pythonKnown {
	k := pythonKnown{map[string][]string{}, map[string]bool{}, map[string]inText{}, map[string]body{}}
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
			if o, ok := k.gone[key]; !ok || t.file+t.full < o.file+o.full {
				k.gone[key] = t
			}
		}
	}
	return k
}

// of finds the test that an id is of, if the text has it no more. Also a class that has one
// of another's, which it says nothing of itself.
func (k pythonKnown) of(id string) (inText, bool) {
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
			t, ok := k.gone[f+"\x00"+full]
			switch {
			case ok:
				return t, true
			case i == len(words)-1, k.place[f+"\x00"+full], k.best[f+"\x00."+name] >= helped:
				return t, false
			}
			if t, ok = k.gone[f+"\x00."+name]; ok {
				// The id's class is what may have one of another's.
				t.full = full
				return t, true
			}
			return t, false
		}
	}
	t, ok := k.gone["\x00"+strings.Join(append(slices.Clone(words[max(0, len(words)-1):]), name), ".")]
	return t, ok
}
