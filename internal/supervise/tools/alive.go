package tools

import (
	"bytes"
	"net/http"
	"sync"
	"time"
)

// keptAlive puts comments on a stream of events that has nothing else to say:
// clients, and whatever is between, give up a stream on which nothing happens.
type keptAlive struct {
	w http.ResponseWriter

	mu     sync.Mutex
	events bool // a stream of events has begun
	whole  bool // it stands between two of them
}

type aliveKey struct{}

// waits says that a tool has begun, which may take long: all headers are set.
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

// Flush implements http.Flusher. It begins the stream: until then nothing of the
// headers is touched by another goroutine.
func (k *keptAlive) Flush() {
	k.mu.Lock()
	defer k.mu.Unlock()
	_ = http.NewResponseController(k.w).Flush()
}

// every says something so often until stop.
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
