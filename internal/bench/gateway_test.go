package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// gatewayMeasured returns a report that exactly meets each goal of the gateway.
func gatewayMeasured() *GatewayReport {
	one := func(n int, took, cpu, p time.Duration) []gatewaySample {
		return []gatewaySample{{
			outcome: outcome{Count: n, Took: took, P50: p, P99: p}, Gateway: cpu,
			Memory: memory{Resident: 40 << 20, Program: 30 << 20},
		}}
	}
	bulk := func(took, cpu time.Duration) []gatewaySample {
		return []gatewaySample{{outcome: outcome{Count: 1, Bytes: 1 << 28, Took: took}, Gateway: cpu}}
	}
	all := func(n int, cpu, bulkTook, late time.Duration) map[string][]gatewaySample {
		return map[string][]gatewaySample{
			"post-h1": one(n, time.Second, cpu, time.Millisecond), "post-64": one(n, time.Second, cpu, time.Millisecond),
			"down-h1": bulk(bulkTook, time.Second), "up-h1": bulk(bulkTook, time.Second),
			"events": one(100, 2*time.Second, 0, late),
		}
	}
	r := &GatewayReport{Rounds: 1, Conns: 10_000, Systems: []GatewaySystem{
		{System: direct, Samples: all(12000, 0, time.Second, time.Millisecond)},
		{System: opened, Samples: all(4000, 920*time.Millisecond, 700*time.Millisecond, 2*time.Millisecond)},
		{System: scanned, Samples: all(4000, 920*time.Millisecond, time.Second, 2*time.Millisecond)},
		{System: goProxy, Samples: all(4000, 920*time.Millisecond, time.Second, 2*time.Millisecond)},
		{System: mitmproxy, Samples: all(4000, 920*time.Millisecond, time.Second, time.Second)},
	}, Many: []Many{{System: opened, Conns: 10_000, Open: memory{Resident: 10_000 * 64 << 10}, Works: true}}}
	r.Goals = r.goals()
	return r
}

func TestGatewayGoals(t *testing.T) {
	r := gatewayMeasured()
	for _, g := range r.Goals {
		if g.met() != "yes" {
			t.Errorf("%s: %+v: %s", g.What, g.Got, g.met())
		}
	}
	// Each can be missed: with everything of carboy's a little worse, none is met.
	for i := range r.Systems {
		s := &r.Systems[i]
		if s.System != opened && s.System != scanned {
			continue
		}
		worse := 1.1
		if s.System == scanned { // against the one that is not
			worse = 1.3
		}
		for name, xs := range s.Samples {
			for j := range xs {
				xs[j].Took = time.Duration(float64(xs[j].Took) * worse)
				xs[j].Gateway = time.Duration(float64(xs[j].Gateway) * worse)
				xs[j].P99 += time.Millisecond
				xs[j].Memory.Resident += 1 << 20
			}
			s.Samples[name] = xs
		}
	}
	r.Many[0].Open.Resident += 1 << 20
	for _, g := range r.goals() {
		if g.met() != "**no**" {
			t.Errorf("worse, and yet %s: %+v: %s", g.What, g.Got, g.met())
		}
	}
	// What was not measured is not met.
	for _, g := range (&GatewayReport{Conns: 10}).goals() {
		if g.met() != "**not measured**" {
			t.Errorf("%s of nothing: %s", g.What, g.met())
		}
	}
}

// A figure is divided by that of its own round, and a round in which one failed is
// left out.
func TestGatewayRatio(t *testing.T) {
	x := func(n int) gatewaySample { return gatewaySample{outcome: outcome{Count: n, Took: time.Second}} }
	r := &GatewayReport{Systems: []GatewaySystem{
		{System: direct, Samples: map[string][]gatewaySample{"post-h1": {x(100), {}, x(10)}}},
		{System: opened, Samples: map[string][]gatewaySample{"post-h1": {x(50), x(50), x(5)}}},
	}}
	s := r.ratio("post-h1", opened, direct, gatewaySample.rate)
	if s == nil || len(s.Rounds) != 2 || s.Min != 0.5 || s.Max != 0.5 {
		t.Errorf("ratio %+v", s)
	}
	if s := r.ratio("post-h1", opened, mitmproxy, gatewaySample.rate); s != nil {
		t.Errorf("ratio to nothing %+v", s)
	}
}

func TestGatewayMarkdown(t *testing.T) {
	r := gatewayMeasured()
	r.Skipped, r.Failed = []string{"mitmproxy: not there"}, []string{"events with x: y"}
	text := r.markdown()
	for _, want := range []string{"**Skipped:** mitmproxy: not there", "**Failed:** 1 ", "| Go's ReverseProxy | 0.33 |", "| carboy, scanned |", "| 10000 | 64 | "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

func TestSlope(t *testing.T) {
	line := func(n int, f func(i int) float64) (ys []float64) {
		for i := range n {
			ys = append(ys, f(i))
		}
		return ys
	}
	for _, c := range []struct {
		what string
		ys   []float64
		want float64
	}{
		{"nothing", nil, 0},
		{"one", []float64{7}, 0},
		{"a line", line(50, func(i int) float64 { return 3 * float64(i) }), 3},
		{"a long line", line(5000, func(i int) float64 { return 3 * float64(i) }), 3},
		{"a level with peaks", line(60, func(i int) float64 {
			if i%10 == 9 {
				return 1000
			}
			return 5
		}), 0},
	} {
		if got := slope(c.ys); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}

// A heap that is collected again and again is no growth; what -leak does is, in each
// of the vitals alone, also in the shortest soak.
func TestJudge(t *testing.T) {
	perSecond := int(time.Second / leakPeriod)
	for _, seconds := range []int{20, 60, 3600} {
		steady := func(i int) vitals {
			return vitals{Resident: int64(60+i%7) << 20, Goroutines: 50 + i%5, Descriptors: 40 + i%3}
		}
		for what, more := range map[string]func(i int, v *vitals){
			"":                     func(int, *vitals) {},
			"resident memory, MiB": func(i int, v *vitals) { v.Resident += int64(i*perSecond) * 64 << 10 },
			"goroutines":           func(i int, v *vitals) { v.Goroutines += i * perSecond },
			"descriptors":          func(i int, v *vitals) { v.Descriptors += i * perSecond },
		} {
			r := Soak{Mix: map[string]int64{"h1": 1}}
			for i := range seconds {
				v := steady(i)
				more(i, &v)
				r.Vitals = append(r.Vitals, v)
			}
			r.Growth = judge(r.Vitals)
			for _, g := range r.Growth {
				if g.ok() == (g.What == what) {
					t.Errorf("%d s, leaking %q: %+v", seconds, what, g)
				}
			}
			if err := r.verdict(); (err != nil) != (what != "") {
				t.Errorf("%d s, leaking %q: %v", seconds, what, err)
			}
		}
	}
	if err := (&Soak{Vitals: make([]vitals, 60), Mix: map[string]int64{"h1": 1, "h2": 0}}).verdict(); err == nil {
		t.Error("a soak in which something was never done is a good one")
	}
	if err := (&Soak{}).verdict(); err == nil {
		t.Error("a soak of no time is a good one")
	}
}

// TestGatewayBench measures for a moment, with real bottles. What is measured is
// not looked at: that it was is.
func TestGatewayBench(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: takes a quarter of a minute; -short leaves it out")
	}
	o := &options{rounds: 1, gateway: true, busy: 200 * time.Millisecond, bulk: 1, conns: 40}
	g, err := newGatewayBench(t.Context(), o, testWriter{t})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(g.base); !os.IsNotExist(err) {
			t.Errorf("left behind: %s", g.base)
		}
	}()
	if err := g.measure(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := g.report()
	if len(r.Failed) > 0 {
		t.Fatalf("failed: %q", r.Failed)
	}
	for _, name := range []string{direct, passed, opened, goProxy} {
		for _, m := range gatewayMeasures {
			ss := r.samples(m.name, name)
			if len(ss) != 1 || ss[0].Took <= 0 || ss[0].rate() <= 0 {
				t.Errorf("%s with %s: %+v", m.name, name, ss)
			}
		}
	}
	if s := r.samples("post-64", opened); len(s) == 1 && (s[0].Gateway <= 0 || s[0].Below <= 0 || s[0].Memory.Resident <= s[0].Memory.Program) {
		t.Errorf("processor time and memory of carboy: %+v", s)
	}
	if _, err := exec.LookPath("mitmdump"); (err == nil) != (r.samples("events", mitmproxy) != nil) {
		t.Errorf("mitmproxy is there: %v, skipped: %q", err == nil, r.Skipped)
	}
	if len(r.Many) < 2 || !r.Many[0].Works || r.Many[0].Conns != 40 {
		t.Errorf("open connections: %+v", r.Many)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

// TestSoakFails leaks on purpose. That one which does not is good is a step of
// .ci/run, where it is alone on the machine.
func TestSoakFails(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: takes a quarter of a minute; -short leaves it out")
	}
	const leak = "descriptors"
	var out bytes.Buffer
	err := soak(context.Background(), &options{soak: 12 * time.Second, leak: leak}, &out, io.Discard)
	if err == nil || !strings.Contains(err.Error(), leak) {
		t.Errorf("leaking %s: %v\n%s", leak, err, out.String())
	}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}
