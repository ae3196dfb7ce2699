package run

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
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/host"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/run/plan"
	"github.com/carboy/carboy/internal/store"
)

// Prepared is a bottle that was made ahead of its run: sealed, verified, with its
// gateway, and with nothing in it. It serves one run and ends with it; there is
// no way back into a Prepared, so that two runs never share one.
//
// What belongs to one run is made later, when it is asked for: its record, its start in
// the audit log, the workspace's baseline, variables, secrets, published ports. Of the
// workspace only the directory itself was opened.
type Prepared struct {
	c     *Runner
	asked plan.Options // what the bottle depends on, as it was asked for
	// Plan and bottle are those of v. They can be read after v was taken.
	Plan   *plan.Plan
	bottle bottle.Bottle
	v      atomic.Pointer[sandbox] // nil: taken
	state  store.Workspace         // the state directory
	conf   host.Config             // the user's, as it was when Fits was asked
}

// ErrUnfit means that a Prepared was made for other options than those given now.
var ErrUnfit = errors.New("the prepared bottle does not fit")

// poolDir is the directory, below the state, of bottles that have no run yet.
const poolDir = "pool"

// CanPrepare returns nil if bottles for o can be made ahead, or the reason why not.
func CanPrepare(o *plan.Options) error {
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
	if o.Grant != nil {
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
func (c *Runner) Prepare(ctx context.Context, o plan.Options) (*Prepared, error) {
	if err := CanPrepare(&o); err != nil {
		return nil, err
	}
	p, err := plan.New(c.Host, &o)
	if err != nil {
		return nil, err
	}
	p.Compared = true
	// A mount point inside the workspace is looked up when the bottle is made,
	// and what was looked up there is remembered.
	for _, m := range p.Mounts {
		if p.Target != "" && strings.HasPrefix(m.Target, p.Target+"/") {
			return nil, fmt.Errorf("%w: a mount lies in the workspace", ErrUnfit)
		}
	}
	if err := c.admit(ctx, p, c.Config.Floor()); err != nil {
		return nil, err
	}
	dir, drop, err := c.privateDir()
	if err != nil {
		return nil, err
	}
	defer drop()
	v, err := c.newSandbox(ctx, p, "b"+filepath.Base(dir), dir, nil, nil)
	if err != nil {
		return nil, err
	}
	// The bottle holds what it needs; nothing of it is left on disk to clean up.
	v.cleanup()
	v.cleanup = func() {}
	r := &Prepared{c: c, asked: o, Plan: v.plan, bottle: v.bottle}
	if r.state, err = store.ResolveWorkspace(c.StateDir()); err != nil {
		v.close()
		return nil, err
	}
	r.v.Store(v)
	return r, nil
}

// privateDir makes a directory below the state and locks it until it is closed.
func (c *Runner) privateDir() (dir string, drop func(), err error) {
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

// lockDir locks a directory. It fails if dir no longer names the directory that it locked.
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

// SweepPool removes the files of killed processes that had prepared bottles.
func (c *Runner) SweepPool() error {
	dirs, err := store.Glob(filepath.Join(c.StateDir(), poolDir), "r*")
	errs := []error{err}
	for _, dir := range dirs {
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
			errs = append(errs, fault.RemoveTree(dir))
		}
		unix.Close(fd)
	}
	return errors.Join(errs...)
}

// Done returns a channel that is closed when the bottle is gone.
func (r *Prepared) Done() <-chan struct{} { return r.bottle.Done() }

// Posture returns the verified properties of the bottle.
func (r *Prepared) Posture() bottle.Posture { return r.bottle.Posture() }

// Workspace returns the directory that the bottle shows; empty: none.
func (r *Prepared) Workspace() string { return r.Plan.Target }

// Usage returns what the bottle uses now.
func (r *Prepared) Usage() (bottle.Usage, error) { return r.bottle.Usage() }

// Run runs one command in the bottle and uses it up, as [Runner.Run] does in a bottle
// that it makes. The caller has asked Fits about the same options.
func (r *Prepared) Run(ctx context.Context, o plan.Options) (*receipt.Receipt, error) {
	return r.c.conduct(ctx, o, r)
}

// Close destroys the bottle, unless a run has taken it.
func (r *Prepared) Close() error {
	if v := r.take(); v != nil {
		v.close()
	}
	return nil
}

// Stale returns an error if no run can take the bottle any more.
func (r *Prepared) Stale() error {
	p := r.Plan
	if p.Target == "" {
		return nil
	}
	ws, err := store.ResolveWorkspace(p.Source)
	if err != nil || ws != p.Workspace {
		return fmt.Errorf("%w: the workspace is gone", ErrUnfit)
	}
	return nil
}

// Fits returns an error unless a run with o would now get a bottle that is the same. It
// makes the plan again, from the options, the machine and the user's configuration as
// they are now, and compares all of it.
func (r *Prepared) Fits(o *plan.Options) error {
	conf, err := host.OpenConfig(r.c.Opened)
	if err != nil {
		return err
	}
	dir, err := store.StateDir(r.c.Env)
	var state store.Workspace
	if err == nil {
		state, err = store.ResolveWorkspace(dir)
	}
	if err != nil || dir != r.c.StateDir() || state != r.state {
		return errors.Join(fmt.Errorf("%w: another state directory", ErrUnfit), err)
	}
	p, err := plan.New(r.c.Host, o)
	if err != nil {
		return err
	}
	p.Compared = true
	if err := p.Look(); err != nil {
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
func (r *Prepared) differs(o *plan.Options, now *plan.Plan) string {
	had := r.Plan
	switch {
	case now.Mode != had.Mode:
		return "mode"
	case now.Workspace != had.Workspace, now.Target != had.Target:
		return "workspace"
	case o.Limits != r.asked.Limits:
		return "limit"
	case now.Rootfs != had.Rootfs, !reflect.DeepEqual(now.Root, had.Root):
		return "root file system"
	case !reflect.DeepEqual(now.Mounts, had.Mounts):
		return "mount"
	case !reflect.DeepEqual(now.Routes, had.Routes):
		return "route"
	case now.Net != had.Net:
		return "network"
	case !slices.Equal(now.Table, had.Table):
		return "set of the host's mounts"
	}
	// Root's bottles get an id that nobody has, another one each time.
	mine := now.User
	if mine.Stray && had.User.Stray {
		mine.HostUID, mine.HostGID = had.User.HostUID, had.User.HostGID
	}
	if mine != had.User {
		return "user"
	}
	// The default for the disk follows what is free; there must be room for
	// what the bottle was given.
	limits, then := now.Limits, had.Limits
	if limits.Disk*2 < then.Disk {
		return "amount of free disk"
	}
	limits.Disk, then.Disk, limits.FileSize, then.FileSize = 0, 0, 0, 0
	if limits != then {
		return "limit"
	}
	return ""
}

// take returns the sandbox once, and nil from then on.
func (r *Prepared) take() *sandbox { return r.v.Swap(nil) }

// PoolKey returns a cheap key of the bottle that o asks for: of the user, the binary, the
// place on this machine and the options. Equal keys only mean that [Prepared.Fits] is
// worth a call.
func PoolKey(o *plan.Options, env func(string) string, config string) (string, error) {
	state, err := store.StateDir(env)
	if err != nil {
		return "", err
	}
	parts := []string{host.Version(), state, config, string(o.Mode), o.RootFS}
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

// hostPlace returns the properties of this process that its children inherit and that
// decide what they can reach and use. They keep a process from taking a bottle of another
// place by mistake. They are no barrier between processes of one user, who can pass each
// other anything; and the Landlock domain of a process can't be read at all.
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

// seccompOf returns this process's seccomp and capability restrictions.
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
