package main

import "time"

// S4 and the part of S5 that is about processes.

var limitMutants = []mutant{
	{
		Name: "processes-are-not-counted", Promise: "S4",
		Why:     "the sandbox is told of no limit on processes",
		Package: "./internal/bottle/gvisor", Tests: []string{"TestContract/LimitPids"}, Says: "with a limit of 30",
		edits: []edit{{"internal/bottle/gvisor/shim.go", "fmt.Sprint(n+1)", "fmt.Sprint(100*n)"}},
	},
	{
		Name: "a-fork-bomb-goes-unsaid", Promise: "S4",
		Why:     "the limit on processes holds, but the receipt doesn't name it: the outcome isn't typed",
		Package: "./internal/hostile", Tests: []string{"TestS4ForkBomb"}, Says: "a fork bomb ended with",
		edits: []edit{{"command.go", "err == nil && r.Pids > 0 {", "err == nil && r.Pids < 0 {"}},
	},
	{
		Name: "memory-is-not-watched", Promise: "S4",
		Why:     "the bottle's memory may be eight times its limit",
		Package: "./internal/hostile", Tests: []string{"TestS4KernelBuffers"}, Says: "with a limit of",
		edits: []edit{{"command.go", "			if m.use.Memory > s.limits.Memory {", "			if m.use.Memory > 8*s.limits.Memory {"}},
	},
	{
		Name: "memory-ends-it-unsaid", Promise: "S4",
		Why:     "the limit on memory holds, but the outcome isn't typed",
		Package: "./internal/hostile", Tests: []string{"TestS4Memory"}, Says: "a memory bomb ended with",
		edits: []edit{{"command.go", "s.stop(receipt.Memory, \"memory\", nil)", "s.stop(receipt.Killed, \"\", nil)"}},
	},
	{
		Name: "kernel-memory-is-not-counted", Promise: "S4",
		Why:     "what the sandbox itself holds (pipes, sockets, names) isn't counted as the bottle's memory",
		Package: "./internal/hostile", Tests: []string{"TestS4KernelBuffers"}, Says: "with a limit of",
		edits: []edit{{"internal/bottle/gvisor/usage.go", "		u.Memory += st.anon + st.tables", "		u.Memory += st.tables"}},
	},
	{
		Name: "disk-is-not-bounded", Promise: "S4",
		Why:     "the overlay may grow to sixteen times its limit",
		Package: "./internal/hostile", Tests: []string{"TestS4Disk"}, Says: "MB fit",
		edits: []edit{{"internal/bottle/gvisor/spec.go", "fmt.Sprintf(\"%s,size=%d\", over, p.Limits.Disk)", "fmt.Sprintf(\"%s,size=%d\", over, 16*p.Limits.Disk)"}},
	},
	{
		Name: "files-may-be-of-any-size", Promise: "S4",
		Why:     "one file may be a terabyte, if only in name",
		Package: "./internal/hostile", Tests: []string{"TestS4Sparse"}, Says: "a file of a terabyte was made",
		edits: []edit{{"internal/bottle/gvisor/spec.go", "		same(\"RLIMIT_FSIZE\", l.FileSize),\n", ""}},
	},
	{
		Name: "descriptors-are-not-bounded", Promise: "S4",
		Why:     "one process may open far more files than its limit says",
		Package: "./internal/hostile", Tests: []string{"TestS4Descriptors"}, Says: "of 256",
		edits: []edit{{"internal/bottle/gvisor/spec.go", "same(\"RLIMIT_NOFILE\", l.OpenFiles)", "same(\"RLIMIT_NOFILE\", 4*l.OpenFiles)"}},
	},
	{
		Name: "output-is-not-bounded", Promise: "S4",
		Why:     "eight times the output passes",
		Package: "./internal/hostile", Tests: []string{"TestS4Output"}, Says: "bytes were shown",
		edits: []edit{{"streams.go", "	b.left.Store(n)", "	b.left.Store(8 * n)"}},
	},
	{
		Name: "the-clock-does-not-end-it", Promise: "S4",
		Why:     "a command that ignores every signal runs for ever",
		Package: "./internal/hostile", Tests: []string{"TestS4WallClock"}, Says: "hangs", wait: 15 * time.Second,
		edits: []edit{{"command.go", "		case <-clock.C:\n			return s.stop(receipt.Timeout, \"timeout\", nil), nil\n", ""}},
	},
	{
		Name: "half-taken-changes-stay", Promise: "S5",
		Why:     "what a killed run has left in the state directory is never removed",
		Package: "./internal/hostile", Tests: []string{"TestS5KillCarboy"}, Says: "behind",
		edits: []edit{{"review.go", "	errs := []error{removeTree(dir + \"/scratch\"), removeTree(dir + \"/base\")}", "	errs := []error{nil}\n	_ = dir"}},
	},
	{
		Name: "lost-changes-go-unsaid", Promise: "S5",
		Why:     "when the bottle dies under its command, the receipt doesn't say that changes are lost",
		Package: "./internal/hostile", Tests: []string{"TestS5KillInnerProcesses"}, Says: "nothing says so",
		edits: []edit{
			{"run.go", "		s.rec.Changes.Incomplete = append(s.rec.Changes.Incomplete, err.Error())\n", ""},
		},
	},
	{
		Name: "overlay-writes-through", Promise: "S6",
		Why:     "the workspace is written to directly where an overlay was asked for",
		Package: "./internal/hostile", Tests: []string{"TestS6OnlyLandingChanges"}, Says: "the workspace changed before landing",
		edits: []edit{{"plan.go", "		live.Access = bottle.AccessOverlay\n", "		live.Access = bottle.AccessReadWrite\n"}},
	},
}
