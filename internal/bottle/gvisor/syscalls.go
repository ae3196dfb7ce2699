package gvisor

import (
	"runtime/debug"

	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"github.com/carboy/carboy/internal/lean"
)

// wrapSyscalls runs in the sandbox process before gVisor takes over. The
// tables are gVisor's own, one per architecture; entries are found by name, so
// that all of them are treated alike.
func wrapSyscalls() {
	// Nothing that is made before init runs is worth collecting.
	debug.SetGCPercent(-1)
	registerSide()
	registerFacts()
	for _, t := range kernel.SyscallTables() {
		for no, sc := range t.Table {
			fn := wrapFacts(sc.Name, sc.Fn)
			switch sc.Name {
			// The first two are init's: one after exec, the other again after a
			// restore. But a command may have ended before init was given a
			// processor for the first time.
			case "rt_sigaction", "pause", "exit_group":
				if fn == nil {
					fn = sc.Fn
				}
				fn = learnKernel(fn)
			}
			if fn != nil {
				sc.Fn = fn
				t.Table[no] = sc
			}
		}
		t.Missing = wrapMissing(t.Missing)
		t.Init()
	}
}

func learnKernel(fn kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, no uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		learn(t)
		return fn(t, no, args)
	}
}

func learn(t *kernel.Task) {
	if sentryKernel.Load() == nil && sentryKernel.CompareAndSwap(nil, t.Kernel()) {
		lean.Collecting(100, lean.Patience)
		lean.After(lean.Patience) // ends with the process
	}
}
