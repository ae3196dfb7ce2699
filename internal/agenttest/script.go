// Package agenttest stands in for the vendors of models, so that real agents can
// be tested without them: a server that speaks four of their APIs (Anthropic's
// Messages, OpenAI's Responses and Chat Completions, Gemini's GenerateContent),
// streaming, and lets an agent do what a script says with the tools that the agent
// itself offers.
//
// It promises that a request without the real key is refused and counted, that a
// step is only taken when the result of the step before came back as the script
// expects it, and that everything asked is recorded. It is no model: what it is told
// it looks at only where a script's Decide does.
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
)

// Script is what an agent is told to do, one step for each of its requests.
type Script struct {
	Steps []Step
	// Final is what the model says when all steps were taken.
	Final string
	// Decide takes the place of Steps: from a request, as it was sent, and the results of
	// tools in it, it says what is done next; nil: nothing, and Final is said. It must say
	// the same for the same request.
	Decide func(request string, results []string) *Step
}

// Step is one intent; exactly one of Read, Edit, Run and Tool is set.
type Step struct {
	Read string // a file's absolute path
	Edit *Edit
	Run  string // a command line for a shell
	// Tool is of a server of tools: the end of the name by which the agent offers it,
	// and Args are its arguments.
	Tool string
	Args map[string]any
	// Expect is what the tool's result must hold.
	Expect string
}

// Edit replaces the only Old in a file.
type Edit struct{ Path, Old, New string }

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

// tool is one that an agent offers.
type tool struct {
	name     string
	space    string // empty: none
	freeform bool   // takes text, not JSON
	local    bool   // OpenAI's local_shell
	schema   schema
}

type schema struct {
	Type       any               `json:"type"` // a name, or several
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
	Items      *schema           `json:"items"`
	Enum       []any             `json:"enum"`
}

// is reports whether a value of kind fits; Gemini writes kinds in capitals.
func (s schema) is(kind string) bool {
	switch t := s.Type.(type) {
	case string:
		return strings.EqualFold(t, kind)
	case []any:
		return slices.Contains(t, any(kind))
	}
	return false
}

// call is the use of a tool.
type call struct {
	tool tool
	args map[string]any
	text string // of a freeform one
}

// JSON is the call's arguments.
func (c call) JSON() string {
	b, err := json.Marshal(c.args)
	if err != nil {
		panic(err) // of strings, lists and maps
	}
	return string(b)
}

// The names under which agents offer what a step needs; the first that is there is
// taken.
var (
	readers  = []string{"Read", "read", "read_file", "ReadFile"}
	editors  = []string{"Edit", "edit", "replace", "str_replace", "apply_patch"}
	runners  = []string{"Bash", "bash", "run_shell_command", "exec_command", "shell_command", "shell", "local_shell"}
	pathArgs = []string{"file_path", "filePath", "absolute_path", "path"}
	oldArgs  = []string{"old_string", "oldString", "oldText", "old_str"}
	newArgs  = []string{"new_string", "newString", "newText", "new_str"}
)

func pick(tools []tool, names []string) (tool, bool) {
	for _, n := range names {
		for _, t := range tools {
			if t.name == n || t.local && n == "local_shell" {
				return t, true
			}
		}
	}
	return tool{}, false
}

// works reports whether these are the tools of the agent itself, and not of one of
// the small questions that agents ask on the side.
func works(tools []tool) bool {
	_, ok := pick(tools, runners)
	return ok
}

// translate says how a step is taken with these tools.
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
		if t, ok := pick(tools, readers); ok {
			if key, ok := property(t.schema, pathArgs); ok {
				return t.call(map[string]any{key: s.Read}), nil
			}
		}
		return translate(Step{Run: "cat " + s.Read}, tools)
	case s.Edit != nil:
		t, ok := pick(tools, editors)
		if !ok {
			return translate(Step{Run: "sed -i " + quote("s/"+sedQuote(s.Edit.Old)+"/"+sedQuote(s.Edit.New)+"/") + " " + s.Edit.Path}, tools)
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
	t, ok := pick(tools, runners)
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
	if t.schema.Properties[key].is("array") {
		return t.call(map[string]any{key: []string{"bash", "-lc", s.Run}}), nil
	}
	return t.call(map[string]any{key: s.Run}), nil
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

// replacement are the arguments of a tool that replaces text: of one place, or of
// a list of them.
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

// patch is a call of codex's apply_patch. Its context is the line that changes.
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

// call fills in what else the tool insists on.
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

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func sedQuote(s string) string {
	return regexp.MustCompile(`[/\\&.*^$\[\]]`).ReplaceAllString(s, `\$0`)
}
