package manifest

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/carboy/carboy/internal/document"
	"github.com/carboy/carboy/internal/policy"
)

// Services holds the bottles that run beside a bottle, by the names under which it reaches
// them.
type Services struct {
	By map[string]Service
	// Cleared is the place of an empty mapping {}, which drops those of the bottles before.
	Cleared Origin
}

// Service is one of them. Its words are those of compose files.
type Service struct {
	From                Origin
	Image               Value[string]
	Entrypoint, Command Value[[]string]
	Env                 map[string]Value[string]
	Ports               Value[[]uint16] // inside
	Health              Value[Health]
	After               Value[[]string] // depends_on
	Limits              Limits          // memory, disk, pids and cpus
}

// Health says how a service is asked whether it is ready.
type Health struct {
	Test                           []string // a command of the service
	Interval, Timeout, StartPeriod time.Duration
	Retries                        int64
}

// The keys of a service.
var (
	serviceKeys      = []string{"image", "entrypoint", "command", "environment", "ports", "healthcheck", "depends_on", "limits"}
	healthKeys       = []string{"test", "interval", "timeout", "retries", "start_period"}
	serviceLimitKeys = []string{"memory", "disk", "pids", "cpus"}
)

// notServices lists keys of compose files that a service has not.
var notServices = map[string]string{
	"build":       "build it first: carboy image build -t NAME DIR, and then image: built:NAME",
	"expose":      "write ports: [5432]",
	"volumes":     "a service keeps nothing: what it needs at the start belongs into its image",
	"networks":    "a service has no network: the bottle reaches its ports, and services those that they depend_on",
	"env_file":    "write environment: {NAME: value}",
	"user":        "the image's USER counts",
	"working_dir": "the image's WORKDIR counts",
	"restart":     "a service that ends stays ended, and the receipt says so",
	"secrets":     "write environment: {NAME: ?WORDS}, and the value is asked for at the start",
}

// Bounds of services.
const (
	maxServices = 16 // beside one bottle
	maxPorts    = 64 // of a service
)

// The defaults of a healthcheck. People wait for it, so it is asked more often than compose
// asks, and has time to begin.
var defaultHealth = Health{Interval: time.Second, Timeout: 30 * time.Second, StartPeriod: time.Minute, Retries: 3}

func (r *reader) services(v document.Value) (s Services) {
	if v.IsEmpty() && !v.IsList() {
		s.Cleared = originOf(v)
	}
	keys, values := v.Entries()
	for i, name := range keys {
		e := values[i]
		switch {
		case !policy.ServiceName(name):
			e.Bad(fmt.Sprintf("%.40q is no name of a service", name), "names are [a-z][a-z0-9-]*, as in db, and neither localhost nor carboy")
		case e.Present():
			if s.By == nil {
				s.By = map[string]Service{}
			}
			s.By[name] = r.service(e)
		}
	}
	return s
}

func (r *reader) service(v document.Value) Service {
	m := v.MappingWithout(notServices, serviceKeys...)
	s := Service{
		From: originOf(v), Image: r.text(m.Need("image")), Entrypoint: r.program(m.Get("entrypoint")), Command: r.program(m.Get("command")),
		// Its name says nothing: a password of a server that nobody else reaches is none of
		// the user's secrets.
		Env:   r.variables(m.Get("environment"), func(string, string) string { return "" }),
		Ports: r.ports(m.Get("ports")), Health: r.health(m.Get("healthcheck")), Limits: r.limits(m.Get("limits"), serviceLimitKeys),
	}
	r.notHere(m.Get("image"), s.Image.V)
	after := m.Get("depends_on")
	s.After = said(after, after.Strings())
	return s
}

// program reads a command line: a list, or words without quotes.
func (r *reader) program(v document.Value) Value[[]string] {
	if v.IsList() || !v.Present() {
		if v.IsEmpty() {
			v.Bad("is empty", "leave it out, or name a program")
		}
		return r.args(v)
	}
	s := v.Text()
	if !plainWords().MatchString(s) || strings.TrimSpace(s) == "" {
		if s != "" {
			v.Bad("has characters that mean something to a shell", "write a list: [program, argument]")
		}
		return said(v, []string{})
	}
	return said(v, strings.Fields(s))
}

var plainWords = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9_./:=,@%+* -]+$`)
})

// ports reads container ports, which are numbers with or without quotes.
func (r *reader) ports(v document.Value) Value[[]uint16] {
	var out []uint16
	for _, e := range v.List() {
		var n int64
		if text, ok := e.Plain(); ok && strings.Contains(text, ":") {
			e.Bad(fmt.Sprintf("%.40q names a port of the host, and a service is reached from its bottle alone", text), "write the port inside: "+text[strings.LastIndexByte(text, ':')+1:])
			continue
		} else if n, _ = strconv.ParseInt(text, 10, 64); !ok || strconv.FormatInt(n, 10) != text || n < 1 || n > 65535 {
			e.Bad("is no TCP port", "write a number from 1 to 65535, as in 5432")
			continue
		}
		if slices.Contains(out, uint16(n)) {
			e.Bad("given twice", "")
			continue
		}
		out = append(out, uint16(n))
	}
	if len(out) > maxPorts {
		v.Bad(fmt.Sprintf("more than %d ports", maxPorts), "")
	}
	return said(v, out)
}

func (r *reader) health(v document.Value) Value[Health] {
	m := v.Mapping(healthKeys...)
	h := defaultHealth
	for key, to := range map[string]*time.Duration{"interval": &h.Interval, "timeout": &h.Timeout, "start_period": &h.StartPeriod} {
		if d := m.Get(key); d.Present() {
			*to = d.Duration()
		}
	}
	h.Retries = m.Get("retries").Int(h.Retries, 1, 1000)
	test := m.Need("test")
	if !test.IsList() {
		if s := r.text(test).V; s != "" {
			h.Test = []string{"/bin/sh", "-c", s}
		}
		return said(v, h)
	}
	words := r.args(test).V
	switch how := first(words); {
	case how == "NONE" && len(words) == 1:
		return Value[Health]{}
	case how == "CMD" && len(words) > 1:
		h.Test = words[1:]
	case how == "CMD-SHELL" && len(words) == 2:
		h.Test = []string{"/bin/sh", "-c", words[1]}
	default:
		test.Bad("is none of compose's forms", `write [CMD, program, argument], [CMD-SHELL, "command line"], or the command line alone`)
	}
	return said(v, h)
}

func first(l []string) string {
	if len(l) == 0 {
		return ""
	}
	return l[0]
}

// values returns what the services' variables hold.
func (s Services) values() map[string]bool {
	out := map[string]bool{}
	for _, x := range s.By {
		for _, v := range x.Env {
			out[v.V] = true
		}
	}
	return out
}

// over replaces services by those of src with the same name.
func (s *Services) over(src Services) {
	by := maps.Clone(s.By)
	if !src.Cleared.IsZero() {
		by, s.Cleared = nil, src.Cleared
	}
	for name, x := range src.By {
		if by == nil {
			by = map[string]Service{}
		}
		by[name] = x
	}
	s.By = by
}

// Order returns the names, each after those that it depends on.
func (s Services) Order() []string {
	var out []string
	var visit func(string, int)
	visit = func(name string, deep int) {
		if _, ok := s.By[name]; !ok || slices.Contains(out, name) || deep > len(s.By) {
			return
		}
		for _, on := range slices.Sorted(slices.Values(s.By[name].After.V)) {
			visit(on, deep+1)
		}
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.By)) {
		visit(name, 0)
	}
	return out
}

// circle returns the services by which the first of path depends on itself, or nil. seen are
// those by which it does not.
func (s Services) circle(path []string, seen map[string]bool) []string {
	for _, on := range s.By[path[len(path)-1]].After.V {
		if on == path[0] {
			return append(path, on)
		}
		if !seen[on] {
			seen[on] = true
			if c := s.circle(append(slices.Clip(path), on), seen); c != nil {
				return c
			}
		}
	}
	return nil
}

// check refuses services that could not be started, or be told from a host.
func (s Services) check(table *policy.Table) (bad document.Error) {
	no := func(from Origin, what, advice string) { bad = append(bad, from.problem(what, advice)) }
	names := slices.Sorted(maps.Keys(s.By))
	if len(names) > maxServices {
		no(s.By[names[0]].From, fmt.Sprintf("more than %d services", maxServices), "")
		return bad
	}
	for _, name := range names {
		x := s.By[name]
		if v := table.DecideName(name); v.Allowed {
			no(x.From, fmt.Sprintf("%s is the host of a route, too (%s)", name, v.Rule), "call the service something else")
		}
		for _, on := range x.After.V {
			if _, ok := s.By[on]; !ok {
				no(x.After.From, fmt.Sprintf("there is no service %.40q", on), "")
			}
		}
		if c := s.circle([]string{name}, map[string]bool{}); c != nil {
			no(x.After.From, "goes in a circle: "+strings.Join(c, " -> "), "take one of them out")
			return bad
		}
	}
	return bad
}
