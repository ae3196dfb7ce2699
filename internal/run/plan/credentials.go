package plan

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/carboy/carboy/internal/bottle/rootfs"
	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/secret"
)

// Credentials holds the credentials that the plan's routes add to requests, read from
// the host's variables, and the variables inside that have the placeholders.
type Credentials struct {
	Of  gateway.Credentials
	Env map[string]string
	// Values holds the secrets that must not be shown anywhere, by name.
	Values map[string]secret.Value
	// named holds the same by variable.
	named map[string][]secret.Value
	// files holds the paths of refresh tokens; empty: kept elsewhere.
	files map[policy.Credential]string
}

// ParseCredential reads NAME=ENV@HOST[:SCHEME], a route with a credential. SCHEME
// may name its field: header=X-Key, query=key.
func ParseCredential(s string) (policy.Route, error) {
	name, rest, ok := strings.Cut(s, "=")
	env, host, at := strings.Cut(rest, "@")
	shown := NotShown
	if credentialName().MatchString(name) && NameOrHidden(env) == env && !strings.ContainsAny(host, "@") {
		shown = s
	}
	bad := func(why string) (policy.Route, error) {
		advice := "write NAME=VARIABLE@HOST[:SCHEME], such as github=GITHUB_TOKEN@api.github.com:token"
		if shown == NotShown {
			advice += "; what was given is not repeated, for it may be the value itself"
		}
		return policy.Route{}, &fault.OptionError{Option: "--credential", Value: shown, Reason: why, Advice: advice}
	}
	switch {
	case !ok || name == "":
		return bad("has no NAME=")
	case !credentialName().MatchString(name):
		return bad("has a NAME that is not at most 40 letters, digits, dots and dashes")
	case !at || !envName().MatchString(env):
		return bad("does not name a variable before @")
	case strings.Contains(host, "@"):
		return bad("has more than one @")
	}
	c := policy.Credential{Scheme: credential.Bearer, Env: env}
	// A port is a number, a scheme is none.
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.ContainsAny(host[i:], "]/") && strings.Trim(host[i+1:], "0123456789") != "" {
		scheme, field, _ := strings.Cut(host[i+1:], "=")
		c.Scheme, c.Field, host = policy.Scheme(scheme), field, host[:i]
		if !slices.Contains(routes.Schemes, scheme) {
			return bad("names no scheme of " + strings.Join(routes.Schemes, ", "))
		}
		if c.Scheme == credential.OAuth {
			return bad("wants oauth2, which needs a route file")
		}
		if needs := c.Scheme == credential.Header || c.Scheme == credential.Query; needs != (field != "") {
			return bad("wants a field for header and query alone, such as header=X-Key")
		}
	}
	parse := policy.ParseAllow
	if strings.HasPrefix(host, policy.HostGateway) {
		parse = policy.ParseAllowPrivate
	}
	r, err := parse(host)
	if err != nil {
		return bad(err.Error())
	}
	o := r.Options() // a path
	o.Credential = c
	if r, err = r.WithOptions(o); err != nil {
		return bad(err.Error())
	}
	return r.WithRule("--credential " + name), nil
}

// credentialName returns the name of a credential that rules show to people.
func credentialName() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9._-]{1,40}$`) }

// CredentialReader reads the credentials that routes put on.
type CredentialReader struct {
	Lookup func(string) string
	Roots  *x509.CertPool // whom token servers' certificates must come from
	// Had holds credentials that are open already. One that changes its token is
	// used again.
	Had gateway.Credentials
	// seed determines a bottle's placeholders; nil: they are random.
	seed []byte
}

// Read reads the credentials that the routes put on. A variable that is not set is an
// error: the run would fail later, and less clearly.
func (r *CredentialReader) Read(rs []policy.Route) (*Credentials, error) {
	out := &Credentials{Of: gateway.Credentials{}, Env: map[string]string{}, Values: map[string]secret.Value{}, named: map[string][]secret.Value{}, files: map[policy.Credential]string{}}
	for _, route := range rs {
		c := route.Options().Credential
		if c.IsZero() || out.Of[c] != nil {
			continue
		}
		opened, err := r.open(route.Rule(), c)
		if err != nil {
			return nil, err
		}
		if r.seed != nil {
			if err := opened.Keep(r.seed); err != nil {
				return nil, err
			}
		}
		out.Of[c] = opened
		name := opened.Name()
		if c.Env != "" {
			// Two schemes of one variable share what stands inside.
			if _, ok := out.Env[c.Env]; !ok {
				out.Env[c.Env] = opened.Placeholder()
			}
		}
		out.files[c] = tokenFile(c.OAuth.File, r.Lookup("HOME"))
		out.named[name] = append(out.named[name], opened.Secrets()...)
		for i, v := range opened.Secrets() {
			out.Values[RedactionName(name)+fmt.Sprintf("-%s-%d", c.Scheme, i)] = v
		}
	}
	return out, nil
}

func (r *CredentialReader) open(rule string, c policy.Credential) (*credential.Credential, error) {
	switch {
	case c.Scheme == credential.OAuth:
		if had := r.Had[c]; had != nil {
			return had, nil
		}
		return r.openOAuth(rule, c)
	case c.Scheme == credential.Codex:
		return r.openCodex(rule, c)
	case c.Env == "":
		return nil, fmt.Errorf("%s: there is no credential store yet; name a variable with token_env", rule)
	}
	opened, err := credential.Open(c.Env, c, secret.NewString(r.Lookup(c.Env)))
	if errors.Is(err, credential.ErrEmpty) {
		advice := "set that variable to the credential; inside there will be a placeholder"
		if NameOrHidden(c.Env) == NotShown {
			advice = pasted
		}
		return nil, &fault.OptionError{Option: rule, Value: NameOrHidden(c.Env), Reason: "is not set here", Advice: advice}
	}
	return opened, err
}

// Warnings returns the warnings about credentials to print after a run.
func (c *Credentials) Warnings() (out []string) {
	for _, x := range c.Of {
		if err := x.Warning(); err != nil {
			out = append(out, fault.Sentence("Credential "+NameOrHidden(x.Name())+": "+err.Error()))
		}
	}
	slices.Sort(out)
	return out
}

// KeyTail is the length of the key suffix by which Claude Code remembers an allowed key.
const KeyTail = 20

// TailMark returns the mark, in a file of the home, of the end of a variable's
// placeholder, which is not known before the plan is made.
func TailMark(env string) string { return "carboy-end-of-" + env }

// fill replaces the marks by the ends of the placeholders.
func (c *Credentials) fill(files []rootfs.File) []rootfs.File {
	files = slices.Clone(files)
	for env, value := range c.Env {
		for i, f := range files {
			files[i].Content = bytes.ReplaceAll(f.Content, []byte(strconv.Quote(TailMark(env))), []byte(strconv.Quote(value[max(0, len(value)-KeyTail):])))
		}
	}
	return files
}

// In reports whether text holds one of the credentials.
func (c *Credentials) In(text string) bool {
	for _, v := range c.Values {
		if v.Len() >= secret.MinRedacted && strings.Contains(text, v.UnsafeString()) {
			return true
		}
	}
	return false
}
