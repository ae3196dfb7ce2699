package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/carboy/carboy"
	"github.com/carboy/carboy/internal/receipt"
)

// TestKeptIsTrue: of a bottle whose records alone are kept nobody is told to resume it.
func TestKeptIsTrue(t *testing.T) {
	for _, x := range []struct {
		s         carboy.Started
		resume    bool
		want, not string
	}{
		{carboy.Started{Kept: true, Resumable: true}, true, "bottle b is kept", "none of its files"},
		{carboy.Started{Kept: true}, false, "the records of bottle b are kept, and none of its files", "bottle b is kept"},
		{carboy.Started{Kept: true, Frozen: true, Resumable: true}, true, "bottle b is frozen", "kept"},
		{carboy.Started{}, false, "", "bottle b"},
	} {
		var out, errs bytes.Buffer
		a := &app{stdout: &out, stderr: &errs, env: func(string) string { return "" }}
		x.s.Slug, x.s.Receipt = "b", &receipt.Receipt{Exit: receipt.Exit{Reason: receipt.Exited}}
		if err := a.started(&startFlags{}, &x.s, nil, false); err != nil {
			t.Fatal(err)
		}
		if got := errs.String(); strings.Contains(got, "carboy resume b") != x.resume || !strings.Contains(got, x.want) || strings.Contains(got, x.not) {
			t.Errorf("%+v: %s", x.s, got)
		}
	}
}
