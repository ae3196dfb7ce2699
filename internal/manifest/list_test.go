package manifest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestAgents: a list has all agents, with those whose files can't be used.
func TestAgents(t *testing.T) {
	home, ws := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		home + "/c/agents/b.md":          "---\nbottle: [two, one]\ndescription: |\n  first line\n  second line\n---\nbody\n",
		home + "/c/agents/broken.md":     "---\nnonsense: [\n---\n",
		home + "/c/agents/Not A Name.md": "---\n---\n",
		ws + "/.carboy/agents/a.md":      "---\nbottle: one\n---\n",
		ws + "/.carboy/agents/b.md":      "---\ndescription: theirs\n---\n",
		home + "/c/agents/c.md":          "---\n---\n",
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(Where{Config: home + "/c", Home: home, Repo: ws})
	if err != nil {
		t.Fatal(err)
	}
	got := s.Agents()
	if len(got) != 4 || got[0].Name != "a" || !got[0].InRepo || !slices.Equal(got[0].Bottles, []string{"one"}) ||
		got[1].Name != "b" || !got[1].InRepo || got[1].Description != "theirs" ||
		got[2].Name != "broken" || got[2].Err == nil || got[3].Name != "c" || got[3].Err != nil || got[3].InRepo {
		t.Errorf("%+v", got)
	}
	if broken := s.Broken([]string{"none"}); len(broken) != 1 || broken["none"] == nil {
		t.Errorf("%v", broken)
	}
	if s, err = Open(Where{Config: home + "/c", Home: home}); err != nil {
		t.Fatal(err)
	}
	if got := s.Agents(); len(got) != 3 || got[0].Description != "first line" || !slices.Equal(got[0].Bottles, []string{"two", "one"}) {
		t.Errorf("%+v", got)
	}
}
