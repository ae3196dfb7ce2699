package carboy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/credential"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/secret"
)

// credentials are what the plan's routes put on, read from the variables of the
// host, and the variables inside that have the placeholders.
type credentials struct {
	of  gateway.Credentials
	env map[string]string
	// values are what must not be seen anywhere, by name.
	values map[string]secret.Value
	// named are the same by their variables.
	named map[string][]secret.Value
}

// parseCredential reads NAME=ENV@HOST[:SCHEME], a route with a credential. SCHEME
// may say its field: header=X-Key, query=key.
func parseCredential(s string) (policy.Route, error) {
	name, rest, ok := strings.Cut(s, "=")
	env, host, at := strings.Cut(rest, "@")
	shown := notShown
	if credentialName().MatchString(name) && NameOrHidden(env) == env && !strings.ContainsAny(host, "@") {
		shown = s
	}
	bad := func(why string) (policy.Route, error) {
		advice := "write NAME=VARIABLE@HOST[:SCHEME], such as github=GITHUB_TOKEN@api.github.com:token"
		if shown == notShown {
			advice += "; what was given is not repeated, for it may be the value itself"
		}
		return policy.Route{}, &OptionError{Option: "--credential", Value: shown, Reason: why, Advice: advice}
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

// credentialName is for people alone: rules cite it.
func credentialName() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9._-]{1,40}$`) }

// readCredentials reads what the routes put on. A variable that is not set is an
// error: the run would only fail later, and less clearly.
func readCredentials(rs []policy.Route, lookup func(string) string) (*credentials, error) {
	out := &credentials{of: gateway.Credentials{}, env: map[string]string{}, values: map[string]secret.Value{}, named: map[string][]secret.Value{}}
	for _, r := range rs {
		c := r.Options().Credential
		if c.IsZero() || out.of[c] != nil {
			continue
		}
		if c.Env == "" {
			return nil, fmt.Errorf("%s: there is no credential store yet; name a variable with token_env", r.Rule())
		}
		value := secret.NewString(lookup(c.Env))
		opened, err := credential.Open(c.Env, c, value)
		if errors.Is(err, credential.ErrEmpty) {
			advice := "set that variable to the credential; inside there will be a placeholder"
			if NameOrHidden(c.Env) == notShown {
				advice = pasted
			}
			return nil, &OptionError{Option: r.Rule(), Value: NameOrHidden(c.Env), Reason: "is not set here", Advice: advice}
		}
		if err != nil {
			return nil, err
		}
		out.of[c] = opened
		// Two schemes of one variable share what stands inside.
		if _, ok := out.env[c.Env]; !ok {
			out.env[c.Env] = opened.Placeholder()
		}
		out.named[c.Env] = append(out.named[c.Env], opened.Secrets()...)
		for i, v := range opened.Secrets() {
			out.values[strings.ToLower(c.Env)+fmt.Sprintf("-%s-%d", c.Scheme, i)] = v
		}
	}
	return out, nil
}

// in reports whether text holds one of the credentials.
func (c *credentials) in(text string) bool {
	for _, v := range c.values {
		if v.Len() >= secret.MinRedacted && strings.Contains(text, v.UnsafeString()) {
			return true
		}
	}
	return false
}
