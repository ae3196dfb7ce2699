package smolmachines

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/guest"
	"github.com/carboy/carboy/internal/hostexec"
	"github.com/carboy/carboy/internal/loopback"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/smolstate"
)

const (
	// proxyPort is the port of the proxy on each bottle's address.
	proxyPort = 3128
	// gatewayOfVirtio is the address by which smolvm's other kind of network leads to
	// 127.0.0.1 of the host.
	gatewayOfVirtio = "100.96.0.1"

	createIn = 5 * time.Minute
	bootIn   = 5 * time.Minute
	execIn   = time.Minute
	// retryIn is the pause between two tries to reach a machine that boots.
	retryIn = 200 * time.Millisecond
	mib     = 1 << 20
	// ownMemory counts the MiB of the machine's kernel and the guest program.
	ownMemory = 256
)

// Create implements bottle.Backend.
func (b Backend) Create(ctx context.Context, spec *bottle.Spec) (bottle.Bottle, error) {
	x := &box{host: b.machine(), spec: spec, done: make(chan struct{})}
	keep := spec.Wire // the bottle's until it is closed
	defer func() {
		for _, f := range spec.Files() {
			if f != keep {
				_ = f.Close()
			}
		}
	}()
	x.wire = keep
	err := admit(spec)
	if err == nil {
		err = b.Check(ctx)
	}
	if err == nil {
		err = x.create(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, x.Close())
	}
	go x.reap()
	return x, nil
}

// admit refuses what this backend can't give.
func admit(spec *bottle.Spec) error {
	if err := spec.Limits.Validate(); err != nil {
		return err
	}
	refuse := func(reason, advice string) error {
		return &bottle.UnavailableError{Backend: name, Reason: reason, Advice: advice}
	}
	if spec.Thaw != nil {
		return refuse("frozen processes can't be restored", "resume without them: the files are kept")
	}
	if w := spec.Writable(); len(w) > 0 {
		return refuse("the bottle would write to "+w[0]+" on this machine, and a machine of smolvm has copies only", "use the workspace mode overlay or copy, or another backend")
	}
	if spec.Scratch != "" { // not used: what a bottle writes is in the machine
		if fi, err := os.Stat(spec.Scratch); err != nil || !fi.IsDir() {
			return fmt.Errorf("smolmachines: scratch %s is not a directory", spec.Scratch)
		}
	}
	if spec.Wire != nil && spec.Proxy == nil {
		return errors.New("smolmachines: a bottle with a network needs Spec.Proxy")
	}
	return nil
}

// create makes the machine, step by step. Whatever of it is there is Close's.
func (x *box) create(ctx context.Context) (err error) {
	if x.runner, err = x.newRunner(); err != nil {
		return err
	}
	if x.database, err = smolstate.Path(x.host.goos, x.host.getenv); err != nil {
		return err
	}
	if x.machine, err = machineName(x.spec.ID); err != nil {
		return err
	}
	state, err := x.host.stateDir()
	if err != nil {
		return err
	}
	pool := loopback.Open(filepath.Join(state, "addresses"), x.host.listeners, x.clear)
	if x.lease, err = pool.Take(ctx, x.machine); err != nil {
		return err
	}
	if x.files, err = gather(x.spec); err != nil {
		return err
	}
	defer x.files.close()
	program, err := x.host.guestProgram()
	if err != nil {
		return err
	}
	x.volumes = append([]volume{{program, filepath.Dir(hostexec.SmolvmGuest)}}, x.files.volumes...)
	for _, step := range []func(context.Context) error{x.serveProxy, x.define, x.start, x.confirm, x.connect, x.readPosture, x.setUp} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (x *box) newRunner() (*hostexec.Runner, error) {
	var o hostexec.Options
	if w := x.spec.Workspace; w != nil && w.Source != "" {
		o.Untrusted = []string{w.Source}
	}
	return hostexec.New(o)
}

// machineName returns a name for a machine that no other has.
func machineName(id string) (string, error) {
	tail := make([]byte, 4)
	if _, err := rand.Read(tail); err != nil {
		return "", err
	}
	plain := strings.Trim(strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(id)), "-")
	if len(plain) > 28 {
		plain = strings.Trim(plain[:28], "-")
	}
	if plain == "" {
		plain = "bottle"
	}
	return "carboy-" + plain + "-" + hex.EncodeToString(tail), nil
}

// smolvm runs the program to its end.
func (x *box) smolvm(ctx context.Context, within time.Duration, args ...string) (hostexec.Result, error) {
	res, err := x.runner.Run(ctx, hostexec.Command{Program: hostexec.Smolvm, Args: append([]string{"machine"}, args...), Dir: "/", Timeout: within})
	if err != nil {
		return res, fmt.Errorf("smolvm machine %s: %w", args[0], err)
	}
	return res, nil
}

// serveProxy serves the gateway at the bottle's address.
func (x *box) serveProxy(context.Context) error {
	if _, err := x.host.shared(); err != nil {
		return err
	}
	if x.spec.Wire == nil {
		return nil
	}
	l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(x.lease.Addr, proxyPort)))
	if err != nil {
		return fmt.Errorf("serve the bottle's proxy: %w", err)
	}
	x.proxy = l
	x.served.Go(func() { _ = x.spec.Proxy(ownConns{l, os.Geteuid()}) })
	return nil
}

// ownConns is a listener that takes connections of this user's processes only: who connects
// to a loopback address may be anybody on the machine.
type ownConns struct {
	*net.TCPListener
	uid int
}

// Accept implements net.Listener.
func (l ownConns) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return nil, err
		}
		here, there := c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
		if uid, found, err := loopback.OwnerOf(there, here); err == nil && found && uid == l.uid {
			return c, nil
		}
		_ = c.Close()
	}
}

// volume is a directory of the host that the machine has read-only.
type volume struct{ host, guest string }

// define makes the machine, and makes sure that it can reach its own address alone.
func (x *box) define(ctx context.Context) error {
	alias := x.lease.Addr
	memory := (x.spec.Limits.Memory+x.spec.Limits.Disk+x.files.size+mib-1)/mib + ownMemory
	args := []string{
		"create", "--name", x.machine, "--cpus", strconv.Itoa(min(x.spec.Limits.CPUs, runtime.NumCPU())), "--mem", strconv.FormatInt(memory, 10),
		"--allow-cidr", alias.String() + "/32", "--dns", alias.String(),
	}
	for _, v := range x.volumes {
		args = append(args, "-v", v.host+":"+v.guest+":ro")
	}
	if _, err := x.smolvm(ctx, createIn, args...); err != nil {
		return err
	}
	m, _, err := smolstate.Confine(ctx, x.database, x.machine, alias)
	if err != nil {
		return fmt.Errorf("the machine is not started: %w", err)
	}
	if err := x.checkMachine(m); err != nil {
		return fmt.Errorf("the machine is not started: smolvm's description of it is not as asked for: %w", err)
	}
	return nil
}

// checkMachine compares a description with what was asked for.
func (x *box) checkMachine(m smolstate.Machine) error {
	alias := x.lease.Addr.String()
	var mounts []string
	for _, raw := range m.Mounts {
		var v []any
		if err := json.Unmarshal(raw, &v); err != nil || len(v) != 3 || v[2] != true {
			return fmt.Errorf("mount %s", safetext.String(string(raw), 200))
		}
		mounts = append(mounts, fmt.Sprint(v[0], ":", v[1]))
	}
	var want []string
	for _, v := range x.volumes {
		want = append(want, v.host+":"+v.guest)
	}
	slices.Sort(mounts)
	slices.Sort(want)
	for _, c := range []struct {
		what string
		ok   bool
	}{
		{"allowed_cidrs", slices.Equal(m.Allowed, []string{alias + "/32"})},
		{"dns: names would be asked elsewhere", m.DNS == alias},
		{"dns_filter_hosts", len(m.Hosts) == 0},
		{"mounts", slices.Equal(mounts, want)},
		{"ports", len(m.Ports) == 0},
		{"published_sockets", len(m.Sockets) == 0},
		{"remote_volumes", len(m.Volumes) == 0},
		{"init", len(m.Init) == 0},
		{"secret_refs", len(m.Secrets) == 0},
		{"network_name", m.NetworkOf == ""},
		{"ssh_agent, docker_socket, cuda or gpu", !m.SSHAgent && !m.Docker && !m.Cuda && !m.GPU},
	} {
		if !c.ok {
			return errors.New(c.what)
		}
	}
	return nil
}

// start boots the machine, which then ends with this process.
func (x *box) start(ctx context.Context) error {
	s, err := x.runner.Start(ctx, hostexec.Command{
		Program: hostexec.Smolvm, Args: []string{"machine", "start", "--name", x.machine}, Dir: "/", Timeout: bootIn, Keep: true,
	})
	if err == nil {
		x.vm = s
		err = s.Kept(ctx)
	}
	if err != nil {
		return fmt.Errorf("smolvm machine start: %w", err)
	}
	return nil
}

// confirm waits until the machine runs programs, and makes sure that it reaches the
// bottle's proxy and nothing else of this machine's loopback: the database says what it
// may reach, and this is whether smolvm holds to that.
func (x *box) confirm(ctx context.Context) error {
	canary, err := newCanary()
	if err != nil {
		return err
	}
	defer canary.close()
	proxy := netip.AddrPortFrom(x.lease.Addr, proxyPort).String()
	args := []string{"exec", "--name", x.machine, "--", hostexec.SmolvmGuest, "dial", proxy}
	for _, host := range []string{"127.0.0.1", "::1", gatewayOfVirtio} {
		args = append(args, net.JoinHostPort(host, strconv.Itoa(canary.port)))
	}
	ctx, cancel := context.WithTimeout(ctx, bootIn)
	defer cancel()
	var out []byte
	for {
		res, err := x.smolvm(ctx, execIn, args...)
		if err == nil {
			if out, err = res.Stdout.Complete(); err != nil {
				return err
			}
			break
		}
		select {
		case <-x.vm.Done():
			return fmt.Errorf("the machine ended while it booted: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("the machine runs no programs: %w", err)
		case <-time.After(retryIn):
		}
	}
	return x.judgeDials(string(out), proxy, canary.hits())
}

// judgeDials reads what the guest program says it reached. hits is how often the canary
// was reached, which no machine can deny.
func (x *box) judgeDials(out, proxy string, hits int) error {
	var reached []string
	told := 0
	for line := range strings.Lines(out) {
		addr, state, _ := strings.Cut(strings.TrimSpace(line), " ")
		told++
		if state == "open" {
			reached = append(reached, safetext.String(addr, 60))
		} else if state != "closed" {
			return fmt.Errorf("the machine's answer about what it reaches can't be read: %s", safetext.String(line, 200))
		}
	}
	switch {
	case hits > 0 || slices.ContainsFunc(reached, func(a string) bool { return a != proxy }):
		return &bottle.PostureError{Role: "smolvm", Reason: fmt.Sprintf("the machine reaches this machine's loopback beyond its own address (%s): this smolvm does not hold to allowed_cidrs", strings.Join(reached, ", "))}
	case told != 4:
		return fmt.Errorf("the machine's answer about what it reaches can't be read: %s", safetext.String(out, 200))
	case x.spec.Wire != nil && len(reached) == 0:
		return &bottle.PostureError{Role: "smolvm", Reason: "the machine does not reach the bottle's proxy at " + proxy + ": this smolvm gives it a network of its own instead of passing its connections on (TSI)"}
	}
	return nil
}

// canary listens where a machine must not reach.
type canary struct {
	list []*net.TCPListener
	port int
	mu   sync.Mutex
	n    int
	wg   sync.WaitGroup
}

func newCanary() (*canary, error) {
	first, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, fmt.Errorf("watch what the machine reaches: %w", err)
	}
	c := &canary{list: []*net.TCPListener{first}, port: first.Addr().(*net.TCPAddr).Port}
	// Not every machine has IPv6, nor this port on it.
	if six, err := net.ListenTCP("tcp6", &net.TCPAddr{IP: net.IPv6loopback, Port: c.port}); err == nil {
		c.list = append(c.list, six)
	}
	for _, l := range c.list {
		c.wg.Go(func() { // ends with close
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				c.mu.Lock()
				c.n++
				c.mu.Unlock()
				_ = conn.Close()
			}
		})
	}
	return c, nil
}

func (c *canary) hits() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func (c *canary) close() {
	for _, l := range c.list {
		_ = l.Close()
	}
	c.wg.Wait()
}

// connect starts the guest program and greets it.
func (x *box) connect(ctx context.Context) error {
	in, feed, err := os.Pipe()
	if err != nil {
		return err
	}
	take, out, err := os.Pipe()
	if err != nil {
		_, _ = in.Close(), feed.Close()
		return err
	}
	conn := &duplex{take, feed}
	s, err := x.runner.Start(ctx, hostexec.Command{
		Program: hostexec.Smolvm, Args: []string{"machine", "exec", "--name", x.machine, "-i", "--", hostexec.SmolvmGuest, "stdio"},
		Dir: "/", Input: in, Output: out,
	})
	if err != nil {
		_ = conn.Close()
		return fmt.Errorf("smolvm machine exec: %w", err)
	}
	x.exec = s
	ctx, cancel := context.WithTimeout(ctx, bootIn)
	defer cancel()
	if x.guest, err = guest.Connect(ctx, conn); err != nil {
		if _, why := s.Wait(ctx); why != nil {
			err = fmt.Errorf("%w: %w", err, why)
		}
		return err
	}
	if h := x.guest.Hello(); h.UID != 0 || h.Arch != runtime.GOARCH {
		return &bottle.PostureError{Role: "guest", Reason: fmt.Sprintf("the guest program runs as user %d on %s, not as root on %s", h.UID, safetext.String(h.Arch, 20), runtime.GOARCH)}
	}
	return nil
}

// duplex is a stream of two pipes.
type duplex struct{ r, w *os.File }

func (d *duplex) Read(b []byte) (int, error)  { return d.r.Read(b) }
func (d *duplex) Write(b []byte) (int, error) { return d.w.Write(b) }
func (d *duplex) Close() error                { return errors.Join(d.r.Close(), d.w.Close()) }
