package testenv

import (
	"bytes"
	"strings"
	"sync"
)

// Buffer is a bytes.Buffer that may be read while other goroutines write to it. Its zero
// value is empty and ready.
type Buffer struct {
	mu   sync.Mutex
	b    bytes.Buffer
	want string
	seen chan struct{} // closed when want was written
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.b.Write(p)
	if b.want != "" && strings.Contains(b.b.String(), b.want) {
		b.want = ""
		close(b.seen)
	}
	return n, err
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Await returns a channel that a later Write closes once the buffer holds text. It replaces
// the text of an earlier call.
func (b *Buffer) Await(text string) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.want, b.seen = text, make(chan struct{})
	return b.seen
}

// Reset empties the buffer.
func (b *Buffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.b.Reset()
}
