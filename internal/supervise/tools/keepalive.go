package tools

import (
	"bytes"
	"net/http"
	"sync"
	"time"
)

// keptAlive writes comments to an idle stream of events: clients and proxies give up a
// stream that is silent for long.
type keptAlive struct {
	w http.ResponseWriter

	mu     sync.Mutex
	events bool // a stream of events has begun
	whole  bool // the last write ended an event
}

type aliveKey struct{}

// waits marks that a tool, which may take long, has begun: all headers are set.
func (k *keptAlive) waits() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.events && !k.whole {
		k.begin(http.StatusOK)
	}
}

// Header implements http.ResponseWriter.
func (k *keptAlive) Header() http.Header { return k.w.Header() }

// WriteHeader implements http.ResponseWriter.
func (k *keptAlive) WriteHeader(status int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.begin(status)
	k.w.WriteHeader(status)
}

func (k *keptAlive) begin(status int) {
	k.events = status == http.StatusOK && k.w.Header().Get("Content-Type") == "text/event-stream"
	k.whole = true
}

// Write implements http.ResponseWriter.
func (k *keptAlive) Write(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.whole && !k.events {
		k.begin(http.StatusOK)
	}
	k.whole = bytes.HasSuffix(p, []byte("\n\n"))
	return k.w.Write(p)
}

// Flush implements http.Flusher. It begins the stream: before, no other goroutine may touch
// the headers.
func (k *keptAlive) Flush() {
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = http.NewResponseController(k.w).Flush()
}

// every writes a comment in each interval d until stop is called.
func (k *keptAlive) every(d time.Duration) (stop func()) {
	t := time.NewTicker(d)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop
		defer close(ended)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				k.comment()
			}
		}
	}()
	return func() { close(done); <-ended }
}

func (k *keptAlive) comment() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.events || !k.whole {
		return
	}
	if _, err := k.w.Write([]byte(": a person is asked\n\n")); err == nil {
		_ = http.NewResponseController(k.w).Flush()
	}
}
