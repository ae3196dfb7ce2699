package receipt

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

// browser is a Chromium that is driven over a pipe, by the DevTools protocol:
// messages of JSON that end in NUL. Nothing listens on a port.
type browser struct {
	t      *testing.T
	to     *os.File
	from   *os.File
	in     *bufio.Reader
	last   int
	events []message
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
const patience = 2 * time.Minute

// chromium starts the browser. Its sandbox is off under root, where it cannot
// work; an ordinary user's tests run with it.
func chromium(t *testing.T) *browser {
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
		"--disable-gpu", "--disable-dev-shm-usage", "--mute-audio", "--host-resolver-rules=MAP * ~NOTFOUND", "--lang=en-US",
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
	b := &browser{t: t, to: ourOut, from: ourIn, in: bufio.NewReader(ourIn)}
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
func (b *browser) call(session, method string, params any) json.RawMessage {
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
			b.t.Fatalf("%s: %s", method, m.Error.Message)
		}
		return m.Result
	}
}

// read takes the next message; events are kept.
func (b *browser) read(what string) message {
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
		b.events = append(b.events, m)
	}
	return m
}

// tab is one page in the browser.
type tab struct {
	*browser
	session string
}

type view struct {
	width, height int
	dark, print   bool
	noScript      bool
}

// open shows a receipt and waits until it is loaded.
func (b *browser) open(t *testing.T, html []byte, v view) *tab {
	t.Helper()
	b.t = t
	file := filepath.Join(t.TempDir(), "receipt.html")
	if err := os.WriteFile(file, html, 0o644); err != nil {
		t.Fatal(err)
	}
	var target struct{ TargetID string }
	b.decode(b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}), &target)
	var session struct{ SessionID string }
	b.decode(b.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}), &session)
	p := &tab{b, session.SessionID}
	t.Cleanup(func() { b.call("", "Target.closeTarget", map[string]any{"targetId": target.TargetID}) })
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		p.do(domain+".enable", nil)
	}
	p.size(v.width, v.height)
	if v.noScript {
		p.do("Emulation.setScriptExecutionDisabled", map[string]any{"value": true})
	}
	p.media(v.dark, v.print)
	p.do("Page.navigate", map[string]any{"url": "file://" + file})
	p.await("Page.loadEventFired")
	return p
}

func (b *browser) decode(raw json.RawMessage, v any) {
	b.t.Helper()
	if err := json.Unmarshal(raw, v); err != nil {
		b.t.Fatal(err)
	}
}

func (p *tab) do(method string, params map[string]any) json.RawMessage {
	p.t.Helper()
	if params == nil {
		params = map[string]any{}
	}
	return p.call(p.session, method, params)
}

func (p *tab) size(width, height int) {
	p.t.Helper()
	p.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
}

func (p *tab) media(dark, print bool) {
	p.t.Helper()
	scheme, media := "light", ""
	if dark {
		scheme = "dark"
	}
	if print {
		media = "print"
	}
	p.do("Emulation.setEmulatedMedia", map[string]any{"media": media, "features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}})
}

// await waits for an event of this page, also one that has been seen.
func (p *tab) await(event string) {
	p.t.Helper()
	for i := 0; ; i++ {
		for ; i < len(p.events); i++ {
			if p.events[i].SessionID == p.session && p.events[i].Method == event {
				return
			}
		}
		p.read(event)
		i--
	}
}

// eval runs an expression in the page, after what it has scheduled was drawn.
func eval[T any](p *tab, expression string) T {
	p.t.Helper()
	var out struct {
		Result struct {
			Value       T
			Description string
		}
		ExceptionDetails *struct{ Text string }
	}
	p.decode(p.do("Runtime.evaluate", map[string]any{
		"expression":   "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done((() => (" + expression + "))()))))",
		"awaitPromise": true, "returnByValue": true,
	}), &out)
	if out.ExceptionDetails != nil {
		p.t.Fatalf("%s: %s %s", expression, out.ExceptionDetails.Text, out.Result.Description)
	}
	return out.Result.Value
}

// key presses a key, typed types a text.
func (p *tab) key(key string, modifiers int) {
	p.t.Helper()
	text := ""
	if len(key) == 1 {
		text = key
	}
	if key == "Enter" {
		text = "\r"
	}
	p.do("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": key, "code": key, "text": text, "modifiers": modifiers})
	p.do("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": key, "modifiers": modifiers})
}

func (p *tab) typed(text string) {
	p.t.Helper()
	p.do("Input.insertText", map[string]any{"text": text})
}

func (p *tab) mouse(kind string, x, y float64, more map[string]any) {
	p.t.Helper()
	params := map[string]any{"type": kind, "x": x, "y": y}
	for k, v := range more {
		params[k] = v
	}
	p.do("Input.dispatchMouseEvent", params)
}

// screenshot keeps a picture in $CARBOY_SCREENSHOTS, for people.
func (p *tab) screenshot(name string, whole bool) {
	p.t.Helper()
	dir := os.Getenv("CARBOY_SCREENSHOTS")
	if dir == "" {
		return
	}
	var out struct{ Data string }
	p.decode(p.do("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": whole}), &out)
	b, err := base64.StdEncoding.DecodeString(out.Data)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), b, 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// quiet fails the test when the page complained, asked for anything or opened
// a dialog.
func (p *tab) quiet() {
	p.t.Helper()
	asked := 0
	for _, e := range p.events {
		if e.SessionID != p.session {
			continue
		}
		switch e.Method {
		case "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Page.javascriptDialogOpening", "Page.windowOpen", "Page.downloadWillBegin":
			p.t.Errorf("%s: %s", e.Method, e.Params)
		case "Network.requestWillBeSent":
			if asked++; asked > 1 || !strings.Contains(string(e.Params), `"url":"file:///`) {
				p.t.Errorf("the page asked for something: %s", e.Params)
			}
		}
	}
	if asked != 1 {
		p.t.Errorf("%d requests were seen, want the page itself", asked)
	}
}

func rendered(t *testing.T, r *Receipt) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := HTML(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
