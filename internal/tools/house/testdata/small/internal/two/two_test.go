package two

import (
	"testing"
	"time"

	"example.com/small/internal/one"
)

// TestSum is as everything else here.
func TestSum(t *testing.T) {
	if sum([]int{1}) != 1 {
		t.Error("sum")
	}
	var g one.Generic[int]
	g.Get()
	wait{}.ready()
}

type wait struct{}

func (wait) ready() { time.Sleep(time.Millisecond) }
