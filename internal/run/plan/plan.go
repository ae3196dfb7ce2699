// Package plan decides what a bottle is made from: it checks a run's options and reads
// what they name on this machine. It starts nothing.
package plan

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/rootfs"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/wire"
)

// Dir returns the directory in which commands start.
func (p *Plan) Dir() string {
	switch {
	case p.building:
		return "/"
	case p.Target == "":
		return p.User.User.Home
	}
	return p.Target
}

// Plan describes a bottle before it is made: all that the options, the user and this
// machine decide, and nothing of the run itself.
type Plan struct {
	Mode        store.Mode
	Rootfs      string            // a directory that is the whole root; empty: the host's tools
	env         map[string]string // of the image that it is
	Limits      bottle.Limits
	User        User
	Workspace   store.Workspace
	Target      string // the workspace's path inside; empty: none
	Source      string // and on the host
	Routes      []policy.Route
	RouteFile   *routes.File // that some of them are of; nil: none
	RouteStamp  fileStamp    // the file, before it was read
	Credentials *Credentials
	Secrets     *Secrets // --secret
	// Watched holds all secrets watched for, credentials included, by name.
	Watched map[string]secret.Value
	Mounts  []bottle.Mount
	// building says that the root is an image's that is being built.
	building bool
	homes    []string      // directories to be made in the home, which mounts lie in
	Files    []rootfs.File // of the home inside
	Net      wire.Config

	// Asking says that people can be asked. AskKey keys the digests of the values that
	// they are asked about.
	Asking bool
	AskKey []byte

	// Identity outlives the run; nil: the bottle has only one run.
	Identity *Identity
	GitGrant *Grant // whose repositories are served; nil: there are none
	// Floor is the weakest class of isolation that the bottle's manifests accept.
	Floor bottle.Floor

	// Declared says that manifests of a bottle name the routes, and no flags.
	Declared bool
	// Digests makes the gateway report the digest of each answer.
	Digests bool

	// Services are servers in other bottles that this one reaches.
	Services map[string]gateway.Service
	// Untraced says that nobody wants the bottle's facts.
	Untraced bool

	// Begin changes the spec before the bottle is made; nil: nothing.
	Begin func(*bottle.Spec) error

	// Root holds the part of the host that the bottle shows. Look sets it.
	Root bottle.Root
	// Compared puts the host's mounts below Root into Table, so that two plans can be
	// compared. All mounts of the machine are read for that.
	Compared bool
	Table    []string
}

// New checks the options that a bottle depends on, and completes them.
func New(c *host.Host, o *Options) (*Plan, error) {
	if o.Mode == "" {
		o.Mode = store.Overlay
	}
	p := &Plan{Mode: o.Mode, Net: wire.DefaultConfig(), Digests: o.Told != nil}
	if o.Grant != nil {
		p.Declared, p.Identity, p.Floor = true, o.Grant.Identity, o.Grant.Floor
	}
	switch {
	case o.Supervise:
		p.Asking = true
	case o.Forge != nil:
		return nil, &fault.OptionError{Option: "supervise", Reason: "is off, so that there are no tools by which the agent could reach its forge", Advice: "say supervise: true in the bottle's file"}
	case o.Policy != "":
		return nil, &fault.OptionError{Option: "--policy", Value: o.Policy, Reason: "answers what people are asked, and nobody is", Advice: "add --supervise, or say supervise: true in the bottle's file"}
	}
	var err error
	if p.Limits, err = FillLimits(o.Limits, c.StateDir()); err != nil {
		return nil, err
	}
	p.RouteStamp, _ = StampOf(o.Routes) // before it is read, lest a change between is missed
	if p.Routes, p.RouteFile, err = ParseRoutes(o); err != nil {
		return nil, err
	}
	if p.Credentials, err = (&CredentialReader{Lookup: c.Env, Roots: c.Opened.Roots, seed: o.Grant.seed()}).Read(p.Routes); err != nil {
		return nil, err
	}
	if o.Grant != nil {
		p.Files = p.Credentials.fill(o.Grant.Files)
	}
	if p.Secrets, err = ReadSecrets(o.Secrets, c.Env); err != nil {
		return nil, err
	}
	if err := p.watchGit(o.Grant); err != nil {
		return nil, err
	}
	p.Watched = p.Secrets.With(p.Credentials)
	if o.Opened != nil {
		p.Rootfs, p.env = o.Opened.root.Dir, o.Opened.env()
	} else if p.Rootfs, err = rootDir(o.RootFS, fault.RealPath(c.StateDir())); err != nil {
		return nil, err
	}
	if err := p.workspace(o, c.StateDir()); err != nil {
		return nil, err
	}
	if p.User, err = Whoami(string(p.Workspace.Path)); err != nil {
		return nil, err
	}
	if p.Mounts, err = parseMounts(o.Mounts, p.Target, fault.RealPath(c.StateDir())); err != nil {
		return nil, err
	}
	if o.Build != nil {
		o.Build.plan(p)
	}
	for _, at := range slices.Sorted(maps.Keys(o.Caches)) {
		p.Mounts = append(p.Mounts, bottle.Mount{Source: o.Caches[at], Target: filepath.Join(p.User.User.Home, at), Access: bottle.AccessOverlay})
		for d := filepath.Dir(at); d != "."; d = filepath.Dir(d) {
			p.homes = append(p.homes, filepath.Join(p.User.User.Home, d))
		}
	}
	if err := p.hideTokens(); err != nil {
		return nil, err
	}
	if err := p.hideKeys(); err != nil {
		return nil, err
	}
	if err := p.CheckFiles(); err != nil {
		return nil, err
	}
	return p, nil
}

// rootDir resolves and checks the directory to use as the root; empty: the host's tools.
func rootDir(dir, state string) (string, error) {
	if dir == "" || dir == "host" {
		return "", nil
	}
	abs, err := filepath.Abs(dir)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", fmt.Errorf("root file system: %w", err)
	}
	switch {
	case abs == "/":
		return "", &fault.OptionError{Option: "--rootfs", Value: dir, Reason: "would show the whole host", Advice: "name a directory of its own, such as an unpacked image, or leave it out for this machine's tools"}
	case showsState(abs, state):
		return "", &fault.OptionError{Option: "--rootfs", Value: dir, Reason: "would show carboy's own state", Advice: "name a directory of its own, such as an unpacked image"}
	}
	return abs, nil
}

// showsState reports whether showing dir would show a part of carboy's state: a bottle
// must not even read the audit log, its key and the runs' records.
func showsState(dir, state string) bool { return fault.Within(state, dir) || fault.Within(dir, state) }

// IssuesDir and IssueRepo name the workspaces that carboy makes for issues, in its state:
// IssuesDir/ISSUE/IssueRepo. Nothing else of the state lies in one.
const (
	IssuesDir = "issues"
	IssueRepo = "repo"
)

// ofIssue reports whether dir is the workspace of an issue, or the objects in it, which the
// bottle that pushes reads.
func ofIssue(dir, state string) bool {
	rest, ok := strings.CutPrefix(dir, filepath.Join(state, IssuesDir)+"/")
	issue, repo, _ := strings.Cut(rest, "/")
	return ok && issue != "" && (repo == IssueRepo || repo == IssueRepo+"/.git/objects")
}

// workspace resolves and checks the directory to work on.
func (p *Plan) workspace(o *Options, state string) error {
	if p.Mode == store.None {
		return nil
	}
	dir := o.Workspace
	if dir == "" {
		var err error
		if dir, err = os.Getwd(); err != nil {
			return fmt.Errorf("find the current directory: %w", err)
		}
	}
	real, err := change.CheckWorkspace(dir)
	if err != nil {
		return err
	}
	if o.At == "" && showsState(real, state) && !ofIssue(real, fault.RealPath(state)) {
		return &fault.OptionError{Option: "workspace", Value: real, Reason: "holds carboy's own state, or lies in it", Advice: "work in another directory"}
	}
	p.Source, p.Target = real, cmp.Or(o.At, real)
	if own := bottlesOwn(p.Target); own != "" {
		return &fault.OptionError{Option: "workspace", Value: p.Target, Reason: "can't be shown: a bottle has its own " + own, Advice: "work in another directory"}
	}
	p.Workspace, err = store.ResolveWorkspace(real)
	return err
}

// ParseRoutes reads all that o allows, and the file that it names.
func ParseRoutes(o *Options) (out []policy.Route, file *routes.File, err error) {
	if o.Routes != "" {
		if file, err = routes.Load(o.Routes); err != nil {
			return nil, nil, err
		}
		out = append(out, file.Routes...)
	}
	if o.Grant != nil {
		out = append(out, o.Grant.Routes...)
	}
	for _, l := range []struct {
		given []string
		parse func(string) (policy.Route, error)
	}{{o.Credentials, ParseCredential}, {o.Allow, policy.ParseAllow}, {o.AllowPrivate, policy.ParseAllowPrivate}} {
		for _, a := range l.given {
			r, err := l.parse(a)
			if err != nil {
				return nil, nil, err
			}
			out = append(out, r)
		}
	}
	table, err := policy.Compile(out...)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range out {
		if by, ok := table.Shadowed(r); ok && !r.Plain() {
			return nil, nil, &fault.OptionError{Option: r.Rule(), Value: r.String(), Reason: "would never be used, since " + by + " decides about connections to it", Advice: "say in a route file what holds for that host: private: true, inspect, and what is put on"}
		}
	}
	return out, file, nil
}

// Spec returns the specification from which the bottle is made. It makes the bottle's
// private files in dir; cleanup removes them.
func (p *Plan) Spec(ctx context.Context, id, dir string) (spec *bottle.Spec, cleanup func(), err error) {
	if err := p.Look(); err != nil {
		return nil, nil, err
	}
	spec = &bottle.Spec{
		ID: id, Root: p.Root, Mounts: append([]bottle.Mount(nil), p.Mounts...), User: p.User.User,
		HostUID: p.User.HostUID, HostGID: p.User.HostGID, Limits: p.Limits, Hostname: hostname, Net: p.Net,
	}
	slices.Sort(p.homes) // parents first
	spec.Root.Entries = slices.Clip(spec.Root.Entries)
	for _, d := range p.homes {
		spec.Root.Entries = append(spec.Root.Entries, bottle.Entry{Path: d, Mode: os.ModeDir | 0o755, Owned: true})
	}
	// Where the overlay's pages live: on disk, so that what a command writes is
	// not counted as memory. The file has no name: it is gone with the bottle.
	spec.Scratch = dir + "/scratch"
	base := dir + "/base"
	cleanup = func() { os.RemoveAll(spec.Scratch); fault.RemoveTree(base) }
	if spec.Workspace, err = p.workspaceMount(ctx, base); err == nil {
		err = p.ownDir(spec.Scratch)
	}
	if err != nil {
		cleanup()
		return nil, nil, err
	}
	return spec, cleanup, nil
}

const hostname = "carboy"

// Inspects reports whether the gateway answers TLS in some server's place.
func (p *Plan) Inspects() bool {
	// A route file may come to have some, and people may.
	return p.RouteFile != nil || p.Asking || slices.ContainsFunc(p.Routes, func(r policy.Route) bool { return r.Protocol() == policy.ProtocolWeb && !r.Options().Opaque })
}

// Look sets Root to the part of the host that the bottle's root shows now.
func (p *Plan) Look() (err error) {
	o := rootfs.Options{User: p.User.User, Hostname: hostname, DNS: p.Net.DNS, Self4: p.Net.Bottle4.Addr(), Trusting: p.Inspects(), Files: p.Files, Git: p.GitGrant.gitConfig()}
	switch {
	case p.building:
		p.Root, err = rootfs.Built(p.Rootfs, o)
	case p.Rootfs != "":
		p.Root, err = rootfs.Dir(p.Rootfs, o)
	default:
		p.Root, err = rootfs.Host(o)
	}
	if err == nil && p.Compared {
		p.Table, err = p.hostMounts()
	}
	return err
}

func (p *Plan) workspaceMount(ctx context.Context, base string) (*bottle.Mount, error) {
	live := &bottle.Mount{Source: p.Source, Target: p.Target, Dev: p.Workspace.Dev, Ino: p.Workspace.Ino}
	switch p.Mode {
	case store.Overlay:
		live.Access = bottle.AccessOverlay
		return live, nil
	case store.Bind:
		live.Access = bottle.AccessReadWrite
		return live, nil
	case store.Copy:
		if err := p.copyWorkspace(ctx, base); err != nil {
			return nil, err
		}
		return &bottle.Mount{Source: base, Target: p.Target, Access: bottle.AccessOverlay}, nil
	}
	return nil, nil
}

func AccessName(a bottle.Access) string {
	switch a {
	case bottle.AccessReadOnly:
		return "read-only"
	case bottle.AccessReadWrite:
		return "read-write"
	case bottle.AccessOverlay:
		return "overlay"
	}
	return "none"
}

// ownDir makes a directory for the bottle's user alone.
func (p *Plan) ownDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if os.Geteuid() == 0 && p.User.HostUID != 0 {
		return os.Lchown(dir, int(p.User.HostUID), int(p.User.HostGID))
	}
	return nil
}

// fileStamp changes when a file does.
type fileStamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

func StampOf(path string) (fileStamp, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileStamp{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return fileStamp{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}, nil
}
