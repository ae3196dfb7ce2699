package policy

import "net/netip"

// Class is the kind of network that an address belongs to. The zero value is unknown,
// and nothing permits it.
type Class uint8

// Classes of addresses. By default only Public may be dialled.
const (
	ClassUnknown       Class = iota
	classPublic              // globally reachable unicast
	ClassLoopback            // 127.0.0.0/8, ::1
	ClassPrivate             // RFC 1918
	ClassUniqueLocal         // fc00::/7
	classLinkLocal           // 169.254.0.0/16, fe80::/10, the old fec0::/10
	classShared              // 100.64.0.0/10, carrier-grade NAT (RFC 6598)
	classMetadata            // a cloud's metadata service
	classMulticast           // 224.0.0.0/4, ff00::/8
	classBroadcast           // 255.255.255.255
	classUnspecified         // 0.0.0.0/8, ::
	classDocumentation       // examples in texts (RFC 5737, 3849, 9637)
	classBenchmark           // 198.18.0.0/15, 2001:2::/48: also our own synthetic range
	classTranslated          // an IPv4 address inside NAT64, 6to4, Teredo, ISATAP or compatible form
	classReserved            // every other special or unassigned range
)

var classNames = [...]string{
	"unknown", "public", "loopback", "private", "unique-local", "link-local",
	"shared", "metadata", "multicast", "broadcast", "unspecified",
	"documentation", "benchmark", "translated", "reserved",
}

func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return classNames[ClassUnknown]
}

// Permits reports whether a name may resolve to an address of this class. private is
// the setting of the route. Metadata services are refused even on a private route:
// they give the machine's credentials to any client, and a name can be made to resolve
// to them at any time. Only a literal route reaches them.
func (c Class) Permits(private bool) bool {
	switch c {
	case classPublic:
		return true
	case ClassLoopback, ClassPrivate, ClassUniqueLocal, classLinkLocal, classShared,
		classDocumentation, classBenchmark, classTranslated:
		return private
	default:
		return false
	}
}

// metadata lists the addresses where clouds serve credentials to the machine. Those in
// 169.254.0.0/16 are listed too, because a private route would otherwise allow them.
var metadata = map[netip.Addr]bool{
	netip.MustParseAddr("169.254.169.254"): true, // AWS, GCP, Azure, OpenStack, DigitalOcean, Oracle
	netip.MustParseAddr("169.254.169.253"): true, // AWS resolver
	netip.MustParseAddr("169.254.169.123"): true, // AWS time
	netip.MustParseAddr("169.254.170.2"):   true, // AWS ECS task credentials
	netip.MustParseAddr("169.254.170.23"):  true, // AWS EKS pod identity
	netip.MustParseAddr("169.254.0.23"):    true, // Tencent
	netip.MustParseAddr("100.100.100.200"): true, // Alibaba
	netip.MustParseAddr("192.0.0.192"):     true, // Oracle, older
	netip.MustParseAddr("168.63.129.16"):   true, // Azure wire server
	netip.MustParseAddr("fd00:ec2::254"):   true, // AWS
	netip.MustParseAddr("fd00:ec2::23"):    true, // AWS EKS pod identity
	netip.MustParseAddr("fd00:ec2::253"):   true, // AWS resolver
	netip.MustParseAddr("fd20:ce::254"):    true, // GCP
	netip.MustParseAddr("fe80::a9fe:a9fe"): true, // OpenStack
	netip.MustParseAddr("fd00:42::42"):     true, // Scaleway
	netip.MustParseAddr("169.254.42.42"):   true, // Scaleway
}

type classRange struct {
	prefix netip.Prefix
	class  Class
}

func ranges(pairs ...any) []classRange {
	var out []classRange
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, classRange{netip.MustParsePrefix(pairs[i].(string)), pairs[i+1].(Class)})
	}
	return out
}

// special4 follows the IANA IPv4 special-purpose registry; the first match
// counts.
var special4 = ranges(
	"255.255.255.255/32", classBroadcast,
	"0.0.0.0/8", classUnspecified,
	"10.0.0.0/8", ClassPrivate,
	"100.64.0.0/10", classShared,
	"127.0.0.0/8", ClassLoopback,
	"169.254.0.0/16", classLinkLocal,
	"172.16.0.0/12", ClassPrivate,
	"192.0.0.0/24", classReserved,
	"192.0.2.0/24", classDocumentation,
	"192.88.99.0/24", classTranslated, // 6to4 relays (RFC 7526)
	"192.168.0.0/16", ClassPrivate,
	"198.18.0.0/15", classBenchmark,
	"198.51.100.0/24", classDocumentation,
	"203.0.113.0/24", classDocumentation,
	"224.0.0.0/4", classMulticast,
	"240.0.0.0/4", classReserved,
)

// special6 follows the IANA IPv6 special-purpose registry. Addresses outside the list,
// which includes 2000::/3, are not assigned and count as reserved.
var special6 = ranges(
	"::/128", classUnspecified,
	"::1/128", ClassLoopback,
	"64:ff9b::/96", classTranslated, // NAT64 (RFC 6052)
	"64:ff9b:1::/48", classTranslated, // local NAT64 (RFC 8215)
	"::ffff:0:0:0/96", classTranslated, // SIIT (RFC 7915)
	"::/96", classTranslated, // IPv4-compatible, deprecated
	"2001::/32", classTranslated, // Teredo
	"2001:2::/48", classBenchmark,
	"2001:db8::/32", classDocumentation,
	"2001::/23", classReserved, // ORCHID and other protocol assignments
	"2002::/16", classTranslated, // 6to4
	"3fff::/20", classDocumentation,
	"5f00::/16", classReserved, // segment routing
	"fc00::/7", ClassUniqueLocal,
	"fe80::/10", classLinkLocal,
	"fec0::/10", classLinkLocal,
	"ff00::/8", classMulticast,
	"2000::/3", classPublic,
)

// Classify returns the class of addr. An IPv4-mapped address has the class of its IPv4
// address, since a socket would reach that. An address that embeds a metadata address
// in another transition form is ClassMetadata.
func Classify(addr netip.Addr) Class {
	if !addr.IsValid() {
		return ClassUnknown
	}
	addr = addr.WithZone("").Unmap()
	if metadata[addr] {
		return classMetadata
	}
	if addr.Is4() {
		return lookup(special4, addr, classPublic)
	}
	class := lookup(special6, addr, classReserved)
	for _, inner := range embedded(addr) {
		if metadata[inner] {
			return classMetadata
		}
		// ISATAP (RFC 5214) puts an IPv4 address in the low half of any prefix, also
		// of a public one.
		if class == classPublic && isISATAP(addr) {
			return classTranslated
		}
	}
	return class
}

func lookup(table []classRange, addr netip.Addr, other Class) Class {
	for _, r := range table {
		if r.prefix.Contains(addr) {
			return r.class
		}
	}
	return other
}

func isISATAP(addr netip.Addr) bool {
	b := addr.As16()
	return b[8]&^0x02 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe
}

// embedded returns the IPv4 addresses that a transition mechanism would extract from
// addr.
func embedded(addr netip.Addr) []netip.Addr {
	b := addr.As16()
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte(b[i : i+4])) }
	switch {
	case b[0] == 0x20 && b[1] == 0x02: // 6to4
		return []netip.Addr{at(2)}
	case b[0] == 0x20 && b[1] == 0x01 && b[2] == 0 && b[3] == 0: // Teredo: server, then client inverted
		return []netip.Addr{at(4), netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]})}
	case b[0] == 0 && b[1] == 0x64, isISATAP(addr), lookup(special6, addr, classReserved) == classTranslated:
		return []netip.Addr{at(12)}
	default:
		return nil
	}
}
