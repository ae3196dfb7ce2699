package sparse

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func create(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// TestCopy copies a file of 1 TiB that holds three words, beyond what is there.
func TestCopy(t *testing.T) {
	const size = 1 << 40
	from, to := create(t, "from"), create(t, "to")
	words := map[int64]string{0: "first", 1 << 30: "second", size - 5: "third"}
	for at, w := range words {
		if _, err := from.WriteAt([]byte(w), at); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := to.WriteString("before"); err != nil {
		t.Fatal(err)
	}
	const at = 8192
	if err := Copy(t.Context(), to, at, from, size); err != nil {
		t.Fatal(err)
	}
	words[-at] = "before"
	for off, w := range words {
		got := make([]byte, len(w))
		if _, err := to.ReadAt(got, at+off); err != nil || string(got) != w {
			t.Errorf("at %d: %q, %v", off, got, err)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(to.Fd()), &st); err != nil || st.Blocks*512 > 1<<20 {
		t.Errorf("holes became %d bytes, %v", st.Blocks*512, err)
	}
}

// TestCopyEnds: a part, a file that is shorter than it was, a hole alone, and a caller who has
// gone.
func TestCopyEnds(t *testing.T) {
	from := create(t, "from")
	if _, err := from.WriteString(strings.Repeat("x", 10_000)); err != nil {
		t.Fatal(err)
	}
	for size, want := range map[int64]int64{0: 0, 1: 1, 5000: 5000, 10_000: 10_000, 20_000: 10_000} {
		to := create(t, "to")
		if err := Copy(t.Context(), to, 0, from, size); err != nil {
			t.Error(err)
		}
		if n, err := to.Seek(0, io.SeekEnd); err != nil || n != want {
			t.Errorf("of %d bytes %d were copied, %v", size, n, err)
		}
	}
	hole := create(t, "hole")
	if err := hole.Truncate(1 << 40); err != nil {
		t.Fatal(err)
	}
	to := create(t, "to")
	if err := Copy(t.Context(), to, 0, hole, 1<<40); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Copy(ctx, to, 0, from, 10_000); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller who has gone: %v", err)
	}
	from.Close()
	if err := Copy(t.Context(), to, 0, from, 10_000); err == nil {
		t.Error("a closed file is copied")
	}
}
