package plan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/fault"
	"github.com/carboy/carboy/internal/safetext"
	"github.com/carboy/carboy/internal/scan"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
)

// maxSecrets bounds the number of watched secrets.
const maxSecrets = 100

// NotShown replaces text in messages that may be the secret itself.
const NotShown = secret.NotShown

// NameOrHidden returns the name of a variable, or NotShown if it may be a secret.
func NameOrHidden(s string) string { return secret.NameOrHidden(s) }

// pasted is the advice to show if a name was hidden.
const pasted = "put the value into a variable and name that variable; what stands there is not repeated, for it may be the value itself"

// Secrets holds the watched secrets, by the names that findings show.
type Secrets struct {
	Values map[string]secret.Value
	// vars holds the variables that contain a secret: they don't come inside.
	vars map[string]bool
	// files holds the real paths of the files that were read.
	files []string
}

// ReadSecrets reads the secrets that --secret names. Its errors show no text that it was
// given except paths and variables' names.
func ReadSecrets(given []string, lookup func(string) string) (*Secrets, error) {
	k := &Secrets{Values: map[string]secret.Value{}, vars: map[string]bool{}}
	for i, g := range given {
		if err := k.read(g, lookup); err != nil {
			var bad *fault.OptionError
			if errors.As(err, &bad) && bad.Value == NotShown && len(given) > 1 {
				bad.Reason += fmt.Sprintf(" (it is --secret number %d)", i+1)
			}
			return nil, err
		}
	}
	if len(k.Values) > maxSecrets {
		return nil, &fault.OptionError{Option: "--secret", Value: fmt.Sprint(len(k.Values)), Reason: "secrets are too many", Advice: fmt.Sprintf("at most %d are watched for", maxSecrets)}
	}
	return k, nil
}

func (k *Secrets) read(given string, lookup func(string) string) error {
	if name, ok := strings.CutPrefix(given, "env:"); ok {
		return k.variable(name, lookup)
	}
	if path, ok := strings.CutPrefix(given, "file:"); ok {
		return k.file(path)
	}
	if envName().MatchString(given) {
		return k.variable(given, lookup)
	}
	// Base64 has slashes, too: a path is what leads somewhere.
	dir := filepath.Dir(given)
	if _, err := os.Lstat(given); err == nil {
		return k.file(given)
	} else if _, err := os.Lstat(dir); err == nil && strings.Contains(given, "/") && dir != "/" {
		return k.file(given)
	}
	return &fault.OptionError{Option: "--secret", Value: NotShown, Reason: "is neither the name of a variable nor a file that exists", Advice: pasted + "; file:PATH names a file"}
}

func (k *Secrets) variable(name string, lookup func(string) string) error {
	bad := func(why, advice string) error {
		shown := NameOrHidden(name)
		if shown == NotShown {
			advice = pasted
		}
		return &fault.OptionError{Option: "--secret", Value: shown, Reason: why, Advice: advice}
	}
	if !envName().MatchString(name) {
		return bad("is no name of a variable", pasted)
	}
	value := strings.TrimSpace(lookup(name))
	if value == "" {
		return bad("names no variable that is set here", "set it, or leave it out")
	}
	v := secret.NewString(value)
	if why := unwatchable(v); why != "" {
		return bad(why, "leave it out, or use a longer secret")
	}
	k.Values[name] = v
	k.vars[name] = true
	return nil
}

// unwatchable returns the reason why v can't be watched for, or "".
func unwatchable(v secret.Value) string {
	if err := scan.Fit(v); err != nil {
		return err.Error()
	}
	return ""
}

// maxSecretFile bounds a file of secrets, in bytes.
const maxSecretFile = 256 << 10

func (k *Secrets) file(path string) error {
	bad := func(why, advice string) error {
		return &fault.OptionError{Option: "--secret", Value: "file:" + path, Reason: why, Advice: advice}
	}
	f, err := os.Open(path)
	if err != nil {
		return bad("can't be read: "+fault.Cause(err), "name a file that holds the secret, or env:NAME")
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return bad("is not a regular file", "name a file that holds the secret")
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err != nil {
		return bad("can't be read: "+fault.Cause(err), "")
	}
	defer clear(b)
	if len(b) > maxSecretFile {
		return bad(fmt.Sprintf("has more than %d bytes", maxSecretFile), "name a file that holds the secret alone")
	}
	k.opened(path)
	base := filepath.Base(path)
	if isEnvFile(base) {
		return k.envFile(base, b, bad)
	}
	v := secret.New(bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r")))
	if why := unwatchable(v); why != "" {
		return bad(why, "leave it out, or name a file that holds the secret alone")
	}
	k.Put(base, v)
	return nil
}

// isEnvFile reports whether a file of that name has lines NAME=VALUE.
func isEnvFile(base string) bool {
	return base == ".env" || strings.HasPrefix(base, ".env.") || strings.HasSuffix(base, ".env")
}

// envFile returns the value of each line. It leaves out short values, such as ports and
// switches, unless the name says that they are secret.
func (k *Secrets) envFile(base string, b []byte, bad func(why, advice string) error) error {
	found := 0
	for n, line := range bytes.Split(b, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimPrefix(string(line), "export "), "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok || !envName().MatchString(name) {
			return bad(fmt.Sprintf("line %d is not NAME=VALUE", n+1), "files named .env, .env.* and *.env have lines NAME=VALUE; another name is taken whole")
		}
		if q := len(value); q >= 2 && (value[0] == '"' || value[0] == '\'') && value[q-1] == value[0] {
			value = value[1 : q-1]
		}
		v := secret.NewString(value)
		switch why := unwatchable(v); {
		case why == "":
			k.Put(base+":"+name, v)
			found++
		case SecretName(name) && value != "":
			return bad(fmt.Sprintf("line %d %s", n+1, why), "leave that line out, or use a longer secret")
		}
	}
	if found == 0 {
		return bad("holds no value that could be watched for", fmt.Sprintf("values need %d bytes", scan.MinSecret))
	}
	return nil
}

// Put keeps v under a name that is not taken. Names are shown, so a file's name, which
// may be anything, is made safe.
func (k *Secrets) Put(name string, v secret.Value) {
	name = safetext.String(name, 80)
	for n, free := 2, name; ; n++ {
		old, taken := k.Values[free]
		if !taken || old.Equal(v) {
			k.Values[free] = v
			return
		}
		free = fmt.Sprintf("%s (%d)", name, n)
	}
}

func (k *Secrets) opened(path string) {
	if abs, err := filepath.Abs(path); err == nil {
		k.files = append(k.files, fault.RealPath(abs))
	}
}

// With returns k's secrets and those credentials, by variable, that are long enough to
// be watched for.
func (k *Secrets) With(c *Credentials) map[string]secret.Value {
	all := maps.Clone(k.Values)
	own := &Secrets{Values: all}
	for _, name := range slices.Sorted(maps.Keys(c.named)) {
		for _, v := range c.named[name] {
			if unwatchable(v) == "" && !slices.ContainsFunc(slices.Collect(maps.Values(all)), v.Equal) {
				own.Put(name, v)
			}
		}
	}
	return all
}

// in returns the name of the secret that text holds, or "".
func (k *Secrets) in(text string) string {
	for _, name := range slices.Sorted(maps.Keys(k.Values)) {
		if strings.Contains(text, k.Values[name].UnsafeString()) {
			return name
		}
	}
	return ""
}

// KeepOut returns an error if the plan itself would bring a secret inside.
func (p *Plan) KeepOut(command []string) error {
	watched := &Secrets{Values: p.Watched}
	for _, arg := range command {
		if name := watched.in(arg); name != "" {
			return &fault.OptionError{Option: "the command", Value: NotShown, Reason: "holds the secret " + name, Advice: "a secret that is watched for does not come inside: leave it out of the command, and let the gateway put it on with --credential"}
		}
	}
	return nil
}

// CheckFiles returns an error for a file of the home that would bring a secret inside, or
// that a mount of the host would hide.
func (p *Plan) CheckFiles() error {
	watched := &Secrets{Values: p.Watched}
	for _, f := range p.Files {
		path := filepath.Join(p.User.User.Home, f.Path)
		if name := watched.in(string(f.Content)); name != "" {
			return &fault.OptionError{Option: "the file", Value: "~/" + f.Path, Reason: "holds the secret " + name, Advice: "a secret that is watched for does not come inside: leave it out of the agent's text, settings and skills"}
		}
		over := slices.ContainsFunc(p.Mounts, func(m bottle.Mount) bool { return fault.Within(path, m.Target) })
		if over || p.Mode != store.None && fault.Within(path, p.Target) {
			return &fault.OptionError{Option: "the file", Value: "~/" + f.Path, Reason: "is made for the agent, and would be hidden by the workspace or a mount", Advice: "work in a directory that is not the agent's own"}
		}
	}
	return nil
}

// Readable returns the files of secrets that the command can read nevertheless, because
// they are in its workspace or a mount.
func (p *Plan) Readable() (out []string) {
	return slices.DeleteFunc(slices.Clone(p.Secrets.files), func(f string) bool { return !p.Shows(f) })
}

// Shows reports whether a file of the host is in the workspace or in a mount.
func (p *Plan) Shows(file string) bool {
	if p.Mode != store.None && p.Source != "" && fault.Within(file, p.Source) {
		return true
	}
	return slices.ContainsFunc(p.Mounts, func(m bottle.Mount) bool { return fault.Within(file, fault.RealPath(m.Source)) })
}

// RedactionName returns name in the form that a redactor's marks may have.
func RedactionName(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r) {
			return r
		}
		return '-'
	}, strings.ToLower(s))
}
