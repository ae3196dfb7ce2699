package two

import (
	"testing"
	"time"

	"example.com/small/internal/helper"
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
	helper.Settle()
}

type wait struct{}

func (wait) ready() { time.Sleep(time.Millisecond) }

// TestPolls waits for time in four ways that are no sleeps.
func TestPolls(t *testing.T) {
	<-time.After(time.Millisecond)
	for range time.Tick(time.Millisecond) {
		break
	}
	ticker := time.NewTicker(time.Millisecond)
	for done := false; !done; {
		select {
		case <-ticker.C:
			done = true
		}
	}
	select {
	case <-time.After(time.Millisecond):
	}
}

// TestTimeouts waits for an event, and not for ever.
func TestTimeouts(t *testing.T) {
	event := make(chan int, 1)
	event <- 1
	timeout := time.NewTimer(time.Hour)
	for range 2 {
		select {
		case <-event:
		case <-timeout.C:
			t.Fatal("nothing happens")
		case <-time.After(time.Hour):
			return
		}
		event <- 1
	}
}
