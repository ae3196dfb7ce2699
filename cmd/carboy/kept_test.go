package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

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

// A bottle whose agent ended well stays if there is work to go on with, until its day has
// come; then its changes are still there, and it says so.
func TestKeptUntil(t *testing.T) {
	d := newDen(t, shellAgent(`case "$1" in nothing) ;; *) echo "$1" >"$1" ;; esac`))
	start := func(prompt string) (msg string) {
		t.Helper()
		_, msg, code := d.carboy("start", "waits", "--cwd", "--headless", "--prompt", prompt)
		if code != 0 {
			t.Fatalf("%d %s", code, msg)
		}
		return msg
	}
	if msg := start("nothing"); strings.Contains(msg, "is kept") {
		t.Errorf("without work: %s", msg)
	}
	in14 := func() string { return time.Now().Add(14 * 24 * time.Hour).Format(time.DateOnly) }
	before := in14()
	msg := start("one")
	if !strings.Contains(msg, "bottle waits is kept until "+before) && !strings.Contains(msg, "bottle waits is kept until "+in14()) {
		t.Errorf("with a change: %s", msg)
	}
	change := func(slug string, to func(map[string]any)) {
		t.Helper()
		name := d.home + "/state/carboy/bottles/" + slug + "/kept.json"
		b, err := os.ReadFile(name)
		var k map[string]any
		if err == nil {
			err = json.Unmarshal(b, &k)
		}
		if err == nil {
			to(k)
			b, err = json.Marshal(k)
		}
		if err == nil {
			err = os.WriteFile(name, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	change("waits", func(k map[string]any) { k["at"] = time.Now().Add(-15 * 24 * time.Hour) })
	if msg := start("two"); !strings.Contains(msg, "bottle waits-2 is kept") || !strings.Contains(msg, "bottle waits was kept for long enough") {
		t.Errorf("the old one: %s", msg)
	}
	if out, _, _ := d.carboy("list", "--bottles"); !strings.Contains(out, "waits    over") {
		t.Errorf("the old one: %s", out)
	}
	if _, msg, code := d.carboy("land", "waits", "--yes"); code != 0 {
		t.Errorf("its changes: %d %s", code, msg)
	}
	change("waits-2", func(k map[string]any) { k["files"].(map[string]any)["size"] = 21 << 30 })
	if msg := start("three"); !strings.Contains(msg, "bottle waits-2 was kept") || !strings.Contains(msg, "bottle waits is kept") { // which has landed what it had
		t.Errorf("the large one: %s", msg)
	}
	// The control: nothing else is forgotten.
	if msg := start("four"); strings.Contains(msg, "was kept") || !strings.Contains(msg, "bottle waits-3 is kept") {
		t.Errorf("young and small: %s", msg)
	}
}
