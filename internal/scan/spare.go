package scan

import (
	"sync"
	"time"
)

// A Spare is what all streams of a bottle have together for what decodes to much
// more than it is. A few hundred bytes may decode to megabytes in each stream, and
// streams cost whoever begins them nothing; this bounds the work that they cause. An
// ordinary stream, which has no more than freshOutput and Output for each byte, takes
// nothing of it.
type Spare struct {
	mu   sync.Mutex
	now  func() time.Time
	left int64
	at   time.Time // when left was counted
}

const (
	freshOutput    = 64 << 10  // bytes that each stream may decode besides
	maxSpare       = 256 << 20 // bytes, some three seconds of a processor
	sparePerSecond = 8 << 20   // bytes that are added, a tenth of a processor
	spareStep      = 64 << 10  // bytes that are taken at once
)

// NewSpare is that of a new bottle, with the clock by which more is added.
func NewSpare(now func() time.Time) *Spare { return &Spare{now: now, left: maxSpare, at: now()} }

// take takes n bytes, or reports that they are not left.
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
