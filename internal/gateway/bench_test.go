package gateway

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const benchChunk = 256 << 10

// source writes without end, sink reads to the end.
func source(c net.Conn) {
	defer c.Close()
	buf := make([]byte, benchChunk)
	for {
		if _, err := c.Write(buf); err != nil {
			return
		}
	}
}

func sink(c net.Conn) {
	defer c.Close()
	buf := make([]byte, benchChunk)
	for {
		if _, err := c.Read(buf); err != nil {
			return
		}
	}
}

func benchBottle(b *testing.B, handle func(net.Conn)) (inside, raw net.Conn) {
	w := newWorld()
	w.name("big.example.com", publicAddr)
	w.serve(b, publicAddr+":9000", handle)
	bt := newBottle(b, w, routes(b, "big.example.com:9000 tcp"))
	c := bt.mustDial("big.example.com", 9000)
	c.SetDeadline(time.Time{})
	raw, err := net.Dial("tcp", w.servers[bt.world.dialsWait(b)])
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { raw.Close() })
	return c, raw
}

// BenchmarkDownload measures bytes from an upstream server into the bottle.
// The metric ratio compares it with the same over the host's loopback.
func BenchmarkDownload(b *testing.B) {
	inside, raw := benchBottle(b, source)
	buf := make([]byte, benchChunk)
	read := func(c net.Conn) func() {
		return func() {
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Fatal(err)
			}
		}
	}
	ratio(b, benchChunk, read(inside), read(raw))
}

// BenchmarkUpload measures bytes from the bottle to an upstream server.
func BenchmarkUpload(b *testing.B) {
	inside, raw := benchBottle(b, sink)
	buf := make([]byte, benchChunk)
	write := func(c net.Conn) func() {
		return func() {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
		}
	}
	ratio(b, benchChunk, write(inside), write(raw))
}

// BenchmarkUploadSmall writes in small pieces.
func BenchmarkUploadSmall(b *testing.B) {
	inside, raw := benchBottle(b, sink)
	buf := make([]byte, 8<<10)
	write := func(c net.Conn) func() {
		return func() {
			for range benchChunk / len(buf) {
				if _, err := c.Write(buf); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	ratio(b, benchChunk, write(inside), write(raw))
}

// BenchmarkRoundTrip measures one small message and its echo.
func BenchmarkRoundTrip(b *testing.B) {
	inside, raw := benchBottle(b, func(c net.Conn) {
		defer c.Close()
		_, _ = io.Copy(c, c)
	})
	buf := make([]byte, 64)
	trip := func(c net.Conn) func() {
		return func() {
			if _, err := c.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(c, buf); err != nil {
				b.Fatal(err)
			}
		}
	}
	ratio(b, 0, trip(inside), trip(raw))
}

// ratio times inside and reports how many times longer it took than raw. One call
// moves size bytes.
func ratio(b *testing.B, size int64, inside, raw func()) {
	if size > 0 {
		b.SetBytes(size)
	}

	start := time.Now()
	for b.Loop() {
		inside()
	}
	mine := time.Since(start) / time.Duration(max(1, b.N))
	b.StopTimer()
	start = time.Now()
	for range b.N {
		raw()
	}
	base := time.Since(start) / time.Duration(max(1, b.N))
	b.ReportMetric(float64(mine)/float64(max(base, 1)), "ratio")
}

func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkAnswers measures answers that come in through a route with a credential, and
// in turn through one without. The metric ratio is of the processor's time that they take.
func BenchmarkAnswers(b *testing.B) {
	text := []byte(strings.Repeat(`{"id":12345,"name":"a thing","note":"some words of an answer, as there are many","tags":["one","two"]},`+"\n", 1<<20/105))
	_, _, with := keyed(b, reflectedKey)
	o := newTLSWorld(b, "routes:\n  - {host: api.example.com, token_env: KEY, matches: [{paths: [{value: /keyed}]}]}\n  - {host: other.example.com}\n", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/small") {
			rw.Write(text[:1000])
			return
		}
		rw.Header().Set("Content-Length", strconv.Itoa(len(text)))
		rw.Write(text)
	}), with)
	o.world.name("other.example.com", publicAddr)
	c := o.client(false)
	for _, size := range []string{"large", "small"} {
		b.Run(size, func(b *testing.B) {
			get := func(url string) func() {
				return func() {
					res, err := c.Get(url + "/" + size)
					if err != nil {
						b.Fatal(err)
					}
					n, err := io.Copy(io.Discard, res.Body)
					if res.Body.Close(); err != nil || n < 1000 {
						b.Fatal(n, err)
					}
				}
			}
			moved := int64(1000)
			if size == "large" {
				moved = int64(len(text))
			}
			keyed, plain := get("https://api.example.com/keyed"), get("https://other.example.com")
			keyed()
			plain()
			var used [2]time.Duration
			b.SetBytes(moved)
			for b.Loop() {
				for i, get := range []func(){keyed, plain} {
					before := processorTime()
					get()
					used[i] += processorTime() - before
				}
			}
			b.ReportMetric(float64(used[0])/float64(max(used[1], 1)), "ratio")
			b.ReportMetric(float64(used[0].Microseconds())/float64(b.N), "keyed-µs")
		})
	}
}
