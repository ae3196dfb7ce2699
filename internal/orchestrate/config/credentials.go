package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/forge"
	"github.com/carboy/carboy/internal/secret"
)

// Role is a part of carboy that has a credential of its own at the forge.
type Role string

// The roles. Keys is left out if the operator gives deploy keys himself.
const (
	Service      Role = "service"      // acts for the agents: comments and descriptions
	Shipper      Role = "shipper"      // opens pull requests and sets statuses
	Orchestrator Role = "orchestrator" // reads issues and who is a member
	Keys         Role = "keys"         // makes and revokes deploy keys
)

// Roles lists the roles, in the order in which people read about them.
var Roles = []Role{Service, Shipper, Orchestrator, Keys}

// Needs returns what the forge must allow to the credential of a role.
func (r Role) Needs() []forge.Need {
	switch r {
	case Service:
		return []forge.Need{forge.WriteIssues, forge.ReadRepository}
	case Shipper:
		return []forge.Need{forge.WriteRepository}
	case Orchestrator:
		return []forge.Need{forge.ReadIssues, forge.ReadMembers}
	}
	return nil // a forge tells about deploy keys only when one is made
}

// permissions limit a role's tokens of a GitHub App.
func (r Role) permissions() map[string]string {
	return map[Role]map[string]string{
		Service:      {"issues": "write", "pull_requests": "write", "metadata": "read"},
		Shipper:      {"pull_requests": "write", "statuses": "write", "contents": "read", "metadata": "read"},
		Orchestrator: {"issues": "read", "pull_requests": "read", "members": "read", "metadata": "read"},
		Keys:         {"administration": "write", "metadata": "read"},
	}[r]
}

// Source says where a secret is: in a variable or in a file.
type Source struct {
	Env, File string

	at document.Problem // its place in the configuration
}

// IsSet reports whether s names a place.
func (s Source) IsSet() bool { return s.Env != "" || s.File != "" }

// String returns the place in words that messages may show.
func (s Source) String() string {
	if s.Env != "" {
		return "$" + s.Env
	}
	return s.File
}

// maxSecret bounds a file with a secret, in bytes.
const maxSecret = 64 << 10

func (s Source) problem(what, advice string) error {
	p := s.at
	p.What, p.Advice = what, advice
	return document.Error{p}
}

// Read reads the secret, without the white space around it. A file must be of this user and
// for nobody else.
func (s Source) Read(env func(string) string) (secret.Value, error) {
	if s.Env != "" {
		v := strings.TrimSpace(env(s.Env))
		if v == "" {
			return secret.Value{}, s.problem("$"+s.Env+" is not set", "set it where carboy orchestrate runs, or name a file: {file: …}")
		}
		return secret.NewString(v), nil
	}
	b, err := readPrivate(s.File)
	if err != nil {
		return secret.Value{}, s.problem(err.Error(), "write the secret there, as this user, with mode 0600")
	}
	defer clear(b)
	v := strings.TrimSpace(string(b))
	if v == "" {
		return secret.Value{}, s.problem(s.File+" is empty", "write the secret there")
	}
	return secret.NewString(v), nil
}

// readPrivate reads a file that nobody else can read.
func readPrivate(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch {
	case !fi.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a file", name)
	case !ok || int(st.Uid) != os.Geteuid() && st.Uid != 0:
		return nil, fmt.Errorf("%s belongs to somebody else", name)
	case fi.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("others can read %s (mode %04o); chmod 600 it", name, fi.Mode().Perm())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if len(b) > maxSecret {
		return nil, fmt.Errorf("%s has more than %d bytes", name, maxSecret)
	}
	return b, err
}

// App is an installation of a GitHub App.
type App struct {
	ID           string
	Installation int64
	Key          Source
}

func (p *parser) credentials(m document.Mapping) {
	v := m.Get("tokens")
	tokens := v.Mapping("service", "shipper", "orchestrator", "keys")
	app := m.Get("app")
	seen := map[string]Role{}
	for _, role := range Roles {
		t := tokens.Get(string(role))
		switch {
		case !t.Present() && role != Keys && !app.Present() && v.Present():
			tokens.Need(string(role))
		case t.Present() && role != Keys && app.Present():
			t.Bad("is there, and so is app, which makes the tokens", "leave out one of them")
		}
		if !t.Present() {
			continue
		}
		s := p.source(t)
		if other, twice := seen[s.String()]; twice && s.IsSet() {
			t.Bad("is the token of "+string(other)+" too", "one token for both would let each do what the other may: make another one")
		}
		seen[s.String()] = role
		p.c.Tokens[role] = s
	}
	switch {
	case app.Present():
		p.app(app)
	case !v.Present():
		m.Need("tokens")
	}
}

func (p *parser) app(v document.Value) {
	m := v.Mapping("id", "installation", "key_file")
	a := &App{ID: m.Need("id").Text(), Installation: m.Need("installation").Int(0, 1, 1<<53)}
	if _, err := strconv.ParseUint(a.ID, 10, 53); a.ID != "" && err != nil && !varLike().MatchString(strings.ReplaceAll(a.ID, ".", "_")) {
		m.Get("id").Bad("is no id of an app", "its number in quotes, or its client id")
	}
	if key := m.Need("key_file"); key.Present() {
		a.Key = Source{File: p.file(key), at: place(key)}
	}
	if p.c.Provider != "" && p.c.Provider != "github" {
		v.Bad("is there, and "+p.c.Provider+" has no apps", "write tokens instead")
	}
	p.c.App = a
}

func place(v document.Value) document.Problem {
	return document.Problem{File: v.File(), Line: v.Line(), Column: v.Column(), Field: v.Field()}
}

// source reads where a secret is.
func (p *parser) source(v document.Value) Source {
	if !v.Present() {
		return Source{}
	}
	m := v.Mapping("env", "file")
	env, file := m.Get("env"), m.Get("file")
	s := Source{at: place(v)}
	switch {
	case env.Present() == file.Present():
		v.Bad("is neither a variable nor a file, or both", "{env: NAME}, or {file: /path}; the secret itself does not belong here")
	case env.Present():
		if s.Env = env.Text(); s.Env != "" && !varLike().MatchString(s.Env) {
			env.Bad("is no name of a variable", "name the variable that holds the secret, not the secret")
			s.Env = ""
		}
	default:
		s.File = p.file(file)
	}
	return s
}

// ErrNoCredential means that the configuration has no credential of a role.
var ErrNoCredential = errors.New("has no credential")

// Client returns a client of the forge with the credential of a role. Tokens of an App are
// limited to the role's permissions, and to the repository, or to all if repo is empty. Close it.
func (c *Config) Client(role Role, repo string) (*forge.Client, error) {
	roots, err := c.Roots()
	if err != nil {
		return nil, err
	}
	o := forge.Options{Provider: c.Provider, API: c.API, Login: c.Login, Roots: roots}
	source, ok := c.Tokens[role]
	switch {
	case ok:
		if o.Token, err = source.Read(c.env); err != nil {
			return nil, err
		}
		if role == Keys {
			o.Login = "" // an account of its own
		}
	case c.App != nil:
		key, err := c.App.Key.Read(c.env)
		if err != nil {
			return nil, err
		}
		a := &forge.App{ID: c.App.ID, Installation: c.App.Installation, Key: key, Permissions: role.permissions()}
		for _, r := range c.Repositories {
			if repo == "" || r.Path() == repo {
				a.Repositories = append(a.Repositories, r.Name)
			}
		}
		o.App = a
	default:
		return nil, fmt.Errorf("%s: tokens.%s: %w", c.File, role, ErrNoCredential)
	}
	return forge.Open(o)
}

// SameSecret reports whether two roles have the same token, though by two names.
func (c *Config) SameSecret(a, b Role) bool {
	x, xok := c.Tokens[a]
	y, yok := c.Tokens[b]
	if !xok || !yok {
		return false
	}
	v, err := x.Read(c.env)
	w, werr := y.Read(c.env)
	return err == nil && werr == nil && v.Equal(w)
}

// Secrets returns the credentials that can be read, by their places. What agents post is
// searched for them.
func (c *Config) Secrets() map[string]secret.Value {
	out := map[string]secret.Value{}
	for role, s := range c.Tokens {
		if v, err := s.Read(c.env); err == nil {
			out["tokens."+string(role)] = v
		}
	}
	if c.Webhooks != nil {
		if v, err := c.Webhooks.Secret.Read(c.env); err == nil {
			out["webhooks.secret"] = v
		}
	}
	return out
}

// Secret reads the secret with which webhooks are signed.
func (c *Config) Secret() (secret.Value, error) {
	v, err := c.Webhooks.Secret.Read(c.env)
	if err == nil && v.Len() < 16 {
		return secret.Value{}, c.Webhooks.Secret.problem("the secret has less than 16 bytes", "carboy orchestrate init writes a good one")
	}
	return v, err
}
