package document

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strings"
	"sync"
)

var sizeForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)$`) })

// units in bytes. A bare K, M, G or T means what the kernel and most tools
// mean: powers of 1024. The SI forms keep their own meaning.
var units = map[string]int64{
	"": 1, "b": 1,
	"k": 1 << 10, "kib": 1 << 10, "kb": 1e3,
	"m": 1 << 20, "mib": 1 << 20, "mb": 1e6,
	"g": 1 << 30, "gib": 1 << 30, "gb": 1e9,
	"t": 1 << 40, "tib": 1 << 40, "tb": 1e12,
}

// ParseSize reads a number of bytes with a unit: 8GiB, 512M, 1.5GB, 4096.
func ParseSize(s string) (int64, error) {
	m := sizeForm().FindStringSubmatch(s)
	if m == nil {
		return 0, errors.New("not a size: want a number and a unit such as KiB, MiB, GiB")
	}
	unit, ok := units[strings.ToLower(m[2])]
	if !ok {
		return 0, fmt.Errorf("unknown unit %q: want B, KiB, MiB, GiB or TiB", m[2])
	}
	n, ok := new(big.Rat).SetString(m[1])
	if !ok {
		return 0, errors.New("not a number")
	}
	n.Mul(n, new(big.Rat).SetInt64(unit))
	if !n.IsInt() && unit == 1 {
		return 0, errors.New("half a byte cannot be had")
	}
	v := new(big.Int).Quo(n.Num(), n.Denom())
	switch {
	case v.Sign() == 0:
		return 0, errors.New("must be above zero")
	case !v.IsInt64() || v.Int64() > math.MaxInt64/4:
		return 0, errors.New("too large")
	}
	return v.Int64(), nil
}
