package hostexec

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
)

// A Role is a task for which Detach starts this binary again, to go on after
// the caller has ended. Like Program it is a closed set.
type Role string

// RolePrepared is the process that holds a bottle for the next run (carboy run
// --pool).
const RolePrepared Role = "carboy-ready"

// roles lists the roles that Detach accepts.
var roles = []Role{RolePrepared}

// maxOrder is less than a pipe holds, so that Detach need not wait for the new
// process to read.
const maxOrder = 60 << 10

// errOrderTooLong means that the order does not fit into a pipe; nothing was
// started.
var errOrderTooLong = errors.New("hostexec: the order is too long")

// Detach starts this binary again in a role. The new process has a session of
// its own, the root as its working directory, no descriptors and no terminal of
// the caller's, and of the environment only env. order arrives on its standard
// input: everybody on the machine can read a process's arguments.
//
// The new process outlives carboy, which nothing that Run starts does. It is
// carboy itself and ends by itself.
func Detach(role Role, env []string, order []byte) error {
	if !slices.Contains(roles, role) {
		return fmt.Errorf("hostexec: %q is no role", role)
	}
	for _, e := range env {
		if strings.HasPrefix(e, markName+"=") || strings.HasPrefix(e, "LD_") || strings.HasPrefix(e, "GO") {
			return fmt.Errorf("hostexec: %s is not for a detached process", strings.SplitN(e, "=", 2)[0])
		}
	}
	if len(order) > maxOrder {
		return errOrderTooLong
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("hostexec: start %s: %w", role, err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := w.Write(order); err != nil {
		return fmt.Errorf("hostexec: start %s: %w", role, err)
	}
	if env == nil {
		env = []string{}
	}
	cmd := &exec.Cmd{
		// Not os.Executable: the file may have been replaced by an upgrade.
		Path: "/proc/self/exe", Args: []string{string(role)}, Env: env, Dir: "/", Stdin: r,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("hostexec: start %s: %w", role, err)
	}
	go cmd.Wait() // ends with the process, or we do
	return nil
}
