package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/carboy/carboy/internal/policy"
)

// A bottle can read its routes, so that a program or an agent need not find out by
// being refused. Nothing is dialled for it. It reveals no more than refusals would: no
// value of a credential or of a required header, and no upstream.

const (
	egressName  = "egress.carboy.internal"
	egressAlias = "_egress.local"
	egressPath  = "/allowlist"
	egressRule  = "carboy: " + egressPath
)

// egressRoutes is a route file. Its keys are those of package routes.
type egressRoutes struct {
	Routes []egressRoute `json:"routes" yaml:"routes"`
}

type egressRoute struct {
	Host       string        `json:"host" yaml:"host"`
	Private    bool          `json:"private,omitempty" yaml:"private,omitempty"`
	Inspect    *bool         `json:"inspect,omitempty" yaml:"inspect,omitempty"`
	Matches    []egressMatch `json:"matches,omitempty" yaml:"matches,omitempty"`
	Scheme     string        `json:"auth_scheme,omitempty" yaml:"auth_scheme,omitempty"`
	TokenEnv   string        `json:"token_env,omitempty" yaml:"token_env,omitempty"`
	Credential string        `json:"credential,omitempty" yaml:"credential,omitempty"`
	Field      string        `json:"auth_field,omitempty" yaml:"auth_field,omitempty"`
	Limits     *egressLimits `json:"limits,omitempty" yaml:"limits,omitempty"`
	note       string
}

type egressMatch struct {
	Paths   []egressPathMatch `json:"paths,omitempty" yaml:"paths,omitempty"`
	Methods []string          `json:"methods,omitempty" yaml:"methods,omitempty,flow"`
	Headers []egressHeader    `json:"headers,omitempty" yaml:"headers,omitempty"`
}

type egressPathMatch struct {
	Type  string `json:"type" yaml:"type"`
	Value string `json:"value" yaml:"value"`
}

// egressHeader names a required header without its value.
type egressHeader struct {
	Name  string `json:"name" yaml:"name"`
	Type  string `json:"type" yaml:"type"`
	Value string `json:"value" yaml:"value"`
}

type egressLimits struct {
	BytesOut int64 `json:"bytes_out,omitempty" yaml:"bytes_out,omitempty"`
	BytesIn  int64 `json:"bytes_in,omitempty" yaml:"bytes_in,omitempty"`
	Requests int64 `json:"requests_per_minute,omitempty" yaml:"requests_per_minute,omitempty"`
}

func describeRoute(r policy.Route) egressRoute {
	o := r.Options()
	e := egressRoute{
		Host: r.String(), Private: r.Private(), note: r.Rule(),
		TokenEnv: o.Credential.Env, Credential: o.Credential.Name, Scheme: string(o.Credential.Scheme), Field: o.Credential.Field,
	}
	if o.Opaque {
		e.Inspect = new(bool)
	}
	if o.Caps != (policy.Caps{}) {
		e.Limits = &egressLimits{o.Caps.BytesOut, o.Caps.BytesIn, o.Caps.RequestsPerMinute}
	}
	for _, m := range o.Matches {
		em := egressMatch{Methods: m.Methods}
		for _, p := range m.Paths {
			em.Paths = append(em.Paths, egressPathMatch{p.Type().String(), p.Value()})
		}
		for _, h := range m.Headers {
			em.Headers = append(em.Headers, egressHeader{h.Name(), policy.Regexp.String(), ".*"})
		}
		e.Matches = append(e.Matches, em)
	}
	return e
}

// allowlist returns the current routes as a route file in YAML or JSON.
func allowlist(t *policy.Table, asJSON bool) ([]byte, error) {
	all := egressRoutes{Routes: []egressRoute{}}
	for _, r := range t.Routes() {
		all.Routes = append(all.Routes, describeRoute(r))
	}
	if asJSON {
		b, err := json.Marshal(all)
		return append(b, '\n'), err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# What this bottle may reach: the first route that a request meets decides.\n"+
		"# `carboy egress check` reads it. Credentials are put on by the gateway; the value\n# of a header that a route wants is not told.\n")
	if len(all.Routes) == 0 {
		fmt.Fprintln(&b, "routes: []")
	} else {
		fmt.Fprintln(&b, "routes:")
	}
	for _, r := range all.Routes {
		one, err := yaml.Marshal([]egressRoute{r})
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "# %s\n%s", strings.ToValidUTF8(strings.Join(strings.Fields(r.note), " "), "?"), one)
	}
	return b.Bytes(), nil
}

// Allowlist returns the current routes as a route file in YAML, as the bottle may read
// it.
func (g *Gateway) Allowlist() ([]byte, error) { return allowlist(g.table(), false) }

// serveEgress answers a request to the endpoint.
func (w *webServer) serveEgress(seen *exchange, r *http.Request) {
	switch {
	case r.URL.Path != egressPath:
		seen.refuseInside(r, http.StatusNotFound, Reason(policy.ReasonRequest), "there is only "+egressPath)
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		seen.refuseInside(r, http.StatusMethodNotAllowed, Reason(policy.ReasonRequest), "it can be read, by GET")
		return
	}
	asJSON := strings.Contains(r.Header.Get("Accept"), "application/json")
	body, err := allowlist(w.g.table(), asJSON)
	if err != nil {
		seen.refuseInside(r, http.StatusInternalServerError, ReasonHTTPMalformed, err.Error())
		return
	}
	seen.allowInside()
	h := seen.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Type", "text/plain; charset=utf-8")
	if asJSON {
		h.Set("Content-Type", "application/json")
	}
	_, _ = seen.Write(body)
}
