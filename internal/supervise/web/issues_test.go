package web

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"io/fs"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/browsertest"
	"github.com/carboy/carboy/internal/supervise/supervisetest"
)

// someIssues are issues in memory.
type someIssues struct {
	mu       sync.Mutex
	list     IssueList
	err      error
	receipts map[string]Receipt
}

func (i *someIssues) List(context.Context) (IssueList, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.list, i.err
}

func (i *someIssues) Issue(_ context.Context, name string) (Issue, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, x := range i.list.Issues {
		if x.Name == name {
			return x, i.err
		}
	}
	return Issue{}, errors.Join(fs.ErrNotExist, i.err)
}

func (i *someIssues) Receipt(_ context.Context, run string) (Receipt, error) {
	r, ok := i.receipts[run]
	if !ok {
		return r, fs.ErrNotExist
	}
	return r, nil
}

// set changes an issue.
func (i *someIssues) set(n int, change func(*Issue)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.list.Issues = slices.Clone(i.list.Issues)
	change(&i.list.Issues[n])
}

// aReceipt returns a page with a script and a style, as receipts have them.
func aReceipt(script string) Receipt {
	const style = "h1 { color: rgb(1, 2, 3) }"
	hash := func(s string) string {
		sum := sha256.Sum256([]byte(s))
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return Receipt{
		HTML:   []byte("<!doctype html><title>a receipt</title><style>" + style + "</style><h1>go test ./...</h1><p id=did></p><script>" + script + "</script>"),
		Policy: "default-src 'none'; script-src " + hash(script) + "; style-src " + hash(style) + "; base-uri 'none'; form-action 'none'",
	}
}

const marks = `document.getElementById("did").textContent = "the script ran"`

// threeIssues returns an issue with two turns, one that waits, and one that ended.
func threeIssues() *someIssues {
	began := time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC)
	return &someIssues{
		list: IssueList{Issues: []Issue{
			{
				Name: "acme/web#7", Title: "Mend the login", URL: "https://git.example.org/acme/web/issues/7", Agent: "coder", State: "frozen", Turn: 2, Pull: 12,
				PullURL: "https://git.example.org/acme/web/pulls/12", Waits: "a review", Tokens: 1234567, Outcome: "passed", Verdict: "v-88", Bottle: "web-7", Branch: "carboy/7-mend-the-login",
				Warnings: []string{"comment 4 has hidden text"},
				Turns: []Turn{
					{Number: 1, For: []string{"the issue by ada"}, Began: began, Ended: began.Add(time.Hour), Outcome: "passed", Commit: "0123abcd", Verdict: "v-87", Work: "w1", Tokens: 1000000, Operations: 4, Refused: 1, Runs: []string{"run-1", "run-2"}},
					{Number: 2, For: []string{"comment 5 by bo"}, Began: began.Add(2 * time.Hour), Ended: began.Add(3 * time.Hour), Outcome: "passed", Summary: "The test was wrong.\nIt is right now.", Tokens: 234567, Runs: []string{"run-3"}},
				},
			},
			{Name: "acme/web#8", Title: "Write docs", URL: "https://git.example.org/acme/web/issues/8", State: "waiting", Waits: "nobody is assigned"},
			{Name: "acme/web#3", Title: "Long ago", Agent: "coder", State: "destroyed", Ended: true, Turn: 1, Tokens: 9},
		}},
		receipts: map[string]Receipt{"run-1": aReceipt(marks), "run-2": aReceipt(marks), "run-3": aReceipt(marks), "another": aReceipt(marks)},
	}
}

// servedIssues serves a page with issues until the test ends.
func servedIssues(t testing.TB, q Queue, i Issues) *Server {
	t.Helper()
	s, err := Listen(Options{Queue: q, Issues: i})
	if err != nil {
		t.Fatal(err)
	}
	s.issues.every = 20 * time.Millisecond
	run(t, s)
	return s
}

func address(page string, values ...string) string {
	v := url.Values{}
	for i := 0; i < len(values); i += 2 {
		v.Set(values[i], values[i+1])
	}
	return page + "?" + v.Encode()
}

// TestIssues: the list, an issue and its receipts are shown, and nothing else.
func TestIssues(t *testing.T) {
	c := enter(t, servedIssues(t, &supervisetest.Queue{}, threeIssues()))
	has := func(path string, status int, want ...string) response {
		t.Helper()
		r := c.get(path)
		text := html.UnescapeString(r.body)
		if r.status != status {
			t.Errorf("%s: %d", path, r.status)
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: no %q in\n%s", path, w, text)
			}
		}
		return r
	}
	has("", 200, `>Issues (2)</a>`)
	r := has("issues", 200, "acme/web#7", "Mend the login", "coder", "frozen", "1,234,567", "a review", `href="https://git.example.org/acme/web/pulls/12"`, ">#12</a>", `class="host">git.example.org<`, "nobody is assigned", "1 whose bottle is gone")
	if strings.Contains(r.body, "Long ago") || r.header.Get("Content-Security-Policy") != policy {
		t.Errorf("%v\n%s", r.header, r.body)
	}
	has("issues?all=1", 200, "Long ago")
	one := has(address("issues/one", "name", "acme/web#7"), 200, "Turn 2", "comment 5 by bo", "The test was wrong.\nIt is right now.", "words from inside the bottle", "0123abcd", "v-87", "4 at the forge, 1 refused", "carboy/7-mend-the-login", "comment 4 has hidden text", c.base+address("issues/receipt", "name", "acme/web#7", "run", "run-2"))
	if strings.Index(one.body, "Turn 2") > strings.Index(one.body, "Turn 1") || one.header.Get("Content-Security-Policy") != policy {
		t.Errorf("%v\n%s", one.header, one.body)
	}
	has(address("issues/one", "name", "acme/web#8"), 200, "No turn began yet")
	has(address("issues/one", "name", "acme/web#9"), 404, "There is no such issue")
	has(address("issues/one", "name", strings.Repeat("x", maxName+1)), 404)
	has("issues/nothing", 404)

	r = has(address("issues/receipt", "name", "acme/web#7", "run", "run-3"), 200, "go test ./...")
	for name, want := range map[string]string{
		"Content-Security-Policy": "; form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts", "Content-Type": "text/html; charset=utf-8",
		"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
	} {
		if got := r.header.Get(name); !strings.HasSuffix(got, want) {
			t.Errorf("%s: %q", name, got)
		}
	}
	// A run that is no issue's, or another issue's, has no address here.
	for _, x := range [][2]string{{"acme/web#7", "another"}, {"acme/web#8", "run-1"}, {"acme/web#9", "run-1"}, {"acme/web#7", ""}, {"", "run-1"}, {"acme/web#7", "../run-1"}} {
		has(address("issues/receipt", "name", x[0], "run", x[1]), 404, "There is no receipt of this run")
	}
	// Nothing of it is for others, and nothing is sent there.
	for _, path := range []string{"issues", "issues/events", address("issues/one", "name", "acme/web#7"), address("issues/receipt", "name", "acme/web#7", "run", "run-1"), "issues.js"} {
		for name, change := range map[string]func(*http.Request){
			"no cookie": header("Cookie", ""), "another site": header("Sec-Fetch-Site", "cross-site"), "another origin": header("Origin", "null"), "a frame": header("Sec-Fetch-Dest", "iframe"),
			"another host": func(r *http.Request) { r.Host = "evil.example" },
		} {
			if r := c.do("GET", c.base+path, "", change); r.status != 403 && r.status != 421 || strings.Contains(r.body, "login") {
				t.Errorf("%s: %s: %d", name, path, r.status)
			}
		}
		if r := c.do("POST", c.base+path, "", nil); r.status != 404 {
			t.Errorf("posted to %s: %d", path, r.status)
		}
	}
}

// TestNoIssues: without an issue the page is as it is without a reader of issues.
func TestNoIssues(t *testing.T) {
	session := regexp.MustCompile(`/s/[0-9a-f]+/`)
	shown := func(i Issues) (string, *client) {
		c := enter(t, servedIssues(t, &supervisetest.Queue{}, i))
		return session.ReplaceAllString(c.get("").body, "/s/"), c
	}
	without, c := shown(nil)
	if r := c.get("issues"); r.status != 404 {
		t.Errorf("without a reader: %d", r.status)
	}
	with, c := shown(&someIssues{})
	if with != without || strings.Contains(with, "ssues") {
		t.Errorf("the pages differ:\n%s\n%s", with, without)
	}
	if r := c.get("issues"); r.status != 200 || !strings.Contains(r.body, "no issue that lives") {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// TestIssuesUnreadable: the queue is served where the issues can't be read, and the list says
// that it is old.
func TestIssuesUnreadable(t *testing.T) {
	q := &supervisetest.Queue{}
	q.Add("b", "", supervisetest.Route("one.example"))
	i := threeIssues()
	i.list.Failing = []string{"acme/web: 500 <b>oops</b>\x1b[2J"}
	s := servedIssues(t, q, i)
	s.issues.every = 0
	c := enter(t, s)
	if r := c.get("issues"); !strings.Contains(r.body, `acme/web: 500 &lt;b&gt;oops&lt;/b&gt;\x1b[2J`) {
		t.Errorf("%s", r.body)
	}
	i.mu.Lock()
	i.err = errors.New("issues.db: <i>its version is 9</i>")
	i.mu.Unlock()
	if r := c.get(""); r.status != 200 || !strings.Contains(r.body, "one.example") || !strings.Contains(r.body, "Issues (can&#39;t be read)") {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := c.get("issues"); r.status != 200 || !strings.Contains(r.body, "issues.db: &lt;i&gt;its version is 9") || !strings.Contains(r.body, "Mend the login") {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := c.get(address("issues/one", "name", "acme/web#7")); r.status != 500 || !strings.Contains(r.body, "&lt;i&gt;its version is 9") {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// TestReceiptIsKeptApart: a receipt without a policy of its own, or one beyond the bound, is not
// sent.
func TestReceiptIsKeptApart(t *testing.T) {
	i := threeIssues()
	i.receipts["run-1"] = Receipt{HTML: []byte("<h1>no policy</h1>")}
	i.receipts["run-2"] = Receipt{HTML: make([]byte, maxReceipt+1), Policy: "default-src 'none'; "}
	c := enter(t, servedIssues(t, &supervisetest.Queue{}, i))
	for run, want := range map[string]string{"run-1": "has no policy", "run-2": "carboy receipt --html run-2"} {
		r := c.get(address("issues/receipt", "name", "acme/web#7", "run", run))
		if r.status != 500 || !strings.Contains(r.body, want) || strings.Contains(r.body, "<h1>no") || r.header.Get("Content-Security-Policy") != policy {
			t.Errorf("%s: %d %.500s", run, r.status, r.body)
		}
	}
}

// TestManyIssues: a page lists a bounded number, of bounded texts.
func TestManyIssues(t *testing.T) {
	i := &someIssues{}
	long := strings.Repeat("long ", 1<<14)
	for n := range 1000 {
		i.list.Issues = append(i.list.Issues, Issue{Name: fmt.Sprintf("acme/web#%d", n+1), Title: long, Waits: long, Failing: long, Agent: long, URL: "https://a.example/" + long, PullURL: "https://a.example/" + long, State: long})
		i.list.Failing = append(i.list.Failing, long)
	}
	one := &i.list.Issues[0]
	one.Warnings = slices.Repeat([]string{long}, 1000)
	one.Branch, one.Bottle, one.Provenance, one.Verdict, one.Outcome = long, long, long, long, long
	for n := range 1000 {
		one.Turns = append(one.Turns, Turn{Number: n, For: one.Warnings, Outcome: long, Why: long, Summary: long, Commit: long, Verdict: long, Work: long, Runs: slices.Repeat([]string{"run"}, 1000)})
	}
	c := enter(t, servedIssues(t, &supervisetest.Queue{}, i))
	r := c.get("issues")
	if n := strings.Count(r.body, "<tr>") - 1; n != windowRows || len(r.body) > 200<<10 || !strings.Contains(r.body, "1–50 of 1000") {
		t.Errorf("%d rows, %d bytes", n, len(r.body))
	}
	later := regexp.MustCompile(`href="([^"]+)" rel="next"`).FindStringSubmatch(r.body)
	r = c.do("GET", html.UnescapeString(later[1]), "", nil)
	if !strings.Contains(r.body, "51–100 of 1000") || !strings.Contains(r.body, "acme/web#51<") || !strings.Contains(r.body, `rel="prev"`) {
		t.Errorf("the next: %.3000s", r.body)
	}
	if r := c.get(address("issues/one", "name", "acme/web#1")); len(r.body) > 4<<20 || !strings.Contains(r.body, "900 earlier turns are left out") || !strings.Contains(r.body, "and 950 more") || !strings.Contains(r.body, "and 980 more") {
		t.Errorf("an issue: %d bytes", len(r.body))
	}
}

// TestForgeLinks: only an address that a browser opens where it says becomes a link.
func TestForgeLinks(t *testing.T) {
	for address, host := range map[string]string{
		"https://git.example.org/acme/web/pulls/1": "git.example.org", "http://127.0.0.1:3000/a": "127.0.0.1:3000", "https://[::1]:3000/a?b=c#d": "[::1]:3000",
		"https://xn--e1afmkfd.example/": "xn--e1afmkfd.example",
		"":                              "", "javascript:alert(1)": "", "JaVaScRiPt:alert(1)": "", "data:text/html,<script>alert(1)</script>": "", "file:///etc/passwd": "", "//evil.example/": "", "/issues": "", "git.example.org": "",
		"https://": "", "https:///path": "", "https://git.example.org@evil.example/": "", "https://a:b@evil.example/": "", `https://git.example.org\@evil.example/`: "", `https://evil.example\.git.example.org/`: "",
		"https://g\u0456t.example.org/": "", "https://git.example.org\u2044evil.example/": "", "https://%67it.example.org/": "", "https://git.example.org\u202e/": "", "https://git.example.org/\n": "", " https://git.example.org/": "",
		"https://git.example.org/" + strings.Repeat("x", 2000): "",
	} {
		link, text := linked(address, "issue")
		switch {
		case host != "" && (link == nil || link.Host != host || link.Href != address || text != ""):
			t.Errorf("%q: %+v %q", address, link, text)
		case host == "" && (link != nil || (text == "") != (address == "") || len(text) > 200 || strings.ContainsAny(text, "\n\u202e")):
			t.Errorf("%q: %+v %q", address, link, text)
		}
	}
}

// hostileIssues has markup in every text.
func hostileIssues() *someIssues {
	x := strings.Join(markup, " ")
	i := threeIssues()
	i.list.Failing = []string{x}
	i.list.Issues[0] = Issue{
		Name: x, Title: x, URL: "javascript:alert(1)//" + x, Agent: x, State: x, Turn: 1, Pull: 1, PullURL: `https://evil.example/"><img src=x onerror=alert(1)>`, Waits: x, Outcome: x, Verdict: x,
		Bottle: x, Branch: x, Provenance: x, Warnings: []string{x},
		Turns: []Turn{{Number: 1, For: []string{x}, Outcome: x, Why: x, Summary: x, Commit: x, Verdict: x, Work: x, Runs: []string{x}}},
	}
	i.list.Issues[1].Failing = x
	// It tries what a receipt must not be able to, even if text became script there.
	i.receipts[x] = aReceipt(`(async () => {
		const did = [];
		for (const [name, attempt] of [
			["storage", () => localStorage.length], ["cookie", () => document.cookie.length], ["fetch", () => fetch(location.pathname.replace("issues/receipt", "rows"))],
			["opener", () => { if (opener === null) throw 0; opener.location }], ["origin", () => { if (origin === "null") throw 0; }],
			["frame", () => { const f = document.createElement("iframe"); f.src = location.pathname; document.body.append(f); return new Promise((ok, no) => { f.onload = () => { try { f.contentDocument.body.innerHTML; ok() } catch (e) { no(e) } }; }) }],
		]) try { await attempt(); did.push(name) } catch (e) {}
		document.getElementById("did").textContent = "did: " + did.join();
	})()`)
	return i
}

// useIssues uses the pages of issues in a browser.
func useIssues(t *testing.T, b *browsertest.Browser) {
	i := threeIssues()
	s := servedIssues(t, &supervisetest.Queue{}, i)
	for _, v := range []browsertest.View{wide, {Width: 1280, Height: 800, Dark: true}, {Width: 360, Height: 740}} {
		name := fmt.Sprintf("issues-%d-dark-%t", v.Width, v.Dark)
		p := signedIn(t, b, s, v)
		p.Screenshot(name+"-queue", false)
		legible := func(what string) {
			t.Helper()
			p.Until(`document.querySelector("#live:not([hidden]):not(.off)")`)
			p.Screenshot(name+"-"+what, false)
			for _, poor := range browsertest.Eval[[]string](p, browsertest.Contrast) {
				t.Errorf("%s: %s", name, poor)
			}
			if got := browsertest.Eval[int](p, `document.documentElement.scrollWidth`); got > v.Width {
				t.Errorf("%s: %d pixels wide, want %d", what, got, v.Width)
			}
		}
		p.Loads(func() { p.Click("#issues") })
		legible("list")
		if got := browsertest.Eval[[]string](p, `Array.from(document.querySelectorAll("#issues tbody tr"), e => e.innerText)`); len(got) != 2 || !strings.Contains(got[0], "acme/web#7") || !strings.Contains(got[0], "#12 at git.example.org") {
			t.Fatalf("the list is %q", got)
		}
		p.Loads(func() { p.Click("#issues tbody a") })
		legible("one")
		text := browsertest.Eval[string](p, `document.querySelector("main").innerText`)
		for _, want := range []string{"Mend the login", "Turn 2", "comment 5 by bo", "It is right now.", "run-3", "1,234,567"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in %s", want, text)
			}
		}
		p.Loads(func() { p.Click(".runs a") })
		if got := browsertest.Eval[[]string](p, `[document.querySelector("h1").textContent, document.getElementById("did").textContent, getComputedStyle(document.querySelector("h1")).color, origin]`); !slices.Equal(got, []string{"go test ./...", "the script ran", "rgb(1, 2, 3)", "null"}) {
			t.Errorf("the receipt: %q", got)
		}
		p.Screenshot(name+"-receipt", false)
		p.Loads(func() { browsertest.Eval[any](p, `history.back()`) })
		p.Until(`document.querySelector("#back") && document.querySelector("#live:not([hidden]):not(.off)")`)
		p.Loads(func() { p.Click("#back") })
		p.Until(`document.querySelector("#live:not([hidden]):not(.off)")`)
		// A change shows by itself, and waits while a person has something focused.
		p.Loads(func() { i.set(0, func(x *Issue) { x.Waits = "the merge of " + name }) })
		p.Until(fmt.Sprintf(`document.querySelector("main").innerText.includes("the merge of %s") && document.querySelector("#live:not([hidden]):not(.off)")`, name))
		browsertest.Eval[any](p, `document.querySelector("#issues a").focus()`)
		i.set(0, func(x *Issue) { x.Waits = "a review" })
		p.Until(`!document.querySelector("#reload").hidden`)
		p.Loads(func() { p.Click("#reload") })
		p.Until(`document.querySelector("main").innerText.includes("a review")`)
		quiet(t, p, s)
		p.Go("about:blank")
	}
}

// useHostileIssues looks at issues with markup in every text.
func useHostileIssues(t *testing.T, b *browsertest.Browser) {
	s := servedIssues(t, &supervisetest.Queue{}, hostileIssues())
	for _, v := range []browsertest.View{wide, {Width: 320, Height: 700}} {
		p := signedIn(t, b, s, v)
		inert := func(what string, links int) {
			t.Helper()
			p.Until(`document.querySelector("#live:not([hidden]):not(.off)")`)
			p.Screenshot(fmt.Sprintf("issues-hostile-%d-%s", v.Width, what), false)
			if got := browsertest.Eval[[]int](p, `[document.scripts.length, document.querySelectorAll("img:not(header img), iframe, object, embed, base, template, svg").length, document.querySelectorAll("h1").length, document.forms.length, document.querySelectorAll('a:not([href^="/s/"], [href=""], [href^="#"])').length]`); !slices.Equal(got, []int{1, 0, 1, 0, links}) {
				t.Errorf("%s: scripts, foreign elements, titles, forms and links out: %v", what, got)
			}
			if text := browsertest.Eval[string](p, `document.body.textContent`); strings.ContainsAny(text, "\u202e\u2066\x1b\x00\u2028\u0085") || !strings.Contains(text, `\u202egnp.exe\u2066`) {
				t.Errorf("%s: what is not visible was not made so", what)
			}
			if got := browsertest.Eval[int](p, `document.documentElement.scrollWidth`); got > v.Width {
				t.Errorf("%s: %d pixels wide, want %d", what, got, v.Width)
			}
		}
		p.Loads(func() { p.Click("#issues") })
		inert("list", 2)
		p.Loads(func() { p.Click("#issues tbody a") })
		inert("one", 1)
		quiet(t, p, s)
		p.Loads(func() { p.Click(".runs a") })
		p.Until(`document.getElementById("did").textContent.startsWith("did")`)
		if got := browsertest.Eval[string](p, `document.getElementById("did").textContent`); got != "did: " {
			t.Errorf("the receipt %s", got)
		}
		p.Go("about:blank")
	}
}
