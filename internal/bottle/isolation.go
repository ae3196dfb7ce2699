package bottle

import (
	"fmt"
	"slices"
	"strings"
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
