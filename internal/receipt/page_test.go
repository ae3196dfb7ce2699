package receipt

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/carboy/carboy/internal/browsertest"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/store"
)

// The elements and attributes of the page, all of them.
var (
	pageElements = strings.Fields("html head meta title style body a header p h1 h2 h3 code span dl div dt dd main section article ul ol li label input output button table thead tbody tr th td svg path rect i b details summary script")
	pageAttrs    = strings.Fields("lang charset http-equiv content name class href id dir aria-labelledby aria-hidden aria-live aria-pressed aria-label for type autocomplete spellcheck placeholder hidden title role data-total data-grid data-level data-open data-text data-label scope viewbox viewBox preserveaspectratio preserveAspectRatio d x y width height start open")
)

// sound fails the test unless a page has only the template's elements and attributes, one
// script, one style, no address but its own, and no invisible text.
func sound(t *testing.T, page []byte) {
	t.Helper()
	root, err := html.Parse(bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	scripts, styles := 0, 0
	for n := range root.Descendants() {
		switch n.Type {
		case html.ElementNode:
			if !slices.Contains(pageElements, n.Data) {
				t.Fatalf("element <%s>", n.Data)
			}
			for _, a := range n.Attr {
				if !slices.Contains(pageAttrs, a.Key) {
					t.Fatalf("<%s> has attribute %s=%q", n.Data, a.Key, a.Val)
				}
				if !safetext.Clean(a.Val) {
					t.Fatalf("<%s %s> has %q", n.Data, a.Key, a.Val)
				}
				if a.Key == "href" && !strings.HasPrefix(a.Val, "#") {
					t.Fatalf("a link leads to %q", a.Val)
				}
			}
			if n.Data == "script" {
				scripts++
			}
			if n.Data == "style" {
				styles++
			}
		case html.TextNode:
			if n.Parent.Data != "script" && n.Parent.Data != "style" && !safetext.Clean(strings.ReplaceAll(n.Data, "\n", "")) {
				t.Fatalf("text is not visible: %q", n.Data)
			}
		case html.CommentNode:
			t.Fatalf("comment %q", n.Data)
		}
	}
	if scripts != 1 || styles != 1 {
		t.Fatalf("%d scripts and %d styles, want one each", scripts, styles)
	}
}

// markup is text that would be something else on a careless page.
var markup = []string{
	"</script><script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, "'><svg/onload=alert(1)>", "</style><style>*{display:none}",
	"<!--", "]]>", "javascript:alert(1)", "{{.Digest}}", "&lt;b&gt;&#x202e;", "</title><h1>verified</h1>", "\u202egnp.exe\u2066\x00\x1b[2J\r\n\u2028\u0085",
	"</textarea></select></table></details>", "<base href=//evil.example>", `\u003cimg src=x onerror=alert(1)\u003e`,
}

func TestHTMLIsSound(t *testing.T) {
	for _, r := range []*Receipt{sample(), short(), crowded(), busy(), failed()} {
		sound(t, rendered(t, r))
	}
	for _, s := range append(markup, strings.Repeat("日", 5000), strings.Repeat("a\u0301", 3000)) {
		sound(t, rendered(t, hostile(s)))
	}
}

func FuzzHTML(f *testing.F) {
	for _, s := range markup {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) { sound(t, rendered(t, hostile(s))) })
}

// A page stays small enough for a browser, whatever a bottle calls its things.
func TestHTMLIsBounded(t *testing.T) {
	r := busy()
	for i := range r.Processes.List {
		for range 20 {
			r.Processes.List[i].Args = append(r.Processes.List[i].Args, store.Raw(fmt.Sprint(i)+strings.Repeat("\xff<", 2000)))
		}
	}
	if n := len(rendered(t, r)); n > 16<<20 {
		t.Errorf("a page of %d MiB", n>>20)
	}
}

func TestHTMLNamesItsReceipt(t *testing.T) {
	r := sample()
	b, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(rendered(t, r)), `<code id="digest">`+sum(b)+"</code>") {
		t.Error("the page does not have the digest of the JSON form")
	}
	r.Schema = ""
	if HTML(&bytes.Buffer{}, r) == nil {
		t.Error("what is no receipt has a page")
	}
}

// TestPage looks at the page in a browser.
func TestPage(t *testing.T) {
	b := browsertest.Start(t)
	wide := browsertest.View{Width: 1280, Height: 900}
	full, crowd := rendered(t, sample()), rendered(t, busy())

	t.Run("shows every process", func(t *testing.T) {
		r := busy()
		p := b.OpenHTML(t, crowd, wide)
		bars := browsertest.Eval[[][]float64](p, `Array.from(document.querySelectorAll(".track rect"), r => [r.x.baseVal.value, r.width.baseVal.value])`)
		if len(bars) != len(r.Processes.List) {
			t.Fatalf("%d bars, want %d", len(bars), len(r.Processes.List))
		}
		// The first is make: from 3 ms on, for 94.9 of 95 s.
		if x, w := bars[0][0]/gridWidth*95, bars[0][1]/gridWidth*95; x < 0.002 || x > 0.004 || w < 94.89 || w > 94.91 {
			t.Errorf("make's bar is at %v s for %v s", x, w)
		}
		// They are drawn where they belong, on a track of the axis' width.
		drawn := browsertest.Eval[[]float64](p, `(() => { const r = document.querySelector(".track rect").getBoundingClientRect(), a = document.querySelector("#axis").getBoundingClientRect(); return [r.left - a.left, r.width - a.width] })()`)
		if drawn[0] < -2 || drawn[0] > 2 || drawn[1] < -3 || drawn[1] > 3 {
			t.Errorf("make's bar is off by %v", drawn)
		}
		row := browsertest.Eval[string](p, `Array.from(document.querySelectorAll(".p")).find(e => e.textContent.includes("true")).textContent`)
		for _, want := range []string{"× 300", "+9 ms", "898 ms", "exit 0", "/usr/bin/true"} {
			if !strings.Contains(row, want) {
				t.Errorf("the row of 300 processes lacks %q: %.300s", want, row)
			}
		}
		if n := browsertest.Eval[int](p, `document.querySelectorAll(".p:not([hidden])").length`); n < 5 || n > manyKids+openRows {
			t.Errorf("%d rows are open at first", n)
		}
		p.Screenshot("busy", true)
		quiet(t, p)
	})

	t.Run("zooms", func(t *testing.T) {
		p := b.OpenHTML(t, crowd, wide)
		box := func() string {
			return browsertest.Eval[string](p, `document.querySelector(".p:not([hidden]) .track").getAttribute("viewBox")`)
		}
		whole := fmt.Sprintf("0 0 %d 10", gridWidth)
		if got := box(); got != whole {
			t.Fatalf("first view %q", got)
		}
		browsertest.Eval[any](p, `document.querySelector(".p").focus()`)
		for _, step := range [][2]string{{"+", "2500000 0 5000000 10"}, {",", "1250000 0 5000000 10"}, {".", "2500000 0 5000000 10"}, {"-", whole}, {"+", "2500000 0 5000000 10"}, {"0", whole}} {
			p.Key(step[0], 0)
			if got := box(); got != step[1] {
				t.Errorf("after %q: view %q, want %q", step[0], got, step[1])
			}
		}
		browsertest.Eval[any](p, `document.querySelector("#in").click()`)
		if got := box(); got == whole {
			t.Error("the button does not zoom")
		}
		browsertest.Eval[any](p, `document.querySelector("#fit").click()`)
		// Choose the second half on the overview.
		at := browsertest.Eval[[]float64](p, `(() => { const o = document.querySelector("#overview"); o.scrollIntoView({block: "center"}); const b = o.getBoundingClientRect(); return [b.left, b.top + b.height / 2, b.width] })()`)
		left := map[string]any{"button": "left", "buttons": 1, "clickCount": 1}
		p.Mouse("mousePressed", at[0]+at[2]/2, at[1], left)
		p.Mouse("mouseMoved", at[0]+at[2]*3/4, at[1], left)
		p.Mouse("mouseReleased", at[0]+at[2]-0.5, at[1], left)
		p.Mouse("mouseMoved", 5, 5, nil)
		var x, w float64
		fmt.Sscanf(box(), "%g 0 %g 10", &x, &w)
		if x < 0.45*gridWidth || x > 0.55*gridWidth || w < 0.2*gridWidth || w > 0.55*gridWidth {
			t.Errorf("the overview chose %q", box())
		}
		browsertest.Eval[any](p, `document.querySelector("#fit").click()`)
		at = browsertest.Eval[[]float64](p, `(() => { const b = document.querySelector(".track").getBoundingClientRect(); return [b.left + b.width / 2, b.top + 5] })()`)
		p.Mouse("mouseWheel", at[0], at[1], map[string]any{"deltaX": 0, "deltaY": -200, "modifiers": 2})
		if got := box(); got == whole {
			t.Error("the wheel with Ctrl does not zoom")
		}
		p.Screenshot("zoomed", false)
		quiet(t, p)
	})

	t.Run("tells what a bar is", func(t *testing.T) {
		p := b.OpenHTML(t, full, wide)
		at := browsertest.Eval[[]float64](p, `(() => { const r = document.querySelectorAll(".track rect")[1]; r.scrollIntoView({block: "center"}); const b = r.getBoundingClientRect(); return [b.left + 20, b.top + b.height / 2] })()`)
		browsertest.Eval[any](p, "null") // the page has scrolled
		p.Mouse("mouseMoved", at[0], at[1], nil)
		tip := browsertest.Eval[string](p, `document.querySelector("#tip:not([hidden])")?.textContent || ""`)
		for _, want := range []string{`curl -s 'https://example.org/\x1b[2J'`, "+4 ms, took 896 ms, exit 0", "/usr/bin/curl"} {
			if !strings.Contains(tip, want) {
				t.Errorf("the tip lacks %q: %q", want, tip)
			}
		}
		p.Screenshot("tip", false)
		p.Mouse("mouseMoved", 2, 2, nil)
		if browsertest.Eval[bool](p, `!document.querySelector("#tip").hidden`) {
			t.Error("the tip stays")
		}
		quiet(t, p)
	})

	t.Run("filters", func(t *testing.T) {
		p := b.OpenHTML(t, crowd, wide)
		shown := func() []string {
			return browsertest.Eval[[]string](p, `Array.from(document.querySelectorAll(".p:not([hidden]) summary"), e => e.textContent)`)
		}
		before := shown()
		p.Key("/", 0)
		p.Typed("NEST 37")
		if got := shown(); len(got) != 5 || got[4] != "bash -c 'nest 37'" || got[0] != before[0] {
			t.Errorf("shown: %q, want what matches and what is above it", got)
		}
		if got := browsertest.Eval[string](p, `document.querySelector("#matches").value`); got != "1 match" {
			t.Errorf("the page says %q", got)
		}
		p.Key("Escape", 0)
		if got := shown(); !slices.Equal(got, before) {
			t.Errorf("after Escape %d rows, before %d", len(got), len(before))
		}
		p.Typed("/etc/ld.so.preload")
		if got := browsertest.Eval[int](p, `document.querySelectorAll("#files .list tbody tr:not([hidden])").length`); got != 1 || len(shown()) != 0 {
			t.Errorf("%d files and %d processes match, want 1 and none", got, len(shown()))
		}
		p.Key("Escape", 0)
		browsertest.Eval[any](p, `document.querySelector("#bad").click()`)
		if got := shown(); slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "configure") }) || !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "cc1") }) {
			t.Errorf("only what failed: %q", got)
		}
		quiet(t, p)
	})

	t.Run("is used with the keyboard", func(t *testing.T) {
		p := b.OpenHTML(t, full, wide)
		focus := func() string {
			return browsertest.Eval[string](p, `document.activeElement.querySelector("summary")?.textContent || document.activeElement.id || document.activeElement.tagName`)
		}
		// From the filter past six buttons into the tree, and out of it again.
		browsertest.Eval[any](p, `document.querySelector("#filter").focus()`)
		for range 7 {
			p.Key("Tab", 0)
		}
		if got := focus(); got != "dash (sh) -c 'echo hi'" {
			t.Fatalf("the focus is on %q", got)
		}
		for _, step := range [][2]string{
			{"ArrowDown", `curl -s 'https://example.org/\x1b[2J'`}, {"ArrowRight", "(fork)"}, {"ArrowLeft", `curl -s 'https://example.org/\x1b[2J'`},
			{"End", `'/tmp/\xff' ('') euid 0`}, {"Home", "dash (sh) -c 'echo hi'"}, {"ArrowLeft", "dash (sh) -c 'echo hi'"},
		} {
			p.Key(step[0], 0)
			if got := focus(); got != step[1] {
				t.Errorf("after %s the focus is on %q, want %q", step[0], got, step[1])
			}
		}
		if n := browsertest.Eval[int](p, `document.querySelectorAll(".p:not([hidden])").length`); n != 1 {
			t.Errorf("%d rows are left of the closed tree", n)
		}
		if got := browsertest.Eval[string](p, `document.activeElement.getAttribute("aria-expanded")`); got != "false" {
			t.Errorf("aria-expanded is %q", got)
		}
		p.Key("Enter", 0)
		if !browsertest.Eval[bool](p, `document.activeElement.querySelector("details").open`) {
			t.Error("Enter does not open the details")
		}
		p.Key("Tab", 0)
		if got := focus(); strings.Contains(got, "dash") {
			t.Errorf("the focus stays in the tree: %q", got)
		}
		p.Screenshot("keyboard", false)
		quiet(t, p)
	})

	t.Run("is read aloud", func(t *testing.T) {
		p := b.OpenHTML(t, full, wide)
		browsertest.Eval[any](p, "null")
		var tree struct {
			Nodes []struct {
				Role, Name struct{ Value string }
				Ignored    bool
				Properties []struct {
					Name  string
					Value struct{ Value any }
				}
			}
		}
		p.Decode(p.Do("Accessibility.getFullAXTree", nil), &tree)
		roles := map[string]int{}
		var levels []any
		headings := ""
		for _, n := range tree.Nodes {
			if n.Ignored {
				continue
			}
			roles[n.Role.Value]++
			if n.Role.Value == "heading" {
				headings += n.Name.Value + "|"
			}
			for _, x := range n.Properties {
				if n.Role.Value == "row" && x.Name == "level" {
					levels = append(levels, x.Value.Value)
				}
			}
		}
		if roles["treegrid"] != 1 || fmt.Sprint(levels) != "[1 2 3 2]" || roles["columnheader"] < 5 || roles["main"] != 1 {
			t.Errorf("roles %v, levels of rows %v", roles, levels)
		}
		if !strings.Contains(headings, "|What ran failed|") || !strings.Contains(headings, "|Processes|Network|") {
			t.Errorf("headings: %s", headings)
		}
		quiet(t, p)
	})

	t.Run("keeps hostile names inert", func(t *testing.T) {
		for _, v := range []browsertest.View{wide, {Width: 320, Height: 700}} {
			p := b.OpenHTML(t, rendered(t, hostile(strings.Join(markup, " "))), v)
			browsertest.Eval[any](p, `document.querySelectorAll("details").forEach(d => { d.open = true })`)
			browsertest.Eval[any](p, `document.querySelector("#open").click()`)
			if got := browsertest.Eval[[]int](p, `[document.scripts.length, document.querySelectorAll("img, iframe, object, embed, form, base, link, template").length, document.querySelectorAll("h1").length]`); !slices.Equal(got, []int{1, 0, 1}) {
				t.Errorf("scripts, foreign elements and titles: %v", got)
			}
			text := browsertest.Eval[string](p, `document.body.textContent`)
			if strings.ContainsAny(text, "\u202e\u2066\x1b\x00\u2028\u0085") || !strings.Contains(text, `\u202egnp.exe\u2066\x00\x1b[2J`) {
				t.Error("what is not visible was not made so")
			}
			if got := browsertest.Eval[int](p, `document.documentElement.scrollWidth`); got > v.Width {
				t.Errorf("%d pixels wide, want %d", got, v.Width)
			}
			p.Screenshot(fmt.Sprintf("hostile-%d", v.Width), false)
			quiet(t, p)
		}
	})

	t.Run("allows no other script, style or load", func(t *testing.T) {
		p := b.OpenHTML(t, full, wide)
		for name, attempt := range map[string]string{
			"script":  `(() => { const s = document.createElement("script"); s.textContent = "window.pwned = 1"; document.body.append(s) })()`,
			"markup":  `(() => { document.body.innerHTML = "<p>x" })()`,
			"handler": `(() => { document.body.setAttribute("onclick", "window.pwned = 1"); document.body.click() })()`,
		} {
			browsertest.Eval[any](p, `(() => { try { `+attempt+` } catch (e) {} })()`)
			if browsertest.Eval[bool](p, `!!window.pwned || !document.querySelector("#summary")`) {
				t.Errorf("%s: it did something", name)
			}
		}
		if got := browsertest.Eval[string](p, `(() => { const i = document.createElement("img"); const done = new Promise(r => { document.addEventListener("securitypolicyviolation", e => r(e.effectiveDirective)); i.onload = () => r("loaded") }); i.src = "data:image/gif;base64,R0lGODlhAQABAAAAACw="; document.body.append(i); return done })()`); got != "img-src" {
			t.Errorf("an image: %q", got)
		}
		// The neighbour that is allowed: its own script ran.
		if !browsertest.Eval[bool](p, `document.documentElement.classList.contains("js")`) {
			t.Error("the page's own script did not run")
		}
	})

	t.Run("fits a phone", func(t *testing.T) {
		for name, r := range map[string]*Receipt{"full": sample(), "busy": busy(), "wide": hostile(strings.Repeat("W", 3000)), "marks": hostile(strings.Repeat("日\u0301\u0301", 500))} {
			p := b.OpenHTML(t, rendered(t, r), browsertest.View{Width: 320, Height: 700})
			browsertest.Eval[any](p, `document.querySelector("#open").click()`)
			browsertest.Eval[any](p, `document.querySelectorAll("details").forEach(d => { d.open = true })`)
			if got := browsertest.Eval[int](p, `document.documentElement.scrollWidth`); got > 320 {
				t.Errorf("%s: %d pixels wide: %s", name, got, browsertest.Eval[string](p, `Array.from(document.querySelectorAll("body *")).filter(e => e.getBoundingClientRect().right > 321).slice(0, 5).map(e => e.tagName + "." + e.className).join(" ")`))
			}
			p.Screenshot("phone-"+name, false)
			quiet(t, p)
		}
	})

	t.Run("is legible by day and by night", func(t *testing.T) {
		for _, dark := range []bool{false, true} {
			p := b.OpenHTML(t, full, browsertest.View{Width: 1280, Height: 900, Dark: dark})
			if bright := browsertest.Eval[float64](p, browsertest.Luminance+`(getComputedStyle(document.documentElement).backgroundColor)`); (bright < 0.2) != dark {
				t.Errorf("dark %t: the background has luminance %v", dark, bright)
			}
			for _, poor := range browsertest.Eval[[]string](p, browsertest.Contrast) {
				t.Errorf("dark %t: %s", dark, poor)
			}
			p.Screenshot(fmt.Sprintf("full-dark-%t", dark), true)
			quiet(t, p)
		}
	})

	t.Run("prints", func(t *testing.T) {
		p := b.OpenHTML(t, crowd, browsertest.View{Width: 794, Height: 1123, Print: true, Dark: true})
		if got := browsertest.Eval[[]bool](p, `["#tools", "#buttons", "#help", ".to"].map(s => document.querySelector(s).offsetParent === null)`); slices.Contains(got, false) {
			t.Errorf("tools are printed: %v", got)
		}
		if got := browsertest.Eval[[]bool](p, `[".sign", ".fold:not([open]) td", ".p"].map(s => { const b = document.querySelector(s).getBoundingClientRect(); return b.height > 0 })`); slices.Contains(got, false) {
			t.Errorf("the signature, a folded table and the tree: %v", got)
		}
		if bright := browsertest.Eval[float64](p, browsertest.Luminance+`(getComputedStyle(document.documentElement).backgroundColor)`); bright < 0.9 {
			t.Errorf("the paper has luminance %v", bright)
		}
		if pdf := p.Do("Page.printToPDF", nil); len(pdf) < 10_000 {
			t.Errorf("a PDF of %d bytes", len(pdf))
		}
		p.Screenshot("print", true)
		quiet(t, p)
	})

	t.Run("works without script", func(t *testing.T) {
		p := b.OpenHTML(t, crowd, browsertest.View{Width: 1280, Height: 900, NoScript: true})
		p.Do("Emulation.setScriptExecutionDisabled", map[string]any{"value": false})
		rows := strings.Count(string(crowd), `<tr role="row" class="p `)
		if got := browsertest.Eval[[]int](p, `[Array.from(document.querySelectorAll(".p")).filter(e => e.getBoundingClientRect().height > 0).length, document.querySelectorAll(".twist").length, document.querySelector("#tools").offsetHeight]`); !slices.Equal(got, []int{rows, 0, 0}) {
			t.Errorf("rows, buttons and height of tools: %v, want %d rows", got, rows)
		}
		p.Screenshot("noscript", false)
		quiet(t, p)
	})

	t.Run("shows what there is of little", func(t *testing.T) {
		for name, r := range map[string]*Receipt{"failed": failed(), "short": short()} {
			r.Trace, r.Processes, r.Files, r.Privileges, r.Sockets = nil, nil, nil, nil, nil
			p := b.OpenHTML(t, rendered(t, r), wide)
			p.Screenshot(name, true)
			quiet(t, p)
		}
	})
}

// Nothing in the page's own files refers to anywhere else.
func TestPageLoadsNothing(t *testing.T) {
	for _, name := range []string{"page.html", "page.css", "page.js"} {
		if m := regexp.MustCompile(`(?i)https?:|//[a-z]|@import|url\(|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|fetch\(|XMLHttp|WebSocket|import\(`).FindString(asset(name)); m != "" {
			t.Errorf("%s has %q", name, m)
		}
	}
}
