package judge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/store"
)

// GateBegun is the result of GateInit.
type GateBegun struct {
	*gate.Verdict
	Files []string // written, relative to the directory
	Found []string // what kinds of projects: go, node, python, rust, make
	// LeftOut lists signals that do not pass on the directory as it is, with the reason.
	LeftOut map[string]string
	// Notes lists files that no signal uses, and what to do about them.
	Notes map[string]string
	// Untested: no signal that was written runs tests.
	Untested bool
}

// Proposal is a signal that a project could have.
type Proposal struct {
	Name, text string
	runs       bool
}

// GateInit writes a catalog for the project in o.Dir, and the first baseline, recorded by
// running its phases there. It leaves out signals that do not pass, and lists them in the
// result. Whoever commits the two files accepts them.
func (c *Judge) GateInit(ctx context.Context, o GateOptions) (*GateBegun, error) {
	dir := o.Dir
	if dir == "" {
		dir = "."
	}
	for _, p := range []string{gate.CatalogPath, gate.BaselinePath} {
		if _, err := os.Lstat(filepath.Join(dir, p)); !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s is there already: %w", p, fs.ErrExist)
		}
	}
	f, err := Proposals(dir)
	if err != nil {
		return nil, err
	}
	found, list := f.Found, f.List
	b := &GateBegun{Found: found, LeftOut: map[string]string{}, Notes: f.notes}
	for {
		text := CatalogText(found, list)
		cat, err := gate.ParseCatalog(gate.CatalogPath, []byte(text))
		if err != nil {
			return nil, fmt.Errorf("the catalog that carboy wrote is wrong: %w", err)
		}
		try := o
		try.Change, try.own = ".", &ownCatalog{catalog: cat, recording: true}
		w, err := c.GateWork(ctx, &try)
		if err != nil {
			return nil, err
		}
		v, err := w.judge(ctx)
		if err != nil {
			w.Close()
			return nil, err
		}
		if v.Outcome == gate.Passed {
			defer w.Close()
			b.Verdict, b.Untested = v, !cat.RunsTests()
			base, err := w.G.RecordBaseline(ctx)
			if err != nil {
				return nil, err
			}
			enc, err := base.Encode()
			if err != nil {
				return nil, err
			}
			return b, b.write(w.dir, map[string][]byte{gate.CatalogPath: []byte(text), gate.BaselinePath: enc})
		}
		w.Close()
		var left []Proposal
		for _, p := range list {
			if r := ResultOf(v, p.Name); r.Outcome == gate.Passed {
				left = append(left, p)
			} else {
				b.LeftOut[p.Name] = why(r)
			}
		}
		if len(left) == len(list) || len(left) == 0 {
			return nil, fmt.Errorf("no signal passes on %s as it is: %s", v.Change.Name, why(v.Signals[0]))
		}
		list = left
	}
}

func ResultOf(v *gate.Verdict, name string) *gate.Result {
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

func CatalogText(found []string, list []Proposal) string {
	var b strings.Builder
	b.WriteString("# What a change must show before anyone trusts it: carboy gate run.\n# This file counts as it stands on the base, never as a change has it.\nversion: 1\n")
	for _, f := range found {
		if f == "go" {
			b.WriteString("defaults:\n  env: {GOPROXY: 'off', GOTOOLCHAIN: local, CGO_ENABLED: '0'}\n")
		}
	}
	b.WriteString("signals:\n")
	var of []string
	for _, p := range list {
		b.WriteString(p.text)
		if p.runs {
			of = append(of, p.Name)
		}
	}
	if len(of) > 0 {
		fmt.Fprintf(&b, "  - {name: trace, kind: trace, of: [%s]}\n", strings.Join(of, ", "))
	}
	return b.String()
}

// Baseline reads the baseline in the work tree dir.
func (c *Judge) Baseline(ctx context.Context, dir string) (*gate.Baseline, error) {
	return readBaseline(dir)
}

// ProposedBaseline returns a baseline that allows what the phases of a verdict did.
func (c *Judge) ProposedBaseline(ctx context.Context, ref string) (*gate.Baseline, *gate.Verdict, error) {
	release, err := c.KeepVerdicts(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	v, dir, err := c.Verdict(ctx, ref)
	if err != nil {
		return nil, nil, err
	}
	b, err := os.ReadFile(filepath.Join(dir, ProposedFile))
	if err != nil {
		return nil, v, fmt.Errorf("verdict %s has no whole trace of its phases: %w", v.ID, err)
	}
	if HexSum(b) != v.Proposed {
		return nil, v, fmt.Errorf("verdict %s: %w: the baseline that it proposes was changed", v.ID, ErrLedger)
	}
	p, err := gate.ParseBaseline(b)
	return p, v, err
}

// BaselineDrift returns, by signal, what the phases of a verdict did that the standing
// baseline (Standing) does not allow. AcceptBaseline would add it.
func (c *Judge) BaselineDrift(ctx context.Context, dir, ref string) (map[string][]gate.Drift, error) {
	p, _, err := c.ProposedBaseline(ctx, ref)
	if err != nil {
		return nil, err
	}
	ws, err := store.ResolveWorkspace(dir)
	if err != nil {
		return nil, err
	}
	was, err := c.Standing(ctx, string(ws.Path))
	if err != nil {
		return nil, err
	}
	return was.Drift(p), nil
}
