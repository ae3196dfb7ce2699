package main

// S8: bottles and agents, and whose word they are.

var manifestMutants = []mutant{
	{
		Name: "bottles-of-a-repository-are-taken", Promise: "S8",
		Why:     "a repository's bottle is found like one of the user's, so that it grants itself what it likes",
		Package: "./internal/manifest", Tests: []string{"TestHostile"}, Says: "taken:",
		edits: []edit{{"internal/manifest/source.go", "	if what == \"agents\" {\n		for _, r := range s.repos {\n			f, err", "	if true {\n		for _, r := range s.repos {\n			f, err"}},
	},
	{
		Name: "links-of-a-repository-are-followed", Promise: "S8",
		Why:     "an agent of a repository may be a link to a key, whose text then goes inside",
		Package: "./internal/manifest", Tests: []string{"TestLinks"}, Says: "taken:",
		edits: []edit{{"internal/manifest/source.go", "unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS", "0"}},
	},
	{
		Name: "links-within-a-repository-are-followed", Promise: "S8",
		Why:     "links are followed as long as they stay in the repository",
		Package: "./internal/manifest", Tests: []string{"TestLinks"}, Says: "taken:",
		edits: []edit{{"internal/manifest/source.go", "unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS", "unix.RESOLVE_BENEATH"}},
	},
	{
		Name: "the-users-links-lead-anywhere", Promise: "S8",
		Why:     "a bottle may be a link into the repository, where an agent writes it",
		Package: "./internal/manifest", Tests: []string{"TestLinks"}, Says: "taken:",
		edits: []edit{{"internal/manifest/source.go", "		if within(real, s.repoReal) && !within(base", "		if real == \"\" && !within(base"}},
	},
	{
		Name: "others-may-write-bottles", Promise: "S8",
		Why:     "a bottle that others can write to is taken",
		Package: "./internal/manifest", Tests: []string{"TestOthersCanWrite"}, Says: "taken:",
		edits: []edit{{"internal/manifest/source.go", "	case st.Mode&0o022 != 0:", "	case false:"}},
	},
	{
		Name: "keys-that-widen-are-left-out", Promise: "S8",
		Why:     "what an agent must not say is passed over in silence, so that its author thinks that it holds",
		Package: "./internal/manifest", Tests: []string{"TestHostile"}, Says: "taken:",
		edits: []edit{{"internal/document/document.go", "				v.d.add(k, join(v.field, k.Value), \"this key is not used\", advice)\n", "				_ = advice\n"}},
	},
	{
		Name: "secrets-are-variables", Promise: "S8",
		Why:     "a secret may stand in a bottle's env, and goes inside",
		Package: "./internal/manifest", Tests: []string{"TestHostile"}, Says: "taken:",
		edits: []edit{{"internal/manifest/bottle.go", "	case what == \"\":\n", "	case true:\n"}},
	},
	{
		Name: "text-may-be-turned-around", Promise: "S8",
		Why:     "characters by which editors show a text in another order are let through",
		Package: "./internal/manifest", Tests: []string{"TestHostile"}, Says: "taken:",
		edits: []edit{{"internal/document/document.go", "		case '\\u202a' <= r && r <= '\\u202e', '\\u2066' <= r && r <= '\\u2069', r == '\\ufeff' && i > 0:", "		case false:"}},
	},
	{
		Name: "a-token-opens-its-host", Promise: "S8",
		Why:     "with claude's token all of its host is allowed, also where the bottle's own route says less",
		Package: ".", Tests: []string{"TestStartClaude"}, Says: "files 200",
		edits: []edit{{"provider.go", "		opts.Credential = cred\n", "		opts.Credential, opts.Matches = cred, nil\n"}},
	},
}
