package web

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/carboy/carboy/internal/browsertest"
	"github.com/carboy/carboy/internal/supervise"
	"github.com/carboy/carboy/internal/supervise/supervisetest"
)

// served serves a page until the test ends.
func served(t testing.TB, q Queue) *Server {
	t.Helper()
	s, err := Listen(Options{Queue: q})
	if err != nil {
		t.Fatal(err)
	}
	run(t, s)
	return s
}

// run serves until the test ends.
func run(t testing.TB, s *Server) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

var wide = browsertest.View{Width: 1280, Height: 800}

// signedIn returns a tab that shows the queue.
func signedIn(t *testing.T, b *browsertest.Browser, s *Server, v browsertest.View) *browsertest.Tab {
	t.Helper()
	p := b.Open(t, s.Link(), v)
	// The page that lets in loads the next one by itself.
	p.Until(`location.pathname.startsWith("/s/") && document.readyState === "complete"`)
	if !v.NoScript {
		p.Until(`document.querySelector("#live:not([hidden]):not(.off)")`)
	}
	return p
}

// quiet fails the test if the page reported an error or requested anything from another
// host.
func quiet(t *testing.T, p *browsertest.Tab, s *Server) {
	t.Helper()
	p.Quiet(func(url string) bool { return strings.HasPrefix(url, s.origin+"/") || url == "about:blank" })
}

// accepts waits until the page accepts answers: some time after it was last brought to the
// front.
func accepts(p *browsertest.Tab) {
	browsertest.Eval[bool](p, `new Promise(done => {
		let since = performance.now();
		document.addEventListener("visibilitychange", () => { since = performance.now() });
		const look = () => !document.hidden && performance.now() - since > 300 ? done(true) : setTimeout(look, 20);
		look();
	})`)
}

// press presses Enter on the focused element, once the page accepts answers.
func press(p *browsertest.Tab, do func()) {
	accepts(p)
	p.Loads(do)
}

func rowsOf(p *browsertest.Tab) []string {
	return browsertest.Eval[[]string](p, `Array.from(document.querySelectorAll("#rows .row:not(.gone) .title"), e => e.textContent)`)
}

// TestPage uses the page in a browser, like a person.
func TestPage(t *testing.T) {
	b := browsertest.Start(t)

	t.Run("see, open, approve with a note", func(t *testing.T) {
		q := &supervisetest.Queue{}
		first := q.Add("fix-login", "The tests fetch the list of users.\nThey fail without it.", supervisetest.Route("api.example.com"))
		second := q.Add("fix-login", "", supervisetest.AnyRoute("telemetry.example.net"))
		s := served(t, q)
		p := signedIn(t, b, s, wide)
		p.Screenshot("page-list", false)
		if got := rowsOf(p); len(got) != 2 || !strings.Contains(got[0], "api.example.com") {
			t.Fatalf("the list is %q", got)
		}
		p.Screenshot("page-one", false) // nobody chose it: it is the first
		text := browsertest.Eval[string](p, `document.querySelector("main").innerText`)
		for _, want := range []string{"api.example.com", "The tests fetch the list of users.", "fix-login", "proxy.golang.org", "GET https://api.example.com/api/v1/users", first.Digest.String()[:12]} {
			if !strings.Contains(text, want) {
				t.Errorf("the proposal lacks %q:\n%s", want, text)
			}
		}
		p.Key("t", 0)
		p.Typed("only for the tests")
		p.Key("Escape", 0)
		p.Key("a", 0)
		if len(q.Replies()) != 0 {
			t.Fatal("one key answered")
		}
		press(p, func() { p.Key("Enter", 0) })
		p.Screenshot("page-done", false)
		if r := q.Replies(); len(r) != 1 || r[0].ID != first.ID || r[0].Digest != first.Digest || r[0].Verdict != supervise.Approved || r[0].Note != "only for the tests" || r[0].Channel != supervise.ChannelWeb {
			t.Fatalf("answered: %+v", r)
		}
		if got := browsertest.Eval[string](p, `document.querySelector("#gone").innerText + document.activeElement.id`); !strings.Contains(got, "Approved by me on this page") || !strings.Contains(got, "telemetry") || !strings.HasSuffix(got, "next") {
			t.Errorf("afterwards the page says %q", got)
		}
		// A dangerous proposal is not approved without its warning.
		p.Loads(func() { p.Key("Enter", 0) })
		p.Screenshot("page-warning", false)
		accepts(p)
		p.Click("#approve")
		p.Until(`document.activeElement.name === "sure"`)
		if n := len(q.Replies()); n != 1 {
			t.Fatalf("%d answers", n)
		}
		p.Click("[name=sure]")
		press(p, func() { p.Click("#approve") })
		if r := q.Replies(); len(r) != 2 || r[1].ID != second.ID || r[1].Verdict != supervise.Approved {
			t.Fatalf("answered: %+v", r)
		}
		p.Until(`document.querySelector("#count").textContent === "nothing waits"`)
		quiet(t, p, s)
	})

	t.Run("reject", func(t *testing.T) {
		q := &supervisetest.Queue{}
		one := q.Add("b", "please", supervisetest.AnyRoute("evil.example"))
		s := served(t, q)
		p := signedIn(t, b, s, wide)
		p.Key("r", 0)
		press(p, func() { p.Key("Enter", 0) })
		if r := q.Replies(); len(r) != 1 || r[0].Verdict != supervise.Rejected || r[0].Digest != one.Digest {
			t.Fatalf("answered: %+v", r)
		}
		quiet(t, p, s)
	})

	t.Run("modify", func(t *testing.T) {
		q := &supervisetest.Queue{}
		one := q.Add("b", "please", supervisetest.Route("api.example.com"))
		s := served(t, q)
		p := signedIn(t, b, s, wide)
		p.Key("m", 0)
		edit := func(from, to string) {
			browsertest.Eval[any](p, fmt.Sprintf(`(() => { const e = document.querySelector("#text"); e.value = e.value.replace(%q, %q) })()`, from, to))
		}
		edit("GET", "no method")
		press(p, func() { p.Click("#look") })
		if got := browsertest.Eval[string](p, `document.querySelector("#wrong").textContent + document.querySelector("#text").value`); !strings.Contains(got, "Nothing was answered") || !strings.Contains(got, "no method") {
			t.Errorf("a text with a mistake: %q", got)
		}
		p.Screenshot("page-mistake", false)
		edit("no method", "HEAD")
		press(p, func() { p.Click("#look") })
		p.Screenshot("page-modified", false)
		if text := browsertest.Eval[string](p, `document.querySelector("main").innerText`); !strings.Contains(text, "HEAD") || !strings.Contains(text, "Nothing is approved yet") || strings.Contains(text, "[GET]") || len(q.Replies()) != 0 {
			t.Errorf("what was made of it: %s", text)
		}
		p.Key("a", 0)
		press(p, func() { p.Key("Enter", 0) })
		r := q.Replies()
		if len(r) != 1 || r[0].Verdict != supervise.Modified || r[0].Digest != one.Digest {
			t.Fatalf("answered: %+v", r)
		}
		if got := r[0].Payload.(supervise.EgressAllow).Routes[0].Matches[0].Methods; !slices.Equal(got, []string{"HEAD"}) {
			t.Errorf("approved instead: %v", got)
		}
		quietBut422(t, p, s)
	})

	t.Run("live", func(t *testing.T) {
		q := &supervisetest.Queue{}
		one := q.Add("b", "", supervisetest.Route("one.example"))
		two := q.Add("b", "", supervisetest.Route("two.example"))
		s := served(t, q)
		p := signedIn(t, b, s, wide)
		before := browsertest.Eval[float64](p, `document.querySelector("#rows a[aria-current]").getBoundingClientRect().top`)
		q.Add("b", "", supervisetest.Route("three.example"))
		p.Until(`document.querySelectorAll("#rows .row").length === 3 && document.querySelector("#count").textContent === "3 waiting"`)
		q.End(two.ID, supervise.Withdrawn)
		p.Until(`document.querySelectorAll("#rows .row").length === 2`)
		if got := browsertest.Eval[float64](p, `document.querySelector("#rows a[aria-current]").getBoundingClientRect().top`); got != before {
			t.Errorf("what is looked at moved from %v to %v", before, got)
		}
		// The shown proposal is answered elsewhere.
		q.End(one.ID, supervise.Rejected)
		p.Until(`!document.querySelector("#gone").hidden && document.querySelector("#gone").innerText.includes("Rejected by someone on the command line")`)
		if got := browsertest.Eval[bool](p, `document.querySelector("#approve").disabled && document.querySelector("main h2").textContent.includes("one.example")`); !got {
			t.Error("it can still be approved, or another one is shown")
		}
		p.Screenshot("page-gone", false)
		quiet(t, p, s)
	})

	t.Run("a thousand", func(t *testing.T) {
		q := &supervisetest.Queue{}
		q.AddMany(1000)
		s := served(t, q)
		p := signedIn(t, b, s, wide)
		if n := len(rowsOf(p)); n != windowRows {
			t.Errorf("%d rows", n)
		}
		p.Loads(func() { p.Click("#later") })
		if got := rowsOf(p); !strings.Contains(got[0], "host-050") {
			t.Errorf("the next page begins with %q", got[0])
		}
		p.Loads(func() { p.Click("#rows .row:nth-child(10) a") })
		if got := browsertest.Eval[string](p, `document.querySelector("h2").textContent + document.querySelector("#rows .title").textContent`); !strings.Contains(got, "host-059") || !strings.Contains(got, "host-050") {
			t.Errorf("shown: %q", got)
		}
		p.Screenshot("page-thousand", false)
		p.Key("/", 0)
		p.Typed("host-777")
		p.Loads(func() { p.Key("Enter", 0) })
		if got := rowsOf(p); len(got) != 1 || !strings.Contains(got[0], "host-777") {
			t.Errorf("found %q", got)
		}
		quiet(t, p, s)
	})

	t.Run("without script", func(t *testing.T) {
		q := &supervisetest.Queue{}
		q.Add("b", "", supervisetest.AnyRoute("one.example"))
		s := served(t, q)
		v := wide
		v.NoScript = true
		p := signedIn(t, b, s, v)
		click := func(selector string) {
			p.Script(true)
			at := browsertest.Eval[[]float64](p, fmt.Sprintf(`(() => { const e = document.querySelector(%q); e.scrollIntoView({block: "center"}); const b = e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2] })()`, selector))
			p.Script(false)
			left := map[string]any{"button": "left", "buttons": 1, "clickCount": 1}
			p.Mouse("mousePressed", at[0], at[1], left)
			p.Mouse("mouseReleased", at[0], at[1], left)
		}
		p.Loads(func() { click("#rows a") })
		p.Loads(func() { click("#approve") })
		p.Screenshot("page-noscript", false)
		if len(q.Replies()) != 0 {
			t.Error("a warning was left out")
		}
		click("[name=sure]")
		p.Loads(func() { click("#approve") })
		if r := q.Replies(); len(r) != 1 || r[0].Verdict != supervise.Approved {
			t.Errorf("answered: %+v", r)
		}
	})

	t.Run("keeps hostile text inert", func(t *testing.T) {
		q := &supervisetest.Queue{}
		hostile := strings.Join(markup, " ")
		one := q.Add("b", hostile, hostilePayload(hostile))
		q.Fail(nil, supervise.Problem{File: "x" + hostile, Err: fmt.Errorf("%s", hostile)})
		s := served(t, q)
		for _, v := range []browsertest.View{wide, {Width: 320, Height: 700}} {
			p := signedIn(t, b, s, v)
			p.Loads(func() { p.Click("#rows a") })
			q.Add("b<img src=x onerror=alert(1)>", hostile, hostilePayload(hostile+fmt.Sprint(v.Width)))
			p.Until(fmt.Sprintf(`document.querySelectorAll("#rows .row").length >= %d`, map[int]int{1280: 2, 320: 3}[v.Width]))
			if got := browsertest.Eval[[]int](p, `[document.scripts.length, document.querySelectorAll("img:not(header img), iframe, object, embed, base, template, svg").length, document.querySelectorAll("h1").length, document.forms.length]`); !slices.Equal(got, []int{1, 0, 1, 2}) {
				t.Errorf("scripts, foreign elements, titles and forms: %v", got)
			}
			text := browsertest.Eval[string](p, `document.body.textContent`)
			if strings.ContainsAny(text, "\u202e\u2066\x1b\x00\u2028\u0085") || !strings.Contains(text, `\u202egnp.exe\u2066`) {
				t.Error("what is not visible was not made so")
			}
			if got := browsertest.Eval[int](p, `document.documentElement.scrollWidth`); got > v.Width {
				t.Errorf("%d pixels wide, want %d", got, v.Width)
			}
			p.Screenshot(fmt.Sprintf("page-hostile-%d", v.Width), false)
			quiet(t, p, s)
			p.Go("about:blank")
		}
		if e := q.Entry(one.ID); e.Answer != nil {
			t.Error("it was answered")
		}
	})

	t.Run("does no script but its own", func(t *testing.T) {
		q := &supervisetest.Queue{}
		s := served(t, q)
		p := signedIn(t, b, s, wide)
		for name, attempt := range map[string]string{
			"script":  `(() => { const s = document.createElement("script"); s.append("window.pwned = 1"); document.body.append(s) })()`,
			"markup":  `(() => { document.body.innerHTML = "<p>x" })()`,
			"handler": `(() => { document.body.setAttribute("onclick", "window.pwned = 1"); document.body.click() })()`,
			"eval":    `(() => { eval("window.pwned = 1") })()`,
		} {
			browsertest.Eval[any](p, `(() => { try { `+attempt+` } catch (e) {} })()`)
			if browsertest.Eval[bool](p, `!!window.pwned || !document.querySelector("#rows")`) {
				t.Errorf("%s: it did something", name)
			}
		}
		if !browsertest.Eval[bool](p, `document.documentElement.classList.contains("js")`) {
			t.Error("the page's own script did not run")
		}
	})

	t.Run("is legible by day and by night, and on a phone", func(t *testing.T) {
		q := &supervisetest.Queue{}
		one := q.Add("fix-login", "The tests fetch the list of users.", supervisetest.AnyRoute("api.example.com"))
		q.Add("docs", "", supervisetest.Route("docs.example.com"))
		s := served(t, q)
		for _, v := range []browsertest.View{wide, {Width: 1280, Height: 800, Dark: true}, {Width: 360, Height: 740}, {Width: 360, Height: 740, Dark: true}} {
			p := signedIn(t, b, s, v)
			if bright := browsertest.Eval[float64](p, browsertest.Luminance+`(getComputedStyle(document.documentElement).backgroundColor)`); (bright < 0.2) != v.Dark {
				t.Errorf("dark %t: the background has luminance %v", v.Dark, bright)
			}
			name := fmt.Sprintf("page-%d-dark-%t", v.Width, v.Dark)
			p.Screenshot(name+"-list", false)
			p.Loads(func() { p.Click("#rows a") })
			for _, poor := range browsertest.Eval[[]string](p, browsertest.Contrast) {
				t.Errorf("%s: %s", name, poor)
			}
			if got := browsertest.Eval[int](p, `document.documentElement.scrollWidth`); got > v.Width {
				t.Errorf("%d pixels wide, want %d", got, v.Width)
			}
			p.Screenshot(name, false)
			quiet(t, p, s)
			p.Go("about:blank")
		}
		_ = one
	})

	t.Run("issues", func(t *testing.T) { useIssues(t, b) })

	t.Run("hostile issues", func(t *testing.T) { useHostileIssues(t, b) })

	t.Run("another site", func(t *testing.T) { otherSite(t, b) })
}

// quietBut422 is like quiet, and allows the browser's message about a rejected form.
func quietBut422(t *testing.T, p *browsertest.Tab, s *Server) {
	t.Helper()
	for _, e := range p.Events() {
		if e.Method == "Log.entryAdded" && !strings.Contains(string(e.Params), "422") || e.Method == "Runtime.exceptionThrown" {
			t.Errorf("%s: %s", e.Method, e.Params)
		}
	}
}

// markup is text that would be markup on a careless page.
var markup = []string{
	"</script><script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, "'><svg/onload=alert(1)>", "</style><style>*{display:none}",
	"<!--", "]]>", "javascript:alert(1)", "{{.Digest}}", "&lt;b&gt;&#x202e;", "</title><h1>verified</h1>", "\u202egnp.exe\u2066\x1b[2J\r\n\u2028\u0085",
	"</textarea></select></table></details></form><form action=//evil.example>", "<base href=//evil.example>", `\u003cimg src=x onerror=alert(1)\u003e`,
}

func hostilePayload(s string) supervise.Payload {
	return supervise.GateOverride{Gate: cut(s), Repository: s, Commit: "abc", Verdict: "def", Failures: []string{s, strings.Repeat("W", 3000)}}
}

// otherSite attacks the page from another site in the same browser, during a session.
func otherSite(t *testing.T, b *browsertest.Browser) {
	q := &supervisetest.Queue{}
	one := q.Add("b", "", supervisetest.Route("api.example.com"))
	s := served(t, q)
	p := signedIn(t, b, s, wide)
	base := browsertest.Eval[string](p, `document.body.dataset.base`)
	p.Loads(func() { p.Click("#rows a") })
	token := browsertest.Eval[string](p, `document.querySelector("[name=token]").value`)
	p.Go("about:blank")

	// The worst case: the attacker knows the session's path and the form's token, and runs
	// on this machine, so that it gets cookies too.
	var cookies []string
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cookies = append(cookies, r.Header.Get("Cookie"))
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<title>evil</title><form id=f method=post action="%s%sp/%s"><input name=verdict value=approved><input name=digest value=%s><input name=token value=%s></form>`, s.origin, base, one.ID, one.Digest, token)
	}))
	defer evil.Close()
	port := evil.URL[strings.LastIndexByte(evil.URL, ':'):]
	ours := s.host[strings.LastIndexByte(s.host, ':'):]
	for _, from := range []string{"http://127.0.0.1" + port, "http://evil.test" + port, "http://localhost" + port} {
		e := b.Open(t, from, wide)
		e.Loads(func() { browsertest.Eval[any](e, `void setTimeout(() => document.forms.f.submit())`) })
		if got := browsertest.Eval[string](e, `document.body.innerText`); !strings.Contains(got, "another site") {
			t.Errorf("%s: a form was answered with %q", from, got)
		}
		e.Go(from)
		for name, attempt := range map[string]string{
			"fetch":  `fetch(url, {credentials: "include"}).then(r => r.text()).catch(e => "blocked")`,
			"blind":  `fetch(url + "p/` + string(one.ID) + `", {method: "POST", mode: "no-cors", credentials: "include", headers: {"Content-Type": "application/x-www-form-urlencoded"}, body: "verdict=approved&digest=` + one.Digest.String() + `&token=` + token + `"}).then(r => r.type === "opaque" ? "blocked" : "read").catch(e => "blocked")`,
			"image":  `new Promise(r => { const i = new Image(); i.onload = () => r("loaded"); i.onerror = () => r("blocked"); i.src = url + "icon.svg" })`,
			"script": `new Promise(r => { const s = document.createElement("script"); s.onload = () => r("loaded"); s.onerror = () => r("blocked"); s.src = url + "rows"; document.body.append(s) })`,
			"frame":  `new Promise(r => { const f = document.createElement("iframe"); f.onload = () => { try { r(f.contentDocument ? f.contentDocument.body.innerText || "blocked" : "blocked") } catch (e) { r("blocked") } }; f.src = url; document.body.append(f) })`,
			"events": `new Promise(r => { const e = new EventSource(url + "events", {withCredentials: true}); e.onmessage = () => r("read"); e.onerror = () => r("blocked") })`,
		} {
			if got := browsertest.Eval[string](e, `(url => `+attempt+`)("`+s.origin+base+`")`); got != "blocked" {
				t.Errorf("%s: %s: %q", from, name, got)
			}
		}
	}
	// A name that resolves to this machine by the time of the request.
	e := b.Open(t, "http://rebound.test"+ours+base, wide)
	if got := browsertest.Eval[string](e, `document.body.innerText`); !strings.Contains(got, "and nowhere else") {
		t.Errorf("another name for this page shows %q", got)
	}
	for _, c := range cookies {
		if c != "" {
			t.Errorf("a server at another port was given the cookie %q", c)
		}
	}
	if r := q.Replies(); len(r) != 0 {
		t.Errorf("answered from another site: %+v", r)
	}
	// The counter-check: the page itself may do it.
	p.Go(s.origin + base + "p/" + string(one.ID))
	p.Key("a", 0)
	press(p, func() { p.Key("Enter", 0) })
	if r := q.Replies(); len(r) != 1 || r[0].Verdict != supervise.Approved {
		t.Errorf("answered on the page: %+v", r)
	}
}
