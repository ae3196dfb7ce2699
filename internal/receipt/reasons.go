package receipt

import "strings"

// explanations explains the reason codes of policy and gateway. Receipts keep the
// code, which programs compare; people read the explanation.
var explanations = map[string]string{
	"no-route":              "no route names it",
	"port":                  "no route names this port",
	"service-port":          "the service does not list this port",
	"bad-name":              "not a host name",
	"literal":               "an address that no route names",
	"unknown-address":       "no name was asked for first",
	"gateway-address":       "nothing is served there",
	"udp":                   "UDP does not leave",
	"icmp":                  "ICMP does not leave",
	"ip-protocol":           "only TCP leaves",
	"server-first":          "not a web protocol",
	"slow-start":            "nothing was sent in time",
	"protocol":              "neither TLS nor HTTP",
	"ssh":                   "SSH on a web port",
	"http2-plain":           "HTTP/2 without TLS",
	"hello-invalid":         "not a valid TLS greeting",
	"sni-absent":            "TLS without a server name",
	"sni-mismatch":          "TLS names another server",
	"ech":                   "TLS hides the server name",
	"http-malformed":        "ambiguous or invalid HTTP",
	"host-mismatch":         "HTTP names another host",
	"connect-method":        "CONNECT is refused",
	"git-push":              "git pushes by the git gate alone",
	"git-fetch":             "the route does not let git fetch",
	"not-public":            "it resolves to an address that is not public",
	"resolve-failed":        "it does not resolve",
	"dial-failed":           "it does not answer",
	"request":               "the route does not allow that request",
	"ambiguous-path":        "a path that servers read differently",
	"tls":                   "the TLS handshake failed",
	"upstream-tls":          "the server's certificate is not good",
	"credential":            "the credential could not be put on",
	"reply":                 "the answer could not be looked at",
	"secret":                "a secret was in it",
	"injection":             "instructions to an agent were in the answer",
	"scan":                  "it could not be looked at",
	"known-secret":          "the secret",
	"pieces-of-secret":      "pieces of the secret",
	"high-entropy":          "random-looking text",
	"unreadable":            "something that could not be read",
	"reset":                 "reset",
	"closing":               "the run was over",
	"limit-connections":     "too many connections",
	"limit-requests":        "too many requests at once",
	"limit-bytes-up":        "too many bytes sent",
	"limit-bytes-down":      "too many bytes received",
	"limit-bytes-host":      "too many bytes for this host",
	"limit-idle":            "idle for too long",
	"limit-lifetime":        "open for too long",
	"limit-names":           "too many names",
	"limit-query-rate":      "too many queries a second",
	"limit-queries":         "too many queries",
	"limit-route-bytes-out": "the route's limit of bytes sent",
	"limit-route-bytes-in":  "the route's limit of bytes received",
	"limit-route-requests":  "the route's limit of requests per minute",
	"limit-egress":          "the bottle's limit of bytes sent",
	"upstream-broken":       "the server gave no proper answer",
	"websocket":             "it is no proper WebSocket",
	"limit-head":            "headers too large",
	"spoofed-source":        "a forged source address",
	"fragment":              "an IP fragment",
	"malformed-packet":      "a malformed packet",
	"bad-destination":       "multicast, broadcast or loopback",
}

// Plain replaces the code of a reason, "code" or "code: detail", by its explanation.
// It returns an unknown reason as it is.
func Plain(reason string) string {
	word, detail, _ := strings.Cut(reason, ": ")
	if s, ok := explanations[word]; ok {
		return join(s, detail)
	}
	return reason
}
