package hostexec

import (
	"fmt"
	"slices"
)

// gitSettings are forced on git through its environment, where they override
// every file. git does not read the repository's own configuration at all
// (repo.go). These settings are a second barrier and turn off git's defaults.
var gitSettings = [][2]string{
	// Settings that would otherwise name a program to run.
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
	// No transport, not even ext:: and file.
	{"protocol.allow", "never"},
	{"protocol.ext.allow", "never"},
	{"protocol.file.allow", "never"},
	{"submodule.recurse", "false"},
	{"diff.ignoreSubmodules", "all"},
	{"diff.submodule", "short"},
	{"status.submoduleSummary", "false"},
	// Write nothing, and trust nothing but the objects.
	{"diff.autoRefreshIndex", "false"},
	{"core.untrackedCache", "false"},
	{"core.useReplaceRefs", "false"},
	{"core.commitGraph", "false"},
	{"core.attributesFile", "/dev/null"},
	{"core.excludesFile", "/dev/null"},
	{"log.mailmap", "false"},
	// Bound memory against a planted object or pack.
	{"core.bigFileThreshold", "64m"},
	{"core.packedGitLimit", "1g"},
	{"core.packedGitWindowSize", "64m"},
	{"core.deltaBaseCacheLimit", "64m"},
	// Make output parsable.
	{"color.ui", "false"},
	{"core.quotePath", "true"},
}

// serveSettings returns the settings for answering a fetch. git would run an
// empty hook, and does not take one from a repository's own configuration.
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
		// "none" names no transport; some versions read an empty list as unset.
		"GIT_ALLOW_PROTOCOL=none", "GIT_PROTOCOL_FROM_USER=0", "GIT_NO_LAZY_FETCH=1",
		"GIT_OPTIONAL_LOCKS=0", "GIT_NO_REPLACE_OBJECTS=1", "GIT_LITERAL_PATHSPECS=1",
		fmt.Sprintf("GIT_CONFIG_COUNT=%d", len(settings)),
	}
	for i, kv := range settings {
		env = append(env, fmt.Sprintf("GIT_CONFIG_KEY_%d=%s", i, kv[0]), fmt.Sprintf("GIT_CONFIG_VALUE_%d=%s", i, kv[1]))
	}
	return env
}
