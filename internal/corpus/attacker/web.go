package attacker

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// request writes HTTP requests by hand and returns the status of each answer.
func request(addr string, raws ...string) ([]int, error) {
	c, err := net.DialTimeout("tcp", addr, netPatience)
	if err != nil {
		return nil, slow(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(netPatience))
	br := bufio.NewReader(c)
	var codes []int
	for _, raw := range raws {
		if _, err := io.WriteString(c, raw); err != nil {
			return codes, err
		}
		r, err := http.ReadResponse(br, nil)
		if err != nil {
			return codes, slow(err)
		}
		io.Copy(io.Discard, r.Body)
		r.Body.Close()
		codes = append(codes, r.StatusCode)
	}
	return codes, nil
}

// answers writes one text and returns the status of every answer.
func answers(addr, raw string) ([]int, error) {
	c, err := net.DialTimeout("tcp", addr, netPatience)
	if err != nil {
		return nil, slow(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(netPatience))
	io.WriteString(c, raw)
	c.(*net.TCPConn).CloseWrite() // there is no more to wait for
	br := bufio.NewReader(c)
	var codes []int
	for {
		r, err := http.ReadResponse(br, nil)
		if err != nil {
			return codes, slow(err)
		}
		_, err = io.Copy(io.Discard, r.Body)
		r.Body.Close()
		codes = append(codes, r.StatusCode)
		if err != nil {
			return codes, slow(err)
		}
	}
}

// ok succeeds if the last answer is 200.
func ok(addr string, raws ...string) error {
	codes, err := request(addr, raws...)
	if err != nil {
		return err
	}
	if last := codes[len(codes)-1]; last != 200 {
		return fmt.Errorf("status %d", last)
	}
	return nil
}

// keep returns a request that keeps the connection open.
func keep(host string) string { return "GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n" }

// authority returns an attack by requests to an allowed host. The last must not be served;
// the host's server checks its requests.
func authority(id, how, source string, raws func(e *Env) [][]string) Attack {
	return Attack{ID: id, How: how, Defence: "each request's authority is the name of its connection, or it is refused; requests are parsed strictly", Source: source, Judge: ByHost,
		Control: func(e *Env) error { return ok(e.Open, keep(e.Open), keep(e.Open), keep(e.Open)) },
		Try: func(e *Env) error {
			var tries []try
			for i, r := range raws(e) {
				tries = append(tries, try{fmt.Sprint(i), func() error { return ok(e.Open, r...) }})
			}
			return e.atOnce(tries...)
		}}
}

func web() []Attack {
	return family("http", "W3",
		authority("other-host", "Ask an allowed host's connection for another host, allowed or not, or another port.", "microsandbox#709, OpenSandbox#1193", func(e *Env) [][]string {
			return [][]string{{keep("evil.test")}, {keep(e.Second)}, {keep(hostOf(e.Open) + ":1")}, {keep("evil.test." + hostOf(e.Open))}, {keep(hostOf(e.Open) + ".evil.test")}}
		}),
		authority("second-request", "Behave in the first request of a connection, and ask for another host in the next.", "microsandbox#709", func(e *Env) [][]string {
			return [][]string{{keep(e.Open), keep("evil.test")}, {keep(e.Open), keep(e.Second)}, {keep(e.Open), keep(e.Open), "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n"}}
		}),
		authority("absolute-target", "Name another host in the request's target.", "OpenShell#637", func(e *Env) [][]string {
			h := "\r\nHost: " + e.Open + "\r\n\r\n"
			return [][]string{{"GET http://evil.test/ HTTP/1.1" + h}, {"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n"}, {"GET //evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n"}, {"GET http://" + e.Open + "@evil.test/ HTTP/1.1" + h}}
		}),
		authority("two-hosts", "Give two hosts, none, one with a user, one with a blank, one that is folded.", "OpenShell#637", func(e *Env) [][]string {
			g := "GET / HTTP/1.1\r\n"
			return [][]string{{g + "Host: " + e.Open + "\r\nHost: evil.test\r\n\r\n"}, {g + "\r\n"}, {keep(e.Open + "@evil.test")}, {keep(e.Open + " evil.test")}, {keep("evil.test," + e.Open)}, {g + "Host: " + e.Open + "\r\n evil.test\r\n\r\n"}, {g + "Host : evil.test\r\n\r\n"}}
		}),
		authority("framing", "Hide a second request in ambiguous lengths, chunks and line ends.", "OpenShell#637", func(e *Env) [][]string {
			p, h := "POST / HTTP/1.1\r\nHost: "+e.Open+"\r\n", "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"
			return [][]string{
				{p + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + h}, {p + "Content-Length: 0\r\nContent-Length: 40\r\n\r\n" + h},
				{p + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + h}, {p + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + h}, {p + "Content-Length: +0\r\n\r\n" + h},
				{"GET / HTTP/1.1\nHost: " + e.Open + "\n\n"}, {"GET / HTTP/1.1\rHost: evil.test\r\r"}, {p + "Content-Length : 0\r\n\r\n" + h},
			}
		}),
		Attack{ID: "broken-body", How: "Hide a second request behind a body whose chunks are malformed.", Defence: "bodies are read and written anew; after a broken one the connection ends", Source: "OpenShell#637", Judge: ByHost,
			Control: func(e *Env) error {
				return ok(e.Open, "POST / HTTP/1.1\r\nHost: "+e.Open+"\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n")
			},
			Try: func(e *Env) error {
				return e.atOnce(each([]string{"0x0\r\n\r\n", "-1\r\n\r\n", "1\r\nxy\r\n0\r\n\r\n", "0\n\n", "ffffffffffffffff1\r\nx", "0;\n\r\n"}, func(chunks string) error {
					// The first answer may be the server's: it had the head of a good
					// request. The hidden request's answer would be the second.
					codes, err := answers(e.Open, "POST / HTTP/1.1\r\nHost: "+e.Open+"\r\nTransfer-Encoding: chunked\r\n\r\n"+chunks+keep("evil.test"))
					if len(codes) > 1 && codes[1] == 200 {
						return nil
					}
					return errors.Join(err, fmt.Errorf("answers %v", codes))
				})...)
			}},
		authority("tunnel", "Ask for a tunnel with CONNECT, or for an upgrade to another protocol.", "claude-code#40213, OpenShell#643", func(e *Env) [][]string {
			return [][]string{{"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n"}, {"CONNECT " + e.Open + " HTTP/1.1\r\nHost: " + e.Open + "\r\n\r\n"},
				{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}, {"GET / HTTP/1.1\r\nHost: evil.test\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"}}
		}),
		Attack{ID: "other-protocols", How: "Speak ssh, a database's protocol and garbage on a route for the web.", Defence: "what is spoken must be what the route is for", Source: "sbx-releases#121", Judge: ByHost, Control: getOpen,
			Try: func(e *Env) error {
				return e.atOnce(each([]string{"SSH-2.0-OpenSSH_9.2\r\n", "\x00\x01\x02\x03garbage", "\x00\x00\x00\x08\x04\xd2\x16\x2f", "EHLO x\r\n", "*1\r\n$4\r\nPING\r\n"}, func(s string) error {
					// Whatever the gateway says, it must not be the server's word.
					c, err := net.DialTimeout("tcp", e.Open, netPatience)
					if err != nil {
						return slow(err)
					}
					defer c.Close()
					c.SetDeadline(time.Now().Add(netPatience))
					io.WriteString(c, s)
					c.(*net.TCPConn).CloseWrite() // there is no more to wait for
					b, err := io.ReadAll(c)
					if strings.Contains(string(b), "served") {
						return nil
					}
					return errors.Join(slow(err), fmt.Errorf("answer %.20q", b))
				})...)
			}},
		Attack{ID: "proxies", How: "Use the gateway or a synthetic address as a proxy, on the usual ports.", Defence: "the gateway is no proxy, and an address that stands for no name leads nowhere", Source: "claude-code#40213", Judge: ByWord, Control: getOpen,
			Try: func(e *Env) error {
				var tries []try
				for _, a := range []string{"198.18.0.3:3128", "198.18.0.3:8080", "198.18.0.3:1080", "198.18.0.3:80", "198.18.77.77:80", "198.18.0.3:443"} {
					tries = append(tries, try{a, func() error { return ok(a, "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n") }}, try{"own " + a, func() error { return ok(a, keep(e.Open)) }})
				}
				return e.atOnce(tries...)
			}},
		reach("other-ports", "Connect to ports of an allowed host that the route doesn't name.", "a route is a name and a port", "sbx-releases#121", func(e *Env) []string {
			h := hostOf(e.Open)
			return []string{h + ":1", h + ":22", h + ":25", h + ":53", h + ":6667", h + ":65535"}
		}),
	)
}

// hello makes a TLS connection to addr for a name and asks for a page.
func hello(addr, name string) error {
	plain, err := net.DialTimeout("tcp", addr, netPatience)
	if err != nil {
		return slow(err)
	}
	defer plain.Close()
	plain.SetDeadline(time.Now().Add(netPatience))
	// Whose certificate it shows is not what is looked at here.
	c := tls.Client(plain, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if _, err := io.WriteString(c, get(net.JoinHostPort(cmp.Or(name, "127.0.0.1"), portOf(addr)))); err != nil {
		return slow(err)
	}
	b := make([]byte, 12)
	if _, err := io.ReadFull(c, b); err != nil {
		return slow(err)
	}
	if string(b) != "HTTP/1.1 200" {
		return fmt.Errorf("answer %q", b)
	}
	return nil
}

func serverNames(id, how, source string, tries func(e *Env) []try) Attack {
	return Attack{ID: id, How: how, Defence: "the server name is the name of the connection, or it is refused", Source: source, Judge: ByHost,
		Control: func(e *Env) error {
			return errors.Join(hello(e.TLS, hostOf(e.TLS)), hello(e.TLS, strings.ToUpper(hostOf(e.TLS))))
		},
		Try: func(e *Env) error { return e.atOnce(tries(e)...) }}
}

func resolved(host string) (string, error) {
	a, err := net.LookupHost(host)
	if err != nil {
		return "", cannot("%v", err)
	}
	return a[0], nil
}

func tlsAttacks() []Attack {
	return family("tls", "W3",
		serverNames("other-name", "Connect to an allowed host and give another server name, allowed or not (domain fronting).", "microsandbox#709", func(e *Env) []try {
			return each([]string{"evil.test", hostOf(e.TLS2), "x." + hostOf(e.TLS), hostOf(e.TLS) + ".evil.test", "evil" + hostOf(e.TLS)}, func(n string) error { return hello(e.TLS, n) })
		}),
		serverNames("no-name", "Give no server name.", "generic", func(e *Env) []try {
			return []try{{"none", func() error { return hello(e.TLS, "") }}, {"address", func() error { return hello(e.TLS, "198.18.0.5") }}}
		}),
		serverNames("other-address", "Give an allowed server name on a connection to an address of one's choice.", "microsandbox#694", func(e *Env) []try {
			host, port := hostOf(e.TLS), portOf(e.TLS)
			return []try{
				{"another's", func() error {
					a, err := resolved(hostOf(e.TLS2))
					if err != nil {
						return err
					}
					return hello(net.JoinHostPort(a, port), host)
				}},
				{"nobody's", func() error { return hello(net.JoinHostPort("198.18.9.9", port), host) }},
				{"the real one", func() error { return hello(net.JoinHostPort("127.0.0.1", port), host) }},
				{"public", func() error { return hello("1.1.1.1:443", host) }},
			}
		}),
		serverNames("broken-handshake", "Send half a greeting, one in pieces with another name, or data before any.", "generic", func(e *Env) []try {
			say := func(s string) func() error {
				return func() error {
					c, err := net.DialTimeout("tcp", e.TLS, netPatience)
					if err != nil {
						return slow(err)
					}
					defer c.Close()
					c.SetDeadline(time.Now().Add(netPatience))
					io.WriteString(c, s)
					c.(*net.TCPConn).CloseWrite()
					b := make([]byte, 1)
					// The gateway may say why not; a handshake is the server's word.
					if _, err = c.Read(b); err == nil && b[0] != 22 {
						err = fmt.Errorf("answer %q", b)
					}
					return slow(err)
				}
			}
			return []try{{"half", say("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")}, {"data", say("\x17\x03\x03\x00\x05hello")}, {"ssl 2", say("\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10")}, {"plain", say("GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n")}}
		}),
	)
}
