// Package agenttest serves the APIs of model vendors from a script, so that real agents can
// be tested without the vendors. It speaks four streaming APIs: Anthropic's Messages,
// OpenAI's Responses and Chat Completions, and Gemini's GenerateContent. The script tells
// an agent what to do with the agent's own tools.
//
// The server refuses and counts requests without the real key. It takes a step only after
// the result of the step before, as the script expects it. It records all requests. It is
// no model: only a script's Decide looks at the text of a request.
//
// Start reading at [Script] and [New].
package agenttest

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/safetext"
)

// Script lists the steps of an agent, one for each of its requests.
type Script struct {
	Steps []Step
	// Final is the model's text after all steps.
	Final string
	// Say replaces Final: it returns the text for a request, as it was sent.
	Say func(request string) string
	// Decide replaces Steps. It returns the next step from a request, as it was sent, and
	// the results of tools in it. nil means Final. It must return the same for the same
	// request.
	Decide func(request string, results []string) *Step
}

// Step is one action. Exactly one of Read, Edit, Run and Tool is set.
type Step struct {
	Read string // a file's absolute path
	Edit *Edit
	Run  string // a command line for a shell
	// Tool is a tool of an MCP server: the end of the name under which the agent offers it.
	// Args are its arguments.
	Tool string
	Args map[string]any
	// Expect is a text that the tool's result must hold.
	Expect string
}

// Edit replaces the only Old in a file.
type Edit struct{ Path, Old, New string }

// final returns the model's last text for a request.
func (s *Script) final(request string) string {
	if s.Say != nil {
		return s.Say(request)
	}
	return s.Final
}

func (s Step) String() string {
	switch {
	case s.Read != "":
		return "read " + s.Read
	case s.Edit != nil:
		return "edit " + s.Edit.Path
	case s.Tool != "":
		return "call " + s.Tool
	default:
		return "run " + s.Run
	}
}

// tool is a tool that an agent offers.
type tool struct {
	name     string
	space    string // the namespace, or empty
	freeform bool   // takes text, not JSON
	local    bool   // OpenAI's local_shell
	schema   schema
}

type schema struct {
	Type       any               `json:"type"` // a name, or a list of names
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
	Items      *schema           `json:"items"`
	Enum       []any             `json:"enum"`
}

// is reports whether a value of kind fits. Gemini writes kinds in capitals.
func (s schema) is(kind string) bool {
	switch t := s.Type.(type) {
	case string:
		return strings.EqualFold(t, kind)
	case []any:
		return slices.Contains(t, any(kind))
	}
	return false
}

// call is a call of a tool.
type call struct {
	tool tool
	args map[string]any
	text string // for a freeform tool
}

// JSON returns the arguments of the call.
func (c call) JSON() string {
	b, err := json.Marshal(c.args)
	if err != nil {
		panic(err) // cannot happen: only strings, lists and maps
	}
	return string(b)
}

// Names under which agents offer the tools for a step. The first offered one is used.
var (
	readers  = []string{"Read", "read", "read_file", "ReadFile"}
	editors  = []string{"Edit", "edit", "replace", "str_replace", "apply_patch"}
	runners  = []string{"Bash", "bash", "run_shell_command", "exec_command", "shell_command", "shell", "local_shell"}
	pathArgs = []string{"file_path", "filePath", "absolute_path", "path"}
	oldArgs  = []string{"old_string", "oldString", "oldText", "old_str"}
	newArgs  = []string{"new_string", "newString", "newText", "new_str"}
)

func firstOffered(tools []tool, names []string) (tool, bool) {
	for _, n := range names {
		for _, t := range tools {
			if t.name == n || t.local && n == "local_shell" {
				return t, true
			}
		}
	}
	return tool{}, false
}

// works reports whether these are the agent's own tools, and not those of a small side
// question. codex offers some models JavaScript that calls its tools; no script does that.
func works(tools []tool) bool {
	_, ok := firstOffered(tools, append(slices.Clip(runners), "exec"))
	return ok
}

// translate returns the call of these tools that takes step s.
func translate(s Step, tools []tool) (call, error) {
	switch {
	case s.Tool != "":
		for _, t := range tools {
			if strings.HasSuffix(strings.ReplaceAll(t.name, "_", "-"), s.Tool) {
				return t.call(maps.Clone(s.Args)), nil
			}
		}
		return call{}, fmt.Errorf("none of %s is %s", names(tools), s.Tool)
	case s.Read != "":
		if t, ok := firstOffered(tools, readers); ok {
			if key, ok := property(t.schema, pathArgs); ok {
				return t.call(map[string]any{key: s.Read}), nil
			}
		}
		return translate(Step{Run: "cat " + s.Read}, tools)
	case s.Edit != nil:
		t, ok := firstOffered(tools, editors)
		if !ok {
			return translate(Step{Run: "sed -i " + safetext.Word("s/"+sedQuote(s.Edit.Old)+"/"+sedQuote(s.Edit.New)+"/") + " " + s.Edit.Path}, tools)
		}
		if t.name == "apply_patch" {
			return t.patch(*s.Edit)
		}
		args, err := replacement(t.schema, *s.Edit)
		if err != nil {
			return call{}, fmt.Errorf("%s: %w", t.name, err)
		}
		return t.call(args), nil
	}
	t, ok := firstOffered(tools, runners)
	if !ok {
		return call{}, fmt.Errorf("no tool of %s runs commands", names(tools))
	}
	if t.local {
		return call{tool: t, args: map[string]any{"command": []string{"bash", "-lc", s.Run}}}, nil
	}
	key, ok := property(t.schema, []string{"command", "cmd"})
	if !ok {
		return call{}, fmt.Errorf("%s takes no command", t.name)
	}
	args := map[string]any{key: s.Run}
	if t.schema.Properties[key].is("array") {
		args[key] = []string{"bash", "-lc", s.Run}
	}
	if _, ok := t.schema.Properties["yield_time_ms"]; ok {
		args["yield_time_ms"] = 30000 // codex goes on without the result after ten seconds
	}
	return t.call(args), nil
}

func names(tools []tool) string {
	var out []string
	for _, t := range tools {
		out = append(out, t.name)
	}
	return strings.Join(out, ", ")
}

func property(s schema, names []string) (string, bool) {
	for _, n := range names {
		if _, ok := s.Properties[n]; ok {
			return n, true
		}
	}
	return "", false
}

// replacement returns the arguments of a tool that replaces text, at one place or at a list
// of places.
func replacement(s schema, e Edit) (map[string]any, error) {
	path, ok := property(s, pathArgs)
	if !ok {
		return nil, fmt.Errorf("takes no path")
	}
	if from, ok := property(s, oldArgs); ok {
		if to, ok := property(s, newArgs); ok {
			return map[string]any{path: e.Path, from: e.Old, to: e.New}, nil
		}
	}
	for name, p := range s.Properties {
		if !p.is("array") || p.Items == nil {
			continue
		}
		from, ok := property(*p.Items, oldArgs)
		to, ok2 := property(*p.Items, newArgs)
		if ok && ok2 {
			return map[string]any{path: e.Path, name: []any{map[string]any{from: e.Old, to: e.New}}}, nil
		}
	}
	return nil, fmt.Errorf("takes no text to replace")
}

// patch returns a call of codex's apply_patch. Its context is the line that changes.
func (t tool) patch(e Edit) (call, error) {
	text := "*** Begin Patch\n*** Update File: " + e.Path + "\n@@\n-" + e.Old + "\n+" + e.New + "\n*** End Patch\n"
	if t.freeform {
		return call{tool: t, text: text}, nil
	}
	key, ok := property(t.schema, []string{"input", "patch", "patchText"})
	if !ok {
		return call{}, fmt.Errorf("apply_patch takes no patch")
	}
	return t.call(map[string]any{key: text}), nil
}

// call returns a call with the other arguments that the tool requires.
func (t tool) call(args map[string]any) call {
	for _, name := range t.schema.Required {
		if _, ok := args[name]; ok {
			continue
		}
		p := t.schema.Properties[name]
		switch {
		case len(p.Enum) > 0:
			args[name] = p.Enum[0]
		case p.is("boolean"):
			args[name] = false
		case p.is("number"), p.is("integer"):
			args[name] = 1
		case p.is("array"):
			args[name] = []any{}
		default:
			args[name] = "as the script says"
		}
	}
	return call{tool: t, args: args}
}

func sedQuote(s string) string {
	return regexp.MustCompile(`[/\\&.*^$\[\]]`).ReplaceAllString(s, `\$0`)
}
