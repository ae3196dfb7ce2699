package carboy

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/store"
)

// GateTraceOptions say what is traced.
type GateTraceOptions struct {
	Scenarios []Scenario
	// Image and ImageDigest are as in RunOptions; empty: this machine's tools.
	Image, ImageDigest string
	// Dir is what stands at /workspace, and is not written to; empty: nothing does.
	Dir string
	// OnScenario is told of each when it has ended. Nil: nobody.
	OnScenario func(ScenarioResult)
}

// GateTrace runs scenarios, each in a bottle of its own, and says what the kernel inside
// saw of them. A scenario that fails, hangs or can't be run is in the report; the error
// is of the report as a whole.
func (c *Client) GateTrace(ctx context.Context, o GateTraceOptions) (*TraceReport, error) {
	if len(o.Scenarios) == 0 {
		return nil, errors.New("no scenario to trace")
	}
	r := &TraceReport{Build: c.build, Pinned: o.ImageDigest}
	for _, s := range o.Scenarios {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var e *gate.Ended
		var err error
		if s.Skip == "" {
			run := RunOptions{
				Command: s.Command, Mode: store.None, Allow: s.Network, Image: o.Image, ImageDigest: o.ImageDigest,
				Limits: bottle.Limits{Timeout: s.Timeout, Memory: gate.DefaultMemory, Pids: gate.DefaultPids, Disk: gate.DefaultDisk},
			}
			if o.Dir != "" {
				run.Mode, run.Workspace, run.at = store.Overlay, o.Dir, gate.Workspace
				if real, err := filepath.EvalSymlinks(o.Dir); err == nil && showsState(real, realPath(c.StateDir())) {
					return nil, &OptionError{Option: "--dir", Value: o.Dir, Reason: "holds carboy's own state, or lies in it", Advice: "name another directory"}
				}
			}
			e, err = c.runPhase(ctx, run)
		}
		x := s.Judge(e, err)
		if e != nil {
			r.Isolation = e.Isolation
			r.Image = cmp.Or(e.ImageDigest, r.Image)
			c.store.Remove(ctx, store.ID(e.Run), store.RemoveOptions{Unlanded: true})
		}
		if o.OnScenario != nil {
			o.OnScenario(x)
		}
		r.Scenarios = append(r.Scenarios, x)
	}
	r.Finish()
	return r, nil
}

// SandboxGC removes what dead gates left, and what is remembered of verdicts that are
// gone. It gives how many of each.
func (c *Client) SandboxGC(ctx context.Context) (scratch, remembered int, err error) {
	before, _ := filepath.Glob(c.gateDir("scratch", "g*"))
	c.sweepGates()
	after, _ := filepath.Glob(c.gateDir("scratch", "g*"))
	files, err := filepath.Glob(c.gateDir("cache", "*", "*.json"))
	for _, f := range files {
		id := strings.TrimSuffix(filepath.Base(f), ".json")
		if _, serr := os.Stat(c.gateDir("verdicts", id, verdictFile)); errors.Is(serr, os.ErrNotExist) {
			err = errors.Join(err, os.Remove(f))
			remembered++
		}
	}
	return len(before) - len(after), remembered, err
}
