package agent

import (
	_ "embed"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/run/plan"
)

// piTools is an extension that teaches pi MCP, which it does not speak.
//
//go:embed pi_tools.ts
var piTools string

func init() {
	register(manifest.Template{
		Name: "pi", StartupArgs: true,
		Settings: "  # settings: {provider: my-own, base_url: \"http://model.example:8080/v1\", api: openai-completions, models: [a-model], api_key_env: MODEL_KEY}\n",
		Route:    "    - {host: api.anthropic.com, auth_scheme: x-api-key, token_env: ANTHROPIC_API_KEY}\n",
	}, launchPi)
}

// launchPi starts pi with the key of any vendor, or with the user's own model server.
func launchPi(c *host.Host, e *manifest.Effective, o *Options, l *Launch) error {
	l.models = vendorHosts()
	program, err := l.program(c, e, o, "pi", "@mariozechner/pi-coding-agent")
	if err != nil {
		return err
	}
	s := &e.Provider.Settings
	l.Command = append(program, s.StartupArgs.V...)
	own := &piServer{s: &s.Pi, name: s.Pi.Provider.V}
	if err := own.read(); err != nil {
		return err
	}
	if own.name != "" {
		l.Command = append(l.Command, "--provider", own.name)
	}
	if m := l.model(e); m != "" {
		l.Command = append(l.Command, "--model", m)
	} else if len(s.Pi.Models.V) > 0 {
		l.Command = append(l.Command, "--model", s.Pi.Models.V[0])
	}
	if o.Resume {
		l.Command = append(l.Command, "--continue")
	}
	if o.Headless {
		text := o.Prompt
		if strings.HasPrefix(text, "-") || strings.HasPrefix(text, "@") {
			text = " " + text // else pi reads it as an option or a file name
		}
		l.Command = append(l.Command, "-p", text)
	}
	if err := own.add(l); err != nil {
		return err
	}
	l.text(".pi/agent/APPEND_SYSTEM.md", e)
	l.addSkills(".pi/agent/skills")
	l.Sessions = []string{".pi/agent/sessions"}
	l.Env["PI_OFFLINE"], l.Env["PI_TELEMETRY"] = "1", "0"
	if any := l.keyVariables(); !any && own.host == "" {
		l.noteKey(claudeHost, "ANTHROPIC_API_KEY", "auth_scheme: x-api-key")
	}
	for _, m := range l.mcp {
		l.file(".pi/agent/extensions/"+m.Name+".ts", []byte(strings.Replace(piTools, `"URL"`, strconv.Quote(m.URL), 1)))
	}
	return nil
}

// piServer holds a bottle's settings for a model server or for a vendor that pi knows.
type piServer struct {
	s    *manifest.PiSettings
	name string
	host string // empty: pi knows it
	port string
	base string
}

// piAPIs maps the name of each API to the credential of its requests.
var piAPIs = map[string]policy.Credential{
	"openai-completions":   {Scheme: credential.Bearer},
	"openai-responses":     {Scheme: credential.Bearer},
	"anthropic-messages":   {Scheme: credential.APIKey},
	"google-generative-ai": {Scheme: credential.Header, Field: "x-goog-api-key"},
}

// piVendors maps pi's names of vendors to their hosts, as in Vendors.
var piVendors = map[string]string{
	"anthropic": "api.anthropic.com", "openai": "api.openai.com", "google": "generativelanguage.googleapis.com", "groq": "api.groq.com",
	"openrouter": "openrouter.ai", "mistral": "api.mistral.ai", "deepseek": "api.deepseek.com", "xai": "api.x.ai",
}

func (p *piServer) bad(from manifest.Origin, why, advice string) error {
	return &fault.OptionError{Option: from.String(), Value: from.Field, Reason: why, Advice: advice}
}

// read checks the server's address. In the bottle, localhost would be the bottle itself,
// so read replaces it with the name of the host.
func (p *piServer) read() error {
	if p.s.API.IsSet() {
		if _, ok := piAPIs[p.s.API.V]; !ok {
			return p.bad(p.s.API.From, "is no API that a key can be put on for", "there are openai-completions, openai-responses, anthropic-messages, google-generative-ai")
		}
	}
	if !p.s.BaseURL.IsSet() {
		return nil
	}
	from := p.s.BaseURL.From
	u, err := url.Parse(p.s.BaseURL.V)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return p.bad(from, "is no URL of a server", "such as https://models.example.com/v1, without user and query")
	}
	p.host, p.port = strings.ToLower(u.Hostname()), u.Port()
	if p.port == "" {
		p.port = map[string]string{"https": "443", "http": "80"}[u.Scheme]
	}
	if p.host == "localhost" || p.host == "127.0.0.1" || p.host == "::1" {
		p.host = policy.HostGateway
	}
	shown := p.host
	if strings.Contains(shown, ":") {
		shown = "[" + shown + "]"
	}
	u.Host = shown + ":" + p.port
	p.base = u.String()
	if p.name == "" {
		p.name = "carboy"
	}
	if len(p.s.Models.V) == 0 {
		return p.bad(from, "names a server, and no model of it is named", "settings: {models: [NAME]}")
	}
	return nil
}

// maxPlainKey bounds an api_key. A short one is a word that a local server wants, such
// as "ollama"; a longer one may be a secret.
const maxPlainKey = 20

// add writes pi's file of models with a placeholder for the key, and makes the route add
// the real key.
func (p *piServer) add(l *Launch) error {
	type object = map[string]any
	provider, model := object{}, object{}
	if v := p.s.ContextWindow; v.IsSet() {
		model["contextWindow"] = v.V
	}
	if v := p.s.MaxTokens; v.IsSet() {
		model["maxTokens"] = v.V
	}
	compat := object{}
	if v := p.s.MaxTokensField; v.IsSet() {
		compat["maxTokensField"] = v.V
	}
	if v := p.s.SupportsDeveloperRole; v.IsSet() {
		compat["supportsDeveloperRole"] = v.V
	}
	if len(compat) > 0 {
		model["compat"] = compat
	}
	key, err := p.key(l)
	if err != nil {
		return err
	}
	if key != "" {
		provider["apiKey"] = key
	}
	switch {
	case p.host != "":
		provider["baseUrl"], provider["api"] = p.base, "openai-completions"
		if p.s.API.IsSet() {
			provider["api"] = p.s.API.V
		}
		var models []object
		for _, id := range p.s.Models.V {
			m := object{"id": id}
			for k, v := range model {
				m[k] = v
			}
			models = append(models, m)
		}
		provider["models"] = models
	case len(model) > 0:
		if p.name == "" || len(p.s.Models.V) == 0 {
			return p.bad(p.anyOf(), "is about a model, and provider and models don't say which", "settings: {provider: NAME, models: [NAME]}")
		}
		over := object{}
		for _, id := range p.s.Models.V {
			over[id] = model
		}
		provider["modelOverrides"] = over
	}
	if len(provider) == 0 {
		return nil
	}
	return l.json(".pi/agent/models.json", object{"providers": object{p.name: provider}})
}

// anyOf returns the origin of the first bound of a model that is set.
func (p *piServer) anyOf() manifest.Origin {
	for _, from := range []manifest.Origin{p.s.ContextWindow.From, p.s.MaxTokens.From, p.s.MaxTokensField.From, p.s.SupportsDeveloperRole.From} {
		if !from.IsZero() {
			return from
		}
	}
	return manifest.Origin{}
}

// key returns the apiKey of pi's file: the name of a variable, which holds a placeholder
// in the bottle, or a plain word.
func (p *piServer) key(l *Launch) (string, error) {
	env, plain := p.s.APIKeyEnv, p.s.APIKey
	if len(plain.V) > maxPlainKey {
		return "", p.bad(plain.From, "is too long for a word that is no secret, and would come inside", "put it into a variable of the host, and say api_key_env: NAME")
	}
	host, api := p.host, p.s.API.V
	if host == "" {
		host = piVendors[p.name]
	}
	if host == "" {
		if env.IsSet() || plain.IsSet() {
			return "", p.bad(firstOf(env.From, plain.From), "is a key, and it is not said for whom", "settings: {base_url: https://…/v1}, or a provider of "+vendorNames())
		}
		return "", nil
	}
	cred := piAPIs[api]
	if api == "" {
		cred = policy.Credential{Scheme: credential.Bearer}
		for _, k := range Vendors {
			if k.Host == host {
				cred = policy.Credential{Scheme: k.Scheme, Field: k.Field}
			}
		}
	}
	cred.Env = env.V
	from := firstOf(env.From, p.s.BaseURL.From, p.s.Provider.From)
	if p.host == "" && !env.IsSet() {
		return plain.V, nil // the bottle's own routes decide what it reaches
	}
	if !env.IsSet() {
		cred = policy.Credential{}
	}
	if err := p.route(l, host, cred, from); err != nil {
		return "", err
	}
	switch {
	case env.IsSet():
		return env.V, nil
	case plain.IsSet():
		return plain.V, nil
	}
	return plan.Placeholder, nil // pi wants one, the server may not
}

// route allows requests to the server.
func (p *piServer) route(l *Launch, host string, cred policy.Credential, from manifest.Origin) error {
	port := p.port
	if port == "" {
		port = "443"
	}
	allow := policy.ParseAllow
	if host == policy.HostGateway {
		allow = policy.ParseAllowPrivate
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	made, err := allow(host + ":" + port)
	if err != nil {
		return p.bad(from, "leads where nothing may go: "+err.Error(), "")
	}
	own := func(r policy.Route) bool {
		return r.Host() == made.Host() && slices.Contains(r.Ports(), made.Ports()[0]) && r.Protocol() == policy.ProtocolWeb
	}
	if cred.IsZero() {
		if !slices.ContainsFunc(l.Routes, own) {
			l.Routes = append([]policy.Route{made.WithRule(from.String())}, l.Routes...)
		}
		return nil
	}
	return l.putOn(own, cred, from, func() (policy.Route, error) { return made, nil })
}

func vendorNames() string {
	var names []string
	for n := range piVendors {
		names = append(names, n)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func firstOf(from ...manifest.Origin) manifest.Origin {
	for _, f := range from {
		if !f.IsZero() {
			return f
		}
	}
	return manifest.Origin{}
}
