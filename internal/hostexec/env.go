package hostexec

import (
	"slices"
	"strings"
)

// secretParts and steering match names that no program's list may hold. They
// back up the lists: a careless addition to a list still passes nothing on.
var (
	secretParts = []string{"TOKEN", "KEY", "SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL", "AUTH", "COOKIE", "SESSION", "PRIVATE", "CERT", "_PAT"}
	// steering names variables that choose what code runs, where it comes from,
	// or whom it talks to.
	steering = []string{
		"AWS_", "AZURE_", "GOOGLE_", "GCP_", "GCLOUD_", "CLOUDSDK_", "GH_", "GITHUB_", "GITLAB_", "GITEA_",
		"LD_", "DYLD_", "DOCKER_", "COMPOSE_", "CONTAINER_", "KUBE", "SSH_", "GPG_", "GNUPG", "GIT_", "GVISOR_",
		"PATH", "HOME", "XDG_", "SHELL", "BASH", "ENV", "IFS", "PS4", "PROMPT_", "CDPATH", "TMPDIR",
		"PYTHON", "PERL", "RUBY", "NODE_", "JAVA_", "JDK_", "GO", "MALLOC_", "GLIBC_", "GCONV_", "NLSPATH", "LOCPATH",
		"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "FTP_PROXY", "DBUS_", "DISPLAY", "WAYLAND_", "XAUTH",
		"EDITOR", "VISUAL", "PAGER", "LESS", "BROWSER", "CARBOY_",
	}
)

// forbiddenName reports whether a variable may never be passed on, whatever a
// list says. It ignores case: some programs also read github_token.
func forbiddenName(name string) bool {
	up := strings.ToUpper(name)
	for _, p := range secretParts {
		if strings.Contains(up, p) {
			return true
		}
	}
	for _, p := range steering {
		if strings.HasPrefix(up, p) {
			return true
		}
	}
	return false
}

// chooseEnv builds the environment of one command. It drops the entries of want
// that are not on the program's list, fail their check or are malformed, and
// returns their names. An entry without "=" may be a bare value, so its text is
// not returned: it is counted as "(malformed)".
func chooseEnv(s *spec, want, fixed []string) (env, dropped []string) {
	env = []string{
		"PATH=" + strings.Join(trustedDirs, ":"),
		"HOME=/nonexistent",
		"LC_ALL=C",
	}
	for _, kv := range fixed { // programs take the first of two
		name, _, _ := strings.Cut(kv, "=")
		env = slices.DeleteFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") })
	}
	env = append(env, fixed...)
	seen := map[string]bool{}
	for _, kv := range want {
		name, value, ok := strings.Cut(kv, "=")
		if !ok || name == "" || strings.IndexByte(kv, 0) >= 0 {
			dropped = append(dropped, "(malformed)")
			continue
		}
		check := s.env[name]
		if check == nil || forbiddenName(name) || seen[name] || !check(value) {
			dropped = append(dropped, name)
			continue
		}
		seen[name] = true
		env = append(env, kv)
	}
	slices.Sort(dropped)
	return env, slices.Compact(dropped)
}

// envNames returns the names in env, sorted, for the record.
func envNames(env []string) []string {
	names := make([]string, 0, len(env))
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
