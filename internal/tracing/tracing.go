package tracing

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/exitcode"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gate"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/image"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/scenario"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/trace"
)

// TraceOptions name the scenarios for TraceScenarios and the bottle that they run in.
type TraceOptions struct {
	// Scenarios come from LoadScenarios or ScenariosAt; nil: Command alone, or
	// without one the image's own.
	Scenarios *scenario.Set
	Command   []string
	// Workspace is a directory that each scenario sees. Its changes there are discarded.
	// Empty: none.
	Workspace string
	// At most one of these says what the root file system is; none: this machine's
	// tools. Image is as RunOptions has it, or a path; a directory that is no OCI
	// layout is a root file system itself. Dockerfile is a file of the user's own,
	// outside of the workspace.
	Image, Dockerfile string
	// Digest is the digest of the built Image, "sha256:…"; empty: not known.
	Digest string
	// Env and Mounts are for all, as RunOptions has them.
	Env, Mounts []string
	// Each bounds every scenario that says nothing itself; zero fields are the
	// machine's defaults, but a GiB of memory and 512 processes.
	Each bottle.Limits
	// Memory in bytes and Pids bound what runs side by side; 0: the machine's default
	// for one run. Parallel bounds how many; 0: as many as fit.
	Memory, Pids int64
	Parallel     int
	// NoNetwork skips scenarios that need a network.
	NoNetwork bool
	// Progress is called with each event, one at a time, and Say with the untrusted output
	// of the engine that builds an image. Both may be nil.
	Progress func(scenario.Event)
	Say      func(string)
}

// Defaults of one scenario.
const (
	scenarioMemory = 1 << 30
	scenarioPids   = 512
)

// TraceScenarios runs scenarios, each in a fresh bottle, and reports their results and
// what they touched. An error means that none could run; the report has the failures of
// single ones.
func (c *Tracer) TraceScenarios(ctx context.Context, o TraceOptions) (*scenario.Report, error) {
	rep := &scenario.Report{Build: c.Build, Started: time.Now().UTC().Truncate(time.Millisecond)}
	began := time.Now()
	if err := c.Backend.Check(ctx); err != nil {
		return nil, err
	}
	r := &scenarioRunner{c: c, o: &o, run: plan.Options{Mode: store.None, Workspace: o.Workspace, Env: o.Env, Mounts: o.Mounts, EndAtPids: true, Throwaway: true}}
	if o.Workspace != "" {
		r.run.Mode = store.Overlay
	}
	img, err := r.root(ctx, &rep.Target)
	if err != nil {
		return nil, err
	}
	set, start := o.Scenarios, false
	if set == nil {
		one := scenario.Scenario{Name: "command", Command: o.Command, Timeout: o.Each.Timeout}
		if len(o.Command) == 0 {
			if img != nil {
				one.Name, one.Command, start = "start", slices.Concat(img.Config.Entrypoint, img.Config.Cmd), true
			}
			if len(one.Command) == 0 {
				return nil, &fault.OptionError{Option: "scenarios", Value: "", Reason: "are not there, nor is a command, nor an image with one", Advice: "name a file of scenarios, or write a command after --"}
			}
		}
		set = &scenario.Set{Scenarios: []scenario.Scenario{one}}
	} else if len(o.Command) > 0 {
		return nil, &fault.OptionError{Option: "scenarios", Value: "", Reason: "can't be combined with a command", Advice: "write the command into the file, or leave the file out"}
	}
	d := plan.DefaultLimits(c.StateDir())
	def := func(v *int64, to int64) {
		if *v == 0 {
			*v = to
		}
	}
	def(&o.Memory, d.Memory)
	def(&o.Pids, d.Pids)
	def(&o.Each.Memory, min(scenarioMemory, d.Memory))
	def(&o.Each.Pids, scenarioPids)
	together := scenario.Together{
		Memory: o.Memory, Pids: o.Pids, Runs: o.Parallel, EachMemory: o.Each.Memory, EachPids: o.Each.Pids, NoNetwork: o.NoNetwork,
	}
	results, seen := scenario.Run(ctx, set, together, r, r.shells(img), o.Progress)
	rep.Took = time.Since(began)
	rep.Fill(results, seen, start)
	return rep, nil
}

// scenarioRunner runs scenarios in bottles of one kind.
type scenarioRunner struct {
	c   *Tracer
	o   *TraceOptions
	run plan.Options // of each, without its command
}

// root chooses the bottles' root file system. It returns nil if that is not an image.
func (r *scenarioRunner) root(ctx context.Context, t *scenario.Target) (*plan.Image, error) {
	o := r.o
	switch {
	case o.Image != "" && o.Dockerfile != "":
		return nil, &fault.OptionError{Option: "image", Value: o.Image, Reason: "can't be combined with a Dockerfile", Advice: "leave one of them out"}
	case o.Dockerfile != "":
		file, err := filepath.Abs(o.Dockerfile)
		if err != nil {
			return nil, err
		}
		recipe := image.Recipe{File: file, Repo: o.Workspace, Home: r.c.Env("HOME")}
		if err := recipe.Check(); err != nil {
			return nil, err
		}
		img, err := plan.BuildImage(ctx, r.c.Host, file, o.Workspace, o.Say)
		if err != nil {
			return nil, err
		}
		t.Kind, t.Ref, t.Built = "dockerfile", store.Raw(file), img.Digest
		if o.Digest != "" {
			t.Built = o.Digest
		}
		r.run.Image, r.run.ImageDigest = recipe.Ref(), img.Digest
		return img, nil
	case o.Image == "":
		if o.Digest != "" {
			return nil, &fault.OptionError{Option: "digest", Value: o.Digest, Reason: "is of an image, and none is named", Advice: "name the image"}
		}
		t.Kind = "host"
		return nil, nil
	}
	if dir, ok := plainDir(o.Image); ok {
		if o.Digest != "" {
			return nil, &fault.OptionError{Option: "digest", Value: o.Digest, Reason: "is of an image, and " + o.Image + " is a directory without one", Advice: "name an OCI layout"}
		}
		t.Kind, t.Ref = "directory", store.Raw(dir)
		r.run.RootFS = dir
		return nil, nil
	}
	img, err := plan.PullImage(ctx, r.c.Host, o.Image, plan.PullOptions{})
	if err != nil {
		return nil, err
	}
	t.Kind, t.Ref, t.Built = "image", store.Raw(o.Image), o.Digest
	r.run.Image, r.run.ImageDigest = o.Image, img.Digest
	return img, nil
}

// plainDir reports whether ref is a directory that is no OCI layout.
func plainDir(ref string) (string, bool) {
	fi, err := os.Stat(ref)
	if err != nil || !fi.IsDir() {
		return "", false
	}
	if _, err := os.Lstat(filepath.Join(ref, "oci-layout")); err == nil {
		return "", false
	}
	return ref, true
}

// Run implements scenario.Runner.
func (r *scenarioRunner) Run(ctx context.Context, s *scenario.Scenario, seen *scenario.Slices) (*scenario.Ended, error) {
	o := r.run
	o.Command, o.Allow, o.Limits = slices.Clone(s.Command), s.Network, r.o.Each
	o.Limits.Timeout, o.Limits.Memory, o.Limits.Pids = s.Timeout, s.Memory, s.Pids
	if s.Disk > 0 {
		o.Limits.Disk = s.Disk
	}
	if s.Output > 0 {
		o.Limits.Output = s.Output
	}
	rec, err := r.c.runs.Run(ctx, o)
	if rec == nil {
		return nil, err
	}
	e := &scenario.Ended{
		Run: string(rec.ID), How: string(rec.Exit.Reason), Code: rec.Exit.Code, Signal: rec.Exit.Signal, Error: rec.Exit.Error,
		NotStarted: errors.Is(err, bottle.ErrNotFound) || errors.Is(err, bottle.ErrNotExecutable),
		Duration:   rec.Duration, Isolation: string(rec.Isolation.Class),
	}
	if e.NotStarted && !exitcode.NotStarted(rec.Exit.Code) {
		e.NotStarted = false
	}
	for _, h := range rec.Limits.Hit {
		e.Hits = append(e.Hits, h.Limit)
	}
	if rec.Image != nil {
		e.Image = rec.Image.Digest
	}
	onTheWire(seen, &rec.Network)
	r.facts(rec, e, seen)
	return e, nil
}

// facts reads the trace of a run that is over.
func (r *scenarioRunner) facts(rec *receipt.Receipt, e *scenario.Ended, seen *scenario.Slices) {
	if rec.Trace == nil || rec.Trace.Facts == 0 {
		e.NoTrace, e.Incomplete = true, rec.Isolation.WeakFacts()
		if rec.Trace != nil {
			e.Incomplete = rec.Trace.Incomplete
		}
		return
	}
	t := rec.Trace
	e.Facts, e.Dropped, e.Unkept, e.Incomplete, e.Trace = uint64(t.Facts), uint64(t.Dropped), uint64(t.Unkept), t.Incomplete, t.Digest
	if why := rec.Isolation.WeakFacts(); why != "" {
		e.Incomplete = strings.TrimSuffix(fault.Sentence(why, t.Incomplete), "; ")
	}
	f, err := r.c.review.Trace(rec.ID)
	if err != nil {
		e.NoTrace, e.Incomplete = true, fault.Sentence(e.Incomplete, err.Error())
		return
	}
	defer f.Close()
	for {
		var x trace.Fact
		var damage *trace.DamageError
		err := f.Next(&x)
		switch {
		case err == io.EOF:
			// Another file than the one that was written says other things.
			if got := hex.EncodeToString(f.Tail().Digest); got != t.Digest {
				e.Incomplete = fault.Sentence(e.Incomplete, "the trace was changed after it was written")
			}
			return
		case errors.As(err, &damage):
			e.Incomplete = fault.Sentence(e.Incomplete, damage.Error())
			continue
		case err != nil:
			e.Incomplete = fault.Sentence(e.Incomplete, err.Error())
			return
		}
		seen.Add(&x)
	}
}

// onTheWire adds the names and connections that the gateway recorded.
func onTheWire(seen *scenario.Slices, n *receipt.Network) {
	for _, x := range n.Names {
		seen.AddEndpoint(scenario.Endpoint{What: "name", Family: "dns", Address: x.Name, Verdict: string(x.Verdict), Rule: x.Rule, Count: x.Count})
	}
	for _, x := range n.Connections {
		seen.AddEndpoint(scenario.Endpoint{
			What: "wire", Family: x.Proto, Address: net.JoinHostPort(x.Name, fmt.Sprint(x.Port)), Verdict: string(x.Verdict), Rule: x.Rule, Count: x.Count,
		})
	}
	seen.Missing(n.NamesTotal - int64(len(n.Names)) + n.ConnectionsTotal - int64(len(n.Connections)))
}

// maxShell bounds the shells that are known by content, in bytes.
const maxShell = 16 << 20

// shells returns the shells of the root file system, by the digest of their content. It
// leaves out shells that can't be read: those are known by name only.
func (r *scenarioRunner) shells(img *plan.Image) scenario.Shells {
	root := "/"
	switch {
	case r.run.RootFS != "":
		root = r.run.RootFS
	case img != nil:
		s, err := plan.OpenImages(r.c.Host)
		if err != nil {
			return nil
		}
		used, err := s.Use(context.Background(), img)
		if err != nil {
			return nil
		}
		defer used.Close()
		root = used.Dir
	}
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(dir)
	known := scenario.Shells{}
	for _, name := range scenario.ShellNames() {
		for _, in := range []string{"bin", "usr/bin", "usr/local/bin", "sbin"} {
			if sum, err := sumInside(dir, in+"/"+name); err == nil && known[sum] == "" {
				known[sum] = name
			}
		}
	}
	return known
}

// sumInside returns the SHA-256 of a file below dir. It resolves links as if dir were the
// root directory.
func sumInside(dir int, name string) (string, error) {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() || fi.Size() > maxShell {
		return "", errors.Join(err, errors.New("is no program of usual size"))
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, maxShell)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// LoadScenarios reads a file of the user's. It refuses a file in the workspace, because
// what is judged must not say how. An error in the file is a [document.Error] with the
// place.
func LoadScenarios(file, workspace string) (*scenario.Set, error) {
	real, err := filepath.EvalSymlinks(file)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return nil, fmt.Errorf("scenarios: %w", err)
	}
	if workspace != "" && fault.Within(real, fault.RealPath(workspace)) {
		return nil, &fault.OptionError{
			Option: "scenarios", Value: file, Reason: "lies in the directory that is traced, which then says itself how it is judged",
			Advice: "keep the file elsewhere, or have it read from a commit that you approved: --base REV",
		}
	}
	f, err := os.Open(real)
	if err != nil {
		return nil, fmt.Errorf("scenarios: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, document.MaxSize+1))
	if err != nil {
		return nil, fmt.Errorf("scenarios: %w", err)
	}
	return scenario.Parse(file, b)
}

// ErrNoScenarios means that a commit has no file of scenarios.
var ErrNoScenarios = errors.New("there is no " + scenario.FileName)

// ScenariosAt reads the file of scenarios of a commit, which its caller approves: path
// is relative to the top of the repository that dir lies in; empty:
// scenario.FileName. The work tree, which may be what is judged, is not read, and rev is
// what it is for Client.Gate: a name that several references have is refused, and git's
// objects are what their names say.
func (c *Tracer) ScenariosAt(ctx context.Context, dir, rev, path string) (set *scenario.Set, err error) {
	if path == "" {
		path = scenario.FileName
	}
	top, err := fault.WorkTree(dir)
	if err != nil {
		return nil, err
	}
	r, err := hostexec.New(hostexec.Options{Untrusted: []string{top}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close(ctx)) }()
	tree, err := (&gate.Repository{Dir: top, Runner: r}).Tree(ctx, rev)
	switch {
	case errors.Is(err, gate.ErrNoRevision):
		return nil, &fault.OptionError{Option: "base", Value: rev, Reason: "is no revision of " + top, Advice: "name a branch, a tag or a commit"}
	case err != nil:
		return nil, fmt.Errorf("base: %w", err)
	}
	text, err := tree.Read(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s of %s: %w", path, rev, ErrNoScenarios)
	}
	if err != nil {
		return nil, err
	}
	return scenario.Parse(rev+":"+path, text)
}
