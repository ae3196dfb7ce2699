package supervise

import (
	"encoding/json"
	"errors"
	"strings"

	"go.yaml.in/yaml/v4"
)

// yamlText is v, under the keys that JSON has for it, as people write YAML. It is
// empty for what JSON can't hold.
func yamlText(v any) string {
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

// plain takes JSON's brackets and quotes off; where quotes are needed they come back.
func plain(n *yaml.Node) {
	n.Style &^= yaml.FlowStyle | yaml.DoubleQuotedStyle
	for _, c := range n.Content {
		plain(c)
	}
}
