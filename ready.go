package carboy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/store"
)

// Ready is a bottle that was made ahead of its run: sealed, verified, with its
// gateway, and with nothing in it. It serves one run and ends with it; there is
// no way back into a Ready, so that two runs never share one.
//
// What belongs to a run is not taken before it: its record, its moment in the
// audit log, the workspace's baseline, variables, secrets, published ports. Of
// the workspace only the directory itself was opened.
type Ready struct {
	c     *Client
	asked RunOptions // what the bottle depends on, as it was asked for
	// plan and bottle are v's, to be looked at also when v was taken.
	plan   *plan
	bottle bottle.Bottle
	v      atomic.Pointer[vessel] // nil: taken
	state  store.Workspace        // the state directory
	conf   config                 // the user's, as it was when Fits was asked
}

// ErrUnfit means that a Ready was made for something else than is asked now.
var ErrUnfit = errors.New("the prepared bottle does not fit")

// poolDir is where bottles that have no run yet are made, below the state.
const poolDir = "pool"

// CanPrepare says whether bottles for o can be made ahead, and if not, why.
func CanPrepare(o *RunOptions) error {
	if o.Mode == store.Copy {
		return errors.New("the workspace is copied when the run begins")
	}
	// What is in it is the user's to change at any time, up to its links.
	if o.Routes != "" {
		return errors.New("a route file may change while the bottle waits")
	}
	if o.Supervise {
		return errors.New("the queue is opened when the run begins")
	}
	if o.granted != nil {
		return errors.New("a bottle's manifests are read when it starts")
	}
	if len(o.Credentials) > 0 {
		return errors.New("credentials are read when the run begins")
	}
	if len(o.Secrets) > 0 {
		return errors.New("secrets are read when the run begins")
	}
	if o.RootFS != "" && o.RootFS != "host" {
		return errors.New("the root file system is a directory, which the bottle opens when it is made")
	}
	if o.Image != "" {
		return errors.New("the image is opened when the run begins")
	}
	return nil
}

// Prepare makes a bottle for a later run with the same options. Command, Env,
// Publish, streams and the like do not matter yet.
func (c *Client) Prepare(ctx context.Context, o RunOptions) (*Ready, error) {
	if err := CanPrepare(&o); err != nil {
		return nil, err
	}
	p, err := c.newPlan(&o)
	if err != nil {
		return nil, err
	}
	p.compared = true
	// A mount point inside the workspace is looked up when the bottle is made,
	// and what was looked up there is remembered.
	for _, m := range p.mounts {
		if p.target != "" && strings.HasPrefix(m.Target, p.target+"/") {
			return nil, fmt.Errorf("%w: a mount lies in the workspace", ErrUnfit)
		}
	}
	if err := c.backend.Check(ctx); err != nil {
		return nil, err
	}
	dir, drop, err := c.privateDir()
	if err != nil {
		return nil, err
	}
	defer drop()
	v, err := c.newVessel(ctx, p, "b"+filepath.Base(dir), dir, nil)
	if err != nil {
		return nil, err
	}
	// The bottle holds what it needs; nothing of it is left on disk to clean up.
	v.cleanup()
	v.cleanup = func() {}
	r := &Ready{c: c, asked: o, plan: v.plan, bottle: v.bottle}
	if r.state, err = store.ResolveWorkspace(c.StateDir()); err != nil {
		v.close()
		return nil, err
	}
	r.v.Store(v)
	return r, nil
}

// privateDir makes a directory below the state that is ours while we hold it.
func (c *Client) privateDir() (dir string, drop func(), err error) {
	top := filepath.Join(c.StateDir(), poolDir)
	if err := os.Mkdir(top, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", nil, err
	}
	fd := -1
	for range 100 {
		// Before it is locked, one who sweeps may take it for a dead maker's.
		if dir, err = os.MkdirTemp(top, "r"); err != nil {
			return "", nil, err
		}
		if fd, err = lockDir(dir); err == nil {
			break
		}
		os.RemoveAll(dir)
	}
	if err != nil {
		return "", nil, err
	}
	return dir, func() { os.RemoveAll(dir); unix.Close(fd) }, nil
}

// lockDir locks a directory that is still where it was made.
func lockDir(dir string) (fd int, err error) {
	if fd, err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return -1, err
	}
	var ours, now unix.Stat_t
	err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = errors.Join(unix.Fstat(fd, &ours), unix.Lstat(dir, &now))
	}
	if err == nil && (ours.Dev != now.Dev || ours.Ino != now.Ino) {
		err = fs.ErrNotExist
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// sweepPool removes what makers of bottles left that were killed.
func (c *Client) sweepPool() error {
	dirs, err := store.Glob(filepath.Join(c.StateDir(), poolDir), "r*")
	errs := []error{err}
	for _, dir := range dirs {
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
			errs = append(errs, removeTree(dir))
		}
		unix.Close(fd)
	}
	return errors.Join(errs...)
}

// Done is closed when the bottle is gone.
func (r *Ready) Done() <-chan struct{} { return r.bottle.Done() }

// Posture is what was verified of the bottle.
func (r *Ready) Posture() bottle.Posture { return r.bottle.Posture() }

// Workspace is the directory that the bottle shows; empty: none.
func (r *Ready) Workspace() string { return r.plan.target }

// Usage is what the bottle holds at this moment.
func (r *Ready) Usage() (bottle.Usage, error) { return r.bottle.Usage() }

// Close destroys the bottle, unless a run has taken it.
func (r *Ready) Close() error {
	if v := r.take(); v != nil {
		v.close()
	}
	return nil
}

// Stale says why no run can ever take the bottle any more.
func (r *Ready) Stale() error {
	p := r.plan
	if p.target == "" {
		return nil
	}
	ws, err := store.ResolveWorkspace(p.source)
	if err != nil || ws != p.ws {
		return fmt.Errorf("%w: the workspace is gone", ErrUnfit)
	}
	return nil
}

// Fits says whether a run with o would get just such a bottle now: it makes the
// same plan again, from the options and from the machine as they are, and
// compares all of it. It also takes in what the user has configured meanwhile.
func (r *Ready) Fits(o *RunOptions) error {
	conf, err := openConfig(r.c.opened)
	if err != nil {
		return err
	}
	dir, err := store.StateDir(r.c.env)
	var state store.Workspace
	if err == nil {
		state, err = store.ResolveWorkspace(dir)
	}
	if err != nil || dir != r.c.StateDir() || state != r.state {
		return errors.Join(fmt.Errorf("%w: another state directory", ErrUnfit), err)
	}
	p, err := r.c.newPlan(o)
	if err != nil {
		return err
	}
	p.compared = true
	if err := p.look(); err != nil {
		return err
	}
	if what := r.differs(o, p); what != "" {
		return fmt.Errorf("%w: another %s", ErrUnfit, what)
	}
	select {
	case <-r.Done():
		return fmt.Errorf("%w: it is gone", ErrUnfit)
	default:
	}
	r.conf = conf
	return nil
}

// differs names the first thing in which the bottle is not what now asks for.
func (r *Ready) differs(o *RunOptions, now *plan) string {
	had := r.plan
	switch {
	case now.mode != had.mode:
		return "mode"
	case now.ws != had.ws, now.target != had.target:
		return "workspace"
	case o.Limits != r.asked.Limits:
		return "limit"
	case now.rootfs != had.rootfs, !reflect.DeepEqual(now.root, had.root):
		return "root file system"
	case !reflect.DeepEqual(now.mounts, had.mounts):
		return "mount"
	case !reflect.DeepEqual(now.routes, had.routes):
		return "route"
	case now.net != had.net:
		return "network"
	case !slices.Equal(now.table, had.table):
		return "set of the host's mounts"
	}
	// Root's bottles get an id that nobody has, another one each time.
	mine := now.id
	if mine.stray && had.id.stray {
		mine.hostUID, mine.hostGID = had.id.hostUID, had.id.hostGID
	}
	if mine != had.id {
		return "user"
	}
	// The default for the disk follows what is free; there must be room for
	// what the bottle was given.
	limits, then := now.limits, had.limits
	if limits.Disk*2 < then.Disk {
		return "amount of free disk"
	}
	limits.Disk, then.Disk, limits.FileSize, then.FileSize = 0, 0, 0, 0
	if limits != then {
		return "limit"
	}
	return ""
}

// take gives the vessel away, once; then nil.
func (r *Ready) take() *vessel { return r.v.Swap(nil) }

// hostMounts are the host's mounts as far as they concern the directories that
// the plan shows: a bottle keeps those that it was made with.
func (p *plan) hostMounts() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	shown := []string{p.target}
	for _, m := range append(append([]bottle.Mount(nil), p.mounts...), p.root.Binds...) {
		shown = append(shown, m.Source)
	}
	if p.root.Dir != "" {
		shown = append(shown, realPath(p.root.Dir))
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		// proc(5): id, parent, device, root, mount point, options, …
		f := strings.Fields(line)
		if len(f) < 6 {
			continue
		}
		at := unescapeMount(f[4])
		for _, s := range shown {
			if s != "" && (within(at, s) || within(s, at)) {
				out = append(out, strings.TrimSpace(line))
				break
			}
		}
	}
	return out, nil
}

// within reports whether path is dir or below it.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

var mountEscapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func unescapeMount(s string) string { return mountEscapes.Replace(s) }

// PoolKey names what bottle o asks for, cheaply and without looking at most of
// it: who asks, with which binary, from which place on this machine, with which
// options. Equal keys mean that asking Ready.Fits is worth it, no more.
func PoolKey(o *RunOptions, env func(string) string, config string) (string, error) {
	state, err := store.StateDir(env)
	if err != nil {
		return "", err
	}
	parts := []string{Version(), state, config, string(o.Mode), o.RootFS}
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/exe", &st); err != nil {
		return "", err
	}
	parts = append(parts, fmt.Sprint(st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()))
	dir := o.Workspace
	if dir == "" {
		dir = "."
	}
	if o.Mode != store.None {
		if err := unix.Stat(dir, &st); err != nil {
			return "", err
		}
		parts = append(parts, fmt.Sprint(st.Dev, st.Ino, st.Uid, st.Gid))
	}
	wd, err := unix.Getwd() // not os.Getwd, which believes $PWD
	if err != nil {
		return "", err
	}
	parts = append(parts, wd, o.Workspace, fmt.Sprintf("%+v", o.Limits))
	for _, l := range [][]string{o.Allow, o.AllowPrivate, o.Mounts} {
		parts = append(parts, strconv.Itoa(len(l)))
		parts = append(parts, l...)
	}
	place, err := hostPlace()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, p := range append(parts, place...) {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// hostPlace is where on the host this process stands: what its children inherit
// and what decides what they can reach and use. It is there so that a bottle from
// elsewhere is not taken by mistake. It is no barrier between processes of one
// user, who can tell each other what they like; and a process's Landlock domain
// cannot be asked for at all.
func hostPlace() ([]string, error) {
	out := []string{fmt.Sprint(os.Geteuid(), os.Getegid())}
	groups, err := os.Getgroups()
	if err != nil {
		return nil, err
	}
	out = append(out, fmt.Sprint(groups))
	var root unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, "/", 0, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &root); err != nil {
		return nil, err
	}
	out = append(out, fmt.Sprint(root.Dev_major, root.Dev_minor, root.Ino, root.Mnt_id))
	for _, ns := range []string{"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"} {
		l, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		out = append(out, l)
	}
	for _, f := range []string{"/proc/self/cgroup", "/proc/self/attr/current", "/proc/self/oom_score_adj"} {
		b, err := os.ReadFile(f)
		if err != nil {
			b = nil // no such thing in this kernel
		}
		out = append(out, string(b))
	}
	for _, which := range []int{unix.RLIMIT_NOFILE, unix.RLIMIT_FSIZE, unix.RLIMIT_AS, unix.RLIMIT_NPROC, unix.RLIMIT_CPU, unix.RLIMIT_DATA, unix.RLIMIT_MEMLOCK} {
		var r unix.Rlimit
		if err := unix.Getrlimit(which, &r); err != nil {
			return nil, err
		}
		if which == unix.RLIMIT_NOFILE {
			r.Cur = 0 // Go raises it, and so do we
		}
		out = append(out, fmt.Sprint(r.Cur, r.Max))
	}
	nice, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return nil, err
	}
	out = append(out, strconv.Itoa(nice))
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		return nil, err
	}
	return append(out, fmt.Sprint(cpus), seccompOf()), nil
}

// seccompOf is what was taken from this process for good.
func seccompOf() string {
	b, _ := os.ReadFile("/proc/self/status")
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		for _, name := range []string{"NoNewPrivs:", "Seccomp:", "Seccomp_filters:", "CapEff:", "CapBnd:"} {
			if strings.HasPrefix(line, name) {
				out.WriteString(line)
			}
		}
	}
	return out.String()
}
