package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// gateMeasure is asked for with -only alone: it needs no peer.
const gateMeasure = "gate"

// GateSchema names the JSON document of the gates' measurements.
const GateSchema = "carboy.dev/bench-gate/v1"

// GateReport is that document. Ratios are of a whole gate, both sides of it, to the
// same commands run once by themselves, one for each round.
type GateReport struct {
	Schema string  `json:"schema"`
	Rounds int     `json:"rounds"`
	Facts  facts   `json:"machine"`
	Warm   *Spread `json:"gate_to_warm"` // with a build cache that has everything
	Cold   *Spread `json:"gate_to_cold"` // with an empty one
	Cached *Spread `json:"cached_ms"`    // a verdict that is given again
	// Version is what carboy takes to say its version, in milliseconds.
	Version  *Spread `json:"version_ms"`
	Memory   *Spread `json:"memory_mb"`   // of the largest process of a gate
	Evidence *Spread `json:"evidence_kb"` // that is kept of it
	// Trace is of a go build with an empty cache, as one phase of a gate has it, and
	// TraceKB are the facts of one.
	Trace   *Traced    `json:"trace"`
	TraceKB *Spread    `json:"trace_kb"`
	Hit     *HitReport `json:"hit"`
	Goals   []Goal     `json:"goals"`
}

// gatePackages are in the module that is judged.
const gatePackages = 6

// gateBench is a Go module with a catalog, as `carboy gate init` writes it.
type gateBench struct {
	ctx         context.Context
	o           *options
	log         io.Writer
	carboy, dir string
	env         []string
}

func benchmarkGate(ctx context.Context, o *options, stdout, stderr io.Writer) (err error) {
	if o.update != "" { // before minutes are spent
		if _, err := readMarked(o.update, gateTables); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp(o.dir, "carboy-bench-gate-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &gateBench{ctx: ctx, o: o, log: stderr, carboy: o.carboy, dir: filepath.Join(dir, "m")}
	for _, d := range []string{"home", "cache", "tmp"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	if b.carboy == "" {
		b.carboy = filepath.Join(dir, "carboy")
		if _, _, err := b.run("", nil, "go", "build", "-o", b.carboy, "./cmd/carboy"); err != nil {
			return err
		}
	}
	b.env = []string{"HOME=" + dir + "/home", "XDG_STATE_HOME=" + dir + "/state", "TMPDIR=" + dir + "/tmp", "GIT_CONFIG_SYSTEM=/dev/null",
		"GOFLAGS=-mod=mod", "GOPROXY=off", "GOTOOLCHAIN=local", "CGO_ENABLED=0", "PATH=" + os.Getenv("PATH")}
	r, err := b.measure(dir)
	if err != nil {
		return err
	}
	return o.publish(stdout, gateTables, r)
}

// run says how long a command took, and how much memory its largest process had.
func (b *gateBench) run(dir string, env []string, args ...string) (time.Duration, int64, error) {
	c := exec.CommandContext(b.ctx, args[0], args[1:]...)
	c.Dir = dir
	if b.env != nil {
		c.Env = append(append([]string{}, b.env...), env...)
	}
	begun := time.Now()
	out, err := c.CombinedOutput()
	took := time.Since(begun)
	if err != nil {
		return 0, 0, fmt.Errorf("%q: %w\n%s", args, err, out)
	}
	var most int64
	if u, ok := c.ProcessState.SysUsage().(*syscall.Rusage); ok {
		most = u.Maxrss << 10
	}
	return took, most, nil
}

func (b *gateBench) measure(top string) (*GateReport, error) {
	r := &GateReport{Schema: GateSchema, Rounds: b.o.rounds, Facts: readFacts(b.o.dir)}
	if err := b.module(); err != nil {
		return nil, err
	}
	pairs, err := b.pairs(top)
	if err != nil {
		return nil, err
	}
	var warm, cold, cached, version, memory, evidence, facts []float64
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	for i := range b.o.rounds {
		fmt.Fprintf(b.log, "round %d of %d\n", i+1, b.o.rounds)
		cache := []string{fmt.Sprintf("GOCACHE=%s/cache/%d", top, i)}
		first, err := b.direct(cache)
		if err != nil {
			return nil, err
		}
		again, err := b.direct(cache)
		if err != nil {
			return nil, err
		}
		if err := os.RemoveAll(filepath.Join(top, "cache", fmt.Sprint(i))); err != nil {
			return nil, err
		}
		whole, most, err := b.run(b.dir, nil, b.carboy, "gate", "run", "-q", "--again", "--base", "HEAD^")
		if err != nil {
			return nil, err
		}
		size, err := b.newest(top)
		if err != nil {
			return nil, err
		}
		for range 5 {
			d, _, err := b.run(b.dir, nil, b.carboy, "gate", "run", "-q", "--base", "HEAD^")
			if err != nil {
				return nil, err
			}
			v, _, err := b.run(b.dir, nil, b.carboy, "version")
			if err != nil {
				return nil, err
			}
			cached, version = append(cached, ms(d)), append(version, ms(v))
		}
		warm, cold = append(warm, whole.Seconds()/again.Seconds()), append(cold, whole.Seconds()/first.Seconds())
		kb, err := pairs.build(b.ctx, i)
		if err != nil {
			return nil, err
		}
		facts = append(facts, kb)
		memory, evidence = append(memory, float64(most)/1e6), append(evidence, float64(size)/1e3)
		r.Facts.Busy = append(r.Facts.Busy, loadPerCore())
		fmt.Fprintf(b.log, "gate %.1f s, directly %.1f s, %.1f s warm; cached %.0f ms\n", whole.Seconds(), first.Seconds(), again.Seconds(), cached[len(cached)-1])
	}
	r.Warm, r.Cold, r.Cached, r.Version = spreadOf(warm), spreadOf(cold), spreadOf(cached), spreadOf(version)
	r.Memory, r.Evidence = spreadOf(memory), spreadOf(evidence)
	r.Trace, r.TraceKB = &pairs.traces[0], spreadOf(facts)
	if r.Hit, err = b.hit(); err != nil {
		return nil, err
	}
	r.Goals = []Goal{
		r.Hit.goal(),
		{What: "gate ÷ the same build and tests by themselves, warm", Limit: 1.5, Got: r.Warm},
		{What: "a verdict that is given again", Limit: 50, Unit: "ms", Got: r.Cached, Also: "`carboy version` takes " + r.Version.shown()},
		{What: "a go build with an empty cache, traced ÷ untraced, in time", Limit: 1.25, Got: r.Trace.Time},
		{What: "the same in processor time, with the reader's", Limit: 1.25, Got: r.Trace.All},
		{What: "facts of it that were dropped", Limit: 0, Got: spreadOf([]float64{float64(r.Trace.Dropped)})},
	}
	return r, nil
}

// gatePairs are bottles that differ in nothing but the trace.
type gatePairs struct{ bench }

func (b *gateBench) pairs(top string) (*gatePairs, error) {
	p := &gatePairs{bench{o: b.o, base: filepath.Join(top, "pairs"), log: b.log}}
	errs := []error{os.Chmod(top, 0o755), os.MkdirAll(p.path("ws/module"), 0o755)}
	for name, text := range goModule {
		errs = append(errs, os.WriteFile(filepath.Join(p.path("ws"), name), []byte(text), 0o644))
	}
	return p, errors.Join(errs...)
}

// build builds once with a trace and once without; which is first changes. It returns
// how many kB of facts there were.
func (p *gatePairs) build(ctx context.Context, round int) (kb float64, err error) {
	const tmp = "/tmp"
	var halves [2]cost // without, with
	for turn := range 2 {
		with := (turn + round) % 2
		if halves[with], err = p.pairHalf(ctx, goBuild(tmp+"/gocache", tmp, tmp+"/small"), 1, with == 1); err != nil {
			return 0, err
		}
	}
	p.addPair(load{name: "gobuild", what: "go build, nothing cached"}, halves[1], halves[0])
	return float64(halves[1].bytes) / 1e3, nil
}

// direct builds and tests the module as the catalog does.
func (b *gateBench) direct(env []string) (time.Duration, error) {
	one, _, err := b.run(b.dir, env, "go", "build", "./...")
	if err != nil {
		return 0, err
	}
	two, _, err := b.run(b.dir, env, "go", "test", "-json", "-count=1", "./...")
	return one + two, err
}

// module makes two commits of a Go module with a catalog.
func (b *gateBench) module() error {
	files := map[string]string{"go.mod": "module example.com/m\n\ngo 1.24\n"}
	for i := range gatePackages {
		dir := fmt.Sprintf("p%d/", i)
		files[dir+"p.go"] = fmt.Sprintf("package p%d\n\nimport \"encoding/json\"\n\n// Copy is x by way of JSON.\nfunc Copy(x map[string]int) (y map[string]int, err error) {\n\tb, err := json.Marshal(x)\n\tif err == nil {\n\t\terr = json.Unmarshal(b, &y)\n\t}\n\treturn y, err\n}\n", i)
		files[dir+"p_test.go"] = fmt.Sprintf("package p%d\n\nimport \"testing\"\n\nfunc TestCopy(t *testing.T) {\n\tfor i := range 50_000 {\n\t\tif y, err := Copy(map[string]int{\"a\": i}); err != nil || y[\"a\"] != i {\n\t\t\tt.Fatal(y, err)\n\t\t}\n\t}\n}\n", i)
	}
	for name, text := range files {
		file := filepath.Join(b.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	git := func(args ...string) error {
		_, _, err := b.run(b.dir, nil, append([]string{"git", "-c", "user.name=a", "-c", "user.email=a@example.org"}, args...)...)
		return err
	}
	if err := errors.Join(git("init", "-q", "-b", "main"), git("add", "-A"), git("commit", "-q", "-m", "one")); err != nil {
		return err
	}
	if _, _, err := b.run(b.dir, nil, b.carboy, "gate", "init", "-q"); err != nil {
		return err
	}
	return errors.Join(git("add", "-A"), git("commit", "-q", "-m", "gate"), git("commit", "-q", "--allow-empty", "-m", "change"))
}

// newest is how many bytes are kept of the newest verdict.
func (b *gateBench) newest(top string) (int64, error) {
	dirs, err := filepath.Glob(top + "/state/carboy/gates/verdicts/*")
	if err != nil || len(dirs) == 0 {
		return 0, errors.Join(err, errors.New("no verdict was kept"))
	}
	return sizeOf(dirs[len(dirs)-1]), nil
}

func (r *GateReport) markdown() string {
	var b strings.Builder
	f := r.Facts
	fmt.Fprintf(&b, "%d rounds; a Go module of %d packages; %d cores, %d GiB, %s, Linux %s, %s, %s. Load per core %.1f at the start, then", r.Rounds, gatePackages, f.Cores, f.MemoryGiB, f.Arch, f.Kernel, f.FileSys, f.Go, f.Load)
	for i, l := range f.Busy {
		fmt.Fprintf(&b, "%s %.1f", []string{"", ","}[min(i, 1)], l)
	}
	b.WriteString(".\n")
	goalRows(&b, r.Goals)
	fmt.Fprintf(&b, "\nWith an empty build cache on both sides, a gate takes %s × what the commands take. Its largest process has %s MB; of each verdict %s kB are kept. The trace of the build alone has %d facts in %s kB.\n", r.Cold.shown(), r.Memory.shown(), r.Evidence.shown(), r.Trace.Facts, r.TraceKB.shown())
	return b.String()
}
