package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
)

// RuntimeProgram is the name under which container engines start carboy as their runtime.
const RuntimeProgram = "carboy-runtime"

// Runtime is the command line of an OCI runtime, which is gVisor's own with the embedded
// kernel. It does not return. Containers have none of what bottles have besides: no wire, no
// facts, no limits of carboy's.
func Runtime(args []string) {
	if ofBottle(args) {
		fmt.Fprintln(os.Stderr, RuntimeProgram+": --root names a directory that bottles use: name another one")
		os.Exit(128)
	}
	os.Args = slices.Concat([]string{"runsc"}, runtimeFlags(wholeUserNamespace()), args)
	runtimeMain()
}

// runtimeFlags returns the settings of containers. Those that the engine passes come later
// and win.
func runtimeFlags(whole bool) []string {
	out := []string{
		"--platform=systrap", "--network=sandbox",
		// docker diff, cp and commit look at the files of the host.
		"--overlay2=none",
		// A network of its own for each gofer: a shared one would stay mounted on the host.
		"--gofer-network-namespace=new",
		"--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK",
	}
	if whole {
		// The kernel runs as nobody and opens no file of the host: the gofer does.
		return append(out, "--directfs=false")
	}
	// Control groups belong to root. A rootless engine's limits do not hold.
	return append(out, "--ignore-cgroups")
}

// wholeUserNamespace reports whether this process is in the host's user namespace.
func wholeUserNamespace() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(b)), " ") == "0 0 4294967295"
}

// ofBottle reports whether the arguments of gVisor's are those of a bottle's inner process,
// by the directory of its state. All others are of containers.
func ofBottle(args []string) bool {
	for _, dir := range stageCandidates {
		for _, a := range args {
			name, value, _ := strings.Cut(strings.TrimLeft(a, "-"), "=")
			if strings.HasPrefix(a, "-") && name == "root" && filepath.Clean(value) == dir+"/state" {
				return true
			}
		}
	}
	return false
}

// runtimeMain is gVisor's main function for containers, with the commands that engines use.
func runtimeMain() {
	cli.Run(nil, map[util.SubCommand]string{
		new(cmd.Checkpoint):   "",
		new(cmd.Create):       "",
		new(cmd.Delete):       "",
		new(cmd.Events):       "",
		new(cmd.Exec):         "",
		new(cmd.Features):     "",
		new(cmd.Kill):         "",
		new(cmd.List):         "",
		new(cmd.PS):           "",
		new(cmd.Pause):        "",
		new(cmd.Restore):      "",
		new(cmd.Resume):       "",
		new(cmd.Run):          "",
		new(cmd.Start):        "",
		new(cmd.State):        "",
		new(cmd.Tar):          "",
		new(cmd.Update):       "",
		new(cmd.Wait):         "",
		new(sentrycmd.Boot):   "internal",
		new(cmd.Gofer):        "internal",
		new(sentrycmd.Umount): "internal",
	}, nil)
	os.Exit(128)
}
