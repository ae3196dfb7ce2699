package main

import "time"

// Fixtures that are run as scenarios, and what a report of them is made of.
var scenarioMutants = []mutant{
	{
		Name: "scenarios-have-no-limits", Promise: "S4",
		Why:     "the clock, memory, output and disk of a scenario are not bounded, and that it met its limit of processes is not its outcome",
		Package: "./internal/hostile", Says: "got through", wait: 6 * time.Second,
		Tests: []string{"TestT1Fixtures/fork-bomb", "TestT1Fixtures/endless-loop", "TestT1Fixtures/output-flood", "TestT1Fixtures/disk-filler", "TestT1Fixtures/archive-bomb", "TestT1Fixtures/memory-filler"},
		edits: []edit{
			{"command.go", "		case <-clock.C:\n			return s.stop(receipt.Timeout, \"timeout\", nil), nil\n", ""},
			{"command.go", "			if m.use.Memory > s.limits.Memory {", "			if m.use.Memory > 8*s.limits.Memory {"},
			{"command.go", "	if s.peak.Disk >= s.limits.Disk-s.limits.Disk/50 {", "	if s.peak.Disk < 0 {"},
			{"streams.go", "	b.left.Store(n)", "	b.left.Store(8 * n)"},
			{"internal/bottle/gvisor/spec.go", "fmt.Sprintf(\"%s,size=%d\", over, p.Limits.Disk)", "fmt.Sprintf(\"%s,size=%d\", over, 16*p.Limits.Disk)"},
			{"scenarios.go", "EndAtPids: true, ", ""},
			{"internal/scenario/run.go", "[]Reason{PidLimit, MemLimit,", "[]Reason{MemLimit,"},
		},
	},
	{
		Name: "endpoints-are-not-listed", Promise: "T1",
		Why:     "an endpoint that was tried in vain is in no slice",
		Package: "./internal/hostile", Tests: []string{"TestT1Fixtures/network-touch"}, Says: "network-touch got through",
		edits: []edit{{"internal/scenario/slices.go", "		if address == \"none\" {\n", "		if address == \"none\" || f.Errno != 0 {\n"}},
	},
	{
		Name: "scenarios-have-rights", Promise: "S1",
		Why:     "a scenario has every capability",
		Package: "./internal/hostile", Tests: []string{"TestT1Fixtures/chown-without-capability", "TestT1Fixtures/mount"}, Says: "got through",
		edits: []edit{
			{"internal/bottle/gvisor/shim.go", "		NoNewPrivileges: true,\n		Capabilities:    &auth.TaskCapabilities{},", "		Capabilities: &auth.TaskCapabilities{PermittedCaps: auth.AllCapabilities, EffectiveCaps: auth.AllCapabilities, InheritableCaps: auth.AllCapabilities, BoundingCaps: auth.AllCapabilities, AmbientCaps: auth.AllCapabilities},"},
		},
	},
	{
		Name: "scenarios-see-the-surroundings", Promise: "S1",
		Why:     "what lies two directories above the workspace is shown with it, so that links to it lead there",
		Package: "./internal/hostile", Tests: []string{"TestT1Fixtures/symlink-race", "TestT1Fixtures/hardlink-race"}, Says: "got through",
		edits: []edit{{"plan.go", "	live := &bottle.Mount{Source: p.source, Target: p.target, Dev: p.ws.Dev, Ino: p.ws.Ino}", "	above := filepath.Dir(filepath.Dir(p.target))\n	live := &bottle.Mount{Source: above, Target: above}"}},
	},
	{
		Name: "renamed-programs-are-lost", Promise: "T1",
		Why:     "shells are known by their names alone, and a program of memory looks like one that can be looked at",
		Package: "./internal/hostile", Tests: []string{"TestT1Fixtures/memfd-exec", "TestT1Fixtures/renamed-shell"}, Says: "got through",
		edits: []edit{
			{"internal/scenario/slices.go", "	k.shell = s.shells[k.digest]\n", ""},
			{"internal/bottle/gvisor/facts_calls.go", "	if vd.Dentry().IsDead() || tmpfs.IsMemfdDentry(vd.Dentry()) {\n		fl = trace.Deleted\n	}\n", ""},
		},
	},
	{
		Name: "printed-facts-are-believed", Promise: "T1",
		Why:     "what a scenario prints is taken for facts if it looks like some",
		Package: "./internal/hostile", Tests: []string{"TestT1Fixtures/fake-trace"}, Says: "fake-trace got through",
		edits: []edit{{"internal/bottle/gvisor/facts_write.go", "	if n > 0 {\n		w.once(t, trace.Write, file)\n	}\n", "	if n > 0 {\n		said := make([]byte, n)\n		if got, err := t.CopyInBytes(from.addr, said); err == nil && got == int(n) {\n			trace.ParseBatch(said, func(f *trace.Fact) { w.emit(f) })\n		}\n		w.once(t, trace.Write, file)\n	}\n"}},
	},
	{
		Name: "missing-calls-succeed", Promise: "S1",
		Why:     "calls that ask for rights are answered as if they had been served",
		Package: "./internal/hostile", Tests: []string{"TestT1Fixtures/keyctl", "TestT1Fixtures/io-uring"}, Says: "got through",
		edits: []edit{{"internal/bottle/gvisor/facts_rights.go", "		r, c, err := orig(t, no, a)\n		w.emit(&trace.Fact{Op: trace.Refused,", "		var r uintptr\n		var c sysControl\n		var err error\n		w.emit(&trace.Fact{Op: trace.Refused,"}},
	},
	{
		Name: "siblings-are-traced", Promise: "S1",
		Why:     "the embedded kernel's rule that only descendants are traced is off",
		Package: "./internal/hostile", Tests: []string{"TestT1Fixtures/ptrace-sibling"}, Says: "ptrace-sibling got through",
		edits: []edit{{"internal/bottle/gvisor/facts_rights.go", "		f := trace.Fact{Op: trace.Ptrace, PID: pidOf(t), A: uint64(a[0].Int64())}\n", "		t.Kernel().YAMAPtraceScope.Store(linux.YAMA_SCOPE_DISABLED)\n		f := trace.Fact{Op: trace.Ptrace, PID: pidOf(t), A: uint64(a[0].Int64())}\n"}},
	},
	{
		Name: "terminals-take-what-is-pushed", Promise: "S1",
		Why:     "whatever is asked to take characters as typed says that it did",
		Package: "./internal/hostile", Tests: []string{"TestT1Fixtures/tiocsti"}, Says: "tiocsti got through",
		edits: []edit{{"internal/bottle/gvisor/facts_rights.go", "		r, c, err := orig(t, no, a)\n		if name, ok := typing[a[1].Uint()]; ok {\n", "		r, c, err := orig(t, no, a)\n		if name, ok := typing[a[1].Uint()]; ok {\n			r, err = 0, nil\n"}},
	},
	{
		Name: "scenarios-can-kill-init", Promise: "S1",
		Why:     "process 1 is one of the scenario's own user",
		Package: "./internal/hostile", Tests: []string{"TestT1Fixtures/signals-to-init", "TestT1Fixtures/proc-self-mem"}, Says: "got through",
		edits: []edit{{"internal/bottle/gvisor/spec.go", "User:            specs.User{UID: initID, GID: initID},", "User:            specs.User{UID: p.User.UID, GID: p.User.GID},"}},
	},
	{
		Name: "scenarios-wait-for-one-another", Promise: "T1",
		Why:     "one scenario is run after the other, so that a light one waits for a heavy one",
		Package: "./internal/hostile", Tests: []string{"TestT1Fixtures/light-sibling"}, Says: "light-sibling got through",
		edits: []edit{{"internal/scenario/run.go", "		go func() { // ends with the scenario", "		func() { // ends with the scenario"}},
	},
	{
		Name: "hooks-of-a-fixture-land", Promise: "S6",
		Why:     "git hooks that a command adds land unasked",
		Package: "./internal/hostile", Tests: []string{"TestT1Fixtures/git-hooks"}, Says: "git-hooks got through",
		edits: []edit{{"internal/change/select.go", "		case len(reasons) > 0 && !opts.IncludeProtected:", "		case false:"}},
	},
	{
		Name: "set-user-id-works", Promise: "S1",
		Why:     "a set-user-id program of root's gives its rights: three walls hold that, the process's own mark, the kernel's setting and the mount's flag, and all are off",
		Package: "./internal/hostile", Tests: []string{"TestT1Fixtures/setuid-no-new-privs"}, Says: "setuid-no-new-privs got through", root: true,
		edits: []edit{{"internal/bottle/gvisor/shim.go", "		NoNewPrivileges: true,\n		Capabilities:    &auth.TaskCapabilities{},", "		Capabilities: &auth.TaskCapabilities{},"}, {"internal/bottle/gvisor/spec.go", "\"allow-suid\":                  \"false\"", "\"allow-suid\":                  \"true\""}, {"internal/bottle/gvisor/root.go", "o := []string{\"rbind\", \"nosuid\", \"nodev\"}", "o := []string{\"rbind\", \"nodev\"}"}},
	},
	{
		Name: "libraries-are-not-told", Promise: "T1",
		Why:     "a file that is mapped to be executed is in no fact of its own",
		Package: inKernel, Tests: []string{"TestFactsOfLibraries"}, Says: "no fact of a library",
		edits: []edit{{"internal/bottle/gvisor/facts_write.go", "		if a[2].Int()&linux.PROT_EXEC != 0 {", "		if false {"}},
	},
	{
		Name: "messages-are-not-told", Promise: "T1",
		Why:     "a message that names its address is in no fact",
		Package: inKernel, Tests: []string{"TestFactsOfMessages"}, Says: "facts of messages to",
		edits: []edit{{"internal/bottle/gvisor/facts_net.go", "	if !w.sends.first(f.PID, f.Errno, to) {", "	if f.Op == trace.Send {"}},
	},
}
