package plan

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/carboy/carboy/internal/bottle/rootfs"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/secret"
)

// PassEnv lists the only variables that every command gets from the host: locale and
// time zone.
var PassEnv = []string{"LANG", "LANGUAGE", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME", "TZ"}

// TermEnv lists those that a command with a terminal gets too.
var TermEnv = []string{"TERM", "COLORTERM", "NO_COLOR"}

var envName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })

// Environment builds a command's variables from nothing.
func Environment(lookup func(string) string, p *Plan, terminal bool, more []string) ([]string, error) {
	u := p.User.User
	env := map[string]string{"PATH": ToolPath(lookup("PATH"))}
	maps.Copy(env, p.env)
	maps.Copy(env, map[string]string{
		"HOME": u.Home, "USER": u.Name, "LOGNAME": u.Name, "SHELL": "/bin/sh", "TMPDIR": "/tmp", "CARBOY": "1",
	})
	for _, n := range PassEnv {
		if v := lookup(n); v != "" && p.Secrets.in(v) == "" {
			env[n] = v
		}
	}
	if p.Inspects() {
		maps.Copy(env, rootfs.TrustEnv())
	}
	if p.GitGrant.gitConfig() != "" {
		env["GIT_CONFIG_SYSTEM"] = rootfs.GitConfig // wherever a build of git would look
	}
	if terminal {
		env["TERM"] = "xterm"
		for _, n := range TermEnv {
			if v := lookup(n); v != "" && p.Secrets.in(v) == "" {
				env[n] = v
			}
		}
	}
	maps.Copy(env, p.Credentials.Env)
	for _, e := range more {
		name, val, given := strings.Cut(e, "=")
		if !envName().MatchString(name) {
			return nil, &fault.OptionError{Option: "--env", Value: name, Reason: "is not a variable name"}
		}
		if !given && p.Secrets.vars[name] {
			return nil, &fault.OptionError{Option: "--env", Value: name, Reason: "is a secret that is watched for, and would come inside", Advice: "leave it out; --credential puts a secret on requests without showing it"}
		}
		if !given {
			val = lookup(name)
			if val == "" {
				return nil, fault.NotSet(name)
			}
		}
		if _, own := p.Credentials.Env[name]; own || p.Credentials.In(val) {
			return nil, &fault.OptionError{Option: "--env", Value: name, Reason: "would take a credential into the bottle", Advice: "leave it out: the gateway puts the credential on, and a placeholder stands inside"}
		}
		if known := p.Secrets.in(val); known != "" {
			return nil, &fault.OptionError{Option: "--env", Value: name, Reason: "would take the secret " + known + " into the bottle", Advice: "leave it out; --credential puts a secret on requests without showing it"}
		}
		if strings.ContainsRune(val, 0) {
			return nil, &fault.OptionError{Option: "--env", Value: name, Reason: "holds a NUL byte"}
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

// SecretName reports whether a variable's name says that it holds a secret.
func SecretName(name string) bool { return secret.NameSays(name) }

// ToolPath returns the host's PATH without directories that a bottle does not show.
func ToolPath(host string) string {
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
