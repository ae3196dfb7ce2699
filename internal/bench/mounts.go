package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownMounts in the environment says that the mount namespace is ours already.
const ownMounts = "CARBOY_BENCH_OWN_MOUNTS"

// inOwnMounts runs this program again in a mount namespace of its own. Its mounts vanish
// with it, however it ends.
func inOwnMounts(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c := exec.CommandContext(ctx, "/proc/self/exe", args...)
	c.Env = append(os.Environ(), ownMounts+"=1")
	c.Stdout, c.Stderr = stdout, stderr
	// An interrupt is passed on, so that the other one can tidy up.
	c.Cancel = func() error { return c.Process.Signal(unix.SIGTERM) }
	// Unshareflags with CLONE_NEWNS also makes every mount private.
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	err := c.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode()
	}
	fmt.Fprintln(stderr, "bench: in a mount namespace of its own:", err)
	return 1
}
