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
	go func() { // ends with s
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
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
	if _, err := Dial(path); !errors.Is(err, ErrGone) {
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
