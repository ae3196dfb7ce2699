// Package module reads what a repository says about a service that can be put on
// a host: modules/<id>/module.yaml and the compose file that it names. Both are
// hostile input.
//
// It promises that a [Module] and a [Compose] that it returned hold nothing that
// leads out: every path is relative, clean and of harmless characters, every name
// matches its pattern, and the compose file has no key that reads, runs or grants
// something on the machine that parses it or on the host, judged by a list of what
// is allowed. What is refused is told with file, line and field, all of it at once.
//
// Not promised: that the image does what its author says. What a container may do
// on a host is bounded by what is allowed here, not by what it holds.
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

// Bounds of a module, and what it says when it says nothing.
const (
	// APIVersion is the only one that is read.
	APIVersion = "carboy.dev/v1"
	// MaxPath bounds a path, in bytes.
	MaxPath = 512
	// MaxWaves and MaxHosts bound a rollout.
	MaxWaves = 16
	MaxHosts = 32

	// DefaultStable is how long a service without a healthcheck must run without a
	// restart, DefaultHealth how long any may take to become healthy.
	DefaultStable = 30 * time.Second
	DefaultHealth = 2 * time.Minute
	// MaxWatch bounds both.
	MaxWatch = 30 * time.Minute
)

// Sync says which files go to the host beside the service.
type Sync string

// The zero Sync is none of them, and refused.
const (
	SyncNone  Sync = "none"  // none
	SyncFiles Sync = "files" // those in the module's directory files/
)

// FilesDir is the directory of a module whose files are synced.
const FilesDir = "files"

// Module is one service, on one host or several in waves.
type Module struct {
	ID string
	// Waves are the names of hosts in the order in which they are changed: those of one
	// wave together, the next wave when all of them are healthy. At least one, none empty.
	Waves   [][]string
	Compose string // path of the compose file, relative to the repository's top
	Service string
	Project string
	Root    string // absolute and clean: the directory on the host
	Sync    Sync

	StableFor time.Duration // at least a second
	Health    time.Duration
	// Destructive are actions that count as destructive besides removing.
	Destructive []string
}

// Actions are what can happen to a service or file on a host.
var Actions = []string{"create", "update", "recreate", "remove"}

var (
	idPattern   = NewPattern(`^[a-zA-Z0-9_-]{1,64}$`)
	project     = NewPattern(`^[a-z0-9][a-z0-9_-]{0,62}$`)
	service     = NewPattern(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)
	pathPattern = NewPattern(`^[A-Za-z0-9._@+/-]+$`)
	hostPattern = NewPattern(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)
	dnsPattern  = NewPattern(`^[a-zA-Z0-9][a-zA-Z0-9.-]{0,252}$`)
	userPattern = NewPattern(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,63}$`)
)

// Pattern is an expression that is compiled when it is needed first: what is compiled
// before main costs each process that this binary becomes.
type Pattern func() *regexp.Regexp

// NewPattern gives a pattern of a constant expression.
func NewPattern(expression string) Pattern {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// MatchString reports whether s has a match.
func (p Pattern) MatchString(s string) bool { return p().MatchString(s) }

// ValidID reports whether a module can be called so.
func ValidID(s string) bool { return idPattern.MatchString(s) }

// ValidHost reports whether a host can be called so in hosts.yaml.
func ValidHost(s string) bool { return hostPattern.MatchString(s) }

// ValidAddress reports whether a machine can be reached as s: a name or an IP address.
func ValidAddress(s string) bool { return net.ParseIP(s) != nil || dnsPattern.MatchString(s) }

// ValidUser reports whether somebody can sign in to a machine as s.
func ValidUser(s string) bool { return userPattern.MatchString(s) }

// ValidService reports whether compose may call a service so.
func ValidService(s string) bool { return service.MatchString(s) }

// ValidProject reports whether compose may call a project so.
func ValidProject(s string) bool { return project.MatchString(s) }

// File is the path of a module's file in a repository.
func File(id string) string { return path.Join("modules", id, "module.yaml") }

// Relative says what is wrong with a path that must stay below a directory, or
// nothing: it is relative, clean, and of characters that no program reads as
// anything else.
func Relative(p string) string {
	switch {
	case p == "":
		return "is empty"
	case len(p) > MaxPath:
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

// Absolute says what is wrong with a directory of a host, or nothing.
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

// Parse reads a module. file is its path in the repository and names it in errors;
// id is the name of its directory, and must be its own. The error is a
// [document.Error].
//
// The earlier form, with id, host and runtime at the top or below spec and without
// apiVersion, is read as well.
func Parse(file, id string, data []byte) (*Module, error) {
	doc, top, err := document.Parse(file, data)
	if err != nil {
		return nil, err
	}
	m := top.Mapping("apiVersion", "kind", "metadata", "spec", "id", "host", "runtime")
	if v := m.Get("apiVersion"); v.Present() && v.Text() != APIVersion {
		v.Bad("is not a version that is known", "write "+APIVersion)
	}
	if v := m.Get("kind"); v.Present() && v.Text() != "Module" {
		v.Bad("is not Module", "write kind: Module")
	}
	out := &Module{Service: id, Sync: SyncNone}
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

// either is the one of two places that is there; a value in both has two meanings.
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
		if len(m.Waves) == 0 || len(m.Waves) > MaxWaves || len(seen) > MaxHosts {
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
	m.Sync = Sync(r.Get("sync").OneOf(string(SyncNone), string(SyncFiles)))
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
	m.StableFor = watch("stable_for", DefaultStable)
	m.Health = watch("health_timeout", max(DefaultHealth, m.StableFor+DefaultStable))
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
