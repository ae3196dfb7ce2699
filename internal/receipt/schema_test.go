package receipt

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/store"
)

const schemaFile = "../../docs/schemas/receipt.v1.json"

func loadSchema(t *testing.T) schema {
	t.Helper()
	b, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	var s map[string]any
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	return schema{s}
}

func TestReceiptsValidate(t *testing.T) {
	s := loadSchema(t)
	for name, r := range map[string]*Receipt{"full": sample(), "short": short(), "crowded": crowded(), "failed": failed()} {
		b, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range s.check(decode(t, b)) {
			t.Errorf("%s: %s", name, problem)
		}
	}
}

// A validator that accepts everything would prove nothing.
func TestSchemaRefuses(t *testing.T) {
	s := loadSchema(t)
	for name, spoil := range map[string]func(map[string]any){
		"other version":  func(m map[string]any) { m["schema"] = "carboy.dev/receipt/v2" },
		"no exit":        func(m map[string]any) { delete(m, "exit") },
		"unknown reason": func(m map[string]any) { m["exit"].(map[string]any)["reason"] = "bored" },
		"code":           func(m map[string]any) { m["exit"].(map[string]any)["code"] = 256.0 },
		"local time":     func(m map[string]any) { m["started"] = "2026-03-01T12:00:00+01:00" },
		"verdict": func(m map[string]any) {
			m["network"].(map[string]any)["names"].([]any)[0].(map[string]any)["verdict"] = ""
		},
	} {
		b, err := sample().Encode()
		if err != nil {
			t.Fatal(err)
		}
		m := decode(t, b).(map[string]any)
		spoil(m)
		if len(s.check(m)) == 0 {
			t.Errorf("%s: accepted", name)
		}
	}
}

// Every field that is written is published, and nothing else is.
func TestSchemaNamesEveryField(t *testing.T) {
	s := loadSchema(t)
	s.compare(t, "receipt", s.root, reflect.TypeFor[Receipt]())
}

func decode(t *testing.T, b []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// schema validates the part of JSON Schema 2020-12 that the file uses. A keyword
// that it does not know is a problem, never ignored.
type schema struct{ root map[string]any }

func (s schema) check(v any) []string { return s.at("$", s.root, v) }

func (s schema) deref(node map[string]any) map[string]any {
	ref, ok := node["$ref"].(string)
	if !ok {
		return node
	}
	return s.root["$defs"].(map[string]any)[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
}

func (s schema) at(path string, node map[string]any, v any) (problems []string) {
	node = s.deref(node)
	bad := func(format string, args ...any) {
		problems = append(problems, path+": "+fmt.Sprintf(format, args...))
	}
	for keyword, want := range node {
		switch keyword {
		case "$schema", "$id", "$defs", "title", "description":
		case "type":
			if !isType(want.(string), v) {
				bad("%v is not of type %v", v, want)
			}
		case "const":
			if v != want {
				bad("%v is not %v", v, want)
			}
		case "enum":
			if !slices.Contains(want.([]any), v) {
				bad("%v is none of %v", v, want)
			}
		case "pattern":
			if x, ok := v.(string); ok && !regexp.MustCompile(want.(string)).MatchString(x) {
				bad("%q does not match %v", x, want)
			}
		case "minimum":
			if x, ok := v.(float64); ok && x < want.(float64) {
				bad("%v is below %v", x, want)
			}
		case "maximum":
			if x, ok := v.(float64); ok && x > want.(float64) {
				bad("%v is above %v", x, want)
			}
		case "maxItems":
			if x, ok := v.([]any); ok && float64(len(x)) > want.(float64) {
				bad("%d items are more than %v", len(x), want)
			}
		case "required":
			m, _ := v.(map[string]any)
			for _, name := range want.([]any) {
				if _, ok := m[name.(string)]; !ok {
					bad("field %v is missing", name)
				}
			}
		case "properties":
			m, _ := v.(map[string]any)
			for name, sub := range want.(map[string]any) {
				if x, ok := m[name]; ok {
					problems = append(problems, s.at(path+"."+name, sub.(map[string]any), x)...)
				}
			}
		case "items":
			l, _ := v.([]any)
			for i, x := range l {
				problems = append(problems, s.at(fmt.Sprintf("%s[%d]", path, i), want.(map[string]any), x)...)
			}
		case "anyOf":
			var all []string
			for _, sub := range want.([]any) {
				p := s.at(path, sub.(map[string]any), v)
				if len(p) == 0 {
					all = nil
					break
				}
				all = append(all, p...)
			}
			problems = append(problems, all...)
		default:
			bad("keyword %q is not known to this test", keyword)
		}
	}
	return problems
}

func isType(name string, v any) bool {
	switch x := v.(type) {
	case nil:
		return name == "null"
	case string:
		return name == "string"
	case bool:
		return name == "boolean"
	case float64:
		return name == "number" || name == "integer" && x == float64(int64(x))
	case []any:
		return name == "array"
	case map[string]any:
		return name == "object"
	}
	return false
}

// compare holds node's properties to be exactly the fields of typ.
func (s schema) compare(t *testing.T, path string, node map[string]any, typ reflect.Type) {
	t.Helper()
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[time.Time]() || typ == reflect.TypeFor[store.Raw]() {
		return
	}
	props := s.properties(node)
	fields := jsonFields(typ)
	for name, ft := range fields {
		sub, ok := props[name]
		if !ok {
			t.Errorf("%s.%s is written and not published", path, name)
			continue
		}
		s.compare(t, path+"."+name, sub.(map[string]any), ft)
	}
	for name := range props {
		if _, ok := fields[name]; !ok {
			t.Errorf("%s.%s is published and not written", path, name)
		}
	}
}

// properties finds them behind references, alternatives and arrays.
func (s schema) properties(node map[string]any) map[string]any {
	node = s.deref(node)
	if p, ok := node["properties"].(map[string]any); ok {
		return p
	}
	if items, ok := node["items"].(map[string]any); ok {
		return s.properties(items)
	}
	if alternatives, ok := node["anyOf"].([]any); ok {
		for _, sub := range alternatives {
			if p := s.properties(sub.(map[string]any)); p != nil {
				return p
			}
		}
	}
	return nil
}

func jsonFields(typ reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for f := range typ.Fields() {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && tag == "":
			for name, ft := range jsonFields(f.Type) {
				out[name] = ft
			}
		case f.IsExported() && tag != "-":
			out[tag] = f.Type
		}
	}
	return out
}
