package receipt

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/receipt/receipttest"
	"github.com/carboy/carboy/internal/store"
)

const schemaFile = "../../docs/schemas/receipt.v1.json"

func loadSchema(t *testing.T) receipttest.Schema {
	t.Helper()
	s, err := receipttest.Load(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestReceiptsValidate(t *testing.T) {
	s := loadSchema(t)
	for name, r := range map[string]*Receipt{"full": sample(), "short": short(), "crowded": crowded(), "failed": failed()} {
		b, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range s.Check(decode(t, b)) {
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
		if len(s.Check(m)) == 0 {
			t.Errorf("%s: accepted", name)
		}
	}
}

// Every field that is written is published, and nothing else is.
func TestSchemaNamesEveryField(t *testing.T) {
	s := loadSchema(t)
	compare(t, s, "receipt", s.Root(), reflect.TypeFor[Receipt]())
}

func decode(t *testing.T, b []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// compare holds node's properties to be exactly the fields of typ.
func compare(t *testing.T, s receipttest.Schema, path string, node map[string]any, typ reflect.Type) {
	t.Helper()
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[time.Time]() || typ == reflect.TypeFor[store.Raw]() {
		return
	}
	props := s.Properties(node)
	fields := jsonFields(typ)
	for name, ft := range fields {
		sub, ok := props[name]
		if !ok {
			t.Errorf("%s.%s is written and not published", path, name)
			continue
		}
		compare(t, s, path+"."+name, sub.(map[string]any), ft)
	}
	for name := range props {
		if _, ok := fields[name]; !ok {
			t.Errorf("%s.%s is published and not written", path, name)
		}
	}
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
