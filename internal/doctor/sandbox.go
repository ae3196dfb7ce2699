package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/pool"
	"github.com/carboy/carboy/internal/run"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/work"
)

// SandboxHealth reports whether this machine can run sandboxes.
type SandboxHealth struct {
	Schema string `json:"schema"`
	OK     bool   `json:"ok"`
	// Isolation is the class of one that was made and judged; empty: none could be.
	Isolation string        `json:"isolation"`
	Kernel    string        `json:"kernel"` // the backend's build
	Build     string        `json:"build"`
	Findings  []Finding     `json:"findings"`
	Limits    bottle.Limits `json:"default_limits"`
	// Lost runs died with their carboy and were found so now; Waiting bottles wait
	// for a run.
	Lost    int `json:"lost"`
	Waiting int `json:"waiting"`
}

// SandboxHealth makes a sandbox, judges it and destroys it. Unlike Doctor's, its result
// leaves out what a sandbox does not need, such as the audit log.
func (c *Doctor) SandboxHealth(ctx context.Context) SandboxHealth {
	d := c.Doctor(ctx)
	h := SandboxHealth{Schema: store.Schema("sandbox-health"), OK: true, Kernel: d.Kernel, Build: d.Build, Findings: []Finding{}, Limits: d.Limits, Lost: len(c.runs.Lost())}
	for _, f := range d.Findings {
		if f.Check == "audit" {
			continue
		}
		h.Findings = append(h.Findings, f)
		h.OK = h.OK && f.OK
	}
	if d.Posture != nil {
		h.Isolation = string(d.Posture.Isolation)
	}
	if dir, err := store.RuntimeDir(c.Env); err == nil {
		h.Waiting, _ = pool.Sweep(dir)
	}
	return h
}

// Sandbox describes the sandbox of a run, or the one that an image would run in.
type Sandbox struct {
	Schema      string        `json:"schema"`
	Kind        string        `json:"kind"` // run, image
	Name        string        `json:"name"` // the run's id, the image's reference
	Command     []string      `json:"command"`
	Isolation   string        `json:"isolation"`
	Kernel      string        `json:"kernel"`
	Root        string        `json:"root"` // host, directory or image
	ImageDigest string        `json:"image_digest,omitempty"`
	Limits      bottle.Limits `json:"limits"`
	Hit         []string      `json:"limits_met"`
	Mounts      []string      `json:"mounts"`
	// Left are entries of the image that were not made, and why.
	Left []string `json:"left_out"`
	// Posture was read from the live processes of a run; nil: there is none.
	Posture *bottle.Posture `json:"posture,omitempty"`
}

// InspectSandbox describes the sandbox of a run, named by a prefix of its id, or the one
// that a pulled image would run in, named by its digest, a prefix of that, or its
// reference.
func (c *Doctor) InspectSandbox(ctx context.Context, name string) (*Sandbox, error) {
	x, ierr := c.inspectImage(name)
	if x != nil || ierr != nil {
		return x, ierr
	}
	m, err := c.review.Find(ctx, name, "")
	if err != nil {
		return nil, err
	}
	r, err := c.review.Receipt(ctx, m.ID)
	if err != nil {
		return nil, err
	}
	x = &Sandbox{
		Schema: store.Schema("sandbox"), Kind: "run", Name: string(m.ID), Isolation: string(r.Isolation.Class), Kernel: r.Isolation.Build, Root: "host or directory",
		Limits: r.Limits.Limits, Hit: []string{}, Mounts: []string{}, Left: []string{}, Posture: r.Isolation.Posture,
	}
	for _, w := range r.Command {
		x.Command = append(x.Command, string(w))
	}
	if r.Image != nil {
		x.Root, x.ImageDigest = "image "+string(r.Image.Ref), r.Image.Digest
	}
	for _, h := range r.Limits.Hit {
		x.Hit = append(x.Hit, h.Limit)
	}
	if r.Workspace.Mode != store.None {
		x.Mounts = append(x.Mounts, fmt.Sprintf("%s, the workspace (%s)", string(r.Workspace.Path), r.Workspace.Mode))
	}
	for _, mt := range r.Mounts {
		x.Mounts = append(x.Mounts, fmt.Sprintf("%s at %s (%s)", string(mt.Source), string(mt.Target), mt.Access))
	}
	return x, nil
}

// minDigest bounds the part of a digest that names an image, in hexadecimal digits.
const minDigest = 6

func (c *Doctor) inspectImage(name string) (*Sandbox, error) {
	all, err := plan.Images(c.Host)
	if err != nil {
		return nil, err
	}
	short := strings.TrimPrefix(name, "sha256:")
	var found []plan.Image
	for _, i := range all {
		if i.Ref == name || i.Digest == name || len(short) >= minDigest && strings.HasPrefix(strings.TrimPrefix(i.Digest, "sha256:"), short) {
			found = append(found, i)
		}
	}
	switch {
	case len(found) == 0:
		return nil, nil
	case len(found) > 1:
		return nil, &fault.OptionError{Option: "image", Value: name, Reason: "names several", Advice: "write more of the digest: carboy image list"}
	}
	i := found[0]
	class := ""
	if c.Backend.Check(context.Background()) == nil {
		class = string(c.Backend.Isolation())
	}
	x := &Sandbox{
		Schema: store.Schema("sandbox"), Kind: "image", Name: i.Ref, Command: slices.Concat(i.Config.Entrypoint, i.Config.Cmd), Isolation: class, Kernel: c.Backend.Build(),
		Root: "image " + i.Ref, ImageDigest: i.Digest, Limits: plan.DefaultLimits(c.StateDir()), Hit: []string{}, Mounts: []string{}, Left: i.Left,
	}
	if x.Left == nil {
		x.Left = []string{}
	}
	return x, nil
}

// Swept is the result of SweepSandboxes.
type Swept struct {
	Schema string `json:"schema"`
	// Runs died with their carboy, and are marked as lost.
	Runs []string `json:"lost"`
	// Removed are paths of the host, and bottles by their names.
	Removed []string `json:"removed"`
}

// SweepSandboxes removes the files that dead sandboxes left on the host; the trees, runs
// and unfinished verdicts of gates that died; and the warm caches that are beyond their
// bounds or differ from their record. Opening a client already removes most of these. The
// records and changes of other runs stay.
func (c *Doctor) SweepSandboxes(ctx context.Context) (*Swept, error) {
	g := &Swept{Schema: store.Schema("sandbox-gc"), Runs: []string{}, Removed: []string{}}
	for _, m := range c.runs.Lost() {
		g.Runs = append(g.Runs, string(m.ID))
	}
	l, err := c.review.List(ctx, store.Query{})
	errs := []error{err, c.runs.SweepPool()}
	rt, rerr := store.RuntimeDir(c.Env)
	errs = append(errs, rerr)
	c.judge.SweepGates()
	scratch := fault.RealPath(c.judge.GateDir("scratch"))
	for _, m := range l.Runs {
		if !m.State.Over() {
			continue
		}
		// A phase is of no use without its gate, which removes both. The receipt of a
		// bottle that pushed says what left.
		if tree := string(m.Workspace.Path); m.Kind == store.KindRun && fault.Within(tree, scratch) && tree != scratch {
			if _, err := os.Lstat(tree); errors.Is(err, fs.ErrNotExist) {
				err := c.Store.Remove(ctx, m.ID, store.RemoveOptions{Unlanded: true})
				if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrLive) {
					continue // its gate has just ended, and removes it
				}
				if err != nil {
					errs = append(errs, err)
					continue
				}
				g.Removed = append(g.Removed, c.Store.RunDir(m.ID))
				continue
			}
		}
		var left []string
		for _, name := range []string{"scratch", "base", "services"} {
			left = append(left, filepath.Join(c.Store.RunDir(m.ID), name))
		}
		if rerr == nil {
			left = append(left, filepath.Join(rt, run.SocketName(m.ID)))
		}
		for _, p := range left {
			if _, err := os.Lstat(p); errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err := fault.RemoveTree(p); err != nil {
				errs = append(errs, err)
				continue
			}
			g.Removed = append(g.Removed, p)
		}
	}
	if rerr == nil {
		_, err := pool.Sweep(rt)
		errs = append(errs, err)
	}
	dirs, err := store.Glob(c.judge.GateDir("work"), "*")
	errs = append(errs, err)
	var works []string
	for _, d := range dirs {
		if busy, berr := work.WorkBusy(d); !busy && berr == nil { // else it may be about to push
			works = append(works, filepath.Base(d))
		}
	}
	pushes, err := c.worker.SweepPushes(ctx, works...)
	errs = append(errs, err)
	for _, slug := range pushes {
		g.Removed = append(g.Removed, "bottle "+slug)
	}
	unfinished, err := c.judge.SweepVerdicts(ctx)
	errs = append(errs, err)
	g.Removed = append(g.Removed, unfinished...)
	warm, err := c.judge.SweepWarm(ctx, true)
	g.Removed = append(g.Removed, warm...)
	return g, errors.Join(append(errs, err)...)
}
