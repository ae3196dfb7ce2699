package gvisor

import (
	"runtime/debug"
	"sync"
)

const module = "gvisor.dev/gvisor"

// Build returns the version of the embedded kernel.
var Build = sync.OnceValue(func() string {
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, d := range bi.Deps {
		if d.Path == module {
			return d.Version
		}
	}
	return "unknown"
})
