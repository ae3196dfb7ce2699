//go:build linux

package main

import (
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/carboy/carboy/internal/supervise"
)

// oldTimeouts lists the variables by which bot-bottle set how long people were waited for,
// in seconds.
var oldTimeouts = []string{"EGRESS_TOKEN_ALLOW_TIMEOUT_SECONDS", "SUPERVISE_RESPONSE_TIMEOUT_SECONDS"}

func (a *app) askForFlag(fl *pflag.FlagSet, v *span) {
	fl.Var(v, "approval-timeout", "how long a question waits for a person's answer, such as 10m (default 5m, or what the bottle says); also "+oldTimeouts[0]+" and "+oldTimeouts[1])
}

// askFor returns how long people are waited for: as the flag says, or else the longer of
// the old variables; 0: neither is set.
func (a *app) askFor(flag span) (time.Duration, error) {
	d, name := time.Duration(flag), "--approval-timeout"
	for _, v := range oldTimeouts {
		s := a.env(v)
		if flag != 0 || s == "" {
			continue
		}
		n, err := strconv.ParseFloat(s, 64)
		if err != nil || !(n > 0 && n <= supervise.MaxTimeout.Seconds()) {
			return 0, usagef("such as "+v+"=300, or --approval-timeout 5m", "%s is no number of seconds up to a day", v)
		}
		d, name = max(d, time.Duration(n*float64(time.Second))), v
	}
	if d > supervise.MaxTimeout {
		return 0, usagef("at most 24h", "%s is longer than a day", name)
	}
	return d, nil
}
