// Package browsertest drives a real Chromium in tests, over a pipe, by the DevTools
// protocol: messages of JSON that end in NUL. The browser's own port stays closed, its
// profile is private and thrown away, and it knows no names but those of tests.
//
// Start reading at [Start], then at [Tab]. Every function ends the test when the
// browser fails. One goroutine at a time may use a [Browser] and its tabs.
package browsertest

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/testenv"
)

// Browser is one Chromium.
type Browser struct {
	t      testing.TB
	to     *os.File
	from   *os.File
	in     *bufio.Reader
	last   int
	events []Event
}

// Event is what the browser tells unasked.
type Event struct {
	Session string
	Method  string
	Params  json.RawMessage
}

type message struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// patience is how long a loaded machine may take for one answer.
var patience = testenv.Patience(2 * time.Minute)

// names are what the browser resolves: addresses of this machine by number, and
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
	args := []string{
		"--headless", "--remote-debugging-pipe", "--user-data-dir=" + dir, "--no-first-run", "--no-default-browser-check",
		"--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-extensions", "--disable-sync",
		"--disable-gpu", "--disable-dev-shm-usage", "--mute-audio", "--no-proxy-server", "--host-resolver-rules=" + names, "--lang=en-US",
	}
	if os.Geteuid() == 0 {
		args = append(args, "--no-sandbox")
	}
	cmd := exec.Command(path, append(args, "about:blank")...)
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	cmd.Stderr = &said
	cmd.Env = append(os.Environ(), "HOME="+dir, "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirIn.Close()
	theirOut.Close()
	b := &Browser{t: t, to: ourOut, from: ourIn, in: bufio.NewReader(ourIn)}
	t.Cleanup(func() {
		// Asked to, it ends its own processes and waits for them.
		ourOut.Write([]byte(`{"id":1,"method":"Browser.close"}` + "\x00"))
		ourIn.SetReadDeadline(time.Now().Add(patience))
		io.Copy(io.Discard, b.in)
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
		ourIn.Close()
		ourOut.Close()
		os.RemoveAll(dir)
		if t.Failed() {
			text := said.Bytes()
			t.Logf("%s said at the end:\n%s", path, text[max(len(text)-1000, 0):])
		}
	})
	return b
}

// call does one thing in a session and waits for its result.
func (b *Browser) call(session, method string, params any) json.RawMessage {
	b.t.Helper()
	raw, problem := b.try(session, method, params)
	if problem != "" {
		b.t.Fatalf("%s: %s", method, problem)
	}
	return raw
}

func (b *Browser) try(session, method string, params any) (result json.RawMessage, problem string) {
	b.t.Helper()
	p, err := json.Marshal(params)
	if err != nil {
		b.t.Fatal(err)
	}
	b.last++
	id := b.last
	m, _ := json.Marshal(message{ID: id, SessionID: session, Method: method, Params: p})
	if _, err := b.to.Write(append(m, 0)); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	for {
		m := b.read(method)
		if m.ID != id {
			continue
		}
		if m.Error != nil {
			return nil, m.Error.Message
		}
		return m.Result, ""
	}
}

// read takes the next message; events are kept.
func (b *Browser) read(what string) message {
	b.t.Helper()
	b.from.SetReadDeadline(time.Now().Add(patience))
	line, err := b.in.ReadBytes(0)
	if err != nil {
		b.t.Fatalf("waiting for %s: %v", what, err)
	}
	var m message
	if err := json.Unmarshal(line[:len(line)-1], &m); err != nil {
		b.t.Fatal(err)
	}
	if m.ID == 0 {
		b.events = append(b.events, Event{m.SessionID, m.Method, m.Params})
	}
	return m
}

func (b *Browser) decode(raw json.RawMessage, v any) {
	b.t.Helper()
	if err := json.Unmarshal(raw, v); err != nil {
		b.t.Fatal(err)
	}
}

// View is how a page is looked at. Width and Height are pixels.
type View struct {
	Width, Height int
	Dark, Print   bool
	NoScript      bool
}

// Tab is one page. Tabs share the browser's cookies.
type Tab struct {
	*Browser
	session, target string
}

// Open opens a page in a tab of its own, which is closed when t ends, and waits until
// it is loaded.
func (b *Browser) Open(t testing.TB, url string, v View) *Tab {
	t.Helper()
	b.t = t
	var target struct{ TargetID string }
	b.decode(b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}), &target)
	var session struct{ SessionID string }
	b.decode(b.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}), &session)
	p := &Tab{b, session.SessionID, target.TargetID}
	t.Cleanup(func() { b.call("", "Target.closeTarget", map[string]any{"targetId": target.TargetID}) })
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		p.Do(domain+".enable", nil)
	}
	p.Size(v.Width, v.Height)
	if v.NoScript {
		p.Script(false)
	}
	p.Media(v.Dark, v.Print)
	p.Front()
	p.Go(url)
	return p
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

// Do is one command of the protocol; nil: without parameters.
func (p *Tab) Do(method string, params map[string]any) json.RawMessage {
	p.t.Helper()
	if params == nil {
		params = map[string]any{}
	}
	return p.call(p.session, method, params)
}

// Decode reads the result of a command.
func (p *Tab) Decode(raw json.RawMessage, v any) {
	p.t.Helper()
	p.decode(raw, v)
}

// Go opens url in the tab and waits until it is loaded.
func (p *Tab) Go(url string) {
	p.t.Helper()
	seen := p.count("Page.loadEventFired")
	p.Do("Page.navigate", map[string]any{"url": url})
	p.await("Page.loadEventFired", seen)
}

// Loads does what leads to another page and waits until that is loaded.
func (p *Tab) Loads(do func()) {
	p.t.Helper()
	p.LoadsThrough(1, do)
}

// LoadsThrough is Loads for the last of n pages, each of which leads to the next.
func (p *Tab) LoadsThrough(n int, do func()) {
	p.t.Helper()
	seen := p.count("Page.loadEventFired")
	do()
	p.await("Page.loadEventFired", seen+n-1)
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
	for p.count(method) <= seen {
		p.read(method)
	}
}

// Events are what the page's browser told so far.
func (p *Tab) Events() (out []Event) {
	for _, e := range p.events {
		if e.Session == p.session {
			out = append(out, e)
		}
	}
	return out
}

// Front makes this the tab that is seen: others draw nothing.
func (p *Tab) Front() {
	p.t.Helper()
	p.Do("Page.bringToFront", nil)
}

// Size gives the page so many pixels. Below 600 it is a phone's.
func (p *Tab) Size(width, height int) {
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
		raw, problem := p.try(p.session, "Runtime.evaluate", map[string]any{"returnByValue": true, "expression": "(() => { try { return !!(" + expression + ") } catch (e) { return false } })()"})
		if problem != "" {
			continue // it is on its way to another page
		}
		var out struct{ Result struct{ Value bool } }
		if p.decode(raw, &out); out.Result.Value {
			return
		}
	}
	raw, _ := p.try(p.session, "Runtime.evaluate", map[string]any{"returnByValue": true, "expression": "location.href + '\\n' + document.body.innerText"})
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
	p.decode(p.Do("Runtime.evaluate", map[string]any{"expression": promise, "awaitPromise": true, "returnByValue": true}), &out)
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

// Typed is text that comes at once.
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
	p.decode(p.Do("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": whole}), &out)
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
		case "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Page.javascriptDialogOpening", "Page.windowOpen", "Page.downloadWillBegin":
			p.t.Errorf("%s: %s", e.Method, e.Params)
		case "Network.requestWillBeSent":
			var sent struct{ Request struct{ URL string } }
			p.decode(e.Params, &sent)
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
