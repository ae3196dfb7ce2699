package carboy

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/change"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/rootfs"
	"github.com/carboy/carboy/internal/routes"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/wire"
)

// plan is what a bottle is made from: all that the options, the user and this
// machine decide about it before there is a run, and nothing of the run itself.
type plan struct {
	mode    store.Mode
	rootfs  string            // a directory that is the whole root; empty: the host's tools
	env     map[string]string // of the image that it is
	limits  bottle.Limits
	id      identity
	ws      store.Workspace
	target  string // the workspace's path inside; empty: none
	source  string // and on the host
	routes  []policy.Route
	file    *routes.File // that some of them are of; nil: none
	read    fileStamp    // the file, before it was read
	creds   *credentials
	secrets *known // --secret
	// known is all that is watched for, credentials included, by name.
	known  map[string]secret.Value
	mounts []bottle.Mount
	homes  []string      // directories to be made in the home, which mounts lie in
	files  []rootfs.File // of the home inside
	net    wire.Config

	// people are asked; nil: nobody can be. askKey is of the digests of what they
	// are asked about.
	people *people
	askKey []byte

	// identity is what the bottle has again and again; nil: it is one run's.
	identity *identityKept
	git      *granted // whose repositories are served; nil: there are none

	// digests: the gateway says of each answer what it was.
	digests bool

	// begin changes the spec before the bottle is made; nil: nothing.
	begin func(*bottle.Spec) error

	// What of the host is shown, from look.
	root bottle.Root
	// compared plans have the host's mounts there, too, which takes reading all
	// mounts of the machine.
	compared bool
	table    []string
}

// newPlan checks the options that a bottle depends on, and completes them.
func (c *Client) newPlan(o *RunOptions) (*plan, error) {
	if o.Mode == "" {
		o.Mode = store.Overlay
	}
	p := &plan{mode: o.Mode, net: wire.DefaultConfig(), digests: o.told != nil}
	if o.granted != nil {
		p.identity = o.granted.identity
	}
	if o.Supervise {
		p.people = newPeople(c.build)
	} else if o.Policy != "" {
		return nil, &OptionError{Option: "--policy", Value: o.Policy, Reason: "answers what people are asked, and nobody is", Advice: "add --supervise, or say supervise: true in the bottle's file"}
	}
	var err error
	if p.limits, err = fillLimits(o.Limits, c.StateDir()); err != nil {
		return nil, err
	}
	p.read, _ = stampOf(o.Routes) // before it is read, lest a change between is missed
	if p.routes, p.file, err = parseRoutes(o); err != nil {
		return nil, err
	}
	if p.creds, err = (&credentialReader{lookup: c.env, roots: c.opened.Roots, seed: o.granted.seed()}).read(p.routes); err != nil {
		return nil, err
	}
	if o.granted != nil {
		p.files = p.creds.fill(o.granted.files)
	}
	if p.secrets, err = readKnown(o.Secrets, c.env); err != nil {
		return nil, err
	}
	if err := p.watchGit(o.granted); err != nil {
		return nil, err
	}
	p.known = p.secrets.with(p.creds)
	if o.image != nil {
		p.rootfs, p.env = o.image.root.Dir, o.image.env()
	} else if p.rootfs, err = rootDir(o.RootFS, realPath(c.StateDir())); err != nil {
		return nil, err
	}
	if err := p.workspace(o, c.StateDir()); err != nil {
		return nil, err
	}
	if p.id, err = whoami(string(p.ws.Path)); err != nil {
		return nil, err
	}
	if p.mounts, err = parseMounts(o.Mounts, p.target, realPath(c.StateDir())); err != nil {
		return nil, err
	}
	for _, at := range slices.Sorted(maps.Keys(o.caches)) {
		p.mounts = append(p.mounts, bottle.Mount{Source: o.caches[at], Target: filepath.Join(p.id.user.Home, at), Access: bottle.AccessOverlay})
		for d := filepath.Dir(at); d != "."; d = filepath.Dir(d) {
			p.homes = append(p.homes, filepath.Join(p.id.user.Home, d))
		}
	}
	if err := p.hideTokens(); err != nil {
		return nil, err
	}
	if err := p.hideKeys(); err != nil {
		return nil, err
	}
	if err := p.checkFiles(); err != nil {
		return nil, err
	}
	return p, nil
}

// rootDir resolves and judges the directory that is to be the whole root; empty:
// the host's tools.
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
		return "", &OptionError{Option: "--rootfs", Value: dir, Reason: "would show the whole host", Advice: "name a directory of its own, such as an unpacked image, or leave it out for this machine's tools"}
	case showsState(abs, state):
		return "", &OptionError{Option: "--rootfs", Value: dir, Reason: "would show carboy's own state", Advice: "name a directory of its own, such as an unpacked image"}
	}
	return abs, nil
}

// showsState reports whether with dir a part of carboy's state would be shown: the
// audit log, its key and every run's record are not even to be read.
func showsState(dir, state string) bool { return within(state, dir) || within(dir, state) }

// workspace resolves and judges the directory to work on.
func (p *plan) workspace(o *RunOptions, state string) error {
	if p.mode == store.None {
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
	if o.at == "" && showsState(real, state) {
		return &OptionError{Option: "workspace", Value: real, Reason: "holds carboy's own state, or lies in it", Advice: "work in another directory"}
	}
	p.source, p.target = real, cmp.Or(o.at, real)
	p.ws, err = store.ResolveWorkspace(real)
	return err
}

// parseRoutes reads all that o allows, and the file that it names.
func parseRoutes(o *RunOptions) (out []policy.Route, file *routes.File, err error) {
	if o.Routes != "" {
		if file, err = routes.Load(o.Routes); err != nil {
			return nil, nil, err
		}
		out = append(out, file.Routes...)
	}
	if o.granted != nil {
		out = append(out, o.granted.routes...)
	}
	for _, l := range []struct {
		given []string
		parse func(string) (policy.Route, error)
	}{{o.Credentials, parseCredential}, {o.Allow, policy.ParseAllow}, {o.AllowPrivate, policy.ParseAllowPrivate}} {
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
			return nil, nil, &OptionError{Option: r.Rule(), Value: r.String(), Reason: "would never be used, since " + by + " decides about connections to it", Advice: "say in a route file what holds for that host: private: true, inspect, and what is put on"}
		}
	}
	return out, file, nil
}

// spec is the bottle's own part of the plan. The bottle's private files are
// made in dir, and gone with cleanup.
func (p *plan) spec(ctx context.Context, id, dir string) (spec *bottle.Spec, cleanup func(), err error) {
	if err := p.look(); err != nil {
		return nil, nil, err
	}
	spec = &bottle.Spec{
		ID: id, Root: p.root, Mounts: append([]bottle.Mount(nil), p.mounts...), User: p.id.user,
		HostUID: p.id.hostUID, HostGID: p.id.hostGID, Limits: p.limits, Hostname: hostname, Net: p.net,
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
	cleanup = func() { os.RemoveAll(spec.Scratch); removeTree(base) }
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

// inspects reports whether the gateway answers TLS in some server's place.
func (p *plan) inspects() bool {
	// A route file may come to have some, and people may.
	return p.file != nil || p.people != nil || slices.ContainsFunc(p.routes, func(r policy.Route) bool { return r.Protocol() == policy.ProtocolWeb && !r.Options().Opaque })
}

// look finds what of the host the bottle's root shows at this moment.
func (p *plan) look() (err error) {
	o := rootfs.Options{User: p.id.user, Hostname: hostname, DNS: p.net.DNS, Self4: p.net.Bottle4.Addr(), Trusting: p.inspects(), Files: p.files, Git: p.git.gitConfig()}
	if p.rootfs != "" {
		p.root, err = rootfs.Dir(p.rootfs, o)
	} else {
		p.root, err = rootfs.Host(o)
	}
	if err == nil && p.compared {
		p.table, err = p.hostMounts()
	}
	return err
}

func (p *plan) workspaceMount(ctx context.Context, base string) (*bottle.Mount, error) {
	live := &bottle.Mount{Source: p.source, Target: p.target, Dev: p.ws.Dev, Ino: p.ws.Ino}
	switch p.mode {
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
		return &bottle.Mount{Source: base, Target: p.target, Access: bottle.AccessOverlay}, nil
	}
	return nil, nil
}

func accessName(a bottle.Access) string {
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
func (p *plan) ownDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if os.Geteuid() == 0 && p.id.hostUID != 0 {
		return os.Lchown(dir, int(p.id.hostUID), int(p.id.hostGID))
	}
	return nil
}
