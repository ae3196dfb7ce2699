package manifest

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var example = regexp.MustCompile("(?s)`((?:bottles|agents)/[a-z-]+\\.md)`:\n\n```markdown\n(.*?)```")

// The examples of the page are manifests, and its tables have every key.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/bottles.md")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	var agents []string
	for _, m := range example.FindAllSubmatch(page, -1) {
		name, text := string(m[1]), string(m[2])
		files["config/"+name] = text
		kind, file, _ := strings.Cut(name, "/")
		front, _, _, err := split(name, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if bad := schemaOf(t, strings.TrimSuffix(kind, "s")).Check(asJSON(t, front)); len(bad) > 0 {
			t.Errorf("%s: %v", name, bad)
		}
		if kind == "agents" {
			agents = append(agents, strings.TrimSuffix(file, ".md"))
		}
	}
	if len(files) < 3 || len(agents) == 0 {
		t.Fatalf("%d examples", len(files))
	}
	w := newWorld(t, files)
	for _, a := range agents {
		if e := w.mustResolve(a); len(e.Warnings) > 0 || len(e.Egress.Routes) == 0 {
			t.Errorf("%s: %v", a, e.Warnings)
		}
	}
	_, moved, _ := strings.Cut(string(page), "## Coming from bot-bottle")
	moved, _, _ = strings.Cut(moved, "\n## ")
	keysOf, agentsPart, _ := strings.Cut(string(page), "## Keys of an agent")
	_, keysOf, _ = strings.Cut(keysOf, "## Keys of a bottle")
	agentsPart, _, _ = strings.Cut(agentsPart, "\n## ")
	for part, keys := range map[string][]string{keysOf: append(append([]string{}, bottleKeys...), limitKeys...), agentsPart: agentKeys, moved: slices.Sorted(maps.Keys(gone))} {
		for _, k := range keys {
			if !strings.Contains(part, "`"+k+"`") {
				t.Errorf("the page has no %s", k)
			}
		}
	}
}
