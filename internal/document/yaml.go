package document

import (
	"encoding/json"
	"errors"
	"strings"

	"go.yaml.in/yaml/v4"
)

// YAML returns v as YAML in the style that people write, with the keys of its JSON. It
// returns "" if JSON cannot hold v.
func YAML(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	var n yaml.Node
	if err := yaml.Unmarshal(data, &n); err != nil {
		return ""
	}
	plain(&n)
	var out strings.Builder
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(&n), enc.Close()); err != nil {
		return ""
	}
	return out.String()
}

// plain removes the brackets and quotes of JSON. The encoder adds quotes back where they
// are needed.
func plain(n *yaml.Node) {
	n.Style &^= yaml.FlowStyle | yaml.DoubleQuotedStyle
	for _, c := range n.Content {
		plain(c)
	}
}
