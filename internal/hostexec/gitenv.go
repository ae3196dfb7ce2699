package hostexec

import (
	"fmt"
	"slices"
)

// gitSettings are forced on git through its environment, where they win over
// every file. The repository's own configuration is not read at all (repo.go);
// these stand behind that, and turn off what git does by default.
var gitSettings = [][2]string{
	// What would run a program, would configuration name one.
	{"core.hooksPath", "/dev/null"},
	{"core.fsmonitor", "false"},
	{"core.pager", "cat"},
	{"core.editor", "false"},
	{"core.sshCommand", "false"},
	{"core.askPass", ""},
	{"core.gitProxy", ""},
	{"core.alternateRefsCommand", "false"},
	{"credential.helper", ""},
	{"gpg.program", "false"},
	{"gpg.ssh.program", "false"},
	{"gpg.x509.program", "false"},
	{"log.showSignature", "false"},
	{"uploadpack.packObjectsHook", ""},
	{"gc.auto", "0"},
	{"maintenance.auto", "false"},
	// No way out: no transport, ext:: and file included.
	{"protocol.allow", "never"},
	{"protocol.ext.allow", "never"},
	{"protocol.file.allow", "never"},
	{"submodule.recurse", "false"},
	{"diff.ignoreSubmodules", "all"},
	{"diff.submodule", "short"},
	{"status.submoduleSummary", "false"},
	// Nothing is written, nothing but the objects is believed.
	{"diff.autoRefreshIndex", "false"},
	{"core.untrackedCache", "false"},
	{"core.useReplaceRefs", "false"},
	{"core.commitGraph", "false"},
	{"core.attributesFile", "/dev/null"},
	{"core.excludesFile", "/dev/null"},
	{"log.mailmap", "false"},
	// Memory bounded against a planted object or pack.
	{"core.bigFileThreshold", "64m"},
	{"core.packedGitLimit", "1g"},
	{"core.packedGitWindowSize", "64m"},
	{"core.deltaBaseCacheLimit", "64m"},
	// Output that can be parsed.
	{"color.ui", "false"},
	{"core.quotePath", "true"},
}

// serveSettings are those for what answers a fetch: git would run an empty hook, and
// takes none from a repository's own configuration.
func serveSettings() [][2]string {
	return slices.DeleteFunc(slices.Clone(gitSettings), func(kv [2]string) bool { return kv[0] == "uploadpack.packObjectsHook" })
}

func gitEnv() []string { return gitEnvWith(gitSettings) }

func gitEnvWith(settings [][2]string) []string {
	env := []string{
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_CONFIG_GLOBAL=/dev/null",
		"XDG_CONFIG_HOME=/nonexistent", "GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=false", "SSH_ASKPASS=false", "GIT_SSH_COMMAND=false",
		"GIT_EDITOR=false", "GIT_SEQUENCE_EDITOR=false", "GIT_PAGER=cat",
		// "none" names no transport; an empty list would be read as unset by some
		// versions.
		"GIT_ALLOW_PROTOCOL=none", "GIT_PROTOCOL_FROM_USER=0", "GIT_NO_LAZY_FETCH=1",
		"GIT_OPTIONAL_LOCKS=0", "GIT_NO_REPLACE_OBJECTS=1", "GIT_LITERAL_PATHSPECS=1",
		fmt.Sprintf("GIT_CONFIG_COUNT=%d", len(settings)),
	}
	for i, kv := range settings {
		env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", i, kv[0]), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", i, kv[1]))
	}
	return env
}
