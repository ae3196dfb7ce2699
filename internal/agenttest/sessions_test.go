package agenttest

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/agenttest/sessiontest"
	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/ca"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/testenv"
)

// recordEnv makes TestSessions record, without a credential and scanning in between.
const recordEnv = "CARBOY_TEST_RECORD"

// sessionPatience bounds a session. Some agents take minutes to start on a busy machine.
var sessionPatience = testenv.Patience(20 * time.Minute)

// sessions lists the agents that play the long task, each with another API if it has one.
var sessions = []struct{ agent, api string }{
	{"pi-coding-agent", "chat completions"},
	{"claude-code", "anthropic messages"},
	{"codex", "openai responses"},
	{"gemini-cli", "gemini"},
	{"opencode-ai", "openai responses"},
}

// TestSessions lets each agent do a longer task on a project full of what looks like a
// secret and is none: hashes, ids, keys that are public, examples. With the scanning that
// is the default nothing may be found, refused or asked. The gateway's test of recorded
// sessions has the control.
func TestSessions(t *testing.T) {
	for _, x := range sessions {
		a := agents[slices.IndexFunc(agents, func(a agent) bool { return a.name == x.agent && a.api == x.api })]
		a.with(t, a.name, func(t *testing.T, dir string) {
			testenv.Need(t, "node", "apt-get install nodejs")
			a.session(t, dir, os.Getenv(recordEnv) != "")
		})
	}
}

// session plays the long task. It records it if record is set.
func (a agent) session(t *testing.T, dir string, record bool) {
	h := newHost(t)
	files := project(t)
	for name, text := range files {
		path := filepath.Join(h.ws, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, path, text)
	}
	h.give(t)
	key, route := newKey(t), "token_env: "+a.env+", "+a.scheme
	env := slices.Clone(a.more)
	if record {
		key, route = sessiontest.Key, "dlp: {outbound_detectors: false, inbound_detectors: false}"
		env = append(env, a.env+"="+key)
	}
	h.vars[a.env] = key
	server := New(t, key, longTask(h.ws))
	if record {
		server.Tape = new(Tape)
	}
	routes := filepath.Join(h.base, "routes.yaml")
	write(t, routes, fmt.Sprintf("routes:\n  - {host: %s, upstream: %q, %s}\n", a.host, server.Addr, route))
	h.open(t, server)
	var out, msg testenv.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), sessionPatience)
	defer cancel()
	inside := "/opt/" + a.name
	rec, err := h.client.Run(ctx, carboy.RunOptions{
		Command: append([]string{filepath.Join(inside, "node_modules/.bin", a.bin)}, a.command...), Workspace: h.ws, Routes: routes,
		Env: env, Stdout: &out, Stderr: &msg, Mounts: []string{dir + ":" + inside + ":ro"}, Limits: bottle.Limits{Timeout: sessionPatience},
	})
	said := fmt.Sprintf("it said:\n%.4000s\n%.4000s", out.String(), msg.String())
	if err != nil || rec == nil {
		t.Fatalf("the run: %v; %s", err, said)
	}
	t.Log(said)
	if rec.Exit.Reason != receipt.Exited || rec.Exit.Code != 0 {
		t.Errorf("the agent ended with %+v", rec.Exit)
	}
	for _, p := range server.Problems() {
		t.Error(p)
	}
	if !strings.Contains(out.String(), final) {
		t.Error("the agent did not say what the model said last")
	}
	n := rec.Network
	if len(n.Found) > 0 || n.FoundTotal > 0 || n.Totals.RequestsRefused > 0 {
		t.Errorf("false alarms, %d requests refused: %+v", n.Totals.RequestsRefused, n.Found)
	}
	for _, r := range server.Requests() {
		if !r.Key {
			t.Errorf("%s %s%s without the key", r.Method, r.Host, r.Path)
		}
	}
	// No alarm: no rule allows these hosts, and the agent goes on without them.
	for _, name := range n.Names {
		if name.Verdict == receipt.Refused {
			t.Logf("refused as no rule allows it: %s", name.Name)
		}
	}
	t.Logf("%s %s, %s: %d requests", a.bin, a.version(t, dir), a.api, len(server.Requests()))
	if record && !t.Failed() {
		keep(t, sessiontest.Session{Name: a.name, Exchanges: server.Tape.Exchanges()}, dir)
	}
}

// keep writes a recording that names nothing of this machine.
func keep(t *testing.T, s sessiontest.Session, names ...string) {
	const least = 5 // letters; a shorter name stands anywhere
	for _, path := range []string{"/etc/machine-id", "/proc/sys/kernel/random/boot_id", "/proc/sys/kernel/hostname", "/proc/sys/kernel/osrelease"} {
		if b, err := os.ReadFile(path); err == nil && len(bytes.TrimSpace(b)) >= least {
			names = append(names, string(bytes.TrimSpace(b)))
		}
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if bytes.Contains(text, []byte(name)) {
			t.Fatalf("the recording of %s has %q in it", s.Name, name)
		}
	}
	size, err := sessiontest.Write("sessiontest/testdata", s)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("recorded %d exchanges of %s: %d bytes of %d", len(s.Exchanges), s.Name, size, len(text))
}

// longTask reads, edits and runs in a project, with long outputs.
func longTask(ws string) Script {
	const from, to = "const limit = 10;", "const limit = Number(process.env.LIMIT || 10);"
	return Script{
		Steps: []Step{
			{Read: ws + "/README.md", Expect: "carboy"},
			{Run: "git add -A && git commit -qm 'all of it' && git log --stat && ls -la && cat package-lock.json"},
			{Read: ws + "/src/auth.js", Expect: from},
			{Edit: &Edit{Path: ws + "/src/auth.js", Old: from, New: to}},
			{Run: "cat .env.example config/production.yaml db/seed.sql keys/server.crt keys/known_hosts; cat go.sum"},
			{Run: "sha256sum $(git ls-files); base64 logo.png; od -A x -t x1z logo.png | head -n 40; env | sort; id; mount | head"},
			{Read: ws + "/logo.png"},
			{Run: "cat dist/app.min.js; curl -sS -m 20 https://telemetry.example.com/v1/events; true"},
			{Read: ws + "/calc.js", Expect: "a - b"},
			{Edit: &Edit{Path: ws + "/calc.js", Old: wrong, New: right}},
			{Run: "node test.js", Expect: "all tests pass"},
			{Run: "git commit -qam 'calc: add adds' && git --no-pager log --raw --no-abbrev --format=fuller", Expect: "calc: add adds"},
		},
		Final: final,
	}
}

// project returns files whose text looks like a secret here and there, and holds none.
func project(t *testing.T) map[string]string {
	t.Helper()
	rng := rand.New(rand.NewPCG(4, 7))
	random := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	uuid := func() string {
		b := random(16)
		return fmt.Sprintf("%x-%x-4%x-a%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
	}
	integrity := func(n int) string {
		sum := sha512.Sum512(random(n))
		return "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
	}
	lock := map[string]any{}
	for i, name := range strings.Fields("accepts array-flatten body-parser bytes call-bind content-type cookie cookie-signature debug depd destroy ee-first encodeurl escape-html etag express finalhandler fresh get-intrinsic has-proto http-errors inherits jsonwebtoken media-typer ms negotiator on-finished parseurl passport path-to-regexp proxy-addr qs range-parser safe-buffer send serve-static setprototypeof side-channel statuses toidentifier type-is unpipe utils-merge uuid vary") {
		version := fmt.Sprintf("%d.%d.%d", 1+i%4, i%13, i%7)
		lock["node_modules/"+name] = map[string]any{"version": version, "resolved": "https://registry.npmjs.org/" + name + "/-/" + name + "-" + version + ".tgz", "integrity": integrity(i)}
	}
	locked, err := json.MarshalIndent(map[string]any{"name": "shop", "lockfileVersion": 3, "packages": lock}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	picture := image.NewRGBA(image.Rect(0, 0, 32, 32))
	for i := range 32 * 32 {
		picture.Set(i%32, i/32, color.RGBA{byte(i), byte(i / 3), byte(rng.Uint32()), 255})
	}
	var logo bytes.Buffer
	if err := png.Encode(&logo, picture); err != nil {
		t.Fatal(err)
	}
	authority, err := ca.New("shop.example.com", nil)
	if err != nil {
		t.Fatal(err)
	}
	seed := "INSERT INTO accounts (id, email, password_hash, session) VALUES\n"
	for i := range 40 {
		seed += fmt.Sprintf("('%s', 'user%d@example.com', '$2b$12$%s', '%x'),\n", uuid(), i, strings.NewReplacer("+", ".", "=", "").Replace(base64.StdEncoding.EncodeToString(random(40)))[:53], random(20))
	}
	return map[string]string{
		"README.md":         read(t, "../../README.md"),
		"go.sum":            read(t, "../../go.sum"),
		"package-lock.json": string(locked),
		"logo.png":          logo.String(),
		"keys/server.crt":   string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate().Raw})),
		"keys/known_hosts":  "git.example.com ssh-ed25519 AAAAC3NzaC1lZDI1NTE5" + base64.StdEncoding.EncodeToString(append([]byte{0, 0, 0, 32}, random(32)...)) + "\n",
		"db/seed.sql":       seed + ";\n",
		"src/auth.js": "// Reads the token of a request: Authorization: Bearer <token>, or the cookie session_token.\n" +
			"const limit = 10;\nconst secret = process.env.SESSION_SECRET;\nconst apiKey = config.apiKey ?? process.env['API_KEY'];\n" +
			"exports.token = (req) => (req.headers.authorization || '').replace(/^Bearer /, '') || req.cookies.session_token;\n" +
			"exports.login = async (user, password) => verify(password, user.password_hash) && sign({sub: user.id, jti: randomUUID()}, secret, {expiresIn: '1h'});\n" +
			"exports.headers = () => ({'x-api-key': apiKey, 'content-type': 'application/json'});\n",
		".env.example": "# Copy to .env and fill in.\nDATABASE_URL=postgres://shop:password@localhost:5432/shop\nSESSION_SECRET=change-me-to-a-long-random-string\n" +
			"API_KEY=your-api-key-here\nOPENAI_API_KEY=sk-...\nANTHROPIC_API_KEY=sk-ant-xxxxxxxxxxxxxxxxxxxx\nGITHUB_TOKEN=ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n" +
			"AWS_ACCESS_KEY_ID=AKIAIOSFODNN7EXAMPLE\nAWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY\nSTRIPE_KEY=sk_test_...\nSENTRY_DSN=\n",
		"config/production.yaml": "database: {url: ${DATABASE_URL}, password: !vault db/password}\nauth:\n  secret: ${SESSION_SECRET}\n  token_ttl: 3600\n  client_id: " + uuid() +
			"\n  issuer: https://login.example.com/" + uuid() + "/v2.0\nfeatures: {trace_id: " + fmt.Sprintf("%x", random(16)) + ", build: " + fmt.Sprintf("%x", random(20)) + "}\n",
		"dist/app.min.js": "!function(e,t){\"use strict\";var n={},r=function(e){return n[e]||(n[e]=t(e))};e.token=r,e.secretKey=null}(window,function(e){return btoa(e)});\n" +
			"//# sourceMappingURL=data:application/json;base64," + base64.StdEncoding.EncodeToString(fmt.Appendf(nil, `{"version":3,"sources":["app.js"],"mappings":"%s"}`, base64.StdEncoding.EncodeToString(random(900)))) + "\n",
	}
}
