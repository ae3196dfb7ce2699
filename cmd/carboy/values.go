package main

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// size is a flag that holds bytes: 8GiB, 512M, 1.5GB, 4096.
type size int64

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

func parseSize(s string) (int64, error) {
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

func (v *size) Set(s string) error {
	n, err := parseSize(s)
	*v = size(n)
	return err
}

func (v *size) String() string { return zeroEmpty(int64(*v)) }
func (v *size) Type() string   { return "SIZE" }
func (v *size) example() string {
	return "8GiB"
}

// span is a flag that holds a time above zero: 30m, 1h30m, 90s.
type span time.Duration

func (v *span) Set(s string) error {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return errors.New("not a duration: want a number and a unit, s, m or h")
	case d <= 0:
		return errors.New("must be above zero")
	}
	*v = span(d)
	return nil
}

func (v *span) String() string {
	if *v == 0 {
		return ""
	}
	return time.Duration(*v).String()
}
func (v *span) Type() string    { return "TIME" }
func (v *span) example() string { return "30m" }

// whole is a flag that holds a whole number from 1 to top.
type whole struct {
	n   int64
	top int64
	eg  string
}

func (v *whole) Set(s string) error {
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && n > v.top:
		return fmt.Errorf("must be at most %d", v.top)
	case err != nil:
		return errors.New("not a whole number")
	case n <= 0:
		return errors.New("must be above zero")
	}
	v.n = n
	return nil
}

func (v *whole) String() string  { return zeroEmpty(v.n) }
func (v *whole) Type() string    { return "N" }
func (v *whole) example() string { return v.eg }

// ports is a repeatable flag that holds TCP ports.
type ports []uint16

func (v *ports) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return errors.New("not a port: want a number from 1 to 65535")
	}
	*v = append(*v, uint16(n))
	return nil
}

func (v *ports) String() string  { return strings.Trim(fmt.Sprint([]uint16(*v)), "[]") }
func (v *ports) Type() string    { return "PORT" }
func (v *ports) example() string { return "8080" }

// list is a repeatable flag whose values may hold commas.
type list struct {
	values []string
	name   string
	eg     string
}

func (v *list) Set(s string) error {
	if s == "" {
		return errors.New("is empty")
	}
	v.values = append(v.values, s)
	return nil
}

func (v *list) String() string  { return strings.Join(v.values, " ") }
func (v *list) Type() string    { return v.name }
func (v *list) example() string { return v.eg }

// choice is a flag with a few possible values.
type choice struct {
	value string
	name  string
	of    []string
}

func (v *choice) Set(s string) error {
	for _, x := range v.of {
		if s == x {
			v.value = s
			return nil
		}
	}
	return fmt.Errorf("want one of %s", strings.Join(v.of, ", "))
}

func (v *choice) String() string  { return v.value }
func (v *choice) Type() string    { return v.name }
func (v *choice) example() string { return v.of[0] }

func zeroEmpty(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}
