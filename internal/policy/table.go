// Package policy decides where a bottle may connect to. It does no I/O: its callers
// resolve names and make connections, and ask here first.
//
// The zero [Verdict], [Route] and [Table] refuse. Two spellings of one host are the
// same host. Input that is not understood is an error, never a route.
//
// Start reading at [ParseAllow] and [Table.Decide]; [Classify] judges the addresses
// that a name resolves to.
package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// Reason is the reason for a verdict. The values are stable: receipts hold them.
type Reason string

// Reasons for verdicts.
const (
	reasonNone    Reason = ""         // the zero verdict, which refuses
	ReasonRoute   Reason = "route"    // a route allows it
	ReasonNoRoute Reason = "no-route" // no route names the host
	ReasonPort    Reason = "port"     // a route names the host, with other ports
	ReasonBadName Reason = "bad-name" // not a host name
	ReasonLiteral Reason = "literal"  // an address that no route names
)

// Verdict is the answer to one question. The zero value refuses.
type Verdict struct {
	Allowed bool
	// Private allows addresses that are not public.
	Private bool
	// Protocol is the protocol that is allowed.
	Protocol Protocol
	// Opaque says that TLS is passed through without inspection.
	Opaque bool
	// Wildcard says that the route does not spell out the whole name.
	Wildcard bool
	// Rule cites the route that allowed. In a refusal it cites the nearest route;
	// empty: there is none.
	Rule   string
	Reason Reason
	// Nearest is the HOST[:PORT] of the route nearest to a refused host, if there is
	// one.
	Nearest string
}

// Table decides by a fixed set of routes, in time independent of their number. It is
// immutable and safe for concurrent use. The zero value and the nil pointer refuse
// everything.
type Table struct {
	exact    map[string][]Route
	wildcard map[string][]Route
	literal  map[netip.Addr][]Route
	domain   map[string]Route // registrable domain to its first route, for hints
	routes   []Route
}

// Compile returns a table of routes. A zero route is an error, because it stands for
// input that was not understood.
func Compile(routes ...Route) (*Table, error) {
	t := &Table{
		exact:    map[string][]Route{},
		wildcard: map[string][]Route{},
		literal:  map[netip.Addr][]Route{},
		domain:   map[string]Route{},
		routes:   slices.Clone(routes),
	}
	for i, r := range routes {
		r.order = i
		switch {
		case r.IsZero():
			return nil, fmt.Errorf("policy: route %d is empty", i)
		case len(r.ports) == 0:
			return nil, errors.New("policy: route without ports")
		case r.addr.IsValid():
			t.literal[r.addr] = append(t.literal[r.addr], r)
			continue
		case r.wildcard:
			t.wildcard[r.name] = append(t.wildcard[r.name], r)
		default:
			t.exact[r.name] = append(t.exact[r.name], r)
		}
		domain := registrable(r.name)
		if _, ok := t.domain[domain]; !ok {
			t.domain[domain] = r
		}
	}
	return t, nil
}

// Routes returns the routes in the order given.
func (t *Table) Routes() []Route {
	if t == nil {
		return nil
	}
	return slices.Clone(t.routes)
}

func registrable(name string) string {
	if d, err := publicsuffix.EffectiveTLDPlusOne(name); err == nil {
		return d
	}
	return name
}

// Decide decides whether the bottle may connect to name on port. If several routes
// match, a private one wins: each was given on purpose.
func (t *Table) Decide(name string, port uint16) Verdict {
	return t.decideName(name, func(r Route) bool { return slices.Contains(r.ports, port) })
}

// DecideName decides whether the bottle may connect to name on any port. It answers
// DNS questions, where the port is not known yet.
func (t *Table) DecideName(name string) Verdict {
	return t.decideName(name, func(Route) bool { return true })
}

// DecideAddr decides whether the bottle may connect to a literal address on port.
func (t *Table) DecideAddr(addr netip.Addr, port uint16) Verdict {
	if t == nil {
		return Verdict{Reason: ReasonLiteral}
	}
	routes := t.literal[addr.WithZone("")]
	if v, ok := decideAmong(routes, func(r Route) bool { return slices.Contains(r.ports, port) }); ok {
		return v
	}
	if len(routes) > 0 {
		return refusal(ReasonPort, routes[0])
	}
	return Verdict{Reason: ReasonLiteral}
}

func (t *Table) decideName(name string, match func(Route) bool) Verdict {
	canonical, err := CanonicalName(name)
	if err != nil {
		return Verdict{Reason: ReasonBadName}
	}
	if t == nil {
		return Verdict{Reason: ReasonNoRoute}
	}
	found := t.routesOf(canonical)
	if v, ok := decideAmong(found, match); ok {
		return v
	}
	if len(found) > 0 {
		return refusal(ReasonPort, found[0])
	}
	if near, ok := t.domain[registrable(canonical)]; ok {
		return refusal(ReasonNoRoute, near)
	}
	return Verdict{Reason: ReasonNoRoute}
}

// RoutesOf returns the routes of a canonical name, in their order.
func (t *Table) RoutesOf(canonical string) []Route {
	if t == nil {
		return nil
	}
	return t.routesOf(canonical)
}

// RoutesOfAddr returns the routes of a literal address, in their order.
func (t *Table) RoutesOfAddr(a netip.Addr) []Route {
	if t == nil {
		return nil
	}
	return t.literal[a.WithZone("")]
}

// routesOf returns the routes of a canonical name, in their order.
func (t *Table) routesOf(canonical string) []Route {
	found := slices.Clone(t.exact[canonical])
	for rest := canonical; ; {
		_, parent, ok := strings.Cut(rest, ".")
		if !ok {
			break
		}
		found = append(found, t.wildcard[parent]...)
		rest = parent
	}
	slices.SortStableFunc(found, func(a, b Route) int { return a.order - b.order })
	return found
}

// candidates returns the routes that judge requests on a connection to name on port:
// those with the same protocol, privacy and inspection as the route that allowed the
// connection. Others don't count: after a private route allowed a dial, a public one
// must not allow the request.
func (t *Table) candidates(name string, addr netip.Addr, port uint16) []*Route {
	if t == nil {
		return nil
	}
	var found []Route
	if addr.IsValid() {
		found = t.literal[addr.WithZone("")]
	} else if canonical, err := CanonicalName(name); err == nil {
		found = t.routesOf(canonical)
	}
	v, ok := decideAmong(found, func(r Route) bool { return slices.Contains(r.ports, port) })
	if !ok {
		return nil
	}
	var out []*Route
	for i := range found {
		if r := &found[i]; slices.Contains(r.ports, port) && r.private == v.Private && r.protocol == v.Protocol && r.opts.Opaque == v.Opaque {
			out = append(out, r)
		}
	}
	return out
}

// decideAmong returns the verdict of one matching route. It never combines several,
// which could permit what none of them does. Private routes come first, then the order
// of the table.
func decideAmong(routes []Route, match func(Route) bool) (Verdict, bool) {
	var best Route
	for _, r := range routes {
		if match(r) && (best.IsZero() || r.private && !best.private) {
			best = r
		}
	}
	if best.IsZero() {
		return Verdict{}, false
	}
	return Verdict{Allowed: true, Private: best.private, Protocol: best.protocol, Opaque: best.opts.Opaque, Wildcard: best.wildcard, Rule: best.rule, Reason: ReasonRoute}, true
}

// Shadowed reports whether r, a route of the table, never judges a request, and which
// rule prevents that. A connection is private or not, and inspected or not; another
// route decides that for every port of r.
func (t *Table) Shadowed(r Route) (by string, ok bool) {
	found := t.literal[r.addr]
	if !r.addr.IsValid() {
		name := r.name
		if r.wildcard {
			name = "any." + name
		}
		found = t.routesOf(name)
	}
	for _, port := range r.ports {
		v, _ := decideAmong(found, func(o Route) bool { return slices.Contains(o.ports, port) })
		if v.Private == r.private && v.Protocol == r.protocol && v.Opaque == r.opts.Opaque {
			return "", false
		}
		by = v.Rule
	}
	return by, true
}

func refusal(reason Reason, near Route) Verdict {
	return Verdict{Reason: reason, Rule: near.rule, Nearest: near.String()}
}
