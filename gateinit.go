package carboy

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

// GateBegun is what GateInit made.
type GateBegun struct {
	*gate.Verdict
	Files []string // written, relative to the directory
	Found []string // what kinds of projects: go, node, python, rust, make
	// LeftOut are signals that do not pass on the directory as it is, and why.
	LeftOut map[string]string
	// Notes are files of which gate init makes nothing, and what to do.
	Notes map[string]string
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
	f, err := proposals(dir)
	if err != nil {
		return nil, err
	}
	found, list := f.found, f.list
	b := &GateBegun{Found: found, LeftOut: map[string]string{}, Notes: f.notes}
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
			b.WriteString("defaults:\n  env: {GOPROXY: 'off', GOTOOLCHAIN: local, CGO_ENABLED: '0'}\n")
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

// Baseline is what is approved at a revision, and Proposed what a verdict's phases did.
// Either may be nil: there is none.
func (c *Client) Baseline(ctx context.Context, dir string) (*gate.Baseline, error) {
	return readBaseline(dir)
}

// ProposedBaseline is what a verdict's phases did, as a baseline.
func (c *Client) ProposedBaseline(ctx context.Context, ref string) (*gate.Baseline, *gate.Verdict, error) {
	release, err := c.keepVerdicts(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer release()
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
