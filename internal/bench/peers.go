package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// peer runs loads in its sandbox.
type peer struct {
	name string
	// command returns the process that is measured. It also writes the files that the
	// process needs, before the clock starts.
	command func(ctx context.Context, l load, argv []string) (*exec.Cmd, error)
	// server is the peer's name for this machine's loopback.
	server string
	// tmp is its temporary directory, as the load sees it.
	tmp string
	// writes says that a load's writes go to the real workspace.
	writes bool
	// only names the loads that it runs; empty: all.
	only []string
	// kept starts what stays between samples, where the peer has such a thing.
	kept map[kept]func(context.Context) (*keep, error)
	// version is the version that the peer itself prints.
	version string
	// after cleans up after a sample.
	after func() error
}

// keep is a process that stays between samples.
type keep struct {
	command func(ctx context.Context, argv []string) *exec.Cmd
	// ready waits, outside the clock, until the next sample may come.
	ready func(ctx context.Context) error
	close func() error
	// processes lists the waiting processes; nil: nobody asks. Of these, own is the
	// peer's that is no part of the container; 0: none.
	processes func() ([]int, error)
	own       int
}

// The workload of a root's bench is never root: carboy would not allow it, and
// the others must do the same work.
const (
	nobodyUID = 65534
	nobodyGID = 65534
)

// asNobody returns the credential for loads that run without a container.
func asNobody(c *exec.Cmd) *exec.Cmd {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: nobodyUID, Gid: nobodyGID}
	}
	return c
}

// loadEnv returns a load's environment, the same with every peer.
func loadEnv() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LANG=C.UTF-8", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1"}
}

func (b *bench) native() *peer {
	return &peer{
		name: "native", server: "127.0.0.1", tmp: b.path("tmp"), writes: true,
		command: func(ctx context.Context, _ load, argv []string) (*exec.Cmd, error) {
			c := asNobody(exec.CommandContext(ctx, argv[0], argv[1:]...))
			c.Dir, c.Env = b.path("ws"), loadEnv()
			return c, nil
		},
		kept: map[kept]func(context.Context) (*keep, error){living: process, waiting: process},
	}
}

// process returns the command for a load on the bare machine.
func process(context.Context) (*keep, error) {
	return &keep{command: func(ctx context.Context, argv []string) *exec.Cmd {
		return asNobody(exec.CommandContext(ctx, argv[0], argv[1:]...))
	}}, nil
}

// absent returns an error if a program that the peer needs is missing, and how to install it.
func absent(programs ...[2]string) error {
	for _, p := range programs {
		if _, err := exec.LookPath(p[0]); err != nil {
			return fmt.Errorf("no %s on the PATH (%s)", p[0], p[1])
		}
	}
	return nil
}

func versionOf(ctx context.Context, argv ...string) string {
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
	if err != nil {
		return "unknown"
	}
	f := strings.Fields(firstLine(string(out)))
	if len(f) == 0 {
		return "unknown"
	}
	return f[len(f)-1]
}

var errNotRoot = errors.New("needs root; run `make bench` as root to have it in the tables")

func (b *bench) bwrap(ctx context.Context) (*peer, error) {
	if err := absent(bwrapProgram); err != nil {
		return nil, err
	}
	args := []string{"--dev-bind", "/", "/", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent"}
	p := &peer{
		name: "bubblewrap", server: "127.0.0.1", tmp: b.path("tmp"), writes: true,
		version: versionOf(ctx, "bwrap", "--version"),
		command: func(ctx context.Context, l load, argv []string) (*exec.Cmd, error) {
			a := args
			if !l.net {
				a = append(a[:len(a):len(a)], "--unshare-net")
			}
			c := asNobody(exec.CommandContext(ctx, "bwrap", append(append(a[:len(a):len(a)], "--"), argv...)...))
			c.Dir, c.Env = b.path("ws"), loadEnv()
			return c, nil
		},
	}
	return p, p.try(ctx)
}

var bwrapProgram = [2]string{"bwrap", "Debian and Ubuntu: apt-get install bubblewrap"}

// try runs `true` once, so that a peer that can't work here counts as absent.
func (p *peer) try(ctx context.Context) error {
	c, err := p.command(ctx, load{bare: true}, []string{"true"})
	if err != nil {
		return err
	}
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("does not work here: %w: %s", err, tailOf(string(out)))
	}
	return nil
}

// runsc is gVisor without us: the host's root file system with a writable
// overlay in the sentry's memory over it, the rest as it comes. Its own default,
// an overlay file in the root itself, cannot be used where that root is "/". It
// needs root: it refuses a sandbox network to anybody else, and a rootless one
// has another file access than what is compared here.
func (b *bench) runsc(ctx context.Context) (*peer, error) {
	if os.Geteuid() != 0 {
		return nil, errNotRoot
	}
	binary := b.o.runsc
	if binary == "" {
		binary = b.path("runsc")
		if err := b.build(ctx, binary, "gvisor.dev/gvisor/runsc"); err != nil {
			return nil, err
		}
	}
	if err := b.hostRoot(); err != nil {
		return nil, err
	}
	// What runsc itself leaves mounted in its state directory.
	b.cleanup = append(b.cleanup, func() error {
		unix.Unmount(b.path("runsc-state/null-netns"), unix.MNT_DETACH)
		return nil
	})
	n := 0
	bundle := b.path("bundle")
	flags := []string{"--root", b.path("runsc-state"), "--platform", "systrap", "--overlay2", "root:memory", "--ignore-cgroups"}
	with := func(network string, verb ...string) []string {
		return append(append(flags[:len(flags):len(flags)], "--network", network), verb...)
	}
	p := &peer{
		name: "runsc", server: "127.0.0.1", tmp: "/tmp",
		command: func(ctx context.Context, l load, argv []string) (*exec.Cmd, error) {
			if l.bare { // the start: its own one command for it
				c := exec.CommandContext(ctx, binary, with("none", append([]string{"do"}, argv...)...)...)
				c.Dir, c.Env = b.path("ws"), loadEnv()
				return c, nil
			}
			if err := writeBundle(bundle, containerPlan(b, argv, l.net)); err != nil {
				return nil, err
			}
			n++
			network := "none"
			if l.net {
				network = "host"
			}
			return exec.CommandContext(ctx, binary, with(network, "run", "--bundle", bundle, fmt.Sprint("bench", n))...), nil
		},
		kept: map[kept]func(context.Context) (*keep, error){living: func(ctx context.Context) (*keep, error) {
			if err := writeBundle(bundle, containerPlan(b, []string{"sleep", "36000"}, false)); err != nil {
				return nil, err
			}
			start := exec.CommandContext(ctx, binary, with("none", "run", "--bundle", bundle, "--detach", "living")...)
			if err := start.Run(); err != nil { // no pipes: the sandbox would keep them
				return nil, fmt.Errorf("runsc run --detach: %w", err)
			}
			return &keep{
				command: func(ctx context.Context, argv []string) *exec.Cmd {
					return exec.CommandContext(ctx, binary, with("none", append([]string{"exec", "living"}, argv...)...)...)
				},
				processes: func() ([]int, error) {
					return descendants(func(pid, _ int) bool {
						line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
						return strings.HasPrefix(string(line), "runsc-") && strings.Contains(string(line), b.path("runsc-state"))
					})
				},
				close: func() error {
					// Not ctx: what was started is ended also after an interrupt.
					return exec.Command(binary, with("none", "delete", "--force", "living")...).Run()
				},
			}, nil
		}},
	}
	return p, p.try(ctx)
}

// runc is a container of the host's kernel: the host's root read-only, the
// scratch directories bound into it, no boundary but namespaces.
func (b *bench) runc(ctx context.Context) (*peer, error) {
	if err := absent([2]string{"runc", "Debian and Ubuntu: apt-get install runc"}); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errNotRoot
	}
	if err := b.hostRoot(); err != nil {
		return nil, err
	}
	n := 0
	p := &peer{
		name: "runc", server: "127.0.0.1", tmp: b.path("tmp"), writes: true,
		version: versionOf(ctx, "runc", "--version"),
		command: func(ctx context.Context, l load, argv []string) (*exec.Cmd, error) {
			s := containerPlan(b, argv, l.net)
			s.Root.Readonly = true
			if l.net { // the host's own is there already, and cannot be mounted twice
				s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return m.Type == "sysfs" })
			}
			for _, dir := range []string{b.path("ws"), b.path("tmp")} {
				s.Mounts = append(s.Mounts, specs.Mount{Type: "bind", Source: dir, Destination: dir, Options: []string{"rbind", "rw"}})
			}
			if err := writeBundle(b.path("bundle"), s); err != nil {
				return nil, err
			}
			n++
			return exec.CommandContext(ctx, "runc", "--root", b.path("runc-state"), "run", "--bundle", b.path("bundle"), fmt.Sprintf("carboy-bench-%d-%d", os.Getpid(), n)), nil
		},
	}
	return p, p.try(ctx)
}

// containerPlan returns the plan of one container in the workspace. hostNet leaves it
// in this machine's network namespace, for runsc's host networking.
func containerPlan(b *bench, argv []string, hostNet bool) *specs.Spec {
	s := &specs.Spec{
		Version: "1.0.2", // runc 1.1 takes no newer one
		Root:    &specs.Root{Path: b.path("bundle/rootfs")},
		Process: &specs.Process{
			Args: argv, Cwd: b.path("ws"), Env: loadEnv(), NoNewPrivileges: true,
			User: specs.User{UID: nobodyUID, GID: nobodyGID},
		},
		Mounts: []specs.Mount{
			{Type: "proc", Destination: "/proc", Source: "proc"},
			{Type: "tmpfs", Destination: "/dev", Source: "tmpfs"},
			{Type: "sysfs", Destination: "/sys", Source: "sysfs", Options: []string{"ro"}},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
		}},
	}
	if !hostNet {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.NetworkNamespace})
	}
	return s
}

func writeBundle(bundle string, s *specs.Spec) error {
	j, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundle, "config.json"), j, 0o600)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
