package main

// W5, H1: what bottles ask people.

var askingMutants = []mutant{
	{
		Name: "every-value-is-the-approved-one", Promise: "W5",
		Why:     "the name of a value that was held back does not depend on the value",
		Package: "./internal/gateway", Tests: []string{"TestHeldByValue"}, Says: "another one beside it: 200",
		edits: []edit{{"internal/gateway/ask.go", "	m.Write(value)\n", ""}},
	},
	{
		Name: "any-number-of-requests-wait", Promise: "H1",
		Why:     "a bottle has people asked about as many requests at once as it likes",
		Package: "./internal/gateway", Tests: []string{"TestHeldIsBounded"}, Says: "one more: 200",
		edits: []edit{{"internal/gateway/ask.go", "g.asking.waiting.Add(1) > maxAsking {", "g.asking.waiting.Add(1) > 1<<20 {"}},
	},
	{
		Name: "pages-use-the-tools", Promise: "H1",
		Why:     "a page of another server that a browser inside shows proposes in the agent's name",
		Package: "./internal/supervise/tools", Tests: []string{"TestRequests"}, Says: "another origin: 200",
		edits: []edit{{"internal/supervise/tools/tools.go", "case len(origin) > 1 || len(origin) == 1 && origin[0] != \"http://\"+s.o.Name:", "case len(origin) > 9:"}},
	},
	{
		Name: "tools-take-what-they-do-not-know", Promise: "H1",
		Why:     "what a tool has no field for is left out, so that something else is proposed than was asked for",
		Package: ".", Tests: []string{"TestNothingInsideAnswers"}, Says: "ASKED with",
		edits: []edit{{"internal/supervise/tools/tools.go", "	d.DisallowUnknownFields()\n", ""}},
	},
	{
		Name: "decisions-are-forgotten", Promise: "H2",
		Why:     "what was decided for a bottle is not what it has when it is resumed",
		Package: ".", Tests: []string{"TestPeopleResume"}, Says: "asked again",
		edits: []edit{{"people.go", "	if a.lock != nil {\n		data, err", "	if false {\n		data, err"}},
	},
}
