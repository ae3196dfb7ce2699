package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// gateMeasure is the name of this measure for -only. It needs no peer.
const gateMeasure = "gate"

// GateSchema names the JSON document of the gates' measurements.
const GateSchema = "carboy.dev/bench-gate/v1"

// GateReport is the JSON document of -only gate. There is a ratio for each round: the
// time of a whole gate, divided by that of its commands run by themselves on the same
// change.
type GateReport struct {
	Schema  string       `json:"schema"`
	Rounds  int          `json:"rounds"`
	Facts   facts        `json:"machine"`
	Modules []GateModule `json:"modules"`
	// Trace compares a go build with and without a trace, as a phase of a gate with an
	// empty cache. TraceKB is the size of its facts.
	Trace   *Traced `json:"trace"`
	TraceKB *Spread `json:"trace_kb"`
	Goals   []Goal  `json:"goals"`
}

// GateModule holds one module's measurements.
type GateModule struct {
	Name     string `json:"name"`
	Packages int    `json:"packages"`
	// Warm is with all of the base built before, on both sides; of the gate, by an
	// earlier one.
	Warm *Spread `json:"gate_to_warm"`
	// Phases is the share of such a gate that its longest phase took; the rest is carboy's
	// own.
	Phases *Spread `json:"longest_phase_of_gate"`
	// First is the first gate of a base, both sides with an empty build cache.
	First  float64 `json:"first_gate_to_cold"`
	Cached *Spread `json:"cached_ms"` // a verdict that is given again
	// Version is the time of carboy version, in milliseconds.
	Version  *Spread `json:"version_ms"`
	Memory   *Spread `json:"memory_mb"`   // of the largest process of a gate
	Evidence *Spread `json:"evidence_kb"` // that is kept of it
	Cache    float64 `json:"cache_mb"`    // that is kept of the base
}

// gateBench is a Go module with a catalog, as `carboy gate init` writes it.
type gateBench struct {
	ctx      context.Context
	o        *options
	log      io.Writer
	carboy   string
	top, dir string // where all is; the module that is judged
	env      []string
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
	b := &gateBench{ctx: ctx, o: o, log: stderr, carboy: o.carboy, top: dir}
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
	r, err := b.measure()
	if err != nil {
		return err
	}
	return o.publish(stdout, gateTables, r)
}

// run returns the duration of a command, and the memory of its largest process.
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

// gateModule is a module that carboy itself is built with, and that is on this machine
// for that, or a made one.
type gateModule struct {
	name, path string
	// without lists patterns of files to leave out: those that need other modules, those
	// that the rest does not need, and tests that print more than a gate keeps.
	without []string
}

// gateModules are judged, the one that decides first. Its tests compute; those of the
// second are over at once, and what takes the time is to link them.
var gateModules = []gateModule{
	{"github.com/klauspost/compress, a part of it", "github.com/klauspost/compress", []string{
		"zstd", "s2", "snappy", "gzhttp", "dict", "xpress", "ossfuzz", "compressible*", "s2sx*", "*.sh", "flate/*_test.go", "zip/*_test.go",
	}},
	{"golang.org/x/text, most of it", "golang.org/x/text", []string{
		"cmd", "message", "feature", "search", "date", "currency", "number", "collate", "language/display",
		"internal/number", "internal/catmsg", "internal/colltab", "internal/export", "internal/format", "gen.go", "doc.go", "unicode/norm/*_test.go",
	}},
	{"6 small packages", "", nil},
}

func (b *gateBench) measure() (*GateReport, error) {
	r := &GateReport{Schema: GateSchema, Rounds: b.o.rounds, Facts: readFacts(b.o.dir)}
	for i, m := range gateModules {
		b.dir = filepath.Join(b.top, fmt.Sprintf("m%d", i))
		var err error
		if m.path == "" {
			err = b.smallModule()
		} else {
			err = b.realModule(m)
		}
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(b.log, "%s: a catalog and a baseline\n", m.name)
		got, err := b.module(fmt.Sprint(i))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		got.Name = m.name
		r.Modules = append(r.Modules, *got)
		r.Goals = append(r.Goals, Goal{What: "gate ÷ the same build and tests by themselves, warm: " + m.name, Limit: 1.5, Got: got.Warm})
		r.Facts.Busy = append(r.Facts.Busy, loadPerCore())
	}
	pairs, err := b.pairs()
	if err != nil {
		return nil, err
	}
	var facts []float64
	for i := range b.o.rounds {
		kb, err := pairs.build(b.ctx, i)
		if err != nil {
			return nil, err
		}
		facts = append(facts, kb)
		r.Facts.Busy = append(r.Facts.Busy, loadPerCore())
	}
	r.Trace, r.TraceKB = &pairs.traces[0], spreadOf(facts)
	one := r.Modules[0]
	r.Goals = append(r.Goals,
		Goal{What: "a verdict that is given again", Limit: 50, Unit: "ms", Got: one.Cached, Also: "`carboy version` takes " + one.Version.shown()},
		Goal{What: "a go build with an empty cache, traced ÷ untraced, in time", Limit: 1.25, Got: r.Trace.Time},
		Goal{What: "the same in processor time, with the reader's", Limit: 1.25, Got: r.Trace.All},
		Goal{What: "facts of it that were dropped", Limit: 0, Got: spreadOf([]float64{float64(r.Trace.Dropped)})})
	return r, nil
}

// module measures the one in b.dir: the first gate of its base, then a change a round.
func (b *gateBench) module(name string) (*GateModule, error) {
	m := &GateModule{}
	if err := b.begin(); err != nil {
		return nil, err
	}
	cache := []string{"GOCACHE=" + b.top + "/cache/" + name}
	gate := func() (time.Duration, int64, error) {
		return b.run(b.dir, nil, b.carboy, "gate", "run", "-q", "--base", "base")
	}
	pkgs, err := b.change(0)
	if err != nil {
		return nil, err
	}
	m.Packages = pkgs
	cold, err := b.direct(cache)
	if err != nil {
		return nil, err
	}
	first, _, err := gate()
	if err != nil {
		return nil, err
	}
	m.First = first.Seconds() / cold.Seconds()
	fmt.Fprintf(b.log, "the first gate of a base %.1f s, directly %.1f s\n", first.Seconds(), cold.Seconds())
	var warm, phases, cached, version, memory, evidence []float64
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	for i := range b.o.rounds {
		if _, err := b.change(i + 1); err != nil {
			return nil, err
		}
		alone, err := b.direct(cache)
		if err != nil {
			return nil, err
		}
		whole, most, err := gate()
		if err != nil {
			return nil, err
		}
		size, longest, err := b.newest()
		if err != nil {
			return nil, err
		}
		for range 5 {
			d, _, err := gate()
			if err != nil {
				return nil, err
			}
			v, _, err := b.run(b.dir, nil, b.carboy, "version")
			if err != nil {
				return nil, err
			}
			cached, version = append(cached, ms(d)), append(version, ms(v))
		}
		warm, phases = append(warm, whole.Seconds()/alone.Seconds()), append(phases, longest.Seconds()/whole.Seconds())
		memory, evidence = append(memory, float64(most)/1e6), append(evidence, float64(size)/1e3)
		fmt.Fprintf(b.log, "round %d of %d: gate %.1f s, its longest phase %.1f s, directly %.1f s; cached %.0f ms\n", i+1, b.o.rounds, whole.Seconds(), longest.Seconds(), alone.Seconds(), cached[len(cached)-1])
	}
	m.Warm, m.Phases, m.Cached, m.Version, m.Memory, m.Evidence = spreadOf(warm), spreadOf(phases), spreadOf(cached), spreadOf(version), spreadOf(memory), spreadOf(evidence)
	kept, err := filepath.Glob(b.top + "/state/carboy/gates/warm/*")
	if err != nil || len(kept) == 0 {
		return nil, errors.Join(err, errors.New("no build cache was kept"))
	}
	var newest time.Time
	for _, k := range kept {
		fi, err := os.Stat(k)
		if err != nil {
			return nil, err
		}
		if fi.ModTime().After(newest) {
			newest, m.Cache = fi.ModTime(), float64(sizeOf(k))/1e6
		}
	}
	return m, nil
}

// gatePairs are bottles that differ in nothing but the trace.
type gatePairs struct{ bench }

func (b *gateBench) pairs() (*gatePairs, error) {
	p := &gatePairs{bench{o: b.o, base: filepath.Join(b.top, "pairs"), log: b.log}}
	errs := []error{os.Chmod(b.top, 0o755), os.MkdirAll(p.path("ws/module"), 0o755)}
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

// direct builds and tests the module with the catalog's commands, without a gate.
func (b *gateBench) direct(env []string) (time.Duration, error) {
	one, _, err := b.run(b.dir, env, "go", "build", "./...")
	if err != nil {
		return 0, err
	}
	two, _, err := b.run(b.dir, env, "go", "test", "-json", "-count=1", "./...")
	return one + two, err
}

// smallPackages is the number of packages of the module that is made.
const smallPackages = 6

func (b *gateBench) smallModule() error {
	files := map[string]string{"go.mod": "module example.com/m\n\ngo 1.24\n"}
	for i := range smallPackages {
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
	return nil
}

func (b *gateBench) realModule(m gateModule) error {
	out, err := exec.CommandContext(b.ctx, "go", "list", "-m", "-f", "{{.Dir}}", m.path).Output()
	if err != nil {
		return fmt.Errorf("find %s, which carboy is built with: %w", m.path, err)
	}
	if err := os.CopyFS(b.dir, os.DirFS(strings.TrimSpace(string(out)))); err != nil {
		return err
	}
	err = filepath.WalkDir(b.dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(p, 0o755) // the cache of modules is read-only
		} else if err == nil {
			err = os.Chmod(p, 0o644)
		}
		return err
	})
	for _, w := range append([]string{"go.sum"}, m.without...) {
		found, gerr := filepath.Glob(filepath.Join(b.dir, w))
		err = errors.Join(err, gerr)
		for _, p := range found {
			err = errors.Join(err, os.RemoveAll(p))
		}
	}
	return errors.Join(err, os.WriteFile(b.dir+"/go.mod", fmt.Appendf(nil, "module %s\n\ngo 1.24\n", m.path), 0o644))
}

func (b *gateBench) git(args ...string) error {
	_, _, err := b.run(b.dir, nil, append([]string{"git", "-c", "user.name=a", "-c", "user.email=a@example.org"}, args...)...)
	return err
}

// begin makes commits of the module, and of what judges it: the tag base.
func (b *gateBench) begin() error {
	if err := errors.Join(b.git("init", "-q", "-b", "main"), b.git("add", "-A"), b.git("commit", "-q", "-m", "one")); err != nil {
		return err
	}
	if _, _, err := b.run(b.dir, nil, b.carboy, "gate", "init", "-q"); err != nil {
		return err
	}
	return errors.Join(b.git("add", "-A"), b.git("commit", "-q", "-m", "gate"), b.git("tag", "base"))
}

// change makes a commit in which one package is another than on the base, and says how
// many there are.
func (b *gateBench) change(n int) (packages int, err error) {
	dirs := map[string]string{}
	err = filepath.WalkDir(b.dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(p, ".go") && !strings.HasSuffix(p, "_test.go") && dirs[filepath.Dir(p)] == "" {
			dirs[filepath.Dir(p)] = p
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	list := slices.Sorted(maps.Keys(dirs))
	file := dirs[list[n%len(list)]]
	if err := b.git("reset", "-q", "--hard", "base"); err != nil {
		return 0, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	text = fmt.Appendf(text, "\nfunc change%d() int { return %d }\n\nvar _ = change%d\n", n, n, n)
	return len(list), errors.Join(os.WriteFile(file, text, 0o644), b.git("commit", "-qam", "change"))
}

// newest returns the size of the files kept of the newest verdict, and the duration of
// the longest phase that ran for it.
func (b *gateBench) newest() (int64, time.Duration, error) {
	dirs, err := filepath.Glob(b.top + "/state/carboy/gates/verdicts/*")
	if err != nil || len(dirs) == 0 {
		return 0, 0, errors.Join(err, errors.New("no verdict was kept"))
	}
	dir := dirs[len(dirs)-1]
	text, err := os.ReadFile(dir + "/verdict.json")
	if err != nil {
		return 0, 0, err
	}
	var v struct {
		Phases []struct {
			Of       string        `json:"of_verdict"`
			Duration time.Duration `json:"duration_ns"`
		} `json:"phases"`
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return 0, 0, err
	}
	var longest time.Duration
	for _, p := range v.Phases {
		if p.Of == "" {
			longest = max(longest, p.Duration)
		}
	}
	return sizeOf(dir), longest, nil
}

func (r *GateReport) markdown() string {
	var b strings.Builder
	f := r.Facts
	fmt.Fprintf(&b, "%d rounds; %d cores, %d GiB, %s, Linux %s, %s, %s. Load per core %.1f at the start, then", r.Rounds, f.Cores, f.MemoryGiB, f.Arch, f.Kernel, f.FileSys, f.Go, f.Load)
	for i, l := range f.Busy {
		fmt.Fprintf(&b, "%s %.1f", []string{"", ","}[min(i, 1)], l)
	}
	b.WriteString(".\n")
	goalRows(&b, r.Goals)
	b.WriteString("\n| Module | packages | longest phase ÷ gate | first gate of a base ÷ directly, cold | cache kept of the base | evidence of a verdict | largest process |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, m := range r.Modules {
		fmt.Fprintf(&b, "| %s | %d | %s | %.1f | %.0f MB | %s kB | %s MB |\n", m.Name, m.Packages, m.Phases.shown(), m.First, m.Cache, m.Evidence.shown(), m.Memory.shown())
	}
	fmt.Fprintf(&b, "\nThe trace of the build has %d facts in %s kB.\n", r.Trace.Facts, r.TraceKB.shown())
	return b.String()
}
