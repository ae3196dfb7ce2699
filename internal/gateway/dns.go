package gateway

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/carboy/carboy/internal/policy"
)

const (
	// dnsTTL limits, in seconds, how long a client may cache a synthetic address. The
	// address never changes; a short time makes the summary's counts show which names
	// are in use.
	dnsTTL = 60

	// maxQuery bounds a query, in bytes. A question needs less than 300.
	maxQuery = 4096

	// maxEDEText bounds the text of an extended error, so that the answer
	// fits any client's buffer.
	maxEDEText = 160

	plainUDP = 512
)

// answerDNS answers one query from what this process knows. No query is ever
// forwarded, so a name in a query goes nowhere. It returns nil when no answer is due.
func (g *Gateway) answerDNS(query []byte, tcp bool) []byte {
	if len(query) < 12 || len(query) > maxQuery || query[2]&0x80 != 0 {
		return nil
	}
	if reason := g.admitQuery(); reason != ReasonOK {
		g.ledger.limit(reason, "")
		return nil
	}
	var q dns.Msg
	if err := q.Unpack(query); err != nil {
		return failure(query, dns.RcodeFormatError)
	}
	if q.Opcode != dns.OpcodeQuery {
		return failure(query, dns.RcodeNotImplemented)
	}
	if len(q.Question) != 1 {
		return failure(query, dns.RcodeFormatError)
	}
	if q.Question[0].Qclass != dns.ClassINET && q.Question[0].Qclass != dns.ClassANY {
		return failure(query, dns.RcodeNotImplemented)
	}
	reply := g.resolveInside(&q)
	limit := dns.MaxMsgSize
	if !tcp {
		limit = plainUDP
		if opt := q.IsEdns0(); opt != nil {
			limit = max(plainUDP, min(int(opt.UDPSize()), 1232))
		}
	}
	return pack(reply, limit)
}

// admitQuery counts a query and returns the limit that it breaks, if any.
func (g *Gateway) admitQuery() Reason {
	switch {
	case g.queries.Add(1) > g.limits.Queries:
		return reasonLimitQueries
	case !g.queryRate.Allow():
		return reasonLimitQueryRate
	default:
		return ReasonOK
	}
}

// failure returns an answer of a header alone, for a query that could not be parsed.
func failure(query []byte, rcode int) []byte {
	b := make([]byte, 12)
	copy(b, query[:4])
	b[2] = b[2]&0x79 | 0x80 // keep opcode and RD, set QR
	b[3] = 0x80 | byte(rcode&0x0f)
	return b
}

// pack serialises the answer. If it is too long, it drops the authority section, then
// the additional one.
func pack(m *dns.Msg, limit int) []byte {
	m.Compress = true
	if m.Len() > limit {
		m.Ns = nil
	}
	if m.Len() > limit {
		m.Extra = nil
	}
	b, err := m.Pack()
	if err != nil || len(b) > limit {
		return nil
	}
	return b
}

func (g *Gateway) resolveInside(q *dns.Msg) *dns.Msg {
	question := q.Question[0]
	m := new(dns.Msg)
	m.SetReply(q)
	m.RecursionAvailable = true
	if opt := q.IsEdns0(); opt != nil {
		m.SetEdns0(1232, false)
	}
	name := strings.ToLower(question.Name)
	switch {
	case isUnder(name, "localhost."):
		answerLocalhost(m, question)
		return m
	case g.servesInside(insideName(name)):
		g.answerInside(m, question, insideName(name), insideRule(insideName(name)))
		return m
	case g.serviceName(name) != "":
		g.answerInside(m, question, g.serviceName(name), serviceRule(g.serviceName(name)))
		return m
	case isUnder(name, "in-addr.arpa.") || isUnder(name, "ip6.arpa."):
		g.answerReverse(m, question, name)
		return m
	}
	v := g.table().DecideName(name)
	g.answerName(m, question, v)
	return m
}

func isUnder(name, zone string) bool {
	return name == zone || strings.HasSuffix(name, "."+zone)
}

// answerName answers a question about a host name. The order of the checks matters:
// only a name that the policy allows gets an address.
func (g *Gateway) answerName(m *dns.Msg, q dns.Question, v policy.Verdict) {
	addressed := q.Qtype == dns.TypeA || q.Qtype == dns.TypeANY
	addr, reason := g.decideName(strings.TrimSuffix(q.Name, "."), typeName(q.Qtype), v, addressed)
	switch {
	case reason == reasonSecret:
		m.Rcode = dns.RcodeNameError
		m.Ns = append(m.Ns, soa())
		blocked(m, "carboy: there is a secret in this name")
	case reason == reasonLimitNames:
		m.Rcode = dns.RcodeNameError
		blocked(m, "carboy: this bottle has asked for too many names")
	case reason != ReasonOK:
		v.Reason = policy.Reason(reason)
		g.refuseName(m, q, v)
	case !addressed:
		noData(m)
	default:
		m.Answer = append(m.Answer, &dns.A{
			Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: dnsTTL},
			A:   addr.AsSlice(),
		})
	}
}

// decideName records that the bottle asked for a name, about which v is the verdict, and
// returns its synthetic address if addressed is set. how says in a word what was asked.
func (g *Gateway) decideName(name, how string, v policy.Verdict, addressed bool) (addr netip.Addr, reason Reason) {
	asked := NameAsked{Name: name, Type: how, Allowed: v.Allowed, Rule: v.Rule, Reason: fromPolicy(v.Reason)}
	defer func() {
		if reason != ReasonOK {
			asked.Allowed, asked.Reason = false, reason
		}
		g.ledger.nameAsked(asked)
	}()
	// A name that a route spells out was not chosen inside the bottle.
	if chosen := !v.Allowed || v.Wildcard; chosen {
		if f, found := g.rules.Load().detectors.findInText(asked.Name, v.Allowed); found {
			asked.Name = withheld
			if v.Allowed {
				g.ledger.found(Found{Time: time.Now(), Name: withheld, Rule: v.Rule, What: f.Rule, Secret: f.Secret, Transform: f.Transform, Place: "name", Action: FoundBlocked})
				return netip.Addr{}, reasonSecret
			}
		}
	}
	if !v.Allowed {
		if v.Reason == "" {
			v.Reason = policy.ReasonNoRoute
		}
		return netip.Addr{}, fromPolicy(v.Reason)
	}
	if !addressed {
		return netip.Addr{}, ReasonOK
	}
	canonical, err := policy.CanonicalName(name)
	if err != nil {
		return netip.Addr{}, Reason(policy.ReasonBadName)
	}
	addr, ok := g.names.assign(canonical)
	if !ok {
		g.ledger.limit(reasonLimitNames, canonical)
		return netip.Addr{}, reasonLimitNames
	}
	return addr, ReasonOK
}

// refuseName answers NXDOMAIN. On REFUSED and SERVFAIL resolvers report a temporary
// failure, which tools retry for minutes.
func (g *Gateway) refuseName(m *dns.Msg, q dns.Question, v policy.Verdict) {
	m.Rcode = dns.RcodeNameError
	m.Ns = append(m.Ns, soa())
	text := "carboy: no route allows this name"
	switch {
	case v.Reason == policy.ReasonBadName:
		text = "carboy: not a host name"
	case v.Rule != "":
		text += "; nearest: " + v.Rule
	}
	blocked(m, text)
}

// blocked adds the extended error Blocked (RFC 8914 section 4.16) if the client
// supports extensions.
func blocked(m *dns.Msg, text string) {
	opt := m.IsEdns0()
	if opt == nil {
		return
	}
	if len(text) > maxEDEText {
		text = text[:maxEDEText]
	}
	opt.Option = append(opt.Option, &dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeBlocked, ExtraText: text})
}

// noData answers that the name exists without such records. Programs then use the IPv4
// address at once.
func noData(m *dns.Msg) { m.Ns = append(m.Ns, soa()) }

// soa has a negative TTL of zero (RFC 2308), so that a new route takes effect at once.
func soa() *dns.SOA {
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 0},
		Ns:  "carboy.internal.", Mbox: "carboy.internal.", Serial: 1, Refresh: 60, Retry: 60, Expire: 60, Minttl: 0,
	}
}

// answerLocalhost follows RFC 6761 section 6.3; the address is the bottle's
// own.
func answerLocalhost(m *dns.Msg, q dns.Question) {
	hdr := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: dnsTTL}
	switch q.Qtype {
	case dns.TypeA:
		m.Answer = append(m.Answer, &dns.A{Hdr: hdr, A: net.IPv4(127, 0, 0, 1)})
	case dns.TypeAAAA:
		m.Answer = append(m.Answer, &dns.AAAA{Hdr: hdr, AAAA: net.IPv6loopback})
	default:
		noData(m)
	}
}

// answerReverse answers reverse lookups of synthetic addresses; others don't exist.
func (g *Gateway) answerReverse(m *dns.Msg, q dns.Question, name string) {
	addr, ok := reverseAddr(name)
	host := ""
	if ok {
		host = g.names.lookup(addr)
	}
	switch {
	case host == "":
		m.Rcode = dns.RcodeNameError
		m.Ns = append(m.Ns, soa())
		g.ledger.nameAsked(NameAsked{
			Name: g.hidden(strings.TrimSuffix(q.Name, ".")), Type: typeName(q.Qtype), Reason: Reason(policy.ReasonNoRoute),
		})
	case q.Qtype == dns.TypePTR || q.Qtype == dns.TypeANY:
		m.Answer = append(m.Answer, &dns.PTR{
			Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypePTR, Class: dns.ClassINET, Ttl: dnsTTL},
			Ptr: dns.Fqdn(host),
		})
	default:
		noData(m)
	}
}

func reverseAddr(name string) (netip.Addr, bool) {
	rest, ok := strings.CutSuffix(name, ".in-addr.arpa.")
	if !ok {
		return netip.Addr{}, false
	}
	parts := strings.Split(rest, ".")
	if len(parts) != 4 {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(parts[3] + "." + parts[2] + "." + parts[1] + "." + parts[0])
	return a, err == nil
}

func typeName(t uint16) string {
	if s, ok := dns.TypeToString[t]; ok {
		return s
	}
	return "other"
}

// serveDNS answers the queries on one TCP connection (RFC 7766) in order.
func (g *Gateway) serveDNS(c net.Conn) {
	defer c.Close()
	buf := make([]byte, 2+maxQuery)
	for {
		_ = c.SetDeadline(time.Now().Add(g.limits.Sniff))
		if _, err := io.ReadFull(c, buf[:2]); err != nil {
			return
		}
		n := int(binary.BigEndian.Uint16(buf))
		if n > maxQuery {
			return
		}
		if _, err := io.ReadFull(c, buf[2:2+n]); err != nil {
			return
		}
		reply := g.answerDNS(buf[2:2+n], true)
		if reply == nil {
			return
		}
		out := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(reply)), uint16(len(reply)))
		if _, err := c.Write(append(out, reply...)); err != nil {
			return
		}
	}
}
