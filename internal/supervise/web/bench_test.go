package web

import (
	"fmt"
	"slices"
	"testing"

	"github.com/carboy/carboy/internal/browsertest"
	"github.com/carboy/carboy/internal/supervise/supervisetest"
)

// BenchmarkPage measures in a browser: from a key in the list to the next frame, and from a
// click on a proposal to the first frame that shows it. Both are medians in milliseconds of
// the browser's clock. The ratios matter.
func BenchmarkPage(b *testing.B) {
	browser := browsertest.Start(b)
	for _, n := range []int{10, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			q := &supervisetest.Queue{}
			q.AddMany(n)
			s := served(b, q)
			p := browser.Open(b, s.Link(), wide)
			p.Until(`location.pathname.startsWith("/s/") && document.querySelector("#live:not([hidden])")`)
			var keys, clicks []float64
			for b.Loop() {
				keys = append(keys, browsertest.Eval[float64](p, `new Promise(done => {
  const from = performance.now();
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: "j", bubbles: true, cancelable: true}));
  requestAnimationFrame(() => { const c = new MessageChannel(); c.port1.onmessage = () => done(performance.now() - from); c.port2.postMessage(0); });
})`))
				p.Loads(func() { p.Click(fmt.Sprintf("#rows .row:nth-child(%d) a", len(clicks)%9+1)) })
				p.Until(`performance.getEntriesByName("first-contentful-paint").length > 0`)
				clicks = append(clicks, browsertest.Eval[float64](p, `performance.getEntriesByName("first-contentful-paint")[0].startTime`))
			}
			b.ReportMetric(median(keys), "key-ms")
			b.ReportMetric(median(clicks), "click-ms")
		})
	}
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}
