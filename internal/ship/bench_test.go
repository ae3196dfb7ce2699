package ship

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/ship/approval"
	"github.com/carboy/carboy/internal/ship/shiptest"
	"github.com/carboy/carboy/internal/testenv"
)

// BenchmarkShip is plan and apply beside docker compose up -d by hand, over ssh, for a
// change and for nothing to do. A round has each once, in turn, so that a machine that
// others use as well slows all of them; "x" are the ratios of all rounds together, "mid-x"
// those of the middle of each, which a round that was disturbed does not change. They leave
// out the health window, which the other does not wait for: from when the right container is
// seen to run until it is seen to be healthy. At the end it prints the tables of
// docs/benchmarks.md.
//
//	go test ./internal/ship -run '^$' -bench Ship -benchtime 10x
func BenchmarkShip(b *testing.B) {
	ssh := testenv.Need(b, "ssh", "apt-get install openssh-client")
	dk := shiptest.StartEngine(b)
	defer dk.Stop()
	w := &world{t: b, op: shiptest.NewOperator(b), repo: shiptest.NewRepo(b), dk: dk, host: shiptest.NewHost(b, "one", dk)}
	w.op.Add(b, w.host)
	w.e = w.engine()
	if err := os.WriteFile(w.host.Dir+"/known", fmt.Appendf(nil, "[127.0.0.1]:%d %s\n", w.host.Port, w.host.KeyPub), 0o600); err != nil {
		b.Fatal(err)
	}
	took := map[string][]time.Duration{}
	keep := func(name string, d time.Duration) time.Duration {
		took[name] = append(took[name], d)
		return d
	}
	middle := func(name string) float64 {
		slices.Sort(took[name])
		return float64(took[name][len(took[name])/2])
	}
	hand := func(v string) time.Duration {
		began := time.Now()
		cmd := exec.Command(ssh, "-F", "none", "-i", w.op.Key, "-o", "UserKnownHostsFile="+w.host.Dir+"/known", "-o", "BatchMode=yes", "-p", fmt.Sprint(w.host.Port), w.host.User+"@127.0.0.1",
			"DOCKER_HOST="+dk.Socket+" docker compose -p hand --project-directory "+w.host.Root+" -f - up -d")
		cmd.Stdin = strings.NewReader(shiptest.Compose("hand", v, "checked"))
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		return time.Since(began)
	}
	var sum struct{ handUp, handNop, plan, planNop, apply, window, source, connect, applySource, applyConnect time.Duration }
	w.commit("bench", "v3", "checked")
	w.ship("bench")
	hand("v3")
	b.ResetTimer()
	for i := range b.N {
		v := "v" + string('1'+rune(i%2))
		sum.handUp += keep("hand", hand(v))
		sum.handNop += keep("hand, nothing", hand(v))
		w.commit("bench", v, "checked")
		began := time.Now()
		var timing Timing
		m, err := w.e.Plan(w.ctx(), PlanOptions{Module: "bench", Timing: &timing})
		if err != nil {
			b.Fatal(err)
		}
		sum.plan += time.Since(began)
		sum.source += timing.Source
		sum.connect += timing.Connect
		a := w.approve("alice", false, m[0])
		var watching, healthy time.Time
		w.hook = func(p Progress) {
			switch p.Step {
			case "watch":
				watching = time.Now()
			case "health":
				healthy = time.Now()
			}
		}
		began = time.Now()
		r, err := w.e.Apply(w.ctx(), [][]byte{m[0].Bytes}, []approval.Signed{a})
		if o := outcomeOf(r, err); o != Applied {
			b.Fatal(o, err)
		}
		all := time.Since(began)
		sum.apply += all
		sum.window += healthy.Sub(watching)
		keep("apply", all-healthy.Sub(watching))
		w.hook = nil
		sum.applySource += r[0].Timing.Source
		sum.applyConnect += r[0].Timing.Connect
		began = time.Now()
		if p := w.plan("bench"); len(p.Changes) > 0 {
			b.Fatal(p.Changes)
		}
		sum.planNop += keep("nothing", time.Since(began))
	}
	per := func(d time.Duration, name string) {
		b.ReportMetric(float64(d.Milliseconds())/float64(b.N), name)
	}
	per(sum.handUp, "hand-ms")
	per(sum.handNop, "hand-noop-ms")
	per(sum.plan, "plan-ms")
	per(sum.source, "plan-git-ms")
	per(sum.connect, "plan-connect-ms")
	per(sum.apply, "apply-ms")
	per(sum.window, "health-ms")
	per(sum.planNop, "noop-ms")
	b.ReportMetric(float64(sum.apply-sum.window)/float64(sum.handUp), "change-x")
	b.ReportMetric(float64(sum.planNop)/float64(sum.handNop), "noop-x")
	midChange, midNothing := middle("apply")/middle("hand"), middle("nothing")/middle("hand, nothing")
	b.ReportMetric(midChange, "mid-change-x")
	b.ReportMetric(midNothing, "mid-noop-x")
	b.ReportMetric(0, "ns/op")
	if b.N == 1 {
		return // how it is tried out
	}
	ms := func(d time.Duration) string { return fmt.Sprint(d.Milliseconds() / int64(b.N)) }
	fmt.Printf(`
| Milliseconds, of %d rounds | all | network | git and judging | Docker and Compose | health |
| --- | --- | --- | --- | --- | --- |
| by hand, a change | %s | | | | |
| by hand, nothing to do | %s | | | | |
| plan, of a change | %s | %s | %s | %s | |
| plan, nothing to do | %s | | | | |
| apply | %s | %s | %s | %s | %s |

| Goal | wanted | all rounds | the middle of each |
| --- | --- | --- | --- |
| a change, without the health window ÷ by hand | ≤ 1.1 | %.2f | %.2f |
| nothing to do ÷ by hand | ≤ 1.3 | %.2f | %.2f |
`, b.N, ms(sum.handUp), ms(sum.handNop), ms(sum.plan), ms(sum.connect), ms(sum.source), ms(sum.plan-sum.connect-sum.source), ms(sum.planNop),
		ms(sum.apply), ms(sum.applyConnect), ms(sum.applySource), ms(sum.apply-sum.applyConnect-sum.applySource-sum.window), ms(sum.window),
		float64(sum.apply-sum.window)/float64(sum.handUp), midChange, float64(sum.planNop)/float64(sum.handNop), midNothing)
}
