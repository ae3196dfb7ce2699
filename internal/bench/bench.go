package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// bench is one run of the benchmark. It is used by one goroutine; the server
// has its own, which close ends.
type bench struct {
	o       *options
	base    string // everything that is written, but for the caller's own files
	log     io.Writer
	port    string
	server  *http.Server
	loads   []load
	peers   []*peer       // native is the first
	kept    map[key]*keep // by the load's kind and the peer
	carboy  string        // the binary, when carboy is a peer
	skipped []string
	failed  []string
	cleanup []func() error
	facts   facts
	samples map[key][]sample // one per round
	split   []Phase
	idles   []Idle
	traces  []Traced
	larder  *larder // nil: manifests are not measured
	// manifestTimes holds, for each round: parse, explain, preflight, run, start.
	manifestTimes [5][]time.Duration
	frozenTimes   [3][]time.Duration // start, freeze, resume
	crowd         *Crowd
	rooted        bool // bundle/rootfs is the host's root
}

type key struct{ load, peer string }

// sample holds one round's medians of its repetitions.
type sample struct{ whole, inside time.Duration }

func (b *bench) path(p string) string { return filepath.Join(b.base, p) }

func (b *bench) skip(format string, a ...any) {
	s := fmt.Sprintf(format, a...)
	b.skipped = append(b.skipped, s)
	fmt.Fprintln(b.log, "SKIPPED:", s)
}

// fail notes a sample that failed: the others of its round still count, but the benchmark
// ends as a failure.
func (b *bench) fail(l load, p *peer, err error) {
	s := fmt.Sprintf("%s with %s: %v", l.name, p.name, err)
	b.failed = append(b.failed, s)
	fmt.Fprintln(b.log, "FAILED:", s)
}

func newBench(ctx context.Context, o *options, log io.Writer) (*bench, error) {
	base, err := os.MkdirTemp(o.dir, "carboy-bench-")
	if err != nil {
		return nil, err
	}
	b := &bench{o: o, base: base, log: log, kept: map[key]*keep{}, samples: map[key][]sample{}}
	b.cleanup = append(b.cleanup, func() error { return os.RemoveAll(base) })
	if err := b.setUp(ctx); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// close undoes everything, newest first.
func (b *bench) close() error {
	var errs []error
	for _, f := range slices.Backward(b.cleanup) {
		errs = append(errs, f())
	}
	b.cleanup = nil
	return errors.Join(errs...)
}

func (b *bench) setUp(ctx context.Context) error {
	if err := b.selectLoads(); err != nil {
		return err
	}
	if err := b.writeWorkspace(ctx); err != nil {
		return err
	}
	if err := b.serve(); err != nil {
		return err
	}
	if err := b.findPeers(ctx); err != nil {
		return err
	}
	b.facts = readFacts(b.base)
	if b.carboy != "" && b.asked(manifestsMeasure) {
		l, err := b.stock(ctx)
		if err != nil {
			return fmt.Errorf("manifests: %w", err)
		}
		b.larder = l
		b.cleanup = append(b.cleanup, l.client.Close)
	}
	return b.startKept(ctx)
}

func (b *bench) selectLoads() error {
	want := list(b.o.only)
	for _, name := range want {
		if name == manifestsMeasure || name == manyMeasure {
			continue
		}
		if !slices.ContainsFunc(loads, func(l load) bool { return l.name == name }) {
			return fmt.Errorf("-only: no load %q", name)
		}
	}
	for _, l := range loads {
		if len(want) > 0 && !slices.Contains(want, l.name) {
			continue
		}
		if l.needs != "" {
			if _, err := exec.LookPath(l.needs); err != nil {
				b.skip("%s: no %s on the PATH (Debian and Ubuntu: %s)", l.what, l.needs, l.install)
				continue
			}
		}
		b.loads = append(b.loads, l)
	}
	return nil
}

// asked reports whether -only asks for a measure that is no load.
func (b *bench) asked(measure string) bool {
	want := list(b.o.only)
	return len(want) == 0 || slices.Contains(want, measure)
}

func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

func (b *bench) writeWorkspace(ctx context.Context) error {
	if err := os.Chmod(b.base, 0o755); err != nil {
		return err
	}
	for _, d := range []string{"ws", "ws/out", "tmp", "state", "bundle", "bundle/rootfs", "runsc-state", "runc-state", "home"} {
		if err := os.Mkdir(b.path(d), 0o755); err != nil {
			return err
		}
	}
	fmt.Fprintln(b.log, "writing the workspace")
	if err := writeFixtures(ctx, b.path("ws")); err != nil {
		return err
	}
	if err := copySelf(b.path("ws/bench")); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return nil
	}
	for _, d := range []string{"ws", "tmp", "home"} {
		err := filepath.WalkDir(b.path(d), func(p string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(p, nobodyUID, nobodyGID))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func copySelf(to string) error {
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}

// smallBody is the answer to small requests.
const smallBody = "small\n"

// serve gives and takes zero bytes on the loopback, and answers small requests.
func (b *bench) serve() error {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return err
	}
	_, b.port, _ = net.SplitHostPort(ln.Addr().String())
	mux := http.NewServeMux()
	mux.HandleFunc("GET /zeros", func(w http.ResponseWriter, _ *http.Request) {
		n := int64(b.o.megabytes) * 1_000_000
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		block := make([]byte, 256<<10)
		for ; n > 0; n -= int64(len(block)) {
			if _, err := w.Write(block[:min(n, int64(len(block)))]); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("PUT /sink", func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r.Body}, make([]byte, 256<<10))
		fmt.Fprint(w, n)
	})
	mux.HandleFunc("GET /small", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, smallBody) })
	b.server = &http.Server{Handler: mux}
	go b.server.Serve(ln) // ended by Close
	b.cleanup = append(b.cleanup, b.server.Close)
	return nil
}

// peerNames lists the peers in the order in which they are looked for.
var peerNames = []string{"native", "bubblewrap", "runc", "srt", "docker", "runsc", "carboy"}

// findPeers finds the installed peers. It prints how to install the others, and fetches
// nothing.
func (b *bench) findPeers(ctx context.Context) error {
	b.peers = []*peer{b.native()}
	want := list(b.o.peers)
	for _, w := range want {
		if !slices.Contains(peerNames, w) {
			return fmt.Errorf("-peers: no peer %q", w)
		}
	}
	for _, name := range peerNames[1:] {
		if len(want) > 0 && !slices.Contains(want, name) {
			continue
		}
		p, err := b.find(ctx, name)
		switch {
		case err == nil:
			b.peers = append(b.peers, p)
		case name == "carboy" || ctx.Err() != nil:
			return fmt.Errorf("%s: %w", name, err)
		default:
			b.skip("%s: %v", name, err)
		}
	}
	return nil
}

func (b *bench) find(ctx context.Context, name string) (*peer, error) {
	switch name {
	case "bubblewrap":
		return b.bwrap(ctx)
	case "runc":
		return b.runc(ctx)
	case "srt":
		return b.srt(ctx)
	case "docker":
		return b.docker(ctx)
	case "runsc":
		return b.runsc(ctx)
	}
	bin := b.o.carboy
	if bin == "" {
		bin = b.path("carboy")
		if err := b.build(ctx, bin, "./cmd/carboy"); err != nil {
			return nil, err
		}
	}
	return b.carboyPeer(bin)
}

// hostRoot shows the host's root file system as a container's.
func (b *bench) hostRoot() error {
	if b.rooted {
		return nil
	}
	if err := unix.Mount("/", b.path("bundle/rootfs"), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind / for its root: %w", err)
	}
	b.cleanup = append(b.cleanup, func() error { return unix.Unmount(b.path("bundle/rootfs"), unix.MNT_DETACH) })
	b.rooted = true
	return nil
}

// build compiles a package of this module or of its dependencies. The go.mod is
// a copy: runsc's main needs a module more than carboy does.
func (b *bench) build(ctx context.Context, to, pkg string) error {
	fmt.Fprintln(b.log, "building", pkg)
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("go env GOMOD: %w", err)
	}
	root := filepath.Dir(strings.TrimSpace(string(mod)))
	for _, f := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(root, f))
		if err != nil {
			return err
		}
		if err := os.WriteFile(b.path(f), text, 0o644); err != nil {
			return err
		}
	}
	c := exec.CommandContext(ctx, "go", "build", "-modfile="+b.path("go.mod"), "-mod=mod", "-o", to, pkg)
	c.Dir, c.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOPROXY=off")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s (nothing is fetched here; `go mod download` brings modules that are missing): %w: %s", pkg, err, tailOf(string(out)))
	}
	return nil
}

// startKept starts the processes that loads expect to be running.
func (b *bench) startKept(ctx context.Context) error {
	for _, l := range b.loads {
		if l.kept == "" {
			continue
		}
		for _, p := range b.peers {
			start := p.kept[l.kept]
			if start == nil {
				continue
			}
			k, err := start(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			b.kept[key{string(l.kept), p.name}] = k
			if k.close != nil {
				b.cleanup = append(b.cleanup, k.close)
			}
		}
	}
	return nil
}

// runs reports whether a peer runs this load.
func (b *bench) runs(l load, p *peer) bool {
	switch {
	case l.nativeOnly:
		return p.name == "native" && b.carboy != ""
	case l.kept != "":
		return b.kept[key{string(l.kept), p.name}] != nil
	}
	return len(p.only) == 0 || slices.Contains(p.only, l.name)
}

// measure runs all rounds. Peers take turns within seconds, in another order each round,
// so that other work of the machine affects all equally.
func (b *bench) measure(ctx context.Context) error {
	if err := b.idle(ctx); err != nil {
		return err
	}
	if b.asked(manyMeasure) {
		if err := b.many(ctx); err != nil {
			return err
		}
	}
	if err := b.phases(ctx); err != nil {
		return err
	}
	for round := range b.o.rounds {
		for _, l := range b.loads {
			fmt.Fprintf(b.log, "round %d of %d: %s\n", round+1, b.o.rounds, l.name)
			b.turn(ctx, l, round)
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		if err := b.traced(ctx, round); err != nil {
			return err
		}
		if err := b.manifests(ctx); err != nil {
			return err
		}
		b.facts.Busy = append(b.facts.Busy, loadPerCore())
	}
	return nil
}

func (b *bench) turn(ctx context.Context, l load, round int) {
	reps := map[string][]sample{}
	for rep := range l.reps {
		for i := range b.peers {
			p := b.peers[(i+round+rep)%len(b.peers)]
			if !b.runs(l, p) {
				continue
			}
			s, err := b.sample(ctx, l, p)
			if ctx.Err() != nil {
				return // interrupted: not the peer's failure
			}
			if err != nil {
				b.fail(l, p, err)
				continue
			}
			reps[p.name] = append(reps[p.name], s)
		}
	}
	for _, p := range b.peers {
		var whole, inside []time.Duration
		for _, s := range reps[p.name] {
			whole, inside = append(whole, s.whole), append(inside, s.inside)
		}
		// Zero when all failed, so that rounds stay side by side.
		k := key{l.name, p.name}
		b.samples[k] = append(b.samples[k], sample{medianTime(whole), medianTime(inside)})
	}
}

// sampleTimeout bounds a sample. Even a machine many times slower than usual meets it.
const sampleTimeout = 10 * time.Minute

func (b *bench) sample(ctx context.Context, l load, p *peer) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, sampleTimeout)
	defer cancel()
	argv := l.argv(b.place(p))
	if k := b.kept[key{string(l.kept), p.name}]; k != nil {
		if k.ready != nil {
			if err := k.ready(ctx); err != nil {
				return sample{}, err
			}
		}
		return timed(k.command(ctx, argv), false)
	}
	if !l.bare {
		argv = append([]string{b.path("ws/bench"), insideArg}, argv...)
	}
	c, err := p.command(ctx, l, argv)
	if err != nil {
		return sample{}, err
	}
	s, err := timed(c, !l.bare)
	if p.writes {
		err = errors.Join(err, empty(b.path("ws/out")), empty(b.path("tmp")))
	}
	if p.after != nil {
		err = errors.Join(err, p.after())
	}
	return s, err
}

func (b *bench) place(p *peer) place {
	return place{ws: b.path("ws"), tmp: p.tmp, server: net.JoinHostPort(p.server, b.port), megabytes: b.o.megabytes, carboy: b.carboy}
}

// timed runs a command and measures the time from its start to the last byte of its
// output.
func timed(c *exec.Cmd, inside bool) (sample, error) {
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	c.WaitDelay = 10 * time.Second
	start := time.Now()
	err := c.Run()
	s := sample{whole: time.Since(start), inside: insideTime(out.String())}
	if err == nil && inside && s.inside == 0 {
		err = errors.New("the load did not report its time")
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, tailOf(errs.String()))
	}
	return s, err
}

func tailOf(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > 500 {
		s = "…" + s[len(s)-500:]
	}
	return s
}

// empty removes the content of a directory.
func empty(dir string) error {
	ents, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range ents {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
