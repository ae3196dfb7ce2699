// Package receipttest checks documents against the published schemas, for tests: made-up
// receipts, and those that real runs leave.
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

// at lists what is wrong with v, which is at path in the document, by a node of the schema.
func (s Schema) at(path string, node map[string]any, v any) (problems []string) {
	node = s.deref(node)
	for keyword, want := range node {
		switch keyword {
		case "$schema", "$id", "$defs", "title", "description":
		case "propertyNames", "additionalProperties", "required", "properties":
			m, _ := v.(map[string]any)
			problems = append(problems, s.object(path, node, keyword, want, m)...)
		case "items":
			l, _ := v.([]any)
			for i, x := range l {
				problems = append(problems, s.at(fmt.Sprintf("%s[%d]", path, i), want.(map[string]any), x)...)
			}
		case "anyOf":
			problems = append(problems, s.anyOf(path, want.([]any), v)...)
		default:
			if bad := value(keyword, want, v); bad != "" {
				problems = append(problems, path+": "+bad)
			}
		}
	}
	return problems
}

// anyOf returns nothing if one alternative fits v, else what is wrong by each of them.
func (s Schema) anyOf(path string, alternatives []any, v any) (problems []string) {
	for _, sub := range alternatives {
		p := s.at(path, sub.(map[string]any), v)
		if len(p) == 0 {
			return nil
		}
		problems = append(problems, p...)
	}
	return problems
}

// object checks m by a keyword of node about an object's fields.
func (s Schema) object(path string, node map[string]any, keyword string, want any, m map[string]any) (problems []string) {
	bad := func(format string, args ...any) {
		problems = append(problems, path+": "+fmt.Sprintf(format, args...))
	}
	switch keyword {
	case "propertyNames":
		for name := range m {
			problems = append(problems, s.at(path+"."+name, want.(map[string]any), name)...)
		}
	case "additionalProperties":
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
		for _, name := range want.([]any) {
			if _, ok := m[name.(string)]; !ok {
				bad("field %v is missing", name)
			}
		}
	case "properties":
		for name, sub := range want.(map[string]any) {
			if x, ok := m[name]; ok {
				problems = append(problems, s.at(path+"."+name, sub.(map[string]any), x)...)
			}
		}
	}
	return problems
}

// value says what is wrong with v by a keyword that looks at v alone; empty: nothing.
func value(keyword string, want, v any) string {
	text, isText := v.(string)
	number, isNumber := v.(float64)
	list, isList := v.([]any)
	switch keyword {
	case "type":
		if !isType(want.(string), v) {
			return fmt.Sprintf("%v is not of type %v", v, want)
		}
	case "const":
		if v != want {
			return fmt.Sprintf("%v is not %v", v, want)
		}
	case "enum":
		if !slices.Contains(want.([]any), v) {
			return fmt.Sprintf("%v is none of %v", v, want)
		}
	case "pattern":
		if isText && !regexp.MustCompile(want.(string)).MatchString(text) {
			return fmt.Sprintf("%q does not match %v", text, want)
		}
	case "minimum":
		if isNumber && number < want.(float64) {
			return fmt.Sprintf("%v is below %v", number, want)
		}
	case "maximum":
		if isNumber && number > want.(float64) {
			return fmt.Sprintf("%v is above %v", number, want)
		}
	case "maxItems":
		if isList && float64(len(list)) > want.(float64) {
			return fmt.Sprintf("%d items are more than %v", len(list), want)
		}
	case "minItems":
		if isList && float64(len(list)) < want.(float64) {
			return fmt.Sprintf("%d items are fewer than %v", len(list), want)
		}
	case "minLength":
		if isText && float64(len(text)) < want.(float64) {
			return fmt.Sprintf("%q is shorter than %v", text, want)
		}
	default:
		return fmt.Sprintf("keyword %q is not known to this test", keyword)
	}
	return ""
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
