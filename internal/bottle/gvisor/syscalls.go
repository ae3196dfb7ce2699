package gvisor

import (
	"runtime/debug"

	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"github.com/carboy/carboy/internal/reclaim"
)

// wrapSyscalls runs in the sandbox process before gVisor takes over. It changes
// gVisor's own tables, one per architecture, and finds entries by name, so that
// all tables are treated alike.
func wrapSyscalls() {
	// Nothing that is allocated before init runs is worth collecting.
	debug.SetGCPercent(-1)
	registerSide()
	registerFacts()
	for _, t := range kernel.SyscallTables() {
		for no, sc := range t.Table {
			fn := wrapFacts(sc.Name, sc.Fn)
			if own := ownCalls[sc.Name]; own != nil {
				if fn == nil {
					fn = sc.Fn
				}
				fn = own(fn)
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

// ownCalls wraps calls for carboy's own ends. The first two are init's: one after exec, the
// other again after a restore. exit_group is a command's that ended before init first ran.
var ownCalls = map[string]func(kernel.SyscallFn) kernel.SyscallFn{
	"rt_sigaction": learnKernel, "pause": learnKernel, "exit_group": learnKernel, "fcntl": gofcntl,
}

func learnKernel(fn kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, no uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		learn(t)
		return fn(t, no, args)
	}
}

func learn(t *kernel.Task) {
	if sentryKernel.Load() == nil && sentryKernel.CompareAndSwap(nil, t.Kernel()) {
		sampleClock(t.Kernel().Timekeeper())
		reclaim.Collecting(100, reclaim.Patience)
		reclaim.After(reclaim.Patience) // ends with the process
	}
}
