package one_test

import (
	"testing"
	"time"

	"example.com/small/internal/one"
)

func TestPair(t *testing.T) {
	one.Pair()
	time.Sleep(time.Millisecond)
	func() { time.Sleep(time.Millisecond) }()
}
