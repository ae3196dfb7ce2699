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
}
