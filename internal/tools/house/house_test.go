package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestHouse(t *testing.T) {
	for _, c := range []struct {
		dir  string
		args []string
		code int
		want string // a file with what is printed
	}{
		{"testdata/small", []string{"-v"}, 0, "testdata/small.txt"},
		{"testdata/small", []string{"-check"}, 1, "testdata/small-check.txt"},
		{"testdata/clean", []string{"-check"}, 0, os.DevNull},
	} {
		var out, msg bytes.Buffer
		if code := run(c.args, c.dir, &out, &msg); code != c.code {
			t.Errorf("%s %s: exit code %d, want %d\n%s", c.dir, c.args, code, c.code, &msg)
		}
		want, err := os.ReadFile(c.want)
		if err != nil {
			t.Fatal(err)
		}
		if out.String() != string(want) {
			t.Errorf("%s %s prints\n%s\nwant\n%s", c.dir, c.args, &out, want)
		}
	}
}

// A tree that can't be measured is no tree within its limits.
func TestHouseRefuses(t *testing.T) {
	for _, c := range []struct {
		dir, want string
		args      []string
	}{
		{"testdata/broken", "broken.go:3", nil},
		{t.TempDir(), "go list", nil},
		{"testdata/clean", "usage", []string{"more"}},
		{"testdata/clean", "usage", []string{"-no-such-flag"}},
	} {
		var out, msg bytes.Buffer
		if code := run(c.args, c.dir, &out, &msg); code != 2 || !strings.Contains(msg.String(), c.want) {
			t.Errorf("%s %s: exit code %d, %s; want 2 and %q", c.dir, c.args, code, &msg, c.want)
		}
	}
}
