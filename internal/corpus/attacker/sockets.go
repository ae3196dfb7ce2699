package attacker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// meet connects to a Unix socket of its own, as the control of attacks on the host's.
func meet(network, addr string) error {
	if network == "unixgram" {
		pc, err := net.ListenPacket(network, addr)
		if err != nil {
			return err
		}
		defer pc.Close()
		return dialUnix(network, addr)
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		return err
	}
	defer l.Close()
	return dialUnix(network, addr)
}

// reachUnix prints for each socket whether it was reached, first for one of its own.
func reachUnix(paths []string) error {
	if err := meet("unix", "/tmp/own-unix.sock"); err != nil {
		return cannot("%v", err)
	}
	for _, p := range paths {
		if err := dialUnix("unix", p); err != nil {
			fmt.Printf("%s\t%v\n", p, err)
		} else {
			fmt.Printf("%s\tdone\n", p)
		}
	}
	return nil
}

func dialUnix(network, addr string) error {
	c, err := net.Dial(network, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte("x"))
	return err
}

func ownName(s string) string { return fmt.Sprintf("@own-%d-%s", os.Getpid(), s) }

func makeSocket(family, kind, proto int) func() error {
	return func() error { return makeFD(unix.Socket(family, kind, proto)) }
}

func socketKinds(id, how, defence string, tries ...try) Attack {
	return Attack{ID: id, Promise: "S2", How: how, Defence: defence, Judge: ByWord,
		Control: func(*Env) error { return makeSocket(unix.AF_INET, unix.SOCK_STREAM, 0)() },
		Try:     func(e *Env) error { return e.any(tries...) }}
}

const noHostSocket = "the kernel inside has no host sockets; the gofer opens none"

func sockets() []Attack {
	return family("sockets", "S2", slices.Concat(hostSockets(), descriptors(), socketFamilies())...)
}

// hostSockets returns the attacks that connect to Unix sockets of the host.
func hostSockets() []Attack {
	return []Attack{
		{ID: "path", How: "Connect to the host's Unix sockets that lie in the workspace and in a mount, streams and datagrams.", Defence: noHostSocket, Source: "Kilo#11650, OpenHands#1691", Judge: ByHost,
			Control: func(*Env) error { return meet("unix", "/tmp/own.sock") },
			Try: func(e *Env) error {
				return e.any(append(each(e.HostSockets, func(p string) error { return dialUnix("unix", p) }), each(e.HostSockets, func(p string) error { return dialUnix("unixgram", p) })...)...)
			}},
		{ID: "through-links", How: "Reach them through links, /proc/self/root and short paths of open directories.", Defence: noHostSocket, Source: "Kilo#11650", Judge: ByHost,
			Control: func(*Env) error { return meet("unix", "/tmp/own2.sock") },
			Try: func(e *Env) error {
				return e.any(each(e.HostSockets, func(p string) error {
					l := "/tmp/l" + strings.ReplaceAll(p, "/", "_")
					os.Remove(l)
					if err := os.Symlink("/proc/self/root"+p, l); err != nil {
						return cannot("%v", err)
					}
					return dialUnix("unix", l)
				})...)
			}},
		{ID: "abstract", How: "Connect to abstract sockets, which belong to a network namespace: streams, datagrams, packets.", Defence: "a network namespace and a kernel of its own", Source: "CVE-2020-15257 (containerd)", Judge: ByHost,
			Control: func(*Env) error {
				return errors.Join(meet("unix", ownName("s")), meet("unixgram", ownName("d")), meet("unixpacket", ownName("p")))
			},
			Try: func(e *Env) error {
				return e.any(try{"stream", func() error { return dialUnix("unix", "@"+e.Abstract) }}, try{"datagram", func() error { return dialUnix("unixgram", "@"+e.Abstract+"-dgram") }},
					try{"packet", func() error { return dialUnix("unixpacket", "@"+e.Abstract) }})
			}},
		{ID: "daemons", How: "Connect to the sockets of Docker, containerd, D-Bus, systemd, X11, Wayland and agents for keys.", Defence: "none is mounted", Source: "OpenHands#1691", Judge: ByWord,
			Control: func(*Env) error { return meet("unix", "/tmp/own3.sock") },
			Try: func(e *Env) error {
				paths := []string{"/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/systemd/journal/socket", "/dev/log",
					"/run/user/0/bus", "/run/user/1000/bus", "/run/podman/podman.sock", "/tmp/.X11-unix/X0", "/run/user/1000/wayland-0", "/run/user/1000/pipewire-0", "/run/snapd.socket", "@/tmp/.X11-unix/X0"}
				agents, _ := filepath.Glob("/tmp/ssh-*/agent.*")
				for _, v := range []string{"SSH_AUTH_SOCK", "DOCKER_HOST", "DBUS_SESSION_BUS_ADDRESS"} {
					if s := os.Getenv(v); s != "" {
						agents = append(agents, strings.TrimPrefix(strings.TrimPrefix(s, "unix://"), "unix:path="))
					}
				}
				paths = append(paths, agents...)
				return e.any(append(each(paths, func(p string) error { return dialUnix("unix", p) }), each(paths, func(p string) error { return dialUnix("unixgram", p) })...)...)
			}},
		{ID: "carboy-itself", How: "Find the control socket of carboy's own run and talk to it.", Defence: "it is on the host, and nothing inside is served by it", Source: "leash", Judge: ByWord,
			Control: func(*Env) error { return meet("unix", "/tmp/own4.sock") },
			Try: func(e *Env) error {
				var paths []string
				for _, g := range []string{"/run/user/*/carboy/*", "/tmp/carboy*/*", "/tmp/carboy*/carboy/*", "/run/carboy/*", "/.carboy/*"} {
					found, _ := filepath.Glob(g)
					paths = append(paths, found...)
				}
				paths = append(paths, "/run/user/0/carboy/control.sock", "/tmp/carboy-0/control.sock")
				return e.any(each(paths, func(p string) error { return dialUnix("unix", p) })...)
			}},
	}
}

// descriptors returns the attacks that pass descriptors on, or use descriptors that were
// left open.
func descriptors() []Attack {
	return []Attack{
		{ID: "pass-descriptors", How: "Hand an open directory to a peer on the host, and take descriptors from one (SCM_RIGHTS).", Defence: "no peer on the host can be reached", Judge: ByHost,
			Control: passToSelf,
			Try: func(e *Env) error {
				targets := append([]string{"@" + e.Abstract}, e.HostSockets...)
				return e.any(each(targets, func(a string) error {
					c, err := net.Dial("unix", a)
					if err != nil {
						return err
					}
					defer c.Close()
					_, _, err = c.(*net.UnixConn).WriteMsgUnix([]byte("x"), unix.UnixRights(0), nil)
					return err
				})...)
			}},
		{ID: "inherited-descriptors", How: "Use descriptors that carboy or the kernel left open in the command.", Defence: "the command gets three streams of its own", Judge: ByWord,
			Control: func(*Env) error { return makeFD(unix.Dup(0)) },
			Try: func(e *Env) error {
				for fd := 3; fd < 1024; fd++ {
					to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
					if err != nil {
						continue
					}
					// The language's own, and what this program opened.
					if strings.HasPrefix(to, "anon_inode:") || strings.HasPrefix(to, "pipe:") || strings.HasPrefix(to, "/proc/") || strings.HasSuffix(to, "/cpu.max") {
						continue
					}
					e.bring([]byte(to))
					return nil
				}
				return errors.New("only its own")
			}},
	}
}

// socketFamilies returns the attacks that open sockets of other families and kinds.
func socketFamilies() []Attack {
	return []Attack{
		socketKinds("vsock", "Talk to the hypervisor's host over vsock.", "no such family", try{"stream", makeSocket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)}, try{"datagram", makeSocket(unix.AF_VSOCK, unix.SOCK_DGRAM, 0)},
			try{"connect", func() error {
				fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				return unix.Connect(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_HOST, Port: 22})
			}}),
		socketKinds("odd-families", "Open sockets of families through which kernels were broken: AF_ALG, XDP, TIPC, KCM, CAN, Bluetooth, RDS, AX.25.", "no such families", each([]int{unix.AF_ALG, unix.AF_XDP, unix.AF_TIPC, unix.AF_KCM, unix.AF_CAN, unix.AF_BLUETOOTH, unix.AF_RDS, unix.AF_AX25, unix.AF_NFC, unix.AF_PPPOX, unix.AF_SMC},
			func(f int) error {
				for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET, unix.SOCK_RAW} {
					if err := makeSocket(f, kind, 0)(); err == nil {
						return nil
					}
				}
				return unix.EAFNOSUPPORT
			})...),
		socketKinds("netlink", "Speak to the kernel's audit, firewall, crypto, uevent and diagnosis over netlink.", "only routes and events of the inner kernel", each([]int{unix.NETLINK_AUDIT, unix.NETLINK_NETFILTER, unix.NETLINK_CRYPTO, unix.NETLINK_XFRM, unix.NETLINK_SELINUX, unix.NETLINK_CONNECTOR, unix.NETLINK_GENERIC, unix.NETLINK_SOCK_DIAG},
			func(p int) error { return makeSocket(unix.AF_NETLINK, unix.SOCK_RAW, p)() })...),
		socketKinds("raw", "Open raw and packet sockets.", "no right to, and the inner kernel is told to have none", try{"ip", makeSocket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)}, try{"icmp", makeSocket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)},
			try{"tcp", makeSocket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP)}, try{"ip6", makeSocket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW)}, try{"packet", makeSocket(unix.AF_PACKET, unix.SOCK_RAW, 0x300)}, try{"packet datagram", makeSocket(unix.AF_PACKET, unix.SOCK_DGRAM, 0x300)}),
	}
}

func passToSelf(*Env) error {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	if err := unix.Sendmsg(p[0], []byte("x"), unix.UnixRights(0), nil, 0); err != nil {
		return err
	}
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(p[1], make([]byte, 1), oob, 0)
	if err != nil {
		return err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 {
		return fmt.Errorf("%d messages, %v", len(msgs), err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	for _, fd := range fds {
		unix.Close(fd)
	}
	return err
}

// Netlink by hand: no tool is needed, and every change asks for what is so
// already, or would touch the loopback alone.

func netlink(kind uint16, flags uint16, body []byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
	le := binary.NativeEndian
	msg := le.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	msg = le.AppendUint16(msg, kind)
	msg = le.AppendUint16(msg, unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
	msg = le.AppendUint32(msg, 1)
	msg = le.AppendUint32(msg, 0)
	if err := unix.Sendto(fd, append(msg, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	b := make([]byte, 64<<10)
	n, _, err := unix.Recvfrom(fd, b, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 {
		return errors.New("a short answer")
	}
	if le.Uint16(b[4:]) != unix.NLMSG_ERROR {
		return nil
	}
	if code := int32(le.Uint32(b[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

func attr(kind uint16, data []byte) []byte {
	le := binary.NativeEndian
	b := le.AppendUint16(nil, uint16(4+len(data)))
	b = append(le.AppendUint16(b, kind), data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func linkMessage(index int32, attrs ...[]byte) []byte {
	le := binary.NativeEndian
	b := append([]byte{0, 0, 0, 0}, le.AppendUint32(nil, uint32(index))...)
	b = append(b, make([]byte, 8)...) // no flag is to change
	return append(b, join(attrs...)...)
}

func addressMessage(family byte, prefix byte, index int32, ip net.IP) []byte {
	b := binary.NativeEndian.AppendUint32([]byte{family, prefix, 0, 0}, uint32(index))
	return join(b, attr(unix.IFA_LOCAL, ip), attr(unix.IFA_ADDRESS, ip))
}

func routeMessage(family, prefix byte, dst net.IP, out int32) []byte {
	b := []byte{family, prefix, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_STATIC, unix.RT_SCOPE_LINK, unix.RTN_UNICAST, 0, 0, 0, 0}
	return join(b, attr(unix.RTA_DST, dst), attr(unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(out))))
}

func makeLink(kind string) error {
	info := attr(unix.IFLA_INFO_KIND, []byte(kind))
	return netlink(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, linkMessage(0, attr(unix.IFLA_IFNAME, []byte("cbtest0\x00")), attr(unix.IFLA_LINKINFO, info)))
}

func card() (*net.Interface, error) {
	i, err := net.InterfaceByName("eth0")
	if err != nil {
		return nil, cannot("%v", err)
	}
	return i, nil
}

// changeNetwork tries every change, by netlink and by ioctl.
func changeNetwork() error {
	c, err := card()
	if err != nil {
		return err
	}
	i := int32(c.Index)
	e := &Env{}
	tries := []try{
		{"address", func() error {
			return netlink(unix.RTM_NEWADDR, unix.NLM_F_CREATE, addressMessage(unix.AF_INET, 32, i, net.IPv4(203, 0, 113, 77).To4()))
		}},
		{"address 6", func() error {
			return netlink(unix.RTM_NEWADDR, unix.NLM_F_CREATE, addressMessage(unix.AF_INET6, 128, i, net.ParseIP("2001:db8::77")))
		}},
		{"route", func() error {
			return netlink(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, routeMessage(unix.AF_INET, 32, net.IPv4(203, 0, 113, 78).To4(), i))
		}},
		{"route 6", func() error {
			return netlink(unix.RTM_NEWROUTE, unix.NLM_F_CREATE, routeMessage(unix.AF_INET6, 128, net.ParseIP("2001:db8::78"), i))
		}},
		{"mtu", func() error {
			return netlink(unix.RTM_SETLINK, 0, linkMessage(i, attr(unix.IFLA_MTU, binary.NativeEndian.AppendUint32(nil, uint32(c.MTU)))))
		}},
		{"hardware address", func() error {
			return netlink(unix.RTM_SETLINK, 0, linkMessage(i, attr(unix.IFLA_ADDRESS, c.HardwareAddr)))
		}},
	}
	for _, kind := range []string{"veth", "dummy", "vxlan", "wireguard", "tun", "ipvlan"} {
		tries = append(tries, try{kind, func() error { return makeLink(kind) }})
	}
	for name, req := range map[string]uint{"ioctl address": unix.SIOCSIFADDR, "ioctl flags": unix.SIOCSIFFLAGS, "ioctl mtu": unix.SIOCSIFMTU} {
		tries = append(tries, try{name, func() error { return setByIoctl(req, c.MTU) }})
	}
	return e.any(tries...)
}

func setByIoctl(req uint, mtu int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("eth0")
	if err != nil {
		return cannot("%v", err)
	}
	switch req {
	case unix.SIOCSIFADDR:
		err = r.SetInet4Addr([]byte{203, 0, 113, 79})
	case unix.SIOCSIFMTU:
		r.SetUint32(uint32(mtu))
	case unix.SIOCSIFFLAGS:
		r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	}
	if err != nil {
		return cannot("%v", err)
	}
	return unix.IoctlIfreq(fd, req, r)
}

func tunDevice() error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("cbtest0")
	if err != nil {
		return cannot("%v", err)
	}
	r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	return unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
}

func rawSocket([]string) error {
	if fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0x300); err == nil {
		return unix.Close(fd)
	}
	return makeFD(unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW))
}

func seeCards(*Env) error {
	ifs, err := net.Interfaces()
	if err == nil && len(ifs) != 2 {
		err = fmt.Errorf("%d interfaces", len(ifs))
	}
	return err
}

func networkCard() []Attack {
	return family("network-card", "S2",
		Attack{ID: "change", How: "Change addresses, routes and the card, add tunnels and pairs, by netlink and ioctl.", Defence: "no right over the network inside", Judge: ByWord, Control: seeCards, Try: func(*Env) error { return changeNetwork() }},
		Attack{ID: "change-as-root", How: "The same as root of a user namespace of one's own.", Defence: "rights over the card belong to the namespace that it is in", Judge: ByWord,
			Control: func(e *Env) error { return e.tool(asRoot(), "nothing") },
			Try:     func(e *Env) error { return e.tool(asRoot(), "network") }},
		Attack{ID: "tunnel", How: "Make a tunnel device.", Defence: "no such device", Judge: ByWord, Control: seeCards, Try: func(*Env) error { return tunDevice() }},
		Attack{ID: "second-card", How: "Look for a card, a route or a neighbour beyond the one wire.", Defence: "one card, whose cable ends in the gateway", Judge: ByWord, Control: seeCards,
			Try: func(*Env) error {
				ifs, err := net.Interfaces()
				if err != nil {
					return cannot("%v", err)
				}
				for _, i := range ifs {
					if i.Name != "lo" && i.Name != "eth0" {
						return nil
					}
					addrs, _ := i.Addrs()
					for _, a := range addrs {
						n, ok := a.(*net.IPNet)
						if ok && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() && !strings.HasPrefix(n.IP.String(), "198.1") && !strings.HasPrefix(n.IP.String(), "fd63:6172") {
							return nil
						}
					}
				}
				return errors.New("only eth0 with its own addresses")
			}},
	)
}
