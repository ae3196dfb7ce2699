package bottles

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/carboy/carboy/internal/bottle"
	"github.com/carboy/carboy/internal/manifest"
	"github.com/carboy/carboy/internal/run/plan"
)

// servicesOf returns the services of a bottle in the order in which they start, each with the
// values of its variables.
func servicesOf(e *manifest.Effective, env func(manifest.Value[string], string) (string, error)) ([]plan.Service, error) {
	var out []plan.Service
	for _, name := range e.Services.Order() {
		m := e.Services.By[name]
		s := plan.Service{
			Name: name, From: m.From.String(), Image: m.Image.V, Ports: m.Ports.V, After: m.After.V, Env: map[string]string{},
			Limits: bottle.Limits{Memory: m.Limits.Memory.V, Disk: m.Limits.Disk.V, Pids: m.Limits.Pids.V, CPUs: int(m.Limits.CPUs.V)},
		}
		if m.Entrypoint.IsSet() {
			s.Entrypoint = m.Entrypoint.V
		}
		if m.Command.IsSet() {
			s.Command = m.Command.V
		}
		if h := m.Health; h.IsSet() {
			s.Health = &plan.Health{Test: h.V.Test, Interval: h.V.Interval, Timeout: h.V.Timeout, StartPeriod: h.V.StartPeriod, Retries: int(h.V.Retries)}
		}
		for _, n := range slices.Sorted(maps.Keys(m.Env)) {
			v := m.Env[n]
			var err error
			if s.Env[n], err = env(v, n); err != nil {
				return nil, err
			}
		}
		out = append(out, s)
	}
	return out, nil
}

// describe says in one line what a service is.
func describe(s plan.Service) string {
	text := s.Name + ": " + s.Image
	if len(s.Ports) > 0 {
		text += ", port " + strings.ReplaceAll(strings.Trim(fmt.Sprint(s.Ports), "[]"), " ", ", ")
	}
	if len(s.After) > 0 {
		text += ", reaches " + strings.Join(s.After, ", ")
	}
	return text
}
