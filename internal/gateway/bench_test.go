package gateway

import (
	"io"
	"net"
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
