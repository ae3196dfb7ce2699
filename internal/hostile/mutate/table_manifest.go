package main

// S8: bottles and agents, and whose word they are.

var manifestMutants = []mutant{
	{
		Name: "a-repositorys-dockerfile-is-built", Promise: "S8",
		Why:     "a Dockerfile that an agent may have written is carried out outside of any bottle",
		Package: "./internal/image", Tests: []string{"TestWhoseDockerfile"}, Says: "an agent may have written it",
		edits: []edit{{"internal/image/build.go", "place.path == r.Repo && beneath(dir, real)", "place.path == r.Repo && beneath(dir, place.path+\"/.\")"}},
	},
	{
		Name: "whoever-listens-builds", Promise: "S8",
		Why:     "another user's process takes a Dockerfile's build, and decides what a bottle's root is",
		Package: "./internal/image", Tests: []string{"TestEngineOfAnother"}, Says: "build_test.go", root: true,
		edits: []edit{{"internal/image/engine.go", "if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {", "if cred.Uid == 0 && int(cred.Uid) != os.Geteuid() {"}},
	},
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
		edits: []edit{{"provider.go", "	opts.Credential = cred\n", "	opts.Credential, opts.Matches = cred, nil\n"}},
	},
	{
		Name: "programs-of-the-workspace-are-shown", Promise: "S8",
		Why:     "a directory of the repository that stands on PATH may have a link called like the agent, and what it leads to is shown inside",
		Package: ".", Tests: []string{"TestProgramsOfTheWorkspace"}, Says: "is shown",
		edits: []edit{{"start.go", "|| within(filepath.Clean(dir), work) || within(realPath(dir), work)", "|| work == \"\""}},
	},
	{
		Name: "links-of-a-skill-lead-anywhere", Promise: "S8",
		Why:     "a file of a skill may be a link to a key, whose text then goes inside",
		Package: "./internal/manifest", Tests: []string{"TestSkillsRefuse"}, Says: "is a link that leads out",
		edits: []edit{{"internal/manifest/skills.go", "root.OpenFile(p, ", "os.OpenFile(filepath.Join(real, p), "}},
	},
	{
		Name: "skills-lie-in-the-repository", Promise: "S8",
		Why:     "a skill of the user's may be a link into the repository, where an agent writes it",
		Package: "./internal/manifest", Tests: []string{"TestSkillsRefuse"}, Says: "where an agent may have written it",
		edits: []edit{{"internal/manifest/skills.go", "within(real, r.repo) && !within", "real == \"\" && !within"}},
	},
	{
		Name: "skills-hold-secrets", Promise: "S3",
		Why:     "what looks like a secret comes inside with a skill",
		Package: "./internal/manifest", Tests: []string{"TestSkillsRefuse"}, Says: "want \"x:3\"",
		edits: []edit{{"internal/manifest/skills.go", "} else if rule != \"\" {", "} else if at < 0 {"}},
	},
	{
		Name: "files-of-the-home-hold-secrets", Promise: "S3",
		Why:     "a secret that is watched for comes inside with the agent's text",
		Package: ".", Tests: []string{"TestHomeFiles"}, Says: "The key is",
		edits: []edit{{"secrets.go", "if name := watched.in(string(f.Content)); name != \"\" {", "if name := watched.in(\"\"); name != \"\" {"}},
	},
	{
		Name: "codex-is-signed-in-inside", Promise: "S3",
		Why:     "what the host's codex has signed in with is what stands inside",
		Package: ".", Tests: []string{"TestCodexForwards"}, Says: "is inside",
		edits: []edit{{"provider_codex.go", "\"access_token\": t, \"refresh_token\": placeholder", "\"access_token\": l.access.UnsafeString(), \"refresh_token\": placeholder"}},
	},
	{
		Name: "codex-refreshes-inside", Promise: "S3",
		Why:     "a bottle may ask the server that gives tokens for a refresh token",
		Package: ".", Tests: []string{"TestCodexForwards"}, Says: "auth.openai.com: <nil>",
		edits: []edit{{"provider_codex.go", "v := table.Decide(codexAuth, 443); v.Allowed {", "v := table.Decide(codexAuth, 443); v.Opaque {"}},
	},
}
