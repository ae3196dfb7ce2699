package pool

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var key = strings.Repeat("0a", 32)

func TestRegister(t *testing.T) {
	dir := t.TempDir()
	s, err := Publish(dir, key)
	if err != nil {
		t.Fatal(err)
	}
	go func(s *Socket) { // ends with s
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}(s)
	other, err := Publish(dir, strings.Repeat("0b", 32))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	// Names that are none of ours are nobody's business.
	for _, n := range []string{"p-x.sock", "01k9x3m7q8r5t2v6w4y0z1a2b3.sock", "pool.lock", "p-" + key[:14] + "-abcdefghij.sock"} {
		if err := os.WriteFile(filepath.Join(dir, n), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if l, err := Fitting(dir, key); err != nil || len(l) != 1 || ID(l[0]) != s.ID() {
		t.Errorf("fitting: %q, %v", l, err)
	}
	if l, err := All(dir); err != nil || len(l) != 2 {
		t.Errorf("all: %q, %v", l, err)
	}
	if n, err := Sweep(dir); err != nil || n != 2 {
		t.Errorf("living: %d, %v", n, err)
	}
	path := s.path
	c, err := Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()

	// Withdrawn, and died: the socket of the dead one stays, and is found out.
	s.Close()
	if _, err := Dial(path); !errors.Is(err, errGone) {
		t.Errorf("withdrawn: %v", err)
	}
	s, err = Publish(dir, key)
	if err != nil {
		t.Fatal(err)
	}
	s.l.Close()
	if _, err := os.Lstat(s.path); err != nil {
		t.Fatal("the test's own dead socket is gone")
	}
	if n, err := Sweep(dir); err != nil || n != 1 {
		t.Errorf("living: %d, %v", n, err)
	}
	if _, err := os.Lstat(s.path); err == nil {
		t.Error("a dead one's socket is still there")
	}
	if l, err := os.ReadDir(dir); err != nil || len(l) != 5 {
		t.Errorf("a sweep took more than that: %v", l)
	}
	if _, err := Publish(dir, "short"); err == nil {
		t.Error("a key that is too short")
	}
}

// Bottles that are being made count, until their makers are gone.
func TestPlaces(t *testing.T) {
	dir := t.TempDir()
	reserve := func(keep int) string {
		t.Helper()
		p, err := Reserve(dir, key, keep)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first, second := reserve(2), reserve(2)
	if first == "" || second == "" || reserve(2) != "" {
		t.Fatalf("%q, %q, and a third of two", first, second)
	}
	if p, err := Reserve(dir, strings.Repeat("0b", 32), 1); err != nil || p == "" {
		t.Errorf("of another key: %q, %v", p, err)
	}
	Release(dir, second)
	if second = reserve(2); second == "" {
		t.Fatal("the place that was given up is not free")
	}
	a, err := Occupy(dir, first)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Occupy(dir, second)
	if err != nil {
		t.Fatal(err)
	}
	if reserve(2) != "" {
		t.Error("makers do not count")
	}
	b.f.Close() // its maker was killed
	if third := reserve(2); third == "" || third == second {
		t.Errorf("a dead maker's place: %q", third)
	}
	if _, err := Occupy(dir, second); err == nil {
		t.Error("a place that is gone was occupied")
	}
	a.Leave()
	a.Leave()
	if reserve(2) == "" {
		t.Error("the place that was left is not free")
	}
	for _, bad := range []string{"", "x", "../" + first, "pool.lock"} {
		if _, err := Occupy(dir, bad); err == nil {
			t.Errorf("%q was occupied", bad)
		}
	}
}
