package main

import (
	"errors"
	"os"
	"testing"
	"time"
)

// TestAskFor: the flag is over the variables of bot-bottle, and what is no time is refused.
func TestAskFor(t *testing.T) {
	for _, x := range []struct {
		flag        time.Duration
		token, tool string
		want        time.Duration
		bad         bool
	}{
		{want: 0},
		{flag: time.Minute, want: time.Minute},
		{token: "300", want: 5 * time.Minute},
		{tool: "90.5", want: 90500 * time.Millisecond},
		{token: "60", tool: "600", want: 10 * time.Minute},
		{flag: time.Minute, token: "600", want: time.Minute},
		{flag: time.Minute, token: "never", want: time.Minute},
		{token: "never", bad: true}, {token: "0", bad: true}, {tool: "-5", bad: true}, {tool: "NaN", bad: true}, {tool: "86401", bad: true},
		{flag: 25 * time.Hour, bad: true}, {flag: 24 * time.Hour, want: 24 * time.Hour},
	} {
		t.Setenv(oldTimeouts[0], x.token)
		t.Setenv(oldTimeouts[1], x.tool)
		var usage *usageError
		if d, err := (&app{env: os.Getenv}).askFor(span(x.flag)); d != x.want || errors.As(err, &usage) != x.bad {
			t.Errorf("%+v: %v, %v", x, d, err)
		}
	}
}
