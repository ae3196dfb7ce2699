package carboy

import (
	"archive/tar"
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottles"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/testenv"
)

// aServer is a program for images: it listens on the ports of its arguments and answers
// lines. What it is told to do says what a service can do.
const aServer = `package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

var kept atomic.Pointer[string]

func main() {
	switch os.Args[1] {
	case "fail":
		fmt.Println("first\nit \x1b[31mcan't\x1b[0m begin: " + os.Getenv("A_PASSWORD"))
		os.Exit(3)
	case "check":
		fmt.Println(dial(os.Args[2:]))
		if _, err := os.Stat("/ready"); err != nil {
			os.Exit(1)
		}
		return
	}
	for _, port := range os.Args[1:] {
		l, err := net.Listen("tcp", ":"+port)
		if err != nil {
			panic(err)
		}
		go serve(l)
	}
	os.WriteFile("/ready", nil, 0o644)
	fmt.Println("it \x1b[31mlistens\x1b[0m")
	select {}
}

func serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			for s := bufio.NewScanner(c); s.Scan(); {
				fmt.Fprintln(c, answer(strings.Fields(s.Text())))
			}
		}()
	}
}

func answer(words []string) string {
	switch {
	case len(words) == 3 && words[0] == "dial":
		return dial(words[1:])
	case len(words) == 2 && words[0] == "keep":
		kept.Store(&words[1])
		return "keeps it"
	case len(words) == 1 && words[0] == "kept":
		if k := kept.Load(); k != nil {
			return "has " + *k
		}
		return "has nothing"
	case len(words) == 2 && words[0] == "env":
		return "value " + os.Getenv(words[1])
	case len(words) == 1 && words[0] == "who":
		own, _ := os.Stat("/srv")
		return fmt.Sprintf("uid %d, /srv of %d %s", os.Getuid(), own.Sys().(*syscall.Stat_t).Uid, own.Mode().Perm())
	case len(words) == 1 && words[0] == "fill":
		var all [][]byte
		for {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = byte(i)
			}
			all = append(all, b)
		}
	}
	return "heard " + strings.Join(words, " ")
}

func dial(to []string) string {
	c, err := net.DialTimeout("tcp", net.JoinHostPort(to[0], to[1]), 5*time.Second)
	if err != nil {
		return "no: " + err.Error()
	}
	defer c.Close()
	// Whether somebody is there at the other end is only known from an answer.
	c.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprintf(c, "GET / HTTP/1.0\r\nHost: %s\r\n\r\n", to[0])
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return "no: " + err.Error()
	}
	return "yes: " + strings.TrimSpace(line)
}
`

// builtServer returns that program, built.
var builtServer = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "server-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "server")
	if err := os.WriteFile(program+".go", []byte(aServer), 0o600); err != nil {
		return nil, err
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, program+".go")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return os.ReadFile(program)
})

// serverImage is a layout with an image of that program. /srv is the user 1234's.
func serverImage(t *testing.T) string {
	t.Helper()
	testenv.Need(t, "go", "install Go, which builds the tests")
	text, err := builtServer()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []*tar.Header{
		{Name: "server", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(text))},
		{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777},
		{Name: "srv/", Typeflag: tar.TypeDir, Mode: 0o700, Uid: 1234, Gid: 1234},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write(text); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: "amd64", Config: v1.Config{Env: []string{"OF_IMAGE=here"}, Entrypoint: []string{"/server"}, Cmd: []string{"7000"}}})
	if err == nil {
		img, err = mutate.AppendLayers(img, static.NewLayer(b.Bytes(), types.OCIUncompressedLayer))
	}
	if err != nil {
		t.Fatal(err)
	}
	box := filepath.Join(t.TempDir(), "box")
	p, err := layout.Write(box, empty.Index)
	if err == nil {
		err = p.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return "oci:" + box
}

// grouped is a client whose agent a is a script, with services beside it.
func grouped(t *testing.T, services string) *world {
	t.Helper()
	testenv.Need(t, "bash", "apt-get install bash")
	front := "agent_provider: {template: command, settings: {command: [bash, -c, '{prompt}']}}\n" + strings.ReplaceAll(services, "IMAGE", serverImage(t))
	return agents(t, nil, map[string]string{".config/carboy/bottles/c.md": "---\n" + front + "---\n", ".config/carboy/agents/a.md": "---\nbottle: c\n---\n"})
}

// say is a function of scripts: it sends a line to a host's port and prints the answer.
const say = `say() {
	( exec 5<>/dev/tcp/$1/$2 && echo "$3" >&5 && read -r -t 20 x <&5 && echo "$1:$2 $3: $x" ) 2>/dev/null || echo "$1:$2 $3: nothing"
}
`

const twoServers = `env: {DB_PASSWORD: of-the-service}
services:
  db:
    image: IMAGE
    command: 7000 7002
    environment: {A_PASSWORD: sesame-of-db-alone, SHARED: of-the-service}
    ports: [7000]
    healthcheck: {test: [CMD, /server, check, 127.0.0.1, "7000"], interval: 50ms}
  cache:
    image: IMAGE
    command: "7001"
    ports: [7001]
    depends_on: [db]
`

// TestW8Group: what a service and its bottle reach of one another, and of all else.
func TestW8Group(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "outside") }))
	t.Cleanup(up.Close)
	_, hostPort, _ := net.SplitHostPort(strings.TrimPrefix(up.URL, "http://"))
	w := grouped(t, twoServers+"egress: {routes: [{host: up.example, upstream: '"+up.URL+"'}]}\n")
	k := begin(t, func(in *os.File, out *syncOutput) (*bottles.Started, error) {
		return w.c.Start(t.Context(), bottles.StartOptions{Agent: "a", Dir: w.ws, Headless: true, Stdin: in, Stdout: out, Stderr: out, Prompt: say + `
say db 7000 hello
say db 7000 who
say db 7000 "env OF_IMAGE"
say db 7000 "env A_PASSWORD"
say db 7000 "env SHARED"
say cache 7001 hello
say up.example 80 $'GET / HTTP/1.1\r\nHost: up.example\r\n\r'
say supervise.carboy.internal 80 $'GET / HTTP/1.1\r\nHost: supervise.carboy.internal\r\n\r'
echo attacks
say db 7002 hello
say db 7000 "dial 127.0.0.1 7002"
say db 7000 "dial cache 7001"
for s in "198.18.1.0 7000" "198.18.1.0 7001" "198.18.1.1 7000"; do say db 7000 "dial $s"; done
say cache 7001 "dial db 7000"
say cache 7001 "dial db 7002"
for s in "up.example 80" "git.carboy.internal 80" "supervise.carboy.internal 80" "host.carboy.internal ` + hostPort + `" "127.0.0.1 ` + hostPort + `"; do say cache 7001 "dial $s"; say db 7000 "dial $s"; done
echo "own variables: $(cat /proc/*/environ 2>/dev/null | tr '\0' '\n' | grep -c sesame) $DB_PASSWORD"
echo ready; read -r line; say db 7000 goodbye
`})
	})
	k.expect("ready")
	// While it runs, nobody else reaches the service: neither another bottle nor the host.
	var other bytes.Buffer
	rec, err := w.c.Run(t.Context(), plan.Options{Mode: store.None, Command: []string{"bash", "-c", say + "say db 7000 hello; say 198.18.1.0 7000 hello; echo control"}, Stdout: &other, Stderr: &other})
	if err != nil || rec.Exit.Code != 0 || !strings.Contains(other.String(), "control") || strings.Contains(other.String(), "heard") {
		t.Errorf("another bottle: %v %s", err, other.String())
	}
	if c, err := net.DialTimeout("tcp", "127.0.0.1:7000", time.Second); err == nil {
		c.Close()
		t.Error("the host reaches the service's port")
	}
	fmt.Fprintln(k.in, "end")
	<-k.done
	if k.err != nil {
		t.Fatalf("%v\n%s", k.err, k.out.String())
	}
	text := k.out.String()
	for _, want := range []string{
		"db:7000 hello: heard hello", "db:7000 who: uid 0, /srv of 1234 -rwx------", "env OF_IMAGE: value here", "env A_PASSWORD: value sesame-of-db-alone", "env SHARED: value of-the-service",
		"cache:7001 hello: heard hello", "HTTP/1.1 200 OK",
		"db:7002 hello: nothing", "dial 127.0.0.1 7002: yes: heard GET", "db:7000 dial cache 7001: no", "cache:7001 dial db 7000: yes: heard GET", "cache:7001 dial db 7002: no",
		"own variables: 0 of-the-service", "db:7000 goodbye: heard goodbye",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	controls, attacks, _ := strings.Cut(text, "attacks\n")
	if strings.Contains(controls, ": nothing") {
		t.Error("a control has no answer")
	}
	if n := strings.Count(attacks, ": yes"); n != 2 {
		t.Errorf("%d connections of services instead of 2", n)
	}
	if t.Failed() {
		t.Log(text)
	}
	checkGroup(t, w, k.s.Receipt)
}

// checkGroup looks at what is recorded of the two.
func checkGroup(t *testing.T, w *world, r *receipt.Receipt) {
	t.Helper()
	if len(r.Services) != 2 {
		t.Fatalf("%+v", r.Services)
	}
	for i, want := range []string{"db healthy", "cache listening"} {
		x := r.Services[i]
		if x.Name+" "+x.Health != want || x.Exit != nil || x.Class != bottle.IsolationUserKernel || !strings.HasPrefix(x.Digest, "sha256:") || x.Connections == 0 || x.BytesUp == 0 || x.BytesDown == 0 {
			t.Errorf("%+v", x)
		}
	}
	var page bytes.Buffer
	if err := receipt.Text(&page, r, receipt.Style{}); err != nil || !strings.Contains(page.String(), "healthy; ") {
		t.Errorf("%v %s", err, page.String())
	}
	b, err := r.Encode()
	if err != nil || bytes.Contains(b, []byte("sesame-of-db")) {
		t.Errorf("%v: a service's secret is in the receipt", err)
	}
	f, err := w.c.Log(r.ID, store.ServiceLog("db"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if line, err := bufio.NewReader(f).ReadString('\n'); err != nil || !strings.Contains(line, "listens") {
		t.Errorf("%q %v", line, err)
	}
	if left, err := os.ReadDir(filepath.Join(string(r.Evidence), "services")); err == nil {
		t.Errorf("left: %v", left)
	}
}

// A service that is never ready ends the run before the agent begins, with what it said
// last; one that dies later is in the receipt.
func TestServicesEnd(t *testing.T) {
	w := grouped(t, `services:
  db:
    image: IMAGE
    command: fail
    environment: {A_PASSWORD: open-sesame}
    ports: [7000]
`)
	start := func() (string, *bottles.Started, error) {
		var out testenv.Buffer
		s, err := w.c.Start(t.Context(), bottles.StartOptions{Agent: "a", Dir: w.ws, Headless: true, Stdout: &out, Stderr: &out, Prompt: say + "echo begun; say db 7000 hello; say db 7000 fill; for i in {1..200}; do say db 7000 there; done | grep -m 1 nothing"})
		return out.String(), s, err
	}
	manifest := func(with, instead string) {
		t.Helper()
		name := filepath.Join(filepath.Dir(w.ws), ".config/carboy/bottles/c.md")
		b, err := os.ReadFile(name)
		if err == nil && !bytes.Contains(b, []byte(instead)) {
			err = fmt.Errorf("no %q", instead)
		}
		if err == nil {
			err = os.WriteFile(name, bytes.Replace(b, []byte(instead), []byte(with), 1), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	out, s, err := start()
	if err == nil || strings.Contains(out, "begun") || s == nil || s.Receipt.Exit.Code != 125 || len(s.Receipt.Services) != 1 || s.Receipt.Services[0].Exit == nil || s.Receipt.Services[0].Exit.Code != 3 {
		t.Fatalf("%v %+v %s", err, s, out)
	}
	for _, want := range []string{"service db (", "c.md:", "it has ended: with exit code 3", "first | it", "begin"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "\x1b") || strings.Contains(err.Error(), "sesame") {
		t.Errorf("%q", err)
	}

	manifest("command: '7000'\n    healthcheck: {test: echo, interval: 10ms, start_period: 10ms, retries: 2}", "command: fail")
	if out, s, err = start(); err == nil || strings.Contains(out, "begun") || !strings.Contains(err.Error(), "it is not healthy after") || s.Receipt.Services[0].Health != receipt.Unhealthy {
		t.Fatalf("%v %s", err, out)
	}

	// There is no shell in it; its own program says that it is ready.
	manifest("healthcheck: {test: [CMD, /server, check, 127.0.0.1, '7000'], interval: 50ms}\n    limits: {memory: 256MiB}", "healthcheck: {test: echo, interval: 10ms, start_period: 10ms, retries: 2}")
	if out, s, err = start(); err != nil || !strings.Contains(out, "heard hello") || !strings.Contains(out, "nothing") {
		t.Fatalf("%v %s", err, out)
	}
	if x := s.Receipt.Services[0]; x.Exit == nil || x.Exit.Reason != receipt.Memory || x.Health != receipt.Healthy {
		t.Errorf("%+v", x)
	}
}

// A frozen agent's services are lost, which is said before, and it finds new ones.
func TestServicesResumed(t *testing.T) {
	w := grouped(t, "services: {db: {image: IMAGE, ports: [7000]}}\n")
	k := begin(t, func(in *os.File, out *syncOutput) (*bottles.Started, error) {
		return w.c.Start(t.Context(), bottles.StartOptions{Agent: "a", Dir: w.ws, Headless: true, Prompt: say + `while read -r line; do say db 7000 "$line"; done`, Stdin: in, Stdout: out, Stderr: out})
	})
	k.ask("keep 42", "keep 42: keeps it")
	k.ask("kept", "kept: has 42")
	if l := w.c.FreezeLoses("a"); len(l) != 1 || !strings.Contains(l[0], "its services end") {
		t.Errorf("%q", l)
	}
	w.freeze(k)
	k = w.resumeTalker(nil)
	k.ask("kept", "kept: has nothing")
	k.in.Close()
	<-k.done
	if k.err != nil || strings.Contains(k.out.String(), "begins with its files") || len(k.s.Receipt.Services) != 1 || k.s.Receipt.Services[0].Connections != 1 {
		t.Errorf("%v %+v\n%s", k.err, k.s, k.out.String())
	}
}

// TestW8GroupKilled: with carboy, all of its bottles are gone.
func TestW8GroupKilled(t *testing.T) {
	called := make(chan struct{}, 1)
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case called <- struct{}{}:
		default:
		}
	}))
	t.Cleanup(up.Close)
	w := grouped(t, twoServers+"egress: {routes: [{host: up.example, upstream: '"+up.URL+"'}]}\n")
	vars := map[string]string{}
	for _, name := range []string{"XDG_STATE_HOME", "XDG_RUNTIME_DIR", "HOME", "TMPDIR", "PATH"} {
		vars[name] = w.c.host.Env(name)
	}
	var all []testenv.Process
	kill(t, victimEnv, map[string]any{"Vars": vars, "Dir": w.ws, "Script": say + `say db 7000 hello; say up.example 80 $'GET / HTTP/1.1\r\nHost: up.example\r\n\r'; sleep 100`}, called, func() {
		shims := 0
		all = testenv.Living(t, os.Getpid())
		for _, p := range all {
			if p.Argv0() == "carboy-shim" {
				shims++
			}
		}
		if shims < 3 {
			t.Errorf("%d bottles run, and should be three", shims)
		}
	})
	testenv.AllGone(t, "the killed carboy", all, testenv.Patience(30*time.Second))
	c, err := Open(t.Context(), reopen(w.c.host.Opened))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lost := c.Lost()
	if len(lost) != 1 {
		t.Fatalf("%+v", lost)
	}
	if _, err := os.Stat(filepath.Join(c.StateDir(), "runs", string(lost[0].ID), "services")); err == nil {
		t.Error("what the services needed is left")
	}
}
