package manifest

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// schemaFiles refer to each other's definitions; Schema joins them.
//
//go:embed schema/*.json
var schemaFiles embed.FS

// Schemas lists the names that [Schema] knows.
var Schemas = []string{"bottle", "agent", "routes"}

// Schema returns the self-contained JSON Schema of a manifest's front matter, or of a
// route file.
func Schema(name string) ([]byte, error) {
	if !slices.Contains(Schemas, name) {
		return nil, fmt.Errorf("no schema is called %q: there are %s", name, strings.Join(Schemas, ", "))
	}
	out, err := schemaFile(name)
	if err != nil {
		return nil, err
	}
	all := map[string]any{}
	for _, n := range Schemas {
		m, err := schemaFile(n)
		if err != nil {
			return nil, err
		}
		defs, _ := m["$defs"].(map[string]any)
		maps.Copy(all, defs)
	}
	used := map[string]any{}
	collectRefs(out["properties"], all, used)
	out["$defs"] = used
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err = enc.Encode(out)
	return b.Bytes(), err
}

func schemaFile(name string) (map[string]any, error) {
	b, err := schemaFiles.ReadFile("schema/" + name + ".json")
	if err != nil {
		return nil, err
	}
	b = bytes.Replace(b, []byte(`"template": {"enum": []}`), fmt.Appendf(nil, `"template": {"enum": ["%s"]}`, strings.Join(Templates(), `", "`)), 1)
	var m map[string]any
	err = json.Unmarshal(b, &m)
	return m, err
}

func collectRefs(node any, all, used map[string]any) {
	switch x := node.(type) {
	case map[string]any:
		if ref, ok := x["$ref"].(string); ok {
			name := strings.TrimPrefix(ref, "#/$defs/")
			if _, seen := used[name]; !seen {
				used[name] = all[name]
				collectRefs(all[name], all, used)
			}
		}
		for _, v := range x {
			collectRefs(v, all, used)
		}
	case []any:
		for _, v := range x {
			collectRefs(v, all, used)
		}
	}
}
