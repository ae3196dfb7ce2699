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

// A Role is what this binary is started again as, to go on after the caller has
// ended. Like Program it is a closed set.
type Role string

// RoleReady is a process that holds a bottle for the next run (carboy run --pool).
const RoleReady Role = "carboy-ready"

// roles are those that may be started.
var roles = []Role{RoleReady}

// maxOrder fits into a pipe, so that nobody waits for the new process to read.
const maxOrder = 60 << 10

// ErrOrderTooLong means that the order does not fit; nothing was started.
var ErrOrderTooLong = errors.New("hostexec: the order is too long")

// Detach starts this same binary in a role, in a session of its own and with
// nothing of the caller's: no descriptors, no terminal, the root as its working
// directory, and of the environment only env. order is on its standard input,
// not among its arguments, which everybody on the machine can read.
//
// Unlike what Run starts, it outlives carboy. It is the only thing that does,
// it is carboy itself, and it ends by itself.
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
		return ErrOrderTooLong
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
