package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// proxyUse tells a client what the proxy is for.
const proxyUse = "this is a proxy: it takes CONNECT NAME:PORT and requests for http:// URLs"

// httpVoice answers a client that speaks HTTP.
type httpVoice struct {
	tunnel bool // CONNECT; else the request itself follows
	json   bool
}

func (v httpVoice) accepted() []byte {
	if v.tunnel {
		return []byte("HTTP/1.1 200 Connection established\r\n\r\n")
	}
	return nil
}

func (v httpVoice) refused(why *refusal) []byte {
	object, err := json.Marshal(why)
	if err != nil {
		object = []byte("{}")
	}
	kind, body := "text/plain; charset=utf-8", fmt.Sprintf("%s\n%s\n", why.text(), object)
	if v.json {
		kind, body = "application/json", string(object)+"\n"
	}
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nConnection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"+
		"Carboy-Refused: %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
		why.Status, http.StatusText(why.Status), why.Reason, kind, len(body), body)
}

// proxyTarget holds the destination in a request head.
type proxyTarget struct {
	voice httpVoice
	name  string
	port  uint16
}

// negotiateHTTP reads a request to an HTTP proxy. It returns the connection that the
// client asks for, or the refusal.
func (g *Gateway) negotiateHTTP(s *sniffer) (*proxyRequest, []byte) {
	head, err := proxyHead(s)
	var to proxyTarget
	if err == nil {
		to, err = parseProxyHead(head)
	}
	if err != nil {
		v := g.proxyFault(s, err)
		g.recordProxy(v.Reason, v.Detail)
		if v.Reason == reasonServerFirst || v.Reason == reasonSlowStart {
			return nil, nil // nothing that an answer could be for
		}
		return nil, to.voice.refused(g.toldToProxy(v))
	}
	addr, v := g.proxyAddr(to.name, to.port)
	if v != nil {
		if v.Host != withheld {
			v.Allow = allowFlag(to.name, to.port)
		}
		return nil, to.voice.refused(g.toldToProxy(v))
	}
	if to.voice.tunnel {
		s.buf = s.buf[len(head)+4:] // the rest is the tunnel's
	}
	return &proxyRequest{dst: addr, voice: to.voice, single: !to.voice.tunnel}, nil
}

// proxyFault returns the refusal of what could not be read.
func (g *Gateway) proxyFault(s *sniffer, err error) *refusal {
	v := &refusal{Status: http.StatusBadRequest, Error: "refused", Reason: ReasonHTTPMalformed, Detail: err.Error()}
	var le limitError
	var he headError
	var pe proxyError
	switch {
	case errors.As(err, &le):
		v.Status, v.Reason, v.Detail = http.StatusRequestHeaderFieldsTooLarge, Reason(le), ""
	case errors.As(err, &pe):
		v.Reason = Reason(pe.reason)
	case errors.As(err, &he):
	default:
		v.Reason = s.startReason(err)
	}
	return v
}

// proxyError refuses a head that is valid but not for this proxy.
type proxyError struct {
	reason Reason
	text   string
}

func (e proxyError) Error() string { return e.text }

// parseProxyHead reads a request head, given without its last line end, as a proxy does.
func parseProxyHead(head string) (proxyTarget, error) {
	var to proxyTarget
	first, rest, _ := strings.Cut(head, "\r\n")
	method, target, _, err := requestLine(first)
	if err != nil {
		return to, err
	}
	var hosts []string
	for line := range strings.SplitSeq(rest, "\r\n") {
		if rest == "" {
			break
		}
		name, value, err := headerLine(line)
		switch {
		case err != nil:
			return to, err
		case strings.EqualFold(name, "host"):
			hosts = append(hosts, value)
		case strings.EqualFold(name, "accept"):
			to.voice.json = strings.Contains(value, "application/json")
		case method == http.MethodConnect && (strings.EqualFold(name, "transfer-encoding") || strings.EqualFold(name, "content-length") && value != "0"):
			return to, headError("CONNECT with a body")
		}
	}
	if method == http.MethodConnect {
		return to, to.connect(target, hosts)
	}
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "http" || u.Host == "" || u.User != nil {
		return to, proxyError{reasonProxy, proxyUse}
	}
	if _, err := parseHead(head); err != nil {
		return to, err // the HTTP server would refuse it too, but it has no host to name
	}
	return to, to.set(u.Host, 80)
}

// connect reads the target of a CONNECT. Old clients send no Host header; another one
// than the target would be a second destination.
func (to *proxyTarget) connect(target string, hosts []string) error {
	to.voice.tunnel = true
	if err := to.set(target, 0); err != nil {
		return err
	}
	switch len(hosts) {
	case 0:
		return nil
	case 1:
		name, port, ok := splitAuthority(hosts[0], to.port)
		if !ok || !strings.EqualFold(name, to.name) || port != to.port {
			return proxyError{reasonHostMismatch, "host header differs from the request target"}
		}
		return nil
	default:
		return headError("more than one host header")
	}
}

// set reads NAME:PORT; absent is the port if there is none.
func (to *proxyTarget) set(authority string, absent uint16) error {
	name, port, ok := splitAuthority(authority, absent)
	bracketed := strings.HasPrefix(authority, "[")
	if a, err := netip.ParseAddr(name); bracketed && (err != nil || !a.Is6()) {
		ok = false
	}
	if !ok || name == "" || port == 0 {
		return headError("request target is not NAME:PORT")
	}
	to.name, to.port = name, port
	return nil
}
