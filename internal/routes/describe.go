package routes

import (
	"strings"

	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/secret"
)

// Description is a route as JSON, with the keys of route files.
type Description struct {
	Host       string             `json:"host"`
	Matches    []MatchDescription `json:"matches,omitempty"`
	AuthScheme string             `json:"auth_scheme,omitempty"`
	TokenEnv   string             `json:"token_env,omitempty"`
	Credential string             `json:"credential,omitempty"`
	AuthField  string             `json:"auth_field,omitempty"`
	OAuth      *OAuthDescription  `json:"oauth,omitempty"`
	Insecure   bool               `json:"insecure,omitempty"`
	Own        []string           `json:"own_credentials,omitempty"`
	Git        *GitDescription    `json:"git,omitempty"`
	Inspect    *bool              `json:"inspect,omitempty"`
	DLP        *DLPDescription    `json:"dlp,omitempty"`
	Limits     *LimitsDescription `json:"limits,omitempty"`
	Upstream   string             `json:"upstream,omitempty"`
	Private    bool               `json:"private,omitempty"`
}

// Parts of a Description, with the keys of route files.
type (
	MatchDescription struct {
		Paths   []ValueDescription  `json:"paths,omitempty"`
		Methods []string            `json:"methods,omitempty"`
		Headers []HeaderDescription `json:"headers,omitempty"`
	}
	ValueDescription struct {
		Type  string `json:"type"`
		Value string `json:"value"`
	}
	HeaderDescription struct {
		Name  string `json:"name"`
		Type  string `json:"type"`
		Value string `json:"value"`
	}
	GitDescription struct {
		Fetch bool `json:"fetch"`
	}
	OAuthDescription struct {
		TokenURL         string   `json:"token_url"`
		ClientID         string   `json:"client_id"`
		ClientSecretEnv  string   `json:"client_secret_env,omitempty"`
		RefreshTokenFile string   `json:"refresh_token_file,omitempty"`
		Scopes           []string `json:"scopes,omitempty"`
		ClientAuth       string   `json:"client_auth,omitempty"`
	}
	// DLPDescription holds false or a list for each of the detectors.
	DLPDescription struct {
		Outbound any    `json:"outbound_detectors,omitempty"`
		Inbound  any    `json:"inbound_detectors,omitempty"`
		OnMatch  string `json:"outbound_on_match,omitempty"`
		OnInject string `json:"inbound_on_match,omitempty"`
	}
	LimitsDescription struct {
		BytesOut          int64 `json:"bytes_out,omitempty"`
		BytesIn           int64 `json:"bytes_in,omitempty"`
		RequestsPerMinute int64 `json:"requests_per_minute,omitempty"`
	}
)

// Describe returns the description from which [Read] makes r. It hides variable names
// that look like values.
func Describe(r policy.Route) Description {
	o := r.Options()
	d := Description{Host: r.String(), Private: r.Private()}
	for _, m := range o.Matches {
		var md MatchDescription
		for _, p := range m.Paths {
			md.Paths = append(md.Paths, ValueDescription{p.Type().String(), p.Value()})
		}
		md.Methods = m.Methods
		for _, h := range m.Headers {
			md.Headers = append(md.Headers, HeaderDescription{h.Name(), h.Type().String(), h.Value()})
		}
		d.Matches = append(d.Matches, md)
	}
	hide := func(name string) string {
		if name == "" {
			return ""
		}
		return secret.NameOrHidden(name)
	}
	if c := o.Credential; !c.IsZero() {
		d.AuthScheme, d.TokenEnv, d.Credential, d.AuthField, d.Insecure = string(c.Scheme), hide(c.Env), c.Name, c.Field, c.Insecure
		if c.OAuth != (policy.OAuth{}) {
			d.OAuth = &OAuthDescription{TokenURL: c.OAuth.TokenURL, ClientID: c.OAuth.ClientID, ClientSecretEnv: hide(c.OAuth.SecretEnv), RefreshTokenFile: c.OAuth.File, Scopes: strings.Fields(c.OAuth.Scopes)}
			if c.OAuth.InBody {
				d.OAuth.ClientAuth = "body"
			}
		}
	}
	d.Own = o.OwnCredentials
	if o.GitFetch != policy.FetchByDefault {
		d.Git = &GitDescription{Fetch: o.GitFetch == policy.FetchAllowed}
	}
	if o.Opaque {
		d.Inspect = new(bool)
	}
	if !o.Upstream.IsZero() {
		d.Upstream = o.Upstream.String()
	}
	if o.Caps != (policy.Caps{}) {
		d.Limits = &LimitsDescription{o.Caps.BytesOut, o.Caps.BytesIn, o.Caps.RequestsPerMinute}
	}
	d.DLP = describeScan(o.Scan)
	return d
}

func describeScan(s policy.Scan) *DLPDescription {
	if s == (policy.Scan{}) {
		return nil
	}
	d := &DLPDescription{OnInject: s.OnInjection.String()}
	if s.OnMatch != policy.Ask {
		d.OnMatch = s.OnMatch.String()
	}
	if s.NoTokens || s.NoSecrets || s.Entropy {
		var on []string
		for _, x := range []struct {
			name string
			on   bool
		}{{"token_patterns", !s.NoTokens}, {"known_secrets", !s.NoSecrets}, {"entropy", s.Entropy}} {
			if x.on {
				on = append(on, x.name)
			}
		}
		d.Outbound = on
		if len(on) == 0 {
			d.Outbound = false
		}
	}
	if s.NoInjection {
		d.Inbound = false
	}
	return d
}
