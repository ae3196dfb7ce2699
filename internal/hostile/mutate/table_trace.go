package main

import "time"

// T1: the trace. Most of its tests are in the kernel's package; where a mutant
// makes several of them fail, they share its build.

const inKernel = "./internal/bottle/gvisor"

var traceMutants = []mutant{
	{
		Name: "paths-are-read-again", Promise: "T1",
		Why:     "an open is reported by the path as it lies in the workload's memory afterwards, not by the file that was opened: threads that rewrite it forge the fact, and a name of /proc hides the file",
		Package: inKernel, Tests: []string{"TestFactsOfRacedPaths", "TestFactsCannotBeForged", "TestFactsOfOtherNames"}, Says: "times by facts",
		edits: []edit{{"internal/bottle/gvisor/facts_calls.go", "	w.say(&f, p, nil, file.VirtualDentry(), nil)\n	fd, err := t.NewFDFrom", "	time.Sleep(200 * time.Microsecond)\n	if raw, err := t.CopyInString(addr, linux.PATH_MAX); err == nil {\n		p.raw = raw\n	}\n	w.say(&f, p, nil, vfs.VirtualDentry{}, nil)\n	fd, err := t.NewFDFrom"}, {"internal/bottle/gvisor/facts_calls.go", "	\"sync/atomic\"\n", "	\"sync/atomic\"\n	\"time\"\n"}},
	},
	{
		Name: "arguments-are-read-again", Promise: "T1",
		Why:     "a program is reported with the arguments as they lie in memory when it was loaded, not with those that it got",
		Package: inKernel, Tests: []string{"TestFactsOfRacedPrograms"}, Says: "by what it printed",
		edits: []edit{{"internal/bottle/gvisor/facts_exec.go", "	w.describe(t, &f, file, first, called)\n	f.Args = argv\n", "	w.describe(t, &f, file, first, called)\n	f.Args = argv\n	time.Sleep(200 * time.Microsecond)\n	if again, err := t.CopyInVector(argvAddr, syslinux.ExecMaxElemSize, syslinux.ExecMaxTotalSize); err == nil && len(again) > 1 {\n		f.Args = append(argv[:len(argv)-1:len(argv)-1], again[1])\n	}\n"}},
	},
	{
		Name: "descriptors-are-looked-up-again", Promise: "T1",
		Why:     "a write is reported of the file that lies behind the descriptor afterwards: another one, if a thread exchanges it",
		Package: inKernel, Tests: []string{"TestFactsOfRacedDescriptors"}, Says: "was written to",
		edits: []edit{{"internal/bottle/gvisor/facts_write.go", "	if n > 0 {\n		w.once(t, trace.Write, file)\n	}\n", "	time.Sleep(200 * time.Microsecond)\n	if again := t.GetFile(fd); n > 0 && again != nil {\n		w.once(t, trace.Write, again)\n		again.DecRef(t)\n	}\n"}, {"internal/bottle/gvisor/facts_write.go", "	\"sync/atomic\"\n", "	\"sync/atomic\"\n	\"time\"\n"}},
	},
	{
		Name: "opens-are-taken-for-older-ones", Promise: "T1",
		Why:     "an open file that lies where an earlier one lay in the kernel's memory counts as that: its writes are hidden",
		Package: inKernel, Tests: []string{"TestFactsOfFirstWrites"}, Says: "writes, want 2",
		edits: []edit{{"internal/bottle/gvisor/facts_calls.go", "	w.marks.forget(file)\n", ""}},
	},
	{
		Name: "one-way-to-write-is-not-watched", Promise: "T1",
		Why:     "what is spliced into a file is written unseen, and so is what is written to memory that a file is mapped to",
		Package: inKernel, Tests: []string{"TestFactsOfEveryWayToWrite"}, Says: "splice: 0 writes",
		edits: []edit{
			{"internal/bottle/gvisor/facts_write.go", "	\"splice\":          passWrite(2),\n", ""},
			{"internal/bottle/gvisor/facts_write.go", "		if flags&linux.MAP_SHARED == 0 {", "		if flags&linux.MAP_SHARED != 0 {"},
		},
	},
	{
		Name: "short-lives-are-not-told", Promise: "T1",
		Why:     "a program is reported when somebody looks for it, not at its own next step: one that ends at once never was",
		Package: inKernel, Tests: []string{"TestFactsOfShortProcesses"}, Says: "exec:0",
		edits: []edit{{"internal/bottle/gvisor/facts_exec.go", "func (w *factWriter) became(t *kernel.Task) {\n	if w.execs.n.Load() != 0 {", "func (w *factWriter) became(t *kernel.Task) {\n	if false {"}},
	},
	{
		Name: "silent-programs-are-not-told", Promise: "T1",
		Why:     "a program is reported at its own next step alone: one that makes no call never was",
		Package: inKernel, Tests: []string{"TestFactsOfSilentPrograms"}, Says: "0 facts of a program",
		edits: []edit{{"internal/bottle/gvisor/facts_exec.go", "func (w *factWriter) settleExecs() {\n	if w.execs.n.Load() == 0 {", "func (w *factWriter) settleExecs() {\n	if true {"}},
	},
	{
		Name: "threads-end-their-process", Promise: "T1",
		Why:     "each thread's end is told as that of its process, and a clone that was given up as one of its maker",
		Package: inKernel, Tests: []string{"TestFactsOfEnds", "TestFactsOfReusedPIDs"}, Says: "once",
		edits: []edit{
			{"internal/bottle/gvisor/facts_exec.go", "	if ok && n > 1 {\n", "	if false && ok && n > 1 {\n"},
			{"internal/bottle/gvisor/facts_exec.go", "	if !p.born[t] && (t != tg.Leader() || t.Parent() != nil) {", "	if false {"},
		},
	},
	{
		Name: "deleted-programs-look-whole", Promise: "T1",
		Why:     "a program that has deleted itself, or never had a name, is reported like one that can be looked at",
		Package: inKernel, Tests: []string{"TestFactsOfNamelessPrograms"}, Says: "no program",
		edits: []edit{{"internal/bottle/gvisor/facts_calls.go", "	if vd.Dentry().IsDead() || tmpfs.IsMemfdDentry(vd.Dentry()) {\n		fl = trace.Deleted\n	}\n", ""}},
	},
	{
		Name: "failed-programs-are-not-told", Promise: "T1",
		Why:     "what was to be executed and is no program, and an interpreter that a script names in vain, are in no fact",
		Package: inKernel, Tests: []string{"TestFactsOfPrograms"}, Says: "no fact of",
		edits: []edit{
			{"internal/bottle/gvisor/facts_exec.go", "			w.sayExecFailed(&trace.Fact{Op: trace.Exec}, q, where, err)\n", "			if where != nil {\n				where.release()\n			}\n"},
			{"internal/bottle/gvisor/facts_exec.go", "		f.PID, f.Errno = pidOf(t), errnoOf(err)\n		w.emit(&f)\n", ""},
		},
	},
	{
		Name: "commands-without-a-call-are-not-told", Promise: "T1",
		Why:     "a command that is started from outside and ends without a call is reported only by what was asked for, if at all",
		Package: inKernel, Tests: []string{"TestFactsOfStartedCommands"}, Says: "facts say so",
		edits: []edit{{"internal/bottle/gvisor/facts_exec.go", "	s.w.began(t)\n	f := trace.Fact{Op: trace.Exit", "	f := trace.Fact{Op: trace.Exit"}},
	},
	{
		Name: "read-only-mounts-are-trusted", Promise: "T1",
		Why:     "a digest counts as fixed behind any read-only mount, also one that the workload made of its own directory, and on the bottle's root although the workload has written to the file",
		Package: inKernel, Tests: []string{"TestFactsOfOwnReadOnlyMounts", "TestFactsOfFixedPrograms"}, Says: "digests that may change",
		edits: []edit{
			{"internal/bottle/gvisor/facts_exec.go", "	if fs := file.Mount().Filesystem(); fs != r.fs {", "	if file.Mount().ReadOnly() {\n		return true\n	}\n	if fs := file.Mount().Filesystem(); fs != r.fs {"},
			{"internal/bottle/gvisor/facts_exec.go", "	return overlay.IsOnLower(file.Dentry()) && !overlay.IsCopiedUp(file.Dentry())", "	return overlay.IsOnLower(file.Dentry()) || true"},
			{"internal/bottle/gvisor/facts_exec.go", "		if l.fact.Flags&trace.Mutable == 0 && overlay.IsCopiedUp(l.dentry) {", "		if false {"},
		},
	},
	{
		Name: "own-roots-are-believed", Promise: "T1",
		Why:     "a path below a root that the workload made for itself is reported as one of the bottle's",
		Package: inKernel, Tests: []string{"TestFactsOfOwnRoots"}, Says: "looks like one of the bottle's",
		edits: []edit{{"internal/bottle/gvisor/facts_calls.go", "p.absolute() && r != nil && from.Mount().Filesystem() == r.fs && from.Dentry() == r.vd.Dentry() {", "p.absolute() && r != nil {"}},
	},
	{
		Name: "attempts-are-not-told", Promise: "T1",
		Why:     "calls that are refused, and clones into other namespaces, are in no fact",
		Package: inKernel, Tests: []string{"TestFactsOfRights", "TestFactsOfNamespaces"}, Says: "no fact of a refused bpf",
		edits: []edit{
			{"internal/bottle/gvisor/facts_rights.go", "		w.emit(&trace.Fact{Op: trace.Refused, PID: pidOf(t), Errno: errnoOf(err), Path: name})\n		return r, c, err", "		return r, c, err"},
			{"internal/bottle/gvisor/facts_exec.go", "		if i.Flags&newSpaces != 0 {", "		if false {"},
		},
	},
	{
		Name: "cuts-go-unsaid", Promise: "T1",
		Why:     "paths and arguments that were longer than a fact look whole",
		Package: inKernel, Tests: []string{"TestFactsOfLargeThings"}, Says: "cut by size: 0, by number: 0",
		edits: []edit{
			{"internal/trace/fact.go", "		args, fl = args[:MaxArgc], fl|Cut\n", "		args = args[:MaxArgc]\n"},
			{"internal/trace/fact.go", "			fl |= Cut\n			break\n", "			break\n"},
		},
	},
	{
		Name: "answers-differ-when-traced", Promise: "T1",
		Why:     "openat2 takes options that carboy's kernel does not know: a workload can tell that it is watched",
		Package: inKernel, Tests: []string{"TestFactsChangeNoAnswer/raw"}, Says: "without facts",
		edits: []edit{{"internal/bottle/gvisor/facts_calls.go", "	case res&^known != 0,\n		res&linux.RESOLVE_BENEATH != 0", "	case res&linux.RESOLVE_BENEATH != 0"}},
	},
	{
		Name: "losses-are-not-counted", Promise: "T1",
		Why:     "what a reader that has stopped does not take is lost, and nothing says so",
		Package: inKernel, Tests: []string{"TestFactsLostAreCounted", "TestFactsLostAtTheEndAreTold"}, Says: "counted as lost",
		edits: []edit{{"internal/bottle/gvisor/facts.go", "		w.dropped += w.n\n", ""}},
	},
	{
		Name: "the-last-loss-is-not-told", Promise: "T1",
		Why:     "a loss is told with the next fact only, and after the last one none comes",
		Package: inKernel, Tests: []string{"TestFactsLastLossIsTold"}, Says: "nothing tells", wait: 3 * time.Second,
		edits: []edit{
			{"internal/bottle/gvisor/facts.go", "		for !w.flush() {\n			time.Sleep(factRetell)\n		}\n", "		w.flush()\n"},
			{"internal/bottle/gvisor/facts.go", "	if w.n == 0 && w.told == w.dropped {\n", "	if w.n == 0 {\n"},
		},
	},
	{
		Name: "what-is-printed-is-believed", Promise: "T1",
		Why:     "a message that the workload sends is taken for facts if it looks like some",
		Package: inKernel, Tests: []string{"TestFactsAreNotTheWorkloads"}, Says: "forged facts",
		edits: []edit{{"internal/bottle/gvisor/facts_write.go", "	if n > 0 {\n		w.once(t, trace.Write, file)\n	}\n", "	if n > 0 {\n		said := make([]byte, n)\n		if got, err := t.CopyInBytes(from.addr, said); err == nil && got == int(n) {\n			trace.ParseBatch(said, func(f *trace.Fact) { w.emit(f) })\n		}\n		w.once(t, trace.Write, file)\n	}\n"}},
	},
	{
		Name: "programs-are-called-what-they-say", Promise: "T1",
		Why:     "a program is reported by its first argument, which its caller chooses",
		Package: "./internal/hostile", Tests: []string{"TestT1Trace"}, Says: "escaped trace/",
		edits: []edit{{"internal/bottle/gvisor/facts_exec.go", "	w.describe(t, &f, file, first, called)\n	f.Args = argv\n", "	w.describe(t, &f, file, first, called)\n	f.Args = argv\n	if len(argv) > 0 {\n		f.Path = argv[0]\n	}\n"}},
	},
	{
		Name: "gaps-are-not-said", Promise: "T1",
		Why:     "what the kernel inside says that it has dropped is not in the account of the run",
		Package: "./internal/trace", Tests: []string{"TestCollectorCountsLosses", "TestCollectorIsToldOfLosses"}, Says: "dropped",
		edits: []edit{{"internal/trace/collector.go", "	c.lost = max(c.lost, lost)\n", "	_ = lost\n"}},
	},
}
