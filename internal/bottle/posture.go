package bottle

import "fmt"

// Posture is what a backend read from its live processes before the first
// instruction of the workload.
type Posture struct {
	Isolation Isolation     `json:"isolation"`
	Backend   string        `json:"backend"`
	Build     string        `json:"build"`
	Processes []ProcPosture `json:"processes"`
	// Trace is true when the live kernel said that it sends facts. A caller who
	// needs them must look: a backend may not have any.
	Trace bool `json:"trace,omitempty"`
}

// ProcPosture describes one host process that serves the bottle.
type ProcPosture struct {
	Role       string   `json:"role"` // sandbox, gofer
	PID        int      `json:"pid"`
	UID        int      `json:"uid"` // as the host sees it
	Seccomp    int      `json:"seccomp"`
	NoNewPrivs bool     `json:"no_new_privs"`
	CapEff     uint64   `json:"cap_eff"`
	CapBnd     uint64   `json:"cap_bnd"`
	Namespaces []string `json:"own_namespaces"` // kinds that differ from carboy's own
	Mounts     int      `json:"mounts"`
	// FDs counts open descriptors by kind, such as "socket" or "dir".
	FDs map[string]int `json:"fds"`
	// Root is true when the process's root is not the host's.
	Chrooted bool `json:"chrooted"`
}

// PostureError says that a live process isn't confined as it must be.
type PostureError struct {
	Role   string
	Reason string
}

func (e *PostureError) Error() string {
	return fmt.Sprintf("posture of the %s process: %s", e.Role, e.Reason)
}
