package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sync/errgroup"

	"github.com/carboy/carboy/internal/gitgate"
	"github.com/carboy/carboy/internal/gitgate/gittest"
	"github.com/carboy/carboy/internal/hostexec"
)

// gitMeasure is the name of this measure for -only. It needs no bottle and no peer.
const gitMeasure = "git"

// GitSchema names the JSON document of the git gate's measurements.
const GitSchema = "carboy.dev/bench-git/v1"

// GitReport is the JSON document of -only git. Spreads are ratios of the gate to the same git without
// it, one for each round, unless they say otherwise.
type GitReport struct {
	Schema string  `json:"schema"`
	Rounds int     `json:"rounds"`
	Facts  facts   `json:"machine"`
	Bytes  int64   `json:"repository_bytes"`
	Clone  *Spread `json:"clone"`
	Push   *Spread `json:"push"`
	// Line is a push where a line of LineMbit is between the machine and upstream.
	Line     *Spread `json:"push_over_line"`
	LineMbit int     `json:"line_mbit"`
	// Twice is git's taking in of the same pack, once and then once more, to a push
	// without the gate.
	Twice *Spread `json:"index_pack_twice"`
	Small *Spread `json:"small_push"`
	// Beyond is the time that a small push takes through the gate beyond 1.2 times what it does
	// without, in milliseconds.
	Beyond *Spread `json:"small_push_beyond_ms"`
	// Reading is MB of objects, written out, that are read each second.
	Reading *Spread `json:"reading_mb_per_second"`
	Many    *Spread `json:"clones_at_once"`
	Clones  int     `json:"clones"`
	Goals   []Goal  `json:"goals"`
}

// gitClones is the number of clones made at once.
const gitClones = 50

// gitLine is the speed of the slow line to upstream, in megabits a second.
const gitLine = 200

// benchT lets this program use what tests use.
type benchT struct {
	ctx      context.Context
	dir      string
	n        int
	cleanups []func()
}

// stopped is the value with which a benchT panics.
type stopped struct{ error }

func (t *benchT) Helper()                        {}
func (t *benchT) Fatal(a ...any)                 { panic(stopped{errors.New(strings.TrimSpace(fmt.Sprintln(a...)))}) }
func (t *benchT) Fatalf(format string, a ...any) { panic(stopped{fmt.Errorf(format, a...)}) }
func (t *benchT) Cleanup(f func())               { t.cleanups = append(t.cleanups, f) }
func (t *benchT) Context() context.Context       { return t.ctx }

func (t *benchT) TempDir() string {
	t.n++
	dir := filepath.Join(t.dir, fmt.Sprint(t.n))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (t *benchT) close() {
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		t.cleanups[i]()
	}
}

func benchmarkGit(ctx context.Context, o *options, stdout, stderr io.Writer) (err error) {
	if o.update != "" { // before minutes are spent
		if _, err := readMarked(o.update, gitTables); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp(o.dir, "carboy-bench-git-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &benchT{ctx: ctx, dir: dir}
	defer t.close()
	defer func() {
		if p := recover(); p != nil {
			s, ok := p.(stopped)
			if !ok {
				panic(p)
			}
			err = s.error
		}
	}()
	r := (&gitBench{t: t, o: o, log: stderr}).measure()
	return o.publish(stdout, gitTables, r)
}

// gitBench holds a large repository behind sshd, and gates to it.
type gitBench struct {
	t     *benchT
	o     *options
	log   io.Writer
	sshd  *gittest.SSH
	large string

	mu   sync.Mutex
	last gitgate.Event // the last push
}

func (b *gitBench) measure() *GitReport {
	r := &GitReport{Schema: GitSchema, Rounds: b.o.rounds, Clones: gitClones, LineMbit: gitLine, Facts: readFacts(b.o.dir)}
	b.sshd = gittest.StartSSH(b.t, "AcceptEnv GIT_PROTOCOL", "MaxStartups 200")
	b.large = gittest.Large(b.t, 100)
	r.Bytes = sizeOf(b.large)
	through := b.gate(b.large)
	slow := b.line(gitLine * 1e6 / 8)
	var clone, push, small, beyond, reading, line, twice []float64
	for i := range b.o.rounds {
		fmt.Fprintf(b.log, "round %d of %d\n", i+1, b.o.rounds)
		a, c := b.clone(b.sshd.URL(b.large)), b.clone(through)
		clone = append(clone, c.Seconds()/a.Seconds())
		one, two := b.empty(), b.empty()
		gated := b.gate(two)
		a, c = b.push(b.sshd.URL(one)), b.push(gated)
		push = append(push, c.Seconds()/a.Seconds())
		twice = append(twice, b.twice().Seconds()/a.Seconds())
		b.mu.Lock()
		reading = append(reading, float64(b.last.Scanned)/1e6/b.last.Reading.Seconds())
		b.mu.Unlock()
		gittest.GoOn(b.t, b.large, "trunk", i)
		a, c = b.push(b.sshd.URL(one)), b.push(gated)
		small = append(small, c.Seconds()/a.Seconds())
		three, four := b.empty(), b.empty()
		d, e := b.push(slow.URL(three)), b.push(b.gateAt(slow, four))
		line = append(line, e.Seconds()/d.Seconds())
		r.Facts.Busy = append(r.Facts.Busy, loadPerCore())
		beyond = append(beyond, max(0, (c.Seconds()-1.2*a.Seconds())*1000))
		fmt.Fprintf(b.log, "clone %.2f ×, push %.2f × (index-pack twice %.2f ×), over a line %.2f ×, small push %.2f × and %.0f ms beyond 1.2 ×, reading %.0f MB/s\n",
			clone[i], push[i], twice[i], line[i], small[i], beyond[i], reading[i])
	}
	r.Line, r.Twice = spreadOf(line), spreadOf(twice)
	r.Clone, r.Push, r.Small, r.Beyond, r.Reading = spreadOf(clone), spreadOf(push), spreadOf(small), spreadOf(beyond), spreadOf(reading)
	if b.o.idle > 0 { // 0 leaves out what takes minutes
		fmt.Fprintf(b.log, "%d clones at once\n", gitClones)
		a, c := b.many(b.sshd.URL(b.large)), b.many(through)
		r.Many = spreadOf([]float64{c.Seconds() / a.Seconds()})
	}
	r.Goals = []Goal{
		{What: "clone of 100 MB through the gate ÷ without", Limit: 1.5, Got: r.Clone},
		{What: "push of 100 MB through the gate ÷ without", Limit: 1.5, Got: r.Push},
		{What: fmt.Sprintf("the same over a line of %d Mbit/s ÷ without", r.LineMbit), Limit: 1.5, Got: r.Line},
		{What: "a small push, beyond 1.2 × without", Limit: 150, Unit: "ms", Got: r.Beyond, Also: r.Small.String() + " × without"},
	}
	return r
}

func (b *gitBench) git(args ...string) time.Duration {
	c := exec.CommandContext(b.t.ctx, "git", args...)
	c.Env = gittest.Env(b.sshd)
	begun := time.Now()
	if out, err := c.CombinedOutput(); err != nil {
		b.t.Fatalf("git %q: %v\n%s", args, err, out)
	}
	return time.Since(begun)
}

func (b *gitBench) clone(url string) time.Duration {
	dir := b.t.TempDir()
	defer os.RemoveAll(dir)
	return b.git("clone", "-q", "--bare", url, dir+"/c")
}

func (b *gitBench) many(url string) time.Duration {
	begun := time.Now()
	dir := b.t.TempDir()
	defer os.RemoveAll(dir)
	g, ctx := errgroup.WithContext(b.t.ctx)
	for i := range gitClones {
		g.Go(func() error {
			c := exec.CommandContext(ctx, "git", "clone", "-q", "--bare", url, filepath.Join(dir, fmt.Sprint(i)))
			c.Env = gittest.Env(b.sshd)
			if out, err := c.CombinedOutput(); err != nil {
				return fmt.Errorf("%w\n%s", err, out)
			}
			return os.RemoveAll(filepath.Join(dir, fmt.Sprint(i)))
		})
	}
	if err := g.Wait(); err != nil {
		b.t.Fatal(err)
	}
	return time.Since(begun)
}

func (b *gitBench) empty() string {
	dir := filepath.Join(b.t.TempDir(), "empty.git")
	b.git("init", "-q", "--bare", "-b", "trunk", dir)
	return dir
}

func (b *gitBench) push(url string) time.Duration {
	return b.git("-C", b.large, "push", "-q", url, "trunk")
}

// twice has git take in the pack of the large repository, and then once more: what the
// gate must wait for before upstream may begin, and what upstream does.
func (b *gitBench) twice() time.Duration {
	packs, err := filepath.Glob(b.large + "/objects/pack/*.pack")
	if err != nil || len(packs) == 0 {
		b.t.Fatalf("no pack: %v", err)
	}
	var sum time.Duration
	for _, settings := range [][]string{{"-c", "core.fsync=none"}, nil} {
		dir := b.empty()
		f, err := os.Open(packs[0])
		if err != nil {
			b.t.Fatal(err)
		}
		c := exec.CommandContext(b.t.ctx, "git", append(settings, "-C", dir, "index-pack", "--stdin", "--fsck-objects")...)
		c.Env, c.Stdin = gittest.Env(nil), f
		begun := time.Now()
		out, err := c.CombinedOutput()
		sum += time.Since(begun)
		_, _ = f.Close(), os.RemoveAll(dir)
		if err != nil {
			b.t.Fatalf("git index-pack: %v\n%s", err, out)
		}
	}
	return sum
}

// line returns the server behind a line that carries a number of bytes a second to it.
func (b *gitBench) line(rate float64) *gittest.SSH {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = l.Close() })
	go func() { // ends with l
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", b.sshd.Addr)
			if err != nil {
				_ = c.Close()
				continue
			}
			ends := func() { _, _ = c.Close(), up.Close() }
			go func() { _, _ = io.Copy(c, up); ends() }()
			go func() { _, _ = io.Copy(up, &paced{r: c, rate: rate}); ends() }()
		}
	}()
	s := *b.sshd
	s.Addr = l.Addr().String()
	return &s
}

// paced reads no faster than rate bytes a second.
type paced struct {
	r    io.Reader
	rate float64
	free time.Time // when the line is free again
}

func (p *paced) Read(b []byte) (int, error) {
	time.Sleep(time.Until(p.free))
	n, err := p.r.Read(b)
	if now := time.Now(); p.free.Before(now.Add(-10 * time.Millisecond)) {
		p.free = now // it was idle
	}
	p.free = p.free.Add(time.Duration(float64(n) / p.rate * 1e9))
	return n, err
}

// gate serves a repository at sshd through a gate, and returns its URL.
func (b *gitBench) gate(path string) string { return b.gateAt(b.sshd, path) }

func (b *gitBench) gateAt(sshd *gittest.SSH, path string) string {
	run, err := hostexec.New(hostexec.Options{})
	if err != nil {
		b.t.Fatal(err)
	}
	g, err := gitgate.New(gitgate.Config{
		Dir: b.t.TempDir(), Git: run,
		Repos: []gitgate.Repo{{Name: "app", URL: sshd.URL(path), SSH: &gitgate.SSHAccess{Signer: sshd.Client, HostKeys: []ssh.PublicKey{sshd.HostKey}}}},
		Observe: func(e gitgate.Event) {
			if e.Op == "push" {
				b.mu.Lock()
				b.last = e
				b.mu.Unlock()
			}
		},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	s := &http.Server{Handler: g, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }() // ends with Close
	b.t.Cleanup(func() { _, _ = s.Close(), g.Close() })
	return "http://" + l.Addr().String() + "/app.git"
}

func sizeOf(dir string) (n int64) {
	_ = filepath.Walk(dir, func(_ string, fi os.FileInfo, err error) error {
		if err == nil && fi.Mode().IsRegular() {
			n += fi.Size()
		}
		return nil
	})
	return n
}

func (r *GitReport) markdown() string {
	var b strings.Builder
	f := r.Facts
	fmt.Fprintf(&b, "%d rounds; a repository of %d MB; %d cores, %d GiB, %s, Linux %s, %s, %s. Load per core %.1f at the start, then", r.Rounds, r.Bytes/1e6, f.Cores, f.MemoryGiB, f.Arch, f.Kernel, f.FileSys, f.Go, f.Load)
	for i, l := range f.Busy {
		fmt.Fprintf(&b, "%s %.1f", []string{"", ","}[min(i, 1)], l)
	}
	b.WriteString(".\n\n")
	b.WriteString("| Goal | wanted | measured | met |\n| --- | --- | --- | --- |\n")
	for _, g := range r.Goals {
		fmt.Fprintf(&b, "| %s | ≤ %g %s | %s %s%s | %s |\n", g.What, g.Limit, g.Unit, g.Got, g.Unit, also(g.Also), g.met())
	}
	fmt.Fprintf(&b, "\nObjects are read for secrets at %s MB a second, as they come. git's `index-pack` of this push, once and then once more, which is the least that the gate and upstream take, takes %s × what the push takes without the gate.", r.Reading, r.Twice)
	if r.Many != nil {
		fmt.Fprintf(&b, " %d clones at once take %s × what they take without the gate.", r.Clones, r.Many)
	}
	b.WriteString("\n")
	return b.String()
}

func also(s string) string {
	if s == "" {
		return ""
	}
	return ", " + s
}
