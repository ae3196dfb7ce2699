package carboy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/forgekey"
	"github.com/carboy/carboy/internal/gitgate"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/supervise"
)

// Repository is an upstream repository that a bottle declares, for people and programs.
type Repository struct {
	Name string // inside it is http://git.carboy.internal/NAME.git
	URL  string
	// Access says what opens it: a key's file, a deploy key of a forge, the variable of
	// a token, or nothing.
	Access string
	// HostKey is the fingerprint of the key that the host must have; empty: it is not
	// spoken to by ssh.
	HostKey string
}

// gitGrant is what manifests declare of repositories, with what this machine has for
// them. It is nil when they declare none.
type gitGrant struct {
	repos []gitRepo // by name
}

// gitRepo is one of them.
type gitRepo struct {
	gitgate.Repo
	hostKey  string // its fingerprint
	access   string
	keyFile  string           // of the host, as a real path; empty: none
	tokenEnv string           // that has Token
	deploy   *forgekey.Target // where a deploy key is made; nil: none is
	forgeEnv string
	forge    secret.Value // the token for that
}

// gitOf reads what e's repositories need. It asks nobody.
func (c *Client) gitOf(e *manifest.Effective) (*gitGrant, error) {
	if len(e.Git.Repos) == 0 {
		return nil, nil
	}
	g := &gitGrant{}
	for _, name := range slices.Sorted(maps.Keys(e.Git.Repos)) {
		if m := e.Git.Repos[name]; m.Transport() == manifest.OverSSH && !m.HostKey.IsSet() {
			continue // of bot-bottle's, with a warning: neither fetched from nor pushed to
		}
		r, err := c.gitRepo(name, e.Git.Repos[name])
		if err != nil {
			return nil, err
		}
		g.repos = append(g.repos, *r)
	}
	if len(g.repos) == 0 {
		return nil, nil
	}
	return g, nil
}

func (c *Client) gitRepo(name string, m manifest.Repo) (*gitRepo, error) {
	bad := func(from manifest.Origin, why, advice string) (*gitRepo, error) {
		return nil, &OptionError{Option: from.String(), Value: from.Field, Reason: why, Advice: advice}
	}
	r := &gitRepo{Repo: gitgate.Repo{Name: name, URL: m.URL.V, Aliases: m.Aliases.V, TokenUser: m.TokenUser.V}, access: "nothing"}
	if err := gitgate.CheckURL(r.URL); err != nil {
		return bad(m.URL.From, "is "+err.Error(), "such as ssh://git@HOST/PATH.git, git@HOST:PATH.git or https://HOST/PATH.git")
	}
	if m.Transport() == manifest.OverSSH {
		r.SSH = &gitgate.SSHAccess{}
	}
	if m.HostKey.IsSet() {
		key, err := parseHostKey(m.HostKey.V)
		if err != nil {
			return bad(m.HostKey.From, err.Error(), "write it as ssh-keyscan prints it, such as ssh-ed25519 AAAA…")
		}
		r.SSH.HostKeys, r.hostKey = []ssh.PublicKey{key}, ssh.FingerprintSHA256(key)
	}
	file, from := m.Identity.V, m.Identity.From
	if k := m.Key; k.IsSet() {
		if file, from = k.V.Path, k.From; k.V.Provider != "static" {
			return r, r.deployKey(c, m)
		}
	}
	if file != "" {
		signer, real, err := readKey(file, c.env("HOME"))
		if err != nil {
			return bad(from, err.Error(), "name the file of a private key without a passphrase, readable by you alone, in full or with ~/")
		}
		r.SSH.Signer, r.keyFile, r.access = signer, real, "key "+file
	}
	if r.SSH != nil && r.SSH.Signer == nil {
		return bad(m.From, "is spoken to by ssh, and nothing opens it", "say identity, a private key's file, or key, for a deploy key")
	}
	if env := m.TokenEnv.V; env != "" {
		r.tokenEnv, r.access = env, "token of "+secret.NameOrHidden(env)
		if r.Token = secret.NewString(strings.TrimSpace(c.env(env))); r.Token.Empty() {
			return bad(m.TokenEnv.From, "names "+secret.NameOrHidden(env)+", which is not set here", "set it to the token that opens "+r.URL)
		}
	}
	return r, nil
}

// deployKey says where one would be made.
func (r *gitRepo) deployKey(c *Client, m manifest.Repo) error {
	k := m.Key.V
	bad := func(why, advice string) error {
		return &OptionError{Option: m.Key.From.String(), Value: m.Key.From.Field, Reason: why, Advice: advice}
	}
	to, err := forgekey.Resolve(k.Provider, r.URL, k.APIURL)
	if err != nil {
		return bad("makes no key for "+m.URL.From.String()+": "+err.Error(), "check provider, url and api_url; identity names a key that is there already")
	}
	token := strings.TrimSpace(c.env(k.ForgeTokenEnv))
	if token == "" {
		return bad("needs "+secret.NameOrHidden(k.ForgeTokenEnv)+", which is not set here", "set it to a token of the forge that may manage the deploy keys of "+to.Repo)
	}
	r.deploy, r.forgeEnv, r.forge = &to, k.ForgeTokenEnv, secret.NewString(token)
	r.access = "deploy key that " + k.Provider + " is asked for at " + to.API
	return nil
}

// parseHostKey reads a public key, alone or as a line of known_hosts.
func parseHostKey(s string) (ssh.PublicKey, error) {
	if strings.HasPrefix(strings.TrimSpace(s), "@") {
		return nil, errors.New("is a line with a marker, which pins no key of a host")
	}
	if _, _, key, _, rest, err := ssh.ParseKnownHosts([]byte(s)); err == nil && len(bytes.TrimSpace(rest)) == 0 {
		return key, nil
	}
	key, _, _, rest, err := ssh.ParseAuthorizedKey([]byte(s))
	if err != nil || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("is no public key")
	}
	return key, nil
}

// maxKeyFile bounds a private key's file, in bytes.
const maxKeyFile = 64 << 10

// readKey reads a private key of the user's. What it says of the file never has any of
// its content.
func readKey(path, home string) (signer ssh.Signer, real string, err error) {
	if rest, ok := strings.CutPrefix(path, "~/"); ok && filepath.IsAbs(home) {
		path = filepath.Join(home, rest)
	}
	if !filepath.IsAbs(path) {
		// Else the directory that somebody starts in would decide which key it is.
		return nil, "", errors.New("names no file in full")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, "", fmt.Errorf("can't be read: %s", cause(err))
	}
	defer f.Close()
	fi, err := f.Stat()
	switch {
	case err != nil || !fi.Mode().IsRegular():
		return nil, "", errors.New("is not a regular file")
	case fi.Mode().Perm()&0o077 != 0:
		return nil, "", fmt.Errorf("can be read by others (mode %04o): chmod 600 it", fi.Mode().Perm())
	case fi.Size() > maxKeyFile:
		return nil, "", fmt.Errorf("has more than %d bytes", maxKeyFile)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	defer clear(text)
	if err != nil {
		return nil, "", fmt.Errorf("can't be read: %s", cause(err))
	}
	signer, err = ssh.ParsePrivateKey(text)
	var locked *ssh.PassphraseMissingError
	switch {
	case errors.As(err, &locked):
		return nil, "", errors.New("is locked with a passphrase, and nobody is asked for it")
	case err != nil:
		return nil, "", errors.New("is no private key")
	}
	return signer, realPath(path), nil
}

// described is g for people.
func (g *gitGrant) described() (out []Repository) {
	if g == nil {
		return nil
	}
	for _, r := range g.repos {
		out = append(out, Repository{Name: r.Name, URL: r.URL, Access: r.access, HostKey: r.hostKey})
	}
	return out
}

// watched are the tokens of g, by their variables: what is looked for on every way out.
func (g *gitGrant) watched() map[string]secret.Value {
	out := map[string]secret.Value{}
	if g == nil {
		return out
	}
	for _, r := range g.repos {
		if r.tokenEnv != "" {
			out[r.tokenEnv] = r.Token
		}
		if r.forgeEnv != "" {
			out[r.forgeEnv] = r.forge
		}
	}
	return out
}

// watchGit has the plan keep the tokens of repositories outside.
func (p *plan) watchGit(g *granted) error {
	if g == nil || g.gitFile == "" && g.git == nil {
		return nil
	}
	p.git = g
	for name, v := range g.git.watched() {
		if p.secrets.in(v.UnsafeString()) != "" || unwatchable(v) != "" {
			p.secrets.vars[name] = true
			continue
		}
		p.secrets.put(name, v)
		p.secrets.vars[name] = true
	}
	return nil
}

// hideKeys refuses a plan that would show a repository's private key inside.
func (p *plan) hideKeys() error {
	if p.git == nil || p.git.git == nil {
		return nil
	}
	for _, r := range p.git.git.repos {
		if r.keyFile != "" && p.shows(r.keyFile) {
			return &OptionError{Option: "git-gate.repos." + r.Name, Value: r.keyFile, Reason: "is a private key that lies where the command can read it", Advice: "keep it outside of the workspace and of what is mounted"}
		}
	}
	return nil
}

// gitConfig is the text of the bottle's /etc/gitconfig; empty: none.
func (g *granted) gitConfig() string {
	if g == nil {
		return ""
	}
	return g.gitFile
}

// inside are what the gateway serves for the bottle beside the network.
func (g *granted) inside() map[string]http.Handler {
	if g == nil || g.mount == nil {
		return nil
	}
	return g.mount.handlers()
}

// askAllow has a person decide about a line that asks to be let through.
func (s *session) askAllow(ctx context.Context, a gitgate.Allow) (by string, err error) {
	o, err := ask(ctx, s.asks, supervise.GitleaksAllow{
		Repository: a.Repo, Refs: []string{fit(a.Ref, 1024)},
		Findings: []supervise.GitFinding{{
			Commit: a.Commit, File: fit(a.File, 4096), Line: a.Line, Rule: fit(a.Rule, 128), Value: supervise.Fingerprint([32]byte(s.plan.askKey), a.Code),
			Code: []supervise.CodeLine{{Number: a.Line, Text: fit(a.Text, 1024)}},
		}},
	}, draft("git push", ""), func(supervise.Approval[supervise.GitleaksAllow]) error { return nil })
	switch {
	case err != nil:
		return "", fmt.Errorf("nobody could be asked: %s", s.asks.told(err.Error()))
	case !o.Allowed():
		return "", errors.New(s.asks.words(o))
	}
	return o.Answer.By.String(), nil
}

// gitConfig is the system's git configuration of a bottle: who commits, and that what
// leads to its repositories leads to the gate.
func gitConfig(user manifest.User, g *gitGrant) string {
	var b strings.Builder
	if user.Name.IsSet() || user.Email.IsSet() {
		b.WriteString("[user]\n")
		for _, x := range []struct {
			key string
			v   manifest.Value[string]
		}{{"name", user.Name}, {"email", user.Email}} {
			if x.v.IsSet() {
				fmt.Fprintf(&b, "\t%s = %s\n", x.key, gitQuoted(x.v.V))
			}
		}
	}
	if g == nil {
		return b.String()
	}
	// A proxy of the command's own knows no name of the gate's.
	fmt.Fprintf(&b, "[http \"http://%s/\"]\n\tproxy =\n", gitgate.Host)
	for _, r := range g.repos {
		fmt.Fprintf(&b, "[url \"http://%s/%s.git\"]\n", gitgate.Host, r.Name)
		for _, base := range gitgate.Rewrites(r.Repo) {
			fmt.Fprintf(&b, "\tinsteadOf = %s\n", gitQuoted(base))
		}
	}
	return b.String()
}

// gitQuoted is a value in git's configuration. No value has a line end.
func gitQuoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\t", `\t`).Replace(s) + `"`
}
