package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/guest/agent"
	"github.com/carboy/carboy/internal/guest/rtnet"
	"github.com/carboy/carboy/internal/wire"
)

// The container starts with the guest program alone, which waits for a connection and has
// neither network nor files. A thread of carboy then joins the container's namespaces and
// puts both in. So the container never has a right to make them itself, the Engine mounts
// nothing of the host, and everything ends with the container.

// tunDevice makes network cards.
const tunDevice = "/dev/net/tun"

// cardName names the bottle's network card, as in every bottle.
const cardName = "eth0"

// locked runs f on a thread of its own, which ends with f: what f did to the thread cannot
// be undone. Call it as a goroutine. The process's first thread never ends, and /proc/self
// is its view, so it is never used.
func locked(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f()
		return
	}
	elsewhere := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		close(elsewhere)
		f()
	}()
	<-elsewhere // this goroutine keeps the first thread until then
	runtime.UnlockOSThread()
}

// joined holds what a thread in the container's namespaces brought back.
type joined struct {
	stream *os.File // to the guest program
	tun    *os.File // the other end of the card; nil without a wire
	layers []layer
}

func (j *joined) close() {
	for _, f := range []*os.File{j.stream, j.tun} {
		if f != nil {
			f.Close()
		}
	}
	for _, l := range j.layers {
		l.dir.Close()
	}
}

// layer is the upper directory of one overlay of the bottle.
type layer struct {
	dir *os.File
	at  string // inside
	// workspace is true for that of the workspace.
	workspace bool
}

// join runs f on a thread of its own, which may enter namespaces, and returns what it brought
// back.
func join(f func(*joined) error) (*joined, error) {
	type result struct {
		j   *joined
		err error
	}
	got := make(chan result, 1)
	go locked(func() {
		j := &joined{}
		err := ownView()
		if err == nil {
			err = f(j)
		}
		if err != nil {
			j.close()
			j = nil
		}
		got <- result{j, err}
	})
	r := <-got
	return r.j, r.err
}

// ownView gives this thread a root, working directory and umask of its own: one that shares
// them can't change namespaces, and the caller's umask may be private.
func ownView() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	unix.Umask(0o022)
	return nil
}

// enter puts network and files into a container that has started.
func (j *joined) enter(ctx context.Context, pid *process, spec *bottle.Spec, t *trees, wired bool) (err error) {
	if err := j.enterNetwork(ctx, pid, spec, wired, false); err != nil {
		return err
	}
	if err := enterMounts(pid); err != nil {
		return err
	}
	j.layers, err = buildRoot(ctx, spec, t, true)
	return err
}

// enterNetwork makes the bottle's card in the container's network, and connects to the guest
// program there. kernel says that gVisor will take the card over.
func (j *joined) enterNetwork(ctx context.Context, pid *process, spec *bottle.Spec, wired, kernel bool) (err error) {
	net, err := pid.open("ns/net")
	if err != nil {
		return err
	}
	defer net.Close()
	if err := unix.Setns(int(net.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("join the container's network: %w", err)
	}
	if wired {
		if j.tun, err = makeCard(spec.Net); err != nil {
			return err
		}
		if kernel {
			if err := noSegments(cardName); err != nil {
				return fmt.Errorf("set up the bottle's network card: %w", err)
			}
		}
	}
	j.stream, err = dialGuest(ctx, pid)
	return err
}

// enterMounts makes the process's files those of this thread.
func enterMounts(pid *process) error {
	mnt, err := pid.open("ns/mnt")
	if err != nil {
		return err
	}
	defer mnt.Close()
	if err := unix.Setns(int(mnt.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("join the container's files: %w", err)
	}
	return nil
}

// makeCard makes a TUN device in this thread's network namespace. Its descriptor carries
// IP packets, and the device ends with it.
func makeCard(cfg wire.Config) (*os.File, error) {
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &bottle.UnavailableError{Backend: name, Reason: "there is no TUN device", Err: err, Advice: "as root: modprobe tun"}
	}
	r, err := unix.NewIfreq(cardName)
	if err == nil {
		r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
	}
	if err == nil {
		err = rtnet.Configure(cardName, cfg.MTU, []string{cfg.Bottle4.String(), cfg.Bottle6.String()}, []string{cfg.Gateway4.String(), cfg.Gateway6.String()})
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("make the bottle's network card: %w", err)
	}
	return os.NewFile(uintptr(fd), "tun"), nil
}

// beginPatience bounds the wait until the guest program listens, and that until it answers;
// both take a moment.
const beginPatience = 2 * time.Minute

// dialGuest connects to the guest program, which may not listen yet.
func dialGuest(ctx context.Context, pid *process) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, beginPatience)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if err = unix.Connect(fd, &unix.SockaddrUnix{Name: agent.Socket}); err != unix.ECONNREFUSED && err != unix.EINTR {
			break
		}
		if err = errors.Join(ctx.Err(), pid.alive()); err != nil {
			break
		}
		time.Sleep(pause)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("reach the guest program: %w", err)
	}
	return os.NewFile(uintptr(fd), "guest"), nil
}

// await blocks until the process has ended.
func (p *process) await(patience time.Duration) error {
	polls := []unix.PollFd{{Fd: int32(p.fd.Fd()), Events: unix.POLLIN}}
	for end := time.Now().Add(patience); ; {
		n, err := unix.Poll(polls, int(max(time.Until(end), 0).Milliseconds()))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n > 0:
			return nil
		default:
			return fmt.Errorf("process %d of the container has not ended, %v after it was killed", p.pid, patience)
		}
	}
}

// process is the first process of a container, held by a descriptor: its number can become
// another's.
type process struct {
	pid int
	fd  *os.File // pidfd
}

// openProcess returns the process with the number that the Engine names, if it is in a
// cgroup of that container. The number is one of the Engine's PID namespace: where the
// Engine is in a virtual machine or behind a tunnel, it is any process of this machine,
// in whose namespaces nothing may be changed.
func openProcess(pid int, id string) (*process, error) {
	if pid <= 1 || len(id) < 32 {
		return nil, errors.New("docker: the container has no process")
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return nil, elsewhere(pid)
	}
	if err != nil {
		return nil, fmt.Errorf("the container's first process: %w", err)
	}
	p := &process{pid, os.NewFile(uintptr(fd), "pidfd")}
	groups, err := p.read("cgroup")
	if err == nil && !strings.Contains(groups, id) {
		err = elsewhere(pid)
	}
	if err != nil {
		p.fd.Close()
		return nil, err
	}
	return p, nil
}

func elsewhere(pid int) error {
	return &bottle.UnavailableError{
		Backend: name, Reason: fmt.Sprintf("the container's process %d is none of this machine, or ended at once", pid),
		Advice: "use an Engine that runs on this machine itself, and not in a virtual machine (as Docker Desktop's does), in a container or behind a tunnel",
	}
}

// path returns a name below the process's entry in /proc.
func (p *process) path(name string) string { return fmt.Sprintf("/proc/%d/%s", p.pid, name) }

// alive returns an error if the process has ended.
func (p *process) alive() error {
	if err := unix.PidfdSendSignal(int(p.fd.Fd()), 0, nil, 0); err != nil && err != unix.EPERM { // of another user's
		return fmt.Errorf("the container's first process: %w", err)
	}
	return nil
}

// open opens a file of the process, and not of one that got its number.
func (p *process) open(name string) (*os.File, error) {
	f, err := os.Open(p.path(name))
	if err != nil {
		return nil, err
	}
	if err := p.alive(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// read reads a file of the process.
func (p *process) read(name string) (string, error) {
	b, err := os.ReadFile(p.path(name))
	if err != nil {
		return "", err
	}
	return string(b), p.alive()
}
