package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/carboy/carboy/internal/egresslog"
)

// TestEgressLogIsOneLineEach: whatever stands in a record, it is one line of
// visible, bounded text.
func TestEgressLogIsOneLineEach(t *testing.T) {
	nasty := "a\nb\r\x1b[2J\x1b]0;owned\x07\u202e\u0085\u2028\xff\x00" + strings.Repeat("x", 5000)
	var put []egresslog.Entry
	for _, kind := range []egresslog.EntryKind{egresslog.Name, egresslog.Connection, egresslog.Request, egresslog.Found, egresslog.Limit, egresslog.Routes, egresslog.LeftOut, egresslog.EntryKind(nasty)} {
		put = append(put, egresslog.Entry{
			Time: time.Unix(5, 0), Kind: kind, Verdict: nasty, Host: nasty, Port: 443, Protocol: nasty, Method: nasty, Path: nasty, Status: 403, Rule: nasty,
			Reason: nasty, Detail: nasty, Credential: nasty, What: nasty, Secret: nasty, Transform: nasty, Place: nasty, Action: nasty, Count: 3,
		}, egresslog.Entry{Time: time.Unix(5, 0), Kind: kind})
	}
	path := filepath.Join(t.TempDir(), "egress")
	l := egresslog.Start(egresslog.LevelAll, egresslog.Options{
		Open: func() (*os.File, error) { return os.Create(path) }, Run: "r", Clean: func(*egresslog.Entry) {},
	})
	for _, r := range put {
		l.Put(r)
	}
	if a := l.End(); a.Err != nil || a.LeftOut != 0 {
		t.Fatalf("%+v", a)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	r := egresslog.NewReader(f)
	defer r.Close()
	var out bytes.Buffer
	a := newApp(nil, nil, nil, func(n string) string { return map[string]string{"NO_COLOR": "1", "LANG": "C.UTF-8"}[n] })
	a.stdout = os.Stderr
	if err := a.egressLines(&out, r, time.Unix(0, 0), &egressLogFlags{}); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) != len(put) {
		t.Errorf("%d lines of %d records", len(lines), len(put))
	}
	for _, line := range lines {
		if len(line) > 8<<10 || !utf8.ValidString(line) || strings.ContainsFunc(line, func(c rune) bool { return !unicode.IsPrint(c) }) {
			t.Errorf("%d bytes: %.200q", len(line), line)
		}
	}
}
