// Package rtnet sets up a network card by rtnetlink: its state, addresses and routes. It
// acts in the network namespace of the calling thread.
package rtnet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Configure gives the card its addresses (with prefix lengths), sets it up, and makes the
// gateways its default routes. The card gets no other address: no link-local one either.
func Configure(name string, mtu uint32, addrs, gateways []string) error {
	for _, kv := range [][2]string{{"disable_ipv6", "0"}, {"addr_gen_mode", "1"}, {"accept_ra", "0"}, {"accept_dad", "0"}, {"router_solicitations", "0"}} {
		// Without IPv6 in the kernel there are none.
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/"+kv[0], []byte(kv[1]), 0)
	}
	index, err := indexOf(name)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a)
		if err != nil {
			return err
		}
		if err := addAddr(index, p); err != nil {
			return fmt.Errorf("address %s: %w", p, err)
		}
	}
	if err := Up(name, mtu); err != nil {
		return err
	}
	for _, g := range gateways {
		a, err := netip.ParseAddr(g)
		if err != nil {
			return err
		}
		if err := addRoute(index, a); err != nil {
			return fmt.Errorf("route by %s: %w", a, err)
		}
	}
	return nil
}

// Up sets a card up, with the MTU unless that is 0.
func Up(name string, mtu uint32) error {
	index, err := indexOf(name)
	if err != nil {
		return err
	}
	// struct ifinfomsg
	b := []byte{unix.AF_UNSPEC, 0, 0, 0}
	b = binary.NativeEndian.AppendUint32(b, uint32(index))
	b = binary.NativeEndian.AppendUint32(b, unix.IFF_UP)
	b = binary.NativeEndian.AppendUint32(b, unix.IFF_UP)
	if mtu > 0 {
		b = attribute(b, unix.IFLA_MTU, binary.NativeEndian.AppendUint32(nil, mtu))
	}
	if err := call(unix.RTM_NEWLINK, 0, b); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

func indexOf(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, r); err != nil {
		return 0, fmt.Errorf("card %s: %w", name, err)
	}
	return int(r.Uint32()), nil
}

func addAddr(index int, p netip.Prefix) error {
	// struct ifaddrmsg
	const noDAD = 0x02 // IFA_F_NODAD: nobody else is on the wire
	b := []byte{family(p.Addr()), byte(p.Bits()), noDAD, unix.RT_SCOPE_UNIVERSE}
	b = binary.NativeEndian.AppendUint32(b, uint32(index))
	b = attribute(b, unix.IFA_LOCAL, p.Addr().AsSlice())
	b = attribute(b, unix.IFA_ADDRESS, p.Addr().AsSlice())
	return call(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, b)
}

func addRoute(index int, gateway netip.Addr) error {
	// struct rtmsg
	b := []byte{family(gateway), 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST, 0, 0, 0, 0}
	b = attribute(b, unix.RTA_GATEWAY, gateway.AsSlice())
	b = attribute(b, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(index)))
	return call(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, b)
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// attribute appends a struct rtattr, padded to 4 bytes.
func attribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// call sends one request and waits for the kernel's acknowledgement.
func call(kind uint16, flags uint16, body []byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	m := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
	m = binary.NativeEndian.AppendUint32(m, 1) // sequence
	m = binary.NativeEndian.AppendUint32(m, 0)
	m = append(m, body...)
	if err := unix.Sendto(fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	in := make([]byte, 8192)
	n, _, err := unix.Recvfrom(fd, in, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 || binary.NativeEndian.Uint16(in[4:]) != unix.NLMSG_ERROR {
		return fmt.Errorf("rtnetlink: an answer of %d bytes", n)
	}
	if code := int32(binary.NativeEndian.Uint32(in[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}
