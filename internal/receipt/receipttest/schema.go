// Package receipttest holds documents to the schemas that are published, for
// tests: of receipts that are made up, and of those that real runs leave.
package receipttest

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// Schema validates the part of JSON Schema 2020-12 that the file uses. A keyword
// that it does not know is a problem, never ignored.
type Schema struct{ root map[string]any }

// Root is the schema's outermost node.
func (s Schema) Root() map[string]any { return s.root }

// Check lists what is wrong with a decoded document.
func (s Schema) Check(v any) []string { return s.at("$", s.root, v) }

func (s Schema) deref(node map[string]any) map[string]any {
	ref, ok := node["$ref"].(string)
	if !ok {
		return node
	}
	return s.root["$defs"].(map[string]any)[strings.TrimPrefix(ref, "#/$defs/")].(map[string]any)
}

func (s Schema) at(path string, node map[string]any, v any) (problems []string) {
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
		case "minItems":
			if x, ok := v.([]any); ok && float64(len(x)) < want.(float64) {
				bad("%d items are fewer than %v", len(x), want)
			}
		case "minLength":
			if x, ok := v.(string); ok && float64(len(x)) < want.(float64) {
				bad("%q is shorter than %v", x, want)
			}
		case "propertyNames":
			m, _ := v.(map[string]any)
			for name := range m {
				problems = append(problems, s.at(path+"."+name, want.(map[string]any), name)...)
			}
		case "additionalProperties":
			m, _ := v.(map[string]any)
			known, _ := node["properties"].(map[string]any)
			for name, x := range m {
				if _, ok := known[name]; ok {
					continue
				}
				if sub, ok := want.(map[string]any); ok {
					problems = append(problems, s.at(path+"."+name, sub, x)...)
				} else if want == false {
					bad("field %s is not known", name)
				}
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

// Properties finds a node's fields, behind references, alternatives and arrays.
func (s Schema) Properties(node map[string]any) map[string]any {
	node = s.deref(node)
	if p, ok := node["properties"].(map[string]any); ok {
		return p
	}
	if items, ok := node["items"].(map[string]any); ok {
		return s.Properties(items)
	}
	if alternatives, ok := node["anyOf"].([]any); ok {
		for _, sub := range alternatives {
			if p := s.Properties(sub.(map[string]any)); p != nil {
				return p
			}
		}
	}
	return nil
}

// Load reads a schema.
func Load(file string) (Schema, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return Schema{}, err
	}
	return Parse(b)
}

// Parse is Load of a schema's text.
func Parse(b []byte) (Schema, error) {
	var s Schema
	err := json.Unmarshal(b, &s.root)
	return s, err
}
