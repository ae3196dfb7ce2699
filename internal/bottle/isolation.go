package bottle

import (
	"fmt"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/exitcode"
)

// Isolation names the class of a boundary in receipts, verdicts and policies. Its order is
// that of Isolations.
type Isolation string

// The zero Isolation claims nothing.
const (
	// IsolationContainer: namespaces, capabilities and a seccomp filter around the command,
	// whose system calls the host's own kernel serves.
	IsolationContainer Isolation = "container"
	// IsolationEmulatedVM: a virtual machine whose processor is emulated in software. It is
	// for tests: emulators promise no boundary.
	IsolationEmulatedVM Isolation = "emulated-vm"
	// IsolationUserKernel: the command's system calls are served by a kernel in
	// user space, itself confined by namespaces and a seccomp filter.
	IsolationUserKernel Isolation = "user-kernel"
	// IsolationHardwareVM: a virtual machine with the processor's own support, whose
	// monitor is confined by namespaces and a seccomp filter.
	IsolationHardwareVM Isolation = "hardware-vm"
)

// Isolations returns the classes, the weakest first.
func Isolations() []Isolation {
	return []Isolation{IsolationContainer, IsolationEmulatedVM, IsolationUserKernel, IsolationHardwareVM}
}

// AtLeast reports whether i is least or stronger. An unknown class is at least nothing, and
// nothing known is at least an unknown one. If least is empty, any i will do.
func (i Isolation) AtLeast(least Isolation) bool {
	if least == "" {
		return true
	}
	all := Isolations()
	have, want := slices.Index(all, i), slices.Index(all, least)
	return want >= 0 && have >= want
}

// ParseIsolation returns the class of that name.
func ParseIsolation(s string) (Isolation, error) {
	var names []string
	for _, i := range Isolations() {
		if string(i) == s {
			return i, nil
		}
		names = append(names, string(i))
	}
	return "", fmt.Errorf("%.40q is no class of isolation: from weak to strong there are %s", s, strings.Join(names, ", "))
}

// Floor is the weakest class of isolation that a policy accepts. The zero Floor accepts all.
type Floor struct {
	Least Isolation
	// From is the setting's file and line, as file:line.
	From string
}

// Stronger returns the floor with the stronger class, f if both are the same.
func (f Floor) Stronger(o Floor) Floor {
	if f.Least.AtLeast(o.Least) {
		return f
	}
	return o
}

// Check returns a TooWeakError unless have is strong enough. backend is the name of what
// gives it.
func (f Floor) Check(backend string, have Isolation) error {
	if have.AtLeast(f.Least) {
		return nil
	}
	return &TooWeakError{Floor: f, Backend: backend, Have: have}
}

// TooWeakError means that a backend's boundary is weaker than a policy asks for.
type TooWeakError struct {
	Floor
	Backend string
	Have    Isolation // empty: none is known
}

func (e *TooWeakError) Error() string {
	have := string(e.Have)
	if have == "" {
		have = "none that is known"
	}
	return fmt.Sprintf("%s: isolation: %s is the weakest class that is accepted, and that of the backend %s here is %s", e.From, e.Least, e.Backend, have)
}

// ExitClass lets package exitcode choose the exit code.
func (e *TooWeakError) ExitClass() exitcode.Class { return exitcode.WrongOption }

// Advice says what a person can do.
func (e *TooWeakError) Advice() string {
	return "name a stronger one with --backend, or change that line if the weaker boundary will do"
}
