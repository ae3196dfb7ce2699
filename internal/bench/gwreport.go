package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

//go:embed testdata/addon.py
var mitmproxyAddon []byte

// GatewaySchema names the JSON document of the gateway's measurements.
const GatewaySchema = "carboy.dev/bench-gateway/v1"

// GatewayReport is the JSON document of -gateway.
type GatewayReport struct {
	Schema  string          `json:"schema"`
	Rounds  int             `json:"rounds"`
	Facts   facts           `json:"machine"`
	Busy    time.Duration   `json:"busy"`
	Bulk    int             `json:"bulk_mib"`
	Conns   int             `json:"connections"`
	Skipped []string        `json:"skipped"`
	Failed  []string        `json:"failed"`
	Systems []GatewaySystem `json:"systems"`
	Many    []Many          `json:"many"`
	Goals   []Goal          `json:"goals"`
}

// GatewaySystem holds the samples of one way to the server, by measure, one per round.
type GatewaySystem struct {
	System  string                     `json:"system"`
	Idle    memory                     `json:"idle"`
	Samples map[string][]gatewaySample `json:"samples"`
}

func benchmarkGateway(ctx context.Context, o *options, stdout, stderr io.Writer) (err error) {
	if o.update != "" { // before minutes are spent
		if _, err := readMarked(o.update, gatewayTables); err != nil {
			return err
		}
	}
	g, err := newGatewayBench(ctx, o, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	if err := g.measure(ctx); err != nil {
		return err
	}
	r := g.report()
	if err := o.publish(stdout, gatewayTables, r); err != nil {
		return err
	}
	if len(r.Failed) > 0 {
		return fmt.Errorf("%d samples failed", len(r.Failed))
	}
	return nil
}

func (g *gatewayBench) report() *GatewayReport {
	r := &GatewayReport{
		Schema: GatewaySchema, Rounds: g.o.rounds, Facts: g.facts, Busy: g.o.busy, Bulk: g.o.bulk, Conns: g.o.conns,
		Skipped: g.skipped, Failed: g.failed, Many: g.many,
	}
	for _, s := range g.systems {
		x := GatewaySystem{System: s.name, Idle: g.idle[s.name], Samples: map[string][]gatewaySample{}}
		for _, m := range gatewayMeasures {
			if ss := g.samples[key{m.name, s.name}]; ss != nil {
				x.Samples[m.name] = ss
			}
		}
		r.Systems = append(r.Systems, x)
	}
	r.Goals = r.goals()
	return r
}

func (r *GatewayReport) samples(measure, system string) []gatewaySample {
	for _, s := range r.Systems {
		if s.System == system {
			return s.Samples[measure]
		}
	}
	return nil
}

// ratio returns a figure of one system divided by another's of the same round, and values
// returns the figure itself. They leave out rounds in which either failed.
func (r *GatewayReport) ratio(measure, of, to string, figure func(gatewaySample) float64) *Spread {
	var xs []float64
	a, b := r.samples(measure, of), r.samples(measure, to)
	for i := range min(len(a), len(b)) {
		if a[i].Took > 0 && b[i].Took > 0 && figure(b[i]) > 0 {
			xs = append(xs, figure(a[i])/figure(b[i]))
		}
	}
	return spreadOf(xs)
}

func (r *GatewayReport) values(measure, of string, figure func(gatewaySample) float64) *Spread {
	var xs []float64
	for _, x := range r.samples(measure, of) {
		if x.Took > 0 {
			xs = append(xs, figure(x))
		}
	}
	return spreadOf(xs)
}

// later is by how much the given quantile of events is later than without anything
// between, in milliseconds.
func (r *GatewayReport) later(of string, quantile func(gatewaySample) time.Duration) *Spread {
	var xs []float64
	a, b := r.samples("events", of), r.samples("events", direct)
	for i := range min(len(a), len(b)) {
		if a[i].Took > 0 && b[i].Took > 0 {
			xs = append(xs, float64(quantile(a[i])-quantile(b[i]))/float64(time.Millisecond))
		}
	}
	return spreadOf(xs)
}

func p50(s gatewaySample) time.Duration { return s.P50 }
func p99(s gatewaySample) time.Duration { return s.P99 }

func latency(q func(gatewaySample) time.Duration) func(gatewaySample) float64 {
	return func(s gatewaySample) float64 { return float64(q(s)) }
}

func mebibytes(s gatewaySample) float64    { return s.Memory.mebibytes() }
func ownMebibytes(s gatewaySample) float64 { return s.Memory.ownMebibytes() }

// goals compares the results with the goals of scanning, a plain Go proxy and mitmproxy.
func (r *GatewayReport) goals() []Goal {
	busiest := scanned // what people have, when it is there
	if r.samples("post-h1", scanned) == nil {
		busiest = opened
	}
	micro := func(s gatewaySample) float64 { return s.perRequest() / 1000 }
	also := func(measure, of string, figure func(gatewaySample) float64, format string) string {
		if s := r.values(measure, of, figure); s != nil {
			return fmt.Sprintf(format, s.Median)
		}
		return ""
	}
	below := func(s gatewaySample) float64 { return float64(s.Gateway+s.Below) / float64(max(1, s.Count)) / 1000 }
	gs := []Goal{
		{What: "processor time per request, carboy without scanning ÷ Go's ReverseProxy", Limit: 1, Got: r.ratio("post-h1", opened, goProxy, gatewaySample.perRequest),
			Also: also("post-h1", opened, below, "%.0f µs with the bottle and the client in it")},
		{What: "processor time per request, carboy with scanning ÷ mitmproxy with its addon", Limit: 1, Got: r.ratio("post-h1", scanned, mitmproxy, gatewaySample.perRequest)},
		{What: "processor time per request, carboy, " + strings.TrimPrefix(busiest, "carboy, "), Limit: 230, Unit: "µs", Got: r.values("post-h1", busiest, micro)},
		{What: "requests per second, client in the bottle, carboy without scanning ÷ client on the host, Go's ReverseProxy", Limit: 1, AtLeast: true, Got: r.ratio("post-h1", opened, goProxy, gatewaySample.rate)},
		{What: "requests per second, carboy, " + strings.TrimPrefix(busiest, "carboy, ") + " ÷ mitmproxy", Limit: 1, AtLeast: true, Got: r.ratio("post-h1", busiest, mitmproxy, gatewaySample.rate)},
	}
	for _, m := range []struct{ name, what string }{{"down-h1", "download"}, {"up-h1", "upload"}} {
		gs = append(gs,
			Goal{What: m.what + ", bytes per second, scanned ÷ not scanned", Limit: 0.7, AtLeast: true, Got: r.ratio(m.name, scanned, opened, gatewaySample.rate)},
			Goal{What: m.what + ", processor time per byte, carboy without scanning ÷ Go's ReverseProxy", Limit: 1, Got: r.ratio(m.name, opened, goProxy, gatewaySample.perByte)},
		)
	}
	gs = append(gs,
		Goal{What: "events, later at the 99th percentile than direct", Limit: 1, Unit: "ms", Got: r.later(busiest, p99)},
		Goal{What: "resident memory at 64 busy connections", Limit: 40, Unit: "MiB", Got: r.values("post-64", busiest, mebibytes),
			Also: also("post-64", busiest, ownMebibytes, "%.0f without the pages of the program")},
	)
	many := Goal{What: fmt.Sprintf("%d open connections, memory of each", r.Conns), Limit: 64, Unit: "KiB"}
	for _, m := range r.Many {
		if m.System == opened && m.Works {
			many.Got = spreadOf([]float64{m.perConn() / 1024})
		}
	}
	return append(gs, many)
}

func (r *GatewayReport) markdown() string {
	var w strings.Builder
	f := r.Facts
	fmt.Fprintf(&w, "%d rounds; %d cores, %d GiB, %s, Linux %s, %s, gVisor %s. Measured: %s. Load per core %.1f at the start, %s after each round.\n",
		r.Rounds, f.Cores, f.MemoryGiB, f.Arch, f.Kernel, f.Go, f.GVisor, strings.Join(f.Peers, ", "), f.Load, figures(f.Busy))
	for _, s := range r.Skipped {
		fmt.Fprintf(&w, "\n**Skipped:** %s\n", s)
	}
	if n := len(r.Failed); n > 0 {
		fmt.Fprintf(&w, "\n**Failed:** %d samples are missing; the first: %s\n", n, r.Failed[0])
	}
	goalRows(&w, r.Goals)
	rate, cpu, perByte := gatewaySample.rate, gatewaySample.perRequest, gatewaySample.perByte
	fmt.Fprint(&w, "\n**Requests**: POST of 1 KiB, 16 at a time, as multiples of direct (medians, here and below). Processor time is the gateway's, as a multiple of that of Go's ReverseProxy.\n\n")
	r.table(&w, []column{
		{"HTTP/1, per second", func(s string) string { return show(r.ratio("post-h1", s, direct, rate)) }},
		{"p50", func(s string) string { return show(r.ratio("post-h1", s, direct, latency(p50))) }},
		{"p99", func(s string) string { return show(r.ratio("post-h1", s, direct, latency(p99))) }},
		{"processor time per request", func(s string) string { return show(r.ratio("post-h1", s, goProxy, cpu)) }},
		{"HTTP/2, per second", func(s string) string { return show(r.ratio("post-h2", s, direct, rate)) }},
		{"processor time per request", func(s string) string { return show(r.ratio("post-h2", s, goProxy, cpu)) }},
	})
	fmt.Fprintf(&w, "\n**Bulk**: %d MiB of text, bytes per second as multiples of direct; mitmproxy, which buffers them, has a %dth of it. Processor time per byte as a multiple of that of Go's ReverseProxy.\n\n", r.Bulk, mitmproxyLess)
	var bulk []column
	for _, m := range []struct{ name, what string }{{"down-h1", "down, HTTP/1"}, {"up-h1", "up, HTTP/1"}, {"down-h2", "down, HTTP/2"}, {"up-h2", "up, HTTP/2"}} {
		bulk = append(bulk,
			column{m.what, func(s string) string { return show(r.ratio(m.name, s, direct, rate)) }},
			column{"its processor time", func(s string) string { return show(r.ratio(m.name, s, goProxy, perByte)) }})
	}
	r.table(&w, bulk)
	fmt.Fprintf(&w, "\n**Events and memory**: server-sent events, one each %v, later than direct, in milliseconds; resident memory in MiB after the start and at 64 busy connections; connections that were used once and stay open, and what each takes, in KiB.\n\n", eventPeriod)
	many := func(s string, f func(Many) string) string {
		for _, m := range r.Many {
			if m.System == s {
				return f(m)
			}
		}
		return ""
	}
	r.table(&w, []column{
		{"p50", func(s string) string { return show(r.later(s, p50)) }},
		{"p99", func(s string) string { return show(r.later(s, p99)) }},
		{"idle, without program", func(s string) string {
			i := slices.IndexFunc(r.Systems, func(x GatewaySystem) bool { return x.System == s })
			if i < 0 || r.Systems[i].Idle.Resident == 0 {
				return ""
			}
			return figure(r.Systems[i].Idle.mebibytes()) + ", " + figure(r.Systems[i].Idle.ownMebibytes())
		}},
		{"64 connections", func(s string) string { return show(r.values("post-64", s, mebibytes)) }},
		{"without program", func(s string) string { return show(r.values("post-64", s, ownMebibytes)) }},
		{"open", func(s string) string { return many(s, func(m Many) string { return fmt.Sprint(m.Conns) }) }},
		{"each", func(s string) string { return many(s, func(m Many) string { return figure(m.perConn() / 1024) }) }},
		{"when they are closed", func(s string) string {
			return many(s, func(m Many) string { return figure(m.After.mebibytes()) + " MiB in all" })
		}},
	})
	return w.String()
}

// show formats the median; the goals have the range.
func show(s *Spread) string {
	if s == nil || (s.Min == 0 && s.Max == 0) {
		return ""
	}
	return s.fig(s.Median)
}

// fig formats a figure. Small ones have two digits, so that 0.14 and 0.05 differ.
func (s *Spread) fig(x float64) string {
	if x < 0.995 && x > -0.995 {
		return fmt.Sprintf("%.2f", x)
	}
	return figure(x)
}

type column struct {
	what string
	cell func(system string) string
}

func (r *GatewayReport) table(w *strings.Builder, cs []column) {
	fmt.Fprint(w, "|  |")
	for _, c := range cs {
		fmt.Fprintf(w, " %s |", c.what)
	}
	fmt.Fprintf(w, "\n| ---%s |\n", strings.Repeat(" | ---", len(cs)))
	for _, s := range r.Systems {
		if s.System == direct { // what all are compared with
			continue
		}
		fmt.Fprintf(w, "| %s |", s.System)
		for _, c := range cs {
			cell := c.cell(s.System)
			if cell == "" {
				cell = "–"
			}
			fmt.Fprintf(w, " %s |", cell)
		}
		fmt.Fprint(w, "\n")
	}
}
