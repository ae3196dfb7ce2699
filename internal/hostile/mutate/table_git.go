package main

// G1 to G3: code leaves by the git gate, which reads it and holds the keys.

var gitMutants = []mutant{
	{
		Name: "pushes-behind-refusals", Promise: "A1",
		Why:     "a command that has itself refused often enough pushes without a record",
		Package: ".", Tests: []string{"TestPushesAreNotHidden"}, Says: "no room for a push",
		edits: []edit{{"ledger.go", "	if ev.Kind == audit.GitPush && ev.Decision != audit.Refused {\n", "	if false {\n"}},
	},
	{
		Name: "pushes-go-on-unread", Promise: "G1",
		Why:     "what is pushed goes on to upstream without having been looked at",
		Package: "./internal/gitgate", Tests: []string{"TestSmuggle"}, Says: "... left:",
		edits: []edit{{"internal/gitgate/push.go", "		err = p.judge(r.Context())\n", "		err = nil\n"}},
	},
	{
		Name: "a-no-is-a-yes", Promise: "G1",
		Why:     "a line that says gitleaks:allow is let through whatever a person answers",
		Package: ".", Tests: []string{"TestGitRefuses"}, Says: "THROUGH allow",
		edits: []edit{{"git.go", "	case !o.Allowed():\n		return \"\", errors.New(s.asks.words(o))\n", ""}},
	},
	{
		Name: "pushes-by-https", Promise: "G1",
		Why:     "a route to a forge lets git push through it, past the gate",
		Package: "./internal/gateway", Tests: []string{"TestGitLeavesByTheGate"}, Says: "git-receive-pack of",
		edits: []edit{{"internal/gateway/git.go", "	case gitReceive:\n", "	case \"none\":\n"}},
	},
	{
		Name: "escapes-hide-a-push", Promise: "G1",
		Why:     "a service is looked for as it is usually written: git%2Dreceive-pack is another word",
		Package: "./internal/gateway", Tests: []string{"TestGitLeavesByTheGate"}, Says: "%2Dreceive",
		edits: []edit{{"internal/gateway/git.go", "	if q, err := url.QueryUnescape(query); err == nil {\n", "	if q, err := url.QueryUnescape(query); err != nil {\n"}},
	},
	{
		Name: "keys-outlive-their-bottle", Promise: "G2",
		Why:     "the end of a run leaves its deploy keys at the forge",
		Package: ".", Tests: []string{"TestGitBottle"}, Says: "the forge has",
		edits: []edit{{"gitmount.go", "		m.left = m.c.revokeKeys(ctx, m.keys, m.token, m.noteKey)\n", "		_, m.left = ctx, nil\n"}},
	},
	{
		Name: "keys-outlive-their-carboy", Promise: "G2",
		Why:     "nobody revokes the keys of a bottle whose carboy was killed",
		Package: ".", Tests: []string{"TestGitKilled"}, Says: "the forge has",
		edits: []edit{{"carboy.go", "	c.recoverKeys(ctx)\n", ""}},
	},
	{
		Name: "gone-when-they-say-so", Promise: "G2",
		Why:     "a forge's word that a key is removed is believed, and the key forgotten",
		Package: "./internal/forgekey", Tests: []string{"TestRevokeHalfWay"}, Says: "it counts as revoked",
		edits: []edit{{"internal/forgekey/forgekey.go", "	if len(found) > 0 {\n		// A forge says 404", "	if len(found) > 1 {\n		// A forge says 404"}},
	},
	{
		Name: "asked-before-it-is-written-down", Promise: "G2",
		Why:     "a key is asked for before there is a record of it: what happens between, nobody finds",
		Package: "./internal/forgekey", Tests: []string{"TestMakeHalfWay"}, Says: "want one of ours",
		edits: []edit{{"internal/forgekey/forgekey.go", "	if err == nil {\n		err = rec.write(o.Dir)\n	}\n", ""}},
	},
	{
		Name: "the-token-goes-in-the-clear", Promise: "G2",
		Why:     "a forge's token is sent by plain HTTP to wherever its name leads",
		Package: "./internal/forgekey", Tests: []string{"TestTokenStaysHome"}, Says: "plain HTTP to a public address",
		edits: []edit{{"internal/forgekey/client.go", "plain && class != policy.ClassLoopback && class != policy.ClassPrivate", "plain && class == policy.ClassLoopback && class == policy.ClassPrivate"}},
	},
	{
		Name: "keys-in-the-workspace", Promise: "G2",
		Why:     "a private key may lie where the command can read it",
		Package: ".", Tests: []string{"TestGitKeys"}, Says: "key in workspace: it is taken",
		edits: []edit{{"git.go", "		if r.keyFile != \"\" && p.shows(r.keyFile) {\n", "		if r.keyFile == \"\" && p.shows(r.keyFile) {\n"}},
	},
	{
		Name: "what-is-gone-is-empty", Promise: "G3",
		Why:     "where upstream does not answer, a fetch shows a repository without references",
		Package: "./internal/gitgate", Tests: []string{"TestUpstreamGone"}, Says: "<nil>: ",
		edits: []edit{
			{"internal/gitgate/advert.go", "		b = appendLine(b, \"ERR git gate: \"+err.Error())\n", "		b = appendFlush(b)\n"},
			{"internal/gitgate/advert.go", "	if v == 0 || err == nil && o.v == 0 {\n", "	if v == 0 || err != nil || o.v == 0 {\n"},
		},
	},
	{
		Name: "names-repeat-secrets", Promise: "A2",
		Why:     "names of files and references stand in the records of a push as they are",
		Package: ".", Tests: []string{"TestGitRefuses"}, Says: "has the secret",
		edits: []edit{{"gitaccount.go", "			*t = a.notes.cleaned(*t)\n", ""}},
	},
}
