package serve

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/carboy/carboy/internal/orchestrate"
)

// pages answers webhooks and those who watch over the process.
type pages struct {
	dir      string
	hooks    http.Handler
	counters func() orchestrate.Counters
	ready    atomic.Bool
}

func (p *pages) handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	m.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !p.ready.Load() {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	m.HandleFunc("GET /metrics", p.metrics)
	m.Handle("/", p.hooks)
	return m
}

// metrics writes counts in the text format of Prometheus.
func (p *pages) metrics(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), headersIn)
	defer cancel()
	s, err := orchestrate.Status(ctx, p.dir)
	if err != nil {
		http.Error(w, "the state can't be read", http.StatusInternalServerError)
		return
	}
	m := &families{}
	ofIssues(m, s)
	c := p.counters()
	m.family("carboy_hooks_total", "counter", "Deliveries of the forge by result. Duplicates are taken, too.")
	m.labelled("carboy_hooks_total", "result", map[string]int64{"taken": c.Hooks, "refused": c.Refused, "duplicate": c.Duplicates, "overloaded": c.Overloaded})
	m.counter("carboy_looks_total", "Looks at an issue at the forge.", c.Looks)
	m.counter("carboy_looks_failed_total", "Looks at an issue that failed.", c.LookErrors)
	m.counter("carboy_polls_failed_total", "Looks at a repository as a whole that failed.", c.PollErrors)
	m.counter("carboy_turns_total", "Turns of agents that began, or began again.", c.Turns)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	fmt.Fprint(w, m.String())
}

// families writes metrics.
type families struct{ strings.Builder }

func (f *families) family(name, kind, help string) {
	fmt.Fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

func (f *families) gauge(name, help string, value int64) {
	f.family(name, "gauge", help)
	fmt.Fprintf(f, "%s %d\n", name, value)
}

func (f *families) counter(name, help string, value int64) {
	f.family(name, "counter", help)
	fmt.Fprintf(f, "%s %d\n", name, value)
}

// labelled writes the values of a metric by the value of a label, sorted.
func (f *families) labelled(name, label string, values map[string]int64) {
	for _, v := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(f, "%s{%s=%q} %d\n", name, label, v, values[v])
	}
}

// ofIssues writes the metrics that the state tells.
func ofIssues(m *families, s *orchestrate.StatusReport) {
	states := map[string]int64{"waiting": 0, "running": 0, "frozen": 0, "destroyed": 0}
	failing, tokens := int64(len(s.Errors)), int64(0)
	for _, i := range s.Issues {
		states[i.State]++
		tokens += i.Tokens
		if i.Failure != nil {
			failing++
		}
	}
	m.family("carboy_issues", "gauge", "Issues by state.")
	m.labelled("carboy_issues", "state", states)
	m.gauge("carboy_bottles_running", "Bottles in which an agent works.", states["running"])
	m.gauge("carboy_failing", "Issues and repositories of which a call fails again and again.", failing)
	m.gauge("carboy_tokens", "Tokens of models that the issues on record used.", tokens)
	ages := map[string]int64{}
	for repo, at := range s.Polled {
		ages[repo] = int64(time.Since(at).Seconds())
	}
	m.family("carboy_polled_age_seconds", "gauge", "Time since a repository was looked at as a whole.")
	m.labelled("carboy_polled_age_seconds", "repository", ages)
}
