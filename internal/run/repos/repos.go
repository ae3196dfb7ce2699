// Package repos serves the git repositories that a bottle's manifests declare: it reads
// their keys and tokens, makes deploy keys and opens the git gate.
package repos

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/gitgate"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/secret"
)

// Repository describes an upstream repository that a bottle declares.
type Repository struct {
	Name string // inside it is http://git.carboy.internal/NAME.git
	URL  string
	// Access describes how the repository is opened: with a key's file, a deploy key
	// of a forge, the variable of a token, or nothing.
	Access string
	// HostKey is the fingerprint of the key that the host must have; empty: ssh is not
	// used.
	HostKey string
}

// Repos holds the repositories that manifests declare, with this machine's keys and
// tokens for them. It is nil if they declare none.
type Repos struct {
	Repos []Repo // by name
}

// Repo is one repository of Repos.
type Repo struct {
	gitgate.Repo
	hostKey  string // its fingerprint
	access   string
	KeyFile  string        // of the host, as a real path; empty: none
	tokenEnv string        // that has Token
	deploy   *forge.Target // where a deploy key is made; nil: none is
	forgeEnv string
	forge    secret.Value // the token for that
}

// Read reads the keys and tokens that e's repositories need. It uses no network.
func Read(c *host.Host, e *manifest.Effective) (*Repos, error) {
	if len(e.Git.Repos) == 0 {
		return nil, nil
	}
	g := &Repos{}
	for _, name := range slices.Sorted(maps.Keys(e.Git.Repos)) {
		if m := e.Git.Repos[name]; m.Transport() == manifest.OverSSH && !m.HostKey.IsSet() {
			continue // of bot-bottle's, with a warning: neither fetched from nor pushed to
		}
		r, err := gitRepo(c, name, e.Git.Repos[name])
		if err != nil {
			return nil, err
		}
		g.Repos = append(g.Repos, *r)
	}
	if len(g.Repos) == 0 {
		return nil, nil
	}
	return g, nil
}

func gitRepo(c *host.Host, name string, m manifest.Repo) (*Repo, error) {
	bad := func(from manifest.Origin, why, advice string) (*Repo, error) {
		return nil, &fault.OptionError{Option: from.String(), Value: from.Field, Reason: why, Advice: advice}
	}
	r := &Repo{Repo: gitgate.Repo{Name: name, URL: m.URL.V, Aliases: m.Aliases.V, TokenUser: m.TokenUser.V}, access: "nothing"}
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
		signer, real, err := readKey(file, c.Env("HOME"))
		if err != nil {
			return bad(from, err.Error(), "name the file of a private key without a passphrase, readable by you alone, in full or with ~/")
		}
		r.SSH.Signer, r.KeyFile, r.access = signer, real, "key "+file
	}
	if r.SSH != nil && r.SSH.Signer == nil {
		return bad(m.From, "is spoken to by ssh, and nothing opens it", "say identity, a private key's file, or key, for a deploy key")
	}
	if env := m.TokenEnv.V; env != "" {
		r.tokenEnv, r.access = env, "token of "+secret.NameOrHidden(env)
		if r.Token = secret.NewString(strings.TrimSpace(c.Env(env))); r.Token.Empty() {
			return bad(m.TokenEnv.From, "names "+secret.NameOrHidden(env)+", which is not set here", "set it to the token that opens "+r.URL)
		}
	}
	return r, nil
}

// deployKey sets the forge that makes r's deploy key, and the token to ask it with. It
// makes no key yet.
func (r *Repo) deployKey(c *host.Host, m manifest.Repo) error {
	k := m.Key.V
	bad := func(why, advice string) error {
		return &fault.OptionError{Option: m.Key.From.String(), Value: m.Key.From.Field, Reason: why, Advice: advice}
	}
	to, err := forge.Resolve(k.Provider, r.URL, k.APIURL)
	if err != nil {
		return bad("makes no key for "+m.URL.From.String()+": "+err.Error(), "check provider, url and api_url; identity names a key that is there already")
	}
	token := strings.TrimSpace(c.Env(k.ForgeTokenEnv))
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

// readKey reads a private key of the user's. Its errors contain nothing of the file.
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
		return nil, "", fmt.Errorf("can't be read: %s", fault.Cause(err))
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
		return nil, "", fmt.Errorf("can't be read: %s", fault.Cause(err))
	}
	signer, err = ssh.ParsePrivateKey(text)
	var locked *ssh.PassphraseMissingError
	switch {
	case errors.As(err, &locked):
		return nil, "", errors.New("is locked with a passphrase, and nobody is asked for it")
	case err != nil:
		return nil, "", errors.New("is no private key")
	}
	return signer, fault.RealPath(path), nil
}

// Described returns descriptions of g's repositories to show to people.
func (g *Repos) Described() (out []Repository) {
	if g == nil {
		return nil
	}
	for _, r := range g.Repos {
		out = append(out, Repository{Name: r.Name, URL: r.URL, Access: r.access, HostKey: r.hostKey})
	}
	return out
}

// Watched returns the tokens of g, by their variables. They are watched for on every way
// out.
func (g *Repos) Watched() map[string]secret.Value {
	out := map[string]secret.Value{}
	if g == nil {
		return out
	}
	for _, r := range g.Repos {
		if r.tokenEnv != "" {
			out[r.tokenEnv] = r.Token
		}
		if r.forgeEnv != "" {
			out[r.forgeEnv] = r.forge
		}
	}
	return out
}

// GitConfig returns the system's git configuration of a bottle: it sets the committer,
// and replaces the URLs of its repositories by the gate's.
func GitConfig(user manifest.User, g *Repos) string {
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
	for _, r := range g.Repos {
		fmt.Fprintf(&b, "[url \"http://%s/%s.git\"]\n", gitgate.Host, r.Name)
		for _, base := range gitgate.Rewrites(r.Repo) {
			fmt.Fprintf(&b, "\tinsteadOf = %s\n", gitQuoted(base))
		}
	}
	return b.String()
}

// gitQuoted quotes a value for git's configuration. No value has a line end.
func gitQuoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\t", `\t`).Replace(s) + `"`
}

// LeadingTo returns the repository of g that a remote of the work tree names: the wanted
// one, by its own name or a remote's, else origin's, else the only one.
func (g *Repos) LeadingTo(remotes map[string][]string, want string) (*Repo, string) {
	if len(g.Repos) == 0 {
		return nil, "the bottle declares no repository"
	}
	of := func(remote string) *Repo {
		for i := range g.Repos {
			known := gitgate.Rewrites(g.Repos[i].Repo)
			for _, url := range remotes[remote] {
				if slices.Contains(known, strings.TrimSuffix(url, "/")) {
					return &g.Repos[i]
				}
			}
		}
		return nil
	}
	if want != "" {
		for i := range g.Repos {
			if g.Repos[i].Name == want {
				return &g.Repos[i], ""
			}
		}
		if r := of(want); r != nil {
			return r, ""
		}
		return nil, "the bottle declares no repository of this name, and none to which such a remote leads"
	}
	if r := of("origin"); r != nil {
		return r, ""
	}
	var only *Repo
	for _, name := range slices.Sorted(maps.Keys(remotes)) {
		switch r := of(name); {
		case r == nil:
		case only != nil && only.Name != r.Name:
			return nil, "several of the bottle's repositories are remotes of this one, and none is origin: --push NAME says which"
		default:
			only = r
		}
	}
	if only == nil {
		return nil, "no remote of the repository leads to one that the bottle declares"
	}
	return only, ""
}

// Of returns the one repository of g whose path at its forge is OWNER/NAME. g may be nil.
func (g *Repos) Of(path string) (*Repo, error) {
	var found *Repo
	if g != nil {
		for i := range g.Repos {
			url := strings.TrimSuffix(strings.TrimRight(g.Repos[i].URL, "/"), ".git")
			if !strings.HasSuffix(url, "/"+path) && !strings.HasSuffix(url, ":"+path) {
				continue
			}
			if found != nil {
				return nil, &fault.OptionError{Option: "git-gate.repos", Reason: "has more than one repository " + safetext.String(path, 200), Advice: "give the agent a bottle with one of them: bottles are named by its manifest or a label"}
			}
			found = &g.Repos[i]
		}
	}
	if found == nil {
		return nil, &fault.OptionError{Option: "git-gate.repos", Reason: "has no repository " + safetext.String(path, 200), Advice: "declare it in the file of the agent's bottle, with a key or a token that opens it"}
	}
	return found, nil
}
