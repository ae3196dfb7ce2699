package supervise

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/carboy/carboy/internal/audit"
)

// BenchmarkWake measures the time from an answer until its asker goes on, with a real audit
// log.
func BenchmarkWake(b *testing.B) {
	w := newWorld(b)
	log, err := audit.Open(context.Background(), filepath.Join(b.TempDir(), "audit"))
	if err != nil {
		b.Fatal(err)
	}
	defer log.Close()
	w.q.o.Audit = log
	var total, worst time.Duration
	a := w.asker("dev")
	for i := 0; b.Loop(); i++ {
		a.made = nil
		ticket := w.propose(a, allowHost(b, fmt.Sprintf("h%d.example.com", i)))
		begin := time.Now()
		go w.answer(ticket.Proposal(), Approved)
		<-ticket.Done()
		d := time.Since(begin)
		total += d
		worst = max(worst, d)
		<-ticket.w.saved
	}
	b.ReportMetric(float64(total.Microseconds())/float64(b.N)/1000, "ms/wake")
	b.ReportMetric(float64(worst.Microseconds())/1000, "ms/worst")
}

// BenchmarkList lists 1,000 proposals that wait, of 40 bottles.
func BenchmarkList(b *testing.B) {
	w := newWorld(b)
	for i := range 40 {
		a := w.asker(fmt.Sprintf("b%d", i))
		for j := range 25 {
			w.propose(a, allowHost(b, fmt.Sprintf("h%d.example.com", j)))
		}
	}
	b.ResetTimer()
	for b.Loop() {
		if l := w.list(Query{}); len(l.Entries) != 1000 {
			b.Fatalf("%d of 1000", len(l.Entries))
		}
	}
}

// BenchmarkFind opens one of 1,000 proposals.
func BenchmarkFind(b *testing.B) {
	w := newWorld(b)
	var id ID
	for i := range 40 {
		a := w.asker(fmt.Sprintf("b%d", i))
		for j := range 25 {
			id = w.propose(a, allowHost(b, fmt.Sprintf("h%d.example.com", j))).Proposal().ID
		}
	}
	b.ResetTimer()
	for b.Loop() {
		e, err := w.q.Find(context.Background(), string(id))
		if err != nil {
			b.Fatal(err)
		}
		if d := e.Proposal.Detail(false); len(d.Sections) == 0 {
			b.Fatal("nothing is shown")
		}
	}
}
