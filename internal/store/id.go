package store

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
)

// ID names a run: a ULID (https://github.com/ulid/spec) of 26 characters in lower case. Later runs have greater ids,
// also when the clock was set back in between.
type ID string

// ParseID parses a complete id in lower case. Each id has this one spelling, and so one directory.
func ParseID(s string) (ID, error) {
	u, err := ulid.ParseStrict(strings.ToUpper(s))
	if err != nil || lower(u) != ID(s) {
		return "", fmt.Errorf("%s is not a run id", strconv.Quote(s))
	}
	return ID(s), nil
}

// Time returns the time in the id, in milliseconds. It never decreases from one run to the next: if the clock was set
// back, it is the time of the previous run.
func (id ID) Time() time.Time {
	u, err := ulid.ParseStrict(string(id))
	if err != nil {
		return time.Time{}
	}
	return ulid.Time(u.Time()).UTC()
}

func lower(u ulid.ULID) ID { return ID(strings.ToLower(u.String())) }

// nextID returns an id that is greater than last ("" for none) and carries the time now unless last is later.
func nextID(last ID, now time.Time) (ID, error) {
	var u ulid.ULID
	var random [10]byte
	rand.Read(random[:])
	random[0] &= 0x7f // room to count upwards
	ms := uint64(max(now.UnixMilli(), 0))
	if last != "" {
		prev, err := ulid.ParseStrict(string(last))
		if err != nil {
			return "", err
		}
		if prev.Time() >= ms {
			ms = prev.Time()
			step := uint64(binary.BigEndian.Uint32(random[6:])) + 1
			if carry := add(random[:], prev[6:], step); carry {
				ms++
			}
		}
	}
	if err := u.SetTime(ms); err != nil {
		return "", fmt.Errorf("no id after %s: %w", last, err)
	}
	if err := u.SetEntropy(random[:]); err != nil {
		return "", err
	}
	return lower(u), nil
}

// add sets dst to the big-endian number a plus n and reports overflow.
func add(dst, a []byte, n uint64) bool {
	for i := len(dst) - 1; i >= 0; i-- {
		n += uint64(a[i])
		dst[i] = byte(n)
		n >>= 8
	}
	return n > 0
}
