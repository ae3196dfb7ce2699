package gvisor

import (
	"os"
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	goferfilter "gvisor.dev/gvisor/runsc/fsgofer/filter"

	bootfilter "gvisor.dev/gvisor/runsc/boot/filter"
)

// gVisor's own builds carry precompiled seccomp programs for the sandbox and
// the gofer; its Go module does not, and compiling them takes a third of the
// start. Ours are in seccomp_table_GOARCH.go, generated from the same rules by
//
//	go test ./internal/bottle/gvisor -run TestSeccompIsCurrent -update
//
// and that test compares them with freshly compiled ones. A program is looked
// up by all options that shape it. If none matches (another architecture, a
// build with the race detector), gVisor compiles one.

//go:linkname bootPrograms gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var bootPrograms map[string]precompiledseccomp.Program

//go:linkname goferPrograms gvisor.dev/gvisor/runsc/fsgofer/filter.precompiledPrograms
var goferPrograms map[string]precompiledseccomp.Program

// installBootPrograms runs in the sandbox process before gVisor takes over,
// installGoferPrograms in the gofer.
func installBootPrograms() {
	bootfilter.ListPrecompiled() // once: it makes the map that is filled here
	for _, p := range bootTable() {
		bootPrograms[p.Name] = withPID(p, uint32(os.Getpid()))
	}
}

// withPID inserts the process id. gVisor's rules for systrap contain the id of
// the compiling process as a constant (systrap/filters.go, rt_tgsigqueueinfo),
// which a precompiled program cannot know.
func withPID(p precompiledseccomp.Program, pid uint32) precompiledseccomp.Program {
	for _, off := range bootPIDs {
		p.Bytecode32[off] = pid
	}
	return p
}

func installGoferPrograms() {
	goferfilter.ListPrecompiled()
	for _, p := range goferTable() {
		goferPrograms[p.Name] = p
	}
}
