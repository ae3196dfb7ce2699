package gateway

import (
	"cmp"
	"math/bits"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/tokens"
)

const (
	maxSummaryNames    = 4096
	maxSummaryConns    = 4096
	maxSummaryRequests = 4096
	maxSummaryFound    = 1024
	maxText            = 256
	maxUpstreams       = 4
)

// Summary counts what happened on a wire. Its size is bounded, and what did not fit is
// counted. Receipts embed it.
type Summary struct {
	Names        []NameSummary `json:"names"`
	NamesDropped uint64        `json:"names_dropped"` // questions about names beyond the bound
	Conns        []ConnSummary `json:"connections"`
	ConnsDropped uint64        `json:"connections_dropped"` // connections beyond the bound
	// Requests counts HTTP requests by host, rule and outcome.
	Requests        []RequestSummary `json:"requests"`
	RequestsDropped uint64           `json:"requests_dropped"` // requests beyond the bound
	// Found counts the findings of scanners by place and kind.
	Found        []FoundSummary `json:"found"`
	FoundDropped uint64         `json:"found_dropped"` // findings beyond the bound
	Limits       []LimitSummary `json:"limits"`
	BytesUp      int64          `json:"bytes_up"`
	BytesDown    int64          `json:"bytes_down"`
	Packets      PacketSummary  `json:"packets"`
}

// NameSummary counts the questions about one name.
type NameSummary struct {
	Name    string   `json:"name"`
	Allowed bool     `json:"allowed"`
	Rule    string   `json:"rule,omitempty"`
	Reason  Reason   `json:"reason,omitempty"`
	Types   []string `json:"types"`
	Count   uint64   `json:"count"`
}

// ConnSummary counts the connections to one place with one outcome.
type ConnSummary struct {
	Name      string    `json:"name"`
	Port      uint16    `json:"port"`
	Family    string    `json:"family"` // ipv4 or ipv6, as the bottle connected
	Protocol  string    `json:"protocol"`
	Allowed   bool      `json:"allowed"`
	Rule      string    `json:"rule,omitempty"`
	Reason    Reason    `json:"reason,omitempty"`
	Detail    string    `json:"detail,omitempty"` // of the first connection
	Count     uint64    `json:"count"`
	Up        int64     `json:"bytes_up"`
	Down      int64     `json:"bytes_down"`
	Requests  int64     `json:"requests,omitempty"`
	First     time.Time `json:"first"`
	Last      time.Time `json:"last"`
	Upstreams []string  `json:"upstreams,omitempty"`
}

// RequestSummary counts the requests to one place under one rule with one outcome.
type RequestSummary struct {
	Name       string `json:"name"`
	Port       uint16 `json:"port"`
	Allowed    bool   `json:"allowed"`
	Rule       string `json:"rule,omitempty"`
	Reason     Reason `json:"reason,omitempty"`
	Detail     string `json:"detail,omitempty"` // of the first request
	Credential string `json:"credential,omitempty"`
	Count      uint64 `json:"count"`
	Failed     uint64 `json:"failed"` // status 400 and above, or cut off
	Up         int64  `json:"bytes_up"`
	Down       int64  `json:"bytes_down"`
	// Tokens is the model usage that the Told answers reported.
	Tokens tokens.Usage `json:"tokens"`
	Told   uint64       `json:"told"`
	First  time.Time    `json:"first"`
	Last   time.Time    `json:"last"`
}

// FoundSummary counts the findings of one kind in traffic with one host.
type FoundSummary struct {
	Name      string      `json:"name"`
	Port      uint16      `json:"port"`
	Rule      string      `json:"rule,omitempty"`
	Inbound   bool        `json:"inbound"`
	What      string      `json:"what"`
	Secret    string      `json:"secret,omitempty"`
	Transform string      `json:"transform,omitempty"`
	Place     string      `json:"place"`
	Action    FoundAction `json:"action"`
	Count     uint64      `json:"count"`
	First     time.Time   `json:"first"`
	Last      time.Time   `json:"last"`
}

// LimitSummary counts how often a limit was reached.
type LimitSummary struct {
	Limit Reason `json:"limit"`
	Count uint64 `json:"count"`
}

// PacketSummary counts packets that were dropped before any connection.
type PacketSummary struct {
	In       uint64            `json:"in"`
	Out      uint64            `json:"out"`
	Lost     uint64            `json:"lost"` // the bottle did not take them in time
	Refused  map[Reason]uint64 `json:"refused"`
	Answered uint64            `json:"answered"` // refusals that were sent as ICMP
}

type connKey struct {
	name, proto, rule string
	port              uint16
	six, allowed      bool
	reason            Reason
}

type requestKey struct {
	name, rule, credential string
	port                   uint16
	allowed                bool
	reason                 Reason
}

type foundKey struct {
	name, rule, what, secret, transform, place string
	port                                       uint16
	inbound                                    bool
	action                                     FoundAction
}

// ledger collects the summary and calls the observer.
type ledger struct {
	observer Observer

	mu              sync.Mutex
	names           map[string]*NameSummary
	namesDropped    uint64
	conns           map[connKey]*ConnSummary
	connsDropped    uint64
	requests        map[requestKey]*RequestSummary
	requestsDropped uint64
	finds           map[foundKey]*FoundSummary
	findsDropped    uint64
	limits          map[Reason]uint64
	packets         map[Reason]uint64
}

func newLedger(o Observer) *ledger {
	if o == nil {
		o = func(Event) {}
	}
	return &ledger{
		observer: o,
		names:    map[string]*NameSummary{},
		conns:    map[connKey]*ConnSummary{},
		requests: map[requestKey]*RequestSummary{},
		finds:    map[foundKey]*FoundSummary{},
		limits:   map[Reason]uint64{},
		packets:  map[Reason]uint64{},
	}
}

// worthTelling reports whether the nth repetition of an event is reported.
func worthTelling(n uint64) bool { return bits.OnesCount64(n) == 1 }

func bound(s string) string {
	if len(s) > maxText {
		return s[:maxText]
	}
	return s
}

func (l *ledger) nameAsked(e NameAsked) {
	e.Name, e.Rule = bound(e.Name), bound(e.Rule)
	l.mu.Lock()
	s := l.names[e.Name]
	switch {
	case s == nil && len(l.names) >= maxSummaryNames:
		l.namesDropped++
		e.Count = l.namesDropped
	case s == nil:
		s = &NameSummary{Name: e.Name}
		l.names[e.Name] = s
		fallthrough
	default:
		s.Allowed, s.Rule, s.Reason = e.Allowed, e.Rule, e.Reason
		if len(s.Types) < 16 && !slices.Contains(s.Types, e.Type) {
			s.Types = append(s.Types, e.Type)
		}
		s.Count++
		e.Count = s.Count
	}
	l.mu.Unlock()
	if worthTelling(e.Count) {
		l.observer(e)
	}
}

// conn records a connection that ended. With repeats, it is a refusal, which costs the
// bottle nothing and may come in floods.
func (l *ledger) conn(e Conn, repeats bool) {
	e.Name, e.Rule, e.Detail = bound(e.Name), bound(e.Rule), bound(e.Detail)
	key := connKey{
		name: e.Name, proto: e.Protocol, rule: e.Rule, port: e.Addr.Port(),
		six: e.Addr.Addr().Is6(), allowed: e.Allowed, reason: e.Reason,
	}
	l.mu.Lock()
	s := l.conns[key]
	if s == nil && len(l.conns) >= maxSummaryConns {
		l.connsDropped++
		e.Count = l.connsDropped
	} else {
		if s == nil {
			s = &ConnSummary{
				Name: e.Name, Port: e.Addr.Port(), Family: family(e.Addr.Addr()), Protocol: e.Protocol,
				Allowed: e.Allowed, Rule: e.Rule, Reason: e.Reason, Detail: e.Detail, First: e.Time,
			}
			l.conns[key] = s
		}
		s.add(e)
		e.Count = s.Count
	}
	l.mu.Unlock()
	if !repeats || worthTelling(e.Count) {
		l.observer(e)
	}
}

// request records an HTTP request that was answered or cut off.
func (l *ledger) request(e Request) {
	e.Rule = bound(e.Rule)
	key := requestKey{e.Name, e.Rule, e.Credential, e.Port, e.Allowed, e.Reason}
	l.mu.Lock()
	s := l.requests[key]
	switch {
	case s == nil && len(l.requests) >= maxSummaryRequests:
		l.requestsDropped++
	case s == nil:
		s = &RequestSummary{
			Name: e.Name, Port: e.Port, Allowed: e.Allowed, Rule: e.Rule, Reason: e.Reason, Detail: e.Detail,
			Credential: e.Credential, First: e.Time,
		}
		l.requests[key] = s
		fallthrough
	default:
		s.Count++
		s.Up += e.Up
		s.Down += e.Down
		s.Last = e.Time.Add(e.Duration)
		if e.Status >= 400 || e.Status == 0 {
			s.Failed++
		}
		if u := e.Tokens; u != nil {
			s.Told++
			s.Tokens.Input, s.Tokens.Cached, s.Tokens.Output = s.Tokens.Input+u.Input, s.Tokens.Cached+u.Cached, s.Tokens.Output+u.Output
		}
	}
	l.mu.Unlock()
	l.observer(e)
}

// found records a scanner's finding.
func (l *ledger) found(e Found) {
	e.Rule, e.What, e.Secret, e.Transform, e.Place = bound(e.Rule), bound(e.What), bound(e.Secret), bound(e.Transform), bound(e.Place)
	key := foundKey{e.Name, e.Rule, e.What, e.Secret, e.Transform, e.Place, e.Port, e.Inbound, e.Action}
	l.mu.Lock()
	s := l.finds[key]
	if s == nil && len(l.finds) >= maxSummaryFound {
		l.findsDropped++
		e.Count = l.findsDropped
	} else {
		if s == nil {
			s = &FoundSummary{
				Name: e.Name, Port: e.Port, Rule: e.Rule, Inbound: e.Inbound, What: e.What, Secret: e.Secret,
				Transform: e.Transform, Place: e.Place, Action: e.Action, First: e.Time,
			}
			l.finds[key] = s
		}
		s.Count++
		s.Last = e.Time
		e.Count = s.Count
	}
	l.mu.Unlock()
	if worthTelling(e.Count) {
		l.observer(e)
	}
}

func (s *ConnSummary) add(e Conn) {
	s.Count++
	s.Up += e.Up
	s.Down += e.Down
	s.Requests += e.Requests
	s.Last = e.Time.Add(e.Duration)
	if !e.Upstream.IsValid() || len(s.Upstreams) >= maxUpstreams {
		return
	}
	if up := e.Upstream.String(); !slices.Contains(s.Upstreams, up) {
		s.Upstreams = append(s.Upstreams, up)
	}
}

func family(a netip.Addr) string {
	if a.Is6() {
		return "ipv6"
	}
	return "ipv4"
}

func (l *ledger) limit(r Reason, name string) {
	l.mu.Lock()
	l.limits[r]++
	n := l.limits[r]
	l.mu.Unlock()
	if worthTelling(n) {
		l.observer(LimitHit{Limit: r, Name: bound(name), Count: n})
	}
}

func (l *ledger) packet(r Reason) {
	l.mu.Lock()
	l.packets[r]++
	l.mu.Unlock()
}

func (l *ledger) summary() Summary {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Summary{
		Names: []NameSummary{}, Conns: []ConnSummary{}, Limits: []LimitSummary{}, Requests: []RequestSummary{}, Found: []FoundSummary{},
		FoundDropped: l.findsDropped, RequestsDropped: l.requestsDropped, NamesDropped: l.namesDropped, ConnsDropped: l.connsDropped,
		Packets: PacketSummary{Refused: map[Reason]uint64{}},
	}
	for _, n := range l.names {
		c := *n
		c.Types = slices.Sorted(slices.Values(n.Types))
		s.Names = append(s.Names, c)
	}
	for _, n := range l.conns {
		c := *n
		c.Upstreams = slices.Clone(n.Upstreams)
		s.Conns = append(s.Conns, c)
	}
	for _, n := range l.requests {
		s.Requests = append(s.Requests, *n)
	}
	for _, n := range l.finds {
		s.Found = append(s.Found, *n)
	}
	for r, n := range l.limits {
		s.Limits = append(s.Limits, LimitSummary{r, n})
	}
	for r, n := range l.packets {
		s.Packets.Refused[r] = n
	}
	slices.SortStableFunc(s.Names, func(a, b NameSummary) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortStableFunc(s.Conns, func(a, b ConnSummary) int {
		return cmp.Or(a.First.Compare(b.First), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Reason, b.Reason))
	})
	slices.SortStableFunc(s.Requests, func(a, b RequestSummary) int {
		return cmp.Or(a.First.Compare(b.First), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Reason, b.Reason))
	})
	slices.SortStableFunc(s.Found, func(a, b FoundSummary) int {
		return cmp.Or(a.First.Compare(b.First), cmp.Compare(a.Name, b.Name), cmp.Compare(a.What, b.What), cmp.Compare(a.Place, b.Place), cmp.Compare(a.Transform, b.Transform))
	})
	slices.SortStableFunc(s.Limits, func(a, b LimitSummary) int { return cmp.Compare(a.Limit, b.Limit) })
	return s
}
