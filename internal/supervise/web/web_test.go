package web

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/supervise/supervisetest"
	"github.com/carboy/carboy/internal/testenv"
)

var patience = testenv.Patience(time.Minute)

// client sends requests like a browser, with the changes of an attacker.
type client struct {
	t      *testing.T
	s      *Server
	base   string
	cookie string
}

// enter starts a session.
func enter(t *testing.T, s *Server) *client {
	t.Helper()
	c := &client{t: t, s: s}
	r := c.do("GET", strings.TrimPrefix(s.Link(), s.origin), "", nil)
	m := regexp.MustCompile(`url=(/s/[0-9a-f]+/)"`).FindStringSubmatch(r.body)
	if r.status != 200 || m == nil {
		t.Fatalf("the address does not let in: %d %s", r.status, r.body)
	}
	c.base = m[1]
	set := r.header.Get("Set-Cookie")
	for _, want := range []string{"HttpOnly", "SameSite=Strict", "Path=" + c.base} {
		if !strings.Contains(set, want) {
			t.Errorf("the cookie %q lacks %s", set, want)
		}
	}
	c.cookie, _, _ = strings.Cut(set, ";")
	return c
}

type response struct {
	status int
	header http.Header
	body   string
}

// do requests a path like the page itself. change modifies the request.
func (c *client) do(method, path, form string, change func(*http.Request)) response {
	c.t.Helper()
	r, err := http.NewRequest(method, c.s.origin+path, strings.NewReader(form))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	if c.cookie != "" {
		r.Header.Set("Cookie", c.cookie)
	}
	if method == "POST" {
		r.Header.Set("Origin", c.s.origin)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if change != nil {
		change(r)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<22))
	return response{resp.StatusCode, resp.Header, string(b)}
}

func (c *client) get(path string) response {
	c.t.Helper()
	return c.do("GET", c.base+path, "", nil)
}

var tokenInForm = regexp.MustCompile(`name="token" value="([0-9a-f]+)"`)

// form returns the form that answers a proposal.
func (c *client) form(p supervise.Proposal, verdict string) url.Values {
	c.t.Helper()
	r := c.get("p/" + string(p.ID))
	m := tokenInForm.FindStringSubmatch(r.body)
	if m == nil {
		c.t.Fatalf("no form: %d %s", r.status, r.body)
	}
	return url.Values{"verdict": {verdict}, "digest": {p.Digest.String()}, "token": {m[1]}, "note": {"n"}}
}

func (c *client) post(p supervise.Proposal, form url.Values, change func(*http.Request)) response {
	c.t.Helper()
	return c.do("POST", c.base+"p/"+string(p.ID), form.Encode(), change)
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) {
		if value == "" {
			r.Header.Del(name)
			return
		}
		r.Header.Set(name, value)
	}
}

// TestForged checks that requests that differ in one thing from the page's own have no
// effect.
func TestForged(t *testing.T) {
	q := &supervisetest.Queue{}
	one := q.Add("b", "", supervisetest.Route("one.example"))
	two := q.Add("b", "", supervisetest.Route("two.example"))
	s := served(t, q)
	c, other := enter(t, s), enter(t, s)
	form := c.form(one, "approved")
	with := func(name, value string) url.Values {
		out := url.Values{}
		for k, v := range form {
			out[k] = v
		}
		out.Set(name, value)
		return out
	}
	for name, x := range map[string]struct {
		of     supervise.Proposal
		form   url.Values
		change func(*http.Request)
		want   int
	}{
		"no cookie":                    {one, form, header("Cookie", ""), 403},
		"another session's cookie":     {one, form, header("Cookie", other.cookie), 403},
		"a cookie of one's own":        {one, form, header("Cookie", cookieName+"="+strings.Repeat("0", 64)), 403},
		"too many cookies":             {one, form, header("Cookie", strings.Repeat(cookieName+"=x; ", 50)+c.cookie), 403},
		"another site":                 {one, form, header("Sec-Fetch-Site", "cross-site"), 403},
		"another port":                 {one, form, header("Sec-Fetch-Site", "same-site"), 403},
		"typed":                        {one, form, header("Sec-Fetch-Site", "none"), 403},
		"another origin":               {one, form, header("Origin", "http://evil.example"), 403},
		"another port's origin":        {one, form, header("Origin", "http://127.0.0.1:1"), 403},
		"no origin that is known":      {one, form, header("Origin", "null"), 403},
		"neither of both":              {one, form, func(r *http.Request) { r.Header.Del("Origin"); r.Header.Del("Sec-Fetch-Site") }, 403},
		"another host":                 {one, form, func(r *http.Request) { r.Host = "rebound.example" }, 421},
		"another host, our port":       {one, form, func(r *http.Request) { r.Host = "localhost" + s.host[strings.IndexByte(s.host, ':'):] }, 421},
		"a frame":                      {one, form, header("Sec-Fetch-Dest", "iframe"), 403},
		"no token":                     {one, with("token", ""), nil, 403},
		"a token of one's own":         {one, with("token", strings.Repeat("0", 64)), nil, 403},
		"another session's token":      {one, with("token", other.form(one, "").Get("token")), nil, 403},
		"another proposal's token":     {one, with("token", c.form(two, "").Get("token")), nil, 403},
		"the token for another":        {two, form, nil, 403},
		"another digest":               {one, with("digest", two.Digest.String()), nil, 403},
		"a payload besides":            {one, with("as", two.Digest.String()), nil, 403},
		"JSON":                         {one, form, header("Content-Type", "application/json"), 415},
		"text":                         {one, form, header("Content-Type", "text/plain"), 415},
		"several parts":                {one, form, header("Content-Type", "multipart/form-data; boundary=x"), 415},
		"no verdict":                   {one, with("verdict", ""), nil, 400},
		"a verdict of somebody else's": {one, with("verdict", "expired"), nil, 400},
		"an oversized note":            {one, with("note", strings.Repeat("x", supervise.MaxNote+1)), nil, 500},
		"an oversized form":            {one, with("note", strings.Repeat("x", maxForm)), nil, 413},
	} {
		before := len(q.Replies())
		r := c.post(x.of, x.form, x.change)
		if r.status != x.want {
			t.Errorf("%s: %d, want %d: %.300s", name, r.status, x.want, r.body)
		}
		if got := q.Replies(); len(got) != before && name != "an oversized note" {
			t.Errorf("%s: answered: %+v", name, got[len(got)-1])
		}
		if strings.Contains(r.body, "one.example") && x.want != 500 {
			t.Errorf("%s: it was shown the proposal", name)
		}
	}
	for _, p := range []supervise.Proposal{one, two} {
		if q.Entry(p.ID).Answer != nil {
			t.Fatal("a forged request answered")
		}
	}
	// Requests that only read must meet the same conditions.
	for name, change := range map[string]func(*http.Request){
		"no cookie": header("Cookie", ""), "another site": header("Sec-Fetch-Site", "cross-site"), "another port": header("Sec-Fetch-Site", "same-site"),
		"another origin": header("Origin", "http://evil.example"), "another host": func(r *http.Request) { r.Host = "evil.example" }, "a frame": header("Sec-Fetch-Dest", "iframe"),
	} {
		for _, path := range []string{"", "rows", "events", "p/" + string(one.ID), "page.js", "icon.svg"} {
			if r := c.do("GET", c.base+path, "", change); r.status != 403 && r.status != 421 || strings.Contains(r.body, "one.example") {
				t.Errorf("%s: %q: %d", name, path, r.status)
			}
		}
	}
	for _, path := range []string{"/", "/s/", "/s/x/", c.base[:len(c.base)-2] + "x/", "/rows", c.base + "../..//" + c.base, c.base + "p/", c.base + "p/" + string(one.ID)[:5], c.base + "page/page.html"} {
		if r := c.do("GET", path, "", nil); r.status == 200 {
			t.Errorf("%s: %d", path, r.status)
		}
	}
	for _, method := range []string{"PUT", "DELETE", "OPTIONS", "PATCH", "HEAD"} {
		if r := c.do(method, c.base, "", nil); r.status != 405 {
			t.Errorf("%s: %d", method, r.status)
		}
	}
	// The counter-check: the page's own request.
	if r := c.post(one, form, nil); r.status != 303 || q.Entry(one.ID).Answer == nil {
		t.Errorf("the page's own form: %d %s", r.status, r.body)
	}
	// The same request again is too late.
	if r := c.post(one, form, nil); r.status != 409 || !strings.Contains(r.body, "too late") {
		t.Errorf("a replay: %d", r.status)
	}
}

// TestAddressWorksOnce checks that a link works for one browser and a limited time.
func TestAddressWorksOnce(t *testing.T) {
	s := served(t, &supervisetest.Queue{})
	var mu sync.Mutex
	now := time.Now()
	s.sessions.now = func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	c := &client{t: t, s: s}
	path := func() string { return strings.TrimPrefix(s.Link(), s.origin) }

	// A browser's prefetch does not use it up.
	link := path()
	for name, change := range map[string]func(*http.Request){"prefetch": header("Sec-Purpose", "prefetch"), "image": header("Sec-Fetch-Dest", "image"), "frame": header("Sec-Fetch-Dest", "iframe"), "host": func(r *http.Request) { r.Host = "evil.example" }} {
		if r := c.do("GET", link, "", change); r.status == 200 || r.header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %d", name, r.status)
		}
	}
	// Of many concurrent requests, one gets in.
	var wait sync.WaitGroup
	in := make(chan int, 50)
	for range cap(in) {
		wait.Go(func() { in <- c.do("GET", link, "", nil).status })
	}
	wait.Wait()
	close(in)
	entered := 0
	for status := range in {
		if status == 200 {
			entered++
		}
	}
	if entered != 1 {
		t.Errorf("%d got in", entered)
	}
	// A session id that somebody else has chosen is not valid.
	if r := c.do("GET", "/s/"+strings.Repeat("a", 64)+"/", "", header("Cookie", cookieName+"=chosen")); r.status != 403 {
		t.Errorf("a session that was chosen: %d", r.status)
	}
	old := path()
	fresh := path()
	if r := c.do("GET", old, "", nil); r.status != 403 {
		t.Errorf("one before the last: %d", r.status)
	}
	mu.Lock()
	now = now.Add(tokenLife)
	mu.Unlock()
	if r := c.do("GET", fresh, "", nil); r.status != 403 {
		t.Errorf("one that is too old: %d", r.status)
	}
	for _, token := range []string{"", strings.Repeat("0", 64), fresh[4:10]} {
		if r := c.do("GET", "/in/"+token, "", nil); r.status != 403 {
			t.Errorf("%q: %d", token, r.status)
		}
	}
	// Idle sessions end, and their number is bounded.
	first := enter(t, s)
	mu.Lock()
	now = now.Add(sessionLife + time.Second)
	mu.Unlock()
	if r := first.get(""); r.status != 403 {
		t.Errorf("a session that nobody used: %d", r.status)
	}
	for range 2 * maxSessions {
		enter(t, s)
	}
	if n := len(s.sessions.sessions); n > maxSessions {
		t.Errorf("%d sessions", n)
	}
	if r := enter(t, s).get(""); r.status != 200 {
		t.Errorf("the newest: %d", r.status)
	}
}

// nowhere is an audit log that keeps nothing.
type nowhere struct{}

func (nowhere) Append(context.Context, ...audit.Event) (audit.Position, error) {
	return audit.Position{}, nil
}

// TestWhoWaitsGoesOn answers a proposal of a queue on disk, and its asker goes on.
func TestWhoWaitsGoesOn(t *testing.T) {
	q, err := supervise.Open(t.TempDir()+"/supervise", supervise.Options{Audit: nowhere{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close() }) // after the pages' ends
	asker, err := q.Asker(supervise.AskerOptions{Bottle: "b"})
	if err != nil {
		t.Fatal(err)
	}
	defer asker.Close()
	for _, verdict := range []string{"approved", "rejected"} {
		ticket, err := asker.Propose(t.Context(), supervisetest.Route(verdict+".example"), supervise.Draft{})
		if err != nil {
			t.Fatal(err)
		}
		c := enter(t, served(t, q))
		p := ticket.Proposal()
		if r := c.post(p, c.form(p, verdict), nil); r.status != 303 {
			t.Fatalf("%d %s", r.status, r.body)
		}
		o, err := ticket.Wait(t.Context())
		if err != nil || string(o.Answer.Verdict) != verdict || o.Answer.By.Channel != supervise.ChannelWeb || o.Answer.By.UID != os.Getuid() || o.Answer.Note != "n" || o.Answer.Digest != p.Digest {
			t.Errorf("%+v %v", o.Answer, err)
		}
		if r := c.get("p/" + string(p.ID)); !strings.Contains(r.body, "on this page") || tokenInForm.MatchString(r.body) {
			t.Errorf("afterwards the page shows %s", r.body)
		}
	}
}

// TestChangedMeanwhile checks that an answer is for the digest that was shown, whatever now
// has its id.
func TestChangedMeanwhile(t *testing.T) {
	q := &supervisetest.Queue{}
	one := q.Add("b", "", supervisetest.Route("one.example"))
	c := enter(t, served(t, q))
	form := c.form(one, "approved")
	q.Change(one.ID, supervisetest.Route("evil.example"))
	if r := c.post(one, form, nil); r.status != 409 || q.Entry(one.ID).Answer != nil {
		t.Errorf("%d: %+v", r.status, q.Entry(one.ID).Answer)
	}
	// The payload that was shown is approved, also a modified one.
	two := q.Add("b", "", supervisetest.Route("two.example"))
	form = c.form(two, "look")
	form.Set("text", "routes:\r\n  - host: two.example\r\n")
	r := c.post(two, form, nil)
	m := tokenInForm.FindStringSubmatch(r.body)
	as := regexp.MustCompile(`name="as" value="([0-9a-f]+)"`).FindStringSubmatch(r.body)
	if r.status != 200 || m == nil || as == nil {
		t.Fatalf("%d %s", r.status, r.body)
	}
	form.Set("token", m[1])
	form.Set("as", as[1])
	form.Set("verdict", "modified")
	if r := c.post(two, form, nil); r.status != 422 {
		t.Errorf("without its warning: %d", r.status)
	}
	form.Set("sure", "yes")
	form.Set("text", "routes:\n  - host: evil.example\n")
	if r := c.post(two, form, nil); r.status != 409 {
		t.Errorf("another text: %d", r.status)
	}
	form.Set("verdict", "approved")
	if r := c.post(two, form, nil); r.status != 400 {
		t.Errorf("what was proposed: %d", r.status)
	}
	if len(q.Replies()) != 1 {
		t.Fatalf("%+v", q.Replies())
	}
	form.Set("verdict", "modified")
	form.Set("text", "routes:\n  - host: two.example\n")
	if r := c.post(two, form, nil); r.status != 303 || q.Entry(two.ID).Answer == nil {
		t.Errorf("what was looked at: %d %s", r.status, r.body)
	}
}

// TestWarningIsNeeded checks that a proposal with a warning needs the checked box, also
// without a script.
func TestWarningIsNeeded(t *testing.T) {
	q := &supervisetest.Queue{}
	one := q.Add("b", "", supervisetest.AnyRoute("one.example"))
	c := enter(t, served(t, q))
	form := c.form(one, "approved")
	if r := c.post(one, form, nil); r.status != 422 || len(q.Replies()) != 0 {
		t.Errorf("approved in spite of its warning: %d", r.status)
	}
	form.Set("sure", "yes")
	if r := c.post(one, form, nil); r.status != 303 {
		t.Errorf("with its box checked: %d", r.status)
	}
}

// TestSigned checks that a proposal that needs a signature has no button to approve, that a
// forged form is refused, and that it can be rejected.
func TestSigned(t *testing.T) {
	q := &supervisetest.Queue{}
	one, two := q.Add("ship", "", supervisetest.Apply("prod1")), q.Add("b", "", supervisetest.Route("two.example"))
	c := enter(t, served(t, q))
	path := func(p supervise.Proposal) string { return "p/" + string(p.ID) }
	if r := c.get(path(one)); strings.Contains(r.body, `value="approved"`) || !strings.Contains(r.body, `value="rejected"`) || !strings.Contains(r.body, "carboy ship approve plans/web.plan.json") {
		t.Errorf("it is shown as\n%s", r.body)
	}
	if r := c.get(path(two)); !strings.Contains(r.body, `value="approved"`) {
		t.Error("another kind has no button either")
	}
	if r := c.post(one, c.form(one, "approved"), nil); r.status == 303 || !strings.Contains(r.body, "signature") {
		t.Errorf("approved: %d", r.status)
	}
	if r := c.post(one, c.form(one, "rejected"), nil); r.status != 303 {
		t.Errorf("rejected: %d", r.status)
	}
}

// TestOneAnswerCounts checks that one of many concurrent answers counts, and that the
// others learn it.
func TestOneAnswerCounts(t *testing.T) {
	q := &supervisetest.Queue{}
	one := q.Add("b", "", supervisetest.Route("one.example"))
	c := enter(t, served(t, q))
	forms := []url.Values{c.form(one, "approved"), c.form(one, "rejected")}
	var wait sync.WaitGroup
	got := make(chan int, 40)
	for i := range cap(got) {
		wait.Go(func() { got <- c.post(one, forms[i%2], nil).status })
	}
	wait.Wait()
	close(got)
	count := map[int]int{}
	for s := range got {
		count[s]++
	}
	if count[303] != 1 || count[409] != cap(got)-1 {
		t.Errorf("%v", count)
	}
}

// TestHeaders checks the headers of every answer, refusals included.
func TestHeaders(t *testing.T) {
	s := served(t, &supervisetest.Queue{})
	c := enter(t, s)
	for _, path := range []string{c.base, c.base + "rows", c.base + "page.js", "/in/x", "/", c.base + "nothing"} {
		h := c.do("GET", path, "", nil).header
		csp := h.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'self'", "base-uri 'none'", "trusted-types 'none'"} {
			if !strings.Contains(csp, want) {
				t.Errorf("%s: the policy lacks %s", path, want)
			}
		}
		if strings.Contains(csp, "unsafe") || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("X-Frame-Options") != "DENY" || h.Get("Referrer-Policy") != "same-origin" || h.Get("Cross-Origin-Resource-Policy") != "same-origin" {
			t.Errorf("%s: %v", path, h)
		}
	}
}

// TestPageLoadsNothing checks that the page's own files refer to no other host and make no
// markup of text.
func TestPageLoadsNothing(t *testing.T) {
	for _, name := range []string{"page.html", "lone.html", "page.css", "page.js", "icon.svg"} {
		b, err := files.ReadFile("page/" + name)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(b), "http://www.w3.org/2000/svg", "")
		if m := regexp.MustCompile(`(?i)https?:|@import|url\(|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|XMLHttp|WebSocket|import\(|\son\w+=|<style|style=|javascript:|srcdoc`).FindString(text); m != "" {
			t.Errorf("%s has %q", name, m)
		}
	}
}

// TestSlow checks that a slow or silent client holds a connection for seconds only, and
// that event streams are not cut off.
func TestSlow(t *testing.T) {
	t.Parallel() // it waits, most of the time
	q := &supervisetest.Queue{}
	s := served(t, q)
	c := enter(t, s)
	r, err := http.NewRequest("GET", s.origin+c.base+"events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Cookie", c.cookie)
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	stream, err := (&http.Transport{}).RoundTrip(r)
	if err != nil || stream.StatusCode != 200 {
		t.Fatalf("%v %v", stream, err)
	}
	defer stream.Body.Close()
	events := bufio.NewScanner(stream.Body)
	next := func() string {
		for events.Scan() {
			if strings.HasPrefix(events.Text(), "data: ") {
				return events.Text()
			}
		}
		t.Fatal("the stream ended: ", events.Err())
		return ""
	}
	first := next()
	var conns []net.Conn
	for range maxConns - 2 {
		conn, err := net.Dial("tcp", s.host)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nX: ", c.base, s.host)
		conns = append(conns, conn)
	}
	// There is a free connection, and if all were taken, one is free soon.
	q.Add("b", "", supervisetest.Route("one.example"))
	if second := next(); second == first {
		t.Errorf("%q and %q", first, second)
	}
	if r := c.get(""); r.status != 200 {
		t.Errorf("%d", r.status)
	}
	for _, conn := range conns {
		conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("a connection that sends no request is kept")
		}
	}
}

// TestOtherUser checks that a process of another user gets no byte, even with the token.
func TestOtherUser(t *testing.T) {
	testenv.Root(t)
	s := served(t, &supervisetest.Queue{})
	get := func(uid uint32) string {
		cmd := exec.Command(testenv.Need(t, "bash", "apt-get install bash"), "-c",
			fmt.Sprintf(`exec 3<>/dev/tcp/%s; printf 'GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' >&3; cat <&3`, strings.Replace(s.host, ":", "/", 1), strings.TrimPrefix(s.Link(), s.origin), s.host))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, _ := cmd.Output()
		return string(out)
	}
	if got := get(65534); got != "" {
		t.Errorf("another user got %q", got)
	}
	if got := get(0); !strings.HasPrefix(got, "HTTP/1.1 200") {
		t.Errorf("its own user got %q", got)
	}
}

func TestWhoseConnection(t *testing.T) {
	const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 11111 1 0
   1: 0100007F:A000 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1001        0 22222 1 0
   2: 0100007F:A001 0100007F:1F90 06 00000000:00000000 00:00000000 00000000     0        0 0 3 0
   3: 0100007F:A002
`
	here := netip.MustParseAddrPort("127.0.0.1:8080")
	for from, want := range map[string]int{"127.0.0.1:40960": 1001, "127.0.0.1:40961": -1, "127.0.0.1:40962": -1, "127.0.0.1:1": -1, "127.0.0.2:40960": -1, "[::1]:40960": -1} {
		uid, err := uidOf(strings.NewReader(table), netip.MustParseAddrPort(from), here)
		if err != nil {
			uid = -1
		}
		if uid != want {
			t.Errorf("%s: %d, want %d (%v)", from, uid, want, err)
		}
	}
	s := served(t, &supervisetest.Queue{})
	conn, err := net.Dial("tcp", s.host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if uid, err := uidOf(f, netip.MustParseAddrPort(conn.LocalAddr().String()), netip.MustParseAddrPort(s.host)); err != nil || uid != os.Getuid() {
		t.Errorf("our own connection is of %d: %v", uid, err)
	}
}

// TestLoopbackOnly checks that the port is on 127.0.0.1 only, and that a taken port is an
// error.
func TestLoopbackOnly(t *testing.T) {
	s := served(t, &supervisetest.Queue{})
	host, port, _ := net.SplitHostPort(s.host)
	if host != "127.0.0.1" {
		t.Errorf("it listens at %s", host)
	}
	var n int
	fmt.Sscan(port, &n)
	if _, err := Listen(Options{Queue: &supervisetest.Queue{}, Port: n}); err == nil || !strings.Contains(err.Error(), "is taken") {
		t.Errorf("a port that is taken: %v", err)
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		ip := a.(*net.IPNet).IP
		if ip.Equal(net.IPv4(127, 0, 0, 1)) {
			continue
		}
		d := net.Dialer{Timeout: time.Second}
		if c, err := d.DialContext(context.Background(), "tcp", net.JoinHostPort(ip.String(), port)); err == nil {
			c.Close()
			t.Errorf("it listens at %s", ip)
		}
	}
}
