// Package manifest reads what people write about bottles and agents: Markdown files
// with YAML before the text, found in the user's own directories, composed, and
// turned into one frozen value.
//
// It promises that a bottle comes from the user's own directories only, and that an
// agent, which may come from a repository, can choose among these bottles and never
// widen one: its type has no field for it. Ambiguous and unknown input is an error
// with its position. A repository's files are read without following links. Each
// value of the result has the file and line that it came from, and those of the
// values it replaced.
//
// It reads no secret and no variable: manifests name variables, whose values are
// read elsewhere.
//
// Start reading at [Open] and [Set.Resolve].
package manifest

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/policy"
	"github.com/carboy/carboy/internal/routes"
)

// Origin is a place in a file. The zero value stands for a default.
type Origin struct {
	File         string
	Line, Column int
	Field        string // as in egress.routes[2].host
}

// IsZero reports whether the value is a default.
func (o Origin) IsZero() bool { return o.Line == 0 }

// String returns file:line, or "default".
func (o Origin) String() string {
	if o.IsZero() {
		return "default"
	}
	return fmt.Sprintf("%s:%d", o.File, o.Line)
}

func (o Origin) problem(what, advice string) document.Problem {
	return document.Problem{File: o.File, Line: o.Line, Column: o.Column, Field: o.Field, What: what, Advice: advice}
}

func originOf(v document.Value) Origin {
	return Origin{File: v.File(), Line: v.Line(), Column: v.Column(), Field: v.Field()}
}

// Value is one setting, its origin, and the origins of the values it replaced.
type Value[T any] struct {
	V    T
	From Origin
	Over []Origin // what it took the place of, the earliest first
}

// IsSet reports whether a file or the command line set it; otherwise V is the default.
func (v Value[T]) IsSet() bool { return !v.From.IsZero() }

func said[T any](v document.Value, x T) Value[T] {
	if !v.Present() {
		return Value[T]{}
	}
	return Value[T]{V: x, From: originOf(v)}
}

// over replaces dst by src if src is set.
func over[T any](dst *Value[T], src Value[T]) {
	if !src.IsSet() || src.From == dst.From {
		return
	}
	if dst.IsSet() {
		src.Over = append(append([]Origin(nil), dst.Over...), dst.From)
	}
	*dst = src
}

func (v *Value[T]) fallback(x T) {
	if !v.IsSet() {
		v.V = x
	}
}

// Bottle is one bottle's settings, or those of several merged.
type Bottle struct {
	Extends   []Value[string]
	Env       map[string]Value[string]
	Provider  Provider
	Git       Git
	Egress    Egress
	Services  Services
	Supervise Value[bool]
	Limits    Limits
	Workspace Value[string] // overlay, copy, bind, none
	// Backend is one of Backends, and Isolation, the weakest class that is accepted, one
	// of Isolations; empty if no file says it.
	Backend, Isolation Value[string]
}

// Backends lists the names that a bottle's backend may have, whether this carboy has it or
// not. Isolations lists the classes of package bottle, from weak to strong.
var (
	Backends   = []string{"gvisor", "docker", "microvm", "smolmachines", "macos-container"}
	Isolations = []string{"container", "emulated-vm", "user-kernel", "hardware-vm"}
)

// Asked reports whether a variable's value is asked for at the start, and returns the
// prompt.
func Asked(value string) (message string, ok bool) { return strings.CutPrefix(value, "?") }

// Git holds a bottle's repositories, and the committer.
type Git struct {
	User  User
	Repos map[string]Repo
	// Cleared is the place of an empty mapping {}, which drops the repositories of
	// the bottles before.
	Cleared Origin
}

// User is the committer.
type User struct{ Name, Email Value[string] }

func (u *User) over(src User) {
	over(&u.Name, src.Name)
	over(&u.Email, src.Email)
}

// Repo is an upstream repository that the git gate serves.
type Repo struct {
	From     Origin
	URL      Value[string]
	Identity Value[string] // a private key's file on the host
	HostKey  Value[string]
	Key      Value[Key] // instead of Identity
	// TokenEnv is the variable of the host whose value the gate signs in with over
	// https; TokenUser is the user's name that goes with it, or empty.
	TokenEnv, TokenUser Value[string]

	// Aliases are further names of the host of URL, by which what runs inside may
	// call it.
	Aliases Value[[]string]

	legacy bool // of bot-bottle's own directory
}

// Transport is the protocol of an upstream.
type Transport string

// The transports.
const (
	OverSSH   Transport = "ssh"
	overHTTPS Transport = "https"
	overFile  Transport = "file" // it is on this machine
)

// Transport returns the protocol of a repository that Resolve returned.
func (r Repo) Transport() Transport {
	u := r.URL.V
	switch {
	case strings.HasPrefix(u, "https://"):
		return overHTTPS
	case strings.HasPrefix(u, "file://"):
		return overFile
	}
	return OverSSH
}

// Key is a deploy key: one that is there (static), or one that is made for the
// bottle with a forge's token.
type Key struct {
	Provider      string // static, gitea, github, gitlab
	Path          string
	ForgeTokenEnv string
	APIURL        string
}

// Egress holds the routes that a bottle may reach.
type Egress struct {
	Log    Value[int]
	Routes []Route // in the order in which they decide
	// Replaced are routes of earlier bottles to a host of which a later one says
	// that its connections are of another kind.
	Replaced []Route

	behind bool // the routes follow those of earlier bottles, as bot-bottle had it
}

// Route is one of the routes with its place.
type Route struct {
	policy.Route
	From Origin
	By   Origin // of Replaced: what decides instead

	id    string   // what agrees in it is the same but for options
	ports []string // the host with each of its ports
}

// Limits bounds a bottle; an unset limit is the machine's default.
type Limits struct {
	Memory, Disk, Output, EgressBytes Value[int64] // bytes
	Pids, CPUs                        Value[int64]
	Timeout                           Value[time.Duration]
	Approval                          Value[time.Duration] // the wait for a person's answer
}

// Agent is a coding agent that works in a bottle.
type Agent struct {
	Name    string
	File    string
	InRepo  bool // it came from the repository
	Bottles []Value[string]
	Skills  []Value[string]
	User    User
	// Vendor are keys of the agents' vendors: name, description, model, color,
	// memory, and tools, which is text or a list.
	Vendor map[string]Value[[]string]
	Prompt Value[string]
}

// maxName bounds the name of a bottle or agent.
const maxName = 64

var nameForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z][a-z0-9-]{0,63}$`) })

// validName reports whether name is a valid name of a bottle or agent: [a-z][a-z0-9-]*.
func validName(s string) bool { return nameForm().MatchString(s) }

// logDefault is the level of a bottle that sets none.
const logDefault = routes.DefaultLog
