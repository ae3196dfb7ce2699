package corpus

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"crypto/tls"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/corpus/attacker"
)

// origin is a server outside, with TLS unless it is plain. It notes the requests that it
// gets, and repeats a credential in the way that a request asks for.
type origin struct {
	port  string
	close func()

	mu    sync.Mutex
	seen  []arrived
	whole map[string]bool // marks of requests that came whole
	raw   bytes.Buffer    // the beginning of all bytes that came
}

// arrived holds a request as it came.
type arrived struct {
	host, uri string
	header    http.Header
	trailer   http.Header
	own       bool // its body held what attacker.Own says
}

// maxJudged bounds what is looked at of a body.
const maxJudged = 1 << 20

// maxRaw bounds the kept bytes of a connection.
const maxRaw = 16 << 20

func serveOrigin(conf *tls.Config) (*origin, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	o := &origin{whole: map[string]bool{}}
	_, o.port, _ = net.SplitHostPort(l.Addr().String())
	srv := &http.Server{Handler: o, ReadHeaderTimeout: 30 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(originListener{l, conf, o}) }() // ends when srv is closed
	o.close = func() { srv.Close(); <-done }
	return o, nil
}

type originListener struct {
	net.Listener
	conf *tls.Config
	o    *origin
}

func (l originListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	// What is not read fills little, and soon.
	c.(*net.TCPConn).SetReadBuffer(64 << 10)
	if l.conf != nil {
		c = tls.Server(c, l.conf)
	}
	return &keeping{Conn: c, o: l.o}, nil
}

// keeping keeps the bytes that are read from a connection.
type keeping struct {
	net.Conn
	o *origin
}

func (k *keeping) Read(b []byte) (int, error) {
	n, err := k.Conn.Read(b)
	k.o.mu.Lock()
	if k.o.raw.Len() < maxRaw {
		k.o.raw.Write(b[:n])
	}
	k.o.mu.Unlock()
	return n, err
}

func (o *origin) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	rc := http.NewResponseController(rw)
	if r.URL.Path == "/v1/stall" {
		r.Body.Read(make([]byte, 1))
		<-r.Context().Done() // until the gateway gives up
		return
	}
	var body bytes.Buffer
	_, err := io.Copy(&body, io.LimitReader(r.Body, maxJudged))
	if err == nil {
		_, err = io.Copy(io.Discard, r.Body)
	}
	text := body.Bytes()
	if z, zerr := gzip.NewReader(bytes.NewReader(text)); zerr == nil {
		text, _ = io.ReadAll(io.LimitReader(z, maxJudged))
	}
	a := arrived{host: r.Host, uri: r.RequestURI, header: r.Header.Clone(), trailer: r.Trailer.Clone(), own: bytes.Contains(text, []byte(attacker.Own))}
	o.mu.Lock()
	if len(o.seen) < 5000 {
		o.seen = append(o.seen, a)
	}
	if m := r.Header.Get(attacker.Mark); err == nil && m != "" {
		o.whole[m] = true
	}
	o.mu.Unlock()
	switch {
	case strings.HasPrefix(r.URL.Path, "/v1/echo/"):
		o.echo(rw, rc, r, strings.TrimPrefix(r.URL.Path, "/v1/echo/"))
	case strings.HasPrefix(r.URL.Path, "/v1/coded/"):
		coded(rw, strings.TrimPrefix(r.URL.Path, "/v1/coded/"))
	case r.URL.Path == "/v1/redirect":
		rw.Header().Set("Location", r.URL.Query().Get("to"))
		rw.WriteHeader(http.StatusFound)
	default:
		io.WriteString(rw, "served\n")
	}
}

// originFiller surrounds the repeated text.
var originFiller = sync.OnceValue(func() string { return strings.Repeat("0123456789 ", 8000) })

// echo repeats r's credential in the answer, in the way that how names.
func (o *origin) echo(rw http.ResponseWriter, rc *http.ResponseController, r *http.Request, how string) {
	key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	e := &echoing{rw: rw, rc: rc, r: r, how: how, key: key, said: "you are " + key + ".\n"}
	h := rw.Header()
	h.Set("Content-Type", "text/plain")
	if n, ok := strings.CutPrefix(how, "border-"); ok {
		at, _ := strconv.Atoi(n)
		io.WriteString(rw, originFiller()[:at-len(key)/2]+key+originFiller()[:100])
		return
	}
	if code, err := strconv.Atoi(how); err == nil {
		h.Set("X-Failed", key)
		rw.WriteHeader(code)
		io.WriteString(rw, "refused: "+e.said)
		return
	}
	if e.inHead(h) || e.inBody() || e.around(h) || e.compressed(h) || e.escaped(h) || e.encoded(h) || e.hidden(h) || e.broken() {
		return
	}
	var b bytes.Buffer
	r.Header.Write(&b)
	h.Set("Content-Type", "message/http")
	fmt.Fprintf(rw, "%s %s\n%s%s", r.Method, r.RequestURI, b.String(), e.said)
}

// echoing writes one answer that repeats a credential. Each of its methods writes the
// answers of one kind, and reports whether how is one of them.
type echoing struct {
	rw        http.ResponseWriter
	rc        *http.ResponseController
	r         *http.Request
	how       string
	key, said string
}

// inHead repeats the credential in the headers of an answer.
func (e *echoing) inHead(h http.Header) bool {
	switch e.how {
	case "header":
		h.Set("X-Echo", "Bearer "+e.key)
		h.Set("Etag", `"`+e.key+`"`)
	case "length":
		h.Set("X-Echo", strings.Repeat(e.key+",", 50))
	case "cookie":
		h.Set("Set-Cookie", "session="+e.key+"; Path=/")
	case "link":
		h.Set("Link", "<https://x.test/?k="+e.key+">; rel=next")
	case "challenge":
		h.Set("Www-Authenticate", `Bearer error="`+e.key+`"`)
		e.rw.WriteHeader(401)
	case "redirect":
		h.Set("Location", "/elsewhere?k="+e.key)
		e.rw.WriteHeader(302)
	case "location":
		h.Set("Location", "/elsewhere?k="+url.QueryEscape(e.key)+"&p="+url.PathEscape(e.key))
		e.rw.WriteHeader(302)
	case "twice":
		h["X-Echo"] = []string{"a", e.key, e.key + e.key}
	default:
		return false
	}
	return true
}

// inBody repeats the credential in bodies, whole and in pieces.
func (e *echoing) inBody() bool {
	switch e.how {
	case "none":
		io.WriteString(e.rw, "served\n")
	case "body":
		io.WriteString(e.rw, e.said)
	case "pieces", "halves":
		n := 1
		if e.how == "halves" {
			n = len(e.said) / 2
		}
		for s := e.said; s != ""; s = s[min(n, len(s)):] {
			io.WriteString(e.rw, s[:min(n, len(s))])
			e.rc.Flush()
		}
	case "often":
		io.WriteString(e.rw, strings.Repeat(e.key, 500))
	default:
		return false
	}
	return true
}

// around repeats the credential in trailers, and in informational answers.
func (e *echoing) around(h http.Header) bool {
	switch e.how {
	case "trailer":
		h.Set("Trailer", "X-Echo")
		io.WriteString(e.rw, "served\n")
		h.Set("X-Echo", e.key)
	case "late-trailer":
		io.WriteString(e.rw, "served\n")
		e.rc.Flush()
		h.Set(http.TrailerPrefix+"X-Late", e.key)
	case "early", "processing":
		h.Set("Link", "<"+e.key+">; rel=preload")
		e.rw.WriteHeader(map[string]int{"early": 103, "processing": 102}[e.how])
		h.Del("Link")
		io.WriteString(e.rw, "served\n")
	default:
		return false
	}
	return true
}

// compressed repeats the credential in bodies that have a coding.
func (e *echoing) compressed(h http.Header) bool {
	switch e.how {
	case "gzip", "gzip-upper":
		h.Set("Content-Encoding", map[string]string{"gzip": "gzip", "gzip-upper": "GZIP"}[e.how])
		e.rw.Write(packed(e.said))
	case "x-gzip":
		h.Set("Content-Encoding", e.how)
		e.rw.Write(packed(e.said))
	case "gzip-members":
		h.Set("Content-Encoding", "gzip")
		e.rw.Write(append(packed(e.said[:15]), packed(e.said[15:])...))
	case "gzip-twice":
		h.Set("Content-Encoding", "gzip, gzip")
		e.rw.Write(packed(string(packed(e.said))))
	case "br", "deflate":
		h.Set("Content-Encoding", e.how)
		io.WriteString(e.rw, attacker.Brotli(e.said))
	default:
		return false
	}
	return true
}

// escaped repeats the credential, or the target, as URLs, JSON and HTML write it.
func (e *echoing) escaped(h http.Header) bool {
	switch e.how {
	case "percent":
		io.WriteString(e.rw, url.QueryEscape(e.key)+" "+url.PathEscape(e.key))
	case "percent-lower":
		io.WriteString(e.rw, strings.NewReplacer("%2F", "%2f", "%2B", "%2b", "%3D", "%3d", "%3C", "%3c", "%26", "%26").Replace(url.QueryEscape(e.key)))
	case "json", "uri-json":
		if e.how == "uri-json" {
			e.key = e.r.RequestURI
		}
		json.NewEncoder(e.rw).Encode(map[string]string{"you": e.key, "url": e.r.RequestURI})
	case "html":
		io.WriteString(e.rw, "<p>"+html.EscapeString(e.key)+"</p>")
	case "uri":
		io.WriteString(e.rw, e.r.RequestURI+"\n"+e.r.URL.Query().Get("api_key_x"))
	case "uri-redirect":
		h.Set("Location", "https://x.test"+e.r.RequestURI)
		e.rw.WriteHeader(301)
	case "uri-error":
		http.Error(e.rw, "not found: "+e.r.RequestURI, 404)
	default:
		return false
	}
	return true
}

// encoded repeats the credential in other ways of writing.
func (e *echoing) encoded(h http.Header) bool {
	based := func(before string) string { return base64.StdEncoding.EncodeToString([]byte(before + e.key + "\n")) }
	each := func(format string) {
		for i := range len(e.key) {
			fmt.Fprintf(e.rw, format, e.key[i])
		}
	}
	switch e.how {
	case "base64-0", "base64-1", "base64-2":
		io.WriteString(e.rw, based("ab"[:e.how[7]-'0']))
	case "base64-json":
		h.Set("Content-Type", "application/json")
		json.NewEncoder(e.rw).Encode(map[string]string{"data": based(`{"token":"`)})
	case "hex":
		each("%02x")
	case "hex-capitals":
		each("%02X")
	case "utf-16":
		each("%c\x00")
	case "unicode-escapes":
		each(`\u%04x`)
	case "percent-all":
		each("%%%02X")
	case "entities":
		each("&#%d;")
	case "header-base64":
		h.Set("X-Echo", based(""))
	case "trailer-hex":
		io.WriteString(e.rw, "served\n")
		h.Set(http.TrailerPrefix+"X-Late", hex.EncodeToString([]byte(e.key)))
	default:
		return false
	}
	return true
}

// hidden repeats the credential compressed, in bodies that have no coding.
func (e *echoing) hidden(h http.Header) bool {
	switch e.how {
	case "hidden-gzip":
		e.rw.Write(packed(e.said))
	case "hidden-gzip-pieces":
		for _, c := range packed(e.said) {
			e.rw.Write([]byte{c})
			e.rc.Flush()
		}
	case "hidden-zlib":
		z := zlib.NewWriter(e.rw)
		io.WriteString(z, e.said)
		z.Close()
	case "hidden-gzip-base64":
		io.WriteString(e.rw, base64.StdEncoding.EncodeToString(packed(e.said)))
	case "grpc-gzip":
		h.Set("Content-Type", "application/grpc+proto")
		h.Set("Grpc-Encoding", "gzip")
		body := packed(e.said)
		e.rw.Write(append([]byte{1, 0, 0, 0, byte(len(body))}, body...))
	default:
		return false
	}
	return true
}

// broken repeats the credential in incomplete answers.
func (e *echoing) broken() bool {
	switch e.how {
	case "reset":
		e.hijack(func(net.Conn) {})
	case "garbage":
		e.hijack(func(c net.Conn) { fmt.Fprintf(c, "NOT HTTP %s %s\r\n\r\n", e.key, e.r.RequestURI) })
	case "cut":
		e.hijack(func(c net.Conn) { fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n%s", e.said) })
	case "bad-header":
		e.hijack(func(c net.Conn) { fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nX %s: \x00%s\r\n\r\n", e.key, e.key) })
	case "bad-chunk":
		e.hijack(func(c net.Conn) {
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=%s\r\nhello\r\n%s\r\n", e.key, e.key)
		})
	default:
		return false
	}
	return true
}

// packed returns s compressed by gzip.
func packed(s string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, s)
	z.Close()
	return b.Bytes()
}

// hijack lets f write to the connection, and closes it.
func (e *echoing) hijack(f func(c net.Conn)) {
	if c, _, err := e.rc.Hijack(); err == nil {
		f(c)
		c.Close()
	}
}

// coded answers with text that has a content coding.
func coded(rw http.ResponseWriter, how string) {
	text := "a text that is nothing special\n"
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, text)
	z.Close()
	rw.Header().Set("Content-Type", "text/plain")
	coding, body := "gzip", b.Bytes()
	switch how {
	case "identity":
		coding, body = "identity", []byte(text)
	case "br":
		coding, body = "br", []byte(attacker.Brotli(text))
	case "unknown":
		coding = "x-unheard"
	case "false-gzip":
		body = []byte(text)
	case "cut-gzip":
		body = body[:len(body)-6]
	case "deep":
		coding = "gzip, gzip, gzip, gzip"
	}
	rw.Header().Set("Content-Encoding", coding)
	rw.Write(body)
}

// all returns the requests that came.
func (o *origin) all() []arrived {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]arrived(nil), o.seen...)
}

// completed returns the attacks and ways whose requests all arrived whole.
func (o *origin) completed() (out [][2]string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for m := range o.whole {
		f := strings.Split(m, "|")
		if len(f) != 4 || f[2] != "1" || f[0] == "control" {
			continue
		}
		n, _ := strconv.Atoi(f[3])
		for i := 2; i <= n && m != ""; i++ {
			if !o.whole[strings.Join([]string{f[0], f[1], strconv.Itoa(i), f[3]}, "|")] {
				m = ""
			}
		}
		if m != "" {
			out = append(out, [2]string{f[0], f[1]})
		}
	}
	return out
}

// world starts a server for each entry of of, and makes the entry's names lead to it.
func (l *lab) world(of map[string]**origin) error {
	conf := &tls.Config{GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		return l.issuer.Leaf(h.ServerName)
	}, NextProtos: []string{"http/1.1"}}
	for name, to := range of {
		c := conf
		if strings.HasPrefix(name, "plain") {
			c = nil
		}
		o, err := serveOrigin(c)
		if err != nil {
			return err
		}
		*to = o
		l.closers = append(l.closers, o.close)
		l.names.set(name, "127.0.0.1")
	}
	return nil
}

// routesFile writes a route file outside of what bottles see.
func (l *lab) routesFile(text string) (string, error) {
	name := l.dir + "/c/routes.yaml"
	return name, os.WriteFile(name, []byte(text), 0o600)
}

// credentialed makes one bottle with routes that add credentials, and attacks those.
func credentialed(l *lab, chosen []attacker.Attack) error {
	// What has to be escaped in URLs, JSON and HTML is in them, and what is looked
	// for is not changed by that.
	key, param, watched := l.marker+"/+<="+l.token, l.marker+"&?/+"+l.token+"q", l.marker+"-"+l.token+"w"
	l.variables[attacker.Key], l.variables[attacker.Param], l.variables["CORPUS_WATCHED"] = key, param, watched
	var cred, query, other, plain, open *origin
	if err := l.world(map[string]**origin{"cred.test": &cred, "query.test": &query, "leak.test": &other, "plain-cred.test": &plain, "plain.test": &open}); err != nil {
		return err
	}
	w := &attacker.World{
		Workspace: l.ws, Marker: reversed(l.marker), ReadOnly: givenAt, Cred: "cred.test:" + cred.port, CredQuery: "query.test:" + query.port, CredPlain: "plain-cred.test:" + plain.port, Leak: "leak.test:" + other.port, Open: "plain.test:" + open.port,
	}
	file, err := l.routesFile(fmt.Sprintf(`routes:
  - {host: %q, private: true, token_env: %s, matches: [{paths: [{value: /v1}]}]}
  - {host: %q, private: true}
  - {host: %q, private: true, token_env: %s, auth_scheme: query, auth_field: api_key_x}
  - {host: %q, private: true, token_env: %s}
  - {host: %q, private: true}
  - {host: %q, private: true}
`, w.Cred, attacker.Key, w.Cred, w.CredQuery, attacker.Param, w.CredPlain, attacker.Key, w.Leak, w.Open))
	if err != nil {
		return err
	}
	var told buffer
	r, err := l.attack(chosen, w, func(o *carboy.RunOptions) {
		o.Routes, o.Secrets = file, []string{"CORPUS_WATCHED"}
		withEvents(&told)(o)
	})
	if err != nil {
		return err
	}
	if !r.exited() {
		return fmt.Errorf("the bottle ended with %s", r.ended())
	}
	l.observeCredentials(r, w, cred, query, other, plain, open)
	// What the bottle knows came back above; here is what the host wrote down.
	if v, ok := l.heldBy(told.String()); ok {
		l.verdicts["placeholders/records"] = v
	}
	return nil
}

// heldBy looks for the planted text in all kept files of runs, and in text.
func (l *lab) heldBy(text string) (v verdict, ok bool) {
	files := 0
	v = contained("no record of them holds it")
	look := func(where string, b []byte) {
		if bytes.Contains(b, []byte(l.token)) {
			v = escaped("%s holds it", where)
		}
	}
	look("what the user is told", []byte(text))
	filepath.WalkDir(l.state, func(p string, d fs.DirEntry, err error) error {
		// The command's own output is evidence here, which is judged apart.
		if err != nil || !d.Type().IsRegular() || strings.Contains(p, "/logs/") {
			return nil
		}
		if b, err := os.ReadFile(p); err == nil {
			files++
			look(strings.TrimPrefix(p, l.state), b)
		}
		return nil
	})
	if files == 0 {
		return untried("there are no records"), true
	}
	v.ways = files
	return v, true
}

// observeCredentials judges the attacks by what the servers saw, and by the receipt.
func (l *lab) observeCredentials(r *ran, w *attacker.World, cred, query, other, plain, open *origin) {
	right := 0
	for _, a := range cred.all() {
		clean := "/" + strings.TrimPrefix(path.Clean("/"+read(targetOf(a))), "/")
		inside := clean == "/v1" || strings.HasPrefix(clean, "/v1/")
		if l.rightlyPut(a, w, clean, inside) {
			right++
		}
		if inside {
			l.accuseOwn(a)
		}
	}
	for name, o := range map[string]*origin{"another host": other, "the credential's host, by plain HTTP": plain, "a plain server": open} {
		l.accuseElsewhere(name, o, w)
	}
	if right == 0 {
		l.doubt("no request ever had the credential", l.judgedOf("credentials", "placeholders")...)
	}
	for _, a := range query.all() {
		if !strings.Contains(a.uri, l.token) {
			l.doubt("the query's credential is not there", credentialIDs("echo-query")...)
		}
	}
	used := false
	for _, c := range r.rec.Network.Credentials {
		used = used || c.Name == attacker.Key && c.Requests > 0
	}
	if !used {
		l.doubt("the receipt names no credential that was used", l.judgedOf("credentials")...)
	}
}

// targetOf returns the target of a request without its query.
func targetOf(a arrived) string {
	target, _, _ := strings.Cut(a.uri, "?")
	return target
}

// credentialIDs returns the attacks of the family of credentials that have these names.
func credentialIDs(ids ...string) []string {
	var out []string
	for _, id := range ids {
		out = append(out, "credentials/"+id)
	}
	return out
}

// holds reports whether a request came with a real credential.
func (l *lab) holds(a arrived) bool {
	return strings.Contains(fmt.Sprint(a.header, a.trailer, a.uri), l.token)
}

// rightlyPut reports whether a request to the credential's server came with the
// credential as it should. It accuses the attacks that made it come in another way.
func (l *lab) rightlyPut(a arrived, w *attacker.World, clean string, inside bool) bool {
	where := a.host + " " + a.uri
	held := l.holds(a)
	switch {
	case held && !strings.EqualFold(a.host, w.Cred):
		l.accuse("the credential was on a request for another host: "+where, credentialIDs("other-hosts", "other-authority")...)
	case held && !inside:
		l.accuse("the credential was on a request that a server reads as "+clean, credentialIDs("path-tricks")...)
	case held && len(a.header["Authorization"]) != 1:
		l.accuse(fmt.Sprintf("there are %d credentials on %s", len(a.header["Authorization"]), where), credentialIDs("hop-by-hop", "own-headers")...)
	case inside && !held:
		l.accuse("a request of the credential's route has none: "+where, credentialIDs("hop-by-hop", "own-headers")...)
	case held:
		return true
	}
	return false
}

// accuseOwn accuses the attack that brought a credential of the attacker's own to
// the server.
func (l *lab) accuseOwn(a arrived) {
	if !a.own && !strings.Contains(fmt.Sprint(a.header, a.trailer, a.uri), attacker.Own) && !strings.Contains(fmt.Sprint(a.header), base64.StdEncoding.EncodeToString([]byte(attacker.Own))) {
		return
	}
	id := "own-headers"
	switch {
	case a.own:
		id = "own-fields"
	case strings.Contains(a.uri, attacker.Own):
		id = "own-parameters"
	case strings.Contains(fmt.Sprint(a.trailer), attacker.Own):
		id = "own-trailers"
	}
	l.accuse(fmt.Sprintf("the server saw a credential of the attacker's: %s %v %v", a.host+" "+a.uri, a.header, a.trailer), credentialIDs(id)...)
}

// accuseElsewhere accuses the attacks that may have brought the credential to a
// server that should not have it.
func (l *lab) accuseElsewhere(name string, o *origin, w *attacker.World) {
	suspects := credentialIDs("redirects", "placeholder-elsewhere", "other-hosts", "other-authority", "plain-http")
	for _, a := range o.all() {
		if l.holds(a) {
			l.accuse("the credential arrived at "+name+": "+a.uri, suspects...)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	raw := o.raw.Bytes()
	if bytes.Contains(raw, []byte(l.token)) || bytes.Contains(raw, []byte("Host: "+w.Cred+"\r\n")) {
		l.accuse("the credential, or a request for its host, arrived at "+name, suspects...)
	}
}

// read decodes a path as a lenient server does, even one that is encoded twice.
func read(p string) string {
	for range 3 {
		q, err := url.PathUnescape(p)
		if err != nil {
			break
		}
		p = q
	}
	p = strings.ReplaceAll(p, `\`, "/")
	var out []string
	for _, s := range strings.Split(p, "/") {
		s, _, _ = strings.Cut(s, ";")
		out = append(out, s)
	}
	return strings.Join(out, "/")
}

// leaving makes one bottle that knows watched secrets, and tries to bring them out.
func leaving(l *lab, chosen []attacker.Attack) error {
	watched, file := map[string]string{}, &strings.Builder{}
	for i, a := range chosen {
		v := secretText()
		watched[a.ID] = v
		fmt.Fprintf(file, "WATCHED_%d=%s\n", i, v)
	}
	env := l.dir + "/c/watched.env"
	if err := os.WriteFile(env, []byte(file.String()), 0o600); err != nil {
		return err
	}
	var leak, wild *origin
	if err := l.world(map[string]**origin{"leak.test": &leak, "a.wild.test": &wild}); err != nil {
		return err
	}
	w := &attacker.World{Workspace: l.ws, Marker: reversed(l.marker), Leak: "leak.test:" + leak.port, Wild: "wild.test", LeakWild: "a.wild.test:" + wild.port, Watched: map[string]string{}}
	for id, v := range watched {
		w.Watched[id] = reversed(v)
	}
	routes, err := l.routesFile(fmt.Sprintf("routes:\n  - {host: %q, private: true}\n  - {host: \"*.wild.test:%s\", private: true}\n  - {host: \"*.wild.test\"}\n", w.Leak, wild.port))
	if err != nil {
		return err
	}
	r, err := l.attack(chosen, w, func(o *carboy.RunOptions) { o.Routes, o.Secrets = routes, []string{env} })
	if err != nil {
		return err
	}
	if !r.exited() {
		return fmt.Errorf("the bottle ended with %s", r.ended())
	}
	for _, c := range leak.completed() {
		l.accuse("the server got all of it: "+c[1], c[0])
	}
	leak.mu.Lock()
	raw := strings.ToLower(leak.raw.String())
	leak.mu.Unlock()
	for id, v := range watched {
		for form, s := range map[string]string{"plain": v, "hex": hex.EncodeToString([]byte(v)), "base64": base64.StdEncoding.EncodeToString([]byte(v))} {
			for i := 0; i+20 <= len(s); i++ {
				if strings.Contains(raw, strings.ToLower(s[i:i+20])) {
					l.accuse("the server got a part of it, "+form, id)
					break
				}
			}
		}
		for _, part := range []string{strings.ToLower(v[:20]), hex.EncodeToString([]byte(v))[:20], strings.ToLower(base32.StdEncoding.EncodeToString([]byte(v)))[:16]} {
			if got := l.names.matching(part); len(got) > 0 {
				l.accuse(fmt.Sprintf("it was asked for outside: %q", got[0]), "secrets/labels")
			}
		}
	}
	for _, a := range wild.all() {
		if !strings.EqualFold(a.host, w.LeakWild) {
			l.accuse("the server under the wildcard saw "+a.host, "secrets/server-name")
		}
	}
	found := len(r.rec.Network.Found)
	if ids := l.judgedOf("secrets"); len(ids) > 2 && (found == 0 || len(leak.all()) == 0) {
		l.doubt(fmt.Sprintf("the receipt has %d findings, and the server saw %d requests", found, len(leak.all())), ids...)
	}
	return nil
}

// secretText returns a new secret that no other text resembles.
func secretText() string {
	const letters = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789"
	b, _ := hex.DecodeString(random(36))
	for i := range b {
		b[i] = letters[int(b[i])%len(letters)]
	}
	return string(b)
}
