package main

// G1 and G3, of the git gate itself.

var gitGateMutants = []mutant{
	{
		Name: "some-read-is-all-read", Promise: "G1",
		Why:     "what could not be read while a pack came is not read afterwards either",
		Package: "./internal/gitgate", Tests: []string{"TestSmuggle"}, Says: "left:",
		edits: []edit{{"internal/gitgate/quarantine.go", "	case known == listed:\n", "	case known > 0:\n"}},
	},
	{
		Name: "read-in-two-ways", Promise: "G1",
		Why:     "a pack passes in which other objects were read than those that git sees",
		Package: "./internal/gitgate", Tests: []string{"TestReadAhead"}, Says: "an object that git does not see: <nil>",
		edits: []edit{{"internal/gitgate/quarantine.go", "	case known != len(a.read):\n", "	case false:\n"}},
	},
	{
		Name: "secrets-of-a-moment-ago", Promise: "G1",
		Why:     "what becomes a secret while a push is on its way leaves with it",
		Package: "./internal/gitgate", Tests: []string{"TestSecretsOfTheMoment"}, Says: "was pushed",
		edits: []edit{{"internal/gitgate/inspect.go", " || !maps.EqualFunc(in.secrets, p.g.secrets(), secret.Value.Equal) {", " || maps.Equal(map[int]int{}, map[int]int{1: 1}) {"}},
	},
	{
		Name: "innocent-by-another-name", Promise: "G1",
		Why:     "a file that was pushed as another becomes .gitmodules without being checked as one",
		Package: "./internal/gitgate", Tests: []string{"TestHarmfulObjects"}, Says: "was pushed",
		edits: []edit{{"internal/gitgate/inspect.go", "		if err := p.q.settle(ctx, p.rp, p.req.updates); err != nil {\n", "		if err := error(nil); err != nil {\n"}},
	},
	{
		Name: "names-are-not-read", Promise: "G1",
		Why:     "a secret leaves as the name of a file",
		Package: "./internal/gitgate", Tests: []string{"TestSmuggle"}, Says: "left:",
		edits: []edit{{"internal/gitgate/inspect.go", "		err = in.fileNames()\n", "		err = nil\n"}},
	},
	{
		Name: "pushes-are-forgotten", Promise: "G1",
		Why:     "a secret leaves in two pushes, half in each",
		Package: "./internal/gitgate", Tests: []string{"TestSplitOverPushes"}, Says: "refused: false",
		edits: []edit{{"internal/gitgate/inspect.go", "Coverage: in.g.coverage, ", ""}},
	},
	{
		Name: "asked-about-the-hosts-own", Promise: "G1",
		Why:     "a person can be asked to let a secret of the host's go",
		Package: "./internal/gitgate", Tests: []string{"TestInlineAllow"}, Says: "went on: true",
		edits: []edit{{"internal/gitgate/decide.go", "f.within() && !f.known\n", "f.within()\n"}},
	},
	{
		Name: "asked-about-the-first-line", Promise: "G1",
		Why:     "a key of several lines leaves when a person allows the first of them",
		Package: "./internal/gitgate", Tests: []string{"TestInlineAllow"}, Says: "went on: true",
		edits: []edit{{"internal/gitgate/old.go", " && f.length > 0 && f.column+f.length <= len(f.code)", ""}},
	},
	{
		Name: "all-lines-are-old", Promise: "G1",
		Why:     "a line counts as upstream's whatever it says",
		Package: "./internal/gitgate", Tests: []string{"TestOldLines"}, Says: "went on: true",
		edits: []edit{{"internal/gitgate/old.go", "return bytes.Equal(l, f.code)", "return true"}},
	},
	{
		Name: "read-up-to-what-was-found", Promise: "G1",
		Why:     "what can't be read leaves behind a line that a person allows",
		Package: "./internal/gitgate", Tests: []string{"TestUnreadBehindAllowed"}, Says: "went on: true",
		edits: []edit{{"internal/gitgate/inspect.go", "		one.Rule, one.indirect = \"unreadable\", true\n", "		if one.Rule, one.indirect = \"unreadable\", true; n > 0 {\n			return nil\n		}\n"}},
	},
	{
		Name: "fetches-are-not-read", Promise: "G1",
		Why:     "a secret leaves as the name of what is fetched",
		Package: "./internal/gitgate", Tests: []string{"TestFetchSpells"}, Says: "it left",
		edits: []edit{{"internal/gitgate/fetch.go", "		err = g.asking(req)\n", ""}},
	},
	{
		Name: "arguments-of-all-kinds", Promise: "G3",
		Why:     "a bottle has upstream send it elsewhere for its packs",
		Package: "./internal/gitgate", Tests: []string{"TestHostileRequests"}, Says: "argument that fetch does not have",
		edits: []edit{{"internal/gitgate/request.go", "	return badRequest(\"an argument that fetch does not have\")\n", "	return nil\n"}},
	},
	{
		Name: "any-host-will-do", Promise: "G2",
		Why:     "the gate logs in to whoever answers in the host's place",
		Package: "./internal/gitgate", Tests: []string{"TestHostileSSH"}, Says: "host key is not the one",
		edits: []edit{{"internal/gitgate/ssh.go", "					if bytes.Equal(k.Marshal(), key.Marshal()) {\n", "					if bytes.Equal(k.Marshal(), k.Marshal()) {\n"}},
	},
	{
		Name: "the-token-follows", Promise: "G2",
		Why:     "a redirect takes the gate to another host",
		Package: "./internal/gitgate", Tests: []string{"TestRedirects"}, Says: "host",
		edits: []edit{{"internal/gitgate/https.go", "	case next.URL.Scheme != first.Scheme || next.URL.Host != first.Host:\n", "	case false:\n"}},
	},
	{
		Name: "some-or-none", Promise: "G3",
		Why:     "of several references those are changed that upstream takes",
		Package: "./internal/gitgate", Tests: []string{"TestAtomic"}, Says: "changed: true",
		edits: []edit{{"internal/gitgate/commands.go", "	if len(p.updates) > 1 || p.has(\"atomic\") {\n", "	if p.has(\"atomic\") {\n"}},
	},
	{
		Name: "silence-is-done", Promise: "G3",
		Why:     "a reference that upstream says nothing of counts as changed",
		Package: "./internal/gitgate", Tests: []string{"TestHostileReports"}, Says: "pushed: true",
		edits: []edit{{"internal/gitgate/push.go", "			updates[i].Result = \"upstream says nothing of it\"\n", "			updates[i].Result = \"ok\"\n"}},
	},
	{
		Name: "quarantine-is-kept", Promise: "G3",
		Why:     "what was refused stays on the disk",
		Package: "./internal/gitgate", Tests: []string{"TestHostilePacks", "TestHarmfulObjects"}, Says: "quarantine is left",
		edits: []edit{{"internal/gitgate/quarantine.go", "	_ = os.RemoveAll(q.dir)\n	<-q.g.kept\n", "	<-q.g.kept\n"}},
	},
	{
		Name: "killed-and-left", Promise: "G3",
		Why:     "what a killed gate left is there for the next",
		Package: "./internal/gitgate", Tests: []string{"TestKilledGate"}, Says: "there is",
		edits: []edit{{"internal/gitgate/gitgate.go", "		if strings.HasPrefix(e.Name(), \"push-\") || strings.HasPrefix(e.Name(), \"base-\") {\n", "		if false {\n"}},
	},
}
