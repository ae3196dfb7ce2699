package manifest

import (
	"maps"
	"slices"
)

// Template describes a program that carboy can start as a bottle's agent. Package agent
// registers each one, in the file that starts it.
type Template struct {
	Name string // in agent_provider.template
	// StartupArgs says that the program takes settings.startup_args.
	StartupArgs bool
	// Settings and Route are the lines of an example's agent_provider and egress.routes.
	Settings, Route string
}

// DefaultTemplate names the template of a bottle that names none.
const DefaultTemplate = "claude"

var templates = map[string]Template{}

// Register adds t to the templates that a manifest may name. It is called by init
// functions, and panics if the name is taken.
func Register(t Template) {
	if _, taken := templates[t.Name]; taken {
		panic("manifest: two templates are called " + t.Name)
	}
	templates[t.Name] = t
}

// Templates returns the names of all templates, sorted.
func Templates() []string { return slices.Sorted(maps.Keys(templates)) }

// withStartupArgs returns the names of the templates that take settings.startup_args.
func withStartupArgs() []string {
	return slices.DeleteFunc(Templates(), func(name string) bool { return !templates[name].StartupArgs })
}
