package carboy

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/carboy/carboy/internal/rootfs"
	"github.com/carboy/carboy/internal/secret"
)

// passEnv are the only variables that come from the host by themselves: how
// text looks and what time it is.
var passEnv = []string{"LANG", "LANGUAGE", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME", "TZ"}

// termEnv come too when the command has a terminal.
var termEnv = []string{"TERM", "COLORTERM", "NO_COLOR"}

var envName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })

// environment builds a command's variables from nothing.
func environment(lookup func(string) string, p *plan, terminal bool, more []string) ([]string, error) {
	u := p.id.user
	env := map[string]string{"PATH": toolPath(lookup("PATH"))}
	maps.Copy(env, p.env)
	maps.Copy(env, map[string]string{
		"HOME": u.Home, "USER": u.Name, "LOGNAME": u.Name, "SHELL": "/bin/sh", "TMPDIR": "/tmp", "CARBOY": "1",
	})
	for _, n := range passEnv {
		if v := lookup(n); v != "" && p.secrets.in(v) == "" {
			env[n] = v
		}
	}
	if p.inspects() {
		maps.Copy(env, rootfs.TrustEnv())
	}
	if p.git.gitConfig() != "" {
		env["GIT_CONFIG_SYSTEM"] = rootfs.GitConfig // wherever a build of git would look
	}
	if terminal {
		env["TERM"] = "xterm"
		for _, n := range termEnv {
			if v := lookup(n); v != "" && p.secrets.in(v) == "" {
				env[n] = v
			}
		}
	}
	maps.Copy(env, p.creds.env)
	for _, e := range more {
		name, val, given := strings.Cut(e, "=")
		if !envName().MatchString(name) {
			return nil, &OptionError{Option: "--env", Value: name, Reason: "is not a variable name"}
		}
		if !given && p.secrets.vars[name] {
			return nil, &OptionError{Option: "--env", Value: name, Reason: "is a secret that is watched for, and would come inside", Advice: "leave it out; --credential puts a secret on requests without showing it"}
		}
		if !given {
			val = lookup(name)
			if val == "" {
				return nil, notSet(name)
			}
		}
		if _, own := p.creds.env[name]; own || p.creds.in(val) {
			return nil, &OptionError{Option: "--env", Value: name, Reason: "would take a credential into the bottle", Advice: "leave it out: the gateway puts the credential on, and a placeholder stands inside"}
		}
		if known := p.secrets.in(val); known != "" {
			return nil, &OptionError{Option: "--env", Value: name, Reason: "would take the secret " + known + " into the bottle", Advice: "leave it out; --credential puts a secret on requests without showing it"}
		}
		if strings.ContainsRune(val, 0) {
			return nil, &OptionError{Option: "--env", Value: name, Reason: "holds a NUL byte"}
		}
		env[name] = val
	}
	out := make([]string, 0, len(env))
	for n, v := range env {
		out = append(out, n+"="+v)
	}
	slices.Sort(out)
	return out, nil
}

// notSet refuses a variable that was named without a value.
func notSet(name string) error {
	return &OptionError{Option: "--env", Value: name, Reason: "is not set here", Advice: "set it, or write --env " + name + "=VALUE"}
}

// SecretName reports whether a variable's name says that it holds a secret.
func SecretName(name string) bool { return secret.NameSays(name) }

// toolPath is the host's PATH without directories that a bottle does not show.
func toolPath(host string) string {
	var out []string
	add := func(dir string) {
		if filepath.IsAbs(dir) && !slices.Contains(out, dir) {
			out = append(out, dir)
		}
	}
	for _, dir := range filepath.SplitList(host) {
		dir = filepath.Clean(dir)
		for _, top := range []string{"/usr/", "/bin", "/sbin", "/nix/store/", "/gnu/store/"} {
			if strings.HasPrefix(dir+"/", top) {
				add(dir)
			}
		}
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		add(dir)
	}
	if fi, err := os.Stat("/usr/local/go/bin"); err == nil && fi.IsDir() {
		add("/usr/local/go/bin")
	}
	return strings.Join(out, ":")
}

// OptionError is a value that a run can't be started with.
type OptionError struct {
	Option, Value, Reason, Advice string
}

func (e *OptionError) Error() string { return fmt.Sprintf("%s %q %s", e.Option, e.Value, e.Reason) }
