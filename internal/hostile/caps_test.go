package hostile

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/audit"
	"github.com/carboy/carboy/internal/receipt"
	"github.com/carboy/carboy/internal/store"
	"github.com/carboy/carboy/internal/testenv"
)

// scales is a server that counts what it is sent, and sends zeros when asked.
type scales struct {
	port     string
	got      atomic.Int64
	requests atomic.Int64
}

func (s *scales) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	s.got.Add(int64(len(r.RequestURI)))
	for _, vs := range r.Header {
		for _, v := range vs {
			s.got.Add(int64(len(v)))
		}
	}
	buf := make([]byte, 4096)
	for {
		n, err := r.Body.Read(buf)
		s.got.Add(int64(n))
		if err != nil {
			break
		}
	}
	if r.URL.Path == "/much" {
		for range 100 {
			if _, err := rw.Write(make([]byte, 10_000)); err != nil {
				return
			}
			_ = http.NewResponseController(rw).Flush()
		}
	}
	_, _ = io.WriteString(rw, "served\n")
}

func newScales(t *testing.T) *scales {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &scales{}
	_, s.port, _ = net.SplitHostPort(l.Addr().String())
	srv := &http.Server{Handler: s, ErrorLog: quiet}
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-done })
	return s
}

// routed lets a bottle reach what a route file says.
func routed(t *testing.T, format string, args ...any) func(*carboy.RunOptions) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "routes.yaml")
	if err := os.WriteFile(file, []byte("routes:\n"+fmt.Sprintf(format, args...)), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(o *carboy.RunOptions) { o.Routes = file }
}

// told fails unless the receipt and the audit log say that a limit was met.
func (h *host) told(x *outcome, limit string) {
	h.t.Helper()
	if !x.hit(limit) {
		h.t.Errorf("the receipt does not say %s: %+v", limit, x.rec.Limits.Hit)
	}
	b, err := os.ReadFile(h.client.AuditDir() + "/log")
	if err != nil {
		h.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var r struct {
			Kind    audit.Kind
			Run     store.ID
			Subject string
		}
		if json.Unmarshal([]byte(line), &r) == nil && r.Kind == audit.LimitHit && r.Run == x.rec.ID && r.Subject == limit {
			return
		}
	}
	h.t.Errorf("no record of %s", limit)
}

// TestW7Bytes: whatever a command does, in parallel, in pieces, in paths, headers
// and bodies whose length it does not say, no more leaves and enters than the
// route's limits.
func TestW7Bytes(t *testing.T) {
	testenv.Need(t, "curl", "apt-get install curl")
	const out, in = 200_000, 300_000
	h := newHost(t)
	s, free := newScales(t), newScales(t)
	upstreamDNS.set("capped.test", "127.0.0.1")
	upstreamDNS.set("free.test", "127.0.0.1")
	tune := routed(t, "  - {host: \"capped.test:%s\", private: true, limits: {bytes_out: %d, bytes_in: %d}}\n  - {host: \"free.test:%s\", private: true}\n", s.port, out, in, free.port)
	x := h.run(tune, "/bin/bash", "-c", `
head -c 150000 /dev/zero > /tmp/part
url=http://capped.test:`+s.port+`
curl -sS $url/first
for i in 1 2 3 4 5 6; do
	curl -sS -T - $url/up$i < /tmp/part > /tmp/up$i 2>&1 &
	curl -sS --data-binary @/tmp/part $url/up > /dev/null 2>&1 &
done
wait
for i in $(seq 10); do curl -sS -H "X-Data: $(head -c 12000 /dev/zero | tr '\0' x)" "$url/$(head -c 9000 /dev/zero | tr '\0' y)" > /dev/null; done
curl -sS $url/last
echo
curl -sS --data-binary @/tmp/part http://free.test:`+free.port+`/
exit 0`)
	x.exited(0)
	if n := s.got.Load(); n > out || n < out/2 {
		t.Errorf("%d bytes left, over a limit of %d", n, out)
	}
	if !strings.HasPrefix(x.out, "served\n") || !strings.HasSuffix(x.out, "served\n") || !strings.Contains(x.out, "carboy: refused: limit-route-bytes-out: the route's limits.bytes_out of 200000 bytes leaves") || free.got.Load() < 150_000 {
		t.Errorf("it was told %q", x.out)
	}
	h.told(x, "limit-route-bytes-out")
	before := s.requests.Load()
	x = h.run(tune, "/bin/bash", "-c", `
url=http://capped.test:`+s.port+`
for i in 1 2 3 4; do curl -fsS $url/much 2> /dev/null | wc -c > /tmp/n$i & done
wait
cat /tmp/n* | paste -sd+ | (read sum; echo $((sum)))
curl -sS $url/last`)
	x.exited(0)
	var came int64
	if _, err := fmt.Sscan(x.out, &came); err != nil || came > in || came < in/2 {
		t.Errorf("%d bytes came, over a limit of %d: %q", came, in, x.out)
	}
	if !strings.Contains(x.out, "limit-route-bytes-in") || s.requests.Load() == before {
		t.Errorf("it was told %q", x.out)
	}
	h.told(x, "limit-route-bytes-in")
}

// TestW7Unseen: bytes that pass unseen count, too.
func TestW7Unseen(t *testing.T) {
	testenv.Need(t, "curl", "apt-get install curl")
	h := newHost(t)
	s := newScales(t)
	upstreamDNS.set("raw.test", "127.0.0.1")
	x := h.run(routed(t, "  - {host: \"raw.test:%s/tcp\", private: true, limits: {bytes_out: 100000}}\n", s.port), "/bin/bash", "-c", `
curl -sS http://raw.test:`+s.port+`/
head -c 70000 /dev/zero > /tmp/part
for i in 1 2 3 4; do curl -sS --data-binary @/tmp/part http://raw.test:`+s.port+`/ > /dev/null 2>&1 & done
wait
curl -sS http://raw.test:`+s.port+`/ || echo refused`)
	x.exited(0)
	if x.out != "served\nrefused\n" {
		t.Errorf("it was told %q", x.out)
	}
	if n := s.got.Load(); n > 100_000 || n < 60_000 {
		t.Errorf("%d bytes left", n)
	}
	h.told(x, "limit-route-bytes-out")
}

// TestW7Egress: whatever a command does, by all routes together, also those that have
// a larger cap of their own and those whose bytes pass unseen, no more leaves than the
// bottle's limit; what enters is not counted.
func TestW7Egress(t *testing.T) {
	testenv.Need(t, "curl", "apt-get install curl")
	const limit = 200_000
	h := newHost(t)
	one, two, raw := newScales(t), newScales(t), newScales(t)
	for _, name := range []string{"one.test", "two.test", "rawer.test"} {
		upstreamDNS.set(name, "127.0.0.1")
	}
	routes := routed(t, "  - {host: \"one.test:%s\", private: true, limits: {bytes_out: 10000000}}\n  - {host: \"two.test:%s\", private: true}\n  - {host: \"rawer.test:%s/tcp\", private: true}\n", one.port, two.port, raw.port)
	tune := func(o *carboy.RunOptions) { routes(o); o.Limits.Egress = limit }
	x := h.run(tune, "/bin/bash", "-c", `
head -c 40000 /dev/zero > /tmp/part
curl -sS http://one.test:`+one.port+`/much | wc -c
for i in 1 2 3 4; do
	for url in http://one.test:`+one.port+`/ http://two.test:`+two.port+`/ http://rawer.test:`+raw.port+`/; do
		curl -sS -T - $url < /tmp/part > /dev/null 2>&1 &
		curl -sS --data-binary @/tmp/part $url > /dev/null 2>&1 &
	done
done
wait
for i in $(seq 30); do curl -sS -H "X-Data: $(head -c 12000 /dev/zero | tr '\0' x)" http://two.test:`+two.port+`/ > /dev/null; done
curl -sS http://two.test:`+two.port+`/last
curl -sS http://rawer.test:`+raw.port+`/ 2> /dev/null || echo refused`)
	x.exited(0)
	if n := one.got.Load() + two.got.Load() + raw.got.Load(); n > limit || n < limit*8/10 {
		t.Errorf("%d bytes left, over a limit of %d", n, limit)
	}
	if !strings.HasPrefix(x.out, "1000007\n") || !strings.Contains(x.out, "carboy: refused: limit-egress: the bottle's limits.egress_bytes of 200000 bytes leaves") || !strings.HasSuffix(x.out, "refused\n") {
		t.Errorf("it was told %q", x.out)
	}
	if x.rec.Limits.Egress != limit {
		t.Errorf("the receipt has a limit of %d", x.rec.Limits.Egress)
	}
	h.told(x, "limit-egress")
	x = h.run(routes, "/bin/bash", "-c", `head -c 300000 /dev/zero | curl -sS --data-binary @- http://two.test:`+two.port+`/`)
	x.exited(0)
	if x.out != "served\n" || x.rec.Limits.Egress != 0 || x.hit("limit-egress") {
		t.Errorf("without a limit: %q, %+v", x.out, x.rec.Limits)
	}
}

// TestW7Requests: no more requests leave than the route's limit, and whoever asks
// is told when to ask again.
func TestW7Requests(t *testing.T) {
	testenv.Need(t, "curl", "apt-get install curl")
	h := newHost(t)
	s := newScales(t)
	upstreamDNS.set("counted.test", "127.0.0.1")
	x := h.run(routed(t, "  - {host: \"counted.test:%s\", private: true, limits: {requests_per_minute: 10}}\n", s.port), "/bin/bash", "-c", `
url=http://counted.test:`+s.port+`
for i in 1 2 3 4; do curl -sS $url/[1-10] > /tmp/o$i 2>&1 & done
wait
cat /tmp/o* | grep -c served
curl -sS -D - $url/last`)
	x.exited(0)
	if n := s.requests.Load(); n != 10 || !strings.HasPrefix(x.out, "10\n") {
		t.Errorf("%d requests left: %q", n, x.out)
	}
	if !strings.Contains(x.out, "HTTP/1.1 429") || !strings.Contains(x.out, "Retry-After: ") || !strings.Contains(x.out, "requests_per_minute of 10 is used up") {
		t.Errorf("it was told %q", x.out)
	}
	h.told(x, "limit-route-requests")
	refused := false
	for _, r := range x.rec.Network.Requests {
		refused = refused || r.Verdict == receipt.Refused && strings.HasPrefix(r.Reason, "limit-route-requests: ") && r.Count == 31
	}
	if !refused {
		t.Errorf("the receipt has %+v", x.rec.Network.Requests)
	}
}
