// Package module parses and checks the files that describe a deployable service in a
// repository: modules/<id>/module.yaml and its compose file. Neither is trusted.
//
// In a [Module] and a [Compose] that it returns, every path is relative, clean and of
// harmless characters, every name matches its pattern, and every key of the compose file
// is in a list of allowed keys. None of those reads, runs or grants anything on the
// machine that parses the file, or on the host outside of remote_root. Errors name file,
// line and field, and list all problems at once.
//
// The package does not check images. The allowed keys bound what a container can do on a
// host.
//
// Start reading at [Parse], then [ParseCompose].
package module

import (
	"net"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/document"
)

// Bounds and defaults of a module.
const (
	// apiVersion is the only supported version.
	apiVersion = "carboy.dev/v1"
	// maxPath bounds a path, in bytes.
	maxPath = 512
	// MaxWaves and MaxHosts bound a rollout.
	MaxWaves = 16
	maxHosts = 32

	// defaultStable is the time that a service without a healthcheck must run without a
	// restart to count as healthy. defaultHealth bounds the time until any service is
	// healthy.
	defaultStable = 30 * time.Second
	defaultHealth = 2 * time.Minute
	// MaxWatch bounds both.
	MaxWatch = 30 * time.Minute
)

// Sync says which files are copied to the host. The zero value is invalid.
type Sync string

// The values of Sync.
const (
	syncNone  Sync = "none"  // none
	SyncFiles Sync = "files" // those in the module's directory files/
)

// FilesDir is the directory of a module that SyncFiles copies.
const FilesDir = "files"

// Module describes one service, on one host or on several in waves.
type Module struct {
	ID string
	// Waves lists the names of hosts. Those of one wave are changed together, and the next
	// wave once all of them are healthy. There is at least one wave, and none is empty.
	Waves   [][]string
	Compose string // path of the compose file, relative to the repository's top
	Service string
	Project string
	Root    string // absolute and clean: the directory on the host
	Sync    Sync

	StableFor time.Duration // at least a second
	// StableChecked is StableFor if module.yaml has it, and counts for a service with a
	// healthcheck too; else 0.
	StableChecked time.Duration
	Health        time.Duration
	// Destructive lists the actions that count as destructive, besides remove.
	Destructive []string
}

// Actions lists the actions on a service or file.
var Actions = []string{"adopt", "create", "update", "recreate", "remove"}

var (
	idPattern   = NewPattern(`^[a-zA-Z0-9_-]{1,64}$`)
	project     = NewPattern(`^[a-z0-9][a-z0-9_-]{0,62}$`)
	service     = NewPattern(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)
	pathPattern = NewPattern(`^[A-Za-z0-9._@+/-]+$`)
	hostPattern = NewPattern(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)
	dnsPattern  = NewPattern(`^[a-zA-Z0-9][a-zA-Z0-9.-]{0,252}$`)
	userPattern = NewPattern(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,63}$`)
)

// Pattern is a regular expression that is compiled on first use. Compiling all of them
// at program start would slow down every process of this binary.
type Pattern func() *regexp.Regexp

// NewPattern returns a pattern for a constant expression. Using it panics if the
// expression is invalid.
func NewPattern(expression string) Pattern {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// MatchString reports whether s contains a match.
func (p Pattern) MatchString(s string) bool { return p().MatchString(s) }

// ValidID reports whether s can be the name of a module.
func ValidID(s string) bool { return idPattern.MatchString(s) }

// ValidHost reports whether s can be the name of a host in hosts.yaml.
func ValidHost(s string) bool { return hostPattern.MatchString(s) }

// ValidAddress reports whether s can be a DNS name or an IP address.
func ValidAddress(s string) bool { return net.ParseIP(s) != nil || dnsPattern.MatchString(s) }

// ValidUser reports whether s can be the name of a user on a host.
func ValidUser(s string) bool { return userPattern.MatchString(s) }

// ValidService reports whether s can be the name of a service in a compose file.
func ValidService(s string) bool { return service.MatchString(s) }

// ValidProject reports whether s can be the name of a compose project.
func ValidProject(s string) bool { return project.MatchString(s) }

// File returns the path of a module's module.yaml in the repository.
func File(id string) string { return path.Join("modules", id, "module.yaml") }

// Relative returns what is wrong with a path that must stay below a directory, "" if it is
// valid: relative, clean, and without characters that are special to any program.
func Relative(p string) string {
	switch {
	case p == "":
		return "is empty"
	case len(p) > maxPath:
		return "is too long"
	case strings.HasPrefix(p, "/"):
		return "is absolute"
	case strings.HasPrefix(p, "~"):
		return "begins in a home directory"
	case p == ".." || strings.HasPrefix(p, "../") || strings.Contains(p, "/../") || strings.HasSuffix(p, "/.."):
		return "leads upward"
	case !pathPattern.MatchString(p):
		return "has other characters than letters, digits and ._@+-/"
	case strings.HasPrefix(p, "-") || strings.Contains(p, "/-"):
		return "has a part that begins with -"
	case path.Clean(p) != p || p == ".":
		return "is not in its shortest form"
	}
	return ""
}

// Absolute returns what is wrong with a directory of a host, "" if it is valid.
func Absolute(p string) string {
	rest, ok := strings.CutPrefix(p, "/")
	if !ok {
		return "is not absolute"
	}
	if rest == "" {
		return "is the root directory"
	}
	return Relative(rest)
}

// Parse parses a module.yaml. file is its name in errors; id is the name of its directory,
// which must be the module's. The error is a [document.Error].
//
// Parse also accepts the earlier form without apiVersion, with id, host and runtime at the
// top or below spec.
func Parse(file, id string, data []byte) (*Module, error) {
	doc, top, err := document.Parse(file, data)
	if err != nil {
		return nil, err
	}
	m := top.Mapping("apiVersion", "kind", "metadata", "spec", "id", "host", "runtime")
	if v := m.Get("apiVersion"); v.Present() && v.Text() != apiVersion {
		v.Bad("is not a version that is known", "write "+apiVersion)
	}
	if v := m.Get("kind"); v.Present() && v.Text() != "Module" {
		v.Bad("is not Module", "write kind: Module")
	}
	out := &Module{Service: id, Sync: syncNone}
	spec := m.Get("spec").Mapping("host", "waves", "runtime")
	name := either(m.Get("metadata").Mapping("id").Get("id"), m.Get("id"))
	switch out.ID = name.Text(); {
	case !name.Present():
		name.Bad("is missing", "write metadata: {id: "+id+"}")
	case !ValidID(out.ID):
		name.Bad("is not a module's name", "letters, digits, _ and - only")
	case out.ID != id:
		name.Bad("is not the name of its directory", "write "+id)
	}
	out.hosts(either(spec.Get("host"), m.Get("host")), spec.Get("waves"))
	out.runtime(either(spec.Get("runtime"), m.Get("runtime")), id)
	if err := doc.Err(); err != nil {
		return nil, err
	}
	return out, nil
}

// either returns the one of two values that is present. Both present is an error.
func either(a, b document.Value) document.Value {
	if a.Present() && b.Present() {
		b.Bad("stands here and at "+a.Field(), "write it once")
	}
	if a.Present() {
		return a
	}
	if b.Present() {
		return b
	}
	return a
}

func (m *Module) hosts(host, waves document.Value) {
	seen := map[string]bool{}
	add := func(v document.Value, name string) {
		switch {
		case !ValidHost(name):
			v.Bad("is not the name of a host", "name an entry of hosts.yaml")
		case seen[name]:
			v.Bad("names a host twice", "")
		}
		seen[name] = true
	}
	switch {
	case host.Present() && waves.Present():
		waves.Bad("stands beside spec.host", "write one of them")
	case host.Present():
		name := host.Text()
		add(host, name)
		m.Waves = [][]string{{name}}
	case waves.Present():
		for _, w := range waves.List() {
			names := w.Strings()
			if len(names) == 0 {
				w.Bad("names no host", "")
			}
			for _, n := range names {
				add(w, n)
			}
			m.Waves = append(m.Waves, names)
		}
		if len(m.Waves) == 0 || len(m.Waves) > MaxWaves || len(seen) > maxHosts {
			waves.Bad("has too few or too many hosts", "")
		}
	default:
		host.Bad("is missing", "name a host of hosts.yaml")
	}
}

func (m *Module) runtime(v document.Value, id string) {
	if !v.Present() {
		v.Bad("is missing", "")
		return
	}
	r := v.Mapping("orchestrator", "compose_file", "compose_service", "project", "remote_root", "sync", "stable_for", "health_timeout", "destructive")
	if o := r.Need("orchestrator"); o.Present() && o.Text() != "docker-compose" {
		o.Bad("is not an orchestrator that is supported", "docker-compose is")
	}
	file := r.Need("compose_file")
	if file.Present() {
		p := file.Text()
		if why := Relative(p); why != "" {
			file.Bad(why, "name a file below the module's directory")
		}
		m.Compose = path.Join("modules", id, p)
	}
	text := func(key, absent string, ok func(string) bool, what string) string {
		f := r.Get(key)
		if !f.Present() {
			return absent
		}
		s := f.Text()
		if !ok(s) {
			f.Bad("is not "+what, "")
		}
		return s
	}
	m.Service = text("compose_service", id, ValidService, "the name of a service")
	m.Project = text("project", strings.ToLower(id), ValidProject, "the name of a project: small letters, digits, _ and -, and a letter or digit at first")
	if !ValidProject(m.Project) {
		v.Bad("has no project, and the module's own name is none", "write project:")
	}
	if root := r.Need("remote_root"); root.Present() {
		m.Root = root.Text()
		if why := Absolute(m.Root); why != "" {
			root.Bad(why, "name a directory such as /srv/"+id)
		}
	}
	m.Sync = Sync(r.Get("sync").OneOf(string(syncNone), string(SyncFiles)))
	watch := func(key string, absent time.Duration) time.Duration {
		f := r.Get(key)
		if !f.Present() {
			return absent
		}
		d := f.Duration()
		if d < time.Second || d > MaxWatch || d%time.Second != 0 {
			f.Bad("is not whole seconds from 1s to "+MaxWatch.String(), "")
		}
		return d
	}
	m.StableFor = watch("stable_for", defaultStable)
	if r.Get("stable_for").Present() {
		m.StableChecked = m.StableFor
	}
	m.Health = watch("health_timeout", max(defaultHealth, m.StableFor+defaultStable))
	if m.Health <= m.StableFor {
		r.Get("health_timeout").Bad("is not longer than stable_for", "")
	}
	m.Destructive = r.Get("destructive").Strings()
	for _, a := range m.Destructive {
		known := false
		for _, b := range Actions {
			known = known || a == b
		}
		if !known {
			r.Get("destructive").Bad("names what does not happen to a service", "there are "+strings.Join(Actions, ", "))
		}
	}
}
