package supervise

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/routes"
)

// kindEgressAllow asks to add routes to a bottle.
const kindEgressAllow Kind = "egress-allow"

// EgressAllow adds routes to those of a bottle, as long as the bottle lives.
type EgressAllow struct {
	// Routes are added behind the routes in force. They hold hosts and the allowed
	// requests. They must not hold what only the user's own files may grant: credentials,
	// addresses, other upstreams, connections without inspection.
	Routes []RouteAdded `json:"routes"`
	// Before lists the last of the routes in force, and Earlier counts the routes before
	// those. Past lists the requests refused in the last hour that these routes would
	// have
	// allowed. All three are only shown.
	Before  []routes.Description `json:"before,omitempty"`
	Earlier int                  `json:"earlier,omitempty"`
	Past    []PastRequest        `json:"past,omitempty"`
}

// RouteAdded is a route, with the keys of route files.
type RouteAdded struct {
	Host    string                    `json:"host"`
	Matches []routes.MatchDescription `json:"matches,omitempty"`
	Git     *routes.GitDescription    `json:"git,omitempty"`
}

func (r RouteAdded) description() routes.Description {
	return routes.Description{Host: r.Host, Matches: r.Matches, Git: r.Git}
}

// PastRequest is a refused request or connection.
type PastRequest struct {
	What  string `json:"what"` // as in "GET https://example.com/x"; untrusted
	Count int    `json:"count"`
}

// EgressAllowEffect adds the routes.
type EgressAllowEffect = Effect[EgressAllow]

func init() { register[EgressAllow]() }

// Bounds of a proposal about routes.
const (
	maxRoutes = 16
	maxPast   = 50
	maxWhat   = 1024
	// maxContext bounds the routes that are shown around a change, in bytes.
	maxContext = MaxPayload / 4
)

// Kind implements Payload.
func (EgressAllow) Kind() Kind { return kindEgressAllow }

// Check implements Payload.
func (p EgressAllow) Check() error {
	if len(p.Routes) == 0 || len(p.Routes) > maxRoutes {
		return fmt.Errorf("field \"routes\": %d routes, want 1 to %d", len(p.Routes), maxRoutes)
	}
	for i, r := range p.Routes {
		if literal(r.Host) {
			return fmt.Errorf("field \"routes[%d].host\": is an address, which only the bottle's own file allows; propose a name", i)
		}
	}
	if p.Earlier < 0 || len(routesText(p.Before)) > maxContext {
		return fmt.Errorf("field \"before\": more than %d bytes of routes", maxContext)
	}
	rs, err := p.Policy()
	if err != nil {
		return err
	}
	for i, r := range rs {
		if r.Protocol() == policy.ProtocolTCP {
			return fmt.Errorf("field \"routes[%d].host\": is a tunnel that nobody looks into, which only the bottle's own file allows", i)
		}
		// A route must be in its one canonical form: the form is shown, digested and
		// compared by rules.
		if want := routesText([]routes.Description{routes.Describe(r)}); want != routesText([]routes.Description{p.Routes[i].description()}) {
			return fmt.Errorf("field \"routes[%d]\": is not written as carboy writes it; make it with NewEgressAllow", i)
		}
	}
	return checkPast(p.Past)
}

func checkPast(past []PastRequest) error {
	if len(past) > maxPast {
		return fmt.Errorf("field \"past\": %d requests, at most %d", len(past), maxPast)
	}
	for _, s := range past {
		if len(s.What) > maxWhat || s.Count < 1 {
			return errors.New("field \"past\": a request that is too long, or was not made")
		}
	}
	return nil
}

// literal reports whether a route's host is an IP address, with or without a port. A person
// cannot tell what is at an address.
func literal(host string) bool {
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	_, err2 := netip.ParseAddrPort(host)
	return err == nil || err2 == nil
}

// NewEgressAllow returns a payload for routes, which hold only host, matches and git.
// before are all routes in force. past is cut to its bound.
func NewEgressAllow(rs []policy.Route, before []routes.Description, past []PastRequest) (EgressAllow, error) {
	out := EgressAllow{Before: before, Past: past[:min(len(past), maxPast)]}
	for len(out.Before) > 0 && len(routesText(out.Before)) > maxContext {
		half := (len(out.Before) + 1) / 2
		out.Before, out.Earlier = out.Before[half:], out.Earlier+half
	}
	for i, r := range rs {
		d := routes.Describe(r)
		added := RouteAdded{Host: d.Host, Matches: d.Matches, Git: d.Git}
		if routesText([]routes.Description{d}) != routesText([]routes.Description{added.description()}) {
			return EgressAllow{}, fmt.Errorf("routes[%d]: %w", i, errRouteSaysMore)
		}
		out.Routes = append(out.Routes, added)
	}
	return out, out.Check()
}

var errRouteSaysMore = errors.New("says more than host, matches and git, which only the bottle's own file may")

// Policy returns the routes in the form that the gateway takes.
func (p EgressAllow) Policy() ([]policy.Route, error) {
	f, err := routes.Parse("proposal", []byte(p.EditText()))
	if err != nil {
		return nil, err
	}
	return f.Routes, nil
}

// Bare implements Payload.
func (p EgressAllow) Bare() Payload { return EgressAllow{Routes: p.Routes} }

// Title implements Payload.
func (p EgressAllow) Title() string {
	var out []string
	for _, r := range p.Routes {
		out = append(out, routeTitle(r.description()))
	}
	return "allow " + strings.Join(out, "; ")
}

// routeTitle returns a short text for a route.
func routeTitle(r routes.Description) string {
	s := r.Host
	for i, m := range r.Matches {
		if i > 0 {
			s += " or"
		}
		if len(m.Methods) > 0 {
			s += " " + strings.Join(m.Methods, ",")
		}
		for _, p := range m.Paths {
			s += " " + p.Value
			if p.Type == policy.Prefix.String() {
				s += "…"
			}
		}
		if len(m.Headers) > 0 {
			s += " with headers"
		}
	}
	if r.Git != nil && r.Git.Fetch {
		s += " git fetch"
	}
	return s
}

// Warn implements Payload.
func (p EgressAllow) Warn() string {
	for _, r := range p.Routes {
		if strings.HasPrefix(r.Host, "*.") {
			return "every name below " + r.Host[2:] + " is allowed; anybody who can create such a name can receive data"
		}
	}
	for _, r := range p.Routes {
		if len(r.Matches) == 0 {
			return "every request to " + r.Host + " is allowed, also one that sends data there"
		}
	}
	return ""
}

// Describe implements Payload.
func (p EgressAllow) Describe(d *Detail) {
	after := append([]routes.Description(nil), p.Before...)
	for _, r := range p.Routes {
		after = append(after, r.description())
	}
	d.section("allowlist")
	if p.Earlier > 0 {
		d.say(fmt.Sprintf("%d routes stand before these", p.Earlier))
	}
	d.change(routesText(p.Before), routesText(after))
	describePast(d, p.Past, "of the last hour's refusals this would have allowed")
}

func describePast(d *Detail, past []PastRequest, title string) {
	d.section(title)
	if len(past) == 0 {
		d.say("none")
	}
	for _, r := range past {
		d.quote(fmt.Sprintf("%d × %s", r.Count, r.What))
	}
}

// EditText implements Editable.
func (p EgressAllow) EditText() string {
	out := make([]routes.Description, len(p.Routes))
	for i, r := range p.Routes {
		out[i] = r.description()
	}
	return routesText(out)
}

// Edit implements Editable.
func (p EgressAllow) Edit(file string, text []byte) (Payload, error) {
	f, err := routes.Parse(file, text)
	if err != nil {
		return nil, err
	}
	for i, r := range f.Routes {
		if _, err := NewEgressAllow([]policy.Route{r}, nil, nil); err != nil {
			return nil, document.Error{{File: file, Line: f.At[i].Line, Column: f.At[i].Column, Field: fmt.Sprintf("routes[%d]", i), What: err.Error()}}
		}
	}
	out, err := NewEgressAllow(f.Routes, p.Before, p.Past)
	out.Earlier += p.Earlier
	return out, err
}

// routesText returns routes as the text of a route file.
func routesText(rs []routes.Description) string {
	if len(rs) == 0 {
		return ""
	}
	return document.YAML(map[string]any{"routes": rs})
}

// Subjects implements Ruled.
func (p EgressAllow) Subjects() []Subject {
	var out []Subject
	for _, r := range p.Routes {
		out = append(out, routeSubjects(r.description())...)
	}
	return out
}

// Needs implements Ruled.
func (EgressAllow) Needs() []string { return []string{"host"} }

// routeSubjects returns one subject for each match of a route: each allows something by
// itself.
func routeSubjects(r routes.Description) []Subject {
	git := r.Git != nil && r.Git.Fetch
	if len(r.Matches) == 0 {
		return []Subject{{Host: r.Host, Git: git}}
	}
	var out []Subject
	for _, m := range r.Matches {
		out = append(out, Subject{Host: r.Host, Methods: m.Methods, Paths: m.Paths, Git: git})
	}
	return out
}
