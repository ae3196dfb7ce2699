// Package backends chooses what holds a bottle. It is the only package that imports a
// backend; all others know the contract of package bottle.
//
// A backend is added in its own folder, with a line in all and, where it starts this
// binary again, one in Main.
package backends

import (
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/docker"
	"github.com/carboy/carboy/internal/bottle/gvisor"
	"github.com/carboy/carboy/internal/bottle/microvm"
	"github.com/carboy/carboy/internal/bottle/smolmachines"
	"github.com/carboy/carboy/internal/fault"
)

// all lists the backends, the default first.
var all = []bottle.Backend{gvisor.Backend{}, docker.Backend{}, microvm.Backend{}, smolmachines.Backend{}}

// needs lists the names that people may use, and what a backend of that name needs. Some are
// of another system's carboy.
var needs = []struct{ name, what string }{
	{"gvisor", "Linux, and user namespaces"},
	{"docker", "a Docker Engine on this machine"},
	{"microvm", "Linux, a processor with virtualisation whose /dev/kvm you may use, and QEMU"},
	{"smolmachines", "the program smolvm"},
	{"macos-container", "macOS, and Apple's program container"},
}

// Main takes the process over if a backend started it as an inner process of a bottle,
// and then does not return. Otherwise it returns at once.
func Main() {
	docker.Main()
	gvisor.Main()
}

// Runtime is the command line of carboy's kernel as an OCI runtime, which container engines
// start. It does not return.
func Runtime(args []string) { gvisor.Runtime(args) }

// Default returns the backend that is used when nobody names one.
func Default() bottle.Backend { return all[0] }

// Names returns the names of the backends that this carboy has.
func Names() []string {
	out := make([]string, len(all))
	for i, b := range all {
		out[i] = b.Name()
	}
	return out
}

// ByName returns the backend of that name; an empty name returns the default. The error is
// a bottle.UnavailableError for one that this carboy does not have, and a fault.OptionError
// for a name of nothing.
func ByName(name string) (bottle.Backend, error) {
	if name == "" {
		return Default(), nil
	}
	if i := slices.IndexFunc(all, func(b bottle.Backend) bool { return b.Name() == name }); i >= 0 {
		return all[i], nil
	}
	here := strings.Join(Names(), ", ")
	for _, n := range needs {
		if n.name == name {
			return nil, &bottle.UnavailableError{Backend: name, Reason: "this carboy was built without this backend, which needs " + n.what, Advice: "name one of " + here}
		}
	}
	return nil, &fault.OptionError{Option: "--backend", Value: fault.CutText(name, 40), Reason: "is not here", Advice: "name one of " + here + ", or leave it out (and unset CARBOY_BACKEND and BOT_BOTTLE_BACKEND)"}
}
