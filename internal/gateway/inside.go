package gateway

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/miekg/dns"

	"github.com/carboy/carboy/internal/policy"
)

// Some names are carboy's own: they are answered in this process, nothing is dialled
// for them, and no route speaks of them.

const (
	// GitName is where a bottle's repositories are.
	GitName = "git.carboy.internal"
	// SuperviseName is where what runs inside asks whoever runs it.
	SuperviseName = "supervise.carboy.internal"

	insidePort = 80
	// insideOffset is where in the synthetic range the addresses of insideNames
	// begin: below those of other names, so that they are there also when these are
	// used up.
	insideOffset = 200
)

// insideNames are all of them; egressName is always served, others when the
// configuration has a handler.
var insideNames = [...]string{egressName, GitName, SuperviseName}

// insideName returns which of the names this one is, in any spelling of a query or of
// a Host header; "": none.
func insideName(name string) string {
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	if name == egressAlias {
		return egressName
	}
	for _, n := range insideNames {
		if n == name {
			return n
		}
	}
	return ""
}

// insideRule is what a record cites for one of the names.
func insideRule(name string) string {
	if name == egressName {
		return egressRule
	}
	return "carboy: " + name
}

func checkInside(handlers map[string]http.Handler) error {
	for name, h := range handlers {
		if name != GitName && name != SuperviseName || h == nil {
			return fmt.Errorf("gateway: nothing can be served inside as %q", name)
		}
	}
	return nil
}

// servesInside reports whether something answers for a name.
func (g *Gateway) servesInside(name string) bool {
	return name != "" && (name == egressName || g.handlers[name] != nil)
}

// answerInside answers for one of the names.
func (g *Gateway) answerInside(m *dns.Msg, q dns.Question, name string) {
	g.ledger.nameAsked(NameAsked{Name: name, Type: typeName(q.Qtype), Allowed: true, Rule: insideRule(name)})
	if q.Qtype != dns.TypeA && q.Qtype != dns.TypeANY {
		noData(m, q)
		return
	}
	addr, _ := g.names.assign(name)
	m.Answer = append(m.Answer, &dns.A{
		Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: dnsTTL},
		A:   addr.AsSlice(),
	})
}

// placeInside judges a connection to one of the names.
func (g *Gateway) placeInside(name string, port uint16) (policy.Verdict, Reason) {
	v := policy.Verdict{Rule: insideRule(name)}
	switch {
	case !g.servesInside(name):
		v.Reason = policy.ReasonNoRoute
	case port != insidePort:
		v.Reason = policy.ReasonPort
	default:
		v.Allowed, v.Reason = true, policy.ReasonRoute
		return v, ReasonOK
	}
	return v, fromPolicy(v.Reason)
}

// serveInside answers a request to one of the names.
func (w *webServer) serveInside(seen *exchange, r *http.Request) {
	f := seen.c.flow
	name, port, ok := splitAuthority(r.Host, insidePort)
	if bad, isBad := seen.c.badHead(); isBad {
		seen.refuseInside(r, http.StatusBadRequest, ReasonHTTPMalformed, bad)
		return
	} else if !ok || port != insidePort || insideName(name) != f.name {
		seen.refuseInside(r, http.StatusMisdirectedRequest, ReasonHostMismatch, "this is "+f.name)
		return
	}
	if f.name == egressName {
		w.serveEgress(seen, r)
		return
	}
	if n := w.busy.Add(1); n > int64(w.g.limits.Requests) {
		w.busy.Add(-1)
		seen.Header().Set("Retry-After", "1")
		w.g.ledger.limit(ReasonLimitRequests, f.name)
		seen.refuseInside(r, http.StatusServiceUnavailable, ReasonLimitRequests, fmt.Sprintf("%d requests are under way", w.g.limits.Requests))
		return
	}
	defer w.busy.Add(-1)
	seen.allowInside()
	seen.hide()
	if r.ProtoMajor == 1 {
		_ = http.NewResponseController(seen.ResponseWriter).EnableFullDuplex() // it is HTTP/1: it can
	}
	w.g.handlers[f.name].ServeHTTP(seen, r)
}

// allowInside records that the request was taken.
func (x *exchange) allowInside() {
	f := x.c.flow
	f.setUpstream(netip.AddrPort{})
	f.requests.Add(1)
	x.e.Allowed, x.e.Rule = true, insideRule(f.name)
}

func (x *exchange) refuseInside(r *http.Request, status int, reason Reason, detail string) {
	f := x.c.flow
	v := &refusal{Status: status, Error: "refused", Reason: reason, Detail: detail, Host: f.name, Rule: insideRule(f.name)}
	f.note(reason, detail)
	x.hide()
	x.refused(v)
	refuseHTTP(x, r, v)
}
