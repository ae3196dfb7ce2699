package carboy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/mod/modfile"

	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/store"
)

// GateBegun is what GateInit made.
type GateBegun struct {
	*gate.Verdict
	Files []string // written, relative to the directory
	Found []string // what kinds of projects: go, node, python, rust, make
	// LeftOut are signals that do not pass on the directory as it is, and why.
	LeftOut map[string]string
}

// proposal is a signal that a project could have.
type proposal struct {
	name, text string
	runs       bool
}

// GateInit writes a catalog for the project in dir and the first baseline, of what its
// phases do on the directory as it is. A signal that does not pass there is left out,
// and said. Whoever commits the two files accepts them.
func (c *Client) GateInit(ctx context.Context, o GateOptions) (*GateBegun, error) {
	dir := o.Dir
	if dir == "" {
		dir = "."
	}
	for _, p := range []string{gate.CatalogPath, gate.BaselinePath} {
		if _, err := os.Lstat(filepath.Join(dir, p)); !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s is there already: %w", p, fs.ErrExist)
		}
	}
	found, list, err := proposals(dir)
	if err != nil {
		return nil, err
	}
	b := &GateBegun{Found: found, LeftOut: map[string]string{}}
	for {
		text := catalogText(found, list)
		cat, err := gate.ParseCatalog(gate.CatalogPath, []byte(text))
		if err != nil {
			return nil, fmt.Errorf("the catalog that carboy wrote is wrong: %w", err)
		}
		try := o
		try.Change, try.own = ".", &ownJudge{catalog: cat, recording: true}
		w, err := c.gateWork(ctx, &try)
		if err != nil {
			return nil, err
		}
		v, err := w.judge(ctx)
		if err != nil {
			w.close()
			return nil, err
		}
		if v.Outcome == gate.Passed {
			defer w.close()
			b.Verdict = v
			base, err := w.g.Record(ctx)
			if err != nil {
				return nil, err
			}
			enc, err := base.Encode()
			if err != nil {
				return nil, err
			}
			return b, b.write(w.dir, map[string][]byte{gate.CatalogPath: []byte(text), gate.BaselinePath: enc})
		}
		w.close()
		var left []proposal
		for _, p := range list {
			if r := resultOf(v, p.name); r.Outcome == gate.Passed {
				left = append(left, p)
			} else {
				b.LeftOut[p.name] = why(r)
			}
		}
		if len(left) == len(list) || len(left) == 0 {
			return nil, fmt.Errorf("no signal passes on %s as it is: %s", v.Change.Name, why(v.Signals[0]))
		}
		list = left
	}
}

func resultOf(v *gate.Verdict, name string) *gate.Result {
	for _, r := range v.Signals {
		if r.Name == name {
			return r
		}
	}
	return &gate.Result{}
}

func why(r *gate.Result) string {
	if r.Why != "" {
		return r.Why
	}
	for _, f := range r.Findings {
		if !f.Noted {
			s := f.Text
			if f.Detail != "" {
				s += ": " + strings.TrimSpace(f.Detail)
			}
			return s
		}
	}
	return string(r.Outcome)
}

func (b *GateBegun) write(dir string, files map[string][]byte) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Mkdir(filepath.Dir(gate.CatalogPath), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	for _, name := range []string{gate.CatalogPath, gate.BaselinePath} {
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		_, err = f.Write(files[name])
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
		b.Files = append(b.Files, name)
	}
	return nil
}

func catalogText(found []string, list []proposal) string {
	var b strings.Builder
	b.WriteString("# What a change must show before anyone trusts it: carboy gate run.\n# This file counts as it stands on the base, never as a change has it.\nversion: 1\n")
	for _, f := range found {
		if f == "go" {
			b.WriteString("defaults:\n  env: {GOPROXY: 'off', GOTOOLCHAIN: local, GOFLAGS: -mod=mod, CGO_ENABLED: '0'}\n")
		}
	}
	b.WriteString("signals:\n")
	var of []string
	for _, p := range list {
		b.WriteString(p.text)
		if p.runs {
			of = append(of, p.name)
		}
	}
	if len(of) > 0 {
		fmt.Fprintf(&b, "  - {name: trace, kind: trace, of: [%s]}\n", strings.Join(of, ", "))
	}
	return b.String()
}

// proposals looks what is built and tested in dir.
func proposals(dir string) (found []string, list []proposal, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	read := func(name string) string {
		b, err := root.ReadFile(name)
		if err != nil || len(b) > 4<<20 {
			return ""
		}
		return string(b)
	}
	add := func(name, kind, rest string) {
		list = append(list, proposal{name, "  - name: " + name + "\n    kind: " + kind + "\n" + rest, strings.Contains(rest, "command:")})
	}
	add("policy", "policy", "")
	add("secrets", "secrets", "")
	if mod := read("go.mod"); mod != "" {
		found = append(found, "go")
		goSignals(root, mod, add)
	}
	if p := read("package.json"); p != "" {
		found = append(found, "node")
		nodeSignals(p, read("package-lock.json"), add)
	}
	if read("pyproject.toml")+read("setup.py")+read("requirements.txt")+read("setup.cfg") != "" {
		found = append(found, "python")
		if strings.Contains(read("pyproject.toml")+read("requirements.txt")+read("setup.cfg")+read("tox.ini"), "pytest") {
			add("pytest", "tests", "    format: pytest\n    command: [python3, -m, pytest, -q, -p, no:cacheprovider, -o, junit_family=xunit1, --junitxml=.gate-pytest.xml]\n    results: .gate-pytest.xml\n")
		} else {
			add("unittest", "build", "    command: [python3, -B, -m, unittest]\n")
		}
	}
	if read("Cargo.toml") != "" {
		found = append(found, "rust")
		add("cargo-test", "build", "    command: [cargo, test, --offline, --locked]\n    timeout: 30m\n")
	}
	if mk := read("Makefile"); mk != "" {
		found = append(found, "make")
		for _, target := range []string{"test", "check", "all"} {
			if strings.Contains("\n"+mk, "\n"+target+":") {
				add("make-"+target, "build", "    command: [make, "+target+"]\n")
				break
			}
		}
	}
	if len(found) == 0 {
		return nil, nil, fmt.Errorf("%s has no go.mod, package.json, pyproject.toml, Cargo.toml or Makefile: write %s by hand, docs/gates.md shows how: %w", dir, gate.CatalogPath, ErrNoCatalog)
	}
	return found, list, nil
}

func goSignals(root *os.Root, mod string, add func(name, kind, rest string)) {
	after := ""
	f, err := modfile.Parse("go.mod", []byte(mod), nil)
	_, verr := root.Stat("vendor/modules.txt")
	if err == nil && len(f.Require) > 0 && verr != nil {
		add("modules", "install", "    command: [go, mod, download]\n    env: {GOPROXY: 'https://proxy.golang.org', GOMODCACHE: /workspace/.gate/mod, GOFLAGS: -modcacherw}\n    network: [proxy.golang.org, sum.golang.org]\n    keep: [.gate/mod]\n")
		after = "    env: {GOMODCACHE: /workspace/.gate/mod}\n    after: [modules]\n"
	}
	if verr == nil {
		after = "    env: {GOFLAGS: -mod=vendor}\n"
	}
	after += "    warm: [.cache/go-build]\n"
	add("go-build", "build", "    command: [go, build, ./...]\n"+after)
	add("go-test", "tests", "    format: go\n    command: [go, test, -json, -count=1, ./...]\n"+after)
}

func nodeSignals(pkg, lock string, add func(name, kind, rest string)) {
	var p struct {
		Scripts                       map[string]string
		Dependencies, DevDependencies map[string]string
	}
	if json.Unmarshal([]byte(pkg), &p) != nil {
		return
	}
	after := ""
	if len(p.Dependencies)+len(p.DevDependencies) > 0 && lock != "" {
		add("npm-ci", "install", "    command: [npm, ci, --ignore-scripts, --no-audit, --no-fund]\n    network: [registry.npmjs.org]\n    keep: [node_modules]\n")
		after = "    after: [npm-ci]\n"
	}
	if p.Scripts["build"] != "" {
		add("npm-build", "build", "    command: [npm, run, build]\n"+after)
	}
	switch test := p.Scripts["test"]; {
	case strings.HasPrefix(test, "node --test"):
		add("node-test", "tests", "    format: junit\n    runner: [node]\n    command: [node, --test, --test-reporter=junit]\n"+after)
	case strings.Contains(test, "vitest"):
		add("vitest", "tests", "    format: vitest\n    command: [npx, --no-install, vitest, run, --reporter=json, --outputFile=.gate-vitest.json]\n    results: .gate-vitest.json\n"+after)
	case strings.Contains(test, "jest"):
		add("jest", "tests", "    format: jest\n    command: [npx, --no-install, jest, --ci, --json, --outputFile=.gate-jest.json]\n    results: .gate-jest.json\n"+after)
	case test != "" && !strings.Contains(test, "no test specified"):
		add("npm-test", "build", "    command: [npm, test]\n"+after)
	}
}

// Baseline is what is approved at a revision, and Proposed what a verdict's phases did.
// Either may be nil: there is none.
func (c *Client) Baseline(ctx context.Context, dir string) (*gate.Baseline, error) {
	return readBaseline(dir)
}

// ProposedBaseline is what a verdict's phases did, as a baseline.
func (c *Client) ProposedBaseline(ctx context.Context, ref string) (*gate.Baseline, *gate.Verdict, error) {
	v, dir, err := c.Verdict(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	b, err := os.ReadFile(filepath.Join(dir, proposedFile))
	if err != nil {
		return nil, v, fmt.Errorf("verdict %s has no whole trace of its phases: %w", v.ID, err)
	}
	if hexSum(b) != v.Proposed {
		return nil, v, fmt.Errorf("verdict %s: %w: the baseline that it proposes was changed", v.ID, ErrLedger)
	}
	p, err := gate.ParseBaseline(b)
	return p, v, err
}

// BaselineDrift is what a verdict's phases did that the baseline which stands does not
// allow, by signal: that which AcceptBaseline would add to.
func (c *Client) BaselineDrift(ctx context.Context, dir, ref string) (map[string][]GateDrift, error) {
	p, _, err := c.ProposedBaseline(ctx, ref)
	if err != nil {
		return nil, err
	}
	ws, err := store.ResolveWorkspace(dir)
	if err != nil {
		return nil, err
	}
	was, err := c.standing(ctx, string(ws.Path))
	if err != nil {
		return nil, err
	}
	return was.Drift(p), nil
}
