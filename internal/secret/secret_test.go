package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/gob"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"text/template"
	"unsafe"
)

const sample = "s3cr3t-h0rse-battery"

// hidden fails when text shows the secret in any form that fmt has: plain, hex, decimal bytes.
func hidden(t *testing.T, how, text string) {
	t.Helper()
	for _, form := range []string{sample, fmt.Sprintf("%x", sample), fmt.Sprintf("%X", sample), fmt.Sprint([]byte(sample)[:4])[1:9], "horse", "h0rse"} {
		if strings.Contains(text, form) {
			t.Errorf("%s shows the secret: %s", how, text)
		}
	}
}

type outer struct {
	Name   string
	Secret Value
	secret Value
	Ptr    *Value
	List   []Value
	Map    map[string]Value
	Any    any
}

func holders() map[string]any {
	v := NewString(sample)
	p := &v
	return map[string]any{
		"value": v, "pointer": p, "pointer to pointer": &p, "slice": []Value{v}, "array": [1]Value{v},
		"struct":            outer{"n", v, v, p, []Value{v}, map[string]Value{"k": v}, v},
		"pointer to struct": &outer{"n", v, v, p, []Value{v}, map[string]Value{"k": v}, v},
		"embedded":          struct{ Value }{v}, "unexported": struct{ v Value }{v}, "unexported pointer": struct{ v *Value }{&v},
		"unexported in any": struct{ v any }{v},
	}
}

func TestNothingPrints(t *testing.T) {
	for name, h := range holders() {
		for _, flag := range []string{"", "+", "#", "-", " ", "0", "30", ".3"} {
			for verb := '!'; verb <= 'z'; verb++ {
				format := "%" + flag + string(verb)
				hidden(t, name+" with "+format, fmt.Sprintf(format, h))
			}
		}
		hidden(t, name+" error", fmt.Errorf("x: %v", h).Error())
		var buf bytes.Buffer
		for _, l := range []slog.Handler{slog.NewTextHandler(&buf, nil), slog.NewJSONHandler(&buf, nil)} {
			slog.New(l).Info("m", "k", h, slog.Group("g", "k", h))
		}
		template.Must(template.New("").Parse("{{.}} {{printf `%s` .}}")).Execute(&buf, h)
		hidden(t, name+" log or template", buf.String())
	}
	if got := fmt.Sprintf("%s %v %#v %d", NewString(sample), NewString(sample), NewString(sample), NewString(sample)); got != strings.TrimSpace(strings.Repeat(Redacted+" ", 4)) {
		t.Error(got)
	}
}

func TestNothingEncodes(t *testing.T) {
	v := NewString(sample)
	for name, h := range map[string]any{"value": v, "pointer": &v, "field": struct{ V Value }{v}, "slice": []Value{v}, "map": map[string]Value{"k": v}} {
		b, err := json.Marshal(h)
		if !errors.Is(err, errMarshal) {
			t.Errorf("json of %s: %s, %v", name, b, err)
		}
		x, err := xml.Marshal(h)
		if err == nil {
			t.Errorf("xml of %s: %s", name, x)
		}
		var buf bytes.Buffer
		if err := gob.NewEncoder(&buf).Encode(h); err == nil {
			t.Errorf("gob of %s passed", name)
		}
		hidden(t, name, string(b)+string(x)+buf.String())
	}
	if _, err := v.MarshalYAML(); err == nil {
		t.Error("yaml")
	}
}

// TestReflectionSeesNoBytes walks a Value as a printer would that ignores methods and unexported fields' privacy.
func TestReflectionSeesNoBytes(t *testing.T) {
	v := NewString(sample)
	var walk func(reflect.Value, int)
	walk = func(r reflect.Value, depth int) {
		if depth > 10 || !r.IsValid() {
			return
		}
		switch r.Kind() {
		case reflect.String:
			hidden(t, "reflection", r.String())
		case reflect.Slice, reflect.Array:
			if r.Type().Elem().Kind() == reflect.Uint8 {
				t.Errorf("reflection reaches bytes in %v", r.Type())
			}
			for i := range r.Len() {
				walk(r.Index(i), depth+1)
			}
		case reflect.Pointer, reflect.Interface:
			walk(r.Elem(), depth+1)
		case reflect.Struct:
			for i := range r.NumField() {
				walk(r.Field(i), depth+1)
			}
		}
	}
	walk(reflect.ValueOf(&v), 0)
	walk(reflect.ValueOf(outer{Secret: v, secret: v, Ptr: &v, Any: v}), 0)
	if reflect.TypeFor[Value]().Comparable() {
		t.Error("== compiles")
	}
	if unsafe.Sizeof(v) > 2*unsafe.Sizeof(uintptr(0)) {
		t.Error("a Value holds more than it should")
	}
}

func TestEqual(t *testing.T) {
	a, b, c := NewString(sample), NewString(sample), NewString(sample+"x")
	if !a.Equal(b) || !a.EqualBytes([]byte(sample)) {
		t.Error("equal values differ")
	}
	if a.Equal(c) || c.Equal(a) || a.EqualBytes(nil) {
		t.Error("different values are equal")
	}
	if (Value{}).Equal(Value{}) || New(nil).EqualBytes(nil) || (Value{}).EqualBytes([]byte{}) {
		t.Error("nothing equals nothing")
	}
}

func TestReveal(t *testing.T) {
	in := []byte(sample)
	v := New(in)
	clear(in)
	if v.UnsafeString() != sample || v.Len() != len(sample) || v.Empty() {
		t.Error("lost the value")
	}
	var seen []byte
	v.UnsafeReveal(func(b []byte) { seen = b })
	w := v
	v.Destroy()
	if !w.Empty() || bytes.ContainsFunc(seen, func(r rune) bool { return r != 0 }) {
		t.Error("bytes stay after Destroy")
	}
	v.Destroy()
	(Value{}).Destroy()
	if (Value{}).UnsafeString() != "" || !(Value{}).Empty() {
		t.Error("zero value holds something")
	}
}

func redactor(t testing.TB, values map[string]string) *Redactor {
	t.Helper()
	m := map[string]Value{}
	for k, v := range values {
		m[k] = NewString(v)
	}
	r, err := NewRedactor(m)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRedact(t *testing.T) {
	r := redactor(t, map[string]string{"short": "abcdef", "long": "abcdefghi", "tail": "hijklm", "twin": "zzzzzz"})
	for in, want := range map[string]string{
		"":                       "",
		"nothing here, abcde":    "nothing here, abcde",
		"x abcdef y":             "x [redacted:short] y",
		"abcdefghi":              "[redacted:long]",
		"abcdefghijklm.":         "[redacted:long].", // overlapping: no tail stays
		"abcdefabcdef":           "[redacted:short][redacted:short]",
		"zzzzzzzz|":              "[redacted:twin]|",
		"abcdefgh":               "[redacted:short]gh",
		"a\xff\x00abcdefghi\xfe": "a\xff\x00[redacted:long]\xfe",
	} {
		if got := r.String(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	if got := (&Redactor{}).String("abcdef"); got != "abcdef" {
		t.Error(got)
	}
	var none *Redactor
	if got := none.String("abcdef"); got != "abcdef" {
		t.Error(got)
	}
	hidden(t, "redactor", fmt.Sprintf("%+v %#v", redactor(t, map[string]string{"a": sample}), redactor(t, map[string]string{"a": sample})))
}

func TestRedactorSeesWhatItChanges(t *testing.T) {
	r := redactor(t, map[string]string{"short": "abcdef", "long": "hijklmnop"})
	for _, text := range []string{"", "abcde", "xabcdefy", "hijklmno", "hijklmnop", "\xffabcdef"} {
		if got, want := r.In(text), r.String(text) != text; got != want {
			t.Errorf("In(%q) is %v, String changes it: %v", text, got, want)
		}
	}
	var none *Redactor
	if !none.None() || !(&Redactor{}).None() || r.None() || none.In("abcdef") {
		t.Error("a redactor without values is not as one without")
	}
	// The rest of a value may have been cut off.
	for in, want := range map[string]string{"xx hijklmno": "xx ", "xx hi": "xx ", "xx hijklmnop": "xx [redacted:long]", "xx hijklmnop, and more": "xx [redacted:long], and more", "abcdef": "[redacted:short]", "abcdefhijkl": "[redacted:short]", "xx aGlqa2xt": "xx "} {
		if got := r.Prefix(in); got != want {
			t.Errorf("Prefix(%q) is %q, want %q", in, got, want)
		}
	}
	if got := none.Prefix("abc"); got != "abc" {
		t.Error(got)
	}
}

func TestRedactorRefuses(t *testing.T) {
	for name, m := range map[string]map[string]Value{
		"short value": {"a": NewString("abcde")}, "no name": {"": NewString(sample)}, "name with a line break": {"a\n": NewString(sample)}, "empty": {"a": {}},
	} {
		if _, err := NewRedactor(m); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestRedactorKnowsForms: what a program writes of a secret by accident is replaced, at whatever place of a longer
// text it was encoded.
func TestRedactorKnowsForms(t *testing.T) {
	const v = "hunter2/Pass word+9"
	r := redactor(t, map[string]string{"key": v})
	for _, lead := range []string{"", "a", "ab"} {
		for how, enc := range map[string]*base64.Encoding{"base64": base64.StdEncoding, "base64url": base64.RawURLEncoding} {
			text := enc.EncodeToString([]byte(lead + v + "tail"))
			if got := r.String("x " + text); !strings.Contains(got, "[redacted:key]") || strings.Contains(got, text[4:12]) {
				t.Errorf("%s after %d bytes stays: %s", how, len(lead), got)
			}
		}
	}
	for _, text := range []string{
		hex.EncodeToString([]byte(v)), strings.ToUpper(hex.EncodeToString([]byte(v))), url.QueryEscape(v), url.PathEscape(v),
		strings.ReplaceAll(strings.ReplaceAll(url.PathEscape(v), "%2F", "%2f"), "%2B", "%2b"), fmt.Sprintf("%%%s", strings.ReplaceAll(fmt.Sprintf("% x", v), " ", "%")),
	} {
		if got := r.String("?q=" + text + "&"); got != "?q=[redacted:key]&" {
			t.Errorf("%s gives %s", text, got)
		}
		if !r.In(text) || r.In(text[:len(text)-1]) {
			t.Errorf("In(%s)", text)
		}
		if got := r.Prefix("?q=" + text[:len(text)/2]); got != "?q=" {
			t.Errorf("half of %s leaves %s", text, got)
		}
	}
}

// TestRedactorLearns: values are added while text is redacted, all or none, and none is forgotten.
func TestRedactorLearns(t *testing.T) {
	var r Redactor
	if err := r.Add(map[string]Value{"a": NewString("abcdef")}); err != nil {
		t.Fatal(err)
	}
	if err := r.Add(map[string]Value{"b": NewString("ghijkl"), "c": NewString("short")}); err == nil || r.String("ghijkl") != "ghijkl" {
		t.Errorf("half of what could not be added is known: %v", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 1000 {
			if got := r.String("abcdef"); got != "[redacted:a]" {
				t.Error(got)
				return
			}
		}
	}()
	for i := range 20 {
		if err := r.Add(map[string]Value{"a": NewString(fmt.Sprintf("value-%06d", i))}); err != nil {
			t.Fatal(err)
		}
	}
	<-done
	for _, v := range []string{"abcdef", "value-000000", "value-000019"} {
		if got := r.String(v); got != "[redacted:a]" {
			t.Errorf("%s gives %s", v, got)
		}
	}
}

func FuzzRedactor(f *testing.F) {
	f.Add([]byte("xxabcdefghijklmyy"), []byte("abcdef"), []byte("defghi"))
	f.Add([]byte("aaaaaaaaaaaaaaa"), []byte("aaaaaa"), []byte("aaaaaaa"))
	f.Fuzz(func(t *testing.T, text, a, b []byte) {
		if len(a) < MinRedacted || len(b) < MinRedacted || len(text) > 1<<12 {
			return
		}
		r, err := NewRedactor(map[string]Value{"a": New(a), "b": New(b)})
		if err != nil {
			t.Fatal(err)
		}
		want := []byte(r.String(string(text)))
		// The marks themselves aside, nothing of a value stays.
		for _, part := range bytes.Split(bytes.ReplaceAll(want, []byte("[redacted:a]"), []byte("[redacted:b]")), []byte("[redacted:b]")) {
			if bytes.Contains(part, a) || bytes.Contains(part, b) {
				t.Fatalf("%q stays in %q", part, want)
			}
		}
		// What is kept of a text that was cut is a beginning of what is kept of the whole.
		one := strings.NewReplacer("[redacted:a]", "[redacted]", "[redacted:b]", "[redacted]")
		for cut := range len(text) {
			if kept := r.Prefix(string(text[:cut])); !strings.HasPrefix(one.Replace(string(want)), one.Replace(kept)) {
				t.Fatalf("%q is left of %q, cut to %q", kept, text, text[:cut])
			}
		}
	})
}
