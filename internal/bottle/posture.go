package bottle

import "fmt"

// Posture holds what a backend read from its live processes before the
// workload's first instruction.
type Posture struct {
	Isolation Isolation     `json:"isolation"`
	Backend   string        `json:"backend"`
	Build     string        `json:"build"`
	Processes []ProcPosture `json:"processes"`
	// Trace is true if the live bottle confirmed that it sends facts. A caller
	// that needs facts must look at FactsKind: a backend may have none, or weak ones.
	Trace bool `json:"trace,omitempty"`
	// Facts is the kind of these facts; empty if Trace is false.
	Facts Facts `json:"facts,omitempty"`
}

// FactsKind returns the kind of facts that the bottle sends. A posture that does not say
// it claims the weakest kind.
func (p Posture) FactsKind() Facts {
	switch {
	case !p.Trace:
		return FactsNone
	case p.Facts == FactsKernel:
		return FactsKernel
	}
	return FactsGuest
}

// ProcPosture describes one host process that serves the bottle.
type ProcPosture struct {
	Role       string   `json:"role"` // named by the backend
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
	// Chrooted is true if the process's root is not the host's.
	Chrooted bool `json:"chrooted"`
}

// PostureError means that a live process is not confined as it must be.
type PostureError struct {
	Role   string
	Reason string
}

func (e *PostureError) Error() string {
	return fmt.Sprintf("posture of the %s process: %s", e.Role, e.Reason)
}
