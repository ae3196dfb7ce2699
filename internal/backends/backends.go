// Package backends chooses what holds a bottle. It is the only package that imports a
// backend; all others know the contract of package bottle.
//
// A backend is added in its own folder, with a line in all and, where it starts this
// binary again, one in Main.
package backends

import (
	"fmt"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/bottle/gvisor"
)

// all lists the backends, the default first.
var all = []bottle.Backend{gvisor.Backend{}}

// Main takes the process over if a backend started it as an inner process of a bottle,
// and then does not return. Otherwise it returns at once.
func Main() { gvisor.Main() }

// Default returns the backend that is used when nobody names one.
func Default() bottle.Backend { return all[0] }

// Names returns the names that ByName knows.
func Names() []string {
	out := make([]string, len(all))
	for i, b := range all {
		out[i] = b.Name()
	}
	return out
}

// ByName returns the backend of that name; an empty name returns the default.
func ByName(name string) (bottle.Backend, error) {
	if name == "" {
		return Default(), nil
	}
	i := slices.IndexFunc(all, func(b bottle.Backend) bool { return b.Name() == name })
	if i < 0 {
		return nil, fmt.Errorf("there is no backend %q: the backends are %s", name, strings.Join(Names(), ", "))
	}
	return all[i], nil
}
