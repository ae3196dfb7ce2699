//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/carboy/carboy/internal/backends"
	"github.com/carboy/carboy/internal/ociruntime"
	"github.com/carboy/carboy/internal/safetext"
)

// runtimeOwn lists the words after carboy runtime that are carboy's own.
var runtimeOwn = []string{"install", "uninstall", "help", "-h", "--help"}

// isRuntime reports whether a command line is one of an OCI runtime.
func isRuntime(args []string) bool {
	return len(args) > 2 && args[1] == "runtime" && !slices.Contains(runtimeOwn, args[2])
}

// runtimeMain takes the process over if its command line is one of an OCI runtime.
func runtimeMain() {
	if isRuntime(os.Args) {
		backends.Runtime(os.Args[2:])
	}
}

const runtimeLong = `Run containers of Docker, containerd and Podman on carboy's embedded kernel. The command of
a container then makes its system calls to that kernel and not to the host's.

carboy runtime install registers it with the engines that are there. After that,
docker run --runtime carboy uses it, for one container, without a restart of Docker.

Such a container is the engine's own: it has none of a bottle's gateway, receipt and facts.
With --backend docker, carboy's bottles use this runtime by themselves.

Started with other words, carboy runtime is the runtime itself, with the commands of the OCI
(create, start, state, kill, delete and more); engines start it as carboy-runtime.`

func (a *app) runtimeCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "runtime", Short: "the embedded kernel for containers of other engines", Long: runtimeLong, GroupID: "keep", Args: noArgs,
		Example: "  sudo carboy runtime install\n  docker run --rm --runtime carboy alpine cat /proc/version",
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.runtimeInstallCmd(), a.runtimeUninstallCmd())
	return cmd
}

const runtimeInstallLong = `Register carboy's kernel as the runtime "carboy" with Docker (/etc/docker/daemon.json),
containerd (/etc/containerd/config.toml) and Podman (a file of its own in
/etc/containers/containers.conf.d), where they are, by a link that engines start:
/usr/local/bin/carboy-runtime.

Docker reads its file again and goes on; containerd has to be restarted by you. Each file
that is changed is kept beside it, as FILE.before-carboy. A file that can't be parsed, or
that is a link, is refused, and then nothing is changed. Done twice, it is done once.`

func (a *app) runtimeInstallCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "install", Short: "register it with Docker, containerd and Podman", Long: runtimeInstallLong, Args: noArgs,
		Example: "  carboy runtime install --dry-run\n  sudo carboy runtime install",
	}
	a.registers(cmd, ociruntime.Install)
	return cmd
}

const runtimeUninstallLong = `Undo carboy runtime install. A file that nobody has changed since becomes what it was, to the
last byte. From others the runtime is taken out, and the rest stays.`

func (a *app) runtimeUninstallCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "uninstall", Short: "undo runtime install", Long: runtimeUninstallLong, Args: noArgs,
		Example: "  sudo carboy runtime uninstall",
	}
	a.registers(cmd, ociruntime.Uninstall)
	return cmd
}

// registers lets cmd do what f does, and print its steps.
func (a *app) registers(cmd *cobra.Command, f func(ociruntime.Options) ([]ociruntime.Step, error)) {
	var o ociruntime.Options
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "say what would be done, and change nothing")
	cmd.Flags().StringVar(&o.Under, "under", "/", "the `DIR` below which etc, run and usr lie")
	cmd.RunE = func(*cobra.Command, []string) error {
		exe, err := os.Readlink("/proc/self/exe")
		if err != nil {
			return err
		}
		o.Exe = exe
		if o.Under, err = filepath.Abs(o.Under); err != nil {
			return err
		}
		steps, err := f(o)
		for _, s := range steps {
			did := "-"
			if s.Done {
				did = map[bool]string{true: "would", false: "done"}[o.DryRun]
			}
			fmt.Fprintf(a.shownTo(a.stdout), "%-5s  %-10s %s: %s\n", did, first(s.Engine, "all"), safetext.String(s.File, 300), safetext.String(s.What, 500))
		}
		if err == nil && len(steps) == 0 {
			a.say(plainText, "nothing of it is here")
		}
		if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
			return &advisedError{err, "the files are root's: sudo " + cmd.CommandPath()}
		}
		return err
	}
}
