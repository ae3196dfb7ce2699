package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/guest/uppertar"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/wire"
)

// A member of the docker group is not root, and can have done by the Engine what root can. So
// what takes root's rights is done by a helper: carboy again, in a container of a moment that
// has these rights. It enters the bottle's namespaces, and hands out the descriptors of what
// it made there, on a socket in a directory of the user's. It opens no file by a name of the
// user's: the user's carboy does that, with the user's rights.

const (
	helperExe    = "/carboy-docker-helper" // where the helper sees carboy's program
	helperSocket = volumePath + "/s"
)

// helperCaps lists the capabilities that joining, mounting a root, giving files away and
// reading /proc take.
var helperCaps = []string{"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "MKNOD", "NET_ADMIN", "SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE"}

// order asks a helper for one of the parts.
type order struct {
	Join *joinOrder
	Look *watched
	Tar  []string // the places of layers, whose directories come along, and the stream's end
	Plan plan     // of Join and Look
}

// joinOrder asks for what a thread in a container's namespaces makes.
type joinOrder struct {
	How how
	PID int
	ID  string // the container's
}

// how says what is entered.
type how string

const (
	joinWhole   how = "whole"   // network and files
	joinNetwork how = "network" // the network that gVisor will take over
	joinGofer   how = "gofer"   // its gofer's files
)

// plan is the part of a Spec that a helper needs. Each path of the host is the number of a
// descriptor that comes along.
type plan struct {
	Root      bottle.Root
	Workspace *bottle.Mount
	Mounts    []bottle.Mount
	User      bottle.User
	Limits    bottle.Limits
	Net       wire.Config
	Wired     bool
	Upper     bool // the last descriptor
	Kernel    bool
}

// answer holds a helper's reply. Descriptors come along in the order of the parts.
type answer struct {
	Error       string
	Posture     *bottle.PostureError
	Unavailable *bottle.UnavailableError

	Stream, TUN bool
	Layers      []answerLayer
	Processes   []bottle.ProcPosture
}

type answerLayer struct {
	At        string
	Workspace bool
}

// err returns the error that the helper reports.
func (a *answer) err() error {
	switch {
	case a.Posture != nil:
		return a.Posture
	case a.Unavailable != nil:
		return a.Unavailable
	case a.Error != "":
		return errors.New(safetext.String(a.Error, 1000))
	}
	return nil
}

// hand opens what the spec names, as the user, for a helper.
func hand(spec *bottle.Spec, kernel bool) (p plan, files []*os.File, err error) {
	p = plan{
		Root: spec.Root, Mounts: append([]bottle.Mount{}, spec.Mounts...), User: spec.User, Limits: spec.Limits,
		Net: spec.Net, Wired: spec.Wire != nil, Upper: spec.Upper != nil, Kernel: kernel,
	}
	p.Root.Binds = append([]bottle.Mount{}, spec.Root.Binds...)
	open := func(path *string) {
		if *path == "" || err != nil {
			return
		}
		fd, oerr := unix.Open(*path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if oerr != nil {
			err = &os.PathError{Op: "open", Path: *path, Err: oerr}
			return
		}
		files = append(files, os.NewFile(uintptr(fd), *path))
		*path = fmt.Sprint(len(files) - 1)
	}
	open(&p.Root.Dir)
	if spec.Workspace != nil {
		w := *spec.Workspace
		p.Workspace = &w
		open(&w.Source)
	}
	for _, list := range [][]bottle.Mount{p.Root.Binds, p.Mounts} {
		for i := range list {
			open(&list[i].Source)
		}
	}
	for _, m := range append(append([]bottle.Mount{}, p.Root.Binds...), p.Mounts...) {
		if m.Tree != nil {
			err = errors.Join(err, errors.New("docker: a detached mount can be given to a bottle by root alone"))
		}
	}
	if err == nil && spec.Upper != nil {
		var f *os.File
		if f, err = duplicate(spec.Upper); err == nil {
			files = append(files, f)
		}
	}
	if err != nil {
		closeAll(files)
		return p, nil, err
	}
	return p, files, nil
}

// spec returns what hand took apart.
func (p *plan) spec(files []*os.File) (*bottle.Spec, error) {
	bad := false
	name := func(path *string) {
		var n int
		if *path == "" {
			return
		}
		if _, err := fmt.Sscan(*path, &n); err != nil || n < 0 || n >= len(files) {
			bad = true
			return
		}
		*path = fmt.Sprintf("/proc/self/fd/%d", files[n].Fd())
	}
	name(&p.Root.Dir)
	if p.Workspace != nil {
		name(&p.Workspace.Source)
	}
	for _, list := range [][]bottle.Mount{p.Root.Binds, p.Mounts} {
		for i := range list {
			name(&list[i].Source)
		}
	}
	s := &bottle.Spec{Root: p.Root, Workspace: p.Workspace, Mounts: p.Mounts, User: p.User, Limits: p.Limits, Net: p.Net}
	if p.Upper && len(files) > 0 {
		s.Upper = files[len(files)-1]
	}
	if bad || p.Upper && s.Upper == nil {
		return nil, errors.New("a descriptor is missing")
	}
	return s, nil
}

// Main takes the process over if it was started as a helper, and then does not return.
func Main() {
	if os.Args[0] != helperExe {
		return
	}
	if err := help(); err != nil {
		fmt.Fprintln(os.Stderr, "carboy helper:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// help does what the user's carboy asks for.
func help() error {
	c, err := net.Dial("unix", helperSocket)
	if err != nil {
		return err
	}
	defer c.Close()
	conn := c.(*net.UnixConn)
	user, err := peer(conn)
	if err != nil {
		return err
	}
	var o order
	files, err := receive(conn, &o)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go locked(func() {
		var a answer
		made, err := o.perform(&a, user, files)
		if err != nil {
			a = answer{Error: err.Error()}
			if !errors.As(err, &a.Posture) && errors.As(err, &a.Unavailable) {
				a.Unavailable.Err = nil
			}
		}
		done <- send(conn, &a, made)
	})
	return <-done
}

// peer returns who is at the other end.
func peer(c *net.UnixConn) (cred *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(cerr, err)
}

// perform does it, on a thread of its own, and returns descriptors.
func (o *order) perform(a *answer, user *unix.Ucred, files []*os.File) (made []*os.File, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), beginPatience)
	defer cancel()
	switch {
	case o.Tar != nil:
		return nil, writeTar(o.Tar, files)
	case o.Look != nil:
		// The runtime's program is where the user's carboy and the Engine see it.
		if err = errors.Join(ownView(), enterUsers(int(user.Pid))); err == nil {
			a.Processes, err = o.Look.look(&o.Plan, int(user.Pid))
		}
		return nil, err
	case o.Join == nil:
		return nil, errors.New("nothing is asked for")
	case o.Plan.User.UID != user.Uid:
		return nil, errors.New("a bottle of another user's")
	}
	spec, err := o.Plan.spec(files)
	if err != nil {
		return nil, err
	}
	pid, err := openProcess(o.Join.PID, o.Join.ID)
	if err != nil {
		return nil, err
	}
	defer pid.fd.Close()
	var t *trees
	if o.Join.How != joinNetwork {
		// A tree can be cloned where it is mounted alone.
		if err := errors.Join(ownView(), enterUsers(int(user.Pid))); err != nil {
			return nil, err
		}
		if t, err = openTrees(spec, asked{kernel: o.Plan.Kernel, member: true}); err != nil {
			return nil, err
		}
		defer t.close()
	}
	j, err := join(func(j *joined) error { return j.by(ctx, o.Join.How, pid, spec, t, o.Plan.Wired) })
	if err != nil {
		return nil, err
	}
	a.Stream, a.TUN = j.stream != nil, j.tun != nil
	for _, f := range []*os.File{j.stream, j.tun} {
		if f != nil {
			made = append(made, f)
		}
	}
	for _, l := range j.layers {
		a.Layers = append(a.Layers, answerLayer{l.at, l.workspace})
		made = append(made, l.dir)
	}
	return made, nil
}

// by does one of the ways to join.
func (j *joined) by(ctx context.Context, h how, pid *process, spec *bottle.Spec, t *trees, wired bool) error {
	switch h {
	case joinNetwork:
		return j.enterNetwork(ctx, pid, spec, wired, true)
	case joinGofer:
		return j.enterGofer(ctx, pid, spec, t)
	}
	return j.enter(ctx, pid, spec, t, wired)
}

// enterUsers makes the files of the user's carboy, process pid, those of this thread.
func enterUsers(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	p := &process{pid, os.NewFile(uintptr(fd), "pidfd")}
	defer p.fd.Close()
	return enterMounts(p)
}

// joinAs joins as root, or has a helper do so.
func (x *box) joinAs(ctx context.Context, h how, pid *process, id string, spec *bottle.Spec, t *trees) (*joined, error) {
	if !x.engine.helps {
		return join(func(j *joined) error { return j.by(ctx, h, pid, spec, t, spec.Wire != nil) })
	}
	p, files, err := hand(spec, x.engine.kernel.name != "")
	if err != nil {
		return nil, err
	}
	defer closeAll(files)
	a, made, err := x.engine.ask(ctx, &order{Join: &joinOrder{h, pid.pid, id}, Plan: p}, files)
	if err != nil {
		return nil, err
	}
	return a.take(made)
}

// look reads and judges the bottle's processes as root, or has a helper do so.
func (x *box) look(ctx context.Context, spec *bottle.Spec) ([]bottle.ProcPosture, error) {
	w := &watched{First: seen{x.pid.pid, x.id}}
	if x.network != nil {
		w.First = seen{x.network.pid, x.networkID}
		w.Kernel, w.Gofer = &seen{x.pid.pid, x.id}, &seen{x.gofer.pid, x.id}
	}
	if k := x.engine.kernel; k.ours() {
		w.Program = k.path
	}
	p := plan{User: spec.User, Wired: spec.Wire != nil}
	if !x.engine.helps {
		return w.look(&p, os.Getpid())
	}
	a, made, err := x.engine.ask(ctx, &order{Look: w, Plan: p}, nil)
	closeAll(made)
	if err != nil {
		return nil, err
	}
	return a.Processes, nil
}

// writeTar packs layers: the last of the files is where to.
func writeTar(at []string, files []*os.File) error {
	if len(files) != len(at)+1 {
		return errors.New("a descriptor is missing")
	}
	w := files[len(at)]
	t := uppertar.NewWriter(w)
	for i, a := range at {
		if err := t.Layer(int(files[i].Fd()), strings.Trim(a, "/")); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), w.Close())
}

// ask has a helper do what is in the order.
func (e *engine) ask(ctx context.Context, o *order, files []*os.File) (a *answer, made []*os.File, err error) {
	dir, err := os.MkdirTemp("", "carboy-") // short: the paths of sockets are bounded
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/s", Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	id, err := e.startHelper(ctx, dir)
	if id != "" {
		defer func() {
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), endPatience)
			defer cancel()
			err = errors.Join(err, e.remove(late, id, false))
		}()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("start carboy's helper: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the helper or with this call
		_ = e.call(ctx, http.MethodPost, container(id, "/wait"), nil, nil, nil)
		_ = l.SetDeadline(time.Unix(1, 0))
	}()
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, nil, errors.Join(ctx.Err(), errors.New("carboy's helper ended without a word: the Engine may not see this carboy's program"))
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if who, err := peer(conn); err != nil || who.Uid != 0 {
		return nil, nil, errors.Join(err, errors.New("carboy's helper is not root"))
	}
	if err := send(conn, o, files); err != nil {
		return nil, nil, err
	}
	a = &answer{}
	if made, err = receive(conn, a); err == nil {
		err = a.err()
	}
	if err != nil {
		closeAll(made)
		return nil, nil, fmt.Errorf("carboy's helper: %w", err)
	}
	return a, made, nil
}

// startHelper starts the container of a helper that finds its socket in dir.
func (e *engine) startHelper(ctx context.Context, dir string) (id string, err error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	image, err := e.guestImage(ctx)
	if err != nil {
		return "", err
	}
	c := &containerConfig{
		Image: image, Entrypoint: []string{helperExe}, Cmd: []string{}, User: "0:0", WorkingDir: "/", NetworkDisabled: true,
		Labels: map[string]string{labelBottle: "helper", labelOwner: owner(), labelPIDs: pidNamespace()},
	}
	c.Healthcheck.Test = []string{"NONE"}
	h := &c.HostConfig
	h.NetworkMode, h.PidMode, h.Runtime, h.ReadonlyRootfs, h.AutoRemove = "none", "host", runtimeName, true, true
	h.CapDrop, h.CapAdd = []string{"ALL"}, helperCaps
	h.SecurityOpt = []string{"seccomp=unconfined", "apparmor=unconfined", "label=disable"}
	h.MaskedPaths, h.ReadonlyPaths = &[]string{}, &[]string{} // it sets up a network by /proc/sys
	h.Devices = []any{map[string]string{"PathOnHost": tunDevice, "PathInContainer": tunDevice, "CgroupPermissions": "rw"}}
	h.Init = new(bool)
	h.LogConfig.Type = "none"
	h.Binds = []string{exe + ":" + helperExe + ":ro", dir + ":" + volumePath}
	if id, err = e.create(ctx, c); err != nil {
		return id, err
	}
	return id, e.call(ctx, http.MethodPost, container(id, "/start"), nil, nil, nil)
}

// take returns what a helper made as joined.
func (a *answer) take(made []*os.File) (*joined, error) {
	j := &joined{}
	next := func() (f *os.File) {
		if len(made) > 0 {
			f, made = made[0], made[1:]
		}
		return f
	}
	if a.Stream {
		j.stream = next()
	}
	if a.TUN {
		j.tun = next()
	}
	for _, l := range a.Layers {
		if f := next(); f != nil {
			j.layers = append(j.layers, layer{f, l.At, l.Workspace})
		}
	}
	closeAll(made)
	if a.Stream && j.stream == nil || a.TUN && j.tun == nil || len(j.layers) != len(a.Layers) {
		j.close()
		return nil, errors.New("carboy's helper kept a descriptor")
	}
	return j, nil
}

// tarByHelper has a helper pack layers.
func (x *box) tarByHelper(ctx context.Context, w io.Writer, layers []layer) error {
	r, pw, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	o := &order{Tar: []string{}}
	var files []*os.File
	for _, l := range layers {
		o.Tar, files = append(o.Tar, l.at), append(files, l.dir)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { // ends with the helper
		_, _, err := x.engine.ask(ctx, o, append(files, pw))
		pw.Close()
		done <- err
	}()
	_, err = io.Copy(w, r)
	if err != nil {
		cancel()
	}
	return errors.Join(err, <-done)
}
