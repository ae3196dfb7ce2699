package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// gatewayBench measures ways to the same server by the same client: straight, and
// through what opens TLS on the way. It is used by one goroutine. Start reading at
// measure; agent.go is the client, upstream.go the server.
type gatewayBench struct {
	o       *options
	base    string
	log     io.Writer
	ca      *certAuthority
	up      *upstream
	systems []*system
	skipped []string
	failed  []string
	facts   facts
	samples map[key][]gatewaySample // by measure and system, one per round
	idle    map[string]memory       // after the start
	many    []Many
	cleanup []func() error
}

// gatewaySample holds one measurement of one system in one round; all zero if it failed.
type gatewaySample struct {
	outcome
	// Gateway is the processor time of what is between the client and the server,
	// Below that of the processes under it: carboy's bottle, with the client in it.
	Gateway time.Duration `json:"gateway_cpu"`
	Below   time.Duration `json:"below_cpu"`
	// Memory is the gateway's, the median while it was busy.
	Memory memory `json:"memory"`
}

// rate returns bytes per second or, if no bytes were counted, requests per second.
func (s gatewaySample) rate() float64 {
	if s.Took <= 0 {
		return 0
	}
	return float64(cmp.Or(s.Bytes, int64(s.Count))) / s.Took.Seconds()
}

func (s gatewaySample) perRequest() float64 { return float64(s.Gateway) / float64(max(1, s.Count)) }
func (s gatewaySample) perByte() float64    { return float64(s.Gateway) / float64(max(1, s.Bytes)) }

// Systems, in the order of the tables.
const (
	direct       = "direct"
	passed       = "carboy, inspect: false"
	opened       = "carboy, not scanned"
	scanned      = "carboy, scanned"
	goProxy      = "Go's ReverseProxy"
	mitmproxy    = "mitmproxy"
	soaked       = "carboy, for a soak" // no column: the default with conditions
	gatewayRoute = "host.carboy.internal"
)

var systemNames = []string{direct, passed, opened, scanned, goProxy, mitmproxy}

// systemFlags lists the names of the systems for -peers.
var systemFlags = map[string]string{"passed": passed, "opened": opened, "scanned": scanned, "go": goProxy, "mitmproxy": mitmproxy}

// system is one way to the server, with its client.
type system struct {
	name    string
	cmd     *exec.Cmd // the client, or the supervisor with the client in its bottle
	in      io.WriteCloser
	out     *bufio.Reader
	gateway int // the process that opens TLS; 0: nobody does
	control string
	version string
	stop    []func() error
}

// gatewayMeasure is one thing that all of them do. bulk ones are less for who is
// slower by orders of magnitude.
type gatewayMeasure struct {
	name string
	bulk bool
	task func(o *options) task
}

var gatewayMeasures = []gatewayMeasure{
	{name: "post-h1", task: func(o *options) task { return task{Do: "post", Proto: "h1", Conc: 16, For: o.busy} }},
	{name: "post-h2", task: func(o *options) task { return task{Do: "post", Proto: "h2", Conc: 16, For: o.busy} }},
	{name: "post-64", task: func(o *options) task { return task{Do: "post", Proto: "h1", Conc: 64, For: o.busy} }},
	{name: "down-h1", bulk: true, task: func(o *options) task { return task{Do: "down", Proto: "h1", Bytes: int64(o.bulk) << 20} }},
	{name: "up-h1", bulk: true, task: func(o *options) task { return task{Do: "up", Proto: "h1", Bytes: int64(o.bulk) << 20} }},
	{name: "down-h2", bulk: true, task: func(o *options) task { return task{Do: "down", Proto: "h2", Bytes: int64(o.bulk) << 20} }},
	{name: "up-h2", bulk: true, task: func(o *options) task { return task{Do: "up", Proto: "h2", Bytes: int64(o.bulk) << 20} }},
	{name: "events", task: func(o *options) task {
		return task{Do: "events", Proto: "h1", Count: max(10, int(o.busy/eventPeriod))}
	}},
}

// mitmproxyLess divides the amount that mitmproxy has to carry, since it buffers all of
// it.
const mitmproxyLess = 16

func newGatewayBench(ctx context.Context, o *options, log io.Writer) (_ *gatewayBench, err error) {
	if err := shareFileLimit(); err != nil {
		return nil, err
	}
	// Sockets need a short name.
	base, err := os.MkdirTemp("/tmp", "carboy-gw-")
	if err != nil {
		return nil, err
	}
	g := &gatewayBench{o: o, base: base, log: log, samples: map[key][]gatewaySample{}, idle: map[string]memory{}}
	g.cleanup = append(g.cleanup, func() error { return os.RemoveAll(base) })
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	if g.ca, err = newCertAuthority(); err != nil {
		return nil, err
	}
	if g.up, err = newUpstream(g.ca); err != nil {
		return nil, err
	}
	g.cleanup = append(g.cleanup, g.up.close)
	g.facts = readFacts(base)
	return g, g.writeFiles()
}

// shareFileLimit gives the peers as many open files as Go gives itself: a
// program that it starts has the lower limit otherwise, which 505 connections
// through a proxy reach.
func shareFileLimit() error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	l.Cur = l.Max
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &l)
}

func (g *gatewayBench) path(p string) string { return filepath.Join(g.base, p) }

func (g *gatewayBench) close() error {
	var errs []error
	for _, f := range slices.Backward(g.cleanup) {
		errs = append(errs, f())
	}
	g.cleanup = nil
	return errors.Join(errs...)
}

func (g *gatewayBench) writeFiles() error {
	key, err := g.ca.keyPEM()
	if err != nil {
		return err
	}
	if err := errors.Join(os.Chmod(g.base, 0o755), os.Mkdir(g.path("ws"), 0o755), os.Mkdir(g.path("mitm"), 0o700)); err != nil {
		return err
	}
	both := append(key, g.ca.certPEM()...)
	for name, b := range map[string][]byte{
		"ws/ca.pem": g.ca.certPEM(), "ca-key.pem": both, "mitm/mitmproxy-ca.pem": both,
	} {
		mode := os.FileMode(0o600)
		if name == "ws/ca.pem" {
			mode = 0o644
		}
		if err := os.WriteFile(g.path(name), b, mode); err != nil {
			return err
		}
	}
	if err := copySelf(g.path("ws/bench")); err != nil {
		return err
	}
	if os.Geteuid() == 0 { // a workload of root's is the workspace's owner
		return os.Chown(g.path("ws"), nobodyUID, nobodyGID)
	}
	return nil
}

func (g *gatewayBench) skip(format string, a ...any) {
	s := fmt.Sprintf(format, a...)
	g.skipped = append(g.skipped, s)
	fmt.Fprintln(g.log, "SKIPPED:", s)
}

func (g *gatewayBench) fail(measure, system string, err error) {
	s := fmt.Sprintf("%s with %s: %v", measure, system, err)
	g.failed = append(g.failed, s)
	fmt.Fprintln(g.log, "FAILED:", s)
}

// start starts all installed systems.
func (g *gatewayBench) start(ctx context.Context) error {
	want := map[string]bool{}
	for _, w := range list(g.o.peers) {
		name, ok := systemFlags[w]
		if !ok {
			return fmt.Errorf("-peers: no %q; known: %s", w, strings.Join(slices.Sorted(maps.Keys(systemFlags)), ", "))
		}
		want[name] = true
	}
	for _, name := range list(g.o.only) {
		if !slices.ContainsFunc(gatewayMeasures, func(m gatewayMeasure) bool { return m.name == name }) {
			return fmt.Errorf("-only: no measure %q", name)
		}
	}
	for _, name := range systemNames {
		if len(want) > 0 && name != direct && !want[name] {
			continue
		}
		s, err := g.system(ctx, name, 0, "")
		switch {
		case err == nil:
		case name == mitmproxy && ctx.Err() == nil:
			g.skip("mitmproxy: %v", err)
			continue
		default:
			return fmt.Errorf("%s: %w", name, err)
		}
		if name == scanned {
			ok, err := g.scans(s)
			if err != nil {
				return errors.Join(fmt.Errorf("%s: %w", name, err), s.close())
			}
			if !ok {
				g.skip("%s: what looks like a token passed a route with the default detectors", name)
				if err := s.close(); err != nil {
					return err
				}
				continue
			}
		}
		g.systems = append(g.systems, s)
		g.cleanup = append(g.cleanup, s.close)
		if s.gateway != 0 {
			g.facts.Peers = append(g.facts.Peers, strings.TrimSpace(name+" "+s.version))
			if g.idle[name], err = g.settled(ctx, s.gateway); err != nil {
				return err
			}
		}
	}
	return nil
}

// settled returns the memory of a process after a short idle time.
func (g *gatewayBench) settled(ctx context.Context, pid int) (memory, error) {
	select {
	case <-time.After(min(2*time.Second, 4*g.o.busy)):
	case <-ctx.Done():
		return memory{}, ctx.Err()
	}
	return memoryOf(pid)
}

// scans checks that a text which looks like a token does not reach the server.
func (g *gatewayBench) scans(s *system) (bool, error) {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	token := []byte("ghp_") // made here, so that nothing like it stands in a file
	for range 36 {
		token = append(token, letters[rand.IntN(len(letters))])
	}
	o, err := s.ask(task{Do: "probe", Text: "harmless"})
	if err != nil || o.Count != 1 {
		return false, errors.Join(err, errors.New("a harmless text did not pass"))
	}
	o, err = s.ask(task{Do: "probe", Text: `{"token": "` + string(token) + `"}`})
	return o.Count == 0, err
}

// routeOf returns the route of one of carboy's systems.
func (g *gatewayBench) routeOf(name string) string {
	r := fmt.Sprintf("routes:\n  - host: %q\n    private: true\n", net.JoinHostPort(gatewayRoute, g.up.port))
	switch name {
	case passed:
		r += "    inspect: false\n"
	case opened:
		r += "    dlp: {outbound_detectors: false, inbound_detectors: false}\n"
	case soaked:
		r += "    matches: [{paths: [{value: /post}, {value: /bytes}, {value: /sink}, {value: /events}, {value: /reset}, {value: /socket}]}]\n"
	}
	return r
}

// system starts one; conns is for a gateway that lets more be open at once than a
// run's does.
func (g *gatewayBench) system(ctx context.Context, name string, conns int, leak string) (_ *system, err error) {
	fmt.Fprintln(g.log, "starting", name)
	s := &system{name: name}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	here, err := os.Executable()
	if err != nil {
		return nil, err
	}
	client := []string{g.path("ws/bench"), agentArg, "-ca", g.path("ws/ca.pem")}
	on := func(host, proxy string) []string {
		return append(client, "-base", "https://"+net.JoinHostPort(host, g.up.port), "-proxy", proxy)
	}
	switch name {
	case direct:
		err = s.run(ctx, on("localhost", ""), nil)
	case goProxy:
		var port string
		if port, err = s.proxy(ctx, here, g.path("ca-key.pem")); err == nil {
			err = s.run(ctx, on("localhost", "http://127.0.0.1:"+port), nil)
		}
	case mitmproxy:
		var port string
		if port, err = g.mitmproxy(ctx, s); err == nil {
			err = s.run(ctx, on("localhost", "http://127.0.0.1:"+port), nil)
		}
	default:
		err = g.supervise(ctx, s, here, on(gatewayRoute, ""), conns, leak)
	}
	if err != nil {
		return nil, err
	}
	if _, err := s.ask(task{Do: "post", Conc: 1, For: time.Millisecond}); err != nil {
		return nil, fmt.Errorf("does not work here: %w", err)
	}
	return s, nil
}

func (g *gatewayBench) supervise(ctx context.Context, s *system, here string, argv []string, conns int, leak string) error {
	dir, err := os.MkdirTemp(g.base, "r")
	if err != nil {
		return err
	}
	s.stop = append(s.stop, func() error { return os.RemoveAll(dir) })
	s.control = filepath.Join(dir, "c")
	file := filepath.Join(dir, "routes.yaml")
	if err := os.WriteFile(file, []byte(g.routeOf(s.name)), 0o600); err != nil {
		return err
	}
	doc, err := json.Marshal(supervised{
		Routes: file, Workspace: g.path("ws"), CA: g.path("ws/ca.pem"), Control: s.control, Argv: argv, Conns: conns, Leak: leak,
	})
	if err != nil {
		return err
	}
	if err := s.run(ctx, []string{here, superviseArg, string(doc)}, append(os.Environ(), "XDG_STATE_HOME="+dir, "XDG_RUNTIME_DIR="+dir)); err != nil {
		return err
	}
	s.gateway = s.cmd.Process.Pid
	return nil
}

// proxy starts this program as the peer of plain Go.
func (s *system) proxy(ctx context.Context, here, ca string) (string, error) {
	c := exec.CommandContext(ctx, here, proxyArg, ca)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		return "", err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := c.Start(); err != nil {
		return "", err
	}
	s.gateway = c.Process.Pid
	s.stop = append(s.stop, func() error { in.Close(); return ending(c) })
	line, err := bufio.NewReader(out).ReadString('\n')
	return strings.TrimSpace(line), err
}

func (g *gatewayBench) mitmproxy(ctx context.Context, s *system) (string, error) {
	if err := absent([2]string{"mitmdump", "Debian and Ubuntu: apt-get install mitmproxy"}); err != nil {
		return "", err
	}
	s.version = versionOf(ctx, "mitmdump", "--version")
	addon := g.path("addon.py")
	if err := os.WriteFile(addon, mitmproxyAddon, 0o600); err != nil {
		return "", err
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0") // it can't be told to choose one, and say which
	if err != nil {
		return "", err
	}
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	ln.Close()
	c := exec.CommandContext(ctx, "mitmdump", "--quiet", "--listen-host", "127.0.0.1", "--listen-port", port,
		"--set", "confdir="+g.path("mitm"), "--set", "ssl_verify_upstream_trusted_ca="+g.path("ws/ca.pem"), "--scripts", addon)
	// Something to look for, as a run would have it.
	c.Env = append(os.Environ(), "BENCH_SECRETS="+rndHex(40)+" "+rndHex(40))
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		return "", err
	}
	s.gateway = c.Process.Pid
	s.stop = append(s.stop, func() error {
		c.Process.Signal(unix.SIGTERM)
		return ending(c)
	})
	return port, until(ctx, "mitmproxy", func(context.Context) (bool, error) {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			c.Close()
		}
		return err == nil, nil
	})
}

func rndHex(n int) string {
	var w strings.Builder
	for range n {
		fmt.Fprintf(&w, "%x", rand.IntN(16))
	}
	return w.String()
}

// ending waits for a process that was told to end. It ignores the exit code.
func ending(c *exec.Cmd) error {
	ended := make(chan struct{})
	go func() { c.Wait(); close(ended) }() // until end
	return end(c.Process, ended)
}

// run starts the client.
func (s *system) run(ctx context.Context, argv, env []string) error {
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.Cancel = func() error { return c.Process.Signal(unix.SIGTERM) }
	c.WaitDelay = 20 * time.Second
	c.Env, c.Stderr = env, os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		return err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	s.cmd, s.in, s.out = c, in, bufio.NewReaderSize(out, 64<<10)
	s.stop = append(s.stop, func() error { in.Close(); return ending(c) })
	return nil
}

func (s *system) close() error {
	var errs []error
	for _, f := range slices.Backward(s.stop) {
		errs = append(errs, f())
	}
	s.stop = nil
	return errors.Join(errs...)
}

// ask sends the client a task and waits for its result.
func (s *system) ask(t task) (outcome, error) {
	line, err := json.Marshal(t)
	if err != nil {
		return outcome{}, err
	}
	if _, err := s.in.Write(append(line, '\n')); err != nil {
		return outcome{}, err
	}
	answer, err := s.out.ReadBytes('\n')
	if err != nil {
		return outcome{}, fmt.Errorf("the client ended: %w", err)
	}
	var o outcome
	if err := json.Unmarshal(answer, &o); err != nil {
		return outcome{}, fmt.Errorf("the client said %.300q", answer)
	}
	if o.Error != "" {
		return o, errors.New(tailOf(o.Error))
	}
	return o, nil
}

// measure runs all rounds. The systems take turns within seconds, in another order
// each round.
func (g *gatewayBench) measure(ctx context.Context) error {
	if err := g.start(ctx); err != nil {
		return err
	}
	for round := range g.o.rounds {
		for _, m := range gatewayMeasures {
			if only := list(g.o.only); len(only) > 0 && !slices.Contains(only, m.name) {
				continue
			}
			fmt.Fprintf(g.log, "round %d of %d: %s\n", round+1, g.o.rounds, m.name)
			for i := range g.systems {
				s := g.systems[(i+round)%len(g.systems)]
				x, err := g.sample(ctx, m, s, round)
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if err != nil {
					g.fail(m.name, s.name, err)
					x = gatewaySample{}
				}
				k := key{m.name, s.name}
				g.samples[k] = append(g.samples[k], x)
			}
		}
		g.facts.Busy = append(g.facts.Busy, loadPerCore())
	}
	return g.openMany(ctx)
}

func (g *gatewayBench) sample(ctx context.Context, m gatewayMeasure, s *system, round int) (gatewaySample, error) {
	t := m.task(g.o)
	if s.name == mitmproxy && m.bulk {
		t.Bytes = max(1<<20, t.Bytes/mitmproxyLess)
	}
	var x gatewaySample
	if s.gateway == 0 {
		var err error
		x.outcome, err = s.ask(t)
		return x, err
	}
	profiled, err := g.profile(s, m, round)
	if err != nil {
		return x, err
	}
	watch := watchMemory(s.gateway)
	own, below, err := usage(s.gateway)
	if err == nil {
		x.outcome, err = s.ask(t)
	}
	x.Memory = watch()
	if err != nil {
		return x, errors.Join(err, profiled())
	}
	ownAfter, belowAfter, err := usage(s.gateway)
	x.Gateway, x.Below = ownAfter-own, belowAfter-below
	return x, errors.Join(err, profiled())
}

// profile takes a profile of carboy's processor time while it is busy, in the first
// round, when somebody asked for it. What is returned waits for its end.
func (g *gatewayBench) profile(s *system, m gatewayMeasure, round int) (func() error, error) {
	if g.o.profile == "" || s.control == "" || round > 0 {
		return func() error { return nil }, nil
	}
	if err := os.MkdirAll(g.o.profile, 0o755); err != nil {
		return nil, err
	}
	over := make(chan error, 1)
	go func() { // ends with the profile
		secs := strconv.Itoa(max(1, int(g.o.busy.Seconds())))
		err := fetch(s.control, "/profile?seconds="+secs, g.profileFile(s, m.name+".cpu"))
		over <- errors.Join(err, fetch(s.control, "/pprof/allocs", g.profileFile(s, m.name+".allocs")))
	}()
	return func() error { return <-over }, nil
}

func (g *gatewayBench) profileFile(s *system, what string) string {
	return filepath.Join(g.o.profile, strings.NewReplacer(", ", "-", ": ", "-", " ", "-").Replace(s.name)+"."+what+".pprof")
}

// controlClient returns a client of a supervisor's control socket.
func controlClient(socket string) *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
}

func fetch(socket, path, to string) error {
	r, err := controlClient(socket).Get("http://supervisor" + path)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.300s", path, r.Status, b)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

// usage returns the processor time of a process, and of its descendants.
func usage(pid int) (own, below time.Duration, err error) {
	pids, err := descendants(func(p, _ int) bool { return p == pid })
	if err != nil {
		return 0, 0, err
	}
	if !slices.Contains(pids, pid) {
		return 0, 0, fmt.Errorf("process %d has ended", pid)
	}
	for _, p := range pids {
		f := statOf(p)
		if len(f) < 15 {
			continue // ended meanwhile
		}
		var ticks int64
		for _, x := range f[11:13] {
			n, err := strconv.ParseInt(x, 10, 64)
			if err != nil {
				return 0, 0, fmt.Errorf("process %d: times %q", p, f[11:13])
			}
			ticks += n
		}
		if d := time.Duration(ticks) * time.Second / 100; p == pid {
			own = d
		} else {
			below += d
		}
	}
	return own, below, nil
}

// memory is a process's resident memory, and the part of it that is pages of its
// program, which the kernel drops when it wants to and every process of the same
// program shares.
type memory struct {
	Resident int64 `json:"resident_bytes"`
	Program  int64 `json:"program_bytes"`
}

func (m memory) mebibytes() float64    { return float64(m.Resident) / (1 << 20) }
func (m memory) ownMebibytes() float64 { return float64(m.Resident-m.Program) / (1 << 20) }

func memoryOf(pid int) (m memory, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			continue
		}
		n, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "VmRSS:":
			m.Resident = n << 10
		case "RssFile:":
			m.Program = n << 10
		}
	}
	if m.Resident == 0 {
		return m, fmt.Errorf("process %d: no VmRSS", pid)
	}
	return m, nil
}

// watchMemory reads it ten times a second; what is returned ends that, and gives
// the median.
func watchMemory(pid int) func() memory {
	var wg sync.WaitGroup
	var all, program []float64
	stop := make(chan struct{})
	wg.Go(func() {
		for {
			if m, err := memoryOf(pid); err == nil {
				all, program = append(all, float64(m.Resident)), append(program, float64(m.Program))
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-stop:
				return
			}
		}
	})
	return func() memory {
		close(stop)
		wg.Wait()
		if len(all) == 0 {
			return memory{}
		}
		return memory{int64(median(all)), int64(median(program))}
	}
}

// Many holds the cost of very many open connections. Each was used for one request.
type Many struct {
	System string `json:"system"`
	Conns  int    `json:"connections"`
	// Before, Open and After are the gateway's.
	Before memory `json:"before"`
	Open   memory `json:"open"`
	After  memory `json:"after"`
	// Goroutines and Descriptors are as many more as there are some time after all
	// connections were closed; known of carboy.
	Goroutines  int `json:"goroutines_left"`
	Descriptors int `json:"descriptors_left"`
	// Works says that new requests are answered while they are open.
	Works bool `json:"works"`
}

// perConn returns the memory of one connection, in bytes.
func (m Many) perConn() float64 {
	return float64(m.Open.Resident-m.Before.Resident) / float64(max(1, m.Conns))
}

func (g *gatewayBench) openMany(ctx context.Context) error {
	if g.o.conns == 0 {
		return nil
	}
	for _, x := range []struct {
		name string
		n    int
	}{{opened, g.o.conns}, {goProxy, g.o.conns}, {mitmproxy, g.o.conns / 10}} {
		if !slices.ContainsFunc(g.systems, func(s *system) bool { return s.name == x.name }) {
			continue // said already
		}
		fmt.Fprintf(g.log, "%d connections: %s\n", x.n, x.name)
		m, err := g.manyOf(ctx, x.name, x.n)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			g.fail(fmt.Sprintf("%d connections", x.n), x.name, err)
			continue
		}
		g.many = append(g.many, m)
	}
	return nil
}

func (g *gatewayBench) manyOf(ctx context.Context, name string, n int) (_ Many, err error) {
	m := Many{System: name, Conns: n}
	s, err := g.system(ctx, name, n+100, "")
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if m.Before, err = g.settled(ctx, s.gateway); err != nil {
		return m, err
	}
	before, err := s.vitals()
	if err != nil {
		return m, err
	}
	if _, err = s.ask(task{Do: "open", Count: n}); err != nil {
		return m, err
	}
	if m.Open, err = g.settled(ctx, s.gateway); err != nil {
		return m, err
	}
	if s.control != "" && g.o.profile != "" {
		for _, what := range []string{"heap", "goroutine"} {
			if err = errors.Join(os.MkdirAll(g.o.profile, 0o755), fetch(s.control, "/pprof/"+what, g.profileFile(s, "open."+what))); err != nil {
				return m, err
			}
		}
	}
	if _, err = s.ask(task{Do: "post", Conc: 16, For: min(time.Second, g.o.busy)}); err != nil {
		return m, fmt.Errorf("new requests while they are open: %w", err)
	}
	m.Works = true
	if _, err = s.ask(task{Do: "close"}); err != nil {
		return m, err
	}
	if s.control == "" { // what a peer keeps is its own business
		m.After, err = g.settled(ctx, s.gateway)
		return m, err
	}
	// What is still on its way out is given a moment.
	for range 30 {
		if m.After, err = g.settled(ctx, s.gateway); err != nil {
			return m, err
		}
		after, err := s.vitals()
		if err != nil {
			return m, err
		}
		m.Goroutines, m.Descriptors = after.Goroutines-before.Goroutines, after.Descriptors-before.Descriptors
		if m.Goroutines <= manySlack && m.Descriptors <= manySlack {
			break
		}
	}
	if m.Goroutines > manySlack || m.Descriptors > manySlack {
		return m, fmt.Errorf("after all were closed, %d goroutines and %d descriptors more are left than before", m.Goroutines, m.Descriptors)
	}
	return m, nil
}

// manySlack allows for the 16 connections of the requests that were made meanwhile, which
// their client keeps.
const manySlack = 120
