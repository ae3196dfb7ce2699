package gateway

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/miekg/dns"

	"github.com/carboy/carboy/internal/policy"
)

// Some names belong to carboy: this process answers them. Nothing is dialled for them,
// and no route mentions them.

const (
	// GitName serves the bottle's repositories.
	GitName = "git.carboy.internal"
	// SuperviseName serves the tools by which an agent asks a person.
	SuperviseName = "supervise.carboy.internal"

	insidePort = 80
	// insideOffset is the offset of insideNames in the synthetic range. It is below
	// other names, so these addresses exist even if the range is used up.
	insideOffset = 200
)

// insideNames lists all such names. egressName is always served; the others need a
// handler in the Config.
var insideNames = [...]string{egressName, GitName, SuperviseName}

// insideName returns the member of insideNames that name stands for, in any spelling
// of a query or a Host header; "": none.
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

// insideRule returns the rule that records cite for name.
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

// servesInside reports whether name has a handler.
func (g *Gateway) servesInside(name string) bool {
	return name != "" && (name == egressName || g.handlers[name] != nil)
}

// answerInside answers a DNS question about one of insideNames, or a service.
func (g *Gateway) answerInside(m *dns.Msg, q dns.Question, name, rule string) {
	g.ledger.nameAsked(NameAsked{Name: name, Type: typeName(q.Qtype), Allowed: true, Rule: rule})
	if q.Qtype != dns.TypeA && q.Qtype != dns.TypeANY {
		noData(m)
		return
	}
	addr, _ := g.names.assign(name)
	m.Answer = append(m.Answer, &dns.A{
		Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: dnsTTL},
		A:   addr.AsSlice(),
	})
}

// judgeInside decides about a connection to one of insideNames.
func (g *Gateway) judgeInside(name string, port uint16) (policy.Verdict, Reason) {
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

// serveInside answers a request to one of insideNames.
func (w *webServer) serveInside(seen *exchange, r *http.Request) {
	f := seen.c.flow
	name, port, ok := splitAuthority(r.Host, insidePort)
	if bad, isBad := seen.c.badHead(); isBad {
		seen.refuseInside(r, http.StatusBadRequest, ReasonHTTPMalformed, bad)
		return
	} else if !ok || port != insidePort || insideName(name) != f.name {
		seen.refuseInside(r, http.StatusMisdirectedRequest, reasonHostMismatch, "this is "+f.name)
		return
	}
	if f.name == egressName {
		w.serveEgress(seen, r)
		return
	}
	if n := w.busy.Add(1); n > int64(w.g.limits.Requests) {
		w.busy.Add(-1)
		seen.Header().Set("Retry-After", "1")
		w.g.ledger.limit(reasonLimitRequests, f.name)
		seen.refuseInside(r, http.StatusServiceUnavailable, reasonLimitRequests, fmt.Sprintf("%d requests are under way", w.g.limits.Requests))
		return
	}
	defer w.busy.Add(-1)
	seen.allowInside()
	seen.hideRequestLine()
	if r.ProtoMajor == 1 {
		_ = http.NewResponseController(seen.ResponseWriter).EnableFullDuplex() // HTTP/1 always supports it
	}
	w.g.handlers[f.name].ServeHTTP(seen, r)
}

// allowInside records that the request was allowed.
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
	x.hideRequestLine()
	x.recordRefusal(v)
	refuseHTTP(x, r, v)
}
