package agenttest

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/testenv"
)

type everydayTool struct {
	name   string
	need   string // a program on PATH, "npm:NAME" from install.sh or "python3:MODULE"
	how    string // how to install it
	always bool   // CI has it
	script string
	want   string
	host   string // the host that must get a request
}

// everyday lists common programs, without flags for certificates or proxies. The hosts are
// the real ones; a server here answers.
var everyday = []everydayTool{
	{"curl", "curl", "apt-get install curl", true, "curl -fsS https://files.example.com/hello", "hello from files.example.com", "files.example.com"},
	{"curl http/1", "curl", "apt-get install curl", true, "curl --http1.1 -fsS https://files.example.com/hello", "hello from files.example.com", "files.example.com"},
	{"curl resumes", "curl", "apt-get install curl", true, "printf 'hello ' >f; curl -fsS -C - -o f https://files.example.com/hello; cat f", "hello from files.example.com", "files.example.com"},
	{"curl uploads", "curl", "apt-get install curl", true, "head -c 3000000 /dev/zero | curl -fsS -T - https://files.example.com/count", "3000000 bytes", "files.example.com"},
	{"wget", "wget", "apt-get install wget", true, "wget -qO- https://files.example.com/hello", "hello from files.example.com", "files.example.com"},
	{"openssl", "openssl", "apt-get install openssl", true, "printf 'GET /hello HTTP/1.0\\r\\nHost: files.example.com\\r\\n\\r\\n' | openssl s_client -quiet -verify_return_error -connect files.example.com:443 2>&1", "hello from files.example.com", "files.example.com"},
	{"git clones and fetches", "git", "apt-get install git", true, "cd /tmp && git clone -q https://github.com/someone/project.git && cd project && git fetch -q origin && git log --oneline && cat calc.js", wrong, "github.com"},
	{"python urllib", "python3", "apt-get install python3", true, `python3 -c 'import urllib.request as u; print(u.urlopen("https://files.example.com/hello").read().decode())'`, "hello from files.example.com", "files.example.com"},
	{"python requests", "python3:requests", "apt-get install python3-requests", true, `python3 -c 'import requests; print(requests.get("https://files.example.com/hello").text)'`, "hello from files.example.com", "files.example.com"},
	{"python aiohttp", "python3:aiohttp", "apt-get install python3-aiohttp", true, `python3 -c '
import asyncio, aiohttp
async def f():
    async with aiohttp.ClientSession() as s:
        async with s.get("https://files.example.com/hello") as r: print(await r.text())
asyncio.run(f())'`, "hello from files.example.com", "files.example.com"},
	{"pip", "pip3", "apt-get install python3-pip", false, "pip3 download -q --no-deps -d /tmp/wheels tiny-thing && ls /tmp/wheels", "tiny_thing-1.0-py3-none-any.whl", "pypi.org"},
	{"go", "go", "see https://go.dev/dl", true, "mkdir /tmp/m && cd /tmp/m && export GOFLAGS=-mod=mod GOSUMDB=off GOTOOLCHAIN=local && go mod init example.com/m && go get example.org/tiny@v1.0.0 && cat go.mod", "example.org/tiny v1.0.0", "proxy.golang.org"},
	{"apt", "apt-get", "Debian", true, `mkdir -p /tmp/apt/state/lists/partial /tmp/apt/cache/archives/partial; echo 'deb [trusted=yes] https://deb.debian.org/tiny ./' >/tmp/apt/list
		apt-get -q -o Dir::Etc::SourceList=/tmp/apt/list -o Dir::Etc::SourceParts=- -o Dir::State=/tmp/apt/state -o Dir::State::status=/dev/null -o Dir::Cache=/tmp/apt/cache update && apt-cache -o Dir::State=/tmp/apt/state -o Dir::State::status=/dev/null -o Dir::Cache=/tmp/apt/cache -o Dir::Etc::SourceList=/tmp/apt/list -o Dir::Etc::SourceParts=- policy tiny-thing`, "https://deb.debian.org/tiny", "deb.debian.org"},
	{"node fetch", "node", "apt-get install nodejs", false, `node -e 'fetch("https://files.example.com/hello").then(r => r.text()).then(console.log)'`, "hello from files.example.com", "files.example.com"},
	{"node https", "node", "apt-get install nodejs", false, `node -e 'require("https").get("https://files.example.com/hello", r => r.pipe(process.stdout))'`, "hello from files.example.com", "files.example.com"},
	{"npm", "npm", "apt-get install npm", false, "mkdir -p /tmp/n && cd /tmp/n && npm install --no-audit --no-fund tiny-thing && cat node_modules/tiny-thing/index.js", "tiny and from npm", "registry.npmjs.org"},
	{"java", "java", "apt-get install default-jdk-headless", false, `cat >/tmp/Get.java <<'X'
import java.net.URI; import java.net.http.*;
public class Get { public static void main(String[] a) throws Exception {
  System.out.println(HttpClient.newHttpClient().send(HttpRequest.newBuilder(URI.create("https://files.example.com/hello")).build(), HttpResponse.BodyHandlers.ofString()).body());
} }
X
java /tmp/Get.java; keytool -list -cacerts -storepass changeit 2>/dev/null | grep -c trustedCertEntry`, "hello from files.example.com", "files.example.com"},
	{"chromium", "chromium", "apt-get install chromium", false, "chromium --headless --dump-dom https://files.example.com/hello 2>/dev/null", "hello from files.example.com", "files.example.com"},
	{"gh", "gh", "apt-get install gh", false, "GH_TOKEN=placeholder gh api repos/someone/project", "hello from api.github.com", "api.github.com"},
	{"cargo", "cargo", "1.70 or later, see https://rustup.rs", false, "/carboy-tools/cargo search tiny-thing", "tiny_crate", "crates.io"},
	{"bun", "npm:bun", "internal/agenttest/install.sh DIRECTORY bun", false, `bun -e 'console.log(await (await fetch("https://files.example.com/hello")).text())'`, "hello from files.example.com", "files.example.com"},
	{"deno", "npm:deno", "internal/agenttest/install.sh DIRECTORY deno", false, `deno eval 'console.log(await (await fetch("https://files.example.com/hello")).text())'`, "hello from files.example.com", "files.example.com"},
}

// TestEverydayTools checks that programs trust the bottle's CA, each from its own place for
// certificates, and that their traffic passes unchanged.
func TestEverydayTools(t *testing.T) {
	h := newHost(t)
	u := newUpstream(t, h.ws)
	addr, roots, _ := serve(t, u)
	var err error
	if h.client, err = carboy.Open(t.Context(), carboy.Options{Env: h.env, Roots: roots}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.client.Close() })
	file := h.base + "/routes.yaml"
	text := "routes:\n"
	for _, host := range []string{"files.example.com", "github.com", "api.github.com", "pypi.org", "files.pythonhosted.org", "proxy.golang.org", "deb.debian.org", "registry.npmjs.org", "crates.io", "index.crates.io"} {
		text += fmt.Sprintf("  - {host: %s, upstream: %q, git: {fetch: true}}\n", host, addr)
	}
	write(t, file, text)
	for _, tool := range everyday {
		if tool.need == "chromium" && !testenv.Exhaustive() {
			t.Logf("NOT RUN here: %s takes ten seconds: CARBOY_TEST_EXHAUSTIVE=1", tool.name)
			continue
		}
		program, mounts := find(t, h, tool.need)
		if program == "" && testenv.CI() && !tool.always {
			t.Logf("NOT RUN here: %s: %s", tool.name, tool.how)
			continue
		}
		t.Run(tool.name, func(t *testing.T) { tool.try(t, h, u, file, program, mounts) })
	}
}

// noModule is the exit code of a script whose Python lacks a module.
const noModule = 77

// try runs the tool's script in a bottle. Which Python the bottle has, and so
// which modules, only the bottle knows.
func (tool everydayTool) try(t testing.TB, h *host, u *upstream, routes, program string, mounts []string) {
	if program == "" {
		testenv.Missing(t, tool.need, tool.how)
	}
	u.forget()
	script := tool.script
	module, python := strings.CutPrefix(tool.need, "python3:")
	switch {
	case python:
		script = fmt.Sprintf("python3 -c 'import %s' || exit %d\n%s", module, noModule, script)
	case strings.HasPrefix(tool.need, "npm:"):
		script = "export PATH=" + filepath.Dir(program) + ":$PATH\n" + script
	}
	var out, msg testenv.Buffer
	rec, err := h.client.Run(t.Context(), carboy.RunOptions{
		Command: []string{"/bin/sh", "-c", script}, Workspace: h.ws, Routes: routes,
		Stdout: &out, Stderr: &msg, Mounts: mounts,
	})
	if err != nil {
		t.Fatal(err)
	}
	if python && rec.Exit.Code == noModule {
		testenv.Missing(t, "Python's "+module, tool.how)
	}
	if rec.Exit.Code != 0 || !strings.Contains(out.String(), tool.want) {
		t.Errorf("exit code %d\n%.3000s\n%.3000s\nnetwork: %+v", rec.Exit.Code, out.String(), msg.String(), rec.Network)
	}
	if !u.asked(tool.host) {
		t.Errorf("%s was not asked", tool.host)
	}
}

// ending records how a test ends early.
type ending struct {
	testing.TB
	how string
}

func (e *ending) Fatalf(format string, args ...any) { e.end("failed: "+format, args) }
func (e *ending) Skipf(format string, args ...any)  { e.end(format, args) }
func (e *ending) end(format string, args []any) {
	e.how = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// TestEverydayToolsWithout: a machine that lacks a tool, or a module of Python,
// has the test skipped by that name.
func TestEverydayToolsWithout(t *testing.T) {
	python := testenv.Need(t, "python3", "apt-get install python3")
	t.Setenv("CARBOY_CI", "")
	h := newHost(t)
	u := newUpstream(t, h.ws)
	var err error
	if h.client, err = carboy.Open(t.Context(), carboy.Options{Env: h.env}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.client.Close() })
	for _, c := range []struct{ need, program, want string }{
		{"python3:no_such_module", python, "SKIPPED: needs Python's no_such_module: see there"},
		{"python3:no_such_module", "", "SKIPPED: needs python3:no_such_module: see there"},
		{"no-such-program", "", "SKIPPED: needs no-such-program: see there"},
	} {
		e := &ending{TB: t, how: "went on"}
		done := make(chan struct{})
		go func() {
			defer close(done)
			everydayTool{need: c.need, how: "see there", script: "exit 1"}.try(e, h, u, "", c.program, nil)
		}()
		<-done
		if e.how != c.want {
			t.Errorf("%s: %s, want %s", c.need, e.how, c.want)
		}
	}
}

// find returns a program for a bottle, and the mounts that it needs.
func find(t *testing.T, h *host, need string) (program string, mounts []string) {
	if name, ok := strings.CutPrefix(need, "npm:"); ok {
		dir := filepath.Join(os.Getenv(agentsEnv), name)
		program = dir + "/node_modules/.bin/" + name
		if _, err := os.Stat(program); os.Getenv(agentsEnv) == "" || err != nil {
			return "", nil
		}
		return program, []string{dir + ":" + dir + ":ro"}
	}
	need, _, _ = strings.Cut(need, ":") // a module is looked for inside
	program = testenv.Look(need)
	if need != "cargo" || program == "" {
		return program, nil
	}
	// cargo is in a home directory, behind rustup.
	out, err := exec.Command("rustup", "which", "cargo").Output()
	if err == nil {
		program = strings.TrimSpace(string(out))
	}
	// Before 1.70 cargo fetches its index with git, which is hard to imitate.
	out, err = exec.Command(program, "--version").Output()
	minor := 0
	if _, scanErr := fmt.Sscanf(string(out), "cargo 1.%d.", &minor); err != nil || scanErr != nil || minor < 70 {
		return "", nil
	}
	b, err := os.ReadFile(program)
	if err != nil {
		return "", nil
	}
	dir := h.base + "/tools"
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/cargo", b, 0o755); err != nil {
		t.Fatal(err)
	}
	return program, []string{dir + ":/carboy-tools:ro"}
}

// upstream serves what the tools request from their hosts.
type upstream struct {
	mu    sync.Mutex
	hosts map[string]bool
	files map[string][]byte // key: HOST/PATH
	git   http.Handler
}

func (u *upstream) forget() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.hosts = map[string]bool{}
}

func (u *upstream) asked(host string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.hosts[host]
}

func (u *upstream) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	u.hosts[r.Host] = true
	u.mu.Unlock()
	if r.Host == "github.com" {
		u.git.ServeHTTP(rw, r)
		return
	}
	if b, ok := u.files[r.Host+r.URL.Path]; ok {
		http.ServeContent(rw, r, "", time.Time{}, bytes.NewReader(b))
		return
	}
	switch {
	case r.URL.Path == "/count":
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(rw, "%d bytes %v\n", n, err)
	case r.Host == "api.github.com":
		rw.Header().Set("Content-Type", "application/json")
		fmt.Fprintln(rw, `{"greeting": "hello from api.github.com"}`)
	default:
		http.NotFound(rw, r)
	}
}

func newUpstream(t *testing.T, ws string) *upstream {
	u := &upstream{hosts: map[string]bool{}, files: map[string][]byte{}}
	u.files["files.example.com/hello"] = []byte("hello from files.example.com\n")

	// Serve a bare copy of the workspace's repository.
	root := t.TempDir()
	git := testenv.Need(t, "git", "apt-get install git")
	c := exec.Command(git, "-c", "safe.directory=*", "clone", "-q", "--bare", ws, root+"/someone/project.git")
	c.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + root, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}
	write(t, root+"/.gitconfig", "[safe]\n\tdirectory = *\n")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	u.git = &cgi.Handler{Path: git, Args: []string{"http-backend"}, Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1", "HOME=" + root}}

	wheel := zipped(t, map[string]string{
		"tiny_thing.py": "", "tiny_thing-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.0\n",
		"tiny_thing-1.0.dist-info/WHEEL":  "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"tiny_thing-1.0.dist-info/RECORD": "",
	})
	u.files["pypi.org/simple/tiny-thing/"] = fmt.Appendf(nil, `<!DOCTYPE html><html><body><a href="https://files.pythonhosted.org/tiny_thing-1.0-py3-none-any.whl#sha256=%x">tiny_thing-1.0-py3-none-any.whl</a></body></html>`, sha256.Sum256(wheel))
	u.files["files.pythonhosted.org/tiny_thing-1.0-py3-none-any.whl"] = wheel

	const mod = "module example.org/tiny\n\ngo 1.20\n"
	base := "proxy.golang.org/example.org/tiny/@v/"
	u.files[base+"list"] = []byte("v1.0.0\n")
	u.files[base+"v1.0.0.info"] = []byte(`{"Version":"v1.0.0","Time":"2024-01-01T00:00:00Z"}`)
	u.files[base+"v1.0.0.mod"] = []byte(mod)
	u.files[base+"v1.0.0.zip"] = zipped(t, map[string]string{"example.org/tiny@v1.0.0/go.mod": mod, "example.org/tiny@v1.0.0/tiny.go": "package tiny\n"})

	tgz := tarred(t, map[string]string{"package/package.json": `{"name":"tiny-thing","version":"1.0.0","main":"index.js"}`, "package/index.js": "// tiny and from npm\n"})
	sum := sha1.Sum(tgz)
	u.files["registry.npmjs.org/tiny-thing"] = fmt.Appendf(nil, `{"name":"tiny-thing","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"tiny-thing","version":"1.0.0","dist":{"shasum":"%x","tarball":"https://registry.npmjs.org/tiny-thing/-/tiny-thing-1.0.0.tgz"}}}}`, sum)
	u.files["registry.npmjs.org/tiny-thing/-/tiny-thing-1.0.0.tgz"] = tgz

	packages := []byte("Package: tiny-thing\nVersion: 1.0\nArchitecture: all\nMaintainer: A Person <person@example.com>\nFilename: ./tiny-thing.deb\nSize: 1\nSHA256: " + strings.Repeat("0", 64) + "\nDescription: tiny\n\n")
	md, sha := md5.Sum(packages), sha256.Sum256(packages)
	u.files["deb.debian.org/tiny/./Packages"] = packages
	u.files["deb.debian.org/tiny/Packages"] = packages
	release := fmt.Appendf(nil, "Origin: test\nDate: Mon, 01 Jan 2024 00:00:00 UTC\nMD5Sum:\n %s %d Packages\nSHA256:\n %s %d Packages\n", hex.EncodeToString(md[:]), len(packages), hex.EncodeToString(sha[:]), len(packages))
	u.files["deb.debian.org/tiny/./Release"], u.files["deb.debian.org/tiny/Release"] = release, release

	u.files["index.crates.io/config.json"] = []byte(`{"dl":"https://static.crates.io/crates","api":"https://crates.io"}`)
	u.files["crates.io/api/v1/crates"] = []byte(`{"crates":[{"name":"tiny_crate","description":"tiny","max_version":"1.0.0"}],"meta":{"total":1}}`)
	return u
}

func zipped(t *testing.T, files map[string]string) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, content := range files {
		f, err := z.Create(name)
		if err == nil {
			_, err = io.WriteString(f, content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func tarred(t *testing.T, files map[string]string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
