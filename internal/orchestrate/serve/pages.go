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
	ready atomic.Bool

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
	var b strings.Builder
	family := func(name, kind, help string) { fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }

	states := map[string]int{"waiting": 0, "running": 0, "frozen": 0, "destroyed": 0}
	failing, tokens := len(s.Errors), int64(0)
	for _, i := range s.Issues {
		states[i.State]++
		tokens += i.Tokens
		if i.Failure != nil {
			failing++
		}
	}
	family("carboy_issues", "gauge", "Issues by state.")
	for _, state := range slices.Sorted(maps.Keys(states)) {
		fmt.Fprintf(&b, "carboy_issues{state=%q} %d\n", state, states[state])
	}
	family("carboy_bottles_running", "gauge", "Bottles in which an agent works.")
	fmt.Fprintf(&b, "carboy_bottles_running %d\n", states["running"])
	family("carboy_failing", "gauge", "Issues and repositories of which a call fails again and again.")
	fmt.Fprintf(&b, "carboy_failing %d\n", failing)
	family("carboy_tokens", "gauge", "Tokens of models used for the issues on record.")
	fmt.Fprintf(&b, "carboy_tokens %d\n", tokens)
	family("carboy_polled_age_seconds", "gauge", "Time since a repository was looked at as a whole.")
	for _, repo := range slices.Sorted(maps.Keys(s.Polled)) {
		fmt.Fprintf(&b, "carboy_polled_age_seconds{repository=%q} %.0f\n", repo, time.Since(s.Polled[repo]).Seconds())
	}
	family("carboy_hooks_total", "counter", "Deliveries by result.")
	p.mu.Lock()
	counts := map[string]int{"taken": 0, "unsigned": 0, "too many": 0, "refused": 0}
	for code, n := range p.codes {
		name, ok := hookResults[code]
		if !ok {
			name = "refused"
		}
		counts[name] += n
	}
	p.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "carboy_hooks_total{result=%q} %d\n", name, counts[name])
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	fmt.Fprint(w, b.String())
}
