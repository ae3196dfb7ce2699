package manifest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/document"
)

// Provider selects the program that works in the bottle, and its image.
type Provider struct {
	Template Value[string]
	// Dockerfile or Image makes the root file system; without both it has this
	// machine's tools.
	Dockerfile, Image Value[string]
	// AuthToken names the host's variable with claude's token.
	AuthToken Value[string]
	// ForwardHostCredentials gives codex the credentials of the host's codex.
	ForwardHostCredentials Value[bool]
	Settings               Settings
}

// Settings are specific to the template.
type Settings struct {
	// StartupArgs precede carboy's own arguments.
	StartupArgs Value[[]string]
	// Command is the command line of the template "command"; an argument that is
	// exactly {prompt} becomes the prompt.
	Command Value[[]string]
	// ResumeCommand is the command line that continues a bottle's work.
	ResumeCommand Value[[]string]
	Pi            PiSettings
}

// PiSettings configures a custom model server for pi.
type PiSettings struct {
	Provider, BaseURL, API Value[string]
	Models                 Value[[]string]
	APIKey, APIKeyEnv      Value[string] // one of them
	ContextWindow          Value[int64]
	MaxTokens              Value[int64]
	MaxTokensField         Value[string]
	// SupportsDeveloperRole says whether the server takes the role developer beside
	// system.
	SupportsDeveloperRole Value[bool]
}

func (r *reader) provider(v document.Value) (p Provider) {
	m := v.Mapping("template", "dockerfile", "image", "auth_token", "forward_host_credentials", "settings")
	if t := m.Get("template"); t.Present() {
		p.Template = said(t, r.word(t, Templates()))
	}
	p.Dockerfile, p.Image = r.text(m.Get("dockerfile")), r.text(m.Get("image"))
	r.notHere(m.Get("image"), p.Image.V)
	p.AuthToken = r.envName(m.Get("auth_token"))
	p.ForwardHostCredentials = said(m.Get("forward_host_credentials"), m.Get("forward_host_credentials").Bool(false))
	s := m.Get("settings").Mapping("startup_args", "command", "resume_command", "provider", "base_url", "api", "models", "api_key", "api_key_env",
		"context_window", "max_tokens", "max_tokens_field", "supports_developer_role")
	for _, e := range s.Get("startup_args").List() {
		if e.IsEmptyText() {
			e.Bad("is empty", "leave it out: a program may take it for a prompt")
		}
	}
	p.Settings.StartupArgs, p.Settings.Command = r.args(s.Get("startup_args")), r.args(s.Get("command"))
	p.Settings.ResumeCommand = r.args(s.Get("resume_command"))
	for _, k := range []string{"command", "resume_command"} {
		if c := s.Get(k); c.IsEmpty() {
			c.Bad("is empty", "the program comes first")
		}
	}
	pi := &p.Settings.Pi
	pi.Provider, pi.BaseURL, pi.API = r.text(s.Get("provider")), r.text(s.Get("base_url")), r.text(s.Get("api"))
	pi.Models = said(s.Get("models"), s.Get("models").Strings())
	pi.APIKeyEnv = r.envName(s.Get("api_key_env"))
	if k := s.Get("api_key"); k.Present() {
		pi.APIKey = r.text(k)
		if pi.APIKey.V != "" && pi.APIKeyEnv.IsSet() {
			k.Bad("api_key and api_key_env are both given", "keep api_key_env")
		}
		r.noSecret(k, "", pi.APIKey.V, "name the variable that has it with api_key_env")
	}
	pi.ContextWindow = said(s.Get("context_window"), s.Get("context_window").Int(0, 1, 1<<32))
	pi.MaxTokens = said(s.Get("max_tokens"), s.Get("max_tokens").Int(0, 1, 1<<32))
	if f := s.Get("max_tokens_field"); f.Present() {
		pi.MaxTokensField = said(f, r.word(f, []string{"max_tokens", "max_completion_tokens"}))
	}
	pi.SupportsDeveloperRole = said(s.Get("supports_developer_role"), s.Get("supports_developer_role").Bool(false))
	return p
}

// notHere refuses an image that would be looked for in the current directory.
func (r *reader) notHere(v document.Value, image string) {
	for _, prefix := range []string{"oci:", "tar:", ""} {
		path, ok := strings.CutPrefix(image, prefix)
		if ok && (prefix != "" && !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "./") || strings.HasPrefix(path, "../")) {
			v.Bad("would be looked for in the current directory, which may be a repository", "write a whole path, or a reference to a registry")
			return
		}
	}
}

// over replaces the settings that src sets. If src has another template, it drops
// all earlier ones, which were about theirs.
func (p *Provider) over(src Provider) {
	if src.Template.IsSet() && src.Template.V != p.Template.V && (p.Template.IsSet() || src.Template.V != DefaultTemplate) {
		t := p.Template
		image, file := p.Image, p.Dockerfile
		*p = Provider{Template: t, Image: image, Dockerfile: file}
	}
	over(&p.Template, src.Template)
	// One of the two: the later bottle's.
	if src.Image.IsSet() && !src.Dockerfile.IsSet() {
		p.Dockerfile = Value[string]{}
	}
	if src.Dockerfile.IsSet() && !src.Image.IsSet() {
		p.Image = Value[string]{}
	}
	over(&p.Dockerfile, src.Dockerfile)
	over(&p.Image, src.Image)
	over(&p.AuthToken, src.AuthToken)
	over(&p.ForwardHostCredentials, src.ForwardHostCredentials)
	over(&p.Settings.StartupArgs, src.Settings.StartupArgs)
	over(&p.Settings.Command, src.Settings.Command)
	over(&p.Settings.ResumeCommand, src.Settings.ResumeCommand)
	d, s := &p.Settings.Pi, src.Settings.Pi
	over(&d.Provider, s.Provider)
	over(&d.BaseURL, s.BaseURL)
	over(&d.API, s.API)
	over(&d.Models, s.Models)
	if s.APIKey.IsSet() {
		d.APIKeyEnv = Value[string]{}
	}
	if s.APIKeyEnv.IsSet() {
		d.APIKey = Value[string]{}
	}
	over(&d.APIKey, s.APIKey)
	over(&d.APIKeyEnv, s.APIKeyEnv)
	over(&d.ContextWindow, s.ContextWindow)
	over(&d.MaxTokens, s.MaxTokens)
	over(&d.MaxTokensField, s.MaxTokensField)
	over(&d.SupportsDeveloperRole, s.SupportsDeveloperRole)
}

// check reports conflicting settings of the merged bottles.
func (p *Provider) check() (bad document.Error) {
	template := p.Template.V
	of := func(from Origin, templates ...string) {
		if !from.IsZero() && !slices.Contains(templates, template) {
			bad = append(bad, from.problem(fmt.Sprintf("belongs to the template %s, and this is %s", strings.Join(templates, " or "), template), "the template is said in "+p.Template.From.String()))
		}
	}
	if p.Dockerfile.IsSet() && p.Image.IsSet() {
		bad = append(bad, p.Image.From.problem("image and dockerfile are both given", "keep one"))
	}
	of(p.AuthToken.From, "claude")
	of(p.ForwardHostCredentials.From, "codex")
	s := &p.Settings
	of(s.StartupArgs.From, withStartupArgs()...)
	of(s.Command.From, "command")
	of(s.ResumeCommand.From, "command")
	if template == "command" && !s.Command.IsSet() {
		bad = append(bad, p.Template.From.problem("the template command needs settings.command", "settings: {command: [my-agent, '{prompt}']}"))
	}
	for _, from := range []Origin{s.Pi.Provider.From, s.Pi.BaseURL.From, s.Pi.API.From, s.Pi.Models.From, s.Pi.APIKey.From,
		s.Pi.APIKeyEnv.From, s.Pi.ContextWindow.From, s.Pi.MaxTokens.From, s.Pi.MaxTokensField.From, s.Pi.SupportsDeveloperRole.From} {
		of(from, "pi")
	}
	return bad
}
