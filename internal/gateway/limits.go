package gateway

import "time"

// Limits bounds the resources of one bottle. A zero field means its default, see
// defaultLimits; "no limit" can't be expressed.
type Limits struct {
	// BytesUp and BytesDown bound all payload that leaves and enters the bottle,
	// HostBytes both directions together per host. Payload is what the bottle's
	// connections carry, TLS included.
	BytesUp, BytesDown, HostBytes int64
	// Egress bounds all bytes that leave towards any upstream, counted like the caps
	// of routes; 0: no bound of its own. Nothing else leaves: names are answered here,
	// and packets of other protocols are dropped.
	Egress int64
	// Conns bounds connections that are open at once.
	Conns int
	// Requests bounds HTTP requests that are under way at once: an HTTP/2 connection
	// has many.
	Requests int
	// Names bounds the distinct names that get an address.
	Names int
	// QueryRate bounds DNS queries per second, with a burst of twice that; Queries
	// bounds their total.
	QueryRate float64
	Queries   int64
	// Sniff bounds the time until a client's first bytes show its protocol; Dial
	// bounds resolution and connect; Idle bounds the silence and Lifetime the life of
	// a connection.
	Sniff, Dial, Idle, Lifetime time.Duration
	// HeadBytes bounds the head of an HTTP request and a TLS ClientHello.
	HeadBytes int
}

// defaultLimits returns the limits used where the caller gives none.
func defaultLimits() Limits {
	return Limits{
		BytesUp: 64 << 30, BytesDown: 256 << 30, HostBytes: 256 << 30,
		Conns:     512,
		Requests:  1024,
		Names:     16384,
		QueryRate: 500,
		Queries:   2_000_000,
		Sniff:     15 * time.Second,
		Dial:      20 * time.Second,
		Idle:      15 * time.Minute,
		Lifetime:  24 * time.Hour,
		HeadBytes: 64 << 10,
	}
}

func (l Limits) withDefaults() Limits {
	d := defaultLimits()
	orDefault(&l.BytesUp, d.BytesUp)
	orDefault(&l.BytesDown, d.BytesDown)
	orDefault(&l.HostBytes, d.HostBytes)
	orDefault(&l.Conns, d.Conns)
	orDefault(&l.Requests, d.Requests)
	orDefault(&l.Names, d.Names)
	orDefault(&l.QueryRate, d.QueryRate)
	orDefault(&l.Queries, d.Queries)
	orDefault(&l.Sniff, d.Sniff)
	orDefault(&l.Dial, d.Dial)
	orDefault(&l.Idle, d.Idle)
	orDefault(&l.Lifetime, d.Lifetime)
	orDefault(&l.HeadBytes, d.HeadBytes)
	return l
}

func orDefault[T int | int64 | float64 | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}
