package document

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func read(t *testing.T, text string, use func(Value)) string {
	t.Helper()
	d, root, err := Parse("f.yaml", []byte(text))
	if err == nil {
		use(root)
		err = d.Err()
	}
	if err == nil {
		return ""
	}
	var p Problem
	if !errors.As(err, &p) || p.File != "f.yaml" {
		t.Errorf("%q: no problem in %v", text, err)
	}
	return err.Error()
}

func TestValues(t *testing.T) {
	got := map[string]any{}
	if msg := read(t, `
name: x # a comment
n: 17
yes: true
list: [a, "b: c"]
word: second
deep: {a: {b: "1"}}
`, func(v Value) {
		m := v.Mapping("name", "n", "yes", "list", "word", "deep", "absent")
		got["name"], got["n"], got["yes"] = m.Get("name").Text(), m.Get("n").Int(0, 0, 20), m.Get("yes").Bool(false)
		got["list"], got["word"] = strings.Join(m.Get("list").Strings(), "|"), m.Get("word").OneOf("first", "second")
		b := m.Get("deep").Mapping("a").Get("a").Mapping("b").Get("b")
		got["deep"], got["field"], got["line"] = b.Text(), b.Field(), b.Line()
		a := m.Get("absent")
		got["absent"] = !a.Present() && a.Text() == "" && a.Int(7, 0, 9) == 7 && a.Bool(true) && len(a.List()) == 0 && a.OneOf("d", "e") == "d" && a.Line() == 0
	}); msg != "" {
		t.Fatal(msg)
	}
	for k, want := range map[string]any{"name": "x", "n": int64(17), "yes": true, "list": "a|b: c", "word": "second", "deep": "1", "field": "deep.a.b", "line": 7, "absent": true} {
		if got[k] != want {
			t.Errorf("%s: %v, wanted %v", k, got[k], want)
		}
	}
	for _, empty := range []string{"", "# nothing\n", "---\n", "~\n"} {
		if msg := read(t, empty, func(v Value) {
			if v.Present() {
				t.Errorf("%q is there", empty)
			}
		}); msg != "" {
			t.Errorf("%q: %s", empty, msg)
		}
	}
}

// TestRefused: what is wrong, and the place and words by which a person finds it.
func TestRefused(t *testing.T) {
	use := func(v Value) {
		m := v.Mapping("host", "routes", "n", "on")
		m.Get("host").Text()
		for _, r := range m.Get("routes").List() {
			r.Mapping("host", "port").Need("host").Text()
		}
		m.Get("n").Int(0, 1, 10)
		m.Get("on").Bool(false)
	}
	for _, x := range []struct{ text, want string }{
		{"hots: a", `f.yaml:1:1: hots: unknown key; did you mean host?`},
		{"zzz: a", `f.yaml:1:1: zzz: unknown key; known: host, routes, n, on`},
		{"host: a\nhost: b", `f.yaml:2:1: host: given twice; the first is in line 1`},
		{"host: &x a", "anchors"},
		{"host: &x a\nroutes: *x", "anchors"},
		{"host: !!str a", "tags"},
		{"host: !foo a", "tags"},
		{"<<: {host: a}", "a key is a plain word"},
		{"? [a]\n: b", "a key is a plain word"},
		{"host: a\n---\nhost: b", "second document"},
		{"host: true", `f.yaml:1:7: host: wanted text`},
		{"host: 0x10", "wanted text"},
		{"host: 2020-01-01", "wanted text"},
		{"host:", "host: has no value"},
		{"host: ~", "has no value"},
		{"host: [a]", "not a list"},
		{"- a", "wanted a mapping, not a list"},
		{"a", `not the text "a"`},
		{"routes:\n- host: a\n- prot: 1", "f.yaml:3:3: routes[1].prot: unknown key; did you mean port?"},
		{"routes:\n- host: a\n- port: 1", "f.yaml:3:3: routes[1]: needs host"},
		{"routes: {a: b}", "wanted a list, not a mapping"},
		{"n: 11", "n: wanted a number from 1 to 10"},
		{"n: 0o17", "wanted a whole number"},
		{"n: 1_0", "wanted a whole number"},
		{"n: 1.0", "wanted a whole number"},
		{"n: '1'", "wanted a whole number"},
		{"n: 99999999999999999999", "wanted a whole number"},
		{"on: yes", "wanted true or false"},
		{"on: 'true'", "wanted true or false"},
		{"on: True", "wanted true or false"},
		{"host: \"a", "not YAML"},
		{"host: a\n  b: c", "f.yaml:2"},
		{"\thost: a", "not YAML"},
		{"host: \xff", "f.yaml:1:7: not UTF-8"},
		{"ok: é\nhost: a\x00", "f.yaml:2:8: not UTF-8"},
		{"host: " + strings.Repeat("[", 40) + strings.Repeat("]", 40), "nested deeper"},
		{"host: " + strings.Repeat("a", MaxSize), "larger than 1024 KiB"},
	} {
		if msg := read(t, x.text, use); !strings.Contains(msg, x.want) {
			t.Errorf("%.60q: %q, wanted %q", x.text, msg, x.want)
		}
	}
}

func TestAllAtOnce(t *testing.T) {
	msg := read(t, "b: 1\na: 2\nhots: x\n", func(v Value) { v.Mapping("host") })
	lines := strings.Split(msg, "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "f.yaml:1:") || !strings.HasPrefix(lines[2], "f.yaml:3:") {
		t.Errorf("%q", lines)
	}
	var many strings.Builder
	for i := range 100 {
		many.WriteString(strings.Repeat("x", i+1) + ": 1\n")
	}
	lines = strings.Split(read(t, many.String(), func(v Value) { v.Mapping("host") }), "\n")
	if len(lines) != maxProblems+1 || !strings.Contains(lines[maxProblems], "and 80 more") {
		t.Errorf("%d lines, the last %q", len(lines), lines[len(lines)-1])
	}
}

func TestNearest(t *testing.T) {
	words := []string{"host", "port", "methods", "auth_scheme"}
	for s, want := range map[string]string{"hots": "host", "Host": "host", "method": "methods", "auth-scheme": "auth_scheme", "zzz": "", "": "", "x": "", strings.Repeat("a", 100): ""} {
		if got := Nearest(s, words); got != want {
			t.Errorf("Nearest(%q) = %q, wanted %q", s, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"a: b", "- 1\n- [2, {c: ~}]", "? x", "a: &b c\nd: *b", "%YAML 1.2\n---\nx", "a: !!binary aGk=", "\"\\x00\"", "a: |\n  b\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, root, err := Parse("f", b)
		if err != nil {
			var p Problem
			if !errors.As(err, &p) {
				t.Fatalf("%T", err)
			}
			return
		}
		walk(root, 0)
		if err := d.Err(); err != nil && len(err.(Error)) > maxProblems+1 {
			t.Fatal("unbounded")
		}
	})
}

func walk(v Value, depth int) {
	if depth > maxDepth+2 {
		panic("deep")
	}
	_ = v.Text() + v.OneOf("a") + v.Field()
	v.Bool(false)
	v.Int(0, math.MinInt64, math.MaxInt64)
	if v.IsList() {
		for _, e := range v.List() {
			walk(e, depth+1)
		}
		return
	}
	_, vs := v.Entries()
	for _, e := range vs {
		walk(e, depth+1)
	}
}

// TestLineEndsThatAreNotSeen: what looks like the rest of a comment is one, and what
// is shown in an order is in that order.
func TestLineEndsThatAreNotSeen(t *testing.T) {
	for _, c := range []string{"\u0085", "\u2028", "\u2029", "\r", "\u202e", "\u202a", "\u2066", "\u2069", "\u009b", "\ufeff"} {
		if _, _, err := Parse("f", []byte("a: 1 # note"+c+"b: 2\n")); err == nil || !strings.Contains(err.Error(), "f:1:12") {
			t.Errorf("%q: %v", c, err)
		}
	}
	for _, good := range []string{"a: 1 # note\r\nb: 2\r\n", "\ufeffa: 1\nb: 2\n", "a: 1 # ש\u200f é 日本\nb: 2\n"} {
		d, root, err := Parse("f", []byte(good))
		if err != nil {
			t.Errorf("%q: %v", good, err)
			continue
		}
		if m := root.Mapping("a", "b"); m.Get("b").Int(0, 0, 9) != 2 || d.Err() != nil {
			t.Errorf("%q: %v", good, d.Err())
		}
	}
}
