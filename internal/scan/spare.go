package scan

import (
	"sync"
	"time"
)

// A Spare bounds the decoder output of all streams of a bottle together. A few
// hundred bytes may decode to megabytes in each stream, and opening streams costs
// the sender nothing. A stream within freshOutput plus Options.Output for each
// byte takes nothing from it. It may be used concurrently.
type Spare struct {
	mu   sync.Mutex
	now  func() time.Time
	left int64
	at   time.Time // when left was counted
}

const (
	freshOutput    = 64 << 10  // bytes that each stream may decode without it
	maxSpare       = 256 << 20 // bytes, some three seconds of a processor
	sparePerSecond = 8 << 20   // bytes added, a tenth of a processor
	spareStep      = 64 << 10  // bytes taken at once
)

// NewSpare returns a full Spare that is refilled by the clock now.
func NewSpare(now func() time.Time) *Spare { return &Spare{now: now, left: maxSpare, at: now()} }

// take takes n bytes and reports whether as many were left.
func (s *Spare) take(n int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if more := int64(max(0, now.Sub(s.at)).Seconds() * sparePerSecond); more > 0 {
		s.left, s.at = min(maxSpare, s.left+more), now
	}
	if n > s.left {
		return false
	}
	s.left -= n
	return true
}
