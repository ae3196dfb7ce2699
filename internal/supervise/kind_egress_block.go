package supervise

import (
	"fmt"

	"github.com/carboy/carboy/internal/routes"
)

// kindEgressBlock asks to remove routes from a bottle.
const kindEgressBlock Kind = "egress-block"

// EgressBlock removes routes from a bottle, as long as the bottle lives, and ends the
// requests in progress on them.
type EgressBlock struct {
	// Routes are the removed routes, each as it is in force.
	Routes []routes.Description `json:"routes"`
	// Before are the routes in force, and Past the requests of the last hour on the removed
	// ones. Both are only shown.
	Before []routes.Description `json:"before,omitempty"`
	Past   []PastRequest        `json:"past,omitempty"`
}

// EgressBlockEffect removes the routes.
type EgressBlockEffect = Effect[EgressBlock]

func init() { register[EgressBlock]() }

// Kind implements Payload.
func (EgressBlock) Kind() Kind { return kindEgressBlock }

// Check implements Payload.
func (p EgressBlock) Check() error {
	if len(p.Routes) == 0 || len(p.Routes) > maxRoutes {
		return fmt.Errorf("field \"routes\": %d routes, want 1 to %d", len(p.Routes), maxRoutes)
	}
	for i, r := range p.Routes {
		if r.Host == "" {
			return fmt.Errorf("field \"routes[%d].host\": is missing", i)
		}
	}
	return checkPast(p.Past)
}

// Bare implements Payload.
func (p EgressBlock) Bare() Payload { return EgressBlock{Routes: p.Routes} }

// Title implements Payload.
func (p EgressBlock) Title() string {
	s := "block "
	for i, r := range p.Routes {
		if i > 0 {
			s += "; "
		}
		s += routeTitle(r)
	}
	return s
}

// Warn implements Payload.
func (EgressBlock) Warn() string { return "" }

// Describe implements Payload.
func (p EgressBlock) Describe(d *Detail) {
	after := append([]routes.Description(nil), p.Before...)
	for _, r := range p.Routes {
		for i, b := range after {
			if routesText([]routes.Description{b}) == routesText([]routes.Description{r}) {
				after = append(after[:i], after[i+1:]...)
				break
			}
		}
	}
	d.section("allowlist")
	d.change(routesText(p.Before), routesText(after))
	if len(after) != len(p.Before)-len(p.Routes) {
		d.section("routes that go")
		d.quote(routesText(p.Routes))
	}
	describePast(d, p.Past, "in the last hour these allowed")
}

// Subjects implements Ruled.
func (p EgressBlock) Subjects() []Subject {
	var out []Subject
	for _, r := range p.Routes {
		out = append(out, Subject{Host: r.Host})
	}
	return out
}

// Needs implements Ruled.
func (EgressBlock) Needs() []string { return nil }
