package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// peer puts something around a load.
type peer struct {
	name string
	// command is the whole process that is measured; what it needs on disk is
	// written here, outside the clock.
	command func(ctx context.Context, l load, argv []string) (*exec.Cmd, error)
	// server is the name by which it reaches this machine's loopback.
	server string
	// tmp is its temporary directory, as the load sees it.
	tmp string
	// writes: what a load writes lands in the real workspace.
	writes bool
	// living starts something that stays, and gives a command for another
	// process in it; nil: the peer has no such thing.
	living func(ctx context.Context) (*living, error)
	// after cleans up behind one sample.
	after func() error
}

// living is what stays. Either command or call is set.
type living struct {
	command func(ctx context.Context, argv []string) *exec.Cmd
	call    func(ctx context.Context, argv []string) error
	close   func() error
	// processes are those that wait; nil: nobody asks.
	processes func() ([]int, error)
}

// The workload of a root's bench is never root: carboy would not allow it, and
// the others must do the same work.
const (
	nobodyUID = 65534
	nobodyGID = 65534
)

// asNobody is the credential for loads that run without a container.
func asNobody(c *exec.Cmd) *exec.Cmd {
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: nobodyUID, Gid: nobodyGID}
	}
	return c
}

// loadEnv is what a load finds in its environment with every peer.
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
		living: func(context.Context) (*living, error) {
			return &living{command: func(ctx context.Context, argv []string) *exec.Cmd {
				return asNobody(exec.CommandContext(ctx, argv[0], argv[1:]...))
			}}, nil
		},
	}
}

func (b *bench) bwrap() (*peer, string) {
	path, err := exec.LookPath("bwrap")
	if err != nil {
		return nil, "bubblewrap: no bwrap on the PATH (Debian and Ubuntu: apt-get install bubblewrap)"
	}
	args := []string{"--dev-bind", "/", "/", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent"}
	p := &peer{
		name: "bubblewrap", server: "127.0.0.1", tmp: b.path("tmp"), writes: true,
		command: func(ctx context.Context, l load, argv []string) (*exec.Cmd, error) {
			a := args
			if !l.net {
				a = append(a[:len(a):len(a)], "--unshare-net")
			}
			c := asNobody(exec.CommandContext(ctx, path, append(append(a[:len(a):len(a)], "--"), argv...)...))
			c.Dir, c.Env = b.path("ws"), loadEnv()
			return c, nil
		},
	}
	c, _ := p.command(context.Background(), load{}, []string{"true"})
	if out, err := c.CombinedOutput(); err != nil {
		return nil, fmt.Sprintf("bubblewrap: does not work here: %v: %s", err, firstLine(string(out)))
	}
	return p, ""
}

// runscPeer is gVisor without us: the host's root file system with a writable
// overlay in the sentry's memory over it, the rest as it comes. Its own default,
// an overlay file in the root itself, cannot be used where that root is "/".
func (b *bench) runscPeer(binary string) *peer {
	n := 0
	bundle := b.path("bundle")
	flags := []string{"--root", b.path("runsc-state"), "--platform", "systrap", "--overlay2", "root:memory", "--ignore-cgroups"}
	with := func(network string, verb ...string) []string {
		return append(append(flags[:len(flags):len(flags)], "--network", network), verb...)
	}
	return &peer{
		name: "runsc", server: "127.0.0.1", tmp: "/tmp",
		command: func(ctx context.Context, l load, argv []string) (*exec.Cmd, error) {
			if err := writeBundle(bundle, b.path("ws"), argv, l.net); err != nil {
				return nil, err
			}
			n++
			network := "none"
			if l.net {
				network = "host"
			}
			return exec.CommandContext(ctx, binary, with(network, "run", "--bundle", bundle, fmt.Sprint("bench", n))...), nil
		},
		living: func(ctx context.Context) (*living, error) {
			if err := writeBundle(bundle, b.path("ws"), []string{"sleep", "3600"}, false); err != nil {
				return nil, err
			}
			start := exec.CommandContext(ctx, binary, with("none", "run", "--bundle", bundle, "--detach", "living")...)
			if err := start.Run(); err != nil { // no pipes: the sandbox would keep them
				return nil, fmt.Errorf("runsc run --detach: %w", err)
			}
			return &living{
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
		},
	}
}

// writeBundle writes the plan of one container; hostNet leaves it in this
// machine's network namespace, for runsc's host networking.
func writeBundle(bundle, dir string, argv []string, hostNet bool) error {
	s := specs.Spec{
		Version: "1.1.0",
		Root:    &specs.Root{Path: filepath.Join(bundle, "rootfs")},
		Process: &specs.Process{
			Args: argv, Cwd: dir, Env: loadEnv(), NoNewPrivileges: true,
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
	j, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundle, "config.json"), j, 0o600)
}

func (b *bench) carboyPeer(binary string) *peer {
	runs := b.path("state/carboy/runs")
	return &peer{
		name: "carboy", server: "host.carboy.internal", tmp: "/tmp",
		command: func(ctx context.Context, l load, argv []string) (*exec.Cmd, error) {
			args := []string{"run"} // not -q: a refusal must say why
			if l.net {
				args = append(args, "--allow-private", "host.carboy.internal:"+b.port)
			}
			for _, e := range loadEnv() {
				if !strings.HasPrefix(e, "PATH=") && !strings.HasPrefix(e, "HOME=") {
					args = append(args, "--env", e)
				}
			}
			c := exec.CommandContext(ctx, binary, append(append(args, "--"), argv...)...)
			c.Dir = b.path("ws")
			c.Env = append(os.Environ(), "XDG_STATE_HOME="+b.path("state"))
			return c, nil
		},
		living: b.livingBottle,
		// Old runs would make later rounds look for what to recover.
		after: func() error { return os.RemoveAll(runs) },
	}
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
