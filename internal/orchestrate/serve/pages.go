package serve

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/carboy/carboy/internal/orchestrate"
)

// pages answers webhooks and those who watch over the process.
type pages struct {
	dir   string
	hooks http.Handler
	// repeated counts deliveries that were taken and had come before.
	repeated func() int64
	ready    atomic.Bool

	mu    sync.Mutex
	codes map[int]int // answers to deliveries, by code
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
	m.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		c := &coded{ResponseWriter: w, code: http.StatusOK}
		p.hooks.ServeHTTP(c, r)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.codes == nil {
			p.codes = map[int]int{}
		}
		p.codes[c.code]++
	})
	return m
}

// coded remembers the code of an answer.
type coded struct {
	http.ResponseWriter
	code int
}

func (c *coded) WriteHeader(code int) {
	c.code = code
	c.ResponseWriter.WriteHeader(code)
}

// Unwrap lets the handler set deadlines.
func (c *coded) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// hookResults name the answers to deliveries.
var hookResults = map[int]string{http.StatusNoContent: "taken", http.StatusUnauthorized: "unsigned", http.StatusServiceUnavailable: "too many"}

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
	m.family("carboy_hooks_total", "counter", "Deliveries of the forge by result. Repeated ones are taken, too.")
	p.mu.Lock()
	counts := map[string]int64{"taken": 0, "unsigned": 0, "too many": 0, "refused": 0, "repeated": p.repeated()}
	for code, n := range p.codes {
		name, ok := hookResults[code]
		if !ok {
			name = "refused"
		}
		counts[name] += int64(n)
	}
	p.mu.Unlock()
	m.labelled("carboy_hooks_total", "result", counts)
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
