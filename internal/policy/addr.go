package policy

import "net/netip"

// Class says what kind of place an address names. The zero value is unknown,
// which nothing permits.
type Class uint8

// The classes. Only Public may be dialled without the route saying so.
const (
	ClassUnknown       Class = iota
	ClassPublic              // globally reachable unicast
	ClassLoopback            // 127.0.0.0/8, ::1
	ClassPrivate             // RFC 1918
	ClassUniqueLocal         // fc00::/7
	ClassLinkLocal           // 169.254.0.0/16, fe80::/10, the old fec0::/10
	ClassShared              // 100.64.0.0/10, carrier-grade NAT (RFC 6598)
	ClassMetadata            // a cloud's metadata service
	ClassMulticast           // 224.0.0.0/4, ff00::/8
	ClassBroadcast           // 255.255.255.255
	ClassUnspecified         // 0.0.0.0/8, ::
	ClassDocumentation       // examples in texts (RFC 5737, 3849, 9637)
	ClassBenchmark           // 198.18.0.0/15, 2001:2::/48: also our own synthetic range
	ClassTranslated          // an IPv4 address inside NAT64, 6to4, Teredo, ISATAP or compatible form
	ClassReserved            // every other special or unassigned range
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

// Permits reports whether an address of this class that a name resolved to may
// be dialled, where private is what the route says. Metadata services are
// refused even then: they hand out the machine's credentials to whoever asks,
// and a name can be made to resolve to them at any time. Only a literal route
// reaches them.
func (c Class) Permits(private bool) bool {
	switch c {
	case ClassPublic:
		return true
	case ClassLoopback, ClassPrivate, ClassUniqueLocal, ClassLinkLocal, ClassShared,
		ClassDocumentation, ClassBenchmark, ClassTranslated:
		return private
	default:
		return false
	}
}

// metadata lists the addresses at which clouds serve credentials to the
// machine. Those inside 169.254.0.0/16 matter beyond their range because a
// private route would otherwise open them.
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
	"255.255.255.255/32", ClassBroadcast,
	"0.0.0.0/8", ClassUnspecified,
	"10.0.0.0/8", ClassPrivate,
	"100.64.0.0/10", ClassShared,
	"127.0.0.0/8", ClassLoopback,
	"169.254.0.0/16", ClassLinkLocal,
	"172.16.0.0/12", ClassPrivate,
	"192.0.0.0/24", ClassReserved,
	"192.0.2.0/24", ClassDocumentation,
	"192.88.99.0/24", ClassTranslated, // 6to4 relays (RFC 7526)
	"192.168.0.0/16", ClassPrivate,
	"198.18.0.0/15", ClassBenchmark,
	"198.51.100.0/24", ClassDocumentation,
	"203.0.113.0/24", ClassDocumentation,
	"224.0.0.0/4", ClassMulticast,
	"240.0.0.0/4", ClassReserved,
)

// special6 follows the IANA IPv6 special-purpose registry. What is neither
// listed nor in 2000::/3 is not assigned and counts as reserved.
var special6 = ranges(
	"::/128", ClassUnspecified,
	"::1/128", ClassLoopback,
	"64:ff9b::/96", ClassTranslated, // NAT64 (RFC 6052)
	"64:ff9b:1::/48", ClassTranslated, // local NAT64 (RFC 8215)
	"::ffff:0:0:0/96", ClassTranslated, // SIIT (RFC 7915)
	"::/96", ClassTranslated, // IPv4-compatible, deprecated
	"2001::/32", ClassTranslated, // Teredo
	"2001:2::/48", ClassBenchmark,
	"2001:db8::/32", ClassDocumentation,
	"2001::/23", ClassReserved, // ORCHID and other protocol assignments
	"2002::/16", ClassTranslated, // 6to4
	"3fff::/20", ClassDocumentation,
	"5f00::/16", ClassReserved, // segment routing
	"fc00::/7", ClassUniqueLocal,
	"fe80::/10", ClassLinkLocal,
	"fec0::/10", ClassLinkLocal,
	"ff00::/8", ClassMulticast,
	"2000::/3", ClassPublic,
)

// Classify says what kind of place addr names. IPv4-mapped addresses count as
// the IPv4 address, since that is what a socket would reach. Where another
// transition form embeds a metadata address, that is what it is.
func Classify(addr netip.Addr) Class {
	if !addr.IsValid() {
		return ClassUnknown
	}
	addr = addr.WithZone("").Unmap()
	if metadata[addr] {
		return ClassMetadata
	}
	if addr.Is4() {
		return lookup(special4, addr, ClassPublic)
	}
	class := lookup(special6, addr, ClassReserved)
	for _, inner := range embedded(addr) {
		if metadata[inner] {
			return ClassMetadata
		}
		// ISATAP (RFC 5214) hides an IPv4 address in the low half of any
		// prefix, a public one too.
		if class == ClassPublic && isISATAP(addr) {
			return ClassTranslated
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

// embedded returns the IPv4 addresses that a transition mechanism would read
// out of addr.
func embedded(addr netip.Addr) []netip.Addr {
	b := addr.As16()
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte(b[i : i+4])) }
	switch {
	case b[0] == 0x20 && b[1] == 0x02: // 6to4
		return []netip.Addr{at(2)}
	case b[0] == 0x20 && b[1] == 0x01 && b[2] == 0 && b[3] == 0: // Teredo: server, then client inverted
		return []netip.Addr{at(4), netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]})}
	case b[0] == 0 && b[1] == 0x64, isISATAP(addr), lookup(special6, addr, ClassReserved) == ClassTranslated:
		return []netip.Addr{at(12)}
	default:
		return nil
	}
}
