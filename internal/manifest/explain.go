package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/secret"
)

// Entry is one value of an Effective, for people and programs.
type Entry struct {
	Key string
	// Value is text, a number, a boolean, a list of text or a
	// [routes.Description]; nil where the machine decides.
	Value any
	From  Origin
	Over  []Origin
	// Note says what else a reader should know, such as that a route lost to
	// another one.
	Note string
}

// Entries are all values, in an order of their own: what holds, not what was
// written.
func (e *Effective) Entries() []Entry {
	var out []Entry
	add := func(key string, value any, from Origin, over []Origin) {
		out = append(out, Entry{Key: key, Value: value, From: from, Over: over})
	}
	named := func(key string, list []Value[string]) {
		for i, v := range list {
			entry := Entry{Key: fmt.Sprintf("%s[%d]", key, i), Value: v.V, From: v.From}
			if key == "bottle" && v.From.IsZero() && v.V != Default {
				entry.Note = "from the command line"
			}
			out = append(out, entry)
		}
	}
	named("bottle", e.Bottles)
	text := func(key string, v Value[string]) {
		if v.IsSet() {
			add(key, e.shown(v), v.From, v.Over)
		}
	}
	number := func(key string, v Value[int64]) {
		if v.IsSet() {
			add(key, v.V, v.From, v.Over)
		}
	}
	list := func(key string, v Value[[]string]) {
		switch {
		case e.hidden[v.From]:
			add(key, []string{secret.NotShown}, v.From, v.Over)
		case v.IsSet():
			add(key, append([]string{}, v.V...), v.From, v.Over)
		}
	}
	env := func(key string, v Value[string]) {
		if v.IsSet() {
			add(key, secret.NameOrHidden(v.V), v.From, v.Over)
		}
	}
	p := &e.Provider
	add("agent_provider.template", p.Template.V, p.Template.From, p.Template.Over)
	text("agent_provider.dockerfile", p.Dockerfile)
	text("agent_provider.image", p.Image)
	env("agent_provider.auth_token", p.AuthToken)
	if f := p.ForwardHostCredentials; f.IsSet() {
		add("agent_provider.forward_host_credentials", f.V, f.From, f.Over)
	}
	const settings = "agent_provider.settings."
	list(settings+"startup_args", p.Settings.StartupArgs)
	list(settings+"command", p.Settings.Command)
	list(settings+"resume_command", p.Settings.ResumeCommand)
	pi := &p.Settings.Pi
	text(settings+"provider", pi.Provider)
	text(settings+"base_url", pi.BaseURL)
	text(settings+"api", pi.API)
	list(settings+"models", pi.Models)
	text(settings+"api_key", pi.APIKey)
	env(settings+"api_key_env", pi.APIKeyEnv)
	number(settings+"context_window", pi.ContextWindow)
	number(settings+"max_tokens", pi.MaxTokens)
	text(settings+"max_tokens_field", pi.MaxTokensField)

	for _, name := range slices.Sorted(maps.Keys(e.Env)) {
		v := e.Env[name]
		entry := Entry{Key: "env." + name, Value: e.shown(v), From: v.From, Over: v.Over}
		if _, ask := Asked(v.V); ask {
			entry.Note = "asked for at the start"
		}
		out = append(out, entry)
	}
	add("egress.log", e.Egress.Log.V, e.Egress.Log.From, e.Egress.Log.Over)
	for i, r := range e.Egress.Routes {
		add(fmt.Sprintf("egress.routes[%d]", i), routes.Describe(r.Route), r.From, nil)
	}
	for _, r := range e.Egress.Replaced {
		out = append(out, Entry{Key: "egress.replaced", Value: routes.Describe(r.Route), From: r.From, Note: "not used: " + r.By.String() + " says of which kind connections to the host are"})
	}
	text("git-gate.user.name", e.User.Name)
	text("git-gate.user.email", e.User.Email)
	for _, name := range slices.Sorted(maps.Keys(e.Git.Repos)) {
		r, key := e.Git.Repos[name], "git-gate.repos."+name+"."
		text(key+"url", r.URL)
		text(key+"identity", r.Identity)
		text(key+"host_key", r.HostKey)
		env(key+"token_env", r.TokenEnv)
		text(key+"token_user", r.TokenUser)
		list(key+"aliases", r.Aliases)
		if k := r.Key; k.IsSet() {
			words := []string{k.V.Provider}
			if k.V.Path != "" {
				words = append(words, "path "+k.V.Path)
			}
			if k.V.ForgeTokenEnv != "" {
				words = append(words, "token of "+secret.NameOrHidden(k.V.ForgeTokenEnv))
			}
			if k.V.APIURL != "" {
				words = append(words, "at "+k.V.APIURL)
			}
			add(key+"key", strings.Join(words, ", "), k.From, k.Over)
		}
	}
	add("supervise", e.Supervise.V, e.Supervise.From, e.Supervise.Over)
	l := &e.Limits
	for _, x := range []struct {
		key string
		v   Value[int64]
	}{{"memory", l.Memory}, {"pids", l.Pids}, {"disk", l.Disk}, {"cpus", l.CPUs}, {"output", l.Output}} {
		if x.v.IsSet() {
			add("limits."+x.key, x.v.V, x.v.From, x.v.Over)
		} else {
			out = append(out, Entry{Key: "limits." + x.key, Note: "as the machine has it: carboy doctor"})
		}
	}
	if l.Timeout.IsSet() {
		add("limits.timeout", l.Timeout.V.String(), l.Timeout.From, l.Timeout.Over)
	} else {
		out = append(out, Entry{Key: "limits.timeout", Note: "as the machine has it: carboy doctor"})
	}
	number("limits.egress_bytes", l.EgressBytes)
	add("workspace", e.Workspace.V, e.Workspace.From, e.Workspace.Over)
	named("skills", e.Agent.Skills)
	for _, k := range vendorKeys {
		if v, ok := e.Agent.Vendor[k]; ok {
			add(k, strings.Join(v.V, ", "), v.From, nil)
		}
	}
	if p := e.Agent.Prompt; p.IsSet() {
		add("prompt", p.V, p.From, nil)
	}
	return out
}

// shown is a value without what looks like a secret, which bot-bottle's files may
// have.
func (e *Effective) shown(v Value[string]) string {
	if e.hidden[v.From] {
		return secret.NotShown
	}
	return v.V
}
