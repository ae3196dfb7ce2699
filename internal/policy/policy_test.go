package policy

import (
	"net/netip"
	"strings"
	"testing"
)

func TestParseAllow(t *testing.T) {
	tests := []struct {
		in, want string // want is the canonical form, or empty for an error
		err      string // what the error must mention
	}{
		{in: "example.com", want: "example.com"},
		{in: "example.com:443", want: "example.com:443"},
		{in: "Example.COM.", want: "example.com"},
		{in: "bücher.example", want: "xn--bcher-kva.example"},
		{in: "BÜCHER.example:80", want: "xn--bcher-kva.example:80"},
		{in: "example。com", want: "example.com"},
		{in: "my_bucket.example.com", want: "my_bucket.example.com"},
		{in: "intranet", want: "intranet"},
		{in: "*.example.com", want: "*.example.com"},
		{in: "*.example.com:8443", want: "*.example.com:8443"},
		{in: "1.1.1.1", want: "1.1.1.1"},
		{in: "10.0.0.5:5432", want: "10.0.0.5:5432"},
		{in: "[2606:4700::1111]:443", want: "[2606:4700::1111]:443"},
		{in: "[2606:4700:0:0::1111]", want: "[2606:4700::1111]"},
		{in: "[fd12::1]:80", want: "[fd12::1]:80"},
		{in: "1e100.net", want: "1e100.net"},
		{in: "0xdeadbeef.example", want: "0xdeadbeef.example"},

		{in: "", err: "empty"},
		{in: ".", err: "empty"},
		{in: ":443", err: "empty"},
		{in: "example.com:", err: "port"},
		{in: "example.com:0", err: "port"},
		{in: "example.com:65536", err: "port"},
		{in: "example.com:https", err: "port"},
		{in: "example.com:+443", err: "port"},
		{in: "example.com:0443", err: "port"},
		{in: "https://example.com", err: "not a URL"},
		{in: "example.com?x", err: "HOST[:PORT]"},
		{in: "user@example.com", err: "HOST[:PORT]"},
		{in: "example.com,other.com", err: "not allowed"},
		{in: "exa mple.com", err: "HOST[:PORT]"},
		{in: "example..com", err: "empty label"},
		{in: "-a.example.com", err: "hyphen"},
		{in: "a-.example.com", err: "hyphen"},
		{in: strings.Repeat("a", 64) + ".com", err: "63"},
		{in: strings.Repeat("abcdefgh.", 32) + "com", err: "253"},
		{in: "*", err: "wildcard"},
		{in: "*.*.example.com", err: "wildcard"},
		{in: "a*.example.com", err: "wildcard"},
		{in: "a.*.example.com", err: "wildcard"},
		{in: "*.com", err: "anybody"},
		{in: "*.co.uk", err: "anybody"},
		{in: "*.github.io", err: "anybody"},
		{in: "*.corp", err: "--allow-private"},
		{in: "localhost:3000", err: HostGateway},
		{in: "a.localhost", err: HostGateway},
		{in: HostGateway, err: "--allow-private"},

		// Other spellings of 127.0.0.1 and of addresses that some program would parse.
		{in: "127.0.0.1", err: HostGateway},
		{in: "[::1]", err: HostGateway},
		{in: "0x7f.1", err: "unusual spelling"},
		{in: "0x7f000001", err: "unusual spelling"},
		{in: "0x", err: "unusual spelling"},
		{in: "017700000001", err: "unusual spelling"},
		{in: "2130706433", err: "unusual spelling"},
		{in: "127.1", err: "unusual spelling"},
		{in: "127.0.0.1.", err: "unusual spelling"},
		{in: "010.0.0.1", err: "unusual spelling"},
		{in: "1.2.3.4.5", err: "unusual spelling"},
		{in: "256.1.1.1", err: "unusual spelling"},
		{in: "１２７.０.０.１", err: "unusual spelling"},
		{in: "a.0x7f", err: "unusual spelling"},
		{in: "[::ffff:10.0.0.1]", err: "10.0.0.1"},
		{in: "[10.0.0.1]", err: "not an ipv6"},
		{in: "2606:4700::1111", err: "brackets"},
		{in: "[2606:4700::1111", err: "closed"},
		{in: "[2606:4700::1111]443", err: "bracket"},
		{in: "[fe80::1%eth0]", err: "zones"},
		{in: "0.0.0.0", err: "unspecified"},
		{in: "255.255.255.255", err: "broadcast"},
		{in: "224.0.0.1", err: "multicast"},
		{in: "[ff02::1]", err: "multicast"},
		{in: "169.254.169.254:80", err: "metadata"},
		{in: "[64:ff9b::a9fe:a9fe]", err: "metadata"},
		{in: "[64:ff9b::808:808]", err: "translated"},
		{in: "240.0.0.1", err: "reserved"},
	}
	for _, tt := range tests {
		r, err := ParseAllow(tt.in)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("ParseAllow(%q) = %v, %v; want an error about %q", tt.in, r, err, tt.err)
			}
			if !r.IsZero() {
				t.Errorf("ParseAllow(%q): a route came with the error", tt.in)
			}
			continue
		}
		if err != nil || r.String() != tt.want {
			t.Errorf("ParseAllow(%q) = %v, %v; want %s", tt.in, r, err, tt.want)
		}
		if err == nil && r.Rule() != "--allow "+tt.want {
			t.Errorf("ParseAllow(%q): rule %q", tt.in, r.Rule())
		}
	}
}

func TestParseAllowPrivate(t *testing.T) {
	for in, want := range map[string]string{
		"localhost:3000":      "localhost:3000",
		HostGateway + ":5432": HostGateway + ":5432",
		"*.corp":              "*.corp",
		"169.254.169.254":     "169.254.169.254",
	} {
		r, err := ParseAllowPrivate(in)
		if err != nil || r.String() != want || !r.Private() {
			t.Errorf("ParseAllowPrivate(%q) = %v, %v", in, r, err)
		}
	}
	for _, in := range []string{"*.com", "127.0.0.1", "0.0.0.0", "2130706433", ""} {
		if r, err := ParseAllowPrivate(in); err == nil {
			t.Errorf("ParseAllowPrivate(%q) = %v; want an error", in, r)
		}
	}
}

func table(t testing.TB, allow ...string) *Table {
	t.Helper()
	var rs []Route
	for _, s := range allow {
		parse := ParseAllow
		if p, ok := strings.CutPrefix(s, "private "); ok {
			s, parse = p, ParseAllowPrivate
		}
		r, err := parse(s)
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r)
	}
	tab, err := Compile(rs...)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

func TestDecide(t *testing.T) {
	tab := table(t, "api.example.com", "*.cdn.example.com:8443", "db.example.com:5432", "private db.example.com:5432", "bücher.example")
	tests := []struct {
		name   string
		port   uint16
		want   bool
		reason Reason
	}{
		{"api.example.com", 443, true, ReasonRoute},
		{"api.example.com", 80, true, ReasonRoute},
		{"API.Example.com.", 443, true, ReasonRoute},
		{"api.example.com", 22, false, ReasonPort},
		{"example.com", 443, false, ReasonNoRoute},
		{"x.api.example.com", 443, false, ReasonNoRoute},
		{"xapi.example.com", 443, false, ReasonNoRoute},
		{"api.example.com.evil.net", 443, false, ReasonNoRoute},
		{"a.cdn.example.com", 8443, true, ReasonRoute},
		{"a.b.cdn.example.com", 8443, true, ReasonRoute},
		{"cdn.example.com", 8443, false, ReasonNoRoute},
		{"evilcdn.example.com", 8443, false, ReasonNoRoute},
		{"a.cdn.example.com", 443, false, ReasonPort},
		{"xn--bcher-kva.example", 443, true, ReasonRoute},
		{"BÜCHER.example", 443, true, ReasonRoute},
		{"api.example.com\x00.evil.net", 443, false, ReasonBadName},
		{"api.example.com ", 443, false, ReasonBadName},
		{"*.cdn.example.com", 8443, false, ReasonBadName},
		{"", 443, false, ReasonBadName},
		{"2130706433", 443, false, ReasonBadName},
	}
	for _, tt := range tests {
		v := tab.Decide(tt.name, tt.port)
		if v.Allowed != tt.want || v.Reason != tt.reason {
			t.Errorf("Decide(%q, %d) = %+v", tt.name, tt.port, v)
		}
		if v.Private != (v.Allowed && strings.HasPrefix(tt.name, "db.")) {
			t.Errorf("Decide(%q): private = %v", tt.name, v.Private)
		}
	}
	if v := tab.Decide("db.example.com", 5432); !v.Private || v.Rule != "--allow-private db.example.com:5432" {
		t.Errorf("private route does not win: %+v", v)
	}
	if v := tab.DecideName("a.cdn.example.com"); !v.Allowed {
		t.Errorf("DecideName: %+v", v)
	}
	if v := tab.DecideName("other.example.com"); v.Allowed || v.Nearest == "" {
		t.Errorf("no advice for a near miss: %+v", v)
	}
}

func TestDecideAddr(t *testing.T) {
	tab := table(t, "10.0.0.5:5432", "[2606:4700::1111]")
	for _, tt := range []struct {
		addr string
		port uint16
		want bool
	}{
		{"10.0.0.5", 5432, true},
		{"10.0.0.5", 5433, false},
		{"10.0.0.6", 5432, false},
		{"::ffff:10.0.0.5", 5432, false},
		{"2606:4700::1111", 443, true},
		{"2606:4700::1112", 443, false},
	} {
		if v := tab.DecideAddr(netip.MustParseAddr(tt.addr), tt.port); v.Allowed != tt.want {
			t.Errorf("DecideAddr(%s, %d) = %+v", tt.addr, tt.port, v)
		}
	}
	// A literal is not a name, in either direction.
	if v := tab.Decide("10.0.0.5", 5432); v.Allowed {
		t.Errorf("literal decided as a name: %+v", v)
	}
}

func TestZeroRefuses(t *testing.T) {
	var v Verdict
	if v.Allowed || v.Private {
		t.Error("the zero verdict allows")
	}
	for _, tab := range []*Table{nil, {}} {
		if tab.Decide("example.com", 443).Allowed || tab.DecideName("example.com").Allowed ||
			tab.DecideAddr(netip.MustParseAddr("1.1.1.1"), 443).Allowed {
			t.Error("an empty table allows")
		}
	}
	if _, err := Compile(Route{}); err == nil {
		t.Error("the zero route compiles")
	}
	for c := range 255 {
		if Class(c).Permits(false) && Class(c) != classPublic {
			t.Errorf("class %v is permitted without a private route", Class(c))
		}
	}
}

// TestDecideNeverMixesRoutes: two routes together permit nothing that neither permits
// alone.
func TestDecideNeverMixesRoutes(t *testing.T) {
	raw, _ := ParseAllow("a.example.com:1")
	private, _ := ParseAllowPrivate("a.example.com:1")
	tab, err := Compile(raw.WithProtocol(ProtocolTCP), private)
	if err != nil {
		t.Fatal(err)
	}
	if v := tab.Decide("a.example.com", 1); v.Private && v.Protocol == ProtocolTCP {
		t.Errorf("mixed: %+v", v)
	}
}

func TestClassify(t *testing.T) {
	for addr, want := range map[string]Class{
		"1.1.1.1": classPublic, "93.184.216.34": classPublic, "172.32.0.1": classPublic, "100.128.0.1": classPublic,
		"127.0.0.1": ClassLoopback, "127.255.255.254": ClassLoopback,
		"10.1.2.3": ClassPrivate, "172.16.0.1": ClassPrivate, "172.31.255.255": ClassPrivate, "192.168.1.1": ClassPrivate,
		"169.254.1.1": classLinkLocal, "169.254.169.254": classMetadata, "169.254.170.2": classMetadata, "100.100.100.200": classMetadata,
		"100.64.0.1": classShared, "100.127.255.255": classShared,
		"224.0.0.1": classMulticast, "239.255.255.255": classMulticast,
		"255.255.255.255": classBroadcast, "0.0.0.0": classUnspecified, "0.1.2.3": classUnspecified,
		"192.0.2.1": classDocumentation, "198.51.100.1": classDocumentation, "203.0.113.1": classDocumentation,
		"198.18.0.3": classBenchmark, "198.19.255.255": classBenchmark,
		"192.0.0.1": classReserved, "240.0.0.1": classReserved, "192.88.99.1": classTranslated,
		"::1": ClassLoopback, "::": classUnspecified,
		"2606:4700::1111": classPublic, "2a00:1450::1": classPublic,
		"fe80::1": classLinkLocal, "fec0::1": classLinkLocal, "fe80::1%eth0": classLinkLocal,
		"fc00::1": ClassUniqueLocal, "fd12:3456::1": ClassUniqueLocal, "fd00:ec2::254": classMetadata,
		"ff02::1": classMulticast, "2001:db8::1": classDocumentation, "3fff::1": classDocumentation,
		"::ffff:127.0.0.1": ClassLoopback, "::ffff:10.0.0.1": ClassPrivate, "::ffff:169.254.169.254": classMetadata, "::ffff:1.1.1.1": classPublic,
		"::127.0.0.1": classTranslated, "::169.254.169.254": classMetadata,
		"64:ff9b::7f00:1": classTranslated, "64:ff9b::a9fe:a9fe": classMetadata, "64:ff9b:1::1": classTranslated,
		"2002:7f00:1::": classTranslated, "2002:a9fe:a9fe::": classMetadata,
		"2001:0:1:2:3:4:5601:5601": classMetadata, "2001:0::1": classTranslated,
		"2606:4700::5efe:a00:1": classTranslated, "2606:4700::200:5efe:a9fe:a9fe": classMetadata,
		"2001:2::1": classBenchmark, "2001:20::1": classReserved, "4000::1": classReserved, "100::1": classReserved,
	} {
		if got := Classify(netip.MustParseAddr(addr)); got != want {
			t.Errorf("Classify(%s) = %v, want %v", addr, got, want)
		}
	}
	if got := Classify(netip.Addr{}); got != ClassUnknown {
		t.Errorf("Classify(zero) = %v", got)
	}
	if classMetadata.Permits(true) || classMulticast.Permits(true) || ClassUnknown.Permits(true) {
		t.Error("a private route opens what no name may reach")
	}
	if !ClassPrivate.Permits(true) || !ClassLoopback.Permits(true) || !classPublic.Permits(false) {
		t.Error("a class that should be permitted is not")
	}
}

func FuzzParseAllow(f *testing.F) {
	for _, s := range []string{
		"example.com", "*.example.com:443", "[::1]:80", "0x7f.1", "bücher.example", "a..b", "[", "]:", "*.com", "xn--a.com",
		"example.com:99999", "１.１", "\x00", "a%b", "A。B:1", "-.com", "1.2.3.4:5",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseAllow(s)
		if err != nil {
			if !r.IsZero() {
				t.Fatalf("%q: a route came with the error", s)
			}
			return
		}
		// Parsing the canonical form gives the same route.
		again, err := ParseAllow(r.String())
		if err != nil || again.String() != r.String() {
			t.Fatalf("%q → %q → %v, %v", s, r, again, err)
		}
		tab, err := Compile(r)
		if err != nil {
			t.Fatal(err)
		}
		port := r.Ports()[0]
		switch {
		case r.addr.IsValid():
			if !tab.DecideAddr(r.addr, port).Allowed {
				t.Fatalf("%q does not allow itself", s)
			}
			if !Classify(r.addr).Permits(true) {
				t.Fatalf("%q allows a %v address", s, Classify(r.addr))
			}
		case r.wildcard:
			if tab.Decide(r.name, port).Allowed {
				t.Fatalf("%q allows its apex", s)
			}
		default:
			if !tab.Decide(r.name, port).Allowed {
				t.Fatalf("%q does not allow itself", s)
			}
			if _, err := netip.ParseAddr(r.name); err == nil {
				t.Fatalf("%q: the name is an address", s)
			}
		}
	})
}

func FuzzDecide(f *testing.F) {
	tab := table(f, "api.example.com", "*.cdn.example.com")
	for _, s := range []string{"api.example.com", "a.cdn.example.com", "example.com", "\xff", "API.EXAMPLE.COM."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v := tab.Decide(s, 443)
		if !v.Allowed {
			return
		}
		name, err := CanonicalName(s)
		if err != nil || name != "api.example.com" && !strings.HasSuffix(name, ".cdn.example.com") {
			t.Fatalf("%q (%q, %v) is allowed", s, name, err)
		}
	})
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{10, 10000} {
		var rs []Route
		for i := range n {
			r, _ := ParseAllow("h" + strings.Repeat("x", i%40) + "-" + string(rune('a'+i%26)) + ".example.com")
			rs = append(rs, r)
		}
		tab, _ := Compile(rs...)
		b.Run(map[bool]string{true: "few", false: "many"}[n == 10], func(b *testing.B) {
			for b.Loop() {
				tab.Decide("nothing.of.the.sort.example.com", 443)
			}
		})
	}
}

func TestTCPRoutes(t *testing.T) {
	for _, s := range []string{"db.example.com:5432/tcp", "192.0.2.7:22/tcp", "[2001:db8::7]:22/tcp"} {
		r, err := ParseAllow(s)
		if err != nil || r.Protocol() != ProtocolTCP || r.String() != s {
			t.Errorf("%s: %v, protocol %v, %v", s, r, r.Protocol(), err)
		}
	}
	for _, s := range []string{"db.example.com/tcp", "db.example.com:5432/udp", "db.example.com:5432/tcp/tcp", "/tcp", ":22/tcp"} {
		if r, err := ParseAllow(s); err == nil {
			t.Errorf("%s: accepted as %v", s, r)
		}
	}
	if r, err := ParseAllow("db.example.com:5432"); err != nil || r.Protocol() != ProtocolWeb {
		t.Errorf("without the suffix: %v, %v", r.Protocol(), err)
	}
}
