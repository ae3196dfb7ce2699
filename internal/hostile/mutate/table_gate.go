package main

// T2 to T4: gates. Each mutant has a change pass that must not, or gives a verdict
// again that does not hold.

var gateMutants = []mutant{
	{
		Name: "a-signal-without-facts-passes", Promise: "T2",
		Why:     "what could not be judged is left out of the whole",
		Package: "./internal/gate", Tests: []string{"TestNoPass"}, Says: "no trace",
		edits: []edit{{"internal/gate/verdict.go", "Passed: 0, Failed: 1, Unavailable: 2,", "Passed: 0, Failed: 1, Unavailable: 0,"}},
	},
	{
		Name: "a-phase-that-was-ended-counts", Promise: "T2",
		Why:     "a phase that ran out of time is judged by its exit code alone",
		Package: "./internal/gate", Tests: []string{"TestNoPass"}, Says: "out of time",
		edits: []edit{{"internal/gate/run.go", "func (p *Phase) Own() bool { return p.Reason == \"exited\" }", "func (p *Phase) Own() bool { return p.Reason != \"failed\" }"}},
	},
	{
		Name: "lost-facts-do-not-matter", Promise: "T2",
		Why:     "a phase of which the kernel's account has gaps is judged all the same",
		Package: "./internal/gate", Tests: []string{"TestNoPass"}, Says: "lost facts",
		edits: []edit{{"internal/gate/observe.go", "return o != nil && o.Lost == 0 && len(o.Gaps) == 0", "return o != nil"}},
	},
	{
		Name: "a-lost-test-is-fine", Promise: "T2",
		Why:     "a change may drop the tests that it breaks",
		Package: ".", Tests: []string{"TestT2StrictAnd"}, Says: "a lost test",
		edits: []edit{{"internal/gate/kind_tests.go", "		case st == \"\":\n			say(&f.Lost,", "		case st == \"never\":\n			say(&f.Lost,"}},
	},
	{
		Name: "a-report-is-believed", Promise: "T2",
		Why:     "tests are said to have passed whose binary never ran",
		Package: "./internal/gate", Tests: []string{"TestTestsAreSeen"}, Says: "another binary",
		edits: []edit{{"internal/gate/kind_tests.go", "k.format == \"go\" && len(binaries[b]) < named[b] {", "k.format == \"go\" && len(ran) == 0 && b != \"\" {"}},
	},
	{
		Name: "a-link-may-lead-out", Promise: "T2",
		Why:     "a change brings a link out of the tree",
		Package: ".", Tests: []string{"TestT2StrictAnd"}, Says: "a link out, in steps",
		edits: []edit{{"internal/gate/kind_policy.go", "at == \"..\" || strings.HasPrefix(at, \"../\")", "at == \"..\""}},
	},
	{
		Name: "opinions-are-facts", Promise: "T2",
		Why:     "a command may report its own confidence, and pass by it",
		Package: "./internal/gate", Tests: []string{"TestNoOpinions"}, Says: "is taken",
		edits: []edit{{"internal/gate/kind_command.go", "		if opinion(n) {", "		if opinion(n) && n == \"\" {"}},
	},
	{
		Name: "the-change-judges-itself", Promise: "T3",
		Why:     "the catalog is read from the change",
		Package: ".", Tests: []string{"TestT3JudgesAreTheBases"}, Says: "own catalog judged it",
		edits: []edit{{"gate.go", "b, err := g.Base.Read(ctx, gate.CatalogPath)", "b, err := g.Change.Read(ctx, gate.CatalogPath)"}},
	},
	{
		Name: "a-catalog-of-the-work-tree", Promise: "T3",
		Why:     "--catalog takes a file that the change can have written",
		Package: ".", Tests: []string{"TestT3JudgesAreTheBases"}, Says: "a catalog of the work tree judges",
		edits: []edit{{"gate.go", "	if within(abs, w.dir) {", "	if abs == w.dir {"}},
	},
	{
		Name: "the-catalog-is-not-frozen", Promise: "T3",
		Why:     "a change to what judges the next one goes through unseen",
		Package: ".", Tests: []string{"TestT2StrictAnd"}, Says: "the catalog: ",
		edits: []edit{{"internal/gate/kind_policy.go", "{\".carboy/**\", \".git/**\"}", "{\".git/**\"}"}},
	},
	{
		Name: "a-file-that-was-read-is-no-input", Promise: "T4",
		Why:     "a verdict is given again though a file that decided it is another",
		Package: "./internal/gate", Tests: []string{"TestT4EveryInputCounts"}, Says: "a file that was read",
		edits: []edit{{"internal/gate/cache.go", "			seen[p.On][f] = true\n", "			seen[p.On][f+\"?\"] = true\n"}},
	},
	{
		Name: "a-missing-file-is-no-input", Promise: "T4",
		Why:     "a file that was looked for in vain comes, and nobody notices",
		Package: "./internal/gate", Tests: []string{"TestT4EveryInputCounts"}, Says: "was looked for in vain:",
		edits: []edit{{"internal/gate/cache.go", "p.Observed.Opened, p.Observed.Missed, p.Observed.Listed", "p.Observed.Opened, p.Observed.Listed"}},
	},
	{
		Name: "the-build-is-no-input", Promise: "T4",
		Why:     "what another carboy decided is given again",
		Package: "./internal/gate", Tests: []string{"TestT4EveryInputCounts"}, Says: "another carboy",
		edits: []edit{{"internal/gate/cache.go", "if in.Given[n] != given[n] || given[n] == \"\" {", "if n != \"carboy\" && (in.Given[n] != given[n] || given[n] == \"\") {"}},
	},
	{
		Name: "the-network-is-no-input", Promise: "T4",
		Why:     "a phase that asked the network is not asked again",
		Package: "./internal/gate", Tests: []string{"TestT4EveryInputCounts"}, Says: "what the network answers",
		edits: []edit{{"internal/gate/cache.go", "		if now.Answers[k] != was.Answers[k] {\n", "		if now.Answers[k] == \"\" {\n"}},
	},
	{
		Name: "git-prefers-a-tag", Promise: "T3",
		Why:     "a tag that came with a fetch is the base, in the place of the branch of its name",
		Package: "./internal/gate", Tests: []string{"TestT3RepositoriesThatLie"}, Says: "main is",
		edits: []edit{{"internal/gate/git.go", "	if len(ids) > 1 ||", "	if len(ids) > 9 ||"}},
	},
	{
		Name: "a-tag-among-many", Promise: "T3",
		Why:     "names are looked up at once, and each that git knows has one meaning",
		Package: "./internal/gate", Tests: []string{"TestT3RepositoriesThatLie"}, Says: "at once: main is",
		edits: []edit{{"internal/gate/git.go", "func(rev string) bool { return several[rev] != nil })", "func(rev string) bool { return several[rev] != nil && rev == \"\" })"}},
	},
	{
		Name: "a-graph-of-commits-is-believed", Promise: "T3",
		Why:     "a file beside git's objects says where the change left the main line",
		Package: "./internal/gate", Tests: []string{"TestT3RepositoriesThatLie"}, Says: "the graph is believed",
		edits: []edit{{"internal/hostexec/gitenv.go", "	{\"core.commitGraph\", \"false\"},\n", ""}},
	},
	{
		Name: "objects-are-not-checked", Promise: "T3",
		Why:     "what lies under an object's name is judged for it",
		Package: "./internal/gate", Tests: []string{"TestT3RepositoriesThatLie"}, Says: "name stands for another's content",
		edits: []edit{{"internal/gate/git.go", "if objectID(kind, rest[:x.Size], len(x.id)) != x.id {", "if len(x.id) == 0 {"}},
	},
	{
		Name: "frozen-files-have-one-name", Promise: "T3",
		Why:     "a frozen file is changed by way of where a link leads",
		Package: "./internal/gate", Tests: []string{"TestT2StaticAttacks"}, Says: "a link to what is frozen",
		edits: []edit{{"internal/gate/kind_policy.go", "			for link, to := range leads {\n", "			for link, to := range map[string]string{} {\n"}},
	},
	{
		Name: "what-runs-may-change", Promise: "T3",
		Why:     "a change edits the script that a signal runs",
		Package: "./internal/gate", Tests: []string{"TestT2StaticAttacks"}, Says: "what the catalog runs",
		edits: []edit{{"internal/gate/kind_policy.go", "	if !p.runners && c.g != nil {", "	if p.runners && c.g != nil {"}},
	},
	{
		Name: "history-is-not-looked-at", Promise: "T2",
		Why:     "a secret that a later commit removes goes out with the branch",
		Package: "./internal/gate", Tests: []string{"TestT2StaticAttacks"}, Says: "came and went",
		edits: []edit{{"internal/gate/git.go", "	if t.repo == nil || base.repo == nil || t.Commit == base.Commit {", "	if t.repo == nil || base.repo == nil || t.Commit != \"\" {"}},
	},
	{
		Name: "a-test-moves-and-is-emptied", Promise: "T2",
		Why:     "tests are known by their files alone",
		Package: "./internal/gate", Tests: []string{"TestT2EmptiedInOtherWays"}, Says: "emptied on the way",
		edits: []edit{{"internal/gate/emptied.go", "			return test{path.Dir(p), name}", "			return test{p, name}"}},
	},
	{
		Name: "replacements-hide-replacements", Promise: "T2",
		Why:     "the last replacement of a module counts for all its versions",
		Package: "./internal/gate", Tests: []string{"TestT2LockfilesThatLie"}, Says: "behind one that never counts",
		edits: []edit{{"internal/gate/lockfile.go", "		if x, ok := replaced[m]; ok {\n			m = x\n		} else if", "		if"}},
	},
	{
		Name: "trees-may-change-meanwhile", Promise: "T2",
		Why:     "another content runs than was judged",
		Package: "./internal/gate", Tests: []string{"TestT2TreesThatChange"}, Says: "is laid out",
		edits: []edit{{"internal/gate/tree.go", "ok && sum != sha256.Sum256(b) {", "ok && len(sum) == 0 {"}},
	},
	{
		Name: "no-policy-no-judges", Promise: "T3",
		Why:     "a catalog that asks for no policy lets a change write the next one",
		Package: "./internal/gate", Tests: []string{"TestT3JudgesWithoutPolicy"}, Says: "edited",
		edits: []edit{{"internal/gate/run.go", "	if r := g.judgesTouched(); r != nil {", "	if r := g.judgesTouched(); r != nil && len(results) == 0 {"}},
	},
	{
		Name: "inputs-are-not-on-record", Promise: "T4",
		Why:     "what a verdict depended on is what a file says by now",
		Package: ".", Tests: []string{"TestT4InputsAreRecorded"}, Says: "is given to the bad one",
		edits: []edit{{"gate.go", "		if err := w.c.onRecord(ctx, v.ID, inputsOf, b); err != nil {", "		if err := w.c.onRecord(ctx, v.ID, inputsOf, b); err != nil && len(b) == 0 {"}},
	},
	{
		Name: "a-branch-for-a-run", Promise: "T3",
		Why:     "a branch is judged in the place of the run that it is called like",
		Package: ".", Tests: []string{"TestT3NamesOfRuns"}, Says: "a branch by the run's name",
		edits: []edit{{"gate.go", "err == nil && string(m.Workspace.Path) == w.dir {\n			return fmt.Errorf(\"change", "err == nil && string(m.Workspace.Path) == \"\" {\n			return fmt.Errorf(\"change"}},
	},
}
