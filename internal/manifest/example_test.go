package manifest

import (
	"strings"
	"testing"
)

// What init writes is taken, for each template, and so is what its comments say.
func TestExamples(t *testing.T) {
	for _, template := range Templates() {
		x := Example{Template: template, Bottle: "dev", Agent: "coder"}
		if template == "command" {
			x.Program = "my agent"
		}
		files, err := x.Files()
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, nil)
		for name, text := range files {
			w.write("config/"+name, text)
		}
		e := w.mustResolve("coder")
		if e.Provider.Template.V != template || len(e.Warnings) > 0 || e.Agent.Prompt.V == "" {
			t.Errorf("%s: %+v", template, e.Warnings)
		}
		if template == "command" && e.Provider.Settings.Command.V[0] != "my agent" {
			t.Errorf("%v", e.Provider.Settings.Command.V)
		}
		// Without the marks, but for those that are words for people.
		text := files["bottles/dev.md"]
		for _, l := range strings.Split(text, "\n") {
			if s, ok := strings.CutPrefix(strings.TrimLeft(l, " "), "# "); ok && !strings.HasPrefix(s, "What may") && !strings.HasPrefix(s, "An argument") && !strings.HasPrefix(s, "extends") {
				text = strings.Replace(text, l, l[:len(l)-len(s)-2]+s, 1)
			}
		}
		text = strings.Replace(text, "routes: []                   # nothing is reached; such as:", "routes:", 1)
		w.write("config/bottles/dev.md", text)
		e = w.mustResolve("coder")
		if len(e.Env) != 2 || len(e.Egress.Routes) < 2 || !e.Limits.Memory.IsSet() {
			t.Errorf("%s: %v", template, e.Entries())
		}
	}
	for _, x := range []Example{
		{Template: "cloud", Bottle: "b", Agent: "a"}, {Template: "claude", Bottle: "../b", Agent: "a"}, {Template: "claude", Bottle: "b", Agent: "A"},
		{Template: "claude", Program: "x", Bottle: "b", Agent: "a"}, {Template: "command", Bottle: "b", Agent: "a"}, {Template: "command", Program: "x\ny", Bottle: "b", Agent: "a"},
	} {
		if _, err := x.Files(); err == nil {
			t.Errorf("%+v is taken", x)
		}
	}
}
