package smolmachines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/guest"
	"github.com/carboy/carboy/internal/guest/proto"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/loopback"
	"github.com/carboy/carboy/internal/smolstate"
)

const endIn = time.Minute // for each of stop and delete

// box is a live bottle, or one that is being made.
type box struct {
	host     *host
	spec     *bottle.Spec
	runner   *hostexec.Runner
	database string
	machine  string // its name
	volumes  []volume
	files    *files
	posture  bottle.Posture
	copies   bottle.WholeCopies

	// What Close ends; nil: not there.
	lease  *loopback.Lease
	proxy  *net.TCPListener
	vm     *hostexec.Session // smolvm's process of the machine
	exec   *hostexec.Session // the guest program
	guest  *guest.Client
	wire   *os.File
	served sync.WaitGroup

	once sync.Once
	done chan struct{}
}

var _ bottle.Bottle = (*box)(nil)

// Posture implements bottle.Bottle.
func (x *box) Posture() bottle.Posture { return x.posture }

// Done implements bottle.Bottle.
func (x *box) Done() <-chan struct{} { return x.done }

// reap ends the bottle when the machine or the guest program ends.
func (x *box) reap() {
	select {
	case <-x.guest.Done():
	case <-x.vm.Done():
	case <-x.exec.Done():
	case <-x.done:
	}
	_ = x.Close()
}

// Close implements bottle.Bottle. What smolvm does not do is a warning: the machine's
// processes are killed whatever it says.
func (x *box) Close() error {
	x.once.Do(func() {
		defer close(x.done)
		if x.guest != nil {
			_ = x.guest.Close()
		}
		if x.exec != nil {
			_ = x.exec.Close()
		}
		deleted, ended := x.endMachine()
		if x.proxy != nil {
			_ = x.proxy.Close()
		}
		if x.wire != nil {
			_ = x.wire.Close() // the gateway ends
		}
		x.served.Wait()
		x.giveBack(deleted, ended)
	})
	<-x.done
	return nil
}

// giveBack gives the bottle's address back. One that a machine may still reach is nobody
// else's, and one whose machine is not deleted is left for the next bottle to clear.
func (x *box) giveBack(deleted, ended bool) {
	var err error
	switch {
	case x.lease == nil || !ended:
	case deleted:
		err = x.lease.Close()
	default:
		err = x.lease.Leave()
	}
	if err != nil {
		slog.Warn("smolmachines: the bottle's address is not given back", "error", err)
	}
}

// endMachine stops and deletes the machine. It reports whether smolvm has it no more, and
// whether none of its processes is left.
func (x *box) endMachine() (deleted, ended bool) {
	if x.runner == nil || x.machine == "" {
		return true, true
	}
	err := x.remove(context.Background(), x.machine)
	if err != nil {
		slog.Warn("smolmachines: the machine is not deleted; carboy tries again when it makes the next bottle", "machine", x.machine, "error", err)
	}
	if x.vm != nil {
		if why := x.vm.Close(); why != nil {
			slog.Warn("smolmachines: the machine's processes can't be killed", "machine", x.machine, "error", why)
			return err == nil, false
		}
	}
	return err == nil, true
}

// remove stops and deletes a machine, if smolvm knows it.
func (x *box) remove(ctx context.Context, machine string) error {
	has, err := smolstate.Has(ctx, x.database, machine)
	if err == nil && !has {
		return nil
	}
	_, stopErr := x.smolvm(ctx, endIn, "stop", "--name", machine)
	_, delErr := x.smolvm(ctx, endIn, "delete", "--name", machine, "-f")
	if delErr != nil {
		return errors.Join(err, stopErr, delErr)
	}
	if has, err = smolstate.Has(ctx, x.database, machine); err != nil || has {
		return errors.Join(fmt.Errorf("smolvm still has the machine %s", machine), err)
	}
	return nil
}

// clear ends what a carboy that is gone has left at an address.
func (x *box) clear(ctx context.Context, machine string) error {
	if !strings.HasPrefix(machine, "carboy-") {
		return fmt.Errorf("%q is no machine of carboy's", machine)
	}
	return x.remove(ctx, machine)
}

// readPosture reads the process that runs the machine.
func (x *box) readPosture(ctx context.Context) error {
	m, err := smolstate.Read(ctx, x.database, x.machine)
	if err != nil {
		return err
	}
	if err := x.checkMachine(m); err != nil {
		return &bottle.PostureError{Role: "smolvm", Reason: "the machine's description changed when it started: " + err.Error()}
	}
	p, err := readProcess(m.PID)
	if err != nil {
		return &bottle.PostureError{Role: "smolvm", Reason: fmt.Sprintf("process %d of the machine can't be read: %v", m.PID, err)}
	}
	if p.UID != os.Geteuid() || !p.NoNewPrivs {
		return &bottle.PostureError{Role: "smolvm", Reason: fmt.Sprintf("process %d runs as user %d, no_new_privs %t", p.PID, p.UID, p.NoNewPrivs)}
	}
	x.posture = bottle.Posture{
		Isolation: Backend{}.Isolation(), Backend: name, Build: Backend{}.Build(), Facts: bottle.FactsNone, Processes: []bottle.ProcPosture{p},
	}
	return nil
}

// readProcess reads a process as proc_pid_status(5) has it.
func readProcess(pid int) (bottle.ProcPosture, error) {
	p := bottle.ProcPosture{Role: "smolvm", PID: pid}
	if pid <= 0 {
		return p, errors.New("smolvm names none")
	}
	dir := "/proc/" + strconv.Itoa(pid)
	b, err := os.ReadFile(dir + "/status")
	if err != nil {
		return p, err
	}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		if len(fields) == 0 {
			continue
		}
		switch key {
		case "Uid":
			p.UID, err = strconv.Atoi(fields[0])
		case "Seccomp":
			p.Seccomp, err = strconv.Atoi(fields[0])
		case "NoNewPrivs":
			p.NoNewPrivs = fields[0] == "1"
		case "CapEff":
			p.CapEff, err = strconv.ParseUint(fields[0], 16, 64)
		case "CapBnd":
			p.CapBnd, err = strconv.ParseUint(fields[0], 16, 64)
		}
		if err != nil {
			return p, err
		}
	}
	for _, kind := range []string{"cgroup", "ipc", "mnt", "net", "pid", "user", "uts"} {
		own, err1 := os.Readlink("/proc/self/ns/" + kind)
		its, err2 := os.Readlink(dir + "/ns/" + kind)
		if err1 == nil && err2 == nil && own != its {
			p.Namespaces = append(p.Namespaces, kind)
		}
	}
	return p, nil
}

// Start implements bottle.Bottle. The command is told of the proxy.
func (x *box) Start(ctx context.Context, c *bottle.Command) (bottle.Process, error) {
	with := *c
	with.Env = x.proxied(c.Env)
	p, err := x.guest.Start(ctx, &with)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Args[0], err)
	}
	return p, nil
}

// proxied adds the variables by which programs find the proxy, unless the environment has
// one of them.
func (x *box) proxied(env []string) []string {
	if x.spec.Wire == nil {
		return env
	}
	addr := net.JoinHostPort(x.lease.Addr.String(), strconv.Itoa(proxyPort))
	out := slices.Clone(env)
	for _, v := range [][2]string{
		{"http_proxy", "http://" + addr}, {"https_proxy", "http://" + addr}, {"all_proxy", "socks5h://" + addr},
		{"no_proxy", "localhost,127.0.0.1,::1," + x.lease.Addr.String()},
	} {
		upper := strings.ToUpper(v[0])
		if slices.ContainsFunc(env, func(e string) bool {
			return strings.HasPrefix(e, v[0]+"=") || strings.HasPrefix(e, upper+"=")
		}) {
			continue
		}
		out = append(out, v[0]+"="+v[1], upper+"="+v[1])
	}
	return out
}

// Pause implements bottle.Bottle.
func (x *box) Pause(ctx context.Context) error { return x.guest.Freeze(ctx) }

// Checkpoint implements bottle.Bottle.
func (x *box) Checkpoint(ctx context.Context, o bottle.CheckpointOptions, w io.Writer) (bottle.Checkpointed, error) {
	return x.copies.Checkpoint(ctx, x.guest.Freeze, x.guest.Thaw, x.ExportAll, o, w)
}

// Export implements bottle.Bottle. The stream comes from the machine as it is: whoever
// reads it trusts none of it.
func (x *box) Export(ctx context.Context, w io.Writer) error {
	var layers []proto.Layer
	if ws := x.spec.Workspace; ws != nil && ws.Access == bottle.AccessOverlay {
		layers = []proto.Layer{{Dir: upperDir, At: ws.Target}}
	}
	return x.guest.Export(ctx, layers, x.spec.Limits.Disk, w)
}

// ExportAll implements bottle.Bottle.
func (x *box) ExportAll(ctx context.Context, w io.Writer) error {
	return x.guest.Export(ctx, []proto.Layer{{Dir: upperDir, At: "/"}}, x.spec.Limits.Disk, w)
}

// Usage implements bottle.Bottle. What the bottle writes is in the machine's memory, beside
// what commands may use.
func (x *box) Usage() (bottle.Usage, error) { return x.guest.Usage(x.spec.Scratch != "") }

// Refusals implements bottle.Bottle.
func (x *box) Refusals(ctx context.Context) (bottle.Refusals, error) { return x.guest.Refusals(ctx) }
