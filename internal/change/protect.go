package change

import (
	"strings"
	"unicode"
)

// Reason is why a path is protected: the rule's name and a sentence.
type Reason struct {
	Rule string `json:"rule"`
	Why  string `json:"why"`
}

// Policy says what lands only when a person includes it by name. The zero
// Policy is the full default protection; options only add to it.
type Policy struct {
	// CI adds files that run on a continuous-integration server.
	CI bool `json:"ci,omitempty"`
	// Extra are further paths relative to the workspace; a directory covers
	// what it holds.
	Extra []string `json:"extra,omitempty"`
}

// settings are names that make a host program run code, or trust more,
// merely because somebody opens, enters or builds in the directory that holds
// them. A name matches at any depth; a directory covers what it holds.
var settings = map[string]string{
	// agents
	".claude": "Claude Code runs hooks and commands from it", ".claude.json": "Claude Code trusts it",
	"claude.md": "agents follow it as instructions", "claude.local.md": "agents follow it as instructions",
	"agents.md": "agents follow it as instructions", "gemini.md": "agents follow it as instructions",
	".mcp.json": "agents start the servers that it names",
	".codex":    "Codex trusts it", ".gemini": "Gemini CLI runs commands from it",
	".opencode": "opencode runs plugins from it", "opencode.json": "opencode starts what it names", "opencode.jsonc": "opencode starts what it names",
	".pi": "pi runs extensions from it", ".cursor": "Cursor starts servers and follows rules from it",
	".cursorrules": "Cursor follows it as instructions", ".windsurf": "Windsurf trusts it", ".windsurfrules": "Windsurf follows it as instructions",
	".clinerules": "Cline follows it as instructions", ".roo": "Roo Code trusts it", ".continue": "Continue starts what it names",
	".amazonq": "Amazon Q starts servers that it names", ".kiro": "Kiro runs hooks from it", ".goose": "goose trusts it", ".goosehints": "goose follows it as instructions",
	".bot-bottle": "it configures agents", ".carboy": "it configures carboy",
	// editors
	".vscode": "VS Code runs tasks and programs from it", ".idea": "JetBrains programs run what it configures",
	".fleet": "Fleet runs what it configures", ".zed": "Zed runs tasks and servers from it", ".helix": "Helix starts what it names",
	".nvim.lua": "Neovim runs it", ".nvimrc": "Neovim runs it", ".exrc": "vi runs it", ".vimrc": "Vim may run it", ".lvimrc": "Vim may run it",
	".dir-locals.el": "Emacs evaluates it", ".dir-locals-2.el": "Emacs evaluates it", ".sublime-project": "Sublime Text builds with it",
	".devcontainer": "editors build and run a container from it", ".devcontainer.json": "editors build and run a container from it",
	".gitpod.yml": "a workspace runs it", ".theia": "Theia runs tasks from it",
	// shells and version managers that act on entering
	".envrc": "direnv runs it", ".direnv": "direnv loads it", ".autoenv.zsh": "a shell runs it on entering", ".env.zsh": "a shell may run it on entering",
	"mise.toml": "mise runs it on entering", ".mise.toml": "mise runs it on entering", ".mise": "mise runs it on entering", ".rtx.toml": "mise runs it on entering",
	".tool-versions": "a version manager chooses programs by it", ".bashrc": "a shell runs it", ".zshrc": "a shell runs it", ".profile": "a shell runs it",
	".bash_profile": "a shell runs it", ".zshenv": "a shell runs it", ".zprofile": "a shell runs it", ".gdbinit": "gdb runs it", ".lldbinit": "lldb runs it",
	".tmux.conf": "tmux runs it", ".screenrc": "screen runs it",
	// git
	".husky": "git hooks live in it", ".githooks": "git hooks live in it", ".gitmodules": "git clones what it names",
	".gitattributes": "git starts filters and drivers by it", ".gitconfig": "git takes commands from it", ".lefthook": "git hooks live in it",
	"lefthook.yml": "git hooks are made from it", "lefthook.yaml": "git hooks are made from it", ".pre-commit-config.yaml": "git hooks run what it names",
	// package managers that take programs or registries from the directory
	".npmrc": "npm takes registries and programs from it", ".yarnrc": "Yarn runs the program that it names", ".yarnrc.yml": "Yarn runs the program that it names",
	".yarn": "Yarn runs programs from it", ".pnpmfile.cjs": "pnpm runs it", ".pnpmfile.js": "pnpm runs it", ".pnp.cjs": "Node runs it", ".pnp.loader.mjs": "Node runs it",
	".pypirc": "Python tools take registries from it", ".cargo": "cargo takes programs from it", ".bazelrc": "Bazel takes programs from it",
	".bundle": "Bundler takes settings from it", ".ripgreprc": "ripgrep may run the program that it names",
}

var ciNames = map[string]string{
	".gitlab-ci.yml": "GitLab runs it", ".gitea": "Gitea runs workflows from it", ".forgejo": "Forgejo runs workflows from it",
	".circleci": "CircleCI runs it", ".buildkite": "Buildkite runs it", ".travis.yml": "Travis runs it", ".drone.yml": "Drone runs it",
	".woodpecker": "Woodpecker runs it", ".woodpecker.yml": "Woodpecker runs it", "jenkinsfile": "Jenkins runs it",
	"azure-pipelines.yml": "Azure runs it", "bitbucket-pipelines.yml": "Bitbucket runs it", ".cirrus.yml": "Cirrus runs it", ".builds": "builds.sr.ht runs it",
}

// fold maps a name to what a lenient file system or tool may take it for:
// case, characters that HFS+ ignores, full-width forms, trailing dots and
// spaces, NTFS streams and short names. Two names that fold alike are treated
// alike; folding more than any one system does only protects more.
func fold(name string) string {
	if i := strings.IndexByte(name, ':'); i > 0 {
		name = name[:i]
	}
	var b strings.Builder
	for _, r := range name {
		switch {
		case ignorable(r):
			continue
		case r >= 0xff01 && r <= 0xff5e: // full-width ASCII
			r -= 0xfee0
		case r == 0x2024 || r == 0x2025 || r == 0x2026 || r == 0xfe52: // leaders and small full stop
			r = '.'
		}
		b.WriteRune(unfancy(unicode.ToLower(unicode.SimpleFold(unicode.ToLower(r)))))
	}
	s := strings.TrimRight(b.String(), ". ")
	if s == "git~1" {
		return ".git"
	}
	return s
}

// unfancy undoes the two letters outside ASCII that fold to ASCII ones.
func unfancy(r rune) rune {
	switch r {
	case 'ſ':
		return 's'
	case '\u212a': // Kelvin
		return 'k'
	case 'ı', 'İ':
		return 'i'
	}
	return unicode.ToLower(r)
}

// ignorable are the characters that HFS+ leaves out when it compares names.
func ignorable(r rune) bool {
	return unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Variation_Selector, r) ||
		r >= 0x180b && r <= 0x180f || r == 0x034f || r >= 0x115f && r <= 0x1160 || r == 0x3164 || r == 0xffa0
}

// Path lists the reasons for which a path, by its name alone, is protected.
// typ is the type of the bottle's file, "" when unknown.
func (p Policy) Path(rel string, typ Type) []Reason {
	comps := strings.Split(rel, "/")
	folded := make([]string, len(comps))
	for i, c := range comps {
		folded[i] = fold(c)
	}
	var out []Reason
	for i, f := range folded {
		if f == ".git" {
			if why := gitPath(folded[i+1:], comps[i+1:], typ); why != "" {
				out = append(out, Reason{"git", why})
			}
			break
		}
		if why, ok := settings[f]; ok {
			out = append(out, Reason{"settings", why})
		}
		if strings.HasPrefix(f, ".aider") {
			out = append(out, Reason{"settings", "aider takes commands from it"})
		}
		if strings.HasSuffix(f, ".code-workspace") || strings.HasSuffix(f, ".sublime-project") {
			out = append(out, Reason{"settings", "an editor runs tasks from it"})
		}
		if strings.HasPrefix(f, ".carboy-") {
			out = append(out, Reason{"settings", "the name is carboy's own"})
		}
		if f == "copilot-instructions.md" {
			out = append(out, Reason{"settings", "agents follow it as instructions"})
		}
		if p.CI {
			if why, ok := ciNames[f]; ok {
				out = append(out, Reason{"ci", why})
			}
			if f == ".github" && (len(folded) == i+1 || folded[i+1] == "workflows" || folded[i+1] == "actions") {
				out = append(out, Reason{"ci", "GitHub runs workflows from it"})
			}
		}
	}
	for _, e := range p.Extra {
		if e = strings.Trim(e, "/"); rel == e || strings.HasPrefix(rel, e+"/") {
			out = append(out, Reason{"configured", "the configuration protects " + show(e)})
		}
	}
	return out
}
