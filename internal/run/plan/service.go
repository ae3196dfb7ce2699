package plan

import (
	"slices"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/gateway"
	"github.com/carboy/carboy/internal/image"
	"github.com/carboy/carboy/internal/secret"
	"github.com/carboy/carboy/internal/store"
)

// Service describes a bottle that runs beside another one, for it alone.
type Service struct {
	Name, From string // From is its place in a manifest
	Image      string // in the form that PullImage takes
	// Entrypoint and Command replace the image's; nil: as the image says.
	Entrypoint, Command []string
	Env                 map[string]string // over the image's
	Ports               []uint16          // that others may reach
	Health              *Health           // nil: it is ready when the first of Ports accepts
	After               []string          // services that it may reach; they are started before
	Limits              bottle.Limits     // zero fields: the defaults
}

// Health says how a service is asked whether it is ready.
type Health struct {
	Test                           []string // a command of the image that then exits with 0
	Interval, Timeout, StartPeriod time.Duration
	Retries                        int // failures in a row after StartPeriod that are too many
}

// serviceMemory is the default limit of a service's memory, in bytes: several stand beside an
// agent.
const serviceMemory = gib

// Options returns the options of the service's bottle. It has no workspace and no routes, and
// the accounts and rights inside that its image expects, as in a build.
func (s *Service) Options(b *Build) *Options {
	l := s.Limits
	if l.Memory == 0 {
		l.Memory = serviceMemory
	}
	return &Options{Mode: store.None, Build: b, Limits: l}
}

// Beside makes p the plan of a service's bottle: what it reaches are others.
func (p *Plan) Beside(of *Plan, reach map[string]gateway.Service) {
	p.Floor, p.Services, p.Untraced = of.Floor, reach, true
}

// Process returns the process that a service of the image is.
func (s *Service) Process(c *image.Config) *Inside {
	entry, args := c.Entrypoint, c.Cmd
	if s.Entrypoint != nil {
		entry, args = s.Entrypoint, nil
	}
	if s.Command != nil {
		args = s.Command
	}
	in := &Inside{Args: slices.Concat(entry, args), Dir: c.WorkingDir, User: c.User}
	if in.Dir == "" {
		in.Dir = "/"
	}
	env := map[string]string{"PATH": DefaultPath}
	for _, e := range c.Env {
		if name, val, ok := strings.Cut(e, "="); ok {
			env[name] = val
		}
	}
	for name, val := range s.Env {
		env[name] = val
	}
	for name, val := range env {
		in.Env = append(in.Env, name+"="+val)
	}
	slices.Sort(in.Env)
	return in
}

// Secrets returns the values that names of variables call secret, by the names that marks in
// records show.
func (s *Service) Secrets() map[string]secret.Value {
	out := map[string]secret.Value{}
	for name, val := range s.Env {
		if SecretName(name) && len(val) >= secret.MinRedacted {
			out[RedactionName(s.Name+"."+name)] = secret.NewString(val)
		}
	}
	return out
}
