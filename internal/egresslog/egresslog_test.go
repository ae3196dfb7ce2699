package egresslog

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carboy/carboy/internal/receipt/receipttest"
)

// logAt starts a log in a new file.
func logAt(t *testing.T, level int, max int64, told func(*Entry)) (*Log, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "egress")
	return Start(level, Options{
		Open: func() (*os.File, error) { return os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600) },
		Run:  "01k9x3m7q8r5t2v6w4y0z1a2b3", Max: max, OnNotable: told,
		Clean: func(r *Entry) { r.Path = strings.ReplaceAll(r.Path, "hunter2", "[redacted]") },
	}), path
}

func read(t *testing.T, path string) (out []Entry) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	r := NewReader(f)
	defer r.Close()
	for {
		rec, line, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if rec == nil {
			return out
		}
		if line[len(line)-1] != '\n' {
			t.Errorf("line %q", line)
		}
		out = append(out, *rec)
	}
}

func request(verdict, path string) Entry {
	return Entry{Time: time.Unix(1, 0).UTC(), Kind: Request, Verdict: verdict, Host: "a.example", Port: 443, Method: "GET", Path: path}
}

// TestLevels: the level affects the file, not Told. Both are clean.
func TestLevels(t *testing.T) {
	for level, want := range []string{"", "head refused:/[redacted] found:", "head allowed:/a refused:/[redacted] found:"} {
		var told []string
		l, path := logAt(t, level, 0, func(r *Entry) { told = append(told, string(r.Kind)+r.Path) })
		l.Put(request("allowed", "/a"))
		l.Put(request("refused", "/hunter2"))
		l.Put(Entry{Kind: Found, What: "known-secret", Action: "blocked"})
		a := l.End()
		l.Put(request("refused", "/late"))
		var got []string
		if want == "" {
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("level 0 has a file: %v", err)
			}
		} else {
			for _, r := range read(t, path) {
				s := string(r.Kind)
				if r.Kind != Head {
					s = r.Verdict + ":" + r.Path
				}
				if r.Kind == Found {
					s = "found:"
				}
				got = append(got, s)
			}
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("level %d: %q, want %q", level, s, want)
		}
		if s := strings.Join(told, " "); s != "request/[redacted] found" {
			t.Errorf("level %d told %q", level, s)
		}
		if a.Err != nil || a.LeftOut != 0 || a.Unreported != 0 || a.Records != int64(len(got)) {
			t.Errorf("level %d: %+v", level, a)
		}
	}
}

// TestBound: allowed requests can't displace refusals, and both can't displace
// findings. The file and the account say what is missing.
func TestBound(t *testing.T) {
	const max = 64 << 10
	l, path := logAt(t, LevelAll, max, nil)
	put := func(n int, r Entry) {
		for range n {
			l.Put(r)
			for len(l.wake) > 0 { // as fast as it is taken
				runtime.Gosched()
			}
		}
	}
	put(2000, request("allowed", "/"))
	put(2000, request("refused", "/"))
	put(10, Entry{Time: time.Unix(1, 0), Kind: Found, What: "known-secret"})
	a := l.End()
	fi, err := os.Stat(path)
	if err != nil || fi.Size() > max {
		t.Fatalf("%v, %d bytes", err, fi.Size())
	}
	n := map[string]int{}
	for _, r := range read(t, path) {
		n[string(r.Kind)+r.Verdict]++
	}
	if n["requestallowed"] < 100 || n["requestrefused"] < 50 || n["found"] != 10 || n["left-out"] != 2 {
		t.Errorf("%v", n)
	}
	if got := n["requestallowed"] + n["requestrefused"] + int(a.LeftOut); got != 4000 {
		t.Errorf("%d of 4000 are in the file or counted", got)
	}
}

// TestFlood: Put does not wait for a blocked reader, memory is bounded, and every
// record is in the file, told, or counted.
func TestFlood(t *testing.T) {
	hold := make(chan struct{})
	var once sync.Once
	told := 0
	l, path := logAt(t, LevelAll, 1<<30, func(*Entry) { once.Do(func() { <-hold }); told++ })
	const each = 3 * maxQueue
	for i := range each {
		l.Put(request("allowed", fmt.Sprint("/", i)))
		l.Put(request("refused", fmt.Sprint("/", i)))
	}
	close(hold)
	a := l.End()
	n := map[string]int{}
	for _, r := range read(t, path) {
		n[string(r.Kind)+r.Verdict]++
	}
	if n["requestallowed"] > maxQueue+1 || n["requestrefused"] < maxQueue/4 || n["left-out"] == 0 {
		t.Errorf("%v", n)
	}
	if got := n["requestallowed"] + n["requestrefused"] + int(a.LeftOut); got != 2*each {
		t.Errorf("%d of %d", got, 2*each)
	}
	if told+int(a.Unreported) != each {
		t.Errorf("%d told, %d untold of %d", told, a.Unreported, each)
	}
}

// TestFullDisk: the file ends after its last whole line, and the account says so.
func TestFullDisk(t *testing.T) {
	l := Start(LevelAll, Options{
		Open:  func() (*os.File, error) { return os.OpenFile("/dev/full", os.O_WRONLY, 0) },
		Clean: func(*Entry) {},
	})
	l.Put(request("refused", "/"))
	if a := l.End(); !errors.Is(a.Err, unix.ENOSPC) || a.Records != 0 || a.LeftOut == 0 {
		t.Errorf("%+v", a)
	}
	l = Start(LevelAll, Options{Open: func() (*os.File, error) { return nil, unix.EROFS }, Clean: func(*Entry) {}})
	l.Put(request("refused", "/"))
	if a := l.End(); !errors.Is(a.Err, unix.EROFS) {
		t.Errorf("%+v", a)
	}
}

// TestReader: an incomplete line is not returned yet; a file that is no log is an
// error.
func TestReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "egress")
	w, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	r := NewReader(f)
	defer r.Close()
	next := func() *Entry {
		rec, _, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
	for _, s := range []string{"", `{"schema":"carboy.dev/egress-log/v1","t":"2026-01-01T00:00:00Z",`} {
		w.WriteString(s)
		if rec := next(); rec != nil {
			t.Fatalf("%+v", rec)
		}
	}
	w.WriteString("\"kind\":\"head\"}\n{\"kind\":\"found\"}\n{")
	if a, b, c := next(), next(), next(); a.Kind != Head || b.Kind != Found || c != nil {
		t.Errorf("%+v %+v %+v", a, b, c)
	}
	for _, bad := range []string{"{}\n", "x\n", `{"schema":"carboy.dev/egress-log/v2"}` + "\n", strings.Repeat("x", maxLine+2)} {
		os.WriteFile(path, []byte(bad), 0o600)
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		r := NewReader(f)
		if _, _, err := r.Next(); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%.20s: %v", bad, err)
		}
		r.Close()
	}
}

// TestSchema: the published schema has exactly the fields that are written.
func TestSchema(t *testing.T) {
	s, err := receipttest.Load("../../docs/schemas/egress-log.v1.json")
	if err != nil {
		t.Fatal(err)
	}
	props := s.Properties(s.Root())
	for f := range reflect.TypeFor[Entry]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if _, ok := props[name]; !ok {
			t.Errorf("%s is written and not published", name)
		}
		delete(props, name)
	}
	if len(props) > 0 {
		t.Errorf("published and not written: %v", props)
	}
}
