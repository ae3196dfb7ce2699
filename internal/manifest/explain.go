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
	// Note is a remark for the reader, such as that a route lost to another one.
	Note string
}

// Entries returns all effective values, in a fixed order.
func (e *Effective) Entries() []Entry {
	l := &lister{e: e}
	l.names("bottle", e.Bottles)
	l.provider()
	l.env()
	l.egress()
	l.git()
	l.services()
	l.add("supervise", e.Supervise.V, e.Supervise.From, e.Supervise.Over)
	l.limits()
	l.add("workspace", e.Workspace.V, e.Workspace.From, e.Workspace.Over)
	l.text("backend", e.Backend)
	l.text("isolation", e.Isolation)
	l.names("skills", e.Agent.Skills)
	for _, k := range vendorKeys {
		if v, ok := e.Agent.Vendor[k]; ok {
			l.add(k, strings.Join(v.V, ", "), v.From, nil)
		}
	}
	if p := e.Agent.Prompt; p.IsSet() {
		l.add("prompt", p.V, p.From, nil)
	}
	return l.entries
}

// lister collects the entries of e.
type lister struct {
	e       *Effective
	entries []Entry
}

func (l *lister) add(key string, value any, from Origin, over []Origin) {
	l.entries = append(l.entries, Entry{Key: key, Value: value, From: from, Over: over})
}

// names adds the names of bottles or skills.
func (l *lister) names(key string, list []Value[string]) {
	for i, v := range list {
		entry := Entry{Key: fmt.Sprintf("%s[%d]", key, i), Value: v.V, From: v.From}
		if key == "bottle" && v.From.IsZero() && v.V != Default {
			entry.Note = "from the command line"
		}
		l.entries = append(l.entries, entry)
	}
}

func (l *lister) text(key string, v Value[string]) {
	if v.IsSet() {
		l.add(key, l.e.shown(v), v.From, v.Over)
	}
}

func (l *lister) number(key string, v Value[int64]) {
	if v.IsSet() {
		l.add(key, v.V, v.From, v.Over)
	}
}

func (l *lister) list(key string, v Value[[]string]) {
	switch {
	case l.e.hidden[v.From]:
		l.add(key, []string{secret.NotShown}, v.From, v.Over)
	case v.IsSet():
		l.add(key, append([]string{}, v.V...), v.From, v.Over)
	}
}

// variable adds the name of an environment variable. It hides what is no such name: that
// may be the secret itself.
func (l *lister) variable(key string, v Value[string]) {
	if v.IsSet() {
		l.add(key, secret.NameOrHidden(v.V), v.From, v.Over)
	}
}

func (l *lister) provider() {
	p := &l.e.Provider
	l.add("agent_provider.template", p.Template.V, p.Template.From, p.Template.Over)
	l.text("agent_provider.dockerfile", p.Dockerfile)
	l.text("agent_provider.image", p.Image)
	l.variable("agent_provider.auth_token", p.AuthToken)
	if f := p.ForwardHostCredentials; f.IsSet() {
		l.add("agent_provider.forward_host_credentials", f.V, f.From, f.Over)
	}
	const settings = "agent_provider.settings."
	l.list(settings+"startup_args", p.Settings.StartupArgs)
	l.list(settings+"command", p.Settings.Command)
	l.list(settings+"resume_command", p.Settings.ResumeCommand)
	pi := &p.Settings.Pi
	l.text(settings+"provider", pi.Provider)
	l.text(settings+"base_url", pi.BaseURL)
	l.text(settings+"api", pi.API)
	l.list(settings+"models", pi.Models)
	l.text(settings+"api_key", pi.APIKey)
	l.variable(settings+"api_key_env", pi.APIKeyEnv)
	l.number(settings+"context_window", pi.ContextWindow)
	l.number(settings+"max_tokens", pi.MaxTokens)
	l.text(settings+"max_tokens_field", pi.MaxTokensField)
	if r := pi.SupportsDeveloperRole; r.IsSet() {
		l.add(settings+"supports_developer_role", r.V, r.From, r.Over)
	}
}

func (l *lister) env() {
	for _, name := range slices.Sorted(maps.Keys(l.e.Env)) {
		v := l.e.Env[name]
		entry := Entry{Key: "env." + name, Value: l.e.shown(v), From: v.From, Over: v.Over}
		if _, ask := Asked(v.V); ask {
			entry.Note = "asked for at the start"
		}
		l.entries = append(l.entries, entry)
	}
}

func (l *lister) egress() {
	e := &l.e.Egress
	l.add("egress.log", e.Log.V, e.Log.From, e.Log.Over)
	for i, r := range e.Routes {
		l.add(fmt.Sprintf("egress.routes[%d]", i), routes.Describe(r.Route), r.From, nil)
	}
	for _, r := range e.Replaced {
		l.entries = append(l.entries, Entry{Key: "egress.replaced", Value: routes.Describe(r.Route), From: r.From, Note: "not used: " + r.By.String() + " says of which kind connections to the host are"})
	}
}

func (l *lister) git() {
	l.text("git-gate.user.name", l.e.User.Name)
	l.text("git-gate.user.email", l.e.User.Email)
	for _, name := range slices.Sorted(maps.Keys(l.e.Git.Repos)) {
		r, key := l.e.Git.Repos[name], "git-gate.repos."+name+"."
		l.text(key+"url", r.URL)
		l.text(key+"identity", r.Identity)
		l.text(key+"host_key", r.HostKey)
		l.variable(key+"token_env", r.TokenEnv)
		l.text(key+"token_user", r.TokenUser)
		l.list(key+"aliases", r.Aliases)
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
			l.add(key+"key", strings.Join(words, ", "), k.From, k.Over)
		}
	}
}

func (l *lister) services() {
	for _, name := range l.e.Services.Order() {
		s, key := l.e.Services.By[name], "services."+name+"."
		l.text(key+"image", s.Image)
		l.list(key+"entrypoint", s.Entrypoint)
		l.list(key+"command", s.Command)
		for _, n := range slices.Sorted(maps.Keys(s.Env)) {
			v := s.Env[n]
			_, ask := Asked(v.V)
			entry := Entry{Key: key + "environment." + n, Value: l.e.shown(v), From: v.From}
			switch {
			case ask:
				entry.Note = "asked for at the start"
			case secret.NameSays(n):
				entry.Value = secret.NotShown
			}
			l.entries = append(l.entries, entry)
		}
		if s.Ports.IsSet() {
			l.add(key+"ports", strings.Trim(fmt.Sprint(s.Ports.V), "[]"), s.Ports.From, nil)
		}
		if h := s.Health; h.IsSet() {
			l.add(key+"healthcheck", fmt.Sprintf("%s (every %s, at most %s, %d failures after %s)", strings.Join(h.V.Test, " "), h.V.Interval, h.V.Timeout, h.V.Retries, h.V.StartPeriod), h.From, nil)
		}
		l.list(key+"depends_on", s.After)
		x := &s.Limits
		l.number(key+"limits.memory", x.Memory)
		l.number(key+"limits.disk", x.Disk)
		l.number(key+"limits.pids", x.Pids)
		l.number(key+"limits.cpus", x.CPUs)
	}
}

func (l *lister) limits() {
	x := &l.e.Limits
	byMachine := func(key string) {
		l.entries = append(l.entries, Entry{Key: key, Note: "as the machine has it: carboy doctor"})
	}
	for _, n := range []struct {
		key string
		v   Value[int64]
	}{{"memory", x.Memory}, {"pids", x.Pids}, {"disk", x.Disk}, {"cpus", x.CPUs}, {"output", x.Output}} {
		if n.v.IsSet() {
			l.number("limits."+n.key, n.v)
		} else {
			byMachine("limits." + n.key)
		}
	}
	if x.Timeout.IsSet() {
		l.add("limits.timeout", x.Timeout.V.String(), x.Timeout.From, x.Timeout.Over)
	} else {
		byMachine("limits.timeout")
	}
	l.number("limits.egress_bytes", x.EgressBytes)
	if x.Approval.IsSet() {
		l.add("limits.approval", x.Approval.V.String(), x.Approval.From, x.Approval.Over)
	}
}

// shown returns a value, hidden if its file has one that looks like a secret, which
// files of bot-bottle may.
func (e *Effective) shown(v Value[string]) string {
	if e.hidden[v.From] {
		return secret.NotShown
	}
	return v.V
}
