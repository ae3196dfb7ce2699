package supervise

import (
	"encoding/json"

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
	out, err := yaml.Marshal(&n)
	if err != nil {
		return ""
	}
	return string(out)
}

// plain takes JSON's brackets and quotes off; where quotes are needed they come back.
func plain(n *yaml.Node) {
	n.Style &^= yaml.FlowStyle | yaml.DoubleQuotedStyle
	for _, c := range n.Content {
		plain(c)
	}
}
