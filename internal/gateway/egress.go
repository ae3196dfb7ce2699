package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/policy"
	routefile "github.com/carboy/carboy/internal/routes"
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

// egressRoutes is a route file.
type egressRoutes struct {
	Routes []routefile.Description `json:"routes"`
}

// Shown describes a route as the bottle may know it, so without upstream and the values of
// headers.
func Shown(r policy.Route) routefile.Description {
	d := routefile.Describe(r)
	d.Upstream, d.OAuth, d.Insecure = "", nil, false
	for i, m := range d.Matches {
		d.Matches[i].Headers = slices.Clone(m.Headers)
		for k, h := range m.Headers {
			d.Matches[i].Headers[k] = routefile.HeaderDescription{Name: h.Name, Type: policy.Regexp.String(), Value: ".*"}
		}
	}
	return d
}

// allowlist returns the current routes as a route file in YAML or JSON.
func allowlist(t *policy.Table, asJSON bool) ([]byte, error) {
	all := egressRoutes{Routes: []routefile.Description{}}
	for _, r := range t.Routes() {
		all.Routes = append(all.Routes, Shown(r))
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
	for i, r := range t.Routes() {
		fmt.Fprintf(&b, "# %s\n%s", strings.ToValidUTF8(strings.Join(strings.Fields(r.Rule()), " "), "?"), document.YAML(all.Routes[i:i+1]))
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
	// Under the alias it is what bot-bottle answered.
	name, _, _ := splitAuthority(r.Host, insidePort)
	asJSON := strings.EqualFold(strings.TrimSuffix(name, "."), egressAlias) || strings.Contains(r.Header.Get("Accept"), "application/json")
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
