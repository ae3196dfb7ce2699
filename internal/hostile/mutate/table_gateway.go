package main

// W7: the caps of routes.

var gatewayMutants = []mutant{
	{
		Name: "bytes-are-looked-at-not-taken", Promise: "W7",
		Why:     "a connection looks how much is left and takes it a moment later: those beside it take the same",
		Package: "./internal/hostile", Tests: []string{"TestW7Bytes"}, Says: "over a limit of",
		edits: []edit{{"internal/gateway/caps.go", "		if m.used.CompareAndSwap(used, used+got) {\n			return got\n		}\n", "		time.Sleep(20 * time.Millisecond)\n		m.used.Store(used + got)\n		return got\n"}},
	},
	{
		Name: "heads-are-free", Promise: "W7",
		Why:     "only bodies count: paths and headers carry out as much as one likes",
		Package: "./internal/gateway", Tests: []string{"TestRouteBytesInHeads"}, Says: "request 2: 200",
		edits: []edit{{"internal/gateway/caps.go", "	head := int64(len(r.Method)+len(r.URL.RequestURI())+len(r.Host)) + headerBytes(r.Header)\n", "	head := int64(0)\n"}},
	},
	{
		Name: "what-passes-unseen-is-free", Promise: "W7",
		Why:     "bytes of connections that pass unseen are not counted",
		Package: "./internal/hostile", Tests: []string{"TestW7Unseen"}, Says: "bytes left",
		edits: []edit{{"internal/gateway/caps.go", "	if out == nil && in == nil {\n		return fromBottle, fromUpstream\n	}\n", "	if out == nil || in != nil {\n		return fromBottle, fromUpstream\n	}\n"}},
	},
	{
		Name: "what-passes-unseen-is-free-of-the-bottles-cap", Promise: "W7",
		Why:     "the bottle's limit on what leaves counts the requests that the gateway looks into alone",
		Package: "./internal/hostile", Tests: []string{"TestW7Egress"}, Says: "over a limit of",
		edits: []edit{
			{"internal/gateway/caps.go", "	out, in := f.g.caps.outgoing(a), a.incoming()\n", "	var out meters\n	in := a.incoming()\n	if a != nil {\n		out = meters{&a.out}\n	}\n"},
		},
	},
	{
		Name: "each-route-has-the-bottles-cap", Promise: "W7",
		Why:     "the bottle's limit on what leaves holds only where a route has none of its own",
		Package: "./internal/gateway", Tests: []string{"TestEgressBytes"}, Says: "bytes are counted of a route with a cap",
		edits: []edit{{"internal/gateway/caps.go", "	if as.all != nil {\n", "	if as.all != nil && a == nil {\n"}},
	},
	{
		Name: "each-connection-has-its-own-minute", Promise: "W7",
		Why:     "requests are counted by connection: a new one begins anew",
		Package: "./internal/hostile", Tests: []string{"TestW7Requests"}, Says: "requests left",
		edits: []edit{{"internal/gateway/caps.go", "		if retry, ok := account.window.admit(w.g.caps.now(), limit); !ok {", "		if retry, ok := new(rateWindow).admit(w.g.caps.now(), limit); !ok {"}},
	},
	{
		Name: "minutes-begin-anew", Promise: "W7",
		Why:     "the count begins anew with each minute of a clock: twice the cap around its turn",
		Package: "./internal/gateway", Tests: []string{"TestRateWindow"}, Says: "11 requests in",
		edits: []edit{{"internal/gateway/caps.go", "	for s := max(w.last+1, second-slots+1); s <= second; s++ {\n		w.counts[s%slots] = 0\n	}\n", "	if second/slots != w.last/slots {\n		w.counts = [61]int64{}\n	}\n"}},
	},
	{
		Name: "caps-begin-anew-with-the-file", Promise: "W7",
		Why:     "what was used is forgotten when the routes are read again",
		Package: "./internal/gateway", Tests: []string{"TestRouteBytes", "TestRequestsPerMinute"}, Says: "200",
		edits: []edit{{"internal/gateway/caps.go", "	known := map[string]bool{}\n", "	as.by = map[string]*routeAccount{}\n	known := map[string]bool{}\n"}},
	},
	{
		Name: "messages-are-free", Promise: "W7",
		Why:     "the frames of a WebSocket are not counted",
		Package: "./internal/gateway", Tests: []string{"TestRouteBytesOfMessages"}, Says: "too much or too little left",
		edits: []edit{{"internal/gateway/websocket.go", "	got, short := d.caps.take(want)\n", "	got, short := meters(nil).take(want)\n"}},
	},
	{
		Name: "caps-are-silent", Promise: "W7",
		Why:     "a cap that was met is neither in the receipt nor in the audit log",
		Package: "./internal/hostile", Tests: []string{"TestW7Bytes", "TestW7Requests"}, Says: "the receipt does not say",
		edits: []edit{
			{"internal/gateway/caps.go", "		w.g.ledger.limit(reason, c.flow.name)\n", ""},
			{"internal/gateway/caps.go", "		x.c.flow.g.ledger.limit(m.why, x.c.flow.name)\n", ""},
		},
	},
	{
		Name: "websockets-outlive-their-route", Promise: "W1",
		Why:     "what is under way when routes are read again goes on without a route",
		Package: "./internal/gateway", Tests: []string{"TestReloadedWebSocket", "TestReloadedStreams"}, Says: "reload_test.go",
		edits: []edit{{"internal/gateway/gateway.go", "	now.out.closeIdle()\n	g.reconsider()\n", "	now.out.closeIdle()\n"}},
	},
	{
		Name: "unseen-connections-outlive-their-route", Promise: "W1",
		Why:     "a connection that passes unseen goes on without a route",
		Package: "./internal/gateway", Tests: []string{"TestReloadedUnseen"}, Says: "goes on",
		edits: []edit{{"internal/gateway/reload.go", "	if was == nil {\n		return\n	}\n	_, _, v", "	if was == was {\n		return\n	}\n	_, _, v"}},
	},
	{
		Name: "messages-keep-old-detectors", Promise: "W5",
		Why:     "a WebSocket does not look for what is newly watched for",
		Package: "./internal/gateway", Tests: []string{"TestReloadedWebSocket"}, Says: "a secret that is watched for by now",
		edits: []edit{{"internal/gateway/reload.go", "now == nil || now.detectors == w.d", "now == nil || w.d == w.d"}},
	},
	{
		Name: "host-addresses-are-told", Promise: "S2",
		Why:     "an error of the way out tells the bottle addresses of the host's network",
		Package: "./internal/gateway", Tests: []string{"TestHostAddressesStayOutside"}, Says: "the bottle is told",
		edits: []edit{{"internal/gateway/http.go", "		told.Detail = de.inside()\n", "		told.Detail = v.Detail\n"}},
	},
	{
		Name: "underscores-are-other-headers", Promise: "W4",
		Why:     "X_Env passes a route's condition about X-Env, for which servers behind CGI take it",
		Package: "./internal/policy", Tests: []string{"TestHeaderTwins"}, Says: "request_test.go",
		edits: []edit{{"internal/policy/request.go", "	if name := twinned(routes, r.Header); name != \"\" {", "	if name := twinned(routes, r.Header); false {"}},
	},
	{
		Name: "refused-requests-count-as-signed", Promise: "W4",
		Why:     "the receipt says that a credential was put on requests which were not sent",
		Package: "./internal/gateway", Tests: []string{"TestCredentialCounts"}, Says: "were sent with it",
		edits: []edit{{"internal/gateway/sign.go", "	want, c := a.route.Options().Credential, a.credential\n", "	want, c := a.route.Options().Credential, a.credential\n	if c != nil {\n		name := c.Name()\n		x.signed.Store(&name)\n	}\n"}},
	},
}
