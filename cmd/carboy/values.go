//go:build linux

package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/carboy/carboy/internal/document"
)

// size is a flag that holds bytes: 8GiB, 512M, 1.5GB, 4096.
type size int64

func (v *size) Set(s string) error {
	n, err := document.ParseSize(s)
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

// choice is a flag that holds one of a few values.
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
