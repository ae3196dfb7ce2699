package main

// T2: the loop of attempts, its ledger, and what it pushes.

var workMutants = []mutant{
	{
		Name: "pushes-what-nobody-judged", Promise: "T2",
		Why:     "what the workspace holds by now is pushed for what was judged",
		Package: ".", Tests: []string{"TestWorkPushRefused"}, Says: "what nobody judged was pushed",
		edits: []edit{{"workpush.go", "	} else if sum != a.Tree {", "	} else if sum != a.Tree && sum == \"\" {"}},
	},
	{
		Name: "an-override-of-another-work", Promise: "H2",
		Why:     "what a person let go on in one work lets another one's change go on, which they never saw",
		Package: ".", Tests: []string{"TestWorkOverrideOfAnotherTree"}, Says: "an override of another work's change counts",
		edits: []edit{
			{"gate.go", "			if w.o.exact {", "			if w.o.exact && false {"},
			{"attempts.go", "v.Override != nil && v.Change.Digest == a.Tree {", "v.Override != nil {"},
		},
	},
	{
		Name: "work-past-the-gate", Promise: "T2",
		Why:     "the agent of work writes to the user's directory, and nothing is left to judge",
		Package: ".", Tests: []string{"TestWorkNeverBegan"}, Says: "bind: ",
		edits: []edit{{"attempts.go", "	case store.Overlay, store.Copy:\n", "	case store.Overlay, store.Copy, store.Bind:\n"}, {"attempts.go", "	case store.Bind:\n", "	case \"other\":\n"}},
	},
	{
		Name: "an-agent-ends-its-work", Promise: "T2",
		Why:     "what no tree can hold ends the work without a verdict, each time that it is continued",
		Package: ".", Tests: []string{"TestWorkUnjudgeable"}, Says: "pipe",
		edits: []edit{{"attempts.go", "	case errors.As(err, &bad) && bad.Tree == \"run \"+string(a.Run):", "	case errors.As(err, &bad) && bad.Tree == \"\":"}},
	},
	{
		Name: "an-agent-wedges-its-work", Promise: "T2",
		Why:     "an agent that removes its own program has the same attempt made in vain for ever",
		Package: ".", Tests: []string{"TestWorkSpoiltBottle"}, Says: "the agent never began",
		edits: []edit{{"attempts.go", "	case slug != \"\" && spoiled(", "	case slug == \"-\" && spoiled("}},
	},
	{
		Name: "names-of-files-are-told", Promise: "T2",
		Why:     "the name of a file that no tree holds tells the model what to do",
		Package: "./internal/gate", Tests: []string{"TestChangeFeedback"}, Says: "is told as",
		edits: []edit{{"internal/gate/overlay.go", "harmless(red, e.Path, 200) + \":\"", "e.Path + \":\""}},
	},
	{
		Name: "the-next-agent-begins", Promise: "T2",
		Why:     "work goes on with the gate and the next agent after it was interrupted",
		Package: ".", Tests: []string{"TestWorkStops"}, Says: "<nil>",
		edits: []edit{{"attempts.go", "		if w.relay.heard() != nil {", "		if w.relay.heard() != nil && ctx == nil {"}},
	},
	{
		Name: "a-second-signal-waits", Promise: "T2",
		Why:     "whoever interrupts work twice waits for what hangs in it, as with the first",
		Package: "./cmd/carboy", Tests: []string{"TestStoppedWork"}, Says: "ended with 130, want 143",
		edits: []edit{{"cmd/carboy/work.go", "			os.Exit(signalCode(s))\n", "			return\n"}},
	},
	{
		Name: "trees-say-how-they-are-pushed", Promise: "T2",
		Why:     "a .gitattributes of the change has its files committed as others than were judged",
		Package: ".", Tests: []string{"TestWorkPushRefused"}, Says: "was pushed as",
		edits: []edit{{"workpush.go", "echo '* -text -ident -filter !working-tree-encoding' >\"$GIT_DIR/info/attributes\"\n", ""}},
	},
	{
		Name: "branches-are-moved", Promise: "T2",
		Why:     "a branch that stands upstream is moved forward by what was to be a new one",
		Package: ".", Tests: []string{"TestWorkPushRefused"}, Says: "a branch that stood upstream was moved",
		edits: []edit{{"workpush.go", " --force-with-lease=\"refs/heads/$8:\"", ""}},
	},
	{
		Name: "steps-without-a-record-count", Promise: "T2",
		Why:     "a step counts that somebody wrote into the directory of the work",
		Package: ".", Tests: []string{"TestWorkContinues"}, Says: "a step that is not on record counts",
		edits: []edit{
			{"attempts.go", "			loose = f\n			continue\n", ""},
			{"attempts.go", "	if len(recorded) != len(w.steps) {", "	if len(recorded) > len(w.steps) {"},
		},
	},
	{
		Name: "steps-are-taken-back", Promise: "T2",
		Why:     "whoever removes the last step has its attempt once more",
		Package: ".", Tests: []string{"TestWorkContinues"}, Says: "taken back: <nil>",
		edits: []edit{{"attempts.go", "	if len(recorded) != len(w.steps) {", "	if len(recorded) < len(w.steps) {"}},
	},
	{
		Name: "half-a-line-is-told", Promise: "T2",
		Why:     "the account for the agent is cut within a line, where half a token is not seen to be one",
		Package: "./internal/gate", Tests: []string{"TestFirstErrors"}, Says: "half a line is told",
		edits: []edit{{"internal/gate/kind_build.go", "first, last = first[:i], last[j:]; ", ""}},
	},
}
