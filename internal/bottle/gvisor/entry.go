// Package gvisor is the default backend: gVisor's user-space kernel, embedded.
//
// The processes, from the outside in:
//
//	carboy    supervisor: gateway, limits, terminal; no namespaces of its own
//	shim      carboy again, in new user, mount and PID namespaces; builds the
//	          small root file system and is the parent of the two below
//	sandbox   the sentry: the kernel that serves the workload's system calls
//	gofer     opens files for the sentry, confined to the small root
//
// The shim is PID 1 of its PID namespace and dies with carboy, so a carboy that
// is killed at any moment leaves nothing running: the host kernel ends the
// whole namespace. Everything that the shim makes on disk lives in a tmpfs of
// its own mount namespace and vanishes with it.
//
// This package is a listed exception to the rule that only hostexec starts
// processes: gVisor's library re-executes /proc/self/exe, and so do we. Start
// reading at Backend.Create.
package gvisor

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"

	"github.com/carboy/carboy/internal/bottle/userns"
	"github.com/carboy/carboy/internal/reclaim"
)

// shimName is a shim's argv[0].
const shimName = "carboy-shim"

// Main takes over if the process was started as one of the backend's inner
// processes, and then never returns. Every program that uses the backend calls
// it first in main, and first in TestMain.
func Main() {
	switch {
	case os.Args[0] == shimName:
		debug.SetGCPercent(reclaim.StartGC)
		shimMain()
	case os.Args[0] == userns.HoldName:
		for {
			_ = unix.Pause()
		}
	case filepath.Base(os.Args[0]) == RuntimeProgram:
		Runtime(os.Args[1:])
	case strings.HasPrefix(os.Args[0], "runsc") && !ofBottle(os.Args):
		runtimeMain() // an inner process of a container
	case strings.HasPrefix(os.Args[0], "runsc"):
		switch os.Args[0] {
		case "runsc-sandbox":
			settle()
			wrapSyscalls()
			installBootPrograms()
		case "runsc-gofer":
			debug.SetGCPercent(reclaim.StartGC)
			reclaim.After(reclaim.Patience)
			settle()
			installGoferPrograms()
		}
		runscMain()
	case os.Args[0] == "/proc/self/exe" && len(os.Args) > 1 && os.Args[1] == "umount":
		runscMain()
	}
}

func runscMain() {
	cli.Run(nil, map[util.SubCommand]string{
		new(sentrycmd.Boot):   "internal",
		new(cmd.Gofer):        "internal",
		new(sentrycmd.Umount): "internal",
	}, nil)
	os.Exit(128)
}
