// Package policy decides where a bottle may connect to. It holds routes and
// verdicts and does no I/O: names are resolved and connections made elsewhere,
// each asking here first.
//
// What it promises: the zero [Verdict], [Route] and [Table] refuse; two
// spellings of one host are one host; what is not understood is an error and
// never a route.
//
// Start reading at [ParseAllow] and [Table.Decide]; [Classify] is the other
// half, for addresses that a name turned out to have.
package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// Reason says why a verdict is what it is. The values are stable: receipts
// hold them.
type Reason string

// The reasons of verdicts.
const (
	ReasonNone    Reason = ""         // the zero verdict, which refuses
	ReasonRoute   Reason = "route"    // a route allows it
	ReasonNoRoute Reason = "no-route" // no route names the host
	ReasonPort    Reason = "port"     // a route names the host, with other ports
	ReasonBadName Reason = "bad-name" // not a host name
	ReasonLiteral Reason = "literal"  // an address that no route names
)

// Verdict is the answer to one question. The zero value refuses.
type Verdict struct {
	Allowed bool
	// Private permits addresses that are not public.
	Private bool
	// Protocol is what may be spoken.
	Protocol Protocol
	// Opaque says that what is spoken inside TLS is passed unseen.
	Opaque bool
	// Wildcard says that the route leaves a part of the name to whoever asks.
	Wildcard bool
	// Rule cites the route that allowed, or in a refusal the route that came
	// nearest; empty when there is none.
	Rule   string
	Reason Reason
	// Nearest is the HOST[:PORT] of the route that came nearest to a refused
	// question, if any did.
	Nearest string
}

// Table answers questions about a fixed set of routes, in time that does not
// grow with their number. It is immutable and safe for concurrent use. The
// zero value and the nil pointer refuse everything.
type Table struct {
	exact    map[string][]Route
	wildcard map[string][]Route
	literal  map[netip.Addr][]Route
	domain   map[string]Route // registrable domain to its first route, for advice
	routes   []Route
}

// Compile makes a table. A zero route is an error, since it stands for
// something that was not understood.
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

// Decide says whether name may be connected to on port. Where several routes
// match, a private one wins over others: each was given on purpose.
func (t *Table) Decide(name string, port uint16) Verdict {
	return t.decideName(name, func(r Route) bool { return slices.Contains(r.ports, port) })
}

// DecideName says whether any port of name may be connected to: the question
// when the name is asked for and the port is not known yet.
func (t *Table) DecideName(name string) Verdict {
	return t.decideName(name, func(Route) bool { return true })
}

// DecideAddr says whether a literal address may be connected to on port.
func (t *Table) DecideAddr(addr netip.Addr, port uint16) Verdict {
	if t == nil {
		return Verdict{Reason: ReasonLiteral}
	}
	routes := t.literal[addr.WithZone("")]
	if v, ok := pick(routes, func(r Route) bool { return slices.Contains(r.ports, port) }); ok {
		return v
	}
	if len(routes) > 0 {
		return refuse(ReasonPort, routes[0])
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
	found := t.named(canonical)
	if v, ok := pick(found, match); ok {
		return v
	}
	if len(found) > 0 {
		return refuse(ReasonPort, found[0])
	}
	if near, ok := t.domain[registrable(canonical)]; ok {
		return refuse(ReasonNoRoute, near)
	}
	return Verdict{Reason: ReasonNoRoute}
}

// RoutesOf are the routes of a canonical name, in their order.
func (t *Table) RoutesOf(canonical string) []Route {
	if t == nil {
		return nil
	}
	return t.named(canonical)
}

// RoutesOfAddr are the routes of a literal address, in their order.
func (t *Table) RoutesOfAddr(a netip.Addr) []Route {
	if t == nil {
		return nil
	}
	return t.literal[a.WithZone("")]
}

// named are the routes of a canonical name, in their order.
func (t *Table) named(canonical string) []Route {
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

// candidates are the routes by which requests on a connection to name on port are
// judged: those that are of one kind with the one that decided the connection. A
// private route's requests are not judged by the others, since it was dialled.
func (t *Table) candidates(name string, addr netip.Addr, port uint16) []*Route {
	if t == nil {
		return nil
	}
	var found []Route
	if addr.IsValid() {
		found = t.literal[addr.WithZone("")]
	} else if canonical, err := CanonicalName(name); err == nil {
		found = t.named(canonical)
	}
	v, ok := pick(found, func(r Route) bool { return slices.Contains(r.ports, port) })
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

// pick returns the verdict of one matching route, never a mixture of several,
// which could permit what none of them does. A private route comes first, then
// the order given.
func pick(routes []Route, match func(Route) bool) (Verdict, bool) {
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

// Shadowed reports whether r, one of the table's, never judges a request, and which
// rule is why: a connection is of one kind, private or not, seen into or not, which
// another route decides for every port of r.
func (t *Table) Shadowed(r Route) (by string, ok bool) {
	found := t.literal[r.addr]
	if !r.addr.IsValid() {
		name := r.name
		if r.wildcard {
			name = "any." + name
		}
		found = t.named(name)
	}
	for _, port := range r.ports {
		v, _ := pick(found, func(o Route) bool { return slices.Contains(o.ports, port) })
		if v.Private == r.private && v.Protocol == r.protocol && v.Opaque == r.opts.Opaque {
			return "", false
		}
		by = v.Rule
	}
	return by, true
}

func refuse(reason Reason, near Route) Verdict {
	return Verdict{Reason: reason, Rule: near.rule, Nearest: near.String()}
}
