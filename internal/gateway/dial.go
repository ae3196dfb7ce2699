package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/carboy/carboy/internal/policy"
)

const (
	// maxCandidates bounds how many addresses of one name are tried.
	maxCandidates = 8
	// attemptDelay is the head start of one attempt over the next
	// (RFC 8305 section 5).
	attemptDelay = 250 * time.Millisecond
)

// upstream is a connection to an address that the policy permitted.
type upstream struct {
	net.Conn
	addr netip.AddrPort
}

// ReadFrom lets net/http send request bodies in large pieces.
func (u *upstream) ReadFrom(r io.Reader) (int64, error) {
	buf := relayBuffers.Get().(*[relayBuffer]byte)
	defer relayBuffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{u.Conn}, struct{ io.Reader }{r}, buf[:])
}

// dialError says why a dial failed.
type dialError struct {
	reason Reason
	name   string
	port   uint16
	class  policy.Class // for ReasonNotPublic
	err    error
	// upstream is set if the address is a route's upstream.
	upstream bool
}

func (e *dialError) Error() string {
	where := net.JoinHostPort(e.name, strconv.Itoa(int(e.port)))
	if e.upstream && e.name != "" {
		where = "the route's upstream " + where
	} else if e.upstream {
		where = "the route's upstream"
	}
	if e.reason == reasonNotPublic {
		return fmt.Sprintf("dial %s: resolves to a %s address only", where, e.class)
	}
	return fmt.Sprintf("dial %s: %v", where, e.err)
}

func (e *dialError) Unwrap() error { return e.err }

// forBottle returns the error text for the bottle. It reveals nothing about the host's
// own addresses, its resolvers or what names resolve to.
func (e *dialError) forBottle() string {
	var errno syscall.Errno
	var dns *net.DNSError
	short := *e
	if e.upstream {
		short.name = ""
	}
	switch {
	case e.reason == reasonNotPublic || e.err == nil:
	case errors.As(e.err, &dns) && dns.IsNotFound:
		short.err = errors.New("no such host")
	case isTimeout(e.err) || errors.Is(e.err, context.DeadlineExceeded):
		short.err = errors.New("timed out")
	case errors.As(e.err, &dns):
		short.err = errors.New("the name can't be resolved")
	case errors.As(e.err, &errno):
		short.err = errno
	case e.reason == reasonDialFailed:
		short.err = errors.New("no connection")
	}
	return short.Error()
}

// addresses matches the endpoint addresses in error texts of package net.
var addresses = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(tcp[46]? |udp[46]? )?(\[[0-9a-fA-F:.]+(%\w+)?\]|\d+\.\d+\.\d+\.\d+):\d+(->)?(: )?`)
})

func withoutAddresses(s string) string { return addresses().ReplaceAllString(s, "") }

func dialReason(err error) Reason {
	var de *dialError
	if errors.As(err, &de) {
		return de.reason
	}
	return reasonDialFailed
}

// dial is the only way out. It asks the policy again, resolves the name, judges each
// address and connects to one of exactly those. It resolves the name only once, so no
// answer can change between check and use.
func (g *Gateway) dial(ctx context.Context, name string, port uint16) (*upstream, error) {
	ctx, cancel := context.WithTimeout(ctx, g.limits.Dial)
	defer cancel()
	addrs, err := g.candidates(ctx, name, port)
	if err != nil {
		return nil, err
	}
	up, err := g.race(ctx, addrs)
	if err != nil {
		return nil, &dialError{reason: reasonDialFailed, name: name, port: port, err: err}
	}
	return up, nil
}

// dialUpstream connects to a route's upstream. It may be a private address, because
// the author of the route named it, not the bottle.
func (g *Gateway) dialUpstream(ctx context.Context, name string, port uint16) (*upstream, error) {
	ctx, cancel := context.WithTimeout(ctx, g.limits.Dial)
	defer cancel()
	fail := func(e *dialError) (*upstream, error) {
		e.name, e.port, e.upstream = name, port, true
		return nil, e
	}
	var addrs []netip.AddrPort
	if literal, err := netip.ParseAddr(name); err == nil {
		addrs = []netip.AddrPort{netip.AddrPortFrom(literal, port)}
	} else {
		found, err := g.lookup(ctx, name)
		if err != nil {
			return fail(&dialError{reason: reasonResolveFailed, err: err})
		}
		good, bad := permitted(found, true)
		if len(good) == 0 {
			return fail(&dialError{reason: reasonNotPublic, class: bad})
		}
		addrs = withPort(interleave(good), port)
	}
	up, err := g.race(ctx, addrs)
	if err != nil {
		return fail(&dialError{reason: reasonDialFailed, err: err})
	}
	return up, nil
}

// permitted returns the addresses that may be dialled. If it drops some, bad is the
// class of one of them.
func permitted(found []netip.Addr, private bool) (good []netip.Addr, bad policy.Class) {
	bad = policy.ClassUnknown
	for _, a := range found {
		a = a.Unmap()
		class := policy.Classify(a)
		if a.Zone() != "" || !class.Permits(private) {
			bad = class
			continue
		}
		good = append(good, a)
	}
	return good, bad
}

// candidates returns the addresses that may be dialled for name and port, best
// first.
func (g *Gateway) candidates(ctx context.Context, name string, port uint16) ([]netip.AddrPort, error) {
	fail := func(r Reason, err error) error { return &dialError{reason: r, name: name, port: port, err: err} }
	if literal, err := netip.ParseAddr(name); err == nil {
		v := g.table().DecideAddr(literal, port)
		if !v.Allowed {
			return nil, fail(fromPolicy(v.Reason), errors.New("no route"))
		}
		return []netip.AddrPort{netip.AddrPortFrom(literal, port)}, nil
	}
	v := g.table().Decide(name, port)
	if !v.Allowed {
		return nil, fail(fromPolicy(v.Reason), errors.New("no route"))
	}
	found, err := g.lookup(ctx, name)
	if err != nil {
		return nil, fail(reasonResolveFailed, err)
	}
	good, bad := permitted(found, v.Private)
	if len(good) == 0 {
		return nil, &dialError{reason: reasonNotPublic, name: name, port: port, class: bad}
	}
	return withPort(interleave(good), port), nil
}

func (g *Gateway) lookup(ctx context.Context, name string) ([]netip.Addr, error) {
	if name == policy.HostGateway {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, nil
	}
	if strings.Contains(name, ".") {
		// Absolute, so that the host's search domains do not make another
		// name of it.
		name += "."
	}
	addrs, err := g.resolver.LookupNetIP(ctx, "ip", name)
	if err == nil && len(addrs) == 0 {
		err = errors.New("no address")
	}
	return addrs, err
}

// interleave alternates families, beginning with that of the first answer
// (RFC 8305 section 4), and bounds the number.
func interleave(addrs []netip.Addr) []netip.Addr {
	var first, second []netip.Addr
	for _, a := range addrs {
		if a.Is4() == addrs[0].Is4() {
			first = append(first, a)
		} else {
			second = append(second, a)
		}
	}
	var out []netip.Addr
	for i := 0; i < max(len(first), len(second)) && len(out) < maxCandidates; i++ {
		if i < len(first) {
			out = append(out, first[i])
		}
		if i < len(second) {
			out = append(out, second[i])
		}
	}
	return out
}

func withPort(addrs []netip.Addr, port uint16) []netip.AddrPort {
	out := make([]netip.AddrPort, len(addrs))
	for i, a := range addrs {
		out[i] = netip.AddrPortFrom(a, port)
	}
	return out
}

// race connects to the first address that answers, each attempt starting when
// the one before failed or had its head start. It returns after every attempt
// has ended.
func (g *Gateway) race(ctx context.Context, addrs []netip.AddrPort) (*upstream, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		up  *upstream
		err error
	}
	results := make(chan result)
	running, next := 0, 0
	start := func() {
		addr := addrs[next]
		next++
		running++
		go func() {
			c, err := g.connect(ctx, addr)
			if err != nil {
				results <- result{err: err}
				return
			}
			results <- result{up: &upstream{Conn: c, addr: addr}}
		}()
	}
	var won *upstream
	var errs []error
	start()
	delay := time.NewTimer(attemptDelay)
	defer delay.Stop()
	for running > 0 {
		select {
		case r := <-results:
			running--
			switch {
			case r.err != nil:
				errs = append(errs, r.err)
				if won == nil && next < len(addrs) && ctx.Err() == nil {
					start()
				}
			case won == nil:
				won = r.up
				cancel()
			default:
				_ = r.up.Close()
			}
		case <-delay.C:
			if won == nil && next < len(addrs) {
				start()
				delay.Reset(attemptDelay)
			}
		}
	}
	if won == nil {
		return nil, errors.Join(errs...)
	}
	return won, nil
}

// dialAddr connects to an address. It is the one place that opens sockets.
func dialAddr(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr.String())
}
