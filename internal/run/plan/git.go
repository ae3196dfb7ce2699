package plan

import (
	"net/http"

	"github.com/carboy/carboy/internal/fault"
)

// watchGit adds the tokens of repositories to the secrets that the plan keeps outside.
func (p *Plan) watchGit(g *Grant) error {
	if g == nil || g.GitFile == "" && g.Git == nil {
		return nil
	}
	p.GitGrant = g
	for name, v := range g.Git.Watched() {
		if p.Secrets.in(v.UnsafeString()) != "" || unwatchable(v) != "" {
			p.Secrets.vars[name] = true
			continue
		}
		p.Secrets.Put(name, v)
		p.Secrets.vars[name] = true
	}
	return nil
}

// hideKeys refuses a plan that would show a repository's private key inside.
func (p *Plan) hideKeys() error {
	if p.GitGrant == nil || p.GitGrant.Git == nil {
		return nil
	}
	for _, r := range p.GitGrant.Git.Repos {
		if r.KeyFile != "" && p.Shows(r.KeyFile) {
			return &fault.OptionError{Option: "git-gate.repos." + r.Name, Value: r.KeyFile, Reason: "is a private key that lies where the command can read it", Advice: "keep it outside of the workspace and of what is mounted"}
		}
	}
	return nil
}

// gitConfig returns the text of the bottle's /etc/gitconfig; empty: none.
func (g *Grant) gitConfig() string {
	if g == nil {
		return ""
	}
	return g.GitFile
}

// Inside returns the servers that the gateway offers the bottle besides the network.
func (g *Grant) Inside() map[string]http.Handler {
	if g == nil || g.Mount == nil {
		return nil
	}
	return g.Mount.Handlers()
}
