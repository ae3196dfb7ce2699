package tui

import (
	"fmt"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/carboy/carboy/internal/supervise/supervisetest"
)

func manyWaiting(tb testing.TB, n int) *model {
	q := &supervisetest.Queue{}
	q.AddMany(n)
	clock := time.Now()
	m := newModel(tb.Context(), q, func() time.Time { return clock })
	m.after = func(time.Duration, tea.Msg) tea.Cmd { return nil }
	m.Update(tea.WindowSizeMsg{Width: 120, Height: 40})
	m.Update(m.load()())
	return m
}

// TestThousand checks that the cost of a key does not grow with the queue, since only
// visible lines are laid out.
func TestThousand(t *testing.T) {
	cost := func(n int) float64 {
		m := manyWaiting(t, n)
		return testing.AllocsPerRun(20, func() {
			for _, k := range []string{"j", "j", "k"} {
				m.press(k, k)
				m.View()
			}
		})
	}
	few, many := cost(50), cost(1000)
	if many > 1.2*few {
		t.Errorf("a key allocates %.0f times with 1,000 proposals, %.0f with 50", many, few)
	}
}

// BenchmarkKey measures from a key to the frame that shows its result, without the
// terminal. The ratio between the largest and the smallest queue matters.
func BenchmarkKey(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m := manyWaiting(b, n)
			for i := 0; b.Loop(); i++ {
				if i%n < n/2 {
					m.press("j", "j")
				} else {
					m.press("k", "k")
				}
				m.View()
			}
		})
	}
}

// BenchmarkNews measures reading a queue with one new proposal, up to the drawn frame.
func BenchmarkNews(b *testing.B) {
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m := manyWaiting(b, n)
			for b.Loop() {
				m.loading = false
				m.Update(m.load()())
				m.View()
			}
		})
	}
}
