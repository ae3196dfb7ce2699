package module

import (
	"os"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"
)

// TestSchema: the schema that is published takes what Parse takes, and refuses keys
// and values that it refuses.
func TestSchema(t *testing.T) {
	f, err := os.Open("../../../docs/schemas/module.v1.json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	doc, err := jsonschema.UnmarshalJSON(f)
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("m.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("m.json")
	if err != nil {
		t.Fatal(err)
	}
	more := "    compose_service: a.b\n    project: shop\n    sync: files\n    stable_for: 5s\n    health_timeout: 1m30s\n    destructive: [recreate]\n"
	for text, ok := range map[string]bool{
		good: true, good + more: true,
		strings.Replace(good, "host: prod1", "waves: [[a], [b, c]]", 1):                   true,
		strings.Replace(good, "host: prod1", "waves: []", 1):                              false,
		strings.Replace(good, "host: prod1", "hots: prod1", 1):                            false,
		good + "    build: x\n":                                                           false,
		good + "    sync: all\n":                                                          false,
		good + "    destructive: [everything]\n":                                          false,
		strings.Replace(good, "compose_file: compose.yaml", "compose_file: ../x", 1):      false,
		strings.Replace(good, "compose_file: compose.yaml", "compose_file: /x", 1):        false,
		strings.Replace(good, "remote_root: /srv/web", "remote_root: srv", 1):             false,
		strings.Replace(good, "orchestrator: docker-compose", "orchestrator: nomad", 1):   false,
		strings.Replace(good, "compose_file: compose.yaml", "compose_file: $HOME/x", 1):   false,
		strings.Replace(good, "metadata: {id: web}", "metadata: {id: web, name: web}", 1): false,
	} {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		_, perr := Parse("m.yaml", "web", []byte(text))
		if err := s.Validate(v); (err == nil) != ok || (perr == nil) != ok {
			t.Errorf("%s\nthe schema says %v, Parse %v, want taken: %v", text, err, perr, ok)
		}
	}
}
