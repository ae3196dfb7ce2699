// Package browsertest drives a real Chromium in tests, with chromedp over a pipe:
// the browser's own port stays closed. Its profile is temporary, and it resolves no
// names but those of tests.
//
// Start reading at [Start], then at [Tab]. Every function ends the test when the
// browser fails. One goroutine at a time may use a [Browser] and its tabs.
package browsertest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/carboy/carboy/internal/testenv"
)

// Browser is one Chromium.
type Browser struct {
	t   testing.TB
	ctx context.Context
}

// Event is one that the browser sent. Params are JSON.
type Event struct {
	Method string
	Params json.RawMessage
}

// patience bounds one answer of the browser on a loaded machine.
var patience = testenv.Patience(2 * time.Minute)

// names has the browser resolve addresses of this machine by number, and
// every name below .test as 127.0.0.1.
const names = "MAP *.test 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE [::1], EXCLUDE localhost"

// Start starts the browser, which ends with the test. Its sandbox is off under root,
// where it cannot work; an ordinary user's tests run with it. The test is skipped with
// -short, and where there is no browser.
func Start(t testing.TB) *Browser {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: -short leaves the browser out; go test without it")
	}
	path := ""
	for _, name := range []string{"chromium", "google-chrome", "chromium-browser"} {
		if path == "" {
			path = testenv.Look(name)
		}
	}
	if path == "" {
		testenv.Missing(t, "chromium", "apt-get install chromium")
	}
	// Its profile is private, and short of path: sockets live there.
	dir, err := os.MkdirTemp("", "carboy-browser-")
	if err != nil {
		t.Fatal(err)
	}
	var said output
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(path), chromedp.UserDataDir(dir), chromedp.Env("HOME="+dir, "TMPDIR="+dir), chromedp.CombinedOutput(&said),
		chromedp.Headless, chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck, chromedp.Flag("no-proxy-server", true),
		chromedp.Flag("host-resolver-rules", names), chromedp.Flag("lang", "en-US"),
	}
	for _, flag := range []string{"disable-background-networking", "disable-component-update", "disable-default-apps", "disable-extensions", "disable-sync", "disable-gpu", "disable-dev-shm-usage", "mute-audio"} {
		options = append(options, chromedp.Flag(flag, true))
	}
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	allocator, _ := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		ending, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if err := chromedp.Cancel(ending); err != nil {
			t.Logf("end %s: %v", path, err)
		}
		os.RemoveAll(dir)
		if t.Failed() {
			t.Logf("%s wrote at the end:\n%s", path, said.tail())
		}
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	downloads := map[string]any{"behavior": "deny", "eventsEnabled": true}
	if err := chromedp.FromContext(ctx).Browser.Call(ctx, "Browser.setDownloadBehavior", downloads, nil); err != nil {
		t.Fatal(err)
	}
	return &Browser{t, ctx}
}

// output keeps what the browser writes.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) tail() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	b := o.buf.Bytes()
	return b[max(len(b)-1000, 0):]
}

// View is the size and medium of a page. Width and Height are pixels.
type View struct {
	Width, Height int
	Dark, Print   bool
	NoScript      bool
}

// Tab is one page. Tabs share the browser's cookies.
type Tab struct {
	*Browser
	ctx context.Context

	mu     sync.Mutex
	events []Event
	news   chan struct{} // has one element after an event
}

// Open opens a page in a tab of its own, which is closed when t ends, and waits until
// it is loaded.
func (b *Browser) Open(t testing.TB, url string, v View) *Tab {
	t.Helper()
	b.t = t
	ctx, cancel := chromedp.NewContext(b.ctx)
	t.Cleanup(cancel)
	p := &Tab{Browser: b, ctx: ctx, news: make(chan struct{}, 1)}
	if err := errors.Join(chromedp.Listen(ctx, p.heard), chromedp.ListenBrowser(ctx, p.heard)); err != nil {
		t.Fatalf("open a tab: %v", err)
	}
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		p.Do(domain+".enable", nil)
	}
	p.size(v.Width, v.Height)
	if v.NoScript {
		p.Script(false)
	}
	p.Media(v.Dark, v.Print)
	p.Go(url)
	return p
}

// heard keeps the events that tests look at.
func (p *Tab) heard(event any) {
	method := ""
	switch event.(type) {
	case *page.EventLoadEventFired:
		method = "Page.loadEventFired"
	case *page.EventJavascriptDialogOpening:
		method = "Page.javascriptDialogOpening"
	case *page.EventWindowOpen:
		method = "Page.windowOpen"
	case *browser.EventDownloadWillBegin: // of any tab
		method = "Browser.downloadWillBegin"
	case *runtime.EventExceptionThrown:
		method = "Runtime.exceptionThrown"
	case *runtime.EventConsoleAPICalled:
		method = "Runtime.consoleAPICalled"
	case *log.EventEntryAdded:
		method = "Log.entryAdded"
	case *network.EventRequestWillBeSent:
		method = "Network.requestWillBeSent"
	default:
		return
	}
	params, err := json.Marshal(event)
	if err != nil {
		params, _ = json.Marshal(err.Error())
	}
	p.mu.Lock()
	p.events = append(p.events, Event{method, params})
	p.mu.Unlock()
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// OpenHTML is Open for a file with this text.
func (b *Browser) OpenHTML(t testing.TB, html []byte, v View) *Tab {
	t.Helper()
	file := filepath.Join(t.TempDir(), "page.html")
	if err := os.WriteFile(file, html, 0o644); err != nil {
		t.Fatal(err)
	}
	return b.Open(t, "file://"+file, v)
}

// Do sends one command of the DevTools protocol and returns its result as JSON.
// Params may be nil.
func (p *Tab) Do(method string, params map[string]any) json.RawMessage {
	p.t.Helper()
	raw, err := p.try(method, params)
	if err != nil {
		p.t.Fatalf("%s: %v", method, err)
	}
	return raw
}

func (p *Tab) try(method string, params map[string]any) (raw json.RawMessage, err error) {
	if params == nil {
		params = map[string]any{}
	}
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	err = chromedp.FromContext(p.ctx).Target.Call(ctx, method, params, &raw)
	return raw, err
}

// Decode decodes the result of a command.
func (p *Tab) Decode(raw json.RawMessage, v any) {
	p.t.Helper()
	if err := json.Unmarshal(raw, v); err != nil {
		p.t.Fatal(err)
	}
}

// Go opens url in the tab, which is in front then, and waits until it is loaded. Keys do
// not always reach a tab behind another.
func (p *Tab) Go(url string) {
	p.t.Helper()
	p.front()
	p.Loads(func() { p.Do("Page.navigate", map[string]any{"url": url}) })
}

// Loads does what leads to another page and waits until that is loaded.
func (p *Tab) Loads(do func()) {
	p.t.Helper()
	seen := p.count("Page.loadEventFired")
	do()
	p.await("Page.loadEventFired", seen)
}

func (p *Tab) count(method string) (n int) {
	for _, e := range p.Events() {
		if e.Method == method {
			n++
		}
	}
	return n
}

// await waits until more than seen events of this kind have come.
func (p *Tab) await(method string, seen int) {
	p.t.Helper()
	late := time.After(patience)
	for p.count(method) <= seen {
		select {
		case <-p.news:
		case <-p.ctx.Done():
			p.t.Fatalf("waiting for %s: %v", method, p.ctx.Err())
		case <-late:
			p.t.Fatalf("waiting for %s: nothing in %v", method, patience)
		}
	}
}

// Events returns the events of the page so far.
func (p *Tab) Events() []Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]Event(nil), p.events...)
}

// front makes this the tab that is seen: others draw nothing.
func (p *Tab) front() {
	p.t.Helper()
	p.Do("Page.bringToFront", nil)
}

// size gives the page so many pixels. Below 600 it is a phone's.
func (p *Tab) size(width, height int) {
	p.t.Helper()
	p.Do("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
}

// Script lets pages have script, or not.
func (p *Tab) Script(on bool) {
	p.t.Helper()
	p.Do("Emulation.setScriptExecutionDisabled", map[string]any{"value": !on})
}

// Media has the page drawn for dark or light, for paper or screen.
func (p *Tab) Media(dark, print bool) {
	p.t.Helper()
	scheme, media := "light", ""
	if dark {
		scheme = "dark"
	}
	if print {
		media = "print"
	}
	p.Do("Emulation.setEmulatedMedia", map[string]any{"media": media, "features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}})
}

// Eval runs an expression in the page, after what it has scheduled was drawn.
func Eval[T any](p *Tab, expression string) T {
	p.t.Helper()
	return run[T](p, "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done((() => ("+expression+"))()))))", expression)
}

// Until waits until an expression is true in the page, whichever page that is by then.
func (p *Tab) Until(expression string) {
	p.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		raw, err := p.try("Runtime.evaluate", map[string]any{"returnByValue": true, "expression": "(() => { try { return !!(" + expression + ") } catch (e) { return false } })()"})
		if err != nil {
			continue // it is on its way to another page
		}
		var out struct{ Result struct{ Value bool } }
		if p.Decode(raw, &out); out.Result.Value {
			return
		}
	}
	raw, _ := p.try("Runtime.evaluate", map[string]any{"returnByValue": true, "expression": "location.href + '\\n' + document.body.innerText"})
	p.t.Fatalf("waited in vain for %s; the page shows:\n%.3000s", expression, raw)
}

func jsonOf(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

func run[T any](p *Tab, promise, expression string) T {
	p.t.Helper()
	var out struct {
		Result struct {
			Value       T
			Description string
		}
		ExceptionDetails *struct{ Text string }
	}
	p.Decode(p.Do("Runtime.evaluate", map[string]any{"expression": promise, "awaitPromise": true, "returnByValue": true}), &out)
	if out.ExceptionDetails != nil {
		p.t.Fatalf("%s: %s %s", expression, out.ExceptionDetails.Text, out.Result.Description)
	}
	return out.Result.Value
}

// Key presses a key, named as KeyboardEvent.key has it. Modifiers: 1 Alt, 2 Ctrl, 4
// Meta, 8 Shift.
func (p *Tab) Key(key string, modifiers int) {
	p.t.Helper()
	text := ""
	if len(key) == 1 {
		text = key
	}
	if key == "Enter" {
		text = "\r"
	}
	p.Do("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": key, "code": key, "text": text, "modifiers": modifiers})
	p.Do("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": key, "modifiers": modifiers})
}

// Typed enters text in one piece.
func (p *Tab) Typed(text string) {
	p.t.Helper()
	p.Do("Input.insertText", map[string]any{"text": text})
}

// Mouse is one event of the mouse: mousePressed, mouseMoved, mouseReleased, mouseWheel.
func (p *Tab) Mouse(kind string, x, y float64, more map[string]any) {
	p.t.Helper()
	params := map[string]any{"type": kind, "x": x, "y": y}
	for k, v := range more {
		params[k] = v
	}
	p.Do("Input.dispatchMouseEvent", params)
}

// Click clicks in the middle of the first element that selector finds, wherever a
// person would have to scroll to.
func (p *Tab) Click(selector string) {
	p.t.Helper()
	at := Eval[[]float64](p, `(() => { const e = document.querySelector(`+jsonOf(selector)+`); if (!e) return []; e.scrollIntoView({block: "center", behavior: "instant"}); const b = e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2] })()`)
	if len(at) != 2 {
		p.t.Fatalf("there is no %s to click on", selector)
	}
	left := map[string]any{"button": "left", "buttons": 1, "clickCount": 1}
	p.Mouse("mousePressed", at[0], at[1], left)
	p.Mouse("mouseReleased", at[0], at[1], left)
}

// Screenshot keeps a picture in $CARBOY_SCREENSHOTS, for people.
func (p *Tab) Screenshot(name string, whole bool) {
	p.t.Helper()
	dir := os.Getenv("CARBOY_SCREENSHOTS")
	if dir == "" {
		return
	}
	var out struct{ Data string }
	p.Decode(p.Do("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": whole}), &out)
	b, err := base64.StdEncoding.DecodeString(out.Data)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), b, 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// Quiet fails the test when the page complained (an exception, a line on the console,
// something that its policy forbids), opened a dialog or a window, or asked for
// anything that allowed does not take.
func (p *Tab) Quiet(allowed func(url string) bool) {
	p.t.Helper()
	for _, e := range p.Events() {
		switch e.Method {
		case "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Page.javascriptDialogOpening", "Page.windowOpen", "Browser.downloadWillBegin":
			p.t.Errorf("%s: %s", e.Method, e.Params)
		case "Network.requestWillBeSent":
			var sent struct{ Request struct{ URL string } }
			p.Decode(e.Params, &sent)
			if !allowed(sent.Request.URL) {
				p.t.Errorf("the page asked for something: %s", e.Params)
			}
		}
	}
}

// Luminance is a function of script: how bright a colour of CSS is, from 0 to 1.
const Luminance = `(c => { const [r, g, b] = c.match(/[\d.]+/g).map(v => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 }); return .2126 * r + .7152 * g + .0722 * b })`

// Contrast lists elements with text whose contrast is below 4.5 to 1.
const Contrast = `(() => {
  const lum = ` + Luminance + `, out = new Set();
  for (const e of document.querySelectorAll("body *")) {
    if (!Array.from(e.childNodes).some(n => n.nodeType === 3 && n.data.trim()) || !e.getClientRects().length || e.closest("svg, script, .sign, .skip")) continue;
    let on = e, bg;
    while (on && /^rgba\(.*, 0\)$|^transparent$/.test(bg = getComputedStyle(on).backgroundColor)) on = on.parentElement;
    const a = lum(getComputedStyle(e).color), b = lum(bg);
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) out.add(e.tagName + "." + e.className + " " + ratio.toFixed(2) + ": " + e.textContent.slice(0, 40));
  }
  return Array.from(out).slice(0, 10);
})()`

// FileOnly allows the page itself, which is a file, and nothing else.
func FileOnly() func(string) bool {
	asked := 0
	return func(url string) bool {
		asked++
		return asked == 1 && strings.HasPrefix(url, "file:///")
	}
}
