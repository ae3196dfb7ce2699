package main

// W1 to W3: the gateway and its policy.

// onlyHere goes with mutants that let connections out to wherever the attacks
// try: what isn't this machine isn't dialled, and no packet leaves it.
var onlyHere = edit{"internal/gateway/dial.go", "	var d net.Dialer\n", `	here := addr.Addr().IsLoopback()
	own, _ := net.InterfaceAddrs()
	for _, a := range own {
		here = here || strings.HasPrefix(a.String(), addr.Addr().String()+"/")
	}
	if !here {
		return nil, errors.New("not this machine")
	}
	var d net.Dialer
`}

var wireMutants = []mutant{
	{
		Name: "names-are-forwarded", Promise: "W1",
		Why:     "a name that no route allows is asked of the host's resolver all the same: its labels carry data out",
		Package: "./internal/gateway", Tests: []string{"TestQueriesCarryNothingOut"}, Says: "asked outside",
		edits: []edit{{"internal/gateway/dns.go", "	if !v.Allowed {\n		g.refuseName(m, q, v)", "	if !v.Allowed {\n		_, _ = g.lookup(g.ctx, strings.TrimSuffix(q.Name, \".\"))\n		g.refuseName(m, q, v)"}},
	},
	{
		Name: "allowed-names-are-asked-early", Promise: "W1",
		Why:     "a question alone makes the host ask: labels below a wildcard route carry data out without a connection",
		Package: "./internal/hostile", Tests: []string{"TestW1NothingLeavesInQuestions"}, Says: "by a question alone",
		edits: []edit{{"internal/gateway/dns.go", "	addr, ok := g.names.assign(canonical)", "	_, _ = g.lookup(g.ctx, canonical)\n	addr, ok := g.names.assign(canonical)"}},
	},
	{
		Name: "addresses-need-no-route", Promise: "W1",
		Why:     "an address literal is dialled although no route names it",
		Package: "./internal/hostile", Tests: []string{"TestW1Literals", "TestW1Spellings", "TestS2HostPorts"}, Says: "escaped ",
		edits: []edit{onlyHere, {"internal/policy/table.go", "	routes := t.literal[addr.WithZone(\"\")]\n", "	routes := t.literal[addr.WithZone(\"\")]\n	if len(routes) == 0 {\n		return Verdict{Allowed: true, Private: true, Reason: ReasonRoute}\n	}\n"}},
	},
	{
		Name: "spellings-are-read", Promise: "W1",
		Why:     "what some program reads as an IPv4 address (0x7f.1, 2130706433) passes for a host name",
		Package: "./internal/policy", Tests: []string{"TestParseAllow"}, Says: "0x7f",
		edits: []edit{{"internal/policy/name.go", "	if isNumber(last) {", "	if false && isNumber(last) {"}},
	},
	{
		Name: "resolved-addresses-are-not-judged", Promise: "W1",
		Why:     "an allowed name leads to whatever it resolves to: loopback, private networks, metadata",
		Package: "./internal/hostile", Tests: []string{"TestW1PrivateBehindNames"}, Says: "the server saw",
		edits: []edit{onlyHere, {"internal/gateway/dial.go", "if a.Zone() != \"\" || !class.Permits(private) {", "if false {"}},
	},
	{
		Name: "metadata-is-private-space", Promise: "W1",
		Why:     "the cloud's metadata service is dialled by a name whose route allows private addresses",
		Package: "./internal/gateway", Tests: []string{"TestResolvedAddresses"}, Says: "169.254.169.254:7000",
		edits: []edit{{"internal/policy/addr.go", "	if metadata[addr] {\n		return ClassMetadata\n	}\n	if addr.Is4() {", "	if addr.Is4() {"}},
	},
	{
		Name: "translated-addresses-are-public", Promise: "W1",
		Why:     "an IPv4 address inside NAT64 or 6to4 is taken for a public IPv6 address",
		Package: "./internal/gateway", Tests: []string{"TestResolvedAddresses"}, Says: "dialled",
		edits: []edit{
			{"internal/policy/addr.go", "	\"64:ff9b::/96\", ClassTranslated, // NAT64 (RFC 6052)", "	\"64:ff9b::/96\", ClassPublic,"},
			{"internal/policy/addr.go", "	\"2002::/16\", ClassTranslated, // 6to4", "	\"2002::/16\", ClassPublic,"},
		},
	},
	{
		Name: "names-are-resolved-twice", Promise: "W1",
		Why:     "the name is resolved again after its addresses were judged: the second answer is dialled unjudged",
		Package: "./internal/gateway", Tests: []string{"TestDialsWhatWasChecked"}, Says: "echo: ",
		edits: []edit{{"internal/gateway/dial.go", "	up, err := g.race(ctx, addrs)\n	if err != nil {\n		return nil, &dialError", "	if again, err := g.lookup(ctx, name); err == nil {\n		addrs = withPort(again, port)\n	}\n	up, err := g.race(ctx, addrs)\n	if err != nil {\n		return nil, &dialError"}},
	},
	{
		Name: "datagrams-are-passed-on", Promise: "W2",
		Why:     "UDP to an allowed name is sent on, QUIC with it",
		Package: "./internal/hostile", Tests: []string{"TestW2OnlyTCPLeaves"}, Says: "datagrams reached the host",
		edits: []edit{{"internal/gateway/packets.go", "	if h.DestinationPort() != 53 {\n", "	if h.DestinationPort() != 53 {\n		if found, err := g.lookup(g.ctx, g.names.lookup(p.dst)); err == nil {\n			if c, err := g.dialer().Dial(\"udp\", netip.AddrPortFrom(found[0], h.DestinationPort()).String()); err == nil {\n				_, _ = c.Write(p.payload[header.UDPMinimumSize:h.Length()])\n				_ = c.Close()\n			}\n		}\n"}, {"internal/gateway/dial.go", "// dialAddr connects to an address.", "func (g *Gateway) dialer() *net.Dialer { return &net.Dialer{} }\n\n// dialAddr connects to an address."}},
	},
	{
		Name: "datagrams-are-dropped", Promise: "W2",
		Why:     "UDP over IPv6 is dropped without a word, and tools hang instead of falling back",
		Package: "./internal/gateway", Tests: []string{"TestUDPIsRefusedAtOnce"}, Says: "want refused",
		edits: []edit{{"internal/gateway/packets.go", "	g.answered.Add(1)\n	g.link.Inject(buildUnreachable(p, reason == ReasonUDP))", "	g.answered.Add(1)\n	if p.dst.Is4() {\n		g.link.Inject(buildUnreachable(p, reason == ReasonUDP))\n	}"}},
	},
	{
		Name: "refusals-go-unanswered", Promise: "W2",
		Why:     "what is refused is dropped without a word: a client that tries QUIC first hangs",
		Package: "./internal/hostile", Tests: []string{"TestW2Fallback"}, Says: "the client hangs",
		edits: []edit{{"internal/gateway/packets.go", "	g.answered.Add(1)\n	g.link.Inject(buildUnreachable(p, reason == ReasonUDP))", "	g.answered.Add(1)"}},
	},
	{
		Name: "other-protocols-pass", Promise: "W2",
		Why:     "packets that are neither TCP nor UDP nor ICMP reach the stack",
		Package: "./internal/gateway", Tests: []string{"TestPacketsByHand"}, Says: "sctp: not counted",
		edits: []edit{{"internal/gateway/packets.go", "	default:\n		g.refusePacket(p, ReasonIPProtocol, \"\")\n	}", "	default:\n		return true\n	}"}},
	},
	{
		Name: "fragments-pass", Promise: "W2",
		Why:     "fragments reach the stack, and two readers may disagree about what they carry",
		Package: "./internal/gateway", Tests: []string{"TestPacketsByHand"}, Says: "first fragment: not counted",
		edits: []edit{{"internal/gateway/packets.go", "	if h.More() || h.FragmentOffset() != 0 {", "	if false {"}},
	},
	{
		Name: "the-client-names-the-host", Promise: "W3",
		Why:     "the Host header isn't compared, and where it says is dialled: one allowed name opens all others",
		Package: "./internal/hostile", Tests: []string{"TestW3PlainHTTP"}, Says: "escaped ",
		edits: []edit{
			onlyHere,
			{"internal/gateway/http.go", "	case !sameAuthority(c, r.Host):", "	case false:"},
			{"internal/gateway/http.go", "	p.Out.URL.Host = authority(f.name, f.addr.Port())", "	p.Out.URL.Host = p.In.Host"},
		},
	},
	{
		Name: "host-is-not-compared", Promise: "W3",
		Why:     "the Host header isn't compared; the request goes to the checked name all the same, but the client isn't told that it asks for another",
		Package: "./internal/gateway", Tests: []string{"TestAuthority"}, Says: "Host: evil.com",
		edits: []edit{{"internal/gateway/http.go", "	case !sameAuthority(c, r.Host):", "	case false:"}},
	},
	{
		Name: "server-name-is-not-compared", Promise: "W3",
		Why:     "TLS for another server name passes on an allowed name's address: domain fronting",
		Package: "./internal/gateway", Tests: []string{"TestServerName"}, Says: "want alert 112",
		edits: []edit{{"internal/gateway/tcp.go", "	if err != nil || name != f.name {", "	if err != nil || name == \"\" {"}},
	},
	{
		Name: "encrypted-hello-passes", Promise: "W3",
		Why:     "the true server name is inside the encrypted hello, unseen",
		Package: "./internal/gateway", Tests: []string{"TestEncryptedHello"}, Says: "got 1603",
		edits: []edit{{"internal/gateway/tcp.go", "	case h.ech:\n", "	case false:\n"}},
	},
	{
		Name: "addresses-route-names", Promise: "W3",
		Why:     "a route for an address lets every name through that leads there",
		Package: "./internal/hostile", Tests: []string{"TestW3RouteOfAnAddress"}, Says: "led elsewhere",
		edits: []edit{
			onlyHere,
			{"internal/gateway/dns.go", "	v := g.table().DecideName(name)\n", "	v := g.table().DecideName(name)\n	v.Allowed = true\n"},
			{"internal/gateway/flow.go", "		v = g.table().Decide(name, addr.Port())\n", "		v = g.decide(g.ctx, name, addr.Port())\n"},
			{"internal/gateway/dial.go", "	v := g.table().Decide(name, port)\n", "	v := g.decide(ctx, name, port)\n"},
			{"internal/gateway/flow.go", "		v = now.table.DecideRequest(f.name, f.addr.Port(), r)\n", "		v = now.table.DecideRequest(f.name, f.addr.Port(), r)\n		if found, err := f.g.lookup(f.ctx, f.name); !v.Allowed && err == nil {\n			v = now.table.DecideAddrRequest(found[0].Unmap(), f.addr.Port(), r)\n		}\n"},
			{"internal/gateway/dial.go", "// dial is the only way out.", `func (g *Gateway) decide(ctx context.Context, name string, port uint16) policy.Verdict {
	v := g.table().Decide(name, port)
	if found, err := g.lookup(ctx, name); !v.Allowed && err == nil {
		v = g.table().DecideAddr(found[0].Unmap(), port)
	}
	return v
}

// dial is the only way out.`},
		},
	},
	{
		Name: "what-was-cut-off-looks-complete", Promise: "W3",
		Why:     "a connection that broke ends inside as if all of it had come",
		Package: "./internal/hostile", Tests: []string{"TestW3ConnectionsAsOutside"}, Says: `outside "0 ECONNRESET"`,
		edits: []edit{{"internal/wire/lanes_host.go", "func (c *Lane) Abort() { c.finish(laneReset) }", "func (c *Lane) Abort() { c.finish(laneEnd) }"}},
	},
	{
		Name: "positions-are-believed", Promise: "W3",
		Why:     "what the bottle writes as its position in a ring is used as it is",
		Package: "./internal/wire", Tests: []string{"TestLaneRules"}, Says: "bytes in a ring",
		edits: []edit{{"internal/wire/lanes_host.go", "		if n > laneRing {", "		if false {"}},
	},
	{
		Name: "lanes-can-be-shortened", Promise: "W3",
		Why:     "a bottle takes the memory away that the gateway looks at",
		Package: "./internal/wire", Tests: []string{"TestLanesSealed"}, Says: "ftruncate to 0",
		edits: []edit{{"internal/wire/lanes.go", "unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL", "unix.F_SEAL_WRITE&0"}},
	},
	{
		Name: "end-waits-for-the-bottle's-bell", Promise: "W3",
		Why:     "the gateway's end depends on a descriptor that the bottle can spoil",
		Package: "./internal/wire", Tests: []string{"TestLanesSpoilt"}, Says: "the gateway hangs",
		edits: []edit{{"internal/wire/lanes_host.go", "	_ = l.own.Close()\n", "	ringBell(int(l.files.ToHost.Fd()))\n"}},
	},
	{
		Name: "second-hello-passes", Promise: "W3",
		Why:     "after a HelloRetryRequest the client names another server",
		Package: "./internal/gateway", Tests: []string{"TestSecondHello"}, Says: "no reset",
		edits: []edit{{"internal/gateway/hellos.go", "	if !g.watch.retry {", "	if true {"}},
	},
	{
		Name: "client-address-is-dialled", Promise: "W3",
		Why:     "where the client connected to is dialled instead of the name that was checked",
		Package: "./internal/gateway", Tests: []string{"TestServerName"}, Says: "api.example.com: remote error",
		edits: []edit{{"internal/gateway/dial.go", "	up, err := g.race(ctx, addrs)\n	if err != nil {\n		return nil, &dialError", "	if given, ok := ctx.Value(flowKey{}).(netip.AddrPort); ok {\n		addrs = []netip.AddrPort{given}\n	}\n	up, err := g.race(ctx, addrs)\n	if err != nil {\n		return nil, &dialError"}, {"internal/gateway/tcp.go", "g.dial(f.ctx, f.name, f.addr.Port())", "g.dial(context.WithValue(f.ctx, flowKey{}, f.addr), f.name, f.addr.Port())"}},
	},
	{
		Name: "framing-is-not-judged", Promise: "W3",
		Why:     "requests whose framing has two readings reach the server: smuggling",
		Package: "./internal/gateway", Tests: []string{"TestSmuggling"}, Says: "length and chunks: 200",
		edits: []edit{{"internal/gateway/lint.go", "	h, err := parseHead(string(scan[:end]))\n	if err != nil {", "	h, err := parseHead(string(scan[:end]))\n	if false {"}},
	},
}
